/* The scan cache maps a node to the words of its inner children that an earlier scan saw in it. Together with a node,
 * the next scan reads the nodes that the cache names below it, so that one batch reads many levels. traversal.c calls
 * it.
 *
 * Proof that this is exact. A line carries the epoch T in which its words were in a linked node. By the tag rule
 * (skiptable/cache_express.c), an operation that is pinned at E <= T+1+x, where x = DART_EXTRA_EPOCHS, may read the
 * nodes that these words name: the memory still contains the same nodes, linked or not. The scan uses the image of such
 * a node only if a word that the scan itself read names the node. So the node was linked at some moment inside the
 * call. All slots of a node are frozen before it is unlinked, so each word of the image was current at some moment
 * inside the call. It does not matter whether the word or the node was read first: a key that exists throughout the
 * call and is stored below that word has the node's prefix, so it is found below the node at every moment at which the
 * node is linked.
 *
 * A line is one cache line of the processor and holds six words; the children of a large node take several lines. A
 * line contains the complete epoch and not a tag modulo 4096 like the entries of the other caches, so an old line
 * cannot look new. */
#include "index/dart/cache_scan.h"
#include "base/error.h"
#include "index/dart/skiptable/skiptable.h"
#include "pool/epoch/epoch.h"

#include <limits.h>
#include <string.h>

#define LINE_WORDS 6u
#define SET_LINES  4u
#define LEVELS_MAX 24u /* maximal depth of the recursion that collects nodes, because the stack of a task is small */

typedef struct line {
    uint64_t node; /* granule of the node in 44 bits | number of this line << 44, for a node with several lines */
    uint64_t epoch : 56, parts : 8; /* parts: number of lines of the node */
    uint64_t words[LINE_WORDS];     /* slot words of inner children; unused words are 0 */
} line;

typedef struct line_set {
    line lines[SET_LINES];
} line_set;

#define SETS (DART_CHUNK_WORDS * 8 / sizeof(line_set))

_Static_assert(sizeof(line) == 64 && SETS * sizeof(line_set) == DART_CHUNK_WORDS * 8, "the lines fill a chunk");


unsigned dart_expected_children(dart_node_type type) {
    static const uint8_t usual[] = {1, 2, 5, 11, 20, 34, 48, 70, 110, 130, 150, 190, 1};
    return usual[type];
}


/* ---- The lines of the cache ---- */

static uint64_t node_hash(uint64_t node) {
    uint64_t hash = node * 0x9e3779b97f4a7c15ull;
    hash = (hash ^ hash >> 32) * 0xd6e8feb86659fd93ull;
    return hash ^ hash >> 32;
}


static line_set *lock_set(dart_cache *cache, uint64_t hash, bool make, dart_chunk **chunk) {
    *chunk = dart_cache_lock_for(cache, hash, make);
    return *chunk ? (line_set *)(*chunk)->words + (hash >> (DART_CHUNK_SHIFT + 32)) % SETS : NULL;
}


static bool line_is_fresh(const line *l, uint64_t epoch) {
    return epoch <= l->epoch + 1 + DART_EXTRA_EPOCHS;
}


/* Copies the words of a line. Returns the number of lines of its node, or 0 if the cache does not have this line. */
static unsigned get_line(dart_cache *cache, uint64_t node, uint64_t epoch, uint64_t words[LINE_WORDS]) {
    dart_chunk *chunk;
    line_set *set = lock_set(cache, node_hash(node), false, &chunk);
    unsigned parts = 0;
    for (unsigned i = 0; set && i < SET_LINES && parts == 0; i++)
        if (set->lines[i].node == node && line_is_fresh(&set->lines[i], epoch)) {
            memcpy(words, set->lines[i].words, sizeof(set->lines[i].words));
            parts = set->lines[i].parts;
        }
    if (set)
        far_spin_unlock(&chunk->lock);
    return parts;
}


/* Chooses the line of a set that will be overwritten: the line that this node already has, or a line that is unused or
 * too old, or any line. Sets *full if a usable line is evicted. */
static line *choose_victim(line_set *set, uint64_t node, uint64_t epoch, bool *full) {
    line *unused = NULL;
    for (unsigned i = 0; i < SET_LINES; i++) {
        line *l = &set->lines[i];
        if (l->node == node)
            return l;
        if (l->node == 0 || !line_is_fresh(l, epoch))
            unused = l;
    }
    *full = !unused;
    return unused ? unused : &set->lines[node_hash(node) >> 62];
}


