/* Races of the pointer layout, executed step by step. docs/races/shard.md describes each race under the number in its
 * comment, such as H1. Each race runs with both tearing granules, and with and without masked CAS. Each test fails if
 * the rule that its comment names is removed, except tomb_reuse_stale_image: there the order of the probes is
 * sufficient, and the rule is a second guard. */
#include "shard_text_keys.h"
#include "test.h"

#include <stdio.h>
#include <string.h>

/* One bucket with two slots, and one slot in each level-2 bucket. No client checks the load. */
#define NO_GROWTH "partitions=1,bits=0,slots=2,l2_slots=1,afs=1000000"
/* Four slots: the third key makes the table double. */
#define GROWING "partitions=1,bits=0,slots=4,l2_slots=1,load=60,afs=1"

static const char *const fabrics[] = {NULL, "atomic_bytes=8", "masked_cas=off",
                                      "atomic_bytes=8,masked_cas=off,atomics_in_order=on"};

#define ON_EVERY_FABRIC(test)                                                                                          \
    TEST(test) {                                                                                                       \
        for (unsigned i = 0; i < sizeof(fabrics) / sizeof(fabrics[0]); i++)                                            \
            test##_on(fabrics[i]);                                                                                     \
    }                                                                                                                  \
    _Static_assert(1, "")


static far_addr bucket_of(const stage_actor *a, uint64_t bucket) {
    const shard_state *st = shard_state_of(a->index);
    unsigned segment = shard_segment(bucket, st->b);
    return atomic_load_explicit(&st->part[0].segment[segment], memory_order_relaxed) +
           shard_in_segment(bucket, st->b) * SHARD_BUCKET_BYTES;
}


static unsigned version(stage_actor *a) {
    return shard_root_d(atomic_load_explicit(&shard_state_of(a->index)->part[0].root, memory_order_relaxed));
}


/* Race H1 (docs/races/shard.md). Proves that two inserts of one key cannot both succeed. A's insert of "k" stops before
 * its CAS on slot 1. B deletes the key in slot 0. C inserts "k" and succeeds. A continues and must report EXISTS. Fails
 * if a deleted slot becomes EMPTY instead of TOMB (pointer/write.c), because then A and C use different slots. */
static void two_inserts_freed_front_on(const char *sim) {
    stage s;
    stage_open(&s, "shard", NO_GROWTH, sim);
    stage_write(&s.a, "first", "0");
    stage_start(&s.a, FAR_OP_INSERT, "k", "a");
    stage_stop_at(&s.a, at("shard:insert"));
    stage_delete(&s.b, "first");
    assert_int_equal(stage_do(&s.c, FAR_OP_INSERT, "k", "c"), 0);
    stage_finish(&s.a);
    assert_int_equal(s.a.result, FAR_ERR_EXISTS);
    stage_delete(&s.b, "k");
    assert_true(stage_reads(&s.c, "k", NULL));
    stage_close(&s);
}
ON_EVERY_FABRIC(two_inserts_freed_front);


/* Race H2 (docs/races/shard.md). Proves that a late put does not return after a delete. A's put of "k" stops before its
 * CAS. B deletes the key in the first slot, C puts "k", and B's delete of "k" stops before its CAS. A finishes; B
 * finishes. "k" must be absent. Fails without the first-EMPTY rule, as H1. */
static void resurrect_behind_on(const char *sim) {
    stage s;
    stage_open(&s, "shard", NO_GROWTH, sim);
    stage_write(&s.a, "first", "0");
    stage_start(&s.a, FAR_OP_PUT, "k", "2");
    stage_stop_at(&s.a, at("shard:insert"));
    stage_delete(&s.b, "first");
    stage_write(&s.c, "k", "1");
    stage_start(&s.b, FAR_OP_DELETE, "k", NULL);
    stage_stop_at(&s.b, at("shard:replace"));
    stage_finish(&s.a);
    assert_int_equal(s.a.result, 0);
    assert_true(stage_reads(&s.c, "k", "2"));
    stage_finish(&s.b);
    assert_int_equal(s.b.result, 0);
    assert_true(stage_reads(&s.c, "k", NULL)); /* the delete has removed the only copy */
    stage_close(&s);
}
ON_EVERY_FABRIC(resurrect_behind);


