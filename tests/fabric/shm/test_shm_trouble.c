/* Tests of the fabric `shm` when the pool file, or the descriptors of a process, change while the pool is in use. Code
 * that might end the process runs in a child process. */
#define _GNU_SOURCE
#include "conform.h"
#include "fabric/shm/shm.h"
#include "pool/handle.h"
#include "test.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char path[64], uri[96];


TEST_FIXTURE(name_pool) {
    static unsigned serial;
    snprintf(path, sizeof(path), "/dev/shm/farindex-trouble-%d-%u", (int)getpid(), ++serial);
    snprintf(uri, sizeof(uri), "shm:%s?size=8M", path);
    return 0;
}


TEST_FIXTURE(remove_pool) {
    unlink(path);
    return 0;
}


/* Runs a function in a child process. Returns 0 on success, 1 if the function returned the line of a failed check, or
 * the negative number of the signal that killed the child. */
static int run_child(int (*run)(long arg), long arg) {
    int status;
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        alarm(60);
        int line = run(arg);
        if (line)
            print_error("line %d: %s\n", line, far_last_error());
        fflush(NULL);
        _exit(line ? 1 : 0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}


#define MUST(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            return __LINE__;                                                                                           \
    } while (0)


typedef struct handle {
    far_pool *pool;
    far_session *session;
    far_index *index;
} handle;


static int open_handle(handle *h, bool thread) {
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    options.no_thread = !thread;
    *h = (handle){0};
    int err = far_pool_open(uri, &options, &h->pool);
    if (err == 0)
        err = far_session_open(h->pool, &h->session);
    if (err == 0)
        err = far_index_create(h->session, "i", "toy", "slots=16", &h->index);
    if (err == 0)
        err = far_put(h->session, h->index, "k", 1, "v", 1);
    return err;
}


static void close_handle(handle *h) {
    far_index_close(h->index);
    far_session_close(h->session);
    far_pool_close(h->pool);
}


static int get_key(handle *h) {
    char value[8];
    size_t length;
    return far_get(h->session, h->index, "k", 1, value, sizeof(value), &length);
}


/* Lets housekeeping check the pool file. Housekeeping checks the file at most once per millisecond, so the function
 * waits first. */
static void run_housekeeping(handle *h) {
    usleep(2000);
    far_pool_poll(h->pool);
}


static bool fails_with(int err, const char *word) {
    return (err == FAR_ERR_UNREACHABLE || err == FAR_ERR_FENCED) && strstr(far_last_error(), word);
}


/* Checks that every call returns an error with this word in its message, and that the handles can be closed. Returns 0,
 * or the line of the failed check. */
static int expect_loss(handle *h, const char *word) {
    far_pool *again = NULL;
    far_session *session = NULL;
    far_index *index = NULL;
    MUST(fails_with(get_key(h), word));
    MUST(fails_with(get_key(h), word));
    MUST(fails_with(far_put(h->session, h->index, "k", 1, "w", 1), word));
    MUST(fails_with(far_index_create(h->session, "j", "toy", NULL, &index), word));
    MUST(far_session_open(h->pool, &session) < 0);
    MUST(fails_with(far_pool_open(uri, NULL, &again), word));
    MUST(!again && !session && !index);
    close_handle(h);
    return 0;
}


/* ---- The file is truncated ---- */

static int truncate_and_continue(long bytes) {
    handle h;
    MUST(open_handle(&h, false) == 0);
    MUST(get_key(&h) == 0);
    MUST(truncate(path, bytes) == 0);
    run_housekeeping(&h);
    int line = expect_loss(&h, "truncated");
    MUST(line == 0);
    far_pool *again = NULL; /* No handle has the file open any more, so the pool can be opened again. */
    MUST(far_pool_open(uri, NULL, &again) == FAR_ERR_CORRUPT);
    return 0;
}


/* The file is truncated to various sizes while a pool is open. After the next check by housekeeping, all calls return
 * errors, and the process is not killed by SIGBUS. Fails without shm_renew. */
TEST_WITH(a_file_truncated_in_use_is_an_error_after_the_next_check, name_pool, remove_pool) {
    static const long sizes[] = {0,
                                 8,
                                 sizeof(shm_header),
                                 SHM_PAGE,
                                 SHM_CLIENTS_AT + 100 * sizeof(shm_client),
                                 SHM_NODES_AT,
                                 SHM_NODES_AT + 5000,
                                 SHM_NODES_AT + (4 << 20),
                                 SHM_NODES_AT + (8 << 20) - 1};
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        int status = run_child(truncate_and_continue, sizes[i]);
        if (status)
            fail_msg("after a truncation to %ld bytes the child ended with %d", sizes[i], status);
        unlink(path);
    }
}


/* Truncates only the last page, which no thread accesses, so that no SIGBUS arrives before the check. */
static int truncate_with_housekeeping_thread(long bytes) {
    handle h;
    MUST(open_handle(&h, true) == 0);
    const shm_mapping *mapping = ((const shm_fabric *)h.pool->fabric)->mapping;
    MUST(truncate(path, bytes) == 0);
    while (!atomic_load_explicit(&mapping->failure, memory_order_relaxed))
        usleep(1000);
    while (!atomic_load_explicit(&h.pool->fabric->gone, memory_order_acquire))
        usleep(1000);
    return expect_loss(&h, "truncated");
}


/* An idle process with a housekeeping thread notices the truncation, too. Only a process that accesses the missing part
 * at that moment gets the signal. */
