/* Race H36 of docs/races/shard.md, in the inline layout: an update waits for a lock and observes that the key was
 * changed meanwhile. The update is then superseded and therefore done (detect_superseded in inline/write.c). The tests
 * also prove that other changes do not count as superseding: changes from before the operation began, changes that do
 * not affect this kind of operation, and changes that precede the start of an operation which joined the RDWC round (a
 * shared execution of operations on one key) too late. */
#include "index/common/rdwc.h"
#include "shard_rig.h"
#include "test.h"


static bool
/* Returns true if a READ may return the value and the key of a slot from different moments. On such fabrics no image
 * that was read without the lock counts as an observation. */
slots_may_tear(const variant *variant) {
    return variant->units == 64;
}


#define TEST_INLINE_WITHOUT_TEARING(test)                                                                              \
    TEST(test) {                                                                                                       \
        for (unsigned i = 0; i < sizeof(all_variants) / sizeof(all_variants[0]); i++)                                  \
            if (all_variants[i].inlined && !slots_may_tear(&all_variants[i]))                                          \
                test##_on(&all_variants[i]);                                                                           \
    }                                                                                                                  \
    _Static_assert(1, "")


/* Prepares the race. Key 7 has the value 10. A holds the lock and is about to write 20. B, which wants to change key 7,
 * has failed to take the lock. If B's operation is an update or put, which can be superseded, B has also read the value
 * 10 once. */
static void let_b_meet_the_lock(stage *s, const variant *variant, far_op_kind kind) {
    open_stage(s, variant, 0, NO_GROWTH);
    put(&s->a, number(7), 10);
    assert_int_equal(get(&s->b, number(7)), 10);
    start(&s->a, FAR_OP_UPDATE, number(7), 20);
    stage_stop_at(&s->a, at("shard:replace"));
    start(&s->b, kind, number(7), 30);
    bool looks = (kind == FAR_OP_UPDATE || kind == FAR_OP_PUT) && !slots_may_tear(variant);
    stage_stop_at(&s->b, looks ? at("shard:reread_locked_bucket") : (far_sim_match){.point = "shard:lock", .nth = 2});
}


/* A writes 20 and takes the lock again, to insert another key into the bucket. */
static void finish_and_lock_again(stage *s) {
    stage_finish(&s->a);
    assert_int_equal(s->a.result, 0);
    start(&s->a, FAR_OP_INSERT, number(8), 80);
    stage_stop_at(&s->a, at("shard:insert"));
}


/* Proves that a superseded update or put is done without writing. Fails if watch_locked_bucket (inline/write.c) does
 * not call detect_superseded: then the last value is 30. */
static void a_superseded_update_is_done_on(const variant *variant) {
    static const far_op_kind kinds[] = {FAR_OP_UPDATE, FAR_OP_PUT};
    for (unsigned i = 0; i < 2; i++) {
        stage s;
        let_b_meet_the_lock(&s, variant, kinds[i]);
        stage_finish(&s.a);
        stage_finish(&s.b);
        assert_int_equal(s.a.result, 0);
        assert_int_equal(s.b.result, 0);
        assert_int_equal(COUNTED(&s, absorbed), slots_may_tear(variant) ? 0 : 1);
        assert_int_equal(get(&s.c, number(7)), slots_may_tear(variant) ? 30 : 20);
        stage_close(&s);
    }
}
TEST_VARIANTS_OF(a_superseded_update_is_done, INLINE);


/* Proves that a superseded update does not wait for another lock holder of the bucket. B's second read finds the lock
 * taken by a write to another key. Fails if each read is compared with the previous one instead of the first. */
static void a_superseded_update_does_not_wait_on(const variant *variant) {
    stage s;
    let_b_meet_the_lock(&s, variant, FAR_OP_UPDATE);
    finish_and_lock_again(&s);
    stage_finish(&s.b);
    assert_int_equal(s.b.result, 0);
    assert_int_equal(get(&s.c, number(7)), 20);
    stage_finish(&s.a);
    stage_close(&s);
}
TEST_INLINE_WITHOUT_TEARING(a_superseded_update_does_not_wait);


