/* Inside a session: its tasks, the scheduler that runs them, its connection and its counters. Private to the library:
 * index code sees task.h only. */
#ifndef FAR_TASK_SESSION_H
#define FAR_TASK_SESSION_H

#include "base/coroutine.h"
#include "base/error.h"
#include "base/random.h"
#include "task/latch.h"
#include "task/patience.h"
#include "task/pin.h"
#include "task/task.h"
#include "task/team.h"

#include <assert.h>
#include <pthread.h>

#define FAR_STATS_KINDS 7 /* far_op_kind, then work that belongs to no operation */
#define FAR_STATS_OTHER 6

/* A batch with room for verbs, taken from a session's list. */
typedef struct far_batch_box {
    far_batch batch; /* first: the fabric gives this back */
    uint32_t capacity, fences;
    bool waited;
    bool atomics; /* holds some */
    struct far_batch_box *next;
} far_batch_box;

typedef enum { FAR_TASK_FREE, FAR_TASK_READY, FAR_TASK_RUNNING, FAR_TASK_WAITING } far_task_state;
typedef enum {
    FAR_WAIT_WAITED,
    FAR_WAIT_ALL,
    FAR_WAIT_ANSWERS,
    FAR_WAIT_WAKE
} far_wait_for; /* started batches; unwaited ones too; answers to questions; a wake-up */

#define FAR_SCRATCH_BYTES (32 * 1024) /* of a usual chunk */

typedef struct far_scratch_chunk {
    struct far_scratch_chunk *below; /* filled before this one */
    size_t size, used;
    _Alignas(64) char data[];
} far_scratch_chunk;

struct far_task {
    far_session *session;
    far_context *context; /* NULL: a direct task, on the stack of the thread that is inside */
    uint8_t number;
    far_task_state state;
    far_task *next; /* in the ready queue, or the free list */
    void (*run)(far_task *t, void *arg);
    void *arg;

    far_batch_box *open;       /* verbs put, not posted; empty ones stay with the task */
    unsigned waited, unwaited; /* batches in flight */
    unsigned asked;            /* questions in flight */
    unsigned trips;            /* round trips of what was started since the last wait */

    unsigned retries;       /* of the operation so far */
    far_patience *patience; /* NULL: it has not retried often yet */

    far_pin pin;
    uint32_t rest_request; /* that stood when it began to rest: it rests until another request is made */

    int refused; /* why the open batch must not be posted. From here to `stats` all is zero when a task begins */
    int error;   /* of a batch that completed since the last wait */
    int lost;    /* what this task is told of the loss of its session */
    uint32_t index_key;
    const char *label;
    uint64_t rest_since; /* pool/epoch.h: when a walk in the background last rested; 0: it need not rest */
    bool background;
    bool added; /* far_note_added */
    bool swaps; /* the task retires an object for each that it allocates: an update */
    bool woken; /* a wake-up came while the task did not wait for one */

    far_stats *stats;
    char words[FAR_MESSAGE_BYTES]; /* its last failure; a direct task's are its thread's */

    far_wait_for waits_for;  /* while waiting */
    uint64_t wake_at;        /* waiting for a wake-up: until then; FAR_TIME_NEVER otherwise */
    atomic_bool wake_queued; /* the task stands in the session's stack of woken tasks */
    far_task *woken_next;

    far_scratch_chunk *chunk; /* of scratch memory; the first one stays with the task when an operation ends */

    struct far_rdwc_member *rdwc; /* index/rdwc.c: set while the task leads a round */
    unsigned latched;             /* how many of `latches` it holds */
    far_latch_hold latches[FAR_LATCHES_HELD_MAX];
};

#define FAR_COUNTED_INDEXES 16 /* that a handle opened first: operations on them are told one by one */

typedef struct far_index_ops { /* operations on one index */
    uint32_t uid, unused;
    uint64_t ops[FAR_OP_SCAN + 1];
} far_index_ops;

struct far_session {
    far_pool *pool; /* for the layers above: nothing in src/task looks into it */
    far_team *team;
    const far_capabilities *capabilities; /* of the pool: what all its nodes have */
    far_conn *conn;
    unsigned id, generation;      /* 0: not registered yet */
    int lost;                     /* FAR_ERR_FENCED once a verb of the session failed; every later verb fails too */
    _Atomic(const char *) gone;   /* why it is lost, in the words of the fabric; NULL: the fabric does not know */
    char gone_text[FAR_GONE_MAX]; /* a copy of `gone` where the connection has the words, which end with it */

    atomic_int entered;                      /* 1: a thread runs the session: the user's, or housekeeping */
    _Atomic(void (*)(far_session *)) errand; /* for the thread inside, when it next waits for the fabric; NULL: none */
    far_parker parker;
    far_context *scheduler; /* of the thread that is inside */

    far_task *tasks[FAR_TASKS_MAX];
    unsigned task_count; /* made so far */
    far_task *free_tasks;
    far_task *direct; /* for synchronous calls where no verb is ever under way; NULL: none */
    far_task *ready_first, *ready_last;
    _Atomic(far_task *) woken; /* stack of tasks woken from anywhere */
    atomic_uint active;        /* tasks that are not free; housekeeping looks at it too */
    unsigned sleeping;         /* tasks with a wake_at */
    unsigned spawned;          /* tasks that far_spawn made and that have not ended */

