/* Control messages with `questions=on`: claiming an id, checking whether a session has failed, and evicting it take
 * messages to the tables of the memory nodes (fabric/node/node_table.h) and back, as on a network. So there is no
 * instant at which all nodes and clients observe that a connection has ended.
 *
 * Each connection has a stream of messages to each node. Messages of one stream arrive in order, each after a random
 * delay; the last one reports the end of the connection. A node that gets this report, or a message to fence the
 * session, drops those verbs of the connection that it has not run yet; until then, verbs of a failed session still
 * take effect at this node.
 *
 * A node that is down keeps the verbs and messages that reach it, and handles them when it is up again. A session that
 * waits for the node longer than `unreachable=` is lost meanwhile, so its verbs may take effect long after it has
 * ended. `sim_submit_control` begins a request, and `sim_deliver_answers` delivers its answer. */
#include "base/error.h"
#include "fabric/sim/sim_internal.h"
#include "farindex.h"

#include <stdlib.h>

typedef enum {
    MESSAGE_CLAIM,
    MESSAGE_RELEASE,
    MESSAGE_QUERY,
    MESSAGE_FENCE,
    MESSAGE_EVICT,
    MESSAGE_END,
    /* MESSAGE_TIMER is never sent to a node. Its sim_message is only the argument of a timer that the connection starts
     * when a node is down. */
    MESSAGE_TIMER
} message_kind;

typedef struct control_request { /* a control message of a session that some nodes have not answered yet */
    far_control *control; /* control message of the session; NULL after the answer was delivered to the session */
    unsigned nodes_missing;      /* number of nodes that have not answered yet */
    unsigned messages; /* number of messages of this request that are under way; the last one frees the request */
    uint64_t claim;
    bool refused;
    sim_conn *conn;
    struct control_request *next; /* link in the list of its connection */
} control_request;

typedef struct sim_message { /* a message to a node, and then the answer that travels back */
    sim_conn *conn;
    unsigned node;
    message_kind kind;
    unsigned id, generation;
    /* Meaning by kind of message. To the node: claim number to present or to fence. In the answer: claim number issued,
     * or the last claim number that is fenced. MESSAGE_TIMER: number of the outage for which the timer was started. */
    uint64_t claim;
    bool accepted;            /* in the answer: the claim was granted, or the session is alive */
    control_request *request; /* the request that this message belongs to; NULL for MESSAGE_END and MESSAGE_TIMER */
    struct sim_message *next_deferred;   /* link in the list of messages that wait because the node is down */
    struct sim_message *previous, *next; /* links in the list of all messages of the world */
} message;


static net_table *table_of(sim_conn *conn, unsigned node) {
    return conn->world->memory[node].table;
}


/* ---- Messages ---- */

static void deliver_to_node(void *arg);
static void deliver_answer(void *arg);


static void send_message(message *m) {
    sim_qp *qp = &m->conn->qps[m->node];
    uint64_t time = m->conn->world->now / SIM_PS + sim_fault_message_delay(m->conn->world);
    if (time <= qp->last_message_at)
        time = qp->last_message_at + 1;
    qp->last_message_at = time;
    m->conn->messages++;
    far_sim_at(m->conn->world, time, deliver_to_node, m);
}


static message *new_message(sim_conn *conn, unsigned node, message_kind kind, control_request *request) {
    message *m = sim_allocate(sizeof *m);
    *m = (message){.conn = conn, .node = node, .kind = kind, .request = request, .next = conn->world->messages};
    if (m->next)
        m->next->previous = m;
    conn->world->messages = m;
    if (request) {
        request->messages++;
        m->id = request->control->id;
        m->generation = request->control->generation;
        m->claim = request->claim;
    }
    return m;
}


static void free_message(far_sim_world *world, message *m) {
    if (m->request && --m->request->messages == 0 && (!m->request->control || world->ending))
        free(m->request);
    if (m->previous)
        m->previous->next = m->next;
    else
        world->messages = m->next;
    if (m->next)
        m->next->previous = m->previous;
    free(m);
}


static void free_delivered_message(message *m) {
    sim_conn *conn = m->conn;
    free_message(conn->world, m);
    conn->messages--;
    sim_conn_free_if_unused(conn);
}


/* ---- Outages of a memory node ---- */

static void lose_if_node_is_still_down(void *arg) {
    message *m = arg;
    const sim_memory *memory = &m->conn->world->memory[m->node];
    if (memory->down && memory->outages == m->claim && !m->conn->fenced)
        far_sim_lose(&m->conn->conn);
    free_delivered_message(m);
}


/* Called when a verb or message of this connection waits at a node that is down. Starts a timer that expires after
 * `unreachable=`, once for each outage. If the node is still down when the timer expires, the connection is lost. */
