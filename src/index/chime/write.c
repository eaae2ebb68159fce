/* insert, update, put and delete: lock the leaf, READ what the change needs, WRITE it with the unlock behind it. Three
 * round trips; two where an atomic takes effect before the READs that are posted behind it. */
#include "base/error.h"
#include "index/chime/chime.h"
#include "pool/epoch.h"
#include "task/latch.h"

#include <stdlib.h>

#define ASK_EVERY     4
#define CROWD_TURNS   4 /* of a lock inside of a compute node: then a leaf counts as crowded, as after a failed attempt */
#define CROWD_SHARE   5  /* ... if one in so many of its slots is occupied ... */
#define CROWD_LEVEL   1  /* ... and the root is no higher than that */
#define HANDOVERS_MAX 32 /* of a lock inside of a compute node, in a row */

typedef enum { BY_WAY, BY_SIBLING, BY_AUX } arrival; /* what led to a leaf: BY_AUX, the one that it took in */

typedef struct change {
    far_op_kind how;
    far_bytes value;
    uint64_t words[CHIME_VALUE_WORDS]; /* the value as the slot will have it; or its block, without the distance */
    unsigned class;
    uint8_t *image;    /* of the block */
    bool locked;       /* the leaf's lock is held, and nothing was changed */
    unsigned attempts; /* at locks that others hold */
    unsigned turns;    /* in which the lock was handed over, up to us */
    unsigned known;    /* slots from home on that were READ under the lock; 0: none; all: the whole node was */
    uint64_t *view;    /* memory for what is known of the whole leaf, from who had the lock before; NULL: none */
} change;


/* Blocks. */

static bool needs_block(const chime_op *op, const change *c) {
    return !op->st->fixed && c->how != FAR_OP_DELETE;
}


static int build_block(chime_op *op, change *c) {
    far_bytes key = op->key.bytes;
    if (!needs_block(op, c))
        return 0;
    far_rdwc_seal(op->t, &c->value);
    uint64_t bytes = CHIME_BLOCK_HEAD + key.length + c->value.length,
             head = chime_block_head(key.length, c->value.length);
    c->class = chime_class_for(bytes);
    if (!(c->image = far_scratch(op->t, chime_class_bytes(c->class))))
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a block");
    memset(c->image + bytes / 8 * 8, 0, (bytes + 7) / 8 * 8 - bytes / 8 * 8);
    memcpy(c->image, &head, 8);
    memcpy(c->image + CHIME_BLOCK_HEAD, key.data, key.length);
    if (c->value.length)
        memcpy(c->image + CHIME_BLOCK_HEAD + key.length, c->value.data, c->value.length);
    return 0;
}


/* Puts the WRITE of the block, once: it completes with the batch that takes the lock, before any slot names it. */
static int put_block(chime_op *op, change *c, chime_ptr leaf) {
    far_object object;
    if (!needs_block(op, c) || op->block)
        return 0;
    int err = far_alloc(op->t, op->index, CHIME_TYPE_BLOCK, chime_class_bytes(c->class),
                        far_addr_node(chime_ptr_addr(leaf)), 0, &object);
    if (err < 0)
        return err;
    op->block = object.addr;
    op->block_bytes = chime_class_bytes(c->class);
    c->words[0] = chime_value_word(op->block, c->class, 0, (unsigned)op->key.hash & 1023);
    uint64_t bytes = (CHIME_BLOCK_HEAD + op->key.bytes.length + c->value.length + 7) / 8 * 8;
    far_write(op->t, op->block, c->image, bytes);
    return 0;
}


static void retire_block(chime_op *op, uint64_t word) {
    if (!op->st->fixed)
        far_retire(op->t, op->index, CHIME_TYPE_BLOCK, chime_value_block(word),
                   chime_class_bytes(chime_value_class(word)));
}


