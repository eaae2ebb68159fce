/* What a tortured client does: operations chosen at random, one after the other or many in flight, each noted in the
 * history with what it was told. */
#include "verify/torture_run.h"

#include <stdlib.h>
#include <string.h>

#define SCAN_LIMIT_MAX 20
#define EBB_OPS        25      /* of all clients together, from ebb to flow and back */
#define LULL_NS        8000000 /* at least, and twice that at most, after an ebb: time for housekeeping */

typedef far_tortured run;
typedef far_torture_slot slot;
typedef far_torture_client client;


static bool is_ebb(const run *r) {
    return r->torture->ebb && r->chosen / EBB_OPS % 2;
}


static far_op_kind choose_kind(client *c) {
    uint64_t x = far_random_below(&c->random, 100);
    if (is_ebb(c->run) && x < 90)
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


/* In an ebb one after the other: all that are there go. */
static size_t choose_key(client *c, uint8_t *key) {
    if (is_ebb(c->run))
        return far_keyset_key(c->run->keyset, c->run->chosen % c->run->key_space, key);
    return far_keyset_key(c->run->keyset, far_random_below(&c->random, c->run->key_space), key);
}


/* Every value written is another one, so that a read tells which write it saw. The body repeats the number: a torn
 * value matches no write. Half of them have the largest size: only values of one size are updated in place. */
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


static void prepare(client *c, slot *s) {
    run *r = c->run;
    far_op *op = &s->op;
    memset(op, 0, sizeof(*op));
    r->chosen++;
    c->ebbed = is_ebb(r);
    op->kind = choose_kind(c);
    op->index = c->node->index;
    op->key = s->key;
    op->key_len = choose_key(c, s->key);
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
            op->to_len = choose_key(c, s->to);
        }
        op->limit = far_random_below(&c->random, SCAN_LIMIT_MAX);
        op->each = record_pair;
        op->each_ctx = s;
        s->record = far_history_begin_scan(r->history, c->number, op->key, op->key_len, op->to, op->to_len, op->limit,
                                           far_torture_stamp(r));
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
    if (far_torture_is_dead(c))
        return; /* whatever its code still says, nobody hears it: the operation was cut */
    const far_op *op = &s->op;
    bool has_value = op->kind == FAR_OP_GET && op->result == 0;
    far_history_end(c->run->history, s->record, op->result, has_value ? op->value : NULL, has_value ? op->value_len : 0,
                    far_torture_stamp(c->run));
}


static void run_now(far_session *session, far_op *op) {
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
        op->result = (int)far_scan(session, op->index, op->key, op->key_len, op->to, op->to_len, op->limit, op->each,
                                   op->each_ctx);
        break;
    }
}


static void unexpected(client *c, const far_op *op) {
    char text[160];
    switch (op->result) {
    case FAR_ERR_NOT_FOUND:
    case FAR_ERR_EXISTS:
    case FAR_ERR_NO_MEMORY:
        return;
    default:
        snprintf(text, sizeof(text), "client %u: %s returned %d (%s)", c->number, far_op_name(op->kind), op->result,
                 far_strerror(op->result));
        far_torture_problem(c->run, text);
    }
}


/* Whether the client should go on with another session. */
static bool has_enough(client *c) {
    return c->run->torture->churn && far_random_chance(&c->random, 1, 32);
}


/* Operations one after the other; false: the session is lost. */
bool far_torture_work(client *c) {
    while (c->left && !has_enough(c)) {
        slot *s = &c->slots[0];
        c->left--;
        if (c->ebbed && !is_ebb(c->run))
            far_sim_sleep(c->run->world, LULL_NS + far_random_below(&c->random, LULL_NS));
        prepare(c, s);
        run_now(c->session, &s->op);
        record_end(c, s);
        if (far_torture_is_lost(s->op.result))
            return false;
        if (s->op.result < 0)
            unexpected(c, &s->op);
    }
    return true;
}


/* Fills all free slots, and submits these operations together (gets among them may be served as one), or one by one.
 * Returns how many were taken; *lost: not all. */
static unsigned submit_some(client *c, far_op **ops, bool *lost) {
    unsigned depth = c->run->torture->depth, count = 0, flying = 0;
    for (unsigned i = 0; i < depth && c->left; i++)
        if (!c->slots[i].busy) {
            prepare(c, &c->slots[i]);
            ops[count++] = &c->slots[i].op;
            c->left--;
        }
    unsigned together = far_random_chance(&c->random, 1, 2) ? count : 1;
    for (unsigned first = 0; first < count; first += together) {
        int taken = *lost ? FAR_ERR_BUSY : far_submit(c->session, ops + first, together);
        for (unsigned i = first; i < first + together; i++) {
            slot *s = ops[i]->user;
            s->busy = taken > (int)(i - first);
            flying += s->busy;
            if (s->busy)
                continue;
            ops[i]->result = taken < 0 ? taken : FAR_ERR_BUSY;
            record_end(c, s);
            *lost = true;
        }
    }
    return flying;
}


/* `depth` operations in flight; false: the session is lost. */
static bool work_async(client *c) {
    unsigned depth = c->run->torture->depth, flying = 0;
    bool lost = false;
    far_op **done = calloc(depth, sizeof(*done));
    while (done && (flying || (c->left && !lost))) {
        if (!lost)
            flying += submit_some(c, done, &lost);
        int count = far_reap(c->session, done, depth, 1);
        lost |= count < 0;
        for (int i = 0; i < count; i++) {
            slot *s = done[i]->user;
            s->busy = false;
            flying--;
            record_end(c, s);
            if (far_torture_is_lost(done[i]->result))
                lost = true;
            else if (done[i]->result < 0)
                unexpected(c, done[i]);
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
    while (c->left && !far_torture_is_dead(c)) {
        int err = far_torture_enter(c);
        if (err < 0) {
            char text[160];
            snprintf(text, sizeof(text), "client %u cannot open a session: %d (%s)", c->number, err, far_strerror(err));
            if (!far_torture_is_dead(c))
                far_torture_problem(r, text);
            return;
        }
        if (r->torture->depth > 1)
            work_async(c);
        else
            far_torture_work(c);
        far_stats stats;
        far_session_stats(c->session, &stats);
        r->merged += stats.delegated_reads + stats.combined_writes;
        far_torture_leave(c);
    }
}
