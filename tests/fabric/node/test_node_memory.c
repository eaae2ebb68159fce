/* The memory of a node (fabric/node/memory.c): verbs run in granules, a memory file outlives its daemon, and a kill
 * leaves no partly written granule. */
#define _GNU_SOURCE
#include "base/sanitizer.h"
#include "fabric/memory_file.h"
#include "fabric/node/memory.h"
#include "farindex.h"
#include "left_out.h"
#include "test.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE (1u << 20)

static char path[64];
static const char *meminfo; /* text that replaces /proc/meminfo; NULL: nothing is replaced */


/* Replaces the function of the C library, in order to replace /proc/meminfo. */
FILE *fopen(const char *name, const char *mode) {
    static _Atomic(FILE * (*)(const char *, const char *)) real;
    FILE *(*run)(const char *, const char *) = atomic_load_explicit(&real, memory_order_acquire);
    if (!run) {
        *(void **)&run = dlsym(RTLD_NEXT, "fopen");
        atomic_store_explicit(&real, run, memory_order_release);
    }
    return meminfo && strcmp(name, "/proc/meminfo") == 0 ? fmemopen((void *)(uintptr_t)meminfo, strlen(meminfo), "r")
                                                         : run(name, mode);
}


TEST_FIXTURE(set_path) {
    snprintf(path, sizeof(path), "/dev/shm/farindex-memory-%d", (int)getpid());
    unlink(path);
    return 0;
}


TEST_FIXTURE(remove_path) {
    unlink(path);
    meminfo = NULL;
    return 0;
}


static int open_memory(const char *file, uint64_t size, net_memory **m) {
    return net_memory_open(&(net_memory_options){.path = file, .size = size}, m);
}


static void run_verb(net_memory *m, far_verb_kind kind, uint64_t offset, const void *operands, uint32_t length,
                     void *results) {
    net_verb verb = {kind, length, offset, operands};
    net_memory_run(m, 0, &verb, results);
}


/* READ, WRITE, CAS, FAA and masked CAS have the results that the contract defines, also for ranges that begin and end
 * inside a granule. */
TEST(verbs_follow_the_contract) {
    net_memory *m;
    uint64_t words[32], got[32], old = 0;
    assert_int_equal(open_memory(NULL, SIZE, &m), 0);
    for (int i = 0; i < 32; i++)
        words[i] = (uint64_t)i + 1;
    run_verb(m, FAR_WRITE, 40, words, 200, NULL); /* The WRITE begins and ends inside a granule. */
    run_verb(m, FAR_READ, 40, NULL, 200, got);
    assert_memory_equal(got, words, 200);
    run_verb(m, FAR_READ, 32, NULL, 216, got);
    assert_int_equal(got[0], 0);
    assert_int_equal(got[26], 0);
    run_verb(m, FAR_CAS, 40, (uint64_t[]){1, 9}, 8, &old);
    assert_int_equal(old, 1);
    run_verb(m, FAR_CAS, 40, (uint64_t[]){1, 5}, 8, &old);
    assert_int_equal(old, 9);
    run_verb(m, FAR_FAA, 40, (uint64_t[]){3}, 8, &old);
    assert_int_equal(old, 9);
    run_verb(m, FAR_MASKED_CAS, 40, (uint64_t[]){0xc, 0xf0, 0xf, 0xf0}, 8, &old);
    assert_int_equal(old, 12);
    run_verb(m, FAR_READ, 40, NULL, 8, &old);
    assert_int_equal(old, 0xfc);
    run_verb(m, FAR_MASKED_CAS, 40, (uint64_t[]){0xb, 0, 0xf, 0xf0}, 8, &old);
    run_verb(m, FAR_READ, 40, NULL, 8, &old);
    assert_int_equal(old, 0xfc);
    net_memory_close(m);
}


/* A memory file keeps its data, its instance number and the identity of the first pool that it has joined. While one
 * daemon serves the file, a second one is refused; another size is refused, too. */
