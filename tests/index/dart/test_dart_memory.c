/* DART and the memory of the pool: deleting all keys frees all memory, and in a full pool no operation is left half
 * done. */
#include "dart_est_rig.h"
#include "index/dart/layout.h"
#include "index/dart/skiptable/skiptable.h"
#include "pool/epoch/epoch.h"
#include "task/session.h"
#include "test.h"


/* ---- Deleting ---- */

static uint64_t used_now(far_session *s, far_pool *pool) {
    far_pool_usage usage;
    for (unsigned i = 0; i < 4000; i++) {
        assert_int_equal(far_pool_stat(s, &usage), 0);
        if (usage.retired == 0)
            break;
        far_pool_poll(pool);
        far_epoch_request(pool);
    }
    assert_int_equal(usage.retired, 0);
    return usage.used;
}


static size_t make_key(unsigned shape, uint64_t n, char *key) {
    uint64_t mixed = n * 0x9e3779b97f4a7c15ull;
    if (shape == 0) {
        memcpy(key, &mixed, 8);
        return 8;
    }
    if (shape == 1)
        return (size_t)sprintf(key, "com.host%u.www/user%llu", (unsigned)(mixed >> 60),
                               (unsigned long long)(mixed >> 20 & 0xfffff));
    memset(key, 'a', 64); /* keys that are prefixes of each other */
    return (size_t)sprintf(key + n % 60, "%x", (unsigned)(n / 60)) + n % 60;
}


static void deleting_everything_returns_the_memory(const char *options, unsigned shape, uint64_t count) {
    far_pool_options pool_options = FAR_POOL_OPTIONS_INIT;
    far_pool *pool;
    far_session *s;
    far_index *index;
    far_usage usage;
    char key[128];
    pool_options.no_thread = 1;
    assert_int_equal(far_pool_open("local:256M", &pool_options, &pool), 0);
    assert_int_equal(far_session_open(pool, &s), 0);
    assert_int_equal(far_index_create(s, "map", "dart", options, &index), 0);
    assert_int_equal(far_put(s, index, "x", 1, "y", 1), 0);
    assert_int_equal(far_delete(s, index, "x", 1), 0);
    uint64_t empty = used_now(s, pool), full;
    for (uint64_t i = 0; i < count; i++)
        assert_int_equal(far_put(s, index, key, make_key(shape, i, key), "some value of 24 bytes..", 24), 0);
    full = used_now(s, pool);
    assert_true(full > empty + count * 16);
    assert_int_equal(far_index_usage(s, index, &usage), 0);
    uint64_t keys = usage.keys;
    assert_true(keys > count / 2);
    for (uint64_t i = 0; i < count; i++) {
        int result = far_delete(s, index, key, make_key(shape, i * 7919 % count, key));
        assert_true(result == 0 || (keys < count && result == FAR_ERR_NOT_FOUND));
        if (i % 4096 == 0)
            far_pool_poll(pool);
    }
    assert_int_equal(far_index_usage(s, index, &usage), 0);
    assert_int_equal(usage.keys, 0);
    uint64_t left = used_now(s, pool);
    /* Nodes are merged, and slabs freed, some time after the deletes. */
    for (unsigned i = 0; i < 4000 && left > empty + empty / 100; i++) {
        far_pool_poll(pool);
        left = used_now(s, pool);
    }
    if (left > empty + empty / 100)
        fail_msg("%s, keys %u: %llu bytes when empty, %llu when full, %llu after deleting all", options, shape,
                 (unsigned long long)empty, (unsigned long long)full, (unsigned long long)left);
    assert_int_equal(far_index_check(s, index, fail_at_problem, NULL), 0);
    far_index_close(index);
    far_session_close(s);
    far_pool_close(pool);
}


