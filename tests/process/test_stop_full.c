/* A process that is stopped in the middle of an operation keeps its pin, so memory that other clients retire is not
 * used again. In a small pool the other clients soon run out of memory. Proves that each of their calls then ends after
 * bounded work with an error that names the stopped process; that the calls work again after this process continues;
 * and that the other clients continue without an error if they may evict it. */
#include "farindex.h"
#include "pool/epoch/epoch.h"
#include "task/session.h"
#include "test.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define VALUE_BYTES  1500u
#define POOL_UPDATES ((16u << 20) / VALUE_BYTES)
#define TRIPS_MAX    200000u /* limit for the round trips of an update that waits for memory in vain */
#define REFUSED      20u     /* number of updates that must fail while the process is stopped */

typedef struct worker {
    far_pool *pool;
    far_session *session;
    far_index *index;
} worker;

static char path[64], uri[96];


static void open_worker(worker *w, unsigned evict_after_ms) {
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    options.evict_after_ms = evict_after_ms;
    assert_int_equal(far_pool_open(uri, &options, &w->pool), 0);
    assert_int_equal(far_session_open(w->pool, &w->session), 0);
    assert_int_equal(far_index_open(w->session, "map", &w->index), 0);
}


static void close_worker(worker *w) {
    far_index_close(w->index);
    far_session_close(w->session);
    far_pool_close(w->pool);
}


static int pin_and_stop(far_task *t, void *arg) {
    (void)arg;
    int err = far_pin_take(t);
    if (err == 0)
        raise(SIGSTOP);
    return err;
}


static void run_stopped_process(void) {
    far_pool *pool = NULL;
    far_session *session = NULL;
    int err = far_pool_open(uri, NULL, &pool);
    if (err == 0)
        err = far_session_open(pool, &session);
    if (err == 0)
        err = far_session_call(session, FAR_STATS_OTHER, false, pin_and_stop, NULL);
    far_session_close(session);
    far_pool_close(pool);
    _exit(err ? 1 : 0);
}


/* Creates a pool with an index of this kind, and a process that is stopped in the middle of an operation. */
static pid_t start_and_stop_process(const char *kind) {
    far_pool *pool;
    far_session *session;
    far_index *index;
    int status;
    unlink(path);
    assert_int_equal(far_pool_open(uri, NULL, &pool), 0);
    assert_int_equal(far_session_open(pool, &session), 0);
    assert_int_equal(far_index_create(session, "map", kind, NULL, &index), 0);
    far_index_close(index);
    far_session_close(session);
    far_pool_close(pool);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        run_stopped_process();
    assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    assert_true(WIFSTOPPED(status));
    return pid;
}


static int update(worker *w, unsigned number) {
    char key[16], value[VALUE_BYTES];
    far_stats before, after;
    memset(value, (int)number, sizeof(value));
    size_t key_bytes = (size_t)snprintf(key, sizeof(key), "key %u", number % 16);
    far_session_stats(w->session, &before);
    int err = far_put(w->session, w->index, key, key_bytes, value, sizeof(value));
    far_session_stats(w->session, &after);
    assert_in_range(after.round_trips - before.round_trips, 0, TRIPS_MAX);
    return err;
}


TEST_FUNCTION(the_error_names_the_process) {
    worker w;
    char name[32];
    int status, err = 0;
    pid_t pid = start_and_stop_process(*state);
    open_worker(&w, 0);
    for (unsigned i = 0; i < 3 * POOL_UPDATES && err == 0; i++)
        err = update(&w, i);
    snprintf(name, sizeof(name), "process %d", (int)pid);
    for (unsigned i = 0; i < REFUSED; i++) {
        assert_int_equal(err, FAR_ERR_NO_MEMORY);
        assert_non_null(strstr(far_last_error(), name));
        err = update(&w, i);
    }
    assert_int_equal(kill(pid, SIGCONT), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    while ((err = update(&w, 0)) == FAR_ERR_NO_MEMORY) /* the epoch has not advanced yet */
        continue;
    assert_int_equal(err, 0);
    for (unsigned i = 1; i < POOL_UPDATES; i++)
        assert_int_equal(update(&w, i), 0);
    close_worker(&w);
}


TEST_FUNCTION(with_eviction_updates_succeed) {
    worker w;
    int status;
    pid_t pid = start_and_stop_process(*state);
    open_worker(&w, 1);
    for (unsigned i = 0; i < 3 * POOL_UPDATES; i++) {
        int err = update(&w, i);
        if (err < 0)
            print_error("update %u: %s\n", i, far_last_error());
        assert_int_equal(err, 0);
    }
    assert_int_equal(kill(pid, SIGCONT), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    /* The process was killed, or its operation failed because it was fenced. */
    assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) != 0);
    close_worker(&w);
}


TEST_FIXTURE(name_pool) {
    snprintf(path, sizeof(path), "/dev/shm/farindex-stop-full-%d", (int)getpid());
    snprintf(uri, sizeof(uri), "shm:%s?size=16M", path);
    return 0;
}


TEST_FIXTURE(remove_pool) {
    unlink(path);
    return 0;
}


TEST_GENERATOR(add_kinds) {
    static const char *const kinds[] = {"chime", "dart", "dolphin", "shard", "smart"};
    for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        char name[32];
        test_add(kinds[i], the_error_names_the_process, NULL, NULL, (void *)kinds[i]);
        snprintf(name, sizeof(name), "%s, evicted", kinds[i]);
        test_add(name, with_eviction_updates_succeed, NULL, NULL, (void *)kinds[i]);
    }
}


TEST_GROUP(name_pool, remove_pool);
