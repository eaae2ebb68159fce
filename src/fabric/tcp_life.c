/* The fabric `tcp`: claims, deaths and notes. Node 0 is asked first; what it says is carried to the other nodes, and
 * only when all of them have answered there is an answer. */
#include "fabric/net/node_table.h"
#include "fabric/tcp.h"
#include "farindex.h"

#include <stdlib.h>


static tcp_round *make_round(tcp_conn *c, far_question *first) {
    tcp_round *round = calloc(1, sizeof(*round));
    if (round)
        round->first = first;
    else
        tcp_lose(c, FAR_ERR_UNREACHABLE, 0, "no memory for a question");
    return round;
}


static void answer(far_question *question, int what) {
    question->answer = what;
    question->pending = false;
    question->done(question);
}


static void answer_all(far_question *first, int what) {
    while (first) {
        far_question *question = first;
        first = question->next;
        answer(question, what);
    }
}


static void end_round(tcp_round *round, int what) {
    far_question *first = round->first;
    free(round);
    answer_all(first, what);
}


/* ---- Asking ---- */

static void send_claim(tcp_conn *c, unsigned node, const far_question *question, tcp_round *round) {
    net_claim body = {question->id, question->generation, node == 0 ? 0 : question->claim};
    tcp_send(c, node, NET_CLAIM, 0, &body, sizeof(body), round);
}


static void send_to_others(tcp_conn *c, tcp_round *round, net_type type, unsigned count, const void *body,
                           size_t bytes) {
    round->waits = c->count - 1;
    for (unsigned node = 1; node < c->count; node++)
        tcp_send(c, node, type, count, body, bytes, round);
}


static void begin_question(tcp_conn *c, far_question *question) {
    tcp_round *round = make_round(c, question);
    net_claim body = {question->id, question->generation, 0};
    if (!round) {
        question->pending = false;
        question->answer = c->lost;
        return;
    }
    question->next = NULL;
    round->waits = 1;
    if (question->kind == FAR_ASK_EVICT || question->kind == FAR_ASK_NAME)
        tcp_send(c, 0, question->kind == FAR_ASK_EVICT ? NET_EVICT : NET_NAME, 0, &body, sizeof(body), round);
    else if (question->id != 0)
        send_claim(c, 0, question, round);
    else if (c->count > 1) /* node 0 last: once it has let go, whoever asks it has the others cut this session */
        send_to_others(c, round, NET_RELEASE, 0, NULL, 0);
    else
        tcp_send(c, 0, NET_RELEASE, 0, NULL, 0, round);
}


void tcp_ask(far_conn *base, far_question *question) {
    tcp_conn *c = (tcp_conn *)base;
    question->step = 0;
    question->pending = !c->lost;
    question->answer = c->lost;
    if (c->lost)
        return;
    if (question->kind == FAR_ASK_DEAD && !net_id_is_sound(question->id)) {
        question->pending = false;
        question->answer = 1;
    } else if (question->kind == FAR_ASK_DEAD) {
        question->next = c->asking;
        c->asking = question;
        c->asking_count++;
    } else {
        begin_question(c, question);
    }
}


/* Many are asked for in one message. */
void tcp_send_questions(tcp_conn *c) {
    while (c->asking && !c->lost) {
        net_claim list[NET_LISTED_MAX];
        far_question *first = c->asking, *last = first;
        unsigned count = 0;
        for (far_question *q = first; q && count < NET_LISTED_MAX; q = q->next) {
            list[count++] = (net_claim){q->id, q->generation, 0};
            last = q;
        }
        tcp_round *round = make_round(c, first);
        if (!round)
            return;
        c->asking = last->next;
        c->asking_count -= count;
        last->next = NULL;
        round->waits = 1;
        tcp_send(c, 0, NET_ASK, count, list, count * sizeof(list[0]), round);
    }
}


/* ---- Answers ---- */

static void take_claimed(tcp_conn *c, unsigned node, tcp_round *round, const char *body) {
    net_claimed claimed;
    far_question *question = round->first;
    memcpy(&claimed, body, sizeof(claimed));
    round->waits--;
    round->refused |= claimed.verdict != NET_TAKEN;
    if (node == 0 && !round->refused && c->count > 1) {
        question->claim = claimed.claim;
        round->waits = c->count - 1;
        for (unsigned other = 1; other < c->count; other++)
            send_claim(c, other, question, round);
        return;
    }
    if (round->waits > 0)
        return;
    if (node == 0 && round->refused) {
        end_round(round, FAR_ERR_BUSY);
    } else if (round->refused) { /* node 0 has cut this session meanwhile, and whoever asked it has told the others */
        tcp_lose(c, FAR_ERR_FENCED, node, NULL);
        end_round(round, FAR_ERR_FENCED);
    } else {
        end_round(round, 0);
    }
}


static void take_released(tcp_conn *c, unsigned node, tcp_round *round) {
    if (--round->waits > 0)
        return;
    if (node == 0) {
        end_round(round, 0);
        return;
    }
    round->waits = 1;
    tcp_send(c, 0, NET_RELEASE, 0, NULL, 0, round);
}


