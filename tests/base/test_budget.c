/* The byte budget: what is taken is counted, the limit holds, and who needs room gets it from other caches. */
#include "base/budget.h"
#include "base/host.h"
#include "base/sanitizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define THREADS 6
#define TURNS   (FAR_TSAN || FAR_ASAN ? 20000 : 100000)

/* A cache that is nothing but a number of bytes. */
typedef struct cache {
    far_budget_cache *budget;
    _Atomic size_t bytes;
    bool stubborn;
    atomic_uint evictions;
} cache;


static size_t evict(void *ctx, size_t bytes) {
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
    c->budget = far_budget_register(budget, name, evict, c);
    assert_non_null(c->budget);
}


static bool grow(cache *c, size_t bytes) {
    if (!far_budget_take(c->budget, bytes))
        return false;
    atomic_fetch_add_explicit(&c->bytes, bytes, memory_order_relaxed);
    return true;
}


static void close_cache(cache *c) {
    evict(c, SIZE_MAX);
    far_budget_unregister(c->budget);
}


static void the_default_is_64_mib(void **state) {
    (void)state;
    far_budget *budget = far_budget_new(0);
    assert_int_equal(far_budget_limit(budget), 64 << 20);
    far_budget_free(budget);
}


static void taking_and_giving_is_counted_for_all_and_for_each(void **state) {
    (void)state;
    far_budget *budget = far_budget_new(1000);
    cache a, b;
    open_cache(&a, budget, "a");
    open_cache(&b, budget, "b");
    assert_true(grow(&a, 300));
    assert_true(grow(&b, 700));
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


static void the_largest_makes_room_and_all_end_with_equal_shares(void **state) {
    (void)state;
    far_budget *budget = far_budget_new(3000);
    cache a, b, c;
    open_cache(&a, budget, "a");
    open_cache(&b, budget, "b");
    open_cache(&c, budget, "c");
    assert_true(grow(&a, 2500));
    assert_true(grow(&b, 500));
    for (unsigned i = 0; i < 300; i++) {
        assert_true(grow(&b, 10));
        assert_true(grow(&c, 10));
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


static void one_that_is_as_large_as_any_evicts_its_own(void **state) {
    (void)state;
    far_budget *budget = far_budget_new(1000);
    cache a, b;
    open_cache(&a, budget, "a");
    open_cache(&b, budget, "b");
    assert_true(grow(&a, 500));
    assert_true(grow(&b, 500));
    assert_true(grow(&b, 10));
    assert_int_equal(a.evictions, 0);
    assert_int_equal(b.bytes, 500);
    assert_true(grow(&a, 10));
    assert_int_equal(a.evictions, 1);
    assert_int_equal(a.bytes, 500);
    close_cache(&a);
    close_cache(&b);
    far_budget_free(budget);
}


static void one_that_takes_from_others_only_evicts_nothing_of_its_own(void **state) {
    (void)state;
    far_budget *budget = far_budget_new(1000);
    cache a, b;
    open_cache(&a, budget, "a");
    open_cache(&b, budget, "b");
    assert_true(grow(&a, 700));
    assert_true(grow(&b, 300));
    assert_false(far_budget_take_from_others(a.budget, 10));
    assert_int_equal(a.evictions + b.evictions, 0);
    assert_true(far_budget_take_from_others(b.budget, 10));
    far_budget_give(b.budget, 10);
    assert_int_equal(a.evictions, 1);
    assert_int_equal(a.bytes, 690);
    assert_true(far_budget_take_from_others(a.budget, 10)); /* what is free */
    far_budget_give(a.budget, 10);
    close_cache(&a);
    close_cache(&b);
    far_budget_free(budget);
}


static void when_nobody_can_evict_the_answer_is_no(void **state) {
    (void)state;
    far_budget *budget = far_budget_new(1000);
    cache a, b;
    open_cache(&a, budget, "a");
    open_cache(&b, budget, "b");
    assert_true(grow(&a, 900));
    a.stubborn = true;
    assert_false(grow(&b, 101));
    assert_true(grow(&b, 100));
    assert_false(grow(&b, 1001));
    assert_int_equal(far_budget_used(budget), 1000);
    assert_true(grow(&b, 50)); /* from its own, as the larger one gives nothing */
    assert_int_equal(b.bytes, 100);
    a.stubborn = false;
    close_cache(&a);
    close_cache(&b);
    far_budget_free(budget);
}


static void places_are_used_again_and_their_number_is_bounded(void **state) {
    (void)state;
    far_budget *budget = far_budget_new(1000);
    cache caches[FAR_BUDGET_CACHES_MAX], more;
    for (unsigned round = 0; round < 2; round++) {
        for (unsigned i = 0; i < FAR_BUDGET_CACHES_MAX; i++)
            open_cache(&caches[i], budget, "c");
        assert_null(far_budget_register(budget, "more", evict, &more));
        for (unsigned i = 0; i < FAR_BUDGET_CACHES_MAX; i++)
            close_cache(&caches[i]);
    }
    far_budget_free(budget);
}


static void add_up(void *ctx, const char *name, size_t used) {
    size_t *sums = ctx;
    sums[*name - 'a'] += used;
}


static void caches_are_listed_by_name(void **state) {
    (void)state;
    far_budget *budget = far_budget_new(1000);
    size_t sums[2] = {0, 0};
    cache a, b;
    open_cache(&a, budget, "a");
    open_cache(&b, budget, "b");
    grow(&a, 5);
    grow(&b, 7);
    far_budget_list(budget, add_up, sums);
    assert_int_equal(sums[0], 5);
    assert_int_equal(sums[1], 7);
    close_cache(&a);
    close_cache(&b);
    far_budget_free(budget);
}


/* Threads: four grow all the time, two come and go; the limit holds at every moment. */
static far_budget *shared;
static atomic_uint failures;


static void grow_much(void *arg) {
    (void)arg;
    cache *c = malloc(sizeof(*c));
    memset(c, 0, sizeof(*c));
    c->budget = far_budget_register(shared, "grows", evict, c);
    for (unsigned i = 0; i < TURNS; i++) {
        grow(c, 1 + i % 50);
        if (far_budget_used(shared) > far_budget_limit(shared))
            atomic_fetch_add_explicit(&failures, 1, memory_order_relaxed);
    }
    close_cache(c);
    free(c);
}


static void come_and_go(void *arg) {
    (void)arg;
    for (unsigned i = 0; i < TURNS / 20; i++) {
        cache *c = malloc(sizeof(*c));
        memset(c, 0, sizeof(*c));
        c->budget = far_budget_register(shared, "comes", evict, c);
        grow(c, 400);
        grow(c, 400);
        size_t left = atomic_exchange_explicit(&c->bytes, 0, memory_order_relaxed);
        far_budget_give(c->budget, left);
        far_budget_unregister(c->budget);
        memset(c, 0xff, sizeof(*c)); /* nobody may evict from it any more */
        free(c);
    }
}


static void threads_never_exceed_the_limit_and_lose_no_byte(void **state) {
    (void)state;
    far_thread *threads[THREADS];
    far_host *host = &far_host_threads;
    shared = far_budget_new(2000);
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(host->ops->start(host, i < 4 ? grow_much : come_and_go, NULL, &threads[i]), 0);
    for (unsigned i = 0; i < THREADS; i++)
        host->ops->join(host, threads[i]);
    assert_int_equal(atomic_load_explicit(&failures, memory_order_relaxed), 0);
    assert_int_equal(far_budget_used(shared), 0);
    far_budget_free(shared);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_default_is_64_mib),
        cmocka_unit_test(taking_and_giving_is_counted_for_all_and_for_each),
        cmocka_unit_test(the_largest_makes_room_and_all_end_with_equal_shares),
        cmocka_unit_test(one_that_is_as_large_as_any_evicts_its_own),
        cmocka_unit_test(one_that_takes_from_others_only_evicts_nothing_of_its_own),
        cmocka_unit_test(when_nobody_can_evict_the_answer_is_no),
        cmocka_unit_test(places_are_used_again_and_their_number_is_bounded),
        cmocka_unit_test(caches_are_listed_by_name),
        cmocka_unit_test(threads_never_exceed_the_limit_and_lose_no_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
