/* A fabric whose verbs take effect one at a time, when the test says so. A test can produce any interleaving of several
 * sessions in one thread, and can stop or kill a session between any two verbs. The staged fabric wraps a fabric that
 * completes verbs at once (local:). Time advances only by staged_advance_time, and random numbers depend only on the
 * seed, so a run can be repeated exactly. */
#ifndef TESTS_SUPPORT_STAGED_H
#define TESTS_SUPPORT_STAGED_H

#include "fabric/fabric.h"

/* wraps the operations of this fabric; must be called before the first connection is made */
void staged_install(far_fabric *fabric);
void staged_seed(uint64_t seed);
void staged_advance_time(uint64_t ns);
/* lets the next verb of the connection take effect; returns false if none is posted */
bool staged_apply_next_verb(far_conn *conn);
void staged_kill(far_conn *conn); /* fences the connection: no further verb takes effect, and posted verbs fail */
unsigned staged_count(const far_conn *conn); /* returns the number of verbs of the connection that have taken effect */

#endif
