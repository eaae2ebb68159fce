/* Declarations that the files of src/client share: the guards of the public functions, housekeeping, and statistics.
 *
 * Every public function runs between an enter and a leave function of this header. The guard makes far_pool_close wait
 * for calls in progress, and makes later calls fail with FAR_ERR_INVALID instead of accessing freed memory. */
#ifndef FAR_CLIENT_CLIENT_H
#define FAR_CLIENT_CLIENT_H

#include "pool/handle.h"
#include "task/session.h"

/* Runs one slice of housekeeping in the system session of the handle (housekeeping.c). Does nothing and returns 0 if
 * another thread is running a slice. Returns 1 if the next slice should follow soon, 0 if it may wait for a tick, or an
 * error of the system session. */
int far_housekeeping(far_pool *pool);
void far_housekeeping_begin(far_pool *pool); /* sets the times of the first checks; called when the handle is opened */
/* Main function of the housekeeping thread. Runs slices until pool->stopping is set. */
void far_housekeeping_thread(void *pool);

/* Status record of the handle (status.c). far_status_record_add_session adds the counters that a session has collected
 * since its previous call; its caller must be inside the session. far_status_record_tick is called by each slice of
 * housekeeping, and writes the record to far memory if a write is due. */
void far_status_record_add_session(far_session *s);
int far_status_record_tick(far_task *t);
/* Called while the handle closes, in its system session: frees the status record in far memory. */
int far_status_record_retire(far_task *t);
/* Sums the counters of all kinds of operations (stats.c). The caller must be inside the session. */
void far_stats_sum(const far_session *s, far_stats *stats);

/* Number of forks between the first process of this program and the current process. If the number that a handle saved
 * when it was opened differs, a parent process has opened the handle (handle.c). */
extern atomic_uint far_fork_count __attribute__((visibility("hidden")));

/* Guards of a public function. A function that takes a pool begins with far_pool_enter and ends with far_pool_leave. A
 * function that takes a session begins with far_call_enter and ends with far_call_leave. If an enter function fails,
 * because the argument is NULL, the pool was closed, or the process is a forked child, then the caller returns its
 * error and must not call the leave function. */
int far_pool_enter(far_pool *pool);
void far_pool_leave(far_pool *pool);
/* Returns 0, or FAR_ERR_UNSUPPORTED with a message if the memory nodes permit this handle only READs. */
int far_check_may_write(const far_session *s);
/* Sets the error message for a session that far_call_enter rejects, and returns the error code. */
int far_fail_unusable_session(far_session *s);


/* Returns whether the handle was opened by a parent process and reached this process by fork. */
static inline bool far_pool_is_of_parent_process(const far_pool *pool) {
    return pool->forks != atomic_load_explicit(&far_fork_count, memory_order_relaxed);
}


static inline void far_call_leave(far_session *s) {
    unsigned calls = atomic_load_explicit(&s->calls, memory_order_relaxed);
    atomic_store_explicit(&s->calls, calls - 1, memory_order_release);
}


/* Enters a public function on this session; returns 0 or an error. The count of calls is incremented before `closed` is
 * read, both sequentially consistent, so that far_pool_close either observes the call and waits, or the call observes
 * `closed` and fails. */
static inline int far_call_enter(far_session *s) {
    if (!s || far_pool_is_of_parent_process(s->pool))
        return far_fail_unusable_session(s);
    /* No atomic addition is needed, because only one thread uses the session at a time. */
    unsigned calls = atomic_load_explicit(&s->calls, memory_order_relaxed);
    atomic_store_explicit(&s->calls, calls + 1, memory_order_seq_cst);
    if (!atomic_load_explicit(&s->pool->closed, memory_order_seq_cst))
        return 0;
    far_call_leave(s);
    return far_fail_unusable_session(s);
}


/* Waits until far_pool_close, which another thread may be running on this handle, has released all sessions and indexes
 * of the handle. The pool must have been closed already. */
void far_pool_await_close(far_pool *pool);

#endif
