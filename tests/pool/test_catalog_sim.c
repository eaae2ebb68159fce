/* Named indexes in the simulator: races of openers, creators and droppers over random schedules, and death at every
 * verb. */
#include "../support/world.h"

#include <stdio.h>
#include <string.h>

enum { NODES = 2, SEEDS = 60, VERBS_MAX = 400 };

typedef struct actor { /* a client of one compute node */
    far_pool *pool;
    far_session *session;
    far_sim_client *client;
    far_index *index;
    int result;
    bool ended;
} actor;

typedef struct stage {
    far_sim_world *world;
    actor actors[NODES];
} stage;


static void set_up(stage *s, unsigned seed, const char *faults) {
    char uri[WORLD_URI];
    memset(s, 0, sizeof(*s));
    world_uri(uri, "seed=%u,size=32M,memory_nodes=2,faults=%s", seed, faults);
    for (unsigned i = 0; i < NODES; i++)
        s->world = world_join(uri, NULL, &s->actors[i].pool, &s->actors[i].session);
}


static void tear_down(stage *s) {
    for (unsigned i = 0; i < NODES; i++) {
        far_index_close(s->actors[i].index);
        far_session_close(s->actors[i].session);
    }
    world_assert_watch_is_content(s->world);
    for (unsigned i = 0; i < NODES; i++)
        far_pool_close(s->actors[i].pool);
}


static void start(actor *a, const char *name, void (*run)(void *arg)) {
    a->result = 77;
    a->ended = false;
    a->client = world_start(a->pool, name, run, a);
}


/* What actors do. */

static void create_x(void *arg) {
    actor *a = arg;
    a->result = far_index_create(a->session, "x", "toy", "slots=4", &a->index);
    a->ended = true;
}


static void create_y(void *arg) {
    actor *a = arg;
    a->result = far_index_create(a->session, "y", "toy", "slots=4", &a->index);
    a->ended = true;
}


static void drop_x(void *arg) {
    actor *a = arg;
    a->result = far_index_drop(a->session, "x");
    a->ended = true;
}


static void open_x(void *arg) {
    actor *a = arg;
    a->result = far_index_open(a->session, "x", &a->index);
    a->ended = true;
}


static void open_use_close_x(void *arg) {
    actor *a = arg;
    far_index *index;
    a->result = far_index_open(a->session, "x", &index);
    if (a->result == 0) {
        char value[4] = "";
        for (int i = 0; i < 3 && a->result == 0; i++)
            if ((a->result = far_put(a->session, index, "k", 1, &"abc"[i], 1)) == 0)
                a->result = far_get(a->session, index, "k", 1, value, 4, NULL);
        far_index_close(index);
    }
    a->ended = true;
}


static void make_x(stage *s) {
    far_index *index;
    assert_int_equal(far_index_create(s->actors[1].session, "x", "toy", "slots=4", &index), 0);
    assert_int_equal(far_put(s->actors[1].session, index, "k", 1, "v", 1), 0);
    far_index_close(index);
}


/* From outside, by a survivor: whatever happened, the name works. Returns whether x was there. */
static bool name_works(actor *a) {
    far_index *index;
    char value[8];
    int found = far_index_open(a->session, "x", &index);
    if (found == FAR_ERR_NOT_FOUND)
        assert_int_equal(far_index_create(a->session, "x", "toy", "slots=4", &index), 0);
    else
        assert_int_equal(found, 0);
    assert_int_equal(far_put(a->session, index, "q", 1, "w", 1), 0);
    assert_int_equal(far_get(a->session, index, "q", 1, value, 8, NULL), 0);
    assert_int_equal(far_index_drop(a->session, "x"), FAR_ERR_BUSY);
    far_index_close(index);
    assert_int_equal(far_index_drop(a->session, "x"), 0);
    assert_int_equal(far_index_open(a->session, "x", &index), FAR_ERR_NOT_FOUND);
    return found == 0;
}


/* What the dead left is found and freed: nothing stays in use but what is there without any index. */
static void nothing_is_lost(actor *a, uint64_t used) {
    far_pool_usage usage;
    assert_int_equal(far_pool_check(a->session, 1, fail_at_problem, NULL), 0);
    assert_int_equal(far_pool_check(a->session, 0, fail_at_problem, NULL), 0);
    assert_int_equal(far_pool_stat(a->session, &usage), 0);
    assert_int_equal(usage.leaked, 0);
    assert_true(usage.used <= used + 1024); /* ends of slabs of which a session has something at hand */
    assert_int_equal(usage.total, usage.used + usage.retired + usage.free + usage.leaked);
}


