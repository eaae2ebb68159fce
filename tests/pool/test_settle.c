/* Settling: owners free in their own blocks what a sweep did not meet, and nothing else. Each test is one story of an
 * object that a careless owner would free although somebody has it, or would never free. */
#include "settle_rig.h"


/* ---- Objects that were handed out since ---- */

/* Handed out and linked when the walk has been everywhere: not marked, but black. From the session's hand and from the
 * store. */
static void black_object_linked_behind_the_walker(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 1, 2, 0);
    actor *owner = &r.actors[0], *sweeper = &r.actors[1];
    put_many(owner, "a");
    assert_int_equal(call(owner, lose_one, owner), 0);
    start_sweep(sweeper);
    stop_at_point(sweeper, "sweep:walked");
    put_many(owner, "b");
    finish_sweep(&r, sweeper);
    assert_int_equal(sweeper->swept.leaked_bytes, 512); /* the lost one alone */
    use_all_free_memory(&r, owner);
    assert_many(sweeper, "a");
    assert_many(sweeper, "b");
    assert_nothing_lost(&r, owner);
    close_holders(&r);
}


static int retire_it(far_task *t, void *arg) {
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


/* Unlinked before the walk came to it, and retired after its owner had heard of the sweep: it is not marked, and waits
 * for its epoch. Black, so that the sweep does not free it a second time. */
static void retired_when_the_sweep_was_heard_of(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 40, 2, 0);
    actor *owner = &r.actors[0], *sweeper = &r.actors[1];
    put_many(owner, "a");
    assert_int_equal(call(owner, lose_one, owner), 0);
    start_sweep(sweeper);
    stop_at_point(sweeper, "sweep:walked");
    assert_true(far_is_unsettled(owner->pool->store));
    assert_false(is_black(owner, owner->object));
    assert_int_equal(call(owner, retire_it, owner), 0);
    assert_true(is_black(owner, owner->object));
    finish_sweep(&r, sweeper);
    assert_int_equal(sweeper->swept.leaked_bytes, 0);
    use_all_free_memory(&r, owner);
    assert_many(sweeper, "a");
    assert_nothing_lost(&r, owner);
    close_holders(&r);
}


/* Its block was another's when it was retired; who retired it adopts that block. No answer waits for it any more: it is own. So it is
 * black, or a sweep that is not settled would free it a second time. */
static void retired_while_its_block_was_anothers(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 41, 2, 0);
    actor *owner = &r.actors[0], *other = &r.actors[1];
    assert_int_equal(call(owner, lose_one, owner), 0);
    assert_int_equal(call(owner, give_up_blocks, owner), 0);
    other->object = owner->object;
    assert_int_equal(call(other, retire_it, other), 0);
    assert_false(far_is_own(other->pool->store, other->object));
    assert_int_equal(call(other, adopt_orphans, other), 0);
    assert_true(is_black(other, other->object));
    assert_nothing_lost(&r, owner);
    close_holders(&r);
}


/* The same in a handle that slept until the walk was over, and wakes before the sweep is done. */
static void black_kept_until_settled(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 2, 2, BY_HAND(0));
    actor *owner = &r.actors[0], *sweeper = &r.actors[1];
    put_many(owner, "a");
    poll_until_asleep(owner);
    start_sweep(sweeper);
    stop_at(sweeper, before_done());
    assert_false(request_now(&r).walk);
    put_many(owner, "b");
    finish_sweep(&r, sweeper);
    assert_int_equal(sweeper->swept.leaked_bytes, 0);
    use_all_free_memory(&r, owner);
    assert_many(sweeper, "a");
    assert_many(sweeper, "b");
    poll_until_asleep(owner);
    assert_nothing_lost(&r, sweeper);
    close_holders(&r);
}


/* A sweep that has been heard of is settled when it is done, not before: there are no marks yet, and what others
 * unlinked is not home. */
static void bits_read_after_done(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 3, 3, 0);
    actor *owner = &r.actors[0], *sweeper = &r.actors[1], *other = &r.actors[2];
    put_many(owner, "a");
    put_now(other, "first", 1);
    start_sweep(sweeper);
    stop_at_point(sweeper, "sweep:walked");
    put_many(other, "a"); /* unlinks them, in blocks of the owner: marked by the walk, or not */
    stop_at(sweeper, before_done());
    uint32_t sweep = request_now(&r).sweep;
    far_sim_sleep(r.world, 20000000);
    put_now(owner, "b", 300); /* it is awake */
    assert_int_equal(owner->pool->store->sweep, sweep);
    assert_int_not_equal(owner->pool->store->settled, sweep);
    finish_sweep(&r, sweeper);
    far_sim_sleep(r.world, 20000000);
    put_now(owner, "b", 300);
    far_sim_sleep(r.world, 5000000);
    assert_false(far_number_is_newer(sweep, owner->pool->store->settled));
    use_all_free_memory(&r, owner);
    assert_many(owner, "a");
    assert_nothing_lost(&r, owner);
    close_holders(&r);
}


