/* Counting pins: by the parity of their epochs, in counters of the session, which others read and only the thread
 * inside the session changes. */
#include "task/pin.h"
#include "task/session.h"


void far_pin_date(far_task *t) {
    far_fabric *fabric = t->session->conn->fabric;
    t->pin.clock = fabric->watch->clock(fabric);
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
    far_pins_add(to->session, to->pin.epoch);
}
