/* The results of farindex bench as JSON: an array with an object for each result (bench_json_result). */
#include "bench/bench.h"

#include <math.h>
#include <string.h>

static const char *const op_names[BENCH_OPS] = {"get", "insert", "update", "put", "delete", "scan"};


static uint64_t writes_of(const far_stats *stats) {
    return stats->ops[FAR_OP_INSERT] + stats->ops[FAR_OP_UPDATE] + stats->ops[FAR_OP_PUT] + stats->ops[FAR_OP_DELETE];
}


/* ---- Latency ---- */

static void set_latency(json_t *object, const far_histogram *latency) {
    cli_json_set_number(object, "mean_us", latency->count ? far_histogram_mean(latency) / 1000 : BENCH_NOTHING);
    cli_json_set_number(object, "p50_us", bench_quantile_us(latency, 1, 2));
    cli_json_set_number(object, "p90_us", bench_quantile_us(latency, 9, 10));
    cli_json_set_number(object, "p99_us", bench_quantile_us(latency, 99, 100));
    cli_json_set_number(object, "p999_us", bench_quantile_us(latency, 999, 1000));
    cli_json_set_number(object, "p9999_us", bench_quantile_us(latency, 9999, 10000));
    cli_json_set_number(object, "max_us", bench_quantile_us(latency, 1, 1));
}


/* Sets "histogram_us" to pairs of a latency and the number of operations with that latency. */
static void set_histogram(json_t *object, const far_histogram *latency) {
    unsigned bucket = 0;
    uint64_t value, count;
    json_t *pairs = cli_json_array();
    while (far_histogram_next(latency, &bucket, &value, &count)) {
        json_t *pair = cli_json_array();
        cli_json_append(pair, cli_json_number((double)value / 1000));
        cli_json_append(pair, cli_json_count(count));
        cli_json_append(pairs, pair);
    }
    cli_json_set(object, "histogram_us", pairs);
}


static void set_verbs(json_t *object, const far_stats *stats, uint64_t ops) {
    json_t *verbs = cli_json_object();
    cli_json_set_count(verbs, "ops", ops);
    cli_json_set_number(verbs, "read", bench_per(stats->reads, ops));
    cli_json_set_number(verbs, "write", bench_per(stats->writes, ops));
    cli_json_set_number(verbs, "cas", bench_per(stats->cas, ops));
    cli_json_set_number(verbs, "faa", bench_per(stats->faa, ops));
    cli_json_set_number(verbs, "masked_cas", bench_per(stats->masked_cas, ops));
    cli_json_set(object, "verbs_by_kind", verbs);
}


static void set_counts(json_t *object, const char *name, const uint64_t *counts, unsigned count) {
    json_t *array = cli_json_array();
    for (unsigned i = 0; i < count; i++)
        cli_json_append(array, cli_json_count(counts[i]));
    cli_json_set(object, name, array);
}


/* Sets the load of each memory node, and the ratio of the largest to the mean. */
static void set_nodes(json_t *object, const bench_result *result) {
    uint64_t sum = 0, most = 0;
    if (!result->nodes)
        return;
    for (unsigned i = 0; i < result->nodes; i++) {
        sum += result->node_verbs[i];
        most = result->node_verbs[i] > most ? result->node_verbs[i] : most;
    }
    cli_json_set_count(object, "memory_nodes", result->nodes);
    set_counts(object, "node_verbs", result->node_verbs, result->nodes);
    set_counts(object, "node_bytes", result->node_bytes, result->nodes);
    cli_json_set_number(object, "node_imbalance", bench_per(most * result->nodes, sum));
}


static json_t *op_as_json(const bench_result *result, unsigned kind) {
    const far_stats *stats = &result->by_op[kind];
    uint64_t done = result->latency_of[kind].count, ops = result->kind ? done : 0;
    json_t *op = cli_json_object();
    cli_json_set_count(op, "ops", done);
    cli_json_set_number(op, "rtt_per_op", bench_per(stats->round_trips, ops));
    cli_json_set_number(op, "verbs_per_op", bench_per(bench_verbs(stats), ops));
    cli_json_set_number(op, "read_bytes_per_op", bench_per(stats->bytes_read, ops));
    cli_json_set_number(op, "write_bytes_per_op", bench_per(stats->bytes_written, ops));
    set_latency(op, &result->latency_of[kind]);
    if (result->instructions)
        cli_json_set_number(op, "instructions_per_op", bench_per(result->instructions_of[kind], done));
    return op;
}


