/* Simulated clients are coroutines with a stack of their own. They run, sleep, park and stop in virtual time. The
 * second half of the file implements `far_host_ops` for simulated compute nodes, so that the library reads virtual
 * time, parks and starts its threads through the simulator. The event loop (world.c) calls `sim_client_resume`. */
#include "base/error.h"
#include "base/sanitizer.h"
#include "fabric/sim/sim_internal.h"
#include "farindex.h"

#include <stdlib.h>
#include <string.h>

#if FAR_ASAN || FAR_TSAN
#define STACK_BYTES (4 * SIM_STACK_BYTES) /* Sanitizers make stack frames larger, so clients need larger stacks. */
#else
#define STACK_BYTES SIM_STACK_BYTES
#endif


static void client_main(void *arg) {
    far_sim_client *client = arg;
    far_sim_world *world = client->world;
    sim_trace(world, SIM_TRACE_START, client, NULL, 0);
    client->run(client->arg);
    sim_trace(world, SIM_TRACE_END, client, NULL, 0);
    client->state = SIM_ENDED;
    client->wake_generation++;
    world->unfinished_clients -= !client->background;
    world->states_changed = true;
    sim_rules_free(client);
    sim_unpark(world, &client->ended_parker);
    far_context_exit(world->loop);
}


far_sim_client *sim_client_new(sim_node *node, const char *name, void (*run)(void *arg), void *arg, bool background) {
    far_sim_world *world = node->world;
    far_sim_client *client = sim_allocate(sizeof *client);
    if (world->idle_count) {
        client->context = world->idle_contexts[--world->idle_count];
        far_context_reset(client->context, client_main, client);
    } else {
        client->context = far_context_new(STACK_BYTES, client_main, client);
    }
    if (!client->context) {
        free(client);
        return NULL;
    }
    client->resume_at = client->context;
    client->world = world;
    client->node = node;
    client->number = ++world->clients_made;
    client->background = background;
    client->state = SIM_SLEEPING;
    client->until = SIM_NEVER;
    client->run = run;
    client->arg = arg;
    snprintf(client->name, sizeof client->name, "%s", name);
    if (world->clients_last)
        world->clients_last->next = client;
    else
        world->clients = client;
    world->clients_last = client;
    world->unfinished_clients += !background;
    sim_client_wake(client, world->now);
    return client;
}


static void cache_context(far_sim_world *world, far_context *context) {
    if (world->idle_count == world->idle_capacity) {
        size_t capacity = world->idle_capacity ? world->idle_capacity * 2 : 16;
        far_context **contexts = realloc(world->idle_contexts, capacity * sizeof *contexts);
        if (!contexts) {
            far_context_free(context);
            return;
        }
        world->idle_contexts = contexts;
        world->idle_capacity = capacity;
    }
    world->idle_contexts[world->idle_count++] = context;
}


void sim_clients_free(far_sim_world *world) {
    sim_rules_free(&world->outside);
    while (world->clients) {
        far_sim_client *client = world->clients;
        world->clients = client->next;
        sim_rules_free(client);
        if (client->state != SIM_ENDED)
            far_context_free(client->context);
        free(client);
    }
    while (world->idle_count)
        far_context_free(world->idle_contexts[--world->idle_count]);
    free(world->idle_contexts);
}


/* ---- Running ---- */

bool sim_client_may_run(const far_sim_client *client) {
    const far_sim_world *world = client->world;
    return client->background || sim_client_has_failed(client) || world->scope == SIM_SCOPE_ALL ||
           (world->scope == SIM_SCOPE_ONE && world->scope_client == client);
}


/* Schedules the client to resume at the given time. A parked client may get several such events. The first event ends
 * the wait and increments `wake_generation`, so the event loop drops the other events as stale. */
void sim_client_wake(far_sim_client *client, uint64_t time) {
    sim_push_event(client->world, time, SIM_RESUME, client, client->wake_generation);
}


void sim_wake_skipped_clients(far_sim_world *world) {
    for (far_sim_client *client = world->clients; client; client = client->next)
        if (client->skipped && sim_client_may_run(client)) {
            client->skipped = false;
            sim_client_wake(client, world->now);
        }
}


void sim_client_resume(far_sim_client *client) {
    far_sim_world *world = client->world;
    client->wake_generation++;
    if (!sim_client_may_run(client)) {
        client->skipped = true;
        return;
    }
    client->skipped = client->woken = false;
    client->state = SIM_RUNNING;
    world->running = client;
    far_context_switch(client->resume_at);
    world->running = &world->outside;
    if (client->state == SIM_ENDED)
        cache_context(world, client->context);
}


/* Suspends the calling client and switches to the event loop. The client may be inside a coroutine of its session; it
 * continues at the same place when it is resumed. */
static void switch_to_loop(far_sim_client *client, sim_client_state state) {
    far_sim_world *world = client->world;
    client->state = (uint8_t)state;
    client->resume_at = far_context_current();
    if (client->held)
        world->states_changed = true;
    far_context_switch(world->loop);
}


void sim_sleep_until(far_sim_world *world, uint64_t time) {
    far_sim_client *client = world->running;
    if (time <= world->now)
        return;
    sim_drop_stale_events(world);
    if ((!world->heap.count || world->heap.events[0].time > time) && time <= world->bound && world->depth) {
        /* No event is due before that time, so the clock can advance without a switch to the event loop. */
        world->now = time;
        return;
    }
    if (sim_is_outside(client)) {
        sim_wait_outside(world, NULL, time);
        return;
    }
    sim_client_wake(client, time);
    switch_to_loop(client, SIM_SLEEPING);
}


void sim_stop_client(far_sim_client *client, const char *where) {
    far_sim_world *world = client->world;
    client->where = where;
    sim_trace(world, SIM_TRACE_STOP, client, where, 0);
    world->states_changed = true;
    switch_to_loop(client, SIM_STOPPED);
}


