/* Walk, check and usage: tours over the tree in the order of keys, in slices with a pin each. A slice begins at the
 * root and goes down to where the one before ended. */
#include "base/error.h"
#include "index/dolphin/dolphin.h"
#include "pool/epoch.h"

#include <stdlib.h>

#define LEVELS_MAX   260u
#define BATCH        16u
#define ATTEMPTS_MAX 200u /* without getting on: it is not somebody's change that is in the way */

enum { OVER = 1, AGAIN = 2 };

typedef struct tour tour;
struct tour {
    dolphin_op op;
    void *ctx; /* far_walk, far_report or far_usage */
    int (*node)(tour *t, const dolphin_node *node);
    int (*leaf)(tour *t, const dolphin_leaf *leaf);
    int (*dirty)(tour *t, const dolphin_node *node); /* a locked node; 1: it was put right, AGAIN */
    far_report *report;
    dolphin_node *stack; /* from the root to where the tour is */
    unsigned levels;
    unsigned left; /* leaves of this slice */
    unsigned stuck;
    dolphin_suspects suspects; /* of this slice, for check */
    bool over;
    size_t length; /* of the cursor */
    uint8_t cursor[FAR_KEY_MAX + 8], next[FAR_KEY_MAX + 8];
};


static void move_beyond(tour *t, const dolphin_node *node, unsigned hi) {
    size_t length;
    t->stuck = 0;
    if (!dolphin_beyond(dolphin_node_prefix(node), node->depth, hi, t->next, &length)) {
        t->over = true;
        return;
    }
    memcpy(t->cursor, t->next, length);
    t->length = length;
}


static far_bytes cursor_of(const tour *t) {
    return (far_bytes){t->cursor, t->length};
}


/* Something is not as it must be: a change under way, most likely. */
static int in_the_way(tour *t, far_addr addr, const char *what) {
    if (++t->stuck < ATTEMPTS_MAX)
        return AGAIN;
    return dolphin_broken(t->op.index, addr, what);
}


/* The keys below the entry of that node begin so: no other node hangs there. */
static bool is_below(const dolphin_node *above, const dolphin_node *node) {
    const uint8_t *prefix = dolphin_node_prefix(node);
    return node->depth > above->depth && memcmp(prefix, dolphin_node_prefix(above), above->depth) == 0 &&
           prefix[above->depth] + 1u == dolphin_entry_lb(node->word);
}


/* READs a node and puts it onto the stack. */
static int push(tour *t, uint64_t word) {
    dolphin_node *node = &t->stack[t->levels];
    if (t->levels == LEVELS_MAX)
        return dolphin_broken(t->op.index, dolphin_entry_addr(word), "node");
    int err = dolphin_put_read_node(&t->op, word, node);
    if (err < 0 || (err = dolphin_wait(&t->op)) < 0 || (err = dolphin_take_node(&t->op, node, true)) < 0)
        return err;
    if (err == 0)
        return in_the_way(t, dolphin_entry_addr(word), "node");
    if (t->levels && !is_below(&t->stack[t->levels - 1], node))
        return dolphin_broken(t->op.index, dolphin_entry_addr(word), "node");
    if (t->levels && dolphin_lock_owner(node->image[0]) && !(node->image[0] & DOLPHIN_FROZEN) && t->dirty &&
        (err = t->dirty(t, node)) != 0)
        return err < 0 ? err : AGAIN;
    far_bytes prefix = {dolphin_node_prefix(node), node->depth};
    t->levels++;
    bool first = t->levels > 1 && far_bytes_compare(cursor_of(t), prefix) <= 0; /* else it was shown before */
    return first && t->node ? t->node(t, node) : 0;
}


/* Where in the node the tour goes on: a position; -1: nowhere. */
static int resume_at(const tour *t, const dolphin_node *node) {
    far_bytes cursor = cursor_of(t);
    if (dolphin_has_prefix_of(node, cursor))
        return (int)dolphin_position(cursor, node->depth);
    return far_bytes_compare(cursor, (far_bytes){dolphin_node_prefix(node), node->depth}) < 0 ? 0 : -1;
}


