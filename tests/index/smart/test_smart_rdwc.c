/* SMART with RDWC (read delegation and write combining) in the simulator: 16 compute nodes with 48 clients each work on
 * zipfian keys. Operations are merged, and gets must return values that they could also return without RDWC. */
#include "../support/world.h"
#include "test.h"
#include "workload/distribution.h"
#include "workload/value.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>


enum { NODES = 16, CLIENTS = 48, OPS = 24, KEYS = 2000 };

typedef struct client {
    far_session *session;
    far_index *index;
    far_distribution *zipf;
    far_random random;
    bool writes;
    uint64_t sum, wrong, version;
} client;

typedef struct outcome {
    uint64_t delegated, combined, sum, wrong;
} outcome;


static void run_client(void *arg) {
    client *c = arg;
    char key[8], value[8];
    size_t length;
    for (unsigned i = 0; i < OPS; i++) {
        uint64_t n = far_distribution_next(c->zipf, &c->random, KEYS), version;
        memcpy(key, &n, 8);
        if (c->writes && i % 2) {
            far_value_fill(value, 8, key, 8, ++c->version);
            c->wrong += far_update(c->session, c->index, key, 8, value, 8) != 0;
            continue;
        }
        if (far_get(c->session, c->index, key, 8, value, 8, &length) != 0 ||
            !far_value_check(value, 8, key, 8, &version))
            c->wrong++;
        else
            c->sum = c->sum * 31 + n + (c->writes ? 0 : version);
    }
}


static void load_keys(far_session *session, far_index *index) {
    char value[8];
    for (uint64_t n = 0; n < KEYS; n++) {
        far_value_fill(value, 8, &n, 8, n);
        assert_int_equal(far_insert(session, index, &n, 8, value, 8), 0);
    }
}


static outcome run_workload(int rdwc, bool writes) {
    static client clients[NODES][CLIENTS];
    far_pool *pools[NODES];
    far_index *indexes[NODES];
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    far_distribution zipf;
    outcome o = {0};
    char uri[WORLD_URI];
    options.rdwc = rdwc ? 1 : -1;
    world_uri(uri, "seed=1,memory_nodes=2,size=1G,watch=off");
    assert_int_equal(far_distribution_init(&zipf, FAR_DISTRIBUTION_ZIPFIAN, FAR_ZIPF_THETA, KEYS), 0);
    for (unsigned i = 0; i < NODES; i++) {
        assert_int_equal(far_pool_open(uri, &options, &pools[i]), 0);
        for (unsigned j = 0; j < CLIENTS; j++) {
            client *c = &clients[i][j];
            *c = (client){.zipf = &zipf, .writes = writes, .version = (uint64_t)(i * CLIENTS + j) << 16};
            assert_int_equal(far_session_open(pools[i], &c->session), 0);
            far_random_seed(&c->random, i * CLIENTS + j + 1);
            if (i == 0 && j == 0) {
                assert_int_equal(far_index_create(c->session, "index", "smart", NULL, &indexes[0]), 0);
                load_keys(c->session, indexes[0]);
            } else if (j == 0)
                assert_int_equal(far_index_open(c->session, "index", &indexes[i]), 0);
            c->index = indexes[i];
        }
    }
    far_sim_world *world = far_sim_world_of(pools[0]->fabric);
    for (unsigned i = 0; i < NODES; i++)
        for (unsigned j = 0; j < CLIENTS; j++)
            world_start(pools[i], "client", run_client, &clients[i][j]);
    assert_int_equal(far_sim_run(world), FAR_SIM_ENDED);
    for (unsigned i = 0; i < NODES; i++) {
        for (unsigned j = 0; j < CLIENTS; j++) {
            far_stats stats;
            far_session_stats(clients[i][j].session, &stats);
            o.delegated += stats.delegated_reads;
            o.combined += stats.combined_writes;
            o.sum = o.sum * 31 + clients[i][j].sum;
            o.wrong += clients[i][j].wrong;
        }
        far_index_close(indexes[i]);
        for (unsigned j = 0; j < CLIENTS; j++)
            far_session_close(clients[i][j].session);
        far_pool_close(pools[i]);
    }
    return o;
}


/* With RDWC, a part of the gets and updates is merged, and every get returns a value that is correct without RDWC too.
 */
TEST(merged_operations_give_the_same_results) {
    for (unsigned writes = 0; writes < 2; writes++) {
        outcome on = run_workload(1, writes), off = run_workload(0, writes);
        double all = NODES * CLIENTS * OPS;
        print_message("%s: %.3f of the operations delegated, %.3f combined\n", writes ? "YCSB A" : "YCSB C",
                      (double)on.delegated / all, (double)on.combined / all);
        assert_int_equal(on.wrong + off.wrong, 0);
        assert_true(on.delegated > 0 && (on.combined > 0) == writes);
        assert_int_equal(off.delegated + off.combined, 0);
        assert_int_equal(on.sum, off.sum);
    }
}
