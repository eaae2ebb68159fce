/* A task is a coroutine of a session that executes one operation, or one piece of background work. Index code uses only
 * this header: a task posts verbs, waits for them, allocates scratch memory, sleeps, and waits for other tasks.
 *
 *     far_write(t, leaf, image, 64);                 these two lines add verbs to the open batch
 *     far_cas(t, slot, old, new, &seen);
 *     if ((err = far_wait(t)) < 0)                   posts the batch with one doorbell and waits: one round trip
 *         return err;
 *
 * Errors are permanent: after a verb has failed, the session is lost, and every later far_wait in this session fails.
 */
#ifndef FAR_TASK_TASK_H
#define FAR_TASK_TASK_H

#include "fabric/fabric.h"
#include "farindex.h"

#define FAR_TASKS_MAX 256 /* limit per session; each task has an 8-bit number */
/* largest number of tasks that execute operations of the user in one session; the remaining tasks are for spawned work
 */
#define FAR_OPS_MAX   200
/* Largest number of unfinished spawned tasks in one session. Together with FAR_OPS_MAX this is less than FAR_TASKS_MAX,
 * so an operation of the user always finds a task. Work beyond this limit is left to housekeeping. */
#define FAR_SPAWN_MAX  40
#define FAR_TASK_STACK (64 * 1024)

typedef struct far_task far_task;

/* Verbs. Each function adds a verb to the open batch of the task. The local memory must stay valid and unchanged until
 * the verb has completed. Addresses are checked when the batch is posted. If an address is outside the pool, far_wait
 * or far_post returns FAR_ERR_CORRUPT and posts no verb of the batch. */
void far_read(far_task *t, far_addr addr, void *to, size_t bytes);
/* adds a READ like far_read, and marks it like far_mark(t, flags) */
void far_read_marked(far_task *t, far_addr addr, void *to, size_t bytes, unsigned flags);
void far_write(far_task *t, far_addr addr, const void *from, size_t bytes);
/* *old receives the word that the CAS found; old may be NULL */
void far_cas(far_task *t, far_addr addr, uint64_t expected, uint64_t desired, uint64_t *old);
void far_faa(far_task *t, far_addr addr, uint64_t addend, uint64_t *old);
void far_masked_cas(far_task *t, far_addr addr, uint64_t compare, uint64_t compare_mask, uint64_t swap,
                    uint64_t swap_mask, uint64_t *old);
void far_mark(far_task *t, unsigned flags); /* adds FAR_VERB_ flags to the verb that was added last */

int far_start(far_task *t); /* posts the open batch and does not wait; the next far_wait also waits for it */
/* Posts the open batch and waits for all started batches: one round trip, plus one for each fence in the batch. */
int far_wait(far_task *t);
/* Posts the open batch, and no far_wait waits for it. Only for verbs with results that the operation does not need.
 * Their local memory must come from far_scratch. */
int far_post(far_task *t);

void far_wait_for_posted(far_task *t); /* waits until no posted verb is in flight; the open batch stays open */

/* Announces that a verb for this memory will follow. A caller that will add many verbs announces all of them first, one
 * after the other. On mapped memory the processor then overlaps their cache misses and the translation of their
 * addresses. */
void far_prefetch(far_task *t, far_addr addr);

/* Discards the open batch. An operation that fails before it posts must call this, because the local and far memory of
 * these verbs may be freed, and the end of a task posts all verbs that are still open. */
void far_discard_batch(far_task *t);

/* Adds a READ or a WRITE and waits for it together with all other open verbs, in one round trip. On mapped memory this
 * needs no batch. `flags` is as for far_mark. */
int far_read_now(far_task *t, far_addr addr, void *to, size_t bytes, unsigned flags);
int far_write_now(far_task *t, far_addr addr, const void *from, size_t bytes);

/* Like far_write, for memory that no other client can reach yet or that this client has locked, so that the moment of
 * the WRITE does not matter. The caller must wait for a later verb. On mapped memory the WRITE is executed at once and
 * cannot be discarded; it belongs to the round trip of the next wait. */
void far_write_ahead(far_task *t, far_addr addr, const void *from, size_t bytes);

/* far_read_word, far_write_word and far_cas_word read, write or compare-and-swap one word atomically, in one round
 * trip. */
int far_read_word(far_task *t, far_addr addr, uint64_t *word);
int far_write_word(far_task *t, far_addr addr, uint64_t word);
/* The CAS succeeded if *old == expected. old may be NULL. */
int far_cas_word(far_task *t, far_addr addr, uint64_t expected, uint64_t desired, uint64_t *old);

/* Posts a CAS on `word` and a READ of `addr` after it, and waits for both in one round trip. Used to take a lock and
 * read what it protects. On mapped memory this needs no batch. */
