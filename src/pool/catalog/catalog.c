/* The catalog (catalog.h): reading, creating, dropping and listing indexes. open.c contains opening and closing.
 *
 * A client that adds an index writes new catalog objects and publishes them by a CAS of the catalog word, under a pin.
 * While the pin is held, the address in the catalog word cannot reappear with other content, because an object that was
 * reachable under a pin is not reused before the pin ends. Within one catalog object entries are only removed, and the
 * number in the catalog word counts the listed entries. So if the CAS finds the catalog word unchanged, the list is
 * unchanged, except for entries that were just flagged as dropped. */
#include "pool/catalog/catalog.h"
#include "base/error.h"
#include "pool/catalog/layout.h"
#include "pool/catalog/options.h"
#include "pool/gc/request.h"
#include "task/latch.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>


static far_addr catalog_word(void) {
    return far_addr_make(0, FAR_SUPER_CATALOG);
}


static uint64_t hash_name(const char *name) {
    return XXH3_64bits(name, strlen(name));
}


static uint64_t hash_record(const far_index_record *record) {
    return XXH3_64bits(&record->uid, offsetof(far_index_record, check) - offsetof(far_index_record, uid));
}


void far_catalog_unpin(far_task *t) {
    far_task_wait_for(t, FAR_WAIT_ALL);
    far_pin_drop(t);
}


static int fail_corrupt(const char *what) {
    return far_fail(FAR_ERR_CORRUPT, "the catalog is damaged: %s", what);
}


/* Returns the hash of all entries up to `entry`; `check` is the hash of the preceding entries. */
static uint64_t extend_hash(uint64_t check, const far_catalog_entry *entry) {
    return XXH3_64bits_withSeed(entry, sizeof(*entry), check);
}


/* Checks the hash of the entries of the catalog object at `addr`, which were read to the end of the list of the view.
 * Removes the dropped ones from the list. */
static int keep_listed_entries(far_catalog_view *view, far_addr addr, const far_catalog_head *head) {
    const far_catalog_entry *entries = view->entries + view->count;
    uint64_t check = head->next;
    for (unsigned i = 0; i < head->entries; i++) {
        far_catalog_entry entry = entries[i];
        bool gone = far_catalog_word_addr(entry.record) == (entry.record ^ FAR_CATALOG_DROPPED);
        entry.record ^= gone ? FAR_CATALOG_DROPPED : 0;
        check = extend_hash(check, &entry);
        entry.addr = addr + sizeof(*head) + i * sizeof(entry);
        if (!gone)
            view->entries[view->count++] = entry;
    }
    return check == head->check ? 0 : fail_corrupt("its entries do not match their hash");
}


static int fail_no_memory(void) {
    return far_fail(FAR_ERR_NO_MEMORY, "not enough local memory to read or change the catalog");
}


/* Makes room for further entries in the view. */
static int reserve_entries(far_task *t, far_catalog_view *view, uint64_t added) {
    const uint64_t needed = view->count + added;
    if (needed <= view->capacity)
        return 0;
    const unsigned capacity = (unsigned)(needed > 2ull * view->capacity ? needed : 2ull * view->capacity);
    far_catalog_entry *entries = far_scratch(t, capacity * sizeof(*entries));
    if (!entries)
        return fail_no_memory();
    if (view->count)
        memcpy(entries, view->entries, view->count * sizeof(*entries));
    view->entries = entries;
    view->capacity = capacity;
    return 0;
}


/* Adds the catalog object at `addr` to the view. Sets *next to the address of the next object of the chain, or 0. */
static int read_catalog_object(far_task *t, far_catalog_view *view, far_addr addr, far_addr *next) {
    far_catalog_head head;
    far_read(t, addr, &head, sizeof(head));
    int err = far_wait(t);
    if (err < 0)
        return err;
    if (head.magic != FAR_CATALOG_MAGIC + view->objects || head.entries - 1 >= FAR_CATALOG_ENTRIES_MAX ||
        view->objects == FAR_CATALOG_OBJECTS_MAX)
        return fail_corrupt("its head is not valid");
    if ((err = reserve_entries(t, view, head.entries)) < 0)
        return err;
    view->chain[view->objects++] = (far_catalog_object){addr, head.entries};
    far_read(t, addr + sizeof(head), view->entries + view->count, head.entries * sizeof(*view->entries));
    err = far_wait(t);
    *next = head.next;
    return err < 0 ? err : keep_listed_entries(view, addr, &head);
}


