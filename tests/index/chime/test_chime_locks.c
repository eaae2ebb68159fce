/* CHIME, lock handover inside one compute node: one task takes a lock in far memory, and the other tasks wait for its
 * latch without verbs and then get the lock by a handover, even if the session that hands it over is lost.
 *
 * Clients A (a), B (b) and C (c) are three compute nodes. D (d) is a further session of A's compute node. */
#include "chime_sessions.h"
#include "test.h"


/* Proves that D, which waits for the latch that A holds, gets the lock without an atomic of its own. Fails without
 * chime_choose_next_owner (write_lock.c). */
TEST(the_lock_is_handed_over) {
    static const far_op_kind does[] = {FAR_OP_UPDATE, FAR_OP_INSERT, FAR_OP_DELETE};
    for (unsigned i = 0; i < 4; i++)
        for (unsigned k = 0; k < 3; k++) {
            open_with_d(SMALL, fabrics[i]);
            insert_keys(a, 6);
            assert_true(key_has_value(&d, nth_key(3), 3));
            uint64_t before = atomics_of(&d);
            run_until_point(a, "chime:locked", does[k], does[k] == FAR_OP_INSERT ? nth_key(8) : nth_key(2), 70);
            start_operation(&d, FAR_OP_INSERT, nth_key(7), 71);
            far_sim_run_for(s.world, 100000);
            assert_false(d.ended);
            stage_finish(a);
            stage_finish(&d);
            assert_int_equal(a->result, 0);
            assert_int_equal(d.result, 0);
            assert_int_equal(atomics_of(&d), before);
            assert_true(does[k] == FAR_OP_DELETE
                            ? key_is_absent(c, nth_key(2))
                            : key_has_value(c, does[k] == FAR_OP_INSERT ? nth_key(8) : nth_key(2), 70));
            assert_true(key_has_value(c, nth_key(7), 71));
            assert_int_equal(update(b, nth_key(3), 72), 0); /* succeeds because the lock is free in the end */
            close_with_d();
        }
}


/* A loses its session during the WRITE that hands the lock over to D. With `done`, that WRITE took effect. Proves that
 * D gets the lock in both cases; if the WRITE did not take effect, D gets it after A's failure is known and the leaf is
 * repaired. Hangs without resolve_uncertain_handover (write_lock.c). */
TEST(a_session_is_lost_during_a_handover) {
    for (unsigned i = 0; i < 4; i++)
        for (unsigned done = 0; done < 2; done++) {
            open_with_d(SMALL, fabrics[i]);
            insert_keys(a, 6);
            chime_ptr leaf = find_leaf(nth_key(2), NULL);
            far_addr lock = chime_tail_addr(chime_state_of(a->index), leaf, CHIME_TAIL_L);
            far_sim_match unlock = {.kind = FAR_SIM_WRITE, .from = lock, .to = lock + 8};
            run_until_point(a, "chime:update", FAR_OP_UPDATE, nth_key(2), 70);
            start_operation(&d, FAR_OP_UPDATE, nth_key(3), 71);
            far_sim_run_for(s.world, 100000);
            assert_false(d.ended);
            far_sim_hold *hold =
                done ? far_sim_hold_completion(a->client, unlock) : far_sim_hold_effect(a->client, unlock);
            far_sim_resume(a->client);
            far_sim_run_client(a->client);
            assert_true(far_sim_reached(hold));
            uint64_t word = *memory_of(lock);
            assert_true(chime_lock_is_held(word));
            assert_int_equal(far_owner_client(chime_lock_owner(word)) == d.session->id, done);
            if (done)
                far_sim_lose(a->session->conn);
            else /* the WRITE that A has posted never takes effect */
                far_sim_declare_dead(s.world, a->session->id, a->session->generation);
            far_sim_release(hold);
            far_sim_run_for(s.world, 300000);
            assert_true(a->ended && a->result < 0);
            if (done)
                assert_true(d.ended);
            far_session_close(a->session);
            assert_int_equal(far_session_open(a->pool, &a->session), 0);
            stage_finish(&d);
            assert_int_equal(d.result, 0);
            if (!done) /* D took the lock over by a repair, so it never worked under A's lock */
                assert_int_equal(chime_state_of(d.index)->counts.repairs, 1);
            assert_true(key_has_value(c, nth_key(3), 71));
            assert_true(key_has_value(c, nth_key(2), 70) || (!done && key_has_value(c, nth_key(2), 2)));
            assert_int_equal(update(b, nth_key(2), 72), 0);
            close_with_d();
        }
}


