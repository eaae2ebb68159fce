#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <unwind.h>

#include <cmocka.h>

#include "runtime/coroutine.h"
#include "runtime/random.h"
#include "runtime/sanitizer.h"

#if FAR_TSAN
#include <sanitizer/tsan_interface.h>
#endif

#if FAR_ASAN
/* gcc's default is without the fake stacks, which a switch has to follow too. */
const char *__asan_default_options(void);


const char *__asan_default_options(void) {
    return "detect_stack_use_after_return=1";
}
#endif

/* A failed assertion jumps to the stack of the test, so coroutines only record, and the tests assert on their own stack. */

enum { STACK_BYTES = 64 << 10 };

typedef struct trace {
    char text[64];
    size_t length;
} trace;

/* Notes its name and goes to `next`, `rounds` times; then notes its name in capitals and exits to `last`. */
typedef struct walker {
    far_context *self, *next, *last, *seen;
    trace *trace;
    char name;
    int rounds;
} walker;


static void note(trace *t, char c) {
    if (t->length + 1 < sizeof t->text)
        t->text[t->length++] = c;
}


static void walk(void *arg) {
    walker *w = arg;
    w->seen = far_context_current();
    for (int i = 0; i < w->rounds; i++) {
        note(w->trace, w->name);
        far_context_switch(w->next);
    }
    note(w->trace, (char)(w->name - 'a' + 'A'));
    far_context_exit(w->last);
}


static void make_walker(walker *w, trace *t, char name, int rounds, far_context *next, far_context *last) {
    *w = (walker){.next = next, .last = last, .trace = t, .name = name, .rounds = rounds};
    w->self = far_context_new(STACK_BYTES, walk, w);
    assert_non_null(w->self);
}


static void switches_run_in_the_order_asked_for(void **state) {
    (void)state;
    trace t = {.length = 0};
    walker a, b;
    far_context *home = far_context_current();
    make_walker(&a, &t, 'a', 2, home, home);
    make_walker(&b, &t, 'b', 2, home, home);
    assert_string_equal(t.text, "");

    far_context *order[] = {a.self, b.self, b.self, a.self, a.self, b.self};
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        far_context_switch(order[i]);
        note(&t, '.');
        assert_ptr_equal(far_context_current(), home);
    }
    assert_string_equal(t.text, "a.b.b.a.A.B.");
    assert_ptr_equal(a.seen, a.self);
    assert_ptr_equal(b.seen, b.self);
    far_context_free(a.self);
    far_context_free(b.self);
}


static void coroutines_switch_to_each_other_and_not_to_their_starter(void **state) {
    (void)state;
    trace t = {.length = 0};
    walker w[3];
    far_context *home = far_context_current();
    for (int i = 0; i < 3; i++)
        make_walker(&w[i], &t, (char)('a' + i), 3, NULL, home);
    for (int i = 0; i < 3; i++)
        w[i].next = w[(i + 1) % 3].self;
    w[0].last = w[1].self;
    w[1].last = w[2].self;

    far_context_switch(w[0].self);
    assert_string_equal(t.text, "abcabcabcABC");
    assert_ptr_equal(far_context_current(), home);
    for (int i = 0; i < 3; i++)
        far_context_free(w[i].self);
}


static void a_switch_to_oneself_returns_at_once(void **state) {
    (void)state;
    trace t = {.length = 0};
    walker a;
    far_context_switch(far_context_current());
    make_walker(&a, &t, 'a', 3, NULL, far_context_current());
    a.next = a.self;
    far_context_switch(a.self);
    assert_string_equal(t.text, "aaaA");
    far_context_free(a.self);
}


/* ---- The stack of a coroutine ---- */

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


