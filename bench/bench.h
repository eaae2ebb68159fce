/* Declarations that all parts of the benchmark share. README.md of this folder shows how the parts work together.
 *
 * A *point* is one combination of values of the options that --sweep varies. For each point, each kind of index, and
 * each workload, the benchmark produces one bench_result. A *rival* is another store that runs the same workloads
 * (--against). */
#ifndef FAR_BENCH_BENCH_H
#define FAR_BENCH_BENCH_H

#include "base/bytes.h"
#include "fabric/sim/model.h"
#include "index/index.h"
#include "tools/common/cli.h"
#include "tools/common/json_output.h"
#include "workload/histogram.h"
#include "workload/keyset.h"
#include "workload/ycsb.h"

#include <math.h>
#include <sys/types.h>

#define BENCH_KINDS_MAX     16
#define BENCH_WORKLOADS_MAX 32
#define BENCH_OPS           (FAR_OP_SCAN + 1)
#define BENCH_URI_MAX       256
#define BENCH_SWEEPS_MAX    8
#define BENCH_POINT_MAX     256 /* bytes of a point as text, for example "threads=4,depth=2" */

typedef struct bench_kind {
    const far_index_kind *kind;
    char options[FAR_OPTIONS_TEXT_MAX + 1];
} bench_kind;

struct bench_store;
struct bench_config;
typedef struct bench_rival { /* another store that runs the same workloads; rivals.c has the table */
    const char *name;        /* name of the store, for --against and in results */
    const char *heading;     /* heading of the column with the ratio of throughputs */
    const char *absent;      /* message if this build lacks the store */
    const char *words;       /* line above the table that describes how the store is used */
    unsigned processes;      /* default number of processes */
    bool one_process;        /* only the process that opened the store can use it */
    bool remote;             /* the store is a server, so the index is compared on a memory node's daemon */
    /* fills in *store; returns false if this build lacks the store */
    bool (*store)(struct bench_store *store, const struct bench_config *config);
} bench_rival;

const bench_rival *bench_rival_named(const char *name); /* returns NULL if there is no store of that name */

typedef struct bench_progress { /* the progress over all points */
    unsigned steps, done;       /* a step is one workload on one kind */
} bench_progress;

typedef struct bench_config {
    char uri[BENCH_URI_MAX];
    bool own_pool; /* the user named no pool, so the pool exists for this benchmark only */
    bool sim;
    bench_kind kinds[BENCH_KINDS_MAX];
    unsigned kind_count;
    far_ycsb_workload workloads[BENCH_WORKLOADS_MAX];
    unsigned workload_count;

    far_keyset *keys;
    uint64_t records;
    /* Number of operations of a workload, or 0 if it is not given. Then bench_ops() computes a number, and time_limit
     * may end a workload. */
    uint64_t ops;
    /* Number of operations before measuring, or UINT64_MAX if it is not given. Then each workload warms up until its
     * costs are steady. */
    uint64_t warmup;
    uint64_t time_limit; /* longest time of a workload in ns, by the clock of its clients; 0 for no limit */
    /* duration of a workload in ns (--duration), which then ends only by this time; 0 if not given */
    uint64_t duration;
    /* Number of operations per second that arrive over all clients, whether or not the clients keep up. 0 means that
     * each client starts an operation when the previous one has ended. */
    uint64_t rate;
    uint64_t interval;     /* ns of each interval of the time series; 0 for no time series */
    uint64_t load_clients; /* number of clients that run the load; 0 for all */
    uint64_t value_size, threads, depth, compute_nodes, cache, seed;
    uint64_t memory_nodes; /* number of memory nodes; 0 to use the number in the URI */
    uint64_t runs;
    uint64_t run; /* number of the current run, from 0 */
    far_mix mix;
    uint64_t scan_length[2];     /* smallest and largest number of pairs of a scan; 0, 0 for the default of 1..100 */
    char point[BENCH_POINT_MAX]; /* the current point; "" without a sweep */
    const char *command;         /* the command line, as a shell reads it */
    bool ideal, instructions;
    double *ideal_mops; /* rates of an ideal index at this point, by workload; 0: not measured yet */
    bench_progress *progress;
    uint64_t processes;         /* number of processes; 0 for threads of this process */
    const bench_rival *against; /* the store to compare with; NULL for none */
    bool dist_given;
    far_distribution_kind dist;
    double theta;
    int rdwc;
    bool keep;
} bench_config;