/* Proves that deletes and inserts are not superseded by an update: the delete must still remove the key, and the insert
 * must report EXISTS. Fails if detect_superseded is used for every kind of operation. */
static void a_delete_is_not_superseded_on(const variant *variant) {
    static const far_op_kind kinds[] = {FAR_OP_DELETE, FAR_OP_INSERT};
    for (unsigned i = 0; i < 2; i++) {
        stage s;
        let_b_meet_the_lock(&s, variant, kinds[i]);
        finish_and_lock_again(&s);
        far_sim_resume(s.b.client);
        far_sim_run_for(s.world, 100000);
        assert_false(s.b.ended);
        stage_finish(&s.a);
        stage_finish(&s.b);
        assert_int_equal(s.b.result, kinds[i] == FAR_OP_DELETE ? 0 : FAR_ERR_EXISTS);
        assert_int_equal(get(&s.c, number(7)), kinds[i] == FAR_OP_DELETE ? 0 : 20);
        stage_close(&s);
    }
}
TEST_VARIANTS_OF(a_delete_is_not_superseded, INLINE);


/* Proves that an update is not superseded by a lock holder that fails without writing, or that writes the same value.
 * Fails if a change of the lock's holder counts as an observation. */
static void an_update_that_is_not_superseded_writes_on(const variant *variant) {
    stage s;
    let_b_meet_the_lock(&s, variant, FAR_OP_UPDATE);
    stage_kill(&s, &s.a);
    stage_finish(&s.b);
    assert_int_equal(s.b.result, 0);
    assert_int_equal(get(&s.c, number(7)), 30);
    stage_close(&s);
}
TEST_VARIANTS_OF(an_update_that_is_not_superseded_writes, INLINE);


/* Proves that B does not use a torn image to decide that it was superseded. On a fabric that tears READs at words, B
 * reads the value that a slot had before A's insert, together with the key that it has since. B must not treat the
 * insert as an update that followed its own. Fails without the condition on whole_pairs in watch_locked_bucket. */
static void a_torn_read_is_no_observation_on(const variant *variant) {
    stage s;
    if (!slots_may_tear(variant))
        return;
    open_stage(&s, variant, 0, NO_GROWTH);
    assert_int_equal(get(&s.b, number(7)), 0);
    far_addr main_bucket = bucket_addr(&s.b, 0);
    start(&s.a, FAR_OP_INSERT, number(7), 20);
    stage_stop_at(&s.a, at("shard:insert"));
    start(&s.b, FAR_OP_UPDATE, number(7), 30);
    far_sim_hold *hold =
        stage_hold(&s.b, (far_sim_match){.kind = FAR_SIM_READ, .from = main_bucket, .to = main_bucket + 8});
    assert_int_equal(far_sim_release_units(hold, (const uint32_t[]){0, 2}, 2), 0); /* only the values of both slots */
    finish_and_lock_again(&s);
    far_sim_release(hold);
    far_sim_run_for(s.world, 100000);
    assert_false(s.b.ended);
    stage_finish(&s.a);
    stage_finish(&s.b);
    assert_int_equal(s.b.result, 0);
    assert_int_equal(get(&s.c, number(7)), 30);
    stage_close(&s);
}
TEST_VARIANTS_OF(a_torn_read_is_no_observation, INLINE);


/* Proves that C does not use an old copy of the key to decide that it was superseded. C has the old root. The key has
 * moved to the child and was changed there before C began. C reads the old copy in the parent and must not count itself
 * as superseded. Fails if detect_superseded omits shard_hit_is_valid. */
