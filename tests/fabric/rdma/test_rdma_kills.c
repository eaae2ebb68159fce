/* Test of client failures with RDMA, for one kind of index. Processes work on the same hot keys of a pool on two memory
 * nodes. Now and then one of the processes is killed in the middle of an operation and replaced. All results must be
 * linearizable. Afterwards the structure of the index is sound and no memory is leaked. `make test-rdma` runs the test
 * on a machine that has an RDMA device.
 *
 * usage: test_rdma_kills KIND
 *
 * The environment variable FARINDEX_KILLS gives the number of kills, FARINDEX_SEED the seed of random choices. */
#include "base/random.h"
#include "conform.h"
#include "crew.h"
#include "daemons.h"
#include "test.h"

#include <time.h>

#define PROCESSES 3
#define RECORDS   100000
#define KILLS     8
#define SIZE      "64M"
#define APART     40 /* largest number of operations between two kills */

static const char *kind;


static unsigned number_from(const char *variable, unsigned otherwise) {
    const char *text = getenv(variable);
    return text ? (unsigned)strtoul(text, NULL, 10) : otherwise;
}


/* Creates the index in another process, because a process that has used RDMA cannot fork workers. */
static void make_index(const char *uri) {
    char line[512];
    snprintf(line, sizeof(line), "exec %s create " CREW_INDEX " %s --pool '%s' >/dev/null", FARINDEX_COMMAND, kind,
             uri);
    assert_int_equal(system(line), 0);
}


static void await_operations(const crew *c, uint64_t more) {
    char words[512];
    uint64_t until = atomic_load_explicit(&c->book->used, memory_order_relaxed) + more;
    while (atomic_load_explicit(&c->book->used, memory_order_relaxed) < until) {
        if (crew_broken(c, words, sizeof(words)))
            fail_msg("%s", words);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}


/* Processes are killed and replaced. The history of all operations is linearizable, and no memory is leaked. */
TEST(work_survives_kills) {
    char uri[256];
    crew c;
    far_random random;
    int64_t longest;
    uint64_t cut;
    unsigned kills = number_from("FARINDEX_KILLS", KILLS);
    daemons_start_rdma(2, SIZE, "", uri, sizeof(uri));
    make_index(uri);
    crew_begin(&c, uri, kind, NULL, PROCESSES, RECORDS);
    c.seed = number_from("FARINDEX_SEED", 1);
    far_random_seed(&random, c.seed);
    for (unsigned i = 0; i < PROCESSES; i++)
        crew_start(&c, i);
    for (unsigned i = 0; i < kills; i++) {
        unsigned place = (unsigned)far_random_below(&random, PROCESSES);
        crew_await(&c, place, 1);
        await_operations(&c, 1 + far_random_below(&random, APART));
        crew_kill(&c, place);
        crew_start(&c, place);
    }
    /* the last replacements work, too, with the state that the killed processes left */
    for (unsigned i = 0; i < PROCESSES; i++)
        crew_await(&c, i, 1);
    crew_finish(&c);
    far_history *history = crew_history(&c, &longest, &cut);
    print_message("%s: %u kills, %zu operations, %llu of them interrupted\n", kind, kills, far_history_count(history),
                  (unsigned long long)cut);
    assert_true(cut >= kills / 4); /* At least a quarter of the kills must have cut off an operation. */
    crew_verify(&c, history);
    far_history_free(history);
    crew_down(&c);
    daemons_end(uri);
}


TEST_ARGUMENTS(argc, argv) {
    if (argc != 2) {
        fputs("usage: test_rdma_kills KIND\n", stderr);
        return 2;
    }
    kind = argv[1];
    return TEST_CONTINUE;
}
