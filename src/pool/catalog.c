/* The catalog: finding, listing, creating and dropping indexes. Opening and closing are in open_table.c.
 *
 * An index is added by a new object, swung by CAS under a pin: an object seen under a pin is not reused while it is held,
 * and in one object indexes only go, which the word counts. So a CAS that finds the word unchanged finds the list
 * unchanged, but for those that are just going. */
#include "pool/catalog.h"
#include "base/error.h"
#include "pool/blocker.h"
#include "pool/catalog_layout.h"
#include "pool/options.h"
#include "pool/owner.h"
#include "pool/request.h"
#include "task/latch.h"
#include "task/patience.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define WALK_TICKS       600000u /* how long a drop waits for a walk over its index, ... */
#define WALK_BRIEFLY     16u     /* ... with short pauses so often, then with long ones */
#define WALK_PAUSE_TICKS 16u
#define MET_BRIEFLY      16u    /* a drop that was met is waited for with short pauses so often, ... */
#define MET_PAUSE_TICKS  64u    /* ... then with long ones: a drop that waits for a walk renews its mark meanwhile */
#define MET_EPOCH_TICKS  10000u /* how long epochs are waited for, which prove that nobody works under a mark */

_Static_assert(MET_PAUSE_TICKS >= 4 * WALK_PAUSE_TICKS, "a drop that is at work is seen to be");


static far_addr catalog_word(void) {
    return far_addr_make(0, FAR_SUPER_CATALOG);
}


static uint64_t name_hash(const char *name) {
    return XXH3_64bits(name, strlen(name));
}


static uint64_t record_check(const far_index_record *record) {
    return XXH3_64bits(&record->uid, offsetof(far_index_record, check) - offsetof(far_index_record, uid));
}


void far_catalog_unpin(far_task *t) {
    far_task_wait_for(t, FAR_WAIT_ALL);
    far_pin_drop(t);
}


static int broken_catalog(const char *what) {
    return far_fail(FAR_ERR_CORRUPT, "the catalog is broken: %s", what);
}


/* The hash of the entries before this one (check), and of this one. */
static uint64_t add_check(uint64_t check, const far_catalog_entry *entry) {
    return XXH3_64bits_withSeed(entry, sizeof(*entry), check);
}


/* Leaves in the view what is listed. */
static int sort_out(far_catalog_view *view) {
    uint64_t check = 0;
    for (unsigned i = 0; i < view->head.entries; i++) {
        far_catalog_entry entry = view->entries[i];
        bool gone = far_catalog_word_addr(entry.record) == (entry.record ^ FAR_CATALOG_GONE);
        entry.record ^= gone ? FAR_CATALOG_GONE : 0;
        check = add_check(check, &entry);
        entry.place = i;
        if (!gone)
            view->entries[view->count++] = entry;
    }
    return check == view->head.check ? 0 : broken_catalog("its entries");
}


static int read_list(far_task *t, far_catalog_view *view) {
    *view = (far_catalog_view){0};
    int err = far_read_word(t, catalog_word(), &view->word);
    if (err < 0 || view->word == 0)
        return err;
    far_addr addr = far_catalog_word_addr(view->word);
    far_read(t, addr, &view->head, sizeof(view->head));
    if ((err = far_wait(t)) < 0)
        return err;
    if (view->head.magic != FAR_CATALOG_MAGIC || view->head.entries - 1 >= FAR_CATALOG_ENTRIES_MAX)
        return broken_catalog("its head");
    view->entries = far_scratch(t, view->head.entries * sizeof(*view->entries));
    if (!view->entries)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for the catalog");
    far_read(t, addr + sizeof(view->head), view->entries, view->head.entries * sizeof(*view->entries));
    err = far_wait(t);
    return err < 0 ? err : sort_out(view);
}


static far_addr entry_of(const far_catalog_view *view, const far_catalog_entry *entry) {
    return far_catalog_word_addr(view->word) + sizeof(far_catalog_head) + entry->place * sizeof(*entry);
}


