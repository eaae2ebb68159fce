/* Changes that need no other leaf: a NULL interval gets its first leaf, a path between two nodes is parted. */
#include "index/dolphin/change.h"
#include "base/error.h"
#include "pool/epoch.h"

#define INNER_CLASS   1u /* new nodes have 13 entries */
#define LOCK_ATTEMPTS 3u /* more, in a row */


static int make(dolphin_change *c, dolphin_made *made, unsigned type, unsigned bytes, unsigned node) {
    dolphin_op *op = c->op;
    far_object object;
    int err = far_alloc(op->t, op->index, type, bytes, node, 0, &object);
    if (err < 0)
        return err;
    *made = (dolphin_made){
        .addr = object.addr, .bytes = bytes, .leaf = type == DOLPHIN_TYPE_LEAF, .image = far_scratch(op->t, bytes)};
    if (!made->image) {
        far_free(op->t, op->index, type, object.addr, bytes);
        made->addr = 0;
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a leaf");
    }
    far_read(op->t, made->addr, &made->control, 8);
    return 0;
}


int dolphin_make_leaf(dolphin_change *c, unsigned which, unsigned node) {
    return make(c, &c->leaf[which], DOLPHIN_TYPE_LEAF, c->op->st->leaf_bytes, node);
}


int dolphin_make_inner(dolphin_change *c, const uint8_t *prefix, unsigned depth, unsigned entries,
                       dolphin_node *image) {
    unsigned class = dolphin_class_for(entries, depth, INNER_CLASS);
    int err = make(c, &c->inner, DOLPHIN_TYPE_NODE, dolphin_class_bytes(class), dolphin_place(c->op, prefix, depth));
    if (err == 0)
        err = dolphin_new_image(c->op, prefix, depth, class, image);
    if (err == 0)
        c->inner.image = image->image;
    return err;
}


int dolphin_make_item(dolphin_change *c, far_bytes value, unsigned depth, unsigned node) {
    dolphin_op *op = c->op;
    uint8_t *block;
    int err = dolphin_make_value(op, value, node, &c->vword, &block);
    if (err < 0)
        return err;
    if (block)
        far_write(op->t, dolphin_value_block(c->vword), block, dolphin_value_block_bytes(c->vword));
    if (op->key.length - depth <= DOLPHIN_INLINE_MAX) {
        c->kword = dolphin_inline_kword(op->key, depth);
        return 0;
    }
    if ((err = dolphin_make_key(op, node, &c->kword, &block)) == 0)
        far_write(op->t, dolphin_kword_block(c->kword), block, dolphin_kword_block_bytes(c->kword));
    return err;
}


static void abandon_one(dolphin_change *c, dolphin_made *made) {
    if (made->addr && !made->linked && !c->op->lost)
        far_free(c->op->t, c->op->index, made->leaf ? DOLPHIN_TYPE_LEAF : DOLPHIN_TYPE_NODE, made->addr, made->bytes);
    made->addr = 0;
}


void dolphin_abandon(dolphin_change *c) {
    far_forget(c->op->t);
    abandon_one(c, &c->leaf[0]);
    abandon_one(c, &c->leaf[1]);
    abandon_one(c, &c->inner);
    if (!c->item_linked) {
        dolphin_drop_value(c->op, c->vword);
        dolphin_drop_key(c->op, c->kword);
    }
    c->vword = c->kword = 0;
}


uint64_t dolphin_made_entry(const dolphin_made *made, unsigned lb) {
    unsigned kind = made->leaf ? DOLPHIN_LEAF : DOLPHIN_NODE + dolphin_ident_class(made->image[1]);
    return dolphin_entry(made->addr, dolphin_next_tag(made->control), lb, kind);
}


/* The body first, then the tag of the new life. The count in a spear word stays as it is: a client that comes through an old
 * pointer adds one and takes one off, whatever became of the leaf meanwhile. */
static void put_birth(dolphin_change *c, dolphin_made *made) {
    dolphin_op *op = c->op;
    uint64_t next = dolphin_next_tag(made->control) | DOLPHIN_LIVE;
    far_write(op->t, made->addr + 8, made->image + 1, made->bytes - 8);
    if (made->leaf)
        far_faa(op->t, made->addr, (next | made->image[0]) - (made->control & ~DOLPHIN_COUNT_MASK), NULL);
    else
        far_cas(op->t, made->addr, made->control, next, NULL);
    made->linked = true;
}


