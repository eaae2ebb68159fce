/* In a scan with read-ahead, the nodes and leaves that the cache names from the first key on are READ in one batch with
 * the slots of the root. Their addresses prove nothing. An image counts if a word that the scan itself READs names the
 * object, and if the image shows it LIVE, whole and of one incarnation. Then it has been the same object since it was
 * READ, because the scan is pinned; and its unfrozen words were those of a linked node at that time. So the scan misses
 * no key that is present throughout, and a scan of cached keys takes one round trip. scan.c calls the functions, which
 * traversal.h describes. */
#include "base/error.h"
#include "index/smart/cache.h"
#include "index/smart/traversal.h"

#include <string.h>

#define NODES_MAX   128u
#define OBJECTS_MAX (NODES_MAX + SMART_SCAN_BATCH_MAX)
#define PLACES      (4u * OBJECTS_MAX) /* number of places in the hash table, a power of two */

_Static_assert((PLACES & (PLACES - 1)) == 0, "a power of two");

typedef struct object {
    far_addr addr;
    smart_node node; /* the node that was READ; image NULL: the object is a leaf */
    smart_leaf leaf;
} object;

typedef struct smart_readahead {
    object objects[OBJECTS_MAX];
    uint16_t place[PLACES]; /* hash table by address, which contains the number of an object + 1; 0: empty */
    unsigned count, used;
} smart_readahead;

typedef struct word_list { /* list of words from the cache, in the order in which the traversal visits them */
    const smart_traversal *p;
    uint64_t words[OBJECTS_MAX];
    unsigned nodes, leaves, wanted;
} word_list;


static bool has_enough(const word_list *g) {
    return g->leaves >= g->wanted || g->nodes == NODES_MAX;
}


static void append_word(word_list *g, uint64_t word) {
    g->words[g->nodes + g->leaves] = word & ~SMART_CACHED_RECYCLED;
    if (smart_word_kind_of(word) == SMART_LEAF)
        g->leaves++;
    else
        g->nodes++;
}


/* Compares the path of the local node with the bound, from the bound's byte `from` on. On entry, *on is true if the
 * bytes before `from` agreed; it is set to false if the path differs. Returns -1 if the path, and so the whole subtree,
 * precedes the bound, 1 if it follows the bound, else 0. */
static int compare_path(const smart_local *c, unsigned from, far_bytes bound, bool *on) {
    const uint8_t *bytes = bound.data, *path = smart_local_path(c);
    for (unsigned i = 0; *on && i < c->path_length; i++) {
        if (from + i < bound.length && path[i] == bytes[from + i])
            continue;
        *on = false;
        return from + i >= bound.length || path[i] > bytes[from + i] ? 1 : -1;
    }
    return 0;
}


static void collect_subtree(word_list *g, const smart_local *c, unsigned from, bool on_low, bool on_high) {
    const smart_traversal *p = g->p;
    if (compare_path(c, from, p->op.key, &on_low) < 0 || compare_path(c, from, p->high.key, &on_high) > 0)
        return;
    unsigned depth = smart_local_depth(c), layout = smart_local_layout(c),
             low = on_low ? smart_part_rank(smart_part(p->op.key, depth)) : 0,
             high = on_high ? smart_part_rank(smart_part(p->high.key, depth)) : SMART_PARTS;
    if (smart_local_addr(c)) {
        unsigned words = c->count + 1u, type = smart_read_type_for(words < 13 ? 13 : words, layout, SMART_READ_TYPES);
        append_word(g, smart_word(smart_local_addr(c), 0, SMART_NODE, type));
    }
    for (unsigned i = 0; i < c->count && !has_enough(g); i++) {
        uint64_t entry = smart_local_entries(c)[p->backward ? c->count - 1 - i : i];
        unsigned rank = smart_part_rank(smart_entry_part(entry));
        if (rank < low || rank > high)
            continue;
        if (smart_entry_is_local(entry))
            collect_subtree(g, smart_entry_local(entry), depth + 1, on_low && rank == low, on_high && rank == high);
        else
            append_word(g, entry);
    }
}


/* Collects the cached words of one root slot. */
static void collect_root_slot(word_list *g, smart_cache *cache, unsigned b) {
    const smart_traversal *p = g->p;
    const smart_shard *shard = &cache->shard[b];
    unsigned place = far_readers_enter(&cache->readers, &shard->lock, b);
    if (smart_entry_is_local(shard->top))
        collect_subtree(g, smart_entry_local(shard->top), 1, p->op.key.length && b == smart_part(p->op.key, 0),
                        p->bounded && b == smart_part(p->high.key, 0));
    else if (shard->top)
        append_word(g, shard->top);
    far_readers_leave(&cache->readers, place);
}


/* Collects the cached words in the range. Returns the number of root slots to which they belong. */
static unsigned collect_cached_words(word_list *g, smart_cache *cache) {
    const smart_traversal *p = g->p;
    unsigned count = 0;
    for (; count < p->root_end - p->root_next && !has_enough(g); count++)
        collect_root_slot(g, cache, p->backward ? p->root_end - 1 - count : p->root_next + count);
    return count;
}


static unsigned table_place(far_addr addr) {
    return (unsigned)((addr * 0x9e3779b97f4a7c15ull) >> 40) & (PLACES - 1);
}


