/* For stories of a partition of shard that became empty and shrinks (shrink.c): who shrinks it does so step by step. */
#ifndef TESTS_SHARD_SHRINK_RIG_H
#define TESTS_SHARD_SHRINK_RIG_H

#include "shard_rig.h"

/* Few slots, so that some keys lie at levels 2 and 3. Nobody works on a doubling, or shrinks, but who is told to. */
#define TOLD "slots=2,l2_slots=1,load=95,afs=1,idle_sweep=off"
enum { KEYS = 24 };

typedef struct shrinker {
    stage_actor *actor;
    far_sim_world *world;
    unsigned steps;
    int trips;      /* of each step */
    bool announces; /* and no more */
    int result;
} shrinker;


static inline int shrink_step(far_task *t, void *arg) {
    shrinker *w = arg;
    far_index *index = w->actor->index;
    shard_partition *part = &shard_state_of(index)->part[0];
    int trips = w->trips, err = far_pin_take(t);
    if (err >= 0 && (err = shard_refresh(t, part)) >= 0)
        part->quiet = true, err = shard_shrink(t, index, part, &trips);
    far_pin_drop(t);
    w->result = err;
    return err < 0 ? err : 0;
}


static inline unsigned known_body(const stage_actor *a) {
    return shard_body_of(&shard_state_of(a->index)->part[0]);
}


/* So many steps, or until there is another body. */
static inline void shrink(void *arg) {
    shrinker *w = arg;
    unsigned before = known_body(w->actor);
    for (unsigned i = 0; i < w->steps && known_body(w->actor) == before; i++) {
        far_session_call(w->actor->session, FAR_STATS_OTHER, false, shrink_step, w);
        if (known_body(w->actor) != before || (w->announces && shard_root_phase(root_of(w->actor)) == SHARD_SHRINK))
            break;
        far_sim_sleep(w->world, 300000); /* epochs pass */
    }
    w->actor->ended = true;
}


static inline void start_shrink(shrinker *w) {
    w->actor->ended = false;
    w->actor->client = far_sim_start(w->actor->pool->fabric, "shrinker", shrink, w);
}


static inline unsigned body(stage *s) {
    return shard_root_body(true_root(s));
}


static inline unsigned phase(stage *s) {
    return shard_root_phase(true_root(s));
}


static inline void shrink_until(stage *s, stage_actor *a, unsigned wanted_phase, unsigned wanted_body) {
    shrinker w = {.actor = a, .world = s->world, .steps = 1, .trips = 100};
    for (unsigned i = 0; i < 100 && (phase(s) != wanted_phase || body(s) != wanted_body); i++)
        shrink(&w);
    assert_int_equal(phase(s), wanted_phase);
    assert_int_equal(body(s), wanted_body);
}


static inline int work_step(far_task *t, void *arg) {
    far_index *index = arg;
    shard_partition *part = &shard_state_of(index)->part[0];
    int err = far_pin_take(t);
    if (err >= 0 && (err = shard_refresh(t, part)) >= 0)
        err = shard_work(t, index, part, &(int){20});
    far_pin_drop(t);
    return err;
}


static inline void delete_all(stage *s, uint64_t keys) {
    for (uint64_t n = 1; n <= keys; n++)
        assert_int_equal(delete_key(&s->a, number(n)), 0);
}


/* Keys 1..keys; the partition is stable, at a version above 0. */
static inline void fill(stage *s, uint64_t keys) {
    for (uint64_t n = 1; n <= keys; n++) {
        put(&s->a, number(n), n);
        far_sim_sleep(s->world, 300000);
    }
    for (unsigned i = 0; i < 400 && phase(s) != SHARD_STABLE; i++) {
        assert_true(far_session_call(s->a.session, FAR_STATS_OTHER, false, work_step, s->a.index) >= 0);
        far_sim_sleep(s->world, 300000);
    }
    assert_int_equal(phase(s), SHARD_STABLE);
    assert_true(shard_root_d(true_root(s)) > 0);
}


static inline void fill_and_empty(stage *s, uint64_t keys) {
    fill(s, keys);
    delete_all(s, keys);
    far_sim_sleep(s->world, 3000000);
}


static inline void open_empty(stage *s, const told *told) {
    open_stage(s, told, 0, TOLD);
    fill_and_empty(s, KEYS);
}


/* Stable at version 1, with keys on all levels: a client that stands still keeps it from doubling again. */
static inline void open_full(stage *s, const told *told) {
    open_stage(s, told, 0, TOLD);
    put(&s->c, number(1), 1);
    start(&s->c, FAR_OP_GET, number(1), 0);
    stage_stop_at(&s->c, at("shard:home_read"));
    fill(s, KEYS);
    stage_finish(&s->c);
    assert_int_equal(shard_root_d(true_root(s)), 1);
}


/* All of them know of the shrink, as they must before it ends. */
static inline void open_shrinking(stage *s, const told *told) {
    open_empty(s, told);
    shrink_until(s, &s->c, SHARD_SHRINK, 0);
    static shrinker w;
    w = (shrinker){.actor = &s->c, .world = s->world, .steps = 20, .trips = 100};
    start_shrink(&w);
    stage_stop_at(&s->c, at("shard:swing"));
    assert_int_equal(get(&s->a, number(1)), 0);
    assert_int_equal(get(&s->b, number(1)), 0);
    assert_int_equal(shard_root_phase(root_of(&s->a)), SHARD_SHRINK);
    assert_int_equal(shard_root_phase(root_of(&s->b)), SHARD_SHRINK);
}


static inline int refresh(far_task *t, void *arg) {
    far_index *index = arg;
    int err = far_pin_take(t);
    if (err >= 0)
        err = shard_refresh(t, &shard_state_of(index)->part[0]);
    far_pin_drop(t);
    return err;
}


static inline void double_it(void *arg) {
    stage_actor *a = arg;
    a->result = far_session_call(a->session, FAR_STATS_OTHER, false, grow_once, a->index);
    a->ended = true;
}

#endif
