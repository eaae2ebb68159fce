/* A task that waits for another one of its handle (a latch, an RDWC round) while that one's thread stays away: somebody
 * must drive it. Housekeeping does, unless it is itself the one that waits; without its thread, whoever waits does. */
#include "../support/stage.h"
#include "index/shard/shard.h"
#include "task/session.h"

#include <stdio.h>

#define INLINE "key_size=8,value_size=8,narrow=on,partitions=1,bits=0,slots=4,l2_slots=1,afs=1000000"


static far_op put_of(far_index *index, const uint64_t *key, uint64_t *value) {
    return (far_op){.kind = FAR_OP_PUT, .index = index, .key = key, .key_len = 8, .value = value, .value_len = 8};
}


static void submit(far_session *session, far_op *op) {
    assert_int_equal(far_submit(session, &op, 1), 1);
}


static void reap(far_session *session, far_op *op) {
    far_op *done;
    assert_int_equal(far_reap(session, &done, 1, 1), 1);
    assert_ptr_equal(done, op);
    assert_int_equal(op->result, 0);
}


static uint64_t get(far_session *session, far_index *index, uint64_t key) {
    uint64_t value = 0;
    size_t length;
    assert_int_equal(far_get(session, index, &key, 8, &value, 8, &length), 0);
    return value;
}


static int grow(far_task *t, void *arg) {
    far_index *index = arg;
    int err = far_pin_take(t);
    return err < 0 ? err : shard_try_grow(t, index, &shard_state_of(index)->part[0]);
}


/* The sweep of an idle partition wants the bucket whose latch an operation has that was submitted and left alone. */
static void housekeeping_does_not_wait_for_who_only_it_drives(void **state) {
    (void)state;
    stage s;
    uint64_t key[2] = {__builtin_bswap64(1), __builtin_bswap64(2)}, value[3] = {1, 2, 10};
    stage_open(&s, "shard", INLINE, NULL);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(far_put(s.b.session, s.b.index, &key[i], 8, &value[i], 8), 0);
    stage_start_bytes(&s.c, FAR_OP_PUT, &key[1], 8, &value[1], 8);
    stage_stop_at(&s.c, (far_sim_match){.point = "shard:locked"}); /* so that nobody splits the bucket yet */
    assert_true(far_session_call(s.a.session, FAR_STATS_OTHER, false, grow, s.a.index) >= 0);
    assert_int_equal(shard_root_phase(shard_state_of(s.a.index)->part[0].root), SHARD_GROW);
    far_op op = put_of(s.a.index, &key[0], &value[2]);
    submit(s.a.session, &op);
    far_sim_sleep(s.world, 5000000); /* a does not come back */
    stage_finish(&s.c);
    far_sim_sleep(s.world, 50000000);
    assert_int_equal(get(s.b.session, s.b.index, key[0]), 10);
    reap(s.a.session, &op);
    stage_close(&s);
}


/* Round trips of housekeeping while the handle reads for so many ticks. */
static uint64_t reads_beside(stage *s, unsigned ticks) {
    far_host *host = s->a.pool->fabric->host;
    uint64_t key = 1, until = far_host_now(host) + ticks * far_tick(s->a.pool->fabric);
    far_stats before, after;
    far_session_stats(s->a.pool->team.own, &before);
    while (far_host_now(host) < until)
        assert_int_equal(get(s->a.session, s->a.index, key), 7);
    far_session_stats(s->a.pool->team.own, &after);
    return after.background_round_trips - before.background_round_trips;
}


/* Every slice of housekeeping takes a processor from those who work. */
static void housekeeping_of_who_only_reads_wakes_seldom(void **state) {
    (void)state;
    stage s;
    uint64_t key = 1, value = 7;
    stage_open(&s, "toy", NULL, NULL);
    assert_int_equal(far_put(s.a.session, s.a.index, &key, 8, &value, 8), 0);
    reads_beside(&s, 100); /* what the put left is done */
    uint64_t trips = reads_beside(&s, 800);
    assert_in_range(trips, 800 / 16, 800 / 4);
    stage_close(&s);
}