static void set_by_op(json_t *object, const bench_result *result) {
    json_t *by_op = cli_json_object();
    for (unsigned kind = 0; kind < BENCH_OPS; kind++)
        if (result->latency_of[kind].count)
            cli_json_set(by_op, op_names[kind], op_as_json(result, kind));
    cli_json_set(object, "by_op", by_op);
}


/* Sets "point" to an object with a text for each setting of a sweep: "threads=4,depth=2" has two. */
static void set_point(json_t *object, const char *settings) {
    json_t *point = cli_json_object();
    for (const char *at = settings; *at;) {
        size_t name_length = strcspn(at, "="), value_length = strcspn(at + name_length, ",");
        char name[128], value[128];
        snprintf(name, sizeof(name), "%.*s", (int)name_length, at);
        snprintf(value, sizeof(value), "%.*s", (int)value_length - 1, at + name_length + 1);
        cli_json_set_text(point, name, value);
        at += name_length + value_length;
        at += *at == ',';
    }
    cli_json_set(object, "point", point);
}


static void set_mix(json_t *object, const bench_config *config, far_ycsb_workload workload) {
    far_ycsb_config ycsb = bench_ycsb(config, workload, 0);
    char text[FAR_MIX_TEXT];
    cli_json_set_text(object, "mix", far_mix_text(far_ycsb_mix(&ycsb), text));
}


static void set_key_size(json_t *object, const bench_config *config) {
    size_t size = far_keyset_fixed_size(config->keys); /* 0 if keys differ in size */
    cli_json_set(object, "key_size", size ? cli_json_count(size) : json_null());
}


static void set_experiment(json_t *object, const bench_config *config, const bench_result *result) {
    bool load = result->workload == FAR_YCSB_LOAD;
    far_distribution_kind dist = bench_distribution(config, result->workload);
    cli_json_set_text(object, "index", result->name);
    cli_json_set_text(object, "workload", far_ycsb_name(result->workload));
    cli_json_set_text(object, "keys", far_keyset_name(config->keys));
    cli_json_set_text(object, "dist", load ? NULL : far_distribution_name(dist));
    cli_json_set_count(object, "records", config->records);
    cli_json_set_count(object, "ops", result->ops);
    cli_json_set_count(object, "threads", config->threads);
    cli_json_set_count(object, "depth", result->kind ? config->depth : 1);
    cli_json_set_count(object, "compute_nodes", config->compute_nodes);
    cli_json_set_text(object, "pool", result->kind ? config->uri : result->name);
    set_key_size(object, config);
    cli_json_set_count(object, "value_size", config->value_size);
    cli_json_set_count(object, "cache_bytes", config->cache);
    cli_json_set_text(object, "version", far_version());
    cli_json_set_text(object, "command", config->command);
    cli_json_set_count(object, "seed", config->seed);
    cli_json_set_number(object, "theta", load || dist == FAR_DISTRIBUTION_UNIFORM ? BENCH_NOTHING : config->theta);
    cli_json_set_text(object, "options", result->kind ? result->kind->options : NULL);
    cli_json_set_bool(object, "rdwc", config->rdwc);
    cli_json_set_count(object, "clients", result->clients);
    cli_json_set_number(object, "offered_mops", load || !config->rate ? BENCH_NOTHING : (double)config->rate / 1e6);
    set_point(object, config->point);
    set_mix(object, config, result->workload);
    if (config->processes)
        cli_json_set_count(object, "processes", config->processes);
    cli_json_set_count(object, "atomic_bytes", result->capabilities.atomic_bytes);
    cli_json_set_bool(object, "masked_cas", result->capabilities.masked_cas);
    cli_json_set_bool(object, "atomics_in_order", result->capabilities.atomics_in_order);
}


/* Sets the load factor of kinds with slots. The fields are null for other kinds. */
static void set_load(json_t *object, const far_load *load) {
    cli_json_set_number(object, "load_factor", bench_per(load->keys[0] + load->keys[1] + load->keys[2], load->slots));
    if (load->slots)
        set_counts(object, "keys_by_level", load->keys, 3);
    else
        cli_json_set(object, "keys_by_level", json_null());
    cli_json_set(object, "local_bytes", load->slots ? cli_json_count(load->local_bytes) : json_null());
}


