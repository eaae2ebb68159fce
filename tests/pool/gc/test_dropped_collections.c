/* Tests of the memory of dropped indexes during collections, after client failures, and in a full pool: the memory
 * becomes free and is not reused too early. If no client fails, a check without repair finds no leak. */
#include "dropped_rig.h"
#include "test.h"


/* ---- Drops and collections ---- */

/* A collector has stopped in its mark phase. Handle C drops an index with slabs in C's own blocks or in orphans. The
 * memory of the index becomes free, and the request that C publishes does not change the fields of the collection in
 * the request word. */
TEST(a_drop_during_the_mark_phase_frees_the_index) {
    static const char *const kinds[] = {"toy", "shard"};
    for (unsigned i = 0; i < 4; i++) {
        rig r;
        open_without_index(&r, 50 + i, 3, 0);
        actor *collector = &r.actors[1], *dropper = &r.actors[2];
        uint32_t uid = create_index(dropper, "x", kinds[i % 2]);
        if (i / 2)
            reopen(&r, dropper);
        start_sweep(collector);
        stop_at_point(collector, "collect:mark_phase");
        far_request before = request_now(&r);
        assert_true(before.walk);
        assert_int_equal(far_index_drop(dropper->session, "x"), 0);
        far_sim_sleep(r.world, 50000000);
        assert_int_equal(count_of(&r, dropper, uid), 0);
        far_request after = request_now(&r);
        assert_true(after.number != before.number);
        assert_true(after.walk && after.collection == before.collection && after.collector == before.collector);
        finish(collector);
        assert_int_equal(collector->result, 0);
        assert_int_equal(collector->swept.leaked_bytes, 0);
        assert_no_leak_and_close(&r);
    }
}


/* The walk has read the catalog and is about to walk index x, when x is dropped. The walk skips x, and its memory
 * becomes free. */
TEST(an_index_dropped_before_the_walk_reaches_it_is_skipped) {
    rig r;
    open_without_index(&r, 54, 3, 0);
    actor *collector = &r.actors[1], *dropper = &r.actors[2];
    uint32_t uid = create_index(dropper, "x", "toy");
    uint32_t stays = create_index(dropper, "y", "toy");
    start_sweep(collector);
    stop_at_point(collector, "collect:mark_phase");
    far_addr catalog = far_catalog_word_addr(word_at(&r, FAR_SUPER_CATALOG));
    stop_at(collector, (far_sim_match){.kind = FAR_SIM_READ, .from = catalog, .to = catalog + 64});
    assert_int_equal(far_index_drop(dropper->session, "x"), 0);
    far_sim_sleep(r.world, 1000000);
    finish(collector);
    assert_int_equal(collector->result, 0);
    far_sim_sleep(r.world, 100000000);
    assert_int_equal(count_of(&r, dropper, uid), 0);
    assert_true(count_of(&r, dropper, stays) > 0);
    assert_no_leak_and_close(&r);
}


/* The handle that owns slabs of the dropped index has not observed the drop and is closed during the mark phase of
 * another handle. The close does not wait for the collection, and no slab is left. */
TEST(an_owner_closed_during_a_collection_leaves_nothing) {
    rig r;
    open_without_index(&r, 56, 3, WITHOUT_HOUSEKEEPING(1));
    actor *holder = &r.actors[1], *collector = &r.actors[2];
    uint32_t uid = create_index(holder, "x", "toy");
    poll_until_quiescent(holder);
    assert_int_equal(far_index_drop(collector->session, "x"), 0);
    far_sim_sleep(r.world, 50000000);
    start_sweep(collector);
    stop_at_point(collector, "collect:mark_phase");
    start(holder, "closer", close_pool_main);
    far_sim_run_for(r.world, 100000000);
    /* The close of the holder has ended, so it did not wait for the collection. */
    assert_true(far_sim_ended(holder->client));
    holder->pool = NULL;
    finish(collector);
    assert_int_equal(collector->result, 0);
    wait_for_sweeps(&r);
    assert_int_equal(count_of(&r, collector, uid), 0);
    assert_no_leak_and_close(&r);
}


