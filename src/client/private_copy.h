/* A private copy of a pool, which a salvage works on (far_pool_options.salvage). */
#ifndef FAR_CLIENT_PRIVATE_COPY_H
#define FAR_CLIENT_PRIVATE_COPY_H

#include "fabric/fabric.h"

/* Opens the memory of the pool as a fabric of its own. Memory is read from the nodes when it is first used; all changes
 * stay in this process. Nodes may be missing, except node 0. */
int far_private_copy_open(const char *uri, far_fabric **fabric);

/* Returns why memory of the pool is missing, or "" if nothing is missing. The fabric must be a private copy. */
const char *far_private_copy_missing(const far_fabric *fabric);

#endif