static int read_current_catalog(far_task *t, far_catalog_view *view) {
    far_pool *pool = far_task_pool(t);
    pthread_mutex_lock(&pool->lock);
    *view = (far_catalog_view){.linked = pool->indexes_linked};
    pthread_mutex_unlock(&pool->lock);
    /* loaded before the READ, because another task may learn of the first catalog object after the READ took effect */
    bool has_catalog = atomic_load_explicit(&pool->has_catalog, memory_order_acquire);
    int err = far_read_word(t, catalog_word(), &view->word);
    far_point(t, "catalog:word_read");
    const far_addr first = far_catalog_word_addr(view->word);
    if (err == 0 && first != 0)
        atomic_store_explicit(&pool->has_catalog, true, memory_order_release);
    else if (err == 0 && (has_catalog || view->word != 0))
        err = fail_corrupt("its address is 0");
    for (far_addr addr = first; err == 0 && addr != 0;)
        err = read_catalog_object(t, view, addr, &addr);
    return err;
}


/* Replaces the catalog word that `view` was read under by `word`. Returns 1 if it was replaced, 0 if another client was
 * faster. */
static int swap_catalog_word(far_task *t, const far_catalog_view *view, uint64_t word) {
    uint64_t old;
    assert(t->pin.epoch != 0 && word != view->word);
    int err = far_cas_word(t, catalog_word(), view->word, word, &old);
    if (err < 0 || old != view->word)
        return err;
    for (unsigned i = 0; far_catalog_word_addr(word) != far_catalog_word_addr(view->word) && i < view->objects; i++)
        far_retire(t, NULL, FAR_POOL_TYPE_CATALOG, view->chain[i].addr, far_catalog_bytes(view->chain[i].entries));
    return 1;
}


/* Reads the catalog and completes pending drops. A dropped index is removed for good only when the catalog word has the
 * reduced count, because a client that read the list earlier then fails to publish its copy. Before that, a view must
 * not omit the index. Therefore this function reduces the count if the client that flagged the entry has not done so
 * yet. */
int far_catalog_read(far_task *t, far_catalog_view *view) {
    for (;;) {
        far_scratch_mark mark = far_scratch_here(t);
        int err = far_pin_take(t); /* the pin prevents that the catalog object is reused while it is read */
        if (err < 0 || (err = read_current_catalog(t, view)) < 0 || view->count == view->word >> 48 ||
            far_task_fabric(t)->reads_only)
            return err;
        far_addr addr = far_catalog_word_addr(view->word);
        err = swap_catalog_word(t, view, far_catalog_word(addr, view->count));
        if (err < 0)
            return err;
        if (err == 1)
            far_wake_quiescent_handles(t); /* wakes quiescent handles, which may own slabs of the dropped index */
        far_scratch_back(t, mark);
    }
}


const far_catalog_entry *far_catalog_find_uid(const far_catalog_view *view, uint32_t uid) {
    for (unsigned i = 0; i < view->count; i++)
        if (view->entries[i].uid == uid)
            return &view->entries[i];
    return NULL;
}


int far_catalog_read_record(far_task *t, const far_catalog_entry *entry, far_index_record *record) {
    far_read(t, entry->record, record, sizeof(*record));
    int err = far_wait(t);
    if (err < 0)
        return err;
    if (record->magic != FAR_RECORD_MAGIC || record->uid != entry->uid || record->check != hash_record(record) ||
        record->kind[sizeof(record->kind) - 1] || record->name[FAR_NAME_MAX] || record->options[FAR_OPTIONS_TEXT_MAX])
        return fail_corrupt("the record of an index is not valid");
    return 0;
}


int far_catalog_find(far_task *t, const far_catalog_view *view, const char *name, far_catalog_entry *entry,
                     far_index_record *record) {
    uint64_t hash = hash_name(name);
    for (unsigned i = 0; i < view->count; i++) {
        if (view->entries[i].name_hash != hash)
            continue;
        int err = far_catalog_read_record(t, &view->entries[i], record);
        if (err < 0)
            return err;
        if (strcmp(record->name, name) == 0) {
            *entry = view->entries[i];
            return 0;
        }
    }
    return far_fail(FAR_ERR_NOT_FOUND, "there is no index '%s'", name);
}


