/* Processes work on the hot keys of a pool on three daemons with memory files, while clients, daemons, or both are
 * killed at random moments. A client that loses a daemon opens the pool again. All results must be linearizable, where
 * an operation that was interrupted by a kill may or may not have happened. Afterwards the structure is sound and no
 * memory is leaked. The environment variables KILLS and DAEMON_KILLS give the numbers of kills (default: a few), KIND
 * the kind of index. */
#include "base/random.h"
#include "conform.h"
#include "crew.h"
#include "daemons.h"
#include "test.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define NODES     3
#define PROCESSES 3
#define ROUND     300 /* number of operations for each kill */
#define STUCK_S   120 /* seconds after which the test fails, enough for a busy machine */

typedef struct cluster {
    daemon_node nodes[NODES];
    char paths[NODES][64], uri[256];
    crew crew;
    far_random random;
    unsigned kills;
} cluster;


static unsigned number_from(const char *variable, unsigned otherwise) {
    const char *text = getenv(variable);
    return text ? (unsigned)strtoul(text, NULL, 10) : otherwise;
}


static void start_cluster(cluster *k, unsigned kills) {
    size_t used = (size_t)snprintf(k->uri, sizeof(k->uri), "tcp://");
    for (unsigned i = 0; i < NODES; i++) {
        snprintf(k->paths[i], sizeof(k->paths[i]), "/dev/shm/farindex-histories-%d-%u", (int)getpid(), i);
        unlink(k->paths[i]);
        assert_true(daemon_start(&k->nodes[i], NULL, "--size 32M --threads 2 --memory %s", k->paths[i]));
        used += (size_t)snprintf(k->uri + used, sizeof(k->uri) - used, "%s%s", i ? "," : "", k->nodes[i].address);
    }
    crew_up(&k->crew, k->uri, getenv("KIND") ? getenv("KIND") : "smart", NULL, PROCESSES, (kills + 3) * ROUND);
    k->crew.reopens = true;
    k->kills = 0;
    far_random_seed(&k->random, number_from("FARINDEX_SEED", 1));
    atomic_store(&k->crew.book->allowed, ROUND);
    for (unsigned i = 0; i < PROCESSES; i++)
        crew_start(&k->crew, i);
}


/* Waits until this number of operations has begun, so that a client is in the middle of an operation. */
static void await_used(cluster *k, uint64_t count) {
    double begun = daemon_seconds();
    char words[512];
    while (atomic_load(&k->crew.book->used) < count) {
        if (crew_broken(&k->crew, words, sizeof(words)))
            fail_msg("%s", words);
        if (daemon_seconds() - begun > STUCK_S)
            fail_msg("no operation began for a long time, after %u kills", k->kills);
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
}


static void await_a_moment(cluster *k) {
    uint64_t allowed = (uint64_t)(k->kills + 1) * ROUND;
    atomic_store(&k->crew.book->allowed, allowed);
    await_used(k, allowed - ROUND + 1 + far_random_below(&k->random, ROUND - 1));
    k->kills++;
}


static void kill_client(cluster *k) {
    unsigned place = (unsigned)far_random_below(&k->random, PROCESSES);
    await_a_moment(k);
    crew_kill(&k->crew, place);
    crew_start(&k->crew, place);
}


static void kill_daemon(cluster *k) {
    daemon_node *node = &k->nodes[far_random_below(&k->random, NODES)];
    await_a_moment(k);
    daemon_kill(node);
    assert_true(daemon_restart(node));
}


/* Lets the processes finish their operations, and then checks the history, the index and the pool. */
static void stop_cluster(cluster *k, bool some_are_cut) {
    int64_t longest;
    uint64_t cut;
    uint64_t all = (uint64_t)(k->kills + 1) * ROUND;
    atomic_store(&k->crew.book->allowed, all);
    await_used(k, all);
    crew_finish(&k->crew);
    far_history *history = crew_history(&k->crew, &longest, &cut);
    print_message("%s: %u kills, %zu operations, %llu of them interrupted\n", k->crew.kind, k->kills,
                  far_history_count(history), (unsigned long long)cut);
    assert_true(!some_are_cut || cut > 0); /* At least one kill happened in the middle of an operation. */
    crew_verify(&k->crew, history);
    far_history_free(history);
    crew_down(&k->crew);
    for (unsigned i = 0; i < NODES; i++) {
        assert_int_equal(daemon_stop(&k->nodes[i]), 0);
        unlink(k->paths[i]);
    }
}


/* Clients are killed at random moments. */
TEST(killed_clients_leave_linearizable_histories) {
    cluster k;
    unsigned kills = number_from("KILLS", 4);
    start_cluster(&k, kills);
    for (unsigned i = 0; i < kills; i++)
        kill_client(&k);
    stop_cluster(&k, kills > 20);
}


/* Daemons are killed at random moments and restarted with their memory files. */
TEST(killed_daemons_leave_linearizable_histories) {
    cluster k;
    unsigned kills = number_from("DAEMON_KILLS", 3);
    start_cluster(&k, kills);
    for (unsigned i = 0; i < kills; i++)
        kill_daemon(&k);
    stop_cluster(&k, kills > 20);
}


/* Clients and daemons are killed in turn. */
TEST(kills_of_both_leave_linearizable_histories) {
    cluster k;
    unsigned kills = number_from("DAEMON_KILLS", 3);
    start_cluster(&k, 2 * kills);
    for (unsigned i = 0; i < kills; i++) {
        kill_client(&k);
        kill_daemon(&k);
    }
    stop_cluster(&k, kills > 20);
}