/* Proves that after all u64 keys were deleted the memory in use is that of an empty index, within one percent. */
TEST(deleting_u64_keys_returns_the_memory) {
    deleting_everything_returns_the_memory("est=0", 0, 100000);
    deleting_everything_returns_the_memory("est=1", 0, 100000);
    deleting_everything_returns_the_memory("est=0,bucket=8", 0, 30000);
    deleting_everything_returns_the_memory("est=0,bucket=64", 0, 30000);
}


/* Proves for long keys, and for keys that are prefixes of each other, that after all keys were deleted the memory in
 * use is that of an empty index. */
TEST(deleting_long_keys_returns_the_memory) {
    deleting_everything_returns_the_memory("est=0", 1, 60000);
    deleting_everything_returns_the_memory("est=1", 1, 60000);
    deleting_everything_returns_the_memory("est=1,directory_bits=4", 1, 60000);
    deleting_everything_returns_the_memory("est=0", 2, 20000);
    deleting_everything_returns_the_memory("est=0,max_skip=3", 2, 20000);
}


/* ---- A full pool ---- */

/* Fills the pool with values of decreasing sizes, until no value of 8 bytes fits. The keys f0, f1, ... do not share
 * nodes with the keys of the test. */
static unsigned fill_pool(actor *a) {
    static const size_t sizes[] = {60000, 8000, 1000, 200, 24, 8};
    static char value[60000];
    unsigned n = 0;
    for (unsigned i = 0; i < 6; i++)
        for (;; n++) {
            char key[16];
            int result = far_insert(a->session, a->index, key, (size_t)sprintf(key, "f%06u", n), value, sizes[i]);
            if (result == FAR_ERR_NO_MEMORY)
                break;
            assert_int_equal(result, 0);
        }
    return n;
}

#define SMALL "size=4M,memory_nodes=1,"


/* Asserts that these are the keys of the index that begin with p. */
static void expect_keys_with_p(actor *a, const char *keys) {
    assert_true(run_op(a, FAR_OP_SCAN, "p", "q") >= 0);
    expect_scanned(a, keys);
}


enum { GROUPS = 200, SMALL_LEAVES = 400 };


static int insert_small(actor *a, char group, unsigned n, char last) {
    char key[8];
    return far_insert(a->session, a->index, key, (size_t)sprintf(key, "%c%03u%c", group, n, last), "1", 1);
}


static int delete_small(actor *a, unsigned n) {
    char key[8];
    return far_delete(a->session, a->index, key, (size_t)sprintf(key, "r%03ux", n));
}


/* Nodes are full, and the pool has memory for leaves, but not for a larger node. Proves that the insert fails, that no
 * slot is frozen, and that no key changes. Fails if restructure.c allocates the memory after the freeze instead of in
 * prepare_new_node. */
RACE(A34_full_pool_during_freeze) {
    stage s;
    char text[128];
    unsigned group = 0, freed = 0;
    int result = 0;
    snprintf(text, sizeof(text), SMALL "%s", sim);
    set_up(&s, text, options);
    for (unsigned i = 0; i < GROUPS; i++)
        for (const char *last = "abcdefg"; *last; last++)
            assert_int_equal(insert_small(&s.a, 'g', i, *last), 0);
    for (unsigned i = 0; i < SMALL_LEAVES; i++)
        assert_int_equal(insert_small(&s.a, 'r', i, 'x'), 0);
    assert_true(fill_pool(&s.a) > 10);
    while (group < GROUPS && freed + 2 < SMALL_LEAVES) {
        assert_int_equal(delete_small(&s.a, freed++), 0); /* makes room for the leaf */
        if ((result = insert_small(&s.a, 'g', group, 'h')) < 0)
            break;
        group++;
    }
    assert_int_equal(result, FAR_ERR_NO_MEMORY);
    char key[8];
    size_t length = (size_t)sprintf(key, "g%03uh", group);
    start(&s.a, "a", FAR_OP_INSERT, key, "1");
    far_sim_stop_before(s.a.client, (far_sim_match){.point = "dart:freeze"});
    expect_result(&s.a, FAR_ERR_NO_MEMORY); /* the insert failed before it reached the point */
    assert_int_equal(far_get(s.b.session, s.b.index, key, length, NULL, 0, NULL), FAR_ERR_NOT_FOUND);
    for (const char *last = "abcdefg"; *last; last++) {
        key[4] = *last;
        assert_int_equal(far_get(s.b.session, s.b.index, key, 5, text, sizeof(text), NULL), 0);
        assert_int_equal(far_delete(s.a.session, s.a.index, key, 5), 0);
    }
    expect_sound(&s, &s.b);
    tear_down(&s);
}


