/* Four processes work on the same hot keys of one pool; every few hundred milliseconds one of them is killed, and
 * replaced by another; in between some die in quick succession. All that the survivors saw must be linearizable, with
 * the operations that a death cut done or not; nobody waits long; the structure is sound afterwards, and nothing is
 * lost. For every kind. FARINDEX_KILLS says how many; FARINDEX_SEED which random choices. */
#include "conform.h"
#include "crew.h"
#include "runtime/random.h"
#include "runtime/sanitizer.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PROCESSES    4
#define RECORDS      400000
#define PAUSE_MIN_NS 100000000
#define PAUSE_NS     200000000 /* at most so much more */
#define OPERATIONS   2000      /* at most so many after a pause until the next death */
#define QUICK_EVERY  4         /* so often one dies right after another, beside those that are asked for */
#define WAIT_MAX_NS  ((FAR_TSAN || FAR_ASAN ? 5 : 1) * 1000000000ll)
#define STALLS       4 /* one that waits may need a processor so often */


static unsigned number_from(const char *variable, unsigned otherwise) {
    const char *text = getenv(variable);
    return text ? (unsigned)strtoul(text, NULL, 10) : otherwise;
}


static void pause_for(int64_t ns) {
    nanosleep(&(struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000}, NULL);
}


/* How long a process that is ready has to wait for a processor here: a busy machine is not what is tested. */
typedef struct witness {
    _Atomic int64_t *stall; /* the longest; shared with it */
    pid_t pid;
} witness;


static void start_witness(witness *w) {
    w->stall = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(w->stall != MAP_FAILED);
    fflush(NULL);
    w->pid = fork();
    assert_true(w->pid >= 0);
    if (w->pid)
        return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int64_t last = crew_now();; last = crew_now()) {
        pause_for(1000000);
        while (crew_now() - last < 2000000) /* it works too: one that sleeps is served first */
            ;
        int64_t stall = crew_now() - last - 2000000;
        if (stall > atomic_load_explicit(w->stall, memory_order_relaxed))
            atomic_store_explicit(w->stall, stall, memory_order_relaxed);
    }
}


static int64_t end_witness(witness *w) {
    int status;
    assert_int_equal(kill(w->pid, SIGKILL), 0);
    assert_int_equal(waitpid(w->pid, &status, 0), w->pid);
    int64_t stall = atomic_load_explicit(w->stall, memory_order_relaxed);
    munmap((void *)w->stall, 4096);
    return stall;
}


static void assert_nobody_is_stuck(const crew *c) {
    char words[512];
    if (crew_broken(c, words, sizeof(words)))
        fail_msg("%s", words);
    for (unsigned i = 0; i < c->places; i++) {
        int64_t since = atomic_load_explicit(&c->book->stuck_since[i], memory_order_relaxed);
        if (since && crew_now() - since > 10 * WAIT_MAX_NS)
            fail_msg("process %u waits for %lld ms", i, (long long)(crew_now() - since) / 1000000);
    }
}


/* Lets them work again, waits until they do, and kills one in the middle of it. */
static void kill_one(crew *c, far_random *random, uint64_t allowed) {
    uint64_t used = atomic_load_explicit(&c->book->used, memory_order_relaxed);
    uint64_t until = used + 1 + far_random_below(random, OPERATIONS);
    atomic_store_explicit(&c->book->allowed, allowed, memory_order_relaxed);
    for (int64_t begin = crew_now(); used < until && crew_now() - begin < WAIT_MAX_NS; pause_for(50000)) {
        assert_nobody_is_stuck(c);
        used = atomic_load_explicit(&c->book->used, memory_order_relaxed);
    }
    assert_true(used < RECORDS); /* the book is not full */
    unsigned place = (unsigned)far_random_below(random, PROCESSES);
    crew_kill(c, place);
    crew_start(c, place);
}


static unsigned kill_many(crew *c, far_random *random, unsigned kills) {
    unsigned quick = 0;
    for (unsigned i = 0; i < kills; i++) {
        uint64_t allowed = (uint64_t)RECORDS * (i + 1) / (kills + 10);
        kill_one(c, random, allowed);
        if (i % QUICK_EVERY == 0) {
            kill_one(c, random, allowed + RECORDS / (kills + 10) / 2);
            quick++;
        }
        pause_for(PAUSE_MIN_NS + (int64_t)far_random_below(random, PAUSE_NS));
    }
    return kills + quick;
}


static void work_survives_kills(const char *uri, const char *kind, const char *options) {
    crew c;
    witness w;
    far_random random;
    start_witness(&w);
    crew_up(&c, uri, kind, options, PROCESSES, RECORDS);
    c.seed = number_from("FARINDEX_SEED", 1);
    far_random_seed(&random, c.seed);
    for (unsigned i = 0; i < PROCESSES; i++)
        crew_start(&c, i);
    bool few = FAR_TSAN || FAR_ASAN || strcmp(kind, "toy") == 0;
    unsigned kills = kill_many(&c, &random, number_from("FARINDEX_KILLS", few ? 30 : 100));
    atomic_store_explicit(&c.book->allowed, RECORDS, memory_order_relaxed);
    pause_for(300000000);
    assert_nobody_is_stuck(&c);
    crew_finish(&c);
    int64_t longest, stall = end_witness(&w);
    uint64_t cut;
    far_history *history = crew_history(&c, &longest, &cut);
    print_message(
        "%s: %u kills, %zu operations, %llu of them cut; the longest took %.1f ms, a processor was waited for "
        "%.1f ms\n",
        kind, kills, far_history_count(history), (unsigned long long)cut, (double)longest / 1e6, (double)stall / 1e6);
    assert_true(cut > kills / 8); /* deaths came in the middle of work */
    assert_true(longest < WAIT_MAX_NS + STALLS * stall);
    crew_verify(&c, history);
    far_history_free(history);
    crew_down(&c);
}


static void work_of_a_kind_survives_kills(void **state) {
    const char *kind = *state;
    char path[64], uri[96];
    snprintf(path, sizeof(path), "/dev/shm/farindex-kill-%d", (int)getpid());
    snprintf(uri, sizeof(uri), "shm:%s?size=256M", path);
    work_survives_kills(uri, kind, strcmp(kind, "toy") == 0 ? "slots=64,locks=on" : NULL);
    unlink(path);
}


static int remove_pool(void **state) {
    (void)state;
    char path[64];
    snprintf(path, sizeof(path), "/dev/shm/farindex-kill-%d", (int)getpid());
    unlink(path); /* when it failed */
    return 0;
}


int main(int argc, char **argv) {
    const char *kinds[CONFORM_KINDS];
    size_t count = conform_kinds(kinds), chosen = 0;
    struct CMUnitTest tests[CONFORM_KINDS];
    for (size_t i = 0; i < count; i++)
        if (argc < 2 || strcmp(argv[1], kinds[i]) == 0)
            tests[chosen++] =
                (struct CMUnitTest){kinds[i], work_of_a_kind_survives_kills, NULL, remove_pool, (void *)kinds[i]};
    return _cmocka_run_group_tests("kill", tests, chosen, NULL, NULL);
}
