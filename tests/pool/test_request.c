/* The one request: when a handle answers it, and what it must have brought home by then. Its other side, what a sweep
 * makes of the answers, is in test_settle.c. */
#include "pool_rig.h"

#include <sched.h>


/* Two actors, or more, on one memory node; every key has a bucket of its own. */
static void open_answers(rig *r, unsigned seed, unsigned count, unsigned by_hand) {
    open_rig_with(r, seed, count, by_hand, "size=4M", 4096);
}


enum { FOREIGN = 40 };


/* `other` has retired objects in blocks of `owner`: it replaced what that one had put. */
static void retire_foreign(rig *r, actor *owner, actor *other, far_addr objects[FOREIGN]) {
    char key[8];
    for (unsigned i = 0; i < FOREIGN; i++) {
        snprintf(key, sizeof(key), "f%u", i);
        put_now(owner, key, 300);
    }
    for (unsigned i = 0; i < FOREIGN; i++) { /* two keys may have one bucket */
        snprintf(key, sizeof(key), "f%u", i);
        objects[i] = bucket_of(r, owner, key);
    }
    put_now(other, "first", 1); /* has its reserve */
    for (unsigned i = 0; i < FOREIGN; i++) {
        snprintf(key, sizeof(key), "f%u", i);
        put_now(other, key, 300);
        assert_false(far_is_own(other->pool->store, objects[i]));
    }
    hold_blocks(owner, true); /* it keeps them although it is idle */
    hold_blocks(other, true);
}


static unsigned count_home(const rig *r, const actor *a, const far_addr objects[FOREIGN]) {
    unsigned count = 0;
    for (unsigned i = 0; i < FOREIGN; i++)
        count += is_home(r, a, objects[i]);
    return count;
}


static bool is_linked(const rig *r, const actor *a, far_addr object) {
    bool linked = bucket_of(r, a, "g") == object;
    for (unsigned i = 0; i < FOREIGN; i++) {
        char key[8];
        snprintf(key, sizeof(key), "f%u", i);
        linked |= bucket_of(r, a, key) == object;
    }
    return linked;
}


static int make_walk(far_task *t, far_request *r, void *ctx) {
    (void)t, (void)ctx;
    r->walk = true;
    r->number = far_number_next(r->number);
    r->sweep = far_number_next(r->sweep);
    return 0;
}


static int make_request(far_task *t, void *arg) {
    actor *a = arg;
    far_request made;
    int err = far_request_change(t, a->steps ? make_walk : far_request_only, NULL, &made);
    a->number_waited = made.number;
    return err;
}


/* By a: a number, perhaps that of a walk. */
static uint32_t ask(actor *a, bool walk) {
    a->steps = walk;
    assert_int_equal(call(a, make_request, a), 0);
    return a->number_waited;
}


static bool has_answered(const rig *r, const actor *a, uint32_t number) {
    far_client client = client_now(r, a);
    return client.pin == 0 || !far_number_is_newer(number, (uint32_t)client.answered);
}


/* One slice of its housekeeping, and time for the others. It stays awake. */
static void poll_once(rig *r, actor *a) {
    far_get(a->session, a->index, "first", 5, NULL, 0, NULL);
    far_epoch_request(a->pool);
    assert_int_equal(far_pool_poll(a->pool), 0);
    far_sim_sleep(r->world, 100000);
}


static void poll_until_answered(rig *r, actor *a, uint32_t number) {
    for (unsigned i = 0; i < 200 && !has_answered(r, a, number); i++)
        poll_once(r, a);
    assert_true(has_answered(r, a, number));
}


/* As one who waits for answers does. */
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


/* `other` has nothing retired any more, and an operation of it holds an object of `owner`, not yet linked. */
static void stop_with_a_foreign_object(rig *r, actor *owner, actor *other, far_addr objects[FOREIGN]) {
    retire_foreign(r, owner, other, objects);
    while (other->session->memory->retired_bytes > 0) {
        far_get(other->session, other->index, "first", 5, NULL, 0, NULL);
        far_epoch_request(other->pool);
        far_sim_sleep(r->world, 100000);
    }
    start(other, "writer", put_main);
    stop_at_point(other, "toy:publish");
}


