/* The byte budget (base/budget.h): bytes are counted, the limit holds, and a cache that needs bytes gets them from
 * larger caches. */
#include "base/budget.h"
#include "base/host.h"
#include "base/sanitizer.h"
#include "test.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define THREADS 6
#define TURNS   (FAR_TSAN || FAR_ASAN ? 20000 : 100000)

/* A cache without entries: only its number of bytes counts. */
typedef struct cache {
    far_budget_cache *budget;
    _Atomic size_t bytes;
    bool stubborn;
    atomic_uint evictions;
} cache;


/* Gives back up to `bytes` bytes, or none if the cache is stubborn. */
static size_t evict_bytes(void *ctx, size_t bytes) {
    cache *c = ctx;
    atomic_fetch_add_explicit(&c->evictions, 1, memory_order_relaxed);
    if (c->stubborn)
        return 0;
    size_t held = atomic_load_explicit(&c->bytes, memory_order_relaxed), drop;
    do {
        drop = held < bytes ? held : bytes;
    } while (!atomic_compare_exchange_weak_explicit(&c->bytes, &held, held - drop, memory_order_relaxed,
                                                    memory_order_relaxed));
    far_budget_give(c->budget, drop);
    return drop;
}


static void open_cache(cache *c, far_budget *budget, const char *name) {
    memset(c, 0, sizeof(*c));
    c->budget = far_budget_register(budget, name, evict_bytes, c);
    assert_non_null(c->budget);
}


static bool grow_cache(cache *c, size_t bytes) {
    if (!far_budget_take(c->budget, bytes))
        return false;
    atomic_fetch_add_explicit(&c->bytes, bytes, memory_order_relaxed);
    return true;
}


static void close_cache(cache *c) {
    evict_bytes(c, SIZE_MAX);
    far_budget_unregister(c->budget);
}


/* A budget of 0 bytes gets the default limit. */
TEST(the_default_is_64_mib) {
    far_budget *budget = far_budget_new(0);
    assert_int_equal(far_budget_limit(budget), 64 << 20);
    far_budget_free(budget);
}


/* The used bytes are counted for the budget and for each cache, and a cache that is closed gives all its bytes back. */
TEST(taking_and_giving_is_counted_for_all_and_for_each) {
    far_budget *budget = far_budget_new(1000);
    cache a, b;
    open_cache(&a, budget, "a");
    open_cache(&b, budget, "b");
    assert_true(grow_cache(&a, 300));
    assert_true(grow_cache(&b, 700));
    assert_int_equal(far_budget_used(budget), 1000);
    assert_int_equal(far_budget_cache_used(a.budget), 300);
    assert_int_equal(far_budget_cache_used(b.budget), 700);
    assert_int_equal(a.evictions + b.evictions, 0);
    close_cache(&a);
    assert_int_equal(far_budget_used(budget), 700);
    close_cache(&b);
    assert_int_equal(far_budget_used(budget), 0);
    far_budget_free(budget);
}


/* When the budget is used up, the largest cache evicts. So three caches that grow end with equal shares. */
TEST(the_largest_makes_room_and_all_end_with_equal_shares) {
    far_budget *budget = far_budget_new(3000);
    cache a, b, c;
    open_cache(&a, budget, "a");
    open_cache(&b, budget, "b");
    open_cache(&c, budget, "c");
    assert_true(grow_cache(&a, 2500));
    assert_true(grow_cache(&b, 500));
    for (unsigned i = 0; i < 300; i++) {
        assert_true(grow_cache(&b, 10));
        assert_true(grow_cache(&c, 10));
        assert_int_equal(far_budget_used(budget), 3000);
    }
    assert_in_range(a.bytes, 980, 1020);
    assert_in_range(b.bytes, 980, 1020);
    assert_in_range(c.bytes, 980, 1020);
    close_cache(&a);
    close_cache(&b);
    close_cache(&c);
    far_budget_free(budget);
}


/* If no cache is larger than the asking one, the asking cache evicts its own entries. */
TEST(a_largest_cache_evicts_its_own_entries) {
    far_budget *budget = far_budget_new(1000);
    cache a, b;
    open_cache(&a, budget, "a");
    open_cache(&b, budget, "b");
    assert_true(grow_cache(&a, 500));
    assert_true(grow_cache(&b, 500));
    assert_true(grow_cache(&b, 10));
    assert_int_equal(a.evictions, 0);
    assert_int_equal(b.bytes, 500);
    assert_true(grow_cache(&a, 10));
    assert_int_equal(a.evictions, 1);
    assert_int_equal(a.bytes, 500);
    close_cache(&a);
    close_cache(&b);
    far_budget_free(budget);
}


/* far_budget_take_from_others evicts from larger caches and takes free bytes, but fails if the asking cache would have
 * to evict. */
