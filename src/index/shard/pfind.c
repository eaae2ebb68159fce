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


/* Of a word that passed the sieve. */
static inline bool is_candidate(const shard_try *y, uint64_t word, unsigned v) {
    return shard_stamp_is(word, v) || tag_matches_elsewhere(y, word, v);
}


/* Worth a closer look are words with the key's tag at the header's version, and live ones of another parity: a bit for
 * each. */
static inline __attribute__((always_inline)) uint64_t sift(const shard_try *y, unsigned v) {
    const shard_state *st = y->st;
    shard_sieve s = shard_sieve_for(v, y->h >> st->tag_low[v], st->tag_mask);
    return shard_p_map(st->wide, &s, y->home->w);
}


/* The hit that is the first word in the map. */
static inline void make_hit(const shard_try *y, unsigned v, uint64_t map, shard_hit *hit) {
    unsigned i = (unsigned)__builtin_ctzll(map);
    *hit = (shard_hit){
        .addr = y->home->addr + 8ull * i, .slot = (int)i, .level = 1, .generation = v, .word = y->home->w[i]};
}


static void gather(const shard_try *y, unsigned v, uint64_t map, shard_hits *hits) {
    for (; map; map &= map - 1)
        if (is_candidate(y, y->home->w[__builtin_ctzll(map)], v))
            make_hit(y, v, map, &hits->hit[hits->count++]);
}


void shard_p_gather_l1(const shard_try *y, shard_hits *hits) {
    unsigned v = shard_home_v(y);
    gather(y, v, sift(y, v), hits);
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
    shard_chain chain = {0};
    if (err >= 0)
        err = add_candidates(y, hits, node.entry, SHARD_P_NODE_SLOTS, o->head, 3, generation);
    for (far_addr at = node.next; err >= 0 && at; at = node.next) {
        if ((err = shard_follow(y->index, &chain, at)) >= 0 &&
            (err = far_read_now(y->t, at, &node, sizeof(node), 0)) >= 0)
            err = add_candidates(y, hits, node.entry, SHARD_P_NODE_SLOTS, at, 3, generation);
    }
    return err;
}


static inline uint64_t room_of(const shard_hit *hit) {
    return shard_class_bytes(shard_entry_class(hit->word));
}


/* How much is read of its block at first; 0: there is no memory. */
static inline uint64_t make_room(shard_try *y, shard_hit *hit, uint64_t room) {
    if (!(hit->block = far_scratch(y->t, room))) {
        far_fail(FAR_ERR_NO_MEMORY, "no memory for a block");
        return 0;
    }
    return room < FIRST_READ ? room : FIRST_READ;
}


int shard_p_put_blocks(shard_try *y, shard_hits *hits) {
    for (unsigned i = 0; i < hits->count; i++) {
        uint64_t bytes = make_room(y, &hits->hit[i], room_of(&hits->hit[i]));
        if (!bytes)
            return FAR_ERR_NO_MEMORY;
        far_read(y->t, shard_entry_addr(hits->hit[i].word), hits->hit[i].block, bytes);
    }
    return 0;
}


/* Whether the block, of which the beginning was read, holds the key. whole: with its value, the rest of which is read.
 */
static inline __attribute__((always_inline)) int holds_key(shard_try *y, const shard_hit *hit, uint64_t room,
                                                           bool whole) {
    shard_block *block = hit->block;
    uint64_t used = sizeof(*block) + block->key_length + (uint64_t)block->value_length;
    if (used > room)
        return far_fail(FAR_ERR_CORRUPT, "index '%s': the block at %#llx is broken", y->index->name,
                        (unsigned long long)shard_entry_addr(hit->word));
    if (block->h != y->h || block->key_length != y->key.length)
        return 0;
    if (used > FIRST_READ && (whole || sizeof(shard_block) + y->key.length > FIRST_READ)) {
        int err = far_read_now(y->t, shard_entry_addr(hit->word) + FIRST_READ, (char *)block + FIRST_READ,
                               (used - FIRST_READ + 7) & ~7ull, 0);
        if (err < 0)
            return err;
    }
    return far_bytes_equal((far_bytes){block->bytes, block->key_length}, y->key);
}


int shard_p_see_blocks(shard_try *y, shard_hits *hits, bool whole) {
    unsigned kept = 0;
    for (unsigned i = 0; i < hits->count; i++) {
        int err = holds_key(y, &hits->hit[i], room_of(&hits->hit[i]), whole);
        if (err < 0)
            return err;
        if (err == 1 && kept++ < i)
            hits->hit[kept - 1] = hits->hit[i];
    }
    hits->count = kept;
    return 0;
}


/* Several words passed: the blocks of those that may be the key's are read in one round trip. */
static __attribute__((noinline)) int find_among(shard_try *y, unsigned v, uint64_t map, bool whole, shard_hit *hit) {
    shard_hits hits;
    hits.count = 0;
    gather(y, v, map, &hits);
    int err = shard_p_put_blocks(y, &hits);
    if (err < 0 || (err = far_wait(y->t)) < 0 || (err = shard_p_see_blocks(y, &hits, whole)) < 0)
        return err;
    if (!hits.count)
        return SHARD_ABSENT;
    *hit = hits.hit[0];
    return SHARD_FOUND;
}


int shard_p_find_l1(shard_try *y, unsigned v, bool whole, shard_hit *hit) {
    uint64_t map = sift(y, v);
    if (map == 0)
        return SHARD_ABSENT;
    if (map & (map - 1))
        return find_among(y, v, map, whole, hit);
    make_hit(y, v, map, hit);
    if (!is_candidate(y, hit->word, v))
        return SHARD_ABSENT;
    uint64_t room = room_of(hit), bytes = make_room(y, hit, room);
    if (!bytes)
        return FAR_ERR_NO_MEMORY;
    int err = far_read_now(y->t, shard_entry_addr(hit->word), hit->block, bytes, 0);
    return err < 0 ? err : holds_key(y, hit, room, whole);
}
