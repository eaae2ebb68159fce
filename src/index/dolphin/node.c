/* Inner nodes: reading and validating copies, searching them, and building images of new nodes. */
#include "base/error.h"
#include "base/hash.h"
#include "index/dolphin/dolphin.h"


/* Appends the READ of the single root entry for op->key. The other entries of the image are set to unused. The entries
 * of the root never move, so the address of this entry is known. Reading the whole root instead (2.3 KB, by every
 * client with an outdated cache) would exceed the bandwidth of its memory node. */
static void batch_read_root_entry(dolphin_op *op, dolphin_node *node) {
    unsigned at = DOLPHIN_NODE_HEADER / 8 + dolphin_position(op->key, 0);
    memset(node->image, 0, dolphin_class_bytes(DOLPHIN_ROOT_CLASS));
    node->image[0] = dolphin_unlocked_word(node->word);
    node->image[1] = dolphin_node_ident(0, DOLPHIN_ROOT_CLASS);
    far_read(op->t, dolphin_entry_addr(node->word) + 8ull * at, node->image + at, 8);
}


int dolphin_batch_read_node(dolphin_op *op, uint64_t word, dolphin_node *node) {
    unsigned bytes = dolphin_class_bytes(dolphin_entry_class(word));
    far_addr addr = dolphin_entry_addr(word);
    *node = (dolphin_node){.word = word};
    if (!far_task_reaches(op->t, addr, bytes))
        return dolphin_fail_corrupt(op->index, addr, "node");
    if (!(node->image = far_scratch(op->t, bytes)))
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a node");
    if (word == op->st->root && !op->reads_whole_root)
        batch_read_root_entry(op, node);
    else
        far_read(op->t, addr, node->image, bytes);
    far_mark(op->t, FAR_VERB_UNPROVEN);
    return 0;
}


static void set_node_fields(dolphin_node *node) {
    node->depth = dolphin_ident_depth(node->image[1]);
    node->class = dolphin_ident_class(node->image[1]);
    node->capacity = dolphin_node_capacity(node->class, node->depth);
    node->entries = node->image + (DOLPHIN_NODE_HEADER + dolphin_stored_prefix_bytes(node->depth)) / 8;
}


/* A frozen node that may be unlinked is not accepted. Its memory may already contain the body of the next incarnation:
 * when a client reuses the memory, it writes the control word, which contains the tag, last. */
int dolphin_validate_node(const dolphin_op *op, dolphin_node *node, bool linked) {
    if (!dolphin_control_matches(node->image[0], node->word) || ((node->image[0] & DOLPHIN_FROZEN) && !linked))
        return 0;
    uint64_t ident = node->image[1];
    if (ident >> 40 != DOLPHIN_NODE_MAGIC || dolphin_ident_class(ident) != dolphin_entry_class(node->word) ||
        dolphin_ident_depth(ident) > FAR_KEY_MAX)
        return dolphin_fail_corrupt(op->index, dolphin_entry_addr(node->word), "node");
    set_node_fields(node);
    for (unsigned i = 0; i < node->capacity; i++)
        if (!dolphin_entry_is_sound(node->entries[i])) {
            if (!op->index->lenient)
                return dolphin_fail_corrupt(op->index, dolphin_entry_addr(node->word), "node");
            node->entries[i] = 0; /* the entry before it then covers these positions, and its leaf does not */
        }
    node->proven = true;
    return 1;
}


const uint8_t *dolphin_node_prefix(const dolphin_node *node) {
    return (const uint8_t *)(node->image + (node->depth > DOLPHIN_INLINE_PREFIX_MAX ? 3 : 2));
}


bool dolphin_node_has_prefix_of(const dolphin_node *node, far_bytes key) {
    return key.length >= node->depth &&
           (node->depth == 0 || memcmp(dolphin_node_prefix(node), key.data, node->depth) == 0);
}


int dolphin_find_entry(const dolphin_node *node, unsigned position) {
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


unsigned dolphin_count_free_entries(const dolphin_node *node) {
    unsigned count = 0;
    for (unsigned i = 0; i < node->capacity; i++)
        count += node->entries[i] == 0;
    return count;
}


/* Initialises a node image without a lock word and without entries. */
int dolphin_init_node_image(dolphin_op *op, const uint8_t *prefix, unsigned depth, unsigned class, dolphin_node *node) {
    unsigned bytes = dolphin_class_bytes(class);
    *node = (dolphin_node){.image = far_scratch(op->t, bytes)};
    if (!node->image)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a node");
    memset(node->image, 0, bytes);
    node->image[1] = dolphin_node_ident(depth, class);
    node->image[2] = dolphin_prefix_word(op->st, prefix, depth);
    if (depth > DOLPHIN_INLINE_PREFIX_MAX)
        memcpy(node->image + 3, prefix, depth);
    set_node_fields(node);
    return 0;
}


/* Returns the memory node for a node with this prefix, and for its leaves. Nodes whose prefixes differ only in the last
 * byte are placed on the memory nodes in turn. */
unsigned dolphin_choose_memory_node(const dolphin_op *op, const uint8_t *prefix, unsigned depth) {
    uint64_t turn =
        depth ? far_hash((far_bytes){prefix, depth - 1}, op->st->hash_seed + depth) % 256 + prefix[depth - 1] : 0;
    return (unsigned)(turn % far_task_nodes(op->t));
}
