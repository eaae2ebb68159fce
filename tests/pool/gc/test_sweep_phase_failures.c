/* Tests of the sweep phase after clients failed, and after sessions were lost while their handles continue. Such
 * clients and sessions held, took, cut or wiped objects and blocks. This collection or the next one finds these objects
 * and blocks, and no object of another client is freed. */
#include "sweep_phase_rig.h"
#include "test.h"


/* Handle A fails when the collector has already looked for failed clients. What A leaves is found by another
 * collection, which is requested automatically. */
TEST(a_client_that_fails_during_the_walk_is_collected_next) {
    rig r;
    open_owners(&r, 40, 3, 0);
    actor *failed = &r.actors[0], *collector = &r.actors[1], *other = &r.actors[2];
    put_many(failed, "a");
    start_sweep(collector);
    stop_at_point(collector, "collect:mark_phase");
    assert_int_equal(call(failed, leak, failed), 0);
    put_many(failed, "b");
    far_sim_kill(failed->pool->fabric);
    finish_collection(&r, collector);
    assert_many(other, "a");
    assert_nothing_leaked_without_repair(&r, other);
    assert_many(other, "a");
    assert_many(other, "b");
    assert_int_equal(far_client_state_of(word_at(&r, far_client_entry(failed->pool->team.own->id))), FAR_CLIENT_FREE);
    close_rig_with_held_blocks(&r);
}


/* Handle B is returning remote objects when it fails. Its FAA has not taken effect, and will not, because B is fenced.
 * The owner of the block finds the object leaked. */
TEST(a_return_of_a_fenced_client_never_takes_effect) {
    rig r;
    open_owners(&r, 41, 3, WITHOUT_HOUSEKEEPING(1));
    actor *owner = &r.actors[0], *failed = &r.actors[1], *collector = &r.actors[2];
    put_many(owner, "a");
    far_addr object = bucket_of(&r, owner, "a0");
    put_many(failed, "a");
    start(failed, "poller", poll_main);
    far_addr word = bit_word(owner, object);
    far_sim_hold *hold =
        far_sim_hold_effect(failed->client, (far_sim_match){.kind = FAR_SIM_FAA, .from = word, .to = word + 8});
    start_sweep(collector);
    for (unsigned i = 0; i < 500 && !far_sim_reached(hold); i++)
        far_sim_run_for(r.world, 100000);
    assert_true(far_sim_reached(hold));
    /* The collection waits for the acknowledgement of the returning handle. */
    assert_false(far_sim_ended(collector->client));
    far_sim_kill(failed->pool->fabric);
    failed->stop = true;
    finish_collection(&r, collector);
    far_sim_release(hold);
    far_sim_sleep(r.world, 1000000);
    use_all_free_memory(&r, owner);
    assert_many(collector, "a");
    assert_nothing_leaked_without_repair(&r, collector);
    close_rig_with_held_blocks(&r);
}


static void put_in_other_session(void *arg) {
    actor *a = arg;
    a->result = far_put(a->other, a->index, "lost", 4, "12345678", 8);
}


/* A session of handle A is lost while it holds an object that it has not linked. A continues and keeps its blocks, and
 * a collection finds the object. Fails if neither far_client_confirm_failed_pinned (clients.c) nor
 * far_memory_note_failed_session (request.c) requests a collection. */
