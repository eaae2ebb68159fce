/* Building and publishing structure changes (restructure.h), and the two changes that involve no existing leaf: filling
 * a NULL interval with its first leaf, and splitting the path between two nodes. dolphin_lock_for_change and
 * dolphin_publish_change are the two steps that all changes share. */
#include "index/dolphin/restructure.h"
#include "base/error.h"
#include "pool/epoch/epoch.h"

#define INNER_CLASS   1u /* new nodes have 128 bytes, room for 13 entries */
#define LOCK_ATTEMPTS 3u /* number of further attempts to lock a node before the operation locates its key again */


static int alloc_object(dolphin_change *c, dolphin_new_object *made, unsigned type, unsigned bytes, unsigned node) {
    dolphin_op *op = c->op;
    far_object object;
    int err = far_alloc(op->t, op->index, type, bytes, node, 0, &object);
    if (err < 0)
        return err;
    *made = (dolphin_new_object){
        .addr = object.addr, .bytes = bytes, .leaf = type == DOLPHIN_TYPE_LEAF, .image = far_scratch(op->t, bytes)};
    if (!made->image) {
        far_free(op->t, op->index, type, object.addr, bytes);
        made->addr = 0;
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a leaf");
    }
    far_read(op->t, made->addr, &made->control, 8);
    return 0;
}


int dolphin_alloc_leaf(dolphin_change *c, unsigned which, unsigned node) {
    return alloc_object(c, &c->leaf[which], DOLPHIN_TYPE_LEAF, c->op->st->leaf_bytes, node);
}


int dolphin_alloc_inner(dolphin_change *c, const uint8_t *prefix, unsigned depth, unsigned entries,
                        dolphin_node *image) {
    unsigned class = dolphin_class_with_room(entries, depth, INNER_CLASS);
    int err = alloc_object(c, &c->inner, DOLPHIN_TYPE_NODE, dolphin_class_bytes(class),
                           dolphin_choose_memory_node(c->op, prefix, depth));
    if (err == 0)
        err = dolphin_init_node_image(c->op, prefix, depth, class, image);
    if (err == 0)
        c->inner.image = image->image;
    return err;
}


int dolphin_build_item(dolphin_change *c, far_bytes value, unsigned depth, unsigned node) {
    dolphin_op *op = c->op;
    uint8_t *block;
    int err = dolphin_build_value(op, value, node, &c->vword, &block);
    if (err < 0)
        return err;
    if (block)
        far_write(op->t, dolphin_value_block(c->vword), block, dolphin_value_block_bytes(c->vword));
    if (op->key.length - depth <= DOLPHIN_INLINE_MAX) {
        c->kword = dolphin_inline_kword(op->key, depth);
        return 0;
    }
    if ((err = dolphin_build_key(op, node, &c->kword, &block)) == 0)
        far_write(op->t, dolphin_kword_block(c->kword), block, dolphin_kword_block_bytes(c->kword));
    return err;
}


static void free_unlinked_object(dolphin_change *c, dolphin_new_object *made) {
    if (made->addr && !made->linked && !c->op->session_lost)
        far_free(c->op->t, c->op->index, made->leaf ? DOLPHIN_TYPE_LEAF : DOLPHIN_TYPE_NODE, made->addr, made->bytes);
    made->addr = 0;
}


void dolphin_abandon_change(dolphin_change *c) {
    far_discard_batch(c->op->t);
    free_unlinked_object(c, &c->leaf[0]);
    free_unlinked_object(c, &c->leaf[1]);
    free_unlinked_object(c, &c->inner);
    if (!c->item_linked) {
        dolphin_free_value(c->op, c->vword);
        dolphin_free_key(c->op, c->kword);
    }
    c->vword = c->kword = 0;
}


