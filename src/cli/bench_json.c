/* The results of farindex bench as JSON: an array with an object for each kind, workload and point. */
#include "cli/bench.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static const char *const op_names[BENCH_OPS] = {"get", "insert", "update", "put", "delete", "scan"};


static uint64_t writes_of(const far_stats *stats) {
    return stats->ops[FAR_OP_INSERT] + stats->ops[FAR_OP_UPDATE] + stats->ops[FAR_OP_PUT] + stats->ops[FAR_OP_DELETE];
}


/* JSON fields. */

static void name_field(FILE *file, const char *name) {
    fprintf(file, ",\"%s\":", name);
}


static void text_field(FILE *file, const char *name, const char *text) {
    name_field(file, name);
    if (text)
        cli_json_string(file, text);
    else
        fputs("null", file);
}


static void count_field(FILE *file, const char *name, uint64_t value) {
    name_field(file, name);
    fprintf(file, "%" PRIu64, value);
}


static void number_field(FILE *file, const char *name, double value) {
    name_field(file, name);
    if (isfinite(value))
        fprintf(file, "%.6g", value);
    else
        fputs("null", file);
}


static void bool_field(FILE *file, const char *name, bool value) {
    name_field(file, name);
    fputs(value ? "true" : "false", file);
}


/* Latency. */

static void print_latency(FILE *file, const far_histogram *latency) {
    number_field(file, "mean_us", latency->count ? far_histogram_mean(latency) / 1000 : BENCH_NOTHING);
    number_field(file, "p50_us", bench_quantile_us(latency, 1, 2));
    number_field(file, "p90_us", bench_quantile_us(latency, 9, 10));
    number_field(file, "p99_us", bench_quantile_us(latency, 99, 100));
    number_field(file, "p999_us", bench_quantile_us(latency, 999, 1000));
    number_field(file, "p9999_us", bench_quantile_us(latency, 9999, 10000));
    number_field(file, "max_us", bench_quantile_us(latency, 1, 1));
}


/* Pairs of a latency and how often it occurred. */
static void print_histogram(FILE *file, const far_histogram *latency) {
    unsigned bucket = 0;
    uint64_t value, count;
    const char *separator = "";
    name_field(file, "histogram_us");
    fputc('[', file);
    while (far_histogram_next(latency, &bucket, &value, &count)) {
        fprintf(file, "%s[%.6g,%" PRIu64 "]", separator, (double)value / 1000, count);
        separator = ",";
    }
    fputc(']', file);
}


static void print_verbs(FILE *file, const far_stats *stats, uint64_t ops) {
    name_field(file, "verbs_by_kind");
    fprintf(file, "{\"ops\":%" PRIu64, ops);
    number_field(file, "read", bench_per(stats->reads, ops));
    number_field(file, "write", bench_per(stats->writes, ops));
    number_field(file, "cas", bench_per(stats->cas, ops));
    number_field(file, "faa", bench_per(stats->faa, ops));
    number_field(file, "masked_cas", bench_per(stats->masked_cas, ops));
    fputc('}', file);
}


static void print_words(FILE *file, const char *name, const uint64_t *words, unsigned count) {
    name_field(file, name);
    for (unsigned i = 0; i < count; i++)
        fprintf(file, "%s%" PRIu64, i ? "," : "[", words[i]);
    fputc(']', file);
}


/* How the load was spread over memory nodes; the largest beside the mean. */
static void print_nodes(FILE *file, const bench_result *result) {
    uint64_t sum = 0, most = 0;
    if (!result->nodes)
        return;
    for (unsigned i = 0; i < result->nodes; i++) {
        sum += result->node_verbs[i];
        most = result->node_verbs[i] > most ? result->node_verbs[i] : most;
    }
    count_field(file, "memory_nodes", result->nodes);
    print_words(file, "node_verbs", result->node_verbs, result->nodes);
    print_words(file, "node_bytes", result->node_bytes, result->nodes);
    number_field(file, "node_imbalance", bench_per(most * result->nodes, sum));
}


