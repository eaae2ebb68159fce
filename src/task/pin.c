/* Counting pins: by the parity of their epochs, in counters of the session, which others read and only the thread
 * inside the session changes. */
#include "task/pin.h"
#include "task/session.h"

#include <assert.h>


/* The counts of a session change only inside it (far_pins_settle: when it is lost, and changes them no more). */
static void add_pin(far_session *s, uint64_t epoch) {
    atomic_uint *held = &s->pins.held[epoch & 1];
    atomic_store_explicit(held, atomic_load_explicit(held, memory_order_relaxed) + 1, memory_order_seq_cst);
}


void far_pin_count(far_task *t, uint64_t epoch) {
    far_fabric *fabric = t->session->conn->fabric;
    assert(t->pin.epoch == 0 && epoch != 0);
    t->pin.epoch = epoch;
    t->pin.clock = fabric->watch ? fabric->watch->clock(fabric) : 0;
    add_pin(t->session, epoch);
}


void far_pin_uncount(far_task *t) {
    atomic_uint *held = &t->session->pins.held[t->pin.epoch & 1];
    assert(t->pin.epoch != 0 && atomic_load_explicit(held, memory_order_relaxed) > 0);
    atomic_store_explicit(held, atomic_load_explicit(held, memory_order_relaxed) - 1, memory_order_release);
    t->pin = (far_pin){0, 0};
}


void far_pin_drop(far_task *t) {
    if (t->pin.epoch == 0)
        return;
    if (t->session->lost) /* its verbs may yet take effect: far_pins_settle */
        t->pin = (far_pin){0, 0};
    else
        far_pin_uncount(t);
}


void far_pin_share(const far_task *from, far_task *to) {
    if (from->pin.epoch == 0 || to->pin.epoch != 0)
        return;
    to->pin = from->pin;
    if (to->session->lost)
        return;
    add_pin(to->session, to->pin.epoch);
}
