/* Races of doubling requests, load samples, slow drains and frozen buckets, in both layouts. Each test failed before
 * the code was fixed; its comment names the change of the code that makes it fail again. */
#include "shard_rig.h"
#include "test.h"

#include "index/common/rdwc.h"
#include "pool/epoch/epoch.h"
#include "pool/gc/collect.h"
#include "task/session.h"


static void let_epochs_pass(stage *s) {
    for (unsigned i = 0; i < 10; i++) {
        far_epoch_request(s->a.pool);
        far_sim_sleep(s->world, 5000000);
    }
}


/* Proves that a put numbers its last batch (far_rdwc_mark) after it has chosen the value to write (far_rdwc_seal). C's
 * put seals its round: it takes the value of the put `late`, which has joined the round, and writes this value. B reads
 * the value and then puts another one. After that, the get `later` on C's compute node begins. It must not be served by
 * C's put, which would return the older value. Fails if the mark is taken before the seal. */
static void a_put_takes_its_mark_after_the_seal_on(const variant *variant) {
    stage s;
    open_stage(&s, variant, 0, NO_GROWTH);
    s.c.pool->rdwc = far_rdwc_new(0);
    stage_actor late = s.c, later = s.c;
    assert_int_equal(far_session_open(s.c.pool, &late.session), 0);
    assert_int_equal(far_session_open(s.c.pool, &later.session), 0);
    put(&s.a, number(7), 1);
    far_addr bucket = bucket_addr(&s.a, 0);
    start(&s.c, FAR_OP_PUT, number(7), 2);
    stage_stop_at(&s.c, at("shard:seal"));
    start(&late, FAR_OP_PUT, number(7), 3);
    far_sim_run_for(s.world, 100000);
    assert_false(late.ended); /* `late` has joined C's round */
    far_sim_hold *hold =
        far_sim_hold_completion(s.c.client, (far_sim_match){variant->inlined ? FAR_SIM_WRITE : FAR_SIM_CAS,
                                                            .from = bucket, .to = bucket + 8 * SHARD_I_H});
    far_sim_resume(s.c.client);
    for (unsigned i = 0; i < 100 && !far_sim_reached(hold); i++)
        far_sim_run_client(s.c.client);
    assert_true(far_sim_reached(hold));
    assert_int_equal(get(&s.b, number(7)), 3);
    put(&s.b, number(7), 9);
    start(&later, FAR_OP_GET, number(7), 0);
    far_sim_run_for(s.world, 100000);
    far_sim_release(hold);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    assert_true(s.c.result == 0 && late.result == 0);
    assert_int_equal(result_value(&later), 9);
    far_session_close(late.session);
    far_session_close(later.session);
    stage_close(&s);
}
TEST_ALL_VARIANTS(a_put_takes_its_mark_after_the_seal);


/* A handle remembers which chunks of buckets are completely split, and for these it reads only the child. Proves that
 * this hint is harmless if it is wrong. C's handle has the hint while the child is not written, or only partly written.
 * C must start over and search the parent. Fails if miss_is_valid (find.c) omits shard_is_unwritten, or if
 * parent_is_known_split (attempt.c) uses the hint at every attempt. */
