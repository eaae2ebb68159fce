/* Prints the results of farindex bench as an aligned table with warnings below it. This file also computes the derived
 * numbers that all reports use. */
#include "bench/bench.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FEW_OPS 100 /* operations per client; with fewer, the start and the end of a workload distort the result */


/* ---- Numbers ---- */

double bench_per(uint64_t count, uint64_t of) {
    return of ? (double)count / (double)of : BENCH_NOTHING;
}


uint64_t bench_verbs(const far_stats *stats) {
    return stats->reads + stats->writes + stats->cas + stats->faa + stats->masked_cas;
}


double bench_quantile_us(const far_histogram *latency, uint64_t numerator, uint64_t denominator) {
    return latency->count ? (double)far_histogram_quantile(latency, numerator, denominator) / 1000 : BENCH_NOTHING;
}


double bench_mops(const bench_result *result) {
    return result->ns ? (double)result->ops * 1000 / (double)result->ns : BENCH_NOTHING;
}


double bench_rival_ratio(const bench_report *report, const bench_result *result) {
    double its = report->rival_mops[result->workload];
    return its > 0 ? bench_mops(result) / its : BENCH_NOTHING;
}


double bench_rival_p50_ratio(const bench_report *report, const bench_result *result) {
    double its = report->rival_p50[result->workload];
    return its > 0 ? bench_quantile_us(&result->latency, 1, 2) / its : BENCH_NOTHING;
}


double bench_hit_ratio(const bench_result *result) {
    return bench_per(result->stats.cache_hits, result->stats.cache_hits + result->stats.cache_misses);
}


double bench_deviation(const double *values, unsigned count) {
    double mean = 0, squares = 0;
    for (unsigned i = 0; i < count; i++)
        mean += values[i] / count;
    for (unsigned i = 0; i < count; i++)
        squares += (values[i] - mean) * (values[i] - mean);
    return count > 1 ? sqrt(squares / (count - 1)) : BENCH_NOTHING;
}


/* ---- Warnings about results ---- */

static bool note_few_ops(const bench_config *config, const bench_result *result, char *text) {
    uint64_t runs = result->runs ? result->runs : 1,
             each = result->ops / runs / (result->clients ? result->clients : 1);
    (void)config;
    snprintf(text, BENCH_NOTE_BYTES,
             "%" PRIu64 " operations for each of %" PRIu64
             " clients are too few, because the start and the end of the workload "
             "distort the result; use --ops or --duration for %d or more",
             each, result->clients, FEW_OPS);
    return each < FEW_OPS;
}


static bool not_warm(const bench_config *config, const bench_result *result, char *text) {
    snprintf(text, BENCH_NOTE_BYTES,
             "not warm after %" PRIu64
             " operations, because round trips per operation or caches were still changing; use --warmup",
             result->warmup_ops / (result->runs ? result->runs : 1));
    return !result->warm && !config->processes && result->workload != FAR_YCSB_LOAD;
}


static bool not_settled(const bench_config *config, const bench_result *result, char *text) {
    (void)config;
    snprintf(text, BENCH_NOTE_BYTES, "the background work after the load had not ended");
    return !result->settled && result->workload != FAR_YCSB_LOAD;
}


static bool note_clients_behind(const bench_config *config, const bench_result *result, char *text) {
    double offered = (double)config->rate / 1e6, done = bench_mops(result);
    snprintf(
        text, BENCH_NOTE_BYTES,
        "clients executed %.4g of the %.4g Mops offered, so operations queue up and latency grows with the duration",
        done, offered);
    return config->rate && result->workload != FAR_YCSB_LOAD && done < 0.95 * offered;
}


static bool series_cut(const bench_config *config, const bench_result *result, char *text) {
    (void)config;
    snprintf(text, BENCH_NOTE_BYTES, "the time series ended early, because --interval is too short");
    return result->series.cut;
}


bool bench_note_on(bench_note note, const bench_config *config, const bench_result *result, char *text) {
    static bool (*const notes[BENCH_NOTES])(const bench_config *config, const bench_result *result, char *text) = {
        note_few_ops, not_warm, not_settled, note_clients_behind, series_cut};
    return notes[note](config, result, text);
}


/* Stores the warnings of a result. The table shows each warning once, with the first result that it concerns. */
static void keep_notes(bench_report *report, const bench_result *result) {
    char text[BENCH_NOTE_BYTES];
    for (unsigned i = 0; i < BENCH_NOTES; i++) {
        if (!bench_note_on(i, report->config, result, text))
            continue;
        if (report->noted[i]++ == 0)
            snprintf(report->notes[i], sizeof(report->notes[i]), "%s, workload %s: %s", result->name,
                     far_ycsb_name(result->workload), text);
    }
}


static void print_notes(const bench_report *report) {
    for (unsigned i = 0; i < BENCH_NOTES; i++) {
        if (report->noted[i] == 1)
            fprintf(report->table, "note: %s\n", report->notes[i]);
        else if (report->noted[i])
            fprintf(report->table, "note: %s; %u more like it\n", report->notes[i], report->noted[i] - 1);
    }
}


/* ---- The table ---- */

