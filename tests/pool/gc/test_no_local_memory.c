/* A process without local memory cannot record objects that it holds in the pool. Such objects leak, and a collection
 * is requested. */
#include "sweep_phase_rig.h"
#include "test.h"

static bool fails; /* true while the replaced allocation functions below return NULL */

void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__real_far_pages_alloc(size_t bytes);
void *__wrap_far_pages_alloc(size_t bytes);
far_owned_block *__real_far_owned_block_add(far_store *s, far_block_id id, bool used, uint32_t stamp);
far_owned_block *__wrap_far_owned_block_add(far_store *s, far_block_id id, bool used, uint32_t stamp);


void *__wrap_malloc(size_t bytes) {
    return fails ? NULL : __real_malloc(bytes);
}


void *__wrap_far_pages_alloc(size_t bytes) {
    return fails ? NULL : __real_far_pages_alloc(bytes);
}


far_owned_block *__wrap_far_owned_block_add(far_store *s, far_block_id id, bool used, uint32_t stamp) {
    return fails ? NULL : __real_far_owned_block_add(s, id, used, stamp);
}


static uint64_t losses_so_far(const rig *r) {
    return word_at(r, far_addr_make(0, FAR_SUPER_LOSSES));
}


/* Retires an object. It is the first retired object of the session, so the session must allocate a chunk for it,
 * which fails. */
static int retire_one(far_task *t, void *arg) {
    actor *a = arg;
    far_object object = {0};
    int err = far_pin_take(t);
    if (err == 0)
        err = far_alloc(t, a->index, TOY_TYPE_BUCKET, 512, 0, FAR_ALLOC_ON_NODE, &object);
    fails = true;
    if (err == 0)
        far_retire(t, a->index, TOY_TYPE_BUCKET, object.addr, 512);
    fails = false;
    far_pin_drop(t);
    return err;
}


/* A session retires an object, but has no local memory to record it. A collection is requested and finds the object.
 * Fails without leak_to_collection (retire.c). */
TEST(an_unrecorded_retired_object_is_collected) {
    rig r;
    open_owners(&r, 1, 2, 0);
    actor *a = &r.actors[0];
    put_many(a, "a");
    uint64_t wanted = losses_so_far(&r);
    assert_int_equal(far_session_open(a->pool, &a->other), 0);
    assert_int_equal(far_session_call(a->other, FAR_STATS_OTHER, true, retire_one, a), 0);
    far_sim_sleep(r.world, 20000000);
    assert_true(losses_so_far(&r) > wanted);
    assert_nothing_lost(&r, &r.actors[1]);
    assert_many(a, "a");
    close_rig_with_held_blocks(&r);
}


static int adopt_without_memory(far_task *t, void *arg) {
    fails = true;
    int err = adopt_orphans(t, arg);
    fails = false;
    return err;
}


/* A handle adopts an orphan with a leaked object but has no local memory to record the block. Its housekeeping records
 * the block later, without sweeping it for the last collection, so another collection must be requested. Fails without
 * collection_due in recover_unknown_block (exchange.c). */
TEST(an_unrecorded_adopted_block_is_collected) {
    rig r;
    open_owners(&r, 2, 3, 0);
    actor *owner = &r.actors[0], *adopter = &r.actors[1];
    put_many(owner, "a");
    assert_int_equal(call(owner, leak_one, owner), 0);
    hold_blocks(owner, false);
    assert_int_equal(call(owner, release_all_blocks, NULL), 0);
    uint64_t wanted = losses_so_far(&r);
    assert_int_equal(call(adopter, adopt_without_memory, NULL), FAR_ERR_NO_MEMORY);
    far_sim_sleep(r.world, 20000000);
    assert_true(losses_so_far(&r) > wanted);
    assert_many(adopter, "a");
    assert_nothing_lost(&r, &r.actors[2]);
    close_rig_with_held_blocks(&r);
}
