/* Epochs on the local fabric: what holds the epoch back and what does not, hooks, costs, the rules under threads. */
#include "base/error.h"
#include "index/index.h"
#include "pool/handle.h"
#include "pool/request.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static unsigned world;


static int new_world(void **state) {
    (void)state;
    world++;
    return 0;
}


static far_pool *open_pool(int no_thread) {
    char uri[64];
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    options.no_thread = no_thread;
    far_pool *pool;
    snprintf(uri, sizeof(uri), "local:2M?name=epoch%u", world);
    int err = far_pool_open(uri, &options, &pool);
    if (err < 0)
        fail_msg("%s", far_last_error());
    return pool;
}


static far_session *open_session(far_pool *pool) {
    far_session *s;
    assert_int_equal(far_session_open(pool, &s), 0);
    return s;
}


static void sleep_ms(unsigned ms) {
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000L}, NULL);
}


static int call(far_session *s, int (*run)(far_task *, void *), void *arg) {
    return far_session_call(s, FAR_OP_GET, false, run, arg);
}


static int read_epoch(far_task *t, void *arg) {
    return far_epoch_read(t, arg);
}


static uint64_t global(far_session *s) {
    uint64_t epoch;
    assert_int_equal(call(s, read_epoch, &epoch), 0);
    return epoch;
}


static int read_pin_word(far_task *t, void *arg) {
    return far_read_word(t, far_client_entry(far_task_pool(t)->team.own->id) + 8, arg);
}


static uint64_t published(far_session *s) {
    uint64_t word;
    assert_int_equal(call(s, read_pin_word, &word), 0);
    return word;
}


/* A pin held by a task that waits to be released. */
typedef struct hold {
    far_session *session;
    far_task *task;
    uint64_t epoch;
    int err;
    bool pinned, release, done;
} hold;


static void run_hold(far_task *t, void *arg) {
    hold *h = arg;
    h->err = far_pin_take(t);
    h->epoch = far_epoch(t);
    h->pinned = true;
    while (!h->release)
        far_task_block(t);
    far_pin_drop(t);
    h->done = true;
}


static void take(hold *h, far_session *s) {
    memset(h, 0, sizeof(*h));
    h->session = s;
    far_session_enter(s);
    h->task = far_task_new(s, FAR_OP_GET, run_hold, h);
    assert_non_null(h->task);
    far_session_run_until(s, &h->pinned);
    far_session_leave(s);
    assert_int_equal(h->err, 0);
}


static void drop(hold *h) {
    far_session_enter(h->session);
    h->release = true;
    far_task_wake(h->task);
    far_session_run_until(h->session, &h->done);
    far_session_leave(h->session);
}


static void poll_times(far_pool *pool, unsigned times) {
    for (unsigned i = 0; i < times; i++)
        assert_int_equal(far_pool_poll(pool), 0);
}


/* Asks for moves of the epoch through this handle and gives it time. */
static void push(far_pool *pool, unsigned times) {
    for (unsigned i = 0; i < times; i++) {
        far_epoch_request(pool);
        poll_times(pool, 2);
    }
}


/* Time that passes only when the test says so (but never stands quite still). */
static uint64_t hand_time;


static uint64_t hand_now(far_host *host) {
    (void)host;
    return hand_time += 10;
}


static far_host_ops hand_ops;
static far_host hand_host = {&hand_ops};


static void set_time_by_hand(far_pool *pool) {
    hand_ops = *far_host_threads.ops;
    hand_ops.now = hand_now;
    hand_time = far_host_now(&far_host_threads);
    pool->fabric->host = &hand_host;
}


static void let_it_fall_asleep(far_pool *pool) {
    for (int i = 0; i < 2; i++) { /* the first takes note of the last pin */
        poll_times(pool, 1);
        hand_time += 200 * far_tick(pool->fabric);
        poll_times(pool, 1);
    }
}


static void a_pin_costs_a_background_round_trip_only_after_idleness(void **state) {
    (void)state;
    far_pool *pool = open_pool(1);
    far_session *s = open_session(pool);
    set_time_by_hand(pool);
    hold h;
    far_stats before = s->stats[FAR_OP_GET];
    take(&h, s);
    drop(&h);
    assert_int_equal(s->stats[FAR_OP_GET].background_round_trips - before.background_round_trips, 1);
    assert_int_equal(s->stats[FAR_OP_GET].round_trips - before.round_trips, 0);
    before = s->stats[FAR_OP_GET];
    for (int i = 0; i < 5; i++) {
        poll_times(pool, 3);
        take(&h, s);
        drop(&h);
    }
    assert_int_equal(s->stats[FAR_OP_GET].background_round_trips - before.background_round_trips, 0);
    let_it_fall_asleep(pool);
    assert_int_equal(published(s), 0);
    take(&h, s);
    drop(&h);
    assert_int_equal(s->stats[FAR_OP_GET].background_round_trips - before.background_round_trips, 1);
    far_session_close(s);
    far_pool_close(pool);
}


