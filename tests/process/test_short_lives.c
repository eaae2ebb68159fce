/* Processes that open the pool, write something and are killed at once, one after the other: none of them lives long
 * enough to notice that those before it died, and each leaves the memory it had taken. Whoever needs memory then sweeps
 * what they left, in a pool in which nothing is free any more. For every kind. */
#include "conform.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define LIVES 32 /* more than fill the pool */

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


static void live_shortly(unsigned number) {
    rig r = {0};
    char key[16];
    alarm(60);
    int err = open_all(&r);
    if (err == 0)
        err = far_put(r.session, r.index, key, (size_t)sprintf(key, "k%u", number), "value", 5);
    if (err == 0)
        raise(SIGKILL);
    print_error("life %u: %d: %s\n", number, err, far_last_error());
    fflush(NULL);
    _exit(1);
}


static void what_the_short_lived_leave_comes_back(void **state) {
    const char *kind = *state;
    rig r = {0};
    far_pool_usage usage;
    int told = 0, status;
    make_pool(kind, "1M");
    for (unsigned i = 0; i < LIVES; i++) {
        fflush(NULL);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0)
            live_shortly(i);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    }
    assert_ok(open_all(&r));
    for (unsigned i = 0; i < LIVES; i++) {
        char key[16];
        size_t length = (size_t)sprintf(key, "k%u", i);
        assert_value(r.session, r.index, key, length, "value", 5);
    }
    assert_ok(far_pool_check(r.session, 1, count_problem, &told));
    assert_int_equal(told, 0);
    assert_pool_is_sound(r.session);
    assert_ok(far_pool_stat(r.session, &usage));
    assert_int_equal(usage.leaked, 0);
    assert_int_equal(usage.sessions, 2);
    close_all(&r);
}


static void come_in_and_die(void) {
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


/* Each of them takes two of the 64 that so small a pool has, for itself and for its handle. */
static void ids_of_the_short_lived_come_back(void **state) {
    rig r = {0};
    (void)state;
    make_pool("dart", "1M");
    for (unsigned i = 0; i < 48; i++) {
        int status;
        fflush(NULL);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0)
            come_in_and_die();
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    }
    assert_ok(open_all(&r));
    close_all(&r);
}


/* Small pairs, until nothing fits any more. */
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


/* Its data can be read, and room be made. */
static void a_pool_that_was_filled_to_the_brim_can_be_opened(void **state) {
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
    if (strcmp(kind, "toy") != 0) /* which writes all pairs of a slot anew, and may need much room for that */
        assert_ok(far_put(r.session, r.index, "new", 3, "v", 1));
    close_all(&r);
}


static int remove_pool(void **state) {
    (void)state;
    unlink(path);
    return 0;
}


int main(void) {
    const char *kinds[CONFORM_KINDS];
    size_t count = conform_kinds(kinds);
    struct CMUnitTest tests[2 * CONFORM_KINDS + 1];
    for (size_t i = 0; i < count; i++) {
        tests[2 * i] =
            (struct CMUnitTest){kinds[i], what_the_short_lived_leave_comes_back, NULL, remove_pool, (void *)kinds[i]};
        tests[2 * i + 1] = (struct CMUnitTest){kinds[i], a_pool_that_was_filled_to_the_brim_can_be_opened, NULL,
                                               remove_pool, (void *)kinds[i]};
    }
    tests[2 * count] = (struct CMUnitTest)cmocka_unit_test_teardown(ids_of_the_short_lived_come_back, remove_pool);
    return _cmocka_run_group_tests("short lives", tests, 2 * count + 1, NULL, NULL);
}
