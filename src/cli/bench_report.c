/* How results are shown: an aligned table for people, a JSON array for scripts. */
#include "cli/bench.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static const char *const op_names[BENCH_OPS] = {"get", "insert", "update", "put", "delete", "scan"};

#define NOTHING NAN /* a number without meaning here: null in JSON, "-" in the table */


/* Numbers. */

static double per(uint64_t count, uint64_t of) {
    return of ? (double)count / (double)of : NOTHING;
}


static uint64_t verbs(const far_stats *stats) {
    return stats->reads + stats->writes + stats->cas + stats->faa + stats->masked_cas;
}


static double quantile_us(const far_histogram *latency, uint64_t numerator, uint64_t denominator) {
    return latency->count ? (double)far_histogram_quantile(latency, numerator, denominator) / 1000 : NOTHING;
}


static double mops(const bench_result *result) {
    return result->ns ? (double)result->ops * 1000 / (double)result->ns : NOTHING;
}


/* How many times as fast as the other. */
static double rival_ratio(const bench_report *report, const bench_result *result) {
    double its = report->rival_mops[result->workload];
    return its > 0 ? mops(result) / its : NOTHING;
}


/* How many times as long an operation takes. */
static double rival_p50_ratio(const bench_report *report, const bench_result *result) {
    double its = report->rival_p50[result->workload];
    return its > 0 ? quantile_us(&result->latency, 1, 2) / its : NOTHING;
}


static double hit_ratio(const bench_result *result) {
    return per(result->stats.cache_hits, result->stats.cache_hits + result->stats.cache_misses);
}


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
        number_field(file, "rtt_per_op", per(stats->round_trips, ops));
        number_field(file, "verbs_per_op", per(verbs(stats), ops));
        number_field(file, "read_bytes_per_op", per(stats->bytes_read, ops));
        number_field(file, "write_bytes_per_op", per(stats->bytes_written, ops));
        number_field(file, "p50_us", quantile_us(&result->latency_of[kind], 1, 2));
        number_field(file, "p99_us", quantile_us(&result->latency_of[kind], 99, 100));
        fputc('}', file);
        any = true;
    }
    fputc('}', file);
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
    count_field(file, "value_size", config->value_size);
    count_field(file, "cache_bytes", config->cache);
    text_field(file, "version", far_version());
    count_field(file, "seed", config->seed);
    number_field(file, "theta", load || dist == FAR_DISTRIBUTION_UNIFORM ? NOTHING : config->theta);
    text_field(file, "options", result->kind ? result->kind->options : NULL);
    bool_field(file, "rdwc", config->rdwc);
    count_field(file, "clients", bench_clients(config));
    if (config->processes)
        count_field(file, "processes", config->processes);
    count_field(file, "atomic_bytes", result->capabilities.atomic_bytes);
    bool_field(file, "masked_cas", result->capabilities.masked_cas);
    bool_field(file, "atomics_in_order", result->capabilities.atomics_in_order);
}


/* How full a kind with slots is; null for others. */
static void print_load(FILE *file, const far_load *load) {
    number_field(file, "load_factor", per(load->keys[0] + load->keys[1] + load->keys[2], load->slots));
    name_field(file, "keys_by_level");
    if (load->slots)
        fprintf(file, "[%" PRIu64 ",%" PRIu64 ",%" PRIu64 "]", load->keys[0], load->keys[1], load->keys[2]);
    else
        fputs("null", file);
    number_field(file, "local_bytes", load->slots ? (double)load->local_bytes : NOTHING);
}


static void print_figures(FILE *file, const far_figures *figures) {
    uint64_t wrong = figures->speculated - figures->speculated_well;
    number_field(file, "split_load", per(figures->split_keys, figures->split_slots));
    number_field(file, "speculation_hit_ratio", per(figures->speculated_well, figures->gets));
    number_field(file, "speculation_wrong_ratio", per(wrong, figures->speculated));
}


static void print_numbers(FILE *file, const bench_config *config, const bench_result *result) {
    const far_stats *stats = &result->stats;
    const far_usage *usage = &result->usage;
    uint64_t ops = result->kind ? result->ops : 0; /* those of others are not counted */
    count_field(file, "errors", result->errors);
    number_field(file, "seconds", (double)result->ns / 1e9);
    number_field(file, "mops", mops(result));
    number_field(file, "p50_us", quantile_us(&result->latency, 1, 2));
    number_field(file, "p99_us", quantile_us(&result->latency, 99, 100));
    number_field(file, "p999_us", quantile_us(&result->latency, 999, 1000));
    number_field(file, "rtt_per_op", per(stats->round_trips, ops));
    number_field(file, "verbs_per_op", per(verbs(stats), ops));
    number_field(file, "read_bytes_per_op", per(stats->bytes_read, ops));
    number_field(file, "write_bytes_per_op", per(stats->bytes_written, ops));
    number_field(file, "cas_failed_per_op", per(stats->cas_failed, ops));
    number_field(file, "retries_per_op", per(stats->retries, ops));
    number_field(file, "background_rtt_per_op", per(stats->background_round_trips, ops));
    number_field(file, "unwaited_per_op", per(stats->unwaited_verbs, ops));
    number_field(file, "cache_bytes_used", result->has_cache ? (double)usage->cache_bytes : NOTHING);
    number_field(file, "cache_hit_ratio", hit_ratio(result));
    number_field(file, "delegated_ratio", config->rdwc ? per(stats->delegated_reads, stats->ops[FAR_OP_GET]) : NOTHING);
    number_field(file, "combined_ratio", config->rdwc ? per(stats->combined_writes, writes_of(stats)) : NOTHING);
    count_field(file, "pool_bytes", usage->pool_bytes);
    number_field(file, "index_bytes_per_key", per(usage->pool_index_bytes, usage->keys));
    print_load(file, &result->load);
    print_figures(file, &result->figures);
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
    number_field(file, "ideal_mops", result->ideal_mops);
}


