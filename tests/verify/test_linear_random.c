/* Compares the checker with an obviously correct one on small random histories, and measures its cost on large ones. */
#include "base/random.h"
#include "test.h"
#include "verify/linear.h"
#include "verify/memory.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOST 9

static const uint8_t bytes_of[256] = {
#define ROW(n) n, n + 1, n + 2, n + 3, n + 4, n + 5, n + 6, n + 7
    ROW(0), ROW(8), ROW(16), ROW(24), ROW(32)};


static far_bytes value(int v) {
    return (far_bytes){&bytes_of[v], 1};
}


static int value_of(const far_linear_op *op) {
    return *(const uint8_t *)op->value.data;
}


/* Returns whether the operation is possible in this state (-1: absent), and changes the state. */
static bool apply_if_allowed(const far_linear_op *op, int *state, bool optional) {
    bool present = *state >= 0;
    int64_t result = optional ? FAR_OK : op->result;
    switch (op->op) {
    case FAR_OP_GET:
        if (result == FAR_ERR_NOT_FOUND)
            return !present;
        return present && (!op->has_value || value_of(op) == *state);
    case FAR_OP_INSERT:
        if (result == FAR_ERR_EXISTS || present)
            return result == FAR_ERR_EXISTS && present;
        *state = value_of(op);
        return true;
    case FAR_OP_UPDATE:
        if (result == FAR_ERR_NOT_FOUND || !present)
            return result == FAR_ERR_NOT_FOUND && !present;
        *state = value_of(op);
        return true;
    case FAR_OP_PUT:
        *state = value_of(op);
        return true;
    default:
        if (result == FAR_ERR_NOT_FOUND || !present)
            return result == FAR_ERR_NOT_FOUND && !present;
        *state = -1;
        return true;
    }
}


static bool is_optional(const far_linear_op *op) {
    return op->op != FAR_OP_GET &&
           (op->end == FAR_HISTORY_NEVER || op->result == FAR_ERR_UNREACHABLE || op->result == FAR_ERR_FENCED);
}


static bool is_silent(const far_linear_op *op) {
    if (is_optional(op))
        return false;
    if (op->op == FAR_OP_GET)
        return op->end == FAR_HISTORY_NEVER || op->result < FAR_ERR_TOO_SMALL || op->result == FAR_ERR_INVALID;
    return op->result < FAR_ERR_EXISTS;
}


/* Tries every order. `hopeless` marks combinations of executed operations and state from which no order succeeds. */
static bool can_order(const far_linear_key *key, unsigned done, int state, uint64_t *hopeless) {
    bool all = true;
    for (size_t i = 0; i < key->count; i++)
        all = all && (done >> i & 1 || is_optional(&key->ops[i]) || is_silent(&key->ops[i]));
    if (all)
        return true;
    if (hopeless[done] >> (state + 1) & 1)
        return false;
    for (size_t i = 0; i < key->count; i++) {
        const far_linear_op *op = &key->ops[i];
        bool first = !(done >> i & 1) && !is_silent(op);
        for (size_t j = 0; j < key->count && first; j++) {
            const far_linear_op *other = &key->ops[j];
            first = done >> j & 1 || is_optional(other) || is_silent(other) || other->end >= op->start;
        }
        int after = state;
        if (first && apply_if_allowed(op, &after, is_optional(op)) && can_order(key, done | 1u << i, after, hopeless))
            return true;
    }
    hopeless[done] |= (uint64_t)1 << (state + 1);
    return false;
}


static bool is_linearizable(const far_linear_key *key) {
    static uint64_t hopeless[1 << MOST];
    memset(hopeless, 0, sizeof *hopeless << key->count);
    return can_order(key, 0, key->initial ? *(const uint8_t *)key->initial->data : -1, hopeless);
}


