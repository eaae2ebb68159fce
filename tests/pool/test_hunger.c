/* Memory that is short: who gets it, when FAR_ERR_NO_MEMORY is said, and that nobody starves while there is some. */
#include "hunger_rig.h"


/* ---- Nobody starves ---- */

/* The pool has many times what lives in it; but all of it is held, free or retired, by a session that never rests. */
static void a_busy_session_starves_nobody(void **state) {
    (void)state;
    for (unsigned seed = 1; seed <= 20; seed++) {
        room r;
        open_room(&r, seed, 1, 2, "2M");
        start(&r, 0, 200, LARGE);
        far_sim_run_for(r.world, 200000 + seed * 37000);
        start(&r, 1, 1, 1 + seed * 1000);
        assert_int_equal(far_sim_run(r.world), FAR_SIM_ENDED);
        for (unsigned i = 0; i < r.count; i++)
            if (r.guests[i].puts != r.guests[i].wanted)
                fail_msg("seed %u: put %u of session %u gave %d", seed, r.guests[i].puts, i, r.guests[i].result);
        close_room(&r);
    }
}


/* All of them busy: what lives is a third of the pool, the rest goes from hand to hand. */
static void busy_sessions_share(unsigned first_seed, unsigned handles) {
    for (unsigned seed = first_seed; seed < first_seed + 20; seed++) {
        room r;
        open_room(&r, seed, handles, SESSIONS_MAX, "3M");
        for (unsigned i = 0; i < r.count; i++)
            start(&r, i, 60, i % 2 ? LARGE : 9000);
        assert_int_equal(far_sim_run(r.world), FAR_SIM_ENDED);
        for (unsigned i = 0; i < r.count; i++)
            if (r.guests[i].puts != r.guests[i].wanted)
                fail_msg("seed %u: put %u of session %u gave %d", seed, r.guests[i].puts, i, r.guests[i].result);
        close_room(&r);
    }
}


static void busy_sessions_share_a_small_pool(void **state) {
    (void)state;
    busy_sessions_share(100, 1);
}


static void busy_handles_share_a_small_pool(void **state) {
    (void)state;
    busy_sessions_share(120, 2);
}


/* There is room again, and the one who was first in line is about to take it: another one, with its first attempt, must
 * leave it to him. */
static void first_come_first_served(unsigned seed, unsigned handles) {
    room r;
    open_room(&r, seed, handles, 3, "2M");
    guest *first = &r.guests[1], *second = &r.guests[2]; /* of another handle, if there are two */
    for (unsigned i = 1; i < r.count; i++)
        assert_int_equal(put(&r.guests[i], "first", 1), 0); /* it has what it keeps for itself */
    assert_true(fill(&r.guests[0], "a", LARGE) > 2);
    far_sim_sleep(r.world, 500000); /* all have heard that nobody is short any more */
    assert_int_equal(far_delete(r.guests[0].session, r.guests[0].index, "a0", 2), 0);

    start(&r, 1, 1, LARGE);
    far_sim_stop_before(first->client, (far_sim_match){.point = "hunger:served"});
    assert_int_equal(far_sim_run_client(first->client), FAR_SIM_STOPPED);
    start(&r, 2, 1, LARGE);
    far_sim_limit(r.world, 500000); /* many times what it takes; but not so long that the first one counts as gone */
    far_sim_result waits = far_sim_run_client(second->client);
    far_sim_limit(r.world, 0);
    assert_true(waits != FAR_SIM_ENDED);
    far_sim_resume(first->client);
    assert_int_equal(far_sim_run(r.world), FAR_SIM_ENDED);
    assert_int_equal(first->result, 0);
    assert_int_equal(second->result, FAR_ERR_NO_MEMORY); /* there was room for one */
    close_room(&r);
}


static void who_waits_for_memory_gets_what_comes_back(void **state) {
    (void)state;
    first_come_first_served(150, 1);
    first_come_first_served(151, 2);
}


/* It dies while it waits in line, and the first one, of its own handle or of another, does not move: it finds out,
 * although nothing else would make it post a verb. */
