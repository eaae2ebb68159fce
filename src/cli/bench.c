/* farindex bench: what is asked for. */
#include "cli/bench.h"
#include "base/parse.h"
#include "cli/bench_processes.h"
#include "pool/options.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_RECORDS 100000
#define DEFAULT_OPS     1000000 /* cut short by the time limit */
#define DEFAULT_SIM_OPS 50000
#define DEFAULT_NS      45000000000ull /* for all workloads of all kinds together, when nothing is said */
#define WORKLOAD_NS_MAX 3000000000ull
#define CLIENTS_MAX     8192
#define PROCESSES_MAX   64
#define DEFAULT_THREADS 2

static const char usage[] = "bench [OPTIONS]";
static const char notes[] =
    "Workloads: load inserts all records; a 50:50 get/update; b 95:5; c gets; d 95:5 get/insert, reads the latest;\n"
    "e 95:5 scan/insert, up to 100 pairs; f 50:50 get/read-modify-write; writes: updates only. Each kind gets its own\n"
    "index, loaded once.\n"
    "Without --ops, and not on sim: pools, a workload also ends when its share of about a minute is over.\n"
    "Every value read is checked against its key; wrong or missing ones make the exit status 1.\n"
    "\n"
    "--processes N: N processes of one thread each share a shm pool (without --pool one of a fitting size, removed at\n"
    "the end); workloads by default load,c,writes,a. --against lmdb (default: 2 processes) has LMDB do the same "
    "first,\n"
    "with MDB_NOSYNC | MDB_WRITEMAP and a transaction for every operation, since each of ours is seen by all "
    "processes\n"
    "when it returns; 'x LMDB' is how many times as many operations a second were done, 'cpu us' processor time of an\n"
    "operation. --depth is of our sessions: LMDB has nothing like operations in flight, and does them one by one.\n"
    "--against redis (default: 1 process) starts a redis-server and, without --pool tcp://.., a memory node, both on\n"
    "loopback and only for this run; 'p50 x' is how many times as long the median operation takes.\n";

/* The flags as they were given. */
typedef struct request {
    const char *pool, *index, *workload, *keys, *dist, *options, *json, *against;
    uint64_t records, ops;
    bool micro;
    char own_pool[64]; /* path of a pool that is only for this run; "": none */
    pid_t own_daemon;  /* likewise a memory node; 0: none */
    bench_config config;
} request;


far_distribution_kind bench_distribution(const bench_config *config, far_ycsb_workload workload) {
    if (workload == FAR_YCSB_D || !config->dist_given)
        return far_ycsb_distribution(workload);
    return config->dist;
}


/* Scans are as dear as many gets; the toy map, which has no order, reads all it has for each of them. */
uint64_t bench_ops(const bench_config *config, const far_index_kind *kind, far_ycsb_workload workload) {
    if (config->ops)
        return config->ops;
    uint64_t ops = config->sim ? DEFAULT_SIM_OPS : DEFAULT_OPS;
    if (workload != FAR_YCSB_E)
        return ops;
    return kind && kind->hidden ? 4ull * bench_clients(config) : ops / 20;
}


/* Lists. */

static bool next_word(const char **list, char *word, size_t size) {
    const char *comma = strchr(*list, ',');
    size_t length = comma ? (size_t)(comma - *list) : strlen(*list);
    snprintf(word, size, "%.*s", (int)length, *list);
    *list = comma ? comma + 1 : NULL;
    return *list != NULL;
}


static int add_kind(bench_config *config, const far_index_kind *kind) {
    for (unsigned i = 0; i < config->kind_count; i++)
        if (config->kinds[i].kind == kind)
            return cli_wrong_usage("bench", "--index: '%s' is given twice", kind->name);
    if (config->kind_count == BENCH_KINDS_MAX)
        return cli_wrong_usage("bench", "--index: more than %d kinds", BENCH_KINDS_MAX);
    config->kinds[config->kind_count++].kind = kind;
    return 0;
}


static int add_shown_kind(void *ctx, const char *name, const char *what_for, const char *options) {
    (void)what_for;
    (void)options;
    return add_kind(ctx, far_index_kind_named(name));
}


