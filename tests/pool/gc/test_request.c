/* Tests of requests: when a handle acknowledges a request, and which remote objects the handle must have returned
 * before. test_sweep_phase.c tests how a collection uses the acknowledgements. Proves request.c. */
#include "base/pages.h"
#include "pool_rig.h"
#include "test.h"

#include <sched.h>


/* Opens a pool of one memory node with an index in which nearly every key has a bucket of its own. */
static void open_one_node(rig *r, unsigned seed, unsigned count, unsigned by_hand) {
    open_rig_with(r, seed, count, by_hand, "size=4M", 4096);
}


enum { REMOTE = 40 };


/* Makes `other` retire objects in blocks of `owner`, because it replaces values that the owner has put. */
static void retire_remote(rig *r, actor *owner, actor *other, far_addr objects[REMOTE]) {
    char key[8];
    for (unsigned i = 0; i < REMOTE; i++) {
        snprintf(key, sizeof(key), "f%u", i);
        put_now(owner, key, 300);
    }
    /* The buckets are read after all puts, because two keys may have the same bucket. */
    for (unsigned i = 0; i < REMOTE; i++) {
        snprintf(key, sizeof(key), "f%u", i);
        objects[i] = bucket_of(r, owner, key);
    }
    put_now(other, "first", 1); /* The first put makes the session fill its reserve. */
    for (unsigned i = 0; i < REMOTE; i++) {
        snprintf(key, sizeof(key), "f%u", i);
        put_now(other, key, 300);
        assert_false(far_address_is_own(other->pool->store, objects[i]));
    }
    hold_blocks(owner, true); /* Both handles keep their blocks when they are idle. */
    hold_blocks(other, true);
}


static unsigned count_returned(const rig *r, const actor *a, const far_addr objects[REMOTE]) {
    unsigned count = 0;
    for (unsigned i = 0; i < REMOTE; i++)
        count += free_bit_is_set(r, a, objects[i]);
    return count;
}


static bool is_linked(const rig *r, const actor *a, far_addr object) {
    bool linked = bucket_of(r, a, "g") == object;
    for (unsigned i = 0; i < REMOTE; i++) {
        char key[8];
        snprintf(key, sizeof(key), "f%u", i);
        linked |= bucket_of(r, a, key) == object;
    }
    return linked;
}


static int set_walk(far_task *t, far_request *r, void *ctx) {
    (void)t, (void)ctx;
    r->walk = true;
    r->number = far_number_next(r->number);
    r->collection = far_number_next(r->collection);
    return 0;
}


static int make_request(far_task *t, void *arg) {
    actor *a = arg;
    far_request made;
    int err = far_request_change(t, a->steps ? set_walk : far_request_next_number, NULL, &made);
    a->number_waited = made.number;
    return err;
}


/* Publishes a request and returns its number. With `walk`, the request has the flag that announces a mark phase. */
static uint32_t publish_request(actor *a, bool walk) {
    a->steps = walk;
    assert_int_equal(call(a, make_request, a), 0);
    return a->number_waited;
}


static bool has_acknowledged(const rig *r, const actor *a, uint32_t number) {
    far_client client = client_now(r, a);
    return client.pin == 0 || !far_number_is_newer(number, (uint32_t)client.answered);
}


/* Executes one slice of housekeeping of this actor's handle and lets time pass for the other handles. The handle stays
 * active. */
static void poll_once(rig *r, actor *a) {
    far_get(a->session, a->index, "first", 5, NULL, 0, NULL);
    far_epoch_request(a->pool);
    assert_int_equal(far_pool_poll(a->pool), 0);
    far_sim_sleep(r->world, 100000);
}


static void poll_until_acknowledged(rig *r, actor *a, uint32_t number) {
    for (unsigned i = 0; i < 200 && !has_acknowledged(r, a, number); i++)
        poll_once(r, a);
    assert_true(has_acknowledged(r, a, number));
}


/* Requests epochs as a client does that waits for acknowledgements. */
static void let_epochs_pass(rig *r, actor *a) {
    for (unsigned i = 0; i < 40; i++) {
        far_epoch_request(a->pool);
        far_sim_sleep(r->world, 300000);
    }
}


static void put_main(void *arg) {
    actor *a = arg;
    a->result = put(a, a->key, 300);
}