uint64_t dolphin_new_object_entry(const dolphin_new_object *made, unsigned lb) {
    unsigned kind = made->leaf ? DOLPHIN_KIND_LEAF : DOLPHIN_KIND_NODE + dolphin_ident_class(made->image[1]);
    return dolphin_entry(made->addr, dolphin_tag_after(made->control), lb, kind);
}


/* Appends the verbs that write a new object and make it LIVE: first the body, then the control word with the next tag.
 * For a leaf, the number of writers in the control word (the spear word) is left as it is. A client that enters through
 * an outdated pointer adds 1 and later subtracts 1, even if the leaf is activated in between, so overwriting the field
 * would make it wrong for ever. */
static void batch_activation(dolphin_change *c, dolphin_new_object *made) {
    dolphin_op *op = c->op;
    uint64_t next = dolphin_tag_after(made->control) | DOLPHIN_LIVE;
    far_write(op->t, made->addr + 8, made->image + 1, made->bytes - 8);
    if (made->leaf)
        far_faa(op->t, made->addr, (next | made->image[0]) - (made->control & ~DOLPHIN_COUNT_MASK), NULL);
    else
        far_cas(op->t, made->addr, made->control, next, NULL);
    made->linked = true;
}


bool dolphin_batch_activations(dolphin_change *c) {
    dolphin_new_object *made[3] = {&c->leaf[0], &c->leaf[1], &c->inner};
    unsigned home = far_addr_node(dolphin_entry_addr(c->node.word));
    bool near = true;
    for (unsigned i = 0; i < 3; i++)
        if (made[i]->addr && made[i]->image[1]) {
            batch_activation(c, made[i]);
            near &= far_addr_node(made[i]->addr) == home;
        }
    return near;
}


int dolphin_publish_change(dolphin_change *c, bool unlock) {
    dolphin_op *op = c->op;
    dolphin_node *node = &c->node;
    unsigned free = 0;
    far_point(op->t, "dolphin:publish");
    c->item_linked = true;
    int err = 0;
    if (!dolphin_batch_activations(c) || c->entries_must_wait) {
        /* Verbs to different memory nodes have no order, so the objects must be complete before an entry names them. */
        far_point(op->t, "dolphin:wait_for_activations");
        if ((err = dolphin_wait(op)) < 0)
            return err;
    }
    /* The entries are added in descending order of their lower bounds. An entry ends where the next one begins, so each
     * added entry takes over the upper part of the interval of the entry below it, and at every moment each position
     * belongs to exactly one entry. */
    for (unsigned i = 0; i < c->added_count; i++) {
        while (node->entries[free])
            free++;
        far_cas(op->t, dolphin_entry_word_addr(node, free), 0, c->added[i], NULL);
        node->entries[free] = c->added[i];
    }
    far_cas(op->t, dolphin_entry_word_addr(node, c->replaced_index), node->entries[c->replaced_index], c->replacement,
            NULL);
    node->entries[c->replaced_index] = c->replacement;
    if (unlock)
        dolphin_batch_unlock(op, node->word);
    if ((err = dolphin_wait(op)) < 0)
        return err;
    far_rdwc_done(op->t, op->last_mark);
    node->image[0] = dolphin_unlocked_word(node->word);
    if (op->st->cache && dolphin_node_has_prefix_of(node, op->key))
        dolphin_cache_insert(op->st->cache, op->key, far_epoch(op->t), node);
    return 0;
}


/* Returns true if the locked node still has this entry for op->key, and stores the index of the entry. For a NULL
 * entry, the bounds must be equal too. */
static bool node_still_names(dolphin_change *c, uint64_t entry) {
    int at = dolphin_find_entry(&c->node, dolphin_position(c->op->key, c->node.depth));
    if (at < 0)
        return false;
    c->replaced_index = (unsigned)at;
    return dolphin_entry_kind(entry) == DOLPHIN_KIND_NULL ? c->node.entries[at] == entry
                                                          : dolphin_entries_match(c->node.entries[at], entry);
}


