/* The list of the sessions of one handle. The sessions share latches and wake each other's tasks. A thread can also
 * drive sessions that no other thread is inside of, so that their tasks make progress. */
#ifndef FAR_TASK_SESSION_LIST_H
#define FAR_TASK_SESSION_LIST_H

#include "fabric/fabric.h"
#include "farindex.h"

#include <pthread.h>
#include <stdatomic.h>

struct far_latches; /* the latches of the handle, defined in task/latch.c */

typedef struct far_session_list {
    pthread_mutex_t lock;   /* guards the list; never held across a context switch or a wait */
    far_session *first;     /* first session of the user in the list */
    atomic_uint count;      /* number of sessions; written under the lock, read by RDWC without it */
    far_session *own;       /* the system session, which housekeeping uses; its id is the id of the handle */
    atomic_bool unattended; /* true while no housekeeping thread drives the sessions (far_session_list_is_unattended) */
    atomic_bool dead;       /* the system session is lost: pins are not published any more, so all sessions must end */
    struct far_latches *latches;
    /* Far addresses below this one belong to the pool itself: superblock, registry and tables of memory node 0. */
    far_addr own_words;
} far_session_list;

void far_session_list_add(far_session_list *team, far_session *s);
void far_session_list_remove(far_session_list *team, far_session *s); /* waits until no other thread uses s through the list */

/* Iterates over the sessions of the user. The first call passes NULL. The returned session is not freed before the next
 * call. */
far_session *far_session_list_next(far_session_list *team, far_session *previous);

/* Runs the ready tasks of all sessions that no thread is inside of. Never waits. Returns true if a session is still
 * active. */
bool far_session_list_drive(far_session_list *team);
/* like far_session_list_drive, but does not run the tasks of the system session */
bool far_session_list_drive_users(far_session_list *team);

/* Returns true if there is no housekeeping thread, or if it has ended because the handle is being closed. A task that
 * waits for work of housekeeping (advancing the epoch, driving sessions) must then do this work itself. */
bool far_session_list_is_unattended(const far_session_list *team);

/* Marks the user's sessions as lost, except those that a thread is inside of. Called after `dead` was set, that is,
 * after the system session was lost. */
void far_session_list_lose_all(far_session_list *team);

/* Returns the longest time, in ns, that an operation waits because a stalled client holds up the epoch or a lock. Every
 * other limit of such a wait is a share of this time, or is derived from the waiting time of the operation
 * (pool/epoch/stalled.h), so that the waits of one operation do not add up. The time is 10 s; in virtual time it is
 * 400,000 round trips, but at most 10 s. */
uint64_t far_stall_bound(const far_fabric *fabric);

/* Returns the tick, which is the basic interval of background work, in ns. */
uint64_t far_tick(const far_fabric *fabric);

#endif
