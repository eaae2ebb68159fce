/* One kind under load: compute nodes and clients, the load, the workloads, and what they counted. */
#include "cli/bench_client.h"
#include "client/op.h"
#include "fabric/sim/sim.h"
#include "pool/handle.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct counters {
    far_stats all, of[BENCH_OPS];
    far_figures figures;
} counters;


static int refused(const char *what) {
    return cli_failed("%s: %s", what, far_last_error());
}


/* Opening and closing. */

static int open_node(bench_run *run, unsigned number) {
    const bench_config *config = run->config;
    bench_node *node = &run->nodes[number];
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    options.cache_bytes = config->cache;
    options.rdwc = config->rdwc;
    if (far_pool_open(config->uri, &options, &node->pool) < 0 || far_session_open(node->pool, &node->session) < 0)
        return cli_failed("%s", far_last_error());
    if (number == 0 && config->sim)
        far_sim_limit(far_sim_world_of(node->pool->fabric), 0);
    int err = number == 0
                  ? far_index_create(node->session, run->name, run->kind->kind->name, run->kind->options, &node->index)
                  : far_index_open(node->session, run->name, &node->index);
    if (err == FAR_ERR_EXISTS)
        return cli_failed(BENCH_LEFTOVER, run->name, run->name);
    if (err < 0)
        return refused(run->name);
    run->created |= number == 0;
    return 0;
}


static int open_run(bench_run *run) {
    const bench_config *config = run->config;
    run->client_count = bench_clients(config);
    run->nodes = calloc(config->compute_nodes, sizeof(*run->nodes));
    run->clients = calloc(run->client_count, sizeof(*run->clients));
    run->records = malloc(sizeof(*run->records));
    if (!run->nodes || !run->clients || !run->records)
        return cli_failed("no memory for %u clients", run->client_count);
    far_records_init(run->records, 0, far_keyset_count_limit(config->keys));
    for (unsigned i = 0; i < config->compute_nodes; i++) {
        int err = open_node(run, i);
        if (err)
            return err;
    }
    for (unsigned i = 0; i < run->client_count; i++) {
        bench_client *client = &run->clients[i];
        client->run = run;
        client->number = i;
        client->engine = &bench_far_engine;
        client->depth = config->depth;
        client->node = &run->nodes[i / config->threads];
        client->host = client->node->pool->fabric->host;
        if (far_session_open(client->node->pool, &client->session) < 0)
            return refused("session");
        if (!bench_client_prepare(client))
            return cli_failed("no memory for %u clients with %" PRIu64 " operations in flight", run->client_count,
                              config->depth);
    }
    return 0;
}


static int close_run(bench_run *run) {
    int status = 0;
    for (unsigned i = 0; run->clients && i < run->client_count; i++) {
        far_session_close(run->clients[i].session);
        bench_client_release(&run->clients[i]);
    }
    for (unsigned i = 0; run->nodes && i < run->config->compute_nodes; i++)
        far_index_close(run->nodes[i].index);
    if (run->created && !run->config->keep && far_index_drop(run->nodes[0].session, run->name) < 0)
        status = refused(run->name);
    for (unsigned i = 0; run->nodes && i < run->config->compute_nodes; i++) {
        far_session_close(run->nodes[i].session);
        far_pool_close(run->nodes[i].pool);
    }
    free(run->nodes);
    free(run->clients);
    free(run->records);
    return status;
}


/* A phase: every client does its share of the operations. */

static void *thread_main(void *arg) {
    bench_client_work(arg);
    return NULL;
}


static int run_threads(bench_run *run) {
    unsigned started = 0;
    for (; started < run->client_count; started++)
        if (pthread_create(&run->clients[started].thread, NULL, thread_main, &run->clients[started]) != 0)
            break;
    for (unsigned i = 0; i < started; i++)
        pthread_join(run->clients[i].thread, NULL);
    return started == run->client_count
               ? 0
               : cli_failed("only %u of %u threads could be started", started, run->client_count);
}


static int run_simulated(bench_run *run) {
    for (unsigned i = 0; i < run->client_count; i++)
        if (!far_sim_start(run->clients[i].node->pool->fabric, "bench", bench_client_work, &run->clients[i]))
            return cli_failed("no memory for %u simulated clients", run->client_count);
    far_sim_result result = far_sim_run(far_sim_world_of(run->nodes[0].pool->fabric));
    return result == FAR_SIM_ENDED ? 0
                                   : cli_failed("the simulated clients did not end: %s", far_sim_result_name(result));
}


