/* What a handle tells of itself: a session that a thread is inside of all the time, as over a network, is not left out. */
#include "client/client.h"
#include "conform.h"

#include <unistd.h>

enum { GETS = 5 };


/* A round trip, for which the thread inside waits. */
static void read_a_word(far_task *t, void *arg) {
    uint64_t word;
    far_read(t, far_addr_make(0, 0), &word, sizeof(word));
    assert_int_equal(far_wait(t), 0);
    *(bool *)arg = true;
}


static uint64_t gets_told(far_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    uint64_t gets = pool->bulletin.ops[FAR_OP_GET];
    pthread_mutex_unlock(&pool->lock);
    return gets;
}


static void a_session_that_is_never_left_is_told_of(void **state) {
    (void)state;
    far_pool *pool;
    far_session *s;
    bool done = false;
    assert_int_equal(far_pool_open("local:4M?rtt=1ms", NULL, &pool), 0);
    assert_int_equal(far_session_open(pool, &s), 0);
    far_session_enter(s);
    s->stats[FAR_OP_GET].ops[FAR_OP_GET] += GETS;
    while (!atomic_load_explicit(&s->errand, memory_order_relaxed)) /* housekeeping finds it entered */
        usleep(1000);
    assert_int_equal(gets_told(pool), 0);
    assert_non_null(far_task_new(s, FAR_STATS_OTHER, read_a_word, &done));
    far_session_run_until(s, &done);
    assert_int_equal(gets_told(pool), GETS);
    far_session_leave(s);
    far_session_close(s);
    far_pool_close(pool);
}


int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_session_that_is_never_left_is_told_of)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
