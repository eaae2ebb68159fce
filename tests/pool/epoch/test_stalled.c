/* Tests of stalled clients (pool/epoch/stalled.c): an operation that waits for epochs with a pin names or evicts a
 * client that has held it up for the whole time, and no other client that publishes an old pin at that moment. */
#include "pool/epoch/stalled.h"
#include "pool/format/superblock.h"
#include "stage.h"
#include "test.h"
#include "task/session.h"

#include <stdio.h>
#include <string.h>

#define MS 1000000ull

typedef struct plan { /* when an actor takes its pin, and for how long it holds it, in ns */
    uint64_t begins, lasts;
} plan;

static stage s;
static plan plans[STAGE_ACTORS];
static char error_of_b[256]; /* error text of the operation of actor B, which waits */


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
    snprintf(error_of_b, sizeof(error_of_b), "%s", by->result < 0 ? far_last_error() : "");
    by->ended = true;
}


static void start_holding(stage_actor *by, uint64_t begins, uint64_t lasts) {
    *plan_of(by) = (plan){begins, lasts};
    by->ended = false;
    stage_start_main(by, "holds", hold_main);
}


/* Opens the stage. Returns how long actor B waits until it is refused or evicts a client, in ns. The last part of this
 * time, which observation_ticks returns, is the observation of the client. */
static uint64_t open_stage(unsigned evict_after_ms) {
    stage_open(&s, "toy", NULL, evict_after_ms ? "questions=on,limit=100s" : "limit=100s");
    s.b.pool->options.evict_after_ms = evict_after_ms;
    return evict_after_ms ? evict_after_ms * MS : far_stall_bound(s.b.pool->fabric) / 10 * 9;
}


static unsigned observation_ticks(unsigned evict_after_ms) {
    return evict_after_ms ? 1000 : 20;
}


static void start_to_wait(void) {
    s.b.ended = false;
    stage_start_main(&s.b, "waits", wait_main);
}


static void run_until_b_has_ended(void) {
    while (!s.b.ended)
        far_sim_run_for(s.world, MS);
}


/* A holds a pin until shortly before B has waited for the limit. Then the epoch advances to the next pin, which C took
 * a moment ago. C has not held up B for long, so B must continue to wait. */
static void check_recent_pin_is_spared(unsigned evict_after_ms) {
    uint64_t limit = open_stage(evict_after_ms);
    start_holding(&s.a, 0, limit - limit / 20);
    start_holding(&s.c, limit - limit / 10, limit / 2);
    start_to_wait();
    run_until_b_has_ended();
    if (s.b.result < 0)
        fail_msg("%s", error_of_b);
    while (!s.a.ended || !s.c.ended)
        far_sim_run_for(s.world, MS);
    assert_true(s.a.result == 0 && s.c.result == 0);
    stage_write(&s.c, "key", "value");
    stage_close(&s);
}


/* B's wait does not fail because of C, which took its pin only recently. Fails if wait_epochs_pinned measures one wait
 * for several epochs. */
TEST(a_client_that_pinned_recently_is_not_named) {
    check_recent_pin_is_spared(0);
}


/* With evict_after_ms, B does not evict C, which took its pin only recently. */
TEST(a_client_that_pinned_recently_is_not_evicted) {
    check_recent_pin_is_spared(500);
}


/* C holds the pin that B waits for. A, which precedes C in the registry, was quiescent when the epoch advanced to its
 * current value. `ticks` after B has begun to look for a stalled client, A becomes active, and publishes the same old
 * pin as C for a short time. B must name or evict C, not A. */
static void check_activation_is_spared(unsigned evict_after_ms, unsigned ticks) {
    char name[32];
    uint64_t limit = open_stage(evict_after_ms), tick = far_tick(s.b.pool->fabric),
             search = limit - observation_ticks(evict_after_ms) * tick;
    far_sim_sleep(s.world, 500 * tick);
    assert_false(far_epoch_is_active(s.a.pool));
    start_holding(&s.c, 0, 3 * limit);
    start_to_wait();
    uint64_t began = far_sim_now(s.world);
    far_sim_run_for(s.world, search - 20 * tick);
    assert_false(far_epoch_is_active(s.a.pool));
    stage_start(&s.a, FAR_OP_GET, "key", NULL);
    far_sim_hold *waking =
        stage_hold(&s.a, (far_sim_match){.kind = FAR_SIM_READ, .from = FAR_SUPER_EPOCH, .to = FAR_SUPER_EPOCH + 8});
    far_sim_run_for(s.world, began + search + ticks * tick - far_sim_now(s.world));
    far_sim_release(waking);
    run_until_b_has_ended();
    while (!s.a.ended || !s.c.ended)
        far_sim_run_for(s.world, MS);
    assert_int_equal(s.a.result, FAR_ERR_NOT_FOUND);
    snprintf(name, sizeof(name), "client %u,", s.c.pool->team.own->id);
    if (evict_after_ms ? s.b.result < 0 : s.b.result != FAR_ERR_BUSY || !strstr(error_of_b, name))
        fail_msg("%d: %s", s.b.result, error_of_b);
    assert_int_equal(s.c.result < 0 || stage_do(&s.c, FAR_OP_PUT, "key", "value") < 0, evict_after_ms > 0);
    if (evict_after_ms)
        stage_kill(&s, &s.c);
    stage_close(&s);
}


/* B names C and not A, which has just become active. Fails without the observation in far_stalled_client_confirm. */
TEST(a_client_that_becomes_active_is_not_named) {
    check_activation_is_spared(0, 12); /* B reads the registry every 8 ticks, so 12 ticks are between two reads. */
}


/* With evict_after_ms, B evicts C and not A, which has just become active. */
TEST(a_client_that_becomes_active_is_not_evicted) {
    check_activation_is_spared(500, 12);
}


/* On a busy machine, A takes 900 ticks until it publishes its current pin. B still evicts C and not A. Fails if
 * OBSERVED_SHARE_EVICT is too large. */
TEST(a_client_that_becomes_active_slowly_is_not_evicted) {
    check_activation_is_spared(500, 900);
}


static int evict_client(far_task *t, void *arg) {
    return far_stalled_client_evict(t, arg);
}


/* A client was found to be stalled, but it continues and closes its handle before it is evicted, and another client
 * gets its id. The eviction does not affect the new client, because its generation differs. Fails without the
 * generation in evict_session. */
TEST(a_client_that_reuses_the_id_is_not_evicted) {
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    open_stage(1);
    far_stalled_client found = {s.a.pool->team.own->id, s.a.pool->team.own->generation, 1};
    far_index_close(s.a.index);
    far_session_close(s.a.session);
    far_pool_close(s.a.pool);
    world_join(s.uri, &options, &s.a.pool, &s.a.session);
    assert_int_equal(far_index_open(s.a.session, "map", &s.a.index), 0);
    assert_int_equal(s.a.pool->team.own->id, found.id);
    assert_int_equal(far_session_call(s.b.session, FAR_STATS_OTHER, false, evict_client, &found), 0);
    stage_write(&s.a, "key", "value");
    stage_close(&s);
}
