/* The table of open indexes. It records in far memory which indexes this handle has open, so that a client that wants
 * to drop an index observes that the index is open (catalog.h). This file also opens and closes indexes, and keeps the
 * local list of open indexes. */
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


/* ---- The table. All functions here require the latch FAR_LATCH_OPEN_TABLE. ----
 *
 * If a WRITE fails because its session was lost, it may still take effect until that session is fenced, even after
 * later WRITEs of other sessions. From then on the flag write_unconfirmed is set: the handle writes nothing to the
 * table, and assigns no slot to another index, until all its lost sessions are known to be fenced
 * (far_pins_release_fenced). Then it determines where its table is, and writes the whole table again.
 *
 * A handle without a table can have one index open: its word is stored in the registry in place of the table's address.
 * So a collection can run in a full pool, and an index can be opened there, without memory for a table. The handle
 * allocates a table when the user opens an index, if there is memory for it, and at the latest when a second index is
 * opened. It copies the word into the table, and then replaces the word in the registry by the table's address. */

static far_open_table *open_table_of(const far_task *t) {
    return &far_task_pool(t)->open_table;
}


static far_addr own_word_addr(const far_task *t) {
    return far_open_table_word_of(far_task_pool(t)->team.own->id);
}


/* Returns the word that the registry should contain for this handle, which is the address of its table, or its only
 * word if it has no table. */
static uint64_t expected_word(const far_open_table *open) {
    uint64_t alone = open->words[0] ? open->words[0] | FAR_OPEN_TABLE_INLINE : 0;
    return open->table ? open->table : alone;
}


/* Records the result of a WRITE to the table or to the registry word. After an error the WRITE may still take effect.
 */
static int note_write_result(far_task *t, int err) {
    if (err < 0)
        atomic_store_explicit(&open_table_of(t)->write_unconfirmed, true, memory_order_relaxed);
    return err;
}


/* Adopts a table that a lost session allocated, if the registry contains its address; otherwise a collection frees it.
 * Once a handle has a table, it keeps it until it is closed. */
static int adopt_created_table(far_task *t) {
    far_open_table *open = open_table_of(t);
    uint64_t word;
    int err = open->table ? 0 : far_read_word(t, own_word_addr(t), &word);
    if (err == 0 && !open->table && word == open->created)
        open->table = word;
    return err;
}


/* After a failed WRITE, makes far memory agree with `words` again. Returns 1 if a lost session may still write, so the
 * caller must try again later. */
static int rewrite_if_unconfirmed(far_task *t) {
    far_open_table *open = open_table_of(t);
    assert(far_latch_is_held(t, FAR_LATCH_OPEN_TABLE));
    if (!far_open_table_is_unconfirmed(far_task_pool(t)))
        return 0;
    int err = far_pins_release_fenced(t);
    if (err < 0 || far_pins_are_unfenced(far_task_pool(t)))
        return err < 0 ? err : 1;
    if ((err = far_pin_take(t)) < 0 || (err = adopt_created_table(t)) < 0)
        return err;
    if (open->table) {
        far_write(t, open->table, open->words, sizeof(open->words));
        err = far_wait(t);
    }
    if (err == 0 && (err = far_write_word(t, own_word_addr(t), expected_word(open))) == 0)
        atomic_store_explicit(&open->write_unconfirmed, false, memory_order_relaxed);
    return err;
}


/* Sets the word of a slot. Returns 0 when far memory contains it. After 1 or an error, housekeeping will write it
 * later. */
static int write_slot(far_task *t, unsigned slot, uint64_t wanted) {
    far_open_table *open = open_table_of(t);
    assert(slot < FAR_OPEN_TABLE_MAX && far_latch_is_held(t, FAR_LATCH_OPEN_TABLE));
    open->words[slot] = wanted;
    if (far_open_table_is_unconfirmed(far_task_pool(t)))
        return rewrite_if_unconfirmed(t);
    int err = far_pin_take(t);
    if (err == 0)
        err = far_write_word(t, open->table ? open->table + 8 * slot : own_word_addr(t),
                             open->table ? wanted : expected_word(open));
    return note_write_result(t, err);
}


