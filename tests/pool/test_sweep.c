/* The leak sweep in the simulator: beside live clients, after deaths, with sleepers, and cut off anywhere. After a
 * repairing sweep a second one finds nothing: allocated = reachable. */
#include "fabric/sim/sim.h"
#include "index/report.h"
#include "pool/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { NODES = 3, KEYS = 40, VERBS_MAX = 20000 };

typedef struct actor { /* a client of one compute node, with keys of its own */
    unsigned number;
    far_pool *pool;
    far_session *session;
    far_sim_client *client;
    far_index *index;
    uint8_t versions[KEYS]; /* 0: absent */
    unsigned steps;
    int result;
    far_sweep_result swept;
    bool all, repair;
    far_addr object;
} actor;

typedef struct stage {
    far_sim_world *world;
    actor actors[NODES];
} stage;


/* More of them on request. */
static unsigned seeds(unsigned usual) {
    const char *wish = getenv("FARINDEX_SEEDS");
    return wish != NULL ? (unsigned)strtoul(wish, NULL, 10) : usual;
}


static void set_up_with(stage *s, unsigned seed, const char *faults, unsigned sleepers) {
    char uri[160];
    memset(s, 0, sizeof(*s));
    static unsigned serial;
    snprintf(uri, sizeof(uri), "sim:name=sweep%u,seed=%u,size=4M,memory_nodes=2,faults=none,limit=200s", serial++,
             seed);
    for (unsigned i = 0; i < NODES; i++) {
        far_pool_options options = FAR_POOL_OPTIONS_INIT;
        options.no_thread = sleepers >> i & 1;
        actor *a = &s->actors[i];
        a->number = i;
        assert_int_equal(far_pool_open(uri, &options, &a->pool), 0);
        assert_int_equal(far_session_open(a->pool, &a->session), 0);
        if (i == 0)
            assert_int_equal(far_index_create(a->session, "x", "toy", "slots=16", &a->index), 0);
        else
            assert_int_equal(far_index_open(a->session, "x", &a->index), 0);
    }
    s->world = far_sim_world_of(s->actors[0].pool->fabric);
    if (strcmp(faults, "all") == 0)
        far_sim_set_faults(s->world, FAR_SIM_ALL_FAULTS);
}


static void set_up(stage *s, unsigned seed, const char *faults) {
    set_up_with(s, seed, faults, 0);
}


static void tear_down(stage *s) {
    for (unsigned i = 0; i < NODES; i++) {
        far_index_close(s->actors[i].index);
        far_session_close(s->actors[i].session);
    }
    if (far_sim_watch_errors(s->world))
        fail_msg("seed %llu: %s", (unsigned long long)far_sim_seed(s->world), far_sim_watch_error(s->world, 0));
    for (unsigned i = 0; i < NODES; i++)
        far_pool_close(s->actors[i].pool);
}


static void start(actor *a, const char *name, void (*run)(void *arg)) {
    a->result = 77;
    a->client = far_sim_start(a->pool->fabric, name, run, a);
    assert_non_null(a->client);
}


/* What actors do. */

static int put_key(actor *a, unsigned k, uint8_t version) {
    char key[8], value[600];
    size_t length = 8 + (k * 37u + version * 101u) % 592;
    snprintf(key, sizeof(key), "%u.%03u", a->number, k);
    memset(value, version, length);
    return far_put(a->session, a->index, key, 5, value, length);
}


static int delete_key(actor *a, unsigned k) {
    char key[8];
    snprintf(key, sizeof(key), "%u.%03u", a->number, k);
    return far_delete(a->session, a->index, key, 5);
}


static void work(void *arg) {
    actor *a = arg;
    a->result = 0;
    for (unsigned i = 0; i < a->steps && a->result == 0; i++) {
        unsigned k = (unsigned)far_random_below(&a->session->random, KEYS);
        if (a->versions[k] != 0 && far_random_chance(&a->session->random, 1, 3)) {
            a->result = delete_key(a, k);
            a->versions[k] = 0;
        } else {
            uint8_t version = (uint8_t)(1 + far_random_below(&a->session->random, 255));
            a->result = put_key(a, k, version);
            a->versions[k] = version;
        }
    }
}


