/* Failures of a torture run, planned from its seed: compute nodes that are killed, sessions that are fenced or lose
 * their connection, and outages of memory nodes. `far_torture_set_faults` makes the plan. */
#include "verify/torture_run.h"

#include "pool/handle.h"

#include <string.h>

/* length of a short outage in ns, which is shorter than the time after which a client that waits for a memory node
 * loses its connection */
#define OUTAGE_SHORT 100000u
#define OUTAGE_LONG  600000u
/* The session is lost at most this many ns (some round trips) after its client has reached the point `lost_at`. */
#define LOST_WITHIN  20000u

typedef far_tortured run;
typedef far_torture_client client;
typedef far_torture_node node;


static void end_outage(void *arg) {
    far_torture_outage *outage = arg;
    run *r = outage->run;
    if (outage->restart) {
        r->restarts++;
        far_sim_node_restart(r->world, outage->node);
    }
    far_sim_node_down(r->world, outage->node, false);
}


static void begin_due_outages(run *r) {
    r->verbs++;
    for (unsigned i = 0; i < r->outage_count; i++) {
        far_torture_outage *outage = &r->outages[i];
        if (outage->verbs != r->verbs)
            continue;
        r->outages_begun++;
        far_sim_node_down(r->world, outage->node, true);
        far_sim_at(r->world, far_sim_now(r->world) + outage->ns, end_outage, outage);
    }
}


void far_torture_kill(run *r, node *n) {
    r->crashes++;
    far_sim_kill(n->first->fabric);
    if (n->pool != n->first)
        far_sim_kill(n->pool->fabric);
}


static void end_session(client *c) {
    if (!c->session || !c->session->id)
        return;
    c->run->crashes++;
    if (c->loses)
        far_sim_lose(c->session->conn);
    else
        far_sim_declare_dead(c->run->world, c->session->id, c->session->generation);
}


static void observe_verb(void *ctx, const far_sim_posted *posted) {
    run *r = ctx;
    begin_due_outages(r);
    for (unsigned i = 0; i < r->client_count; i++) {
        client *c = &r->clients[i];
        if (c->sim != posted->client)
            continue;
        node *n = c->node;
        if (n->verbs_to_live && !n->renewing && --n->verbs_to_live == 0 && !far_torture_is_killed(n))
            far_torture_kill(r, n);
        else if (c->verbs_to_live && --c->verbs_to_live == 0)
            end_session(c);
        return;
    }
}


static void end_session_event(void *client_of_it) {
    end_session(client_of_it);
}


/* Called when a client reaches a named point. At `lost_at` its session is lost a little later, when some of the verbs
 * it posts have taken effect and others have not. */
static void observe_point(void *ctx, const far_sim_client *sim, const char *name) {
    run *r = ctx;
    for (unsigned i = 0; i < r->client_count; i++) {
        client *c = &r->clients[i];
        if (c->sim != sim || strcmp(name, r->torture->lost_at) != 0 || !far_random_chance(&r->random, 1, 2))
            continue;
        c->loses = far_random_chance(&r->random, 1, 2);
        far_sim_at(r->world, far_sim_now(r->world) + far_random_below(&r->random, LOST_WITHIN), end_session_event, c);
    }
}


static void plan_crashes(run *r) {
    const far_torture *t = r->torture;
    uint64_t span = 1 + t->ops * 8 / r->node_count; /* approximate number of verbs that a node posts */
    unsigned survivor = (unsigned)far_random_below(&r->random, r->node_count);
    for (unsigned i = 0; t->crash && i < r->node_count; i++)
        if (i != survivor && far_random_chance(&r->random, 3, 4))
            r->nodes[i].verbs_to_live = 1 + far_random_below(&r->random, span);
    for (unsigned i = 0; t->stall && i < r->client_count; i++)
        if (far_random_chance(&r->random, 1, 6)) {
            r->clients[i].verbs_to_live = 1 + far_random_below(&r->random, span);
            r->clients[i].loses = far_random_chance(&r->random, 1, 2);
        }
}


/* Plans outages for three of four seeds, some shorter and some longer than clients wait. One in three ends with a
 * restart of the node. */
static void plan_outages(run *r) {
    const far_torture *t = r->torture;
    if (!t->questions || !t->crash || far_random_chance(&r->random, 1, 4))
        return;
    r->outage_count = 1 + (unsigned)far_random_below(&r->random, FAR_TORTURE_OUTAGES);
    for (unsigned i = 0; i < r->outage_count; i++) {
        uint64_t most = far_random_chance(&r->random, 1, 2) ? OUTAGE_SHORT : OUTAGE_LONG;
        r->outages[i] = (far_torture_outage){.verbs = 1 + far_random_below(&r->random, t->ops * 8),
                                             .ns = 1 + far_random_below(&r->random, most),
                                             .node = (unsigned)far_random_below(&r->random, t->memory_nodes),
                                             .restart = far_random_chance(&r->random, 1, 3),
                                             .run = r};
    }
}


static unsigned fault_bits(const far_torture *t) {
    unsigned bits = t->tear ? FAR_SIM_TEAR : 0;
    if (t->reorder)
        bits |= FAR_SIM_REORDER | FAR_SIM_LATE | FAR_SIM_SWALLOW;
    return bits | (t->stall ? FAR_SIM_STALL : 0);
}


void far_torture_set_faults(run *r) {
    plan_crashes(r);
    plan_outages(r);
    far_sim_set_faults(r->world, fault_bits(r->torture));
    far_sim_on_verb(r->world, observe_verb, r);
    if (r->torture->lost_at && r->torture->stall)
        far_sim_on_point(r->world, observe_point, r);
}
