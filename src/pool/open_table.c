/* The indexes that a handle has open: its table in far memory, through which a drop sees them, and the local objects.
 */
#include "base/budget.h"
#include "base/error.h"
#include "pool/catalog.h"
#include "pool/catalog_layout.h"
#include "pool/options.h"
#include "task/latch.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>


/* The table. All with the latch.
 *
 * A WRITE whose session was lost may still take effect, after whatever others write meanwhile, until that session is
 * fenced. From then on the handle is unsure: it writes nothing, and gives no slot to another index, until none of its
 * sessions is stuck (far_pins_settle). Then it looks where its table is, and writes all of it anew.
 *
 * The first index needs no table: its word stands alone in place of the address. So a full pool can be swept, and an
 * index in it opened, when there is no memory for a table. A table is made with that word in it; then its address takes
 * the place of the word. */

static far_open_table *table_of(const far_task *t) {
    return &far_task_pool(t)->open_table;
}


static far_addr own_word(const far_task *t) {
    return far_open_table_word_of(far_task_pool(t)->team.own->id);
}


/* What the registry's word is to be. */
static uint64_t right_word(const far_open_table *open) {
    uint64_t alone = open->words[0] ? open->words[0] | FAR_OPEN_TABLE_ALONE : 0;
    return open->table ? open->table : alone;
}


/* What became of a WRITE: if it failed, it may still take effect. */
static int note(far_task *t, int err) {
    if (err < 0)
        atomic_store_explicit(&table_of(t)->unsure, true, memory_order_relaxed);
    return err;
}


/* A table that a lost session made is taken over if its address is there: otherwise it is swept with what that session
 * left. Once there is a table it stays until the handle is closed. */
static int find_table(far_task *t) {
    far_open_table *open = table_of(t);
    uint64_t word;
    int err = open->table ? 0 : far_read_word(t, own_word(t), &word);
    if (err == 0 && !open->table && word == open->made)
        open->table = word;
    return err;
}


/* Far memory says what it is to say. 1: not yet, a lost session may still write. */
static int make_sure(far_task *t) {
    far_open_table *open = table_of(t);
    assert(far_latch_is_held(t, FAR_LATCH_OPEN_TABLE));
    if (!far_open_table_is_unsure(far_task_pool(t)))
        return 0;
    int err = far_pins_settle(t);
    if (err < 0 || far_pins_are_stuck(far_task_pool(t)))
        return err < 0 ? err : 1;
    if ((err = far_pin_take(t)) < 0 || (err = find_table(t)) < 0)
        return err;
    if (open->table) {
        far_write(t, open->table, open->words, sizeof(open->words));
        err = far_wait(t);
    }
    if (err == 0 && (err = far_write_word(t, own_word(t), right_word(open))) == 0)
        atomic_store_explicit(&open->unsure, false, memory_order_relaxed);
    return err;
}


/* The word of a slot is to be this. 0: it is; 1: it will be, or an error: housekeeping will write it. */
static int change(far_task *t, unsigned slot, uint64_t wanted) {
    far_open_table *open = table_of(t);
    assert(slot < FAR_OPEN_TABLE_MAX && far_latch_is_held(t, FAR_LATCH_OPEN_TABLE));
    open->words[slot] = wanted;
    if (far_open_table_is_unsure(far_task_pool(t)))
        return make_sure(t);
    int err = far_pin_take(t);
    if (err == 0)
        err = far_write_word(t, open->table ? open->table + 8 * slot : own_word(t),
                             open->table ? wanted : right_word(open));
    return note(t, err);
}


static int make_table(far_task *t) {
    far_open_table *open = table_of(t);
    far_object object;
    assert(open->table == 0 && far_latch_is_held(t, FAR_LATCH_OPEN_TABLE));
    int err = far_alloc(t, NULL, FAR_POOL_TYPE_OPEN_TABLE, FAR_OPEN_TABLE_BYTES, 0, FAR_ALLOC_ZERO, &object);
    if (err >= 0 && open->words[0])
        err = far_write_word(t, object.addr, open->words[0]);
    open->made = err < 0 ? 0 : object.addr;
    if (err < 0 || (err = note(t, far_write_word(t, own_word(t), object.addr))) < 0)
        return err;
    open->table = object.addr;
    return 0;
}


