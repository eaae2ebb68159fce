/* CHIME: locks inside of one compute node. One task asks for a lock in far memory, the others wait for it without
 * verbs and get it by name, whatever happens to who hands it over. */
#include "chime_rig.h"

static stage_actor d; /* another session of a's compute node */


static void up_with_d(const char *options, const char *sim) {
    up(options, sim);
    memset(&d, 0, sizeof(d));
    d.pool = a->pool;
    d.index = a->index;
    assert_int_equal(far_session_open(d.pool, &d.session), 0);
}


static void down_with_d(void) {
    far_session_close(d.session);
    stage_close(&s);
}


static uint64_t atomics_of(const stage_actor *by) {
    far_stats stats;
    far_session_stats(by->session, &stats);
    return stats.cas + stats.masked_cas;
}


static const char *const sims[] = {ONE, ONE ",masked_cas=off", ONE ",atomic_bytes=8", ONE ",atomics_in_order=on"};


/* d waits behind a and never asks for the lock itself. Fails without choose_heir. */
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


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_lock_is_handed_over),
        cmocka_unit_test(the_giver_is_lost),
        cmocka_unit_test(a_crowd_shares_a_lock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
