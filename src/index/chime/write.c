/* insert, update, put and delete: lock the leaf, READ what the change needs, WRITE it with the unlock behind it. Three
 * round trips; two where an atomic takes effect before the READs that are posted behind it. */
#include "index/chime/write.h"
#include "base/error.h"
#include "pool/epoch.h"
#include "task/latch.h"

#include <stdlib.h>

#define CROWD_TURNS 4 /* of a lock inside of a compute node: then a leaf counts as crowded, as after a failed attempt */
#define CROWD_SHARE 5 /* ... if one in so many of its slots is occupied ... */

typedef enum { BY_WAY, BY_SIBLING, BY_AUX } arrival; /* what led to a leaf: BY_AUX, the one that it took in */


/* Blocks. */

static bool needs_block(const chime_op *op, const chime_change *c) {
    return !op->st->fixed && c->how != FAR_OP_DELETE;
}


static int build_block(chime_op *op, chime_change *c) {
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
static int put_block(chime_op *op, chime_change *c, chime_ptr leaf) {
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


/* Under the lock. */

/* Slots that are READ for the change, from home on. */
static unsigned slots_needed(const chime_op *op, const chime_change *c, chime_ptr leaf, const chime_lock *lock) {
    const chime_state *st = op->st;
    if (!st->hopscotch || (chime_inserts(c) && !st->vacancy) || chime_next_in_turn(op, c, leaf))
        return st->span;
    unsigned reach = chime_inserts(c) ? chime_reach(st, lock->map, op->home) : st->hop;
    if (reach == 0)
        return st->span;
    return reach > st->hop ? reach : st->hop;
}


/* So many slots from home on, and of an insert the rest of their groups, which tells whether these are full now. */
static void put_read_groups(chime_op *op, const chime_change *c, chime_node *n, unsigned slots) {
    const chime_state *st = op->st;
    unsigned group = chime_inserts(c) ? st->group : 1, before = op->home % group,
             last = chime_step(st, op->home, slots - 1), end = (last / group + 1) * group,
             behind = (end < st->span ? end : st->span) - 1 - last, count = before + slots + behind;
    chime_put_read_slots(op, n, op->home - before, count < st->span ? count : st->span);
}


void chime_put_change_reads(chime_op *op, const chime_change *c, chime_node *n, unsigned slots) {
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


static void take_inline_value(chime_op *op, chime_change *c) {
    far_rdwc_seal(op->t, &c->value);
    memcpy(c->words, c->value.data, op->st->value_bytes);
}


static int update_item(chime_op *op, chime_change *c, chime_node *n, const chime_lock *lock, unsigned slot) {
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
    chime_choose_heir(op, c, n->ptr);
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


static int remove_item(chime_op *op, chime_change *c, chime_node *n, const chime_lock *lock, unsigned slot) {
    const chime_state *st = op->st;
    uint64_t old = chime_slot(st, n->w, slot)[1], map = lock->map & ~(1ull << slot / st->group),
             *before = chime_new_image(op);
    if (!before)
        return FAR_ERR_NO_MEMORY;
    memcpy(before, n->w, st->node_bytes);
    chime_clear(st, n->w, slot, op->home);
    far_point(op->t, "chime:remove");
    chime_choose_heir(op, c, n->ptr);
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


static int commit_insert(chime_op *op, chime_change *c, chime_node *n, const chime_lock *lock, const uint64_t *before,
                         const chime_move *moves, unsigned hops, unsigned at) {
    const chime_state *st = op->st;
    unsigned filled = hops ? moves[0].to : at;
    bool others = c->known == st->span && chime_take_along(op, n->ptr, n->w, &c->along);
    uint64_t map = others ? chime_occupied_map(st, n->w) : chime_map_with(st, lock->map, n->w, filled);
    chime_choose_heir(op, c, n->ptr);
    int err = chime_put_busy(op, n->ptr);
    if (err >= 0 && st->words)
        err = chime_put_moves(op, n, before, moves, hops, at);
    else if (err >= 0)
        chime_put_lines(op, n, before, chime_line(st, op->home));
    if (err >= 0)
        err = chime_put_unlock(op, n->ptr, map);
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


static int split(chime_op *op, chime_change *c, chime_node *n, bool early) {
    int err = 0;
    if (c->known < op->st->span) {
        chime_put_read_whole(op, n);
        if ((err = chime_wait(op)) < 0)
            return err;
    }
    if (!chime_is_whole(op->st, n->w, chime_ptr_tag(n->ptr)))
        return chime_broken(op->index, n->ptr, "its lines do not belong together");
    err = chime_split_leaf(op, n, c->words, early, &c->along);
    if (err == 0) {
        c->locked = false;
        op->block = 0;
    }
    return err;
}


/* Many wait for this leaf, and the tree has few: it is split before it is full, so that a load from empty soon has
 * leaves for all its clients. A tree that has grown beyond that pays for no half empty leaves. */
static bool is_crowded(const chime_op *op, const chime_change *c, chime_ptr leaf, const chime_lock *lock) {
    bool others = c->attempts || c->turns >= CROWD_TURNS ||
                  far_latch_waiting(op->t, chime_ptr_addr(leaf), CROWD_TURNS) == CROWD_TURNS;
    return others && chime_is_growing(op) &&
           (unsigned)__builtin_popcountll(lock->map) * op->st->group * CROWD_SHARE >= op->st->span;
}


/* The neighbourhood is full: the first slot that is free beyond it. *free -1: there is none. */
static int look_further(chime_op *op, chime_change *c, chime_node *n, const chime_lock *lock, int *free) {
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


static int insert_item(chime_op *op, chime_change *c, chime_node *n, const chime_lock *lock) {
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
    if (is_crowded(op, c, n->ptr, lock))
        return split(op, c, n, true);
    memcpy(before, n->w, st->node_bytes);
    int hops = chime_hop(st, n->w, op->home, (unsigned)free, moves, &at);
    if (hops < 0) {
        memcpy(n->w, before, st->node_bytes); /* without the hops that led nowhere */
        return split(op, c, n, false);
    }
    chime_place(st, n->w, at, op->home, op->key.first, c->words);
    if (hops)
        far_point(op->t, "chime:hop");
    else
        far_point(op->t, "chime:insert");
    return commit_insert(op, c, n, lock, before, moves, (unsigned)hops, at);
}


/* The key lies further right. Inserts of others that wait, and belong here, are done before the lock is let go. */
static int serve_others(chime_op *op, chime_change *c, chime_node *n) {
    const chime_state *st = op->st;
    uint64_t *before = c->known == st->span && st->along ? chime_new_image(op) : NULL;
    if (!before)
        return 0;
    memcpy(before, n->w, st->node_bytes);
    if (!chime_take_along(op, n->ptr, n->w, &c->along))
        return 0;
    chime_choose_heir(op, c, n->ptr);
    chime_put_lines(op, n, before, 0);
    int err = chime_put_unlock(op, n->ptr, chime_occupied_map(st, n->w));
    if (err < 0) {
        far_forget(op->t);
        return err;
    }
    c->locked = false;
    return chime_wait(op);
}


static int locked(chime_op *op, chime_change *c, chime_node *n, chime_lock *lock, chime_ptr *leaf) {
    const chime_state *st = op->st;
    chime_block block;
    int err, slot;
    if (!c->known) {
        c->known = slots_needed(op, c, n->ptr, lock);
        chime_put_change_reads(op, c, n, c->known);
        if ((err = chime_wait(op)) < 0)
            return err;
    } else if (c->view && op->block && (err = chime_wait(op)) < 0) /* its block is there before a slot names it */
        return err;
    if ((err = check_node(op, n, leaf)) == CHIME_RIGHT)
        return (err = serve_others(op, c, n)) < 0 ? err : CHIME_RIGHT;
    if (err != 0 || (err = chime_find_item(op, n, &slot, st->exact ? NULL : &block)) < 0)
        return err;
    far_note_added(op->t, slot < 0);
    if (slot >= 0 && c->how == FAR_OP_INSERT)
        return FAR_ERR_EXISTS;
    if (slot < 0 && !chime_inserts(c))
        return FAR_ERR_NOT_FOUND;
    if (slot < 0)
        return insert_item(op, c, n, lock);
    return c->how == FAR_OP_DELETE ? remove_item(op, c, n, lock, (unsigned)slot)
                                   : update_item(op, c, n, lock, (unsigned)slot);
}


/* The node is gone: who took it in? */
static int look_for_heir(chime_op *op, chime_node *n) {
    const uint64_t *tail = chime_tail(op->st, n->w);
    chime_put_read_tail(op, n);
    int err = chime_wait(op);
    op->aux = err >= 0 && chime_h0_tag(tail[CHIME_TAIL_H0]) == chime_ptr_tag(n->ptr) ? tail[CHIME_TAIL_AUX] : 0;
    return err < 0 ? err : CHIME_STALE;
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


/* True: while it waited for the latch, another task did what it came for. */
static bool latch_leaf(chime_op *op, chime_change *c, chime_insert *mine, chime_ptr leaf) {
    if (!chime_goes_along(op, c)) {
        far_latch(op->t, chime_ptr_addr(leaf));
        return false;
    }
    take_inline_value(op, c);
    *mine = (chime_insert){.key = op->key.first, .home = op->home, .value = c->words};
    chime_latch_queued(&op->st->inserts, op->t, &mine->waiting, leaf);
    return mine->waiting.served;
}


static int end_served(chime_op *op, const chime_insert *mine, chime_ptr leaf) {
    far_unlatch(op->t, chime_ptr_addr(leaf));
    chime_drop_spare(op);
    return mine->lost ? far_fail(FAR_ERR_UNREACHABLE,
                                 "the session that wrote this pair together with others lost its connection")
                      : 0;
}


/* 0 or an error: it is over. CHIME_RIGHT: *leaf is the sibling; CHIME_STALE; CHIME_AGAIN: others hold the lock. */
static int try_leaf(chime_op *op, chime_change *c, chime_ptr *leaf, arrival by) {
    chime_node n = {.ptr = *leaf};
    chime_lock lock = {0};
    chime_insert mine = {0};
    if (!chime_ptr_is_sound(op, *leaf))
        return CHIME_STALE;
    if (!(n.w = chime_new_image(op)))
        return FAR_ERR_NO_MEMORY;
    int err = put_block(op, c, *leaf);
    if (err < 0)
        return err;
    if (latch_leaf(op, c, &mine, n.ptr))
        return end_served(op, &mine, n.ptr);
    if (still_leads_here(op, &n, by))
        err = chime_take_lock(op, c, &n, &lock);
    else {
        far_forget(op->t); /* the WRITE of a block */
        err = CHIME_AGAIN;
    }
    if (err == 0) {
        c->locked = true;
        far_point(op->t, "chime:locked");
        err = locked(op, c, &n, &lock, leaf);
        chime_tell_along(op, &c->along, err);
        if (c->locked && !chime_is_lost(err)) {
            far_forget(op->t);
            int unlocked = chime_unlock_unchanged(op, n.ptr, &lock);
            err = unlocked < 0 ? unlocked : err;
            op->heir = 0;
        }
        c->locked = false;
    } else if (err == CHIME_STALE)
        err = look_for_heir(op, &n);
    chime_leave_lock(op, c, &n, &lock, err);
    return err;
}


static int write_key(chime_op *op, chime_change *c) {
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
    if (err < 0 && !chime_is_lost(err))
        chime_drop_block(op);
    far_rdwc_done(op->t, op->mark);
    if (!chime_is_lost(err)) {
        chime_drop_spare(op);
        chime_finish(op);
    }
    return err;
}


int chime_put(far_task *t, far_index *index, far_op_kind how, far_bytes key, far_bytes value) {
    chime_op op;
    chime_change c = {.how = how, .value = value};
    chime_begin(&op, t, index, key);
    return write_key(&op, &c);
}


int chime_remove(far_task *t, far_index *index, far_bytes key) {
    chime_op op;
    chime_change c = {.how = FAR_OP_DELETE};
    chime_begin(&op, t, index, key);
    return write_key(&op, &c);
}
