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


static int alloc_with_flags(far_task *t, bench *b) {
    far_memory *m = far_memory_of(t);
    far_object used[8], object;
    uint64_t word = 1;
    for (unsigned i = 0; i < 8; i++) {
        assert_int_equal(far_alloc(t, &b->index, LINE, SIZE, 0, 0, &used[i]), 0);
        assert_int_equal(far_write_word(t, used[i].addr, 4711), 0);
    }
    for (unsigned i = 0; i < 8; i++)
        far_free(t, &b->index, LINE, used[i].addr, SIZE);
    assert_int_equal(far_alloc(t, &b->index, LINE, SIZE, 0, 0, &object), 0); /* the next ones are used, too */
    assert_int_equal(far_read_word(t, object.addr, &word), 0);
    assert_int_not_equal(word, 0);
    assert_int_equal(far_alloc(t, &b->index, LINE, SIZE, 0, FAR_ALLOC_ZERO, &object), 0);
    assert_int_equal(far_read_word(t, object.addr, &word), 0);
    assert_int_equal(word, 0);
    assert_int_equal(far_alloc(t, &b->index, LINE, SIZE, 0, FAR_ALLOC_KEEP, &object), 0);
    assert_int_equal(m->kept_count, 1);
    return 0;
}


/* The short way, from the magazine, is for those who ask for nothing else: an object that is to be zero, or kept, takes the long
 * one, also when the magazine has many. Fails when far_alloc does not look at the flags before. */
static void what_flags_ask_for_is_done_with_a_full_magazine(void **state) {
    (void)state;
    bench b;
    open_bench(&b, "sim:seed=1,size=64M", &kind);
    assert_int_equal(bench_call(&b, b.session, alloc_with_flags, NULL), 0);
    close_bench(&b);
}


static int alloc_of_frugal(far_task *t, bench *b) {
    far_memory *m = far_memory_of(t);
    far_object object;
    assert_int_equal(far_alloc(t, &b->index, LINE, SIZE, 0, 0, &object), 0);
    assert_int_equal(m->reserves, 5);
    far_mutex_lock(&m->lock);
    far_kept_free(m, true); /* as when it could not be completed */
    far_mutex_unlock(&m->lock);
    assert_int_equal(m->reserves, 0);
    assert_int_equal(far_alloc(t, &b->index, LINE, SIZE, 0, 0, &object), 0);
    assert_int_equal(m->reserves, 5);
    return 0;
}


/* The reserve of an index comes first, also when the magazine has what is asked for. Fails when the short way is taken for
 * kinds with a reserve. */
static void a_reserve_comes_first_with_a_full_magazine(void **state) {
    (void)state;
    bench b;
    open_bench(&b, "sim:seed=1,size=64M", &frugal_kind);
    assert_int_equal(bench_call(&b, b.session, alloc_of_frugal, NULL), 0);
    close_bench(&b);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_store_is_locked_once_for_a_batch),
        cmocka_unit_test(another_index_at_the_same_address),
        cmocka_unit_test(what_flags_ask_for_is_done_with_a_full_magazine),
        cmocka_unit_test(a_reserve_comes_first_with_a_full_magazine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
