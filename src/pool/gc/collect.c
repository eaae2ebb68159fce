/* The work of the collector, which runs a collection in the steps that collect.h lists. DONE is the word of the
 * superblock that names the last collection with complete marks (request.h). If the collector fails at any point, the
 * next collector starts a new collection with a new number. As long as DONE does not name a collection, no owner sweeps
 * for that collection. */
#include "pool/gc/collect.h"

#include "base/error.h"
#include "base/grow.h"
#include "base/pages.h"
#include "pool/alloc/store.h"
#include "pool/catalog/catalog.h"
#include "pool/catalog/layout.h"
#include "pool/epoch/stalled.h"
#include "pool/gc/false_free.h"
#include "pool/gc/request.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define MARK_BLOCKS     64u  /* number of blocks for which marks are written in one batch */
#define SCHEDULED_MARKS 32u  /* number of marks that may be scheduled and not yet made */
#define SWEEP_TICKS     300u /* ticks to wait until quiescent owners have swept, if a caller waits for the result */

typedef struct client_record { /* a client as the collector found it when the collection began */
    unsigned id, generation;
    bool gone;
} client_record;

typedef struct client_list {
    client_record *items;
    size_t count;
} client_list;

typedef struct scheduled_mark { /* a mark that is still to be made */
    uint64_t *word, bit;
} scheduled_mark;

typedef struct collection {
    far_walk walk; /* must be the first field, because the walk gets a pointer to it */
    far_task *t;
    far_store *store;
    const far_geometry *geometry;
    far_collect_mode mode;
    uint32_t number, previous; /* the number of this collection, and that of the previous one */
    uint64_t wanted;           /* the word FAR_SUPER_LOSSES when the first part of the collection began */
    /* One bit for each granule of the blocks of this part. After them come the bits of one more block; they are written
     * as the marks of all blocks outside this part. */
    uint64_t *marks;
    /* numbers of the first block of this part and of the block after the last; objects in other blocks count as marked
     */
    uint64_t first, end;
    far_false_free search; /* finds objects in use whose free bit is set */
    scheduled_mark scheduled[SCHEDULED_MARKS];
    uint64_t met;                 /* number of objects that the mark phase reached */
    unsigned written;             /* number of blocks for which marks were posted */
    uint64_t checks[MARK_BLOCKS]; /* hashes of the marks that are being written */
    client_list failed, owners;   /* list of the clients that failed, and list of the handles that own blocks */
    far_catalog_view view;        /* the indexes that the catalog lists at the end of the collection */
    unsigned unswept;             /* number of handles that own blocks and have not swept their blocks yet */
    uint64_t swept_bytes;         /* leaked bytes found by the handles that have swept their blocks */
    far_collect_result result;
} collection;


/* ---- Marks ---- */

static bool block_is_in_part(const collection *s, uint64_t number) {
    return number >= s->first && number < s->end;
}


static uint64_t *block_marks(const collection *s, uint64_t number) {
    uint64_t at = block_is_in_part(s, number) ? number - s->first : s->end - s->first;
    return s->marks + at * (far_bitmap_bytes(s->geometry) / sizeof(uint64_t));
}


/* Schedules the mark of an object, which is one bit of `word`. Objects are reached in any order, and the marks of a
 * large pool fit in no processor cache. Therefore the word is prefetched now, and the mark is made after
 * SCHEDULED_MARKS other objects were reached. */
static void schedule_mark(collection *s, uint64_t *word, uint64_t bit) {
    scheduled_mark *scheduled = &s->scheduled[s->met++ % SCHEDULED_MARKS];
    if (scheduled->word)
        *scheduled->word |= scheduled->bit;
    *scheduled = (scheduled_mark){word, bit};
    __builtin_prefetch(word, 1);
}


static void apply_scheduled_marks(collection *s) {
    for (scheduled_mark *scheduled = s->scheduled; scheduled < s->scheduled + SCHEDULED_MARKS; scheduled++)
        if (scheduled->word)
            *scheduled->word |= scheduled->bit;
    memset(s->scheduled, 0, sizeof(s->scheduled));
}


