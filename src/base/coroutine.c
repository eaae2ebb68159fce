/* Coroutines (coroutine.h): allocating stacks with a guard page, preparing the first frame, and announcing every switch
 * to the sanitizers. The switch itself is in coroutine_switch.S. */
#include "base/coroutine.h"

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/sanitizer.h"

#if FAR_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if FAR_TSAN
#include <sanitizer/tsan_interface.h>
#endif

/* Layout, in words, of the frame that far_context_swap pops (coroutine_switch.S): the indexes of the first two
 * callee-saved registers and of the return address. FRAME_AFTER words of zero above the frame keep the stack aligned to
 * 16 bytes when far_context_begin starts. */
#if defined(__x86_64__)
enum { FRAME_FIRST = 4, FRAME_SECOND = 3, FRAME_RETURN = 6, FRAME_WORDS = 7, FRAME_AFTER = 2 };
#elif defined(__aarch64__)
enum { FRAME_FIRST = 0, FRAME_SECOND = 1, FRAME_RETURN = 11, FRAME_WORDS = 20, FRAME_AFTER = 2 };
#endif

/* Sanitizers make frames several times larger, and run their own code on these stacks, so stacks get more room. */
#if FAR_ASAN || FAR_TSAN
enum { STACK_FACTOR = 2, STACK_EXTRA = 128 << 10 };
#else
enum { STACK_FACTOR = 1, STACK_EXTRA = 0 };
#endif

#if defined(__has_attribute)
#if __has_attribute(noipa)
#define OPAQUE __attribute__((noipa))
#endif
#endif
#ifndef OPAQUE
#define OPAQUE __attribute__((noinline))
#endif

#define ALWAYS_INLINE __attribute__((always_inline)) inline

struct far_context {
    void *stack_pointer; /* saved stack pointer; valid while the context does not run */
    void (*entry)(void *arg);
    void *arg;
    void *mapping; /* guard page and stack; NULL for the stack of a thread */
    size_t mapping_bytes;
    char *words; /* buffer for the message of the last failure in this context (base/error.h) */
#if FAR_ASAN
    const void *stack_bottom;
    size_t stack_bytes;
    void *fake_stack;
    far_context *previous; /* the context from which the most recent switch to this context was made */
#endif
#if FAR_TSAN
    void *fiber; /* fiber of the thread sanitizer; NULL until the context runs for the first time */
#endif
};

void far_context_swap(void **save, void *load);
void far_context_begin(void);

static _Thread_local far_context thread_context;
static _Thread_local far_context *current_context;

static size_t page_bytes(void);
static void prepare_first_frame(far_context *context, void (*entry)(void *arg), void *arg);
static void run_entry(far_context *self);
static far_context *exchange_current(far_context *to);
ALWAYS_INLINE static void announce_switch(far_context *from, far_context *to, int for_good);
ALWAYS_INLINE static void announce_arrival(far_context *self);
static void discard_frames(far_context *context);


