/* Helpers for tests of partitions that became empty and shrink (restructure_shrink.c). An actor executes a shrink step
 * by step, so that other actors can act between the steps. */
#ifndef TESTS_SHARD_SHRINK_RIG_H
#define TESTS_SHARD_SHRINK_RIG_H

#include "shard_rig.h"

/* Few slots, so that some keys are at levels 2 and 3. Housekeeping neither doubles nor shrinks partitions, so only the
 * actors that the test has chosen do so. */
#define SHRINK_OPTIONS "slots=2,l2_slots=1,load=95,afs=1,idle_sweep=off"
enum { KEYS = 24 };

typedef struct shrinker {
    stage_actor *actor;
    far_sim_world *world;
    unsigned steps;
    int trips;      /* round trips that each step may take */
    bool announces; /* stop after announcing the shrink */
    int result;
} shrinker;


static inline int shrink_step(far_task *t, void *arg) {
    shrinker *w = arg;
    far_index *index = w->actor->index;
    shard_partition *part = &shard_state_of(index)->part[0];
    int trips = w->trips, err = far_pin_take(t);
    if (err >= 0 && (err = shard_refresh_root(t, part)) >= 0)
        part->quiet = true, err = shard_shrink_step(t, index, part, &trips);
    far_pin_drop(t);
    w->result = err;
    return err < 0 ? err : 0;
}


static inline unsigned known_directory(const stage_actor *a) {
    return shard_directory_number(&shard_state_of(a->index)->part[0]);
}


/* Takes the given number of steps, but stops when the directory has been replaced. */
static inline void run_shrink(void *arg) {
    shrinker *w = arg;
    unsigned before = known_directory(w->actor);
    for (unsigned i = 0; i < w->steps && known_directory(w->actor) == before; i++) {
        far_session_call(w->actor->session, FAR_STATS_OTHER, false, shrink_step, w);
        if (known_directory(w->actor) != before ||
            (w->announces && shard_root_phase(root_of(w->actor)) == SHARD_SHRINK))
            break;
        far_sim_sleep(w->world, 300000); /* lets epochs pass */
    }
    w->actor->ended = true;
}


static inline void start_shrink(shrinker *w) {
    w->actor->ended = false;
    w->actor->client = far_sim_start(w->actor->pool->fabric, "shrinker", run_shrink, w);
}


/* Returns the number of the partition's directory, from the root word in far memory. */
static inline unsigned current_directory(stage *s) {
    return shard_root_directory(far_root(s));
}


static inline unsigned current_phase(stage *s) {
    return shard_root_phase(far_root(s));
}


/* Makes the actor take steps until the partition has this phase and directory number. */
static inline void shrink_until(stage *s, stage_actor *a, unsigned wanted_phase, unsigned wanted_directory) {
    shrinker w = {.actor = a, .world = s->world, .steps = 1, .trips = 100};
    for (unsigned i = 0; i < 100 && (current_phase(s) != wanted_phase || current_directory(s) != wanted_directory); i++)
        run_shrink(&w);
    assert_int_equal(current_phase(s), wanted_phase);
    assert_int_equal(current_directory(s), wanted_directory);
}


static inline int work_step(far_task *t, void *arg) {
    far_index *index = arg;
    shard_partition *part = &shard_state_of(index)->part[0];
    int err = far_pin_take(t);
    if (err >= 0 && (err = shard_refresh_root(t, part)) >= 0)
        err = shard_resize_step(t, index, part, &(int){20});
    far_pin_drop(t);
    return err;
}


static inline void delete_all(stage *s, uint64_t keys) {
    for (uint64_t n = 1; n <= keys; n++)
        assert_int_equal(delete_key(&s->a, number(n)), 0);
}


/* Inserts the keys 1 to `keys`. Afterwards the partition is stable and at a version above 0. */
static inline void fill_partition(stage *s, uint64_t keys) {
    for (uint64_t n = 1; n <= keys; n++) {
        put(&s->a, number(n), n);
        far_sim_sleep(s->world, 300000);
    }
    for (unsigned i = 0; i < 400 && current_phase(s) != SHARD_STABLE; i++) {
        assert_true(far_session_call(s->a.session, FAR_STATS_OTHER, false, work_step, s->a.index) >= 0);
        far_sim_sleep(s->world, 300000);
    }
    assert_int_equal(current_phase(s), SHARD_STABLE);
    assert_true(shard_root_d(far_root(s)) > 0);
}


static inline void fill_and_empty(stage *s, uint64_t keys) {
    fill_partition(s, keys);
    delete_all(s, keys);
    far_sim_sleep(s->world, 3000000);
}


static inline void open_empty(stage *s, const variant *variant) {
    open_stage(s, variant, 0, SHRINK_OPTIONS);
    fill_and_empty(s, KEYS);
}


/* Opens a stage with a table that is stable at version 1 and has keys at all levels. A stopped get of C keeps the table
 * from doubling again while the keys are inserted. */
static inline void open_full(stage *s, const variant *variant) {
    open_stage(s, variant, 0, SHRINK_OPTIONS);
    put(&s->c, number(1), 1);
    start(&s->c, FAR_OP_GET, number(1), 0);
    stage_stop_at(&s->c, at("shard:main_bucket_read"));
    fill_partition(s, KEYS);
    stage_finish(&s->c);
    assert_int_equal(shard_root_d(far_root(s)), 1);
}


/* Opens a stage with an empty partition that C is about to shrink: C stops immediately before the CAS that replaces the
 * directory. A and B have read the root word of the shrink, which all clients must do before the shrink ends. */
static inline void open_shrinking(stage *s, const variant *variant) {
    open_empty(s, variant);
    shrink_until(s, &s->c, SHARD_SHRINK, 0);
    static shrinker w;
    w = (shrinker){.actor = &s->c, .world = s->world, .steps = 20, .trips = 100};
    start_shrink(&w);
    stage_stop_at(&s->c, at("shard:switch_root"));
    assert_int_equal(get(&s->a, number(1)), 0);
    assert_int_equal(get(&s->b, number(1)), 0);
    assert_int_equal(shard_root_phase(root_of(&s->a)), SHARD_SHRINK);
    assert_int_equal(shard_root_phase(root_of(&s->b)), SHARD_SHRINK);
}


static inline int refresh_root(far_task *t, void *arg) {
    far_index *index = arg;
    int err = far_pin_take(t);
    if (err >= 0)
        err = shard_refresh_root(t, &shard_state_of(index)->part[0]);
    far_pin_drop(t);
    return err;
}


static inline void double_it(void *arg) {
    stage_actor *a = arg;
    a->result = far_session_call(a->session, FAR_STATS_OTHER, false, grow_once, a->index);
    a->ended = true;
}

#endif