/* Death at every verb of an action; before, in the middle of, or after its effect. */
static void dies_everywhere(void (*action)(void *arg), bool exists, bool *absent_after, bool *present_after) {
    static const uint32_t units[] = {0, 1, FAR_SIM_WHOLE};
    unsigned deaths = 0;
    for (unsigned u = 0; u < 3; u++)
        for (unsigned nth = 1;; nth++) {
            assert_true(nth < VERBS_MAX);
            stage s;
            far_pool_usage empty;
            set_up(&s, 1 + u, "none"); /* the same run up to the death */
            make_x(&s);                /* what the session keeps for itself it has now */
            assert_int_equal(far_index_drop(s.actors[1].session, "x"), 0);
            assert_int_equal(far_pool_check(s.actors[1].session, 1, fail_at_problem, NULL), 0);
            assert_int_equal(far_pool_stat(s.actors[1].session, &empty), 0);
            if (exists)
                make_x(&s);
            actor *a = &s.actors[0];
            start(a, "dying", action);
            far_sim_kill_at(a->client, (far_sim_match){.nth = nth}, units[u]);
            assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
            bool died = far_sim_killed(a->pool->fabric);
            if (died) {
                assert_true(a->result == 0 || a->result == FAR_ERR_FENCED || a->result == FAR_ERR_UNREACHABLE);
                bool found = name_works(&s.actors[1]);
                nothing_is_lost(&s.actors[1], empty.used);
                *present_after |= found;
                *absent_after |= !found;
                deaths++;
            } else {
                assert_int_equal(a->result, 0);
            }
            tear_down(&s);
            if (!died)
                break;
        }
    assert_true(deaths > 10);
}


static void a_creator_that_dies_leaves_all_or_nothing(void **state) {
    (void)state;
    bool absent = false, present = false;
    dies_everywhere(create_x, false, &absent, &present);
    assert_true(absent && present);
}


static void a_dropper_that_dies_leaves_all_or_nothing(void **state) {
    (void)state;
    bool absent = false, present = false;
    dies_everywhere(drop_x, true, &absent, &present);
    assert_true(absent && present);
}


static void an_opener_that_dies_holds_nothing_open(void **state) {
    (void)state;
    bool absent = false, present = false;
    dies_everywhere(open_x, true, &absent, &present);
    assert_true(!absent && present);
}


/* Races. */

static void of_two_creators_one_wins(void **state) {
    (void)state;
    unsigned wins[2] = {0, 0};
    for (unsigned seed = 1; seed <= SEEDS; seed++) {
        stage s;
        set_up(&s, seed, "all");
        start(&s.actors[0], "a", create_x);
        start(&s.actors[1], "b", create_x);
        assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
        int a = s.actors[0].result, b = s.actors[1].result;
        if (!(a == 0 && b == FAR_ERR_EXISTS) && !(a == FAR_ERR_EXISTS && b == 0))
            fail_msg("seed %u: %d and %d", seed, a, b);
        wins[b == 0]++;
        tear_down(&s);
    }
    assert_true(wins[0] > 0 && wins[1] > 0);
}


static void an_index_is_never_dropped_under_its_user(void **state) {
    (void)state;
    unsigned dropped = 0, busy = 0, missed = 0;
    for (unsigned seed = 1; seed <= 3 * SEEDS; seed++) {
        stage s;
        set_up(&s, seed, "all");
        make_x(&s);
        start(&s.actors[0], "user", open_use_close_x);
        start(&s.actors[1], "dropper", drop_x);
        assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
        int user = s.actors[0].result, drop = s.actors[1].result;
        if ((user != 0 && user != FAR_ERR_NOT_FOUND) || (drop != 0 && drop != FAR_ERR_BUSY) || (user != 0 && drop != 0))
            fail_msg("seed %u: the user got %d, the dropper %d", seed, user, drop);
        dropped += drop == 0;
        busy += drop == FAR_ERR_BUSY;
        missed += user == FAR_ERR_NOT_FOUND;
        tear_down(&s);
    }
    assert_true(dropped > 0 && busy > 0 && missed > 0);
}


