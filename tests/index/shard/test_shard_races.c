/* Races of growth and splits in both layouts, executed step by step. docs/races/shard.md describes each race under the
 * number in its comment, such as H9. Each comment names the change of the code that makes its test fail. */
#include "shard_rig.h"
#include "test.h"

#include "pool/epoch/epoch.h"


/* Race H9 (docs/races/shard.md). Proves that a bucket stays locked and readable while its last WRITE is partly visible.
 * B splits a bucket, and only the first `units` granules of its WRITE of the parent are visible. C's put must wait, and
 * A must be able to read all keys. Fails if the header (pointer layout) or the lock word K (inline layout) were the
 * first word of the bucket. */
static void unlock_prefix_on(const variant *variant) {
    for (unsigned units = 0; units<variant->units; units += variant->units> 8 ? 3 : 1) {
        stage s;
        open_stage(&s, variant, 0, GROWING);
        begin_doubling(&s);
        start(&s.b, FAR_OP_PUT, key_with(&s.a, 0, 0), 20);
        far_sim_hold *hold = stage_hold(&s.b, rewrite_of(variant, bucket_addr(&s.b, 0)));
        uint32_t order[64];
        for (unsigned i = 0; i < units; i++)
            order[i] = i;
        assert_int_equal(far_sim_hold_units(hold), variant->units);
        assert_int_equal(units ? far_sim_release_units(hold, order, units) : 0, 0);
        start(&s.c, FAR_OP_PUT, key_with(&s.a, 0, 1), 30);
        far_sim_run_for(s.world, 300000);
        assert_false(s.c.ended);
        assert_int_equal(get(&s.a, key_with(&s.a, 1, 0)), 11);
        assert_int_equal(get(&s.a, key_with(&s.a, 0, 1)), 12);
        uint64_t now = get(&s.a, key_with(&s.a, 0, 0));
        assert_true(now == 10 || now == 20);
        far_sim_release(hold);
        assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
        assert_true(s.b.ended && s.c.ended && s.b.result == 0 && s.c.result == 0);
        assert_there_once(&s, key_with(&s.a, 0, 0), 20);
        assert_there_once(&s, key_with(&s.a, 0, 1), 30);
        assert_there_once(&s, key_with(&s.a, 1, 0), 11);
        stage_close(&s);
    }
}
TEST_ALL_VARIANTS(unlock_prefix);


/* Race H11 (docs/races/shard.md). Proves that a split which fails in the middle of a WRITE loses no half of the keys. B
 * fails after `units` granules of the child or of the parent; A and C must find and change all keys. Fails if the
 * parent is written before the child. */
static void crash_parent_child_order_on(const variant *variant) {
    for (unsigned child = 0; child < 2; child++)
        for (unsigned units = 0; units <= variant->units; units += variant->units > 8 ? 4 : 1) {
            stage s;
            open_stage(&s, variant, 0, GROWING ",idle_sweep=off");
            begin_doubling(&s);
            assert_int_equal(get(&s.b, key_with(&s.a, 1, 0)), 11);
            start(&s.b, FAR_OP_PUT, key_with(&s.a, 0, 0), 20);
            far_sim_kill_at(s.b.client, write_of(bucket_addr(&s.b, child)), units);
            far_sim_run(s.world);
            assert_true(far_sim_killed(s.b.pool->fabric));
            uint64_t now = get(&s.a, key_with(&s.a, 0, 0));
            assert_true(now == 10 || now == 20);
            assert_int_equal(get(&s.c, key_with(&s.a, 1, 0)), 11);
            assert_int_equal(get(&s.a, key_with(&s.a, 0, 1)), 12);
            put(&s.a, key_with(&s.a, 1, 0), 21);
            put(&s.c, key_with(&s.a, 0, 1), 22);
            assert_int_equal(get(&s.c, key_with(&s.a, 1, 0)), 21);
            assert_int_equal(get(&s.a, key_with(&s.a, 0, 1)), 22);
            assert_int_equal(get(&s.a, key_with(&s.a, 0, 0)), now);
            assert_int_equal(delete_key(&s.a, key_with(&s.a, 1, 0)), 0);
            assert_int_equal(get(&s.c, key_with(&s.a, 1, 0)), 0);
            stage_close(&s);
        }
}
TEST_ALL_VARIANTS(crash_parent_child_order);