/* The leaf is what the entry says, or is being replaced. */
static bool is_right(const tour *t, const dolphin_node *node, const dolphin_leaf *leaf, unsigned hi) {
    uint64_t ident = dolphin_ident(leaf), spear = dolphin_spear(leaf);
    if (!dolphin_is_life(spear, leaf->entry) || !dolphin_leaf_ident_is_sound(ident, t->op.st->slots))
        return false;
    if (node->depth == 0)
        return dolphin_ident_depth(ident) == 1 && dolphin_ident_lo(ident) == 0 &&
               dolphin_ident_hi(ident) == DOLPHIN_LAST;
    return dolphin_ident_depth(ident) == node->depth && dolphin_ident_lo(ident) == dolphin_entry_lb(leaf->entry) &&
           dolphin_ident_hi(ident) >= hi && (dolphin_ident_hi(ident) == hi || (spear & DOLPHIN_FROZEN)) &&
           leaf->image[2] == node->image[2];
}


/* The leaves from this position on, some at once. */
static int show_leaves(tour *t, const dolphin_node *node, unsigned position) {
    dolphin_op *op = &t->op;
    dolphin_leaf leaves[BATCH];
    unsigned count = 0, most = t->left < BATCH ? t->left : BATCH;
    while (count < most && position < DOLPHIN_POSITIONS) {
        uint64_t entry = node->entries[dolphin_lookup(node, position)];
        if (dolphin_entry_kind(entry) != DOLPHIN_LEAF)
            break;
        int err = dolphin_put_read_leaf(op, entry, &leaves[count]);
        if (err < 0) {
            far_forget(op->t);
            return err;
        }
        count++;
        position = dolphin_next_lb(node, dolphin_entry_lb(entry));
    }
    int err = dolphin_wait(op);
    for (unsigned i = 0; i < count && err == 0; i++) {
        unsigned hi = dolphin_next_lb(node, dolphin_entry_lb(leaves[i].entry)) - 1;
        if (!is_right(t, node, &leaves[i], hi))
            return in_the_way(t, leaves[i].addr, "leaf");
        if ((err = t->leaf(t, &leaves[i])) < 0)
            return err;
        move_beyond(t, node, hi);
        if (--t->left == 0)
            return OVER;
    }
    return err;
}


/* A NULL that ends elsewhere than where the next entry begins; but for one that somebody with the lock is narrowing. */
static bool is_wrong_null(const dolphin_node *node, uint64_t entry, unsigned hi) {
    if (dolphin_entry_kind(entry) != DOLPHIN_NULL || dolphin_entry_hi(entry) == hi)
        return false;
    return dolphin_entry_hi(entry) < hi || !dolphin_lock_owner(node->image[0]);
}


/* One step from the node on top of the stack. */
static int step(tour *t) {
    const dolphin_node *node = &t->stack[t->levels - 1];
    int position = resume_at(t, node);
    if (position < 0) {
        if (--t->levels == 0)
            t->over = true;
        else { /* all below that entry was seen */
            const dolphin_node *above = &t->stack[t->levels - 1];
            if (resume_at(t, above) == (int)dolphin_entry_lb(node->word))
                move_beyond(t, above, dolphin_entry_lb(node->word));
        }
        return 0;
    }
    int at = dolphin_lookup(node, (unsigned)position);
    uint64_t entry = at < 0 ? 0 : node->entries[at];
    unsigned next = dolphin_next_lb(node, dolphin_entry_lb(entry));
    if (!dolphin_entry_may_cover(entry, (unsigned)position) || is_wrong_null(node, entry, next - 1))
        return in_the_way(t, dolphin_entry_addr(node->word), "node");
    if (dolphin_entry_is_node(entry))
        return push(t, entry);
    if (dolphin_entry_kind(entry) == DOLPHIN_LEAF)
        return show_leaves(t, node, (unsigned)position);
    move_beyond(t, node, next - 1);
    return 0;
}


