/* A body of a partition is replaced when the partition shrinks (shrink.c): what handles that knew the old body do with
 * what they knew, and what is left of those who die, or are lost, at any verb of it. Both layouts. What was taken out of the code to see a
 * story fail is told with it. */
#include "shard_shrink_rig.h"

#include "verify/explore.h"


/* It knows of nothing that happened, and its addresses are of a body that is long gone. (Addresses that are kept.) */
static void a_handle_that_slept_told(const told *told) {
    stage s;
    open_empty(&s, told);
    put(&s.c, number(1), 1);
    assert_int_equal(get(&s.c, number(1)), 1);
    assert_int_equal(delete_key(&s.c, number(1)), 0);
    for (unsigned n = 1; n <= 4; n++) {
        far_sim_sleep(s.world, 200000000); /* c falls asleep */
        shrink_until(&s, &s.b, SHARD_STABLE, n);
        fill_and_empty(&s, KEYS);
    }
    put(&s.a, number(9), 9);
    assert_int_equal(shard_root_body(root_of(&s.c)), 0);
    assert_int_equal(get(&s.c, number(9)), 9);
    assert_int_equal(shard_root_body(root_of(&s.c)), 4);
    put(&s.c, number(10), 10);
    assert_int_equal(get(&s.b, number(10)), 10);
    stage_close(&s);
}
TOLD_OF_ALL(a_handle_that_slept);


/* Numbers of bodies come again: what is known of one is forgotten when there is another of the same number, or of one
 * that looks alike in the few bits that are noted. (Without forget_body.) */
static void numbers_that_come_again(void **state) {
    (void)state;
    static const struct {
        unsigned bodies;
        uint64_t epochs;
        bool known;
    } later[] = {{0, 1, true}, {0, SHARD_BODIES - 1, true}, {0, SHARD_BODIES, false}, {1, 1, false}, {128, 1, false}};
    for (unsigned i = 0; i < sizeof(later) / sizeof(later[0]); i++) {
        stage s;
        open_empty(&s, &all_told[0]);
        shard_partition *part = &shard_state_of(s.c.index)->part[0];
        for (uint64_t n = 1; n <= KEYS; n++)
            assert_int_equal(get(&s.c, number(n)), 0);
        uint64_t root = root_of(&s.c), stamp = shard_root_stamp(root) + later[i].epochs;
        shard_learn_root(
            part, shard_root_of_body(shard_root(shard_root_d(root), SHARD_STABLE, true, stamp), later[i].bodies));
        assert_int_equal(shard_known(&part->segment[0], shard_body_of(part)) != 0, later[i].known);
        assert_int_equal(shard_known(&part->body, shard_body_of(part)) != 0, later[i].known);
        stage_tear_down(&s);
    }
}


static int short_step(far_task *t, void *arg) {
    far_index *index = arg;
    int err = far_pin_take(t);
    if (err >= 0 && (err = shard_refresh(t, &shard_state_of(index)->part[0])) >= 0)
        err = shard_work(t, index, &shard_state_of(index)->part[0], &(int){6});
    far_pin_drop(t);
    return err;
}


/* Does the first chunk of a sweep up to that bucket, or a little further, and no more. */
static void begin_chunk(stage_actor *a, uint64_t bucket) {
    const shard_partition *part = &shard_state_of(a->index)->part[0];
    do
        assert_true(far_session_call(a->session, FAR_STATS_OTHER, false, short_step, a->index) >= 0);
    while (!part->has_chunk || part->next < bucket);
    assert_true(part->chunk == 0 && part->next < part->end);
}


static void work_until(stage *s, stage_actor *a, unsigned wanted) {
    for (unsigned i = 0; i < 400 && phase(s) != wanted; i++)
        assert_true(far_session_call(a->session, FAR_STATS_OTHER, false, work_step, a->index) >= 0);
    assert_int_equal(phase(s), wanted);
}


/* A handle has begun a chunk of the sweep to version 1, and others end that doubling. In the next body it does not go
 * on there, and mark a chunk as done that somebody else has just begun. (Chunks that are told apart by version and
 * phase alone.) */
static void chunk_of_the_body_before_told(const told *told) {
    stage s;
    open_stage(&s, told, 4, "slots=4,l2_slots=1,load=95,afs=1000000,idle_sweep=off");
    for (unsigned n = 0; n < 2; n++) {
        for (uint64_t i = 1; i <= 20; i++)
            put(&s.a, number(i), i);
        double_by(&s, &s.a);
        begin_chunk(n == 0 ? &s.c : &s.b, n == 0 ? 5 : 1);
        stage_actor *mover = n == 0 ? &s.b : &s.c;
        assert_true(n == 0 ||
                    shard_state_of(s.b.index)->part[0].next < 5); /* what c left out then is still to be done */
        work_until(&s, mover, SHARD_DRAIN);
        for (uint64_t bucket = 0; bucket < 32; bucket++) {
            unsigned header = shard_header_at(shard_state_of(s.a.index));
            far_addr segment = words_at(&s, body_addr(&s.a))[SHARD_BODY_SEGMENT + (bucket > 15)];
            assert_int_equal(shard_header_v(words_at(&s, segment + bucket % 16 * SHARD_BUCKET_BYTES)[header]), 1);
        }
        work_until(&s, mover, SHARD_STABLE);
        delete_all(&s, 20);
        far_sim_sleep(s.world, 3000000);
        if (n == 0)
            shrink_until(&s, &s.a, SHARD_STABLE, 1);
    }
    stage_close(&s);
}
TOLD_OF_ALL(chunk_of_the_body_before);


