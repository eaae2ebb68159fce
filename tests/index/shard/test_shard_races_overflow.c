/* Races of several operations on one key, of chains, and of levels 2 and 3, in both layouts. Each comment names the
 * change of the code that makes its test fail. */
#include "client/op.h"
#include "shard_rig.h"
#include "test.h"

#include "pool/epoch/epoch.h"


/* Race H23 (docs/races/shard.md). Proves that two nodes appended to one chain at the same time are both kept. A is
 * about to link a new node to the last node of the chain. B links its new node there first. A continues. Both entries
 * must be found. Fails if shard_append_node (overflow.c) ignores the word that its CAS returns. */
static void l3_chain_append_race_on(const variant *variant) {
    stage s;
    open_stage(&s, variant, 0, "slots=1,l2_slots=1,load=95,afs=1000000");
    put(&s.c, number(1), 1);
    start(&s.c, FAR_OP_GET, number(1), 0);
    stage_stop_at(&s.c, at("shard:main_bucket_read")); /* keep the table from doubling twice */
    uint64_t n = 1;
    const shard_partition *part = &shard_state_of(s.a.index)->part[0];
    for (bool full = false; !full;) {
        n++;
        put(&s.a, number(n), n);
        far_sim_sleep(s.world, 2000000);
        far_addr head = shard_table_addr(atomic_load_explicit(&part->table[3], memory_order_relaxed), 1);
        if (shard_root_phase(far_root(&s)) != SHARD_STABLE || version(&s.a) != 1 || !head)
            continue;
        full = true;
        const shard_i_node *node = (const void *)words_at(&s, head);
        for (unsigned i = 0; i < (variant->inlined ? 5 : 7); i++)
            full &= variant->inlined ? node->slot[i].state & SHARD_STATE_LIVE : words_at(&s, head)[i] != 0;
        assert_int_equal(variant->inlined ? node->next : words_at(&s, head)[7], 0);
    }
    assert_int_equal(get(&s.b, number(2)), 2);
    /* the keys belong to two buckets, so no lock excludes the two inserts */
    key one = key_with(&s.a, 0, 60), other = key_with(&s.a, 1, 60);
    start(&s.a, FAR_OP_INSERT, one, 1001);
    stage_stop_at(&s.a, at("shard:append"));
    start(&s.b, FAR_OP_INSERT, other, 1002);
    stage_finish(&s.b);
    stage_finish(&s.a);
    assert_true(s.a.result == 0 && s.b.result == 0);
    for (uint64_t i = 1; i <= n; i++)
        assert_int_equal(get(&s.a, number(i)), i);
    assert_int_equal(get(&s.b, one), 1001);
    assert_int_equal(get(&s.a, other), 1002);
    stage_finish(&s.c);
    for (uint64_t i = 1; i <= n; i++)
        assert_int_equal(delete_key(&s.b, number(i)), 0);
    assert_there_once(&s, one, 1001);
    assert_there_once(&s, other, 1002);
    stage_close(&s);
}
TEST_ALL_VARIANTS(l3_chain_append_race);


/* Proves that an insert uses level 2 if its bucket becomes full before the lock is taken. A reads the bucket; B takes
 * the last EMPTY word; A locks it. A must make the level-2 tables. Fails if place_in_overflow (pointer/write_locked.c)
 * reports a missing level-2 table as corruption. */
static void closed_between_look_and_lock_on(const variant *variant) {
    stage s;
    open_stage(&s, variant, 0, NO_GROWTH ",ordered_cas=off");
    put(&s.b, number(1), 1);
    start(&s.a, FAR_OP_INSERT, number(2), 2);
    stage_stop_at(&s.a, (far_sim_match){.kind = FAR_SIM_CAS});
    put(&s.b, number(3), 3);
    stage_finish(&s.a);
    assert_int_equal(s.a.result, 0);
    for (uint64_t n = 1; n <= 3; n++)
        assert_there_once(&s, number(n), n);
    stage_close(&s);
}
TEST_VARIANTS_OF(closed_between_look_and_lock, POINTERS);


/* Proves that of two puts of one key across a doubling the later one wins, and that the key exists once. A's put stops
 * before its change; B doubles the table, puts the key and splits; A continues. */
