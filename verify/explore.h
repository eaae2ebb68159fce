/* The crash explorer kills a client at every verb of an operation, and optionally after each tearing granule of every
 * WRITE, each time in a fresh simulated pool. After each kill a surviving client works on, the structure of the index
 * is checked, and a check of the pool with repair must leave no memory leaked. */
#ifndef FAR_VERIFY_EXPLORE_H
#define FAR_VERIFY_EXPLORE_H

#include "farindex.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* A step of an exploration. It returns 0, or a negative number if it found an error, which is then reported as a
 * problem. */
typedef int (*far_explore_step)(far_session *s, far_index *index, void *ctx);

typedef struct far_explore {
    const char *kind, *options; /* kind and options of the index */
    const char *sim;            /* more options of the simulator, for example "atomic_bytes=8"; NULL: none */
    far_explore_step prepare;   /* runs first, on the survivor's compute node; may be NULL */
    far_explore_step victim;    /* the operation during which the client is killed; its result is ignored */
    /* the operation of a second client, which runs after each kill of the first client and is itself killed at each of
     * its verbs; NULL: there is no second client */
    far_explore_step second;
    far_explore_step survive; /* runs after the kills; checks the index and continues to work */
    unsigned stride;          /* the second client is killed at every stride-th verb; 0 and 1: at each verb */
    bool every_unit;          /* also kill the client after each tearing granule of each WRITE */
    /* Explore only one kill for each state of the memory. Kills at READs are skipped, because a READ changes nothing.
     * The state before a change is not explored again if it was explored as the state after the previous change. */
    bool changes_only;
    bool collect; /* check the pool with repair after `survive`; no memory may be leaked afterwards */
    void *ctx;
    FILE *out; /* receives the text of problems; NULL: none is printed */
} far_explore;

typedef struct far_explore_result {
    uint64_t cuts;  /* number of explored runs with a kill */
    uint64_t verbs; /* number of verbs of the first client's whole operation */
    uint64_t problems;
} far_explore_result;

/* Runs the exploration. Returns 0, or an error that prevented it. All runs use the same ctx, so `prepare` must reset
 * it. */
int far_explore_run(const far_explore *explore, far_explore_result *result);

#endif
