/* Tests of the out-of-memory path (src/pool/alloc/out_of_memory.c): which operation gets scarce memory, when
 * FAR_ERR_NO_MEMORY is returned, and that no session starves while there is memory. */
#include "pool_rig.h"
#include "test.h"


/* Checks that the pool is sound, then closes all handles. */
static void check_and_close(rig *r) {
    assert_int_equal(far_pool_check(r->actors[0].session, 0, fail_at_problem, NULL), 0);
    close_rig(r);
}


static void assert_all_put(const rig *r) {
    for (unsigned i = 0; i < r->count; i++)
        if (r->actors[i].puts != r->actors[i].wanted)
            fail_msg("seed %llu: put %u of session %u returned %d", (unsigned long long)far_sim_seed(r->world),
                     r->actors[i].puts, i, r->actors[i].result);
}


/* ---- No session starves ---- */

/* A session puts without pause. The pool has many times the memory that its values need, but that session holds all of
 * it free or retired. A put of another session, in the same or in another handle, succeeds nevertheless. Fails without
 * retry_unless_stalled in far_run_out_of_memory. */
TEST(a_busy_session_starves_no_other_session) {
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


/* Several sessions put without pause. Their values need a third of the pool; the rest circulates between the sessions.
 * All puts succeed. */
static void share_among_busy_sessions(unsigned first_seed, unsigned handles) {
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


/* Six sessions of one handle put without pause; see share_among_busy_sessions. */
TEST(busy_sessions_share_a_small_pool) {
    share_among_busy_sessions(100, 1);
}


/* Six sessions of two handles, and six handles with one session each, put without pause; see share_among_busy_sessions.
 */
TEST(busy_handles_share_a_small_pool) {
    share_among_busy_sessions(120, 2);
    share_among_busy_sessions(140, 6);
}


/* Lets two sessions of a handle wait for memory. The first one is about to request blocks from all handles, and the
 * second one waits for its turn. */
static void let_two_wait_in_line(rig *r, unsigned seed) {
    open_small_pool(r, seed, 1, 3, 0, "2M");
    for (unsigned i = 1; i < r->count; i++)
        put_now(&r->actors[i], "first", 1);
    assert_true(fill_completely(&r->actors[0], "a", LARGE) > 2);
    remove_now(&r->actors[0], "a0"); /* The delete frees memory for one value, after some epochs. */
    start_putting(&r->actors[1], 1, LARGE);
    stop_at_point(&r->actors[1], "out_of_memory:request_blocks");
    start_putting(&r->actors[2], 1, LARGE);
    far_sim_limit(r->world, 300000);
    assert_true(far_sim_run_client(r->actors[2].client) != FAR_SIM_ENDED);
    far_sim_limit(r->world, 1000000000);
}


/* Two sessions wait for memory, and there is memory for one value. The session that waits longer gets it. Fails
 * without the latch in far_run_out_of_memory. */
TEST(operations_without_memory_are_served_in_order) {
    rig r;
    let_two_wait_in_line(&r, 150);
    far_sim_resume(r.actors[1].client);
    run_all(&r);
    assert_int_equal(r.actors[1].result, 0);
    /* The second session fails, because there was memory for one value only. */
    assert_int_equal(r.actors[2].result, FAR_ERR_NO_MEMORY);
    check_and_close(&r);
}


/* A session that waits in line is declared dead. When its turn comes it finds out that it is fenced and fails, and the
 * operations after it continue. Fails if far_run_out_of_memory does not release the latch after such an error. */
TEST(a_fenced_session_in_the_line_fails_at_its_turn) {
    rig r;
    let_two_wait_in_line(&r, 160);
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


/* ---- One request for many handles ---- */

static void count_requests(void *ctx, const far_sim_posted *posted) {
    if (posted->verb->kind == FAR_CAS && posted->verb->addr == FAR_SUPER_REQUEST)
        ++*(unsigned *)ctx;
}


/* Four handles find no memory at the same time. The request of one handle serves all four, so at most two requests are
 * made. Fails if set_release_request does not join a request of another handle. */
TEST(one_request_serves_many_handles) {
    enum { WHOLE_BLOCK = 60000 }; /* no block with other objects has room for such a value */
    rig r;
    unsigned asked = 0;
    open_small_pool(&r, 171, 5, 5, 0, "3M");
    for (unsigned i = 1; i < r.count; i++)
        put_now(&r.actors[i], "first", 1);
    assert_true(fill(&r.actors[0], "a", WHOLE_BLOCK) > 10);
    far_sim_sleep(r.world, 50000000);
    for (unsigned i = 0; i < 8; i++) /* These deletes free memory for all four handles, after some epochs. */
        remove_numbered(&r.actors[0], "a", i);
    uint32_t before = request_now(&r).number;
    for (unsigned i = 1; i < r.count; i++) {
        start_putting(&r.actors[i], 1, WHOLE_BLOCK);
        stop_at_point(&r.actors[i], "out_of_memory:request_blocks");
    }
    far_sim_on_verb(r.world, count_requests, &asked);
    for (unsigned i = 1; i < r.count; i++)
        far_sim_resume(r.actors[i].client);
    run_all(&r);
    far_sim_on_verb(r.world, NULL, NULL);
    assert_all_put(&r);
    uint32_t made = request_now(&r).number - before;
    if (made > 2)
        fail_msg("4 handles without memory made %u requests at the same time (%u attempts)", made, asked);
    check_and_close(&r);
}


/* ---- Free memory of other handles ---- */

/* One session fills the pool and deletes three of four values, so that its free objects are between objects in use in
 * its own blocks. Then that session is idle for `idle_ns`. Another session must find room for most of the deleted
 * values. With two `handles` the other session belongs to another handle. */
static void assert_idle_memory_is_usable(unsigned seed, unsigned handles, uint64_t idle_ns) {
    rig r;
    open_small_pool(&r, seed, handles, 2, 0, "1500K");
    put_now(&r.actors[1], "first", 1);
    unsigned count = fill(&r.actors[0], "a", SMALL), deleted = 0;
    assert_true(count > 300);
    for (unsigned i = 0; i < count; i++)
        if (i % 4 != 0) {
            remove_numbered(&r.actors[0], "a", i);
            deleted++;
        }
    far_sim_sleep(r.world, idle_ns);
    unsigned more = fill(&r.actors[1], "b", SMALL);
    /* Not all memory is found, because blocks with objects of a reserve are not released. */
    if (more < deleted * 3 / 5)
        fail_msg("%u values were deleted; after %llu us of rest the other session found room for only %u", deleted,
                 (unsigned long long)idle_ns / 1000, more);
    check_and_close(&r);
}


/* The idle session and the session that needs memory belong to the same handle. */
TEST(free_memory_of_an_idle_session_is_usable_by_others) {
    assert_idle_memory_is_usable(200, 1, 0);
    assert_idle_memory_is_usable(201, 1, 50000000);
}


/* A handle is idle for different times, from active to quiescent for long. Another handle can use the memory that is
 * free in its blocks. */
TEST(free_memory_of_an_idle_handle_is_usable_by_others) {
    static const uint64_t idle[] = {0, 500000, 1000000, 2000000, 5000000, 10000000, 50000000, 200000000};
    for (unsigned i = 0; i < sizeof(idle) / sizeof(idle[0]); i++)
        assert_idle_memory_is_usable(202 + i, 2, idle[i]);
}


/* The owner has all blocks. The deleter deletes some values in them, so that it holds remote objects. The handle that
 * needs memory must get these objects. `rested`: the deleter becomes quiescent first. `adopted`: the owner is closed
 * first, so that its blocks are orphans. */
static void assert_found_by_third_handle(unsigned seed, bool rested, bool adopted) {
    rig r;
    open_small_pool(&r, seed, 3, 3, 0, "1500K");
    actor *owner = &r.actors[0], *deleter = &r.actors[1], *needy = &r.actors[2];
    put_now(deleter, "first", 1);
    put_now(needy, "first", 1);
    assert_true(fill(owner, "a", 9000) > 20);
    fill(needy, "b", 9000); /* This uses the memory that the owner and the deleter have not used. */
    if (adopted) {          /* Closing the owner makes its blocks orphans. */
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


/* Runs assert_found_by_third_handle for all four combinations of its two flags. */
TEST(returned_objects_are_found_by_a_third_handle) {
    for (unsigned i = 0; i < 4; i++)
        assert_found_by_third_handle(550 + i, i & 1, i & 2);
}


/* A busy handle has one free object in each of its blocks. A request for blocks makes it release them, so another handle
 * gets the objects, except as many as the headroom has. Fails if far_blocks_release (exchange.c) keeps blocks with
 * little free space. */
TEST(single_free_objects_in_full_blocks_are_found) {
    rig r;
    open_small_pool(&r, 560, 2, 2, 0, "32M");
    actor *holder = &r.actors[0], *needy = &r.actors[1];
    const far_headroom *h = &needy->pool->store->headroom[0];
    char key[8];
    put_now(needy, "first", 1);
    unsigned count = fill(holder, "a", SMALL), removed = 0;
    fill(needy, "b", SMALL);
    /* A block contains less than 40 objects of this size, so at most one object of each block is deleted. */
    for (unsigned i = 40; i < count - 40; i += 40) {
        remove_numbered(holder, "a", i);
        removed++;
    }
    unsigned spared = (unsigned)(h->blocks * needy->pool->geometry.block_bytes / 2048);
    assert_true(removed > spared + 20);
    pass_epochs(needy, 20); /* After 20 epochs no object is retired. */
    far_sim_sleep(r.world, 3000000);
    unsigned got = 0;
    for (int err = 0; err == 0; got += err == 0) {
        assert_int_equal(far_get(holder->session, holder->index, "a0", 2, NULL, 0, NULL), FAR_ERR_TOO_SMALL);
        snprintf(key, sizeof(key), "c%u", got);
        err = put(needy, key, SMALL);
    }
    assert_true(got + spared + spared / 16 >= removed); /* Other sizes may use a part of the spared memory. */
    check_and_close(&r);
}


/* An operation fails in an exhausted pool. As long as no memory becomes free, further operations fail at once: they are
 * not run again and make no request. Fails without check_refused (out_of_memory.c). */
TEST(an_exhausted_pool_fails_without_new_attempts) {
    for (unsigned handles = 1; handles <= 2; handles++) {
        rig r;
        open_small_pool(&r, 300 + handles, handles, 2, 0, "1500K");
        fill(&r.actors[0], "a", SMALL);
        fill_completely(&r.actors[1], "b", 100);
        fill_completely(&r.actors[0], "c", SMALL); /* This uses the memory that other sessions can still give. */
        far_sim_sleep(r.world, 10000000);
        fill_completely(&r.actors[0], "d", SMALL);
        far_stats before, after;
        far_session_stats(r.actors[0].session, &before);
        uint32_t number = request_now(&r).number;
        for (unsigned i = 0; i < 10; i++)
            assert_int_equal(put(&r.actors[0], "e", SMALL), FAR_ERR_NO_MEMORY);
        far_session_stats(r.actors[0].session, &after);
        assert_int_equal(after.retries, before.retries);  /* The operation failed without a second attempt. */
        assert_int_equal(request_now(&r).number, number); /* The operation made no request. */
        check_and_close(&r);
    }
}


/* A handle found the pool exhausted. Then another handle deletes values. The next operation of the first handle must
 * find that memory, whether the objects are retired or free by then. Fails if check_refused does not compare the bytes
 * that the handles hold. */
TEST(memory_freed_after_a_failure_is_found) {
    for (unsigned late = 0; late < 2; late++) {
        rig r;
        open_small_pool(&r, 303, 2, 2, 0, "1500K");
        put_now(&r.actors[1], "first", 1);
        fill(&r.actors[0], "a", SMALL);
        fill(&r.actors[1], "b", SMALL);
        for (unsigned i = 0; i < 12; i++)
            remove_numbered(&r.actors[0], "a", i);
        for (unsigned i = 0; late && i < 20 && r.actors[0].session->memory->retired_bytes > 0; i++) {
            far_epoch_request(r.actors[0].pool);
            far_sim_sleep(r.world, 200000);
        }
        assert_true((r.actors[0].session->memory->retired_bytes == 0) == late);
        far_sim_sleep(r.world, 1000000); /* in this time the handle publishes what it has retired or freed */
        assert_true(fill(&r.actors[1], "c", SMALL) > 0);
        check_and_close(&r);
    }
}


/* An index is created that does not fit into the pool. Each attempt builds a part and frees that part again, so some
 * memory becomes free in each round, but never enough. The creation must fail after few rounds. */
TEST(an_operation_that_can_never_fit_ends_after_few_attempts) {
    static const char *const kinds[] = {"shard", "dart", "toy"};
    static const char *const options[] = {NULL, NULL, "slots=8192"};
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
        /* retries of the CAS of the request word, which compete with the freeing of the incomplete index */
        uint64_t races = after.cas_failed - before.cas_failed;
        assert_in_range(after.retries - before.retries - races, 1, 9);
        check_and_close(&r);
    }
}
