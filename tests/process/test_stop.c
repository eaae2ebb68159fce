/* A process that is stopped has not failed. Proves that its locks are not taken over, and that clients which do not
 * need its locks continue; and that after it was evicted, which ends it, the other clients continue. FARINDEX_STOP_MS
 * sets how long it is stopped. */
#include "base/bytes.h"
#include "base/sanitizer.h"
#include "client/end_client.h"
#include "conform.h"
#include "crew.h"
#include "index/toy/toy.h"
#include "pool/epoch/epoch.h"
#include "pool/handle.h"
#include "stalls.h"
#include "test.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* limit for operations that do not wait for the stopped process, in time with a processor */
#define SOON_NS ((FAR_TSAN || FAR_ASAN ? 5 : 1) * 500000000ll)
/* limit for operations that wait, in time with a processor; the process remains stopped meanwhile */
#define STUCK_NS (10 * 1000000000ll)

static char path[64], uri[96];
static stalls line; /* records when processes wait for a processor */


static int64_t stop_ns(void) {
    const char *text = getenv("FARINDEX_STOP_MS");
    return (text ? strtoll(text, NULL, 10) : FAR_ASAN || FAR_TSAN ? 1000 : 5000) * 1000000;
}


static void pause_for(int64_t ns) {
    nanosleep(&(struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000}, NULL);
}


TEST_FIXTURE(name_pool) {
    snprintf(path, sizeof(path), "/dev/shm/farindex-stop-%d", (int)getpid());
    snprintf(uri, sizeof(uri), "shm:%s?size=256M", path);
    unlink(path);
    stalls_begin(&line);
    return 0;
}


TEST_FIXTURE(remove_pool) {
    unlink(path);
    stalls_end(&line);
    stalls_free(&line);
    return 0;
}


static void stop_process(pid_t pid) {
    int status;
    assert_int_equal(kill(pid, SIGSTOP), 0);
    assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    assert_true(WIFSTOPPED(status));
}


/* Returns whether the operation ended in time. The pause lets `line` record waits at the end of the interval, too. */
static bool is_soon(int64_t from, int64_t to) {
    if (to - from < SOON_NS)
        return true;
    pause_for(100000000);
    return stalls_fair_time(&line, from, to) < SOON_NS;
}


/* ---- A stopped process holds a lock ---- */

typedef struct locking {
    far_index *index;
    uint64_t slot;
} locking;


static int lock_and_stop(far_task *t, void *arg) {
    const locking *l = arg;
    int err = far_pin_take(t);
    if (err == 0)
        err = toy_lock_slot(t, l->index, l->slot);
    if (err == 0)
        raise(SIGSTOP);
    if (err == 0)
        err = toy_unlock_slot(t, l->index, l->slot);
    far_pin_drop(t);
    return err;
}


/* The process that locks the slot of "held", stops with the lock, and frees it when it is continued. */
static void run_lock_holder(void) {
    far_pool *pool = NULL;
    far_session *session = NULL;
    locking l = {0};
    int err = far_pool_open(uri, NULL, &pool);
    if (err == 0)
        err = far_session_open(pool, &session);
    if (err == 0)
        err = far_index_open(session, "map", &l.index);
    if (err == 0) {
        l.slot = toy_slot_of(l.index, (far_bytes){(const uint8_t *)"held", 4});
        err = far_session_call(session, FAR_STATS_OTHER, false, lock_and_stop, &l);
    }
    far_index_close(l.index);
    far_session_close(session);
    far_pool_close(pool);
    _exit(err ? 1 : 0);
}


typedef struct waiter {
    rig *r;
    far_session *session;
    _Atomic int64_t done_at;
    int result;
} waiter;


static void *put_held(void *arg) {
    waiter *w = arg;
    w->result = far_put(w->session, w->r->index, "held", 4, "new", 3);
    atomic_store_explicit(&w->done_at, crew_now(), memory_order_release);
    return NULL;
}


