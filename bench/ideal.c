/* The throughput of an ideal index on simulated NICs (--ideal). The same number of clients runs the same mix of
 * operations, but each operation costs exactly one READ or one WRITE of its pair. A scan is one READ of all its pairs,
 * a read-modify-write is a READ and then a WRITE, and a delete is a WRITE of one word. The measurement uses a simulated
 * world of its own with the same options. */
#include "bench/bench.h"
#include "fabric/sim/sim.h"
#include "pool/handle.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define OPS_LEAST     200 /* smallest number of operations per client */
#define OPS_MOST      2000
#define SCRATCH_BYTES (FAR_VALUE_MAX + FAR_KEY_MAX + 8) /* larger amounts are moved in several pieces */

typedef struct ideal_run ideal_run;

typedef struct ideal_client {
    ideal_run *run;
    far_session *session;
    far_ycsb_stream stream;
    uint64_t left, begin, end;
    int error;
} ideal_client;

struct ideal_run {
    const bench_config *config;
    far_pool **pools;
    ideal_client *clients;
    far_records *records;
    far_ycsb ycsb;
    char uri[BENCH_URI_MAX + 16];
};


static uint64_t pair_bytes(const bench_config *config, uint64_t record) {
    uint8_t key[FAR_KEY_MAX];
    return (far_keyset_key(config->keys, record, key) + config->value_size + 7) & ~7ull;
}


/* Returns an address in the upper half of a node, where no other part of the benchmark allocates. */
static far_addr address_of_record(const far_fabric *fabric, uint64_t record, uint64_t bytes) {
    uint64_t hash = far_splitmix(&record);
    unsigned node = (unsigned)(hash % fabric->nodes);
    uint64_t half = fabric->node_bytes[node] / 2;
    return far_addr_make(node, half + (hash >> 8) % ((half - bytes) / 64) * 64);
}


static int move_pair(far_task *t, uint64_t record, uint64_t bytes, bool write, char *scratch) {
    while (bytes) {
        uint64_t piece = bytes < SCRATCH_BYTES ? bytes : SCRATCH_BYTES;
        far_addr addr = address_of_record(far_task_fabric(t), record, piece);
        if (write)
            far_write(t, addr, scratch, piece);
        else
            far_read(t, addr, scratch, piece);
        far_mark(t, FAR_VERB_SYSTEM);
        bytes -= piece;
    }
    return far_wait(t);
}


static void run_ops(far_task *t, void *arg) {
    ideal_client *client = arg;
    const bench_config *config = client->run->config;
    char *scratch = far_scratch(t, SCRATCH_BYTES);
    int err = scratch ? 0 : FAR_ERR_NO_MEMORY;
    if (scratch)
        memset(scratch, 0, SCRATCH_BYTES);
    while (client->left && !err) {
        far_ycsb_op op;
        if (far_ycsb_next(&client->stream, &op) < 0)
            break;
        client->left--;
        uint64_t bytes = pair_bytes(config, op.record);
        if (op.kind == FAR_YCSB_GET || op.kind == FAR_YCSB_READ_MODIFY_WRITE)
            err = move_pair(t, op.record, bytes, false, scratch);
        if (op.kind == FAR_YCSB_SCAN)
            err = move_pair(t, op.record, bytes * op.scan_len, false, scratch);
        else if (op.kind != FAR_YCSB_GET && !err)
            err = move_pair(t, op.record, op.kind == FAR_YCSB_DELETE ? 8 : bytes, true, scratch);
        if (op.kind == FAR_YCSB_INSERT)
            far_records_acknowledge(client->run->records, op.record);
    }
    if (err)
        client->error = err;
}


static void run_client(void *arg) {
    ideal_client *client = arg;
    far_session *s = client->session;
    far_host *host = s->conn->fabric->host;
    client->begin = far_host_now(host);
    far_session_enter(s);
    for (uint64_t i = 0; i < client->run->config->depth; i++)
        if (!far_task_new(s, FAR_OP_GET, run_ops, client))
            client->error = FAR_ERR_NO_MEMORY;
    far_session_drain(s);
    far_session_leave(s);
    client->end = far_host_now(host);
}


