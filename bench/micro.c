/* `farindex bench --micro` measures the cost of the software between an index and its memory. It measures verbs on the
 * fabric `local` and switches of coroutines. Each measurement has a floor: the same accesses in plain C, at the same
 * random places of an equally large memory.
 *
 * Verbs are measured twice. In the dependent form each place is computed from the data of the previous access, as in a
 * search, so every access waits for its cache miss. In the independent form the places are known in advance; the
 * processor then overlaps the cache misses of plain copies, but fewer of those of READs, because a READ takes some
 * hundred instructions.
 *
 * Measurement and floor alternate in short turns, and the best turn counts, so that other load on the machine affects
 * both equally. */
#include "base/coroutine.h"
#include "base/random.h"
#include "bench/bench.h"
#include "pool/handle.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define MEMORY_BYTES (128ull << 20)
#define POOL_URI     "local:256M"
#define POOL_FROM    (96ull << 20) /* an offset beyond the memory that the pool itself uses */
#define FILL         0x0101010101010101ull
/* random offsets, drawn before measuring; they cover far more memory than the caches hold */
#define PLACES      (1u << 20)
#define TURNS       150
#define MIN_TURNS   3
#define LONG_ENOUGH 5.0        /* seconds after which no further turns are made, for slow machines */
#define ROUNDS      (1u << 14) /* operations in one turn */
#define SIM_TURNS   9
#define SIM_URI     "sim:size=64M,memory_nodes=2,watch=off"
#define SIM_FROM    (32ull << 20)
#define SIM_TASKS   16
#define SIM_VERBS   100000

typedef struct micro {
    far_pool *pool;
    far_session *session;
    char *plain;    /* memory for the floor */
    unsigned first; /* index of the first place of the current turn */
    uint32_t places[PLACES];
    _Alignas(64) uint64_t words[4 * 8]; /* receives the data that is read */
    int error;
    far_context *outer, *inner;
} micro;

typedef struct measurement {
    const char *name, *what, *floor_what;
    int (*task)(far_task *t, void *m); /* NULL if `run` is used */
    void (*run)(micro *m);
    void (*floor)(micro *m);
    double best, best_floor; /* best time of one operation, in ns */
} measurement;


static double clock_seconds(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}


static uint64_t place_at(const micro *m, unsigned i) {
    return m->places[(m->first + i) % PLACES];
}


/* Like place_at(), but the result depends on `word`, so the processor must wait for it. The word always equals FILL. */
static uint64_t place_after(const micro *m, unsigned i, uint64_t word) {
    return place_at(m, i) ^ (word ^ FILL);
}


/* Keeps the compiler from removing a read whose result is not used. */
static void use_memory(void *memory) {
    __asm__ volatile("" : : "r"(memory) : "memory");
}


/* ---- Verbs, inside one task ---- */

static int read_task(far_task *t, void *arg) {
    micro *m = arg;
    int err = 0;
    for (unsigned i = 0; i < ROUNDS && !err; i++) {
        far_read(t, POOL_FROM + place_at(m, i), m->words, 64);
        err = far_wait(t);
        use_memory(m->words);
    }
    return err;
}


static int chase_task(far_task *t, void *arg) {
    micro *m = arg;
    int err = 0;
    m->words[0] = FILL;
    for (unsigned i = 0; i < ROUNDS && !err; i++) {
        far_read(t, POOL_FROM + place_after(m, i, m->words[0]), m->words, 64);
        err = far_wait(t);
        use_memory(m->words);
    }
    return err;
}


static int cas_task(far_task *t, void *arg) {
    micro *m = arg;
    int err = 0;
    for (unsigned i = 0; i < ROUNDS && !err; i++) {
        far_cas(t, POOL_FROM + place_at(m, i), FILL, FILL, m->words);
        err = far_wait(t);
        use_memory(m->words);
    }
    return err;
}