static void a_child_known_too_early_on(const variant *variant) {
    stage s;
    open_stage(&s, variant, 0, GROWING ",idle_sweep=off");
    const shard_state *st = shard_state_of(s.c.index);
    unsigned n = 0;
    /* k stays in the child at the next doubling too. For a key that moves then, miss_is_valid examines all words, so
     * the test would not reach its check of shard_is_unwritten. */
    while (shard_key_moves(hash_of(&s.a, key_with(&s.a, 1, n)), st->p, st->b, 2))
        n++;
    key k = key_with(&s.a, 1, n);
    put(&s.a, key_with(&s.a, 0, 0), 10);
    put(&s.a, k, 11);
    put(&s.b, key_with(&s.a, 0, 1), 12);
    shard_partition *part = &shard_state_of(s.c.index)->part[0];
    shard_learn_root(part, root_of(&s.b));
    shard_note_chunk_done(part, 1, 0);
    assert_int_equal(get(&s.c, k), 11); /* no bucket is split yet */
    assert_int_equal(COUNTED(&s, splits_frozen) + COUNTED(&s, splits_graced), 0);

    far_addr child = bucket_addr(&s.c, 1);
    start(&s.c, FAR_OP_GET, k, 0);
    far_sim_hold *hold =
        stage_hold(&s.c, (far_sim_match){.kind = FAR_SIM_READ, .from = child, .to = child + SHARD_BUCKET_BYTES});
    uint32_t order[8];
    for (unsigned i = 0; i < 8; i++)
        order[i] = i;
    /* only the first line of the image shows the bucket as it was before the split */
    assert_int_equal(far_sim_release_units(hold, order, variant->units / 8), 0);
    put(&s.b, key_with(&s.a, 0, 0), 20);
    assert_int_equal(COUNTED(&s, splits_frozen) + COUNTED(&s, splits_graced), 1);
    far_sim_release(hold);
    stage_finish(&s.c);
    assert_int_equal(result_value(&s.c), 11);
    stage_close(&s);
}
TEST_ALL_VARIANTS(a_child_known_too_early);


/* Proves that a doubling request is not executed twice. A and B find the load at its bound, and B doubles the table
 * while A is stopped. When A continues, it must not double the table a second time. Fails if a doubling request does
 * not contain the version for which it was made. */
static void a_doubling_request_ends_with_the_doubling_on(const variant *variant) {
    stage s;
    open_stage(&s, variant, 0, GROWING);
    put(&s.a, number(1), 1);
    put(&s.a, number(2), 2);
    start(&s.a, FAR_OP_INSERT, number(3), 3);
    stage_stop_at(&s.a, at("shard:grow"));
    put(&s.b, number(4), 4);
    assert_int_equal(version(&s.b), 0); /* B leaves the doubling to A, which has the claim until it expires */
    assert_int_equal(delete_key(&s.b, number(4)), 0);
    shard_state_of(s.b.index)->part[0].grow_skip = 0;
    put(&s.b, number(4), 4);
    assert_int_equal(version(&s.b), 1);
    stage_finish(&s.a);
    let_epochs_pass(&s); /* housekeeping sweeps and drains, so the next doubling would be allowed */
    assert_int_equal(shard_root_phase(far_root(&s)), SHARD_STABLE);
    put(&s.a, number(5), 5); /* 5 of 10 slots are in use */
    assert_int_equal(shard_root_d(far_root(&s)), 1);
    put(&s.a, number(6), 6);
    assert_int_equal(shard_root_d(far_root(&s)), 2);
    stage_close(&s);
}
TEST_ALL_VARIANTS(a_doubling_request_ends_with_the_doubling);


/* Proves that a stopped client with the claim does not block a doubling. A stops while it prepares the doubling. After
 * some inserts, B must double the table. Fails if a claim never expires (claim_doubling in load_factor.c). */
static void a_claim_does_not_block_other_clients_on(const variant *variant) {
    stage s;
    unsigned inserts = 0;
    open_stage(&s, variant, 0, "slots=30,l2_slots=2,load=10,afs=1");
    for (unsigned i = 1; i < 4; i++)
        put(&s.a, number(i), i);
    start(&s.a, FAR_OP_INSERT, number(4), 4);
    stage_stop_at(&s.a, at("shard:grow"));
    while (version(&s.b) == 0 && inserts < 20) {
        put(&s.b, number(10 + inserts), 1);
        inserts++;
    }
    assert_in_range(inserts, 2, 12);
    stage_finish(&s.a);
    assert_int_equal(shard_root_d(far_root(&s)), 1);
    stage_close(&s);
}
TEST_ALL_VARIANTS(a_claim_does_not_block_other_clients);


