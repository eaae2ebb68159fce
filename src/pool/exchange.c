/* Blocks that change hands: taking free ones, adopting orphans, giving blocks up. Tasks come in here one at a time per
 * handle (far_store_enter) and with a pin. */
#include "base/error.h"
#include "base/grow.h"
#include "pool/catalog_layout.h"
#include "pool/request.h"
#include "pool/store.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW_ENTRIES 1024u /* of the table of blocks, read at once */
#define TAKE_ROUNDS    16u   /* lost races in one window, before it goes on with the next */
#define TAKE_MAX       8u    /* free blocks taken at once */
#define BIT_VERBS      256u  /* FAAs at once */
#define ROOM_SHARE     16u /* a block is given up when a 1/ROOM_SHARE of it is free; if that did not help, with any room */
#define GIVE_UP_BLOCKS 32u /* at once */

#define HINT_PAGES 1ull /* the orphan has free pages */


/* The bit of a class in the hint of an orphan. */
static uint64_t hint_of(uint32_t uid, unsigned type, uint64_t size) {
    uint64_t hash = (uid * 0x9e3779b97f4a7c15ull + type * 0xff51afd7ed558ccdull + size) * 0xc4ceb9fe1a85ec53ull;
    return 2ull << (hash >> 32) % 63;
}


/* ---- Bringing objects home ---- */

static int by_address(const void *a, const void *b) {
    far_addr x = ((const far_leaving *)a)->addr, y = ((const far_leaving *)b)->addr;
    return (x > y) - (x < y);
}


int far_bits_add(far_task *t, far_leaving *objects, size_t count) {
    const far_geometry *g = far_geometry_of(t);
    const uint64_t span = FAR_GRANULE * FAR_WORD_GRANULES; /* what a bitmap word covers */
    unsigned verbs = 0;
    int err = 0;
    if (count > 0)
        qsort(objects, count, sizeof(*objects), by_address);
    for (size_t i = 0; i < count && err == 0;) {
        far_block_id id;
        far_addr addr = objects[i].addr;
        if (!far_block_of(g, addr, &id))
            return far_fail(FAR_ERR_CORRUPT, "%#llx lies in no block", (unsigned long long)addr);
        uint64_t inner = far_block_inner(g, addr), bits = 0;
        far_addr word = addr - inner % span;
        for (; i < count && objects[i].addr - word < span; i++)
            bits |= 1ull << (objects[i].addr - word) / FAR_GRANULE;
        far_faa(t, far_block_bitmap(g, id) + inner / span * 8, bits, NULL);
        if (++verbs % BIT_VERBS == 0)
            err = far_wait(t);
    }
    int last = verbs % BIT_VERBS == 0 ? 0 : far_wait(t);
    return err < 0 ? err : last;
}


/* ---- Adopting ---- */

/* A block that this handle holds, though its entry said that it is nobody's: damage. The swap has put the entry right,
 * and what the handle knows of the block stays. */
static int is_held(far_task *t, far_block_id id) {
    const far_store *s = far_store_of(t);
    if (!far_is_own(s, far_block_base(far_geometry_of(t), id)))
        return 0;
    return far_fail(FAR_ERR_CORRUPT, "block %u of node %u: its entry did not say that this client has it", id.index,
                    id.node);
}


/* The block is ours. What is free in it and not home is settled before anything of it is handed out. Of objects in it that
 * this handle has in hand, those that are retired are black: unlinked before a sweep's end perhaps, and so not marked, and
 * no answer waits for them any more. What is in lists of foreign objects was unlinked after the walk, or will be home when
 * the sweep is done. */
static int move_in(far_task *t, far_block_id id, uint32_t stamp) {
    far_store *s = far_store_of(t);
    uint64_t pages[FAR_BLOCK_PAGES];
    int err = is_held(t, id);
    if (err == 0)
        err = far_pages_read(t, id, pages); /* now: until the swap somebody else may have had it */
    if (err < 0)
        return err;
    pthread_mutex_lock(&s->lock);
    far_held *b = far_held_add(s, id, true, stamp);
    bool loaded = b && far_held_load(s, b, pages);
    if (b && !loaded)
        far_held_remove(s, b);    /* slabs that it does not know of must not look like free pages */
    s->catalog_seen = UINT64_MAX; /* its slabs are to be compared with the catalog */
    pthread_mutex_unlock(&s->lock);
    if (!loaded)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for an adopted block");
    far_store_visit(s, &(far_visit){.retired = far_retired_blacken});
    err = far_settle_block(t, b);
    return err < 0 ? err : 1;
}


