/* farindex bench, inside: what is asked for (bench.c, bench_config.c), one experiment after the other (bench_sweep.c,
 * bench_runs.c), one kind under load (bench_run.c), by several processes (bench_processes.c) and beside LMDB
 * and others (bench_rivals.c, bench_lmdb.c, bench_redis.c, bench_tables.c), the floor that a NIC sets (bench_ideal.c), the cost of the ground (bench_micro.c), and how results
 * are shown (bench_report.c, bench_json.c, bench_csv.c). */
#ifndef FAR_CLI_BENCH_H
#define FAR_CLI_BENCH_H

#include "base/bytes.h"
#include "cli/cli.h"
#include "fabric/sim/model.h"
#include "index/index.h"
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
#define BENCH_POINT_MAX     256 /* bytes of "threads=4,depth=2" */

typedef struct bench_kind {
    const far_index_kind *kind;
    char options[FAR_OPTIONS_TEXT_MAX + 1];
} bench_kind;

struct bench_store;
struct bench_config;
typedef struct bench_rival { /* another's store that does the same; bench_rivals.c */
    const char *name, *heading, *absent, *words;
    unsigned processes; /* unless said otherwise */
    bool one_process;   /* no others can reach it */
    bool remote;        /* it is a server, so ours is a memory node */
    bool (*store)(struct bench_store *store, const struct bench_config *config); /* false: not in this build */
} bench_rival;

const bench_rival *bench_rival_named(const char *name); /* NULL: there is none */

typedef struct bench_progress { /* over all that is to be done */
    unsigned steps, done;       /* a step is one workload on one kind */
} bench_progress;

