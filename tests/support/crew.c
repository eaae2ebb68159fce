/* Processes that run operations on one pool and record them in a book, a list of records in shared memory (crew.h). */
#include "crew.h"
#include "base/random.h"
#include "conform.h"
#include "verify/verify.h"
#include "workload/value.h"

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define DEPTH 4 /* number of operations that a process at an odd place keeps in flight */

typedef struct job {
    far_op op;
    crew_record *record;
    char key[32], to[32];
    uint8_t value[CREW_VALUE_MAX];
} job;

typedef struct worker {
    crew *crew;
    unsigned place, client;
    bool ordered, lost;
    far_pool *pool;
    far_session *session;
    far_index *index;
    far_random random;
    uint32_t written;
    job jobs[DEPTH];
} worker;


int64_t crew_now(void) {
    struct timespec now;
    /* All processes of a machine read the same CLOCK_MONOTONIC, so their times can be compared. */
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}


/* The keys have different lengths, and some are prefixes of others. */
size_t crew_key(unsigned key, char text[32]) {
    return (size_t)snprintf(text, 32, "hot-%.*s%02u", (int)(key % 4) * 3, "aaaaaaaaaaaa", key);
}


static int key_number(const void *key, size_t key_len) {
    for (unsigned i = 0; i < CREW_KEYS; i++) {
        char text[32];
        if (crew_key(i, text) == key_len && memcmp(text, key, key_len) == 0)
            return (int)i;
    }
    return -1;
}


static size_t value_size(uint64_t version) {
    return 16 + version * 7919 % (CREW_VALUE_MAX - 16);
}


static void report_broken_call(worker *w, const char *what, int result, const char *words) {
    crew_book *book = w->crew->book;
    int none = 0;
    if (!atomic_exchange_explicit(&book->telling, true, memory_order_relaxed))
        snprintf(book->words, sizeof(book->words), "client %u: %s: %d: %s", w->client, what, result, words);
    atomic_compare_exchange_strong_explicit(&book->broken, &none, result ? result : 1, memory_order_release,
                                            memory_order_relaxed);
}


static void report_broken(worker *w, const char *what, int result) {
    report_broken_call(w, what, result, result < 0 ? far_last_error() : "");
}


/* ---- One operation ---- */

static int record_pair(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    crew_record *record = ((job *)ctx)->record;
    int number = key_number(key, key_len);
    uint64_t version = 0;
    if (number < 0 || !far_value_check(value, value_len, key, key_len, &version) || record->pairs == CREW_KEYS)
        /* A scan that is stopped here returns another count than the record has pairs, so the check of the result
         * reports the error. */
        return 1;
    record->pair_keys[record->pairs] = (uint8_t)number;
    record->pair_versions[record->pairs++] = version;
    return 0;
}


static far_op_kind choose_op(worker *w) {
    static const far_op_kind mix[] = {FAR_OP_GET,    FAR_OP_GET, FAR_OP_INSERT, FAR_OP_INSERT, FAR_OP_UPDATE,
                                      FAR_OP_UPDATE, FAR_OP_PUT, FAR_OP_PUT,    FAR_OP_DELETE, FAR_OP_DELETE};
    if (w->ordered && !w->crew->no_scans && far_random_chance(&w->random, 1, 40))
        return FAR_OP_SCAN;
    return mix[far_random_below(&w->random, COUNT_OF(mix))];
}


static unsigned choose_key(worker *w) {
    unsigned share = CREW_KEYS / w->crew->places;
    return w->crew->own_keys ? w->place * share + (unsigned)far_random_below(&w->random, share)
                             : (unsigned)far_random_below(&w->random, CREW_KEYS);
}


/* Chooses an operation and records its beginning in the book, the shared list of records. Returns false if the book is
 * full. */
