/* The fabric `tcp`: control messages (claim, liveness query, eviction, name) and notifications of client failures. A
 * control message goes to node 0 first. If node 0 has fenced a session, or has issued a claim, the client passes that
 * on to all other nodes, and the control message completes only when all nodes have answered. */
#include "fabric/node/node_table.h"
#include "fabric/tcp/tcp.h"
#include "farindex.h"

#include <stdlib.h>


static tcp_round *make_round(tcp_conn *c, far_control *first) {
    tcp_round *round = calloc(1, sizeof(*round));
    if (round)
        round->first = first;
    else
        tcp_fail_connection(c, FAR_ERR_UNREACHABLE, 0, "no memory for a control message");
    return round;
}


static void complete_control(far_control *question, int what) {
    question->answer = what;
    question->pending = false;
    question->done(question);
}


static void complete_controls(far_control *first, int what) {
    while (first) {
        far_control *question = first;
        first = question->next;
        complete_control(question, what);
    }
}


static void complete_round(tcp_round *round, int what) {
    far_control *first = round->first;
    free(round);
    complete_controls(first, what);
}


/* ---- Sending control messages ---- */

static void send_claim(tcp_conn *c, unsigned node, const far_control *question, tcp_round *round) {
    net_claim body = {.id = question->id, .generation = question->generation};
    if (node > 0) {
        body.claim = question->claim;
        body.proof = question->proof;
    }
    tcp_send_control(c, node, NET_CLAIM, 0, &body, sizeof(body), round);
}


static void send_to_later_nodes(tcp_conn *c, tcp_round *round, net_type type, unsigned count, const void *body,
                                size_t bytes) {
    round->waits = c->count - 1;
    for (unsigned node = 1; node < c->count; node++)
        tcp_send_control(c, node, type, count, body, bytes, round);
}


static void begin_control(tcp_conn *c, far_control *question) {
    tcp_round *round = make_round(c, question);
    net_claim body = {.id = question->id, .generation = question->generation};
    if (!round) {
        question->pending = false;
        question->answer = c->lost;
        return;
    }
    question->next = NULL;
    round->waits = 1;
    if (question->kind == FAR_CONTROL_EVICT || question->kind == FAR_CONTROL_NAME)
        tcp_send_control(c, 0, question->kind == FAR_CONTROL_EVICT ? NET_EVICT : NET_NAME, 0, &body, sizeof(body),
                         round);
    else if (question->id != 0)
        send_claim(c, 0, question, round);
    /* When an id is released, node 0 receives the release last. Once node 0 has released the claim, any client that
     * queries node 0 makes the other nodes fence this session. */
    else if (c->count > 1)
        send_to_later_nodes(c, round, NET_RELEASE, 0, NULL, 0);
    else
        tcp_send_control(c, 0, NET_RELEASE, 0, NULL, 0, round);
}


void tcp_submit_control(far_conn *base, far_control *question) {
    tcp_conn *c = (tcp_conn *)base;
    question->step = 0;
    question->pending = !c->lost;
    question->answer = c->lost;
    if (c->lost)
        return;
    if (question->kind == FAR_CONTROL_HAS_FAILED && !net_id_is_valid(question->id)) {
        question->pending = false;
        question->answer = 1;
    } else if (question->kind == FAR_CONTROL_HAS_FAILED) {
        question->next = c->queries;
        c->queries = question;
        c->queries_count++;
    } else {
        begin_control(c, question);
    }
}


/* Sends all queries that have been submitted, in as few messages as possible. */
void tcp_send_queries(tcp_conn *c) {
    while (c->queries && !c->lost) {
        net_claim list[NET_LISTED_MAX];
        far_control *first = c->queries, *last = first;
        unsigned count = 0;
        for (far_control *q = first; q && count < NET_LISTED_MAX; q = q->next) {
            list[count++] = (net_claim){.id = q->id, .generation = q->generation};
            last = q;
        }
        tcp_round *round = make_round(c, first);
        if (!round)
            return;
        c->queries = last->next;
        c->queries_count -= count;
        last->next = NULL;
        round->waits = 1;
        tcp_send_control(c, 0, NET_QUERY, count, list, count * sizeof(list[0]), round);
    }
}


/* ---- Answers ---- */

static void handle_claimed(tcp_conn *c, unsigned node, tcp_round *round, const char *body) {
    net_claimed claimed;
    far_control *question = round->first;
    memcpy(&claimed, body, sizeof(claimed));
    round->waits--;
    round->refused |= claimed.verdict != NET_GRANTED;
    if (node == 0 && !round->refused && c->count > 1) {
        question->claim = claimed.claim;
        question->proof = claimed.proof;
        round->waits = c->count - 1;
        for (unsigned other = 1; other < c->count; other++)
            send_claim(c, other, question, round);
        return;
    }
    if (round->waits > 0)
        return;
    if (node == 0 && round->refused) {
        complete_round(round, FAR_ERR_BUSY);
        /* node 0 has fenced this session meanwhile, and another client has passed that on to the refusing node */
    } else if (round->refused) {
        tcp_fail_connection(c, FAR_ERR_FENCED, node, NULL);
        complete_round(round, FAR_ERR_FENCED);
    } else {
        complete_round(round, 0);
    }
}


static void handle_released(tcp_conn *c, unsigned node, tcp_round *round) {
    if (--round->waits > 0)
        return;
    if (node == 0) {
        complete_round(round, 0);
        return;
    }
    round->waits = 1;
    tcp_send_control(c, 0, NET_RELEASE, 0, NULL, 0, round);
}


/* Passes on that node 0 has fenced these sessions. A session may be reported as failed only after all other nodes have
 * fenced it, too. */
