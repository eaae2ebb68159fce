/* The leak sweep, and what it covers, cut off anywhere; and its races by name. */
#include "sweep_rig.h"


/* The client of actor 0 dies at its n-th verb, for all n (in steps); survivors go on, and a sweep finds everything. */
static void dies_everywhere(void (*action)(void *arg), void (*prepare)(stage *s), unsigned step, unsigned at_least) {
    static const uint32_t units[] = {0, 1, FAR_SIM_WHOLE};
    unsigned deaths = 0;
    for (unsigned nth = 1;; nth += step) {
        assert_true(nth < VERBS_MAX);
        stage s;
        set_up(&s, nth, "none");
        actor *a = &s.actors[0], *b = &s.actors[1], *c = &s.actors[2];
        prepare(&s);
        start(a, "dying", action);
        far_sim_kill_at(a->client, (far_sim_match){.nth = nth}, units[nth / step % 3]);
        run_all(&s);
        bool died = far_sim_killed(a->pool->fabric);
        if (!died)
            assert_int_equal(a->result, 0);
        b->steps = 40;
        work(b);
        assert_int_equal(b->result, 0);
        assert_nothing_lost(&s, c);
        assert_keys(c, b);
        work(b);
        assert_int_equal(b->result, 0);
        assert_keys(c, b);
        assert_nothing_lost(&s, b);
        deaths += died;
        tear_down(&s);
        if (!died)
            break;
    }
    assert_true(deaths >= at_least);
}


static void prepare_leaks(stage *s) {
    actor *b = &s->actors[1], *c = &s->actors[2];
    c->steps = 60;
    work(c);
    b->steps = 30;
    work(b);
    assert_int_equal(far_session_call(c->session, FAR_STATS_OTHER, true, leak, c), 0);
    s->actors[0].all = s->actors[0].repair = true;
}


static void a_sweep_cut_off_anywhere_is_done_by_the_next(void **state) {
    (void)state;
    dies_everywhere(sweep_and_tell, prepare_leaks, 1, 100);
}


static void prepare_dead(stage *s) {
    actor *c = &s->actors[2], *b = &s->actors[1];
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
    assert_int_equal(far_sim_declare_dead(s->world, extra->id, extra->generation), 1);
    far_session_close(extra);
    s->actors[0].all = false;
    s->actors[0].repair = true;
}


static void a_sweep_of_the_dead_cut_off_anywhere_is_done_by_the_next(void **state) {
    (void)state;
    dies_everywhere(sweep_and_tell, prepare_dead, 1, 50);
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
            err = far_wait_epochs(t, 1);
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
    a->index = NULL;
    a->session = NULL;
}


static void prepare_nothing(stage *s) {
    (void)s;
}


static void a_client_that_dies_anywhere_in_the_allocator_loses_nothing(void **state) {
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
    stage s;
    set_up(&s, 6, "none");
    actor *a = &s.actors[0], *b = &s.actors[1];
    a->steps = 30;
    work(a);
    start(a, "writer", put_one);
    far_sim_stop_before(a->client, (far_sim_match){.point = "toy:publish"});
    assert_int_equal(far_sim_run_client(a->client), FAR_SIM_STOPPED);
    b->all = b->repair = true;
    start(b, "sweeper", sweep_and_tell);
    far_sim_run_for(s.world, 100000000);
    assert_false(far_sim_ended(b->client));
    far_sim_resume(a->client);
    run_all(&s);
    assert_int_equal(a->result, 0);
    assert_int_equal(b->result, 0);
    assert_int_equal(b->swept.leaked_bytes, 0);
    assert_keys(b, a);
    b->steps = 200;
    work(b);
    assert_keys(b, a);
    assert_nothing_lost(&s, b);
    tear_down(&s);
}


/* An object that is unlinked during the walk goes to the pool at once, but a reader holds it: the release waits for the
 * reader. */
