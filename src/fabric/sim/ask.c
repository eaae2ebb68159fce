/* Questions that take time: with questions=on a session claims, asks and is cut through the tables of the memory nodes
 * (net/node_table.h), as over a network, and nobody knows at once that a connection has ended.
 *
 * Each connection has a stream of messages to each node. Messages of one stream arrive in order, each after a delay of its
 * own; the last one is the connection's end. A node that sees the end, or is told to cut the session, drops those verbs of
 * the connection that it has not run; until then verbs of a dead session still take effect there. A node that is down keeps
 * the verbs and messages that come to it, and handles them when it is up again. A session that waits for it for too long is
 * lost meanwhile, so what it sent may take effect long after its end. */
#include "base/error.h"
#include "fabric/sim/sim_internal.h"
#include "farindex.h"

#include <stdlib.h>

typedef enum {
    SAY_CLAIM,
    SAY_RELEASE,
    SAY_ASK,
    SAY_CUT,
    SAY_EVICT,
    SAY_END,
    SAY_NOTHING
} say; /* NOTHING goes to no node: it arrives when a connection has waited long enough for a silent one */

typedef struct inquiry {    /* a question, while somebody waits for its answer */
    far_question *question; /* NULL: nobody does any more */
    unsigned waits;         /* nodes that have not answered yet */
    unsigned messages;      /* of it that are under way; the last one frees it */
    uint64_t claim;
    bool refused;
    sim_conn *conn;
    struct inquiry *next; /* of the connection */
} inquiry;

typedef struct sim_message { /* to a node, and back with what it says */
    sim_conn *conn;
    unsigned node;
    say what;
    unsigned id, generation;
    uint64_t claim;                      /* to be shown or cut; back: drawn, or over; nothing: which silence */
    bool yes;                            /* back: taken; lives */
    inquiry *about;                      /* NULL: the end */
    struct sim_message *behind;          /* of those that wait for a node that is down */
    struct sim_message *previous, *next; /* of the world */
} message;


static net_table *table_of(sim_conn *conn, unsigned node) {
    return conn->world->memory[node].table;
}


/* ---- Messages ---- */

static void arrive(void *arg);
static void come_back(void *arg);


static void send(message *m) {
    sim_qp *qp = &m->conn->qps[m->node];
    uint64_t time = m->conn->world->now / SIM_PS + sim_fault_message_delay(m->conn->world);
    if (time <= qp->stream)
        time = qp->stream + 1;
    qp->stream = time;
    m->conn->messages++;
    far_sim_at(m->conn->world, time, arrive, m);
}


static message *say_to(sim_conn *conn, unsigned node, say what, inquiry *about) {
    message *m = sim_allocate(sizeof *m);
    *m = (message){.conn = conn, .node = node, .what = what, .about = about, .next = conn->world->messages};
    if (m->next)
        m->next->previous = m;
    conn->world->messages = m;
    if (about) {
        about->messages++;
        m->id = about->question->id;
        m->generation = about->question->generation;
        m->claim = about->claim;
    }
    return m;
}


static void free_message(far_sim_world *world, message *m) {
    if (m->about && --m->about->messages == 0 && (!m->about->question || world->ending))
        free(m->about);
    if (m->previous)
        m->previous->next = m->next;
    else
        world->messages = m->next;
    if (m->next)
        m->next->previous = m->previous;
    free(m);
}


static void forget(message *m) {
    sim_conn *conn = m->conn;
    free_message(conn->world, m);
    conn->messages--;
    sim_conn_release(conn);
}


/* ---- Silence ---- */

static void lose_patience(void *arg) {
    message *m = arg;
    const sim_memory *memory = &m->conn->world->memory[m->node];
    if (memory->down && memory->silences == m->claim && !m->conn->fenced)
        far_sim_lose(&m->conn->conn);
    forget(m);
}


/* A verb or message of this connection waits at a node that is down: the connection will give the node up after a while. */
void sim_ask_waits(sim_conn *conn, unsigned node) {
    far_sim_world *world = conn->world;
    uint64_t silence = world->memory[node].silences;
    if (conn->fenced || conn->qps[node].silence == silence)
        return;
    conn->qps[node].silence = silence;
    message *m = say_to(conn, node, SAY_NOTHING, NULL);
    m->claim = silence;
    conn->messages++;
    far_sim_at(world, far_sim_now(world) + world->config.unreachable, lose_patience, m);
}


