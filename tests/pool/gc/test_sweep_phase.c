/* The sweep phase: owners free the leaked objects in their own blocks, and nothing else. Each test has an object that
 * an owner would free although it is in use, or would never free, without one of the rules in src/pool/gc/README.md.
 * Proves sweep.c. */
#include "sweep_phase_rig.h"
#include "test.h"


/* ---- Objects handed out during a collection ---- */

/* The walk has ended. Owner A then hands out own objects, from a magazine and from the store, and links them. They are
 * not marked, but black, so they are not freed. Only the object that was leaked before is. Fails without the black bits
 * in far_store_take (store.c) or observe_in_magazine (request.c). */
TEST(an_object_linked_after_the_walk_is_black) {
    rig r;
    open_owners(&r, 1, 2, 0);
    actor *owner = &r.actors[0], *collector = &r.actors[1];
    put_many(owner, "a");
    assert_int_equal(call(owner, leak_one, owner), 0);
    start_sweep(collector);
    stop_at_point(collector, "collect:write_marks");
    put_many(owner, "b");
    finish_collection(&r, collector);
    assert_int_equal(collector->swept.leaked_bytes, 512); /* only the object that was leaked on purpose was freed */
    use_all_free_memory(&r, owner);
    assert_many(collector, "a");
    assert_many(collector, "b");
    assert_nothing_lost(&r, owner);
    close_rig_with_held_blocks(&r);
}


static int retire_leaked(far_task *t, void *arg) {
    actor *a = arg;
    int err = far_pin_take(t);
    if (err == 0)
        far_retire(t, a->index, TOY_TYPE_BUCKET, a->object, 512);
    far_pin_drop(t);
    return err;
}


static bool is_black(const actor *a, far_addr addr) {
    const far_slab *slab = far_slab_at(a->pool->store, addr);
    assert_non_null(slab);
    uint64_t n = (addr - far_slab_base(a->pool->store, slab)) / slab->class->size;
    return slab->black[n / 64] >> n % 64 & 1;
}


/* Handle A, the owner, has observed the collection. A unlinks and retires an object of its own before the walk reaches
 * the object, so the object is not marked. The object must be black (recorded as allocated during marking). Otherwise
 * the sweep phase would free the object as a leak, and the end of its retirement would free it a second time. Fails
 * without far_store_set_black in far_retire (retire.c). */
TEST(an_object_retired_during_a_collection_is_black) {
    rig r;
    open_owners(&r, 40, 2, 0);
    actor *owner = &r.actors[0], *collector = &r.actors[1];
    put_many(owner, "a");
    assert_int_equal(call(owner, leak_one, owner), 0);
    start_sweep(collector);
    stop_at_point(collector, "collect:write_marks");
    assert_true(far_sweep_is_pending(owner->pool->store));
    assert_false(is_black(owner, owner->object));
    assert_int_equal(call(owner, retire_leaked, owner), 0);
    assert_true(is_black(owner, owner->object));
    finish_collection(&r, collector);
    assert_int_equal(collector->swept.leaked_bytes, 0);
    use_all_free_memory(&r, owner);
    assert_many(collector, "a");
    assert_nothing_lost(&r, owner);
    close_rig_with_held_blocks(&r);
}


/* B retires an object that is remote at that time, and then adopts its block, so the object is own now. No
 * acknowledgement waits for it any more. It must become black, because a later sweep would free it a second time. Fails
 * without far_retired_set_black in load_adopted_block (exchange.c). */
TEST(a_retired_object_becomes_black_when_its_block_is_adopted) {
    rig r;
    open_owners(&r, 41, 2, 0);
    actor *owner = &r.actors[0], *other = &r.actors[1];
    assert_int_equal(call(owner, leak_one, owner), 0);
    assert_int_equal(call(owner, release_all_blocks, owner), 0);
    other->object = owner->object;
    assert_int_equal(call(other, retire_leaked, other), 0);
    assert_false(far_address_is_own(other->pool->store, other->object));
    assert_int_equal(call(other, adopt_orphans, other), 0);
    assert_true(is_black(other, other->object));
    assert_nothing_lost(&r, owner);
    close_rig_with_held_blocks(&r);
}


