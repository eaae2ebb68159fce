/* Opening and closing indexes, and the local list of open indexes. This file also lets the handle observe which of its
 * open indexes were dropped. README.md in this folder proves when no operation on a dropped index can begin any more.
 */
#include "base/budget.h"
#include "base/error.h"
#include "pool/catalog/catalog.h"
#include "pool/catalog/layout.h"
#include "pool/catalog/options.h"
#include "task/latch.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>


/* ---- Dropped indexes ---- */

int far_index_fail_dropped(const far_index *index) {
    return far_fail(FAR_ERR_DROPPED, "index '%s' was dropped: close it", index->name);
}


static int get_dropped(far_task *t, far_index *index, far_bytes key, far_out *out) {
    (void)t, (void)key, (void)out;
    return far_index_fail_dropped(index);
}


static int put_dropped(far_task *t, far_index *index, far_op_kind how, far_bytes key, far_bytes value) {
    (void)t, (void)how, (void)key, (void)value;
    return far_index_fail_dropped(index);
}


static int remove_dropped(far_task *t, far_index *index, far_bytes key) {
    (void)t, (void)key;
    return far_index_fail_dropped(index);
}


static const far_index_kind dropped_kind = {
    .name = "dropped", .get = get_dropped, .put = put_dropped, .remove = remove_dropped};


/* Records that the index was dropped. Operations that take a pin afterwards do not access the index. The caller holds
 * the pool's lock. */
static void mark_dropped(far_index *index) {
    if (far_index_is_dropped(index))
        return;
    atomic_store_explicit(&index->dropped, true, memory_order_relaxed);
    atomic_store_explicit(&index->operations, &dropped_kind, memory_order_relaxed);
    atomic_fetch_add_explicit(&index->pool->dropped_open, 1, memory_order_relaxed);
}


void far_catalog_mark_dropped(far_pool *pool, const far_catalog_view *view) {
    pthread_mutex_lock(&pool->lock);
    for (far_index *index = pool->indexes; index; index = index->next)
        if (index->linked <= view->linked && !far_catalog_find_uid(view, index->uid))
            mark_dropped(index);
    pthread_mutex_unlock(&pool->lock);
}


void far_catalog_mark_uid_dropped(far_pool *pool, uint32_t uid) {
    pthread_mutex_lock(&pool->lock);
    for (far_index *index = pool->indexes; index; index = index->next)
        if (index->uid == uid)
            mark_dropped(index);
    pthread_mutex_unlock(&pool->lock);
}


static bool has_linked_index(far_pool *pool) {
    pthread_mutex_lock(&pool->lock);
    bool any = pool->indexes != NULL;
    pthread_mutex_unlock(&pool->lock);
    return any;
}


/* A damaged catalog shows nothing, so the open indexes stay as they are. Their memory is not freed either, because the
 * handle that frees it must read the catalog after this handle has acknowledged the request (gc/dropped.c). */
int far_catalog_observe(far_task *t, uint64_t word, uint64_t uids) {
    far_pool *pool = far_task_pool(t);
    assert(t->pin.epoch != 0 && atomic_load_explicit(&pool->epochs.waking, memory_order_relaxed) == 1);
    if (word == pool->observed_catalog && uids == pool->observed_uids)
        return 0;
    if (has_linked_index(pool)) {
        far_scratch_mark mark = far_scratch_here(t);
        far_catalog_view view;
        far_point(t, "catalog:observe");
        int err = far_catalog_read(t, &view);
        if (err == 0)
            far_catalog_mark_dropped(pool, &view);
        far_scratch_back(t, mark);
        if (err < 0)
            return err == FAR_ERR_CORRUPT ? 0 : err;
    }
    pool->observed_catalog = word;
    pool->observed_uids = uids;
    return 0;
}


int far_index_refuse_if_dropped(far_task *t, uint32_t uid) {
    far_pool *pool = far_task_pool(t);
    int err = 0;
    pthread_mutex_lock(&pool->lock);
    for (const far_index *index = uid ? pool->indexes : NULL; index && err == 0; index = index->next)
        if (index->uid == uid && far_index_is_dropped(index))
            err = far_index_fail_dropped(index);
    pthread_mutex_unlock(&pool->lock);
    return err;
}