static int chase_cas_task(far_task *t, void *arg) {
    micro *m = arg;
    int err = 0;
    m->words[0] = FILL;
    for (unsigned i = 0; i < ROUNDS && !err; i++) {
        far_cas(t, POOL_FROM + place_after(m, i, m->words[0]), FILL, FILL, m->words);
        err = far_wait(t);
        use_memory(m->words);
    }
    return err;
}


static int batch_task(far_task *t, void *arg) {
    micro *m = arg;
    int err = 0;
    for (unsigned i = 0; i < ROUNDS && !err; i += 4) {
        for (unsigned k = 0; k < 4; k++)
            far_read(t, POOL_FROM + place_at(m, i + k), m->words + 8 * k, 64);
        err = far_wait(t);
        use_memory(m->words);
    }
    return err;
}


static int chase_batch_task(far_task *t, void *arg) {
    micro *m = arg;
    int err = 0;
    m->words[0] = FILL;
    for (unsigned i = 0; i < ROUNDS && !err; i += 4) {
        uint64_t word = m->words[0];
        for (unsigned k = 0; k < 4; k++)
            far_read(t, POOL_FROM + place_after(m, i + k, word), m->words + 8 * k, 64);
        err = far_wait(t);
        use_memory(m->words);
    }
    return err;
}


/* ---- Floors ---- */

static void copy_plain(micro *m) {
    for (unsigned i = 0; i < ROUNDS; i++) {
        memcpy(m->words, m->plain + place_at(m, i), 64);
        use_memory(m->words);
    }
}


static void chase_plain(micro *m) {
    m->words[0] = FILL;
    for (unsigned i = 0; i < ROUNDS; i++) {
        memcpy(m->words, m->plain + place_after(m, i, m->words[0]), 64);
        use_memory(m->words);
    }
}


static void copy_plain_by_four(micro *m) {
    for (unsigned i = 0; i < ROUNDS; i += 4) {
        for (unsigned k = 0; k < 4; k++)
            memcpy(m->words + 8 * k, m->plain + place_at(m, i + k), 64);
        use_memory(m->words);
    }
}


static void chase_plain_by_four(micro *m) {
    m->words[0] = FILL;
    for (unsigned i = 0; i < ROUNDS; i += 4) {
        uint64_t word = m->words[0];
        for (unsigned k = 0; k < 4; k++)
            memcpy(m->words + 8 * k, m->plain + place_after(m, i + k, word), 64);
        use_memory(m->words);
    }
}


static uint64_t cas_word(char *at) {
    uint64_t old = FILL;
    atomic_compare_exchange_strong_explicit((_Atomic uint64_t *)at, &old, FILL, memory_order_seq_cst,
                                            memory_order_seq_cst);
    return old;
}


static void cas_plain(micro *m) {
    for (unsigned i = 0; i < ROUNDS; i++) {
        m->words[0] = cas_word(m->plain + place_at(m, i));
        use_memory(m->words);
    }
}


static void chase_cas_plain(micro *m) {
    m->words[0] = FILL;
    for (unsigned i = 0; i < ROUNDS; i++) {
        m->words[0] = cas_word(m->plain + place_after(m, i, m->words[0]));
        use_memory(m->words);
    }
}


/* ---- Coroutine switches; a round trip is two ---- */

static void switch_back(void *arg) {
    micro *m = arg;
    for (;;)
        far_context_switch(m->outer);
}


static void run_switch(micro *m) {
    m->outer = far_context_current();
    for (unsigned i = 0; i < ROUNDS; i += 2)
        far_context_switch(m->inner);
}


static __attribute__((noinline)) void called(void *arg) {
    use_memory(arg);
}


static void call_plain(micro *m) {
    void (*volatile function)(void *) = called;
    for (unsigned i = 0; i < ROUNDS; i++)
        function(m);
}


/* ---- The simulator ---- */

typedef struct sim_work {
    uint64_t left;
    far_random random;
    int error;
} sim_work;


static void sim_task(far_task *t, void *arg) {
    sim_work *work = arg;
    char buffer[64];
    while (work->left && !work->error) {
        work->left--;
        far_read(t, far_addr_make(work->left % 2, SIM_FROM + far_random_below(&work->random, SIM_FROM / 64 - 1) * 64),
                 buffer, 64);
        work->error = far_wait(t);
    }
}