static void put_put_across_grow_on(const variant *variant) {
    for (unsigned leaves = 0; leaves < 2; leaves++) {
        stage s;
        open_stage(&s, variant, 0, GROWING);
        put(&s.a, key_with(&s.a, 0, 0), 10);
        put(&s.a, key_with(&s.a, 1, 0), 11);
        key k = key_with(&s.a, leaves, 0);
        start(&s.a, FAR_OP_PUT, k, 20);
        stage_stop_at(&s.a, at(variant->inlined ? "shard:lock" : "shard:replace"));
        put(&s.b, key_with(&s.a, 0, 1), 12);
        assert_int_equal(version(&s.b), 1);
        put(&s.b, k, 30); /* this put splits the bucket */
        assert_int_equal(get(&s.c, k), 30);
        stage_finish(&s.a);
        assert_int_equal(s.a.result, 0);
        assert_there_once(&s, k, 20);
        stage_close(&s);
    }
}
TEST_ALL_VARIANTS(put_put_across_grow);


/* Proves that a delayed insert finds the key absent again. A's insert stops; B inserts the key and C deletes it; A
 * continues and succeeds. */
static void insert_delete_insert_on(const variant *variant) {
    stage s;
    open_stage(&s, variant, 0, NO_GROWTH);
    start(&s.a, FAR_OP_INSERT, number(7), 1);
    stage_stop_at(&s.a, at(variant->inlined ? "shard:lock" : "shard:insert"));
    assert_int_equal(insert(&s.b, number(7), 2), 0);
    assert_int_equal(get(&s.c, number(7)), 2);
    assert_int_equal(delete_key(&s.c, number(7)), 0);
    assert_int_equal(get(&s.b, number(7)), 0);
    stage_finish(&s.a);
    assert_int_equal(s.a.result, 0);
    assert_there_once(&s, number(7), 1);
    stage_close(&s);
}
TEST_ALL_VARIANTS(insert_delete_insert);


/* Proves that two updates and a delete of one key, which have all read the key, can finish in every order, with correct
 * results and correct gets in between. */
static void update_update_delete_get_on(const variant *variant) {
    static const unsigned orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (unsigned i = 0; i < 6; i++) {
        stage s;
        open_stage(&s, variant, 0, NO_GROWTH);
        stage_actor *actors[] = {&s.a, &s.b, &s.c};
        put(&s.a, number(7), 1);
        start(&s.a, FAR_OP_UPDATE, number(7), 2);
        start(&s.b, FAR_OP_UPDATE, number(7), 3);
        start(&s.c, FAR_OP_DELETE, number(7), 0);
        for (unsigned j = 0; j < 3; j++)
            stage_stop_at(actors[j], at(variant->inlined ? "shard:lock" : "shard:replace"));
        uint64_t last = 1;
        bool deleted = false;
        for (unsigned j = 0; j < 3; j++) {
            stage_actor *a = actors[orders[i][j]];
            uint64_t now;
            stage_finish(a);
            if (a == &s.c) {
                assert_int_equal(a->result, 0);
                deleted = true;
            }
            assert_true(a->result == 0 || (deleted && a->result == FAR_ERR_NOT_FOUND));
            now = get_by_new_session(&s, number(7));
            assert_true(deleted ? now == 0 : now == last || now == (a == &s.a ? 2u : 3u));
            last = now;
        }
        assert_int_equal(get(&s.a, number(7)), 0);
        stage_close(&s);
    }
}
TEST_ALL_VARIANTS(update_update_delete_get);


/* Race H13 (docs/races/shard.md). Proves that both halves of a split inherit the filter: keys at level 2 are found
 * after their bucket was split. Fails if the halves are written with empty filters. */
