/* A session: its tasks, and the scheduler that runs them. The thread inside the session is the scheduler. It delivers
 * completions, wakes sleeping tasks and switches to one ready task after the other. A task that must wait switches back
 * to the scheduler. */
#include "base/error.h"
#include "base/sanitizer.h"
#include "task/call.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if FAR_ASAN || FAR_TSAN
#define STACK_BYTES (4 * FAR_TASK_STACK) /* the sanitizers make stack frames larger, so tasks need larger stacks */
#else
#define STACK_BYTES FAR_TASK_STACK
#endif

#define ENTER_SPINS 100


static far_host *session_host(const far_session *s) {
    return s->conn->fabric->host;
}


/* The ready queue. */

static inline void enqueue_ready_task(far_task *t) {
    far_session *s = t->session;
    assert(t->state != FAR_TASK_READY && s->ready_last != t); /* a task is at most once in the queue */
    t->state = FAR_TASK_READY;
    t->next = NULL;
    if (s->ready_last)
        s->ready_last->next = t;
    else
        s->ready_first = t;
    s->ready_last = t;
}


static far_task *dequeue_ready_task(far_session *s) {
    far_task *t = s->ready_first;
    assert(!t == !s->ready_last);
    if (t) {
        assert(t->state == FAR_TASK_READY);
        s->ready_first = t->next;
        if (!s->ready_first)
            s->ready_last = NULL;
    }
    return t;
}


static uint64_t next_wake_time(const far_session *s) {
    uint64_t next = FAR_TIME_NEVER;
    for (unsigned i = 0; s->sleeping && i < s->task_count; i++)
        if (s->tasks[i]->state == FAR_TASK_WAITING && s->tasks[i]->wake_at < next)
            next = s->tasks[i]->wake_at;
    return next;
}


/* Functions that a task calls to wait, to sleep, and to wake another task. */

static inline bool wait_is_over(const far_task *t, far_wait_for what) {
    if (what == FAR_WAIT_WAITED) /* nearly all waits are for started batches */
        return t->waited == 0;
    switch (what) {
    case FAR_WAIT_ALL:
        return t->waited == 0 && t->unwaited == 0;
    case FAR_WAIT_CONTROL:
        return t->asked == 0;
    default:
        return t->woken;
    }
}


/* Waits for the fabric until something has completed, a wake-up arrives, or the next sleeping task is due. First runs
 * `deferred_call`: a thread that cannot enter the session, because another thread is inside, stores a function there
 * for the thread inside. This is needed because over a network a thread is inside the session nearly all the time. */
static void wait_for_fabric(far_session *s) {
    void (*deferred_call)(far_session *) = atomic_load_explicit(&s->deferred_call, memory_order_relaxed);
    if (deferred_call) {
        atomic_store_explicit(&s->deferred_call, NULL, memory_order_relaxed);
        deferred_call(s);
    }
    s->conn->fabric->ops->wait(s->conn, next_wake_time(s));
}


/* A direct task runs on the stack of the thread inside the session. So this thread itself acts as the scheduler until
 * the task can continue. */
static void schedule_until_ready(far_task *t) {
    far_session *s = t->session;
    while (t->state == FAR_TASK_WAITING)
        if (!far_session_step(s))
            wait_for_fabric(s);
}


static void suspend_task(far_task *t, far_wait_for what) {
    assert(t->state == FAR_TASK_RUNNING);
    t->waits_for = what;
    t->state = FAR_TASK_WAITING;
    if (t->context)
        far_context_switch(t->session->scheduler);
    else
        schedule_until_ready(t);
    t->state = FAR_TASK_RUNNING;
}


void far_task_wait_for(far_task *t, far_wait_for what) {
    while (!wait_is_over(t, what))
        suspend_task(t, what);
}


void far_task_batch_done(far_task *t) {
    if (t->state == FAR_TASK_WAITING && t->waits_for != FAR_WAIT_WAKE && wait_is_over(t, t->waits_for))
        enqueue_ready_task(t);
}


void far_task_block_until(far_task *t, uint64_t time) {
    assert(t->wake_at == FAR_TIME_NEVER);
    if (!t->woken) {
        t->wake_at = time;
        t->session->sleeping += time != FAR_TIME_NEVER;
        suspend_task(t, FAR_WAIT_WAKE);
        t->session->sleeping -= time != FAR_TIME_NEVER;
        t->wake_at = FAR_TIME_NEVER;
    }
    t->woken = false;
}


