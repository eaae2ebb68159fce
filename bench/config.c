/* Derives the configuration of one point from the options of the user (bench_complete). */
#include "bench/config.h"
#include "base/parse.h"
#include "pool/catalog/options.h"
#include "pool/catalog/private_options.h"

#include <errno.h>
#include <glob.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_RECORDS 100000
#define DEFAULT_OPS     100000 /* the time limit may end a workload earlier */
#define DEFAULT_SIM_OPS 50000
/* time for all workloads of all kinds together, if neither --ops nor --duration is given */
#define DEFAULT_NS      20000000000ull
#define WORKLOAD_NS_MAX 3000000000ull
#define CLIENTS_MAX     8192


far_distribution_kind bench_distribution(const bench_config *config, far_ycsb_workload workload) {
    if (workload == FAR_YCSB_D || !config->dist_given)
        return far_ycsb_distribution(workload);
    return config->dist;
}


/* Returns the number of operations of a workload. A scan costs as much as many gets. The toy map has no order and reads
 * all of its slots for each scan, so it gets fewer scans. */
uint64_t bench_ops(const bench_config *config, const far_index_kind *kind, far_ycsb_workload workload) {
    if (config->ops)
        return config->ops;
    if (config->rate && config->duration)
        return (uint64_t)((double)config->rate * (double)config->duration / 1e9) + 1;
    uint64_t ops = config->sim ? DEFAULT_SIM_OPS : DEFAULT_OPS;
    if (!bench_has_scans(config, workload))
        return ops;
    return kind && kind->hidden ? 4ull * bench_clients(config) : ops / 20;
}


far_ycsb_config bench_ycsb(const bench_config *config, far_ycsb_workload workload, uint64_t ops) {
    return (far_ycsb_config){.workload = workload,
                             .records = config->records,
                             .ops = ops,
                             .distribution = bench_distribution(config, workload),
                             .theta = config->theta,
                             .seed = config->seed + config->run,
                             .mix = config->mix,
                             .scan_length = {(uint32_t)config->scan_length[0], (uint32_t)config->scan_length[1]}};
}


static unsigned percent_of(const bench_config *config, far_ycsb_workload workload, far_ycsb_kind kind) {
    far_ycsb_config ycsb = bench_ycsb(config, workload, 0);
    return far_ycsb_mix(&ycsb)->percent[kind];
}


bool bench_has_scans(const bench_config *config, far_ycsb_workload workload) {
    return percent_of(config, workload, FAR_YCSB_SCAN) > 0;
}


/* ---- Lists ---- */

