/* Implements the effects of verbs on the memory of the nodes. It decides when a verb may take effect (order of the
 * verbs of one connection at one node), how READs and WRITEs take effect granule by granule, and atomics. The event
 * loop calls `sim_verb_arrive` when a verb reaches its node, and `sim_run_effect` when the effect is due. */
#include "fabric/sim/sim_internal.h"
#include "farindex.h"

#include <string.h>


uint32_t sim_count_granules(const far_sim_world *world, const far_verb *verb) {
    uint64_t granule = world->config.atomic_bytes, offset = far_addr_offset(verb->addr);
    if (verb->kind != FAR_READ && verb->kind != FAR_WRITE)
        return 1;
    return (uint32_t)((offset + verb->length - 1) / granule - offset / granule + 1);
}


/* Returns whether the fabric contract requires that a verb of class `first` takes effect before a verb of class
 * `second` that is posted after it to the same node. */
bool sim_classes_are_ordered(const far_sim_world *world, unsigned first, unsigned second) {
    if (first == SIM_CLASS_READ)
        return second == SIM_CLASS_READ && world->config.reads_in_order;
    return first == SIM_CLASS_WRITE || first == second || world->config.atomics_in_order;
}


/* ---- Arrival ---- */

void sim_verb_arrive(far_sim_world *world, sim_verb *verb) {
    sim_qp *qp = &verb->conn->qps[verb->node];
    uint64_t time = sim_nic_arrive(world, verb);
    verb->state = SIM_SCHEDULED;
    if (world->faults || !verb->post) {
        sim_fault_schedule(world, verb, qp, time);
        return;
    }
    if (qp->last_any > time)
        time = qp->last_any;
    qp->last_any = qp->last[verb->class] = time;
    sim_push_event(world, time, SIM_EFFECT, verb, verb->generation);
}


/* ---- Memory ---- */

static uint8_t *memory_at(far_sim_world *world, const sim_verb *verb, uint64_t offset) {
    return world->memory[verb->node].bytes + far_addr_offset(verb->verb.addr) + offset;
}


/* Copies the granules [first, end) of a READ or WRITE, after the memory checker has checked the access. */
static void apply_granules(far_sim_world *world, sim_verb *verb, uint32_t first, uint32_t end) {
    uint64_t granule = world->config.atomic_bytes, skip = far_addr_offset(verb->verb.addr) % granule;
    uint64_t from = first ? first * granule - skip : 0, to = end * granule - skip;
    if (to > verb->verb.length)
        to = verb->verb.length;
    if (first >= end)
        return;
    uint8_t *memory = memory_at(world, verb, from), *local = (uint8_t *)verb->verb.local + from;
    sim_check_access(world, verb, verb->verb.addr + from, to - from);
    if (verb->class == SIM_CLASS_READ)
        memcpy(local, memory, to - from);
    else
        memcpy(memory, local, to - from);
    verb->granules_done += end - first;
    uint64_t word;
    memcpy(&word, memory, 8);
    sim_trace_verb(world, SIM_TRACE_EFFECT, verb, word, first, end);
}


void sim_apply_granule(far_sim_world *world, sim_verb *verb, uint32_t granule) {
    if (verb->class == SIM_CLASS_ATOMIC)
        sim_apply_remainder(world, verb);
    else
        apply_granules(world, verb, granule, granule + 1);
}


static bool atomic_succeeds(const far_verb *verb, uint64_t old) {
    switch (verb->kind) {
    case FAR_CAS:
        return old == verb->compare;
    case FAR_MASKED_CAS:
        return ((old ^ verb->compare) & verb->compare_mask) == 0;
    default:
        return true;
    }
}


static uint64_t atomic_result(const far_verb *verb, uint64_t old) {
    switch (verb->kind) {
    case FAR_CAS:
        return verb->swap;
    case FAR_MASKED_CAS:
        return (old & ~verb->swap_mask) | (verb->swap & verb->swap_mask);
    default:
        return old + verb->swap;
    }
}


/* Reads the word of an atomic into verb->old. Returns false if the comparison fails; such an atomic writes nothing. */
static bool begin_atomic(far_sim_world *world, sim_verb *verb) {
    sim_check_access(world, verb, verb->verb.addr, 8);
    memcpy(&verb->old, memory_at(world, verb, 0), 8);
    return atomic_succeeds(&verb->verb, verb->old);
}