static bool begin_operation(worker *w, job *j) {
    crew_book *book = w->crew->book;
    uint64_t number = atomic_fetch_add_explicit(&book->used, 1, memory_order_relaxed);
    if (number >= w->crew->limit)
        return false;
    crew_record *record = j->record = &book->records[number];
    record->client = (uint16_t)w->client;
    record->op = (uint8_t)choose_op(w);
    record->key = (uint8_t)choose_key(w);
    far_op *op = &j->op;
    *op = (far_op){.kind = (far_op_kind)record->op, .index = w->index, .key = j->key, .value = j->value, .user = j};
    op->key_len = crew_key(record->key, j->key);
    if (op->kind == FAR_OP_SCAN) {
        record->to = (uint8_t)(far_random_chance(&w->random, 1, 2) ? CREW_KEYS : choose_key(w));
        record->limit = op->limit = far_random_below(&w->random, CREW_KEYS);
        op->to = record->to < CREW_KEYS ? j->to : NULL;
        op->to_len = op->to ? crew_key(record->to, j->to) : 0;
        op->each = record_pair;
        op->each_ctx = j;
    } else if (op->kind == FAR_OP_GET) {
        op->capacity = sizeof(j->value);
    } else if (op->kind != FAR_OP_DELETE) {
        record->version = (uint64_t)w->client << 32 | ++w->written;
        op->value_len = value_size(record->version);
        far_value_fill(j->value, op->value_len, j->key, op->key_len, record->version);
    }
    record->start = crew_now();
    atomic_store_explicit(&record->state, 1, memory_order_release);
    return true;
}


/* Returns whether `result` means that the session was lost, and remembers that. An operation that ends with such a
 * result may or may not have taken effect, so the caller leaves the operation's record in the book in the state
 * "begun". */
static bool note_lost_session(worker *w, int result) {
    bool lost = w->crew->reopens && (result == FAR_ERR_FENCED || result == FAR_ERR_UNREACHABLE);
    w->lost |= lost;
    return lost;
}


static void end_operation(worker *w, job *j) {
    crew_record *record = j->record;
    if (note_lost_session(w, j->op.result))
        return;
    record->end = crew_now();
    record->result = j->op.result;
    if (j->op.kind == FAR_OP_GET && j->op.result == 0 &&
        !far_value_check(j->value, j->op.value_len, j->key, j->op.key_len, &record->version))
        report_broken(w, "a get gave a value that is none of its key", 0);
    bool fine = j->op.result >= 0 || j->op.result == FAR_ERR_NOT_FOUND || j->op.result == FAR_ERR_EXISTS;
    if (!fine)
        report_broken_call(w, far_op_name(j->op.kind), j->op.result,
                           w->place % 2 ? far_op_error(w->session, &j->op) : far_last_error());
    if (j->op.kind == FAR_OP_SCAN && j->op.result >= 0 && j->op.result != record->pairs)
        report_broken(w, "a scan gave a pair that is none", 0);
    atomic_store_explicit(&record->state, 2, memory_order_release);
    atomic_fetch_add_explicit(&w->crew->book->done_by[w->place], 1, memory_order_relaxed);
}


static void run_synchronously(worker *w, far_op *op) {
    switch (op->kind) {
    case FAR_OP_GET:
        op->result = far_get(w->session, op->index, op->key, op->key_len, op->value, op->capacity, &op->value_len);
        break;
    case FAR_OP_INSERT:
        op->result = far_insert(w->session, op->index, op->key, op->key_len, op->value, op->value_len);
        break;
    case FAR_OP_UPDATE:
        op->result = far_update(w->session, op->index, op->key, op->key_len, op->value, op->value_len);
        break;
    case FAR_OP_PUT:
        op->result = far_put(w->session, op->index, op->key, op->key_len, op->value, op->value_len);
        break;
    case FAR_OP_DELETE:
        op->result = far_delete(w->session, op->index, op->key, op->key_len);
        break;
    case FAR_OP_SCAN:
        op->result = (int)far_scan(w->session, op->index, op->key, op->key_len, op->to, op->to_len, op->limit, op->each,
                                   op->each_ctx);
        break;
    }
}


/* ---- A process ---- */

static bool worker_continues(const worker *w) {
    const crew_book *book = w->crew->book;
    return !w->lost && !atomic_load_explicit(&book->stop, memory_order_relaxed) &&
           !atomic_load_explicit(&book->broken, memory_order_relaxed);
}


