/* The self-test of a fabric: one that keeps what it says passes, and one that lies is found out, by the rule that it
 * breaks and no other. */
#include "pool/alloc.h"
#include "pool/catalog_layout.h"
#include "pool/epoch.h"
#include "pool/handle.h"
#include "pool/refuted.h"
#include "pool/store.h"
#include "task/session.h"
#include "verify/selftest.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define TRIES 400


/* What is broken among what is claimed: the capability, "" for a rule of all fabrics, NULL for nothing. */
static const char *refuted(const char *uri, void (*lie)(far_capabilities *can)) {
    far_pool *pool;
    far_selftest_result results[FAR_SELFTESTS];
    const char *found = NULL;
    assert_int_equal(far_pool_open(uri, NULL, &pool), 0);
    if (lie)
        lie(&pool->geometry.capabilities);
    assert_int_equal(far_selftest(pool, TRIES, NULL, results), 0);
    for (unsigned i = 0; i < FAR_SELFTESTS; i++) {
        assert_true((results[i].tries > 0) == !results[i].left_out);
        if (!results[i].claimed || results[i].broken == 0)
            continue;
        const char *capability = results[i].capability ? results[i].capability : "";
        if (found)
            assert_string_equal(capability, found); /* one at most */
        found = capability;
    }
    far_pool_close(pool);
    return found;
}


static void say_reads_in_order(far_capabilities *can) {
    can->reads_in_order = true;
}


static void say_atomics_in_order(far_capabilities *can) {
    can->atomics_in_order = true;
}


static void say_pairs(far_capabilities *can) {
    can->atomic_bytes = 16;
}


static void say_lines(far_capabilities *can) {
    can->atomic_bytes = 64;
}


static void fabrics_keep_what_they_say(void **state) {
    (void)state;
    assert_null(refuted("local:2x16M", NULL));
    assert_null(refuted("sim:size=16M,memory_nodes=2,faults=all", NULL));
    assert_null(refuted("sim:size=16M,faults=all,atomics_in_order=on,masked_cas=off", NULL));
    assert_null(refuted("sim:size=16M,faults=all,reads_in_order=off,atomic_bytes=8", NULL));
    assert_null(refuted("sim:size=16M,faults=all,atomic_bytes=16", NULL));
}


static void who_lies_is_found_out(void **state) {
    (void)state;
    assert_string_equal(refuted("sim:size=16M,faults=all,reads_in_order=off", say_reads_in_order), "reads_in_order");
    assert_string_equal(refuted("sim:size=16M,faults=all", say_atomics_in_order), "atomics_in_order");
    assert_string_equal(refuted("sim:size=16M,faults=all,atomic_bytes=8", say_lines), "atomic_bytes=64");
    assert_string_equal(refuted("sim:size=16M,faults=all,atomic_bytes=16", say_lines), "atomic_bytes=64");
    assert_string_equal(refuted("sim:size=16M,faults=all,atomic_bytes=8", say_pairs), "atomic_bytes=16");
}


static int stop_behind_the_order_of_reads(double done, const char *rule) {
    (void)done;
    return strcmp(rule, "words of 8 bytes never tear") == 0;
}


/* Somebody ends the self-test when it has seen enough: what it saw is not forgotten. */
static void what_was_seen_before_the_end_goes_on_record(void **state) {
    (void)state;
    far_pool *pool;
    far_selftest_result results[FAR_SELFTESTS];
    unsigned broken = 0;
    assert_int_equal(far_pool_open("sim:size=16M,faults=all,reads_in_order=off", NULL, &pool), 0);
    say_reads_in_order(&pool->geometry.capabilities);
    assert_int_equal(far_selftest(pool, TRIES, stop_behind_the_order_of_reads, results), 0);
    for (unsigned i = 0; i < FAR_SELFTESTS; i++) {
        bool of_reads = results[i].capability && strcmp(results[i].capability, "reads_in_order") == 0;
        assert_int_equal(results[i].recorded, of_reads);
        broken += results[i].broken > 0;
    }
    assert_true(broken > 0);
    far_pool_close(pool);
}


static far_pool *other;
static unsigned told[4], told_count;


static int record_order_of_reads(far_task *t, void *arg) {
    unsigned recorded;
    (void)arg;
    return far_refuted_record(t, FAR_REFUTED_READS_IN_ORDER, &recorded);
}


/* In place of the nodes. Before they hear of it, another self-test records something, and they have heard of that. */
static int hear(far_fabric *fabric, unsigned refuted) {
    (void)fabric;
    if (told_count == 0)
        assert_int_equal(far_session_call(other->team.own, FAR_STATS_OTHER, false, record_order_of_reads, NULL), 0);
    assert_true(told_count < 4);
    told[told_count++] = refuted;
    return 0;
}


static void nodes_hear_last_what_is_on_record(void **state) {
    (void)state;
    far_pool *pool;
    far_pool_options options = {.no_thread = 1, .ignore_refuted = 1};
    assert_int_equal(far_pool_open("local:16M?name=selftest", &options, &pool), 0);
    assert_int_equal(far_pool_open("local:16M?name=selftest", &options, &other), 0);
    far_fabric_ops ops = *pool->fabric->ops;
    const far_fabric_ops *own = pool->fabric->ops;
    ops.record = hear;
    pool->fabric->ops = &ops;
    assert_int_equal(far_selftest_forget(pool), 0);
    assert_int_equal(told_count, 2);
    assert_int_equal(told[0], 0);
    assert_int_equal(told[1], FAR_REFUTED_READS_IN_ORDER);
    pool->fabric->ops = own;
    far_pool_close(other);
    far_pool_close(pool);
}


static int keep_some(far_task *t, void *arg) {
    far_object object;
    (void)arg;
    int err = far_pin_take(t);
    if (err == 0)
        err = far_alloc(t, NULL, FAR_POOL_TYPE_RECORD, 512, 0, FAR_ALLOC_ON_NODE | FAR_ALLOC_KEEP, &object);
    far_pin_drop(t);
    return err;
}


/* The memory on which the rules are tried is the session's own and of no index. (It was freed with the next epoch, as
 * that of an index which is closed: others wrote to it, and rules seemed to be broken.) */
static void its_memory_stays_its_own(void **state) {
    (void)state;
    far_pool *pool;
    far_session *session;
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    options.no_thread = 1;
    assert_int_equal(far_pool_open("local:16M", &options, &pool), 0);
    assert_int_equal(far_session_open(pool, &session), 0);
    assert_int_equal(far_session_call(session, FAR_STATS_OTHER, false, keep_some, NULL), 0);
    assert_int_equal(session->memory->kept_count, 1);
    far_kept_free_closed(pool->store);
    assert_int_equal(session->memory->kept_count, 1);
    far_session_close(session);
    far_pool_close(pool);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fabrics_keep_what_they_say),
        cmocka_unit_test(who_lies_is_found_out),
        cmocka_unit_test(what_was_seen_before_the_end_goes_on_record),
        cmocka_unit_test(nodes_hear_last_what_is_on_record),
        cmocka_unit_test(its_memory_stays_its_own),
    };
    return cmocka_run_group_tests_name("verify/selftest", tests, NULL, NULL);
}