/* By `reader`: the keys of `a` are as it left them. */
static void assert_keys(actor *reader, const actor *a) {
    for (unsigned k = 0; k < KEYS; k++) {
        char key[8], value[600];
        size_t length = 0;
        snprintf(key, sizeof(key), "%u.%03u", a->number, k);
        int err = far_get(reader->session, reader->index, key, 5, value, sizeof(value), &length);
        if (a->versions[k] == 0) {
            assert_int_equal(err, FAR_ERR_NOT_FOUND);
            continue;
        }
        assert_int_equal(err, 0);
        assert_int_equal(length, 8 + (k * 37u + a->versions[k] * 101u) % 592);
        for (size_t i = 0; i < length; i++)
            assert_int_equal((uint8_t)value[i], a->versions[k]);
    }
}


static int run_sweep(far_task *t, void *arg) {
    actor *a = arg;
    return far_sweep(t, a->all, a->repair, &a->swept);
}


static int sweep(actor *a, bool all, bool repair) {
    a->all = all;
    a->repair = repair;
    return far_session_call(a->session, FAR_STATS_OTHER, true, run_sweep, a);
}


/* From outside: the housekeeping of another handle may be sweeping. */
static int sweep_in_turn(actor *a, bool all, bool repair) {
    int err = FAR_ERR_BUSY;
    for (unsigned i = 0; i < 1000 && err == FAR_ERR_BUSY; i++) {
        err = sweep(a, all, repair);
        if (err == FAR_ERR_BUSY)
            far_sim_sleep(far_sim_world_of(a->pool->fabric), 1000000);
    }
    return err;
}


static void sweep_and_tell(void *arg) {
    actor *a = arg;
    a->result = sweep(a, a->all, a->repair);
}


/* Objects that are linked nowhere: some of the index's, some of the pool's own, and a run. */
static int leak(far_task *t, void *arg) {
    actor *a = arg;
    far_object object;
    int err = far_pin_take(t);
    for (unsigned i = 0; i < 10 && err == 0; i++)
        err = far_alloc(t, a->index, 0, 100 + 50 * i, FAR_NODE_ANY, 0, &object);
    if (err == 0)
        err = far_alloc(t, NULL, 5, 100, FAR_NODE_ANY, 0, &object);
    if (err == 0)
        err = far_alloc(t, a->index, 0, 100000, FAR_NODE_ANY, 0, &object);
    far_pin_drop(t);
    return err;
}


static int run_check(far_task *t, void *arg) {
    return far_memory_check(t, arg);
}


static int print_problem(void *ctx, const char *what) {
    (void)ctx;
    print_message("%s\n", what);
    return 0;
}


static void assert_tables_sound(actor *a) {
    far_report report = {0};
    assert_int_equal(far_session_call(a->session, FAR_STATS_OTHER, true, run_check, &report), 0);
    assert_int_equal(far_report_tell(&report, print_problem, NULL), 0);
    far_report_free(&report);
}


/* By a survivor: everything the dead and the careless left is found, and then there is nothing more. */
static void assert_nothing_lost(stage *s, actor *a) {
    int err = sweep_in_turn(a, true, true);
    if (err != 0)
        fail_msg("seed %llu: the sweep gave %d: %s", (unsigned long long)far_sim_seed(s->world), err, far_last_error());
    assert_int_equal(a->swept.leaked_bytes, a->swept.repaired_bytes);
    assert_int_equal(sweep_in_turn(a, true, false), 0);
    if (a->swept.leaked_bytes != 0)
        fail_msg("seed %llu: %llu bytes are still lost", (unsigned long long)far_sim_seed(s->world),
                 (unsigned long long)a->swept.leaked_bytes);
    assert_tables_sound(a);
    far_pool_usage usage = {0};
    assert_int_equal(far_pool_stat(a->session, &usage), 0);
    assert_int_equal(usage.leaked, 0);
}


static void run_all(stage *s) {
    far_sim_result result = far_sim_run(s->world);
    if (result != FAR_SIM_ENDED)
        fail_msg("seed %llu: %s", (unsigned long long)far_sim_seed(s->world), far_sim_result_name(result));
}


/* After a while of quiet, in which everybody has told what it holds. */
static uint64_t used_bytes(actor *a) {
    far_pool_usage usage = {0};
    far_sim_sleep(far_sim_world_of(a->pool->fabric), 2000000);
    assert_int_equal(far_pool_stat(a->session, &usage), 0);
    assert_int_equal(usage.total, usage.used + usage.retired + usage.free + usage.leaked);
    return usage.used;
}


