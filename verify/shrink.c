/* Reduces a history that violates linearizability to a small one (`far_linear_shrink`), and prints it as a timeline
 * (`far_linear_print`). */
#include "verify/linear.h"
#include "verify/memory.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define BAR_COLUMNS       48
#define VALUE_BYTES_SHOWN 12
#define BUDGETS_SPENT     4 /* The whole reduction may explore this many times the budget of one check. */

enum { KEPT, LEFT_OUT };

typedef struct shrinking {
    const far_linear_key *key;
    far_linear_op *trial; /* the operations that the current check uses */
    uint8_t *decision;    /* one for each operation: KEPT or LEFT_OUT */
    /* time limit of the history that is checked: operations that start later are left out, and operations that end
     * later have no end */
    int64_t until;
    uint64_t budget, left;
} shrinking;


/* Checks whether the remaining history still has no linearization. A write that is left out stays in the check as an
 * optional write, so that the check never fails because a write is missing. */
static bool still_fails(shrinking *s) {
    far_linear_key trial = *s->key;
    trial.ops = s->trial;
    trial.count = 0;
    for (size_t i = 0; i < s->key->count; i++) {
        far_linear_op op = s->key->ops[i];
        bool is_open = op.end > s->until;
        if (op.start > s->until || ((s->decision[i] == LEFT_OUT || is_open) && !far_linear_is_write(&op)))
            continue;
        if (s->decision[i] == LEFT_OUT || is_open)
            op.end = FAR_HISTORY_NEVER;
        trial.ops[trial.count++] = op;
    }
    uint64_t states = 0;
    if (s->left == 0)
        return false;
    bool fails = far_linear_check(&trial, s->budget, &states) == FAR_LINEAR_VIOLATION;
    states += trial.count;
    s->left = s->left > states ? s->left - states : 0;
    return fails;
}


static int compare_times(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}


static void find_failing_prefix(shrinking *s) {
    size_t count = s->key->count, low = 0, high = count;
    int64_t *ends = far_verify_alloc(count * sizeof *ends);
    for (size_t i = 0; i < count; i++)
        ends[i] = s->key->ops[i].end;
    qsort(ends, count, sizeof *ends, compare_times);
    while (low < high) { /* `high` == count means the whole history, which is known to have no linearization. */
        size_t middle = (low + high) / 2;
        s->until = ends[middle];
        if (still_fails(s))
            high = middle;
        else
            low = middle + 1;
    }
    s->until = high < count ? ends[high] : FAR_HISTORY_NEVER;
    free(ends);
}


static bool is_observed(const shrinking *s, const far_linear_op *write) {
    for (size_t i = 0; i < s->key->count; i++) {
        const far_linear_op *op = &s->key->ops[i];
        if (s->decision[i] == KEPT && op->op == FAR_OP_GET && op->has_value &&
            far_bytes_compare(op->value, write->value) == 0)
            return true;
    }
    return false;
}


/* Leaves out as many writes (or other operations) as possible, in chunks of decreasing size. */
static void leave_out_ops(shrinking *s, bool writes) {
    size_t *candidates = far_verify_alloc(s->key->count * sizeof *candidates), count = 0;
    for (size_t i = 0; i < s->key->count; i++) {
        const far_linear_op *op = &s->key->ops[i];
        if (s->decision[i] == KEPT && far_linear_is_write(op) == writes &&
            !(writes && op->op != FAR_OP_DELETE && is_observed(s, op)))
            candidates[count++] = i;
    }
    for (size_t chunk = count; chunk > 0; chunk = chunk > 1 ? (chunk + 1) / 2 : 0) {
        size_t kept = 0;
        for (size_t at = 0; at < count; at += chunk) {
            size_t size = count - at < chunk ? count - at : chunk;
            for (size_t i = 0; i < size; i++)
                s->decision[candidates[at + i]] = LEFT_OUT;
            if (still_fails(s))
                continue;
            for (size_t i = 0; i < size; i++) {
                s->decision[candidates[at + i]] = KEPT;
                candidates[kept++] = candidates[at + i];
            }
        }
        count = kept;
        chunk = chunk > count ? count : chunk;
    }
    free(candidates);
}


static int compare_ops(const void *a, const void *b) {
    const far_linear_op *x = a, *y = b;
    if (x->start != y->start)
        return x->start < y->start ? -1 : 1;
    if (x->end != y->end)
        return x->end < y->end ? -1 : 1;
    return (x->client > y->client) - (x->client < y->client);
}


