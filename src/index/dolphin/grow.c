/* A node is replaced by a copy: larger, or with what is left of it. Under the locks of the node above and of the node
 * itself: {WRITE the copy, CAS the old lock word to FROZEN}, {CAS entry above, unlock}. The old node is frozen before
 * the entry is changed: whoever finds it not frozen finds what counts. It keeps its lock for ever. */
#include "base/error.h"
#include "index/dolphin/change.h"
#include "pool/epoch.h"

#include <stdlib.h>

#define LEVELS_MAX 260


/* The node that names this one, by way of the root. 1: found; 0: nobody names it any more. */
static int find_above(dolphin_op *op, uint64_t word, dolphin_node *above) {
    uint64_t next = op->st->root;
    for (unsigned level = 0; level < LEVELS_MAX; level++) {
        int err = dolphin_put_read_node(op, next, above);
        if (err < 0 || (err = dolphin_wait(op)) < 0 || (err = dolphin_take_node(op, above, true)) <= 0)
            return err;
        int at =
            dolphin_has_prefix_of(above, op->key) ? dolphin_lookup(above, dolphin_position(op->key, above->depth)) : -1;
        if (at < 0 || !dolphin_entry_is_node(above->entries[at]))
            return 0;
        if (dolphin_entry_same(above->entries[at], word))
            return 1;
        next = above->entries[at];
    }
    return dolphin_broken(op->index, dolphin_entry_addr(word), "node");
}


static int by_lb(const void *a, const void *b) {
    unsigned x = dolphin_entry_lb(*(const uint64_t *)a), y = dolphin_entry_lb(*(const uint64_t *)b);
    return (x > y) - (x < y);
}


/* The entries in order, NULLs that lie side by side as one. */
unsigned dolphin_collect(const dolphin_node *node, uint64_t *entries) {
    unsigned count = 0, kept = 0;
    for (unsigned i = 0; i < node->capacity; i++)
        if (node->entries[i])
            entries[count++] = node->entries[i];
    qsort(entries, count, sizeof(*entries), by_lb);
    for (unsigned i = 0; i < count; i++) {
        if (kept && dolphin_entry_kind(entries[i]) == DOLPHIN_NULL &&
            dolphin_entry_kind(entries[kept - 1]) == DOLPHIN_NULL)
            entries[kept - 1] = dolphin_null(dolphin_entry_lb(entries[kept - 1]), dolphin_entry_hi(entries[i]));
        else
            entries[kept++] = entries[i];
    }
    return kept;
}


/* What can stand in the place of a node without it; 0: nothing. */
static uint64_t instead_of(const uint64_t *entries, unsigned count, unsigned lb) {
    uint64_t only = 0;
    for (unsigned i = 0; i < count; i++) {
        if (dolphin_entry_kind(entries[i]) == DOLPHIN_NULL)
            continue;
        if (only || !dolphin_entry_is_node(entries[i]))
            return 0;
        only = entries[i];
    }
    return only ? dolphin_entry_with_lb(only, lb) : dolphin_null(lb, lb);
}


int dolphin_copy_made(dolphin_change *c, const dolphin_node *old, const uint64_t *entries, unsigned count) {
    dolphin_op *op = c->op;
    dolphin_node image;
    int err = dolphin_make_inner(c, dolphin_node_prefix(old), old->depth, count + DOLPHIN_ADDS_MAX, &image);
    if (err < 0 || (err = dolphin_wait(op)) < 0)
        return err;
    memcpy(image.entries, entries, count * sizeof(*entries));
    return 0;
}


/* c.node: the node above, locked; old: locked. */
int dolphin_switch_over(dolphin_change *c, const dolphin_node *old, unsigned at) {
    dolphin_op *op = c->op;
    dolphin_node *above = &c->node;
    uint64_t mine = dolphin_locked_by_me(op, old->word), word = above->entries[at];
    far_point(op->t, "dolphin:copy");
    bool near = dolphin_put_births(c);
    far_cas(op->t, dolphin_entry_addr(old->word), mine, mine | DOLPHIN_FROZEN, NULL);
    int err = 0;
    if (!near || far_addr_node(dolphin_entry_addr(old->word)) != far_addr_node(dolphin_entry_addr(above->word)))
        err = dolphin_wait(op);
    if (err < 0)
        return err;
    far_point(op->t, "dolphin:switch");
    far_cas(op->t, dolphin_entry_place(above, at), word, c->entry, NULL);
    dolphin_put_unlock(op, above->word);
    if ((err = dolphin_wait(op)) < 0)
        return err;
    far_point(op->t, "dolphin:switched");
    far_retire(op->t, op->index, DOLPHIN_TYPE_NODE, dolphin_entry_addr(old->word), dolphin_class_bytes(old->class));
    above->entries[at] = c->entry;
    above->image[0] = dolphin_lock_free(above->word);
    if (op->st->cache) {
        dolphin_cache_drop(op->st->cache, op->key, old->word);
        dolphin_cache_node(op->st->cache, op->key, far_epoch(op->t), above);
    }
    return 0;
}


/* Both are locked. */
static int copy_locked(dolphin_change *c, const dolphin_node *old, unsigned at) {
    dolphin_op *op = c->op;
    uint64_t *entries = far_scratch(op->t, old->capacity * sizeof(*entries));
    if (!entries)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a node");
    unsigned count = dolphin_collect(old, entries), lb = dolphin_entry_lb(c->node.entries[at]);
    c->entry = instead_of(entries, count, lb);
    if (c->entry == 0) {
        int err = dolphin_copy_made(c, old, entries, count);
        if (err < 0)
            return err;
        c->entry = dolphin_made_entry(&c->inner, lb);
    }
    return dolphin_switch_over(c, old, at);
}


int dolphin_unlock_both(dolphin_change *c, uint64_t word, int result) {
    if (result == FAR_ERR_FENCED || result == FAR_ERR_UNREACHABLE)
        return result;
    dolphin_abandon(c);
    int err = dolphin_unlock(c->op, word);
    return err < 0 ? err : dolphin_change_end(c, result);
}


int dolphin_lock_both(dolphin_change *c, uint64_t word, dolphin_node *old, unsigned *entry_at) {
    dolphin_op *op = c->op;
    dolphin_node above;
    int err = find_above(op, word, &above);
    if (err <= 0)
        return err;
    if ((err = dolphin_change_lock(c, above.word, word)) != DOLPHIN_LOCKED)
        return err < 0 ? err : 0;
    *entry_at = c->at;
    if ((err = dolphin_lock(op, word, old)) == DOLPHIN_LOCKED)
        return 1;
    return err == FAR_ERR_FENCED || err == FAR_ERR_UNREACHABLE ? err : dolphin_change_end(c, err < 0 ? err : 0);
}


/* 0: look again; or an error. */
int dolphin_copy_node(dolphin_op *op, const dolphin_spot *spot) {
    dolphin_change c = {.op = op};
    dolphin_node old;
    unsigned at;
    int err = dolphin_lock_both(&c, spot->parent, &old, &at);
    if (err <= 0)
        return err;
    err = copy_locked(&c, &old, at);
    return err < 0 ? dolphin_unlock_both(&c, old.word, err) : 0;
}
