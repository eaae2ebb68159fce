/* Tests of the catalog in the simulator: races of clients that open, create and drop an index over random schedules,
 * named interleavings, and failures at every verb. */
#include "test.h"
#include "../support/world.h"

#include <stdio.h>
#include <string.h>

enum { NODES = 2, SEEDS = 60, VERBS_MAX = 400 };

typedef struct actor { /* One handle with one session, and the result of its action. */
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
    world_assert_no_checker_error(s->world);
    for (unsigned i = 0; i < NODES; i++)
        far_pool_close(s->actors[i].pool);
}


static void start_actor(actor *a, const char *name, void (*run)(void *arg)) {
    a->result = 77;
    a->ended = false;
    a->client = world_start(a->pool, name, run, a);
}


/* ---- Actions of simulated clients ---- */

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


static void create_x_with_a_key(stage *s) {
    far_index *index;
    assert_int_equal(far_index_create(s->actors[1].session, "x", "toy", "slots=4", &index), 0);
    assert_int_equal(far_put(s->actors[1].session, index, "k", 1, "v", 1), 0);
    far_index_close(index);
}


/* Checks in a surviving handle that the name x can be opened or created, used and dropped. Returns whether x existed.
 */
static bool check_name_works(actor *a) {
    far_index *index;
    char value[8];
    int found = far_index_open(a->session, "x", &index);
    if (found == FAR_ERR_NOT_FOUND)
        assert_int_equal(far_index_create(a->session, "x", "toy", "slots=4", &index), 0);
    else
        assert_int_equal(found, 0);
    assert_int_equal(far_put(a->session, index, "q", 1, "w", 1), 0);
    assert_int_equal(far_get(a->session, index, "q", 1, value, 8, NULL), 0);
    assert_int_equal(far_index_drop(a->session, "x"), 0);
    assert_int_equal(far_put(a->session, index, "q", 1, "w", 1), FAR_ERR_NOT_FOUND);
    far_index_close(index);
    assert_int_equal(far_index_open(a->session, "x", &index), FAR_ERR_NOT_FOUND);
    return found == 0;
}


/* Checks that the memory of failed clients is found and freed: afterwards no more memory is in use than in a pool
 * without indexes. */
static void assert_nothing_leaked(actor *a, uint64_t used) {
    far_pool_usage usage;
    assert_int_equal(far_pool_check(a->session, 1, fail_at_problem, NULL), 0);
    assert_int_equal(far_pool_check(a->session, 0, fail_at_problem, NULL), 0);
    assert_int_equal(far_pool_stat(a->session, &usage), 0);
    assert_int_equal(usage.leaked, 0);
    /* The margin is for free objects in partly used slabs, which a session may hold. */
    assert_true(usage.used <= used + 1024);
    assert_int_equal(usage.total, usage.used + usage.retired + usage.free + usage.leaked);
}


/* Runs an action for every verb of the action, and kills the client at that verb, with none, the first granule, or all
 * of the verb's effect. Sets *absent_after or *present_after if x was absent or existed afterwards in some run. */
