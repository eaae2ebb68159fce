/* Point operations of the public API, one at a time. submit.c runs many at the same time.
 *
 * A call passes through these layers. Each layer is one function, which calls the next one:
 *
 *     far_get, far_put, ...       builds a far_op_request
 *      run_synchronously          guard against a closed pool; checks the arguments
 *       enter_and_run_task        enters the session; makes a task
 *        count_and_run            labels the task and counts the operation
 *         run_with_checksum       only with checksum=on: adds the hash to the value, or checks and removes it
 *          pin_and_run            pins the epoch
 *           rerun_out_of_memory   only if no memory was found: waits for memory and repeats the layers below
 *           merge_or_run          does the handle merge concurrent operations on one key?
 *            run_through_rdwc     yes: another operation on the same key may serve this one
 *            call_index_kind      runs the operation of the kind: get, put or remove
 *
 * A submitted operation enters at count_and_run, through far_op_run. The path from far_get down to call_index_kind is
 * inlined, so that the compiler generates separate code for each kind of request. Layers that run seldom are not
 * inlined and get a copy of the request, because a request that is passed by address cannot stay in registers. */
#include "client/op.h"
#include "base/error.h"
#include "client/checksum.h"
#include "client/client.h"
#include "index/common/rdwc.h"
#include "task/call.h"

static const char *const labels[] = {"get", "insert", "update", "put", "delete", "scan"};


/* ---- Checks shared by public functions ---- */

int far_check_index(const far_session *s, const far_index *index) {
    if (!index)
        return far_fail(FAR_ERR_INVALID, "index: is NULL");
    if (index->pool != s->pool)
        return far_fail(FAR_ERR_INVALID, "index: was opened through another pool handle than the session");
    return 0;
}


int far_describe_error(const far_session *s, int err) {
    switch (err) {
    case FAR_ERR_DROPPED: /* the message names the index */
        return FAR_ERR_NOT_FOUND;
    case FAR_ERR_NOT_FOUND:
        return far_fail(err, "there is no such key");
    case FAR_ERR_EXISTS:
        return far_fail(err, "the key exists already");
    case FAR_ERR_TOO_SMALL:
        return far_fail(err, "value: the buffer is too small");
    default:
        return far_fail_session_lost(s, err);
    }
}


/* ---- Arguments ---- */

static __attribute__((noinline)) int fail_bad_key(const far_index *index, const void *key, size_t length) {
    size_t max = (size_t)index->options[FAR_OPTION_MAX_KEY], fixed = (size_t)index->options[FAR_OPTION_KEY_SIZE];
    if (!key)
        return far_fail(FAR_ERR_INVALID, "key: is NULL");
    if (length == 0)
        return far_fail(FAR_ERR_INVALID, "key: is empty");
    if (length > max)
        return far_fail(FAR_ERR_INVALID, "key: %zu bytes are more than the longest key of index '%s', %zu", length,
                        index->name, max);
    return far_fail(FAR_ERR_INVALID, "key: has %zu bytes, but all keys of index '%s' have %zu", length, index->name,
                    fixed);
}


static inline int check_key(const far_index *index, const void *key, size_t length) {
    size_t max = (size_t)index->options[FAR_OPTION_MAX_KEY], fixed = (size_t)index->options[FAR_OPTION_KEY_SIZE];
    if (!key || length - 1 >= max)
        return fail_bad_key(index, key, length);
    return !fixed || length == fixed ? 0 : fail_bad_key(index, key, length);
}


static __attribute__((noinline)) int fail_bad_value(const far_index *index, const void *value, size_t length) {
    size_t fixed = far_value_size(index), most = FAR_VALUE_MAX - far_sum_bytes(index);
    if (!value && length)
        return far_fail(FAR_ERR_INVALID, "value: is NULL with a length of %zu", length);
    if (length > most)
        return far_fail(FAR_ERR_INVALID, "value: %zu bytes are more than the longest value, %zu", length, most);
    return far_fail(FAR_ERR_INVALID, "value: has %zu bytes, but all values of index '%s' have %zu", length, index->name,
                    fixed);
}


static inline int check_value(const far_index *index, const void *value, size_t length) {
    size_t fixed = far_value_size(index);
    if (fixed ? length != fixed : length > FAR_VALUE_MAX - far_sum_bytes(index))
        return fail_bad_value(index, value, length);
    return value || length == 0 ? 0 : fail_bad_value(index, value, length);
}