TEST(the_object_of_a_lost_session_is_collected) {
    rig r;
    open_owners(&r, 42, 2, 0);
    actor *a = &r.actors[0], *other = &r.actors[1];
    assert_int_equal(far_session_open(a->pool, &a->other), 0);
    put_many(a, "a");
    start(a, "lost", put_in_other_session);
    stop_at_point(a, "toy:publish");
    far_addr object = bucket_of(&r, a, "a1");
    assert_int_equal(far_sim_declare_dead(r.world, a->other->id, a->other->generation), 1);
    far_sim_resume(a->client);
    assert_int_equal(far_sim_run_client(a->client), FAR_SIM_ENDED);
    assert_true(a->result < 0);
    for (unsigned i = 0; i < 20; i++) {
        put_now(a, "b", 300);
        far_sim_sleep(r.world, 1000000);
    }
    assert_true(word_at(&r, FAR_SUPER_LOSSES) > 0);
    assert_int_equal(block_state(&r, a, object).id, a->pool->team.own->id);
    assert_nothing_leaked_without_repair(&r, other);
    put_many(a, "c");
    assert_many(other, "a");
    assert_many(other, "c");
    close_rig_with_held_blocks(&r);
}


static int take_and_write(far_task *t, void *arg) {
    actor *a = arg;
    far_object object = {0};
    int err = far_pin_take(t);
    far_point(t, "test:pinned");
    if (err == 0)
        err = far_alloc(t, a->index, TOY_TYPE_BUCKET, 512, FAR_NODE_ANY, 0, &object);
    a->object = object.addr;
    if (err == 0)
        err = far_write_word(t, a->object, 1);
    far_pin_drop(t);
    return err;
}


static void take_in_other_session(void *arg) {
    actor *a = arg;
    a->result = far_session_call(a->other, FAR_STATS_OTHER, true, take_and_write, a);
}


static int confirm_failure(far_task *t, void *arg) {
    const actor *a = arg;
    return far_client_confirm_failed(t, a->other->id, a->other->generation);
}


/* A session of handle A is fenced, and a collection runs because of that. The session has not noticed and takes an own
 * object of A during the collection, which is black and therefore not freed by this collection. The next collection
 * must find it, so another one must be requested when the handle notices the loss of the session
 * (far_memory_note_failed_session in request.c). */
TEST(an_object_taken_by_a_fenced_session_is_found_by_the_next_collection) {
    rig r;
    open_owners(&r, 45, 2, 0);
    actor *a = &r.actors[0], *collector = &r.actors[1];
    assert_int_equal(far_session_open(a->pool, &a->other), 0);
    put_many(a, "a");
    assert_int_equal(far_session_call(a->other, FAR_STATS_OTHER, true, alloc_and_free_some, a), 0);
    start(a, "fenced", take_in_other_session);
    stop_at_point(a, "test:pinned");
    assert_int_equal(far_sim_declare_dead(r.world, a->other->id, a->other->generation), 1);
    assert_int_equal(call(collector, confirm_failure, a), 1);
    uint64_t wanted = word_at(&r, FAR_SUPER_LOSSES);
    collector->mode = FAR_COLLECT_IN_BACKGROUND;
    start_sweep(collector);
    far_sim_run_for(r.world, 5000000);
    assert_int_equal(a->pool->store->handshake.collection, request_now(&r).collection);
    assert_int_equal(word_at(&r, FAR_SUPER_LOSSES), wanted);
    far_sim_resume(a->client);
    far_sim_run_for(r.world, 100000);
    assert_true(a->object != 0 && a->result < 0);
    finish_collection(&r, collector);
    assert_int_equal(word_at(&r, FAR_SUPER_LOSSES_COLLECTED), wanted);
    assert_nothing_leaked_without_repair(&r, collector);
    assert_many(collector, "a");
    close_rig_with_held_blocks(&r);
}


