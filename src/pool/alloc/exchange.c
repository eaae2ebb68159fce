/* Blocks that change their owner: a handle takes free blocks, adopts orphans, and releases its own blocks as orphans.
 * Also setting the free bits of objects that are returned, and recovery of blocks that a lost
 * session took without recording them. Unless noted otherwise, the calling task is in the store (far_store_enter), so
 * that only one task of the handle does this at a time, and it has a pin. */
#include "base/error.h"
#include "base/grow.h"
#include "base/sort.h"
#include "pool/alloc/store.h"
#include "pool/catalog/layout.h"
#include "pool/gc/request.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW_ENTRIES 1024u /* entries of the block table that are read at once */
/* number of CASes lost to other handles in one window of the block table after which the search continues in the next
 * window */
#define TAKE_ROUNDS 16u
#define TAKE_MAX    8u /* largest number of free blocks that are taken at once */
/* a search that sees less free blocks than this besides the headroom counts them again after it took some */
#define RACE_BLOCKS  64u
#define RELEASED_MAX 32u /* largest number of blocks that are released in one batch */
/* Number of epochs, after a handle observed a request to release blocks, for which its inserts leave orphans to the
 * requester. The requester retries its operation about 8 epochs after the request, because objects that were retired
 * before become free at least four epochs later. Objects that wait for extra epochs delay the retry. */
#define LEFT_EPOCHS 24u

#define HINT_PAGES 1ull /* the bit of a hint that says that the orphan has free pages */


/* Returns the bit for a class in the hint of an orphan. */
static uint64_t class_hint_bit(uint32_t uid, unsigned type, uint64_t size) {
    uint64_t hash = (uid * 0x9e3779b97f4a7c15ull + type * 0xff51afd7ed558ccdull + size) * 0xc4ceb9fe1a85ec53ull;
    return 2ull << (hash >> 32) % 63;
}


/* ---- Returning objects ---- */

static int compare_addresses(const void *a, const void *b) {
    far_addr x = ((const far_pending_return *)a)->addr, y = ((const far_pending_return *)b)->addr;
    return (x > y) - (x < y);
}


int far_free_bits_add(far_task *t, far_pending_return *objects, size_t count) {
    const far_geometry *g = far_geometry_of(t);
    const uint64_t span = FAR_GRANULE * FAR_WORD_GRANULES; /* bytes that one bitmap word covers */
    unsigned verbs = 0;
    int err = 0;
    far_sort(objects, count, sizeof(*objects), compare_addresses);
    for (size_t i = 0; i < count && err == 0;) {
        far_block_id id;
        far_addr addr = objects[i].addr;
        if (!far_block_of(g, addr, &id))
            return far_fail(FAR_ERR_CORRUPT, "an index freed an object at %#llx, which is in no block",
                            (unsigned long long)addr);
        uint64_t inner = far_block_offset(g, addr), bits = 0;
        far_addr word = addr - inner % span;
        for (; i < count && objects[i].addr - word < span; i++)
            bits |= 1ull << (objects[i].addr - word) / FAR_GRANULE;
        far_faa(t, far_block_bitmap(g, id) + inner / span * 8, bits, NULL);
        err = far_wait_if_full(t, &verbs);
    }
    int last = far_wait(t);
    return err < 0 ? err : last;
}


/* ---- Adopting ---- */

/* Fails if this handle owns the block already, although the entry of the block did not name an owner. That means that
 * the entry was damaged. The CAS by which the caller adopted the block has corrected the entry, and the store still
 * describes the block correctly. Returns 0 if this handle did not own the block. */
static int check_not_owned_yet(far_task *t, far_block_id id) {
    const far_store *s = far_store_of(t);
    if (!far_address_is_own(s, far_block_base(far_geometry_of(t), id)))
        return 0;
    return far_fail(FAR_ERR_CORRUPT, "block %u of node %u: its entry did not name this client, which owns it", id.index,
                    id.node);
}