static void an_old_copy_is_no_observation_on(const variant *variant) {
    stage s;
    open_stage_with(&s, variant, 0, GROWING, true);
    key k = key_with(&s.a, 1, 0);
    put(&s.a, key_with(&s.a, 0, 0), 10);
    put(&s.a, k, 11);
    assert_int_equal(get(&s.c, k), 11);
    put(&s.b, key_with(&s.a, 0, 1), 12);
    start(&s.b, FAR_OP_PUT, key_with(&s.a, 0, 0), 20);
    far_sim_hold *hold = stage_hold(&s.b, rewrite_of(variant, bucket_addr(&s.a, 0)));
    put(&s.a, k, 21);
    start(&s.a, FAR_OP_INSERT, key_with(&s.a, 1, 1), 22);
    stage_stop_at(&s.a, at("shard:insert")); /* in the bucket that k has moved to */
    assert_int_equal(version(&s.c), 0);
    start(&s.c, FAR_OP_UPDATE, k, 30);
    far_sim_run_for(s.world, 300000);
    assert_false(s.c.ended);
    far_sim_release(hold);
    stage_finish(&s.b);
    stage_finish(&s.a);
    stage_finish(&s.c);
    assert_int_equal(s.c.result, 0);
    assert_int_equal(get(&s.c, k), 30);
    stage_close(&s);
}
TEST_VARIANTS_OF(an_old_copy_is_no_observation, INLINE);


/* Proves that operations which join B's RDWC round after B's first read do not count as superseded together with B,
 * because they began after the write that superseded B. Fails if detect_superseded seals with far_rdwc_seal (`writer`'s
 * update is lost), or uses the mark of the second read (`reader` returns 30). */
static void joining_after_the_first_read_is_not_superseded_on(const variant *variant) {
    stage s;
    open_stage(&s, variant, 0, NO_GROWTH);
    s.b.pool->rdwc = far_rdwc_new(0);
    stage_actor writer = s.b, reader = s.b;
    assert_int_equal(far_session_open(s.b.pool, &writer.session), 0);
    assert_int_equal(far_session_open(s.b.pool, &reader.session), 0);
    put(&s.a, number(7), 10);
    assert_int_equal(get(&reader, number(7)), 10);
    start(&s.a, FAR_OP_UPDATE, number(7), 20);
    stage_stop_at(&s.a, at("shard:replace"));
    start(&s.b, FAR_OP_UPDATE, number(7), 30);
    stage_stop_at(&s.b, at("shard:reread_locked_bucket"));
    stage_finish(&s.a);
    start(&reader, FAR_OP_GET, number(7), 0);
    start(&writer, FAR_OP_UPDATE, number(7), 40);
    far_sim_run_for(s.world, 50000);
    assert_false(reader.ended || writer.ended);
    far_sim_resume(s.b.client);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    assert_true(s.b.ended && s.b.result == 0 && writer.result == 0);
    assert_int_equal(COUNTED(&s, absorbed), 1);
    assert_true(result_value(&reader) == 20 || result_value(&reader) == 40);
    assert_int_equal(get(&s.c, number(7)), 40);
    far_session_close(writer.session);
    far_session_close(reader.session);
    stage_close(&s);
}
TEST_INLINE_WITHOUT_TEARING(joining_after_the_first_read_is_not_superseded);


/* Proves that an operation which joins between two attempts of B does not count as superseded together with B. B's
 * second read shows the same value as the first, and only the next attempt observes the change. `reader` joins in
 * between, when the value is 20. `reader` must not return 30, which precedes 20. Fails if the mark (the batch before
 * which a member must have joined) is that of the attempt that observed the change. */