/* ---- Key counts ---- */

int far_catalog_publish_key_counts(far_task *t, far_index *index) {
    int64_t delta = far_index_take_key_count(index);
    if (delta == 0)
        return 0;
    /* the record is not reused while the pin is held: README.md */
    int err = far_pin_take(t);
    if (err < 0 || far_index_is_dropped(index))
        return err;
    uint64_t before;
    far_faa(t, index->record + offsetof(far_index_record, keys), (uint64_t)delta, &before);
    return far_wait(t);
}


/* ---- Local index objects ---- */

far_index *far_index_new(far_pool *pool, const far_index_kind *kind, const char *name, uint32_t uid) {
    far_index *index = calloc(1, sizeof(*index));
    if (!index)
        return NULL;
    index->kind = kind;
    atomic_init(&index->operations, kind);
    index->pool = pool;
    index->uid = uid;
    index->lenient = pool->options.salvage;
    snprintf(index->name, sizeof(index->name), "%s", name);
    return index;
}


void far_index_set_uid(far_index *index, uint32_t uid) {
    index->uid = uid;
}


void far_index_set_secret(far_index *index, const uint8_t secret[FAR_SECRET_BYTES]) {
    memcpy(index->secret, secret, sizeof(index->secret));
}


void far_index_set_record(far_index *index, far_addr record) {
    index->record = record;
}


void far_index_set_descriptor(far_index *index, far_addr descriptor) {
    index->descriptor = descriptor;
}


int far_index_set_options(far_index *index, const char *options) {
    if (options)
        snprintf(index->options_text, sizeof(index->options_text), "%s", options);
    return far_index_options_parse(index->kind, options, index->options);
}


void far_index_set_lenient(far_index *index, bool lenient) {
    index->lenient = lenient;
}


void far_index_free(far_index *index) {
    far_memory_index_closed(index->pool, index);
    free(index);
}


/* Returns the lowest number that no open index of the handle has. The caller holds the pool's lock. */
static unsigned choose_slot(const far_pool *pool) {
    for (unsigned slot = 0;; slot++) {
        const far_index *index = pool->indexes;
        while (index && index->slot != slot)
            index = index->next;
        if (!index)
            return slot;
    }
}


void far_index_link(far_index *index) {
    far_pool *pool = index->pool;
    pthread_mutex_lock(&pool->lock);
    index->opens = 1;
    index->slot = choose_slot(pool);
    index->linked = ++pool->indexes_linked;
    index->next = pool->indexes;
    pool->indexes = index;
    far_status_note_change(pool);
    pthread_mutex_unlock(&pool->lock);
    far_pool_reference(pool);
}


static void unlink_index(far_index *index) {
    far_pool *pool = index->pool;
    pthread_mutex_lock(&pool->lock);
    far_index **at = &pool->indexes;
    while (*at && *at != index)
        at = &(*at)->next;
    if (*at) {
        *at = index->next;
        if (far_index_is_dropped(index))
            atomic_fetch_sub_explicit(&pool->dropped_open, 1, memory_order_relaxed);
    }
    far_status_note_change(pool);
    pthread_mutex_unlock(&pool->lock);
}


/* ---- Ending the use of an index ---- */

/* Removes one reference of an index. Returns whether it was the last one; no task finds the index in the handle's list
 * then, but the index stays in the list until its last task has ended, so that a drop is still noticed. */
static bool remove_reference(far_index *index) {
    pthread_mutex_lock(&index->pool->lock);
    assert(index->opens > 0);
    bool last = --index->opens == 0;
    pthread_mutex_unlock(&index->pool->lock);
    return last;
}


/* Lets the kind release what other clients might wait for. If the index is dropped, no client waits for it. */
static void leave_index(far_task *t, far_index *index) {
    if (!index->kind->leave || far_index_is_dropped(index))
        return;
    uint32_t key = t->index_key;
    t->index_key = index->uid;
    index->kind->leave(t, index);
    t->index_key = key;
}


/* Ends the last use of an index without a reference. The task has no pin, because a hook in progress may wait for an
 * epoch. */