static bool limit_is_exceeded(const worker *w) {
    const crew_book *book = w->crew->book;
    return atomic_load_explicit(&book->used, memory_order_relaxed) >
               atomic_load_explicit(&book->allowed, memory_order_relaxed) &&
           !atomic_load_explicit(&book->stop, memory_order_relaxed);
}


/* Returns whether the process should pause now. Pauses keep the book, which has a fixed number of records, from being
 * full too soon. */
static bool choose_to_pause(worker *w) {
    return w->crew->pace_ns || limit_is_exceeded(w) || far_random_chance(&w->random, 1, 200);
}


/* Pauses the process. The caller has no operation in flight, because an operation that has finished but is not reaped
 * during the pause would seem to take long. */
static void pause_worker(worker *w) {
    while (limit_is_exceeded(w))
        /* The pause is 5 ms and not shorter, because frequent wake-ups are expensive in a virtual machine. */
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    nanosleep(&(struct timespec){.tv_nsec = w->crew->pace_ns ? w->crew->pace_ns : 50000}, NULL);
}


static void work_one_by_one(worker *w) {
    _Atomic int64_t *since = &w->crew->book->operation_since[w->place];
    while (worker_continues(w) && begin_operation(w, &w->jobs[0])) {
        atomic_store_explicit(since, w->jobs[0].record->start, memory_order_relaxed);
        run_synchronously(w, &w->jobs[0].op);
        end_operation(w, &w->jobs[0]);
        atomic_store_explicit(since, 0, memory_order_relaxed);
        if (choose_to_pause(w))
            pause_worker(w);
    }
}


static void work_in_flight(worker *w) {
    job *idle[DEPTH];
    far_op *done[DEPTH];
    unsigned idle_count = DEPTH;
    bool open = true, pausing = false;
    for (unsigned i = 0; i < DEPTH; i++)
        idle[i] = &w->jobs[i];
    while (open || idle_count < DEPTH) {
        while (idle_count && open && !pausing &&
               (open = worker_continues(w) && begin_operation(w, idle[idle_count - 1]))) {
            far_op *op = &idle[--idle_count]->op;
            int taken = far_submit(w->session, &op, 1);
            if (taken != 1 && !note_lost_session(w, taken))
                report_broken(w, "submit", -100);
            idle_count += w->lost;
        }
        int count = idle_count < DEPTH ? far_reap(w->session, done, DEPTH, 1) : 0;
        if (count < 0) {
            if (!note_lost_session(w, count))
                report_broken(w, "reap", count);
            return;
        }
        for (int i = 0; i < count; i++) {
            end_operation(w, done[i]->user);
            idle[idle_count++] = done[i]->user;
            pausing = pausing || choose_to_pause(w);
        }
        if (pausing && idle_count == DEPTH) {
            pause_worker(w);
            pausing = false;
        }
    }
}


static int open_all(worker *w) {
    int err = far_pool_open(w->crew->uri, NULL, &w->pool);
    if (err == 0)
        err = far_session_open(w->pool, &w->session);
    if (err == 0)
        err = far_index_open(w->session, CREW_INDEX, &w->index);
    return err;
}


static void close_all(worker *w) {
    far_index_close(w->index);
    far_session_close(w->session);
    far_pool_close(w->pool);
    w->index = NULL;
    w->session = NULL;
    w->pool = NULL;
}


/* Runs operations as one client until the crew stops or the session is lost. */
static void run_client(worker *w) {
    w->lost = false;
    w->client = atomic_fetch_add_explicit(&w->crew->book->clients, 1, memory_order_relaxed) + 1;
    w->written = 0;
    int err = open_all(w);
    if (err < 0 && !note_lost_session(w, err))
        report_broken(w, "open", err);
    else if (err == 0 && w->place % 2)
        work_in_flight(w);
    else if (err == 0)
        work_one_by_one(w);
    atomic_store_explicit(&w->crew->book->operation_since[w->place], 0, memory_order_relaxed);
    /* If the crew still continues here, the worker has no room left in the book for further operations. The process
     * then waits until the crew ends. */
    while (worker_continues(w))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    close_all(w);
}


