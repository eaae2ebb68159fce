/* The time from the failure of a client to the moment when no memory is leaked any more. A survivor loads an index and
 * keeps the pool open without using it. A worker process inserts, updates and deletes pairs and is killed. The test then
 * reads words of the pool in the memory file, and waits for these events, which the survivor brings about in the
 * background:
 *
 *     detected    the loss counter has grown, so the sessions of the worker are fenced
 *     collected   a collection that began after that has finished the mark phase, and has adopted the worker's blocks
 *     swept       the survivor has swept all its blocks for this collection, so all leaked memory is free
 *
 * A check afterwards proves that no byte is leaked and all keys of the load are present.
 *
 * test_recovery_time KIND KEYS: prints the times with so many keys; `make recovery` runs this. Without arguments, the
 * program uses a small index of each kind, and the events prove themselves: the times are printed, but not asserted. */
#include "conform.h"
#include "test.h"

#include "fabric/shm/shm.h"
#include "pool/format/clients.h"
#include "pool/gc/request.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define FEW_KEYS    20000
#define WORKER_KEYS 50000 /* number of keys that the worker inserts and deletes */
#define WORKER_OPS  20000 /* number of operations of the worker before it is killed */
#define DEPTH       64    /* number of operations that the load has in flight */

typedef struct board {        /* shared by both processes */
    atomic_bool begin;        /* set: the worker may open the pool */
    atomic_uint_fast64_t ops; /* number of operations of the worker */
} board;

static board *shared;
static uint64_t key_count;
static const char *only_kind;
static char path[64], uri[96];
static int file; /* the memory file of the pool */


static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}


static void exit_unless_ok(int err, const char *operation) {
    if (err >= 0)
        return;
    fprintf(stderr, "%s: %s: %s\n", operation, far_strerror(err), far_last_error());
    _exit(1);
}


/* ---- Words of the pool, in the memory file ---- */

static void read_pool(uint64_t offset, void *to, size_t bytes) {
    assert_int_equal(pread(file, to, bytes, (off_t)(SHM_NODES_AT + offset)), bytes);
}


static uint64_t read_pool_word(uint64_t offset) {
    uint64_t word;
    read_pool(offset, &word, sizeof(word));
    return word;
}


/* Returns whether each live handle has swept its blocks for the last collection. */
static bool all_handles_have_swept(void) {
    uint32_t collection = far_done_collection(read_pool_word(FAR_SUPER_DONE));
    uint64_t last = read_pool_word(FAR_SUPER_SLOTS_HIGH);
    for (unsigned id = 1; id <= last; id++) {
        far_client client;
        read_pool(far_addr_offset(far_client_entry(id)), &client, sizeof(client));
        bool is_handle = far_client_state_of(client.word) == FAR_CLIENT_LIVE && far_client_handle_of(client.word) == id;
        if (is_handle && far_swept_collection(client.settled) != collection)
            return false;
    }
    return true;
}


/* ---- The survivor and the worker ---- */

static void reap(far_session *session, unsigned wait_for, far_op *done[DEPTH], unsigned *count) {
    int reaped = far_reap(session, done, DEPTH, wait_for);
    assert_true(reaped >= 0);
    for (int i = 0; i < reaped; i++)
        assert_ok(done[i]->result);
    *count = (unsigned)reaped;
}


static void load_keys(rig *r) {
    static uint64_t keys[DEPTH];
    static far_op ops[DEPTH];
    far_op *idle[DEPTH];
    unsigned count = DEPTH;
    for (unsigned i = 0; i < DEPTH; i++)
        idle[i] = &ops[i];
    for (uint64_t next = 0; next < key_count;) {
        unsigned started = 0;
        for (; started < count && next < key_count; started++, next++) {
            uint64_t *key = &keys[idle[started] - ops];
            *key = next * 0x9e3779b97f4a7c15u;
            *idle[started] =
                (far_op){.kind = FAR_OP_PUT, .index = r->index, .key = key, .key_len = 8, .value = key, .value_len = 8};
        }
        assert_int_equal(far_submit(r->session, idle, started), started);
        reap(r->session, next < key_count ? 1 : DEPTH, idle, &count);
    }
}


