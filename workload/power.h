/* Logarithm, exponential and power functions for decisions in a run. The results of libm differ in rounding between
 * machines; the results of these functions do not. They use only + - * / on doubles in a fixed order, and IEEE 754
 * defines their results exactly. The relative error is below 1e-13 for the arguments that distributions use (powers
 * between 1e-300 and 1e300).
 *
 * This header also forbids the compiler to fuse multiplications with additions in a file that includes it. */
#ifndef FAR_WORKLOAD_POWER_H
#define FAR_WORKLOAD_POWER_H

#include <float.h>

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif

_Static_assert(FLT_EVAL_METHOD == 0, "doubles must be computed as doubles");

double far_log(double x);           /* natural logarithm; x must be positive, finite and normal */
double far_exp(double x);           /* exact for |x| < 700; below -700 the result is 0, above 700 the value at 700 */
double far_pow(double x, double y); /* x >= 0; 0 to any power is 0 */

#endif