/* Race H12 (docs/races/shard.md). Proves that an unwritten child is recognised at every version, including even ones.
 * After each doubling, C reads all keys and A inserts them again while children are unwritten. Fails if
 * shard_is_unwritten (attempt.c) decides by the version alone. */
static void zero_child_even_version_on(const variant *variant) {
    stage s;
    open_stage(&s, variant, 0, GROWING ",share=1,idle_sweep=off");
    uint64_t n = 0;
    unsigned met = 0;
    while (version(&s.b) < 4) {
        n++;
        assert_int_equal(insert(&s.b, number(n), n), 0);
        far_sim_sleep(s.world, 1000000);
        if (shard_root_phase(root_of(&s.b)) != SHARD_GROW)
            continue;
        unsigned v = version(&s.b);
        for (uint64_t i = 1; i <= n; i++)
            assert_int_equal(get(&s.c, number(i)), i);
        const shard_state *st = shard_state_of(s.c.index);
        for (uint64_t i = 1; i <= n; i++) {
            uint64_t h = hash_of(&s.c, number(i));
            if (shard_key_moves(h, st->p, st->b, v) && version(&s.c) == v &&
                shard_is_unwritten(st, words_at(&s, bucket_addr(&s.c, shard_bucket(h, st->p, st->b, v)))))
                met |= 1u << v;
        }
        for (uint64_t i = 1; i <= n; i++)
            assert_int_equal(insert(&s.a, number(i), 1), FAR_ERR_EXISTS);
    }
    assert_true((met & 4) && (met & 2)); /* an unwritten child was met at an odd and at an even version */
    stage_close(&s);
}
TEST_ALL_VARIANTS(zero_child_even_version);


/* Race H22 (docs/races/shard.md). Proves that the next doubling waits until the last bucket is split. B stops while it
 * splits a bucket. All other clients continue, but the table stays at version 1 until B finishes. Fails if
 * mark_chunk_done (restructure_chunks.c) marks chunks with unsplit buckets as done. */
static void second_grow_before_sweep_on(const variant *variant) {
    stage s;
    open_stage(&s, variant, 1, GROWING ",share=1");
    for (unsigned i = 0; version(&s.b) == 0; i++)
        put(&s.b, key_in(&s.a, 1, i % 2, i / 2), 100 + i);
    start(&s.b, FAR_OP_PUT, key_in(&s.a, 0, 0, 0), 1);
    stage_stop_at(&s.b, at("shard:write_halves"));
    for (unsigned i = 20; i < 80; i++) {
        assert_int_equal(insert(&s.a, key_in(&s.a, 1, i % 2, i), i), 0);
        far_sim_sleep(s.world, 500000);
    }
    assert_int_equal(shard_root_d(far_root(&s)), 1);
    assert_int_equal(shard_root_phase(far_root(&s)), SHARD_GROW);
    stage_finish(&s.b);
    for (unsigned i = 20; i < 80; i++)
        assert_int_equal(get(&s.c, key_in(&s.a, 1, i % 2, i)), i);
    for (unsigned i = 80; i < 120; i++) {
        assert_int_equal(insert(&s.a, key_in(&s.a, 1, i % 2, i), i), 0);
        far_sim_sleep(s.world, 2000000);
    }
    assert_true(shard_root_d(far_root(&s)) > 1);
    assert_int_equal(get(&s.c, key_in(&s.a, 0, 0, 0)), 1);
    stage_close(&s);
}
TEST_ALL_VARIANTS(second_grow_before_sweep);


/* Proves that one client can finish a sweep alone. A fails while it has a chunk, and B in the middle of a split. C
 * inserts until the doubling has ended. Afterwards all keys must be present and all locks free. Fails if
 * shard_p_recover_lock and shard_i_recover_lock do nothing. */
