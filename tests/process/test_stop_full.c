/* A process that is stopped in the middle of an operation keeps all that others retire from being used again. In a small
 * pool the others run out of memory soon: each of their calls ends after bounded work and names the process; when it
 * goes on they do too; and where they may evict it they go on at once. */
#include "farindex.h"
#include "pool/epoch.h"
#include "task/session.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define VALUE_BYTES  1500u
#define POOL_UPDATES ((16u << 20) / VALUE_BYTES)
#define TRIPS_MAX    200000u /* of an update that waits for memory in vain */
#define REFUSED      20u     /* updates while it is stopped */

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


static void be_stopped(void) {
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


/* A pool with an index of that kind, and a process that is stopped in the middle of an operation. */
static pid_t stop_somebody(const char *kind) {
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
        be_stopped();
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


static void the_error_names_the_process(void **state) {
    worker w;
    char name[32];
    int status, err = 0;
    pid_t pid = stop_somebody(*state);
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
    while ((err = update(&w, 0)) == FAR_ERR_NO_MEMORY) /* the epoch has not moved yet */
        continue;
    assert_int_equal(err, 0);
    for (unsigned i = 1; i < POOL_UPDATES; i++)
        assert_int_equal(update(&w, i), 0);
    close_worker(&w);
}


static void with_eviction_work_goes_on(void **state) {
    worker w;
    int status;
    pid_t pid = stop_somebody(*state);
    open_worker(&w, 1);
    for (unsigned i = 0; i < 3 * POOL_UPDATES; i++) {
        int err = update(&w, i);
        if (err < 0)
            print_error("update %u: %s\n", i, far_last_error());
        assert_int_equal(err, 0);
    }
    assert_int_equal(kill(pid, SIGCONT), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) != 0); /* it was ended, or told */
    close_worker(&w);
}


static int name_pool(void **state) {
    (void)state;
    snprintf(path, sizeof(path), "/dev/shm/farindex-stop-full-%d", (int)getpid());
    snprintf(uri, sizeof(uri), "shm:%s?size=16M", path);
    return 0;
}


static int remove_pool(void **state) {
    (void)state;
    unlink(path);
    return 0;
}


int main(void) {
    static const char *const kinds[] = {"chime", "dart", "dolphin", "shard", "smart"};
    enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };
    static char names[2 * KINDS][32];
    struct CMUnitTest tests[2 * KINDS];
    for (unsigned i = 0; i < 2 * KINDS; i++) {
        const char *kind = kinds[i / 2];
        snprintf(names[i], sizeof(names[i]), "%s%s", kind, i % 2 ? ", evicted" : "");
        tests[i] = (struct CMUnitTest){names[i], i % 2 ? with_eviction_work_goes_on : the_error_names_the_process, NULL,
                                       NULL, (void *)kind};
    }
    return cmocka_run_group_tests(tests, name_pool, remove_pool);
}