/* Tests. */

static void what_is_linked_nowhere_is_counted_then_freed(void **state) {
    (void)state;
    stage s;
    set_up(&s, 1, "none");
    actor *a = &s.actors[0], *b = &s.actors[1];
    a->steps = 30;
    work(a);
    uint64_t used = used_bytes(b);
    assert_int_equal(far_session_call(a->session, FAR_STATS_OTHER, true, leak, a), 0);
    assert_int_equal(sweep(b, true, false), 0);
    uint64_t leaked = b->swept.leaked_bytes;
    assert_true(leaked >= 10 * 325 + 100 + 100000);
    assert_int_equal(b->swept.repaired_bytes, 0);
    far_pool_usage usage = {0};
    assert_int_equal(far_pool_stat(b->session, &usage), 0);
    assert_int_equal(usage.leaked, leaked);
    assert_int_equal(sweep(b, true, true), 0);
    assert_int_equal(b->swept.leaked_bytes, leaked);
    assert_int_equal(b->swept.repaired_bytes, leaked);
    assert_nothing_lost(&s, b);
    assert_true(used_bytes(b) <= used + 1024);
    assert_keys(b, a);
    a->steps = 60;
    work(a); /* its blocks are its own again */
    assert_int_equal(a->result, 0);
    assert_keys(b, a);
    tear_down(&s);
}


static void the_blocks_of_the_dead_come_back(void **state) {
    (void)state;
    stage s;
    set_up(&s, 2, "none");
    actor *a = &s.actors[0], *b = &s.actors[1];
    a->steps = 200;
    work(a);
    assert_int_equal(far_session_call(a->session, FAR_STATS_OTHER, true, leak, a), 0);
    far_sim_kill(a->pool->fabric);
    assert_int_equal(sweep(b, false, true), 0);
    assert_int_equal(b->swept.dead_clients, 2);
    assert_true(b->swept.repaired_bytes >= 3000);
    assert_keys(b, a);
    assert_nothing_lost(&s, b);
    assert_int_equal(sweep(b, false, true), 0);
    assert_int_equal(b->swept.dead_clients, 0);
    b->steps = 300; /* fills what was left */
    work(b);
    assert_int_equal(b->result, 0);
    assert_keys(b, a);
    assert_keys(a = &s.actors[2], b);
    tear_down(&s);
}


static void sweep_again_and_again(void *arg) {
    actor *a = arg;
    a->result = 0;
    for (unsigned i = 0; i < 3 && a->result == 0; i++) {
        a->result = sweep(a, true, true);
        if (a->result < 0)
            print_message("%s\n", far_last_error());
        if (a->result == 0 && a->swept.leaked_bytes != 0)
            a->result = 1000;
    }
}


static void a_sweep_beside_live_clients_takes_nothing_from_them(void **state) {
    (void)state;
    for (unsigned seed = 1; seed <= seeds(25); seed++) {
        stage s;
        set_up(&s, seed, "all");
        for (unsigned i = 0; i < 2; i++) {
            s.actors[i].steps = 250;
            start(&s.actors[i], i ? "b" : "a", work);
        }
        start(&s.actors[2], "sweeper", sweep_again_and_again);
        run_all(&s);
        for (unsigned i = 0; i < NODES; i++)
            if (s.actors[i].result != 0)
                fail_msg("seed %u: actor %u got %d", seed, i, s.actors[i].result);
        for (unsigned i = 0; i < 2; i++)
            assert_keys(&s.actors[2], &s.actors[i]);
        assert_nothing_lost(&s, &s.actors[2]);
        tear_down(&s);
    }
}


/* A handle without a thread sleeps as long as nobody calls it. */
static void a_sleeper_forgets_what_was_swept_meanwhile(void **state) {
    (void)state;
    for (unsigned sweeps = 1; sweeps <= 3; sweeps++) {
        stage s;
        set_up_with(&s, 3 + sweeps, "none", 1);
        actor *a = &s.actors[0], *b = &s.actors[1];
        a->steps = 200;
        work(a);
        for (unsigned i = 0; i < 200; i++) { /* falls asleep, holding free and retired memory */
            far_pool_poll(a->pool);
            far_sim_sleep(s.world, 1000000);
        }
        assert_false(far_epoch_is_awake(a->pool));
        for (unsigned i = 0; i < sweeps; i++)
            assert_int_equal(sweep(b, true, i != 1), 0); /* the second only counts */
        b->steps = 300;                                  /* takes what the sleeper thinks it holds */
        work(b);
        assert_int_equal(b->result, 0);
        a->steps = 200;
        work(a);
        assert_int_equal(a->result, 0);
        assert_keys(b, a);
        assert_keys(&s.actors[2], b);
        assert_nothing_lost(&s, a);
        tear_down(&s);
    }
}


