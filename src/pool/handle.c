/* Reference count of a pool handle and the iteration over its open indexes (handle.h). client/handle.c opens and closes
 * handles; this file frees one when its last session and index are closed. */
#include "pool/handle.h"
#include "base/budget.h"
#include "pool/alloc/store.h"

#include <assert.h>
#include <stdlib.h>


const far_geometry *far_geometry_of(const far_task *t) {
    return &far_task_pool(t)->geometry;
}


int far_pool_session_new(far_pool *pool, far_session **session) {
    int err = far_session_new(pool->fabric, &pool->team, session);
    if (err < 0)
        return err;
    (*session)->pool = pool;
    (*session)->capabilities = &pool->geometry.capabilities;
    return 0;
}


void far_pool_wake(far_pool *pool) {
    pool->fabric->host->ops->unpark(pool->fabric->host, &pool->parker);
}


void far_status_note_change(far_pool *pool) {
    pool->status_changed = true;
}


bool far_status_take_change(far_pool *pool) {
    bool changed = pool->status_changed;
    pool->status_changed = false;
    return changed;
}


far_index *far_pool_use_index(far_pool *pool, far_index *previous) {
    const uint32_t after = previous ? previous->uid : 0;
    far_index *next = NULL;
    if (previous)
        far_index_unuse(previous);
    pthread_mutex_lock(&pool->lock);
    for (far_index *index = pool->indexes; index; index = index->next)
        if (index->uid > after && index->opens > 0 && !far_index_is_dropped(index) && (!next || index->uid < next->uid))
            next = index;
    if (next)
        far_index_use(next);
    pthread_mutex_unlock(&pool->lock);
    return next;
}


void far_pool_reference(far_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    pool->references++;
    pthread_mutex_unlock(&pool->lock);
}


static void free_pool(far_pool *pool) {
    assert(!pool->indexes && !pool->team.first);
    far_store_free(pool);
    far_latches_free(pool->team.latches);
    far_budget_free(pool->budget);
    pthread_mutex_destroy(&pool->team.lock);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}


void far_pool_release(far_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    assert(pool->references > 0);
    bool last = --pool->references == 0;
    pthread_mutex_unlock(&pool->lock);
    if (last)
        free_pool(pool);
}