static int one_slice(tour *t) {
    far_scratch_mark here = far_scratch_here(t->op.t);
    t->left = t->op.st->walk_slice;
    t->levels = 0;
    int err = far_pin_take(t->op.t);
    if (err == 0 && !(t->stack = far_scratch(t->op.t, LEVELS_MAX * sizeof(*t->stack))))
        err = far_fail(FAR_ERR_NO_MEMORY, "no memory for a walk");
    if (err == 0)
        err = push(t, t->op.st->root);
    while (err == 0 && !t->over)
        err = step(t);
    if (err < 0)
        far_forget(t->op.t);
    far_pin_drop(t->op.t);
    int found = t->suspects.count && err >= 0 ? dolphin_suspects_check(t->op.t, &t->suspects, t->ctx) : 0;
    err = found < 0 ? found : err;
    far_scratch_back(t->op.t, here);
    if (err == AGAIN)
        far_back_off(t->op.t, t->stuck < 6 ? t->stuck : 6);
    return err < 0 ? err : 0;
}


static int run(tour *t, far_task *task, far_index *index, void *ctx) {
    int err = 0;
    if (!t)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a walk");
    dolphin_begin(&t->op, task, index, (far_bytes){t->cursor, 1});
    t->op.tours = true;
    t->ctx = ctx;
    t->length = 1;
    while (err == 0 && !t->over)
        err = one_slice(t);
    free(t);
    return err;
}


/* The last position of the entry that names the leaf. */
static unsigned hi_of(const dolphin_node *node, const dolphin_leaf *leaf) {
    return node->depth ? dolphin_next_lb(node, dolphin_entry_lb(leaf->entry)) - 1 : DOLPHIN_LAST;
}


/* Walk. */

static int walk_node(tour *t, const dolphin_node *node) {
    return far_walk_object(t->ctx, t->op.index, DOLPHIN_TYPE_NODE, dolphin_entry_addr(node->word),
                           dolphin_class_bytes(node->class));
}


/* Blocks of dead slots too: whoever copies the leaf retires them. And those of empty ones, whose values are written
 * before their keys (insert=ticket): the leaf has them from then on. */
static int walk_leaf(tour *t, const dolphin_leaf *leaf) {
    dolphin_op *op = &t->op;
    const uint64_t *kwords = dolphin_kwords(leaf), *vwords = dolphin_vwords(op, leaf);
    int err = far_walk_object(t->ctx, op->index, DOLPHIN_TYPE_LEAF, leaf->addr, op->st->leaf_bytes);
    uint64_t lock = leaf->image[DOLPHIN_LEAF_LOCK / 8];
    if (err >= 0 && lock)
        err = far_locks_free_dead(op->t, leaf->addr + DOLPHIN_LEAF_LOCK, &lock, 1);
    for (unsigned i = 0; i < op->st->slots && err >= 0; i++) {
        if (!dolphin_kword_is_sound(kwords[i]) || (!op->st->words && !dolphin_value_is_sound(vwords[i])))
            return dolphin_broken(op->index, leaf->addr, "leaf");
        if (dolphin_kword_is_block(kwords[i]))
            err = far_walk_object(t->ctx, op->index, DOLPHIN_TYPE_KEY, dolphin_kword_block(kwords[i]),
                                  dolphin_kword_block_bytes(kwords[i]));
        if (err >= 0 && !op->st->words && dolphin_value_is_block(vwords[i]))
            err = far_walk_object(t->ctx, op->index, DOLPHIN_TYPE_VALUE, dolphin_value_block(vwords[i]),
                                  dolphin_value_block_bytes(vwords[i]));
    }
    return err;
}


static int walk_dirty(tour *t, const dolphin_node *node) {
    return dolphin_take_over(&t->op, node->word, node->image[0]);
}


/* The locks of the root, one per first byte. */
static int walk_root_locks(far_task *task, far_index *index) {
    const dolphin_state *st = dolphin_state_of(index);
    far_scratch_mark here = far_scratch_here(task);
    uint64_t *locks = far_scratch(task, 256 * sizeof(*locks));
    int err = locks ? far_pin_take(task) : far_fail(FAR_ERR_NO_MEMORY, "no memory for a walk");
    if (err == 0) {
        far_read(task, dolphin_entry_addr(st->root) + DOLPHIN_ROOT_LOCKS, locks, 256 * sizeof(*locks));
        err = far_wait(task);
    }
    for (unsigned i = 0; i < 256 && err >= 0; i++) {
        uint8_t byte = (uint8_t)i;
        dolphin_op op;
        dolphin_begin(&op, task, index, (far_bytes){&byte, 1});
        if (dolphin_lock_owner(locks[i]))
            err = dolphin_take_over(&op, st->root, locks[i]);
    }
    far_pin_drop(task);
    far_scratch_back(task, here);
    return err < 0 ? err : 0;
}


