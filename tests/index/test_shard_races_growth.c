/* SHARD: growth that is wished for, samples, slow drains and frozen buckets, in both layouts. Each failed before its fix;
 * what was taken out of the code to see it fail is told with it. */
#include "shard_rig.h"

#include "index/rdwc.h"
#include "pool/epoch.h"
#include "pool/sweep.h"
#include "task/session.h"


static void let_epochs_pass(stage *s) {
    for (unsigned i = 0; i < 10; i++) {
        far_epoch_request(s->a.pool);
        far_sim_sleep(s->world, 5000000);
    }
}


/* A put takes the value of who joined last, and then announces its batch: a get that comes when the batch has taken
 * effect, and after another compute node's put, does not get that value. (The mark taken before the seal.) */
static void a_put_announces_its_batch_after_the_seal_told(const told *told) {
    stage s;
    open_stage(&s, told, 0, STILL);
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
    assert_false(late.ended); /* it has joined */
    far_sim_hold *hold =
        far_sim_hold_completion(s.c.client, (far_sim_match){told->inlined ? FAR_SIM_WRITE : FAR_SIM_CAS, .from = bucket,
                                                            .to = bucket + 8 * SHARD_I_H});
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
    assert_int_equal(given(&later), 9);
    far_session_close(late.session);
    far_session_close(later.session);
    stage_close(&s);
}
TOLD_OF_ALL(a_put_announces_its_batch_after_the_seal);


/* That a chunk is split is a hint, which may come before the child is visible: who finds the child not written, wholly
 * or in part, starts over and looks at the parent too. (miss_counts without shard_unwritten; is_swept at every
 * attempt.) */
static void a_child_known_too_early_told(const told *told) {
    stage s;
    open_stage(&s, told, 0, GROWING ",idle_sweep=off");
    const shard_state *st = shard_state_of(s.c.index);
    unsigned n = 0;
    while (shard_changes(hash_of(&s.a, key_with(&s.a, 1, n)), st->p, st->b, 2)) /* else all words are looked at */
        n++;
    key k = key_with(&s.a, 1, n);
    put(&s.a, key_with(&s.a, 0, 0), 10);
    put(&s.a, k, 11);
    put(&s.b, key_with(&s.a, 0, 1), 12);
    shard_partition *part = &shard_state_of(s.c.index)->part[0];
    shard_learn_root(part, root_of(&s.b));
    shard_learn_done(part, 1, 0);
    assert_int_equal(get(&s.c, k), 11); /* nothing is written */
    assert_int_equal(COUNTED(&s, splits_frozen) + COUNTED(&s, splits_graced), 0);

    far_addr child = bucket_addr(&s.c, 1);
    start(&s.c, FAR_OP_GET, k, 0);
    far_sim_hold *hold =
        stage_hold(&s.c, (far_sim_match){.kind = FAR_SIM_READ, .from = child, .to = child + SHARD_BUCKET_BYTES});
    uint32_t order[8];
    for (unsigned i = 0; i < 8; i++)
        order[i] = i;
    assert_int_equal(far_sim_release_units(hold, order, told->units / 8), 0); /* the first line, as it was before */
    put(&s.b, key_with(&s.a, 0, 0), 20);
    assert_int_equal(COUNTED(&s, splits_frozen) + COUNTED(&s, splits_graced), 1);
    far_sim_release(hold);
    stage_finish(&s.c);
    assert_int_equal(given(&s.c), 11);
    stage_close(&s);
}
TOLD_OF_ALL(a_child_known_too_early);


/* Two handles find the load at its bound, and one of them doubles the table: the other does not do it once more. (The
 * wish without the version it is about.) */