/* An operation got an object of another's block before its handle heard of the request, and has not linked it yet. */
static void answer_waits_for_old_pins(void **state) {
    (void)state;
    rig r;
    far_addr objects[FOREIGN];
    open_answers(&r, 1, 2, 0);
    actor *owner = &r.actors[0], *other = &r.actors[1];
    stop_with_a_foreign_object(&r, owner, other, objects);
    uint32_t number = ask(owner, false);
    let_epochs_pass(&r, owner);
    assert_int_equal(other->pool->store->heard, number);
    assert_false(has_answered(&r, other, number));
    assert_int_equal(other->pool->store->leaving_bytes, 0); /* all else is home */
    finish(other);
    let_epochs_pass(&r, owner);
    assert_true(has_answered(&r, other, number));
    close_holders(&r);
}


static int wait_for_answers(far_task *t, void *arg) {
    const actor *a = arg;
    return far_request_wait(t, a->number_waited, 5000000);
}


/* Numbers go round: that of the last answer, given very long ago or never, may seem to be the newer one. */
static void a_new_handle_is_waited_for_at_any_number(void **state) {
    (void)state;
    rig r;
    open_answers(&r, 10, 1, 0);
    far_sim_sleep(r.world, 50000000);
    assert_false(far_epoch_is_awake(r.actors[0].pool));
    far_request old = request_now(&r);
    old.number = 0x900000;
    memcpy(bytes_at(&r, FAR_SUPER_REQUEST), &(uint64_t){far_request_pack(&old)}, 8);
    join(&r, 1, true);
    r.count = 2;
    actor *a = &r.actors[0], *other = &r.actors[1];
    start(other, "reader", hold_main);
    stop_at_point(other, "test:pinned");
    assert_int_equal(ask(a, false), 0x900001);
    assert_int_equal(call(a, wait_for_answers, a), 1);
    finish(other);
    poll_until_asleep(other);
    assert_int_equal(call(a, wait_for_answers, a), 0);
    close_rig(&r);
}


static int make_spare(far_task *t, far_request *r, void *ctx) {
    (void)t, (void)ctx;
    r->spare = true;
    r->number = far_number_next(r->number);
    return 0;
}


static int ask_for_spare(far_task *t, void *arg) {
    actor *a = arg;
    far_request made;
    int err = far_request_change(t, make_spare, NULL, &made);
    a->number_waited = made.number;
    return err;
}


/* A session of the handle is lost, and nobody can tell yet that it is fenced: what it posted may still take effect. No
 * request is answered before, and where one asks for spare blocks, none changes hands. */
static void answer_waits_for_lost_sessions(void **state) {
    (void)state;
    for (unsigned spare = 0; spare < 2; spare++) {
        rig r;
        open_answers(&r, 11 + 100 * spare, 2, 0);
        actor *a = &r.actors[0], *other = &r.actors[1];
        put_now(a, "a", 300);
        put_now(other, "b", SMALL);
        far_addr object = bucket_of(&r, other, "b");
        assert_int_equal(far_session_open(other->pool, &other->other), 0);
        atomic_store(&other->other->pins.stuck, true);
        far_session_close(other->session); /* and with it the reserve */
        other->session = NULL;
        assert_int_equal(call(a, spare ? ask_for_spare : make_request, a), 0);
        uint32_t number = a->number_waited;
        let_epochs_pass(&r, a);
        far_sim_sleep(r.world, 200000000);
        assert_int_equal(other->pool->store->heard, number);
        assert_false(has_answered(&r, other, number));
        assert_int_equal(block_state(&r, a, object).kind, FAR_BLOCK_OWNED);
        assert_int_equal(far_sim_declare_dead(r.world, other->other->id, other->other->generation), 1);
        let_epochs_pass(&r, a);
        assert_true(has_answered(&r, other, number));
        assert_false(atomic_load(&other->other->pins.stuck));
        assert_true(!spare || block_state(&r, a, object).kind == FAR_BLOCK_ORPHAN);
        close_rig(&r);
    }
}


/* Objects of others that it had retired when it heard come home when nobody can see them any more; then it answers. */
static void answer_waits_for_retired(void **state) {
    (void)state;
    rig r;
    far_addr objects[FOREIGN];
    open_answers(&r, 2, 2, BY_HAND(1));
    actor *owner = &r.actors[0], *other = &r.actors[1];
    retire_foreign(&r, owner, other, objects);
    uint32_t number = ask(owner, false);
    unsigned slices = 0;
    for (; slices < 200 && !has_answered(&r, other, number); slices++) {
        assert_true(count_home(&r, owner, objects) < FOREIGN || slices > 2);
        poll_once(&r, other);
    }
    assert_true(has_answered(&r, other, number) && client_now(&r, other).pin != 0);
    assert_int_equal(count_home(&r, owner, objects), FOREIGN);
    assert_true(slices >= 4); /* epochs */
    poll_until_asleep(other);
    close_holders(&r);
}


