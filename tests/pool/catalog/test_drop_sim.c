/* Tests of the races of a drop with other clients in the simulator. In each test a handle has the index x open while
 * another one drops it. The memory checker of the simulator reports every access to memory that was freed too early. */
#include "pool_rig.h"
#include "test.h"

enum { DROP_VERBS_MAX = 200 };


/* Opens x in several handles. The first one owns all memory of x. */
static void open_x(rig *r, unsigned seed, unsigned handles, unsigned by_hand, unsigned slots) {
    open_rig_with(r, seed, handles, by_hand, "size=16M", slots);
    put_now(&r->actors[0], "key", 300);
}


static void assert_dropped(actor *a, int result) {
    assert_int_equal(result, FAR_ERR_NOT_FOUND);
    assert_int_equal(far_put(a->session, a->index, "k", 1, "v", 1), FAR_ERR_NOT_FOUND);
    assert_non_null(strstr(far_last_error(), "'x' was dropped"));
}


static int get_key(actor *a) {
    char value[400];
    return far_get(a->session, a->index, "key", 3, value, sizeof(value), NULL);
}


static void drop_now(actor *a) {
    assert_int_equal(far_index_drop(a->session, "x"), 0);
}


/* Waits until the memory of x is free. No handle needs to close x for that. */
static void await_freed(rig *r, uint32_t uid) {
    for (unsigned i = 0; i < 1000 && count_of(r, &r->actors[0], uid) > 0; i++)
        poll_all(r, 1000000);
    assert_int_equal(count_of(r, &r->actors[0], uid), 0);
}


static void assert_not_freed(rig *r, uint32_t uid, unsigned before) {
    far_sim_sleep(r->world, 200000000);
    assert_int_equal(count_of(r, &r->actors[0], uid), before);
}


static void close_without_leak(rig *r) {
    wait_for_sweeps(r);
    world_assert_nothing_leaked_after_collection(r->actors[0].session);
    close_rig(r);
}


static void put_main(void *arg) {
    actor *a = arg;
    a->result = far_put(a->session, a->index, "k", 1, "value", 5);
}


/* 1. Handle A runs a put and stops before it links its object. 2. B drops x; nothing of x is freed while A's put holds
 *    its pin. 3. A completes the put. 4. A finds no index afterwards, and the memory of x is freed. */
TEST(an_operation_that_is_running_completes) {
    rig r;
    open_x(&r, 1, 3, 0, 16);
    actor *a = &r.actors[1], *b = &r.actors[2];
    uint32_t uid = a->index->uid;
    start(a, "put", put_main);
    stop_at_point(a, "toy:publish");
    drop_now(b);
    assert_not_freed(&r, uid, count_of(&r, a, uid));
    finish(a);
    assert_int_equal(a->result, 0);
    await_freed(&r, uid);
    assert_dropped(a, get_key(a));
    close_without_leak(&r);
}


/* Handle A is active, and its housekeeping does not run. 1. B drops x. 2. Operations that A begins now still find x, and
 * nothing of x is freed. 3. A's housekeeping runs: A observes the drop, and finds no index from then on. */
TEST(an_operation_that_begins_before_its_handle_observes_the_drop_completes) {
    rig r;
    open_x(&r, 2, 3, WITHOUT_HOUSEKEEPING(1), 16);
    actor *a = &r.actors[1], *b = &r.actors[2];
    uint32_t uid = a->index->uid;
    assert_true(far_epoch_is_active(a->pool));
    drop_now(b);
    assert_not_freed(&r, uid, count_of(&r, a, uid));
    assert_int_equal(get_key(a), 0);
    await_freed(&r, uid);
    assert_dropped(a, get_key(a));
    close_without_leak(&r);
}


/* Handle A has x open and is quiescent. 1. B drops x, and the memory is freed without A. 2. The first operation of A
 * finds no index. Fails without far_catalog_observe in prepare_for_epoch. */