static bool knows_first_extent(const shard_partition *part, unsigned segment) {
    const shard_extents *extents = (const shard_extents *)(uintptr_t)part->segment[segment];
    return extents && shard_known(&extents->extent[0], shard_body_of(part));
}


/* Another task of a handle learns a root so much later that what was known of the body is forgotten, between two looks
 * of one that makes an extent. (An array of extents whose address is looked up a second time, and is 0 then: the
 * extent was linked somewhere at the beginning of the pool.) */
static void forgotten_while_an_extent_is_made_told(const told *told) {
    stage s;
    open_stage(&s, told, 0, TOLD ",extent=512");
    fill_and_empty(&s, KEYS);
    unsigned d = shard_root_d(true_root(&s)) + 1;
    shard_partition *part = &shard_state_of(s.b.index)->part[0];
    assert_true(shard_extent_count(shard_state_of(s.b.index), d) >= 2);
    far_addr array = 0;
    for (unsigned i = 0; i < 100 && !knows_first_extent(part, d); i++) {
        assert_int_equal(far_session_call(s.b.session, FAR_STATS_OTHER, false, grow_once, s.b.index), 0);
        far_sim_sleep(s.world, 300000);
        array = words_at(&s, body_addr(&s.b))[SHARD_BODY_SEGMENT + d];
    }
    assert_true(words_at(&s, array)[0] != 0 && words_at(&s, array)[1] == 0);
    uint64_t first[SHARD_LINE];
    memcpy(first, words_at(&s, 0), sizeof(first));
    s.b.ended = false;
    s.b.client = far_sim_start(s.b.pool->fabric, "doubles", double_it, &s.b);
    stage_stop_at(&s.b, (far_sim_match){.kind = FAR_SIM_READ, .from = array + 8, .to = array + 16});
    uint64_t root = root_of(&s.b);
    shard_learn_root(part, shard_root_next(root, d - 1, SHARD_STABLE, true, shard_root_stamp(root) + SHARD_BODIES));
    stage_finish(&s.b);
    assert_memory_equal(first, words_at(&s, 0), sizeof(first));
    assert_true(words_at(&s, array)[1] != 0);
    world_assert_watch_is_content(s.world);
    stage_tear_down(&s);
}
TOLD_OF_ALL(forgotten_while_an_extent_is_made);


/* Segments of several extents go with their body, all of them: nothing is left to a sweep. (Extents that are not listed.) */
static void extents_go_with_their_body_told(const told *told) {
    stage s;
    open_stage(&s, told, 0, TOLD ",extent=512");
    fill_and_empty(&s, KEYS);
    assert_true(shard_extent_count(shard_state_of(s.b.index), shard_root_d(true_root(&s))) >= 2);
    shrink_until(&s, &s.b, SHARD_STABLE, 1);
    far_sim_sleep(s.world, 30000000);
    world_assert_nothing_leaked(s.a.session);
    stage_close(&s);
}
TOLD_OF_ALL(extents_go_with_their_body);


/* The epoch has gone on since the one who replaces a body took its pin: what it stamps the new root with is not before
 * that, or one who has read the old root since would be at work when all are said to know of the new one. */
static void stamp_of_a_new_body_told(const told *told) {
    stage s;
    open_shrinking(&s, told);
    uint64_t epoch = world_word(s.world, FAR_SUPER_EPOCH);
    for (unsigned i = 0; i < 100 && world_word(s.world, FAR_SUPER_EPOCH) == epoch; i++) {
        far_epoch_request(s.a.pool);
        far_sim_sleep(s.world, 300000);
    }
    epoch = world_word(s.world, FAR_SUPER_EPOCH) + FAR_EPOCH_FIRST;
    stage_finish(&s.c);
    assert_int_equal(body(&s), 1);
    assert_true(shard_root_stamp(true_root(&s)) >= epoch);
    stage_close(&s);
}
TOLD_OF_ALL(stamp_of_a_new_body);


/* ---- Death ---- */

static int put_keys(far_session *s, far_index *index, uint64_t keys, uint64_t value) {
    int err = 0;
    for (uint64_t n = 1; err >= 0 && n <= keys; n++) {
        key k = number(n);
        err = far_put(s, index, k.bytes, 8, &value, 8);
    }
    return err;
}


