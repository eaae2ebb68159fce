/* Session-owned objects: objects allocated with FAR_ALLOC_SESSION_OWNED, and the reserves that sessions hold for their
 * indexes. A reserve contains the objects that an index kind declares, for completing a change in a full pool.
 * Session-owned objects are in blocks of this handle, which it does not release while they exist. The handle knows
 * these objects when it sweeps its blocks, so nothing about them is written to far memory. */
#include "base/error.h"
#include "base/grow.h"
#include "pool/alloc/store.h"

#include <assert.h>
#include <stdlib.h>


int far_session_own(far_memory *m, far_class *class, uint64_t item, bool reserve) {
    far_store *s = m->store;
    far_session_owned *list = far_grow(m->session_owned, m->session_owned_count, sizeof(*list));
    if (!list)
        return far_fail(FAR_ERR_NO_MEMORY, "no local memory for the list of objects that a session keeps");
    m->session_owned = list;
    pthread_mutex_lock(&s->lock);
    far_owned_block *b = far_owned_block_at(s, far_item_addr(item));
    if (b)
        b->session_owned++;
    pthread_mutex_unlock(&s->lock);
    if (!b)
        return 0;
    m->session_owned[m->session_owned_count++] = (far_session_owned){item, class, reserve};
    m->reserve_objects += reserve;
    assert(m->reserve_objects <= m->session_owned_count);
    return 1;
}


/* With both locks held, removes an entry of the list. The object belongs to the caller afterwards. */
static uint64_t remove_entry(far_memory *m, uint32_t at) {
    assert(at < m->session_owned_count);
    uint64_t item = m->session_owned[at].item;
    far_owned_block *b = far_owned_block_at(m->store, far_item_addr(item));
    assert(!b || b->session_owned > 0);
    if (b)
        b->session_owned--;
    assert(m->reserve_objects >= m->session_owned[at].reserve);
    m->reserve_objects -= m->session_owned[at].reserve;
    m->session_owned[at] = m->session_owned[--m->session_owned_count];
    return item;
}


void far_session_owned_remove(far_memory *m, far_addr addr) {
    for (uint32_t i = 0; i < m->session_owned_count; i++)
        if (!m->session_owned[i].reserve && far_item_addr(m->session_owned[i].item) == addr) {
            pthread_mutex_lock(&m->store->lock);
            remove_entry(m, i);
            pthread_mutex_unlock(&m->store->lock);
            return;
        }
}


void far_session_owned_free_closed(far_store *s) {
    pthread_mutex_lock(&s->sessions_lock);
    for (far_memory *m = s->sessions; m; m = m->next) {
        far_mutex_lock(&m->lock);
        if (m->session_owned_count > 0)
            far_session_owned_free(m, false);
        far_mutex_unlock(&m->lock);
    }
    pthread_mutex_unlock(&s->sessions_lock);
}


/* With both locks held, ends the ownership of an object and frees it. An exception is an object that a lost session
 * owned, because it may be a redo record that other clients need to complete the session's work. Such an object is left
 * to a collection, which completes the work first. */
static void free_entry(far_memory *m, uint32_t at) {
    far_class *class = m->session_owned[at].class;
    bool needed = m->session->lost && !m->session_owned[at].reserve;
    far_addr addr = far_item_addr(remove_entry(m, at));
    if (needed)
        atomic_store_explicit(&m->store->collection_due, true, memory_order_relaxed);
    else
        far_store_add_free(m->store, class, addr, UINT64_MAX);
}


/* Returns whether the index of the class is not open in this handle. The pool's own objects (uid 0) have no index and
 * count as open. */
static bool class_is_closed(const far_class *class) {
    return class->uid != 0 && !far_class_index(class);
}


void far_session_owned_free(far_memory *m, bool all) {
    far_store *s = m->store;
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = m->session_owned_count; i-- > 0;)
        if (all || class_is_closed(m->session_owned[i].class))
            free_entry(m, i);
    for (uint32_t i = m->reserve_state_count; i-- > 0;) {
        bool used = false;
        for (uint32_t k = 0; k < m->session_owned_count; k++)
            used |= m->session_owned[k].reserve && m->session_owned[k].class->uid == m->reserve_states[i].uid;
        if (!used)
            m->reserve_states[i] = m->reserve_states[--m->reserve_state_count];
    }
    pthread_mutex_unlock(&s->lock);
}


/* ---- Reserves ---- */

static struct far_reserve_state *find_reserve_state(far_memory *m, uint32_t uid) {
    for (uint32_t i = 0; i < m->reserve_state_count; i++)
        if (m->reserve_states[i].uid == uid)
            return &m->reserve_states[i];
    return NULL;
}


bool far_reserve_is_full(far_memory *m, const far_index *index) {
    if (!index || index->kind->reserve_count == 0)
        return true;
    const struct far_reserve_state *r = find_reserve_state(m, index->uid);
    return r && r->complete;
}


