/* Runs one kind of index with threads or simulated tasks (bench_run_kind). It opens compute nodes and
 * clients, loads the index, runs the workloads, and collects the counters of each. */
#include "bench/client.h"
#include "client/op.h"
#include "client/snapshot.h"
#include "fabric/sim/sim.h"
#include "pool/handle.h"
#include "tools/farindex/data.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WARM_PARTS 16 /* the first part of a warm-up is 1 / WARM_PARTS of the whole */
#define QUIET_TICKS                                                                                                    \
    20 /* length of an interval in ticks of housekeeping; an idle handle posts at most one verb in each */
/* largest number of intervals to wait; then measuring begins although background work has not ended */
#define QUIET_INTERVALS_MAX 500

typedef struct counters {
    far_stats all, of[BENCH_OPS];
    far_figures figures;
} counters;


static int report_failure(const char *what) {
    return cli_failed("%s: %s", what, far_last_error());
}


/* ---- Opening and closing ---- */

int bench_open_pool(const bench_config *config, far_pool **pool) {
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    options.cache_bytes = config->cache;
    options.rdwc = config->rdwc ? 1 : -1;
    return cli_pool_open_or_create(config->uri, &options, true, !config->own_pool, pool);
}


void bench_index_name(const bench_config *config, const far_index_kind *kind, char name[BENCH_INDEX_NAME]) {
    snprintf(name, BENCH_INDEX_NAME, "bench-%s%s", kind->name, config->keep ? "" : "-temporary");
}


/* Returns whether a live client other than this one has the index open, as the status records of the clients state. An
 * index of that name may belong to a benchmark that runs, and a drop would not stop at that. */
static bool index_is_in_use(far_session *session, const char *name) {
    far_snapshot snapshot;
    const far_snapshot_index_info *index =
        far_snapshot_take(session, &snapshot) < 0 ? NULL : far_snapshot_index_by_name(&snapshot, name);
    bool used = false;
    for (size_t i = 0; index && i < snapshot.handle_count; i++) {
        const far_snapshot_handle_info *handle = &snapshot.handles[i];
        for (uint64_t k = 0; !handle->own && k < handle->bulletin.open_count; k++)
            used |= handle->bulletin.open[k] == index->uid;
    }
    far_snapshot_free(&snapshot);
    return used;
}


int bench_create_index(const bench_config *config, far_session *session, const char *name, const bench_kind *kind,
                       far_index **index) {
    int err = far_index_create(session, name, kind->kind->name, kind->options, index);
    if (err != FAR_ERR_EXISTS || config->keep || index_is_in_use(session, name) || far_index_drop(session, name) < 0)
        return err;
    cli_note("removed the index '%s' of a benchmark that was killed", name);
    return far_index_create(session, name, kind->kind->name, kind->options, index);
}


static int open_node(bench_run *run, unsigned number) {
    const bench_config *config = run->config;
    bench_node *node = &run->nodes[number];
    if (bench_open_pool(config, &node->pool) < 0 || far_session_open(node->pool, &node->session) < 0)
        return cli_failed("%s", far_last_error());
    if (number == 0 && config->sim)
        far_sim_limit(far_sim_world_of(node->pool->fabric), 0);
    int err = number == 0 ? bench_create_index(config, node->session, run->name, run->kind, &node->index)
                          : far_index_open(node->session, run->name, &node->index);
    if (err == FAR_ERR_EXISTS)
        return cli_failed(BENCH_LEFTOVER, run->name, run->name);
    if (err < 0)
        return report_failure(run->name);
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
            return report_failure("session");
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
        status = report_failure(run->name);
    for (unsigned i = 0; run->nodes && i < run->config->compute_nodes; i++) {
        far_session_close(run->nodes[i].session);
        far_pool_close(run->nodes[i].pool);
    }
    free(run->nodes);
    free(run->clients);
    free(run->records);
    return status;
}


/* ---- A phase: each client runs its share of the operations ---- */

static void *thread_main(void *arg) {
    bench_client_work(arg);
    return NULL;
}


/* Returns a client that takes part in the phase. The clients of a phase are spread over the compute nodes. */
static bench_client *active_client(bench_run *run, unsigned number) {
    return &run->clients[(uint64_t)number * run->client_count / run->active];
}


static int run_threads(bench_run *run) {
    unsigned started = 0;
    for (; started < run->active; started++) {
        bench_client *client = active_client(run, started);
        if (pthread_create(&client->thread, NULL, thread_main, client) != 0)
            break;
    }
    for (unsigned i = 0; i < started; i++)
        pthread_join(active_client(run, i)->thread, NULL);
    return started == run->active ? 0 : cli_failed("only %u of %u threads could be started", started, run->active);
}