static bool has_retired(const actor *a) {
    return far_has_retired(a->pool->store, UINT64_MAX, false);
}


/* Every move of the epoch costs caches: own objects that wait to be free are no reason for one, those of others are. */
static void own_retired_objects_hold_up_no_answer(void **state) {
    (void)state;
    for (unsigned foreign = 0; foreign < 2; foreign++) {
        rig r;
        far_addr objects[FOREIGN];
        open_answers(&r, 11 + foreign, 2, BY_HAND(1));
        actor *asker = &r.actors[0], *holder = &r.actors[1];
        holder->size = 700;
        put_now(asker, "first", 1);
        assert_int_equal(call(holder, alloc_object, holder), 0);
        uint32_t number = ask(asker, false);
        while (holder->pool->store->heard != number) {
            if (!has_retired(holder) && foreign)
                retire_foreign(&r, asker, holder, objects);
            else if (!has_retired(holder))
                assert_int_equal(call(holder, retire_object, holder), 0);
            poll_once(&r, holder);
        }
        assert_true(has_retired(holder));
        atomic_store(&holder->pool->epochs.requests, 0);
        assert_int_equal(far_request_is_met(holder->pool), !foreign);
        assert_int_equal(atomic_load(&holder->pool->epochs.requests), foreign);
        poll_until_answered(&r, holder, number);
        poll_until_asleep(holder);
        close_holders(&r);
    }
}


/* ---- Beside another thread of the handle ---- */

static void *look_whether_met(void *arg) {
    far_pool *pool = arg;
    return far_request_is_met(pool) ? pool : NULL;
}


static bool goes_home(far_store *s, const far_retired *item, void *ctx) {
    (void)ctx;
    far_store_send_home(s, item->class, item->addr);
    return false;
}


/* The thread that looks waits for the lock of a session, and what that one has retired becomes free meanwhile, in an
 * allocation: it is on its way home, and the request is not met before it is there. */
static void what_becomes_free_meanwhile_is_waited_for(void **state) {
    (void)state;
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
    far_addr foreign = far_block_base(&pool->geometry, (far_block_id){0, (uint32_t)pool->geometry.node[0].blocks - 1});
    assert_false(far_is_own(s, foreign));
    assert_true(far_request_is_met(pool));

    far_mutex_lock(&m->lock);
    pthread_mutex_lock(&s->lock);
    far_class *class = far_class_get(s, 0, 0, 64, false);
    s->heard_epoch = pool->epochs.known;
    pthread_mutex_unlock(&s->lock);
    far_queue_put(m, (far_retired){foreign, class, s->heard_epoch, s->heard_epoch + 4});
    assert_int_equal(pthread_create(&looker, NULL, look_whether_met, pool), 0);
    while (atomic_load(&m->lock.word) != FAR_MUTEX_WAITED_FOR)
        sched_yield();
    pthread_mutex_lock(&s->lock);
    far_memory_visit(s, m, &(far_visit){.retired = goes_home});
    pthread_mutex_unlock(&s->lock);
    far_mutex_unlock(&m->lock);
    assert_int_equal(pthread_join(looker, &met), 0);
    assert_null(met);

    free(s->leaving); /* there is no such object */
    s->leaving = NULL;
    s->leaving_count = 0;
    s->leaving_bytes = 0;
    assert_true(far_request_is_met(pool));
    far_session_close(session);
    far_pool_close(pool);
}


/* ---- Waiting ---- */

static int ask_and_wait(far_task *t, void *arg) {
    far_request made;
    (void)arg;
    int err = far_request_change(t, far_request_only, NULL, &made);
    atomic_store_explicit(&far_task_pool(t)->epochs.requests, 0, memory_order_relaxed);
    return err < 0 ? err : far_request_wait(t, made.number, FAR_TIME_NEVER);
}


static void ask_and_wait_main(void *arg) {
    actor *a = arg;
    a->result = call(a, ask_and_wait, NULL);
}


/* The move of the epoch with which it would be heard came too soon: it was another's, and counted for the one that was
 * asked for. Who waits asks for one more, long before the others sleep. */
static void a_request_is_heard_although_the_epoch_moved_before_it(void **state) {
    (void)state;
    rig r;
    open_answers(&r, 13, 2, 0);
    actor *asker = &r.actors[0], *other = &r.actors[1];
    put_now(asker, "first", 1);
    put_now(other, "second", 1);
    start(asker, "asker", ask_and_wait_main);
    far_sim_run_for(r.world, 40 * far_tick(asker->pool->fabric));
    assert_true(far_epoch_is_awake(other->pool));
    assert_int_equal(asker->result, 0);
    run_all(&r);
    close_rig(&r);
}