static void a_wish_ends_with_the_doubling_told(const told *told) {
    stage s;
    open_stage(&s, told, 0, GROWING);
    put(&s.a, number(1), 1);
    put(&s.a, number(2), 2);
    start(&s.a, FAR_OP_INSERT, number(3), 3);
    stage_stop_at(&s.a, at("shard:grow"));
    put(&s.b, number(4), 4);
    assert_int_equal(version(&s.b), 0); /* it leaves it to the one who is at it, but not for ever */
    assert_int_equal(delete_key(&s.b, number(4)), 0);
    shard_state_of(s.b.index)->part[0].grow_rest = 0;
    put(&s.b, number(4), 4);
    assert_int_equal(version(&s.b), 1);
    stage_finish(&s.a);
    let_epochs_pass(&s); /* housekeeping sweeps and drains; the next doubling would be allowed */
    assert_int_equal(shard_root_phase(true_root(&s)), SHARD_STABLE);
    put(&s.a, number(5), 5); /* 5 of 10 slots */
    assert_int_equal(shard_root_d(true_root(&s)), 1);
    put(&s.a, number(6), 6);
    assert_int_equal(shard_root_d(true_root(&s)), 2);
    stage_close(&s);
}
TOLD_OF_ALL(a_wish_ends_with_the_doubling);


/* One who stands still while it prepares a doubling holds nobody up: another handle does it after some inserts. (The
 * claim without an end.) */
static void a_claim_holds_nobody_up_told(const told *told) {
    stage s;
    unsigned inserts = 0;
    open_stage(&s, told, 0, "slots=30,l2_slots=2,load=10,afs=1");
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
    assert_int_equal(shard_root_d(true_root(&s)), 1);
    stage_close(&s);
}
TOLD_OF_ALL(a_claim_holds_nobody_up);


/* The load is at its bound, but one who stands still keeps the next doubling from beginning. Then most keys are
 * deleted: the doubling is not due any more. (The wish kept.) */
static void a_wish_ends_with_its_reason_told(const told *told) {
    stage s;
    open_stage(&s, told, 0, GROWING);
    for (uint64_t n = 1; n <= 3; n++)
        put(&s.a, number(n), n);
    assert_int_equal(shard_root_d(true_root(&s)), 1);
    start(&s.c, FAR_OP_GET, number(1), 0);
    stage_stop_at(&s.c, (far_sim_match){.kind = FAR_SIM_READ}); /* it is pinned */
    for (uint64_t n = 4; n <= 7; n++) {
        put(&s.a, number(n), n);
        far_sim_sleep(s.world, 20000000);
    }
    assert_int_equal(shard_root_phase(true_root(&s)), SHARD_STABLE);
    assert_int_equal(shard_root_d(true_root(&s)), 1);
    for (uint64_t n = 1; n <= 6; n++)
        assert_int_equal(delete_key(&s.a, number(n)), 0);
    stage_finish(&s.c);
    let_epochs_pass(&s);
    put(&s.a, number(1), 1);
    assert_int_equal(shard_root_d(true_root(&s)), 1);
    for (uint64_t n = 2; n <= 6; n++)
        put(&s.a, number(n), n);
    assert_int_equal(shard_root_d(true_root(&s)), 2);
    stage_close(&s);
}
TOLD_OF_ALL(a_wish_ends_with_its_reason);


/* load_by=sample: what a handle has seen before a doubling says nothing of the load after it. (Samples of all versions
 * added up.) */
static void samples_end_with_the_doubling_told(const told *told) {
    stage s;
    open_stage(&s, told, 0, "slots=4,l2_slots=1,load=60,load_by=sample");
    for (uint64_t n = 1; n <= 3; n++)
        put(&s.a, number(n), n);
    for (unsigned i = 0; i < 7; i++) { /* one sample less than it goes by */
        put(&s.b, number(4), 4);
        assert_int_equal(delete_key(&s.b, number(4)), 0);
    }
    for (unsigned i = 0; version(&s.a) == 0; i++) {
        assert_true(i < 20); /* some of them leave it to the next */
        put(&s.a, number(4), 4);
        assert_int_equal(delete_key(&s.a, number(4)), 0);
    }
    let_epochs_pass(&s);
    assert_int_equal(shard_root_phase(true_root(&s)), SHARD_STABLE);
    put(&s.b, number(4), 4); /* 4 of 10 slots */
    put(&s.b, number(5), 5);
    assert_int_equal(shard_root_d(true_root(&s)), 1);
    stage_close(&s);
}
TOLD_OF_ALL(samples_end_with_the_doubling);


