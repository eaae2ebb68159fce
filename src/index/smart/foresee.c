/* What a scan will need, as the cache knows it: the nodes and leaves from its first key on are READ at once, together
 * with the slots of the root. Their addresses prove nothing: a node or leaf counts when a word that the scan READs
 * itself names it, and when it was seen LIVE, whole and of one life. Then it has been that object since, because we are
 * pinned; and its words, with F clear, were those of a linked node when they were READ. So nothing is missed that was
 * there all the time, and a scan of what is cached takes one round trip. */
#include "base/error.h"
#include "index/smart/cache.h"
#include "index/smart/pass.h"

#include <string.h>

#define NODES_MAX  128u
#define SIGHTS_MAX (NODES_MAX + SMART_BATCH_MAX)
#define PLACES     (4u * SIGHTS_MAX) /* of the table, a power of two */

_Static_assert((PLACES & (PLACES - 1)) == 0, "a power of two");

typedef struct sight {
    far_addr addr;
    smart_node node; /* image NULL: it is a leaf */
    smart_leaf leaf;
} sight;

typedef struct smart_foresight {
    sight sights[SIGHTS_MAX];
    uint16_t place[PLACES]; /* number of a sight + 1, by address; 0: none */
    unsigned count, used;
} smart_foresight;

typedef struct gathering { /* words from the cache in the order of keys */
    const smart_pass *p;
    uint64_t words[SIGHTS_MAX];
    unsigned nodes, leaves, wanted;
} gathering;


static bool has_enough(const gathering *g) {
    return g->leaves >= g->wanted || g->nodes == NODES_MAX;
}


static void add(gathering *g, uint64_t word) {
    g->words[g->nodes + g->leaves] = word & ~SMART_CACHED_REC;
    if (smart_word_is(word) == SMART_LEAF)
        g->leaves++;
    else
        g->nodes++;
}


/* The path of the node and the bound, from byte `from` on; *on: they agreed so far, and do after. -1, 1: the path, and
 * all below it, is before or after the bound. */
static int compare_path(const smart_local *c, unsigned from, far_bytes bound, bool *on) {
    const uint8_t *bytes = bound.data, *path = smart_local_path(c);
    for (unsigned i = 0; *on && i < c->skip; i++) {
        if (from + i < bound.length && path[i] == bytes[from + i])
            continue;
        *on = false;
        return from + i >= bound.length || path[i] > bytes[from + i] ? 1 : -1;
    }
    return 0;
}


static void gather(gathering *g, const smart_local *c, unsigned from, bool on_path, bool on_end) {
    const smart_pass *p = g->p;
    if (compare_path(c, from, p->op.key, &on_path) < 0 || compare_path(c, from, p->end.key, &on_end) > 0)
        return;
    unsigned depth = smart_local_depth(c), layout = smart_local_layout(c),
             low = on_path ? smart_part_rank(smart_part(p->op.key, depth)) : 0,
             high = on_end ? smart_part_rank(smart_part(p->end.key, depth)) : SMART_PARTS;
    if (smart_local_addr(c)) {
        unsigned words = c->count + 1u, type = smart_read_type_for(words < 13 ? 13 : words, layout, SMART_READ_TYPES);
        add(g, smart_word(smart_local_addr(c), 0, SMART_NODE, type));
    }
    for (unsigned i = 0; i < c->count && !has_enough(g); i++) {
        uint64_t entry = smart_local_entries(c)[i];
        unsigned rank = smart_part_rank(smart_entry_part(entry));
        if (rank < low || rank > high)
            continue;
        if (smart_entry_is_local(entry))
            gather(g, smart_entry_local(entry), depth + 1, on_path && rank == low, on_end && rank == high);
        else
            add(g, entry);
    }
}


/* Returns behind which slot of the root it stopped. */
static unsigned gather_all(gathering *g, smart_cache *cache, unsigned first) {
    const smart_pass *p = g->p;
    unsigned b = first;
    for (; b < p->root_end && !has_enough(g); b++) {
        const smart_shard *shard = &cache->shard[b];
        unsigned place = far_readers_enter(&cache->readers, &shard->lock, b);
        if (smart_entry_is_local(shard->top))
            gather(g, smart_entry_local(shard->top), 1, p->op.key.length && b == smart_part(p->op.key, 0),
                   p->bounded && b == smart_part(p->end.key, 0));
        else if (shard->top)
            add(g, shard->top);
        far_readers_leave(&cache->readers, place);
    }
    return b;
}


static unsigned place_of(far_addr addr) {
    return (unsigned)((addr * 0x9e3779b97f4a7c15ull) >> 40) & (PLACES - 1);
}