/* Proves that a doubling request ends when its reason is gone. The load is at its bound, but a stopped client prevents
 * the doubling. Then most keys are deleted, and the client continues. The table must not double. Fails if the request
 * is kept (shard_doubling_is_due in load_factor.c). */
static void a_doubling_request_ends_with_its_reason_on(const variant *variant) {
    stage s;
    open_stage(&s, variant, 0, GROWING);
    for (uint64_t n = 1; n <= 3; n++)
        put(&s.a, number(n), n);
    assert_int_equal(shard_root_d(far_root(&s)), 1);
    start(&s.c, FAR_OP_GET, number(1), 0);
    stage_stop_at(&s.c, (far_sim_match){.kind = FAR_SIM_READ}); /* C is pinned */
    for (uint64_t n = 4; n <= 7; n++) {
        put(&s.a, number(n), n);
        far_sim_sleep(s.world, 20000000);
    }
    assert_int_equal(shard_root_phase(far_root(&s)), SHARD_STABLE);
    assert_int_equal(shard_root_d(far_root(&s)), 1);
    for (uint64_t n = 1; n <= 6; n++)
        assert_int_equal(delete_key(&s.a, number(n)), 0);
    stage_finish(&s.c);
    let_epochs_pass(&s);
    put(&s.a, number(1), 1);
    assert_int_equal(shard_root_d(far_root(&s)), 1);
    for (uint64_t n = 2; n <= 6; n++)
        put(&s.a, number(n), n);
    assert_int_equal(shard_root_d(far_root(&s)), 2);
    stage_close(&s);
}
TEST_ALL_VARIANTS(a_doubling_request_ends_with_its_reason);


/* Proves that samples from before a doubling do not count after it (load_by=sample). B has sampled many full buckets
 * when A doubles the table. B must not double it again. Fails if samples of all versions are added up (add_sample in
 * load_factor.c). */
static void samples_end_with_the_doubling_on(const variant *variant) {
    stage s;
    open_stage(&s, variant, 0, "slots=4,l2_slots=1,load=60,load_by=sample");
    for (uint64_t n = 1; n <= 3; n++)
        put(&s.a, number(n), n);
    for (unsigned i = 0; i < 7; i++) { /* one sample less than needed for a decision */
        put(&s.b, number(4), 4);
        assert_int_equal(delete_key(&s.b, number(4)), 0);
    }
    for (unsigned i = 0; version(&s.a) == 0; i++) {
        assert_true(i < 20); /* an insert may leave the doubling to the next insert */
        put(&s.a, number(4), 4);
        assert_int_equal(delete_key(&s.a, number(4)), 0);
    }
    let_epochs_pass(&s);
    assert_int_equal(shard_root_phase(far_root(&s)), SHARD_STABLE);
    put(&s.b, number(4), 4); /* 4 of 10 slots are in use */
    put(&s.b, number(5), 5);
    assert_int_equal(shard_root_d(far_root(&s)), 1);
    stage_close(&s);
}
TEST_ALL_VARIANTS(samples_end_with_the_doubling);


static int look_for_leaks(far_task *t, void *arg) {
    return far_collect(t, FAR_COLLECT_COUNT, arg);
}


/* Proves that a slow client at the end of a drain leaks no chain nodes. B has ended the drain and stops before it drops
 * the tables of the old generation. A makes the tables of the next generation in their place. No memory may be leaked.
 * Fails if the table is retired while its chains still have nodes (retire_table in partition.c). */
