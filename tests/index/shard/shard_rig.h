/* Helpers for tests of the shard index that run for both layouts and several simulated fabrics. Keys and values are
 * numbers of 8 bytes. A test is a function NAME_on(variant), and TEST_ALL_VARIANTS(NAME) runs it for all variants. The
 * actors A, B and C of a stage (tests/support/stage.h) are separate handles of one pool; A is `s.a`, and so on. */
#ifndef TESTS_SHARD_RIG_H
#define TESTS_SHARD_RIG_H

#include "../support/stage.h"
#include "index/shard/shard.h"
#include "pool/epoch/epoch.h"
#include "task/session.h"
#include "test.h"

#include <stdio.h>
#include <string.h>

typedef struct variant {
    bool inlined;
    const char *sim; /* additional options of the simulator */
    unsigned units;  /* number of tearing granules of a bucket */
    bool masked_cas, in_order;
} variant;

static const variant all_variants[] = {
    {false, "atomic_bytes=64", 8, true, false},
    {false, "atomic_bytes=8", 64, true, false},
    {false, "masked_cas=off", 8, false, false},
    {false, "atomic_bytes=8,masked_cas=off,atomics_in_order=on", 64, false, true},
    {true, "atomic_bytes=64", 8, true, false},
    {true, "atomic_bytes=8", 64, true, false},
    {true, "atomic_bytes=8,atomics_in_order=on", 64, true, true},
};

#define TEST_ALL_VARIANTS(test)                                                                                        \
    TEST(test) {                                                                                                       \
        for (unsigned i = 0; i < sizeof(all_variants) / sizeof(all_variants[0]); i++)                                  \
            test##_on(&all_variants[i]);                                                                               \
    }                                                                                                                  \
    _Static_assert(1, "")

#define TEST_VARIANTS_OF(test, which)                                                                                  \
    TEST(test) {                                                                                                       \
        for (unsigned i = 0; i < sizeof(all_variants) / sizeof(all_variants[0]); i++)                                  \
            if (all_variants[i].inlined == which)                                                                      \
                test##_on(&all_variants[i]);                                                                           \
    }                                                                                                                  \
    _Static_assert(1, "")

enum { POINTERS = 0, INLINE = 1 };

/* All tests use one partition. */
#define NO_GROWTH "slots=2,l2_slots=1,afs=1000000"   /* no client checks the load, so the table never doubles */
#define GROWING   "slots=4,l2_slots=1,load=60,afs=1" /* with one bucket the third key makes the table double */

typedef struct key {
    uint8_t bytes[8];
} key;


static inline void open_stage_with(stage *s, const variant *variant, unsigned bits, const char *options, bool by_hand) {
    char text[256];
    /* Most tests stop or tear the READ of a whole bucket; the tests of rule R8 (find.c) set half_read=on. */
    snprintf(text, sizeof(text), "%s%s,partitions=1,bits=%u,%s",
             variant->inlined ? "key_size=8,value_size=8,narrow=on" : "layout=pointer",
             strstr(options, "half_read") ? "" : ",half_read=off", bits, options);
    (by_hand ? stage_open_without_housekeeping : stage_open)(s, "shard", text, variant->sim);
}


static inline void open_stage(stage *s, const variant *variant, unsigned bits, const char *options) {
    open_stage_with(s, variant, bits, options, false);
}


/* Returns the key that is the number n. */
static inline key number(uint64_t n) {
    key k;
    n = __builtin_bswap64(n);
    memcpy(k.bytes, &n, 8);
    return k;
}


static inline uint64_t hash_of(const stage_actor *a, key k) {
    return shard_hash(a->index, (far_bytes){k.bytes, 8});
}


/* Returns the n-th key that is in this bucket at version 0. leaves: whether the key leaves the bucket for the child at
 * the first doubling (true) or stays (false). */
static inline key key_in(const stage_actor *a, uint64_t bucket, bool leaves, unsigned n) {
    const shard_state *st = shard_state_of(a->index);
    for (uint64_t i = 1;; i++) {
        uint64_t h = hash_of(a, number(i));
        if (shard_bucket(h, st->p, st->b, 0) == bucket && shard_key_moves(h, st->p, st->b, 1) == leaves && n-- == 0)
            return number(i);
    }
}


/* Returns the n-th key that stays in the parent (leaves = false) or moves to the child (true) at the first split, for a
 * table with one bucket. */
static inline key key_with(const stage_actor *a, bool leaves, unsigned n) {
    return key_in(a, 0, leaves, n);
}


/* Matches the moment when a client reaches this point of the code (far_point). */
static inline far_sim_match at(const char *point) {
    return (far_sim_match){.point = point};
}


/* Starts an operation of the actor without waiting for it; stage_stop_at and stage_finish control it. */
static inline void start(stage_actor *a, far_op_kind kind, key k, uint64_t value) {
    stage_start_bytes(a, kind, k.bytes, 8, &value, kind == FAR_OP_GET || kind == FAR_OP_DELETE ? 0 : 8);
}


static inline int insert(stage_actor *a, key k, uint64_t value) {
    return far_insert(a->session, a->index, k.bytes, 8, &value, 8);
}


static inline void put(stage_actor *a, key k, uint64_t value) {
    assert_int_equal(far_put(a->session, a->index, k.bytes, 8, &value, 8), 0);
}


static inline int delete_key(stage_actor *a, key k) {
    return far_delete(a->session, a->index, k.bytes, 8);
}