static int run_phase(bench_run *run, uint64_t ops, uint64_t time_limit, bool measured) {
    for (unsigned i = 0; i < run->client_count; i++) {
        bench_client *client = &run->clients[i];
        client->budget = ops / run->client_count + (i < ops % run->client_count);
        client->time_limit = time_limit;
        client->measured = measured;
    }
    int err = run->config->sim ? run_simulated(run) : run_threads(run);
    if (err || !cli_interrupted())
        return err;
    return cli_output_is_closed() ? CLI_FAILED : cli_failed("interrupted");
}


void bench_add_stats(far_stats *sum, const far_stats *more) {
    _Static_assert(sizeof(far_stats) % sizeof(uint64_t) == 0, "all counters are words");
    uint64_t *to = (uint64_t *)sum;
    const uint64_t *from = (const uint64_t *)more;
    for (size_t i = 0; i < sizeof(*sum) / sizeof(*to); i++)
        to[i] += from[i];
}


static void add_figures(far_figures *sum, const far_figures *more, bool plus) {
    _Static_assert(sizeof(far_figures) % sizeof(uint64_t) == 0, "all figures are words");
    uint64_t *to = (uint64_t *)sum;
    const uint64_t *from = (const uint64_t *)more;
    for (size_t i = 0; i < sizeof(*sum) / sizeof(*to); i++)
        to[i] = plus ? to[i] + from[i] : to[i] - from[i];
}


static void take_counters(const bench_run *run, counters *sum) {
    memset(sum, 0, sizeof(*sum));
    for (unsigned i = 0; i < run->client_count; i++) {
        far_stats stats;
        far_session_stats(run->clients[i].session, &stats);
        bench_add_stats(&sum->all, &stats);
        for (unsigned kind = 0; kind < BENCH_OPS; kind++)
            if (far_session_stats_of(run->clients[i].session, (far_op_kind)kind, &stats) == 0)
                bench_add_stats(&sum->of[kind], &stats);
    }
    for (unsigned i = 0; i < run->config->compute_nodes; i++) {
        far_index *index = run->nodes[i].index;
        far_figures figures = {0};
        if (index->kind->figures)
            index->kind->figures(index, &figures);
        add_figures(&sum->figures, &figures, true);
    }
}


/* Results. */

static void gather_clients(bench_run *run, bench_result *result) {
    uint64_t begin = UINT64_MAX, end = 0;
    for (unsigned i = 0; i < run->client_count; i++) {
        bench_client *client = &run->clients[i];
        begin = client->begin < begin ? client->begin : begin;
        end = client->end > end ? client->end : end;
        result->ops += client->done;
        result->errors += client->errors;
        run->broken |= client->broken;
        far_histogram_merge(&result->latency, &client->latency);
        for (unsigned kind = 0; kind < BENCH_OPS; kind++)
            far_histogram_merge(&result->latency_of[kind], &client->latency_of[kind]);
        if (client->errors && !run->error_told) {
            run->error_told = true;
            cli_failed("%s, workload %s: %s", run->label, far_ycsb_name(result->workload), client->first_error);
        }
    }
    result->ns = end > begin ? end - begin : 0;
}


/* The walk over the whole index also proves that no key was lost and none came from nowhere. */
static int gather_usage(bench_run *run, bench_result *result) {
    uint64_t cache = 0;
    if (far_index_usage(run->nodes[0].session, run->nodes[0].index, &result->usage) < 0)
        return refused("usage");
    int err = far_index_load(run->nodes[0].session, run->nodes[0].index, &result->load);
    if (err < 0 && err != FAR_ERR_UNSUPPORTED)
        return refused("load factor");
    for (unsigned i = 0; i < run->config->compute_nodes; i++) {
        far_index *index = run->nodes[i].index;
        if (index->kind->cache_bytes) {
            result->has_cache = true;
            cache += index->kind->cache_bytes(index);
        }
    }
    result->usage.cache_bytes = cache / run->config->compute_nodes;
    uint64_t expected = far_records_count(run->records);
    if (run->errors + result->errors == 0 && result->usage.keys != expected) {
        result->errors++;
        cli_failed("%s, workload %s: the index has %" PRIu64 " keys, %" PRIu64 " were inserted", run->label,
                   far_ycsb_name(result->workload), result->usage.keys, expected);
    }
    return 0;
}


