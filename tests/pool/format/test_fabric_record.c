/* Tests of the fabric record (pool/format/fabric_record.c): a handle that opens a pool avoids the guarantees that a
 * self-test found violated, or is refused; a handle that has the pool open reads the record at its next tick. */
#include "test.h"
#include "pool/handle.h"
#include "pool/format/fabric_record.h"
#include "staged.h"
#include "task/session.h"

#include <stdio.h>
#include <string.h>

#define WORDS "local:8M?name=refuted" /* URI of a pool with a tearing granule of 8 bytes */
#define PAIRS "sim:size=8M,faults=none,name=pairs,atomic_bytes=16"
#define LINES "sim:size=8M,faults=none,name=refuted"

static far_pool *maker; /* handle that keeps the pool in existence and ignores the fabric record */


static far_pool *open_pool(const char *uri, int ignore) {
    far_pool *pool;
    far_pool_options options = {.no_thread = 1, .ignore_refuted = ignore};
    if (far_pool_open(uri, &options, &pool) < 0)
        fail_msg("%s", far_last_error());
    return pool;
}


TEST_FIXTURE(close_maker) {
    far_pool_close(maker);
    return 0;
}


/* Opens the pool as the self-test does, by a handle that ignores the fabric record. */
TEST_FIXTURE(make_words) {
    maker = open_pool(WORDS, 1);
    return 0;
}


TEST_FIXTURE(make_pairs) {
    maker = open_pool(PAIRS, 1);
    return 0;
}


TEST_FIXTURE(make_lines) {
    maker = open_pool(LINES, 1);
    return 0;
}


static int add_violations(far_task *t, void *arg) {
    unsigned recorded, refuted = *(unsigned *)arg;
    int err = far_fabric_record_add(t, refuted, &recorded);
    return err < 0 ? err : (int)recorded;
}


static int clear_record(far_task *t, void *arg) {
    (void)arg;
    return far_fabric_record_clear(t);
}


static int damage_record(far_task *t, void *arg) {
    (void)arg;
    return far_write_word(t, far_addr_make(0, FAR_SUPER_FABRIC_RECORD), FAR_VIOLATED_ALL);
}


static int call_as_maker(int (*run)(far_task *t, void *arg), unsigned refuted) {
    return far_session_call(maker->team.own, FAR_STATS_OTHER, false, run, &refuted);
}


static bool reads_are_in_order(const far_pool *pool) {
    return far_fabric_reads_in_order(pool->fabric);
}


static int read_two_words(far_task *t, void *arg) {
    uint64_t words[2];
    (void)arg;
    far_read(t, far_addr_make(0, FAR_SUPER_POOL_ID), &words[0], 8);
    far_read(t, far_addr_make(0, FAR_SUPER_SHAPE), &words[1], 8);
    return far_wait(t);
}


static uint64_t round_trips_of_two_reads(far_pool *pool) {
    far_session *session;
    far_stats before, after;
    assert_int_equal(far_session_open(pool, &session), 0);
    far_session_stats(session, &before);
    assert_int_equal(far_session_call(session, FAR_STATS_OTHER, false, read_two_words, NULL), 0);
    far_session_stats(session, &after);
    far_session_close(session);
    return after.round_trips - before.round_trips;
}


/* After a violation of the order of READs is recorded, a new handle waits between two READs of one node (two round
 * trips instead of one), unless the record is ignored. */
TEST_WITH(a_new_handle_does_without_the_order_of_reads, make_words, close_maker) {
    far_pool *pool = open_pool(WORDS, 0);
    assert_true(reads_are_in_order(pool));
    assert_int_equal(round_trips_of_two_reads(pool), 1);
    far_pool_close(pool);
    assert_int_equal(call_as_maker(add_violations, FAR_VIOLATED_READS_IN_ORDER), FAR_VIOLATED_READS_IN_ORDER);
    pool = open_pool(WORDS, 0);
    assert_false(reads_are_in_order(pool));
    assert_false(pool->geometry.capabilities.reads_in_order);
    assert_int_equal(round_trips_of_two_reads(pool), 2);
    far_pool_close(pool);
    pool = open_pool(WORDS, 1); /* the option ignore_refuted uses the guarantee in spite of the record */
    assert_true(reads_are_in_order(pool));
    far_pool_close(pool);
}