static void print_by_op(FILE *file, const bench_result *result) {
    bool any = false;
    name_field(file, "by_op");
    fputc('{', file);
    for (unsigned kind = 0; kind < BENCH_OPS; kind++) {
        const far_stats *stats = &result->by_op[kind];
        uint64_t done = result->latency_of[kind].count, ops = result->kind ? done : 0;
        if (done == 0)
            continue;
        fprintf(file, "%s\"%s\":{\"ops\":%" PRIu64, any ? "," : "", op_names[kind], done);
        number_field(file, "rtt_per_op", bench_per(stats->round_trips, ops));
        number_field(file, "verbs_per_op", bench_per(bench_verbs(stats), ops));
        number_field(file, "read_bytes_per_op", bench_per(stats->bytes_read, ops));
        number_field(file, "write_bytes_per_op", bench_per(stats->bytes_written, ops));
        print_latency(file, &result->latency_of[kind]);
        if (result->instructions)
            number_field(file, "instructions_per_op", bench_per(result->instructions_of[kind], done));
        fputc('}', file);
        any = true;
    }
    fputc('}', file);
}


/* "threads=4,depth=2" as an object; numbers as numbers. */
static void print_point(FILE *file, const char *point) {
    name_field(file, "point");
    fputc('{', file);
    for (const char *at = point; *at;) {
        size_t name = strcspn(at, "="), value = strcspn(at + name, ",");
        char text[128];
        snprintf(text, sizeof(text), "%.*s", (int)name, at);
        fputs(at == point ? "" : ",", file);
        cli_json_string(file, text);
        snprintf(text, sizeof(text), "%.*s", (int)value - 1, at + name + 1);
        fputc(':', file);
        cli_json_string(file, text);
        at += name + value;
        at += *at == ',';
    }
    fputc('}', file);
}


static void print_mix(FILE *file, const bench_config *config, far_ycsb_workload workload) {
    far_ycsb_config ycsb = bench_ycsb(config, workload, 0);
    char text[FAR_MIX_TEXT];
    text_field(file, "mix", far_mix_text(far_ycsb_mix(&ycsb), text));
}


static double fixed_key_size(const bench_config *config) {
    size_t size = far_keyset_fixed_size(config->keys);
    return size ? (double)size : BENCH_NOTHING;
}


static void print_what(FILE *file, const bench_config *config, const bench_result *result) {
    bool load = result->workload == FAR_YCSB_LOAD;
    far_distribution_kind dist = bench_distribution(config, result->workload);
    fputs("{\"index\":", file);
    cli_json_string(file, result->name);
    text_field(file, "workload", far_ycsb_name(result->workload));
    text_field(file, "keys", far_keyset_name(config->keys));
    text_field(file, "dist", load ? NULL : far_distribution_name(dist));
    count_field(file, "records", config->records);
    count_field(file, "ops", result->ops);
    count_field(file, "threads", config->threads);
    count_field(file, "depth", result->kind ? config->depth : 1);
    count_field(file, "compute_nodes", config->compute_nodes);
    text_field(file, "pool", result->kind ? config->uri : result->name);
    number_field(file, "key_size", fixed_key_size(config));
    count_field(file, "value_size", config->value_size);
    count_field(file, "cache_bytes", config->cache);
    text_field(file, "version", far_version());
    count_field(file, "seed", config->seed);
    number_field(file, "theta", load || dist == FAR_DISTRIBUTION_UNIFORM ? BENCH_NOTHING : config->theta);
    text_field(file, "options", result->kind ? result->kind->options : NULL);
    bool_field(file, "rdwc", config->rdwc);
    count_field(file, "clients", result->clients);
    number_field(file, "offered_mops", load || !config->rate ? BENCH_NOTHING : (double)config->rate / 1e6);
    print_point(file, config->point);
    print_mix(file, config, result->workload);
    if (config->processes)
        count_field(file, "processes", config->processes);
    count_field(file, "atomic_bytes", result->capabilities.atomic_bytes);
    bool_field(file, "masked_cas", result->capabilities.masked_cas);
    bool_field(file, "atomics_in_order", result->capabilities.atomics_in_order);
}