static int parse_kinds(bench_config *config, const char *list) {
    if (!list || strcmp(list, "all") == 0)
        return far_kinds(add_shown_kind, config) > 0 ? 0 : cli_failed("this build has no index kinds");
    char word[64];
    bool more;
    do {
        more = next_word(&list, word, sizeof(word));
        const far_index_kind *kind = far_index_kind_named(word);
        if (!kind)
            return cli_wrong_usage("bench", "--index: unknown kind '%s'; 'farindex kinds' lists them", word);
        int err = add_kind(config, kind);
        if (err)
            return err;
    } while (more);
    return 0;
}


static int parse_workloads(bench_config *config, const char *list) {
    char word[32];
    bool more;
    if (!list)
        list = config->processes ? "load,c,writes,a" : "load,a,b,c,d,e,f";
    do {
        more = next_word(&list, word, sizeof(word));
        if (config->workload_count == BENCH_WORKLOADS_MAX)
            return cli_wrong_usage("bench", "--workload: more than %d workloads", BENCH_WORKLOADS_MAX);
        if (far_ycsb_parse(word, &config->workloads[config->workload_count]) < 0)
            return cli_wrong_usage("bench", "--workload: unknown workload '%s' (load, a, b, c, d, e, f, writes)", word);
        config->workload_count++;
    } while (more);
    return 0;
}


/* Options of the indexes. */

static bool knows_option(const far_index_kind *kind, const char *name, far_option_def *def) {
    for (unsigned i = 0; i < far_index_option_count(kind); i++) {
        *def = far_index_option_at(kind, i);
        if (strcmp(def->name, name) == 0)
            return true;
    }
    return false;
}


static void append_option(bench_kind *kind, const char *name, const char *value) {
    size_t used = strlen(kind->options);
    snprintf(kind->options + used, sizeof(kind->options) - used, "%s%s=%s", used ? "," : "", name, value);
}


/* Gives the option to every kind that knows it and has no value for it yet. Returns how many do. */
static unsigned give_option(bench_config *config, const char *name, const char *value) {
    unsigned known = 0;
    for (unsigned i = 0; i < config->kind_count; i++) {
        far_option_def def;
        if (knows_option(config->kinds[i].kind, name, &def)) {
            known++;
            append_option(&config->kinds[i], name, value);
        }
    }
    return known;
}


/* A table of fixed size should fit the records. */
static void give_slots(bench_config *config) {
    for (unsigned i = 0; i < config->kind_count; i++) {
        far_option_def def;
        char value[24];
        if (!knows_option(config->kinds[i].kind, "slots", &def) || def.min == 0) /* 0: the kind knows best */
            continue;
        int64_t slots = 1;
        while (slots < (int64_t)config->records && slots * 2 <= def.max)
            slots *= 2;
        snprintf(value, sizeof(value), "%" PRId64, slots < def.min ? def.min : slots);
        append_option(&config->kinds[i], "slots", value);
    }
}


static int parse_options(bench_config *config, const char *text) {
    char error[192], number[24];
    bool sizes_given = false, slots_given = false;
    far_option_list list;
    far_options_begin(&list, text, ',');
    int found;
    while ((found = far_options_next(&list, error, sizeof(error))) > 0) {
        sizes_given |= strcmp(list.name, "key_size") == 0 || strcmp(list.name, "value_size") == 0;
        slots_given |= strcmp(list.name, "slots") == 0;
        if (give_option(config, list.name, list.value) == 0)
            return cli_wrong_usage("bench", "--options: none of the kinds knows '%s'; 'farindex kinds' lists options",
                                   list.name);
    }
    if (found < 0)
        return cli_wrong_usage("bench", "--options: %s", error);
    if (far_keyset_fixed_size(config->keys) && !sizes_given) {
        give_option(config, "key_size", "8");
        snprintf(number, sizeof(number), "%" PRIu64, config->value_size);
        give_option(config, "value_size", number);
    }
    if (!slots_given)
        give_slots(config);
    for (unsigned i = 0; i < config->kind_count; i++) {
        int64_t values[FAR_OPTIONS_MAX];
        if (far_index_options_parse(config->kinds[i].kind, config->kinds[i].options, values) < 0)
            return cli_wrong_usage("bench", "--options: %s: %s", config->kinds[i].kind->name, far_last_error());
    }
    return 0;
}


/* The pool. */

/* Generous, since memory that is not touched costs nothing: pairs with what indexes need around them, retired pairs,
 * and what every session holds. */
