/* The world of the simulator contains the memory nodes, the queue of events ordered by virtual time, and the loops that
 * take events from the queue and run them. `far_sim_open` creates or joins a world, `far_sim_run_client` and
 * `far_sim_run` run its clients, and the other files of this folder schedule events with `sim_push_event`. */
#include "base/error.h"
#include "fabric/sim/sim_internal.h"
#include "farindex.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* If more events than this run at one instant of virtual time, a client must be in an endless loop, and the run ends.
 */
#define EVENTS_AT_NOW_MAX 2000000

static far_sim_world *worlds; /* all worlds of the process; no lock, because one OS thread uses them */

static void world_free(far_sim_world *world);
static void abandon_outside_wait(far_sim_world *world, const char *why);


void *sim_allocate(size_t bytes) {
    void *memory = calloc(1, bytes);
    if (!memory) {
        fprintf(stderr, "sim: out of memory\n");
        abort();
    }
    return memory;
}


/* ---- The event queue: a heap of four children per event ---- */

static bool event_precedes(const sim_event *a, const sim_event *b) {
    return a->time != b->time ? a->time < b->time : a->sequence < b->sequence;
}


static void heap_push(sim_heap *heap, sim_event event) {
    if (heap->count == heap->capacity) {
        size_t capacity = heap->capacity ? heap->capacity * 2 : 256;
        sim_event *events = sim_allocate(capacity * sizeof *events);
        if (heap->count)
            memcpy(events, heap->events, heap->count * sizeof *events);
        free(heap->events);
        heap->events = events;
        heap->capacity = capacity;
    }
    size_t at = heap->count++;
    while (at > 0 && event_precedes(&event, &heap->events[(at - 1) / 4])) {
        heap->events[at] = heap->events[(at - 1) / 4];
        at = (at - 1) / 4;
    }
    heap->events[at] = event;
}


static void heap_pop(sim_heap *heap) {
    sim_event last = heap->events[--heap->count];
    size_t at = 0;
    for (;;) {
        size_t child = at * 4 + 1, end = child + 4 < heap->count ? child + 4 : heap->count, best = child;
        if (child >= heap->count)
            break;
        for (size_t i = child + 1; i < end; i++)
            if (event_precedes(&heap->events[i], &heap->events[best]))
                best = i;
        if (!event_precedes(&heap->events[best], &last))
            break;
        heap->events[at] = heap->events[best];
        at = best;
    }
    heap->events[at] = last;
}


void sim_push_event(far_sim_world *world, uint64_t time, sim_event_kind kind, void *object, uint32_t generation) {
    if (time < world->now)
        time = world->now;
    heap_push(&world->heap, (sim_event){time, world->sequence++, object, generation, kind});
}


static bool event_is_stale(const sim_event *event) {
    switch ((sim_event_kind)event->kind) {
    case SIM_RESUME:
        return ((far_sim_client *)event->object)->wake_generation != event->generation;
    case SIM_CALL:
        return false;
    default:
        return ((sim_verb *)event->object)->generation != event->generation;
    }
}


typedef struct sim_call {
    void (*fn)(void *arg);
    void *arg;
} sim_call;


static void handle_event(far_sim_world *world, const sim_event *event) {
    switch ((sim_event_kind)event->kind) {
    case SIM_RESUME:
        sim_client_resume(event->object);
        return;
    case SIM_ARRIVE:
        sim_verb_arrive(world, event->object);
        return;
    case SIM_EFFECT:
        sim_run_effect(world, event->object);
        return;
    case SIM_DONE:
        sim_verb_done(world, event->object);
        return;
    case SIM_CALL: {
        sim_call call = *(sim_call *)event->object;
        free(event->object);
        call.fn(call.arg);
        return;
    }
    }
}


void sim_drop_stale_events(far_sim_world *world) {
    while (world->heap.count && event_is_stale(&world->heap.events[0]))
        heap_pop(&world->heap);
}


bool sim_run_next_event(far_sim_world *world, uint64_t bound) {
    sim_drop_stale_events(world);
    if (!world->heap.count || world->heap.events[0].time > bound)
        return false;
    sim_event event = world->heap.events[0];
    if (event.time > world->now)
        world->events_at_now = 0;
    else if (world->events_at_now++ > EVENTS_AT_NOW_MAX)
        return false;
    heap_pop(&world->heap);
    world->now = event.time;
    handle_event(world, &event);
    return true;
}


void far_sim_at(far_sim_world *world, uint64_t time, void (*fn)(void *arg), void *arg) {
    sim_call *call = sim_allocate(sizeof *call);
    *call = (sim_call){fn, arg};
    sim_push_event(world, time * SIM_PS, SIM_CALL, call, 0);
}


