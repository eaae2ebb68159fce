/* The fabric `shm` on a device. /dev/zero serves as a DAX device that is not formatted: it can be mapped and contains
 * zeros. The file in sysfs that contains the size of a device is replaced (the test is linked with --wrap=fopen). */
#include "fabric/shm/shm.h"
#include "farindex.h"
#include "test.h"

#include <stdio.h>
#include <string.h>

#define URI "shm:/dev/zero?size=4M&shared=1" /* every user can write /dev/zero */

FILE *__real_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode);


FILE *__wrap_fopen(const char *path, const char *mode) {
    static char bytes[] = "16777216\n";
    return strcmp(path, "/sys/dev/char/1:5/size") == 0 ? fmemopen(bytes, strlen(bytes), "r") : __real_fopen(path, mode);
}


/* Opening a pool that must exist does not format the device, even if the URI contains a size. Fails without the check
 * of `existing` in map_pool_file. */
TEST(a_pool_that_must_exist_is_not_made_on_a_device) {
    far_pool_options options = {0}, existing = {.must_exist = 1};
    far_pool *pool, *other;
    assert_int_equal(far_pool_open(URI, &existing, &pool), FAR_ERR_NOT_FOUND);
    assert_non_null(strstr(far_last_error(), "there is no pool on the device"));
    assert_int_equal(far_pool_open(URI, &options, &pool), 0);
    assert_int_equal(far_pool_open(URI, &existing, &other), 0);
    far_pool_close(other);
    far_pool_close(pool);
}
