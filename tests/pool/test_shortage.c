/* Memory that is short: who gets it, when FAR_ERR_NO_MEMORY is said, and that nobody starves while there is some. */
#include "pool_rig.h"


/* Nothing is wrong with the pool; then all leave. */
static void check_and_close(rig *r) {
    assert_int_equal(far_pool_check(r->actors[0].session, 0, fail_at_problem, NULL), 0);
    close_rig(r);
}


static void assert_all_put(const rig *r) {
    for (unsigned i = 0; i < r->count; i++)
        if (r->actors[i].puts != r->actors[i].wanted)
            fail_msg("seed %llu: put %u of session %u gave %d", (unsigned long long)far_sim_seed(r->world),
                     r->actors[i].puts, i, r->actors[i].result);
}


/* ---- Nobody starves ---- */

/* The pool has many times what lives in it; but all of it is held, free or retired, by a session that never rests. */
static void a_busy_session_starves_nobody(void **state) {
    (void)state;
    for (unsigned seed = 1; seed <= 20; seed++) {
        rig r;
        open_small_pool(&r, seed, 1 + seed % 2, 2, 0, "2M");
        start_putting(&r.actors[0], 200, LARGE);
        far_sim_run_for(r.world, 200000 + seed * 37000);
        start_putting(&r.actors[1], 1, 1 + seed * 1000);
        run_all(&r);
        assert_all_put(&r);
        check_and_close(&r);
    }
}


/* All of them busy: what lives is a third of the pool, the rest goes from hand to hand. */
static void busy_ones_share(unsigned first_seed, unsigned handles) {
    for (unsigned seed = first_seed; seed < first_seed + 20; seed++) {
        rig r;
        open_small_pool(&r, seed, handles, 6, 0, "3M");
        for (unsigned i = 0; i < r.count; i++)
            start_putting(&r.actors[i], 60, i % 2 ? LARGE : 9000);
        run_all(&r);
        assert_all_put(&r);
        check_and_close(&r);
    }
}


static void busy_sessions_share_a_small_pool(void **state) {
    (void)state;
    busy_ones_share(100, 1);
}


static void busy_handles_share_a_small_pool(void **state) {
    (void)state;
    busy_ones_share(120, 2);
    busy_ones_share(140, 6);
}


/* Two sessions of a handle find nothing. The first one is about to ask all others: the second one waits for its turn.
 */
static void wait_in_line(rig *r, unsigned seed) {
    open_small_pool(r, seed, 1, 3, 0, "2M");
    for (unsigned i = 1; i < r->count; i++)
        put_now(&r->actors[i], "first", 1); /* it has what it keeps for itself */
    assert_true(fill(&r->actors[0], "a", LARGE) > 2);
    remove_now(&r->actors[0], "a0"); /* room for one, when it is past its time */
    start_putting(&r->actors[1], 1, LARGE);
    stop_at_point(&r->actors[1], "shortage:asks");
    start_putting(&r->actors[2], 1, LARGE);
    far_sim_limit(r->world, 300000);
    assert_true(far_sim_run_client(r->actors[2].client) != FAR_SIM_ENDED);
    far_sim_limit(r->world, 1000000000);
}


static void who_waits_longer_goes_first(void **state) {
    (void)state;
    rig r;
    wait_in_line(&r, 150);
    far_sim_resume(r.actors[1].client);
    run_all(&r);
    assert_int_equal(r.actors[1].result, 0);
    assert_int_equal(r.actors[2].result, FAR_ERR_NO_MEMORY); /* there was room for one */
    check_and_close(&r);
}


/* Its turn comes as if it lived: it is told then, and the one behind it goes on. */
static void who_dies_in_line_comes_to_an_end(void **state) {
    (void)state;
    rig r;
    wait_in_line(&r, 160);
    actor *second = &r.actors[2];
    assert_int_equal(far_sim_declare_dead(r.world, second->session->id, second->session->generation), 1);
    finish(&r.actors[1]);
    assert_int_equal(r.actors[1].result, 0);
    assert_int_equal(far_sim_run_client(second->client), FAR_SIM_ENDED);
    assert_true(second->result == FAR_ERR_FENCED || second->result == FAR_ERR_UNREACHABLE);
    start_putting(&r.actors[0], 1, LARGE);
    assert_int_equal(far_sim_run_client(r.actors[0].client), FAR_SIM_ENDED);
    assert_int_equal(r.actors[0].result, FAR_ERR_NO_MEMORY);
    close_rig(&r);
}


/* ---- One number for many ---- */

static void count_requests(void *ctx, const far_sim_posted *posted) {
    if (posted->verb->kind == FAR_CAS && posted->verb->addr == FAR_SUPER_REQUEST)
        ++*(unsigned *)ctx;
}


