/* The list of the sessions of a handle (session_list.h), and driving those sessions that no thread is inside of. */
#include "task/session_list.h"
#include "base/host.h"
#include "task/session.h"

#include <assert.h>

/* tick in ns on memory of this host: interval of housekeeping slices while the handle is active */
#define TICK_NS      1000000u
#define TICK_RTTS    40u       /* interval in round trips: the minimum over a network, the maximum in virtual time */
/* upper limit of the tick in ns, which applies even if the network was slow when its round-trip time was measured */
#define TICK_MOST_NS 20000000u
#define STALL_BOUND_TICKS 10000u
#define STALL_BOUND_NS    10000000000ull
/* largest number of scheduler steps for one session in a row, because the session's own thread may be waiting to enter
 */
#define DRIVE_STEPS  64u


uint64_t far_tick(const far_fabric *fabric) {
    uint64_t rtts = TICK_RTTS * fabric->rtt;
    if (fabric->host == &far_host_threads)
        return !fabric->ops->ask || rtts < TICK_NS ? TICK_NS : rtts < TICK_MOST_NS ? rtts : TICK_MOST_NS;
    return rtts > TICK_NS ? TICK_NS : rtts;
}


uint64_t far_stall_bound(const far_fabric *fabric) {
    const uint64_t ticks = STALL_BOUND_TICKS * far_tick(fabric);
    return ticks < STALL_BOUND_NS ? ticks : STALL_BOUND_NS;
}


void far_session_list_add(far_session_list *team, far_session *s) {
    pthread_mutex_lock(&team->lock);
    s->next = team->first;
    team->first = s;
    atomic_fetch_add_explicit(&team->count, 1, memory_order_relaxed);
    pthread_mutex_unlock(&team->lock);
}


static void pause_before_retry(const far_session *own) {
    const far_fabric *fabric = own->conn->fabric;
    far_parker parker = {0};
    fabric->host->ops->park(fabric->host, &parker, far_host_now(fabric->host) + far_tick(fabric) / 10);
}


void far_session_list_remove(far_session_list *team, far_session *s) {
    pthread_mutex_lock(&team->lock);
    while (s->visitors) { /* Another thread is using the session at this moment, so wait until it has finished. */
        pthread_mutex_unlock(&team->lock);
        pause_before_retry(team->own);
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


far_session *far_session_list_next(far_session_list *team, far_session *previous) {
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


bool far_session_list_is_unattended(const far_session_list *team) {
    return atomic_load_explicit(&team->unattended, memory_order_acquire);
}


/* Runs the ready tasks of a session that this thread is inside of. Returns true if tasks are still active. */
static bool run_entered_session(far_session *s) {
    for (unsigned steps = 0; steps < DRIVE_STEPS && far_session_step(s); steps++)
        ;
    return atomic_load_explicit(&s->active, memory_order_relaxed) > 0;
}


static bool drive_session(far_session *s) {
    if (atomic_load_explicit(&s->active, memory_order_relaxed) == 0 || !far_session_try_enter(s))
        return false;
    bool busy = run_entered_session(s);
    far_session_leave(s);
    return busy;
}


bool far_session_list_drive_users(far_session_list *team) {
    bool busy = false;
    for (far_session *s = far_session_list_next(team, NULL); s; s = far_session_list_next(team, s))
        busy |= drive_session(s);
    return busy;
}


bool far_session_list_drive(far_session_list *team) {
    bool busy = drive_session(team->own);
    return far_session_list_drive_users(team) || busy;
}


void far_session_list_lose_all(far_session_list *team) {
    for (far_session *s = far_session_list_next(team, NULL); s; s = far_session_list_next(team, s))
        if (far_session_try_enter(s)) {
            far_session_lose(s, FAR_ERR_FENCED);
            far_session_leave(s);
        }
}