/* Owner A is quiescent until the walk has ended, and becomes active before DONE is written. Objects that it then hands
 * out must be black. Fails if black bits are kept only while `walk` is set. */
TEST(a_handle_that_wakes_after_the_walk_keeps_black_bits) {
    rig r;
    open_owners(&r, 2, 2, WITHOUT_HOUSEKEEPING(0));
    actor *owner = &r.actors[0], *collector = &r.actors[1];
    put_many(owner, "a");
    poll_until_quiescent(owner);
    start_sweep(collector);
    stop_at(collector, before_done());
    assert_false(request_now(&r).walk);
    put_many(owner, "b");
    finish_collection(&r, collector);
    assert_int_equal(collector->swept.leaked_bytes, 0);
    use_all_free_memory(&r, owner);
    assert_many(collector, "a");
    assert_many(collector, "b");
    poll_until_quiescent(owner);
    assert_nothing_lost(&r, collector);
    close_rig_with_held_blocks(&r);
}


/* A has observed the collection, and DONE is not written yet. A must not sweep, because the marks are not valid and
 * other handles have not returned all objects. Fails without the check of DONE in sweep_is_due (sweep.c). */
TEST(owners_sweep_only_after_done) {
    rig r;
    open_owners(&r, 3, 3, 0);
    actor *owner = &r.actors[0], *collector = &r.actors[1], *other = &r.actors[2];
    put_many(owner, "a");
    put_now(other, "first", 1);
    start_sweep(collector);
    stop_at_point(collector, "collect:write_marks");
    /* The puts of the other handle unlink objects in blocks of the owner, which the walk may have marked or not. */
    put_many(other, "a");
    stop_at(collector, before_done());
    uint32_t sweep = request_now(&r).collection;
    far_sim_sleep(r.world, 20000000);
    put_now(owner, "b", 300); /* The put makes the owner active. */
    assert_int_equal(owner->pool->store->handshake.collection, sweep);
    assert_int_not_equal(owner->pool->store->sweep.swept, sweep);
    finish_collection(&r, collector);
    far_sim_sleep(r.world, 20000000);
    put_now(owner, "b", 300);
    far_sim_sleep(r.world, 5000000);
    assert_false(far_number_is_newer(sweep, owner->pool->store->sweep.swept));
    use_all_free_memory(&r, owner);
    assert_many(owner, "a");
    assert_nothing_lost(&r, owner);
    close_rig_with_held_blocks(&r);
}


/* ---- Blocks that change their owner ---- */

/* Closes the handle of the actor. Its blocks, with linked, free and leaked objects, become orphans. */
static void leave_orphans(rig *r, actor *a) {
    put_many(a, "o");
    assert_int_equal(call(a, leak_one, a), 0);
    far_addr object = a->object;
    hold_blocks(a, false);
    leave(a);
    a->object = object;
    assert_int_equal(block_state(r, &r->actors[1], object).kind, FAR_BLOCK_ORPHAN);
}


/* Makes the actor adopt the orphan that contains `object`, because the actor needs objects of the same class. */
static void adopt_by_use(rig *r, actor *adopter, far_addr object) {
    for (char last = 'A'; last <= 'Z' && !far_address_is_own(adopter->pool->store, object); last++)
        put_many(adopter, (char[]){'h', last, 0});
    assert_true(far_address_is_own(adopter->pool->store, object));
    assert_int_equal(block_state(r, adopter, object).id, adopter->pool->team.own->id);
}


/* Handle C adopts an orphan during the mark phase. Its black bits begin with the adoption, and it sweeps the block with
 * its own blocks. */
TEST(a_block_adopted_during_the_walk_is_swept_later) {
    rig r;
    open_owners(&r, 4, 3, 0);
    actor *gone = &r.actors[0], *collector = &r.actors[1], *adopter = &r.actors[2];
    put_now(adopter, "first", 1); /* it owns a block, so the collection waits for its sweep */
    leave_orphans(&r, gone);
    start_sweep(collector);
    stop_at_point(collector, "collect:write_marks");
    adopt_by_use(&r, adopter, gone->object);
    finish_collection(&r, collector);
    assert_true(collector->swept.leaked_bytes >= 512);
    far_sim_sleep(r.world, 20000000);
    use_all_free_memory(&r, adopter);
    assert_many(collector, "o");
    assert_many(collector, "hA");
    assert_int_equal(leaked(collector), 0);
    close_rig_with_held_blocks(&r);
}