TEST_WITH(a_file_keeps_its_data_and_its_pool, set_path, remove_path) {
    net_memory *m, *second;
    uint64_t word = 77, got = 0;
    assert_int_equal(open_memory(path, SIZE, &m), 0);
    run_verb(m, FAR_WRITE, 4096, &word, 8, NULL);
    net_join join = {.pool = 5, .node = 1, .nodes = 3};
    net_memory_join(m, &join);
    uint64_t instance = m->header->instance;
    assert_int_equal(open_memory(path, SIZE, &second), FAR_ERR_BUSY);
    assert_non_null(strstr(far_last_error(), "another daemon"));
    net_memory_close(m);
    assert_int_equal(open_memory(path, 2 * SIZE, &second), FAR_ERR_INVALID);
    assert_int_equal(open_memory(path, 0, &m), 0);
    run_verb(m, FAR_READ, 4096, NULL, 8, &got);
    assert_int_equal(got, 77);
    assert_int_equal(m->header->restarts, 1);
    assert_int_equal(m->header->instance, instance);
    join = (net_join){.pool = 6, .node = 0, .nodes = 2, .complete = 1};
    net_memory_join(m, &join); /* The memory belongs to a pool already, so this second join has no effect. */
    assert_int_equal(join.pool, 5);
    assert_int_equal(join.node, 1);
    assert_int_equal(join.complete, 0);
    net_memory_close(m);
}


/* The key of the pool is stored with the first join that brings one, and is returned only until the pool is complete. A
 * file without a key, which an older version has written, counts as not complete when it is opened, and then gets a
 * key. */
TEST_WITH(a_pool_has_one_key_for_ever, set_path, remove_path) {
    net_memory *m;
    assert_int_equal(open_memory(path, SIZE, &m), 0);
    net_join join = {.pool = 5, .node = 1, .nodes = 3, .complete = 1};
    net_memory_join(m, &join); /* without a key the pool cannot be complete */
    assert_int_equal(join.complete, 0);
    m->header->complete = 1; /* this is what an older version has written */
    net_memory_close(m);
    assert_int_equal(open_memory(path, 0, &m), 0);
    assert_int_equal(m->header->complete, 0);
    join = (net_join){.pool = 5, .node = 1, .nodes = 3, .key = {{7, 8}}};
    net_memory_join(m, &join);
    join = (net_join){.pool = 6, .node = 0, .nodes = 2, .key = {{9, 9}}};
    net_memory_join(m, &join);
    assert_int_equal(join.key.words[0], 7);
    assert_int_equal(join.key.words[1], 8);
    join = (net_join){.pool = 5, .node = 1, .nodes = 3, .complete = 1, .key = {{9, 9}}};
    net_memory_join(m, &join);
    assert_int_equal(join.complete, 1);
    assert_int_equal(join.key.words[0], 0);
    net_memory_close(m);
    assert_int_equal(open_memory(path, 0, &m), 0);
    assert_int_equal(m->header->complete, 1);
    assert_int_equal(m->header->key.words[0], 7);
    net_memory_close(m);
}


/* Files with other content, folders, and pools of `shm:` are refused and stay unchanged. A memory file is also refused
 * as a pool of `shm:`. */
TEST_WITH(other_files_are_refused, set_path, remove_path) {
    net_memory *m;
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fchmod(fileno(file), 0600), 0);
    for (int i = 0; i < 4 << 10; i++)
        fputs("something else\n", file);
    fclose(file);
    assert_int_equal(open_memory(path, SIZE, &m), FAR_ERR_CORRUPT);
    assert_int_equal(open_memory("/dev/shm/no/such/folder", SIZE, &m), FAR_ERR_NOT_FOUND);
    assert_int_equal(open_memory("/dev/shm", SIZE, &m), FAR_ERR_UNREACHABLE);
    far_pool *pool;
    unlink(path);
    char uri[128];
    snprintf(uri, sizeof(uri), "shm:%s?size=4M", path);
    assert_int_equal(far_pool_open(uri, NULL, &pool), 0);
    far_pool_close(pool);
    assert_int_equal(open_memory(path, 0, &m), FAR_ERR_CORRUPT);
    assert_non_null(strstr(far_last_error(), "shm:"));
    unlink(path);
    assert_int_equal(open_memory(path, SIZE, &m), 0);
    net_memory_close(m);
    snprintf(uri, sizeof(uri), "shm:%s", path);
    assert_int_equal(far_pool_open(uri, NULL, &pool), FAR_ERR_CORRUPT);
    assert_non_null(strstr(far_last_error(), "farindex serve"));
}


