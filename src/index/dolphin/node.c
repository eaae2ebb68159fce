/* Inner nodes as they are READ, looked up and made. */
#include "base/error.h"
#include "base/hash.h"
#include "index/dolphin/dolphin.h"


/* Of the root an operation needs the entry of its key alone, which never moves: its other entries come as unused. The
 * whole of it, from every client whose cache is behind, would be more than its memory node can send. */
static void put_read_root(dolphin_op *op, dolphin_node *node) {
    unsigned at = DOLPHIN_NODE_HEADER / 8 + dolphin_position(op->key, 0);
    memset(node->image, 0, dolphin_class_bytes(DOLPHIN_ROOT_CLASS));
    node->image[0] = dolphin_lock_free(node->word);
    node->image[1] = dolphin_node_ident(0, DOLPHIN_ROOT_CLASS);
    far_read(op->t, dolphin_entry_addr(node->word) + 8ull * at, node->image + at, 8);
}


int dolphin_put_read_node(dolphin_op *op, uint64_t word, dolphin_node *node) {
    unsigned bytes = dolphin_class_bytes(dolphin_entry_class(word));
    far_addr addr = dolphin_entry_addr(word);
    *node = (dolphin_node){.word = word};
    if (!far_task_reaches(op->t, addr, bytes))
        return dolphin_broken(op->index, addr, "node");
    if (!(node->image = far_scratch(op->t, bytes)))
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a node");
    if (word == op->st->root && !op->tours)
        put_read_root(op, node);
    else
        far_read(op->t, addr, node->image, bytes);
    far_mark(op->t, FAR_VERB_UNPROVEN);
    return 0;
}


static void set_parts(dolphin_node *node) {
    node->depth = dolphin_ident_depth(node->image[1]);
    node->class = dolphin_ident_class(node->image[1]);
    node->capacity = dolphin_capacity(node->class, node->depth);
    node->entries = node->image + (DOLPHIN_NODE_HEADER + dolphin_prefix_bytes(node->depth)) / 8;
}


/* A frozen node that is not known to be linked may be memory that is being used anew: its tag is the last to change. */
int dolphin_take_node(const dolphin_op *op, dolphin_node *node, bool linked) {
    if (!dolphin_is_life(node->image[0], node->word) || ((node->image[0] & DOLPHIN_FROZEN) && !linked))
        return 0;
    uint64_t ident = node->image[1];
    if (ident >> 40 != DOLPHIN_NODE_MAGIC || dolphin_ident_class(ident) != dolphin_entry_class(node->word) ||
        dolphin_ident_depth(ident) > FAR_KEY_MAX)
        return dolphin_broken(op->index, dolphin_entry_addr(node->word), "node");
    set_parts(node);
    for (unsigned i = 0; i < node->capacity; i++)
        if (!dolphin_entry_is_sound(node->entries[i]))
            return dolphin_broken(op->index, dolphin_entry_addr(node->word), "node");
    node->proven = true;
    return 1;
}


const uint8_t *dolphin_node_prefix(const dolphin_node *node) {
    return (const uint8_t *)(node->image + (node->depth > DOLPHIN_EXACT ? 3 : 2));
}


bool dolphin_has_prefix_of(const dolphin_node *node, far_bytes key) {
    return key.length >= node->depth &&
           (node->depth == 0 || memcmp(dolphin_node_prefix(node), key.data, node->depth) == 0);
}


int dolphin_lookup(const dolphin_node *node, unsigned position) {
    int best = -1;
    unsigned best_lb = 0;
    for (unsigned i = 0; i < node->capacity; i++) {
        uint64_t entry = node->entries[i];
        unsigned lb = dolphin_entry_lb(entry);
        if (entry && lb <= position && (best < 0 || lb > best_lb)) {
            best = (int)i;
            best_lb = lb;
        }
    }
    return best;
}


unsigned dolphin_next_lb(const dolphin_node *node, unsigned lb) {
    unsigned next = DOLPHIN_POSITIONS;
    for (unsigned i = 0; i < node->capacity; i++)
        if (node->entries[i] && dolphin_entry_lb(node->entries[i]) > lb && dolphin_entry_lb(node->entries[i]) < next)
            next = dolphin_entry_lb(node->entries[i]);
    return next;
}


unsigned dolphin_free_entries(const dolphin_node *node) {
    unsigned count = 0;
    for (unsigned i = 0; i < node->capacity; i++)
        count += node->entries[i] == 0;
    return count;
}


/* Without a lock word, and without entries. */
int dolphin_new_image(dolphin_op *op, const uint8_t *prefix, unsigned depth, unsigned class, dolphin_node *node) {
    unsigned bytes = dolphin_class_bytes(class);
    *node = (dolphin_node){.image = far_scratch(op->t, bytes)};
    if (!node->image)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a node");
    memset(node->image, 0, bytes);
    node->image[1] = dolphin_node_ident(depth, class);
    node->image[2] = dolphin_prefix_word(op->st, prefix, depth);
    if (depth > DOLPHIN_EXACT)
        memcpy(node->image + 3, prefix, depth);
    set_parts(node);
    return 0;
}


/* The memory node of a node, and of its leaves: in turn for nodes that differ in the last byte of their prefix. */
unsigned dolphin_place(const dolphin_op *op, const uint8_t *prefix, unsigned depth) {
    uint64_t turn =
        depth ? far_hash((far_bytes){prefix, depth - 1}, op->st->seed + depth) % 256 + prefix[depth - 1] : 0;
    return (unsigned)(turn % far_task_nodes(op->t));
}