/* Handing the lock over. Whoever waits for the latch is named in the word that would have freed the lock: of tasks of
 * one compute node only the first asks for it in far memory. It READs the whole leaf, and hands on what it knows too, so
 * that the others need only their WRITEs. After some turns the lock is free again, for other compute nodes. */

enum {
    GIFT_LOCK,
    GIFT_MAP,
    GIFT_TURNS,
    GIFT_BEFORE, /* the giver's word, if its WRITE failed: it may have been done */
    GIFT_VIEW,   /* memory that holds the whole leaf as it is now, for the heir to free; 0: none */
};

static far_task *next_in_turn(const chime_op *op, const change *c, chime_ptr leaf) {
    return c->turns < HANDOVERS_MAX && op->st->handover ? far_latch_next(op->t, chime_ptr_addr(leaf)) : NULL;
}


/* How many will have the lock in turn after the task that holds the latch. */
static unsigned behind(const chime_op *op, const change *c, chime_ptr leaf) {
    return op->st->handover ? far_latch_waiting(op->t, chime_ptr_addr(leaf), HANDOVERS_MAX - c->turns) : 0;
}


/* A task that waits with a pivot, because the way it knows leads to an inner node that lay here once, is no heir: it would
 * not know that it has the lock of a leaf. */
static void choose_heir(chime_op *op, const change *c, chime_ptr leaf) {
    far_task *heir = next_in_turn(op, c, leaf);
    if (heir && chime_waits_with_pivot(op, heir))
        heir = NULL;
    op->heir = heir ? chime_lock_make(far_owner_of_task(heir), chime_next_nonce(op), behind(op, c, leaf) - 1) : 0;
}


/* Under the lock. */

static bool inserts(const change *c) {
    return c->how == FAR_OP_INSERT || c->how == FAR_OP_PUT;
}


/* Slots that are READ for the change, from home on. */
static unsigned slots_needed(const chime_op *op, const change *c, chime_ptr leaf, const chime_lock *lock) {
    const chime_state *st = op->st;
    if (!st->hopscotch || (inserts(c) && !st->vacancy) || next_in_turn(op, c, leaf))
        return st->span;
    unsigned reach = inserts(c) ? chime_reach(st, lock->map, op->home) : st->hop;
    if (reach == 0)
        return st->span;
    return reach > st->hop ? reach : st->hop;
}


/* So many slots from home on, and of an insert the rest of their groups, which tells whether these are full now. */
static void put_read_groups(chime_op *op, const change *c, chime_node *n, unsigned slots) {
    const chime_state *st = op->st;
    unsigned group = inserts(c) ? st->group : 1, before = op->home % group, last = chime_step(st, op->home, slots - 1),
             end = (last / group + 1) * group, behind = (end < st->span ? end : st->span) - 1 - last,
             count = before + slots + behind;
    chime_put_read_slots(op, n, op->home - before, count < st->span ? count : st->span);
}


static void put_reads(chime_op *op, const change *c, chime_node *n, unsigned slots) {
    if (slots == op->st->span) {
        chime_put_read_whole(op, n);
        return;
    }
    put_read_groups(op, c, n, slots);
    chime_put_read_tail(op, n);
}


static int check_node(chime_op *op, chime_node *n, chime_ptr *leaf) {
    const chime_state *st = op->st;
    const uint64_t *tail = chime_tail(st, n->w);
    unsigned tag = chime_ptr_tag(n->ptr);
    if (chime_h0_tag(tail[CHIME_TAIL_H0]) != tag || !chime_h0_valid(tail[CHIME_TAIL_H0])) {
        op->aux = chime_h0_tag(tail[CHIME_TAIL_H0]) == tag ? tail[CHIME_TAIL_AUX] : 0;
        return CHIME_STALE;
    }
    int err = chime_check_range(op, tail);
    if (err == CHIME_RIGHT)
        *leaf = chime_h1_sibling(tail[CHIME_TAIL_H1]);
    for (unsigned i = 0; err == 0 && i < st->hop && (st->wrap || op->home + i < st->span); i++)
        if (!chime_line_is(st, n->w, chime_line(st, chime_step(st, op->home, i)), tag))
            return chime_broken(op->index, n->ptr, "a line of it is not valid");
    return err;
}


