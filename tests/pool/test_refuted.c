/* What a self-test has refuted is on record at the pool: who opens it goes without, or is refused; who has it open
 * learns of it with the next tick. */
#include "pool/handle.h"
#include "pool/refuted.h"
#include "staged.h"
#include "task/session.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define WORDS "local:8M?name=refuted" /* units of a word, or of two */
#define PAIRS "sim:size=8M,faults=none,name=pairs,atomic_bytes=16"
#define LINES "sim:size=8M,faults=none,name=refuted"

static far_pool *maker; /* keeps the pool alive */


static far_pool *open_pool(const char *uri, int ignore) {
    far_pool *pool;
    far_pool_options options = {.no_thread = 1, .ignore_refuted = ignore};
    if (far_pool_open(uri, &options, &pool) < 0)
        fail_msg("%s", far_last_error());
    return pool;
}


static int close_maker(void **state) {
    (void)state;
    far_pool_close(maker);
    return 0;
}


/* As the self-test does it, with a handle that gives up nothing. */
static int make_words(void **state) {
    (void)state;
    maker = open_pool(WORDS, 1);
    return 0;
}


static int make_pairs(void **state) {
    (void)state;
    maker = open_pool(PAIRS, 1);
    return 0;
}


static int make_lines(void **state) {
    (void)state;
    maker = open_pool(LINES, 1);
    return 0;
}


static int record(far_task *t, void *arg) {
    unsigned recorded, refuted = *(unsigned *)arg;
    int err = far_refuted_record(t, refuted, &recorded);
    return err < 0 ? err : (int)recorded;
}


static int forget(far_task *t, void *arg) {
    (void)arg;
    return far_refuted_forget(t);
}


static int write_damage(far_task *t, void *arg) {
    (void)arg;
    return far_write_word(t, far_addr_make(0, FAR_SUPER_REFUTED), FAR_REFUTED_ALL);
}


static int by_maker(int (*run)(far_task *t, void *arg), unsigned refuted) {
    return far_session_call(maker->team.own, FAR_STATS_OTHER, false, run, &refuted);
}


static bool keeps_order_of_reads(const far_pool *pool) {
    return far_fabric_reads_in_order(pool->fabric);
}


static int read_two(far_task *t, void *arg) {
    uint64_t words[2];
    (void)arg;
    far_read(t, far_addr_make(0, FAR_SUPER_POOL_ID), &words[0], 8);
    far_read(t, far_addr_make(0, FAR_SUPER_SHAPE), &words[1], 8);
    return far_wait(t);
}


static uint64_t trips_of_two_reads(far_pool *pool) {
    far_session *session;
    far_stats before, after;
    assert_int_equal(far_session_open(pool, &session), 0);
    far_session_stats(session, &before);
    assert_int_equal(far_session_call(session, FAR_STATS_OTHER, false, read_two, NULL), 0);
    far_session_stats(session, &after);
    far_session_close(session);
    return after.round_trips - before.round_trips;
}


static void who_opens_the_pool_goes_without_the_order_of_reads(void **state) {
    (void)state;
    far_pool *pool = open_pool(WORDS, 0);
    assert_true(keeps_order_of_reads(pool));
    assert_int_equal(trips_of_two_reads(pool), 1);
    far_pool_close(pool);
    assert_int_equal(by_maker(record, FAR_REFUTED_READS_IN_ORDER), FAR_REFUTED_READS_IN_ORDER);
    pool = open_pool(WORDS, 0);
    assert_false(keeps_order_of_reads(pool));
    assert_false(pool->geometry.capabilities.reads_in_order);
    assert_int_equal(trips_of_two_reads(pool), 2);
    far_pool_close(pool);
    pool = open_pool(WORDS, 1); /* on purpose */
    assert_true(keeps_order_of_reads(pool));
    far_pool_close(pool);
}


