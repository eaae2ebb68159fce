/* Helpers for the races of DART in the simulator. A race has three actors, which comments call A, B and C (s.a, s.b and
 * s.c in the code). Each is a client with its own pool handle. An actor's operation is started, stopped at a named
 * point of the code (far_point), and resumed by the test, so that the test decides about the order of all steps. */
#ifndef TESTS_INDEX_DART_RIG_H
#define TESTS_INDEX_DART_RIG_H

#include "../support/stage.h"
#include "index/index.h"
#include "test.h"

#include <stdio.h>
#include <string.h>

/* Seven keys with a common prefix fill a node of type N8. */
#define SEVEN_KEYS(p) p "a", p "b", p "c", p "d", p "e", p "f", p "g"
#define SEVEN_TEXT(p) p "a " p "b " p "c " p "d " p "e " p "f " p "g"

typedef stage_actor actor;


static inline void set_up(stage *s, const char *sim, const char *options) {
    stage_open(s, "dart", options, sim);
}


/* Asserts that the index is sound: a check finds no problem, no byte has leaked, and no client has touched free memory.
 * `a` must be a client that was not killed. */
static inline void expect_sound(stage *s, actor *a) {
    bool all_live = true;
    for (unsigned i = 0; i < STAGE_ACTORS; i++)
        all_live &= !far_sim_killed(stage_actor_at(s, i)->pool->fabric);
    if (all_live) /* After a client was killed, bytes may be leaked until a collection frees them. */
        world_assert_nothing_leaked(a->session);
    stage_check_by(s, a);
}


static inline void tear_down(stage *s) {
    stage_tear_down(s);
}


/* Sets the actor's next operation. For a scan, `value` is the end of the range (exclusive). */
static inline void prepare(actor *a, far_op_kind kind, const char *key, const char *value) {
    stage_set(a, kind, key, value);
    a->value[a->value_len] = '\0';
    a->to = kind == FAR_OP_SCAN ? a->value : NULL;
}


/* Main function of an actor: runs its operation. After a delete it makes further calls, in which its background work
 * runs. */
static inline void run_actor(void *arg) {
    actor *a = arg;
    char byte;
    a->result = stage_run(a);
    for (unsigned i = 0; a->kind == FAR_OP_DELETE && i < 24; i++)
        far_get(a->session, a->index, "zzzz", 4, &byte, 1, NULL);
    a->ended = true;
}


static inline void start(actor *a, const char *name, far_op_kind kind, const char *key, const char *value) {
    prepare(a, kind, key, value);
    stage_start_main(a, name, run_actor);
}


static inline void resume_until(actor *a, const char *point, unsigned nth) {
    stage_stop_at(a, (far_sim_match){.point = point, .nth = nth});
}


/* Starts an operation and runs it until it reaches the named point for the nth time. */
static inline void start_until(actor *a, const char *name, far_op_kind kind, const char *key, const char *value,
                               const char *point, unsigned nth) {
    start(a, name, kind, key, value);
    resume_until(a, point, nth);
}


/* Runs an actor's operation to its end and asserts its result. */
static inline void expect_result(actor *a, int expected) {
    stage_finish(a);
    assert_int_equal(a->result, expected);
}


/* Runs an operation to its end and returns its result. No other actor takes a step meanwhile. */
static inline int run_op(actor *a, far_op_kind kind, const char *key, const char *value) {
    prepare(a, kind, key, value);
    return stage_run(a);
}


/* Inserts keys; the value of each key is the key itself. */
static inline void insert_keys(actor *a, const char *const keys[], size_t count) {
    for (size_t i = 0; i < count; i++)
        assert_int_equal(run_op(a, FAR_OP_INSERT, keys[i], keys[i]), 0);
}

#define INSERT_KEYS(actor, ...)                                                                                        \
    insert_keys(actor, (const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))


/* Asserts that a get returns this value; NULL: that the key is absent. */
static inline void expect_get(actor *a, const char *key, const char *value) {
    assert_int_equal(run_op(a, FAR_OP_GET, key, ""), value ? 0 : FAR_ERR_NOT_FOUND);
    if (!value)
        return;
    assert_int_equal(a->value_len, strlen(value));
    assert_memory_equal(a->value, value, a->value_len);
}


/* Asserts that the actor's last scan returned exactly these keys. The keys are separated by blanks. */
static inline void expect_scanned(const actor *a, const char *keys) {
    char text[STAGE_VALUE_MAX];
    assert_string_equal(stage_scanned(a, text), keys);
}


/* Asserts that the index contains exactly these keys, in order. The keys are separated by blanks. */
static inline void expect_keys(actor *a, const char *keys) {
    stage_set(a, FAR_OP_SCAN, NULL, NULL);
    a->to = NULL;
    assert_true(stage_run(a) >= 0);
    expect_scanned(a, keys);
}


/* Every race runs with and without masked CAS, and with READs that are atomic in units of 64 and of 8 bytes. */
static const char *const fabrics[] = {"masked_cas=on", "masked_cas=off", "masked_cas=on,atomic_bytes=8",
                                      "masked_cas=off,atomic_bytes=8"};

/* Defines a race. The race runs on each of the fabrics, without and with the skip table. */
#define RACE(name)                                                                                                     \
    static void name##_on(const char *sim, const char *options);                                                       \
    TEST(name) {                                                                                                       \
        for (unsigned i_ = 0; i_ < 2 * sizeof(fabrics) / sizeof(fabrics[0]); i_++)                                     \
            name##_on(fabrics[i_ / 2], i_ % 2 ? "est=1" : "est=0");                                                    \
    }                                                                                                                  \
    static void name##_on(const char *sim, const char *options)

#endif
