/* The crash explorer: kills a client at every verb of an operation, and, if asked, after every unit of every WRITE,
 * each time in a fresh simulated pool; then survivors work on, the structure is checked, and a full sweep must leave no
 * memory lost. */
#ifndef FAR_VERIFY_EXPLORE_H
#define FAR_VERIFY_EXPLORE_H

#include "farindex.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* A step of the story: 0, or a negative number when something is wrong (a problem is reported then). */
typedef int (*far_explore_step)(far_session *s, far_index *index, void *ctx);

typedef struct far_explore {
    const char *kind, *options; /* of the index */
    const char *sim;            /* more options of the simulator, e.g. "atomic_bytes=8"; NULL = none */
    far_explore_step prepare;   /* before, on the survivor's compute node; may be NULL */
    far_explore_step victim;    /* the operation that is cut; what it returns does not matter */
    far_explore_step
        second; /* NULL, or what another client does after each death, and dies in as well: at every verb */
    far_explore_step survive; /* after the death: works on and says what is wrong */
    unsigned stride;          /* the second dies at every so manieth verb; 0, 1: at every one */
    bool every_unit;          /* cut every WRITE after every unit too */
    bool changes_only; /* one death for each state that it leaves behind: not at READs, and what is before a change is
                          not explored after the one before it too */
    bool sweep;        /* a full check with repair after `survive`; nothing may be lost then */
    void *ctx;
    FILE *out; /* where problems are told */
} far_explore;

typedef struct far_explore_result {
    uint64_t cuts;  /* deaths explored */
    uint64_t verbs; /* of the whole operation (of the first victim) */
    uint64_t problems;
} far_explore_result;

/* Returns 0 or an error that kept it from exploring. ctx is the same for all cuts: prepare resets it. */
int far_explore_run(const far_explore *explore, far_explore_result *result);

#endif
