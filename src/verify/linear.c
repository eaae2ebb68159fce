/* Is the history of a key linearizable: splits it by key and chooses how to search. */
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

typedef struct values { /* id is the position + FAR_STATE_FIRST_VALUE */
    value *all;
    size_t count;
    uint32_t *table; /* id or 0 */
    size_t mask;
} values;

typedef struct meaning { /* what an operation says */
    bool says_nothing, optional;
    far_step_kind kind;
} meaning;


static uint32_t intern(values *v, far_bytes bytes) {
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
    return (meaning){.says_nothing = true};
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
        m.says_nothing = true;
    }
    return m;
}


bool far_linear_is_write(const far_linear_op *op) {
    meaning m = meaning_of(op);
    return !m.says_nothing && m.kind < FAR_STEP_ABSENT;
}


/* Fills search->steps with one step per operation that says something; optional ones have no end. */
static void collect(const far_linear_key *key, far_search *search, values *v) {
    int64_t last = 0;
    for (size_t i = 0; i < key->count; i++) {
        const far_linear_op *op = &key->ops[i];
        int64_t t = op->end == FAR_HISTORY_NEVER ? op->start : op->end;
        last = i == 0 || t > last ? t : last;
    }
    if (key->initial) {
        search->initial = intern(v, *key->initial);
        value_of(v, search->initial)->writers++;
    }
    for (size_t i = 0; i < key->count; i++) {
        const far_linear_op *op = &key->ops[i];
        meaning m = meaning_of(op);
        if (m.says_nothing)
            continue;
        far_step step = {
            .kind = m.kind, .start = op->start, .end = m.optional ? FAR_HISTORY_NEVER : op->end, .ripe = op->start};
        if (m.kind >= FAR_STEP_ABSENT && step.end == FAR_HISTORY_NEVER)
            step.end = last + 1; /* a scan that was cut: what it gave was so before the history's end */
        if (m.kind == FAR_STEP_VALUE || (m.kind < FAR_STEP_ABSENT && m.kind != FAR_STEP_DELETE))
            step.value = intern(v, op->has_value ? op->value : (far_bytes){NULL, 0});
        if (m.kind < FAR_STEP_ABSENT && m.kind != FAR_STEP_DELETE)
            value_of(v, step.value)->writers++;
        search->steps[search->count++] = step;
    }
}


/* Counts the reads; with a single value ever written, having read it says no more than presence. False: a value nobody
 * wrote. */
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


/* Takes out the optional writes that nobody read: they only matter as ups and downs. An update of these never does. */
static void take_out_unread(far_search *search, values *v) {
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


/* Folds the reads of values into their writers. False: a read ended before its writer started. */
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


static far_linear_verdict run(const far_linear_key *key, far_search *search, values *v) {
    collect(key, search, v);
    if (!count_reads(search, v))
        return FAR_LINEAR_VIOLATION;
    take_out_unread(search, v);
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
    far_linear_verdict verdict = run(key, &search, &v);
    if (states)
        *states = search.states;
    free(v.all);
    free(v.table);
    free(search.steps);
    free(search.ups);
    free(search.downs);
    return verdict;
}