static uint64_t pool_bytes(const bench_config *config) {
    uint64_t inserts = 0, unit = 64ull << 20;
    for (unsigned i = 0; i < config->workload_count; i++)
        if (config->workloads[i] != FAR_YCSB_LOAD)
            inserts +=
                (config->ops ? config->ops : DEFAULT_OPS) / 100 * (uint64_t)far_ycsb_inserts(config->workloads[i]);
    uint64_t bytes = (config->records + inserts) * (config->value_size + 128) * 6;
    bytes += (bench_clients(config) + config->compute_nodes + 4) * unit;
    return (bytes + unit - 1) / unit * unit;
}


/* Appends to a URI whose options are separated by commas (sim) or begin with '?' (local). */
static int append_to_uri(bench_config *config, const char *name, const char *value) {
    char *uri = config->uri;
    size_t used = strlen(uri);
    const char *separator = config->sim ? (uri[used - 1] == ':' ? "" : ",") : strchr(uri, '?') ? "&" : "?";
    int added = snprintf(uri + used, sizeof(config->uri) - used, "%s%s=%s", separator, name, value);
    return added < (int)(sizeof(config->uri) - used) ? 0 : cli_wrong_usage("bench", "--pool: the URI is too long");
}


static bool uri_has(const char *uri, const char *name) {
    char pattern[32];
    size_t length = (size_t)snprintf(pattern, sizeof(pattern), "%s=", name);
    for (const char *at = uri; (at = strstr(at, pattern)) != NULL; at += length)
        if (at > uri && strchr(":?&,", at[-1]))
            return true;
    return false;
}


/* All compute nodes must meet in one pool: those that live in the process need a name for that. */
static int choose_pool(request *r) {
    bench_config *config = &r->config;
    const char *pool = r->pool;
    char size[24], seed[24];
    snprintf(size, sizeof(size), "%" PRIu64 "M", pool_bytes(config) >> 20);
    snprintf(seed, sizeof(seed), "%" PRIu64, config->seed);
    if (!pool && config->against == BENCH_REDIS)
        return bench_start_daemon(pool_bytes(config), config->uri, sizeof(config->uri), &r->own_daemon);
    if (!pool && config->processes)
        snprintf(r->own_pool, sizeof(r->own_pool), "/dev/shm/farindex-bench-%d", (int)getpid());
    int length = pool           ? snprintf(config->uri, sizeof(config->uri), "%s", pool)
                 : *r->own_pool ? snprintf(config->uri, sizeof(config->uri), "shm:%s?size=%s", r->own_pool, size)
                                : snprintf(config->uri, sizeof(config->uri), "local:%s", size);
    if (length >= (int)sizeof(config->uri))
        return cli_wrong_usage("bench", "--pool: the URI is too long");
    config->sim = strncmp(config->uri, "sim:", 4) == 0;
    int err = 0;
    if (config->sim && !uri_has(config->uri, "seed"))
        err = append_to_uri(config, "seed", seed);
    if (config->sim && !err && !uri_has(config->uri, "size"))
        err = append_to_uri(config, "size", size);
    if (!err && (config->sim || strncmp(config->uri, "local:", 6) == 0) && !uri_has(config->uri, "name"))
        err = append_to_uri(config, "name", "bench");
    return err;
}


/* Numbers. */

static int check_number(const char *flag, uint64_t value, uint64_t min, uint64_t max) {
    if (value < min || value > max)
        return cli_wrong_usage("bench", "--%s: %" PRIu64 " is not within %" PRIu64 "..%" PRIu64, flag, value, min, max);
    return 0;
}


static int check_numbers(const bench_config *config) {
    const struct {
        const char *flag;
        uint64_t value, min, max;
    } ranges[] = {
        {"value-size", config->value_size, 0, FAR_VALUE_MAX},
        {"threads", config->threads, 1, CLIENTS_MAX},
        {"depth", config->depth, 1, FAR_OPS_MAX},
        {"compute-nodes", config->compute_nodes, 1, CLIENTS_MAX},
        {"records", config->records, 1, 1ull << 40},
    };
    for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++)
        if (check_number(ranges[i].flag, ranges[i].value, ranges[i].min, ranges[i].max))
            return CLI_USAGE;
    if (config->threads * config->compute_nodes > CLIENTS_MAX)
        return cli_wrong_usage("bench", "--threads: %" PRIu64 " on %" PRIu64 " compute nodes are more than %d clients",
                               config->threads, config->compute_nodes, CLIENTS_MAX);
    if (!(config->theta >= 0 && config->theta <= FAR_ZIPF_THETA_MAX))
        return cli_wrong_usage("bench", "--theta: must be within 0..%.3f", FAR_ZIPF_THETA_MAX);
    return 0;
}