static void wait_at_node(message *m) {
    sim_memory *memory = &m->conn->world->memory[m->node];
    m->behind = NULL;
    if (memory->waiting)
        memory->waiting_last->behind = m;
    else
        memory->waiting = m;
    memory->waiting_last = m;
    sim_ask_waits(m->conn, m->node);
}


static void hear_waiting(far_sim_world *world, unsigned node) {
    sim_memory *memory = &world->memory[node];
    memory->deaf = false;
    while (memory->waiting) {
        message *m = memory->waiting;
        memory->waiting = m->behind;
        arrive(m);
    }
}


static void hear_later(void *arg) {
    message *m = arg;
    if (!m->conn->world->memory[m->node].down)
        hear_waiting(m->conn->world, m->node);
    forget(m);
}


/* A node is up again. Its threads do not wake together: either the messages that waited are handled first, or the verbs. */
void sim_ask_wakes(far_sim_world *world, unsigned node) {
    message *first = world->memory[node].waiting;
    if (!first || far_random_chance(&world->random, 1, 2)) {
        hear_waiting(world, node);
    } else {
        message *m = say_to(first->conn, node, SAY_NOTHING, NULL);
        first->conn->messages++;
        far_sim_at(world, far_sim_now(world) + sim_fault_message_delay(world), hear_later, m);
    }
    sim_unblock_all(world);
}


/* ---- At a node ---- */

/* The node runs no more verbs of this connection: those that have begun stop where they are, later ones fail. */
static void stop_verbs(sim_conn *conn, unsigned node) {
    far_sim_world *world = conn->world;
    conn->qps[node].failed = true;
    for (sim_verb *verb = conn->first, *next; verb; verb = next) {
        next = verb->next;
        if (verb->node != node || verb->state >= SIM_EFFECTIVE || verb->state == SIM_QUEUED)
            continue;
        if (verb->post) {
            sim_stop_verb(world, verb);
        } else {
            sim_trace_verb(world, SIM_TRACE_DROP, verb, verb->landed, 0, 0);
            sim_verb_free(world, verb);
        }
    }
    sim_unblock_all(world);
}


static void notice_cut(void *arg) {
    sim_conn *conn = arg;
    conn->messages--;
    if (!conn->fenced)
        far_sim_lose(&conn->conn);
    sim_conn_release(conn);
}


/* The holder does not speak for its id at this node any more. It is not told: it notices when something fails. */
static void displace(far_sim_world *world, unsigned node, net_holder holder) {
    sim_conn *conn = world->conns;
    while (conn && (holder == 0 || conn->number != holder))
        conn = conn->next;
    if (!conn)
        return;
    stop_verbs(conn, node);
    conn->qps[node].held = 0;
    conn->messages++;
    far_sim_at(world, far_sim_now(world) + sim_fault_message_delay(world), notice_cut, conn);
}


static void let_go(sim_conn *conn, unsigned node) {
    sim_qp *qp = &conn->qps[node];
    if (qp->held)
        net_table_leave(table_of(conn, node), qp->held, conn->number);
    qp->held = 0;
}


static void take_claim(message *m) {
    net_holder displaced = 0;
    net_table *table = table_of(m->conn, m->node);
    let_go(m->conn, m->node);
    net_verdict verdict = m->node == 0
                              ? net_table_draw(table, m->id, m->generation, m->conn->number, &m->claim)
                              : net_table_show(table, m->id, m->generation, m->claim, m->conn->number, &displaced);
    displace(m->conn->world, m->node, displaced);
    m->yes = verdict == NET_TAKEN;
    if (m->yes)
        m->conn->qps[m->node].held = m->id;
}