/* Writes the catalog object at this position of the chain. Sets *addr to its address. */
static int write_catalog_object(far_task *t, unsigned position, const far_catalog_entry *entries, unsigned count,
                                far_addr next, far_addr *addr) {
    const uint64_t bytes = far_catalog_bytes(count);
    const far_scratch_mark mark = far_scratch_here(t);
    far_object object;
    far_catalog_head *head = far_scratch(t, bytes);
    int err = head ? far_alloc(t, NULL, FAR_POOL_TYPE_CATALOG, bytes, 0, 0, &object) : fail_no_memory();
    if (err < 0)
        return err;
    *head = (far_catalog_head){.magic = FAR_CATALOG_MAGIC + position, .entries = count, .check = next, .next = next};
    far_catalog_entry *to = (far_catalog_entry *)(head + 1);
    for (unsigned i = 0; i < count; i++) {
        to[i] = entries[i];
        to[i].addr = 0;
        head->check = extend_hash(head->check, &to[i]);
    }
    *addr = object.addr;
    far_write(t, object.addr, head, bytes);
    if ((err = far_wait(t)) >= 0)
        far_scratch_back(t, mark);
    return err;
}


static void free_chain(far_task *t, const far_catalog_object *chain, unsigned objects) {
    for (unsigned i = 0; i < objects; i++)
        far_free(t, NULL, FAR_POOL_TYPE_CATALOG, chain[i].addr, far_catalog_bytes(chain[i].entries));
}


/* Publishes a new chain of catalog objects with one entry more, and sets *word to the new catalog word. Returns 1 if it
 * was published, 0 if another client was faster. */
static int publish_longer_catalog(far_task *t, const far_catalog_view *view, const far_catalog_entry *added,
                                  uint64_t *word) {
    const unsigned count = view->count + 1;
    far_catalog_object chain[FAR_CATALOG_OBJECTS_MAX];
    unsigned objects = 0;
    far_addr first = 0;
    far_catalog_entry *entries = far_scratch(t, count * sizeof(*entries));
    if (!entries)
        return fail_no_memory();
    if (view->count)
        memcpy(entries, view->entries, view->count * sizeof(*entries));
    entries[view->count] = *added;
    /* the chain is written from its end, because each object contains the address of the next one */
    for (unsigned end = count; end > 0;) {
        const unsigned in_this = (end - 1) % FAR_CATALOG_ENTRIES_MAX + 1;
        end -= in_this;
        int err = write_catalog_object(t, end / FAR_CATALOG_ENTRIES_MAX, entries + end, in_this, first, &first);
        if (err < 0) {
            free_chain(t, chain, objects);
            return err;
        }
        chain[objects++] = (far_catalog_object){first, in_this};
    }
    far_point(t, "catalog:swap_word");
    *word = far_catalog_word(first, count);
    int err = swap_catalog_word(t, view, *word);
    if (err == 0) {
        far_count_retry(t);
        free_chain(t, chain, objects);
    }
    return err;
}


/* Reads the catalog, and fails with FAR_ERR_EXISTS if it lists an index of this name. */
static int check_name_is_free(far_task *t, const char *name, far_catalog_view *view) {
    far_catalog_entry found;
    far_index_record record;
    int err = far_catalog_read(t, view);
    if (err == 0 && (err = far_catalog_find(t, view, name, &found, &record)) == 0)
        err = far_fail(FAR_ERR_EXISTS, "index '%s' exists already", name);
    return err == FAR_ERR_NOT_FOUND ? 0 : err;
}


static int add_to_catalog(far_task *t, const char *name, const far_catalog_entry *added, uint64_t *word) {
    for (;;) {
        far_scratch_mark mark = far_scratch_here(t);
        far_catalog_view view;
        int err = check_name_is_free(t, name, &view);
        if (err < 0)
            return err;
        if (view.count == FAR_INDEXES_MAX)
            return far_fail(FAR_ERR_NO_MEMORY, "the catalog is full: drop an index first");
        if ((err = publish_longer_catalog(t, &view, added, word)) != 0)
            return err < 0 ? err : 0;
        far_scratch_back(t, mark);
    }
}


/* Removes an index from the catalog; needs no memory. Returns 1 if this task has flagged its entry, 0 if only other
 * clients have. A client that copied the list before the entry was flagged may publish the entry again. Therefore the
 * loop ends only when the catalog does not list the index any more. */
