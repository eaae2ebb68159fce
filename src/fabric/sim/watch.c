/* The watch: what each piece of managed memory is, and whether a verb may touch it. */
#include "fabric/sim/sim_internal.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define GRANULE       16u
#define CHUNK         (64u << 10)
#define GRANULES      (CHUNK / GRANULE)
#define CONTEXT_LINES 12

enum { UNMANAGED, FREE, LIVE, RETIRED };

typedef enum { SET_LIVE, SET_RETIRED, SET_FREE, SET_UNMANAGED } change_kind;

typedef struct change {
    change_kind kind;
    uint32_t index_key;
    bool stable;
    uint64_t clock;
} change;


static void change_granule(sim_granule *granule, const change *change) {
    switch (change->kind) {
    case SET_LIVE:
        granule->state = LIVE;
        granule->reused = granule->retired;
        granule->index_key = change->index_key;
        granule->stable = change->stable;
        return;
    case SET_RETIRED:
        granule->state = RETIRED;
        granule->retired = change->clock;
        return;
    case SET_FREE:
        granule->state = FREE;
        granule->stable = change->stable;
        return;
    case SET_UNMANAGED:
        *granule = (sim_granule){.retired = granule->retired, .reused = granule->retired};
        return;
    }
}


static void change_chunk(sim_chunk *chunk, uint32_t first, uint32_t end, const change *change) {
    bool whole = first == 0 && end == GRANULES;
    if (whole && !chunk->each) {
        change_granule(&chunk->all, change);
        return;
    }
    if (!chunk->each) {
        chunk->each = sim_allocate(GRANULES * sizeof *chunk->each);
        for (uint32_t i = 0; i < GRANULES; i++)
            chunk->each[i] = chunk->all;
    }
    for (uint32_t i = first; i < end; i++)
        change_granule(&chunk->each[i], change);
}


static sim_chunk *chunks_of(far_sim_world *world, sim_memory *memory) {
    if (!memory->chunks)
        memory->chunks = sim_allocate((world->config.size / CHUNK + 1) * sizeof *memory->chunks);
    return memory->chunks;
}


static void change_range(far_fabric *fabric, far_addr addr, uint64_t size, change change) {
    far_sim_world *world = sim_world(fabric);
    change.clock = ++world->clock;
    if (!world->config.watch || !far_fabric_in_range(fabric, addr & ~7ull, (size + 7) & ~7ull))
        return;
    sim_chunk *chunks = chunks_of(world, &world->memory[far_addr_node(addr)]);
    uint64_t offset = far_addr_offset(addr), end = offset + size;
    for (uint64_t at = offset / CHUNK; at * CHUNK < end; at++) {
        uint64_t from = at * CHUNK > offset ? 0 : offset - at * CHUNK, to = end - at * CHUNK;
        to = to < CHUNK ? to : CHUNK;
        change_chunk(&chunks[at], (uint32_t)(from / GRANULE), (uint32_t)((to + GRANULE - 1) / GRANULE), &change);
    }
}


void sim_watch_free(far_sim_world *world) {
    for (unsigned node = 0; world->memory && node < world->config.memory_nodes; node++) {
        sim_chunk *chunks = world->memory[node].chunks;
        for (uint64_t i = 0; chunks && i < world->config.size / CHUNK + 1; i++)
            free(chunks[i].each);
        free(chunks);
    }
}


/* ---- Being told ---- */

static uint64_t watch_clock(far_fabric *fabric) {
    return ++sim_world(fabric)->clock;
}


static void watch_allocated(far_fabric *fabric, far_addr addr, uint64_t size, uint32_t index_key, bool stable) {
    change_range(fabric, addr, size, (change){.kind = SET_LIVE, .index_key = index_key, .stable = stable});
}


static void watch_retired(far_fabric *fabric, far_addr addr, uint64_t size) {
    change_range(fabric, addr, size, (change){.kind = SET_RETIRED});
}


static void watch_freed(far_fabric *fabric, far_addr addr, uint64_t size, bool stable) {
    far_sim_world *world = sim_world(fabric);
    change_range(fabric, addr, size, (change){.kind = SET_FREE, .stable = stable});
    if (!stable && world->config.watch && far_fabric_in_range(fabric, addr & ~7ull, (size + 7) & ~7ull))
        memset(world->memory[far_addr_node(addr)].bytes + far_addr_offset(addr), FAR_SIM_POISON, size);
}