typedef struct bench_config {
    char uri[BENCH_URI_MAX];
    bool own_pool; /* nobody named it, and it goes with the run */
    bool sim;
    bench_kind kinds[BENCH_KINDS_MAX];
    unsigned kind_count;
    far_ycsb_workload workloads[BENCH_WORKLOADS_MAX];
    unsigned workload_count;

    far_keyset *keys;
    uint64_t records;
    uint64_t ops;        /* 0: not said; then bench_ops decides, and time_limit ends a workload */
    uint64_t warmup;     /* UINT64_MAX: not said: until it is warm */
    uint64_t time_limit; /* ns for a workload, by the clock of its clients; 0: none */
    uint64_t duration;   /* ns for a workload that the user asked for; then nothing else ends it; 0: none */
    uint64_t rate;       /* operations a second over all clients, whether they keep up or not; 0: as fast as they can */
    uint64_t interval;   /* ns; of the time series; 0: none */
    uint64_t load_clients; /* 0: all */
    uint64_t value_size, threads, depth, compute_nodes, cache, seed;
    uint64_t memory_nodes; /* 0: as the URI says */
    uint64_t runs;
    uint64_t run; /* which of them this is, from 0 */
    far_mix mix;
    uint64_t scan_length[2];     /* 0, 0: 1..100 */
    char point[BENCH_POINT_MAX]; /* of the sweeps; "": there are none */
    bool ideal, instructions;
    bench_progress *progress;
    uint64_t processes;         /* 0: threads of this one */
    const bench_rival *against; /* NULL: nobody */
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

/* One that is not there is made, and that is told. */
int bench_open_pool(const bench_config *config, far_pool **pool);

static inline unsigned bench_clients(const bench_config *config) {
    return (unsigned)(config->threads * config->compute_nodes);
}

uint64_t bench_ops(const bench_config *config, const far_index_kind *kind, far_ycsb_workload workload);
far_distribution_kind bench_distribution(const bench_config *config, far_ycsb_workload workload);
far_ycsb_config bench_ycsb(const bench_config *config, far_ycsb_workload workload, uint64_t ops);
bool bench_has_scans(const bench_config *config, far_ycsb_workload workload);

/* A time series: what was done in each interval. */
typedef struct bench_moment {
    uint64_t ops, sum_ns, max_ns;
} bench_moment;

typedef struct bench_series {
    bench_moment *moments;
    size_t count, room;
    bool cut; /* there was no room for more */
} bench_series;

void bench_series_add(bench_series *series, uint64_t interval, uint64_t since_begin, uint64_t latency);
void bench_series_merge(bench_series *into, const bench_series *from);
void bench_series_clear(bench_series *series);
void bench_series_free(bench_series *series);

/* What one of several runs gave. */
#define BENCH_RUNS_MAX 100
typedef struct bench_spread {
    double mops[BENCH_RUNS_MAX], p50_us[BENCH_RUNS_MAX], p99_us[BENCH_RUNS_MAX];
} bench_spread;

/* What one workload on one kind gave. */
typedef struct bench_result {
    const char *name;       /* of the kind, or of a rival: "lmdb" */
    const bench_kind *kind; /* NULL: not an index of ours, so there are no counters */
    far_ycsb_workload workload;
    uint64_t ops; /* done, measured */
    uint64_t errors;
    uint64_t ns;
    uint64_t cpu_ns; /* by all threads of all processes; only with processes */
    uint64_t clients;
    uint64_t warmup_ops;
    bool settled; /* work in the background was done before it was measured */
    bool warm;    /* round trips per operation had stopped falling when it was measured */
    uint64_t instructions, instructions_of[BENCH_OPS];             /* of user space, inside calls; 0: not counted */
    bench_series series;                                           /* with --interval */
    unsigned runs;                                                 /* that are added up here */
    bench_spread spread;                                           /* of each of them */
    uint64_t node_verbs[FAR_NODES_MAX], node_bytes[FAR_NODES_MAX]; /* by memory node; sim only */
    unsigned nodes;
    far_stats stats, by_op[BENCH_OPS];
    far_histogram latency, latency_of[BENCH_OPS];
    far_usage usage; /* at the end; cache_bytes: mean per compute node */
    bool has_cache;
    far_load load;       /* slots 0: the kind has no such thing */
    far_figures figures; /* of this workload, all compute nodes; all 0: the kind counts nothing */
    far_capabilities capabilities;
    double ideal_mops; /* on request; this and nic: sim only */
    far_sim_model nic;
} bench_result;

/* Loads one kind and runs all workloads on it; gives each result to `each`. 0, or CLI_FAILED (told): it could not go
 * on. *errors counts wrong and missing values, and operations that failed. */
int bench_run_kind(const bench_config *config, const bench_kind *kind,
                   void (*each)(void *ctx, const bench_result *result), void *ctx, uint64_t *errors);

void bench_add_stats(far_stats *sum, const far_stats *more);
void bench_add_figures(far_figures *sum, const far_figures *more, bool plus);

/* bench_check.c: what makes an answer right. NULL, or what is wrong with it. */
const char *bench_check_value(far_bytes key, const void *value, size_t length, size_t expected_size);

typedef struct bench_scan { /* over the pairs of one scan */
    far_bytes from;
    size_t value_size;
    bool first_may_be_gone; /* there are deletes */
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

/* What a reader must know of a result. */
typedef enum {
    BENCH_NOTE_FEW_OPS,
    BENCH_NOTE_NOT_WARM,
    BENCH_NOTE_NOT_SETTLED,
    BENCH_NOTE_BEHIND, /* what was offered */
    BENCH_NOTE_SERIES_CUT,
    BENCH_NOTES /* how many there are */
} bench_note;
#define BENCH_NOTE_BYTES 256
bool bench_note_on(bench_note note, const bench_config *config, const bench_result *result, char *text);

/* Where results go: bench_report.c, bench_json.c, bench_csv.c. */
typedef struct bench_report {
    const bench_config *config; /* of what comes now */
    FILE *table, *json, *csv;   /* each may be NULL */
    unsigned count;
    double rival_mops[FAR_YCSB_WORKLOADS], rival_p50[FAR_YCSB_WORKLOADS]; /* 0: not measured */
    unsigned noted[BENCH_NOTES];                                          /* how often */
    char notes[BENCH_NOTES][BENCH_NOTE_BYTES + 64];
} bench_report;

void bench_report_setting(bench_report *report, const bench_config *config); /* before its results */
void bench_report_result(void *report, const bench_result *result);
int bench_report_end(bench_report *report); /* 0, or CLI_FAILED: a file could not be written */

/* bench_runs.c: every kind as often as is asked for; each result goes to the report. 0, or CLI_FAILED (told). */
int bench_runs(const bench_config *config, bench_report *report, uint64_t *errors);

#define BENCH_NOTHING NAN /* a number without meaning here: null in JSON, "-" in the table */
double bench_per(uint64_t count, uint64_t of);
double bench_mops(const bench_result *result);
double bench_quantile_us(const far_histogram *latency, uint64_t numerator, uint64_t denominator);
double bench_hit_ratio(const bench_result *result);
double bench_rival_ratio(const bench_report *report, const bench_result *result);     /* times as fast as the other */
double bench_rival_p50_ratio(const bench_report *report, const bench_result *result); /* times as long an operation */
uint64_t bench_verbs(const far_stats *stats);
double bench_deviation(const double *values, unsigned count); /* the standard deviation of a sample */

void bench_json_begin(const bench_report *report);
void bench_json_result(const bench_report *report, const bench_result *result);
void bench_csv_begin(const bench_report *report);
void bench_csv_result(const bench_report *report, const bench_result *result);

/* bench_host.c: where and when it was measured. */
void bench_host_json(FILE *file); /* fields, each after a comma */

/* bench_instructions.c: instructions of user space that this thread executes. */
int bench_instructions_check(void);          /* 0; CLI_FAILED: they cannot be counted here (told, with another way) */
extern int (*bench_instructions_open)(void); /* a counter, or -1 and errno; tests count in another way */
uint64_t bench_instructions_now(int counter);
void bench_instructions_close(int counter);

/* bench_network.c */
int bench_network(const char *uri, FILE *table, FILE *json);

/* bench_daemon.c: a memory node that ends with this process. 0, or told. */
int bench_start_daemon(uint64_t bytes, char *uri, size_t room, pid_t *child);
void bench_end_daemon(pid_t child);

/* bench_micro.c */
int bench_micro(uint64_t seed, FILE *table, FILE *json);

#endif
