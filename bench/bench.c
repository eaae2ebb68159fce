/* The options of `farindex bench` and the order of its steps. cli_bench() parses the options, checks
 * every point of the sweeps, and then runs the points one after the other. */
#include "bench/bench.h"
#include "bench/config.h"
#include "bench/processes.h"
#include "fabric/fabric.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PROCESSES_MAX      64
#define DEFAULT_THREADS    2
#define THREADS_OF_CLIENTS 8 /* default of --threads if --clients is given */

static const char usage[] = "bench [OPTIONS]";
static const char notes[] =
    "Workloads: load inserts all records; a: 50 % gets, 50 % updates; b: 95 % gets, 5 % updates; c: gets; d: 95 % gets "
    "of\n"
    "the latest records, 5 % inserts; e: 95 % scans of up to 100 pairs, 5 % inserts; f: 50 % gets, 50 % read-modify-\n"
    "writes; writes: updates; mix: see --mix (a delete removes the oldest record). Each kind has its own index, which "
    "is\n"
    "loaded once. Without --ops or --duration, a workload also ends when its share of about a minute is over, except "
    "on\n"
    "sim: pools. Every value is checked against its key; a wrong or missing value makes the exit status 1.\n"
    "\n"
    "--sweep NAME=A,B,..: NAME is clients, threads, depth, compute-nodes, memory-nodes, cache, key-size, value-size, "
    "theta,\n"
    "records, rate, another option with one value, or an option of a kind ('farindex kinds'; options.cache=on,off if "
    "bench\n"
    "has an option of the same name). 'farindex plot' draws the results.\n"
    "--rate: operations arrive at given times, whether or not the clients keep up, and the latency of an operation "
    "counts\n"
    "from its arrival. It includes the time that the operation waits for a slow predecessor (no coordinated "
    "omission).\n"
    "An index is warm if the round trips per operation, and the hit ratio and size of the caches of each compute node, "
    "no\n"
    "longer change between two parts of the warm-up, of which the second is twice as long. A note below the table "
    "reports\n"
    "an index that was not warm, or clients with too few operations.\n"
    "--ideal: the throughput of an index that needs exactly one READ or WRITE of the pair for each operation, on the "
    "same\n"
    "simulated NICs and with as many clients. With skewed keys a kind may exceed it, because merged operations on one "
    "key\n"
    "(--rdwc on) need no round trips of their own.\n"
    "\n"
    "--processes N: N processes of one thread each share a shm pool. Without --pool, a pool of suitable size is "
    "created and\n"
    "removed at the end. The default workloads are load,c,writes,a.\n"
    "--against lmdb (default: 2 processes) first runs the workloads on LMDB, with MDB_NOSYNC | MDB_WRITEMAP and one\n"
    "transaction for each operation, because an operation of farindex is also visible to all processes when it "
    "returns.\n"
    "'x LMDB' is the throughput of farindex divided by that of LMDB, 'p50 x' the same for the median latency, and 'cpu "
    "us'\n"
    "the processor time of an operation, including that of the benchmark itself. --depth applies to farindex only, "
    "because\n"
    "LMDB runs operations one by one.\n"
    "--against redis (default: 1 process) starts a redis-server and, without --pool tcp://.., a memory node, both on\n"
    "loopback and for this benchmark only.\n"
    "--against tkrzw|kyotocabinet compares a hash table in the memory of one process with a shm pool.\n";


/* ---- Outputs ---- */

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


/* ---- Running ---- */

/* Checks the options that concern processes. With --processes, each process is a compute node with one thread. */
static int check_processes(bench_request *r) {
    bench_config *config = &r->config;
    config->against = r->against ? bench_rival_named(r->against) : NULL;
    if (r->against && !config->against)
        return cli_wrong_usage("bench", "--against: '%s' is not lmdb, redis, tkrzw or kyotocabinet", r->against);
    if (r->against && !config->processes)
        config->processes = config->against->processes;
    if (r->against && config->processes > 1 && config->against->one_process)
        return cli_wrong_usage("bench", "--processes: %s works in the memory of one process", r->against);
    if (!config->processes) {
        if (config->threads == UINT64_MAX)
            config->threads = r->clients ? THREADS_OF_CLIENTS : DEFAULT_THREADS;
        return 0;
    }
    if (config->processes > PROCESSES_MAX)
        return cli_wrong_usage("bench", "--processes: %" PRIu64 " is more than %d", config->processes, PROCESSES_MAX);
    if (r->pool && strncmp(r->pool, "shm:", 4) != 0 && strncmp(r->pool, "tcp://", 6) != 0)
        return cli_wrong_usage(
            "bench", "--%s: needs a pool that processes share, such as --pool shm:/dev/shm/p?size=2G, not --pool %s",
            r->against ? "against" : "processes", r->pool);
    if ((config->threads != UINT64_MAX && config->threads != 1) || config->compute_nodes > 1)
        return cli_wrong_usage(
            "bench", "--processes excludes --threads and --compute-nodes, because each process has one thread");
    config->threads = 1;
    config->compute_nodes = config->processes;
    return 0;
}