int far_cas_and_read(far_task *t, far_addr word, uint64_t expected, uint64_t desired, uint64_t *old, far_addr addr,
                     void *to, size_t bytes);

/* Scratch memory of the task. It is freed when the task ends, after all its verbs have completed, and it can be used
 * for verbs on every fabric. It is aligned to 16 bytes and not zeroed. Returns NULL if the process is out of memory. */
void *far_scratch(far_task *t, size_t bytes);
typedef struct far_scratch_mark {
    void *chunk;
    size_t used;
} far_scratch_mark;
far_scratch_mark far_scratch_here(far_task *t);
/* Frees all scratch memory that was allocated since the mark was taken. No verb in flight may use that memory. */
void far_scratch_back(far_task *t, far_scratch_mark mark);

/* Time. far_back_off waits before a retry: a random time around rtt * 2^attempt (bounded). far_back_off_for waits a
 * random time around `ns`. Other tasks run meanwhile. */
uint64_t far_now(const far_task *t);
uint64_t far_rtt(const far_task *t);
void far_back_off(far_task *t, unsigned attempt);
void far_back_off_for(far_task *t, uint64_t ns);
void far_sleep(far_task *t, uint64_t ns);
void far_yield(far_task *t); /* lets the other ready tasks of the session run */
uint64_t far_task_random(far_task *t);

/* Waiting for another task of any session of this handle. The other task sets a condition under a lock of the caller's
 * choice, and then calls far_task_wake. The woken task must check its condition again, because wake-ups may be early. A
 * wake-up before the block is not lost. */
void far_task_block(far_task *t);
void far_task_block_until(far_task *t, uint64_t time);
void far_task_wake(far_task *t); /* may be called by any thread; t must not have ended */

/* Returns true if no housekeeping thread drives the sessions of the handle. Then tasks run only while a thread of the
 * user is inside a call: the tasks of the session of that call, and, while this thread waits, those of the other
 * sessions. */
bool far_task_is_unattended(const far_task *t);

/* Starts background work of the running operation: creates a task of the same session, which receives a copy of `bytes`
 * bytes at arg, holds a pin at the same epoch, and is counted as background work of the same kind of operation. Returns
 * false if FAR_SPAWN_MAX such tasks are unfinished or memory is short; the caller then skips the work or does it
 * itself. */
bool far_spawn(far_task *t, void (*run)(far_task *t, void *arg), const void *arg, size_t bytes);

/* A named point in index code, where a test on the simulator can stop, end or reorder a client. Outside of the
 * simulator it costs one predicted branch. The linker collects all points of a binary (points.h), so that tests can
 * list the points that were never reached. */
typedef struct far_point_site {
    const char *name, *function;
    _Atomic uint64_t met; /* how often the point was reached on the simulator */
} far_point_site;
#define far_point(t, point_name)                                                                                       \
    do {                                                                                                               \
        static far_point_site far_site = {.name = "" point_name, .function = __func__};                                \
        static far_point_site *const far_listed __attribute__((used, section("far_points"))) = &far_site;              \
        if (__builtin_expect(atomic_load_explicit(&far_is_simulated, memory_order_relaxed), 0))                        \
            far_task_reached(t, &far_site);                                                                            \
    } while (0)
void far_task_reached(far_task *t, far_point_site *site);

void far_count_retry(far_task *t);
void far_count_lock_retry(far_task *t); /* counts a retry because another client holds a lock */
void far_count_stale(far_task *t);      /* counts that an entry of a local cache was outdated */
/* Notes whether the current put adds a key or changes one. The last call before the put succeeds counts. */
void far_note_added(far_task *t, bool added);
void far_count_cache(far_task *t, bool hit);
void far_count_combined(far_task *t, bool write); /* counts an operation that RDWC served together with another one */

far_session *far_task_session(const far_task *t);
far_pool *far_task_pool(const far_task *t);
far_fabric *far_task_fabric(const far_task *t);
unsigned far_task_nodes(const far_task *t); /* number of memory nodes of the pool */
/* Returns true if these bytes are inside the pool. Index code calls this before it uses an address that was read from
 * far memory. */
bool far_task_reaches(const far_task *t, far_addr addr, uint64_t bytes);
unsigned far_task_number(const far_task *t);     /* number of the task in its session, 0 .. 255 */
unsigned far_task_client(const far_task *t);     /* id of the session, 1 .. 16382 */
unsigned far_task_generation(const far_task *t); /* generation of the session's id, 16 bits */
/* Returns the capabilities that all clients of the pool rely on. */
const far_capabilities *far_task_capabilities(const far_task *t);

#endif