/* The holder of the lock usually needs it for two round trips. Waiting here is cheaper than locating the key again,
 * unless the node shows that the holder has already made the change that this client wants to make. */
int dolphin_lock_for_change(dolphin_change *c, uint64_t word, uint64_t entry) {
    int err = dolphin_lock(c->op, word, &c->node);
    for (unsigned attempt = 0; attempt < LOCK_ATTEMPTS && err == DOLPHIN_BUSY && node_still_names(c, entry);
         attempt++) {
        far_count_lock_retry(c->op->t);
        far_sleep(c->op->t, c->op->round_trip_ns);
        far_back_off(c->op->t, attempt);
        err = dolphin_lock(c->op, word, &c->node);
    }
    if (err == DOLPHIN_LOCKED && node_still_names(c, entry))
        return err;
    if (err == DOLPHIN_LOCKED) {
        dolphin_cache_unless_frozen(c->op, &c->node); /* the next dolphin_locate uses this copy */
        c->op->skip_cache = false;
        return dolphin_end_change(c, DOLPHIN_UNLINKED);
    }
    dolphin_abandon_change(c);
    if (err >= 0 && dolphin_recovery_is_due(c->op)) {
        int helped = dolphin_recover_path(c->op);
        return helped < 0 ? helped : err;
    }
    return err;
}


int dolphin_end_change(dolphin_change *c, int result) {
    int err = dolphin_unlock(c->op, c->node.word);
    dolphin_abandon_change(c);
    return err < 0 ? err : result;
}


/* Returns the memory node for the key blocks, value blocks and leaves below a node: that of the node itself. Leaves
 * below the root are spread over all memory nodes. */
static unsigned memory_node_below(const dolphin_op *op, const dolphin_location *location) {
    return location->depth ? far_addr_node(dolphin_entry_addr(location->node_word))
                           : dolphin_choose_memory_node(op, op->key.data, 1);
}


/* coverage=lastbyte: returns true if the new leaf needs an inner node at the depth of the last key byte. */
static bool needs_inner_node(const dolphin_op *op, const dolphin_location *location) {
    return op->st->last_byte_coverage && op->key.length > 1 && op->key.length - 1 > location->depth;
}


void dolphin_plan_inner_entries(dolphin_change *c, unsigned position, unsigned lo, unsigned hi) {
    uint64_t node = dolphin_new_object_entry(&c->inner, position);
    c->added_count = 0;
    if (position < hi)
        c->added[c->added_count++] = dolphin_null_entry(position + 1, hi);
    if (lo < position)
        c->added[c->added_count++] = node;
    c->replacement = lo < position ? dolphin_null_entry(lo, position - 1) : node;
}


int dolphin_fill_null(dolphin_op *op, const dolphin_location *location, far_bytes value) {
    dolphin_change c = {.op = op};
    dolphin_node inner;
    bool with_node = needs_inner_node(op, location);
    unsigned depth = with_node ? (unsigned)op->key.length - 1 : dolphin_leaf_depth(location->depth);
    unsigned lo = dolphin_entry_lb(location->entry), hi = dolphin_entry_hi(location->entry);
    const uint8_t *prefix = op->key.data;
    unsigned place = with_node ? dolphin_choose_memory_node(op, prefix, depth) : memory_node_below(op, location);
    if (with_node && location->depth && dolphin_count_free_entries(&location->node) < 2)
        return dolphin_replace_node(op, location);
    int err = dolphin_alloc_leaf(&c, 0, place);
    if (err == 0 && with_node)
        err = dolphin_alloc_inner(&c, prefix, depth, 1, &inner);
    if (err == 0)
        err = dolphin_build_item(&c, value, depth, place);
    if (err < 0) {
        dolphin_abandon_change(&c);
        return err;
    }
    if ((err = dolphin_lock_for_change(&c, location->node_word, location->entry)) != DOLPHIN_LOCKED)
        return err < 0 ? err : 0;
    if (with_node && location->depth && dolphin_count_free_entries(&c.node) < 2)
        return dolphin_end_change(&c, 0);
    dolphin_item item = {op->key, c.kword, c.vword};
    bool all = with_node || location->depth == 0;
    dolphin_fill_leaf(op, c.leaf[0].image, &item, 1, prefix, depth, all ? 0 : lo, all ? DOLPHIN_LAST_POSITION : hi);
    if (with_node) {
        inner.entries[0] = dolphin_new_object_entry(&c.leaf[0], 0);
        dolphin_plan_inner_entries(&c, location->position, lo, hi);
    } else
        c.replacement = dolphin_new_object_entry(&c.leaf[0], lo);
    err = dolphin_publish_change(&c, true);
    return err < 0 ? err : 1;
}