static void wait_epochs_main(void *arg) {
    actor *a = arg;
    a->result = far_session_call(a->other, FAR_STATS_OTHER, true, wait_and_tick, &(unsigned){20});
}


/* Who made it may have died. */
static void a_request_is_answered_although_nobody_waits(void **state) {
    (void)state;
    rig r;
    far_addr objects[FOREIGN];
    open_answers(&r, 9, 2, 0);
    actor *owner = &r.actors[0], *other = &r.actors[1];
    retire_foreign(&r, owner, other, objects);
    uint32_t number = ask(owner, false);
    far_sim_sleep(r.world, 50000000);
    assert_true(has_answered(&r, other, number));
    assert_false(far_epoch_is_awake(other->pool));
    close_holders(&r);
}


/* They are on their way home; meanwhile another session of the handle drives its epochs. */
static void answer_waits_for_faas(void **state) {
    (void)state;
    rig r;
    far_addr objects[FOREIGN];
    open_answers(&r, 3, 2, BY_HAND(1));
    actor *owner = &r.actors[0], *other = &r.actors[1], waiter;
    assert_int_equal(far_session_open(other->pool, &other->other), 0);
    waiter = *other;
    retire_foreign(&r, owner, other, objects);
    uint32_t number = ask(owner, false);
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
    assert_false(has_answered(&r, other, number));
    far_sim_release(hold);
    far_sim_run_for(r.world, 20000000);
    assert_true(has_answered(&r, other, number));
    other->stop = true;
    run_all(&r);
    assert_int_equal(waiter.result, 0);
    close_holders(&r);
}


/* Free objects of others in its lists leave at once; what it frees or what becomes free later goes home too. */
static void walk_hands_out_nothing_foreign(void **state) {
    (void)state;
    rig r;
    far_addr objects[FOREIGN];
    open_answers(&r, 4, 2, BY_HAND(1));
    actor *owner = &r.actors[0], *other = &r.actors[1];
    retire_foreign(&r, owner, other, objects);
    for (unsigned i = 0; i < 12; i++)
        poll_once(&r, other);
    assert_true(other->pool->store->foreign_bytes > 0);
    put_now(other, "g", 300); /* some are in its session's hand */
    unsigned home = count_home(&r, owner, objects);
    assert_true(home < FOREIGN - 10);

    uint32_t number = ask(owner, true);
    poll_until_answered(&r, other, number);
    for (unsigned i = 0; i < FOREIGN; i++)
        assert_true(is_home(&r, owner, objects[i]) || is_linked(&r, owner, objects[i]));

    put_now(owner, "h", 300);
    hold_blocks(owner, true);
    far_addr late = bucket_of(&r, owner, "h");
    put_now(other, "h", 300); /* retired during the walk */
    for (unsigned i = 0; i < 12; i++)
        poll_once(&r, other);
    assert_true(is_home(&r, owner, late));
    assert_int_equal(other->pool->store->foreign_bytes, 0);
    for (unsigned i = 0; i < 100; i++) {
        char key[8];
        snprintf(key, sizeof(key), "i%u", i);
        put_now(other, key, 300);
        assert_true(far_is_own(other->pool->store, bucket_of(&r, other, key)));
    }
    poll_until_asleep(other);
    close_holders(&r);
}


/* Nobody waits for a handle that sleeps: so it holds nothing of others. */
static void sleeper_gave_home(void **state) {
    (void)state;
    rig r;
    far_addr objects[FOREIGN];
    open_answers(&r, 5, 2, BY_HAND(1));
    actor *owner = &r.actors[0], *other = &r.actors[1];
    retire_foreign(&r, owner, other, objects);
    for (unsigned i = 0; i < 12; i++)
        poll_once(&r, other);
    assert_true(other->pool->store->foreign_bytes > 0);
    put_now(other, "g", 300);
    while (far_epoch_is_awake(other->pool)) {
        assert_int_equal(far_pool_poll(other->pool), 0);
        far_sim_sleep(r.world, 100000);
    }
    assert_int_equal(client_now(&r, other).pin, 0);
    for (unsigned i = 0; i < FOREIGN; i++)
        assert_true(is_home(&r, owner, objects[i]) || is_linked(&r, owner, objects[i]));
    close_holders(&r);
}