static void all_but_one_fail_in_the_sweep_on(const variant *variant) {
    stage s;
    open_stage(&s, variant, 3, "slots=4,l2_slots=1,load=60,afs=1,share=1,idle_sweep=off");
    uint64_t n = 0;
    while (version(&s.c) == 0) {
        n++;
        put(&s.c, number(n), n);
    }
    start(&s.a, FAR_OP_INSERT, number(n + 1), n + 1);
    assert_int_equal(get(&s.b, number(1)), 1);
    far_sim_stop_before(s.a.client, at("shard:work_on_chunk"));
    /* A stops only if it has read the new root word of the doubling */
    bool stopped = far_sim_run_client(s.a.client) == FAR_SIM_STOPPED;
    start(&s.b, FAR_OP_INSERT, number(n + 2), n + 2);
    far_sim_stop_before(s.b.client, at("shard:write_halves"));
    stopped |= far_sim_run_client(s.b.client) == FAR_SIM_STOPPED;
    assert_true(stopped);
    stage_kill(&s, &s.a);
    stage_kill(&s, &s.b);
    uint64_t before = n;
    n += 2;
    while (shard_root_d(far_root(&s)) < 3) {
        assert_true(n < 1000);
        n++;
        put(&s.c, number(n), n);
        far_sim_sleep(s.world, 1000000);
    }
    for (uint64_t i = 1; i <= n; i++) {
        uint64_t value = get(&s.c, number(i));
        assert_true(value == i || (value == 0 && (i == before + 1 || i == before + 2)));
    }
    assert_int_equal(far_pool_check(s.c.session, 1, fail_at_problem, NULL), 0);
    for (uint64_t i = 0; i < 8u << 2; i++) {
        const uint64_t *w = words_at(&s, bucket_addr(&s.c, i));
        assert_true(variant->inlined ? w[SHARD_I_K] == SHARD_K_FREE : shard_header_owner(w[SHARD_P_HEADER]) == 0);
    }
    stage_close(&s);
}
TEST_ALL_VARIANTS(all_but_one_fail_in_the_sweep);


/* Proves that a split waits for the holder of the bucket's lock. A's insert holds the lock of bucket 0 while the table
 * doubles; B and C, which want to split the bucket, must wait until A has finished. */
static void mover_vs_lock_owner_on(const variant *variant) {
    stage s;
    open_stage(&s, variant, 1, "slots=2,l2_slots=1,load=60,afs=1,idle_sweep=off");
    put(&s.a, key_in(&s.a, 0, 0, 0), 10);
    put(&s.a, key_in(&s.a, 0, 1, 0), 11);
    start(&s.a, FAR_OP_INSERT, key_in(&s.a, 0, 1, 1), 12);
    stage_stop_at(&s.a, at("shard:place_in_overflow")); /* A holds the lock of bucket 0 */
    for (unsigned i = 0; version(&s.b) == 0; i++) {
        assert_true(i < 4);
        put(&s.b, key_in(&s.a, 1, i % 2, i), 20 + i);
    }
    start(&s.b, FAR_OP_PUT, key_in(&s.a, 0, 0, 0), 30);
    start(&s.c, FAR_OP_DELETE, key_in(&s.a, 0, 1, 0), 0);
    far_sim_run_for(s.world, 300000);
    assert_false(s.b.ended);
    assert_int_equal(get_by_new_session(&s, key_in(&s.a, 0, 0, 0)), 10);
    far_sim_resume(s.a.client);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    assert_true(s.a.result == 0 && s.b.result == 0 && s.c.result == 0);
    assert_int_equal(get(&s.c, key_in(&s.a, 0, 1, 0)), 0);
    assert_there_once(&s, key_in(&s.a, 0, 0, 0), 30);
    assert_there_once(&s, key_in(&s.a, 0, 1, 1), 12);
    stage_close(&s);
}
TEST_ALL_VARIANTS(mover_vs_lock_owner);


/* Proves that a takeover handles frozen words even after the grace period, when splits need not freeze any more. B
 * fails after it has frozen the words of a bucket. Epochs pass until the grace period is over. Then C takes the split
 * over. */
