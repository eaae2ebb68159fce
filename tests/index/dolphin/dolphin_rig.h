/* Shared helpers of the tests that drive named interleavings of Dolphin. Three clients, A, B and C, work on one index
 * on the simulator (the actors a, b and c). All keys begin with 'n', so that all objects of a test are below one entry
 * of the root.
 *
 * Most tests run without housekeeping, so that a test controls every verb. Some tests run once more with housekeeping;
 * then one of the clients also checks at the end that no live client has leaked memory. */
#ifndef TESTS_INDEX_DOLPHIN_RIG_H
#define TESTS_INDEX_DOLPHIN_RIG_H

#include "../support/stage.h"
#include "index/dolphin/dolphin.h"
#include "test.h"

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

/* Sets of keys. MANY: with one slot per leaf, the leaves fill their node, so the next insert replaces the node by a
 * larger copy. FIVE: with two slots per leaf, the leaves contain na; nb nc; nx ny. So inserting nd splits the second
 * leaf, and inserting nz the third one. */
#define MANY "nb nd nf nh nj nl nn np nr nt nv nx"
#define FIVE "na nb nx ny nc"

static stage s;
static stage_actor *const a = &s.a, *const b = &s.b, *const c = &s.c;


/* The value of the option `insert` for indexes that do not set it. Most tests hold for both values and run twice. */
static const char *insert_by = "ticket";
static bool without_housekeeping = true;


TEST_FIXTURE(inserts_by_ticket) {
    insert_by = "ticket";
    without_housekeeping = true;
    return 0;
}


TEST_FIXTURE(inserts_by_cas) {
    insert_by = "cas";
    without_housekeeping = true;
    return 0;
}


TEST_FIXTURE(with_housekeeping) {
    inserts_by_ticket(state);
    without_housekeeping = false;
    return 0;
}


