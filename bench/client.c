/* One client of the benchmark (bench_client_work). It draws operations from its YCSB stream, runs them one by one or
 * several in flight, checks every answer, and records the latencies. */
#include "bench/client.h"
#include "fabric/sim/sim.h"
#include "pool/handle.h"
#include "workload/power.h"
#include "workload/value.h"

#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CLOCK_EVERY 32  /* operations between two comparisons with the time limit, on a real clock */
#define POLL_NS     100 /* virtual time between two polls of the operations in flight, in an open loop */
/* a thread sleeps only if it must wait longer than this, because the system would wake it too late from a shorter sleep
 */
#define SLEEP_NS     200000
#define LATE_WAKE_NS 100000

struct bench_slot {
    far_op op;
    far_ycsb_op what;
    uint64_t begun, started; /* start of the whole operation; start of its current part */
    bench_scan scan;
    uint8_t key[FAR_KEY_MAX];
    uint8_t *value;
};

static const char *const op_names[BENCH_OPS] = {"get", "insert", "update", "put", "delete", "scan"};


bool bench_client_prepare(bench_client *client) {
    const bench_config *config = client->run->config;
    client->slots = calloc(client->depth, sizeof(*client->slots));
    client->ops = calloc(2 * client->depth, sizeof(*client->ops));
    client->values = malloc(client->depth * (config->value_size + 8));
    if (!client->slots || !client->ops || !client->values)
        return false;
    for (uint64_t i = 0; i < client->depth; i++)
        client->slots[i].value = client->values + i * (config->value_size + 8);
    return true;
}


void bench_client_release(bench_client *client) {
    free(client->slots);
    free(client->ops);
    free(client->values);
    bench_series_free(&client->series);
}


void bench_client_clear(bench_client *client) {
    client->done = client->errors = 0;
    client->begin = client->end = 0;
    client->instructions = 0;
    memset(client->instructions_of, 0, sizeof(client->instructions_of));
    bench_series_clear(&client->series);
    far_histogram_clear(&client->latency);
    for (unsigned kind = 0; kind < BENCH_OPS; kind++)
        far_histogram_clear(&client->latency_of[kind]);
}


static uint64_t client_time(const bench_client *client) {
    return far_host_now(client->host);
}


static void record_error(bench_client *client, const bench_slot *slot, const char *what) {
    if (client->errors++ == 0)
        snprintf(client->first_error, sizeof(client->first_error), "%s of record %" PRIu64 ": %s",
                 op_names[slot->op.kind], slot->what.record, what);
}


/* ---- Operations ---- */

static void fill_value(bench_client *client, bench_slot *slot) {
    uint64_t version = (uint64_t)client->number << 40 | client->written++;
    size_t size = client->run->config->value_size;
    far_value_fill(slot->value, size, slot->key, slot->op.key_len, version);
    slot->op.value = slot->value;
    slot->op.value_len = size;
}


/* Draws the next operation. Returns FAR_ERR_BUSY if an insert must wait for inserts of other clients, and
 * FAR_ERR_NOT_FOUND if no record is left to insert. */
static int draw_operation(bench_client *client, bench_slot *slot) {
    static const far_op_kind kinds[] = {
        [FAR_YCSB_GET] = FAR_OP_GET,   [FAR_YCSB_UPDATE] = FAR_OP_UPDATE,         [FAR_YCSB_INSERT] = FAR_OP_INSERT,
        [FAR_YCSB_SCAN] = FAR_OP_SCAN, [FAR_YCSB_READ_MODIFY_WRITE] = FAR_OP_GET, [FAR_YCSB_DELETE] = FAR_OP_DELETE};
    const bench_config *config = client->run->config;
    int err = far_ycsb_next(&client->stream, &slot->what);
    if (err < 0)
        return err;
    far_op *op = &slot->op;
    memset(op, 0, sizeof(*op));
    op->kind = kinds[slot->what.kind];
    op->index = client->node->index;
    op->key = slot->key;
    op->key_len = far_keyset_key(config->keys, slot->what.record, slot->key);
    op->user = slot;
    if (op->kind == FAR_OP_GET) {
        op->value = slot->value;
        op->capacity = config->value_size;
    } else if (op->kind == FAR_OP_SCAN) {
        slot->scan = (bench_scan){.from = {slot->key, op->key_len},
                                  .value_size = config->value_size,
                                  .first_may_be_gone = config->mix.percent[FAR_YCSB_DELETE] > 0};
        op->limit = slot->what.scan_len;
        op->each = bench_scan_pair;
        op->each_ctx = &slot->scan;
    } else if (op->kind != FAR_OP_DELETE) {
        fill_value(client, slot);
    }
    return 0;
}


