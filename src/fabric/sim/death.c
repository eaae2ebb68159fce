/* Death: of compute nodes, connections and memory nodes; what of the posted verbs still happens, and the fence after
 * which nothing does. */
#include "base/error.h"
#include "fabric/sim/sim_internal.h"
#include "farindex.h"

#include <stdlib.h>
#include <string.h>

/* A test chooses what a dying client leaves: its first `verbs` verbs wholly, `units` units of the next one, no more. */
typedef struct exact_cut {
    const far_sim_client *client;
    uint64_t verbs;
    uint32_t units;
} exact_cut;


static void complete_posts(sim_conn *conn, int status) {
    while (conn->posts)
        sim_post_complete(conn->posts, status);
}


static void drop(far_sim_world *world, sim_verb *verb) {
    if (verb->state < SIM_EFFECTIVE)
        sim_trace_verb(world, SIM_TRACE_DROP, verb, verb->landed, 0, 0);
    sim_verb_free(world, verb);
}


/* Ends the connection: after this, nothing that was posted on it takes effect. */
void sim_fence(sim_conn *conn, int status) {
    far_sim_world *world = conn->world;
    conn->fenced = true;
    sim_trace(world, SIM_TRACE_FENCE, conn->client, NULL, conn->number);
    while (conn->first)
        drop(world, conn->first);
    complete_posts(conn, status);
    sim_unblock_all(world);
    sim_ask_cuts(conn);
    sim_ask_ends(conn);
}


/* The poster is dead and its memory gone: the verb keeps a copy of what it still needs. */
static void detach(sim_verb *verb) {
    verb->post = NULL;
    if (verb->class == SIM_CLASS_WRITE) {
        void *payload = sim_allocate(verb->verb.length);
        memcpy(payload, verb->verb.local, verb->verb.length);
        verb->verb.local = payload;
        verb->owns_payload = true;
    } else {
        verb->verb.local = NULL;
    }
}


/* Which verbs of the dead poster were lost so far at one memory node: nothing that is ordered after them may happen. */
typedef struct losses {
    bool write, atomic;
} losses;


static bool may_survive(const far_sim_world *world, const sim_verb *verb, const losses *lost) {
    if (lost->write || verb->state == SIM_QUEUED)
        return false;
    return !lost->atomic || (verb->class == SIM_CLASS_WRITE && !world->config.atomics_in_order);
}


static void random_fate(far_sim_world *world, sim_verb *verb, losses *lost, unsigned quarters) {
    bool survives = far_random_chance(&world->random, quarters, 4) && may_survive(world, verb, lost);
    if (verb->class == SIM_CLASS_READ || verb->state >= SIM_EFFECTIVE) {
        drop(world, verb);
        return;
    }
    if (!survives) {
        lost->write |= verb->class == SIM_CLASS_WRITE;
        lost->atomic |= verb->class == SIM_CLASS_ATOMIC;
        drop(world, verb);
        return;
    }
    detach(verb);
    if (verb->class == SIM_CLASS_WRITE && verb->units - verb->landed > 1 && far_random_chance(&world->random, 1, 2)) {
        verb->cut = verb->landed + 1 + (uint32_t)far_random_below(&world->random, verb->units - verb->landed - 1);
        lost->write = true;
    }
}


static void exact_fate(far_sim_world *world, sim_verb *verb, const exact_cut *cut) {
    bool next = verb->index == cut->verbs + 1;
    if (next && verb->class == SIM_CLASS_WRITE)
        verb->cut = cut->units < verb->units ? cut->units : verb->units;
    if (verb->state >= SIM_EFFECTIVE || verb->class == SIM_CLASS_READ ||
        (verb->index > cut->verbs && !(next && cut->units > 0))) {
        drop(world, verb);
        return;
    }
    if (verb->class == SIM_CLASS_ATOMIC)
        sim_settle_word(world, verb);
    sim_apply_rest(world, verb);
    sim_verb_free(world, verb);
}


