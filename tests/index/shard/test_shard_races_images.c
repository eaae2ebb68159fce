/* Races of both layouts in which an image contains words of different moments, or the WRITEs of one batch become
 * visible one after the other. The tests prove that clients draw no wrong conclusion from such images, and that other
 * clients observe no wrong state in between. */
#include "shard_rig.h"
#include "test.h"

#define TWO_LINES "slots=16,l2_slots=1,load=50,afs=1,idle_sweep=off" /* the ninth key makes the table double */


/* Returns the n-th key whose probe order begins at the first line, and which stays in its bucket or moves to the child
 * when the first doubling splits the bucket. */
static key key_of_first_line(const stage_actor *a, bool leaves, unsigned n) {
    for (unsigned i = 0;; i++) {
        key k = key_with(a, leaves, i);
        shard_op y = {.st = shard_state_of(a->index), .h = hash_of(a, k)};
        if (shard_start_line(&y) != 1 && n-- == 0)
            return k;
    }
}


/* Inserts one key that will move to the child and eight that will stay in the bucket. B inserts the last one, which
 * makes the table double. C inserts another key. No bucket is split yet. */
static void fill_and_grow(stage *s) {
    put(&s->a, key_of_first_line(&s->a, true, 0), 10);
    for (unsigned i = 0; i < 7; i++)
        put(&s->a, key_of_first_line(&s->a, false, i), 11);
    put(&s->b, key_of_first_line(&s->a, false, 7), 12);
    assert_int_equal(version(&s->b), 1);
    put(&s->c, key_of_first_line(&s->a, false, 8), 12); /* C reads the new root word of the doubling */
    assert_int_equal(version(&s->c), 1);
    assert_int_equal(COUNTED(s, splits_frozen) + COUNTED(s, splits_graced), 0);
}


static far_sim_hold *hold_read(stage_actor *a, far_addr bucket) {
    return stage_hold(a, (far_sim_match){.kind = FAR_SIM_READ, .from = bucket, .to = bucket + 8});
}


/* Proves that an insert does not use an image with words from before and after a split. B's insert reads the first
 * line, C splits the bucket and puts k into a word of the first line, which a key that moved to the child has freed.
 * Then B reads the other lines. B must report EXISTS. Fails if apply_change (pointer/write.c) omits no_split_has_begun.
 */
static void an_insert_during_a_split_on(const variant *variant) {
    stage s;
    uint32_t order[8];
    open_stage(&s, variant, 0, TWO_LINES);
    fill_and_grow(&s);
    const shard_state *st = shard_state_of(s.a.index);
    /* k stays at the next doubling too, so that a torn image would be accepted for it */
    key k = key_of_first_line(&s.a, false, 20);
    for (unsigned i = 21; shard_key_moves(hash_of(&s.a, k), st->p, st->b, 2); i++)
        k = key_of_first_line(&s.a, false, i);
    start(&s.b, FAR_OP_INSERT, k, 5);
    far_sim_hold *hold = hold_read(&s.b, bucket_addr(&s.a, 0));
    for (unsigned i = 0; i < 8; i++)
        order[i] = i;
    assert_int_equal(far_sim_release_units(hold, order, variant->units / 8), 0);
    put(&s.c, key_of_first_line(&s.a, false, 0), 13); /* this put splits the bucket */
    assert_int_equal(COUNTED(&s, splits_frozen) + COUNTED(&s, splits_graced), 1);
    put(&s.c, k, 7);
    far_sim_release(hold);
    stage_finish(&s.b);
    assert_int_equal(s.b.result, FAR_ERR_EXISTS);
    assert_there_once(&s, k, 7);
    stage_close(&s);
}
TEST_VARIANTS_OF(an_insert_during_a_split, POINTERS);


/* Proves that an update does not report NOT_FOUND because of a torn image. B updates a key that moves to the child. B's
 * READ returns the header from before the split and the words from after it, so B does not find the key. It must start
 * over. Fails if split_and_change (pointer/write.c) omits no_split_has_begun. */