static void joining_between_two_attempts_is_not_superseded_on(const variant *variant) {
    stage s;
    open_stage(&s, variant, 0, NO_GROWTH);
    s.b.pool->rdwc = far_rdwc_new(0);
    stage_actor reader = s.b;
    assert_int_equal(far_session_open(s.b.pool, &reader.session), 0);
    put(&s.a, number(7), 10);
    assert_int_equal(get(&reader, number(7)), 10);
    far_addr main_bucket = bucket_addr(&s.b, 0);
    start(&s.a, FAR_OP_UPDATE, number(7), 20);
    stage_stop_at(&s.a, at("shard:replace"));
    start(&s.b, FAR_OP_UPDATE, number(7), 30);
    stage_stop_at(&s.b, at("shard:reread_locked_bucket"));
    far_sim_hold *hold = far_sim_hold_completion(
        s.b.client, (far_sim_match){.kind = FAR_SIM_READ, .from = main_bucket, .to = main_bucket + 8});
    far_sim_resume(s.b.client);
    far_sim_run_for(s.world, 20000);
    assert_true(far_sim_reached(hold));
    finish_and_lock_again(&s);
    start(&reader, FAR_OP_GET, number(7), 0);
    far_sim_run_for(s.world, 5000);
    assert_false(s.b.ended || reader.ended);
    far_sim_release(hold);
    far_sim_run_for(s.world, 100000);
    assert_true(s.b.ended && s.b.result == 0);
    assert_int_equal(COUNTED(&s, absorbed), 1);
    stage_finish(&s.a);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    assert_int_equal(result_value(&reader), 20);
    far_session_close(reader.session);
    stage_close(&s);
}
TEST_INLINE_WITHOUT_TEARING(joining_between_two_attempts_is_not_superseded);


/* Proves that an operation which joins before the first observation is served with B. B's first read finds no key 7;
 * the next ones show 20 and then 21. `reader`, which joined before 20 was observed, returns 30. Fails if
 * detect_superseded does not set the mark: then `reader` runs again and returns 21. */
static void joining_before_the_first_read_is_served_on(const variant *variant) {
    stage s;
    open_stage(&s, variant, 0, NO_GROWTH);
    s.b.pool->rdwc = far_rdwc_new(0);
    stage_actor reader = s.b;
    assert_int_equal(far_session_open(s.b.pool, &reader.session), 0);
    assert_int_equal(get(&reader, number(7)), 0);
    far_addr main_bucket = bucket_addr(&s.b, 0);
    start(&s.a, FAR_OP_INSERT, number(7), 20);
    stage_stop_at(&s.a, at("shard:insert"));
    start(&s.b, FAR_OP_PUT, number(7), 30);
    far_sim_hold *hold = far_sim_hold_completion(
        s.b.client, (far_sim_match){.kind = FAR_SIM_READ, .from = main_bucket, .to = main_bucket + 8});
    far_sim_run_for(s.world, 20000);
    assert_true(far_sim_reached(hold));
    start(&reader, FAR_OP_GET, number(7), 0);
    far_sim_run_for(s.world, 5000);
    stage_finish(&s.a);
    start(&s.a, FAR_OP_UPDATE, number(7), 21);
    stage_stop_at(&s.a, at("shard:replace"));
    far_sim_release(hold);
    far_sim_run_for(s.world, 100000);
    assert_false(s.b.ended || reader.ended);
    finish_and_lock_again(&s);
    far_sim_run_for(s.world, 100000);
    assert_true(s.b.ended && s.b.result == 0);
    assert_int_equal(COUNTED(&s, absorbed), 1);
    stage_finish(&s.a);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    assert_int_equal(result_value(&reader), 30);
    far_session_close(reader.session);
    stage_close(&s);
}
TEST_INLINE_WITHOUT_TEARING(joining_before_the_first_read_is_served);


/* Returns the published and unpublished number of keys of all handles. */
static int64_t keys_counted(stage *s) {
    int64_t sum = (int64_t)world_word(s->world, shard_state_of(s->a.index)->part[0].pcb + 8 * SHARD_PCB_COUNT);
    for (unsigned i = 0; i < 3; i++) {
        const stage_actor *a = i == 0 ? &s->a : i == 1 ? &s->b : &s->c;
        sum += atomic_load_explicit(&shard_state_of(a->index)->part[0].delta, memory_order_relaxed);
    }
    return sum;
}


/* Proves that a put which is superseded after a split is not counted as a new key. B splits the bucket for its put, but
 * the split does not carry the put. When B tries again, A holds the lock and supersedes it. Fails if `delta`, the
 * number of added keys, keeps the value that was set for the attempt with the split. */