void far_task_block(far_task *t) {
    far_task_block_until(t, FAR_TIME_NEVER);
}


/* Returns true if the waiting task must drive other sessions itself, because the task for which it waits may be in a
 * session that no thread is inside of. Usually housekeeping drives such sessions. It cannot do so if the waiting task
 * is its own (a task of the system session), or if there is no housekeeping thread. */
static bool must_drive_sessions(const far_task *t) {
    const far_session_list *team = t->session->team;
    return t->session == team->own || far_session_list_is_unattended(team);
}


bool far_task_is_unattended(const far_task *t) {
    return far_session_list_is_unattended(t->session->team);
}


void far_task_await_other(far_task *t) {
    if (!must_drive_sessions(t))
        far_task_block(t);
    else if (far_session_list_drive(t->session->team))
        far_task_block_until(t, far_now(t) + far_rtt(t));
    else
        far_task_block_until(t, far_now(t) + far_tick(far_task_fabric(t)));
}


void far_task_wake(far_task *t) {
    far_session *s = t->session;
    if (atomic_exchange_explicit(&t->wake_queued, true, memory_order_acq_rel))
        return;
    far_task *top = atomic_load_explicit(&s->woken, memory_order_relaxed);
    do {
        t->woken_next = top;
    } while (!atomic_compare_exchange_weak_explicit(&s->woken, &top, t, memory_order_release, memory_order_relaxed));
    session_host(s)->ops->unpark(session_host(s), &s->parker);
}


void far_yield(far_task *t) {
    assert(t->state == FAR_TASK_RUNNING);
    enqueue_ready_task(t);
    if (t->context)
        far_context_switch(t->session->scheduler);
    else
        far_session_step(t->session);
    t->state = FAR_TASK_RUNNING;
}


void far_sleep(far_task *t, uint64_t ns) {
    uint64_t until = far_now(t) + ns;
    bool woken = false;
    while (far_now(t) < until) {
        far_task_block_until(t, until);
        woken |= far_now(t) < until;
    }
    t->woken |= woken; /* keep the wake-up, because it was meant for a later wait of this task */
}


void far_back_off_for(far_task *t, uint64_t ns) {
    /* The lock that the task waits for may be held by a task that only this thread can drive. */
    if (must_drive_sessions(t))
        far_session_list_drive(t->session->team);
    far_sleep(t, ns / 2 + far_random_below(&t->session->random, ns));
}


void far_back_off(far_task *t, unsigned attempt) {
    far_back_off_for(t, far_rtt(t) << (attempt < 6 ? attempt : 6));
}


/* Creating and running tasks. */

static void task_main(void *arg) {
    far_task *t = arg;
    for (;;) {
        t->state = FAR_TASK_RUNNING;
        t->run(t, t->arg);
        far_task_end(t);
        far_context_switch(t->session->scheduler);
    }
}


/* Creates a task. Returns NULL if memory is short. `direct` means that the task has no stack of its own and runs on the
 * stack of the thread inside the session. */
static far_task *new_task(far_session *s, bool direct) {
    if (s->task_count == FAR_TASKS_MAX)
        return NULL;
    far_task *t = calloc(1, sizeof(*t));
    if (!t)
        return NULL;
    t->session = s;
    t->wake_at = FAR_TIME_NEVER;
    t->number = (uint8_t)s->task_count;
    t->context = direct ? NULL : far_context_new(STACK_BYTES, task_main, t);
    if (!direct && !t->context) {
        free(t);
        return NULL;
    }
    if (!direct)
        far_context_set_words(t->context, t->words);
    s->tasks[s->task_count++] = t;
    return t;
}


bool far_session_prepare(far_session *s) {
    far_task *t = s->free_tasks ? s->free_tasks : new_task(s, false);
    if (!t)
        return false;
    if (t != s->free_tasks) {
        t->state = FAR_TASK_FREE;
        t->next = s->free_tasks;
        s->free_tasks = t;
    }
    return true;
}


