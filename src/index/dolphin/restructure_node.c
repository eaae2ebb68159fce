/* Replacing a node by a copy, either with more room or without joined or removed entries. The client locks the parent
 * and then the node, and posts {WRITE the copy, CAS the old lock word to FROZEN}, {CAS the entry of the parent, unlock
 * the parent}. The old node is frozen before the entry is changed. So a node that is not frozen is still linked and
 * current. The old node keeps its lock for ever, so that no other client can change it any more. */
#include "base/error.h"
#include "index/dolphin/restructure.h"
#include "pool/epoch/epoch.h"

#include <stdlib.h>

#define LEVELS_MAX 260


/* Finds the parent of this node, descending from the root. Returns 1, or 0 if no entry names the node any more.
 */
static int find_parent(dolphin_op *op, uint64_t word, dolphin_node *above) {
    uint64_t next = op->st->root;
    for (unsigned level = 0; level < LEVELS_MAX; level++) {
        int err = dolphin_batch_read_node(op, next, above);
        if (err < 0 || (err = dolphin_wait(op)) < 0 || (err = dolphin_validate_node(op, above, true)) <= 0)
            return err;
        int at = dolphin_node_has_prefix_of(above, op->key)
                     ? dolphin_find_entry(above, dolphin_position(op->key, above->depth))
                     : -1;
        if (at < 0 || !dolphin_entry_is_node(above->entries[at]))
            return 0;
        if (dolphin_entries_match(above->entries[at], word))
            return 1;
        next = above->entries[at];
    }
    return dolphin_fail_corrupt(op->index, dolphin_entry_addr(word), "node");
}


static int compare_lower_bounds(const void *a, const void *b) {
    unsigned x = dolphin_entry_lb(*(const uint64_t *)a), y = dolphin_entry_lb(*(const uint64_t *)b);
    return (x > y) - (x < y);
}


unsigned dolphin_collect_entries(const dolphin_node *node, uint64_t *entries) {
    unsigned count = 0, kept = 0;
    for (unsigned i = 0; i < node->capacity; i++)
        if (node->entries[i])
            entries[count++] = node->entries[i];
    qsort(entries, count, sizeof(*entries), compare_lower_bounds);
    for (unsigned i = 0; i < count; i++) {
        if (kept && dolphin_entry_kind(entries[i]) == DOLPHIN_KIND_NULL &&
            dolphin_entry_kind(entries[kept - 1]) == DOLPHIN_KIND_NULL)
            entries[kept - 1] = dolphin_null_entry(dolphin_entry_lb(entries[kept - 1]), dolphin_entry_hi(entries[i]));
        else
            entries[kept++] = entries[i];
    }
    return kept;
}


/* Returns the entry that can replace an unneeded node: a NULL interval if the node has no child, or its only child
 * node. Returns 0 if the node is still needed. */
static uint64_t direct_replacement(const uint64_t *entries, unsigned count, unsigned lb) {
    uint64_t only = 0;
    for (unsigned i = 0; i < count; i++) {
        if (dolphin_entry_kind(entries[i]) == DOLPHIN_KIND_NULL)
            continue;
        if (only || !dolphin_entry_is_node(entries[i]))
            return 0;
        only = entries[i];
    }
    return only ? dolphin_entry_with_lb(only, lb) : dolphin_null_entry(lb, lb);
}


int dolphin_build_copy(dolphin_change *c, const dolphin_node *old, const uint64_t *entries, unsigned count) {
    dolphin_op *op = c->op;
    dolphin_node image;
    int err = dolphin_alloc_inner(c, dolphin_node_prefix(old), old->depth, count + DOLPHIN_ADDS_MAX, &image);
    if (err < 0 || (err = dolphin_wait(op)) < 0)
        return err;
    memcpy(image.entries, entries, count * sizeof(*entries));
    return 0;
}


