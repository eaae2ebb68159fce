/* Growth in the simulator. With 64 clients, of which one stops and one fails during a doubling, no 10 ms pass without a
 * completed operation. Random torture of tiny tables executes every part of the protocol. */
#include "fabric/sim/sim.h"
#include "farindex.h"
#include "index/shard/shard.h"
#include "pool/handle.h"
#include "test.h"
#include "verify/torture.h"

#include <stdio.h>
#include <string.h>

enum { CLIENTS = 64, NODES = 8, KEYS = 400, GAP_NS = 10000000 };

typedef struct node {
    far_pool *pool;
    far_index *index;
} node;

typedef struct client {
    node *node;
    far_session *session;
    far_sim_client *sim;
    far_sim_world *world;
    unsigned number, done;
    /* last: time of the last completed operation of this client; longest: its longest pause between two completions */
    uint64_t last, longest;
} client;

static uint64_t last_completion, longest_gap;


static void load_keys(void *arg) {
    client *c = arg;
    for (unsigned i = 0; i < KEYS; i++) {
        uint64_t key = ((uint64_t)c->number << 32 | i) + 1;
        if (far_insert(c->session, c->node->index, &key, 8, &key, 8) != 0)
            return;
        uint64_t now = far_sim_now(c->world);
        if (now - last_completion > longest_gap)
            longest_gap = now - last_completion;
        last_completion = now;
        c->done++;
    }
}


/* Opens a table with eight compute nodes of eight clients each. */
static far_sim_world *open_crowd(const char *options, unsigned seed, node nodes[NODES], client clients[CLIENTS]) {
    far_pool_options pool_options = FAR_POOL_OPTIONS_INIT;
    static unsigned serial;
    char uri[128];
    snprintf(uri, sizeof(uri), "sim:name=growth%u,seed=%u,size=128M,memory_nodes=2,faults=none,limit=1000s", ++serial,
             seed);
    for (unsigned i = 0; i < NODES; i++) {
        assert_int_equal(far_pool_open(uri, &pool_options, &nodes[i].pool), 0);
        if (i == 0)
            assert_int_equal(far_session_open(nodes[0].pool, &clients[0].session), 0);
        if (i == 0)
            assert_int_equal(far_index_create(clients[0].session, "t", "shard", options, &nodes[0].index), 0);
    }
    far_sim_world *world = far_sim_world_of(nodes[0].pool->fabric);
    for (unsigned i = 0; i < CLIENTS; i++) {
        node *n = &nodes[i % NODES];
        far_session *session = i ? NULL : clients[0].session;
        if (!session)
            assert_int_equal(far_session_open(n->pool, &session), 0);
        if (i && i < NODES)
            assert_int_equal(far_index_open(session, "t", &n->index), 0);
        clients[i] = (client){.node = n, .session = session, .world = world, .number = i};
    }
    return world;
}


static void close_crowd(node nodes[NODES], client clients[CLIENTS]) {
    for (unsigned i = 0; i < NODES; i++)
        far_index_close(nodes[i].index);
    for (unsigned i = 0; i < CLIENTS; i++)
        far_session_close(clients[i].session);
    for (unsigned i = 0; i < NODES; i++)
        far_pool_close(nodes[i].pool);
}