static void chains_of_a_slow_drain_on(const variant *variant) {
    stage s;
    open_stage(&s, variant, 0, "slots=1,l2_slots=1,load=95,afs=1000000,share=1,idle_sweep=off");
    put(&s.c, number(1), 1);
    start(&s.c, FAR_OP_GET, number(1), 0);
    stage_stop_at(&s.c, at("shard:main_bucket_read")); /* keep the table from doubling twice */
    uint64_t n = 1;
    while (COUNTED(&s, chained) == 0) {
        n++;
        put(&s.a, number(n), n);
    }
    assert_int_equal(shard_root_d(far_root(&s)), 1);
    stage_finish(&s.c);
    bool stopped = false;
    for (unsigned i = 0; i < 60 && !stopped; i++) {
        let_epochs_pass(&s);
        n++;
        start(&s.b, FAR_OP_PUT, number(n), n);
        far_sim_stop_before(s.b.client, at("shard:drop_overflow_tables"));
        stopped = far_sim_run_client(s.b.client) == FAR_SIM_STOPPED && shard_root_d(far_root(&s)) == 2;
        if (!stopped && !s.b.ended)
            stage_finish(&s.b);
    }
    assert_true(stopped);
    const uint64_t *word = words_at(&s, directory_addr(&s.a) + 8 * (SHARD_DIR_L3 + 1));
    assert_int_equal(*word >> 48, 1);
    for (unsigned i = 0; i < 60 && *word >> 48 != 3; i++) {
        n++;
        put(&s.a, number(n), n);
    }
    assert_int_equal(*word >> 48, 3);
    stage_finish(&s.b);
    far_collect_result result;
    assert_int_equal(far_session_call(s.a.session, FAR_STATS_OTHER, true, look_for_leaks, &result), 0);
    assert_int_equal(result.leaked_bytes, 0);
    for (uint64_t i = 1; i <= n; i++)
        assert_int_equal(get(&s.c, number(i)), i);
    stage_close(&s);
}
TEST_ALL_VARIANTS(chains_of_a_slow_drain);


/* Proves that a corrupt pair block fails only the get that reads it, and not the other gets of the same batch. */
static void a_corrupt_block_fails_one_get_only_on(const variant *variant) {
    enum { GETS = 4 };
    stage s;
    far_op ops[GETS], *list[GETS], *done[GETS];
    key keys[GETS];
    uint64_t values[GETS];
    open_stage(&s, variant, 0, "slots=4,afs=1000000");
    for (unsigned i = 0; i < GETS; i++) {
        keys[i] = number(i + 1);
        put(&s.a, keys[i], i + 1);
    }
    const uint64_t *bucket = words_at(&s, bucket_addr(&s.a, 0));
    for (unsigned i = 0; i < SHARD_P_SLOTS; i++) {
        shard_block *block = (shard_block *)(uintptr_t)words_at(&s, shard_entry_addr(bucket[i]));
        if (shard_is_live(bucket[i]) && memcmp(block->bytes, keys[2].bytes, 8) == 0)
            block->value_length = UINT32_MAX;
    }
    for (unsigned i = 0; i < GETS; i++) {
        ops[i] = (far_op){.kind = FAR_OP_GET, .index = s.b.index, .key = keys[i].bytes, .key_len = 8};
        ops[i].value = &values[i];
        ops[i].capacity = 8;
        list[i] = &ops[i];
    }
    assert_int_equal(far_submit(s.b.session, list, GETS), GETS);
    assert_int_equal(far_reap(s.b.session, done, GETS, GETS), GETS);
    for (unsigned i = 0; i < GETS; i++)
        assert_int_equal(ops[i].result, i == 2 ? FAR_ERR_CORRUPT : 0);
    stage_tear_down(&s);
}
TEST_VARIANTS_OF(a_corrupt_block_fails_one_get_only, POINTERS);


static void check_all(void *arg) {
    stage_actor *a = arg;
    a->result = far_index_check(a->session, a->index, fail_at_problem, NULL);
}


/* Proves that a check tolerates a doubling between its reads. C's check reads the root before the doubling and the
 * tables after it, so it finds keys in a level-2 table that was made after its root word. The check must not report
 * these keys. Fails if check_key_in_filter (check.c) does not read the root again. */