static void frozen_split_meets_grace_on(const variant *variant) {
    stage s;
    open_stage(&s, variant, 0, GROWING ",idle_sweep=off");
    begin_doubling(&s);
    start(&s.a, FAR_OP_PUT, key_with(&s.a, 1, 0), 21);
    stage_stop_at(&s.a, at("shard:replace"));
    start(&s.b, FAR_OP_PUT, key_with(&s.a, 0, 0), 20);
    stage_stop_at(&s.b, at("shard:split_locked"));
    stage_finish(&s.a); /* A's change is between B's lock and B's freezing, so that the split must include it */
    assert_int_equal(s.a.result, 0);
    stage_stop_at(&s.b, at("shard:write_halves"));
    assert_int_equal(shard_state_of(s.b.index)->counters.splits_frozen, 1);
    stage_kill(&s, &s.b);
    for (unsigned i = 0; i < 10; i++) {
        far_epoch_request(s.a.pool);
        far_sim_sleep(s.world, 20000000);
    }
    assert_int_equal(get(&s.c, key_with(&s.a, 1, 0)), 21);
    put(&s.c, key_with(&s.a, 0, 1), 22);
    assert_true(COUNTED(&s, takeovers) > 0);
    assert_int_equal(get(&s.a, key_with(&s.a, 0, 0)), 10);
    assert_int_equal(get(&s.a, key_with(&s.a, 0, 1)), 22);
    assert_int_equal(get(&s.a, key_with(&s.a, 1, 0)), 21);
    stage_close(&s);
}
TEST_VARIANTS_OF(frozen_split_meets_grace, POINTERS);


/* Race H10 (docs/races/shard.md). Proves that a takeover freezes the words of the bucket if the failed client had not.
 * B fails after it has locked a bucket for a split and before it freezes any word. A, with the old root, is about to
 * change a key by CAS. C takes the split over. A's CAS must fail, and A's change must not be lost. Fails if
 * take_over_split (pointer/split.c) does not freeze. */
static void takeover_before_freezing_on(const variant *variant) {
    stage s;
    open_stage(&s, variant, 0, GROWING ",idle_sweep=off");
    put(&s.a, key_with(&s.a, 0, 0), 10);
    put(&s.a, key_with(&s.a, 1, 0), 11);
    start(&s.a, FAR_OP_PUT, key_with(&s.a, 1, 0), 21);
    stage_stop_at(&s.a, at("shard:replace"));
    put(&s.b, key_with(&s.a, 0, 1), 12);
    start(&s.b, FAR_OP_PUT, key_with(&s.a, 0, 0), 20);
    stage_stop_at(&s.b, at("shard:split_locked"));
    stage_kill(&s, &s.b);
    assert_int_equal(get(&s.c, key_with(&s.a, 1, 0)), 11);
    start(&s.c, FAR_OP_PUT, key_with(&s.a, 0, 1), 22);
    stage_stop_at(&s.c, at("shard:write_halves"));
    far_sim_resume(s.a.client);
    far_sim_run_for(s.world, 300000);
    assert_false(s.a.ended); /* A waits for the split */
    far_sim_resume(s.c.client);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    assert_true(s.a.result == 0 && s.c.result == 0);
    assert_int_equal(get(&s.c, key_with(&s.a, 1, 0)), 21);
    assert_int_equal(get(&s.a, key_with(&s.a, 0, 1)), 22);
    stage_close(&s);
}
TEST_VARIANTS_OF(takeover_before_freezing, POINTERS);


/* Proves that a takeover changes nothing if the version in the header of the locked bucket is damaged. B fails after it
 * has locked one of two buckets for a split, and then the version in its header becomes 63. So the number of the child
 * needs a shift by 64 bits, which on many processors gives the number of the next bucket. C's insert must return FAR_ERR_CORRUPT, and A's put must
 * succeed after the header is restored. Fails if find_child_addr (pointer/split.c) does not check the version. */
