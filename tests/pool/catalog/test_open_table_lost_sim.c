/* Tests of the table of open indexes when a session is lost, or its handle fails, at any verb of an action: nothing may
 * remain open or leaked. */
#include "open_table_rig.h"
#include "test.h"

enum { VERBS_MAX = 300 };


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
 * has opened the index, after that other session has closed the index, or never. In all cases a drop observes which
 * handle has the index open, and no open index and no leaked memory is left at the end. */

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
    assert_int_equal(far_index_drop(s->dropper, name), FAR_ERR_BUSY);
    assert_int_equal(far_index_drop(s->next, name), FAR_ERR_BUSY);
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


/* A session that is lost at any verb of an open of x leaves x neither open nor undroppable, and no memory leaked. */
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
        far_catalog_close_uid(t, index);
    return err;
}


static void walk_x_in_lost(void *arg) {
    scenario *s = arg;
    uint32_t uid = 1; /* The uid of x is 1, because x was created first. */
    s->result = far_session_call(s->lost, FAR_STATS_OTHER, true, open_and_close_as_a_walk, &uid);
}


/* A session that is lost at any verb while it opens and closes x as an index walk does leaves no walk that blocks a
 * drop. */
TEST(a_session_lost_at_any_verb_of_a_walk_leaves_nothing) {
    lose_session_at_every_verb(walk_x_in_lost, "x");
}


/* The whole handle fails at every verb of an open, a put and a close. Another handle can open and drop x afterwards,
 * and nothing is leaked. */
TEST(a_handle_that_fails_between_open_and_close_holds_nothing_open) {
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
            assert_int_equal(far_index_drop(s.dropper, "x"), FAR_ERR_BUSY);
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


static int close_table_and_advance(far_task *t, void *arg) {
    uint64_t from = far_epoch_known(t);
    (void)arg;
    int err = far_catalog_close_table(t);
    for (unsigned i = 0; i < 100 && err >= 0 && far_epoch_known(t) < from + 3; i++) {
        far_epoch_request(far_task_pool(t));
        err = far_epoch_tick(t);
        far_sleep(t, far_tick(far_task_fabric(t)));
    }
    return err < 0 ? err : far_epoch_known(t) < from + 3;
}


/* A handle closes while y is open. It retires its table and then waits for epochs; the ticks during that wait must not
 * repair its registry word, which is 0 now. Fails without `words[0] = 0` in retire_table. */
TEST(a_closing_handle_does_not_publish_its_table_again) {
    scenario s;
    set_up(&s, 1);
    far_index *y = open_in_next(&s, "y");
    far_addr address = far_open_table_word_of(s.pool->team.own->id);
    assert_int_not_equal(read_word_at(&s, address), 0);
    assert_int_equal(far_session_call(s.pool->team.own, FAR_STATS_OTHER, false, close_table_and_advance, NULL), 0);
    assert_int_equal(read_word_at(&s, address), 0);
    assert_int_equal(far_index_drop(s.dropper, "y"), 0);
    tear_down(&s);
    far_index_close(y);
}