static void print_cell(FILE *file, int width, int decimals, double value) {
    if (isfinite(value))
        fprintf(file, " %*.*f", width, decimals, value);
    else
        fprintf(file, " %*s", width, "-");
}


static void print_head(FILE *file, const bench_config *config) {
    fprintf(file, "%-8s %-8s %9s %9s %9s %9s %8s %8s %10s %10s %9s %8s %8s%s", "kind", "workload", "Mops", "p50 us",
            "p99 us", "p999 us", "rtt/op", "verbs/op", "read B/op", "write B/op", "cache hit", "B/key", "errors",
            config->processes ? "   cpu us" : "");
    if (config->against)
        fprintf(file, " %8s   p50 x", config->against->heading);
    fprintf(file, "%s%s%s\n", config->runs > 1 ? "  +- Mops" : "", config->ideal ? "    ideal" : "",
            config->instructions ? "   instr." : "");
}


static void print_row(FILE *file, const bench_report *report, const bench_result *result) {
    const far_stats *stats = &result->stats;
    /* only an index of farindex has counters; a program that it is compared with has none */
    uint64_t ops = result->kind ? result->ops : 0;
    fprintf(file, "%-8.8s %-8s", result->name, far_ycsb_name(result->workload));
    print_cell(file, 9, bench_mops(result) < 0.01 ? 6 : 4, bench_mops(result));
    print_cell(file, 9, 2, bench_quantile_us(&result->latency, 1, 2));
    print_cell(file, 9, 2, bench_quantile_us(&result->latency, 99, 100));
    print_cell(file, 9, 2, bench_quantile_us(&result->latency, 999, 1000));
    print_cell(file, 8, 2, bench_per(stats->round_trips, ops));
    print_cell(file, 8, 2, bench_per(bench_verbs(stats), ops));
    print_cell(file, 10, 1, bench_per(stats->bytes_read, ops));
    print_cell(file, 10, 1, bench_per(stats->bytes_written, ops));
    print_cell(file, 9, 3, bench_hit_ratio(result));
    print_cell(file, 8, 1, bench_per(result->usage.pool_index_bytes, result->usage.keys));
    fprintf(file, " %8" PRIu64, result->errors);
    if (report->config->processes)
        print_cell(file, 8, 2, bench_per(result->cpu_ns, result->ops) / 1000);
    if (report->config->against) {
        print_cell(file, 8, 2, bench_rival_ratio(report, result));
        print_cell(file, 7, 2, bench_rival_p50_ratio(report, result));
    }
    if (report->config->runs > 1)
        print_cell(file, 8, 4, bench_deviation(result->spread.mops, result->runs));
    if (report->config->ideal)
        print_cell(file, 8, 2, result->ideal_mops);
    if (report->config->instructions)
        print_cell(file, 8, 0, bench_per(result->instructions, result->ops));
    fputc('\n', file);
    fflush(file);
}


static void print_setting(FILE *file, const bench_config *config) {
    if (*config->point)
        fprintf(file, "%s: ", config->point);
    fprintf(file, "%s: %" PRIu64 " records, keys %s, values of %" PRIu64 " bytes, ", config->uri, config->records,
            far_keyset_name(config->keys), config->value_size);
    if (config->processes)
        fprintf(file, "%" PRIu64 " processes", config->processes);
    else
        fprintf(file, "%u clients (%" PRIu64 " compute node%s)", bench_clients(config), config->compute_nodes,
                config->compute_nodes == 1 ? "" : "s");
    fprintf(file, ", depth %" PRIu64 "%s", config->depth, config->sim ? ", virtual time" : "");
    if (config->rate)
        fprintf(file, ", %" PRIu64 " operations a second arrive", config->rate);
    if (config->runs > 1)
        fprintf(file, ", %" PRIu64 " runs", config->runs);
    fputc('\n', file);
    if (config->against)
        fputs(config->against->words, file);
}


void bench_report_setting(bench_report *report, const bench_config *config) {
    bool first = !report->config;
    report->config = config;
    if (first && report->json) {
        report->json_list.file = report->json;
        cli_json_list_begin(&report->json_list);
    }
    if (first && report->csv)
        bench_csv_begin(report);
    if (!report->table)
        return;
    print_setting(report->table, config);
    if (first)
        print_head(report->table, config);
    fflush(report->table);
}


void bench_report_result(void *ctx, const bench_result *result) {
    bench_report *report = ctx;
    if (!result->kind) {
        report->rival_mops[result->workload] = bench_mops(result);
        report->rival_p50[result->workload] = bench_quantile_us(&result->latency, 1, 2);
    }
    if (report->table)
        print_row(report->table, report, result);
    if (report->json)
        bench_json_result(report, result);
    if (report->csv)
        bench_csv_result(report, result);
    keep_notes(report, result);
    report->count++;
}


static int flush_output(FILE *file) {
    return fflush(file) == 0 && !ferror(file) ? 0 : cli_failed("the results could not be written");
}


int bench_report_end(bench_report *report) {
    int err = 0;
    if (report->table)
        print_notes(report);
    if (report->json) {
        report->json_list.file = report->json;
        cli_json_list_end(&report->json_list);
        err = flush_output(report->json);
    }
    if (report->csv && !err)
        err = flush_output(report->csv);
    return err;
}