static inline void bench_step_done(const bench_config *config, unsigned steps) {
    if (config->progress)
        config->progress->done += steps;
}

/* Opens the pool, or creates it and prints a note. Returns 0 or an error code. */
int bench_open_pool(const bench_config *config, far_pool **pool);

static inline unsigned bench_clients(const bench_config *config) {
    return (unsigned)(config->threads * config->compute_nodes);
}

uint64_t bench_ops(const bench_config *config, const far_index_kind *kind, far_ycsb_workload workload);
far_distribution_kind bench_distribution(const bench_config *config, far_ycsb_workload workload);
far_ycsb_config bench_ycsb(const bench_config *config, far_ycsb_workload workload, uint64_t ops);
bool bench_has_scans(const bench_config *config, far_ycsb_workload workload);

/* One interval of a time series: the number of operations that ended in it, and their latency. */
typedef struct bench_moment {
    uint64_t ops, sum_ns, max_ns;
} bench_moment;

typedef struct bench_series {
    bench_moment *moments;
    size_t count, room;
    bool cut; /* the series has ended early, because memory ran out or it has the largest allowed number of intervals */
} bench_series;

void bench_series_add(bench_series *series, uint64_t interval, uint64_t since_begin, uint64_t latency);
void bench_series_merge(bench_series *into, const bench_series *from);
void bench_series_clear(bench_series *series);
void bench_series_free(bench_series *series);

/* The most important numbers of each run, if --runs repeats a point. */
#define BENCH_RUNS_MAX 100
typedef struct bench_spread {
    double mops[BENCH_RUNS_MAX], p50_us[BENCH_RUNS_MAX], p99_us[BENCH_RUNS_MAX];
} bench_spread;

/* The result of one workload on one kind of index, or on a rival. */
typedef struct bench_result {
    const char *name;       /* name of the kind, or of a rival, for example "lmdb" */
    const bench_kind *kind; /* NULL for a rival, which has no counters */
    far_ycsb_workload workload;
    uint64_t ops; /* number of measured operations */
    uint64_t errors;
    uint64_t ns;
    uint64_t cpu_ns; /* processor time of all threads of all processes; only with --processes */
    uint64_t clients;
    uint64_t warmup_ops;
    bool settled; /* background work had ended before measuring began */
    /* round trips per operation, and the caches of each compute node, had stopped changing before measuring began */
    bool warm;
    /* instructions in user space inside calls; 0 if they were not counted */
    uint64_t instructions, instructions_of[BENCH_OPS];
    bench_series series; /* only with --interval */
    unsigned runs;       /* number of runs whose results are added up here */
    bench_spread spread; /* the numbers of each run */
    /* verbs and bytes of each memory node; only on sim pools */
    uint64_t node_verbs[FAR_NODES_MAX], node_bytes[FAR_NODES_MAX];
    unsigned nodes;
    far_stats stats, by_op[BENCH_OPS];
    far_histogram latency, latency_of[BENCH_OPS];
    far_usage usage; /* memory at the end of the workload; cache_bytes is the mean over compute nodes */
    bool has_cache;
    far_load load; /* load factor; `slots` is 0 for kinds without slots */
    /* counters of the kind during this workload, over all compute nodes; all zero if the kind has none */
    far_figures figures;
    far_capabilities capabilities;
    double ideal_mops; /* rate of an ideal index, with --ideal; only on sim pools, like `nic` */
    far_sim_model nic;
} bench_result;

/* Loads an index of the kind, runs all workloads on it, and passes each result to `each`. Returns 0, or CLI_FAILED
 * after a message. Adds to *errors the number of wrong values, missing values and failed operations. */
int bench_run_kind(const bench_config *config, const bench_kind *kind,
                   void (*each)(void *ctx, const bench_result *result), void *ctx, uint64_t *errors);

void bench_add_stats(far_stats *sum, const far_stats *more);
void bench_add_figures(far_figures *sum, const far_figures *more, bool plus);

/* Checks a value that a get or a scan returned: it must prove that it belongs to the key. Returns NULL, or a
 * description of the error. In check.c. */
const char *bench_check_value(far_bytes key, const void *value, size_t length, size_t expected_size);

typedef struct bench_scan { /* the state of the check of one scan's pairs */
    far_bytes from;
    size_t value_size;
    bool first_may_be_gone; /* the workload contains deletes, so the first key of the scan may be gone */
    uint64_t pairs;
    const char *wrong; /* description of the first error; NULL for none */
    uint8_t last[FAR_KEY_MAX];
    size_t last_len;
} bench_scan;