/* A block is ours, but this process had no memory to note it: housekeeping does (far_blocks_recount). */
static int take_in_later(far_task *t, int result) {
    if (result == FAR_ERR_NO_MEMORY)
        atomic_store_explicit(&far_store_of(t)->recount, true, memory_order_relaxed);
    return result;
}


/* The sweep that the stamp of a block tells. One that damage made tells none: then the newest that the last owner may have
 * heard of, one more than this handle has. What is lost in the block waits for a sweep after that. */
static uint32_t stamped_sweep(far_task *t, far_block_id id, uint64_t stamp) {
    bool sound = far_stamp_is_sound(far_geometry_of(t), id, stamp);
    return sound ? far_stamp_sweep(stamp) : far_number_next(far_store_of(t)->sweep);
}


int far_block_adopt(far_task *t, far_block_id id, const uint64_t *entry) {
    const far_block_state mine = far_block_owned(t);
    uint64_t word = entry[0], stamp;
    assert(far_store_of(t)->inside == t && t->pin.epoch != 0);
    int done = far_block_swap(t, id, &word, &mine);
    if (done <= 0)
        return done;
    int err = far_read_word(t, far_block_stamp(far_geometry_of(t), id), &stamp);
    return take_in_later(t, err < 0 ? err : move_in(t, id, stamped_sweep(t, id, stamp)));
}


int far_orphan_adopt(far_task *t, far_block_id id, const uint64_t *entry) {
    far_store_enter(t);
    int done = far_block_adopt(t, id, entry);
    far_store_leave(t);
    return done;
}


/* ---- Getting one ---- */

static int add_taken(far_task *t, far_block_id id, bool used) {
    far_store *s = far_store_of(t);
    int err = is_held(t, id);
    if (err < 0)
        return err;
    pthread_mutex_lock(&s->lock);
    bool added = far_held_add(s, id, used, s->sweep) != NULL; /* nothing in it is older than that sweep */
    pthread_mutex_unlock(&s->lock);
    return added ? 1 : take_in_later(t, far_fail(FAR_ERR_NO_MEMORY, "no memory for a block"));
}


/* Some of the free blocks of a window become ours: those that came last of `at`, shuffled so that handles that come
 * together do not meet. 1: got some. */
static int take_these(far_task *t, far_block_id first, const uint64_t *entries, uint32_t *at, uint32_t free_count) {
    far_store *s = far_store_of(t);
    const far_block_state mine = far_block_owned(t);
    uint64_t old[TAKE_MAX];
    pthread_mutex_lock(&s->lock);
    uint32_t wanted = s->spare ? 1 : 1 + s->block_count / 8;
    pthread_mutex_unlock(&s->lock);
    wanted = wanted < TAKE_MAX ? wanted : TAKE_MAX;
    wanted = wanted < free_count ? wanted : free_count;
    for (uint32_t i = 0; i < wanted; i++) {
        uint32_t pick = i + (uint32_t)(far_task_random(t) % (free_count - i)), chosen = at[pick];
        at[pick] = at[i];
        at[i] = chosen;
        far_cas(t, far_block_entry(far_geometry_of(t), (far_block_id){first.node, first.index + chosen}),
                entries[FAR_BLOCK_ENTRY_WORDS * (size_t)chosen], far_block_pack(&mine), &old[i]);
    }
    int result = far_wait(t), err = result;
    for (uint32_t i = 0; i < wanted && err == 0; i++)
        if (old[i] == entries[FAR_BLOCK_ENTRY_WORDS * (size_t)at[i]]) {
            int added = add_taken(t, (far_block_id){first.node, first.index + at[i]}, far_block_unpack(old[i]).used);
            result = result < 0 ? result : added;
        }
    return result;
}


/* *any: there were free ones to try for. */
static int take_free(far_task *t, far_block_id first, const uint64_t *entries, uint32_t count, bool *any) {
    far_scratch_mark mark = far_scratch_here(t);
    uint32_t free_count = 0, *at = far_scratch(t, count * sizeof(*at));
    if (!at)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory to choose blocks");
    for (uint32_t i = 0; i < count; i++)
        if (far_block_is_free(entries[FAR_BLOCK_ENTRY_WORDS * (size_t)i]))
            at[free_count++] = i;
    *any = free_count > 0;
    int taken = *any ? take_these(t, first, entries, at, free_count) : 0;
    far_scratch_back(t, mark);
    return taken;
}