static int run_simulated(bench_run *run) {
    for (unsigned i = 0; i < run->active; i++) {
        bench_client *client = active_client(run, i);
        if (!far_sim_start(client->node->pool->fabric, "bench", bench_client_work, client))
            return cli_failed("no memory for %u simulated clients", run->client_count);
    }
    far_sim_result result = far_sim_run(far_sim_world_of(run->nodes[0].pool->fabric));
    return result == FAR_SIM_ENDED ? 0
                                   : cli_failed("the simulated clients did not end: %s", far_sim_result_name(result));
}


typedef struct phase {
    uint64_t ops; /* operations over all clients; UINT64_MAX if the time ends the phase */
    uint64_t time_limit;
    uint64_t rate;
    bool measured;
} phase;


static uint64_t share_of_client(uint64_t ops, unsigned number, unsigned count) {
    return ops == UINT64_MAX ? ops : ops / count + (number < ops % count);
}


static int run_phase(bench_run *run, phase phase) {
    for (unsigned i = 0; i < run->active; i++) {
        bench_client *client = active_client(run, i);
        client->budget = share_of_client(phase.ops, i, run->active);
        client->time_limit = phase.time_limit;
        client->gap = phase.rate ? run->active * 1000000000ull / phase.rate : 0;
        client->measured = phase.measured;
    }
    int err = run->config->sim ? run_simulated(run) : run_threads(run);
    if (err || !cli_interrupted())
        return err;
    return cli_output_is_closed() ? CLI_FAILED : cli_failed("interrupted");
}


/* Sums the verbs of all clients, and of the background work of all compute nodes. */
static uint64_t verbs_so_far(const bench_run *run) {
    far_stats stats;
    uint64_t sum = 0;
    for (unsigned i = 0; i < run->client_count; i++) {
        far_session_stats(run->clients[i].session, &stats);
        sum += bench_verbs(&stats);
    }
    for (unsigned i = 0; i < run->config->compute_nodes; i++) {
        far_session_stats(run->nodes[i].pool->team.own, &stats);
        sum += bench_verbs(&stats);
    }
    return sum;
}


/* Waits after the load until its background work (growth, splits, upkeep) is done, so that the next measurement does
 * not depend on how the index was loaded. Background work counts as done when the verbs of an interval are few enough
 * for idle handles, which post one or two verbs from time to time. */
static void wait_for_background_work(bench_run *run) {
    far_fabric *fabric = run->nodes[0].pool->fabric;
    uint64_t tick = far_tick(fabric), before = verbs_so_far(run), quiet = QUIET_TICKS * run->config->compute_nodes;
    for (unsigned turn = 0; turn < QUIET_INTERVALS_MAX && !run->settled && !cli_interrupted(); turn++) {
        if (run->config->sim)
            far_sim_sleep(far_sim_world_of(fabric), QUIET_TICKS * tick);
        else
            nanosleep(&(struct timespec){.tv_nsec = (long)(QUIET_TICKS * tick)}, NULL);
        uint64_t after = verbs_so_far(run);
        run->settled = after - before <= quiet;
        before = after;
    }
}


void bench_add_stats(far_stats *sum, const far_stats *more) {
    _Static_assert(sizeof(far_stats) % sizeof(uint64_t) == 0, "all counters are words");
    uint64_t *to = (uint64_t *)sum;
    const uint64_t *from = (const uint64_t *)more;
    for (size_t i = 0; i < sizeof(*sum) / sizeof(*to); i++)
        to[i] += from[i];
}


void bench_add_figures(far_figures *sum, const far_figures *more, bool plus) {
    _Static_assert(sizeof(far_figures) % sizeof(uint64_t) == 0, "all figures are words");
    uint64_t *to = (uint64_t *)sum;
    const uint64_t *from = (const uint64_t *)more;
    for (size_t i = 0; i < sizeof(*sum) / sizeof(*to); i++)
        to[i] = plus ? to[i] + from[i] : to[i] - from[i];
}


static void read_counters(const bench_run *run, counters *sum) {
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
        bench_add_figures(&sum->figures, &figures, true);
    }
}


/* ---- Results ---- */

