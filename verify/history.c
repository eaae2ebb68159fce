/* Records histories, that is, operations with the times of their begin and end. */
#include "verify/history.h"

#include "verify/memory.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct far_history {
    pthread_mutex_t lock;
    uint64_t seed;
    far_history_op *ops;
    size_t count, capacity;
    far_verify_arena arena;
};


far_history *far_history_new(uint64_t seed) {
    far_history *history = far_verify_alloc(sizeof *history);
    pthread_mutex_init(&history->lock, NULL);
    history->seed = seed;
    return history;
}


void far_history_free(far_history *history) {
    if (!history)
        return;
    pthread_mutex_destroy(&history->lock);
    far_verify_arena_free(&history->arena);
    free(history->ops);
    free(history);
}


static far_bytes copy_bytes(far_history *history, const void *data, size_t len) {
    return (far_bytes){far_verify_arena_copy(&history->arena, data, len), len};
}


static far_history_op *append_op(far_history *history) {
    if (history->count == history->capacity) {
        history->capacity = history->capacity ? history->capacity * 2 : 256;
        history->ops = far_verify_grow(history->ops, history->capacity * sizeof *history->ops);
    }
    far_history_op *op = &history->ops[history->count++];
    memset(op, 0, sizeof *op);
    return op;
}


static void append_pair(far_history *history, far_history_op *op, far_bytes key, far_bytes value) {
    if (op->pair_count == op->pair_capacity) {
        size_t capacity = op->pair_capacity ? op->pair_capacity * 2 : 8;
        far_history_pair *pairs = far_verify_arena_alloc(&history->arena, capacity * sizeof *pairs);
        if (op->pair_count)
            memcpy(pairs, op->pairs, op->pair_count * sizeof *pairs);
        op->pairs = pairs;
        op->pair_capacity = capacity;
    }
    op->pairs[op->pair_count++] =
        (far_history_pair){copy_bytes(history, key.data, key.length), copy_bytes(history, value.data, value.length)};
}


static size_t begin_op(far_history *history, const far_history_op *what) {
    pthread_mutex_lock(&history->lock);
    far_history_op *op = append_op(history);
    *op = *what;
    op->seed = history->seed;
    op->end = FAR_HISTORY_NEVER;
    op->key = copy_bytes(history, what->key.data, what->key.length);
    op->value = copy_bytes(history, what->value.data, what->value.length);
    op->to = copy_bytes(history, what->to.data, what->to.length);
    size_t index = history->count - 1;
    pthread_mutex_unlock(&history->lock);
    return index;
}


size_t far_history_begin(far_history *history, uint32_t client, far_op_kind op, const void *key, size_t key_len,
                         const void *value, size_t value_len, int64_t start) {
    far_history_op what = {.client = client, .op = op, .key = {key, key_len}, .start = start};
    if (value) {
        what.has_value = true;
        what.value = (far_bytes){value, value_len};
    }
    return begin_op(history, &what);
}


size_t far_history_begin_scan(far_history *history, uint32_t client, const void *from, size_t from_len, const void *to,
                              size_t to_len, uint64_t limit, bool reverse, int64_t start) {
    far_history_op what = {.client = client, .op = FAR_OP_SCAN, .limit = limit, .reverse = reverse, .start = start};
    if (from)
        what.key = (far_bytes){from, from_len};
    if (to) {
        what.has_to = true;
        what.to = (far_bytes){to, to_len};
    }
    return begin_op(history, &what);
}


void far_history_pair_given(far_history *history, size_t index, const void *key, size_t key_len, const void *value,
                            size_t value_len) {
    pthread_mutex_lock(&history->lock);
    append_pair(history, &history->ops[index], (far_bytes){key, key_len}, (far_bytes){value, value_len});
    pthread_mutex_unlock(&history->lock);
}


void far_history_stop(far_history *history, size_t index) {
    pthread_mutex_lock(&history->lock);
    history->ops[index].limit = history->ops[index].pair_count;
    pthread_mutex_unlock(&history->lock);
}


void far_history_end(far_history *history, size_t index, int64_t result, const void *value, size_t value_len,
                     int64_t end) {
    pthread_mutex_lock(&history->lock);
    far_history_op *op = &history->ops[index];
    op->result = result;
    op->end = end;
    if (value) {
        op->has_value = true;
        op->value = copy_bytes(history, value, value_len);
    }
    pthread_mutex_unlock(&history->lock);
}


void far_history_cut(far_history *history, size_t index) {
    pthread_mutex_lock(&history->lock);
    history->ops[index].end = FAR_HISTORY_NEVER;
    history->ops[index].result = 0;
    pthread_mutex_unlock(&history->lock);
}


size_t far_history_count(const far_history *history) {
    return history->count;
}


const far_history_op *far_history_at(const far_history *history, size_t index) {
    return &history->ops[index];
}


void far_history_merge(far_history *into, const far_history *from) {
    pthread_mutex_lock(&into->lock);
    for (size_t i = 0; i < from->count; i++) {
        const far_history_op *theirs = &from->ops[i];
        far_history_op *op = append_op(into);
        *op = *theirs;
        op->key = copy_bytes(into, theirs->key.data, theirs->key.length);
        op->value = copy_bytes(into, theirs->value.data, theirs->value.length);
        op->to = copy_bytes(into, theirs->to.data, theirs->to.length);
        op->pairs = NULL;
        op->pair_count = op->pair_capacity = 0;
        for (size_t p = 0; p < theirs->pair_count; p++)
            append_pair(into, op, theirs->pairs[p].key, theirs->pairs[p].value);
    }
    pthread_mutex_unlock(&into->lock);
}


bool far_history_op_equal(const far_history_op *a, const far_history_op *b) {
    if (a->seed != b->seed || a->client != b->client || a->op != b->op || a->has_value != b->has_value ||
        a->has_to != b->has_to || a->reverse != b->reverse || a->start != b->start || a->end != b->end ||
        a->limit != b->limit || a->pair_count != b->pair_count)
        return false;
    if (a->end != FAR_HISTORY_NEVER && a->result != b->result)
        return false;
    if (far_bytes_compare(a->key, b->key) || far_bytes_compare(a->value, b->value) || far_bytes_compare(a->to, b->to))
        return false;
    for (size_t p = 0; p < a->pair_count; p++) {
        if (far_bytes_compare(a->pairs[p].key, b->pairs[p].key) ||
            far_bytes_compare(a->pairs[p].value, b->pairs[p].value))
            return false;
    }
    return true;
}


const char *far_op_name(far_op_kind op) {
    static const char *const names[] = {"get", "insert", "update", "put", "delete", "scan"};
    return (size_t)op < sizeof names / sizeof *names ? names[op] : "?";
}