/* Race H3 (docs/races/shard.md). Proves that while a key is inserted at level 2, no other insert can store the same key
 * at level 1. A's insert of "k" holds the lock and is about to use level 2. B deletes a key of level 1, and C inserts
 * "k". C must wait for A and report EXISTS. Fails if the insert to level 2 does not hold the bucket's lock
 * (shard_p_lock). */
static void l2_insert_l1_freed_on(const char *sim) {
    stage s;
    stage_open(&s, "shard", NO_GROWTH, sim);
    stage_write(&s.a, "x", "0");
    stage_write(&s.a, "y", "0");
    stage_start(&s.a, FAR_OP_INSERT, "k", "a");
    stage_stop_at(&s.a, at("shard:place_in_overflow"));
    stage_delete(&s.b, "x");
    stage_start(&s.c, FAR_OP_INSERT, "k", "c");
    far_sim_run_for(s.world, 200000);
    assert_false(s.c.ended);
    stage_finish(&s.a);
    assert_int_equal(s.a.result, 0);
    stage_finish(&s.c);
    assert_int_equal(s.c.result, FAR_ERR_EXISTS);
    stage_close(&s);
}
ON_EVERY_FABRIC(l2_insert_l1_freed);


/* Race H4 (docs/races/shard.md). Proves that an insert finds its key at level 2, although level 1 has room again, and
 * reports EXISTS. Fails without the filter in the bucket's header (shard_generations_to_search in find.c). */
static void l2_key_l1_room_on(const char *sim) {
    stage s;
    stage_open(&s, "shard", NO_GROWTH, sim);
    stage_write(&s.a, "x", "0");
    stage_write(&s.a, "y", "0");
    stage_write(&s.a, "k", "below");
    assert_int_equal(shard_state_of(s.a.index)->counters.overflows, 1);
    stage_delete(&s.b, "x");
    assert_int_equal(stage_do(&s.c, FAR_OP_INSERT, "k", "c"), FAR_ERR_EXISTS);
    stage_write(&s.c, "k", "new");
    stage_write(&s.b, "z", "in the tomb");
    assert_true(stage_reads(&s.a, "k", "new") && stage_reads(&s.a, "z", "in the tomb"));
    stage_delete(&s.b, "k");
    assert_true(stage_reads(&s.c, "k", NULL));
    stage_close(&s);
}
ON_EVERY_FABRIC(l2_key_l1_room);


/* Race H5 (docs/races/shard.md). Proves that a CAS between the lock of a split and its freezing is not lost. A's put
 * stops before its CAS. B locks the bucket for a split. A's CAS succeeds, and B splits. A's value must be in the child.
 * Fails without freeze_words (pointer/split.c). */
static void cas_between_lock_and_write_on(const char *sim) {
    stage s;
    stage_open(&s, "shard", GROWING, sim);
    for (unsigned bit = 0; bit < 2; bit++)
        stage_write(&s.a, key_with(&s.a, bit, 0), "old");
    const char *k = key_with(&s.a, 1, 0);
    stage_start(&s.a, FAR_OP_PUT, k, "new");
    stage_stop_at(&s.a, at("shard:replace"));
    stage_write(&s.b, "third", "0");
    assert_int_equal(version(&s.b), 1);
    stage_start(&s.b, FAR_OP_PUT, key_with(&s.a, 0, 0), "b");
    stage_stop_at(&s.b, at("shard:split_locked"));
    stage_finish(&s.a);
    assert_int_equal(s.a.result, 0);
    stage_finish(&s.b);
    assert_true(stage_reads(&s.c, k, "new") && stage_reads(&s.c, key_with(&s.a, 0, 0), "b"));
    stage_close(&s);
}
ON_EVERY_FABRIC(cas_between_lock_and_write);


/* Race H19 (docs/races/shard.md). Proves that a CAS which fails because of freezing does not count as superseded. A's
 * update stops before its CAS. B freezes the bucket for a split. A's CAS fails; A must wait for the split and then
 * write its value. Fails if handle_lost_cas (pointer/write.c) accepts frozen words. */