/* Stores a line in the cache. Returns true if the set of the line was full. */
static bool put_line(dart_cache *cache, const line *new) {
    dart_chunk *chunk;
    line_set *set = lock_set(cache, node_hash(new->node), true, &chunk);
    bool full = false;
    if (!set)
        return false;
    line *l = choose_victim(set, new->node, new->epoch, &full);
    if (l->node != new->node || l->epoch < new->epoch || l->parts != new->parts ||
        memcmp(l->words, new->words, sizeof(l->words)) != 0)
        *l = *new;
    far_spin_unlock(&chunk->lock);
    return full;
}


static void move_lines(dart_cache *cache, uint64_t *words, uint64_t epoch) {
    const line *lines = (const line *)words;
    for (unsigned i = 0; i < SETS * SET_LINES; i++)
        if (lines[i].node && line_is_fresh(&lines[i], epoch))
            put_line(cache, &lines[i]);
}


void dart_scan_cache_put(far_task *t, const far_index *index, const dart_node *node, const uint64_t *words,
                         unsigned count) {
    dart_est *est = dart_est_of(index);
    if (!est || est->scans.count == 0)
        return;
    for (unsigned i = 0; i < count; i += LINE_WORDS) {
        line new = {.node = dart_granule(node->addr) | (uint64_t)(i / LINE_WORDS) << 44,
                    .epoch = far_epoch(t),
                    .parts = (count + LINE_WORDS - 1) / LINE_WORDS};
        memcpy(new.words, words + i, (count - i < LINE_WORDS ? count - i : LINE_WORDS) * sizeof(*words));
        if (put_line(&est->scans, &new))
            dart_cache_count_full_set(&est->scans, far_epoch(t), move_lines);
    }
}


/* ---- Read-ahead ---- */

dart_read_ahead *dart_read_ahead_new(far_task *t, const far_index *index, size_t enough, bool backward) {
    const dart_est *est = dart_est_of(index);
    dart_read_ahead *ahead = est && est->scans.count ? far_scratch(t, sizeof(*ahead)) : NULL;
    if (!ahead)
        return NULL;
    ahead->older = NULL;
    ahead->backward = backward;
    ahead->count = ahead->added = ahead->last_rank = 0;
    ahead->expected_leaves = 0;
    ahead->wanted_leaves = enough;
    memset(ahead->table, 0, sizeof(ahead->table));
    return ahead;
}


static unsigned table_position(far_addr addr) {
    return (unsigned)(node_hash(dart_granule(addr)) % (4 * DART_READ_AHEAD_NODES));
}


static void add_node(dart_read_ahead *ahead, const dart_node *node, size_t leaves) {
    unsigned at = table_position(node->addr);
    while (ahead->table[at])
        at = (at + 1) % (4 * DART_READ_AHEAD_NODES);
    ahead->nodes[ahead->count] = (dart_read_ahead_node){*node, NULL};
    ahead->table[at] = (uint8_t)++ahead->count;
    ahead->expected_leaves += leaves;
}


static bool has_enough(const dart_read_ahead *ahead) {
    return ahead->expected_leaves >= ahead->wanted_leaves || ahead->count == DART_READ_AHEAD_NODES;
}


/* Compares a child with a bound that begins with the prefix of the child's node. Returns -1 if the child's subtree is
 * before the bound; 0 if the bound may be inside the child's subtree; 1 if the subtree is after the bound. */
static int compare_with_bound(unsigned symbol, unsigned depth, const far_bytes *bound) {
    unsigned mine = dart_symbol_rank(symbol), its = dart_symbol_rank(dart_symbol(*bound, depth));
    return (mine > its) - (mine < its);
}


typedef struct collection { /* what the recursion of collect_below does not change */
    dart_cache *cache;
    dart_read_ahead *ahead;
    uint64_t epoch;
} collection;

static void collect_below(const collection *c, const dart_node *node, const far_bytes *from, const far_bytes *to,
                          unsigned level);


static unsigned get_part(const collection *c, const dart_node *node, unsigned part, uint64_t words[LINE_WORDS]) {
    return get_line(c->cache, dart_granule(node->addr) | (uint64_t)part << 44, c->epoch, words);
}


