/* With `farindex bench --processes`, several processes run the same operations on one store, which is an index on a shm
 * or tcp pool, or a rival. */
#ifndef FAR_BENCH_PROCESSES_H
#define FAR_BENCH_PROCESSES_H

#include "bench/client.h"

/* A store that processes share. Each function returns 0, or 1 with a message in `error`. */
typedef struct bench_store {
    const char *name;
    int (*prepare)(struct bench_store *store); /* called in the parent before the processes start; NULL: not needed */
    /* called in the parent after the processes have started, before they open the store; NULL: not needed */
    int (*create)(struct bench_store *store);
    int (*open)(struct bench_store *store, bench_client *client); /* called in each process */
    /* called in one process while no operation runs */
    int (*measure)(struct bench_store *store, bench_client *client, far_usage *usage);
    void (*close)(struct bench_store *store, bench_client *client);
    int (*finish)(struct bench_store *store); /* called in the parent after the processes have ended */
    const bench_config *config;
    const bench_kind *kind;            /* NULL for a rival */
    bool in_flight;                    /* a rival that can have several operations in flight */
    bool no_scans;                     /* a rival without scans */
    char index_name[BENCH_INDEX_NAME]; /* name of the index, unless the store is a rival */
    bench_node keeper; /* has the index open in the parent, so that no other benchmark takes it for a leftover */
    void *state;
    char error[256];
} bench_store;

void bench_store_of_kind(bench_store *store, const bench_config *config, const bench_kind *kind);
/* Each fills in *store for a rival. Returns false if this build lacks the library. */
bool bench_store_of_lmdb(bench_store *store, const bench_config *config);
bool bench_store_of_redis(bench_store *store, const bench_config *config);
bool bench_store_of_tkrzw(bench_store *store, const bench_config *config);
bool bench_store_of_kyotocabinet(bench_store *store, const bench_config *config);

int bench_processes(const bench_config *config, bench_report *report);

#endif