static void a_new_stack_is_aligned_as_the_abi_demands(void **state) {
    (void)state;
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


static void unwinding_ends_at_the_first_frame_of_the_coroutine(void **state) {
    (void)state;
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


/* Goes down until `bytes` of stack are in use, switches away there and on every 64th frame of the way back. */
__attribute__((noinline)) static void dive(diver *d, int depth) {
    volatile unsigned char block[512];
    for (size_t i = 0; i < sizeof block; i++)
        block[i] = (unsigned char)(depth + i);
    size_t used = d->start - (uintptr_t)__builtin_frame_address(0);
    if (used < d->bytes) {
        dive(d, depth + 1);
    } else {
        d->reached = used;
        far_context_switch(d->home);
    }
    if (depth % 64 == 0)
        far_context_switch(d->home);
    for (size_t i = 0; i < sizeof block; i++)
        d->damaged += block[i] != (unsigned char)(depth + i);
}


static void dive_and_exit(void *arg) {
    diver *d = arg;
    d->start = (uintptr_t)__builtin_frame_address(0);
    d->damaged--;
    dive(d, 0);
    d->damaged++;
    d->bytes = 0;
    far_context_exit(d->home);
}


static void all_the_stack_that_was_asked_for_can_be_used(void **state) {
    (void)state;
    enum { BYTES = 1 << 20, SLACK = 8 << 10 };
    diver d[2];
    far_context *c[2];
    for (int i = 0; i < 2; i++) {
        d[i] = (diver){.home = far_context_current(), .bytes = BYTES - SLACK};
        c[i] = far_context_new(BYTES, dive_and_exit, &d[i]);
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


/* The sanitizers catch the signal themselves, or use more of the stack than the test can reckon with. */
#if !FAR_ASAN && !FAR_TSAN
static void overflow_by_a_page(void) {
    diver d = {.home = far_context_current(), .bytes = STACK_BYTES + (size_t)sysconf(_SC_PAGESIZE)};
    far_context *c[9];
    for (int i = 0; i < 9; i++) /* other stacks lie around it, which would take the overflow in silence */
        c[i] = far_context_new(STACK_BYTES, dive_and_exit, &d);
    far_context_switch(c[4]);
}


static void an_overflow_hits_the_guard_page(void **state) {
    (void)state;
    assert_int_equal(signal_that_ends_a_child(overflow_by_a_page), SIGSEGV);
}
#endif


static void return_from_entry(void *arg) {
    (void)arg;
}


static void start_an_entry_that_returns(void) {
    far_context_switch(far_context_new(STACK_BYTES, return_from_entry, NULL));
}


static void an_entry_that_returns_aborts(void **state) {
    (void)state;
    assert_int_equal(signal_that_ends_a_child(start_an_entry_that_returns), SIGABRT);
}


static void a_stack_that_cannot_be_had_gives_null(void **state) {
    (void)state;
    assert_null(far_context_new(SIZE_MAX, walk, NULL));
    assert_null(far_context_new(SIZE_MAX - 4096, walk, NULL));
    assert_null(far_context_new(SIZE_MAX / 8, walk, NULL));
}


/* ---- Registers ---- */

/* call_with_registers(in, out, function, arg): loads all callee-saved registers from in, calls function(arg), stores them to out. */
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
#define MOVE_ALL(pair, single, base)                                                                                   \
    pair " x19, x20, [" base "]\n" pair " x21, x22, [" base ", #16]\n" pair " x23, x24, [" base ", #32]\n" pair        \
         " x25, x26, [" base ", #48]\n" pair " x27, x28, [" base ", #64]\n" single " x29, [" base ", #80]\n" pair      \
         " d8, d9, [" base ", #88]\n" pair " d10, d11, [" base ", #104]\n" pair " d12, d13, [" base ", #120]\n" pair   \
         " d14, d15, [" base ", #136]\n"
__asm__(".text\n"
        "call_with_registers:\n"
        "sub sp, sp, #176\n"
        "str x30, [sp, #160]\n"
        "str x1, [sp, #168]\n" MOVE_ALL("stp", "str", "sp") MOVE_ALL("ldp", "ldr", "x0") "mov x0, x3\n"
                                                                                         "blr x2\n"
                                                                                         "ldr x1, [sp, #168]\n"
        MOVE_ALL("stp", "str", "x1") MOVE_ALL("ldp", "ldr", "sp") "ldr x30, [sp, #160]\n"
                                                                  "add sp, sp, #176\n"
                                                                  "ret\n");
#endif
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


static void callee_saved_registers_survive_a_switch(void **state) {
    (void)state;
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


static void floats_survive_a_switch(void **state) {
    (void)state;
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


/* ---- Life and death ---- */

static void a_finished_context_is_reset_and_runs_something_else(void **state) {
    (void)state;
    trace t = {.length = 0};
    walker a, b;
    far_context *home = far_context_current();
    make_walker(&a, &t, 'a', 1, home, home);
    far_context_switch(a.self);
    far_context_switch(a.self);
    b = a;
    b.name = 'b';
    far_context_reset(a.self, walk, &b);
    far_context_switch(a.self);
    far_context_switch(a.self);
    assert_string_equal(t.text, "aAbB");
    far_context_free(a.self);
}


static void a_context_that_never_ran_can_be_reset_or_freed(void **state) {
    (void)state;
    trace t = {.length = 0};
    walker a, b;
    far_context *home = far_context_current();
    make_walker(&a, &t, 'a', 0, home, home);
    b = a;
    b.name = 'b';
    far_context_reset(a.self, walk, &b);
    far_context_switch(a.self);
    assert_string_equal(t.text, "B");
    far_context_reset(a.self, walk, &a);
    far_context_free(a.self);
    far_context_free(NULL);
    assert_string_equal(t.text, "B");
}


static void one_context_serves_many_entries_in_turn(void **state) {
    (void)state;
    enum { TIMES = FAR_TSAN ? 2000 : 100000 };
    far_context *home = far_context_current();
    walker w = {.next = home, .last = home, .trace = &(trace){.length = 0}, .name = 'a', .rounds = 1};
    far_context *c = far_context_new(STACK_BYTES, walk, &w);
    for (int i = 0; i < TIMES; i++) {
        w.trace->length = 0;
        far_context_switch(c);
        far_context_switch(c);
        assert_int_equal(w.trace->length, 2);
        far_context_reset(c, walk, &w);
    }
    far_context_free(c);
}


/* Frees the context that exits to it. */
static void bury(void *arg) {
    walker *w = arg;
    far_context_switch(w->next);
    far_context_free(w->next);
    note(w->trace, 'x');
    far_context_exit(w->last);
}


static void a_coroutine_frees_another_that_exited_to_it(void **state) {
    (void)state;
    trace t = {.length = 0};
    walker a;
    make_walker(&a, &t, 'a', 0, NULL, NULL);
    walker b = {.next = a.self, .last = far_context_current(), .trace = &t};
    b.self = far_context_new(STACK_BYTES, bury, &b);
    a.last = b.self;
    far_context_switch(b.self);
    assert_string_equal(t.text, "Ax");
    far_context_free(b.self);
}


/* Frames of a size known only at run time stay on the real stack, whatever the address sanitizer does with others: their red
 * zones are what a dropped stack would leave behind. */
__attribute__((noinline)) static void leave_red_zones(diver *d, int count) {
    volatile unsigned char block[count % 7 * 16 + 20];
    block[0] = (unsigned char)count;
    if (count > 0)
        leave_red_zones(d, count - 1);
    else
        far_context_switch(d->home);
    d->damaged += block[0] != (unsigned char)count;
}


static void litter(void *arg) {
    diver *d = arg;
    leave_red_zones(d, 100);
    far_context_exit(d->home);
}


static void drop_in_the_middle(int i) {
    diver d = {.home = far_context_current(), .bytes = (size_t)(i % 40 + 1) << 10};
    far_context *c = far_context_new(STACK_BYTES, i % 3 == 0 ? litter : dive_and_exit, &d);
    far_context_switch(c);
    if (i % 2 == 0) {
        d = (diver){.home = d.home, .bytes = 32 << 10};
        far_context_reset(c, dive_and_exit, &d);
        while (d.bytes > 0)
            far_context_switch(c);
        assert_int_equal(d.damaged, 0);
    }
    far_context_free(c);
}


static void a_stack_dropped_in_the_middle_is_clean_for_the_next(void **state) {
    (void)state;
    for (int i = 0; i < 200; i++)
        drop_in_the_middle(i);
}


static size_t mapped_bytes(void) {
    char text[64] = "";
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_non_null(fgets(text, sizeof text, file));
    fclose(file);
    return strtoull(text, NULL, 10) * (size_t)sysconf(_SC_PAGESIZE);
}


/* Neither stacks, nor what a sanitizer keeps for each of them. */
static void contexts_that_are_gone_hold_no_memory(void **state) {
    (void)state;
    enum { ROUNDS = 300, LIMIT = 16 << 20 };
    size_t before = 0;
    for (int i = 0; i < 2 * ROUNDS; i++) {
        if (i == ROUNDS)
            before = mapped_bytes();
        drop_in_the_middle(i);
    }
    assert_true(mapped_bytes() < before + LIMIT);
}


typedef struct member {
    far_context *self, *home;
    uint64_t sum, expected;
    int steps, strayed;
} member;


static void sum_up(void *arg) {
    member *m = arg;
    uint64_t sum = 0;
    for (int i = 1; i <= m->steps; i++) {
        sum += (uint64_t)i * (uintptr_t)(i + m->steps);
        far_context_switch(m->home);
        m->strayed += far_context_current() != m->self;
    }
    m->sum = sum;
    far_context_exit(m->home);
}


static void init_member(member *m, far_context *home, int steps) {
    *m = (member){.home = home, .steps = steps};
    for (int i = 1; i <= steps; i++)
        m->expected += (uint64_t)i * (uint64_t)(i + steps);
    m->self = far_context_new(STACK_BYTES, sum_up, m);
    assert_non_null(m->self);
}


static void thousands_of_contexts_live_side_by_side(void **state) {
    (void)state;
    enum { MEMBERS = FAR_TSAN ? 1500 : 5000, STEPS = 10 };
    member *m = calloc(MEMBERS, sizeof *m);
    int *order = malloc((size_t)MEMBERS * (STEPS + 1) * sizeof *order);
    far_random random;
    far_random_seed(&random, 1);
    for (int i = 0; i < MEMBERS; i++) {
        init_member(&m[i], far_context_current(), STEPS);
        for (int s = 0; s <= STEPS; s++)
            order[i * (STEPS + 1) + s] = i;
    }
    for (size_t i = (size_t)MEMBERS * (STEPS + 1); i > 0; i--) {
        size_t j = far_random_below(&random, i);
        int chosen = order[j];
        order[j] = order[i - 1];
        far_context_switch(m[chosen].self);
    }
    for (int i = 0; i < MEMBERS; i++) {
        assert_int_equal(m[i].sum, m[i].expected);
        assert_int_equal(m[i].strayed, 0);
        far_context_free(m[i].self);
    }
    free(order);
    free(m);
}


/* ---- Threads ---- */

typedef struct relay {
    far_context *self, *home, *current[3];
    pthread_t thread[3];
    int leg;
} relay;


/* pthread_self counts as constant, so it is called from functions of its own. */
__attribute__((noinline)) static void record_leg(relay *r) {
    r->thread[r->leg] = pthread_self();
    r->current[r->leg] = far_context_current();
    r->leg++;
    __asm__ volatile("" ::: "memory");
}


static void run_legs(void *arg) {
    relay *r = arg;
    record_leg(r);
    far_context_switch(r->home);
    record_leg(r);
    far_context_switch(r->home);
    record_leg(r);
    far_context_exit(r->home);
}


static void *run_one_leg(void *arg) {
    relay *r = arg;
    far_context *home = far_context_current();
    r->home = home;
    far_context_switch(r->self);
    return far_context_current() == home ? home : NULL;
}


static void a_coroutine_moves_from_thread_to_thread(void **state) {
    (void)state;
    relay r = {.leg = 0};
    pthread_t others[2];
    far_context *home = far_context_current();
    r.self = far_context_new(STACK_BYTES, run_legs, &r);
    assert_ptr_equal(run_one_leg(&r), home);
    for (int i = 0; i < 2; i++) {
        void *other_home = NULL;
        assert_int_equal(pthread_create(&others[i], NULL, run_one_leg, &r), 0);
        assert_int_equal(pthread_join(others[i], &other_home), 0);
        assert_non_null(other_home);
        assert_ptr_not_equal(other_home, home);
        assert_ptr_equal(far_context_current(), home);
    }
    assert_int_equal(r.leg, 3);
    assert_true(pthread_equal(r.thread[0], pthread_self()));
    assert_true(pthread_equal(r.thread[1], others[0]));
    assert_true(pthread_equal(r.thread[2], others[1]));
    for (int i = 0; i < 3; i++)
        assert_ptr_equal(r.current[i], r.self);
    far_context_free(r.self);
}


enum { CROWD = 64, CROWD_STEPS = FAR_TSAN ? 200 : 2000 };

typedef struct crowd {
    pthread_mutex_t mutex;
    member members[CROWD];
    int steps_left[CROWD];
    int queue[CROWD], head, queued, unfinished, strayed;
} crowd;


static void *drive_crowd(void *arg) {
    crowd *c = arg;
    far_context *home = far_context_current();
    int strayed = 0;
    pthread_mutex_lock(&c->mutex);
    while (c->unfinished > 0) {
        if (c->queued == 0) {
            pthread_mutex_unlock(&c->mutex);
            sched_yield();
            pthread_mutex_lock(&c->mutex);
            continue;
        }
        int chosen = c->queue[c->head];
        c->head = (c->head + 1) % CROWD;
        c->queued--;
        pthread_mutex_unlock(&c->mutex);

        c->members[chosen].home = home;
        far_context_switch(c->members[chosen].self);
        strayed += far_context_current() != home;

        pthread_mutex_lock(&c->mutex);
        if (c->steps_left[chosen]-- > 0)
            c->queue[(c->head + c->queued++) % CROWD] = chosen;
        else
            c->unfinished--;
    }
    c->strayed += strayed;
    pthread_mutex_unlock(&c->mutex);
    return NULL;
}


static void threads_share_a_crowd_of_coroutines(void **state) {
    (void)state;
    static crowd c = {.mutex = PTHREAD_MUTEX_INITIALIZER, .queued = CROWD, .unfinished = CROWD};
    pthread_t threads[3];
    for (int i = 0; i < CROWD; i++) {
        init_member(&c.members[i], NULL, CROWD_STEPS);
        c.steps_left[i] = CROWD_STEPS;
        c.queue[i] = i;
    }
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, drive_crowd, &c), 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(c.strayed, 0);
    for (int i = 0; i < CROWD; i++) {
        assert_int_equal(c.members[i].sum, c.members[i].expected);
        assert_int_equal(c.members[i].strayed, 0);
        far_context_free(c.members[i].self);
    }
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


static void each_context_is_a_fiber_to_the_thread_sanitizer(void **state) {
    (void)state;
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


/* ---- Cost ---- */

static void go_home_for_ever(void *arg) {
    for (;;)
        far_context_switch(arg);
}


static void many_switches_and_what_they_cost(void **state) {
    (void)state;
    enum { ROUNDS = FAR_TSAN ? 20000 : 500000 };
    struct timespec begin, end;
    far_context *c = far_context_new(STACK_BYTES, go_home_for_ever, far_context_current());
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int i = 0; i < ROUNDS; i++)
        far_context_switch(c);
    clock_gettime(CLOCK_MONOTONIC, &end);
    double ns = (double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec);
    print_message("%.1f ns per switch\n", ns / (2.0 * ROUNDS));
    far_context_free(c);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(switches_run_in_the_order_asked_for),
        cmocka_unit_test(coroutines_switch_to_each_other_and_not_to_their_starter),
        cmocka_unit_test(a_switch_to_oneself_returns_at_once),
        cmocka_unit_test(a_new_stack_is_aligned_as_the_abi_demands),
        cmocka_unit_test(unwinding_ends_at_the_first_frame_of_the_coroutine),
        cmocka_unit_test(all_the_stack_that_was_asked_for_can_be_used),
#if !FAR_ASAN && !FAR_TSAN
        cmocka_unit_test(an_overflow_hits_the_guard_page),
#endif
        cmocka_unit_test(an_entry_that_returns_aborts),
        cmocka_unit_test(a_stack_that_cannot_be_had_gives_null),
        cmocka_unit_test(callee_saved_registers_survive_a_switch),
        cmocka_unit_test(floats_survive_a_switch),
        cmocka_unit_test(a_finished_context_is_reset_and_runs_something_else),
        cmocka_unit_test(a_context_that_never_ran_can_be_reset_or_freed),
        cmocka_unit_test(one_context_serves_many_entries_in_turn),
        cmocka_unit_test(a_coroutine_frees_another_that_exited_to_it),
        cmocka_unit_test(a_stack_dropped_in_the_middle_is_clean_for_the_next),
        cmocka_unit_test(contexts_that_are_gone_hold_no_memory),
        cmocka_unit_test(thousands_of_contexts_live_side_by_side),
        cmocka_unit_test(a_coroutine_moves_from_thread_to_thread),
        cmocka_unit_test(threads_share_a_crowd_of_coroutines),
#if FAR_TSAN
        cmocka_unit_test(each_context_is_a_fiber_to_the_thread_sanitizer),
#endif
        cmocka_unit_test(many_switches_and_what_they_cost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
