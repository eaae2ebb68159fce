/* The memory checker. It records from the calls of the allocator which memory is allocated, retired or free, and
 * reports verbs that touch memory that they must not touch. `sim_check_access` checks one verb. Memory that the
 * allocator has never mentioned is not checked. */
#include "fabric/sim/sim_internal.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define CELL_BYTES      16u
#define CHUNK_BYTES     (64u << 10)
#define CELLS_PER_CHUNK (CHUNK_BYTES / CELL_BYTES)
#define CONTEXT_LINES   12

enum { UNMANAGED, FREE, LIVE, RETIRED };

typedef enum { SET_LIVE, SET_RETIRED, SET_FREE, SET_UNMANAGED } change_kind;

typedef struct change {
    change_kind kind;
    uint32_t index_key;
    bool stable;
    uint64_t clock;
} change;


static void change_cell(sim_cell *cell, const change *change) {
    switch (change->kind) {
    case SET_LIVE:
        cell->state = LIVE;
        cell->reused = cell->retired;
        cell->index_key = change->index_key;
        cell->stable = change->stable;
        return;
    case SET_RETIRED:
        cell->state = RETIRED;
        cell->retired = change->clock;
        return;
    case SET_FREE:
        cell->state = FREE;
        cell->stable = change->stable;
        return;
    case SET_UNMANAGED:
        *cell = (sim_cell){.retired = cell->retired, .reused = cell->retired};
        return;
    }
}


static void change_chunk(sim_chunk *chunk, uint32_t first, uint32_t end, const change *change) {
    bool whole = first == 0 && end == CELLS_PER_CHUNK;
    if (whole && !chunk->each) {
        change_cell(&chunk->all, change);
        return;
    }
    if (!chunk->each) {
        chunk->each = sim_allocate(CELLS_PER_CHUNK * sizeof *chunk->each);
        for (uint32_t i = 0; i < CELLS_PER_CHUNK; i++)
            chunk->each[i] = chunk->all;
    }
    for (uint32_t i = first; i < end; i++)
        change_cell(&chunk->each[i], change);
}


static sim_chunk *chunks_of(far_sim_world *world, sim_memory *memory) {
    if (!memory->chunks)
        memory->chunks = sim_allocate((world->config.size / CHUNK_BYTES + 1) * sizeof *memory->chunks);
    return memory->chunks;
}


static void change_range(far_fabric *fabric, far_addr addr, uint64_t size, change change) {
    far_sim_world *world = sim_world(fabric);
    change.clock = ++world->clock;
    if (!world->config.watch || !far_fabric_in_range(fabric, addr & ~7ull, (size + 7) & ~7ull))
        return;
    sim_chunk *chunks = chunks_of(world, &world->memory[far_addr_node(addr)]);
    uint64_t offset = far_addr_offset(addr), end = offset + size;
    for (uint64_t at = offset / CHUNK_BYTES; at * CHUNK_BYTES < end; at++) {
        uint64_t from = at * CHUNK_BYTES > offset ? 0 : offset - at * CHUNK_BYTES, to = end - at * CHUNK_BYTES;
        to = to < CHUNK_BYTES ? to : CHUNK_BYTES;
        change_chunk(&chunks[at], (uint32_t)(from / CELL_BYTES), (uint32_t)((to + CELL_BYTES - 1) / CELL_BYTES),
                     &change);
    }
}


void sim_checker_free(far_sim_world *world) {
    for (unsigned node = 0; world->memory && node < world->config.memory_nodes; node++) {
        sim_chunk *chunks = world->memory[node].chunks;
        for (uint64_t i = 0; chunks && i < world->config.size / CHUNK_BYTES + 1; i++)
            free(chunks[i].each);
        free(chunks);
    }
}


/* ---- Calls of the allocator ---- */

static uint64_t advance_checker_clock(far_fabric *fabric) {
    return ++sim_world(fabric)->clock;
}


static void note_allocated(far_fabric *fabric, far_addr addr, uint64_t size, uint32_t index_key, bool stable) {
    change_range(fabric, addr, size, (change){.kind = SET_LIVE, .index_key = index_key, .stable = stable});
}