static int empty_it(far_session *s, far_index *index, void *ctx) {
    (void)ctx;
    int err = put_keys(s, index, KEYS, 1);
    far_sim_world *world = far_sim_world_of(s->pool->fabric);
    for (unsigned i = 0; i < 200 && err >= 0; i++) {
        err = far_session_call(s, FAR_STATS_OTHER, false, work_step, index);
        far_sim_sleep(world, 300000);
    }
    for (uint64_t n = 1; err >= 0 && n <= KEYS; n++)
        err = far_delete(s, index, number(n).bytes, 8);
    far_sim_sleep(world, 3000000);
    return err < 0 ? -1 : 0;
}


static int shrink_it(far_session *s, far_index *index, void *ctx) {
    (void)ctx;
    stage_actor a = {.session = s, .index = index};
    shrinker w = {.actor = &a, .world = far_sim_world_of(s->pool->fabric), .steps = 12, .trips = 100};
    shrink(&w);
    return w.result < 0 ? -1 : 0;
}


static int use_it(far_session *s, far_index *index, void *ctx) {
    stage_actor a = {.session = s, .index = index};
    shrinker w = {.actor = &a, .world = far_sim_world_of(s->pool->fabric), .steps = 60, .trips = 100};
    (void)ctx;
    for (uint64_t n = 1; n <= KEYS; n++)
        if (get(&a, number(n)) != 0)
            return -1;
    shrink(&w);
    uint64_t root = atomic_load_explicit(&shard_state_of(index)->part[0].root, memory_order_relaxed);
    if (shard_root_body(root) != 1 || shard_root_d(root) != 0 || put_keys(s, index, KEYS, 3) < 0)
        return -1;
    for (uint64_t n = 1; n <= KEYS; n++)
        if (get(&a, number(n)) != 3)
            return -1;
    return 0;
}


static void death_at_every_verb_told(const told *told) {
    char options[256];
    snprintf(options, sizeof(options), "%s,partitions=1,bits=0,%s",
             told->inlined ? "key_size=8,value_size=8,narrow=on" : "layout=pointer", TOLD);
    far_explore explore = {.kind = "shard",
                           .options = options,
                           .sim = told->sim,
                           .prepare = empty_it,
                           .victim = shrink_it,
                           .survive = use_it,
                           .sweep = true,
                           .out = stderr};
    far_explore_result result;
    assert_int_equal(far_explore_run(&explore, &result), 0);
    print_message("    %llu deaths over %llu verbs\n", (unsigned long long)result.cuts,
                  (unsigned long long)result.verbs);
    assert_true(result.cuts >= 20);
    assert_int_equal(result.problems, 0);
}
TOLD_OF_ALL(death_at_every_verb);


/* The session of who shrinks is lost at a verb, which has been done or not; its handle lives and works on. What it had in hand
 * is found again, what it did counts, and what it did not is done by others. */
static bool loses_session(const told *told, unsigned nth, bool done) {
    stage s;
    open_empty(&s, told);
    shrink_until(&s, &s.c, SHARD_SHRINK, 0);
    shrinker w = {.actor = &s.c, .world = s.world, .steps = 20, .trips = 100};
    start_shrink(&w);
    far_sim_match verb = {.nth = nth};
    far_sim_hold *hold = done ? far_sim_hold_completion(s.c.client, verb) : far_sim_hold_effect(s.c.client, verb);
    far_sim_run_client(s.c.client);
    bool reached = far_sim_reached(hold);
    if (reached)
        far_sim_lose(s.c.session->conn);
    far_sim_release(hold);
    stage_finish(&s.c);
    if (reached) {
        assert_true(w.result < 0);
        far_session_close(s.c.session);
        assert_int_equal(far_session_open(s.c.pool, &s.c.session), 0);
    }
    unsigned now = body(&s);
    assert_true(now <= 1);
    assert_int_equal(get(&s.b, number(5)), 0);
    put(&s.b, number(5), 7);
    assert_there_once(&s, number(5), 7);
    far_sim_sleep(s.world, 30000000);
    if (now == 0)
        shrink_until(&s, &s.b, SHARD_STABLE, 1);
    for (uint64_t n = 1; n <= KEYS; n++)
        put(&s.c, number(n), n);
    for (uint64_t n = 1; n <= KEYS; n++)
        assert_int_equal(get(&s.a, number(n)), n);
    stage_close(&s);
    return reached;
}


static void lost_session_at_every_verb_told(const told *told) {
    for (unsigned done = 0; done < 2; done++) {
        unsigned nth = 1;
        while (loses_session(told, nth, done))
            nth++;
        print_message("    %u losses\n", nth - 1);
        assert_true(nth > 10);
    }
}
TOLD_OF_ALL(lost_session_at_every_verb);


int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_handle_that_slept),        cmocka_unit_test(numbers_that_come_again),
        cmocka_unit_test(chunk_of_the_body_before),   cmocka_unit_test(forgotten_while_an_extent_is_made),
        cmocka_unit_test(extents_go_with_their_body), cmocka_unit_test(stamp_of_a_new_body),
        cmocka_unit_test(death_at_every_verb),        cmocka_unit_test(lost_session_at_every_verb),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
