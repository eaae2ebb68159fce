/* A fake index with one key, for driving RDWC step by step. Its operations stop at points that the test chooses, and
 * several sessions run on one thread. */
#ifndef TESTS_RDWC_RIG_H
#define TESTS_RDWC_RIG_H

#include "index/common/rdwc.h"
#include "pool/handle.h"
#include "test.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define VALUE_MAX    4096
#define OPS_MAX      2048
#define SESSIONS_MAX 8

typedef enum { NOWHERE, AFTER_READ, AFTER_SEAL, AFTER_WRITE } point;

/* The far memory of the fake index, and the switches that control its operations. */
static struct {
    bool present;
    unsigned incarnation; /* incarnation of the leaf; it is increased when the key is deleted */
    char value[VALUE_MAX];
    size_t length;

    bool hooks; /* the operations call the hooks of RDWC */
    /* writes do not call far_rdwc_done; then only their call of far_rdwc_seal shows that they take effect later (the
     * seal chooses the value to be written and closes the round for further writes) */
    bool no_done;
    bool in_place; /* writes decide by a READ before the seal whether the key is present */
    point stop_at; /* the next operation that reaches this point stops there, once */
    bool stopped, go_on;
    /* Error that an operation returns, 0: none. If failure_before is set, the next operation of any kind fails before
     * it has any effect. Otherwise the next write fails after it has taken effect. */
    int failure;
    bool failure_before;
    unsigned gets, writes;
    bool need_pin;
    bool failure_drops_pin; /* an operation that fails has no pin afterwards, as if a new pin was refused */
} far;

static const far_index_kind no_kind = {.name = "none"};

static struct {
    far_pool pool;
    far_session *sessions[SESSIONS_MAX];
    unsigned session_count;
    far_index index;
} node;

typedef struct operation {
    far_op_kind kind;
    far_index *index;
    const char *key;
    far_bytes value;
    far_out out;
    char buffer[VALUE_MAX];
    bool pinned;
    int result;
    bool ended;
} operation;

static operation *ops;
static unsigned op_count;


static inline void stop_if_requested(far_task *t, point at) {
    if (far.stop_at != at)
        return;
    far.stop_at = NOWHERE;
    far.stopped = true;
    while (!far.go_on)
        far_yield(t);
    far.stopped = far.go_on = false;
}


static inline int take_failure(bool before) {
    int failure = far.failure_before == before ? far.failure : 0;
    if (failure)
        far.failure = 0;
    return failure;
}


static inline int fake_get(far_task *t, far_out *out) {
    char seen[VALUE_MAX];
    uint32_t m = far.hooks ? far_rdwc_mark(t) : 0;
    bool present = far.present; /* The READ of the fake index takes effect at the time when it is posted. */
    size_t length = far.length;
    memcpy(seen, far.value, length);
    far.gets++;
    stop_if_requested(t, AFTER_READ);
    if (far.hooks)
        far_rdwc_done(t, m);
    return present ? far_out_give(out, seen, length) : FAR_ERR_NOT_FOUND;
}


static inline int fake_write(far_task *t, far_op_kind kind, far_bytes value) {
    uint32_t read = far.hooks ? far_rdwc_mark(t) : 0, written = 0;
    bool present = far.present;
    unsigned incarnation = far.incarnation;
    stop_if_requested(t, AFTER_READ);
    if (kind == FAR_OP_UPDATE && !present) {
        far_rdwc_done(t, read);
        return FAR_ERR_NOT_FOUND;
    }
    if (far.hooks && far.in_place)
        far_rdwc_seal_before(t, read, &value);
    else if (far.hooks)
        far_rdwc_seal(t, &value);
    if (far.stop_at == AFTER_SEAL) { /* The leader retries, so it seals its round a second time. */
        stop_if_requested(t, AFTER_SEAL);
        far_rdwc_seal(t, &value);
    }
    if (far.hooks)
        written = far_rdwc_mark(t);
    /* The write is lost if it goes into a leaf that was deleted meanwhile. */
    bool goes_nowhere = far.in_place && incarnation != far.incarnation;
    if (!goes_nowhere) {
        far.present = true;
        memcpy(far.value, value.data, value.length);
        far.length = value.length;
    }
    far.writes++;
    stop_if_requested(t, AFTER_WRITE);
    if (far.hooks && !far.no_done)
        far_rdwc_done(t, far.in_place ? read : written);
    int failure = take_failure(false);
    if (failure && far.failure_drops_pin)
        far_pin_drop(t);
    return failure;
}