typedef struct bench_all { /* the state of all points together */
    bench_report report;
    bench_progress progress;
    uint64_t errors;
} bench_all;


/* Returns the number of progress steps of a point. The load of each kind is a step, even if its result is not shown. */
static unsigned count_steps(const bench_config *config) {
    unsigned workloads = 1;
    for (unsigned i = 0; i < config->workload_count; i++)
        workloads += config->workloads[i] != FAR_YCSB_LOAD;
    return (unsigned)config->runs * (config->kind_count + (config->against != NULL)) * workloads;
}


/* Checks the URI of a pool that ends with this process, by opening and closing it. Other pools are checked when they are
 * opened, because a check would cost time or create files. */
static int check_pool(const char *uri) {
    far_fabric *fabric;
    if (!cli_pool_ends_with_process(uri))
        return 0;
    int err = far_fabric_open(uri, &fabric);
    if (err == FAR_ERR_INVALID)
        return cli_wrong_usage("bench", "--pool: %s", far_last_error());
    if (err == 0)
        fabric->ops->close(fabric);
    return 0;
}


/* Checks a point of the sweeps without running it, so that an error in any point is reported before the first one runs.
 */
static int check_point(void *ctx, bench_request *r) {
    bench_all *all = ctx;
    int err = check_processes(r);
    r->only_check = true;
    if (!err)
        err = bench_complete(r);
    if (!err && r->pool)
        err = check_pool(r->config.uri);
    all->progress.steps += err ? 0 : count_steps(&r->config);
    far_keyset_close(r->config.keys);
    return err;
}


