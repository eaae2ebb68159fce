/* Tests of opening, creating and dropping indexes when a session is lost, or its handle fails, at any verb of an action:
 * the other sessions continue, and no memory is leaked. One handle (`pool`) has no housekeeping thread; it has a session
 * that will be lost and another one that continues. A second handle (`other`) drops indexes. The pool contains the
 * indexes x and y. */
#include "../support/problem.h"
#include "../support/world.h"
#include "pool/catalog/catalog.h"
#include "test.h"

#include <stdio.h>
#include <string.h>

enum { VERBS_MAX = 300 };


typedef struct scenario {
    far_sim_world *world;
    far_pool *pool, *other;
    /* `lost` and `next` are sessions of `pool`; `dropper` is a session of `other` */
    far_session *lost, *next, *dropper;
    far_sim_client *client; /* simulated client that runs the action in progress */
    far_index *index;       /* index that the action opened */
    int result;
    char words[256]; /* error text of a refused open */
    char uri[WORLD_URI];
} scenario;


static void set_up(scenario *s, unsigned seed) {
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    far_index *index;
    *s = (scenario){.result = 77};
    world_uri(s->uri, "seed=%u,size=32M,memory_nodes=2", seed);
    s->world = world_join(s->uri, NULL, &s->other, &s->dropper);
    options.no_thread = 1;
    world_join(s->uri, &options, &s->pool, &s->lost);
    assert_int_equal(far_session_open(s->pool, &s->next), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(far_index_create(s->dropper, i ? "y" : "x", "toy", "slots=4", &index), 0);
        far_index_close(index);
    }
}


/* Asserts that no memory is leaked. While the handle without a housekeeping thread is open, call this function with a
 * session of that handle, because its check must advance the epochs itself. */
static void assert_nothing_leaked(far_session *session) {
    world_assert_nothing_leaked_after_collection(session);
}


static void tear_down(scenario *s) {
    far_session_close(s->lost);
    far_session_close(s->next);
    far_pool_close(s->pool);
    assert_nothing_leaked(s->dropper);
    world_assert_no_checker_error(s->world);
    far_session_close(s->dropper);
    far_pool_close(s->other);
}


/* ---- Actions of simulated clients ---- */

static void open_x_in_lost(void *arg) {
    scenario *s = arg;
    s->result = far_index_open(s->lost, "x", &s->index);
    if (s->result < 0)
        snprintf(s->words, sizeof(s->words), "%s", far_last_error());
}


static void release_hold(scenario *s, far_sim_hold *hold) {
    far_sim_release(hold);
    far_sim_sleep(s->world, 100000);
}


static void create_z(void *arg) {
    scenario *s = arg;
    s->result = far_index_create(s->lost, "z", "toy", "slots=4", &s->index);
}


static void drop_x(void *arg) {
    scenario *s = arg;
    s->result = far_index_drop(s->lost, "x");
}


static void use_x(void *arg) {
    scenario *s = arg;
    s->result = far_index_open(s->lost, "x", &s->index);
    if (s->result == 0) {
        s->result = far_put(s->lost, s->index, "k", 1, "v", 1);
        far_index_close(s->index);
    }
}


/* A session is lost at every verb of an action. The lost verb takes effect at once, after another session of the handle
 * has opened the index, after that other session has closed the index, or never. In all cases the index can be used,
 * dropped and created again, and no leaked memory is left at the end. */

enum { AT_ONCE, WHEN_OPEN, WHEN_CLOSED, NEVER, TIMES };


static void check_others_continue(scenario *s, const char *name, far_sim_hold *hold, unsigned when) {
    far_index *index;
    if (when == AT_ONCE)
        release_hold(s, hold);
    int found = far_index_open(s->next, name, &index);
    if (found == FAR_ERR_NOT_FOUND)
        assert_int_equal(far_index_create(s->next, name, "toy", "slots=4", &index), 0);
    else
        assert_int_equal(found, 0);
    if (when == WHEN_OPEN)
        release_hold(s, hold);
    assert_int_equal(far_put(s->next, index, "k", 1, "v", 1), 0);
    far_index_close(index);
    if (when == WHEN_CLOSED)
        release_hold(s, hold);
    assert_int_equal(far_pool_poll(s->pool), 0);
    assert_int_equal(far_index_drop(s->dropper, name), 0);
    assert_int_equal(far_index_open(s->next, name, &index), FAR_ERR_NOT_FOUND);
}


