/* farindex bench: what is asked for, and running it. */
#include "cli/bench.h"
#include "cli/bench_config.h"
#include "cli/bench_processes.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PROCESSES_MAX      64
#define DEFAULT_THREADS    2
#define THREADS_OF_CLIENTS 8 /* on a compute node, with --clients */

static const char usage[] = "bench [OPTIONS]";
static const char notes[] =
    "Workloads: load inserts all records; a 50:50 get/update; b 95:5; c gets; d 95:5 get/insert, reads the latest;\n"
    "e 95:5 scan/insert, up to 100 pairs; f 50:50 get/read-modify-write; writes: updates only; mix: see --mix (a "
    "delete\n"
    "takes the oldest record). Each kind gets its own index, loaded once.\n"
    "Without --ops or --duration, and not on sim: pools, a workload also ends when its share of about a minute is "
    "over.\n"
    "Every value read is checked against its key; wrong or missing ones make the exit status 1.\n"
    "\n"
    "--sweep NAME=A,B,..: clients, threads, depth, compute-nodes, memory-nodes, cache, key-size, value-size, theta, "
    "records, "
    "rate\n"
    "and other flags with one value, or an option of a kind ('farindex kinds'; options.cache=on,off where a flag\n"
    "has the same name); 'farindex plot' draws the curves.\n"
    "--rate: operations have a time at which they are due, whether clients keep up or not, and their latency counts "
    "from\n"
    "then on: one that waits behind a slow one counts that too (no coordinated omission).\n"
    "Warm is: round trips per operation no longer change from one part of the warm-up to the next, twice as long. A "
    "note below "
    "the\n"
    "table says when that was not reached, and when clients had too few operations to mean anything.\n"
    "--ideal: what an index would reach on the same simulated NICs that needs exactly one READ or WRITE of the pair "
    "for\n"
    "each operation, from as many clients. Merging operations on one key (--rdwc on) saves round trips altogether, so\n"
    "that a kind may exceed it when keys are skewed.\n"
    "\n"
    "--processes N: N processes of one thread each share a shm pool (without --pool one of a fitting size, removed at\n"
    "the end); workloads by default load,c,writes,a. --against lmdb (default: 2 processes) has LMDB do the same "
    "first,\n"
    "with MDB_NOSYNC | MDB_WRITEMAP and a transaction for every operation, since each of ours is seen by all "
    "processes\n"
    "when it returns; 'x LMDB' is how many times as many operations a second were done, 'p50 x' how many times as long "
    "the\n"
    "median operation takes, 'cpu us' processor time of an operation, what the benchmark itself needs included. "
    "--depth "
    "is of\n"
    "our sessions: LMDB has nothing like operations in flight, and does them one by one.\n"
    "--against redis (default: 1 process) starts a redis-server and, without --pool tcp://.., a memory node, both on\n"
    "loopback and only for this run.\n"
    "--against tkrzw|kyotocabinet: one process, theirs a hash table in its memory, ours a shm pool that others could "
    "open.\n";


/* Where the results go. */

static int open_output(const char *name, FILE **file) {
    if (!name)
        return 0;
    *file = strcmp(name, "-") == 0 ? stdout : fopen(name, "w");
    return *file ? 0 : cli_failed("'%s' cannot be written: %s", name, strerror(errno));
}


static int open_outputs(const bench_request *r, bench_report *report) {
    if (r->json && r->csv && strcmp(r->json, "-") == 0 && strcmp(r->csv, "-") == 0)
        return cli_wrong_usage("bench", "--json and --csv cannot both be '-'");
    int err = open_output(r->json, &report->json);
    if (!err)
        err = open_output(r->csv, &report->csv);
    if (report->json != stdout && report->csv != stdout)
        report->table = stdout;
    return err;
}


static void close_outputs(bench_report *report) {
    if (report->json && report->json != stdout)
        fclose(report->json);
    if (report->csv && report->csv != stdout)
        fclose(report->csv);
}


/* Running. */

