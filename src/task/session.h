/* The inside of a session: its tasks, the scheduler that runs them, its connection and its counters. Private to the
 * library; index code includes only task.h. A thread must be inside a session (far_session_enter) to use it. */
#ifndef FAR_TASK_SESSION_H
#define FAR_TASK_SESSION_H

#include "base/coroutine.h"
#include "base/error.h"
#include "base/random.h"
#include "task/latch.h"
#include "task/pin.h"
#include "task/progress.h"
#include "task/session_list.h"
#include "task/task.h"

#include <assert.h>
#include <pthread.h>

#define FAR_STATS_KINDS 7 /* one per far_op_kind, and one for work that belongs to no operation */
#define FAR_STATS_OTHER 6

/* A batch buffer: a batch with room for verbs. Empty boxes are kept in a list of the session. */
typedef struct far_batch_box {
    /* must be the first field, because the fabric returns a pointer to the batch, which is cast to the box */
    far_batch batch;
    uint32_t capacity, fences;
    bool waited;
    bool atomics; /* the batch contains CAS or FAA verbs */
    struct far_batch_box *next;
} far_batch_box;

typedef enum { FAR_TASK_FREE, FAR_TASK_READY, FAR_TASK_RUNNING, FAR_TASK_WAITING } far_task_state;
/* What a waiting task waits for. */
typedef enum {
    FAR_WAIT_WAITED, /* the task waits until its started batches have completed */
    FAR_WAIT_ALL, /* the task waits until all its batches have completed, also those that were posted without waiting */
    FAR_WAIT_CONTROL, /* the task waits until the replies to its control messages have arrived */
    FAR_WAIT_WAKE     /* the task waits until another task or thread wakes it */
} far_wait_for;

/* Which of the next pins of an operation are not refused although it has waited long. An operation that waits for
 * memory, or for another client's drop, has an error of its own for the case that a stalled client holds it up. */
typedef enum { FAR_SPARE_NO_PIN, FAR_SPARE_NEXT_PIN, FAR_SPARE_PINS } far_pin_sparing;

#define FAR_SCRATCH_BYTES (32 * 1024) /* data bytes of a regular chunk of scratch memory */

typedef struct far_scratch_chunk {
    struct far_scratch_chunk *below; /* the chunk that was filled before this one */
    size_t size, used;
    _Alignas(64) char data[];
} far_scratch_chunk;

struct far_task {
    far_session *session;
    far_context *context; /* NULL for a direct task, which runs on the stack of the thread inside the session */
    uint8_t number;
    far_task_state state;
    far_task *next; /* next task in the ready queue or in the free list */
    void (*run)(far_task *t, void *arg);
    void *arg;

    far_batch_box *open; /* buffer of the verbs that were added and not posted; an empty buffer stays with the task */
    unsigned waited, unwaited; /* batches in flight that the task waits for, and that it does not wait for */
    unsigned asked;            /* number of control messages in flight (see FAR_WAIT_CONTROL) */
    unsigned trips;            /* number of round trips of the batches started since the last wait */

    unsigned retries;       /* number of retries of the current operation */
    far_progress *patience; /* progress detector; NULL until the task has retried often */

    far_pin pin;
    /* Number of the newest request of another client when this background traversal began to pause. The traversal
     * pauses until a newer request is made (pool/epoch/epoch.h). */
    uint32_t rest_request;

    /* The last time at which the operation is known to have waited for other clients or other operations of its handle;
     * only valid if `waits_since` is not 0. */
    uint64_t waits_until;

    /* Error code that explains why the open batch must not be posted, or 0. All fields from this one up to `stats` are
     * 0 when a task begins. They are few, because every operation clears them (far_task_begin in task/call.h). */
    int refused;
    int error; /* error of a batch that has completed since the last wait */
    int lost;  /* error code that every wait of this task returns after its session was lost; 0: not lost */
    uint32_t index_key;
    const char *label;
    /* Since when the operation waits for other clients or other operations of its handle (pool/epoch/stalled.h); 0: it
     * has not waited. */
    uint64_t waits_since;
    /* Time when this background traversal last paused; 0: the traversal need not pause (pool/epoch/epoch.h). */
    uint64_t rest_since;
    /* size of the last object for which no memory was found; 0 if that allocation was allowed to use the headroom */
    uint64_t missed_bytes;
    bool has_waited;     /* the operation has waited since it took its previous pin */
    bool many_waits;     /* the task is a collection or a check: each of its waits has a time of its own */
    uint8_t pin_sparing; /* a far_pin_sparing */
    bool background;
    bool added; /* set by far_note_added: true if the current put adds a key */
    /* the task may take memory from the headroom of a full pool, because it executes an update or a delete */
    bool uses_headroom;
    /* a wake-up arrived while the task was not waiting for one, so its next far_task_block returns at once */
    bool woken;