static int start_workload(bench_run *run, far_ycsb_workload workload, uint64_t ops) {
    const bench_config *config = run->config;
    far_ycsb_config ycsb = {.workload = workload,
                            .records = config->records,
                            .ops = ops,
                            .distribution = bench_distribution(config, workload),
                            .theta = config->theta,
                            .seed = config->seed};
    char error[160];
    if (far_ycsb_init(&run->ycsb, &ycsb, run->records, error, sizeof(error)) < 0)
        return cli_failed("%s", error);
    for (unsigned i = 0; i < run->client_count; i++) {
        bench_client *client = &run->clients[i];
        far_ycsb_stream_init(&client->stream, &run->ycsb, i);
        bench_client_clear(client);
    }
    return 0;
}


static int measure(bench_run *run, far_ycsb_workload workload, bench_result *result) {
    const bench_config *config = run->config;
    bool load = workload == FAR_YCSB_LOAD;
    uint64_t ops = load ? config->records : bench_ops(config, run->kind->kind, workload);
    uint64_t warmup = load ? 0 : config->warmup == UINT64_MAX ? ops / 10 : config->warmup;
    uint64_t limit = load ? 0 : config->time_limit;
    counters before, after;
    run->phase = far_ycsb_name(workload);
    int err = start_workload(run, workload, ops + warmup);
    if (!err && warmup)
        err = run_phase(run, warmup, limit / 10, false);
    if (err)
        return err;
    take_counters(run, &before);
    err = run_phase(run, ops, limit, true);
    if (err)
        return err;
    take_counters(run, &after);
    result->name = run->label;
    result->kind = run->kind;
    result->workload = workload;
    result->stats = far_stats_diff(&after.all, &before.all);
    result->figures = after.figures;
    add_figures(&result->figures, &before.figures, false);
    for (unsigned kind = 0; kind < BENCH_OPS; kind++)
        result->by_op[kind] = far_stats_diff(&after.of[kind], &before.of[kind]);
    result->capabilities = run->nodes[0].pool->geometry.capabilities;
    gather_clients(run, result);
    return run->broken ? 0 : gather_usage(run, result);
}


static int run_workload(bench_run *run, far_ycsb_workload workload, bool shown, bench_result *result) {
    memset(result, 0, sizeof(*result));
    int err = measure(run, workload, result);
    if (err)
        return err;
    run->errors += result->errors;
    if (shown && run->config->sim) {
        far_sim_model_of(far_sim_world_of(run->nodes[0].pool->fabric), &result->nic);
        result->ideal_mops = bench_ideal_mops(run->config, workload);
        if (result->ideal_mops < 0)
            return CLI_FAILED;
    }
    cli_progress_end();
    if (shown)
        run->each(run->each_ctx, result);
    return run->broken ? CLI_FAILED : 0; /* the first error was told */
}


static int run_workloads(bench_run *run) {
    const bench_config *config = run->config;
    bench_result *result = malloc(sizeof(*result));
    if (!result)
        return cli_failed("no memory for a result");
    bool show_load = false;
    for (unsigned i = 0; i < config->workload_count; i++)
        show_load |= config->workloads[i] == FAR_YCSB_LOAD;
    int err = run_workload(run, FAR_YCSB_LOAD, show_load, result);
    for (unsigned i = 0; i < config->workload_count && !err; i++) {
        far_ycsb_workload workload = config->workloads[i];
        if (workload == FAR_YCSB_LOAD)
            continue;
        if (workload == FAR_YCSB_E && !run->kind->kind->scan) {
            cli_progress_end();
            fprintf(stderr, "farindex: %s has no scans: workload e is left out\n", run->kind->kind->name);
            continue;
        }
        err = run_workload(run, workload, true, result);
    }
    free(result);
    return err;
}


int bench_run_kind(const bench_config *config, const bench_kind *kind,
                   void (*each)(void *ctx, const bench_result *result), void *ctx, uint64_t *errors) {
    bench_run run = {.config = config, .kind = kind, .label = kind->kind->name, .each = each, .each_ctx = ctx};
    snprintf(run.name, sizeof(run.name), "bench-%s", kind->kind->name);
    int err = open_run(&run);
    if (!err)
        err = run_workloads(&run);
    int closing = close_run(&run);
    *errors += run.errors;
    return err ? err : closing;
}