static void take_inline_value(chime_op *op, change *c) {
    far_rdwc_seal(op->t, &c->value);
    memcpy(c->words, c->value.data, op->st->value_bytes);
}


static int update_item(chime_op *op, change *c, chime_node *n, const chime_lock *lock, unsigned slot) {
    const chime_state *st = op->st;
    uint64_t *words = chime_slot(st, n->w, slot) + 1, old = *words, *lock_word = far_scratch(op->t, 8);
    if (!lock_word)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for an operation");
    if (st->fixed)
        take_inline_value(op, c);
    else
        c->words[0] = chime_value_with_distance(c->words[0], chime_distance(st, op->home, slot));
    memcpy(words, c->words, st->value_words * 8);
    far_point(op->t, "chime:update");
    choose_heir(op, c, n->ptr);
    op->heir_map = lock->map;
    *lock_word = op->heir ? op->heir : lock->old;
    far_write(op->t, chime_ptr_addr(n->ptr) + chime_slot_at(st->per_line, slot) + 8, words, st->value_words * 8);
    far_write(op->t, chime_tail_addr(st, n->ptr, CHIME_TAIL_L), lock_word, 8);
    c->locked = false;
    op->block = 0;
    int err = chime_wait(op);
    if (err >= 0)
        retire_block(op, old);
    return err;
}


/* A map of groups does not tell how many items there are: then no group is full, and none of those seen is left. */
static bool is_sparse(const chime_op *op, chime_node *n, uint64_t map) {
    const chime_state *st = op->st;
    if (st->group > 1) {
        bool any = map != 0 || st->merge == CHIME_MERGE_OFF;
        for (unsigned i = 0; i < st->hop && !any && (st->wrap || op->home + i < st->span); i++)
            any = chime_is_occupied(st, n->w, chime_step(st, op->home, i));
        return !any;
    }
    return st->merge == CHIME_MERGE_SPARSE ? (unsigned)__builtin_popcountll(map) * 5 < st->span
                                           : st->merge == CHIME_MERGE_EMPTY && map == 0;
}


static int remove_item(chime_op *op, change *c, chime_node *n, const chime_lock *lock, unsigned slot) {
    const chime_state *st = op->st;
    uint64_t old = chime_slot(st, n->w, slot)[1], map = lock->map & ~(1ull << slot / st->group),
             *before = chime_new_image(op);
    if (!before)
        return FAR_ERR_NO_MEMORY;
    memcpy(before, n->w, st->node_bytes);
    chime_clear(st, n->w, slot, op->home);
    far_point(op->t, "chime:remove");
    choose_heir(op, c, n->ptr);
    int err = chime_put_busy(op, n->ptr);
    if (err < 0)
        return err;
    chime_put_lines(op, n, before, chime_line(st, op->home));
    if ((err = chime_put_unlock(op, n->ptr, map)) < 0) {
        far_forget(op->t);
        return err;
    }
    c->locked = false;
    if ((err = chime_wait(op)) < 0)
        return err;
    retire_block(op, old);
    return is_sparse(op, n, map) ? chime_merge_later(op, 0) : 0;
}


static int commit_insert(chime_op *op, change *c, chime_node *n, const chime_lock *lock, const uint64_t *before,
                         const chime_move *moves, unsigned hops, unsigned at) {
    const chime_state *st = op->st;
    unsigned filled = hops ? moves[0].to : at;
    choose_heir(op, c, n->ptr);
    int err = chime_put_busy(op, n->ptr);
    if (err >= 0 && st->words)
        err = chime_put_moves(op, n, before, moves, hops, at);
    else if (err >= 0)
        chime_put_lines(op, n, before, chime_line(st, op->home));
    if (err >= 0)
        err = chime_put_unlock(op, n->ptr, chime_map_with(st, lock->map, n->w, filled));
    if (err < 0) {
        far_forget(op->t);
        return err;
    }
    c->locked = false;
    op->block = 0;
    if (hops)
        atomic_fetch_add_explicit(&op->st->counts.hops, 1, memory_order_relaxed);
    return chime_wait(op);
}