static void an_update_during_a_split_on(const variant *variant) {
    stage s;
    open_stage(&s, variant, 0, TWO_LINES);
    fill_and_grow(&s);
    key k = key_of_first_line(&s.a, true, 0);
    start(&s.b, FAR_OP_UPDATE, k, 5);
    far_sim_hold *hold = hold_read(&s.b, bucket_addr(&s.a, 0));
    /* the granule with the header */
    assert_int_equal(far_sim_release_units(hold, &(uint32_t){variant->units - 1}, 1), 0);
    put(&s.c, key_of_first_line(&s.a, false, 0), 13);
    assert_int_equal(COUNTED(&s, splits_frozen) + COUNTED(&s, splits_graced), 1);
    far_sim_release(hold);
    stage_finish(&s.b);
    assert_int_equal(s.b.result, 0);
    assert_there_once(&s, k, 5);
    stage_close(&s);
}
TEST_VARIANTS_OF(an_update_during_a_split, POINTERS);


/* Proves that a split moves a TOMB that was reused after its image was read. B has read the bucket in order to split
 * it. C reuses a TOMB under the lock. B locks and freezes, and C's key must be moved. Fails if TOMBs are omitted when
 * words are frozen one by one (freeze_words in pointer/split.c). */
static void a_tomb_used_before_the_split_on(const variant *variant) {
    stage s;
    /* the fifth key makes the table double */
    open_stage(&s, variant, 0, "slots=4,l2_slots=2,load=80,afs=1,idle_sweep=off");
    for (unsigned i = 0; i < 4; i++)
        put(&s.a, key_with(&s.a, i % 2, i / 2), 10 + i);
    put(&s.b, key_with(&s.a, 0, 2), 14);
    assert_int_equal(version(&s.b), 1);
    /* A's last write before it reads the new root word of the doubling */
    assert_int_equal(delete_key(&s.a, key_with(&s.a, 1, 1)), 0);
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
TEST_VARIANTS_OF(a_tomb_used_before_the_split, POINTERS);


/* Proves that a write retries if a split of its bucket has begun, although no word is frozen yet. C, with the old root,
 * reads the bucket while B holds its lock for a split that includes B's own change. C must retry, so that B's change
 * can be part of the split. Fails if main_is_writable (pointer/write.c) ignores the lock, because C's CAS then makes B
 * retry. */
static void a_write_during_a_split_that_has_begun_on(const variant *variant) {
    stage s;
    open_stage(&s, variant, 0, TWO_LINES);
    for (unsigned i = 0; i < 8; i++)
        put(&s.a, key_with(&s.a, i % 2, i / 2), 10 + i);
    put(&s.b, key_with(&s.a, 0, 4), 18);
    assert_int_equal(version(&s.b), 1);
    assert_int_equal(version(&s.c), 0);
    start(&s.c, FAR_OP_UPDATE, key_with(&s.a, 0, 1), 30);
    stage_stop_at(&s.c, at("shard:seal")); /* before C reads its bucket */
    start(&s.b, FAR_OP_UPDATE, key_with(&s.a, 0, 0), 20);
    stage_stop_at(&s.b, at("shard:split_locked"));
    far_sim_resume(s.c.client);
    stage_stop_at(&s.c, (far_sim_match){.point = "shard:main_bucket_read", .nth = 2});
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
TEST_VARIANTS_OF(a_write_during_a_split_that_has_begun, POINTERS);


/* Inline layout. Proves that a delete clears the copy at level 2 before that at level 1. B's drain has written the pair
 * to level 1 and failed before it cleared level 2, and the pair at level 1 was updated. C deletes the key and fails
 * after its first WRITE. No client may find the old value. Fails if delete_pair (inline/write.c) clears the copy at level
 * 1 first. */
static void a_delete_frees_the_old_pair_first_on(const variant *variant) {
    stage s;
    open_stage(&s, variant, 0, "slots=2,l2_slots=2,load=95,afs=1,share=1,idle_sweep=off");
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
    put(&s.a, k, 30); /* changes the copy at level 1; the copy at level 2 keeps the old value */
    start(&s.c, FAR_OP_DELETE, k, 0);
    stage_stop_at(&s.c, at("shard:replace"));
    /* only the first WRITE takes effect */
    far_sim_kill_at(s.c.client, (far_sim_match){.kind = FAR_SIM_WRITE, .nth = 2}, 0);
    far_sim_resume(s.c.client);
    far_sim_run(s.world);
    assert_true(far_sim_killed(s.c.pool->fabric));
    assert_int_equal(get(&s.a, k), 30);
    assert_int_equal(delete_key(&s.a, k), 0);
    assert_int_equal(get(&s.a, k), 0);
    stage_close(&s);
}
TEST_VARIANTS_OF(a_delete_frees_the_old_pair_first, INLINE);


/* B's write of the test below. */
typedef struct change {
    far_op_kind kind;
    uint64_t before, after; /* value of the key before and after the change; 0: absent */
} change;

static const change changes[] = {{FAR_OP_INSERT, 0, 71}, {FAR_OP_UPDATE, 70, 71}, {FAR_OP_DELETE, 70, 0}};


/* Matches a WRITE of a pair of the bucket. */
static far_sim_match write_into(far_addr bucket) {
    return (far_sim_match){.kind = FAR_SIM_WRITE, .from = bucket, .to = bucket + 8 * SHARD_I_H};
}


static far_addr fill_bucket(stage *s, const variant *variant, const change *c) {
    open_stage(s, variant, 0, "slots=31,l2_slots=1,afs=1000000");
    put(&s->a, number(1), 1);
    put(&s->a, number(2), 2);
    if (c->before)
        put(&s->a, number(7), c->before);
    return bucket_addr(&s->a, 0);
}


static void assert_all_there(stage *s, uint64_t value) {
    assert_int_equal(get(&s->a, number(7)), value);
    assert_int_equal(get(&s->a, number(1)), 1);
    assert_int_equal(get(&s->a, number(2)), 2);
    assert_int_equal(get(&s->a, number(8)), 80);
    stage_tear_down(s);
}


/* Race H40 (docs/races/shard.md). Proves that a lock is free only after the change is visible. Only the first `units`
 * granules of B's WRITE of its change and of the unlock are visible. C must wait for the lock, and A must read the old or
 * the new value. Fails if write_and_unlock (inline/write.c) frees the lock by an earlier WRITE. */
static void a_change_is_visible_before_its_unlock_on(const variant *variant) {
    for (unsigned i = 0; i < sizeof(changes) / sizeof(changes[0]); i++)
        for (unsigned units = 0; units < 2; units++) {
            stage s;
            const change *c = &changes[i];
            far_addr bucket = fill_bucket(&s, variant, c);
            start(&s.b, c->kind, number(7), 71);
            far_sim_hold *hold = stage_hold(&s.b, write_into(bucket));
            if (units < far_sim_hold_units(hold) && units)
                assert_int_equal(far_sim_release_units(hold, (const uint32_t[]){0}, 1), 0);
            start(&s.c, FAR_OP_INSERT, number(8), 80);
            far_sim_run_for(s.world, 100000);
            assert_false(s.c.ended);
            uint64_t now = get(&s.a, number(7));
            assert_true(now == c->before || now == c->after);
            far_sim_release(hold);
            assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
            assert_true(s.b.result == 0 && s.c.result == 0);
            assert_all_there(&s, c->after);
        }
}
TEST_VARIANTS_OF(a_change_is_visible_before_its_unlock, INLINE);


/* Race H40. Proves that a client that fails in the WRITE of its change and of the unlock leaves a locked bucket with all
 * other pairs, which C then unlocks. */
static void a_failure_in_the_write_of_a_change_on(const variant *variant) {
    for (unsigned i = 0; i < sizeof(changes) / sizeof(changes[0]); i++)
        for (unsigned units = 0; units < 3; units++) {
            stage s;
            const change *c = &changes[i];
            far_addr bucket = fill_bucket(&s, variant, c);
            start(&s.b, c->kind, number(7), 71);
            far_sim_kill_at(s.b.client, write_into(bucket), units);
            far_sim_run(s.world);
            assert_true(far_sim_killed(s.b.pool->fabric));
            uint64_t now = get(&s.a, number(7));
            assert_true(now == c->before || now == c->after);
            assert_int_equal(insert(&s.c, number(8), 80), 0);
            assert_all_there(&s, now);
        }
}
TEST_VARIANTS_OF(a_failure_in_the_write_of_a_change, INLINE);
