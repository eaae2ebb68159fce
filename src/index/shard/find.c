/* Layout P, reading: the home bucket, then the blocks that its tags name. The rules R1-R6 say which images prove what.
 */
#include "index/shard/shard.h"
#include "runtime/error.h"
#include "runtime/rdwc.h"

#include <string.h>

enum { MATCHES_MAX = 64, FIRST_READ = 4096 };


bool shard_p_uniform(const shard_image *image, unsigned v) {
    if (shard_header_v(image->w[SHARD_P_HEADER]) != v)
        return false;
    for (unsigned i = 0; i < SHARD_P_SLOTS; i++)
        if (!shard_stamp_is(image->w[i], v))
            return false;
    return true;
}


/* The header belongs to the bucket in which the key lies at the header's version, and that version is within sight. */
bool shard_home_is_right(const shard_try *y) {
    uint64_t header = y->home->w[y->st->inlined ? SHARD_I_H : SHARD_P_HEADER];
    unsigned v = shard_header_v(header);
    if (header == 0 || y->home->bucket != shard_bucket(y->h, y->st->p, y->st->b, v))
        return false;
    return v == y->d || v == y->d + 1 || (v + 1 == y->d && y->phase == SHARD_GROW);
}


/* Whether the key leaves the home bucket with its next split, so that the bucket proves something only before that. */
bool shard_home_may_lose(const shard_try *y) {
    unsigned v = shard_header_v(y->home->w[y->st->inlined ? SHARD_I_H : SHARD_P_HEADER]);
    return shard_changes(y->h, y->st->p, y->st->b, v + 1) && !(y->child_unwritten && v + 1 == y->d);
}


bool shard_p_hit_counts(const shard_try *y, const shard_hit *hit) { /* R2 */
    if (!shard_home_may_lose(y))
        return true;
    return shard_header_op(y->home->w[SHARD_P_HEADER]) != SHARD_OP_SPLIT && !shard_is_frozen(hit->word);
}


bool shard_p_miss_counts(const shard_try *y) { /* R3 */
    unsigned v = shard_header_v(y->home->w[SHARD_P_HEADER]);
    if (!shard_changes(y->h, y->st->p, y->st->b, v + 1))
        return true;
    if (!shard_p_uniform(y->home, v))
        return false;
    return !shard_home_may_lose(y) || shard_header_op(y->home->w[SHARD_P_HEADER]) != SHARD_OP_SPLIT;
}


/* A word of another parity than the header's is one version ahead or behind: its tag may come from another window. */
static bool tag_matches(const shard_try *y, uint64_t word, unsigned v) {
    const shard_state *st = y->st;
    unsigned tag = shard_entry_tag(word);
    if (shard_stamp_is(word, v))
        return ((tag ^ shard_tag(y->h, st->p, st->b, v)) & st->tag_mask) == 0;
    return ((tag ^ shard_tag(y->h, st->p, st->b, v + 1)) & st->tag_mask) == 0 ||
           (v > 0 && ((tag ^ shard_tag(y->h, st->p, st->b, v - 1)) & st->tag_mask) == 0);
}


static int broken_block(const shard_try *y, uint64_t word) {
    return far_fail(FAR_ERR_CORRUPT, "index '%s': the block at %#llx is broken", y->index->name,
                    (unsigned long long)shard_entry_addr(word));
}


static uint64_t block_bytes(const shard_block *block) {
    return sizeof(*block) + block->key_length + (uint64_t)block->value_length;
}


/* blocks[i]: the block of words[i] if it holds the key, else NULL. whole: with its value; else perhaps only its
 * beginning. */
int shard_p_read_blocks(shard_try *y, const uint64_t *words, unsigned count, bool whole, shard_block **blocks) {
    for (unsigned i = 0; i < count; i++) {
        uint64_t bytes = shard_class_bytes(shard_entry_class(words[i]));
        if (!(blocks[i] = far_scratch(y->t, bytes)))
            return far_fail(FAR_ERR_NO_MEMORY, "no memory for a block");
        far_read(y->t, shard_entry_addr(words[i]), blocks[i], bytes < FIRST_READ ? bytes : FIRST_READ);
    }
    int err = far_wait(y->t);
    for (unsigned i = 0; err >= 0 && i < count; i++) {
        uint64_t bytes = shard_class_bytes(shard_entry_class(words[i])), used = block_bytes(blocks[i]);
        if (used > bytes)
            return broken_block(y, words[i]);
        if (blocks[i]->h != y->h || blocks[i]->key_length != y->key.length) {
            blocks[i] = NULL;
            continue;
        }
        if (used > FIRST_READ && (whole || sizeof(shard_block) + y->key.length > FIRST_READ)) {
            far_read(y->t, shard_entry_addr(words[i]) + FIRST_READ, (char *)blocks[i] + FIRST_READ,
                     (used - FIRST_READ + 7) & ~7ull);
            if ((err = far_wait(y->t)) < 0)
                return err;
        }
        if (memcmp(blocks[i]->bytes, y->key.data, y->key.length) != 0)
            blocks[i] = NULL;
    }
    return err;
}