/* What is submitted and left alone is driven by housekeeping, also when that had nothing to do for long. */
static void who_submits_wakes_housekeeping(void **state) {
    (void)state;
    stage s;
    uint64_t key = 1, value = 7;
    stage_open(&s, "toy", NULL, NULL);
    assert_int_equal(far_put(s.a.session, s.a.index, &key, 8, &value, 8), 0);
    for (unsigned i = 0; i < 6; i++) {
        reads_beside(&s, 100 + i);
        far_op op = put_of(s.a.index, &key, &value);
        submit(s.a.session, &op);
        far_sim_sleep(s.world, 2 * far_tick(s.a.pool->fabric));
        assert_int_equal(atomic_load(&s.a.session->active), 0);
        reap(s.a.session, &op);
    }
    stage_close(&s);
}


typedef struct two_sessions { /* of one handle without a thread */
    far_pool *pool;
    far_session *first, *second;
    far_index *index;
} two_sessions;


static void open_two(two_sessions *two, const char *kind, const char *options) {
    char uri[WORLD_URI];
    far_pool_options pool_options = FAR_POOL_OPTIONS_INIT;
    pool_options.no_thread = 1;
    world_uri(uri, "seed=1,size=8M,faults=none");
    world_join(uri, &pool_options, &two->pool, &two->first);
    assert_int_equal(far_session_open(two->pool, &two->second), 0);
    assert_int_equal(far_index_create(two->first, "map", kind, options, &two->index), 0);
}


static void close_two(two_sessions *two) {
    far_index_close(two->index);
    far_session_close(two->second);
    far_session_close(two->first);
    far_pool_close(two->pool);
}


/* The first submits, and is left alone; the second must come through. */
static void submit_and_put(const char *kind, const char *options, uint64_t second_key) {
    two_sessions two;
    uint64_t key[2] = {__builtin_bswap64(1), __builtin_bswap64(second_key)}, value[2] = {1, 2};
    open_two(&two, kind, options);
    far_op op = put_of(two.index, &key[0], &value[0]);
    assert_int_equal(far_put(two.first, two.index, &key[1], 8, &value[0], 8), 0); /* it is awake, and knows its way */
    submit(two.first, &op);
    assert_int_equal(far_put(two.second, two.index, &key[1], 8, &value[1], 8), 0);
    reap(two.first, &op);
    assert_int_equal(get(two.second, two.index, key[1]), 2);
    close_two(&two);
}


static void without_a_thread_who_waits_for_a_latch_drives_the_others(void **state) {
    (void)state;
    submit_and_put("shard", INLINE, 2);
}


static void without_a_thread_who_waits_for_a_round_drives_the_others(void **state) {
    (void)state;
    submit_and_put("shard", "partitions=1", 1);
    submit_and_put("toy", NULL, 1);
}


static int read_header(far_task *t, void *arg) {
    const two_sessions *two = arg;
    uint64_t header = 0;
    far_addr bucket = shard_state_of(two->index)->part[0].segment[0];
    int err = far_read_word(t, bucket + 8 * SHARD_P_HEADER, &header);
    return err < 0 ? err : (int)shard_header_owner(header);
}


/* A lock in far memory, of an operation of another session that was left alone in the middle. */
static void without_a_thread_who_waits_for_a_lock_drives_the_others(void **state) {
    (void)state;
    two_sessions two;
    uint64_t key[4] = {1, 2, 3, 4}, value = 5;
    far_op *done;
    open_two(&two, "shard", "partitions=1,bits=0,slots=2,l2_slots=4,afs=1000000");
    far_sim_world *world = far_sim_world_of(two.pool->fabric);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(far_put(two.first, two.index, &key[i], 8, &value, 8), 0);
    far_op op = put_of(two.index, &key[2], &value);
    submit(two.first, &op);
    for (unsigned i = 0; i < 50 && far_session_call(two.second, FAR_STATS_OTHER, false, read_header, &two) == 0; i++)
        assert_int_equal(far_reap(two.first, &done, 1, 0), 0);
    assert_true(far_session_call(two.second, FAR_STATS_OTHER, false, read_header, &two) > 0);
    far_sim_limit(world, 100000000);
    assert_int_equal(far_put(two.second, two.index, &key[3], 8, &value, 8), 0);
    reap(two.first, &op);
    close_two(&two);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(housekeeping_does_not_wait_for_who_only_it_drives),
        cmocka_unit_test(housekeeping_of_who_only_reads_wakes_seldom),
        cmocka_unit_test(who_submits_wakes_housekeeping),
        cmocka_unit_test(without_a_thread_who_waits_for_a_latch_drives_the_others),
        cmocka_unit_test(without_a_thread_who_waits_for_a_round_drives_the_others),
        cmocka_unit_test(without_a_thread_who_waits_for_a_lock_drives_the_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
