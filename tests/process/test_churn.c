/* Four processes write and delete pairs of many sizes in one pool, and now and then one of them is killed. What the dead had
 * in hand and had retired, in blocks of their own and of others, comes back by itself while the others rest: a check
 * without repair finds no byte leaked. For every kind.
 *
 * test_churn [KIND [MINUTES]]: for so long, with a kill every two seconds and 30 seconds of rest before the check; without
 * minutes there are a few kills, each after some thousand operations, and no rest. `make churn` does five minutes of
 * each kind. FARINDEX_SEED decides the operations. */
#include "conform.h"

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
#define OPS_BEFORE 4000 /* a kill, when there are few: of the one that is killed */

typedef struct worker {
    pid_t pid;
    uint64_t began; /* operations of its place before it was started */
} worker;

typedef struct board { /* seen by all of them */
    _Atomic uint64_t done[WORKERS];
    atomic_bool rest; /* no more operations */
    atomic_bool end;
} board;

static board *shared;
static unsigned minutes;
static char path[64], uri[96];


static void must(int err, const char *what) {
    if (err >= 0)
        return;
    fprintf(stderr, "%s: %s: %s\n", what, far_strerror(err), far_last_error());
    _exit(1);
}


static size_t value_of(uint64_t key, uint64_t length, unsigned char *value) {
    for (size_t i = 0; i < length; i++)
        value[i] = (unsigned char)(key * 31 + length + i);
    return length;
}


static void one_operation(rig *r, far_random *random) {
    unsigned char value[VALUE_MAX], expected[VALUE_MAX];
    uint64_t key = far_random_below(random, KEYS), dice = far_random_below(random, 10);
    size_t length = 0;
    int err;
    if (dice < 4)
        err = far_put(r->session, r->index, &key, sizeof(key), value,
                      value_of(key, 1 + far_random_below(random, VALUE_MAX), value));
    else if (dice < 7)
        err = far_delete(r->session, r->index, &key, sizeof(key));
    else if ((err = far_get(r->session, r->index, &key, sizeof(key), value, sizeof(value), &length)) == 0 &&
             memcmp(value, expected, value_of(key, length, expected)) != 0)
        must(FAR_ERR_CORRUPT, "a get gave what nobody has put");
    must(err == FAR_ERR_NOT_FOUND ? 0 : err, "an operation");
}


static void work(unsigned place, uint64_t seed) {
    rig r = {0};
    far_random random;
    far_random_seed(&random, seed);
    must(far_pool_open(uri, NULL, &r.pool), "open");
    must(far_session_open(r.pool, &r.session), "session");
    must(far_index_open(r.session, "i", &r.index), "index");
    while (!atomic_load(&shared->rest)) {
        one_operation(&r, &random);
        atomic_fetch_add(&shared->done[place], 1);
    }
    while (!atomic_load(&shared->end))
        usleep(10000);
    far_index_close(r.index);
    far_session_close(r.session);
    far_pool_close(r.pool);
    _exit(0);
}


static void start(worker *all, unsigned place, uint64_t seed) {
    all[place].began = atomic_load(&shared->done[place]);
    fflush(NULL);
    all[place].pid = fork();
    assert_true(all[place].pid >= 0);
    if (all[place].pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        work(place, seed);
    }
}


static void end(const worker *w, int signal) {
    int status;
    if (signal)
        assert_int_equal(kill(w->pid, signal), 0);
    assert_int_equal(waitpid(w->pid, &status, 0), w->pid);
    assert_true(signal ? WIFSIGNALED(status) && WTERMSIG(status) == signal : status == 0);
}


/* It has worked for long enough to be killed; fails when it has ended by itself. */
static void wait_for_work(const worker *all, unsigned place) {
    if (minutes)
        sleep(2);
    while (atomic_load(&shared->done[place]) < all[place].began + (minutes ? 1 : OPS_BEFORE)) {
        assert_int_equal(waitpid(all[place].pid, NULL, WNOHANG), 0);
        usleep(1000);
    }
}


/* Returns when all have come to rest. */
static void churn(worker *all, uint64_t seed) {
    far_random random;
    unsigned kills = minutes ? minutes * 30 : FEW_KILLS;
    uint64_t done = 0;
    far_random_seed(&random, seed);
    for (unsigned place = 0; place < WORKERS; place++)
        start(all, place, far_random_next(&random));
    for (unsigned i = 0; i < kills; i++) {
        unsigned place = (unsigned)far_random_below(&random, WORKERS);
        wait_for_work(all, place);
        end(&all[place], SIGKILL);
        start(all, place, far_random_next(&random));
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


static void all_comes_back(void **state) {
    const char *kind = *state, *seed = getenv("FARINDEX_SEED");
    uint64_t number = seed ? strtoull(seed, NULL, 10) : 1;
    rig r = {0};
    worker all[WORKERS];
    far_pool_usage usage;
    int told = 0;
    print_message("    FARINDEX_SEED=%llu\n", (unsigned long long)number);
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(shared != MAP_FAILED);
    open_pool(&r, kind);
    close_pool(&r);
    churn(all, number);
    if (minutes)
        sleep(30);
    open_pool(&r, NULL);
    assert_ok(far_pool_check(r.session, 0, count_problem, &told));
    assert_ok(far_pool_stat(r.session, &usage));
    print_message("    %llu bytes leaked, %d problems\n", (unsigned long long)usage.leaked, told);
    assert_int_equal(usage.leaked, 0);
    assert_int_equal(told, 0);
    close_pool(&r);
    atomic_store(&shared->end, true);
    for (unsigned place = 0; place < WORKERS; place++)
        end(&all[place], 0);
    munmap(shared, sizeof(*shared));
}


static int remove_pool(void **state) {
    (void)state;
    unlink(path); /* when it failed */
    return 0;
}


int main(int argc, char **argv) {
    const char *kinds[CONFORM_KINDS];
    struct CMUnitTest tests[CONFORM_KINDS];
    size_t count = conform_kinds(kinds), made = 0;
    minutes = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 0;
    snprintf(path, sizeof(path), "/dev/shm/farindex-churn-%d", (int)getpid());
    snprintf(uri, sizeof(uri), "shm:%s?size=512M", path);
    for (size_t i = 0; i < count; i++)
        if (argc > 1 ? strcmp(kinds[i], argv[1]) == 0 : strcmp(kinds[i], "toy") != 0)
            tests[made++] = (struct CMUnitTest){kinds[i], all_comes_back, NULL, remove_pool, (void *)kinds[i]};
    if (made == 0)
        fprintf(stderr, "there is no kind %s\n", argv[1]);
    return made == 0 ? 1 : _cmocka_run_group_tests("churn", tests, made, NULL, NULL);
}