static void a_check_that_sees_tables_before_the_root_on(const variant *variant) {
    if (variant->units == 8)
        return; /* on this fabric one atomic READ returns both */
    stage s;
    open_stage_with(&s, variant, 0, GROWING, true); /* C cannot learn of the doubling in another way */
    put(&s.a, key_with(&s.a, 0, 0), 1);
    put(&s.a, key_with(&s.a, 1, 0), 2);
    assert_int_equal(get(&s.c, key_with(&s.a, 1, 0)), 2);
    far_addr directory = directory_addr(&s.c);
    far_sim_client *check = far_sim_start(s.c.pool->fabric, "check", check_all, &s.c);
    far_sim_match match = {/* the second READ is that of the tables */
                           .kind = FAR_SIM_READ,
                           .from = directory,
                           .to = directory + 8,
                           .nth = 2};
    far_sim_hold *hold = far_sim_hold_effect(check, match);
    while (!far_sim_reached(hold))
        far_sim_run_client(check);
    for (unsigned n = 1; n < 6; n++)
        put(&s.b, key_with(&s.a, 1, n), n);
    assert_int_equal(shard_root_d(far_root(&s)), 1);
    assert_int_equal(*words_at(&s, directory + 8 * (SHARD_DIR_L2 + 1)) >> 48, 1);
    far_sim_release(hold);
    assert_int_equal(far_sim_run_client(check), FAR_SIM_ENDED);
    assert_int_equal(s.c.result, 0);
    stage_close(&s);
}
TEST_ALL_VARIANTS(a_check_that_sees_tables_before_the_root);


/* Proves that a split moves a TOMB that was reused after its image was read. A has read a bucket in order to split it.
 * B, with the old root, reuses a TOMB under the lock. A locks and freezes; B's key must be moved. Fails if freeze_words
 * (pointer/split.c) omits TOMBs where there is no masked CAS. */
static void tomb_reused_before_the_freeze_on(const variant *variant) {
    stage s;
    open_stage(&s, variant, 0, "slots=2,l2_slots=1,load=95,afs=1000000,idle_sweep=off,grace=off");
    key stays = key_with(&s.a, 0, 0), goes = key_with(&s.a, 0, 1), late = key_with(&s.a, 1, 0);
    put(&s.a, stays, 1);
    put(&s.a, goes, 2);
    assert_int_equal(delete_key(&s.a, goes), 0);
    start(&s.b, FAR_OP_INSERT, late, 3);
    stage_stop_at(&s.b, at("shard:main_bucket_read"));
    assert_int_equal(far_session_call(s.a.session, FAR_STATS_OTHER, false, grow_once, s.a.index), 1);
    start(&s.a, FAR_OP_UPDATE, stays, 4);
    stage_stop_at(&s.a, at("shard:split"));
    stage_finish(&s.b);
    assert_int_equal(s.b.result, 0);
    assert_int_equal(COUNTED(&s, under_lock), 1);
    stage_finish(&s.a);
    assert_int_equal(s.a.result, 0);
    assert_int_equal(get(&s.c, stays), 4);
    assert_there_once(&s, late, 3);
    stage_close(&s);
}
TEST_VARIANTS_OF(tomb_reused_before_the_freeze, POINTERS);


/* Proves that no entry is inserted into a frozen EMPTY word. B's insert reads a torn image of a bucket: the header is
 * from before a split, and the words are frozen by the split. B must start over. Fails if apply_change
 * (pointer/write.c) omits no_split_has_begun. */