static void of_two_droppers_one_wins(void **state) {
    (void)state;
    for (unsigned seed = 1; seed <= SEEDS; seed++) {
        stage s;
        set_up(&s, seed, "all");
        make_x(&s);
        start(&s.actors[0], "a", drop_x);
        start(&s.actors[1], "b", drop_x);
        assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
        int a = s.actors[0].result, b = s.actors[1].result;
        if (!(a == 0 && b == FAR_ERR_NOT_FOUND) && !(a == FAR_ERR_NOT_FOUND && b == 0))
            fail_msg("seed %u: %d and %d", seed, a, b);
        tear_down(&s);
    }
}


/* Named interleavings. */

/* A creator of y has read the list, with x in it, and x is flagged as gone. Seen: somebody looks at the list before the
 * creator goes on; then x is gone for good, whoever lists what he saw of it. */
static void drop_beside_a_creator(bool seen) {
    stage s;
    far_session *other;
    far_index *index;
    set_up(&s, 1, "none");
    make_x(&s);
    actor *creator = &s.actors[0], *dropper = &s.actors[1];
    assert_int_equal(far_session_open(dropper->pool, &other), 0);
    start(creator, "creator", create_y);
    start(dropper, "dropper", drop_x);
    far_sim_stop_before(creator->client, (far_sim_match){.point = "catalog:swing"});
    far_sim_stop_before(dropper->client, (far_sim_match){.point = "catalog:gone"});
    assert_int_equal(far_sim_run_client(creator->client), FAR_SIM_STOPPED);
    assert_int_equal(far_sim_run_client(dropper->client), FAR_SIM_STOPPED);
    if (seen)
        assert_int_equal(far_index_open(other, "x", &index), FAR_ERR_NOT_FOUND);
    far_sim_resume(creator->client);
    assert_int_equal(far_sim_run_client(creator->client), FAR_SIM_ENDED);
    assert_int_equal(creator->result, 0);
    if (seen)
        assert_int_equal(far_index_open(other, "x", &index), FAR_ERR_NOT_FOUND);
    far_sim_resume(dropper->client);
    assert_int_equal(far_sim_run_client(dropper->client), FAR_SIM_ENDED);
    assert_int_equal(dropper->result, 0);
    assert_int_equal(far_index_open(other, "x", &index), FAR_ERR_NOT_FOUND);
    assert_int_equal(far_index_open(other, "y", &index), 0);
    far_index_close(index);
    world_assert_nothing_lost(other);
    far_session_close(other);
    tear_down(&s);
}


static void a_creator_that_saw_an_index_does_not_bring_it_back(void **state) {
    (void)state;
    drop_beside_a_creator(true);
    drop_beside_a_creator(false);
}


/* The first check gives up, and wants a sweep; a handle begins with it, and waits for ever. The next check waits for that one:
 * it says who is in the way all the same. */
static void a_check_beside_a_sweep_that_waits_says_for_whom(void **state) {
    (void)state;
    stage s;
    char name[32];
    set_up(&s, 1, "none");
    make_x(&s);
    actor *stopped = &s.actors[0], *checker = &s.actors[1];
    start(stopped, "stopped", open_x);
    far_sim_stop_before(stopped->client, (far_sim_match){.point = "catalog:confirm"});
    assert_int_equal(far_sim_run_client(stopped->client), FAR_SIM_STOPPED);
    snprintf(name, sizeof(name), "client %u", stopped->pool->team.own->id);
    for (unsigned i = 0; i < 2; i++) {
        uint64_t began = far_host_now(checker->pool->fabric->host);
        assert_int_equal(far_pool_check(checker->session, 0, fail_at_problem, NULL), FAR_ERR_BUSY);
        print_message("%s, after %llu us\n", far_last_error(),
                      (unsigned long long)(far_host_now(checker->pool->fabric->host) - began) / 1000);
        assert_non_null(strstr(far_last_error(), name));
        assert_non_null(strstr(far_last_error(), "is stopped"));
        far_sim_sleep(s.world, 200000000);
    }
    far_sim_resume(stopped->client);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    assert_int_equal(stopped->result, 0);
    assert_int_equal(far_pool_check(checker->session, 0, fail_at_problem, NULL), 0);
    tear_down(&s);
}