/* Node 0 says that these sessions are over: nobody may call them dead before all other nodes have cut them too. */
static void cut_elsewhere(tcp_conn *c, tcp_round *round, int what) {
    net_claim list[NET_LISTED_MAX];
    unsigned count = 0;
    if (c->count == 1) {
        end_round(round, what);
        return;
    }
    for (far_question *q = round->first; q; q = q->next)
        list[count++] = (net_claim){q->id, q->generation, q->claim};
    send_to_others(c, round, NET_CUT, count, list, count * sizeof(list[0]));
}


static bool take_told(tcp_conn *c, tcp_round *round, const net_head *head, const char *body) {
    far_question *dead = NULL, *lives = NULL, *next;
    unsigned i = 0;
    for (far_question *q = round->first; q; q = q->next)
        i++;
    if (i != head->count)
        return false;
    i = 0;
    for (far_question *q = round->first; q; q = next, i++) {
        net_told told;
        memcpy(&told, body + i * sizeof(told), sizeof(told));
        next = q->next;
        q->claim = told.over;
        q->next = told.lives ? lives : dead;
        *(told.lives ? &lives : &dead) = q;
    }
    round->first = dead;
    if (dead)
        cut_elsewhere(c, round, 1);
    else
        free(round);
    answer_all(lives, 0);
    return true;
}


static void take_cut(tcp_conn *c, tcp_round *round) {
    (void)c;
    if (--round->waits == 0)
        end_round(round, round->first->kind == FAR_ASK_EVICT ? 0 : 1);
}


static void take_evicted(tcp_conn *c, tcp_round *round, const char *body) {
    net_told told;
    memcpy(&told, body, sizeof(told));
    round->first->claim = told.over;
    cut_elsewhere(c, round, 0);
}


static void take_named(tcp_round *round, const char *body) {
    far_name *name = round->first->name;
    memcpy(name, body, sizeof(*name));
    name->host[FAR_HOST_MAX] = name->command[FAR_COMMAND_MAX] = 0;
    end_round(round, 0);
}


bool tcp_take_answer(tcp_conn *c, unsigned node, const tcp_owed *owed, const net_head *head, const char *body) {
    static const uint16_t answers[NET_TYPES] = {
        [NET_CLAIM] = NET_CLAIMED, [NET_RELEASE] = NET_RELEASED, [NET_ASK] = NET_TOLD,
        [NET_CUT] = NET_IS_CUT,    [NET_NAME] = NET_NAMED,       [NET_EVICT] = NET_EVICTED};
    if (head->type != answers[owed->type])
        return false;
    switch (owed->type) {
    case NET_CLAIM:
        take_claimed(c, node, owed->round, body);
        return true;
    case NET_RELEASE:
        take_released(c, node, owed->round);
        return true;
    case NET_ASK:
        return take_told(c, owed->round, head, body);
    case NET_CUT:
        take_cut(c, owed->round);
        return true;
    case NET_NAME:
        take_named(owed->round, body);
        return true;
    default:
        take_evicted(c, owed->round, body);
        return true;
    }
}


/* ---- Failing ---- */

void tcp_fail_round(tcp_round *round, unsigned answers, int status) {
    round->waits -= answers;
    if (round->waits == 0)
        end_round(round, status);
}


void tcp_fail_questions(tcp_conn *c, int status) {
    far_question *first = c->asking;
    c->asking = NULL;
    c->asking_count = 0;
    answer_all(first, status);
}


/* ---- Notes ---- */

void tcp_listen(far_conn *base) {
    tcp_conn *c = (tcp_conn *)base;
    if (c->listens || c->lost)
        return;
    c->listens = c->stirred = true;
    net_channel_send(&c->nodes[0].channel, NET_LISTEN, 0, 0, NULL, 0);
}


/* The thread that drives the session takes the note off the socket on which the handle's thread sleeps, or is about to: so
 * it wakes that thread. */
void tcp_note(tcp_conn *c, const net_claim *note) {
    far_host *host = c->conn.fabric->host;
    if (c->notes_count == TCP_NOTES || note->id == 0)
        c->notes_missed = true;
    else
        c->notes[(c->notes_first + c->notes_count++) % TCP_NOTES] = *note;
    atomic_store_explicit(&c->noted, true, memory_order_seq_cst);
    far_parker *dozer = atomic_load_explicit(&c->dozer, memory_order_seq_cst);
    if (dozer)
        host->ops->unpark(host, dozer);
}


int tcp_told(far_conn *base, unsigned *id, unsigned *generation) {
    tcp_conn *c = (tcp_conn *)base;
    *id = *generation = 0;
    if (c->notes_missed) {
        c->notes_missed = false;
        c->notes_count = 0;
        return 1;
    }
    if (c->notes_count == 0) {
        atomic_store_explicit(&c->noted, false, memory_order_seq_cst);
        return 0;
    }
    *id = c->notes[c->notes_first].id;
    *generation = c->notes[c->notes_first].generation;
    c->notes_first = (c->notes_first + 1) % TCP_NOTES;
    c->notes_count--;
    return 1;
}
