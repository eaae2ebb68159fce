/* The life of the store: it is opened and freed with its handle, sessions join and leave it, and tasks that change what
 * the handle holds by verbs enter it one at a time. */
#include "base/error.h"
#include "pool/store.h"
#include "task/latch.h"

#include <assert.h>
#include <stdlib.h>

#define MARKS_MAX   (256ull << 20)
#define PILE_SHARE  512        /* part of the pool that a session retires before it asks for the next epoch ... */
#define PILE_MIN    (1u << 20) /* ... at least ... */
#define PILE_MAX    (4u << 20) /* ... and at most: what lies long is no more in the caches of the processor */
#define SMALL_SHARE 64         /* ... but not more than this part */

static unsigned nodes(const far_store *s) {
    return s->pool->geometry.nodes;
}


/* ---- One task at a time ---- */

void far_store_enter(far_task *t) {
    far_latch(t, FAR_LATCH_STORE);
    far_store_of(t)->inside = t;
}


void far_store_leave(far_task *t) {
    assert(far_store_of(t)->inside == t);
    far_store_of(t)->inside = NULL;
    far_unlatch(t, FAR_LATCH_STORE);
}


far_aside far_aside_begin(far_task *t) {
    far_aside aside = {t->open, t->refused, t->background};
    t->open = NULL;
    t->refused = 0;
    t->background = true;
    return aside;
}


void far_aside_end(far_task *t, far_aside aside) {
    far_box_back(t);
    t->open = aside.open;
    t->refused = aside.refused;
    t->background = aside.background;
}


/* ---- Opening and the end ---- */

static void free_store(far_store *s) {
    assert(!s->inside);
    for (far_held *b; (b = far_held_next(s, NULL));)
        far_held_remove(s, b);
    for (unsigned i = 0; i < FAR_BINS; i++)
        while (s->classes[i]) {
            far_class *c = s->classes[i];
            s->classes[i] = c->next;
            for (unsigned n = 0; n < nodes(s); n++)
                free(c->shelf[n].foreign.items);
            free(c);
        }
    free(s->leaving);
    free(s->wiping.items);
    free(s->dropped.items);
    free(s->held);
    free(s->hint);
    free(s->full);
    pthread_mutex_destroy(&s->list);
    pthread_mutex_destroy(&s->lock);
    free(s);
}


/* Caches of indexes count on what they saw some epochs ago: the less often the epoch moves, the more they serve. */
static uint64_t pile_bytes(const far_geometry *g) {
    uint64_t pool_bytes = far_block_total(g) * g->block_bytes;
    uint64_t pile = pool_bytes / PILE_SHARE, most = pool_bytes / SMALL_SHARE;
    pile = pile < PILE_MIN ? PILE_MIN : pile > PILE_MAX ? PILE_MAX : pile;
    return pile < most ? pile : most;
}


int far_store_open(far_pool *pool) {
    far_store *s = calloc(1, sizeof(*s));
    if (!s)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for the lists of a pool handle");
    s->pool = pool;
    s->pile = pile_bytes(&pool->geometry);
    s->held = calloc(far_block_total(&pool->geometry), sizeof(*s->held));
    s->hint = calloc(pool->geometry.nodes, sizeof(*s->hint));
    s->full = calloc(pool->geometry.nodes, sizeof(*s->full));
    s->turn = pool->team.own->id % pool->geometry.nodes;
    s->marks_max = MARKS_MAX;
    pthread_mutex_init(&s->list, NULL);
    pthread_mutex_init(&s->lock, NULL);
    if (!s->held || !s->hint || !s->full) {
        free_store(s);
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for the lists of a pool handle");
    }
    pool->store = s;
    return 0;
}


/* Local memory only; what the handle still holds is found by a sweep. */
void far_store_free(far_pool *pool) {
    if (pool->store)
        free_store(pool->store);
    pool->store = NULL;
}


int far_memory_open(far_session *session) {
    far_store *s = session->pool->store;
    far_memory *m = calloc(1, sizeof(*m));
    if (!m)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for the lists of a session");
    assert(!session->memory);
    m->session = session;
    m->store = s;
    m->pick = session->id;
    session->memory = m;
    pthread_mutex_lock(&s->list);
    m->next = s->memories;
    s->memories = m;
    pthread_mutex_unlock(&s->list);
    return 0;
}


/* What a session retired waits with the handle's own. */
static bool leave_to_heir(far_store *s, const far_retired *item, void *ctx) {
    (void)s;
    far_queue_put(ctx, *item);
    return false;
}


void far_memory_close(far_session *session) {
    far_memory *m = session->memory;
    if (!m)
        return;
    far_store *s = m->store;
    far_session *own = session->pool->team.own;
    far_memory *heir = own && own != session ? own->memory : NULL;
    pthread_mutex_lock(&s->list);
    far_memory **at = &s->memories;
    while (*at != m) {
        assert(*at);
        at = &(*at)->next;
    }
    *at = m->next;
    if (heir)
        far_mutex_lock(&heir->lock);
    far_mutex_lock(&m->lock);
    far_kept_free(m, true);
    pthread_mutex_lock(&s->lock);
    far_memory_visit(
        s, m, &(far_visit){.in_magazine = far_item_to_store, .retired = heir ? leave_to_heir : NULL, .ctx = heir});
    assert(m->kept_count == 0 && m->reserves == 0 && !m->filler);
    pthread_mutex_unlock(&s->lock);
    far_mutex_unlock(&m->lock);
    if (heir)
        far_mutex_unlock(&heir->lock);
    pthread_mutex_unlock(&s->list);

    for (unsigned i = 0; i < FAR_BINS; i++)
        while (m->bins[i]) {
            far_bin *b = m->bins[i];
            m->bins[i] = b->next;
            for (unsigned n = 0; n < nodes(s); n++)
                free(b->magazine[n].items);
            free(b);
        }
    for (unsigned i = 0; i < FAR_QUEUES_MAX; i++)
        free(m->queues[i].items);
    free(m->kept);
    free(m->reserved);
    free(m);
    session->memory = NULL;
}