/* A daemon was killed while it allocated the file, which has most of its pages. The host has memory for the rest, but not
 * for the whole file again. The next daemon completes the file. Fails if the check demands the whole size. */
TEST_WITH(a_half_made_file_counts_once, set_path, remove_path) {
    net_memory *m;
    int file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_true(file >= 0);
    assert_int_equal(ftruncate(file, NET_MEMORY_AT + 4 * SIZE), 0);
    assert_int_equal(posix_fallocate(file, 0, NET_MEMORY_AT + 3 * SIZE), 0);
    meminfo = "MemAvailable: 512 kB\nSwapFree: 0 kB\n";
    assert_int_equal(open_memory(path, 4 * SIZE, &m), FAR_ERR_NO_MEMORY);
    assert_non_null(strstr(far_last_error(), "the host has 512K available"));
    meminfo = "MemAvailable: 1024 kB\nSwapFree: 0 kB\n";
    assert_int_equal(open_memory(path, 4 * SIZE, &m), 0);
    net_memory_close(m);
    close(file);
}


/* A daemon that finds too little memory removes a file that it has created. A file that existed stays, also if it is
 * empty or reached by a symbolic link. */
TEST_WITH(a_file_that_existed_is_not_removed, set_path, remove_path) {
    net_memory *m;
    struct stat status;
    char link[80];
    snprintf(link, sizeof(link), "%s-link", path);
    meminfo = "MemAvailable: 512 kB\nSwapFree: 0 kB\n";
    assert_int_equal(open_memory(path, SIZE, &m), FAR_ERR_NO_MEMORY);
    assert_int_equal(access(path, F_OK), -1);
    close(open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    assert_int_equal(open_memory(path, SIZE, &m), FAR_ERR_NO_MEMORY);
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(status.st_size, 0);
    assert_int_equal(symlink(path, link), 0);
    assert_int_equal(open_memory(link, SIZE, &m), FAR_ERR_NO_MEMORY);
    assert_int_equal(lstat(link, &status), 0);
    assert_int_equal(unlink(link), 0);
    assert_int_equal(access(path, F_OK), 0);
}


/* ---- Kills ---- */

static void assert_only_shared(const char *word) {
    net_memory *m;
    assert_int_equal(open_memory(path, SIZE, &m), FAR_ERR_UNREACHABLE);
    assert_non_null(strstr(far_last_error(), word));
    assert_int_equal(net_memory_open(&(net_memory_options){.path = path, .size = SIZE, .shared = true}, &m), 0);
    net_memory_close(m);
}


/* A file that other users own, can write or can read is refused, unless the daemon was started with --shared. Fails without
 * far_memory_file_check_owner in prepare_file. */
TEST_WITH(files_of_others_are_refused, set_path, remove_path) {
    net_memory *m;
    assert_int_equal(open_memory(path, SIZE, &m), 0);
    net_memory_close(m);
    assert_int_equal(chmod(path, 0620), 0);
    assert_only_shared("other users can write the file (mode 0620)");
    assert_int_equal(chmod(path, 0606), 0);
    assert_only_shared("other users can write the file (mode 0606)");
    assert_int_equal(chmod(path, 0640), 0);
    assert_only_shared("other users can read, and so lock, the file (mode 0640)");
    assert_int_equal(chmod(path, 0600), 0);
    if (geteuid() != 0) {
        left_out("memory files of other users", "the test does not run as root");
        return;
    }
    assert_int_equal(chown(path, 65534, 65534), 0);
    assert_only_shared("the file belongs to user 65534");
}


/* A symbolic link to a file that does not exist is an error that names this file, and the file is not created. */
TEST_WITH(a_dangling_link_is_refused, set_path, remove_path) {
    net_memory *m;
    char target[80];
    snprintf(target, sizeof(target), "%s-target", path);
    assert_int_equal(symlink(target, path), 0);
    assert_int_equal(open_memory(path, SIZE, &m), FAR_ERR_INVALID);
    assert_non_null(strstr(far_last_error(), "is a symbolic link to"));
    assert_non_null(strstr(far_last_error(), target));
    assert_int_equal(access(target, F_OK), -1);
}


/* A limit of the file size (ulimit -f) is an error, and no file remains. Fails without the check of RLIMIT_FSIZE,
 * because SIGXFSZ then ends the child. */
TEST_WITH(a_limit_of_the_file_size_is_an_error, set_path, remove_path) {
    int status;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        net_memory *m;
        struct rlimit limit = {1 << 20, 1 << 20};
        setrlimit(RLIMIT_FSIZE, &limit);
        signal(SIGXFSZ, SIG_DFL);
        _exit(open_memory(path, SIZE, &m) == FAR_ERR_NO_MEMORY && strstr(far_last_error(), "ulimit -f") ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(access(path, F_OK), -1);
}


/* More memory than the host has is refused, unless the daemon was started with --overcommit. */
TEST(memory_that_is_not_there_is_refused) {
    net_memory_options options = {.size = FAR_NODE_BYTES_MAX};
    net_memory *m;
    if (far_memory_check_available("host", options.size, "") == 0) {
        left_out("memory that is not there", "this host has 1T");
        return;
    }
    assert_int_equal(net_memory_open(&options, &m), FAR_ERR_NO_MEMORY);
    assert_non_null(strstr(far_last_error(), "1T of memory are not there"));
    assert_non_null(strstr(far_last_error(), "--overcommit"));
    if (FAR_TSAN) {
        left_out("a node with more memory than the host has", "the thread sanitizer has no addresses for 1T");
        return;
    }
    options.overcommit = true;
    assert_int_equal(net_memory_open(&options, &m), 0);
    net_memory_close(m);
}


static unsigned kill_after;


static void kill_between_words(unsigned thread, unsigned word) {
    if (thread == 0 && word == kill_after)
        kill(getpid(), SIGKILL);
}


static void write_and_be_killed(uint64_t value) {
    net_memory *m;
    uint64_t words[8];
    if (open_memory(path, SIZE, &m) < 0)
        _exit(1);
    for (int i = 0; i < 8; i++)
        words[i] = value;
    m->between_words = kill_between_words;
    run_verb(m, FAR_WRITE, 4096, words, 64, NULL);
    _exit(2);
}


static void assert_granule(uint64_t expected) {
    net_memory *m;
    uint64_t words[8];
    assert_int_equal(open_memory(path, SIZE, &m), 0);
    run_verb(m, FAR_READ, 4096, NULL, 64, words);
    for (int i = 0; i < 8; i++)
        assert_int_equal(words[i], expected);
    net_memory_close(m);
}


/* A process is killed after each word of a granule that it writes. The next open completes the granule from the redo
 * slot. Fails without replay_redo_slot in memory.c. */
TEST_WITH(a_kill_leaves_no_partly_written_granule, set_path, remove_path) {
    for (kill_after = 0; kill_after < 8; kill_after++) {
        pid_t child = fork();
        if (child == 0)
            write_and_be_killed(100 + kill_after);
        int status;
        waitpid(child, &status, 0);
        assert_true(WIFSIGNALED(status));
        assert_granule(100 + kill_after);
    }
}


/* Thread 1 writes a granule, and then thread 0 writes the same granule. The process is killed after that. The next open
 * must not write the value of thread 1 again. Fails if write_granule does not clear `valid`. */
TEST_WITH(a_finished_write_is_not_redone_over_a_later_one, set_path, remove_path) {
    pid_t child = fork();
    if (child == 0) {
        net_memory *m;
        uint64_t words[8];
        if (open_memory(path, SIZE, &m) < 0)
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
    assert_granule(11);
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


/* Three threads write and read the same granule, and yield the processor in its middle. No READ returns a mixture.
 * Fails without lock_line in read_granule or write_granule. */
TEST_WITH(granules_do_not_tear_between_threads, set_path, remove_path) {
    net_memory *m;
    writer writers[3];
    pthread_t threads[3];
    assert_int_equal(open_memory(path, SIZE, &m), 0);
    /* At this place, in the middle of a granule, the function lets other threads run. */
    m->between_words = yield_between_words;
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
