/* The cost model of NICs, which computes when verbs arrive, take effect and complete. A NIC has an engine that
 * processes one message after another, and a link with a bandwidth in each direction. A message occupies the engine for
 * the reciprocal of the message rate and the link for its bytes over the bandwidth; the longer of the two counts, so a
 * stream of messages reaches exactly the limit of the NIC that applies. Data is cut through, that is, the receiving NIC
 * does not add the transfer time a second time. The response takes the time that is missing to the round trip of the
 * preset. `sim_nic_send`, `sim_nic_arrive` and `sim_nic_respond` follow one verb. */
#include "base/error.h"
#include "fabric/sim/sim_internal.h"
#include "farindex.h"

#include <stdlib.h>


static uint64_t later_of(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}


static int compute_response_time(const char *name, uint64_t rtt_ns, uint64_t cpu_ns, uint64_t spent,
                                 uint64_t *response) {
    uint64_t parts = cpu_ns * SIM_PS + spent;
    if (rtt_ns * SIM_PS < parts)
        return far_fail(FAR_ERR_INVALID, "sim: %s is too short: its parts (CPU, wire and NIC times) need %llu ns", name,
                        (unsigned long long)(parts / SIM_PS));
    *response = rtt_ns * SIM_PS - parts;
    return 0;
}


int sim_compute_costs(const sim_config *config, sim_cost *cost) {
    const sim_nic_config *nic = &config->nic;
    uint64_t cpu = nic->cpu_doorbell + nic->cpu_verb + nic->cpu_completion;
    cost->message[SIM_CLASS_READ] = 1000000000 / nic->read_kops;
    cost->message[SIM_CLASS_WRITE] = 1000000000 / nic->write_kops;
    cost->message[SIM_CLASS_ATOMIC] = 1000000000 / nic->atomic_kops;
    cost->word = 1000000000 / nic->word_kops;
    cost->wire = nic->wire * SIM_PS;
    cost->byte_1024 = 1024ull * 1000000 / nic->milli_gbps;
    int error = compute_response_time("rtt_read", nic->rtt_read, cpu, cost->wire + 2 * cost->message[SIM_CLASS_READ],
                                      &cost->response[SIM_CLASS_READ]);
    if (error == 0)
        error = compute_response_time("rtt_write", nic->rtt_write, cpu, cost->wire + 2 * cost->message[SIM_CLASS_WRITE],
                                      &cost->response[SIM_CLASS_WRITE]);
    if (error == 0)
        error = compute_response_time("rtt_atomic", nic->rtt_atomic, cpu,
                                      cost->wire + 2 * cost->message[SIM_CLASS_ATOMIC] + cost->word,
                                      &cost->response[SIM_CLASS_ATOMIC]);
    return error;
}


/* Sends one message through the engine of the NIC, and its data through the link `*link`. Returns the time when the
 * last byte has passed. */
static uint64_t pass_through_nic(sim_nic *nic, uint64_t *link, uint64_t now, uint64_t message, uint64_t transfer) {
    uint64_t start = later_of(now, nic->engine_free);
    nic->engine_free = start + message;
    *link = later_of(start, *link) + transfer;
    return later_of(nic->engine_free, *link);
}


uint64_t sim_nic_send(far_sim_world *world, sim_verb *verb) {
    const sim_cost *cost = &world->cost;
    sim_nic *nic = &verb->conn->node->nic;
    uint64_t bytes = verb->class == SIM_CLASS_WRITE ? verb->verb.length : 0;
    return pass_through_nic(nic, &nic->out_free, world->now, cost->message[verb->class],
                            sim_transfer_time(cost, bytes)) +
           cost->wire;
}


uint64_t sim_nic_arrive(far_sim_world *world, sim_verb *verb) {
    const sim_cost *cost = &world->cost;
    sim_nic *nic = &world->memory[verb->node].nic;
    uint64_t ready, message = cost->message[verb->class];
    if (verb->class == SIM_CLASS_WRITE) {
        uint64_t transfer = sim_transfer_time(cost, verb->verb.length);
        nic->in_free = later_of(nic->in_free, world->now - transfer) + transfer;
        nic->engine_free = later_of(world->now, nic->engine_free) + message;
        return later_of(nic->engine_free, nic->in_free);
    }
    ready = pass_through_nic(nic, &nic->out_free, world->now, message,
                             verb->class == SIM_CLASS_READ ? sim_transfer_time(cost, verb->verb.length) : 0);
    if (verb->class == SIM_CLASS_ATOMIC) {
        sim_word *word = sim_word_of(world, verb->verb.addr);
        word->busy = later_of(ready, word->busy) + cost->word;
        ready = word->busy;
    }
    return ready;
}


uint64_t sim_nic_respond(far_sim_world *world, sim_verb *verb) {
    const sim_cost *cost = &world->cost;
    uint64_t arrival = world->now + cost->response[verb->class];
    if (verb->class == SIM_CLASS_READ) {
        sim_nic *nic = &verb->conn->node->nic;
        uint64_t transfer = sim_transfer_time(cost, verb->verb.length);
        arrival = nic->in_free = later_of(nic->in_free, arrival - transfer) + transfer;
    }
    return (arrival + SIM_PS - 1) / SIM_PS * SIM_PS;
}


static size_t find_word_slot(const sim_words *words, uint64_t addr) {
    uint64_t state = addr;
    size_t at = (size_t)far_splitmix(&state) & (words->capacity - 1);
    while (words->slots[at].addr_1 && words->slots[at].addr_1 != addr + 1)
        at = (at + 1) & (words->capacity - 1);
    return at;
}


/* Rebuilds the table of words that were the target of atomics. Entries of words that are idle again are dropped, so the
 * table does not grow with the number of different words. */
static void rebuild_word_table(far_sim_world *world) {
    sim_words *words = &world->words, old = *words;
    size_t kept = 0;
    for (size_t i = 0; i < old.capacity; i++)
        kept += old.slots[i].addr_1 && (old.slots[i].busy > world->now || old.slots[i].owner);
    words->capacity = 256;
    while (words->capacity < kept * 4)
        words->capacity *= 2;
    words->slots = sim_allocate(words->capacity * sizeof *words->slots);
    words->count = kept;
    for (size_t i = 0; i < old.capacity; i++)
        if (old.slots[i].addr_1 && (old.slots[i].busy > world->now || old.slots[i].owner))
            words->slots[find_word_slot(words, old.slots[i].addr_1 - 1)] = old.slots[i];
    free(old.slots);
}


sim_word *sim_word_of(far_sim_world *world, far_addr addr) {
    sim_words *words = &world->words;
    if (words->count * 2 >= words->capacity)
        rebuild_word_table(world);
    sim_word *word = &words->slots[find_word_slot(words, addr)];
    if (!word->addr_1) {
        *word = (sim_word){.addr_1 = addr + 1};
        words->count++;
    }
    return word;
}
