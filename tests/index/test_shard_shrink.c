/* A partition that became empty goes back to its first size (shrink.c): what others do meanwhile, and what is left of
 * those who die on the way. Both layouts. What was taken out of the code to see a story fail is told with it. */
#include "client/op.h"
#include "shard_shrink_rig.h"

#include "pool/sweep.h"


static void it_shrinks_and_grows_again_told(const told *told) {
    stage s;
    open_empty(&s, told);
    for (unsigned n = 1; n <= 3; n++) {
        shrink_until(&s, &s.b, SHARD_STABLE, n);
        assert_int_equal(shard_root_d(true_root(&s)), 0);
        assert_int_equal(COUNTED(&s, shrunk), n);
        fill_and_empty(&s, KEYS);
    }
    stage_close(&s);
}
TOLD_OF_ALL(it_shrinks_and_grows_again);


/* An insert comes between the proof and the CAS that replaces the body. (An insert that does not call it off.) */
static void insert_before_the_swing_told(const told *told) {
    stage s;
    open_shrinking(&s, told);
    assert_int_equal(insert(&s.b, number(5), 7), 0);
    assert_int_equal(COUNTED(&s, called_off), 1);
    stage_finish(&s.c);
    assert_int_equal(body(&s), 0);
    assert_there_once(&s, number(5), 7);
    stage_close(&s);
}
TOLD_OF_ALL(insert_before_the_swing);


/* Others do not know that the body was replaced, and what is there since. (A miss that is believed.) */
static void old_root_after_the_swing_told(const told *told) {
    stage s;
    static const far_op_kind kinds[] = {FAR_OP_GET, FAR_OP_UPDATE, FAR_OP_DELETE, FAR_OP_INSERT, FAR_OP_PUT};
    for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        open_shrinking(&s, told);
        stage_finish(&s.c);
        assert_int_equal(body(&s), 1);
        put(&s.a, number(5), 7);
        assert_int_equal(shard_root_body(root_of(&s.b)), 0);
        start(&s.b, kinds[i], number(5), 9);
        stage_finish(&s.b);
        assert_int_equal(s.b.result, kinds[i] == FAR_OP_INSERT ? FAR_ERR_EXISTS : 0);
        if (kinds[i] == FAR_OP_GET)
            assert_int_equal(given(&s.b), 7);
        bool changed = kinds[i] == FAR_OP_UPDATE || kinds[i] == FAR_OP_PUT;
        assert_int_equal(get(&s.a, number(5)), kinds[i] == FAR_OP_DELETE ? 0 : changed ? 9 : 7);
        stage_close(&s);
    }
}
TOLD_OF_ALL(old_root_after_the_swing);


static void many_gets_with_the_old_root_told(const told *told) {
    enum { GETS = 4 };
    stage s;
    far_op ops[GETS], *list[GETS], *done[GETS];
    uint64_t values[GETS];
    key keys[GETS];
    open_shrinking(&s, told);
    stage_finish(&s.c);
    for (unsigned i = 0; i < GETS; i++) {
        keys[i] = number(i + 1);
        put(&s.a, keys[i], i + 1);
    }
    assert_int_equal(shard_root_body(root_of(&s.b)), 0);
    for (unsigned i = 0; i < GETS; i++) {
        ops[i] =
            (far_op){.kind = FAR_OP_GET, .index = s.b.index, .key = keys[i].bytes, .key_len = 8, .value = &values[i]};
        ops[i].capacity = 8;
        list[i] = &ops[i];
    }
    assert_int_equal(far_submit(s.b.session, list, GETS), GETS);
    assert_int_equal(far_reap(s.b.session, done, GETS, GETS), GETS);
    for (unsigned i = 0; i < GETS; i++) {
        assert_int_equal(ops[i].result, 0);
        assert_int_equal(values[i], i + 1);
    }
    stage_close(&s);
}
TOLD_OF_ALL(many_gets_with_the_old_root);