/* Many tasks of A's compute node and a few of B's update one leaf. Proves that all tasks end, and need fewer atomics
 * than operations. */
TEST(many_tasks_share_a_lock) {
    enum { CROWD = 24 };
    static stage_actor crowd[CROWD];
    uint64_t atomics = 0;
    open_chime(SMALL, ONE);
    insert_keys(a, 6);
    memset(crowd, 0, sizeof(crowd));
    for (unsigned i = 0; i < CROWD; i++) {
        crowd[i].pool = i % 6 ? a->pool : b->pool;
        crowd[i].index = i % 6 ? a->index : b->index;
        assert_int_equal(far_session_open(crowd[i].pool, &crowd[i].session), 0);
        atomics -= atomics_of(&crowd[i]);
        start_operation(&crowd[i], FAR_OP_UPDATE, nth_key(i % 6), 100 + i);
    }
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    for (unsigned i = 0; i < CROWD; i++) {
        assert_true(crowd[i].ended && crowd[i].result == 0);
        atomics += atomics_of(&crowd[i]);
        far_session_close(crowd[i].session);
    }
    print_message("%u operations, %u atomics\n", CROWD, (unsigned)atomics);
    assert_true(atomics < CROWD);
    stage_close(&s);
}


/* A holds a lock for `ns` nanoseconds, and the lock word announces `behind` planned handovers. Returns how many times B
 * tries to take the lock meanwhile. Atomics take twice as long as the fabric's base round trip. */
static uint64_t count_lock_attempts(far_op_kind does, unsigned behind, uint64_t ns) {
    uint64_t *tail;
    open_chime(SMALL, ONE ",rtt_atomic=5us");
    insert_keys(a, 6);
    assert_true(key_has_value(b, nth_key(3), 3));
    uint64_t before = atomics_of(b);
    run_until_point(a, "chime:locked", FAR_OP_UPDATE, nth_key(2), 70);
    find_leaf(nth_key(2), &tail);
    tail[CHIME_TAIL_L] |= (uint64_t)behind << 57;
    start_operation(b, does, does == FAR_OP_INSERT ? nth_key(8) : nth_key(3), 71);
    far_sim_run_for(s.world, ns);
    assert_false(b->ended);
    stage_finish(a);
    stage_finish(b);
    uint64_t attempts = atomics_of(b) - before;
    assert_int_equal(a->result, 0);
    assert_int_equal(b->result, 0);
    stage_close(&s);
    return attempts;
}


/* Proves that an insert which finds a lock held waits longer than an update before its first further attempts, and
 * later tries at shorter intervals. A load into an empty index by many clients depends on this. Fails if
 * round_trips_to_wait (write_lock.c) treats inserts like updates, or lets an insert wait longer with each attempt. */
TEST(an_insert_waits_longer_first_then_less) {
    enum { SHORT = 45000, LONG = 240000, RUNS = 4 };
    uint64_t updates = 0, inserts = 0, more_updates = 0, more_inserts = 0;
    for (unsigned i = 0; i < RUNS; i++) { /* the waits are random, so the sums of several runs are compared */
        updates += count_lock_attempts(FAR_OP_UPDATE, 0, SHORT + i * 1000);
        inserts += count_lock_attempts(FAR_OP_INSERT, 0, SHORT + i * 1000);
        more_updates += count_lock_attempts(FAR_OP_UPDATE, 0, LONG + i * 1000);
        more_inserts += count_lock_attempts(FAR_OP_INSERT, 0, LONG + i * 1000);
    }
    more_updates -= updates;
    more_inserts -= inserts;
    print_message("attempts at a lock: %u, then %u by an update, %u, then %u by an insert\n", (unsigned)updates,
                  (unsigned)more_updates, (unsigned)inserts, (unsigned)more_inserts);
    assert_true(inserts + RUNS <= updates && more_inserts >= more_updates);
}