/* Adds a block to the store that this handle has just adopted. Leaked objects in the block are swept before any object
 * of the block is handed out.
 *
 * Retired objects of this handle in the block become black, for two reasons. They may have been unlinked before the end
 * of the mark phase, so they may be unmarked. And no acknowledgement waits for them, because they are own objects from
 * now on. Objects of the block in the lists of remote objects need no black bit. If such an object was unlinked after
 * the mark phase, it is marked. Otherwise this handle returns it before it acknowledges the second request of the
 * collection. */
static int load_adopted_block(far_task *t, far_block_id id, uint32_t stamp) {
    far_store *s = far_store_of(t);
    uint64_t pages[FAR_BLOCK_PAGES];
    int err = check_not_owned_yet(t, id);
    if (err == 0)
        /* the page words are read again, because other handles may have owned the block between the first READ and the
         * CAS */
        err = far_pages_read(t, id, pages);
    if (err < 0)
        return err;
    pthread_mutex_lock(&s->lock);
    far_owned_block *b = far_owned_block_add(s, id, true, stamp);
    bool loaded = b && far_owned_block_load_slabs(s, b, pages);
    if (b && !loaded)
        /* the block is removed again if its slabs could not be loaded, because pages whose slab is missing in the store
         * would look free */
        far_owned_block_remove(s, b);
    pthread_mutex_unlock(&s->lock);
    if (!loaded)
        return far_fail(FAR_ERR_NO_MEMORY, "no local memory for an adopted block");
    far_store_visit(s, &(far_visit){.retired = far_retired_set_black});
    err = far_sweep_block(t, b);
    return err < 0 ? err : 1;
}


void far_blocks_schedule_recovery(far_store *s) {
    atomic_store_explicit(&s->search.recovery_due, true, memory_order_relaxed);
}


/* This handle owns a block, but had no local memory to record that. Schedules far_blocks_recover_unknown, which records
 * it later. */
static int schedule_recovery_without_memory(far_task *t, int result) {
    if (result == FAR_ERR_NO_MEMORY)
        far_blocks_schedule_recovery(far_store_of(t));
    return result;
}


/* Returns the collection that the stamp of a block names. A damaged stamp names none. The block then counts as swept
 * for the newest collection that its last owner can have observed, which is one more than the last one that this handle
 * has observed. Leaked objects in the block are then found by a later collection. */
static uint32_t collection_of_stamp(far_task *t, far_block_id id, uint64_t stamp) {
    bool sound = far_stamp_is_sound(far_geometry_of(t), id, stamp);
    return sound ? far_stamp_collection(stamp) : far_number_next(far_store_of(t)->handshake.collection);
}


int far_block_adopt(far_task *t, far_block_id id, const uint64_t *entry) {
    const far_block_state mine = far_own_block_state(t);
    uint64_t word = entry[0], stamp;
    assert(far_store_of(t)->block_task == t && t->pin.epoch != 0);
    int done = far_block_cas_state(t, id, &word, &mine);
    if (done <= 0)
        return done;
    int err = far_read_word(t, far_block_stamp(far_geometry_of(t), id), &stamp);
    return schedule_recovery_without_memory(t, err < 0 ? err
                                                       : load_adopted_block(t, id, collection_of_stamp(t, id, stamp)));
}


int far_store_adopt_block(far_task *t, far_block_id id, const uint64_t *entry) {
    far_store_enter(t);
    int done = far_block_adopt(t, id, entry);
    far_store_leave(t);
    return done;
}


/* Returns whether the task must leave all orphans to the operation of another handle that requested the release of
 * blocks a short time ago. A task that may not use the headroom would otherwise adopt the released blocks before that
 * operation is retried, although the task may not take an object of them. */
static bool must_leave_orphans(far_task *t) {
    far_store *s = far_store_of(t);
    pthread_mutex_lock(&s->lock);
    const far_handshake *h = &s->handshake;
    bool requested_elsewhere = h->release_blocks && h->observed != s->out_of_memory.requested;
    bool recent = far_epoch_known(t) - h->observed_epoch < LEFT_EPOCHS;
    pthread_mutex_unlock(&s->lock);
    return !t->uses_headroom && requested_elsewhere && recent;
}