/* ---- Loops ---- */

typedef struct loop_frame {
    uint64_t bound;
    sim_scope scope;
    far_sim_client *scope_client, *running;
    far_context *loop;
} loop_frame;


/* Starts a nested event loop and returns the state of the enclosing one for `loop_leave`. Loops nest because code that
 * an event runs may itself wait for virtual time to pass. */
static loop_frame loop_enter(far_sim_world *world, sim_scope scope, far_sim_client *client, uint64_t bound) {
    loop_frame frame = {world->bound, world->scope, world->scope_client, world->running, world->loop};
    world->depth++;
    world->bound = bound;
    world->scope = scope;
    world->scope_client = client;
    world->running = &world->outside;
    world->loop = far_context_current();
    if (scope != SIM_SCOPE_NONE)
        sim_wake_skipped_clients(world);
    return frame;
}


static void loop_leave(far_sim_world *world, loop_frame frame) {
    world->bound = frame.bound;
    world->scope = frame.scope;
    world->scope_client = frame.scope_client;
    world->running = frame.running;
    world->loop = frame.loop;
    if (--world->depth == 0 && world->fabrics == 0)
        world_free(world);
}


static uint64_t time_limit(const far_sim_world *world) {
    return world->limit ? world->now + world->limit * SIM_PS : SIM_NEVER - 1;
}


static void advance_time(far_sim_world *world, uint64_t until) {
    if (world->now < until)
        world->now = until;
}


static far_sim_result report_failed_run(far_sim_world *world, far_sim_result result) {
    fprintf(stderr, "sim: %s at %llu ns (seed %llu)\n", far_sim_result_name(result),
            (unsigned long long)far_sim_now(world), (unsigned long long)world->config.seed);
    far_sim_print_state(world, stderr);
    return result;
}


static bool other_clients_remain(const far_sim_world *world, const far_sim_client *but) {
    for (const far_sim_client *c = world->clients; c; c = c->next)
        if (c != but && !c->background && c->state != SIM_ENDED)
            return true;
    return false;
}


far_sim_result far_sim_run_client(far_sim_client *client) {
    far_sim_world *world = client->world;
    uint64_t limit = time_limit(world);
    far_sim_result result;
    loop_frame frame = loop_enter(world, SIM_SCOPE_ONE, client, limit);
    world->hold_client = NULL;
    for (;;) {
        if (client->state == SIM_ENDED)
            result = FAR_SIM_ENDED;
        else if (client->state == SIM_STOPPED && !client->skipped)
            result = FAR_SIM_STOPPED;
        else if (world->hold_client == client || (client->until == SIM_NEVER && sim_client_waits_for_holds(client)))
            result = FAR_SIM_HELD;
        else if (sim_run_next_event(world, limit))
            continue;
        else if (world->heap.count)
            result = report_failed_run(world, FAR_SIM_LIMIT);
        else if (other_clients_remain(world, client))
            result = FAR_SIM_WAITING;
        else
            result = report_failed_run(world, FAR_SIM_DEADLOCK);
        break;
    }
    loop_leave(world, frame);
    return result;
}


/* Returns what `far_sim_run` would return if it ended now, or FAR_SIM_WAITING if the run must continue. `dry` is true
 * when the queue contains no event any more. */
static far_sim_result result_of_all_clients(const far_sim_world *world, bool dry) {
    unsigned held = 0, stopped = 0, moving = 0;
    if (world->unfinished_clients == 0)
        return FAR_SIM_ENDED;
    for (const far_sim_client *c = world->clients; c; c = c->next) {
        if (c->background || c->state == SIM_ENDED)
            continue;
        if (c->state == SIM_STOPPED && !c->skipped)
            stopped++;
        else if (sim_client_waits_for_holds(c))
            held++;
        else
            moving++;
    }
    if (moving && !dry)
        return FAR_SIM_WAITING;
    return held ? FAR_SIM_HELD : stopped ? FAR_SIM_STOPPED : FAR_SIM_DEADLOCK;
}


far_sim_result far_sim_run(far_sim_world *world) {
    uint64_t limit = time_limit(world);
    far_sim_result result;
    loop_frame frame = loop_enter(world, SIM_SCOPE_ALL, NULL, limit);
    for (;;) {
        world->states_changed = false;
        if ((result = result_of_all_clients(world, false)) != FAR_SIM_WAITING)
            break;
        bool more = true;
        while (more && !world->states_changed)
            more = sim_run_next_event(world, limit);
        if (more)
            continue;
        result = world->heap.count ? FAR_SIM_LIMIT : result_of_all_clients(world, true);
        if (result == FAR_SIM_LIMIT || result == FAR_SIM_DEADLOCK)
            report_failed_run(world, result);
        break;
    }
    loop_leave(world, frame);
    return result;
}


