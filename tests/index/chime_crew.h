/* For named interleavings of CHIME inside of one compute node: another session of a's. */
#ifndef TESTS_INDEX_CHIME_CREW_H
#define TESTS_INDEX_CHIME_CREW_H

#include "chime_rig.h"

static stage_actor d; /* another session of a's compute node */


static inline void up_with_d(const char *options, const char *sim) {
    up(options, sim);
    memset(&d, 0, sizeof(d));
    d.pool = a->pool;
    d.index = a->index;
    assert_int_equal(far_session_open(d.pool, &d.session), 0);
}


static inline void down_with_d(void) {
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


static const char *const sims[] = {ONE, ONE ",masked_cas=off", ONE ",atomic_bytes=8", ONE ",atomics_in_order=on"};

#endif
