/* The most important numbers of farindex bench as CSV: a header, and then a line for each result. */
#include "bench/bench.h"

#include <inttypes.h>
#include <string.h>


/* Prints text in quotes, because the URI of a pool may contain commas. */
static void print_text(FILE *file, const char *words) {
    fputc('"', file);
    for (; *words; words++) {
        if (*words == '"')
            fputc('"', file);
        fputc(*words, file);
    }
    fputs("\",", file);
}


static void print_number(FILE *file, double value) {
    if (isfinite(value))
        fprintf(file, "%.6g", value);
    fputc(',', file);
}


static const char columns_before[] = "index,workload,keys,pool,clients,threads,compute_nodes,depth,records,value_size,";
static const char columns_after[] =
    "cache_bytes,ops,errors,seconds,mops,mops_stddev,offered_mops,mean_us,p50_us,p90_us,p99_us,p999_us,p9999_us,max_us,"
    "rtt_per_op,verbs_per_op,read_bytes_per_op,write_bytes_per_op,retries_per_op,lock_retries_per_op,stale_hits_per_op,"
    "cache_hit_ratio,cache_bytes_used,index_bytes_per_key\n";


typedef struct setting { /* one setting of a point such as "threads=4,value-size=16" */
    char name[80], value[64];
} setting;


static bool has_column(const char *columns, const char *name) {
    size_t length = strlen(name);
    for (const char *at = columns; *at; at += strcspn(at, ",\n") + 1)
        if (strcspn(at, ",\n") == length && memcmp(at, name, length) == 0)
            return true;
    return false;
}


/* Reads the next setting of a point that has no column anyway. Sets its name to that of its column: with '_' instead of
 * '-', and with a prefix if a column of results has the same name. Returns false at the end. */
static bool next_setting(const char **point, setting *s) {
    static const char prefix[] = "setting_";
    size_t before = strlen(prefix);
    do {
        if (!**point)
            return false;
        size_t name = strcspn(*point, "="), value = strcspn(*point + name, ",");
        snprintf(s->name, sizeof(s->name), "%s%.*s", prefix, (int)name, *point);
        snprintf(s->value, sizeof(s->value), "%.*s", (int)value - 1, *point + name + 1);
        for (char *dash; (dash = strchr(s->name, '-'));)
            *dash = '_';
        *point += name + value;
        *point += **point == ',';
    } while (has_column(columns_before, s->name + before));
    if (!has_column(columns_after, s->name + before))
        memmove(s->name, s->name + before, strlen(s->name + before) + 1);
    return true;
}


/* Prints the head. Each swept option has a column. */
void bench_csv_begin(const bench_report *report) {
    const char *point = report->config->point;
    setting swept;
    fputs(columns_before, report->csv);
    while (next_setting(&point, &swept))
        fprintf(report->csv, "%s,", swept.name);
    fputs(columns_after, report->csv);
}


static void print_settings(FILE *file, const char *point) {
    setting swept;
    while (next_setting(&point, &swept))
        print_text(file, swept.value);
}


static void print_latency(FILE *file, const far_histogram *latency) {
    print_number(file, latency->count ? far_histogram_mean(latency) / 1000 : BENCH_NOTHING);
    print_number(file, bench_quantile_us(latency, 1, 2));
    print_number(file, bench_quantile_us(latency, 9, 10));
    print_number(file, bench_quantile_us(latency, 99, 100));
    print_number(file, bench_quantile_us(latency, 999, 1000));
    print_number(file, bench_quantile_us(latency, 9999, 10000));
    print_number(file, bench_quantile_us(latency, 1, 1));
}


static void print_counters(FILE *file, const far_stats *stats, uint64_t ops) {
    print_number(file, bench_per(stats->round_trips, ops));
    print_number(file, bench_per(bench_verbs(stats), ops));
    print_number(file, bench_per(stats->bytes_read, ops));
    print_number(file, bench_per(stats->bytes_written, ops));
    print_number(file, bench_per(stats->retries, ops));
    print_number(file, bench_per(stats->lock_retries, ops));
    print_number(file, bench_per(stats->stale_hits, ops));
}


void bench_csv_result(const bench_report *report, const bench_result *result) {
    FILE *file = report->csv;
    const bench_config *config = report->config;
    print_text(file, result->name);
    print_text(file, far_ycsb_name(result->workload));
    print_text(file, far_keyset_name(config->keys));
    print_text(file, config->uri);
    fprintf(file, "%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",", result->clients,
            config->threads, config->compute_nodes, config->depth, config->records, config->value_size);
    print_settings(file, config->point);
    fprintf(file, "%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",", config->cache, result->ops, result->errors);
    print_number(file, (double)result->ns / 1e9);
    print_number(file, bench_mops(result));
    print_number(file, result->runs > 1 ? bench_deviation(result->spread.mops, result->runs) : BENCH_NOTHING);
    print_number(file, config->rate ? (double)config->rate / 1e6 : BENCH_NOTHING);
    print_latency(file, &result->latency);
    print_counters(file, &result->stats, result->kind ? result->ops : 0);
    print_number(file, bench_hit_ratio(result));
    print_number(file, result->has_cache ? (double)result->usage.cache_bytes : BENCH_NOTHING);
    double per_key = bench_per(result->usage.pool_index_bytes, result->usage.keys);
    fprintf(file, "%.6g\n", isfinite(per_key) ? per_key : 0);
    fflush(file);
}
