/* Images that are not of one moment, and WRITEs of one batch that come one by one: what must not be read out of them,
 * and what others must not see between them. */
#include "shard_rig.h"

#define TWO_LINES "slots=16,l2_slots=1,load=50,afs=1,idle_sweep=off" /* the ninth key makes it double */


/* The n-th key whose order of slots begins with the first line, and which stays at the first doubling, or leaves. */
static key key_of_first_line(const stage_actor *a, bool leaves, unsigned n) {
    for (unsigned i = 0;; i++) {
        key k = key_with(a, leaves, i);
        shard_try y = {.st = shard_state_of(a->index), .h = hash_of(a, k)};
        if (shard_start_line(&y) != 1 && n-- == 0)
            return k;
    }
}


/* A key that leaves, then eight that stay; the last one is b's, and doubles. Another one is c's. Nothing is split yet. */
static void fill_and_grow(stage *s) {
    put(&s->a, key_of_first_line(&s->a, true, 0), 10);
    for (unsigned i = 0; i < 7; i++)
        put(&s->a, key_of_first_line(&s->a, false, i), 11);
    put(&s->b, key_of_first_line(&s->a, false, 7), 12);
    assert_int_equal(version(&s->b), 1);
    put(&s->c, key_of_first_line(&s->a, false, 8), 12); /* and learns of it then */
    assert_int_equal(version(&s->c), 1);
    assert_int_equal(COUNTED(s, splits_frozen) + COUNTED(s, splits_graced), 0);
}


static far_sim_hold *hold_read(stage_actor *a, far_addr bucket) {
    return stage_hold(a, (far_sim_match){.kind = FAR_SIM_READ, .from = bucket, .to = bucket + 8});
}


/* An insert reads the first line before its bucket is split, and the rest after it. The word of a key that has left is
 * free then, and another client puts k there. (The image taken for one of the new version: `apply` without is_calm.) */
static void an_insert_beside_a_split_told(const told *told) {
    stage s;
    uint32_t order[8];
    open_stage(&s, told, 0, TWO_LINES);
    fill_and_grow(&s);
    const shard_state *st = shard_state_of(s.a.index);
    key k =
        key_of_first_line(&s.a, false, 20); /* one that the next doubling leaves there too: any image will do for it */
    for (unsigned i = 21; shard_changes(hash_of(&s.a, k), st->p, st->b, 2); i++)
        k = key_of_first_line(&s.a, false, i);
    start(&s.b, FAR_OP_INSERT, k, 5);
    far_sim_hold *hold = hold_read(&s.b, bucket_addr(&s.a, 0));
    for (unsigned i = 0; i < 8; i++)
        order[i] = i;
    assert_int_equal(far_sim_release_units(hold, order, told->units / 8), 0);
    put(&s.c, key_of_first_line(&s.a, false, 0), 13); /* splits */
    assert_int_equal(COUNTED(&s, splits_frozen) + COUNTED(&s, splits_graced), 1);
    put(&s.c, k, 7);
    far_sim_release(hold);
    stage_finish(&s.b);
    assert_int_equal(s.b.result, FAR_ERR_EXISTS);
    assert_there_once(&s, k, 7);
    stage_close(&s);
}
TOLD_OF(an_insert_beside_a_split, POINTERS);


/* An update of a key that leaves reads the header before the bucket is split, and the words after it: the key is not
 * among them. (Refused by such an image: split_and_change without is_calm.) */
static void an_update_beside_a_split_told(const told *told) {
    stage s;
    open_stage(&s, told, 0, TWO_LINES);
    fill_and_grow(&s);
    key k = key_of_first_line(&s.a, true, 0);
    start(&s.b, FAR_OP_UPDATE, k, 5);
    far_sim_hold *hold = hold_read(&s.b, bucket_addr(&s.a, 0));
    assert_int_equal(far_sim_release_units(hold, &(uint32_t){told->units - 1}, 1), 0); /* with the header */
    put(&s.c, key_of_first_line(&s.a, false, 0), 13);
    assert_int_equal(COUNTED(&s, splits_frozen) + COUNTED(&s, splits_graced), 1);
    far_sim_release(hold);
    stage_finish(&s.b);
    assert_int_equal(s.b.result, 0);
    assert_there_once(&s, k, 5);
    stage_close(&s);
}
TOLD_OF(an_update_beside_a_split, POINTERS);


/* A TOMB is used again, under the home lock, after the one who splits the bucket has read it, and before he has its
 * lock. (TOMBs left out when words are frozen one by one.) */