static void run_worker(crew *c, unsigned place) {
    worker *w = calloc(1, sizeof(*w));
    w->crew = c;
    w->place = place;
    w->ordered = conform_kind_is_ordered(c->kind);
    far_random_seed(&w->random, c->seed * 1000003 + place * 1009 + c->done[place]);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (w->lost = true; w->lost && !atomic_load_explicit(&c->book->stop, memory_order_relaxed);) {
        run_client(w);
        if (w->lost)
            nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    _exit(0);
}


/* ---- The crew ---- */

static size_t book_bytes(uint64_t limit) {
    return sizeof(crew_book) + limit * sizeof(crew_record);
}


void crew_begin(crew *c, const char *uri, const char *kind, const char *options, unsigned places, uint64_t limit) {
    *c = (crew){.uri = uri, .kind = kind, .options = options, .seed = 1, .places = places, .limit = limit};
    c->book = mmap(NULL, book_bytes(limit), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert_true(c->book != MAP_FAILED);
    atomic_store_explicit(&c->book->allowed, limit, memory_order_relaxed);
}


void crew_up(crew *c, const char *uri, const char *kind, const char *options, unsigned places, uint64_t limit) {
    far_pool *pool = NULL;
    far_session *session = NULL;
    far_index *index = NULL;
    crew_begin(c, uri, kind, options, places, limit);
    assert_ok(far_pool_open(uri, NULL, &pool));
    assert_ok(far_session_open(pool, &session));
    assert_ok(far_index_create(session, CREW_INDEX, kind, options, &index));
    far_index_close(index);
    far_session_close(session);
    far_pool_close(pool);
}


void crew_start(crew *c, unsigned place) {
    c->done[place] = atomic_load_explicit(&c->book->done_by[place], memory_order_relaxed);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        run_worker(c, place);
    c->pids[place] = pid;
}


void crew_kill(crew *c, unsigned place) {
    int status;
    assert_int_equal(kill(c->pids[place], SIGKILL), 0);
    assert_int_equal(waitpid(c->pids[place], &status, 0), c->pids[place]);
    c->pids[place] = 0;
    atomic_store_explicit(&c->book->operation_since[place], 0, memory_order_relaxed);
}


void crew_await(crew *c, unsigned place, uint64_t operations) {
    while (atomic_load_explicit(&c->book->done_by[place], memory_order_relaxed) < c->done[place] + operations &&
           !atomic_load_explicit(&c->book->broken, memory_order_relaxed))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}


bool crew_broken(const crew *c, char *words, size_t size) {
    if (!atomic_load_explicit(&c->book->broken, memory_order_acquire))
        return false;
    snprintf(words, size, "%s", c->book->words);
    return true;
}


void crew_finish(crew *c) {
    char words[512];
    atomic_store_explicit(&c->book->stop, true, memory_order_relaxed);
    int64_t until = crew_now() + 600000000000; /* A process that does not end within 10 minutes has hung. */
    bool ended_well = true;
    for (unsigned i = 0; i < c->places; i++) {
        int status = 0;
        pid_t got = 0;
        while (c->pids[i] && (got = waitpid(c->pids[i], &status, WNOHANG)) == 0 && crew_now() < until)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        if (c->pids[i] && (got != c->pids[i] || !WIFEXITED(status) || WEXITSTATUS(status) != 0)) {
            print_error("process %d of place %u did not end well: %s, status %x\n", (int)c->pids[i], i,
                        got ? "ended" : "hangs", status);
            ended_well = false;
            if (!got)
                crew_kill(c, i);
        }
        c->pids[i] = 0;
    }
    if (crew_broken(c, words, sizeof(words)))
        fail_msg("%s", words);
    assert_true(ended_well);
}


void crew_down(crew *c) {
    munmap(c->book, book_bytes(c->limit));
}


/* ---- The book as a history ---- */

static void add_scan(far_history *history, const crew_record *record) {
    char from[32], to[32];
    size_t from_len = crew_key(record->key, from), to_len = record->to < CREW_KEYS ? crew_key(record->to, to) : 0;
    size_t index = far_history_begin_scan(history, record->client, from, from_len, to_len ? to : NULL, to_len,
                                          record->limit, false, record->start);
    for (unsigned i = 0; i < record->pairs; i++) {
        char key[32];
        uint8_t value[CREW_VALUE_MAX];
        size_t key_len = crew_key(record->pair_keys[i], key), size = value_size(record->pair_versions[i]);
        far_value_fill(value, size, key, key_len, record->pair_versions[i]);
        far_history_pair_given(history, index, key, key_len, value, size);
    }
    far_history_end(history, index, record->result, NULL, 0, record->end);
}


/* Adds a point operation (not a scan) to the history. Values are represented by their versions, because the values
 * themselves would need much memory. */
static void add_point(far_history *history, const crew_record *record, bool ended) {
    char key[32];
    uint8_t value[CREW_VALUE_MAX];
    size_t key_len = crew_key(record->key, key), size = value_size(record->version);
    bool writes = record->op == FAR_OP_INSERT || record->op == FAR_OP_UPDATE || record->op == FAR_OP_PUT;
    bool found = record->op == FAR_OP_GET && record->result == 0 && ended;
    if (writes || found)
        far_value_fill(value, size, key, key_len, record->version);
    size_t index = far_history_begin(history, record->client, (far_op_kind)record->op, key, key_len,
                                     writes ? value : NULL, writes ? size : 0, record->start);
    if (ended)
        far_history_end(history, index, record->result, found ? value : NULL, found ? size : 0, record->end);
}


far_history *crew_history(const crew *c, int64_t *longest, uint64_t *cut) {
    far_history *history = far_history_new(c->seed);
    uint64_t used = atomic_load_explicit(&c->book->used, memory_order_acquire);
    *longest = 0;
    *cut = 0;
    for (uint64_t i = 0; i < used && i < c->limit; i++) {
        const crew_record *record = &c->book->records[i];
        uint32_t state = atomic_load_explicit(&record->state, memory_order_acquire);
        if (state == 0)
            continue; /* The process was killed before it recorded the beginning of this operation. */
        if (state == 2 && record->end - record->start > *longest)
            *longest = record->end - record->start;
        *cut += state == 1;
        if (record->op != FAR_OP_SCAN)
            add_point(history, record, state == 2);
        else if (state == 2)
            add_scan(history, record);
    }
    return history;
}


static void read_all(far_session *session, far_index *index, far_history *history, unsigned client) {
    for (unsigned i = 0; i < CREW_KEYS; i++) {
        char key[32];
        uint8_t value[CREW_VALUE_MAX];
        size_t key_len = crew_key(i, key), value_len = 0;
        size_t record = far_history_begin(history, client, FAR_OP_GET, key, key_len, NULL, 0, crew_now());
        int result = far_get(session, index, key, key_len, value, sizeof(value), &value_len);
        assert_true(result == 0 || result == FAR_ERR_NOT_FOUND);
        far_history_end(history, record, result, result == 0 ? value : NULL, value_len, crew_now());
    }
}


void crew_verify(crew *c, far_history *history) {
    far_pool *pool = NULL;
    far_session *session = NULL;
    far_index *index = NULL;
    far_pool_usage usage = {0};
    far_verify_report report;
    int told = 0;
    assert_ok(far_pool_open(c->uri, NULL, &pool));
    assert_ok(far_session_open(pool, &session));
    assert_ok(far_index_open(session, CREW_INDEX, &index));
    read_all(session, index, history, atomic_load_explicit(&c->book->clients, memory_order_relaxed) + 1);
    assert_index_is_sound(session, index);
    assert_ok(far_pool_check(session, 1, count_problem, &told));
    assert_int_equal(told, 0);
    assert_pool_is_sound(session);
    assert_ok(far_pool_stat(session, &usage));
    assert_int_equal(usage.leaked, 0);
    /* The two sessions are the session of this test and the system session of its handle. */
    assert_int_equal(usage.sessions, 2);
    far_index_close(index);
    far_session_close(session);
    far_pool_close(pool);
    if (!far_verify_history(history, NULL, 0, stderr, &report))
        fail_msg("%llu violations, %llu keys of which nothing is known", (unsigned long long)report.violations,
                 (unsigned long long)report.gave_up);
}