static void absorb_after_freeze_on(const char *sim) {
    stage s;
    stage_open(&s, "shard", GROWING, sim);
    for (unsigned bit = 0; bit < 2; bit++)
        stage_write(&s.a, key_with(&s.a, bit, 0), "old");
    const char *k = key_with(&s.a, 1, 0);
    stage_start(&s.a, FAR_OP_UPDATE, k, "new");
    stage_stop_at(&s.a, at("shard:replace"));
    stage_write(&s.b, "third", "0");
    stage_start(&s.b, FAR_OP_PUT, key_with(&s.a, 0, 0), "b");
    stage_stop_at(&s.b, at("shard:write_halves"));
    far_sim_resume(s.a.client);
    far_sim_run_for(s.world, 100000);
    assert_false(s.a.ended); /* A waits for the split */
    assert_true(stage_reads(&s.c, k, "old"));
    far_sim_resume(s.b.client);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    assert_int_equal(s.a.result, 0);
    assert_true(stage_reads(&s.c, k, "new"));
    stage_close(&s);
}
ON_EVERY_FABRIC(absorb_after_freeze);


/* Race H6 (docs/races/shard.md). Proves that a stopped client blocks neither inserts nor a doubling. C stops in the
 * middle of a get. B inserts 60 keys, and the table doubles once. Only the second doubling waits until C continues.
 * Fails with a barrier over all clients. */
static void stopped_client_grow_on(const char *sim) {
    stage s;
    char key[16];
    stage_open(&s, "shard", GROWING, sim);
    stage_write(&s.a, "x", "0");
    stage_start(&s.c, FAR_OP_GET, "x", NULL);
    stage_stop_at(&s.c, at("shard:main_bucket_read"));
    for (unsigned i = 0; i < 60; i++) {
        snprintf(key, sizeof(key), "n%u", i);
        assert_int_equal(stage_do(&s.b, FAR_OP_INSERT, key, "v"), 0);
    }
    assert_int_equal(version(&s.b), 1); /* C's get, which is not finished, may meet only one doubling */
    for (unsigned i = 0; i < 60; i++) {
        snprintf(key, sizeof(key), "n%u", i);
        assert_true(stage_reads(&s.a, key, "v"));
    }
    stage_finish(&s.c);
    assert_int_equal(s.c.result, 0);
    for (unsigned i = 60; i < 90; i++) {
        snprintf(key, sizeof(key), "n%u", i);
        far_sim_sleep(s.world, 1000000);
        assert_int_equal(stage_do(&s.b, FAR_OP_INSERT, key, "v"), 0);
    }
    assert_true(version(&s.b) > 1);
    stage_close(&s);
}
ON_EVERY_FABRIC(stopped_client_grow);


/* Proves that idle handles delay nothing: B alone doubles the table many times. */
static void idle_client_grow_on(const char *sim) {
    stage s;
    char key[16];
    stage_open(&s, "shard", GROWING, sim);
    for (unsigned i = 0; i < 90; i++) {
        snprintf(key, sizeof(key), "n%u", i);
        assert_int_equal(stage_do(&s.b, FAR_OP_INSERT, key, "v"), 0);
        far_sim_sleep(s.world, 1000000);
    }
    assert_true(version(&s.b) >= 4);
    for (unsigned i = 0; i < 90; i++) {
        snprintf(key, sizeof(key), "n%u", i);
        assert_true(stage_reads(&s.a, key, "v"));
    }
    stage_close(&s);
}
ON_EVERY_FABRIC(idle_client_grow);


/* Race H8 (docs/races/shard.md). Proves that a reader with the old root does not find an old value. C's get has the old
 * root and stops before its READ. B's split has written the child, but its WRITE of the parent is held. A changes the
 * key in the child. C must return the new value. Fails without rule R2 (shard_hit_is_valid in shard.h). */
