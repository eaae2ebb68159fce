/* CHIME, helpers for tests of named interleavings. Keys and values have 8 bytes, and a test chooses keys by their home
 * slot and by their leaf. The handles have no background tasks. An operation itself inserts pivots and merges nodes
 * before it returns, so a test can stop a client in the middle of this work.
 *
 * `a`, `b` and `c` are clients on three compute nodes of one simulated pool (tests/support/stage.h). Functions that
 * read `memory_of` look into far memory directly, without verbs. */
#ifndef TESTS_INDEX_CHIME_RIG_H
#define TESTS_INDEX_CHIME_RIG_H

#include "../support/stage.h"
#include "index/chime/chime.h"

#include <stdio.h>

#define SMALL "key_size=8,value_size=8,span=12,hop=4,merge=sparse"
#define ONE   "memory_nodes=1"

static stage s;
static stage_actor *const a = &s.a, *const b = &s.b, *const c = &s.c;


static inline void open_chime(const char *options, const char *sim) {
    stage_open_without_housekeeping(&s, "chime", options, sim);
}


/* Returns the state of A's handle, which contains the geometry of nodes. */
static inline const chime_state *state_of_a(void) {
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


static inline unsigned home_slot_of(uint64_t number) {
    chime_key key;
    chime_key_make(state_of_a(), (far_bytes){bytes_of(number), 8}, &key);
    return chime_home_slot(state_of_a(), key.hash);
}


/* Returns the first key from `from` on with that home slot. */
static inline uint64_t key_with_home_slot(unsigned home, uint64_t from) {
    while (home_slot_of(from) != home)
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


static inline bool key_has_value(stage_actor *by, uint64_t key, uint64_t value) {
    uint64_t found = 0;
    size_t length = 0;
    return far_get(by->session, by->index, bytes_of(key), 8, &found, 8, &length) == 0 && length == 8 && found == value;
}


static inline bool key_is_absent(stage_actor *by, uint64_t key) {
    uint64_t found = 0;
    size_t length = 0;
    return far_get(by->session, by->index, bytes_of(key), 8, &found, 8, &length) == FAR_ERR_NOT_FOUND;
}


/* Starts an operation as a client that the test stops and resumes. */
static inline void start_operation(stage_actor *by, far_op_kind does, uint64_t key, uint64_t value) {
    stage_start_bytes(by, does, bytes_of(key), 8, &value, 8);
}


static inline void run_until_point(stage_actor *by, const char *point, far_op_kind does, uint64_t key, uint64_t value) {
    start_operation(by, does, key, value);
    stage_stop_at(by, (far_sim_match){.point = point});
}


static inline uint64_t *memory_of(far_addr addr) {
    return world_bytes(s.world, addr);
}


/* Returns the leaf to which the key belongs, read from far memory without verbs. Sets *tail to the tail line of that
 * leaf. */
static inline chime_ptr find_leaf(uint64_t key, uint64_t **tail) {
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
            return chime_ptr_without_low(p);
        }
        uint64_t best = 0;
        for (unsigned slot = 0; slot < st->span; slot++)
            if (chime_slot_is_occupied(state_of_a(), w, slot) && chime_slot(state_of_a(), w, slot)[0] <= key &&
                chime_slot(state_of_a(), w, slot)[0] >= best) {
                best = chime_slot(state_of_a(), w, slot)[0];
                p = chime_slot(state_of_a(), w, slot)[1];
            }
    }
}


static inline unsigned height(void) {
    return chime_ptr_low(*memory_of(a->index->descriptor + CHIME_ROOT_WORD));
}


/* Keys for tests that fill leaves evenly: they are equally spaced, and their home slots are spread over the leaf. */
static inline uint64_t nth_key(unsigned n) {
    return (uint64_t)(n + 1) << 32;
}


static inline chime_ptr leaf_of_nth(unsigned n) {
    return find_leaf(nth_key(n), NULL);
}


static inline unsigned first_key_after_leaf(unsigned n, unsigned count) {
    unsigned end = n;
    while (end < count && leaf_of_nth(end) == leaf_of_nth(n))
        end++;
    return end;
}


/* Returns the parent of the leaf to which nth_key(n) belongs, read from far memory without verbs. */
static inline chime_ptr parent_of_nth(unsigned n) {
    const chime_state *st = chime_state_of(a->index);
    chime_ptr p = *memory_of(a->index->descriptor + CHIME_ROOT_WORD);
    for (;;) {
        uint64_t *w = memory_of(chime_ptr_addr(p)), *tail = chime_tail(st, w), best = 0;
        if (chime_h1_sibling(tail[CHIME_TAIL_H1]) && nth_key(n) >= tail[CHIME_TAIL_HIGH]) {
            p = chime_h1_sibling(tail[CHIME_TAIL_H1]);
            continue;
        }
        if (chime_h0_level(tail[CHIME_TAIL_H0]) == 1)
            return chime_ptr_without_low(p);
        for (unsigned slot = 0; slot < st->span; slot++)
            if (chime_slot_is_occupied(state_of_a(), w, slot) && chime_slot(state_of_a(), w, slot)[0] <= nth_key(n) &&
                chime_slot(state_of_a(), w, slot)[0] >= best) {
                best = chime_slot(state_of_a(), w, slot)[0];
                p = chime_slot(state_of_a(), w, slot)[1];
            }
    }
}


/* Runs gets, during which the pivots and merges that `by` has deferred are done. */
static inline void run_background_work(stage_actor *by) {
    for (unsigned i = 0; i < 40; i++)
        (void)key_is_absent(by, 1);
}


static inline void insert_keys(stage_actor *by, unsigned count) {
    for (unsigned n = 0; n < count; n++)
        assert_int_equal(insert(by, nth_key(n), n), 0);
    run_background_work(by);
}


/* Inserts nth_key(n) and the keys after it until an insert has split a leaf. Returns the number of that insert's key.
 */
static inline unsigned insert_until_split(stage_actor *by, unsigned n) {
    uint64_t splits = chime_state_of(by->index)->counts.splits;
    for (; chime_state_of(by->index)->counts.splits == splits; n++)
        assert_int_equal(insert(by, nth_key(n), n), 0);
    return n - 1;
}


/* Runs gets of `by`, during which its deferred work (pivots and merges) is done, until it reaches the match, and stops
 * it there. Gets themselves hold no lock. Returns false if the match is not reached. */
static inline bool stop_background_at(stage_actor *by, far_sim_match match) {
    for (unsigned i = 0; i < 12; i++) {
        start_operation(by, FAR_OP_GET, 1, 0);
        far_sim_stop_before(by->client, match);
        if (far_sim_run_client(by->client) == FAR_SIM_STOPPED)
            return true;
    }
    return false;
}


static inline void assert_keys_present(stage_actor *by, unsigned from, unsigned to) {
    for (unsigned n = from; n < to; n++)
        assert_true(key_has_value(by, nth_key(n), n));
}

#endif