far_task *far_task_new(far_session *s, unsigned kind, void (*run)(far_task *t, void *arg), void *arg) {
    far_task *t = s->free_tasks;
    if (t)
        s->free_tasks = t->next;
    else if (!(t = new_task(s, false)))
        return NULL;
    t->run = run;
    t->arg = arg;
    t->words[0] = '\0';
    far_task_begin(t, kind);
    enqueue_ready_task(t);
    return t;
}


typedef struct spawned_work {
    void (*run)(far_task *t, void *arg);
    _Alignas(16) char arg[];
} spawned_work;


static void run_spawned(far_task *t, void *arg) {
    spawned_work *work = arg;
    if (work)
        work->run(t, work->arg);
    assert(t->session->spawned > 0);
    t->session->spawned--;
}


bool far_spawn(far_task *t, void (*run)(far_task *t, void *arg), const void *arg, size_t bytes) {
    far_session *s = t->session;
    far_task *made = NULL;
    if (s->spawned < FAR_SPAWN_MAX)
        made = far_task_new(s, (unsigned)(t->stats - s->stats), run_spawned, NULL);
    if (!made)
        return false;
    s->spawned++;
    spawned_work *work = far_scratch(made, sizeof(*work) + bytes);
    made->background = true;
    made->label = t->label;
    made->index_key = t->index_key;
    made->lost = t->lost;
    made->arg = work;
    if (!work) /* the task was created already, so without memory for `work` it runs, does nothing, and ends */
        return false;
    work->run = run;
    if (bytes)
        __builtin_memcpy(work->arg, arg, bytes);
    far_pin_share(t, made);
    return true;
}


/* The scheduler. */

/* Makes the tasks ready that were woken by any thread. The stack is reversed first, so that the tasks run in the order
 * in which they were woken. */
static bool collect_woken_tasks(far_session *s) {
    /* a wake-up that is added after this load also unparks this thread, so it is not lost */
    if (!atomic_load_explicit(&s->woken, memory_order_relaxed))
        return false;
    far_task *top = atomic_exchange_explicit(&s->woken, NULL, memory_order_acquire), *first = NULL;
    while (top) {
        far_task *below = top->woken_next;
        top->woken_next = first;
        first = top;
        top = below;
    }
    bool any = first != NULL;
    while (first) {
        far_task *t = first;
        first = t->woken_next;
        assert(t->session == s);
        atomic_store_explicit(&t->wake_queued, false, memory_order_release);
        t->woken = true;
        if (t->state == FAR_TASK_WAITING && t->waits_for == FAR_WAIT_WAKE)
            enqueue_ready_task(t);
    }
    return any;
}


static void wake_expired_sleepers(far_session *s) {
    if (!s->sleeping)
        return;
    uint64_t now = far_host_now(session_host(s));
    for (unsigned i = 0; i < s->task_count; i++)
        if (s->tasks[i]->state == FAR_TASK_WAITING && s->tasks[i]->wake_at <= now)
            enqueue_ready_task(s->tasks[i]);
}


bool far_session_step(far_session *s) {
    s->scheduler = far_context_current();
    collect_woken_tasks(s);
    s->conn->fabric->ops->poll(s->conn);
    wake_expired_sleepers(s);
    far_task *last = s->ready_last; /* tasks that become ready during this step wait for the next step */
    if (!last)
        return false;
    far_task *t;
    do {
        t = dequeue_ready_task(s);
        if (t->context) /* a direct task continues when this step has returned */
            far_context_switch(t->context);
    } while (t != last && s->ready_first);
    return true;
}


void far_session_run_until(far_session *s, const bool *condition) {
    while (!*condition)
        if (!far_session_step(s) && !*condition)
            wait_for_fabric(s);
}


void far_session_drain(far_session *s) {
    while (atomic_load_explicit(&s->active, memory_order_relaxed))
        if (!far_session_step(s))
            wait_for_fabric(s);
}


/* Entering a session. */

void far_session_wait_to_enter(far_session *s) {
    for (unsigned spins = 1; !far_session_try_enter(s); spins++)
        if (spins >= ENTER_SPINS) {
            far_parker parker = {0};
            session_host(s)->ops->park(session_host(s), &parker, far_host_now(session_host(s)) + 1000);
        }
}


/* Synchronous calls. */

typedef struct synchronous_call {
    int (*run)(far_task *t, void *arg);
    void *arg;
    bool background;
    int result;
    bool done;
    char words[FAR_MESSAGE_BYTES]; /* error message of the call, or "" */
} synchronous_call;


