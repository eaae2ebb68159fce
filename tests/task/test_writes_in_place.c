/* WRITEs that are executed directly (far_write_word on mapped memory) by two threads: a completed WRITE is visible to
 * every later READ. tests/fabric/local/test_local.c has the same test for posted batches. */
#include "pool/handle.h"
#include "task/session.h"
#include "test.h"
#include "two_processors.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum { ROUNDS = 200000, TOGETHER = 1000 };

typedef struct worker {
    far_session *session;
    unsigned number;
    pthread_t thread;
    int result;
} worker;

static atomic_ullong arrived;
static uint32_t saw[2][ROUNDS + 1];


static int write_own_read_other(far_task *t, void *arg) {
    const worker *w = arg;
    for (uint64_t i = 1, seen = 0; i <= ROUNDS; i++) {
        if (i % TOGETHER == 1)
            wait_for_other_thread(&arrived, i / TOGETHER + 1);
        if (far_write_word(t, 8192 + 256 * w->number, i) < 0 || far_read_word(t, 8192 + 256 * !w->number, &seen) < 0)
            return -1;
        saw[w->number][i] = (uint32_t)seen;
    }
    return 0;
}


static void *run_worker(void *arg) {
    worker *w = arg;
    pin_to_processor(w->number);
    w->result = far_session_call(w->session, FAR_STATS_OTHER, false, write_own_read_other, w);
    return NULL;
}


/* Two threads each write a number to a word of their own and then READ the word of the other thread, in every round. If
 * A's READ in round i has not seen B's round k, then B's WRITE of round k followed A's WRITE of round i, so B must
 * see at least i from its round k on. Fails without the fence in execute_write (batch.c). */
TEST(a_finished_write_is_seen_by_every_later_read) {
    static far_pool pool;
    worker workers[2];
    assert_int_equal(far_fabric_open("local:2x1M", &pool.fabric), 0);
    pool.geometry.capabilities = pool.fabric->capabilities;
    for (unsigned i = 0; i < 2; i++) {
        workers[i] = (worker){.number = i};
        assert_int_equal(far_pool_session_new(&pool, &workers[i].session), 0);
    }
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&workers[i].thread, NULL, run_worker, &workers[i]), 0);
    for (unsigned i = 0; i < 2; i++) {
        pthread_join(workers[i].thread, NULL);
        assert_int_equal(workers[i].result, 0);
        far_session_free(workers[i].session);
    }
    pool.fabric->ops->close(pool.fabric);
    for (uint32_t i = 1; i <= ROUNDS; i++) {
        uint32_t unseen = saw[0][i] + 1;
        if (unseen <= ROUNDS && saw[1][unseen] < i)
            fail_msg("round %u did not see round %u, nor the other way round", i, unseen);
    }
}
