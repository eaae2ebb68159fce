/* The operations of the public API, one by one: arguments are checked here, then the operation runs as a task of its
 * session. Many in flight together: submit.c. */
#include "client/op.h"
#include "base/error.h"
#include "client/checksum.h"
#include "client/client.h"
#include "index/rdwc.h"
#include "task/call.h"

static const char *const labels[] = {"get", "insert", "update", "put", "delete", "scan"};


/* What public calls have in common. */

int far_check_index(const far_session *s, const far_index *index) {
    if (!index)
        return far_fail(FAR_ERR_INVALID, "index: is NULL");
    if (index->pool != s->pool)
        return far_fail(FAR_ERR_INVALID, "index: was opened through another pool handle than the session");
    return 0;
}


int far_tell(const far_session *s, int err) {
    switch (err) {
    case FAR_ERR_NOT_FOUND:
        return far_fail(err, "there is no such key");
    case FAR_ERR_EXISTS:
        return far_fail(err, "the key exists already");
    case FAR_ERR_TOO_SMALL:
        return far_fail(err, "value: the buffer is too small");
    default:
        return far_session_tell(s, err);
    }
}


/* Arguments. */

static __attribute__((noinline)) int refuse_key(const far_index *index, const void *key, size_t length) {
    size_t max = (size_t)index->options[FAR_OPTION_MAX_KEY], fixed = (size_t)index->options[FAR_OPTION_KEY_SIZE];
    if (!key)
        return far_fail(FAR_ERR_INVALID, "key: is NULL");
    if (length == 0)
        return far_fail(FAR_ERR_INVALID, "key: is empty");
    if (length > max)
        return far_fail(FAR_ERR_INVALID, "key: %zu bytes are more than the longest that index '%s' takes, %zu", length,
                        index->name, max);
    return far_fail(FAR_ERR_INVALID, "key: has %zu bytes, all keys of index '%s' have %zu", length, index->name, fixed);
}


static inline int check_key(const far_index *index, const void *key, size_t length) {
    size_t max = (size_t)index->options[FAR_OPTION_MAX_KEY], fixed = (size_t)index->options[FAR_OPTION_KEY_SIZE];
    if (!key || length - 1 >= max)
        return refuse_key(index, key, length);
    return !fixed || length == fixed ? 0 : refuse_key(index, key, length);
}


static __attribute__((noinline)) int refuse_value(const far_index *index, const void *value, size_t length) {
    size_t fixed = far_value_size(index), most = FAR_VALUE_MAX - far_sum_bytes(index);
    if (!value && length)
        return far_fail(FAR_ERR_INVALID, "value: is NULL with a length of %zu", length);
    if (length > most)
        return far_fail(FAR_ERR_INVALID, "value: %zu bytes are more than %zu", length, most);
    return far_fail(FAR_ERR_INVALID, "value: has %zu bytes, all values of index '%s' have %zu", length, index->name,
                    fixed);
}


