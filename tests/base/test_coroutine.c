/* Coroutines (base/coroutine.h): the order of execution, finishing and resetting, thousands of contexts, and several
 * threads. */
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#include "base/coroutine.h"
#include "base/random.h"
#include "base/sanitizer.h"
#include "test.h"

/* A failed assertion jumps to the stack of the test. So coroutines only record results, and the tests assert on their
 * own stack. */

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


static void append_char(trace *t, char c) {
    if (t->length + 1 < sizeof t->text)
        t->text[t->length++] = c;
}


/* Appends its name and switches to `next`, `rounds` times. Then it appends its name in capitals and exits to `last`. */
static void visit_next(void *arg) {
    walker *w = arg;
    w->seen = far_context_current();
    for (int i = 0; i < w->rounds; i++) {
        append_char(w->trace, w->name);
        far_context_switch(w->next);
    }
    append_char(w->trace, (char)(w->name - 'a' + 'A'));
    far_context_exit(w->last);
}


static void make_walker(walker *w, trace *t, char name, int rounds, far_context *next, far_context *last) {
    *w = (walker){.next = next, .last = last, .trace = t, .name = name, .rounds = rounds};
    w->self = far_context_new(STACK_BYTES, visit_next, w);
    assert_non_null(w->self);
}


/* A switch runs the chosen coroutine until it switches back, in any order. */
TEST(switches_run_in_the_order_asked_for) {
    trace t = {.length = 0};
    walker a, b;
    far_context *home = far_context_current();
    make_walker(&a, &t, 'a', 2, home, home);
    make_walker(&b, &t, 'b', 2, home, home);
    assert_string_equal(t.text, "");

    far_context *order[] = {a.self, b.self, b.self, a.self, a.self, b.self};
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        far_context_switch(order[i]);
        append_char(&t, '.');
        assert_ptr_equal(far_context_current(), home);
    }
    assert_string_equal(t.text, "a.b.b.a.A.B.");
    assert_ptr_equal(a.seen, a.self);
    assert_ptr_equal(b.seen, b.self);
    far_context_free(a.self);
    far_context_free(b.self);
}


