/* Checks the operations on one key for linearizability. This file translates operations into steps, simplifies them,
 * and chooses one of the two search engines. `far_linear_check` is its entry. */
#include "verify/linear.h"

#include "verify/memory.h"
#include "verify/search.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

typedef struct value {
    far_bytes bytes;
    size_t writers, reads;
    int64_t first_read_end, last_read_start;
} value;

/* The different values that occur on the key. The id of a value is its position in this table + FAR_STATE_FIRST_VALUE.
 */
typedef struct values {
    value *all;
    size_t count;
    uint32_t *table; /* hash table of value ids; 0: empty element */
    size_t mask;
} values;

typedef struct meaning { /* what the result of an operation states about the key: the kind of step and its value */
    bool is_ignored, optional;
    far_step_kind kind;
} meaning;


static uint32_t intern_value(values *v, far_bytes bytes) {
    size_t at = XXH3_64bits(bytes.data ? bytes.data : "", bytes.length) & v->mask;
    for (; v->table[at]; at = (at + 1) & v->mask) {
        if (far_bytes_compare(v->all[v->table[at] - FAR_STATE_FIRST_VALUE].bytes, bytes) == 0)
            return v->table[at];
    }
    v->all[v->count] = (value){bytes, 0, 0, FAR_HISTORY_NEVER, FAR_TIME_BEFORE};
    v->table[at] = (uint32_t)v->count++ + FAR_STATE_FIRST_VALUE;
    return v->table[at];
}


static void values_init(values *v, size_t most) {
    size_t size = 16;
    while (size < 2 * most)
        size *= 2;
    v->all = far_verify_alloc(most * sizeof *v->all);
    v->table = far_verify_alloc(size * sizeof *v->table);
    v->count = 0;
    v->mask = size - 1;
}


static value *value_of(values *v, uint32_t id) {
    return &v->all[id - FAR_STATE_FIRST_VALUE];
}


static meaning meaning_of_get(const far_linear_op *op) {
    bool known = op->end != FAR_HISTORY_NEVER || op->of_scan;
    if (known && op->result == FAR_ERR_NOT_FOUND)
        return (meaning){.kind = FAR_STEP_ABSENT};
    if (known && (op->result == FAR_OK || op->result == FAR_ERR_TOO_SMALL))
        return (meaning){.kind = op->has_value ? FAR_STEP_VALUE : FAR_STEP_PRESENT};
    return (meaning){.is_ignored = true};
}


static meaning meaning_of(const far_linear_op *op) {
    if (op->op == FAR_OP_GET)
        return meaning_of_get(op);
    meaning m = {0};
    m.kind = op->op == FAR_OP_INSERT   ? FAR_STEP_INSERT
             : op->op == FAR_OP_UPDATE ? FAR_STEP_UPDATE
             : op->op == FAR_OP_PUT    ? FAR_STEP_PUT
                                       : FAR_STEP_DELETE;
    if (op->end == FAR_HISTORY_NEVER || op->result == FAR_ERR_UNREACHABLE || op->result == FAR_ERR_FENCED) {
        m.optional = true;
    } else if (op->result == FAR_ERR_EXISTS && op->op == FAR_OP_INSERT) {
        m.kind = FAR_STEP_PRESENT;
    } else if (op->result == FAR_ERR_NOT_FOUND && (op->op == FAR_OP_UPDATE || op->op == FAR_OP_DELETE)) {
        m.kind = FAR_STEP_ABSENT;
    } else if (op->result != FAR_OK) {
        m.is_ignored = true;
    }
    return m;
}


bool far_linear_is_write(const far_linear_op *op) {
    meaning m = meaning_of(op);
    return !m.is_ignored && m.kind < FAR_STEP_ABSENT;
}


/* Fills search->steps with one step for each operation that states something. Optional steps have no end. */
static void collect_steps(const far_linear_key *key, far_search *search, values *v) {
    int64_t last = 0;
    for (size_t i = 0; i < key->count; i++) {
        const far_linear_op *op = &key->ops[i];
        int64_t t = op->end == FAR_HISTORY_NEVER ? op->start : op->end;
        last = i == 0 || t > last ? t : last;
    }
    if (key->initial) {
        search->initial = intern_value(v, *key->initial);
        value_of(v, search->initial)->writers++;
    }
    for (size_t i = 0; i < key->count; i++) {
        const far_linear_op *op = &key->ops[i];
        meaning m = meaning_of(op);
        if (m.is_ignored)
            continue;
        far_step step = {
            .kind = m.kind, .start = op->start, .end = m.optional ? FAR_HISTORY_NEVER : op->end, .ripe = op->start};
        if (m.kind >= FAR_STEP_ABSENT && step.end == FAR_HISTORY_NEVER)
            /* A scan that was cut had returned its pairs before the end of the history, so its step gets an end. */
            step.end = last + 1;
        if (m.kind == FAR_STEP_VALUE || (m.kind < FAR_STEP_ABSENT && m.kind != FAR_STEP_DELETE))
            step.value = intern_value(v, op->has_value ? op->value : (far_bytes){NULL, 0});
        if (m.kind < FAR_STEP_ABSENT && m.kind != FAR_STEP_DELETE)
            value_of(v, step.value)->writers++;
        search->steps[search->count++] = step;
    }
}