static void set_figures(json_t *object, const far_figures *figures) {
    uint64_t wrong = figures->speculated - figures->speculations_correct;
    cli_json_set_number(object, "split_load", bench_per(figures->split_keys, figures->split_slots));
    cli_json_set_number(object, "speculation_hit_ratio", bench_per(figures->speculations_correct, figures->gets));
    cli_json_set_number(object, "speculation_wrong_ratio", bench_per(wrong, figures->speculated));
}


static void set_numbers_of_result(json_t *object, const bench_config *config, const bench_result *result) {
    const far_stats *stats = &result->stats;
    const far_usage *usage = &result->usage;
    uint64_t ops = result->kind ? result->ops : 0; /* a rival has no counters */
    cli_json_set_count(object, "errors", result->errors);
    cli_json_set_number(object, "seconds", (double)result->ns / 1e9);
    cli_json_set_number(object, "mops", bench_mops(result));
    set_latency(object, &result->latency);
    set_histogram(object, &result->latency);
    cli_json_set_number(object, "rtt_per_op", bench_per(stats->round_trips, ops));
    cli_json_set_number(object, "verbs_per_op", bench_per(bench_verbs(stats), ops));
    set_verbs(object, stats, ops);
    cli_json_set_number(object, "read_bytes_per_op", bench_per(stats->bytes_read, ops));
    cli_json_set_number(object, "write_bytes_per_op", bench_per(stats->bytes_written, ops));
    cli_json_set_number(object, "cas_failed_per_op", bench_per(stats->cas_failed, ops));
    cli_json_set_number(object, "retries_per_op", bench_per(stats->retries, ops));
    cli_json_set_number(object, "lock_retries_per_op", bench_per(stats->lock_retries, ops));
    cli_json_set_number(object, "stale_hits_per_op", bench_per(stats->stale_hits, ops));
    cli_json_set_number(object, "background_rtt_per_op", bench_per(stats->background_round_trips, ops));
    cli_json_set_number(object, "unwaited_per_op", bench_per(stats->unwaited_verbs, ops));
    cli_json_set(object, "cache_bytes_used", result->has_cache ? cli_json_count(usage->cache_bytes) : json_null());
    cli_json_set_number(object, "cache_hit_ratio", bench_hit_ratio(result));
    cli_json_set_number(object, "delegated_ratio",
                        config->rdwc ? bench_per(stats->delegated_reads, stats->ops[FAR_OP_GET]) : BENCH_NOTHING);
    cli_json_set_number(object, "combined_ratio",
                        config->rdwc ? bench_per(stats->combined_writes, writes_of(stats)) : BENCH_NOTHING);
    cli_json_set_count(object, "pool_bytes", usage->pool_bytes);
    cli_json_set_number(object, "bytes_per_key", bench_per(usage->pool_bytes, usage->keys));
    cli_json_set_number(object, "index_bytes_per_key", bench_per(usage->pool_index_bytes, usage->keys));
    set_load(object, &result->load);
    set_figures(object, &result->figures);
}


static void set_numbers(json_t *object, const char *name, const double *numbers, unsigned count) {
    json_t *array = cli_json_array();
    for (unsigned i = 0; i < count; i++)
        cli_json_append(array, cli_json_number(isfinite(numbers[i]) ? numbers[i] : 0));
    cli_json_set(object, name, array);
}


/* Sets the numbers of each run, if there were several. */
static void set_spread(json_t *object, const bench_result *result) {
    const bench_spread *spread = &result->spread;
    cli_json_set_count(object, "runs", result->runs);
    set_numbers(object, "mops_runs", spread->mops, result->runs);
    set_numbers(object, "p50_us_runs", spread->p50_us, result->runs);
    set_numbers(object, "p99_us_runs", spread->p99_us, result->runs);
    cli_json_set_number(object, "mops_stddev", bench_deviation(spread->mops, result->runs));
    cli_json_set_number(object, "p99_us_stddev", bench_deviation(spread->p99_us, result->runs));
}