static void a_tomb_used_before_the_split_told(const told *told) {
    stage s;
    open_stage(&s, told, 0, "slots=4,l2_slots=2,load=80,afs=1,idle_sweep=off"); /* the fifth key makes it double */
    for (unsigned i = 0; i < 4; i++)
        put(&s.a, key_with(&s.a, i % 2, i / 2), 10 + i);
    put(&s.b, key_with(&s.a, 0, 2), 14);
    assert_int_equal(version(&s.b), 1);
    assert_int_equal(delete_key(&s.a, key_with(&s.a, 1, 1)), 0); /* the last that a does without knowing of it */
    start(&s.b, FAR_OP_UPDATE, key_with(&s.a, 0, 0), 20);
    stage_stop_at(&s.b, at("shard:split"));
    assert_int_equal(version(&s.c), 0);
    put(&s.c, key_with(&s.a, 1, 3), 30);
    stage_finish(&s.b);
    assert_int_equal(s.b.result, 0);
    assert_int_equal(get(&s.a, key_with(&s.a, 0, 0)), 20);
    assert_there_once(&s, key_with(&s.a, 1, 3), 30);
    stage_close(&s);
}
TOLD_OF(a_tomb_used_before_the_split, POINTERS);


/* c does not know of the doubling, and reads a bucket whose split has begun, with no word frozen yet: it comes again,
 * and the change of b goes along with the split. (`is_writable` without the look at the lock: c's CAS comes between, and
 * b has to come again.) */
static void a_write_beside_a_split_that_has_begun_told(const told *told) {
    stage s;
    open_stage(&s, told, 0, TWO_LINES);
    for (unsigned i = 0; i < 8; i++)
        put(&s.a, key_with(&s.a, i % 2, i / 2), 10 + i);
    put(&s.b, key_with(&s.a, 0, 4), 18);
    assert_int_equal(version(&s.b), 1);
    assert_int_equal(version(&s.c), 0);
    start(&s.c, FAR_OP_UPDATE, key_with(&s.a, 0, 1), 30);
    stage_stop_at(&s.c, at("shard:seal")); /* before it reads its bucket */
    start(&s.b, FAR_OP_UPDATE, key_with(&s.a, 0, 0), 20);
    stage_stop_at(&s.b, at("shard:split_locked"));
    far_sim_resume(s.c.client);
    stage_stop_at(&s.c, (far_sim_match){.point = "shard:home_read", .nth = 2});
    uint64_t merged = COUNTED(&s, merged);
    stage_finish(&s.b);
    assert_int_equal(s.b.result, 0);
    assert_int_equal(COUNTED(&s, merged), merged + 1);
    stage_finish(&s.c);
    assert_int_equal(s.c.result, 0);
    assert_there_once(&s, key_with(&s.a, 0, 0), 20);
    assert_there_once(&s, key_with(&s.a, 0, 1), 30);
    stage_close(&s);
}
TOLD_OF(a_write_beside_a_split_that_has_begun, POINTERS);


/* Layout I: a drain has died between the WRITE above and the WRITE below, and the pair above was updated. A delete frees
 * the one below first: nobody meets it when the one above is gone. (`replace` with the other order.) */
static void a_delete_frees_the_old_pair_first_told(const told *told) {
    stage s;
    open_stage(&s, told, 0, "slots=2,l2_slots=2,load=95,afs=1,share=1,idle_sweep=off");
    put(&s.a, key_with(&s.a, 0, 0), 1);
    put(&s.a, key_with(&s.a, 1, 0), 2);
    key k = key_with(&s.a, 0, 1);
    put(&s.a, k, 3);
    bool died = false;
    for (unsigned i = 0; i < 8 && !died; i++) {
        start(&s.b, FAR_OP_PUT, key_with(&s.a, 1, i + 1), 5);
        far_sim_stop_before(s.b.client, at("shard:drain_move"));
        if (far_sim_run_client(s.b.client) == FAR_SIM_STOPPED) {
            far_sim_kill_at(s.b.client, (far_sim_match){.kind = FAR_SIM_WRITE, .nth = 2}, 0);
            far_sim_resume(s.b.client);
            far_sim_run(s.world);
            died = true;
        }
    }
    assert_true(died && far_sim_killed(s.b.pool->fabric));
    put(&s.a, k, 30); /* above; the copy below still has the old value */
    start(&s.c, FAR_OP_DELETE, k, 0);
    stage_stop_at(&s.c, at("shard:replace"));
    far_sim_kill_at(s.c.client, (far_sim_match){.kind = FAR_SIM_WRITE, .nth = 2}, 0); /* the first one only */
    far_sim_resume(s.c.client);
    far_sim_run(s.world);
    assert_true(far_sim_killed(s.c.pool->fabric));
    assert_int_equal(get(&s.a, k), 30);
    assert_int_equal(delete_key(&s.a, k), 0);
    assert_int_equal(get(&s.a, k), 0);
    stage_close(&s);
}
TOLD_OF(a_delete_frees_the_old_pair_first, INLINE);


int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_insert_beside_a_split),          cmocka_unit_test(an_update_beside_a_split),
        cmocka_unit_test(a_tomb_used_before_the_split),      cmocka_unit_test(a_write_beside_a_split_that_has_begun),
        cmocka_unit_test(a_delete_frees_the_old_pair_first),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