static void takeover_with_a_damaged_version_on(const variant *variant) {
    stage s;
    open_stage(&s, variant, 1, GROWING ",idle_sweep=off");
    put(&s.a, key_in(&s.a, 0, true, 0), 10);
    for (unsigned n = 0; n < 20 && version(&s.b) == 0; n++)
        put(&s.b, key_in(&s.a, n % 2, false, n / 2), 10);
    start(&s.b, FAR_OP_PUT, key_in(&s.a, 0, false, 0), 20);
    stage_stop_at(&s.b, at("shard:split_locked"));
    stage_kill(&s, &s.b);
    far_addr bucket = atomic_load_explicit(&shard_state_of(s.a.index)->part[0].segment[0], memory_order_relaxed);
    uint64_t *words = world_bytes(s.world, bucket), before[SHARD_WORDS], number = 0;
    if (shard_header_op(words[SHARD_P_HEADER]) != SHARD_OP_SPLIT) /* the put split another bucket, as its share */
        words += ++number * SHARD_WORDS;
    key k = key_in(&s.a, number, false, 0);
    memcpy(before, words, sizeof(before));
    assert_int_equal(shard_header_op(words[SHARD_P_HEADER]), SHARD_OP_SPLIT);
    words[SHARD_P_HEADER] |= 63ull << 42;
    assert_int_equal(insert(&s.c, k, 22), FAR_ERR_CORRUPT);
    words[SHARD_P_HEADER] &= ~(63ull << 42);
    assert_memory_equal(words, before, sizeof(before));
    put(&s.a, k, 22);
    assert_int_equal(get(&s.c, k), 22);
    stage_close(&s);
}
TEST_VARIANTS_OF(takeover_with_a_damaged_version, POINTERS);


/* Proves that a split does not include the operation's own change if the bucket has changed since it was read. B reads
 * the bucket in order to split it and to insert or update key k together with the split. A, with the old root, inserts
 * or deletes k. Then B locks the bucket and freezes its words. B's change must not be part of the split. Fails without
 * words_are_as_read (pointer/split.c). */
static void own_change_of_a_changed_bucket_on(const variant *variant) {
    for (unsigned inserts = 0; inserts < 2; inserts++)
        for (unsigned leaves = 0; leaves < 2; leaves++) {
            stage s;
            open_stage(&s, variant, 0, GROWING ",idle_sweep=off");
            put(&s.a, key_with(&s.a, leaves, 0), 10);
            put(&s.a, key_with(&s.a, !leaves, 0), 11);
            key k = key_with(&s.a, leaves, inserts ? 2 : 0);
            start(&s.a, inserts ? FAR_OP_INSERT : FAR_OP_DELETE, k, 21);
            stage_stop_at(&s.a, at(inserts ? "shard:insert" : "shard:replace"));
            put(&s.b, key_with(&s.a, !leaves, 1), 12);
            start(&s.b, inserts ? FAR_OP_INSERT : FAR_OP_UPDATE, k, 22);
            stage_stop_at(&s.b, at("shard:split"));
            bool clash = false;
            if (inserts) { /* C takes the EMPTY word that A and B have seen, so A must take another one */
                assert_int_equal(insert(&s.c, key_with(&s.a, leaves, 3), 13), 0);
                clash = true;
            }
            stage_finish(&s.a);
            assert_int_equal(s.a.result, 0);
            stage_finish(&s.b);
            assert_int_equal(s.b.result, inserts ? FAR_ERR_EXISTS : FAR_ERR_NOT_FOUND);
            if (inserts)
                assert_there_once(&s, k, 21);
            assert_int_equal(get(&s.c, k), 0);
            assert_int_equal(get(&s.c, key_with(&s.a, leaves, 3)), clash ? 13 : 0);
            stage_close(&s);
        }
}
TEST_VARIANTS_OF(own_change_of_a_changed_bucket, POINTERS);


/* Proves that an insert which is part of a split takes the first EMPTY word of its key's probe order. B splits a bucket
 * for its insert of k. The child is written, but B's CAS that stores k in the child is held. A inserts k into the
 * child. One of the two inserts must report EXISTS. Fails if add_own_change (pointer/split.c) takes any EMPTY word. */
static void own_insert_takes_the_first_empty_on(const variant *variant) {
    stage s;
    open_stage(&s, variant, 0, GROWING ",idle_sweep=off");
    begin_doubling(&s);
    key k = key_with(&s.a, 1, 4);
    assert_int_equal(get(&s.b, k), 0); /* makes B cache the address of the child's segment */
    far_addr child = bucket_addr(&s.b, 1);
    start(&s.b, FAR_OP_INSERT, k, 21);
    far_sim_hold *hold =
        stage_hold(&s.b, (far_sim_match){.kind = FAR_SIM_CAS, .from = child, .to = child + 8 * SHARD_P_HEADER});
    assert_int_equal(insert(&s.a, k, 22), 0);
    far_sim_release(hold);
    stage_finish(&s.b);
    assert_int_equal(s.b.result, FAR_ERR_EXISTS);
    assert_there_once(&s, k, 22);
    stage_close(&s);
}
TEST_VARIANTS_OF(own_insert_takes_the_first_empty, POINTERS);


