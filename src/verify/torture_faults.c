/* The faults of a torture run, planned from its seed: compute nodes that die, sessions that are declared dead or lose
 * their connection, memory nodes that do not answer for a while. */
#include "verify/torture_run.h"

#include "pool/handle.h"

#include <string.h>

#define SILENCE_SHORT 100000u /* ns of a memory node: a client that waits for one loses patience after so long */
#define SILENCE_LONG  600000u
#define LOST_WITHIN   20000u /* ns after torture->lost_at: some round trips */

typedef far_tortured run;
typedef far_torture_client client;
typedef far_torture_node node;


static void end_silence(void *arg) {
    far_torture_silence *silence = arg;
    run *r = silence->run;
    if (silence->restart) {
        r->restarts++;
        far_sim_node_restart(r->world, silence->node);
    }
    far_sim_node_down(r->world, silence->node, false);
}


static void begin_silences(run *r) {
    r->verbs++;
    for (unsigned i = 0; i < r->silence_count; i++) {
        far_torture_silence *silence = &r->silences[i];
        if (silence->verbs != r->verbs)
            continue;
        r->silent++;
        far_sim_node_down(r->world, silence->node, true);
        far_sim_at(r->world, far_sim_now(r->world) + silence->ns, end_silence, silence);
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


static void on_verb(void *ctx, const far_sim_posted *posted) {
    run *r = ctx;
    begin_silences(r);
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


static void end_session_now(void *client_of_it) {
    end_session(client_of_it);
}


/* The client has come to where sessions are lost: a little later, while some verbs of what it posts have taken effect, and
 * others not. */
static void on_point(void *ctx, const far_sim_client *sim, const char *name) {
    run *r = ctx;
    for (unsigned i = 0; i < r->client_count; i++) {
        client *c = &r->clients[i];
        if (c->sim != sim || strcmp(name, r->torture->lost_at) != 0 || !far_random_chance(&r->random, 1, 2))
            continue;
        c->loses = far_random_chance(&r->random, 1, 2);
        far_sim_at(r->world, far_sim_now(r->world) + far_random_below(&r->random, LOST_WITHIN), end_session_now, c);
    }
}


static void plan_crashes(run *r) {
    const far_torture *t = r->torture;
    uint64_t span = 1 + t->ops * 8 / r->node_count; /* about the verbs that a node posts */
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


/* Most seeds have some, shorter or longer than clients wait; after some of them the node was started again. */
static void plan_silences(run *r) {
    const far_torture *t = r->torture;
    if (!t->questions || !t->crash || far_random_chance(&r->random, 1, 4))
        return;
    r->silence_count = 1 + (unsigned)far_random_below(&r->random, FAR_TORTURE_SILENCES);
    for (unsigned i = 0; i < r->silence_count; i++) {
        uint64_t most = far_random_chance(&r->random, 1, 2) ? SILENCE_SHORT : SILENCE_LONG;
        r->silences[i] = (far_torture_silence){.verbs = 1 + far_random_below(&r->random, t->ops * 8),
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
    plan_silences(r);
    far_sim_set_faults(r->world, fault_bits(r->torture));
    far_sim_on_verb(r->world, on_verb, r);
    if (r->torture->lost_at && r->torture->stall)
        far_sim_on_point(r->world, on_point, r);
}
