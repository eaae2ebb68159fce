/* Tests of the waits of collections and checks (pool/epoch/stalled.h). A collection is one task with many waits, and
 * its walk takes longer than the bound here, because each round trip takes 40 ms of virtual time. Live clients
 * that hold pins for a while must not be evicted, and must not make the check fail. */
#include "fabric/sim/sim.h"
#include "pool/epoch/stalled.h"
#include "pool/format/superblock.h"
#include "pool/gc/collect.h"
#include "stage.h"
#include "task/session.h"
#include "test.h"

#include <stdio.h>
#include <string.h>

#define SLOW  "limit=10000s,rtt_read=40ms,rtt_write=40ms,rtt_atomic=40ms"
#define SLOTS 65536u /* slots of the index; a walk of so many slots takes longer than the bound */

static stage s;
static uint64_t bound, took;
static unsigned pins;
static uint64_t pin_lasts;
static char error_of_a[FAR_MESSAGE_BYTES];


static uint64_t epoch_now(void) {
    return world_word(s.world, far_addr_make(0, FAR_SUPER_EPOCH));
}


static void open_slow_stage(unsigned evict_after_ms, const char *sim, unsigned slots) {
    char options[32];
    snprintf(options, sizeof(options), "slots=%u", slots);
    stage_open(&s, "toy", options, sim);
    bound = far_stall_bound(s.a.pool->fabric);
    s.a.pool->options.evict_after_ms = evict_after_ms;
    for (unsigned i = 0; i < 50; i++) {
        char key[16];
        snprintf(key, sizeof(key), "key %u", i);
        stage_write(&s.b, key, "value");
    }
}


static int collect(far_task *t, void *arg) {
    far_collect_result result;
    (void)arg;
    return far_collect(t, FAR_COLLECT_REPAIR, &result);
}


static void run_timed(stage_actor *a, int (*run)(stage_actor *a)) {
    uint64_t began = far_sim_now(s.world);
    a->result = run(a);
    snprintf(error_of_a, sizeof(error_of_a), "%s", a->result < 0 ? far_last_error() : "");
    took = far_sim_now(s.world) - began;
    a->ended = true;
}


static int run_collection(stage_actor *a) {
    return far_session_call(a->session, FAR_STATS_OTHER, false, collect, NULL);
}


static void collect_main(void *actor) {
    run_timed(actor, run_collection);
}


static int run_check(stage_actor *a) {
    return far_pool_check(a->session, 0, fail_at_problem, NULL);
}


static void check_main(void *actor) {
    run_timed(actor, run_check);
}


/* The walk of a collection takes longer than half of the bound. The collection requests few epochs. Fails if every pin
 * of a task that once waited examines its waiting time, and no pause without waits ends that time (stalled.c). */
TEST(a_long_walk_requests_few_epochs) {
    open_slow_stage(0, SLOW, SLOTS);
    uint64_t first = epoch_now();
    stage_start_main(&s.a, "collects", collect_main);
    stage_finish(&s.a);
    print_message("%.2f bounds, %u epochs\n", (double)took / (double)bound, (unsigned)(epoch_now() - first));
    assert_int_equal(s.a.result, 0);
    assert_true(took > bound / 2);
    assert_true(epoch_now() - first <= 12);
    stage_close(&s);
}


static int hold_pin(far_task *t, void *arg) {
    (void)arg;
    int err = far_pin_take(t);
    far_sleep(t, pin_lasts);
    far_pin_drop(t);
    return err;
}


/* Takes one pin after the other until A has ended. */
static void pin_main(void *actor) {
    stage_actor *b = actor;
    b->result = 0;
    for (pins = 0; !s.a.ended && b->result == 0; pins++)
        b->result = far_session_call(b->session, FAR_STATS_OTHER, false, hold_pin, NULL);
    b->ended = true;
}


static void run_beside_pins(uint64_t lasts, void (*run)(void *actor)) {
    pin_lasts = lasts;
    stage_start_main(&s.a, "a", run);
    stage_start_main(&s.b, "pins", pin_main);
    while (!s.a.ended || !s.b.ended)
        far_sim_run_for(s.world, bound / 10);
    print_message("%.2f bounds, %u pins, %d: %s\n", (double)took / (double)bound, pins, s.a.result, error_of_a);
    assert_true(pins > 2);
    if (s.a.result != 0 || s.b.result != 0)
        fail_msg("%d (%s), and the other client %d", s.a.result, error_of_a, s.b.result);
    stage_close(&s);
}


/* B holds pins for a tenth of the bound each. Every wait of the check lasts for several pins, but the epoch
 * advances all the time. Fails if far_request_wait has a deadline for tasks with many waits. */
TEST(a_long_check_waits_for_live_clients) {
    open_slow_stage(0, SLOW, SLOTS);
    run_beside_pins(bound / 10, check_main);
}
