/* What the process of a session is called. */
#include "client/names.h"


int far_client_name(far_task *t, unsigned id, unsigned generation, far_name *name) {
    far_conn *conn = t->session->conn;
    const far_fabric_ops *ops = conn->fabric->ops;
    *name = (far_name){0};
    if (ops->process_of)
        name->process = ops->process_of(conn, id, generation);
    if (!ops->ask)
        return 0;
    far_question question = {.kind = FAR_ASK_NAME, .id = id, .generation = generation, .name = name};
    far_ask_all(t, &question, 1);
    return question.answer;
}