/* Many handles find nothing at the same time: one asks, and all profit. */
static void shortage_one_number_for_many(void **state) {
    (void)state;
    rig r;
    unsigned asked = 0;
    open_small_pool(&r, 170, 5, 5, 0, "3M");
    for (unsigned i = 1; i < r.count; i++)
        put_now(&r.actors[i], "first", 1);
    assert_true(fill(&r.actors[0], "a", LARGE) > 10);
    far_sim_sleep(r.world, 50000000);
    for (unsigned i = 0; i < 8; i++) /* room for all, when it is past its time */
        remove_numbered(&r.actors[0], "a", i);
    uint32_t before = request_now(&r).number;
    for (unsigned i = 1; i < r.count; i++) {
        start_putting(&r.actors[i], 1, LARGE);
        stop_at_point(&r.actors[i], "shortage:asks");
    }
    far_sim_on_verb(r.world, count_requests, &asked);
    for (unsigned i = 1; i < r.count; i++)
        far_sim_resume(r.actors[i].client);
    run_all(&r);
    far_sim_on_verb(r.world, NULL, NULL);
    assert_all_put(&r);
    uint32_t made = request_now(&r).number - before;
    if (made > 2)
        fail_msg("4 handles that were short at once made %u requests (%u attempts)", made, asked);
    check_and_close(&r);
}


/* ---- What others hold free ---- */

/* Its free objects lie between live ones, in blocks of its own; it does nothing any more. */
static void share_of_an_idle_one(unsigned seed, unsigned handles, uint64_t idle_ns) {
    rig r;
    open_small_pool(&r, seed, handles, 2, 0, "1500K");
    put_now(&r.actors[1], "first", 1); /* it has what it keeps for itself */
    unsigned count = fill(&r.actors[0], "a", SMALL), deleted = 0;
    assert_true(count > 300);
    for (unsigned i = 0; i < count; i++)
        if (i % 4 != 0) {
            remove_numbered(&r.actors[0], "a", i);
            deleted++;
        }
    far_sim_sleep(r.world, idle_ns);
    unsigned more = fill(&r.actors[1], "b", SMALL);
    if (more < deleted * 3 / 5) /* blocks with objects of a reserve are not given up */
        fail_msg("of %u values that were deleted, and %llu us of rest, the other one found room for %u", deleted,
                 (unsigned long long)idle_ns / 1000, more);
    check_and_close(&r);
}


static void what_an_idle_session_holds_free_others_can_use(void **state) {
    (void)state;
    share_of_an_idle_one(200, 1, 0);
    share_of_an_idle_one(201, 1, 50000000);
}


/* From awake to long asleep. */
static void what_an_idle_handle_holds_free_others_can_use(void **state) {
    (void)state;
    static const uint64_t idle[] = {0, 500000, 1000000, 2000000, 5000000, 10000000, 50000000, 200000000};
    for (unsigned i = 0; i < sizeof(idle) / sizeof(idle[0]); i++)
        share_of_an_idle_one(202 + i, 2, idle[i]);
}


/* One handle has all blocks; another one deletes some of what is in them; a third one needs that memory. */
static void found_by_a_third(unsigned seed, bool rested, bool adopted) {
    rig r;
    open_small_pool(&r, seed, 3, 3, 0, "1500K");
    actor *owner = &r.actors[0], *deleter = &r.actors[1], *needy = &r.actors[2];
    put_now(deleter, "first", 1);
    put_now(needy, "first", 1);
    assert_true(fill(owner, "a", 9000) > 20);
    fill(needy, "b", 9000); /* what the others have left */
    if (adopted) {          /* the blocks are nobody's */
        far_index_close(owner->index);
        far_session_close(owner->session);
        far_pool_close(owner->pool);
        owner->index = NULL;
        owner->session = NULL;
        owner->pool = NULL;
    }
    far_sim_sleep(r.world, 50000000);
    for (unsigned i = 0; i < 4; i++)
        remove_numbered(deleter, "a", i);
    if (rested)
        far_sim_sleep(r.world, 50000000);
    put_now(needy, "z", 9000);
    assert_int_equal(far_pool_check(needy->session, 0, fail_at_problem, NULL), 0);
    close_rig(&r);
}


static void what_another_frees_in_blocks_of_others_is_found(void **state) {
    (void)state;
    for (unsigned i = 0; i < 4; i++)
        found_by_a_third(550 + i, i & 1, i & 2);
}


/* One object of each block of a busy handle is free: too little to be given up when somebody asks, but not when nothing
 * else is left. */
