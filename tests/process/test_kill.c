/* Four processes work on the same hot keys of one pool; again and again one of them is killed, and replaced by another.
 * All that the survivors saw must be linearizable, with the operations that a death cut done or not; nobody waits long;
 * the structure is sound afterwards, and nothing is lost. For every kind. FARINDEX_KILLS says how many; FARINDEX_SEED
 * which random choices. */
#include "conform.h"
#include "crew.h"
#include "runtime/random.h"
#include "runtime/sanitizer.h"

#include <time.h>
#include <unistd.h>

#define PROCESSES    4
#define RECORDS      1500000
#define PAUSE_MIN_NS 2000000
#define PAUSE_NS     16000000 /* at most so much more */
#define WAIT_MAX_NS  ((FAR_TSAN || FAR_ASAN ? 5 : 1) * 1000000000ll)


static unsigned number_from(const char *variable, unsigned otherwise) {
    const char *text = getenv(variable);
    return text ? (unsigned)strtoul(text, NULL, 10) : otherwise;
}


static void pause_for(int64_t ns) {
    nanosleep(&(struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000}, NULL);
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


static void work_survives_kills(const char *uri, const char *kind, const char *options) {
    crew c;
    far_random random;
    unsigned kills = number_from("FARINDEX_KILLS", FAR_TSAN || FAR_ASAN ? 30 : 100), wasted = 0;
    crew_up(&c, uri, kind, options, PROCESSES, RECORDS);
    c.seed = number_from("FARINDEX_SEED", 1);
    far_random_seed(&random, c.seed);
    for (unsigned i = 0; i < PROCESSES; i++)
        crew_start(&c, i);
    for (unsigned i = 0; i < kills; i++) {
        atomic_store_explicit(&c.book->allowed, (uint64_t)RECORDS * (i + 5) / (kills + 10), memory_order_relaxed);
        pause_for(PAUSE_MIN_NS + (int64_t)far_random_below(&random, PAUSE_NS));
        assert_nobody_is_stuck(&c);
        unsigned place = (unsigned)far_random_below(&random, PROCESSES);
        crew_kill(&c, place);
        crew_start(&c, place);
        wasted += atomic_load_explicit(&c.book->used, memory_order_relaxed) >= RECORDS;
    }
    pause_for(300000000);
    assert_nobody_is_stuck(&c);
    crew_finish(&c);
    int64_t longest;
    uint64_t cut;
    far_history *history = crew_history(&c, &longest, &cut);
    print_message("%s: %u kills, %zu operations, %llu of them cut, the longest took %.1f ms\n", kind, kills,
                  far_history_count(history), (unsigned long long)cut, (double)longest / 1e6);
    assert_int_equal(wasted, 0);  /* the book was never full */
    assert_true(cut > kills / 4); /* deaths came in the middle of work */
    assert_true(longest < WAIT_MAX_NS);
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