static void a_sleeper_keeps_what_was_only_counted(void **state) {
    (void)state;
    stage s;
    set_up_with(&s, 9, "none", 1);
    actor *a = &s.actors[0], *b = &s.actors[1];
    a->steps = 200;
    work(a);
    for (unsigned i = 0; i < 200; i++) {
        far_pool_poll(a->pool);
        far_sim_sleep(s.world, 1000000);
    }
    far_memory *m = a->session->memory;
    uint64_t held = m->free_bytes;
    assert_true(held > 0);
    assert_int_equal(sweep(b, true, false), 0);
    assert_true(b->swept.leaked_bytes > 0); /* it cannot be asked */
    a->steps = 1;
    work(a);
    assert_true(m->free_bytes + 4096 >= held);
    assert_nothing_lost(&s, a);
    tear_down(&s);
}


static void of_two_sweepers_one_waits(void **state) {
    (void)state;
    unsigned busy = 0;
    for (unsigned seed = 1; seed <= seeds(20); seed++) {
        stage s;
        set_up(&s, seed, "all");
        s.actors[2].steps = 100;
        start(&s.actors[2], "worker", work);
        for (unsigned i = 0; i < 2; i++) {
            s.actors[i].all = s.actors[i].repair = true;
            start(&s.actors[i], i ? "b" : "a", sweep_and_tell);
        }
        run_all(&s);
        for (unsigned i = 0; i < 2; i++) {
            assert_true(s.actors[i].result == 0 || s.actors[i].result == FAR_ERR_BUSY);
            busy += s.actors[i].result == FAR_ERR_BUSY;
        }
        assert_true(s.actors[0].result == 0 || s.actors[1].result == 0);
        assert_int_equal(s.actors[2].result, 0);
        assert_keys(&s.actors[0], &s.actors[2]);
        assert_nothing_lost(&s, &s.actors[0]);
        tear_down(&s);
    }
    assert_true(busy > 0);
}


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


/* A worker dies somewhere, beside another worker and sweeps of both kinds; then another dies, perhaps the sweeper. */
static void random_deaths_beside_work_and_sweeps_lose_nothing(void **state) {
    (void)state;
    for (unsigned seed = 1; seed <= seeds(60); seed++) {
        stage s;
        set_up(&s, seed, "all");
        far_random r;
        far_random_seed(&r, seed);
        actor *a = &s.actors[0], *b = &s.actors[1], *c = &s.actors[2];
        a->steps = b->steps = 120;
        c->all = c->repair = true;
        work(b); /* something to sweep */
        start(a, "a", work);
        start(b, "b", work);
        start(c, "c", sweep_and_tell);
        actor *dying = far_random_chance(&r, 1, 3) ? c : a;
        far_sim_kill_at(dying->client,
                        (far_sim_match){.nth = 1 + (unsigned)far_random_below(&r, dying == c ? 600 : 900)}, 1);
        run_all(&s);
        actor *alive = far_sim_killed(c->pool->fabric) ? a : c;
        assert_int_equal(b->result, 0);
        assert_keys(b, b);
        work(b);
        assert_int_equal(b->result, 0);
        assert_nothing_lost(&s, alive);
        work(b);
        assert_int_equal(b->result, 0);
        assert_keys(alive, b);
        assert_nothing_lost(&s, b);
        tear_down(&s);
    }
}


static int keep_some(far_task *t, void *arg) {
    actor *a = arg;
    far_object object;
    int err = far_pin_take(t);
    for (unsigned i = 0; i < 100 && err == 0; i++) {
        err = far_alloc(t, a->index, 0, 500, FAR_NODE_ANY, FAR_ALLOC_KEEP, &object);
        if (err == 0)
            err = far_write_word(t, object.addr, 0x4b454550 + i);
    }
    far_pin_drop(t);
    return err;
}