TEST(take_from_others_evicts_nothing_of_its_own) {
    far_budget *budget = far_budget_new(1000);
    cache a, b;
    open_cache(&a, budget, "a");
    open_cache(&b, budget, "b");
    assert_true(grow_cache(&a, 700));
    assert_true(grow_cache(&b, 300));
    assert_false(far_budget_take_from_others(a.budget, 10));
    assert_int_equal(a.evictions + b.evictions, 0);
    assert_true(far_budget_take_from_others(b.budget, 10));
    far_budget_give(b.budget, 10);
    assert_int_equal(a.evictions, 1);
    assert_int_equal(a.bytes, 690);
    assert_true(far_budget_take_from_others(a.budget, 10)); /* these bytes are free, so no cache must evict */
    far_budget_give(a.budget, 10);
    close_cache(&a);
    close_cache(&b);
    far_budget_free(budget);
}


/* far_budget_take fails if the caches cannot evict enough. If a larger cache evicts nothing, the asking cache evicts
 * its own entries. */
TEST(take_fails_if_no_cache_can_evict) {
    far_budget *budget = far_budget_new(1000);
    cache a, b;
    open_cache(&a, budget, "a");
    open_cache(&b, budget, "b");
    assert_true(grow_cache(&a, 900));
    a.stubborn = true;
    assert_false(grow_cache(&b, 101));
    assert_true(grow_cache(&b, 100));
    assert_false(grow_cache(&b, 1001));
    assert_int_equal(far_budget_used(budget), 1000);
    assert_true(grow_cache(&b, 50)); /* the larger cache evicts nothing, so b evicts its own bytes */
    assert_int_equal(b.bytes, 100);
    a.stubborn = false;
    close_cache(&a);
    close_cache(&b);
    far_budget_free(budget);
}


/* At most FAR_BUDGET_CACHES_MAX caches can be registered at a time, and places become free again. */
TEST(registrations_are_reused_and_bounded) {
    far_budget *budget = far_budget_new(1000);
    cache caches[FAR_BUDGET_CACHES_MAX], more;
    for (unsigned round = 0; round < 2; round++) {
        for (unsigned i = 0; i < FAR_BUDGET_CACHES_MAX; i++)
            open_cache(&caches[i], budget, "c");
        assert_null(far_budget_register(budget, "more", evict_bytes, &more));
        for (unsigned i = 0; i < FAR_BUDGET_CACHES_MAX; i++)
            close_cache(&caches[i]);
    }
    far_budget_free(budget);
}


static void add_used_bytes(void *ctx, const char *name, size_t used) {
    size_t *sums = ctx;
    sums[*name - 'a'] += used;
}


/* far_budget_list reports each registered cache with its name and bytes. */
TEST(caches_are_listed_by_name) {
    far_budget *budget = far_budget_new(1000);
    size_t sums[2] = {0, 0};
    cache a, b;
    open_cache(&a, budget, "a");
    open_cache(&b, budget, "b");
    grow_cache(&a, 5);
    grow_cache(&b, 7);
    far_budget_list(budget, add_used_bytes, sums);
    assert_int_equal(sums[0], 5);
    assert_int_equal(sums[1], 7);
    close_cache(&a);
    close_cache(&b);
    far_budget_free(budget);
}


/* Several threads. */
static far_budget *shared;
static atomic_uint failures;


/* Grows a cache many times and checks the limit each time. */
static void grow_repeatedly(void *arg) {
    (void)arg;
    cache *c = malloc(sizeof(*c));
    memset(c, 0, sizeof(*c));
    c->budget = far_budget_register(shared, "grows", evict_bytes, c);
    for (unsigned i = 0; i < TURNS; i++) {
        grow_cache(c, 1 + i % 50);
        if (far_budget_used(shared) > far_budget_limit(shared))
            atomic_fetch_add_explicit(&failures, 1, memory_order_relaxed);
    }
    close_cache(c);
    free(c);
}


/* Registers a cache, grows it, and unregisters it, many times. */
static void register_repeatedly(void *arg) {
    (void)arg;
    for (unsigned i = 0; i < TURNS / 20; i++) {
        cache *c = malloc(sizeof(*c));
        memset(c, 0, sizeof(*c));
        c->budget = far_budget_register(shared, "comes", evict_bytes, c);
        grow_cache(c, 400);
        grow_cache(c, 400);
        size_t left = atomic_exchange_explicit(&c->bytes, 0, memory_order_relaxed);
        far_budget_give(c->budget, left);
        far_budget_unregister(c->budget);
        memset(c, 0xff, sizeof(*c)); /* no thread may evict from this cache any more */
        free(c);
    }
}


/* Four threads grow their caches, and two register and unregister caches. The limit holds at every moment, and at the
 * end no byte is counted. A cache that was unregistered must not be used by another thread. */
TEST(threads_never_exceed_the_limit_and_lose_no_byte) {
    far_thread *threads[THREADS];
    far_host *host = &far_host_threads;
    shared = far_budget_new(2000);
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(host->ops->start(host, i < 4 ? grow_repeatedly : register_repeatedly, NULL, &threads[i]), 0);
    for (unsigned i = 0; i < THREADS; i++)
        host->ops->join(host, threads[i]);
    assert_int_equal(atomic_load_explicit(&failures, memory_order_relaxed), 0);
    assert_int_equal(far_budget_used(shared), 0);
    far_budget_free(shared);
}