static int look_for_leaks(far_task *t, void *arg) {
    return far_sweep(t, FAR_SWEEP_COUNT, arg);
}


/* Who ended the drain is slow to drop the tables of the old generation; meanwhile another makes those of the next one
 * in their place: the nodes of the old chains are not lost. (make_table retiring the table alone.) */
static void chains_of_a_slow_drain_told(const told *told) {
    stage s;
    open_stage(&s, told, 0, "slots=1,l2_slots=1,load=95,afs=1000000,share=1,idle_sweep=off");
    put(&s.c, number(1), 1);
    start(&s.c, FAR_OP_GET, number(1), 0);
    stage_stop_at(&s.c, at("shard:home_read")); /* it keeps the table from doubling twice */
    uint64_t n = 1;
    while (COUNTED(&s, chained) == 0) {
        n++;
        put(&s.a, number(n), n);
    }
    assert_int_equal(shard_root_d(true_root(&s)), 1);
    stage_finish(&s.c);
    bool stopped = false;
    for (unsigned i = 0; i < 60 && !stopped; i++) {
        let_epochs_pass(&s);
        n++;
        start(&s.b, FAR_OP_PUT, number(n), n);
        far_sim_stop_before(s.b.client, at("shard:drop"));
        stopped = far_sim_run_client(s.b.client) == FAR_SIM_STOPPED && shard_root_d(true_root(&s)) == 2;
        if (!stopped && !s.b.ended)
            stage_finish(&s.b);
    }
    assert_true(stopped);
    const uint64_t *word = words_at(&s, body_addr(&s.a) + 8 * (SHARD_BODY_L3 + 1));
    assert_int_equal(*word >> 48, 1);
    for (unsigned i = 0; i < 60 && *word >> 48 != 3; i++) {
        n++;
        put(&s.a, number(n), n);
    }
    assert_int_equal(*word >> 48, 3);
    stage_finish(&s.b);
    far_sweep_result result;
    assert_int_equal(far_session_call(s.a.session, FAR_STATS_OTHER, true, look_for_leaks, &result), 0);
    assert_int_equal(result.leaked_bytes, 0);
    for (uint64_t i = 1; i <= n; i++)
        assert_int_equal(get(&s.c, number(i)), i);
    stage_close(&s);
}
TOLD_OF_ALL(chains_of_a_slow_drain);


