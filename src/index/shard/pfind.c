/* Layout P: tags say which entries may be the key's, their blocks which are. */
#include "base/error.h"
#include "index/shard/shard.h"

#include <string.h>

enum { FIRST_READ = 4096 };


/* A word of another parity than the header's is one version ahead or behind: its tag may come from another window. */
static __attribute__((cold, noinline)) bool tag_matches_elsewhere(const shard_try *y, uint64_t word, unsigned v) {
    const shard_state *st = y->st;
    unsigned tag = shard_entry_tag(word);
    return ((tag ^ shard_tag(y->h, st->p, st->b, v + 1)) & st->tag_mask) == 0 ||
           (v > 0 && ((tag ^ shard_tag(y->h, st->p, st->b, v - 1)) & st->tag_mask) == 0);
}


/* Worth a closer look are words with the key's tag at the header's version, and live ones of another parity. */
static shard_sieve make_sieve(const shard_try *y, unsigned v) {
    const shard_state *st = y->st;
    uint64_t kind = SHARD_V | SHARD_PARITY, tag_mask = shard_entry(0, st->tag_mask, 0, 0) & ~SHARD_V;
    uint64_t same = shard_entry(v, 0, 0, 0), tag = shard_entry(0, shard_tag(y->h, st->p, st->b, v), 0, 0) & tag_mask;
    return (shard_sieve){(kind | tag_mask) >> 32, (same | tag) >> 32, kind >> 32, (same ^ SHARD_PARITY) >> 32};
}


void shard_p_gather_l1(const shard_try *y, shard_hits *hits) {
    unsigned v = shard_home_v(y);
    shard_sieve s = make_sieve(y, v);
    for (uint64_t map = shard_p_map(y->st->wide, &s, y->home->w); map; map &= map - 1) {
        unsigned i = (unsigned)__builtin_ctzll(map);
        uint64_t word = y->home->w[i];
        if (shard_stamp_is(word, v) || tag_matches_elsewhere(y, word, v))
            hits->hit[hits->count++] = (shard_hit){
                .addr = y->home->addr + 8ull * i, .slot = (int)i, .level = 1, .generation = v, .word = word};
    }
}


static int add_candidates(const shard_try *y, shard_hits *hits, const uint64_t *words, unsigned count, far_addr at,
                          int level, unsigned generation) {
    for (unsigned i = 0; i < count; i++) {
        if (!shard_is_live(words[i]) || ((shard_entry_tag(words[i]) ^ shard_top_tag(y->h)) & y->st->tag_mask))
            continue;
        if (hits->count == SHARD_HITS_MAX)
            return far_fail(FAR_ERR_NO_MEMORY, "index '%s': too many keys of one hash overflow", y->index->name);
        hits->hit[hits->count++] =
            (shard_hit){.addr = at + 8ull * i, .slot = -1, .level = level, .generation = generation, .word = words[i]};
    }
    return 0;
}


/* From the buckets and the whole chain. */
int shard_p_gather_overflow(shard_try *y, const shard_overflow *o, unsigned generation, shard_hits *hits) {
    int err = add_candidates(y, hits, o->l2[0], 8, o->at[0], 2, generation);
    if (err >= 0 && o->at[1] != o->at[0])
        err = add_candidates(y, hits, o->l2[1], 8, o->at[1], 2, generation);
    shard_p_node node = o->node.p;
    if (err >= 0)
        err = add_candidates(y, hits, node.entry, SHARD_P_NODE_SLOTS, o->head, 3, generation);
    for (far_addr at = node.next; err >= 0 && at; at = node.next) {
        far_read(y->t, at, &node, sizeof(node));
        if ((err = far_wait(y->t)) >= 0)
            err = add_candidates(y, hits, node.entry, SHARD_P_NODE_SLOTS, at, 3, generation);
    }
    return err;
}


int shard_p_put_blocks(shard_try *y, shard_hits *hits) {
    for (unsigned i = 0; i < hits->count; i++) {
        shard_hit *hit = &hits->hit[i];
        uint64_t bytes = shard_class_bytes(shard_entry_class(hit->word));
        if (!(hit->block = far_scratch(y->t, bytes)))
            return far_fail(FAR_ERR_NO_MEMORY, "no memory for a block");
        far_read(y->t, shard_entry_addr(hit->word), hit->block, bytes < FIRST_READ ? bytes : FIRST_READ);
    }
    return 0;
}


/* Whether the block, of which the beginning was read, holds the key. whole: with its value, the rest of which is read.
 */
static int holds_key(shard_try *y, const shard_hit *hit, bool whole) {
    shard_block *block = hit->block;
    uint64_t used = sizeof(*block) + block->key_length + (uint64_t)block->value_length;
    if (used > shard_class_bytes(shard_entry_class(hit->word)))
        return far_fail(FAR_ERR_CORRUPT, "index '%s': the block at %#llx is broken", y->index->name,
                        (unsigned long long)shard_entry_addr(hit->word));
    if (block->h != y->h || block->key_length != y->key.length)
        return 0;
    if (used > FIRST_READ && (whole || sizeof(shard_block) + y->key.length > FIRST_READ)) {
        far_read(y->t, shard_entry_addr(hit->word) + FIRST_READ, (char *)block + FIRST_READ,
                 (used - FIRST_READ + 7) & ~7ull);
        int err = far_wait(y->t);
        if (err < 0)
            return err;
    }
    return memcmp(block->bytes, y->key.data, y->key.length) == 0;
}


int shard_p_see_blocks(shard_try *y, shard_hits *hits, bool whole) {
    unsigned kept = 0;
    for (unsigned i = 0; i < hits->count; i++) {
        int err = holds_key(y, &hits->hit[i], whole);
        if (err < 0)
            return err;
        if (err == 1 && kept++ < i)
            hits->hit[kept - 1] = hits->hit[i];
    }
    hits->count = kept;
    return 0;
}
