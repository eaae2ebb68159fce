/* The code of the clients of a torture run: random operations, one after another or several in flight. Each operation
 * is recorded in the history with its result. */
#include "verify/torture_run.h"

#include <stdlib.h>
#include <string.h>

#define SCAN_LIMIT_MAX 20
#define CURSOR_EVERY   12 /* a client moves its cursor after one of so many operations */
/* length, in operations of all clients, of the phases that delete all keys, and of the normal phases between them */
#define DRAIN_PHASE_OPS 25
/* shortest pause in ns after a phase that deletes all keys; the longest pause is twice as long. Housekeeping runs
 * during the pause. */
#define PAUSE_NS 8000000

typedef far_tortured run;
typedef far_torture_slot slot;
typedef far_torture_client client;


static bool is_drain_phase(const run *r) {
    return r->torture->ebb && r->chosen / DRAIN_PHASE_OPS % 2;
}


static far_op_kind choose_kind(client *c) {
    uint64_t x = far_random_below(&c->random, 100);
    if (is_drain_phase(c->run) && x < 90)
        return x < 70 ? FAR_OP_DELETE : x < 80 ? FAR_OP_GET : FAR_OP_UPDATE;
    if (x < 30)
        return FAR_OP_GET;
    if (x < 50)
        return FAR_OP_PUT;
    if (x < 63)
        return FAR_OP_UPDATE;
    if (x < 78)
        return FAR_OP_INSERT;
    if (x < 94 || !c->run->torture->scans)
        return FAR_OP_DELETE;
    return FAR_OP_SCAN;
}


/* In a phase that deletes all keys, keys are chosen in turn, so that none is missed. */
size_t far_torture_choose_key(client *c, uint8_t *key) {
    if (is_drain_phase(c->run))
        return far_keyset_key(c->run->keyset, c->run->chosen % c->run->key_space, key);
    return far_keyset_key(c->run->keyset, far_random_below(&c->random, c->run->key_space), key);
}


/* Makes a value that differs from all others, so that a read identifies the write it observed. The bytes repeat the
 * number of the value, so a torn value matches no write. Half of the values have the largest size, because only values
 * of equal size are updated in place. */
static size_t make_value(client *c, uint8_t *value) {
    const uint64_t *bounds = c->run->torture->value_bytes;
    bool largest = far_random_chance(&c->random, 1, 2);
    size_t length = (size_t)(largest ? bounds[1] : bounds[0] + far_random_below(&c->random, bounds[1] - bounds[0] + 1));
    uint64_t number = ((uint64_t)c->number + 1) << 40 | ++c->written;
    for (size_t i = 0; i < length; i++)
        value[i] = (uint8_t)(number >> 8 * (i % 8)) ^ (uint8_t)(i / 8 * 31);
    return length;
}


static int record_pair(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    slot *s = ctx;
    far_history_pair_given(s->owner->history, s->record, key, key_len, value, value_len);
    return 0;
}


static void prepare_op(client *c, slot *s) {
    run *r = c->run;
    far_op *op = &s->op;
    memset(op, 0, sizeof(*op));
    r->chosen++;
    c->was_drained = is_drain_phase(r);
    op->kind = choose_kind(c);
    op->index = c->node->index;
    op->key = s->key;
    op->key_len = far_torture_choose_key(c, s->key);
    op->value = s->value;
    op->user = s;
    switch (op->kind) {
    case FAR_OP_GET:
        op->capacity = FAR_VALUE_MAX;
        break;
    case FAR_OP_SCAN:
        if (far_random_chance(&c->random, 1, 3))
            op->key = NULL, op->key_len = 0;
        if (far_random_chance(&c->random, 1, 3)) {
            op->to = s->to;
            op->to_len = far_torture_choose_key(c, s->to);
        }
        op->limit = far_random_below(&c->random, SCAN_LIMIT_MAX);
        op->reverse = far_random_chance(&c->random, 1, 2);
        op->each = record_pair;
        op->each_ctx = s;
        s->record = far_history_begin_scan(r->history, c->number, op->key, op->key_len, op->to, op->to_len, op->limit,
                                           op->reverse, far_torture_stamp(r));
        return;
    case FAR_OP_DELETE:
        break;
    default:
        op->value_len = make_value(c, s->value);
        break;
    }
    bool writes = op->kind == FAR_OP_INSERT || op->kind == FAR_OP_UPDATE || op->kind == FAR_OP_PUT;
    s->record = far_history_begin(r->history, c->number, op->kind, op->key, op->key_len, writes ? op->value : NULL,
                                  writes ? op->value_len : 0, far_torture_stamp(r));
}


static void record_end(client *c, slot *s) {
    if (far_torture_client_has_failed(c))
        return; /* The compute node was killed, so the result does not count and the operation remains cut. */
    const far_op *op = &s->op;
    bool has_value = op->kind == FAR_OP_GET && op->result == 0;
    far_history_end(c->run->history, s->record, op->result, has_value ? op->value : NULL, has_value ? op->value_len : 0,
                    far_torture_stamp(c->run));
}


static void run_op(far_session *session, far_op *op) {
    switch (op->kind) {
    case FAR_OP_GET:
        op->result = far_get(session, op->index, op->key, op->key_len, op->value, op->capacity, &op->value_len);
        break;
    case FAR_OP_INSERT:
        op->result = far_insert(session, op->index, op->key, op->key_len, op->value, op->value_len);
        break;
    case FAR_OP_UPDATE:
        op->result = far_update(session, op->index, op->key, op->key_len, op->value, op->value_len);
        break;
    case FAR_OP_PUT:
        op->result = far_put(session, op->index, op->key, op->key_len, op->value, op->value_len);
        break;
    case FAR_OP_DELETE:
        op->result = far_delete(session, op->index, op->key, op->key_len);
        break;
    case FAR_OP_SCAN:
        op->result = (int)(op->reverse ? far_scan_reverse : far_scan)(session, op->index, op->key, op->key_len, op->to,
                                                                      op->to_len, op->limit, op->each, op->each_ctx);
        break;
    }
}


