/* The drain, for both layouts: empties levels 2 and 3 of generation d-1 after every bucket has reached version d.
 * pointer/drain.c and inline/drain.c move a single entry or pair.
 *
 * No key is added to generation d-1 any more, because adding a key requires the lock of a bucket at version d-1. So a
 * word that was read without a key stays without a key, and the end of a chain stays its end. A step reads many words
 * in one batch and works on the first bucket that still has keys. (Inline layout: a BUSY claim in these tables belongs
 * to a failed client, because a live client would still hold the lock of its main bucket, and this bucket could not
 * have been split.)
 *
 * Empty chain nodes are unlinked from the head of their chain at once, so that the next step finds the remaining keys
 * at the head. A reader that has reached an unlinked node can continue, because an unlinked node keeps its link. */
#include "base/error.h"
#include "index/shard/shard.h"

enum {
    HEADS = SHARD_BATCH_BUCKETS / SHARD_PER_HEAD + 1,
    /* minimal number of round trips of a step, enough to move one key of a chain, so that every step makes progress */
    MIN_TRIPS = 3,
};

/* a local copy of some level-2 buckets and of the heads of the chains that are drained with them */
typedef struct drain_window {
    far_addr first_at;       /* address of the first bucket; the others follow it */
    far_addr head_at[HEADS]; /* addresses of the chain heads */
    uint64_t first, count, first_head, heads;
    uint64_t line[SHARD_BATCH_BUCKETS][SHARD_L2_BYTES / 8];
    shard_node head[HEADS];
} drain_window;


/* Reads the next level-2 buckets, up to the end of their extent, and chain heads. Returns 1 if the window was read, 0 if
 * the generation has no tables, or an error. */
