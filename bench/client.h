/* One client of a benchmark: a thread, a simulated task, or a process, with its session. run.c and processes.c create
 * clients, and client.c runs them. */
#ifndef FAR_BENCH_CLIENT_H
#define FAR_BENCH_CLIENT_H

#include "bench/bench.h"

#include <pthread.h>

typedef struct bench_lookups { /* lookups in caches */
    uint64_t count, hits;
} bench_lookups;

typedef struct bench_node { /* a compute node: a handle on the pool */
    far_pool *pool;
    far_session *session; /* creates, opens and measures the index; clients have sessions of their own */
    far_index *index;
    far_stats seen;        /* counters of its clients at the end of the last part of the run (caches_are_steady) */
    bench_lookups lookups; /* lookups in its caches in the last part of the run */
    size_t cache_bytes;    /* bytes of its caches at the end of the last part of the run */
} bench_node;

typedef struct bench_slot bench_slot; /* an operation in flight */
typedef struct bench_run bench_run;
typedef struct bench_client bench_client;

/* The store under test. The functions execute operations like far_get() to far_scan(), far_submit() and far_reap(). */
typedef struct bench_engine {
    void (*call)(bench_client *client, far_op *op);
    int (*submit)(bench_client *client, far_op *ops[], size_t count);
    int (*reap)(bench_client *client, far_op *done[], size_t max, size_t wait_for);
} bench_engine;

extern const bench_engine bench_far_engine; /* the engine that uses a session of farindex */

struct bench_client {
    bench_run *run;
    unsigned number;
    const bench_engine *engine;
    void *engine_state; /* state of the engine of a rival */
    far_host *host;     /* provides the clock */
    uint64_t depth;     /* largest number of operations in flight */
    bench_node *node;
    far_session *session;
    pthread_t thread;
    far_ycsb_stream stream;
    bench_slot *slots; /* array of `depth` operations */
    far_op **ops;      /* arrays for far_submit and far_reap */
    uint8_t *values;
    uint64_t written; /* number of values written so far; it makes the version in each value unique */

    uint64_t budget, time_limit; /* operations and time of the current phase */
    uint64_t gap;                /* mean time between two operations of an open loop, in ns; 0 for a closed loop */
    uint64_t due;                /* arrival time of the next operation of an open loop */
    far_random arrivals;
    bool measured;
    bool broken; /* the session or the pool can no longer be used */

    uint64_t begin, end, done; /* times and operations of the measured phase */
    uint64_t errors;           /* errors of all phases */
    char first_error[240];
    far_histogram latency, latency_of[BENCH_OPS];
    bench_series series;
    int counter; /* file descriptor of the instruction counter; -1 for none */
    uint64_t instructions, instructions_of[BENCH_OPS];
};

struct bench_run { /* one kind of index under load */
    const bench_config *config;
    const bench_kind *kind;
    const char *label;           /* name of the kind */
    char name[FAR_NAME_MAX + 1]; /* name of the index (bench_index_name) */
    bool created;
    bench_node *nodes;
    bench_client *clients;
    unsigned client_count;
    unsigned active; /* number of clients that take part in the current phase */
    far_records *records;
    uint64_t part_records; /* number of records at the end of the last part of the run */
    far_ycsb ycsb;
    const char *phase;
    uint64_t errors;
    bool error_told, broken;
    bool settled; /* background work has ended after the load */
    uint64_t node_verbs[FAR_NODES_MAX], node_bytes[FAR_NODES_MAX];
    void (*each)(void *ctx, const bench_result *result);
    void *each_ctx;
};

bool bench_client_prepare(bench_client *client); /* allocates the memory of the client; returns false without memory */
void bench_client_release(bench_client *client);
void bench_client_clear(bench_client *client); /* clears the results before a workload */
void bench_client_work(void *client);          /* runs the current phase; its argument is the client */

/* Message if the index exists already. Its two arguments are the name of the index. */
#define BENCH_LEFTOVER "an index '%s' exists already; 'farindex drop %s' removes the index of an earlier benchmark"

#define BENCH_INDEX_NAME (FAR_NAME_MAX + 1)
/* Writes the name of the index that the benchmark uses for a kind. With --keep the name is bench-KIND. Otherwise it is
 * bench-KIND-temporary, so that a later benchmark knows that the index of a killed benchmark may be removed. */
void bench_index_name(const bench_config *config, const far_index_kind *kind, char name[BENCH_INDEX_NAME]);
/* Creates the index of the benchmark, after it has removed the temporary index of a killed benchmark. Returns 0 or an
 * error code. */
int bench_create_index(const bench_config *config, far_session *session, const char *name, const bench_kind *kind,
                       far_index **index);

#endif
