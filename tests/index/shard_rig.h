/* For stories of the shard index that are told of both layouts: keys are numbers of 8 bytes, values too. A story is a
 * function of a `told`: the layout, and what the simulated fabric can do. */
#ifndef TESTS_SHARD_RIG_H
#define TESTS_SHARD_RIG_H

#include "../support/stage.h"
#include "index/shard/shard.h"
#include "pool/epoch.h"
#include "task/session.h"

#include <stdio.h>
#include <string.h>

typedef struct told {
    bool inlined;
    const char *sim; /* more options of the simulator */
    unsigned units;  /* of a bucket */
    bool masked_cas, in_order;
} told;

static const told all_told[] = {
    {false, "atomic_bytes=64", 8, true, false},
    {false, "atomic_bytes=8", 64, true, false},
    {false, "masked_cas=off", 8, false, false},
    {false, "atomic_bytes=8,masked_cas=off,atomics_in_order=on", 64, false, true},
    {true, "atomic_bytes=64", 8, true, false},
    {true, "atomic_bytes=8", 64, true, false},
    {true, "atomic_bytes=8,atomics_in_order=on", 64, true, true},
};

#define TOLD_OF_ALL(story)                                                                                             \
    static void story(void **state) {                                                                                  \
        (void)state;                                                                                                   \
        for (unsigned i = 0; i < sizeof(all_told) / sizeof(all_told[0]); i++)                                          \
            story##_told(&all_told[i]);                                                                                \
    }                                                                                                                  \
    _Static_assert(1, "")

#define TOLD_OF(story, which)                                                                                          \
    static void story(void **state) {                                                                                  \
        (void)state;                                                                                                   \
        for (unsigned i = 0; i < sizeof(all_told) / sizeof(all_told[0]); i++)                                          \
            if (all_told[i].inlined == which)                                                                          \
                story##_told(&all_told[i]);                                                                            \
    }                                                                                                                  \
    _Static_assert(1, "")

enum { POINTERS = 0, INLINE = 1 };

/* One partition. */
#define STILL   "slots=2,l2_slots=1,afs=1000000"   /* nobody looks at the load */
#define GROWING "slots=4,l2_slots=1,load=60,afs=1" /* with one bucket the third key makes it double */

typedef struct key {
    uint8_t bytes[8];
} key;


static inline void open_stage_with(stage *s, const told *told, unsigned bits, const char *options, bool by_hand) {
    char text[256];
    snprintf(text, sizeof(text), "%s,partitions=1,bits=%u,%s",
             told->inlined ? "key_size=8,value_size=8,narrow=on" : "layout=pointer", bits, options);
    (by_hand ? stage_open_by_hand : stage_open)(s, "shard", text, told->sim);
}


static inline void open_stage(stage *s, const told *told, unsigned bits, const char *options) {
    open_stage_with(s, told, bits, options, false);
}


static inline key number(uint64_t n) {
    key k;
    n = __builtin_bswap64(n);
    memcpy(k.bytes, &n, 8);
    return k;
}


static inline uint64_t hash_of(const stage_actor *a, key k) {
    return shard_hash(a->index, (far_bytes){k.bytes, 8});
}


/* The n-th key of that bucket of version 0 that stays in it (leaves 0), or leaves it, at the first doubling. */
static inline key key_in(const stage_actor *a, uint64_t bucket, bool leaves, unsigned n) {
    const shard_state *st = shard_state_of(a->index);
    for (uint64_t i = 1;; i++) {
        uint64_t h = hash_of(a, number(i));
        if (shard_bucket(h, st->p, st->b, 0) == bucket && shard_changes(h, st->p, st->b, 1) == leaves && n-- == 0)
            return number(i);
    }
}


static inline key key_with(const stage_actor *a, bool leaves, unsigned n) { /* where there is one bucket */
    return key_in(a, 0, leaves, n);
}


static inline far_sim_match at(const char *point) {
    return (far_sim_match){.point = point};
}


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


