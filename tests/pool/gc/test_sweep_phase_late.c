/* Tests of sweeps that are interrupted or late, of objects that must wait longer before reuse, and of indexes and large
 * objects that are made during a collection. */
#include "sweep_phase_rig.h"
#include "test.h"


/* ---- Interrupted sweeps ---- */

/* Makes the handle observe epochs and requests without working on its memory. */
static int wait_one_epoch(far_task *t, void *arg) {
    (void)arg;
    return far_wait_epochs_until(t, 1, FAR_TIME_NEVER);
}


static void wait_in_other_session(void *arg) {
    actor *a = arg;
    a->result = far_session_call(a->other, FAR_STATS_OTHER, true, wait_one_epoch, NULL);
}


/* Owner A has read its tables after the first collection and stops in its sweep. It observes the second collection,
 * which clears the black bits and begins new ones. A must discard what it has read. Fails without the comparison of the
 * numbers in sweep_blocks (sweep.c). */
TEST(a_sweep_is_discarded_when_the_next_collection_is_observed) {
    rig r;
    open_owners(&r, 8, 2, WITHOUT_HOUSEKEEPING(0));
    actor *owner = &r.actors[0], *collector = &r.actors[1], beside;
    assert_int_equal(far_session_open(owner->pool, &owner->other), 0);
    put_many(owner, "a");
    poll_until_quiescent(owner);
    collector->mode = FAR_COLLECT_IN_BACKGROUND; /* In this mode the collector does not wait for owners. */
    start_sweep(collector);
    stop_at(collector, before_done());
    /* The owner hands out these objects during the collection, so they are black (recorded as allocated during marking)
     * and not marked. */
    put_many(owner, "b");
    finish(collector);
    /* The collector requests one epoch when it becomes the collector, and another one with its request. */
    start_sweep(collector);
    stop_at(collector,
            (far_sim_match){.kind = FAR_SIM_CAS, .nth = 2, .from = FAR_SUPER_REQUEST, .to = FAR_SUPER_REQUEST + 8});
    assert_int_equal(far_session_call(owner->other, FAR_STATS_OTHER, true, wait_one_epoch, NULL), 0);
    far_sim_sleep(r.world, 5000000); /* the epoch cannot advance while the owner holds its pin */
    start(owner, "settler", poll_main);
    stop_at_point(owner, "sweep:tables_read");
    assert_int_not_equal(owner->pool->store->sweep.swept, request_now(&r).collection);
    far_sim_resume(collector->client);
    beside = *owner;
    start(&beside, "beside", wait_in_other_session);
    far_sim_run_for(r.world, 20000000);
    assert_int_equal(owner->pool->store->handshake.collection, request_now(&r).collection);
    assert_false(far_sim_ended(collector->client));
    far_sim_resume(owner->client);
    far_sim_run_for(r.world, 100000000);
    assert_true(far_sim_ended(collector->client));
    assert_int_equal(collector->result, 0);
    owner->stop = true;
    run_all(&r);
    use_all_free_memory(&r, owner);
    assert_many(collector, "a");
    assert_many(collector, "b");
    poll_until_quiescent(owner);
    assert_nothing_lost(&r, collector);
    close_rig_with_held_blocks(&r);
}


/* Owner A is quiescent during the first collection. It becomes active when the collector of the second one is writing
 * marks. It must not sweep the first collection, because its marks are overwritten. It sweeps the second one when that
 * is done. Fails if sweep_is_due (sweep.c) does not compare the number in DONE with the observed one. */