void sim_start_outage_timer(sim_conn *conn, unsigned node) {
    far_sim_world *world = conn->world;
    uint64_t outage = world->memory[node].outages;
    if (conn->fenced || conn->qps[node].timed_outage == outage)
        return;
    conn->qps[node].timed_outage = outage;
    message *m = new_message(conn, node, MESSAGE_TIMER, NULL);
    m->claim = outage;
    conn->messages++;
    far_sim_at(world, far_sim_now(world) + world->config.unreachable, lose_if_node_is_still_down, m);
}


static void defer_message(message *m) {
    sim_memory *memory = &m->conn->world->memory[m->node];
    m->next_deferred = NULL;
    if (memory->deferred)
        memory->deferred_last->next_deferred = m;
    else
        memory->deferred = m;
    memory->deferred_last = m;
    sim_start_outage_timer(m->conn, m->node);
}


static void run_deferred_messages(far_sim_world *world, unsigned node) {
    sim_memory *memory = &world->memory[node];
    memory->defers_messages = false;
    while (memory->deferred) {
        message *m = memory->deferred;
        memory->deferred = m->next_deferred;
        deliver_to_node(m);
    }
}


static void run_deferred_messages_later(void *arg) {
    message *m = arg;
    if (!m->conn->world->memory[m->node].down)
        run_deferred_messages(m->conn->world, m->node);
    free_delivered_message(m);
}


/* Called when a node is up again. Its threads do not continue at the same time, so it is random whether the deferred
 * messages or the blocked verbs are handled first. */
void sim_resume_memory_node(far_sim_world *world, unsigned node) {
    message *first = world->memory[node].deferred;
    if (!first || far_random_chance(&world->random, 1, 2)) {
        run_deferred_messages(world, node);
    } else {
        message *m = new_message(first->conn, node, MESSAGE_TIMER, NULL);
        first->conn->messages++;
        far_sim_at(world, far_sim_now(world) + sim_fault_message_delay(world), run_deferred_messages_later, m);
    }
    sim_unblock_all(world);
}


/* ---- At a node ---- */

/* Makes the node run no more verbs of this connection. Verbs that have begun stop after the granules they have reached,
 * and later verbs fail. */
static void abort_verbs_at_node(sim_conn *conn, unsigned node) {
    far_sim_world *world = conn->world;
    conn->qps[node].failed = true;
    for (sim_verb *verb = conn->first, *next; verb; verb = next) {
        next = verb->next;
        if (verb->node != node || verb->state >= SIM_EFFECTIVE || verb->state == SIM_QUEUED)
            continue;
        if (verb->post) {
            sim_abort_verb(world, verb);
        } else {
            sim_trace_verb(world, SIM_TRACE_DROP, verb, verb->granules_done, 0, 0);
            sim_verb_free(world, verb);
        }
    }
    sim_unblock_all(world);
}


static void notice_fencing(void *arg) {
    sim_conn *conn = arg;
    conn->messages--;
    if (!conn->fenced)
        far_sim_lose(&conn->conn);
    sim_conn_free_if_unused(conn);
}


/* Ends the claim of the connection `holder` at this node, because another claim replaced it or it was fenced. The
 * client of that connection gets no message; it notices after a random delay, or when one of its verbs fails. */
static void displace_holder(far_sim_world *world, unsigned node, net_connection holder) {
    sim_conn *conn = world->conns;
    while (conn && (holder == 0 || conn->number != holder))
        conn = conn->next;
    if (!conn)
        return;
    abort_verbs_at_node(conn, node);
    conn->qps[node].claimed_id = 0;
    conn->messages++;
    far_sim_at(world, far_sim_now(world) + sim_fault_message_delay(world), notice_fencing, conn);
}


static void release_claim(sim_conn *conn, unsigned node) {
    sim_qp *qp = &conn->qps[node];
    if (qp->claimed_id)
        net_table_release(table_of(conn, node), qp->claimed_id, conn->number);
    qp->claimed_id = 0;
}


static void run_claim(message *m) {
    net_connection displaced = 0;
    net_table *table = table_of(m->conn, m->node);
    release_claim(m->conn, m->node);
    net_verdict verdict = m->node == 0
                              ? net_table_issue(table, m->id, m->generation, m->conn->number, &m->claim)
                              : net_table_present(table, m->id, m->generation, m->claim, m->conn->number, &displaced);
    displace_holder(m->conn->world, m->node, displaced);
    m->accepted = verdict == NET_GRANTED;
    if (m->accepted)
        m->conn->qps[m->node].claimed_id = m->id;
}


