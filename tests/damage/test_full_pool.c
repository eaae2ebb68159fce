/* A pool that is full: no insert finds room, and yet updates of the same size and deletes work in every kind, the pool
 * can be checked and repaired, and everything can be closed. */
#include "base/error.h"
#include "client/op.h"
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
    unsigned keys, stride;
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


static void check_version(full *f, const char *key, size_t key_bytes, unsigned number, unsigned version) {
    char value[2048], right[2048];
    size_t bytes, right_bytes = make_value(f, number, version, right);
    assert_int_equal(far_get(f->session, f->index, key, key_bytes, value, sizeof(value), &bytes), FAR_OK);
    assert_int_equal(bytes, right_bytes);
    assert_memory_equal(value, right, bytes);
}


/* Some of the keys. Between any two of them an insert is refused: it does not take what the next one needs. */
static unsigned write_again(full *f, far_op_kind how, unsigned version) {
    char key[SCENE_KEY_BYTES], value[2048];
    unsigned done = 0;
    for (unsigned i = 0; i < LOOKED; i++) {
        unsigned number = i * f->stride + (how != FAR_OP_DELETE); /* not those that were deleted */
        size_t key_bytes = (size_t)snprintf(key, sizeof(key), "key %06u", number);
        size_t bytes = make_value(f, number, version, value);
        int err = how == FAR_OP_UPDATE ? far_update(f->session, f->index, key, key_bytes, value, bytes)
                  : how == FAR_OP_PUT  ? far_put(f->session, f->index, key, key_bytes, value, bytes)
                                       : far_delete(f->session, f->index, key, key_bytes);
        done += err == FAR_OK;
        if (err != FAR_OK)
            print_error("key %u: %s\n", number, far_last_error());
        else if (how != FAR_OP_DELETE)
            check_version(f, key, key_bytes, number, version);
        if (how != FAR_OP_DELETE && i % 10 == 0)
            fill(f);
    }
    return done;
}


static int tell_problem(void *ctx, const char *what) {
    (void)ctx;
    print_error("%s\n", what);
    return 0;
}


static void open_full(full *f, const char *kind, const char *options) {
    for (unsigned n = 0; n < RIG_NODES; n++)
        memset(rig_memory(n), 0, RIG_BYTES);
    rig_seed(1);
    assert_int_equal(far_pool_open(RIG_URI, &rig_options, &f->pool), 0);
    assert_int_equal(far_session_open(f->pool, &f->session), 0);
    assert_int_equal(far_index_create(f->session, "index", kind, options, &f->index), 0);
}


static void run(const char *kind, const char *options, size_t value_bytes) {
    full f = {.value_bytes = value_bytes};
    open_full(&f, kind, options);
    fill(&f);
    f.stride = f.keys / LOOKED;
    print_message("%s, values of %zu bytes: full with %u keys\n", kind, value_bytes, f.keys);
    assert_int_equal(write_again(&f, FAR_OP_UPDATE, 1), LOOKED);
    assert_int_equal(far_pool_check(f.session, 1, tell_problem, NULL), 0);
    assert_int_equal(write_again(&f, FAR_OP_PUT, 2), LOOKED);
    assert_int_equal(write_again(&f, FAR_OP_DELETE, 0), LOOKED);
    assert_int_equal(write_again(&f, FAR_OP_UPDATE, 3), LOOKED);
    assert_int_equal(far_pool_check(f.session, 1, tell_problem, NULL), 0);
    far_index_close(f.index);
    assert_int_equal(far_index_drop(f.session, "index"), 0);
    assert_int_equal(far_pool_check(f.session, 0, tell_problem, NULL), 0);
    far_session_close(f.session);
    far_pool_close(f.pool);
}


static void a_full_pool_can_be_worked_on(void **state) {
    static const size_t sizes[] = {1, 8, 100, 2000};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        run(*state, NULL, sizes[i]);
}


/* With a small directory the inserts that follow the deletes need a node when only the leaf is free that is held back
 * for updates. */
static void inserts_do_not_take_the_last_leaf_for_a_node(void **state) {
    (void)state;
    run("dart", "directory_bits=12", 2000);
}