TEST(a_quiescent_handle_observes_the_drop_before_its_next_operation) {
    for (unsigned idle = 0; idle < 2; idle++) { /* the second time, the session was never used */
        rig r;
        open_x(&r, 3 + idle, 3, WITHOUT_HOUSEKEEPING(1), 16);
        actor *a = &r.actors[1], *b = &r.actors[2];
        uint32_t uid = a->index->uid;
        if (idle)
            assert_int_equal(far_session_open(a->pool, &a->other), 0);
        poll_until_quiescent(a);
        drop_now(b);
        for (unsigned i = 0; i < 1000 && count_of(&r, b, uid) > 0; i++)
            far_sim_sleep(r.world, 1000000); /* without poll_all, so A does nothing */
        assert_int_equal(count_of(&r, b, uid), 0);
        assert_false(far_epoch_is_active(a->pool));
        assert_int_equal(far_put(idle ? a->other : a->session, a->index, "k", 1, "v", 1), FAR_ERR_NOT_FOUND);
        assert_dropped(a, get_key(a));
        close_without_leak(&r);
    }
}


/* The index x has locks. 1. C holds the lock of a slot and stops. 2. A waits for the lock and renews its pin from time
 *    to time. 3. B drops x. 4. A's put ends while C is still stopped, because it gets no new pin. 5. C continues and
 *    allocates memory for x, which is freed too. Fails without the refusal in far_pin_take, or if far_slab_add does not
 *    cause another comparison with the catalog. */
TEST(an_operation_that_renews_its_pin_ends) {
    rig r;
    open_rig_with(&r, 5, 3, 0, "size=16M", 0);
    actor *a = &r.actors[0], *b = &r.actors[1], *c = &r.actors[2];
    assert_int_equal(far_index_create(b->session, "x", "toy", "slots=1,locks=on", &b->index), 0);
    assert_int_equal(far_index_open(a->session, "x", &a->index), 0);
    assert_int_equal(far_index_open(c->session, "x", &c->index), 0);
    uint32_t uid = b->index->uid;
    start(c, "holder", put_main);
    stop_at_point(c, "toy:locked");
    start(a, "waiter", put_main);
    far_sim_run_for(r.world, 1000000);
    assert_false(far_sim_ended(a->client));
    drop_now(b);
    far_sim_run_for(r.world, 100000000);
    assert_true(far_sim_ended(a->client));
    assert_dropped(a, a->result);
    finish(c);
    await_freed(&r, uid);
    close_without_leak(&r);
}


static far_sim_match read_of_slot(const actor *a, uint64_t slot) {
    far_addr addr = toy_slot_addr(toy_state_of(a->index), slot);
    return (far_sim_match){.kind = FAR_SIM_READ, .from = addr, .to = addr + 8};
}


/* The collector A has no index open. 1. A walks x and stops under a pin. 2. B drops x; nothing of x is freed. 3. A
 * continues: its walk of x ends with that pin, and the collection completes. 4. The memory of x is freed. Fails without
 * the refusal in far_pin_take: x is then freed while A reads its slots. */
TEST(a_walk_of_a_collection_ends) {
    rig r;
    open_x(&r, 6, 3, 0, 1024);
    actor *a = &r.actors[1], *b = &r.actors[2];
    uint32_t uid = a->index->uid;
    far_sim_match first = read_of_slot(a, 0);
    far_index_close(a->index);
    a->index = NULL;
    start_sweep(a);
    stop_at(a, first);
    unsigned before = count_of(&r, a, uid);
    drop_now(b);
    assert_not_freed(&r, uid, before);
    for (uint64_t slot = 256; slot < 1024 && !far_sim_ended(a->client); slot += 256) {
        far_sim_stop_before(a->client, read_of_slot(b, slot));
        far_sim_resume(a->client);
        if (far_sim_run_client(a->client) == FAR_SIM_STOPPED) /* another slice of the walk, with a new pin */
            assert_not_freed(&r, uid, before);
    }
    if (!far_sim_ended(a->client))
        finish(a);
    assert_int_equal(a->result, 0);
    await_freed(&r, uid);
    close_without_leak(&r);
}


/* Handle A's tick reads the global epoch, and its READ of the request is delayed. 1. B drops x and makes the request. 2.
 * The READ returns this request. So the handle must also observe the drop, because it acknowledges the request. 3. The
 * memory of x is freed. 4. A finds no index. Fails if read_superblock reads the catalog word before the request. */
