/* How long to look before sleeping. */
#include "fabric/net/linger.h"


static uint64_t smaller(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}


/* Four times what waits usually take: the other end may have to be woken this time. Where they take longer than any look,
 * hardly any: just enough to notice a change. */
static uint64_t span(const net_linger *linger) {
    uint64_t worth = 4 * linger->usual;
    if (worth < NET_LINGER_LEAST || linger->usual > NET_LINGER_MOST)
        return NET_LINGER_LEAST;
    return smaller(worth, NET_LINGER_MOST);
}


static void rest(net_linger *linger, uint64_t now, uint64_t lost) {
    linger->rests_until = now + smaller(lost, NET_LINGER_LONG / NET_LINGER_REST) * NET_LINGER_REST;
}


bool net_linger_begin(net_linger *linger, uint64_t now) {
    linger->begun = linger->seen = now;
    return now >= linger->rests_until;
}


/* True: another thread had the processor since the last look. */
static bool is_disturbed(net_linger *linger, uint64_t now) {
    uint64_t gap = now - linger->seen;
    linger->seen = now;
    if (gap < NET_LINGER_GAP)
        return false;
    rest(linger, now, gap);
    return true;
}


bool net_linger_goes_on(net_linger *linger, uint64_t now) {
    if (is_disturbed(linger, now))
        return false;
    if (now - linger->begun < span(linger))
        return true;
    rest(linger, now, now - linger->begun);
    return false;
}


/* A long wait counts as one that is just too long to look for: a thread that was idle for a minute learns as fast as any
 * that waits are short again. */
void net_linger_end(net_linger *linger, uint64_t now, bool by_look) {
    int64_t took = (int64_t)smaller(now - linger->begun, 2 * NET_LINGER_MOST);
    linger->usual = (uint64_t)((int64_t)linger->usual + (took - (int64_t)linger->usual) / 8);
    bool cut_short = !by_look && linger->rests_until <= linger->seen; /* by the caller's time, or it was woken */
    if (by_look)
        is_disturbed(linger, now);
    else if (cut_short)
        rest(linger, now, linger->seen - linger->begun);
}
