/* For the named interleavings of DART, on the stage that all kinds share: operations that are started, stopped at named
 * points and resumed by hand, and what must be found afterwards. */
#ifndef TESTS_INDEX_DART_RIG_H
#define TESTS_INDEX_DART_RIG_H

#include "../support/stage.h"
#include "index/index.h"

#include <stdio.h>
#include <string.h>

#define SEVEN(p)      p "a", p "b", p "c", p "d", p "e", p "f", p "g"
#define SEVEN_HELD(p) p "a " p "b " p "c " p "d " p "e " p "f " p "g"

typedef stage_actor actor;


static inline void set_up(stage *s, const char *sim, const char *options) {
    stage_open(s, "dart", options, sim);
}


/* By a client that was not killed: the tree is sound, no byte is lost, nobody touched free memory. */
static inline void is_sound(stage *s, actor *a) {
    bool all_live = true;
    for (unsigned i = 0; i < STAGE_ACTORS; i++)
        all_live &= !far_sim_killed(stage_actor_at(s, i)->pool->fabric);
    if (all_live) /* then nothing may be lost at all; otherwise the sweep finds it */
        world_assert_nothing_leaked(a->session);
    stage_check_by(s, a);
}


static inline void tear_down(stage *s) {
    stage_tear_down(s);
}


/* A scan ends before `value`. */
static inline void prepare(actor *a, far_op_kind kind, const char *key, const char *value) {
    stage_set(a, kind, key, value);
    a->value[a->value_len] = '\0';
    a->to = kind == FAR_OP_SCAN ? a->value : NULL;
}


/* After a delete the client stays inside calls for a while, so that its background work runs in it. */
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


static inline void resume_to(actor *a, const char *point, unsigned nth) {
    stage_stop_at(a, (far_sim_match){.point = point, .nth = nth});
}


/* Starts it and lets it run up to the nth time at the point. */
static inline void start_to(actor *a, const char *name, far_op_kind kind, const char *key, const char *value,
                            const char *point, unsigned nth) {
    start(a, name, kind, key, value);
    resume_to(a, point, nth);
}


static inline void finish(actor *a, int expected) {
    stage_finish(a);
    assert_int_equal(a->result, expected);
}


/* From outside, at once. */
static inline int does(actor *a, far_op_kind kind, const char *key, const char *value) {
    prepare(a, kind, key, value);
    return stage_run(a);
}


static inline void load(actor *a, const char *const keys[], size_t count) {
    for (size_t i = 0; i < count; i++)
        assert_int_equal(does(a, FAR_OP_INSERT, keys[i], keys[i]), 0);
}

#define LOAD(actor, ...)                                                                                               \
    load(actor, (const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))


static inline void reads(actor *a, const char *key, const char *value) {
    assert_int_equal(does(a, FAR_OP_GET, key, ""), value ? 0 : FAR_ERR_NOT_FOUND);
    if (!value)
        return;
    assert_int_equal(a->value_len, strlen(value));
    assert_memory_equal(a->value, value, a->value_len);
}


/* The keys that its last scan gave are these, with a space between. */
static inline void gave(const actor *a, const char *keys) {
    char text[STAGE_VALUE_MAX];
    assert_string_equal(stage_scanned(a, text), keys);
}


/* All keys there are, in order, with a space between. */
static inline void holds(actor *a, const char *keys) {
    stage_set(a, FAR_OP_SCAN, NULL, NULL);
    a->to = NULL;
    assert_true(stage_run(a) >= 0);
    gave(a, keys);
}


/* Every test runs with and without masked CAS, with units of 64 and 8 bytes. */
static const char *const fabrics[] = {"masked_cas=on", "masked_cas=off", "masked_cas=on,atomic_bytes=8",
                                      "masked_cas=off,atomic_bytes=8"};

#define RACE(name)                                                                                                     \
    static void name##_on(const char *sim, const char *options);                                                       \
    static void name(void **state) {                                                                                   \
        (void)state;                                                                                                   \
        for (unsigned i_ = 0; i_ < 2 * sizeof(fabrics) / sizeof(fabrics[0]); i_++)                                     \
            name##_on(fabrics[i_ / 2], i_ % 2 ? "est=1" : "est=0");                                                    \
    }                                                                                                                  \
    static void name##_on(const char *sim, const char *options)

#endif
