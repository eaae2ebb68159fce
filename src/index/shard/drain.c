/* The drain of both layouts: empties levels 2 and 3 of generation d-1, once every bucket is at version d. How a layout
 * moves one entry: pdrain.c, idrain.c.
 *
 * Nothing is added to that generation any more: that takes the lock of a home at version d-1. So a word that a look has
 * seen without a key never gets one again, and the same holds of the end of a chain; a step looks at many words in one
 * batch and works on the first bucket that has something left. (I: a claim (BUSY) there is a dead client's: a living
 * one would hold the lock of its home, which could not have been split then.)
 *
 * Nodes of a chain are unlinked from its head as soon as they are empty: a step begins at the head and finds what is
 * left. Readers that stand on an unlinked node go on from there: its link stays. */
#include "base/error.h"
#include "index/shard/shard.h"

enum {
    HEADS = SHARD_LOOK / SHARD_PER_HEAD + 1,
    TRIPS_LEAST = 3, /* enough to move one key of a chain: every step gets on */
};

typedef struct look { /* at some buckets of level 2, and at the heads of the chains that go with them */
    far_addr l2, l3;
    uint64_t first, count, first_head, heads;
    uint64_t line[SHARD_LOOK][SHARD_L2_BYTES / 8];
    shard_node head[HEADS];
} look;


/* 1: read; 0: there are no such tables. */
static int look_at(far_task *t, const shard_state *st, shard_partition *part, unsigned generation, look *l) {
    uint64_t size = shard_node_bytes(st), left = part->end - part->next, heads = shard_heads(st->b, generation);
    int err = shard_overflow_addrs(t, part, generation, &l->l2, &l->l3);
    if (err < 0 || !l->l2 || !l->l3)
        return err;
    l->first = part->next;
    l->count = left < SHARD_LOOK ? left : SHARD_LOOK;
    l->first_head = (l->first + SHARD_PER_HEAD - 1) / SHARD_PER_HEAD;
    uint64_t end = (l->first + l->count + SHARD_PER_HEAD - 1) / SHARD_PER_HEAD;
    end = end < heads ? end : heads;
    l->heads = end > l->first_head ? end - l->first_head : 0;
    far_read(t, l->l2 + SHARD_L2_BYTES * l->first, l->line, SHARD_L2_BYTES * l->count);
    for (uint64_t i = 0; i < l->heads; i++)
        far_read(t, l->l3 + size * (l->first_head + i), &l->head[i], size);
    err = far_wait(t);
    return err < 0 ? err : 1;
}


bool shard_line_is_empty(const shard_state *st, const uint64_t *line) {
    for (unsigned i = st->inlined; i < SHARD_L2_BYTES / 8; i += 1 + st->inlined)
        if (shard_is_live(line[i]))
            return false;
    return true;
}


bool shard_node_is_empty(const shard_state *st, const shard_node *node) {
    for (unsigned i = 0; i < (st->inlined ? SHARD_I_NODE_SLOTS : SHARD_P_NODE_SLOTS); i++)
        if (st->inlined ? node->i.slot[i].state & SHARD_STATE_LIVE : shard_is_live(node->p.entry[i]))
            return false;
    return true;
}


/* The head whose chain is drained with the bucket; NULL: none. */
static const shard_node *head_of(const look *l, uint64_t bucket) {
    uint64_t head = bucket / SHARD_PER_HEAD;
    if (bucket % SHARD_PER_HEAD || head < l->first_head || head >= l->first_head + l->heads)
        return NULL;
    return &l->head[head - l->first_head];
}


static bool is_clear(const shard_state *st, const look *l, uint64_t bucket) {
    const shard_node *head = head_of(l, bucket);
    return shard_line_is_empty(st, l->line[bucket - l->first]) &&
           (!head || (shard_node_is_empty(st, head) && *shard_next_of(st, head) == 0));
}


static int drain_node(shard_try *y, far_addr at, const shard_node *node) {
    return y->st->inlined ? shard_i_drain_node(y, at, &node->i)
                          : shard_p_drain_words(y, at, node->p.entry, SHARD_P_NODE_SLOTS);
}


/* The chain from `at` on, whose next node is known, has an end: what is taken out of one that goes round would be met
 * again, and given back twice. */
static int prove_end(shard_try *y, far_addr at, uint64_t next) {
    shard_chain chain = {0};
    int err = shard_follow(y->index, &chain, at);
    while (err == 0 && next != 0) {
        at = next;
        if ((err = shard_follow(y->index, &chain, at)) == 0)
            err = far_read_word(y->t, at + shard_node_bytes(y->st) - 8, &next);
        y->trips--;
    }
    return err;
}


