/* Finds the process to which a session belongs (names.h). */
#include "client/names.h"


int far_client_name(far_task *t, unsigned id, unsigned generation, far_name *name) {
    far_conn *conn = t->session->conn;
    const far_fabric_ops *ops = conn->fabric->ops;
    *name = (far_name){0};
    if (ops->process_of)
        name->process = ops->process_of(conn, id, generation);
    if (!ops->ask)
        return 0;
    far_control question = {.kind = FAR_CONTROL_NAME, .id = id, .generation = generation, .name = name};
    far_control_send_all(t, &question, 1);
    return question.answer;
}