/* The first orphan of a window, from a random place on, that may have room for the class; count: none. */
static uint32_t find_orphan(far_task *t, const uint64_t *entries, uint32_t count, uint64_t hint) {
    uint32_t start = count == 0 ? 0 : (uint32_t)(far_task_random(t) % count);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = (start + i) % count;
        const uint64_t *entry = entries + FAR_BLOCK_ENTRY_WORDS * (size_t)at;
        if (far_block_unpack(entry[0]).kind == FAR_BLOCK_ORPHAN && entry[2] & hint)
            return at;
    }
    return count;
}


/* One window of the table. 1: got something; 0: no. *lost: somebody was faster, it is worth to look again. */
static int get_in_window(far_task *t, far_class *class, far_block_id first, uint64_t *entries, uint32_t count,
                         bool *lost) {
    *lost = false;
    int err = far_blocks_read(t, first.node, first.index, count, entries);
    if (err < 0)
        return err;
    uint32_t orphan = find_orphan(t, entries, count, hint_of(class->uid, class->type, class->size));
    if (orphan == count) {
        int taken = take_free(t, first, entries, count, lost);
        if (taken != 0 || *lost)
            return taken;
        orphan = find_orphan(t, entries, count, HINT_PAGES);
    }
    if (orphan == count)
        return 0;
    *lost = true;
    return far_block_adopt(t, (far_block_id){first.node, first.index + orphan},
                           entries + FAR_BLOCK_ENTRY_WORDS * (size_t)orphan);
}


int far_block_get(far_task *t, far_class *class, unsigned node) {
    far_store *s = far_store_of(t);
    assert(s->inside == t && t->pin.epoch != 0);
    uint32_t total = (uint32_t)far_geometry_of(t)->node[node].blocks,
             windows = (total + WINDOW_ENTRIES - 1) / WINDOW_ENTRIES, window = s->hint[node] / WINDOW_ENTRIES;
    far_scratch_mark mark = far_scratch_here(t);
    uint64_t *entries = far_scratch(t, WINDOW_ENTRIES * FAR_BLOCK_ENTRY_BYTES);
    int got = !entries ? far_fail(FAR_ERR_NO_MEMORY, "no memory to read the table of blocks") : 0;
    for (uint32_t seen = 0, rounds = 0; seen < windows && got == 0;) {
        uint32_t at = window % windows * WINDOW_ENTRIES, n = total - at < WINDOW_ENTRIES ? total - at : WINDOW_ENTRIES;
        bool lost;
        got = get_in_window(t, class, (far_block_id){node, at}, entries, n, &lost);
        s->hint[node] = at;
        if (!lost || ++rounds % TAKE_ROUNDS == 0) {
            window++;
            seen++;
        }
    }
    far_scratch_back(t, mark);
    return got;
}


/* Memory is short: orphans are adopted whatever is in them. Their slabs may have become wholly free by what came home. */
static int adopt_if_orphan(far_task *t, void *ctx, far_block_id id, const uint64_t *entry) {
    (void)ctx;
    int done = far_block_unpack(entry[0]).kind == FAR_BLOCK_ORPHAN ? far_block_adopt(t, id, entry) : 0;
    return done < 0 ? done : 0;
}


int far_orphans_adopt(far_task *t) {
    return far_blocks_each(t, adopt_if_orphan, NULL);
}


/* ---- Giving up ---- */

typedef struct giving {
    far_block_id id;
    uint32_t stamp; /* of the block when it was held */
    uint64_t hint;  /* what is free in it */
} giving;

typedef struct given {
    giving blocks[GIVE_UP_BLOCKS];
    unsigned count;
    far_leaving *objects;
    size_t object_count;
    bool lost; /* some objects are left to a sweep */
} given;


static void add_object(given *g, far_class *class, far_addr addr) {
    far_leaving *objects = far_grow(g->objects, g->object_count, sizeof(*objects));
    if (objects) {
        g->objects = objects;
        objects[g->object_count++] = (far_leaving){addr, class};
    }
    g->lost |= !objects;
}


/* With the lock. */
static uint64_t free_bytes_of(const far_store *s, const far_held *b) {
    uint64_t bytes = (uint64_t)__builtin_popcountll(b->free_pages) * s->pool->geometry.page_bytes;
    for (const far_slab *slab = far_slab_in(b, NULL); slab; slab = far_slab_in(b, slab))
        bytes += (slab->stored + (slab->objects - slab->carved)) * slab->class->size;
    return bytes;
}


/* With the lock: all that is in store in the block joins the list, the block is no longer held. Pages that are neither
 * free nor a slab's are what a session that was lost left behind (slabs.c): their words may name objects that nobody
 * here knows of, and that the sweep heard of last did not settle. */
