/* For named interleavings of SMART. Keys begin with 'n', so that all of a test lie below one slot of the root. The
 * handles have no housekeeping: a delete tidies up, and merges, before it returns. */
#ifndef TESTS_INDEX_SMART_RIG_H
#define TESTS_INDEX_SMART_RIG_H

#include "../support/stage.h"
#include "index/smart/smart.h"

#include <stdio.h>
#include <string.h>

enum { SMALL_LIST = 13 }; /* children of the smallest list, when it is full */

#define EAGER "merge=eager"
#define V1    "value--1"
#define V2    "value--2"
#define V3    "value--3"
#define LONG  "a value of another length, for which a new leaf is made"

static stage s;
static stage_actor *const a = &s.a, *const b = &s.b, *const c = &s.c;


static inline void up(const char *options, const char *sim) {
    stage_open_by_hand(&s, "smart", options, sim);
}


static inline void put_all(stage_actor *by, const char *keys) {
    char copy[256], *next = copy, *key;
    snprintf(copy, sizeof(copy), "%s", keys);
    while ((key = strsep(&next, " ")))
        stage_write(by, key, V1);
}


/* The operation of `by` stands at the point. */
static inline void stand(stage_actor *by, const char *point, far_op_kind does, const char *key, const char *value) {
    stage_start(by, does, key, value);
    stage_stop_at(by, (far_sim_match){.point = point});
}


/* The address of the object that was written last with so many bytes, once note_written is set as the watcher. */
static far_addr written;


static inline void note_written(void *ctx, const far_sim_posted *posted) {
    if (posted->verb->kind == FAR_WRITE && posted->verb->length == *(uint32_t *)ctx)
        written = posted->verb->addr;
}


/* The leaf of "naa" is deleted, and its memory comes back to the same client. */
static inline far_addr recycle_leaf(uint32_t *bytes) {
    far_sim_on_verb(s.world, note_written, bytes);
    assert_int_equal(stage_do(a, FAR_OP_INSERT, "naa", V1), 0);
    far_addr first = written;
    assert_true(stage_reads(b, "naa", V1)); /* b knows the address */
    assert_int_equal(stage_do(a, FAR_OP_DELETE, "naa", NULL), 0);
    stage_age(&s);
    return first;
}


/* The node of "nx" goes, as b's cache does not know; a writes another in its memory, and stands before it links it. */
static inline far_addr recycle_node(far_sim_hold **link) {
    static uint32_t bytes = 128;
    put_all(a, "nba");
    far_sim_on_verb(s.world, note_written, &bytes);
    put_all(a, "nxaa nxba");
    far_addr first = written;
    assert_true(stage_reads(b, "nxaa", V1) && stage_reads(b, "nxba", V1));
    assert_int_equal(stage_do(a, FAR_OP_DELETE, "nxaa", NULL), 0);
    assert_int_equal(stage_do(a, FAR_OP_DELETE, "nxba", NULL), 0);
    stage_age(&s);
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
