/* The byte budget of a handle: one limit for all caches of all its indexes, which is never exceeded. A cache takes
 * bytes before it grows, and gives them back when it shrinks. When the budget is used up, the cache that exceeds its
 * equal share the most must evict; it may be the cache that asks for bytes. So one cache may use the whole budget while
 * the others are small, and it shrinks as they grow.
 *
 * Each index implements its own caches, because the entries and their value differ too much. A cache registers a
 * function that evicts entries. This function is called by the thread that needs bytes, possibly by several threads at
 * once. It must be thread-safe, must not wait for a lock that a caller of far_budget_take may hold, must not switch
 * coroutines, must call far_budget_give for the bytes that it frees, and must not call far_budget_take. */
#ifndef FAR_BASE_BUDGET_H
#define FAR_BASE_BUDGET_H

#include <stdbool.h>
#include <stddef.h>

#define FAR_BUDGET_DEFAULT    (64u << 20)
#define FAR_BUDGET_CACHES_MAX 64

typedef struct far_budget far_budget;
typedef struct far_budget_cache far_budget_cache;

/* Evicts about `bytes` bytes (more is allowed) and returns the number of bytes that it gave back. 0: nothing can be
 * evicted now. */
typedef size_t far_budget_evict(void *ctx, size_t bytes);

far_budget *far_budget_new(size_t bytes); /* 0 bytes: use the default. Returns NULL if memory is short. */
void far_budget_free(far_budget *budget); /* frees the budget; no cache may be registered */

/* Returns NULL if too many caches are registered. The name must stay valid until the cache is unregistered. */
far_budget_cache *far_budget_register(far_budget *budget, const char *name, far_budget_evict *evict, void *ctx);
/* All bytes of the cache must have been given back. Its evict function is not called any more when this function has
 * returned. */
void far_budget_unregister(far_budget_cache *cache);

/* Returns false if the budget is used up and the caches cannot evict enough. The caller then continues without these
 * bytes. */
bool far_budget_take(far_budget_cache *cache, size_t bytes);
/* Like far_budget_take, but never calls the evict function of the asking cache itself. This is for a cache with entries
 * of equal value, where eviction would only replace one entry by another. */
bool far_budget_take_from_others(far_budget_cache *cache, size_t bytes);
void far_budget_give(far_budget_cache *cache, size_t bytes);

size_t far_budget_limit(const far_budget *budget);
size_t far_budget_used(const far_budget *budget);
size_t far_budget_cache_used(const far_budget_cache *cache);
/* Calls `each` for every registered cache. */
void far_budget_list(far_budget *budget, void (*each)(void *ctx, const char *name, size_t used), void *ctx);

#endif
