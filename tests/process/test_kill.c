/* Four processes work on the same hot keys of one pool. Every few hundred milliseconds a process is killed and replaced
 * by a new one, and sometimes two are killed in quick succession. Proves that all results of the processes are
 * linearizable, where an operation that was cut off by a kill may have taken effect or not; that no operation takes
 * longer than a second, not counting the time in which a process waited for a processor; that the structure is sound
 * afterwards; and that no data is lost. All kinds are tested at the same time. FARINDEX_KILLS sets the number of kills,
 * FARINDEX_SEED the random decisions. */
#include "base/random.h"
#include "base/sanitizer.h"
#include "conform.h"
#include "crew.h"
#include "stalls.h"
#include "test.h"

#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PROCESSES    4
#define RECORDS      400000 /* smallest size of the history, in records */
#define RECORDS_EACH 4000   /* records per kill, if there are many kills */
#define PAUSE_MIN_NS 100000000
#define PAUSE_NS     200000000 /* random part of the pause between two kills */
#define OPERATIONS   2000      /* random number of operations between the end of a pause and the next kill */
#define QUICK_EVERY  4         /* after one in this number of kills, a second process is killed at once, in addition */
/* limit for an operation, in time with a processor; code with a sanitizer is slower */
#define WAIT_MAX_NS ((FAR_TSAN || FAR_ASAN ? 5 : 1) * 1000000000ll)
#define STUCK_NS    (10 * WAIT_MAX_NS)
#define LONG_NS     (WAIT_MAX_NS / 20) /* shorter operations are not examined */


static unsigned read_number(const char *variable, unsigned otherwise) {
    const char *text = getenv(variable);
    return text ? (unsigned)strtoul(text, NULL, 10) : otherwise;
}


static uint64_t count_records_needed(unsigned kills) {
    uint64_t records = (uint64_t)RECORDS_EACH * kills;
    return records > RECORDS ? records : RECORDS;
}


static void pause_for(int64_t ns) {
    nanosleep(&(struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000}, NULL);
}


static void assert_no_process_is_stuck(const crew *c, const stalls *s) {
    char words[512];
    if (crew_broken(c, words, sizeof(words)))
        fail_msg("%s", words);
    for (unsigned i = 0; i < c->places; i++) {
        int64_t since = atomic_load_explicit(&c->book->operation_since[i], memory_order_relaxed), now = crew_now();
        if (since && now - since > STUCK_NS && stalls_fair_time(s, since, now) > STUCK_NS)
            fail_msg("process %u waits for %lld ms", i, (long long)(now - since) / 1000000);
    }
}


/* Returns the duration of the longest completed operation, in time with a processor. Short operations are not examined.
 */
static int64_t longest_fair_time(const crew *c, const stalls *s) {
    int64_t longest = 0;
    uint64_t used = atomic_load_explicit(&c->book->used, memory_order_acquire);
    for (uint64_t i = 0; i < used && i < c->limit; i++) {
        const crew_record *record = &c->book->records[i];
        int64_t took = record->end - record->start;
        if (atomic_load_explicit(&record->state, memory_order_acquire) != 2 || took <= longest || took < LONG_NS)
            continue;
        int64_t fair = stalls_fair_time(s, record->start, record->end);
        longest = fair > longest ? fair : longest;
    }
    return longest;
}


static void start_process(crew *c, stalls *s, unsigned place) {
    crew_start(c, place);
    stalls_watch(s, place, c->pids[place]);
}


/* Lets the processes continue, waits for a random number of operations, and then kills a process in the middle of its
 * work. */
static void kill_and_replace_one(crew *c, stalls *s, far_random *random, uint64_t allowed) {
    uint64_t used = atomic_load_explicit(&c->book->used, memory_order_relaxed);
    uint64_t until = used + 1 + far_random_below(random, OPERATIONS);
    atomic_store_explicit(&c->book->allowed, allowed, memory_order_relaxed);
    for (int64_t begin = crew_now(); used < until && crew_now() - begin < WAIT_MAX_NS; pause_for(300000)) {
        assert_no_process_is_stuck(c, s);
        used = atomic_load_explicit(&c->book->used, memory_order_relaxed);
    }
    assert_true(used < c->limit); /* there is room in the history */
    unsigned place = (unsigned)far_random_below(random, PROCESSES);
    crew_kill(c, place);
    start_process(c, s, place);
}