static int mark_object(far_walk *walk, far_index *index, unsigned type, far_addr addr, uint64_t size) {
    collection *s = (collection *)walk;
    far_block_id id;
    (void)type, (void)size;
    if (!far_block_of(s->geometry, addr, &id) || addr % FAR_GRANULE != 0)
        return far_fail(FAR_ERR_CORRUPT, "index '%s' reaches %#llx, where no object begins",
                        index ? index->name : "(the pool)", (unsigned long long)addr);
    uint64_t number = far_block_number(s->geometry, id), at = far_block_offset(s->geometry, addr) / FAR_GRANULE;
    if (!block_is_in_part(s, number))
        return 0;
    uint64_t *marks = block_marks(s, number) + at / 64, bit = 1ull << at % 64;
    schedule_mark(s, marks, bit);
    return s->search.sound[marks - s->marks] & bit ? 0 : far_false_free_examine(&s->search, index, id, at);
}


/* ---- Step 1: becoming the collector, failed clients ---- */

/* Returns whether no handle with this id runs a collection. That is so if the handle has failed. It is also so if the id
 * is not that of a system session; then the request word is damaged. */
static int find_whether_collector_is_gone(far_task *t, unsigned id) {
    uint64_t word;
    if (id > far_task_pool(t)->geometry.session_slots)
        return 1;
    int err = far_read_word(t, far_client_entry(id), &word);
    if (err < 0)
        return err;
    return far_client_handle_of(word) != id ? 1 : far_handle_confirm_failed(t, id);
}


static int set_collector(far_task *t, far_request *r, void *ctx) {
    unsigned own = far_task_pool(t)->team.own->id;
    (void)ctx;
    if (r->collector != 0 && r->collector != own) {
        int gone = find_whether_collector_is_gone(t, r->collector);
        if (gone <= 0)
            return gone < 0
                       ? gone
                       : far_fail(
                             FAR_ERR_BUSY,
                             "client %u is collecting leaked memory; if it does not finish, close it and repeat this",
                             r->collector);
    }
    /* the request keeps its number, because no handle needs to acknowledge the new name of the collector */
    r->collector = own;
    return 0;
}


/* Records a client in a list. Returns `gone`, or an error. */
static int add_client_record(client_list *list, unsigned id, unsigned generation, bool gone) {
    client_record *more = far_grow(list->items, list->count, sizeof(*more));
    if (!more)
        return far_fail(FAR_ERR_NO_MEMORY, "no local memory for a list of clients");
    list->items = more;
    list->items[list->count++] = (client_record){id, generation, gone};
    return gone;
}


static int record_failed_client(far_task *t, void *ctx, unsigned id, const far_client *client) {
    collection *s = ctx;
    far_client_state state = far_client_state_of(client->word);
    int dead = state == FAR_CLIENT_FENCED;
    if (state == FAR_CLIENT_LIVE && id != far_task_client(t))
        dead = far_client_confirm_failed(t, id, far_client_generation_of(client->word));
    if (dead == 1)
        dead = add_client_record(&s->failed, id, far_client_generation_of(client->word), true);
    return dead < 0 ? dead : 0;
}


/* Returns whether the handle that owns a block has failed, which means that all its sessions are closed or fenced. */
static int find_whether_owner_failed(collection *s, unsigned id, unsigned generation) {
    const far_session *own = far_task_pool(s->t)->team.own;
    for (size_t i = 0; i < s->owners.count; i++)
        if (s->owners.items[i].id == id && s->owners.items[i].generation == generation)
            return s->owners.items[i].gone;
    int gone = 0;
    if (id != own->id || generation != own->generation) {
        gone = far_client_confirm_failed(s->t, id, generation);
        uint64_t word = 0;
        if (gone == 1)
            gone = far_read_word(s->t, far_client_entry(id), &word);
        if (gone == 0 && word == 0)
            /* the entry was damaged, so only the fabric can tell whether the owner lives; an offline repair asks it */
            gone = s->mode == FAR_COLLECT_MEND ? far_control_send(s->t, FAR_CONTROL_HAS_FAILED, id, generation) : 0;
        else if (gone == 0)
            /* a newer incarnation of this id owns its own blocks, but not the blocks of the generation that is examined */
            gone = far_client_generation_of(word) != generation ? 1 : far_handle_confirm_failed(s->t, id);
    }
    return gone < 0 ? gone : add_client_record(&s->owners, id, generation, gone);
}


/* Turns a block of a failed owner into an orphan. The owner's black bits were in its local memory and are lost, so the
 * stamp excludes the block from the marks of earlier collections. The owner's list of free objects is lost too, so the
 * hint of the orphan (a bit for each class with free objects) has all bits set. */
