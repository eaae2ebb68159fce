/* Objects that stay a session's own: those asked for with FAR_ALLOC_KEEP, and the reserves of its indexes. They are
 * listed in tables in far memory, so that a sweep takes them for reachable while the session lives:
 *
 *   table, 1024 bytes:  next table or 0 | 0 | 63 x {address or 0, size}         the registry names the first
 *
 * One writer. A slot is written before the object counts as kept. An object that is handed out, or freed, leaves its
 * slot stale: the slot is cleared in a tick, and not while a sweep covers the object, which may then be linked where
 * the walk has passed already. */
#include "pool/catalog_layout.h"
#include "pool/memory.h"
#include "runtime/error.h"

#include <stdlib.h>
#include <string.h>

#define TABLE_BYTES 1024u
#define CLEAR_VERBS 64u

_Static_assert(16 + FAR_KEPT_PER_TABLE * 16 == TABLE_BYTES, "a table is full to the end");
_Static_assert(offsetof(far_client, kept) == 16, "word 2 of the registry entry");


static far_addr slot_addr(const far_memory *m, size_t slot) {
    return m->tables[slot / FAR_KEPT_PER_TABLE] + 16 + slot % FAR_KEPT_PER_TABLE * 16;
}


/* One task at a time; a reclaim hook of the keeper itself passes. False: it is the keeper. */
static bool become_keeper(far_task *t) {
    far_memory *m = far_memory_of(t);
    if (m->keeper == t)
        return false;
    while (m->keeper != NULL)
        far_sleep(t, far_rtt(t));
    m->keeper = t;
    return true;
}


static far_class *table_class(far_memory *m) {
    pthread_mutex_lock(&m->lock);
    far_class *class = far_class_for(m, NULL, FAR_POOL_TYPE_KEPT, TABLE_BYTES);
    pthread_mutex_unlock(&m->lock);
    return class;
}


/* Local room for one more table. */
static bool grow_slots(far_memory *m) {
    far_addr *tables = realloc(m->tables, (m->table_count + 1) * sizeof(*tables));
    if (tables != NULL)
        m->tables = tables;
    far_kept *kept = realloc(m->kept, (m->kept_count + FAR_KEPT_PER_TABLE) * sizeof(*kept));
    if (kept != NULL)
        m->kept = kept;
    if (tables == NULL || kept == NULL)
        return false;
    memset(m->kept + m->kept_count, 0, FAR_KEPT_PER_TABLE * sizeof(*kept));
    return true;
}


static int add_table(far_task *t) {
    far_memory *m = far_memory_of(t);
    far_class *class = table_class(m);
    if (class == NULL)
        return FAR_ERR_NO_MEMORY;
    far_object object;
    bool zero;
    int err = far_alloc_object(t, class, FAR_NODE_ANY, false, &object, &zero);
    if (err == 0 && !zero)
        err = far_wipe(t, object.addr, TABLE_BYTES);
    if (err < 0)
        return err;
    far_addr link = m->table_count > 0 ? m->tables[m->table_count - 1]
                                       : far_client_entry(far_task_client(t)) + offsetof(far_client, kept);
    if ((err = far_write_word(t, link, object.addr)) < 0)
        return err;
    pthread_mutex_lock(&m->lock);
    bool grown = grow_slots(m);
    if (grown) {
        m->tables[m->table_count++] = object.addr;
        m->kept_count += FAR_KEPT_PER_TABLE;
    }
    pthread_mutex_unlock(&m->lock);
    if (grown)
        return 0;
    far_write_word(t, link, 0);
    far_retire(t, NULL, FAR_POOL_TYPE_KEPT, object.addr, TABLE_BYTES);
    return FAR_ERR_NO_MEMORY;
}


/* The keeper: a free slot. Stale ones are free as soon as they may be overwritten. */
static int find_slot(far_task *t, size_t *slot) {
    far_memory *m = far_memory_of(t);
    for (;;) {
        bool found = false;
        pthread_mutex_lock(&m->lock);
        for (size_t i = 0; i < m->kept_count && !found; i++)
            if (m->kept[i].addr == 0 || (m->kept[i].stale && !far_is_marked(m, m->kept[i].addr))) {
                *slot = i;
                found = true;
            }
        pthread_mutex_unlock(&m->lock);
        if (found)
            return 0;
        int err = add_table(t);
        if (err < 0)
            return err;
    }
}


