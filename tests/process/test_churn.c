/* Four processes insert and delete pairs of many sizes in one pool, and from time to time one process is killed. The
 * killed processes leave allocated and retired memory, in their own blocks and in those of other clients. Proves that
 * all this memory is reclaimed by background work while the other processes rest: a check without repair reports no
 * leaked byte. This is done for every kind.
 *
 * test_churn [KIND [MINUTES]]: runs for that time, with a kill every two seconds and 30 seconds of rest before the
 * check. Without MINUTES there are a few kills, each after some thousand operations, and no rest. `make churn` runs
 * five minutes of each kind. FARINDEX_SEED decides the operations. */
#include "conform.h"
#include "test.h"

#include "base/random.h"

#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORKERS    4
#define KEYS       20000
#define VALUE_MAX  600
#define FEW_KILLS  6
#define OPS_BEFORE 4000 /* with few kills: number of operations of a process before it is killed */

typedef struct worker {
    pid_t pid;
    uint64_t began; /* number of operations of this worker's place before the process was started */
} worker;

typedef struct board { /* shared by all processes */
    _Atomic uint64_t done[WORKERS];
    atomic_bool rest; /* set: the workers start no more operations */
    atomic_bool end;
} board;

static board *shared;
static unsigned minutes;
static char path[64], uri[96];


static void exit_unless_ok(int err, const char *what) {
    if (err >= 0)
        return;
    fprintf(stderr, "%s: %s: %s\n", what, far_strerror(err), far_last_error());
    _exit(1);
}


static size_t make_value(uint64_t key, uint64_t length, unsigned char *value) {
    for (size_t i = 0; i < length; i++)
        value[i] = (unsigned char)(key * 31 + length + i);
    return length;
}


static void run_one_operation(rig *r, far_random *random) {
    unsigned char value[VALUE_MAX], expected[VALUE_MAX];
    uint64_t key = far_random_below(random, KEYS), dice = far_random_below(random, 10);
    size_t length = 0;
    int err;
    if (dice < 4)
        err = far_put(r->session, r->index, &key, sizeof(key), value,
                      make_value(key, 1 + far_random_below(random, VALUE_MAX), value));
    else if (dice < 7)
        err = far_delete(r->session, r->index, &key, sizeof(key));
    else if ((err = far_get(r->session, r->index, &key, sizeof(key), value, sizeof(value), &length)) == 0 &&
             memcmp(value, expected, make_value(key, length, expected)) != 0)
        exit_unless_ok(FAR_ERR_CORRUPT, "a get returned a value that was never put");
    exit_unless_ok(err == FAR_ERR_NOT_FOUND ? 0 : err, "an operation");
}


static void run_worker(unsigned place, uint64_t seed) {
    rig r = {0};
    far_random random;
    far_random_seed(&random, seed);
    exit_unless_ok(far_pool_open(uri, NULL, &r.pool), "open");
    exit_unless_ok(far_session_open(r.pool, &r.session), "session");
    exit_unless_ok(far_index_open(r.session, "i", &r.index), "index");
    while (!atomic_load(&shared->rest)) {
        run_one_operation(&r, &random);
        atomic_fetch_add(&shared->done[place], 1);
    }
    while (!atomic_load(&shared->end))
        usleep(10000);
    far_index_close(r.index);
    far_session_close(r.session);
    far_pool_close(r.pool);
    _exit(0);
}


static void start_worker(worker *all, unsigned place, uint64_t seed) {
    all[place].began = atomic_load(&shared->done[place]);
    fflush(NULL);
    all[place].pid = fork();
    assert_true(all[place].pid >= 0);
    if (all[place].pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        run_worker(place, seed);
    }
}


static void end_worker(const worker *w, int signal) {
    int status;
    if (signal)
        assert_int_equal(kill(w->pid, signal), 0);
    assert_int_equal(waitpid(w->pid, &status, 0), w->pid);
    assert_true(signal ? WIFSIGNALED(status) && WTERMSIG(status) == signal : status == 0);
}


