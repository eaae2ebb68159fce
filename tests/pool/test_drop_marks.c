/* Drop marks that are met by others: of drops that go on, that are stopped, and of none. */
#include "open_table_rig.h"
#include "pool/owner.h"


/* A drop that waits for a walk, in another client, stopped at that point; and the walk. */
typedef struct waiting_drop {
    story s, other; /* other.next: walks, in a handle that the opener is not of */
    walking walk;
    far_sim_client *drop;
} waiting_drop;


static void stop_a_drop(waiting_drop *d, const char *point) {
    set_up(&d->s, 1);
    d->other = d->s;
    assert_int_equal(far_session_open(d->s.other, &d->other.next), 0);
    d->walk = walk_x(&d->other);
    d->drop = far_sim_start(d->s.other->fabric, "dropper", drop_x_elsewhere, &d->other);
    far_sim_stop_before(d->drop, (far_sim_match){.point = point});
    assert_int_equal(far_sim_run_client(d->drop), FAR_SIM_STOPPED);
    d->s.client = far_sim_start(d->s.pool->fabric, "opener", open_x, &d->s);
}


static void end_the_walk(waiting_drop *d) {
    assert_int_equal(far_session_call(d->other.next, FAR_STATS_OTHER, true, end_walk, &d->walk), 0);
    far_session_close(d->other.next);
}


static void end_the_drop(waiting_drop *d, int result) {
    far_sim_resume(d->drop);
    assert_int_equal(far_sim_run_client(d->drop), FAR_SIM_ENDED);
    assert_int_equal(d->other.result, result);
}


/* It has no pin: nobody can tell it from a stray mark that names a client which lives. It loses its mark, and sees that. */
static void a_stopped_drop_that_waits_for_a_walk_gives_way(void **state) {
    (void)state;
    waiting_drop d;
    stop_a_drop(&d, "catalog:wait_for_walks");
    assert_int_equal(far_sim_run_client(d.s.client), FAR_SIM_ENDED);
    assert_int_equal(d.s.result, 0);
    end_the_walk(&d);
    end_the_drop(&d, FAR_ERR_BUSY);
    far_index_close(d.s.index);
    assert_int_equal(far_index_drop(d.s.dropper, "x"), 0);
    tear_down(&d.s);
}


/* The opener is about to take the mark away, which another one has replaced; or it has done so, and the drop marks anew. */
static void a_drop_that_goes_on_is_marked(void **state) {
    static const char *const opener_is[] = {"catalog:clear_mark", "catalog:enter"};
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        waiting_drop d;
        stop_a_drop(&d, "catalog:wait_for_walks");
        far_sim_stop_before(d.s.client, (far_sim_match){.point = opener_is[i]});
        assert_int_equal(far_sim_run_client(d.s.client), FAR_SIM_STOPPED);
        end_the_walk(&d);
        far_sim_stop_before(d.drop, (far_sim_match){.point = "catalog:unlist"}); /* has seen no opener */
        far_sim_resume(d.drop);
        assert_int_equal(far_sim_run_client(d.drop), FAR_SIM_STOPPED);
        far_sim_resume(d.s.client);
        far_sim_run_for(d.s.world, 2000000);
        assert_int_equal(d.s.result, 77);
        end_the_drop(&d, 0);
        assert_int_equal(far_sim_run_client(d.s.client), FAR_SIM_ENDED);
        assert_int_equal(d.s.result, FAR_ERR_NOT_FOUND);
        tear_down(&d.s);
    }
}


/* With a pin it is waited for, but not for ever: the error names the client. */
static void an_opener_says_who_is_stopped_in_a_drop(void **state) {
    (void)state;
    waiting_drop d;
    char who[32];
    stop_a_drop(&d, "catalog:marked");
    assert_int_equal(far_sim_run_client(d.s.client), FAR_SIM_ENDED);
    assert_int_equal(d.s.result, FAR_ERR_BUSY);
    snprintf(who, sizeof(who), "dropped by client %u", d.s.dropper->id);
    assert_non_null(strstr(d.s.words, who));
    end_the_walk(&d);
    end_the_drop(&d, 0);
    tear_down(&d.s);
}