/* Puts `word` in the place of that of the catalog that `view` shows. 1: done; 0: somebody was faster. */
static int swing(far_task *t, const far_catalog_view *view, uint64_t word) {
    uint64_t old;
    assert(t->pin.epoch != 0 && word != view->word);
    int err = far_cas_word(t, catalog_word(), view->word, word, &old);
    if (err < 0 || old != view->word)
        return err;
    if (view->word && far_catalog_word_addr(word) != far_catalog_word_addr(view->word))
        far_retire(t, NULL, FAR_POOL_TYPE_CATALOG, far_catalog_word_addr(view->word),
                   far_catalog_bytes(view->head.entries));
    return 1;
}


/* A dropped index is gone for good when the word says how many are left: whoever would list it again has seen another
 * word. Until then nobody may take it for gone, so it is done here. */
int far_catalog_look(far_task *t, far_catalog_view *view) {
    for (;;) {
        far_scratch_mark mark = far_scratch_here(t);
        int err = far_pin_take(t); /* or what the word names might be used anew while it is read */
        if (err < 0 || (err = read_list(t, view)) < 0 || view->count == view->word >> 48)
            return err;
        far_addr addr = far_catalog_word_addr(view->word);
        err = swing(t, view, view->count ? far_catalog_word(addr, view->count) : 0);
        if (err < 0)
            return err;
        if (err == 1)
            far_ring(t); /* a handle that sleeps may have slabs of the index */
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
    if (record->magic != FAR_RECORD_MAGIC || record->uid != entry->uid || record->check != record_check(record) ||
        record->kind[sizeof(record->kind) - 1] || record->name[FAR_NAME_MAX] || record->options[FAR_OPTIONS_TEXT_MAX])
        return broken_catalog("a record");
    return 0;
}


int far_catalog_find(far_task *t, const far_catalog_view *view, const char *name, far_catalog_entry *entry,
                     far_index_record *record) {
    uint64_t hash = name_hash(name);
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


/* The epoch stands, and the mark has stood as long: its dropper is stopped, unless it is another client that holds up the
 * epoch. Then the one that the mark names may be well, and drop nothing. */
static int tell_who_is_stopped(far_task *t, uint64_t mark) {
    far_blocker b;
    char who[FAR_CLIENT_WORDS];
    uint64_t epoch, word = 0;
    int err = far_epoch_read(t, &epoch);
    if (err < 0 || (err = far_blocker_find(t, epoch, &b)) < 0 ||
        (err = far_read_word(t, far_client_entry(far_owner_client(mark)), &word)) < 0)
        return err;
    unsigned handle = far_client_handle_of(word);
    if (handle != b.id && handle != far_task_pool(t)->team.own->id)
        return far_blocked(t, "the proof that nobody drops the index");
    far_client_words(t, far_owner_client(mark), far_owner_generation(mark), who);
    return far_fail(FAR_ERR_BUSY, "the index is being dropped by %s, which does not get on", who);
}


int far_catalog_clear_mark(far_task *t, const far_catalog_entry *entry, uint64_t mark, far_met_mark *met) {
    int gone = mark == met->stale ? 1 : far_owner_is_dead(t, mark);
    if (gone == 0 && mark == met->unproved)
        return tell_who_is_stopped(t, mark);
    if (gone == 0)
        met->mark = mark;
    if (gone <= 0)
        return gone;
    far_point(t, "catalog:clear_mark");
    uint64_t old;
    int err = far_cas_word(t, entry->record + offsetof(far_index_record, mark), mark, 0, &old);
    return err < 0 ? err : 1;
}


int far_catalog_rest(far_task *t, far_met_mark *met, unsigned attempt) {
    const uint64_t tick = far_tick(far_task_fabric(t));
    assert(t->pin.epoch == 0);
    far_back_off(t, attempt);
    if (met->mark == 0 || attempt < MET_BRIEFLY) {
        met->mark = 0;
        return 0;
    }
    far_sleep(t, MET_PAUSE_TICKS * tick);
    int late = far_wait_epochs_until(t, 2, far_now(t) + MET_EPOCH_TICKS * tick);
    if (late < 0)
        return late;
    *met = late ? (far_met_mark){.unproved = met->mark} : (far_met_mark){.stale = met->mark};
    return 0;
}


/* A list with one more, in memory of its own. 1: done; 0: somebody was faster. */
static int add_entry(far_task *t, const far_catalog_view *view, const far_catalog_entry *added) {
    const unsigned count = view->count + 1;
    const uint64_t bytes = far_catalog_bytes(count);
    far_object object;
    far_catalog_head *head = far_scratch(t, bytes);
    int err = head ? far_alloc(t, NULL, FAR_POOL_TYPE_CATALOG, bytes, 0, 0, &object)
                   : far_fail(FAR_ERR_NO_MEMORY, "no memory for the catalog");
    if (err < 0)
        return err;
    *head = (far_catalog_head){.magic = FAR_CATALOG_MAGIC, .entries = count};
    far_catalog_entry *entries = (far_catalog_entry *)(head + 1);
    for (unsigned i = 0; i < count; i++) {
        entries[i] = i < view->count ? view->entries[i] : *added;
        entries[i].place = 0;
        head->check = add_check(head->check, &entries[i]);
    }
    far_write(t, object.addr, head, bytes);
    if ((err = far_wait(t)) < 0)
        return err;
    far_point(t, "catalog:swing");
    err = swing(t, view, far_catalog_word(object.addr, count));
    if (err == 0) {
        far_count_retry(t);
        far_free(t, NULL, FAR_POOL_TYPE_CATALOG, object.addr, bytes);
    }
    return err;
}


/* FAR_ERR_EXISTS: the name is taken. */
static int look_for_name(far_task *t, const char *name, far_catalog_view *view) {
    far_catalog_entry found;
    far_index_record record;
    int err = far_catalog_look(t, view);
    if (err == 0 && (err = far_catalog_find(t, view, name, &found, &record)) == 0)
        err = far_fail(FAR_ERR_EXISTS, "there is an index '%s' already", name);
    return err == FAR_ERR_NOT_FOUND ? 0 : err;
}


static int list_index(far_task *t, const char *name, const far_catalog_entry *added) {
    for (;;) {
        far_scratch_mark mark = far_scratch_here(t);
        far_catalog_view view;
        int err = look_for_name(t, name, &view);
        if (err < 0)
            return err;
        if (view.count == FAR_CATALOG_ENTRIES_MAX)
            return far_fail(FAR_ERR_NO_MEMORY, "the catalog is full");
        if ((err = add_entry(t, &view, added)) != 0)
            return err < 0 ? err : 0;
        far_scratch_back(t, mark);
    }
}


/* Takes an index off the list; FAR_ERR_NOT_FOUND when it is not there. Needs no memory. Who adds another meanwhile, and
 * saw it in the list, puts it there again: so it is looked for again. */
static int unlist_index(far_task *t, uint32_t uid) {
    for (bool flagged = false;;) {
        far_scratch_mark mark = far_scratch_here(t);
        far_catalog_view view;
        uint64_t old;
        int err = far_catalog_look(t, &view);
        const far_catalog_entry *entry = err < 0 ? NULL : far_catalog_find_uid(&view, uid);
        if (entry)
            err = far_cas_word(t, entry_of(&view, entry), entry->record, entry->record | FAR_CATALOG_GONE, &old);
        if (err < 0 && flagged)
            far_memory_lost_some(far_task_pool(t)); /* whoever looks next drops it for us, and frees nothing */
        if (err < 0 || !entry)
            return err < 0 || flagged ? err : FAR_ERR_NOT_FOUND;
        flagged |= old == entry->record;
        far_point(t, "catalog:gone");
        far_scratch_back(t, mark);
    }
}


/* Creation. */

static uint32_t highest_uid(const far_catalog_view *view) {
    uint32_t highest = 0;
    for (unsigned i = 0; i < view->count; i++)
        if (view->entries[i].uid > highest)
            highest = view->entries[i].uid;
    return highest;
}


/* A new uid and a new secret. All that was listed before has an older one; else what two indexes have would be taken for
 * one's. */
static int name_index(far_task *t, const far_catalog_view *before, far_index *index) {
    uint64_t given;
    far_faa(t, far_addr_make(0, FAR_SUPER_NEXT_UID), 1, &given);
    int err = far_wait(t);
    if (err < 0)
        return err;
    if (given >= FAR_UID_MAX)
        return far_fail(FAR_ERR_NO_MEMORY, "the pool has given out all its index numbers");
    if (given < highest_uid(before))
        return far_fail(FAR_ERR_CORRUPT, "the pool's count of index numbers is broken: %u is given out already",
                        (unsigned)given + 1);
    index->uid = (uint32_t)given + 1;
    far_host *host = far_task_fabric(t)->host;
    host->ops->secret(host, index->secret, sizeof(index->secret));
    return 0;
}


static int write_record(far_task *t, far_index *index) {
    far_object object;
    int err = far_alloc(t, NULL, FAR_POOL_TYPE_RECORD, sizeof(far_index_record), 0, 0, &object);
    if (err < 0)
        return err;
    index->record = object.addr;
    far_index_record record = {.magic = FAR_RECORD_MAGIC, .uid = index->uid, .descriptor = index->descriptor};
    memcpy(record.secret, index->secret, sizeof(record.secret));
    strncpy(record.kind, index->kind->name, sizeof(record.kind) - 1);
    strcpy(record.name, index->name);
    strcpy(record.options, index->options_text);
    record.check = record_check(&record);
    far_write(t, object.addr, &record, sizeof(record));
    return far_wait(t);
}


/* Builds the structure, unseen, and the local state. */
static int build(far_task *t, const far_catalog_view *before, far_index *index) {
    int err = name_index(t, before, index);
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


/* Shows what was built to everybody, already open here. */
static int publish(far_task *t, far_index *index) {
    unsigned slot;
    int err;
    far_latch(t, FAR_LATCH_OPEN_TABLE);
    for (unsigned attempt = 0; (err = far_open_table_enter(t, index->uid, true, &slot)) > 0; attempt++) {
        far_unlatch(t, FAR_LATCH_OPEN_TABLE);
        far_back_off(t, attempt);
        far_latch(t, FAR_LATCH_OPEN_TABLE);
    }
    if (err >= 0) {
        far_catalog_entry entry = {.record = index->record, .name_hash = name_hash(index->name), .uid = index->uid};
        far_point(t, "catalog:publish");
        err = list_index(t, index->name, &entry);
        if (err >= 0)
            far_open_table_link(index, slot, true);
        else
            far_open_table_leave(t, slot);
    }
    far_unlatch(t, FAR_LATCH_OPEN_TABLE);
    return err;
}


int far_catalog_create(far_task *t, const char *name, const far_index_kind *kind, const char *options,
                       far_index **index) {
    far_catalog_view view;
    int err = look_for_name(t, name, &view); /* one pin for all: a sweep that begins meanwhile waits for it */
    if (err < 0)
        return err;
    far_index *made = far_open_table_make(far_task_pool(t), kind, name, 0);
    if (!made)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for an index");
    if (options)
        strncpy(made->options_text, options, FAR_OPTIONS_TEXT_MAX);
    err = far_index_options_parse(kind, options, made->options);
    bool opened = false;
    if (err >= 0 && (err = build(t, &view, made)) >= 0) {
        opened = true;
        if ((err = write_record(t, made)) >= 0)
            err = publish(t, made);
    }
    if (err >= 0) {
        *index = made;
        return 0;
    }

    /* Nobody has seen the index. A lost session cannot tidy up, and may even have published it: a sweep finds out. */
    if (opened)
        kind->close(made);
    if (err != FAR_ERR_FENCED && err != FAR_ERR_UNREACHABLE) {
        if (made->record)
            far_free(t, NULL, FAR_POOL_TYPE_RECORD, made->record, sizeof(far_index_record));
        if (made->uid)
            far_memory_dropped(far_task_pool(t), made->uid);
    }
    far_open_table_free(made);
    return err;
}


/* Dropping. */

/* Each mark has one pin: under another one the dropper puts another mark there first. So when a mark stands for two
 * epochs nobody works under it, and it may be taken away, whoever it names: the dropper, if there is one, begins anew. */
static uint64_t new_mark(far_task *t) {
    uint64_t number = atomic_fetch_add_explicit(&far_task_pool(t)->drop_marks, 1, memory_order_relaxed);
    return far_owner_of_session(t) | number << FAR_OWNER_BITS;
}


/* Marks the index as being dropped by us. 1: done; 0: look again. */
static int mark_for_drop(far_task *t, const far_catalog_entry *entry, uint64_t mark, far_met_mark *met) {
    uint64_t old;
    assert(t->pin.epoch != 0 && mark != 0);
    far_point(t, "catalog:mark");
    int err = far_cas_word(t, entry->record + offsetof(far_index_record, mark), 0, mark, &old);
    if (err < 0 || old == 0)
        return err < 0 ? err : 1;
    return (err = far_catalog_clear_mark(t, entry, old, met)) < 0 ? err : 0;
}


/* Under a new pin. 1: the index is listed, and still marked by us; 0: look again. */
static int renew_mark(far_task *t, const far_catalog_entry *entry, uint64_t *mark) {
    far_scratch_mark here = far_scratch_here(t);
    far_catalog_view view;
    uint64_t renewed = new_mark(t), old = 0;
    int err = far_catalog_look(t, &view);
    bool listed = err >= 0 && far_catalog_find_uid(&view, entry->uid);
    far_scratch_back(t, here);
    far_point(t, "catalog:renew_mark");
    if (listed)
        err = far_cas_word(t, entry->record + offsetof(far_index_record, mark), *mark, renewed, &old);
    if (err < 0 || !listed || old != *mark)
        return err < 0 ? err : 0;
    *mark = renewed;
    return 1;
}


/* Whether an index that this task drops is open: 0 no, 1 by walks. FAR_ERR_BUSY: a user has it open, or a walk for very
 * long: perhaps its handle is stopped, or the word that says so is damaged. */
static int look_who_has_it(far_task *t, const char *name, uint32_t uid, uint64_t until) {
    unsigned handle = 0;
    int open = far_open_table_anywhere(t, uid, &handle);
    if (open == 2)
        return far_fail(FAR_ERR_BUSY, "index '%s' is open in client %u", name, handle);
    if (open == 1 && far_now(t) >= until)
        return far_fail(FAR_ERR_BUSY, "index '%s' is open for a sweep or a check of client %u, which does not end",
                        name, handle);
    return open;
}


/* Waits until walks have let go of the index. 1: they have, and it is marked by us; 0: look again. */
static int wait_until_closed(far_task *t, const char *name, const far_catalog_entry *entry, uint64_t *mark) {
    const uint64_t tick = far_tick(far_task_fabric(t)), until = far_now(t) + WALK_TICKS * tick;
    far_patience_forget(t); /* what it retried for before is over */
    for (unsigned attempt = 0;; attempt++) {
        int open = look_who_has_it(t, name, entry->uid, until);
        if (open <= 0)
            return open < 0 ? open : 1;
        far_catalog_unpin(t);
        far_point(t, "catalog:wait_for_walks");
        far_back_off(t, attempt);
        if (attempt >= WALK_BRIEFLY)
            far_sleep(t, WALK_PAUSE_TICKS * tick);
        int err = attempt == WALK_BRIEFLY ? far_request_attention(t) : 0; /* perhaps for a long sweep */
        if (err < 0 || (err = renew_mark(t, entry, mark)) <= 0)
            return err;
    }
}


/* One try. 1: look again. */
static int drop_once(far_task *t, const char *name, far_met_mark *met) {
    far_catalog_view view;
    far_catalog_entry entry;
    far_index_record record;
    uint64_t mark = new_mark(t), old;
    int err = far_catalog_look(t, &view);
    if (err < 0 || (err = far_catalog_find(t, &view, name, &entry, &record)) < 0)
        return err;
    if ((err = mark_for_drop(t, &entry, mark, met)) <= 0)
        return err < 0 ? err : 1;

    far_point(t, "catalog:marked");
    if ((err = wait_until_closed(t, name, &entry, &mark)) == 0)
        return 1;
    if (err > 0) {
        far_point(t, "catalog:unlist");
        err = unlist_index(t, entry.uid);
    }
    if (err == FAR_ERR_NOT_FOUND) /* the index was dropped before we marked its record */
        return 1;
    if (err < 0) {
        far_cas_word(t, entry.record + offsetof(far_index_record, mark), mark, 0, &old);
        return err;
    }
    far_point(t, "catalog:unlisted");
    far_retire(t, NULL, FAR_POOL_TYPE_RECORD, entry.record, sizeof(far_index_record));
    far_memory_dropped(far_task_pool(t), entry.uid);
    return 0;
}


int far_catalog_drop(far_task *t, const char *name) {
    far_met_mark met = {0};
    for (unsigned attempt = 0;; attempt++) {
        far_scratch_mark here = far_scratch_here(t);
        int err = far_open_table_settle(t);
        if (err >= 0)
            err = far_open_table_prove(t);
        if (err >= 0)
            err = drop_once(t, name, &met);
        far_catalog_unpin(t);
        if (err <= 0 || (err = far_catalog_rest(t, &met, attempt)) < 0)
            return err;
        far_scratch_back(t, here);
    }
}


/* Listing and walking. */

int far_catalog_list(far_task *t, int (*each)(void *ctx, const char *name, const char *kind), void *ctx) {
    far_catalog_view view;
    int count = 0, err = far_catalog_look(t, &view);
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


int far_catalog_listed(far_task *t, far_catalog_view *view) {
    int err = far_catalog_look(t, view);
    far_catalog_unpin(t);
    return err;
}


static void keep_highest(void *ctx, uint32_t uid, uint64_t bytes) {
    uint32_t *highest = ctx;
    (void)bytes;
    if (uid > *highest)
        *highest = uid;
}


/* Beyond all that are listed, all that have memory, and those that sessions may be creating just now. */
static int renumber(far_task *t, uint64_t next, uint32_t highest, far_report *report) {
    far_pool_usage usage;
    uint64_t old;
    int err = far_memory_stat(t, &usage, keep_highest, &highest);
    uint64_t fresh = (uint64_t)highest + far_task_pool(t)->geometry.session_slots;
    if (err < 0)
        return err;
    if (fresh < FAR_UID_MAX)
        return far_cas_word(t, far_addr_make(0, FAR_SUPER_NEXT_UID), next, fresh, &old);
    far_report_problem(report, "the pool has given out all its index numbers");
    return 0;
}


int far_catalog_check_numbers(far_task *t, bool repair, far_report *report) {
    far_catalog_view view;
    uint64_t next = 0;
    int err = far_catalog_look(t, &view); /* first: what is listed was given out before */
    if (err >= 0)
        err = far_read_word(t, far_addr_make(0, FAR_SUPER_NEXT_UID), &next);
    far_catalog_unpin(t);
    if (err < 0)
        return err == FAR_ERR_CORRUPT ? 0 : err; /* that is told where the indexes are checked */
    uint32_t highest = highest_uid(&view);
    if (next >= highest && next < FAR_UID_MAX)
        return 0;
    if (repair)
        return renumber(t, next, highest, report);
    far_report_problem(report, "%llu index numbers are given out, it says: %s", (unsigned long long)next,
                       next < highest ? "there is an index with a higher one" : "there are no more of them");
    return 0;
}


/* The catalog object and the records. */
static int walk_own_objects(far_task *t, far_walk *walk) {
    far_catalog_view view;
    int err = far_catalog_look(t, &view);
    if (err >= 0 && view.word)
        err = far_walk_object(walk, NULL, FAR_POOL_TYPE_CATALOG, far_catalog_word_addr(view.word),
                              far_catalog_bytes(view.head.entries));
    for (unsigned i = 0; err >= 0 && i < view.count; i++) {
        far_index_record record;
        far_met_mark met = {0};
        err = far_catalog_read_record(t, &view.entries[i], &record);
        if (err >= 0 && record.mark) /* a dead dropper's mark must not stay */
            err = far_catalog_clear_mark(t, &view.entries[i], record.mark, &met);
        if (err >= 0)
            err = far_walk_object(walk, NULL, FAR_POOL_TYPE_RECORD, view.entries[i].record, sizeof(far_index_record));
    }
    if (err >= 0)
        err = far_open_table_walk(t, walk);
    far_catalog_unpin(t);
    return err < 0 ? err : 0;
}


int far_catalog_walk(far_task *t, far_walk *walk) {
    far_catalog_view view;
    assert(t->pin.epoch == 0);
    int err = walk_own_objects(t, walk);
    if (err < 0 || (err = far_catalog_listed(t, &view)) < 0)
        return err;
    for (unsigned i = 0; i < view.count; i++) {
        far_index *index;
        if ((err = far_catalog_open_uid(t, view.entries[i].uid, &index)) == FAR_ERR_NOT_FOUND)
            continue; /* dropped meanwhile */
        if (err < 0)
            return err;
        uint32_t key = t->index_key;
        t->index_key = index->uid;
        err = index->kind->walk(t, index, walk);
        far_catalog_unpin(t);
        t->index_key = key;
        far_catalog_close_uid(t, index);
        if (err < 0)
            return err;
    }
    return 0;
}
