/* Implements the faults of the simulator, which are torn, late and reordered effects, atomics that read and write at
 * two instants, late completions, and clients that stall. Faults use only the freedom that the fabric contract leaves,
 * and each random choice comes from the seed of the world. `sim_fault_schedule` chooses the time of an effect. */
#include "fabric/sim/sim_internal.h"

#include <string.h>
#include <xxhash.h>

#define US (1000 * SIM_PS)
/* byte that fills the buffer of a READ until the READ takes effect, so that a client that uses the buffer too early
 * gets garbage */
#define SCRIBBLE 0xE7

typedef struct choice {
    unsigned weight; /* probability of this delay, in 1/1024 */
    uint64_t bound;  /* longest delay in picoseconds; the delay is uniform in 1..bound, or none if bound is 0 */
} choice;

static const choice effect_delays[] = {{640, 0}, {256, 2 * US}, {96, 10 * US}, {32, 60 * US}};
static const choice reorder_delays[] = {{512, 0}, {512, 3 * US / 2}};
static const choice tear_durations[] = {{512, 3 * US / 10}, {384, 3 * US}, {128, 30 * US}};
static const choice atomic_durations[] = {{512, 0}, {384, 2 * US}, {128, 15 * US}};
static const choice completion_delays[] = {{880, 0}, {128, 4 * US}, {16, 50 * US}};
static const choice leftover_delays[] = {{512, 0}, {256, 5 * US}, {256, 60 * US}};
static const choice stall_durations[] = {{1005, 0}, {16, 6 * US}, {2, 150 * US}, {1, 1500 * US}};

static const choice message_delays[] = {{512, 2 * US}, {384, 20 * US}, {112, 200 * US}, {16, 2000 * US}};

#define DRAW(world, choices) draw_delay(&(world)->random, choices, sizeof(choices) / sizeof(choices)[0])


static uint64_t draw_delay(far_random *random, const choice *choices, size_t count) {
    uint64_t at = far_random_below(random, 1024);
    for (size_t i = 0; i < count; i++) {
        if (at < choices[i].weight)
            return choices[i].bound ? 1 + far_random_below(random, choices[i].bound) : 0;
        at -= choices[i].weight;
    }
    return 0;
}


/* ---- Time of an effect ---- */

/* Returns a random permutation of 0..15 in which each element takes four bits. */
static uint64_t random_permutation(far_random *random) {
    uint64_t order = 0xfedcba9876543210ull;
    for (unsigned i = SIM_PARTS_MAX - 1; i > 0; i--) {
        unsigned j = (unsigned)far_random_below(random, i + 1);
        uint64_t a = (order >> (4 * i)) & 15, b = (order >> (4 * j)) & 15;
        order &= ~(15ull << (4 * i)) & ~(15ull << (4 * j));
        order |= b << (4 * i) | a << (4 * j);
    }
    return order;
}


static void choose_tearing(far_sim_world *world, sim_verb *verb) {
    uint32_t most = verb->granules < SIM_PARTS_MAX ? verb->granules : SIM_PARTS_MAX;
    if (most < 2 || far_random_chance(&world->random, 1, 4))
        return;
    verb->parts = 2 + (uint32_t)far_random_below(&world->random, most - 1);
    verb->seed = verb->granules <= SIM_PARTS_MAX ? random_permutation(&world->random) : far_random_next(&world->random);
    verb->duration = DRAW(world, tear_durations);
}


/* Chooses the time at which the verb takes effect, which is any time that the rules of order allow. Verbs to which no
 * rule applies may overtake each other. */
void sim_fault_schedule(far_sim_world *world, sim_verb *verb, sim_qp *qp, uint64_t base) {
    uint64_t faults = world->faults, start = base;
    if (faults & FAR_SIM_LATE)
        start += DRAW(world, effect_delays);
    if (faults & FAR_SIM_REORDER)
        start += DRAW(world, reorder_delays);
    if (!verb->post)
        start += DRAW(world, leftover_delays);
    if ((faults & FAR_SIM_TEAR) && verb->class != SIM_CLASS_ATOMIC)
        choose_tearing(world, verb);
    if ((faults & FAR_SIM_SWALLOW) && verb->class == SIM_CLASS_ATOMIC) {
        verb->duration = DRAW(world, atomic_durations);
        verb->is_split = verb->duration != 0;
    }
    for (unsigned class = 0; class < 3; class ++)
        if (sim_classes_are_ordered(world, class, verb->class) && start <= qp->last[class])
            start = qp->last[class] + 1;
    if (!(faults & FAR_SIM_REORDER) && start <= qp->last_any)
        start = qp->last_any + 1;
    uint64_t end = start + verb->duration;
    qp->last[verb->class] = end;
    if (qp->last_any < end)
        qp->last_any = end;
    sim_push_event(world, start, SIM_EFFECT, verb, verb->generation);
}


