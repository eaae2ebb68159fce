/* Logarithm, exponential and power, with the same result on every machine. */
#include "workload/power.h"

#include <stdint.h>
#include <string.h>

/* ln 2 in two parts. The first has 21 trailing zero bits, so its product with an exponent is exact. */
#define LN2_HIGH 0x1.62e42feep-1
#define LN2_LOW  0x1.a39ef35793c76p-33


static uint64_t bits_of(double x) {
    uint64_t bits;
    memcpy(&bits, &x, 8);
    return bits;
}


static double double_of(uint64_t bits) {
    double x;
    memcpy(&x, &bits, 8);
    return x;
}


/* Writes x = m * 2^e with m in [sqrt 1/2, sqrt 2). Then ln m = 2 artanh s with s = (m-1)/(m+1), |s| < 0.172, which is
 * computed by its series. */
double far_log(double x) {
    uint64_t bits = bits_of(x);
    int exponent = (int)(bits >> 52) - 1023;
    double m = double_of((bits & 0xfffffffffffffull) | 0x3ff0000000000000ull);
    if (m > 1.4142135623730951) {
        m = m * 0.5;
        exponent++;
    }
    double s = (m - 1.0) / (m + 1.0), square = s * s, series = 0.0;
    for (int k = 23; k >= 3; k -= 2)
        series = (series + 1.0 / k) * square;
    double e = exponent;
    return e * LN2_HIGH + (e * LN2_LOW + (2.0 * s * series + 2.0 * s));
}


/* Writes x = k ln 2 + r with |r| <= ln 2 / 2, and computes e^r by its series. */
double far_exp(double x) {
    if (x < -700.0)
        return 0.0;
    if (x > 700.0)
        x = 700.0;
    int k = (int)(x * 1.4426950408889634 + (x < 0 ? -0.5 : 0.5));
    double r = (x - k * LN2_HIGH) - k * LN2_LOW, series = 1.0;
    for (int n = 14; n >= 1; n--)
        series = 1.0 + series * r * (1.0 / n);
    return series * double_of((uint64_t)(k + 1023) << 52);
}


double far_pow(double x, double y) {
    return x <= 0.0 ? 0.0 : far_exp(y * far_log(x));
}