/* Leaks objects, one in each block, which are linked by no index. */
static int leak_many_objects(far_task *t, void *arg) {
    actor *a = arg;
    far_object object;
    int err = far_pin_take(t);
    for (unsigned i = 0; i < 50 && err == 0; i++)
        err = far_alloc(t, a->index, 0, 60000, 0, FAR_ALLOC_ON_NODE, &object);
    far_pin_drop(t);
    return err;
}


/* A collection adopts 50 orphans with leaked objects. This takes time, in which the epoch must advance. Fails without
 * renew_pin_if_done (collect.c). */
TEST(the_epoch_advances_while_a_collection_adopts_orphans) {
    rig r;
    open_rig_with(&r, 58, 3, 0, "size=16M", 16);
    actor *collector = &r.actors[0];
    assert_int_equal(call(&r.actors[2], leak_many_objects, &r.actors[2]), 0);
    reopen(&r, &r.actors[2]);
    work_now(&r.actors[1], 10); /* The operations make the handle of actor 1 active. */
    epoch_watch seen = begin_epoch_watch(&r, FAR_BLOCK_ORPHAN);
    far_sim_on_verb(r.world, watch_block_cas, &seen);
    assert_int_equal(sweep(collector, FAR_COLLECT_REPAIR), 0);
    far_sim_on_verb(r.world, NULL, NULL);
    assert_int_equal(seen.taken, 50);
    assert_true(seen.last >= seen.first + 3);
    assert_no_leak_and_close(&r);
}


/* An index is dropped, and a check runs before the dropper has freed the memory in orphans. The
 * check must not report this memory as leaked. Fails without index_is_listed in
 * count_leaked_in_orphan (collect.c). */
TEST(memory_about_to_be_freed_by_a_drop_is_no_leak) {
    rig r;
    open_without_index(&r, 80, 3, 0);
    actor *owner = &r.actors[1], *dropper = &r.actors[2];
    uint32_t uid = create_with_values(owner->session, "x", "dart", 40, 0);
    reopen(&r, owner);
    /* This flag keeps the dropper's housekeeping from freeing the memory. */
    atomic_store(&dropper->pool->freeing_dropped, true);
    assert_int_equal(far_index_drop(dropper->session, "x"), 0);
    assert_int_equal(leaked(&r.actors[0]), 0);
    assert_true(count_of(&r, dropper, uid) > 0);
    atomic_store(&dropper->pool->freeing_dropped, false);
    far_sim_sleep(r.world, 100000000);
    assert_int_equal(count_of(&r, dropper, uid), 0);
    assert_no_leak_and_close(&r);
}


/* Handle B is in its mark phase, which needs the acknowledgement of every active handle. Handle A has no housekeeping
 * thread, is active, and waits until B's collection ends to begin its own check. While it waits it must acknowledge B's
 * requests. Fails without far_housekeeping_step in the wait. */
TEST(a_handle_that_waits_for_a_collection_acknowledges_it) {
    rig r;
    open_without_index(&r, 57, 3, WITHOUT_HOUSEKEEPING(1));
    actor *a = &r.actors[1], *b = &r.actors[2];
    create_index(b, "y", "toy");
    start(b, "sweeper", check_main);
    stop_at_point(b, "collect:mark_phase");
    create_index(a, "x", "toy");
    assert_true(far_epoch_is_active(a->pool));
    start(a, "next", check_main);
    far_sim_run_for(r.world, 1000000);
    far_sim_resume(b->client);
    far_sim_limit(r.world, 1000000000);
    run_all(&r);
    assert_int_equal(a->result, 0);
    assert_int_equal(b->result, 0);
    close_rig(&r);
}


/* The collector is about to take a block from its failed owner, when another handle drops the index with slabs in that
 * block. The slabs are freed. */
TEST(an_index_dropped_while_its_failed_owner_is_disowned_is_freed) {
    rig r;
    open_without_index(&r, 60, 3, 0);
    actor *collector = &r.actors[0], *failed = &r.actors[1], *dropper = &r.actors[2];
    uint32_t uid = create_index(failed, "x", "smart");
    far_block_id id = {0, 0};
    while (!block_has_index(&r, id, uid))
        id.index++;
    far_addr entry = far_block_entry(&collector->pool->geometry, id);
    far_sim_kill(failed->pool->fabric);
    start_sweep(collector);
    stop_at(collector, (far_sim_match){.kind = FAR_SIM_CAS, .from = entry, .to = entry + 8});
    assert_int_equal(far_index_drop(dropper->session, "x"), 0);
    far_sim_sleep(r.world, 50000000);
    finish(collector);
    assert_int_equal(collector->result, 0);
    far_sim_sleep(r.world, 100000000);
    wait_for_sweeps(&r);
    assert_int_equal(count_of(&r, dropper, uid), 0);
    assert_no_leak_and_close(&r);
}


