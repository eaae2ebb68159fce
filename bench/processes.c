/* With `farindex bench --processes`, several processes run the same workload on one store. They are forked before this
 * process opens the pool. They synchronize with barriers, and write their counters to shared memory. */
#include "bench/processes.h"
#include "pool/handle.h"

#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct counters {
    far_stats all, of[BENCH_OPS];
} counters;

typedef struct process_result { /* the result of one process in one workload */
    uint64_t ops, begin, end, errors, cpu_ns, warmup_ops, instructions, instructions_of[BENCH_OPS];
    counters counted;
    far_histogram latency, latency_of[BENCH_OPS];
    far_usage usage; /* set by process 0 only */
    bool has_cache;
    far_capabilities capabilities;
} process_result;

typedef struct shared_state { /* the shared memory of all processes */
    atomic_uint arrived, round;
    atomic_bool created; /* the store exists, so the processes may open it */
    atomic_bool failed;  /* a process has failed, so all others end as soon as possible */
    char words[256];
    far_records records;
    process_result results[]; /* by workload, then by process */
} shared_state;

typedef struct workload_plan { /* the order of workloads: the load first, then the others */
    far_ycsb_workload workloads[BENCH_WORKLOADS_MAX + 1];
    unsigned count;
    bool show_load;
} workload_plan;

typedef struct process {
    bench_store *store;
    shared_state *shared;
    unsigned number, count;
    bench_run run;
    bench_node node;
    bench_client client;
} process;


/* ---- An index as a store ---- */

static int index_failed(bench_store *store) {
    snprintf(store->error, sizeof(store->error), "%s: %s", store->name, far_last_error());
    return 1;
}


static int refuse_leftover(bench_store *store) {
    snprintf(store->error, sizeof(store->error), BENCH_LEFTOVER, store->index_name, store->index_name);
    return 1;
}


static void close_node(bench_node *node) {
    far_index_close(node->index);
    far_session_close(node->session);
    far_pool_close(node->pool);
    memset(node, 0, sizeof(*node));
}


static int open_node(bench_store *store, bench_node *node) {
    int err = bench_open_pool(store->config, &node->pool);
    if (err >= 0)
        err = far_session_open(node->pool, &node->session);
    return err < 0 ? index_failed(store) : 0;
}


static int index_create(bench_store *store) {
    bench_node *keeper = &store->keeper;
    int err = open_node(store, keeper), created = 0;
    if (!err)
        created = bench_create_index(store->config, keeper->session, store->index_name, store->kind, &keeper->index);
    if (created < 0)
        err = created == FAR_ERR_EXISTS ? refuse_leftover(store) : index_failed(store);
    if (err)
        close_node(keeper);
    return err;
}


static int index_open(bench_store *store, bench_client *client) {
    bench_node *node = client->node;
    int err = open_node(store, node);
    if (!err && far_index_open(node->session, store->index_name, &node->index) < 0)
        err = index_failed(store);
    client->engine = &bench_far_engine;
    client->session = node->session;
    return err;
}


static int index_measure(bench_store *store, bench_client *client, far_usage *usage) {
    return far_index_usage(client->session, client->node->index, usage) < 0 ? index_failed(store) : 0;
}


static void index_close(bench_store *store, bench_client *client) {
    (void)store;
    close_node(client->node);
}


static int index_finish(bench_store *store) {
    bench_node *keeper = &store->keeper;
    int err = 0;
    far_index_close(keeper->index);
    keeper->index = NULL;
    if (!store->config->keep && far_index_drop(keeper->session, store->index_name) < 0)
        err = index_failed(store);
    close_node(keeper);
    return err;
}


void bench_store_of_kind(bench_store *store, const bench_config *config, const bench_kind *kind) {
    *store = (bench_store){.name = kind->kind->name,
                           .create = index_create,
                           .open = index_open,
                           .measure = index_measure,
                           .close = index_close,
                           .finish = index_finish,
                           .config = config,
                           .kind = kind};
    bench_index_name(config, kind->kind, store->index_name);
}


/* ---- A process ---- */

