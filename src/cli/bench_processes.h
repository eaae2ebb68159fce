/* farindex bench --processes: the same operations by several processes on one store, which is an index on a shm or
 * tcp pool, or a rival of it. */
#ifndef FAR_CLI_BENCH_PROCESSES_H
#define FAR_CLI_BENCH_PROCESSES_H

#include "cli/bench_client.h"

/* Functions return 0, or 1 with words in `error`. */
typedef struct bench_store {
    const char *name;
    int (*prepare)(struct bench_store *store);                    /* in the parent, before the processes start */
    int (*open)(struct bench_store *store, bench_client *client); /* in a process */
    int (*measure)(struct bench_store *store, bench_client *client, far_usage *usage); /* in one of them, at rest */
    void (*close)(struct bench_store *store, bench_client *client);
    int (*finish)(struct bench_store *store); /* in the parent, when they have ended */
    const bench_config *config;
    const bench_kind *kind; /* NULL: not ours */
    bool in_flight;         /* not ours, and it can have several operations in flight */
    bool no_scans;          /* not ours, and it has none */
    char index_name[32];    /* of ours */
    void *state;
    char error[256];
} bench_store;

void bench_store_of_kind(bench_store *store, const bench_config *config, const bench_kind *kind);
/* Of a rival; false: not in this build. */
bool bench_store_of_lmdb(bench_store *store, const bench_config *config);
bool bench_store_of_redis(bench_store *store, const bench_config *config);
bool bench_store_of_tkrzw(bench_store *store, const bench_config *config);
bool bench_store_of_kyotocabinet(bench_store *store, const bench_config *config);

int bench_processes(const bench_config *config, bench_report *report);

#endif
