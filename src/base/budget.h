/* The byte budget of a handle: one limit for all caches of all its indexes, never exceeded. A cache takes bytes before
 * it grows and gives them back when it shrinks. When the budget is spent, somebody must evict: the cache that is
 * furthest above its equal share, the asking one if it is as far as any. So one cache may use everything while the
 * others are small, and makes room as they grow.
 *
 * The caches themselves are the indexes' own (what is worth keeping, and how it is found, differs too much); they bring
 * a function that evicts. It is called on the thread of whoever asks for bytes, possibly on several at once: it is
 * thread-safe, does not wait for a lock that a caller of far_budget_take may hold, does not switch, calls
 * far_budget_give for what it drops, and never far_budget_take. */
#ifndef FAR_BASE_BUDGET_H
#define FAR_BASE_BUDGET_H

#include <stdbool.h>
#include <stddef.h>

#define FAR_BUDGET_DEFAULT    (64u << 20)
#define FAR_BUDGET_CACHES_MAX 64

typedef struct far_budget far_budget;
typedef struct far_budget_cache far_budget_cache;

/* Drops about `bytes` (more is fine) and returns how many it gave back; 0: nothing can go now. */
typedef size_t far_budget_evict(void *ctx, size_t bytes);

far_budget *far_budget_new(size_t bytes); /* 0: the default; NULL: no memory */
void far_budget_free(far_budget *budget); /* no cache is registered */

/* NULL: too many caches. The name must outlive the registration. */
far_budget_cache *far_budget_register(far_budget *budget, const char *name, far_budget_evict *evict, void *ctx);
void far_budget_unregister(far_budget_cache *cache); /* its bytes were given back; no evict of it runs afterwards */

bool far_budget_take(far_budget_cache *cache,
                     size_t bytes); /* false: there is no room, and nobody can evict enough; do without */
/* The same, but when the asking cache would have to evict there is no room either: for a cache whose parts are of equal
 * worth, which would only exchange one for another. */
bool far_budget_take_from_others(far_budget_cache *cache, size_t bytes);
void far_budget_give(far_budget_cache *cache, size_t bytes);

size_t far_budget_limit(const far_budget *budget);
size_t far_budget_used(const far_budget *budget);
size_t far_budget_cache_used(const far_budget_cache *cache);
/* Calls each for every registered cache. */
void far_budget_list(far_budget *budget, void (*each)(void *ctx, const char *name, size_t used), void *ctx);

#endif
