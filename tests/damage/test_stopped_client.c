/* A client that is stopped in the middle of an operation holds its pin: nothing that others retire becomes free. Whoever
 * needs memory then waits for a bounded time, and is told which client is in the way. */
#include "pool/handle.h"
#include "pool/owner.h"
#include "scene.h"
#include "task/session.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define UPDATES_EVICTED (3 * RIG_NODES * RIG_BYTES / 1500)
#define UPDATES_MAX     200000
#define VERBS_MAX       200000 /* of the first update that finds no memory, and waits for it */
#define VERBS_NEXT      20000  /* of the next: the same client is still in the way */

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
    rig_allow(VERBS_MAX);
    int err = far_put(s->session, s->index, key, key_bytes, value, bytes);
    assert_false(rig_is_cut());
    return err;
}


static int is_unchanged(far_task *t, void *arg) {
    (void)t, (void)arg;
    return 1;
}


static int look_for_locks(far_task *t, void *arg) {
    (void)arg;
    return far_is_stuck(t, 0, 0, is_unchanged, NULL);
}


/* Checks wait for epochs, too: in vain, for a bounded time. */
static void checks_say_who_is_in_the_way(stage *s, const char *name) {
    rig_allow(VERBS_MAX);
    assert_int_equal(far_pool_check(s->session, 0, NULL, NULL), FAR_ERR_BUSY);
    assert_non_null(strstr(far_last_error(), name));
    assert_int_equal(far_session_call(s->session, FAR_STATS_OTHER, false, look_for_locks, NULL), FAR_ERR_BUSY);
    assert_non_null(strstr(far_last_error(), name));
    assert_false(rig_is_cut());
}


/* Updates until memory is short; the error names the one that is stopped. */
static int work_beside(far_task *t, void *arg) {
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
    assert_in_range(rig_posted(), 0, VERBS_NEXT);
    assert_non_null(strstr(far_last_error(), name));
    checks_say_who_is_in_the_way(s, name);
    return 0;
}


/* Two handles on an empty pool. */
static void open_both(stage *stopped, stage *s, unsigned evict_after_ms) {
    for (unsigned n = 0; n < RIG_NODES; n++)
        memset(rig_memory(n), 0, RIG_BYTES);
    rig_allow(UINT64_MAX);
    open_stage(stopped, 0);
    open_stage(s, evict_after_ms);
    assert_int_equal(far_index_create(s->session, "index", s->kind, NULL, &s->index), 0);
}


static void who_is_in_the_way_is_named(void **state) {
    stage stopped = {0}, s = {.kind = *state};
    open_both(&stopped, &s, 0);
    assert_int_equal(far_session_call(stopped.session, FAR_STATS_OTHER, false, work_beside, &s), 0);
    rig_allow(UINT64_MAX);
    for (unsigned i = 0; i < 100; i++) { /* it goes on: what waited becomes free */
        assert_int_equal(far_pool_poll(stopped.pool), 0);
        assert_int_equal(far_pool_poll(s.pool), 0);
    }
    assert_int_equal(update(&s, 1, 1500), 0);
    close_stage(&s);
    close_stage(&stopped);
}


/* More than the pool holds. */
static int work_on(far_task *t, void *arg) {
    int err = far_pin_take(t);
    for (unsigned i = 0; i < UPDATES_EVICTED && err == 0; i++)
        err = update(arg, i, 1500 + i % 2);
    if (err < 0)
        print_error("%s\n", far_last_error());
    assert_int_equal(err, 0);
    return 0;
}


static void who_is_in_the_way_for_long_is_evicted(void **state) {
    stage stopped = {0}, s = {.kind = *state};
    open_both(&stopped, &s, 1);
    assert_int_equal(far_session_call(stopped.session, FAR_STATS_OTHER, false, work_on, &s), 0);
    rig_allow(UINT64_MAX);
    assert_int_equal(far_index_open(stopped.session, "index", &stopped.index), FAR_ERR_FENCED);
    close_stage(&s);
    close_stage(&stopped);
}


