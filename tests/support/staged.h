/* A fabric whose verbs take effect one by one, when the test says so: any interleaving of several sessions in one
 * thread, and a stop or a death between any two verbs. Wraps a fabric that completes at once (local). Time stands still
 * but for staged_pass; secrets come from the seed: a run is repeatable. */
#ifndef TESTS_SUPPORT_STAGED_H
#define TESTS_SUPPORT_STAGED_H

#include "fabric/fabric.h"

void staged_install(far_fabric *fabric); /* before any connection is made */
void staged_seed(uint64_t seed);
void staged_pass(uint64_t ns);
bool staged_effect(far_conn *conn);          /* its next verb takes effect; false: none is posted */
void staged_kill(far_conn *conn);            /* nothing more of it takes effect; what it posted fails */
unsigned staged_count(const far_conn *conn); /* verbs of it that took effect */

#endif
