/* The memory of a node: verbs by units, files that outlive their daemon, and no half a unit after a kill. */
#define _GNU_SOURCE
#include "fabric/net/memory.h"
#include "farindex.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define SIZE (1u << 20)

static char path[64];


static int set_path(void **state) {
    (void)state;
    snprintf(path, sizeof(path), "/dev/shm/farindex-memory-%d", (int)getpid());
    unlink(path);
    return 0;
}


static int remove_path(void **state) {
    (void)state;
    unlink(path);
    return 0;
}


static void run(net_memory *m, far_verb_kind kind, uint64_t offset, const void *operands, uint32_t length,
                void *results) {
    net_verb verb = {kind, length, offset, operands};
    net_memory_run(m, 0, &verb, results);
}


static void verbs_do_what_they_say(void **state) {
    (void)state;
    net_memory *m;
    uint64_t words[32], got[32], old = 0;
    assert_int_equal(net_memory_open(NULL, SIZE, &m), 0);
    for (int i = 0; i < 32; i++)
        words[i] = (uint64_t)i + 1;
    run(m, FAR_WRITE, 40, words, 200, NULL); /* not at a unit's begin, nor to its end */
    run(m, FAR_READ, 40, NULL, 200, got);
    assert_memory_equal(got, words, 200);
    run(m, FAR_READ, 32, NULL, 216, got);
    assert_int_equal(got[0], 0);
    assert_int_equal(got[26], 0);
    run(m, FAR_CAS, 40, (uint64_t[]){1, 9}, 8, &old);
    assert_int_equal(old, 1);
    run(m, FAR_CAS, 40, (uint64_t[]){1, 5}, 8, &old);
    assert_int_equal(old, 9);
    run(m, FAR_FAA, 40, (uint64_t[]){3}, 8, &old);
    assert_int_equal(old, 9);
    run(m, FAR_MASKED_CAS, 40, (uint64_t[]){0xc, 0xf0, 0xf, 0xf0}, 8, &old);
    assert_int_equal(old, 12);
    run(m, FAR_READ, 40, NULL, 8, &old);
    assert_int_equal(old, 0xfc);
    run(m, FAR_MASKED_CAS, 40, (uint64_t[]){0xb, 0, 0xf, 0xf0}, 8, &old);
    run(m, FAR_READ, 40, NULL, 8, &old);
    assert_int_equal(old, 0xfc);
    net_memory_close(m);
}


static void a_file_keeps_what_it_has(void **state) {
    (void)state;
    net_memory *m, *second;
    uint64_t word = 77, got = 0;
    assert_int_equal(net_memory_open(path, SIZE, &m), 0);
    run(m, FAR_WRITE, 4096, &word, 8, NULL);
    net_join join = {.pool = 5, .node = 1, .nodes = 3};
    net_memory_join(m, &join);
    uint64_t instance = m->header->instance;
    assert_int_equal(net_memory_open(path, SIZE, &second), FAR_ERR_BUSY);
    assert_non_null(strstr(far_last_error(), "another daemon"));
    net_memory_close(m);
    assert_int_equal(net_memory_open(path, 2 * SIZE, &second), FAR_ERR_INVALID);
    assert_int_equal(net_memory_open(path, 0, &m), 0);
    run(m, FAR_READ, 4096, NULL, 8, &got);
    assert_int_equal(got, 77);
    assert_int_equal(m->header->restarts, 1);
    assert_int_equal(m->header->instance, instance);
    join = (net_join){.pool = 6, .node = 0, .nodes = 2, .complete = 1};
    net_memory_join(m, &join); /* the first wins */
    assert_int_equal(join.pool, 5);
    assert_int_equal(join.node, 1);
    assert_int_equal(join.complete, 0);
    net_memory_close(m);
}


static void other_files_are_refused(void **state) {
    (void)state;
    net_memory *m;
    FILE *file = fopen(path, "w");
    for (int i = 0; i < 4 << 10; i++)
        fputs("something else\n", file);
    fclose(file);
    assert_int_equal(net_memory_open(path, SIZE, &m), FAR_ERR_CORRUPT);
    assert_int_equal(net_memory_open("/dev/shm/no/such/folder", SIZE, &m), FAR_ERR_NOT_FOUND);
    assert_int_equal(net_memory_open("/dev/shm", SIZE, &m), FAR_ERR_UNREACHABLE);
    far_pool *pool;
    unlink(path);
    char uri[128];
    snprintf(uri, sizeof(uri), "shm:%s?size=4M", path);
    assert_int_equal(far_pool_open(uri, NULL, &pool), 0);
    far_pool_close(pool);
    assert_int_equal(net_memory_open(path, 0, &m), FAR_ERR_CORRUPT);
    assert_non_null(strstr(far_last_error(), "shm:"));
    unlink(path);
    assert_int_equal(net_memory_open(path, SIZE, &m), 0);
    net_memory_close(m);
    snprintf(uri, sizeof(uri), "shm:%s", path);
    assert_int_equal(far_pool_open(uri, NULL, &pool), FAR_ERR_CORRUPT);
    assert_non_null(strstr(far_last_error(), "farindex serve"));
}


