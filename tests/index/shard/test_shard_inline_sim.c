/* Races of the inline layout, executed step by step. docs/races/shard.md describes each race under the number in its
 * comment, such as H29. In this layout pairs are in the buckets, writes hold the bucket's lock, and reads do not. */
#include "../support/stage.h"
#include "client/op.h"
#include "index/shard/shard.h"
#include "test.h"

#include <stdio.h>
#include <string.h>

#define INLINE    "key_size=8,value_size=8,narrow=on,half_read=off,partitions=1,bits=0,"
#define NO_GROWTH INLINE "slots=2,l2_slots=1,afs=1000000"
#define GROWING   INLINE "slots=4,l2_slots=1,load=60,afs=1" /* the third key makes the table double */

static const char *const fabrics[] = {NULL, "atomic_bytes=8", "atomic_bytes=8,atomics_in_order=on"};

#define ON_EVERY_FABRIC(test)                                                                                          \
    TEST(test) {                                                                                                       \
        for (unsigned i = 0; i < sizeof(fabrics) / sizeof(fabrics[0]); i++)                                            \
            test##_on(fabrics[i]);                                                                                     \
    }                                                                                                                  \
    _Static_assert(1, "")


typedef struct key {
    uint8_t bytes[8];
} key;


static key number(uint64_t n) {
    key k;
    n = __builtin_bswap64(n);
    memcpy(k.bytes, &n, 8);
    return k;
}


/* Returns the n-th key that stays in its bucket (bit = false) or moves to the child (true) when the first doubling
 * splits the bucket. */
static key key_with(const stage_actor *a, bool bit, unsigned n) {
    const shard_state *st = shard_state_of(a->index);
    for (uint64_t i = 1;; i++) {
        key k = number(i);
        if (shard_key_moves(shard_hash(a->index, (far_bytes){k.bytes, 8}), st->p, st->b, 1) == bit && n-- == 0)
            return k;
    }
}


static far_sim_match at(const char *point) {
    return (far_sim_match){.point = point};
}


static void start(stage_actor *a, far_op_kind kind, key k, uint64_t value) {
    stage_start_bytes(a, kind, k.bytes, 8, &value, kind == FAR_OP_GET || kind == FAR_OP_DELETE ? 0 : 8);
}


static int insert(stage_actor *a, key k, uint64_t value) {
    return far_insert(a->session, a->index, k.bytes, 8, &value, 8);
}


static void put(stage_actor *a, key k, uint64_t value) {
    assert_int_equal(far_put(a->session, a->index, k.bytes, 8, &value, 8), 0);
}


static int delete (stage_actor *a, key k) {
    return far_delete(a->session, a->index, k.bytes, 8);
}


/* Returns 0 if the key is absent. */
static uint64_t get(stage_actor *a, key k) {
    uint64_t value;
    size_t length;
    int err = far_get(a->session, a->index, k.bytes, 8, &value, 8, &length);
    assert_true(err == 0 || err == FAR_ERR_NOT_FOUND);
    return err == 0 ? value : 0;
}


/* the value that a finished get has returned; 0 if the key is absent */
static uint64_t result_value(const stage_actor *a) {
    uint64_t value;
    assert_true(a->result == 0 || a->result == FAR_ERR_NOT_FOUND);
    memcpy(&value, a->value, 8);
    return a->result == 0 ? value : 0;
}


static far_addr parent_of(const stage_actor *a) {
    return atomic_load_explicit(&shard_state_of(a->index)->part[0].segment[0], memory_order_relaxed);
}


/* Proves that two inserts of one key exclude each other: B waits while A holds the lock, and then reports EXISTS. */
static void two_inserts_on(const char *sim) {
    stage s;
    stage_open(&s, "shard", NO_GROWTH, sim);
    start(&s.a, FAR_OP_INSERT, number(7), 1);
    stage_stop_at(&s.a, at("shard:insert"));
    start(&s.b, FAR_OP_INSERT, number(7), 2);
    far_sim_run_for(s.world, 300000);
    assert_false(s.b.ended);
    assert_int_equal(get(&s.c, number(7)), 0); /* a get does not wait for a lock */
    stage_finish(&s.a);
    stage_finish(&s.b);
    assert_int_equal(s.a.result, 0);
    assert_int_equal(s.b.result, FAR_ERR_EXISTS);
    assert_int_equal(get(&s.c, number(7)), 1);
    stage_close(&s);
}
ON_EVERY_FABRIC(two_inserts);