static void record_failure(process *p, const char *words) {
    if (!atomic_exchange_explicit(&p->shared->failed, true, memory_order_relaxed))
        snprintf(p->shared->words, sizeof(p->shared->words), "%s", words);
}


static void wait_at_barrier(process *p) {
    shared_state *m = p->shared;
    unsigned round = atomic_load_explicit(&m->round, memory_order_acquire);
    if (atomic_fetch_add_explicit(&m->arrived, 1, memory_order_acq_rel) + 1 == p->count) {
        atomic_store_explicit(&m->arrived, 0, memory_order_relaxed);
        atomic_fetch_add_explicit(&m->round, 1, memory_order_release);
    }
    while (atomic_load_explicit(&m->round, memory_order_acquire) == round)
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
}


/* Returns the processor time of all threads of this process. */
static uint64_t cpu_time(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}


static void take_counters(const process *p, counters *c) {
    if (!p->store->kind)
        return;
    far_session_stats(p->client.session, &c->all);
    for (unsigned kind = 0; kind < BENCH_OPS; kind++)
        far_session_stats_of(p->client.session, (far_op_kind)kind, &c->of[kind]);
}


static void run_share(process *p, uint64_t ops, bool measured) {
    bench_client *client = &p->client;
    const bench_config *config = p->store->config;
    bool load = p->run.ycsb.config.workload == FAR_YCSB_LOAD;
    client->budget = ops == UINT64_MAX ? ops : ops / p->count + (p->number < ops % p->count);
    client->time_limit = measured && !load ? config->duration : 0;
    client->gap = measured && !load && config->rate ? p->count * 1000000000ull / config->rate : 0;
    client->measured = measured;
    wait_at_barrier(p);
    if (!atomic_load_explicit(&p->shared->failed, memory_order_relaxed))
        bench_client_work(client);
    if (cli_interrupted())
        record_failure(p, "interrupted");
    if (client->errors) {
        char words[sizeof(p->shared->words)];
        snprintf(words, sizeof(words), "%s, workload %s: %.160s", p->store->name, p->run.phase, client->first_error);
        record_failure(p, words);
    }
    wait_at_barrier(p);
}


/* Counts the keys of the store, while the other processes wait. The number must equal that of the inserted keys. */
static void measure_store(process *p, process_result *t) {
    const far_index *index = p->node.index;
    uint64_t expected = far_records_count(&p->shared->records) - far_records_gone(&p->shared->records);
    char words[160];
    if (p->store->measure(p->store, &p->client, &t->usage)) {
        record_failure(p, p->store->error);
    } else if (t->usage.keys != expected) {
        snprintf(words, sizeof(words), "%s, workload %s: it has %" PRIu64 " keys, but %" PRIu64 " were inserted",
                 p->store->name, p->run.phase, t->usage.keys, expected);
        record_failure(p, words);
    }
    if (index)
        t->capabilities = p->node.pool->geometry.capabilities;
    t->has_cache = index && index->kind->cache_bytes;
}


/* Runs one workload. All processes start it with the same number of records and at the same time. */
static void run_workload(process *p, far_ycsb_workload workload, process_result *t) {
    const bench_config *config = p->store->config;
    bool load = workload == FAR_YCSB_LOAD;
    uint64_t ops = load ? config->records : bench_ops(config, p->store->kind ? p->store->kind->kind : NULL, workload);
    uint64_t warmup = load ? 0 : config->warmup == UINT64_MAX ? ops / 10 : config->warmup;
    far_ycsb_config ycsb = bench_ycsb(config, workload, ops + warmup);
    counters before = {0}, after = {0};
    char error[160];
    p->run.phase = far_ycsb_name(workload);
    if (far_ycsb_init(&p->run.ycsb, &ycsb, &p->shared->records, error, sizeof(error)) < 0)
        record_failure(p, error);
    far_ycsb_stream_init(&p->client.stream, &p->run.ycsb, p->number);
    far_random_seed(&p->client.arrivals, ycsb.seed << 16 ^ p->number);
    bench_client_clear(&p->client);
    run_share(p, warmup, false);
    take_counters(p, &before);
    t->cpu_ns = cpu_time();
    run_share(p, !load && config->duration && !config->ops ? UINT64_MAX : ops, true);
    t->cpu_ns = cpu_time() - t->cpu_ns;
    take_counters(p, &after);
    t->ops = p->client.done;
    t->begin = p->client.begin;
    t->end = p->client.end;
    t->errors = p->client.errors;
    t->counted.all = far_stats_diff(&after.all, &before.all);
    for (unsigned kind = 0; kind < BENCH_OPS; kind++)
        t->counted.of[kind] = far_stats_diff(&after.of[kind], &before.of[kind]);
    t->warmup_ops = warmup;
    t->instructions = p->client.instructions;
    memcpy(t->instructions_of, p->client.instructions_of, sizeof(t->instructions_of));
    t->latency = p->client.latency;
    memcpy(t->latency_of, p->client.latency_of, sizeof(t->latency_of));
    if (p->number == 0)
        measure_store(p, t);
    wait_at_barrier(p);
}


