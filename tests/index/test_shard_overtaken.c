/* Layout I: an update that waits for the lock of its bucket, and sees that the key was changed meanwhile, is done: it was
 * overwritten at once. What must not be taken for that: what happened before it began, what happened to others, and what
 * those wrote or asked for who joined it too late. */
#include "index/rdwc.h"
#include "shard_rig.h"


static bool tears(const told *told) { /* value and key of a slot may be of two moments: nobody goes by such a look */
    return told->units == 64;
}


#define TOLD_WHERE_IT_LOOKS(story)                                                                                     \
    static void story(void **state) {                                                                                  \
        (void)state;                                                                                                   \
        for (unsigned i = 0; i < sizeof(all_told) / sizeof(all_told[0]); i++)                                          \
            if (all_told[i].inlined && !tears(&all_told[i]))                                                           \
                story##_told(&all_told[i]);                                                                            \
    }                                                                                                                  \
    _Static_assert(1, "")


/* Key 7 has the value 10. a has the lock, to write 20; b, which does something to key 7, has failed to take it. Where it
 * looks, it has seen 10, and has not looked again. */
static void begin(stage *s, const told *told, far_op_kind kind) {
    open_stage(s, told, 0, STILL);
    put(&s->a, number(7), 10);
    assert_int_equal(get(&s->b, number(7)), 10);
    start(&s->a, FAR_OP_UPDATE, number(7), 20);
    stage_stop_at(&s->a, at("shard:replace"));
    start(&s->b, kind, number(7), 30);
    bool looks = (kind == FAR_OP_UPDATE || kind == FAR_OP_PUT) && !tears(told);
    stage_stop_at(&s->b, looks ? at("shard:glimpsed") : (far_sim_match){.point = "shard:lock", .nth = 2});
}


/* a writes 20, and takes the lock again, to insert another key into the bucket. */
static void finish_and_lock_again(stage *s) {
    stage_finish(&s->a);
    assert_int_equal(s->a.result, 0);
    start(&s->a, FAR_OP_INSERT, number(8), 80);
    stage_stop_at(&s->a, at("shard:insert"));
}


/* (watch without is_overtaken: the last value is 30.) */
static void an_overtaken_update_is_done_told(const told *told) {
    static const far_op_kind kinds[] = {FAR_OP_UPDATE, FAR_OP_PUT};
    for (unsigned i = 0; i < 2; i++) {
        stage s;
        begin(&s, told, kinds[i]);
        stage_finish(&s.a);
        stage_finish(&s.b);
        assert_int_equal(s.a.result, 0);
        assert_int_equal(s.b.result, 0);
        assert_int_equal(COUNTED(&s, absorbed), tears(told) ? 0 : 1);
        assert_int_equal(get(&s.c, number(7)), tears(told) ? 30 : 20);
        stage_close(&s);
    }
}
TOLD_OF(an_overtaken_update_is_done, INLINE);


/* The second look finds the lock taken again, by a write to another key of the bucket. (The comparison with the value of
 * the look before, instead of the first.) */
static void an_overtaken_update_waits_for_nobody_told(const told *told) {
    stage s;
    begin(&s, told, FAR_OP_UPDATE);
    finish_and_lock_again(&s);
    stage_finish(&s.b);
    assert_int_equal(s.b.result, 0);
    assert_int_equal(get(&s.c, number(7)), 20);
    stage_finish(&s.a);
    stage_close(&s);
}
TOLD_WHERE_IT_LOOKS(an_overtaken_update_waits_for_nobody);


/* A delete that is overtaken by an update has still to delete, an insert to say that the key is there. (is_overtaken for
 * every kind.) */
