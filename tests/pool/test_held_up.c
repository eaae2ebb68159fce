/* Who holds up the epoch: an operation that waits for epochs, with a lock it may be, names or ends a client that has
 * been in its way for as long as it waits, and no other that shows an old pin just then. */
#include "pool/blocker.h"
#include "pool/superblock.h"
#include "stage.h"
#include "task/session.h"

#include <stdio.h>
#include <string.h>

#define MS 1000000ull

typedef struct plan { /* of one actor, in ns */
    uint64_t begins, lasts;
} plan;

static stage s;
static plan plans[STAGE_ACTORS];
static char words[256]; /* of the one who waits */


static plan *plan_of(const stage_actor *by) {
    return &plans[by == &s.a ? 0 : by == &s.b ? 1 : 2];
}


static int hold_a_pin(far_task *t, void *arg) {
    const plan *p = arg;
    far_sleep(t, p->begins);
    int err = far_pin_take(t);
    far_sleep(t, p->lasts);
    return err;
}


static void hold_main(void *actor) {
    stage_actor *by = actor;
    by->result = far_session_call(by->session, FAR_STATS_OTHER, false, hold_a_pin, plan_of(by));
    by->ended = true;
}


static int wait_with_a_pin(far_task *t, void *arg) {
    (void)arg;
    int err = far_pin_take(t);
    return err < 0 ? err : far_pin_after_epochs(t, 2);
}


static void wait_main(void *actor) {
    stage_actor *by = actor;
    by->result = far_session_call(by->session, FAR_STATS_OTHER, false, wait_with_a_pin, NULL);
    snprintf(words, sizeof(words), "%s", by->result < 0 ? far_last_error() : "");
    by->ended = true;
}


static void start_holding(stage_actor *by, uint64_t begins, uint64_t lasts) {
    *plan_of(by) = (plan){begins, lasts};
    by->ended = false;
    stage_start_main(by, "holds", hold_main);
}


/* Returns how long b waits, in ns. */
static uint64_t open_all(unsigned evict_after_ms) {
    stage_open(&s, "toy", NULL, evict_after_ms ? "questions=on,limit=100s" : "limit=100s");
    s.b.pool->options.evict_after_ms = evict_after_ms;
    return evict_after_ms ? evict_after_ms * MS : FAR_BLOCKED_TICKS * far_tick(s.b.pool->fabric);
}


static void start_to_wait(void) {
    s.b.ended = false;
    stage_start_main(&s.b, "waits", wait_main);
}


static void run_until_b_is_through(void) {
    while (!s.b.ended)
        far_sim_run_for(s.world, MS);
}


/* One client goes on shortly before b has waited long enough, and b's epochs come as far as to a pin that another has
 * taken a moment ago. That one holds up nobody: b waits for it. */
static void a_moment_is_not_long(unsigned evict_after_ms) {
    uint64_t limit = open_all(evict_after_ms);
    start_holding(&s.a, 0, limit - limit / 20);
    start_holding(&s.c, limit - limit / 10, limit / 2);
    start_to_wait();
    run_until_b_is_through();
    if (s.b.result < 0)
        fail_msg("%s", words);
    while (!s.a.ended || !s.c.ended)
        far_sim_run_for(s.world, MS);
    assert_true(s.a.result == 0 && s.c.result == 0);
    stage_write(&s.c, "key", "value");
    stage_close(&s);
}


static void who_pins_at_the_last_moment_is_not_named(void **state) {
    (void)state;
    a_moment_is_not_long(0);
}


static void who_pins_at_the_last_moment_is_not_ended(void **state) {
    (void)state;
    a_moment_is_not_long(500);
}


/* c holds the pin that b waits for, and a, which is met first, slept before the epoch came to where it stands: when it
 * wakes up it shows for a moment, of so many ticks after b has begun to look, the same old pin. */
static void waking_is_no_stop(unsigned evict_after_ms, unsigned ticks) {
    char name[32];
    uint64_t limit = open_all(evict_after_ms), tick = far_tick(s.b.pool->fabric);
    far_sim_sleep(s.world, 500 * tick);
    assert_false(far_epoch_is_awake(s.a.pool));
    start_holding(&s.c, 0, 3 * limit);
    start_to_wait();
    uint64_t began = far_sim_now(s.world);
    far_sim_run_for(s.world, limit - 20 * tick);
    assert_false(far_epoch_is_awake(s.a.pool));
    stage_start(&s.a, FAR_OP_GET, "key", NULL);
    far_sim_hold *waking =
        stage_hold(&s.a, (far_sim_match){.kind = FAR_SIM_READ, .from = FAR_SUPER_EPOCH, .to = FAR_SUPER_EPOCH + 8});
    far_sim_run_for(s.world, began + limit + ticks * tick - far_sim_now(s.world));
    far_sim_release(waking);
    run_until_b_is_through();
    while (!s.a.ended || !s.c.ended)
        far_sim_run_for(s.world, MS);
    assert_int_equal(s.a.result, FAR_ERR_NOT_FOUND);
    snprintf(name, sizeof(name), "client %u,", s.c.pool->team.own->id);
    if (evict_after_ms ? s.b.result < 0 : s.b.result != FAR_ERR_BUSY || !strstr(words, name))
        fail_msg("%d: %s", s.b.result, words);
    assert_int_equal(s.c.result < 0 || stage_do(&s.c, FAR_OP_PUT, "key", "value") < 0, evict_after_ms > 0);
    if (evict_after_ms)
        stage_kill(&s, &s.c);
    stage_close(&s);
}


static void who_wakes_up_is_not_named(void **state) {
    (void)state;
    waking_is_no_stop(0, 12); /* b looks every 8 ticks who is in the way */
}


static void who_wakes_up_is_not_ended(void **state) {
    (void)state;
    waking_is_no_stop(500, 12);
}


/* The machine is busy: the one who wakes up is long in coming to its next step. */
static void who_wakes_up_slowly_is_not_ended(void **state) {
    (void)state;
    waking_is_no_stop(500, 900);
}


static int end_it(far_task *t, void *arg) {
    return far_blocker_end(t, arg);
}


/* The one that was found in the way goes on, and its handle is closed, before it is ended: then another has its id. */
static void who_has_the_id_of_one_that_left_is_not_ended(void **state) {
    (void)state;
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    open_all(1);
    far_blocker found = {s.a.pool->team.own->id, s.a.pool->team.own->generation, 1};
    far_index_close(s.a.index);
    far_session_close(s.a.session);
    far_pool_close(s.a.pool);
    world_join(s.uri, &options, &s.a.pool, &s.a.session);
    assert_int_equal(far_index_open(s.a.session, "map", &s.a.index), 0);
    assert_int_equal(s.a.pool->team.own->id, found.id);
    assert_int_equal(far_session_call(s.b.session, FAR_STATS_OTHER, false, end_it, &found), 0);
    stage_write(&s.a, "key", "value");
    stage_close(&s);
}


int main(int argc, char **argv) {
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_pins_at_the_last_moment_is_not_named),
        cmocka_unit_test(who_pins_at_the_last_moment_is_not_ended),
        cmocka_unit_test(who_wakes_up_is_not_named),
        cmocka_unit_test(who_wakes_up_is_not_ended),
        cmocka_unit_test(who_wakes_up_slowly_is_not_ended),
        cmocka_unit_test(who_has_the_id_of_one_that_left_is_not_ended),
    };
    return cmocka_run_group_tests_name("held up", tests, NULL, NULL);
}
