/* For tests of epochs on the local fabric. */
#ifndef TESTS_EPOCH_RIG_H
#define TESTS_EPOCH_RIG_H

#include "pool/handle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static unsigned world;


static inline int new_world(void **state) {
    (void)state;
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


static inline int read_epoch(far_task *t, void *arg) {
    return far_epoch_read(t, arg);
}


static inline uint64_t global(far_session *s) {
    uint64_t epoch;
    assert_int_equal(call(s, read_epoch, &epoch), 0);
    return epoch;
}


static inline int read_pin_word(far_task *t, void *arg) {
    return far_read_word(t, far_client_entry(far_task_pool(t)->team.own->id) + 8, arg);
}


static inline uint64_t published(far_session *s) {
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


static inline void run_hold(far_task *t, void *arg) {
    hold *h = arg;
    h->err = far_pin_take(t);
    h->epoch = far_epoch(t);
    h->pinned = true;
    while (!h->release)
        far_task_block(t);
    far_pin_drop(t);
    h->done = true;
}


static inline void take(hold *h, far_session *s) {
    memset(h, 0, sizeof(*h));
    h->session = s;
    far_session_enter(s);
    h->task = far_task_new(s, FAR_OP_GET, run_hold, h);
    assert_non_null(h->task);
    far_session_run_until(s, &h->pinned);
    far_session_leave(s);
    assert_int_equal(h->err, 0);
}


static inline void drop(hold *h) {
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


/* Asks for moves of the epoch through this handle and gives it time. */
static inline void push(far_pool *pool, unsigned times) {
    for (unsigned i = 0; i < times; i++) {
        far_epoch_request(pool);
        poll_times(pool, 2);
    }
}


/* Time that passes only when the test says so (but never stands quite still). */
static uint64_t hand_time;


static inline uint64_t hand_now(far_host *host) {
    (void)host;
    return hand_time += 10;
}


static far_host_ops hand_ops;
static far_host hand_host = {&hand_ops};


static inline void set_time_by_hand(far_pool *pool) {
    hand_ops = *far_host_threads.ops;
    hand_ops.now = hand_now;
    hand_time = far_host_now(&far_host_threads);
    pool->fabric->host = &hand_host;
}


static inline void let_it_fall_asleep(far_pool *pool) {
    for (int i = 0; i < 2; i++) { /* the first takes note of the last pin */
        poll_times(pool, 1);
        hand_time += 200 * far_tick(pool->fabric);
        poll_times(pool, 1);
    }
}

#endif
