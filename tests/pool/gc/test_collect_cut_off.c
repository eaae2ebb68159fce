/* Tests of collections, and of the situations that they repair, which are cut off at any verb. Also some interleavings
 * of collections with operations. */
#include "pool_rig.h"
#include "test.h"


/* Handle A runs `action` and fails at its nth verb, for every `step`-th n. The other handles continue to work, and a
 * collection finds everything that A left. Repeats until A completes; requires at least `at_least` failures. */
static void fail_at_every_verb(void (*action)(void *arg), void (*prepare)(rig *r), unsigned step, unsigned at_least) {
    static const uint32_t units[] = {0, 1, FAR_SIM_WHOLE};
    unsigned deaths = 0;
    for (unsigned nth = 1;; nth += step) {
        assert_true(nth < VERBS_MAX);
        rig r;
        open_rig(&r, nth, 3, 0);
        actor *a = &r.actors[0], *b = &r.actors[1], *c = &r.actors[2];
        prepare(&r);
        start(a, "dying", action);
        far_sim_kill_at(a->client, (far_sim_match){.nth = nth}, units[nth / step % 3]);
        run_all(&r);
        bool died = far_sim_verbs(a->client) >= nth;
        if (!died)
            assert_int_equal(a->result, 0);
        b->steps = 40;
        work(b);
        assert_int_equal(b->result, 0);
        assert_nothing_lost(&r, c);
        assert_keys(c, b);
        work(b);
        assert_int_equal(b->result, 0);
        assert_keys(c, b);
        assert_nothing_lost(&r, b);
        deaths += died;
        close_rig(&r);
        if (!died)
            break;
    }
    assert_true(deaths >= at_least);
}


static void prepare_leaks(rig *r) {
    actor *b = &r->actors[1], *c = &r->actors[2];
    c->steps = 60;
    work(c);
    b->steps = 30;
    work(b);
    assert_int_equal(call(c, leak, c), 0);
}


/* The collector fails at each of its verbs. */
TEST(a_collection_cut_off_at_any_verb_is_completed_by_the_next) {
    fail_at_every_verb(sweep_main, prepare_leaks, 1, 50);
}


static void prepare_failed_session(rig *r) {
    actor *c = &r->actors[2], *b = &r->actors[1];
    b->steps = 30;
    work(b);
    far_session *extra;
    assert_int_equal(far_session_open(c->pool, &extra), 0);
    far_session *mine = c->session;
    c->session = extra;
    c->steps = 60;
    work(c);
    assert_int_equal(far_session_call(extra, FAR_STATS_OTHER, true, leak, c), 0);
    c->session = mine;
    assert_int_equal(far_sim_declare_dead(r->world, extra->id, extra->generation), 1);
    far_session_close(extra);
}


/* A session was fenced, and a collection takes the memory that this session left. The collector fails at each verb of
 * that collection. */
TEST(a_collection_after_a_failure_cut_off_at_any_verb_is_completed) {
    fail_at_every_verb(sweep_main, prepare_failed_session, 1, 50);
}


static int alloc_and_free(far_task *t, void *arg) {
    actor *a = arg;
    far_object objects[40], run;
    int err = far_pin_take(t);
    for (unsigned i = 0; i < 40 && err == 0; i++)
        err = far_alloc(t, a->index, 0, 700 + 300 * (i % 4), FAR_NODE_ANY, i % 8 == 7 ? FAR_ALLOC_SESSION_OWNED : FAR_ALLOC_ZERO,
                        &objects[i]);
    if (err == 0)
        err = far_alloc(t, a->index, 0, 60000, FAR_NODE_ANY, 0, &run);
    for (unsigned i = 0; i < 40 && err == 0; i++)
        far_free(t, a->index, 0, objects[i].addr, 700 + 300 * (i % 4));
    if (err == 0)
        far_free(t, a->index, 0, run.addr, 60000);
    far_pin_drop(t);
    for (unsigned i = 0; i < 5 && err == 0; i++) {
        err = far_memory_tick(t);
        if (err == 0)
            err = far_wait_epochs_until(t, 1, FAR_TIME_NEVER);
    }
    return err;
}


static void alloc_free_and_close_main(void *arg) {
    actor *a = arg;
    a->result = far_session_call(a->session, FAR_STATS_OTHER, true, alloc_and_free, a);
    if (a->result == 0) {
        a->steps = 5;
        work(a);
    }
    far_index_close(a->index);
    far_session_close(a->session);
    far_pool_close(a->pool);
    a->index = NULL;
    a->session = NULL;
    a->pool = NULL;
}


static void prepare_nothing(rig *r) {
    (void)r;
}


/* A client allocates, also an object of nearly a block, frees, releases slabs and blocks, and closes its handle. It fails at each
 * of its verbs. A collection finds everything. */
TEST(a_client_that_fails_at_any_verb_of_the_allocator_leaks_nothing) {
    fail_at_every_verb(alloc_free_and_close_main, prepare_nothing, 1, 100);
}


/* ---- Interleavings ---- */

static void put_one(void *arg) {
    actor *a = arg;
    a->versions[7] = 42;
    a->result = put_key(a, 7, 42);
}


static void get_one(void *arg) {
    actor *a = arg;
    char value[600];
    a->result = far_get(a->session, a->index, "1.007", 5, value, sizeof(value), NULL);
}