int dolphin_walk(far_task *task, far_index *index, far_walk *walk) {
    const dolphin_state *st = dolphin_state_of(index);
    tour *t = calloc(1, sizeof(*t));
    int err = far_walk_object(walk, index, DOLPHIN_TYPE_ROOT, index->descriptor, sizeof(dolphin_root));
    if (err >= 0)
        err = far_walk_object(walk, index, DOLPHIN_TYPE_ROOT, dolphin_entry_addr(st->root), DOLPHIN_ROOT_BYTES);
    if (err >= 0)
        err = walk_root_locks(task, index);
    if (err < 0) {
        free(t);
        return err;
    }
    if (t) {
        t->node = walk_node;
        t->leaf = walk_leaf;
        t->dirty = walk_dirty;
    }
    return run(t, task, index, walk);
}


/* Check. */

/* A node or a leaf that `above` names: it may be locked, or frozen, by nobody. */
static void suspect(tour *t, const dolphin_node *above, uint64_t entry, uint64_t owner, const uint64_t *image,
                    uint64_t bytes) {
    dolphin_suspected one = {.above = above->word,
                             .entry = entry,
                             .at_root = above->depth == 0,
                             .addr = dolphin_entry_addr(entry),
                             .seen = image,
                             .bytes = bytes};
    for (unsigned i = 0; i < above->capacity; i++)
        if (above->entries[i] == entry)
            one.place = dolphin_entry_place(above, i);
    if (image[0] & DOLPHIN_FROZEN)
        dolphin_suspect(&t->suspects, one);
    one.owner = owner;
    if (owner)
        dolphin_suspect(&t->suspects, one);
}


static int check_node(tour *t, const dolphin_node *node) {
    unsigned long long addr = dolphin_entry_addr(node->word);
    bool seen[DOLPHIN_POSITIONS] = {false};
    for (unsigned i = 0; i < node->capacity; i++) {
        unsigned lb = dolphin_entry_lb(node->entries[i]);
        if (node->entries[i] == 0)
            continue;
        if (seen[lb])
            far_report_problem(t->ctx, "node at %#llx: two entries for position %u", addr, lb);
        seen[lb] = true;
    }
    if (!seen[0])
        far_report_problem(t->ctx, "node at %#llx: no entry for position 0", addr);
    unsigned bytes = dolphin_class_bytes(node->class);
    suspect(t, &t->stack[t->levels - 2], node->word, dolphin_lock_owner(node->image[0]), node->image, bytes);
    if (!dolphin_lock_is_sound(node->image[0], node->word))
        far_report_problem(t->ctx, "node at %#llx: its lock is broken", addr);
    if (node->image[2] != dolphin_prefix_word(t->op.st, dolphin_node_prefix(node), node->depth))
        far_report_problem(t->ctx, "node at %#llx: its prefix word is wrong", addr);
    return 0;
}


/* Gets and scans take the blocks of values as they are: so are they looked at here. */
static int check_values(tour *t, const dolphin_pair *pairs, unsigned count) {
    dolphin_op *op = &t->op;
    uint8_t *blocks[DOLPHIN_SLOTS_MAX];
    far_bytes value;
    int err = 0;
    for (unsigned i = 0; i < count && err >= 0; i++)
        err = pairs[i].vword ? dolphin_put_read_value(op, pairs[i].vword, &blocks[i]) : 0;
    if (err < 0) {
        far_forget(op->t);
        return err;
    }
    err = dolphin_wait(op);
    for (unsigned i = 0; i < count && err == 0; i++)
        if (pairs[i].vword && dolphin_take_value(op, pairs[i].key, pairs[i].vword, blocks[i], &value) < 0)
            far_report_problem(t->ctx, "%s", far_last_error());
    return err;
}