static void an_opener_that_was_first_keeps_its_index(void **state) {
    (void)state;
    stage s;
    set_up(&s, 1, "none");
    make_x(&s);
    actor *opener = &s.actors[0], *dropper = &s.actors[1];
    start(opener, "opener", open_x);
    start(dropper, "dropper", drop_x);
    far_sim_stop_before(opener->client, (far_sim_match){.point = "catalog:confirm"});
    assert_int_equal(far_sim_run_client(opener->client), FAR_SIM_STOPPED);
    assert_int_equal(far_sim_run_client(dropper->client), FAR_SIM_ENDED);
    assert_int_equal(dropper->result, FAR_ERR_BUSY);
    far_sim_resume(opener->client);
    assert_int_equal(far_sim_run_client(opener->client), FAR_SIM_ENDED);
    assert_int_equal(opener->result, 0);
    tear_down(&s);
}


static void an_opener_that_meets_a_drop_waits_for_its_end(void **state) {
    (void)state;
    for (unsigned dies = 0; dies < 2; dies++) {
        stage s;
        set_up(&s, 1, "none");
        make_x(&s);
        actor *opener = &s.actors[0], *dropper = &s.actors[1];
        start(opener, "opener", open_x);
        start(dropper, "dropper", drop_x);
        far_sim_stop_before(dropper->client, (far_sim_match){.point = "catalog:marked"});
        assert_int_equal(far_sim_run_client(dropper->client), FAR_SIM_STOPPED);
        far_sim_run_for(s.world, 2000000);
        assert_false(opener->ended);
        if (dies)
            far_sim_kill(dropper->pool->fabric);
        far_sim_resume(dropper->client);
        assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
        assert_int_equal(opener->result, dies ? 0 : FAR_ERR_NOT_FOUND);
        assert_int_equal(dropper->result, dies ? FAR_ERR_FENCED : 0);
        tear_down(&s);
    }
}


/* The opener's word stands in its table while the mark is already there: it must give way. */
static void an_opener_between_mark_and_look_gives_way(void **state) {
    (void)state;
    stage s;
    set_up(&s, 1, "none");
    make_x(&s);
    actor *opener = &s.actors[0], *dropper = &s.actors[1];
    start(opener, "opener", open_x);
    start(dropper, "dropper", drop_x);
    far_sim_stop_before(opener->client, (far_sim_match){.point = "catalog:enter"}); /* has seen no mark */
    assert_int_equal(far_sim_run_client(opener->client), FAR_SIM_STOPPED);
    far_sim_stop_before(dropper->client, (far_sim_match){.point = "catalog:unlist"}); /* has seen no opener */
    assert_int_equal(far_sim_run_client(dropper->client), FAR_SIM_STOPPED);
    far_sim_resume(opener->client);
    far_sim_run_for(s.world, 2000000);
    assert_false(opener->ended);
    far_sim_resume(dropper->client);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    assert_int_equal(dropper->result, 0);
    assert_int_equal(opener->result, FAR_ERR_NOT_FOUND);
    tear_down(&s);
}


/* Sleepers: one stops before its n-th verb, for every n; the other goes to its end, or as far as it comes without the
 * first; then the first wakes. Returns false when there is no n-th verb. */
static bool sleeps_before(stage *s, unsigned nth, void (*sleeps)(void *arg), void (*works)(void *arg)) {
    actor *sleeper = &s->actors[0], *worker = &s->actors[1];
    assert_true(nth < VERBS_MAX);
    start(sleeper, "sleeper", sleeps);
    far_sim_stop_before(sleeper->client, (far_sim_match){.nth = nth});
    bool stopped = far_sim_run_client(sleeper->client) == FAR_SIM_STOPPED;
    start(worker, "worker", works);
    far_sim_run_for(s->world, 2000000);
    far_sim_resume(sleeper->client);
    assert_int_equal(far_sim_run(s->world), FAR_SIM_ENDED);
    return stopped;
}


/* Of an opener and a dropper one wins; if it was the opener, its index works, and is there until it closes it. */
static void one_has_won(stage *s, actor *opener, actor *dropper, unsigned *opened, unsigned *dropped) {
    int open = opener->result, drop = dropper->result;
    if (!(open == 0 && drop == FAR_ERR_BUSY) && !(open == FAR_ERR_NOT_FOUND && drop == 0))
        fail_msg("the opener got %d, the dropper %d", open, drop);
    *opened += open == 0;
    *dropped += drop == 0;
    if (open == 0) {
        assert_int_equal(far_put(opener->session, opener->index, "k", 1, "w", 1), 0);
        assert_int_equal(far_index_drop(dropper->session, "x"), FAR_ERR_BUSY);
        far_index_close(opener->index);
        opener->index = NULL;
        assert_int_equal(far_index_drop(dropper->session, "x"), 0);
    }
    tear_down(s);
}