static void take_out(far_store *s, far_held *b, given *g) {
    assert(b->kept == 0 && g->count < GIVE_UP_BLOCKS);
    giving *out = &g->blocks[g->count++];
    uint64_t known = b->free_pages;
    *out = (giving){.id = b->id, .stamp = b->stamp, .hint = b->free_pages != 0 ? HINT_PAGES : 0};
    for (const far_slab *slab = far_slab_in(b, NULL); slab; slab = far_slab_in(b, slab)) {
        const far_class *c = slab->class;
        known |= far_page_mask(slab->page, slab->pages);
        if (slab->stored > 0 || slab->carved < slab->objects)
            out->hint |= hint_of(c->uid, c->type, c->size);
        for (uint32_t n = 0; n < slab->objects; n++)
            if (n >= slab->carved || slab->in_store[n / 64] >> n % 64 & 1)
                add_object(g, slab->class, far_slab_base(s, slab) + n * c->size);
    }
    g->lost |= known != UINT64_MAX;
    far_held_remove(s, b);
}


static bool is_given(const far_store *s, const given *g, far_addr addr) {
    far_block_id id;
    if (!far_block_of(&s->pool->geometry, addr, &id))
        return false;
    for (unsigned i = 0; i < g->count; i++)
        if (g->blocks[i].id.node == id.node && g->blocks[i].id.index == id.index)
            return true;
    return false;
}


/* A session's magazine holds an object of a block that is given up. */
static bool take_from_magazine(far_store *s, far_class *class, uint64_t item, void *ctx) {
    given *g = ctx;
    if (!is_given(s, g, far_item_addr(item)))
        return true;
    add_object(g, class, far_item_addr(item));
    return false;
}


/* A slab of it belongs to an index that was dropped, or is just being created. */
static bool holds_unlisted(const far_held *b, const far_catalog_view *view) {
    for (const far_slab *slab = far_slab_in(b, NULL); slab; slab = far_slab_in(b, slab))
        if (slab->class->uid != 0 && !far_catalog_find_uid(view, slab->class->uid))
            return true;
    return false;
}


static bool spare_its_block(far_store *s, far_class *class, uint64_t item, void *ctx) {
    (void)class, (void)ctx;
    far_held *b = far_held_at(s, far_item_addr(item));
    if (b)
        b->spared = true;
    return true;
}


/* Notes in which blocks sessions hold back an object for updates; or, not any, that none is to be spared. A session that
 * swaps its object between this and the choice may lose the new one with its block: its next update looks for memory like
 * one of a session that has none. */
static void note_spared(far_store *s, bool any) {
    pthread_mutex_lock(&s->lock);
    for (far_held *b = far_held_next(s, NULL); b; b = far_held_next(s, b))
        b->spared = false;
    pthread_mutex_unlock(&s->lock);
    if (any)
        far_store_visit(s, &(far_visit){.held_back = spare_its_block});
}


/* Chooses the blocks to be given up. The pin is held from the look at the catalog until they are orphans: whoever drops an index later
 * looks at orphans after our pin has ended, and finds them. What is not listed now we free ourselves (unlisted.c), or,
 * at the end, a sweep does. */
static void choose(far_store *s, far_give_up which, const far_catalog_view *view, given *g) {
    pthread_mutex_lock(&s->lock);
    const uint64_t room = s->all_spare ? 1 : s->pool->geometry.block_bytes / ROOM_SHARE;
    for (far_held *b = far_held_next(s, NULL), *next; b && g->count < GIVE_UP_BLOCKS; b = next) {
        next = far_held_next(s, b);
        bool unlisted = holds_unlisted(b, view);
        if (b->kept > 0 || b->spared || (which == FAR_GIVE_UP_ROOMY && free_bytes_of(s, b) < room) ||
            (which != FAR_GIVE_UP_AT_END && unlisted))
            continue;
        g->lost |= unlisted; /* whoever dropped it may have looked at the orphans already */
        take_out(s, b, g);
    }
    pthread_mutex_unlock(&s->lock);
    far_store_visit(s, &(far_visit){.in_magazine = take_from_magazine, .ctx = g});
}


/* The objects of the blocks are home: the blocks become orphans. A sweep that this handle heard of and did not settle is
 * never settled in them: another one is wanted. */
static int make_orphans(far_task *t, const given *g) {
    far_store *s = far_store_of(t);
    const far_block_state mine = far_block_owned(t), orphan = {.kind = FAR_BLOCK_ORPHAN, .used = true};
    uint64_t words[GIVE_UP_BLOCKS][2], old[GIVE_UP_BLOCKS];
    bool is_void = g->lost;
    const uint32_t sweep = s->sweep;
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
            err = far_fail(FAR_ERR_CORRUPT, "block %u of node %u was taken away", g->blocks[i].id.index,
                           g->blocks[i].id.node);
    if (err == 0 && is_void)
        err = far_want_sweep(t);
    return err;
}