/* Collects a child and the nodes below it. Returns false if no later child is wanted. */
static bool collect_child(const collection *c, const dart_node *node, uint64_t word, const far_bytes *from,
                          const far_bytes *to, unsigned level) {
    dart_read_ahead *ahead = c->ahead;
    unsigned symbol = dart_word_symbol(word);
    int begins = from ? compare_with_bound(symbol, node->depth, from) : 1,
        ends = to ? compare_with_bound(symbol, node->depth, to) : -1;
    dart_node child = {dart_word_addr(word), dart_word_type(word), node->depth + 1 + dart_word_len(word)};
    if (ahead->backward ? ends > 0 : begins < 0)
        return true;
    if (begins < 0 || ends > 0 || child.depth > DART_KEY_MAX)
        return false;
    /* When the parent was added, this child was counted as one expected leaf. Now the expected children of the child
     * are counted instead. */
    ahead->expected_leaves -= ahead->expected_leaves > 0;
    /* A node at the start of the range counts as one expected leaf only, because most of its children may precede the
     * first wanted key. */
    add_node(ahead, &child, (ahead->backward ? ends : begins) == 0 ? 1 : dart_expected_children(child.type));
    if (level == 0)
        ahead->last_rank = dart_symbol_rank(symbol);
    if (level < LEVELS_MAX)
        collect_below(c, &child, begins == 0 ? from : NULL, ends == 0 ? to : NULL, level + 1);
    return true;
}


static void collect_below(const collection *c, const dart_node *node, const far_bytes *from, const far_bytes *to,
                          unsigned level) {
    uint64_t words[LINE_WORDS];
    bool backward = c->ahead->backward, wanted = true, found = false;
    unsigned parts = get_part(c, node, 0, words);
    for (unsigned n = 0; n < parts && wanted; n++) {
        if (!get_part(c, node, backward ? parts - 1 - n : n, words)) {
            wanted = !found; /* If the lines before the first wanted child are missing, the others are still useful. */
            continue;
        }
        found = true;
        for (unsigned i = 0; i < LINE_WORDS && wanted; i++) {
            uint64_t word = words[backward ? LINE_WORDS - 1 - i : i];
            if (word)
                wanted = !has_enough(c->ahead) && collect_child(c, node, word, from, to, level);
        }
    }
}


void dart_read_ahead_collect(far_task *t, const far_index *index, dart_read_ahead *ahead, const dart_node *node,
                             const far_bytes *from, const far_bytes *to) {
    if (!ahead)
        return;
    collection c = {&dart_est_of(index)->scans, ahead, far_epoch(t)};
    collect_below(&c, node, from, to, 0);
}


int dart_read_ahead_add_reads(far_task *t, const far_index *index, dart_read_ahead *ahead) {
    for (; ahead && ahead->added < ahead->count; ahead->added++) {
        dart_read_ahead_node *ahead_node = &ahead->nodes[ahead->added];
        uint64_t bytes = dart_node_bytes(ahead_node->node.type, ahead_node->node.depth, dart_of(index)->bucket);
        if (!(ahead_node->image = far_scratch(t, bytes)))
            return far_fail(FAR_ERR_NO_MEMORY, "no local memory for a scan");
        far_read(t, ahead_node->node.addr, ahead_node->image, bytes);
    }
    return 0;
}


/* An image is used only if its node has the type and depth that the slot word of `node` states. They can differ only in
 * damaged memory. */
static uint64_t *image_in_batch(const dart_read_ahead *ahead, const dart_node *node) {
    for (unsigned at = table_position(node->addr); ahead->table[at]; at = (at + 1) % (4 * DART_READ_AHEAD_NODES)) {
        const dart_read_ahead_node *ahead_node = &ahead->nodes[ahead->table[at] - 1];
        if (ahead_node->node.addr == node->addr)
            return ahead_node->node.type == node->type && ahead_node->node.depth == node->depth ? ahead_node->image
                                                                                                : NULL;
    }
    return NULL;
}


uint64_t *dart_read_ahead_image(const dart_read_ahead *ahead, const dart_node *node) {
    uint64_t *image = NULL;
    for (; ahead && !image; ahead = ahead->older)
        image = image_in_batch(ahead, node);
    return image;
}
