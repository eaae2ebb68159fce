/* What alloc and retire touch: the store's lock once for a batch of objects, not for each. The lock is counted by
 * standing in for the C library's function. */
#define _GNU_SOURCE
#include "alloc_rig.h"

#include <dlfcn.h>
#include <pthread.h>

static const pthread_mutex_t *watched;
static atomic_uint taken;


int pthread_mutex_lock(pthread_mutex_t *mutex) {
    static int (*_Atomic real)(pthread_mutex_t *);
    int (*lock)(pthread_mutex_t *) = atomic_load(&real);
    if (!lock) {
        *(void **)&lock = dlsym(RTLD_NEXT, "pthread_mutex_lock");
        atomic_store(&real, lock);
    }
    atomic_fetch_add(&taken, mutex == watched);
    return lock(mutex);
}


enum { PAIRS = 960, SIZE = 64 };


/* So many objects are free in the store. */
static void stock(far_task *t, bench *b) {
    static far_object objects[PAIRS + 1];
    for (unsigned i = 0; i <= PAIRS; i++)
        assert_int_equal(far_alloc(t, &b->index, LINE, SIZE, 0, 0, &objects[i]), 0);
    for (unsigned i = 0; i <= PAIRS; i++)
        far_free(t, &b->index, LINE, objects[i].addr, SIZE);
}


/* As an update does it: a new object, and the old one is retired. */
static int swap_many(far_task *t, bench *b) {
    far_object old, new;
    stock(t, b);
    assert_int_equal(far_alloc(t, &b->index, LINE, SIZE, 0, 0, &old), 0);
    unsigned before = atomic_load(&taken);
    for (unsigned i = 0; i < PAIRS; i++) {
        assert_int_equal(far_alloc(t, &b->index, LINE, SIZE, 0, 0, &new), 0);
        far_retire(t, &b->index, LINE, old.addr, SIZE);
        old = new;
    }
    *(unsigned *)b->arg = atomic_load(&taken) - before;
    far_retire(t, &b->index, LINE, old.addr, SIZE);
    return 0;
}


static void the_store_is_locked_once_for_a_batch(void **state) {
    (void)state;
    bench b;
    unsigned locks = UINT32_MAX;
    open_bench(&b, "sim:seed=1,size=64M", &kind);
    watched = &b.pool->store->lock;
    assert_int_equal(bench_call(&b, b.session, swap_many, &locks), 0);
    watched = NULL;
    assert_in_range(locks, 1, PAIRS / 16);
    close_bench(&b);
}


static int alloc_one(far_task *t, bench *b) {
    return far_alloc(t, &b->index, LINE, SIZE, 0, 0, b->arg);
}


/* The list that serves an index is remembered by the address of its handle: after it was closed another index, which has
 * that address now, gets objects of its own. */
static void another_index_at_the_same_address(void **state) {
    (void)state;
    bench b;
    far_object first, second;
    open_bench(&b, "sim:seed=1,size=64M", &kind);
    assert_int_equal(bench_call(&b, b.session, alloc_one, &first), 0);
    far_memory_index_closed(b.pool, &b.index);
    b.index.uid = b.listed[1]->uid;
    assert_int_equal(bench_call(&b, b.session, alloc_one, &second), 0);
    assert_int_equal(far_slab_at(b.pool->store, first.addr)->class->uid, b.listed[0]->uid);
    assert_int_equal(far_slab_at(b.pool->store, second.addr)->class->uid, b.listed[1]->uid);
    far_memory_index_closed(b.pool, &b.index);
    close_bench(&b);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_store_is_locked_once_for_a_batch),
        cmocka_unit_test(another_index_at_the_same_address),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