/* Stops an operation of `other` that has a remote object and has not linked it yet. `other` has no retired objects. */
static void stop_with_a_remote_object(rig *r, actor *owner, actor *other, far_addr objects[REMOTE]) {
    retire_remote(r, owner, other, objects);
    while (other->session->memory->retired_bytes > 0) {
        far_get(other->session, other->index, "first", 5, NULL, 0, NULL);
        far_epoch_request(other->pool);
        far_sim_sleep(r->world, 100000);
    }
    start(other, "writer", put_main);
    stop_at_point(other, "toy:publish");
}


/* An operation of handle B got an object in a block of handle A before B observed the request, and has not linked it
 * yet. B must not acknowledge before that operation's pin has ended. Fails if an acknowledgement does not wait for old
 * pins (epoch.c). */
TEST(acknowledgement_waits_for_old_pins) {
    rig r;
    far_addr objects[REMOTE];
    open_one_node(&r, 1, 2, 0);
    actor *owner = &r.actors[0], *other = &r.actors[1];
    stop_with_a_remote_object(&r, owner, other, objects);
    uint32_t number = publish_request(owner, false);
    let_epochs_pass(&r, owner);
    assert_int_equal(other->pool->store->handshake.observed, number);
    assert_false(has_acknowledged(&r, other, number));
    /* The actor has returned all other remote objects, so only the pin of the stopped operation delays the
     * acknowledgement. */
    assert_int_equal(other->pool->store->lists.return_bytes, 0);
    finish(other);
    let_epochs_pass(&r, owner);
    assert_true(has_acknowledged(&r, other, number));
    close_rig_with_held_blocks(&r);
}


static int wait_for_acknowledgements(far_task *t, void *arg) {
    const actor *a = arg;
    return far_request_wait(t, a->number_waited, 5000000);
}


/* Numbers of requests wrap around, so the number that a new handle acknowledged last (0) may seem to be newer than a
 * request. A handle that is active must be waited for nevertheless. Fails if a new handle does not begin with the
 * number of the current request. */
TEST(a_new_handle_is_waited_for_at_any_number) {
    rig r;
    open_one_node(&r, 10, 1, 0);
    far_sim_sleep(r.world, 50000000);
    assert_false(far_epoch_is_active(r.actors[0].pool));
    far_request old = request_now(&r);
    old.number = 0x900000;
    memcpy(bytes_at(&r, FAR_SUPER_REQUEST), &(uint64_t){far_request_pack(&old)}, 8);
    join(&r, 1, true);
    r.count = 2;
    actor *a = &r.actors[0], *other = &r.actors[1];
    start(other, "reader", hold_main);
    stop_at_point(other, "test:pinned");
    assert_int_equal(publish_request(a, false), 0x900001);
    assert_int_equal(call(a, wait_for_acknowledgements, a), 1);
    finish(other);
    poll_until_quiescent(other);
    assert_int_equal(call(a, wait_for_acknowledgements, a), 0);
    close_rig(&r);
}


static int set_release_blocks(far_task *t, far_request *r, void *ctx) {
    (void)t, (void)ctx;
    r->release_blocks = true;
    r->number = far_number_next(r->number);
    return 0;
}


static int request_blocks(far_task *t, void *arg) {
    actor *a = arg;
    far_request made;
    int err = far_request_change(t, set_release_blocks, NULL, &made);
    a->number_waited = made.number;
    return err;
}


/* A session of handle B is lost and not yet known to be fenced, so its verbs may still take effect. B must not
 * acknowledge a request, and must not release blocks, until the session is fenced. Fails without far_pins_are_unfenced
 * in far_request_advance and in far_memory_tick. */
TEST(acknowledgement_waits_for_lost_sessions) {
    for (unsigned spare = 0; spare < 2; spare++) {
        rig r;
        open_one_node(&r, 11 + 100 * spare, 2, 0);
        actor *a = &r.actors[0], *other = &r.actors[1];
        put_now(a, "a", 300);
        put_now(other, "b", SMALL);
        far_addr object = bucket_of(&r, other, "b");
        assert_int_equal(far_session_open(other->pool, &other->other), 0);
        atomic_store(&other->other->pins.stuck, true);
        far_session_close(other->session); /* Closing the session also frees the session's reserve. */
        other->session = NULL;
        assert_int_equal(call(a, spare ? request_blocks : make_request, a), 0);
        uint32_t number = a->number_waited;
        let_epochs_pass(&r, a);
        far_sim_sleep(r.world, 200000000);
        assert_int_equal(other->pool->store->handshake.observed, number);
        assert_false(has_acknowledged(&r, other, number));
        assert_int_equal(block_state(&r, a, object).kind, FAR_BLOCK_OWNED);
        assert_int_equal(far_sim_declare_dead(r.world, other->other->id, other->other->generation), 1);
        let_epochs_pass(&r, a);
        assert_true(has_acknowledged(&r, other, number));
        assert_false(atomic_load(&other->other->pins.stuck));
        assert_true(!spare || block_state(&r, a, object).kind == FAR_BLOCK_ORPHAN);
        close_rig(&r);
    }
}


