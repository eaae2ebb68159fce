/* Lists the clients of a pool, and evicts one of them (`farindex evict`). Used by the command-line tool; not part of
 * the public API. */
#ifndef FAR_CLIENT_END_CLIENT_H
#define FAR_CLIENT_END_CLIENT_H

#include "farindex.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct far_client_info {
    unsigned id, generation;
    unsigned handle; /* id of the system session of the client's handle */
    int64_t process; /* process id on its host; 0: not known */
    bool own;        /* true if the client belongs to the handle of the calling session */
} far_client_info;

/* Calls `each` for every live session in the order of ids, until `each` returns non-zero. A session that is found to
 * have failed is marked as failed in the registry and skipped. Returns the number of calls of `each`, or an error. */
int far_pool_clients(far_session *s, int (*each)(void *ctx, const far_client_info *client), void *ctx);

/* Evicts a live session. On one host, this kills its process and with it all sessions of that process. The kernel must
 * confirm that the process holds the session, and the process must belong to the user of the caller, unless `force` is
 * true and the caller is root. Over a network,
 * it fences all sessions of its handle, and the process continues without them. When the function returns, these
 * sessions are marked as fenced in the registry. The work that they left unfinished is repaired by other clients, or by
 * the next client that opens the pool.
 *
 * `id` names the session. If `process` is not 0, the session is evicted only if it belongs to this process, because the
 * id may have been given to another client meanwhile. *killed receives the description of the session.
 *
 *     FAR_ERR_NOT_FOUND    no live session has that id, or it belongs to another process
 *     FAR_ERR_UNSUPPORTED  this fabric cannot evict clients
 *     FAR_ERR_INVALID      the session belongs to the calling process
 *     FAR_ERR_UNREACHABLE  the caller has no permission to evict it, or cannot reach the process */
int far_pool_evict(far_session *s, unsigned id, int64_t process, bool force, far_client_info *killed);

#endif