/* Handle C has swept its blocks and then adopts an orphan that the collector has not examined yet. The block must be
 * swept at once. Fails without far_sweep_block in load_adopted_block (exchange.c). */
TEST(a_block_adopted_after_the_sweep_is_swept_at_once) {
    rig r;
    open_owners(&r, 5, 3, 0);
    actor *gone = &r.actors[0], *collector = &r.actors[1], *adopter = &r.actors[2];
    put_now(adopter, "first", 1);
    leave_orphans(&r, gone);
    start_sweep(collector);
    stop_at(collector, (far_sim_match){.kind = FAR_SIM_WRITE, .from = FAR_SUPER_LOSSES_COLLECTED, .to = FAR_SUPER_LOSSES_COLLECTED + 8});
    uint32_t sweep = request_now(&r).collection;
    /* These puts keep the handle active, so that it observes that the collection is done. */
    for (unsigned i = 0; i < 20; i++) {
        put_now(adopter, "first", 1);
        far_sim_sleep(r.world, 1000000);
    }
    assert_int_equal(adopter->pool->store->sweep.swept, sweep);
    adopt_by_use(&r, adopter, gone->object);
    finish_collection(&r, collector);
    use_all_free_memory(&r, adopter);
    assert_many(collector, "o");
    assert_many(collector, "hA");
    assert_int_equal(leaked(collector), 0);
    close_rig_with_held_blocks(&r);
}


/* Owner A links objects after the walk has passed and is closed. Its black bits are lost, so this collection must free
 * nothing in the released blocks; the next one does. Fails if far_blocks_release writes an older stamp, or does not
 * request another collection (turn_into_orphans in exchange.c). */
TEST(a_block_released_during_a_collection_is_not_swept_by_it) {
    rig r;
    open_owners(&r, 6, 3, 0);
    actor *owner = &r.actors[0], *collector = &r.actors[1], *other = &r.actors[2];
    put_many(owner, "a");
    assert_int_equal(call(owner, leak_one, owner), 0);
    start_sweep(collector);
    stop_at_point(collector, "collect:write_marks");
    put_many(owner, "b");
    far_addr object = owner->object;
    hold_blocks(owner, false);
    leave(owner);
    assert_int_equal(block_state(&r, other, object).kind, FAR_BLOCK_ORPHAN);
    uint64_t wanted = word_at(&r, FAR_SUPER_LOSSES);
    assert_true(wanted > 0);
    finish_collection(&r, collector);
    assert_true(collection_is_requested(&r)); /* A collection is requested because of the released block. */
    put_many(other, "c");
    use_all_free_memory(&r, other);
    assert_many(other, "a");
    assert_many(other, "b");
    wait_for_sweeps(&r);
    use_all_free_memory(&r, other);
    assert_many(other, "a");
    assert_many(other, "b");
    assert_int_equal(leaked(collector), 0);
    close_rig_with_held_blocks(&r);
}


/* Runs a collection. Both `one` and `other` observe it and sweep their blocks. */
static void collect_and_sweep(rig *r, actor *collector, actor *one, actor *other) {
    put_now(other, "first", 1);
    assert_int_equal(sweep(collector, FAR_COLLECT_REPAIR), 0);
    for (unsigned i = 0; i < 20; i++) {
        put_now(other, "first", 1);
        put_now(one, "first", 1);
        far_sim_sleep(r->world, 1000000);
    }
    assert_int_equal(other->pool->store->sweep.swept, request_now(r).collection);
}


/* Owner A links objects after a collection and fails. The next collector takes A's block and stops before it publishes
 * its number. Handle C, which has swept the last collection, adopts the block. It must not sweep the block with the
 * marks of that collection, because A's objects are not marked there. Fails without the stamp in disown_block
 * (collect.c). */