/* Handle B has retired remote objects when it observes the request. It acknowledges when all these objects are
 * returned, which takes several epochs. Fails without far_has_retired in far_request_advance (request.c). */
TEST(acknowledgement_waits_for_retired_remote_objects) {
    rig r;
    far_addr objects[REMOTE];
    open_one_node(&r, 2, 2, WITHOUT_HOUSEKEEPING(1));
    actor *owner = &r.actors[0], *other = &r.actors[1];
    retire_remote(&r, owner, other, objects);
    uint32_t number = publish_request(owner, false);
    unsigned slices = 0;
    for (; slices < 200 && !has_acknowledged(&r, other, number); slices++) {
        assert_true(count_returned(&r, owner, objects) < REMOTE || slices > 2);
        poll_once(&r, other);
    }
    assert_true(has_acknowledged(&r, other, number) && client_now(&r, other).pin != 0);
    assert_int_equal(count_returned(&r, owner, objects), REMOTE);
    assert_true(slices >= 4); /* At least four slices are needed, because each slice passes at most one epoch. */
    poll_until_quiescent(other);
    close_rig_with_held_blocks(&r);
}


static bool has_retired(const actor *a) {
    return far_has_retired(a->pool->store, UINT64_MAX, false);
}


/* An acknowledgement waits for retired remote objects, and requests epochs for them. It does not wait for retired own
 * objects, because each advance of the epoch makes caches forget entries. */
TEST(own_retired_objects_delay_no_acknowledgement) {
    for (unsigned remote = 0; remote < 2; remote++) {
        rig r;
        far_addr objects[REMOTE];
        open_one_node(&r, 11 + remote, 2, WITHOUT_HOUSEKEEPING(1));
        actor *asker = &r.actors[0], *holder = &r.actors[1];
        holder->size = 700;
        put_now(asker, "first", 1);
        assert_int_equal(call(holder, alloc_object, holder), 0);
        uint32_t number = publish_request(asker, false);
        while (holder->pool->store->handshake.observed != number) {
            if (!has_retired(holder) && remote)
                retire_remote(&r, asker, holder, objects);
            else if (!has_retired(holder))
                assert_int_equal(call(holder, retire_object, holder), 0);
            poll_once(&r, holder);
        }
        assert_true(has_retired(holder));
        atomic_store(&holder->pool->epochs.requests, 0);
        assert_int_equal(far_request_advance(holder->pool), !remote);
        assert_int_equal(atomic_load(&holder->pool->epochs.requests), remote);
        poll_until_acknowledged(&r, holder, number);
        poll_until_quiescent(holder);
        close_rig_with_held_blocks(&r);
    }
}


/* ---- Concurrently with another thread of the handle ---- */

static void *check_met_main(void *arg) {
    far_pool *pool = arg;
    return far_request_advance(pool) ? pool : NULL;
}


static bool queue_return(far_store *s, const far_retired *item, void *ctx) {
    (void)ctx;
    far_store_queue_return(s, item->class, item->addr);
    return false;
}


/* Thread A checks whether the request is met and waits for the lock of session S. Meanwhile thread B frees a retired
 * remote object of S, which becomes a pending return. A must not find the request met. Fails if far_request_advance
 * (request.c) checks the pending returns before the retired objects. */
