/* The fabric shm when something happens to the file of a pool, or to its descriptors, while it is in use. What could
 * end the process runs in one of its own. */
#define _GNU_SOURCE
#include "conform.h"
#include "fabric/shm.h"
#include "pool/handle.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char path[64], uri[96];


static int name_pool(void **state) {
    static unsigned serial;
    (void)state;
    snprintf(path, sizeof(path), "/dev/shm/farindex-trouble-%d-%u", (int)getpid(), ++serial);
    snprintf(uri, sizeof(uri), "shm:%s?size=8M", path);
    return 0;
}


static int remove_pool(void **state) {
    (void)state;
    unlink(path);
    return 0;
}


/* 0, or the line of what was wrong, or a signal as a negative number. */
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


static int get(handle *h) {
    char value[8];
    size_t length;
    return far_get(h->session, h->index, "k", 1, value, sizeof(value), &length);
}


/* Every millisecond. */
static void look(handle *h) {
    usleep(2000);
    far_pool_poll(h->pool);
}


static bool is_told(int err, const char *word) {
    return (err == FAR_ERR_UNREACHABLE || err == FAR_ERR_FENCED) && strstr(far_last_error(), word);
}


/* Every call fails in words, and the handles can be closed. */
static int expect_loss(handle *h, const char *word) {
    far_pool *again = NULL;
    far_session *session = NULL;
    far_index *index = NULL;
    MUST(is_told(get(h), word));
    MUST(is_told(get(h), word));
    MUST(is_told(far_put(h->session, h->index, "k", 1, "w", 1), word));
    MUST(is_told(far_index_create(h->session, "j", "toy", NULL, &index), word));
    MUST(far_session_open(h->pool, &session) < 0);
    MUST(is_told(far_pool_open(uri, NULL, &again), word));
    MUST(!again && !session && !index);
    close_handle(h);
    return 0;
}


/* ---- The file is cut ---- */

static int cut_and_go_on(long bytes) {
    handle h;
    MUST(open_handle(&h, false) == 0);
    MUST(get(&h) == 0);
    MUST(truncate(path, bytes) == 0);
    look(&h);
    int line = expect_loss(&h, "cut");
    MUST(line == 0);
    far_pool *again = NULL; /* nobody has it open any more */
    MUST(far_pool_open(uri, NULL, &again) == FAR_ERR_CORRUPT);
    return 0;
}


static void a_file_that_is_cut_in_use_is_an_error_once_housekeeping_looked(void **state) {
    (void)state;
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
        int status = run_child(cut_and_go_on, sizes[i]);
        if (status)
            fail_msg("cut to %ld bytes: %d", sizes[i], status);
        unlink(path);
    }
}


/* Only the last page, which nobody touches: the signal must not come first. */
static int cut_beside_the_thread(long bytes) {
    handle h;
    MUST(open_handle(&h, true) == 0);
    const shm_world *world = ((const shm_fabric *)h.pool->fabric)->world;
    MUST(truncate(path, bytes) == 0);
    while (!atomic_load_explicit(&world->broken, memory_order_relaxed))
        usleep(1000);
    while (!atomic_load_explicit(&h.pool->fabric->gone, memory_order_acquire))
        usleep(1000);
    return expect_loss(&h, "cut");
}


/* An idle process looks too: only who is in the middle of work when it happens gets the signal. */
static void an_idle_process_survives_a_cut(void **state) {
    (void)state;
    assert_int_equal(run_child(cut_beside_the_thread, SHM_NODES_AT + (8 << 20) - 4096), 0);
}


static int cut_then_open(long bytes) {
    handle h;
    far_pool *again = NULL;
    MUST(open_handle(&h, false) == 0);
    MUST(truncate(path, bytes) == 0);
    MUST(is_told(far_pool_open(uri, NULL, &again), "cut")); /* though the mapping is there */
    MUST(is_told(far_session_open(h.pool, &h.session), "cut"));
    return 0;
}


static void a_file_that_was_cut_is_not_joined_through_a_mapping(void **state) {
    (void)state;
    assert_int_equal(run_child(cut_then_open, 0), 0);
}


/* ---- The descriptors are closed ---- */

static int lose_a_descriptor(long which) {
    handle h;
    MUST(open_handle(&h, false) == 0);
    const shm_world *world = ((const shm_fabric *)h.pool->fabric)->world;
    int number = which % 2 ? world->holder : world->asker;
    if (which < 2)
        close(number);
    else /* and the number is given to another file */
        MUST(dup2(open("/dev/null", O_RDWR | O_CLOEXEC), number) == number);
    look(&h);
    return expect_loss(&h, "descriptor");
}


/* A program that closes what is not its own: the locks are gone, and so are the sessions. */
static void closed_descriptors_end_the_sessions(void **state) {
    (void)state;
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
    MUST(open_handle(&h, false) == 0); /* with more of them */
    close_handle(&h);
    MUST(unlink(path) == 0);
    return 0;
}


static void too_few_descriptors_are_an_error(void **state) {
    (void)state;
    for (long left = 0; left < 3; left++)
        assert_int_equal(run_child(open_without_descriptors, left), 0);
}


/* ---- Another file under the same path ---- */

static int replace_file(long arg) {
    (void)arg;
    handle before, after;
    MUST(open_handle(&before, true) == 0);
    MUST(unlink(path) == 0);
    MUST(open_handle(&after, true) == 0); /* makes an index: it is not the same pool */
    MUST(far_put(after.session, after.index, "k", 1, "new", 3) == 0);
    char value[8];
    size_t length = 0;
    MUST(far_get(before.session, before.index, "k", 1, value, sizeof(value), &length) == 0);
    MUST(length == 1 && value[0] == 'v');
    close_handle(&before);
    MUST(get(&after) == 0);
    close_handle(&after);
    return 0;
}


static void a_file_in_place_of_another_is_a_pool_of_its_own(void **state) {
    (void)state;
    assert_int_equal(run_child(replace_file, 0), 0);
}


/* ---- Forks ---- */

static int close_what_was_inherited(long arg) {
    (void)arg;
    handle h;
    int status;
    MUST(open_handle(&h, false) == 0);
    pid_t pid = fork();
    if (pid == 0) { /* not allowed, and yet it must do the parent no harm */
        alarm(30);
        far_conn *conn = h.session->conn;
        conn->fabric->ops->disconnect(conn);
        far_pool *own = NULL;
        _exit(far_pool_open(uri, NULL, &own) == 0 ? 0 : 1);
    }
    MUST(waitpid(pid, &status, 0) == pid && status == 0);
    MUST(h.session->conn->fabric->ops->is_dead(h.pool->team.own->conn, h.session->id, h.session->generation) == 0);
    MUST(get(&h) == 0);
    MUST(far_put(h.session, h.index, "k", 1, "w", 1) == 0);
    close_handle(&h);
    return 0;
}


static void a_child_that_closes_what_it_inherited_takes_nothing_from_its_parent(void **state) {
    (void)state;
    assert_int_equal(run_child(close_what_was_inherited, 0), 0);
}


#define TEST(function) cmocka_unit_test_setup_teardown(function, name_pool, remove_pool)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_file_that_is_cut_in_use_is_an_error_once_housekeeping_looked),
        TEST(an_idle_process_survives_a_cut),
        TEST(a_file_that_was_cut_is_not_joined_through_a_mapping),
        TEST(closed_descriptors_end_the_sessions),
        TEST(too_few_descriptors_are_an_error),
        TEST(a_file_in_place_of_another_is_a_pool_of_its_own),
        TEST(a_child_that_closes_what_it_inherited_takes_nothing_from_its_parent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