static int disown_block(collection *s, far_block_id id, uint64_t word) {
    far_block_state orphan = {.kind = FAR_BLOCK_ORPHAN, .used = true};
    const uint64_t words[] = {far_stamp_pack(s->geometry, id, s->previous), UINT64_MAX};
    uint64_t old;
    far_write(s->t, far_block_stamp(s->geometry, id), words, sizeof(words));
    far_cas(s->t, far_block_entry(s->geometry, id), word, far_block_pack(&orphan), &old);
    return far_wait(s->t);
}


static int disown_if_owner_failed(far_task *t, void *ctx, far_block_id id, const uint64_t *entry) {
    collection *s = ctx;
    uint64_t word = entry[0];
    far_block_state state = far_block_unpack(word);
    (void)t;
    if (state.kind != FAR_BLOCK_OWNED)
        return 0;
    int err = find_whether_owner_failed(s, state.id, state.generation);
    if (err > 0)
        err = disown_block(s, id, word);
    return err < 0 ? err : 0;
}


static int begin_part(collection *s) {
    far_request made;
    assert(s->t->pin.epoch == 0 && s->first < s->end);
    int err = far_request_change(s->t, set_collector, s, &made);
    if (err < 0)
        return err;
    s->previous = made.collection;
    if (s->first == 0)
        err = far_read_word(s->t, far_addr_make(0, FAR_SUPER_LOSSES), &s->wanted);
    if (err == 0)
        err = far_clients_each(s->t, record_failed_client, s);
    if (err == 0)
        err = far_blocks_each(s->t, disown_if_owner_failed, s);
    return err;
}


/* ---- Steps 2 to 4: the mark phase ---- */

/* A function for far_request_change that sets or clears the bit `walk` of the request, as *ctx (a bool) says, and takes
 * the next number. Setting the bit also begins a new collection. */
static int set_walk_bit(far_task *t, far_request *r, void *ctx) {
    if (r->collector != far_task_pool(t)->team.own->id)
        return far_fail(FAR_ERR_FENCED,
                        "another client took over the collection, because this client was declared dead");
    r->walk = *(bool *)ctx;
    r->release_blocks = false;
    r->number = far_number_next(r->number);
    r->collection = r->walk ? far_number_next(r->collection) : r->collection;
    return 0;
}


/* Publishes the first or the second request of the collection and waits for the acknowledgements. A pin is taken first
 * to make the collector's own handle active, because this handle too must observe the request and sweep. */
static int publish_and_wait(collection *s, bool walks, far_request *made) {
    const uint64_t bound = far_stall_bound(far_task_fabric(s->t));
    uint64_t timeout = s->mode == FAR_COLLECT_IN_BACKGROUND   ? FAR_TIME_NEVER
                       : s->mode == FAR_COLLECT_OUT_OF_MEMORY ? bound / FAR_MEMORY_WAIT_SHARE
                                                              : bound;
    int err = far_request_change(s->t, set_walk_bit, &walks, made);
    if (err == 0)
        err = far_pin_take(s->t);
    far_pin_drop(s->t);
    return err < 0 ? err : far_request_wait(s->t, made->number, timeout);
}


static int write_block_marks(far_task *t, void *ctx, far_block_id id, const uint64_t *entry) {
    collection *s = ctx;
    far_block_kind kind = far_block_unpack(entry[0]).kind;
    if (kind == FAR_BLOCK_FREE)
        return 0;
    const uint64_t *marks = block_marks(s, far_block_number(s->geometry, id));
    uint64_t *check = &s->checks[s->written % MARK_BLOCKS];
    *check = far_marks_check(s->geometry, id, s->number, marks);
    far_write(t, far_block_marks(s->geometry, id), marks, far_bitmap_bytes(s->geometry));
    far_write(t, far_block_marks_check(s->geometry, id), check, 8);
    return ++s->written % MARK_BLOCKS == 0 ? far_wait(t) : 0;
}


static int write_marks(collection *s) {
    int err = far_blocks_each(s->t, write_block_marks, s), last = far_wait(s->t);
    return err < 0 ? err : last;
}