TEST(a_disowned_block_is_not_swept_with_old_marks) {
    rig r;
    open_owners(&r, 7, 3, 0);
    actor *failed = &r.actors[0], *collector = &r.actors[1], *adopter = &r.actors[2];
    collect_and_sweep(&r, collector, failed, adopter);
    put_many(failed, "a");
    remove_now(failed, "a0"); /* this delete makes room for another value */
    assert_int_equal(call(failed, leak_one, failed), 0);
    far_addr object = bucket_of(&r, failed, "a5");
    far_sim_kill(failed->pool->fabric);
    start_sweep(collector);
    stop_at(collector,
            (far_sim_match){.kind = FAR_SIM_CAS, .nth = 2, .from = FAR_SUPER_REQUEST, .to = FAR_SUPER_REQUEST + 8});
    assert_int_equal(block_state(&r, adopter, object).kind, FAR_BLOCK_ORPHAN);
    adopt_by_use(&r, adopter, object);
    use_all_free_memory(&r, adopter);
    for (unsigned i = 1; i < MANY; i++) {
        char key[8], value[300];
        snprintf(key, sizeof(key), "a%u", i);
        assert_int_equal(far_get(adopter->session, adopter->index, key, strlen(key), value, sizeof(value), NULL), 0);
        assert_int_equal((unsigned char)value[0], i + 'a');
    }
    finish_collection(&r, collector);
    assert_many(adopter, "hA");
    assert_nothing_leaked_without_repair(&r, adopter);
    close_rig_with_held_blocks(&r);
}


/* Damage changes the stamp of an orphan, so that it names another collection or belongs to another block. The handle
 * that adopts the block must not sweep it with marks from before its objects were linked. A later collection frees the
 * leaked object. Fails without far_stamp_is_sound in collection_of_stamp (exchange.c). */
static void assert_damaged_stamp_is_harmless(unsigned seed, uint64_t (*damage)(const far_geometry *g, far_block_id id,
                                                                               uint64_t stamp)) {
    rig r;
    open_owners(&r, seed, 3, 0);
    actor *gone = &r.actors[0], *collector = &r.actors[1], *adopter = &r.actors[2];
    const far_geometry *g = &collector->pool->geometry;
    collect_and_sweep(&r, collector, gone, adopter);
    leave_orphans(&r, gone);
    far_block_id id = block_of(adopter, gone->object);
    uint64_t *stamp = bytes_at(&r, far_block_stamp(g, id));
    assert_true(far_stamp_is_sound(g, id, *stamp));
    *stamp = damage(g, id, *stamp);
    assert_false(far_stamp_is_sound(g, id, *stamp));
    adopt_by_use(&r, adopter, gone->object);
    const far_owned_block *held = far_owned_block_at(adopter->pool->store, far_block_base(g, id));
    /* The adopter ignores the damaged stamp. The last owner may have observed at most one collection more than the
     * adopter, so the new stamp must be newer than the adopter's last collection. */
    assert_true(far_number_is_newer(held->stamp, adopter->pool->store->handshake.collection));
    use_all_free_memory(&r, adopter);
    assert_many(collector, "o");
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(sweep(collector, FAR_COLLECT_REPAIR), 0);
    use_all_free_memory(&r, adopter);
    assert_many(collector, "o");
    assert_int_equal(leaked(collector), 0);
    close_rig_with_held_blocks(&r);
}


static uint64_t all_ones(const far_geometry *g, far_block_id id, uint64_t stamp) {
    (void)g, (void)id, (void)stamp;
    return UINT64_MAX;
}


static uint64_t zero_stamp(const far_geometry *g, far_block_id id, uint64_t stamp) {
    (void)g, (void)id, (void)stamp;
    return 0;
}


static uint64_t older_collection(const far_geometry *g, far_block_id id, uint64_t stamp) {
    for (unsigned bit = 0; bit < 64; bit++)
        assert_false(far_stamp_is_sound(g, id, stamp ^ 1ull << bit));
    return stamp - 1;
}


static uint64_t stamp_of_another_block(const far_geometry *g, far_block_id id, uint64_t stamp) {
    id.index++;
    return far_stamp_pack(g, id, far_stamp_collection(stamp) - 1);
}


/* Runs assert_damaged_stamp_is_harmless with four kinds of damage. */
TEST(a_damaged_stamp_frees_nothing_in_use) {
    assert_damaged_stamp_is_harmless(42, all_ones);
    assert_damaged_stamp_is_harmless(43, zero_stamp);
    assert_damaged_stamp_is_harmless(44, older_collection);
    assert_damaged_stamp_is_harmless(45, stamp_of_another_block);
}
