/* The sessions of one handle: they share latches, wake each other's tasks, and drive those of them that no thread is
 * inside of. */
#ifndef FAR_TASK_TEAM_H
#define FAR_TASK_TEAM_H

#include "fabric/fabric.h"
#include "farindex.h"

#include <pthread.h>
#include <stdatomic.h>

struct far_latches; /* task/latch.h */

typedef struct far_team {
    pthread_mutex_t lock;   /* the list; never held across a switch or a wait */
    far_session *first;     /* the user's */
    atomic_uint count;      /* changed under the lock; RDWC looks */
    far_session *own;       /* housekeeping's session; its id stands for the handle */
    atomic_bool unattended; /* no housekeeping thread drives the sessions (far_team_is_unattended) */
    atomic_bool dead;       /* the own session is lost: nobody publishes pins any more, all sessions end */
    struct far_latches *latches;
    far_addr own_words; /* what lies below is the pool's own: superblock, registry, tables of node 0 */
} far_team;

void far_team_add(far_team *team, far_session *s);
void far_team_remove(far_team *team, far_session *s); /* waits for those who visit it */

/* The user's sessions one by one (from NULL on): the one given is not freed until the next is asked for. */
far_session *far_team_visit(far_team *team, far_session *previous);

/* Runs what is ready in sessions that nobody is inside of; never waits. True: something is still under way there. */
bool far_team_drive(far_team *team);
bool far_team_drive_users(far_team *team); /* all but housekeeping's own */

/* No housekeeping thread is there, or it has ended because the handle is being closed: a task that waits for its
 * work (the epoch, sessions that nobody drives) does that work itself. */
bool far_team_is_unattended(const far_team *team);

void far_team_lose(far_team *team); /* all sessions of the user that nobody is inside of: see `dead` */

/* The pace of work in the background: ns between two looks at what others have done. */
uint64_t far_tick(const far_fabric *fabric);

#endif