/* ---- Acquiring a block ---- */

bool far_block_search_open(far_store *s) {
    const unsigned nodes = s->pool->geometry.nodes;
    s->search.free_from = calloc(nodes, sizeof(*s->search.free_from));
    s->search.full_epoch = calloc(nodes, sizeof(*s->search.full_epoch));
    return s->search.free_from && s->search.full_epoch;
}


void far_block_search_free(far_store *s) {
    free(s->search.free_from);
    free(s->search.full_epoch);
}


void far_block_search_note_full(far_store *s, unsigned node, uint64_t epoch) {
    s->search.full_epoch[node] = epoch;
}


void far_block_search_forget_full(far_store *s) {
    for (unsigned n = 0; n < s->pool->geometry.nodes; n++)
        s->search.full_epoch[n] = 0;
}


void far_block_search_begin_at(far_store *s, far_block_id id) {
    if (id.index < s->search.free_from[id.node])
        s->search.free_from[id.node] = id.index;
}


static int record_taken_block(far_task *t, far_block_id id, bool used) {
    far_store *s = far_store_of(t);
    int err = check_not_owned_yet(t, id);
    if (err < 0)
        return err;
    pthread_mutex_lock(&s->lock);
    /* the block was free, so it contains no object that is older than the last collection that this handle observed */
    bool added = far_owned_block_add(s, id, used, s->handshake.collection) != NULL;
    pthread_mutex_unlock(&s->lock);
    return added ? 1 : schedule_recovery_without_memory(t, far_fail(FAR_ERR_NO_MEMORY, "no local memory for a block"));
}


/* A search of the block table of one node. It reads the table in windows, which are WINDOW_ENTRIES adjacent entries. */
typedef struct block_search {
    far_class *class;
    unsigned node;
    bool from_headroom;   /* a block of the headroom may be taken */
    bool leaves_orphans;  /* orphans must be left to another handle */
    uint32_t free_before; /* number of free blocks in the windows that were searched before the current one */
    far_block_id first;   /* the current window */
    uint32_t count;
    uint64_t *entries;
    uint32_t *free, free_count; /* positions of the free blocks of the window */
} block_search;


/* Reads the entries of the current window. */
static int read_window(far_task *t, block_search *b) {
    int err = far_blocks_read(t, b->node, b->first.index, b->count, b->entries);
    b->free_count = 0;
    for (uint32_t i = 0; i < b->count && err == 0; i++)
        if (far_block_is_free(b->entries[FAR_BLOCK_ENTRY_WORDS * (size_t)i]))
            b->free[b->free_count++] = i;
    return err;
}


static uint32_t count_free_blocks(const block_search *b) {
    return b->free_before + b->free_count;
}


/* Returns how many free blocks of the current window the search may take now. The free blocks of windows that were not
 * searched yet do not count, so a search in a nearly full pool reads the whole table before it takes a block. */
static uint32_t count_permitted_blocks(const far_store *s, const block_search *b, bool from_headroom) {
    uint32_t all = count_free_blocks(b), spared = s->headroom[b->node].blocks, most = all > spared ? all - spared : 0;
    if (most == 0 && from_headroom)
        return b->free_count > 0;
    return most < b->free_count ? most : b->free_count;
}


/* Takes some of the free blocks of the current window. The choice is random, so that handles that search at the same
 * time rarely compete for the same block. Returns 1 if it took a block. */
