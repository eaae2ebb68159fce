/* Several processes on one store: they start before the pool is opened here, meet at barriers, and leave what they
 * counted in shared memory. */
#include "cli/bench_processes.h"
#include "runtime/random.h"
#include "workload/distribution.h"
#include "workload/value.h"

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

#define DEFAULT_OPS   1000000
#define NAME_OF_INDEX "bench-processes"

typedef struct phase {
    const char *name;
    int updates; /* percent; the others are gets; -1: the load */
} phase;

static const phase phases[] = {{"load", -1}, {"c", 0}, {"writes", 100}, {"a", 50}};
#define PHASES (sizeof(phases) / sizeof(phases[0]))

typedef struct tally { /* of one process and phase */
    uint64_t ops, begin, end, errors;
    far_histogram latency;
} tally;

typedef struct meeting { /* shared memory */
    atomic_uint arrived, round;
    atomic_bool failed;
    char words[256];
    tally tallies[]; /* by phase, then process */
} meeting;

typedef struct worker {
    bench_store *store;
    meeting *meeting;
    unsigned number;
    uint64_t version;
    far_random random;
    far_distribution distribution;
    uint8_t key[FAR_KEY_MAX], value[FAR_VALUE_MAX];
} worker;


static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}


/* ---- An index as a store ---- */

typedef struct index_state {
    far_pool *pool;
    far_session *session;
    far_index *index;
} index_state;


static int index_failed(bench_store *store) {
    snprintf(store->error, sizeof(store->error), "%s: %s", store->name, far_last_error());
    return 1;
}


static void index_close(bench_store *store) {
    index_state *state = store->state;
    far_index_close(state->index);
    far_session_close(state->session);
    far_pool_close(state->pool);
    memset(state, 0, sizeof(*state));
}


static int open_handle(bench_store *store) {
    index_state *state = store->state;
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    options.cache_bytes = store->config->cache;
    options.rdwc = store->config->rdwc;
    int err = far_pool_open(store->config->uri, &options, &state->pool);
    if (err >= 0)
        err = far_session_open(state->pool, &state->session);
    return err < 0 ? index_failed(store) : 0;
}


static int index_prepare(bench_store *store) {
    index_state *state = store->state = calloc(1, sizeof(index_state));
    if (!state)
        return 1;
    int err = open_handle(store);
    if (!err && far_index_create(state->session, NAME_OF_INDEX, store->kind->kind->name, store->kind->options,
                                 &state->index) < 0)
        err = index_failed(store);
    index_close(store);
    return err;
}


static int index_open(bench_store *store) {
    index_state *state = store->state;
    int err = open_handle(store);
    return !err && far_index_open(state->session, NAME_OF_INDEX, &state->index) < 0 ? index_failed(store) : err;
}


static int index_get(bench_store *store, far_bytes key, uint8_t *value, size_t capacity, size_t *length) {
    index_state *state = store->state;
    return far_get(state->session, state->index, key.data, key.length, value, capacity, length) < 0
               ? index_failed(store)
               : 0;
}


static int index_put(bench_store *store, far_bytes key, const uint8_t *value, size_t length) {
    index_state *state = store->state;
    return far_put(state->session, state->index, key.data, key.length, value, length) < 0 ? index_failed(store) : 0;
}


static int index_finish(bench_store *store) {
    index_state *state = store->state;
    int err = open_handle(store);
    if (!err && !store->config->keep && far_index_drop(state->session, NAME_OF_INDEX) < 0)
        err = index_failed(store);
    index_close(store);
    free(state);
    return err;
}


void bench_store_of_kind(bench_store *store, const bench_config *config, const bench_kind *kind, unsigned processes) {
    *store = (bench_store){kind->kind->name, index_prepare, index_open, index_get, index_put, index_close,
                           index_finish,     config,        kind,       processes, NULL,      ""};
}


/* ---- A process ---- */

static void complain(worker *w, const char *words) {
    if (!atomic_exchange_explicit(&w->meeting->failed, true, memory_order_relaxed))
        snprintf(w->meeting->words, sizeof(w->meeting->words), "%s", words);
}


static void meet(worker *w) {
    meeting *m = w->meeting;
    unsigned round = atomic_load_explicit(&m->round, memory_order_acquire);
    if (atomic_fetch_add_explicit(&m->arrived, 1, memory_order_acq_rel) + 1 == w->store->processes) {
        atomic_store_explicit(&m->arrived, 0, memory_order_relaxed);
        atomic_fetch_add_explicit(&m->round, 1, memory_order_release);
    }
    while (atomic_load_explicit(&m->round, memory_order_acquire) == round)
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
}


