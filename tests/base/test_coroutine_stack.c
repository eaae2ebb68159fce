/* The stack of a coroutine (base/coroutine.h): alignment, size, guard page, unwinding, and the registers that a switch
 * preserves. */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <unwind.h>

#include "base/coroutine.h"
#include "base/sanitizer.h"
#include "test.h"

#if FAR_TSAN
#include <sanitizer/tsan_interface.h>
#endif

#if FAR_ASAN
/* Switches on the fake stacks of the address sanitizer, which gcc does not use by default, so that the tests cover them
 * too. */
const char *__asan_default_options(void);


const char *__asan_default_options(void) {
    return "detect_stack_use_after_return=1";
}
#endif

/* A failed assertion jumps to the stack of the test. So coroutines only record results, and the tests assert on their
 * own stack. */

enum { STACK_BYTES = 64 << 10 };

typedef struct probe {
    far_context *home;
    uintptr_t frame;
    char text[32];
    int frames;
    uintptr_t outermost;
    _Unwind_Reason_Code reason;
} probe;


static void probe_alignment(void *arg) {
    probe *p = arg;
    p->frame = (uintptr_t)__builtin_frame_address(0);
    snprintf(p->text, sizeof p->text, "%.3f %.3Lf", 1.125, 2.25L);
    far_context_exit(p->home);
}


/* The first frame of a coroutine is aligned to 16 bytes, as calls with floating-point arguments need. */
TEST(a_new_stack_is_aligned_as_the_abi_demands) {
    probe p = {.home = far_context_current()};
    far_context *c = far_context_new(STACK_BYTES, probe_alignment, &p);
    far_context_switch(c);
    assert_int_equal(p.frame % 16, 0);
    assert_string_equal(p.text, "1.125 2.250");
    far_context_free(c);
}


static _Unwind_Reason_Code count_frame(struct _Unwind_Context *frame, void *arg) {
    probe *p = arg;
    p->outermost = _Unwind_GetRegionStart(frame);
    return ++p->frames < 100 ? _URC_NO_REASON : _URC_NORMAL_STOP;
}


static void probe_unwinding(void *arg) {
    probe *p = arg;
    p->reason = _Unwind_Backtrace(count_frame, p);
    far_context_exit(p->home);
}


void far_context_begin(void);


/* Unwinding the stack of a coroutine ends at far_context_begin. */
TEST(unwinding_ends_at_the_first_frame_of_the_coroutine) {
    probe p = {.home = far_context_current()};
    far_context *c = far_context_new(STACK_BYTES, probe_unwinding, &p);
    far_context_switch(c);
    assert_int_equal(p.reason, _URC_END_OF_STACK);
    assert_in_range(p.frames, 2, 10);
    assert_int_equal(p.outermost, (uintptr_t)far_context_begin);
    far_context_free(c);
}


typedef struct diver {
    far_context *home;
    size_t bytes;
    uintptr_t start;
    size_t reached;
    int damaged;
} diver;


/* Recurses until `bytes` of the stack are in use. Switches away there, and in every 64th frame on the way back. */
__attribute__((noinline)) static void use_stack(diver *d, int depth) {
    volatile unsigned char block[512];
    for (size_t i = 0; i < sizeof block; i++)
        block[i] = (unsigned char)(depth + i);
    size_t used = d->start - (uintptr_t)__builtin_frame_address(0);
    if (used < d->bytes) {
        use_stack(d, depth + 1);
    } else {
        d->reached = used;
        far_context_switch(d->home);
    }
    if (depth % 64 == 0)
        far_context_switch(d->home);
    for (size_t i = 0; i < sizeof block; i++)
        d->damaged += block[i] != (unsigned char)(depth + i);
}


static void use_stack_and_exit(void *arg) {
    diver *d = arg;
    d->start = (uintptr_t)__builtin_frame_address(0);
    d->damaged--;
    use_stack(d, 0);
    d->damaged++;
    d->bytes = 0;
    far_context_exit(d->home);
}


/* A coroutine can use the whole stack size that was requested. */
TEST(all_the_stack_that_was_asked_for_can_be_used) {
    enum { BYTES = 1 << 20, SLACK = 8 << 10 };
    diver d[2];
    far_context *c[2];
    for (int i = 0; i < 2; i++) {
        d[i] = (diver){.home = far_context_current(), .bytes = BYTES - SLACK};
        c[i] = far_context_new(BYTES, use_stack_and_exit, &d[i]);
    }
    while (d[0].bytes > 0 || d[1].bytes > 0) {
        for (int i = 0; i < 2; i++)
            if (d[i].bytes > 0)
                far_context_switch(c[i]);
    }
    for (int i = 0; i < 2; i++) {
        assert_true(d[i].reached >= BYTES - SLACK);
        assert_int_equal(d[i].damaged, 0);
        far_context_free(c[i]);
    }
}


static int signal_that_ends_a_child(void (*body)(void)) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        body();
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}