static int take_random_blocks(far_task *t, block_search *b, uint32_t permitted) {
    far_store *s = far_store_of(t);
    const far_block_state mine = far_own_block_state(t);
    uint64_t old[TAKE_MAX];
    uint32_t *at = b->free, taken = 0;
    pthread_mutex_lock(&s->lock);
    uint32_t wanted = s->handshake.release_blocks ? 1 : 1 + s->lists.block_count / 8;
    pthread_mutex_unlock(&s->lock);
    wanted = wanted < TAKE_MAX ? wanted : TAKE_MAX;
    wanted = wanted < permitted ? wanted : permitted;
    for (uint32_t i = 0; i < wanted; i++) {
        uint32_t pick = i + (uint32_t)(far_task_random(t) % (b->free_count - i)), chosen = at[pick];
        at[pick] = at[i];
        at[i] = chosen;
        far_cas(t, far_block_entry(far_geometry_of(t), (far_block_id){b->node, b->first.index + chosen}),
                b->entries[FAR_BLOCK_ENTRY_WORDS * (size_t)chosen], far_block_pack(&mine), &old[i]);
    }
    int result = far_wait(t), err = result;
    for (uint32_t i = 0; i < wanted && err == 0; i++)
        if (old[i] == b->entries[FAR_BLOCK_ENTRY_WORDS * (size_t)at[i]]) {
            int added =
                record_taken_block(t, (far_block_id){b->node, b->first.index + at[i]}, far_block_unpack(old[i]).used);
            result = result < 0 ? result : added;
            taken++;
        }
    pthread_mutex_lock(&s->lock);
    if (count_free_blocks(b) - taken > s->headroom[b->node].blocks)
        far_headroom_set_free_blocks(s, b->node, count_free_blocks(b) - taken);
    else
        far_headroom_count_taken(s, b->node, taken);
    pthread_mutex_unlock(&s->lock);
    return result;
}


/* Takes free blocks of the current window as take_random_blocks does. Handles that search at the same time may together
 * take more than one of them may take alone. So if few free blocks are left, the search counts those of the window
 * again; then this handle knows if blocks of the headroom are missing, and spares memory of its own blocks instead. */
static int take_free_blocks(far_task *t, block_search *b, uint32_t permitted) {
    far_store *s = far_store_of(t);
    uint32_t spared = s->headroom[b->node].blocks;
    bool is_close = count_free_blocks(b) < spared + RACE_BLOCKS;
    int taken = take_random_blocks(t, b, permitted);
    if (taken <= 0 || !is_close)
        return taken;
    int err = read_window(t, b);
    pthread_mutex_lock(&s->lock);
    if (err == 0 && count_free_blocks(b) <= spared)
        far_headroom_set_free_blocks(s, b->node, count_free_blocks(b));
    pthread_mutex_unlock(&s->lock);
    return err < 0 ? err : taken;
}


/* Returns the first orphan of the current window, from a random position on, whose hint contains one of the bits of
 * `hint`. Returns b->count if there is none, or if orphans must be left to another handle. */
static uint32_t find_orphan(far_task *t, const block_search *b, uint64_t hint) {
    uint32_t start = b->count == 0 ? 0 : (uint32_t)(far_task_random(t) % b->count);
    for (uint32_t i = 0; i < b->count && !b->leaves_orphans; i++) {
        uint32_t at = (start + i) % b->count;
        const uint64_t *entry = b->entries + FAR_BLOCK_ENTRY_WORDS * (size_t)at;
        if (far_block_unpack(entry[0]).kind == FAR_BLOCK_ORPHAN && entry[2] & hint)
            return at;
    }
    return b->count;
}


/* Tries to get a block from the current window. It prefers an orphan with free objects of the class, then a free block,
 * then an orphan with free pages, then a block of the headroom. Returns 1 if it got one, 0 if not. *lost is set if
 * other handles were faster, so that it is worth reading the window again. */
static int acquire_in_window(far_task *t, block_search *b, bool *lost) {
    const far_store *s = far_store_of(t);
    const far_class *class = b->class;
    *lost = false;
    int err = read_window(t, b);
    if (err < 0)
        return err;
    uint32_t orphan = find_orphan(t, b, class_hint_bit(class->uid, class->type, class->size)), permitted = 0;
    if (orphan == b->count)
        permitted = count_permitted_blocks(s, b, false);
    if (orphan == b->count && permitted == 0)
        orphan = find_orphan(t, b, HINT_PAGES);
    if (orphan == b->count && permitted == 0)
        permitted = count_permitted_blocks(s, b, b->from_headroom);
    *lost = orphan < b->count || permitted > 0;
    if (!*lost)
        return 0;
    if (permitted > 0)
        return take_free_blocks(t, b, permitted);
    return far_block_adopt(t, (far_block_id){b->node, b->first.index + orphan},
                           b->entries + FAR_BLOCK_ENTRY_WORDS * (size_t)orphan);
}