/* Race H30 (docs/races/shard.md). Proves that a READ in a lock batch is repeated if it was executed before the lock was
 * taken. A's READ of the bucket is executed while B holds the lock; A's CAS after B has inserted the key and unlocked.
 * A must report EXISTS. Fails without the 8-byte READ of the lock in lock_and_read_extras (attempt.c). */
static void lock_batch_split_read_on(const char *sim) {
    stage s;
    if (sim && strstr(sim, "atomics_in_order"))
        return;
    stage_open(&s, "shard", NO_GROWTH, sim);
    start(&s.b, FAR_OP_INSERT, number(7), 2);
    stage_stop_at(&s.b, at("shard:insert"));
    start(&s.a, FAR_OP_INSERT, number(7), 1);
    far_sim_hold *hold = far_sim_hold_effect(s.a.client, (far_sim_match){.kind = FAR_SIM_CAS});
    far_sim_run_for(s.world, 20000);
    stage_finish(&s.b);
    far_sim_sleep(s.world, 20000);
    far_sim_release(hold);
    stage_finish(&s.a);
    assert_int_equal(s.b.result, 0);
    assert_int_equal(s.a.result, FAR_ERR_EXISTS);
    assert_int_equal(delete (&s.c, number(7)), 0);
    assert_int_equal(get(&s.c, number(7)), 0);
    stage_close(&s);
}
ON_EVERY_FABRIC(lock_batch_split_read);


/* Race H29 (docs/races/shard.md). Proves that a get does not combine a key with the value of another key. C's READ
 * returns the keys; then A deletes the key and reuses its slot; then C's READ returns the values. C must return the old
 * value or report that the key is absent. Fails without shard_i_add_confirming_reads (inline/find.c). */
static void slot_reused_between_value_and_key_on(const char *sim) {
    stage s;
    if (!sim)
        return; /* a slot cannot tear if the tearing granule is a cache line */
    stage_open(&s, "shard", NO_GROWTH, sim);
    put(&s.a, number(7), 70);
    assert_int_equal(get(&s.c, number(7)), 70);
    start(&s.c, FAR_OP_GET, number(7), 0);
    far_sim_hold *hold =
        stage_hold(&s.c, (far_sim_match){.kind = FAR_SIM_READ, .from = parent_of(&s.a), .to = parent_of(&s.a) + 512});
    assert_int_equal(far_sim_hold_units(hold), 64);
    assert_int_equal(far_sim_release_units(hold, (const uint32_t[]){1, 3}, 2), 0); /* only the words with the keys */
    assert_int_equal(delete (&s.a, number(7)), 0);
    put(&s.a, number(8), 80);
    far_sim_release(hold);
    stage_finish(&s.c);
    assert_true(result_value(&s.c) == 70 || result_value(&s.c) == 0);
    stage_close(&s);
}
ON_EVERY_FABRIC(slot_reused_between_value_and_key);


/* Inserts three keys of one bucket, so that the table doubles. The split of the bucket, which has not begun yet, will
 * keep two of the keys in the parent and move the third one to the child. */
static void begin_doubling(stage *s) {
    put(&s->a, key_with(&s->a, 0, 0), 10);
    put(&s->a, key_with(&s->a, 1, 0), 11);
    put(&s->b, key_with(&s->a, 0, 1), 12);
    assert_int_equal(
        shard_root_d(atomic_load_explicit(&shard_state_of(s->b.index)->part[0].root, memory_order_relaxed)), 1);
}


/* Race H8 (docs/races/shard.md). Proves that a reader with the old root does not find an old value. C's get has the old
 * root. B's split has written the child, but its WRITE of the parent is held. A changes the key in the child. C must
 * return the new value. Fails without rule R2 (shard_hit_is_valid in shard.h). */
