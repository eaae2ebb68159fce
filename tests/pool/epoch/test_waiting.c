/* Tests of tasks that wait for another task of the same handle (a latch, an RDWC round, a far lock), while the thread
 * of that task's session does not enter the library. Housekeeping must run that session, unless housekeeping itself is
 * waiting; without a housekeeping thread, the waiting task must. */
#include "test.h"
#include "../support/stage.h"
#include "index/shard/shard.h"
#include "task/session.h"

#include <stdio.h>

#define INLINE "key_size=8,value_size=8,narrow=on,partitions=1,bits=0,slots=4,l2_slots=1,afs=1000000"


static far_op put_of(far_index *index, const uint64_t *key, uint64_t *value) {
    return (far_op){.kind = FAR_OP_PUT, .index = index, .key = key, .key_len = 8, .value = value, .value_len = 8};
}


static void submit_op(far_session *session, far_op *op) {
    assert_int_equal(far_submit(session, &op, 1), 1);
}


static void reap_op(far_session *session, far_op *op) {
    far_op *done;
    assert_int_equal(far_reap(session, &done, 1, 1), 1);
    assert_ptr_equal(done, op);
    assert_int_equal(op->result, 0);
}


static uint64_t get_value(far_session *session, far_index *index, uint64_t key) {
    uint64_t value = 0;
    size_t length;
    assert_int_equal(far_get(session, index, &key, 8, &value, 8, &length), 0);
    return value;
}


static int grow_partition(far_task *t, void *arg) {
    far_index *index = arg;
    int err = far_pin_take(t);
    return err < 0 ? err : shard_try_grow(t, index, &shard_state_of(index)->part[0]);
}


/* A task of A's housekeeping migrates a partition of shard and needs the latch of a bucket, which an operation that A
 * submitted holds. The thread of A does not enter the library again. Housekeeping must run A's session, or both would
 * wait for ever. */
TEST(housekeeping_does_not_wait_for_a_session_that_only_it_drives) {
    stage s;
    uint64_t key[2] = {__builtin_bswap64(1), __builtin_bswap64(2)}, value[3] = {1, 2, 10};
    stage_open(&s, "shard", INLINE, NULL);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(far_put(s.b.session, s.b.index, &key[i], 8, &value[i], 8), 0);
    stage_start_bytes(&s.c, FAR_OP_PUT, &key[1], 8, &value[1], 8);
    /* C holds the lock of the second bucket, so no task splits it yet */
    stage_stop_at(&s.c, (far_sim_match){.point = "shard:locked"});
    assert_true(far_session_call(s.a.session, FAR_STATS_OTHER, false, grow_partition, s.a.index) >= 0);
    assert_int_equal(shard_root_phase(shard_state_of(s.a.index)->part[0].root), SHARD_GROW);
    far_op op = put_of(s.a.index, &key[0], &value[2]);
    submit_op(s.a.session, &op);
    far_sim_sleep(s.world, 5000000); /* The simulated time passes while the thread of A does not enter the library. */
    stage_finish(&s.c);
    far_sim_sleep(s.world, 50000000);
    assert_int_equal(get_value(s.b.session, s.b.index, key[0]), 10);
    reap_op(s.a.session, &op);
    stage_close(&s);
}


/* Returns the number of round trips of housekeeping while the handle reads for `ticks` ticks. */
static uint64_t background_trips_while_reading(stage *s, unsigned ticks) {
    far_host *host = s->a.pool->fabric->host;
    uint64_t key = 1, until = far_host_now(host) + ticks * far_tick(s->a.pool->fabric);
    far_stats before, after;
    far_session_stats(s->a.pool->team.own, &before);
    while (far_host_now(host) < until)
        assert_int_equal(get_value(s->a.session, s->a.index, key), 7);
    far_session_stats(s->a.pool->team.own, &after);
    return after.background_round_trips - before.background_round_trips;
}


/* While a handle only reads, its housekeeping runs once in 4 to 16 ticks, because each slice takes processor time from
 * the operations. */