static bool ensure_reserve_state(far_memory *m, uint32_t uid) {
    if (find_reserve_state(m, uid))
        return true;
    struct far_reserve_state *more = realloc(m->reserve_states, (m->reserve_state_count + 1) * sizeof(*more));
    if (!more)
        return false;
    m->reserve_states = more;
    m->reserve_states[m->reserve_state_count++] = (struct far_reserve_state){uid, false};
    return true;
}


/* Returns how many objects of the class the reserve lacks. If an index kind declares two reserves of the same class,
 * their numbers are added. */
static unsigned count_missing_objects(far_memory *m, far_index *index, const far_class *class) {
    unsigned held = 0, wanted = 0;
    for (uint32_t i = 0; i < m->session_owned_count; i++)
        held += m->session_owned[i].reserve && m->session_owned[i].class == class;
    for (unsigned i = 0; i < index->kind->reserve_count; i++) {
        const far_reserve *r = &index->kind->reserve[i];
        if (r->type == class->type &&
            far_size_class(&m->store->pool->geometry, r->size, index->kind->types[r->type].align) == class->size)
            wanted += r->count;
    }
    return held < wanted ? wanted - held : 0;
}


static int fill_reserve_class(far_task *t, far_index *index, const far_reserve *reserve) {
    far_memory *m = far_memory_of(t);
    for (;;) {
        far_mutex_lock(&m->lock);
        far_bin *bin = far_bin_get(m, index, reserve->type, reserve->size);
        unsigned missing = !bin ? 0 : count_missing_objects(m, index, bin->class);
        far_mutex_unlock(&m->lock);
        if (!bin || missing == 0)
            return !bin ? far_fail(FAR_ERR_NO_MEMORY, "no local memory for a reserve") : 0;
        uint64_t item;
        int err = far_alloc_item(t, bin->class, FAR_NODE_ANY, false, true, &item);
        if (err < 0)
            return err;
        far_mutex_lock(&m->lock);
        int kept = far_session_own(m, bin->class, item, true);
        if (kept <= 0) {
            pthread_mutex_lock(&m->store->lock);
            far_store_add_free(m->store, bin->class, far_item_addr(item), t->pin.epoch);
            pthread_mutex_unlock(&m->store->lock);
        }
        far_mutex_unlock(&m->lock);
        if (kept < 0)
            return kept;
    }
}


/* Frees the objects of an incomplete reserve. If the reserve cannot be completed, its objects would only take memory
 * from other sessions. */
static void free_reserve(far_memory *m, uint32_t uid) {
    pthread_mutex_lock(&m->store->lock);
    for (uint32_t i = m->session_owned_count; i-- > 0;)
        if (m->session_owned[i].reserve && m->session_owned[i].class->uid == uid)
            free_entry(m, i);
    pthread_mutex_unlock(&m->store->lock);
}


/* Only one task of a session fills a reserve at a time; the others wait. An allocation by the filling task itself
 * returns at once. */
int far_reserve_fill(far_task *t, far_index *index) {
    far_memory *m = far_memory_of(t);
    if (m->filler == t)
        return 0;
    while (m->filler)
        far_sleep(t, far_rtt(t));
    far_mutex_lock(&m->lock);
    m->filler = t;
    bool first = !find_reserve_state(m, index->uid), full = far_reserve_is_full(m, index);
    int err = ensure_reserve_state(m, index->uid) ? 0 : far_fail(FAR_ERR_NO_MEMORY, "no local memory for a reserve");
    far_mutex_unlock(&m->lock);
    for (unsigned i = 0; i < index->kind->reserve_count && err == 0 && !full; i++)
        err = fill_reserve_class(t, index, &index->kind->reserve[i]);
    far_mutex_lock(&m->lock);
    struct far_reserve_state *r = find_reserve_state(m, index->uid);
    if (r)
        r->complete = err == 0;
    if (err < 0 && first)
        free_reserve(m, index->uid);
    assert(m->filler == t);
    m->filler = NULL;
    far_mutex_unlock(&m->lock);
    return err;
}


bool far_reserve_take(far_memory *m, far_class *class, unsigned node, bool must, uint64_t *item) {
    uint32_t best = UINT32_MAX;
    for (uint32_t i = 0; i < m->session_owned_count; i++) {
        if (!m->session_owned[i].reserve || m->session_owned[i].class != class)
            continue;
        bool on_node = node == FAR_NODE_ANY || far_addr_node(far_item_addr(m->session_owned[i].item)) == node;
        if (on_node || (!must && best == UINT32_MAX))
            best = i;
        if (on_node)
            break;
    }
    if (best == UINT32_MAX)
        return false;
    pthread_mutex_lock(&m->store->lock);
    *item = remove_entry(m, best);
    if (far_sweep_is_pending(m->store))
        far_store_set_black(m->store, far_item_addr(*item));
    pthread_mutex_unlock(&m->store->lock);
    struct far_reserve_state *r = find_reserve_state(m, class->uid);
    if (r)
        r->complete = false;
    return true;
}