    far_stats *stats;
    /* Message of the last failure of the task; a direct task uses the buffer of its thread instead. */
    char words[FAR_MESSAGE_BYTES];

    far_wait_for waits_for; /* what the task waits for; valid while its state is FAR_TASK_WAITING */
    /* deadline of the wait: at this time the task is woken if no other wake-up came before; FAR_TIME_NEVER: no
     * deadline */
    uint64_t wake_at;
    atomic_bool wake_queued; /* the task is in the session's stack of woken tasks */
    far_task *woken_next;

    /* Newest chunk of scratch memory; one regular chunk stays with the task when an operation ends. */
    far_scratch_chunk *chunk;

    /* set by index/common/rdwc.c while the task executes an operation on behalf of several tasks (RDWC) */
    struct far_rdwc_member *rdwc;
    unsigned latched; /* number of used elements of `latches` */
    far_latch_hold latches[FAR_LATCHES_HELD_MAX];
};

/* Number of indexes per handle with separate operation counts: those that were opened first. */
#define FAR_COUNTED_INDEXES 16

typedef struct far_index_ops { /* operation counts of one index */
    uint32_t uid, unused;
    uint64_t ops[FAR_OP_SCAN + 1];
} far_index_ops;

struct far_session {
    far_pool *pool; /* used by the layers above; src/task never dereferences it */
    far_session_list *team;
    const far_capabilities *capabilities; /* capabilities that all memory nodes of the pool have */
    far_conn *conn;
    unsigned id, generation; /* identity of the client in the registry of the pool; id 0: not registered yet */
    int lost; /* FAR_ERR_FENCED after a verb of the session has failed; then every later verb fails too */
    _Atomic(const char *) gone;     /* message of the fabric that says why the session is lost; NULL: unknown */
    char gone_text[FAR_REASON_MAX]; /* copy of that message if it belongs to the connection, which is freed earlier */

    atomic_int entered; /* 1 while a thread is inside: a thread of the user, or housekeeping */
    /* Function that another thread has left for the thread inside the session, which calls it when it next waits for
     * the fabric; NULL: none. */
    _Atomic(void (*)(far_session *)) deferred_call;
    far_parker parker;
    far_context *scheduler; /* context of the thread that is inside the session; tasks switch back to it */

    far_task *tasks[FAR_TASKS_MAX];
    unsigned task_count; /* number of tasks created so far */
    far_task *free_tasks;
    far_task *direct; /* task for synchronous calls on fabrics that execute verbs at once; NULL: none */
    far_task *ready_first, *ready_last;
    _Atomic(far_task *) woken; /* stack of the tasks that were woken by any thread */
    atomic_uint active;        /* number of tasks that are not free; housekeeping reads it too */
    unsigned sleeping;         /* number of tasks with a finite wake_at */
    unsigned spawned;          /* number of unfinished tasks that far_spawn created */

    far_batch_box *free_boxes;
    far_scratch_chunk *free_chunks;
    struct far_op_table *ops; /* operations that were submitted and not reaped (client/submit.c) */

    far_session_pins pins;     /* pin counts; the rules for pins are in pool/epoch/epoch.h */
    struct far_memory *memory; /* far memory that the session owns (pool/alloc/alloc.h) */

    far_random random;
    far_stats stats[FAR_STATS_KINDS];
    /* the part of `stats`, summed over all kinds, that the handle has already added to its status record
     * (client/status.c) */
    far_stats told;
    far_index_ops by_index[FAR_COUNTED_INDEXES];
    atomic_bool closing;
    atomic_uint calls; /* number of API calls in progress (far_call_enter in pool/handle.h) */
    /* Number of threads that use this session through the session list, so that it must not be freed; guarded by the
     * list's lock. */
    unsigned visitors;
    far_session *next; /* next session in the session list */
};