/* Proves that a client waits for the planned handovers that the lock word announces before it tries again. Fails
 * without chime_lock_handovers in round_trips_to_wait (write_lock.c). */
TEST(planned_handovers_are_waited_for) {
    uint64_t alone = count_lock_attempts(FAR_OP_UPDATE, 0, 120000),
             queue = count_lock_attempts(FAR_OP_UPDATE, 30, 120000);
    print_message("attempts at a lock: %u, %u with 30 behind its holder\n", (unsigned)alone, (unsigned)queue);
    assert_true(alone >= 5 && queue <= 3);
}


/* Proves that the lock word contains the number of planned handovers, that is, of the tasks of the owner's compute node
 * that wait for the lock, both if the lock was handed over and if the owner has taken it with its own CAS. Fails if
 * chime_choose_next_owner or try_far_lock (write_lock.c) leaves that number out. */
TEST(the_lock_word_counts_planned_handovers) {
    static stage_actor more[2];
    open_with_d(SMALL ",patience=64", ONE); /* A keeps the latch of the leaf for that many attempts */
    insert_keys(a, 6);
    uint64_t *tail;
    find_leaf(nth_key(2), &tail);
    run_until_point(a, "chime:locked", FAR_OP_UPDATE, nth_key(2), 70);
    assert_int_equal(chime_lock_handovers(tail[CHIME_TAIL_L]), 0);
    start_operation(&d, FAR_OP_UPDATE, nth_key(3), 71);
    memset(more, 0, sizeof(more));
    for (unsigned i = 0; i < 2; i++) {
        more[i].pool = a->pool;
        more[i].index = a->index;
        assert_int_equal(far_session_open(a->pool, &more[i].session), 0);
        start_operation(&more[i], FAR_OP_UPDATE, nth_key(4 + i), 72);
    }
    far_sim_run_for(s.world, 100000);
    stage_finish(a); /* run only A, so that the next owner of the lock does not run yet */
    assert_true(chime_lock_is_held(tail[CHIME_TAIL_L]));
    assert_int_equal(chime_lock_handovers(tail[CHIME_TAIL_L]), 2);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    assert_int_equal(d.result, 0);

    /* B holds the lock; A waits for it, and three tasks wait for A's latch */
    run_until_point(b, "chime:locked", FAR_OP_UPDATE, nth_key(2), 80);
    start_operation(a, FAR_OP_UPDATE, nth_key(2), 81);
    far_sim_run_for(s.world, 20000);
    start_operation(&d, FAR_OP_UPDATE, nth_key(3), 82);
    for (unsigned i = 0; i < 2; i++)
        start_operation(&more[i], FAR_OP_UPDATE, nth_key(4 + i), 82);
    far_sim_run_for(s.world, 20000);
    stage_finish(b);
    stage_stop_at(a, (far_sim_match){.point = "chime:locked"});
    assert_int_equal(chime_lock_handovers(tail[CHIME_TAIL_L]), 3);
    far_sim_resume(a->client);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    assert_true(a->result == 0 && d.result == 0);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(more[i].result, 0);
        far_session_close(more[i].session);
    }
    close_with_d();
}


/* Stops A while it holds the lock, before A writes its change. D waits for the latch with an operation. */
static void stop_a_with_d_waiting(far_op_kind does, uint64_t key, uint64_t value, far_op_kind of_d, uint64_t key_of_d) {
    run_until_point(a, "chime:locked", does, key, value);
    start_operation(&d, of_d, key_of_d, 71);
    far_sim_run_for(s.world, 100000);
    assert_false(d.ended);
}


