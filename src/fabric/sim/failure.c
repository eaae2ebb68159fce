/* Failures of compute nodes, connections and memory nodes. This file decides which posted verbs of a failed client
 * still take effect, and it fences sessions, after which none of their verbs takes effect. Tests call `far_sim_kill`
 * and its relatives; connection.c and control.c call `sim_fence_conn` and `sim_give_up_session`. */
#include "base/error.h"
#include "fabric/sim/sim_internal.h"
#include "farindex.h"

#include <stdlib.h>
#include <string.h>

/* Selects which verbs of a client take effect when a test kills the client: the first `verbs` verbs completely,
 * `granules` granules of the next verb, and no later verb. */
typedef struct exact_cut {
    const far_sim_client *client;
    uint64_t verbs;
    uint32_t granules;
} exact_cut;


static void complete_posts(sim_conn *conn, int status) {
    while (conn->posts)
        sim_post_complete(conn->posts, status);
}


static void drop_verb(far_sim_world *world, sim_verb *verb) {
    if (verb->state < SIM_EFFECTIVE)
        sim_trace_verb(world, SIM_TRACE_DROP, verb, verb->granules_done, 0, 0);
    sim_verb_free(world, verb);
}


/* Fences the connection and completes its batches with `status`. No verb that was posted on it takes effect afterwards.
 */
void sim_fence_conn(sim_conn *conn, int status) {
    far_sim_world *world = conn->world;
    conn->fenced = true;
    sim_trace(world, SIM_TRACE_FENCE, conn->client, NULL, conn->number);
    while (conn->first)
        drop_verb(world, conn->first);
    complete_posts(conn, status);
    sim_unblock_all(world);
    sim_end_at_all_nodes(conn);
    sim_announce_end(conn);
}


/* Makes a posted verb independent of its poster, which has failed, so that its buffers may be freed. The payload of a
 * WRITE is copied, and an atomic returns its old word nowhere. */