static bool is_turn(unsigned turn, unsigned turns, double end) {
    return turn < turns && (turn < MIN_TURNS || clock_seconds() < end);
}


static double sim_verbs_per_second(uint64_t seed) {
    far_pool *pool = NULL;
    far_session *session = NULL;
    double best = 0, end = clock_seconds() + LONG_ENOUGH;
    if (far_pool_open(SIM_URI, NULL, &pool) < 0 || far_session_open(pool, &session) < 0)
        cli_failed("%s: %s", SIM_URI, far_last_error());
    for (unsigned turn = 0; session && is_turn(turn, SIM_TURNS, end); turn++) {
        sim_work work = {.left = SIM_VERBS};
        far_random_seed(&work.random, seed);
        double begin = clock_seconds();
        far_session_enter(session);
        for (unsigned i = 0; i < SIM_TASKS; i++)
            far_task_new(session, FAR_STATS_OTHER, sim_task, &work);
        far_session_drain(session);
        far_session_leave(session);
        double rate = SIM_VERBS / (clock_seconds() - begin);
        if (work.error || work.left) {
            cli_failed("the simulated verbs failed: %s", far_strerror(work.error));
            best = 0;
            break;
        }
        best = rate > best ? rate : best;
    }
    far_session_close(session);
    far_pool_close(pool);
    return best;
}


/* ---- All measurements ---- */

static int open_memory(micro *m, uint64_t seed) {
    far_random random;
    far_random_seed(&random, seed);
    if (far_pool_open(POOL_URI, NULL, &m->pool) < 0 || far_session_open(m->pool, &m->session) < 0)
        return cli_failed("%s: %s", POOL_URI, far_last_error());
    m->plain = mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    m->inner = far_context_new(FAR_TASK_STACK, switch_back, m);
    if (m->plain == MAP_FAILED || !m->inner)
        return cli_failed("no memory to measure with");
    madvise(m->plain, MEMORY_BYTES, MADV_HUGEPAGE); /* the fabric uses huge pages too */
    memset(m->plain, 1, MEMORY_BYTES);
    for (unsigned i = 0; i < PLACES; i++)
        m->places[i] = (uint32_t)far_random_below(&random, MEMORY_BYTES / 64) * 64;
    return 0;
}


static int touch_task(far_task *t, void *arg) {
    char *page = far_scratch(t, 1 << 20);
    (void)arg;
    if (!page)
        return FAR_ERR_NO_MEMORY;
    memset(page, 1, 1 << 20);
    for (uint64_t at = 0; at < MEMORY_BYTES; at += 1 << 20) {
        far_write(t, POOL_FROM + at, page, 1 << 20);
        int err = far_wait(t);
        if (err)
            return err;
    }
    return 0;
}


static void take_turn(micro *m, measurement *measured) {
    m->first += ROUNDS; /* the next turn uses other places, so it does not find cache lines of this turn */
    double begin = clock_seconds();
    if (measured->run)
        measured->run(m);
    else if (far_session_call(m->session, FAR_STATS_OTHER, false, measured->task, m) < 0)
        m->error = 1;
    double middle = clock_seconds();
    measured->floor(m);
    double end = clock_seconds();
    measured->best = fmin(measured->best, (middle - begin) * 1e9 / ROUNDS);
    measured->best_floor = fmin(measured->best_floor, (end - middle) * 1e9 / ROUNDS);
}


static int measure_all(micro *m, measurement *measurements, unsigned count) {
    for (unsigned i = 0; i < count; i++)
        measurements[i].best = measurements[i].best_floor = INFINITY;
    double end = clock_seconds() + LONG_ENOUGH;
    for (unsigned turn = 0; !m->error && is_turn(turn, TURNS, end); turn++) {
        for (unsigned i = 0; i < count; i++)
            take_turn(m, &measurements[i]);
        cli_progress((double)turn / TURNS, "measuring");
    }
    cli_progress_end();
    return m->error ? cli_failed("a verb failed: %s", far_last_error()) : 0;
}


