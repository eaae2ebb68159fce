/* Processes that open the pool, write one pair and are killed at once, one after the other. No process lives long
 * enough to detect that earlier ones have failed, and each leaves allocated memory. Proves that a process which needs
 * memory collects it, in a pool without any free memory. This is done for every kind. */
#include "conform.h"
#include "test.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define LIVES 32 /* number of processes, which leave more memory than the pool has */

static char path[64], uri[96];


static int open_all(rig *r) {
    int err = far_pool_open(uri, NULL, &r->pool);
    if (err == 0)
        err = far_session_open(r->pool, &r->session);
    if (err == 0)
        err = far_index_open(r->session, "i", &r->index);
    return err;
}


static void close_all(rig *r) {
    far_index_close(r->index);
    far_session_close(r->session);
    far_pool_close(r->pool);
}


static void make_pool(const char *kind, const char *size) {
    rig r = {0};
    snprintf(path, sizeof(path), "/dev/shm/farindex-short-%d", (int)getpid());
    snprintf(uri, sizeof(uri), "shm:%s?size=%s", path, size);
    assert_ok(far_pool_open(uri, NULL, &r.pool));
    assert_ok(far_session_open(r.pool, &r.session));
    assert_ok(far_index_create(r.session, "i", kind, NULL, &r.index));
    close_all(&r);
}


static void put_and_die(unsigned number) {
    rig r = {0};
    char key[16];
    alarm(60);
    int err = open_all(&r);
    if (err == 0)
        err = far_put(r.session, r.index, key, (size_t)sprintf(key, "k%u", number), "value", 5);
    if (err == 0)
        raise(SIGKILL);
    print_error("process %u: %d: %s\n", number, err, far_last_error());
    fflush(NULL);
    _exit(1);
}


TEST_FUNCTION(memory_of_killed_processes_is_reclaimed) {
    const char *kind = *state;
    rig r = {0};
    far_pool_usage usage;
    int problems = 0, status;
    make_pool(kind, "1M");
    for (unsigned i = 0; i < LIVES; i++) {
        fflush(NULL);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0)
            put_and_die(i);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    }
    assert_ok(open_all(&r));
    for (unsigned i = 0; i < LIVES; i++) {
        char key[16];
        size_t length = (size_t)sprintf(key, "k%u", i);
        assert_value(r.session, r.index, key, length, "value", 5);
    }
    assert_ok(far_pool_check(r.session, 1, count_problem, &problems));
    assert_int_equal(problems, 0);
    assert_pool_is_sound(r.session);
    assert_ok(far_pool_stat(r.session, &usage));
    assert_int_equal(usage.leaked, 0);
    assert_int_equal(usage.sessions, 2);
    close_all(&r);
}


static void open_and_die(void) {
    rig r = {0};
    alarm(60);
    int err = far_pool_open(uri, NULL, &r.pool);
    if (err == 0)
        err = far_session_open(r.pool, &r.session);
    if (err == 0)
        raise(SIGKILL);
    print_error("%d: %s\n", err, far_last_error());
    fflush(NULL);
    _exit(1);
}


TEST_FIXTURE(remove_pool) {
    unlink(path);
    return 0;
}


/* Proves that the ids of failed clients are used again. The small pool has 64 ids, and each process takes two of them,
 * for its session and for its handle. */
TEST_WITH(ids_of_killed_processes_are_reused, NULL, remove_pool) {
    rig r = {0};
    make_pool("dart", "1M");
    for (unsigned i = 0; i < 48; i++) {
        int status;
        fflush(NULL);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0)
            open_and_die();
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    }
    assert_ok(open_all(&r));
    close_all(&r);
}


/* Inserts small pairs until there is no memory. */
static void fill_and_die(void) {
    rig r = {0};
    alarm(60);
    int err = open_all(&r);
    for (unsigned i = 0; err == 0; i++) {
        char key[16];
        err = far_put(r.session, r.index, key, (size_t)sprintf(key, "k%u", i), "v", 1);
    }
    if (err == FAR_ERR_NO_MEMORY)
        raise(SIGKILL);
    print_error("%d: %s\n", err, far_last_error());
    fflush(NULL);
    _exit(1);
}


/* Proves that another process can open the full pool, read its data, and delete pairs to make room. */
TEST_FUNCTION(a_full_pool_can_be_opened) {
    const char *kind = *state;
    rig r = {0};
    int status;
    make_pool(kind, "1M");
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        fill_and_die();
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_ok(open_all(&r));
    for (unsigned i = 0; i < 1000; i++) {
        char key[16];
        size_t length = (size_t)sprintf(key, "k%u", i);
        assert_value(r.session, r.index, key, length, "v", 1);
        assert_ok(far_delete(r.session, r.index, key, length));
    }
    if (strcmp(kind, "toy") != 0) /* A put of toy writes all pairs of a slot again, which may need much memory. */
        assert_ok(far_put(r.session, r.index, "new", 3, "v", 1));
    close_all(&r);
}


TEST_GENERATOR(add_kinds) {
    const char *kinds[CONFORM_KINDS];
    size_t count = conform_kinds(kinds);
    for (size_t i = 0; i < count; i++) {
        char name[64];
        test_add(kinds[i], memory_of_killed_processes_is_reclaimed, NULL, remove_pool, (void *)kinds[i]);
        snprintf(name, sizeof(name), "%s full", kinds[i]);
        test_add(name, a_full_pool_can_be_opened, NULL, remove_pool, (void *)kinds[i]);
    }
}