static void old_root_reader_after_child_update_on(const char *sim) {
    stage s;
    stage_open(&s, "shard", GROWING, sim);
    for (unsigned bit = 0; bit < 2; bit++)
        stage_write(&s.a, key_with(&s.a, bit, 0), "old");
    const char *k = key_with(&s.a, 1, 0);
    assert_true(stage_reads(&s.c, k, "old"));
    stage_start(&s.c, FAR_OP_GET, k, NULL);
    stage_stop_at(&s.c, (far_sim_match){.kind = FAR_SIM_READ}); /* C relies on the old root */
    stage_write(&s.b, "third", "0");
    far_addr parent = bucket_of(&s.a, 0);
    stage_start(&s.b, FAR_OP_PUT, key_with(&s.a, 0, 0), "b");
    far_sim_hold *hold =
        stage_hold(&s.b, (far_sim_match){.kind = FAR_SIM_WRITE, .from = parent, .to = parent + SHARD_BUCKET_BYTES});
    assert_int_equal(far_sim_hold_units(hold) > 1, 1);
    assert_int_equal(stage_do(&s.a, FAR_OP_PUT, k, "new"), 0);
    stage_finish(&s.c);
    assert_true(s.c.result == 0 && s.c.value_len == 3 && memcmp(s.c.value, "new", 3) == 0);
    /* a partly written parent misleads no reader either */
    assert_int_equal(far_sim_release_units(hold, (const uint32_t[]){0}, 1), 0);
    assert_true(stage_reads(&s.a, k, "new") && stage_reads(&s.a, "third", "0"));
    far_sim_release(hold);
    stage_finish(&s.b);
    assert_true(stage_reads(&s.c, k, "new") && stage_reads(&s.c, key_with(&s.a, 0, 0), "b"));
    stage_close(&s);
}
ON_EVERY_FABRIC(old_root_reader_after_child_update);


/* Races H10 and H11 (docs/races/shard.md). Proves that a takeover does not overwrite changes in a complete child. B
 * fails after it has written the child of a split. A changes a key in the child. C finishes the split. The key must
 * keep A's value. Fails if take_over_split (pointer/split.c) writes the child again. */
static void takeover_child_updated_on(const char *sim) {
    stage s;
    stage_open(&s, "shard", GROWING, sim);
    for (unsigned bit = 0; bit < 2; bit++)
        stage_write(&s.a, key_with(&s.a, bit, 0), "old");
    const char *k = key_with(&s.a, 1, 0), *stays = key_with(&s.a, 0, 0);
    stage_write(&s.b, "third", "0");
    far_addr parent = bucket_of(&s.a, 0);
    stage_start(&s.b, FAR_OP_PUT, stays, "b");
    far_sim_kill_at(s.b.client,
                    (far_sim_match){.kind = FAR_SIM_WRITE, .from = parent, .to = parent + SHARD_BUCKET_BYTES}, 1);
    far_sim_run(s.world);
    assert_true(far_sim_killed(s.b.pool->fabric));
    assert_int_equal(stage_do(&s.a, FAR_OP_PUT, k, "new"), 0);
    assert_true(stage_reads(&s.c, k, "new"));
    stage_write(&s.c, stays, "c"); /* needs the bucket that the failed client has locked */
    assert_true(shard_state_of(s.c.index)->counters.takeovers + shard_state_of(s.a.index)->counters.takeovers > 0);
    assert_true(stage_reads(&s.c, k, "new") && stage_reads(&s.a, stays, "c") && stage_reads(&s.a, "third", "0"));
    stage_close(&s);
}
ON_EVERY_FABRIC(takeover_child_updated);


/* Proves that two clients can begin to split the same parent. B stops before its CAS on the header. A splits the
 * bucket. B continues and must find the split done. */
static void two_movers_on_one_parent_on(const char *sim) {
    stage s;
    stage_open(&s, "shard", GROWING, sim);
    for (unsigned bit = 0; bit < 2; bit++)
        stage_write(&s.a, key_with(&s.a, bit, 0), "old");
    stage_write(&s.b, "third", "0");
    stage_start(&s.b, FAR_OP_PUT, key_with(&s.a, 0, 0), "b");
    stage_stop_at(&s.b, at("shard:split"));
    assert_int_equal(stage_do(&s.a, FAR_OP_PUT, key_with(&s.a, 1, 0), "a"), 0);
    assert_int_equal(stage_do(&s.a, FAR_OP_PUT, key_with(&s.a, 0, 1), "another"), 0);
    stage_finish(&s.b);
    assert_true(stage_reads(&s.c, key_with(&s.a, 0, 0), "b") && stage_reads(&s.c, key_with(&s.a, 1, 0), "a"));
    assert_true(stage_reads(&s.c, key_with(&s.a, 0, 1), "another"));
    stage_close(&s);
}
ON_EVERY_FABRIC(two_movers_on_one_parent);