/* Searches all windows of the node, from the one where the last search ended. */
static int search_windows(far_task *t, block_search *b) {
    far_store *s = far_store_of(t);
    uint32_t total = (uint32_t)far_geometry_of(t)->node[b->node].blocks,
             windows = (total + WINDOW_ENTRIES - 1) / WINDOW_ENTRIES,
             window = s->search.free_from[b->node] / WINDOW_ENTRIES;
    for (uint32_t seen = 0, rounds = 0; seen < windows;) {
        uint32_t at = window % windows * WINDOW_ENTRIES;
        bool lost;
        b->first = (far_block_id){b->node, at};
        b->count = total - at < WINDOW_ENTRIES ? total - at : WINDOW_ENTRIES;
        int result = acquire_in_window(t, b, &lost);
        s->search.free_from[b->node] = at;
        if (result != 0)
            return result;
        if (!lost || ++rounds % TAKE_ROUNDS == 0) {
            window++;
            seen++;
            b->free_before += b->free_count;
        }
    }
    pthread_mutex_lock(&s->lock);
    far_headroom_set_free_blocks(s, b->node, b->free_before);
    pthread_mutex_unlock(&s->lock);
    return 0;
}


int far_block_acquire(far_task *t, far_class *class, unsigned node, bool from_headroom) {
    assert(far_store_of(t)->block_task == t && t->pin.epoch != 0);
    far_scratch_mark mark = far_scratch_here(t);
    block_search b = {
        .class = class, .node = node, .from_headroom = from_headroom, .leaves_orphans = must_leave_orphans(t)};
    b.entries = far_scratch(t, WINDOW_ENTRIES * FAR_BLOCK_ENTRY_BYTES);
    b.free = far_scratch(t, WINDOW_ENTRIES * sizeof(*b.free));
    int got = !b.entries || !b.free ? far_fail(FAR_ERR_NO_MEMORY, "no local memory to read the table of blocks")
                                    : search_windows(t, &b);
    far_scratch_back(t, mark);
    return got;
}


/* Adopts an orphan without regard to its hint. This is done when memory is short, because returned objects may have
 * made its slabs entirely free. */
static int adopt_if_orphan(far_task *t, void *ctx, far_block_id id, const uint64_t *entry) {
    (void)ctx;
    int done = far_block_unpack(entry[0]).kind == FAR_BLOCK_ORPHAN ? far_block_adopt(t, id, entry) : 0;
    return done < 0 ? done : 0;
}


int far_orphans_adopt_all(far_task *t) {
    return must_leave_orphans(t) ? 0 : far_blocks_each(t, adopt_if_orphan, NULL);
}


/* ---- Releasing blocks ---- */

typedef struct released_block {
    far_block_id id;
    uint32_t stamp; /* value of far_owned_block.stamp, which is written to the block entry */
    uint64_t hint;  /* the hint that is written to the entry, with the classes that have free objects in the block */
} released_block;

typedef struct release_batch {
    released_block blocks[RELEASED_MAX];
    unsigned count;
    far_pending_return *objects;
    size_t object_count;
    bool leaks; /* true if some objects leak until a collection finds them */
} release_batch;


static void add_released_object(release_batch *g, far_class *class, far_addr addr) {
    far_pending_return *objects = far_grow(g->objects, g->object_count, sizeof(*objects));
    if (objects) {
        g->objects = objects;
        objects[g->object_count++] = (far_pending_return){addr, class};
    }
    g->leaks |= !objects;
}


/* With the store's lock held, returns whether the block has free pages or objects in the store. */
static bool has_room(const far_owned_block *b) {
    bool any = b->free_pages != 0;
    for (const far_slab *slab = far_slab_in(b, NULL); slab && !any; slab = far_slab_in(b, slab))
        any = slab->stored > 0 || slab->carved < slab->objects;
    return any;
}