static void insert_into_a_frozen_bucket_on(const variant *variant) {
    stage s;
    open_stage(&s, variant, 0, "slots=8,l2_slots=1,load=95,afs=1000000,idle_sweep=off,grace=off");
    key stays = key_with(&s.a, 0, 0), late = key_with(&s.a, 0, 1);
    put(&s.a, stays, 1);
    assert_int_equal(get(&s.b, stays), 1);
    far_addr bucket = bucket_addr(&s.a, 0);
    start(&s.b, FAR_OP_INSERT, late, 3);
    far_sim_hold *hold =
        stage_hold(&s.b, (far_sim_match){.kind = FAR_SIM_READ, .from = bucket, .to = bucket + SHARD_BUCKET_BYTES});
    assert_int_equal(far_sim_hold_units(hold), variant->units);
    assert_int_equal(far_sim_release_units(hold, (const uint32_t[]){variant->units - 1}, 1), 0); /* only the header */
    assert_int_equal(far_session_call(s.a.session, FAR_STATS_OTHER, false, grow_once, s.a.index), 1);
    start(&s.a, FAR_OP_UPDATE, stays, 4);
    stage_stop_at(&s.a, at("shard:write_halves")); /* all words are frozen now */
    far_sim_release(hold);
    far_sim_run_for(s.world, 100000);
    stage_finish(&s.a);
    stage_finish(&s.b);
    assert_true(s.a.result == 0 && s.b.result == 0);
    assert_int_equal(get(&s.c, stays), 4);
    assert_there_once(&s, late, 3);
    stage_close(&s);
}
TEST_VARIANTS_OF(insert_into_a_frozen_bucket, POINTERS);


/* ---- lazy_resize=off ---- */

/* A inserts keys until one insert doubles the partition, which has eight buckets. This insert stops before it splits
 * the first bucket. */
static void stop_at_first_step(stage *s, const variant *variant) {
    open_stage(s, variant, 3, "slots=4,l2_slots=1,load=60,afs=1,lazy_resize=off,idle_sweep=off");
    bool stopped = false;
    for (uint64_t n = 1; !stopped; n++) {
        start(&s->a, FAR_OP_INSERT, number(n), n);
        far_sim_stop_before(s->a.client, at("shard:work_on_chunk"));
        stopped = far_sim_run_client(s->a.client) == FAR_SIM_STOPPED;
    }
}


/* Prepares a doubling in progress: A has stopped at its first split, B and C have read the new root word, and B waits
 * for the doubling. */
static void begin_blocking(stage *s, const variant *variant) {
    stop_at_first_step(s, variant);
    for (unsigned i = 0; i < 100 && (version(&s->b) == 0 || version(&s->c) == 0); i++) {
        far_epoch_request(s->a.pool);
        far_sim_sleep(s->world, 100000);
    }
    assert_int_equal(version(&s->b), 1);
    start(&s->b, FAR_OP_UPDATE, number(1), 77);
    far_sim_run_for(s->world, 20000);
    assert_false(s->b.ended);
    assert_int_equal(get(&s->c, number(1)), 1); /* gets do not wait */
}


static void every_bucket_is_split(stage *s, uint64_t buckets) {
    const shard_state *st = shard_state_of(s->a.index);
    for (uint64_t i = 0; i < buckets; i++)
        assert_int_equal(shard_header_v(words_at(s, bucket_addr(&s->a, i))[shard_header_at(st)]), 1);
}


/* Proves that a write waits until the client that began the doubling has split all buckets. Fails if waiting writers
 * split buckets. */
static void a_doubling_blocks_writes_on(const variant *variant) {
    stage s;
    begin_blocking(&s, variant);
    uint64_t splits = COUNTED(&s, splits_frozen) + COUNTED(&s, splits_graced);
    assert_int_equal(splits, 0);
    stage_finish(&s.a);
    assert_int_equal(s.a.result, 0);
    assert_int_equal(shard_root_phase(far_root(&s)), SHARD_STABLE);
    every_bucket_is_split(&s, 16);
    stage_finish(&s.b);
    assert_int_equal(s.b.result, 0);
    const shard_counters *own = &shard_state_of(s.b.index)->counters;
    assert_int_equal(own->splits_frozen + own->splits_graced, 0);
    assert_int_equal(get(&s.c, number(1)), 77);
    stage_close(&s);
}
TEST_ALL_VARIANTS(a_doubling_blocks_writes);