/* An insert that does not know of the shrink is under way: nothing is proved before it has ended. (No grace.) */
static void insert_from_before_the_shrink_told(const told *told) {
    stage s;
    open_empty(&s, told);
    shrinker w = {.actor = &s.c, .world = s.world, .steps = 1, .trips = 100};
    start(&s.b, FAR_OP_INSERT, number(5), 7);
    stage_stop_at(&s.b, at(told->inlined ? "shard:insert" : "shard:home_read"));
    for (unsigned i = 0; i < 10; i++)
        shrink(&w);
    assert_int_equal(phase(&s), SHARD_SHRINK);
    assert_int_equal(body(&s), 0);
    stage_finish(&s.b);
    assert_int_equal(s.b.result, 0);
    for (unsigned i = 0; i < 10; i++)
        shrink(&w);
    assert_int_equal(body(&s), 0);
    assert_there_once(&s, number(5), 7);
    stage_close(&s);
}
TOLD_OF_ALL(insert_from_before_the_shrink);


/* Part of the proof was made under a shrink that was called off. The next one is announced by somebody who has met no
 * key, just before one came: what was proved before counts no more. (A proof that goes on where it was.) */
static void proof_of_a_shrink_that_was_called_off_told(const told *told) {
    stage s;
    open_empty(&s, told);
    shrinker w = {.actor = &s.c, .world = s.world, .steps = 1, .trips = 1},
             next = {.actor = &s.b, .world = s.world, .steps = 40, .announces = true};
    shrink_until(&s, &s.c, SHARD_SHRINK, 0);
    shard_partition *part = &shard_state_of(s.c.index)->part[0];
    for (unsigned i = 0; i < 100 && part->empty_buckets == 0; i++)
        shrink(&w);
    assert_int_equal(part->empty_buckets, 1ull << shard_root_d(true_root(&s)));
    put(&s.c, number(5), 7); /* a would double: it remembers that it had to go to level 3 */
    assert_int_equal(delete_key(&s.c, number(5)), 0);
    start_shrink(&next);
    stage_stop_at(&s.b, at("shard:shrink"));
    put(&s.c, number(5), 8);
    stage_finish(&s.b);
    assert_int_equal(phase(&s), SHARD_SHRINK);
    w.trips = 100;
    for (unsigned i = 0; i < 100 && phase(&s) == SHARD_SHRINK; i++)
        shrink(&w);
    assert_int_equal(phase(&s), SHARD_STABLE);
    assert_int_equal(body(&s), 0);
    assert_there_once(&s, number(5), 8);
    stage_close(&s);
}
TOLD_OF_ALL(proof_of_a_shrink_that_was_called_off);


/* A shrink is called off at the epoch at which it was stamped: what it is then comes later all the same, and everybody learns it.
 * (A stamp that is not later than both.) */
static void called_off_at_the_epoch_of_its_stamp_told(const told *told) {
    stage s;
    open_empty(&s, told);
    shrinker w = {.actor = &s.c, .world = s.world, .steps = 40, .trips = 100, .announces = true};
    start(&s.b, FAR_OP_GET, number(1), 0);
    stage_stop_at(&s.b, at("shard:home_read")); /* its pin holds up the epoch */
    for (unsigned i = 0; i < 10; i++) {
        far_epoch_request(s.a.pool);
        far_sim_sleep(s.world, 300000);
    }
    shrink(&w);
    uint64_t before = true_root(&s);
    assert_int_equal(shard_root_phase(before), SHARD_SHRINK);
    assert_true(shard_root_stamped(before));
    assert_true(far_session_call(s.a.session, FAR_STATS_OTHER, false, refresh, s.a.index) >= 0);
    assert_int_equal(insert(&s.a, number(5), 7), 0);
    assert_int_equal(shard_root_stamp(before), world_word(s.world, FAR_SUPER_EPOCH) + FAR_EPOCH_FIRST);
    assert_int_equal(phase(&s), SHARD_STABLE);
    assert_true(shard_root_order(true_root(&s)) > shard_root_order(before));
    assert_int_equal(root_of(&s.a), true_root(&s));
    assert_true(far_session_call(s.c.session, FAR_STATS_OTHER, false, refresh, s.c.index) >= 0);
    assert_int_equal(root_of(&s.c), true_root(&s));
    stage_finish(&s.b);
    assert_there_once(&s, number(5), 7);
    stage_close(&s);
}
TOLD_OF_ALL(called_off_at_the_epoch_of_its_stamp);


/* All is there for a doubling, which everybody would know of in time. Before it begins a shrink comes and goes: nobody
 * need know of that yet. (No second look whether it may begin.) */