void far_sim_resume(far_sim_client *client) {
    if (client->state != SIM_STOPPED)
        return;
    client->state = SIM_SLEEPING;
    client->where = NULL;
    sim_client_wake(client, client->world->now);
}


void sim_park(far_sim_world *world, far_parker *parker, uint64_t until_ns) {
    far_sim_client *client = world->running;
    uint64_t until = until_ns > SIM_NEVER / SIM_PS ? SIM_NEVER : until_ns * SIM_PS;
    client->empty_polls = 0;
    if (atomic_exchange_explicit(&parker->token, 0, memory_order_relaxed))
        return;
    if (sim_is_outside(client)) {
        sim_wait_outside(world, &parker->token, until);
    } else {
        if (until <= world->now)
            /* A client that polls in a loop with a deadline in the past must not stop virtual time. */
            until = world->now + 10 * SIM_PS;
        parker->waiter = client;
        client->until = until;
        if (until != SIM_NEVER)
            sim_client_wake(client, until);
        switch_to_loop(client, SIM_PARKED);
        client->until = SIM_NEVER;
        parker->waiter = NULL;
        sim_fault_maybe_stall(client);
    }
    atomic_store_explicit(&parker->token, 0, memory_order_relaxed);
}


void sim_unpark(far_sim_world *world, far_parker *parker) {
    far_sim_client *client = parker->waiter;
    atomic_store_explicit(&parker->token, 1, memory_order_relaxed);
    if (client && client->state == SIM_PARKED && !client->woken && !client->skipped) {
        client->woken = true;
        sim_client_wake(client, world->now);
    }
}


/* ---- The host ---- */

static far_sim_world *world_of(far_host *host) {
    return ((sim_node *)((char *)host - offsetof(sim_node, host)))->world;
}


static uint64_t host_now(far_host *host) {
    return world_of(host)->now / SIM_PS;
}


static void host_park(far_host *host, far_parker *parker, uint64_t until) {
    sim_park(world_of(host), parker, until);
}


static void host_unpark(far_host *host, far_parker *parker) {
    sim_unpark(world_of(host), parker);
}


static int host_start(far_host *host, void (*run)(void *arg), void *arg, far_thread **thread) {
    sim_node *node = (sim_node *)((char *)host - offsetof(sim_node, host));
    char name[24];
    snprintf(name, sizeof name, "thread-%u", node->world->clients_made + 1);
    far_thread *made = sim_allocate(sizeof *made);
    made->client = sim_client_new(node, name, run, arg, true);
    if (!made->client) {
        free(made);
        return far_fail(FAR_ERR_NO_MEMORY, "sim: no memory for a thread");
    }
    *thread = made;
    return 0;
}


static void host_join(far_host *host, far_thread *thread) {
    while (thread->client->state != SIM_ENDED)
        sim_park(world_of(host), &thread->client->ended_parker, FAR_TIME_NEVER);
    free(thread);
}


static void host_secret(far_host *host, void *bytes, size_t count) {
    far_sim_world *world = world_of(host);
    uint8_t *to = bytes;
    while (count) {
        uint64_t word = far_random_next(&world->secrets);
        size_t part = count < 8 ? count : 8;
        memcpy(to, &word, part);
        to += part;
        count -= part;
    }
}


const far_host_ops sim_host_ops = {host_now, host_park, host_unpark, host_start, host_join, host_secret};


/* ---- For tests ---- */

far_sim_client *far_sim_start(far_fabric *fabric, const char *name, void (*run)(void *arg), void *arg) {
    return sim_client_new((sim_node *)fabric, name, run, arg, false);
}


far_sim_client *far_sim_current(far_sim_world *world) {
    return world->running;
}


const char *far_sim_name(const far_sim_client *client) {
    return client->name;
}


bool far_sim_ended(const far_sim_client *client) {
    return client->state == SIM_ENDED;
}


uint64_t far_sim_verbs(const far_sim_client *client) {
    return client->verbs;
}


void far_sim_sleep(far_sim_world *world, uint64_t ns) {
    sim_sleep_until(world, world->now + ns * SIM_PS);
}


static const char *state_text(const far_sim_client *client) {
    static const char *const names[] = {"waits", "sleeps", "stopped", "runs", "ended"};
    return client->skipped ? "left out of this run" : names[client->state];
}


void far_sim_print_state(const far_sim_world *world, FILE *file) {
    for (const far_sim_client *c = world->clients; c; c = c->next) {
        if (c->state == SIM_ENDED)
            continue;
        fprintf(file, "  client %u %s (compute node %u%s): %s", c->number, c->name, c->node->number,
                c->node->failed ? ", killed" : "", state_text(c));
        if (c->state == SIM_PARKED && c->until != SIM_NEVER)
            fprintf(file, " until %llu", (unsigned long long)(c->until / SIM_PS));
        if (c->where)
            fprintf(file, " at %s", c->where);
        fprintf(file, ", %llu verbs posted\n", (unsigned long long)c->verbs);
    }
    for (const sim_conn *conn = world->conns; conn; conn = conn->next)
        for (const sim_verb *v = conn->first; v; v = v->next)
            fprintf(file, "  in flight: client %u verb %llu %s %u:%#llx+%u %s%s%s\n", v->client->number,
                    (unsigned long long)v->index, sim_verb_name(v->verb.kind), v->node,
                    (unsigned long long)far_addr_offset(v->verb.addr), v->verb.length, v->label ? v->label : "",
                    v->state == SIM_HELD || v->state == SIM_DONE_HELD ? " held" : "",
                    v->state == SIM_BLOCKED ? " waits for a held verb" : "");
}
