/* farindex bench --processes: the same operations by several processes on one store, which is an index on a shm pool,
 * or LMDB. */
#ifndef FAR_CLI_BENCH_PROCESSES_H
#define FAR_CLI_BENCH_PROCESSES_H

#include "cli/bench.h"

/* A store as one process has it. Functions return 0, or 1 with words in `error`. */
typedef struct bench_store {
    const char *name;
    int (*prepare)(struct bench_store *store); /* in the parent, before the processes start */
    int (*open)(struct bench_store *store);    /* in a process */
    int (*get)(struct bench_store *store, far_bytes key, uint8_t *value, size_t capacity, size_t *length);
    int (*put)(struct bench_store *store, far_bytes key, const uint8_t *value, size_t length);
    void (*close)(struct bench_store *store);
    int (*finish)(struct bench_store *store); /* in the parent, when they have ended */
    const bench_config *config;
    const bench_kind *kind;
    unsigned processes;
    void *state;
    char error[256];
} bench_store;

void bench_store_of_kind(bench_store *store, const bench_config *config, const bench_kind *kind, unsigned processes);
bool bench_store_of_lmdb(bench_store *store, const bench_config *config,
                         unsigned processes); /* false: not in this build */

int bench_processes(const bench_config *config, unsigned processes, bool against_lmdb, FILE *table, FILE *json);

#endif