bool bench_next_word(const char **list, char *word, size_t size) {
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


static int report_unknown_kind(const char *kind) {
    char kinds[CLI_KINDS], hint[CLI_HINT];
    return cli_wrong_usage("bench", "--index: there is no kind '%s' (there are: %s)%s", kind, cli_list_kinds(kinds),
                           cli_suggest_kind(kind, hint));
}


static int parse_kinds(bench_config *config, const char *list) {
    if (!list || strcmp(list, "all") == 0)
        return far_kinds(add_shown_kind, config) > 0 ? 0 : cli_failed("this build has no index kinds");
    char word[64];
    bool more;
    do {
        more = bench_next_word(&list, word, sizeof(word));
        const far_index_kind *kind = far_index_kind_named(word);
        if (!kind)
            return report_unknown_kind(word);
        int err = add_kind(config, kind);
        if (err)
            return err;
    } while (more);
    return 0;
}


static int parse_workloads(bench_request *r) {
    bench_config *config = &r->config;
    const char *list = r->workload;
    char word[32];
    bool more;
    if (!list)
        list = config->processes ? "load,c,writes,a" : r->mix ? "mix" : "load,a,b,c,d,e,f";
    do {
        more = bench_next_word(&list, word, sizeof(word));
        if (config->workload_count == BENCH_WORKLOADS_MAX)
            return cli_wrong_usage("bench", "--workload: more than %d workloads", BENCH_WORKLOADS_MAX);
        if (far_ycsb_parse(word, &config->workloads[config->workload_count]) < 0)
            return cli_wrong_usage("bench", "--workload: unknown workload '%s' (load, a, b, c, d, e, f, writes, mix)",
                                   word);
        config->workload_count++;
    } while (more);
    return 0;
}


/* ---- Options of the indexes ---- */

static bool knows_option(const far_index_kind *kind, const char *name, far_option_def *def) {
    for (unsigned i = 0; i < far_index_option_count(kind); i++) {
        *def = far_index_option_at(kind, i);
        if (strcmp(def->name, name) == 0)
            return !far_option_is_private(kind, name);
    }
    return false;
}


static void append_option(bench_kind *kind, const char *name, const char *value) {
    size_t used = strlen(kind->options);
    snprintf(kind->options + used, sizeof(kind->options) - used, "%s%s=%s", used ? "," : "", name, value);
}


/* Sets the option for every kind that knows it and has no value for it yet. Returns the number of kinds that know it.
 */
static unsigned set_option_of_kinds(bench_config *config, const char *name, const char *value) {
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


/* Chooses the number of slots of kinds with a fixed table, so that the table fits the records. */
static void choose_slots(bench_config *config) {
    for (unsigned i = 0; i < config->kind_count; i++) {
        far_option_def def;
        char value[24];
        /* a minimum of 0 means that the kind chooses the number itself */
        if (!knows_option(config->kinds[i].kind, "slots", &def) || def.min == 0)
            continue;
        int64_t slots = 1;
        while (slots < (int64_t)config->records && slots * 2 <= def.max)
            slots *= 2;
        snprintf(value, sizeof(value), "%" PRId64, slots < def.min ? def.min : slots);
        append_option(&config->kinds[i], "slots", value);
    }
}


/* Reports an option that no kind has. If it was swept, it may also have been meant as an option of bench. */
static int report_unknown_option(const bench_config *config, const char *name) {
    char hint[CLI_HINT] = "";
    for (unsigned i = 0; i < config->kind_count && !*hint; i++)
        cli_suggest_index_option(config->kinds[i].kind->name, name, hint);
    return cli_wrong_usage("bench", "%s no kind has the option '%s'%s 'farindex kinds' lists the options",
                           strstr(config->point, name) ? "--sweep: no option of bench, and" : "--options:", name,
                           *hint ? hint : ";");
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
        if (set_option_of_kinds(config, list.name, list.value) == 0)
            return report_unknown_option(config, list.name);
    }
    if (found < 0)
        return cli_wrong_usage("bench", "--options: %s", error);
    if (far_keyset_fixed_size(config->keys) == 8 && !sizes_given) {
        set_option_of_kinds(config, "key_size", "8");
        snprintf(number, sizeof(number), "%" PRIu64, config->value_size);
        set_option_of_kinds(config, "value_size", number);
    }
    if (!slots_given)
        choose_slots(config);
    for (unsigned i = 0; i < config->kind_count; i++) {
        int64_t values[FAR_OPTIONS_MAX];
        if (far_index_options_parse(config->kinds[i].kind, config->kinds[i].options, values) < 0)
            return cli_wrong_usage("bench", "--options: %s: %s", config->kinds[i].kind->name, far_last_error());
    }
    return 0;
}


/* ---- The pool ---- */

/* Returns the size of a pool that is large enough: pairs with the structure around them, retired pairs, and the memory
 * that each session reserves. The estimate is generous, because memory that is never touched costs nothing. */
static uint64_t pool_bytes(const bench_config *config) {
    uint64_t inserts = 0, unit = 64ull << 20;
    for (unsigned i = 0; i < config->workload_count; i++)
        if (config->workloads[i] != FAR_YCSB_LOAD)
            inserts += bench_ops(config, NULL, config->workloads[i]) / 100 *
                       percent_of(config, config->workloads[i], FAR_YCSB_INSERT);
    uint64_t pair =
        config->value_size + 120 + (far_keyset_fixed_size(config->keys) ? far_keyset_fixed_size(config->keys) : 8);
    uint64_t bytes = (config->records + inserts) * pair * 6;
    bytes += (bench_clients(config) + config->compute_nodes + 4) * unit;
    return (bytes + unit - 1) / unit * unit;
}


/* Appends an option to the URI. Options of a sim URI are separated by commas; those of other URIs begin with '?'. */
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
    for (const char *at = uri; (at = strstr(at, pattern)); at += length)
        if (at > uri && strchr(":?&,", at[-1]))
            return true;
    return false;
}


/* Sets the number of memory nodes if the URI does not contain it. */
static int choose_nodes(bench_config *config, const char *name) {
    char number[24];
    if (!config->memory_nodes)
        return 0;
    if (uri_has(config->uri, name))
        return cli_wrong_usage("bench", "--memory-nodes: the URI of the pool contains the number already: '%s'",
                               config->uri);
    snprintf(number, sizeof(number), "%" PRIu64, config->memory_nodes);
    return append_to_uri(config, name, number);
}