static void filter_inherit_on(const variant *variant) {
    stage s;
    open_stage(&s, variant, 0, "slots=2,l2_slots=2,load=95,afs=1,idle_sweep=off");
    put(&s.a, key_with(&s.a, 0, 0), 1);
    put(&s.a, key_with(&s.a, 1, 0), 2);
    put(&s.a, key_with(&s.a, 0, 1), 3);
    put(&s.a, key_with(&s.a, 1, 1), 4); /* this put doubles the table */
    assert_int_equal(COUNTED(&s, overflows), 2);
    put(&s.b, key_with(&s.a, 0, 0), 5);
    put(&s.b, key_with(&s.a, 1, 0), 6); /* splits the bucket, unless the first put did */
    for (unsigned leaves = 0; leaves < 2; leaves++) {
        assert_int_equal(get(&s.c, key_with(&s.a, leaves, 1)), 3 + leaves);
        assert_int_equal(insert(&s.b, key_with(&s.a, leaves, 1), 9), FAR_ERR_EXISTS);
        put(&s.b, key_with(&s.a, leaves, 1), 13 + leaves);
        assert_there_once(&s, key_with(&s.a, leaves, 1), 13 + leaves);
    }
    stage_close(&s);
}
TEST_ALL_VARIANTS(filter_inherit);


/* Race H6 (docs/races/shard.md) in the inline layout; test_shard_sim.c tests the pointer layout. Proves that a client
 * which stops in the middle of a get does not keep other clients from inserting. */
static void stopped_client_grow_on(const variant *variant) {
    stage s;
    open_stage(&s, variant, 0, GROWING);
    put(&s.a, number(1), 1);
    start(&s.c, FAR_OP_GET, number(1), 0);
    stage_stop_at(&s.c, at("shard:main_bucket_read"));
    for (uint64_t n = 2; n < 60; n++) {
        assert_int_equal(insert(&s.b, number(n), n), 0);
        far_sim_sleep(s.world, 500000);
    }
    assert_int_equal(version(&s.b), 1); /* C's get, which is not finished, may meet only one doubling */
    stage_finish(&s.c);
    assert_int_equal(result_value(&s.c), 1);
    for (uint64_t n = 60; n < 90; n++) {
        assert_int_equal(insert(&s.b, number(n), n), 0);
        far_sim_sleep(s.world, 1000000);
    }
    assert_true(version(&s.b) > 1);
    for (uint64_t n = 1; n < 90; n++)
        assert_int_equal(get(&s.a, number(n)), n);
    stage_close(&s);
}
TEST_VARIANTS_OF(stopped_client_grow, INLINE);


/* Race H18 (docs/races/shard.md) in the inline layout; test_shard_sim.c tests the pointer layout. Proves that an insert
 * to level 2 of the old generation is drained as well. C's insert stops before it places its key; the table doubles; C
 * continues; the key must be found after the drain. */
static void old_root_l2_insert_vs_drain_on(const variant *variant) {
    stage s;
    open_stage(&s, variant, 1, "slots=2,l2_slots=2,load=60,afs=1");
    put(&s.a, key_in(&s.a, 0, 0, 0), 10);
    put(&s.a, key_in(&s.a, 0, 1, 0), 11);
    start(&s.c, FAR_OP_INSERT, key_in(&s.a, 0, 1, 1), 12);
    stage_stop_at(&s.c, at("shard:place_in_overflow"));
    for (unsigned i = 0; i < 8; i++) { /* these keys belong to the other bucket, and make the table double */
        put(&s.b, key_in(&s.a, 1, i % 2, i), 20 + i);
        far_sim_sleep(s.world, 5000000);
    }
    assert_int_equal(shard_root_d(far_root(&s)), 1);
    stage_finish(&s.c);
    assert_int_equal(s.c.result, 0);
    put(&s.b, key_in(&s.a, 0, 0, 2), 30);
    far_sim_sleep(s.world, 50000000);
    assert_int_equal(shard_root_phase(far_root(&s)), SHARD_STABLE);
    for (unsigned i = 0; i < 8; i++)
        assert_int_equal(get(&s.a, key_in(&s.a, 1, i % 2, i)), 20 + i);
    assert_there_once(&s, key_in(&s.a, 0, 1, 1), 12);
    stage_close(&s);
}
TEST_VARIANTS_OF(old_root_l2_insert_vs_drain, INLINE);


/* Race H35 (docs/races/shard.md). Proves that no stale entry names a pair block that is reused. B's drain fails between
 * linking k at level 1 and clearing its entry at level 2. A updates k, and the old pair block becomes free. A put of
 * another key with the same tag may reuse the pair block; C must not read that key before its CAS. Fails if
 * change_at_level_1 (pointer/write_locked.c) does not clear the copies. */