/* Race H15 (docs/races/shard.md). Proves that an insert into a closed bucket decides by the image that it reads under
 * the lock. A and B both see a TOMB. B inserts "k" into it; A locks afterwards and must report EXISTS. */
static void tomb_reuse_stale_image_on(const char *sim) {
    stage s;
    stage_open(&s, "shard", NO_GROWTH, sim);
    stage_write(&s.a, "x", "0");
    stage_write(&s.a, "y", "0");
    stage_delete(&s.a, "x");
    stage_start(&s.a, FAR_OP_INSERT, "k", "a");
    stage_stop_at(&s.a, (far_sim_match){.kind = FAR_SIM_CAS});
    assert_int_equal(stage_do(&s.b, FAR_OP_INSERT, "k", "b"), 0);
    stage_finish(&s.a);
    assert_int_equal(s.a.result, FAR_ERR_EXISTS);
    stage_delete(&s.c, "k");
    assert_true(stage_reads(&s.a, "k", NULL));
    stage_close(&s);
}
ON_EVERY_FABRIC(tomb_reuse_stale_image);


/* Race H30 (docs/races/shard.md). Proves that the READs of a lock batch are repeated if they were executed before the
 * lock was taken. A's update finds its key at level 2 and is about to lock the bucket. B, which drains, holds the lock
 * while A's READs are executed; A's CAS is executed after B has moved the key up and unlocked. A must find the key at
 * its new place. Fails without the 8-byte READ of the lock in lock_and_read_extras (attempt.c). */
static void lock_batch_split_read_on(const char *sim) {
    stage s;
    char key[16];
    bool met = false;
    if (sim && strstr(sim, "atomics_in_order"))
        return; /* this fabric orders READs after atomics */
    stage_open(&s, "shard", "partitions=1,bits=0,slots=2,l2_slots=2,load=95,afs=1,share=1,idle_sweep=off", sim);
    for (unsigned i = 0; i < 2; i++)
        stage_write(&s.a, key_with(&s.a, i, 0), "0");
    const char *k = key_with(&s.a, 0, 1);
    stage_write(&s.a, k, "below");
    for (unsigned i = 2; i < 10 && !met; i++) { /* these keys move to the child, so that level 1 has room for k */
        snprintf(key, sizeof(key), "%s", key_with(&s.a, 1, i));
        stage_start(&s.b, FAR_OP_PUT, key, "v");
        far_sim_stop_before(s.b.client, at("shard:drain_lock"));
        met = far_sim_run_client(s.b.client) == FAR_SIM_STOPPED;
    }
    assert_true(met);
    stage_start(&s.a, FAR_OP_UPDATE, k, "new"); /* finds k at level 2 and is about to lock its main bucket */
    stage_stop_at(&s.a, (far_sim_match){.kind = FAR_SIM_CAS});
    stage_stop_at(&s.b, at("shard:locked"));
    far_sim_hold *hold = far_sim_hold_effect(s.a.client, (far_sim_match){.kind = FAR_SIM_CAS});
    far_sim_resume(s.a.client);
    far_sim_run_for(s.world, 20000);
    stage_finish(&s.b);
    assert_int_equal(s.b.result, 0);
    far_sim_sleep(s.world, 20000);
    far_sim_release(hold);
    stage_finish(&s.a);
    assert_int_equal(s.a.result, 0);
    assert_true(stage_reads(&s.c, k, "new"));
    stage_close(&s);
}
ON_EVERY_FABRIC(lock_batch_split_read);