    far_batch_box *free_boxes;
    far_scratch_chunk *free_chunks;
    struct far_op_runs *ops; /* client/submit.c: operations submitted and not reaped */

    far_session_pins pins;     /* pool/epoch.h */
    struct far_memory *memory; /* pool/alloc.h: what it holds of far memory */

    far_random random;
    far_stats stats[FAR_STATS_KINDS];
    far_stats told; /* the part of their sum that its handle has added up (client/bulletin.c) */
    far_index_ops by_index[FAR_COUNTED_INDEXES];
    atomic_bool closing;
    atomic_uint calls; /* API calls inside (pool/handle.h: far_call_enter) */
    unsigned visitors; /* housekeeping looks at it: not to be freed; under the pool's lock */
    far_session *next; /* in the pool's list */
};

/* Pins. The counts of a session change only inside it (far_pins_settle: when it is lost, and changes them no more). */
static inline void far_pins_add(far_session *s, uint64_t epoch) {
    atomic_uint *held = &s->pins.held[epoch & 1];
    atomic_store_explicit(held, atomic_load_explicit(held, memory_order_relaxed) + 1, memory_order_seq_cst);
}


void far_pin_date(far_task *t); /* by the fabric's watch */


/* The task, which holds none, holds one at that epoch. */
static inline void far_pin_count(far_task *t, uint64_t epoch) {
    assert(t->pin.epoch == 0 && epoch != 0);
    t->pin.epoch = epoch;
    if (t->session->conn->fabric->watch)
        far_pin_date(t);
    far_pins_add(t->session, epoch);
}


static inline void far_pin_uncount(far_task *t) {
    atomic_uint *held = &t->session->pins.held[t->pin.epoch & 1];
    assert(t->pin.epoch != 0 && atomic_load_explicit(held, memory_order_relaxed) > 0);
    atomic_store_explicit(held, atomic_load_explicit(held, memory_order_relaxed) - 1, memory_order_release);
    t->pin = (far_pin){0, 0};
}


/* For asserts. */
static inline bool far_latch_is_held(const far_task *t, far_addr addr) {
    for (unsigned i = 0; i < FAR_LATCHES_HELD_MAX; i++)
        if (t->latches[i].addr == addr && t->latches[i].granted)
            return true;
    return false;
}


/* Session life below the API: makes a session with a connection, not yet registered with the pool. */
int far_session_new(far_fabric *fabric, far_team *team, far_session **session);
void far_session_free(far_session *s); /* no task is active */

/* Entering: one thread at a time, waits for housekeeping to leave. */
void far_session_wait_to_enter(far_session *s);


static inline bool far_session_try_enter(far_session *s) {
    int out = 0;
    return atomic_compare_exchange_strong_explicit(&s->entered, &out, 1, memory_order_acquire, memory_order_relaxed);
}


static inline void far_session_enter(far_session *s) {
    if (!far_session_try_enter(s))
        far_session_wait_to_enter(s);
}


static inline void far_session_leave(far_session *s) {
    assert(atomic_load_explicit(&s->entered, memory_order_relaxed) == 1);
    atomic_store_explicit(&s->entered, 0, memory_order_release);
}


/* Inside: */
/* A task that is ready to run; kind: whose counters (a far_op_kind, or FAR_STATS_OTHER). NULL: too many, or no memory.
 */
far_task *far_task_new(far_session *s, unsigned kind, void (*run)(far_task *t, void *arg), void *arg);
/* Makes sure that it has a coroutine, so that a call that must not fail finds one, if not at once. False: no memory. */
bool far_session_prepare(far_session *s);
bool far_session_step(far_session *s); /* completions, wake-ups, ready tasks; false: nothing was to be done */
void far_session_run_until(far_session *s, const bool *condition); /* steps and waits */
void far_session_drain(far_session *s);                            /* until no task is active */

/* Enters, runs one function as a task to its end, leaves: how synchronous calls and housekeeping use tasks. */
int far_session_call(far_session *s, unsigned kind, bool background, int (*run)(far_task *t, void *arg), void *arg);

void far_session_lose(far_session *s, int status);   /* a verb failed: fences itself */
int far_session_tell(const far_session *s, int err); /* words for why it is lost, if err says that it is; returns err */

/* Asks the fabric (fabric.h: claim, is_dead, evict); the task waits for the answer. */
int far_ask(far_task *t, far_question_kind kind, unsigned id, unsigned generation);
/* As far_ask, with many questions at once; each gets its answer. Where an answer needs no round trip they are asked one
 * by one. */
void far_ask_all(far_task *t, far_question *questions, unsigned count);

/* Between batch.c, scratch.c and session.c. */
void far_task_wait_for(far_task *t, far_wait_for what); /* switches to the scheduler unless it is there already */
void far_task_batch_done(far_task *t);
/* As far_task_block, for a task that waits for one of another session, which perhaps nobody drives but this thread. */
void far_task_await_other(far_task *t);
void far_box_back(far_task *t); /* the open batch is given up */
void far_boxes_free(far_session *s);
void far_scratch_shrink(far_task *t); /* to the chunk that stays with the task */
void far_scratch_free(far_session *s);


static inline void far_scratch_empty(far_task *t) { /* when the task ends */
    if (t->chunk->below || t->chunk->size != FAR_SCRATCH_BYTES)
        far_scratch_shrink(t);
    else
        t->chunk->used = 0;
}


#endif