/* Proves that waiting clients finish the doubling of a failed client, as soon as they know of its failure and without
 * many retries. A fails; B splits all buckets. Fails if B only waits, or if it takes a step only now and then. */
static void a_blocking_client_fails_on(const variant *variant) {
    stage s;
    begin_blocking(&s, variant);
    stage_kill(&s, &s.a);
    stage_finish(&s.b);
    assert_int_equal(s.b.result, 0);
    far_stats stats;
    far_session_stats(s.b.session, &stats);
    assert_in_range(stats.retries, 1, 40);
    assert_int_not_equal(shard_root_phase(far_root(&s)), SHARD_GROW);
    assert_int_equal(get(&s.c, number(1)), 77);
    stage_close(&s);
}
TEST_ALL_VARIANTS(a_blocking_client_fails);


/* Proves that the client which began a doubling finishes this doubling, even if a waiting client was the first to
 * record the epoch (stamp) of the doubling in the root word. */
static void a_doubling_stamped_by_another_on(const variant *variant) {
    stage s;
    open_stage(&s, variant, 3, "slots=4,l2_slots=1,load=60,afs=1,lazy_resize=off,idle_sweep=off");
    for (uint64_t n = 1; n == 1 || s.a.ended; n++) {
        start(&s.a, FAR_OP_INSERT, number(n), n);
        far_sim_stop_before(s.a.client, at("shard:stamp"));
        far_sim_run_client(s.a.client);
    }
    for (unsigned i = 0; i < 100 && version(&s.b) == 0; i++) {
        far_epoch_request(s.a.pool);
        far_sim_sleep(s.world, 100000);
    }
    assert_int_equal(version(&s.b), 1);
    start(&s.b, FAR_OP_UPDATE, number(1), 77);
    for (unsigned i = 0; i < 1000000 && !shard_root_stamped(far_root(&s)); i++)
        far_sim_run_for(s.world, 1000);
    assert_true(shard_root_stamped(far_root(&s)));
    assert_false(s.b.ended);
    stage_finish(&s.a);
    assert_int_equal(shard_root_phase(far_root(&s)), SHARD_STABLE);
    stage_finish(&s.b);
    stage_close(&s);
}
TEST_ALL_VARIANTS(a_doubling_stamped_by_another);


/* Proves that the client which splits all buckets takes a new pin for each step. If it is slow, epochs advance between
 * its steps and the grace period ends, so it need not freeze the words of the last buckets. Fails if all steps share
 * one pin (shard_finish_doubling in baseline.c). */
static void a_slow_doubling_lets_the_epoch_go_on_on(const variant *variant) {
    stage s;
    stop_at_first_step(&s, variant);
    const shard_counters *own = &shard_state_of(s.a.index)->counters;
    for (unsigned steps = 0; steps < 5; steps++) {
        let_epochs_pass(&s);
        stage_stop_at(&s.a, at("shard:work_on_chunk"));
    }
    stage_finish(&s.a);
    assert_int_equal(s.a.result, 0);
    assert_int_equal(own->splits_frozen + own->splits_graced, 8);
    assert_in_range(own->splits_graced, 4, 8);
    stage_close(&s);
}
TEST_VARIANTS_OF(a_slow_doubling_lets_the_epoch_go_on, POINTERS);


/* Proves that housekeeping does not begin a doubling with lazy_resize=off, because it processes only a few buckets at a
 * time while all writes of the partition wait. With lazy_resize=on it does begin the doubling. */
