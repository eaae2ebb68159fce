/* Reports a property that a test could not check on this machine. scripts/test collects these lines in its summary,
 * because the output of tests that pass is not read otherwise. */
#ifndef TESTS_SUPPORT_LEFT_OUT_H
#define TESTS_SUPPORT_LEFT_OUT_H

#include <stdio.h>

static inline void left_out(const char *what, const char *why) {
    printf("LEFT OUT: %s: %s\n", what, why);
    fflush(stdout);
}

#endif