int shard_p_find_l1(shard_try *y, bool whole, shard_hit *hit) {
    unsigned v = shard_header_v(y->home->w[SHARD_P_HEADER]), count = 0;
    uint64_t words[SHARD_P_SLOTS];
    uint8_t slot[SHARD_P_SLOTS];
    shard_block *blocks[SHARD_P_SLOTS];
    for (unsigned i = 0; i < SHARD_P_SLOTS; i++)
        if (shard_is_live(y->home->w[i]) && tag_matches(y, y->home->w[i], v)) {
            words[count] = y->home->w[i];
            slot[count++] = (uint8_t)i;
        }
    if (count == 0)
        return 0;
    int err = shard_p_read_blocks(y, words, count, whole, blocks);
    for (unsigned i = 0; err >= 0 && i < count; i++)
        if (blocks[i]) {
            *hit = (shard_hit){y->home->addr + 8ull * slot[i], slot[i], words[i], v, blocks[i]};
            return 1;
        }
    return err < 0 ? err : 0;
}


/* Level 2 and 3. */

typedef struct candidates {
    uint64_t words[MATCHES_MAX];
    far_addr addr[MATCHES_MAX];
    unsigned generation[MATCHES_MAX], count;
} candidates;


/* R4: the generations to look at, the older one first: a drain moves from there to the newer. */
unsigned shard_generations(const shard_try *y, uint64_t header, unsigned generation[2]) {
    unsigned v = shard_header_v(header), count = 0, bit = shard_bit(y->st, y->h);
    bool stable = y->d > v || (y->d == v && y->phase == SHARD_STABLE); /* all of the generation before was drained */
    if (shard_header_fold(header) & bit && !stable && v > 0)
        generation[count++] = v - 1;
    if (shard_header_fnew(header) & bit)
        generation[count++] = v;
    return count;
}


/* 0: put; 1: there is no such table. */
int shard_p_put_overflow(shard_try *y, unsigned generation, shard_overflow *o) {
    const shard_state *st = y->st;
    far_addr l2, l3;
    int err = shard_overflow_addrs(y->t, y->part, generation, &l2, &l3);
    memset(o, 0, sizeof(*o));
    if (err < 0)
        return err;
    if (!l2 || !l3)
        return 1;
    for (unsigned i = 0; i < 2; i++)
        o->at[i] = l2 + SHARD_L2_BYTES * shard_bucket(y->level[i], st->p, st->b, generation);
    o->head = l3 + sizeof(shard_p_node) * (y->level[2] >> st->p & (shard_heads(st->b, generation) - 1));
    far_read(y->t, o->at[0], o->l2[0], sizeof(o->l2[0]));
    far_read(y->t, o->at[1], o->l2[1], sizeof(o->l2[1]));
    far_read(y->t, o->head, &o->node, sizeof(o->node));
    return 0;
}


static int add_candidates(const shard_try *y, candidates *c, const uint64_t *words, unsigned count, far_addr at,
                          unsigned generation) {
    for (unsigned i = 0; i < count; i++) {
        if (!shard_is_live(words[i]) || ((shard_entry_tag(words[i]) ^ shard_top_tag(y->h)) & y->st->tag_mask))
            continue;
        if (c->count == MATCHES_MAX)
            return far_fail(FAR_ERR_NO_MEMORY, "index '%s': too many keys of one hash overflow", y->index->name);
        c->words[c->count] = words[i];
        c->generation[c->count] = generation;
        c->addr[c->count++] = at + 8ull * i;
    }
    return 0;
}


/* Collects from the buckets and the whole chain. */
static int gather(shard_try *y, candidates *c, const shard_overflow *o, unsigned generation) {
    int err = add_candidates(y, c, o->l2[0], 8, o->at[0], generation);
    if (err >= 0 && o->at[1] != o->at[0])
        err = add_candidates(y, c, o->l2[1], 8, o->at[1], generation);
    if (err >= 0)
        err = add_candidates(y, c, o->node.entry, 7, o->head, generation);
    shard_p_node node = o->node;
    for (far_addr at = node.next; err >= 0 && at; at = node.next) {
        far_read(y->t, at, &node, sizeof(node));
        if ((err = far_wait(y->t)) >= 0)
            err = add_candidates(y, c, node.entry, 7, at, generation);
    }
    return err;
}