static void gather_clients(bench_run *run, bench_result *result) {
    uint64_t begin = UINT64_MAX, end = 0;
    for (unsigned i = 0; i < run->active; i++) {
        bench_client *client = active_client(run, i);
        begin = client->begin < begin ? client->begin : begin;
        end = client->end > end ? client->end : end;
        result->ops += client->done;
        result->instructions += client->instructions;
        bench_series_merge(&result->series, &client->series);
        result->errors += client->errors;
        run->broken |= client->broken;
        far_histogram_merge(&result->latency, &client->latency);
        for (unsigned kind = 0; kind < BENCH_OPS; kind++) {
            far_histogram_merge(&result->latency_of[kind], &client->latency_of[kind]);
            result->instructions_of[kind] += client->instructions_of[kind];
        }
        if (client->errors && !run->error_told) {
            run->error_told = true;
            cli_failed("%s, workload %s: %s", run->label, far_ycsb_name(result->workload), client->first_error);
        }
    }
    result->ns = end > begin ? end - begin : 0;
}


/* Collects the memory usage. The traversal of the index also checks that the number of keys is right. */
static int gather_usage(bench_run *run, bench_result *result) {
    uint64_t cache = 0;
    if (far_index_usage(run->nodes[0].session, run->nodes[0].index, &result->usage) < 0)
        return report_failure("usage");
    int err = far_index_load(run->nodes[0].session, run->nodes[0].index, &result->load);
    if (err < 0 && err != FAR_ERR_UNSUPPORTED)
        return report_failure("load factor");
    for (unsigned i = 0; i < run->config->compute_nodes; i++) {
        far_index *index = run->nodes[i].index;
        if (index->kind->cache_bytes) {
            result->has_cache = true;
            cache += index->kind->cache_bytes(index);
        }
    }
    result->usage.cache_bytes = cache / run->config->compute_nodes;
    uint64_t expected = far_records_count(run->records) - far_records_gone(run->records);
    if (run->errors + result->errors == 0 && result->usage.keys != expected) {
        result->errors++;
        cli_failed("%s, workload %s: the index has %" PRIu64 " keys, but %" PRIu64 " must exist", run->label,
                   far_ycsb_name(result->workload), result->usage.keys, expected);
    }
    return 0;
}


static int start_workload(bench_run *run, far_ycsb_workload workload, uint64_t ops) {
    far_ycsb_config ycsb = bench_ycsb(run->config, workload, ops);
    char error[160];
    if (far_ycsb_init(&run->ycsb, &ycsb, run->records, error, sizeof(error)) < 0)
        return cli_failed("%s", error);
    for (unsigned i = 0; i < run->client_count; i++) {
        bench_client *client = &run->clients[i];
        far_ycsb_stream_init(&client->stream, &run->ycsb, i);
        far_random_seed(&client->arrivals, ycsb.seed << 16 ^ i);
        bench_client_clear(client);
    }
    return 0;
}


/* ---- Warming up ---- */

static uint64_t count_ops(const counters *before, const counters *after) {
    uint64_t ops = 0;
    for (unsigned kind = 0; kind < BENCH_OPS; kind++)
        ops += after->all.ops[kind] - before->all.ops[kind];
    return ops;
}


static double trips_per_op(const counters *before, const counters *after) {
    uint64_t ops = count_ops(before, after);
    return ops ? (double)(after->all.round_trips - before->all.round_trips) / (double)ops : 0;
}


/* True if two costs differ by at most one percent plus the random variation of that number of operations. */
static bool costs_are_steady(double before, double now, uint64_t ops) {
    return fabs(now - before) <= now * 0.01 + 1 / sqrt((double)ops);
}


/* True if the hit ratios in two parts of the run differ by at most one percentage point plus three standard deviations
 * of the random variation. A part without lookups says nothing. */
static bool ratios_are_equal(const bench_lookups *one, const bench_lookups *other) {
    if (one->count == 0 || other->count == 0)
        return true;
    double n = (double)one->count, m = (double)other->count, both = (double)(one->hits + other->hits) / (n + m);
    double change = fabs((double)one->hits / n - (double)other->hits / m);
    return change <= 0.01 + 3 * sqrt(both * (1 - both) * (1 / n + 1 / m));
}


/* Returns the lookups by the clients of the compute node since the last call. */
static bench_lookups next_lookups(const bench_run *run, bench_node *node) {
    far_stats sum = {0}, stats;
    for (unsigned i = 0; i < run->client_count; i++)
        if (run->clients[i].node == node) {
            far_session_stats(run->clients[i].session, &stats);
            bench_add_stats(&sum, &stats);
        }
    far_stats part = far_stats_diff(&sum, &node->seen);
    node->seen = sum;
    return (bench_lookups){part.cache_hits + part.cache_misses, part.cache_hits};
}