static int split(chime_op *op, change *c, chime_node *n, bool early) {
    int err = 0;
    if (c->known < op->st->span) {
        chime_put_read_whole(op, n);
        if ((err = chime_wait(op)) < 0)
            return err;
    }
    if (!chime_is_whole(op->st, n->w, chime_ptr_tag(n->ptr)))
        return chime_broken(op->index, n->ptr, "its lines do not belong together");
    err = chime_split_leaf(op, n, c->words, early);
    if (err == 0) {
        c->locked = false;
        op->block = 0;
    }
    return err;
}


/* Many wait for this leaf, and the tree has few: it is split before it is full, so that a load from empty soon has
 * leaves for all its clients. A tree that has grown beyond that pays for no half empty leaves. */
static bool is_crowded(const chime_op *op, const change *c, const chime_lock *lock) {
    uint64_t root = atomic_load_explicit(&op->st->root, memory_order_relaxed);
    return op->st->crowd && root && (c->attempts || c->turns >= CROWD_TURNS) && chime_ptr_low(root) <= CROWD_LEVEL &&
           (unsigned)__builtin_popcountll(lock->map) * op->st->group * CROWD_SHARE >= op->st->span;
}


/* The neighbourhood is full: the first slot that is free beyond it. *free -1: there is none. */
static int look_further(chime_op *op, change *c, chime_node *n, const chime_lock *lock, int *free) {
    const chime_state *st = op->st;
    unsigned reach = chime_reach(st, lock->map, op->home), slots = reach ? reach : st->group > 1 ? st->span : 0;
    if (slots > c->known) {
        put_read_groups(op, c, n, slots);
        int err = chime_wait(op);
        if (err < 0)
            return err;
    }
    *free = chime_free_among(st, n->w, op->home, slots);
    return reach && *free < 0 ? chime_broken(op->index, n->ptr, "its map names a slot free that is not") : 0;
}


static int insert_item(chime_op *op, change *c, chime_node *n, const chime_lock *lock) {
    const chime_state *st = op->st;
    chime_move moves[CHIME_SPAN_MAX];
    unsigned at;
    int err, free = chime_free_near(st, n->w, op->home);
    if (st->fixed)
        take_inline_value(op, c);
    if (free < 0 && (err = look_further(op, c, n, lock, &free)) < 0)
        return err;
    uint64_t *before = free < 0 ? NULL : chime_new_image(op);
    if (free < 0)
        return split(op, c, n, false);
    if (!before)
        return FAR_ERR_NO_MEMORY;
    if (is_crowded(op, c, lock))
        return split(op, c, n, true);
    memcpy(before, n->w, st->node_bytes);
    int hops = chime_hop(st, n->w, op->home, (unsigned)free, moves, &at);
    if (hops < 0) {
        memcpy(n->w, before, st->node_bytes); /* without the hops that led nowhere */
        return split(op, c, n, false);
    }
    chime_place(st, n->w, at, op->home, op->key.first, c->words);
    far_point(op->t, hops ? "chime:hop" : "chime:insert");
    return commit_insert(op, c, n, lock, before, moves, (unsigned)hops, at);
}


