/* Sends control messages, which are requests to the fabric that are not verbs, namely to claim a client id, to confirm
 * that a client is fenced, and to evict a client. far_control_send and far_control_send_all send them for the pool. */
#include "task/session.h"

#include <assert.h>


static void on_question_answered(far_control *question) {
    far_task *t = question->owner;
    assert(t->asked > 0);
    t->asked--;
    if (question->answer < 0 && question->answer != FAR_ERR_BUSY)
        far_session_lose(t->session, question->answer);
    far_task_batch_done(t);
}


static int ask_synchronously(far_conn *conn, const far_control *question) {
    const far_fabric_ops *ops = conn->fabric->ops;
    switch (question->kind) {
    case FAR_CONTROL_CLAIM:
        return ops->claim(conn, question->id, question->generation);
    case FAR_CONTROL_HAS_FAILED:
        return ops->has_failed(conn, question->id, question->generation);
    default:
        return ops->evict(conn, question);
    }
}


void far_control_send_all(far_task *t, far_control *questions, unsigned count) {
    far_session *s = t->session;
    far_conn *conn = s->conn;
    for (unsigned i = 0; i < count; i++) {
        far_control *question = &questions[i];
        question->done = on_question_answered;
        question->owner = t;
        question->pending = false;
        if (s->lost) {
            question->answer = s->lost;
        } else if (!conn->fabric->ops->ask) {
            question->answer = ask_synchronously(conn, question);
        } else {
            conn->fabric->ops->ask(conn, question);
            t->asked += question->pending;
        }
    }
    assert(t->asked <= count);
    if (t->asked) {
        far_task_wait_for(t, FAR_WAIT_CONTROL);
        /* Control messages are not part of the usual path of an operation, so they count as background work. */
        t->stats->background_round_trips++;
    }
}


int far_control_send(far_task *t, far_control_kind kind, unsigned id, unsigned generation) {
    far_control question = {.kind = kind, .id = id, .generation = generation};
    far_control_send_all(t, &question, 1);
    return question.answer;
}