static bool lose_session_at(void (*action)(void *), const char *name, unsigned nth, unsigned when) {
    scenario s;
    set_up(&s, 1 + nth * TIMES + when);
    s.client = far_sim_start(s.pool->fabric, "lost", action, &s);
    far_sim_hold *hold = far_sim_hold_effect(s.client, (far_sim_match){.nth = nth});
    bool reached = far_sim_run_client(s.client) == FAR_SIM_HELD;
    if (reached) {
        far_sim_lose(s.lost->conn);
        assert_int_equal(far_sim_run_client(s.client), FAR_SIM_ENDED);
        /* The action succeeded, because the lost verb belonged to another session, or the action did not wait for the
         * verb. */
        if (s.result == 0)
            far_index_close(s.index);
        check_others_continue(&s, name, hold, when);
    } else {
        assert_int_equal(s.result, 0);
        far_index_close(s.index);
    }
    tear_down(&s);
    return reached;
}


static void lose_session_at_every_verb(void (*action)(void *), const char *name) {
    for (unsigned when = 0; when < TIMES; when++) {
        unsigned nth = 1;
        while (lose_session_at(action, name, nth, when))
            assert_true(++nth < VERBS_MAX);
        assert_true(nth > 5);
    }
}


/* A session that is lost at any verb of an open of x leaves x usable, and no memory leaked. */
TEST(a_session_lost_at_any_verb_of_an_open_leaves_nothing) {
    lose_session_at_every_verb(open_x_in_lost, "x");
}


/* A session that is lost at any verb of a create of z leaves the name z usable, and no memory leaked. */
TEST(a_session_lost_at_any_verb_of_a_create_leaves_nothing) {
    lose_session_at_every_verb(create_z, "z");
}


/* A session that is lost at any verb of a drop of x leaves x usable or dropped, and no memory leaked. */
TEST(a_session_lost_at_any_verb_of_a_drop_leaves_nothing) {
    lose_session_at_every_verb(drop_x, "x");
}


static int open_and_close_as_a_walk(far_task *t, void *arg) {
    far_index *index;
    int err = far_catalog_open_uid(t, *(uint32_t *)arg, &index);
    if (err == 0)
        far_catalog_close(t, index);
    return err;
}


static void walk_x_in_lost(void *arg) {
    scenario *s = arg;
    uint32_t uid = 1; /* The uid of x is 1, because x was created first. */
    s->result = far_session_call(s->lost, FAR_STATS_OTHER, true, open_and_close_as_a_walk, &uid);
}


/* A session that is lost at any verb while it opens and closes x as an index walk does leaves x usable, and
 * no memory leaked. */
TEST(a_session_lost_at_any_verb_of_a_walk_leaves_nothing) {
    lose_session_at_every_verb(walk_x_in_lost, "x");
}


/* The whole handle fails at every verb of an open, a put and a close. Another handle can open and drop x afterwards,
 * and nothing is leaked. */
TEST(a_handle_that_fails_between_open_and_close_leaves_nothing) {
    static const uint32_t units[] = {0, FAR_SIM_WHOLE};
    unsigned deaths = 0;
    for (unsigned u = 0; u < 2; u++)
        for (unsigned nth = 1;; nth++) {
            scenario s;
            set_up(&s, 1 + u);
            s.client = far_sim_start(s.pool->fabric, "dying", use_x, &s);
            far_sim_kill_at(s.client, (far_sim_match){.nth = nth}, units[u]);
            assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
            bool died = far_sim_killed(s.pool->fabric);
            far_index *index;
            assert_int_equal(far_index_open(s.dropper, "x", &index), 0);
            far_index_close(index);
            assert_int_equal(far_index_drop(s.dropper, "x"), 0);
            tear_down(&s);
            deaths += died;
            if (!died)
                break;
            assert_true(nth < VERBS_MAX);
        }
    assert_true(deaths > 30);
}