TEST(a_quiescent_handle_does_not_sweep) {
    rig r;
    open_owners(&r, 9, 2, WITHOUT_HOUSEKEEPING(0));
    actor *owner = &r.actors[0], *collector = &r.actors[1];
    put_many(owner, "a");
    assert_int_equal(call(owner, leak_one, owner), 0);
    poll_until_quiescent(owner);
    /* the collector waits for the quiescent owner only for a limited time */
    assert_int_equal(sweep(collector, FAR_COLLECT_REPAIR), 0);
    assert_int_equal(collector->swept.leaked_bytes, 0);
    uint32_t first = request_now(&r).collection;
    const far_geometry *g = &owner->pool->geometry;
    far_addr marks = far_block_marks(g, block_of(owner, owner->object));
    start_sweep(collector);
    stop_at(collector, (far_sim_match){.kind = FAR_SIM_WRITE, .from = marks, .to = marks + far_bitmap_bytes(g)});
    /* During the WRITE of the marks, the memory of the marks may have this state. */
    memset(bytes_at(&r, marks), 0, far_bitmap_bytes(g));
    put_now(owner, "b", 300);
    for (unsigned i = 0; i < 10; i++) {
        assert_int_equal(far_pool_poll(owner->pool), 0);
        far_sim_sleep(r.world, 100000);
    }
    assert_int_not_equal(owner->pool->store->sweep.swept, first);
    assert_many(owner, "a");
    finish_collection(&r, collector);
    assert_int_equal(collector->swept.leaked_bytes, 512);
    use_all_free_memory(&r, owner);
    assert_many(collector, "a");
    poll_until_quiescent(owner);
    assert_nothing_lost(&r, collector);
    close_rig_with_held_blocks(&r);
}


/* Owner A misses a collection because it is quiescent, and becomes active in one that only counts. The objects that the
 * first one would have freed are only counted, so A must request another collection. Fails without missed_sweep
 * (sweep.c). */
TEST(a_missed_sweep_is_requested_again_after_a_count) {
    rig r;
    open_owners(&r, 10, 2, WITHOUT_HOUSEKEEPING(0));
    actor *owner = &r.actors[0], *collector = &r.actors[1];
    put_many(owner, "a");
    assert_int_equal(call(owner, leak_one, owner), 0);
    poll_until_quiescent(owner);
    assert_int_equal(sweep(collector, FAR_COLLECT_REPAIR), 0);
    collector->mode = FAR_COLLECT_COUNT;
    start_sweep(collector);
    stop_at_point(collector, "collect:mark_phase");
    put_now(owner, "b", 300);
    finish_collection(&r, collector);
    assert_int_equal(collector->swept.leaked_bytes, 512);
    assert_true(collection_is_requested(&r));
    wait_for_sweeps(&r);
    assert_int_equal(leaked(collector), 0);
    close_rig_with_held_blocks(&r);
}


/* Owner A observes a collection after its walk has marked the descriptor of an index. Then the descriptor enters the
 * store of A, as an object does that A has unlinked and had in a magazine when it adopted the block. The sweep phase must
 * not take it for an object in use that was in the store during the whole collection. Fails if add_own_object (store.c)
 * does not set the black bit. */
TEST(an_object_that_enters_the_store_after_the_walk_stays_there) {
    rig r;
    open_owners(&r, 10, 2, WITHOUT_HOUSEKEEPING(0));
    actor *owner = &r.actors[0], *collector = &r.actors[1];
    far_store *s = owner->pool->store;
    put_many(owner, "a");
    poll_until_quiescent(owner);
    start_sweep(collector);
    stop_at(collector, before_done());
    put_now(owner, "b", 300);
    assert_true(far_sweep_is_pending(s));
    far_addr entering = owner->index->descriptor;
    pthread_mutex_lock(&s->lock);
    far_slab *slab = far_slab_at(s, entering);
    assert_non_null(slab);
    far_store_add_free(s, slab->class, entering, UINT64_MAX);
    pthread_mutex_unlock(&s->lock);
    finish_collection(&r, collector);
    assert_false(far_sweep_is_pending(s));
    assert_true(is_in_store(owner, entering));
    /* The descriptor is in use, so the test takes it out of the store again. */
    pthread_mutex_lock(&s->lock);
    far_store_withdraw(s, slab, (uint32_t)((entering - far_slab_base(s, slab)) / slab->class->size));
    assert_true(far_store_take_invalid_free(s) != 0);
    pthread_mutex_unlock(&s->lock);
    close_rig_with_held_blocks(&r);
}


/* Sweeps the own blocks, and releases them before the end of the sweep is recorded, as a handle does that is closed at
 * this moment. */
static int sweep_and_release(far_task *t, void *arg) {
    (void)arg;
    assert_int_equal(far_pin_take(t), 0);
    far_store_enter(t);
    assert_int_equal(far_sweep_step(t), 1);
    int err = far_blocks_release(t, FAR_RELEASE_ALL);
    far_store_leave(t);
    far_pin_drop(t);
    return err;
}


