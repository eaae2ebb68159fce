/* Decides how long a thread polls before it sleeps (busy_poll.h explains the rules). */
#include "fabric/net/busy_poll.h"


static uint64_t smaller_of(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}


/* Returns how long this wait may poll, in ns. The time is four times the average wait, because the peer's thread may
 * have to be woken this time. If waits are longer than any polling could be, the time is only long enough to notice
 * that waits have become short. */
static uint64_t polling_time(const net_busy_poll *busy_poll) {
    uint64_t worth = 4 * busy_poll->average_wait;
    if (worth < NET_BUSY_POLL_MIN || busy_poll->average_wait > NET_BUSY_POLL_MAX)
        return NET_BUSY_POLL_MIN;
    return smaller_of(worth, NET_BUSY_POLL_MAX);
}


static void pause_polling(net_busy_poll *busy_poll, uint64_t now, uint64_t lost) {
    busy_poll->paused_until =
        now + smaller_of(lost, NET_BUSY_POLL_PAUSE_MAX / NET_BUSY_POLL_PAUSE_FACTOR) * NET_BUSY_POLL_PAUSE_FACTOR;
}


bool net_busy_poll_begin(net_busy_poll *busy_poll, uint64_t now) {
    busy_poll->started_at = busy_poll->last_poll = now;
    return now >= busy_poll->paused_until;
}


/* Pauses polling if another thread has used the processor since the last poll. Returns true if that was the case. */
static bool pause_if_preempted(net_busy_poll *busy_poll, uint64_t now) {
    uint64_t gap = now - busy_poll->last_poll;
    busy_poll->last_poll = now;
    if (gap < NET_BUSY_POLL_GAP)
        return false;
    pause_polling(busy_poll, now, gap);
    return true;
}


bool net_busy_poll_continue(net_busy_poll *busy_poll, uint64_t now) {
    if (pause_if_preempted(busy_poll, now))
        return false;
    if (now - busy_poll->started_at < polling_time(busy_poll))
        return true;
    pause_polling(busy_poll, now, now - busy_poll->started_at);
    return false;
}


/* Ends a wait and updates the average. A wait counts as at most 2 * NET_BUSY_POLL_MAX, even if it was longer. So a
 * thread that was idle for a minute notices as fast as any other thread that its waits have become short again. */
void net_busy_poll_end(net_busy_poll *busy_poll, uint64_t now, bool found_by_polling) {
    int64_t took = (int64_t)smaller_of(now - busy_poll->started_at, 2 * NET_BUSY_POLL_MAX);
    busy_poll->average_wait =
        (uint64_t)((int64_t)busy_poll->average_wait + (took - (int64_t)busy_poll->average_wait) / 8);
    /* true if polling ended without success before its time was over, because the caller's deadline was reached or the
     * thread was woken */
    bool cut_short = !found_by_polling && busy_poll->paused_until <= busy_poll->last_poll;
    if (found_by_polling)
        pause_if_preempted(busy_poll, now);
    else if (cut_short)
        pause_polling(busy_poll, now, busy_poll->last_poll - busy_poll->started_at);
}