TEST(an_object_freed_during_the_check_is_waited_for) {
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    options.no_thread = 1;
    far_pool *pool;
    far_session *session;
    pthread_t looker;
    void *met;
    assert_int_equal(far_pool_open("local:4M", &options, &pool), 0);
    assert_int_equal(far_session_open(pool, &session), 0);
    far_store *s = pool->store;
    far_memory *m = session->memory;
    far_addr remote = far_block_base(&pool->geometry, (far_block_id){0, (uint32_t)pool->geometry.node[0].blocks - 1});
    assert_false(far_address_is_own(s, remote));
    assert_true(far_request_advance(pool));

    far_mutex_lock(&m->lock);
    pthread_mutex_lock(&s->lock);
    far_class *class = far_class_get(s, 0, 0, 64, false);
    s->handshake.observed_epoch = pool->epochs.known;
    pthread_mutex_unlock(&s->lock);
    far_queue_add(m, (far_retired){remote, class, s->handshake.observed_epoch, s->handshake.observed_epoch + 4});
    assert_int_equal(pthread_create(&looker, NULL, check_met_main, pool), 0);
    while (atomic_load(&m->lock.word) != FAR_MUTEX_WAITED_FOR)
        sched_yield();
    pthread_mutex_lock(&s->lock);
    far_memory_visit(s, m, &(far_visit){.retired = queue_return});
    pthread_mutex_unlock(&s->lock);
    far_mutex_unlock(&m->lock);
    assert_int_equal(pthread_join(looker, &met), 0);
    assert_null(met);

    /* The pending return is discarded, because its object does not really exist. */
    far_pages_free(s->lists.returns, s->lists.return_capacity * sizeof(*s->lists.returns));
    s->lists.returns = NULL;
    s->lists.return_count = s->lists.return_capacity = 0;
    s->lists.return_bytes = 0;
    assert_true(far_request_advance(pool));
    far_session_close(session);
    far_pool_close(pool);
}


/* ---- Waiting ---- */

static int request_and_wait(far_task *t, void *arg) {
    far_request made;
    (void)arg;
    int err = far_request_change(t, far_request_next_number, NULL, &made);
    atomic_store_explicit(&far_task_pool(t)->epochs.requests, 0, memory_order_relaxed);
    return err < 0 ? err : far_request_wait(t, made.number, FAR_TIME_NEVER);
}


static void request_and_wait_main(void *arg) {
    actor *a = arg;
    a->result = call(a, request_and_wait, NULL);
}


/* The epoch advances just before the request is published, so the advance that is requested with the request has
 * already happened. The waiting handle must request another epoch, long before other handles become quiescent. Fails
 * without far_epoch_request in far_request_wait (request.c). */
TEST(a_request_is_observed_although_the_epoch_advanced_before_it) {
    rig r;
    open_one_node(&r, 13, 2, 0);
    actor *asker = &r.actors[0], *other = &r.actors[1];
    put_now(asker, "first", 1);
    put_now(other, "second", 1);
    start(asker, "asker", request_and_wait_main);
    far_sim_run_for(r.world, 40 * far_tick(asker->pool->fabric));
    assert_true(far_epoch_is_active(other->pool));
    assert_int_equal(asker->result, 0);
    run_all(&r);
    close_rig(&r);
}


static void wait_epochs_main(void *arg) {
    actor *a = arg;
    a->result = far_session_call(a->other, FAR_STATS_OTHER, true, wait_and_tick, &(unsigned){20});
}


/* The handle that published the request may have failed. Other handles acknowledge the request nevertheless. */
TEST(a_request_is_acknowledged_although_no_client_waits) {
    rig r;
    far_addr objects[REMOTE];
    open_one_node(&r, 9, 2, 0);
    actor *owner = &r.actors[0], *other = &r.actors[1];
    retire_remote(&r, owner, other, objects);
    uint32_t number = publish_request(owner, false);
    far_sim_sleep(r.world, 50000000);
    assert_true(has_acknowledged(&r, other, number));
    assert_false(far_epoch_is_active(other->pool));
    close_rig_with_held_blocks(&r);
}


/* Handle B has posted the FAA that returns an object, and the FAA has not taken effect yet. Another session of B
 * advances its epochs. B must not acknowledge before the FAA has completed. Fails without return_bytes in
 * far_request_advance (request.c). */