static void close_unreferenced(far_task *t, far_index *index) {
    far_pool *pool = index->pool;
    /* after this call no further reclaim hook of the index starts; a hook in progress counts as a use of the index */
    far_memory_index_closed(pool, index);
    for (unsigned attempt = 0; atomic_load_explicit(&index->uses, memory_order_acquire); attempt++)
        far_back_off(t, attempt);
    leave_index(t, index);
    far_catalog_unpin(t);
    unlink_index(index);
    index->kind->close(index);
    far_index_free(index);
    far_pool_release(pool);
}


void far_index_give_up(far_task *t, far_index *index) {
    far_catalog_unpin(t);
    if (remove_reference(index))
        close_unreferenced(t, index);
}


/* ---- Opening ---- */

typedef struct open_request { /* The index to open: by name, or by uid if `name` is NULL. */
    const char *name;
    uint32_t uid;
} open_request;


/* Looks for the index among those that this handle has open, and adds a reference to it. */
static far_index *reference_local_index(far_pool *pool, uint32_t uid) {
    pthread_mutex_lock(&pool->lock);
    far_index *index = pool->indexes;
    while (index && (index->uid != uid || index->opens == 0))
        index = index->next;
    if (index)
        index->opens++;
    pthread_mutex_unlock(&pool->lock);
    return index;
}


static int find_requested_entry(far_task *t, const open_request *w, far_catalog_view *view, far_catalog_entry *entry,
                                far_index_record *record) {
    int err = far_catalog_read(t, view);
    if (err < 0)
        return err;
    if (w->name)
        return far_catalog_find(t, view, w->name, entry, record);
    const far_catalog_entry *found = far_catalog_find_uid(view, w->uid);
    if (!found)
        return far_fail(FAR_ERR_NOT_FOUND, "there is no index with number %u", (unsigned)w->uid);
    *entry = *found;
    return far_catalog_read_record(t, found, record);
}


int far_index_confirm_listed(far_task *t, far_index *index, uint64_t word) {
    uint64_t now;
    far_catalog_view view;
    far_point(t, "catalog:confirm_listed");
    int err = far_read_word(t, far_addr_make(0, FAR_SUPER_CATALOG), &now);
    if (err < 0 || now == word)
        return err;
    if ((err = far_catalog_read(t, &view)) == 0)
        far_catalog_mark_dropped(far_task_pool(t), &view);
    return err < 0 ? err : far_index_is_dropped(index) ? far_index_fail_dropped(index) : 0;
}


static int open_with_kind(far_task *t, const far_catalog_entry *entry, const far_index_record *record,
                          far_budget *budget, far_index **index) {
    const far_index_kind *kind = far_kind_in(far_task_pool(t)->kinds, record->kind);
    if (!kind)
        return far_fail(FAR_ERR_UNSUPPORTED, "index '%s' is of kind '%s', which this build does not have", record->name,
                        record->kind);
    far_index *made = far_index_new(far_task_pool(t), kind, record->name, entry->uid);
    if (!made)
        return far_fail(FAR_ERR_NO_MEMORY, "not enough local memory to open an index");
    made->budget = budget;
    far_index_set_secret(made, record->secret);
    far_index_set_record(made, entry->record);
    far_index_set_descriptor(made, record->descriptor);
    int err = far_index_set_options(made, record->options);
    if (err >= 0) {
        uint32_t key = t->index_key;
        uint64_t pin = t->pin.epoch;
        t->index_key = made->uid;
        err = kind->open(t, made);
        t->index_key = key;
        assert(err < 0 || t->pin.epoch == pin); /* under another pin, the index could have been freed meanwhile */
        (void)pin;
    }
    if (err < 0) {
        far_index_free(made);
        return err;
    }
    *index = made;
    return 0;
}


