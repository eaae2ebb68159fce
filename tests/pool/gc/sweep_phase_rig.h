/* A rig for tests of the sweep phase. It provides many keys with known values, collections that run to their end, and
 * objects that are leaked on purpose. */
#ifndef TESTS_POOL_SETTLE_RIG_H
#define TESTS_POOL_SETTLE_RIG_H

#include "pool_rig.h"


/* Opens a pool of one memory node with an index in which nearly every key has a bucket of its own. */
static inline void open_owners(rig *r, unsigned seed, unsigned count, unsigned by_hand) {
    open_rig_with(r, seed, count, by_hand, "size=4M", 4096);
    for (unsigned i = 0; i < count; i++)
        if (!(by_hand >> i & 1))
            world_await_status_record(r->world, r->actors[i].pool);
}


enum { MANY = 60 }; /* more objects than a session's magazine takes at once */


/* Puts keys with this prefix; the value of each key is known. */
static inline void put_many(actor *a, const char *prefix) {
    for (unsigned i = 0; i < MANY; i++) {
        char key[16], value[300];
        int length = snprintf(key, sizeof(key), "%s%u", prefix, i);
        memset(value, (int)(i + (unsigned char)prefix[0]), sizeof(value));
        assert_int_equal(far_put(a->session, a->index, key, (size_t)length, value, sizeof(value)), 0);
    }
    hold_blocks(a, true);
}


static inline void assert_many(actor *a, const char *prefix) {
    for (unsigned i = 0; i < MANY; i++) {
        char key[16], value[300];
        size_t got = 0;
        int length = snprintf(key, sizeof(key), "%s%u", prefix, i);
        assert_int_equal(far_get(a->session, a->index, key, (size_t)length, value, sizeof(value), &got), 0);
        assert_int_equal(got, sizeof(value));
        for (unsigned k = 0; k < sizeof(value); k++)
            assert_int_equal((unsigned char)value[k], (i + (unsigned char)prefix[0]) & 0xff);
    }
}


/* Allocates all free memory and writes to it. An object that was freed although it is in use would thereby be
 * overwritten. */
static inline void use_all_free_memory(rig *r, actor *a) {
    for (unsigned round = 0; round < 3; round++) {
        char prefix[4];
        snprintf(prefix, sizeof(prefix), "z%u", round);
        put_many(a, prefix);
    }
    world_assert_no_checker_error(r->world);
}


/* Runs the collector to the end of its collection, and polls the handles without housekeeping in the meantime. */
static inline void finish_collection(rig *r, actor *collector) {
    far_sim_resume(collector->client);
    for (unsigned i = 0; i < 5000 && !far_sim_ended(collector->client); i++) {
        for (unsigned k = 0; k < r->count; k++) {
            actor *a = &r->actors[k];
            if (a != collector && a->pool && a->pool->options.no_thread && !far_sim_killed(a->pool->fabric))
                far_pool_poll(a->pool);
        }
        far_sim_run_for(r->world, 100000);
    }
    assert_true(far_sim_ended(collector->client));
    assert_int_equal(collector->result, 0);
}


static inline far_sim_match before_done(void) {
    return (far_sim_match){.kind = FAR_SIM_WRITE, .from = FAR_SUPER_DONE, .to = FAR_SUPER_DONE + 8};
}


/* Leaks one object, which no index links and no client holds; its address is stored in the actor. */
static inline int leak_one(far_task *t, void *arg) {
    actor *a = arg;
    far_object object = {0};
    int err = far_pin_take(t);
    if (err == 0)
        err = far_alloc(t, a->index, TOY_TYPE_BUCKET, 512, 0, FAR_ALLOC_ON_NODE, &object);
    a->object = object.addr;
    far_pin_drop(t);
    return err;
}


static inline bool is_in_store(const actor *a, far_addr addr) {
    const far_slab *slab = far_slab_at(a->pool->store, addr);
    assert_non_null(slab);
    uint64_t n = (addr - far_slab_base(a->pool->store, slab)) / slab->class->size;
    return slab->in_store[n / 64] >> n % 64 & 1;
}


static inline int alloc_and_free_some(far_task *t, void *arg) {
    actor *a = arg;
    far_object objects[40];
    int err = far_pin_take(t);
    for (unsigned i = 0; i < 40 && err == 0; i++)
        err = far_alloc(t, a->index, TOY_TYPE_BUCKET, 512, FAR_NODE_ANY, 0, &objects[i]);
    for (unsigned i = 0; i < 40 && err == 0; i++)
        far_free(t, a->index, TOY_TYPE_BUCKET, objects[i].addr, 512);
    far_pin_drop(t);
    return err;
}


static inline int release_all_blocks(far_task *t, void *arg) {
    (void)arg;
    far_memory *m = far_memory_of(t);
    far_mutex_lock(&m->lock);
    /* Frees the objects of the session's reserve, because a block with such objects would not be released. */
    far_session_owned_free(m, true);
    far_mutex_unlock(&m->lock);
    int err = far_pin_take(t);
    far_store_enter(t);
    if (err == 0)
        err = far_blocks_release(t, FAR_RELEASE_AT_CLOSE);
    far_store_leave(t);
    far_pin_drop(t);
    return err;
}


static inline int adopt_orphans(far_task *t, void *arg) {
    (void)arg;
    int err = far_pin_take(t);
    far_store_enter(t);
    if (err == 0)
        err = far_orphans_adopt_all(t);
    far_store_leave(t);
    far_pin_drop(t);
    return err;
}

#endif
