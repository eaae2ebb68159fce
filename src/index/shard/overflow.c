/* Levels 2 and 3, both layouts: where a key may lie there, and chains. */
#include "base/error.h"
#include "index/shard/shard.h"

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


int shard_follow(const far_index *index, shard_chain *chain, far_addr at) {
    if (at == chain->seen)
        return far_fail(FAR_ERR_CORRUPT, "index '%s': a chain of level 3 comes back to %#llx", index->name,
                        (unsigned long long)at);
    uint64_t step = ++chain->steps;
    if ((step & (step - 1)) == 0)
        chain->seen = at;
    return 0;
}


/* The hits are gone from levels 2 and 3: the header, which is the caller's, is to say so. Copies of the generation before
 * are no part of its count. */
void shard_recover(shard_try *y, uint64_t *header, const shard_hit *hits, unsigned count) {
    unsigned own = 0;
    for (unsigned i = 0; i < count; i++)
        own += hits[i].generation == shard_header_v(*header);
    unsigned before = shard_header_fnew(*header);
    *header = shard_header_recovers(*header, own);
    if (before && shard_header_fnew(*header) == 0)
        shard_count(&y->st->counters.forgotten);
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
