/* Stackful coroutines. A context is a stack with a saved stack pointer. Switching is symmetric: the running context
 * hands the processor to another context, and continues when a context switches back to it. The stack of a thread is a
 * context too (far_context_current).
 *
 * A switch saves only the callee-saved registers and takes tens of nanoseconds. Every switch is announced to the
 * address and thread sanitizers, so that they can follow the stacks. Each stack has a guard page at its lower end.
 *
 * A coroutine may be resumed by another thread than the one that suspended it. The two threads must synchronise, as for
 * any shared memory. The stack of a thread can only be resumed by that thread. Compilers assume that the addresses of
 * errno and of thread-local variables are constant within a function. So a function that switches must not use such a
 * variable both before and after the switch. */
#ifndef FAR_BASE_COROUTINE_H
#define FAR_BASE_COROUTINE_H

#include <stddef.h>

typedef struct far_context far_context;

/* Creates a context that runs entry(arg) on a stack of its own at the first switch to it. `entry` must not return; it
 * ends with far_context_exit. stack_bytes is rounded up to whole pages. Returns NULL if memory is short. */
far_context *far_context_new(size_t stack_bytes, void (*entry)(void *arg), void *arg);

/* Prepares a context that has finished, or has never run, to run entry(arg) from the beginning. It keeps its stack. */
void far_context_reset(far_context *context, void (*entry)(void *arg), void *arg);

/* Frees a context that is not running. Resources that its stack frames own are not released, so the coroutine should
 * finish first if it owns any. */
void far_context_free(far_context *context);

/* Returns the context in which the calling thread runs now: a coroutine, or the stack of the thread. */
far_context *far_context_current(void);

/* Sets the buffer for the message of the last failure in this context (base/error.h). The buffer must outlive the
 * context. NULL: use the buffer of the thread. */
void far_context_set_words(far_context *context, char *words);
char *far_context_words(const far_context *context);

/* Switches from the current context to `to`. Returns when a context switches back to this one. */
void far_context_switch(far_context *to);

/* Switches to `to` for the last time: the current context has finished. The context that runs next may reset or free
 * it. Must not be called on the stack of a thread. */
_Noreturn void far_context_exit(far_context *to);

#endif