/* Race H19 (docs/races/shard.md). Proves that an update whose slot was reused does not overwrite another key. A's
 * update stops before its CAS. B deletes the key and reuses its slot for another key. A's CAS fails; the update counts
 * as superseded by the delete, and the other key is intact. Fails if the CAS is repeated with the word that it has
 * found. */
static void update_vs_delete_reuse_on(const char *sim) {
    stage s;
    stage_open(&s, "shard", NO_GROWTH, sim);
    stage_write(&s.a, "k", "0");
    stage_write(&s.a, "y", "0");
    stage_start(&s.a, FAR_OP_UPDATE, "k", "a");
    stage_stop_at(&s.a, at("shard:replace"));
    stage_delete(&s.b, "k");
    stage_write(&s.b, "other", "whole");
    stage_finish(&s.a);
    assert_int_equal(s.a.result, 0);
    assert_true(stage_reads(&s.c, "k", NULL) && stage_reads(&s.c, "other", "whole"));
    stage_close(&s);
}
ON_EVERY_FABRIC(update_vs_delete_reuse);


/* Race H20 (docs/races/shard.md). Proves that the pair block of a replaced value is not reused while a pinned client
 * may read it. C's get stops after it has read the bucket, and A's update before its CAS. B updates the key 50 times. C
 * must return the value that it has seen, and A's update must count as superseded. */
static void aba_block_reuse_on(const char *sim) {
    stage s;
    stage_open(&s, "shard", NO_GROWTH, sim);
    stage_write(&s.a, "k", "old");
    stage_start(&s.c, FAR_OP_GET, "k", NULL);
    stage_stop_at(&s.c, at("shard:main_bucket_read"));
    stage_start(&s.a, FAR_OP_UPDATE, "k", "late");
    stage_stop_at(&s.a, at("shard:replace"));
    for (unsigned i = 0; i < 50; i++) {
        stage_write(&s.b, "k", "new");
        far_sim_sleep(s.world, 300000);
    }
    stage_finish(&s.c);
    assert_true(s.c.result == 0 && memcmp(s.c.value, "old", 3) == 0);
    stage_finish(&s.a);
    assert_int_equal(s.a.result, 0);
    assert_true(stage_reads(&s.b, "k", "new")); /* A's update was superseded long ago */
    stage_close(&s);
}
ON_EVERY_FABRIC(aba_block_reuse);


/* Fills one bucket beyond level 1, in a table at version 0. Returns the key that is at level 2. */
static const char *overflow_one_bucket(stage *s) {
    for (unsigned i = 0; i < 2; i++)
        stage_write(&s->a, key_with(&s->a, i, 0), "0");
    stage_write(&s->a, key_with(&s->a, 0, 1), "below");
    assert_int_equal(shard_state_of(s->a.index)->counters.overflows, 1);
    return key_with(&s->a, 0, 1);
}

/* the fourth key makes the table double */
#define DRAINING "partitions=1,bits=0,slots=2,l2_slots=2,load=95,afs=1"


/* Race H16 (docs/races/shard.md). Proves that a get finds a key that a drain moves up. C misses the key at level 1 and
 * stops. The table doubles, and the drain moves the key from level 2 to level 1. C continues, misses the key at level
 * 2, and must find it by the second search of level 1. Fails without rule R6 (find_below_level_1 in find.c). */
static void drain_vs_negative_get_on(const char *sim) {
    stage s;
    stage_open(&s, "shard", DRAINING, sim);
    const char *k = overflow_one_bucket(&s);
    stage_start(&s.c, FAR_OP_GET, k, NULL);
    stage_stop_at(&s.c, at("shard:l1_missed"));
    stage_write(&s.b, key_with(&s.a, 1, 1), "grows");
    assert_int_equal(version(&s.b), 1);
    far_sim_sleep(s.world, 50000000); /* housekeeping sweeps and drains */
    uint64_t drained = shard_state_of(s.a.index)->counters.drained + shard_state_of(s.b.index)->counters.drained +
                       shard_state_of(s.c.index)->counters.drained;
    assert_true(drained > 0);
    stage_finish(&s.c);
    assert_true(s.c.result == 0 && memcmp(s.c.value, "below", 5) == 0);
    stage_close(&s);
}
ON_EVERY_FABRIC(drain_vs_negative_get);