static void service_goes_on(const char *options, const char *stop_at) {
    node nodes[NODES];
    client clients[CLIENTS];
    far_sim_world *world = open_crowd(options, 3, nodes, clients);
    for (unsigned i = 0; i < CLIENTS; i++)
        clients[i].sim = far_sim_start(clients[i].node->pool->fabric, "client", load_keys, &clients[i]);
    last_completion = far_sim_now(world);
    longest_gap = 0;
    /* A client of compute node 1 stops forever, without a lock. */
    far_sim_stop_before(clients[9].sim, (far_sim_match){.point = stop_at, .nth = 300});
    for (unsigned i = 2; i < CLIENTS; i += NODES) /* Compute node 2 fails during a split. */
        far_sim_kill_at(clients[i].sim, (far_sim_match){.point = "shard:write_halves"}, 0);
    assert_int_equal(far_sim_run(world), FAR_SIM_STOPPED);
    assert_true(far_sim_killed(nodes[2].pool->fabric));
    unsigned whole = 0;
    for (unsigned i = 0; i < CLIENTS; i++)
        whole += clients[i].done == KEYS;
    print_message("    %u of %u clients ended, the longest gap was %llu us\n", whole, CLIENTS,
                  (unsigned long long)(longest_gap / 1000));
    assert_true(longest_gap < GAP_NS);
    assert_int_equal(whole, CLIENTS - CLIENTS / NODES - 1);
    far_sim_resume(clients[9].sim);
    assert_int_equal(far_sim_run(world), FAR_SIM_ENDED);
    for (unsigned i = 0; i < CLIENTS; i++)
        for (unsigned k = 0; k < clients[i].done; k++) {
            uint64_t key = ((uint64_t)i << 32 | k) + 1, value;
            size_t length;
            assert_int_equal(far_get(clients[0].session, nodes[0].index, &key, 8, &value, 8, &length), 0);
            assert_int_equal(value, key);
        }
    assert_int_equal(far_sim_watch_errors(world), 0);
    close_crowd(nodes, clients);
}


/* AFS (adaptive frequency synchronization): the more clients insert, the more often each client publishes its count, so
 * that the doubling begins in time. */

static uint64_t inserted, at_doubling;


static void load_until_it_doubles(void *arg) {
    client *c = arg;
    far_addr pcb = shard_state_of(c->node->index)->part[0].pcb;
    const uint64_t *root =
        (const uint64_t *)((char *)far_sim_memory(c->world, far_addr_node(pcb)) + far_addr_offset(pcb));
    for (unsigned i = 0; at_doubling == 0; i++) {
        uint64_t key = ((uint64_t)c->number << 32 | i) + 1;
        if (far_insert(c->session, c->node->index, &key, 8, &key, 8) != 0)
            return;
        inserted++;
        if (at_doubling == 0 && shard_root_d(*root) > 0)
            at_doubling = inserted;
    }
}


static double doubled_at(const char *options, unsigned some, unsigned seed) {
    node nodes[NODES];
    client clients[CLIENTS];
    far_sim_world *world = open_crowd(options, seed, nodes, clients);
    const shard_state *st = shard_state_of(nodes[0].index);
    inserted = at_doubling = 0;
    for (unsigned i = 0; i < some; i++)
        clients[i].sim = far_sim_start(clients[i].node->pool->fabric, "client", load_until_it_doubles, &clients[i]);
    assert_int_equal(far_sim_run(world), FAR_SIM_ENDED);
    double load = (double)at_doubling / (double)((uint64_t)(st->slots + st->l2_slots) << st->b);
    print_message("    %u clients: doubled at %.3f\n", some, load);
    close_crowd(nodes, clients);
    return load;
}


/* Verifies that no doubling begins late. Each doubling may begin a little early, because clients may read full buckets
 * by chance, but the mean over several seeds must be close to the bound. */
static void many_clients_double_in_time_with(const char *options, unsigned some, double bound) {
    double mean = 0;
    for (unsigned seed = 1; seed <= 4; seed++) {
        double load = doubled_at(options, some, seed);
        assert_true(load >= bound - 0.04 && load <= bound + 0.02);
        mean += load / 4;
    }
    assert_true(mean >= bound - 0.02);
}


TEST(many_clients_double_in_time) {
    many_clients_double_in_time_with("partitions=1,bits=9,layout=pointer", 1, 0.8);
    many_clients_double_in_time_with("partitions=1,bits=9,layout=pointer", 64, 0.8);
    many_clients_double_in_time_with("key_size=8,value_size=8,partitions=1,bits=10", 64, 0.75);
}


/* Proves that clients of eight new compute nodes, which open a table that is nearly full, use the correct count from
 * the beginning. Fails if read_partitions (kind.c) does not read the counts: then each client inserts a tenth of the
 * whole table's keys before it publishes its count. */
