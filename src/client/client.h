/* What the public calls share: their guards, and housekeeping, which runs beside them. */
#ifndef FAR_CLIENT_CLIENT_H
#define FAR_CLIENT_CLIENT_H

#include "pool/handle.h"
#include "task/session.h"

/* One slice of housekeeping; returns 1 when more is to be done at once, 0 when it can wait for a tick, an error of the
 * own session. */
int far_housekeeping(far_pool *pool);
void far_housekeeper(void *pool); /* the thread: slices until pool->stopping */

/* What the handle tells of itself (bulletin.c). add: what a session has counted, by whoever is inside of it; tick: a part
 * of each slice of housekeeping. */
void far_bulletin_add(far_session *s);
int far_bulletin_tick(far_task *t);
void far_stats_sum(const far_session *s, far_stats *stats); /* stats.c: of all kinds of operations; from inside */

/* How often this process and those before it were forked off. */
extern atomic_uint far_forks __attribute__((visibility("hidden")));

/* Every public call that takes a pool stands between these two; every one that takes a session between those two. Not
 * 0: FAR_ERR_INVALID in words, because the handle is NULL or its pool was closed; then there is no leave. */
int far_pool_enter(far_pool *pool);
void far_pool_leave(far_pool *pool);
int far_call_refuse(far_session *s); /* says why */


/* This process was forked off since it was opened. */
static inline bool far_pool_is_parents(const far_pool *pool) {
    return pool->forks != atomic_load_explicit(&far_forks, memory_order_relaxed);
}


static inline void far_call_leave(far_session *s) {
    unsigned calls = atomic_load_explicit(&s->calls, memory_order_relaxed);
    atomic_store_explicit(&s->calls, calls - 1, memory_order_release);
}


/* The order is that of far_pool_enter. */
static inline int far_call_enter(far_session *s) {
    if (!s || far_pool_is_parents(s->pool))
        return far_call_refuse(s);
    unsigned calls = atomic_load_explicit(&s->calls, memory_order_relaxed); /* one thread at a time has the session */
    atomic_store_explicit(&s->calls, calls + 1, memory_order_seq_cst);
    if (!atomic_load_explicit(&s->pool->closed, memory_order_seq_cst))
        return 0;
    far_call_leave(s);
    return far_call_refuse(s);
}


/* The pool was closed: until far_pool_close, which may be at work in another thread, has given back all that is open.
 */
void far_pool_await_close(far_pool *pool);

#endif