static void a_put_superseded_after_a_split_adds_no_key_on(const variant *variant) {
    stage s;
    open_stage_with(&s, variant, 0, NO_GROWTH ",combining=off", true);
    key k = key_with(&s.a, 0, 0);
    put(&s.a, k, 10);
    put(&s.c, key_with(&s.a, 1, 0), 11);
    double_by(&s, &s.b);
    start(&s.b, FAR_OP_PUT, k, 30);
    stage_stop_at(&s.b, (far_sim_match){.point = "shard:lock", .nth = 2});
    assert_int_equal(COUNTED(&s, splits_graced), 1);
    start(&s.a, FAR_OP_UPDATE, k, 20);
    stage_stop_at(&s.a, at("shard:replace"));
    far_sim_resume(s.b.client);
    stage_stop_at(&s.b, at("shard:reread_locked_bucket"));
    stage_finish(&s.a);
    stage_finish(&s.b);
    assert_int_equal(s.b.result, 0);
    assert_int_equal(COUNTED(&s, absorbed), 1);
    assert_int_equal(get(&s.c, k), 20);
    assert_int_equal(keys_counted(&s), 2);
    stage_close(&s);
}
TEST_INLINE_WITHOUT_TEARING(a_put_superseded_after_a_split_adds_no_key);


/* Proves that B forgets the value that it has observed when it closes its RDWC round for writers (the seal), because
 * operations that joined the round later are part of it then. B has read the value 10. Then the key is deleted, its
 * slot is reused, and `writer` joins B's round. B seals the round for a split, but has no room for the pair and must
 * try again. A inserts the key with the value 50. An insert supersedes no put, because the key is absent immediately
 * before a successful insert. So B must write the value of `writer`, which is 40. Fails if seal_value (inline/write.c)
 * keeps `observed`. */
static void a_read_before_the_seal_is_discarded_on(const variant *variant) {
    stage s;
    open_stage_with(&s, variant, 0, NO_GROWTH, true);
    s.b.pool->rdwc = far_rdwc_new(0);
    stage_actor writer = s.b;
    assert_int_equal(far_session_open(s.b.pool, &writer.session), 0);
    key k = key_with(&s.a, 0, 0);
    put(&s.a, k, 10);
    put(&s.a, key_with(&s.a, 1, 0), 11);
    double_by(&s, &s.b);
    start(&s.a, FAR_OP_UPDATE, k, 20);
    stage_stop_at(&s.a, at("shard:replace"));
    start(&s.b, FAR_OP_PUT, k, 30);
    stage_stop_at(&s.b, at("shard:reread_locked_bucket"));
    stage_finish(&s.a);
    assert_int_equal(delete_key(&s.a, k), 0);
    put(&s.a, key_with(&s.a, 0, 1), 12);
    start(&writer, FAR_OP_PUT, k, 40);
    far_sim_run_for(s.world, 20000);
    assert_false(writer.ended);
    far_sim_resume(s.b.client);
    stage_stop_at(&s.b, (far_sim_match){.point = "shard:lock", .nth = 2});
    assert_int_equal(COUNTED(&s, splits_graced), 1);
    assert_int_equal(delete_key(&s.a, key_with(&s.a, 0, 1)), 0);
    assert_int_equal(insert(&s.a, k, 50), 0);
    start(&s.a, FAR_OP_INSERT, key_with(&s.a, 0, 2), 80);
    stage_stop_at(&s.a, at("shard:insert"));
    far_sim_resume(s.b.client);
    far_sim_run_for(s.world, 100000);
    assert_false(s.b.ended || writer.ended);
    stage_finish(&s.a);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    assert_true(s.b.ended && s.b.result == 0 && writer.ended && writer.result == 0);
    assert_int_equal(get(&s.c, k), 40);
    far_session_close(writer.session);
    stage_close(&s);
}
TEST_INLINE_WITHOUT_TEARING(a_read_before_the_seal_is_discarded);
