/* Torture: one seed is one simulated run of random clients with faults and crashes, whose history is then checked,
 * together with the structure of the index, the memory of the pool and the simulator's watch. The same configuration
 * and seed give the same run. */
#ifndef FAR_VERIFY_TORTURE_H
#define FAR_VERIFY_TORTURE_H

#include "farindex.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct far_torture {    /* far_torture_init fills in the defaults */
    const char *kind, *options; /* options NULL: small ones of many kinds, by turns of the seed */
    unsigned clients, compute_nodes, memory_nodes;
    unsigned depth;          /* operations in flight; 0: 1, of every third seed more */
    uint64_t ops;            /* of one seed, over all clients; 0: 200, with some options of the seed's more */
    uint64_t key_space;      /* how many keys; 0: few, of every fourth seed more */
    const char *keys;        /* a key set: u64, email, prefix */
    uint64_t value_bytes[2]; /* from, to */
    bool tear, reorder, stall, crash;
    unsigned atomic_bytes;
    bool masked_cas, atomics_in_order, reads_in_order, rdwc, scans;
    bool questions;      /* as over a network; with `crash`, memory nodes fall silent and are restarted too */
    bool ebb;            /* in turns all keys go, and nobody works for a while: by the seed, for kinds that shrink */
    unsigned checks;     /* of the index, at each step of who churns: by the seed */
    const char *lost_at; /* sessions are lost soon after this point of the code: by the seed; NULL: anywhere */
    bool churn;          /* sessions, indexes and compute nodes come and go, sweeps run in the middle */
    uint64_t cache_bytes, pool_bytes;
    FILE *history, *trace; /* NULL: not written */
    bool verbose;
} far_torture;

typedef struct far_torture_result {
    uint64_t seeds, ops, crashes, violations, problems, gave_up;
    uint64_t silences, restarts; /* of memory nodes */
    uint64_t merged;             /* operations that RDWC let another one do */
    uint64_t trace_hash;         /* of the last seed */
} far_torture_result;

void far_torture_init(far_torture *torture);

/* Runs one seed and adds to the result; what went wrong is told on `out` with the seed, the shortest failing history
 * and the verb trace around it. FAR_OK, or an error when the run could not be set up at all (words in far_last_error).
 */
int far_torture_run(const far_torture *torture, uint64_t seed, far_torture_result *result, FILE *out);

#endif