TEST(acknowledgement_waits_for_returns_in_progress) {
    rig r;
    far_addr objects[REMOTE];
    open_one_node(&r, 3, 2, WITHOUT_HOUSEKEEPING(1));
    actor *owner = &r.actors[0], *other = &r.actors[1], waiter;
    assert_int_equal(far_session_open(other->pool, &other->other), 0);
    waiter = *other;
    retire_remote(&r, owner, other, objects);
    uint32_t number = publish_request(owner, false);
    start(other, "poller", poll_main);
    far_sim_hold *hold = far_sim_hold_effect(other->client, (far_sim_match){.kind = FAR_SIM_FAA,
                                                                            .from = bit_word(owner, objects[0]),
                                                                            .to = bit_word(owner, objects[0]) + 8});
    for (unsigned i = 0; i < 200 && !far_sim_reached(hold); i++) {
        far_epoch_request(other->pool);
        far_sim_run_for(r.world, 100000);
    }
    assert_true(far_sim_reached(hold));
    start(&waiter, "waiter", wait_epochs_main);
    far_sim_run_for(r.world, 20000000);
    assert_false(has_acknowledged(&r, other, number));
    far_sim_release(hold);
    far_sim_run_for(r.world, 20000000);
    assert_true(has_acknowledged(&r, other, number));
    other->stop = true;
    run_all(&r);
    assert_int_equal(waiter.result, 0);
    close_rig_with_held_blocks(&r);
}


/* The request of a mark phase is published. Handle B returns the remote objects in its lists at once, and those that
 * become free later as well. All objects that it hands out are own. Fails without the check of `walk` in
 * far_store_add_free and far_magazine_add (store.c). */
TEST(no_remote_object_is_handed_out_during_the_mark_phase) {
    rig r;
    far_addr objects[REMOTE];
    open_one_node(&r, 4, 2, WITHOUT_HOUSEKEEPING(1));
    actor *owner = &r.actors[0], *other = &r.actors[1];
    retire_remote(&r, owner, other, objects);
    for (unsigned i = 0; i < 12; i++)
        poll_once(&r, other);
    assert_true(other->pool->store->lists.remote_bytes > 0);
    put_now(other, "g", 300); /* The put takes some remote objects into the session's magazine. */
    unsigned home = count_returned(&r, owner, objects);
    assert_true(home < REMOTE - 10);

    uint32_t number = publish_request(owner, true);
    poll_until_acknowledged(&r, other, number);
    for (unsigned i = 0; i < REMOTE; i++)
        assert_true(free_bit_is_set(&r, owner, objects[i]) || is_linked(&r, owner, objects[i]));

    put_now(owner, "h", 300);
    hold_blocks(owner, true);
    far_addr late = bucket_of(&r, owner, "h");
    put_now(other, "h", 300); /* The put retires its object during the mark phase. */
    for (unsigned i = 0; i < 12; i++)
        poll_once(&r, other);
    assert_true(free_bit_is_set(&r, owner, late));
    assert_int_equal(other->pool->store->lists.remote_bytes, 0);
    for (unsigned i = 0; i < 100; i++) {
        char key[8];
        snprintf(key, sizeof(key), "i%u", i);
        put_now(other, key, 300);
        assert_true(far_address_is_own(other->pool->store, bucket_of(&r, other, key)));
    }
    poll_until_quiescent(other);
    close_rig_with_held_blocks(&r);
}


/* No client waits for a quiescent handle, so a handle must have returned all remote objects before it becomes
 * quiescent. Fails without far_remote_objects_queue_return in far_memory_prepare_quiescence (upkeep.c). */
TEST(a_quiescent_handle_has_returned_its_remote_objects) {
    rig r;
    far_addr objects[REMOTE];
    open_one_node(&r, 5, 2, WITHOUT_HOUSEKEEPING(1));
    actor *owner = &r.actors[0], *other = &r.actors[1];
    retire_remote(&r, owner, other, objects);
    for (unsigned i = 0; i < 12; i++)
        poll_once(&r, other);
    assert_true(other->pool->store->lists.remote_bytes > 0);
    put_now(other, "g", 300);
    while (far_epoch_is_active(other->pool)) {
        assert_int_equal(far_pool_poll(other->pool), 0);
        far_sim_sleep(r.world, 100000);
    }
    assert_int_equal(client_now(&r, other).pin, 0);
    for (unsigned i = 0; i < REMOTE; i++)
        assert_true(free_bit_is_set(&r, owner, objects[i]) || is_linked(&r, owner, objects[i]));
    close_rig_with_held_blocks(&r);
}


/* Handle B is quiescent when the request is published. It becomes active for an operation and must have observed the
 * request before that operation has a pin. Fails if the request is not read when the handle becomes active (epoch.c).
 */
