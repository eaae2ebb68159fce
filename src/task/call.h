/* The beginning and the end of a task, as inline functions. far_session_call consists of these functions. Calls that
 * must be fast (client/op.c) use them directly, so that the compiler can inline the function of the task between the
 * two. */
#ifndef FAR_TASK_CALL_H
#define FAR_TASK_CALL_H

#include "task/session.h"

#include <string.h>

/* Called while the thread is inside a session that has no direct task yet. Creates the direct task, or runs the call on
 * a coroutine if the fabric needs one. */
int far_session_call_first(far_session *s, unsigned kind, bool background, int (*run)(far_task *t, void *arg),
                           void *arg);


/* Adds `more` (1 or -1) to the number of active tasks of the session. Only the thread inside the session writes this
 * number; other threads read it. */
static inline void far_count_active(far_session *s, int more) {
    unsigned active = atomic_load_explicit(&s->active, memory_order_relaxed);
    assert(more > 0 ? active < FAR_TASKS_MAX : active > 0);
    atomic_store_explicit(&s->active, active + (unsigned)more, memory_order_release);
}


#define FAR_TASK_CLEARED_BYTES (offsetof(far_task, stats) - offsetof(far_task, refused))
_Static_assert(FAR_TASK_CLEARED_BYTES <= 64, "a compiler clears them by four stores, and more bytes by a loop");


static inline void far_task_begin(far_task *t, unsigned kind) {
    far_session *s = t->session;
    assert(t->state == FAR_TASK_FREE && kind < FAR_STATS_KINDS);
    memset(&t->refused, 0, FAR_TASK_CLEARED_BYTES);
    t->stats = &s->stats[kind];
    assert(t->wake_at == FAR_TIME_NEVER);
    far_count_active(s, 1);
}


static inline __attribute__((always_inline)) void far_task_end(far_task *t) {
    far_session *s = t->session;
    if (t->open && t->open->batch.count)
        /* post the verbs that are still open; an error of this batch cannot be reported, because the operation has its
         * result */
        far_start(t);
    if (t->waited || t->unwaited)
        far_task_wait_for(t, FAR_WAIT_ALL);
    if (t->latched)
        far_unlatch_all(t);
    if (t->pin.epoch && !s->lost)
        far_pin_uncount(t);
    else
        far_pin_drop(t);
    if (t->chunk)
        far_scratch_empty(t);
    if (t->retries)
        far_progress_reset(t);
    /* No batch and no control message of this task is in flight, so no completion can write to the memory of the task
     * later. */
    assert(t->waited == 0 && t->unwaited == 0 && t->asked == 0);
    assert(t->latched == 0 && t->pin.epoch == 0 && !t->patience && !t->rdwc);
    t->state = FAR_TASK_FREE;
    if (t->context) {
        t->next = s->free_tasks;
        s->free_tasks = t;
    }
    far_count_active(s, -1);
}


/* Begins a synchronous call in the session that the thread is inside of. On fabrics that execute verbs at once, a call
 * rarely waits, so it runs as the direct task: on the stack of the caller and without a context switch. Tasks that were
 * ready before run first. Returns NULL if the session has no direct task; the caller then uses far_session_call_first.
 */
static inline __attribute__((always_inline)) far_task *far_call_begin(far_session *s, unsigned kind, bool background) {
    far_task *t = s->direct;
    if (!t)
        return NULL;
    if (atomic_load_explicit(&s->active, memory_order_relaxed))
        far_session_step(s);
    far_task_begin(t, kind);
    t->background = background;
    t->state = FAR_TASK_RUNNING;
    return t;
}


/* Ends the direct task that far_call_begin returned (NULL if the call ran on a coroutine instead), leaves the session,
 * and returns the result of the call. */
static inline __attribute__((always_inline)) int far_call_end(far_session *s, far_task *t, int result) {
    if (t)
        far_task_end(t);
    bool lost = result < 0 && s->lost;
    far_session_leave(s);
    return lost ? far_fail_session_lost(s, result) : result;
}

#endif
