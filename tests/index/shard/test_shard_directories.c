/* A shrink replaces the directory of a partition (restructure_shrink.c). The tests prove two properties in both
 * layouts: handles that have used the old directory do not use their cached words for the new directory (race S9 of
 * docs/races/shard.md), and clients may fail or lose their session at any verb of a shrink (race S10). Each comment
 * names the change of the code that makes its test fail. */
#include "shard_shrink_rig.h"
#include "test.h"

#include "verify/explore.h"


/* Race S9. Proves that a handle which was idle during several shrinks does not use its cached addresses. Fails if
 * neither the caches are cleared (forget_directory, partition.c) nor the numbers in cached words are compared
 * (shard_cached_word, shard.h). */
static void a_handle_that_was_idle_on(const variant *variant) {
    stage s;
    open_empty(&s, variant);
    put(&s.c, number(1), 1);
    assert_int_equal(get(&s.c, number(1)), 1);
    assert_int_equal(delete_key(&s.c, number(1)), 0);
    for (unsigned n = 1; n <= 4; n++) {
        far_sim_sleep(s.world, 200000000); /* C becomes quiescent */
        shrink_until(&s, &s.b, SHARD_STABLE, n);
        fill_and_empty(&s, KEYS);
    }
    put(&s.a, number(9), 9);
    assert_int_equal(shard_root_directory(root_of(&s.c)), 0);
    assert_int_equal(get(&s.c, number(9)), 9);
    assert_int_equal(shard_root_directory(root_of(&s.c)), 4);
    put(&s.c, number(10), 10);
    assert_int_equal(get(&s.b, number(10)), 10);
    stage_close(&s);
}
TEST_ALL_VARIANTS(a_handle_that_was_idle);


/* Race S9 (docs/races/shard.md). Proves that cached words are cleared even if the directory number has wrapped around
 * and is the same again, or is equal in the few bits that the cache stores. Fails without forget_directory
 * (partition.c). */
TEST(directory_numbers_wrap_around) {
    static const struct {
        unsigned bodies;
        uint64_t epochs;
        bool known;
    } later[] = {
        {0, 1, true}, {0, SHARD_DIRECTORIES - 1, true}, {0, SHARD_DIRECTORIES, false}, {1, 1, false}, {128, 1, false}};
    for (unsigned i = 0; i < sizeof(later) / sizeof(later[0]); i++) {
        stage s;
        open_empty(&s, &all_variants[0]);
        shard_partition *part = &shard_state_of(s.c.index)->part[0];
        for (uint64_t n = 1; n <= KEYS; n++)
            assert_int_equal(get(&s.c, number(n)), 0);
        uint64_t root = root_of(&s.c), stamp = shard_root_stamp(root) + later[i].epochs;
        shard_learn_root(part, shard_root_with_directory(shard_root(shard_root_d(root), SHARD_STABLE, true, stamp),
                                                         later[i].bodies));
        assert_int_equal(shard_cached_word(&part->segment[0], shard_directory_number(part)) != 0, later[i].known);
        assert_int_equal(shard_cached_word(&part->directory, shard_directory_number(part)) != 0, later[i].known);
        stage_tear_down(&s);
    }
}


static int short_step(far_task *t, void *arg) {
    far_index *index = arg;
    int err = far_pin_take(t);
    if (err >= 0 && (err = shard_refresh_root(t, &shard_state_of(index)->part[0])) >= 0)
        err = shard_resize_step(t, index, &shard_state_of(index)->part[0], &(int){6});
    far_pin_drop(t);
    return err;
}


/* Sweeps the first chunk up to this bucket, or a little further, but not to its end. */
static void begin_chunk(stage_actor *a, uint64_t bucket) {
    const shard_partition *part = &shard_state_of(a->index)->part[0];
    do
        assert_true(far_session_call(a->session, FAR_STATS_OTHER, false, short_step, a->index) >= 0);
    while (!part->has_chunk || part->next < bucket);
    assert_true(part->chunk == 0 && part->next < part->end);
}


static void work_until(stage *s, stage_actor *a, unsigned wanted) {
    for (unsigned i = 0; i < 400 && current_phase(s) != wanted; i++)
        assert_true(far_session_call(a->session, FAR_STATS_OTHER, false, work_step, a->index) >= 0);
    assert_int_equal(current_phase(s), wanted);
}


/* Race S9 (docs/races/shard.md). Proves that a handle does not continue a chunk of the previous directory. C has begun
 * a chunk of the sweep to version 1, and other clients finish that doubling. After a shrink, B begins the same chunk of
 * the new directory. C must not continue its old chunk and mark it done. Fails if chunks are compared by version and
 * phase alone. */
