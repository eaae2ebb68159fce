/* For named interleavings of Dolphin. Keys begin with 'n', so that all of a test lie below one entry of the root. The
 * handles have no housekeeping, but where a test is run again with it: then one of them looks at the end that no memory
 * was lost by anybody who lives. */
#ifndef TESTS_INDEX_DOLPHIN_RIG_H
#define TESTS_INDEX_DOLPHIN_RIG_H

#include "../support/stage.h"
#include "index/dolphin/dolphin.h"

#include <stdio.h>
#include <string.h>

#define WORDS  "value_size=8,hints=off"
#define SLOTS2 WORDS ",leaf_slots=2"
#define SLOTS1 WORDS ",leaf_slots=1"
#define V1     "value--1"
#define V2     "value--2"
#define V3     "value--3"
#define LONG1  "a value that does not fit into a word, the first"
#define LONG2  "a value that does not fit into a word, the second one"

/* Keys: with one per leaf the next one makes the node grow; with two, na; nb nc; nx ny: nd splits one leaf, nz another. */
#define MANY "nb nd nf nh nj nl nn np nr nt nv nx"
#define FIVE "na nb nx ny nc"

static stage s;
static stage_actor *const a = &s.a, *const b = &s.b, *const c = &s.c;


/* How inserts take their slots, where the options do not say it: most tests hold for both ways, and run twice. */
static const char *insert_by = "ticket";
static bool by_hand = true;


static inline int inserts_by_ticket(void **state) {
    (void)state;
    insert_by = "ticket";
    by_hand = true;
    return 0;
}


static inline int inserts_by_cas(void **state) {
    (void)state;
    insert_by = "cas";
    return 0;
}


static inline int beside_housekeeping(void **state) {
    inserts_by_ticket(state);
    by_hand = false;
    return 0;
}


static inline void up(const char *options, const char *sim) {
    char all[128];
    bool says = strstr(options, "insert=") != NULL;
    snprintf(all, sizeof(all), "%s%s%s%s", options, says || !*options ? "" : ",",
             says ? "" : "insert=", says ? "" : insert_by);
    if (by_hand)
        stage_open_by_hand(&s, "dolphin", all, sim);
    else
        stage_open(&s, "dolphin", all, sim);
}


static inline void put_all(stage_actor *by, const char *keys) {
    char copy[256], *next = copy, *key;
    snprintf(copy, sizeof(copy), "%s", keys);
    while ((key = strsep(&next, " ")))
        stage_write(by, key, V1);
}


static inline bool all_read(stage_actor *by, const char *keys, const char *value) {
    char copy[256], *next = copy, *key;
    bool all = true;
    snprintf(copy, sizeof(copy), "%s", keys);
    while ((key = strsep(&next, " ")))
        all &= stage_reads(by, key, value);
    return all;
}


/* One more client of the same compute node; its session is closed by hand. */
static inline stage_actor another_of(const stage_actor *of) {
    stage_actor d = {.pool = of->pool, .index = of->index};
    assert_int_equal(far_session_open(of->pool, &d.session), 0);
    return d;
}


/* The operation of `by` stands at the point, for the nth time. */
static inline void stand_at(stage_actor *by, const char *point, unsigned nth, far_op_kind does, const char *key,
                            const char *value) {
    stage_start(by, does, key, value);
    stage_stop_at(by, (far_sim_match){.point = point, .nth = nth});
}


static inline void stand(stage_actor *by, const char *point, far_op_kind does, const char *key, const char *value) {
    stand_at(by, point, 1, does, key, value);
}


/* It begins, and does not come to an end while the others stand. */
static inline void start_and_wait(stage_actor *by, far_op_kind does, const char *key, const char *value) {
    stage_start(by, does, key, value);
    far_sim_run_for(s.world, 100000);
    assert_false(by->ended);
}


static inline uint64_t *memory_of(far_addr addr) {
    return world_bytes(s.world, addr);
}


static inline dolphin_state *state_of(const stage_actor *by) {
    return dolphin_state_of(by->index);
}


/* The node for the key at this level (0: the root), as it is in memory now. */
static inline dolphin_node node_at(const char *key, unsigned level) {
    far_bytes bytes = {key, strlen(key)};
    dolphin_node node = {.word = state_of(c)->root};
    for (unsigned i = 0;; i++) {
        node.image = memory_of(dolphin_entry_addr(node.word));
        node.depth = dolphin_ident_depth(node.image[1]);
        node.class = dolphin_ident_class(node.image[1]);
        node.capacity = dolphin_capacity(node.class, node.depth);
        node.entries = node.image + (DOLPHIN_NODE_HEADER + dolphin_prefix_bytes(node.depth)) / 8;
        if (i == level)
            return node;
        int at = dolphin_lookup(&node, dolphin_position(bytes, node.depth));
        assert_true(at >= 0 && dolphin_entry_is_node(node.entries[at]));
        node.word = node.entries[at];
    }
}


/* The node below the root. */
static inline far_addr node_addr(const char *key) {
    return dolphin_entry_addr(node_at(key, 1).word);
}


/* The entry of the leaf of a key, below the node at this level. */
static inline uint64_t leaf_entry(const char *key, unsigned level) {
    far_bytes bytes = {key, strlen(key)};
    dolphin_node node = node_at(key, level);
    int at = dolphin_lookup(&node, dolphin_position(bytes, node.depth));
    assert_true(at >= 0 && dolphin_entry_kind(node.entries[at]) == DOLPHIN_LEAF);
    return node.entries[at];
}


/* Runs a client as far as it gets while that verb has no effect. */
static inline void run_without(stage_actor *by, far_sim_match match, far_sim_hold **hold) {
    *hold = stage_hold(by, match);
    for (unsigned i = 0; i < 20; i++)
        far_sim_run_client(by->client);
    assert_false(by->ended);
}


/* For a check that must find something: whatever it says will do. */
static inline int expect_problem(void *ctx, const char *what) {
    (void)ctx, (void)what;
    return 0;
}

#endif