/* ---- Blocks that change hands ---- */

/* The owner goes, and leaves objects that are linked, some that are free and a lost one. */
static void leave_orphans(rig *r, actor *a) {
    put_many(a, "o");
    assert_int_equal(call(a, lose_one, a), 0);
    far_addr object = a->object;
    hold_blocks(a, false);
    leave(a);
    a->object = object;
    assert_int_equal(block_state(r, &r->actors[1], object).kind, FAR_BLOCK_ORPHAN);
}


/* Takes the orphan: it needs objects of its class. */
static void adopt_by_use(rig *r, actor *heir, far_addr object) {
    for (char last = 'A'; last <= 'Z' && !far_is_own(heir->pool->store, object); last++)
        put_many(heir, (char[]){'h', last, 0});
    assert_true(far_is_own(heir->pool->store, object));
    assert_int_equal(block_state(r, heir, object).id, heir->pool->team.own->id);
}


/* Adopted during the walk: its black counts from the adoption on, and it is settled with the heir's own blocks. */
static void adopted_before_done(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 4, 3, 0);
    actor *gone = &r.actors[0], *sweeper = &r.actors[1], *heir = &r.actors[2];
    leave_orphans(&r, gone);
    start_sweep(sweeper);
    stop_at_point(sweeper, "sweep:walked");
    adopt_by_use(&r, heir, gone->object);
    finish_sweep(&r, sweeper);
    assert_true(sweeper->swept.leaked_bytes >= 512);
    far_sim_sleep(r.world, 20000000);
    use_all_free_memory(&r, heir);
    assert_many(sweeper, "o");
    assert_many(sweeper, "hA");
    assert_int_equal(leaked(sweeper), 0);
    close_holders(&r);
}


/* Adopted by one who has settled the sweep already, before the sweeper came to it: settled at once. */
static void adopted_after_settling(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 5, 3, 0);
    actor *gone = &r.actors[0], *sweeper = &r.actors[1], *heir = &r.actors[2];
    put_now(heir, "first", 1);
    leave_orphans(&r, gone);
    start_sweep(sweeper);
    stop_at(sweeper, (far_sim_match){.kind = FAR_SIM_WRITE, .from = FAR_SUPER_SWEPT, .to = FAR_SUPER_SWEPT + 8});
    uint32_t sweep = request_now(&r).sweep;
    for (unsigned i = 0; i < 20; i++) { /* it is awake, and hears that the sweep is done */
        put_now(heir, "first", 1);
        far_sim_sleep(r.world, 1000000);
    }
    assert_int_equal(heir->pool->store->settled, sweep);
    adopt_by_use(&r, heir, gone->object);
    finish_sweep(&r, sweeper);
    use_all_free_memory(&r, heir);
    assert_many(sweeper, "o");
    assert_many(sweeper, "hA");
    assert_int_equal(leaked(sweeper), 0);
    close_holders(&r);
}


/* The owner links objects behind the walker, and is closed: nobody knows any more which ones are black. This sweep does
 * not free anything there, the next one does. */
static void orphaned_in_walk_is_void(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 6, 3, 0);
    actor *owner = &r.actors[0], *sweeper = &r.actors[1], *other = &r.actors[2];
    put_many(owner, "a");
    assert_int_equal(call(owner, lose_one, owner), 0);
    start_sweep(sweeper);
    stop_at_point(sweeper, "sweep:walked");
    put_many(owner, "b");
    far_addr object = owner->object;
    hold_blocks(owner, false);
    leave(owner);
    assert_int_equal(block_state(&r, other, object).kind, FAR_BLOCK_ORPHAN);
    uint64_t wanted = word_at(&r, FAR_SUPER_WANTED);
    assert_true(wanted > 0);
    finish_sweep(&r, sweeper);
    assert_true(sweep_is_wanted(&r)); /* the void block */
    put_many(other, "c");
    use_all_free_memory(&r, other);
    assert_many(other, "a");
    assert_many(other, "b");
    wait_for_sweeps(&r);
    use_all_free_memory(&r, other);
    assert_many(other, "a");
    assert_many(other, "b");
    assert_int_equal(leaked(sweeper), 0);
    close_holders(&r);
}


/* A sweep, which both of the others have heard of and settled. */
static void sweep_and_settle(rig *r, actor *sweeper, actor *one, actor *other) {
    put_now(other, "first", 1);
    assert_int_equal(sweep(sweeper, FAR_SWEEP_REPAIR), 0);
    for (unsigned i = 0; i < 20; i++) {
        put_now(other, "first", 1);
        put_now(one, "first", 1);
        far_sim_sleep(r->world, 1000000);
    }
    assert_int_equal(other->pool->store->settled, request_now(r).sweep);
}


/* The owner dies after a sweep, with objects that it linked since. The next sweeper takes its blocks; before that one
 * makes its number, somebody who has settled the last sweep adopts one: the marks of that sweep do not count for it. */