/* It is named as before: that it cannot be ended is not the fault of who needs memory. */
static void who_cannot_be_evicted_is_named(void **state) {
    stage stopped = {0}, s = {.kind = *state};
    rig_refuse_evictions(true);
    open_both(&stopped, &s, 1);
    assert_int_equal(far_session_call(stopped.session, FAR_STATS_OTHER, false, work_beside, &s), 0);
    rig_refuse_evictions(false);
    rig_allow(UINT64_MAX);
    assert_int_equal(far_index_open(stopped.session, "index", &stopped.index), 0); /* it lives */
    close_stage(&s);
    close_stage(&stopped);
}


static void go_on(void *arg) {
    assert_int_equal(far_pool_poll(arg), 0);
}


typedef struct trio {
    stage slow, s; /* slow: shows an old pin, because it has not looked at the epoch for a while */
} trio;


/* Memory is short, and slow goes on while it is looked for who is in the way. */
static int work_beside_slow(far_task *t, void *arg) {
    trio *x = arg;
    int err = far_pin_take(t);
    rig_refuse_evictions(true);
    assert_int_equal(update(&x->slow, 0, 1500), 0);
    for (unsigned i = 0; i < UPDATES_MAX && err == 0; i++)
        err = update(&x->s, i, 1500 + i % 2);
    assert_int_equal(err, FAR_ERR_NO_MEMORY);
    rig_refuse_evictions(false);
    rig_meanwhile(go_on, x->slow.pool);
    assert_int_equal(update(&x->s, 3, 1500), 0);
    rig_meanwhile(NULL, NULL);
    return 0;
}


/* Two clients show an old pin. The one that goes on is not the one that is ended, although it was met first. */
static void who_goes_on_is_not_evicted(void **state) {
    stage stopped = {0};
    trio x = {.slow = {.kind = *state}, .s = {.kind = *state}};
    for (unsigned n = 0; n < RIG_NODES; n++)
        memset(rig_memory(n), 0, RIG_BYTES);
    rig_allow(UINT64_MAX);
    open_stage(&x.slow, 0);
    assert_int_equal(far_index_create(x.slow.session, "index", x.slow.kind, NULL, &x.slow.index), 0);
    open_stage(&stopped, 0);
    open_stage(&x.s, 1);
    assert_int_equal(far_index_open(x.s.session, "index", &x.s.index), 0);
    assert_int_equal(far_session_call(stopped.session, FAR_STATS_OTHER, false, work_beside_slow, &x), 0);
    rig_allow(UINT64_MAX);
    assert_int_equal(far_index_open(stopped.session, "index", &stopped.index), FAR_ERR_FENCED);
    assert_int_equal(update(&x.slow, 0, 1500), 0);
    close_stage(&x.s);
    close_stage(&x.slow);
    close_stage(&stopped);
}


int main(void) {
    static const struct CMUnitTest tests[] = {
        {"chime", who_is_in_the_way_is_named, NULL, NULL, "chime"},
        {"dart", who_is_in_the_way_is_named, NULL, NULL, "dart"},
        {"dolphin", who_is_in_the_way_is_named, NULL, NULL, "dolphin"},
        {"shard", who_is_in_the_way_is_named, NULL, NULL, "shard"},
        {"smart", who_is_in_the_way_is_named, NULL, NULL, "smart"},
        {"dart, not to be evicted", who_cannot_be_evicted_is_named, NULL, NULL, "dart"},
        {"dart, another goes on", who_goes_on_is_not_evicted, NULL, NULL, "dart"},
        {"chime, evicted", who_is_in_the_way_for_long_is_evicted, NULL, NULL, "chime"},
        {"dart, evicted", who_is_in_the_way_for_long_is_evicted, NULL, NULL, "dart"},
        {"dolphin, evicted", who_is_in_the_way_for_long_is_evicted, NULL, NULL, "dolphin"},
        {"shard, evicted", who_is_in_the_way_for_long_is_evicted, NULL, NULL, "shard"},
        {"smart, evicted", who_is_in_the_way_for_long_is_evicted, NULL, NULL, "smart"},
    };
    rig_start();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rig_end();
    return failed;
}
