/* Callback for checks that must find no problem (problem.h). */
#include "problem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>


int fail_at_problem(void *ctx, const char *what) {
    (void)ctx;
    fail_msg("%s", what);
    return 1;
}