static void run_call(far_task *t, void *arg) {
    synchronous_call *c = arg;
    t->background = c->background;
    c->result = c->run(t, c->arg);
    strcpy(c->words, c->result < 0 ? t->words : "");
    c->done = true; /* the caller may now continue, so `c` must not be used any more */
}


static __attribute__((noinline)) int call_on_coroutine(far_session *s, unsigned kind, bool background,
                                                       int (*run)(far_task *t, void *arg), void *arg) {
    synchronous_call c = {.run = run, .arg = arg, .background = background};
    while (!far_task_new(s, kind, run_call, &c)) {
        if (s->task_count < FAR_TASKS_MAX && !s->free_tasks &&
            atomic_load_explicit(&s->active, memory_order_relaxed) == 0)
            return far_fail(FAR_ERR_NO_MEMORY, "no memory for a coroutine");
        if (!far_session_step(s))
            wait_for_fabric(s);
    }
    far_session_run_until(s, &c.done);
    return c.words[0] ? far_fail(c.result, "%s", c.words) : c.result;
}


int far_session_call_first(far_session *s, unsigned kind, bool background, int (*run)(far_task *t, void *arg),
                           void *arg) {
    if (s->conn->fabric->at_once)
        s->direct = new_task(s, true);
    far_task *t = far_call_begin(s, kind, background);
    if (!t)
        return call_on_coroutine(s, kind, background, run, arg);
    int result = run(t, arg);
    far_task_end(t);
    return result;
}


int far_session_call(far_session *s, unsigned kind, bool background, int (*run)(far_task *t, void *arg), void *arg) {
    far_session_enter(s);
    far_task *t = far_call_begin(s, kind, background);
    return far_call_end(s, t, t ? run(t, arg) : far_session_call_first(s, kind, background, run, arg));
}


void far_session_lose(far_session *s, int status) {
    if (s->lost)
        return;
    s->lost = FAR_ERR_FENCED;
    const char *gone = atomic_load_explicit(&s->conn->fabric->gone, memory_order_acquire);
    if (!gone && s->conn->gone) {
        snprintf(s->gone_text, sizeof(s->gone_text), "%s", s->conn->gone);
        gone = s->gone_text;
    }
    atomic_store_explicit(&s->gone, gone, memory_order_release);
    atomic_store_explicit(&s->pins.stuck, true, memory_order_seq_cst);
    for (unsigned i = 0; i < s->task_count; i++)
        if (s->tasks[i]->state != FAR_TASK_FREE)
            s->tasks[i]->lost = status;
    s->conn->fabric->ops->fence_self(s->conn);
}


int far_fail_session_lost(const far_session *s, int err) {
    const char *gone = atomic_load_explicit(&s->gone, memory_order_acquire);
    if (err == FAR_ERR_UNREACHABLE)
        return far_fail(err, "%s; the session is lost", gone ? gone : "a memory node does not answer");
    if (err == FAR_ERR_FENCED)
        return far_fail(
            err, "the session is lost: %s",
            gone ? gone : "it was declared dead, or a memory node did not answer it; close it and open another one");
    return err;
}


/* Creating and freeing sessions. */

int far_session_new(far_fabric *fabric, far_session_list *team, far_session **session) {
    far_session *s = calloc(1, sizeof(*s));
    if (!s)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a session");
    s->team = team;
    s->capabilities = &fabric->capabilities;
    int err = fabric->ops->connect(fabric, &s->parker, &s->conn);
    if (err) {
        free(s);
        return err;
    }
    uint64_t seed;
    fabric->host->ops->secret(fabric->host, &seed, sizeof(seed));
    far_random_seed(&s->random, seed);
    *session = s;
    return 0;
}


void far_session_free(far_session *s) {
    assert(atomic_load_explicit(&s->active, memory_order_relaxed) == 0);
    if (s->conn) /* NULL if the pool was closed before the session */
        s->conn->fabric->ops->disconnect(s->conn);
    for (unsigned i = 0; i < s->task_count; i++) {
        far_release_open_box(s->tasks[i]);
        far_scratch_back(s->tasks[i], (far_scratch_mark){NULL, 0});
        far_context_free(s->tasks[i]->context);
        free(s->tasks[i]);
    }
    far_boxes_free(s);
    far_scratch_free(s);
    free(s);
}