static void detach_from_poster(sim_verb *verb) {
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


/* Records which classes of verbs of the failed client were dropped so far at one memory node. Verbs that the contract
 * orders after a dropped verb must be dropped too. */
typedef struct losses {
    bool write, atomic;
} losses;


static bool verb_may_survive(const far_sim_world *world, const sim_verb *verb, const losses *lost) {
    if (lost->write || verb->state == SIM_QUEUED)
        return false;
    return !lost->atomic || (verb->class == SIM_CLASS_WRITE && !world->config.atomics_in_order);
}


static void apply_random_fate(far_sim_world *world, sim_verb *verb, losses *lost, unsigned quarters) {
    bool survives = far_random_chance(&world->random, quarters, 4) && verb_may_survive(world, verb, lost);
    if (verb->class == SIM_CLASS_READ || verb->state >= SIM_EFFECTIVE) {
        drop_verb(world, verb);
        return;
    }
    if (!survives) {
        lost->write |= verb->class == SIM_CLASS_WRITE;
        lost->atomic |= verb->class == SIM_CLASS_ATOMIC;
        drop_verb(world, verb);
        return;
    }
    detach_from_poster(verb);
    if (verb->class == SIM_CLASS_WRITE && verb->granules - verb->granules_done > 1 &&
        far_random_chance(&world->random, 1, 2)) {
        verb->granule_limit = verb->granules_done + 1 +
                              (uint32_t)far_random_below(&world->random, verb->granules - verb->granules_done - 1);
        lost->write = true;
    }
}


static void apply_exact_fate(far_sim_world *world, sim_verb *verb, const exact_cut *cut) {
    bool next = verb->index == cut->verbs + 1;
    if (next && verb->class == SIM_CLASS_WRITE)
        verb->granule_limit = cut->granules < verb->granules ? cut->granules : verb->granules;
    if (verb->state >= SIM_EFFECTIVE || verb->class == SIM_CLASS_READ ||
        (verb->index > cut->verbs && !(next && cut->granules > 0))) {
        drop_verb(world, verb);
        return;
    }
    if (verb->class == SIM_CLASS_ATOMIC)
        sim_finish_split_atomic(world, verb);
    sim_apply_remainder(world, verb);
    sim_verb_free(world, verb);
}


/* Ends a connection after its client has failed or given up. Its batches complete with `status`. Some of its verbs take
 * effect nevertheless, now or later, namely those that `cut` selects, or a random set if `cut` is NULL. */
static void abandon_connection(sim_conn *conn, int status, const exact_cut *cut) {
    far_sim_world *world = conn->world;
    losses lost[FAR_NODES_MAX] = {{false, false}};
    unsigned quarters = (unsigned)far_random_below(&world->random, 5);
    conn->fenced = true;
    for (sim_verb *verb = conn->first, *next; verb; verb = next) {
        next = verb->next;
        if (cut && verb->client == cut->client)
            apply_exact_fate(world, verb, cut);
        else
            apply_random_fate(world, verb, &lost[verb->node], quarters);
    }
    complete_posts(conn, status);
    sim_unblock_all(world);
    sim_announce_end(conn);
}


/* Called when a session gives itself up. With the option `questions=on` its verbs may still take effect at a node until
 * the node gets the report that the connection has ended. Otherwise the connection is fenced at once. */
void sim_give_up_session(sim_conn *conn) {
    if (conn->world->config.questions)
        abandon_connection(conn, FAR_ERR_FENCED, NULL);
    else
        sim_fence_conn(conn, FAR_ERR_FENCED);
}


static void wake_clients_of_failed_node(sim_node *node) {
    far_sim_world *world = node->world;
    for (far_sim_client *client = world->clients; client; client = client->next) {
        if (client->node != node || client->state == SIM_ENDED)
            continue;
        sim_rules_free(client);
        if (client->state == SIM_RUNNING)
            continue;
        if (client->state == SIM_STOPPED)
            client->state = SIM_SLEEPING;
        client->skipped = false;
        client->where = NULL;
        sim_client_wake(client, world->now);
    }
}


static void kill_compute_node(sim_node *node, const exact_cut *cut) {
    far_sim_world *world = node->world;
    if (node->failed)
        return;
    node->failed = true;
    sim_trace(world, SIM_TRACE_KILL, world->running, NULL, node->number);
    for (sim_conn *conn = world->conns; conn; conn = conn->next)
        if (conn->node == node && !conn->fenced)
            abandon_connection(conn, FAR_ERR_FENCED, cut);
    wake_clients_of_failed_node(node);
}


void far_sim_kill(far_fabric *fabric) {
    kill_compute_node((sim_node *)fabric, NULL);
}


void far_sim_kill_exact(far_sim_client *client, uint64_t verbs, uint32_t granules) {
    exact_cut cut = {client, verbs, granules};
    if (client->node)
        kill_compute_node(client->node, &cut);
}


bool far_sim_killed(const far_fabric *fabric) {
    return ((const sim_node *)fabric)->failed;
}


void far_sim_lose(far_conn *base) {
    sim_conn *conn = (sim_conn *)base;
    if (conn->fenced)
        return;
    sim_trace(conn->world, SIM_TRACE_LOSE, conn->client, NULL, conn->number);
    abandon_connection(conn, FAR_ERR_UNREACHABLE, NULL);
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
            sim_fence_conn(conn, FAR_ERR_FENCED);
        sim_conn_free_if_unused(conn);
    }
    return fenced;
}


int far_sim_declare_dead(far_sim_world *world, unsigned id, unsigned generation) {
    return fence_session(world, id, generation);
}


int sim_session_has_failed(far_conn *base, unsigned id, unsigned generation) {
    sim_conn *caller = (sim_conn *)base;
    far_sim_world *world = caller->world;
    if (caller->fenced)
        return far_fail(FAR_ERR_FENCED, "sim: the connection is fenced, because its session failed or was given up");
    for (sim_conn *conn = world->conns; conn; conn = conn->next)
        if (conn->claimed && !conn->fenced && conn->id == id && conn->generation == generation)
            return 0;
    fence_session(world, id, generation);
    return 1;
}


void far_sim_node_down(far_sim_world *world, unsigned node, bool down) {
    sim_memory *memory = &world->memory[node];
    bool woken = memory->down && !down;
    memory->outages += down && !memory->down;
    memory->down = down;
    memory->defers_messages |= down && world->config.questions;
    sim_trace(world, down ? SIM_TRACE_NODE_DOWN : SIM_TRACE_NODE_UP, &world->outside, NULL, node);
    if (woken && world->config.questions)
        sim_resume_memory_node(world, node);
}