static void what_is_given_back_during_a_sweep_is_not_reused_before_its_time(void **state) {
    (void)state;
    stage s;
    set_up(&s, 7, "none");
    actor *reader = &s.actors[0], *writer = &s.actors[1], *sweeper = &s.actors[2];
    writer->versions[7] = 1;
    assert_int_equal(put_key(writer, 7, 1), 0);
    sweeper->all = sweeper->repair = true;
    start(sweeper, "sweeper", sweep_and_tell);
    far_sim_stop_before(sweeper->client,
                        (far_sim_match){.kind = FAR_SIM_READ, .from = FAR_SUPER_CATALOG, .to = FAR_SUPER_CATALOG + 8});
    assert_int_equal(far_sim_run_client(sweeper->client), FAR_SIM_STOPPED); /* in the walk */
    start(reader, "reader", get_one);
    far_sim_stop_before(
        reader->client,
        (far_sim_match){.kind = FAR_SIM_READ, .nth = 2, .label = "get"}); /* it has the bucket's address */
    assert_int_equal(far_sim_run_client(reader->client), FAR_SIM_STOPPED);
    start(writer, "writer", put_one);
    assert_int_equal(far_sim_run_client(writer->client), FAR_SIM_ENDED);
    assert_int_equal(writer->result, 0);
    far_sim_resume(sweeper->client);
    far_sim_run_for(s.world, 100000000);
    assert_false(far_sim_ended(sweeper->client));
    writer->steps = 50; /* looks for memory everywhere */
    work(writer);
    assert_int_equal(writer->result, 0);
    far_sim_resume(reader->client);
    run_all(&s);
    assert_int_equal(reader->result, 0);
    assert_int_equal(sweeper->result, 0);
    assert_keys(reader, writer);
    assert_nothing_lost(&s, reader);
    tear_down(&s);
}


static int alloc_object(far_task *t, void *arg) {
    actor *a = arg;
    far_object object;
    int err = far_pin_take(t);
    if (err == 0)
        err = far_alloc(t, NULL, 5, 512, 0, FAR_ALLOC_ON_NODE, &object);
    a->object = object.addr;
    far_pin_drop(t);
    return err;
}


static int retire_object(far_task *t, void *arg) {
    actor *a = arg;
    int err = far_pin_take(t);
    far_retire(t, NULL, 5, a->object, 512);
    far_pin_drop(t);
    return err;
}


/* 1: it got the object that others may still hold. */
static int alloc_many(far_task *t, void *arg) {
    actor *a = arg;
    far_object object;
    int err = far_pin_take(t);
    far_point(t, "test:pinned");
    for (unsigned i = 0; i < 300 && err == 0; i++) {
        err = far_alloc(t, NULL, 5, 512, 0, FAR_ALLOC_ON_NODE, &object);
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


/* The owner of the block has not heard of the sweep when others already give back there what they have just retired. */
static void an_owner_that_has_not_heard_of_the_sweep_takes_nothing_early(void **state) {
    (void)state;
    stage s;
    set_up_with(&s, 8, "none", 1); /* nobody ticks for the owner */
    actor *owner = &s.actors[0], *other = &s.actors[1], *sweeper = &s.actors[2];
    assert_int_equal(far_session_call(owner->session, FAR_STATS_OTHER, true, alloc_object, owner), 0);
    start(owner, "owner", alloc_and_tell);
    far_sim_stop_before(owner->client, (far_sim_match){.point = "test:pinned"});
    assert_int_equal(far_sim_run_client(owner->client), FAR_SIM_STOPPED);
    sweeper->all = sweeper->repair = true;
    start(sweeper, "sweeper", sweep_and_tell);
    far_sim_run_for(s.world, 20000000);
    assert_false(far_sim_ended(sweeper->client));
    other->object = owner->object;
    assert_int_equal(far_session_call(other->session, FAR_STATS_OTHER, true, retire_object, other), 0);
    far_sim_sleep(s.world, 5000000); /* it is given back in the background */
    assert_int_equal(((far_quarantine *)other->pool->quarantine)->phase, FAR_SWEEP_QUARANTINE);
    assert_int_equal(((far_quarantine *)owner->pool->quarantine)->phase, FAR_SWEEP_NONE);
    far_sim_resume(owner->client);
    assert_int_equal(far_sim_run_client(owner->client), FAR_SIM_ENDED);
    assert_int_equal(owner->result, 0);
    for (unsigned i = 0; i < 1000 && !far_sim_ended(sweeper->client); i++) {
        far_pool_poll(owner->pool);
        far_sim_run_for(s.world, 1000000);
    }
    assert_true(far_sim_ended(sweeper->client));
    assert_int_equal(sweeper->result, 0);
    assert_nothing_lost(&s, owner);
    tear_down(&s);
}


int main(int argc, char **argv) {
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sweep_waits_for_what_is_about_to_be_linked),
        cmocka_unit_test(what_is_given_back_during_a_sweep_is_not_reused_before_its_time),
        cmocka_unit_test(an_owner_that_has_not_heard_of_the_sweep_takes_nothing_early),
        cmocka_unit_test(a_sweep_cut_off_anywhere_is_done_by_the_next),
        cmocka_unit_test(a_sweep_of_the_dead_cut_off_anywhere_is_done_by_the_next),
        cmocka_unit_test(a_client_that_dies_anywhere_in_the_allocator_loses_nothing),
    };
    return cmocka_run_group_tests_name("sweep_cut", tests, NULL, NULL);
}