/* ---- While a third client holds up the epoch ---- */

typedef struct third {
    far_pool *pool;
    far_session *session;
    far_index *index;
    far_sim_client *client;
} third;


static void put_y(void *arg) {
    third *c = arg;
    assert_int_equal(far_put(c->session, c->index, "k", 1, "v", 1), 0);
}


static void stop_third(story *s, third *c) {
    world_join(s->uri, NULL, &c->pool, &c->session);
    assert_int_equal(far_index_open(c->session, "y", &c->index), 0);
    c->client = far_sim_start(c->pool->fabric, "third", put_y, c);
    far_sim_stop_before(c->client, (far_sim_match){.point = "toy:publish"});
    assert_int_equal(far_sim_run_client(c->client), FAR_SIM_STOPPED);
}


static void end_third(third *c) {
    world_finish(c->client);
    far_index_close(c->index);
    far_session_close(c->session);
    far_pool_close(c->pool);
}


/* The opener waits for epochs, which do not come; the drop goes on, and ends. Fails when the mark is not looked at again:
 * the dropper is said not to get on. */
static void a_drop_that_ends_is_not_blamed_for_the_epoch(void **state) {
    (void)state;
    story s, other;
    third c;
    set_up(&s, 1);
    stop_third(&s, &c);
    other = s;
    far_sim_client *drop = far_sim_start(s.other->fabric, "dropper", drop_x_elsewhere, &other);
    far_sim_stop_before(drop, (far_sim_match){.point = "catalog:marked"});
    assert_int_equal(far_sim_run_client(drop), FAR_SIM_STOPPED);
    s.client = far_sim_start(s.pool->fabric, "opener", open_x, &s);
    far_sim_run_for(s.world, 5000 * far_tick(s.pool->fabric));
    assert_int_equal(s.result, 77);
    world_finish(drop);
    assert_int_equal(other.result, 0);
    assert_int_equal(far_sim_run_client(s.client), FAR_SIM_ENDED);
    assert_int_equal(s.result, FAR_ERR_NOT_FOUND);
    end_third(&c);
    tear_down(&s);
}


/* A mark that names a client which lives and drops nothing: epochs would prove that. The one who holds them up is told, and
 * not the one who is well; when they go on the mark is no reason any more. */
static void who_holds_up_the_epoch_is_told_and_not_who_is_marked(void **state) {
    (void)state;
    story s;
    third c;
    char who[32];
    far_index *x;
    set_up(&s, 1);
    assert_int_equal(far_index_open(s.dropper, "x", &x), 0);
    uint64_t *mark = world_bytes(s.world, x->record + offsetof(far_index_record, mark));
    far_index_close(x);
    stop_third(&s, &c);
    *mark = far_owner_pack(s.dropper->id, s.dropper->generation, 0);
    s.client = far_sim_start(s.pool->fabric, "opener", open_x, &s);
    assert_int_equal(far_sim_run_client(s.client), FAR_SIM_ENDED);
    assert_int_equal(s.result, FAR_ERR_BUSY);
    print_message("%s\n", s.words);
    snprintf(who, sizeof(who), "waits for client %u,", c.pool->team.own->id);
    assert_non_null(strstr(s.words, who));
    assert_null(strstr(s.words, "dropped by"));
    end_third(&c);
    open_x(&s);
    assert_int_equal(s.result, 0);
    far_index_close(s.index);
    tear_down(&s);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stopped_drop_that_waits_for_a_walk_gives_way),
        cmocka_unit_test(a_drop_that_goes_on_is_marked),
        cmocka_unit_test(an_opener_says_who_is_stopped_in_a_drop),
        cmocka_unit_test(a_drop_that_ends_is_not_blamed_for_the_epoch),
        cmocka_unit_test(who_holds_up_the_epoch_is_told_and_not_who_is_marked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