/* Keys whose value word was READ as 0. A value is written before its key is LIVE, and taken out when the key is DEAD; but for
 * a leaf that is narrowed, which is frozen until its keys are gone. So a key that is there before and after its value is
 * missing has lost it, and whoever puts it would wait for the delete that did that. */
static int check_missing(tour *t, const dolphin_leaf *leaf, const dolphin_pair *pairs, unsigned count) {
    far_task *task = t->op.t;
    uint64_t before, value, spear, after;
    int err = 0;
    for (unsigned i = 0; i < count && err == 0; i++) {
        far_addr key_at = dolphin_key_at(leaf->addr, pairs[i].slot);
        if (pairs[i].vword)
            continue;
        far_point(task, "dolphin:missing");
        far_read(task, key_at, &before, 8);
        far_read(task, dolphin_value_at(leaf->addr, t->op.st->slots, pairs[i].slot), &value, 8);
        far_read(task, leaf->addr, &spear, 8);
        far_read(task, key_at, &after, 8);
        err = dolphin_wait(&t->op);
        if (err == 0 && value == 0 && before == after && dolphin_state_of_slot(after) == DOLPHIN_HELD &&
            !(spear & DOLPHIN_FROZEN))
            far_report_problem(t->ctx, "leaf at %#llx: the key of slot %u has no value", (unsigned long long)leaf->addr,
                               pairs[i].slot);
    }
    return err;
}


static int check_leaf(tour *t, const dolphin_leaf *leaf) {
    dolphin_op *op = &t->op;
    unsigned long long addr = leaf->addr;
    uint64_t ident = dolphin_ident(leaf);
    unsigned depth = dolphin_ident_depth(ident), count;
    const uint64_t *kwords = dolphin_kwords(leaf), *vwords = dolphin_vwords(op, leaf);
    dolphin_pair pairs[DOLPHIN_SLOTS_MAX];
    for (unsigned i = 0; i < op->st->slots; i++) {
        if (!dolphin_kword_is_sound(kwords[i])) {
            far_report_problem(t->ctx, "leaf at %#llx: the key word of slot %u is broken", addr, i);
            return 0;
        }
        if (!op->st->words && !dolphin_value_is_sound(vwords[i]))
            far_report_problem(t->ctx, "leaf at %#llx: the value word of slot %u is broken", addr, i);
    }
    uint8_t prefix[FAR_KEY_MAX];
    const dolphin_node *node = &t->stack[t->levels - 1];
    suspect(t, node, leaf->entry, leaf->image[DOLPHIN_LEAF_LOCK / 8] & FAR_OWNER_MASK, leaf->image, op->st->leaf_bytes);
    memcpy(prefix, dolphin_node_prefix(node), node->depth);
    if (node->depth == 0)
        prefix[0] = (uint8_t)(dolphin_entry_lb(leaf->entry) - 1);
    if (leaf->image[2] != dolphin_prefix_word(op->st, prefix, depth))
        far_report_problem(t->ctx, "leaf at %#llx: its prefix word is wrong", addr);
    int err = dolphin_read_pairs(op, leaf, prefix, hi_of(node, leaf), pairs, &count);
    for (unsigned i = 0; i < count && err == 0; i++) {
        unsigned position = dolphin_position(pairs[i].key, depth);
        if (pairs[i].key.length < depth || memcmp(pairs[i].key.data, prefix, depth) != 0 ||
            position < dolphin_ident_lo(ident) || position > dolphin_ident_hi(ident))
            far_report_problem(t->ctx, "leaf at %#llx: the key of slot %u has no business there", addr, pairs[i].slot);
        if (!dolphin_kword_may_be(op->st, pairs[i].kword, pairs[i].key, depth))
            far_report_problem(t->ctx, "leaf at %#llx: the key word of slot %u is not that of its key", addr,
                               pairs[i].slot);
        if (pairs[i].key.length > FAR_KEY_MAX)
            far_report_problem(t->ctx, "leaf at %#llx: a key of %zu bytes", addr, pairs[i].key.length);
    }
    if (err == 0 && !op->st->words)
        err = check_values(t, pairs, count);
    return err < 0 || op->st->words ? err : check_missing(t, leaf, pairs, count);
}