static void report_unexpected_result(client *c, const char *name, int result) {
    char text[160];
    switch (result) {
    case FAR_ERR_NOT_FOUND:
    case FAR_ERR_EXISTS:
    case FAR_ERR_NO_MEMORY:
        return;
    default:
        snprintf(text, sizeof(text), "client %u: %s returned %d (%s)", c->number, name, result, far_strerror(result));
        far_torture_problem(c->run, text);
    }
}


/* Moves the cursor in some of the steps. Returns false if the session was lost. */
static bool move_cursor_sometimes(client *c) {
    if (!c->run->torture->scans || !far_random_chance(&c->random, 1, CURSOR_EVERY))
        return true;
    int result = far_torture_move_cursor(c);
    if (far_torture_session_is_lost(result) || far_torture_client_has_failed(c))
        return false;
    if (result < 0)
        report_unexpected_result(c, "a move of a cursor", result);
    return true;
}


/* Decides at random whether the client opens a new session now. */
static bool choose_to_end_session(client *c) {
    return c->run->torture->churn && far_random_chance(&c->random, 1, 32);
}


/* Runs operations one after the other. Returns false if the session was lost. */
bool far_torture_work(client *c) {
    while (c->left && !choose_to_end_session(c)) {
        slot *s = &c->slots[0];
        c->left--;
        if (c->was_drained && !is_drain_phase(c->run))
            far_sim_sleep(c->run->world, PAUSE_NS + far_random_below(&c->random, PAUSE_NS));
        prepare_op(c, s);
        run_op(c->session, &s->op);
        record_end(c, s);
        if (far_torture_session_is_lost(s->op.result))
            return false;
        c->writes_ended += s->op.kind != FAR_OP_GET && s->op.kind != FAR_OP_SCAN;
        if (s->op.result < 0)
            report_unexpected_result(c, far_op_name(s->op.kind), s->op.result);
        if (!move_cursor_sometimes(c))
            return false;
    }
    return true;
}


/* Fills all free slots with operations and submits them together, so that gets may be merged, or one by one. Returns
 * the number that was accepted, and sets *lost if some were not. */
static unsigned submit_ops(client *c, far_op **ops, bool *lost) {
    unsigned depth = c->run->torture->depth, count = 0, in_flight = 0;
    for (unsigned i = 0; i < depth && c->left; i++)
        if (!c->slots[i].busy) {
            prepare_op(c, &c->slots[i]);
            ops[count++] = &c->slots[i].op;
            c->left--;
        }
    unsigned together = far_random_chance(&c->random, 1, 2) ? count : 1;
    for (unsigned first = 0; first < count; first += together) {
        int taken = *lost ? FAR_ERR_BUSY : far_submit(c->session, ops + first, together);
        for (unsigned i = first; i < first + together; i++) {
            slot *s = ops[i]->user;
            s->busy = taken > (int)(i - first);
            in_flight += s->busy;
            if (s->busy)
                continue;
            ops[i]->result = taken < 0 ? taken : FAR_ERR_BUSY;
            record_end(c, s);
            *lost = true;
        }
    }
    return in_flight;
}


/* Runs `depth` operations in flight. Returns false if the session was lost. */
static bool run_ops_in_flight(client *c) {
    unsigned depth = c->run->torture->depth, in_flight = 0;
    bool lost = false;
    far_op **done = calloc(depth, sizeof(*done));
    while (done && (in_flight || (c->left && !lost))) {
        if (!lost)
            in_flight += submit_ops(c, done, &lost);
        lost = lost || !move_cursor_sometimes(c);
        int count = far_reap(c->session, done, depth, 1);
        lost |= count < 0;
        for (int i = 0; i < count; i++) {
            slot *s = done[i]->user;
            s->busy = false;
            in_flight--;
            record_end(c, s);
            if (far_torture_session_is_lost(done[i]->result))
                lost = true;
            else if (done[i]->result < 0)
                report_unexpected_result(c, far_op_name(done[i]->kind), done[i]->result);
        }
        if (count < 0)
            break;
    }
    for (unsigned i = 0; i < depth; i++)
        c->slots[i].busy = false;
    free(done);
    return !lost;
}


void far_torture_client_main(void *arg) {
    client *c = arg;
    run *r = c->run;
    while (c->left && !far_torture_client_has_failed(c)) {
        int err = far_torture_open_session(c);
        if (err < 0) {
            char text[160];
            snprintf(text, sizeof(text), "client %u cannot open a session: %d (%s)", c->number, err, far_strerror(err));
            if (!far_torture_client_has_failed(c))
                far_torture_problem(r, text);
            return;
        }
        if (r->torture->depth > 1)
            run_ops_in_flight(c);
        else
            far_torture_work(c);
        far_stats stats;
        far_session_stats(c->session, &stats);
        r->merged += stats.delegated_reads + stats.combined_writes;
        if (far_random_chance(&c->random, 1, 2)) /* otherwise the session is closed before its cursor */
            far_torture_close_cursor(c);
        far_torture_close_session(c);
        far_torture_close_cursor(c);
    }
}
