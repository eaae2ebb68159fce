/* The beginning and the end of tasks, inline: what far_session_call is made of. Calls that must be quick have the task's
 * function between the two, in line too (client/op.c). */
#ifndef FAR_TASK_CALL_H
#define FAR_TASK_CALL_H

#include "task/session.h"

#include <string.h>

/* Inside, while the session has no direct task: makes one, or runs it on a coroutine. */
int far_session_call_first(far_session *s, unsigned kind, bool background, int (*run)(far_task *t, void *arg),
                           void *arg);


/* Only the thread inside the session changes the count; others look at it. */
static inline void far_count_active(far_session *s, int more) {
    unsigned active = atomic_load_explicit(&s->active, memory_order_relaxed);
    assert(more > 0 ? active < FAR_TASKS_MAX : active > 0);
    atomic_store_explicit(&s->active, active + (unsigned)more, memory_order_release);
}


static inline void far_task_begin(far_task *t, unsigned kind) {
    far_session *s = t->session;
    assert(t->state == FAR_TASK_FREE && kind < FAR_STATS_KINDS);
    memset(&t->refused, 0, offsetof(far_task, stats) - offsetof(far_task, refused));
    t->stats = &s->stats[kind];
    assert(t->wake_at == FAR_TIME_NEVER);
    far_count_active(s, 1);
}


static inline __attribute__((always_inline)) void far_task_end(far_task *t) {
    far_session *s = t->session;
    if (t->open && t->open->batch.count)
        far_start(t); /* no verb must stay in the open batch; an error here has nobody to be told to */
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
        far_patience_forget(t);
    assert(t->waited == 0 && t->unwaited == 0 && t->asked == 0); /* no verb of it will write to its memory */
    assert(t->latched == 0 && t->pin.epoch == 0 && !t->patience && !t->rdwc);
    t->state = FAR_TASK_FREE;
    if (t->context) {
        t->next = s->free_tasks;
        s->free_tasks = t;
    }
    far_count_active(s, -1);
}


/* Inside: where no verb is ever under way a call hardly ever waits; then it needs no stack of its own, and no switches.
 * What was ready before it comes first, as always. NULL: far_session_call_first. */
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


/* Ends the task, if there is one, and leaves the session. */
static inline __attribute__((always_inline)) int far_call_end(far_session *s, far_task *t, int result) {
    if (t)
        far_task_end(t);
    bool lost = result < 0 && s->lost;
    far_session_leave(s);
    return lost ? far_session_tell(s, result) : result;
}

#endif