TEST(a_waking_handle_observes_the_request_before_its_first_pin) {
    rig r;
    open_one_node(&r, 6, 2, WITHOUT_HOUSEKEEPING(1));
    actor *owner = &r.actors[0], *sleeper = &r.actors[1];
    put_now(sleeper, "a", 300);
    poll_until_quiescent(sleeper);
    uint32_t number = publish_request(owner, true);
    assert_true(has_acknowledged(&r, sleeper, number));
    assert_int_not_equal(sleeper->pool->store->handshake.observed, number);
    start(sleeper, "waker", hold_main);
    stop_at_point(sleeper, "test:pinned");
    assert_int_equal(sleeper->pool->store->handshake.observed, number);
    assert_true(sleeper->pool->store->handshake.walk && far_sweep_is_pending(sleeper->pool->store));
    assert_true(client_now(&r, sleeper).pin != 0);
    finish(sleeper);
    poll_until_quiescent(sleeper);
    close_rig_with_held_blocks(&r);
}


static bool is_in_store(const actor *a, far_addr addr) {
    far_store *s = a->pool->store;
    pthread_mutex_lock(&s->lock);
    const far_slab *slab = far_slab_at(s, addr);
    uint64_t number = slab ? (addr - far_slab_base(s, slab)) / slab->class->size : 0;
    bool stored = slab && slab->in_store[number / 64] >> number % 64 & 1;
    pthread_mutex_unlock(&s->lock);
    return stored;
}


/* Owner A takes free bits by CAS. It must wait until the CAS has taken effect before it hands out the objects.
 * Otherwise an object could be retired and returned again while its old bit is still set, and the FAA would carry into
 * the next bit. Fails without the wait in take_free_bits (slabs.c). */
TEST(taken_bits_are_waited_for_before_reuse) {
    rig r;
    far_addr objects[REMOTE];
    open_one_node(&r, 7, 2, 0);
    actor *owner = &r.actors[0], *other = &r.actors[1];
    retire_remote(&r, owner, other, objects);
    uint32_t number = publish_request(owner, false);
    let_epochs_pass(&r, owner);
    assert_true(has_acknowledged(&r, other, number));
    assert_int_equal(count_returned(&r, owner, objects), REMOTE);
    far_addr first = bit_word(owner, objects[0]);
    start_putting(owner, 200, 300); /* All puts use one key, so each put needs another object. */
    far_sim_hold *hold =
        far_sim_hold_effect(owner->client, (far_sim_match){.kind = FAR_SIM_CAS, .from = first, .to = first + 8});
    while (!far_sim_reached(hold) && !far_sim_ended(owner->client))
        far_sim_run_client(owner->client);
    assert_true(far_sim_reached(hold));
    unsigned before = owner->puts;
    far_sim_run_for(r.world, 10000000);
    assert_int_equal(owner->puts, before);
    for (unsigned i = 0; i < REMOTE; i++) /* no other session of the handle can get one of these objects either */
        assert_false(is_in_store(owner, objects[i]));
    far_sim_release(hold);
    run_all(&r);
    assert_int_equal(owner->puts, 200);
    assert_nothing_lost(&r, owner);
    close_rig_with_held_blocks(&r);
}


/* Handle B is active and stopped. A collection waits for its acknowledgement, but operations of other handles do not.
 * When B continues, it acknowledges and the collection ends. */
TEST(a_stopped_active_handle_delays_only_collections) {
    rig r;
    open_one_node(&r, 8, 3, WITHOUT_HOUSEKEEPING(1));
    actor *a = &r.actors[0], *stopped = &r.actors[1], *collector = &r.actors[2];
    work_now(stopped, 40);
    work_now(a, 40);
    assert_int_equal(call(a, leak, a), 0);
    start_sweep(collector);
    far_sim_run_for(r.world, 100000000);
    assert_false(far_sim_ended(collector->client));
    work_now(a, 100); /* The operations find memory without waiting for the stopped handle. */
    for (unsigned i = 0; i < 2000 && !far_sim_ended(collector->client); i++) {
        assert_int_equal(far_pool_poll(stopped->pool), 0);
        far_sim_run_for(r.world, 100000);
    }
    assert_true(far_sim_ended(collector->client));
    assert_int_equal(collector->result, 0);
    assert_true(collector->swept.leaked_bytes >= 3000);
    assert_keys(a, stopped);
    work_now(stopped, 40);
    assert_keys(a, stopped);
    poll_until_quiescent(stopped);
    assert_nothing_lost(&r, a);
    close_rig_with_held_blocks(&r);
}