static bool put_record(worker *w, uint64_t record) {
    size_t key_len = far_keyset_key(w->store->config->keys, record, w->key), size = w->store->config->value_size;
    far_value_fill(w->value, size, w->key, key_len, (uint64_t)w->number << 32 | ++w->version);
    return w->store->put(w->store, (far_bytes){w->key, key_len}, w->value, size) == 0;
}


static bool get_record(worker *w, uint64_t record) {
    size_t key_len = far_keyset_key(w->store->config->keys, record, w->key), length = 0;
    if (w->store->get(w->store, (far_bytes){w->key, key_len}, w->value, sizeof(w->value), &length) != 0)
        return false;
    const char *wrong = bench_check_value((far_bytes){w->key, key_len}, w->value, length, w->store->config->value_size);
    if (wrong)
        snprintf(w->store->error, sizeof(w->store->error), "%s: %s", w->store->name, wrong);
    return !wrong;
}


static bool do_one(worker *w, const phase *p, uint64_t i) {
    const bench_config *config = w->store->config;
    if (p->updates < 0)
        return put_record(w, i * w->store->processes + w->number);
    uint64_t record = far_distribution_next(&w->distribution, &w->random, config->records);
    return far_random_below(&w->random, 100) < (uint64_t)p->updates ? put_record(w, record) : get_record(w, record);
}


/* After an error nothing is worth measuring any more: all hurry to the end. */
static void run_phase(worker *w, const phase *p, uint64_t ops, tally *t) {
    t->begin = now();
    for (uint64_t i = 0; i < ops && !atomic_load_explicit(&w->meeting->failed, memory_order_relaxed); i++) {
        uint64_t start = now();
        if (!do_one(w, p, i)) {
            t->errors++;
            complain(w, w->store->error);
        }
        far_histogram_add(&t->latency, now() - start);
    }
    t->end = now();
    t->ops = ops;
}


static uint64_t share(uint64_t ops, unsigned number, unsigned processes) {
    return ops / processes + (number < ops % processes);
}


static void be_process(bench_store *store, meeting *m, unsigned number) {
    const bench_config *config = store->config;
    worker *w = calloc(1, sizeof(*w));
    tally *warm = calloc(1, sizeof(*warm));
    if (!w || !warm)
        _exit(1);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    w->store = store;
    w->meeting = m;
    w->number = number;
    far_random_seed(&w->random, config->seed * 1000 + number);
    far_distribution_init(&w->distribution, config->dist_given ? config->dist : FAR_DISTRIBUTION_ZIPFIAN, config->theta,
                          config->records);
    if (store->open(store)) {
        complain(w, store->error);
        _exit(1);
    }
    uint64_t ops = config->ops ? config->ops : DEFAULT_OPS;
    for (size_t i = 0; i < PHASES; i++) {
        uint64_t warmup = phases[i].updates < 0 ? 0 : config->warmup == UINT64_MAX ? ops / 10 : config->warmup;
        meet(w);
        run_phase(w, &phases[i], share(warmup, number, store->processes), warm);
        meet(w);
        run_phase(w, &phases[i], share(phases[i].updates < 0 ? config->records : ops, number, store->processes),
                  &m->tallies[i * store->processes + number]);
    }
    meet(w);
    store->close(store);
    _exit(0);
}


/* ---- The parent ---- */

/* One that ends badly would let the others wait at a barrier: they are ended too. */
static int wait_for_all(pid_t *pids, unsigned count) {
    bool bad = false;
    for (unsigned left = count; left;) {
        int status;
        pid_t pid = wait(&status);
        if (pid < 0)
            return 1;
        for (unsigned i = 0; i < count; i++)
            if (pids[i] == pid) {
                pids[i] = 0;
                left--;
                bad |= status != 0;
            }
        for (unsigned i = 0; bad && i < count; i++)
            if (pids[i])
                kill(pids[i], SIGKILL);
    }
    return bad;
}


static int run_store(bench_store *store, meeting *m) {
    pid_t pids[64];
    cli_progress("%s: %u processes", store->name, store->processes);
    if (store->prepare(store))
        return cli_failed("%s", store->error);
    fflush(NULL);
    unsigned started = 0;
    for (; started < store->processes; started++) {
        pids[started] = fork();
        if (pids[started] == 0)
            be_process(store, m, started);
        if (pids[started] < 0)
            break;
    }
    for (unsigned i = 0; started < store->processes && i < started; i++)
        kill(pids[i], SIGKILL);
    int err = wait_for_all(pids, started);
    if (store->finish(store))
        err = cli_failed("%s", store->error);
    cli_progress_end();
    if (atomic_load_explicit(&m->failed, memory_order_relaxed))
        return cli_failed("%s", m->words);
    return err || started < store->processes ? cli_failed("%s: a process did not end well", store->name) : 0;
}