void far_sim_run_for(far_sim_world *world, uint64_t ns) {
    uint64_t until = world->now + ns * SIM_PS;
    loop_frame frame = loop_enter(world, SIM_SCOPE_ALL, NULL, until);
    while (sim_run_next_event(world, until)) {
    }
    advance_time(world, until);
    loop_leave(world, frame);
}


/* Called when a wait of code outside any client can never end. It fences all connections, so that a caller that waits
 * for a verb gets an error. A caller that waits for anything else would wait forever, so after a million more waits the
 * process is aborted. */
static void abandon_outside_wait(far_sim_world *world, const char *why) {
    if (!world->deadlocked) {
        fprintf(stderr, "sim: %s in a call from outside of all clients at %llu ns (seed %llu)\n", why,
                (unsigned long long)far_sim_now(world), (unsigned long long)world->config.seed);
        far_sim_print_state(world, stderr);
        world->deadlocked = true;
        for (sim_conn *conn = world->conns; conn; conn = conn->next)
            if (!conn->fenced)
                sim_fence_conn(conn, FAR_ERR_UNREACHABLE);
    }
    if (++world->waits_after_deadlock > 1000000) {
        fprintf(stderr, "sim: the caller still waits after its connections were fenced; the process is aborted\n");
        abort();
    }
}


void sim_wait_outside(far_sim_world *world, atomic_uint *token, uint64_t until) {
    uint64_t limit = time_limit(world);
    /* If a callback inside a run waits, the same clients run as in that run. */
    sim_scope scope = world->depth ? world->scope : SIM_SCOPE_NONE;
    loop_frame frame = loop_enter(world, scope, world->scope_client, until < limit ? until : limit);
    while ((!token || atomic_load_explicit(token, memory_order_relaxed) == 0) && world->now < until) {
        if (world->deadlocked && token) {
            abandon_outside_wait(world, "");
            break;
        }
        if (sim_run_next_event(world, world->bound))
            continue;
        if (until != SIM_NEVER && (until <= limit || !world->heap.count) && world->events_at_now <= EVENTS_AT_NOW_MAX)
            advance_time(world, until);
        else
            abandon_outside_wait(world, world->heap.count ? "limit" : "deadlock");
        break;
    }
    loop_leave(world, frame);
}


/* ---- Opening and closing ---- */

static far_sim_world *find_world(const char *name) {
    far_sim_world *world = worlds;
    while (world && (world->fabrics == 0 || strcmp(world->config.name, name) != 0))
        world = world->next;
    return world;
}


/* Maps the memory of one node. MAP_NORESERVE makes pages that are never touched free of cost, which matters because
 * tests create thousands of worlds. */
static uint8_t *map_memory_node(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}


static int world_new(const sim_config *config, far_sim_world **made) {
    sim_cost cost;
    int error = sim_compute_costs(config, &cost);
    if (error)
        return error;
    far_sim_world *world = calloc(1, sizeof *world);
    if (!world)
        return far_fail(FAR_ERR_NO_MEMORY, "sim: no memory for a world");
    world->config = *config;
    world->cost = cost;
    world->faults = config->faults;
    world->limit = config->limit;
    world->memory = calloc(config->memory_nodes, sizeof *world->memory);
    bool short_of_memory = !world->memory;
    for (unsigned i = 0; !short_of_memory && i < config->memory_nodes; i++)
        short_of_memory = !(world->memory[i].bytes = map_memory_node(config->size));
    short_of_memory = short_of_memory || sim_create_node_tables(world) < 0;
    if (short_of_memory) {
        world_free(world);
        return far_fail(FAR_ERR_NO_MEMORY, "sim: no memory for %llu nodes of %llu bytes",
                        (unsigned long long)config->memory_nodes, (unsigned long long)config->size);
    }
    far_random_seed(&world->random, config->seed);
    far_random_seed(&world->secrets, config->seed ^ 0x5ec8e75ec8e7ull);
    world->outside = (far_sim_client){.world = world, .name = "outside", .state = SIM_RUNNING, .until = SIM_NEVER};
    world->running = &world->outside;
    world->trace = sim_allocate(SIM_TRACE_KEPT * sizeof *world->trace);
    world->next = worlds;
    worlds = world;
    *made = world;
    return 0;
}