static void old_root_reader_after_child_update_on(const char *sim) {
    stage s;
    stage_open(&s, "shard", GROWING, sim);
    put(&s.a, key_with(&s.a, 0, 0), 10);
    put(&s.a, key_with(&s.a, 1, 0), 11);
    key k = key_with(&s.a, 1, 0);
    assert_int_equal(get(&s.c, k), 11);
    start(&s.c, FAR_OP_GET, k, 0);
    stage_stop_at(&s.c, (far_sim_match){.kind = FAR_SIM_READ});
    put(&s.b, key_with(&s.a, 0, 1), 12);
    far_addr parent = parent_of(&s.a);
    start(&s.b, FAR_OP_PUT, key_with(&s.a, 0, 0), 20);
    far_sim_hold *hold = stage_hold(
        &s.b, (far_sim_match){
                  .kind = FAR_SIM_WRITE, .from = parent, .to = parent + 8, .nth = 2}); /* after the announcement */
    put(&s.a, k, 21);
    stage_finish(&s.c);
    assert_int_equal(result_value(&s.c), 21);
    assert_int_equal(get(&s.a, key_with(&s.a, 0, 0)), 10);
    far_sim_release(hold);
    stage_finish(&s.b);
    assert_int_equal(get(&s.c, key_with(&s.a, 0, 0)), 20);
    assert_int_equal(get(&s.c, k), 21);
    stage_close(&s);
}
ON_EVERY_FABRIC(old_root_reader_after_child_update);


/* Race H14 (docs/races/shard.md). Proves that a child cannot be locked before its split has written the lock word. All
 * words of B's WRITE of the child are visible except the lock word. C's put must wait. Fails if 0 meant that the lock
 * is free (SHARD_K_FREE in layout.h). */
static void lock_uninit_child_on(const char *sim) {
    stage s;
    if (!sim)
        return; /* the header H and the lock K are in one granule, so they become visible together */
    stage_open(&s, "shard", GROWING, sim);
    begin_doubling(&s);
    key k = key_with(&s.a, 1, 0);
    start(&s.b, FAR_OP_PUT, key_with(&s.a, 0, 0), 20);
    stage_stop_at(&s.b, at("shard:write_halves"));
    uint64_t child;
    assert_int_equal(get(&s.a, k), 11);
    child = atomic_load_explicit(&shard_state_of(s.a.index)->part[0].segment[1], memory_order_relaxed);
    if (!child)
        child = atomic_load_explicit(&shard_state_of(s.b.index)->part[0].segment[1], memory_order_relaxed);
    assert_int_not_equal(child, 0);
    far_sim_resume(s.b.client);
    far_sim_hold *hold = stage_hold(&s.b, (far_sim_match){.kind = FAR_SIM_WRITE, .from = child, .to = child + 512});
    uint32_t units[63];
    for (unsigned i = 0; i < 63; i++)
        units[i] = i;
    assert_int_equal(far_sim_release_units(hold, units, 63), 0);
    start(&s.c, FAR_OP_PUT, k, 22);
    far_sim_run_for(s.world, 300000);
    assert_false(s.c.ended);
    assert_int_equal(get(&s.a, k), 11);
    far_sim_release(hold);
    far_sim_run(s.world);
    assert_true(s.b.ended && s.c.ended && s.b.result == 0 && s.c.result == 0);
    assert_int_equal(get(&s.a, k), 22);
    stage_close(&s);
}
ON_EVERY_FABRIC(lock_uninit_child);


/* Race H10 (docs/races/shard.md). Proves that a takeover does not overwrite changes in a complete child. B fails after
 * writing the child and part of the parent. A changes a key in the child, and C finishes the split. Fails if
 * finish_split (inline/split.c) writes the child again. */