static int run_point(void *ctx, bench_request *r) {
    bench_all *all = ctx;
    double ideal_mops[FAR_YCSB_WORKLOADS] = {0};
    int err = check_processes(r);
    if (!err)
        err = bench_complete(r);
    r->config.progress = &all->progress;
    r->config.ideal_mops = ideal_mops;
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


/* Appends a word as a shell reads it: in single quotes if it contains other characters than a shell leaves alone. */
static size_t quote_word(char *to, const char *word) {
    char *at = to;
    size_t plain = strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=:,./@%");
    if (*word && !word[plain])
        return (size_t)sprintf(to, "%s", word);
    *at++ = '\'';
    for (; *word; word++)
        at += sprintf(at, *word == '\'' ? "'\\''" : "%c", *word);
    *at++ = '\'';
    *at = 0;
    return (size_t)(at - to);
}


/* Returns the command line, which the caller frees; NULL without memory. */
static char *command_line(int argc, char **argv) {
    static const char program[] = "farindex";
    size_t room = sizeof(program), used = strlen(program);
    for (int i = 0; i < argc; i++)
        room += 4 * strlen(argv[i]) + 3;
    char *line = malloc(room);
    if (!line)
        return NULL;
    memcpy(line, program, sizeof(program));
    for (int i = 0; i < argc; i++) {
        line[used++] = ' ';
        used += quote_word(line + used, argv[i]);
    }
    return line;
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
        {"pool", CLI_TEXT, &r.pool, "URI", "pool to use (default: an embedded pool of suitable size)"},
        {"index", CLI_TEXT, &r.index, "KIND[,KIND..]|all", "kinds to measure (default: all)"},
        {"workload", CLI_TEXT, &r.workload, "W[,W..]",
         "load, a, b, c, d, e, f, writes, mix (default: load and a to f)"},
        {"mix", CLI_TEXT, &r.mix, "get=90,..",
         "defines the workload mix in percents of get, update, insert, delete, scan, rmw"},
        {"scan-length", CLI_RANGE, config->scan_length, "A..B", "number of pairs of a scan (default: 1..100)"},
        {"records", CLI_COUNT, &r.records, "N",
         "number of records to load (default: 100K); K, M, G are powers of 1000"},
        {"ops", CLI_COUNT, &r.ops, "N", "operations per workload, over all clients"},
        {"duration", CLI_DURATION, &config->duration, "TIME",
         "duration of each workload (for example 10s; on sim: virtual time)"},
        {"rate", CLI_COUNT, &config->rate, "N",
         "operations per second that arrive (default: a client starts an operation when the last one has ended)"},
        {"warmup", CLI_COUNT, &config->warmup, "N", "operations before measuring (default: until the index is warm)"},
        {"load-clients", CLI_COUNT, &config->load_clients, "N", "number of clients that load (default: all)"},
        {"runs", CLI_COUNT, &config->runs, "N",
         "repeats each measurement N times with different seeds, and adds the spread"},
        {"sweep", CLI_TEXTS, &r.sweeps, "NAME=A,B,..",
         "measures with each value of an option of bench or of a kind; several sweeps are combined"},
        {"keys", CLI_TEXT, &r.keys, "KEYS", "u64 (default), seq, email, prefix or file:PATH"},
        {"key-size", CLI_BYTES, &r.key_size, "N", "size of a key of u64 or seq in bytes (default: 8)"},
        {"value-size", CLI_BYTES, &config->value_size, "N", "size of a value in bytes (default: 8)"},
        {"dist", CLI_TEXT, &r.dist, "DIST", "zipfian, uniform or latest (default: zipfian); d always reads the latest"},
        {"theta", CLI_DECIMAL, &config->theta, "T", "skew of zipfian and latest (default: 0.99)"},
        {"clients", CLI_COUNT, &r.clients, "N", "total number of clients, on compute nodes with --threads each (8)"},
        {"threads", CLI_COUNT, &config->threads, "N", "clients per compute node (default: 2)"},
        {"depth", CLI_COUNT, &config->depth, "N", "operations in flight per thread (default: 1)"},
        {"compute-nodes", CLI_COUNT, &config->compute_nodes, "N",
         "number of compute nodes, each with its own handle (default: 1)"},
        {"memory-nodes", CLI_COUNT, &config->memory_nodes, "N",
         "number of memory nodes, if the URI of the pool does not contain it"},
        {"cache", CLI_BYTES, &config->cache, "SIZE", "cache of a compute node (default: 64M)"},
        {"rdwc", CLI_SWITCH, &config->rdwc, "on|off", "merge concurrent operations on one key (default: on)"},
        {"options", CLI_TEXT, &r.options, "NAME=VALUE,..",
         "options of the indexes; each applies to every kind that has it"},
        {"seed", CLI_NUMBER, &config->seed, "N", "seed of the random operations (default: 1)"},
        {"json", CLI_TEXT, &r.json, "FILE|-", "writes the results as JSON; '-' prints them instead of the table"},
        {"csv", CLI_TEXT, &r.csv, "FILE|-", "writes the most important numbers as CSV"},
        {"interval", CLI_DURATION, &config->interval, "TIME", "adds a time series with this interval to the JSON"},
        {"ideal", CLI_FLAG, &config->ideal, NULL, "adds the throughput of an ideal index, on sim: pools (see below)"},
        {"instructions", CLI_FLAG, &config->instructions, NULL,
         "counts the instructions of each call, with perf events"},
        {"keep", CLI_FLAG, &config->keep, NULL, "does not drop the indexes at the end"},
        {"processes", CLI_NUMBER, &config->processes, "N", "number of processes on a shm pool"},
        {"against", CLI_TEXT, &r.against, "lmdb|redis|tkrzw|kyotocabinet",
         "compares with another store: LMDB, a redis-server on loopback, or a hash table"},
        {"micro", CLI_FLAG, &r.micro, NULL,
         "measures verbs instead of indexes; with --pool tcp://.. or rdma://.. round trips"},
        {NULL, CLI_FLAG, NULL, NULL, NULL},
    };
    bool help;
    bench_all all = {0};
    char *command = command_line(argc, argv);
    config->command = command;
    int err = cli_parse(argc, argv, usage, options, notes, NULL, &help);
    if (err || help) {
        free(command);
        return err;
    }
    if (!r.micro)
        err = bench_sweep(&r, options, check_point, &all);
    if (!err && config->instructions)
        err = bench_instructions_check();
    if (!err)
        err = open_outputs(&r, &all.report);
    if (!err)
        err = r.micro ? run_micro(&r, &all.report) : run_points(&r, options, &all);
    close_outputs(&all.report);
    free(command);
    return err;
}