/* Installs the replacement of `old` that was planned in c. Both nodes must be locked. On return the parent is unlocked.
 */
int dolphin_install_copy(dolphin_change *c, const dolphin_node *old, unsigned at) {
    dolphin_op *op = c->op;
    dolphin_node *above = &c->node;
    uint64_t mine = dolphin_lock_word_of(op, old->word), word = above->entries[at];
    far_point(op->t, "dolphin:freeze_node");
    bool near = dolphin_batch_activations(c);
    far_cas(op->t, dolphin_entry_addr(old->word), mine, mine | DOLPHIN_FROZEN, NULL);
    int err = 0;
    if (!near || far_addr_node(dolphin_entry_addr(old->word)) != far_addr_node(dolphin_entry_addr(above->word)))
        err = dolphin_wait(op);
    if (err < 0)
        return err;
    far_point(op->t, "dolphin:link_copy");
    far_cas(op->t, dolphin_entry_word_addr(above, at), word, c->replacement, NULL);
    dolphin_batch_unlock(op, above->word);
    if ((err = dolphin_wait(op)) < 0)
        return err;
    far_point(op->t, "dolphin:copy_linked");
    far_retire(op->t, op->index, DOLPHIN_TYPE_NODE, dolphin_entry_addr(old->word), dolphin_class_bytes(old->class));
    above->entries[at] = c->replacement;
    above->image[0] = dolphin_unlocked_word(above->word);
    if (op->st->cache) {
        dolphin_cache_drop(op->st->cache, op->key, old->word);
        dolphin_cache_insert(op->st->cache, op->key, far_epoch(op->t), above);
    }
    return 0;
}


/* Replaces the node while it and its parent are locked. */
static int replace_locked_node(dolphin_change *c, const dolphin_node *old, unsigned at) {
    dolphin_op *op = c->op;
    uint64_t *entries = far_scratch(op->t, old->capacity * sizeof(*entries));
    if (!entries)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a node");
    unsigned count = dolphin_collect_entries(old, entries), lb = dolphin_entry_lb(c->node.entries[at]);
    c->replacement = direct_replacement(entries, count, lb);
    if (c->replacement == 0) {
        int err = dolphin_build_copy(c, old, entries, count);
        if (err < 0)
            return err;
        c->replacement = dolphin_new_object_entry(&c->inner, lb);
    }
    return dolphin_install_copy(c, old, at);
}


int dolphin_unlock_node_and_parent(dolphin_change *c, uint64_t word, int result) {
    if (result == FAR_ERR_FENCED || result == FAR_ERR_UNREACHABLE)
        return result;
    dolphin_abandon_change(c);
    int err = dolphin_unlock(c->op, word);
    return err < 0 ? err : dolphin_end_change(c, result);
}


int dolphin_lock_node_and_parent(dolphin_change *c, uint64_t word, dolphin_node *old, unsigned *entry_at) {
    dolphin_op *op = c->op;
    dolphin_node above;
    int err = find_parent(op, word, &above);
    if (err <= 0)
        return err;
    if ((err = dolphin_lock_for_change(c, above.word, word)) != DOLPHIN_LOCKED)
        return err < 0 ? err : 0;
    *entry_at = c->replaced_index;
    if ((err = dolphin_lock(op, word, old)) == DOLPHIN_LOCKED)
        return 1;
    return err == FAR_ERR_FENCED || err == FAR_ERR_UNREACHABLE ? err : dolphin_end_change(c, err < 0 ? err : 0);
}


int dolphin_replace_node(dolphin_op *op, const dolphin_location *location) {
    dolphin_change c = {.op = op};
    dolphin_node old;
    unsigned at;
    int err = dolphin_lock_node_and_parent(&c, location->node_word, &old, &at);
    if (err <= 0)
        return err;
    err = replace_locked_node(&c, &old, at);
    return err < 0 ? dolphin_unlock_node_and_parent(&c, old.word, err) : 0;
}