static void dies_in_line(unsigned seed, unsigned handles) {
    room r;
    open_room(&r, seed, handles, 3, "2M");
    guest *first = &r.guests[1], *second = &r.guests[2];
    for (unsigned i = 1; i < r.count; i++)
        assert_int_equal(put(&r.guests[i], "first", 1), 0);
    assert_true(fill(&r.guests[0], "a", LARGE) > 2);
    far_sim_sleep(r.world, 500000);
    assert_int_equal(far_delete(r.guests[0].session, r.guests[0].index, "a0", 2), 0);
    start(&r, 1, 1, LARGE);
    far_sim_stop_before(first->client, (far_sim_match){.point = "hunger:served"});
    assert_int_equal(far_sim_run_client(first->client), FAR_SIM_STOPPED);
    start(&r, 2, 1, LARGE);
    far_sim_limit(r.world, 300000);
    assert_true(far_sim_run_client(second->client) != FAR_SIM_ENDED);
    if (handles == 1)
        assert_int_equal(far_sim_declare_dead(r.world, second->session->id, second->session->generation), 1);
    else
        far_sim_kill(r.pool[0]->fabric);
    far_sim_limit(r.world, 1000000000);
    assert_int_equal(far_sim_run_client(second->client), FAR_SIM_ENDED);
    assert_true(second->result == FAR_ERR_FENCED || second->result == FAR_ERR_UNREACHABLE);
    far_sim_resume(first->client);
    assert_int_equal(far_sim_run_client(first->client), FAR_SIM_ENDED);
    assert_int_equal(first->result, 0);
    leave_room(&r);
}


static void who_dies_in_line_comes_to_an_end(void **state) {
    (void)state;
    dies_in_line(160, 1);
    dies_in_line(161, 2);
}


/* ---- What others hold free ---- */

/* Its free objects lie between live ones, in blocks of its own; it will not come back to give them up. */
static void share_of_an_idle_session(unsigned seed, unsigned handles, bool past) {
    room r;
    open_room(&r, seed, handles, 2, "1500K");
    assert_int_equal(put(&r.guests[1], "first", 1), 0); /* it has what it keeps for itself */
    unsigned count = fill(&r.guests[0], "a", 1900), deleted = 0;
    assert_true(count > 300);
    for (unsigned i = 0; i < count; i++) {
        char key[32];
        snprintf(key, sizeof(key), "a%u", i);
        if (i % 4 != 0) {
            assert_int_equal(far_delete(r.guests[0].session, r.guests[0].index, key, strlen(key)), 0);
            deleted++;
        }
    }
    if (past) /* nothing is retired any more */
        pass_epochs(&r.guests[0]);
    if (handles > 1)
        far_sim_sleep(r.world, 50000000);
    assert_true(handles == 1 || !far_epoch_is_awake(r.pool[0]));
    unsigned more = fill(&r.guests[1], "b", 1900);
    if (more < deleted * 9 / 10)
        fail_msg("of %u values that were deleted the other session found room for %u", deleted, more);
    close_room(&r);
}


static void what_an_idle_session_holds_free_others_can_use(void **state) {
    (void)state;
    share_of_an_idle_session(200, 1, false);
    share_of_an_idle_session(201, 1, true);
}


static void what_a_sleeping_handle_holds_free_others_can_use(void **state) {
    (void)state;
    share_of_an_idle_session(202, 2, false);
    share_of_an_idle_session(203, 2, true);
}


