/* Levels 2 and 3, both layouts: where a key may lie there, chains, and the drain, which empties them of a generation
 * once every bucket is at the next version. How a layout moves an entry up: pdrain.c, idrain.c. */
#include "index/shard/shard.h"
#include "runtime/error.h"

#include <string.h>


/* 0: put; 1: there is no such table. */
int shard_put_overflow(shard_try *y, unsigned generation, shard_overflow *o) {
    const shard_state *st = y->st;
    uint64_t node = shard_node_bytes(st);
    far_addr l2, l3;
    int err = shard_overflow_addrs(y->t, y->part, generation, &l2, &l3);
    memset(o, 0, sizeof(*o));
    if (err < 0)
        return err;
    if (!l2 || !l3)
        return 1;
    for (unsigned i = 0; i < 2; i++) {
        o->at[i] = l2 + SHARD_L2_BYTES * shard_bucket(shard_level(st, y->h, i), st->p, st->b, generation);
        far_read(y->t, o->at[i], o->l2[i], sizeof(o->l2[i]));
    }
    o->head = l3 + node * (shard_level(st, y->h, 2) >> st->p & (shard_heads(st->b, generation) - 1));
    far_read(y->t, o->head, &o->node, node);
    return 0;
}


/* Appends a node to the chain that ends with the one at `at`. 1: done; 0: the chain went on. */
int shard_append_node(shard_try *y, far_addr at, const void *node) {
    uint64_t size = shard_node_bytes(y->st), old;
    far_object object;
    int err = far_alloc(y->t, y->index, SHARD_TYPE_NODE, size, far_addr_node(at), FAR_ALLOC_ON_NODE, &object);
    if (err < 0)
        return err;
    far_write(y->t, object.addr, node, size);
    if ((err = far_wait(y->t)) < 0)
        return err;
    far_point(y->t, "shard:append");
    if ((err = far_cas_word(y->t, at + size - 8, 0, object.addr, &old)) < 0)
        return err;
    if (old != 0) {
        far_free(y->t, y->index, SHARD_TYPE_NODE, object.addr, size);
        return 0;
    }
    shard_count(&y->st->counters.chained);
    return 1;
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


static int drain_chain(shard_try *y, far_addr at) {
    shard_node node;
    bool all = true;
    for (; at; at = *shard_next_of(y->st, &node)) {
        far_read(y->t, at, &node, shard_node_bytes(y->st));
        int err = far_wait(y->t);
        if (err >= 0)
            err = y->st->inlined ? shard_i_drain_node(y, at, &node.i) : shard_p_drain_words(y, at, node.p.entry, 7);
        if (err < 0)
            return err;
        all &= err == 1;
    }
    return all;
}


/* One bucket of level 2 of generation d-1; every 16th with the chain that belongs to it. 1: nothing is left there. */
int shard_drain(far_task *t, far_index *index, shard_partition *part, unsigned d, uint64_t bucket) {
    shard_state *st = shard_state_of(index);
    far_addr l2, l3;
    uint64_t words[8], head = bucket / 16;
    int err = shard_overflow_addrs(t, part, d - 1, &l2, &l3), all;
    if (err < 0)
        return err;
    if (!l2 || !l3)
        return 1;
    shard_try y = {.t = t, .index = index, .st = st, .part = part, .d = d, .phase = SHARD_DRAIN};
    if (!(y.home = far_scratch(t, sizeof(*y.home))))
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a bucket");
    far_addr at = l2 + SHARD_L2_BYTES * bucket;
    far_read(t, at, words, sizeof(words));
    if ((err = far_wait(t)) < 0)
        return err;
    all = st->inlined ? shard_i_drain_l2(&y, at, words, bucket) : shard_p_drain_words(&y, at, words, 8);
    if (all < 0 || bucket % 16 || head >= shard_heads(st->b, d - 1))
        return all;
    err = drain_chain(&y, l3 + shard_node_bytes(st) * head);
    return err < 0 ? err : all && err;
}