/* The table. */

static void cell(FILE *file, int width, int decimals, double value) {
    if (isfinite(value))
        fprintf(file, " %*.*f", width, decimals, value);
    else
        fprintf(file, " %*s", width, "-");
}


static void print_head(FILE *file, const bench_config *config) {
    fprintf(file, "%-8s %-8s %9s %9s %9s %9s %8s %8s %10s %10s %9s %8s %8s%s%s\n", "kind", "workload", "Mops", "p50 us",
            "p99 us", "p999 us", "rtt/op", "verbs/op", "read B/op", "write B/op", "cache hit", "B/key", "errors",
            config->processes ? "   cpu us" : "",
            config->against == BENCH_LMDB    ? "   x LMDB"
            : config->against == BENCH_REDIS ? "  x redis   p50 x"
                                             : "");
}


static void print_row(FILE *file, const bench_report *report, const bench_result *result) {
    const far_stats *stats = &result->stats;
    uint64_t ops = result->kind ? result->ops : 0; /* those of others are not counted */
    fprintf(file, "%-8s %-8s", result->name, far_ycsb_name(result->workload));
    cell(file, 9, mops(result) < 0.01 ? 6 : 4, mops(result));
    cell(file, 9, 2, quantile_us(&result->latency, 1, 2));
    cell(file, 9, 2, quantile_us(&result->latency, 99, 100));
    cell(file, 9, 2, quantile_us(&result->latency, 999, 1000));
    cell(file, 8, 2, per(stats->round_trips, ops));
    cell(file, 8, 2, per(verbs(stats), ops));
    cell(file, 10, 1, per(stats->bytes_read, ops));
    cell(file, 10, 1, per(stats->bytes_written, ops));
    cell(file, 9, 3, hit_ratio(result));
    cell(file, 8, 1, per(result->usage.pool_index_bytes, result->usage.keys));
    fprintf(file, " %8" PRIu64, result->errors);
    if (report->config->processes)
        cell(file, 8, 2, per(result->cpu_ns, result->ops) / 1000);
    if (report->config->against)
        cell(file, 8, 2, rival_ratio(report, result));
    if (report->config->against == BENCH_REDIS)
        cell(file, 7, 2, rival_p50_ratio(report, result));
    fputc('\n', file);
    fflush(file);
}


static void print_setting(FILE *file, const bench_config *config) {
    fprintf(file, "%s: %" PRIu64 " records, keys %s, values of %" PRIu64 " bytes, ", config->uri, config->records,
            far_keyset_name(config->keys), config->value_size);
    if (config->processes)
        fprintf(file, "%" PRIu64 " processes", config->processes);
    else
        fprintf(file, "%u clients (%" PRIu64 " compute node%s)", bench_clients(config), config->compute_nodes,
                config->compute_nodes == 1 ? "" : "s");
    fprintf(file, ", depth %" PRIu64 "%s\n", config->depth, config->sim ? ", virtual time" : "");
    if (config->against == BENCH_REDIS)
        fputs("redis: a redis-server of its own on loopback, hiredis, nothing on disk; operations in flight are one "
              "pipeline\n",
              file);
    if (config->against == BENCH_LMDB)
        fprintf(
            file,
            "lmdb: MDB_NOSYNC | MDB_WRITEMAP, a transaction for every operation, whose effect all processes see when "
            "it returns, as with ours;\n      it has nothing like operations in flight: depth 1\n");
}


void bench_report_begin(bench_report *report) {
    if (report->json)
        fputs("[", report->json);
    if (!report->table)
        return;
    print_setting(report->table, report->config);
    print_head(report->table, report->config);
    fflush(report->table);
}


void bench_report_result(void *ctx, const bench_result *result) {
    bench_report *report = ctx;
    if (!result->kind) {
        report->rival_mops[result->workload] = mops(result);
        report->rival_p50[result->workload] = quantile_us(&result->latency, 1, 2);
    }
    if (report->table)
        print_row(report->table, report, result);
    if (report->json) {
        fputs(report->count ? ",\n " : "\n ", report->json);
        print_what(report->json, report->config, result);
        print_numbers(report->json, report->config, result);
        if (report->config->processes)
            number_field(report->json, "cpu_us_per_op", per(result->cpu_ns, result->ops) / 1000);
        if (report->config->against == BENCH_LMDB)
            number_field(report->json, "lmdb_ratio", rival_ratio(report, result));
        if (report->config->against == BENCH_REDIS) {
            number_field(report->json, "redis_ratio", rival_ratio(report, result));
            number_field(report->json, "redis_p50_ratio", rival_p50_ratio(report, result));
        }
        print_by_op(report->json, result);
        if (report->config->sim)
            print_nic(report->json, result);
        fputc('}', report->json);
        fflush(report->json);
    }
    report->count++;
}


int bench_report_end(bench_report *report) {
    if (!report->json)
        return 0;
    fputs("\n]\n", report->json);
    return fflush(report->json) == 0 && !ferror(report->json) ? 0 : cli_failed("the JSON could not be written");
}