static void who_opens_the_pool_goes_without_the_order_of_atomics(void **state) {
    (void)state;
    assert_int_equal(by_maker(record, FAR_REFUTED_ATOMICS_IN_ORDER), FAR_REFUTED_ATOMICS_IN_ORDER);
    far_pool *pool = open_pool(WORDS, 0);
    assert_false(pool->geometry.capabilities.atomics_in_order);
    assert_true(keeps_order_of_reads(pool));
    far_pool_close(pool);
}


static void expect_refusal(const char *uri, int error, const char *words) {
    far_pool *pool = NULL;
    assert_int_equal(far_pool_open(uri, NULL, &pool), error);
    assert_null(pool);
    if (!strstr(far_last_error(), words))
        fail_msg("'%s' says nothing of '%s'", far_last_error(), words);
}


static void a_pool_that_relies_on_refuted_units_is_refused_and_others_are_not(void **state) {
    (void)state;
    assert_int_equal(by_maker(record, FAR_REFUTED_UNITS), FAR_REFUTED_UNITS);
    if (maker->geometry.capabilities.atomic_bytes == 64)
        expect_refusal(LINES, FAR_ERR_UNSUPPORTED, "make a new pool with atomic_bytes=8");
    else
        far_pool_close(open_pool(WORDS, 0));
}


/* No layout rests on them. */
static void who_opens_the_pool_goes_without_pairs(void **state) {
    (void)state;
    far_pool *pool = open_pool(PAIRS, 0);
    assert_int_equal(pool->geometry.capabilities.atomic_bytes, 16);
    assert_int_equal(by_maker(record, FAR_REFUTED_PAIRS), FAR_REFUTED_PAIRS);
    far_pool *later = open_pool(PAIRS, 0);
    assert_int_equal(later->geometry.capabilities.atomic_bytes, 8);
    far_pool_close(later);
    far_refuted_learn(pool,
                      FAR_REFUTED_MARK << 32 | FAR_REFUTED_PAIRS); /* its open indexes have chosen their protocol */
    assert_non_null(strstr(atomic_load(&pool->fabric->gone), "units of 16 bytes"));
    far_pool_close(pool);
}


static void nobody_uses_a_fabric_that_breaks_a_rule_of_all(void **state) {
    (void)state;
    assert_int_equal(by_maker(record, FAR_REFUTED_RULE), FAR_REFUTED_RULE);
    expect_refusal(WORDS, FAR_ERR_UNSUPPORTED, "a rule that every fabric must keep");
}


/* A self-test that sees nothing takes nothing off the record. */
static void the_record_grows_until_it_is_forgotten(void **state) {
    (void)state;
    assert_int_equal(by_maker(record, 0), 0);
    assert_int_equal(by_maker(record, FAR_REFUTED_READS_IN_ORDER), FAR_REFUTED_READS_IN_ORDER);
    assert_int_equal(by_maker(record, FAR_REFUTED_ATOMICS_IN_ORDER),
                     FAR_REFUTED_READS_IN_ORDER | FAR_REFUTED_ATOMICS_IN_ORDER);
    assert_int_equal(by_maker(record, 0), FAR_REFUTED_READS_IN_ORDER | FAR_REFUTED_ATOMICS_IN_ORDER);
    assert_int_equal(by_maker(forget, 0), 0);
    assert_int_equal(by_maker(record, 0), 0);
    far_pool *pool = open_pool(WORDS, 0);
    assert_true(keeps_order_of_reads(pool) && pool->geometry.capabilities.atomics_in_order);
    far_pool_close(pool);
}


typedef struct recorder {
    far_pool pool;
    far_session *session;
    unsigned refuted, recorded;
} recorder;


static void run_record(far_task *t, void *arg) {
    recorder *r = arg;
    assert_int_equal(far_refuted_record(t, r->refuted, &r->recorded), 0);
}


