/* Tests of a catalog of two objects in the simulator: clients drop an index of each object and create one at the same
 * time, while another client opens one of the dropped indexes. */
#include "../support/world.h"
#include "pool/catalog/layout.h"
#include "test.h"

#include <stdio.h>
#include <string.h>

enum {
    LISTED = FAR_CATALOG_ENTRIES_MAX + 2, /* number of indexes before each round */
    VERBS_MAX = 400,
    RANDOM_ROUNDS = 40
};

typedef struct actor { /* One handle with one session, its action on the index `name`, and the result. */
    far_pool *pool;
    far_session *session;
    far_sim_client *client;
    far_index *index;
    char name[16];
    int result;
} actor;

enum { CREATOR, FIRST_DROPPER, SECOND_DROPPER, OPENER, ACTORS };

typedef struct stage {
    char uri[WORLD_URI];
    far_sim_world *world;
    actor actors[ACTORS];
    actor user;            /* has the indexes open that are dropped */
    unsigned live[LISTED]; /* numbers of the listed indexes, in the order of the list */
    unsigned count, created;
} stage;


static void write_name(char name[16], unsigned number) {
    snprintf(name, 16, "index%u", number);
}


static void create_main(void *arg) {
    actor *a = arg;
    a->result = far_index_create(a->session, a->name, "toy", "slots=1", &a->index);
}


static void drop_main(void *arg) {
    actor *a = arg;
    a->result = far_index_drop(a->session, a->name);
}


static void open_main(void *arg) {
    actor *a = arg;
    a->result = far_index_open(a->session, a->name, &a->index);
}


static void (*const actions[ACTORS])(void *arg) = {create_main, drop_main, drop_main, open_main};


/* Creates indexes until the first object of the catalog is full and the second one has two entries. */
static void fill_catalog(stage *s) {
    while (s->count < LISTED) {
        char name[16];
        far_index *index;
        write_name(name, s->created);
        assert_int_equal(far_index_create(s->user.session, name, "toy", "slots=1", &index), 0);
        far_index_close(index);
        s->live[s->count++] = s->created++;
    }
}


static void set_up(stage *s, const char *faults) {
    memset(s, 0, sizeof(*s));
    world_uri(s->uri, "seed=1,size=64M,limit=1000s,faults=%s", faults);
    s->world = world_join(s->uri, NULL, &s->user.pool, &s->user.session);
    for (unsigned i = 0; i < ACTORS; i++)
        world_join(s->uri, NULL, &s->actors[i].pool, &s->actors[i].session);
}


static void tear_down(stage *s) {
    world_assert_nothing_leaked_after_collection(s->user.session);
    world_assert_no_checker_error(s->world);
    for (unsigned i = 0; i <= ACTORS; i++) {
        actor *a = i < ACTORS ? &s->actors[i] : &s->user;
        far_session_close(a->session);
        far_pool_close(a->pool);
    }
}


static int count_listed(void *ctx, const char *name, const char *kind) {
    (void)name, (void)kind;
    ++*(unsigned *)ctx;
    return 0;
}


/* The user has this index open. It learns that the index was dropped, and the name is free. */
static void expect_dropped(stage *s, far_index *index, unsigned number) {
    char name[16];
    far_index *found;
    unsigned rounds = 0;
    int err;
    while ((err = far_put(s->user.session, index, "k", 1, "w", 1)) == 0) {
        assert_true(++rounds < VERBS_MAX);
        far_sim_sleep(s->world, 1000000);
    }
    assert_int_equal(err, FAR_ERR_NOT_FOUND);
    far_index_close(index);
    write_name(name, number);
    assert_int_equal(far_index_open(s->user.session, name, &found), FAR_ERR_NOT_FOUND);
}


static bool is_listed(stage *s, const char *name) {
    far_index *index;
    int err = far_index_open(s->user.session, name, &index);
    if (err == 0)
        far_index_close(index);
    else
        assert_int_equal(err, FAR_ERR_NOT_FOUND);
    return err == 0;
}


/* All actors run at the same time: the first index of each catalog object is dropped, and another one is created. Actor
 * `special` (ACTORS: none) is suspended before its nth verb until the others have ended, or is killed at that verb.
 * Returns false if it has fewer verbs. */
