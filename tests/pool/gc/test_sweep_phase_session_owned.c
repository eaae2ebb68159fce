/* Tests of the sweep phase and session-owned objects (redo records). A collection does not free such objects
 * while their session lives, and finds them when the session is lost. Proves session_owned.c. */
#include "sweep_phase_rig.h"
#include "test.h"


static int alloc_session_owned(far_task *t, void *arg) {
    actor *a = arg;
    far_object object = {0};
    int err = far_pin_take(t);
    if (err == 0)
        err = far_alloc(t, a->index, TOY_TYPE_BUCKET, 512, FAR_NODE_ANY, FAR_ALLOC_SESSION_OWNED, &object);
    a->object = object.addr;
    if (err == 0)
        err = far_write_word(t, a->object, 0x6b657074);
    far_pin_drop(t);
    return err;
}


/* No index links an object that a session owns. Three collections do not free it.
 * Fails without the session_owned callback in far_request_observe (request.c). */
TEST(session_owned_objects_survive_collections) {
    rig r;
    open_owners(&r, 10, 2, 0);
    actor *owner = &r.actors[0], *collector = &r.actors[1];
    put_many(owner, "a");
    assert_int_equal(call(owner, alloc_session_owned, owner), 0);
    assert_int_equal(owner->session->memory->session_owned_count, 1);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(sweep(collector, FAR_COLLECT_REPAIR), 0);
        assert_int_equal(collector->swept.leaked_bytes, 0);
        put_now(owner, "b", 300);
    }
    assert_int_equal(owner->session->memory->session_owned_count, 1);
    use_all_free_memory(&r, owner);
    assert_int_equal(word_at(&r, owner->object), 0x6b657074);
    assert_nothing_lost(&r, collector);
    close_rig_with_held_blocks(&r);
}


static int alloc_session_owned_zeroed(far_task *t, void *arg) {
    actor *a = arg;
    far_object object = {0};
    int err = far_pin_take(t);
    far_point(t, "test:pinned");
    if (err == 0)
        err = far_alloc(t, a->index, TOY_TYPE_BUCKET, 512, FAR_NODE_ANY, FAR_ALLOC_SESSION_OWNED | FAR_ALLOC_ZERO, &object);
    a->object = object.addr;
    far_pin_drop(t);
    return err;
}


static void alloc_session_owned_zeroed_main(void *arg) {
    actor *a = arg;
    a->result = call(a, alloc_session_owned_zeroed, a);
}


/* A session has allocated an object that it will keep, and is wiping it first. Its handle observes a collection at that
 * time. The object must not be freed. Fails if session-owned objects do not become black when the second request is
 * observed (set_session_owned_black in request.c). That request is observed when the pin of the operation has ended, so
 * the session owns the object by then. */
TEST(an_object_about_to_become_session_owned_survives) {
    rig r;
    open_owners(&r, 13, 2, 0);
    actor *owner = &r.actors[0], *collector = &r.actors[1];
    put_many(owner, "a");
    /* Freeing objects first makes the session get used objects, which must be wiped. */
    assert_int_equal(call(owner, alloc_and_free_some, owner), 0);
    start(owner, "keeper", alloc_session_owned_zeroed_main);
    stop_at_point(owner, "test:pinned");
    stop_at(owner, (far_sim_match){.kind = FAR_SIM_WRITE});
    start_sweep(collector);
    far_sim_run_for(r.world, 20000000);
    assert_int_equal(owner->pool->store->handshake.collection, request_now(&r).collection);
    assert_true(far_sweep_is_pending(owner->pool->store));
    finish(owner);
    assert_int_equal(owner->result, 0);
    finish_collection(&r, collector);
    assert_int_equal(collector->swept.leaked_bytes, 0);
    memset(bytes_at(&r, owner->object), 0x6b, 512);
    use_all_free_memory(&r, owner);
    for (unsigned i = 0; i < 512; i++)
        assert_int_equal(((uint8_t *)bytes_at(&r, owner->object))[i], 0x6b);
    assert_nothing_lost(&r, collector);
    close_rig_with_held_blocks(&r);
}


/* A session is lost, and is closed or its index is closed. Other clients may need an object that it kept, to complete
 * its work. The object must not be handed out before a collection has run. Fails without the check of `lost` in
 * free_entry (session_owned.c). */
TEST(session_owned_objects_of_a_lost_session_are_left_to_a_collection) {
    for (unsigned closed = 0; closed < 2; closed++) {
        rig r;
        open_owners(&r, 18 + closed, 2, WITHOUT_HOUSEKEEPING(0));
        actor *a = &r.actors[0], *collector = &r.actors[1];
        assert_int_equal(far_session_open(a->pool, &a->other), 0);
        put_many(a, "a");
        assert_int_equal(far_session_call(a->other, FAR_STATS_OTHER, true, alloc_session_owned, a), 0);
        assert_int_equal(far_sim_declare_dead(r.world, a->other->id, a->other->generation), 1);
        far_session_lose(a->other, FAR_ERR_FENCED);
        if (closed) {
            far_index_close(a->index);
            pass_epochs(a, 2);
            assert_int_equal(far_index_open(a->session, "x", &a->index), 0);
        } else {
            far_session_close(a->other);
            a->other = NULL;
        }
        use_all_free_memory(&r, a);
        assert_int_equal(word_at(&r, a->object), 0x6b657074);
        assert_false(is_in_store(a, a->object));
        for (unsigned i = 0; i < 400 && !is_in_store(a, a->object); i++) {
            put_now(a, "b", 300);
            poll_all(&r, 2000000);
        }
        assert_true(is_in_store(a, a->object));
        assert_many(collector, "a");
        close_rig_with_held_blocks(&r);
    }
}


/* A handle is stopped while it is quiescent, with session-owned objects. Collections do not wait for it, and no other
 * handle takes its blocks. Leaked objects in its blocks are found when it continues or after it failed. */
TEST(a_stopped_quiescent_handle_loses_no_session_owned_object) {
    for (unsigned dies = 0; dies < 2; dies++) {
        rig r;
        open_owners(&r, 11 + dies, 2, WITHOUT_HOUSEKEEPING(0));
        actor *stopped = &r.actors[0], *collector = &r.actors[1];
        put_many(stopped, "a");
        assert_int_equal(call(stopped, leak_one, stopped), 0);
        far_addr lost = stopped->object;
        assert_int_equal(call(stopped, alloc_session_owned, stopped), 0);
        poll_until_quiescent(stopped);
        for (unsigned i = 0; i < 3; i++) {
            assert_int_equal(sweep(collector, FAR_COLLECT_REPAIR), 0);
            assert_int_equal(collector->swept.leaked_bytes, 0);
            use_all_free_memory(&r, collector);
        }
        assert_int_equal(word_at(&r, stopped->object), 0x6b657074);
        assert_int_equal(block_state(&r, collector, lost).id, stopped->pool->team.own->id);
        if (dies) {
            far_sim_kill(stopped->pool->fabric);
            assert_nothing_leaked_without_repair(&r, collector);
        } else {
            for (unsigned i = 0; i < 400; i++)
                poll_all(&r, 1000000);
            assert_int_equal(word_at(&r, stopped->object), 0x6b657074);
            put_now(stopped, "b", 300);
            poll_until_quiescent(stopped);
            assert_int_equal(leaked(collector), 0);
        }
        assert_many(collector, "a");
        close_rig_with_held_blocks(&r);
    }
}
