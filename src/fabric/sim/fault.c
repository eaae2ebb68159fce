/* Faults: torn, late and reordered effects, atomics that take a while, late completions, stalls. They only ever use the
 * freedom that the contract leaves, and every choice comes from the world's seed. */
#include "fabric/sim/sim_internal.h"

#include <string.h>
#include <xxhash.h>

#define US       (1000 * SIM_PS)
#define SCRIBBLE 0xE7 /* what a READ's buffer holds until it is filled */

typedef struct choice {
    unsigned weight; /* of 1024 */
    uint64_t bound;  /* ps */
} choice;

static const choice late_effects[] = {{640, 0}, {256, 2 * US}, {96, 10 * US}, {32, 60 * US}};
static const choice reorders[] = {{512, 0}, {512, 3 * US / 2}};
static const choice spans[] = {{512, 3 * US / 10}, {384, 3 * US}, {128, 30 * US}};
static const choice swallows[] = {{512, 0}, {384, 2 * US}, {128, 15 * US}};
static const choice late_completions[] = {{880, 0}, {128, 4 * US}, {16, 50 * US}};
static const choice left_behind[] = {{512, 0}, {256, 5 * US}, {256, 60 * US}};
static const choice stalls[] = {{1005, 0}, {16, 6 * US}, {2, 150 * US}, {1, 1500 * US}};

static const choice messages[] = {{512, 2 * US}, {384, 20 * US}, {112, 200 * US}, {16, 2000 * US}};

#define DRAW(world, choices) draw(&(world)->random, choices, sizeof(choices) / sizeof(choices)[0])


static uint64_t draw(far_random *random, const choice *choices, size_t count) {
    uint64_t at = far_random_below(random, 1024);
    for (size_t i = 0; i < count; i++) {
        if (at < choices[i].weight)
            return choices[i].bound ? 1 + far_random_below(random, choices[i].bound) : 0;
        at -= choices[i].weight;
    }
    return 0;
}


/* ---- When an effect happens ---- */

/* A permutation of 0..15, four bits each. */
static uint64_t shuffle(far_random *random) {
    uint64_t order = 0xfedcba9876543210ull;
    for (unsigned i = SIM_PARTS_MAX - 1; i > 0; i--) {
        unsigned j = (unsigned)far_random_below(random, i + 1);
        uint64_t a = (order >> (4 * i)) & 15, b = (order >> (4 * j)) & 15;
        order &= ~(15ull << (4 * i)) & ~(15ull << (4 * j));
        order |= b << (4 * i) | a << (4 * j);
    }
    return order;
}


static void tear(far_sim_world *world, sim_verb *verb) {
    uint32_t most = verb->units < SIM_PARTS_MAX ? verb->units : SIM_PARTS_MAX;
    if (most < 2 || far_random_chance(&world->random, 1, 4))
        return;
    verb->parts = 2 + (uint32_t)far_random_below(&world->random, most - 1);
    verb->seed = verb->units <= SIM_PARTS_MAX ? shuffle(&world->random) : far_random_next(&world->random);
    verb->span = DRAW(world, spans);
}


/* When the verb takes effect: at any time that the rules of order allow. It may overtake whatever they do not forbid. */
void sim_fault_schedule(far_sim_world *world, sim_verb *verb, sim_qp *qp, uint64_t base) {
    uint64_t faults = world->faults, start = base;
    if (faults & FAR_SIM_LATE)
        start += DRAW(world, late_effects);
    if (faults & FAR_SIM_REORDER)
        start += DRAW(world, reorders);
    if (!verb->post)
        start += DRAW(world, left_behind);
    if ((faults & FAR_SIM_TEAR) && verb->class != SIM_CLASS_ATOMIC)
        tear(world, verb);
    if ((faults & FAR_SIM_SWALLOW) && verb->class == SIM_CLASS_ATOMIC) {
        verb->span = DRAW(world, swallows);
        verb->rmw = verb->span != 0;
    }
    for (unsigned class = 0; class < 3; class ++)
        if (sim_ordered(world, class, verb->class) && start <= qp->last[class])
            start = qp->last[class] + 1;
    if (!(faults & FAR_SIM_REORDER) && start <= qp->last_any)
        start = qp->last_any + 1;
    uint64_t end = start + verb->span;
    qp->last[verb->class] = end;
    if (qp->last_any < end)
        qp->last_any = end;
    sim_push(world, start, SIM_EFFECT, verb, verb->generation);
}