static bool run_round(stage *s, unsigned special, unsigned nth, bool kill) {
    const unsigned first = s->live[0], second = s->live[FAR_CATALOG_ENTRIES_MAX], added = s->created++;
    far_index *in_first, *in_second;
    assert_true(nth < VERBS_MAX && s->count == LISTED);
    write_name(s->actors[CREATOR].name, added);
    write_name(s->actors[FIRST_DROPPER].name, first);
    write_name(s->actors[SECOND_DROPPER].name, second);
    write_name(s->actors[OPENER].name, second);
    assert_int_equal(far_index_open(s->user.session, s->actors[FIRST_DROPPER].name, &in_first), 0);
    assert_int_equal(far_index_open(s->user.session, s->actors[SECOND_DROPPER].name, &in_second), 0);
    bool reached = false;
    for (unsigned i = 0; i <= ACTORS; i++) { /* the special actor begins first */
        const unsigned at = i == 0 ? special : i - 1;
        if (at == ACTORS || (i > 0 && at == special))
            continue;
        actor *a = &s->actors[at];
        a->result = 77;
        a->index = NULL;
        a->client = world_start(a->pool, "actor", actions[at], a);
        if (at == special && kill)
            far_sim_kill_at(a->client, (far_sim_match){.nth = nth}, FAR_SIM_WHOLE);
        else if (at == special) {
            far_sim_stop_before(a->client, (far_sim_match){.nth = nth});
            reached = far_sim_run_client(a->client) == FAR_SIM_STOPPED;
        }
    }
    if (reached) {
        far_sim_run_for(s->world, 2000000);
        far_sim_resume(s->actors[special].client);
    }
    assert_int_equal(far_sim_run(s->world), FAR_SIM_ENDED);
    if (kill)
        reached = far_sim_killed(s->actors[special].pool->fabric);
    for (unsigned i = 0; i < ACTORS; i++) {
        actor *a = &s->actors[i];
        bool died = kill && reached && i == special;
        if (!died && a->result != 0 && (i != OPENER || a->result != FAR_ERR_NOT_FOUND))
            fail_msg("actor %u, special %u before verb %u: %d", i, special, nth, a->result);
        if (died && i != CREATOR && i != OPENER && is_listed(s, a->name))
            assert_int_equal(far_index_drop(s->user.session, a->name), 0);
        far_index_close(a->index);
    }
    expect_dropped(s, in_first, first);
    expect_dropped(s, in_second, second);
    memmove(s->live, s->live + 1, (LISTED - 1) * sizeof(*s->live));
    s->live[FAR_CATALOG_ENTRIES_MAX - 1] = s->live[FAR_CATALOG_ENTRIES_MAX];
    s->count = LISTED - 2;
    if (is_listed(s, s->actors[CREATOR].name))
        s->live[s->count++] = added;
    unsigned listed = 0;
    far_index_list(s->user.session, count_listed, &listed);
    assert_int_equal(listed, s->count);
    world_assert_no_checker_error(s->world);
    fill_catalog(s);
    if (kill && reached) {
        actor *a = &s->actors[special];
        far_session_close(a->session);
        far_pool_close(a->pool);
        world_join(s->uri, NULL, &a->pool, &a->session);
    }
    return reached;
}


/* One of the clients is suspended before its nth verb, for every n, until the other ones have ended. */
TEST(a_client_that_resumes_late_restores_and_loses_no_index) {
    static stage s;
    set_up(&s, "none");
    fill_catalog(&s);
    for (unsigned special = 0; special < ACTORS; special++) {
        unsigned nth = 1;
        while (run_round(&s, special, nth, false))
            nth++;
        assert_true(nth > 5);
    }
    tear_down(&s);
}


/* One of the clients fails at its nth verb, for every n, while the other ones run. */
TEST(a_client_that_fails_leaves_a_catalog_of_two_objects_complete) {
    static stage s;
    set_up(&s, "none");
    fill_catalog(&s);
    for (unsigned special = 0; special < ACTORS; special++) {
        unsigned nth = 1;
        while (run_round(&s, special, nth, true))
            nth++;
        assert_true(nth > 5);
    }
    tear_down(&s);
}


TEST(drops_in_two_objects_and_a_creation_at_random) {
    static stage s;
    set_up(&s, "all");
    fill_catalog(&s);
    for (unsigned i = 0; i < RANDOM_ROUNDS; i++)
        run_round(&s, ACTORS, 1, false);
    tear_down(&s);
}
