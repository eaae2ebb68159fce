/* The sessions of a handle: the list, and driving those whose threads stay away. */
#include "task/team.h"
#include "base/host.h"
#include "task/session.h"

#include <assert.h>

#define TICK_NS      1000000u  /* between slices of housekeeping while the handle is awake, on memory of this host */
#define TICK_RTTS    40u       /* in round trips: at least, over a network; at most, in virtual time */
#define TICK_MOST_NS 20000000u /* however slow the network seemed when it was measured */
#define DRIVE_STEPS  64u       /* of one session in one go: its thread may be waiting to come in */


uint64_t far_tick(const far_fabric *fabric) {
    uint64_t rtts = TICK_RTTS * fabric->rtt;
    if (fabric->host == &far_host_threads)
        return !fabric->ops->ask || rtts < TICK_NS ? TICK_NS : rtts < TICK_MOST_NS ? rtts : TICK_MOST_NS;
    return rtts > TICK_NS ? TICK_NS : rtts;
}


void far_team_add(far_team *team, far_session *s) {
    pthread_mutex_lock(&team->lock);
    s->next = team->first;
    team->first = s;
    atomic_fetch_add_explicit(&team->count, 1, memory_order_relaxed);
    pthread_mutex_unlock(&team->lock);
}


static void pause_briefly(const far_session *own) {
    const far_fabric *fabric = own->conn->fabric;
    far_parker parker = {0};
    fabric->host->ops->park(fabric->host, &parker, far_host_now(fabric->host) + far_tick(fabric) / 10);
}


void far_team_remove(far_team *team, far_session *s) {
    pthread_mutex_lock(&team->lock);
    while (s->visitors) { /* housekeeping looks at the session just now */
        pthread_mutex_unlock(&team->lock);
        pause_briefly(team->own);
        pthread_mutex_lock(&team->lock);
    }
    far_session **link = &team->first;
    while (*link != s) {
        assert(*link);
        link = &(*link)->next;
    }
    *link = s->next;
    atomic_fetch_sub_explicit(&team->count, 1, memory_order_relaxed);
    pthread_mutex_unlock(&team->lock);
}


far_session *far_team_visit(far_team *team, far_session *previous) {
    pthread_mutex_lock(&team->lock);
    far_session *s = previous ? previous->next : team->first;
    assert(!previous || previous->visitors > 0);
    if (previous)
        previous->visitors--;
    if (s)
        s->visitors++;
    pthread_mutex_unlock(&team->lock);
    return s;
}


bool far_team_is_unattended(const far_team *team) {
    return atomic_load_explicit(&team->unattended, memory_order_acquire);
}


/* By the thread inside the session. True: something is still under way. */
static bool drive_inside(far_session *s) {
    for (unsigned steps = 0; steps < DRIVE_STEPS && far_session_step(s); steps++)
        ;
    return atomic_load_explicit(&s->active, memory_order_relaxed) > 0;
}


static bool drive_session(far_session *s) {
    if (atomic_load_explicit(&s->active, memory_order_relaxed) == 0 || !far_session_try_enter(s))
        return false;
    bool busy = drive_inside(s);
    far_session_leave(s);
    return busy;
}


bool far_team_drive_users(far_team *team) {
    bool busy = false;
    for (far_session *s = far_team_visit(team, NULL); s; s = far_team_visit(team, s))
        busy |= drive_session(s);
    return busy;
}


bool far_team_drive(far_team *team) {
    bool busy = drive_session(team->own);
    return far_team_drive_users(team) || busy;
}


void far_team_lose(far_team *team) {
    for (far_session *s = far_team_visit(team, NULL); s; s = far_team_visit(team, s))
        if (far_session_try_enter(s)) {
            far_session_lose(s, FAR_ERR_FENCED);
            far_session_leave(s);
        }
}
