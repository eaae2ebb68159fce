/* The byte budget of a handle (budget.h): accounting, and the choice of the cache that must evict when the limit is
 * reached. */
#include "base/budget.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

/* largest number of attempts to make room; more than one is needed because other threads may take the bytes that were
 * evicted for this thread */
#define EVICT_ROUNDS 8

enum { UNUSED, REGISTERED, LEAVING };

struct far_budget_cache {
    _Alignas(64) far_budget *budget;
    _Atomic size_t used;
    atomic_int state;
    /* number of threads that are using this cache's struct on behalf of another cache; while it is not 0, the cache
     * cannot be unregistered */
    atomic_uint visitors;
    const char *name;
    far_budget_evict *evict;
    void *ctx;
};

struct far_budget {
    _Alignas(64) _Atomic size_t used; /* bytes taken by all caches together; never exceeds the limit */
    _Alignas(64) size_t limit;
    pthread_mutex_t lock; /* held while a cache is registered or unregistered */
    atomic_uint count;    /* number of registered caches */
    far_budget_cache caches[FAR_BUDGET_CACHES_MAX];
};


far_budget *far_budget_new(size_t bytes) {
    far_budget *budget = aligned_alloc(64, sizeof(*budget));
    if (!budget)
        return NULL;
    atomic_init(&budget->used, 0);
    atomic_init(&budget->count, 0);
    budget->limit = bytes ? bytes : FAR_BUDGET_DEFAULT;
    pthread_mutex_init(&budget->lock, NULL);
    for (unsigned i = 0; i < FAR_BUDGET_CACHES_MAX; i++) {
        far_budget_cache *cache = &budget->caches[i];
        cache->budget = budget;
        atomic_init(&cache->used, 0);
        atomic_init(&cache->state, UNUSED);
        atomic_init(&cache->visitors, 0);
    }
    return budget;
}


void far_budget_free(far_budget *budget) {
    if (!budget)
        return;
    assert(atomic_load_explicit(&budget->count, memory_order_relaxed) == 0);
    pthread_mutex_destroy(&budget->lock);
    free(budget);
}


far_budget_cache *far_budget_register(far_budget *budget, const char *name, far_budget_evict *evict, void *ctx) {
    far_budget_cache *cache = NULL;
    pthread_mutex_lock(&budget->lock);
    for (unsigned i = 0; i < FAR_BUDGET_CACHES_MAX && !cache; i++)
        if (atomic_load_explicit(&budget->caches[i].state, memory_order_relaxed) == UNUSED)
            cache = &budget->caches[i];
    if (cache) {
        cache->name = name;
        cache->evict = evict;
        cache->ctx = ctx;
        atomic_store_explicit(&cache->state, REGISTERED, memory_order_release);
        atomic_fetch_add_explicit(&budget->count, 1, memory_order_relaxed);
    }
    pthread_mutex_unlock(&budget->lock);
    return cache;
}


/* Keeps the cache from being unregistered while this thread uses it. Returns false if it is not registered. This thread
 * increments `visitors` and then reads `state`, and far_budget_unregister writes `state` and then reads `visitors`.
 * Both are seq_cst, so at least one of the two threads observes the write of the other. */
static bool protect_cache(far_budget_cache *cache) {
    atomic_fetch_add_explicit(&cache->visitors, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&cache->state, memory_order_seq_cst) == REGISTERED)
        return true;
    atomic_fetch_sub_explicit(&cache->visitors, 1, memory_order_release);
    return false;
}


static void unprotect_cache(far_budget_cache *cache) {
    atomic_fetch_sub_explicit(&cache->visitors, 1, memory_order_release);
}


void far_budget_unregister(far_budget_cache *cache) {
    if (!cache)
        return;
    far_budget *budget = cache->budget;
    atomic_store_explicit(&cache->state, LEAVING, memory_order_seq_cst);
    while (atomic_load_explicit(&cache->visitors, memory_order_seq_cst))
        sched_yield();
    assert(atomic_load_explicit(&cache->used, memory_order_relaxed) == 0);
    pthread_mutex_lock(&budget->lock);
    atomic_store_explicit(&cache->state, UNUSED, memory_order_relaxed);
    atomic_fetch_sub_explicit(&budget->count, 1, memory_order_relaxed);
    pthread_mutex_unlock(&budget->lock);
}


static bool take_free_bytes(far_budget_cache *cache, size_t bytes) {
    far_budget *budget = cache->budget;
    size_t used = atomic_load_explicit(&budget->used, memory_order_relaxed);
    do {
        if (bytes > budget->limit - used)
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&budget->used, &used, used + bytes, memory_order_relaxed,
                                                    memory_order_relaxed));
    atomic_fetch_add_explicit(&cache->used, bytes, memory_order_release);
    return true;
}


