/* The scan cache: the words of the inner children that a scan saw in a node, by the address of the node. The next scan
 * reads, with a node, all that is kept below it: many levels in one batch.
 *
 * Why that is exact. A line carries the epoch T in which its words stood in a linked node, so what they name may be read
 * by an operation pinned at E <= T+1+x, x = DART_EXTRA_EPOCHS: it is that very node, linked or not (the tag rule of
 * express.c). It counts when a word that this scan read itself names it: then it was linked inside the call, and as its
 * slots are frozen before it is unlinked, each of them was current at a moment inside the call. The order in which the
 * word and the node were read does not matter: a key that is there all the time has the node's prefix if it lies below
 * that word, and then it lies below the node whenever the node is linked.
 *
 * A line of the processor's cache has six words; the children of a large node take several. Tags are whole epochs: none
 * is ever old enough to look new. */
#include "index/dart/ahead.h"
#include "base/error.h"
#include "index/dart/est.h"
#include "pool/epoch.h"

#include <string.h>

#define LINE_WORDS 6u
#define SET_LINES  4u
#define LEVELS_MAX 24u /* of one look ahead: as deep is its recursion */

typedef struct line {
    uint64_t node; /* g of it 44 | number of the line << 44 */
    uint64_t epoch;
    uint64_t words[LINE_WORDS]; /* 0: no more */
} line;

typedef struct line_set {
    line lines[SET_LINES];
} line_set;

#define SETS (DART_CHUNK_WORDS * 8 / sizeof(line_set))

_Static_assert(sizeof(line) == 64 && SETS * sizeof(line_set) == DART_CHUNK_WORDS * 8, "lines fill a chunk");


unsigned dart_usual_children(dart_node_type type) {
    static const uint8_t usual[] = {1, 2, 5, 11, 20, 34, 48, 70, 110, 130, 150, 190, 1};
    return usual[type];
}


/* ---- What is kept ---- */

static uint64_t hash_of(uint64_t node) {
    uint64_t hash = node * 0x9e3779b97f4a7c15ull;
    hash = (hash ^ hash >> 32) * 0xd6e8feb86659fd93ull;
    return hash ^ hash >> 32;
}


static line_set *lock_set(dart_cache *cache, uint64_t hash, bool make, dart_chunk **chunk) {
    *chunk = dart_cache_lock_for(cache, hash, make);
    return *chunk ? (line_set *)(*chunk)->words + (hash >> (DART_CHUNK_SHIFT + 32)) % SETS : NULL;
}


static bool is_fresh(const line *l, uint64_t epoch) {
    return epoch <= l->epoch + 1 + DART_EXTRA_EPOCHS;
}


static bool get_line(dart_cache *cache, uint64_t node, uint64_t epoch, uint64_t words[LINE_WORDS]) {
    dart_chunk *chunk;
    line_set *set = lock_set(cache, hash_of(node), false, &chunk);
    bool found = false;
    for (unsigned i = 0; set && i < SET_LINES && !found; i++)
        if (set->lines[i].node == node && is_fresh(&set->lines[i], epoch)) {
            memcpy(words, set->lines[i].words, sizeof(set->lines[i].words));
            found = true;
        }
    if (set)
        far_spin_unlock(&chunk->lock);
    return found;
}


/* Its own line, one that is of no use, or any. *full: it pushes out another. */
static line *choose_line(line_set *set, uint64_t node, uint64_t epoch, bool *full) {
    line *unused = NULL;
    for (unsigned i = 0; i < SET_LINES; i++) {
        line *l = &set->lines[i];
        if (l->node == node)
            return l;
        if (l->node == 0 || !is_fresh(l, epoch))
            unused = l;
    }
    *full = !unused;
    return unused ? unused : &set->lines[hash_of(node) >> 62];
}


/* True: its set was full. */
static bool put_line(dart_cache *cache, const line *new) {
    dart_chunk *chunk;
    line_set *set = lock_set(cache, hash_of(new->node), true, &chunk);
    bool full = false;
    if (!set)
        return false;
    line *l = choose_line(set, new->node, new->epoch, &full);
    if (l->node != new->node || l->epoch < new->epoch || memcmp(l->words, new->words, sizeof(l->words)) != 0)
        *l = *new;
    far_spin_unlock(&chunk->lock);
    return full;
}


static void move_lines(dart_cache *cache, uint64_t *words, uint64_t epoch) {
    const line *lines = (const line *)words;
    for (unsigned i = 0; i < SETS * SET_LINES; i++)
        if (lines[i].node && is_fresh(&lines[i], epoch))
            put_line(cache, &lines[i]);
}