/* Opens the index with an empty cache budget of its own, so that the caches of open indexes do not shrink for it. */
int far_catalog_test_open(far_task *t, uint32_t uid) {
    far_scratch_mark mark = far_scratch_here(t);
    far_budget *budget = far_budget_new(1);
    far_catalog_view view;
    far_catalog_entry entry;
    far_index_record record;
    far_index *index;
    if (!budget)
        return far_fail(FAR_ERR_NO_MEMORY, "not enough local memory to open an index");
    int err = find_requested_entry(t, &(open_request){.uid = uid}, &view, &entry, &record);
    if (err >= 0 && (err = open_with_kind(t, &entry, &record, budget, &index)) >= 0) {
        index->kind->close(index);
        far_index_free(index);
    }
    far_budget_free(budget);
    far_catalog_unpin(t);
    far_scratch_back(t, mark);
    return err;
}


/* Opens an index that this handle does not have open. The handle enters the index into its list before it confirms that
 * the catalog still lists the index. So if the index is dropped, either the confirmation fails, or the handle finds the
 * index in its list when it observes the drop. If only the confirmation fails, *index is set. */
static int open_new(far_task *t, const far_catalog_view *view, const far_catalog_entry *entry,
                    const far_index_record *record, far_index **index) {
    int err = open_with_kind(t, entry, record, NULL, index);
    if (err < 0)
        return err;
    far_index_link(*index);
    return far_index_confirm_listed(t, *index, view->word);
}


static int open_requested(far_task *t, const open_request *w, far_index **opened) {
    far_scratch_mark mark = far_scratch_here(t);
    far_catalog_view view;
    far_catalog_entry entry;
    far_index_record record;
    far_index *index = NULL;
    far_latch(t, FAR_LATCH_OPEN);
    int err = find_requested_entry(t, w, &view, &entry, &record);
    if (err >= 0 && !(index = reference_local_index(far_task_pool(t), entry.uid)))
        err = open_new(t, &view, &entry, &record, &index);
    far_unlatch(t, FAR_LATCH_OPEN);
    far_catalog_unpin(t);
    far_scratch_back(t, mark);
    if (err >= 0)
        *opened = index;
    else if (index)
        far_index_give_up(t, index);
    if (err != FAR_ERR_DROPPED)
        return err < 0 ? err : 0;
    return w->name ? far_fail(FAR_ERR_NOT_FOUND, "there is no index '%s'", w->name)
                   : far_fail(FAR_ERR_NOT_FOUND, "there is no index with number %u", (unsigned)w->uid);
}


int far_catalog_open(far_task *t, const char *name, far_index **index) {
    return open_requested(t, &(open_request){.name = name}, index);
}


int far_catalog_open_uid(far_task *t, uint32_t uid, far_index **index) {
    return open_requested(t, &(open_request){.uid = uid}, index);
}


/* ---- Closing ---- */

void far_catalog_close(far_task *t, far_index *index) {
    far_catalog_publish_key_counts(t, index);
    far_index_give_up(t, index);
}


/* Called when the handle is closed. The handle holds nothing in far memory any more, and no verb can be sent, so only
 * local memory is released. */
void far_catalog_close_locally(far_index *index) {
    far_pool *pool = index->pool;
    if (!remove_reference(index))
        return;
    unlink_index(index);
    index->kind->close(index);
    far_index_free(index);
    far_pool_release(pool);
}


/* If publishing fails, the key-count deltas are lost, which makes the count less accurate. */
static void publish_all_key_counts(far_task *t) {
    far_pool *pool = far_task_pool(t);
    for (far_index *index = far_pool_use_index(pool, NULL); index; index = far_pool_use_index(pool, index))
        far_catalog_publish_key_counts(t, index);
    far_catalog_unpin(t);
}


/* No hook of the kinds may run any more when the handle has given back its memory; the store identifies the objects of
 * the indexes by uid only. */
void far_catalog_detach_indexes(far_task *t) {
    far_pool *pool = far_task_pool(t);
    publish_all_key_counts(t);
    far_latch(t, FAR_LATCH_OPEN);
    for (;;) {
        pthread_mutex_lock(&pool->lock);
        far_index *index = pool->indexes;
        if (index)
            pool->indexes = index->next;
        pthread_mutex_unlock(&pool->lock);
        if (!index)
            break;
        far_memory_index_closed(pool, index);
    }
    far_unlatch(t, FAR_LATCH_OPEN);
}