/* Walks all indexes and marks the objects that the walk reaches. Also finds objects with false free bits. */
static int mark_reachable(collection *s) {
    far_false_free *search = &s->search;
    const uint64_t bytes = (s->end - s->first) * far_bitmap_bytes(s->geometry);
    *search = (far_false_free){.t = s->t, .first = s->first, .end = s->end, .repair = s->mode == FAR_COLLECT_MEND};
    search->sound = far_pages_alloc(bytes);
    int err =
        search->sound ? far_false_free_begin(search) : far_fail(FAR_ERR_NO_MEMORY, "no local memory for free bitmaps");
    far_point(s->t, "collect:walk_indexes");
    if (err == 0)
        err = far_catalog_walk(s->t, &s->walk);
    apply_scheduled_marks(s);
    far_point(s->t, "collect:walked_indexes");
    if (search->count && s->result.false_free_bits == 0)
        strcpy(s->result.false_free_text, search->text);
    s->result.false_free_bits += search->count;
    far_pages_free(search->sound, bytes);
    return err;
}


static int run_mark_phase(collection *s) {
    far_request made;
    /* the acknowledgements wait for all pins that were taken before the request, so this task must have no pin */
    assert(s->t->pin.epoch == 0);
    int err = publish_and_wait(s, true, &made);
    if (err != 0)
        return err;
    s->number = made.collection;
    far_point(s->t, "collect:mark_phase");
    far_task_throttle(s->t, s->mode == FAR_COLLECT_IN_BACKGROUND);
    err = mark_reachable(s);
    far_task_throttle(s->t, false);
    far_point(s->t, "collect:write_marks");
    if (err == 0)
        err = write_marks(s);
    if (err == 0)
        err = publish_and_wait(s, false, &made);
    return err;
}


/* ---- Step 5: the sweep phase ---- */

/* Writes DONE. After the last part of the collection it also writes FAR_SUPER_LOSSES_COLLECTED, because all memory that
 * had leaked when the collection began has then been found. */
static int publish_done(collection *s) {
    uint64_t done = far_done_pack(s->number, s->mode == FAR_COLLECT_COUNT);
    int err = far_write_word(s->t, far_addr_make(0, FAR_SUPER_DONE), done);
    if (err < 0)
        return err;
    far_superblock_copy_done(s->store->pool, done);
    if (s->end < far_block_total(s->geometry) || s->mode == FAR_COLLECT_COUNT)
        return 0;
    far_superblock_copy_collected(s->store->pool, s->wanted);
    return far_write_word(s->t, far_addr_make(0, FAR_SUPER_LOSSES_COLLECTED), s->wanted);
}


static bool index_is_listed(const collection *s, uint32_t uid) {
    return uid == 0 || far_catalog_find_uid(&s->view, uid);
}


/* Counts the leaked bytes of an orphan, which are objects that are neither marked nor returned, and all objects of
 * slabs of unlisted indexes, because the next owner frees those slabs as a whole. In the mode FAR_COLLECT_COUNT, slabs
 * of unlisted indexes are left to the handle that dropped the index. If `swept` is true, the orphan is swept already,
 * so only slabs of unlisted indexes count. */
static uint64_t count_leaked_in_orphan(const collection *s, const far_tables *b, bool swept) {
    const far_geometry *g = s->geometry;
    const uint64_t *marks = block_marks(s, far_block_number(g, b->id));
    uint64_t lost = 0;
    for (unsigned p = 0; p < FAR_BLOCK_PAGES; p++) {
        far_page_state page = far_page_unpack(b->pages[p]);
        uint32_t objects = page.in_use ? far_slab_objects(g->page_bytes, &page) : 0;
        bool listed = objects > 0 && index_is_listed(s, page.uid);
        for (uint32_t n = 0; n < objects; n++) {
            uint64_t at = p * (g->page_bytes / FAR_GRANULE) + n * (page.size / FAR_GRANULE);
            bool known = (marks[at / 64] | b->bits[at / 64]) >> at % 64 & 1;
            if (listed ? !swept && !known : s->mode != FAR_COLLECT_COUNT)
                lost += page.size;
        }
    }
    return lost;
}


/* If `done` says that a block was adopted, ends the pin and takes a new one. There may be many such blocks,
 * each of them takes time, and a long pin would prevent the epoch from advancing. */
static int renew_pin_if_done(far_task *t, int done) {
    if (done <= 0)
        return done;
    far_catalog_unpin(t);
    return far_pin_take(t);
}


static bool is_orphan_in_part(void *ctx, far_block_id id, const uint64_t *entry) {
    const collection *s = ctx;
    return far_block_unpack(entry[0]).kind == FAR_BLOCK_ORPHAN &&
           block_is_in_part(s, far_block_number(s->geometry, id));
}