/* Proves that a task for which other tasks wait READs the whole leaf and passes its image on together with the lock, so
 * that D needs one WRITE and no READ. Fails without HANDOVER_IMAGE (write_lock.c). */
TEST(the_leaf_image_is_handed_over) {
    /* The loop leaves out the fabric that takes the lock and READs in one batch, because there A READs before D waits.
     */
    for (unsigned i = 0; i < 3; i++) {
        open_with_d(SMALL, fabrics[i]);
        insert_keys(a, 6);
        assert_true(key_has_value(&d, nth_key(3), 3));
        far_stats before = stats_of(&d);
        stop_a_with_d_waiting(FAR_OP_UPDATE, nth_key(2), 70, FAR_OP_UPDATE, nth_key(3));
        stage_finish(a);
        stage_finish(&d);
        far_stats after = stats_of(&d);
        assert_true(a->result == 0 && d.result == 0);
        assert_int_equal(after.reads, before.reads);
        assert_int_equal(after.round_trips - before.round_trips, 1);
        assert_true(key_has_value(c, nth_key(2), 70) && key_has_value(c, nth_key(3), 71));
        assert_int_equal(update(b, nth_key(3), 72), 0);
        close_with_d();
    }
}


/* D gets the lock of a leaf and A's image of it by a handover, and splits the leaf from this image. Proves that the
 * image contains A's change, because the change would be lost otherwise. Fails if update_item, remove_item or
 * commit_insert (write.c) do not change the image. */
TEST(a_handed_over_leaf_is_split) {
    static const far_op_kind does[] = {FAR_OP_UPDATE, FAR_OP_DELETE, FAR_OP_INSERT};
    for (unsigned i = 0; i < 4; i++)
        for (unsigned k = 0; k < 3; k++) {
            open_with_d(SMALL ",crowd=off", fabrics[i]);
            uint64_t crowded = 0, mine = key_with_home_slot(5, 1), full[4];
            for (unsigned n = 0; n < 4; n++) /* These keys fill the neighbourhood of home slot 8. */
                assert_int_equal(insert(a, crowded = full[n] = key_with_home_slot(8, crowded + 1), n), 0);
            if (does[k] != FAR_OP_INSERT)
                assert_int_equal(insert(a, mine, 6), 0);
            for (unsigned n = 0; n < 3; n++) /* These keys make every hop impossible. */
                assert_int_equal(insert(a, key_with_home_slot(0, crowded + 1 + 1000 * n), 9), 0);
            assert_true(key_has_value(&d, full[0], 0));
            stop_a_with_d_waiting(does[k], mine, 70, FAR_OP_INSERT, key_with_home_slot(8, crowded + 1));
            stage_finish(a);
            stage_finish(&d);
            assert_true(a->result == 0 && d.result == 0);
            assert_true(does[k] == FAR_OP_DELETE ? key_is_absent(c, mine) : key_has_value(c, mine, 70));
            for (unsigned n = 0; n < 4; n++)
                assert_true(key_has_value(c, full[n], n));
            assert_true(chime_state_of(a->index)->counts.splits + chime_state_of(a->index)->counts.hops > 0);
            close_with_d();
        }
}


/* The value of D's write is stored in a pair block. Proves that the WRITE of the pair block is complete before a slot
 * refers to the pair block, also if D gets the lock by a handover. Steps: B splits the leaf; D adds the WRITE of its
 * pair block to a batch and waits; A hands the left leaf over to D; D moves right. Fails without the wait in
 * change_locked_leaf (write.c), because D's WRITE was then not even posted when D stores the slot. */
