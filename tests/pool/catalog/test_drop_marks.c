/* Tests of far_catalog_resolve_mark, which decides what a client does when it reads a drop mark. Clients of the tests
 * read marks of a drop that continues, of a drop that is stopped, and marks without a drop. */
#include "open_table_rig.h"
#include "test.h"
#include "pool/format/owner.h"


/* A drop of x in the handle `other`, stopped at a named point while it waits for an index walk, and an open of x in the
 * handle `pool`. */
typedef struct waiting_drop {
    scenario s, other; /* `other.next` is a session of the dropping handle; it runs the walk */
    open_walk walk;
    far_sim_client *drop;
} waiting_drop;


static void stop_a_drop(waiting_drop *d, const char *point) {
    set_up(&d->s, 1);
    d->other = d->s;
    assert_int_equal(far_session_open(d->s.other, &d->other.next), 0);
    d->walk = open_x_as_walk(&d->other);
    d->drop = far_sim_start(d->s.other->fabric, "dropper", drop_x_in_dropper, &d->other);
    far_sim_stop_before(d->drop, (far_sim_match){.point = point});
    assert_int_equal(far_sim_run_client(d->drop), FAR_SIM_STOPPED);
    d->s.client = far_sim_start(d->s.pool->fabric, "opener", open_x_in_lost, &d->s);
}


static void close_the_walk(waiting_drop *d) {
    assert_int_equal(far_session_call(d->other.next, FAR_STATS_OTHER, true, run_end_walk, &d->walk), 0);
    far_session_close(d->other.next);
}


static void finish_the_drop(waiting_drop *d, int result) {
    far_sim_resume(d->drop);
    assert_int_equal(far_sim_run_client(d->drop), FAR_SIM_ENDED);
    assert_int_equal(d->other.result, result);
}


/* B's drop waits for a walk without a pin and is stopped. Opener A cannot distinguish its mark from a stray mark that
 * names a live client, so A clears it after two epochs and opens x. When B continues, it finds its mark gone, starts
 * again, and fails with FAR_ERR_BUSY. */
TEST(a_stopped_drop_that_waits_for_a_walk_loses_its_mark) {
    waiting_drop d;
    stop_a_drop(&d, "catalog:wait_for_walks");
    assert_int_equal(far_sim_run_client(d.s.client), FAR_SIM_ENDED);
    assert_int_equal(d.s.result, 0);
    close_the_walk(&d);
    finish_the_drop(&d, FAR_ERR_BUSY);
    far_index_close(d.s.index);
    assert_int_equal(far_index_drop(d.s.dropper, "x"), 0);
    tear_down(&d.s);
}


/* Opener A has waited for two epochs and is about to clear B's old mark, or has just cleared it. B continues: in the
 * first case it has replaced the mark, so A's CAS fails; in the second case it sets a new mark. B completes the drop,
 * and A gets FAR_ERR_NOT_FOUND. Fails if a new pin does not get a new mark, or if renew_mark does not compare the mark
 * with its own. */
TEST(a_drop_that_continues_replaces_its_mark) {
    static const char *const opener_is[] = {"catalog:clear_mark", "catalog:enter_table"};
    for (unsigned i = 0; i < 2; i++) {
        waiting_drop d;
        stop_a_drop(&d, "catalog:wait_for_walks");
        far_sim_stop_before(d.s.client, (far_sim_match){.point = opener_is[i]});
        assert_int_equal(far_sim_run_client(d.s.client), FAR_SIM_STOPPED);
        close_the_walk(&d);
        /* the dropper has read that no handle has the index open */
        far_sim_stop_before(d.drop, (far_sim_match){.point = "catalog:unlist"});
        far_sim_resume(d.drop);
        assert_int_equal(far_sim_run_client(d.drop), FAR_SIM_STOPPED);
        far_sim_resume(d.s.client);
        far_sim_run_for(d.s.world, 2000000);
        assert_int_equal(d.s.result, 77);
        finish_the_drop(&d, 0);
        assert_int_equal(far_sim_run_client(d.s.client), FAR_SIM_ENDED);
        assert_int_equal(d.s.result, FAR_ERR_NOT_FOUND);
        tear_down(&d.s);
    }
}


/* B's drop is stopped while it holds a pin. Opener A waits for a bounded time, then fails with FAR_ERR_BUSY and names
 * B. */