/* Each process is a compute node with one thread. */
static int check_processes(bench_request *r) {
    bench_config *config = &r->config;
    config->against = r->against ? bench_rival_named(r->against) : NULL;
    if (r->against && !config->against)
        return cli_wrong_usage("bench", "--against: '%s' is none of lmdb, redis, tkrzw, kyotocabinet", r->against);
    if (r->against && !config->processes)
        config->processes = config->against->processes;
    if (r->against && config->processes > 1 && config->against->one_process)
        return cli_wrong_usage("bench", "--processes: %s is the memory of one process, which no other can reach",
                               r->against);
    if (!config->processes) {
        if (config->threads == UINT64_MAX)
            config->threads = r->clients ? THREADS_OF_CLIENTS : DEFAULT_THREADS;
        return 0;
    }
    if (config->processes > PROCESSES_MAX)
        return cli_wrong_usage("bench", "--processes: %" PRIu64 " is more than %d", config->processes, PROCESSES_MAX);
    if (r->pool && strncmp(r->pool, "shm:", 4) != 0 && strncmp(r->pool, "tcp://", 6) != 0)
        return cli_wrong_usage("bench",
                               "--processes: needs a pool that processes share: --pool shm:/dev/shm/p?size=2G");
    if ((config->threads != UINT64_MAX && config->threads != 1) || config->compute_nodes > 1)
        return cli_wrong_usage("bench", "--processes: each has one thread; no --threads, no --compute-nodes");
    config->threads = 1;
    config->compute_nodes = config->processes;
    return 0;
}


typedef struct bench_all { /* over all points */
    bench_report report;
    bench_progress progress;
    uint64_t errors;
} bench_all;


/* Loads are steps too; what is shown of them or not. */
static unsigned steps_of(const bench_config *config) {
    unsigned workloads = 1;
    for (unsigned i = 0; i < config->workload_count; i++)
        workloads += config->workloads[i] != FAR_YCSB_LOAD;
    return (unsigned)config->runs * (config->kind_count + (config->against != NULL)) * workloads;
}


/* Whatever is wrong with a point is told before the first one runs. */
static int check_point(void *ctx, bench_request *r) {
    bench_all *all = ctx;
    int err = check_processes(r);
    r->only_check = true;
    if (!err)
        err = bench_complete(r);
    all->progress.steps += err ? 0 : steps_of(&r->config);
    far_keyset_close(r->config.keys);
    return err;
}


static int run_point(void *ctx, bench_request *r) {
    bench_all *all = ctx;
    int err = check_processes(r);
    if (!err)
        err = bench_complete(r);
    r->config.progress = &all->progress;
    if (!err) {
        bench_report_setting(&all->report, &r->config);
        err = r->config.processes ? bench_processes(&r->config, &all->report)
                                  : bench_runs(&r->config, &all->report, &all->errors);
    }
    if (*r->own_pool)
        unlink(r->own_pool);
    bench_end_daemon(r->own_daemon);
    far_keyset_close(r->config.keys);
    return err;
}


static int run_points(bench_request *r, const cli_option *options, bench_all *all) {
    cli_catch_interrupts();
    int err = bench_sweep(r, options, run_point, all);
    if (bench_report_end(&all->report))
        err = CLI_FAILED;
    if (all->errors)
        err = cli_not_found("%" PRIu64 " operations failed or gave wrong results", all->errors);
    return err;
}


static int run_micro(const bench_request *r, const bench_report *report) {
    if (r->pool && (strncmp(r->pool, "tcp://", 6) == 0 || strncmp(r->pool, "rdma://", 7) == 0))
        return bench_network(r->pool, report->table, report->json);
    return bench_micro(r->config.seed, report->table, report->json);
}