/* After a violation of the order of atomics is recorded, a new handle does not use that capability. */
TEST_WITH(a_new_handle_does_without_the_order_of_atomics, make_words, close_maker) {
    assert_int_equal(call_as_maker(add_violations, FAR_VIOLATED_ATOMICS_IN_ORDER), FAR_VIOLATED_ATOMICS_IN_ORDER);
    far_pool *pool = open_pool(WORDS, 0);
    assert_false(pool->geometry.capabilities.atomics_in_order);
    assert_true(reads_are_in_order(pool));
    far_pool_close(pool);
}


static void expect_refusal(const char *uri, int error, const char *words) {
    far_pool *pool = NULL;
    assert_int_equal(far_pool_open(uri, NULL, &pool), error);
    assert_null(pool);
    if (!strstr(far_last_error(), words))
        fail_msg("'%s' does not contain '%s'", far_last_error(), words);
}


/* If 64-byte accesses were found to tear, a pool with a tearing granule of 64 bytes is refused, and a pool with 8 bytes
 * is not. */
TEST_WITH(a_pool_is_refused_only_if_it_relies_on_the_violated_granule, make_words, close_maker) {
    assert_int_equal(call_as_maker(add_violations, FAR_VIOLATED_LINES), FAR_VIOLATED_LINES);
    if (maker->geometry.capabilities.atomic_bytes == 64)
        expect_refusal(LINES, FAR_ERR_UNSUPPORTED, "create a new pool with atomic_bytes=8");
    else
        far_pool_close(open_pool(WORDS, 0));
}


/* If 16-byte accesses were found to tear, a new handle uses a tearing granule of 8 bytes, because no layout depends on
 * 16. A handle that has the pool open closes itself. */
TEST_WITH(a_new_handle_does_without_untorn_pairs_of_words, make_pairs, close_maker) {
    far_pool *pool = open_pool(PAIRS, 0);
    assert_int_equal(pool->geometry.capabilities.atomic_bytes, 16);
    assert_int_equal(call_as_maker(add_violations, FAR_VIOLATED_PAIRS), FAR_VIOLATED_PAIRS);
    far_pool *later = open_pool(PAIRS, 0);
    assert_int_equal(later->geometry.capabilities.atomic_bytes, 8);
    far_pool_close(later);
    far_fabric_record_observe(pool,
                      /* an open handle cannot change the protocol of its indexes, so it closes itself */
                      FAR_FABRIC_RECORD_MAGIC << 32 | FAR_VIOLATED_PAIRS);
    assert_non_null(strstr(atomic_load(&pool->fabric->gone), "accesses of 16 bytes"));
    far_pool_close(pool);
}


/* If a rule was violated that every fabric must keep, the pool cannot be opened. */
TEST_WITH(a_fabric_that_violates_a_general_rule_is_refused, make_words, close_maker) {
    assert_int_equal(call_as_maker(add_violations, FAR_VIOLATED_RULE), FAR_VIOLATED_RULE);
    expect_refusal(WORDS, FAR_ERR_UNSUPPORTED, "a rule that every fabric must keep");
}


/* The record accumulates the violations of several self-tests. A self-test without violations removes nothing; only
 * far_fabric_record_clear does. */
TEST_WITH(the_record_grows_until_it_is_cleared, make_words, close_maker) {
    assert_int_equal(call_as_maker(add_violations, 0), 0);
    assert_int_equal(call_as_maker(add_violations, FAR_VIOLATED_READS_IN_ORDER), FAR_VIOLATED_READS_IN_ORDER);
    assert_int_equal(call_as_maker(add_violations, FAR_VIOLATED_ATOMICS_IN_ORDER),
                     FAR_VIOLATED_READS_IN_ORDER | FAR_VIOLATED_ATOMICS_IN_ORDER);
    assert_int_equal(call_as_maker(add_violations, 0), FAR_VIOLATED_READS_IN_ORDER | FAR_VIOLATED_ATOMICS_IN_ORDER);
    assert_int_equal(call_as_maker(clear_record, 0), 0);
    assert_int_equal(call_as_maker(add_violations, 0), 0);
    far_pool *pool = open_pool(WORDS, 0);
    assert_true(reads_are_in_order(pool) && pool->geometry.capabilities.atomics_in_order);
    far_pool_close(pool);
}


typedef struct recorder {
    far_pool pool;
    far_session *session;
    unsigned refuted, recorded;
} recorder;


static void run_record(far_task *t, void *arg) {
    recorder *r = arg;
    assert_int_equal(far_fabric_record_add(t, r->refuted, &r->recorded), 0);
}


/* Two self-tests A and B write to the record in turns, verb by verb. Both violations are recorded. Fails if
 * far_fabric_record_add does not repeat a CAS that failed. */