/* Puts the READ of what the word names; what cannot be it is left out. */
static int put_sight(smart_pass *p, smart_foresight *f, uint64_t word) {
    far_addr addr = smart_word_addr(word);
    sight *s = &f->sights[f->count];
    bool leaf = smart_word_is(word) == SMART_LEAF;
    unsigned class = leaf ? smart_leaf_class(p->op.st, word) : 0, type = smart_word_read_type(word);
    unsigned bytes = leaf ? (class < SMART_CLASSES ? smart_class_bytes(class) : 0)
                          : (type == SMART_READ_DIR ? smart_layout_bytes(SMART_DIR) : smart_read_bytes(type));
    if (bytes == 0 || !far_task_reaches(p->op.t, addr, bytes))
        return 0;
    *s = (sight){.addr = addr};
    int err =
        leaf ? smart_put_read_leaf(&p->op, addr, class, &s->leaf) : smart_put_read_node(&p->op, word, true, &s->node);
    if (err < 0)
        return err;
    far_mark(p->op.t, FAR_VERB_UNPROVEN | FAR_VERB_ANY_ORDER);
    unsigned at = place_of(addr);
    while (f->place[at])
        at = (at + 1) & (PLACES - 1);
    f->place[at] = (uint16_t)++f->count;
    return 0;
}


int smart_foresee(smart_pass *p, unsigned first, unsigned *root_end) {
    gathering *g = far_scratch(p->op.t, sizeof(*g));
    smart_foresight *f = far_scratch(p->op.t, sizeof(*f));
    if (!g || !f)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a scan");
    *g = (gathering){.p = p};
    g->wanted = p->wanted && p->wanted < p->op.st->batch ? (unsigned)p->wanted : p->op.st->batch;
    unsigned end = gather_all(g, p->op.st->cache, first);
    if (g->leaves >= g->wanted) {
        *root_end = end;
        p->foreseen = g->leaves;
    }
    memset(f->place, 0, sizeof(f->place));
    f->count = f->used = 0;
    int err = 0;
    for (unsigned i = 0; i < g->nodes + g->leaves && err >= 0; i++)
        err = put_sight(p, f, g->words[i]);
    p->ahead = f;
    return err;
}


static const sight *find_sight(const smart_pass *p, uint64_t word) {
    const smart_foresight *f = p->ahead;
    far_addr addr = smart_word_addr(word);
    for (unsigned at = place_of(addr); f && f->place[at]; at = (at + 1) & (PLACES - 1))
        if (f->sights[f->place[at] - 1].addr == addr)
            return &f->sights[f->place[at] - 1];
    return NULL;
}


static bool use(const smart_pass *p, bool counts) {
    if (p->ahead)
        p->ahead->used += counts;
    if (p->foresees)
        far_count_cache(p->op.t, counts);
    return counts;
}


/* Where others change much, what the cache expects is of little use: READs that did not count are not worth it. Then so
 * many scans go without, twice as many each time, until one is worth it again. By all threads, without care. */
#define BLIND_MAX 256u


bool smart_foresight_is_worth_it(smart_state *st) {
    unsigned left = atomic_load_explicit(&st->blind_left, memory_order_relaxed);
    if (left > 0)
        atomic_store_explicit(&st->blind_left, left - 1, memory_order_relaxed);
    return left == 0;
}


void smart_foresight_judge(const smart_pass *p) {
    smart_state *st = p->op.st;
    const smart_foresight *f = p->ahead;
    unsigned blind = atomic_load_explicit(&st->blind, memory_order_relaxed);
    if (!f || f->count < 8) /* too few to tell */
        return;
    unsigned next = 4 * f->used >= 3 * f->count ? 0 : blind ? 2 * blind : 1;
    if (next > BLIND_MAX)
        next = BLIND_MAX;
    if (next != blind)
        atomic_store_explicit(&st->blind, next, memory_order_relaxed);
    if (next)
        atomic_store_explicit(&st->blind_left, next, memory_order_relaxed);
}


bool smart_is_foreseen(const smart_pass *p, uint64_t word) {
    return find_sight(p, word) != NULL;
}


bool smart_foreseen_node(const smart_pass *p, uint64_t word, smart_node *node) {
    const sight *s = find_sight(p, word);
    bool counts = false;
    if (s && s->node.image) {
        *node = s->node;
        counts = smart_take_node(&p->op, node) && smart_ctl_state(node->ctl) == SMART_LIVE &&
                 (node->layout == SMART_DIR) == (node->words == smart_layout_slots(SMART_DIR)) &&
                 !smart_may_mix_lives(&p->op, node->ctl, node->addr, SMART_HEADER + 8 * node->words);
    }
    return use(p, counts);
}


bool smart_foreseen_leaf(const smart_pass *p, uint64_t word, smart_leaf *leaf) {
    const sight *s = find_sight(p, word);
    bool counts = false;
    if (s && s->leaf.image && s->leaf.class == smart_leaf_class(p->op.st, word)) {
        *leaf = s->leaf;
        counts = smart_take_leaf(leaf, leaf->class) && smart_leaf_is_certain(&p->op, leaf);
    }
    return use(p, counts);
}