static int locked(chime_op *op, change *c, chime_node *n, chime_lock *lock, chime_ptr *leaf) {
    const chime_state *st = op->st;
    chime_block block;
    int err, slot;
    if (!c->known) {
        c->known = slots_needed(op, c, n->ptr, lock);
        put_reads(op, c, n, c->known);
        if ((err = chime_wait(op)) < 0)
            return err;
    } else if (c->view && op->block && (err = chime_wait(op)) < 0) /* its block is there before a slot names it */
        return err;
    if ((err = check_node(op, n, leaf)) != 0 || (err = chime_find_item(op, n, &slot, st->exact ? NULL : &block)) < 0)
        return err;
    far_note_added(op->t, slot < 0);
    if (slot >= 0 && c->how == FAR_OP_INSERT)
        return FAR_ERR_EXISTS;
    if (slot < 0 && !inserts(c))
        return FAR_ERR_NOT_FOUND;
    if (slot < 0)
        return insert_item(op, c, n, lock);
    return c->how == FAR_OP_DELETE ? remove_item(op, c, n, lock, (unsigned)slot)
                                   : update_item(op, c, n, lock, (unsigned)slot);
}


static bool is_lost(int err) {
    return err == FAR_ERR_FENCED || err == FAR_ERR_UNREACHABLE;
}


/* The node is gone: who took it in? */
static int look_for_heir(chime_op *op, chime_node *n) {
    const uint64_t *tail = chime_tail(op->st, n->w);
    chime_put_read_tail(op, n);
    int err = chime_wait(op);
    op->aux = err >= 0 && chime_h0_tag(tail[CHIME_TAIL_H0]) == chime_ptr_tag(n->ptr) ? tail[CHIME_TAIL_AUX] : 0;
    return err < 0 ? err : CHIME_STALE;
}


/* The holder of a lock needs some round trips more, and they take longer where much is going on: asking again before that
 * would only add to it. As a power of two times the round trip of a network at rest. */
static unsigned slowness(const chime_op *op) {
    uint64_t took = atomic_load_explicit(&op->st->lock_ns, memory_order_relaxed), rtt = far_rtt(op->t);
    unsigned bits = 0;
    while (bits < 6 && (rtt << bits) * 3 / 2 < took)
        bits++;
    return bits;
}


/* When to ask again, in round trips: the lock word tells how many it will be handed on to, one for each. The holder itself
 * needs about two more; an insert asks later, and later from time to time, because it may split what it has locked, and
 * because those behind it then need one round trip each instead of three. An update is short, and whoever sleeps longer
 * than others loses the lock to them again and again. */
static uint64_t turns_to_wait(const change *c, unsigned attempt, uint64_t lock) {
    unsigned more = inserts(c) ? 3 + 2 * (attempt < 4 ? attempt : 4) : 1 + (attempt > 0);
    return chime_lock_behind(lock) + more;
}


/* Somebody holds the lock. CHIME_AGAIN: it is worth another attempt; CHIME_STALE: the node is going. */
static int held(chime_op *op, change *c, chime_ptr leaf, uint64_t lock) {
    unsigned attempt = c->attempts++;
    int err = 0;
    far_count_lock_retry(op->t);
    if (attempt % ASK_EVERY == ASK_EVERY - 1 && (err = chime_resolve(op, leaf, lock)) != 0)
        return err < 0 ? err : err == 2 ? CHIME_STALE : CHIME_AGAIN;
    far_back_off_for(op->t, turns_to_wait(c, attempt % op->st->patience, lock) * (far_rtt(op->t) << slowness(op)));
    return CHIME_AGAIN;
}


/* {lock}, with what may be READ in the same batch. */
static int lock_leaf(chime_op *op, change *c, chime_node *n, chime_lock *lock) {
    chime_put_lock(op, n->ptr, behind(op, c, n->ptr), lock);
    c->known = 0;
    if (op->st->fused) {
        c->known = op->st->hopscotch && !next_in_turn(op, c, n->ptr) ? op->st->hop : op->st->span;
        put_reads(op, c, n, c->known);
    }
    int err = chime_wait(op);
    return err < 0 ? err : chime_lock_result(op, lock);
}


/* The latch is kept while others hold the lock: of this compute node one task asks for it, the others wait without
 * verbs. After so many attempts it is somebody else's turn. */
