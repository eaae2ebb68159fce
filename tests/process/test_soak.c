/* Local memory of processes that work on one pool for a long time. Four processes insert and delete pairs of many sizes
 * with two sessions each, and close and open one of the sessions again and again. A fifth process is killed and
 * replaced again and again, so that epochs stop for a while and collections run.
 *
 * test_soak KIND MINUTES: prints, every ten seconds, for each process the bytes that the process has allocated
 * (mallinfo2) and its resident memory without the pool, which is mapped (RssAnon and RssFile in /proc/self/status).
 * Fails if the resident memory of a process at the end exceeds 1.3 times its value after 60 seconds. `make soak` runs
 * this for dart and dolphin. FARINDEX_SEED decides the operations.
 *
 * Without arguments, the program runs a short test that does not depend on time: after the pairs of a handle were
 * deleted and all retired memory was reused, the handle has allocated no more than after its first such round. */
#include "conform.h"
#include "test.h"

#include "base/random.h"
#include "base/sanitizer.h"
#include "left_out.h"

#include <malloc.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WORKERS       4
#define KEYS          20000
#define VALUE_MAX     600
#define SESSION_OPS   20000 /* operations after which a worker replaces its second session */
#define KILL_SECONDS  5
#define PRINT_SECONDS 10
#define BASE_SECONDS  60
#define MOST_GROWTH   1.3
/* the short test: */
#define ROUND_KEYS  3000
#define ROUNDS      10
#define BASE_ROUNDS 3 /* after these rounds, the allocated memory must not grow any more */

typedef struct board { /* shared by all processes */
    struct {
        _Atomic uint64_t done, allocated, resident;
    } place[WORKERS + 1];
    atomic_bool end;
} board;

static board *shared;
static unsigned minutes;
static const char *only_kind;
static char path[64], uri[96];


static void exit_unless_ok(int err, const char *operation) {
    if (err >= 0)
        return;
    fprintf(stderr, "%s: %s: %s\n", operation, far_strerror(err), far_last_error());
    _exit(1);
}


static uint64_t read_resident_bytes(void) {
    char line[128];
    unsigned long long anonymous = 0, file = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof(line), status))
        (void)(sscanf(line, "RssAnon: %llu", &anonymous) || sscanf(line, "RssFile: %llu", &file));
    if (status)
        fclose(status);
    return (anonymous + file) << 10;
}


static uint64_t allocated_bytes(void) {
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}


static int run_one_operation(far_session *session, far_index *index, far_random *random) {
    unsigned char value[VALUE_MAX] = {0};
    uint64_t key = far_random_below(random, KEYS), dice = far_random_below(random, 10);
    size_t length = 0;
    int err;
    if (dice < 4)
        err = far_put(session, index, &key, sizeof(key), value, 1 + far_random_below(random, VALUE_MAX));
    else if (dice < 7)
        err = far_delete(session, index, &key, sizeof(key));
    else
        err = far_get(session, index, &key, sizeof(key), value, sizeof(value), &length);
    return err == FAR_ERR_NOT_FOUND ? 0 : err;
}


static void run_worker(unsigned place, uint64_t seed) {
    rig r = {0};
    far_session *second = NULL;
    far_random random;
    far_random_seed(&random, seed);
    exit_unless_ok(far_pool_open(uri, NULL, &r.pool), "open");
    exit_unless_ok(far_session_open(r.pool, &r.session), "session");
    exit_unless_ok(far_index_open(r.session, "i", &r.index), "index");
    for (uint64_t done = 0; !atomic_load(&shared->end); done++) {
        if (done % SESSION_OPS == 0) {
            far_session_close(second);
            exit_unless_ok(far_session_open(r.pool, &second), "session");
        }
        if (done % 1000 == 0) {
            atomic_store(&shared->place[place].allocated, allocated_bytes());
            atomic_store(&shared->place[place].resident, read_resident_bytes());
        }
        exit_unless_ok(run_one_operation(done & 1 ? second : r.session, r.index, &random), "an operation");
        atomic_store(&shared->place[place].done, done + 1);
    }
    far_session_close(second);
    far_index_close(r.index);
    far_session_close(r.session);
    far_pool_close(r.pool);
    _exit(0);
}


static pid_t start_worker(unsigned place, uint64_t seed) {
    fflush(NULL);
    atomic_store(&shared->place[place].done, 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        run_worker(place, seed);
    }
    return pid;
}


static void create_index(const char *kind) {
    rig r = {0};
    assert_ok(far_pool_open(uri, NULL, &r.pool));
    assert_ok(far_session_open(r.pool, &r.session));
    assert_ok(far_index_create(r.session, "i", kind, NULL, &r.index));
    far_index_close(r.index);
    far_session_close(r.session);
    far_pool_close(r.pool);
}


static void print_memory(unsigned seconds) {
    print_message("    %4u s", seconds);
    for (unsigned place = 0; place < WORKERS; place++)
        print_message("  %6.1f of %6.1f", (double)atomic_load(&shared->place[place].allocated) / (1 << 20),
                      (double)atomic_load(&shared->place[place].resident) / (1 << 20));
    print_message("\n");
}


