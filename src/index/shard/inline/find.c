/* Inline layout: finds a key in a bucket, which contains the pairs themselves. A slot stores all hash bits that do not
 * follow from its partition and bucket, so equal remainders mean equal keys. find.c calls these functions. */
#include "base/error.h"
#include "index/shard/shard.h"

#include <string.h>


static shard_hit hit_at(const shard_op *op, uint32_t map) {
    unsigned slot = (unsigned)__builtin_ctz(map);
    return (shard_hit){.addr = op->main->addr + 16ull * slot,
                       .slot = (int)slot,
                       .level = 1,
                       .word = op->main->w[2 * slot + 1],
                       .value = op->main->w[2 * slot]};
}


bool shard_i_find_l1(const shard_op *op, shard_hit *hit) {
    uint32_t map = shard_i_match_map(op->st->wide, shard_rem(op, -1), op->main->w);
    if (map == 0)
        return false;
    *hit = hit_at(op, map);
    hit->generation = shard_main_version(op);
    return true;
}


bool shard_i_find_in_half(const shard_op *op, shard_hit *hit) {
    const uint32_t half = ((1u << SHARD_I_HALF) - 1) << shard_i_half(op) * SHARD_I_HALF;
    uint32_t map = shard_i_match_map(op->st->wide, shard_rem(op, -1), op->main->w) & half;
    if (map == 0)
        return false;
    *hit = hit_at(op, map);
    return !(hit->word & SHARD_I_LEAVING);
}


/* ---- Levels 2 and 3 ---- */

static void add_hit(shard_hits *hits, shard_hit hit) {
    if (hits->count < SHARD_HITS_MAX)
        hits->hit[hits->count++] = hit;
}


static void search_node(const shard_i_node *node, far_addr at, unsigned generation, uint64_t key, shard_hits *hits) {
    for (unsigned i = 0; i < SHARD_I_NODE_SLOTS; i++) {
        const shard_i_slot *slot = &node->slot[i];
        if ((slot->state & SHARD_STATE_LIVE) && slot->key == key)
            add_hit(hits, (shard_hit){.addr = at + sizeof(*slot) * i,
                                      .slot = -1,
                                      .level = 3,
                                      .generation = generation,
                                      .word = slot->state,
                                      .value = slot->value});
    }
}


int shard_i_gather_overflow(shard_op *op, const shard_overflow *o, unsigned generation, shard_hits *hits) {
    uint64_t key;
    memcpy(&key, op->key.data, sizeof(key));
    for (unsigned choice = 0; choice < 2; choice++) {
        uint64_t rem = shard_rem(op, (int)choice);
        for (unsigned i = 0; i < SHARD_L2_I_SLOTS; i++)
            if (shard_kw_matches(o->l2[choice][2 * i + 1], rem, choice))
                add_hit(hits, (shard_hit){.addr = o->at[choice] + 16ull * i,
                                          .slot = -1,
                                          .level = 2,
                                          .generation = generation,
                                          .word = o->l2[choice][2 * i + 1],
                                          .value = o->l2[choice][2 * i]});
    }
    shard_i_node node = o->node.i;
    shard_chain chain = {0};
    far_addr at = o->head;
    for (;;) {
        search_node(&node, at, generation, key, hits);
        if ((at = node.next) == 0)
            return 0;
        int err = shard_chain_step(op->index, &chain, at);
        if (err < 0)
            return err;
        far_read(op->t, at, &node, sizeof(node));
        if ((err = far_wait(op->t)) < 0)
            return err;
    }
}


/* Removes false hits at level 3. A level-3 slot crosses cache lines, so one READ may combine the key of one pair with
 * the state of the next. Each hit is therefore verified by reading its key and then its state again. If the state is
 * unchanged, the second key belongs to this state, and a different key means that the hit was false. If the state has
 * changed, the hit may have been real and the pair may have moved. In that case the function returns 1, and the search
 * is repeated; otherwise it returns 0 or an error. */
int shard_i_drop_false_hits(shard_op *op, shard_hits *hits) {
    uint64_t again[SHARD_HITS_MAX][2], key;
    unsigned kept = 0, looks = 0;
    memcpy(&key, op->key.data, sizeof(key));
    for (unsigned i = 0; i < hits->count; i++)
        if (hits->hit[i].level == 3) {
            far_read(op->t, hits->hit[i].addr + 8, &again[i][0], 8);
            far_read(op->t, hits->hit[i].addr + 16, &again[i][1], 8);
            looks++;
        }
    int err = looks ? far_wait(op->t) : 0;
    for (unsigned i = 0; err >= 0 && i < hits->count; i++) {
        const shard_hit *hit = &hits->hit[i];
        if (hit->level == 3 && again[i][1] != hit->word)
            return 1;
        if (hit->level < 3 || again[i][0] == key)
            hits->hit[kept++] = *hit;
    }
    hits->count = kept;
    return err < 0 ? err : 0;
}


/* Adds READs that verify a hit whose value and key word (or state) were not read by one atomic READ. The value is read
 * between two READs of the key word or state, and is valid if both return the same word. All these READs are in one
 * batch, because between two batches the client could be delayed so long that gen, a counter of 7 bits that every
 * insert into the slot increments, returns to its old value. */
bool shard_i_add_confirming_reads(shard_op *op, shard_hit *hit, uint64_t marks[2]) {
    far_addr at = hit->addr + (hit->level == 3 ? 16 : 8);
    if (shard_i_hit_is_atomic(op->st, hit))
        return false;
    marks[0] = hit->word;
    if (hit->level < 3)
        far_read(op->t, at, &marks[0], 8);
    far_read(op->t, hit->addr, &hit->value, 8);
    far_read(op->t, at, &marks[1], 8);
    return true;
}