static inline __attribute__((always_inline)) int check_request(const far_session *s, const far_op_request *r) {
    int err = far_check_index(s, r->index);
    if (err >= 0)
        err = check_key(r->index, r->key.data, r->key.length);
    if (err >= 0 && r->kind != FAR_OP_GET && r->kind != FAR_OP_DELETE)
        err = check_value(r->index, r->value.data, r->value.length);
    if (err >= 0 && r->kind == FAR_OP_GET && !r->out->buffer && r->out->capacity)
        err = far_fail(FAR_ERR_INVALID, "value: is NULL with a capacity of %zu", r->out->capacity);
    return err;
}


/* ---- Execution inside a task ---- */

typedef struct pinned_function {
    int (*run)(far_task *t, void *arg);
    void *arg;
} pinned_function;


static int pin_and_call(far_task *t, void *arg) {
    const pinned_function *r = arg;
    int err = far_pin_take(t);
    return err < 0 ? err : r->run(t, r->arg);
}


int far_run_pinned(far_task *t, int (*run)(far_task *t, void *arg), void *arg) {
    pinned_function r = {run, arg};
    int err = pin_and_call(t, &r);
    return err == FAR_ERR_NO_MEMORY ? far_run_out_of_memory(t, pin_and_call, &r) : err;
}


/* Records that an operation has added `keys` keys (-1: removed one), unless `err` says that the operation failed.
 * Housekeeping later adds the count to the record of the index (status.c), so that the operation itself needs no verb
 * for it. Returns err. */
static int count_keys(const far_task *t, far_index *index, int keys, int err) {
    if (err == 0 && keys != 0)
        far_index_count_keys(index, t->session->id, keys);
    return err;
}


/* The caller has a pin. The functions are loaded after the pin was taken, so that an operation with a later pin than the
 * one at which this handle observed that the index was dropped does not access the index. */
static inline __attribute__((always_inline)) int call_index_kind(far_task *t, far_index *index, far_op_kind kind,
                                                                 far_bytes key, far_bytes value, far_out *out) {
    const far_index_kind *functions = atomic_load_explicit(&index->operations, memory_order_relaxed);
    int err;
    switch (kind) {
    case FAR_OP_GET:
        return functions->get(t, index, key, out);
    case FAR_OP_DELETE:
        t->uses_headroom = true;
        err = functions->remove(t, index, key);
        t->uses_headroom = false;
        return count_keys(t, index, -1, err);
    default:
        t->added = false;
        t->uses_headroom = kind == FAR_OP_UPDATE;
        err = functions->put(t, index, kind, key, value);
        t->uses_headroom = false;
        return count_keys(t, index, kind == FAR_OP_INSERT || t->added, err);
    }
}


static __attribute__((noinline)) int run_through_rdwc(far_task *t, const far_op_request *r) {
    return far_rdwc_run(t, r->index, r->kind, r->key, r->value, r->out, call_index_kind);
}


/* The request is copied before its address is passed on, so that the original request can stay in registers (see the
 * comment at the beginning of this file). */
static inline __attribute__((always_inline)) int merge_or_run(far_task *t, const far_op_request *r) {
    if (!far_rdwc_may_merge(t, r->kind))
        return call_index_kind(t, r->index, r->kind, r->key, r->value, r->out);
    far_op_request copy = *r;
    return run_through_rdwc(t, &copy);
}


static int merge_or_run_pinned(far_task *t, void *arg) {
    return merge_or_run(t, arg);
}


static inline void label_task(far_task *t, far_op_kind kind, const far_index *index) {
    t->label = labels[kind];
    t->index_key = index->uid;
}


void far_label_task(far_task *t, far_op_kind kind, const far_index *index) {
    label_task(t, kind, index);
}


/* Repeats a put that found no memory. The put first runs as an update: if the key is present, the update works in a
 * full pool, because it may use the headroom. If the key is absent, a normal put follows. RDWC may have let
 * another task execute the update, and then this task has lost its pin, so the put takes a new pin. */
static int update_else_put(far_task *t, void *arg) {
    far_op_request update = *(const far_op_request *)arg;
    update.kind = FAR_OP_UPDATE;
    int err = merge_or_run_pinned(t, &update);
    return err == FAR_ERR_NOT_FOUND ? pin_and_call(t, &(pinned_function){merge_or_run_pinned, arg}) : err;
}


static __attribute__((noinline)) int rerun_out_of_memory(far_task *t, far_op_request *r) {
    pinned_function again = {r->kind == FAR_OP_PUT ? update_else_put : merge_or_run_pinned, r};
    int err = far_run_out_of_memory(t, pin_and_call, &again);
    return err == FAR_ERR_NO_MEMORY ? far_describe_full_pool(t, err) : err;
}