/* With the store's lock held, removes the block from the store and adds its objects that were in the store to the
 * batch. Pages that are neither free nor in a slab were set aside after a failed WRITE (slabs.c). The page words of
 * such pages may describe slabs that the store does not contain. These slabs were not swept for the last collection, so
 * the batch counts as leaking. */
static void forget_block(far_store *s, far_owned_block *b, release_batch *g) {
    assert(b->session_owned == 0 && g->count < RELEASED_MAX);
    released_block *out = &g->blocks[g->count++];
    uint64_t known = b->free_pages;
    *out = (released_block){.id = b->id, .stamp = b->stamp, .hint = b->free_pages != 0 ? HINT_PAGES : 0};
    for (const far_slab *slab = far_slab_in(b, NULL); slab; slab = far_slab_in(b, slab)) {
        const far_class *c = slab->class;
        known |= far_page_mask(slab->page, slab->pages);
        if (slab->stored > 0 || slab->carved < slab->objects)
            out->hint |= class_hint_bit(c->uid, c->type, c->size);
        for (uint32_t n = 0; n < slab->objects; n++)
            if (n >= slab->carved || slab->in_store[n / 64] >> n % 64 & 1)
                add_released_object(g, slab->class, far_slab_base(s, slab) + n * c->size);
    }
    g->leaks |= known != UINT64_MAX;
    far_owned_block_remove(s, b);
}


static bool is_in_released_block(const far_store *s, const release_batch *g, far_addr addr) {
    far_block_id id;
    if (!far_block_of(&s->pool->geometry, addr, &id))
        return false;
    for (unsigned i = 0; i < g->count; i++)
        if (g->blocks[i].id.node == id.node && g->blocks[i].id.index == id.index)
            return true;
    return false;
}


/* A callback for far_visit.in_magazine that removes an object from the magazine if its block is being released. */
static bool take_released_from_magazine(far_store *s, far_class *class, uint64_t item, void *ctx) {
    release_batch *g = ctx;
    if (!is_in_released_block(s, g, far_item_addr(item)))
        return true;
    add_released_object(g, class, far_item_addr(item));
    return false;
}


/* Returns whether a slab of the block belongs to an index that is dropped or is still being created. */
static bool has_unlisted_slab(const far_owned_block *b, const far_catalog_view *view) {
    for (const far_slab *slab = far_slab_in(b, NULL); slab; slab = far_slab_in(b, slab))
        if (slab->class->uid != 0 && !far_catalog_find_uid(view, slab->class->uid))
            return true;
    return false;
}


/* Chooses the blocks that are released and removes them from the store. The caller keeps its pin from reading the
 * catalog until the blocks are orphans. A handle that drops a listed index later examines the orphans after that pin
 * has ended, so its examination includes these blocks. Slabs of indexes that are not listed now are freed by this
 * handle (pool/gc/dropped.c). If the handle is being closed, a collection frees these slabs. */
static void choose_blocks(far_store *s, far_release_scope which, const far_catalog_view *view, release_batch *g) {
    pthread_mutex_lock(&s->lock);
    for (far_owned_block *b = far_owned_block_next(s, NULL), *next; b && g->count < RELEASED_MAX; b = next) {
        next = far_owned_block_next(s, b);
        bool unlisted = has_unlisted_slab(b, view);
        if (b->session_owned > 0 || (which == FAR_RELEASE_WITH_ROOM && !has_room(b)) ||
            (which != FAR_RELEASE_AT_CLOSE && unlisted))
            continue;
        /* The slab of an unlisted index may leak, because the handle that dropped the index may have examined the
         * orphans already. If this handle has missed a sweep phase, the block may contain leaked objects even if its
         * stamp is new, because a collection that only counts leaked objects renews the stamp, too. */
        g->leaks |= unlisted || s->sweep.missed_sweep;
        forget_block(s, b, g);
    }
    pthread_mutex_unlock(&s->lock);
    far_store_visit(s, &(far_visit){.in_magazine = take_released_from_magazine, .ctx = g});
}


