/* How a failure is put into words. Whoever finds out that something is wrong calls far_fail, once, with the code and a
 * message that names the argument or the thing at fault; everybody above only passes the code on. far_last_error
 * (farindex.h) gives the message to the user. */
#ifndef FAR_BASE_ERROR_H
#define FAR_BASE_ERROR_H

#include "farindex.h"

#define FAR_MESSAGE_BYTES 512 /* with the final NUL; longer messages are cut */

/* Sets the message and returns code, so that a caller can write `return far_fail(FAR_ERR_INVALID, ...)`. It is that of
 * the thread, or of the coroutine that it runs (far_context_set_words): every task has one of its own, whichever tasks
 * run between its failure and its end. The arguments may point into the message that is being replaced (to put words
 * around it). errno stays as it was. */
int far_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Forgets this thread's message: far_last_error gives "" until the next failure. */
void far_fail_clear(void);

#endif
