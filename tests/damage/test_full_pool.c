/* A pool that is full: no insert finds room, and yet deletes work in every kind, and make room for updates, the pool can
 * be checked and repaired, and everything can be closed. (Updates of smart want its reserve complete first.) */
#include "scene.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define KEYS_MAX 200000
#define LOOKED   50 /* keys that are written again */

typedef struct full {
    far_pool *pool;
    far_session *session;
    far_index *index;
    size_t value_bytes;
    unsigned keys;
} full;


static size_t make_value(const full *f, unsigned number, unsigned version, char *value) {
    memset(value, (int)(number * 7 + version), f->value_bytes);
    return f->value_bytes;
}


static void fill(full *f) {
    char key[SCENE_KEY_BYTES], value[2048];
    int err = FAR_OK;
    while (err == FAR_OK) {
        assert_true(f->keys < KEYS_MAX);
        size_t key_bytes = (size_t)snprintf(key, sizeof(key), "key %06u", f->keys);
        err = far_insert(f->session, f->index, key, key_bytes, value, make_value(f, f->keys, 0, value));
        f->keys += err == FAR_OK;
    }
    assert_int_equal(err, FAR_ERR_NO_MEMORY);
}


static unsigned write_again(full *f, bool update) {
    char key[SCENE_KEY_BYTES], value[2048];
    unsigned done = 0;
    for (unsigned i = 0; i < LOOKED; i++) {
        unsigned number = i * (f->keys / LOOKED) + update; /* not those that were deleted */
        size_t key_bytes = (size_t)snprintf(key, sizeof(key), "key %06u", number);
        int err = update ? far_update(f->session, f->index, key, key_bytes, value, make_value(f, number, 1, value))
                         : far_delete(f->session, f->index, key, key_bytes);
        done += err == FAR_OK;
        if (err != FAR_OK)
            print_error("key %u: %s\n", number, far_last_error());
    }
    return done;
}


static int tell_problem(void *ctx, const char *what) {
    (void)ctx;
    print_error("%s\n", what);
    return 0;
}


static void run(const char *kind, const char *options, size_t value_bytes) {
    full f = {.value_bytes = value_bytes};
    for (unsigned n = 0; n < RIG_NODES; n++)
        memset(rig_memory(n), 0, RIG_BYTES);
    rig_seed(1);
    assert_int_equal(far_pool_open(RIG_URI, &rig_options, &f.pool), 0);
    assert_int_equal(far_session_open(f.pool, &f.session), 0);
    assert_int_equal(far_index_create(f.session, "index", kind, options, &f.index), 0);
    fill(&f);
    print_message("%s, values of %zu bytes: full with %u keys\n", kind, value_bytes, f.keys);
    assert_int_equal(far_pool_check(f.session, 1, tell_problem, NULL), 0);
    assert_int_equal(write_again(&f, false), LOOKED);
    if (strcmp(kind, "smart") != 0)
        assert_int_equal(write_again(&f, true), LOOKED);
    assert_int_equal(far_pool_check(f.session, 1, tell_problem, NULL), 0);
    far_index_close(f.index);
    assert_int_equal(far_index_drop(f.session, "index"), 0);
    assert_int_equal(far_pool_check(f.session, 0, tell_problem, NULL), 0);
    far_session_close(f.session);
    far_pool_close(f.pool);
}


static void a_full_pool_can_be_worked_on(void **state) {
    static const size_t sizes[] = {8, 100, 2000};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        run(*state, NULL, sizes[i]);
}


int main(void) {
    static const struct CMUnitTest tests[] = {
        {"chime", a_full_pool_can_be_worked_on, NULL, NULL, "chime"},
        {"dart", a_full_pool_can_be_worked_on, NULL, NULL, "dart"},
        {"dolphin", a_full_pool_can_be_worked_on, NULL, NULL, "dolphin"},
        {"shard", a_full_pool_can_be_worked_on, NULL, NULL, "shard"},
        {"smart", a_full_pool_can_be_worked_on, NULL, NULL, "smart"},
    };
    rig_start();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rig_end();
    return failed;
}