static int read_window(far_task *t, const shard_state *st, shard_partition *part, unsigned generation,
                       drain_window *l) {
    uint64_t size = shard_node_bytes(st), left = part->end - part->next, heads = shard_head_count(st->b, generation);
    uint64_t rest = shard_table_rest(st, 2, generation, SHARD_L2_BYTES * part->next) / SHARD_L2_BYTES;
    int err = shard_table_place(t, st, part, 2, generation, SHARD_L2_BYTES * part->next, &l->first_at);
    if (err < 0 || l->first_at == 0)
        return err;
    left = left < rest ? left : rest;
    l->first = part->next;
    l->count = left < SHARD_BATCH_BUCKETS ? left : SHARD_BATCH_BUCKETS;
    l->first_head = (l->first + SHARD_PER_HEAD - 1) / SHARD_PER_HEAD;
    uint64_t end = (l->first + l->count + SHARD_PER_HEAD - 1) / SHARD_PER_HEAD;
    end = end < heads ? end : heads;
    l->heads = end > l->first_head ? end - l->first_head : 0;
    for (uint64_t i = 0; i < l->heads; i++) {
        err = shard_table_place(t, st, part, 3, generation, size * (l->first_head + i), &l->head_at[i]);
        if (err < 0 || l->head_at[i] == 0)
            return err;
    }
    far_read(t, l->first_at, l->line, SHARD_L2_BYTES * l->count);
    for (uint64_t i = 0; i < l->heads; i++)
        far_read(t, l->head_at[i], &l->head[i], size);
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


/* Returns the head of the chain that is drained together with the bucket, or NULL. */
static const shard_node *chain_head_of(const drain_window *l, uint64_t bucket) {
    uint64_t head = bucket / SHARD_PER_HEAD;
    if (bucket % SHARD_PER_HEAD || head < l->first_head || head >= l->first_head + l->heads)
        return NULL;
    return &l->head[head - l->first_head];
}


static bool bucket_is_drained(const shard_state *st, const drain_window *l, uint64_t bucket) {
    const shard_node *head = chain_head_of(l, bucket);
    return shard_line_is_empty(st, l->line[bucket - l->first]) &&
           (!head || (shard_node_is_empty(st, head) && *shard_next_of(st, head) == 0));
}


static int drain_node(shard_op *op, far_addr at, const shard_node *node) {
    return op->st->inlined ? shard_i_drain_node(op, at, &node->i)
                           : shard_p_drain_words(op, at, node->p.entry, SHARD_P_NODE_SLOTS);
}


/* Verifies that a chain has an end. `at` is the address of a node, and `next` is the link in this node. In a corrupt
 * chain with a cycle, an unlinked node would be reached again and retired twice. Returns 0 or an error. */
static int check_chain_ends(shard_op *op, far_addr at, uint64_t next) {
    shard_chain chain = {0};
    int err = shard_chain_step(op->index, &chain, at);
    while (err == 0 && next != 0) {
        at = next;
        if ((err = shard_chain_step(op->index, &chain, at)) == 0)
            err = far_read_word(op->t, at + shard_node_bytes(op->st) - 8, &next);
        op->trips--;
    }
    return err;
}


/* Unlinks the empty node *at, which follows the head. The link word of the head is at `link`. Sets *at to the next
 * node. */
static int unlink_node(shard_op *op, far_addr link, far_addr next, far_addr *at) {
    uint64_t old;
    far_point(op->t, "shard:unlink");
    int err = far_cas_word(op->t, link, *at, next, &old);
    if (err < 0)
        return err;
    op->trips--;
    shard_count_event(&op->st->counters.unlinked);
    if (old == *at)
        far_retire(op->t, op->index, SHARD_TYPE_NODE, *at, shard_node_bytes(op->st));
    *at = old == *at ? next : old;
    return SHARD_DRAINED;
}


/* Drains a chain. A node with a key that cannot be moved now stays in the chain, and the empty nodes after it are
 * unlinked later. Only the link in the head changes, so two clients that unlink nodes at the same time cannot link each
 * other's unlinked nodes again. */
static int drain_chain(shard_op *op, far_addr head, const shard_node *first) {
    shard_node node = *first;
    uint64_t size = shard_node_bytes(op->st);
    int all = drain_node(op, head, &node), err;
    bool in_front = true;
    shard_chain chain = {0};
    for (far_addr at = *shard_next_of(op->st, &node); all != SHARD_DRAIN_MORE && all >= 0 && at;) {
        if (op->trips <= 0)
            return SHARD_DRAIN_MORE;
        if ((err = shard_chain_step(op->index, &chain, at)) < 0)
            return err;
        far_read(op->t, at, &node, size);
        op->trips--;
        if ((err = far_wait(op->t)) < 0 || (err = drain_node(op, at, &node)) < 0 || err == SHARD_DRAIN_MORE)
            return err;
        in_front &= err == SHARD_DRAINED;
        if (err == SHARD_DRAIN_BLOCKED)
            all = SHARD_DRAIN_BLOCKED;
        if (in_front && op->part->finite_chain != head &&
            (err = check_chain_ends(op, at, *shard_next_of(op->st, &node))) < 0)
            return err;
        if (in_front)
            op->part->finite_chain = head;
        if (!in_front)
            at = *shard_next_of(op->st, &node);
        else if ((err = unlink_node(op, head + size - 8, *shard_next_of(op->st, &node), &at)) < 0)
            return err;
    }
    return in_front || all != SHARD_DRAINED ? all : SHARD_DRAIN_BLOCKED;
}


static int drain_bucket(shard_op *op, const drain_window *l, uint64_t bucket) {
    const shard_state *st = op->st;
    far_addr at = l->first_at + SHARD_L2_BYTES * (bucket - l->first);
    const uint64_t *line = l->line[bucket - l->first];
    const shard_node *head = chain_head_of(l, bucket);
    int all =
        st->inlined ? shard_i_drain_l2(op, at, line, bucket) : shard_p_drain_words(op, at, line, SHARD_L2_P_SLOTS);
    if (all < 0 || all == SHARD_DRAIN_MORE || !head)
        return all;
    int err = drain_chain(op, l->head_at[bucket / SHARD_PER_HEAD - l->first_head], head);
    return err == SHARD_DRAINED ? all : err;
}


/* Takes a step of the drain, which begins at bucket part->next. */
int shard_drain_step(far_task *t, far_index *index, shard_partition *part, unsigned d, int *trips) {
    shard_state *st = shard_state_of(index);
    drain_window *l = far_scratch(t, sizeof(*l));
    int allowed = *trips < MIN_TRIPS ? MIN_TRIPS : *trips;
    shard_op op = {.t = t, .index = index, .st = st, .part = part, .d = d, .phase = SHARD_DRAIN, .trips = allowed};
    if (!l || !(op.main = far_scratch(t, sizeof(*op.main))))
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a bucket");
    int err = read_window(t, st, part, d - 1, l);
    if (err <= 0) {
        /* the generation has no tables, or the tables could not be read, so the chunk ends here */
        part->next = part->end;
        return err < 0 ? err : 1;
    }
    while (part->next < l->first + l->count && bucket_is_drained(st, l, part->next))
        part->next++;
    if (part->next == l->first + l->count)
        return 1;
    far_point(t, "shard:drain_bucket");
    err = drain_bucket(&op, l, part->next);
    *trips -= allowed - op.trips;
    if (err == SHARD_DRAIN_MORE)
        return 1; /* the next step continues with this bucket */
    part->next++;
    return err;
}


int shard_drain_target(shard_op *op, uint64_t h) {
    const shard_state *st = op->st;
    if ((h & shard_mask(st->p)) != op->part->number)
        return far_fail(FAR_ERR_CORRUPT, "index '%s': a key is in a partition that it does not belong to",
                        op->index->name);
    op->h = h;
    op->main->bucket = shard_bucket(h, st->p, st->b, op->d);
    return shard_bucket_addr(op->t, op->st, op->part, op->main->bucket, &op->main->addr);
}