static int remove_from_catalog(far_task *t, uint32_t uid) {
    for (bool flagged = false;;) {
        far_scratch_mark mark = far_scratch_here(t);
        far_catalog_view view;
        uint64_t old;
        int err = far_catalog_read(t, &view);
        const far_catalog_entry *entry = err < 0 ? NULL : far_catalog_find_uid(&view, uid);
        if (entry)
            err = far_cas_word(t, entry->addr, entry->record, entry->record | FAR_CATALOG_DROPPED, &old);
        if (err < 0 && flagged)
            /* The next client that reads the catalog completes this drop, but does not free the memory of the index.
             * Therefore a collection is requested. */
            far_memory_note_failed_session(far_task_pool(t));
        if (err < 0 || !entry)
            return err < 0 ? err : flagged;
        flagged |= old == entry->record;
        far_point(t, "catalog:entry_flagged");
        far_scratch_back(t, mark);
    }
}


/* ---- Creating an index ---- */

static uint32_t highest_uid(const far_catalog_view *view) {
    uint32_t highest = 0;
    for (unsigned i = 0; i < view->count; i++)
        if (view->entries[i].uid > highest)
            highest = view->entries[i].uid;
    return highest;
}


/* Assigns a new uid and a new secret to the index. Fails if the uid is not higher than every uid listed before, because
 * the objects of two indexes with the same uid could not be distinguished. */
static int assign_uid_and_secret(far_task *t, const far_catalog_view *before, far_index *index) {
    uint64_t given;
    far_faa(t, far_addr_make(0, FAR_SUPER_NEXT_UID), 1, &given);
    int err = far_wait(t);
    if (err < 0)
        return err;
    if (given >= FAR_UID_MAX)
        return far_fail(FAR_ERR_NO_MEMORY, "the pool has used all its index numbers: copy its indexes to a new pool");
    if (given < highest_uid(before))
        return far_fail(FAR_ERR_CORRUPT,
                        "the pool's counter of index numbers is damaged: number %u is in use already ('farindex check "
                        "--repair' corrects "
                        "it)",
                        (unsigned)given + 1);
    uint8_t secret[FAR_SECRET_BYTES];
    far_host *host = far_task_fabric(t)->host;
    host->ops->secret(host, secret, sizeof(secret));
    far_index_set_uid(index, (uint32_t)given + 1);
    far_index_set_secret(index, secret);
    return 0;
}


static int write_record(far_task *t, far_index *index) {
    far_object object;
    int err = far_alloc(t, NULL, FAR_POOL_TYPE_RECORD, sizeof(far_index_record), 0, 0, &object);
    if (err < 0)
        return err;
    far_index_set_record(index, object.addr);
    far_index_record record = {.magic = FAR_RECORD_MAGIC, .uid = index->uid, .descriptor = index->descriptor};
    memcpy(record.secret, index->secret, sizeof(record.secret));
    strncpy(record.kind, index->kind->name, sizeof(record.kind) - 1);
    strcpy(record.name, index->name);
    strcpy(record.options, index->options_text);
    record.check = hash_record(&record);
    far_write(t, object.addr, &record, sizeof(record));
    return far_wait(t);
}


/* Calls the kind to build the empty structure of a new index and its local state. No other client can find the index
 * yet. */
static int build_index(far_task *t, const far_catalog_view *before, far_index *index) {
    int err = assign_uid_and_secret(t, before, index);
    if (err < 0)
        return err;
    uint32_t key = t->index_key;
    t->index_key = index->uid;
    err = index->kind->create(t, index);
    if (err >= 0)
        err = index->kind->open(t, index);
    t->index_key = key;
    return err;
}


/* Lists the index in the catalog, enters it into the handle's list, and then confirms that it is still listed (open.c).
 */
static int publish_index(far_task *t, far_index *index) {
    far_catalog_entry entry = {.record = index->record, .name_hash = hash_name(index->name), .uid = index->uid};
    uint64_t word = 0;
    far_latch(t, FAR_LATCH_OPEN); /* so that no other task of this handle opens the index before it is in the list */
    far_point(t, "catalog:publish");
    int err = add_to_catalog(t, index->name, &entry, &word);
    if (err == 0) {
        far_index_link(index);
        err = far_index_confirm_listed(t, index, word);
    }
    far_unlatch(t, FAR_LATCH_OPEN);
    return err;
}