/* Chooses a key of another slot than that of "held". */
static void choose_free_key(far_index *index, char key[16]) {
    uint64_t held = toy_slot_of(index, (far_bytes){(const uint8_t *)"held", 4});
    for (unsigned i = 0;; i++) {
        snprintf(key, 16, "free%u", i);
        if (toy_slot_of(index, (far_bytes){(const uint8_t *)key, strlen(key)}) != held)
            return;
    }
}


static pid_t start_holder(void) {
    int status;
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        run_lock_holder();
    assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    assert_true(WIFSTOPPED(status));
    return pid;
}


static void make_map(void) {
    far_pool *pool = NULL;
    far_session *session = NULL;
    far_index *index = NULL;
    assert_ok(far_pool_open(uri, NULL, &pool));
    assert_ok(far_session_open(pool, &session));
    assert_ok(far_index_create(session, "map", "toy", "locks=on", &index));
    assert_ok(far_put(session, index, "held", 4, "old", 3));
    far_index_close(index);
    far_session_close(session);
    far_pool_close(pool);
}


static void open_map(rig *r) {
    *r = (rig){0};
    assert_ok(far_pool_open(uri, NULL, &r->pool));
    assert_ok(far_session_open(r->pool, &r->session));
    assert_ok(far_index_open(r->session, "map", &r->index));
}


static void close_map(rig *r) {
    far_index_close(r->index);
    far_session_close(r->session);
    far_pool_close(r->pool);
}


static unsigned id_of_process(const rig *r, pid_t pid);


/* A process is stopped while it holds a lock. Proves that an operation which needs the lock waits, and that all other
 * operations complete at once. Then the process is continued or, with `evict`, evicted, and the waiting operation
 * completes. */