int bench_scan_pair(void *scan, const void *key, size_t key_len, const void *value,
                    size_t value_len); /* the callback of a scan (far_pair_fn) */

/* Returns the million operations per second of an ideal index that needs one READ or one WRITE of the pair for each
 * operation, on the same simulated NICs. Returns a negative number after a message. In ideal.c. */
double bench_ideal_mops(const bench_config *config, far_ycsb_workload workload);

/* Warnings about a result that would otherwise be misleading. */
typedef enum {
    BENCH_NOTE_FEW_OPS,
    BENCH_NOTE_NOT_WARM,
    BENCH_NOTE_NOT_SETTLED,
    BENCH_NOTE_BEHIND, /* the clients did not keep up with --rate */
    BENCH_NOTE_SERIES_CUT,
    BENCH_NOTES /* number of warnings */
} bench_note;
#define BENCH_NOTE_BYTES 256
bool bench_note_on(bench_note note, const bench_config *config, const bench_result *result, char *text);

/* The destinations of results: the table (report_text.c), JSON (report_json.c) and CSV (report_csv.c). */
typedef struct bench_report {
    const bench_config *config; /* configuration of the results that follow */
    FILE *table, *json, *csv;   /* each may be NULL, if that output is not wanted */
    cli_json_list json_list;    /* the array that is written to `json` */
    unsigned count;
    /* throughput and median latency of the rival, by workload; 0 if not measured */
    double rival_mops[FAR_YCSB_WORKLOADS], rival_p50[FAR_YCSB_WORKLOADS];
    unsigned noted[BENCH_NOTES]; /* number of results that each warning concerns */
    char notes[BENCH_NOTES][BENCH_NOTE_BYTES + 64];
} bench_report;

void bench_report_setting(bench_report *report, const bench_config *config); /* called before the results of a point */
void bench_report_result(void *report, const bench_result *result);
/* returns 0, or CLI_FAILED after a message if a file could not be written */
int bench_report_end(bench_report *report);

/* Runs every kind config->runs times, and passes the added-up results to the report. Returns 0, or CLI_FAILED after a
 * message. In runs.c. */
int bench_runs(const bench_config *config, bench_report *report, uint64_t *errors);

#define BENCH_NOTHING NAN /* a number that has no meaning for this result: null in JSON, "-" in the table */
double bench_per(uint64_t count, uint64_t of);
double bench_mops(const bench_result *result);
double bench_quantile_us(const far_histogram *latency, uint64_t numerator, uint64_t denominator);
double bench_hit_ratio(const bench_result *result);
/* throughput of the index divided by that of the rival */
double bench_rival_ratio(const bench_report *report, const bench_result *result);
/* median latency of the index divided by that of the rival */
double bench_rival_p50_ratio(const bench_report *report, const bench_result *result);
uint64_t bench_verbs(const far_stats *stats);
double bench_deviation(const double *values, unsigned count); /* the sample standard deviation */

void bench_json_result(bench_report *report, const bench_result *result);
void bench_csv_begin(const bench_report *report);
void bench_csv_result(const bench_report *report, const bench_result *result);

/* host.c: the host, the compiler and the date of a measurement. */
void bench_set_host(json_t *object); /* sets the fields "host", "compiler", "build", "commit" and "date" of a result */

/* instructions.c: counts instructions that this thread executes in user space. */
/* returns 0, or CLI_FAILED after a message that names another way if they cannot be counted here */
int bench_instructions_check(void);
/* opens a counter; returns -1 and sets errno on failure; tests replace it */
extern int (*bench_instructions_open)(void);
uint64_t bench_instructions_now(int counter);
void bench_instructions_close(int counter);

/* network.c: --micro on a tcp or rdma pool. */
int bench_network(const char *uri, FILE *table, FILE *json);

/* daemon.c: starts a memory node's daemon that ends with this process. Returns 0, or CLI_FAILED after a message. */
int bench_start_daemon(uint64_t bytes, char *uri, size_t room, pid_t *child);
void bench_end_daemon(pid_t child);

/* micro.c: --micro on a local pool. */
int bench_micro(uint64_t seed, FILE *table, FILE *json);


/* The two subcommands of farindex-bench, in bench.c and plot.c. */
int cli_bench(int argc, char **argv);
int cli_plot(int argc, char **argv);

#endif
