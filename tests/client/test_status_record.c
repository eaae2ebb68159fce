/* Tests of the status record of a handle (client/status.c): the counters of a session are published even if a thread is
 * inside the session all the time. This is usual over a network, where threads spend most of their time waiting inside
 * their session. */
#include "client/client.h"
#include "conform.h"
#include "test.h"

#include <unistd.h>

enum { GETS = 5 };


/* Waits for one round trip. While the thread waits, it runs the deferred call of its session. */
static void read_a_word(far_task *t, void *arg) {
    uint64_t word;
    far_read(t, far_addr_make(0, 0), &word, sizeof(word));
    assert_int_equal(far_wait(t), 0);
    *(bool *)arg = true;
}


/* Returns the number of gets in the handle's status record. */
static uint64_t published_gets(far_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    uint64_t gets = pool->bulletin.ops[FAR_OP_GET];
    pthread_mutex_unlock(&pool->lock);
    return gets;
}


/* Housekeeping normally enters a session to add its counters to the status record. If a thread stays inside the
 * session, housekeeping cannot enter it. Proves that the counters are added nevertheless, when that thread next waits
 * for the fabric. Fails without the deferred call that collect_sessions in client/status.c sets. */
TEST(a_session_that_its_thread_never_leaves_is_published) {
    far_pool *pool;
    far_session *s;
    bool done = false;
    assert_int_equal(far_pool_open("local:4M?rtt=1ms", NULL, &pool), 0);
    assert_int_equal(far_session_open(pool, &s), 0);
    far_session_enter(s);
    s->stats[FAR_OP_GET].ops[FAR_OP_GET] += GETS;
    while (
        !atomic_load_explicit(&s->deferred_call, memory_order_relaxed)) /* set when housekeeping fails to enter the session */
        usleep(1000);
    assert_int_equal(published_gets(pool), 0);
    assert_non_null(far_task_new(s, FAR_STATS_OTHER, read_a_word, &done));
    far_session_run_until(s, &done);
    assert_int_equal(published_gets(pool), GETS);
    far_session_leave(s);
    far_session_close(s);
    far_pool_close(pool);
}