TEST_FUNCTION(resident_memory_is_bounded) {
    const char *kind = *state, *seed = getenv("FARINDEX_SEED");
    pid_t pids[WORKERS + 1];
    uint64_t base[WORKERS];
    double growth = 0;
    far_random random;
    int status;
    far_random_seed(&random, seed ? strtoull(seed, NULL, 10) : 1);
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(shared != MAP_FAILED);
    create_index(kind);
    for (unsigned place = 0; place <= WORKERS; place++)
        pids[place] = start_worker(place, far_random_next(&random));
    print_message("    MiB allocated of MiB resident, in each of %d processes\n", WORKERS);
    for (unsigned second = 1; second <= minutes * 60; second++) {
        sleep(1);
        for (unsigned place = 0; place < WORKERS; place++)
            assert_int_equal(waitpid(pids[place], NULL, WNOHANG), 0);
        if (second % KILL_SECONDS == 0) {
            kill(pids[WORKERS], SIGKILL);
            waitpid(pids[WORKERS], NULL, 0);
            pids[WORKERS] = start_worker(WORKERS, far_random_next(&random));
        }
        if (second % PRINT_SECONDS == 0)
            print_memory(second);
        for (unsigned place = 0; second == BASE_SECONDS && place < WORKERS; place++)
            base[place] = atomic_load(&shared->place[place].resident);
    }
    for (unsigned place = 0; place < WORKERS; place++) {
        double grown = (double)atomic_load(&shared->place[place].resident) / (double)base[place];
        growth = grown > growth ? grown : growth;
    }
    atomic_store(&shared->end, true);
    for (unsigned place = 0; place <= WORKERS; place++) {
        assert_int_equal(waitpid(pids[place], &status, 0), pids[place]);
        assert_int_equal(status, 0);
    }
    munmap(shared, sizeof(*shared));
    print_message("    %s: resident memory is at most %.2f times its value after %d s\n", kind, growth, BASE_SECONDS);
    assert_true(growth <= MOST_GROWTH);
}


static void put_and_delete_all(rig *r, far_random *random) {
    unsigned char value[VALUE_MAX] = {0};
    for (uint64_t key = 0; key < ROUND_KEYS; key++)
        assert_ok(far_put(r->session, r->index, &key, sizeof(key), value, 1 + far_random_below(random, VALUE_MAX)));
    for (uint64_t key = 0; key < ROUND_KEYS; key++)
        assert_ok(far_delete(r->session, r->index, &key, sizeof(key)));
}


/* The pairs of a handle are inserted and deleted in rounds, each with a session of its own. After each round, a check
 * makes the epochs pass, so that retired memory becomes free. The memory that the handle has allocated then must not
 * grow by more than a quarter. (It grows a little, because the handle owns blocks in more and more places.) */
TEST_FUNCTION(allocated_memory_returns_to_its_base) {
    rig r = {0};
    far_random random;
    uint64_t base = 0, most = 0;
    if (FAR_ASAN || FAR_TSAN) {
        left_out("the allocated memory", "mallinfo2 counts nothing with a sanitizer");
        return;
    }
    far_random_seed(&random, 1);
    assert_ok(far_pool_open("local:64M", NULL, &r.pool));
    assert_ok(far_session_open(r.pool, &r.session));
    assert_ok(far_index_create(r.session, "i", *state, NULL, &r.index));
    for (unsigned round = 0; round < ROUNDS; round++) {
        far_session *first = r.session;
        assert_ok(far_session_open(r.pool, &r.session));
        put_and_delete_all(&r, &random);
        far_session_close(r.session);
        r.session = first;
        assert_ok(far_pool_check(r.session, 1, NULL, NULL));
        uint64_t now = allocated_bytes();
        base = round < BASE_ROUNDS && now > base ? now : base;
        most = now > most ? now : most;
    }
    print_message("    %llu bytes after %d rounds, at most %llu after %d\n", (unsigned long long)base, BASE_ROUNDS,
                  (unsigned long long)most, ROUNDS);
    assert_true(most <= base + base / 4);
    far_index_close(r.index);
    far_session_close(r.session);
    far_pool_close(r.pool);
}


TEST_FIXTURE(remove_pool) {
    unlink(path); /* the file remains if the test has failed */
    return 0;
}


TEST_ARGUMENTS(argc, argv) {
    only_kind = argc > 1 ? argv[1] : NULL;
    minutes = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 0;
    snprintf(path, sizeof(path), "/dev/shm/farindex-soak-%d", (int)getpid());
    snprintf(uri, sizeof(uri), "shm:%s?size=512M", path);
    return TEST_CONTINUE;
}


TEST_GENERATOR(add_kinds) {
    const char *kinds[CONFORM_KINDS];
    size_t count = conform_kinds(kinds);
    for (size_t i = 0; i < count; i++)
        if (only_kind ? strcmp(kinds[i], only_kind) == 0 : strcmp(kinds[i], "toy") != 0)
            test_add(kinds[i], minutes ? resident_memory_is_bounded : allocated_memory_returns_to_its_base, NULL,
                     remove_pool, (void *)kinds[i]);
}