static void run_message_at_node(message *m) {
    net_table *table = table_of(m->conn, m->node);
    net_connection displaced = 0;
    switch (m->kind) {
    case MESSAGE_CLAIM:
        run_claim(m);
        break;
    case MESSAGE_RELEASE:
        release_claim(m->conn, m->node);
        break;
    case MESSAGE_QUERY:
        m->accepted = net_table_is_live(table, m->id, m->generation, &m->claim);
        break;
    case MESSAGE_FENCE:
        net_table_fence(table, m->id, m->claim, &displaced);
        break;
    case MESSAGE_EVICT:
        net_table_evict(table, m->id, m->generation, &m->claim, &displaced);
        break;
    case MESSAGE_END:
        abort_verbs_at_node(m->conn, m->node);
        release_claim(m->conn, m->node);
        break;
    case MESSAGE_TIMER:
        break;
    }
    displace_holder(m->conn->world, m->node, displaced);
}


static void deliver_to_node(void *arg) {
    message *m = arg;
    far_sim_world *world = m->conn->world;
    bool cut = m->conn->qps[m->node].failed && m->kind != MESSAGE_END;
    if (world->memory[m->node].defers_messages && !cut) {
        defer_message(m);
        return;
    }
    if (!cut)
        run_message_at_node(m);
    if (m->kind == MESSAGE_END || cut)
        free_delivered_message(m);
    else
        far_sim_at(world, far_sim_now(world) + sim_fault_message_delay(world), deliver_answer, m);
}


/* ---- Answers ---- */

static void complete_request(control_request *request, int result) {
    sim_conn *conn = request->conn;
    control_request **at = &conn->requests;
    far_control *control = request->control;
    while (*at != request)
        at = &(*at)->next;
    *at = request->next;
    request->control = NULL;
    control->answer = result;
    control->next = conn->answers;
    conn->answers = control;
    if (request->messages == 0)
        free(request);
    if (conn->conn.parker)
        sim_unpark(conn->world, conn->conn.parker);
}


static void send_to_other_nodes(control_request *request, message_kind kind) {
    request->nodes_missing = (unsigned)request->conn->world->config.memory_nodes - 1;
    for (unsigned node = 1; node <= request->nodes_missing; node++)
        send_message(new_message(request->conn, node, kind, request));
}


/* Called just before a client gets the answer that the session (id, generation) has failed. From now on no verb of this
 * session may take effect, and `sim_run_effect` reports an error if one does. Claims of the same session with a number
 * above `last_claim` are exempt: such a claim belongs to a client that took the id as free at the same time, and that
 * will find in the registry of the pool that the id is not free. */
static void mark_declared_failed(far_sim_world *world, unsigned id, unsigned generation, uint64_t last_claim) {
    for (sim_conn *conn = world->conns; conn; conn = conn->next)
        conn->declared_failed |=
            conn->claimed && conn->id == id && conn->generation == generation && conn->claim <= last_claim;
}


static void complete_as_failed(control_request *request) {
    mark_declared_failed(request->conn->world, request->control->id, request->control->generation, request->claim);
    complete_request(request, request->control->kind == FAR_CONTROL_EVICT ? 0 : 1);
}


static void complete_claim(control_request *request) {
    sim_conn *conn = request->conn;
    conn->claimed = !request->refused;
    conn->claim = request->claim;
    conn->id = request->control->id;
    conn->generation = request->control->generation;
    complete_request(request, request->refused ? FAR_ERR_BUSY : 0);
}


static void handle_claim_answer(control_request *request, const message *m) {
    bool is_only_node = request->conn->world->config.memory_nodes == 1;
    request->refused |= !m->accepted;
    request->nodes_missing--;
    if (m->node == 0)
        request->claim = m->claim;
    if (m->node == 0 && m->accepted && !is_only_node) {
        send_to_other_nodes(request, MESSAGE_CLAIM);
    } else if (request->nodes_missing == 0 && request->refused && m->node != 0) {
        /* If another node refused the claim, node 0 has fenced this session in the meantime. */
        far_sim_lose(&request->conn->conn);
    } else if (request->nodes_missing == 0) {
        complete_claim(request);
    }
}


static void handle_query_answer(control_request *request, const message *m) {
    bool is_only_node = request->conn->world->config.memory_nodes == 1;
    request->claim = m->claim;
    if (m->kind == MESSAGE_QUERY && m->accepted)
        complete_request(request, 0);
    else if (is_only_node)
        complete_as_failed(request);
    else
        send_to_other_nodes(request, MESSAGE_FENCE);
}


static void handle_release_answer(control_request *request, const message *m) {
    if (--request->nodes_missing > 0)
        return;
    if (m->node == 0) {
        complete_request(request, 0);
        return;
    }
    request->nodes_missing = 1;
    send_message(new_message(request->conn, 0, MESSAGE_RELEASE, request));
}