/* Of gets that were submitted together one meets a broken block: the others hear nothing of it. */
static void a_broken_block_is_one_gets_own_told(const told *told) {
    enum { GETS = 4 };
    stage s;
    far_op ops[GETS], *list[GETS], *done[GETS];
    key keys[GETS];
    uint64_t values[GETS];
    open_stage(&s, told, 0, "slots=4,afs=1000000");
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
TOLD_OF(a_broken_block_is_one_gets_own, POINTERS);


static void check_all(void *arg) {
    stage_actor *a = arg;
    a->result = far_index_check(a->session, a->index, fail_at_problem, NULL);
}


/* A check reads root and tables while the partition doubles: it sees the root before that, and a table of level 2 after
 * it. What lies there is announced in a bucket that the old root does not know of. (is_announced without a new look at
 * the root.) */
static void a_check_that_sees_tables_before_the_root_told(const told *told) {
    if (told->units == 8)
        return; /* they lie in one line */
    stage s;
    open_stage_with(&s, told, 0, GROWING, true); /* nothing else tells it of the doubling */
    put(&s.a, key_with(&s.a, 0, 0), 1);
    put(&s.a, key_with(&s.a, 1, 0), 2);
    assert_int_equal(get(&s.c, key_with(&s.a, 1, 0)), 2);
    far_addr body = body_addr(&s.c);
    far_sim_client *check = far_sim_start(s.c.pool->fabric, "check", check_all, &s.c);
    far_sim_match match = {
        .kind = FAR_SIM_READ, .from = body, .to = body + 8, .nth = 2}; /* the second: of the tables */
    far_sim_hold *hold = far_sim_hold_effect(check, match);
    while (!far_sim_reached(hold))
        far_sim_run_client(check);
    for (unsigned n = 1; n < 6; n++)
        put(&s.b, key_with(&s.a, 1, n), n);
    assert_int_equal(shard_root_d(true_root(&s)), 1);
    assert_int_equal(*words_at(&s, body + 8 * (SHARD_BODY_L2 + 1)) >> 48, 1);
    far_sim_release(hold);
    assert_int_equal(far_sim_run_client(check), FAR_SIM_ENDED);
    assert_int_equal(s.c.result, 0);
    stage_close(&s);
}
TOLD_OF_ALL(a_check_that_sees_tables_before_the_root);


/* One who does not know of the doubling uses a TOMB again, under the home lock, between a mover's look at the bucket
 * and its lock: the freeze finds it, and it is moved. (freeze leaving TOMBs out, where there is no masked CAS.) */
static void tomb_reused_before_the_freeze_told(const told *told) {
    stage s;
    open_stage(&s, told, 0, "slots=2,l2_slots=1,load=95,afs=1000000,idle_sweep=off,grace=off");
    key stays = key_with(&s.a, 0, 0), goes = key_with(&s.a, 0, 1), late = key_with(&s.a, 1, 0);
    put(&s.a, stays, 1);
    put(&s.a, goes, 2);
    assert_int_equal(delete_key(&s.a, goes), 0);
    start(&s.b, FAR_OP_INSERT, late, 3);
    stage_stop_at(&s.b, at("shard:home_read"));
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
TOLD_OF(tomb_reused_before_the_freeze, POINTERS);


/* The image of an insert that does not know of the doubling is torn: its header is from before the split, its words are
 * frozen. An EMPTY word that is frozen takes no entry. (apply without is_calm.) */
static void insert_into_a_frozen_bucket_told(const told *told) {
    stage s;
    open_stage(&s, told, 0, "slots=8,l2_slots=1,load=95,afs=1000000,idle_sweep=off,grace=off");
    key stays = key_with(&s.a, 0, 0), late = key_with(&s.a, 0, 1);
    put(&s.a, stays, 1);
    assert_int_equal(get(&s.b, stays), 1);
    far_addr bucket = bucket_addr(&s.a, 0);
    start(&s.b, FAR_OP_INSERT, late, 3);
    far_sim_hold *hold =
        stage_hold(&s.b, (far_sim_match){.kind = FAR_SIM_READ, .from = bucket, .to = bucket + SHARD_BUCKET_BYTES});
    assert_int_equal(far_sim_hold_units(hold), told->units);
    assert_int_equal(far_sim_release_units(hold, (const uint32_t[]){told->units - 1}, 1), 0); /* the header */
    assert_int_equal(far_session_call(s.a.session, FAR_STATS_OTHER, false, grow_once, s.a.index), 1);
    start(&s.a, FAR_OP_UPDATE, stays, 4);
    stage_stop_at(&s.a, at("shard:write_halves")); /* all words are frozen */
    far_sim_release(hold);
    far_sim_run_for(s.world, 100000);
    stage_finish(&s.a);
    stage_finish(&s.b);
    assert_true(s.a.result == 0 && s.b.result == 0);
    assert_int_equal(get(&s.c, stays), 4);
    assert_there_once(&s, late, 3);
    stage_close(&s);
}
TOLD_OF(insert_into_a_frozen_bucket, POINTERS);


/* ---- lazy_resize=off ---- */

/* Eight buckets; a's insert makes them double, and stands still before it moves the first. */
static void stop_at_first_step(stage *s, const told *told) {
    open_stage(s, told, 3, "slots=4,l2_slots=1,load=60,afs=1,lazy_resize=off,idle_sweep=off");
    bool stopped = false;
    for (uint64_t n = 1; !stopped; n++) {
        start(&s->a, FAR_OP_INSERT, number(n), n);
        far_sim_stop_before(s->a.client, at("shard:work"));
        stopped = far_sim_run_client(s->a.client) == FAR_SIM_STOPPED;
    }
}


/* b and c know of it, and b waits. */
static void begin_blocking(stage *s, const told *told) {
    stop_at_first_step(s, told);
    for (unsigned i = 0; i < 100 && (version(&s->b) == 0 || version(&s->c) == 0); i++) {
        far_epoch_request(s->a.pool);
        far_sim_sleep(s->world, 100000);
    }
    assert_int_equal(version(&s->b), 1);
    start(&s->b, FAR_OP_UPDATE, number(1), 77);
    far_sim_run_for(s->world, 20000);
    assert_false(s->b.ended);
    assert_int_equal(get(&s->c, number(1)), 1); /* gets go on */
}


static void every_bucket_is_split(stage *s, uint64_t buckets) {
    const shard_state *st = shard_state_of(s->a.index);
    for (uint64_t i = 0; i < buckets; i++)
        assert_int_equal(shard_header_v(words_at(s, bucket_addr(&s->a, i))[shard_header_at(st)]), 1);
}


/* A write waits until all of its partition is moved, by the client that began the doubling. (Writers that split.) */
static void a_doubling_blocks_writes_told(const told *told) {
    stage s;
    begin_blocking(&s, told);
    uint64_t splits = COUNTED(&s, splits_frozen) + COUNTED(&s, splits_graced);
    assert_int_equal(splits, 0);
    stage_finish(&s.a);
    assert_int_equal(s.a.result, 0);
    assert_int_equal(shard_root_phase(true_root(&s)), SHARD_STABLE);
    every_bucket_is_split(&s, 16);
    stage_finish(&s.b);
    assert_int_equal(s.b.result, 0);
    const shard_counters *own = &shard_state_of(s.b.index)->counters;
    assert_int_equal(own->splits_frozen + own->splits_graced, 0);
    assert_int_equal(get(&s.c, number(1)), 77);
    stage_close(&s);
}
TOLD_OF_ALL(a_doubling_blocks_writes);


/* Who began it dies: those who wait do it, all at once when they know. (Waiting without a step; a step now and then.) */
static void a_blocking_client_dies_told(const told *told) {
    stage s;
    begin_blocking(&s, told);
    stage_kill(&s, &s.a);
    stage_finish(&s.b);
    assert_int_equal(s.b.result, 0);
    far_stats stats;
    far_session_stats(s.b.session, &stats);
    assert_in_range(stats.retries, 1, 40);
    assert_int_not_equal(shard_root_phase(true_root(&s)), SHARD_GROW);
    assert_int_equal(get(&s.c, number(1)), 77);
    stage_close(&s);
}
TOLD_OF_ALL(a_blocking_client_dies);


/* Who begins a doubling does it, also when somebody who waits was faster with the stamp. */
static void a_doubling_stamped_by_another_told(const told *told) {
    stage s;
    open_stage(&s, told, 3, "slots=4,l2_slots=1,load=60,afs=1,lazy_resize=off,idle_sweep=off");
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
    for (unsigned i = 0; i < 1000000 && !shard_root_stamped(true_root(&s)); i++)
        far_sim_run_for(s.world, 1000);
    assert_true(shard_root_stamped(true_root(&s)));
    assert_false(s.b.ended);
    stage_finish(&s.a);
    assert_int_equal(shard_root_phase(true_root(&s)), SHARD_STABLE);
    stage_finish(&s.b);
    stage_close(&s);
}
TOLD_OF_ALL(a_doubling_stamped_by_another);


/* Who moves all buckets has a pin for each step: when he is slow the epoch goes on, and he need not freeze what he moves
 * last. (One pin for all.) */
static void a_slow_doubling_lets_the_epoch_go_on_told(const told *told) {
    stage s;
    stop_at_first_step(&s, told);
    const shard_counters *own = &shard_state_of(s.a.index)->counters;
    for (unsigned steps = 0; steps < 5; steps++) {
        let_epochs_pass(&s);
        stage_stop_at(&s.a, at("shard:work"));
    }
    stage_finish(&s.a);
    assert_int_equal(s.a.result, 0);
    assert_int_equal(own->splits_frozen + own->splits_graced, 8);
    assert_in_range(own->splits_graced, 4, 8);
    stage_close(&s);
}
TOLD_OF(a_slow_doubling_lets_the_epoch_go_on, POINTERS);


/* A doubling that blocks is not begun by housekeeping, which moves a few buckets at a time; one that does not block is.
 */
static void housekeeping_and_a_full_partition_told(const told *told) {
    for (unsigned lazy = 0; lazy < 2; lazy++) {
        stage s;
        open_stage(&s, told, 0,
                   lazy ? "slots=4,l2_slots=1,load=60,afs=1000000"
                        : "slots=4,l2_slots=1,load=60,afs=1000000,lazy_resize=off");
        for (uint64_t n = 1; n <= 4; n++)
            put(&s.a, number(n), n);
        assert_int_equal(shard_root_d(true_root(&s)), 0);
        shard_want(&shard_state_of(s.a.index)->part[0], 1);
        let_epochs_pass(&s);
        assert_int_equal(shard_root_d(true_root(&s)), lazy);
        stage_close(&s);
    }
}
TOLD_OF_ALL(housekeeping_and_a_full_partition);


/* The same in a damaged pool, where nobody can do it: those who wait learn that. (A refused pin that is not told of; steps
 * without end on a bucket that is broken; I: locks that they take in vain, for a split without a child, and that look like
 * a change to the others.) */
static void a_blocking_client_dies_of_damage_told(const told *told) {
    for (unsigned how = 0; how < 3; how++) {
        stage s;
        begin_blocking(&s, told);
        far_addr body = body_addr(&s.b);
        uint64_t *progress = world_bytes(s.world, body + 8 * (SHARD_BODY_PROGRESS + 1)),
                 *segment = world_bytes(s.world, body + 8 * (SHARD_BODY_SEGMENT + 1)),
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
        assert_true(how != 1 || stats.cas <= 4); /* no lock of a bucket: only such as say who lives */
        stage_tear_down(&s);
    }
}
TOLD_OF_ALL(a_blocking_client_dies_of_damage);


int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_slow_doubling_lets_the_epoch_go_on),
        cmocka_unit_test(housekeeping_and_a_full_partition),
        cmocka_unit_test(a_doubling_blocks_writes),
        cmocka_unit_test(a_doubling_stamped_by_another),
        cmocka_unit_test(a_blocking_client_dies),
        cmocka_unit_test(a_blocking_client_dies_of_damage),
        cmocka_unit_test(tomb_reused_before_the_freeze),
        cmocka_unit_test(insert_into_a_frozen_bucket),
        cmocka_unit_test(a_put_announces_its_batch_after_the_seal),
        cmocka_unit_test(a_child_known_too_early),
        cmocka_unit_test(a_wish_ends_with_the_doubling),
        cmocka_unit_test(a_claim_holds_nobody_up),
        cmocka_unit_test(a_wish_ends_with_its_reason),
        cmocka_unit_test(samples_end_with_the_doubling),
        cmocka_unit_test(chains_of_a_slow_drain),
        cmocka_unit_test(a_broken_block_is_one_gets_own),
        cmocka_unit_test(a_check_that_sees_tables_before_the_root),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