/* Adopts an orphan that contains leaked objects. The orphan is then swept with the own blocks. */
static int sweep_orphan(far_task *t, void *ctx, far_tables *b) {
    collection *s = ctx;
    int err = far_tables_read_until_sound(t, b);
    /* skips a block that is no orphan any more, because another handle has adopted it in the meantime */
    if (err < 0 || !is_orphan_in_part(s, b->id, b->entry))
        return err;
    uint64_t lost = count_leaked_in_orphan(s, b, !far_number_is_newer(s->number, (uint32_t)b->entry[1]));
    if (lost == 0)
        return 0;
    if (s->mode != FAR_COLLECT_COUNT)
        /* the leaked bytes of the adopted block are counted by the sweep of its new owner */
        return renew_pin_if_done(t, far_store_adopt_block(t, b->id, b->entry));
    /* A handle may have adopted the orphan between the READs of its entry and of its free bits, which it has then taken;
     * the objects behind these bits are not leaked. */
    uint64_t word;
    if ((err = far_read_word(t, far_block_entry(s->geometry, b->id), &word)) == 0 && word == b->entry[0])
        s->result.leaked_bytes += lost;
    return err;
}


/* Frees the ids of failed clients, which nothing in the pool names any more. */
static int free_failed_ids(collection *s) {
    for (size_t i = 0; i < s->failed.count; i++) {
        int done = far_client_free(s->t, s->failed.items[i].id, s->failed.items[i].generation);
        if (done < 0)
            return done;
        s->result.dead_clients += done == 1;
    }
    return 0;
}


static int finish_part(collection *s) {
    int err = publish_done(s);
    if (err == 0)
        err = far_catalog_read_unpinned(s->t, &s->view);
    if (err == 0)
        err = far_pin_take(s->t);
    if (err == 0)
        err = far_tables_each(s->t, is_orphan_in_part, sweep_orphan, s);
    far_catalog_unpin(s->t);
    if (err == 0)
        err = free_failed_ids(s);
    return err;
}


/* A function for far_request_change that ends the collection in the request word, whether the collection succeeded or
 * not. It clears the name of the collector and the bit `walk`. */
static int clear_collector(far_task *t, far_request *r, void *ctx) {
    (void)ctx;
    if (r->collector != far_task_pool(t)->team.own->id)
        return 1;
    r->collector = 0;
    if (r->walk) /* the mark phase was abandoned, and all handles must observe that */
        r->number = far_number_next(r->number);
    r->walk = false;
    return 0;
}


/* ---- A collector that is named wrongly ---- */

bool far_is_wrongly_named_collector(far_pool *pool) {
    far_store *s = pool->store;
    return atomic_load_explicit(&s->handshake.superblock.collector, memory_order_acquire) == pool->team.own->id &&
           !atomic_load_explicit(&s->collecting, memory_order_acquire);
}


/* The function sets `collecting` as a collection does, so that no collection begins in this handle at the same time. If
 * the name has changed since the tick read it, clear_collector leaves the word as it is. */
int far_collector_name_clear(far_task *t) {
    far_store *s = far_store_of(t);
    far_request made;
    if (atomic_exchange_explicit(&s->collecting, true, memory_order_acquire))
        return 0;
    int err = far_request_change(t, clear_collector, NULL, &made);
    atomic_store_explicit(&s->collecting, false, memory_order_release);
    return err < 0 ? err : 0;
}


/* ---- Waiting for the owners ---- */

static bool handle_owns_blocks(const collection *s, unsigned id) {
    for (size_t i = 0; i < s->owners.count; i++)
        if (s->owners.items[i].id == id && !s->owners.items[i].gone)
            return true;
    return false;
}


static int count_swept_handle(far_task *t, void *ctx, unsigned id, const far_client *client) {
    collection *s = ctx;
    if (far_client_state_of(client->word) != FAR_CLIENT_LIVE || far_client_handle_of(client->word) != id)
        return 0;
    if (far_swept_collection(client->settled) == s->number)
        s->swept_bytes += far_swept_leaked_bytes(client->settled);
    else
        s->unswept += handle_owns_blocks(s, id) || id == far_task_pool(t)->team.own->id;
    return 0;
}


/* Waits until all owners have swept their blocks, but only for a limited time, because a quiescent handle sweeps when
 * it next reads the superblock, and a stopped one never does. */