/* ---- The engine for farindex ---- */

static void far_engine_call(bench_client *client, far_op *op) {
    far_session *s = client->session;
    switch (op->kind) {
    case FAR_OP_GET:
        op->result = far_get(s, op->index, op->key, op->key_len, op->value, op->capacity, &op->value_len);
        break;
    case FAR_OP_INSERT:
        op->result = far_insert(s, op->index, op->key, op->key_len, op->value, op->value_len);
        break;
    case FAR_OP_SCAN:
        op->result = (int)far_scan(s, op->index, op->key, op->key_len, NULL, 0, op->limit, op->each, op->each_ctx);
        break;
    case FAR_OP_DELETE:
        op->result = far_delete(s, op->index, op->key, op->key_len);
        break;
    default:
        op->result = far_update(s, op->index, op->key, op->key_len, op->value, op->value_len);
        break;
    }
}


static int far_engine_submit(bench_client *client, far_op *ops[], size_t count) {
    return far_submit(client->session, ops, count);
}


static int far_engine_reap(bench_client *client, far_op *done[], size_t max, size_t wait_for) {
    return far_reap(client->session, done, max, wait_for);
}


const bench_engine bench_far_engine = {far_engine_call, far_engine_submit, far_engine_reap};


/* Returns whether the record was deleted after the operation was drawn. Such an operation may fail to find it. */
static bool record_was_deleted(bench_client *client, const bench_slot *slot) {
    return slot->op.result == FAR_ERR_NOT_FOUND && slot->what.kind != FAR_YCSB_DELETE &&
           slot->what.record < far_records_gone(client->run->records);
}


static void check_answer(bench_client *client, bench_slot *slot) {
    const far_op *op = &slot->op;
    if (record_was_deleted(client, slot))
        return;
    if (op->result < 0) {
        record_error(client, slot, far_strerror(op->result));
        client->broken |=
            op->result != FAR_ERR_NOT_FOUND && op->result != FAR_ERR_EXISTS && op->result != FAR_ERR_TOO_SMALL;
        return;
    }
    const char *problem = NULL;
    if (op->kind == FAR_OP_GET)
        problem = bench_check_value((far_bytes){op->key, op->key_len}, op->value, op->value_len,
                                    client->run->config->value_size);
    else if (op->kind == FAR_OP_SCAN)
        problem = slot->scan.wrong                                         ? slot->scan.wrong
                  : slot->scan.pairs == 0 && !slot->scan.first_may_be_gone ? "a scan that misses its first key"
                                                                           : NULL;
    if (problem)
        record_error(client, slot, problem);
}


/* Records the end of a part of an operation. Returns true if another part follows: the update of a read-modify-write.
 */
static bool end_operation_part(bench_client *client, bench_slot *slot, uint64_t time) {
    far_op *op = &slot->op;
    check_answer(client, slot);
    if (client->measured)
        far_histogram_add(&client->latency_of[op->kind], time - slot->started);
    if (slot->what.kind == FAR_YCSB_READ_MODIFY_WRITE && op->kind == FAR_OP_GET && op->result == 0) {
        op->kind = FAR_OP_UPDATE;
        fill_value(client, slot);
        return true;
    }
    if (op->kind == FAR_OP_INSERT)
        far_records_acknowledge(client->run->records, slot->what.record);
    if (client->measured) {
        far_histogram_add(&client->latency, time - slot->begun);
        client->done++;
        if (client->run->config->interval)
            bench_series_add(&client->series, client->run->config->interval, time - client->begin, time - slot->begun);
    }
    return false;
}


/* ---- Waiting ---- */

static bool is_simulated(const bench_client *client) {
    return client->run->config->sim;
}


