/* What the process of a session is called: asked of the fabric. */
#ifndef FAR_CLIENT_NAMES_H
#define FAR_CLIENT_NAMES_H

#include "task/session.h"

/* All of it zero and empty, as far as it is not known. An error is one of this session. */
int far_client_name(far_task *t, unsigned id, unsigned generation, far_name *name);

#endif
