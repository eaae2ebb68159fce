/* Nodes in local memory: where a symbol stands, what type fits, how a node is built. Pure functions. */
#include "index/dart/dart.h"

#include <assert.h>
#include <string.h>

#include <xxhash.h>


void dart_slot_range(const dart_index *dart, dart_node_type type, unsigned depth, unsigned symbol, unsigned *first,
                     unsigned *count) {
    if (type == DART_N256) { /* by position: END is 256 */
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


bool dart_fits(const dart_index *dart, dart_node_type type, unsigned depth, const dart_children *children) {
    unsigned filled[DART_NODE_SLOTS_MAX] = {0}, buckets = dart_buckets(type, dart->bucket);
    if (type == DART_N256)
        return true;
    for (unsigned i = 0; i < children->count; i++)
        if (++filled[dart_bucket_of(dart_word_symbol(children->words[i]), buckets)] >
            dart_bucket_slots(type, depth, dart->bucket))
            return false;
    return true;
}


/* After a purge a quarter must be free: otherwise the next inserts rebuild it at once. N160 is only read, where an
 * older version has made one: large nodes grow in wide steps, because every step freezes all slots. */
dart_node_type dart_choose_type(const dart_index *dart, unsigned depth, const dart_children *children, bool purged) {
    dart_node_type type = DART_N4;
    while (type < DART_N256 && (type == DART_N160 || !dart_fits(dart, type, depth, children) ||
                                (purged && 4 * children->count > 3 * dart_node_slots(type, depth, dart->bucket))))
        type++;
    assert(dart_fits(dart, type, depth, children));
    return type;
}


void dart_build(const dart_index *dart, dart_node_type type, far_bytes prefix, bool spare,
                const dart_children *children, void *image) {
    dart_header *header = image;
    unsigned filled[DART_NODE_SLOTS_MAX] = {0}, depth = (unsigned)prefix.length,
             slots = dart_node_slots(type, depth, dart->bucket);
    uint64_t *words = (uint64_t *)((char *)image + dart_header_bytes(depth));
    memset(image, 0, dart_header_bytes(depth) + 8ull * slots);
    header->word = dart_header_word(depth, type, spare);
    if (depth)
        memcpy(header->prefix, prefix.data, depth);
    for (unsigned i = 0; i < children->count; i++) {
        unsigned first, count, symbol = dart_word_symbol(children->words[i]);
        dart_slot_range(dart, type, depth, symbol, &first, &count);
        assert(filled[first] < count && words[first + filled[first]] == 0);
        words[first + filled[first]++] = dart_thawed(children->words[i]);
    }
}


/* Nodes are spread over the memory nodes by their prefix where descents begin, near the root and where the depth passes
 * a power of two, as the first lists of the skip table have it. In between a node lies where its parent does: so
 * subtrees hang together, and a split there is one batch. */
unsigned dart_place(const dart_index *dart, unsigned nodes, far_bytes prefix, unsigned parent_depth, unsigned near) {
    unsigned depth = (unsigned)prefix.length;
    if (!dart->colocate)
        return (near + 1) % nodes;
    if (parent_depth >= 2 && __builtin_clz(parent_depth) == __builtin_clz(depth))
        return near;
    return (unsigned)(XXH3_64bits_withSeed(prefix.data, depth, dart->super.hash_seed) >> 32) % nodes;
}


unsigned dart_lcp(far_bytes a, far_bytes b) {
    const uint8_t *x = a.data, *y = b.data;
    unsigned n = 0, end = (unsigned)(a.length < b.length ? a.length : b.length);
    for (uint64_t v, w; n + 8 <= end; n += 8) { /* eight bytes at a time */
        memcpy(&v, x + n, 8);
        memcpy(&w, y + n, 8);
        if (v != w)
            break;
    }
    while (n < end && x[n] == y[n])
        n++;
    return n;
}


bool dart_header_is(const dart_header *header, const dart_node *node) {
    return dart_header_depth(header) == node->depth && dart_header_may_be(header, node->type);
}
