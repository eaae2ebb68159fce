/* Races of partitions that became empty and shrink (restructure_shrink.c), in both layouts: other clients act during
 * the shrink, or the shrinking client fails. docs/races/shard.md describes each race under the number in its comment,
 * S1 to S8. Each comment names the change of the code that makes its test fail. */
#include "client/op.h"
#include "shard_shrink_rig.h"
#include "test.h"

#include "pool/gc/collect.h"


static void it_shrinks_and_grows_again_on(const variant *variant) {
    stage s;
    open_empty(&s, variant);
    for (unsigned n = 1; n <= 3; n++) {
        shrink_until(&s, &s.b, SHARD_STABLE, n);
        assert_int_equal(shard_root_d(far_root(&s)), 0);
        assert_int_equal(COUNTED(&s, shrunk), n);
        fill_and_empty(&s, KEYS);
    }
    stage_close(&s);
}
TEST_ALL_VARIANTS(it_shrinks_and_grows_again);


/* Race S1 (docs/races/shard.md). Proves that an insert between the proof and the CAS that replaces the directory is not
 * lost. C is about to replace the directory; B inserts; C's CAS must fail. Fails if an insert does not cancel the
 * shrink. */
static void insert_before_the_directory_is_replaced_on(const variant *variant) {
    stage s;
    open_shrinking(&s, variant);
    assert_int_equal(insert(&s.b, number(5), 7), 0);
    assert_int_equal(COUNTED(&s, cancelled), 1);
    stage_finish(&s.c);
    assert_int_equal(current_directory(&s), 0);
    assert_there_once(&s, number(5), 7);
    stage_close(&s);
}
TEST_ALL_VARIANTS(insert_before_the_directory_is_replaced);


/* Race S4 (docs/races/shard.md). Proves that a client with the old root finds keys in the new directory. C replaces the
 * directory; A inserts a key; B, which knows nothing of this, executes each kind of operation. Fails if a miss is
 * accepted without shard_recheck_miss. */
static void old_root_after_the_directory_was_replaced_on(const variant *variant) {
    stage s;
    static const far_op_kind kinds[] = {FAR_OP_GET, FAR_OP_UPDATE, FAR_OP_DELETE, FAR_OP_INSERT, FAR_OP_PUT};
    for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        open_shrinking(&s, variant);
        stage_finish(&s.c);
        assert_int_equal(current_directory(&s), 1);
        put(&s.a, number(5), 7);
        assert_int_equal(shard_root_directory(root_of(&s.b)), 0);
        start(&s.b, kinds[i], number(5), 9);
        stage_finish(&s.b);
        assert_int_equal(s.b.result, kinds[i] == FAR_OP_INSERT ? FAR_ERR_EXISTS : 0);
        if (kinds[i] == FAR_OP_GET)
            assert_int_equal(result_value(&s.b), 7);
        bool changed = kinds[i] == FAR_OP_UPDATE || kinds[i] == FAR_OP_PUT;
        assert_int_equal(get(&s.a, number(5)), kinds[i] == FAR_OP_DELETE ? 0 : changed ? 9 : 7);
        stage_close(&s);
    }
}
TEST_ALL_VARIANTS(old_root_after_the_directory_was_replaced);