#define OWN_POOL "/dev/shm/farindex-bench-" /* the number of the process follows */

/* Removes the pools of benchmarks that were killed, whose processes do not exist any more. */
static void remove_leftover_pools(void) {
    glob_t found;
    if (glob(OWN_POOL "*", 0, NULL, &found) != 0)
        return;
    for (size_t i = 0; i < found.gl_pathc; i++) {
        char *end;
        long process = strtol(found.gl_pathv[i] + strlen(OWN_POOL), &end, 10);
        if (process > 0 && !*end && kill((pid_t)process, 0) < 0 && errno == ESRCH && unlink(found.gl_pathv[i]) == 0)
            cli_note("removed %s, the pool of a benchmark that was killed", found.gl_pathv[i]);
    }
    globfree(&found);
}


/* Makes the URI of the pool if the user has given none. */
static int make_pool_uri(bench_request *r, const char *size) {
    bench_config *config = &r->config;
    if (config->processes) {
        if (!r->only_check)
            remove_leftover_pools();
        snprintf(r->own_pool, sizeof(r->own_pool), OWN_POOL "%d", (int)getpid());
        return snprintf(config->uri, sizeof(config->uri), "shm:%s?size=%s", r->own_pool, size);
    }
    if (config->memory_nodes)
        return snprintf(config->uri, sizeof(config->uri), "local:%" PRIu64 "x%s", config->memory_nodes, size);
    return snprintf(config->uri, sizeof(config->uri), "local:%s", size);
}


static bool uri_has_scheme(const bench_config *config, const char *scheme) {
    return strncmp(config->uri, scheme, strlen(scheme)) == 0;
}


/* Chooses the pool. All compute nodes must open the same pool, so a pool inside the process gets a name. */
static int choose_pool(bench_request *r) {
    bench_config *config = &r->config;
    char size[24], seed[24];
    config->own_pool = !r->pool;
    snprintf(size, sizeof(size), "%" PRIu64 "M", pool_bytes(config) >> 20);
    snprintf(seed, sizeof(seed), "%" PRIu64, config->seed);
    if (!r->pool && config->against && config->against->remote)
        return r->only_check ? 0
                             : bench_start_daemon(pool_bytes(config), config->uri, sizeof(config->uri), &r->own_daemon);
    int length = r->pool ? snprintf(config->uri, sizeof(config->uri), "%s", r->pool) : make_pool_uri(r, size), err = 0;
    if (length >= (int)sizeof(config->uri))
        return cli_wrong_usage("bench", "--pool: the URI is too long");
    config->sim = uri_has_scheme(config, "sim:");
    if (config->sim && !uri_has(config->uri, "seed"))
        err = append_to_uri(config, "seed", seed);
    if (config->sim && !err && !uri_has(config->uri, "size"))
        err = append_to_uri(config, "size", size);
    if (!err && config->sim)
        err = choose_nodes(config, "memory_nodes");
    else if (!err && uri_has_scheme(config, "shm:"))
        err = choose_nodes(config, "nodes");
    else if (!err && r->pool && config->memory_nodes)
        err = cli_wrong_usage("bench", "--memory-nodes: the URI of this pool determines the number");
    if (!err && (config->sim || uri_has_scheme(config, "local:")) && !uri_has(config->uri, "name"))
        err = append_to_uri(config, "name", "bench");
    return err;
}


/* ---- Numbers ---- */

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
        {"memory-nodes", config->memory_nodes, 0, FAR_NODES_MAX},
        {"runs", config->runs, 1, BENCH_RUNS_MAX},
        {"rate", config->rate, 0, 1000000000},
        {"scan-length", config->scan_length[1], 0, 1000000},
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


/* Writes the name of a key set with its key size: "u64" and 32 become "u64:32". */
static int write_keys_name(const bench_request *r, char *name, size_t size) {
    snprintf(name, size, "%s", r->keys);
    if (!r->key_size)
        return 0;
    if (strcmp(r->keys, "u64") != 0 && strcmp(r->keys, "seq") != 0)
        return cli_wrong_usage("bench", "--key-size: needs --keys u64 or --keys seq");
    snprintf(name, size, "%s:%" PRIu64, r->keys, r->key_size);
    return 0;
}