static void an_opener_that_wakes_late_has_won_or_finds_nothing(void **state) {
    (void)state;
    unsigned opened = 0, dropped = 0, nth = 0;
    for (bool stopped = true; stopped;) {
        stage s;
        set_up(&s, 1, "none");
        make_x(&s);
        stopped = sleeps_before(&s, ++nth, open_x, drop_x);
        one_has_won(&s, &s.actors[0], &s.actors[1], &opened, &dropped);
    }
    assert_true(opened > 1 && dropped > 1);
}


static void a_dropper_that_wakes_late_has_won_or_finds_it_open(void **state) {
    (void)state;
    unsigned opened = 0, dropped = 0, nth = 0;
    for (bool stopped = true; stopped;) {
        stage s;
        set_up(&s, 1, "none");
        make_x(&s);
        stopped = sleeps_before(&s, ++nth, drop_x, open_x);
        one_has_won(&s, &s.actors[1], &s.actors[0], &opened, &dropped);
    }
    assert_true(opened > 1 && dropped > 1);
}


static void a_creator_that_wakes_late_has_won_or_finds_the_name_taken(void **state) {
    (void)state;
    unsigned won = 0, lost = 0, nth = 0;
    for (bool stopped = true; stopped;) {
        stage s;
        set_up(&s, 1, "none");
        stopped = sleeps_before(&s, ++nth, create_x, create_x);
        int first = s.actors[0].result, second = s.actors[1].result;
        if (!(first == 0 && second == FAR_ERR_EXISTS) && !(first == FAR_ERR_EXISTS && second == 0))
            fail_msg("asleep before verb %u: %d and %d", nth, first, second);
        won += first == 0;
        lost += second == 0;
        tear_down(&s);
    }
    assert_true(won > 0 && lost > 1);
}


/* Declared dead while it sleeps: it gets FAR_ERR_FENCED, and nothing that it does on waking is seen. */
static void an_opener_declared_dead_in_its_sleep_holds_nothing_open(void **state) {
    (void)state;
    unsigned nth = 0, fenced = 0;
    for (bool stopped = true; stopped;) {
        stage s;
        set_up(&s, 1, "none");
        make_x(&s);
        actor *sleeper = &s.actors[0];
        start(sleeper, "sleeper", open_x);
        far_sim_stop_before(sleeper->client, (far_sim_match){.nth = ++nth});
        stopped = far_sim_run_client(sleeper->client) == FAR_SIM_STOPPED;
        assert_true(nth < VERBS_MAX);
        far_sim_declare_dead(s.world, sleeper->session->id, sleeper->session->generation);
        if (stopped) {
            far_sim_resume(sleeper->client);
            assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
        }
        fenced += sleeper->result == FAR_ERR_FENCED;
        if (sleeper->result == 0) { /* it was through, or only its handle's own session had something to do */
            assert_int_equal(far_index_drop(s.actors[1].session, "x"), FAR_ERR_BUSY);
            far_index_close(sleeper->index);
            sleeper->index = NULL;
        }
        far_sim_sleep(s.world, 1000000); /* housekeeping of the sleeper's handle */
        assert_true(name_works(&s.actors[1]));
        tear_down(&s);
    }
    assert_true(fenced > 5);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_creator_that_dies_leaves_all_or_nothing),
        cmocka_unit_test(a_dropper_that_dies_leaves_all_or_nothing),
        cmocka_unit_test(an_opener_that_dies_holds_nothing_open),
        cmocka_unit_test(of_two_creators_one_wins),
        cmocka_unit_test(an_index_is_never_dropped_under_its_user),
        cmocka_unit_test(of_two_droppers_one_wins),
        cmocka_unit_test(a_creator_that_saw_an_index_does_not_bring_it_back),
        cmocka_unit_test(a_check_beside_a_sweep_that_waits_says_for_whom),
        cmocka_unit_test(an_opener_that_was_first_keeps_its_index),
        cmocka_unit_test(an_opener_that_meets_a_drop_waits_for_its_end),
        cmocka_unit_test(an_opener_between_mark_and_look_gives_way),
        cmocka_unit_test(an_opener_that_wakes_late_has_won_or_finds_nothing),
        cmocka_unit_test(a_dropper_that_wakes_late_has_won_or_finds_it_open),
        cmocka_unit_test(a_creator_that_wakes_late_has_won_or_finds_the_name_taken),
        cmocka_unit_test(an_opener_declared_dead_in_its_sleep_holds_nothing_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