/* A walk does without a table if it can; a user gets one, so that later walks find a slot beside it. */
static int provide_table(far_task *t, bool user) {
    const far_open_table *open = table_of(t);
    bool alone = open->words[0] == 0;
    int err = open->table == 0 && (user || !alone) ? make_table(t) : 0;
    return err == FAR_ERR_NO_MEMORY && alone ? 0 : err;
}


/* Pinned. 1: look again. */
int far_open_table_enter(far_task *t, uint32_t uid, bool user, unsigned *slot) {
    far_open_table *open = table_of(t);
    assert(t->pin.epoch != 0 && uid != 0 && uid <= FAR_UID_MAX);
    int err = make_sure(t); /* a slot that is free here is free in far memory, and stays so */
    if (err == 0)
        err = provide_table(t, user);
    if (err != 0)
        return err;
    unsigned free_slot = 0;
    while (free_slot < FAR_OPEN_TABLE_MAX && open->words[free_slot] != 0)
        free_slot++;
    if (free_slot == FAR_OPEN_TABLE_MAX)
        return far_fail(FAR_ERR_BUSY, "more than %d indexes are open", FAR_OPEN_TABLE_MAX);
    *slot = free_slot;
    far_point(t, "catalog:enter");
    if ((err = change(t, free_slot, uid | (user ? FAR_OPEN_TABLE_USER : 0))) < 0)
        open->words[free_slot] = 0;
    return err;
}


int far_open_table_leave(far_task *t, unsigned slot) {
    int err = change(t, slot, 0);
    return err < 0 ? err : 0;
}


bool far_open_table_is_unsure(const far_pool *pool) {
    return atomic_load_explicit(&pool->open_table.unsure, memory_order_relaxed);
}


int far_open_table_settle(far_task *t) {
    if (!far_open_table_is_unsure(far_task_pool(t)) || !far_latch_try(t, FAR_LATCH_OPEN_TABLE))
        return 0;
    int err = make_sure(t);
    far_unlatch(t, FAR_LATCH_OPEN_TABLE);
    far_catalog_unpin(t);
    return err < 0 ? err : 0;
}


/* Read again with the latch: what was seen may be from before a change. When that of a lost session comes after this, all
 * is written anew (make_sure). */
int far_open_table_mend(far_task *t, uint64_t seen) {
    const far_open_table *open = table_of(t);
    int err = 0;
    if (!far_latch_try(t, FAR_LATCH_OPEN_TABLE))
        return 0; /* the next time */
    if (seen != right_word(open) && (err = far_read_word(t, own_word(t), &seen)) == 0 && seen != right_word(open))
        err = note(t, far_write_word(t, own_word(t), right_word(open)));
    far_unlatch(t, FAR_LATCH_OPEN_TABLE);
    return err;
}


/* The words in the table, as far_open_table_mend does that of the registry. */
int far_open_table_prove(far_task *t) {
    const far_open_table *open = table_of(t);
    uint64_t words[FAR_OPEN_TABLE_MAX];
    int err = 0;
    if (!far_latch_try(t, FAR_LATCH_OPEN_TABLE))
        return 0; /* the next time */
    if (open->table && !far_open_table_is_unsure(far_task_pool(t))) {
        far_read(t, open->table, words, sizeof(words));
        if ((err = far_wait(t)) == 0 && memcmp(words, open->words, sizeof(words)) != 0) {
            far_write(t, open->table, open->words, sizeof(open->words));
            err = note(t, far_wait(t));
        }
    }
    far_unlatch(t, FAR_LATCH_OPEN_TABLE);
    return err;
}


static int drop_table(far_task *t) {
    far_open_table *open = table_of(t);
    int err = far_pin_take(t);
    if (err < 0 || (err = far_write_word(t, own_word(t), 0)) < 0)
        return err;
    far_retire(t, NULL, FAR_POOL_TYPE_OPEN_TABLE, open->table, FAR_OPEN_TABLE_BYTES);
    open->table = 0;
    open->words[0] = 0; /* an index may be open still: without a table the word would stand alone, and be mended so */
    return 0;
}