static int open_clients(ideal_run *run, uint64_t ops) {
    const bench_config *config = run->config;
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    for (uint64_t i = 0; i < config->compute_nodes; i++)
        if (far_pool_open(run->uri, &options, &run->pools[i]) < 0)
            return cli_failed("%s: %s", run->uri, far_last_error());
    far_sim_limit(far_sim_world_of(run->pools[0]->fabric), 0);
    for (unsigned i = 0; i < bench_clients(config); i++) {
        ideal_client *client = &run->clients[i];
        client->run = run;
        client->left = ops;
        far_ycsb_stream_init(&client->stream, &run->ycsb, i);
        if (far_session_open(run->pools[i / config->threads], &client->session) < 0)
            return cli_failed("session: %s", far_last_error());
    }
    return 0;
}


static int run_clients(ideal_run *run) {
    const bench_config *config = run->config;
    for (unsigned i = 0; i < bench_clients(config); i++)
        if (!far_sim_start(run->pools[i / config->threads]->fabric, "ideal", run_client, &run->clients[i]))
            return cli_failed("no memory for simulated clients");
    far_sim_result result = far_sim_run(far_sim_world_of(run->pools[0]->fabric));
    if (result != FAR_SIM_ENDED)
        return cli_failed("the simulated clients did not end: %s", far_sim_result_name(result));
    for (unsigned i = 0; i < bench_clients(config); i++)
        if (run->clients[i].error)
            return cli_failed("ideal: %s", far_strerror(run->clients[i].error));
    return 0;
}


static double ideal_rate(const ideal_run *run, uint64_t ops) {
    uint64_t begin = UINT64_MAX, end = 0, done = 0;
    for (unsigned i = 0; i < bench_clients(run->config); i++) {
        const ideal_client *client = &run->clients[i];
        begin = client->begin < begin ? client->begin : begin;
        end = client->end > end ? client->end : end;
        done += ops - client->left;
    }
    return end > begin ? (double)done * 1000 / (double)(end - begin) : 0;
}


static int start_ycsb(ideal_run *run, far_ycsb_workload workload, uint64_t ops) {
    const bench_config *config = run->config;
    bool load = workload == FAR_YCSB_LOAD;
    far_ycsb_config ycsb = bench_ycsb(config, workload, ops);
    if (load)
        ycsb.records = UINT64_MAX;
    char error[160];
    far_records_init(run->records, load ? 0 : config->records, far_keyset_count_limit(config->keys));
    return far_ycsb_init(&run->ycsb, &ycsb, run->records, error, sizeof(error)) < 0 ? cli_failed("%s", error) : 0;
}


/* Gives the pool another name in its URI, because the name identifies a simulated world within the process. */
static void rename_pool(ideal_run *run) {
    const char *uri = run->config->uri, *name = strstr(uri, "name="), *rest = name + strcspn(name, ",");
    snprintf(run->uri, sizeof(run->uri), "%.*sname=bench.ideal%s", (int)(name - uri), uri, rest);
}


double bench_ideal_mops(const bench_config *config, far_ycsb_workload workload) {
    unsigned clients = bench_clients(config);
    ideal_run run = {.config = config};
    run.pools = calloc(config->compute_nodes, sizeof(*run.pools));
    run.clients = calloc(clients, sizeof(*run.clients));
    run.records = malloc(sizeof(*run.records));
    uint64_t ops = config->depth * OPS_LEAST < OPS_MOST ? OPS_MOST : config->depth * OPS_LEAST;
    int err = run.pools && run.clients && run.records ? 0 : cli_failed("no memory for %u clients", clients);
    rename_pool(&run);
    if (!err)
        err = start_ycsb(&run, workload, ops * clients);
    if (!err)
        err = open_clients(&run, ops);
    if (!err)
        err = run_clients(&run);
    double rate = err ? -1 : ideal_rate(&run, ops);
    for (unsigned i = 0; run.clients && i < clients; i++)
        far_session_close(run.clients[i].session);
    for (unsigned i = 0; run.pools && i < config->compute_nodes; i++)
        far_pool_close(run.pools[i]);
    free(run.pools);
    free(run.clients);
    free(run.records);
    return rate;
}
