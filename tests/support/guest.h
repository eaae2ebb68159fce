/* A client in tests with several processes: a handle with one session and the index "i". */
#ifndef TESTS_GUEST_H
#define TESTS_GUEST_H

#include "conform.h"

typedef struct guest {
    far_pool *pool;
    far_session *session;
    far_index *index;
} guest;

/* Opens pool, session and index. If `kind` is not NULL, the index is created, else it must exist. Returns 0 or an
 * error. After an error, the caller must still call guest_leave. */
int guest_enter(guest *g, const char *uri, const char *kind);
void guest_leave(guest *g);
/* checks the liveness of every session of the pool, then returns the number of live sessions */
unsigned guest_count_live_sessions(guest *g);

#endif