void far_linear_shrink(far_linear_key *key, uint64_t budget) {
    shrinking s = {.key = key, .budget = budget ? budget : FAR_LINEAR_BUDGET};
    s.left = s.budget * BUDGETS_SPENT;
    s.trial = far_verify_alloc(key->count * sizeof *s.trial);
    s.decision = far_verify_alloc(key->count);
    find_failing_prefix(&s);
    for (size_t i = 0; i < key->count; i++) {
        const far_linear_op *op = &key->ops[i];
        if (op->start > s.until || (op->end > s.until && !far_linear_is_write(op)))
            s.decision[i] = LEFT_OUT;
    }
    leave_out_ops(&s, false);
    leave_out_ops(&s, true);
    leave_out_ops(&s, false);
    size_t kept = 0;
    for (size_t i = 0; i < key->count; i++) {
        if (s.decision[i] == KEPT)
            key->ops[kept++] = key->ops[i];
    }
    key->count = kept;
    qsort(key->ops, kept, sizeof *key->ops, compare_ops);
    free(s.trial);
    free(s.decision);
}


static void format_bytes(char *text, size_t size, far_bytes bytes) {
    size_t used = 0;
    text[0] = '\0';
    if (bytes.length == 0)
        snprintf(text, size, "\"\"");
    for (size_t i = 0; i < bytes.length && i < VALUE_BYTES_SHOWN; i++)
        used += (size_t)snprintf(text + used, size - used, "%02x", ((const uint8_t *)bytes.data)[i]);
    if (bytes.length > VALUE_BYTES_SHOWN)
        snprintf(text + used, size - used, "..(%zu)", bytes.length);
}


static void format_op(char *text, size_t size, const far_linear_op *op) {
    char bytes[VALUE_BYTES_SHOWN * 2 + 32] = "", result[32];
    const char *name = op->reverse ? "reverse scan" : op->of_scan ? "scan" : far_op_name(op->op);
    if (op->has_value)
        format_bytes(bytes, sizeof bytes, op->value);
    switch (op->end == FAR_HISTORY_NEVER && !op->of_scan ? 1 : op->result) {
    case 1:
        snprintf(result, sizeof result, "cut");
        break;
    case FAR_OK:
        snprintf(result, sizeof result, "ok");
        break;
    case FAR_ERR_NOT_FOUND:
        snprintf(result, sizeof result, op->of_scan ? "not given" : "NOT_FOUND");
        break;
    case FAR_ERR_EXISTS:
        snprintf(result, sizeof result, "EXISTS");
        break;
    default:
        snprintf(result, sizeof result, "%" PRId64, op->result);
    }
    if (op->op == FAR_OP_GET)
        snprintf(text, size, "%s -> %s", name, op->has_value ? bytes : result);
    else
        snprintf(text, size, "%s%s%s -> %s", name, op->has_value ? " " : "", bytes, result);
}


/* Returns the column of a time. Columns follow the rank among all times shown, so that close times remain
 * distinguishable. */
static int column_of(const int64_t *times, size_t count, int64_t t) {
    size_t rank = 0;
    while (rank < count && times[rank] < t)
        rank++;
    return count < 2 ? 0 : (int)(rank * (BAR_COLUMNS - 1) / (count - 1));
}


void far_linear_print(const far_linear_key *key, FILE *file) {
    int64_t *times = far_verify_alloc(2 * key->count * sizeof *times);
    size_t moments = 0, distinct = 0;
    for (size_t i = 0; i < key->count; i++) {
        times[moments++] = key->ops[i].start;
        if (key->ops[i].end != FAR_HISTORY_NEVER)
            times[moments++] = key->ops[i].end;
    }
    qsort(times, moments, sizeof *times, compare_times);
    for (size_t i = 0; i < moments; i++) {
        if (distinct == 0 || times[distinct - 1] != times[i])
            times[distinct++] = times[i];
    }
    char text[160], name[VALUE_BYTES_SHOWN * 2 + 32];
    format_bytes(name, sizeof name, key->name);
    fprintf(file, "key %s, ", name);
    if (key->initial)
        format_bytes(text, sizeof text, *key->initial);
    fprintf(file, "at first %s\n%8s %14s %14s  %-44s\n", key->initial ? text : "absent", "client", "start", "end",
            "operation");
    for (size_t i = 0; i < key->count; i++) {
        const far_linear_op *op = &key->ops[i];
        bool cut = op->end == FAR_HISTORY_NEVER;
        char end[24] = "-", bar[BAR_COLUMNS + 1];
        if (!cut)
            snprintf(end, sizeof end, "%" PRId64, op->end);
        format_op(text, sizeof text, op);
        int from = column_of(times, distinct, op->start),
            to = cut ? BAR_COLUMNS - 1 : column_of(times, distinct, op->end);
        memset(bar, ' ', BAR_COLUMNS);
        memset(bar + from, '=', (size_t)(to - from + 1));
        bar[from] = '[';
        bar[to] = cut ? '>' : from == to ? '|' : ']';
        bar[to + 1] = '\0';
        fprintf(file, "%8" PRIu32 " %14" PRId64 " %14s  %-44s %s\n", op->client, op->start, end, text, bar);
    }
    free(times);
}
