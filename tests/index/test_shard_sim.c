/* Named interleavings of the shard index, layout P: each race that the protocol rules out, driven step by step, with
 * both atomic units, and with and without masked CAS. Each was seen to fail with the rule it names taken out of the
 * code, except tomb_reuse_stale_image: there the first-TOMB order alone suffices, and the rule is a second guard. */
#include "shard_text_keys.h"

#include <stdio.h>
#include <string.h>

/* Two slots and one of level 2 per bucket, one bucket, and nobody looks at the load. */
#define STILL "partitions=1,bits=0,slots=2,l2_slots=1,afs=1000000"
/* Four slots: the third key makes the table double. */
#define GROWING "partitions=1,bits=0,slots=4,l2_slots=1,load=60,afs=1"

static const char *const fabrics[] = {NULL, "atomic_bytes=8", "masked_cas=off",
                                      "atomic_bytes=8,masked_cas=off,atomics_in_order=on"};

#define ON_EVERY_FABRIC(story)                                                                                         \
    static void story(void **state) {                                                                                  \
        (void)state;                                                                                                   \
        for (unsigned i = 0; i < sizeof(fabrics) / sizeof(fabrics[0]); i++)                                            \
            story##_on(fabrics[i]);                                                                                    \
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


/* H1: freed slots are not EMPTY again, so both inserts want the same one. */
static void two_inserts_freed_front_on(const char *sim) {
    stage s;
    stage_open(&s, "shard", STILL, sim);
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


/* H2: a put that was late does not come back behind a delete. */
static void resurrect_behind_on(const char *sim) {
    stage s;
    stage_open(&s, "shard", STILL, sim);
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
    assert_true(stage_reads(&s.c, "k", NULL)); /* one copy only: the delete took it */
    stage_close(&s);
}
ON_EVERY_FABRIC(resurrect_behind);


/* H3: an insert on its way to level 2 while a slot of level 1 becomes free. */
static void l2_insert_l1_freed_on(const char *sim) {
    stage s;
    stage_open(&s, "shard", STILL, sim);
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


/* H4: a key of level 2 is found although level 1 has room again. */
static void l2_key_l1_room_on(const char *sim) {
    stage s;
    stage_open(&s, "shard", STILL, sim);
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


/* H5: a CAS between the lock of a split and its freezing counts, */
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


/* and one after it fails, and is not taken for overwritten (H19). */
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
    assert_false(s.a.ended); /* it waits for the split */
    assert_true(stage_reads(&s.c, k, "old"));
    far_sim_resume(s.b.client);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    assert_int_equal(s.a.result, 0);
    assert_true(stage_reads(&s.c, k, "new"));
    stage_close(&s);
}
ON_EVERY_FABRIC(absorb_after_freeze);


/* H6: a client that stops for ever in the middle of a get keeps nobody from inserting and doubling. */
static void stopped_client_grow_on(const char *sim) {
    stage s;
    char key[16];
    stage_open(&s, "shard", GROWING, sim);
    stage_write(&s.a, "x", "0");
    stage_start(&s.c, FAR_OP_GET, "x", NULL);
    stage_stop_at(&s.c, at("shard:home_read"));
    for (unsigned i = 0; i < 60; i++) {
        snprintf(key, sizeof(key), "n%u", i);
        assert_int_equal(stage_do(&s.b, FAR_OP_INSERT, key, "v"), 0);
    }
    assert_int_equal(version(&s.b), 1); /* it knows of one doubling at most */
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


/* Idle handles do not hold back anything: b alone doubles the table many times. */
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


/* H8: child written and changed, parent not yet rewritten: who knows only the old version must not find the old value
 * in the parent. */
static void old_root_reader_after_child_update_on(const char *sim) {
    stage s;
    stage_open(&s, "shard", GROWING, sim);
    for (unsigned bit = 0; bit < 2; bit++)
        stage_write(&s.a, key_with(&s.a, bit, 0), "old");
    const char *k = key_with(&s.a, 1, 0);
    assert_true(stage_reads(&s.c, k, "old"));
    stage_start(&s.c, FAR_OP_GET, k, NULL);
    stage_stop_at(&s.c, (far_sim_match){.kind = FAR_SIM_READ}); /* it goes by the old root */
    stage_write(&s.b, "third", "0");
    far_addr parent = bucket_of(&s.a, 0);
    stage_start(&s.b, FAR_OP_PUT, key_with(&s.a, 0, 0), "b");
    far_sim_hold *hold =
        stage_hold(&s.b, (far_sim_match){.kind = FAR_SIM_WRITE, .from = parent, .to = parent + SHARD_BUCKET_BYTES});
    assert_int_equal(far_sim_hold_units(hold) > 1, 1);
    assert_int_equal(stage_do(&s.a, FAR_OP_PUT, k, "new"), 0);
    stage_finish(&s.c);
    assert_true(s.c.result == 0 && s.c.value_len == 3 && memcmp(s.c.value, "new", 3) == 0);
    assert_int_equal(far_sim_release_units(hold, (const uint32_t[]){0}, 1), 0); /* half rewritten: nobody is misled */
    assert_true(stage_reads(&s.a, k, "new") && stage_reads(&s.a, "third", "0"));
    far_sim_release(hold);
    stage_finish(&s.b);
    assert_true(stage_reads(&s.c, k, "new") && stage_reads(&s.c, key_with(&s.a, 0, 0), "b"));
    stage_close(&s);
}
ON_EVERY_FABRIC(old_root_reader_after_child_update);


/* H10, H11: the mover dies when the child is complete; what others changed there since is not overwritten by who
 * finishes. */
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
    stage_write(&s.c, stays, "c"); /* needs the bucket that the dead one has locked */
    assert_true(shard_state_of(s.c.index)->counters.takeovers + shard_state_of(s.a.index)->counters.takeovers > 0);
    assert_true(stage_reads(&s.c, k, "new") && stage_reads(&s.a, stays, "c") && stage_reads(&s.a, "third", "0"));
    stage_close(&s);
}
ON_EVERY_FABRIC(takeover_child_updated);


/* Two movers of one parent: the second finds it done. */
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


/* H15: both saw the TOMB; the second decides by what it reads under the lock. */
static void tomb_reuse_stale_image_on(const char *sim) {
    stage s;
    stage_open(&s, "shard", STILL, sim);
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


/* H30: the READs of an update's lock batch run while a drain that moves its key up has the lock; its CAS after that one
 * is through. */
static void lock_batch_split_read_on(const char *sim) {
    stage s;
    char key[16];
    bool met = false;
    if (sim && strstr(sim, "atomics_in_order"))
        return; /* such a fabric has no such order */
    stage_open(&s, "shard", "partitions=1,bits=0,slots=2,l2_slots=2,load=95,afs=1,share=1,idle_sweep=off", sim);
    for (unsigned i = 0; i < 2; i++)
        stage_write(&s.a, key_with(&s.a, i, 0), "0");
    const char *k = key_with(&s.a, 0, 1);
    stage_write(&s.a, k, "below");
    for (unsigned i = 2; i < 10 && !met; i++) { /* keys that leave: the bucket of k has room */
        snprintf(key, sizeof(key), "%s", key_with(&s.a, 1, i));
        stage_start(&s.b, FAR_OP_PUT, key, "v");
        far_sim_stop_before(s.b.client, at("shard:drain_lock"));
        met = far_sim_run_client(s.b.client) == FAR_SIM_STOPPED;
    }
    assert_true(met);
    stage_start(&s.a, FAR_OP_UPDATE, k, "new"); /* finds k below, and is about to lock its home */
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


/* H19: the slot of an update was deleted and used for another key: the update counts as deleted at once, and the other
 * key is whole. */
static void update_vs_delete_reuse_on(const char *sim) {
    stage s;
    stage_open(&s, "shard", STILL, sim);
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


/* H20: the block of a replaced value is not reused while somebody may still go by its address. */
static void aba_block_reuse_on(const char *sim) {
    stage s;
    stage_open(&s, "shard", STILL, sim);
    stage_write(&s.a, "k", "old");
    stage_start(&s.c, FAR_OP_GET, "k", NULL);
    stage_stop_at(&s.c, at("shard:home_read"));
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
    assert_true(stage_reads(&s.b, "k", "new")); /* overwritten at once, long ago */
    stage_close(&s);
}
ON_EVERY_FABRIC(aba_block_reuse);


/* Fills one bucket beyond level 1; the key that lies below is returned. The table is at version 0. */
static const char *overflow(stage *s) {
    for (unsigned i = 0; i < 2; i++)
        stage_write(&s->a, key_with(&s->a, i, 0), "0");
    stage_write(&s->a, key_with(&s->a, 0, 1), "below");
    assert_int_equal(shard_state_of(s->a.index)->counters.overflows, 1);
    return key_with(&s->a, 0, 1);
}

/* The fourth key makes the table double. */
#define DRAINING "partitions=1,bits=0,slots=2,l2_slots=2,load=95,afs=1"


/* H16: the drain moves a key up between a reader's look at level 1 and its look at level 2. */
static void drain_vs_negative_get_on(const char *sim) {
    stage s;
    stage_open(&s, "shard", DRAINING, sim);
    const char *k = overflow(&s);
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


/* R6: the second look at level 1 goes along with the READs of level 2, and comes behind them. (Ahead of them, both miss
 * what is drained in between.) */
static void drain_beside_the_second_look_on(const char *sim) {
    stage s;
    stage_open(&s, "shard", DRAINING, sim);
    const char *k = overflow(&s);
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
ON_EVERY_FABRIC(drain_beside_the_second_look);


/* H13: a key below level 1 is found after its bucket was split: both halves inherit the filter. */
static void filter_inherit_on(const char *sim) {
    stage s;
    stage_open(&s, "shard", DRAINING, sim);
    const char *k = overflow(&s);
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


/* H17, H35: a drain died between linking a key above and unlinking it below. The copy below comes back neither after an
 * update nor after a delete. The drain is that of b's own inserts. */
static void die_in_drain(stage *s, const char *sim) {
    char key[16];
    bool died = false;
    stage_open(s, "shard", DRAINING ",share=1,idle_sweep=off", sim);
    overflow(s);
    for (unsigned i = 0; i < 8 && !died; i++) {
        snprintf(key, sizeof(key), "%s", key_with(&s->a, 1, i + 1)); /* it leaves: where k goes up, there is room */
        stage_start(&s->b, FAR_OP_PUT, key, "v");
        far_sim_stop_before(s->b.client, at("shard:drained_up"));
        died = far_sim_run_client(s->b.client) == FAR_SIM_STOPPED;
    }
    assert_true(died);
    stage_kill(s, &s->b);
}


static void drain_crash_delete_on(const char *sim) {
    for (unsigned update = 0; update < 2; update++) {
        stage s;
        die_in_drain(&s, sim);
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


/* H18: an insert that goes by the old root, to level 2 of the generation that will be drained, is drained too. */
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


/* H21, H22: many doublings of a small table: tags are made anew every seven, and none begins before the last one is
 * through. */
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


/* H23: a long chain, grown by two clients; then everything is found, and goes up when the table doubles. */
static void l3_chain_on(const char *sim) {
    stage s;
    char key[16];
    stage_open(&s, "shard", "partitions=1,bits=0,slots=1,l2_slots=1,load=95,afs=1000000", sim);
    stage_write(&s.c, "held", "0");
    stage_start(&s.c, FAR_OP_GET, "held", NULL);
    stage_stop_at(&s.c, at("shard:home_read")); /* it keeps the table from doubling twice */
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


#define STORY(name) cmocka_unit_test(name)

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        STORY(two_inserts_freed_front),
        STORY(resurrect_behind),
        STORY(l2_insert_l1_freed),
        STORY(l2_key_l1_room),
        STORY(cas_between_lock_and_write),
        STORY(absorb_after_freeze),
        STORY(stopped_client_grow),
        STORY(idle_client_grow),
        STORY(old_root_reader_after_child_update),
        STORY(takeover_child_updated),
        STORY(two_movers_on_one_parent),
        STORY(tomb_reuse_stale_image),
        STORY(lock_batch_split_read),
        STORY(update_vs_delete_reuse),
        STORY(aba_block_reuse),
        STORY(drain_vs_negative_get),
        STORY(drain_beside_the_second_look),
        STORY(filter_inherit),
        STORY(drain_crash_delete),
        STORY(old_root_l2_insert_vs_drain),
        STORY(retag_boundary),
        STORY(l3_chain),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
