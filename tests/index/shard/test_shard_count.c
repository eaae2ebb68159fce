/* Tests of the count of a partition. Changes that handles have not published, because they were closed or failed, must
 * not cause a table to double that is not full, and must not prevent a full table from doubling. A table that was
 * overloaded while it could not double must recover without inserts. */
#include "client/op.h"
#include "shard_rig.h"
#include "test.h"

#include "pool/epoch/epoch.h"
#include "verify/torture.h"

typedef struct table {
    far_pool *pool;
    far_session *session;
    far_index *index;
} table;


static void open_table(table *t, const char *options) {
    far_pool_options pool_options = FAR_POOL_OPTIONS_INIT;
    pool_options.no_thread = 1;
    assert_int_equal(far_pool_open("sim:seed=1,size=256M,faults=none,watch=off,limit=10000s", &pool_options, &t->pool),
                     0);
    assert_int_equal(far_session_open(t->pool, &t->session), 0);
    assert_int_equal(far_index_create(t->session, "t", "shard", options, &t->index), 0);
}


static void close_table(table *t) {
    far_index_close(t->index);
    far_session_close(t->session);
    far_pool_close(t->pool);
}


static void put_number(table *t, uint64_t n) {
    uint64_t key = n * 0x9e3779b97f4a7c15ull + 1;
    assert_int_equal(far_insert(t->session, t->index, &key, 8, &n, 8), 0);
    if (n % 16 == 0)
        far_pool_poll(t->pool);
}


static void take_number(table *t, uint64_t n) {
    uint64_t key = n * 0x9e3779b97f4a7c15ull + 1;
    assert_int_equal(far_delete(t->session, t->index, &key, 8), 0);
}


/* Discards the unpublished changes of the handle, as if it were closed now. */
static void lose_counts(table *t) {
    shard_state *st = shard_state_of(t->index);
    for (uint64_t i = 0; i < 1ull << st->p; i++) {
        atomic_store_explicit(&st->part[i].delta, 0, memory_order_relaxed);
        atomic_store_explicit(&st->part[i].writes, 0, memory_order_relaxed);
    }
}


/* Proves that deletes which are never published do not make the table double again and again: inserts are published,
 * deletes are not. Fails if verify_full (load_factor.c) always returns 1. */
static void insert_and_delete_unpublished(const char *options) {
    enum { KEYS = 12000, TURNS = 30 };
    table t;
    far_load load;
    open_table(&t, options);
    for (uint64_t turn = 0; turn < TURNS; turn++) {
        for (uint64_t n = 0; n < KEYS; n++)
            put_number(&t, turn * KEYS + n);
        for (uint64_t n = 0; n < KEYS; n++) {
            take_number(&t, turn * KEYS + n);
            if (n % 16 == 0)
                lose_counts(&t);
        }
        lose_counts(&t);
    }
    assert_int_equal(far_index_load(t.session, t.index, &load), 0);
    print_message("    %llu slots for %u keys\n", (unsigned long long)load.slots, (unsigned)KEYS);
    assert_true(load.slots <= 4 * KEYS);
    close_table(&t);
}


TEST(unpublished_deletes) {
    insert_and_delete_unpublished("layout=pointer,bits=0");
    insert_and_delete_unpublished("key_size=8,value_size=8,bits=4");
}


/* Proves that inserts which are never published do not keep the table from doubling. The count says that the table is
 * empty. An insert that finds no room doubles it and corrects the count. Fails if verify_full does not correct the
 * count. */
TEST(unpublished_inserts) {
    enum { KEYS = 60000 };
    table t;
    far_load load;
    open_table(&t, "key_size=8,value_size=8,partitions=1,bits=10");
    for (uint64_t n = 0; n < KEYS; n++) {
        put_number(&t, n);
        lose_counts(&t);
    }
    const shard_partition *part = &shard_state_of(t.index)->part[0];
    far_sim_world *world = far_sim_world_of(t.pool->fabric);
    const int64_t *count = (const int64_t *)((char *)far_sim_memory(world, far_addr_node(part->pcb)) +
                                             far_addr_offset(part->pcb) + 8 * SHARD_PCB_COUNT);
    assert_int_equal(far_index_load(t.session, t.index, &load), 0);
    print_message("    %u keys, the count says %lld; %llu slots, %llu keys at level 3\n", (unsigned)KEYS,
                  (long long)*count, (unsigned long long)load.slots, (unsigned long long)load.keys[2]);
    assert_int_equal(load.keys[0] + load.keys[1] + load.keys[2], KEYS);
    assert_true(load.slots > 1024 * 35);
    assert_true(*count > 1024 * 35 / 2);
    close_table(&t);
}


/* Proves that an overloaded table recovers if all clients only read. A stopped client keeps the table from doubling
 * until most keys are at level 3. When it continues, the table must double as often as necessary. Fails if
 * tend_partition (housekeeping.c) does not call shard_grow_if_full. */
static void overload_ends_without_inserts_on(const variant *variant) {
    enum { KEYS = 400 };
    stage s;
    far_load load;
    open_stage(&s, variant, 0, "slots=8,l2_slots=2");
    put(&s.c, number(1), 1);
    start(&s.c, FAR_OP_GET, number(1), 0);
    stage_stop_at(&s.c, at("shard:main_bucket_read"));
    for (uint64_t n = 2; n <= KEYS; n++)
        put(&s.a, number(n), n);
    assert_int_equal(far_index_load(s.a.session, s.a.index, &load), 0);
    assert_true(load.keys[2] > KEYS / 2);
    stage_finish(&s.c);
    for (uint64_t i = 0; i < 4000 && load.keys[2]; i++) {
        assert_int_equal(get(&s.b, number(1 + i % KEYS)), 1 + i % KEYS);
        far_sim_sleep(s.world, 50000);
        if (i % 100 == 99)
            assert_int_equal(far_index_load(s.a.session, s.a.index, &load), 0);
    }
    assert_int_equal(load.keys[2], 0);
    assert_int_equal(load.keys[0] + load.keys[1], KEYS);
    stage_close(&s);
}
TEST_ALL_VARIANTS(overload_ends_without_inserts);


/* Proves that a drain in a pool that becomes full waits for memory without delaying other operations, without a hang at
 * close, and without wrong results, and that the drain ends when deletes have freed memory. There are two guards, each
 * of which is sufficient: the tables of a version are made in advance, and housekeeping does not try again at once. So
 * the test fails only if both are removed. */
TEST(drain_in_a_full_pool) {
    far_torture torture;
    far_torture_result result = {0};
    for (uint64_t seed = 800076; seed <= 800082; seed++) {
        far_torture_init(&torture);
        torture.kind = "shard";
        torture.options = "partitions=1,bits=0,slots=2,l2_slots=1,load=15";
        torture.keys = "prefix";
        torture.key_space = 400;
        torture.scans = false;
        torture.ops = 3000;
        torture.pool_bytes = 2 << 20;
        torture.value_bytes[0] = 0;
        torture.value_bytes[1] = 3000;
        torture.tear = torture.reorder = torture.stall = torture.crash = true;
        assert_int_equal(far_torture_run(&torture, seed, &result, stdout), 0);
    }
    assert_int_equal(result.violations + result.problems, 0);
    assert_int_equal(result.seeds, 7);
}