/* How full a kind with slots is; null for others. */
static void print_load(FILE *file, const far_load *load) {
    number_field(file, "load_factor", bench_per(load->keys[0] + load->keys[1] + load->keys[2], load->slots));
    name_field(file, "keys_by_level");
    if (load->slots)
        fprintf(file, "[%" PRIu64 ",%" PRIu64 ",%" PRIu64 "]", load->keys[0], load->keys[1], load->keys[2]);
    else
        fputs("null", file);
    number_field(file, "local_bytes", load->slots ? (double)load->local_bytes : BENCH_NOTHING);
}


static void print_figures(FILE *file, const far_figures *figures) {
    uint64_t wrong = figures->speculated - figures->speculated_well;
    number_field(file, "split_load", bench_per(figures->split_keys, figures->split_slots));
    number_field(file, "speculation_hit_ratio", bench_per(figures->speculated_well, figures->gets));
    number_field(file, "speculation_wrong_ratio", bench_per(wrong, figures->speculated));
}


static void print_numbers(FILE *file, const bench_config *config, const bench_result *result) {
    const far_stats *stats = &result->stats;
    const far_usage *usage = &result->usage;
    uint64_t ops = result->kind ? result->ops : 0; /* those of others are not counted */
    count_field(file, "errors", result->errors);
    number_field(file, "seconds", (double)result->ns / 1e9);
    number_field(file, "mops", bench_mops(result));
    print_latency(file, &result->latency);
    print_histogram(file, &result->latency);
    number_field(file, "rtt_per_op", bench_per(stats->round_trips, ops));
    number_field(file, "verbs_per_op", bench_per(bench_verbs(stats), ops));
    print_verbs(file, stats, ops);
    number_field(file, "read_bytes_per_op", bench_per(stats->bytes_read, ops));
    number_field(file, "write_bytes_per_op", bench_per(stats->bytes_written, ops));
    number_field(file, "cas_failed_per_op", bench_per(stats->cas_failed, ops));
    number_field(file, "retries_per_op", bench_per(stats->retries, ops));
    number_field(file, "lock_retries_per_op", bench_per(stats->lock_retries, ops));
    number_field(file, "stale_hits_per_op", bench_per(stats->stale_hits, ops));
    number_field(file, "background_rtt_per_op", bench_per(stats->background_round_trips, ops));
    number_field(file, "unwaited_per_op", bench_per(stats->unwaited_verbs, ops));
    number_field(file, "cache_bytes_used", result->has_cache ? (double)usage->cache_bytes : BENCH_NOTHING);
    number_field(file, "cache_hit_ratio", bench_hit_ratio(result));
    number_field(file, "delegated_ratio",
                 config->rdwc ? bench_per(stats->delegated_reads, stats->ops[FAR_OP_GET]) : BENCH_NOTHING);
    number_field(file, "combined_ratio",
                 config->rdwc ? bench_per(stats->combined_writes, writes_of(stats)) : BENCH_NOTHING);
    count_field(file, "pool_bytes", usage->pool_bytes);
    number_field(file, "bytes_per_key", bench_per(usage->pool_bytes, usage->keys));
    number_field(file, "index_bytes_per_key", bench_per(usage->pool_index_bytes, usage->keys));
    print_load(file, &result->load);
    print_figures(file, &result->figures);
}


static void print_values(FILE *file, const char *name, const double *values, unsigned count) {
    name_field(file, name);
    for (unsigned i = 0; i < count; i++)
        fprintf(file, "%s%.6g", i ? "," : "[", isfinite(values[i]) ? values[i] : 0);
    fputc(']', file);
}


/* Of several runs, each. */
static void print_spread(FILE *file, const bench_result *result) {
    const bench_spread *spread = &result->spread;
    count_field(file, "runs", result->runs);
    print_values(file, "mops_runs", spread->mops, result->runs);
    print_values(file, "p50_us_runs", spread->p50_us, result->runs);
    print_values(file, "p99_us_runs", spread->p99_us, result->runs);
    number_field(file, "mops_stddev", bench_deviation(spread->mops, result->runs));
    number_field(file, "p99_us_stddev", bench_deviation(spread->p99_us, result->runs));
}