/* Sets the time series. The series of several runs are averaged, because each run began at time 0. */
static void set_series(json_t *object, uint64_t interval, unsigned runs, const bench_series *series) {
    cli_json_set_number(object, "interval_ms", (double)interval / 1e6);
    json_t *moments = cli_json_array();
    for (size_t i = 0; i < series->count; i++) {
        const bench_moment *moment = &series->moments[i];
        json_t *entry = cli_json_object();
        cli_json_set_number(entry, "ms", (double)(i * interval) / 1e6);
        cli_json_set_number(entry, "mops", (double)moment->ops * 1000 / (double)interval / (runs ? runs : 1));
        cli_json_set_number(entry, "mean_us", bench_per(moment->sum_ns, moment->ops) / 1000);
        cli_json_set_number(entry, "max_us", (double)moment->max_ns / 1000);
        cli_json_append(moments, entry);
    }
    cli_json_set(object, "series", moments);
}


static void set_warmth(json_t *object, const bench_config *config, const bench_result *result) {
    if (result->workload == FAR_YCSB_LOAD)
        return;
    cli_json_set_count(object, "warmup_ops", result->warmup_ops);
    if (!config->processes) /* with --processes, each process could determine it only for itself */
        cli_json_set_bool(object, "warm", result->warm);
    cli_json_set_bool(object, "settled", result->settled);
}


static void set_nic(json_t *object, const bench_result *result) {
    const far_sim_model *model = &result->nic;
    json_t *nic = cli_json_object();
    cli_json_set_text(nic, "preset", model->preset);
    cli_json_set_number(nic, "read_mops", model->read_mops);
    cli_json_set_number(nic, "write_mops", model->write_mops);
    cli_json_set_number(nic, "atomic_mops", model->atomic_mops);
    cli_json_set_number(nic, "word_mops", model->word_mops);
    cli_json_set_number(nic, "bandwidth_gbps", model->bandwidth_gbps);
    cli_json_set_number(nic, "rtt_read_us", model->rtt_read_us);
    cli_json_set_number(nic, "rtt_write_us", model->rtt_write_us);
    cli_json_set_number(nic, "rtt_atomic_us", model->rtt_atomic_us);
    cli_json_set_count(nic, "outstanding", model->outstanding);
    cli_json_set_count(nic, "cpu_doorbell_ns", model->cpu_doorbell_ns);
    cli_json_set_count(nic, "cpu_verb_ns", model->cpu_verb_ns);
    cli_json_set_count(nic, "cpu_completion_ns", model->cpu_completion_ns);
    cli_json_set_bool(object, "virtual", true);
    cli_json_set(object, "nic", nic);
    if (result->ideal_mops > 0)
        cli_json_set_number(object, "ideal_mops", result->ideal_mops);
}


static void set_notes(json_t *object, const bench_config *config, const bench_result *result) {
    char note[BENCH_NOTE_BYTES];
    json_t *notes = cli_json_array();
    for (unsigned i = 0; i < BENCH_NOTES; i++)
        if (bench_note_on(i, config, result, note))
            cli_json_append(notes, cli_json_text(note));
    cli_json_set(object, "notes", notes);
}


/* Sets a field whose name begins with the name of the other store, for example "lmdb_ratio". */
static void set_rival_number(json_t *object, const bench_rival *rival, const char *what, double value) {
    char name[48];
    snprintf(name, sizeof(name), "%s_%s", rival->name, what);
    cli_json_set_number(object, name, value);
}


static void set_extras(json_t *object, const bench_report *report, const bench_result *result) {
    const bench_config *config = report->config;
    if (config->processes)
        cli_json_set_number(object, "cpu_us_per_op", bench_per(result->cpu_ns, result->ops) / 1000);
    if (config->against) {
        set_rival_number(object, config->against, "ratio", bench_rival_ratio(report, result));
        set_rival_number(object, config->against, "p50_ratio", bench_rival_p50_ratio(report, result));
    }
    if (result->instructions)
        cli_json_set_number(object, "instructions_per_op", bench_per(result->instructions, result->ops));
    if (result->runs > 1)
        set_spread(object, result);
    if (config->interval)
        set_series(object, config->interval, result->runs, &result->series);
    if (config->sim)
        set_nic(object, result);
}


void bench_json_result(bench_report *report, const bench_result *result) {
    const bench_config *config = report->config;
    json_t *object = cli_json_object();
    set_experiment(object, config, result);
    set_numbers_of_result(object, config, result);
    set_nodes(object, result);
    set_warmth(object, config, result);
    set_extras(object, report, result);
    set_by_op(object, result);
    set_notes(object, config, result);
    bench_set_host(object);
    cli_json_list_add(&report->json_list, object);
    fflush(report->json);
}
