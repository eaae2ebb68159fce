/* Questions to the fabric that are no verbs: who claims an id, who is dead, who is to be evicted. */
#include "task/session.h"

#include <assert.h>


static void answered(far_question *question) {
    far_task *t = question->owner;
    assert(t->asked > 0);
    t->asked--;
    if (question->answer < 0 && question->answer != FAR_ERR_BUSY)
        far_session_lose(t->session, question->answer);
    far_task_batch_done(t);
}


static int ask_at_once(far_conn *conn, const far_question *question) {
    const far_fabric_ops *ops = conn->fabric->ops;
    switch (question->kind) {
    case FAR_ASK_CLAIM:
        return ops->claim(conn, question->id, question->generation);
    case FAR_ASK_DEAD:
        return ops->is_dead(conn, question->id, question->generation);
    default:
        return ops->evict(conn, question->id, question->generation);
    }
}


void far_ask_all(far_task *t, far_question *questions, unsigned count) {
    far_session *s = t->session;
    far_conn *conn = s->conn;
    for (unsigned i = 0; i < count; i++) {
        far_question *question = &questions[i];
        question->done = answered;
        question->owner = t;
        question->pending = false;
        if (s->lost) {
            question->answer = s->lost;
        } else if (!conn->fabric->ops->ask) {
            question->answer = ask_at_once(conn, question);
        } else {
            conn->fabric->ops->ask(conn, question);
            t->asked += question->pending;
        }
    }
    assert(t->asked <= count);
    if (t->asked) {
        far_task_wait_for(t, FAR_WAIT_ANSWERS);
        t->stats->background_round_trips++; /* whoever asks is not on an operation's usual way */
    }
}


int far_ask(far_task *t, far_question_kind kind, unsigned id, unsigned generation) {
    far_question question = {.kind = kind, .id = id, .generation = generation};
    far_ask_all(t, &question, 1);
    return question.answer;
}