static inline int fake_run(far_task *t, far_index *index, far_op_kind kind, far_bytes key, far_bytes value,
                           far_out *out) {
    assert_true(!far.need_pin || t->pin.epoch != 0);
    if (index != &node.index || key.length != 1 || *(const char *)key.data != 'k')
        return FAR_ERR_NOT_FOUND;
    int failure = take_failure(true);
    if (failure) {
        stop_if_requested(t, AFTER_READ);
        return failure;
    }
    return kind == FAR_OP_GET ? fake_get(t, out) : fake_write(t, kind, value);
}


/* The compute node of the fake index. */

TEST_FIXTURE(set_up) {
    memset(&far, 0, sizeof(far));
    memset(&node, 0, sizeof(node));
    far.hooks = true;
    ops = calloc(OPS_MAX, sizeof(*ops));
    op_count = 0;
    if (far_fabric_open("local:1M", &node.pool.fabric) < 0 || !ops)
        return -1;
    node.pool.geometry.capabilities = node.pool.fabric->capabilities;
    /* Verbs do not complete at once, so that operations take time and can be merged. */
    node.pool.fabric->at_once = false;
    node.pool.team.latches = far_latches_new();
    node.pool.rdwc = far_rdwc_new(0);
    node.index.pool = &node.pool;
    node.index.uid = 7;
    node.index.kind = &no_kind;
    atomic_store_explicit(&node.pool.epochs.current, 5, memory_order_relaxed);
    return 0;
}


TEST_FIXTURE(tear_down) {
    for (unsigned i = 0; i < node.session_count; i++) {
        far_session_leave(node.sessions[i]);
        far_session_free(node.sessions[i]);
    }
    far_rdwc_free(node.pool.rdwc);
    far_latches_free(node.pool.team.latches);
    node.pool.fabric->ops->close(node.pool.fabric);
    free(ops);
    return 0;
}


static inline far_session *session_number(unsigned number) {
    while (node.session_count <= number) {
        far_session **made = &node.sessions[node.session_count++];
        assert_int_equal(far_pool_session_new(&node.pool, made), 0);
        far_session_enter(*made);
    }
    return node.sessions[number];
}


static inline bool step_all_sessions(void) {
    bool any = false;
    for (unsigned i = 0; i < node.session_count; i++)
        any |= far_session_step(node.sessions[i]);
    return any;
}


/* Runs all tasks until each remaining task is stopped or waits. */
static inline void run_until_blocked(void) {
    for (int i = 0; i < 50; i++)
        step_all_sessions();
}


static inline void run_operation(far_task *t, void *arg) {
    operation *op = arg;
    if (op->pinned)
        assert_int_equal(far_pin_take(t), 0);
    far_bytes key = {op->key, strlen(op->key)};
    far_out *out = op->kind == FAR_OP_GET ? &op->out : NULL;
    op->result = far_rdwc_run(t, op->index, op->kind, key, op->value, out, fake_run);
    op->ended = true;
}


static inline operation *start_operation(unsigned on, far_op_kind kind, const char *value) {
    operation *op = &ops[op_count++];
    op->kind = kind;
    op->index = &node.index;
    op->key = "k";
    if (value)
        op->value = (far_bytes){value, strlen(value)};
    op->out = (far_out){op->buffer, sizeof(op->buffer), 0};
    assert_non_null(far_task_new(session_number(on), kind, run_operation, op));
    return op;
}


static inline operation *start_and_run(unsigned on, far_op_kind kind, const char *value) {
    operation *op = start_operation(on, kind, value);
    run_until_blocked();
    return op;
}


static inline operation *start_and_stop(unsigned on, far_op_kind kind, const char *value, point at) {
    far.stop_at = at;
    operation *op = start_and_run(on, kind, value);
    assert_true(far.stopped);
    assert_false(op->ended);
    return op;
}


static inline void resume_and_finish(void) {
    far.go_on = true;
    run_until_blocked();
    for (unsigned i = 0; i < op_count; i++)
        assert_true(ops[i].ended);
}


/* Performs a put of another compute node, which takes effect at one instant. */
static inline void set_far(const char *value) {
    far.present = true;
    far.length = strlen(value);
    memcpy(far.value, value, far.length);
}


static inline void delete_far(void) {
    far.present = false;
    far.incarnation++;
}


static inline void assert_far(const char *value) {
    assert_true(far.present);
    assert_int_equal(far.length, strlen(value));
    assert_memory_equal(far.value, value, far.length);
}


static inline void assert_got(const operation *op, const char *value) {
    assert_int_equal(op->result, 0);
    assert_int_equal(op->out.length, strlen(value));
    assert_memory_equal(op->buffer, value, op->out.length);
}


static inline uint64_t delegated(unsigned on) {
    return session_number(on)->stats[FAR_OP_GET].delegated_reads;
}


static inline uint64_t combined(unsigned on, far_op_kind kind) {
    return session_number(on)->stats[kind].combined_writes;
}

#endif
