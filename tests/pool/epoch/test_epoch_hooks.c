/* Tests of epoch hooks, of waiting for epochs, and of the epoch rules with real threads, on the local fabric. */
#include "epoch_rig.h"
#include "test.h"
#include "index/index.h"

#include <time.h>


/* ---- Epoch hooks ---- */

static struct {
    uint64_t seen[64];
    unsigned count;
    uint64_t pinned_at;
    bool too_late; /* true if a pin at the new epoch could already be taken when the hook ran */
} hook_calls;


static int record_hook_call(far_task *t, far_index *index, uint64_t epoch) {
    (void)index;
    hook_calls.seen[hook_calls.count++] = epoch;
    hook_calls.pinned_at = far_epoch(t);
    hook_calls.too_late |= atomic_load(&far_task_pool(t)->epochs.current) >= epoch;
    return 0;
}


/* The epoch hook of an open index runs once for each epoch that the handle enters, under a pin of the previous epoch
 * and before a pin at the new one can be taken. A quiescent handle runs no hooks; it runs the hook for the current
 * epoch when it becomes active. */
TEST_WITH(hooks_run_once_per_epoch_before_its_first_pin_and_on_activation, new_world, NULL) {
    static const far_index_kind kind = {.name = "hooked", .epoch_hook = record_hook_call};
    far_index index = {.kind = &kind, .uid = 1, .opens = 1};
    memset(&hook_calls, 0, sizeof(hook_calls));
    far_pool *pool = open_pool(1);
    far_session *s = open_session(pool);
    control_time(pool);
    pool->indexes = &index;
    held_pin h;
    uint64_t epoch = read_global_epoch(s);
    hold_pin(&h, s);
    assert_int_equal(hook_calls.count, 1);
    assert_int_equal(hook_calls.seen[0], epoch);
    request_epochs(pool, 1);
    assert_int_equal(read_global_epoch(s), epoch + 1);
    assert_int_equal(hook_calls.count, 2);
    assert_int_equal(hook_calls.seen[1], epoch + 1);
    assert_int_equal(hook_calls.pinned_at, epoch);
    release_pin(&h);
    request_epochs(pool, 2);
    assert_int_equal(hook_calls.count, 4);
    assert_int_equal(hook_calls.seen[3], epoch + 3);
    let_handle_become_quiescent(pool);
    assert_int_equal(read_published_pin(s), 0);
    request_epochs(pool, 5); /* the handle is quiescent, so no hook runs */
    assert_int_equal(hook_calls.count, 4);
    hold_pin(&h, s);
    assert_int_equal(h.epoch, epoch + 8);
    assert_int_equal(hook_calls.count, 5);
    assert_int_equal(hook_calls.seen[4], epoch + 8);
    assert_false(hook_calls.too_late);
    assert_int_equal(atomic_load(&index.uses), 0);
    release_pin(&h);
    pool->indexes = NULL;
    far_session_close(s);
    far_pool_close(pool);
}


static int failing_hook(far_task *t, far_index *index, uint64_t epoch) {
    (void)t, (void)index, (void)epoch;
    return FAR_ERR_CORRUPT;
}


static int pin_once(far_task *t, void *arg) {
    (void)arg;
    return far_pin_take(t);
}


/* If a hook fails while the handle becomes active, the caller gets its error. The pin that was already published is
 * withdrawn by the next tick. */
TEST_WITH(a_failed_activation_returns_its_error_and_leaves_no_published_pin, new_world, NULL) {
    static const far_index_kind kind = {.name = "failing", .epoch_hook = failing_hook};
    far_index index = {.kind = &kind, .uid = 1, .opens = 1};
    far_pool *pool = open_pool(1);
    far_session *s = open_session(pool);
    pool->indexes = &index;
    assert_int_equal(call(s, pin_once, NULL), FAR_ERR_CORRUPT);
    assert_int_not_equal(read_published_pin(s), 0);
    pool->indexes = NULL;
    poll_times(pool, 1);
    assert_int_equal(read_published_pin(s), 0);
    assert_int_equal(call(s, pin_once, NULL), 0);
    far_session_close(s);
    far_pool_close(pool);
}


static int wait_pinned(far_task *t, void *arg) {
    (void)arg;
    int err = far_pin_take(t);
    return err < 0 ? err : far_wait_epochs_until(t, 1, FAR_TIME_NEVER);
}


static int wait_epochs(far_task *t, void *arg) {
    return far_wait_epochs_until(t, *(unsigned *)arg, FAR_TIME_NEVER);
}


/* A wait for k epochs ends, with and without a housekeeping thread, in a user's session and in the system session. A
 * task with a pin is refused. */