static void housekeeping_and_a_full_partition_on(const variant *variant) {
    for (unsigned lazy = 0; lazy < 2; lazy++) {
        stage s;
        open_stage(&s, variant, 0,
                   lazy ? "slots=4,l2_slots=1,load=60,afs=1000000"
                        : "slots=4,l2_slots=1,load=60,afs=1000000,lazy_resize=off");
        for (uint64_t n = 1; n <= 4; n++)
            put(&s.a, number(n), n);
        assert_int_equal(shard_root_d(far_root(&s)), 0);
        shard_request_doubling(&shard_state_of(s.a.index)->part[0], 1);
        let_epochs_pass(&s);
        assert_int_equal(shard_root_d(far_root(&s)), lazy);
        stage_close(&s);
    }
}
TEST_ALL_VARIANTS(housekeeping_and_a_full_partition);


/* Proves that waiting clients report corruption if the doubling cannot be finished. A fails, and a word of the
 * partition is corrupt; B must return FAR_ERR_CORRUPT. Fails if a refused pin is not reported, or if a client repeats
 * its step on a corrupt bucket forever. In the inline layout the test also fails if clients lock a bucket that they
 * cannot split because it has no child: other clients take each change of the lock for progress and wait forever. */
static void a_blocking_client_fails_in_a_corrupt_pool_on(const variant *variant) {
    for (unsigned how = 0; how < 3; how++) {
        stage s;
        begin_blocking(&s, variant);
        far_addr directory = directory_addr(&s.b);
        uint64_t *progress = world_bytes(s.world, directory + 8 * (SHARD_DIR_PROGRESS + 1)),
                 *segment = world_bytes(s.world, directory + 8 * (SHARD_DIR_SEGMENT + 1)),
                 *bucket = world_bytes(s.world, bucket_addr(&s.a, 0));
        if (how == 0)
            *progress = 0x7ffffffff0;
        else if (how == 1)
            *segment = 0;
        else
            memset(bucket, 0, SHARD_BUCKET_BYTES);
        stage_kill(&s, &s.a);
        for (unsigned i = 0; i < 3000 && !s.b.ended; i++)
            far_sim_run_for(s.world, 100000);
        assert_true(s.b.ended);
        assert_int_equal(s.b.result, FAR_ERR_CORRUPT);
        far_stats stats;
        far_session_stats(s.b.session, &stats);
        /* no bucket was locked; the CASes of B only determine which clients are alive */
        assert_true(how != 1 || stats.cas <= 4);
        stage_tear_down(&s);
    }
}
TEST_ALL_VARIANTS(a_blocking_client_fails_in_a_corrupt_pool);


static int ask_to_grow(far_task *t, void *arg) {
    far_index *index = arg;
    const shard_state *st = shard_state_of(index);
    int may = 0;
    for (unsigned d = 0; d < SHARD_VERSIONS; d++)
        may += shard_may_grow(t, st, shard_root_next(st->part[0].root, d, SHARD_STABLE, true, 0));
    return may;
}


/* Proves that no doubling begins whose objects do not fit into a block of the pool. Otherwise every insert into a full
 * partition would try it, and would fail with FAR_ERR_INVALID. Fails if st->versions does not depend on the size of a
 * block. */
TEST(versions_that_do_not_fit_into_blocks_are_not_begun) {
    static const unsigned bits[] = {0, 7, 12};
    for (unsigned i = 0; i < 3; i++)
        for (unsigned layout = 0; layout < 2; layout++) {
            stage s;
            open_stage(&s, &all_variants[layout ? 4 : 0], bits[i], NO_GROWTH ",extent=512");
            const shard_state *st = shard_state_of(s.a.index);
            const uint64_t most = far_object_bytes_max(s.a.pool);
            assert_true(st->versions > 1 && st->versions < 40);
            for (unsigned v = 1; v <= st->versions; v++) {
                bool fits = shard_progress_bytes(st, v) <= most;
                for (unsigned level = 1; level <= 3; level++)
                    fits &= shard_table_object_bytes(st, level, v) <= most;
                assert_int_equal(fits, v < st->versions);
            }
            assert_int_equal(far_session_call(s.a.session, FAR_STATS_OTHER, false, ask_to_grow, s.a.index),
                             st->versions - 1);
            stage_close(&s);
        }
}
