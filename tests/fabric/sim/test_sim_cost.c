/* Tests of the cost model of the simulator: latencies and throughput limits of the presets (models of network cards).
 */
#include "sim_rig.h"
#include "test.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define CLIENTS_MAX 64


static uint64_t latency(rig *r, far_verb verb) {
    far_batch batch = rig_batch(&verb, 1);
    uint64_t before = far_host_now(r->fabric->host);
    rig_post(r, &batch);
    assert_int_equal(rig_wait(r, &batch), 0);
    uint64_t after = far_host_now(r->fabric->host);
    assert_int_equal(batch.posted_at, before);
    assert_int_equal(batch.completed_at, after);
    return after - before;
}


static void check_latencies(const char *nic, uint64_t read, uint64_t write, uint64_t atomic) {
    rig r;
    uint64_t old, words[8] = {0};
    rig_connect(&r, rig_open("nic=%s,memory_nodes=2", nic));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(latency(&r, rig_read(0x1000, words, 8)), read);
        assert_int_equal(latency(&r, rig_read(far_addr_make(1, 0x1000), words, 64)), read);
        assert_int_equal(latency(&r, rig_write(0x1000, words, 64)), write);
        assert_int_equal(latency(&r, rig_cas(0x1000, 0, 0, &old)), atomic);
        assert_int_equal(latency(&r, rig_faa(0x2000, 1, &old)), atomic);
        assert_int_equal(latency(&r, rig_masked_cas(0x2000, 0, 0, 1, 1, &old)), atomic);
        far_sim_sleep(far_sim_world_of(r.fabric), 777);
    }
    uint64_t least = read < write ? read : write;
    assert_int_equal(r.fabric->capabilities.min_rtt, least);
    rig_disconnect(&r);
    r.fabric->ops->close(r.fabric);
}


/* A single verb takes exactly the round trip of the preset. Fails if `sim_compute_costs` counts a part twice or not at
 * all. */
TEST(unloaded_round_trips_of_cx6_are_exact) {
    check_latencies("cx6", 2350, 2400, 2750);
}


/* A single verb takes exactly the round trip of the preset cx5. */
TEST(unloaded_round_trips_of_cx5_are_exact) {
    check_latencies("cx5", 2700, 2180, 2760);
}


/* A READ of 1 MiB takes the time of its transfer longer than a small one, because data is cut through and the transfer
 * time counts once. */
TEST(a_large_read_takes_its_transfer_longer) {
    rig r;
    static uint8_t bytes[1 << 20];
    rig_connect(&r, rig_open("nic=cx6"));
    uint64_t small = latency(&r, rig_read(0x1000, bytes, 8)), large = latency(&r, rig_read(0, bytes, 1 << 20));
    uint64_t transfer = (uint64_t)(1 << 20) * 2 / 25; /* The transfer rate is 12.5 bytes per ns. */
    assert_in_range(large - small, transfer - 30, transfer + 1);
    rig_disconnect(&r);
    r.fabric->ops->close(r.fabric);
}


/* ---- Throughput ---- */

typedef struct load {
    rig rig;
    far_verb_kind kind;
    uint32_t length, depth;
    bool one_word;
    unsigned number;
    uint64_t verbs; /* number of verbs that have completed */
    uint64_t until;
    uint8_t *buffer;
} load;


static far_verb load_verb(load *l, unsigned i) {
    far_addr addr =
        l->one_word ? 0x100 : 0x100000 + (uint64_t)l->number * 0x20000 + i * (l->length < 64 ? 64 : l->length);
    if (l->kind == FAR_READ)
        return rig_read(addr, l->buffer, l->length);
    if (l->kind == FAR_WRITE)
        return rig_write(addr, l->buffer, l->length);
    return rig_faa(addr, 1, NULL);
}


static void run_load(void *arg) {
    load *l = arg;
    far_verb verbs[16];
    far_host *host = l->rig.fabric->host;
    while (far_host_now(host) < l->until) {
        for (unsigned i = 0; i < l->depth; i++)
            verbs[i] = load_verb(l, i);
        assert_int_equal(rig_run(&l->rig, verbs, l->depth), 0);
        l->verbs += l->depth;
    }
}


/* Returns the number of verbs per millisecond that all clients together complete. */
static uint64_t throughput(const char *options, unsigned nodes, unsigned clients, load shape, uint64_t ns) {
    static load loads[CLIENTS_MAX];
    far_fabric *fabrics[4];
    uint64_t total = 0;
    for (unsigned i = 0; i < nodes; i++)
        fabrics[i] = rig_open("name=t,%s", options);
    for (unsigned i = 0; i < clients; i++) {
        loads[i] = shape;
        loads[i].number = i;
        loads[i].until = ns;
        loads[i].buffer = calloc(1, 1 << 20);
        rig_connect(&loads[i].rig, fabrics[i % nodes]);
        assert_non_null(far_sim_start(fabrics[i % nodes], "load", run_load, &loads[i]));
    }
    assert_int_equal(far_sim_run(far_sim_world_of(fabrics[0])), FAR_SIM_ENDED);
    uint64_t end = far_sim_now(far_sim_world_of(fabrics[0]));
    for (unsigned i = 0; i < clients; i++) {
        total += loads[i].verbs;
        rig_disconnect(&loads[i].rig);
        free(loads[i].buffer);
    }
    for (unsigned i = 0; i < nodes; i++)
        fabrics[i]->ops->close(fabrics[i]);
    return total * 1000000 / end;
}


