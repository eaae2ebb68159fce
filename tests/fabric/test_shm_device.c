/* The fabric shm on a device. /dev/zero stands for a DAX device that nobody has formatted yet: it can be mapped, and is
 * full of zeroes. What the kernel would tell of its size is told by this file (linked with --wrap=fopen). */
#include "fabric/shm.h"
#include "farindex.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define URI "shm:/dev/zero?size=4M"

FILE *__real_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode);


FILE *__wrap_fopen(const char *path, const char *mode) {
    static char bytes[] = "16777216\n";
    return strcmp(path, "/sys/dev/char/1:5/size") == 0 ? fmemopen(bytes, strlen(bytes), "r") : __real_fopen(path, mode);
}


/* Whoever asks for a pool that is there does not format the device, although a size is given. */
static void a_pool_that_must_exist_is_not_made_on_a_device(void **state) {
    far_pool_options options = {0}, existing = {.must_exist = 1};
    far_pool *pool, *other;
    (void)state;
    assert_int_equal(far_pool_open(URI, &existing, &pool), FAR_ERR_NOT_FOUND);
    assert_non_null(strstr(far_last_error(), "there is no pool on the device"));
    assert_int_equal(far_pool_open(URI, &options, &pool), 0);
    assert_int_equal(far_pool_open(URI, &existing, &other), 0);
    far_pool_close(other);
    far_pool_close(pool);
}


int main(void) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(a_pool_that_must_exist_is_not_made_on_a_device)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
