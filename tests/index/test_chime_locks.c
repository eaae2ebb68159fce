/* CHIME: locks inside of one compute node. One task asks for a lock in far memory, the others wait for it without
 * verbs and get it by name, whatever happens to who hands it over. */
#include "chime_crew.h"


/* d waits behind a and never asks for the lock itself. Fails without chime_choose_heir. */
static void the_lock_is_handed_over(void **state) {
    (void)state;
    static const far_op_kind does[] = {FAR_OP_UPDATE, FAR_OP_INSERT, FAR_OP_DELETE};
    for (unsigned i = 0; i < 4; i++)
        for (unsigned k = 0; k < 3; k++) {
            up_with_d(SMALL, sims[i]);
            fill(a, 6);
            assert_true(reads(&d, nth(3), 3));
            uint64_t before = atomics_of(&d);
            stand(a, "chime:locked", does[k], does[k] == FAR_OP_INSERT ? nth(8) : nth(2), 70);
            begin(&d, FAR_OP_INSERT, nth(7), 71);
            far_sim_run_for(s.world, 100000);
            assert_false(d.ended);
            stage_finish(a);
            stage_finish(&d);
            assert_int_equal(a->result, 0);
            assert_int_equal(d.result, 0);
            assert_int_equal(atomics_of(&d), before);
            assert_true(does[k] == FAR_OP_DELETE ? misses(c, nth(2))
                                                 : reads(c, does[k] == FAR_OP_INSERT ? nth(8) : nth(2), 70));
            assert_true(reads(c, nth(7), 71));
            assert_int_equal(update(b, nth(3), 72), 0); /* it is free in the end */
            down_with_d();
        }
}


/* The giver loses its connection over the WRITE that names its heir, which was done or not. Either way d gets the lock,
 * as soon as the giver is known to be dead where that matters. Hangs without settle_gift. */
static void the_giver_is_lost(void **state) {
    (void)state;
    for (unsigned i = 0; i < 4; i++)
        for (unsigned done = 0; done < 2; done++) {
            up_with_d(SMALL, sims[i]);
            fill(a, 6);
            chime_ptr leaf = leaf_of(nth(2), NULL);
            far_addr lock = chime_tail_addr(chime_state_of(a->index), leaf, CHIME_TAIL_L);
            far_sim_match unlock = {.kind = FAR_SIM_WRITE, .from = lock, .to = lock + 8};
            stand(a, "chime:update", FAR_OP_UPDATE, nth(2), 70);
            begin(&d, FAR_OP_UPDATE, nth(3), 71);
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
            else /* what it posted is never done */
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
            if (!done) /* nobody works under the lock of another */
                assert_int_equal(chime_state_of(d.index)->counts.repairs, 1);
            assert_true(reads(c, nth(3), 71));
            assert_true(reads(c, nth(2), 70) || (!done && reads(c, nth(2), 2)));
            assert_int_equal(update(b, nth(2), 72), 0);
            down_with_d();
        }
}


/* Many tasks of one compute node and a few of another on one leaf: nobody waits for ever, and there are fewer attempts
 * than operations. */