static void world_free(far_sim_world *world) {
    for (far_sim_world **at = &worlds; *at; at = &(*at)->next)
        if (*at == world) {
            *at = world->next;
            break;
        }
    for (size_t i = 0; i < world->heap.count; i++)
        if (world->heap.events[i].kind == SIM_CALL)
            free(world->heap.events[i].object);
    sim_clients_free(world);
    sim_conns_free(world);
    sim_holds_free(world);
    sim_checker_free(world);
    while (world->nodes) {
        sim_node *node = world->nodes;
        world->nodes = node->next;
        free(node);
    }
    for (unsigned i = 0; world->memory && i < world->config.memory_nodes; i++)
        if (world->memory[i].bytes)
            munmap(world->memory[i].bytes, world->config.size);
    for (unsigned i = 0; i < SIM_ERRORS_KEPT; i++)
        free(world->error_texts[i]);
    sim_free_node_tables(world);
    free(world->memory);
    free(world->words.slots);
    free(world->heap.events);
    free(world->trace);
    free(world);
}


static void init_compute_node(sim_node *node, const char *rest) {
    const sim_config *config = &node->world->config;
    const sim_nic_config *nic = &config->nic;
    far_fabric *fabric = &node->fabric;
    uint64_t min_rtt = nic->rtt_read < nic->rtt_write ? nic->rtt_read : nic->rtt_write;
    fabric->ops = config->questions ? &sim_fabric_ops_with_control : &sim_fabric_ops;
    fabric->watch = &sim_checker_ops;
    atomic_store_explicit(&far_is_simulated, true, memory_order_relaxed);
    fabric->host = &node->host;
    fabric->capabilities = (far_capabilities){
        .atomic_bytes = (uint32_t)config->atomic_bytes,
        .masked_cas = config->masked_cas != 0,
        .atomics_in_order = config->atomics_in_order != 0,
        .reads_in_order = config->reads_in_order != 0,
        .min_rtt = min_rtt < nic->rtt_atomic ? min_rtt : nic->rtt_atomic,
    };
    fabric->rtt = nic->rtt_read;
    fabric->nodes = (unsigned)config->memory_nodes;
    for (unsigned i = 0; i < fabric->nodes; i++)
        fabric->node_bytes[i] = config->size;
    snprintf(fabric->uri, sizeof fabric->uri, "sim:%s", rest);
    node->host.ops = &sim_host_ops;
}


int far_sim_open(const char *rest, far_fabric **fabric) {
    sim_config config;
    far_sim_world *world = NULL;
    sim_config_defaults(&config);
    int error = sim_parse_options(rest, &config);
    if (error)
        return error;
    if (config.name[0] && (world = find_world(config.name))) {
        sim_config wanted = world->config;
        error = sim_parse_options(rest, &wanted);
        if (error == 0 && memcmp(&wanted, &world->config, sizeof wanted) != 0)
            error = far_fail(FAR_ERR_INVALID, "sim: the world '%s' exists with other options", config.name);
    } else {
        error = world_new(&config, &world);
    }
    if (error)
        return error;
    sim_node *node = sim_allocate(sizeof *node), **last = &world->nodes;
    while (*last)
        last = &(*last)->next;
    *last = node;
    node->world = world;
    node->number = world->nodes_made++;
    init_compute_node(node, rest);
    world->fabrics++;
    *fabric = &node->fabric;
    return 0;
}


/* Closes the handle. The structure of its compute node is kept until the world ends, because clients of that node may
 * still be unwinding their stacks. */
void sim_close_fabric(far_fabric *fabric) {
    far_sim_world *world = sim_world(fabric);
    world->fabrics--;
    if (world->fabrics == 0 && world->depth == 0)
        world_free(world);
}


/* ---- Accessors ---- */

far_sim_world *far_sim_world_of(far_fabric *fabric) {
    return sim_world(fabric);
}


uint64_t far_sim_now(const far_sim_world *world) {
    return world->now / SIM_PS;
}


uint64_t far_sim_seed(const far_sim_world *world) {
    return world->config.seed;
}


void *far_sim_memory(far_sim_world *world, unsigned node) {
    return world->memory[node].bytes;
}


void far_sim_set_faults(far_sim_world *world, unsigned faults) {
    world->faults = faults;
}


void far_sim_limit(far_sim_world *world, uint64_t ns) {
    world->limit = ns;
}


bool far_sim_deadlocked(const far_sim_world *world) {
    return world->deadlocked;
}


const char *far_sim_result_name(far_sim_result result) {
    static const char *const names[] = {"ended", "stopped", "held", "waiting", "deadlock", "limit"};
    return (unsigned)result < sizeof names / sizeof names[0] ? names[result] : "?";
}