/* Rule R6. A get that misses its key at level 1 reads level 2, and then level 1 a second time, in one batch. Proves
 * that the second READ of level 1 takes effect after the READ of level 2. C's READ of level 2 is held while the drain
 * moves the key from level 2 to level 1. If the READ of level 1 came first, C would miss the key at both levels. */
static void drain_during_the_second_read_on(const char *sim) {
    stage s;
    stage_open(&s, "shard", DRAINING, sim);
    const char *k = overflow_one_bucket(&s);
    far_addr l2 =
        shard_table_addr(atomic_load_explicit(&shard_state_of(s.a.index)->part[0].table[0], memory_order_relaxed), 0);
    assert_int_not_equal(l2, 0);
    stage_start(&s.c, FAR_OP_GET, k, NULL);
    far_sim_hold *hold = stage_hold(&s.c, (far_sim_match){.kind = FAR_SIM_READ, .from = l2, .to = l2 + SHARD_L2_BYTES});
    stage_write(&s.b, key_with(&s.a, 1, 1), "grows");
    far_sim_sleep(s.world, 50000000);
    assert_true(shard_state_of(s.a.index)->counters.drained + shard_state_of(s.b.index)->counters.drained +
                    shard_state_of(s.c.index)->counters.drained >
                0);
    far_sim_release(hold);
    stage_finish(&s.c);
    assert_true(s.c.result == 0 && memcmp(s.c.value, "below", 5) == 0);
    stage_close(&s);
}
ON_EVERY_FABRIC(drain_during_the_second_read);


/* Race H13 (docs/races/shard.md). Proves that both halves of a split inherit the filter: a key at level 2 is found
 * after its bucket was split. Fails if write_halves (pointer/split.c) clears the filters. */
static void filter_inherit_on(const char *sim) {
    stage s;
    stage_open(&s, "shard", DRAINING, sim);
    const char *k = overflow_one_bucket(&s);
    stage_write(&s.b, key_with(&s.a, 1, 1), "grows");
    stage_write(&s.b, key_with(&s.a, 0, 0), "splits");
    assert_true(stage_reads(&s.a, k, "below") && stage_reads(&s.b, k, "below"));
    assert_int_equal(stage_do(&s.b, FAR_OP_INSERT, k, "twice"), FAR_ERR_EXISTS);
    stage_write(&s.b, k, "changed");
    far_sim_sleep(s.world, 50000000);
    assert_true(stage_reads(&s.a, k, "changed"));
    stage_delete(&s.c, k);
    assert_true(stage_reads(&s.a, k, NULL));
    stage_close(&s);
}
ON_EVERY_FABRIC(filter_inherit);


/* Races H17 and H35 (docs/races/shard.md). Makes B fail between linking a key at level 1 and removing it from level 2.
 * The drain is taken by B's own inserts. */
static void fail_in_drain(stage *s, const char *sim) {
    char key[16];
    bool died = false;
    stage_open(s, "shard", DRAINING ",share=1,idle_sweep=off", sim);
    overflow_one_bucket(s);
    for (unsigned i = 0; i < 8 && !died; i++) {
        /* this key moves to the child, so that level 1 has room for k */
        snprintf(key, sizeof(key), "%s", key_with(&s->a, 1, i + 1));
        stage_start(&s->b, FAR_OP_PUT, key, "v");
        far_sim_stop_before(s->b.client, at("shard:clear_drained_entry"));
        died = far_sim_run_client(s->b.client) == FAR_SIM_STOPPED;
    }
    assert_true(died);
    stage_kill(s, &s->b);
}


static void drain_crash_delete_on(const char *sim) {
    for (unsigned update = 0; update < 2; update++) {
        stage s;
        fail_in_drain(&s, sim);
        const char *k = key_with(&s.a, 0, 1);
        if (update) {
            stage_write(&s.a, k, "changed");
            assert_true(stage_reads(&s.c, k, "changed"));
        }
        stage_delete(&s.a, k);
        assert_true(stage_reads(&s.c, k, NULL));
        stage_close(&s);
    }
}
ON_EVERY_FABRIC(drain_crash_delete);