int far_catalog_create(far_task *t, const char *name, const far_index_kind *kind, const char *options,
                       far_index **index) {
    far_catalog_view view;
    /* one pin protects the whole creation, so a collection that begins in the meantime waits for the end of the
     * creation */
    int err = check_name_is_free(t, name, &view);
    if (err < 0)
        return err;
    const uint64_t pin = t->pin.epoch;
    far_index *made = far_index_new(far_task_pool(t), kind, name, 0);
    if (!made)
        return far_fail(FAR_ERR_NO_MEMORY, "not enough local memory to create an index");
    err = far_index_set_options(made, options);
    if (err >= 0)
        err = far_index_options_check_sizes(far_task_pool(t), made->options);
    bool opened = false;
    if (err >= 0 && (err = build_index(t, &view, made)) >= 0) {
        opened = true;
        if ((err = write_record(t, made)) >= 0)
            err = publish_index(t, made);
        /* far_catalog_observe relies on this: README.md, "How handles learn of a drop" */
        assert(err < 0 || t->pin.epoch == pin);
        (void)pin;
    }
    if (err == FAR_ERR_DROPPED) /* another client has dropped the index since it was published */
        err = 0;
    if (err >= 0) {
        *index = made;
        return 0;
    }
    if (made->linked) { /* the index was created, but it is unknown whether it is still listed */
        far_index_give_up(t, made);
        return err;
    }

    /* Creating the index failed, so its memory is freed. A lost session frees nothing, because it can send no verb and
     * may even have published the index. A later collection frees the memory if the index is not listed. */
    if (opened)
        kind->close(made);
    if (err != FAR_ERR_FENCED && err != FAR_ERR_UNREACHABLE) {
        if (made->record)
            far_free(t, NULL, FAR_POOL_TYPE_RECORD, made->record, sizeof(far_index_record));
        if (made->uid)
            far_memory_note_dropped_index(far_task_pool(t), made->uid);
    }
    far_index_free(made);
    return err;
}


/* ---- Dropping an index ---- */

/* Decides which of two clients has dropped the index. Both may have set the dropped flag of its entry, if a third
 * client published the entry again without the flag in between. Only one of them sets `claimed` by its CAS: its drop
 * succeeds, and the other client's drop returns FAR_ERR_NOT_FOUND. Returns 1 if this task has set `claimed`. */
static int claim_drop(far_task *t, const far_catalog_entry *entry) {
    uint64_t old;
    /* the pin under which the entry was read protects the record */
    int err = far_cas_word(t, entry->record + offsetof(far_index_record, claimed), 0, 1, &old);
    return err < 0 ? err : old == 0;
}


static int drop_pinned(far_task *t, const char *name) {
    far_pool *pool = far_task_pool(t);
    far_catalog_view view;
    far_catalog_entry entry;
    far_index_record record;
    int err = far_catalog_read(t, &view);
    if (err < 0 || (err = far_catalog_find(t, &view, name, &entry, &record)) < 0)
        return err;
    far_point(t, "catalog:unlist");
    int dropped = remove_from_catalog(t, entry.uid);
    far_point(t, "catalog:unlisted");
    if (dropped >= 0)
        far_catalog_mark_uid_dropped(pool, entry.uid);
    if (dropped == 1 && (dropped = claim_drop(t, &entry)) < 0)
        far_memory_note_failed_session(pool); /* only a collection finds all memory of the index */
    if (dropped < 0)
        return dropped;
    if (dropped == 0)
        return far_fail(FAR_ERR_NOT_FOUND, "there is no index '%s'", name);
    far_retire(t, NULL, FAR_POOL_TYPE_RECORD, entry.record, sizeof(far_index_record));
    far_memory_note_dropped_index(pool, entry.uid);
    return 0;
}


int far_catalog_drop(far_task *t, const char *name) {
    int err = drop_pinned(t, name);
    far_catalog_unpin(t);
    return err;
}


/* ---- Listing and walking ---- */

int far_catalog_list(far_task *t, int (*each)(void *ctx, const char *name, const char *kind), void *ctx) {
    far_catalog_view view;
    int count = 0, err = far_catalog_read(t, &view);
    for (unsigned i = 0; err >= 0 && i < view.count; i++) {
        far_index_record record;
        if ((err = far_catalog_read_record(t, &view.entries[i], &record)) < 0)
            break;
        count++;
        if (each(ctx, record.name, record.kind))
            break;
    }
    far_catalog_unpin(t);
    return err < 0 ? err : count;
}


int far_catalog_read_unpinned(far_task *t, far_catalog_view *view) {
    int err = far_catalog_read(t, view);
    far_catalog_unpin(t);
    return err;
}


static void raise_highest_uid(void *ctx, uint32_t uid, uint64_t bytes) {
    uint32_t *highest = ctx;
    (void)bytes;
    if (uid > *highest)
        *highest = uid;
}


/* Sets the uid counter beyond all uids that are listed, that have memory, or that sessions may be assigning at this
 * moment. */
