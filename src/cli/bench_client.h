/* One client of a benchmark: a thread, or a simulated one, with its session. */
#ifndef FAR_CLI_BENCH_CLIENT_H
#define FAR_CLI_BENCH_CLIENT_H

#include "cli/bench.h"

#include <pthread.h>

typedef struct bench_node { /* a compute node */
    far_pool *pool;
    far_session *session; /* for create, open and usage; the clients have their own */
    far_index *index;
} bench_node;

typedef struct bench_slot bench_slot; /* one operation in flight */
typedef struct bench_run bench_run;
typedef struct bench_client bench_client;

/* The store under test: does operations as far_get .. far_scan, far_submit and far_reap do. */
typedef struct bench_engine {
    void (*call)(bench_client *client, far_op *op);
    int (*submit)(bench_client *client, far_op *ops[], size_t count);
    int (*reap)(bench_client *client, far_op *done[], size_t max, size_t wait_for);
} bench_engine;

extern const bench_engine bench_far_engine; /* a session of ours */

struct bench_client {
    bench_run *run;
    unsigned number;
    const bench_engine *engine;
    void *engine_state; /* of another engine than ours */
    far_host *host;     /* whose clock it is */
    uint64_t depth;     /* operations in flight */
    bench_node *node;
    far_session *session;
    pthread_t thread;
    far_ycsb_stream stream;
    bench_slot *slots; /* as many as operations in flight */
    far_op **ops;      /* room for far_submit and far_reap */
    uint8_t *values;
    uint64_t written; /* values so far: their versions */

    uint64_t budget, time_limit; /* of this phase */
    uint64_t gap;                /* ns between two operations of an open loop, on the mean; 0: a closed loop */
    uint64_t due;                /* when the next one is; of an open loop */
    far_random arrivals;
    bool measured;
    bool broken; /* its session, or the pool, cannot go on */

    uint64_t begin, end, done; /* of the measured phase */
    uint64_t errors;           /* of all phases */
    char first_error[240];
    far_histogram latency, latency_of[BENCH_OPS];
    bench_series series;
    int counter; /* of instructions; -1: none */
    uint64_t instructions, instructions_of[BENCH_OPS];
};

struct bench_run { /* one kind */
    const bench_config *config;
    const bench_kind *kind;
    const char *label;           /* its name */
    char name[FAR_NAME_MAX + 1]; /* of the index */
    bool created;
    bench_node *nodes;
    bench_client *clients;
    unsigned client_count;
    unsigned active; /* clients that take part in this phase */
    far_records *records;
    far_ycsb ycsb;
    const char *phase;
    uint64_t errors;
    bool error_told, broken;
    bool settled; /* after the load */
    uint64_t node_verbs[FAR_NODES_MAX], node_bytes[FAR_NODES_MAX];
    void (*each)(void *ctx, const bench_result *result);
    void *each_ctx;
};

bool bench_client_prepare(bench_client *client); /* false: no memory */
void bench_client_release(bench_client *client);
void bench_client_clear(bench_client *client); /* its results, before a workload */
void bench_client_work(void *client);          /* does the phase's budget */

/* What is said when the index is there already: its name, twice. */
#define BENCH_LEFTOVER "there is an index '%s' already; 'farindex drop %s' removes what an earlier run left"

#endif
