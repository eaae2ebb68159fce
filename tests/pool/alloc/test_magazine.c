/* Tests of magazines. Allocation and retirement take the lock of the store once per batch of objects, and flags
 * take effect although the magazine has objects. The test replaces pthread_mutex_lock of the C library to
 * count how often the lock is taken. */
#define _GNU_SOURCE
#include "alloc_rig.h"
#include "test.h"

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


/* Puts PAIRS + 1 free objects into the store. */
static void stock_store(far_task *t, bench *b) {
    static far_object objects[PAIRS + 1];
    for (unsigned i = 0; i <= PAIRS; i++)
        assert_int_equal(far_alloc(t, &b->index, LINE, SIZE, 0, 0, &objects[i]), 0);
    for (unsigned i = 0; i <= PAIRS; i++)
        far_free(t, &b->index, LINE, objects[i].addr, SIZE);
}


/* Acts like many updates, and each update allocates an object and retires the old one. */
static int swap_many(far_task *t, bench *b) {
    far_object old, new;
    stock_store(t, b);
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


/* 960 allocations and retirements lock the store at most 60 times. */
TEST(the_store_is_locked_once_for_a_batch) {
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


/* A session caches the bin of an index by the address of its far_index. After that index is closed, another index may
 * have the same address. It must get objects of its own. Fails if far_bin_cached (store.h) does not compare the index
 * of the class. */
TEST(an_index_at_a_reused_address_gets_its_own_objects) {
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
    /* All objects in the magazine were written before, so without FAR_ALLOC_ZERO the object has its old contents. */
    assert_int_equal(far_alloc(t, &b->index, LINE, SIZE, 0, 0, &object), 0);
    assert_int_equal(far_read_word(t, object.addr, &word), 0);
    assert_int_not_equal(word, 0);
    assert_int_equal(far_alloc(t, &b->index, LINE, SIZE, 0, FAR_ALLOC_ZERO, &object), 0);
    assert_int_equal(far_read_word(t, object.addr, &word), 0);
    assert_int_equal(word, 0);
    assert_int_equal(far_alloc(t, &b->index, LINE, SIZE, 0, FAR_ALLOC_SESSION_OWNED, &object), 0);
    assert_int_equal(m->session_owned_count, 1);
    return 0;
}


/* far_alloc takes an object from the magazine at once only if the caller sets no flags. An object that must be zero or
 * session-owned takes the longer path even if the magazine has objects. Fails if far_alloc does not check the flags
 * first. */
TEST(flags_take_effect_with_a_full_magazine) {
    bench b;
    open_bench(&b, "sim:seed=1,size=64M", &kind);
    assert_int_equal(bench_call(&b, b.session, alloc_with_flags, NULL), 0);
    close_bench(&b);
}
