/* For named interleavings of CHIME: keys and values of 8 bytes, keys chosen by their home and range. The handles have
 * no housekeeping: pivots and merges are done before an operation returns. */
#ifndef TESTS_INDEX_CHIME_RIG_H
#define TESTS_INDEX_CHIME_RIG_H

#include "../support/stage.h"
#include "index/chime/chime.h"

#include <stdio.h>

#define SMALL "key_size=8,value_size=8,span=12,hop=4,merge=sparse"
#define ONE   "memory_nodes=1"

static stage s;
static stage_actor *const a = &s.a, *const b = &s.b, *const c = &s.c;


static inline void up(const char *options, const char *sim) {
    stage_open_by_hand(&s, "chime", options, sim);
}


static inline const chime_state *shape(void) { /* of the nodes */
    return chime_state_of(a->index);
}


static inline const uint8_t *bytes_of(uint64_t number) {
    static uint8_t bytes[4][8];
    static unsigned turn;
    uint8_t *b8 = bytes[turn++ % 4];
    for (unsigned i = 0; i < 8; i++)
        b8[i] = (uint8_t)(number >> (56 - 8 * i));
    return b8;
}


static inline unsigned home_of(uint64_t number) {
    chime_key key;
    chime_key_make(shape(), (far_bytes){bytes_of(number), 8}, &key);
    return chime_home(shape(), key.hash);
}


/* The first key from `from` on with that home. */
static inline uint64_t key_at(unsigned home, uint64_t from) {
    while (home_of(from) != home)
        from++;
    return from;
}


static inline int insert(stage_actor *by, uint64_t key, uint64_t value) {
    return far_insert(by->session, by->index, bytes_of(key), 8, &value, 8);
}


static inline int update(stage_actor *by, uint64_t key, uint64_t value) {
    return far_update(by->session, by->index, bytes_of(key), 8, &value, 8);
}


static inline int delete (stage_actor *by, uint64_t key) {
    return far_delete(by->session, by->index, bytes_of(key), 8);
}


static inline bool reads(stage_actor *by, uint64_t key, uint64_t value) {
    uint64_t found = 0;
    size_t length = 0;
    return far_get(by->session, by->index, bytes_of(key), 8, &found, 8, &length) == 0 && length == 8 && found == value;
}


static inline bool misses(stage_actor *by, uint64_t key) {
    uint64_t found = 0;
    size_t length = 0;
    return far_get(by->session, by->index, bytes_of(key), 8, &found, 8, &length) == FAR_ERR_NOT_FOUND;
}


/* An operation as a client that a test steers. */
static inline void begin(stage_actor *by, far_op_kind does, uint64_t key, uint64_t value) {
    stage_start_bytes(by, does, bytes_of(key), 8, &value, 8);
}


static inline void stand(stage_actor *by, const char *point, far_op_kind does, uint64_t key, uint64_t value) {
    begin(by, does, key, value);
    stage_stop_at(by, (far_sim_match){.point = point});
}


static inline uint64_t *memory_of(far_addr addr) {
    return world_bytes(s.world, addr);
}


/* The leaf that holds the key, found behind the verbs; tail: its tail line. */
static inline chime_ptr leaf_of(uint64_t key, uint64_t **tail) {
    const chime_state *st = chime_state_of(a->index);
    chime_ptr p = *memory_of(a->index->descriptor + CHIME_ROOT_WORD);
    for (;;) {
        uint64_t *w = memory_of(chime_ptr_addr(p)), *t = chime_tail(st, w);
        if (chime_h1_sibling(t[CHIME_TAIL_H1]) && key >= t[CHIME_TAIL_HIGH]) {
            p = chime_h1_sibling(t[CHIME_TAIL_H1]);
            continue;
        }
        if (chime_h0_level(t[CHIME_TAIL_H0]) == 0) {
            if (tail)
                *tail = t;
            return chime_ptr_plain(p);
        }
        uint64_t best = 0;
        for (unsigned slot = 0; slot < st->span; slot++)
            if (chime_is_occupied(shape(), w, slot) && chime_slot(shape(), w, slot)[0] <= key &&
                chime_slot(shape(), w, slot)[0] >= best) {
                best = chime_slot(shape(), w, slot)[0];
                p = chime_slot(shape(), w, slot)[1];
            }
    }
}


static inline unsigned height(void) {
    return chime_ptr_low(*memory_of(a->index->descriptor + CHIME_ROOT_WORD));
}


/* Keys with every home in turn, `step` apart: even leaves. */
static inline uint64_t nth(unsigned n) {
    return (uint64_t)(n + 1) << 32;
}


static inline chime_ptr leaf_at(unsigned n) {
    return leaf_of(nth(n), NULL);
}


static inline unsigned end_of(unsigned n, unsigned count) {
    unsigned end = n;
    while (end < count && leaf_at(end) == leaf_at(n))
        end++;
    return end;
}


/* The node above the leaf of a key, found behind the verbs. */
static inline chime_ptr parent_of(unsigned n) {
    const chime_state *st = chime_state_of(a->index);
    chime_ptr p = *memory_of(a->index->descriptor + CHIME_ROOT_WORD);
    for (;;) {
        uint64_t *w = memory_of(chime_ptr_addr(p)), *tail = chime_tail(st, w), best = 0;
        if (chime_h1_sibling(tail[CHIME_TAIL_H1]) && nth(n) >= tail[CHIME_TAIL_HIGH]) {
            p = chime_h1_sibling(tail[CHIME_TAIL_H1]);
            continue;
        }
        if (chime_h0_level(tail[CHIME_TAIL_H0]) == 1)
            return chime_ptr_plain(p);
        for (unsigned slot = 0; slot < st->span; slot++)
            if (chime_is_occupied(shape(), w, slot) && chime_slot(shape(), w, slot)[0] <= nth(n) &&
                chime_slot(shape(), w, slot)[0] >= best) {
                best = chime_slot(shape(), w, slot)[0];
                p = chime_slot(shape(), w, slot)[1];
            }
    }
}


/* Pivots and merges run beside the operations that follow. */
static inline void settle(stage_actor *by) {
    for (unsigned i = 0; i < 40; i++)
        (void)misses(by, 1);
}


static inline void fill(stage_actor *by, unsigned count) {
    for (unsigned n = 0; n < count; n++)
        assert_int_equal(insert(by, nth(n), n), 0);
    settle(by);
}


/* Inserts from the n-th key on, until that has split a leaf. Returns which key did. */
static inline unsigned insert_until_split(stage_actor *by, unsigned n) {
    uint64_t splits = chime_state_of(by->index)->counts.splits;
    for (; chime_state_of(by->index)->counts.splits == splits; n++)
        assert_int_equal(insert(by, nth(n), n), 0);
    return n - 1;
}


/* The background work of `by` stands at the match, beside a get that holds nothing. False: it came not by there. */
static inline bool background_stands(stage_actor *by, far_sim_match match) {
    for (unsigned i = 0; i < 12; i++) {
        begin(by, FAR_OP_GET, 1, 0);
        far_sim_stop_before(by->client, match);
        if (far_sim_run_client(by->client) == FAR_SIM_STOPPED)
            return true;
    }
    return false;
}


static inline void assert_all(stage_actor *by, unsigned from, unsigned to) {
    for (unsigned n = from; n < to; n++)
        assert_true(reads(by, nth(n), n));
}

#endif