static size_t bytes_missing(const far_budget *budget, size_t bytes) {
    size_t room = budget->limit - atomic_load_explicit(&budget->used, memory_order_relaxed);
    return bytes > room ? bytes - room : 0;
}


/* Returns the cache with the most bytes among those that were not asked to evict yet. All caches have equal shares, so
 * this cache is also the one that exceeds its share the most. Returns NULL if no cache is left. */
static far_budget_cache *choose_victim(far_budget_cache *asking, uint64_t asked) {
    far_budget *budget = asking->budget;
    far_budget_cache *victim = NULL;
    size_t most = 0;
    if (!(asked >> (asking - budget->caches) & 1)) {
        victim = asking;
        most = far_budget_cache_used(asking);
    }
    for (unsigned i = 0; i < FAR_BUDGET_CACHES_MAX; i++) {
        far_budget_cache *cache = &budget->caches[i];
        size_t used = far_budget_cache_used(cache);
        if (used > most && !(asked >> i & 1)) {
            victim = cache;
            most = used;
        }
    }
    return victim;
}

_Static_assert(FAR_BUDGET_CACHES_MAX <= 64, "those that were asked are a 64-bit set");


static size_t evict_from_cache(far_budget_cache *victim, const far_budget_cache *asking, size_t bytes) {
    /* The asking cache cannot be unregistered during this call, because its own thread is running this function. */
    if (victim == asking)
        return victim->evict(victim->ctx, bytes);
    if (!protect_cache(victim))
        return 0;
    /* After the victim was chosen, it may have been unregistered, and another cache may have been registered in its
     * place. That does not matter: if `used` is not 0, the cache in this place has taken bytes, so it is completely
     * registered and its evict function may be called. */
    size_t freed = 0;
    if (atomic_load_explicit(&victim->used, memory_order_acquire))
        freed = victim->evict(victim->ctx, bytes);
    unprotect_cache(victim);
    return freed;
}


/* Calls the evict functions of the caches one after the other, until enough bytes are free. Returns false if no cache
 * can free anything. The asking cache takes part only if `of_its_own` is true. */
static bool make_room(far_budget_cache *asking, size_t bytes, bool of_its_own) {
    uint64_t asked = 0;
    size_t freed = 0;
    for (size_t want; (want = bytes_missing(asking->budget, bytes)) > 0;) {
        far_budget_cache *victim = choose_victim(asking, asked);
        if (!victim || (victim == asking && !of_its_own))
            return freed > 0;
        freed += evict_from_cache(victim, asking, want);
        asked |= 1ull << (victim - asking->budget->caches);
    }
    return true;
}


static bool take_bytes(far_budget_cache *cache, size_t bytes, bool of_its_own) {
    if (take_free_bytes(cache, bytes))
        return true;
    if (bytes > cache->budget->limit)
        return false;
    for (unsigned i = 0; i < EVICT_ROUNDS && make_room(cache, bytes, of_its_own); i++)
        if (take_free_bytes(cache, bytes))
            return true;
    return false;
}


bool far_budget_take(far_budget_cache *cache, size_t bytes) {
    return take_bytes(cache, bytes, true);
}


bool far_budget_take_from_others(far_budget_cache *cache, size_t bytes) {
    return take_bytes(cache, bytes, false);
}


void far_budget_give(far_budget_cache *cache, size_t bytes) {
    size_t before = atomic_fetch_sub_explicit(&cache->used, bytes, memory_order_relaxed);
    assert(before >= bytes);
    (void)before;
    atomic_fetch_sub_explicit(&cache->budget->used, bytes, memory_order_relaxed);
}


size_t far_budget_limit(const far_budget *budget) {
    return budget->limit;
}


size_t far_budget_used(const far_budget *budget) {
    return atomic_load_explicit(&budget->used, memory_order_relaxed);
}


size_t far_budget_cache_used(const far_budget_cache *cache) {
    return atomic_load_explicit(&cache->used, memory_order_relaxed);
}


void far_budget_list(far_budget *budget, void (*each)(void *ctx, const char *name, size_t used), void *ctx) {
    for (unsigned i = 0; i < FAR_BUDGET_CACHES_MAX; i++) {
        far_budget_cache *cache = &budget->caches[i];
        if (!protect_cache(cache))
            continue;
        each(ctx, cache->name, far_budget_cache_used(cache));
        unprotect_cache(cache);
    }
}