/* Ends a part of the run. Returns whether the caches of each compute node had the same hit ratio in this part as in the
 * previous one, and have grown by at most one percent plus the growth of the index. The mean over all compute nodes
 * would hide that some caches are still filling. A cache that fills slowly shows it by its size, because the random
 * variation of the hit ratio is larger than its rise. */
static bool caches_are_steady(bench_run *run) {
    uint64_t records = far_records_count(run->records);
    double growth = 1.01 * (double)records / (double)(run->part_records ? run->part_records : records);
    bool steady = true;
    for (unsigned i = 0; i < run->config->compute_nodes; i++) {
        bench_node *node = &run->nodes[i];
        bench_lookups lookups = next_lookups(run, node);
        size_t bytes = node->index->kind->cache_bytes ? node->index->kind->cache_bytes(node->index) : 0;
        steady &= ratios_are_equal(&node->lookups, &lookups) && (double)bytes <= growth * (double)node->cache_bytes;
        node->lookups = lookups;
        node->cache_bytes = bytes;
    }
    run->part_records = records;
    return steady;
}


/* Warms up in parts until two consecutive parts cost the same number of round trips per operation, and the
 * caches of each compute node were steady. Each part is twice as long as the previous one. Caches fill more and more slowly, so parts
 * of equal length would soon look the same. */
static int warm_up_until_steady(bench_run *run, uint64_t ops, uint64_t limit, bench_result *result, double *trips) {
    bool timed = run->config->duration && !run->config->ops;
    counters before, after;
    *trips = INFINITY;
    caches_are_steady(run);
    read_counters(run, &before);
    for (uint64_t parts = WARM_PARTS; parts > 0 && !result->warm; parts /= 2) {
        uint64_t part = ops / parts + 1;
        int err = run_phase(run, (phase){.ops = timed ? UINT64_MAX : part, .time_limit = limit / parts});
        if (err)
            return err;
        read_counters(run, &after);
        double last = *trips;
        *trips = trips_per_op(&before, &after);
        bool caches_steady = caches_are_steady(run);
        result->warm = isfinite(last) && costs_are_steady(last, *trips, part / 2) && caches_steady;
        result->warmup_ops += count_ops(&before, &after);
        before = after;
    }
    return 0;
}


static int warm_up_given_operations(bench_run *run, uint64_t ops, bench_result *result, double *trips) {
    counters before, after;
    caches_are_steady(run);
    read_counters(run, &before);
    int err = ops ? run_phase(run, (phase){.ops = ops}) : 0;
    read_counters(run, &after);
    caches_are_steady(run);
    result->warmup_ops = ops;
    *trips = trips_per_op(&before, &after);
    return err;
}


/* Counts a verb for its memory node; called by the simulator. */
static void count_verb(void *ctx, const far_sim_posted *posted) {
    bench_run *run = ctx;
    unsigned node = far_addr_node(posted->verb->addr);
    run->node_verbs[node]++;
    run->node_bytes[node] += posted->verb->length;
}


static void count_by_node(bench_run *run, bool on) {
    if (!run->config->sim)
        return;
    memset(run->node_verbs, 0, sizeof(run->node_verbs));
    memset(run->node_bytes, 0, sizeof(run->node_bytes));
    far_sim_on_verb(far_sim_world_of(run->nodes[0].pool->fabric), on ? count_verb : NULL, run);
}


static void gather_by_node(bench_run *run, bench_result *result) {
    result->nodes = run->config->sim ? run->nodes[0].pool->fabric->nodes : 0;
    memcpy(result->node_verbs, run->node_verbs, sizeof(result->node_verbs));
    memcpy(result->node_bytes, run->node_bytes, sizeof(result->node_bytes));
    count_by_node(run, false);
}


/* Runs the measured phase. */
static int run_measured_phase(bench_run *run, far_ycsb_workload workload, uint64_t ops, uint64_t limit,
                              bench_result *result) {
    const bench_config *config = run->config;
    bool load = workload == FAR_YCSB_LOAD, timed = !load && config->duration && !config->ops;
    counters before, after;
    read_counters(run, &before);
    count_by_node(run, true);
    int err = run_phase(run, (phase){.ops = timed ? UINT64_MAX : ops,
                                     .time_limit = limit,
                                     .rate = load ? 0 : config->rate,
                                     .measured = true});
    if (err)
        return err;
    gather_by_node(run, result);
    read_counters(run, &after);
    result->stats = far_stats_diff(&after.all, &before.all);
    result->figures = after.figures;
    bench_add_figures(&result->figures, &before.figures, false);
    for (unsigned kind = 0; kind < BENCH_OPS; kind++)
        result->by_op[kind] = far_stats_diff(&after.of[kind], &before.of[kind]);
    gather_clients(run, result);
    return 0;
}