TEST_WITH(an_idle_process_survives_a_truncation, name_pool, remove_pool) {
    assert_int_equal(run_child(truncate_with_housekeeping_thread, SHM_NODES_AT + (8 << 20) - 4096), 0);
}


static int truncate_then_open(long bytes) {
    handle h;
    far_pool *again = NULL;
    MUST(open_handle(&h, false) == 0);
    MUST(truncate(path, bytes) == 0);
    /* The open fails although the mapping of this process still exists. */
    MUST(fails_with(far_pool_open(uri, NULL, &again), "truncated"));
    MUST(fails_with(far_session_open(h.pool, &h.session), "truncated"));
    return 0;
}


/* After a truncation, opening the pool or a session returns an error, even before housekeeping has checked the file.
 * Fails without the call of shm_check_file in shm_connect. */
TEST_WITH(a_truncated_file_is_not_opened_through_a_mapping, name_pool, remove_pool) {
    assert_int_equal(run_child(truncate_then_open, 0), 0);
}


/* ---- Descriptors are closed ---- */

static int lose_a_descriptor(long which) {
    handle h;
    MUST(open_handle(&h, false) == 0);
    const shm_mapping *mapping = ((const shm_fabric *)h.pool->fabric)->mapping;
    int number = which % 2 ? mapping->lock_descriptor : mapping->query_descriptor;
    if (which < 2)
        close(number);
    else /* In the other cases another file gets the number of the descriptor. */
        MUST(dup2(open("/dev/null", O_RDWR | O_CLOEXEC), number) == number);
    run_housekeeping(&h);
    return expect_loss(&h, "descriptor");
}


/* A program closes the descriptors of the library, or gives their numbers to another file. The locks are lost then, so
 * the sessions must end. Fails without is_same_file. */
TEST_WITH(closed_descriptors_end_the_sessions, name_pool, remove_pool) {
    for (long which = 0; which < 4; which++) {
        assert_int_equal(run_child(lose_a_descriptor, which), 0);
        unlink(path);
    }
}


static int open_without_descriptors(long left) {
    struct rlimit limit;
    far_pool *pool = NULL;
    int next = dup(0);
    close(next);
    getrlimit(RLIMIT_NOFILE, &limit);
    rlim_t before = limit.rlim_cur;
    limit.rlim_cur = (rlim_t)(next + left);
    MUST(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    int err = far_pool_open(uri, NULL, &pool);
    limit.rlim_cur = before;
    setrlimit(RLIMIT_NOFILE, &limit);
    MUST(err == FAR_ERR_UNREACHABLE && !pool && strstr(far_last_error(), "Too many open files"));
    handle h;
    MUST(open_handle(&h, false) == 0); /* The open succeeds when more descriptors are available. */
    close_handle(&h);
    MUST(unlink(path) == 0);
    return 0;
}


/* Opening a pool without enough descriptors returns an error, and works later when there are enough. */
TEST_WITH(too_few_descriptors_are_an_error, name_pool, remove_pool) {
    for (long left = 0; left < 3; left++)
        assert_int_equal(run_child(open_without_descriptors, left), 0);
}


/* ---- Another file gets the path ---- */

static int replace_file(long arg) {
    (void)arg;
    handle before, after;
    MUST(open_handle(&before, true) == 0);
    MUST(unlink(path) == 0);
    MUST(open_handle(&after, true) == 0); /* An index of the same name can be created, so this is another pool. */
    MUST(far_put(after.session, after.index, "k", 1, "new", 3) == 0);
    char value[8];
    size_t length = 0;
    MUST(far_get(before.session, before.index, "k", 1, value, sizeof(value), &length) == 0);
    MUST(length == 1 && value[0] == 'v');
    close_handle(&before);
    MUST(get_key(&after) == 0);
    close_handle(&after);
    return 0;
}


/* The pool file is removed and a new one is created at its path. The first handle continues to use the old file, the
 * second one the new file. */
TEST_WITH(a_file_in_place_of_another_is_a_pool_of_its_own, name_pool, remove_pool) {
    assert_int_equal(run_child(replace_file, 0), 0);
}


/* ---- Fork ---- */

static int close_what_was_inherited(long arg) {
    (void)arg;
    handle h;
    int status;
    MUST(open_handle(&h, false) == 0);
    pid_t pid = fork();
    if (pid == 0) { /* A child must not close an inherited connection, but if it does, this must not harm the parent. */
        alarm(30);
        far_conn *conn = h.session->conn;
        conn->fabric->ops->disconnect(conn);
        far_pool *own = NULL;
        _exit(far_pool_open(uri, NULL, &own) == 0 ? 0 : 1);
    }
    MUST(waitpid(pid, &status, 0) == pid && status == 0);
    MUST(h.session->conn->fabric->ops->has_failed(h.pool->team.own->conn, h.session->id, h.session->generation) == 0);
    MUST(get_key(&h) == 0);
    MUST(far_put(h.session, h.index, "k", 1, "w", 1) == 0);
    close_handle(&h);
    return 0;
}


/* A forked child closes a connection that it has inherited, and opens the pool itself. The session of the parent stays
 * alive and continues to work. Fails if after_fork_in_child does not reset the ids of inherited connections. */
TEST_WITH(a_child_that_closes_an_inherited_connection_does_not_harm_its_parent, name_pool, remove_pool) {
    assert_int_equal(run_child(close_what_was_inherited, 0), 0);
}