static void doubling_after_a_shrink_that_was_called_off_told(const told *told) {
    stage s;
    open_empty(&s, told);
    far_session *aside;
    assert_int_equal(far_session_open(s.b.pool, &aside), 0);
    assert_int_equal(get(&s.b, number(1)), 0);
    s.b.ended = false;
    s.b.client = far_sim_start(s.b.pool->fabric, "doubles", double_it, &s.b);
    stage_stop_at(&s.b, at("shard:grow"));
    unsigned d = shard_root_d(true_root(&s));
    shrink_until(&s, &s.c, SHARD_SHRINK, 0);
    put(&s.c, number(5), 7);
    assert_int_equal(COUNTED(&s, called_off), 1);
    assert_true(far_session_call(aside, FAR_STATS_OTHER, false, refresh, s.b.index) >= 0);
    stage_finish(&s.b);
    assert_int_equal(s.b.result, 0);
    assert_int_equal(shard_root_d(true_root(&s)), d);
    far_session_close(aside);
    double_by(&s, &s.b);
    assert_there_once(&s, number(5), 7);
    stage_close(&s);
}
TOLD_OF_ALL(doubling_after_a_shrink_that_was_called_off);


/* Two do the same: one replaces the body, and the other neither replaces it again nor retires anything. (A list that is
 * retired without the CAS.) */
static void two_who_shrink_told(const told *told) {
    static const char *const points[] = {"shard:prepared", "shard:swing", "shard:stamp"};
    for (unsigned i = 0; i < sizeof(points) / sizeof(points[0]); i++) {
        stage s;
        open_empty(&s, told);
        shrinker w = {.actor = &s.c, .world = s.world, .steps = 20, .trips = 100};
        start_shrink(&w);
        stage_stop_at(&s.c, at(points[i]));
        shrinker other = {.actor = &s.b, .world = s.world, .steps = 1, .trips = 100};
        for (unsigned n = 0; n < 60 && body(&s) == 0; n++)
            shrink(&other);
        assert_int_equal(body(&s), i < 2);
        if (i < 2)
            put(&s.b, number(5), 7);
        stage_finish(&s.c);
        assert_int_equal(body(&s), 1);
        assert_int_equal(COUNTED(&s, shrunk), 1);
        assert_int_equal(get(&s.a, number(5)), i < 2 ? 7 : 0);
        stage_close(&s);
    }
}
TOLD_OF_ALL(two_who_shrink);


/* A body that somebody has prepared, and did not come to use, is the next one: it is met by walks, and not lost. */
static void prepared_by_one_who_died_told(const told *told) {
    stage s;
    open_empty(&s, told);
    shrinker w = {.actor = &s.c, .world = s.world, .steps = 20, .trips = 100};
    start_shrink(&w);
    stage_stop_at(&s.c, at("shard:swing"));
    put(&s.a, number(5), 7);
    stage_kill(&s, &s.c);
    stage_check_by(&s, &s.a);
    assert_int_equal(delete_key(&s.a, number(5)), 0);
    far_sim_sleep(s.world, 3000000);
    far_addr pcb = shard_state_of(s.a.index)->part[0].pcb;
    uint64_t prepared = world_word(s.world, pcb + 8 * (SHARD_PCB_BODY + 1));
    assert_int_not_equal(shard_body_addr(prepared, 1), 0);
    shrink_until(&s, &s.a, SHARD_STABLE, 1);
    assert_int_equal(world_word(s.world, pcb + 8 * (SHARD_PCB_BODY + 1)), prepared);
    put(&s.a, number(5), 8);
    assert_int_equal(get(&s.b, number(5)), 8);
    stage_check_by(&s, &s.a);
    stage_tear_down(&s);
}
TOLD_OF_ALL(prepared_by_one_who_died);


static uint64_t keys_at(stage *s, unsigned level) {
    far_load load;
    assert_int_equal(far_index_load(s->a.session, s->a.index, &load), 0);
    return load.keys[level - 1];
}