/* Allocates all objects of this type and size that the session can get, and frees them later (give). */
typedef struct memory_hog {
    far_index *index;
    unsigned type;
    uint64_t size;
    unsigned count;
    bool give;
    far_addr addrs[1 << 15];
} memory_hog;


static int run_memory_hog(far_task *t, void *arg) {
    memory_hog *h = arg;
    far_object object;
    int err = far_pin_take(t);
    while (err >= 0 && h->give && h->count > 0)
        far_free(t, h->index, h->type, h->addrs[--h->count], h->size);
    while (err >= 0 && !h->give && h->count < sizeof(h->addrs) / sizeof(h->addrs[0]) &&
           (err = far_alloc(t, h->index, h->type, h->size, FAR_NODE_ANY, 0, &object)) >= 0)
        h->addrs[h->count++] = object.addr;
    far_pin_drop(t);
    return err == FAR_ERR_NO_MEMORY ? 0 : err;
}


/* B fails after it has frozen a node, and then the pool becomes full. Proves that A, which needs the node, completes
 * the replacement in the full pool. */
RACE(A34b_full_pool_helper) {
    stage s;
    char text[128];
    snprintf(text, sizeof(text), SMALL "%s", sim);
    set_up(&s, text, options);
    INSERT_KEYS(&s.a, SEVEN_KEYS("p"), "r1");
    start_until(&s.b, "b", FAR_OP_INSERT, "ph", "1", "dart:frozen", 1);
    far_sim_kill(s.b.pool->fabric);
    far_sim_resume(s.b.client);
    assert_int_equal(far_sim_run_client(s.b.client), FAR_SIM_ENDED);
    unsigned filled = fill_pool(&s.a);
    assert_true(filled > 10);
    static memory_hog h;
    h = (memory_hog){.index = s.a.index, .type = DART_TYPE_NODE, .size = dart_node_bytes(DART_N8, 1, 16)};
    assert_int_equal(far_session_call(s.a.session, FAR_STATS_OTHER, false, run_memory_hog, &h), 0);
    assert_int_equal(run_op(&s.a, FAR_OP_DELETE, "pc", ""), 0);
    expect_keys_with_p(&s.c, "pa pb pd pe pf pg");
    assert_int_equal(run_op(&s.a, FAR_OP_DELETE, "pd", ""), 0);
    expect_keys_with_p(&s.c, "pa pb pe pf pg");
    h.give = true;
    assert_int_equal(far_session_call(s.a.session, FAR_STATS_OTHER, false, run_memory_hog, &h), 0);
    expect_sound(&s, &s.c);
    int inserted = FAR_ERR_NO_MEMORY;
    for (unsigned i = 0; i < filled && inserted != 0; i++) { /* until the headroom is complete again */
        snprintf(text, sizeof(text), "f%06u", i);
        assert_int_equal(run_op(&s.a, FAR_OP_DELETE, text, ""), 0);
        inserted = run_op(&s.a, FAR_OP_INSERT, "ph", "1");
    }
    assert_int_equal(inserted, 0);
    expect_keys_with_p(&s.c, "pa pb pe pf pg ph");
    expect_sound(&s, &s.c);
    tear_down(&s);
}


/* ---- An adjustment without memory for its last list ---- */

typedef struct adjusting {
    far_index *index;
    unsigned steps;
} adjusting;