static void a_crowd_shares_a_lock(void **state) {
    (void)state;
    enum { CROWD = 24 };
    static stage_actor crowd[CROWD];
    uint64_t atomics = 0;
    up(SMALL, ONE);
    fill(a, 6);
    memset(crowd, 0, sizeof(crowd));
    for (unsigned i = 0; i < CROWD; i++) {
        crowd[i].pool = i % 6 ? a->pool : b->pool;
        crowd[i].index = i % 6 ? a->index : b->index;
        assert_int_equal(far_session_open(crowd[i].pool, &crowd[i].session), 0);
        atomics -= atomics_of(&crowd[i]);
        begin(&crowd[i], FAR_OP_UPDATE, nth(i % 6), 100 + i);
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


/* Attempts of b at a lock that a holds for so long, and will hand on to so many, where atomics take twice as long as on a
 * network at rest. */
static uint64_t attempts_of(far_op_kind does, unsigned behind, uint64_t ns) {
    uint64_t *tail;
    up(SMALL, ONE ",rtt_atomic=5us");
    fill(a, 6);
    assert_true(reads(b, nth(3), 3));
    uint64_t before = atomics_of(b);
    stand(a, "chime:locked", FAR_OP_UPDATE, nth(2), 70);
    leaf_of(nth(2), &tail);
    tail[CHIME_TAIL_L] |= (uint64_t)behind << 57;
    begin(b, does, does == FAR_OP_INSERT ? nth(8) : nth(3), 71);
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


/* Where much is going on, who inserts waits longer for a lock at first than who updates, and asks the sooner the longer it
 * has waited: that is what a load from empty by many clients is made of. Fails when turns_to_wait makes no difference
 * between them, or lets an insert sleep longer each time. */
static void who_inserts_waits_then_asks_often(void **state) {
    (void)state;
    enum { SHORT = 45000, LONG = 240000 };
    uint64_t updates = attempts_of(FAR_OP_UPDATE, 0, SHORT), inserts = attempts_of(FAR_OP_INSERT, 0, SHORT),
             more_updates = attempts_of(FAR_OP_UPDATE, 0, LONG) - updates,
             more_inserts = attempts_of(FAR_OP_INSERT, 0, LONG) - inserts;
    print_message("attempts at a lock: %u, then %u by an update, %u, then %u by an insert\n", (unsigned)updates,
                  (unsigned)more_updates, (unsigned)inserts, (unsigned)more_inserts);
    assert_true(inserts + 2 <= updates && more_inserts >= more_updates);
}


/* A lock that will be handed on is asked for again when that is over. Fails without chime_lock_behind in turns_to_wait. */
static void a_queue_is_waited_for(void **state) {
    (void)state;
    uint64_t alone = attempts_of(FAR_OP_UPDATE, 0, 120000), queue = attempts_of(FAR_OP_UPDATE, 30, 120000);
    print_message("attempts at a lock: %u, %u with 30 behind its holder\n", (unsigned)alone, (unsigned)queue);
    assert_true(alone >= 5 && queue <= 3);
}


/* The word that names an heir tells how many come after it. Fails when chime_choose_heir or lock_leaf do not say. */
static void the_lock_tells_who_is_behind(void **state) {
    (void)state;
    static stage_actor more[2];
    up_with_d(SMALL, ONE);
    fill(a, 6);
    uint64_t *tail;
    leaf_of(nth(2), &tail);
    stand(a, "chime:locked", FAR_OP_UPDATE, nth(2), 70);
    assert_int_equal(chime_lock_behind(tail[CHIME_TAIL_L]), 0);
    begin(&d, FAR_OP_UPDATE, nth(3), 71);
    memset(more, 0, sizeof(more));
    for (unsigned i = 0; i < 2; i++) {
        more[i].pool = a->pool;
        more[i].index = a->index;
        assert_int_equal(far_session_open(a->pool, &more[i].session), 0);
        begin(&more[i], FAR_OP_UPDATE, nth(4 + i), 72);
    }
    far_sim_run_for(s.world, 100000);
    stage_finish(a); /* alone: its heir stands still */
    assert_true(chime_lock_is_held(tail[CHIME_TAIL_L]));
    assert_int_equal(chime_lock_behind(tail[CHIME_TAIL_L]), 2);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    assert_int_equal(d.result, 0);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(more[i].result, 0);
        far_session_close(more[i].session);
    }
    down_with_d();
}


/* a stands under the lock, with its change to come; d waits behind it, and another of the same compute node. */
static void stand_with_d(far_op_kind does, uint64_t key, uint64_t value, far_op_kind of_d, uint64_t key_of_d) {
    stand(a, "chime:locked", does, key, value);
    begin(&d, of_d, key_of_d, 71);
    far_sim_run_for(s.world, 100000);
    assert_false(d.ended);
}


/* Whoever has others behind it READs the whole leaf, and they know it then: a WRITE is all that d does. Fails without
 * GIFT_VIEW. */
static void what_is_known_is_handed_over(void **state) {
    (void)state;
    for (unsigned i = 0; i < 3; i++) { /* where the READ comes with the lock a has nobody behind it yet */
        up_with_d(SMALL, sims[i]);
        fill(a, 6);
        assert_true(reads(&d, nth(3), 3));
        far_stats before = stats_of(&d);
        stand_with_d(FAR_OP_UPDATE, nth(2), 70, FAR_OP_UPDATE, nth(3));
        stage_finish(a);
        stage_finish(&d);
        far_stats after = stats_of(&d);
        assert_true(a->result == 0 && d.result == 0);
        assert_int_equal(after.reads, before.reads);
        assert_int_equal(after.round_trips - before.round_trips, 1);
        assert_true(reads(c, nth(2), 70) && reads(c, nth(3), 71));
        assert_int_equal(update(b, nth(3), 72), 0);
        down_with_d();
    }
}


/* d splits the leaf by what it was told of it: the change of who told it must be in that. Fails when update_item,
 * remove_item or commit_insert leave their image as it was. */
static void a_leaf_is_split_as_it_was_handed_over(void **state) {
    (void)state;
    static const far_op_kind does[] = {FAR_OP_UPDATE, FAR_OP_DELETE, FAR_OP_INSERT};
    for (unsigned i = 0; i < 4; i++)
        for (unsigned k = 0; k < 3; k++) {
            up_with_d(SMALL ",crowd=off", sims[i]);
            uint64_t crowded = 0, mine = key_at(5, 1), full[4];
            for (unsigned n = 0; n < 4; n++) /* a full neighbourhood */
                assert_int_equal(insert(a, crowded = full[n] = key_at(8, crowded + 1), n), 0);
            if (does[k] != FAR_OP_INSERT)
                assert_int_equal(insert(a, mine, 6), 0);
            for (unsigned n = 0; n < 3; n++) /* nor can it hop */
                assert_int_equal(insert(a, key_at(0, crowded + 1 + 1000 * n), 9), 0);
            assert_true(reads(&d, full[0], 0));
            stand_with_d(does[k], mine, 70, FAR_OP_INSERT, key_at(8, crowded + 1));
            stage_finish(a);
            stage_finish(&d);
            assert_true(a->result == 0 && d.result == 0);
            assert_true(does[k] == FAR_OP_DELETE ? misses(c, mine) : reads(c, mine, 70));
            for (unsigned n = 0; n < 4; n++)
                assert_true(reads(c, full[n], n));
            assert_true(chime_state_of(a->index)->counts.splits + chime_state_of(a->index)->counts.hops > 0);
            down_with_d();
        }
}


/* A pair in a block of its own, whose WRITE has been put but not posted when d is told by a of a split that neither knew
 * of: the block must be there when d goes right. Fails without the wait in locked. */
static void a_block_goes_along_to_the_right(void **state) {
    (void)state;
    up_with_d("span=12,hop=4,key_size=8", ONE);
    fill(a, 3);
    for (unsigned n = 3; chime_state_of(b->index)->counts.splits == 0; n++)
        assert_int_equal(insert(b, nth(n), n), 0);
    settle(b);
    stand_with_d(FAR_OP_UPDATE, nth(0), 70, FAR_OP_INSERT, nth(30));
    stage_finish(a);
    stage_finish(&d);
    assert_true(a->result == 0 && d.result == 0);
    assert_true(reads(c, nth(0), 70) && reads(c, nth(30), 71));
    down_with_d();
}


static void hear_of_a_split(const char *options, unsigned writes) {
    up_with_d(options, ONE);
    for (unsigned n = 0; chime_state_of(a->index)->counts.splits == 0 && n < 40; n++) {
        if (n < 4) {
            assert_int_equal(insert(a, nth(n), n), 0);
            continue;
        }
        assert_true(reads(&d, nth(0), 0));
        uint64_t before = atomics_of(&d), written = stats_of(&d).writes;
        stand_with_d(FAR_OP_INSERT, nth(n), n, FAR_OP_UPDATE, nth(n)); /* the largest key goes right */
        stage_finish(a);
        stage_finish(&d);
        assert_true(a->result == 0 && d.result == 0 && reads(c, nth(n), 71));
        if (chime_state_of(a->index)->counts.splits) {
            assert_int_equal(atomics_of(&d) - before, 1);
            assert_int_equal(stats_of(&d).writes - written, writes);
        }
    }
    assert_int_equal(chime_state_of(a->index)->counts.splits, 1);
    down_with_d();
}


/* d waits for a leaf that a splits. It goes straight to the other half: one lock, and nothing of the first half is
 * READ. Its block, whose WRITE was put for the first half and not posted, goes along. Fails without
 * chime_follow_splits; with blocks, without the far_forget in try_leaf, or when rest keeps the block. */
static void who_waits_hears_of_a_split(void **state) {
    (void)state;
    hear_of_a_split(SMALL, 2);
    hear_of_a_split("span=12,hop=4,key_size=8", 3);
}


/* The other half of a split is taken in again. Whoever was told of the split is sent there once, not until that is
 * forgotten. Fails when a leaf that was found by aux follows splits. */
static void a_split_is_taken_back(void **state) {
    (void)state;
    unsigned count = 0;
    up(SMALL, ONE);
    while (chime_state_of(a->index)->counts.splits == 0) {
        assert_int_equal(insert(a, nth(count), count), 0);
        count++;
    }
    for (unsigned n = 1; n < count; n++)
        assert_int_equal(delete (a, nth(n)), 0);
    while (chime_state_of(a->index)->counts.merges == 0)
        (void)misses(a, 1);
    uint64_t before = stats_of(a).round_trips;
    for (unsigned n = 1; n < 4; n++)
        assert_int_equal(insert(a, nth(count + n), n), 0);
    print_message("%u round trips\n", (unsigned)(stats_of(a).round_trips - before));
    assert_true(stats_of(a).round_trips - before <= 24);
    for (unsigned n = 1; n < 4; n++)
        assert_true(reads(c, nth(count + n), n));
    stage_close(&s);
}


/* A crowd in front of the only leaf: it is split before it is full. Fails without is_crowded; where the items of a full
 * neighbourhood are asked for though it is not full the split is refused as damage. */
static void a_crowded_leaf_is_split_early(void **state) {
    (void)state;
    enum { CROWD = 40 };
    static stage_actor crowd[CROWD];
    for (unsigned on = 0; on < 2; on++) {
        up(on ? "key_size=8,value_size=8" : "key_size=8,value_size=8,crowd=off", ONE);
        memset(crowd, 0, sizeof(crowd));
        for (unsigned i = 0; i < CROWD; i++) {
            crowd[i].pool = i % 2 ? a->pool : b->pool;
            crowd[i].index = i % 2 ? a->index : b->index;
            assert_int_equal(far_session_open(crowd[i].pool, &crowd[i].session), 0);
            begin(&crowd[i], FAR_OP_INSERT, nth(i * 7 % CROWD), i * 7 % CROWD);
        }
        assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
        for (unsigned i = 0; i < CROWD; i++) {
            assert_true(crowd[i].ended && crowd[i].result == 0);
            far_session_close(crowd[i].session);
        }
        uint64_t early = chime_state_of(a->index)->counts.early_splits + chime_state_of(b->index)->counts.early_splits;
        assert_true(on ? early >= 1 : early == 0);
        assert_all(c, 0, CROWD);
        stage_close(&s);
    }
}


/* The giver's last lines, and the lock that names its heir, land while the heir READs the leaf: its lines are older than
 * the lock it sees. Fails without the second READ: the map lacks the slot that the giver filled. */
static void the_lost_giver_writes_late(void **state) {
    (void)state;
    unsigned handed_over = 0;
    for (unsigned seed = 1; seed <= 12; seed++) {
        char sim[64];
        snprintf(sim, sizeof(sim), "memory_nodes=1,seed=%u", seed);
        up_with_d(SMALL, sim);
        fill(a, 6);
        assert_true(reads(&d, nth(3), 3));
        chime_ptr leaf = leaf_of(nth(8), NULL);
        far_addr at = chime_ptr_addr(leaf), lock = chime_tail_addr(chime_state_of(a->index), leaf, CHIME_TAIL_L);
        begin(a, FAR_OP_INSERT, nth(8), 70);
        far_sim_stop_before(a->client, (far_sim_match){.point = "chime:insert"});
        if (far_sim_run_client(a->client) != FAR_SIM_STOPPED) { /* the homes of this seed make it split instead */
            down_with_d();
            continue;
        }
        begin(&d, FAR_OP_UPDATE, nth(3), 71);
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
        assert_true(reads(c, nth(3), 71));
        down_with_d();
    }
    assert_true(handed_over > 0);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_lock_is_handed_over),
        cmocka_unit_test(the_giver_is_lost),
        cmocka_unit_test(the_lost_giver_writes_late),
        cmocka_unit_test(a_crowd_shares_a_lock),
        cmocka_unit_test(what_is_known_is_handed_over),
        cmocka_unit_test(a_leaf_is_split_as_it_was_handed_over),
        cmocka_unit_test(a_block_goes_along_to_the_right),
        cmocka_unit_test(who_waits_hears_of_a_split),
        cmocka_unit_test(a_split_is_taken_back),
        cmocka_unit_test(a_crowded_leaf_is_split_early),
        cmocka_unit_test(who_inserts_waits_then_asks_often),
        cmocka_unit_test(a_queue_is_waited_for),
        cmocka_unit_test(the_lock_tells_who_is_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