/* Proves that a split which also inserts a pair stores this pair only in a slot that was free before the split. C's get
 * has found the child unwritten and k in the parent. B splits the parent for its insert of another key, and k moves to
 * the child. Only a part of B's WRITE of the parent is visible when C reads the value of k again. C must return the
 * value of k, and not the new pair's value in the slot of k. Fails if find_safe_slot (inline/split.c) ignores the
 * parent before the split. */
static void new_pair_takes_no_slot_of_one_that_leaves_on(const variant *variant) {
    if (variant->units == 8)
        return; /* on this fabric a slot does not tear */
    for (unsigned units = 1; units <= 8; units++) {
        stage s;
        open_stage(&s, variant, 0, GROWING ",idle_sweep=off");
        key k = key_with(&s.a, 1, 0);
        put(&s.a, k, 11); /* k occupies the first slot */
        put(&s.a, key_with(&s.a, 0, 0), 10);
        put(&s.b, key_with(&s.a, 0, 1), 12);
        assert_int_equal(get(&s.c, k), 11); /* C has read the new root word of the doubling */
        far_addr parent = bucket_addr(&s.b, 0);
        start(&s.c, FAR_OP_GET, k, 0);
        stage_stop_at(&s.c, at("shard:main_bucket_read"));
        start(&s.b, FAR_OP_INSERT, key_with(&s.a, 0, 2), 30);
        far_sim_hold *hold = stage_hold(&s.b, rewrite_of(variant, parent));
        uint32_t order[8];
        for (unsigned i = 0; i < units; i++)
            order[i] = i;
        assert_int_equal(far_sim_release_units(hold, order, units), 0);
        far_sim_resume(s.c.client);
        far_sim_run_for(s.world, 50000);
        far_sim_release(hold);
        assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
        assert_int_equal(s.b.result, 0);
        assert_int_equal(result_value(&s.c), 11);
        assert_int_equal(get(&s.c, key_with(&s.a, 0, 2)), 30);
        stage_close(&s);
    }
}
TEST_VARIANTS_OF(new_pair_takes_no_slot_of_one_that_leaves, INLINE);


/* Race H7 (docs/races/shard.md). Proves that a split freezes unless all pinned clients know of the doubling. The table
 * doubles, and B splits a bucket. C, with the old root, changes a key of this bucket. Case 1: C has been pinned since
 * before the doubling; then B must freeze, however many epochs are requested. Case 2: C was idle; then B need not
 * freeze, and C must learn of the doubling before its first pin. Fails if GRACE (restructure.c) is 0, or if the epoch
 * hook does not read the roots. */
static void grace_admission_race_on(const variant *variant) {
    for (unsigned asleep = 0; asleep < 2; asleep++) {
        stage s;
        open_stage(&s, variant, 0, GROWING ",idle_sweep=off");
        put(&s.a, key_with(&s.a, 0, 0), 10);
        put(&s.a, key_with(&s.a, 1, 0), 11);
        key k = key_with(&s.a, 1, 0);
        assert_int_equal(get(&s.c, k), 11);
        if (asleep) {
            far_sim_sleep(s.world, 100000000);
        } else {
            start(&s.c, FAR_OP_UPDATE, k, 21);
            stage_stop_at(&s.c, at("shard:replace"));
        }
        put(&s.b, key_with(&s.a, 0, 1), 12);
        assert_int_equal(version(&s.b), 1);
        for (unsigned i = 0; i < 20; i++) {
            far_epoch_request(s.b.pool);
            far_sim_sleep(s.world, 2000000);
            assert_int_equal(get(&s.b, k), 11); /* this get prevents that B becomes quiescent */
        }
        assert_true(!asleep || version(&s.c) == 0);
        start(&s.b, FAR_OP_PUT, key_with(&s.a, 0, 0), 20);
        stage_stop_at(&s.b, at("shard:split")); /* B has read its image of the bucket, for a split */
        if (asleep) {
            start(&s.c, FAR_OP_UPDATE, k, 21);
            /* A client that has not read the new root word would reach this point. */
            far_sim_stop_before(s.c.client, at("shard:replace"));
            far_sim_run_client(s.c.client);
        }
        far_sim_stop_before(s.b.client, at("shard:split_locked"));
        far_sim_resume(s.b.client);
        far_sim_run_client(s.b.client);
        assert_int_equal(COUNTED(&s, splits_graced), asleep);
        far_sim_resume(s.c.client);
        far_sim_run_for(s.world, 300000);
        assert_true(s.c.ended);
        far_sim_resume(s.b.client);
        assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
        assert_true(s.b.result == 0 && s.c.result == 0);
        assert_there_once(&s, k, 21);
        assert_there_once(&s, key_with(&s.a, 0, 0), 20);
        stage_close(&s);
    }
}
TEST_VARIANTS_OF(grace_admission_race, POINTERS);