static void what_a_session_keeps_survives_sweeps_and_ends_with_it(void **state) {
    (void)state;
    stage s;
    set_up(&s, 4, "none");
    actor *a = &s.actors[0], *b = &s.actors[1];
    uint64_t used = used_bytes(b);
    assert_int_equal(far_session_call(a->session, FAR_STATS_OTHER, true, keep_some, a), 0);
    assert_int_equal(sweep(b, true, true), 0);
    assert_int_equal(b->swept.leaked_bytes, 0);
    assert_true(used_bytes(b) >= used + 100 * 500);
    far_memory *m = a->session->memory;
    for (size_t i = 0, k = 0; i < m->kept_count; i++)
        if (m->kept[i].addr != 0 && !m->kept[i].reserve) {
            uint64_t word;
            memcpy(&word,
                   (char *)far_sim_memory(s.world, far_addr_node(m->kept[i].addr)) + far_addr_offset(m->kept[i].addr),
                   8);
            assert_int_equal(word, 0x4b454550 + k++);
        }
    far_index_close(a->index);
    a->index = NULL;
    far_session_close(a->session);
    a->session = NULL;
    assert_nothing_lost(&s, b);
    assert_true(used_bytes(b) <= used + 4096);
    tear_down(&s);
}


static void a_drop_gives_back_what_all_sessions_held_of_it(void **state) {
    (void)state;
    stage s;
    set_up(&s, 5, "none");
    for (unsigned i = 0; i < NODES; i++) { /* each has its reserve for x */
        s.actors[i].steps = 5;
        work(&s.actors[i]);
        memset(s.actors[i].versions, 0, KEYS);
    }
    uint64_t used = used_bytes(&s.actors[0]);
    far_index *x[NODES];
    for (unsigned i = 0; i < NODES; i++) {
        actor *a = &s.actors[i];
        x[i] = a->index;
        if (i == 0)
            assert_int_equal(far_index_create(a->session, "y", "toy", "slots=16", &a->index), 0);
        else
            assert_int_equal(far_index_open(a->session, "y", &a->index), 0);
        a->steps = 150;
        work(a);
        assert_int_equal(a->result, 0);
    }
    for (unsigned i = 0; i < NODES; i++) {
        far_index_close(s.actors[i].index);
        s.actors[i].index = x[i];
        memset(s.actors[i].versions, 0, KEYS);
    }
    assert_true(used_bytes(&s.actors[0]) > used + 10000);
    assert_int_equal(far_index_drop(s.actors[1].session, "y"), 0);
    for (unsigned i = 0; i < NODES; i++) { /* all awake */
        s.actors[i].steps = 5;
        work(&s.actors[i]);
    }
    far_sim_sleep(s.world, 20000000);
    assert_true(used_bytes(&s.actors[0]) <= used + 3 * 16384);
    assert_nothing_lost(&s, &s.actors[2]);
    tear_down(&s);
}


int main(int argc, char **argv) {
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_linked_nowhere_is_counted_then_freed),
        cmocka_unit_test(the_blocks_of_the_dead_come_back),
        cmocka_unit_test(a_sweep_beside_live_clients_takes_nothing_from_them),
        cmocka_unit_test(a_sleeper_forgets_what_was_swept_meanwhile),
        cmocka_unit_test(a_sleeper_keeps_what_was_only_counted),
        cmocka_unit_test(of_two_sweepers_one_waits),
        cmocka_unit_test(what_a_session_keeps_survives_sweeps_and_ends_with_it),
        cmocka_unit_test(a_drop_gives_back_what_all_sessions_held_of_it),
        cmocka_unit_test(a_sweep_waits_for_what_is_about_to_be_linked),
        cmocka_unit_test(what_is_given_back_during_a_sweep_is_not_reused_before_its_time),
        cmocka_unit_test(an_owner_that_has_not_heard_of_the_sweep_takes_nothing_early),
        cmocka_unit_test(random_deaths_beside_work_and_sweeps_lose_nothing),
        cmocka_unit_test(a_sweep_cut_off_anywhere_is_done_by_the_next),
        cmocka_unit_test(a_sweep_of_the_dead_cut_off_anywhere_is_done_by_the_next),
        cmocka_unit_test(a_client_that_dies_anywhere_in_the_allocator_loses_nothing),
    };
    return cmocka_run_group_tests_name("sweep", tests, NULL, NULL);
}