static int create_table(far_task *t) {
    far_open_table *open = open_table_of(t);
    far_object object;
    assert(open->table == 0 && far_latch_is_held(t, FAR_LATCH_OPEN_TABLE));
    int err = far_alloc(t, NULL, FAR_POOL_TYPE_OPEN_TABLE, FAR_OPEN_TABLE_BYTES, 0, FAR_ALLOC_ZERO, &object);
    if (err >= 0 && open->words[0])
        err = far_write_word(t, object.addr, open->words[0]);
    open->created = err < 0 ? 0 : object.addr;
    if (err < 0 || (err = note_write_result(t, far_write_word(t, own_word_addr(t), object.addr))) < 0)
        return err;
    open->table = object.addr;
    return 0;
}


/* Allocates the table if it is needed. An index walk does without one if no other index is open. A user's open gets a
 * table, so that later walks find a free slot. */
static int ensure_table(far_task *t, bool user) {
    const far_open_table *open = open_table_of(t);
    bool alone = open->words[0] == 0;
    int err = open->table == 0 && (user || !alone) ? create_table(t) : 0;
    return err == FAR_ERR_NO_MEMORY && alone ? 0 : err;
}


/* Called with a pin. Enters a uid into the table. Returns 1 if the caller must try again. */
int far_open_table_add(far_task *t, uint32_t uid, bool user, unsigned *slot) {
    far_open_table *open = open_table_of(t);
    assert(t->pin.epoch != 0 && uid != 0 && uid <= FAR_UID_MAX);
    /* after this call, a slot that is free in `words` is free in far memory too, and stays free */
    int err = rewrite_if_unconfirmed(t);
    if (err == 0)
        err = ensure_table(t, user);
    if (err != 0)
        return err;
    unsigned free_slot = 0;
    while (free_slot < FAR_OPEN_TABLE_MAX && open->words[free_slot] != 0)
        free_slot++;
    if (free_slot == FAR_OPEN_TABLE_MAX)
        return far_fail(FAR_ERR_BUSY, "this handle has %d indexes open, which is the maximum", FAR_OPEN_TABLE_MAX);
    *slot = free_slot;
    far_point(t, "catalog:enter_table");
    if ((err = write_slot(t, free_slot, uid | (user ? FAR_OPEN_TABLE_USER : 0))) < 0)
        open->words[free_slot] = 0;
    return err;
}


int far_open_table_remove(far_task *t, unsigned slot) {
    int err = write_slot(t, slot, 0);
    return err < 0 ? err : 0;
}


bool far_open_table_is_unconfirmed(const far_pool *pool) {
    return atomic_load_explicit(&pool->open_table.write_unconfirmed, memory_order_relaxed);
}


int far_open_table_retry_write(far_task *t) {
    if (!far_open_table_is_unconfirmed(far_task_pool(t)) || !far_latch_try(t, FAR_LATCH_OPEN_TABLE))
        return 0;
    int err = rewrite_if_unconfirmed(t);
    far_unlatch(t, FAR_LATCH_OPEN_TABLE);
    far_catalog_unpin(t);
    return err < 0 ? err : 0;
}


/* Repairs the registry's word for this handle. The word is read again with the latch held, because `seen` may be older
 * than a change. If a failed WRITE of a lost session takes effect after this repair, rewrite_if_unconfirmed writes the
 * registry word and the table again. */
int far_open_table_repair_address(far_task *t, uint64_t seen) {
    const far_open_table *open = open_table_of(t);
    int err = 0;
    if (!far_latch_try(t, FAR_LATCH_OPEN_TABLE))
        return 0; /* another task changes the table now; the next call of this function repairs the word */
    if (seen != expected_word(open) && (err = far_read_word(t, own_word_addr(t), &seen)) == 0 &&
        seen != expected_word(open))
        err = note_write_result(t, far_write_word(t, own_word_addr(t), expected_word(open)));
    far_unlatch(t, FAR_LATCH_OPEN_TABLE);
    return err;
}


