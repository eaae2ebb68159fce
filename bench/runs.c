/* `farindex bench --runs` runs every kind several times and adds up the results. */
#include "bench/bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct run_sums { /* the results of all runs of one kind, added up by workload */
    bench_result *sums[BENCH_WORKLOADS_MAX + 1];
    unsigned count; /* number of workloads */
    unsigned next;  /* position of the next workload in the current run */
    bool no_memory;
} run_sums;


static void keep_spread(bench_result *sum, const bench_result *one) {
    unsigned run = sum->runs++;
    sum->spread.mops[run] = bench_mops(one);
    sum->spread.p50_us[run] = bench_quantile_us(&one->latency, 1, 2);
    sum->spread.p99_us[run] = bench_quantile_us(&one->latency, 99, 100);
}


static void add_up(bench_result *sum, const bench_result *one) {
    sum->ops += one->ops;
    sum->errors += one->errors;
    sum->ns += one->ns;
    sum->warmup_ops += one->warmup_ops;
    sum->warm &= one->warm;
    sum->settled &= one->settled;
    sum->instructions += one->instructions;
    bench_add_stats(&sum->stats, &one->stats);
    bench_add_figures(&sum->figures, &one->figures, true);
    far_histogram_merge(&sum->latency, &one->latency);
    bench_series_merge(&sum->series, &one->series);
    for (unsigned kind = 0; kind < BENCH_OPS; kind++) {
        bench_add_stats(&sum->by_op[kind], &one->by_op[kind]);
        far_histogram_merge(&sum->latency_of[kind], &one->latency_of[kind]);
        sum->instructions_of[kind] += one->instructions_of[kind];
    }
    for (unsigned node = 0; node < one->nodes; node++) {
        sum->node_verbs[node] += one->node_verbs[node];
        sum->node_bytes[node] += one->node_bytes[node];
    }
    sum->usage = one->usage;
    sum->load = one->load;
}


/* Adds a result to the sum of its workload. Each run reports its workloads in the same order. */
static void add_result(void *ctx, const bench_result *result) {
    run_sums *c = ctx;
    bench_result **sum = &c->sums[c->next++];
    if (!*sum && (*sum = malloc(sizeof(**sum)))) {
        **sum = *result;
        (*sum)->series = (bench_series){0};
        bench_series_merge(&(*sum)->series, &result->series);
        c->count = c->next;
    } else if (*sum) {
        add_up(*sum, result);
    }
    c->no_memory |= !*sum;
    if (*sum)
        keep_spread(*sum, result);
}


static void free_results(run_sums *c) {
    for (unsigned i = 0; i < c->count; i++) {
        bench_series_free(&c->sums[i]->series);
        free(c->sums[i]);
    }
}


static int run_kind(const bench_config *config, const bench_kind *kind, bench_report *report, uint64_t *errors) {
    run_sums c = {0};
    int err = 0;
    if (config->runs == 1)
        return bench_run_kind(config, kind, bench_report_result, report, errors);
    for (uint64_t run = 0; run < config->runs && !err; run++) {
        bench_config one = *config;
        one.run = run;
        c.next = 0;
        err = bench_run_kind(&one, kind, add_result, &c, errors);
        if (!err && c.no_memory)
            err = cli_failed("no memory for the results of %u runs", (unsigned)config->runs);
    }
    for (unsigned i = 0; i < c.count; i++)
        bench_report_result(report, c.sums[i]);
    free_results(&c);
    return err;
}


int bench_runs(const bench_config *config, bench_report *report, uint64_t *errors) {
    int err = 0;
    for (unsigned i = 0; i < config->kind_count && !err; i++)
        err = run_kind(config, &config->kinds[i], report, errors);
    return err;
}
