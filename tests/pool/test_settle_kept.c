/* Settling: what sessions keep from one operation to the next (reserves, redo records) is not freed by a sweep while they
 * live, and found when they are lost. */
#include "settle_rig.h"


static int keep_one(far_task *t, void *arg) {
    actor *a = arg;
    far_object object = {0};
    int err = far_pin_take(t);
    if (err == 0)
        err = far_alloc(t, a->index, TOY_TYPE_BUCKET, 512, FAR_NODE_ANY, FAR_ALLOC_KEEP, &object);
    a->object = object.addr;
    if (err == 0)
        err = far_write_word(t, a->object, 0x6b657074);
    far_pin_drop(t);
    return err;
}


/* The objects of its reserve and one that it keeps are linked nowhere. */
static void reserve_survives_sweep(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 10, 2, 0);
    actor *owner = &r.actors[0], *sweeper = &r.actors[1];
    put_many(owner, "a");
    assert_int_equal(call(owner, keep_one, owner), 0);
    uint32_t kept = owner->session->memory->kept_count;
    assert_true(kept > 1 && owner->session->memory->reserves == kept - 1);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(sweep(sweeper, FAR_SWEEP_REPAIR), 0);
        assert_int_equal(sweeper->swept.leaked_bytes, 0);
        put_now(owner, "b", 300);
    }
    assert_int_equal(owner->session->memory->kept_count, kept);
    use_all_free_memory(&r, owner);
    assert_int_equal(word_at(&r, owner->object), 0x6b657074);
    assert_nothing_lost(&r, sweeper);
    close_holders(&r);
}


static int keep_wiped(far_task *t, void *arg) {
    actor *a = arg;
    far_object object = {0};
    int err = far_pin_take(t);
    far_point(t, "test:pinned");
    if (err == 0)
        err = far_alloc(t, a->index, TOY_TYPE_BUCKET, 512, FAR_NODE_ANY, FAR_ALLOC_KEEP | FAR_ALLOC_ZERO, &object);
    a->object = object.addr;
    far_pin_drop(t);
    return err;
}


static void keep_wiped_main(void *arg) {
    actor *a = arg;
    a->result = call(a, keep_wiped, a);
}


/* It has the object, and wipes it before it keeps it; meanwhile its handle hears of a sweep. */
static void what_is_about_to_be_kept_survives_sweep(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 13, 2, 0);
    actor *owner = &r.actors[0], *sweeper = &r.actors[1];
    put_many(owner, "a");
    assert_int_equal(call(owner, use_some, owner), 0); /* so that there are used ones */
    start(owner, "keeper", keep_wiped_main);
    stop_at_point(owner, "test:pinned");
    stop_at(owner, (far_sim_match){.kind = FAR_SIM_WRITE});
    start_sweep(sweeper);
    far_sim_run_for(r.world, 20000000);
    assert_int_equal(owner->pool->store->sweep, request_now(&r).sweep);
    assert_true(far_is_unsettled(owner->pool->store));
    finish(owner);
    assert_int_equal(owner->result, 0);
    finish_sweep(&r, sweeper);
    assert_int_equal(sweeper->swept.leaked_bytes, 0);
    memset(bytes_at(&r, owner->object), 0x6b, 512);
    use_all_free_memory(&r, owner);
    for (unsigned i = 0; i < 512; i++)
        assert_int_equal(((uint8_t *)bytes_at(&r, owner->object))[i], 0x6b);
    assert_nothing_lost(&r, sweeper);
    close_holders(&r);
}


/* A session is lost, and closed: what it kept others may need, to finish what it left half done. That is not handed out
 * before a sweep. Nor when its index is closed. */
static void what_a_lost_session_kept_is_left_to_a_sweep(void **state) {
    (void)state;
    for (unsigned closed = 0; closed < 2; closed++) {
        rig r;
        open_settlers(&r, 18 + closed, 2, BY_HAND(0));
        actor *a = &r.actors[0], *sweeper = &r.actors[1];
        assert_int_equal(far_session_open(a->pool, &a->other), 0);
        put_many(a, "a");
        assert_int_equal(far_session_call(a->other, FAR_STATS_OTHER, true, keep_one, a), 0);
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
        assert_many(sweeper, "a");
        close_holders(&r);
    }
}


/* Its process was stopped while it slept, with objects that it keeps: nobody waits for it, nobody takes them; what is
 * lost in its blocks is found when it goes on, or dies. */
static void stopped_asleep_with_kept(void **state) {
    (void)state;
    for (unsigned dies = 0; dies < 2; dies++) {
        rig r;
        open_settlers(&r, 11 + dies, 2, BY_HAND(0));
        actor *stopped = &r.actors[0], *sweeper = &r.actors[1];
        put_many(stopped, "a");
        assert_int_equal(call(stopped, lose_one, stopped), 0);
        far_addr lost = stopped->object;
        assert_int_equal(call(stopped, keep_one, stopped), 0);
        poll_until_asleep(stopped);
        for (unsigned i = 0; i < 3; i++) {
            assert_int_equal(sweep(sweeper, FAR_SWEEP_REPAIR), 0);
            assert_int_equal(sweeper->swept.leaked_bytes, 0);
            use_all_free_memory(&r, sweeper);
        }
        assert_int_equal(word_at(&r, stopped->object), 0x6b657074);
        assert_int_equal(block_state(&r, sweeper, lost).id, stopped->pool->team.own->id);
        if (dies) {
            far_sim_kill(stopped->pool->fabric);
            assert_nothing_lost_by_itself(&r, sweeper);
        } else {
            for (unsigned i = 0; i < 400; i++)
                poll_all(&r, 1000000);
            assert_int_equal(word_at(&r, stopped->object), 0x6b657074);
            put_now(stopped, "b", 300);
            poll_until_asleep(stopped);
            assert_int_equal(leaked(sweeper), 0);
        }
        assert_many(sweeper, "a");
        close_holders(&r);
    }
}


int main(int argc, char **argv) {
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reserve_survives_sweep),
        cmocka_unit_test(what_is_about_to_be_kept_survives_sweep),
        cmocka_unit_test(what_a_lost_session_kept_is_left_to_a_sweep),
        cmocka_unit_test(stopped_asleep_with_kept),
    };
    return cmocka_run_group_tests_name("settle_kept", tests, NULL, NULL);
}