static void late_comers_double_in_time_with(const char *options, double filled, double bound) {
    far_pool_options pool_options = FAR_POOL_OPTIONS_INIT;
    node first, nodes[NODES];
    client loader = {.node = &first, .number = 100}, clients[NODES];
    const char *uri = "sim:name=late_comers,seed=3,size=128M,faults=none,limit=1000s";
    assert_int_equal(far_pool_open(uri, &pool_options, &first.pool), 0);
    assert_int_equal(far_session_open(first.pool, &loader.session), 0);
    assert_int_equal(far_index_create(loader.session, "t", "shard", options, &first.index), 0);
    const shard_state *st = shard_state_of(first.index);
    uint64_t slots = (uint64_t)(st->slots + st->l2_slots) << st->b;
    for (inserted = 0; (double)inserted < filled * (double)slots; inserted++) {
        uint64_t key = ((uint64_t)loader.number << 32 | inserted) + 1;
        assert_int_equal(far_insert(loader.session, first.index, &key, 8, &key, 8), 0);
    }
    at_doubling = 0;
    far_sim_world *world = far_sim_world_of(first.pool->fabric);
    for (unsigned i = 0; i < NODES; i++) {
        assert_int_equal(far_pool_open(uri, &pool_options, &nodes[i].pool), 0);
        clients[i] = (client){.node = &nodes[i], .world = world, .number = i};
        assert_int_equal(far_session_open(nodes[i].pool, &clients[i].session), 0);
        assert_int_equal(far_index_open(clients[i].session, "t", &nodes[i].index), 0);
        clients[i].sim = far_sim_start(nodes[i].pool->fabric, "client", load_until_it_doubles, &clients[i]);
    }
    assert_int_equal(far_sim_run(world), FAR_SIM_ENDED);
    double load = (double)at_doubling / (double)slots;
    print_message("    late comers: doubled at %.3f\n", load);
    assert_true(load >= filled && load <= bound + 0.02);
    for (unsigned i = 0; i < NODES; i++) {
        far_index_close(nodes[i].index);
        far_session_close(clients[i].session);
        far_pool_close(nodes[i].pool);
    }
    far_index_close(first.index);
    far_session_close(loader.session);
    far_pool_close(first.pool);
}


TEST(late_comers_double_in_time) {
    late_comers_double_in_time_with("partitions=1,bits=9,layout=pointer", 0.785, 0.8);
    late_comers_double_in_time_with("key_size=8,value_size=8,partitions=1,bits=10", 0.735, 0.75);
}


TEST(pointer_table_never_pauses) {
    service_goes_on("partitions=4,bits=1,layout=pointer", "shard:main_bucket_read");
}


TEST(inline_table_never_pauses) {
    service_goes_on("key_size=8,value_size=8,partitions=64,bits=4,slots=4,l2_slots=2", "shard:lock");
}


/* Proves that torture executes every part of the protocol. A single seed does not reach all parts, but the sum over
 * some seeds must. */