/* The root has an entry for each position, in their order, and a lock for each byte: changes leave both as they are. */
static int check_root(far_task *task, far_index *index, dolphin_suspects *suspects, far_report *report) {
    uint64_t root = dolphin_state_of(index)->root, *image = far_scratch(task, DOLPHIN_ROOT_BYTES);
    unsigned long long addr = dolphin_entry_addr(root);
    int err = image ? far_pin_take(task) : far_fail(FAR_ERR_NO_MEMORY, "no memory for a check");
    if (err < 0)
        return err;
    far_read(task, addr, image, DOLPHIN_ROOT_BYTES);
    err = far_wait(task);
    far_pin_drop(task);
    for (unsigned i = 0; i < DOLPHIN_POSITIONS && err == 0; i++) {
        uint64_t entry = image[DOLPHIN_NODE_HEADER / 8 + i];
        if (!dolphin_entry_is_sound(entry) || !dolphin_entry_may_cover(entry, i) || dolphin_entry_lb(entry) != i)
            far_report_problem(report, "root at %#llx: the entry of position %u is broken", addr, i);
    }
    for (unsigned i = 0; i < 256 && err == 0; i++) {
        uint64_t lock = image[DOLPHIN_ROOT_LOCKS / 8 + i];
        if (!dolphin_lock_is_sound(lock, root) || (lock & DOLPHIN_FROZEN))
            far_report_problem(report, "root at %#llx: the lock of byte %u is broken", addr, i);
        if (dolphin_lock_owner(lock))
            dolphin_suspect(suspects, (dolphin_suspected){.owner = dolphin_lock_owner(lock),
                                                          .addr = addr,
                                                          .seen = image,
                                                          .bytes = DOLPHIN_ROOT_BYTES});
    }
    return err < 0 ? err : dolphin_suspects_check(task, suspects, report);
}


int dolphin_check(far_task *task, far_index *index, far_report *report) {
    far_scratch_mark here = far_scratch_here(task);
    tour *t = calloc(1, sizeof(*t));
    int err = t ? check_root(task, index, &t->suspects, report) : 0;
    far_scratch_back(task, here);
    if (err < 0) {
        free(t);
        return err;
    }
    if (t) {
        t->node = check_node;
        t->leaf = check_leaf;
    }
    err = run(t, task, index, report);
    if (err == FAR_ERR_CORRUPT) {
        far_report_problem(report, "%s", far_last_error());
        return 0;
    }
    return err;
}


/* Usage. */

static int count_leaf(tour *t, const dolphin_leaf *leaf) {
    dolphin_op *op = &t->op;
    far_usage *usage = t->ctx;
    const dolphin_node *node = &t->stack[t->levels - 1];
    dolphin_pair *pairs = far_scratch(op->t, op->st->slots * sizeof(*pairs));
    uint64_t lengths[DOLPHIN_SLOTS_MAX];
    uint8_t prefix[FAR_KEY_MAX] = {0};
    unsigned count;
    if (!pairs)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory to count");
    memcpy(prefix, dolphin_node_prefix(node), node->depth);
    int err = dolphin_read_pairs(op, leaf, prefix, hi_of(node, leaf), pairs, &count);
    if (err < 0)
        return err;
    for (unsigned i = 0; i < count; i++) {
        uint64_t vword = pairs[i].vword;
        lengths[i] = op->st->words                             ? 8
                     : vword && !dolphin_value_is_block(vword) ? dolphin_value_inline_bytes(vword)
                                                               : 0;
        if (!op->st->words && dolphin_value_is_block(vword))
            far_read(op->t, dolphin_value_block(vword), &lengths[i], 8);
    }
    if ((err = dolphin_wait(op)) < 0)
        return err;
    for (unsigned i = 0; i < count; i++) {
        if (!op->st->words && pairs[i].vword == 0)
            continue; /* on its way in or out */
        usage->keys++;
        usage->key_bytes += pairs[i].key.length;
        usage->value_bytes += dolphin_head_length(lengths[i]);
    }
    return 0;
}


int dolphin_usage(far_task *task, far_index *index, far_usage *usage) {
    tour *t = calloc(1, sizeof(*t));
    if (t)
        t->leaf = count_leaf;
    return run(t, task, index, usage);
}