enum { ABREAST = 32, ALL = 4000 };

/* Keeps updates and puts of one absent key in flight, until so many ended. */
static void write_an_absent_key(full *f) {
    far_op ops[ABREAST], *op, *done[ABREAST];
    char value[2048];
    for (unsigned submitted = 0, ended = 0, idle = ABREAST; ended < ALL;) {
        for (; idle > 0 && submitted < ALL; idle--, submitted++) {
            op = submitted < ABREAST ? &ops[submitted] : done[idle - 1];
            *op = (far_op){.kind = submitted % 3 ? FAR_OP_UPDATE : FAR_OP_PUT, .index = f->index, .value = value};
            op->key = "absent";
            op->key_len = 6;
            op->value_len = make_value(f, 0, 0, value);
            assert_int_equal(far_submit(f->session, &op, 1), 1);
        }
        int count = far_reap(f->session, done, ABREAST, 1);
        assert_true(count > 0);
        for (int i = 0; i < count; i++)
            assert_int_equal(done[i]->result, done[i]->kind == FAR_OP_PUT ? FAR_ERR_NO_MEMORY : FAR_ERR_NOT_FOUND);
        idle += (unsigned)count;
        ended += (unsigned)count;
    }
}


/* A put that finds no memory tries an update, which may be served with another's, and then is a put again: it needs the
 * pin that it waited without. */
static void writes_in_flight_are_refused_in_a_full_pool(void **state) {
    full f = {.value_bytes = 2000};
    assert_int_equal(far_pool_open("sim:seed=1,memory_nodes=1,size=16M", NULL, &f.pool), 0);
    assert_int_equal(far_session_open(f.pool, &f.session), 0);
    assert_int_equal(far_index_create(f.session, "index", *state, NULL, &f.index), 0);
    fill(&f);
    write_an_absent_key(&f);
    far_index_close(f.index);
    far_session_close(f.session);
    far_pool_close(f.pool);
}


static int tell_full(far_task *t, void *arg) {
    (void)arg;
    return far_tell_full(t, far_fail(FAR_ERR_NO_MEMORY, "the pool has no room for 1 bytes"));
}


/* Why a pool is full is looked up once in a while: who goes on in it is not slowed down by that. */
static void the_look_at_a_full_pool_is_rare(void **state) {
    full f = {0};
    (void)state;
    open_full(&f, "dart", NULL);
    const uint64_t pause = 1100000000;
    for (unsigned i = 0; i < 6; i++) {
        bool due = i % 3 == 0; /* the first, and the first after a pause */
        if (due)
            rig_pass_time(pause);
        rig_allow(UINT64_MAX);
        assert_int_equal(far_session_call(f.session, FAR_STATS_OTHER, false, tell_full, NULL), FAR_ERR_NO_MEMORY);
        assert_int_equal(rig_posted() > 0, due);
        assert_non_null(strstr(far_last_error(), "bytes are free"));
    }
    far_index_close(f.index);
    far_session_close(f.session);
    far_pool_close(f.pool);
}


int main(void) {
    static const struct CMUnitTest tests[] = {
        {"chime", a_full_pool_can_be_worked_on, NULL, NULL, "chime"},
        {"dart", a_full_pool_can_be_worked_on, NULL, NULL, "dart"},
        {"dolphin", a_full_pool_can_be_worked_on, NULL, NULL, "dolphin"},
        {"shard", a_full_pool_can_be_worked_on, NULL, NULL, "shard"},
        {"smart", a_full_pool_can_be_worked_on, NULL, NULL, "smart"},
        {"chime in flight", writes_in_flight_are_refused_in_a_full_pool, NULL, NULL, "chime"},
        {"shard in flight", writes_in_flight_are_refused_in_a_full_pool, NULL, NULL, "shard"},
        {"smart in flight", writes_in_flight_are_refused_in_a_full_pool, NULL, NULL, "smart"},
        cmocka_unit_test(inserts_do_not_take_the_last_leaf_for_a_node),
        cmocka_unit_test(the_look_at_a_full_pool_is_rare),
    };
    rig_start();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rig_end();
    return failed;
}