void dart_ahead_keep(far_task *t, const far_index *index, const dart_node *node, const uint64_t *words,
                     unsigned count) {
    dart_est *est = dart_est_of(index);
    if (!est || est->ahead.count == 0)
        return;
    for (unsigned i = 0; i < count; i += LINE_WORDS) {
        line new = {.node = dart_granule(node->addr) | (uint64_t)(i / LINE_WORDS) << 44, .epoch = far_epoch(t)};
        memcpy(new.words, words + i, (count - i < LINE_WORDS ? count - i : LINE_WORDS) * sizeof(*words));
        if (put_line(&est->ahead, &new))
            dart_cache_was_full(&est->ahead, far_epoch(t), move_lines);
    }
}


/* ---- What is read ahead ---- */

dart_ahead *dart_ahead_new(far_task *t, const far_index *index, size_t enough) {
    const dart_est *est = dart_est_of(index);
    dart_ahead *ahead = est && est->ahead.count ? far_scratch(t, sizeof(*ahead)) : NULL;
    if (!ahead)
        return NULL;
    ahead->count = ahead->put = 0;
    ahead->leaves = 0;
    ahead->enough = enough;
    memset(ahead->place, 0, sizeof(ahead->place));
    return ahead;
}


static unsigned place_of(far_addr addr) {
    return (unsigned)(hash_of(dart_granule(addr)) % (4 * DART_AHEAD_NODES));
}


static void add(dart_ahead *ahead, const dart_node *node, size_t leaves) {
    unsigned at = place_of(node->addr);
    while (ahead->place[at])
        at = (at + 1) % (4 * DART_AHEAD_NODES);
    ahead->sights[ahead->count] = (dart_sight){*node, NULL};
    ahead->place[at] = (uint8_t)++ahead->count;
    ahead->leaves += leaves;
}


static bool has_enough(const dart_ahead *ahead) {
    return ahead->leaves >= ahead->enough || ahead->count == DART_AHEAD_NODES;
}


/* Where a child lies with regard to a bound that begins with the prefix of its node: -1 before it, 0 on the way to it, 1
 * after. */
static int side(unsigned symbol, unsigned depth, const far_bytes *bound) {
    unsigned mine = dart_symbol_rank(symbol), its = dart_symbol_rank(dart_symbol(*bound, depth));
    return (mine > its) - (mine < its);
}


static void gather(far_task *t, dart_cache *cache, dart_ahead *ahead, const dart_node *node, const far_bytes *from,
                   const far_bytes *to, unsigned level) {
    uint64_t words[LINE_WORDS] = {1};
    for (unsigned part = 0; words[LINE_WORDS - 1] || part == 0; part++) {
        if (!get_line(cache, dart_granule(node->addr) | (uint64_t)part << 44, far_epoch(t), words))
            return;
        for (unsigned i = 0; i < LINE_WORDS && words[i] && !has_enough(ahead); i++) {
            unsigned symbol = dart_word_symbol(words[i]);
            int begins = from ? side(symbol, node->depth, from) : 1, ends = to ? side(symbol, node->depth, to) : -1;
            if (begins < 0)
                continue;
            dart_node child = {dart_word_addr(words[i]), dart_word_type(words[i]),
                               node->depth + 1 + dart_word_len(words[i])};
            if (ends > 0 || child.depth > DART_KEY_MAX)
                return;
            ahead->leaves -= ahead->leaves > 0; /* the child was counted as a leaf */
            add(ahead, &child,
                begins == 0 ? 1 : dart_usual_children(child.type)); /* most may lie before the first key */
            if (level < LEVELS_MAX)
                gather(t, cache, ahead, &child, begins == 0 ? from : NULL, ends == 0 ? to : NULL, level + 1);
        }
    }
}


void dart_ahead_gather(far_task *t, const far_index *index, dart_ahead *ahead, const dart_node *node,
                       const far_bytes *from, const far_bytes *to) {
    if (ahead)
        gather(t, &dart_est_of(index)->ahead, ahead, node, from, to, 0);
}


int dart_ahead_put(far_task *t, const far_index *index, dart_ahead *ahead) {
    for (; ahead && ahead->put < ahead->count; ahead->put++) {
        dart_sight *sight = &ahead->sights[ahead->put];
        uint64_t bytes = dart_node_bytes(sight->node.type, sight->node.depth, dart_of(index)->bucket);
        if (!(sight->image = far_scratch(t, bytes)))
            return far_fail(FAR_ERR_NO_MEMORY, "no memory for a scan");
        far_read(t, sight->node.addr, sight->image, bytes);
    }
    return 0;
}


/* Type and depth differ only in damaged memory. */
uint64_t *dart_ahead_find(const dart_ahead *ahead, const dart_node *node) {
    for (unsigned at = place_of(node->addr); ahead && ahead->place[at]; at = (at + 1) % (4 * DART_AHEAD_NODES)) {
        const dart_sight *sight = &ahead->sights[ahead->place[at] - 1];
        if (sight->node.addr == node->addr)
            return sight->node.type == node->type && sight->node.depth == node->depth ? sight->image : NULL;
    }
    return NULL;
}
