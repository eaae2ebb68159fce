/* Error messages. The function that detects a failure calls far_fail once, with an error code and a message that names
 * the argument or the object at fault. All callers above only return the code. The user gets the message by
 * far_last_error (farindex.h). */
#ifndef FAR_BASE_ERROR_H
#define FAR_BASE_ERROR_H

#include "farindex.h"

#define FAR_MESSAGE_BYTES 512 /* size of the message buffer, including the final NUL; longer messages are truncated */

/* Sets the message and returns the code, so that a caller can write `return far_fail(FAR_ERR_INVALID, ...)`. The
 * message belongs to the thread, or to the coroutine that it runs (far_context_set_words). Each task has its own
 * message, so tasks that run between the failure of a task and its end do not overwrite it. The arguments may point
 * into the current message, so that it can be extended. errno is preserved. */
int far_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Clears the message of this thread or coroutine: far_last_error returns "" until the next failure. */
void far_fail_clear(void);

#endif