static void open_again(void *arg) {
    stage_actor *a = arg;
    assert_int_equal(far_index_open(a->session, "map", &a->index), 0);
    a->ended = true;
}


/* Race H37 (docs/races/shard.md). Proves that an index opened while an epoch begins knows of the doubling. C has read
 * the roots in order to open the index, but is not yet in the handle's list. The table doubles, and an epoch begins.
 * C's first operation, which is pinned at the new epoch, must use the new root. Fails without shard_ensure_roots_read
 * (shard.h): B's split undoes C's update. */
static void opened_while_an_epoch_begins_on(const variant *variant) {
    stage s;
    open_stage(&s, variant, 0, GROWING ",idle_sweep=off");
    put(&s.a, key_with(&s.a, 0, 0), 10);
    put(&s.a, key_with(&s.a, 1, 0), 11);
    key k = key_with(&s.a, 1, 0), other = key_with(&s.a, 0, 0);
    far_index_close(s.c.index);
    s.c.ended = false;
    s.c.client = far_sim_start(s.c.pool->fabric, "opens", open_again, &s.c);
    stage_stop_at(&s.c, at("shard:opened"));
    put(&s.b, key_with(&s.a, 0, 1), 12);
    assert_int_equal(version(&s.b), 1);
    for (unsigned n = 0; n < 2; n++) {
        for (unsigned i = 0; i < 20; i++) {
            far_epoch_request(s.b.pool);
            far_sim_sleep(s.world, 2000000);
            assert_int_equal(get(&s.b, k), 11); /* this get prevents that B becomes quiescent */
        }
        if (n > 0)
            break;
        stage_finish(&s.c);
        start(&s.c, FAR_OP_UPDATE, k, 21);
        /* A client that has not read the new root word would reach this point. */
        far_sim_stop_before(s.c.client, at("shard:replace"));
        far_sim_run_client(s.c.client);
        if (s.c.ended)
            break;
    }
    start(&s.b, FAR_OP_PUT, other, 20);
    far_sim_stop_before(s.b.client, at("shard:split_locked"));
    far_sim_run_client(s.b.client);
    if (!s.c.ended) {
        far_sim_resume(s.c.client);
        far_sim_run_for(s.world, 300000);
    }
    if (!s.b.ended)
        far_sim_resume(s.b.client);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    assert_true(s.b.result == 0 && s.c.result == 0);
    assert_there_once(&s, k, 21);
    assert_there_once(&s, other, 20);
    stage_close(&s);
}
TEST_VARIANTS_OF(opened_while_an_epoch_begins, POINTERS);


/* Races H7 and H8 (docs/races/shard.md). Proves that an update with the old root is neither lost nor visible twice,
 * whatever moment it is delayed at. C stops before each of its verbs in turn; B doubles the table and splits what it
 * can; C continues. In the first round C was idle before, in the second it was active. */
