/* Threads that share a small pool: what lives is a part of it, the rest goes from hand to hand. Nobody hangs, and the
 * pool stays sound. (That nobody is told that there is none when there is some, is proven in virtual time: a thread
 * that does not get to run for seconds is not waited for.) */
#include "../support/problem.h"
#include "farindex.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

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


static void share(const char *uri, unsigned handles) {
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
            fail_msg("put %u of thread %u gave %d", workers[i].puts, i, workers[i].result);
    assert_int_equal(far_pool_check(s, 0, fail_at_problem, NULL), 0);
    far_index_close(index);
    far_session_close(s);
    for (unsigned h = 0; h < handles; h++)
        far_pool_close(pools[h]);
}


static void threads_of_one_handle_share_a_small_pool(void **state) {
    (void)state;
    share("local:1500K", 1);
}


static void threads_of_two_handles_share_a_small_pool(void **state) {
    (void)state;
    share("local:1500K?name=shortage_threads", 2);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_of_one_handle_share_a_small_pool),
        cmocka_unit_test(threads_of_two_handles_share_a_small_pool),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