static int keep(far_task *t, far_class *class, const far_object *object, bool reserve) {
    far_memory *m = far_memory_of(t);
    size_t slot;
    int err = find_slot(t, &slot);
    if (err < 0)
        return err;
    uint64_t *words = far_scratch(t, 16);
    if (words == NULL)
        return FAR_ERR_NO_MEMORY;
    words[0] = object->addr;
    words[1] = class->size;
    far_write(t, slot_addr(m, slot), words, 16);
    if ((err = far_wait(t)) < 0)
        return err;
    pthread_mutex_lock(&m->lock);
    m->kept[slot] = (far_kept){
        .addr = object->addr, .class = class, .cookie = object->cookie, .used = object->used, .reserve = reserve};
    m->keeps += !reserve;
    pthread_mutex_unlock(&m->lock);
    return 0;
}


int far_keep(far_task *t, far_class *class, const far_object *object, bool reserve) {
    bool keeper = become_keeper(t);
    int err = keep(t, class, object, reserve);
    if (keeper)
        far_memory_of(t)->keeper = NULL;
    return err;
}


bool far_kept_forget(far_memory *m, far_addr addr) {
    for (size_t i = 0; m->keeps > 0 && i < m->kept_count; i++)
        if (m->kept[i].addr == addr && !m->kept[i].stale && !m->kept[i].reserve) {
            m->kept[i].stale = true;
            m->keeps--;
            return true;
        }
    return false;
}


/* Reserves. */

static struct far_reserves *reserve_of(far_memory *m, uint32_t uid) {
    for (size_t i = 0; i < m->reserve_count; i++)
        if (m->reserves[i].uid == uid)
            return &m->reserves[i];
    return NULL;
}


static unsigned count_reserved(far_memory *m, const far_class *class) {
    unsigned count = 0;
    for (size_t i = 0; i < m->kept_count; i++)
        count += m->kept[i].reserve && !m->kept[i].stale && m->kept[i].addr != 0 && m->kept[i].class == class;
    return count;
}


/* The keeper: what is missing of one kind of object. Two reserves of one class add up. */
static int fill_class(far_task *t, far_index *index, const far_reserve *reserve) {
    far_memory *m = far_memory_of(t);
    pthread_mutex_lock(&m->lock);
    far_class *class = far_class_for(m, index, reserve->type, reserve->size);
    unsigned held = class == NULL ? 0 : count_reserved(m, class), wanted = 0;
    for (unsigned i = 0; class != NULL && i < index->kind->reserve_count; i++) {
        const far_reserve *r = &index->kind->reserve[i];
        if (r->type == reserve->type && far_size_class(r->size, class->info->align) == class->size)
            wanted += r->count;
    }
    pthread_mutex_unlock(&m->lock);
    if (class == NULL)
        return FAR_ERR_INVALID;
    for (; held < wanted; held++) {
        far_object object;
        bool zero;
        int err = far_alloc_object(t, class, FAR_NODE_ANY, false, &object, &zero);
        if (err == 0 && (err = keep(t, class, &object, true)) < 0)
            far_free(t, index, class->type, object.addr, class->size);
        if (err < 0)
            return err;
    }
    return 0;
}


/* With the lock: a reserve that could not be completed is not kept, it would only make others run short. */
static void let_go(far_memory *m, uint32_t uid) {
    for (size_t i = 0; i < m->kept_count; i++) {
        far_kept *k = &m->kept[i];
        if (k->addr == 0 || k->stale || !k->reserve || k->class->uid != uid)
            continue;
        k->stale = true;
        far_put_free(m, k->class,
                     (far_entry){k->addr | (k->class->info->recover != NULL ? FAR_ENTRY_RECOVER : 0), k->cookie});
    }
}


static int fill(far_task *t, far_index *index, bool first) {
    far_memory *m = far_memory_of(t);
    int err = 0;
    for (unsigned i = 0; i < index->kind->reserve_count && err == 0; i++)
        err = fill_class(t, index, &index->kind->reserve[i]);
    pthread_mutex_lock(&m->lock);
    struct far_reserves *r = reserve_of(m, index->uid);
    if (r != NULL)
        r->complete = err == 0;
    if (err < 0 && first)
        let_go(m, index->uid);
    pthread_mutex_unlock(&m->lock);
    int given = far_give_pending(t);
    return err < 0 ? err : given;
}


bool far_reserve_is_full(far_memory *m, const far_index *index) {
    if (index == NULL || index->kind->reserve_count == 0)
        return true;
    const struct far_reserves *r = reserve_of(m, index->uid);
    return r != NULL && r->complete;
}


