/* Real threads share a small pool. Their values need a part of the memory; the rest circulates between them. No thread
 * hangs, and the pool stays sound. That an operation fails only if there is no memory is proved in virtual time
 * (test_out_of_memory.c), because here a thread may not run for seconds and is then not waited for. */
#include "../support/problem.h"
#include "farindex.h"
#include "test.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define THREADS 4
#define PUTS    60


typedef struct worker {
    far_pool *pool;
    unsigned number;
    bool submits;
    int result;
    unsigned puts;
} worker;


static int put(far_session *s, far_index *index, bool submits, const char *key, size_t bytes) {
    static char value[FAR_VALUE_MAX];
    if (!submits)
        return far_put(s, index, key, strlen(key), value, bytes);
    far_op op = {.kind = FAR_OP_PUT,
                 .index = index,
                 .key = key,
                 .key_len = strlen(key),
                 .value = value,
                 .value_len = bytes},
           *list = &op;
    int count = far_submit(s, &list, 1);
    if (count == 1)
        count = far_reap(s, &list, 1, 1);
    return count < 0 ? count : op.result;
}


static void *work(void *arg) {
    worker *w = arg;
    far_session *s;
    far_index *index;
    char key[16];
    snprintf(key, sizeof(key), "key%u", w->number);
    if ((w->result = far_session_open(w->pool, &s)) < 0)
        return NULL;
    if ((w->result = far_index_open(s, "x", &index)) == 0) {
        while (w->puts < PUTS && (w->result == 0 || w->result == FAR_ERR_NO_MEMORY)) {
            w->result = put(s, index, w->submits, key, w->number % 2 ? 28000 : 9000);
            w->puts++;
        }
        far_index_close(index);
    }
    far_session_close(s);
    return NULL;
}


static void share_between_threads(const char *uri, unsigned handles) {
    far_pool *pools[2];
    far_session *s;
    far_index *index;
    pthread_t threads[THREADS];
    worker workers[THREADS];
    for (unsigned h = 0; h < handles; h++)
        assert_int_equal(far_pool_open(uri, NULL, &pools[h]), 0);
    assert_int_equal(far_session_open(pools[0], &s), 0);
    assert_int_equal(far_index_create(s, "x", "toy", "slots=4096", &index), 0);
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (worker){.pool = pools[i % handles], .number = i, .submits = i >= 2};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (unsigned i = 0; i < THREADS; i++)
        if (workers[i].puts != PUTS || (workers[i].result != 0 && workers[i].result != FAR_ERR_NO_MEMORY))
            fail_msg("put %u of thread %u returned %d", workers[i].puts, i, workers[i].result);
    assert_int_equal(far_pool_check(s, 0, fail_at_problem, NULL), 0);
    far_index_close(index);
    far_session_close(s);
    for (unsigned h = 0; h < handles; h++)
        far_pool_close(pools[h]);
}


/* Four threads, each with its own session of one handle. */
TEST(threads_of_one_handle_share_a_small_pool) {
    share_between_threads("local:1500K", 1);
}


/* Four threads, with two sessions in each of two handles. */
TEST(threads_of_two_handles_share_a_small_pool) {
    share_between_threads("local:1500K?name=shortage_threads", 2);
}