static void end_atomic(far_sim_world *world, sim_verb *verb, bool success) {
    uint64_t word = verb->old, result = success ? atomic_result(&verb->verb, verb->old) : verb->old;
    if (success) {
        memcpy(&word, memory_at(world, verb, 0), 8);
        if (word != verb->old)
            sim_trace_verb(world, SIM_TRACE_SWALLOW, verb, word, 0, 0);
        memcpy(memory_at(world, verb, 0), &result, 8);
    }
    if (verb->verb.local)
        memcpy(verb->verb.local, &verb->old, 8);
    verb->granules_done = 1;
    sim_trace_verb(world, SIM_TRACE_EFFECT, verb, verb->old, result, success);
}


void sim_apply_remainder(far_sim_world *world, sim_verb *verb) {
    if (verb->class == SIM_CLASS_ATOMIC)
        end_atomic(world, verb, verb->state == SIM_BEGUN || begin_atomic(world, verb));
    else if (verb->class == SIM_CLASS_WRITE)
        apply_granules(world, verb, verb->granules_done, verb->granule_limit);
    else
        apply_granules(world, verb, 0, verb->granules);
}


/* ---- Order while the effect of a verb is held ---- */

/* Returns whether the node is down and does not reject verbs. With `questions=on` verbs to a node that is down wait
 * there until their client gives up; otherwise they fail after `unreachable=`. */
static bool node_is_silent(const far_sim_world *world, unsigned node) {
    return world->memory[node].down && world->config.questions;
}


static bool verb_must_wait(far_sim_world *world, const sim_verb *verb) {
    if (node_is_silent(world, verb->node))
        return true;
    if (verb->after && verb->after->generation == verb->after_generation && verb->after->state < SIM_EFFECTIVE)
        return true;
    if (verb->class == SIM_CLASS_ATOMIC && sim_word_of(world, verb->verb.addr)->owner)
        return true;
    for (const sim_verb *v = verb->prev; v; v = v->prev)
        if (v->node == verb->node && v->state < SIM_EFFECTIVE && sim_classes_are_ordered(world, v->class, verb->class))
            return true;
    return false;
}


void sim_unblock_verbs(sim_conn *conn) {
    far_sim_world *world = conn->world;
    for (sim_verb *verb = conn->first; verb && conn->blocked; verb = verb->next)
        if (verb->state == SIM_BLOCKED && !verb_must_wait(world, verb)) {
            verb->state = SIM_SCHEDULED;
            conn->blocked--;
            sim_push_event(world, world->now, SIM_EFFECT, verb, verb->generation);
        }
}


void sim_unblock_all(far_sim_world *world) {
    for (sim_conn *conn = world->conns; conn; conn = conn->next)
        if (conn->blocked)
            sim_unblock_verbs(conn);
}


/* ---- The effect ---- */

/* Makes the verb fail with FAR_ERR_UNREACHABLE. The first verb that fails at a node does so after `unreachable=`, later
 * ones fail at once. */
void sim_fail_verb(far_sim_world *world, sim_verb *verb) {
    sim_qp *qp = &verb->conn->qps[verb->node];
    uint64_t delay = qp->failed ? 0 : world->config.unreachable * SIM_PS;
    qp->failed = true;
    verb->failed = true;
    verb->state = SIM_EFFECTIVE;
    sim_trace_verb(world, SIM_TRACE_FAIL, verb, 0, 0, 0);
    if (!verb->post) {
        sim_conn *conn = verb->conn;
        sim_verb_free(world, verb);
        sim_conn_free_if_unused(conn);
        return;
    }
    sim_push_event(world, world->now + delay, SIM_DONE, verb, verb->generation);
    if (verb->conn->blocked)
        sim_unblock_verbs(verb->conn);
}


void sim_abort_verb(far_sim_world *world, sim_verb *verb) {
    sim_conn *conn = verb->conn;
    if (verb->state == SIM_BEGUN && verb->class == SIM_CLASS_ATOMIC) {
        sim_word_of(world, verb->verb.addr)->owner = NULL;
        world->split_atomics--;
    }
    if (verb->state == SIM_HELD || verb->state == SIM_BLOCKED)
        conn->blocked--;
    if (verb->state == SIM_HELD)
        verb->client->held--;
    verb->generation++; /* makes the events that were scheduled for this verb stale */
    sim_fail_verb(world, verb);
}


void sim_finish_effect(far_sim_world *world, sim_verb *verb) {
    sim_conn *conn = verb->conn;
    verb->state = SIM_EFFECTIVE;
    if (conn->blocked)
        sim_unblock_verbs(conn);
    if (!verb->post) {
        sim_verb_free(world, verb);
        sim_conn_free_if_unused(conn);
        return;
    }
    uint64_t done = sim_nic_respond(world, verb);
    if (world->faults)
        done += sim_fault_completion_delay(world);
    sim_push_event(world, done, SIM_DONE, verb, verb->generation);
}


