/* Tests of the wait at a gate (index/dolphin/lock.c): it ends when the gate opens, and it ends within the bound of an
 * operation if a stalled client holds up the task that holds the gate. */
#include "dolphin_rig.h"
#include "task/session.h"
#include "task/session_list.h"

#define ENTRY 0x40000ull /* the gate is chosen by the address of a leaf; no leaf needs to be there */

typedef struct gate_wait {
    dolphin_op op;
    int result;
    uint64_t took;
    bool ended;
} gate_wait;

static gate_wait waiting;


static int wait_at_gate(far_task *t, void *arg) {
    gate_wait *w = arg;
    w->op.t = t;
    int err = far_pin_take(t);
    return err < 0 ? err : dolphin_gate_wait(&w->op, ENTRY);
}


static void wait_main(void *actor) {
    stage_actor *by = actor;
    uint64_t began = far_sim_now(s.world);
    waiting.result = far_session_call(by->session, FAR_STATS_OTHER, false, wait_at_gate, &waiting);
    waiting.took = far_sim_now(s.world) - began;
    waiting.ended = true;
}


static void open_gate_stage(void) {
    without_housekeeping = false;
    open_stage(WORDS, "limit=100s");
    waiting = (gate_wait){.op = {.index = b->index, .st = dolphin_state_of(b->index)}};
    assert_true(dolphin_gate_enter(&waiting.op, ENTRY));
}


/* A is stopped in a put, so the epoch stands. B waits at a gate that stays closed. It is refused within the bound.
 * Fails without far_stall_wait in dolphin_gate_wait. */
TEST(the_wait_at_a_gate_is_bounded) {
    open_gate_stage();
    const uint64_t bound = far_stall_bound(b->pool->fabric);
    stage_start(a, FAR_OP_PUT, "na", V1);
    stage_stop_at(a, (far_sim_match){.nth = 4});
    stage_start_main(b, "waits", wait_main);
    far_sim_run_for(s.world, 2 * bound);
    assert_true(waiting.ended);
    assert_int_equal(waiting.result, FAR_ERR_BUSY);
    assert_true(waiting.took >= bound - bound / 5 && waiting.took <= bound + bound / 10);
    dolphin_gate_leave(&waiting.op, ENTRY);
    stage_finish(a);
    stage_close(&s);
}


/* No client is stopped. B waits at a gate for twice the bound, until the gate opens. It is not refused. */
TEST(a_long_wait_at_a_gate_is_not_refused_without_a_stalled_client) {
    open_gate_stage();
    const uint64_t bound = far_stall_bound(b->pool->fabric);
    stage_start_main(b, "waits", wait_main);
    far_sim_run_for(s.world, 2 * bound);
    assert_false(waiting.ended);
    dolphin_gate_leave(&waiting.op, ENTRY);
    far_sim_run_for(s.world, bound);
    assert_true(waiting.ended);
    assert_int_equal(waiting.result, 0);
    stage_close(&s);
}