/* Does for the words in the table what far_open_table_repair_address does for the registry's word. */
int far_open_table_repair_words(far_task *t) {
    const far_open_table *open = open_table_of(t);
    uint64_t words[FAR_OPEN_TABLE_MAX];
    int err = 0;
    if (!far_latch_try(t, FAR_LATCH_OPEN_TABLE))
        return 0; /* another task changes the table now; the next call of this function repairs the words */
    if (open->table && !far_open_table_is_unconfirmed(far_task_pool(t))) {
        far_read(t, open->table, words, sizeof(words));
        if ((err = far_wait(t)) == 0 && memcmp(words, open->words, sizeof(words)) != 0) {
            far_write(t, open->table, open->words, sizeof(open->words));
            err = note_write_result(t, far_wait(t));
        }
    }
    far_unlatch(t, FAR_LATCH_OPEN_TABLE);
    return err;
}


static int retire_table(far_task *t) {
    far_open_table *open = open_table_of(t);
    int err = far_pin_take(t);
    if (err < 0 || (err = far_write_word(t, own_word_addr(t), 0)) < 0)
        return err;
    far_retire(t, NULL, FAR_POOL_TYPE_OPEN_TABLE, open->table, FAR_OPEN_TABLE_BYTES);
    open->table = 0;
    /* An index may still be open. Its word in `words` is cleared, because without a table expected_word would return
     * it, and a repair would write it to the registry. */
    open->words[0] = 0;
    return 0;
}


int far_catalog_publish_key_counts(far_task *t, far_index *index) {
    int64_t delta = 0;
    for (unsigned i = 0; i < FAR_KEY_COUNT_DELTAS; i++)
        if (atomic_load_explicit(&index->key_count_deltas[i].keys, memory_order_relaxed) != 0)
            delta += atomic_exchange_explicit(&index->key_count_deltas[i].keys, 0, memory_order_relaxed);
    if (delta == 0)
        return 0;
    uint64_t before;
    far_faa(t, index->record + offsetof(far_index_record, keys), (uint64_t)delta, &before);
    return far_wait(t);
}


/* Called while the open indexes cannot be dropped. If publishing fails, the key-count deltas are lost, which makes the
 * count less accurate. */
static void publish_all_key_counts(far_task *t) {
    far_pool *pool = far_task_pool(t);
    for (far_index *index = far_pool_use_index(pool, NULL); index; index = far_pool_use_index(pool, index))
        far_catalog_publish_key_counts(t, index);
}


/* Removes all indexes from the handle's list before the table is retired. Other clients may drop the indexes
 * afterwards, so no hook of their kinds may run any more; the store identifies their objects by uid only. */
static void detach_indexes(far_pool *pool) {
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
}


/* Waits until all lost sessions that wrote to the table are fenced. Otherwise a late WRITE could hit memory or a
 * registry entry that belongs to another client by then. */
int far_catalog_close_table(far_task *t) {
    publish_all_key_counts(t);
    far_latch(t, FAR_LATCH_OPEN_TABLE);
    detach_indexes(far_task_pool(t));
    int err;
    for (unsigned attempt = 0; (err = rewrite_if_unconfirmed(t)) > 0; attempt++)
        far_back_off(t, attempt);
    if (err == 0 && open_table_of(t)->table)
        err = retire_table(t);
    far_unlatch(t, FAR_LATCH_OPEN_TABLE);
    far_catalog_unpin(t);
    return err;
}


/* ---- Local index objects ---- */

far_index *far_index_new(far_pool *pool, const far_index_kind *kind, const char *name, uint32_t uid) {
    far_index *index = calloc(1, sizeof(*index));
    if (!index)
        return NULL;
    index->kind = kind;
    index->pool = pool;
    index->uid = uid;
    index->lenient = pool->options.salvage;
    snprintf(index->name, sizeof(index->name), "%s", name);
    return index;
}


void far_index_free(far_index *index) {
    far_memory_index_closed(index->pool, index);
    free(index);
}