static inline int check_value(const far_index *index, const void *value, size_t length) {
    size_t fixed = far_value_size(index);
    if (fixed ? length != fixed : length > FAR_VALUE_MAX - far_sum_bytes(index))
        return refuse_value(index, value, length);
    return value || length == 0 ? 0 : refuse_value(index, value, length);
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


/* Running, inside a task. */

typedef struct pinned_run {
    int (*run)(far_task *t, void *arg);
    void *arg;
} pinned_run;


static int pin_and_run(far_task *t, void *arg) {
    const pinned_run *r = arg;
    int err = far_pin_take(t);
    return err < 0 ? err : r->run(t, r->arg);
}


int far_run_pinned(far_task *t, int (*run)(far_task *t, void *arg), void *arg) {
    pinned_run r = {run, arg};
    int err = pin_and_run(t, &r);
    return err == FAR_ERR_NO_MEMORY ? far_run_short(t, pin_and_run, &r) : err;
}


/* Keys are counted where operations end; the pool hears of them off the operations' path (client/bulletin.c). */
static int tally(const far_task *t, far_index *index, int keys, int err) {
    if (err == 0 && keys != 0)
        atomic_fetch_add_explicit(&index->tallies[t->session->id % FAR_TALLIES].keys, keys, memory_order_relaxed);
    return err;
}


static inline __attribute__((always_inline)) int run_by_itself(far_task *t, far_index *index, far_op_kind kind,
                                                               far_bytes key, far_bytes value, far_out *out) {
    switch (kind) {
    case FAR_OP_GET:
        return index->kind->get(t, index, key, out);
    case FAR_OP_DELETE:
        return tally(t, index, -1, index->kind->remove(t, index, key));
    default:
        t->added = false;
        t->swaps = kind == FAR_OP_UPDATE;
        int err = index->kind->put(t, index, kind, key, value);
        t->swaps = false;
        return tally(t, index, kind == FAR_OP_INSERT || t->added, err);
    }
}


static __attribute__((noinline)) int run_with_others(far_task *t, const far_op_request *r) {
    return far_rdwc_run(t, r->index, r->kind, r->key, r->value, r->out, run_by_itself);
}


/* Here and below: what seldom happens gets a copy of the request. One whose address is passed on would be read from
 * memory again after every call. */
static inline __attribute__((always_inline)) int run_on_its_index(far_task *t, const far_op_request *r) {
    if (!far_rdwc_may_merge(t, r->kind))
        return run_by_itself(t, r->index, r->kind, r->key, r->value, r->out);
    far_op_request copy = *r;
    return run_with_others(t, &copy);
}


static int run_on_index(far_task *t, void *arg) {
    return run_on_its_index(t, arg);
}


static inline void name_task(far_task *t, far_op_kind kind, const far_index *index) {
    t->label = labels[kind];
    t->index_key = index->uid;
}


void far_name_task(far_task *t, far_op_kind kind, const far_index *index) {
    name_task(t, kind, index);
}


/* A put that found no memory: where the key is there it is an update, which works in a full pool too. An update that
 * was served with another's has no pin any more. */
static int update_or_put(far_task *t, void *arg) {
    far_op_request update = *(const far_op_request *)arg;
    update.kind = FAR_OP_UPDATE;
    int err = run_on_index(t, &update);
    return err == FAR_ERR_NOT_FOUND ? pin_and_run(t, &(pinned_run){run_on_index, arg}) : err;
}


static __attribute__((noinline)) int run_again(far_task *t, far_op_request *r) {
    pinned_run again = {r->kind == FAR_OP_PUT ? update_or_put : run_on_index, r};
    int err = far_run_short(t, pin_and_run, &again);
    return err == FAR_ERR_NO_MEMORY ? far_tell_full(t, err) : err;
}


static inline __attribute__((always_inline)) int run_stored(far_task *t, const far_op_request *r) {
    int err = far_pin_take_inline(t);
    if (err >= 0)
        err = run_on_its_index(t, r);
    if (err != FAR_ERR_NO_MEMORY)
        return err;
    far_op_request copy = *r;
    return run_again(t, &copy);
}


/* With checksums: the value has one behind it in the index. */
static __attribute__((noinline)) int run_summed(far_task *t, const far_op_request *r) {
    far_op_request stored = *r;
    far_out out;
    stored.out = &out;
    int err = r->kind == FAR_OP_GET ? far_sum_room(t, r->out, &out) : far_sum_add(t, r->index, r->key, &stored.value);
    if (err >= 0)
        err = run_stored(t, &stored);
    return r->kind == FAR_OP_GET ? far_sum_give(r->index, r->key, &out, err, r->out) : err;
}


static inline __attribute__((always_inline)) int run_request(far_task *t, const far_op_request *r) {
    name_task(t, r->kind, r->index);
    far_count_op(t, r->kind, r->index, 1);
    if (far_sum_bytes(r->index) == 0 || r->kind == FAR_OP_DELETE)
        return run_stored(t, r);
    far_op_request copy = *r;
    return run_summed(t, &copy);
}


int far_op_check(const far_session *s, const far_op_request *r) {
    return check_request(s, r);
}


int far_op_run(far_task *t, const far_op_request *r) {
    return run_request(t, r);
}


/* Synchronous calls. */

static int run_first(far_task *t, void *arg) {
    return run_request(t, arg);
}


/* Inlined, down to the kind's own function: what kind of request it is decides what of all that is there. */
static inline __attribute__((always_inline)) int run_call(far_session *s, const far_op_request *r) {
    far_session_enter(s);
    far_task *t = far_call_begin(s, r->kind, false);
    if (t)
        return far_call_end(s, t, run_request(t, r));
    far_op_request copy = *r;
    return far_call_end(s, NULL, far_session_call_first(s, r->kind, false, run_first, &copy));
}


static inline __attribute__((always_inline)) int call(far_session *s, far_op_request r) {
    int err = far_call_enter(s);
    if (err < 0)
        return err;
    if ((err = check_request(s, &r)) >= 0) { /* the caller has the index open until it returns */
        err = run_call(s, &r);
        if (err < 0)
            err = far_tell(s, err);
    }
    if (s->ops)
        far_ops_deliver(s);
    far_call_leave(s);
    return err;
}


int far_get(far_session *s, far_index *index, const void *key, size_t key_len, void *value, size_t capacity,
            size_t *value_len) {
    far_out out = {value, capacity, 0};
    int err = call(s, (far_op_request){FAR_OP_GET, index, {key, key_len}, {NULL, 0}, &out});
    if (value_len && (err == FAR_OK || err == FAR_ERR_TOO_SMALL))
        *value_len = out.length;
    return err;
}


int far_insert(far_session *s, far_index *index, const void *key, size_t key_len, const void *value, size_t value_len) {
    return call(s, (far_op_request){FAR_OP_INSERT, index, {key, key_len}, {value, value_len}, NULL});
}


int far_update(far_session *s, far_index *index, const void *key, size_t key_len, const void *value, size_t value_len) {
    return call(s, (far_op_request){FAR_OP_UPDATE, index, {key, key_len}, {value, value_len}, NULL});
}


int far_put(far_session *s, far_index *index, const void *key, size_t key_len, const void *value, size_t value_len) {
    return call(s, (far_op_request){FAR_OP_PUT, index, {key, key_len}, {value, value_len}, NULL});
}


int far_delete(far_session *s, far_index *index, const void *key, size_t key_len) {
    return call(s, (far_op_request){FAR_OP_DELETE, index, {key, key_len}, {NULL, 0}, NULL});
}