static inline uint64_t get(stage_actor *a, key k) { /* returns 0 if the key is absent */
    uint64_t value;
    size_t length;
    int err = far_get(a->session, a->index, k.bytes, 8, &value, 8, &length);
    assert_true(err == 0 || err == FAR_ERR_NOT_FOUND);
    return err == 0 ? value : 0;
}


/* Gets the key by an additional session of A's handle, for use while all three actors have an operation in progress. */
static inline uint64_t get_by_new_session(stage *s, key k) {
    stage_actor aside = s->a;
    assert_int_equal(far_session_open(s->a.pool, &aside.session), 0);
    uint64_t value = get(&aside, k);
    far_session_close(aside.session);
    return value;
}


/* the value that a finished get has returned; 0 if the key is absent */
static inline uint64_t result_value(const stage_actor *a) {
    uint64_t value;
    assert_true(a->result == 0 || a->result == FAR_ERR_NOT_FOUND);
    memcpy(&value, a->value, 8);
    return a->result == 0 ? value : 0;
}


/* Verifies that the key exists exactly once: it has this value, it cannot be inserted, and after one delete it is
 * absent. */
static inline void assert_there_once(stage *s, key k, uint64_t value) {
    assert_int_equal(get(&s->a, k), value);
    assert_int_equal(insert(&s->b, k, 99), FAR_ERR_EXISTS);
    assert_int_equal(delete_key(&s->a, k), 0);
    assert_int_equal(get(&s->c, k), 0);
    assert_int_equal(delete_key(&s->c, k), FAR_ERR_NOT_FOUND);
}


/* Returns the root word that the actor has cached. */
static inline uint64_t root_of(const stage_actor *a) {
    return atomic_load_explicit(&shard_state_of(a->index)->part[0].root, memory_order_relaxed);
}


/* Returns the version of the partition in the root word that the actor has cached. */
static inline unsigned version(const stage_actor *a) {
    return shard_root_d(root_of(a));
}


/* Returns the root word in far memory. */
static inline uint64_t far_root(stage *s) {
    far_addr pcb = shard_state_of(s->a.index)->part[0].pcb;
    return world_word(s->world, pcb);
}


/* Returns the address of the partition's directory that the actor has cached. */
static inline far_addr directory_addr(const stage_actor *a) {
    const shard_partition *part = &shard_state_of(a->index)->part[0];
    far_addr directory = shard_cached_word(&part->directory, shard_directory_number(part));
    assert_int_not_equal(directory, 0);
    return directory;
}


static inline const uint64_t *words_at(stage *s, far_addr addr) {
    return world_bytes(s->world, addr);
}


/* Returns the address of a bucket. The actor must have used the bucket's segment before, because it caches the address
 * at that time. */
static inline far_addr bucket_addr(const stage_actor *a, uint64_t bucket) {
    const shard_state *st = shard_state_of(a->index);
    far_addr segment =
        shard_cached_word(&st->part[0].segment[shard_segment(bucket, st->b)], shard_directory_number(&st->part[0]));
    assert_int_not_equal(segment, 0);
    return segment + shard_in_segment(bucket, st->b) * SHARD_BUCKET_BYTES;
}


static inline far_sim_match write_of(far_addr bucket) { /* matches a WRITE of the whole bucket */
    return (far_sim_match){.kind = FAR_SIM_WRITE, .from = bucket, .to = bucket + 8};
}


/* Matches the WRITE by which a split rewrites the parent. In the inline layout the first WRITE of a split to the parent
 * announces the split, and the second one rewrites the parent. */
static inline far_sim_match rewrite_of(const variant *variant, far_addr parent) {
    far_sim_match match = write_of(parent);
    match.nth = variant->inlined ? 2 : 1;
    return match;
}


/* Inserts three keys into the only bucket of a table with the options GROWING, so that the table doubles. The third put
 * announces the doubling. The split of the bucket, which has not begun yet, will keep two of the keys in the parent and
 * move the third one to the child. */
static inline void begin_doubling(stage *s) {
    put(&s->a, key_with(&s->a, 0, 0), 10);
    put(&s->a, key_with(&s->a, 1, 0), 11);
    put(&s->b, key_with(&s->a, 0, 1), 12);
    assert_int_equal(version(&s->b), 1);
}


static inline int grow_once(far_task *t, void *arg) {
    far_index *index = arg;
    int err = far_pin_take(t);
    if (err >= 0)
        err = shard_try_grow(t, index, &shard_state_of(index)->part[0]);
    far_pin_drop(t);
    return err;
}


/* Makes the actor double the table, whatever its load is. */
static inline void double_by(stage *s, stage_actor *a) {
    unsigned d = shard_root_d(far_root(s));
    for (unsigned i = 0; i < 100 && shard_root_d(far_root(s)) == d; i++) {
        assert_true(far_session_call(a->session, FAR_STATS_OTHER, false, grow_once, a->index) >= 0);
        far_epoch_request(a->pool);
        far_sim_sleep(s->world, 300000);
    }
    assert_int_equal(shard_root_d(far_root(s)), d + 1);
}


static inline uint64_t sum_counters(stage *s, size_t offset) { /* returns the sum of a counter over all three handles */
    uint64_t sum = 0;
    for (unsigned i = 0; i < 3; i++) {
        stage_actor *a = i == 0 ? &s->a : i == 1 ? &s->b : &s->c;
        sum += *(const _Atomic uint64_t *)((const char *)&shard_state_of(a->index)->counters + offset);
    }
    return sum;
}
#define COUNTED(s, counter) sum_counters(s, offsetof(shard_counters, counter))

#endif
