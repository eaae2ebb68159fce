/* Named interleavings of the shard index in both layouts: growth, splits and what dies in them. What was taken out of
 * the code to see a story fail is told with it. */
#include "shard_rig.h"

#include "pool/epoch.h"


/* H9: of the parent's last WRITE a part is visible: it is still locked, and everything can be read. (P: the header made
 * the first word of the WRITE; I: K before the slots.) */
static void unlock_prefix_told(const told *told) {
    for (unsigned units = 0; units<told->units; units += told->units> 8 ? 3 : 1) {
        stage s;
        open_stage(&s, told, 0, GROWING);
        grow(&s);
        start(&s.b, FAR_OP_PUT, key_with(&s.a, 0, 0), 20);
        far_sim_hold *hold = stage_hold(&s.b, write_of(bucket_addr(&s.b, 0)));
        uint32_t order[64];
        for (unsigned i = 0; i < units; i++)
            order[i] = i;
        assert_int_equal(far_sim_hold_units(hold), told->units);
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
TOLD_OF_ALL(unlock_prefix);


/* H11: the mover dies after so many units of the child, or of the parent: no half is lost. (The parent written first.)
 */
static void crash_parent_child_order_told(const told *told) {
    for (unsigned child = 0; child < 2; child++)
        for (unsigned units = 0; units <= told->units; units += told->units > 8 ? 4 : 1) {
            stage s;
            open_stage(&s, told, 0, GROWING ",idle_sweep=off");
            grow(&s);
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
TOLD_OF_ALL(crash_parent_child_order);


/* H12: a child that nobody has written is known for what it is at every version, the even ones too. (shard_unwritten
 * going by the version alone.) */
static void zero_child_even_version_told(const told *told) {
    stage s;
    open_stage(&s, told, 0, GROWING ",share=1,idle_sweep=off");
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
            if (shard_changes(h, st->p, st->b, v) && version(&s.c) == v &&
                shard_unwritten(st, words_at(&s, bucket_addr(&s.c, shard_bucket(h, st->p, st->b, v)))))
                met |= 1u << v;
        }
        for (uint64_t i = 1; i <= n; i++)
            assert_int_equal(insert(&s.a, number(i), 1), FAR_ERR_EXISTS);
    }
    assert_true((met & 4) && (met & 2)); /* at an odd and at an even version */
    stage_close(&s);
}
TOLD_OF_ALL(zero_child_even_version);


/* H22: one bucket cannot be split, because its mover stands still: everybody goes on, but the next doubling waits.
 * (finish_chunk calling every chunk done.) */
static void second_grow_before_sweep_told(const told *told) {
    stage s;
    open_stage(&s, told, 1, GROWING ",share=1");
    for (unsigned i = 0; version(&s.b) == 0; i++)
        put(&s.b, key_in(&s.a, 1, i % 2, i / 2), 100 + i);
    start(&s.b, FAR_OP_PUT, key_in(&s.a, 0, 0, 0), 1);
    stage_stop_at(&s.b, at("shard:write_halves"));
    for (unsigned i = 20; i < 80; i++) {
        assert_int_equal(insert(&s.a, key_in(&s.a, 1, i % 2, i), i), 0);
        far_sim_sleep(s.world, 500000);
    }
    assert_int_equal(shard_root_d(true_root(&s)), 1);
    assert_int_equal(shard_root_phase(true_root(&s)), SHARD_GROW);
    stage_finish(&s.b);
    for (unsigned i = 20; i < 80; i++)
        assert_int_equal(get(&s.c, key_in(&s.a, 1, i % 2, i)), i);
    for (unsigned i = 80; i < 120; i++) {
        assert_int_equal(insert(&s.a, key_in(&s.a, 1, i % 2, i), i), 0);
        far_sim_sleep(s.world, 2000000);
    }
    assert_true(shard_root_d(true_root(&s)) > 1);
    assert_int_equal(get(&s.c, key_in(&s.a, 0, 0, 0)), 1);
    stage_close(&s);
}
TOLD_OF_ALL(second_grow_before_sweep);


/* Two of three die in the sweep, one with a chunk, one in the middle of a split: the third finishes it alone, and no
 * lock is left. (shard_p_help and shard_i_help doing nothing.) */
static void all_but_one_die_in_the_sweep_told(const told *told) {
    stage s;
    open_stage(&s, told, 3, "slots=4,l2_slots=1,load=60,afs=1,share=1,idle_sweep=off");
    uint64_t n = 0;
    while (version(&s.c) == 0) {
        n++;
        put(&s.c, number(n), n);
    }
    start(&s.a, FAR_OP_INSERT, number(n + 1), n + 1);
    assert_int_equal(get(&s.b, number(1)), 1);
    far_sim_stop_before(s.a.client, at("shard:work"));
    bool stopped = far_sim_run_client(s.a.client) == FAR_SIM_STOPPED; /* if it knows of the doubling */
    start(&s.b, FAR_OP_INSERT, number(n + 2), n + 2);
    far_sim_stop_before(s.b.client, at("shard:write_halves"));
    stopped |= far_sim_run_client(s.b.client) == FAR_SIM_STOPPED;
    assert_true(stopped);
    stage_kill(&s, &s.a);
    stage_kill(&s, &s.b);
    uint64_t before = n;
    n += 2;
    while (shard_root_d(true_root(&s)) < 3) {
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
        assert_true(told->inlined ? w[SHARD_I_K] == SHARD_K_FREE : shard_header_owner(w[SHARD_P_HEADER]) == 0);
    }
    stage_close(&s);
}
TOLD_OF_ALL(all_but_one_die_in_the_sweep);


/* The lock of a bucket is held by an insert while the table doubles: who wants to split it waits for that one. */
static void mover_vs_lock_owner_told(const told *told) {
    stage s;
    open_stage(&s, told, 1, "slots=2,l2_slots=1,load=60,afs=1,idle_sweep=off");
    put(&s.a, key_in(&s.a, 0, 0, 0), 10);
    put(&s.a, key_in(&s.a, 0, 1, 0), 11);
    start(&s.a, FAR_OP_INSERT, key_in(&s.a, 0, 1, 1), 12);
    stage_stop_at(&s.a, at("shard:place_in_overflow")); /* with the lock of bucket 0 */
    for (unsigned i = 0; version(&s.b) == 0; i++) {
        assert_true(i < 4);
        put(&s.b, key_in(&s.a, 1, i % 2, i), 20 + i);
    }
    start(&s.b, FAR_OP_PUT, key_in(&s.a, 0, 0, 0), 30);
    start(&s.c, FAR_OP_DELETE, key_in(&s.a, 0, 1, 0), 0);
    far_sim_run_for(s.world, 300000);
    assert_false(s.b.ended);
    assert_int_equal(get_aside(&s, key_in(&s.a, 0, 0, 0)), 10);
    far_sim_resume(s.a.client);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    assert_true(s.a.result == 0 && s.b.result == 0 && s.c.result == 0);
    assert_int_equal(get(&s.c, key_in(&s.a, 0, 1, 0)), 0);
    assert_there_once(&s, key_in(&s.a, 0, 0, 0), 30);
    assert_there_once(&s, key_in(&s.a, 0, 1, 1), 12);
    stage_close(&s);
}
TOLD_OF_ALL(mover_vs_lock_owner);


/* F -> C: a mover died with everything frozen; when grace has come, who takes over still finds what is frozen. */
static void frozen_split_meets_grace_told(const told *told) {
    stage s;
    open_stage(&s, told, 0, GROWING ",idle_sweep=off");
    grow(&s);
    start(&s.a, FAR_OP_PUT, key_with(&s.a, 1, 0), 21);
    stage_stop_at(&s.a, at("shard:replace"));
    start(&s.b, FAR_OP_PUT, key_with(&s.a, 0, 0), 20);
    stage_stop_at(&s.b, at("shard:split_locked"));
    stage_finish(&s.a); /* between lock and freezing: it counts */
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
TOLD_OF(frozen_split_meets_grace, POINTERS);


/* A mover died before it froze anything: who takes over freezes, so that a CAS that goes by the old root is not lost.
 * (take_over without freeze.) */
static void takeover_before_freezing_told(const told *told) {
    stage s;
    open_stage(&s, told, 0, GROWING ",idle_sweep=off");
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
    assert_false(s.a.ended); /* it waits for the split */
    far_sim_resume(s.c.client);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    assert_true(s.a.result == 0 && s.c.result == 0);
    assert_int_equal(get(&s.c, key_with(&s.a, 1, 0)), 21);
    assert_int_equal(get(&s.a, key_with(&s.a, 0, 1)), 22);
    stage_close(&s);
}
TOLD_OF(takeover_before_freezing, POINTERS);


/* Between the image by which a split would carry a change, and the freezing, somebody with the old root changes the
 * same key: the change does not go along. (is_as_read not asked.) */
static void own_change_of_a_changed_bucket_told(const told *told) {
    for (unsigned inserts = 0; inserts < 2; inserts++)
        for (unsigned leaves = 0; leaves < 2; leaves++) {
            stage s;
            open_stage(&s, told, 0, GROWING ",idle_sweep=off");
            put(&s.a, key_with(&s.a, leaves, 0), 10);
            put(&s.a, key_with(&s.a, !leaves, 0), 11);
            key k = key_with(&s.a, leaves, inserts ? 2 : 0);
            start(&s.a, inserts ? FAR_OP_INSERT : FAR_OP_DELETE, k, 21);
            stage_stop_at(&s.a, at(inserts ? "shard:insert" : "shard:replace"));
            put(&s.b, key_with(&s.a, !leaves, 1), 12);
            start(&s.b, inserts ? FAR_OP_INSERT : FAR_OP_UPDATE, k, 22);
            stage_stop_at(&s.b, at("shard:split"));
            bool clash = false;
            if (inserts) { /* another new key before it: then its own first EMPTY word is another one */
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
TOLD_OF(own_change_of_a_changed_bucket, POINTERS);


/* An insert that goes with a split is a CAS on the first EMPTY word of the key's order, as every insert's: when the
 * child is visible, and before that CAS, another client inserts the same key: one of them loses. (put_own taking any
 * EMPTY word.) */
static void own_insert_takes_the_first_empty_told(const told *told) {
    stage s;
    open_stage(&s, told, 0, GROWING ",idle_sweep=off");
    grow(&s);
    key k = key_with(&s.a, 1, 4);
    assert_int_equal(get(&s.b, k), 0); /* it knows where the child will be */
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
TOLD_OF(own_insert_takes_the_first_empty, POINTERS);


/* A split carries a new pair; a reader that found the child unwritten, and so its key in the parent, looks at the value
 * again while the parent is half rewritten: it is not the new pair's. (free_slot without `before`.) */
static void new_pair_takes_no_slot_of_one_that_leaves_told(const told *told) {
    if (told->units == 8)
        return; /* a slot does not tear */
    for (unsigned units = 1; units <= 8; units++) {
        stage s;
        open_stage(&s, told, 0, GROWING ",idle_sweep=off");
        key k = key_with(&s.a, 1, 0);
        put(&s.a, k, 11); /* in the first slot */
        put(&s.a, key_with(&s.a, 0, 0), 10);
        put(&s.b, key_with(&s.a, 0, 1), 12);
        assert_int_equal(get(&s.c, k), 11); /* it knows of the doubling */
        far_addr parent = bucket_addr(&s.b, 0);
        start(&s.c, FAR_OP_GET, k, 0);
        stage_stop_at(&s.c, at("shard:home_read"));
        start(&s.b, FAR_OP_INSERT, key_with(&s.a, 0, 2), 30);
        far_sim_hold *hold = stage_hold(&s.b, write_of(parent));
        uint32_t order[8];
        for (unsigned i = 0; i < units; i++)
            order[i] = i;
        assert_int_equal(far_sim_release_units(hold, order, units), 0);
        far_sim_resume(s.c.client);
        far_sim_run_for(s.world, 50000);
        far_sim_release(hold);
        assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
        assert_int_equal(s.b.result, 0);
        assert_int_equal(given(&s.c), 11);
        assert_int_equal(get(&s.c, key_with(&s.a, 0, 2)), 30);
        stage_close(&s);
    }
}
TOLD_OF(new_pair_takes_no_slot_of_one_that_leaves, INLINE);


/* H7: the table has doubled and b splits; c, with the old root, is about to change a key of that bucket. Either c is
 * pinned since before: then b freezes, however much the epoch moves; or c was asleep: then b does not, and c learns of
 * the doubling when it wakes. (GRACE 0; the epoch hook not learning the roots.) */
static void grace_admission_race_told(const told *told) {
    for (unsigned asleep = 0; asleep < 2; asleep++) {
        stage s;
        open_stage(&s, told, 0, GROWING ",idle_sweep=off");
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
            assert_int_equal(get(&s.b, k), 11); /* it stays awake */
        }
        assert_true(!asleep || version(&s.c) == 0);
        start(&s.b, FAR_OP_PUT, key_with(&s.a, 0, 0), 20);
        stage_stop_at(&s.b, at("shard:split")); /* its image is read */
        if (asleep) {
            start(&s.c, FAR_OP_UPDATE, k, 21);
            far_sim_stop_before(s.c.client, at("shard:replace")); /* where it would be if it knew nothing */
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
TOLD_OF(grace_admission_race, POINTERS);


static void open_again(void *arg) {
    stage_actor *a = arg;
    assert_int_equal(far_index_open(a->session, "map", &a->index), 0);
    a->ended = true;
}


/* H7: c has read the roots, to open the index, and nobody of its handle finds it yet, when the table doubles and an
 * epoch begins. Its first operation is of that epoch: it knows of the doubling. (shard_hear: the split of b undoes the
 * update.) */
static void opened_while_an_epoch_begins_told(const told *told) {
    stage s;
    open_stage(&s, told, 0, GROWING ",idle_sweep=off");
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
            assert_int_equal(get(&s.b, k), 11); /* it stays awake */
        }
        if (n > 0)
            break;
        stage_finish(&s.c);
        start(&s.c, FAR_OP_UPDATE, k, 21);
        far_sim_stop_before(s.c.client, at("shard:replace")); /* where it would be if it knew nothing */
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
TOLD_OF(opened_while_an_epoch_begins, POINTERS);


/* H7, H8: c goes by the old root, and stands before each of its verbs in turn while b doubles the table and splits what
 * it can: its update is neither lost nor seen twice. First c was asleep, so that it wakes in the middle; then it was
 * not. */
static void doubling_at_every_verb_of_another_told(const told *told) {
    for (unsigned asleep = 0; asleep < 2; asleep++)
        for (unsigned verb = 1, more = 1; more; verb++) {
            stage s;
            open_stage(&s, told, 0, GROWING);
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
            far_sim_run_for(s.world, 50000); /* it splits, unless that waits for c */
            far_sim_resume(s.c.client);
            assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
            assert_true(s.b.result == 0 && s.c.result == 0);
            assert_there_once(&s, key_with(&s.a, 1, 0), 21);
            assert_there_once(&s, key_with(&s.a, 0, 0), 20);
            stage_close(&s);
        }
}
TOLD_OF(doubling_at_every_verb_of_another, POINTERS);


/* H6: one thread has an update under way, whose READ is late, and doubles the table meanwhile by its other operations:
 * none waits for it. */

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
    assert_int_equal(far_submit(t->a->session, list, 1), 1); /* its verbs are posted when the session runs */
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


static void coroutine_same_thread_grow_told(const told *told) {
    stage s;
    thread t = {.a = &s.b};
    open_stage(&s, told, 0, GROWING);
    put(&s.a, key_with(&s.a, 1, 0), 11);
    t.first = key_with(&s.a, 1, 0);
    for (unsigned i = 0; i < 12; i++)
        t.more[i] = key_with(&s.a, i % 2, 1 + i / 2);
    assert_int_equal(get(&s.b, t.first), 11);
    s.b.client = far_sim_start(s.b.pool->fabric, "thread", work_on, &t);
    s.b.ended = false;
    /* The completion, not the effect: READs of one session keep their order. */
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
TOLD_OF(coroutine_same_thread_grow, POINTERS);


int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unlock_prefix),
        cmocka_unit_test(crash_parent_child_order),
        cmocka_unit_test(zero_child_even_version),
        cmocka_unit_test(second_grow_before_sweep),
        cmocka_unit_test(all_but_one_die_in_the_sweep),
        cmocka_unit_test(mover_vs_lock_owner),
        cmocka_unit_test(frozen_split_meets_grace),
        cmocka_unit_test(takeover_before_freezing),
        cmocka_unit_test(own_change_of_a_changed_bucket),
        cmocka_unit_test(own_insert_takes_the_first_empty),
        cmocka_unit_test(new_pair_takes_no_slot_of_one_that_leaves),
        cmocka_unit_test(grace_admission_race),
        cmocka_unit_test(opened_while_an_epoch_begins),
        cmocka_unit_test(doubling_at_every_verb_of_another),
        cmocka_unit_test(coroutine_same_thread_grow),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