TEST_WITH(waiting_for_epochs_works_from_every_session, new_world, NULL) {
    for (int no_thread = 0; no_thread < 2; no_thread++) {
        far_pool *pool = open_pool(no_thread);
        far_session *s = open_session(pool);
        unsigned k = 3;
        uint64_t epoch = read_global_epoch(s);
        assert_int_equal(call(s, wait_epochs, &k), 0);
        assert_int_equal(read_global_epoch(s), epoch + 4);
        assert_int_equal(call(pool->team.own, wait_epochs, &k), 0);
        assert_true(read_global_epoch(s) >= epoch + 8);
        k = 0;
        assert_int_equal(call(s, wait_epochs, &k), 0);
        assert_int_equal(call(s, wait_pinned, NULL), FAR_ERR_INVALID);
        far_session_close(s);
        far_pool_close(pool);
    }
}


/* ---- The epoch rules with real threads ---- */

#define HANDLES 3
#define USERS   2
#define THREADS (HANDLES * USERS)
#define WAITS   60

static struct user {
    far_pool *pool;
    pthread_t thread;
    _Atomic uint64_t pin;    /* epoch of the pin that this user holds now; 0: none */
    _Atomic uint64_t serial; /* serial number of the pin in `pin` among the pins of this user */
    uint64_t pins;
    char padding[64];
} users[THREADS];
static atomic_bool stop;
static atomic_uint rule_violations;


static int use_pin(far_task *t, void *arg) {
    struct user *u = arg;
    far_random *random = &t->session->random;
    int err = far_pin_take(t);
    if (err < 0)
        return err;
    uint64_t e = far_epoch(t), first, last;
    atomic_store(&u->serial, ++u->pins);
    atomic_store(&u->pin, e);
    if ((err = far_epoch_read(t, &first)) < 0)
        return err;
    if (far_random_chance(random, 1, 16))
        far_sleep(t, far_random_below(random, 2000000));
    if ((err = far_epoch_read(t, &last)) < 0)
        return err;
    if (first < e || last > e + 1 || far_epoch_safe(t) > e)
        atomic_fetch_add(&rule_violations, 1);
    atomic_store(&u->pin, 0);
    far_pin_drop(t);
    return 0;
}


static void *user_main(void *arg) {
    struct user *u = arg;
    far_session *s;
    if (far_session_open(u->pool, &s) < 0)
        return (void *)1;
    for (unsigned round = 0; round == 0 || !atomic_load(&stop); round++) {
        if (call(s, use_pin, u) < 0)
            atomic_fetch_add(&rule_violations, 1);
        if (round % 64 == 63)
            /* Up to 24 ms are sometimes long enough for the handle to become quiescent. */
            sleep_ms((unsigned)far_random_below(&s->random, 25));
    }
    far_session_close(s);
    return NULL;
}


static int wait_and_check(far_task *t, void *arg) {
    uint64_t pins[THREADS], serials[THREADS], begin;
    unsigned k = (unsigned)far_random_below(&t->session->random, 4);
    (void)arg;
    int err = far_epoch_read(t, &begin);
    if (err < 0)
        return err;
    for (int i = 0; i < THREADS; i++) {
        pins[i] = atomic_load(&users[i].pin);
        serials[i] = atomic_load(&users[i].serial);
    }
    if ((err = far_wait_epochs_until(t, k, FAR_TIME_NEVER)) < 0)
        return err;
    for (int i = 0; i < THREADS; i++) {
        uint64_t pin = atomic_load(&users[i].pin);
        if (pin != 0 && pin < begin + k)
            atomic_fetch_add(&rule_violations, 1);
        if (k > 0 && pins[i] != 0 && pin != 0 && atomic_load(&users[i].serial) == serials[i] && pins[i] == pin)
            atomic_fetch_add(&rule_violations, 1);
    }
    return 0;
}


/* Threads of three handles take pins and become quiescent at random while one session waits for epochs. While a pin at
 * e is held, the epoch is e or e+1; after a wait for k epochs, every pin is at least k epochs younger than at its
 * beginning. */
TEST_WITH(pins_and_waits_keep_the_epoch_rules_under_threads, new_world, NULL) {
    far_pool *pools[HANDLES];
    atomic_store(&stop, false);
    for (int i = 0; i < HANDLES; i++)
        pools[i] = open_pool(0);
    for (int i = 0; i < THREADS; i++) {
        users[i].pool = pools[i % HANDLES];
        assert_int_equal(pthread_create(&users[i].thread, NULL, user_main, &users[i]), 0);
    }
    far_session *s = open_session(pools[0]);
    uint64_t epoch = read_global_epoch(s);
    for (int i = 0; i < WAITS; i++)
        assert_int_equal(call(s, wait_and_check, NULL), 0);
    assert_true(read_global_epoch(s) >= epoch + WAITS);
    atomic_store(&stop, true);
    for (int i = 0; i < THREADS; i++) {
        void *failed;
        pthread_join(users[i].thread, &failed);
        assert_null(failed);
        assert_true(users[i].pins > 0);
    }
    assert_int_equal(atomic_load(&rule_violations), 0);
    far_session_close(s);
    for (int i = 0; i < HANDLES; i++)
        far_pool_close(pools[i]);
}