static void stop_a_lock_holder(bool evict) {
    rig r;
    char key[16];
    make_map();
    pid_t pid = start_holder();
    open_map(&r);
    choose_free_key(r.index, key);
    waiter w = {.r = &r};
    pthread_t thread;
    stalls_watch(&line, 0, getpid());
    assert_ok(far_session_open(r.pool, &w.session));
    assert_int_equal(pthread_create(&thread, NULL, put_held, &w), 0);
    for (int64_t begin = crew_now(); crew_now() - begin < stop_ns();) {
        int64_t start = crew_now();
        assert_ok(far_put(r.session, r.index, key, strlen(key), "v", 1));
        assert_value(r.session, r.index, "held", 4, "old", 3); /* gets need no lock */
        assert_true(is_soon(start, crew_now()));
        assert_int_equal(atomic_load_explicit(&w.done_at, memory_order_acquire), 0);
        pause_for(5000000);
    }
    int64_t freed = crew_now();
    far_client_info killed = {0};
    if (evict)
        assert_ok(far_pool_evict(r.session, id_of_process(&r, pid), 0, false, &killed));
    else
        assert_int_equal(kill(pid, SIGCONT), 0);
    pthread_join(thread, NULL);
    assert_ok(w.result);
    assert_true(is_soon(freed, atomic_load_explicit(&w.done_at, memory_order_acquire)));
    assert_value(r.session, r.index, "held", 4, "new", 3);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (evict) {
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        assert_int_equal(killed.process, pid);
    } else {
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    far_session_close(w.session);
    int problems = 0;
    assert_ok(far_pool_check(r.session, 1, count_problem, &problems));
    assert_int_equal(problems, 0);
    assert_pool_is_sound(r.session);
    close_map(&r);
}


TEST_WITH(a_stopped_process_keeps_its_lock, name_pool, remove_pool) {
    stop_a_lock_holder(false);
}


TEST_WITH(the_lock_of_an_evicted_process_is_taken_over, name_pool, remove_pool) {
    stop_a_lock_holder(true);
}


/* ---- Which clients can be evicted ---- */

typedef struct search {
    pid_t pid;
    unsigned id, found;
} search;


static int match_process(void *ctx, const far_client_info *client) {
    search *s = ctx;
    if (client->process == s->pid && !client->own) {
        s->id = client->id;
        s->found++;
    }
    return 0;
}


static unsigned id_of_process(const rig *r, pid_t pid) {
    search s = {.pid = pid};
    assert_true(far_pool_clients(r->session, match_process, &s) >= 0);
    assert_int_equal(s.found, 2); /* the process has two clients: its session, and its handle */
    return s.id;
}


TEST_WITH(only_other_live_clients_can_be_evicted, name_pool, remove_pool) {
    rig r;
    far_client_info killed;
    make_map();
    open_map(&r);
    assert_code(FAR_ERR_NOT_FOUND, far_pool_evict(r.session, 16000, 0, false, &killed));
    assert_code(FAR_ERR_NOT_FOUND, far_pool_evict(r.session, 0, 0, false, &killed));
    assert_code(FAR_ERR_INVALID, far_pool_evict(r.session, r.session->id, 0, false, &killed));
    assert_ok(far_put(r.session, r.index, "k", 1, "v", 1)); /* the caller was not evicted */
    close_map(&r);
}


/* ---- Every kind: processes are stopped in the middle of work ---- */

static uint64_t count_operations_of_others(const crew *c, unsigned place) {
    uint64_t done = 0;
    for (unsigned i = 0; i < c->places; i++)
        if (i != place)
            done += atomic_load_explicit(&c->book->done_by[i], memory_order_relaxed);
    return done;
}


static bool kind_has_no_locks(const char *kind) {
    return strcmp(kind, "dart") == 0 || strcmp(kind, "toy") == 0;
}


static void assert_work_goes_on(const crew *c, unsigned without) {
    char words[512];
    uint64_t before = count_operations_of_others(c, without);
    for (int64_t begin = crew_now(); count_operations_of_others(c, without) < before + 20; pause_for(1000000))
        if (crew_broken(c, words, sizeof(words)))
            fail_msg("%s", words);
        else if (crew_now() - begin > STUCK_NS && stalls_fair_time(&line, begin, crew_now()) > STUCK_NS)
            fail_msg("no operation completed for %lld ms", (long long)STUCK_NS / 1000000);
}


TEST_FUNCTION(stopped_processes_do_no_harm) {
    const char *kind = *state;
    crew c;
    rig r = {0};
    far_client_info killed;
    crew_up(&c, uri, kind, NULL, 4, 200000);
    c.pace_ns = 500000;
    for (unsigned i = 0; i < c.places; i++) {
        crew_start(&c, i);
        stalls_watch(&line, i, c.pids[i]);
    }
    assert_work_goes_on(&c, CREW_MAX);
    for (unsigned i = 0; i < 12; i++) { /* many short stops, so that some are in the middle of a change */
        unsigned place = i % c.places;
        stop_process(c.pids[place]);
        pause_for(i == 0 ? stop_ns() : 30000000);
        if (kind_has_no_locks(kind))
            assert_work_goes_on(&c, place);
        assert_int_equal(kill(c.pids[place], SIGCONT), 0);
        assert_work_goes_on(&c, CREW_MAX);
    }
    stop_process(c.pids[2]);
    assert_ok(far_pool_open(uri, NULL, &r.pool));
    assert_ok(far_session_open(r.pool, &r.session));
    assert_ok(far_pool_evict(r.session, id_of_process(&r, c.pids[2]), 0, false, &killed));
    far_session_close(r.session);
    far_pool_close(r.pool);
    int status;
    assert_int_equal(waitpid(c.pids[2], &status, 0), c.pids[2]);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    c.pids[2] = 0;
    assert_work_goes_on(&c, CREW_MAX);
    crew_finish(&c);
    int64_t longest;
    uint64_t cut;
    far_history *history = crew_history(&c, &longest, &cut);
    crew_verify(&c, history);
    far_history_free(history);
    crew_down(&c);
}


TEST_GENERATOR(add_kinds) {
    const char *kinds[CONFORM_KINDS];
    size_t count = conform_kinds(kinds);
    for (size_t i = 0; i < count; i++)
        test_add(kinds[i], stopped_processes_do_no_harm, name_pool, remove_pool, (void *)kinds[i]);
}