int far_catalog_tell_keys(far_task *t, far_index *index) {
    int64_t delta = 0;
    for (unsigned i = 0; i < FAR_TALLIES; i++)
        if (atomic_load_explicit(&index->tallies[i].keys, memory_order_relaxed) != 0)
            delta += atomic_exchange_explicit(&index->tallies[i].keys, 0, memory_order_relaxed);
    if (delta == 0)
        return 0;
    uint64_t before;
    far_faa(t, index->record + offsetof(far_index_record, keys), (uint64_t)delta, &before);
    return far_wait(t);
}


/* The open indexes cannot be dropped yet. Keys whose telling fails are not counted. */
static void tell_all_keys(far_task *t) {
    far_pool *pool = far_task_pool(t);
    for (far_index *index = far_pool_use_index(pool, NULL); index; index = far_pool_use_index(pool, index))
        far_catalog_tell_keys(t, index);
}


/* When the table is gone others may drop the indexes: no hook of theirs runs any more, and their objects are known by
 * uid only. */
static void forget_indexes(far_pool *pool) {
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


/* No late WRITE must meet memory, or a registry entry, that is another's by then: it waits until all writers are
 * fenced. */
int far_catalog_leave(far_task *t) {
    tell_all_keys(t);
    far_latch(t, FAR_LATCH_OPEN_TABLE);
    forget_indexes(far_task_pool(t));
    int err;
    for (unsigned attempt = 0; (err = make_sure(t)) > 0; attempt++)
        far_back_off(t, attempt);
    if (err == 0 && table_of(t)->table)
        err = drop_table(t);
    far_unlatch(t, FAR_LATCH_OPEN_TABLE);
    far_catalog_unpin(t);
    return err;
}


/* The local objects. */

far_index *far_open_table_make(far_pool *pool, const far_index_kind *kind, const char *name, uint32_t uid) {
    far_index *index = calloc(1, sizeof(*index));
    if (!index)
        return NULL;
    index->kind = kind;
    index->pool = pool;
    index->uid = uid;
    snprintf(index->name, sizeof(index->name), "%s", name);
    return index;
}


void far_open_table_free(far_index *index) {
    far_memory_index_closed(index->pool, index);
    free(index);
}


void far_open_table_link(far_index *index, unsigned slot, bool user) {
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


/* Opening. */

typedef struct target { /* a name, or a uid */
    const char *name;
    uint32_t uid;
    bool user;
} target;


static bool is_target(const far_index *index, const target *w) {
    return w->name ? strcmp(index->name, w->name) == 0 : index->uid == w->uid;
}


/* An index that this handle has open already. Sets *local if droppers must still be shown that the user has it now. */
static far_index *take_local(far_pool *pool, const target *w, far_index **local) {
    far_index *taken = NULL;
    *local = NULL;
    pthread_mutex_lock(&pool->lock);
    for (far_index *index = pool->indexes; index; index = index->next) {
        if (!is_target(index, w))
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


static int find_target(far_task *t, const target *w, far_catalog_entry *entry, far_index_record *record) {
    far_catalog_view view;
    int err = far_catalog_look(t, &view);
    if (err < 0)
        return err;
    if (w->name)
        return far_catalog_find(t, &view, w->name, entry, record);
    const far_catalog_entry *found = far_catalog_find_uid(&view, w->uid);
    if (!found)
        return far_fail(FAR_ERR_NOT_FOUND, "there is no index number %u", (unsigned)w->uid);
    *entry = *found;
    return far_catalog_read_record(t, found, record);
}


/* After our word stands in the table: is the index still there and is nobody dropping it? 1: look again. */
static int confirm(far_task *t, const far_catalog_entry *entry) {
    uint64_t mark;
    far_catalog_view view;
    far_point(t, "catalog:confirm");
    int err = far_read_word(t, entry->record + offsetof(far_index_record, mark), &mark);
    if (err < 0)
        return err;
    if (mark)
        return 1;
    if ((err = far_catalog_look(t, &view)) < 0)
        return err;
    return far_catalog_find_uid(&view, entry->uid) ? 0 : 1;
}


/* Only a walk of this handle had the index open; now the user wants it. */
static int open_for_user(far_task *t, const far_catalog_entry *entry, far_index *local) {
    if (local->uid != entry->uid)
        return far_fail(FAR_ERR_CORRUPT, "index '%s' changed its number while it was open", local->name);
    far_point(t, "catalog:enter_user");
    int err = change(t, local->slot, local->uid | FAR_OPEN_TABLE_USER);
    if (err == 0)
        err = confirm(t, entry);
    if (err != 0) {
        int undone = change(t, local->slot, local->uid);
        return err > 0 && undone < 0 ? undone : err;
    }
    pthread_mutex_lock(&local->pool->lock);
    local->opens++;
    pthread_mutex_unlock(&local->pool->lock);
    return 0;
}


static int open_kind(far_task *t, const far_catalog_entry *entry, const far_index_record *record, far_budget *budget,
                     far_index **index) {
    const far_index_kind *kind = far_kind_in(far_task_pool(t)->kinds, record->kind);
    if (!kind)
        return far_fail(FAR_ERR_UNSUPPORTED, "index '%s' is of kind '%s', which this build does not have", record->name,
                        record->kind);
    far_index *made = far_open_table_make(far_task_pool(t), kind, record->name, entry->uid);
    if (!made)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for an index");
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
        far_open_table_free(made);
        return err;
    }
    *index = made;
    return 0;
}


/* With a budget of its own, of nothing: caches that are open do not make room for it. */
int far_catalog_try_open(far_task *t, uint32_t uid) {
    far_scratch_mark mark = far_scratch_here(t);
    far_budget *budget = far_budget_new(1);
    far_catalog_entry entry;
    far_index_record record;
    far_index *index;
    if (!budget)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for an index");
    int err = find_target(t, &(target){.uid = uid}, &entry, &record);
    if (err >= 0 && (err = open_kind(t, &entry, &record, budget, &index)) >= 0) {
        index->kind->close(index);
        far_open_table_free(index);
    }
    far_budget_free(budget);
    far_catalog_unpin(t);
    far_scratch_back(t, mark);
    return err;
}


/* One try, with the latch. 1: look again. */
static int open_once(far_task *t, const target *w, far_met_mark *met, far_index **index) {
    far_index *local;
    if ((*index = take_local(far_task_pool(t), w, &local)))
        return 0;
    far_catalog_entry entry;
    far_index_record record;
    int err = find_target(t, w, &entry, &record);
    if (err < 0)
        return err;
    if (record.mark && (err = far_catalog_clear_mark(t, &entry, record.mark, met)) <= 0)
        return err < 0 ? err : 1;
    if (local) {
        *index = local;
        return open_for_user(t, &entry, local);
    }

    unsigned slot;
    if ((err = far_open_table_enter(t, entry.uid, w->user, &slot)) != 0)
        return err;
    if ((err = confirm(t, &entry)) == 0 && (err = open_kind(t, &entry, &record, NULL, index)) == 0) {
        far_open_table_link(*index, slot, w->user);
        return 0;
    }
    int left = far_open_table_leave(t, slot);
    return err > 0 && left < 0 ? left : err;
}


static int open_target(far_task *t, const target *w, far_index **index) {
    far_met_mark met = {0};
    for (unsigned attempt = 0;; attempt++) {
        far_scratch_mark mark = far_scratch_here(t);
        far_latch(t, FAR_LATCH_OPEN_TABLE);
        int err = open_once(t, w, &met, index);
        far_unlatch(t, FAR_LATCH_OPEN_TABLE);
        far_catalog_unpin(t);
        if (err <= 0)
            return err;
        far_scratch_back(t, mark);
        if ((err = far_catalog_rest(t, &met, attempt)) < 0)
            return err;
    }
}


int far_catalog_open(far_task *t, const char *name, far_index **index) {
    return open_target(t, &(target){.name = name, .user = true}, index);
}


int far_catalog_open_uid(far_task *t, uint32_t uid, far_index **index) {
    return open_target(t, &(target){.uid = uid}, index);
}


/* Closing. */

static void close_one(far_task *t, far_index *index, bool user) {
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
        far_catalog_tell_keys(t, index); /* nobody can drop it yet */
    if (was_users && !last)
        change(t, index->slot, index->uid);
    far_unlatch(t, FAR_LATCH_OPEN_TABLE);
    if (last) {
        far_memory_index_closed(pool, index); /* no further reclaim hooks; those under way count as uses */
        for (unsigned attempt = 0; atomic_load_explicit(&index->uses, memory_order_acquire); attempt++)
            far_back_off(t, attempt);
        if (index->kind->leave)
            index->kind->leave(t, index);
        index->kind->close(index);
        far_latch(t, FAR_LATCH_OPEN_TABLE);
        far_open_table_leave(t, index->slot);
        far_unlatch(t, FAR_LATCH_OPEN_TABLE);
        far_open_table_free(index);
        far_pool_release(pool);
    }
    far_catalog_unpin(t);
}


void far_catalog_close(far_task *t, far_index *index) {
    close_one(t, index, true);
}


void far_catalog_close_uid(far_task *t, far_index *index) {
    close_one(t, index, false);
}


/* The handle is closed: nothing of it is left in far memory, and no verb can be sent. */
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
        far_open_table_free(index);
        far_pool_release(pool);
    }
}


/* ---- Who has an index open ---- */

typedef struct question {
    uint32_t uid;
    uint64_t table[FAR_OPEN_TABLE_MAX]; /* as read last */
    int found;
    unsigned handle; /* with whom */
} question;


/* Only the entry of a handle's own session has such a word. */
static bool has_any(unsigned id, const far_client *client) {
    return far_client_state_of(client->word) != FAR_CLIENT_FREE && far_client_handle_of(client->word) == id &&
           client->opened != 0;
}


/* How a handle has it open: 0 not, 1 by walks, 2 by the user. */
static int look_into_table(far_task *t, question *q, uint64_t word) {
    bool alone = word & FAR_OPEN_TABLE_ALONE;
    q->table[0] = word;
    if (!alone)
        far_read(t, word, q->table, sizeof(q->table));
    int found = alone ? 0 : far_wait(t);
    for (unsigned i = 0; found >= 0 && i < (alone ? 1 : FAR_OPEN_TABLE_MAX); i++)
        if (far_open_table_uid(q->table[i]) == q->uid && found < 2)
            found = q->table[i] & FAR_OPEN_TABLE_USER ? 2 : 1;
    return found;
}


static int ask_handle(far_task *t, void *ctx, unsigned id, const far_client *client) {
    question *q = ctx;
    if (!has_any(id, client))
        return 0;
    int here = look_into_table(t, q, client->opened);
    if (here <= q->found)
        return here < 0 ? here : 0;
    int gone = far_client_handle_gone(t, id);
    if (gone == 0) {
        q->found = here;
        q->handle = id;
    }
    return gone < 0 ? gone : 0;
}


int far_open_table_anywhere(far_task *t, uint32_t uid, unsigned *handle) {
    question q = {.uid = uid};
    int err = far_clients_each(t, ask_handle, &q);
    *handle = q.handle;
    return err < 0 ? err : q.found;
}


static int walk_table(far_task *t, void *ctx, unsigned id, const far_client *client) {
    uint64_t old;
    if (!has_any(id, client))
        return 0;
    int gone = far_client_handle_gone(t, id);
    if (gone == 0 && client->opened & FAR_OPEN_TABLE_ALONE)
        return 0;
    if (gone == 0 && !far_may_be_object(t, client->opened, FAR_OPEN_TABLE_BYTES))
        return far_fail(FAR_ERR_CORRUPT, "the address of the table of open indexes of client %u is broken", id);
    if (gone == 0)
        return far_walk_object(ctx, NULL, FAR_POOL_TYPE_OPEN_TABLE, client->opened, FAR_OPEN_TABLE_BYTES);
    return gone < 0 ? gone : far_cas_word(t, far_open_table_word_of(id), client->opened, 0, &old);
}


int far_open_table_walk(far_task *t, far_walk *walk) {
    uint64_t own;
    int err = far_read_word(t, far_open_table_word_of(far_task_pool(t)->team.own->id), &own);
    if (err == 0)
        err = far_open_table_mend(t, own);
    if (err == 0)
        err = far_open_table_prove(t);
    return err < 0 ? err : far_clients_each(t, walk_table, walk);
}