static void watch_released(far_fabric *fabric, far_addr addr, uint64_t size) {
    change_range(fabric, addr, size, (change){.kind = SET_UNMANAGED});
}


static void watch_point(far_conn *base, const char *name, const char *label) {
    sim_conn *conn = (sim_conn *)base;
    far_sim_client *client = conn->world->running;
    sim_trace(conn->world, SIM_TRACE_POINT, client, name, 0);
    if (conn->world->on_point)
        conn->world->on_point(conn->world->on_point_ctx, client, name);
    sim_fault_stall(client);
    if (client->rules)
        sim_steer_point(client, name, label);
}


const far_watch_ops sim_watch_ops = {
    .clock = watch_clock,
    .allocated = watch_allocated,
    .retired = watch_retired,
    .freed = watch_freed,
    .released = watch_released,
    .point = watch_point,
};


/* ---- Checking ---- */

/* What is wrong with the verb at this granule, or NULL. */
static const char *fault_of(const sim_verb *verb, const sim_granule *granule) {
    bool is_free = granule->state == FREE, reused = !is_free && verb->pin_clock < granule->reused;
    if (!is_free && !reused)
        return NULL;
    if (verb->verb.flags & FAR_VERB_SYSTEM)
        return NULL;
    if (verb->verb.flags & FAR_VERB_UNPROVEN) {
        if (verb->class == SIM_CLASS_READ)
            return NULL;
        if (verb->class == SIM_CLASS_ATOMIC && granule->stable && granule->index_key == verb->index_key)
            return NULL;
    }
    return is_free ? "touches free memory" : "touches memory that was reused after its operation's pin";
}


static void report(far_sim_world *world, const sim_verb *verb, far_addr at, const char *what) {
    sim_error(world, "client %u (%s) %s: verb %llu, %s%s of %u bytes at %u:%#llx, %s at %u:%#llx", verb->client->number,
              verb->client->name, verb->label ? verb->label : "-", (unsigned long long)verb->index,
              verb->verb.flags & FAR_VERB_UNPROVEN ? "unproven " : "", sim_verb_name(verb->verb.kind),
              verb->verb.length, verb->node, (unsigned long long)far_addr_offset(verb->verb.addr), what, verb->node,
              (unsigned long long)far_addr_offset(at));
}


void sim_watch_check(far_sim_world *world, const sim_verb *verb, far_addr addr, uint64_t length) {
    const sim_chunk *chunks = world->memory[verb->node].chunks;
    if (!chunks)
        return;
    uint64_t offset = far_addr_offset(addr), end = offset + length;
    while (offset < end) {
        const sim_chunk *chunk = &chunks[offset / CHUNK];
        uint64_t next = chunk->each ? offset / GRANULE * GRANULE + GRANULE : offset / CHUNK * CHUNK + CHUNK;
        const char *what = fault_of(verb, chunk->each ? &chunk->each[offset % CHUNK / GRANULE] : &chunk->all);
        if (what) {
            report(world, verb, far_addr_make(verb->node, offset), what);
            return;
        }
        offset = next;
    }
}


/* ---- Errors ---- */

void sim_error(far_sim_world *world, const char *format, ...) {
    uint64_t number = world->errors++;
    if (number >= SIM_ERRORS_KEPT)
        return;
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    if (!file)
        return;
    fprintf(file, "seed %llu at %llu ns: ", (unsigned long long)world->config.seed,
            (unsigned long long)far_sim_now(world));
    va_list args;
    va_start(args, format);
    vfprintf(file, format, args);
    va_end(args);
    fprintf(file, "; the last events:\n");
    sim_trace_print(world, file, CONTEXT_LINES);
    fclose(file);
    world->error_texts[number] = text;
    sim_trace(world, SIM_TRACE_ERROR, world->running, NULL, number + 1);
}


uint64_t far_sim_watch_errors(const far_sim_world *world) {
    return world->errors;
}


const char *far_sim_watch_error(const far_sim_world *world, unsigned nth) {
    return nth < SIM_ERRORS_KEPT ? world->error_texts[nth] : NULL;
}