/* Defines a test that runs twice: with insert=ticket and with insert=cas. */
#define TEST_OF_BOTH_INSERTS(name)                                                                                     \
    static void name(void **state);                                                                                    \
    TEST_REGISTER_(name##_by_ticket, #name " insert=ticket", name, inserts_by_ticket, NULL, NULL)                      \
    TEST_REGISTER_(name##_by_cas, #name " insert=cas", name, inserts_by_cas, NULL, NULL)                               \
    TEST_FUNCTION(name)

/* Lets a test run once more, with housekeeping in the background. */
#define TEST_CASE_WITH_HOUSEKEEPING(name)                                                                              \
    TEST_CASE_WITH(name, #name " with housekeeping", NULL, with_housekeeping, NULL)


static inline void open_stage(const char *options, const char *sim) {
    char all[128];
    bool says = strstr(options, "insert=") != NULL;
    snprintf(all, sizeof(all), "%s%s%s%s", options, says || !*options ? "" : ",",
             says ? "" : "insert=", says ? "" : insert_by);
    if (without_housekeeping)
        stage_open_without_housekeeping(&s, "dolphin", all, sim);
    else
        stage_open(&s, "dolphin", all, sim);
}


static inline void put_all(stage_actor *by, const char *keys) {
    char copy[256], *next = copy, *key;
    snprintf(copy, sizeof(copy), "%s", keys);
    while ((key = strsep(&next, " ")))
        stage_write(by, key, V1);
}


static inline bool keys_have_value(stage_actor *by, const char *keys, const char *value) {
    char copy[256], *next = copy, *key;
    bool all = true;
    snprintf(copy, sizeof(copy), "%s", keys);
    while ((key = strsep(&next, " ")))
        all &= stage_reads(by, key, value);
    return all;
}


static inline int keep_key_of_backward_scan(void *ctx, const void *key, size_t key_len, const void *value,
                                            size_t value_len) {
    stage_actor *by = ctx;
    by->value_len = value_len < STAGE_VALUE_MAX ? value_len : STAGE_VALUE_MAX;
    memcpy(by->value, value, by->value_len);
    memcpy(by->keys[by->pairs], key, key_len);
    by->keys[by->pairs][key_len] = 0;
    return ++by->pairs == STAGE_PAIRS_MAX;
}


/* Runs a backward scan from the upper bound `to` of the actor, or from the end of the index, down to the actor's key.
 * The actor keeps the keys as for a forward scan. This is also the main function of a simulated client. */
static inline void run_backward_scan(void *actor) {
    stage_actor *by = actor;
    by->pairs = 0;
    by->result = (int)far_scan_reverse(by->session, by->index, by->key_len ? by->key : NULL, by->key_len, by->to,
                                       by->to ? strlen(by->to) : 0, by->limit, keep_key_of_backward_scan, by);
    by->ended = true;
}


/* Creates a simulated client that runs a backward scan down to `from`. The client does not run yet. */
static inline void start_backward_scan(stage_actor *by, const char *from) {
    stage_set(by, FAR_OP_SCAN, from, NULL);
    stage_start_main(by, "backward scan", run_backward_scan);
}


/* Returns whether the last backward scan of the actor has returned exactly these keys. The keys are given in ascending
 * order, separated by spaces. */
static inline bool scanned_backward(const stage_actor *by, const char *keys) {
    char copy[STAGE_VALUE_MAX], *next = copy, *key;
    unsigned left = by->pairs;
    snprintf(copy, sizeof(copy), "%s", keys);
    while ((key = strsep(&next, " ")))
        if (left == 0 || strcmp(by->keys[--left], key) != 0)
            return false;
    return left == 0;
}


static inline bool scans_backward(stage_actor *by, const char *from, const char *keys) {
    stage_set(by, FAR_OP_SCAN, from, NULL);
    run_backward_scan(by);
    return by->result >= 0 && scanned_backward(by, keys);
}


/* Returns whether a forward scan and then a backward scan return exactly these keys. */
static inline bool scans_both_ways(stage_actor *by, const char *from, const char *keys) {
    return stage_scans(by, from, keys) && scans_backward(by, from, keys);
}


/* Opens one more session in the handle of `of`. The caller closes it. */
static inline stage_actor open_another_session(const stage_actor *of) {
    stage_actor d = {.pool = of->pool, .index = of->index};
    assert_int_equal(far_session_open(of->pool, &d.session), 0);
    return d;
}


/* Starts an operation of `by`, and stops it when it reaches the point for the nth time. */
static inline void run_to_nth_point(stage_actor *by, const char *point, unsigned nth, far_op_kind does, const char *key,
                                    const char *value) {
    stage_start(by, does, key, value);
    stage_stop_at(by, (far_sim_match){.point = point, .nth = nth});
}


static inline void run_to_point(stage_actor *by, const char *point, far_op_kind does, const char *key,
                                const char *value) {
    run_to_nth_point(by, point, 1, does, key, value);
}


/* Starts an operation and asserts that it waits for another client, so it does not end by itself. */
static inline void start_and_assert_waiting(stage_actor *by, far_op_kind does, const char *key, const char *value) {
    stage_start(by, does, key, value);
    far_sim_run_for(s.world, 100000);
    assert_false(by->ended);
}


static inline uint64_t *memory_at(far_addr addr) {
    return world_bytes(s.world, addr);
}


static inline dolphin_state *state_of(const stage_actor *by) {
    return dolphin_state_of(by->index);
}


/* Returns the node on the path to the key at this level (0: the root), with its current content in far memory. */
static inline dolphin_node node_at(const char *key, unsigned level) {
    far_bytes bytes = {key, strlen(key)};
    dolphin_node node = {.word = state_of(c)->root};
    for (unsigned i = 0;; i++) {
        node.image = memory_at(dolphin_entry_addr(node.word));
        node.depth = dolphin_ident_depth(node.image[1]);
        node.class = dolphin_ident_class(node.image[1]);
        node.capacity = dolphin_node_capacity(node.class, node.depth);
        node.entries = node.image + (DOLPHIN_NODE_HEADER + dolphin_stored_prefix_bytes(node.depth)) / 8;
        if (i == level)
            return node;
        int at = dolphin_find_entry(&node, dolphin_position(bytes, node.depth));
        assert_true(at >= 0 && dolphin_entry_is_node(node.entries[at]));
        node.word = node.entries[at];
    }
}


/* Returns the address of the node at level 1, directly below the root. */
static inline far_addr node_addr(const char *key) {
    return dolphin_entry_addr(node_at(key, 1).word);
}


/* Returns the entry that names the leaf of this key, in the node at this level. */
static inline uint64_t leaf_entry(const char *key, unsigned level) {
    far_bytes bytes = {key, strlen(key)};
    dolphin_node node = node_at(key, level);
    int at = dolphin_find_entry(&node, dolphin_position(bytes, node.depth));
    assert_true(at >= 0 && dolphin_entry_kind(node.entries[at]) == DOLPHIN_KIND_LEAF);
    return node.entries[at];
}


/* Holds back the first verb of the client that matches, and runs the client as far as possible meanwhile. Asserts that
 * the operation does not end. */
static inline void run_while_held(stage_actor *by, far_sim_match match, far_sim_hold **hold) {
    *hold = stage_hold(by, match);
    for (unsigned i = 0; i < 20; i++)
        far_sim_run_client(by->client);
    assert_false(by->ended);
}


/* A report function for checks that must find a problem; it accepts any text. */
static inline int accept_problem(void *ctx, const char *what) {
    (void)ctx, (void)what;
    return 0;
}

#endif
