/* The crash explorer: deaths at every verb and every unit of the toy map's writes leave nothing wrong, and a lock that
 * nobody takes over is found. */
#include "verify/explore.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define KEYS 6

typedef struct story {
    far_op_kind kind;
    char before[200], after[200]; /* the value of key 0 */
} story;


static int put_key(far_session *s, far_index *index, char key, const char *value) {
    return far_put(s, index, &key, 1, value, 200);
}


static int prepare(far_session *s, far_index *index, void *ctx) {
    story *st = ctx;
    memset(st->before, 'b', sizeof(st->before));
    memset(st->after, 'a', sizeof(st->after));
    for (char key = st->kind == FAR_OP_INSERT; key < KEYS; key++)
        if (put_key(s, index, key, st->before) < 0)
            return -1;
    return 0;
}


static int victim(far_session *s, far_index *index, void *ctx) {
    story *st = ctx;
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


/* Key 0 is as before or as after, the others are as they were, and everything can still be written. */
static int survive(far_session *s, far_index *index, void *ctx) {
    story *st = ctx;
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


static far_explore_result explore(far_op_kind kind, const char *options, const char *sim, bool sweep, FILE *out) {
    static story st;
    st.kind = kind;
    far_explore e = {.kind = "toy",
                     .options = options,
                     .sim = sim,
                     .prepare = prepare,
                     .victim = victim,
                     .survive = survive,
                     .every_unit = true,
                     .sweep = sweep,
                     .ctx = &st,
                     .out = out};
    far_explore_result result;
    assert_int_equal(far_explore_run(&e, &result), 0);
    return result;
}


static void every_death_of_a_write_is_survived(void **state) {
    (void)state;
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


static void a_lock_that_outlives_its_holder_is_found(void **state) {
    (void)state;
    FILE *nowhere = fopen("/dev/null", "w");
    far_explore_result result =
        explore(FAR_OP_UPDATE, "slots=2,locks=on,broken=forgotten_lock", "limit=50ms", false, nowhere);
    fclose(nowhere);
    assert_true(result.problems > 0);
}


static void a_value_that_is_cut_in_two_is_found(void **state) {
    (void)state;
    FILE *nowhere = fopen("/dev/null", "w");
    far_explore_result result = explore(FAR_OP_UPDATE, "slots=2,broken=torn_read", "atomic_bytes=64", false, nowhere);
    fclose(nowhere);
    assert_true(result.problems > 0);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_death_of_a_write_is_survived),
        cmocka_unit_test(a_lock_that_outlives_its_holder_is_found),
        cmocka_unit_test(a_value_that_is_cut_in_two_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