static void print_table(const measurement *measurements, unsigned count, double sim_rate, FILE *table) {
    fprintf(table, "%-46s %10s %10s %7s   %s\n", "what", "ns", "floor ns", "ratio", "floor");
    for (unsigned i = 0; i < count; i++) {
        const measurement *m = &measurements[i];
        fprintf(table, "%-46s %10.1f %10.1f %7.2f   %s\n", m->what, m->best, m->best_floor, m->best / m->best_floor,
                m->floor_what);
    }
    fprintf(table, "%-46s %10.1f %10s %7s   %.2f million verbs per second of real time\n", "simulated READ of 64 bytes",
            1e9 / sim_rate, "-", "-", sim_rate / 1e6);
}


static json_t *measurement_as_json(const char *name, double ns, double floor_ns) {
    json_t *object = cli_json_object();
    cli_json_set_text(object, "name", name);
    cli_json_set_number(object, "ns", ns);
    cli_json_set_number(object, "floor_ns", floor_ns);
    cli_json_set_number(object, "ratio", ns / floor_ns);
    return object;
}


static void print_json(const measurement *measurements, unsigned count, double sim_rate, FILE *json) {
    cli_json_list list = {.file = json};
    for (unsigned i = 0; i < count; i++)
        cli_json_list_add(&list,
                          measurement_as_json(measurements[i].name, measurements[i].best, measurements[i].best_floor));
    json_t *simulated = measurement_as_json("sim_read", 1e9 / sim_rate, BENCH_NOTHING);
    cli_json_set_number(simulated, "verbs_per_second", sim_rate);
    cli_json_list_add(&list, simulated);
    cli_json_list_end(&list);
}


int bench_micro(uint64_t seed, FILE *table, FILE *json) {
    measurement measurements[] = {
        {.name = "read",
         .what = "READ of 64 bytes",
         .floor_what = "copy of 64 bytes",
         .task = chase_task,
         .floor = chase_plain},
        {.name = "cas",
         .what = "CAS",
         .floor_what = "compare-exchange",
         .task = chase_cas_task,
         .floor = chase_cas_plain},
        {.name = "read_batch_4",
         .what = "READ, batches of four (each)",
         .floor_what = "copy, four at a time",
         .task = chase_batch_task,
         .floor = chase_plain_by_four},
        {.name = "read_ahead",
         .what = "READ, places known in advance",
         .floor_what = "copy",
         .task = read_task,
         .floor = copy_plain},
        {.name = "cas_ahead",
         .what = "CAS, places known in advance",
         .floor_what = "compare-exchange",
         .task = cas_task,
         .floor = cas_plain},
        {.name = "read_batch_4_ahead",
         .what = "READ, places known, batches of four (each)",
         .floor_what = "copy, four at a time",
         .task = batch_task,
         .floor = copy_plain_by_four},
        {.name = "switch",
         .what = "switch of coroutines",
         .floor_what = "indirect call",
         .run = run_switch,
         .floor = call_plain},
    };
    const unsigned count = sizeof(measurements) / sizeof(measurements[0]);
    micro *m = calloc(1, sizeof(*m));
    if (!m)
        return cli_failed("no memory to measure with");
    int err = open_memory(m, seed);
    if (!err && far_session_call(m->session, FAR_STATS_OTHER, false, touch_task, NULL) < 0)
        err = cli_failed("the pool's memory cannot be written");
    if (!err)
        err = measure_all(m, measurements, count);
    if (!err) {
        double sim_rate = sim_verbs_per_second(seed);
        if (sim_rate <= 0)
            err = CLI_FAILED;
        if (!err && table)
            print_table(measurements, count, sim_rate, table);
        if (!err && json)
            print_json(measurements, count, sim_rate, json);
    }
    far_context_free(m->inner);
    if (m->plain && m->plain != MAP_FAILED)
        munmap(m->plain, MEMORY_BYTES);
    far_session_close(m->session);
    far_pool_close(m->pool);
    free(m);
    return err;
}
