/* Keeps operations of one session in flight, for threads that share an index (flights.h). */
#include "flights.h"


/* Prepares the next operation in `op` and submits it. If the library does not accept the operation, it counts as a
 * wrong result and is not waited for. */
static void submit_next(far_session *session, const flights *f, far_op *op, unsigned *started, unsigned *wrong) {
    f->prepare(f->ctx, op);
    if (far_submit(session, &op, 1) == 1)
        ++*started;
    else
        ++*wrong;
}


unsigned flights_run(far_pool *pool, const flights *f, far_op *const ops[]) {
    far_op *done[FLIGHTS_MAX];
    far_session *session;
    unsigned started = 0, ended = 0, wrong = 0;
    if (far_session_open(pool, &session) < 0)
        return 1;
    for (unsigned i = 0; i < f->depth; i++)
        submit_next(session, f, ops[i], &started, &wrong);
    while (ended < started) {
        int count = far_reap(session, done, f->depth, 1);
        for (int i = 0; i < count; i++, ended++) {
            wrong += !f->is_right(f->ctx, done[i]);
            if (started < f->total)
                submit_next(session, f, done[i], &started, &wrong);
        }
    }
    far_session_close(session);
    return wrong;
}
