/* Rig for tests that use a fabric directly: connections with a parker, verbs as values, and batches that are posted and
 * waited for. */
#ifndef TESTS_SUPPORT_SIM_RIG_H
#define TESTS_SUPPORT_SIM_RIG_H

#include "fabric/sim/sim.h"
#include "farindex.h"

typedef struct rig {
    far_fabric *fabric;
    far_parker parker;
    far_conn *conn;
} rig;

/* Opens a simulated fabric with these options. Fails the test if that is not possible. */
far_fabric *rig_open(const char *format, ...) __attribute__((format(printf, 1, 2)));
void rig_connect(rig *rig, far_fabric *fabric);
void rig_disconnect(rig *rig);

far_verb rig_read(far_addr addr, void *to, uint32_t length);
far_verb rig_write(far_addr addr, const void *from, uint32_t length);
far_verb rig_cas(far_addr addr, uint64_t compare, uint64_t swap, uint64_t *old);
far_verb rig_faa(far_addr addr, uint64_t add, uint64_t *old);
far_verb rig_masked_cas(far_addr addr, uint64_t compare, uint64_t compare_mask, uint64_t swap, uint64_t swap_mask,
                        uint64_t *old);

/* rig_batch makes a batch of these verbs. rig_post posts it. rig_wait polls until it has completed and returns its
 * status. rig_run does all three. */
far_batch rig_batch(far_verb *verbs, uint32_t count);
void rig_post(rig *rig, far_batch *batch);
int rig_wait(rig *rig, far_batch *batch);
int rig_run(rig *rig, far_verb *verbs, uint32_t count);
int rig_run_verb(rig *rig, far_verb verb);

/* Sends a control message about the session {id, generation} to the memory nodes, on a fabric where control messages
 * take round trips. Returns the answer of the memory nodes. */
int rig_ask(rig *rig, far_control_kind kind, unsigned id, unsigned generation);

#endif