/* The owner of the slabs, or the handle that dropped the index, fails at different times before it has freed them. A
 * collection frees them. */
TEST(a_dropped_index_is_freed_if_owner_or_dropper_fails) {
    for (unsigned i = 0; i < 40; i++) {
        rig r;
        open_without_index(&r, 61 + i, 3, 0);
        actor *owner = &r.actors[1], *dropper = &r.actors[2];
        uint32_t uid = create_index(owner, "x", i % 2 ? "toy" : "shard");
        assert_int_equal(far_index_drop(dropper->session, "x"), 0);
        far_sim_sleep(r.world, i * 20000);
        far_sim_kill((i / 2 % 2 ? dropper : owner)->pool->fabric);
        far_sim_sleep(r.world, 500000000);
        wait_for_sweeps(&r);
        if (count_of(&r, &r.actors[0], uid) > 0)
            fail_msg("case %u: pages of the dropped index are left", i);
        assert_no_leak_and_close(&r);
    }
}


/* ---- A full pool ---- */

static int count_name(void *ctx, const char *name, const char *kind) {
    (void)name, (void)kind;
    ++*(unsigned *)ctx;
    return 0;
}


/* Allocates all memory in pieces that are large enough for a catalog object. Returns FAR_ERR_NO_MEMORY when none is
 * left. */
static int take_the_rest(far_task *t, void *arg) {
    far_object object;
    (void)arg;
    int err = far_pin_take(t);
    while (err == 0)
        err = far_alloc(t, NULL, FAR_POOL_TYPE_CATALOG, 128, FAR_NODE_ANY, 0, &object);
    far_pin_drop(t);
    return err;
}


static void drop_y_main(void *arg) {
    actor *a = arg;
    a->result = far_index_drop(a->session, "y");
}


/* An index can be dropped in a full pool, because removing its entry from the catalog needs no memory. In the second
 * run the dropping handle fails after it has changed the catalog entry of the index; the index counts as dropped from
 * then on. */
TEST(an_index_is_dropped_in_a_full_pool) {
    for (unsigned dies = 0; dies < 2; dies++) {
        rig r;
        far_index *y, *z;
        unsigned names = 0;
        open_small_pool(&r, 40 + dies, 2, 2, 0, "1500K");
        actor *a = &r.actors[0], *b = &r.actors[1];
        assert_int_equal(far_index_create(b->session, "z", "toy", "slots=64", &z), 0);
        assert_int_equal(far_index_create(b->session, "y", "toy", "slots=64", &y), 0);
        uint32_t uid = y->uid;
        far_index_close(y);
        far_index_close(z);
        put_now(b, "first", 1);
        static const size_t sizes[] = {LARGE, HALF, SMALL, 900, 400, 150, 50, 1};
        for (unsigned i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
            fill(a, (char[]){(char)('a' + i), 0}, sizes[i]);
        assert_int_equal(call(b, take_the_rest, NULL), FAR_ERR_NO_MEMORY);
        assert_int_equal(call(a, take_the_rest, NULL), FAR_ERR_NO_MEMORY);
        if (dies) {
            start(b, "dropper", drop_y_main);
            stop_at_point(b, "catalog:entry_flagged");
            far_sim_kill(b->pool->fabric);
            far_sim_resume(b->client);
            far_sim_run_client(b->client);
        }
        assert_int_equal(far_index_drop(a->session, "y"), dies ? FAR_ERR_NOT_FOUND : 0);
        assert_int_equal(far_index_list(a->session, count_name, &names), 2);
        far_sim_sleep(r.world, 50000000);
        wait_for_sweeps(&r);
        assert_int_equal(count_of(&r, a, uid), 0);
        assert_int_equal(far_index_drop(a->session, "z"), 0);
        assert_int_equal(far_index_list(a->session, count_name, &names), 1);
        assert_nothing_lost(&r, a);
        close_rig(&r);
    }
}