TEST(a_handle_that_observes_the_request_observes_the_drop) {
    rig r;
    open_x(&r, 7, 2, WITHOUT_HOUSEKEEPING(1), 16);
    actor *a = &r.actors[1], *b = &r.actors[0]; /* B owns all memory of x, so there is only one request */
    uint32_t uid = a->index->uid, number = request_now(&r).number;
    uint64_t epoch = word_at(&r, FAR_SUPER_EPOCH);
    far_epoch_request(b->pool);
    for (unsigned i = 0; i < 100 && word_at(&r, FAR_SUPER_EPOCH) == epoch; i++)
        poll_all(&r, 1000000);
    while (far_dropped_is_due(a->pool)) /* A must not read the catalog for another reason below */
        poll_all(&r, 1000000);
    epoch = atomic_load(&a->pool->epochs.current);
    far_epoch_request(b->pool);
    for (unsigned i = 0; i < 100 && word_at(&r, FAR_SUPER_EPOCH) + FAR_EPOCH_FIRST <= epoch; i++)
        far_sim_sleep(r.world, 1000000);
    assert_int_equal(word_at(&r, FAR_SUPER_EPOCH) + FAR_EPOCH_FIRST, epoch + 1); /* A enters this epoch below */
    start(a, "poll", poll_main);
    far_sim_hold *hold = far_sim_hold_effect(
        a->client, (far_sim_match){.kind = FAR_SIM_READ, .from = FAR_SUPER_REQUEST, .to = FAR_SUPER_REQUEST + 8});
    assert_int_equal(far_sim_run_client(a->client), FAR_SIM_HELD);
    drop_now(b);
    for (unsigned i = 0; i < 100 && request_now(&r).number == number; i++)
        far_sim_sleep(r.world, 1000000);
    assert_int_not_equal(request_now(&r).number, number);
    number = request_now(&r).number;
    far_sim_release(hold);
    for (unsigned i = 0; i < 100000 && a->pool->store->handshake.observed != number; i++)
        far_sim_run_for(r.world, 1000);
    assert_int_equal(a->pool->store->handshake.observed, number);
    assert_true(far_index_is_dropped(a->index));
    for (unsigned i = 0; i < 1000 && (uint32_t)client_now(&r, a).answered != number; i++)
        far_sim_run_for(r.world, 10000);
    assert_int_equal(client_now(&r, a).answered, number);
    a->stop = true; /* A's housekeeping does not run any more, so A remains in this epoch */
    assert_int_equal(far_sim_run_client(a->client), FAR_SIM_ENDED);
    for (unsigned i = 0; i < 1000 && count_of(&r, b, uid) > 0; i++)
        far_sim_sleep(r.world, 1000000);
    assert_int_equal(count_of(&r, b, uid), 0);
    assert_dropped(a, get_key(a));
    close_without_leak(&r);
}


static void drop_main(void *arg) {
    actor *a = arg;
    a->result = far_index_drop(a->session, "x");
}


static void create_y_main(void *arg) {
    actor *a = arg;
    far_index *index;
    if ((a->result = far_index_create(a->session, "y", "toy", "slots=4", &index)) == 0)
        far_index_close(index);
}


/* 1. C creates y: it reads the catalog, which lists x, and stops. 2. A flags the entry of x and stops. 3. C publishes its
 *    list, with x. 4. B drops x from this list. 5. A continues and finds that x is not listed. Both clients have flagged
 *    an entry of x, but only one has dropped it. Fails without claim_drop: the record is freed twice. */
TEST(of_two_clients_that_unlist_an_index_one_drops_it) {
    rig r;
    open_x(&r, 8, 4, 0, 16);
    actor *a = &r.actors[1], *b = &r.actors[2], *c = &r.actors[3];
    uint32_t uid = a->index->uid;
    start(c, "creator", create_y_main);
    stop_at_point(c, "catalog:swap_word");
    start(a, "dropper", drop_main);
    stop_at_point(a, "catalog:entry_flagged");
    finish(c);
    assert_int_equal(c->result, 0);
    drop_now(b);
    finish(a);
    assert_int_equal(a->result, FAR_ERR_NOT_FOUND);
    await_freed(&r, uid);
    assert_dropped(c, get_key(c));
    close_without_leak(&r);
}