void far_index_link(far_index *index, unsigned slot, bool user) {
    far_pool *pool = index->pool;
    assert(slot < FAR_OPEN_TABLE_MAX && pool->open_table.words[slot] != 0);
    index->slot = slot;
    pthread_mutex_lock(&pool->lock);
    index->opens = user;
    index->walks = !user;
    index->next = pool->indexes;
    pool->indexes = index;
    pthread_mutex_unlock(&pool->lock);
    far_pool_reference(pool);
}


static void unlink_index(far_index *index) {
    far_index **at = &index->pool->indexes;
    while (*at && *at != index)
        at = &(*at)->next;
    if (*at)
        *at = index->next;
}


/* The index to open, which is named by `name`, or by `uid` if `name` is NULL. */

typedef struct open_request { /* The index to open: by name, or by uid if `name` is NULL. */
    const char *name;
    uint32_t uid;
    bool user;
} open_request;


static bool index_is_requested(const far_index *index, const open_request *w) {
    return w->name ? strcmp(index->name, w->name) == 0 : index->uid == w->uid;
}


/* Looks for the index among those that this handle has open, and adds a reference to it. If only an index walk has it
 * open and the user wants it, sets `*local` and adds no reference, because the table must first show the user's open to
 * other clients. */
static far_index *reference_local_index(far_pool *pool, const open_request *w, far_index **local) {
    far_index *taken = NULL;
    *local = NULL;
    pthread_mutex_lock(&pool->lock);
    for (far_index *index = pool->indexes; index; index = index->next) {
        if (!index_is_requested(index, w))
            continue;
        if (w->user && index->opens == 0) {
            *local = index;
        } else {
            index->opens += w->user;
            index->walks += !w->user;
            taken = index;
        }
        break;
    }
    pthread_mutex_unlock(&pool->lock);
    return taken;
}


static int read_requested_record(far_task *t, const open_request *w, far_catalog_entry *entry,
                                 far_index_record *record) {
    far_catalog_view view;
    int err = far_catalog_read(t, &view);
    if (err < 0)
        return err;
    if (w->name)
        return far_catalog_find(t, &view, w->name, entry, record);
    const far_catalog_entry *found = far_catalog_find_uid(&view, w->uid);
    if (!found)
        return far_fail(FAR_ERR_NOT_FOUND, "there is no index with number %u", (unsigned)w->uid);
    *entry = *found;
    return far_catalog_read_record(t, found, record);
}


/* Called after our word is in the table. Returns 0 if the index is still listed and has no drop mark. Returns 1 if the
 * caller must try again. */
static int confirm_listed(far_task *t, const far_catalog_entry *entry) {
    uint64_t mark;
    far_catalog_view view;
    far_point(t, "catalog:confirm_listed");
    int err = far_read_word(t, entry->record + offsetof(far_index_record, mark), &mark);
    if (err < 0)
        return err;
    if (mark)
        return 1;
    if ((err = far_catalog_read(t, &view)) < 0)
        return err;
    return far_catalog_find_uid(&view, entry->uid) ? 0 : 1;
}


