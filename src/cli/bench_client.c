/* What a client does: draws operations, runs them one by one or many in flight, checks every answer, takes the times.
 */
#include "cli/bench_client.h"
#include "fabric/sim/sim.h"
#include "pool/handle.h"
#include "workload/power.h"
#include "workload/value.h"

#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CLOCK_EVERY  32     /* operations between two looks at the time limit, on a real clock */
#define LOOK_NS      100    /* virtual time between two looks at operations in flight, in an open loop */
#define SLEEP_NS     200000 /* a thread that has longer to wait sleeps; others would wake it too late */
#define LATE_WAKE_NS 100000

struct bench_slot {
    far_op op;
    far_ycsb_op what;
    uint64_t begun, started; /* the whole operation; its part under way */
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


static uint64_t now(const bench_client *client) {
    return far_host_now(client->host);
}


static void wrong(bench_client *client, const bench_slot *slot, const char *what) {
    if (client->errors++ == 0)
        snprintf(client->first_error, sizeof(client->first_error), "%s of record %" PRIu64 ": %s",
                 op_names[slot->op.kind], slot->what.record, what);
}


/* Operations. */

static void fill_value(bench_client *client, bench_slot *slot) {
    uint64_t version = (uint64_t)client->number << 40 | client->written++;
    size_t size = client->run->config->value_size;
    far_value_fill(slot->value, size, slot->key, slot->op.key_len, version);
    slot->op.value = slot->value;
    slot->op.value_len = size;
}


/* Draws the next operation. FAR_ERR_BUSY: an insert must wait for others; FAR_ERR_NOT_FOUND: no record is left to
 * insert. */
static int draw(bench_client *client, bench_slot *slot) {
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


/* Our engine. */

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


/* Its record was deleted since it was drawn. */
static bool came_too_late(bench_client *client, const bench_slot *slot) {
    return slot->op.result == FAR_ERR_NOT_FOUND && slot->what.kind != FAR_YCSB_DELETE &&
           slot->what.record < far_records_gone(client->run->records);
}


static void check(bench_client *client, bench_slot *slot) {
    const far_op *op = &slot->op;
    if (came_too_late(client, slot))
        return;
    if (op->result < 0) {
        wrong(client, slot, far_strerror(op->result));
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
        wrong(client, slot, problem);
}


/* A part of the operation is over. True: another part follows (the update of a read-modify-write). */
static bool finish(bench_client *client, bench_slot *slot, uint64_t time) {
    far_op *op = &slot->op;
    check(client, slot);
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


/* Waiting. */

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


static void pause_for_others(const bench_client *client) {
    pause_for(client, 1000);
}


/* An open loop. Operations arrive at random (exponential gaps, so that all clients together are a Poisson process) at
 * times that nothing which happens can move. */
static void next_arrival(bench_client *client) {
    double uniform = (double)((far_random_next(&client->arrivals) >> 11) + 1) * 0x1p-53;
    client->due += (uint64_t)(-far_log(uniform) * (double)client->gap);
}


static void wait_until_due(bench_client *client) {
    for (uint64_t time = now(client); time < client->due && !cli_interrupted(); time = now(client))
        pause_for(client, client->due - time);
}


/* The loops. */

static bool is_over(const bench_client *client, uint64_t taken) {
    if (client->broken || taken >= client->budget || cli_interrupted())
        return true;
    if (!client->time_limit)
        return false;
    if (client->gap)
        return client->due - client->begin > client->time_limit;
    return (is_simulated(client) || taken % CLOCK_EVERY == 0) && now(client) - client->begin > client->time_limit;
}


/* How much of its phase this client has done. */
static double phase_done(const bench_client *client, uint64_t taken) {
    double by_count = (double)taken / (double)client->budget, by_time = 0;
    if (client->time_limit)
        by_time = (double)(now(client) - client->begin) / (double)client->time_limit;
    return by_count > by_time ? by_count : by_time;
}


static void show_progress(const bench_client *client, uint64_t taken) {
    const bench_progress *progress = client->run->config->progress;
    uint64_t step = client->budget / 100 + 1;
    if (client->number != 0 || !cli_progress_is_shown() || taken % (step < 1000 ? step : 1000) != 0)
        return;
    double part = client->measured ? 0.5 + phase_done(client, taken) / 2 : phase_done(client, taken) / 2;
    cli_progress(progress && progress->steps ? (progress->done + part) / progress->steps : -1, "%s: workload %s%s%s%s",
                 client->run->label, client->run->phase, client->measured ? "" : ", warming up",
                 *client->run->config->point ? ", " : "", client->run->config->point);
}


/* Draws until there is an operation. False: the load is complete. Where no key is left for inserts the others go on
 * without them. */
static int draw_some(bench_client *client, bench_slot *slot) {
    bool load = client->run->ycsb.config.workload == FAR_YCSB_LOAD;
    int err;
    do {
        err = draw(client, slot);
    } while (err == FAR_ERR_NOT_FOUND && !load);
    return err;
}


static void call(bench_client *client, far_op *op) {
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
    while (!is_over(client, taken)) {
        if (client->gap)
            wait_until_due(client);
        int err = draw_some(client, slot);
        if (err == FAR_ERR_NOT_FOUND)
            break;
        if (err == FAR_ERR_BUSY) {
            pause_for_others(client);
            continue;
        }
        uint64_t time = client->gap ? client->due : now(client);
        slot->begun = time;
        do {
            slot->started = time;
            call(client, &slot->op);
            time = now(client);
        } while (finish(client, slot, time));
        if (client->gap)
            next_arrival(client);
        show_progress(client, ++taken);
    }
}


/* Many in flight: every slot is idle, ready to be submitted, or in flight. */
typedef struct flight {
    bench_client *client;
    bench_slot *idle[FAR_OPS_MAX];
    far_op **ready, **reaped;
    size_t idle_count, ready_count, in_flight;
    uint64_t taken;
    bool load_complete;
    bool busy; /* an insert was due, but must wait for others */
} flight;


/* The next operation may begin: at once, or in an open loop when it has arrived. */
static bool may_begin(const bench_client *client) {
    return !client->gap || client->due <= now(client);
}


static void draw_ready(flight *f) {
    bench_client *client = f->client;
    f->busy = false;
    while (f->idle_count && !f->busy && !f->load_complete && !is_over(client, f->taken) && may_begin(client)) {
        bench_slot *slot = f->idle[f->idle_count - 1];
        int err = draw_some(client, slot);
        f->load_complete = err == FAR_ERR_NOT_FOUND;
        f->busy = err == FAR_ERR_BUSY;
        if (err < 0)
            continue;
        slot->begun = slot->started = client->gap ? client->due : now(client);
        if (client->gap)
            next_arrival(client);
        f->ready[f->ready_count++] = &slot->op;
        f->idle_count--;
        show_progress(client, ++f->taken);
    }
}


static void land(flight *f, far_op *op, uint64_t time) {
    bench_slot *slot = op->user;
    if (finish(f->client, slot, time)) {
        slot->started = time;
        f->ready[f->ready_count++] = op;
    } else {
        f->idle[f->idle_count++] = slot;
    }
}


/* What far_submit does not take (the session is full) is offered again; when it takes nothing any more all of it has
 * failed. */
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
        land(f, f->ready[i], now(client));
    }
}


static void reap_some(flight *f) {
    bench_client *client = f->client;
    bool only_look = client->gap && f->idle_count && !is_over(client, f->taken); /* the next may arrive meanwhile */
    int count = f->in_flight ? client->engine->reap(client, f->reaped, f->in_flight, only_look ? 0 : 1) : 0;
    if (count == 0 && only_look)
        pause_for(client, LOOK_NS);
    if (count < 0) {
        wrong(client, &client->slots[0], far_strerror(count));
        client->broken = true;
        f->in_flight = 0;
        return;
    }
    uint64_t time = now(client);
    f->in_flight -= (size_t)count;
    for (int i = 0; i < count; i++)
        land(f, f->reaped[i], time);
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
            pause_for_others(client);
        } else if (client->gap && !f.load_complete && !is_over(client, f.taken)) {
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
    client->begin = client->due = now(client);
    if (client->gap)
        next_arrival(client);
    if (client->depth > 1)
        work_in_flight(client);
    else
        work_one_by_one(client);
    client->end = now(client);
    bench_instructions_close(client->counter);
}