static int warm_up_and_measure(bench_run *run, far_ycsb_workload workload, bench_result *result) {
    const bench_config *config = run->config;
    bool load = workload == FAR_YCSB_LOAD, by_itself = config->warmup == UINT64_MAX;
    uint64_t ops = load ? config->records : bench_ops(config, run->kind->kind, workload);
    uint64_t limit = load ? 0 : config->time_limit;
    double trips = 0;
    run->phase = far_ycsb_name(workload);
    run->active = load && config->load_clients ? (unsigned)config->load_clients : run->client_count;
    result->name = run->label;
    result->kind = run->kind;
    result->workload = workload;
    result->clients = run->active;
    result->capabilities = run->nodes[0].pool->geometry.capabilities;
    int err = start_workload(run, workload, by_itself ? ops * 2 : ops + config->warmup);
    if (!err && !load)
        err = by_itself ? warm_up_until_steady(run, ops, config->duration ? limit : limit / 4, result, &trips)
                        : warm_up_given_operations(run, config->warmup, result, &trips);
    if (!err)
        err = run_measured_phase(run, workload, ops, limit, result);
    if (err)
        return err;
    if (load)
        wait_for_background_work(run);
    else /* the workload counts as warm only if the measured phase had the same costs as the end of the warm-up */
        result->warm = (result->warm || !by_itself) && caches_are_steady(run) &&
                       costs_are_steady(trips, bench_per(result->stats.round_trips, result->ops), result->ops / 4);
    result->settled = run->settled;
    return run->broken ? 0 : gather_usage(run, result);
}


/* Returns the throughput of an ideal index. All kinds and runs of a point have the same one, so it is measured once. */
static double ideal_mops_once(const bench_config *config, far_ycsb_workload workload) {
    double *known = &config->ideal_mops[workload];
    if (*known == 0)
        *known = bench_ideal_mops(config, workload);
    return *known;
}


/* Collects the numbers that only the simulator can provide. */
static int gather_nic(bench_run *run, far_ycsb_workload workload, bench_result *result) {
    far_sim_model_of(far_sim_world_of(run->nodes[0].pool->fabric), &result->nic);
    if (run->config->ideal)
        result->ideal_mops = ideal_mops_once(run->config, workload);
    return result->ideal_mops < 0 ? CLI_FAILED : 0;
}


static int run_workload(bench_run *run, far_ycsb_workload workload, bool shown, bench_result *result) {
    bench_series reused = result->series; /* keep the allocated array */
    memset(result, 0, sizeof(*result));
    result->series = reused;
    bench_series_clear(&result->series);
    int err = warm_up_and_measure(run, workload, result);
    if (err)
        return err;
    run->errors += result->errors;
    bench_step_done(run->config, 1);
    if (shown && run->config->sim && gather_nic(run, workload, result))
        return CLI_FAILED;
    cli_progress_end();
    if (shown)
        run->each(run->each_ctx, result);
    return run->broken ? CLI_FAILED : 0; /* the first error has been reported */
}


static int run_workloads(bench_run *run) {
    const bench_config *config = run->config;
    bench_result *result = calloc(1, sizeof(*result));
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
        if (bench_has_scans(config, workload) && !run->kind->kind->scan) {
            cli_progress_end();
            fprintf(stderr, "farindex: %s has no scans, so workload %s is skipped\n", run->kind->kind->name,
                    far_ycsb_name(workload));
            continue;
        }
        err = run_workload(run, workload, true, result);
    }
    bench_series_free(&result->series);
    free(result);
    return err;
}


int bench_run_kind(const bench_config *config, const bench_kind *kind,
                   void (*each)(void *ctx, const bench_result *result), void *ctx, uint64_t *errors) {
    bench_run run = {.config = config, .kind = kind, .label = kind->kind->name, .each = each, .each_ctx = ctx};
    bench_index_name(config, kind->kind, run.name);
    int err = open_run(&run);
    if (!err)
        err = run_workloads(&run);
    int closing = close_run(&run);
    *errors += run.errors;
    return err ? err : closing;
}