/* Executes one operation at this moment, so that its result is correct. */
static void execute(far_linear_op *op, int *state) {
    bool present = *state >= 0;
    op->result = FAR_OK;
    switch (op->op) {
    case FAR_OP_GET:
        op->has_value = present;
        op->result = present ? FAR_OK : FAR_ERR_NOT_FOUND;
        if (present)
            op->value = value(*state);
        return;
    case FAR_OP_INSERT:
        op->result = present ? FAR_ERR_EXISTS : FAR_OK;
        break;
    case FAR_OP_UPDATE:
        op->result = present ? FAR_OK : FAR_ERR_NOT_FOUND;
        break;
    case FAR_OP_DELETE:
        op->result = present ? FAR_OK : FAR_ERR_NOT_FOUND;
        *state = -1;
        return;
    default:
        break;
    }
    if (op->result == FAR_OK)
        *state = value_of(op);
}


/* Makes a correct run: operation i takes effect at time 4 i and is recorded as lasting from some time before to some
 * time after it. */
static void make_run(far_random *r, far_linear_key *key, far_linear_op *ops, size_t count, int values, int spread) {
    static far_bytes initial;
    int state = -1;
    key->initial = NULL;
    if (far_random_chance(r, 1, 4)) {
        initial = value(state = values ? (int)far_random_below(r, (uint64_t)values) : 30);
        key->initial = &initial;
    }
    bool only_switches = far_random_chance(r, 1, 3);
    for (size_t i = 0; i < count; i++) {
        int64_t moment = 4 * (int64_t)i;
        far_linear_op op = {.op = (far_op_kind)far_random_below(r, FAR_OP_SCAN)};
        if (only_switches && op.op == FAR_OP_UPDATE)
            op.op = FAR_OP_DELETE;
        op.start = moment - (int64_t)far_random_below(r, (uint64_t)spread);
        op.end = moment + (int64_t)far_random_below(r, (uint64_t)spread);
        op.client = (uint32_t)i;
        op.has_value = op.op != FAR_OP_GET && op.op != FAR_OP_DELETE;
        if (op.has_value)
            op.value = value(values ? (int)far_random_below(r, (uint64_t)values) : (int)i);
        int before = state;
        execute(&op, &state);
        if (op.op != FAR_OP_GET &&
            far_random_chance(r, 1, 6)) { /* a cut operation; if it does not take effect, its change is undone */
            if (far_random_chance(r, 1, 2))
                state = before;
            if (far_random_chance(r, 1, 2))
                op.end = FAR_HISTORY_NEVER;
            else
                op.result = far_random_chance(r, 1, 2) ? FAR_ERR_UNREACHABLE : FAR_ERR_FENCED;
        } else if (op.op == FAR_OP_GET && op.result == FAR_OK && far_random_chance(r, 1, 5)) {
            op.result = FAR_ERR_TOO_SMALL;
            op.has_value = false;
        }
        ops[i] = op;
    }
    key->ops = ops;
    key->count = count;
}


/* Changes one result or one time at random. The history may become illegal or not. */
static void change_at_random(far_random *r, far_linear_key *key, int values) {
    far_linear_op *op = &key->ops[far_random_below(r, key->count)];
    switch (far_random_below(r, 4)) {
    case 0:
        op->op = FAR_OP_GET;
        op->has_value = true;
        op->result = FAR_OK;
        op->end = op->start + 3;
        op->value = value((int)far_random_below(r, values ? (uint64_t)values : key->count));
        break;
    case 1:
        if (op->op != FAR_OP_PUT)
            op->result = op->op == FAR_OP_INSERT ? (op->result ? FAR_OK : FAR_ERR_EXISTS) : FAR_ERR_NOT_FOUND;
        if (op->op == FAR_OP_GET)
            op->has_value = false;
        break;
    case 2:
        if (op->op != FAR_OP_GET)
            op->result = FAR_OK;
        break;
    default:
        op->start += 8;
        if (op->end != FAR_HISTORY_NEVER)
            op->end += 8;
    }
}


static void print_failure(const far_linear_key *key, uint64_t seed) {
    print_message("history %llu\n", (unsigned long long)seed);
    far_linear_print(key, stderr);
}


