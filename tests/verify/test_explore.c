/* The crash explorer: the toy map survives kills at every verb and every tearing granule of its WRITEs, and deliberate
 * faults are found. */
#include "test.h"
#include "verify/explore.h"

#include <string.h>

#define KEYS 6

typedef struct scenario {
    far_op_kind kind;
    char before[200], after[200]; /* value of key 0 */
} scenario;


static int put_key(far_session *s, far_index *index, char key, const char *value) {
    return far_put(s, index, &key, 1, value, 200);
}


static int prepare(far_session *s, far_index *index, void *ctx) {
    scenario *st = ctx;
    memset(st->before, 'b', sizeof(st->before));
    memset(st->after, 'a', sizeof(st->after));
    for (char key = st->kind == FAR_OP_INSERT; key < KEYS; key++)
        if (put_key(s, index, key, st->before) < 0)
            return -1;
    return 0;
}


static int victim(far_session *s, far_index *index, void *ctx) {
    scenario *st = ctx;
    char key = 0;
    switch (st->kind) {
    case FAR_OP_INSERT:
        return far_insert(s, index, &key, 1, st->after, sizeof(st->after));
    case FAR_OP_DELETE:
        return far_delete(s, index, &key, 1);
    default:
        return far_update(s, index, &key, 1, st->after, sizeof(st->after));
    }
}


/* Key 0 has its old or its new value, the other keys are unchanged, and all keys can be written. */
static int survive(far_session *s, far_index *index, void *ctx) {
    scenario *st = ctx;
    char value[200];
    size_t length;
    for (char key = 0; key < KEYS; key++) {
        int result = far_get(s, index, &key, 1, value, sizeof(value), &length);
        if (result < 0 && result != FAR_ERR_NOT_FOUND)
            return -1;
        bool may_be_absent = key == 0 && st->kind != FAR_OP_UPDATE;
        if (result == FAR_ERR_NOT_FOUND ? !may_be_absent : length != sizeof(value))
            return -1;
        bool is_before = result == 0 && memcmp(value, st->before, sizeof(value)) == 0;
        bool is_after = result == 0 && memcmp(value, st->after, sizeof(value)) == 0;
        if (result == 0 && !(is_before && !(key == 0 && st->kind == FAR_OP_INSERT)) &&
            !(is_after && key == 0 && st->kind != FAR_OP_DELETE))
            return -1;
        if (put_key(s, index, key, st->after) < 0)
            return -1;
    }
    return 0;
}


static far_explore_result explore(far_op_kind kind, const char *options, const char *sim, bool collect, FILE *out) {
    static scenario st;
    st.kind = kind;
    far_explore e = {.kind = "toy",
                     .options = options,
                     .sim = sim,
                     .prepare = prepare,
                     .victim = victim,
                     .survive = survive,
                     .every_unit = true,
                     .collect = collect,
                     .ctx = &st,
                     .out = out};
    far_explore_result result;
    assert_int_equal(far_explore_run(&e, &result), 0);
    return result;
}


/* A client is killed at every verb, and after every granule, of an insert, update and delete. A survivor then finds
 * each key complete, and no memory is leaked. */
TEST(a_writer_may_fail_at_every_verb) {
    static const far_op_kind kinds[] = {FAR_OP_INSERT, FAR_OP_UPDATE, FAR_OP_DELETE};
    static const char *const options[] = {"slots=2", "slots=2,locks=on"}, *const sims[] = {"atomic_bytes=64",
                                                                                           "atomic_bytes=8"};
    for (size_t i = 0; i < 3; i++)
        for (size_t j = 0; j < 2; j++)
            for (size_t k = 0; k < 2; k++) {
                far_explore_result result = explore(kinds[i], options[j], sims[k], true, stderr);
                assert_int_equal(result.problems, 0);
                assert_true(result.verbs >= 3);
                assert_true(result.cuts > result.verbs);
            }
}


/* The explorer finds a toy map in which the lock of a failed client is never taken over. */
TEST(a_lock_that_outlives_its_holder_is_found) {
    FILE *nowhere = fopen("/dev/null", "w");
    far_explore_result result =
        explore(FAR_OP_UPDATE, "slots=2,locks=on,broken=forgotten_lock", "limit=50ms", false, nowhere);
    fclose(nowhere);
    assert_true(result.problems > 0);
}


/* The explorer finds a toy map that overwrites values in place, so that a client failure leaves a value that is half
 * old and half new. */
TEST(a_torn_value_is_found) {
    FILE *nowhere = fopen("/dev/null", "w");
    far_explore_result result = explore(FAR_OP_UPDATE, "slots=2,broken=torn_read", "atomic_bytes=64", false, nowhere);
    fclose(nowhere);
    assert_true(result.problems > 0);
}