/* The request that asks for blocks with room is one that an operation of this handle made, or waits for. */
static bool asks_itself(far_store *s) {
    pthread_mutex_lock(&s->lock);
    bool own = s->spare && s->spare_number == s->heard;
    pthread_mutex_unlock(&s->lock);
    return own;
}


/* What magazines hold is room too, and what is wholly free goes back as such. Other handles get also what sessions hold back
 * for updates: whoever needs it again asks in the same way. But an insert of this handle must not get by a request what it
 * leaves in the magazines when it gathers memory (alloc.c). */
int far_blocks_orphan(far_task *t, far_give_up which) {
    far_store *s = far_store_of(t);
    assert(s->inside == t && t->pin.epoch != 0);
    bool spares = which == FAR_GIVE_UP_ROOMY && asks_itself(s);
    if (spares)
        far_magazines_trim(s, NULL);
    else
        far_magazines_empty(s);
    int err = far_slabs_look_at_all(t);
    if (err == 0)
        err = far_slabs_trim(t, true);
    for (bool more = err == 0; more && err == 0;) {
        far_scratch_mark mark = far_scratch_here(t);
        far_catalog_view view;
        given g = {0};
        err = far_catalog_look(t, &view);
        note_spared(s, spares);
        if (err == 0)
            choose(s, which, &view, &g);
        far_scratch_back(t, mark);
        more = g.count > 0;
        if (err == 0 && more)
            err = far_bits_add(t, g.objects, g.object_count);
        if (err == 0 && more)
            err = make_orphans(t, &g);
        free(g.objects);
    }
    return err;
}


/* ---- Runs, and what a lost session left ---- */

int far_store_free_run(far_task *t, far_block_id head, uint64_t word) {
    far_store *s = far_store_of(t);
    far_addr base = far_block_base(far_geometry_of(t), head);
    pthread_mutex_lock(&s->lock);
    bool noted = far_items_add(&s->wiping, base);
    pthread_mutex_unlock(&s->lock);
    if (!noted)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory to free a run of blocks");
    int done = far_run_free(t, head, word);
    if (done < 0) /* the run may be half freed: when the session is known to be fenced, others of the handle go on */
        atomic_store_explicit(&s->recount, true, memory_order_relaxed);
    pthread_mutex_lock(&s->lock);
    for (uint32_t i = 0; i < s->wiping.count; i++)
        if (s->wiping.items[i] == base) {
            s->wiping.items[i] = s->wiping.items[--s->wiping.count];
            break;
        }
    pthread_mutex_unlock(&s->lock);
    return done;
}


static bool is_being_wiped(far_store *s, far_addr base) {
    bool wiped = false;
    for (uint32_t i = 0; i < s->wiping.count; i++)
        wiped |= s->wiping.items[i] == base;
    return wiped;
}


/* A block that is ours and that this handle does not know: a lost session took it, or one that had no memory to
 * note it. Nothing in it was looked at for the sweep that was heard of last, so the next sweep settles it: it is
 * asked for. */
static int take_in(far_task *t, void *ctx, far_block_id id, const uint64_t *entry) {
    far_store *s = ctx;
    const far_session *own = far_task_pool(t)->team.own;
    far_addr base = far_block_base(far_geometry_of(t), id);
    far_block_state state = far_block_unpack(entry[0]);
    uint64_t word = entry[0];
    if ((state.kind != FAR_BLOCK_OWNED && state.kind != FAR_BLOCK_WIPING) || state.id != own->id ||
        state.generation != own->generation)
        return 0;
    pthread_mutex_lock(&s->lock);
    bool known = far_held_at(s, base) || is_being_wiped(s, base);
    pthread_mutex_unlock(&s->lock);
    if (known)
        return 0;
    int err = state.kind == FAR_BLOCK_WIPING ? far_run_finish(t, id, word) : far_run_undo(t, id, state.length);
    if (err == 0 && state.length > 0) {
        far_block_state mine = far_block_owned(t);
        err = far_block_swap(t, id, &word, &mine);
    }
    if (err >= 0 && state.kind == FAR_BLOCK_OWNED)
        err = move_in(t, id, s->sweep);
    if (err > 0)
        atomic_store_explicit(&s->wants_sweep, true, memory_order_relaxed);
    return err < 0 ? err : 0;
}


int far_blocks_recount(far_task *t) {
    far_store *s = far_store_of(t);
    return take_in_later(t, far_blocks_each(t, take_in, s));
}