/* A key that lies at that level after all were put, in a table that does not grow. */
static uint64_t key_at_level(const told *told, unsigned level) {
    stage s;
    uint64_t found = 0;
    open_full(&s, told);
    for (uint64_t n = 1; n <= KEYS && !found; n++) {
        uint64_t before = keys_at(&s, level);
        assert_int_equal(delete_key(&s.a, number(n)), 0);
        found = keys_at(&s, level) < before ? n : 0;
    }
    stage_close(&s);
    assert_true(found > 0);
    return found;
}


static int announce(far_task *t, void *arg) {
    far_index *index = arg;
    shard_partition *part = &shard_state_of(index)->part[0];
    int err = far_pin_take(t);
    if (err >= 0 && (err = shard_refresh(t, part)) >= 0) {
        uint64_t root = atomic_load_explicit(&part->root, memory_order_relaxed);
        err = shard_move_root(t, part, root,
                              shard_root_next(root, shard_root_d(root), SHARD_SHRINK, false, shard_root_stamp(root)));
    }
    far_pin_drop(t);
    return err;
}


/* One key is left, and a look at some buckets did not meet it: the proof does, on every level. (Without a look at one
 * of them.) */
static void one_key_is_left_told(const told *told) {
    for (unsigned level = 1; level <= 3; level++) {
        stage s;
        uint64_t left = key_at_level(told, level);
        open_full(&s, told);
        for (uint64_t n = 1; n <= KEYS; n++)
            assert_int_equal(n == left ? 0 : delete_key(&s.a, number(n)), 0);
        assert_int_equal(keys_at(&s, level), 1);
        far_sim_sleep(s.world, 3000000);
        assert_int_equal(far_session_call(s.b.session, FAR_STATS_OTHER, false, announce, s.b.index), 1);
        shrinker w = {.actor = &s.b, .world = s.world, .steps = 60, .trips = 100};
        shrink(&w);
        assert_true(COUNTED(&s, called_off) >= 1);
        assert_int_equal(body(&s), 0);
        assert_there_once(&s, number(left), left);
        stage_close(&s);
    }
}
TOLD_OF_ALL(one_key_is_left);


/* ---- Tours ---- */

typedef struct recorder {
    far_walk walk; /* first */
    stage_actor *actor;
    far_addr met[256];
    unsigned count;
    int result;
} recorder;


static int record(far_walk *walk, far_index *index, unsigned type, far_addr addr, uint64_t size) {
    recorder *r = (recorder *)walk;
    (void)index, (void)size, (void)type;
    assert_true(r->count < 256);
    r->met[r->count++] = addr;
    return 0;
}


static int run_walk(far_task *t, void *arg) {
    recorder *r = arg;
    return r->actor->index->kind->walk(t, r->actor->index, &r->walk);
}


static void walk_all(void *arg) {
    recorder *r = arg;
    r->walk.object = record;
    r->result = far_session_call(r->actor->session, FAR_STATS_OTHER, false, run_walk, r);
    r->actor->ended = true;
}


static void check_all(void *arg) {
    stage_actor *a = arg;
    a->result = far_index_check(a->session, a->index, NULL, NULL);
    a->ended = true;
}


/* A tour has met something of the old body; then that is replaced, and keys are put. A walk meets the new body: what
 * it does not meet a sweep frees. A check finds nothing wrong. (A tour that goes on.) */
static void tours_beside_a_shrink_told(const told *told) {
    for (unsigned nth = 1; nth <= 5; nth++) {
        for (unsigned check = 0; check < 2; check++) {
            stage s;
            recorder r = {.actor = &s.b};
            open_shrinking(&s, told);
            s.b.ended = false;
            s.b.client =
                far_sim_start(s.b.pool->fabric, "tour", check ? check_all : walk_all, check ? (void *)&s.b : &r);
            far_addr old = body_addr(&s.b);
            stage_stop_at(&s.b, (far_sim_match){.kind = FAR_SIM_READ, .nth = nth, .from = old, .to = old + 8});
            stage_finish(&s.c);
            put(&s.a, number(5), 7);
            far_addr bucket = bucket_addr(&s.a, 0), body = body_addr(&s.a);
            stage_finish(&s.b);
            assert_int_equal(check ? s.b.result : r.result, 0);
            bool met = check, met_body = check;
            for (unsigned i = 0; i < r.count; i++) {
                met |= r.met[i] == bucket;
                met_body |= r.met[i] == body;
            }
            assert_true(met && met_body);
            stage_close(&s);
        }
    }
}
TOLD_OF_ALL(tours_beside_a_shrink);


