/* Layout I: the pair lies in the bucket. What is compared is all of the hash that the place does not imply, so a match
 * is the key. */
#include "base/error.h"
#include "index/shard/shard.h"

#include <string.h>


bool shard_i_find_l1(const shard_try *y, shard_hit *hit) {
    uint32_t map = shard_i_map(y->st->wide, shard_rem(y, -1), y->home->w);
    if (map == 0)
        return false;
    unsigned slot = (unsigned)__builtin_ctz(map);
    *hit = (shard_hit){.addr = y->home->addr + 16ull * slot,
                       .slot = (int)slot,
                       .level = 1,
                       .generation = shard_home_v(y),
                       .word = y->home->w[2 * slot + 1],
                       .value = y->home->w[2 * slot]};
    return true;
}


/* Level 2 and 3. */

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


int shard_i_gather_overflow(shard_try *y, const shard_overflow *o, unsigned generation, shard_hits *hits) {
    uint64_t key;
    memcpy(&key, y->key.data, sizeof(key));
    for (unsigned choice = 0; choice < 2; choice++) {
        uint64_t rem = shard_rem(y, (int)choice);
        for (unsigned i = 0; i < SHARD_L2_I_SLOTS; i++)
            if (shard_kw_holds(o->l2[choice][2 * i + 1], rem, choice))
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
        int err = shard_follow(y->index, &chain, at);
        if (err < 0)
            return err;
        far_read(y->t, at, &node, sizeof(node));
        if ((err = far_wait(y->t)) < 0)
            return err;
    }
}


/* A slot of level 3 crosses lines: its key may be that of the pair before, its state that of the next. Between two
 * looks at one state the key is that of the state; what is not the key then was never a hit. 1: a state has changed, so
 * it may have been one, and moved on: all must be looked at again. */
int shard_i_drop_false_hits(shard_try *y, shard_hits *hits) {
    uint64_t again[SHARD_HITS_MAX][2], key;
    unsigned kept = 0, looks = 0;
    memcpy(&key, y->key.data, sizeof(key));
    for (unsigned i = 0; i < hits->count; i++)
        if (hits->hit[i].level == 3) {
            far_read(y->t, hits->hit[i].addr + 8, &again[i][0], 8);
            far_read(y->t, hits->hit[i].addr + 16, &again[i][1], 8);
            looks++;
        }
    int err = looks ? far_wait(y->t) : 0;
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


/* Of a hit that is not whole. The value is read between two looks at the mark: it is good if both show the same. Both are of one batch: the
 * 7 bits of gen in a kw could come round while a client sleeps. */
bool shard_i_put_confirm(shard_try *y, shard_hit *hit, uint64_t marks[2]) {
    far_addr at = hit->addr + (hit->level == 3 ? 16 : 8);
    if (shard_i_is_whole(y->st, hit))
        return false;
    marks[0] = hit->word;
    if (hit->level < 3)
        far_read(y->t, at, &marks[0], 8);
    far_read(y->t, hit->addr, &hit->value, 8);
    far_read(y->t, at, &marks[1], 8);
    return true;
}