/* Three coroutines switch to each other in a ring, without the context that has started them. */
TEST(coroutines_switch_to_each_other_and_not_to_their_starter) {
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


/* A switch to the running context returns at once. */
TEST(a_switch_to_oneself_returns_at_once) {
    trace t = {.length = 0};
    walker a;
    make_walker(&a, &t, 'a', 3, NULL, far_context_current());
    a.next = a.self;
    far_context_switch(a.self);
    assert_string_equal(t.text, "aaaA");
    far_context_switch(far_context_current());
    far_context_free(a.self);
}


/* ---- Finishing, resetting and freeing ---- */

/* A finished context can be reset, and runs its new entry on the same stack. */
TEST(a_finished_context_is_reset_and_runs_something_else) {
    trace t = {.length = 0};
    walker a, b;
    far_context *home = far_context_current();
    make_walker(&a, &t, 'a', 1, home, home);
    far_context_switch(a.self);
    far_context_switch(a.self);
    b = a;
    b.name = 'b';
    far_context_reset(a.self, visit_next, &b);
    far_context_switch(a.self);
    far_context_switch(a.self);
    assert_string_equal(t.text, "aAbB");
    far_context_free(a.self);
}


/* A context that never ran can be reset or freed without running its entry. */
TEST(a_context_that_never_ran_can_be_reset_or_freed) {
    trace t = {.length = 0};
    walker a, b;
    far_context *home = far_context_current();
    make_walker(&a, &t, 'a', 0, home, home);
    b = a;
    b.name = 'b';
    far_context_reset(a.self, visit_next, &b);
    far_context_switch(a.self);
    assert_string_equal(t.text, "B");
    far_context_reset(a.self, visit_next, &a);
    far_context_free(a.self);
    far_context_free(NULL);
    assert_string_equal(t.text, "B");
}


/* A context can be reset many times. */
TEST(one_context_serves_many_entries_in_turn) {
    enum { TIMES = FAR_TSAN ? 2000 : 100000 };
    far_context *home = far_context_current();
    walker w = {.next = home, .last = home, .trace = &(trace){.length = 0}, .name = 'a', .rounds = 1};
    far_context *c = far_context_new(STACK_BYTES, visit_next, &w);
    for (int i = 0; i < TIMES; i++) {
        w.trace->length = 0;
        far_context_switch(c);
        far_context_switch(c);
        assert_int_equal(w.trace->length, 2);
        far_context_reset(c, visit_next, &w);
    }
    far_context_free(c);
}


/* Frees the context that has exited to this one. */
static void free_exited(void *arg) {
    walker *w = arg;
    far_context_switch(w->next);
    far_context_free(w->next);
    append_char(w->trace, 'x');
    far_context_exit(w->last);
}


/* A coroutine may free another one that has exited to it. */
TEST(a_coroutine_frees_another_that_exited_to_it) {
    trace t = {.length = 0};
    walker a;
    make_walker(&a, &t, 'a', 0, NULL, NULL);
    walker b = {.next = a.self, .last = far_context_current(), .trace = &t};
    b.self = far_context_new(STACK_BYTES, free_exited, &b);
    a.last = b.self;
    far_context_switch(b.self);
    assert_string_equal(t.text, "Ax");
    far_context_free(b.self);
}


typedef struct member {
    far_context *self, *home;
    uint64_t sum, expected;
    int steps, strayed;
} member;


/* Computes a sum and switches to `home` in each step, so that wrong registers or stacks change the result. */
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


/* Thousands of coroutines that are switched in random order keep their own stacks. */
TEST(thousands_of_contexts_live_side_by_side) {
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


/* The compiler assumes that pthread_self is constant within a function, so this function is not inlined. */
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


/* A coroutine can be resumed by other threads, and the contexts of the threads stay correct. */
TEST(a_coroutine_moves_from_thread_to_thread) {
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


enum { MEMBERS_IN_QUEUE = 64, QUEUE_STEPS = FAR_TSAN ? 200 : 2000 };

typedef struct member_queue {
    pthread_mutex_t mutex;
    member members[MEMBERS_IN_QUEUE];
    int steps_left[MEMBERS_IN_QUEUE];
    int queue[MEMBERS_IN_QUEUE], head, queued, unfinished, strayed;
} member_queue;


/* Runs members of the queue until all have finished. */
static void *run_members(void *arg) {
    member_queue *c = arg;
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
        c->head = (c->head + 1) % MEMBERS_IN_QUEUE;
        c->queued--;
        pthread_mutex_unlock(&c->mutex);

        c->members[chosen].home = home;
        far_context_switch(c->members[chosen].self);
        strayed += far_context_current() != home;

        pthread_mutex_lock(&c->mutex);
        if (c->steps_left[chosen]-- > 0)
            c->queue[(c->head + c->queued++) % MEMBERS_IN_QUEUE] = chosen;
        else
            c->unfinished--;
    }
    c->strayed += strayed;
    pthread_mutex_unlock(&c->mutex);
    return NULL;
}


/* Three threads resume the same 64 coroutines in turn. */
TEST(threads_share_many_coroutines) {
    static member_queue c = {
        .mutex = PTHREAD_MUTEX_INITIALIZER, .queued = MEMBERS_IN_QUEUE, .unfinished = MEMBERS_IN_QUEUE};
    pthread_t threads[3];
    for (int i = 0; i < MEMBERS_IN_QUEUE; i++) {
        init_member(&c.members[i], NULL, QUEUE_STEPS);
        c.steps_left[i] = QUEUE_STEPS;
        c.queue[i] = i;
    }
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run_members, &c), 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(c.strayed, 0);
    for (int i = 0; i < MEMBERS_IN_QUEUE; i++) {
        assert_int_equal(c.members[i].sum, c.members[i].expected);
        assert_int_equal(c.members[i].strayed, 0);
        far_context_free(c.members[i].self);
    }
}


/* ---- Cost ---- */

static unsigned visits;

static void switch_back_for_ever(void *arg) {
    for (;; visits++)
        far_context_switch(arg);
}


/* Prints the time per switch, after many switches between two contexts. */
TEST(many_switches_and_what_they_cost) {
    enum { ROUNDS = FAR_TSAN ? 20000 : 500000 };
    struct timespec begin, end;
    visits = 0;
    far_context *c = far_context_new(STACK_BYTES, switch_back_for_ever, far_context_current());
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (int i = 0; i < ROUNDS; i++)
        far_context_switch(c);
    clock_gettime(CLOCK_MONOTONIC, &end);
    double ns = (double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec);
    print_message("%.1f ns per switch\n", ns / (2.0 * ROUNDS));
    assert_int_equal(visits, ROUNDS - 1); /* the last visit has not returned from its switch yet */
    far_context_free(c);
}