TEST(an_opener_names_the_client_that_is_stopped_in_a_drop) {
    waiting_drop d;
    char who[32];
    stop_a_drop(&d, "catalog:mark_is_set");
    assert_int_equal(far_sim_run_client(d.s.client), FAR_SIM_ENDED);
    assert_int_equal(d.s.result, FAR_ERR_BUSY);
    snprintf(who, sizeof(who), "dropped by client %u", d.s.dropper->id);
    assert_non_null(strstr(d.s.words, who));
    close_the_walk(&d);
    finish_the_drop(&d, 0);
    tear_down(&d.s);
}


/* ---- A third client holds up the epoch ---- */

typedef struct third_client {
    far_pool *pool;
    far_session *session;
    far_index *index;
    far_sim_client *client;
} third_client;


static void put_y(void *arg) {
    third_client *c = arg;
    assert_int_equal(far_put(c->session, c->index, "k", 1, "v", 1), 0);
}


static void stop_third_client(scenario *s, third_client *c) {
    world_join(s->uri, NULL, &c->pool, &c->session);
    assert_int_equal(far_index_open(c->session, "y", &c->index), 0);
    c->client = far_sim_start(c->pool->fabric, "third", put_y, c);
    far_sim_stop_before(c->client, (far_sim_match){.point = "toy:publish"});
    assert_int_equal(far_sim_run_client(c->client), FAR_SIM_STOPPED);
}


static void end_third_client(third_client *c) {
    world_finish(c->client);
    far_index_close(c->index);
    far_session_close(c->session);
    far_pool_close(c->pool);
}


/* Client C holds up the epoch. Opener A reads B's mark and waits for epochs. B completes the drop meanwhile. A must get
 * FAR_ERR_NOT_FOUND, and not an error that blames B. Fails if A does not read the mark again after its wait. */
TEST(a_drop_that_ends_is_not_blamed_for_the_epoch) {
    scenario s, other;
    third_client c;
    set_up(&s, 1);
    stop_third_client(&s, &c);
    other = s;
    far_sim_client *drop = far_sim_start(s.other->fabric, "dropper", drop_x_in_dropper, &other);
    far_sim_stop_before(drop, (far_sim_match){.point = "catalog:mark_is_set"});
    assert_int_equal(far_sim_run_client(drop), FAR_SIM_STOPPED);
    s.client = far_sim_start(s.pool->fabric, "opener", open_x_in_lost, &s);
    far_sim_run_for(s.world, 5000 * far_tick(s.pool->fabric));
    assert_int_equal(s.result, 77);
    world_finish(drop);
    assert_int_equal(other.result, 0);
    assert_int_equal(far_sim_run_client(s.client), FAR_SIM_ENDED);
    assert_int_equal(s.result, FAR_ERR_NOT_FOUND);
    end_third_client(&c);
    tear_down(&s);
}


/* A stray mark names client B, which lives and drops nothing. Client C holds up the epoch, so A cannot prove that the
 * mark is abandoned. A's error names C and not B. After C continues, A opens the index. */
TEST(the_client_that_holds_up_the_epoch_is_named_and_not_the_one_in_the_mark) {
    scenario s;
    third_client c;
    char who[32];
    far_index *x;
    set_up(&s, 1);
    assert_int_equal(far_index_open(s.dropper, "x", &x), 0);
    uint64_t *mark = world_bytes(s.world, x->record + offsetof(far_index_record, mark));
    far_index_close(x);
    stop_third_client(&s, &c);
    *mark = far_owner_pack(s.dropper->id, s.dropper->generation, 0);
    s.client = far_sim_start(s.pool->fabric, "opener", open_x_in_lost, &s);
    assert_int_equal(far_sim_run_client(s.client), FAR_SIM_ENDED);
    assert_int_equal(s.result, FAR_ERR_BUSY);
    print_message("%s\n", s.words);
    snprintf(who, sizeof(who), "waits for client %u,", c.pool->team.own->id);
    assert_non_null(strstr(s.words, who));
    assert_null(strstr(s.words, "dropped by"));
    end_third_client(&c);
    open_x_in_lost(&s);
    assert_int_equal(s.result, 0);
    far_index_close(s.index);
    tear_down(&s);
}