/* Pin counts. Only the thread inside the session changes them. far_pins_release_fenced reads the counts of a lost
 * session, which do not change any more. */
static inline void far_pins_add(far_session *s, uint64_t epoch) {
    atomic_uint *held = &s->pins.held[epoch & 1];
    atomic_store_explicit(held, atomic_load_explicit(held, memory_order_relaxed) + 1, memory_order_seq_cst);
}


void far_pin_date(far_task *t); /* sets the time of the pin by the clock of the memory checker */


/* Counts a pin of the task at this epoch. The task must not hold a pin. */
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


/* far_note_wait notes that the operation begins to wait, or still waits, for another client or for another operation of
 * its handle. A retry is such a wait. far_note_wait_end notes the end of a wait during which the task did not run. */
void far_note_wait(far_task *t);
void far_note_wait_end(far_task *t);
/* Returns since when the operation waits; the current time if it has worked without any wait for so long that its next
 * wait is a new one. */
uint64_t far_waits_since(const far_task *t);


/* Returns true if the task holds the latch of this address. Used by asserts. */
static inline bool far_latch_is_held(const far_task *t, far_addr addr) {
    for (unsigned i = 0; i < FAR_LATCHES_HELD_MAX; i++)
        if (t->latches[i].addr == addr && t->latches[i].granted)
            return true;
    return false;
}


/* Creates a session with a connection to the fabric. It is not registered with the pool yet. */
int far_session_new(far_fabric *fabric, far_session_list *team, far_session **session);
void far_session_free(far_session *s); /* frees the session; no task may be active */

/* Entering: at most one thread is inside a session. This function waits until the thread inside, usually housekeeping,
 * leaves. */
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


/* The following functions must be called by the thread inside the session. */
/* Creates a task that is ready to run. `kind` selects its counters: a far_op_kind, or FAR_STATS_OTHER. Returns NULL if
 * the session has too many tasks or memory is short. */
far_task *far_task_new(far_session *s, unsigned kind, void (*run)(far_task *t, void *arg), void *arg);
/* Ensures that the session has at least one coroutine, so that a call that must not fail can wait for it. Returns false
 * if memory is short. */
bool far_session_prepare(far_session *s);
/* Handles completions and wake-ups and runs all ready tasks once. Returns false if no task was ready. */
bool far_session_step(far_session *s);
/* Runs steps, and waits for the fabric between them, until *condition is true. */
void far_session_run_until(far_session *s, const bool *condition);
void far_session_drain(far_session *s); /* runs steps until no task of the session is active */

/* Enters the session, runs the function as a task to its end, and leaves. Synchronous calls and housekeeping use it. */
int far_session_call(far_session *s, unsigned kind, bool background, int (*run)(far_task *t, void *arg), void *arg);

/* Marks the session as lost after a failed verb, and fences the connection of the session. */
void far_session_lose(far_session *s, int status);
/* If err means that the session is lost, sets the message that says why. Returns err. */
int far_fail_session_lost(const far_session *s, int err);

/* Sends a control message to the fabric (claim, has_failed or evict in fabric.h), waits for the reply, and returns the
 * reply. */
int far_control_send(far_task *t, far_control_kind kind, unsigned id, unsigned generation);
/* Like far_control_send, for several messages at once. Each message receives its reply. If the fabric replies without a
 * round trip, the messages are sent one after the other. */
void far_control_send_all(far_task *t, far_control *questions, unsigned count);

/* Shared by batch.c, scratch.c and session.c. */
/* Switches to the scheduler unless the awaited event has already happened. */
void far_task_wait_for(far_task *t, far_wait_for what);
void far_task_batch_done(far_task *t);
/* Like far_task_block, for a task that waits for a task of another session. If no other thread drives that session, the
 * calling thread drives it while it waits. */
void far_task_await_other(far_task *t);
void far_release_open_box(far_task *t); /* discards the open batch and returns its buffer */
void far_boxes_free(far_session *s);
void far_scratch_shrink(far_task *t); /* frees all chunks except the one that stays with the task */
void far_scratch_free(far_session *s);


static inline void far_scratch_empty(far_task *t) { /* frees the scratch memory of a task that ends */
    if (t->chunk->below || t->chunk->size != FAR_SCRATCH_BYTES)
        far_scratch_shrink(t);
    else
        t->chunk->used = 0;
}


#endif