uint64_t sim_fault_next_part_time(far_sim_world *world, sim_verb *verb) {
    uint32_t left = verb->parts - verb->part;
    if (left <= 1 || verb->end_time <= world->now)
        return verb->end_time;
    uint64_t next = world->now + far_random_below(&world->random, 2 * (verb->end_time - world->now) / left + 1);
    return next < verb->end_time ? next : verb->end_time;
}


bool sim_fault_granule_is_in_part(const sim_verb *verb, uint32_t granule) {
    uint64_t state = verb->seed + granule, place;
    if (verb->granules <= SIM_PARTS_MAX)
        place = (verb->seed >> (4 * granule)) & 15;
    else
        place = far_splitmix(&state) >> 32;
    return place % verb->parts == verb->part;
}


/* Returns the index of the granule at which the next part of a torn WRITE ends. */
uint32_t sim_fault_part_end(const sim_verb *verb) {
    uint64_t from = (uint64_t)verb->granules * verb->part / verb->parts;
    uint64_t to = (uint64_t)verb->granules * (verb->part + 1) / verb->parts, state = verb->seed + verb->part;
    if (verb->part + 1 == verb->parts)
        return verb->granules;
    return (uint32_t)(from + 1 + far_splitmix(&state) % (to - from));
}


uint64_t sim_fault_completion_delay(far_sim_world *world) {
    return world->faults & FAR_SIM_LATE ? DRAW(world, completion_delays) / SIM_PS * SIM_PS : 0;
}


/* Returns a random delay in ns of a message to a node or back. It is never 0, and with the fault `late` it is sometimes
 * long. */
uint64_t sim_fault_message_delay(far_sim_world *world) {
    return world->config.nic.wire + (world->faults & FAR_SIM_LATE ? DRAW(world, message_delays) / SIM_PS : 0);
}


/* Decides at random whether a verb may be sent before the verbs that wait in the send queue. The queues of real NICs
 * are processed in order, but the fabric contract does not promise that. */
bool sim_fault_let_overtake(far_sim_world *world, const sim_verb *verb, const sim_qp *qp) {
    if (!(world->faults & FAR_SIM_REORDER))
        return false;
    for (const sim_verb *waiting = qp->queue; waiting; waiting = waiting->queue_next)
        if (sim_classes_are_ordered(world, waiting->class, verb->class))
            return false;
    return far_random_chance(&world->random, 1, 2);
}


/* ---- Buffers that clients must not use while a verb is in flight ---- */

static uint64_t payload_checksum(const sim_verb *verb) {
    return XXH3_64bits(verb->verb.local, verb->verb.length) | 1;
}


void sim_fault_mark_buffers(far_sim_world *world, sim_verb *verb) {
    (void)world;
    if (verb->class == SIM_CLASS_WRITE)
        verb->checksum = payload_checksum(verb);
    else if (verb->verb.local)
        memset(verb->verb.local, SCRIBBLE, verb->verb.length);
}


bool sim_fault_payload_changed(const sim_verb *verb) {
    return payload_checksum(verb) != verb->checksum;
}


/* ---- Stalls ---- */

void sim_fault_maybe_stall(far_sim_client *client) {
    far_sim_world *world = client->world;
    if (!(world->faults & FAR_SIM_STALL) || sim_is_outside(client) || sim_client_has_failed(client))
        return;
    uint64_t time = DRAW(world, stall_durations) / SIM_PS * SIM_PS;
    if (time == 0)
        return;
    sim_trace(world, SIM_TRACE_STALL, client, NULL, time / SIM_PS);
    sim_sleep_until(world, world->now + time);
}