static int choose_keys(bench_request *r) {
    char error[256], name[4096];
    bench_config *config = &r->config;
    if (write_keys_name(r, name, sizeof(name)))
        return CLI_USAGE;
    if (far_keyset_open(name, config->seed, &config->keys, error, sizeof(error)) < 0)
        return cli_wrong_usage("bench", "--keys: %s", error);
    uint64_t limit = far_keyset_count_limit(config->keys);
    config->records = r->records;
    if (r->records == UINT64_MAX) /* a quarter of the keys of a file is left for inserts */
        config->records = limit <= DEFAULT_RECORDS ? limit - limit / 4 : DEFAULT_RECORDS;
    if (config->records > limit)
        return cli_wrong_usage("bench", "--records: %" PRIu64 " are more than the %" PRIu64 " keys of %s",
                               config->records, limit, r->keys);
    return 0;
}


/* Computes the number of compute nodes from the number of clients. */
static int spread_clients(bench_request *r) {
    bench_config *config = &r->config;
    if (!r->clients)
        return 0;
    if (config->processes || config->compute_nodes > 1)
        return cli_wrong_usage("bench", "--clients excludes --processes and --compute-nodes");
    if (r->clients < config->threads)
        config->threads = r->clients;
    if (!config->threads || r->clients % config->threads)
        return cli_wrong_usage("bench", "--clients: %" PRIu64 " are not a multiple of %" PRIu64 " threads", r->clients,
                               config->threads);
    config->compute_nodes = r->clients / config->threads;
    return 0;
}


/* Chooses the operations of the clients and the duration of a workload. */
static int choose_work(bench_request *r) {
    bench_config *config = &r->config;
    char error[192];
    if (r->mix && far_mix_parse(r->mix, &config->mix, error, sizeof(error)) < 0)
        return cli_wrong_usage("bench", "--mix: %s", error);
    if (r->mix && r->against && config->mix.percent[FAR_YCSB_DELETE])
        return cli_wrong_usage("bench", "--mix: --against excludes deletes");
    if (config->scan_length[1] && !config->scan_length[0])
        return cli_wrong_usage("bench", "--scan-length: a scan has at least 1 pair");
    if (r->ops == 0)
        return cli_wrong_usage("bench", "--ops: must be at least 1");
    config->ops = r->ops == UINT64_MAX ? 0 : r->ops;
    config->time_limit = config->duration;
    if (config->load_clients > bench_clients(config))
        config->load_clients = bench_clients(config);
    int err = parse_workloads(r);
    for (unsigned i = 0; i < config->workload_count && !err; i++)
        if (config->workloads[i] == FAR_YCSB_MIX && !r->mix)
            err = cli_wrong_usage("bench", "--workload: 'mix' needs --mix, for example --mix get=90,update=10");
    return err;
}


static int refuse_conflicting_options(const bench_request *r) {
    const bench_config *config = &r->config;
    if (config->instructions && (config->sim || config->depth > 1))
        return cli_wrong_usage("bench", "--instructions needs --depth 1 and a pool that is not sim:");
    if (config->ideal && !config->sim)
        return cli_wrong_usage("bench", "--ideal needs a sim: pool, because only its NICs are known");
    if (config->processes && (config->runs > 1 || config->interval || config->load_clients))
        return cli_wrong_usage("bench", "--processes excludes --runs, --interval and --load-clients");
    return 0;
}


int bench_complete(bench_request *r) {
    bench_config *config = &r->config;
    if (r->dist) {
        if (far_distribution_parse(r->dist, &config->dist) < 0)
            return cli_wrong_usage("bench", "--dist: '%s' is none of zipfian, uniform, latest", r->dist);
        config->dist_given = true;
    }
    if (config->cache == 0)
        return cli_wrong_usage(
            "bench", "--cache: must be larger than 0; an option of the kind turns its cache off ('farindex kinds')");
    int err = choose_keys(r);
    if (!err)
        err = spread_clients(r);
    if (!err)
        err = check_numbers(config);
    if (!err)
        err = choose_work(r);
    if (!err)
        err = parse_kinds(config, r->index);
    if (!err)
        err = parse_options(config, r->options);
    if (!err)
        err = choose_pool(r);
    if (!err)
        err = refuse_conflicting_options(r);
    if (!err && !config->ops && !config->sim && !config->duration) {
        config->time_limit = DEFAULT_NS / (config->kind_count * config->workload_count);
        if (config->time_limit > WORKLOAD_NS_MAX)
            config->time_limit = WORKLOAD_NS_MAX;
    }
    return err;
}
