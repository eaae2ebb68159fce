/* What a test could not look at on this machine is said aloud: scripts/test gathers these lines in its summary, since
 * nobody reads the output of a test that passes. */
#ifndef TESTS_SUPPORT_LEFT_OUT_H
#define TESTS_SUPPORT_LEFT_OUT_H

#include <stdio.h>

static inline void left_out(const char *what, const char *why) {
    printf("LEFT OUT: %s: %s\n", what, why);
    fflush(stdout);
}

#endif
