/* What verbs do to memory, and when they may: the order of one connection's verbs at one node, units, atomics. */
#include "fabric/sim/sim_internal.h"
#include "farindex.h"

#include <string.h>


uint32_t sim_units(const far_sim_world *world, const far_verb *verb) {
    uint64_t unit = world->config.atomic_bytes, offset = far_addr_offset(verb->addr);
    if (verb->kind != FAR_READ && verb->kind != FAR_WRITE)
        return 1;
    return (uint32_t)((offset + verb->length - 1) / unit - offset / unit + 1);
}


/* The contract: must a verb of class `first` take effect before one of class `second` that is posted after it, at one
 * node? */
bool sim_ordered(const far_sim_world *world, unsigned first, unsigned second) {
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
    sim_push(world, time, SIM_EFFECT, verb, verb->generation);
}


/* ---- Memory ---- */

static uint8_t *memory_at(far_sim_world *world, const sim_verb *verb, uint64_t offset) {
    return world->memory[verb->node].bytes + far_addr_offset(verb->verb.addr) + offset;
}


/* Units [first, end) of a READ or WRITE. */
static void apply_units(far_sim_world *world, sim_verb *verb, uint32_t first, uint32_t end) {
    uint64_t unit = world->config.atomic_bytes, skip = far_addr_offset(verb->verb.addr) % unit;
    uint64_t from = first ? first * unit - skip : 0, to = end * unit - skip;
    if (to > verb->verb.length)
        to = verb->verb.length;
    if (first >= end)
        return;
    uint8_t *memory = memory_at(world, verb, from), *local = (uint8_t *)verb->verb.local + from;
    sim_watch_check(world, verb, verb->verb.addr + from, to - from);
    if (verb->class == SIM_CLASS_READ)
        memcpy(local, memory, to - from);
    else
        memcpy(memory, local, to - from);
    verb->landed += end - first;
    uint64_t word;
    memcpy(&word, memory, 8);
    sim_trace_verb(world, SIM_TRACE_EFFECT, verb, word, first, end);
}


void sim_apply_unit(far_sim_world *world, sim_verb *verb, uint32_t unit) {
    if (verb->class == SIM_CLASS_ATOMIC)
        sim_apply_rest(world, verb);
    else
        apply_units(world, verb, unit, unit + 1);
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


/* An atomic reads its word. False: its comparison failed, and it is over. */
static bool atomic_begin(far_sim_world *world, sim_verb *verb) {
    sim_watch_check(world, verb, verb->verb.addr, 8);
    memcpy(&verb->old, memory_at(world, verb, 0), 8);
    return atomic_succeeds(&verb->verb, verb->old);
}


static void atomic_end(far_sim_world *world, sim_verb *verb, bool success) {
    uint64_t word = verb->old, result = success ? atomic_result(&verb->verb, verb->old) : verb->old;
    if (success) {
        memcpy(&word, memory_at(world, verb, 0), 8);
        if (word != verb->old)
            sim_trace_verb(world, SIM_TRACE_SWALLOW, verb, word, 0, 0);
        memcpy(memory_at(world, verb, 0), &result, 8);
    }
    if (verb->verb.local)
        memcpy(verb->verb.local, &verb->old, 8);
    verb->landed = 1;
    sim_trace_verb(world, SIM_TRACE_EFFECT, verb, verb->old, result, success);
}


void sim_apply_rest(far_sim_world *world, sim_verb *verb) {
    if (verb->class == SIM_CLASS_ATOMIC)
        atomic_end(world, verb, verb->state == SIM_BEGUN || atomic_begin(world, verb));
    else if (verb->class == SIM_CLASS_WRITE)
        apply_units(world, verb, verb->landed, verb->cut);
    else
        apply_units(world, verb, 0, verb->units);
}


/* ---- Order while something is held ---- */

/* With questions=on a node that is down is silent, and its clients wait until they give it up; else their verbs fail. */
static bool is_silent(const far_sim_world *world, unsigned node) {
    return world->memory[node].down && world->config.questions;
}


static bool must_wait(far_sim_world *world, const sim_verb *verb) {
    if (is_silent(world, verb->node))
        return true;
    if (verb->after && verb->after->generation == verb->after_generation && verb->after->state < SIM_EFFECTIVE)
        return true;
    if (verb->class == SIM_CLASS_ATOMIC && sim_word_of(world, verb->verb.addr)->owner)
        return true;
    for (const sim_verb *v = verb->prev; v; v = v->prev)
        if (v->node == verb->node && v->state < SIM_EFFECTIVE && sim_ordered(world, v->class, verb->class))
            return true;
    return false;
}


void sim_unblock(sim_conn *conn) {
    far_sim_world *world = conn->world;
    for (sim_verb *verb = conn->first; verb && conn->blocked; verb = verb->next)
        if (verb->state == SIM_BLOCKED && !must_wait(world, verb)) {
            verb->state = SIM_SCHEDULED;
            conn->blocked--;
            sim_push(world, world->now, SIM_EFFECT, verb, verb->generation);
        }
}


void sim_unblock_all(far_sim_world *world) {
    for (sim_conn *conn = world->conns; conn; conn = conn->next)
        if (conn->blocked)
            sim_unblock(conn);
}


/* ---- The effect ---- */

/* The first verb that fails at a node does so after unreachable=, later ones at once. */
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
        sim_conn_release(conn);
        return;
    }
    sim_push(world, world->now + delay, SIM_DONE, verb, verb->generation);
    if (verb->conn->blocked)
        sim_unblock(verb->conn);
}


