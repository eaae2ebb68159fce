/* Who the clients of a pool are, and ending one of them for good. For the command; not part of the public API. */
#ifndef FAR_CLIENT_END_CLIENT_H
#define FAR_CLIENT_END_CLIENT_H

#include "farindex.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct far_client_info {
    unsigned id, generation;
    unsigned handle; /* the id of its handle's own session */
    int64_t process; /* a pid of its host; 0: not known */
    bool own;        /* of the handle that asks */
} far_client_info;

/* Every live session, by id; those found dead are marked so and left out. Returns how many it was called for, or an
 * error. */
int far_pool_clients(far_session *s, int (*each)(void *ctx, const far_client_info *client), void *ctx);

/* Ends the process of a live session, and with it all its sessions (over a network: cuts all sessions of its handle,
 * whose process lives on without them); they are dead in the registry when this returns.
 * What they left is repaired by the others, or by the next one who opens the pool. *killed: what was ended. process:
 * only if it is this one (the id may be another's by now); 0: whichever it is.
 *
 * FAR_ERR_NOT_FOUND    no live session has that id, or it is of another process
 * FAR_ERR_UNSUPPORTED  clients of this fabric cannot be ended
 * FAR_ERR_INVALID      the session is of this very process
 * FAR_ERR_UNREACHABLE  it is not allowed to, or the process cannot be seen from here */
int far_pool_evict(far_session *s, unsigned id, int64_t process, far_client_info *killed);

#endif