static void pause_for(const bench_client *client, uint64_t ns) {
    if (is_simulated(client))
        far_sim_sleep(far_sim_world_of(client->node->pool->fabric), ns);
    else if (ns > SLEEP_NS)
        nanosleep(&(struct timespec){.tv_sec = (time_t)((ns - LATE_WAKE_NS) / 1000000000),
                                     .tv_nsec = (long)((ns - LATE_WAKE_NS) % 1000000000)},
                  NULL);
    else
        sched_yield();
}


static void pause_for_other_clients(const bench_client *client) {
    pause_for(client, 1000);
}


/* Computes when the next operation of an open loop arrives. The gaps are exponential, so all clients together form a
 * Poisson process, and the arrival times do not depend on the latencies. */
static void schedule_next_arrival(bench_client *client) {
    double uniform = (double)((far_random_next(&client->arrivals) >> 11) + 1) * 0x1p-53;
    client->due += (uint64_t)(-far_log(uniform) * (double)client->gap);
}


static void wait_until_due(bench_client *client) {
    for (uint64_t time = client_time(client); time < client->due && !cli_interrupted(); time = client_time(client))
        pause_for(client, client->due - time);
}


/* ---- The loops ---- */

static bool phase_is_over(const bench_client *client, uint64_t taken) {
    if (client->broken || taken >= client->budget || cli_interrupted())
        return true;
    if (!client->time_limit)
        return false;
    if (client->gap)
        return client->due - client->begin > client->time_limit;
    return (is_simulated(client) || taken % CLOCK_EVERY == 0) &&
           client_time(client) - client->begin > client->time_limit;
}


/* Returns the fraction of the phase that this client has done. */
static double phase_fraction_done(const bench_client *client, uint64_t taken) {
    double by_count = (double)taken / (double)client->budget, by_time = 0;
    if (client->time_limit)
        by_time = (double)(client_time(client) - client->begin) / (double)client->time_limit;
    return by_count > by_time ? by_count : by_time;
}


static void show_progress(const bench_client *client, uint64_t taken) {
    const bench_progress *progress = client->run->config->progress;
    uint64_t step = client->budget / 100 + 1;
    if (client->number != 0 || !cli_progress_is_shown() || taken % (step < 1000 ? step : 1000) != 0)
        return;
    double part =
        client->measured ? 0.5 + phase_fraction_done(client, taken) / 2 : phase_fraction_done(client, taken) / 2;
    cli_progress(progress && progress->steps ? (progress->done + part) / progress->steps : -1, "%s: workload %s%s%s%s",
                 client->run->label, client->run->phase, client->measured ? "" : ", warming up",
                 *client->run->config->point ? ", " : "", client->run->config->point);
}


/* Draws the next operation. If an insert is drawn and no key is left to insert, the load is complete, and the function
 * returns FAR_ERR_NOT_FOUND; other workloads skip the insert and draw again. */
static int draw_next_operation(bench_client *client, bench_slot *slot) {
    bool load = client->run->ycsb.config.workload == FAR_YCSB_LOAD;
    int err;
    do {
        err = draw_operation(client, slot);
    } while (err == FAR_ERR_NOT_FOUND && !load);
    return err;
}


static void call_engine(bench_client *client, far_op *op) {
    if (client->counter < 0) {
        client->engine->call(client, op);
        return;
    }
    uint64_t before = bench_instructions_now(client->counter);
    client->engine->call(client, op);
    uint64_t spent = bench_instructions_now(client->counter) - before;
    client->instructions += spent;
    client->instructions_of[op->kind] += spent;
}


static void work_one_by_one(bench_client *client) {
    bench_slot *slot = &client->slots[0];
    uint64_t taken = 0;
    while (!phase_is_over(client, taken)) {
        if (client->gap)
            wait_until_due(client);
        int err = draw_next_operation(client, slot);
        if (err == FAR_ERR_NOT_FOUND)
            break;
        if (err == FAR_ERR_BUSY) {
            pause_for_other_clients(client);
            continue;
        }
        uint64_t time = client->gap ? client->due : client_time(client);
        slot->begun = time;
        do {
            slot->started = time;
            call_engine(client, &slot->op);
            time = client_time(client);
        } while (end_operation_part(client, slot, time));
        if (client->gap)
            schedule_next_arrival(client);
        show_progress(client, ++taken);
    }
}