/* Owner A misses a collection because it is quiescent, and becomes active in one that only counts. A sweeps its blocks
 * for the second collection, and releases them before it has requested another collection. The blocks contain the leaked
 * object, so their release must request the collection. Fails if choose_blocks (exchange.c) ignores missed_sweep. */
TEST(a_missed_sweep_is_requested_again_when_the_blocks_are_released) {
    rig r;
    open_owners(&r, 10, 2, WITHOUT_HOUSEKEEPING(0));
    actor *owner = &r.actors[0], *collector = &r.actors[1];
    put_many(owner, "a");
    assert_int_equal(call(owner, leak_one, owner), 0);
    poll_until_quiescent(owner);
    assert_int_equal(sweep(collector, FAR_COLLECT_REPAIR), 0);
    collector->mode = FAR_COLLECT_COUNT;
    start_sweep(collector);
    stop_at_point(collector, "collect:mark_phase");
    put_now(owner, "b", 300);
    far_sim_resume(collector->client);
    while (far_done_collection(word_at(&r, FAR_SUPER_DONE)) != request_now(&r).collection) {
        assert_int_equal(far_pool_poll(owner->pool), 0);
        far_sim_run_for(r.world, 10000);
    }
    far_superblock_copy_done(owner->pool, word_at(&r, FAR_SUPER_DONE));
    assert_false(collection_is_requested(&r));
    hold_blocks(owner, false);
    assert_int_equal(call(owner, sweep_and_release, NULL), 0);
    assert_true(collection_is_requested(&r));
    finish_collection(&r, collector);
    wait_for_sweeps(&r);
    assert_int_equal(leaked(collector), 0);
    close_rig_with_held_blocks(&r);
}


/* A collection is done, and owner A observes the next one before it has swept the first. The next one fails because an
 * index is damaged. A third collection must be requested, so that the leaked object is found. Fails without
 * far_collection_request in collect_part (collect.c). */
TEST(a_failed_collection_is_repeated) {
    rig r;
    open_owners(&r, 14, 2, WITHOUT_HOUSEKEEPING(0));
    actor *owner = &r.actors[0], *collector = &r.actors[1], beside;
    assert_int_equal(far_session_open(owner->pool, &owner->other), 0);
    put_many(owner, "a");
    assert_int_equal(call(owner, leak_one, owner), 0);
    far_addr lost = owner->object;
    poll_until_quiescent(owner);
    collector->mode = FAR_COLLECT_IN_BACKGROUND;
    start_sweep(collector);
    stop_at(collector, before_done());
    /* The put makes the owner active, but the owner has no time to sweep before the test continues. */
    put_now(owner, "b", 300);
    finish(collector);
    assert_int_equal(collector->result, 0);
    assert_false(collection_is_requested(&r));
    uint64_t *descriptor = bytes_at(&r, owner->index->descriptor), saved[8];
    memcpy(saved, descriptor, sizeof(saved));
    far_index_close(collector->index); /* The index is closed here because the collector opens it for the walk. */
    collector->index = NULL;
    memset(descriptor, 0x55, sizeof(saved));
    start_sweep(collector);
    far_sim_run_for(r.world, 100000);
    beside = *owner;
    start(&beside, "beside", wait_in_other_session);
    far_sim_run_for(r.world, 20000000);
    assert_int_equal(owner->pool->store->handshake.collection, request_now(&r).collection);
    for (unsigned i = 0; i < 100 && !far_sim_ended(collector->client); i++) {
        assert_int_equal(far_session_call(owner->other, FAR_STATS_OTHER, true, wait_one_epoch, NULL), 0);
        far_sim_run_for(r.world, 1000000);
    }
    assert_int_equal(collector->result, FAR_ERR_CORRUPT);
    memcpy(descriptor, saved, sizeof(saved));
    assert_false(is_in_store(owner, lost));
    for (unsigned i = 0; i < 500; i++)
        poll_all(&r, 2000000);
    assert_true(is_in_store(owner, lost));
    assert_int_equal(far_index_open(collector->session, "x", &collector->index), 0);
    assert_many(collector, "a");
    close_rig_with_held_blocks(&r);
}


