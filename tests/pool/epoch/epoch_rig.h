/* Helpers for tests of epochs on the local fabric: handles and sessions, pins that a task holds until the test releases
 * them, requests for later epochs, and time that the test controls. */
#ifndef TESTS_EPOCH_RIG_H
#define TESTS_EPOCH_RIG_H

#include "test.h"
#include "pool/handle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static unsigned world;


TEST_FIXTURE(new_world) {
    world++;
    return 0;
}


static inline far_pool *open_pool(int no_thread) {
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


static inline far_session *open_session(far_pool *pool) {
    far_session *s;
    assert_int_equal(far_session_open(pool, &s), 0);
    return s;
}


static inline void sleep_ms(unsigned ms) {
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000L}, NULL);
}


static inline int call(far_session *s, int (*run)(far_task *, void *), void *arg) {
    return far_session_call(s, FAR_OP_GET, false, run, arg);
}


static inline int run_read_epoch(far_task *t, void *arg) {
    return far_epoch_read(t, arg);
}


static inline uint64_t read_global_epoch(far_session *s) {
    uint64_t epoch;
    assert_int_equal(call(s, run_read_epoch, &epoch), 0);
    return epoch;
}


static inline int run_read_pin_word(far_task *t, void *arg) {
    return far_read_word(t, far_client_entry(far_task_pool(t)->team.own->id) + 8, arg);
}


static inline uint64_t read_published_pin(far_session *s) {
    uint64_t word;
    assert_int_equal(call(s, run_read_pin_word, &word), 0);
    return word;
}


/* A pin that a task holds until the test releases it. */
typedef struct held_pin {
    far_session *session;
    far_task *task;
    uint64_t epoch;
    int err;
    bool pinned, release, done;
} held_pin;


static inline void run_held_pin(far_task *t, void *arg) {
    held_pin *h = arg;
    h->err = far_pin_take(t);
    h->epoch = far_epoch(t);
    h->pinned = true;
    while (!h->release)
        far_task_block(t);
    far_pin_drop(t);
    h->done = true;
}


static inline void hold_pin(held_pin *h, far_session *s) {
    memset(h, 0, sizeof(*h));
    h->session = s;
    far_session_enter(s);
    h->task = far_task_new(s, FAR_OP_GET, run_held_pin, h);
    assert_non_null(h->task);
    far_session_run_until(s, &h->pinned);
    far_session_leave(s);
    assert_int_equal(h->err, 0);
}


static inline void release_pin(held_pin *h) {
    far_session_enter(h->session);
    h->release = true;
    far_task_wake(h->task);
    far_session_run_until(h->session, &h->done);
    far_session_leave(h->session);
}


static inline void poll_times(far_pool *pool, unsigned times) {
    for (unsigned i = 0; i < times; i++)
        assert_int_equal(far_pool_poll(pool), 0);
}


/* Requests `times` advances of the epoch through this handle, each followed by two ticks. */
static inline void request_epochs(far_pool *pool, unsigned times) {
    for (unsigned i = 0; i < times; i++) {
        far_epoch_request(pool);
        poll_times(pool, 2);
    }
}


/* Time that advances only when the test says so, except for 10 ns at each call of `now`. */
static uint64_t controlled_time;


static inline uint64_t controlled_now(far_host *host) {
    (void)host;
    return controlled_time += 10;
}


static far_host_ops controlled_ops;
static far_host controlled_host = {&controlled_ops};


static inline void control_time(far_pool *pool) {
    controlled_ops = *far_host_threads.ops;
    controlled_ops.now = controlled_now;
    controlled_time = far_host_now(&far_host_threads);
    pool->fabric->host = &controlled_host;
}


static inline void let_handle_become_quiescent(far_pool *pool) {
    /* The first of the two rounds observes the last pin; the second one makes the handle quiescent. */
    for (int i = 0; i < 2; i++) {
        poll_times(pool, 1);
        controlled_time += 200 * far_tick(pool->fabric);
        poll_times(pool, 1);
    }
}

#endif
