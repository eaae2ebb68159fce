/* The toy map in the simulator: death at every verb, and for each fault that it can be given the interleaving that shows it; the sound
 * map passes the same interleaving. */
#include "fabric/sim/sim.h"
#include "farindex.h"
#include "pool/handle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { NODES = 2, VERBS_MAX = 100, LONG = 256 };

typedef struct actor {
    far_pool *pool;
    far_session *session;
    far_sim_client *client;
    far_index *index;
    const char *key;
    char value[LONG];
    size_t length;
    int result;
    bool ended;
} actor;

typedef struct stage {
    far_sim_world *world;
    actor a, b;
} stage;


static void open_actor(actor *a, const char *uri) {
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    options.rdwc = 0;
    assert_int_equal(far_pool_open(uri, &options, &a->pool), 0);
    assert_int_equal(far_session_open(a->pool, &a->session), 0);
}


static void set_up(stage *s, const char *options) {
    static unsigned serial; /* a test that failed leaves its world behind */
    char uri[128];
    snprintf(uri, sizeof(uri), "sim:name=toy%u,seed=1,size=32M,memory_nodes=2,faults=none", ++serial);
    memset(s, 0, sizeof(*s));
    open_actor(&s->a, uri);
    open_actor(&s->b, uri);
    s->world = far_sim_world_of(s->a.pool->fabric);
    assert_int_equal(far_index_create(s->a.session, "map", "toy", options, &s->a.index), 0);
    assert_int_equal(far_index_open(s->b.session, "map", &s->b.index), 0);
}


static void tear_down(stage *s) {
    for (actor *a = &s->a; a; a = a == &s->a ? &s->b : NULL) {
        far_index_close(a->index);
        far_session_close(a->session);
        far_pool_close(a->pool);
    }
}


static void put(void *arg) {
    actor *a = arg;
    a->result = far_put(a->session, a->index, a->key, strlen(a->key), a->value, a->length);
    a->ended = true;
}


static void get(void *arg) {
    actor *a = arg;
    a->result = far_get(a->session, a->index, a->key, strlen(a->key), a->value, sizeof(a->value), &a->length);
    a->ended = true;
}


static void start(actor *a, const char *name, void (*run)(void *arg), const char *key, const char *value) {
    a->key = key;
    a->length = strlen(value);
    memcpy(a->value, value, a->length);
    a->ended = false;
    a->client = far_sim_start(a->pool->fabric, name, run, a);
    assert_non_null(a->client);
}


/* From outside. */
static void write(actor *a, const char *key, const char *value) {
    assert_int_equal(far_put(a->session, a->index, key, strlen(key), value, strlen(value)), 0);
}


static bool reads(actor *a, const char *key, const char *value) {
    char back[LONG];
    size_t length = 0;
    int result = far_get(a->session, a->index, key, strlen(key), back, sizeof(back), &length);
    return result == 0 && length == strlen(value) && memcmp(back, value, length) == 0;
}


static int fail_at_problem(void *ctx, const char *what) {
    (void)ctx;
    fail_msg("%s", what);
    return 1;
}


static void is_sound(actor *a) {
    assert_int_equal(far_index_check(a->session, a->index, fail_at_problem, NULL), 0);
}


/* After a full sweep nothing is in use but what the index reaches. */
static void nothing_is_lost(actor *a) {
    far_pool_usage usage;
    assert_int_equal(far_pool_check(a->session, 1, fail_at_problem, NULL), 0);
    assert_int_equal(far_pool_check(a->session, 0, fail_at_problem, NULL), 0);
    assert_int_equal(far_pool_stat(a->session, &usage), 0);
    assert_int_equal(usage.leaked, 0);
}