/* Waits until the process has worked long enough to be killed. Fails if the process has ended. */
static void wait_for_work(const worker *all, unsigned place) {
    if (minutes)
        sleep(2);
    while (atomic_load(&shared->done[place]) < all[place].began + (minutes ? 1 : OPS_BEFORE)) {
        assert_int_equal(waitpid(all[place].pid, NULL, WNOHANG), 0);
        usleep(1000);
    }
}


/* Starts the workers, and kills and replaces some. Returns when all workers rest. */
static void work_and_kill(worker *all, uint64_t seed) {
    far_random random;
    unsigned kills = minutes ? minutes * 30 : FEW_KILLS;
    uint64_t done = 0;
    far_random_seed(&random, seed);
    for (unsigned place = 0; place < WORKERS; place++)
        start_worker(all, place, far_random_next(&random));
    for (unsigned i = 0; i < kills; i++) {
        unsigned place = (unsigned)far_random_below(&random, WORKERS);
        wait_for_work(all, place);
        end_worker(&all[place], SIGKILL);
        start_worker(all, place, far_random_next(&random));
    }
    for (unsigned place = 0; place < WORKERS; place++) {
        wait_for_work(all, place);
        done += atomic_load(&shared->done[place]);
    }
    atomic_store(&shared->rest, true);
    print_message("    %u kills, %llu operations\n", kills, (unsigned long long)done);
}


static void open_pool(rig *r, const char *kind) {
    assert_ok(far_pool_open(uri, NULL, &r->pool));
    assert_ok(far_session_open(r->pool, &r->session));
    if (kind)
        assert_ok(far_index_create(r->session, "i", kind, NULL, &r->index));
}


static void close_pool(rig *r) {
    far_index_close(r->index);
    far_session_close(r->session);
    far_pool_close(r->pool);
    *r = (rig){0};
}


TEST_FUNCTION(all_memory_is_reclaimed) {
    const char *kind = *state, *seed = getenv("FARINDEX_SEED");
    uint64_t number = seed ? strtoull(seed, NULL, 10) : 1;
    rig r = {0};
    worker all[WORKERS];
    far_pool_usage usage;
    int problems = 0;
    print_message("    FARINDEX_SEED=%llu\n", (unsigned long long)number);
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(shared != MAP_FAILED);
    open_pool(&r, kind);
    close_pool(&r);
    work_and_kill(all, number);
    if (minutes)
        sleep(30);
    open_pool(&r, NULL);
    assert_ok(far_pool_check(r.session, 0, count_problem, &problems));
    assert_ok(far_pool_stat(r.session, &usage));
    print_message("    %llu bytes leaked, %d problems\n", (unsigned long long)usage.leaked, problems);
    assert_int_equal(usage.leaked, 0);
    assert_int_equal(problems, 0);
    close_pool(&r);
    atomic_store(&shared->end, true);
    for (unsigned place = 0; place < WORKERS; place++)
        end_worker(&all[place], 0);
    munmap(shared, sizeof(*shared));
}


TEST_FIXTURE(remove_pool) {
    unlink(path); /* the file remains if the test has failed */
    return 0;
}


static const char *only_kind; /* the first argument; NULL: every kind except toy */

TEST_ARGUMENTS(argc, argv) {
    only_kind = argc > 1 ? argv[1] : NULL;
    minutes = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 0;
    snprintf(path, sizeof(path), "/dev/shm/farindex-churn-%d", (int)getpid());
    snprintf(uri, sizeof(uri), "shm:%s?size=512M", path);
    return TEST_CONTINUE;
}


TEST_GENERATOR(add_kinds) {
    const char *kinds[CONFORM_KINDS];
    size_t count = conform_kinds(kinds);
    for (size_t i = 0; i < count; i++)
        if (only_kind ? strcmp(kinds[i], only_kind) == 0 : strcmp(kinds[i], "toy") != 0)
            test_add(kinds[i], all_memory_is_reclaimed, NULL, remove_pool, (void *)kinds[i]);
}