static void compare_with_obvious(int values, uint64_t histories) {
    uint64_t good = 0, bad = 0;
    for (uint64_t seed = 1; seed <= histories; seed++) {
        far_random r;
        far_random_seed(&r, seed * 2 + (uint64_t)values);
        far_linear_op ops[MOST];
        far_linear_key key = {0};
        make_run(&r, &key, ops, 1 + far_random_below(&r, MOST), values, 1 + (int)far_random_below(&r, 30));
        bool spoiled = far_random_chance(&r, 2, 3);
        for (size_t i = spoiled ? 1 + far_random_below(&r, 3) : 0; i > 0; i--)
            change_at_random(&r, &key, values);
        bool expected = is_linearizable(&key);
        far_linear_verdict verdict = far_linear_check(&key, 0, NULL);
        if (verdict != (expected ? FAR_LINEAR_OK : FAR_LINEAR_VIOLATION) || (!spoiled && !expected)) {
            print_failure(&key, seed);
            fail_msg("verdict %d, but linearizable is %d", verdict, expected);
        }
        good += expected;
        bad += !expected;
    }
    print_message("%llu linearizable, %llu not\n", (unsigned long long)good, (unsigned long long)bad);
    assert_true(good > histories / 4 && bad > histories / 10);
}


/* On random histories with different values the checker agrees with one that tries all orders. */
TEST(same_verdict_as_trying_all_orders_when_values_differ) {
    compare_with_obvious(0, 80000);
}


/* On random histories with repeated values the checker agrees with one that tries all orders. */
TEST(same_verdict_as_trying_all_orders_when_values_repeat) {
    compare_with_obvious(2, 30000);
    compare_with_obvious(3, 30000);
    compare_with_obvious(1, 10000);
}


/* A reduced history is still illegal, and usually has at most four operations. */
TEST(shrunk_histories_are_still_illegal_and_small) {
    uint64_t shrunk = 0, smaller = 0;
    for (uint64_t seed = 1; seed <= 10000; seed++) {
        far_random r;
        far_random_seed(&r, seed);
        far_linear_op ops[MOST];
        far_linear_key key = {0};
        make_run(&r, &key, ops, MOST, 0, 12);
        change_at_random(&r, &key, 0);
        if (is_linearizable(&key))
            continue;
        far_linear_shrink(&key, 0);
        if (is_linearizable(&key)) {
            print_failure(&key, seed);
            fail_msg("what is left is legal");
        }
        shrunk++;
        smaller += key.count <= 4;
    }
    print_message("%llu shrunk, %llu to 4 or fewer\n", (unsigned long long)shrunk, (unsigned long long)smaller);
    assert_true(shrunk > 2000 && smaller > shrunk / 2);
}


typedef struct hot {
    far_linear_key key;
    far_linear_op *ops;
    uint32_t *values;
} hot;


typedef struct hot_client {
    far_linear_op op;
    int64_t at; /* time at which the operation takes effect */
} hot_client;


/* Makes a correct run of many clients on one key. Each operation takes effect at a random moment between its begin and
 * its end. All values differ. */