static void doubling_at_every_verb_of_another_on(const variant *variant) {
    for (unsigned asleep = 0; asleep < 2; asleep++)
        for (unsigned verb = 1, more = 1; more; verb++) {
            stage s;
            open_stage(&s, variant, 0, GROWING);
            put(&s.a, key_with(&s.a, 0, 0), 10);
            put(&s.a, key_with(&s.a, 1, 0), 11);
            assert_int_equal(get(&s.c, key_with(&s.a, 1, 0)), 11);
            far_sim_sleep(s.world, asleep ? 100000000 : 1000);
            start(&s.c, FAR_OP_UPDATE, key_with(&s.a, 1, 0), 21);
            far_sim_stop_before(s.c.client, (far_sim_match){.nth = verb});
            more = far_sim_run_client(s.c.client) == FAR_SIM_STOPPED;
            put(&s.b, key_with(&s.a, 0, 1), 12);
            assert_int_equal(version(&s.b), 1);
            for (unsigned i = 0; i < 8; i++) {
                far_epoch_request(s.b.pool);
                far_sim_sleep(s.world, 3000000);
            }
            start(&s.b, FAR_OP_PUT, key_with(&s.a, 0, 0), 20);
            far_sim_run_for(s.world, 50000); /* B splits the bucket, unless it must wait for C */
            far_sim_resume(s.c.client);
            assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
            assert_true(s.b.result == 0 && s.c.result == 0);
            assert_there_once(&s, key_with(&s.a, 1, 0), 21);
            assert_there_once(&s, key_with(&s.a, 0, 0), 20);
            stage_close(&s);
        }
}
TEST_VARIANTS_OF(doubling_at_every_verb_of_another, POINTERS);


/* Race H6 (docs/races/shard.md). Proves that one operation of a thread does not block the others. B's thread has
 * an update in progress whose READ completes late. Its other operations double the table meanwhile, and none of them
 * may wait for the update. */

typedef struct thread {
    stage_actor *a;
    key first, more[12];
    far_op ops[13];
    uint64_t values[13];
    unsigned ended;
} thread;


static void work_on(void *arg) {
    thread *t = arg;
    far_op *list[13], *done[13];
    for (unsigned i = 0; i < 13; i++) {
        t->values[i] = 100 + i;
        t->ops[i] = (far_op){.kind = i ? FAR_OP_INSERT : FAR_OP_UPDATE,
                             .index = t->a->index,
                             .key = i ? t->more[i - 1].bytes : t->first.bytes,
                             .key_len = 8,
                             .value = &t->values[i],
                             .value_len = 8};
        list[i] = &t->ops[i];
    }
    assert_int_equal(far_submit(t->a->session, list, 1), 1); /* the verbs are posted when the session runs */
    for (unsigned i = 1; i < 13; i++) {
        assert_int_equal(far_submit(t->a->session, list + i, 1), 1);
        while (far_reap(t->a->session, done, 1, 1) != 1)
            ;
        t->ended++;
        far_sim_sleep(far_sim_world_of(t->a->pool->fabric), 500000);
    }
    while (far_reap(t->a->session, done, 1, 1) != 1)
        ;
    t->ended++;
}


static void coroutine_same_thread_grow_on(const variant *variant) {
    stage s;
    thread t = {.a = &s.b};
    open_stage(&s, variant, 0, GROWING);
    put(&s.a, key_with(&s.a, 1, 0), 11);
    t.first = key_with(&s.a, 1, 0);
    for (unsigned i = 0; i < 12; i++)
        t.more[i] = key_with(&s.a, i % 2, 1 + i / 2);
    assert_int_equal(get(&s.b, t.first), 11);
    s.b.client = far_sim_start(s.b.pool->fabric, "thread", work_on, &t);
    s.b.ended = false;
    /* The completion is held and not the effect, because READs of one session keep their order. */
    far_sim_hold *hold = far_sim_hold_completion(
        s.b.client,
        (far_sim_match){.kind = FAR_SIM_READ, .from = bucket_addr(&s.b, 0), .to = bucket_addr(&s.b, 0) + 512});
    for (unsigned i = 0; i < 200 && t.ended < 12; i++)
        far_sim_run_for(s.world, 1000000);
    assert_int_equal(t.ended, 12);
    assert_int_equal(version(&s.b), 1);
    far_sim_release(hold);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    assert_int_equal(t.ended, 13);
    for (unsigned i = 0; i < 13; i++)
        assert_int_equal(t.ops[i].result, 0);
    assert_there_once(&s, t.first, 100);
    for (unsigned i = 0; i < 12; i++)
        assert_int_equal(get(&s.c, t.more[i]), 101 + i);
    stage_close(&s);
}
TEST_VARIANTS_OF(coroutine_same_thread_grow, POINTERS);
