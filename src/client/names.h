/* Finds the process of a session by a query to the fabric. */
#ifndef FAR_CLIENT_NAMES_H
#define FAR_CLIENT_NAMES_H

#include "task/session.h"

/* Stores what the fabric knows about the process of the client in *name; unknown parts are 0 or empty. Returns 0, or an
 * error of the calling session. */
int far_client_name(far_task *t, unsigned id, unsigned generation, far_name *name);

#endif
