/* Tests of a full pool. They prove that, although no insert finds memory, updates of the same size and deletes work in
 * every kind, the pool can be checked and repaired, and everything can be closed. */
#include "base/error.h"
#include "client/op.h"
#include "scene.h"
#include "test.h"
#include "world.h"

#include <stdlib.h>
#include <string.h>

#define KEYS_MAX 200000
#define LOOKED   50 /* number of keys that are written again */

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


static void fill_pool(full *f) {
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


static void assert_value_version(full *f, const char *key, size_t key_bytes, unsigned number, unsigned version) {
    char value[2048], right[2048];
    size_t bytes, right_bytes = make_value(f, number, version, right);
    assert_int_equal(far_get(f->session, f->index, key, key_bytes, value, sizeof(value), &bytes), FAR_OK);
    assert_int_equal(bytes, right_bytes);
    assert_memory_equal(value, right, bytes);
}


/* Writes some keys again. Between these writes an insert fails for lack of memory, which must not take the memory that
 * the next write needs. */
static unsigned rewrite_keys(full *f, far_op_kind how, unsigned version) {
    char key[SCENE_KEY_BYTES], value[2048];
    unsigned done = 0;
    for (unsigned i = 0; i < LOOKED; i++) {
        /* The keys that are deleted are different from those that are written. */
        unsigned number = i * f->stride + (how != FAR_OP_DELETE);
        size_t key_bytes = (size_t)snprintf(key, sizeof(key), "key %06u", number);
        size_t bytes = make_value(f, number, version, value);
        int err = how == FAR_OP_UPDATE ? far_update(f->session, f->index, key, key_bytes, value, bytes)
                  : how == FAR_OP_PUT  ? far_put(f->session, f->index, key, key_bytes, value, bytes)
                                       : far_delete(f->session, f->index, key, key_bytes);
        done += err == FAR_OK;
        if (err != FAR_OK)
            print_error("key %u: %s\n", number, far_last_error());
        else if (how != FAR_OP_DELETE)
            assert_value_version(f, key, key_bytes, number, version);
        if (how != FAR_OP_DELETE && i % 10 == 0)
            fill_pool(f);
    }
    return done;
}


static int print_problem(void *ctx, const char *what) {
    (void)ctx;
    print_error("%s\n", what);
    return 0;
}


static void open_empty_pool(full *f, const char *kind, const char *options) {
    for (unsigned n = 0; n < RIG_NODES; n++)
        memset(rig_memory(n), 0, RIG_BYTES);
    rig_seed(1);
    assert_int_equal(far_pool_open(RIG_URI, &rig_options, &f->pool), 0);
    assert_int_equal(far_session_open(f->pool, &f->session), 0);
    assert_int_equal(far_index_create(f->session, "index", kind, options, &f->index), 0);
}


static void work_on_full_pool(const char *kind, const char *options, size_t value_bytes) {
    full f = {.value_bytes = value_bytes};
    open_empty_pool(&f, kind, options);
    fill_pool(&f);
    f.stride = f.keys / LOOKED;
    print_message("%s, values of %zu bytes: full with %u keys\n", kind, value_bytes, f.keys);
    assert_int_equal(rewrite_keys(&f, FAR_OP_UPDATE, 1), LOOKED);
    assert_int_equal(far_pool_check(f.session, 1, print_problem, NULL), 0);
    assert_int_equal(rewrite_keys(&f, FAR_OP_PUT, 2), LOOKED);
    assert_int_equal(rewrite_keys(&f, FAR_OP_DELETE, 0), LOOKED);
    assert_int_equal(rewrite_keys(&f, FAR_OP_UPDATE, 3), LOOKED);
    assert_int_equal(far_pool_check(f.session, 1, print_problem, NULL), 0);
    far_index_close(f.index);
    assert_int_equal(far_index_drop(f.session, "index"), 0);
    assert_int_equal(far_pool_check(f.session, 0, print_problem, NULL), 0);
    far_session_close(f.session);
    far_pool_close(f.pool);
}


TEST_FUNCTION(a_full_pool_can_be_worked_on) {
    static const size_t sizes[] = {1, 8, 100, 2000};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        work_on_full_pool(*state, NULL, sizes[i]);
}


/* Proves that inserts leave memory for updates that need leaves. With a small directory, the inserts after the deletes
 * need nodes. */
TEST(inserts_of_nodes_leave_memory_for_leaves) {
    work_on_full_pool("dart", "directory_bits=12", 2000);
}


/* An insert may find no memory for a larger node, while there still is memory for a value. This function inserts keys
 * until many inserts in a row, which belong to different nodes, have found no memory. */
static void use_rest_of_pool(full *f) {
    char key[SCENE_KEY_BYTES], value[2048];
    for (unsigned i = 0, in_vain = 0; in_vain < 100; i++) {
        size_t key_bytes = (size_t)snprintf(key, sizeof(key), "%u rest", i * 7919 % 100000);
        int err = far_insert(f->session, f->index, key, key_bytes, value, make_value(f, i, 0, value));
        assert_true(err == FAR_OK || err == FAR_ERR_NO_MEMORY);
        in_vain = err == FAR_OK ? 0 : in_vain + 1;
    }
}


enum { ABREAST = 32, ALL = 4000 };

/* Keeps updates and puts of one absent key in flight until ALL operations have ended. */
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


/* Proves that a put of an absent key is refused in a full pool while other writes of the key are in flight. A put that
 * found no memory runs again as an update, because an update of a present key may use the headroom. RDWC may let
 * another task execute this update, and then the put loses its pin. The update finds no key, so the operation runs as a
 * put once more. Fails if the put does not take a new pin for that (update_else_put in client/op.c). */
TEST_FUNCTION(writes_in_flight_are_refused_in_a_full_pool) {
    full f = {.value_bytes = 2000};
    assert_int_equal(far_pool_open("sim:seed=1,memory_nodes=1,size=16M", NULL, &f.pool), 0);
    assert_int_equal(far_session_open(f.pool, &f.session), 0);
    assert_int_equal(far_index_create(f.session, "index", *state, NULL, &f.index), 0);
    fill_pool(&f);
    use_rest_of_pool(&f);
    write_an_absent_key(&f);
    far_index_close(f.index);
    far_session_close(f.session);
    far_pool_close(f.pool);
}


/* ---- Several handles ---- */

enum { HANDLES_MAX = 16, ROUNDS = 6 };

typedef struct crowd { /* handles of one full pool, which work by turns */
    unsigned handles;
    far_pool *pools[HANDLES_MAX];
    far_session *sessions[HANDLES_MAX];
    far_index *indexes[HANDLES_MAX];
    unsigned keys;
} crowd;


static int write_key(crowd *c, unsigned handle, far_op_kind how, unsigned number) {
    char key[SCENE_KEY_BYTES], value[500];
    size_t key_bytes = (size_t)snprintf(key, sizeof(key), "key %06u", number * 7919 % 1000003);
    memset(value, (int)(number + how), sizeof(value));
    return how == FAR_OP_INSERT   ? far_insert(c->sessions[handle], c->indexes[handle], key, key_bytes, value, 500)
           : how == FAR_OP_UPDATE ? far_update(c->sessions[handle], c->indexes[handle], key, key_bytes, value, 500)
                                  : far_delete(c->sessions[handle], c->indexes[handle], key, key_bytes);
}


static void open_crowd(crowd *c, unsigned handles, const char *kind) {
    char uri[WORLD_URI];
    *c = (crowd){.handles = handles};
    world_uri(uri, "seed=%u,limit=1000s,memory_nodes=1,size=4M", handles);
    for (unsigned i = 0; i < handles; i++) {
        world_join(uri, NULL, &c->pools[i], &c->sessions[i]);
        if (i == 0)
            assert_int_equal(far_index_create(c->sessions[0], "index", kind, NULL, &c->indexes[0]), 0);
        else
            assert_int_equal(far_index_open(c->sessions[i], "index", &c->indexes[i]), 0);
    }
    /* the handles insert by turns, until every handle has found no memory several times in a row */
    for (unsigned in_vain = 0, number = 0; in_vain < 4 * handles + 20; number++) {
        int err = write_key(c, number % handles, FAR_OP_INSERT, c->keys);
        assert_true(err == FAR_OK || err == FAR_ERR_NO_MEMORY);
        c->keys += err == FAR_OK;
        in_vain = err == FAR_OK ? 0 : in_vain + 1;
    }
}


/* Proves that the headroom of a full pool serves the updates and deletes of 1, 4 and 16 handles, while their inserts go
 * on. Fails if updates and deletes may not use the headroom (call_index_kind in client/op.c), and with several handles
 * also if handles do not release blocks with free space (far_blocks_release). */
TEST_FUNCTION(handles_update_and_delete_in_a_full_pool) {
    static const unsigned handles[] = {1, 4, HANDLES_MAX};
    for (unsigned i = 0; i < 3; i++) {
        crowd c;
        unsigned failed = 0, inserted = 0, next = 0;
        open_crowd(&c, handles[i], *state);
        for (unsigned round = 0; round < ROUNDS * HANDLES_MAX; round++) {
            unsigned h = round % c.handles;
            failed += write_key(&c, h, FAR_OP_UPDATE, next++ % c.keys) != FAR_OK;
            int err = write_key(&c, (h + 1) % c.handles, FAR_OP_INSERT, c.keys + inserted);
            assert_true(err == FAR_OK || err == FAR_ERR_NO_MEMORY);
            inserted += err == FAR_OK;
            failed += write_key(&c, (h + 2) % c.handles, FAR_OP_UPDATE, next++ % c.keys) != FAR_OK;
        }
        for (unsigned round = 0; round < ROUNDS * HANDLES_MAX; round++)
            failed += write_key(&c, round % c.handles, FAR_OP_DELETE, round) != FAR_OK;
        print_message("%s, %u handles: %u keys, then %u inserts\n", (const char *)*state, c.handles, c.keys, inserted);
        assert_int_equal(failed, 0);
        assert_int_equal(far_pool_check(c.sessions[0], 0, print_problem, NULL), 0);
        for (unsigned k = 0; k < c.handles; k++) {
            far_index_close(c.indexes[k]);
            far_session_close(c.sessions[k]);
            far_pool_close(c.pools[k]);
        }
    }
}


static int report_full_pool(far_task *t, void *arg) {
    (void)arg;
    return far_describe_full_pool(t, far_fail(FAR_ERR_NO_MEMORY, "the pool has no room for 1 bytes"));
}


/* Proves that clients determine only once in a while why a pool is full, so that this does not slow down the clients of
 * a full pool. */
TEST(a_full_pool_is_examined_rarely) {
    full f = {0};
    open_empty_pool(&f, "dart", NULL);
    const uint64_t pause = 1100000000;
    for (unsigned i = 0; i < 6; i++) {
        bool due = i % 3 == 0; /* The examination is due the first time, and the first time after a pause. */
        if (due)
            rig_advance_time(pause);
        rig_limit_verbs(UINT64_MAX);
        assert_int_equal(far_session_call(f.session, FAR_STATS_OTHER, false, report_full_pool, NULL),
                         FAR_ERR_NO_MEMORY);
        assert_int_equal(rig_posted_verbs() > 0, due);
        assert_non_null(strstr(far_last_error(), "bytes are free"));
    }
    far_index_close(f.index);
    far_session_close(f.session);
    far_pool_close(f.pool);
}


TEST_CASE(a_full_pool_can_be_worked_on, "chime", "chime");
TEST_CASE(a_full_pool_can_be_worked_on, "dart", "dart");
TEST_CASE(a_full_pool_can_be_worked_on, "dolphin", "dolphin");
TEST_CASE(a_full_pool_can_be_worked_on, "shard", "shard");
TEST_CASE(a_full_pool_can_be_worked_on, "smart", "smart");
TEST_CASE(handles_update_and_delete_in_a_full_pool, "chime with handles", "chime");
TEST_CASE(handles_update_and_delete_in_a_full_pool, "dart with handles", "dart");
TEST_CASE(handles_update_and_delete_in_a_full_pool, "dolphin with handles", "dolphin");
TEST_CASE(handles_update_and_delete_in_a_full_pool, "shard with handles", "shard");
TEST_CASE(handles_update_and_delete_in_a_full_pool, "smart with handles", "smart");
TEST_CASE(writes_in_flight_are_refused_in_a_full_pool, "chime in flight", "chime");
TEST_CASE(writes_in_flight_are_refused_in_a_full_pool, "shard in flight", "shard");
TEST_CASE(writes_in_flight_are_refused_in_a_full_pool, "smart in flight", "smart");
TEST_GROUP(rig_start, rig_end);