static int wait_until_swept(collection *s) {
    far_pool *pool = far_task_pool(s->t);
    uint64_t tick = far_tick(pool->fabric), until = far_now(s->t) + SWEEP_TICKS * tick;
    for (;;) {
        s->unswept = 0;
        s->swept_bytes = 0;
        int err = far_clients_each(s->t, count_swept_handle, s);
        if (err < 0)
            return err;
        if (s->unswept == 0 || far_now(s->t) >= until)
            break;
        /* taking a pin makes this handle active, so that it sweeps its own blocks */
        if ((err = far_pin_take(s->t)) < 0)
            return err;
        far_pin_drop(s->t);
        if ((err = far_housekeeping_step(s->t)) < 0)
            return err;
        far_sleep(s->t, tick / 2);
    }
    s->result.leaked_bytes += s->swept_bytes;
    return 0;
}


/* ---- The whole collection ---- */

static int collect_part(collection *s) {
    int err = begin_part(s);
    if (err < 0)
        return err;
    if ((err = run_mark_phase(s)) == 0)
        err = finish_part(s);
    if (s->t->session->lost)
        return err < 0 ? err : s->t->session->lost;
    far_pin_drop(s->t);
    far_request made;
    int end = far_request_change(s->t, clear_collector, NULL, &made), wanted = 0;
    /* another collection is requested after a failure, because handles that observed this collection have discarded
     * their unfinished sweep of the previous one */
    if (err != 0)
        wanted = far_collection_request(s->t);
    end = end < 0 ? end : wanted;
    err = err != 0 ? err : end;
    return err == 0 && s->mode != FAR_COLLECT_IN_BACKGROUND ? wait_until_swept(s) : err;
}


/* Returns the bytes of the marks of a part: the bitmaps of its blocks, and one with all bits set. */
static uint64_t marks_bytes(const collection *s) {
    return (s->end - s->first + 1) * far_bitmap_bytes(s->geometry);
}


static void free_part(collection *s) {
    far_pages_free(s->marks, marks_bytes(s));
    free(s->failed.items);
    free(s->owners.items);
    s->failed = s->owners = (client_list){0};
}


/* Runs the collection. If the marks of the whole pool exceed the limit of local memory, it is done in parts, one after
 * the other. */
static int collect_all_parts(collection *s) {
    uint64_t total = far_block_total(s->geometry), most = s->store->marks_max / far_bitmap_bytes(s->geometry);
    int err = 0;
    for (s->end = 0; s->end < total && err == 0;) {
        s->first = s->end;
        s->end = total - s->first > most ? s->first + most : total;
        s->marks = far_pages_alloc(marks_bytes(s));
        if (s->marks)
            memset(block_marks(s, s->end), 0xff, far_bitmap_bytes(s->geometry));
        err = s->marks ? collect_part(s) : far_fail(FAR_ERR_NO_MEMORY, "no local memory for the marks of a collection");
        free_part(s);
    }
    if (err != 0)
        return err;
    uint64_t left = s->mode == FAR_COLLECT_COUNT ? s->result.leaked_bytes : 0;
    s->result.repaired_bytes = s->mode == FAR_COLLECT_COUNT ? 0 : s->result.leaked_bytes;
    return far_write_word(s->t, far_addr_make(0, FAR_SUPER_LEAKED), left);
}


int far_collect(far_task *t, far_collect_mode mode, far_collect_result *result) {
    far_pool *pool = far_task_pool(t);
    *result = (far_collect_result){0};
    if (t->pin.epoch != 0)
        return far_fail(FAR_ERR_INVALID,
                        "a pinned task cannot collect leaked memory, because it would wait for its own pin");
    if (atomic_exchange_explicit(&pool->store->collecting, true, memory_order_acquire))
        return far_fail(FAR_ERR_BUSY, "this handle is collecting leaked memory");
    collection s = {
        .walk = {.object = mark_object}, .t = t, .store = pool->store, .geometry = &pool->geometry, .mode = mode};
    far_saved_batch saved = far_batch_save(t);
    bool many_waits = t->many_waits;
    t->many_waits = mode != FAR_COLLECT_OUT_OF_MEMORY;
    int err = collect_all_parts(&s);
    t->many_waits = many_waits;
    far_batch_restore(t, saved);
    *result = s.result;
    atomic_store_explicit(&pool->store->collecting, false, memory_order_release);
    return err;
}
