/* An index is loaded from empty by 16 compute nodes, of one client each and of 32: an insert costs about the same, they
 * get more done together, and the slowest of them do not wait for ever. */
#include "fabric/sim/sim.h"
#include "farindex.h"
#include "pool/handle.h"
#include "workload/histogram.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { NODES = 16, CLIENTS_MAX = 32, KEYS = 30000 };

typedef struct node {
    far_pool *pool;
    far_index *index;
    far_session *sessions[CLIENTS_MAX];
} node;

typedef struct subject {
    const char *kind, *options;
    uint64_t mask;  /* of the keys */
    double p999_us; /* of an insert, at most */
} subject;

typedef struct load { /* all that the clients share */
    const subject *subject;
    node nodes[NODES];
    far_sim_world *world;
    uint64_t next; /* key */
    unsigned started;
    far_histogram took; /* by an insert, in ns */
} load;

typedef struct figures {
    double trips, verbs, mops, p999_us;
} figures;

static load *all; /* of the run under way */


static void insert_some(void *arg) {
    node *n = arg;
    far_session *session = n->sessions[all->started++ / NODES];
    while (all->next < KEYS) {
        uint64_t key = ++all->next * 0x9e3779b97f4a7c15ull & all->subject->mask, start = far_sim_now(all->world);
        assert_int_equal(far_insert(session, n->index, &key, 8, &key, 8), 0);
        far_histogram_add(&all->took, far_sim_now(all->world) - start);
    }
}


static void open_node(node *n, unsigned clients, bool first) {
    static unsigned pools;
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    char uri[64];
    snprintf(uri, sizeof(uri), "sim:name=load%u,size=64M,watch=off", pools += first);
    assert_int_equal(far_pool_open(uri, &options, &n->pool), 0);
    for (unsigned i = 0; i < clients; i++)
        assert_int_equal(far_session_open(n->pool, &n->sessions[i]), 0);
    int err = first ? far_index_create(n->sessions[0], "t", all->subject->kind, all->subject->options, &n->index)
                    : far_index_open(n->sessions[0], "t", &n->index);
    assert_int_equal(err, 0);
}


static void close_node(node *n, unsigned clients) {
    far_index_close(n->index);
    for (unsigned i = 0; i < clients; i++)
        far_session_close(n->sessions[i]);
    far_pool_close(n->pool);
}


static figures load_by(const subject *subject, unsigned clients) {
    figures f = {0};
    all = calloc(1, sizeof(*all));
    assert_non_null(all);
    all->subject = subject;
    for (unsigned i = 0; i < NODES; i++)
        open_node(&all->nodes[i], clients, i == 0);
    all->world = far_sim_world_of(all->nodes[0].pool->fabric);
    uint64_t start = far_sim_now(all->world);
    for (unsigned i = 0; i < NODES * clients; i++)
        far_sim_start(all->nodes[i % NODES].pool->fabric, "client", insert_some, &all->nodes[i % NODES]);
    assert_int_equal(far_sim_run(all->world), FAR_SIM_ENDED);
    f.mops = KEYS * 1e3 / (double)(far_sim_now(all->world) - start);
    f.p999_us = (double)far_histogram_quantile(&all->took, 999, 1000) / 1000;
    for (unsigned i = 0; i < NODES * clients; i++) {
        far_stats s;
        far_session_stats_of(all->nodes[i % NODES].sessions[i / NODES], FAR_OP_INSERT, &s);
        f.trips += (double)s.round_trips / KEYS;
        f.verbs += (double)(s.reads + s.writes + s.cas + s.faa + s.masked_cas) / KEYS;
    }
    print_message("%s, %u x %u clients: %.2f round trips and %.2f verbs of an insert, %.2f Mops, p999 %.0f us\n",
                  subject->kind, NODES, clients, f.trips, f.verbs, f.mops, f.p999_us);
    for (unsigned i = NODES; i-- > 0;)
        close_node(&all->nodes[i], clients);
    free(all);
    return f;
}


static void costs_what_it_costs_few(const subject *subject) {
    figures few = load_by(subject, 1), many = load_by(subject, 32);
    assert_true(many.trips <= 1.2 * few.trips && many.verbs <= 1.2 * few.verbs);
    assert_true(many.mops >= 2.5 * few.mops);
    assert_true(many.p999_us <= subject->p999_us);
}


/* Without queue.c, and with an insert that sleeps the longer the more often it found a lock held, p999 is 1200 us. */
static void a_load_of_chime_by_many_costs_what_it_costs_few(void **state) {
    (void)state;
    costs_what_it_costs_few(&(subject){"chime", "key_size=8,value_size=8", UINT64_MAX, 750});
}


/* All nodes of depth 2 are below 16 of depth 1, and the directory has 16 words: as dense as 480,000 keys by default, and
 * segments of the skip table grow under all clients. (When everybody who meets a full segment copies it: 13 verbs instead
 * of 7.7, p999 1765 us.) */
static void a_load_of_dart_by_many_costs_what_it_costs_few(void **state) {
    (void)state;
    costs_what_it_costs_few(&(subject){"dart", "directory_bits=4", ~0xf0ull, 1050});
}


int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_load_of_chime_by_many_costs_what_it_costs_few),
                                       cmocka_unit_test(a_load_of_dart_by_many_costs_what_it_costs_few)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