TEST_WITH(concurrent_self_tests_both_record_their_violations, make_words, close_maker) {
    recorder recorders[2] = {{.refuted = FAR_VIOLATED_READS_IN_ORDER}, {.refuted = FAR_VIOLATED_LINES}};
    for (unsigned i = 0; i < 2; i++) {
        recorder *r = &recorders[i];
        assert_int_equal(far_fabric_open(WORDS, &r->pool.fabric), 0);
        staged_install(r->pool.fabric);
        assert_int_equal(far_pool_session_new(&r->pool, &r->session), 0);
        assert_non_null(far_task_new(r->session, FAR_STATS_OTHER, run_record, r));
        assert_true(far_session_try_enter(r->session));
    }
    for (bool more = true; more;) {
        more = false;
        for (unsigned i = 0; i < 2; i++) {
            while (far_session_step(recorders[i].session))
                ;
            more |= staged_apply_next_verb(recorders[i].session->conn);
        }
    }
    for (unsigned i = 0; i < 2; i++) {
        far_session_leave(recorders[i].session);
        far_session_free(recorders[i].session);
        recorders[i].pool.fabric->ops->close(recorders[i].pool.fabric);
    }
    assert_int_equal(call_as_maker(add_violations, 0), FAR_VIOLATED_READS_IN_ORDER | FAR_VIOLATED_LINES);
}


typedef struct client {
    far_pool *pool;
    far_session *session;
    far_index *index;
} client;


static client join_pool(void) {
    client c = {.pool = open_pool(WORDS, 0)};
    assert_int_equal(far_session_open(c.pool, &c.session), 0);
    int err = far_index_create(c.session, "i", "dart", NULL, &c.index);
    assert_int_equal(err == FAR_ERR_EXISTS ? far_index_open(c.session, "i", &c.index) : err, 0);
    return c;
}


/* Runs a tick and an operation, and returns the result of the operation. If the handle is quiescent, the operation
 * first makes it active, which reads the request line of the superblock. */
static int poll_and_put(const client *c) {
    far_pool_poll(c->pool);
    return far_put(c->session, c->index, "key", 3, "value", 5);
}


static void leave_pool(const client *c) {
    far_index_close(c->index);
    far_session_close(c->session);
    far_pool_close(c->pool);
}


/* Another client records in the fabric record that the fabric does not keep the order of READs. A handle that has the
 * pool open reads the record at a tick. From then on it adds fences to READs, so that each READ waits for the earlier
 * ones. A handle that ignores the record does not. */
TEST_WITH(an_open_handle_does_without_the_order_of_reads_from_its_next_tick, make_words, close_maker) {
    client c = join_pool();
    assert_int_equal(poll_and_put(&c), 0);
    assert_int_equal(call_as_maker(add_violations, FAR_VIOLATED_READS_IN_ORDER), FAR_VIOLATED_READS_IN_ORDER);
    for (unsigned i = 0; i < 100 && reads_are_in_order(c.pool); i++)
        assert_int_equal(poll_and_put(&c), 0);
    assert_false(reads_are_in_order(c.pool));
    assert_true(reads_are_in_order(maker)); /* the handle `maker` ignores the record */
    leave_pool(&c);
}


/* A handle that relies on the order of atomics closes itself when it reads the violation; its operations fail with
 * FAR_ERR_FENCED and a text. It cannot continue, because its open indexes have chosen their protocols. A new handle
 * works. */
TEST_WITH(an_open_handle_that_relies_on_a_violated_guarantee_closes_itself, make_words, close_maker) {
    int err = 0;
    client c = join_pool();
    assert_int_equal(poll_and_put(&c), 0);
    assert_int_equal(call_as_maker(add_violations, FAR_VIOLATED_ATOMICS_IN_ORDER), FAR_VIOLATED_ATOMICS_IN_ORDER);
    for (unsigned i = 0; i < 100 && err == 0; i++)
        err = poll_and_put(&c);
    assert_int_equal(err, FAR_ERR_FENCED);
    assert_non_null(strstr(far_last_error(), "a self-test found that this fabric does not execute atomics in order"));
    leave_pool(&c);
    c = join_pool(); /* a new handle does without the guarantee */
    assert_int_equal(poll_and_put(&c), 0);
    leave_pool(&c);
}


static int fail_on_problem(void *ctx, const char *what) {
    (void)ctx;
    fail_msg("%s", what);
    return 0;
}


/* A check also reads the superblock, perhaps before any tick does. The handle still closes itself at its next tick.
 * Fails if far_fabric_record_check changes the state of the handle, because far_fabric_record_observe would then find
 * nothing new in the record. */