static int repair_next_uid(far_task *t, uint64_t next, uint32_t highest, far_report *report) {
    far_pool_usage usage;
    uint64_t old;
    int err = far_memory_stat(t, &usage, raise_highest_uid, &highest);
    uint64_t fresh = (uint64_t)highest + far_task_pool(t)->geometry.session_slots;
    if (err < 0)
        return err;
    if (fresh < FAR_UID_MAX)
        return far_cas_word(t, far_addr_make(0, FAR_SUPER_NEXT_UID), next, fresh, &old);
    far_report_problem(report, "the pool has used all its index numbers: copy its indexes to a new pool");
    return 0;
}


int far_catalog_check_numbers(far_task *t, bool repair, far_report *report) {
    far_catalog_view view;
    uint64_t next = 0;
    /* the listed uids are read before the counter, because a uid is issued by the counter before it is listed */
    int err = far_catalog_read(t, &view);
    if (err >= 0)
        err = far_read_word(t, far_addr_make(0, FAR_SUPER_NEXT_UID), &next);
    far_catalog_unpin(t);
    if (err < 0)
        return err == FAR_ERR_CORRUPT ? 0 : err; /* the check of the indexes reports this corruption */
    uint32_t highest = highest_uid(&view);
    if (next >= highest && next < FAR_UID_MAX)
        return 0;
    if (repair)
        return repair_next_uid(t, next, highest, report);
    far_report_problem(report, "the counter of index numbers is %llu, but %s", (unsigned long long)next,
                       next < highest ? "an index has a higher number" : "there are not so many numbers");
    return 0;
}


/* Reports the status record of a live handle as linked. If a record does not name its handle, the word that led to it is
 * damaged. Then the walk fails, because a collection would free the record while the handle writes to it. */
static int report_status_record(far_task *t, void *ctx, unsigned id, const far_client *client) {
    far_status_record head;
    if (far_client_state_of(client->word) == FAR_CLIENT_FREE || far_client_handle_of(client->word) != id ||
        client->status == 0)
        return 0;
    int gone = far_handle_confirm_failed(t, id);
    if (gone != 0)
        return gone < 0 ? gone : 0;
    if (!far_may_be_object(t, client->status, sizeof(head)))
        return far_fail(FAR_ERR_CORRUPT, "the address of client %u's status record is damaged", id);
    far_read(t, client->status, &head, offsetof(far_status_record, process));
    int err = far_wait(t);
    if (err < 0)
        return err;
    if (head.magic != FAR_STATUS_MAGIC || head.client != id)
        return far_fail(FAR_ERR_CORRUPT, "the address of client %u's status record is damaged", id);
    return far_walk_object(ctx, NULL, FAR_POOL_TYPE_STATUS, client->status, sizeof(head));
}


/* Reports the catalog objects, the records and the status records as linked. */
static int report_catalog_objects(far_task *t, far_walk *walk) {
    far_catalog_view view;
    int err = far_catalog_read(t, &view);
    for (unsigned i = 0; err >= 0 && i < view.objects; i++)
        err = far_walk_object(walk, NULL, FAR_POOL_TYPE_CATALOG, view.chain[i].addr,
                              far_catalog_bytes(view.chain[i].entries));
    for (unsigned i = 0; err >= 0 && i < view.count; i++) {
        far_index_record record;
        err = far_catalog_read_record(t, &view.entries[i], &record);
        if (err >= 0)
            err = far_walk_object(walk, NULL, FAR_POOL_TYPE_RECORD, view.entries[i].record, sizeof(far_index_record));
    }
    if (err >= 0)
        err = far_clients_each(t, report_status_record, walk);
    far_catalog_unpin(t);
    return err < 0 ? err : 0;
}


int far_catalog_walk(far_task *t, far_walk *walk) {
    far_catalog_view view;
    assert(t->pin.epoch == 0);
    int err = report_catalog_objects(t, walk);
    if (err < 0 || (err = far_catalog_read_unpinned(t, &view)) < 0)
        return err;
    for (unsigned i = 0; i < view.count; i++) {
        far_index *index;
        if ((err = far_catalog_open_uid(t, view.entries[i].uid, &index)) == FAR_ERR_NOT_FOUND)
            continue; /* the index was dropped after the catalog was read */
        if (err < 0)
            return err;
        uint32_t key = t->index_key;
        t->index_key = index->uid;
        err = index->kind->walk(t, index, walk);
        far_catalog_unpin(t);
        t->index_key = key;
        far_catalog_close(t, index);
        if (err < 0 && err != FAR_ERR_DROPPED)
            return err;
    }
    return 0;
}