/* ---- Kills ---- */

static unsigned die_after;


static void die_between_words(unsigned thread, unsigned word) {
    if (thread == 0 && word == die_after)
        kill(getpid(), SIGKILL);
}


static void write_and_die(uint64_t value) {
    net_memory *m;
    uint64_t words[8];
    if (net_memory_open(path, SIZE, &m) < 0)
        _exit(1);
    for (int i = 0; i < 8; i++)
        words[i] = value;
    m->between_words = die_between_words;
    run(m, FAR_WRITE, 4096, words, 64, NULL);
    _exit(2);
}


static void assert_unit(uint64_t expected) {
    net_memory *m;
    uint64_t words[8];
    assert_int_equal(net_memory_open(path, SIZE, &m), 0);
    run(m, FAR_READ, 4096, NULL, 64, words);
    for (int i = 0; i < 8; i++)
        assert_int_equal(words[i], expected);
    net_memory_close(m);
}


static void a_kill_leaves_no_half_unit(void **state) {
    (void)state;
    for (die_after = 0; die_after < 8; die_after++) {
        pid_t child = fork();
        if (child == 0)
            write_and_die(100 + die_after);
        int status;
        waitpid(child, &status, 0);
        assert_true(WIFSIGNALED(status));
        assert_unit(100 + die_after);
    }
}


/* One thread wrote the unit and is done; the other, which wrote it before, must not be redone over it. */
static void a_kill_between_two_threads_writes(void **state) {
    (void)state;
    pid_t child = fork();
    if (child == 0) {
        net_memory *m;
        uint64_t words[8];
        if (net_memory_open(path, SIZE, &m) < 0)
            _exit(1);
        for (unsigned thread = 0; thread < 2; thread++) {
            for (int i = 0; i < 8; i++)
                words[i] = 10 + thread;
            net_memory_run(m, 1 - thread, &(net_verb){FAR_WRITE, 64, 4096, (char *)words}, NULL);
        }
        kill(getpid(), SIGKILL);
    }
    int status;
    waitpid(child, &status, 0);
    assert_true(WIFSIGNALED(status));
    assert_unit(11);
}


static void yield_between_words(unsigned thread, unsigned word) {
    (void)thread;
    if (word == 3)
        sched_yield();
}


typedef struct writer {
    net_memory *m;
    unsigned thread;
    unsigned torn;
} writer;


static void *write_and_read(void *arg) {
    writer *w = arg;
    uint64_t words[8], got[8];
    for (int i = 0; i < 8; i++)
        words[i] = w->thread;
    for (unsigned round = 0; round < 3000; round++) {
        net_memory_run(w->m, w->thread, &(net_verb){FAR_WRITE, 64, 4096, (char *)words}, NULL);
        net_memory_run(w->m, w->thread, &(net_verb){FAR_READ, 64, 4096, NULL}, (char *)got);
        for (int i = 1; i < 8; i++)
            w->torn += got[i] != got[0];
    }
    return NULL;
}


static void units_do_not_tear_between_threads(void **state) {
    (void)state;
    net_memory *m;
    writer writers[3];
    pthread_t threads[3];
    assert_int_equal(net_memory_open(path, SIZE, &m), 0);
    m->between_words = yield_between_words; /* others run in the middle of a unit */
    for (unsigned i = 0; i < 3; i++) {
        writers[i] = (writer){m, i, 0};
        pthread_create(&threads[i], NULL, write_and_read, &writers[i]);
    }
    for (unsigned i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(writers[i].torn, 0);
    }
    net_memory_close(m);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(verbs_do_what_they_say),
        cmocka_unit_test_setup_teardown(a_file_keeps_what_it_has, set_path, remove_path),
        cmocka_unit_test_setup_teardown(other_files_are_refused, set_path, remove_path),
        cmocka_unit_test_setup_teardown(a_kill_leaves_no_half_unit, set_path, remove_path),
        cmocka_unit_test_setup_teardown(a_kill_between_two_threads_writes, set_path, remove_path),
        cmocka_unit_test_setup_teardown(units_do_not_tear_between_threads, set_path, remove_path),
    };
    return cmocka_run_group_tests_name("fabric/net/memory", tests, NULL, NULL);
}
