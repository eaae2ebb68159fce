/* The mutex of mutex.h: one at a time, who waits is woken, and nobody is forgotten when several wait. */
#include "base/mutex.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

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


static void nothing_is_lost(void **state) {
    (void)state;
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


/* All sleep, or are about to, when it is freed once: each wakes the next. */
static void all_who_wait_get_it(void **state) {
    (void)state;
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


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_lost),
        cmocka_unit_test(all_who_wait_get_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