static void a_writer_that_dies_leaves_all_or_nothing(void **state) {
    (void)state;
    static const uint32_t units[] = {0, 1, FAR_SIM_WHOLE};
    for (unsigned variant = 0; variant < 6; variant++) {
        bool old_seen = false, new_seen = false, died = true;
        for (unsigned nth = 1; died; nth++) {
            stage s;
            assert_true(nth < VERBS_MAX);
            set_up(&s, variant % 2 ? "slots=1,locks=on" : "slots=1");
            write(&s.b, "k", "old");
            write(&s.b, "other", "same");
            start(&s.a, "dying", put, "k", "new and longer");
            far_sim_kill_at(s.a.client, (far_sim_match){.nth = nth}, units[variant / 2]);
            assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
            died = far_sim_killed(s.a.pool->fabric);
            bool is_old = reads(&s.b, "k", "old"), is_new = reads(&s.b, "k", "new and longer");
            assert_true(is_old != is_new);
            assert_true(reads(&s.b, "other", "same"));
            if (s.a.result == 0)
                assert_true(is_new);
            old_seen |= is_old;
            new_seen |= is_new;
            write(&s.b, "k", "after"); /* nobody is held up by the dead */
            assert_true(reads(&s.b, "k", "after"));
            is_sound(&s.b);
            nothing_is_lost(&s.b);
            assert_int_equal(far_sim_watch_errors(s.world), 0);
            tear_down(&s);
        }
        assert_true(old_seen && new_seen);
    }
}


/* b writes another key of the slot between a's READ and a's publishing. Returns whether both are there and were promised. */
static bool keeps_both_writes(const char *options) {
    stage s;
    set_up(&s, options);
    write(&s.a, "z", "0");
    start(&s.a, "a", put, "x", "1");
    far_sim_stop_before(s.a.client, (far_sim_match){.point = "toy:publish"});
    assert_int_equal(far_sim_run_client(s.a.client), FAR_SIM_STOPPED);
    write(&s.b, "y", "2");
    far_sim_resume(s.a.client);
    assert_int_equal(far_sim_run_client(s.a.client), FAR_SIM_ENDED);
    assert_int_equal(s.a.result, 0);
    bool kept = reads(&s.b, "x", "1") && reads(&s.b, "y", "2") && reads(&s.b, "z", "0");
    tear_down(&s);
    return kept;
}


static void concurrent_writes_of_a_slot_are_all_kept(void **state) {
    (void)state;
    assert_true(keeps_both_writes("slots=1"));
    assert_false(keeps_both_writes("slots=1,broken=lost_update"));
    assert_false(keeps_both_writes("slots=1,broken=dropped_write"));
}


/* a's WRITE of a long value has landed to one half when b reads. Returns whether b gets the old or the new value. */
static bool reads_whole_values(const char *options) {
    char old[LONG], new[LONG];
    stage s;
    memset(old, 'o', LONG - 1);
    memset(new, 'n', LONG - 1);
    old[LONG - 1] = new[LONG - 1] = '\0';
    set_up(&s, options);
    write(&s.a, "k", old);
    start(&s.a, "a", put, "k", new);
    far_sim_hold *hold = far_sim_hold_effect(s.a.client, (far_sim_match){.kind = FAR_SIM_WRITE});
    while (!far_sim_reached(hold))
        far_sim_run_client(s.a.client);
    assert_true(far_sim_hold_units(hold) > 2);
    assert_int_equal(far_sim_release_units(hold, (const uint32_t[]){0, 1}, 2), 0);
    bool whole = reads(&s.b, "k", old) || reads(&s.b, "k", new);
    far_sim_release(hold);
    assert_int_equal(far_sim_run_client(s.a.client), FAR_SIM_ENDED);
    assert_true(reads(&s.b, "k", new));
    tear_down(&s);
    return whole;
}


static void a_reader_sees_no_half_written_value(void **state) {
    (void)state;
    assert_true(reads_whole_values("slots=1"));
    assert_true(reads_whole_values("slots=1,locks=on"));
    assert_false(reads_whole_values("slots=1,broken=torn_read"));
}


/* The WRITE of a's bucket is late; what follows on the slot's node is not. Returns whether b reads well meanwhile. */
static bool publishes_in_order(const char *options) {
    stage s;
    set_up(&s, options);
    write(&s.a, "k", "old");
    start(&s.a, "a", put, "k", "new");
    far_sim_hold *hold = far_sim_hold_effect(s.a.client, (far_sim_match){.kind = FAR_SIM_WRITE});
    while (!far_sim_reached(hold))
        far_sim_run_client(s.a.client);
    far_sim_run_client(s.a.client);
    bool well = reads(&s.b, "k", "old") || reads(&s.b, "k", "new");
    far_sim_release(hold);
    assert_int_equal(far_sim_run_client(s.a.client), FAR_SIM_ENDED);
    assert_true(reads(&s.b, "k", "new"));
    tear_down(&s);
    return well;
}