/* Turns the blocks of the batch into orphans, after their free objects were returned. The handle may have observed a
 * collection without sweeping one of these blocks for it. The block then misses the sweep phase of that collection, so
 * this function requests another collection. */
static int turn_into_orphans(far_task *t, const release_batch *g) {
    far_store *s = far_store_of(t);
    const far_block_state mine = far_own_block_state(t), orphan = {.kind = FAR_BLOCK_ORPHAN, .used = true};
    uint64_t words[RELEASED_MAX][2], old[RELEASED_MAX];
    bool is_void = g->leaks;
    const uint32_t sweep = s->handshake.collection;
    for (unsigned i = 0; i < g->count; i++) {
        words[i][0] = far_stamp_pack(far_geometry_of(t), g->blocks[i].id, sweep);
        words[i][1] = g->blocks[i].hint;
        is_void |= g->blocks[i].stamp != sweep;
        far_write(t, far_block_stamp(far_geometry_of(t), g->blocks[i].id), words[i], sizeof(words[i]));
        far_cas(t, far_block_entry(far_geometry_of(t), g->blocks[i].id), far_block_pack(&mine), far_block_pack(&orphan),
                &old[i]);
    }
    int err = far_wait(t);
    for (unsigned i = 0; i < g->count && err == 0; i++)
        if (old[i] != far_block_pack(&mine))
            err = far_fail(FAR_ERR_CORRUPT,
                           "block %u of node %u: its entry does not name this client as the owner any more",
                           g->blocks[i].id.index, g->blocks[i].id.node);
    if (err == 0 && is_void)
        err = far_collection_request(t);
    return err;
}


/* Releases own blocks. First magazines are emptied and slabs that are entirely free are released, because both increase
 * the free space of the blocks. */
int far_blocks_release(far_task *t, far_release_scope which) {
    far_store *s = far_store_of(t);
    assert(s->block_task == t && t->pin.epoch != 0);
    far_magazines_empty(s);
    int err = far_slabs_take_all_returned(t);
    if (err == 0)
        err = far_slabs_trim(t, true);
    for (bool more = err == 0; more && err == 0;) {
        far_scratch_mark mark = far_scratch_here(t);
        far_catalog_view view;
        release_batch g = {0};
        err = far_catalog_read(t, &view);
        if (err == 0)
            choose_blocks(s, which, &view, &g);
        far_scratch_back(t, mark);
        more = g.count > 0;
        if (err == 0 && more)
            err = far_free_bits_add(t, g.objects, g.object_count);
        if (err == 0 && more)
            err = turn_into_orphans(t, &g);
        free(g.objects);
    }
    return err;
}


/* ---- Recovery after a lost session ---- */

/* Adds a block to the store that this handle owns according to its entry but that the store does not describe, because
 * the session that took the block was lost, or had no local memory to record it. The block was not swept for the last
 * collection, so another collection is requested. */
static int recover_unknown_block(far_task *t, void *ctx, far_block_id id, const uint64_t *entry) {
    far_store *s = ctx;
    const far_session *own = far_task_pool(t)->team.own;
    far_addr base = far_block_base(far_geometry_of(t), id);
    far_block_state state = far_block_unpack(entry[0]);
    if (state.kind != FAR_BLOCK_OWNED || state.id != own->id || state.generation != own->generation)
        return 0;
    pthread_mutex_lock(&s->lock);
    bool known = far_owned_block_at(s, base) != NULL;
    pthread_mutex_unlock(&s->lock);
    if (known)
        return 0;
    int err = load_adopted_block(t, id, s->handshake.collection);
    if (err > 0)
        far_memory_note_leak(s->pool);
    return err < 0 ? err : 0;
}


int far_blocks_recover_unknown(far_task *t) {
    far_store *s = far_store_of(t);
    atomic_store_explicit(&s->search.recovery_due, false, memory_order_relaxed);
    return schedule_recovery_without_memory(t, far_blocks_each(t, recover_unknown_block, s));
}
