/* The table of open indexes when a session is lost, or its handle dies, at any verb: nothing is left. */
#include "open_table_rig.h"

enum { VERBS_MAX = 300 };


static void create_z(void *arg) {
    story *s = arg;
    s->result = far_index_create(s->lost, "z", "toy", "slots=4", &s->index);
}


static void drop_x(void *arg) {
    story *s = arg;
    s->result = far_index_drop(s->lost, "x");
}


static void use_x(void *arg) {
    story *s = arg;
    s->result = far_index_open(s->lost, "x", &s->index);
    if (s->result == 0) {
        s->result = far_put(s->lost, s->index, "k", 1, "v", 1);
        far_index_close(s->index);
    }
}


/* A session is lost at every verb of an action; what it posted comes at once, after another session of its handle has
 * opened the index, after that one has closed it, or never. Whatever happened, droppers see who has it open, and
 * nothing is left. */

enum { AT_ONCE, WHEN_OPEN, WHEN_CLOSED, NEVER, TIMES };


static void others_go_on(story *s, const char *name, far_sim_hold *hold, unsigned when) {
    far_index *index;
    if (when == AT_ONCE)
        release(s, hold);
    int found = far_index_open(s->next, name, &index);
    if (found == FAR_ERR_NOT_FOUND)
        assert_int_equal(far_index_create(s->next, name, "toy", "slots=4", &index), 0);
    else
        assert_int_equal(found, 0);
    if (when == WHEN_OPEN)
        release(s, hold);
    assert_int_equal(far_put(s->next, index, "k", 1, "v", 1), 0);
    assert_int_equal(far_index_drop(s->dropper, name), FAR_ERR_BUSY);
    assert_int_equal(far_index_drop(s->next, name), FAR_ERR_BUSY);
    far_index_close(index);
    if (when == WHEN_CLOSED)
        release(s, hold);
    assert_int_equal(far_pool_poll(s->pool), 0);
    assert_int_equal(far_index_drop(s->dropper, name), 0);
    assert_int_equal(far_index_open(s->next, name, &index), FAR_ERR_NOT_FOUND);
}


static bool is_lost_at(void (*action)(void *), const char *name, unsigned nth, unsigned when) {
    story s;
    set_up(&s, 1 + nth * TIMES + when);
    s.client = far_sim_start(s.pool->fabric, "lost", action, &s);
    far_sim_hold *hold = far_sim_hold_effect(s.client, (far_sim_match){.nth = nth});
    bool reached = far_sim_run_client(s.client) == FAR_SIM_HELD;
    if (reached) {
        far_sim_lose(s.lost->conn);
        assert_int_equal(far_sim_run_client(s.client), FAR_SIM_ENDED);
        if (s.result == 0) /* the verb was another session's, or nobody waited for it */
            far_index_close(s.index);
        others_go_on(&s, name, hold, when);
    } else {
        assert_int_equal(s.result, 0);
        far_index_close(s.index);
    }
    tear_down(&s);
    return reached;
}


static void is_lost_everywhere(void (*action)(void *), const char *name) {
    for (unsigned when = 0; when < TIMES; when++) {
        unsigned nth = 1;
        while (is_lost_at(action, name, nth, when))
            assert_true(++nth < VERBS_MAX);
        assert_true(nth > 5);
    }
}


static void a_session_lost_at_any_verb_of_an_open_leaves_nothing(void **state) {
    (void)state;
    is_lost_everywhere(open_x, "x");
}


static void a_session_lost_at_any_verb_of_a_create_leaves_nothing(void **state) {
    (void)state;
    is_lost_everywhere(create_z, "z");
}


static void a_session_lost_at_any_verb_of_a_drop_leaves_nothing(void **state) {
    (void)state;
    is_lost_everywhere(drop_x, "x");
}


static int open_and_close_as_a_walk(far_task *t, void *arg) {
    far_index *index;
    int err = far_catalog_open_uid(t, *(uint32_t *)arg, &index);
    if (err == 0)
        far_catalog_close_uid(t, index);
    return err;
}


static void walk_first(void *arg) {
    story *s = arg;
    uint32_t uid = 1; /* x was the first that was made */
    s->result = far_session_call(s->lost, FAR_STATS_OTHER, true, open_and_close_as_a_walk, &uid);
}


static void a_session_lost_at_any_verb_of_a_walk_leaves_nothing(void **state) {
    (void)state;
    is_lost_everywhere(walk_first, "x");
}


/* The compute node dies at every verb of an open, a use and a close, which it does itself having no thread. */
static void a_handle_that_dies_between_open_and_close_holds_nothing_open(void **state) {
    (void)state;
    static const uint32_t units[] = {0, FAR_SIM_WHOLE};
    unsigned deaths = 0;
    for (unsigned u = 0; u < 2; u++)
        for (unsigned nth = 1;; nth++) {
            story s;
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


static int leave_and_move_on(far_task *t, void *arg) {
    uint64_t from = far_epoch_known(t);
    (void)arg;
    int err = far_catalog_leave(t);
    for (unsigned i = 0; i < 100 && err >= 0 && far_epoch_known(t) < from + 3; i++) {
        far_epoch_request(far_task_pool(t));
        err = far_epoch_tick(t);
        far_sleep(t, far_tick(far_task_fabric(t)));
    }
    return err < 0 ? err : far_epoch_known(t) < from + 3;
}


/* A handle is closed while an index is open: it takes down its table, then waits for epochs. What it finds in its registry entry
 * meanwhile is right. */
static void a_handle_that_leaves_does_not_say_again_what_it_had_open(void **state) {
    (void)state;
    story s;
    set_up(&s, 1);
    far_index *y = open_next(&s, "y");
    far_addr address = far_open_table_word_of(s.pool->team.own->id);
    assert_int_not_equal(word_at(&s, address), 0);
    assert_int_equal(far_session_call(s.pool->team.own, FAR_STATS_OTHER, false, leave_and_move_on, NULL), 0);
    assert_int_equal(word_at(&s, address), 0);
    assert_int_equal(far_index_drop(s.dropper, "y"), 0);
    tear_down(&s);
    far_index_close(y);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_session_lost_at_any_verb_of_an_open_leaves_nothing),
        cmocka_unit_test(a_session_lost_at_any_verb_of_a_create_leaves_nothing),
        cmocka_unit_test(a_session_lost_at_any_verb_of_a_drop_leaves_nothing),
        cmocka_unit_test(a_session_lost_at_any_verb_of_a_walk_leaves_nothing),
        cmocka_unit_test(a_handle_that_leaves_does_not_say_again_what_it_had_open),
        cmocka_unit_test(a_handle_that_dies_between_open_and_close_holds_nothing_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