static void assert_within_2_percent(uint64_t value, uint64_t wanted) {
    assert_in_range(value, wanted - wanted / 50, wanted + wanted / 50);
}


/* Many clients with small READs or WRITEs reach the message rate of a NIC of the preset cx6, within 2 percent. */
TEST(small_reads_reach_45_mops_per_nic) {
    load shape = {.kind = FAR_READ, .length = 8, .depth = 16};
    assert_within_2_percent(throughput("nic=cx6", 2, 32, shape, 2000000), 45000);
    /* all clients share one NIC, which has the same limit as that of the memory node */
    assert_within_2_percent(throughput("nic=cx6", 1, 32, shape, 2000000), 45000);
    shape.kind = FAR_WRITE;
    assert_within_2_percent(throughput("nic=cx6", 2, 32, shape, 2000000), 45000);
}


/* Many clients with small verbs reach the message rates of the preset cx5, within 2 percent. */
TEST(small_verbs_reach_the_limits_of_cx5) {
    load shape = {.kind = FAR_READ, .length = 8, .depth = 16};
    assert_within_2_percent(throughput("nic=cx5", 2, 64, shape, 1000000), 84500);
    shape.kind = FAR_WRITE;
    assert_within_2_percent(throughput("nic=cx5", 2, 64, shape, 1000000), 103600);
    shape.kind = FAR_FAA;
    assert_within_2_percent(throughput("nic=cx5", 2, 64, shape, 1000000), 50600);
}


/* Atomics on one word take turns and reach the rate `word_mops` of the cost model. Atomics on different words reach its
 * rate `atomic_mops`. */
TEST(atomics_on_one_word_reach_2_mops) {
    load shape = {.kind = FAR_FAA, .length = 8, .depth = 4, .one_word = true};
    assert_within_2_percent(throughput("nic=cx6", 2, 16, shape, 5000000), 2000);
    assert_within_2_percent(throughput("nic=cx5", 2, 16, shape, 5000000), 2900);
    shape.one_word = false;
    shape.depth = 16;
    assert_within_2_percent(throughput("nic=cx6", 2, 64, shape, 2000000), 45000);
}


/* READs and WRITEs of 4 KiB reach the bandwidth of a NIC, within 2 percent. */
TEST(large_verbs_reach_the_bandwidth) {
    load shape = {.kind = FAR_READ, .length = 4096, .depth = 8};
    uint64_t wanted = 12500ull * 1000 / 4096; /* number of verbs per ms */
    assert_within_2_percent(throughput("nic=cx6", 2, 16, shape, 2000000), wanted);
    shape.kind = FAR_WRITE;
    assert_within_2_percent(throughput("nic=cx6", 2, 16, shape, 2000000), wanted);
}


/* The 17th READ of a session to one memory node waits until an earlier one has completed, so it takes a second round
 * trip. A READ to another node does not wait. */
TEST(a_session_has_16_reads_outstanding) {
    rig r;
    uint64_t words[17];
    far_verb verbs[17];
    rig_connect(&r, rig_open("nic=cx6,memory_nodes=2"));
    for (unsigned i = 0; i < 17; i++)
        verbs[i] = rig_read(0x1000 + i * 64, &words[i], 8);
    far_batch sixteen = rig_batch(verbs, 16), seventeen = rig_batch(verbs, 17);
    rig_post(&r, &sixteen);
    assert_int_equal(rig_wait(&r, &sixteen), 0);
    assert_true(sixteen.completed_at - sixteen.posted_at < 2350 + 15 * 80 + 400);
    rig_post(&r, &seventeen);
    assert_int_equal(rig_wait(&r, &seventeen), 0);
    assert_true(seventeen.completed_at - seventeen.posted_at > 2 * 2000 + 17 * 80);
    verbs[16] = rig_read(far_addr_make(1, 0x1000), &words[16], 8); /* another memory node has a limit of its own */
    rig_post(&r, &seventeen);
    assert_int_equal(rig_wait(&r, &seventeen), 0);
    assert_true(seventeen.completed_at - seventeen.posted_at < 2350 + 16 * 80 + 500);
    rig_disconnect(&r);
    r.fabric->ops->close(r.fabric);
}


/* A verb with the fence flag is sent after all earlier verbs have completed, so the batch takes two round trips. */
TEST(a_fence_costs_a_round_trip) {
    rig r;
    uint64_t words[2];
    rig_connect(&r, rig_open("nic=cx6"));
    far_verb verbs[2] = {rig_read(0x1000, &words[0], 8), rig_read(0x1040, &words[1], 8)};
    far_batch plain = rig_batch(verbs, 2);
    rig_post(&r, &plain);
    rig_wait(&r, &plain);
    assert_true(plain.completed_at - plain.posted_at < 2600);
    verbs[1].flags = FAR_VERB_FENCE;
    rig_post(&r, &plain);
    rig_wait(&r, &plain);
    assert_true(plain.completed_at - plain.posted_at > 4300);
    rig_disconnect(&r);
    r.fabric->ops->close(r.fabric);
}