bool dolphin_put_births(dolphin_change *c) {
    dolphin_made *made[3] = {&c->leaf[0], &c->leaf[1], &c->inner};
    unsigned home = far_addr_node(dolphin_entry_addr(c->node.word));
    bool near = true;
    for (unsigned i = 0; i < 3; i++)
        if (made[i]->addr && made[i]->image[1]) {
            put_birth(c, made[i]);
            near &= far_addr_node(made[i]->addr) == home;
        }
    return near;
}


int dolphin_publish(dolphin_change *c, bool unlock) {
    dolphin_op *op = c->op;
    dolphin_node *node = &c->node;
    unsigned free = 0;
    far_point(op->t, "dolphin:publish");
    c->item_linked = true;
    int err = 0;
    if (!dolphin_put_births(c) || c->apart) {
        far_point(op->t, "dolphin:births"); /* nothing orders verbs to two memory nodes */
        if ((err = dolphin_wait(op)) < 0)
            return err;
    }
    for (unsigned i = 0; i < c->adds; i++) { /* from above: an entry ends where the next one begins */
        while (node->entries[free])
            free++;
        far_cas(op->t, dolphin_entry_place(node, free), 0, c->add[i], NULL);
        node->entries[free] = c->add[i];
    }
    far_cas(op->t, dolphin_entry_place(node, c->at), node->entries[c->at], c->entry, NULL);
    node->entries[c->at] = c->entry;
    if (unlock)
        dolphin_put_unlock(op, node->word);
    if ((err = dolphin_wait(op)) < 0)
        return err;
    far_rdwc_done(op->t, op->mark);
    node->image[0] = dolphin_lock_free(node->word);
    if (op->st->cache && dolphin_has_prefix_of(node, op->key))
        dolphin_cache_node(op->st->cache, op->key, far_epoch(op->t), node);
    return 0;
}


/* The node names it for the key. A NULL is another one when its bounds are. */
static bool still_names(dolphin_change *c, uint64_t entry) {
    int at = dolphin_lookup(&c->node, dolphin_position(c->op->key, c->node.depth));
    if (at < 0)
        return false;
    c->at = (unsigned)at;
    return dolphin_entry_kind(entry) == DOLPHIN_NULL ? c->node.entries[at] == entry
                                                     : dolphin_entry_same(c->node.entries[at], entry);
}


/* Whoever has the lock has it for two round trips, most of the time: to wait here is less than to look for the key
 * again; but not when the holder has done what we came for. */
int dolphin_change_lock(dolphin_change *c, uint64_t word, uint64_t entry) {
    int err = dolphin_lock(c->op, word, &c->node);
    for (unsigned attempt = 0; attempt < LOCK_ATTEMPTS && err == DOLPHIN_BUSY && still_names(c, entry); attempt++) {
        far_count_lock_retry(c->op->t);
        far_sleep(c->op->t, c->op->trip);
        far_back_off(c->op->t, attempt);
        err = dolphin_lock(c->op, word, &c->node);
    }
    if (err == DOLPHIN_LOCKED && still_names(c, entry))
        return err;
    if (err == DOLPHIN_LOCKED) {
        dolphin_keep_node(c->op, &c->node); /* the next look goes by this */
        c->op->fresh = false;
        return dolphin_change_end(c, DOLPHIN_GONE);
    }
    dolphin_abandon(c);
    if (err >= 0 && dolphin_is_time_to_help(c->op)) {
        int helped = dolphin_help(c->op);
        return helped < 0 ? helped : err;
    }
    return err;
}


int dolphin_change_end(dolphin_change *c, int result) {
    int err = dolphin_unlock(c->op, c->node.word);
    dolphin_abandon(c);
    return err < 0 ? err : result;
}


/* The memory node for what belongs to a node: its own; what hangs below the root is spread. */
static unsigned place_below(const dolphin_op *op, const dolphin_spot *spot) {
    return spot->depth ? far_addr_node(dolphin_entry_addr(spot->parent)) : dolphin_place(op, op->key.data, 1);
}


/* coverage=lastbyte: the leaf hangs below a node of its own, at the last byte of the key. */
static bool wants_node(const dolphin_op *op, const dolphin_spot *spot) {
    return op->st->lastbyte && op->key.length > 1 && op->key.length - 1 > spot->depth;
}


void dolphin_plan_node(dolphin_change *c, unsigned position, unsigned lo, unsigned hi) {
    uint64_t node = dolphin_made_entry(&c->inner, position);
    c->adds = 0;
    if (position < hi)
        c->add[c->adds++] = dolphin_null(position + 1, hi);
    if (lo < position)
        c->add[c->adds++] = node;
    c->entry = lo < position ? dolphin_null(lo, position - 1) : node;
}


