/* Checks a whole history: collects the operations on each key and checks each key, and checks each scan. */
#include "verify/verify.h"

#include "verify/memory.h"

#include <inttypes.h>
#include <stdlib.h>

/* One occurrence of a key in an operation. `op` is NULL if the key occurs in a scan or in the initial content. */
typedef struct mention {
    far_bytes key;
    size_t order;
    const far_history_op *op;
} mention;

typedef struct verification {
    const far_model *initial;
    uint64_t budget;
    FILE *out;
    far_verify_report *report;
    mention *mentions;
    size_t mention_count, mention_capacity;
    const far_history_op **scans;
    size_t scan_count;
    far_linear_op *ops; /* operations on the key that is being checked */
    size_t op_capacity;
} verification;


static void add_mention(verification *j, far_bytes key, const far_history_op *op) {
    if (j->mention_count == j->mention_capacity) {
        j->mention_capacity = j->mention_capacity ? j->mention_capacity * 2 : 1024;
        j->mentions = far_verify_grow(j->mentions, j->mention_capacity * sizeof *j->mentions);
    }
    j->mentions[j->mention_count] = (mention){key, j->mention_count, op};
    j->mention_count++;
}


static int add_initial(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    (void)value, (void)value_len;
    add_mention(ctx, (far_bytes){key, key_len}, NULL);
    return 0;
}


static int compare_mentions(const void *a, const void *b) {
    const mention *x = a, *y = b;
    int order = far_bytes_compare(x->key, y->key);
    return order ? order : (x->order > y->order) - (x->order < y->order);
}


static void collect_mentions(verification *j, const far_history *history) {
    size_t count = far_history_count(history);
    j->scans = far_verify_alloc(count * sizeof *j->scans);
    for (size_t i = 0; i < count; i++) {
        const far_history_op *op = far_history_at(history, i);
        if (op->op != FAR_OP_SCAN) {
            add_mention(j, op->key, op);
            continue;
        }
        j->scans[j->scan_count++] = op;
        for (size_t p = 0; p < op->pair_count; p++)
            add_mention(j, op->pairs[p].key, NULL);
    }
    if (j->initial)
        far_model_scan(j->initial, NULL, 0, NULL, 0, 0, add_initial, j);
    if (j->mention_count)
        qsort(j->mentions, j->mention_count, sizeof *j->mentions, compare_mentions);
    j->report->ops = count;
    j->report->scans = j->scan_count;
}


static void check_scans(verification *j) {
    for (size_t i = 0; i < j->scan_count; i++) {
        const char *wrong = far_verify_scan(j->scans[i]);
        if (!wrong)
            continue;
        j->report->violations++;
        if (j->out) {
            fprintf(j->out, "violation: a %s returned %s (seed %" PRIu64 ", client %" PRIu32 ")\n",
                    j->scans[i]->reverse ? "reverse scan" : "scan", wrong, j->scans[i]->seed, j->scans[i]->client);
            far_history_write_op(j->scans[i], j->out);
        }
    }
}


static void add_op(verification *j, far_linear_key *key, const far_linear_op *op) {
    if (key->count == j->op_capacity) {
        j->op_capacity = j->op_capacity ? j->op_capacity * 2 : 1024;
        j->ops = far_verify_grow(j->ops, j->op_capacity * sizeof *j->ops);
    }
    j->ops[key->count++] = *op;
    key->ops = j->ops;
}


/* Checks the key to which the mentions [first, last) belong. */
static void check_key(verification *j, size_t first, size_t last) {
    far_linear_key key = {.name = j->mentions[first].key, .ops = j->ops};
    far_bytes initial;
    const void *value;
    if (j->initial && far_model_get(j->initial, key.name.data, key.name.length, &value, &initial.length) == FAR_OK) {
        initial.data = value;
        key.initial = &initial;
    }
    uint64_t seed = 0;
    for (size_t i = first; i < last; i++) {
        const far_history_op *op = j->mentions[i].op;
        if (!op)
            continue;
        far_linear_op linear = {.op = op->op,
                                .has_value = op->has_value,
                                .client = op->client,
                                .result = op->result,
                                .start = op->start,
                                .end = op->end,
                                .value = op->value};
        add_op(j, &key, &linear);
        seed = op->seed;
    }
    for (size_t i = 0; i < j->scan_count; i++) {
        far_linear_op linear;
        if (far_verify_scan_as_get(j->scans[i], key.name, &linear)) {
            add_op(j, &key, &linear);
            seed = j->scans[i]->seed;
        }
    }
    uint64_t states;
    far_linear_verdict verdict = far_linear_check(&key, j->budget, &states);
    j->report->keys++;
    j->report->states += states;
    j->report->gave_up += verdict == FAR_LINEAR_GAVE_UP;
    if (verdict == FAR_LINEAR_GAVE_UP && j->out) {
        fprintf(j->out, "undecided: %zu operations on one key, after %" PRIu64 " states (seed %" PRIu64 ")\n",
                key.count, states, seed);
    } else if (verdict == FAR_LINEAR_VIOLATION) {
        j->report->violations++;
        if (j->out) {
            fprintf(j->out, "violation: no linearization (seed %" PRIu64 ")\n", seed);
            far_linear_shrink(&key, j->budget);
            far_linear_print(&key, j->out);
        }
    }
}


bool far_verify_history(const far_history *history, const far_model *initial, uint64_t budget, FILE *out,
                        far_verify_report *report) {
    far_verify_report own;
    report = report ? report : &own;
    *report = (far_verify_report){0};
    verification j = {.initial = initial, .budget = budget, .out = out, .report = report};
    collect_mentions(&j, history);
    check_scans(&j);
    for (size_t first = 0, last; first < j.mention_count; first = last) {
        for (last = first + 1; last < j.mention_count; last++) {
            if (far_bytes_compare(j.mentions[first].key, j.mentions[last].key) != 0)
                break;
        }
        check_key(&j, first, last);
    }
    free(j.mentions);
    free(j.scans);
    free(j.ops);
    return report->violations == 0 && report->gave_up == 0;
}