/* The poster is gone: its batches end with `status`, but some of its verbs still take effect, now or later. */
static void abandon(sim_conn *conn, int status, const exact_cut *cut) {
    far_sim_world *world = conn->world;
    losses lost[FAR_NODES_MAX] = {{false, false}};
    unsigned quarters = (unsigned)far_random_below(&world->random, 5);
    conn->fenced = true;
    for (sim_verb *verb = conn->first, *next; verb; verb = next) {
        next = verb->next;
        if (cut && verb->client == cut->client)
            exact_fate(world, verb, cut);
        else
            random_fate(world, verb, &lost[verb->node], quarters);
    }
    complete_posts(conn, status);
    sim_unblock_all(world);
    sim_ask_ends(conn);
}


/* A session gives up by itself. With questions=on its verbs may still take effect, until the nodes see the end. */
void sim_leave(sim_conn *conn) {
    if (conn->world->config.questions)
        abandon(conn, FAR_ERR_FENCED, NULL);
    else
        sim_fence(conn, FAR_ERR_FENCED);
}


static void wake_the_dead(sim_node *node) {
    far_sim_world *world = node->world;
    for (far_sim_client *client = world->clients; client; client = client->next) {
        if (client->node != node || client->state == SIM_ENDED)
            continue;
        sim_rules_free(client);
        if (client->state == SIM_RUNNING)
            continue;
        if (client->state == SIM_STOPPED)
            client->state = SIM_SLEEPING;
        client->ready = false;
        client->where = NULL;
        sim_client_wake(client, world->now);
    }
}


static void kill(sim_node *node, const exact_cut *cut) {
    far_sim_world *world = node->world;
    if (node->dead)
        return;
    node->dead = true;
    sim_trace(world, SIM_TRACE_KILL, world->running, NULL, node->number);
    for (sim_conn *conn = world->conns; conn; conn = conn->next)
        if (conn->node == node && !conn->fenced)
            abandon(conn, FAR_ERR_FENCED, cut);
    wake_the_dead(node);
}


void far_sim_kill(far_fabric *fabric) {
    kill((sim_node *)fabric, NULL);
}


void far_sim_kill_exact(far_sim_client *client, uint64_t verbs, uint32_t units) {
    exact_cut cut = {client, verbs, units};
    if (client->node)
        kill(client->node, &cut);
}


bool far_sim_killed(const far_fabric *fabric) {
    return ((const sim_node *)fabric)->dead;
}


void far_sim_lose(far_conn *base) {
    sim_conn *conn = (sim_conn *)base;
    if (conn->fenced)
        return;
    sim_trace(conn->world, SIM_TRACE_LOSE, conn->client, NULL, conn->number);
    abandon(conn, FAR_ERR_UNREACHABLE, NULL);
}


void far_sim_lose_client(far_sim_client *client) {
    for (sim_conn *conn = client->world->conns; conn; conn = conn->next)
        if (conn->client == client)
            far_sim_lose(&conn->conn);
}


static int fence_session(far_sim_world *world, unsigned id, unsigned generation) {
    int fenced = 0;
    for (sim_conn *conn = world->conns, *next; conn; conn = next) {
        next = conn->next;
        if (!conn->claimed || conn->id != id || conn->generation != generation)
            continue;
        fenced += !conn->fenced;
        if (!conn->fenced || conn->first)
            sim_fence(conn, FAR_ERR_FENCED);
        sim_conn_release(conn);
    }
    return fenced;
}


int far_sim_declare_dead(far_sim_world *world, unsigned id, unsigned generation) {
    return fence_session(world, id, generation);
}


int sim_is_dead(far_conn *base, unsigned id, unsigned generation) {
    sim_conn *asker = (sim_conn *)base;
    far_sim_world *world = asker->world;
    if (asker->fenced)
        return far_fail(FAR_ERR_FENCED, "sim: the connection is dead");
    for (sim_conn *conn = world->conns; conn; conn = conn->next)
        if (conn->claimed && !conn->fenced && conn->id == id && conn->generation == generation)
            return 0;
    fence_session(world, id, generation);
    return 1;
}


void far_sim_node_down(far_sim_world *world, unsigned node, bool down) {
    sim_memory *memory = &world->memory[node];
    bool woken = memory->down && !down;
    memory->silences += down && !memory->down;
    memory->down = down;
    memory->deaf |= down && world->config.questions;
    sim_trace(world, down ? SIM_TRACE_NODE_DOWN : SIM_TRACE_NODE_UP, &world->outside, NULL, node);
    if (woken && world->config.questions)
        sim_ask_wakes(world, node);
}