/* Handle A has allocated an object and not linked it yet when the collection begins. The walk must wait until that
 * operation has ended. Fails if the collector does not wait for the acknowledgement of its first request. */
TEST(a_collection_waits_for_an_object_about_to_be_linked) {
    rig r;
    open_rig(&r, 6, 3, 0);
    actor *a = &r.actors[0], *b = &r.actors[1];
    a->steps = 30;
    work(a);
    start(a, "writer", put_one);
    far_sim_stop_before(a->client, (far_sim_match){.point = "toy:publish"});
    assert_int_equal(far_sim_run_client(a->client), FAR_SIM_STOPPED);
    start(b, "sweeper", sweep_main);
    far_sim_run_for(r.world, 100000000);
    assert_false(far_sim_ended(b->client));
    far_sim_resume(a->client);
    run_all(&r);
    assert_int_equal(a->result, 0);
    assert_int_equal(b->result, 0);
    assert_int_equal(b->swept.leaked_bytes, 0);
    assert_keys(b, a);
    b->steps = 200;
    work(b);
    assert_keys(b, a);
    assert_nothing_lost(&r, b);
    close_rig(&r);
}


/* Reader A has read the address of a bucket. Writer B replaces the bucket during the walk, so that it is returned. The
 * bucket must not be reused before A's operation has ended, even by an operation that searches for memory. Fails if an
 * acknowledgement does not wait for old pins. */
TEST(an_object_unlinked_during_the_walk_is_not_reused_early) {
    rig r;
    open_rig(&r, 7, 3, 0);
    actor *reader = &r.actors[0], *writer = &r.actors[1], *collector = &r.actors[2];
    writer->versions[7] = 1;
    assert_int_equal(put_key(writer, 7, 1), 0);
    start(collector, "sweeper", sweep_main);
    stop_at_point(collector, "collect:mark_phase");
    start(reader, "reader", get_one);
    /* At this READ the reader has already read the bucket's address from the slot. */
    far_sim_stop_before(reader->client, (far_sim_match){.kind = FAR_SIM_READ, .nth = 2, .label = "get"});
    assert_int_equal(far_sim_run_client(reader->client), FAR_SIM_STOPPED);
    start(writer, "writer", put_one);
    assert_int_equal(far_sim_run_client(writer->client), FAR_SIM_ENDED);
    assert_int_equal(writer->result, 0);
    far_sim_resume(collector->client);
    far_sim_run_for(r.world, 100000000);
    assert_false(far_sim_ended(collector->client));
    writer->steps = 50; /* These operations search for memory in all places. */
    work(writer);
    assert_int_equal(writer->result, 0);
    far_sim_resume(reader->client);
    run_all(&r);
    assert_int_equal(reader->result, 0);
    assert_int_equal(collector->result, 0);
    assert_keys(reader, writer);
    assert_nothing_lost(&r, reader);
    close_rig(&r);
}


/* Allocates many objects. Returns 1 if it got the object that other clients may still hold. */
static int alloc_many(far_task *t, void *arg) {
    actor *a = arg;
    far_object object;
    int err = far_pin_take(t);
    far_point(t, "test:pinned");
    for (unsigned i = 0; i < 300 && err == 0; i++) {
        err = far_alloc(t, NULL, 5, a->size, 0, FAR_ALLOC_ON_NODE, &object);
        if (err == 0 && object.addr == a->object)
            err = 1;
    }
    far_pin_drop(t);
    return err;
}


static void alloc_many_main(void *arg) {
    actor *a = arg;
    a->result = far_session_call(a->session, FAR_STATS_OTHER, true, alloc_many, a);
}


/* Owner A holds an old pin and has not observed the request of a collection. Handle B has observed it and retires an
 * object in A's block. The object must not be returned before A's pin has ended. Fails if retired remote objects are
 * returned without waiting for their epoch. */
TEST(a_retired_object_is_not_returned_before_old_pins_end) {
    rig r;
    open_rig(&r, 8, 3, WITHOUT_HOUSEKEEPING(0)); /* the owner has no housekeeping */
    actor *owner = &r.actors[0], *other = &r.actors[1], *collector = &r.actors[2];
    owner->size = other->size = 512;
    assert_int_equal(call(owner, alloc_object, owner), 0);
    start(owner, "owner", alloc_many_main);
    stop_at_point(owner, "test:pinned");
    start_sweep(collector);
    far_sim_run_for(r.world, 20000000);
    assert_false(far_sim_ended(collector->client));
    other->object = owner->object;
    assert_int_equal(call(other, retire_object, other), 0);
    far_sim_sleep(r.world, 5000000);
    assert_int_equal(other->pool->store->handshake.observed, request_now(&r).number);
    assert_int_not_equal(owner->pool->store->handshake.observed, request_now(&r).number);
    assert_false(free_bit_is_set(&r, owner, owner->object));
    finish(owner);
    assert_int_equal(owner->result, 0);
    for (unsigned i = 0; i < 1000 && !far_sim_ended(collector->client); i++) {
        far_pool_poll(owner->pool);
        far_sim_run_for(r.world, 1000000);
    }
    assert_true(far_sim_ended(collector->client));
    assert_int_equal(collector->result, 0);
    /* The owner has begun a sweep and is not polled any more. Other handles would wait for the owner, so it leaves the
     * pool. */
    leave(owner);
    assert_nothing_lost(&r, collector);
    close_rig(&r);
}
