/* The mutex of base/mutex.h: mutual exclusion, and every waiting thread is woken. */
#include "base/mutex.h"
#include "test.h"

#include <pthread.h>
#include <sched.h>
#include <stdint.h>

enum { THREADS = 4, TURNS = 5000 };

static far_mutex mutex;
static uint64_t count;
static atomic_uint inside;


static void *count_up(void *arg) {
    (void)arg;
    for (unsigned i = 0; i < TURNS; i++) {
        far_mutex_lock(&mutex);
        count++;
        far_mutex_unlock(&mutex);
    }
    return NULL;
}


/* Four threads increment a counter under the mutex. No increment is lost, and the mutex is free at the end. */
TEST(no_increment_is_lost) {
    pthread_t threads[THREADS];
    count = 0;
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, count_up, NULL), 0);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(count, THREADS * TURNS);
    assert_int_equal(mutex.word, FAR_MUTEX_FREE);
}


static void *enter_once(void *arg) {
    (void)arg;
    far_mutex_lock(&mutex);
    atomic_fetch_add(&inside, 1);
    far_mutex_unlock(&mutex);
    return NULL;
}


/* Several threads sleep, or are about to, when the mutex is freed once. Each thread must wake the next one. Fails if
 * far_mutex_wait does not take the mutex as FAR_MUTEX_WAITED_FOR. */
TEST(all_waiting_threads_get_the_mutex) {
    pthread_t threads[THREADS];
    assert_true(far_mutex_try(&mutex));
    assert_false(far_mutex_try(&mutex));
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, enter_once, NULL), 0);
    while (atomic_load(&mutex.word) != FAR_MUTEX_WAITED_FOR)
        sched_yield();
    assert_int_equal(atomic_load(&inside), 0);
    far_mutex_unlock(&mutex);
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(atomic_load(&inside), THREADS);
    assert_int_equal(mutex.word, FAR_MUTEX_FREE);
}
