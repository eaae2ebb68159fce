/* The self-test of a fabric: a fabric that keeps its guarantees passes, and a false claim is found by the rule that it
 * breaks and by no other rule. */
#include "test.h"
#include "pool/alloc/alloc.h"
#include "pool/alloc/store.h"
#include "pool/catalog/layout.h"
#include "pool/epoch/epoch.h"
#include "pool/format/fabric_record.h"
#include "pool/handle.h"
#include "task/session.h"
#include "verify/selftest.h"

#include <string.h>

#define TRIES 400


/* Runs the self-test on a fabric. `claim`, if it is not NULL, first changes the capabilities that the fabric claims.
 * Returns NULL if no rule was violated that follows from the claims. Otherwise returns the name of the capability that
 * the violated rule belongs to, or "" if it is a rule of all fabrics. */
static const char *find_violation(const char *uri, void (*claim)(far_capabilities *can)) {
    far_pool *pool;
    far_selftest_result results[FAR_SELFTESTS];
    const char *found = NULL;
    assert_int_equal(far_pool_open(uri, NULL, &pool), 0);
    if (claim)
        claim(&pool->geometry.capabilities);
    assert_int_equal(far_selftest(pool, TRIES, NULL, results), 0);
    for (unsigned i = 0; i < FAR_SELFTESTS; i++) {
        assert_true((results[i].tries > 0) == !results[i].left_out);
        if (!results[i].claimed || results[i].broken == 0)
            continue;
        const char *capability = results[i].capability ? results[i].capability : "";
        if (found)
            assert_string_equal(capability, found); /* violations concern at most one capability */
        found = capability;
    }
    far_pool_close(pool);
    return found;
}


static void claim_reads_in_order(far_capabilities *can) {
    can->reads_in_order = true;
}


static void claim_atomics_in_order(far_capabilities *can) {
    can->atomics_in_order = true;
}


static void claim_granules_of_16(far_capabilities *can) {
    can->atomic_bytes = 16;
}


static void claim_granules_of_64(far_capabilities *can) {
    can->atomic_bytes = 64;
}


/* The self-test finds no violation on fabrics that keep their claims, under all faults. */
TEST(fabrics_keep_their_guarantees) {
    assert_null(find_violation("local:2x16M", NULL));
    assert_null(find_violation("sim:size=16M,memory_nodes=2,faults=all", NULL));
    assert_null(find_violation("sim:size=16M,faults=all,atomics_in_order=on,masked_cas=off", NULL));
    assert_null(find_violation("sim:size=16M,faults=all,reads_in_order=off,atomic_bytes=8", NULL));
    assert_null(find_violation("sim:size=16M,faults=all,atomic_bytes=16", NULL));
}


/* A fabric that claims a guarantee which it does not keep is found by the rule of this guarantee. */
TEST(a_false_claim_is_found) {
    assert_string_equal(find_violation("sim:size=16M,faults=all,reads_in_order=off", claim_reads_in_order),
                        "reads_in_order");
    assert_string_equal(find_violation("sim:size=16M,faults=all", claim_atomics_in_order), "atomics_in_order");
    assert_string_equal(find_violation("sim:size=16M,faults=all,atomic_bytes=8", claim_granules_of_64),
                        "atomic_bytes=64");
    assert_string_equal(find_violation("sim:size=16M,faults=all,atomic_bytes=16", claim_granules_of_64),
                        "atomic_bytes=64");
    assert_string_equal(find_violation("sim:size=16M,faults=all,atomic_bytes=8", claim_granules_of_16),
                        "atomic_bytes=16");
}


static int stop_after_the_order_of_reads(double done, const char *rule) {
    (void)done;
    return strcmp(rule, "words of 8 bytes never tear") == 0;
}


/* The callback ends the self-test after the rules about the order of READs. Their violations are recorded nevertheless.
 */
