/* Helpers for tests of named interleavings of SMART. A, B and C (a, b, c) are clients on three compute nodes. Keys
 * begin with 'n', so that all keys of a test are below one slot of the root. The handles have no housekeeping thread,
 * so a delete does its background work, including merges, before it returns. */
#ifndef TESTS_INDEX_SMART_RIG_H
#define TESTS_INDEX_SMART_RIG_H

#include "../support/stage.h"
#include "index/smart/smart.h"

#include <stdio.h>
#include <string.h>

enum { SMALL_LIST = 13 }; /* number of slots of the smallest list node */

#define EAGER "merge=eager"
#define V1    "value--1"
#define V2    "value--2"
#define V3    "value--3"
#define LONG  "a value of another length, for which a new leaf is made"

static stage s;
static stage_actor *const a = &s.a, *const b = &s.b, *const c = &s.c;


static inline void open_stage(const char *options, const char *sim) {
    stage_open_without_housekeeping(&s, "smart", options, sim);
}


static inline void put_all(stage_actor *by, const char *keys) {
    char copy[256], *next = copy, *key;
    snprintf(copy, sizeof(copy), "%s", keys);
    while ((key = strsep(&next, " ")))
        stage_write(by, key, V1);
}


/* Starts an operation of `by` and runs it up to the point, where it stops. */
static inline void run_until_point(stage_actor *by, const char *point, far_op_kind does, const char *key,
                                   const char *value) {
    stage_start(by, does, key, value);
    stage_stop_at(by, (far_sim_match){.point = point});
}


/* The address of the object that was written last. Set by note_written, which a test installs as watcher for WRITEs of
 * one size. */
static far_addr written;


static inline void note_written(void *ctx, const far_sim_posted *posted) {
    if (posted->verb->kind == FAR_WRITE && posted->verb->length == *(uint32_t *)ctx)
        written = posted->verb->addr;
}


/* Inserts and deletes "naa" as A, and then waits until the memory of the retired leaf is free for A again. B's cache
 * still contains the address of the leaf. Returns that address. */
static inline far_addr recycle_leaf(uint32_t *bytes) {
    far_sim_on_verb(s.world, note_written, bytes);
    assert_int_equal(stage_do(a, FAR_OP_INSERT, "naa", V1), 0);
    far_addr first = written;
    assert_true(stage_reads(b, "naa", V1)); /* B stores the address of the leaf in its cache. */
    assert_int_equal(stage_do(a, FAR_OP_DELETE, "naa", NULL), 0);
    stage_free_retired(&s);
    return first;
}


/* Removes the node of "nx" while B's cache still contains it. Then A inserts a key that needs a node with the same
 * prefix, and the new node gets the same memory. A's CAS that links the new node is held back, so that the node is
 * written but not linked. Returns the address of the node; *link is the held CAS. */
static inline far_addr recycle_node(far_sim_hold **link) {
    static uint32_t bytes = 128;
    put_all(a, "nba");
    far_sim_on_verb(s.world, note_written, &bytes);
    put_all(a, "nxaa nxba");
    far_addr first = written;
    assert_true(stage_reads(b, "nxaa", V1) && stage_reads(b, "nxba", V1));
    assert_int_equal(stage_do(a, FAR_OP_DELETE, "nxaa", NULL), 0);
    assert_int_equal(stage_do(a, FAR_OP_DELETE, "nxba", NULL), 0);
    stage_free_retired(&s);
    put_all(a, "nxaa");
    stage_start(a, FAR_OP_INSERT, "nxba", V2);
    *link = stage_hold(a, (far_sim_match){.kind = FAR_SIM_CAS});
    assert_int_equal(written, first);
    return first;
}


static inline uint64_t *memory_of(far_addr addr) {
    return world_bytes(s.world, addr);
}

#endif