/* All handles are quiescent, and one fails. The others notice it, run a collection, and become quiescent again. */
TEST(quiescent_handles_notice_a_failure) {
    rig r;
    open_owners(&r, 43, 4, 0);
    actor *failed = &r.actors[0];
    put_many(failed, "a");
    assert_int_equal(call(failed, leak, failed), 0);
    far_sim_sleep(r.world, 20000000);
    for (unsigned i = 0; i < r.count; i++)
        assert_false(far_epoch_is_active(r.actors[i].pool));
    unsigned id = failed->pool->team.own->id;
    far_sim_kill(failed->pool->fabric);
    far_sim_sleep(r.world, 500000000);
    assert_int_equal(far_client_state_of(word_at(&r, far_client_entry(id))), FAR_CLIENT_FREE);
    assert_false(collection_is_requested(&r));
    assert_int_equal(leaked(&r.actors[1]), 0);
    assert_many(&r.actors[1], "a");
    far_sim_sleep(r.world, 50000000);
    for (unsigned i = 1; i < r.count; i++)
        assert_false(far_epoch_is_active(r.actors[i].pool)); /* the handles are quiescent again */
    close_rig_with_held_blocks(&r);
}


/* The marks of a large pool exceed the limit of local memory, so the collection is done in parts. It must cover leaks
 * from before it began, and must not count leaks that happened in between as covered. Fails if each part reads
 * FAR_SUPER_LOSSES (begin_part in collect.c). */
TEST(a_collection_in_parts_covers_earlier_leaks) {
    rig r;
    open_owners(&r, 48, 2, 0);
    actor *owner = &r.actors[0], *collector = &r.actors[1];
    far_store *s = collector->pool->store;
    s->marks_max = 8 * far_bitmap_bytes(&collector->pool->geometry);
    /* The loop leaks objects in several parts of the pool and a large one. */
    for (unsigned i = 0; i < 6; i++) {
        put_many(owner, (char[]){'a', (char)('0' + i), 0});
        assert_int_equal(call(owner, leak_one, owner), 0);
    }
    assert_int_equal(call(owner, leak, owner), 0);
    hold_blocks(owner, true);
    assert_int_equal(sweep(collector, FAR_COLLECT_COUNT), 0);
    uint64_t lost = collector->swept.leaked_bytes;
    assert_true(lost > 6 * 512 + 20000);
    assert_int_equal(sweep(collector, FAR_COLLECT_COUNT), 0);
    assert_int_equal(collector->swept.leaked_bytes, lost);
    memcpy(bytes_at(&r, FAR_SUPER_LOSSES), &(uint64_t){word_at(&r, FAR_SUPER_LOSSES) + 1}, 8);
    collector->mode = FAR_COLLECT_REPAIR;
    start_sweep(collector);
    stop_at_point(collector, "collect:mark_phase");
    uint32_t first = request_now(&r).collection;
    stop_at_point(collector, "collect:mark_phase");
    assert_int_equal(request_now(&r).collection, far_number_next(first));
    assert_true(collection_is_requested(&r));
    memcpy(bytes_at(&r, FAR_SUPER_LOSSES), &(uint64_t){word_at(&r, FAR_SUPER_LOSSES) + 1}, 8);
    finish_collection(&r, collector);
    assert_int_equal(collector->swept.repaired_bytes, lost);
    assert_int_equal(word_at(&r, FAR_SUPER_LOSSES_COLLECTED) + 1, word_at(&r, FAR_SUPER_LOSSES));
    assert_int_equal(leaked(collector), 0);
    for (unsigned i = 0; i < 6; i++)
        assert_many(collector, (char[]){'a', (char)('0' + i), 0});
    close_rig_with_held_blocks(&r);
}


static void count_reads_of_slots(void *ctx, const far_sim_posted *posted) {
    struct {
        far_addr slots;
        unsigned reads;
    } *seen = ctx;
    seen->reads += posted->verb->kind == FAR_READ && posted->verb->addr == seen->slots;
}


/* The walk reads each index once. */
TEST(a_collection_walks_each_index_once) {
    rig r;
    open_owners(&r, 44, 2, 0);
    actor *owner = &r.actors[0], *collector = &r.actors[1];
    put_many(owner, "a");
    assert_int_equal(call(owner, leak, owner), 0);
    struct {
        far_addr slots;
        unsigned reads;
    } seen = {toy_slot_addr(toy_state_of(owner->index), 0), 0};
    far_sim_on_verb(r.world, count_reads_of_slots, &seen);
    assert_int_equal(sweep(collector, FAR_COLLECT_REPAIR), 0);
    far_sim_on_verb(r.world, NULL, NULL);
    assert_int_equal(seen.reads, 1);
    assert_true(collector->swept.repaired_bytes >= 3000);
    close_rig_with_held_blocks(&r);
}