/* Returns true if the verb cannot take effect now, because it fails, is held by a test, or must wait for another verb.
 * Changes its state accordingly. */
static bool postpone_effect(far_sim_world *world, sim_verb *verb) {
    sim_conn *conn = verb->conn;
    bool silent = node_is_silent(world, verb->node);
    if ((world->memory[verb->node].down && !silent) || conn->qps[verb->node].failed) {
        sim_fail_verb(world, verb);
        return true;
    }
    if (silent)
        sim_start_outage_timer(conn, verb->node);
    if ((silent || conn->disturbed || verb->after || (world->split_atomics && verb->class == SIM_CLASS_ATOMIC)) &&
        verb_must_wait(world, verb)) {
        verb->state = SIM_BLOCKED;
        conn->blocked++;
        conn->disturbed = true;
        return true;
    }
    if (verb->hold_effect && !verb->hold_effect->released) {
        verb->state = SIM_HELD;
        conn->blocked++;
        conn->disturbed = true;
        sim_mark_hold_reached(verb, verb->hold_effect);
        return true;
    }
    return false;
}


/* Begins an atomic that reads and writes its word at two instants (fault `swallow`). It will write the word later, even
 * if a WRITE has changed the word in between. */
static void begin_split_atomic(far_sim_world *world, sim_verb *verb) {
    if (!begin_atomic(world, verb)) {
        end_atomic(world, verb, false);
        sim_finish_effect(world, verb);
        return;
    }
    sim_word_of(world, verb->verb.addr)->owner = verb;
    world->split_atomics++;
    verb->state = SIM_BEGUN;
    sim_push_event(world, world->now + verb->duration, SIM_EFFECT, verb, verb->generation);
}


static void end_split_atomic(far_sim_world *world, sim_verb *verb) {
    end_atomic(world, verb, true);
    sim_word_of(world, verb->verb.addr)->owner = NULL;
    world->split_atomics--;
    sim_finish_effect(world, verb);
    sim_unblock_all(world);
}


/* Called just before another atomic takes effect on the same word. If a split atomic (fault `swallow`) has read this
 * word and not written it yet, this function finishes the split atomic first, because atomics must be atomic towards
 * each other. */
void sim_finish_split_atomic(far_sim_world *world, sim_verb *verb) {
    sim_verb *owner = sim_word_of(world, verb->verb.addr)->owner;
    if (owner && owner != verb)
        end_split_atomic(world, owner);
}


/* Copies the granules that a torn READ or WRITE reaches at one instant, and schedules the next instant. */
static void apply_torn_part(far_sim_world *world, sim_verb *verb) {
    if (verb->state != SIM_BEGUN)
        verb->end_time = world->now + verb->duration;
    verb->state = SIM_BEGUN;
    if (verb->class == SIM_CLASS_WRITE) {
        uint32_t end = sim_fault_part_end(verb);
        apply_granules(world, verb, verb->granules_done, end < verb->granule_limit ? end : verb->granule_limit);
    } else {
        for (uint32_t granule = 0; granule < verb->granules; granule++)
            if (sim_fault_granule_is_in_part(verb, granule))
                apply_granules(world, verb, granule, granule + 1);
    }
    verb->part++;
    if (verb->part == verb->parts || verb->granules_done >= verb->granule_limit)
        sim_finish_effect(world, verb);
    else
        sim_push_event(world, sim_fault_next_part_time(world, verb), SIM_EFFECT, verb, verb->generation);
}


void sim_run_effect(far_sim_world *world, sim_verb *verb) {
    bool begun = verb->state == SIM_BEGUN;
    if (verb->state >= SIM_EFFECTIVE)
        return; /* `sim_finish_split_atomic` has finished this atomic already */
    if (!begun && postpone_effect(world, verb))
        return;
    if (verb->conn->declared_failed)
        sim_report_error(
            world, "a verb of session %u.%u takes effect after a client got the answer that this session has failed",
            verb->conn->id, verb->conn->generation);
    if (!begun && verb->checksum && sim_fault_payload_changed(verb))
        sim_report_error(world, "client %u (%s) changed the payload of its WRITE %llu while it was in flight",
                         verb->client->number, verb->client->name, (unsigned long long)verb->index);
    if (verb->is_split && begun) {
        end_split_atomic(world, verb);
    } else if (verb->is_split) {
        begin_split_atomic(world, verb);
    } else if (verb->parts > 1) {
        apply_torn_part(world, verb);
    } else {
        sim_apply_remainder(world, verb);
        sim_finish_effect(world, verb);
    }
}