static void what_is_left_in_full_blocks_is_found(void **state) {
    (void)state;
    rig r;
    open_small_pool(&r, 560, 2, 2, 0, "1500K");
    actor *holder = &r.actors[0], *needy = &r.actors[1];
    char key[8];
    put_now(needy, "first", 1);
    unsigned count = fill(holder, "a", SMALL), removed = 0;
    fill(needy, "b", SMALL);
    for (unsigned i = 40; i < count - 40; i += 40) { /* a block has less than 40 */
        remove_numbered(holder, "a", i);
        removed++;
    }
    assert_true(removed > 6);
    pass_epochs(needy, 20); /* it is long ago that somebody asked, and nothing is about to come back */
    far_sim_sleep(r.world, 3000000);
    unsigned got = 0;
    for (int err = 0; err == 0; got += err == 0) {
        assert_int_equal(far_get(holder->session, holder->index, "a0", 2, NULL, 0, NULL), FAR_ERR_TOO_SMALL);
        snprintf(key, sizeof(key), "c%u", got);
        err = put(needy, key, SMALL);
    }
    assert_true(got + 2 >= removed);
    check_and_close(&r);
}


/* ---- When nothing will come back ---- */

static void no_memory_said_once_full(void **state) {
    (void)state;
    for (unsigned handles = 1; handles <= 2; handles++) {
        rig r;
        open_small_pool(&r, 300 + handles, handles, 2, 0, "1500K");
        fill(&r.actors[0], "a", SMALL);
        fill(&r.actors[1], "b", 100);
        put(&r.actors[0], "c", SMALL); /* what could be shared was */
        far_sim_sleep(r.world, 10000000);
        char key[32];
        snprintf(key, sizeof(key), "d%u", fill(&r.actors[0], "d", SMALL));
        far_stats before, after;
        far_session_stats(r.actors[0].session, &before);
        uint32_t number = request_now(&r).number;
        for (unsigned i = 0; i < 10; i++)
            assert_int_equal(put(&r.actors[0], key, SMALL), FAR_ERR_NO_MEMORY);
        far_session_stats(r.actors[0].session, &after);
        assert_int_equal(after.retries, before.retries);  /* it was not run again for nothing */
        assert_int_equal(request_now(&r).number, number); /* and nobody else was asked for it */
        check_and_close(&r);
    }
}


/* It is not told for ever what was true once. */
static void who_was_told_that_there_is_none_finds_what_came_back(void **state) {
    (void)state;
    rig r;
    open_small_pool(&r, 303, 2, 2, 0, "1500K");
    put_now(&r.actors[1], "first", 1);
    fill(&r.actors[0], "a", SMALL);
    fill(&r.actors[1], "b", SMALL);
    for (unsigned i = 0; i < 12; i++)
        remove_numbered(&r.actors[0], "a", i);
    far_sim_sleep(r.world, 1000000); /* it has told what it retired */
    assert_true(fill(&r.actors[1], "c", SMALL) > 0);
    check_and_close(&r);
}


/* Each attempt builds half of it and drops that: memory that comes back, but none that would make a difference. */
static void what_finds_no_room_for_all_it_needs_does_not_try_for_ever(void **state) {
    (void)state;
    static const char *const kinds[] = {"shard", "dart", "toy"};
    static const char *const options[] = {NULL, NULL, "slots=65536"};
    for (unsigned i = 0; i < 3; i++) {
        rig r;
        far_index *index;
        open_small_pool(&r, 310 + i, 1, 2, 0, "2M");
        unsigned count = fill(&r.actors[0], "a", SMALL);
        for (unsigned k = 0; k < count / 3; k++)
            remove_numbered(&r.actors[0], "a", k);
        far_stats before, after;
        far_session_stats(r.actors[1].session, &before);
        far_sim_limit(r.world, 1000000000);
        assert_int_equal(far_index_create(r.actors[1].session, "y", kinds[i], options[i], &index), FAR_ERR_NO_MEMORY);
        far_session_stats(r.actors[1].session, &after);
        uint64_t races = after.cas_failed - before.cas_failed; /* for the request word, with what frees the half built */
        assert_in_range(after.retries - before.retries - races, 1, 8);
        check_and_close(&r);
    }
}


int main(int argc, char **argv) {
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_busy_session_starves_nobody),
        cmocka_unit_test(busy_sessions_share_a_small_pool),
        cmocka_unit_test(busy_handles_share_a_small_pool),
        cmocka_unit_test(who_waits_longer_goes_first),
        cmocka_unit_test(who_dies_in_line_comes_to_an_end),
        cmocka_unit_test(shortage_one_number_for_many),
        cmocka_unit_test(what_an_idle_session_holds_free_others_can_use),
        cmocka_unit_test(what_an_idle_handle_holds_free_others_can_use),
        cmocka_unit_test(what_another_frees_in_blocks_of_others_is_found),
        cmocka_unit_test(what_is_left_in_full_blocks_is_found),
        cmocka_unit_test(no_memory_said_once_full),
        cmocka_unit_test(who_was_told_that_there_is_none_finds_what_came_back),
        cmocka_unit_test(what_finds_no_room_for_all_it_needs_does_not_try_for_ever),
    };
    return cmocka_run_group_tests_name("shortage", tests, NULL, NULL);
}