TEST(torture_covers_everything) {
    static const struct {
        const char *options, *keys;
        bool masked_cas;
        unsigned atomic_bytes;
    } runs[] = {
        {"partitions=1,bits=0,slots=2,l2_slots=1,load=15", "prefix", true, 64},
        {"partitions=1,bits=0,slots=2,l2_slots=1,load=3,afs=1", "u64", false, 8},
        {"key_size=8,value_size=8,narrow=on,partitions=1,bits=0,slots=1,l2_slots=1,load=15", "seq", true, 64},
        {"key_size=8,value_size=8,narrow=on,partitions=1,bits=0,slots=1,l2_slots=1,load=95", "seq", true, 8},
    };
    for (unsigned i = 0; i < sizeof(runs) / sizeof(runs[0]); i++) {
        bool inlined = strstr(runs[i].options, "narrow") != NULL;
        far_torture torture;
        far_torture_result result = {0};
        if (i % 2 == 0)
            memset(&shard_totals, 0, sizeof(shard_totals)); /* sums the counters of both runs of a layout */
        for (uint64_t seed = 1; seed <= 40; seed++) {
            far_torture_init(&torture);
            torture.kind = "shard";
            torture.options = runs[i].options;
            torture.keys = runs[i].keys;
            torture.key_space = 40;
            torture.ops = 800;
            torture.scans = false;
            torture.churn = !inlined; /* only the pointer layout, because its indexes get values of all sizes */
            torture.depth = seed % 2 ? 1 : 8;
            torture.masked_cas = runs[i].masked_cas;
            torture.atomic_bytes = runs[i].atomic_bytes;
            if (inlined)
                torture.value_bytes[0] = torture.value_bytes[1] = 8;
            assert_int_equal(far_torture_run(&torture, seed, &result, stdout), 0);
        }
        assert_int_equal(result.violations + result.problems, 0);
        const shard_counters *c = &shard_totals;
        print_message("    %llu crashes, %llu doublings, %llu+%llu splits, %llu with a change, %llu retagged, %llu "
                      "overflows, %llu chained, %llu drained, %llu taken over\n",
                      (unsigned long long)result.crashes, (unsigned long long)c->grows,
                      (unsigned long long)c->splits_frozen, (unsigned long long)c->splits_graced,
                      (unsigned long long)c->merged, (unsigned long long)c->retags, (unsigned long long)c->overflows,
                      (unsigned long long)c->chained, (unsigned long long)c->drained, (unsigned long long)c->takeovers);
        if (i % 2 == 0)
            continue;
        assert_true(c->grows && c->overflows && c->drained && c->takeovers && c->chained && c->merged);
        assert_true(c->absorbed && (inlined || (c->retags && c->splits_frozen && c->splits_graced)));
    }
}


static void show_coverage(const far_torture_result *result) {
    const shard_counters *c = &shard_totals;
    print_message(
        "    %llu ops, %llu crashes, %llu doublings, %llu+%llu splits, %llu with a change, %llu overflows, %llu "
        "chained, %llu drained, %llu nodes unlinked, %llu under a lock, %llu taken over, %llu absorbed, %llu opened "
        "again, "
        "%llu filters forgot, %llu shrunk, %llu called off\n",
        (unsigned long long)result->ops, (unsigned long long)result->crashes, (unsigned long long)c->grows,
        (unsigned long long)c->splits_frozen, (unsigned long long)c->splits_graced, (unsigned long long)c->merged,
        (unsigned long long)c->overflows, (unsigned long long)c->chained, (unsigned long long)c->drained,
        (unsigned long long)c->unlinked, (unsigned long long)c->under_lock, (unsigned long long)c->takeovers,
        (unsigned long long)c->absorbed, (unsigned long long)c->reopened, (unsigned long long)c->forgotten,
        (unsigned long long)c->shrunk, (unsigned long long)c->cancelled);
}


/* Proves that torture with default options makes tables double. Fails if far_torture_run does not call
 * far_torture_choose_small. */
TEST(torture_by_default_covers_everything) {
    far_torture torture;
    far_torture_result result = {0};
    memset(&shard_totals, 0, sizeof(shard_totals));
    for (uint64_t seed = 1; seed <= 100; seed++) {
        far_torture_init(&torture);
        torture.kind = "shard";
        torture.scans = false;
        assert_int_equal(far_torture_run(&torture, seed, &result, stdout), 0);
    }
    assert_int_equal(result.violations + result.problems, 0);
    show_coverage(&result);
    const shard_counters *c = &shard_totals;
    assert_true(c->grows > 100 && c->splits_frozen && c->splits_graced && c->merged && c->overflows && c->chained);
    assert_true(c->drained && c->unlinked && c->under_lock && c->takeovers && c->absorbed);
    assert_true(c->reopened > 20 && c->forgotten > 20 && c->shrunk > 10 && c->cancelled > 5);
}