static void a_delete_is_not_overtaken_told(const told *told) {
    static const far_op_kind kinds[] = {FAR_OP_DELETE, FAR_OP_INSERT};
    for (unsigned i = 0; i < 2; i++) {
        stage s;
        begin(&s, told, kinds[i]);
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
TOLD_OF(a_delete_is_not_overtaken, INLINE);


/* A holder that dies, or that writes what was there already, has overtaken nobody whom the looks can tell of. (is_overtaken
 * by the lock that changed hands.) */
static void who_is_not_overtaken_writes_told(const told *told) {
    stage s;
    begin(&s, told, FAR_OP_UPDATE);
    stage_kill(&s, &s.a);
    stage_finish(&s.b);
    assert_int_equal(s.b.result, 0);
    assert_int_equal(get(&s.c, number(7)), 30);
    stage_close(&s);
}
TOLD_OF(who_is_not_overtaken_writes, INLINE);


/* Where the unit is a word b sees the value that the slot had before a's insert beside the key that it has since. It must
 * not take the insert for an update that came after its own. (watch without `tears`.) */
static void a_torn_look_is_none_told(const told *told) {
    stage s;
    if (!tears(told))
        return;
    open_stage(&s, told, 0, STILL);
    assert_int_equal(get(&s.b, number(7)), 0);
    far_addr home = bucket_addr(&s.b, 0);
    start(&s.a, FAR_OP_INSERT, number(7), 20);
    stage_stop_at(&s.a, at("shard:insert"));
    start(&s.b, FAR_OP_UPDATE, number(7), 30);
    far_sim_hold *hold = stage_hold(&s.b, (far_sim_match){.kind = FAR_SIM_READ, .from = home, .to = home + 8});
    assert_int_equal(far_sim_release_units(hold, (const uint32_t[]){0, 2}, 2), 0); /* the values of both slots */
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
TOLD_OF(a_torn_look_is_none, INLINE);


/* c knows the old root. The key has left its bucket, and was changed in the new one, before c began: what c sees in the old
 * one is no look at the key. (is_overtaken without shard_hit_counts.) */
static void an_old_copy_is_no_look_told(const told *told) {
    stage s;
    open_stage_with(&s, told, 0, GROWING, true);
    key k = key_with(&s.a, 1, 0);
    put(&s.a, key_with(&s.a, 0, 0), 10);
    put(&s.a, k, 11);
    assert_int_equal(get(&s.c, k), 11);
    put(&s.b, key_with(&s.a, 0, 1), 12);
    start(&s.b, FAR_OP_PUT, key_with(&s.a, 0, 0), 20);
    far_sim_hold *hold = stage_hold(&s.b, write_of(bucket_addr(&s.a, 0)));
    put(&s.a, k, 21);
    start(&s.a, FAR_OP_INSERT, key_with(&s.a, 1, 1), 22);
    stage_stop_at(&s.a, at("shard:insert")); /* in the bucket to which k has gone */
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
TOLD_OF(an_old_copy_is_no_look, INLINE);


/* Those who join b after its first look have begun after what overtook it. (far_rdwc_seal in is_overtaken: the update is
 * lost; the mark of the second look: the get sees 30.) */
static void who_joins_after_the_look_is_not_overtaken_told(const told *told) {
    stage s;
    open_stage(&s, told, 0, STILL);
    s.b.pool->rdwc = far_rdwc_new(0);
    stage_actor writer = s.b, reader = s.b;
    assert_int_equal(far_session_open(s.b.pool, &writer.session), 0);
    assert_int_equal(far_session_open(s.b.pool, &reader.session), 0);
    put(&s.a, number(7), 10);
    assert_int_equal(get(&reader, number(7)), 10);
    start(&s.a, FAR_OP_UPDATE, number(7), 20);
    stage_stop_at(&s.a, at("shard:replace"));
    start(&s.b, FAR_OP_UPDATE, number(7), 30);
    stage_stop_at(&s.b, at("shard:glimpsed"));
    stage_finish(&s.a);
    start(&reader, FAR_OP_GET, number(7), 0);
    start(&writer, FAR_OP_UPDATE, number(7), 40);
    far_sim_run_for(s.world, 50000);
    assert_false(reader.ended || writer.ended);
    far_sim_resume(s.b.client);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    assert_true(s.b.ended && s.b.result == 0 && writer.result == 0);
    assert_int_equal(COUNTED(&s, absorbed), 1);
    assert_true(given(&reader) == 20 || given(&reader) == 40);
    assert_int_equal(get(&s.c, number(7)), 40);
    far_session_close(writer.session);
    far_session_close(reader.session);
    stage_close(&s);
}
TOLD_WHERE_IT_LOOKS(who_joins_after_the_look_is_not_overtaken);


/* The second look sees what the first saw; only the next attempt finds the key changed. reader joins in between, when 20 is
 * there: it must not see 30, which came before that. (The mark of the attempt that finds it, instead of the first look's.) */
static void who_joins_between_two_attempts_is_not_overtaken_told(const told *told) {
    stage s;
    open_stage(&s, told, 0, STILL);
    s.b.pool->rdwc = far_rdwc_new(0);
    stage_actor reader = s.b;
    assert_int_equal(far_session_open(s.b.pool, &reader.session), 0);
    put(&s.a, number(7), 10);
    assert_int_equal(get(&reader, number(7)), 10);
    far_addr home = bucket_addr(&s.b, 0);
    start(&s.a, FAR_OP_UPDATE, number(7), 20);
    stage_stop_at(&s.a, at("shard:replace"));
    start(&s.b, FAR_OP_UPDATE, number(7), 30);
    stage_stop_at(&s.b, at("shard:glimpsed"));
    far_sim_hold *hold =
        far_sim_hold_completion(s.b.client, (far_sim_match){.kind = FAR_SIM_READ, .from = home, .to = home + 8});
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
    assert_int_equal(given(&reader), 20);
    far_session_close(reader.session);
    stage_close(&s);
}
TOLD_WHERE_IT_LOOKS(who_joins_between_two_attempts_is_not_overtaken);


/* reader joins b, whose first look finds no key 7; the next ones see 20, then 21. The round counts from the first of these on, so
 * that reader is served with it. (is_overtaken without `mark`: reader runs again, and sees 21.) */
static void who_joins_before_the_look_is_served_told(const told *told) {
    stage s;
    open_stage(&s, told, 0, STILL);
    s.b.pool->rdwc = far_rdwc_new(0);
    stage_actor reader = s.b;
    assert_int_equal(far_session_open(s.b.pool, &reader.session), 0);
    assert_int_equal(get(&reader, number(7)), 0);
    far_addr home = bucket_addr(&s.b, 0);
    start(&s.a, FAR_OP_INSERT, number(7), 20);
    stage_stop_at(&s.a, at("shard:insert"));
    start(&s.b, FAR_OP_PUT, number(7), 30);
    far_sim_hold *hold =
        far_sim_hold_completion(s.b.client, (far_sim_match){.kind = FAR_SIM_READ, .from = home, .to = home + 8});
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
    assert_int_equal(given(&reader), 30);
    far_session_close(reader.session);
    stage_close(&s);
}
TOLD_WHERE_IT_LOOKS(who_joins_before_the_look_is_served);


/* What handles have told of, and what they have not yet. */
static int64_t keys_counted(stage *s) {
    int64_t sum = (int64_t)world_word(s->world, shard_state_of(s->a.index)->part[0].pcb + 8 * SHARD_PCB_COUNT);
    for (unsigned i = 0; i < 3; i++) {
        const stage_actor *a = i == 0 ? &s->a : i == 1 ? &s->b : &s->c;
        sum += atomic_load_explicit(&shard_state_of(a->index)->part[0].delta, memory_order_relaxed);
    }
    return sum;
}


/* b splits the bucket for its put, which does not go along; when it comes back a has the lock, and overtakes it. b has
 * added no key. (delta as the split left it: one key too many.) */
static void who_is_overtaken_after_a_split_has_added_nothing_told(const told *told) {
    stage s;
    open_stage_with(&s, told, 0, STILL ",combining=off", true);
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
    stage_stop_at(&s.b, at("shard:glimpsed"));
    stage_finish(&s.a);
    stage_finish(&s.b);
    assert_int_equal(s.b.result, 0);
    assert_int_equal(COUNTED(&s, absorbed), 1);
    assert_int_equal(get(&s.c, k), 20);
    assert_int_equal(keys_counted(&s), 2);
    stage_close(&s);
}
TOLD_WHERE_IT_LOOKS(who_is_overtaken_after_a_split_has_added_nothing);


/* b has seen the key with 10; then it is deleted, its slot taken, and writer joins b's round. b splits the bucket, which
 * ends the round, but has no room for the pair. That the key is there again since then overtakes nobody: it was inserted,
 * so nobody's put came just before. (seal that leaves `glimpsed`: 50 stays.) */
static void a_look_before_the_round_was_sealed_is_forgotten_told(const told *told) {
    stage s;
    open_stage_with(&s, told, 0, STILL, true);
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
    stage_stop_at(&s.b, at("shard:glimpsed"));
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
TOLD_WHERE_IT_LOOKS(a_look_before_the_round_was_sealed_is_forgotten);


int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_overtaken_update_is_done),
        cmocka_unit_test(an_overtaken_update_waits_for_nobody),
        cmocka_unit_test(a_delete_is_not_overtaken),
        cmocka_unit_test(who_is_not_overtaken_writes),
        cmocka_unit_test(a_torn_look_is_none),
        cmocka_unit_test(an_old_copy_is_no_look),
        cmocka_unit_test(who_joins_after_the_look_is_not_overtaken),
        cmocka_unit_test(who_joins_between_two_attempts_is_not_overtaken),
        cmocka_unit_test(who_joins_before_the_look_is_served),
        cmocka_unit_test(who_is_overtaken_after_a_split_has_added_nothing),
        cmocka_unit_test(a_look_before_the_round_was_sealed_is_forgotten),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