/* Verb by verb, in turns. */
static void two_self_tests_at_once_both_go_on_record(void **state) {
    (void)state;
    recorder recorders[2] = {{.refuted = FAR_REFUTED_READS_IN_ORDER}, {.refuted = FAR_REFUTED_UNITS}};
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
            more |= staged_effect(recorders[i].session->conn);
        }
    }
    for (unsigned i = 0; i < 2; i++) {
        far_session_leave(recorders[i].session);
        far_session_free(recorders[i].session);
        recorders[i].pool.fabric->ops->close(recorders[i].pool.fabric);
    }
    assert_int_equal(by_maker(record, 0), FAR_REFUTED_READS_IN_ORDER | FAR_REFUTED_UNITS);
}


typedef struct client {
    far_pool *pool;
    far_session *session;
    far_index *index;
} client;


static client join(void) {
    client c = {.pool = open_pool(WORDS, 0)};
    assert_int_equal(far_session_open(c.pool, &c.session), 0);
    int err = far_index_create(c.session, "i", "dart", NULL, &c.index);
    assert_int_equal(err == FAR_ERR_EXISTS ? far_index_open(c.session, "i", &c.index) : err, 0);
    return c;
}


/* A tick, and an operation: a handle that slept reads the line of the superblock before anything else. */
static int work(const client *c) {
    far_pool_poll(c->pool);
    return far_put(c->session, c->index, "key", 3, "value", 5);
}


static void leave(const client *c) {
    far_index_close(c->index);
    far_session_close(c->session);
    far_pool_close(c->pool);
}


static void an_open_handle_goes_without_the_order_of_reads_from_then_on(void **state) {
    (void)state;
    client c = join();
    assert_int_equal(work(&c), 0);
    assert_int_equal(by_maker(record, FAR_REFUTED_READS_IN_ORDER), FAR_REFUTED_READS_IN_ORDER);
    for (unsigned i = 0; i < 100 && keeps_order_of_reads(c.pool); i++)
        assert_int_equal(work(&c), 0);
    assert_false(keeps_order_of_reads(c.pool));
    assert_true(keeps_order_of_reads(maker)); /* it ignores the record */
    leave(&c);
}


/* Its open indexes have chosen their protocol. */
static void an_open_handle_that_relies_on_what_was_refuted_ends(void **state) {
    (void)state;
    int err = 0;
    client c = join();
    assert_int_equal(work(&c), 0);
    assert_int_equal(by_maker(record, FAR_REFUTED_ATOMICS_IN_ORDER), FAR_REFUTED_ATOMICS_IN_ORDER);
    for (unsigned i = 0; i < 100 && err == 0; i++)
        err = work(&c);
    assert_int_equal(err, FAR_ERR_FENCED);
    assert_non_null(strstr(far_last_error(), "a self-test has refuted that atomics keep their order"));
    leave(&c);
    c = join(); /* it goes without */
    assert_int_equal(work(&c), 0);
    leave(&c);
}


static int tell_nothing(void *ctx, const char *what) {
    (void)ctx;
    fail_msg("%s", what);
    return 0;
}


/* A check reads the superblock too, and perhaps before any tick does: the handle learns no less from the next one. */
static void an_open_handle_that_checks_the_pool_ends_all_the_same(void **state) {
    (void)state;
    int err = 0;
    client c = join();
    assert_int_equal(work(&c), 0);
    assert_int_equal(by_maker(record, FAR_REFUTED_ATOMICS_IN_ORDER), FAR_REFUTED_ATOMICS_IN_ORDER);
    err = far_pool_check(c.session, 0, tell_nothing, NULL);
    for (unsigned i = 0; i < 100 && err == 0; i++)
        err = work(&c);
    assert_int_equal(err, FAR_ERR_FENCED);
    leave(&c);
}


/* Else nobody could open the pool again, once all have closed it: as the self-test does it. */
static void a_damaged_record_can_be_forgotten(void **state) {
    (void)state;
    assert_int_equal(by_maker(write_damage, 0), 0);
    expect_refusal(WORDS, FAR_ERR_CORRUPT, "selftest --forget");
    far_pool *pool = open_pool(WORDS, 1);
    assert_int_equal(far_session_call(pool->team.own, FAR_STATS_OTHER, false, forget, NULL), 0);
    far_pool_close(pool);
    far_pool_close(open_pool(WORDS, 0));
}


