/* Stackful coroutines: a context is a stack with a saved stack pointer. Switching is symmetric: whoever runs hands the
 * processor to another context and comes back when somebody hands it back. The thread's own stack is a context too
 * (far_context_current).
 *
 * A switch saves the callee-saved registers and nothing else: tens of nanoseconds. The address and thread sanitizers
 * are told of every switch, so that they follow the stacks. Stacks have a guard page below them.
 *
 * A coroutine may be resumed by another thread than the one that suspended it (the two must synchronise, as for any
 * memory they share); a thread's own stack goes on in its thread only. Compilers take the address of errno, and of
 * thread-local variables, for constant within a function: a function that switches must not use them on both sides of
 * the switch. */
#ifndef FAR_BASE_COROUTINE_H
#define FAR_BASE_COROUTINE_H

#include <stddef.h>

typedef struct far_context far_context;

/* A new context that will run entry(arg) on a stack of its own at the first switch to it. entry must not return: it
 * ends by far_context_exit. NULL when memory is short. stack_bytes is rounded up to pages. */
far_context *far_context_new(size_t stack_bytes, void (*entry)(void *arg), void *arg);

/* Makes a finished (or never started) context ready to run entry(arg) from the top again; keeps its stack. */
void far_context_reset(far_context *context, void (*entry)(void *arg), void *arg);

/* Frees a context that does not run. What its stack frames own is not released: let it end first where that matters. */
void far_context_free(far_context *context);

/* The context in which the calling thread runs now: a coroutine, or the thread's own stack. */
far_context *far_context_current(void);

/* The message of the last failure in this context (base/error.h): a buffer that outlives it; NULL: that of the thread. */
void far_context_set_words(far_context *context, char *words);
char *far_context_words(const far_context *context);

/* Hands the processor from the current context to `to`; returns when somebody switches back here. */
void far_context_switch(far_context *to);

/* Like far_context_switch, for the last time: the current context has finished and may be reset or freed
 * by whoever runs next. Not for a thread's own stack. */
_Noreturn void far_context_exit(far_context *to);

#endif