static void drain_crash_block_reuse_on(const variant *variant) {
    stage s;
    bool died = false;
    far_load load;
    open_stage(&s, variant, 0, "slots=2,l2_slots=2,load=95,afs=1,share=1,idle_sweep=off");
    put(&s.a, key_with(&s.a, 0, 0), 1);
    put(&s.a, key_with(&s.a, 1, 0), 2);
    key k = key_with(&s.a, 0, 1), twin;
    put(&s.a, k, 3);
    for (unsigned i = 0; i < 8 && !died; i++) {
        start(&s.b, FAR_OP_PUT, key_with(&s.a, 1, i + 1), 4);
        far_sim_stop_before(s.b.client, at("shard:clear_drained_entry"));
        died = far_sim_run_client(s.b.client) == FAR_SIM_STOPPED;
    }
    assert_true(died);
    stage_kill(&s, &s.b);
    for (uint64_t n = 1000;; n++) {
        twin = number(n);
        if (shard_top_tag(hash_of(&s.a, twin)) == shard_top_tag(hash_of(&s.a, k)))
            break;
    }
    assert_int_equal(far_index_load(s.c.session, s.c.index, &load), 0);
    assert_true(load.keys[1] > 0);
    put(&s.a, k, 30);
    assert_int_equal(get(&s.c, k), 30);
    for (unsigned i = 0; i < 10; i++) { /* let epochs pass until the old pair block is free */
        far_epoch_request(s.a.pool);
        far_sim_sleep(s.world, 20000000);
    }
    /* the put's pair block, possibly the old pair block of k, must not be visible before its CAS */
    for (unsigned i = 0; i < 20; i++) {
        start(&s.a, FAR_OP_PUT, twin, 77);
        stage_stop_at(&s.a, (far_sim_match){.kind = FAR_SIM_CAS});
        assert_int_equal(get(&s.c, twin), 0);
        stage_finish(&s.a);
        assert_int_equal(get(&s.c, twin), 77);
        assert_int_equal(delete_key(&s.c, twin), 0);
    }
    assert_int_equal(get(&s.c, k), 30);
    assert_int_equal(delete_key(&s.c, k), 0);
    assert_int_equal(get(&s.a, k), 0);
    stage_close(&s);
}
TEST_VARIANTS_OF(drain_crash_block_reuse, POINTERS);


/* Proves that each key is counted once while a sweep and a drain move keys, whatever verb the count is interrupted at.
 * Fails if count_key_once (contents.c) or shard_count_bucket_once (count_once.c) always returns 1. */

typedef struct counting {
    stage_actor *a;
    far_usage usage;
    far_load load;
    int err;
} counting;


static void count_all(void *arg) {
    counting *c = arg;
    c->err = far_index_usage(c->a->session, c->a->index, &c->usage);
    if (c->err >= 0)
        c->err = far_index_load(c->a->session, c->a->index, &c->load);
}


static void keys_are_counted_once_on(const variant *variant) {
    for (unsigned verb = 1, more = 1; more; verb++) {
        stage s;
        counting c = {.a = &s.c};
        open_stage(&s, variant, 0, "slots=2,l2_slots=2,load=95,afs=1");
        for (unsigned i = 0; i < 4; i++)
            put(&s.a, key_with(&s.a, i % 2, i / 2), 1 + i);
        assert_int_equal(COUNTED(&s, overflows), 2);
        assert_int_equal(shard_root_phase(far_root(&s)), SHARD_GROW);
        far_sim_client *client = far_sim_start(s.c.pool->fabric, "count", count_all, &c);
        far_sim_stop_before(client, (far_sim_match){.nth = verb});
        more = far_sim_run_client(client) == FAR_SIM_STOPPED;
        far_sim_sleep(s.world, 20000000); /* housekeeping splits and drains as far as the stopped count permits */
        far_sim_resume(client);
        assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
        assert_int_equal(c.err, 0);
        assert_int_equal(c.usage.keys, 4);
        assert_int_equal(c.load.keys[0] + c.load.keys[1] + c.load.keys[2], 4);
        stage_close(&s);
    }
}
TEST_ALL_VARIANTS(keys_are_counted_once);