/* Not with sanitizers: they handle the signal themselves, and use an unknown amount of stack. */
#if !FAR_ASAN && !FAR_TSAN
static void overflow_by_a_page(void) {
    diver d = {.home = far_context_current(), .bytes = STACK_BYTES + (size_t)sysconf(_SC_PAGESIZE)};
    far_context *c[9];
    for (int i = 0; i < 9; i++) /* without a guard page the overflow would write to one of these adjacent stacks */
        c[i] = far_context_new(STACK_BYTES, use_stack_and_exit, &d);
    far_context_switch(c[4]);
}


/* A stack overflow ends the process by a signal, and does not write to other memory. */
TEST(an_overflow_hits_the_guard_page) {
    assert_int_equal(signal_that_ends_a_child(overflow_by_a_page), SIGSEGV);
}
#endif


static void return_from_entry(void *arg) {
    (void)arg;
}


static void start_an_entry_that_returns(void) {
    far_context_switch(far_context_new(STACK_BYTES, return_from_entry, NULL));
}


/* The process aborts if the entry function of a coroutine returns. */
TEST(an_entry_that_returns_aborts) {
    assert_int_equal(signal_that_ends_a_child(start_an_entry_that_returns), SIGABRT);
}


/* far_context_new returns NULL if the stack cannot be allocated. */
TEST(a_stack_that_cannot_be_had_gives_null) {
    assert_null(far_context_new(SIZE_MAX, return_from_entry, NULL));
    assert_null(far_context_new(SIZE_MAX - 4096, return_from_entry, NULL));
    assert_null(far_context_new(SIZE_MAX / 8, return_from_entry, NULL));
}


/* ---- Registers ---- */

/* call_with_registers(in, out, function, arg): loads all callee-saved registers from in, calls function(arg), stores
 * them to out. */
/* clang-format off */
#if defined(__x86_64__)
enum { REGISTERS = 6 };
__asm__(".text\n"
        "call_with_registers:\n"
        "pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n pushq %rsi\n"
        "movq (%rdi), %rbp\n movq 8(%rdi), %rbx\n movq 16(%rdi), %r12\n"
        "movq 24(%rdi), %r13\n movq 32(%rdi), %r14\n movq 40(%rdi), %r15\n"
        "movq %rcx, %rdi\n"
        "callq *%rdx\n"
        "popq %rsi\n"
        "movq %rbp, (%rsi)\n movq %rbx, 8(%rsi)\n movq %r12, 16(%rsi)\n"
        "movq %r13, 24(%rsi)\n movq %r14, 32(%rsi)\n movq %r15, 40(%rsi)\n"
        "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n"
        "ret\n");
#elif defined(__aarch64__)
enum { REGISTERS = 19 };
#define MOVE_ALL(pair, single, base) \
    pair " x19, x20, [" base "]\n"       pair " x21, x22, [" base ", #16]\n"  pair " x23, x24, [" base ", #32]\n" \
    pair " x25, x26, [" base ", #48]\n"  pair " x27, x28, [" base ", #64]\n"  single " x29, [" base ", #80]\n" \
    pair " d8, d9, [" base ", #88]\n"    pair " d10, d11, [" base ", #104]\n" pair " d12, d13, [" base ", #120]\n" \
    pair " d14, d15, [" base ", #136]\n"
__asm__(".text\n"
        "call_with_registers:\n"
        "sub sp, sp, #176\n"
        "str x30, [sp, #160]\n"
        "str x1, [sp, #168]\n"
        MOVE_ALL("stp", "str", "sp")
        MOVE_ALL("ldp", "ldr", "x0")
        "mov x0, x3\n"
        "blr x2\n"
        "ldr x1, [sp, #168]\n"
        MOVE_ALL("stp", "str", "x1")
        MOVE_ALL("ldp", "ldr", "sp")
        "ldr x30, [sp, #160]\n"
        "add sp, sp, #176\n"
        "ret\n");
#endif
/* clang-format on */
void call_with_registers(const uint64_t *in, uint64_t *out, void (*function)(void *), void *arg);

typedef struct holder {
    far_context *home;
    uint64_t in[REGISTERS], out[REGISTERS];
    double sum;
} holder;


static void switch_home(void *arg) {
    far_context_switch(arg);
}


static void hold_registers(void *arg) {
    holder *h = arg;
    call_with_registers(h->in, h->out, switch_home, h->home);
    far_context_exit(h->home);
}


static void switch_to_both(void *arg) {
    far_context **c = arg;
    far_context_switch(c[0]);
    far_context_switch(c[1]);
    far_context_switch(c[0]);
    far_context_switch(c[1]);
}