static void run_process(bench_store *store, const workload_plan *workload_plan, shared_state *m, unsigned number) {
    const bench_config *config = store->config;
    process *p = calloc(1, sizeof(*p));
    if (!p)
        _exit(1);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    p->store = store;
    p->shared = m;
    p->number = number;
    p->count = (unsigned)config->processes;
    p->run = (bench_run){.config = config, .kind = store->kind, .label = store->name, .records = &m->records};
    p->client.run = &p->run;
    p->client.number = number;
    p->client.node = &p->node;
    p->client.host = &far_host_threads;
    p->client.depth = store->kind || store->in_flight ? config->depth : 1;
    while (!atomic_load_explicit(&m->created, memory_order_acquire))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    if (!bench_client_prepare(&p->client) || store->open(store, &p->client)) {
        record_failure(p, *store->error ? store->error : "no memory for a process");
        _exit(1);
    }
    for (unsigned i = 0; i < workload_plan->count; i++) {
        run_workload(p, workload_plan->workloads[i], &m->results[i * p->count + number]);
        bench_step_done(config, 1);
    }
    cli_progress_end();
    store->close(store, &p->client);
    _exit(0);
}


/* ---- The parent process ---- */

static void signal_all(const pid_t *pids, unsigned count, int number) {
    for (unsigned i = 0; i < count; i++)
        if (pids[i])
            kill(pids[i], number);
}


/* Waits for all processes. If one ends with an error, the others are killed, because they would wait for it at a
 * barrier forever. An interrupt is passed on to all, so that they end soon. The loop polls, because a signal may arrive
 * at any moment. */