static void chunk_of_the_previous_directory_on(const variant *variant) {
    stage s;
    open_stage(&s, variant, 4, "slots=4,l2_slots=1,load=95,afs=1000000,idle_sweep=off");
    for (unsigned n = 0; n < 2; n++) {
        for (uint64_t i = 1; i <= 20; i++)
            put(&s.a, number(i), i);
        double_by(&s, &s.a);
        begin_chunk(n == 0 ? &s.c : &s.b, n == 0 ? 5 : 1);
        stage_actor *mover = n == 0 ? &s.b : &s.c;
        /* B has begun the chunk of the new directory, up to a bucket before 5. C's progress in the same chunk of the
         * old directory (up to bucket 5) must not count for the new one. */
        assert_true(n == 0 || shard_state_of(s.b.index)->part[0].next < 5);
        work_until(&s, mover, SHARD_DRAIN);
        for (uint64_t bucket = 0; bucket < 32; bucket++) {
            unsigned header = shard_header_at(shard_state_of(s.a.index));
            far_addr segment = words_at(&s, directory_addr(&s.a))[SHARD_DIR_SEGMENT + (bucket > 15)];
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
TEST_ALL_VARIANTS(chunk_of_the_previous_directory);


static bool knows_first_extent(const shard_partition *part, unsigned segment) {
    const shard_extents *extents = (const shard_extents *)(uintptr_t)part->segment[segment];
    return extents && shard_cached_word(&extents->extent[0], shard_directory_number(part));
}


/* Race S9. Proves that clearing the cache during an allocation is harmless. B makes an extent and stops. Another task
 * of B's handle learns a much later root word, so the cache is cleared. B continues. Fails if B looks the address of
 * the extent array up in the cache again: the address is 0 then, and the extent would be linked near the beginning of
 * the pool. */
static void cache_cleared_while_an_extent_is_made_on(const variant *variant) {
    stage s;
    open_stage(&s, variant, 0, SHRINK_OPTIONS ",extent=512");
    fill_and_empty(&s, KEYS);
    unsigned d = shard_root_d(far_root(&s)) + 1;
    shard_partition *part = &shard_state_of(s.b.index)->part[0];
    assert_true(shard_extent_count(shard_state_of(s.b.index), 1, d) >= 2);
    far_addr array = 0;
    for (unsigned i = 0; i < 100 && !knows_first_extent(part, d); i++) {
        assert_int_equal(far_session_call(s.b.session, FAR_STATS_OTHER, false, grow_once, s.b.index), 0);
        far_sim_sleep(s.world, 300000);
        array = words_at(&s, directory_addr(&s.b))[SHARD_DIR_SEGMENT + d];
    }
    unsigned missing = 0; /* the extents are made in order */
    while (words_at(&s, array)[missing] != 0)
        missing++;
    assert_in_range(missing, 1, shard_extent_count(shard_state_of(s.b.index), 1, d) - 1);
    uint64_t first[SHARD_LINE];
    memcpy(first, words_at(&s, 0), sizeof(first));
    s.b.ended = false;
    s.b.client = far_sim_start(s.b.pool->fabric, "doubles", double_it, &s.b);
    stage_stop_at(&s.b, (far_sim_match){.kind = FAR_SIM_READ, .from = array, .to = array + 8});
    uint64_t root = root_of(&s.b);
    shard_learn_root(part,
                     shard_root_next(root, d - 1, SHARD_STABLE, true, shard_root_stamp(root) + SHARD_DIRECTORIES));
    stage_finish(&s.b);
    assert_memory_equal(first, words_at(&s, 0), sizeof(first));
    assert_true(words_at(&s, array)[missing] != 0);
    world_assert_no_checker_error(s.world);
    stage_tear_down(&s);
}
TEST_ALL_VARIANTS(cache_cleared_while_an_extent_is_made);


/* Proves that all extents of a segment are retired with their directory, so that none is left for a collection to find.
 * Fails if a shrink does not list the extents among the objects to retire. */
static void extents_are_retired_with_their_directory_on(const variant *variant) {
    stage s;
    open_stage(&s, variant, 0, SHRINK_OPTIONS ",extent=512");
    fill_and_empty(&s, KEYS);
    assert_true(shard_extent_count(shard_state_of(s.b.index), 1, shard_root_d(far_root(&s))) >= 2);
    shrink_until(&s, &s.b, SHARD_STABLE, 1);
    far_sim_sleep(s.world, 30000000);
    world_assert_nothing_leaked(s.a.session);
    stage_close(&s);
}
TEST_ALL_VARIANTS(extents_are_retired_with_their_directory);


/* Proves that the stamp (an epoch in the root word) of a new directory is not earlier than the current epoch, even if
 * the epoch has advanced since the replacing client took its pin. With an earlier stamp, a client that still has the
 * old root would be counted as a client that has read the new root. */
static void stamp_of_a_new_directory_on(const variant *variant) {
    stage s;
    open_shrinking(&s, variant);
    uint64_t epoch = world_word(s.world, FAR_SUPER_EPOCH);
    for (unsigned i = 0; i < 100 && world_word(s.world, FAR_SUPER_EPOCH) == epoch; i++) {
        far_epoch_request(s.a.pool);
        far_sim_sleep(s.world, 300000);
    }
    epoch = world_word(s.world, FAR_SUPER_EPOCH) + FAR_EPOCH_FIRST;
    stage_finish(&s.c);
    assert_int_equal(current_directory(&s), 1);
    assert_true(shard_root_stamp(far_root(&s)) >= epoch);
    stage_close(&s);
}
TEST_ALL_VARIANTS(stamp_of_a_new_directory);


/* ---- Failures ---- */

static int put_keys(far_session *s, far_index *index, uint64_t keys, uint64_t value) {
    int err = 0;
    for (uint64_t n = 1; err >= 0 && n <= keys; n++) {
        key k = number(n);
        err = far_put(s, index, k.bytes, 8, &value, 8);
    }
    return err;
}


static int prepare_empty_partition(far_session *s, far_index *index, void *ctx) {
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


static int shrink_as_victim(far_session *s, far_index *index, void *ctx) {
    (void)ctx;
    stage_actor a = {.session = s, .index = index};
    shrinker w = {.actor = &a, .world = far_sim_world_of(s->pool->fabric), .steps = 12, .trips = 100};
    run_shrink(&w);
    return w.result < 0 ? -1 : 0;
}


static int verify_as_survivor(far_session *s, far_index *index, void *ctx) {
    stage_actor a = {.session = s, .index = index};
    shrinker w = {.actor = &a, .world = far_sim_world_of(s->pool->fabric), .steps = 60, .trips = 100};
    (void)ctx;
    for (uint64_t n = 1; n <= KEYS; n++)
        if (get(&a, number(n)) != 0)
            return -1;
    run_shrink(&w);
    uint64_t root = atomic_load_explicit(&shard_state_of(index)->part[0].root, memory_order_relaxed);
    if (shard_root_directory(root) != 1 || shard_root_d(root) != 0 || put_keys(s, index, KEYS, 3) < 0)
        return -1;
    for (uint64_t n = 1; n <= KEYS; n++)
        if (get(&a, number(n)) != 3)
            return -1;
    return 0;
}


static void failure_at_every_verb_on(const variant *variant) {
    char options[256];
    snprintf(options, sizeof(options), "%s,partitions=1,bits=0,%s",
             variant->inlined ? "key_size=8,value_size=8,narrow=on" : "layout=pointer", SHRINK_OPTIONS);
    far_explore explore = {.kind = "shard",
                           .options = options,
                           .sim = variant->sim,
                           .prepare = prepare_empty_partition,
                           .victim = shrink_as_victim,
                           .survive = verify_as_survivor,
                           .collect = true,
                           .out = stderr};
    far_explore_result result;
    assert_int_equal(far_explore_run(&explore, &result), 0);
    print_message("    %llu deaths over %llu verbs\n", (unsigned long long)result.cuts,
                  (unsigned long long)result.verbs);
    assert_true(result.cuts >= 20);
    assert_int_equal(result.problems, 0);
}
TEST_ALL_VARIANTS(failure_at_every_verb);


/* Lets the session of the shrinking client be lost at one of its verbs, while its handle continues. `done`: the verb
 * has been executed. Asserts that nothing is leaked, that the completed steps of the shrink count, and that other
 * clients complete the shrink. Returns false if the shrink has fewer verbs. */
static bool session_is_lost_at(const variant *variant, unsigned nth, bool done) {
    stage s;
    open_empty(&s, variant);
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
    unsigned now = current_directory(&s);
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


static void lost_session_at_every_verb_on(const variant *variant) {
    for (unsigned done = 0; done < 2; done++) {
        unsigned nth = 1;
        while (session_is_lost_at(variant, nth, done))
            nth++;
        print_message("    %u losses\n", nth - 1);
        assert_true(nth > 10);
    }
}
TEST_ALL_VARIANTS(lost_session_at_every_verb);