static void takeover_child_updated_on(const char *sim) {
    for (unsigned units = 0; units < 8; units++) {
        stage s;
        stage_open(&s, "shard", GROWING, sim);
        begin_doubling(&s);
        far_addr parent = parent_of(&s.a);
        key k = key_with(&s.a, 1, 0);
        start(&s.b, FAR_OP_PUT, key_with(&s.a, 0, 0), 20);
        far_sim_kill_at(s.b.client, (far_sim_match){.kind = FAR_SIM_WRITE, .from = parent, .to = parent + 8, .nth = 2},
                        units);
        far_sim_run(s.world);
        assert_true(far_sim_killed(s.b.pool->fabric));
        assert_int_equal(get(&s.a, k), 11); /* A reads the new root word of the doubling, so that A uses the child */
        put(&s.a, k, 21);
        assert_int_equal(get(&s.c, k), 21);
        put(&s.c, key_with(&s.a, 0, 0), 22);
        assert_int_equal(get(&s.a, k), 21);
        assert_int_equal(get(&s.a, key_with(&s.a, 0, 0)), 22);
        assert_int_equal(get(&s.a, key_with(&s.a, 0, 1)), 12);
        stage_close(&s);
    }
}
ON_EVERY_FABRIC(takeover_child_updated);


/* To insert a pair at level 2, a client first claims a slot by CAS and then writes it. Proves that a slot which a
 * failed client has claimed can be claimed by another client, and that a slot claimed by a live client cannot. B claims
 * a slot and fails; A inserts the same key into that slot. Fails without check_claimable (inline/write.c). */
static void claim_of_a_failed_client_on(const char *sim) {
    stage s;
    stage_open(&s, "shard", NO_GROWTH, sim);
    put(&s.a, number(1), 1);
    put(&s.a, number(2), 2);
    start(&s.b, FAR_OP_INSERT, number(3), 3);
    stage_stop_at(&s.b, at("shard:insert")); /* the slot is claimed, but not yet written */
    assert_int_equal(get(&s.a, number(3)), 0);
    stage_kill(&s, &s.b);
    assert_int_equal(insert(&s.a, number(3), 4), 0);
    assert_int_equal(insert(&s.c, number(3), 5), FAR_ERR_EXISTS);
    assert_int_equal(get(&s.c, number(3)), 4);
    far_load load;
    assert_int_equal(far_index_load(s.c.session, s.c.index, &load), 0);
    assert_int_equal(load.keys[1], 1); /* the key is in the slot that the failed client had claimed */
    stage_close(&s);
}
ON_EVERY_FABRIC(claim_of_a_failed_client);


/* Race H16 (docs/races/shard.md). Proves that a get finds a key that a drain moves up between the first and the second
 * search of level 1. C does not find the key at level 1 and stops; the drain moves the key up; C continues. Fails
 * without rule R6 (find_below_level_1 in find.c). */
static void drain_vs_negative_get_on(const char *sim) {
    stage s;
    stage_open(&s, "shard", INLINE "slots=2,l2_slots=2,load=95,afs=1", sim);
    put(&s.a, key_with(&s.a, 0, 0), 1);
    put(&s.a, key_with(&s.a, 1, 0), 2);
    key k = key_with(&s.a, 0, 1);
    put(&s.a, k, 3);
    assert_int_equal(shard_state_of(s.a.index)->counters.overflows, 1);
    start(&s.c, FAR_OP_GET, k, 0);
    stage_stop_at(&s.c, at("shard:l1_missed"));
    put(&s.b, key_with(&s.a, 1, 1), 4);
    far_sim_sleep(s.world, 50000000);
    assert_true(shard_state_of(s.a.index)->counters.drained + shard_state_of(s.b.index)->counters.drained +
                    shard_state_of(s.c.index)->counters.drained >
                0);
    stage_finish(&s.c);
    assert_int_equal(result_value(&s.c), 3);
    stage_close(&s);
}
ON_EVERY_FABRIC(drain_vs_negative_get);


/* Race H17 (docs/races/shard.md). Proves that a delete removes both copies that a failed drain has left. B's drain
 * fails after it has written the pair to level 1 and before it clears level 2. A deletes the key, and C must not find
 * it. Fails if delete_pair (inline/write.c) clears level 1 only. */