static int choose_keys(request *r) {
    char error[256];
    bench_config *config = &r->config;
    if (far_keyset_open(r->keys, config->seed, &config->keys, error, sizeof(error)) < 0)
        return cli_wrong_usage("bench", "--keys: %s", error);
    uint64_t limit = far_keyset_count_limit(config->keys);
    config->records = r->records;
    if (r->records == UINT64_MAX) /* of a file some keys are left for the inserts */
        config->records = limit <= DEFAULT_RECORDS ? limit - limit / 4 : DEFAULT_RECORDS;
    if (config->records > limit)
        return cli_wrong_usage("bench", "--records: %" PRIu64 " are more than the %" PRIu64 " keys of %s",
                               config->records, limit, r->keys);
    return 0;
}


static int complete(request *r) {
    bench_config *config = &r->config;
    if (r->dist) {
        if (far_distribution_parse(r->dist, &config->dist) < 0)
            return cli_wrong_usage("bench", "--dist: '%s' is none of zipfian, uniform, latest", r->dist);
        config->dist_given = true;
    }
    if (r->ops == 0)
        return cli_wrong_usage("bench", "--ops: must be at least 1");
    if (config->cache == 0)
        return cli_wrong_usage("bench", "--cache: 0 is no size; kinds have options to go without ('farindex kinds')");
    config->ops = r->ops == UINT64_MAX ? 0 : r->ops;
    int err = choose_keys(r);
    if (!err)
        err = check_numbers(config);
    if (!err)
        err = parse_workloads(config, r->workload);
    if (!err)
        err = parse_kinds(config, r->index);
    if (!err)
        err = parse_options(config, r->options);
    if (!err)
        err = choose_pool(r);
    if (err)
        return err;
    if (!config->ops && !config->sim) {
        config->time_limit = DEFAULT_NS / (config->kind_count * config->workload_count);
        if (config->time_limit > WORKLOAD_NS_MAX)
            config->time_limit = WORKLOAD_NS_MAX;
    }
    return 0;
}


/* Running. */

static int open_outputs(const char *json, FILE **table_file, FILE **json_file) {
    *table_file = json && strcmp(json, "-") == 0 ? NULL : stdout;
    *json_file = NULL;
    if (!json)
        return 0;
    *json_file = *table_file ? fopen(json, "w") : stdout;
    return *json_file ? 0 : cli_failed("'%s' cannot be written: %s", json, strerror(errno));
}


static int run_kinds(const bench_config *config, FILE *table, FILE *json) {
    bench_report report = {.config = config, .table = table, .json = json};
    uint64_t errors = 0;
    int err = 0;
    bench_report_begin(&report);
    for (unsigned i = 0; i < config->kind_count && !err; i++)
        err = bench_run_kind(config, &config->kinds[i], bench_report_result, &report, &errors);
    if (bench_report_end(&report))
        err = CLI_FAILED;
    if (errors)
        err = cli_failed("%" PRIu64 " operations gave wrong results", errors);
    return err;
}


