/* The sweep, and what it finds, cut off anywhere; and some of its races by name. */
#include "pool_rig.h"


/* The client of actor 0 dies at its n-th verb, for all n (in steps); survivors go on, and a sweep finds everything. */
static void dies_everywhere(void (*action)(void *arg), void (*prepare)(rig *r), unsigned step, unsigned at_least) {
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


static void a_sweep_cut_off_anywhere_is_done_by_the_next(void **state) {
    (void)state;
    dies_everywhere(sweep_main, prepare_leaks, 1, 50);
}


static void prepare_dead(rig *r) {
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


static void a_sweep_of_the_dead_cut_off_anywhere_is_done_by_the_next(void **state) {
    (void)state;
    dies_everywhere(sweep_main, prepare_dead, 1, 50);
}


static int alloc_and_free(far_task *t, void *arg) {
    actor *a = arg;
    far_object objects[40], run;
    int err = far_pin_take(t);
    for (unsigned i = 0; i < 40 && err == 0; i++)
        err = far_alloc(t, a->index, 0, 700 + 300 * (i % 4), FAR_NODE_ANY, i % 8 == 7 ? FAR_ALLOC_KEEP : FAR_ALLOC_ZERO,
                        &objects[i]);
    if (err == 0)
        err = far_alloc(t, a->index, 0, 150000, FAR_NODE_ANY, 0, &run);
    for (unsigned i = 0; i < 40 && err == 0; i++)
        far_free(t, a->index, 0, objects[i].addr, 700 + 300 * (i % 4));
    if (err == 0)
        far_free(t, a->index, 0, run.addr, 150000);
    far_pin_drop(t);
    for (unsigned i = 0; i < 5 && err == 0; i++) {
        err = far_memory_tick(t);
        if (err == 0)
            err = far_wait_epochs_until(t, 1, FAR_TIME_NEVER);
    }
    return err;
}


static void churn(void *arg) {
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


static void a_client_that_dies_anywhere_in_the_allocator_or_its_close_loses_nothing(void **state) {
    (void)state;
    dies_everywhere(churn, prepare_nothing, 1, 100);
}


/* Named interleavings. */

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


/* An object that is allocated and not yet linked when the sweep begins: the walk waits for the operation. */
static void a_sweep_waits_for_what_is_about_to_be_linked(void **state) {
    (void)state;
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


/* An object that is unlinked during the walk goes to the pool at once, but a reader holds it: the release waits for the
 * reader. */
static void what_is_given_back_during_a_sweep_is_not_reused_before_its_time(void **state) {
    (void)state;
    rig r;
    open_rig(&r, 7, 3, 0);
    actor *reader = &r.actors[0], *writer = &r.actors[1], *sweeper = &r.actors[2];
    writer->versions[7] = 1;
    assert_int_equal(put_key(writer, 7, 1), 0);
    start(sweeper, "sweeper", sweep_main);
    stop_at_point(sweeper, "sweep:walk");
    start(reader, "reader", get_one);
    far_sim_stop_before(
        reader->client,
        (far_sim_match){.kind = FAR_SIM_READ, .nth = 2, .label = "get"}); /* it has the bucket's address */
    assert_int_equal(far_sim_run_client(reader->client), FAR_SIM_STOPPED);
    start(writer, "writer", put_one);
    assert_int_equal(far_sim_run_client(writer->client), FAR_SIM_ENDED);
    assert_int_equal(writer->result, 0);
    far_sim_resume(sweeper->client);
    far_sim_run_for(r.world, 100000000);
    assert_false(far_sim_ended(sweeper->client));
    writer->steps = 50; /* looks for memory everywhere */
    work(writer);
    assert_int_equal(writer->result, 0);
    far_sim_resume(reader->client);
    run_all(&r);
    assert_int_equal(reader->result, 0);
    assert_int_equal(sweeper->result, 0);
    assert_keys(reader, writer);
    assert_nothing_lost(&r, reader);
    close_rig(&r);
}


/* 1: it got the object that others may still hold. */
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


static void alloc_and_tell(void *arg) {
    actor *a = arg;
    a->result = far_session_call(a->session, FAR_STATS_OTHER, true, alloc_many, a);
}


/* The owner of the block holds an old pin, and has not heard of the sweep; another unlinks an object there while the
 * sweep asks for it: it is not home, and not handed out, before that pin has ended. */
static void what_is_retired_in_the_block_of_one_who_has_not_heard_is_not_home_early(void **state) {
    (void)state;
    rig r;
    open_rig(&r, 8, 3, BY_HAND(0)); /* nobody ticks for the owner */
    actor *owner = &r.actors[0], *other = &r.actors[1], *sweeper = &r.actors[2];
    owner->size = other->size = 512;
    assert_int_equal(call(owner, alloc_object, owner), 0);
    start(owner, "owner", alloc_and_tell);
    stop_at_point(owner, "test:pinned");
    start_sweep(sweeper);
    far_sim_run_for(r.world, 20000000);
    assert_false(far_sim_ended(sweeper->client));
    other->object = owner->object;
    assert_int_equal(call(other, retire_object, other), 0);
    far_sim_sleep(r.world, 5000000);
    assert_int_equal(other->pool->store->heard, request_now(&r).number);
    assert_int_not_equal(owner->pool->store->heard, request_now(&r).number);
    assert_false(is_home(&r, owner, owner->object));
    finish(owner);
    assert_int_equal(owner->result, 0);
    for (unsigned i = 0; i < 1000 && !far_sim_ended(sweeper->client); i++) {
        far_pool_poll(owner->pool);
        far_sim_run_for(r.world, 1000000);
    }
    assert_true(far_sim_ended(sweeper->client));
    assert_int_equal(sweeper->result, 0);
    leave(owner); /* one that began to sweep and is polled no more would be in the way of others */
    assert_nothing_lost(&r, sweeper);
    close_rig(&r);
}


int main(int argc, char **argv) {
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sweep_waits_for_what_is_about_to_be_linked),
        cmocka_unit_test(what_is_given_back_during_a_sweep_is_not_reused_before_its_time),
        cmocka_unit_test(what_is_retired_in_the_block_of_one_who_has_not_heard_is_not_home_early),
        cmocka_unit_test(a_sweep_cut_off_anywhere_is_done_by_the_next),
        cmocka_unit_test(a_sweep_of_the_dead_cut_off_anywhere_is_done_by_the_next),
        cmocka_unit_test(a_client_that_dies_anywhere_in_the_allocator_or_its_close_loses_nothing),
    };
    return cmocka_run_group_tests_name("sweep_cut", tests, NULL, NULL);
}