/* Takes the node *at, which is empty, out of the chain that begins behind `link`; *at: the node behind it. */
static int unlink_node(shard_try *y, far_addr link, far_addr next, far_addr *at) {
    uint64_t old;
    far_point(y->t, "shard:unlink");
    int err = far_cas_word(y->t, link, *at, next, &old);
    if (err < 0)
        return err;
    y->trips--;
    shard_count(&y->st->counters.unlinked);
    if (old == *at)
        far_retire(y->t, y->index, SHARD_TYPE_NODE, *at, shard_node_bytes(y->st));
    *at = old == *at ? next : old;
    return SHARD_GONE;
}


/* What could not be moved now keeps its node, and nodes behind it are unlinked later: only the link in the head ever
 * changes, so that two who unlink cannot bring back each other's nodes. */
static int drain_chain(shard_try *y, far_addr head, const shard_node *first) {
    shard_node node = *first;
    uint64_t size = shard_node_bytes(y->st);
    int all = drain_node(y, head, &node), err;
    bool in_front = true;
    shard_chain chain = {0};
    for (far_addr at = *shard_next_of(y->st, &node); all != SHARD_MORE && all >= 0 && at;) {
        if (y->trips <= 0)
            return SHARD_MORE;
        if ((err = shard_follow(y->index, &chain, at)) < 0)
            return err;
        far_read(y->t, at, &node, size);
        y->trips--;
        if ((err = far_wait(y->t)) < 0 || (err = drain_node(y, at, &node)) < 0 || err == SHARD_MORE)
            return err;
        in_front &= err == SHARD_GONE;
        if (err == SHARD_LEFT)
            all = SHARD_LEFT;
        if (in_front && y->part->ends != head && (err = prove_end(y, at, *shard_next_of(y->st, &node))) < 0)
            return err;
        if (in_front)
            y->part->ends = head;
        if (!in_front)
            at = *shard_next_of(y->st, &node);
        else if ((err = unlink_node(y, head + size - 8, *shard_next_of(y->st, &node), &at)) < 0)
            return err;
    }
    return in_front || all != SHARD_GONE ? all : SHARD_LEFT;
}


static int drain_bucket(shard_try *y, const look *l, uint64_t bucket) {
    const shard_state *st = y->st;
    far_addr at = l->l2 + SHARD_L2_BYTES * bucket;
    const uint64_t *line = l->line[bucket - l->first];
    const shard_node *head = head_of(l, bucket);
    int all = st->inlined ? shard_i_drain_l2(y, at, line, bucket) : shard_p_drain_words(y, at, line, SHARD_L2_P_SLOTS);
    if (all < 0 || all == SHARD_MORE || !head)
        return all;
    int err = drain_chain(y, l->l3 + shard_node_bytes(st) * (bucket / SHARD_PER_HEAD), head);
    return err == SHARD_GONE ? all : err;
}


/* From part->next on. 1: something was done; 0: a bucket had to be left, because somebody has a lock. */
int shard_drain_step(far_task *t, far_index *index, shard_partition *part, unsigned d, int *trips) {
    shard_state *st = shard_state_of(index);
    look *l = far_scratch(t, sizeof(*l));
    int allowed = *trips < TRIPS_LEAST ? TRIPS_LEAST : *trips;
    shard_try y = {.t = t, .index = index, .st = st, .part = part, .d = d, .phase = SHARD_DRAIN, .trips = allowed};
    if (!l || !(y.home = far_scratch(t, sizeof(*y.home))))
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a bucket");
    int err = look_at(t, st, part, d - 1, l);
    if (err <= 0) {
        part->next = part->end; /* nothing there, or nothing is known */
        return err < 0 ? err : 1;
    }
    while (part->next < l->first + l->count && is_clear(st, l, part->next))
        part->next++;
    if (part->next == l->first + l->count)
        return 1;
    far_point(t, "shard:drain_looked");
    err = drain_bucket(&y, l, part->next);
    *trips -= allowed - y.trips;
    if (err == SHARD_MORE)
        return 1; /* the next step comes back to it */
    part->next++;
    return err;
}


/* Where the key of that hash goes when it is moved up. */
int shard_drain_home(shard_try *y, uint64_t h) {
    const shard_state *st = y->st;
    if ((h & shard_mask(st->p)) != y->part->number)
        return far_fail(FAR_ERR_CORRUPT, "index '%s': a key lies in another partition than its own", y->index->name);
    y->h = h;
    y->home->bucket = shard_bucket(h, st->p, st->b, y->d);
    return shard_bucket_addr(y->t, y->st, y->part, y->home->bucket, &y->home->addr);
}
