/* Pure functions on nodes in local memory: where a symbol is stored, which type of node has room for some children, how
 * the image of a node is built, and on which memory node it is allocated. */
#include "index/dart/dart.h"

#include <assert.h>
#include <string.h>

#include <xxhash.h>


void dart_slot_range(const dart_index *dart, dart_node_type type, unsigned depth, unsigned symbol, unsigned *first,
                     unsigned *count) {
    if (type == DART_N256) { /* the slots of an N256 are addressed by position; END is slot 256 */
        *first = symbol;
        *count = 1;
        return;
    }
    *count = dart_bucket_slots(type, depth, dart->bucket);
    *first = dart_bucket_of(symbol, dart_buckets(type, dart->bucket)) * *count;
}


far_addr dart_slot_addr(const dart_node *node, unsigned slot) {
    return node->addr + dart_header_bytes(node->depth) + 8ull * slot;
}


unsigned dart_slot_index(const dart_node *node, far_addr slot) {
    assert(slot >= dart_slot_addr(node, 0) && slot % 8 == 0);
    return (unsigned)((slot - dart_slot_addr(node, 0)) / 8);
}


uint64_t dart_node_size(const dart_index *dart, const dart_node *node) {
    return dart_node_bytes(node->type, node->depth, dart->bucket);
}


int dart_view_search(const dart_index *dart, const dart_view *view, unsigned symbol) {
    unsigned first, count;
    int empty = -1;
    dart_slot_range(dart, view->node.type, view->node.depth, symbol, &first, &count);
    assert(first >= view->first && first + count <= view->first + view->count);
    for (unsigned i = first - view->first; count > 0; i++, count--) {
        uint64_t word = view->slots[i];
        if (dart_is_empty(word)) {
            if (empty < 0)
                empty = (int)i;
        } else if (dart_word_symbol(word) == symbol) {
            return (int)i;
        }
    }
    return empty;
}


bool dart_any_unfrozen(const uint64_t *slots, unsigned count) {
    for (unsigned i = 0; i < count; i++)
        if (!dart_is_frozen(slots[i]))
            return true;
    return false;
}


bool dart_children_fit(const dart_index *dart, dart_node_type type, unsigned depth, const dart_children *children) {
    unsigned filled[DART_NODE_SLOTS_MAX] = {0}, buckets = dart_buckets(type, dart->bucket);
    if (type == DART_N256)
        return true;
    for (unsigned i = 0; i < children->count; i++)
        if (++filled[dart_bucket_of(dart_word_symbol(children->words[i]), buckets)] >
            dart_bucket_slots(type, depth, dart->bucket))
            return false;
    return true;
}


/* A node that was purged of TOMBs must have a quarter of its slots free, because otherwise the next inserts would soon
 * have to replace the node again. New nodes are never of type N160, which only old versions made: large nodes grow in
 * wide steps, because every step freezes all slots. */
dart_node_type dart_choose_type(const dart_index *dart, unsigned depth, const dart_children *children, bool purged) {
    dart_node_type type = DART_N4;
    while (type < DART_N256 && (type == DART_N160 || !dart_children_fit(dart, type, depth, children) ||
                                (purged && 4 * children->count > 3 * dart_node_slots(type, depth, dart->bucket))))
        type++;
    assert(dart_children_fit(dart, type, depth, children));
    return type;
}


void dart_build_node(const dart_index *dart, dart_node_type type, far_bytes prefix, const dart_children *children,
                     void *image) {
    dart_header *header = image;
    unsigned filled[DART_NODE_SLOTS_MAX] = {0}, depth = (unsigned)prefix.length,
             slots = dart_node_slots(type, depth, dart->bucket);
    uint64_t *words = (uint64_t *)((char *)image + dart_header_bytes(depth));
    memset(image, 0, dart_header_bytes(depth) + 8ull * slots);
    header->word = dart_header_word(depth, type);
    if (depth)
        memcpy(header->prefix, prefix.data, depth);
    for (unsigned i = 0; i < children->count; i++) {
        unsigned first, count, symbol = dart_word_symbol(children->words[i]);
        dart_slot_range(dart, type, depth, symbol, &first, &count);
        assert(filled[first] < count && words[first + filled[first]] == 0);
        words[first + filled[first]++] = dart_thawed(children->words[i]);
    }
}


/* New nodes are distributed over the memory nodes by a hash of their prefix at the depths at which descents start: near
 * the root, and where the depth passes a power of two, which are the lengths in the first list of the skip table. At
 * other depths a node is allocated on the memory node of its parent. So subtrees stay together, and a split inside a
 * subtree takes one batch. */
unsigned dart_choose_memory_node(const dart_index *dart, unsigned nodes, far_bytes prefix, unsigned parent_depth,
                                 unsigned near) {
    unsigned depth = (unsigned)prefix.length;
    if (!dart->colocate)
        return (near + 1) % nodes;
    if (parent_depth >= 2 && __builtin_clz(parent_depth) == __builtin_clz(depth))
        return near;
    return (unsigned)(XXH3_64bits_withSeed(prefix.data, depth, dart->super.hash_seed) >> 32) % nodes;
}


unsigned dart_common_prefix(far_bytes a, far_bytes b) {
    const uint8_t *x = a.data, *y = b.data;
    unsigned n = 0, end = (unsigned)(a.length < b.length ? a.length : b.length);
    for (uint64_t v, w; n + 8 <= end; n += 8) { /* compare eight bytes at a time */
        memcpy(&v, x + n, 8);
        memcpy(&w, y + n, 8);
        if (v != w)
            break;
    }
    while (n < end && x[n] == y[n])
        n++;
    return n;
}


bool dart_header_matches(const dart_header *header, const dart_node *node) {
    return dart_header_depth(header) == node->depth && dart_header_has_type(header, node->type);
}
