/* farindex bench, inside: what is asked for (bench.c), one kind under load (bench_run.c), by several processes
 * (bench_processes.c) and beside LMDB and Redis (bench_lmdb.c, bench_redis.c), the floor that a NIC sets (bench_ideal.c), the cost of the ground
 * (bench_micro.c), and how results are shown (bench_report.c). */
#ifndef FAR_CLI_BENCH_H
#define FAR_CLI_BENCH_H

#include "base/bytes.h"
#include "cli/cli.h"
#include "fabric/sim/model.h"
#include "index/index.h"
#include "workload/histogram.h"
#include "workload/keyset.h"
#include "workload/ycsb.h"

#include <sys/types.h>

#define BENCH_KINDS_MAX     16
#define BENCH_WORKLOADS_MAX 32
#define BENCH_OPS           (FAR_OP_SCAN + 1)
#define BENCH_URI_MAX       256

typedef struct bench_kind {
    const far_index_kind *kind;
    char options[FAR_OPTIONS_TEXT_MAX + 1];
} bench_kind;

typedef enum { BENCH_NOBODY, BENCH_LMDB, BENCH_REDIS } bench_rival;

typedef struct bench_config {
    char uri[BENCH_URI_MAX];
    bool sim;
    bench_kind kinds[BENCH_KINDS_MAX];
    unsigned kind_count;
    far_ycsb_workload workloads[BENCH_WORKLOADS_MAX];
    unsigned workload_count;

    far_keyset *keys;
    uint64_t records;
    uint64_t ops;        /* 0: not said; then bench_ops decides, and time_limit ends a workload */
    uint64_t warmup;     /* UINT64_MAX: not said */
    uint64_t time_limit; /* ns of real time for a workload; 0: none */
    uint64_t value_size, threads, depth, compute_nodes, cache, seed;
    uint64_t processes; /* 0: threads of this one */
    bench_rival against;
    bool dist_given;
    far_distribution_kind dist;
    double theta;
    int rdwc;
    bool keep;
} bench_config;

static inline unsigned bench_clients(const bench_config *config) {
    return (unsigned)(config->threads * config->compute_nodes);
}

uint64_t bench_ops(const bench_config *config, const far_index_kind *kind, far_ycsb_workload workload);
far_distribution_kind bench_distribution(const bench_config *config, far_ycsb_workload workload);

/* What one workload on one kind gave. */
typedef struct bench_result {
    const char *name;       /* of the kind, or "lmdb", "redis" */
    const bench_kind *kind; /* NULL: not an index of ours, so there are no counters */
    far_ycsb_workload workload;
    uint64_t ops; /* done, measured */
    uint64_t errors;
    uint64_t ns;
    uint64_t cpu_ns; /* by all threads of all processes; only with processes */
    far_stats stats, by_op[BENCH_OPS];
    far_histogram latency, latency_of[BENCH_OPS];
    far_usage usage; /* at the end; cache_bytes: mean per compute node */
    bool has_cache;
    far_load load;       /* slots 0: the kind has no such thing */
    far_figures figures; /* of this workload, all compute nodes; all 0: the kind counts nothing */
    far_capabilities capabilities;
    double ideal_mops; /* this and nic: sim only */
    far_sim_model nic;
} bench_result;

/* Loads one kind and runs all workloads on it; gives each result to `each`. 0, or CLI_FAILED (told): it could not go
 * on. *errors counts wrong and missing values, and operations that failed. */
int bench_run_kind(const bench_config *config, const bench_kind *kind,
                   void (*each)(void *ctx, const bench_result *result), void *ctx, uint64_t *errors);

void bench_add_stats(far_stats *sum, const far_stats *more);

/* bench_check.c: what makes an answer right. NULL, or what is wrong with it. */
const char *bench_check_value(far_bytes key, const void *value, size_t length, size_t expected_size);

typedef struct bench_scan { /* over the pairs of one scan */
    far_bytes from;
    size_t value_size;
    uint64_t pairs;
    const char *wrong; /* what was wrong first; NULL: nothing */
    uint8_t last[FAR_KEY_MAX];
    size_t last_len;
} bench_scan;

int bench_scan_pair(void *scan, const void *key, size_t key_len, const void *value,
                    size_t value_len); /* a far_pair_fn */

/* bench_ideal.c: Mops of an index that needs one READ or WRITE of the pair per operation, on the same simulated NICs.
 * Negative: told. */
double bench_ideal_mops(const bench_config *config, far_ycsb_workload workload);

/* bench_report.c */
typedef struct bench_report {
    const bench_config *config;
    FILE *table, *json; /* either may be NULL */
    unsigned count;
    double rival_mops[FAR_YCSB_WORKLOADS], rival_p50[FAR_YCSB_WORKLOADS]; /* 0: not measured */
} bench_report;

void bench_report_begin(bench_report *report);
void bench_report_result(void *report, const bench_result *result);
int bench_report_end(bench_report *report); /* 0, or CLI_FAILED: the JSON could not be written */

/* bench_network.c */
int bench_network(const char *uri, FILE *table, FILE *json);

/* bench_daemon.c: a memory node that ends with this process. 0, or told. */
int bench_start_daemon(uint64_t bytes, char *uri, size_t room, pid_t *child);
void bench_end_daemon(pid_t child);

/* bench_micro.c */
int bench_micro(uint64_t seed, FILE *table, FILE *json);

#endif