static void run_at_node(message *m) {
    net_table *table = table_of(m->conn, m->node);
    net_holder displaced = 0;
    switch (m->what) {
    case SAY_CLAIM:
        take_claim(m);
        break;
    case SAY_RELEASE:
        let_go(m->conn, m->node);
        break;
    case SAY_ASK:
        m->yes = net_table_ask(table, m->id, m->generation, &m->claim);
        break;
    case SAY_CUT:
        net_table_cut(table, m->id, m->claim, &displaced);
        break;
    case SAY_EVICT:
        net_table_evict(table, m->id, m->generation, &m->claim, &displaced);
        break;
    case SAY_END:
        stop_verbs(m->conn, m->node);
        let_go(m->conn, m->node);
        break;
    case SAY_NOTHING:
        break;
    }
    displace(m->conn->world, m->node, displaced);
}


static void arrive(void *arg) {
    message *m = arg;
    far_sim_world *world = m->conn->world;
    bool cut = m->conn->qps[m->node].failed && m->what != SAY_END;
    if (world->memory[m->node].deaf && !cut) {
        wait_at_node(m);
        return;
    }
    if (!cut)
        run_at_node(m);
    if (m->what == SAY_END || cut)
        forget(m);
    else
        far_sim_at(world, far_sim_now(world) + sim_fault_message_delay(world), come_back, m);
}


/* ---- Answers ---- */

static void answer(inquiry *i, int what) {
    sim_conn *conn = i->conn;
    inquiry **at = &conn->inquiries;
    far_question *question = i->question;
    while (*at != i)
        at = &(*at)->next;
    *at = i->next;
    i->question = NULL;
    question->answer = what;
    question->next = conn->answers;
    conn->answers = question;
    if (i->messages == 0)
        free(i);
    if (conn->conn.parker)
        sim_unpark(conn->world, conn->conn.parker);
}


static void say_to_others(inquiry *i, say what) {
    i->waits = (unsigned)i->conn->world->config.memory_nodes - 1;
    for (unsigned node = 1; node <= i->waits; node++)
        send(say_to(i->conn, node, what, i));
}


/* Somebody is told that the session is dead: none of its verbs may take effect from now on, which the watch checks. A newer
 * claim of the same id and generation may live on: its owner took the id to be free, and the registry will tell it that it
 * is not. */
static void declare(far_sim_world *world, unsigned id, unsigned generation, uint64_t over) {
    for (sim_conn *conn = world->conns; conn; conn = conn->next)
        conn->declared |= conn->claimed && conn->id == id && conn->generation == generation && conn->claim <= over;
}


static void end_as_dead(inquiry *i) {
    declare(i->conn->world, i->question->id, i->question->generation, i->claim);
    answer(i, i->question->kind == FAR_ASK_EVICT ? 0 : 1);
}


static void end_claim(inquiry *i) {
    sim_conn *conn = i->conn;
    conn->claimed = !i->refused;
    conn->claim = i->claim;
    conn->id = i->question->id;
    conn->generation = i->question->generation;
    answer(i, i->refused ? FAR_ERR_BUSY : 0);
}


static void take_claimed(inquiry *i, const message *m) {
    bool alone = i->conn->world->config.memory_nodes == 1;
    i->refused |= !m->yes;
    i->waits--;
    if (m->node == 0)
        i->claim = m->claim;
    if (m->node == 0 && m->yes && !alone) {
        say_to_others(i, SAY_CLAIM);
    } else if (i->waits == 0 && i->refused && m->node != 0) {
        far_sim_lose(&i->conn->conn); /* node 0 has cut this session meanwhile */
    } else if (i->waits == 0) {
        end_claim(i);
    }
}


static void take_told(inquiry *i, const message *m) {
    bool alone = i->conn->world->config.memory_nodes == 1;
    i->claim = m->claim;
    if (m->what == SAY_ASK && m->yes)
        answer(i, 0);
    else if (alone)
        end_as_dead(i);
    else
        say_to_others(i, SAY_CUT);
}


static void take_released(inquiry *i, const message *m) {
    if (--i->waits > 0)
        return;
    if (m->node == 0) {
        answer(i, 0);
        return;
    }
    i->waits = 1;
    send(say_to(i->conn, 0, SAY_RELEASE, i));
}