/* Handle D drops an index during the walk or after it, which makes a request between the two of the collection. The
 * collection continues, and it waits for the acknowledgements of its own request. Objects that handle C unlinks at that
 * time are not freed too early. */
TEST(the_request_of_a_drop_does_not_disturb_a_collection) {
    for (unsigned behind = 0; behind < 2; behind++) {
        rig r;
        open_owners(&r, 15 + 100 * behind, 4, 0);
        actor *owner = &r.actors[0], *collector = &r.actors[1], *other = &r.actors[2], *dropper = &r.actors[3];
        far_index *y;
        assert_int_equal(far_index_create(dropper->session, "y", "toy", "slots=64", &y), 0);
        uint32_t uid = y->uid;
        far_index_close(y);
        put_many(owner, "a");
        put_now(other, "first", 1);
        assert_int_equal(call(owner, leak, owner), 0);
        for (unsigned i = 0; i < r.count; i++) /* a block that is released before its sweep causes another collection */
            hold_blocks(&r.actors[i], true);
        start_sweep(collector);
        stop_at_point(collector, behind ? "collect:write_marks" : "collect:mark_phase");
        far_request before = request_now(&r);
        assert_int_equal(far_index_drop(dropper->session, "y"), 0);
        far_sim_sleep(r.world, 20000000);
        far_request after = request_now(&r);
        assert_true(far_number_is_newer(after.number, before.number));
        assert_true(after.walk && after.collection == before.collection && after.collector == before.collector);
        put_many(other, "a"); /* The puts of the other handle unlink objects of the owner. */
        for (unsigned i = 0; i < 20; i++) {
            put_now(other, "first", 1);
            far_epoch_request(other->pool);
            far_sim_sleep(r.world, 1000000);
        }
        assert_int_equal(other->pool->store->handshake.observed, after.number);
        if (!behind)
            stop_at_point(collector, "collect:write_marks");
        put_many(other, "b");
        put_many(other, "c");
        finish_collection(&r, collector);
        assert_true(collector->swept.leaked_bytes >= 3000);
        assert_int_equal(count_of(&r, dropper, uid), 0);
        use_all_free_memory(&r, owner);
        assert_many(collector, "a");
        assert_many(collector, "b");
        assert_many(collector, "c");
        assert_nothing_lost(&r, owner);
        close_rig_with_held_blocks(&r);
    }
}


/* ---- Objects that wait longer ---- */

/* Leaks one object of a type with extra epochs. */
static int leak_of_slow_type(far_task *t, void *arg) {
    actor *a = arg;
    const far_index_kind *kind = a->index->kind;
    unsigned type = 0;
    while (type + 1 < kind->type_count && kind->types[type].extra_epochs == 0)
        type++;
    assert_true(kind->types[type].extra_epochs > 0);
    far_object object = {0};
    int err = far_pin_take(t);
    if (err == 0)
        err = far_alloc(t, a->index, type, 512, 0, FAR_ALLOC_ON_NODE, &object);
    a->object = object.addr;
    far_pin_drop(t);
    return err;
}


static bool is_retired(const actor *a, far_addr addr) {
    for (unsigned i = 0; i < FAR_QUEUES_MAX; i++)
        for (const far_retired_chunk *chunk = a->pool->team.own->memory->queues[i].first; chunk; chunk = chunk->next)
            for (uint32_t at = chunk->begin; at < chunk->end; at++)
                if (chunk->items[at].addr == addr)
                    return true;
    return false;
}


static uint64_t count_epochs_until_free(actor *a, far_addr addr) {
    uint64_t from = atomic_load(&a->pool->epochs.known);
    assert_true(is_retired(a, addr));
    while (is_retired(a, addr))
        pass_epochs(a, 1);
    return atomic_load(&a->pool->epochs.known) - from;
}


/* A client may have unlinked an object just before it failed. So a leaked object of a type with extra epochs waits as
 * long as a retired one. If the handle that frees it has never opened the index, it waits as long as the type with the
 * longest wait. Fails without find_extra_epochs (sweep.c). */