TEST(violations_found_before_an_early_end_are_recorded) {
    far_pool *pool;
    far_selftest_result results[FAR_SELFTESTS];
    unsigned broken = 0;
    assert_int_equal(far_pool_open("sim:size=16M,faults=all,reads_in_order=off", NULL, &pool), 0);
    claim_reads_in_order(&pool->geometry.capabilities);
    assert_int_equal(far_selftest(pool, TRIES, stop_after_the_order_of_reads, results), 0);
    for (unsigned i = 0; i < FAR_SELFTESTS; i++) {
        bool of_reads = results[i].capability && strcmp(results[i].capability, "reads_in_order") == 0;
        assert_int_equal(results[i].recorded, of_reads);
        broken += results[i].broken > 0;
    }
    assert_true(broken > 0);
    far_pool_close(pool);
}


static far_pool *other;
static unsigned recorded_words[4], recorded_count;


static int record_order_of_reads(far_task *t, void *arg) {
    unsigned recorded;
    (void)arg;
    return far_fabric_record_add(t, FAR_VIOLATED_READS_IN_ORDER, &recorded);
}


/* Replaces the operation `record` of the fabric. During the first call, another self-test records a violation in the
 * pool, so the word that the nodes get is outdated at once. */
static int record_at_nodes(far_fabric *fabric, unsigned find_violation) {
    (void)fabric;
    if (recorded_count == 0)
        assert_int_equal(far_session_call(other->team.own, FAR_STATS_OTHER, false, record_order_of_reads, NULL), 0);
    assert_true(recorded_count < 4);
    recorded_words[recorded_count++] = find_violation;
    return 0;
}


/* Two self-tests change the record at the same time. The memory nodes finally have the word that is recorded in the
 * pool. Fails without the loop in `change_record` (verify/selftest.c). */
TEST(memory_nodes_end_with_the_recorded_word) {
    far_pool *pool;
    far_pool_options options = {.no_thread = 1, .ignore_refuted = 1};
    assert_int_equal(far_pool_open("local:16M?name=selftest", &options, &pool), 0);
    assert_int_equal(far_pool_open("local:16M?name=selftest", &options, &other), 0);
    far_fabric_ops ops = *pool->fabric->ops;
    const far_fabric_ops *own = pool->fabric->ops;
    ops.record = record_at_nodes;
    pool->fabric->ops = &ops;
    assert_int_equal(far_selftest_forget(pool), 0);
    assert_int_equal(recorded_count, 2);
    assert_int_equal(recorded_words[0], 0);
    assert_int_equal(recorded_words[1], FAR_VIOLATED_READS_IN_ORDER);
    pool->fabric->ops = own;
    far_pool_close(other);
    far_pool_close(pool);
}


static int allocate_session_owned(far_task *t, void *arg) {
    far_object object;
    (void)arg;
    int err = far_pin_take(t);
    if (err == 0)
        err = far_alloc(t, NULL, FAR_POOL_TYPE_RECORD, 512, 0, FAR_ALLOC_ON_NODE | FAR_ALLOC_SESSION_OWNED, &object);
    far_pin_drop(t);
    return err;
}


/* The memory of a self-test belongs to its session and to no index. Otherwise it would be freed with the next epoch
 * like that of a closed index, other clients would write to it, and rules would seem to be violated. */
TEST(memory_of_the_self_test_belongs_to_its_session) {
    far_pool *pool;
    far_session *session;
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    options.no_thread = 1;
    assert_int_equal(far_pool_open("local:16M", &options, &pool), 0);
    assert_int_equal(far_session_open(pool, &session), 0);
    assert_int_equal(far_session_call(session, FAR_STATS_OTHER, false, allocate_session_owned, NULL), 0);
    assert_int_equal(session->memory->session_owned_count, 1);
    far_session_owned_free_closed(pool->store);
    assert_int_equal(session->memory->session_owned_count, 1);
    far_session_close(session);
    far_pool_close(pool);
}
