/* Processes work on the hot keys of a pool on three daemons with memory files, while clients, daemons, or both are
 * killed at random moments. Who loses a daemon opens the pool again. All that they saw must be linearizable, with the
 * operations that a death cut done or not; the structure is sound afterwards, and nothing is leaked. KILLS and
 * DAEMON_KILLS in the environment say how often (default: a few), KIND with which kind of index. */
#include "base/random.h"
#include "conform.h"
#include "crew.h"
#include "daemons.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define NODES     3
#define PROCESSES 3
#define ROUND     300 /* operations that are allowed for each kill */
#define STUCK_S   120 /* on a machine however busy */

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


static void up(cluster *k, unsigned kills) {
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


/* Until so many operations are in the book: then somebody is in the middle of one. */
static void await_used(cluster *k, uint64_t count) {
    double begun = daemon_seconds();
    char words[512];
    while (atomic_load(&k->crew.book->used) < count) {
        if (crew_broken(&k->crew, words, sizeof(words)))
            fail_msg("%s", words);
        if (daemon_seconds() - begun > STUCK_S)
            fail_msg("nobody does anything after %u kills", k->kills);
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
    assert_true(daemon_again(node));
}


/* They have time to end what they do; then everything is looked at. */
static void down(cluster *k, bool some_are_cut) {
    int64_t longest;
    uint64_t cut;
    uint64_t all = (uint64_t)(k->kills + 1) * ROUND;
    atomic_store(&k->crew.book->allowed, all);
    await_used(k, all);
    crew_finish(&k->crew);
    far_history *history = crew_history(&k->crew, &longest, &cut);
    print_message("%s: %u kills, %zu operations, %llu of them cut\n", k->crew.kind, k->kills,
                  far_history_count(history), (unsigned long long)cut);
    assert_true(!some_are_cut || cut > 0); /* deaths came in the middle of work */
    crew_verify(&k->crew, history);
    far_history_free(history);
    crew_down(&k->crew);
    for (unsigned i = 0; i < NODES; i++) {
        assert_int_equal(daemon_stop(&k->nodes[i]), 0);
        unlink(k->paths[i]);
    }
}


static void killed_clients_leave_linearizable_histories(void **state) {
    cluster k;
    (void)state;
    unsigned kills = number_from("KILLS", 4);
    up(&k, kills);
    for (unsigned i = 0; i < kills; i++)
        kill_client(&k);
    down(&k, kills > 20);
}


static void killed_daemons_leave_linearizable_histories(void **state) {
    cluster k;
    (void)state;
    unsigned kills = number_from("DAEMON_KILLS", 3);
    up(&k, kills);
    for (unsigned i = 0; i < kills; i++)
        kill_daemon(&k);
    down(&k, kills > 20);
}


static void deaths_of_both_leave_linearizable_histories(void **state) {
    cluster k;
    (void)state;
    unsigned kills = number_from("DAEMON_KILLS", 3);
    up(&k, 2 * kills);
    for (unsigned i = 0; i < kills; i++) {
        kill_client(&k);
        kill_daemon(&k);
    }
    down(&k, kills > 20);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_clients_leave_linearizable_histories),
        cmocka_unit_test(killed_daemons_leave_linearizable_histories),
        cmocka_unit_test(deaths_of_both_leave_linearizable_histories),
    };
    return cmocka_run_group_tests_name("net/histories", tests, NULL, NULL);
}