/* Race H18 (docs/races/shard.md). Proves that an insert to level 2 of the old generation is drained as well. C's
 * insert, with the old root, stops before it places its key at level 2. B doubles the table. C continues. After the
 * drain the key must still be found. Fails if the drain begins before all buckets are split. */
static void old_root_l2_insert_vs_drain_on(const char *sim) {
    stage s;
    stage_open(&s, "shard", DRAINING, sim);
    for (unsigned i = 0; i < 2; i++)
        stage_write(&s.a, key_with(&s.a, i, 0), "0");
    stage_start(&s.c, FAR_OP_INSERT, "late", "v");
    stage_stop_at(&s.c, at("shard:place_in_overflow"));
    stage_start(&s.b, FAR_OP_PUT, key_with(&s.a, 1, 1), "grows");
    far_sim_run_for(s.world, 5000000);
    stage_finish(&s.c);
    assert_int_equal(s.c.result, 0);
    stage_finish(&s.b);
    stage_write(&s.b, key_with(&s.a, 0, 2), "more");
    far_sim_sleep(s.world, 50000000);
    assert_true(stage_reads(&s.a, "late", "v") && stage_reads(&s.c, "late", "v"));
    assert_int_equal(stage_do(&s.b, FAR_OP_INSERT, "late", "twice"), FAR_ERR_EXISTS);
    stage_close(&s);
}
ON_EVERY_FABRIC(old_root_l2_insert_vs_drain);


/* Races H21 and H22 (docs/races/shard.md). Proves that a small table can double many times: new tags are computed every
 * seven doublings, and no doubling begins before the previous one has ended. */
static void retag_boundary_on(const char *sim) {
    stage s;
    char key[16];
    stage_open(&s, "shard", "partitions=1,bits=0,slots=2,l2_slots=1,load=4,afs=1", sim);
    for (unsigned i = 0; i < 40; i++) {
        snprintf(key, sizeof(key), "n%u", i);
        assert_int_equal(stage_do(i % 2 ? &s.a : &s.b, FAR_OP_INSERT, key, "v"), 0);
        far_sim_sleep(s.world, 10000000);
    }
    assert_true(version(&s.a) >= 8);
    for (unsigned i = 0; i < 40; i++) {
        snprintf(key, sizeof(key), "n%u", i);
        assert_true(stage_reads(&s.c, key, "v"));
        assert_int_equal(stage_do(&s.c, FAR_OP_INSERT, key, "v"), FAR_ERR_EXISTS);
    }
    stage_close(&s);
}
ON_EVERY_FABRIC(retag_boundary);


/* Race H23 (docs/races/shard.md). Proves that a long chain, to which two clients append, loses no key, neither before
 * nor after the doubling that drains it. */
static void l3_chain_on(const char *sim) {
    stage s;
    char key[16];
    stage_open(&s, "shard", "partitions=1,bits=0,slots=1,l2_slots=1,load=95,afs=1000000", sim);
    stage_write(&s.c, "held", "0");
    stage_start(&s.c, FAR_OP_GET, "held", NULL);
    stage_stop_at(&s.c, at("shard:main_bucket_read")); /* keep the table from doubling twice */
    for (unsigned i = 0; i < 40; i++) {
        snprintf(key, sizeof(key), "n%u", i);
        assert_int_equal(stage_do(i % 2 ? &s.a : &s.b, FAR_OP_INSERT, key, "v"), 0);
    }
    assert_true(shard_state_of(s.a.index)->counters.chained + shard_state_of(s.b.index)->counters.chained > 1);
    for (unsigned i = 0; i < 40; i++) {
        snprintf(key, sizeof(key), "n%u", i);
        assert_true(stage_reads(i % 2 ? &s.b : &s.a, key, "v"));
        if (i % 3 == 0)
            stage_delete(&s.a, key);
    }
    stage_finish(&s.c);
    for (unsigned i = 0; i < 40; i++) {
        snprintf(key, sizeof(key), "n%u", i);
        assert_true(stage_reads(&s.a, key, i % 3 ? "v" : NULL));
    }
    stage_close(&s);
}
ON_EVERY_FABRIC(l3_chain);