/* All callee-saved registers have their old values after a switch. */
TEST(callee_saved_registers_survive_a_switch) {
    holder h[3];
    far_context *c[2];
    for (int i = 0; i < 3; i++) {
        h[i].home = far_context_current();
        memset(h[i].out, 0, sizeof h[i].out);
        for (int r = 0; r < REGISTERS; r++)
            h[i].in[r] = 0x4001000000000000u * (uint64_t)(i + 1) + 0x10101u * (uint64_t)(r + 1);
        if (i < 2)
            c[i] = far_context_new(STACK_BYTES, hold_registers, &h[i]);
    }
    call_with_registers(h[2].in, h[2].out, switch_to_both, c);
    for (int i = 0; i < 3; i++)
        assert_memory_equal(h[i].in, h[i].out, sizeof h[i].in);
    far_context_free(c[0]);
    far_context_free(c[1]);
}


static void add_floats(void *arg) {
    holder *h = arg;
    double a = h->sum, b = a * 2, c = a * 3, d = a * 4, e = a * 5, f = a * 6, g = a * 7, i = a * 8, j = a * 9;
    for (int round = 0; round < 100; round++) {
        far_context_switch(h->home);
        a += 1, b += 2, c += 3, d += 4, e += 5, f += 6, g += 7, i += 8, j += 9;
    }
    h->sum = a + b + c + d + e + f + g + i + j;
    far_context_exit(h->home);
}


/* Floating-point computations are correct across switches. */
TEST(floats_survive_a_switch) {
    holder h[2] = {{.home = far_context_current(), .sum = 0.5}, {.home = far_context_current(), .sum = 0.25}};
    far_context *c[2];
    for (int i = 0; i < 2; i++)
        c[i] = far_context_new(STACK_BYTES, add_floats, &h[i]);
    for (int round = 0; round <= 100; round++) {
        far_context_switch(c[0]);
        far_context_switch(c[1]);
    }
    assert_true(h[0].sum == 45 * 100.5);
    assert_true(h[1].sum == 45 * 100.25);
    far_context_free(c[0]);
    far_context_free(c[1]);
}


/* ---- Stacks of contexts that were freed before they finished ---- */

/* Uses frames with a size that is known only at run time. The address sanitizer keeps such frames on the real stack, so
 * their red zones remain there when the context is dropped. */
__attribute__((noinline)) static void leave_red_zones(diver *d, int count) {
    volatile unsigned char block[count % 7 * 16 + 20];
    block[0] = (unsigned char)count;
    if (count > 0)
        leave_red_zones(d, count - 1);
    else
        far_context_switch(d->home);
    d->damaged += block[0] != (unsigned char)count;
}


static void leave_red_zones_and_switch(void *arg) {
    diver *d = arg;
    leave_red_zones(d, 100);
    far_context_exit(d->home);
}


static void drop_unfinished_context(int i) {
    diver d = {.home = far_context_current(), .bytes = (size_t)(i % 40 + 1) << 10};
    far_context *c = far_context_new(STACK_BYTES, i % 3 == 0 ? leave_red_zones_and_switch : use_stack_and_exit, &d);
    far_context_switch(c);
    if (i % 2 == 0) {
        d = (diver){.home = d.home, .bytes = 32 << 10};
        far_context_reset(c, use_stack_and_exit, &d);
        while (d.bytes > 0)
            far_context_switch(c);
        assert_int_equal(d.damaged, 0);
    }
    far_context_free(c);
}


/* After a coroutine was dropped in the middle, its stack can be used again without reports by the address sanitizer. */
TEST(a_stack_dropped_in_the_middle_is_clean_for_the_next) {
    for (int i = 0; i < 200; i++)
        drop_unfinished_context(i);
}


static size_t mapped_bytes(void) {
    char text[64] = "";
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_non_null(fgets(text, sizeof text, file));
    fclose(file);
    return strtoull(text, NULL, 10) * (size_t)sysconf(_SC_PAGESIZE);
}


/* Freed contexts hold no memory: neither their stacks, nor the data that a sanitizer keeps for each context. */
TEST(contexts_that_are_gone_hold_no_memory) {
    enum { ROUNDS = 300, LIMIT = 16 << 20 };
    size_t before = 0;
    for (int i = 0; i < 2 * ROUNDS; i++) {
        if (i == ROUNDS)
            before = mapped_bytes();
        drop_unfinished_context(i);
    }
    assert_true(mapped_bytes() < before + LIMIT);
}


#if FAR_TSAN
static void record_fiber(void *arg) {
    void **slot = arg;
    far_context *home = slot[0];
    slot[0] = __tsan_get_current_fiber();
    far_context_switch(home);
    slot[1] = __tsan_get_current_fiber();
    far_context_exit(home);
}


/* Each context has a fiber of its own for the thread sanitizer. */
TEST(each_context_is_a_fiber_to_the_thread_sanitizer) {
    void *slot[2] = {far_context_current(), NULL}, *own = __tsan_get_current_fiber();
    far_context *c = far_context_new(STACK_BYTES, record_fiber, slot);
    far_context_switch(c);
    assert_ptr_equal(__tsan_get_current_fiber(), own);
    far_context_switch(c);
    assert_ptr_equal(__tsan_get_current_fiber(), own);
    assert_ptr_equal(slot[0], slot[1]);
    assert_ptr_not_equal(slot[0], own);
    far_context_free(c);
}
#endif
