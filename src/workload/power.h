/* Logarithm, exponential and power for what decides a run: libm rounds differently from machine to machine, these do
 * not. They use nothing but + - * / on doubles in a fixed order, which IEEE 754 defines to the last bit; relative error
 * below 1e-13 for the arguments that distributions need (powers between 1e-300 and 1e300).
 *
 * This header also forbids the compiler to fuse multiplications with additions in the file that includes it. */
#ifndef FAR_WORKLOAD_POWER_H
#define FAR_WORKLOAD_POWER_H

#include <float.h>

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif

_Static_assert(FLT_EVAL_METHOD == 0, "doubles must be computed as doubles");

double far_log(double x);           /* natural logarithm; x > 0, finite and normal */
double far_exp(double x);           /* |x| < 700; beyond that 0, or the value at 700 */
double far_pow(double x, double y); /* x >= 0; 0 to any power is 0 */

#endif