int shard_p_find_overflow(shard_try *y, uint64_t header, bool whole, shard_hit hits[SHARD_COPIES_MAX],
                          unsigned *count) {
    unsigned generation[2], generations = shard_generations(y, header, generation);
    shard_overflow *o = far_scratch(y->t, 2 * sizeof(*o));
    candidates *c = far_scratch(y->t, sizeof(*c));
    int none[2] = {1, 1}, err = 0;
    *count = 0;
    if (!o || !c)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for buckets");
    c->count = 0;
    for (unsigned i = 0; i < generations; i++)
        if ((none[i] = shard_p_put_overflow(y, generation[i], &o[i])) < 0)
            return none[i];
    if ((err = far_wait(y->t)) < 0)
        return err;
    for (unsigned i = 0; i < generations; i++) {
        if (none[i])
            continue;
        if (i == 1 && o[0].node.next) { /* the chain of the older generation was read after this one: look again */
            if ((none[1] = shard_p_put_overflow(y, generation[1], &o[1])) < 0 || (err = far_wait(y->t)) < 0)
                return err < 0 ? err : none[1];
        }
        if ((err = gather(y, c, &o[i], generation[i])) < 0)
            return err;
    }
    shard_block *blocks[MATCHES_MAX];
    if (c->count == 0)
        return 0;
    if ((err = shard_p_read_blocks(y, c->words, c->count, whole, blocks)) < 0)
        return err;
    for (unsigned i = 0; i < c->count; i++)
        if (blocks[i] && *count < SHARD_COPIES_MAX)
            hits[(*count)++] = (shard_hit){c->addr[i], -1, c->words[i], c->generation[i], blocks[i]};
    return 0;
}


/* What of the header decides where a key may lie. */
static uint64_t relevant(const shard_try *y, uint64_t header) {
    unsigned generation[2] = {0, 0}, count = shard_generations(y, header, generation);
    return (uint64_t)shard_header_v(header) << 32 | count << 16 | generation[0] << 8 | generation[1];
}


/* 1: found; 0: absent; 2: start over. One look at level 1 and, if its filter says so, at the levels below. A miss below
 * is believed when level 1, read again, says the same as before: a drain may have moved the key up (R6). */
int shard_p_find(shard_try *y, bool whole, shard_hit *hit, uint32_t *mark) {
    uint64_t before = 0;
    for (bool again = false;; again = true) {
        int err;
        if (!shard_home_is_right(y))
            return 2;
        if ((err = shard_p_find_l1(y, whole, hit)) < 0)
            return err;
        if (err == 1)
            return shard_p_hit_counts(y, hit) ? 1 : 2;
        if (!shard_p_miss_counts(y))
            return 2;
        uint64_t header = y->home->w[SHARD_P_HEADER], now = relevant(y, header);
        unsigned generation[2], count;
        if (shard_generations(y, header, generation) == 0 || (again && now == before))
            return 0;
        before = now;
        far_point(y->t, "shard:l1_missed");
        shard_hit hits[SHARD_COPIES_MAX];
        if ((err = shard_p_find_overflow(y, header, whole, hits, &count)) < 0)
            return err;
        if (count) {
            *hit = hits[count - 1];
            return 1;
        }
        far_point(y->t, "shard:l2_missed");
        y->child_unwritten = false;
        *mark = far_rdwc_mark(y->t);
        if ((err = shard_put_home(y)) != 0)
            return err < 0 ? err : 2;
        if ((err = far_wait(y->t)) < 0 || (err = shard_see_home(y)) < 0)
            return err;
    }
}


/* 1: found in the part of the bucket where it should be; 0: look at all of it. */
static int find_in_window(shard_try *y, shard_hit *hit) {
    int err = shard_put_window(y);
    if (err <= 0 || (err = far_wait(y->t)) < 0)
        return err;
    if (!shard_home_is_right(y) || (err = shard_p_find_l1(y, true, hit)) <= 0)
        return err < 0 ? err : 0;
    return shard_p_hit_counts(y, hit);
}


static int give(far_task *t, const shard_hit *hit, uint32_t mark, far_out *out) {
    far_rdwc_done(t, mark);
    return far_out_give(out, hit->block->bytes + hit->block->key_length, hit->block->value_length);
}


int shard_p_get(far_task *t, far_index *index, far_bytes key, far_out *out) {
    shard_try y;
    int err = shard_begin(&y, t, index, key);
    far_scratch_mark scratch = far_scratch_here(t);
    while (err >= 0) {
        shard_hit hit;
        shard_attempt(&y);
        uint32_t mark = far_rdwc_mark(t);
        if ((err = find_in_window(&y, &hit)) == 1)
            return give(t, &hit, mark, out);
        mark = far_rdwc_mark(t);
        if (err < 0 || (err = shard_put_home(&y)) < 0)
            return err;
        if (err == 0) {
            if ((err = far_wait(t)) < 0 || (err = shard_see_home(&y)) < 0)
                return err;
            far_point(t, "shard:home_read");
            err = shard_p_find(&y, true, &hit, &mark);
            if (err == 1)
                return give(t, &hit, mark, out);
            if (err <= 0)
                return err < 0 ? err : FAR_ERR_NOT_FOUND;
        }
        err = shard_retry(&y, true);
        far_scratch_back(t, scratch);
    }
    return err;
}