static hot make_hot(uint64_t seed, size_t count, size_t clients, unsigned cut_percent, unsigned get_percent) {
    hot h = {.ops = far_verify_alloc(count * sizeof *h.ops), .values = far_verify_alloc(count * sizeof *h.values)};
    far_random r;
    far_random_seed(&r, seed);
    hot_client *all = far_verify_alloc(clients * sizeof *all);
    int64_t *free_at = far_verify_alloc(clients * sizeof *free_at);
    far_bytes current = {0};
    for (size_t done = 0; done < count; done++) {
        size_t next = 0;
        for (size_t c = 0; c < clients; c++) {
            if (all[c].at == 0) { /* a new operation of this client */
                far_linear_op op = {.op = FAR_OP_GET, .client = (uint32_t)c};
                if (!far_random_chance(&r, get_percent, 100))
                    op.op = (far_op_kind)(FAR_OP_INSERT + far_random_below(&r, 4));
                op.start = free_at[c] + 1 + (int64_t)far_random_below(&r, 300);
                all[c] = (hot_client){op, op.start + (int64_t)far_random_below(&r, 1000)};
            }
            next = all[c].at < all[next].at ? c : next;
        }
        far_linear_op *op = &h.ops[done];
        *op = all[next].op;
        bool present = current.data != NULL, cut = far_random_chance(&r, cut_percent, 100);
        bool acts = !cut || far_random_chance(&r, 1, 2);
        op->end = free_at[next] = all[next].at + (int64_t)far_random_below(&r, 1000);
        all[next].at = 0;
        h.values[done] = (uint32_t)done;
        if (op->op == FAR_OP_GET) {
            op->has_value = present;
            op->value = current;
            op->result = present ? FAR_OK : FAR_ERR_NOT_FOUND;
        } else if (op->op == FAR_OP_DELETE) {
            op->result = present ? FAR_OK : FAR_ERR_NOT_FOUND;
            current = acts ? (far_bytes){0} : current;
        } else {
            op->has_value = true;
            op->value = (far_bytes){&h.values[done], sizeof h.values[done]};
            op->result = op->op == FAR_OP_INSERT && present    ? FAR_ERR_EXISTS
                         : op->op == FAR_OP_UPDATE && !present ? FAR_ERR_NOT_FOUND
                                                               : FAR_OK;
            current = op->result == FAR_OK && acts ? op->value : current;
        }
        if (cut)
            op->end = FAR_HISTORY_NEVER;
    }
    free(all);
    free(free_at);
    h.key = (far_linear_key){.name = {"hot", 3}, .ops = h.ops, .count = count};
    return h;
}


static void free_hot(hot *h) {
    free(h->ops);
    free(h->values);
}


static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}


static void check_hot_history(size_t clients, unsigned cut_percent, unsigned get_percent, uint64_t most_states) {
    hot h = make_hot(7, 100000, clients, cut_percent, get_percent);
    uint64_t states;
    double start = seconds();
    far_linear_verdict verdict = far_linear_check(&h.key, 0, &states);
    print_message("%zu clients, %u%% cut, %u%% gets: verdict %d, %llu states, %.2f s\n", clients, cut_percent,
                  get_percent, verdict, (unsigned long long)states, seconds() - start);
    assert_int_equal(verdict, FAR_LINEAR_OK);
    assert_true(states <= most_states);
    free_hot(&h);
}


/* If all values differ, long histories of many clients on one key need a number of states that stays far below the
 * budget. */
TEST(hundred_thousand_operations_on_a_hot_key_take_few_states) {
    check_hot_history(64, 5, 50, 5000000);
    check_hot_history(64, 5, 0, 5000000);
    check_hot_history(64, 0, 50, 5000000);
    check_hot_history(64, 0, 10, 5000000);
    check_hot_history(64, 30, 90, 5000000);
    check_hot_history(8, 5, 50, 5000000);
}


/* A get at the end of the history returns a value of which another get has proved long before that it was overwritten.
 */
TEST(violation_late_in_a_hot_history_is_found_and_made_small) {
    hot h = make_hot(9, 100000, 64, 5, 50);
    far_linear_op *old = NULL, *late = NULL;
    for (size_t i = 0; i < h.key.count; i++) {
        if (h.ops[i].op != FAR_OP_GET || !h.ops[i].has_value || h.ops[i].end == FAR_HISTORY_NEVER)
            continue;
        if (!old && i > 1000)
            old = &h.ops[i];
        if (i < 90000)
            late = &h.ops[i];
    }
    assert_non_null(old);
    late->value = old->value;
    uint64_t states;
    double start = seconds();
    assert_int_equal(far_linear_check(&h.key, 0, &states), FAR_LINEAR_VIOLATION);
    print_message("violation found: %llu states, %.2f s\n", (unsigned long long)states, seconds() - start);
    start = seconds();
    far_linear_shrink(&h.key, 0);
    print_message("made small: %zu operations, %.2f s\n", h.key.count, seconds() - start);
    far_linear_print(&h.key, stdout);
    assert_in_range(h.key.count, 2, 8);
    free_hot(&h);
}