static inline uint64_t get(stage_actor *a, key k) { /* 0: absent */
    uint64_t value;
    size_t length;
    int err = far_get(a->session, a->index, k.bytes, 8, &value, 8, &length);
    assert_true(err == 0 || err == FAR_ERR_NOT_FOUND);
    return err == 0 ? value : 0;
}


/* By a session of its own, while all three have something under way. */
static inline uint64_t get_aside(stage *s, key k) {
    stage_actor aside = s->a;
    assert_int_equal(far_session_open(s->a.pool, &aside.session), 0);
    uint64_t value = get(&aside, k);
    far_session_close(aside.session);
    return value;
}


static inline uint64_t given(const stage_actor *a) { /* by the get that has ended */
    uint64_t value;
    assert_true(a->result == 0 || a->result == FAR_ERR_NOT_FOUND);
    memcpy(&value, a->value, 8);
    return a->result == 0 ? value : 0;
}


/* It is there once: what one delete takes does not come back. */
static inline void assert_there_once(stage *s, key k, uint64_t value) {
    assert_int_equal(get(&s->a, k), value);
    assert_int_equal(insert(&s->b, k, 99), FAR_ERR_EXISTS);
    assert_int_equal(delete_key(&s->a, k), 0);
    assert_int_equal(get(&s->c, k), 0);
    assert_int_equal(delete_key(&s->c, k), FAR_ERR_NOT_FOUND);
}


static inline uint64_t root_of(const stage_actor *a) {
    return atomic_load_explicit(&shard_state_of(a->index)->part[0].root, memory_order_relaxed);
}


static inline unsigned version(const stage_actor *a) {
    return shard_root_d(root_of(a));
}


/* As the root word says in far memory. */
static inline uint64_t true_root(stage *s) {
    far_addr pcb = shard_state_of(s->a.index)->part[0].pcb;
    return world_word(s->world, pcb);
}


/* The body of the partition, as far as the actor knows. */
static inline far_addr body_addr(const stage_actor *a) {
    const shard_partition *part = &shard_state_of(a->index)->part[0];
    far_addr body = shard_known(&part->body, shard_body_of(part));
    assert_int_not_equal(body, 0);
    return body;
}


static inline const uint64_t *words_at(stage *s, far_addr addr) {
    return world_bytes(s->world, addr);
}


/* A handle knows a segment once it looked for something in it. */
static inline far_addr bucket_addr(const stage_actor *a, uint64_t bucket) {
    const shard_state *st = shard_state_of(a->index);
    far_addr segment = shard_known(&st->part[0].segment[shard_segment(bucket, st->b)], shard_body_of(&st->part[0]));
    assert_int_not_equal(segment, 0);
    return segment + shard_in_segment(bucket, st->b) * SHARD_BUCKET_BYTES;
}


static inline far_sim_match write_of(far_addr bucket) { /* of the whole of it */
    return (far_sim_match){.kind = FAR_SIM_WRITE, .from = bucket, .to = bucket + 8};
}


/* GROWING: two keys that stay, one that leaves; the third put makes the table double, and nothing is split yet. */
static inline void grow(stage *s) {
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


/* Without regard to the load. */
static inline void double_by(stage *s, stage_actor *a) {
    unsigned d = shard_root_d(true_root(s));
    for (unsigned i = 0; i < 100 && shard_root_d(true_root(s)) == d; i++) {
        assert_true(far_session_call(a->session, FAR_STATS_OTHER, false, grow_once, a->index) >= 0);
        far_epoch_request(a->pool);
        far_sim_sleep(s->world, 300000);
    }
    assert_int_equal(shard_root_d(true_root(s)), d + 1);
}


static inline uint64_t counted(stage *s, size_t offset) { /* over all three handles */
    uint64_t sum = 0;
    for (unsigned i = 0; i < 3; i++) {
        stage_actor *a = i == 0 ? &s->a : i == 1 ? &s->b : &s->c;
        sum += *(const _Atomic uint64_t *)((const char *)&shard_state_of(a->index)->counters + offset);
    }
    return sum;
}
#define COUNTED(s, counter) counted(s, offsetof(shard_counters, counter))

#endif