/* Of several runs the mean: each began at 0. */
static void print_series(FILE *file, uint64_t interval, unsigned runs, const bench_series *series) {
    number_field(file, "interval_ms", (double)interval / 1e6);
    name_field(file, "series");
    fputc('[', file);
    for (size_t i = 0; i < series->count; i++) {
        const bench_moment *moment = &series->moments[i];
        fprintf(file, "%s{\"ms\":%.6g", i ? "," : "", (double)(i * interval) / 1e6);
        number_field(file, "mops", (double)moment->ops * 1000 / (double)interval / (runs ? runs : 1));
        number_field(file, "mean_us", bench_per(moment->sum_ns, moment->ops) / 1000);
        number_field(file, "max_us", (double)moment->max_ns / 1000);
        fputc('}', file);
    }
    fputc(']', file);
}


static void print_warmth(FILE *file, const bench_config *config, const bench_result *result) {
    if (result->workload == FAR_YCSB_LOAD)
        return;
    count_field(file, "warmup_ops", result->warmup_ops);
    if (!config->processes) /* each of them looks only at itself */
        bool_field(file, "warm", result->warm);
    bool_field(file, "settled", result->settled);
}


static void print_nic(FILE *file, const bench_result *result) {
    const far_sim_model *nic = &result->nic;
    bool_field(file, "virtual", true);
    fputs(",\"nic\":{\"preset\":", file);
    cli_json_string(file, nic->preset);
    number_field(file, "read_mops", nic->read_mops);
    number_field(file, "write_mops", nic->write_mops);
    number_field(file, "atomic_mops", nic->atomic_mops);
    number_field(file, "word_mops", nic->word_mops);
    number_field(file, "bandwidth_gbps", nic->bandwidth_gbps);
    number_field(file, "rtt_read_us", nic->rtt_read_us);
    number_field(file, "rtt_write_us", nic->rtt_write_us);
    number_field(file, "rtt_atomic_us", nic->rtt_atomic_us);
    count_field(file, "outstanding", nic->outstanding);
    count_field(file, "cpu_doorbell_ns", nic->cpu_doorbell_ns);
    count_field(file, "cpu_verb_ns", nic->cpu_verb_ns);
    count_field(file, "cpu_completion_ns", nic->cpu_completion_ns);
    fputc('}', file);
    if (result->ideal_mops > 0)
        number_field(file, "ideal_mops", result->ideal_mops);
}


static void print_notes(FILE *file, const bench_config *config, const bench_result *result) {
    char note[BENCH_NOTE_BYTES];
    const char *separator = "";
    name_field(file, "notes");
    fputc('[', file);
    for (unsigned i = 0; i < BENCH_NOTES; i++)
        if (bench_note_on(i, config, result, note)) {
            fputs(separator, file);
            cli_json_string(file, note);
            separator = ",";
        }
    fputc(']', file);
}


/* Such as "lmdb_ratio". */
static void rival_field(FILE *file, const bench_rival *rival, const char *what, double value) {
    char name[48];
    snprintf(name, sizeof(name), "%s_%s", rival->name, what);
    number_field(file, name, value);
}


static void print_extras(FILE *file, const bench_report *report, const bench_result *result) {
    const bench_config *config = report->config;
    if (config->processes)
        number_field(file, "cpu_us_per_op", bench_per(result->cpu_ns, result->ops) / 1000);
    if (config->against) {
        rival_field(file, config->against, "ratio", bench_rival_ratio(report, result));
        rival_field(file, config->against, "p50_ratio", bench_rival_p50_ratio(report, result));
    }
    if (result->instructions)
        number_field(file, "instructions_per_op", bench_per(result->instructions, result->ops));
    if (result->runs > 1)
        print_spread(file, result);
    if (config->interval)
        print_series(file, config->interval, result->runs, &result->series);
    if (config->sim)
        print_nic(file, result);
}


void bench_json_result(const bench_report *report, const bench_result *result) {
    FILE *file = report->json;
    const bench_config *config = report->config;
    fputs(report->count ? ",\n " : "\n ", file);
    print_what(file, config, result);
    print_numbers(file, config, result);
    print_nodes(file, result);
    print_warmth(file, config, result);
    print_extras(file, report, result);
    print_by_op(file, result);
    print_notes(file, config, result);
    bench_host_json(file);
    fputc('}', file);
    fflush(file);
}


void bench_json_begin(const bench_report *report) {
    fputs("[", report->json);
}
