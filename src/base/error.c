/* Error messages: the buffer of the thread, or of the coroutine that it runs (error.h). */
#include "base/error.h"
#include "base/coroutine.h"
#include "base/text.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define TEXT_OF(number)     #number
#define VERSION_OF(a, b, c) TEXT_OF(a) "." TEXT_OF(b) "." TEXT_OF(c)

static _Thread_local char message[FAR_MESSAGE_BYTES];


const char *far_version(void) {
    return VERSION_OF(FAR_VERSION_MAJOR, FAR_VERSION_MINOR, FAR_VERSION_PATCH);
}


const char *far_strerror(int err) {
    switch (err) {
    case FAR_OK:
        return "success";
    case FAR_ERR_NOT_FOUND:
        return "not found";
    case FAR_ERR_EXISTS:
        return "exists already";
    case FAR_ERR_INVALID:
        return "invalid argument";
    case FAR_ERR_TOO_SMALL:
        return "the buffer is too small";
    case FAR_ERR_NO_MEMORY:
        return "out of memory";
    case FAR_ERR_UNREACHABLE:
        return "a memory node does not answer";
    case FAR_ERR_FENCED:
        return "the session was declared dead";
    case FAR_ERR_UNSUPPORTED:
        return "not supported";
    case FAR_ERR_CORRUPT:
        return "not a pool of this version, or a broken structure";
    case FAR_ERR_BUSY:
        return "in use";
    default:
        return "unknown error";
    }
}


static char *current_message(void) {
    char *words = far_context_words(far_context_current());
    return words ? words : message;
}


__attribute__((noinline)) const char *far_last_error(void) {
    return current_message();
}


/* Must not be inlined. A coroutine may be resumed by another thread, and an inlined copy could keep the address of the
 * first thread's buffer across a switch. */
__attribute__((noinline)) int far_fail(int code, const char *format, ...) {
    int saved_errno = errno;
    char text[FAR_MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (length < 0)
        strcpy(text, far_strerror(code));
    far_make_printable(text); /* it may contain names from far memory, or be cut inside a character */
    strcpy(current_message(), text);
    errno = saved_errno;
    return code;
}


__attribute__((noinline)) void far_fail_clear(void) {
    current_message()[0] = '\0';
}