static void a_sleeping_handle_posts_no_verbs(void **state) {
    (void)state;
    far_pool *pool = open_pool(1);
    far_stats before = pool->team.own->stats[FAR_STATS_OTHER];
    poll_times(pool, 50);
    assert_memory_equal(&before, &pool->team.own->stats[FAR_STATS_OTHER], sizeof(before));
    far_pool_close(pool);
}


static void the_epoch_moves_on_demand_only(void **state) {
    (void)state;
    far_pool *pool = open_pool(0);
    far_session *s = open_session(pool);
    uint64_t epoch = global(s);
    hold h;
    for (int i = 0; i < 10; i++) {
        take(&h, s);
        sleep_ms(3);
        drop(&h);
    }
    assert_int_equal(global(s), epoch);
    far_epoch_request(pool);
    for (int i = 0; i < 60000 && global(s) == epoch; i++)
        sleep_ms(1);
    assert_int_equal(global(s), epoch + 1);
    sleep_ms(20);
    assert_int_equal(global(s), epoch + 1);
    far_session_close(s);
    far_pool_close(pool);
}


static void a_held_pin_lets_the_epoch_move_once_and_not_twice(void **state) {
    (void)state;
    far_pool *pool = open_pool(1), *other = open_pool(1);
    far_session *s = open_session(pool), *o = open_session(other);
    hold old, new;
    take(&old, s);
    assert_int_equal(old.epoch, global(o));
    push(other, 5);
    push(pool, 5);
    assert_int_equal(global(o), old.epoch + 1);
    take(&new, s);
    assert_int_equal(new.epoch, old.epoch + 1); /* two epochs are pinned */
    push(pool, 20);
    assert_int_equal(global(o), old.epoch + 1);
    assert_int_equal(published(s), old.epoch);
    drop(&old);
    push(pool, 5);
    assert_int_equal(global(o), new.epoch + 1);
    drop(&new);
    push(pool, 3);
    assert_int_equal(global(o), new.epoch + 4);
    far_session_close(s);
    far_session_close(o);
    far_pool_close(pool);
    far_pool_close(other);
}


static void a_stalled_handle_without_a_pin_holds_up_one_move_until_it_ticks(void **state) {
    (void)state;
    far_pool *stalled = open_pool(1), *other = open_pool(1);
    far_session *s = open_session(stalled), *o = open_session(other);
    hold h;
    take(&h, s);
    drop(&h); /* and nobody polls: its word stays */
    uint64_t epoch = global(o);
    push(other, 10);
    assert_int_equal(global(o), epoch + 1);
    poll_times(stalled, 1);
    push(other, 10);
    assert_int_equal(global(o), epoch + 2);
    far_session_close(s);
    far_session_close(o);
    far_pool_close(stalled);
    far_pool_close(other);
}


static void an_idle_handle_holds_nobody_back_and_wakes_at_the_epoch_of_that_time(void **state) {
    (void)state;
    far_pool *idle = open_pool(1), *other = open_pool(1);
    far_session *s = open_session(idle), *o = open_session(other);
    uint64_t epoch = global(o);
    push(other, 10);
    assert_int_equal(global(o), epoch + 10);
    hold h;
    take(&h, s);
    assert_int_equal(h.epoch, epoch + 10);
    assert_int_equal(published(s), epoch); /* careful, until the next tick */
    push(other, 5);
    assert_int_equal(global(o), epoch + 10);
    poll_times(idle, 1);
    assert_int_equal(published(s), epoch + 10);
    push(other, 5);
    assert_int_equal(global(o), epoch + 11);
    drop(&h);
    far_session_close(s);
    far_session_close(o);
    far_pool_close(idle);
    far_pool_close(other);
}


static void fence(far_session *s) {
    far_session_enter(s);
    far_session_lose(s, FAR_ERR_FENCED);
    far_session_leave(s);
}


static int tick_once(far_task *t, void *arg) {
    (void)arg;
    return far_epoch_tick(t);
}


/* The pin's last WRITE failed, and its session is not known to be fenced: it is the handle's own, of which nobody finds out, or the very
 * one that ticks. Nobody writes the pin anew. */
