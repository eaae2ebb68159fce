/* Counting pins. A session has two counters, for even and odd epochs. Only the thread inside the session writes them;
 * other threads read them to compute the oldest pin. */
#include "task/pin.h"
#include "task/session.h"


void far_pin_date(far_task *t) {
    far_fabric *fabric = t->session->conn->fabric;
    t->pin.clock = fabric->watch->clock(fabric);
}


void far_pin_drop(far_task *t) {
    if (t->pin.epoch == 0)
        return;
    /* The verbs of a lost session may still take effect, so its pins stay counted until far_pins_release_fenced. */
    if (t->session->lost)
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
    far_pins_add(to->session, to->pin.epoch);
}