far_context *far_context_new(size_t stack_bytes, void (*entry)(void *arg), void *arg) {
    size_t page = page_bytes();
    if (stack_bytes > SIZE_MAX / 4)
        return NULL;
    stack_bytes = stack_bytes * STACK_FACTOR + STACK_EXTRA;
    stack_bytes = stack_bytes == 0 ? page : (stack_bytes + page - 1) / page * page;

    far_context *context = calloc(1, sizeof *context);
    if (!context)
        return NULL;
    context->mapping_bytes = page + stack_bytes;
    context->mapping = mmap(NULL, context->mapping_bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (context->mapping == MAP_FAILED) {
        free(context);
        return NULL;
    }
    if (mprotect(context->mapping, page, PROT_NONE) != 0) {
        munmap(context->mapping, context->mapping_bytes);
        free(context);
        return NULL;
    }
#if FAR_ASAN
    context->stack_bottom = (char *)context->mapping + page;
    context->stack_bytes = stack_bytes;
#endif
    prepare_first_frame(context, entry, arg);
    return context;
}


void far_context_reset(far_context *context, void (*entry)(void *arg), void *arg) {
    assert(context->mapping && context != far_context_current());
    discard_frames(context);
    prepare_first_frame(context, entry, arg);
}


void far_context_free(far_context *context) {
    if (!context)
        return;
    assert(context->mapping && context != far_context_current());
    discard_frames(context);
    munmap(context->mapping, context->mapping_bytes);
    free(context);
}


void far_context_set_words(far_context *context, char *words) {
    context->words = words;
}


char *far_context_words(const far_context *context) {
    return context->words;
}


/* A context may be resumed by another thread than the one that suspended it. So the address of a thread-local variable
 * must not be kept across a switch. The two functions that use such a variable are opaque to the compiler. Their empty
 * asm prevents it from concluding that a second call returns the same value as the first. */
OPAQUE far_context *far_context_current(void) {
    __asm__ volatile("" ::: "memory");
    if (!current_context) {
        current_context = &thread_context;
#if FAR_TSAN
        thread_context.fiber = __tsan_get_current_fiber();
#endif
    }
    return current_context;
}


void far_context_switch(far_context *to) {
    far_context *from = exchange_current(to);
    if (from == to)
        return;
    announce_switch(from, to, 0);
    far_context_swap(&from->stack_pointer, to->stack_pointer);
    announce_arrival(from);
}


void far_context_exit(far_context *to) {
    far_context *from = exchange_current(to);
    assert(from->mapping && from != to);
    announce_switch(from, to, 1);
    far_context_swap(&from->stack_pointer, to->stack_pointer);
    abort(); /* a finished context was resumed, which is a bug */
}


static size_t page_bytes(void) {
    return (size_t)sysconf(_SC_PAGESIZE);
}


static void prepare_first_frame(far_context *context, void (*entry)(void *arg), void *arg) {
    uintptr_t *top = (uintptr_t *)((char *)context->mapping + context->mapping_bytes);
    uintptr_t *frame = top - FRAME_AFTER - FRAME_WORDS;
    memset(frame, 0, (FRAME_WORDS + FRAME_AFTER) * sizeof *frame);
    frame[FRAME_FIRST] = (uintptr_t)context;
    frame[FRAME_SECOND] = (uintptr_t)run_entry;
    frame[FRAME_RETURN] = (uintptr_t)far_context_begin;
    context->stack_pointer = frame;
    context->entry = entry;
    context->arg = arg;
}


static void run_entry(far_context *self) {
    announce_arrival(self);
    self->entry(self->arg);
    abort(); /* The function `entry` has returned. This is a bug, because there is no context to continue with. */
}


OPAQUE static far_context *exchange_current(far_context *to) {
    far_context *from = current_context;
    if (!from)
        from = far_context_current();
    /* The stack of a thread may only be resumed by that thread. */
    assert(to->mapping || to == &thread_context);
    current_context = to;
    __asm__ volatile("" ::: "memory");
    return from;
}


/* Called directly before the swap: announces the next stack to the sanitizers. It must be inlined. The thread sanitizer
 * counts calls and returns per fiber, and a call of this function would return in another fiber. The fiber is created
 * when the context first runs, because libtsan may crash when a fiber is destroyed that never ran. */
ALWAYS_INLINE static void announce_switch(far_context *from, far_context *to, int for_good) {
#if FAR_ASAN
    to->previous = from;
    __sanitizer_start_switch_fiber(for_good ? NULL : &from->fake_stack, to->stack_bottom, to->stack_bytes);
    if (for_good)
        from->fake_stack = NULL;
#endif
#if FAR_TSAN
    if (!to->fiber)
        to->fiber = __tsan_create_fiber(0);
    __tsan_switch_to_fiber(to->fiber, 0);
#endif
    (void)from;
    (void)to;
    (void)for_good;
}


/* Called directly after the swap, on the stack of `self`. The address sanitizer returns the bounds of the stack from
 * which the switch came. In this way the bounds of a thread's own stack become known. */
ALWAYS_INLINE static void announce_arrival(far_context *self) {
#if FAR_ASAN
    __sanitizer_finish_switch_fiber(self->fake_stack, &self->previous->stack_bottom, &self->previous->stack_bytes);
#endif
    (void)self;
}


#if FAR_ASAN
/* Releases the fake stack of a context that was freed before it finished. The address sanitizer releases a fake stack
 * only on a final switch away from the context. So this function pretends to switch to the context and back. */
__attribute__((no_sanitize_address, noinline)) static void discard_fake_stack(far_context *context) {
    void *own_fake_stack = NULL;
    const void *own_bottom = NULL;
    size_t own_bytes = 0;
    __sanitizer_start_switch_fiber(&own_fake_stack, context->stack_bottom, context->stack_bytes);
    __sanitizer_finish_switch_fiber(context->fake_stack, &own_bottom, &own_bytes);
    __sanitizer_start_switch_fiber(NULL, own_bottom, own_bytes);
    __sanitizer_finish_switch_fiber(own_fake_stack, NULL, NULL);
    context->fake_stack = NULL;
}
#endif


/* Discards the information that the sanitizers have about the frames on the stack. The fiber of the thread sanitizer is
 * destroyed, because it contains the calls that never returned. */
static void discard_frames(far_context *context) {
#if FAR_ASAN
    if (context->fake_stack)
        discard_fake_stack(context);
    ASAN_UNPOISON_MEMORY_REGION(context->stack_bottom, context->stack_bytes);
#endif
#if FAR_TSAN
    if (context->fiber)
        __tsan_destroy_fiber(context->fiber);
    context->fiber = NULL;
#endif
    (void)context;
}