static void who_cannot_know_that_a_lost_writer_is_fenced_does_not_write(void **state) {
    (void)state;
    for (unsigned itself = 0; itself < 2; itself++) {
        far_pool *pool = open_pool(1);
        far_session *s = open_session(pool);
        hold h;
        take(&h, s);
        fence(itself ? s : pool->team.own);
        pool->epochs.unsure = true;
        assert_int_equal(call(s, tick_once, NULL), FAR_ERR_FENCED);
        assert_true(pool->epochs.unsure);
        drop(&h);
        far_session_close(s);
        far_pool_close(pool);
    }
}


/* A lost session need not be known to be dead at once. One that lives stands for it here. */
static void the_pin_is_not_written_before_lost_writers_are_fenced(void **state) {
    (void)state;
    far_pool *pool = open_pool(1), *other = open_pool(1);
    far_session *s = open_session(pool), *lost = open_session(pool), *writer = open_session(other);
    hold h;
    take(&h, s);
    fence(lost);
    unsigned id = lost->id, generation = lost->generation;
    lost->id = writer->id;
    lost->generation = writer->generation;
    pool->epochs.unsure = true;
    assert_int_equal(call(s, tick_once, NULL), FAR_ERR_BUSY);
    assert_true(pool->epochs.unsure);
    far_session_close(writer);
    assert_true(call(s, tick_once, NULL) >= 0);
    assert_false(pool->epochs.unsure);
    lost->id = id;
    lost->generation = generation;
    drop(&h);
    far_session_close(lost);
    far_session_close(s);
    far_pool_close(pool);
    far_pool_close(other);
}


static void a_dead_handle_holds_back_until_all_its_sessions_are_dead(void **state) {
    (void)state;
    far_pool *dying = open_pool(1), *other = open_pool(1);
    far_session *s = open_session(dying), *o = open_session(other);
    hold h;
    take(&h, s);
    poll_times(dying, 1); /* nothing is under way in the user's session from now on */
    uint64_t epoch = global(o);
    fence(dying->team.own);
    push(other, 20);
    assert_int_equal(global(o), epoch + 1);                 /* the user's session lives and may hold pins */
    assert_int_equal(far_pool_poll(dying), FAR_ERR_FENCED); /* this takes its sessions with it */
    assert_int_equal(s->lost, FAR_ERR_FENCED);
    push(other, 40);
    assert_true(global(o) > epoch + 10);
    assert_true(far_line_wants_sweep(other) || other->sweeping);
    far_session *more;
    assert_int_equal(far_session_open(dying, &more), FAR_ERR_FENCED);
    drop(&h);
    far_session_close(s);
    far_pool_close(dying);
    far_session_close(o);
    far_pool_close(other);
}


/* The epoch moves between the look at it and the count: the watch's clock is read just there. */
static uint64_t clock_that_moves_the_epoch(far_fabric *fabric);
static const far_watch_ops moving_watch = {.clock = clock_that_moves_the_epoch};
static far_pool *moving_pool;


static uint64_t clock_that_moves_the_epoch(far_fabric *fabric) {
    fabric->watch = NULL;
    atomic_fetch_add(&moving_pool->epochs.current, 1);
    return 0;
}


static int pin_and_tell(far_task *t, void *arg) {
    int err = far_pin_take(t);
    *(uint64_t *)arg = far_epoch(t);
    return err;
}


static void a_pin_whose_epoch_passed_while_it_was_taken_is_taken_anew(void **state) {
    (void)state;
    far_pool *pool = moving_pool = open_pool(1);
    far_session *s = open_session(pool);
    uint64_t first, second;
    assert_int_equal(call(s, pin_and_tell, &first), 0);
    pool->fabric->watch = &moving_watch;
    assert_int_equal(call(s, pin_and_tell, &second), 0);
    assert_int_equal(second, first + 1);
    assert_int_equal(atomic_load(&s->pins.held[0]) + atomic_load(&s->pins.held[1]), 0);
    atomic_fetch_sub(&pool->epochs.current, 1);
    far_session_close(s);
    far_pool_close(pool);
}


/* A pin is counted after the tick found none and before it says that the handle sleeps: the time is asked for just
 * there. */
static uint64_t time_at_which_a_pin_slips_in(far_host *host);
static far_host_ops slipping_ops;
static far_host slipping = {&slipping_ops};
static far_session *slipping_session;
static uint64_t slipping_epoch;