uint64_t sim_fault_next_part(far_sim_world *world, sim_verb *verb) {
    uint32_t left = verb->parts - verb->part;
    if (left <= 1 || verb->end <= world->now)
        return verb->end;
    uint64_t next = world->now + far_random_below(&world->random, 2 * (verb->end - world->now) / left + 1);
    return next < verb->end ? next : verb->end;
}


bool sim_fault_unit_in_part(const sim_verb *verb, uint32_t unit) {
    uint64_t state = verb->seed + unit, place;
    if (verb->units <= SIM_PARTS_MAX)
        place = (verb->seed >> (4 * unit)) & 15;
    else
        place = far_splitmix(&state) >> 32;
    return place % verb->parts == verb->part;
}


/* Where the next piece of a torn WRITE ends. */
uint32_t sim_fault_write_end(const sim_verb *verb) {
    uint64_t from = (uint64_t)verb->units * verb->part / verb->parts;
    uint64_t to = (uint64_t)verb->units * (verb->part + 1) / verb->parts, state = verb->seed + verb->part;
    if (verb->part + 1 == verb->parts)
        return verb->units;
    return (uint32_t)(from + 1 + far_splitmix(&state) % (to - from));
}


uint64_t sim_fault_completion_delay(far_sim_world *world) {
    return world->faults & FAR_SIM_LATE ? DRAW(world, late_completions) / SIM_PS * SIM_PS : 0;
}


/* How long a message to a node or back takes: never no time, and sometimes long. */
uint64_t sim_fault_message_delay(far_sim_world *world) {
    return world->config.nic.wire + (world->faults & FAR_SIM_LATE ? DRAW(world, messages) / SIM_PS : 0);
}


/* In hardware a send queue runs in order; the contract promises less. */
bool sim_fault_overtakes(far_sim_world *world, const sim_verb *verb, const sim_qp *qp) {
    if (!(world->faults & FAR_SIM_REORDER))
        return false;
    for (const sim_verb *waiting = qp->queue; waiting; waiting = waiting->queue_next)
        if (sim_ordered(world, waiting->class, verb->class))
            return false;
    return far_random_chance(&world->random, 1, 2);
}


/* ---- Misuse of memory that belongs to the fabric ---- */

static uint64_t payload_sum(const sim_verb *verb) {
    return XXH3_64bits(verb->verb.local, verb->verb.length) | 1;
}


void sim_fault_mark(far_sim_world *world, sim_verb *verb) {
    (void)world;
    if (verb->class == SIM_CLASS_WRITE)
        verb->checksum = payload_sum(verb);
    else if (verb->verb.local)
        memset(verb->verb.local, SCRIBBLE, verb->verb.length);
}


bool sim_fault_payload_changed(const sim_verb *verb) {
    return payload_sum(verb) != verb->checksum;
}


/* ---- Stalls ---- */

void sim_fault_stall(far_sim_client *client) {
    far_sim_world *world = client->world;
    if (!(world->faults & FAR_SIM_STALL) || sim_is_outside(client) || sim_client_dead(client))
        return;
    uint64_t time = DRAW(world, stalls) / SIM_PS * SIM_PS;
    if (time == 0)
        return;
    sim_trace(world, SIM_TRACE_STALL, client, NULL, time / SIM_PS);
    sim_sleep_until(world, world->now + time);
}