TEST(a_block_is_written_before_a_move_right) {
    open_with_d("span=12,hop=4,key_size=8", ONE);
    insert_keys(a, 3);
    for (unsigned n = 3; chime_state_of(b->index)->counts.splits == 0; n++)
        assert_int_equal(insert(b, nth_key(n), n), 0);
    run_background_work(b);
    stop_a_with_d_waiting(FAR_OP_UPDATE, nth_key(0), 70, FAR_OP_INSERT, nth_key(30));
    stage_finish(a);
    stage_finish(&d);
    assert_true(a->result == 0 && d.result == 0);
    assert_true(key_has_value(c, nth_key(0), 70) && key_has_value(c, nth_key(30), 71));
    close_with_d();
}


static void check_waiter_of_split(const char *options, unsigned writes) {
    open_with_d(options, ONE);
    for (unsigned n = 0; chime_state_of(a->index)->counts.splits == 0 && n < 40; n++) {
        if (n < 4) {
            assert_int_equal(insert(a, nth_key(n), n), 0);
            continue;
        }
        assert_true(key_has_value(&d, nth_key(0), 0));
        uint64_t before = atomics_of(&d), written = stats_of(&d).writes;
        /* the largest key goes to the right half */
        stop_a_with_d_waiting(FAR_OP_INSERT, nth_key(n), n, FAR_OP_UPDATE, nth_key(n));
        stage_finish(a);
        stage_finish(&d);
        assert_true(a->result == 0 && d.result == 0 && key_has_value(c, nth_key(n), 71));
        if (chime_state_of(a->index)->counts.splits) {
            assert_int_equal(atomics_of(&d) - before, 1);
            assert_int_equal(stats_of(&d).writes - written, writes);
        }
    }
    assert_int_equal(chime_state_of(a->index)->counts.splits, 1);
    close_with_d();
}


/* Proves that D, which waits for a leaf that A splits, continues directly at the right half: it takes one lock and
 * READs nothing of the left half. If values are in pair blocks, D's WRITE of its pair block was not posted yet; it is
 * dropped, and a new pair block is written in the batch that takes the lock of the right half. Fails without
 * chime_follow_recent_splits (find.c). With pair blocks, the test also fails without far_discard_batch in change_leaf
 * (write.c), or if chime_renew_pin does not free the first pair block. */
TEST(a_waiter_follows_a_split) {
    check_waiter_of_split(SMALL, 2);
    check_waiter_of_split("span=12,hop=4,key_size=8", 3);
}


/* A handle remembers the splits that its tasks have made. Proves that after A's compute node has split a leaf and
 * merged the halves again, an operation follows the remembered split at most once. Fails if a leaf that was found
 * through its absorber field follows remembered splits (route_still_leads_here, write.c). */
TEST(a_merged_split_is_not_followed) {
    unsigned count = 0;
    open_chime(SMALL, ONE);
    while (chime_state_of(a->index)->counts.splits == 0) {
        assert_int_equal(insert(a, nth_key(count), count), 0);
        count++;
    }
    for (unsigned n = 1; n < count; n++)
        assert_int_equal(delete (a, nth_key(n)), 0);
    while (chime_state_of(a->index)->counts.merges == 0)
        (void)key_is_absent(a, 1);
    uint64_t before = stats_of(a).round_trips;
    for (unsigned n = 1; n < 4; n++)
        assert_int_equal(insert(a, nth_key(count + n), n), 0);
    print_message("%u round trips\n", (unsigned)(stats_of(a).round_trips - before));
    assert_true(stats_of(a).round_trips - before <= 24);
    for (unsigned n = 1; n < 4; n++)
        assert_true(key_has_value(c, nth_key(count + n), n));
    stage_close(&s);
}


/* Proves that the only leaf is split before it is full if many clients insert into it. Fails without leaf_is_contended
 * (write.c). */