static int adjust_some_steps(far_task *t, void *arg) {
    const adjusting *a = arg;
    static const uint8_t length = 3;
    dart_adjust *state = &dart_est_of(a->index)->adjust;
    int more = far_pin_take(t);
    if (more >= 0)
        more = state->phase == DART_ADJUST_IDLE ? dart_est_adjust_to(t, a->index, &length, 1) : 1;
    for (unsigned i = 0; i < a->steps && more > 0; i++) {
        if (a->steps > 1 && state->phase == DART_ADJUST_SWEEP && state->sweep_place == 0)
            break;
        more = dart_est_adjust(t, a->index);
        far_pin_drop(t);
        far_sleep(t, 20000);
        int err = a->steps > 1 ? far_epoch_tick(t) : 0; /* no other client advances epochs */
        if (err >= 0)
            err = far_pin_take(t);
        more = err < 0 ? err : more;
    }
    far_pin_drop(t);
    return more;
}


/* The adjustment has removed all entries of the dropped lengths, but there is no memory for the last list. Proves that
 * the step is repeated, and that the sweep, which has reached the end of the directory by then, does not read words
 * behind this end. There are two guards: skiptable/adjust.c, sweep_some compares the place of the sweep with the end,
 * and dart_est_visit_segments visits no word behind the end. */
TEST(an_adjustment_without_memory_is_completed_later) {
    far_pool_options pool_options = FAR_POOL_OPTIONS_INIT;
    far_pool *pool;
    far_session *s;
    far_index *index;
    static memory_hog h;
    static char value[8000];
    char key[32];
    pool_options.no_thread = 1;
    assert_int_equal(far_pool_open("sim:name=adjusting,size=2M,memory_nodes=1", &pool_options, &pool), 0);
    assert_int_equal(far_session_open(pool, &s), 0);
    assert_int_equal(far_index_create(s, "map", "dart", "adjust=0,directory_bits=1", &index), 0);
    adjusting a = {index, 2000};
    unsigned count = 0;
    for (int result = 0; result == 0; count++)
        result = far_put(s, index, key, (size_t)sprintf(key, "k%u", count), value, sizeof(value));
    for (unsigned i = 0; i < 12; i++) /* more than the headroom has, so that the adjustment finds memory at first */
        assert_int_equal(far_delete(s, index, key, (size_t)sprintf(key, "k%u", i)), 0);
    assert_int_equal(far_session_call(s, FAR_STATS_OTHER, true, adjust_some_steps, &a), 1);
    assert_int_equal(dart_est_of(index)->adjust.phase, DART_ADJUST_SWEEP); /* just before the last step */

    h = (memory_hog){.index = index, .type = DART_TYPE_LIST, .size = sizeof(dart_list)};
    assert_int_equal(far_session_call(s, FAR_STATS_OTHER, false, run_memory_hog, &h), 0);
    a.steps = 1;
    for (unsigned i = 0; i < 6; i++)
        assert_int_equal(far_session_call(s, FAR_STATS_OTHER, true, adjust_some_steps, &a), FAR_ERR_NO_MEMORY);
    far_sim_world *world = far_sim_world_of(pool->fabric);
    if (far_sim_watch_errors(world))
        fail_msg("%s", far_sim_watch_error(world, 0));
    h.give = true;
    assert_int_equal(far_session_call(s, FAR_STATS_OTHER, false, run_memory_hog, &h), 0);
    assert_int_equal(far_session_call(s, FAR_STATS_OTHER, true, adjust_some_steps, &a), 0);
    const dart_list *list = dart_est_list(dart_est_of(index));
    assert_true(list->lookup_count == 1 && list->active_count == 1 && list->lookup[0] == 3);
    assert_int_equal(far_index_check(s, index, fail_at_problem, NULL), 0);
    far_index_close(index);
    far_session_close(s);
    far_pool_close(pool);
}