static int lock_in_turn(chime_op *op, change *c, chime_node *n, chime_lock *lock) {
    int err = lock_leaf(op, c, n, lock);
    while (err == CHIME_AGAIN && (err = held(op, c, n->ptr, lock->old)) == CHIME_AGAIN &&
           c->attempts % op->st->patience != 0) {
        uint64_t start = far_now(op->t);
        err = lock_leaf(op, c, n, lock);
        atomic_store_explicit(&op->st->lock_ns, far_now(op->t) - start, memory_order_relaxed);
    }
    return err;
}


/* What is known of the leaf, in memory that goes from one to the next. */
static uint64_t *view_for_heir(chime_op *op, change *c, const chime_node *n) {
    uint64_t *view = c->view;
    c->view = NULL;
    if (c->known == op->st->span && (view || (view = malloc(op->st->node_bytes))))
        return memcpy(view, n->w, op->st->node_bytes);
    free(view);
    return NULL;
}


static void leave(chime_op *op, change *c, const chime_node *n, const chime_lock *lock, int err) {
    uint64_t gift[FAR_GIFT_WORDS] = {[GIFT_LOCK] = op->heir, [GIFT_MAP] = op->heir_map, [GIFT_TURNS] = c->turns + 1};
    if (op->heir && is_lost(err))
        gift[GIFT_BEFORE] = lock->mine;
    else if (op->heir)
        gift[GIFT_VIEW] = (uintptr_t)view_for_heir(op, c, n);
    if (op->heir)
        far_unlatch_gift(op->t, chime_ptr_addr(n->ptr), gift);
    else
        far_unlatch(op->t, chime_ptr_addr(n->ptr));
    free(c->view);
    c->view = NULL;
    op->heir = 0;
}


static void inherit(chime_op *op, change *c, chime_node *n, const uint64_t *gift, chime_lock *lock) {
    c->known = 0;
    c->view = (uint64_t *)(uintptr_t)gift[GIFT_VIEW];
    if (c->view) {
        memcpy(n->w, c->view, op->st->node_bytes);
        c->known = op->st->span;
    }
    c->turns = (unsigned)gift[GIFT_TURNS];
    lock->mine = gift[GIFT_LOCK];
    lock->map = gift[GIFT_MAP];
    lock->old = op->st->masked ? chime_map_word(lock->map) : 0;
}


/* The giver's session was lost over its last WRITE. Either that was done, and the lock is ours, or the giver still
 * holds it, until it is found dead; what is decided then stays so. */
static int settle_gift(chime_op *op, change *c, chime_node *n, uint64_t *gift, chime_lock *lock) {
    const uint64_t *tail = chime_tail(op->st, n->w);
    for (bool ours = false;;) {
        chime_put_read_all(op, n);
        int err = chime_wait(op);
        if (err < 0)
            return err;
        if (tail[CHIME_TAIL_L] == gift[GIFT_LOCK] && !ours) { /* its lines may be older than this: now nobody writes */
            ours = true;
            continue;
        }
        if (tail[CHIME_TAIL_L] == gift[GIFT_LOCK]) {
            gift[GIFT_MAP] = chime_occupied_map(op->st, n->w);
            inherit(op, c, n, gift, lock);
            return 0;
        }
        if (tail[CHIME_TAIL_L] != gift[GIFT_BEFORE])
            return lock_in_turn(op, c, n, lock);
        if ((err = held(op, c, n->ptr, tail[CHIME_TAIL_L])) < 0)
            return err;
    }
}


static int take_lock(chime_op *op, change *c, chime_node *n, chime_lock *lock) {
    uint64_t gift[FAR_GIFT_WORDS];
    c->turns = 0;
    if (!far_latch_gift(op->t, chime_ptr_addr(n->ptr), gift))
        return lock_in_turn(op, c, n, lock);
    if (gift[GIFT_BEFORE])
        return settle_gift(op, c, n, gift, lock);
    inherit(op, c, n, gift, lock);
    return 0;
}


/* The latch may have been long in coming, and the leaf may have been split meanwhile. What the cache and the splits of
 * late say costs nothing. */