TEST_WITH(an_open_handle_that_checks_the_pool_closes_itself_too, make_words, close_maker) {
    int err = 0;
    client c = join_pool();
    assert_int_equal(poll_and_put(&c), 0);
    assert_int_equal(call_as_maker(add_violations, FAR_VIOLATED_ATOMICS_IN_ORDER), FAR_VIOLATED_ATOMICS_IN_ORDER);
    err = far_pool_check(c.session, 0, fail_on_problem, NULL);
    for (unsigned i = 0; i < 100 && err == 0; i++)
        err = poll_and_put(&c);
    assert_int_equal(err, FAR_ERR_FENCED);
    leave_pool(&c);
}


/* A damaged record prevents opening the pool. The error text names the command that clears it, and that command works,
 * because it opens the pool with ignore_refuted. Otherwise the pool could not be opened again after all handles are
 * closed. */
TEST_WITH(a_damaged_record_can_be_cleared, make_words, close_maker) {
    assert_int_equal(call_as_maker(damage_record, 0), 0);
    expect_refusal(WORDS, FAR_ERR_CORRUPT, "selftest --forget");
    far_pool *pool = open_pool(WORDS, 1);
    assert_int_equal(far_session_call(pool->team.own, FAR_STATS_OTHER, false, clear_record, NULL), 0);
    far_pool_close(pool);
    far_pool_close(open_pool(WORDS, 0));
}


/* A handle that has the pool open ignores a damaged record and continues. */
TEST_WITH(a_damaged_record_disables_nothing_in_an_open_handle, make_words, close_maker) {
    client c = join_pool();
    assert_int_equal(call_as_maker(damage_record, 0), 0);
    for (unsigned i = 0; i < 20; i++)
        assert_int_equal(poll_and_put(&c), 0);
    assert_true(reads_are_in_order(c.pool));
    leave_pool(&c);
    expect_refusal(WORDS, FAR_ERR_CORRUPT, "is damaged");
    assert_int_equal(call_as_maker(clear_record, 0), 0);
    far_pool_close(open_pool(WORDS, 0));
}


static int damage_capabilities(far_task *t, void *arg) {
    (void)arg;
    return far_write_word(t, far_addr_make(0, FAR_SUPER_CAPABILITIES), 0);
}


static int read_capabilities(far_task *t, void *arg) {
    return far_read_word(t, far_addr_make(0, FAR_SUPER_CAPABILITIES), arg);
}


/* A repair restores the damaged capabilities word to the value agreed when the pool was formatted, even if the handle
 * that repairs has disabled one of the capabilities, and whether or not the record was cleared meanwhile. The maker of
 * the pool closes it first, because a repair needs a pool that no other client has open. Fails if write_constants used `capabilities` instead of `agreed_capabilities`. */
TEST_WITH(a_repair_restores_the_capabilities_agreed_at_formatting, make_words, close_maker) {
    for (unsigned forgotten = 0; forgotten < 2; forgotten++) {
        uint64_t agreed = 0, now = 0;
        far_session *session;
        assert_int_equal(far_session_call(maker->team.own, FAR_STATS_OTHER, false, read_capabilities, &agreed), 0);
        assert_int_equal(call_as_maker(add_violations, FAR_VIOLATED_ATOMICS_IN_ORDER), FAR_VIOLATED_ATOMICS_IN_ORDER);
        far_pool *pool = open_pool(WORDS, 0);
        assert_false(pool->geometry.capabilities.atomics_in_order);
        assert_int_equal(far_session_open(pool, &session), 0);
        if (forgotten)
            assert_int_equal(call_as_maker(clear_record, 0), 0);
        far_pool_close(maker);
        far_session *own = pool->team.own;
        assert_int_equal(far_session_call(own, FAR_STATS_OTHER, false, damage_capabilities, NULL), 0);
        assert_true(far_pool_check(session, 0, NULL, NULL) > 0);
        assert_int_equal(far_pool_check(session, 1, NULL, NULL), 0);
        assert_int_equal(far_session_call(own, FAR_STATS_OTHER, false, read_capabilities, &now), 0);
        assert_int_equal(now, agreed);
        maker = open_pool(WORDS, 1);
        far_session_close(session);
        far_pool_close(pool);
        far_pool_close(open_pool(WORDS, 0));
    }
}


TEST_CASE_WITH(a_pool_is_refused_only_if_it_relies_on_the_violated_granule,
               "a_pool_is_refused_only_if_it_relies_on_the_violated_granule make_lines", NULL, make_lines, close_maker);