static void many_gets_with_the_old_root_on(const variant *variant) {
    enum { GETS = 4 };
    stage s;
    far_op ops[GETS], *list[GETS], *done[GETS];
    uint64_t values[GETS];
    key keys[GETS];
    open_shrinking(&s, variant);
    stage_finish(&s.c);
    for (unsigned i = 0; i < GETS; i++) {
        keys[i] = number(i + 1);
        put(&s.a, keys[i], i + 1);
    }
    assert_int_equal(shard_root_directory(root_of(&s.b)), 0);
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
TEST_ALL_VARIANTS(many_gets_with_the_old_root);


/* Race S2. Proves that the proof of emptiness does not begin before an insert from before the shrink has ended. B's
 * insert stops; C announces the shrink and may not finish it; B continues. Fails without the grace period
 * (continue_shrink). */
static void insert_from_before_the_shrink_on(const variant *variant) {
    stage s;
    open_empty(&s, variant);
    shrinker w = {.actor = &s.c, .world = s.world, .steps = 1, .trips = 100};
    start(&s.b, FAR_OP_INSERT, number(5), 7);
    stage_stop_at(&s.b, at(variant->inlined ? "shard:insert" : "shard:main_bucket_read"));
    for (unsigned i = 0; i < 10; i++)
        run_shrink(&w);
    assert_int_equal(current_phase(&s), SHARD_SHRINK);
    assert_int_equal(current_directory(&s), 0);
    stage_finish(&s.b);
    assert_int_equal(s.b.result, 0);
    for (unsigned i = 0; i < 10; i++)
        run_shrink(&w);
    assert_int_equal(current_directory(&s), 0);
    assert_there_once(&s, number(5), 7);
    stage_close(&s);
}
TEST_ALL_VARIANTS(insert_from_before_the_shrink);


/* Race S3 (docs/races/shard.md). Proves that a proof is not continued under another shrink. C has proved a part of the
 * partition empty; an insert cancels the shrink. B announces a new one just before another insert. C must begin its
 * proof again. Fails if proof_root is not compared. */
static void proof_of_a_cancelled_shrink_on(const variant *variant) {
    stage s;
    open_empty(&s, variant);
    shrinker w = {.actor = &s.c, .world = s.world, .steps = 1, .trips = 1},
             next = {.actor = &s.b, .world = s.world, .steps = 40, .announces = true};
    shrink_until(&s, &s.c, SHARD_SHRINK, 0);
    shard_partition *part = &shard_state_of(s.c.index)->part[0];
    for (unsigned i = 0; i < 100 && part->empty_buckets == 0; i++)
        run_shrink(&w);
    assert_int_equal(part->empty_buckets, 1ull << shard_root_d(far_root(&s)));
    /* C inserts, not A: an insert of A would begin a doubling, because A remembers that one of its inserts reached
     * level 3 */
    put(&s.c, number(5), 7);
    assert_int_equal(delete_key(&s.c, number(5)), 0);
    start_shrink(&next);
    stage_stop_at(&s.b, at("shard:shrink"));
    put(&s.c, number(5), 8);
    stage_finish(&s.b);
    assert_int_equal(current_phase(&s), SHARD_SHRINK);
    w.trips = 100;
    for (unsigned i = 0; i < 100 && current_phase(&s) == SHARD_SHRINK; i++)
        run_shrink(&w);
    assert_int_equal(current_phase(&s), SHARD_STABLE);
    assert_int_equal(current_directory(&s), 0);
    assert_there_once(&s, number(5), 8);
    stage_close(&s);
}
TEST_ALL_VARIANTS(proof_of_a_cancelled_shrink);


/* Race S3 (docs/races/shard.md). Proves that cancelling a shrink gives a later root word, even if it happens at the
 * epoch of the shrink's stamp, so that all handles learn of it. Fails if cancel_shrink does not use a stamp that is
 * later than both. */
static void cancelled_at_the_epoch_of_its_stamp_on(const variant *variant) {
    stage s;
    open_empty(&s, variant);
    shrinker w = {.actor = &s.c, .world = s.world, .steps = 40, .trips = 100, .announces = true};
    start(&s.b, FAR_OP_GET, number(1), 0);
    stage_stop_at(&s.b, at("shard:main_bucket_read")); /* B's pin delays the epoch */
    for (unsigned i = 0; i < 10; i++) {
        far_epoch_request(s.a.pool);
        far_sim_sleep(s.world, 300000);
    }
    run_shrink(&w);
    uint64_t before = far_root(&s);
    assert_int_equal(shard_root_phase(before), SHARD_SHRINK);
    assert_true(shard_root_stamped(before));
    assert_true(far_session_call(s.a.session, FAR_STATS_OTHER, false, refresh_root, s.a.index) >= 0);
    assert_int_equal(insert(&s.a, number(5), 7), 0);
    assert_int_equal(shard_root_stamp(before), world_word(s.world, FAR_SUPER_EPOCH) + FAR_EPOCH_FIRST);
    assert_int_equal(current_phase(&s), SHARD_STABLE);
    assert_true(shard_root_order(far_root(&s)) > shard_root_order(before));
    assert_int_equal(root_of(&s.a), far_root(&s));
    assert_true(far_session_call(s.c.session, FAR_STATS_OTHER, false, refresh_root, s.c.index) >= 0);
    assert_int_equal(root_of(&s.c), far_root(&s));
    stage_finish(&s.b);
    assert_there_once(&s, number(5), 7);
    stage_close(&s);
}
TEST_ALL_VARIANTS(cancelled_at_the_epoch_of_its_stamp);


/* Race S6 (docs/races/shard.md). Proves that a doubling does not begin right after a cancelled shrink. B has prepared a
 * doubling and stops; C announces a shrink and cancels it; B continues. Clients may not know of the cancellation yet,
 * so B must not double. Fails if shard_try_grow (restructure.c) does not check again. */
static void doubling_after_a_cancelled_shrink_on(const variant *variant) {
    stage s;
    open_empty(&s, variant);
    far_session *aside;
    assert_int_equal(far_session_open(s.b.pool, &aside), 0);
    assert_int_equal(get(&s.b, number(1)), 0);
    s.b.ended = false;
    s.b.client = far_sim_start(s.b.pool->fabric, "doubles", double_it, &s.b);
    stage_stop_at(&s.b, at("shard:grow"));
    unsigned d = shard_root_d(far_root(&s));
    shrink_until(&s, &s.c, SHARD_SHRINK, 0);
    put(&s.c, number(5), 7);
    assert_int_equal(COUNTED(&s, cancelled), 1);
    assert_true(far_session_call(aside, FAR_STATS_OTHER, false, refresh_root, s.b.index) >= 0);
    stage_finish(&s.b);
    assert_int_equal(s.b.result, 0);
    assert_int_equal(shard_root_d(far_root(&s)), d);
    far_session_close(aside);
    double_by(&s, &s.b);
    assert_there_once(&s, number(5), 7);
    stage_close(&s);
}
TEST_ALL_VARIANTS(doubling_after_a_cancelled_shrink);


/* Race S7 (docs/races/shard.md). Proves that two clients can shrink the same partition. C stops at several points while
 * B replaces the directory. C must neither replace it again nor retire anything. Fails if the objects are retired
 * before the CAS. */
static void two_clients_shrink_on(const variant *variant) {
    static const char *const points[] = {"shard:install_directory", "shard:switch_root", "shard:stamp"};
    for (unsigned i = 0; i < sizeof(points) / sizeof(points[0]); i++) {
        stage s;
        open_empty(&s, variant);
        shrinker w = {.actor = &s.c, .world = s.world, .steps = 20, .trips = 100};
        start_shrink(&w);
        stage_stop_at(&s.c, at(points[i]));
        shrinker other = {.actor = &s.b, .world = s.world, .steps = 1, .trips = 100};
        for (unsigned n = 0; n < 60 && current_directory(&s) == 0; n++)
            run_shrink(&other);
        assert_int_equal(current_directory(&s), i < 2);
        if (i < 2)
            put(&s.b, number(5), 7);
        stage_finish(&s.c);
        assert_int_equal(current_directory(&s), 1);
        assert_int_equal(COUNTED(&s, shrunk), 1);
        assert_int_equal(get(&s.a, number(5)), i < 2 ? 7 : 0);
        stage_close(&s);
    }
}
TEST_ALL_VARIANTS(two_clients_shrink);


/* Race S7 (docs/races/shard.md). Proves that a directory prepared by a failed client is used by the next one, that
 * walks report it, and that it does not leak. */
static void directory_prepared_by_a_failed_client_on(const variant *variant) {
    stage s;
    open_empty(&s, variant);
    shrinker w = {.actor = &s.c, .world = s.world, .steps = 20, .trips = 100};
    start_shrink(&w);
    stage_stop_at(&s.c, at("shard:switch_root"));
    put(&s.a, number(5), 7);
    stage_kill(&s, &s.c);
    stage_check_by(&s, &s.a);
    assert_int_equal(delete_key(&s.a, number(5)), 0);
    far_sim_sleep(s.world, 3000000);
    far_addr pcb = shard_state_of(s.a.index)->part[0].pcb;
    uint64_t prepared = world_word(s.world, pcb + 8 * (SHARD_PCB_DIRECTORY + 1));
    assert_int_not_equal(shard_directory_addr(prepared, 1), 0);
    shrink_until(&s, &s.a, SHARD_STABLE, 1);
    assert_int_equal(world_word(s.world, pcb + 8 * (SHARD_PCB_DIRECTORY + 1)), prepared);
    put(&s.a, number(5), 8);
    assert_int_equal(get(&s.b, number(5)), 8);
    stage_check_by(&s, &s.a);
    stage_tear_down(&s);
}
TEST_ALL_VARIANTS(directory_prepared_by_a_failed_client);


static uint64_t keys_at(stage *s, unsigned level) {
    far_load load;
    assert_int_equal(far_index_load(s->a.session, s->a.index, &load), 0);
    return load.keys[level - 1];
}


/* Returns a key that is at this level after all keys were put into a table that does not grow. */
static uint64_t key_at_level(const variant *variant, unsigned level) {
    stage s;
    uint64_t found = 0;
    open_full(&s, variant);
    for (uint64_t n = 1; n <= KEYS && !found; n++) {
        uint64_t before = keys_at(&s, level);
        assert_int_equal(delete_key(&s.a, number(n)), 0);
        found = keys_at(&s, level) < before ? n : 0;
    }
    stage_close(&s);
    assert_true(found > 0);
    return found;
}


static int announce_shrink(far_task *t, void *arg) {
    far_index *index = arg;
    shard_partition *part = &shard_state_of(index)->part[0];
    int err = far_pin_take(t);
    if (err >= 0 && (err = shard_refresh_root(t, part)) >= 0) {
        uint64_t root = atomic_load_explicit(&part->root, memory_order_relaxed);
        err = shard_cas_root(t, part, root,
                             shard_root_next(root, shard_root_d(root), SHARD_SHRINK, false, shard_root_stamp(root)));
    }
    far_pin_drop(t);
    return err;
}


/* Race S5 (docs/races/shard.md). Proves that a single remaining key, which the sample did not find, is found by the
 * proof at each of the three levels. Fails if one level is not examined. */
static void one_key_is_left_on(const variant *variant) {
    for (unsigned level = 1; level <= 3; level++) {
        stage s;
        uint64_t left = key_at_level(variant, level);
        open_full(&s, variant);
        for (uint64_t n = 1; n <= KEYS; n++)
            assert_int_equal(n == left ? 0 : delete_key(&s.a, number(n)), 0);
        assert_int_equal(keys_at(&s, level), 1);
        far_sim_sleep(s.world, 3000000);
        assert_int_equal(far_session_call(s.b.session, FAR_STATS_OTHER, false, announce_shrink, s.b.index), 1);
        shrinker w = {.actor = &s.b, .world = s.world, .steps = 60, .trips = 100};
        run_shrink(&w);
        assert_true(COUNTED(&s, cancelled) >= 1);
        assert_int_equal(current_directory(&s), 0);
        assert_there_once(&s, number(left), left);
        stage_close(&s);
    }
}
TEST_ALL_VARIANTS(one_key_is_left);


/* ---- Traversals ---- */

typedef struct recorder {
    far_walk walk; /* must be the first field, because the callback gets its address */
    stage_actor *actor;
    far_addr met[256];
    unsigned count;
    int result;
} recorder;


static int record_object(far_walk *walk, far_index *index, unsigned type, far_addr addr, uint64_t size) {
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
    r->walk.object = record_object;
    r->result = far_session_call(r->actor->session, FAR_STATS_OTHER, false, run_walk, r);
    r->actor->ended = true;
}


static void check_all(void *arg) {
    stage_actor *a = arg;
    a->result = far_index_check(a->session, a->index, NULL, NULL);
    a->ended = true;
}


/* Race S8. Proves that a traversal begins again if the directory is replaced. B's walk or check has visited a part of
 * the old directory; C replaces it, and A puts a key. The walk must report the new directory, because a collection
 * frees the objects that the walk does not report, and the check must find no problem. Fails without the comparison of
 * the directory numbers in read_partition_view (traversal.c). */
static void traversals_during_a_shrink_on(const variant *variant) {
    for (unsigned nth = 1; nth <= 5; nth++) {
        for (unsigned check = 0; check < 2; check++) {
            stage s;
            recorder r = {.actor = &s.b};
            open_shrinking(&s, variant);
            s.b.ended = false;
            s.b.client =
                far_sim_start(s.b.pool->fabric, "tour", check ? check_all : walk_all, check ? (void *)&s.b : &r);
            far_addr old = directory_addr(&s.b);
            stage_stop_at(&s.b, (far_sim_match){.kind = FAR_SIM_READ, .nth = nth, .from = old, .to = old + 8});
            stage_finish(&s.c);
            put(&s.a, number(5), 7);
            far_addr bucket = bucket_addr(&s.a, 0), directory = directory_addr(&s.a);
            stage_finish(&s.b);
            assert_int_equal(check ? s.b.result : r.result, 0);
            bool met = check, met_directory = check;
            for (unsigned i = 0; i < r.count; i++) {
                met |= r.met[i] == bucket;
                met_directory |= r.met[i] == directory;
            }
            assert_true(met && met_directory);
            stage_close(&s);
        }
    }
}
TEST_ALL_VARIANTS(traversals_during_a_shrink);


/* Race S8. Proves that a traversal notices the new directory even in the middle of a slice, when another task of its
 * handle learns of it: addresses that it finds from then on belong to the new directory. Fails without the comparison
 * of the directory numbers in read_partition_view (traversal.c). */
static void directory_learned_in_the_middle_of_a_slice_on(const variant *variant) {
    unsigned stood = 0;
    for (unsigned nth = 1; nth <= 30; nth++) {
        stage s;
        far_session *aside;
        open_shrinking(&s, variant);
        assert_int_equal(far_session_open(s.b.pool, &aside), 0);
        s.b.ended = false;
        s.b.client = far_sim_start(s.b.pool->fabric, "check", check_all, &s.b);
        far_sim_stop_before(s.b.client, (far_sim_match){.kind = FAR_SIM_READ, .nth = nth});
        bool stands = far_sim_run_client(s.b.client) == FAR_SIM_STOPPED;
        stage_finish(&s.c);
        put(&s.a, number(5), 7);
        put(&s.a, number(6), 7);
        assert_true(far_session_call(aside, FAR_STATS_OTHER, false, refresh_root, s.b.index) >= 0);
        assert_int_equal(known_directory(&s.b), 1);
        if (stands)
            stage_finish(&s.b);
        assert_int_equal(s.b.result, 0);
        stood += stands;
        far_session_close(aside);
        stage_close(&s);
    }
    assert_true(stood >= 15);
}
TEST_ALL_VARIANTS(directory_learned_in_the_middle_of_a_slice);


/* Race S8 (docs/races/shard.md). Proves that a check does not read a bucket of a replaced directory. A's check has met
 * a locked bucket and waits for epochs, without a pin, before it reads the bucket again. Meanwhile C replaces the
 * directory, and its memory is freed. */
static void locked_bucket_of_a_replaced_directory_on(const variant *variant) {
    stage s;
    open_shrinking(&s, variant);
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
    assert_int_equal(current_directory(&s), 1);
    stage_finish(&s.b);
    assert_int_equal(s.b.result, FAR_ERR_NOT_FOUND);
    for (unsigned i = 0; i < 6; i++) { /* only a few epochs, because later the pages would be returned and zeroed */
        far_epoch_request(s.b.pool);
        far_sim_sleep(s.world, 300000);
    }
    stage_finish(&s.a);
    assert_int_equal(s.a.result, 0);
    stage_close(&s);
}
TEST_VARIANTS_OF(locked_bucket_of_a_replaced_directory, INLINE);