/* The request is made after the sleeper was looked at; it wakes, and hears of it before its first pin. */
static void waker_between_number_and_first_pin(void **state) {
    (void)state;
    rig r;
    open_answers(&r, 6, 2, BY_HAND(1));
    actor *owner = &r.actors[0], *sleeper = &r.actors[1];
    put_now(sleeper, "a", 300);
    poll_until_asleep(sleeper);
    uint32_t number = ask(owner, true);
    assert_true(has_answered(&r, sleeper, number));
    assert_int_not_equal(sleeper->pool->store->heard, number);
    start(sleeper, "waker", hold_main);
    stop_at_point(sleeper, "test:pinned");
    assert_int_equal(sleeper->pool->store->heard, number);
    assert_true(sleeper->pool->store->walk && far_is_unsettled(sleeper->pool->store));
    assert_true(client_now(&r, sleeper).pin != 0);
    finish(sleeper);
    poll_until_asleep(sleeper);
    close_holders(&r);
}


/* An owner takes the bits of objects that came home: it hands them out after that has taken effect, or a bit that is
 * brought home again would meet the old one and carry. */
static void bit_taken_is_waited_for(void **state) {
    (void)state;
    rig r;
    far_addr objects[FOREIGN];
    open_answers(&r, 7, 2, 0);
    actor *owner = &r.actors[0], *other = &r.actors[1];
    retire_foreign(&r, owner, other, objects);
    uint32_t number = ask(owner, false);
    let_epochs_pass(&r, owner);
    assert_true(has_answered(&r, other, number));
    assert_int_equal(count_home(&r, owner, objects), FOREIGN);
    far_addr first = bit_word(owner, objects[0]);
    start_putting(owner, 200, 300); /* one key: each put needs another object */
    far_sim_hold *hold =
        far_sim_hold_effect(owner->client, (far_sim_match){.kind = FAR_SIM_CAS, .from = first, .to = first + 8});
    while (!far_sim_reached(hold) && !far_sim_ended(owner->client))
        far_sim_run_client(owner->client);
    assert_true(far_sim_reached(hold));
    unsigned before = owner->puts;
    far_sim_run_for(r.world, 10000000);
    assert_int_equal(owner->puts, before);
    far_sim_release(hold);
    run_all(&r);
    assert_int_equal(owner->puts, 200);
    assert_nothing_lost(&r, owner);
    close_holders(&r);
}


/* A handle that stands still awake holds up who waits for answers, and nobody else; when it goes on it answers. */
static void stopped_awake_goes_on(void **state) {
    (void)state;
    rig r;
    open_answers(&r, 8, 3, BY_HAND(1));
    actor *a = &r.actors[0], *stopped = &r.actors[1], *sweeper = &r.actors[2];
    work_now(stopped, 40);
    work_now(a, 40);
    assert_int_equal(call(a, leak, a), 0);
    start_sweep(sweeper);
    far_sim_run_for(r.world, 100000000);
    assert_false(far_sim_ended(sweeper->client));
    work_now(a, 100); /* finds memory, and is not held up */
    for (unsigned i = 0; i < 2000 && !far_sim_ended(sweeper->client); i++) {
        assert_int_equal(far_pool_poll(stopped->pool), 0);
        far_sim_run_for(r.world, 100000);
    }
    assert_true(far_sim_ended(sweeper->client));
    assert_int_equal(sweeper->result, 0);
    assert_true(sweeper->swept.leaked_bytes >= 3000);
    assert_keys(a, stopped);
    work_now(stopped, 40);
    assert_keys(a, stopped);
    poll_until_asleep(stopped);
    assert_nothing_lost(&r, a);
    close_holders(&r);
}


int main(int argc, char **argv) {
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answer_waits_for_old_pins),
        cmocka_unit_test(a_new_handle_is_waited_for_at_any_number),
        cmocka_unit_test(answer_waits_for_lost_sessions),
        cmocka_unit_test(answer_waits_for_retired),
        cmocka_unit_test(own_retired_objects_hold_up_no_answer),
        cmocka_unit_test(what_becomes_free_meanwhile_is_waited_for),
        cmocka_unit_test(a_request_is_heard_although_the_epoch_moved_before_it),
        cmocka_unit_test(answer_waits_for_faas),
        cmocka_unit_test(a_request_is_answered_although_nobody_waits),
        cmocka_unit_test(walk_hands_out_nothing_foreign),
        cmocka_unit_test(sleeper_gave_home),
        cmocka_unit_test(waker_between_number_and_first_pin),
        cmocka_unit_test(bit_taken_is_waited_for),
        cmocka_unit_test(stopped_awake_goes_on),
    };
    return cmocka_run_group_tests_name("request", tests, NULL, NULL);
}
