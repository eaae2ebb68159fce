/* Tests of a client that is stopped in the middle of an operation. The stopped client keeps its pin, so no retired
 * memory becomes free. The tests prove that a client which needs memory waits for a bounded time, and that its error
 * message names the stopped client. */
#include "pool/format/owner.h"
#include "pool/handle.h"
#include "scene.h"
#include "task/session.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

#define UPDATES_EVICTED (3 * RIG_NODES * RIG_BYTES / 1500)
#define UPDATES_MAX     200000
/* largest number of verbs of the first update that finds no memory, including its wait */
#define VERBS_MAX  200000
#define VERBS_NEXT 20000 /* largest number of verbs of the next update, while the same client is still stopped */

typedef struct stage {
    far_pool *pool;
    far_session *session;
    far_index *index;
    const char *kind;
} stage;


static void open_stage(stage *s, unsigned evict_after_ms) {
    far_pool_options options = rig_options;
    options.evict_after_ms = evict_after_ms;
    assert_int_equal(far_pool_open(RIG_URI, &options, &s->pool), 0);
    assert_int_equal(far_session_open(s->pool, &s->session), 0);
}


static void close_stage(stage *s) {
    far_index_close(s->index);
    far_session_close(s->session);
    far_pool_close(s->pool);
}


static int update(stage *s, unsigned number, size_t bytes) {
    char key[SCENE_KEY_BYTES], value[2048];
    memset(value, (int)number, sizeof(value));
    size_t key_bytes = (size_t)snprintf(key, sizeof(key), "key %u", number % 16);
    rig_limit_verbs(VERBS_MAX);
    int err = far_put(s->session, s->index, key, key_bytes, value, bytes);
    assert_false(rig_limit_is_exceeded());
    return err;
}


static int report_unchanged(far_task *t, void *arg) {
    (void)t, (void)arg;
    return 1;
}


static int run_stuck_check(far_task *t, void *arg) {
    (void)arg;
    return far_confirm_abandoned(t, 0, 0, report_unchanged, NULL);
}


/* Proves that checks, which also wait for epochs, fail after a bounded time and name the stopped client. */
static void assert_checks_name_client(stage *s, const char *name) {
    rig_limit_verbs(VERBS_MAX);
    assert_int_equal(far_pool_check(s->session, 0, NULL, NULL), FAR_ERR_BUSY);
    assert_non_null(strstr(far_last_error(), name));
    assert_int_equal(far_session_call(s->session, FAR_STATS_OTHER, false, run_stuck_check, NULL), FAR_ERR_BUSY);
    assert_non_null(strstr(far_last_error(), name));
    assert_false(rig_limit_is_exceeded());
}


/* Runs updates until memory is short. Asserts that the error message names the stopped client. */
static int update_until_out_of_memory(far_task *t, void *arg) {
    stage *s = arg;
    char name[32];
    int err = far_pin_take(t);
    for (unsigned i = 0; i < UPDATES_MAX && err == 0; i++)
        err = update(s, i, 1500 + i % 2);
    assert_int_equal(err, FAR_ERR_NO_MEMORY);
    snprintf(name, sizeof(name), "client %u", far_task_pool(t)->team.own->id);
    print_message("%s: %s\n", s->kind, far_last_error());
    assert_non_null(strstr(far_last_error(), name));
    assert_int_equal(update(s, 3, 1500), FAR_ERR_NO_MEMORY);
    assert_in_range(rig_posted_verbs(), 0, VERBS_NEXT);
    assert_non_null(strstr(far_last_error(), name));
    assert_checks_name_client(s, name);
    return 0;
}


/* Opens two handles on an empty pool. */
static void open_two_handles(stage *stopped, stage *s, unsigned evict_after_ms) {
    for (unsigned n = 0; n < RIG_NODES; n++)
        memset(rig_memory(n), 0, RIG_BYTES);
    rig_limit_verbs(UINT64_MAX);
    open_stage(stopped, 0);
    open_stage(s, evict_after_ms);
    assert_int_equal(far_index_create(s->session, "index", s->kind, NULL, &s->index), 0);
}


TEST_FUNCTION(a_stalled_client_is_named) {
    stage stopped = {0}, s = {.kind = *state};
    open_two_handles(&stopped, &s, 0);
    assert_int_equal(far_session_call(stopped.session, FAR_STATS_OTHER, false, update_until_out_of_memory, &s), 0);
    rig_limit_verbs(UINT64_MAX);
    for (unsigned i = 0; i < 100; i++) { /* The stopped client continues, so the retired memory becomes free. */
        assert_int_equal(far_pool_poll(stopped.pool), 0);
        assert_int_equal(far_pool_poll(s.pool), 0);
    }
    assert_int_equal(update(&s, 1, 1500), 0);
    close_stage(&s);
    close_stage(&stopped);
}