static uint64_t time_at_which_a_pin_slips_in(far_host *host) {
    (void)host;
    if (slipping_session)
        atomic_fetch_add(&slipping_session->pins.held[slipping_epoch & 1], 1);
    slipping_session = NULL;
    return far_host_now(&far_host_threads) + 1000000000;
}


static int tick(far_task *t, void *arg) {
    (void)arg;
    return far_epoch_tick(t);
}


static void a_handle_does_not_fall_asleep_under_a_pin_that_slipped_in(void **state) {
    (void)state;
    far_pool *pool = open_pool(1);
    far_session *s = open_session(pool);
    assert_int_equal(call(s, pin_and_tell, &slipping_epoch), 0);
    assert_int_equal(call(pool->team.own, tick, NULL), 0); /* takes note of that pin */
    slipping_ops = *far_host_threads.ops;
    slipping_ops.now = time_at_which_a_pin_slips_in;
    slipping_session = s;
    pool->fabric->host = &slipping;
    assert_int_equal(call(pool->team.own, tick, NULL), 0);
    assert_null(slipping_session);
    assert_int_equal(atomic_load(&pool->epochs.current), slipping_epoch);
    assert_int_equal(published(s), slipping_epoch);
    atomic_fetch_sub(&s->pins.held[slipping_epoch & 1], 1);
    assert_int_equal(call(pool->team.own, tick, NULL), 0);
    assert_int_equal(atomic_load(&pool->epochs.current), 0);
    assert_int_equal(published(s), 0);
    pool->fabric->host = &far_host_threads;
    far_session_close(s);
    far_pool_close(pool);
}


static int jump(far_task *t, void *arg) {
    return far_write_word(t, FAR_SUPER_EPOCH, *(uint64_t *)arg - FAR_EPOCH_FIRST);
}


static void an_epoch_that_went_on_without_us_means_that_we_are_dead(void **state) {
    (void)state;
    far_pool *pool = open_pool(1);
    far_session *s = open_session(pool);
    hold h;
    take(&h, s);
    uint64_t far_ahead = h.epoch + 2;
    assert_int_equal(call(s, jump, &far_ahead), 0);
    assert_int_equal(call(pool->team.own, tick, NULL), FAR_ERR_FENCED);
    uint64_t back = h.epoch - 1;
    assert_int_equal(call(s, jump, &back), 0);
    assert_int_equal(call(pool->team.own, tick, NULL), FAR_ERR_CORRUPT);
    drop(&h);
    far_session_close(s);
    far_pool_close(pool);
}


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
    return err < 0 ? err : far_wait_epochs(t, 1);
}


static int wait_epochs(far_task *t, void *arg) {
    return far_wait_epochs(t, *(unsigned *)arg);
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
    if ((err = far_wait_epochs(t, k)) < 0)
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
        cmocka_unit_test_setup(a_pin_costs_a_background_round_trip_only_after_idleness, new_world),
        cmocka_unit_test_setup(a_sleeping_handle_posts_no_verbs, new_world),
        cmocka_unit_test_setup(the_epoch_moves_on_demand_only, new_world),
        cmocka_unit_test_setup(a_held_pin_lets_the_epoch_move_once_and_not_twice, new_world),
        cmocka_unit_test_setup(a_stalled_handle_without_a_pin_holds_up_one_move_until_it_ticks, new_world),
        cmocka_unit_test_setup(an_idle_handle_holds_nobody_back_and_wakes_at_the_epoch_of_that_time, new_world),
        cmocka_unit_test_setup(who_cannot_know_that_a_lost_writer_is_fenced_does_not_write, new_world),
        cmocka_unit_test_setup(the_pin_is_not_written_before_lost_writers_are_fenced, new_world),
        cmocka_unit_test_setup(a_dead_handle_holds_back_until_all_its_sessions_are_dead, new_world),
        cmocka_unit_test_setup(a_pin_whose_epoch_passed_while_it_was_taken_is_taken_anew, new_world),
        cmocka_unit_test_setup(a_handle_does_not_fall_asleep_under_a_pin_that_slipped_in, new_world),
        cmocka_unit_test_setup(an_epoch_that_went_on_without_us_means_that_we_are_dead, new_world),
        cmocka_unit_test_setup(hooks_run_once_per_epoch_before_its_first_pin_and_on_waking, new_world),
        cmocka_unit_test_setup(a_wake_that_fails_is_told_and_leaves_nothing_published, new_world),
        cmocka_unit_test_setup(waiting_for_epochs_works_from_every_session, new_world),
        cmocka_unit_test_setup(pins_and_waits_keep_their_word_under_threads, new_world),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