static void fence_at_later_nodes(tcp_conn *c, tcp_round *round, int what) {
    net_claim list[NET_LISTED_MAX];
    unsigned count = 0;
    if (c->count == 1) {
        complete_round(round, what);
        return;
    }
    for (far_control *q = round->first; q; q = q->next)
        list[count++] = (net_claim){q->id, q->generation, q->claim, q->proof};
    send_to_later_nodes(c, round, NET_FENCE, count, list, count * sizeof(list[0]));
}


static bool handle_liveness(tcp_conn *c, tcp_round *round, const net_head *head, const char *body) {
    far_control *dead = NULL, *lives = NULL, *next;
    unsigned i = 0;
    for (far_control *q = round->first; q; q = q->next)
        i++;
    if (i != head->count)
        return false;
    i = 0;
    for (far_control *q = round->first; q; q = next, i++) {
        net_liveness told;
        memcpy(&told, body + i * sizeof(told), sizeof(told));
        next = q->next;
        q->claim = told.over;
        q->proof = told.proof;
        q->next = told.lives ? lives : dead;
        *(told.lives ? &lives : &dead) = q;
    }
    round->first = dead;
    /* A client that may only read cannot fence. It learns what node 0 reports, and must not take over anything. */
    if (dead && c->conn.fabric->reads_only)
        complete_round(round, 1);
    else if (dead)
        fence_at_later_nodes(c, round, 1);
    else
        free(round);
    complete_controls(lives, 0);
    return true;
}


static void handle_fenced(tcp_conn *c, tcp_round *round) {
    (void)c;
    if (--round->waits == 0)
        complete_round(round, round->first->kind == FAR_CONTROL_EVICT ? 0 : 1);
}


static void handle_evicted(tcp_conn *c, tcp_round *round, const char *body) {
    net_liveness told;
    memcpy(&told, body, sizeof(told));
    round->first->claim = told.over;
    round->first->proof = told.proof;
    fence_at_later_nodes(c, round, 0);
}


static void handle_named(tcp_round *round, const char *body) {
    far_name *name = round->first->name;
    memcpy(name, body, sizeof(*name));
    name->host[FAR_HOST_MAX] = name->command[FAR_COMMAND_MAX] = 0;
    complete_round(round, 0);
}


bool tcp_handle_reply(tcp_conn *c, unsigned node, const tcp_request *request, const net_head *head, const char *body) {
    static const uint16_t answers[NET_TYPES] = {
        [NET_CLAIM] = NET_CLAIMED, [NET_RELEASE] = NET_RELEASED, [NET_QUERY] = NET_LIVENESS,
        [NET_FENCE] = NET_FENCED,  [NET_NAME] = NET_NAMED,       [NET_EVICT] = NET_EVICTED};
    if (head->type != answers[request->type])
        return false;
    switch (request->type) {
    case NET_CLAIM:
        handle_claimed(c, node, request->round, body);
        return true;
    case NET_RELEASE:
        handle_released(c, node, request->round);
        return true;
    case NET_QUERY:
        return handle_liveness(c, request->round, head, body);
    case NET_FENCE:
        handle_fenced(c, request->round);
        return true;
    case NET_NAME:
        handle_named(request->round, body);
        return true;
    default:
        handle_evicted(c, request->round, body);
        return true;
    }
}


/* ---- Failing ---- */

void tcp_fail_round(tcp_round *round, unsigned answers, int status) {
    round->waits -= answers;
    if (round->waits == 0)
        complete_round(round, status);
}


void tcp_fail_queries(tcp_conn *c, int status) {
    far_control *first = c->queries;
    c->queries = NULL;
    c->queries_count = 0;
    complete_controls(first, status);
}


/* ---- Notifications ---- */

void tcp_subscribe(far_conn *base) {
    tcp_conn *c = (tcp_conn *)base;
    if (c->subscribed || c->lost)
        return;
    c->subscribed = c->needs_poll = true;
    net_channel_send(&c->nodes[0].channel, NET_SUBSCRIBE, 0, 0, NULL, 0);
}


/* Stores a notification and wakes the thread that waits in tcp_wait_for_notification. That thread sleeps on the same
 * socket, or is about to. It would not see the notification, because the thread that drives the session has already
 * read it from the socket. */
void tcp_add_notification(tcp_conn *c, const net_claim *note) {
    far_host *host = c->conn.fabric->host;
    if (c->notifications_count == TCP_NOTIFICATIONS || note->id == 0)
        c->notifications_missed = true;
    else
        c->notifications[(c->notifications_first + c->notifications_count++) % TCP_NOTIFICATIONS] = *note;
    atomic_store_explicit(&c->has_notifications, true, memory_order_seq_cst);
    far_parker *notification_parker = atomic_load_explicit(&c->notification_parker, memory_order_seq_cst);
    if (notification_parker)
        host->ops->unpark(host, notification_parker);
}


int tcp_next_notification(far_conn *base, unsigned *id, unsigned *generation) {
    tcp_conn *c = (tcp_conn *)base;
    *id = *generation = 0;
    if (c->notifications_missed) {
        c->notifications_missed = false;
        c->notifications_count = 0;
        return 1;
    }
    if (c->notifications_count == 0) {
        atomic_store_explicit(&c->has_notifications, false, memory_order_seq_cst);
        return 0;
    }
    *id = c->notifications[c->notifications_first].id;
    *generation = c->notifications[c->notifications_first].generation;
    c->notifications_first = (c->notifications_first + 1) % TCP_NOTIFICATIONS;
    c->notifications_count--;
    return 1;
}