/* Counts the reads of each value. If only one value was ever written to the key, a read of it states no more than that
 * the key was present. Returns false if a read returned a value that was never written. */
static bool count_reads(far_search *search, values *v) {
    size_t written = 0;
    for (size_t i = 0; i < v->count; i++)
        written += v->all[i].writers > 0;
    for (size_t i = 0; i < search->count; i++) {
        far_step *step = &search->steps[i];
        if (step->kind != FAR_STEP_VALUE)
            continue;
        value *val = value_of(v, step->value);
        if (val->writers == 0)
            return false;
        if (written == 1) {
            step->kind = FAR_STEP_PRESENT;
            step->value = 0;
            continue;
        }
        val->reads++;
        val->first_read_end = step->end < val->first_read_end ? step->end : val->first_read_end;
        val->last_read_start = step->start > val->last_read_start ? step->start : val->last_read_start;
    }
    return true;
}


static int compare_times(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}


/* Removes the optional writes of values that no operation read. Such a write matters only because it may change the key
 * between absent and present, which is recorded in the lists `ups` and `downs`. An optional update of an unread value
 * never matters. */
static void remove_unread_writes(far_search *search, values *v) {
    size_t kept = 0;
    for (size_t i = 0; i < search->count; i++) {
        far_step step = search->steps[i];
        if (step.value && value_of(v, step.value)->reads == 0)
            step.value = FAR_STATE_UNREAD;
        bool optional = step.end == FAR_HISTORY_NEVER;
        if (optional && step.kind == FAR_STEP_DELETE)
            search->downs[search->down_count++] = step.start;
        else if (optional && step.value == FAR_STATE_UNREAD && step.kind != FAR_STEP_UPDATE)
            search->ups[search->up_count++] = step.start;
        else if (!optional || step.value != FAR_STATE_UNREAD)
            search->steps[kept++] = step;
    }
    search->count = kept;
    if (search->initial && value_of(v, search->initial)->reads == 0)
        search->initial = FAR_STATE_UNREAD;
    qsort(search->ups, search->up_count, sizeof(int64_t), compare_times);
    qsort(search->downs, search->down_count, sizeof(int64_t), compare_times);
}


/* Merges all reads of a value into the step of the write that alone wrote this value. This write must take effect
 * before the first of the reads ends. Returns false if a read ended before the write started. */
static bool fold_reads(far_search *search, values *v) {
    size_t kept = 0;
    for (size_t i = 0; i < search->count; i++) {
        far_step step = search->steps[i];
        if (step.kind == FAR_STEP_VALUE)
            continue;
        if (step.value >= FAR_STATE_FIRST_VALUE) {
            value *val = value_of(v, step.value);
            step.end = val->first_read_end < step.end ? val->first_read_end : step.end;
            step.ripe = val->last_read_start > step.start ? val->last_read_start : step.start;
            if (step.end < step.start)
                return false;
        }
        search->steps[kept++] = step;
    }
    search->count = kept;
    if (search->initial >= FAR_STATE_FIRST_VALUE)
        search->initial_ripe = value_of(v, search->initial)->last_read_start;
    return true;
}


static far_linear_verdict search_order(const far_linear_key *key, far_search *search, values *v) {
    collect_steps(key, search, v);
    if (!count_reads(search, v))
        return FAR_LINEAR_VIOLATION;
    remove_unread_writes(search, v);
    bool unique = true;
    for (size_t i = 0; i < v->count; i++)
        unique = unique && (v->all[i].reads == 0 || v->all[i].writers == 1);
    if (!unique)
        return far_search_run(search, &far_engine_any);
    return fold_reads(search, v) ? far_search_run(search, &far_engine_unique) : FAR_LINEAR_VIOLATION;
}


far_linear_verdict far_linear_check(const far_linear_key *key, uint64_t budget, uint64_t *states) {
    far_search search = {.budget = budget ? budget : FAR_LINEAR_BUDGET, .initial_ripe = FAR_TIME_BEFORE};
    search.steps = far_verify_alloc(key->count * sizeof *search.steps);
    search.ups = far_verify_alloc(key->count * sizeof *search.ups);
    search.downs = far_verify_alloc(key->count * sizeof *search.downs);
    values v;
    values_init(&v, key->count + 1);
    far_linear_verdict verdict = search_order(key, &search, &v);
    if (states)
        *states = search.states;
    free(v.all);
    free(v.table);
    free(search.steps);
    free(search.ups);
    free(search.downs);
    return verdict;
}