/* Opens an index for the user that only an index walk of this handle has open. */
static int add_user_reference(far_task *t, const far_catalog_entry *entry, far_index *local) {
    if (local->uid != entry->uid)
        return far_fail(FAR_ERR_CORRUPT, "index '%s' changed its number while it was open", local->name);
    far_point(t, "catalog:set_user_bit");
    int err = write_slot(t, local->slot, local->uid | FAR_OPEN_TABLE_USER);
    if (err == 0)
        err = confirm_listed(t, entry);
    if (err != 0) {
        int undone = write_slot(t, local->slot, local->uid);
        return err > 0 && undone < 0 ? undone : err;
    }
    pthread_mutex_lock(&local->pool->lock);
    local->opens++;
    pthread_mutex_unlock(&local->pool->lock);
    return 0;
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
    made->record = entry->record;
    made->descriptor = record->descriptor;
    memcpy(made->secret, record->secret, sizeof(made->secret));
    strcpy(made->options_text, record->options);
    int err = far_index_options_parse(kind, made->options_text, made->options);
    if (err >= 0) {
        uint32_t key = t->index_key;
        t->index_key = made->uid;
        err = kind->open(t, made);
        t->index_key = key;
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
    far_catalog_entry entry;
    far_index_record record;
    far_index *index;
    if (!budget)
        return far_fail(FAR_ERR_NO_MEMORY, "not enough local memory to open an index");
    int err = read_requested_record(t, &(open_request){.uid = uid}, &entry, &record);
    if (err >= 0 && (err = open_with_kind(t, &entry, &record, budget, &index)) >= 0) {
        index->kind->close(index);
        far_index_free(index);
    }
    far_budget_free(budget);
    far_catalog_unpin(t);
    far_scratch_back(t, mark);
    return err;
}


/* One attempt to open the index, with the latch held. Returns 1 if the caller must wait and try again. */
static int try_open(far_task *t, const open_request *w, far_mark_history *met, far_index **index) {
    far_index *local;
    if ((*index = reference_local_index(far_task_pool(t), w, &local)))
        return 0;
    far_catalog_entry entry;
    far_index_record record;
    int err = read_requested_record(t, w, &entry, &record);
    if (err < 0)
        return err;
    if (record.mark && (err = far_catalog_resolve_mark(t, &entry, record.mark, met)) <= 0)
        return err < 0 ? err : 1;
    if (local) {
        *index = local;
        return add_user_reference(t, &entry, local);
    }

    unsigned slot;
    if ((err = far_open_table_add(t, entry.uid, w->user, &slot)) != 0)
        return err;
    if ((err = confirm_listed(t, &entry)) == 0 && (err = open_with_kind(t, &entry, &record, NULL, index)) == 0) {
        far_index_link(*index, slot, w->user);
        return 0;
    }
    int left = far_open_table_remove(t, slot);
    return err > 0 && left < 0 ? left : err;
}


static int open_requested(far_task *t, const open_request *w, far_index **index) {
    far_mark_history met = {0};
    for (unsigned attempt = 0;; attempt++) {
        far_scratch_mark mark = far_scratch_here(t);
        far_latch(t, FAR_LATCH_OPEN_TABLE);
        int err = try_open(t, w, &met, index);
        far_unlatch(t, FAR_LATCH_OPEN_TABLE);
        far_catalog_unpin(t);
        if (err <= 0)
            return err;
        far_scratch_back(t, mark);
        if ((err = far_catalog_wait_for_drop(t, &met, attempt)) < 0)
            return err;
    }
}


int far_catalog_open(far_task *t, const char *name, far_index **index) {
    return open_requested(t, &(open_request){.name = name, .user = true}, index);
}


int far_catalog_open_uid(far_task *t, uint32_t uid, far_index **index) {
    return open_requested(t, &(open_request){.uid = uid}, index);
}


/* ---- Closing ---- */

static void close_reference(far_task *t, far_index *index, bool user) {
    far_pool *pool = index->pool;
    far_latch(t, FAR_LATCH_OPEN_TABLE);
    pthread_mutex_lock(&pool->lock);
    assert((user ? index->opens : index->walks) > 0);
    if (user)
        index->opens--;
    else
        index->walks--;
    bool last = index->opens == 0 && index->walks == 0, was_users = user && index->opens == 0;
    if (last)
        unlink_index(index);
    pthread_mutex_unlock(&pool->lock);
    if (was_users)
        /* published before the slot is cleared, because the index cannot be dropped while the table contains it */
        far_catalog_publish_key_counts(t, index);
    if (was_users && !last)
        write_slot(t, index->slot, index->uid);
    far_unlatch(t, FAR_LATCH_OPEN_TABLE);
    if (last) {
        /* after this call no further reclaim hook of the index starts; a hook in progress counts as a use of the index
         */
        far_memory_index_closed(pool, index);
        for (unsigned attempt = 0; atomic_load_explicit(&index->uses, memory_order_acquire); attempt++)
            far_back_off(t, attempt);
        if (index->kind->leave)
            index->kind->leave(t, index);
        index->kind->close(index);
        far_latch(t, FAR_LATCH_OPEN_TABLE);
        far_open_table_remove(t, index->slot);
        far_unlatch(t, FAR_LATCH_OPEN_TABLE);
        far_index_free(index);
        far_pool_release(pool);
    }
    far_catalog_unpin(t);
}


void far_catalog_close(far_task *t, far_index *index) {
    close_reference(t, index, true);
}


void far_catalog_close_uid(far_task *t, far_index *index) {
    close_reference(t, index, false);
}


/* Called when the handle is closed. The handle holds nothing in far memory any more, and no verb can be sent, so only
 * local memory is released. */
void far_catalog_close_locally(far_index *index) {
    far_pool *pool = index->pool;
    pthread_mutex_lock(&pool->lock);
    assert(index->opens > 0);
    bool last = --index->opens == 0;
    if (last)
        unlink_index(index);
    pthread_mutex_unlock(&pool->lock);
    if (last) {
        index->kind->close(index);
        far_index_free(index);
        far_pool_release(pool);
    }
}


/* ---- Finding handles that have an index open ---- */

typedef struct opener_search {
    uint32_t uid;
    uint64_t table[FAR_OPEN_TABLE_MAX]; /* the words of the table of open indexes that was read last */
    int found;
    unsigned handle; /* id of one of the handles that have the index open */
} opener_search;


/* Returns whether the entry belongs to a system session and its word for open indexes is not 0. */
static bool entry_has_open_table(unsigned id, const far_client *client) {
    return far_client_state_of(client->word) != FAR_CLIENT_FREE && far_client_handle_of(client->word) == id &&
           client->opened != 0;
}


/* Returns how the handle has the index open: 0 not at all, 1 by index walks, 2 by the user. */
static int read_open_state(far_task *t, opener_search *q, uint64_t word) {
    bool alone = word & FAR_OPEN_TABLE_INLINE;
    q->table[0] = word;
    if (!alone)
        far_read(t, word, q->table, sizeof(q->table));
    int found = alone ? 0 : far_wait(t);
    for (unsigned i = 0; found >= 0 && i < (alone ? 1 : FAR_OPEN_TABLE_MAX); i++)
        if (far_open_table_uid(q->table[i]) == q->uid && found < 2)
            found = q->table[i] & FAR_OPEN_TABLE_USER ? 2 : 1;
    return found;
}


static int check_handle_table(far_task *t, void *ctx, unsigned id, const far_client *client) {
    opener_search *q = ctx;
    if (!entry_has_open_table(id, client))
        return 0;
    int here = read_open_state(t, q, client->opened);
    if (here <= q->found)
        return here < 0 ? here : 0;
    int gone = far_handle_confirm_failed(t, id);
    if (gone == 0) {
        q->found = here;
        q->handle = id;
    }
    return gone < 0 ? gone : 0;
}


int far_open_table_find_users(far_task *t, uint32_t uid, unsigned *handle) {
    opener_search q = {.uid = uid};
    int err = far_clients_each(t, check_handle_table, &q);
    *handle = q.handle;
    return err < 0 ? err : q.found;
}


static int report_table(far_task *t, void *ctx, unsigned id, const far_client *client) {
    uint64_t old;
    if (!entry_has_open_table(id, client))
        return 0;
    int gone = far_handle_confirm_failed(t, id);
    if (gone == 0 && client->opened & FAR_OPEN_TABLE_INLINE)
        return 0;
    if (gone == 0 && !far_may_be_object(t, client->opened, FAR_OPEN_TABLE_BYTES))
        return far_fail(FAR_ERR_CORRUPT, "the address of client %u's table of open indexes is damaged", id);
    if (gone == 0)
        return far_walk_object(ctx, NULL, FAR_POOL_TYPE_OPEN_TABLE, client->opened, FAR_OPEN_TABLE_BYTES);
    return gone < 0 ? gone : far_cas_word(t, far_open_table_word_of(id), client->opened, 0, &old);
}


int far_open_table_report(far_task *t, far_walk *walk) {
    uint64_t own;
    int err = far_read_word(t, far_open_table_word_of(far_task_pool(t)->team.own->id), &own);
    if (err == 0)
        err = far_open_table_repair_address(t, own);
    if (err == 0)
        err = far_open_table_repair_words(t);
    return err < 0 ? err : far_clients_each(t, report_table, walk);
}
