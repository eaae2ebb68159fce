/* Counters of a session, as the public API returns them. All fields of far_stats are uint64_t, so the struct is
 * processed as an array. */
#include "base/error.h"
#include "client/client.h"
#include "task/session.h"

#include <string.h>

#define COUNTERS (sizeof(far_stats) / sizeof(uint64_t))
_Static_assert(sizeof(far_stats) % sizeof(uint64_t) == 0, "a row of words");


static void add_counters(far_stats *sum, const far_stats *stats) {
    uint64_t *to = (uint64_t *)sum;
    const uint64_t *from = (const uint64_t *)stats;
    for (size_t i = 0; i < COUNTERS; i++)
        to[i] += from[i];
}


void far_stats_sum(const far_session *s, far_stats *stats) {
    memset(stats, 0, sizeof(*stats));
    for (unsigned kind = 0; kind < FAR_STATS_KINDS; kind++)
        add_counters(stats, &s->stats[kind]);
}


/* Sums the counters of the operation kinds from `first` to `last` into *stats. Enters the session, because housekeeping
 * may be driving it. */
static void sum_kinds(const far_session *session, unsigned first, unsigned last, far_stats *stats) {
    far_session *s = (far_session *)session;
    memset(stats, 0, sizeof(*stats));
    far_session_enter(s);
    for (unsigned kind = first; kind <= last; kind++)
        add_counters(stats, &s->stats[kind]);
    far_session_leave(s);
}


void far_session_stats(const far_session *s, far_stats *stats) {
    if (!stats) {
        far_fail(FAR_ERR_INVALID, "stats: is NULL");
        return;
    }
    memset(stats, 0, sizeof(*stats));
    if (s)
        sum_kinds(s, 0, FAR_STATS_KINDS - 1, stats);
    else
        far_fail(FAR_ERR_INVALID, "session: is NULL");
}


int far_session_stats_of(const far_session *s, far_op_kind kind, far_stats *stats) {
    if (!s)
        return far_fail(FAR_ERR_INVALID, "session: is NULL");
    if (!stats)
        return far_fail(FAR_ERR_INVALID, "stats: is NULL");
    if ((unsigned)kind > FAR_OP_SCAN)
        return far_fail(FAR_ERR_INVALID, "kind: %d is not a kind of operation", (int)kind);
    sum_kinds(s, (unsigned)kind, (unsigned)kind, stats);
    return 0;
}


far_stats far_stats_diff(const far_stats *after, const far_stats *before) {
    far_stats diff = {0};
    if (!after || !before) {
        far_fail(FAR_ERR_INVALID, "stats: is NULL");
        return diff;
    }
    const uint64_t *a = (const uint64_t *)after, *b = (const uint64_t *)before;
    uint64_t *to = (uint64_t *)&diff;
    for (size_t i = 0; i < COUNTERS; i++)
        to[i] = a[i] - b[i];
    return diff;
}