static void deliver_answer(void *arg) {
    message *m = arg;
    control_request *request = m->request;
    bool is_pending = request->control != NULL;
    if (is_pending && m->kind == MESSAGE_CLAIM)
        handle_claim_answer(request, m);
    else if (is_pending && m->kind == MESSAGE_RELEASE)
        handle_release_answer(request, m);
    else if (is_pending && m->kind == MESSAGE_FENCE && --request->nodes_missing == 0)
        complete_as_failed(request);
    else if (is_pending && m->kind != MESSAGE_FENCE)
        handle_query_answer(request, m);
    free_delivered_message(m);
}


/* ---- Submitting control messages ---- */

void sim_submit_control(far_conn *base, far_control *control) {
    sim_conn *conn = (sim_conn *)base;
    bool is_only_node = conn->world->config.memory_nodes == 1;
    control->pending = !conn->fenced;
    control->answer = FAR_ERR_FENCED;
    if (conn->fenced)
        return;
    if (control->kind == FAR_CONTROL_NAME) { /* Simulated sessions have no process, so there is no name to return. */
        control->pending = false;
        control->answer = 0;
        return;
    }
    control_request *request = sim_allocate(sizeof *request);
    *request = (control_request){.control = control, .nodes_missing = 1, .conn = conn, .next = conn->requests};
    conn->requests = request;
    if (control->kind == FAR_CONTROL_CLAIM)
        conn->claimed = false; /* The connection counts as claimed only after all nodes have granted the new claim. */
    if (control->kind == FAR_CONTROL_CLAIM && control->id != 0) {
        send_message(new_message(conn, 0, MESSAGE_CLAIM, request));
    } else if (control->kind == FAR_CONTROL_CLAIM && is_only_node) {
        send_message(new_message(conn, 0, MESSAGE_RELEASE, request));
    } else if (control->kind == FAR_CONTROL_CLAIM) {
        send_to_other_nodes(request, MESSAGE_RELEASE);
    } else {
        send_message(new_message(conn, 0, control->kind == FAR_CONTROL_EVICT ? MESSAGE_EVICT : MESSAGE_QUERY, request));
    }
}


int sim_deliver_answers(sim_conn *conn) {
    int given = 0;
    while (conn->answers) {
        far_control *control = conn->answers;
        conn->answers = control->next;
        control->pending = false;
        control->done(control);
        given++;
    }
    return given;
}


/* Called when the connection ends on the client's side. Its open requests are answered with FAR_ERR_FENCED, and each
 * node gets the report of the end at a time of its own. */
void sim_announce_end(sim_conn *conn) {
    if (!conn->world->config.questions || conn->end_announced)
        return;
    conn->end_announced = true;
    while (conn->requests)
        complete_request(conn->requests, FAR_ERR_FENCED);
    for (unsigned node = 0; node < conn->world->config.memory_nodes; node++)
        send_message(new_message(conn, node, MESSAGE_END, NULL));
}


/* Ends the connection at all nodes at this instant, so that they drop its verbs and release its claim. */
void sim_end_at_all_nodes(sim_conn *conn) {
    for (unsigned node = 0; conn->world->config.questions && node < conn->world->config.memory_nodes; node++) {
        abort_verbs_at_node(conn, node);
        release_claim(conn, node);
    }
}


/* ---- Restarts ---- */

int sim_create_node_tables(far_sim_world *world) {
    for (unsigned request = 0; world->config.questions && request < world->config.memory_nodes; request++) {
        sim_memory *memory = &world->memory[request];
        memory->table = calloc(1, sizeof *memory->table);
        memory->ledger = calloc(1, sizeof *memory->ledger);
        if (!memory->table || !memory->ledger)
            return far_fail(FAR_ERR_NO_MEMORY, "sim: no memory for the table of claims of a memory node");
        net_table_start(memory->table, memory->ledger);
    }
    return 0;
}


void sim_free_node_tables(far_sim_world *world) {
    world->ending = true;
    while (world->messages)
        free_message(world, world->messages);
    for (unsigned request = 0; world->memory && request < world->config.memory_nodes; request++) {
        free(world->memory[request].table);
        free(world->memory[request].ledger);
    }
}


void far_sim_node_restart(far_sim_world *world, unsigned node) {
    sim_trace(world, SIM_TRACE_NODE_UP, &world->outside, NULL, node);
    net_table_start(world->memory[node].table, world->memory[node].ledger);
    for (sim_conn *conn = world->conns; conn; conn = conn->next) {
        conn->qps[node].claimed_id = 0;
        abort_verbs_at_node(conn, node);
        conn->messages++;
        far_sim_at(world, far_sim_now(world) + sim_fault_message_delay(world), notice_fencing, conn);
    }
}
