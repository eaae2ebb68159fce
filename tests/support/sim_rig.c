/* Connections, verbs and batches without the task layer (sim_rig.h). */
#include "sim_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>


far_fabric *rig_open(const char *format, ...) {
    char options[512];
    far_fabric *fabric = NULL;
    va_list args;
    va_start(args, format);
    vsnprintf(options, sizeof options, format, args);
    va_end(args);
    if (far_sim_open(options, &fabric) != 0)
        fail_msg("sim:%s: %s", options, far_last_error());
    return fabric;
}


void rig_connect(rig *rig, far_fabric *fabric) {
    *rig = (struct rig){.fabric = fabric};
    assert_int_equal(fabric->ops->connect(fabric, &rig->parker, &rig->conn), 0);
}


void rig_disconnect(rig *rig) {
    rig->fabric->ops->disconnect(rig->conn);
    rig->conn = NULL;
}


far_verb rig_read(far_addr addr, void *to, uint32_t length) {
    return (far_verb){.kind = FAR_READ, .addr = addr, .local = to, .length = length};
}


far_verb rig_write(far_addr addr, const void *from, uint32_t length) {
    return (far_verb){.kind = FAR_WRITE, .addr = addr, .local = (void *)from, .length = length};
}


far_verb rig_cas(far_addr addr, uint64_t compare, uint64_t swap, uint64_t *old) {
    return (far_verb){.kind = FAR_CAS, .addr = addr, .local = old, .length = 8, .compare = compare, .swap = swap};
}


far_verb rig_faa(far_addr addr, uint64_t add, uint64_t *old) {
    return (far_verb){.kind = FAR_FAA, .addr = addr, .local = old, .length = 8, .swap = add};
}


far_verb rig_masked_cas(far_addr addr, uint64_t compare, uint64_t compare_mask, uint64_t swap, uint64_t swap_mask,
                        uint64_t *old) {
    far_verb verb = rig_cas(addr, compare, swap, old);
    verb.kind = FAR_MASKED_CAS;
    verb.compare_mask = compare_mask;
    verb.swap_mask = swap_mask;
    return verb;
}


static void ignore_completion(far_batch *batch) {
    /* The callback of a completed batch has nothing to do, because rig_wait reads `pending` of the batch. */
    (void)batch;
}


far_batch rig_batch(far_verb *verbs, uint32_t count) {
    return (far_batch){
        .verbs = verbs, .count = count, .done = ignore_completion, .pin_clock = UINT64_MAX, .label = "test"};
}


void rig_post(rig *rig, far_batch *batch) {
    rig->fabric->ops->post(rig->conn, batch);
}


int rig_wait(rig *rig, far_batch *batch) {
    while (batch->pending)
        if (rig->fabric->ops->poll(rig->conn) == 0)
            rig->fabric->ops->wait(rig->conn, FAR_TIME_NEVER);
    return batch->status;
}


int rig_run(rig *rig, far_verb *verbs, uint32_t count) {
    far_batch batch = rig_batch(verbs, count);
    rig_post(rig, &batch);
    return rig_wait(rig, &batch);
}


int rig_run_verb(rig *rig, far_verb verb) {
    return rig_run(rig, &verb, 1);
}


static void answered(far_control *question) {
    (void)question;
}


int rig_ask(rig *rig, far_control_kind kind, unsigned id, unsigned generation) {
    const far_fabric_ops *ops = rig->fabric->ops;
    far_control question = {.kind = kind, .id = id, .generation = generation, .done = answered};
    ops->ask(rig->conn, &question);
    while (question.pending) {
        ops->poll(rig->conn);
        if (question.pending)
            ops->wait(rig->conn, FAR_TIME_NEVER);
    }
    return question.answer;
}