/* The collector adopts the blocks of a failed handle one after the other. There may be many, so the epoch must advance
 * meanwhile. Fails without renew_pin_if_done (collect.c). */
TEST(the_epoch_advances_while_orphans_are_adopted) {
    rig r;
    open_owners(&r, 9, 2, 0);
    actor *failed = &r.actors[0], *collector = &r.actors[1];
    const far_geometry *g = &collector->pool->geometry;
    put_now(collector, "first", 1);
    failed->size = 20000;
    for (unsigned i = 0; i < 12; i++)
        assert_int_equal(call(failed, alloc_object, failed), 0);
    far_sim_kill(failed->pool->fabric);
    collector->mode = FAR_COLLECT_REPAIR;
    start_sweep(collector);
    stop_at_point(collector, "collect:write_marks");
    uint64_t epoch = 0;
    for (unsigned i = 0; i < 4; i++) {
        stop_at(collector, (far_sim_match){.kind = FAR_SIM_CAS,
                                           .from = far_addr_make(0, g->node[0].entries),
                                           .to = far_addr_make(0, g->node[0].pages)});
        epoch = i == 0 ? word_at(&r, FAR_SUPER_EPOCH) : epoch;
        /* The epoch advances while one block is adopted, and the handle observes the new epoch while it adopts the next
         * block. */
        far_epoch_request(collector->pool);
        far_sim_run_for(r.world, 10 * far_tick(collector->pool->fabric));
    }
    assert_true(word_at(&r, FAR_SUPER_EPOCH) >= epoch + 2);
    finish_collection(&r, collector);
    assert_true(collector->swept.leaked_bytes >= 12 * 20000);
    close_rig(&r);
}


static void alloc_main(void *arg) {
    actor *a = arg;
    a->result = call(a, alloc_object, a);
}


/* A session is lost while it cuts a slab. The page word is written, but the handle does not know the slab, so no sweep
 * frees its objects. When the handle releases the block it must request another collection. Fails without the check of
 * unknown pages in forget_block (exchange.c). */
TEST(a_slab_cut_by_a_lost_session_is_found_after_its_block_is_released) {
    rig r;
    open_rig(&r, 1, 2, 0);
    actor *owner = &r.actors[0], *adopter = &r.actors[1];
    const far_geometry *g = &owner->pool->geometry;
    put_many(owner, "a");
    hold_blocks(owner, true);
    join_handle(&r, 2, owner);
    actor *lost = &r.actors[2];
    lost->size = 1472;
    start(lost, "cutter", alloc_main);
    far_sim_hold *hold = far_sim_hold_completion(
        lost->client, (far_sim_match){.kind = FAR_SIM_WRITE,
                                      .from = far_block_page(g, (far_block_id){0, 0}, 0),
                                      .to = far_block_page(g, (far_block_id){0, (uint32_t)g->node[0].blocks}, 0)});
    assert_int_equal(far_sim_run_client(lost->client), FAR_SIM_HELD);
    assert_true(far_sim_reached(hold));
    far_sim_lose(lost->session->conn);
    assert_int_equal(far_sim_run_client(lost->client), FAR_SIM_ENDED);
    assert_int_equal(lost->result, FAR_ERR_UNREACHABLE);
    far_sim_release(hold);
    wait_for_sweeps(&r);

    hold_blocks(owner, false);
    far_session_close(lost->session);
    leave(owner);
    r.count = 2;
    wait_for_sweeps(&r);
    assert_int_equal(leaked(adopter), 0);
    leave(adopter);
}
