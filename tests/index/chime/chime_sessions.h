/* CHIME, helpers for tests with several sessions of one compute node: client D (d) is a further session of A's handle.
 */
#ifndef TESTS_INDEX_CHIME_SESSIONS_H
#define TESTS_INDEX_CHIME_SESSIONS_H

#include "chime_rig.h"

static stage_actor d; /* client D */


static inline void open_with_d(const char *options, const char *sim) {
    open_chime(options, sim);
    memset(&d, 0, sizeof(d));
    d.pool = a->pool;
    d.index = a->index;
    assert_int_equal(far_session_open(d.pool, &d.session), 0);
}


static inline void close_with_d(void) {
    far_session_close(d.session);
    stage_close(&s);
}


static inline uint64_t atomics_of(const stage_actor *by) {
    far_stats stats;
    far_session_stats(by->session, &stats);
    return stats.cas + stats.masked_cas;
}


static inline far_stats stats_of(const stage_actor *by) {
    far_stats stats;
    far_session_stats(by->session, &stats);
    return stats;
}


static const char *const fabrics[] = {ONE, ONE ",masked_cas=off", ONE ",atomic_bytes=8", ONE ",atomics_in_order=on"};

#endif
