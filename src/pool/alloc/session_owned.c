/* Session-owned objects, which are allocated with FAR_ALLOC_SESSION_OWNED. They are in blocks of this handle, which it
 * does not release while they exist. The handle knows these objects when it sweeps its blocks, so nothing about them is
 * written to far memory. */
#include "base/error.h"
#include "base/grow.h"
#include "pool/alloc/store.h"

#include <assert.h>


int far_session_own(far_memory *m, far_class *class, uint64_t item) {
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
    m->session_owned[m->session_owned_count++] = (far_session_owned){item, class};
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
    m->session_owned[at] = m->session_owned[--m->session_owned_count];
    return item;
}


void far_session_owned_remove(far_memory *m, far_addr addr) {
    for (uint32_t i = 0; i < m->session_owned_count; i++)
        if (far_item_addr(m->session_owned[i].item) == addr) {
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
    far_addr addr = far_item_addr(remove_entry(m, at));
    if (m->session->lost)
        far_memory_note_leak(m->store->pool);
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
    pthread_mutex_unlock(&s->lock);
}