static bool still_leads_here(chime_op *op, const chime_node *n, arrival by) {
    uint64_t gift[FAR_GIFT_WORDS];
    chime_ptr leaf;
    if (by == BY_AUX || far_latch_gift(op->t, chime_ptr_addr(n->ptr), gift))
        return true;
    if (chime_follow_splits(op, n->ptr) != n->ptr)
        return false;
    return by == BY_SIBLING || !chime_way_is_cached(op, &leaf) || chime_follow_splits(op, leaf) == n->ptr;
}


/* 0 or an error: it is over. CHIME_RIGHT: *leaf is the sibling; CHIME_STALE; CHIME_AGAIN: others hold the lock. */
static int try_leaf(chime_op *op, change *c, chime_ptr *leaf, arrival by) {
    chime_node n = {.ptr = *leaf};
    chime_lock lock = {0};
    if (!chime_ptr_is_sound(op, *leaf))
        return CHIME_STALE;
    if (!(n.w = chime_new_image(op)))
        return FAR_ERR_NO_MEMORY;
    int err = put_block(op, c, *leaf);
    if (err < 0)
        return err;
    far_latch(op->t, chime_ptr_addr(n.ptr));
    if (still_leads_here(op, &n, by))
        err = take_lock(op, c, &n, &lock);
    else {
        far_forget(op->t); /* the WRITE of a block */
        err = CHIME_AGAIN;
    }
    if (err == 0) {
        c->locked = true;
        far_point(op->t, "chime:locked");
        err = locked(op, c, &n, &lock, leaf);
        if (c->locked && !is_lost(err)) {
            far_forget(op->t);
            int unlocked = chime_unlock_unchanged(op, n.ptr, &lock);
            err = unlocked < 0 ? unlocked : err;
            op->heir = 0;
        }
        c->locked = false;
    } else if (err == CHIME_STALE)
        err = look_for_heir(op, &n);
    leave(op, c, &n, &lock, err);
    return err;
}


static int write_key(chime_op *op, change *c) {
    int err = build_block(op, c);
    while (err >= 0) {
        far_scratch_mark here = far_scratch_here(op->t);
        chime_ptr leaf = 0, from;
        unsigned moves = 0;
        op->aux = 0;
        if ((err = chime_descend(op, 0, &leaf)) < 0)
            break;
        leaf = chime_follow_splits(op, leaf);
        for (from = leaf; (err = try_leaf(op, c, &leaf, moves ? BY_SIBLING : BY_WAY)) == CHIME_RIGHT &&
                          (err = chime_go_right(op, 0, from, leaf, &moves)) == CHIME_RIGHT;)
            from = leaf;
        if (err == CHIME_STALE && op->aux && chime_ptr_is_sound(op, op->aux)) { /* a neighbour took the leaf in */
            leaf = op->aux;
            err = try_leaf(op, c, &leaf, BY_AUX);
            err = err == CHIME_RIGHT ? CHIME_STALE : err;
        }
        if (err <= 0)
            break;
        if (err == CHIME_STALE)
            err = chime_not_there(op, from, 0);
        if (err >= 0 && (err == CHIME_AGAIN || op->restarts % op->st->patience == op->st->patience - 1))
            err = chime_renew_pin(op);
        far_scratch_back(op->t, here);
    }
    if (err < 0 && !is_lost(err))
        chime_drop_block(op);
    far_rdwc_done(op->t, op->mark);
    if (!is_lost(err))
        chime_finish(op);
    return err;
}


int chime_put(far_task *t, far_index *index, far_op_kind how, far_bytes key, far_bytes value) {
    chime_op op;
    change c = {.how = how, .value = value};
    chime_begin(&op, t, index, key);
    return write_key(&op, &c);
}


int chime_remove(far_task *t, far_index *index, far_bytes key) {
    chime_op op;
    change c = {.how = FAR_OP_DELETE};
    chime_begin(&op, t, index, key);
    return write_key(&op, &c);
}
