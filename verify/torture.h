/* Torture: one seed makes one simulated run of random clients with faults and client failures. After the run, the
 * history of all operations is checked for linearizability (verify.h), and so are the structure of the index, the
 * memory of the pool, and the simulator's memory checker. The same configuration and seed give the same run.
 * verify/README.md explains how to find a bug from its seed. */
#ifndef FAR_VERIFY_TORTURE_H
#define FAR_VERIFY_TORTURE_H

#include "farindex.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct far_torture { /* settings of torture; far_torture_init sets the defaults */
    /* options of the index; NULL: each seed chooses options for small indexes (torture_small.c) */
    const char *kind, *options;
    unsigned clients, compute_nodes, memory_nodes;
    unsigned depth; /* number of operations in flight per client; 0: one, but more in every third seed */
    /* number of operations of one seed over all clients; 0: 200, or more with some options that the seed chooses */
    uint64_t ops;
    uint64_t key_space;      /* number of different keys; 0: few, but more in every fourth seed */
    const char *keys;        /* key set: u64, email or prefix */
    uint64_t value_bytes[2]; /* smallest and largest size of a value */
    bool tear, reorder, stall, crash;
    unsigned atomic_bytes;
    bool masked_cas, atomics_in_order, reads_in_order, rdwc, scans;
    /* control messages take round trips, as on a network; with `crash`, outages and restarts of memory nodes happen too
     */
    bool questions;
    /* The run contains phases in which all keys are deleted, each followed by a pause, so that kinds that shrink do so.
     * far_torture_choose_small sets this field from the seed. */
    bool ebb;
    /* Number of index checks that a client with `churn` (see below) makes at each of its steps.
     * far_torture_choose_small sets this field from the seed. */
    unsigned checks;
    /* Sessions are lost soon after this named point of the code; NULL: at any verb. far_torture_choose_small sets this
     * field from the seed. */
    const char *lost_at;
    /* Additional clients open and close sessions, indexes and compute nodes, and check the pool during the run. */
    bool churn;
    uint64_t cache_bytes, pool_bytes;
    FILE *history, *trace; /* files that receive the history as JSON and the simulator's trace; NULL: not written */
    bool verbose;
} far_torture;

typedef struct far_torture_result {
    uint64_t seeds, ops, crashes, violations, problems, gave_up;
    uint64_t silences, restarts; /* numbers of outages and of restarts of memory nodes */
    uint64_t merged;             /* number of operations that RDWC merged into another operation */
    uint64_t trace_hash;         /* hash of the simulator's trace of the last seed; equal runs have equal hashes */
} far_torture_result;

void far_torture_init(far_torture *torture);

/* Runs one seed and adds its numbers to the result. Each failure is printed to `out` with the seed, the shortest
 * failing history that was found, and the last events of the simulator. Returns FAR_OK also if the run found failures,
 * or an error, explained by far_last_error, if the run could not be set up. */
int far_torture_run(const far_torture *torture, uint64_t seed, far_torture_result *result, FILE *out);

#endif