/* The handle of a tour learns of the new body by another of its tasks, in the middle of a slice: what the tour looks up from then on
 * is of that body, and is not taken for a part of the old one. (A slice that goes on.) */
static void body_learned_in_the_middle_of_a_slice_told(const told *told) {
    unsigned stood = 0;
    for (unsigned nth = 1; nth <= 30; nth++) {
        stage s;
        far_session *aside;
        open_shrinking(&s, told);
        assert_int_equal(far_session_open(s.b.pool, &aside), 0);
        s.b.ended = false;
        s.b.client = far_sim_start(s.b.pool->fabric, "check", check_all, &s.b);
        far_sim_stop_before(s.b.client, (far_sim_match){.kind = FAR_SIM_READ, .nth = nth});
        bool stands = far_sim_run_client(s.b.client) == FAR_SIM_STOPPED;
        stage_finish(&s.c);
        put(&s.a, number(5), 7);
        put(&s.a, number(6), 7);
        assert_true(far_session_call(aside, FAR_STATS_OTHER, false, refresh, s.b.index) >= 0);
        assert_int_equal(known_body(&s.b), 1);
        if (stands)
            stage_finish(&s.b);
        assert_int_equal(s.b.result, 0);
        stood += stands;
        far_session_close(aside);
        stage_close(&s);
    }
    assert_true(stood >= 15);
}
TOLD_OF_ALL(body_learned_in_the_middle_of_a_slice);


/* A check has met a bucket that is locked, and waits, without a pin, for epochs to pass before it looks again. Meanwhile the body
 * is replaced, and its memory is free: the bucket is gone, and nobody reads what lies there now. */
static void locked_bucket_of_a_body_that_is_gone_told(const told *told) {
    stage s;
    open_shrinking(&s, told);
    start(&s.b, FAR_OP_DELETE, number(5), 0);
    stage_stop_at(&s.b, at("shard:locked"));
    const shard_state *st = shard_state_of(s.b.index);
    far_addr bucket = bucket_addr(&s.b, shard_bucket(hash_of(&s.b, number(5)), st->p, st->b, version(&s.b)));
    s.a.ended = false;
    s.a.client = far_sim_start(s.a.pool->fabric, "check", check_all, &s.a);
    stage_stop_at(&s.a, (far_sim_match){.kind = FAR_SIM_READ, .nth = 2, .from = bucket, .to = bucket + 8});
    stage_stop_at(&s.a,
                  (far_sim_match){.kind = FAR_SIM_READ, .nth = 2, .from = FAR_SUPER_EPOCH, .to = FAR_SUPER_EPOCH + 8});
    stage_finish(&s.c);
    assert_int_equal(body(&s), 1);
    stage_finish(&s.b);
    assert_int_equal(s.b.result, FAR_ERR_NOT_FOUND);
    for (unsigned i = 0; i < 6; i++) { /* not many more: then its pages are given back, and wiped */
        far_epoch_request(s.b.pool);
        far_sim_sleep(s.world, 300000);
    }
    stage_finish(&s.a);
    assert_int_equal(s.a.result, 0);
    stage_close(&s);
}
TOLD_OF(locked_bucket_of_a_body_that_is_gone, INLINE);


int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_shrinks_and_grows_again),
        cmocka_unit_test(insert_before_the_swing),
        cmocka_unit_test(old_root_after_the_swing),
        cmocka_unit_test(many_gets_with_the_old_root),
        cmocka_unit_test(insert_from_before_the_shrink),
        cmocka_unit_test(proof_of_a_shrink_that_was_called_off),
        cmocka_unit_test(called_off_at_the_epoch_of_its_stamp),
        cmocka_unit_test(doubling_after_a_shrink_that_was_called_off),
        cmocka_unit_test(two_who_shrink),
        cmocka_unit_test(prepared_by_one_who_died),
        cmocka_unit_test(one_key_is_left),
        cmocka_unit_test(tours_beside_a_shrink),
        cmocka_unit_test(body_learned_in_the_middle_of_a_slice),
        cmocka_unit_test(locked_bucket_of_a_body_that_is_gone),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