/* It had the index open, and sleeps when it is dropped: its slabs are freed all the same. */
static void a_sleeping_handle_frees_what_it_held_of_a_dropped_index(void **state) {
    (void)state;
    room r;
    char key[32];
    far_pool_usage before = {0}, full = {0}, after = {0};
    open_room(&r, 210, 2, 2, "4M");
    far_sim_sleep(r.world, 50000000); /* others have told what they hold */
    assert_int_equal(far_pool_stat(r.guests[1].session, &before), 0);
    for (unsigned i = 0; i < 300; i++) {
        snprintf(key, sizeof(key), "a%u", i);
        assert_int_equal(put(&r.guests[0], key, 1900), 0);
        if (i % 3 == 0)
            assert_int_equal(far_delete(r.guests[0].session, r.guests[0].index, key, strlen(key)), 0);
    }
    far_index_close(r.index[0]);
    far_index_close(r.index[1]);
    r.index[0] = r.index[1] = NULL;
    far_sim_sleep(r.world, 50000000);
    assert_false(far_epoch_is_awake(r.pool[0]));
    assert_int_equal(far_pool_stat(r.guests[1].session, &full), 0);
    assert_true(full.used > before.used + 200000); /* the session has let go of its reserve */
    assert_int_equal(far_index_drop(r.guests[1].session, "x"), 0);
    far_sim_sleep(r.world, 100000000);
    assert_int_equal(far_pool_stat(r.guests[1].session, &after), 0);
    if (after.used > before.used || after.retired > 4096)
        fail_msg("%llu bytes used before, %llu with all values, %llu (and %llu retired) after the drop",
                 (unsigned long long)before.used, (unsigned long long)full.used, (unsigned long long)after.used,
                 (unsigned long long)after.retired);
    close_room(&r);
}


/* ---- When nothing will come back ---- */

static void a_full_pool_says_so_at_once(void **state) {
    (void)state;
    room r;
    open_room(&r, 300, 1, 2, "1500K");
    fill(&r.guests[0], "a", 1900);
    fill(&r.guests[1], "b", 100);
    put(&r.guests[0], "c", 1900); /* what could be shared was */
    far_sim_sleep(r.world, 10000000);
    far_stats before, after;
    far_session_stats(r.guests[0].session, &before);
    for (unsigned i = 0; i < 10; i++)
        assert_int_equal(put(&r.guests[0], "d", 1900), FAR_ERR_NO_MEMORY);
    far_session_stats(r.guests[0].session, &after);
    assert_int_equal(after.retries, before.retries); /* it was not run again for nothing */
    close_room(&r);
}


/* Each attempt builds half of it and drops that: memory that comes back, but none that would make a difference. */
static void what_finds_no_room_for_all_it_needs_does_not_try_for_ever(void **state) {
    (void)state;
    static const char *const kinds[] = {"shard", "dart", "toy"};
    static const char *const options[] = {NULL, NULL, "slots=65536"};
    for (unsigned i = 0; i < 3; i++) {
        room r;
        far_index *index;
        open_room(&r, 310 + i, 1, 2, "2M");
        unsigned count = fill(&r.guests[0], "a", 1900);
        for (unsigned k = 0; k < count / 3; k++) {
            char key[32];
            snprintf(key, sizeof(key), "a%u", k);
            assert_int_equal(far_delete(r.guests[0].session, r.guests[0].index, key, strlen(key)), 0);
        }
        far_stats before, after;
        far_session_stats(r.guests[1].session, &before);
        assert_int_equal(far_index_create(r.guests[1].session, "y", kinds[i], options[i], &index), FAR_ERR_NO_MEMORY);
        far_session_stats(r.guests[1].session, &after);
        assert_int_equal(after.retries - before.retries, 1); /* when all was free; what it then gave back is no news */
        close_room(&r);
    }
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_busy_session_starves_nobody),
        cmocka_unit_test(busy_sessions_share_a_small_pool),
        cmocka_unit_test(busy_handles_share_a_small_pool),
        cmocka_unit_test(who_waits_for_memory_gets_what_comes_back),
        cmocka_unit_test(who_dies_in_line_comes_to_an_end),
        cmocka_unit_test(what_an_idle_session_holds_free_others_can_use),
        cmocka_unit_test(what_a_sleeping_handle_holds_free_others_can_use),
        cmocka_unit_test(a_sleeping_handle_frees_what_it_held_of_a_dropped_index),
        cmocka_unit_test(what_finds_no_room_for_all_it_needs_does_not_try_for_ever),
        cmocka_unit_test(a_full_pool_says_so_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