/* Computes the depth at which op->key differs from the prefix of the node that the entry names. */
static int find_divergence_depth(const dolphin_op *op, const dolphin_location *location, unsigned *depth) {
    const uint8_t *prefix = op->key.data, *other = dolphin_node_prefix(&location->child);
    unsigned d = 0;
    while (d < op->key.length && d < location->child.depth && prefix[d] == other[d])
        d++;
    *depth = d;
    return d > location->depth && d < location->child.depth
               ? 0
               : dolphin_fail_corrupt(op->index, dolphin_entry_addr(location->entry), "node");
}


/* Called when the entry names a node whose prefix differs from op->key. Replaces the entry by a new node at the depth
 * where they differ. This node gets an entry for the old node, and a leaf with op->key that covers all positions on the
 * key's side of the old node. With coverage=lastbyte the new node gets a NULL interval instead of the leaf, and the
 * next attempt fills that interval. Returns 1 if op->key was inserted, 0 if the caller must locate the key again, or an
 * error. */
int dolphin_split_path(dolphin_op *op, const dolphin_location *location, far_bytes value) {
    dolphin_change c = {.op = op};
    dolphin_node inner;
    const uint8_t *prefix = op->key.data;
    unsigned depth;
    int err = find_divergence_depth(op, location, &depth);
    if (err < 0)
        return err;
    unsigned position = dolphin_position(op->key, depth), child = dolphin_node_prefix(&location->child)[depth] + 1u;
    unsigned place = dolphin_choose_memory_node(op, prefix, depth), count = 0;
    bool leaf = !op->st->last_byte_coverage, below = position < child;
    if (leaf && (err = dolphin_alloc_leaf(&c, 0, place)) == 0)
        err = dolphin_build_item(&c, value, depth, place);
    if (err == 0)
        err = dolphin_alloc_inner(&c, prefix, depth, 3, &inner);
    if (err < 0) {
        dolphin_abandon_change(&c);
        return err;
    }
    if ((err = dolphin_lock_for_change(&c, location->node_word, location->entry)) != DOLPHIN_LOCKED)
        return err < 0 ? err : 0;
    unsigned lo = below ? 0 : child + 1, hi = below ? child - 1 : DOLPHIN_LAST_POSITION;
    inner.entries[count++] = dolphin_entry_with_lb(location->entry, child);
    /* Position END (0) is below all byte positions, so this interval is never empty. */
    inner.entries[count++] = dolphin_null_entry(0, child - 1);
    if (child < DOLPHIN_LAST_POSITION)
        inner.entries[count++] = dolphin_null_entry(child + 1, DOLPHIN_LAST_POSITION);
    if (leaf) {
        dolphin_item item = {op->key, c.kword, c.vword};
        dolphin_fill_leaf(op, c.leaf[0].image, &item, 1, prefix, depth, lo, hi);
        inner.entries[below ? 1 : 2] = dolphin_new_object_entry(&c.leaf[0], lo);
    }
    c.replacement = dolphin_new_object_entry(&c.inner, location->position);
    err = dolphin_publish_change(&c, true);
    return err < 0 ? err : leaf;
}