/* The state of a client with several operations in flight. Each slot is idle, ready to be submitted, or in flight. */
typedef struct flight {
    bench_client *client;
    bench_slot *idle[FAR_OPS_MAX];
    far_op **ready, **reaped;
    size_t idle_count, ready_count, in_flight;
    uint64_t taken;
    bool load_complete;
    bool busy; /* an insert was drawn, but must wait for inserts of other clients */
} flight;


/* True if the next operation may begin: at once in a closed loop, or after its arrival in an open loop. */
static bool next_operation_may_begin(const bench_client *client) {
    return !client->gap || client->due <= client_time(client);
}


static void draw_ready(flight *f) {
    bench_client *client = f->client;
    f->busy = false;
    while (f->idle_count && !f->busy && !f->load_complete && !phase_is_over(client, f->taken) &&
           next_operation_may_begin(client)) {
        bench_slot *slot = f->idle[f->idle_count - 1];
        int err = draw_next_operation(client, slot);
        f->load_complete = err == FAR_ERR_NOT_FOUND;
        f->busy = err == FAR_ERR_BUSY;
        if (err < 0)
            continue;
        slot->begun = slot->started = client->gap ? client->due : client_time(client);
        if (client->gap)
            schedule_next_arrival(client);
        f->ready[f->ready_count++] = &slot->op;
        f->idle_count--;
        show_progress(client, ++f->taken);
    }
}


static void end_reaped_operation(flight *f, far_op *op, uint64_t time) {
    bench_slot *slot = op->user;
    if (end_operation_part(f->client, slot, time)) {
        slot->started = time;
        f->ready[f->ready_count++] = op;
    } else {
        f->idle[f->idle_count++] = slot;
    }
}


/* Submits the ready operations. Operations that a full session does not accept are submitted again later. If submitting
 * fails with an error, all of them have failed. */
static void submit_ready(flight *f) {
    bench_client *client = f->client;
    int taken = f->ready_count ? client->engine->submit(client, f->ready, f->ready_count) : 0;
    if (taken >= 0) {
        f->in_flight += (size_t)taken;
        f->ready_count -= (size_t)taken;
        memmove(f->ready, f->ready + taken, f->ready_count * sizeof(*f->ready));
        return;
    }
    client->broken = true;
    size_t failed = f->ready_count;
    f->ready_count = 0;
    for (size_t i = 0; i < failed; i++) {
        f->ready[i]->result = taken;
        end_reaped_operation(f, f->ready[i], client_time(client));
    }
}


static void reap_some(flight *f) {
    bench_client *client = f->client;
    /* do not wait, because another operation may arrive before one ends */
    bool poll_only = client->gap && f->idle_count && !phase_is_over(client, f->taken);
    int count = f->in_flight ? client->engine->reap(client, f->reaped, f->in_flight, poll_only ? 0 : 1) : 0;
    if (count == 0 && poll_only)
        pause_for(client, POLL_NS);
    if (count < 0) {
        record_error(client, &client->slots[0], far_strerror(count));
        client->broken = true;
        f->in_flight = 0;
        return;
    }
    uint64_t time = client_time(client);
    f->in_flight -= (size_t)count;
    for (int i = 0; i < count; i++)
        end_reaped_operation(f, f->reaped[i], time);
}


static void work_in_flight(bench_client *client) {
    uint64_t depth = client->depth;
    flight f = {.client = client, .ready = client->ops, .reaped = client->ops + depth, .idle_count = depth};
    for (uint64_t i = 0; i < depth; i++)
        f.idle[i] = &client->slots[depth - 1 - i];
    for (;;) {
        draw_ready(&f);
        if (f.ready_count + f.in_flight > 0) {
            submit_ready(&f);
            reap_some(&f);
        } else if (f.busy) {
            pause_for_other_clients(client);
        } else if (client->gap && !f.load_complete && !phase_is_over(client, f.taken)) {
            wait_until_due(client);
        } else {
            return;
        }
    }
}


void bench_client_work(void *arg) {
    bench_client *client = arg;
    bool counted = client->measured && client->run->config->instructions;
    client->counter = counted ? bench_instructions_open() : -1;
    client->begin = client->due = client_time(client);
    if (client->gap)
        schedule_next_arrival(client);
    if (client->depth > 1)
        work_in_flight(client);
    else
        work_one_by_one(client);
    client->end = client_time(client);
    bench_instructions_close(client->counter);
}