/* Runs a drop by handle A that fails at its nth verb. Handle B has x open. Returns false if the drop has fewer verbs. */
static bool fail_at(unsigned nth, uint32_t units, unsigned *listed, unsigned *dropped) {
    rig r;
    open_x(&r, 100 + nth, 3, 0, 16);
    actor *a = &r.actors[2], *b = &r.actors[1];
    uint32_t uid = b->index->uid;
    far_index *again = NULL;
    start(a, "dying", drop_main);
    far_sim_kill_at(a->client, (far_sim_match){.nth = nth}, units);
    assert_int_equal(far_sim_run(r.world), FAR_SIM_ENDED);
    bool died = far_sim_killed(a->pool->fabric);
    int found = far_index_open(b->session, "x", &again);
    far_index_close(again);
    if (found == 0) {
        ++*listed;
        assert_int_equal(get_key(b), 0);
        drop_now(b);
    } else {
        ++*dropped;
        assert_int_equal(found, FAR_ERR_NOT_FOUND);
    }
    await_freed(&r, uid);
    assert_dropped(b, get_key(b));
    close_without_leak(&r);
    return died;
}


/* A handle fails at every verb of a drop while another handle has x open. Afterwards x is listed and works, or is
 * dropped for all handles, and its memory is freed although it is open. */
TEST(a_dropper_that_fails_drops_the_index_for_all_or_not) {
    unsigned listed = 0, dropped = 0;
    for (unsigned whole = 0; whole < 2; whole++) {
        unsigned nth = 1;
        while (fail_at(nth, whole ? FAR_SIM_WHOLE : 0, &listed, &dropped))
            assert_true(++nth < DROP_VERBS_MAX);
        assert_true(nth > 5);
    }
    assert_true(listed > 0 && dropped > 0);
}


/* A session of handle A is lost in the middle of a put, and one of its verbs may still take effect. 1. B drops x. 2.
 * Nothing of x is freed until the session is fenced and the verb cannot take effect any more. */
TEST(memory_is_not_freed_before_a_lost_session_is_fenced) {
    rig r;
    open_x(&r, 9, 3, 0, 16);
    actor *a = &r.actors[1], *b = &r.actors[2];
    uint32_t uid = a->index->uid;
    assert_int_equal(far_session_open(a->pool, &a->other), 0);
    start(a, "lost", put_main);
    far_sim_hold *hold = far_sim_hold_effect(a->client, (far_sim_match){.kind = FAR_SIM_WRITE});
    assert_int_equal(far_sim_run_client(a->client), FAR_SIM_HELD);
    far_sim_lose(a->session->conn);
    assert_int_equal(far_sim_run_client(a->client), FAR_SIM_ENDED);
    drop_now(b);
    far_sim_sleep(r.world, 1000000);
    far_sim_release(hold);
    await_freed(&r, uid);
    assert_int_equal(far_put(a->other, a->index, "k", 1, "v", 1), FAR_ERR_NOT_FOUND);
    close_without_leak(&r);
}


static void open_main(void *arg) {
    actor *a = arg;
    a->result = far_index_open(a->session, "x", &a->index);
}


/* 1. A opens x: it reads the catalog and the record, and stops before it reads the root object. 2. B drops x, and A's
 *    handle observes the catalog, while x is not in its list yet. 3. A continues, and finds no index. The memory of x is
 *    not freed while A opens it. Fails without far_index_confirm_listed in open_new. */
TEST(an_opener_that_a_drop_overtakes_finds_nothing) {
    rig r;
    open_x(&r, 10, 3, 0, 16);
    actor *a = &r.actors[1], *b = &r.actors[2];
    uint32_t uid = a->index->uid;
    far_addr root = a->index->descriptor;
    far_index_close(a->index);
    a->index = NULL;
    start(a, "opener", open_main);
    stop_at(a, (far_sim_match){.kind = FAR_SIM_READ, .from = root, .to = root + 8});
    drop_now(b);
    assert_not_freed(&r, uid, count_of(&r, a, uid));
    finish(a);
    assert_int_equal(a->result, FAR_ERR_NOT_FOUND);
    assert_null(a->index);
    await_freed(&r, uid);
    close_without_leak(&r);
}