TEST(leaked_objects_wait_as_long_as_their_type_demands) {
    for (unsigned known = 0; known < 2; known++) {
        rig r;
        open_owners(&r, 16 + known, 2, 0);
        actor *owner = &r.actors[0], *collector = &r.actors[1];
        far_index_close(owner->index);
        assert_int_equal(far_index_create(owner->session, "d", "dart", NULL, &owner->index), 0);
        assert_int_equal(call(owner, leak_of_slow_type, owner), 0);
        far_addr lost = owner->object;
        if (known) {
            hold_blocks(owner, true);
        } else {
            leave(owner);
            assert_int_equal(block_state(&r, collector, lost).kind, FAR_BLOCK_ORPHAN);
        }
        assert_int_equal(sweep(collector, FAR_COLLECT_REPAIR), 0);
        assert_int_equal(collector->swept.leaked_bytes, 512);
        /* An object of dart waits for 4 epochs or more, an object of dolphin for 14. */
        assert_true(count_epochs_until_free(known ? owner : collector, lost) >= (known ? 4 : 14));
        close_rig_with_held_blocks(&r);
    }
}


/* Retires an object after its pin has ended, so that it is unknown when the object was unlinked. */
static int retire_without_pin(far_task *t, void *arg) {
    actor *a = arg;
    int err = leak_one(t, a);
    if (err == 0)
        far_retire(t, a->index, TOY_TYPE_BUCKET, a->object, 512);
    return err;
}


/* The waiting time of such an object begins at the next tick. The epoch that the handle knows then may be one behind,
 * so it begins with the epoch after that. Fails with `epoch` instead of `epoch + 1` in free_queue_head (retire.c). */
TEST(an_object_retired_without_a_pin_waits_one_epoch_longer) {
    rig r;
    open_owners(&r, 18, 1, WITHOUT_HOUSEKEEPING(0));
    actor *a = &r.actors[0];
    put_many(a, "a");
    assert_int_equal(far_session_call(a->pool->team.own, FAR_STATS_OTHER, true, retire_without_pin, a), 0);
    /* Each tick passes two epochs. Without the additional epoch the object would wait for 6 epochs. */
    assert_true(count_epochs_until_free(a, a->object) > 6);
    close_rig_with_held_blocks(&r);
}


/* ---- Indexes made during a collection ---- */

static void create_main(void *arg) {
    actor *a = arg;
    a->result = far_index_create(a->session, "y", a->key, NULL, &a->index);
}


/* Handle A creates an index, or lists it, after the walk has read the catalog, so its objects are not marked. No object
 * of the index may be freed. */
static void create_during_walk(unsigned seed, const char *kind, bool begun_before) {
    rig r;
    open_owners(&r, seed, 3, 0);
    actor *creator = &r.actors[0], *collector = &r.actors[1];
    far_index *x = creator->index;
    snprintf(creator->key, sizeof(creator->key), "%s", kind);
    start_sweep(collector);
    if (begun_before) {
        stop_at_point(collector, "collect:mark_phase");
        start(creator, "creator", create_main);
        stop_at_point(creator, "catalog:publish");
        far_sim_stop_before(collector->client, (far_sim_match){.point = "collect:write_marks"});
        far_sim_resume(collector->client);
        assert_int_equal(far_sim_run_client(collector->client), FAR_SIM_STOPPED);
        finish(creator);
    } else {
        stop_at_point(collector, "collect:write_marks");
        start(creator, "creator", create_main);
        finish(creator);
    }
    assert_int_equal(creator->result, 0);
    finish_collection(&r, collector);
    assert_int_equal(collector->swept.leaked_bytes, 0);
    far_sim_sleep(r.world, 50000000);
    assert_true(count_of(&r, collector, creator->index->uid) > 0);
    for (unsigned i = 0; i < 100; i++)
        assert_int_equal(far_put(creator->session, creator->index, &i, sizeof(i), &i, sizeof(i)), 0);
    assert_int_equal(far_index_check(creator->session, creator->index, fail_at_problem, NULL), 0);
    world_assert_no_checker_error(r.world);
    far_index_close(x);
    assert_nothing_lost(&r, collector);
    close_rig_with_held_blocks(&r);
}


/* Runs create_during_walk for four kinds, each created during the walk or listed during the walk. */
TEST(an_index_created_during_the_walk_loses_nothing) {
    static const char *const kinds[] = {"toy", "smart", "dart", "shard"};
    for (unsigned i = 0; i < 8; i++)
        create_during_walk(20 + i, kinds[i / 2], i % 2);
}
