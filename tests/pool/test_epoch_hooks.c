/* Epochs on the local fabric: hooks, waiting for epochs, the rules under threads. */
#include "epoch_rig.h"
#include "index/index.h"

#include <time.h>


/* ---- Hooks ---- */

static struct {
    uint64_t seen[64];
    unsigned count;
    uint64_t pinned_at;
    bool too_late; /* a pin at the new epoch could be taken already */
} hooked;


static int note_epoch(far_task *t, far_index *index, uint64_t epoch) {
    (void)index;
    hooked.seen[hooked.count++] = epoch;
    hooked.pinned_at = far_epoch(t);
    hooked.too_late |= atomic_load(&far_task_pool(t)->epochs.current) >= epoch;
    return 0;
}


static void hooks_run_once_per_epoch_before_its_first_pin_and_on_waking(void **state) {
    (void)state;
    static const far_index_kind kind = {.name = "hooked", .epoch_hook = note_epoch};
    far_index index = {.kind = &kind, .uid = 1};
    memset(&hooked, 0, sizeof(hooked));
    far_pool *pool = open_pool(1);
    far_session *s = open_session(pool);
    set_time_by_hand(pool);
    pool->indexes = &index;
    hold h;
    uint64_t epoch = global(s);
    take(&h, s);
    assert_int_equal(hooked.count, 1);
    assert_int_equal(hooked.seen[0], epoch);
    push(pool, 1);
    assert_int_equal(global(s), epoch + 1);
    assert_int_equal(hooked.count, 2);
    assert_int_equal(hooked.seen[1], epoch + 1);
    assert_int_equal(hooked.pinned_at, epoch);
    drop(&h);
    push(pool, 2);
    assert_int_equal(hooked.count, 4);
    assert_int_equal(hooked.seen[3], epoch + 3);
    let_it_fall_asleep(pool);
    assert_int_equal(published(s), 0);
    push(pool, 5); /* asleep: no hook */
    assert_int_equal(hooked.count, 4);
    take(&h, s);
    assert_int_equal(h.epoch, epoch + 8);
    assert_int_equal(hooked.count, 5);
    assert_int_equal(hooked.seen[4], epoch + 8);
    assert_false(hooked.too_late);
    assert_int_equal(atomic_load(&index.uses), 0);
    drop(&h);
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


static void a_wake_that_fails_is_told_and_leaves_nothing_published(void **state) {
    (void)state;
    static const far_index_kind kind = {.name = "failing", .epoch_hook = failing_hook};
    far_index index = {.kind = &kind, .uid = 1};
    far_pool *pool = open_pool(1);
    far_session *s = open_session(pool);
    pool->indexes = &index;
    assert_int_equal(call(s, pin_once, NULL), FAR_ERR_CORRUPT);
    assert_int_not_equal(published(s), 0);
    pool->indexes = NULL;
    poll_times(pool, 1);
    assert_int_equal(published(s), 0);
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


static void waiting_for_epochs_works_from_every_session(void **state) {
    (void)state;
    for (int no_thread = 0; no_thread < 2; no_thread++) {
        far_pool *pool = open_pool(no_thread);
        far_session *s = open_session(pool);
        unsigned k = 3;
        uint64_t epoch = global(s);
        assert_int_equal(call(s, wait_epochs, &k), 0);
        assert_int_equal(global(s), epoch + 4);
        assert_int_equal(call(pool->team.own, wait_epochs, &k), 0);
        assert_true(global(s) >= epoch + 8);
        k = 0;
        assert_int_equal(call(s, wait_epochs, &k), 0);
        assert_int_equal(call(s, wait_pinned, NULL), FAR_ERR_INVALID);
        far_session_close(s);
        far_pool_close(pool);
    }
}


/* ---- The rules under threads ---- */

#define HANDLES 3
#define USERS   2
#define THREADS (HANDLES * USERS)
#define WAITS   60

static struct user {
    far_pool *pool;
    pthread_t thread;
    _Atomic uint64_t pin;    /* held now; 0 = none */
    _Atomic uint64_t serial; /* of that pin */
    uint64_t pins;
    char padding[64];
} users[THREADS];
static atomic_bool stop;
static atomic_uint broken;


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
        atomic_fetch_add(&broken, 1);
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
            atomic_fetch_add(&broken, 1);
        if (round % 64 == 63)
            sleep_ms((unsigned)far_random_below(&s->random, 25)); /* long enough to fall asleep now and then */
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
            atomic_fetch_add(&broken, 1);
        if (k > 0 && pins[i] != 0 && pin != 0 && atomic_load(&users[i].serial) == serials[i] && pins[i] == pin)
            atomic_fetch_add(&broken, 1);
    }
    return 0;
}


static void pins_and_waits_keep_their_word_under_threads(void **state) {
    (void)state;
    far_pool *pools[HANDLES];
    atomic_store(&stop, false);
    for (int i = 0; i < HANDLES; i++)
        pools[i] = open_pool(0);
    for (int i = 0; i < THREADS; i++) {
        users[i].pool = pools[i % HANDLES];
        assert_int_equal(pthread_create(&users[i].thread, NULL, user_main, &users[i]), 0);
    }
    far_session *s = open_session(pools[0]);
    uint64_t epoch = global(s);
    for (int i = 0; i < WAITS; i++)
        assert_int_equal(call(s, wait_and_check, NULL), 0);
    assert_true(global(s) >= epoch + WAITS);
    atomic_store(&stop, true);
    for (int i = 0; i < THREADS; i++) {
        void *failed;
        pthread_join(users[i].thread, &failed);
        assert_null(failed);
        assert_true(users[i].pins > 0);
    }
    assert_int_equal(atomic_load(&broken), 0);
    far_session_close(s);
    for (int i = 0; i < HANDLES; i++)
        far_pool_close(pools[i]);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(hooks_run_once_per_epoch_before_its_first_pin_and_on_waking, new_world),
        cmocka_unit_test_setup(a_wake_that_fails_is_told_and_leaves_nothing_published, new_world),
        cmocka_unit_test_setup(waiting_for_epochs_works_from_every_session, new_world),
        cmocka_unit_test_setup(pins_and_waits_keep_their_word_under_threads, new_world),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