static void a_slot_never_points_to_an_unwritten_bucket(void **state) {
    (void)state;
    assert_true(publishes_in_order("slots=1"));
    assert_true(publishes_in_order("slots=1,locks=on"));
    assert_false(publishes_in_order("slots=1,broken=unordered"));
}


/* b reads the slot, then a replaces the bucket twice. Returns whether b's read is good and nobody touched free memory. */
static bool keeps_what_others_read(const char *options) {
    stage s;
    set_up(&s, options);
    write(&s.a, "k", "old");
    start(&s.b, "b", get, "k", "");
    far_sim_stop_before(s.b.client, (far_sim_match){.point = "toy:slot_read"});
    assert_int_equal(far_sim_run_client(s.b.client), FAR_SIM_STOPPED);
    write(&s.a, "k", "mid");
    write(&s.a, "k", "new");
    far_sim_resume(s.b.client);
    assert_int_equal(far_sim_run_client(s.b.client), FAR_SIM_ENDED);
    bool good = s.b.result == 0 && memcmp(s.b.value, "old", 3) == 0 && far_sim_watch_errors(s.world) == 0;
    tear_down(&s);
    return good;
}


static void memory_that_others_read_is_not_reused(void **state) {
    (void)state;
    assert_true(keeps_what_others_read("slots=1"));
    assert_true(keeps_what_others_read("slots=1,locks=on"));
    assert_false(keeps_what_others_read("slots=1,broken=early_free"));
}


/* a dies with the lock. Returns whether b can write. */
static bool takes_over(const char *options) {
    stage s;
    set_up(&s, options);
    write(&s.a, "k", "old");
    start(&s.a, "a", put, "k", "never");
    far_sim_stop_before(s.a.client, (far_sim_match){.point = "toy:locked"});
    assert_int_equal(far_sim_run_client(s.a.client), FAR_SIM_STOPPED);
    far_sim_kill(s.a.pool->fabric);
    start(&s.b, "b", put, "k", "new");
    far_sim_run_for(s.world, 20000000);
    bool ended = s.b.ended;
    if (ended)
        assert_true(s.b.result == 0 && reads(&s.b, "k", "new"));
    else
        far_sim_kill(s.b.pool->fabric);
    far_sim_resume(s.a.client);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    tear_down(&s);
    return ended;
}


static void the_lock_of_a_dead_client_is_taken_over(void **state) {
    (void)state;
    assert_true(takes_over("slots=1,locks=on"));
    assert_false(takes_over("slots=1,broken=forgotten_lock"));
}


/* A live holder is waited for. */
static void the_lock_of_a_live_client_is_respected(void **state) {
    (void)state;
    stage s;
    set_up(&s, "slots=1,locks=on");
    start(&s.a, "a", put, "k", "first");
    far_sim_stop_before(s.a.client, (far_sim_match){.point = "toy:publish"});
    assert_int_equal(far_sim_run_client(s.a.client), FAR_SIM_STOPPED);
    start(&s.b, "b", put, "k", "second");
    far_sim_run_for(s.world, 20000000);
    assert_false(s.b.ended);
    far_sim_resume(s.a.client);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    assert_true(reads(&s.a, "k", "second"));
    tear_down(&s);
}


static bool sees_the_newest(const char *options) {
    stage s;
    set_up(&s, options);
    write(&s.a, "k", "old");
    assert_true(reads(&s.b, "k", "old"));
    write(&s.a, "k", "new");
    bool newest = reads(&s.b, "k", "new");
    tear_down(&s);
    return newest;
}


static void a_get_after_a_put_sees_it(void **state) {
    (void)state;
    assert_true(sees_the_newest("slots=1"));
    assert_false(sees_the_newest("slots=1,broken=stale_cache"));
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_writer_that_dies_leaves_all_or_nothing),
        cmocka_unit_test(concurrent_writes_of_a_slot_are_all_kept),
        cmocka_unit_test(a_reader_sees_no_half_written_value),
        cmocka_unit_test(a_slot_never_points_to_an_unwritten_bucket),
        cmocka_unit_test(memory_that_others_read_is_not_reused),
        cmocka_unit_test(the_lock_of_a_dead_client_is_taken_over),
        cmocka_unit_test(the_lock_of_a_live_client_is_respected),
        cmocka_unit_test(a_get_after_a_put_sees_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