TEST(housekeeping_of_a_handle_that_only_reads_runs_rarely) {
    stage s;
    uint64_t key = 1, value = 7;
    stage_open(&s, "toy", NULL, NULL);
    assert_int_equal(far_put(s.a.session, s.a.index, &key, 8, &value, 8), 0);
    background_trips_while_reading(&s, 100); /* After this first measurement no work of the put is left. */
    uint64_t trips = background_trips_while_reading(&s, 800);
    assert_in_range(trips, 800 / 16, 800 / 4);
    stage_close(&s);
}


/* An operation that is submitted and not reaped is completed by housekeeping within two ticks, even if housekeeping had
 * made longer pauses before. */
TEST(a_submitted_operation_wakes_housekeeping) {
    stage s;
    uint64_t key = 1, value = 7;
    stage_open(&s, "toy", NULL, NULL);
    assert_int_equal(far_put(s.a.session, s.a.index, &key, 8, &value, 8), 0);
    for (unsigned i = 0; i < 6; i++) {
        background_trips_while_reading(&s, 100 + i);
        far_op op = put_of(s.a.index, &key, &value);
        submit_op(s.a.session, &op);
        far_sim_sleep(s.world, 2 * far_tick(s.a.pool->fabric));
        assert_int_equal(atomic_load(&s.a.session->active), 0);
        reap_op(s.a.session, &op);
    }
    stage_close(&s);
}


typedef struct two_sessions { /* two sessions of a handle without a housekeeping thread */
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


/* The first session submits an operation and is not entered again; the put of the second session must complete. */
static void submit_and_put(const char *kind, const char *options, uint64_t second_key) {
    two_sessions two;
    uint64_t key[2] = {__builtin_bswap64(1), __builtin_bswap64(second_key)}, value[2] = {1, 2};
    open_two(&two, kind, options);
    far_op op = put_of(two.index, &key[0], &value[0]);
    /* the first put makes the handle active and fills the caches */
    assert_int_equal(far_put(two.first, two.index, &key[1], 8, &value[0], 8), 0);
    submit_op(two.first, &op);
    assert_int_equal(far_put(two.second, two.index, &key[1], 8, &value[1], 8), 0);
    reap_op(two.first, &op);
    assert_int_equal(get_value(two.second, two.index, key[1]), 2);
    close_two(&two);
}


/* Two sessions put keys of the same bucket of shard. The first one holds the latch and is not entered again. The second
 * one completes, because it runs the first session's tasks. */
TEST(without_a_thread_a_task_that_waits_for_a_latch_drives_other_sessions) {
    submit_and_put("shard", INLINE, 2);
}


/* Two sessions operate on one key, which RDWC merges. The first one is not entered again; the second one completes,
 * because it runs the first session's tasks. */
TEST(without_a_thread_a_task_that_waits_for_rdwc_drives_other_sessions) {
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


/* An operation of the first session holds a lock in far memory, and its session is not entered again. An operation of
 * the second session that needs the lock completes, because it runs the first session's tasks. */
TEST(without_a_thread_a_task_that_waits_for_a_lock_drives_other_sessions) {
    two_sessions two;
    uint64_t key[4] = {1, 2, 3, 4}, value = 5;
    far_op *done;
    open_two(&two, "shard", "partitions=1,bits=0,slots=2,l2_slots=4,afs=1000000");
    far_sim_world *world = far_sim_world_of(two.pool->fabric);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(far_put(two.first, two.index, &key[i], 8, &value, 8), 0);
    far_op op = put_of(two.index, &key[2], &value);
    submit_op(two.first, &op);
    for (unsigned i = 0; i < 50 && far_session_call(two.second, FAR_STATS_OTHER, false, read_header, &two) == 0; i++)
        assert_int_equal(far_reap(two.first, &done, 1, 0), 0);
    assert_true(far_session_call(two.second, FAR_STATS_OTHER, false, read_header, &two) > 0);
    far_sim_limit(world, 100000000);
    assert_int_equal(far_put(two.second, two.index, &key[3], 8, &value, 8), 0);
    reap_op(two.first, &op);
    close_two(&two);
}
