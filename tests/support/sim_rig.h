/* For tests that talk to a fabric directly: connections that own their parker, verbs as values, batches that are waited
 * for. */
#ifndef TESTS_SUPPORT_SIM_RIG_H
#define TESTS_SUPPORT_SIM_RIG_H

#include "fabric/sim/sim.h"
#include "farindex.h"

typedef struct rig {
    far_fabric *fabric;
    far_parker parker;
    far_conn *conn;
} rig;

/* Opens "sim:" with these options; fails the test if it cannot. */
far_fabric *rig_open(const char *format, ...) __attribute__((format(printf, 1, 2)));
void rig_connect(rig *rig, far_fabric *fabric);
void rig_disconnect(rig *rig);

far_verb rig_read(far_addr addr, void *to, uint32_t length);
far_verb rig_write(far_addr addr, const void *from, uint32_t length);
far_verb rig_cas(far_addr addr, uint64_t compare, uint64_t swap, uint64_t *old);
far_verb rig_faa(far_addr addr, uint64_t add, uint64_t *old);
far_verb rig_masked_cas(far_addr addr, uint64_t compare, uint64_t compare_mask, uint64_t swap, uint64_t swap_mask,
                        uint64_t *old);

/* A batch of these verbs; post hands it over, wait polls until it is done and returns its status. */
far_batch rig_batch(far_verb *verbs, uint32_t count);
void rig_post(rig *rig, far_batch *batch);
int rig_wait(rig *rig, far_batch *batch);
int rig_run(rig *rig, far_verb *verbs, uint32_t count);
int rig_run1(rig *rig, far_verb verb);

/* Asks the memory nodes about a session, where that takes round trips; the answer. */
int rig_ask(rig *rig, far_question_kind kind, unsigned id, unsigned generation);

#endif