static void note_retired(far_fabric *fabric, far_addr addr, uint64_t size) {
    change_range(fabric, addr, size, (change){.kind = SET_RETIRED});
}


static void note_freed(far_fabric *fabric, far_addr addr, uint64_t size, bool stable) {
    far_sim_world *world = sim_world(fabric);
    change_range(fabric, addr, size, (change){.kind = SET_FREE, .stable = stable});
    if (!stable && world->config.watch && far_fabric_in_range(fabric, addr & ~7ull, (size + 7) & ~7ull))
        memset(world->memory[far_addr_node(addr)].bytes + far_addr_offset(addr), FAR_SIM_POISON, size);
}


static void note_released(far_fabric *fabric, far_addr addr, uint64_t size) {
    change_range(fabric, addr, size, (change){.kind = SET_UNMANAGED});
}


static void pass_point(far_conn *base, const char *name, const char *label) {
    sim_conn *conn = (sim_conn *)base;
    far_sim_client *client = conn->world->running;
    sim_trace(conn->world, SIM_TRACE_POINT, client, name, 0);
    if (conn->world->on_point)
        conn->world->on_point(conn->world->on_point_ctx, client, name);
    sim_fault_maybe_stall(client);
    if (client->rules)
        sim_steer_point(client, name, label);
}


const far_memory_checker_ops sim_checker_ops = {
    .clock = advance_checker_clock,
    .allocated = note_allocated,
    .retired = note_retired,
    .freed = note_freed,
    .released = note_released,
    .point = pass_point,
};


/* ---- Checking of verbs ---- */

/* Returns what is wrong with an access of the verb to this cell (16 bytes with one record of their state), or NULL if
 * the access is allowed. */
static const char *access_error(const sim_verb *verb, const sim_cell *cell) {
    bool is_free = cell->state == FREE, reused = !is_free && verb->pin_clock < cell->reused;
    if (!is_free && !reused)
        return NULL;
    if (verb->verb.flags & FAR_VERB_SYSTEM)
        return NULL;
    if (verb->verb.flags & FAR_VERB_UNPROVEN) {
        if (verb->class == SIM_CLASS_READ)
            return NULL;
        if (verb->class == SIM_CLASS_ATOMIC && cell->stable && cell->index_key == verb->index_key)
            return NULL;
    }
    return is_free ? "touches free memory" : "touches memory that was reused after its operation's pin";
}


static void report_access(far_sim_world *world, const sim_verb *verb, far_addr at, const char *what) {
    sim_report_error(world, "client %u (%s) %s: verb %llu, %s%s of %u bytes at %u:%#llx, %s at %u:%#llx",
                     verb->client->number, verb->client->name, verb->label ? verb->label : "-",
                     (unsigned long long)verb->index, verb->verb.flags & FAR_VERB_UNPROVEN ? "unproven " : "",
                     sim_verb_name(verb->verb.kind), verb->verb.length, verb->node,
                     (unsigned long long)far_addr_offset(verb->verb.addr), what, verb->node,
                     (unsigned long long)far_addr_offset(at));
}


void sim_check_access(far_sim_world *world, const sim_verb *verb, far_addr addr, uint64_t length) {
    const sim_chunk *chunks = world->memory[verb->node].chunks;
    if (!chunks)
        return;
    uint64_t offset = far_addr_offset(addr), end = offset + length;
    while (offset < end) {
        const sim_chunk *chunk = &chunks[offset / CHUNK_BYTES];
        uint64_t next = chunk->each ? offset / CELL_BYTES * CELL_BYTES + CELL_BYTES
                                    : offset / CHUNK_BYTES * CHUNK_BYTES + CHUNK_BYTES;
        const char *what =
            access_error(verb, chunk->each ? &chunk->each[offset % CHUNK_BYTES / CELL_BYTES] : &chunk->all);
        if (what) {
            report_access(world, verb, far_addr_make(verb->node, offset), what);
            return;
        }
        offset = next;
    }
}


/* Counts an error of the run. The first SIM_ERRORS_KEPT errors are kept as text, with the seed, the time and the last
 * events of the trace. */

void sim_report_error(far_sim_world *world, const char *format, ...) {
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