int dolphin_fill(dolphin_op *op, const dolphin_spot *spot, far_bytes value) {
    dolphin_change c = {.op = op};
    dolphin_node inner;
    bool with_node = wants_node(op, spot);
    unsigned depth = with_node ? (unsigned)op->key.length - 1 : dolphin_leaf_depth(spot->depth);
    unsigned lo = dolphin_entry_lb(spot->entry), hi = dolphin_entry_hi(spot->entry);
    const uint8_t *prefix = op->key.data;
    unsigned place = with_node ? dolphin_place(op, prefix, depth) : place_below(op, spot);
    if (with_node && spot->depth && dolphin_free_entries(&spot->node) < 2)
        return dolphin_copy_node(op, spot);
    int err = dolphin_make_leaf(&c, 0, place);
    if (err == 0 && with_node)
        err = dolphin_make_inner(&c, prefix, depth, 1, &inner);
    if (err == 0)
        err = dolphin_make_item(&c, value, depth, place);
    if (err < 0) {
        dolphin_abandon(&c);
        return err;
    }
    if ((err = dolphin_change_lock(&c, spot->parent, spot->entry)) != DOLPHIN_LOCKED)
        return err < 0 ? err : 0;
    if (with_node && spot->depth && dolphin_free_entries(&c.node) < 2)
        return dolphin_change_end(&c, 0);
    dolphin_item item = {op->key, c.kword, c.vword};
    bool all = with_node || spot->depth == 0;
    dolphin_fill_leaf(op, c.leaf[0].image, &item, 1, prefix, depth, all ? 0 : lo, all ? DOLPHIN_LAST : hi);
    if (with_node) {
        inner.entries[0] = dolphin_made_entry(&c.leaf[0], 0);
        dolphin_plan_node(&c, spot->position, lo, hi);
    } else
        c.entry = dolphin_made_entry(&c.leaf[0], lo);
    err = dolphin_publish(&c, true);
    return err < 0 ? err : 1;
}


/* Where the key parts from the prefix of the node below the entry. */
static int parting_depth(const dolphin_op *op, const dolphin_spot *spot, unsigned *depth) {
    const uint8_t *prefix = op->key.data, *other = dolphin_node_prefix(&spot->child);
    unsigned d = 0;
    while (d < op->key.length && d < spot->child.depth && prefix[d] == other[d])
        d++;
    *depth = d;
    return d > spot->depth && d < spot->child.depth
               ? 0
               : dolphin_broken(op->index, dolphin_entry_addr(spot->entry), "node");
}


/* A node is below the entry whose prefix parts from the key: a new node where they do takes its place, with it and with
 * a leaf for all that lies on the key's side of it. coverage=lastbyte: with NULL there, for the next look to fill. */
int dolphin_part_path(dolphin_op *op, const dolphin_spot *spot, far_bytes value) {
    dolphin_change c = {.op = op};
    dolphin_node inner;
    const uint8_t *prefix = op->key.data;
    unsigned depth;
    int err = parting_depth(op, spot, &depth);
    if (err < 0)
        return err;
    unsigned position = dolphin_position(op->key, depth), child = dolphin_node_prefix(&spot->child)[depth] + 1u;
    unsigned place = dolphin_place(op, prefix, depth), count = 0;
    bool leaf = !op->st->lastbyte, below = position < child;
    if (leaf && (err = dolphin_make_leaf(&c, 0, place)) == 0)
        err = dolphin_make_item(&c, value, depth, place);
    if (err == 0)
        err = dolphin_make_inner(&c, prefix, depth, 3, &inner);
    if (err < 0) {
        dolphin_abandon(&c);
        return err;
    }
    if ((err = dolphin_change_lock(&c, spot->parent, spot->entry)) != DOLPHIN_LOCKED)
        return err < 0 ? err : 0;
    unsigned lo = below ? 0 : child + 1, hi = below ? child - 1 : DOLPHIN_LAST;
    inner.entries[count++] = dolphin_entry_with_lb(spot->entry, child);
    inner.entries[count++] = dolphin_null(0, child - 1); /* END is below every byte */
    if (child < DOLPHIN_LAST)
        inner.entries[count++] = dolphin_null(child + 1, DOLPHIN_LAST);
    if (leaf) {
        dolphin_item item = {op->key, c.kword, c.vword};
        dolphin_fill_leaf(op, c.leaf[0].image, &item, 1, prefix, depth, lo, hi);
        inner.entries[below ? 1 : 2] = dolphin_made_entry(&c.leaf[0], lo);
    }
    c.entry = dolphin_made_entry(&c.inner, spot->position);
    err = dolphin_publish(&c, true);
    return err < 0 ? err : leaf;
}