static void a_damaged_record_refutes_nothing(void **state) {
    (void)state;
    client c = join();
    assert_int_equal(by_maker(write_damage, 0), 0);
    for (unsigned i = 0; i < 20; i++)
        assert_int_equal(work(&c), 0);
    assert_true(keeps_order_of_reads(c.pool));
    leave(&c);
    expect_refusal(WORDS, FAR_ERR_CORRUPT, "is damaged");
    assert_int_equal(by_maker(forget, 0), 0);
    far_pool_close(open_pool(WORDS, 0));
}


static int damage_capabilities(far_task *t, void *arg) {
    (void)arg;
    return far_write_word(t, far_addr_make(0, FAR_SUPER_CAPABILITIES), 0);
}


static int read_capabilities(far_task *t, void *arg) {
    return far_read_word(t, far_addr_make(0, FAR_SUPER_CAPABILITIES), arg);
}


/* Also when its own handle goes without a part of it, and whether or not that is on record still. */
static void a_repair_writes_what_was_agreed_when_the_pool_was_formatted(void **state) {
    (void)state;
    for (unsigned forgotten = 0; forgotten < 2; forgotten++) {
        uint64_t agreed = 0, now = 0;
        far_session *session, *own = maker->team.own;
        assert_int_equal(far_session_call(own, FAR_STATS_OTHER, false, read_capabilities, &agreed), 0);
        assert_int_equal(by_maker(record, FAR_REFUTED_ATOMICS_IN_ORDER), FAR_REFUTED_ATOMICS_IN_ORDER);
        far_pool *pool = open_pool(WORDS, 0);
        assert_false(pool->geometry.capabilities.atomics_in_order);
        assert_int_equal(far_session_open(pool, &session), 0);
        if (forgotten)
            assert_int_equal(by_maker(forget, 0), 0);
        assert_int_equal(by_maker(damage_capabilities, 0), 0);
        assert_true(far_pool_check(session, 0, NULL, NULL) > 0);
        assert_int_equal(far_pool_check(session, 1, NULL, NULL), 0);
        assert_int_equal(far_session_call(own, FAR_STATS_OTHER, false, read_capabilities, &now), 0);
        assert_int_equal(now, agreed);
        far_session_close(session);
        far_pool_close(pool);
        far_pool_close(open_pool(WORDS, 0));
    }
}


#define ON(test, make) cmocka_unit_test_setup_teardown(test, make, close_maker)

int main(void) {
    const struct CMUnitTest tests[] = {
        ON(who_opens_the_pool_goes_without_the_order_of_reads, make_words),
        ON(who_opens_the_pool_goes_without_the_order_of_atomics, make_words),
        ON(a_pool_that_relies_on_refuted_units_is_refused_and_others_are_not, make_words),
        ON(a_pool_that_relies_on_refuted_units_is_refused_and_others_are_not, make_lines),
        ON(who_opens_the_pool_goes_without_pairs, make_pairs),
        ON(nobody_uses_a_fabric_that_breaks_a_rule_of_all, make_words),
        ON(the_record_grows_until_it_is_forgotten, make_words),
        ON(two_self_tests_at_once_both_go_on_record, make_words),
        ON(an_open_handle_goes_without_the_order_of_reads_from_then_on, make_words),
        ON(an_open_handle_that_relies_on_what_was_refuted_ends, make_words),
        ON(an_open_handle_that_checks_the_pool_ends_all_the_same, make_words),
        ON(a_damaged_record_refutes_nothing, make_words),
        ON(a_damaged_record_can_be_forgotten, make_words),
        ON(a_repair_writes_what_was_agreed_when_the_pool_was_formatted, make_words),
    };
    return cmocka_run_group_tests_name("pool/refuted", tests, NULL, NULL);
}
