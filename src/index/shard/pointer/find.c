/* Pointer layout: finds a key in a bucket. The 14-bit tags select the candidates, and the pair blocks that the
 * candidates name show which candidate has the key. find.c calls these functions. */
#include "base/error.h"
#include "index/shard/shard.h"

#include <string.h>

enum { FIRST_READ = 4096 };


/* Returns true if the word's tag matches the key at version v-1 or v+1. v is the version in the bucket's header. A word
 * whose parity differs from v has one of these two versions. The tag is taken from a window of hash bits that depends
 * on the version, so the word is compared with the key's tags for both versions. */
static __attribute__((cold, noinline)) bool tag_matches_adjacent_version(const shard_op *op, uint64_t word,
                                                                         unsigned v) {
    const shard_state *st = op->st;
    unsigned tag = shard_entry_tag(word);
    return ((tag ^ shard_tag(op->h, st->p, st->b, v + 1)) & st->tag_mask) == 0 ||
           (v > 0 && ((tag ^ shard_tag(op->h, st->p, st->b, v - 1)) & st->tag_mask) == 0);
}


/* Returns true if the word may belong to the key. `word` has passed the sieve (shard_sieve), which lets all live words
 * of the other parity pass. */
static inline bool word_is_candidate(const shard_op *op, uint64_t word, unsigned v) {
    return shard_stamp_is(word, v) || tag_matches_adjacent_version(op, word, v);
}


/* Returns a bitmap of the words to examine: live words with the key's tag at the header's version, and all live words
 * of the other parity. */
static inline __attribute__((always_inline)) uint64_t candidate_map(const shard_op *op, unsigned v) {
    const shard_state *st = op->st;
    shard_sieve s = shard_sieve_for(v, op->h >> st->tag_low[v], st->tag_mask);
    return shard_p_match_map(st->wide, &s, op->main->w);
}


/* Makes a hit of the first word in the bitmap. */
static inline void make_hit(const shard_op *op, unsigned v, uint64_t map, shard_hit *hit) {
    unsigned i = (unsigned)__builtin_ctzll(map);
    *hit = (shard_hit){
        .addr = op->main->addr + 8ull * i, .slot = (int)i, .level = 1, .generation = v, .word = op->main->w[i]};
}


static void gather_candidates(const shard_op *op, unsigned v, uint64_t map, shard_hits *hits) {
    for (; map; map &= map - 1)
        if (word_is_candidate(op, op->main->w[__builtin_ctzll(map)], v))
            make_hit(op, v, map, &hits->hit[hits->count++]);
}


void shard_p_gather_l1(const shard_op *op, shard_hits *hits) {
    unsigned v = shard_main_version(op);
    gather_candidates(op, v, candidate_map(op, v), hits);
}


static int add_candidates(const shard_op *op, shard_hits *hits, const uint64_t *words, unsigned count, far_addr at,
                          int level, unsigned generation) {
    for (unsigned i = 0; i < count; i++) {
        if (!shard_is_live(words[i]) || ((shard_entry_tag(words[i]) ^ shard_top_tag(op->h)) & op->st->tag_mask))
            continue;
        if (hits->count == SHARD_HITS_MAX)
            return far_fail(FAR_ERR_NO_MEMORY, "index '%s': too many keys with the same hash bits at levels 2 and 3",
                            op->index->name);
        hits->hit[hits->count++] =
            (shard_hit){.addr = at + 8ull * i, .slot = -1, .level = level, .generation = generation, .word = words[i]};
    }
    return 0;
}


int shard_p_gather_overflow(shard_op *op, const shard_overflow *o, unsigned generation, shard_hits *hits) {
    int err = add_candidates(op, hits, o->l2[0], 8, o->at[0], 2, generation);
    if (err >= 0 && o->at[1] != o->at[0])
        err = add_candidates(op, hits, o->l2[1], 8, o->at[1], 2, generation);
    shard_p_node node = o->node.p;
    shard_chain chain = {0};
    if (err >= 0)
        err = add_candidates(op, hits, node.entry, SHARD_P_NODE_SLOTS, o->head, 3, generation);
    for (far_addr at = node.next; err >= 0 && at; at = node.next) {
        if ((err = shard_chain_step(op->index, &chain, at)) >= 0 &&
            (err = far_read_now(op->t, at, &node, sizeof(node), 0)) >= 0)
            err = add_candidates(op, hits, node.entry, SHARD_P_NODE_SLOTS, at, 3, generation);
    }
    return err;
}