static inline __attribute__((always_inline)) int pin_and_run(far_task *t, const far_op_request *r) {
    int err = far_pin_take_inline(t);
    if (err >= 0)
        err = merge_or_run(t, r);
    if (err != FAR_ERR_NO_MEMORY)
        return err;
    far_op_request copy = *r;
    return rerun_out_of_memory(t, &copy);
}


/* Runs a request of an index with checksum=on. In such an index each stored value ends with a hash of the pair. */
static __attribute__((noinline)) int run_with_checksum(far_task *t, const far_op_request *r) {
    far_op_request stored = *r;
    far_out out;
    stored.out = &out;
    int err = r->kind == FAR_OP_GET ? far_sum_prepare_buffer(t, r->out, &out)
                                    : far_sum_add(t, r->index, r->key, &stored.value);
    if (err >= 0)
        err = pin_and_run(t, &stored);
    return r->kind == FAR_OP_GET ? far_sum_strip_value(r->index, r->key, &out, err, r->out) : err;
}


static inline __attribute__((always_inline)) int add_checksum_and_run(far_task *t, const far_op_request *r) {
    if (far_sum_bytes(r->index) == 0 || r->kind == FAR_OP_DELETE)
        return pin_and_run(t, r);
    far_op_request copy = *r;
    return run_with_checksum(t, &copy);
}


/* Records that a write of the user has ended, so that cursors of the session do not return pairs that are older. */
static inline void note_write_end(far_session *s) {
    uint64_t writes = atomic_load_explicit(&s->writes, memory_order_relaxed);
    atomic_store_explicit(&s->writes, writes + 1, memory_order_relaxed);
}


static inline __attribute__((always_inline)) int count_and_run(far_task *t, const far_op_request *r) {
    label_task(t, r->kind, r->index);
    far_count_op(t, r->kind, r->index, 1);
    int err = add_checksum_and_run(t, r);
    if (r->kind != FAR_OP_GET)
        note_write_end(t->session);
    return err;
}


int far_op_check(const far_session *s, const far_op_request *r) {
    return check_request(s, r);
}


int far_op_run(far_task *t, const far_op_request *r) {
    return count_and_run(t, r);
}


/* ---- Synchronous calls ---- */

static int run_request_task(far_task *t, void *arg) {
    return count_and_run(t, arg);
}


/* Runs the request as a task. On a fabric that executes verbs at once, the task runs on the caller's stack
 * (far_call_begin). Otherwise it runs on a coroutine. */
static inline __attribute__((always_inline)) int enter_and_run_task(far_session *s, const far_op_request *r) {
    far_session_enter(s);
    far_task *t = far_call_begin(s, r->kind, false);
    if (t)
        return far_call_end(s, t, count_and_run(t, r));
    far_op_request copy = *r;
    return far_call_end(s, NULL, far_session_call_first(s, r->kind, false, run_request_task, &copy));
}


static inline __attribute__((always_inline)) int run_synchronously(far_session *s, far_op_request r) {
    int err = far_call_enter(s);
    if (err < 0)
        return err;
    /* The index cannot be freed during the call, because the caller must keep it open until the call returns. */
    if ((err = check_request(s, &r)) >= 0) {
        err = enter_and_run_task(s, &r);
        if (err < 0)
            err = far_describe_error(s, err);
    }
    if (s->ops)
        far_submitted_scans_deliver(s);
    far_call_leave(s);
    return err;
}


int far_get(far_session *s, far_index *index, const void *key, size_t key_len, void *value, size_t capacity,
            size_t *value_len) {
    far_out out = {value, capacity, 0};
    int err = run_synchronously(s, (far_op_request){FAR_OP_GET, index, {key, key_len}, {NULL, 0}, &out});
    if (value_len && (err == FAR_OK || err == FAR_ERR_TOO_SMALL))
        *value_len = out.length;
    return err;
}


int far_insert(far_session *s, far_index *index, const void *key, size_t key_len, const void *value, size_t value_len) {
    return run_synchronously(s, (far_op_request){FAR_OP_INSERT, index, {key, key_len}, {value, value_len}, NULL});
}


int far_update(far_session *s, far_index *index, const void *key, size_t key_len, const void *value, size_t value_len) {
    return run_synchronously(s, (far_op_request){FAR_OP_UPDATE, index, {key, key_len}, {value, value_len}, NULL});
}


int far_put(far_session *s, far_index *index, const void *key, size_t key_len, const void *value, size_t value_len) {
    return run_synchronously(s, (far_op_request){FAR_OP_PUT, index, {key, key_len}, {value, value_len}, NULL});
}


int far_delete(far_session *s, far_index *index, const void *key, size_t key_len) {
    return run_synchronously(s, (far_op_request){FAR_OP_DELETE, index, {key, key_len}, {NULL, 0}, NULL});
}