int far_reserve_fill(far_task *t, far_index *index) {
    far_memory *m = far_memory_of(t);
    struct far_reserves *r;
    if (far_reserve_is_full(m, index))
        return 0;
    if (!become_keeper(t))
        return 0; /* it is being filled by this very task */
    bool first = false;
    r = reserve_of(m, index->uid);
    if (r == NULL) {
        struct far_reserves *more = realloc(m->reserves, (m->reserve_count + 1) * sizeof(*more));
        if (more != NULL) {
            m->reserves = more;
            r = &more[m->reserve_count++];
            *r = (struct far_reserves){index->uid, false};
            first = true;
        }
    }
    int err = r == NULL ? FAR_ERR_NO_MEMORY : r->complete ? 0 : fill(t, index, first);
    m->keeper = NULL;
    return err;
}


bool far_reserve_take(far_task *t, far_class *class, unsigned node, bool must, far_object *object) {
    far_memory *m = far_memory_of(t);
    far_kept *best = NULL;
    pthread_mutex_lock(&m->lock);
    for (size_t i = 0; i < m->kept_count; i++) {
        far_kept *k = &m->kept[i];
        if (k->addr == 0 || k->stale || !k->reserve || k->class != class)
            continue;
        bool there = node == FAR_NODE_ANY || far_addr_node(k->addr) == node;
        if (there || (!must && best == NULL))
            best = k;
        if (there)
            break;
    }
    if (best != NULL) {
        *object = (far_object){
            .addr = best->addr, .size = class->size, .used = best->used, .cookie = best->cookie, .epoch = t->pin.epoch};
        best->stale = true;
        struct far_reserves *r = reserve_of(m, class->uid);
        if (r != NULL)
            r->complete = false;
    }
    pthread_mutex_unlock(&m->lock);
    return best != NULL;
}


/* Ticks and the end. */

/* With the lock: reserves of indexes that are not open here any more. */
static void drop_closed_reserves(far_memory *m) {
    for (size_t i = 0; i < m->kept_count; i++) {
        far_kept *k = &m->kept[i];
        if (k->addr == 0 || k->stale || !k->reserve || k->class->index != NULL)
            continue;
        struct far_reserves *r = reserve_of(m, k->class->uid);
        if (r != NULL)
            *r = m->reserves[--m->reserve_count];
        let_go(m, k->class->uid);
    }
}


int far_keep_tick(far_task *t) {
    far_memory *m = far_memory_of(t);
    static const uint64_t zeros[2];
    if (m->kept_count == 0 || m->keeper != NULL)
        return 0;
    m->keeper = t;
    size_t cleared[CLEAR_VERBS], count = 0;
    pthread_mutex_lock(&m->lock);
    drop_closed_reserves(m);
    for (size_t i = 0; i < m->kept_count && count < CLEAR_VERBS; i++)
        if (m->kept[i].stale && !far_is_marked(m, m->kept[i].addr))
            cleared[count++] = i;
    pthread_mutex_unlock(&m->lock);
    for (size_t i = 0; i < count; i++)
        far_write(t, slot_addr(m, cleared[i]), zeros, sizeof(zeros));
    int err = count == 0 ? 0 : far_wait(t);
    pthread_mutex_lock(&m->lock);
    for (size_t i = 0; err == 0 && i < count; i++)
        m->kept[cleared[i]] = (far_kept){0};
    pthread_mutex_unlock(&m->lock);
    m->keeper = NULL;
    return err;
}


int far_keep_close(far_task *t) {
    far_memory *m = far_memory_of(t);
    if (m->table_count == 0)
        return 0;
    int err = far_write_word(t, far_client_entry(far_task_client(t)) + offsetof(far_client, kept), 0);
    if (err < 0)
        return err;
    for (size_t i = 0; i < m->table_count; i++) /* a sweep may be reading them */
        far_retire(t, NULL, FAR_POOL_TYPE_KEPT, m->tables[i], TABLE_BYTES);
    pthread_mutex_lock(&m->lock);
    for (size_t i = 0; i < m->kept_count; i++) {
        far_kept *k = &m->kept[i];
        if (k->addr != 0 && !k->stale)
            far_put_free(m, k->class, (far_entry){k->addr, k->cookie});
    }
    m->kept_count = m->table_count = m->keeps = 0;
    pthread_mutex_unlock(&m->lock);
    return far_give_pending(t);
}