static void come_back(void *arg) {
    message *m = arg;
    inquiry *i = m->about;
    bool waited = i->question != NULL;
    if (waited && m->what == SAY_CLAIM)
        take_claimed(i, m);
    else if (waited && m->what == SAY_RELEASE)
        take_released(i, m);
    else if (waited && m->what == SAY_CUT && --i->waits == 0)
        end_as_dead(i);
    else if (waited && m->what != SAY_CUT)
        take_told(i, m);
    forget(m);
}


/* ---- Asking ---- */

void sim_ask(far_conn *base, far_question *question) {
    sim_conn *conn = (sim_conn *)base;
    bool alone = conn->world->config.memory_nodes == 1;
    question->pending = !conn->fenced;
    question->answer = FAR_ERR_FENCED;
    if (conn->fenced)
        return;
    if (question->kind == FAR_ASK_NAME) { /* simulated sessions have no process of their own */
        question->pending = false;
        question->answer = 0;
        return;
    }
    inquiry *i = sim_allocate(sizeof *i);
    *i = (inquiry){.question = question, .waits = 1, .conn = conn, .next = conn->inquiries};
    conn->inquiries = i;
    if (question->kind == FAR_ASK_CLAIM)
        conn->claimed = false; /* until all nodes have taken the new one */
    if (question->kind == FAR_ASK_CLAIM && question->id != 0) {
        send(say_to(conn, 0, SAY_CLAIM, i));
    } else if (question->kind == FAR_ASK_CLAIM && alone) {
        send(say_to(conn, 0, SAY_RELEASE, i));
    } else if (question->kind == FAR_ASK_CLAIM) {
        say_to_others(i, SAY_RELEASE);
    } else {
        send(say_to(conn, 0, question->kind == FAR_ASK_EVICT ? SAY_EVICT : SAY_ASK, i));
    }
}


int sim_give_answers(sim_conn *conn) {
    int given = 0;
    while (conn->answers) {
        far_question *question = conn->answers;
        conn->answers = question->next;
        question->pending = false;
        question->done(question);
        given++;
    }
    return given;
}


/* The connection has ended on its own side: its questions get no answer, and each node sees the end at a time of its own. */
void sim_ask_ends(sim_conn *conn) {
    if (!conn->world->config.questions || conn->ended)
        return;
    conn->ended = true;
    while (conn->inquiries)
        answer(conn->inquiries, FAR_ERR_FENCED);
    for (unsigned node = 0; node < conn->world->config.memory_nodes; node++)
        send(say_to(conn, node, SAY_END, NULL));
}


/* All nodes cut the connection at once. */
void sim_ask_cuts(sim_conn *conn) {
    for (unsigned node = 0; conn->world->config.questions && node < conn->world->config.memory_nodes; node++) {
        stop_verbs(conn, node);
        let_go(conn, node);
    }
}


/* ---- Restarts ---- */

int sim_tables_make(far_sim_world *world) {
    for (unsigned i = 0; world->config.questions && i < world->config.memory_nodes; i++) {
        sim_memory *memory = &world->memory[i];
        memory->table = calloc(1, sizeof *memory->table);
        memory->ledger = calloc(1, sizeof *memory->ledger);
        if (!memory->table || !memory->ledger)
            return far_fail(FAR_ERR_NO_MEMORY, "sim: no memory for a table");
        net_table_start(memory->table, memory->ledger);
    }
    return 0;
}


void sim_tables_free(far_sim_world *world) {
    world->ending = true;
    while (world->messages)
        free_message(world, world->messages);
    for (unsigned i = 0; world->memory && i < world->config.memory_nodes; i++) {
        free(world->memory[i].table);
        free(world->memory[i].ledger);
    }
}


void far_sim_node_restart(far_sim_world *world, unsigned node) {
    sim_trace(world, SIM_TRACE_NODE_UP, &world->outside, NULL, node);
    net_table_start(world->memory[node].table, world->memory[node].ledger);
    for (sim_conn *conn = world->conns; conn; conn = conn->next) {
        conn->qps[node].held = 0;
        stop_verbs(conn, node);
        conn->messages++;
        far_sim_at(world, far_sim_now(world) + sim_fault_message_delay(world), notice_cut, conn);
    }
}