static void drain_crash_delete_on(const char *sim) {
    stage s;
    stage_open(&s, "shard", INLINE "slots=2,l2_slots=2,load=95,afs=1,share=1,idle_sweep=off", sim);
    put(&s.a, key_with(&s.a, 0, 0), 1);
    put(&s.a, key_with(&s.a, 1, 0), 2);
    key k = key_with(&s.a, 0, 1);
    put(&s.a, k, 3);
    bool died = false;
    for (unsigned i = 0; i < 8 && !died; i++) {
        /* the put that drains: its key moves to the child, so that level 1 has room for k */
        start(&s.b, FAR_OP_PUT, key_with(&s.a, 1, i + 1), 5);
        far_sim_stop_before(s.b.client, at("shard:drain_move"));
        if (far_sim_run_client(s.b.client) == FAR_SIM_STOPPED) {
            /* only the first WRITE takes effect */
            far_sim_kill_at(s.b.client, (far_sim_match){.kind = FAR_SIM_WRITE, .nth = 2}, 0);
            far_sim_resume(s.b.client);
            far_sim_run(s.world);
            died = true;
        }
    }
    assert_true(died && far_sim_killed(s.b.pool->fabric));
    assert_int_equal(delete (&s.a, k), 0);
    assert_int_equal(get(&s.c, k), 0);
    stage_close(&s);
}
ON_EVERY_FABRIC(drain_crash_delete);


/* Proves that a get does not combine the key of a level-3 slot with the state of another key. B's READ returns the key;
 * then A deletes it and reuses its slot; then B's READ returns the state. B must report that the key is absent. C's
 * stopped get keeps the table from doubling again, so that level 3 fills. Fails without shard_i_drop_false_hits
 * (inline/find.c). */
static void l3_slot_reused_on(const char *sim) {
    stage s;
    if (!sim)
        return;
    stage_open(&s, "shard", INLINE "slots=1,l2_slots=1,load=95,afs=1000000", sim);
    put(&s.c, number(1), 1);
    start(&s.c, FAR_OP_GET, number(1), 0);
    stage_stop_at(&s.c, at("shard:main_bucket_read"));
    for (unsigned i = 2; i < 20; i++) {
        put(&s.a, number(i), i);
        far_sim_sleep(s.world, 2000000);
    }
    const shard_partition *part = &shard_state_of(s.a.index)->part[0];
    assert_int_equal(shard_root_d(atomic_load_explicit(&part->root, memory_order_relaxed)), 1);
    far_addr head = shard_table_addr(atomic_load_explicit(&part->table[3], memory_order_relaxed), 1);
    assert_int_not_equal(head, 0);
    const shard_i_node *node =
        (const shard_i_node *)((const char *)far_sim_memory(s.world, far_addr_node(head)) + far_addr_offset(head));
    assert_true(node->slot[0].state & SHARD_STATE_LIVE);
    key k;
    memcpy(k.bytes, &node->slot[0].key, 8);
    assert_int_not_equal(get(&s.b, k), 0);
    start(&s.b, FAR_OP_GET, k, 0);
    far_sim_hold *hold =
        stage_hold(&s.b, (far_sim_match){.kind = FAR_SIM_READ, .from = head, .to = head + sizeof(*node)});
    assert_int_equal(far_sim_hold_units(hold), 16);
    assert_int_equal(far_sim_release_units(hold, (const uint32_t[]){1}, 1), 0); /* only the word with the key */
    assert_int_equal(delete (&s.a, k), 0);
    for (unsigned i = 100; memcmp(&node->slot[0].key, k.bytes, 8) == 0; i++) {
        assert_true(i < 110);
        put(&s.a, number(i), i);
    }
    assert_true(node->slot[0].state & SHARD_STATE_LIVE);
    far_sim_release(hold);
    stage_finish(&s.b);
    assert_int_equal(result_value(&s.b), 0);
    stage_finish(&s.c);
    stage_close(&s);
}
ON_EVERY_FABRIC(l3_slot_reused);