static void add_up(const meeting *m, size_t number, unsigned processes, tally *sum) {
    memset(sum, 0, sizeof(*sum));
    sum->begin = UINT64_MAX;
    for (unsigned i = 0; i < processes; i++) {
        const tally *t = &m->tallies[number * processes + i];
        sum->ops += t->ops;
        sum->errors += t->errors;
        sum->begin = t->begin < sum->begin ? t->begin : sum->begin;
        sum->end = t->end > sum->end ? t->end : sum->end;
        far_histogram_merge(&sum->latency, &t->latency);
    }
}


static double microseconds(const tally *t, uint64_t numerator, uint64_t denominator) {
    return (double)far_histogram_quantile(&t->latency, numerator, denominator) / 1000;
}


static void print_result(const bench_store *store, const phase *p, const tally *t, double baseline, unsigned row,
                         FILE *table, FILE *json) {
    const bench_config *config = store->config;
    double seconds = (double)(t->end - t->begin) / 1e9, mops = (double)t->ops / seconds / 1e6;
    if (table) {
        fprintf(table, "%-8s %-8s %9.4f %9.2f %9.2f %9.2f", store->name, p->name, mops, microseconds(t, 1, 2),
                microseconds(t, 99, 100), microseconds(t, 999, 1000));
        if (baseline > 0)
            fprintf(table, " %8.2f", mops / baseline);
        fputc('\n', table);
        fflush(table);
    }
    if (!json)
        return;
    fprintf(json, "%s{\"index\":\"%s\",\"workload\":\"%s\",\"keys\":", row ? ",\n " : "\n ", store->name, p->name);
    cli_json_string(json, far_keyset_name(config->keys));
    fprintf(json,
            ",\"dist\":\"%s\",\"records\":%" PRIu64 ",\"ops\":%" PRIu64 ",\"processes\":%u,\"value_size\":%" PRIu64
            ",\"pool\":",
            far_distribution_name(config->dist_given ? config->dist : FAR_DISTRIBUTION_ZIPFIAN), config->records,
            t->ops, store->processes, config->value_size);
    cli_json_string(json, store->kind ? config->uri : "lmdb");
    fprintf(json,
            ",\"seconds\":%.6g,\"mops\":%.6g,\"p50_us\":%.6g,\"p99_us\":%.6g,\"p999_us\":%.6g,\"errors\":%" PRIu64
            ",\"lmdb_ratio\":",
            seconds, mops, microseconds(t, 1, 2), microseconds(t, 99, 100), microseconds(t, 999, 1000), t->errors);
    if (baseline > 0)
        fprintf(json, "%.6g}", mops / baseline);
    else
        fputs("null}", json);
}


int bench_processes(const bench_config *config, unsigned processes, bool against_lmdb, FILE *table, FILE *json) {
    size_t bytes = sizeof(meeting) + PHASES * processes * sizeof(tally);
    double baseline[PHASES] = {0};
    unsigned row = 0;
    int err = 0;
    if (table)
        fprintf(table,
                "%s: %" PRIu64 " records, keys %s, values of %" PRIu64
                " bytes, %u processes\n%-8s %-8s %9s %9s %9s %9s%s\n",
                config->uri, config->records, far_keyset_name(config->keys), config->value_size, processes, "kind",
                "workload", "Mops", "p50 us", "p99 us", "p999 us", against_lmdb ? "  x LMDB" : "");
    if (json)
        fputc('[', json);
    for (unsigned i = against_lmdb ? 0 : 1; i <= config->kind_count && !err; i++) {
        bench_store store;
        meeting *m = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (m == MAP_FAILED)
            return cli_failed("no memory for %u processes", processes);
        if (i == 0 && !bench_store_of_lmdb(&store, config, processes)) {
            munmap(m, bytes);
            return cli_failed("this build has no LMDB (liblmdb-dev was not there)");
        }
        if (i > 0)
            bench_store_of_kind(&store, config, &config->kinds[i - 1], processes);
        err = run_store(&store, m);
        for (size_t p = 0; p < PHASES && !err; p++, row++) {
            tally sum;
            add_up(m, p, processes, &sum);
            if (i == 0)
                baseline[p] = (double)sum.ops * 1000 / (double)(sum.end - sum.begin);
            print_result(&store, &phases[p], &sum, baseline[p], row, table, json);
        }
        munmap(m, bytes);
    }
    if (json)
        fputs("\n]\n", json);
    return err;
}