static void run_worker(void) {
    rig r = {0};
    while (!atomic_load(&shared->begin))
        usleep(1000);
    exit_unless_ok(far_pool_open(uri, NULL, &r.pool), "open");
    exit_unless_ok(far_session_open(r.pool, &r.session), "session");
    exit_unless_ok(far_index_open(r.session, "i", &r.index), "index");
    for (uint64_t i = 0;; i++) {
        uint64_t key = (key_count + i * 7 % WORKER_KEYS) * 0x9e3779b97f4a7c15u;
        int err = i % 3 == 2 ? far_delete(r.session, r.index, &key, sizeof(key))
                             : far_put(r.session, r.index, &key, sizeof(key), &i, sizeof(i));
        exit_unless_ok(err == FAR_ERR_NOT_FOUND ? 0 : err, "an operation");
        atomic_store(&shared->ops, i);
    }
}


/* Starts the worker, which waits until let_worker_work is called. The process is forked before this process has threads,
 * because the thread sanitizer demands that. */
static pid_t start_worker(void) {
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        run_worker();
    }
    return pid;
}


static void let_worker_work(pid_t pid) {
    atomic_store(&shared->begin, true);
    while (atomic_load(&shared->ops) < WORKER_OPS) {
        assert_int_equal(waitpid(pid, NULL, WNOHANG), 0);
        usleep(1000);
    }
}


static void wait_for_recovery(const char *kind, uint64_t losses_before) {
    double begun = now_s(), detected, collected;
    while (read_pool_word(FAR_SUPER_LOSSES) == losses_before)
        usleep(200);
    detected = now_s() - begun;
    while (read_pool_word(FAR_SUPER_LOSSES_COLLECTED) != read_pool_word(FAR_SUPER_LOSSES))
        usleep(200);
    collected = now_s() - begun;
    while (!all_handles_have_swept())
        usleep(200);
    print_message("    %s, %llu keys: detected after %.3f s, collected after %.3f s, swept after %.3f s\n", kind,
                  (unsigned long long)key_count, detected, collected, now_s() - begun);
}


static void check_pool(rig *r) {
    far_pool_usage usage;
    far_usage of_index;
    int problems = 0;
    assert_ok(far_pool_check(r->session, 0, count_problem, &problems));
    assert_ok(far_pool_stat(r->session, &usage));
    assert_ok(far_index_usage(r->session, r->index, &of_index));
    assert_int_equal(usage.leaked, 0);
    assert_int_equal(problems, 0);
    assert_true(of_index.keys >= key_count);
}


TEST_FUNCTION(memory_of_a_killed_client_is_recovered) {
    const char *kind = *state;
    rig r = {0};
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(shared != MAP_FAILED);
    pid_t pid = start_worker();
    assert_ok(far_pool_open(uri, NULL, &r.pool));
    assert_ok(far_session_open(r.pool, &r.session));
    assert_ok(far_index_create(r.session, "i", kind, NULL, &r.index));
    file = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(file >= 0);
    load_keys(&r);
    let_worker_work(pid);
    uint64_t losses = read_pool_word(FAR_SUPER_LOSSES);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    wait_for_recovery(kind, losses);
    check_pool(&r);
    far_index_close(r.index);
    far_session_close(r.session);
    far_pool_close(r.pool);
    close(file);
    munmap(shared, sizeof(*shared));
}


TEST_FIXTURE(remove_pool) {
    unlink(path); /* the file remains if the test has failed */
    return 0;
}


TEST_ARGUMENTS(argc, argv) {
    only_kind = argc > 1 ? argv[1] : NULL;
    key_count = argc > 2 ? strtoull(argv[2], NULL, 10) : FEW_KEYS;
    snprintf(path, sizeof(path), "/dev/shm/farindex-recovery-%d", (int)getpid());
    snprintf(uri, sizeof(uri), "shm:%s?size=%lluM", path, 256 + (unsigned long long)(key_count * 160 >> 20));
    return TEST_CONTINUE;
}


TEST_GENERATOR(add_kinds) {
    const char *kinds[CONFORM_KINDS];
    size_t count = conform_kinds(kinds);
    for (size_t i = 0; i < count; i++)
        if (only_kind ? strcmp(kinds[i], only_kind) == 0 : strcmp(kinds[i], "toy") != 0)
            test_add(kinds[i], memory_of_a_killed_client_is_recovered, NULL, remove_pool, (void *)kinds[i]);
}