TEST(a_contended_leaf_is_split_early) {
    enum { CROWD = 40 };
    static stage_actor crowd[CROWD];
    for (unsigned on = 0; on < 2; on++) {
        open_chime(on ? "key_size=8,value_size=8" : "key_size=8,value_size=8,crowd=off", ONE);
        memset(crowd, 0, sizeof(crowd));
        for (unsigned i = 0; i < CROWD; i++) {
            crowd[i].pool = i % 2 ? a->pool : b->pool;
            crowd[i].index = i % 2 ? a->index : b->index;
            assert_int_equal(far_session_open(crowd[i].pool, &crowd[i].session), 0);
            start_operation(&crowd[i], FAR_OP_INSERT, nth_key(i * 7 % CROWD), i * 7 % CROWD);
        }
        assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
        for (unsigned i = 0; i < CROWD; i++) {
            assert_true(crowd[i].ended && crowd[i].result == 0);
            far_session_close(crowd[i].session);
        }
        uint64_t early = chime_state_of(a->index)->counts.early_splits + chime_state_of(b->index)->counts.early_splits;
        assert_true(on ? early >= 1 : early == 0);
        assert_keys_present(c, 0, CROWD);
        stage_close(&s);
    }
}


/* A hands its lock over to D and loses its session. A's last WRITE, which contains changed lines and the lock word that
 * names D, takes effect while D READs the leaf. Proves that D notices that the lines in its image may be older than the
 * lock word. Fails without the second READ in resolve_uncertain_handover (write_lock.c): D's occupancy map would lack
 * the slot that A filled. */
TEST(a_lost_session_writes_late) {
    unsigned handed_over = 0;
    for (unsigned seed = 1; seed <= 12; seed++) {
        char sim[64];
        snprintf(sim, sizeof(sim), "memory_nodes=1,seed=%u", seed);
        open_with_d(SMALL, sim);
        insert_keys(a, 6);
        assert_true(key_has_value(&d, nth_key(3), 3));
        chime_ptr leaf = find_leaf(nth_key(8), NULL);
        far_addr at = chime_ptr_addr(leaf), lock = chime_tail_addr(chime_state_of(a->index), leaf, CHIME_TAIL_L);
        start_operation(a, FAR_OP_INSERT, nth_key(8), 70);
        far_sim_stop_before(a->client, (far_sim_match){.point = "chime:insert"});
        /* With this seed A's key needs a split, which is another case, so the seed is skipped. */
        if (far_sim_run_client(a->client) != FAR_SIM_STOPPED) {
            close_with_d();
            continue;
        }
        start_operation(&d, FAR_OP_UPDATE, nth_key(3), 71);
        far_sim_run_for(s.world, 100000);
        far_sim_hold *last =
            far_sim_hold_effect(a->client, (far_sim_match){.kind = FAR_SIM_WRITE, .from = at, .to = lock + 8});
        far_sim_resume(a->client);
        far_sim_run_client(a->client);
        assert_true(far_sim_reached(last));
        far_sim_hold *look =
            far_sim_hold_effect(d.client, (far_sim_match){.kind = FAR_SIM_READ, .from = at, .to = at + 64});
        far_sim_lose(a->session->conn);
        for (unsigned i = 0; i < 100 && !far_sim_reached(look); i++)
            far_sim_run_for(s.world, 100);
        uint32_t units[64], count = far_sim_reached(look) ? far_sim_hold_units(look) : 0;
        for (uint32_t u = 0; u + 1 < count; u++)
            units[u] = u;
        if (count > 1)
            far_sim_release_units(look, units, count - 1);
        far_sim_release(last);
        far_sim_run_for(s.world, 100000);
        uint64_t word = *memory_of(lock);
        handed_over +=
            count > 1 && chime_lock_is_held(word) && far_owner_client(chime_lock_owner(word)) == d.session->id;
        far_sim_release(look);
        far_sim_run_for(s.world, 3000000);
        stage_finish(&d);
        assert_int_equal(d.result, 0);
        far_session_close(a->session);
        assert_int_equal(far_session_open(a->pool, &a->session), 0);
        assert_true(key_has_value(c, nth_key(3), 71));
        close_with_d();
    }
    assert_true(handed_over > 0);
}