void sim_stop_verb(far_sim_world *world, sim_verb *verb) {
    sim_conn *conn = verb->conn;
    if (verb->state == SIM_BEGUN && verb->class == SIM_CLASS_ATOMIC) {
        sim_word_of(world, verb->verb.addr)->owner = NULL;
        world->rmw--;
    }
    if (verb->state == SIM_HELD || verb->state == SIM_BLOCKED)
        conn->blocked--;
    if (verb->state == SIM_HELD)
        verb->client->held--;
    verb->generation++; /* events that were planned for it are stale */
    sim_fail_verb(world, verb);
}


void sim_effective(far_sim_world *world, sim_verb *verb) {
    sim_conn *conn = verb->conn;
    verb->state = SIM_EFFECTIVE;
    if (conn->blocked)
        sim_unblock(conn);
    if (!verb->post) {
        sim_verb_free(world, verb);
        sim_conn_release(conn);
        return;
    }
    uint64_t done = sim_nic_answer(world, verb);
    if (world->faults)
        done += sim_fault_completion_delay(world);
    sim_push(world, done, SIM_DONE, verb, verb->generation);
}


/* True when the verb cannot begin now: it failed, is held, or waits for another. */
static bool put_off(far_sim_world *world, sim_verb *verb) {
    sim_conn *conn = verb->conn;
    bool silent = is_silent(world, verb->node);
    if ((world->memory[verb->node].down && !silent) || conn->qps[verb->node].failed) {
        sim_fail_verb(world, verb);
        return true;
    }
    if (silent)
        sim_ask_waits(conn, verb->node);
    if ((silent || conn->disturbed || verb->after || (world->rmw && verb->class == SIM_CLASS_ATOMIC)) &&
        must_wait(world, verb)) {
        verb->state = SIM_BLOCKED;
        conn->blocked++;
        conn->disturbed = true;
        return true;
    }
    if (verb->hold_effect && !verb->hold_effect->released) {
        verb->state = SIM_HELD;
        conn->blocked++;
        conn->disturbed = true;
        sim_hold_reach(verb, verb->hold_effect);
        return true;
    }
    return false;
}


/* An atomic that takes a while: it has read its word, and will write it later whatever happens to the word meanwhile.
 */
static void begin_rmw(far_sim_world *world, sim_verb *verb) {
    if (!atomic_begin(world, verb)) {
        atomic_end(world, verb, false);
        sim_effective(world, verb);
        return;
    }
    sim_word_of(world, verb->verb.addr)->owner = verb;
    world->rmw++;
    verb->state = SIM_BEGUN;
    sim_push(world, world->now + verb->span, SIM_EFFECT, verb, verb->generation);
}


static void end_rmw(far_sim_world *world, sim_verb *verb) {
    atomic_end(world, verb, true);
    sim_word_of(world, verb->verb.addr)->owner = NULL;
    world->rmw--;
    sim_effective(world, verb);
    sim_unblock_all(world);
}


/* Another atomic takes effect on the same word now: the one that has read the word and not written it ends first. */
void sim_settle_word(far_sim_world *world, sim_verb *verb) {
    sim_verb *owner = sim_word_of(world, verb->verb.addr)->owner;
    if (owner && owner != verb)
        end_rmw(world, owner);
}


/* One instant of a torn READ or WRITE. */
static void apply_part(far_sim_world *world, sim_verb *verb) {
    if (verb->state != SIM_BEGUN)
        verb->end = world->now + verb->span;
    verb->state = SIM_BEGUN;
    if (verb->class == SIM_CLASS_WRITE) {
        uint32_t end = sim_fault_write_end(verb);
        apply_units(world, verb, verb->landed, end < verb->cut ? end : verb->cut);
    } else {
        for (uint32_t unit = 0; unit < verb->units; unit++)
            if (sim_fault_unit_in_part(verb, unit))
                apply_units(world, verb, unit, unit + 1);
    }
    verb->part++;
    if (verb->part == verb->parts || verb->landed >= verb->cut)
        sim_effective(world, verb);
    else
        sim_push(world, sim_fault_next_part(world, verb), SIM_EFFECT, verb, verb->generation);
}


void sim_effect(far_sim_world *world, sim_verb *verb) {
    bool begun = verb->state == SIM_BEGUN;
    if (verb->state >= SIM_EFFECTIVE)
        return; /* an atomic that sim_settle_word has ended already */
    if (!begun && put_off(world, verb))
        return;
    if (verb->conn->declared)
        sim_error(world, "a verb of session %u.%u takes effect after it was said to be dead", verb->conn->id,
                  verb->conn->generation);
    if (!begun && verb->checksum && sim_fault_payload_changed(verb))
        sim_error(world, "client %u (%s) changed the payload of its WRITE %llu while it was in flight",
                  verb->client->number, verb->client->name, (unsigned long long)verb->index);
    if (verb->rmw && begun) {
        end_rmw(world, verb);
    } else if (verb->rmw) {
        begin_rmw(world, verb);
    } else if (verb->parts > 1) {
        apply_part(world, verb);
    } else {
        sim_apply_rest(world, verb);
        sim_effective(world, verb);
    }
}