/* Each process is a compute node with one thread. */
static int check_processes(request *r) {
    bench_config *config = &r->config;
    if (r->against && strcmp(r->against, "lmdb") != 0 && strcmp(r->against, "redis") != 0)
        return cli_wrong_usage("bench", "--against: '%s' is neither lmdb nor redis", r->against);
    config->against = !r->against ? BENCH_NOBODY : strcmp(r->against, "lmdb") == 0 ? BENCH_LMDB : BENCH_REDIS;
    if (r->against && !config->processes)
        config->processes = config->against == BENCH_REDIS ? 1 : 2;
    if (!config->processes) {
        if (config->threads == UINT64_MAX)
            config->threads = DEFAULT_THREADS;
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


static int run_request(const request *r, FILE *table, FILE *json) {
    const bench_config *config = &r->config;
    if (r->micro && r->pool && strncmp(r->pool, "tcp://", 6) == 0)
        return bench_network(r->pool, table, json);
    if (r->micro)
        return bench_micro(config->seed, table, json);
    cli_catch_interrupts();
    if (!config->processes)
        return run_kinds(config, table, json);
    int err = bench_processes(config, table, json);
    if (*r->own_pool)
        unlink(r->own_pool);
    return err;
}


int cli_bench(int argc, char **argv) {
    request r = {.keys = "u64",
                 .records = UINT64_MAX,
                 .ops = UINT64_MAX,
                 .config = {.warmup = UINT64_MAX,
                            .value_size = 8,
                            .threads = UINT64_MAX,
                            .depth = 1,
                            .compute_nodes = 1,
                            .cache = 64 << 20,
                            .seed = 1,
                            .theta = FAR_ZIPF_THETA,
                            .rdwc = 1}};
    bench_config *config = &r.config;
    const cli_option options[] = {
        {"pool", CLI_TEXT, &r.pool, "URI", "where to run (default: an embedded pool of a fitting size)"},
        {"index", CLI_TEXT, &r.index, "KIND[,KIND..]|all", "which kinds (default: all)"},
        {"workload", CLI_TEXT, &r.workload, "W[,W..]",
         "load, a, b, c, d, e, f, writes (default: load and the letters)"},
        {"records", CLI_NUMBER, &r.records, "N", "how many are loaded (default: 100000)"},
        {"ops", CLI_NUMBER, &r.ops, "N", "operations per workload, over all clients"},
        {"warmup", CLI_NUMBER, &config->warmup, "N", "operations before measuring (default: a tenth of --ops)"},
        {"keys", CLI_TEXT, &r.keys, "KEYS", "u64 (default), seq, email or file:PATH"},
        {"value-size", CLI_BYTES, &config->value_size, "N", "bytes of a value (default: 8)"},
        {"dist", CLI_TEXT, &r.dist, "DIST", "zipfian, uniform or latest (default: zipfian); d always reads the latest"},
        {"theta", CLI_DECIMAL, &config->theta, "T", "skew of zipfian and latest (default: 0.99)"},
        {"threads", CLI_NUMBER, &config->threads, "N", "per compute node (default: 2)"},
        {"depth", CLI_NUMBER, &config->depth, "N", "operations in flight per thread (default: 1)"},
        {"compute-nodes", CLI_NUMBER, &config->compute_nodes, "N", "handles on the pool (default: 1)"},
        {"cache", CLI_BYTES, &config->cache, "SIZE", "cache of a compute node (default: 64M)"},
        {"rdwc", CLI_SWITCH, &config->rdwc, "on|off", "merge concurrent operations on one key (default: on)"},
        {"options", CLI_TEXT, &r.options, "NAME=VALUE,..", "of the indexes; each goes to every kind that knows it"},
        {"seed", CLI_NUMBER, &config->seed, "N", "what decides the operations (default: 1)"},
        {"json", CLI_TEXT, &r.json, "FILE|-", "writes the results as JSON; '-': instead of the table"},
        {"keep", CLI_FLAG, &config->keep, NULL, "leaves the indexes in the pool"},
        {"processes", CLI_NUMBER, &config->processes, "N", "so many processes on a shm pool"},
        {"against", CLI_TEXT, &r.against, "lmdb|redis",
         "the same by LMDB, or by a redis-server on loopback (then ours is tcp://), and ratios"},
        {"micro", CLI_FLAG, &r.micro, NULL,
         "measures the cost of verbs instead of an index; with --pool tcp://.. that of round trips"},
        {NULL, CLI_FLAG, NULL, NULL, NULL},
    };
    bool help;
    int err = cli_parse(argc, argv, usage, options, notes, NULL, &help);
    if (err || help)
        return err;
    FILE *table = NULL, *json = NULL;
    if (!r.micro)
        err = check_processes(&r);
    if (!r.micro && !err)
        err = complete(&r);
    if (!err)
        err = open_outputs(r.json, &table, &json);
    if (!err)
        err = run_request(&r, table, json);
    bench_end_daemon(r.own_daemon);
    if (json && json != stdout)
        fclose(json);
    far_keyset_close(config->keys);
    return err;
}
