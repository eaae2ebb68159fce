/* Levels 2 and 3, for both layouts: adds the READs of the places where a key may be, follows chains safely, and appends
 * nodes. Searches (find.c), writes and drains call these functions. */
#include "base/error.h"
#include "index/shard/shard.h"

#include <string.h>


int shard_add_overflow_reads(shard_op *op, unsigned generation, shard_overflow *o) {
    const shard_state *st = op->st;
    uint64_t node = shard_node_bytes(st);
    memset(o, 0, sizeof(*o));
    uint64_t head = shard_level_hash(st, op->h, 2) >> st->p & (shard_head_count(st->b, generation) - 1);
    for (unsigned i = 0; i < 2; i++) {
        uint64_t line = shard_bucket(shard_level_hash(st, op->h, i), st->p, st->b, generation);
        int err = shard_table_place(op->t, st, op->part, 2, generation, SHARD_L2_BYTES * line, &o->at[i]);
        if (err < 0 || o->at[i] == 0)
            return err < 0 ? err : 1;
    }
    int err = shard_table_place(op->t, st, op->part, 3, generation, node * head, &o->head);
    if (err < 0 || o->head == 0)
        return err < 0 ? err : 1;
    for (unsigned i = 0; i < 2; i++)
        far_read(op->t, o->at[i], o->l2[i], sizeof(o->l2[i]));
    far_read(op->t, o->head, &o->node, node);
    return 0;
}


int shard_chain_step(const far_index *index, shard_chain *chain, far_addr at) {
    if (at == chain->seen)
        return far_fail(FAR_ERR_CORRUPT, "index '%s': a level-3 chain has a cycle, at %#llx", index->name,
                        (unsigned long long)at);
    uint64_t step = ++chain->steps;
    if ((step & (step - 1)) == 0)
        chain->seen = at;
    return 0;
}


/* Updates the count of overflowed keys in *header after the hits were removed. Hits of the previous generation are not
 * counted, because the count covers only keys of the header's own version. */
void shard_uncount_overflow(shard_op *op, uint64_t *header, const shard_hit *hits, unsigned count) {
    unsigned own = 0;
    for (unsigned i = 0; i < count; i++)
        own += hits[i].generation == shard_header_v(*header);
    unsigned before = shard_header_fnew(*header);
    *header = shard_header_remove_overflowed(*header, own);
    if (before && shard_header_fnew(*header) == 0)
        shard_count_event(&op->st->counters.forgotten);
}


/* Appends a node to a chain. The new node is written before the CAS that links it. If another client has linked a node
 * first, this client frees its own node. Returns 1 if the node was appended, 0 if not, or an error. */
int shard_append_node(shard_op *op, far_addr at, const void *node) {
    uint64_t size = shard_node_bytes(op->st), old;
    far_object object;
    int err = far_alloc(op->t, op->index, SHARD_TYPE_NODE, size, far_addr_node(at), FAR_ALLOC_ON_NODE, &object);
    if (err < 0)
        return err;
    far_write(op->t, object.addr, node, size);
    if ((err = far_wait(op->t)) < 0)
        return err;
    far_point(op->t, "shard:append");
    if ((err = far_cas_word(op->t, at + size - 8, 0, object.addr, &old)) < 0)
        return err;
    if (old != 0) {
        far_free(op->t, op->index, SHARD_TYPE_NODE, object.addr, size);
        return 0;
    }
    shard_count_event(&op->st->counters.chained);
    return 1;
}