int cli_bench(int argc, char **argv) {
    bench_request r = {.keys = "u64",
                       .records = UINT64_MAX,
                       .ops = UINT64_MAX,
                       .config = {.warmup = UINT64_MAX,
                                  .value_size = 8,
                                  .threads = UINT64_MAX,
                                  .depth = 1,
                                  .compute_nodes = 1,
                                  .cache = 64 << 20,
                                  .runs = 1,
                                  .seed = 1,
                                  .theta = FAR_ZIPF_THETA,
                                  .rdwc = 1}};
    bench_config *config = &r.config;
    const cli_option options[] = {
        {"pool", CLI_TEXT, &r.pool, "URI", "where to run (default: an embedded pool of a fitting size)"},
        {"index", CLI_TEXT, &r.index, "KIND[,KIND..]|all", "which kinds (default: all)"},
        {"workload", CLI_TEXT, &r.workload, "W[,W..]",
         "load, a, b, c, d, e, f, writes, mix (default: load and the letters)"},
        {"mix", CLI_TEXT, &r.mix, "get=90,..", "own workload: percents of get, update, insert, delete, scan, rmw"},
        {"scan-length", CLI_RANGE, config->scan_length, "A..B", "pairs of a scan (default: 1..100)"},
        {"records", CLI_COUNT, &r.records, "N", "how many are loaded (default: 100K); K, M, G are thousands"},
        {"ops", CLI_COUNT, &r.ops, "N", "operations per workload, over all clients"},
        {"duration", CLI_DURATION, &config->duration, "TIME", "how long a workload runs (10s; on sim: virtual time)"},
        {"rate", CLI_COUNT, &config->rate, "N",
         "operations a second that arrive, done or not (default: each client starts one when it is done)"},
        {"warmup", CLI_COUNT, &config->warmup, "N", "operations before measuring (default: until it is warm)"},
        {"load-clients", CLI_COUNT, &config->load_clients, "N", "how many of the clients load (default: all)"},
        {"runs", CLI_COUNT, &config->runs, "N", "does all of it N times, each with a seed of its own; adds the spread"},
        {"sweep", CLI_TEXTS, &r.sweeps, "NAME=A,B,..",
         "once with each value of a flag or of a kind's option; several sweeps multiply"},
        {"keys", CLI_TEXT, &r.keys, "KEYS", "u64 (default), seq, email, prefix or file:PATH"},
        {"key-size", CLI_BYTES, &r.key_size, "N", "bytes of a key of u64 or seq (default: 8)"},
        {"value-size", CLI_BYTES, &config->value_size, "N", "bytes of a value (default: 8)"},
        {"dist", CLI_TEXT, &r.dist, "DIST", "zipfian, uniform or latest (default: zipfian); d always reads the latest"},
        {"theta", CLI_DECIMAL, &config->theta, "T", "skew of zipfian and latest (default: 0.99)"},
        {"clients", CLI_COUNT, &r.clients, "N", "in all: on compute nodes of --threads each (default then: 8)"},
        {"threads", CLI_COUNT, &config->threads, "N", "per compute node (default: 2)"},
        {"depth", CLI_COUNT, &config->depth, "N", "operations in flight per thread (default: 1)"},
        {"compute-nodes", CLI_COUNT, &config->compute_nodes, "N", "handles on the pool (default: 1)"},
        {"memory-nodes", CLI_COUNT, &config->memory_nodes, "N", "of the pool, where its URI does not say it"},
        {"cache", CLI_BYTES, &config->cache, "SIZE", "cache of a compute node (default: 64M)"},
        {"rdwc", CLI_SWITCH, &config->rdwc, "on|off", "merge concurrent operations on one key (default: on)"},
        {"options", CLI_TEXT, &r.options, "NAME=VALUE,..", "of the indexes; each goes to every kind that knows it"},
        {"seed", CLI_NUMBER, &config->seed, "N", "what decides the operations (default: 1)"},
        {"json", CLI_TEXT, &r.json, "FILE|-", "writes the results as JSON; '-': instead of the table"},
        {"csv", CLI_TEXT, &r.csv, "FILE|-", "the main numbers as CSV"},
        {"interval", CLI_DURATION, &config->interval, "TIME", "adds a time series with such steps to the JSON"},
        {"ideal", CLI_FLAG, &config->ideal, NULL, "on sim: the rate of one READ or WRITE per operation (see below)"},
        {"instructions", CLI_FLAG, &config->instructions, NULL, "counts instructions of each call (perf events)"},
        {"keep", CLI_FLAG, &config->keep, NULL, "leaves the indexes in the pool"},
        {"processes", CLI_NUMBER, &config->processes, "N", "so many processes on a shm pool"},
        {"against", CLI_TEXT, &r.against, "lmdb|redis|tkrzw|kyotocabinet",
         "the same by LMDB, by a redis-server on loopback (then ours is tcp://), or by a hash table, and ratios"},
        {"micro", CLI_FLAG, &r.micro, NULL,
         "the cost of verbs instead of an index; with --pool tcp://.. or rdma://.. that of round trips"},
        {NULL, CLI_FLAG, NULL, NULL, NULL},
    };
    bool help;
    bench_all all = {0};
    int err = cli_parse(argc, argv, usage, options, notes, NULL, &help);
    if (err || help)
        return err;
    if (!r.micro)
        err = bench_sweep(&r, options, check_point, &all);
    if (!err && config->instructions)
        err = bench_instructions_check();
    if (!err)
        err = open_outputs(&r, &all.report);
    if (!err)
        err = r.micro ? run_micro(&r, &all.report) : run_points(&r, options, &all);
    close_outputs(&all.report);
    return err;
}
