/* The trace of the simulator, in which each event of a run is a small record. The last SIM_TRACE_KEPT records are kept
 * in a ring for printing, and all of them enter a hash, by which tests check that two runs are equal. */
#include "fabric/sim/sim_internal.h"

#include <inttypes.h>


const char *sim_verb_name(unsigned kind) {
    static const char *const names[] = {"READ", "WRITE", "CAS", "FAA", "MASKED_CAS"};
    return kind < FAR_VERB_KINDS ? names[kind] : "?";
}


static const char *client_name(const far_sim_world *world, uint32_t number) {
    for (const far_sim_client *client = world->clients; client; client = client->next)
        if (client->number == number)
            return client->name;
    return world->outside.name;
}


static void print_effect(const sim_trace_entry *e, FILE *file) {
    if (e->verb == FAR_READ || e->verb == FAR_WRITE)
        fprintf(file, " granules %" PRIu64 "..%" PRIu64 " first word %#" PRIx64, e->b, e->c - 1, e->a);
    else
        fprintf(file, " old %#" PRIx64 " new %#" PRIx64 "%s", e->a, e->b, e->c ? "" : " (failed)");
}


static void print_verb(const sim_trace_entry *e, FILE *file) {
    static const char *const events[] = {"post", "effect", "done", "dropped", "failed", "held", "swallows"};
    fprintf(file, " %-8s #%" PRIu64 " %s %u:%#" PRIx64 "+%u", events[e->kind], e->index, sim_verb_name(e->verb),
            far_addr_node(e->addr), far_addr_offset(e->addr), e->length);
    if (e->kind == SIM_TRACE_EFFECT)
        print_effect(e, file);
    else if (e->kind == SIM_TRACE_POST && e->verb == FAR_FAA)
        fprintf(file, " add %#" PRIx64, e->b);
    else if (e->kind == SIM_TRACE_POST && e->verb >= FAR_CAS)
        fprintf(file, " compare %#" PRIx64 " swap %#" PRIx64, e->a, e->b);
    else if (e->kind == SIM_TRACE_DROP)
        fprintf(file, " after %" PRIu64 " granules", e->a);
    else if (e->kind == SIM_TRACE_HOLD && e->a)
        fprintf(file, " (completion)");
    else if (e->kind == SIM_TRACE_SWALLOW)
        fprintf(file, " a WRITE of %#" PRIx64, e->a);
    else if (e->kind == SIM_TRACE_DONE && e->a)
        fprintf(file, " unreachable");
}


static void print_entry(const far_sim_world *world, const sim_trace_entry *e, FILE *file) {
    fprintf(file, "%10" PRIu64 ".%03u %-10s %-8s", e->time / SIM_PS, (unsigned)(e->time % SIM_PS),
            client_name(world, e->client), e->label ? e->label : "-");
    switch ((sim_trace_kind)e->kind) {
    case SIM_TRACE_START:
        fprintf(file, " starts");
        break;
    case SIM_TRACE_END:
        fprintf(file, " ends");
        break;
    case SIM_TRACE_STALL:
        fprintf(file, " stalls for %" PRIu64 " ns", e->a);
        break;
    case SIM_TRACE_STOP:
        fprintf(file, " stops");
        break;
    case SIM_TRACE_POINT:
        fprintf(file, " point");
        break;
    case SIM_TRACE_KILL:
        fprintf(file, " compute node %" PRIu64 " is killed", e->a);
        break;
    case SIM_TRACE_FENCE:
        fprintf(file, " connection %" PRIu64 " is fenced", e->a);
        break;
    case SIM_TRACE_LOSE:
        fprintf(file, " connection %" PRIu64 " is lost", e->a);
        break;
    case SIM_TRACE_NODE_DOWN:
        fprintf(file, " memory node %" PRIu64 " goes down", e->a);
        break;
    case SIM_TRACE_NODE_UP:
        fprintf(file, " memory node %" PRIu64 " comes up", e->a);
        break;
    case SIM_TRACE_ERROR:
        fprintf(file, " ERROR %" PRIu64, e->a);
        break;
    default:
        print_verb(e, file);
    }
    fputc('\n', file);
}


static uint64_t mix_hash(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
    return hash ^ hash >> 29;
}


static void record_entry(far_sim_world *world, const sim_trace_entry *entry) {
    uint64_t hash = world->trace_hash;
    hash = mix_hash(hash, entry->time ^ (uint64_t)entry->kind << 56 ^ (uint64_t)entry->verb << 48);
    hash = mix_hash(hash, entry->index ^ (uint64_t)entry->client << 40);
    hash = mix_hash(hash, entry->addr ^ (uint64_t)entry->length << 48);
    hash = mix_hash(hash, entry->a + entry->b * 3);
    world->trace_hash = mix_hash(hash, entry->c);
    world->trace[world->traced++ & (SIM_TRACE_KEPT - 1)] = *entry;
    if (world->trace_file)
        print_entry(world, entry, world->trace_file);
}


void sim_trace(far_sim_world *world, sim_trace_kind kind, const far_sim_client *client, const char *label, uint64_t a) {
    sim_trace_entry entry = {
        .time = world->now, .a = a, .label = label, .client = client->number, .kind = (uint8_t)kind};
    record_entry(world, &entry);
}


void sim_trace_verb(far_sim_world *world, sim_trace_kind kind, const sim_verb *verb, uint64_t a, uint64_t b,
                    uint64_t c) {
    sim_trace_entry entry = {.time = world->now,
                             .index = verb->index,
                             .addr = verb->verb.addr,
                             .a = a,
                             .b = b,
                             .c = c,
                             .label = verb->label,
                             .length = verb->verb.length,
                             .client = verb->client->number,
                             .kind = (uint8_t)kind,
                             .verb = verb->verb.kind};
    record_entry(world, &entry);
}


/* Records the operands of the verb. Operands that this kind of verb does not use are recorded as 0, because the poster
 * may not have initialized them. */
void sim_trace_post(far_sim_world *world, const sim_verb *verb) {
    const far_verb *v = &verb->verb;
    bool compares = v->kind == FAR_CAS || v->kind == FAR_MASKED_CAS, masked = v->kind == FAR_MASKED_CAS;
    sim_trace_verb(world, SIM_TRACE_POST, verb, compares ? v->compare : 0,
                   verb->class == SIM_CLASS_ATOMIC ? v->swap : 0, masked ? v->compare_mask * 3 + v->swap_mask : 0);
}


void sim_trace_print(const far_sim_world *world, FILE *file, uint64_t lines) {
    if (lines > SIM_TRACE_KEPT)
        lines = SIM_TRACE_KEPT;
    for (uint64_t i = world->traced > lines ? world->traced - lines : 0; i < world->traced; i++)
        print_entry(world, &world->trace[i & (SIM_TRACE_KEPT - 1)], file);
}


void far_sim_trace_dump(const far_sim_world *world, FILE *file) {
    sim_trace_print(world, file, SIM_TRACE_KEPT);
}


void far_sim_trace_to(far_sim_world *world, FILE *file) {
    world->trace_file = file;
}


uint64_t far_sim_trace_hash(const far_sim_world *world) {
    return world->trace_hash;
}