/* Adds the READ of the object that the word names, unless its address or size cannot be right. */
static int put_object_read(smart_traversal *p, smart_readahead *f, uint64_t word) {
    far_addr addr = smart_word_addr(word);
    object *s = &f->objects[f->count];
    bool leaf = smart_word_kind_of(word) == SMART_LEAF;
    unsigned class = leaf ? smart_leaf_class(p->op.st, word) : 0, type = smart_word_read_type(word);
    unsigned bytes = leaf ? (class < SMART_CLASSES ? smart_class_bytes(class) : 0)
                          : (type == SMART_READ_DIR ? smart_layout_bytes(SMART_DIR) : smart_read_bytes(type));
    if (bytes == 0 || !far_task_reaches(p->op.t, addr, bytes))
        return 0;
    *s = (object){.addr = addr};
    int err =
        leaf ? smart_put_read_leaf(&p->op, addr, class, &s->leaf) : smart_put_read_node(&p->op, word, true, &s->node);
    if (err < 0)
        return err;
    far_mark(p->op.t, FAR_VERB_UNPROVEN | FAR_VERB_ANY_ORDER);
    unsigned at = table_place(addr);
    while (f->place[at])
        at = (at + 1) & (PLACES - 1);
    f->place[at] = (uint16_t)++f->count;
    return 0;
}


int smart_read_ahead(smart_traversal *p, unsigned *root_slots) {
    word_list *g = far_scratch(p->op.t, sizeof(*g));
    smart_readahead *f = far_scratch(p->op.t, sizeof(*f));
    if (!g || !f)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a scan");
    *g = (word_list){.p = p};
    g->wanted = p->wanted && p->wanted < p->op.st->scan_batch ? (unsigned)p->wanted : p->op.st->scan_batch;
    unsigned slots = collect_cached_words(g, p->op.st->cache);
    if (g->leaves >= g->wanted) {
        *root_slots = slots;
        p->readahead_leaves_left = g->leaves;
    }
    memset(f->place, 0, sizeof(f->place));
    f->count = f->used = 0;
    int err = 0;
    for (unsigned i = 0; i < g->nodes + g->leaves && err >= 0; i++)
        err = put_object_read(p, f, g->words[i]);
    p->readahead = f;
    return err;
}


static const object *find_object(const smart_traversal *p, uint64_t word) {
    const smart_readahead *f = p->readahead;
    far_addr addr = smart_word_addr(word);
    for (unsigned at = table_place(addr); f && f->place[at]; at = (at + 1) & (PLACES - 1))
        if (f->objects[f->place[at] - 1].addr == addr)
            return &f->objects[f->place[at] - 1];
    return NULL;
}


static bool count_use(const smart_traversal *p, bool counts) {
    if (p->readahead)
        p->readahead->used += counts;
    if (p->reads_ahead)
        far_count_cache(p->op.t, counts);
    return counts;
}


/* Largest number of scans that skip read-ahead after a wasteful one. If other clients change much, the cache names few
 * objects that the scan needs, and most READs in advance are wasted. Then a number of scans skip read-ahead. This
 * number doubles each time until a read-ahead was useful. All threads change these counters without synchronization. */
#define PAUSE_MAX 256u


bool smart_readahead_decide(smart_state *st) {
    unsigned left = atomic_load_explicit(&st->readahead_skips_left, memory_order_relaxed);
    if (left > 0)
        atomic_store_explicit(&st->readahead_skips_left, left - 1, memory_order_relaxed);
    return left == 0;
}


void smart_readahead_evaluate(const smart_traversal *p) {
    smart_state *st = p->op.st;
    const smart_readahead *f = p->readahead;
    unsigned blind = atomic_load_explicit(&st->readahead_skips, memory_order_relaxed);
    if (!f || f->count < 8) /* the number of objects is too small to judge whether read-ahead was useful */
        return;
    unsigned next = 4 * f->used >= 3 * f->count ? 0 : blind ? 2 * blind : 1;
    if (next > PAUSE_MAX)
        next = PAUSE_MAX;
    if (next != blind)
        atomic_store_explicit(&st->readahead_skips, next, memory_order_relaxed);
    if (next)
        atomic_store_explicit(&st->readahead_skips_left, next, memory_order_relaxed);
}


bool smart_was_read_ahead(const smart_traversal *p, uint64_t word) {
    return find_object(p, word) != NULL;
}


bool smart_take_readahead_node(const smart_traversal *p, uint64_t word, smart_node *node) {
    const object *s = find_object(p, word);
    bool counts = false;
    if (s && s->node.image) {
        *node = s->node;
        counts = smart_take_node(&p->op, node) && smart_ctl_state(node->ctl) == SMART_LIVE &&
                 (node->layout == SMART_DIR) == (node->words == smart_layout_slots(SMART_DIR)) &&
                 !smart_may_mix_incarnations(&p->op, node->ctl, node->addr, SMART_HEADER + 8 * node->words);
    }
    return count_use(p, counts);
}


bool smart_take_readahead_leaf(const smart_traversal *p, uint64_t word, smart_leaf *leaf) {
    const object *s = find_object(p, word);
    bool counts = false;
    if (s && s->leaf.image && s->leaf.class == smart_leaf_class(p->op.st, word)) {
        *leaf = s->leaf;
        counts = smart_take_leaf(leaf, leaf->class) && smart_leaf_is_certain(&p->op, leaf);
    }
    return count_use(p, counts);
}
