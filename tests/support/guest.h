/* A client of a pool in tests over processes: a handle with one session and the index "i". */
#ifndef TESTS_GUEST_H
#define TESTS_GUEST_H

#include "conform.h"

typedef struct guest {
    far_pool *pool;
    far_session *session;
    far_index *index;
} guest;

/* kind: the index is made; NULL: it is there. What was opened until an error stays to be left. */
int guest_enter(guest *g, const char *uri, const char *kind);
void guest_leave(guest *g);
unsigned guest_living(guest *g); /* sessions of the pool that live, after all were asked for */

#endif
