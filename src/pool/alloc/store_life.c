/* The life of the store: it is opened and freed with its handle, and sessions join and leave it. Also the latch that
 * admits one task at a time to block work (far_store_enter), and saving the batch of a task. */
#include "base/error.h"
#include "base/pages.h"
#include "pool/alloc/store.h"
#include "task/latch.h"

#include <assert.h>
#include <stdlib.h>

#define MARKS_MAX (256ull << 20)
/* A session requests the next epoch when its retired objects exceed the pool's size divided by PILE_SHARE. This bound
 * is at least PILE_MIN and at most PILE_MAX, because memory that was retired long ago is no longer in the processor's
 * caches. The bound never exceeds the pool's size divided by SMALL_SHARE. */
#define PILE_SHARE  512
#define PILE_MIN    (1u << 20)
#define PILE_MAX    (4u << 20)
#define SMALL_SHARE 64


/* ---- One task at a time ---- */

void far_store_enter(far_task *t) {
    far_latch(t, FAR_LATCH_STORE);
    far_store_of(t)->block_task = t;
}


void far_store_leave(far_task *t) {
    assert(far_store_of(t)->block_task == t);
    far_store_of(t)->block_task = NULL;
    far_unlatch(t, FAR_LATCH_STORE);
}


far_saved_batch far_batch_save(far_task *t) {
    far_saved_batch saved = {t->open, t->refused, t->background};
    t->open = NULL;
    t->refused = 0;
    t->background = true;
    return saved;
}


void far_batch_restore(far_task *t, far_saved_batch saved) {
    far_release_open_box(t);
    t->open = saved.open;
    t->refused = saved.refused;
    t->background = saved.background;
}


/* ---- Opening and closing ---- */

static void free_store(far_store *s) {
    assert(!s->block_task);
    far_free_lists_free(s);
    free(s->dropped.dropped_uids.items);
    far_block_search_free(s);
    free(s->headroom);
    pthread_mutex_destroy(&s->sessions_lock);
    pthread_mutex_destroy(&s->lock);
    free(s);
}


/* Computes how many bytes a session retires before it requests the next epoch. The value is large because caches of
 * indexes trust their entries only for some epochs, so they stay useful longer if the epoch advances less often. */
static uint64_t retire_batch_bytes_for(const far_geometry *g) {
    uint64_t pool_bytes = far_block_total(g) * g->block_bytes;
    uint64_t pile = pool_bytes / PILE_SHARE, most = pool_bytes / SMALL_SHARE;
    pile = pile < PILE_MIN ? PILE_MIN : pile > PILE_MAX ? PILE_MAX : pile;
    return pile < most ? pile : most;
}


int far_store_open(far_pool *pool) {
    far_store *s = calloc(1, sizeof(*s));
    if (!s)
        return far_fail(FAR_ERR_NO_MEMORY, "no local memory for the lists of a pool handle");
    s->pool = pool;
    s->retire_batch_bytes = retire_batch_bytes_for(&pool->geometry);
    s->marks_max = MARKS_MAX;
    pthread_mutex_init(&s->sessions_lock, NULL);
    pthread_mutex_init(&s->lock, NULL);
    far_alloc_open(s);
    if (!far_free_lists_open(s) || !far_block_search_open(s) || !far_headroom_open(s)) {
        free_store(s);
        return far_fail(FAR_ERR_NO_MEMORY, "no local memory for the lists of a pool handle");
    }
    pool->store = s;
    return 0;
}


/* Frees local memory only. If the handle still holds far memory, a collection finds it. */
void far_store_free(far_pool *pool) {
    if (pool->store)
        free_store(pool->store);
    pool->store = NULL;
}


int far_memory_open(far_session *session) {
    far_store *s = session->pool->store;
    far_memory *m = calloc(1, sizeof(*m));
    if (!m)
        return far_fail(FAR_ERR_NO_MEMORY, "no local memory for the lists of a session");
    assert(!session->memory);
    m->session = session;
    m->store = s;
    far_alloc_open_session(m);
    session->memory = m;
    pthread_mutex_lock(&s->sessions_lock);
    m->next = s->sessions;
    s->sessions = m;
    pthread_mutex_unlock(&s->sessions_lock);
    return 0;
}


void far_memory_close(far_session *session) {
    far_memory *m = session->memory;
    if (!m)
        return;
    far_store *s = m->store;
    far_session *own = session->pool->team.own;
    far_memory *own_memory = own && own != session ? own->memory : NULL;
    pthread_mutex_lock(&s->sessions_lock);
    far_memory **at = &s->sessions;
    while (*at != m) {
        assert(*at);
        at = &(*at)->next;
    }
    *at = m->next;
    if (own_memory)
        far_mutex_lock(&own_memory->lock);
    far_mutex_lock(&m->lock);
    far_session_owned_free(m, true);
    pthread_mutex_lock(&s->lock);
    far_memory_visit(s, m, &(far_visit){.in_magazine = far_item_to_store});
    if (own_memory)
        far_queues_hand_over(m, own_memory);
    assert(m->session_owned_count == 0);
    pthread_mutex_unlock(&s->lock);
    far_mutex_unlock(&m->lock);
    if (own_memory)
        far_mutex_unlock(&own_memory->lock);
    pthread_mutex_unlock(&s->sessions_lock);

    far_bins_free(m);
    far_queues_free(m);
    free(m->session_owned);
    free(m);
    session->memory = NULL;
}