static void fail_at_every_verb(void (*action)(void *arg), bool exists, bool *absent_after, bool *present_after) {
    static const uint32_t units[] = {0, 1, FAR_SIM_WHOLE};
    unsigned deaths = 0;
    for (unsigned u = 0; u < 3; u++)
        for (unsigned nth = 1;; nth++) {
            assert_true(nth < VERBS_MAX);
            stage s;
            far_pool_usage empty;
            set_up(&s, 1 + u, "none"); /* Without faults of the simulator, all runs are the same until the failure. */
            /* The put makes the session allocate its session-owned objects before the failure. */
            create_x_with_a_key(&s);
            assert_int_equal(far_index_drop(s.actors[1].session, "x"), 0);
            assert_int_equal(far_pool_check(s.actors[1].session, 1, fail_at_problem, NULL), 0);
            assert_int_equal(far_pool_stat(s.actors[1].session, &empty), 0);
            if (exists)
                create_x_with_a_key(&s);
            actor *a = &s.actors[0];
            start_actor(a, "dying", action);
            far_sim_kill_at(a->client, (far_sim_match){.nth = nth}, units[u]);
            assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
            bool died = far_sim_killed(a->pool->fabric);
            if (died) {
                assert_true(a->result == 0 || a->result == FAR_ERR_FENCED || a->result == FAR_ERR_UNREACHABLE);
                bool found = check_name_works(&s.actors[1]);
                assert_nothing_leaked(&s.actors[1], empty.used);
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


/* A client that creates x fails at every verb. Afterwards x exists completely or not at all, and no memory is leaked.
 */
TEST(a_creator_that_fails_leaves_all_or_nothing) {
    bool absent = false, present = false;
    fail_at_every_verb(create_x, false, &absent, &present);
    assert_true(absent && present);
}


/* A client that drops x fails at every verb. Afterwards x exists and works, or does not exist, and no memory is leaked.
 */
TEST(a_dropper_that_fails_leaves_all_or_nothing) {
    bool absent = false, present = false;
    fail_at_every_verb(drop_x, true, &absent, &present);
    assert_true(absent && present);
}


/* A client that opens x fails at every verb. Afterwards x can be opened and dropped. */
TEST(an_opener_that_fails_holds_nothing_open) {
    bool absent = false, present = false;
    fail_at_every_verb(open_x, true, &absent, &present);
    assert_true(!absent && present);
}


/* ---- Races over random schedules ---- */

/* Clients A and B create x concurrently, over random schedules with faults. Exactly one succeeds, the other one gets
 * FAR_ERR_EXISTS. */
TEST(of_two_creators_one_wins) {
    unsigned wins[2] = {0, 0};
    for (unsigned seed = 1; seed <= SEEDS; seed++) {
        stage s;
        set_up(&s, seed, "all");
        start_actor(&s.actors[0], "a", create_x);
        start_actor(&s.actors[1], "b", create_x);
        assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
        int a = s.actors[0].result, b = s.actors[1].result;
        if (!(a == 0 && b == FAR_ERR_EXISTS) && !(a == FAR_ERR_EXISTS && b == 0))
            fail_msg("seed %u: %d and %d", seed, a, b);
        wins[b == 0]++;
        tear_down(&s);
    }
    assert_true(wins[0] > 0 && wins[1] > 0);
}


/* Client A opens x, uses it and closes it; client B drops x concurrently. The drop always succeeds. The user finds no
 * index at any step of its work, or completes it; the memory checker finds no access to freed memory. */
TEST(an_index_is_dropped_under_its_user) {
    unsigned completed = 0, missed = 0;
    for (unsigned seed = 1; seed <= 3 * SEEDS; seed++) {
        stage s;
        set_up(&s, seed, "all");
        create_x_with_a_key(&s);
        start_actor(&s.actors[0], "user", open_use_close_x);
        start_actor(&s.actors[1], "dropper", drop_x);
        assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
        int user = s.actors[0].result, drop = s.actors[1].result;
        if ((user != 0 && user != FAR_ERR_NOT_FOUND) || drop != 0)
            fail_msg("seed %u: the user got %d, the dropper %d", seed, user, drop);
        completed += user == 0;
        missed += user == FAR_ERR_NOT_FOUND;
        tear_down(&s);
    }
    assert_true(completed > 0 && missed > 0);
}


/* Clients A and B drop x concurrently. Exactly one succeeds, the other one gets FAR_ERR_NOT_FOUND. */
TEST(of_two_droppers_one_wins) {
    for (unsigned seed = 1; seed <= SEEDS; seed++) {
        stage s;
        set_up(&s, seed, "all");
        create_x_with_a_key(&s);
        start_actor(&s.actors[0], "a", drop_x);
        start_actor(&s.actors[1], "b", drop_x);
        assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
        int a = s.actors[0].result, b = s.actors[1].result;
        if (!(a == 0 && b == FAR_ERR_NOT_FOUND) && !(a == FAR_ERR_NOT_FOUND && b == 0))
            fail_msg("seed %u: %d and %d", seed, a, b);
        tear_down(&s);
    }
}


/* ---- Named interleavings ---- */

/* Client A creates y, and client B drops x.
 *
 * 1. A reads the catalog, which lists x, and stops before its CAS of the catalog word.
 * 2. B flags the entry of x and stops.
 * 3. If `seen`, a third client reads the catalog, which completes the drop of x.
 * 4. A continues. Its CAS fails if the drop was completed, and it reads the catalog again; otherwise it publishes its
 *    list, which contains x.
 * 5. B continues, and removes x from A's list if necessary.
 *
 * Afterwards y exists and x does not. */
static void drop_during_a_creation(bool seen) {
    stage s;
    far_session *other;
    far_index *index;
    set_up(&s, 1, "none");
    create_x_with_a_key(&s);
    actor *creator = &s.actors[0], *dropper = &s.actors[1];
    assert_int_equal(far_session_open(dropper->pool, &other), 0);
    start_actor(creator, "creator", create_y);
    start_actor(dropper, "dropper", drop_x);
    far_sim_stop_before(creator->client, (far_sim_match){.point = "catalog:swap_word"});
    far_sim_stop_before(dropper->client, (far_sim_match){.point = "catalog:entry_flagged"});
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
    world_assert_nothing_leaked_after_collection(other);
    far_session_close(other);
    tear_down(&s);
}


/* A client that adds an index and copied the list before another index was dropped cannot restore that index. Fails
 * without the reduced count in the catalog word (far_catalog_read), or without the loop in remove_from_catalog. */
TEST(a_creator_that_read_the_old_list_does_not_restore_a_dropped_index) {
    drop_during_a_creation(true);
    drop_during_a_creation(false);
}


/* Client A is stopped with a pin. B's first check waits for A, gives up and names it. The loss counter then makes a
 * handle start a collection, which waits for A as well. B's second check waits for that collection, and must name A
 * too. */
TEST(a_check_concurrent_with_a_waiting_collection_names_the_stalled_client) {
    stage s;
    char name[32];
    set_up(&s, 1, "none");
    create_x_with_a_key(&s);
    actor *stopped = &s.actors[0], *checker = &s.actors[1];
    start_actor(stopped, "stopped", open_x);
    far_sim_stop_before(stopped->client, (far_sim_match){.point = "catalog:confirm_listed"});
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


/* Suspends the client that runs `sleeps` before its n-th verb. The client that runs `works` continues until it ends or
 * waits for the suspended client; then the suspended client resumes. Returns false if there is no n-th verb. */
static bool suspend_before(stage *s, unsigned nth, void (*sleeps)(void *arg), void (*works)(void *arg)) {
    actor *sleeper = &s->actors[0], *worker = &s->actors[1];
    assert_true(nth < VERBS_MAX);
    start_actor(sleeper, "sleeper", sleeps);
    far_sim_stop_before(sleeper->client, (far_sim_match){.nth = nth});
    bool stopped = far_sim_run_client(sleeper->client) == FAR_SIM_STOPPED;
    start_actor(worker, "worker", works);
    far_sim_run_for(s->world, 2000000);
    far_sim_resume(sleeper->client);
    assert_int_equal(far_sim_run(s->world), FAR_SIM_ENDED);
    return stopped;
}


/* Calls puts until the handle has observed that the index was dropped. */
static void await_dropped(stage *s, actor *a) {
    unsigned rounds = 0;
    int err;
    while ((err = far_put(a->session, a->index, "k", 1, "w", 1)) == 0) {
        assert_true(++rounds < VERBS_MAX);
        far_sim_sleep(s->world, 1000000);
    }
    assert_int_equal(err, FAR_ERR_NOT_FOUND);
    assert_non_null(strstr(far_last_error(), "was dropped"));
}


/* The drop has succeeded. If the opener has the index open, it learns of the drop, and its memory is freed. */
static void check_dropped(stage *s, actor *opener, actor *dropper, unsigned *opened, unsigned *missed) {
    far_index *index;
    assert_int_equal(dropper->result, 0);
    if (opener->result != 0 && opener->result != FAR_ERR_NOT_FOUND)
        fail_msg("the opener got %d", opener->result);
    *opened += opener->result == 0;
    *missed += opener->result != 0;
    if (opener->result == 0)
        await_dropped(s, opener);
    assert_int_equal(far_index_open(dropper->session, "x", &index), FAR_ERR_NOT_FOUND);
    far_sim_sleep(s->world, 50000000); /* the memory of x is freed while the opener has it open */
    world_assert_nothing_leaked_after_collection(dropper->session);
    tear_down(s);
}


/* A opens x and is suspended before its n-th verb, for every n, while B drops x. Either A finds no index, or it learns
 * of the drop later. Fails without far_index_confirm_listed in open_new. */
TEST(an_opener_that_resumes_late_learns_of_the_drop) {
    unsigned opened = 0, missed = 0, nth = 0;
    for (bool stopped = true; stopped;) {
        stage s;
        set_up(&s, 1, "none");
        create_x_with_a_key(&s);
        stopped = suspend_before(&s, ++nth, open_x, drop_x);
        check_dropped(&s, &s.actors[0], &s.actors[1], &opened, &missed);
    }
    assert_true(opened > 0 && missed > 1);
}


/* A drops x and is suspended before its n-th verb, for every n, while B opens x. */
TEST(a_dropper_that_resumes_late_drops_an_index_that_was_opened) {
    unsigned opened = 0, missed = 0, nth = 0;
    for (bool stopped = true; stopped;) {
        stage s;
        set_up(&s, 1, "none");
        create_x_with_a_key(&s);
        stopped = suspend_before(&s, ++nth, drop_x, open_x);
        check_dropped(&s, &s.actors[1], &s.actors[0], &opened, &missed);
    }
    assert_true(opened > 1 && missed > 0);
}


/* A creates x and is suspended before its n-th verb, for every n, while B drops x as soon as it exists. A learns of the
 * drop later. Fails without far_index_confirm_listed in publish_index. */
TEST(a_creator_that_resumes_late_learns_of_the_drop) {
    unsigned dropped = 0, nth = 0;
    for (bool stopped = true; stopped;) {
        stage s;
        set_up(&s, 1, "none");
        stopped = suspend_before(&s, ++nth, create_x, drop_x);
        assert_int_equal(s.actors[0].result, 0);
        if (s.actors[1].result == 0) {
            dropped++;
            await_dropped(&s, &s.actors[0]);
            far_sim_sleep(s.world, 50000000);
            world_assert_nothing_leaked_after_collection(s.actors[1].session);
        } else {
            assert_int_equal(s.actors[1].result, FAR_ERR_NOT_FOUND);
            assert_int_equal(far_put(s.actors[0].session, s.actors[0].index, "k", 1, "w", 1), 0);
        }
        tear_down(&s);
    }
    assert_true(dropped > 1 && nth > dropped);
}


/* A creates x and is suspended before its n-th verb, for every n, while B creates x. Exactly one succeeds. */
TEST(a_creator_that_resumes_late_has_won_or_finds_the_name_taken) {
    unsigned won = 0, lost = 0, nth = 0;
    for (bool stopped = true; stopped;) {
        stage s;
        set_up(&s, 1, "none");
        stopped = suspend_before(&s, ++nth, create_x, create_x);
        int first = s.actors[0].result, second = s.actors[1].result;
        if (!(first == 0 && second == FAR_ERR_EXISTS) && !(first == FAR_ERR_EXISTS && second == 0))
            fail_msg("suspended before verb %u: %d and %d", nth, first, second);
        won += first == 0;
        lost += second == 0;
        tear_down(&s);
    }
    assert_true(won > 0 && lost > 1);
}


/* A client that opens x is suspended before its n-th verb, for every n, and is declared failed. When it resumes it gets
 * FAR_ERR_FENCED, unless the open was complete, and its verbs have no effect: x can be opened and dropped. */
TEST(an_opener_declared_failed_while_suspended_holds_nothing_open) {
    unsigned nth = 0, fenced = 0;
    for (bool stopped = true; stopped;) {
        stage s;
        set_up(&s, 1, "none");
        create_x_with_a_key(&s);
        actor *sleeper = &s.actors[0];
        start_actor(sleeper, "sleeper", open_x);
        far_sim_stop_before(sleeper->client, (far_sim_match){.nth = ++nth});
        stopped = far_sim_run_client(sleeper->client) == FAR_SIM_STOPPED;
        assert_true(nth < VERBS_MAX);
        far_sim_declare_dead(s.world, sleeper->session->id, sleeper->session->generation);
        if (stopped) {
            far_sim_resume(sleeper->client);
            assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
        }
        fenced += sleeper->result == FAR_ERR_FENCED;
        if (sleeper->result == 0) { /* the open was complete, or only verbs of the handle's system session were left */
            far_index_close(sleeper->index);
            sleeper->index = NULL;
        }
        far_sim_sleep(s.world, 1000000); /* In this millisecond the housekeeping of that handle runs. */
        assert_true(check_name_works(&s.actors[1]));
        tear_down(&s);
    }
    assert_true(fenced > 5);
}