static inline uint64_t block_room(const shard_hit *hit) {
    return shard_class_bytes(shard_entry_class(hit->word));
}


/* Allocates local memory for the pair block of a hit. Returns the number of bytes to read first, or 0 if there is no
 * memory for the pair block. */
static inline uint64_t allocate_block_buffer(shard_op *op, shard_hit *hit, uint64_t room) {
    if (!(hit->block = far_scratch(op->t, room))) {
        far_fail(FAR_ERR_NO_MEMORY, "no memory for a pair block");
        return 0;
    }
    return room < FIRST_READ ? room : FIRST_READ;
}


int shard_p_add_block_reads(shard_op *op, shard_hits *hits) {
    for (unsigned i = 0; i < hits->count; i++) {
        uint64_t bytes = allocate_block_buffer(op, &hits->hit[i], block_room(&hits->hit[i]));
        if (!bytes)
            return FAR_ERR_NO_MEMORY;
        far_read(op->t, shard_entry_addr(hits->hit[i].word), hits->hit[i].block, bytes);
    }
    return 0;
}


/* Returns 1 if the pair block has the key, 0 if not, or an error. The first part of the pair block has been read
 * before. The rest is read if the key extends into the rest, or if `whole` requires the value. */
static inline __attribute__((always_inline)) int check_block_key(shard_op *op, const shard_hit *hit, uint64_t room,
                                                                 bool whole) {
    shard_block *block = hit->block;
    uint64_t used = sizeof(*block) + block->key_length + (uint64_t)block->value_length;
    if (used > room)
        return far_fail(FAR_ERR_CORRUPT, "index '%s': the pair block at %#llx is corrupt", op->index->name,
                        (unsigned long long)shard_entry_addr(hit->word));
    if (block->h != op->h || block->key_length != op->key.length)
        return 0;
    if (used > FIRST_READ && (whole || sizeof(shard_block) + op->key.length > FIRST_READ)) {
        int err = far_read_now(op->t, shard_entry_addr(hit->word) + FIRST_READ, (char *)block + FIRST_READ,
                               (used - FIRST_READ + 7) & ~7ull, 0);
        if (err < 0)
            return err;
    }
    return far_bytes_equal((far_bytes){block->bytes, block->key_length}, op->key);
}


int shard_p_keep_matching_blocks(shard_op *op, shard_hits *hits, bool whole) {
    unsigned kept = 0;
    for (unsigned i = 0; i < hits->count; i++) {
        int err = check_block_key(op, &hits->hit[i], block_room(&hits->hit[i]), whole);
        if (err < 0)
            return err;
        if (err == 1 && kept++ < i)
            hits->hit[kept - 1] = hits->hit[i];
    }
    hits->count = kept;
    return 0;
}


/* Finds the key when several words passed the sieve. The pair blocks of all candidates are read in one round trip. */
static __attribute__((noinline)) int find_among_candidates(shard_op *op, unsigned v, uint64_t map, bool whole,
                                                           shard_hit *hit) {
    shard_hits hits;
    hits.count = 0;
    gather_candidates(op, v, map, &hits);
    int err = shard_p_add_block_reads(op, &hits);
    if (err < 0 || (err = far_wait(op->t)) < 0 || (err = shard_p_keep_matching_blocks(op, &hits, whole)) < 0)
        return err;
    if (!hits.count)
        return SHARD_ABSENT;
    *hit = hits.hit[0];
    return SHARD_FOUND;
}


int shard_p_find_l1(shard_op *op, unsigned v, bool whole, shard_hit *hit) {
    uint64_t map = candidate_map(op, v);
    if (map == 0)
        return SHARD_ABSENT;
    if (map & (map - 1))
        return find_among_candidates(op, v, map, whole, hit);
    make_hit(op, v, map, hit);
    if (!word_is_candidate(op, hit->word, v))
        return SHARD_ABSENT;
    uint64_t room = block_room(hit), bytes = allocate_block_buffer(op, hit, room);
    if (!bytes)
        return FAR_ERR_NO_MEMORY;
    int err = far_read_now(op->t, shard_entry_addr(hit->word), hit->block, bytes, 0);
    return err < 0 ? err : check_block_key(op, hit, room, whole);
}