static int wait_for_all(pid_t *pids, unsigned count) {
    bool bad = false, passed_on = false;
    for (unsigned left = count; left;) {
        int status;
        pid_t pid = waitpid(-1, &status, WNOHANG);
        if (pid < 0)
            return 1;
        for (unsigned i = 0; pid && i < count; i++)
            if (pids[i] == pid) {
                pids[i] = 0;
                left--;
                bad |= status != 0;
            }
        if (bad)
            signal_all(pids, count, SIGKILL);
        if (cli_interrupted() && !passed_on)
            signal_all(pids, count, SIGTERM);
        passed_on = cli_interrupted();
        if (!pid)
            nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    return bad;
}


static int run_store(bench_store *store, const workload_plan *workload_plan, shared_state *m) {
    pid_t pids[64];
    unsigned started = 0, processes = (unsigned)store->config->processes;
    if (store->prepare && store->prepare(store))
        return cli_failed("%s", store->error);
    fflush(NULL);
    for (; started < processes; started++) {
        pids[started] = fork();
        if (pids[started] == 0)
            run_process(store, workload_plan, m, started);
        if (pids[started] < 0)
            break;
    }
    bool created = started == processes && (!store->create || store->create(store) == 0);
    if (!created)
        signal_all(pids, started, SIGKILL);
    atomic_store_explicit(&m->created, true, memory_order_release);
    int err = wait_for_all(pids, started);
    cli_progress_end();
    if (!created && store->create)
        return cli_failed("%s", *store->error ? store->error : "a process of the benchmark could not be started");
    if (store->finish(store))
        err = cli_failed("%s", store->error);
    if (atomic_load_explicit(&m->failed, memory_order_relaxed))
        return cli_output_is_closed() ? CLI_FAILED : cli_failed("%s", m->words);
    return err || started < processes ? cli_failed("%s: a process of the benchmark failed", store->name) : 0;
}


static void add_results(const bench_store *store, const process_result *results, far_ycsb_workload workload,
                        bench_result *sum) {
    uint64_t begin = UINT64_MAX, end = 0;
    *sum = (bench_result){.name = store->name,
                          .kind = store->kind,
                          .workload = workload,
                          .clients = store->config->processes,
                          .settled = true,
                          .warmup_ops = results[0].warmup_ops};
    for (uint64_t i = 0; i < store->config->processes; i++) {
        const process_result *t = &results[i];
        sum->ops += t->ops;
        sum->errors += t->errors;
        sum->cpu_ns += t->cpu_ns;
        sum->instructions += t->instructions;
        begin = t->begin < begin ? t->begin : begin;
        end = t->end > end ? t->end : end;
        bench_add_stats(&sum->stats, &t->counted.all);
        far_histogram_merge(&sum->latency, &t->latency);
        for (unsigned kind = 0; kind < BENCH_OPS; kind++) {
            bench_add_stats(&sum->by_op[kind], &t->counted.of[kind]);
            sum->instructions_of[kind] += t->instructions_of[kind];
            far_histogram_merge(&sum->latency_of[kind], &t->latency_of[kind]);
        }
    }
    sum->ns = end > begin ? end - begin : 0;
    sum->usage = results[0].usage;
    sum->has_cache = results[0].has_cache;
    sum->capabilities = results[0].capabilities;
}


static void make_plan(const bench_config *config, const bench_store *store, workload_plan *workload_plan) {
    *workload_plan = (struct workload_plan){.workloads = {FAR_YCSB_LOAD}, .count = 1};
    for (unsigned i = 0; i < config->workload_count; i++) {
        far_ycsb_workload workload = config->workloads[i];
        if (workload == FAR_YCSB_LOAD)
            workload_plan->show_load = true;
        else if (bench_has_scans(config, workload) && (store->no_scans || (store->kind && !store->kind->kind->scan)))
            fprintf(stderr, "farindex: %s has no scans, so workload %s is skipped\n", store->name,
                    far_ycsb_name(workload));
        else
            workload_plan->workloads[workload_plan->count++] = workload;
    }
}


static int bench_store_run(bench_store *store, bench_report *report) {
    const bench_config *config = store->config;
    workload_plan workload_plan;
    make_plan(config, store, &workload_plan);
    size_t bytes = sizeof(shared_state) + workload_plan.count * config->processes * sizeof(process_result);
    shared_state *m = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    bench_result *sum = malloc(sizeof(*sum));
    if (m == MAP_FAILED || !sum) {
        free(sum);
        return cli_failed("no memory for %" PRIu64 " processes", config->processes);
    }
    far_records_init(&m->records, 0, far_keyset_count_limit(config->keys));
    int err = run_store(store, &workload_plan, m);
    bench_step_done(config,
                    workload_plan.count); /* the progress counts in the processes were made on their own copies */
    for (unsigned i = 0; i < workload_plan.count && !err; i++) {
        add_results(store, &m->results[i * config->processes], workload_plan.workloads[i], sum);
        if (i > 0 || workload_plan.show_load)
            bench_report_result(report, sum);
    }
    free(sum);
    munmap(m, bytes);
    return err;
}


int bench_processes(const bench_config *config, bench_report *report) {
    bench_store store;
    int err = 0;
    if (config->against && !config->against->store(&store, config))
        return cli_failed("%s", config->against->absent);
    if (config->against)
        err = bench_store_run(&store, report);
    for (unsigned i = 0; i < config->kind_count && !err; i++) {
        bench_store_of_kind(&store, config, &config->kinds[i]);
        err = bench_store_run(&store, report);
    }
    return err;
}
