/* Closing a session while the user has not closed all of its cursors. */
#ifndef FAR_CLIENT_CURSOR_H
#define FAR_CLIENT_CURSOR_H

#include "task/session.h"

/* Called before the session is freed. Later calls on its cursors fail, but far_cursor_close still frees them. */
void far_cursors_detach(far_session *s);

#endif