static unsigned kill_and_replace_many(crew *c, stalls *s, far_random *random, unsigned kills) {
    unsigned quick = 0;
    for (unsigned i = 0; i < kills; i++) {
        uint64_t allowed = c->limit * (i + 1) / (kills + 10);
        kill_and_replace_one(c, s, random, allowed);
        if (i % QUICK_EVERY == 0) {
            kill_and_replace_one(c, s, random, allowed + c->limit / (kills + 10) / 2);
            quick++;
        }
        pause_for(PAUSE_MIN_NS + (int64_t)far_random_below(random, PAUSE_NS));
    }
    return kills + quick;
}


static void work_survives_kills(const char *uri, const char *kind, const char *options) {
    crew c;
    stalls s;
    far_random random;
    stalls_begin(&s);
    bool few = FAR_TSAN || FAR_ASAN || strcmp(kind, "toy") == 0;
    unsigned wanted = read_number("FARINDEX_KILLS", few ? 30 : 100);
    crew_up(&c, uri, kind, options, PROCESSES, count_records_needed(wanted));
    c.seed = read_number("FARINDEX_SEED", 1);
    far_random_seed(&random, c.seed);
    for (unsigned i = 0; i < PROCESSES; i++)
        start_process(&c, &s, i);
    unsigned kills = kill_and_replace_many(&c, &s, &random, wanted);
    atomic_store_explicit(&c.book->allowed, c.limit, memory_order_relaxed);
    pause_for(300000000);
    assert_no_process_is_stuck(&c, &s);
    crew_finish(&c);
    stalls_end(&s);
    int64_t longest, fair = longest_fair_time(&c, &s);
    uint64_t cut;
    far_history *history = crew_history(&c, &longest, &cut);
    print_message("%s: %u kills, %zu operations, %llu of them cut; the longest took %.1f ms; without waiting for a "
                  "processor %.1f ms\n",
                  kind, kills, far_history_count(history), (unsigned long long)cut, (double)longest / 1e6,
                  (double)fair / 1e6);
    assert_true(cut > kills / 8); /* enough kills cut off an operation */
    assert_true(fair < WAIT_MAX_NS);
    crew_verify(&c, history);
    far_history_free(history);
    crew_down(&c);
    stalls_free(&s);
}


TEST_FUNCTION(work_of_a_kind_survives_kills) {
    const char *kind = *state;
    char path[64], uri[96];
    snprintf(path, sizeof(path), "/dev/shm/farindex-kill-%d", (int)getpid());
    snprintf(uri, sizeof(uri), "shm:%s?size=256M", path);
    work_survives_kills(uri, kind, strcmp(kind, "toy") == 0 ? "slots=64,locks=on" : NULL);
    unlink(path);
}


TEST_FIXTURE(remove_pool) {
    char path[64];
    snprintf(path, sizeof(path), "/dev/shm/farindex-kill-%d", (int)getpid());
    unlink(path); /* the file remains if the test has failed */
    return 0;
}


/* ---- Each kind runs in a child process, all at the same time, because most of the time is spent waiting ---- */

static const char *only_kind; /* the first argument; NULL: every kind, each in a child process */

TEST_ARGUMENTS(argc, argv) {
    only_kind = argc > 1 ? argv[1] : NULL;
    return TEST_CONTINUE;
}


static pid_t start_kind(const char *kind, FILE *output) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    dup2(fileno(output), STDOUT_FILENO);
    dup2(fileno(output), STDERR_FILENO);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    execl("/proc/self/exe", "test_kill", kind, (char *)NULL);
    _exit(127);
}


static void show_output(FILE *output) {
    rewind(output);
    for (int c; (c = getc(output)) != EOF;)
        putchar(c);
    fclose(output);
}


TEST_FUNCTION(work_of_every_kind_survives_kills) {
    const char *kinds[CONFORM_KINDS];
    size_t count = conform_kinds(kinds);
    FILE *outputs[CONFORM_KINDS];
    pid_t pids[CONFORM_KINDS];
    int failed = 0;
    for (size_t i = 0; i < count; i++) {
        outputs[i] = tmpfile();
        pids[i] = outputs[i] ? start_kind(kinds[i], outputs[i]) : -1;
    }
    for (size_t i = 0; i < count; i++) {
        int status = 1;
        failed += pids[i] < 0 || waitpid(pids[i], &status, 0) != pids[i] || status != 0;
        if (outputs[i])
            show_output(outputs[i]);
        if (status)
            printf("%s: status %x\n", kinds[i], status);
    }
    assert_int_equal(failed, 0);
}


TEST_GENERATOR(add_kinds) {
    if (only_kind)
        test_add(only_kind, work_of_a_kind_survives_kills, NULL, remove_pool, (void *)only_kind);
    else
        test_add("work_of_every_kind_survives_kills", work_of_every_kind_survives_kills, NULL, NULL, NULL);
}