/* Runs updates that need more memory than the pool has. */
static int update_more_than_pool_holds(far_task *t, void *arg) {
    int err = far_pin_take(t);
    for (unsigned i = 0; i < UPDATES_EVICTED && err == 0; i++)
        err = update(arg, i, 1500 + i % 2);
    if (err < 0)
        print_error("%s\n", far_last_error());
    assert_int_equal(err, 0);
    return 0;
}


TEST_FUNCTION(a_long_stalled_client_is_evicted) {
    stage stopped = {0}, s = {.kind = *state};
    open_two_handles(&stopped, &s, 1);
    assert_int_equal(far_session_call(stopped.session, FAR_STATS_OTHER, false, update_more_than_pool_holds, &s), 0);
    rig_limit_verbs(UINT64_MAX);
    assert_int_equal(far_index_open(stopped.session, "index", &stopped.index), FAR_ERR_FENCED);
    close_stage(&s);
    close_stage(&stopped);
}


/* The out-of-memory error also names a stalled client that this handle failed to evict, because then only the user can
 * end that client. */
TEST_FUNCTION(a_client_that_cannot_be_evicted_is_named) {
    stage stopped = {0}, s = {.kind = *state};
    rig_refuse_evictions(true);
    open_two_handles(&stopped, &s, 1);
    assert_int_equal(far_session_call(stopped.session, FAR_STATS_OTHER, false, update_until_out_of_memory, &s), 0);
    rig_refuse_evictions(false);
    rig_limit_verbs(UINT64_MAX);
    /* The open succeeds, because the client was not fenced. */
    assert_int_equal(far_index_open(stopped.session, "index", &stopped.index), 0);
    close_stage(&s);
    close_stage(&stopped);
}


static void poll_handle(void *arg) {
    assert_int_equal(far_pool_poll(arg), 0);
}


typedef struct trio {
    stage slow, s; /* The client `slow` publishes an old pin, because it has not read the epoch for a while. */
} trio;


/* Runs updates until memory is short. The client `slow` continues while the other client determines which client to
 * evict. */
static int update_while_slow_client_runs(far_task *t, void *arg) {
    trio *x = arg;
    int err = far_pin_take(t);
    rig_refuse_evictions(true);
    assert_int_equal(update(&x->slow, 0, 1500), 0);
    for (unsigned i = 0; i < UPDATES_MAX && err == 0; i++)
        err = update(&x->s, i, 1500 + i % 2);
    assert_int_equal(err, FAR_ERR_NO_MEMORY);
    rig_refuse_evictions(false);
    rig_run_while_waiting(poll_handle, x->slow.pool);
    assert_int_equal(update(&x->s, 3, 1500), 0);
    rig_run_while_waiting(NULL, NULL);
    return 0;
}


/* Two clients publish an old pin. Proves that the client that makes progress is not evicted, although it was observed
 * first. */
TEST_FUNCTION(a_slow_client_is_not_evicted) {
    stage stopped = {0};
    trio x = {.slow = {.kind = *state}, .s = {.kind = *state}};
    for (unsigned n = 0; n < RIG_NODES; n++)
        memset(rig_memory(n), 0, RIG_BYTES);
    rig_limit_verbs(UINT64_MAX);
    open_stage(&x.slow, 0);
    assert_int_equal(far_index_create(x.slow.session, "index", x.slow.kind, NULL, &x.slow.index), 0);
    open_stage(&stopped, 0);
    open_stage(&x.s, 1);
    assert_int_equal(far_index_open(x.s.session, "index", &x.s.index), 0);
    assert_int_equal(far_session_call(stopped.session, FAR_STATS_OTHER, false, update_while_slow_client_runs, &x), 0);
    rig_limit_verbs(UINT64_MAX);
    assert_int_equal(far_index_open(stopped.session, "index", &stopped.index), FAR_ERR_FENCED);
    assert_int_equal(update(&x.slow, 0, 1500), 0);
    close_stage(&x.s);
    close_stage(&x.slow);
    close_stage(&stopped);
}


TEST_CASE(a_stalled_client_is_named, "chime", "chime");
TEST_CASE(a_stalled_client_is_named, "dart", "dart");
TEST_CASE(a_stalled_client_is_named, "dolphin", "dolphin");
TEST_CASE(a_stalled_client_is_named, "shard", "shard");
TEST_CASE(a_stalled_client_is_named, "smart", "smart");
TEST_CASE(a_client_that_cannot_be_evicted_is_named, "dart, not to be evicted", "dart");
TEST_CASE(a_slow_client_is_not_evicted, "dart, another goes on", "dart");
TEST_CASE(a_long_stalled_client_is_evicted, "chime, evicted", "chime");
TEST_CASE(a_long_stalled_client_is_evicted, "dart, evicted", "dart");
TEST_CASE(a_long_stalled_client_is_evicted, "dolphin, evicted", "dolphin");
TEST_CASE(a_long_stalled_client_is_evicted, "shard, evicted", "shard");
TEST_CASE(a_long_stalled_client_is_evicted, "smart, evicted", "smart");
TEST_GROUP(rig_start, rig_end);