static void disowned_block_is_not_settled_with_old_marks(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 7, 3, 0);
    actor *dead = &r.actors[0], *sweeper = &r.actors[1], *heir = &r.actors[2];
    sweep_and_settle(&r, sweeper, dead, heir);
    put_many(dead, "a");
    remove_now(dead, "a0"); /* room */
    assert_int_equal(call(dead, lose_one, dead), 0);
    far_addr object = bucket_of(&r, dead, "a5");
    far_sim_kill(dead->pool->fabric);
    start_sweep(sweeper);
    stop_at(sweeper,
            (far_sim_match){.kind = FAR_SIM_CAS, .nth = 2, .from = FAR_SUPER_REQUEST, .to = FAR_SUPER_REQUEST + 8});
    assert_int_equal(block_state(&r, heir, object).kind, FAR_BLOCK_ORPHAN);
    adopt_by_use(&r, heir, object);
    use_all_free_memory(&r, heir);
    for (unsigned i = 1; i < MANY; i++) {
        char key[8], value[300];
        snprintf(key, sizeof(key), "a%u", i);
        assert_int_equal(far_get(heir->session, heir->index, key, strlen(key), value, sizeof(value), NULL), 0);
        assert_int_equal((unsigned char)value[0], i + 'a');
    }
    finish_sweep(&r, sweeper);
    assert_many(heir, "hA");
    assert_nothing_lost_by_itself(&r, heir);
    close_holders(&r);
}


/* Damage has changed the stamp of an orphan: which sweep it tells, or where it came from. Whoever adopts the block does
 * not settle it by the marks of a sweep before its objects were linked; a later one finds what is lost there. */
static void damaged_stamp(unsigned seed, uint64_t (*harm)(const far_geometry *g, far_block_id id, uint64_t stamp)) {
    rig r;
    open_settlers(&r, seed, 3, 0);
    actor *gone = &r.actors[0], *sweeper = &r.actors[1], *heir = &r.actors[2];
    const far_geometry *g = &sweeper->pool->geometry;
    sweep_and_settle(&r, sweeper, gone, heir);
    leave_orphans(&r, gone);
    far_block_id id = block_of(heir, gone->object);
    uint64_t *stamp = bytes_at(&r, far_block_stamp(g, id));
    assert_true(far_stamp_is_sound(g, id, *stamp));
    *stamp = harm(g, id, *stamp);
    assert_false(far_stamp_is_sound(g, id, *stamp));
    adopt_by_use(&r, heir, gone->object);
    const far_held *held = far_held_at(heir->pool->store, far_block_base(g, id));
    assert_true(
        far_number_is_newer(held->stamp, heir->pool->store->sweep)); /* of which its last owner may have heard */
    use_all_free_memory(&r, heir);
    assert_many(sweeper, "o");
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(sweep(sweeper, FAR_SWEEP_REPAIR), 0);
    use_all_free_memory(&r, heir);
    assert_many(sweeper, "o");
    assert_int_equal(leaked(sweeper), 0);
    close_holders(&r);
}


static uint64_t all_ones(const far_geometry *g, far_block_id id, uint64_t stamp) {
    (void)g, (void)id, (void)stamp;
    return UINT64_MAX;
}


static uint64_t nothing(const far_geometry *g, far_block_id id, uint64_t stamp) {
    (void)g, (void)id, (void)stamp;
    return 0;
}


static uint64_t an_older_sweep(const far_geometry *g, far_block_id id, uint64_t stamp) {
    for (unsigned bit = 0; bit < 64; bit++)
        assert_false(far_stamp_is_sound(g, id, stamp ^ 1ull << bit));
    return stamp - 1;
}


static uint64_t that_of_another(const far_geometry *g, far_block_id id, uint64_t stamp) {
    id.index++;
    return far_stamp_pack(g, id, far_stamp_sweep(stamp) - 1);
}


static void a_damaged_stamp_frees_nothing_in_use(void **state) {
    (void)state;
    damaged_stamp(42, all_ones);
    damaged_stamp(43, nothing);
    damaged_stamp(44, an_older_sweep);
    damaged_stamp(45, that_of_another);
}


int main(int argc, char **argv) {
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(black_object_linked_behind_the_walker),
        cmocka_unit_test(retired_when_the_sweep_was_heard_of),
        cmocka_unit_test(retired_while_its_block_was_anothers),
        cmocka_unit_test(black_kept_until_settled),
        cmocka_unit_test(bits_read_after_done),
        cmocka_unit_test(adopted_before_done),
        cmocka_unit_test(adopted_after_settling),
        cmocka_unit_test(orphaned_in_walk_is_void),
        cmocka_unit_test(disowned_block_is_not_settled_with_old_marks),
        cmocka_unit_test(a_damaged_stamp_frees_nothing_in_use),
    };
    return cmocka_run_group_tests_name("settle", tests, NULL, NULL);
}
