/* A task: one operation, or one piece of background work, as a coroutine of a session. This is what index code is
 * written against: it puts verbs, waits, allocates scratch memory, sleeps and waits for others, all through its task.
 *
 *     far_write(t, leaf, image, 64);                 verbs are put into the open batch ...
 *     far_cas(t, slot, old, new, &seen);
 *     if ((err = far_wait(t)) < 0) return err;       ... posted with one doorbell and waited for: one round trip
 *
 * Errors stick: once a verb failed, the session is lost, and every later far_wait of it says so. */
#ifndef FAR_TASK_TASK_H
#define FAR_TASK_TASK_H

#include "fabric/fabric.h"
#include "farindex.h"

#define FAR_TASKS_MAX  256 /* of a session together, each with an 8-bit number */
#define FAR_OPS_MAX    200 /* of them operations of the user: these always find their tasks ... */
#define FAR_SPAWN_MAX  40  /* ... because no more work is spawned than this; the rest is left to housekeeping */
#define FAR_TASK_STACK (64 * 1024)

typedef struct far_task far_task;

/* Verbs: put into the task's open batch. What `local` points to must stay as it is until the verb completed. Addresses
 * are checked when the batch is posted: one outside the pool makes far_wait (or far_post) return FAR_ERR_CORRUPT, and
 * nothing of it is posted. */
void far_read(far_task *t, far_addr addr, void *to, size_t bytes);
void far_read_marked(far_task *t, far_addr addr, void *to, size_t bytes, unsigned flags); /* and far_mark */
void far_write(far_task *t, far_addr addr, const void *from, size_t bytes);
void far_cas(far_task *t, far_addr addr, uint64_t expected, uint64_t desired, uint64_t *old); /* old may be NULL */
void far_faa(far_task *t, far_addr addr, uint64_t addend, uint64_t *old);
void far_masked_cas(far_task *t, far_addr addr, uint64_t compare, uint64_t compare_mask, uint64_t swap,
                    uint64_t swap_mask, uint64_t *old);
void far_mark(far_task *t, unsigned flags); /* adds FAR_VERB_ flags to the verb put last */

int far_start(far_task *t); /* posts the open batch; the next far_wait waits for it too (to overlap work) */
int far_wait(
    far_task *t); /* posts the open batch, waits for all that was started: one round trip, plus one per fence */
int far_post(
    far_task *t); /* posts the open batch and waits for it never: only hints and cleaning. Local memory: far_scratch */

void far_wait_for_posted(far_task *t); /* until nothing that was posted is under way; the open batch stays open */

/* A verb will be put for this memory. Whoever puts many says so for all of them first, in a row: on mapped memory their cache
 * misses then overlap, and so does finding out where each address lies, for which a processor looks few instructions ahead. */
void far_prefetch(far_task *t, far_addr addr);

/* Gives up the open batch. For an operation that fails before it posts what it has put: the memory of those verbs goes,
 * near and far, and at its end a task posts whatever is still open. */
void far_forget(far_task *t);

/* One verb, put and waited for: one round trip, with whatever else is open. On mapped memory it needs no batch. flags: as
 * of far_mark. */
int far_read_now(far_task *t, far_addr addr, void *to, size_t bytes, unsigned flags);
int far_write_now(far_task *t, far_addr addr, const void *from, size_t bytes);

/* As far_write, ahead of verbs that are waited for, of memory that nobody else knows of yet or that is locked: its place
 * in time does not matter. On mapped memory it takes effect at once, and is of the round trip of the next wait; it cannot be
 * given up any more then. */
void far_write_ahead(far_task *t, far_addr addr, const void *from, size_t bytes);

/* A word as an atomic sees it, in one round trip each. */
int far_read_word(far_task *t, far_addr addr, uint64_t *word);
int far_write_word(far_task *t, far_addr addr, uint64_t word);
int far_cas_word(far_task *t, far_addr addr, uint64_t expected, uint64_t desired,
                 uint64_t *old); /* won: *old == expected; old may be NULL */

/* A CAS, and a READ put behind it, in one round trip: how a lock is taken. On mapped memory they need no batch. */
int far_cas_and_read(far_task *t, far_addr word, uint64_t expected, uint64_t desired, uint64_t *old, far_addr addr,
                     void *to, size_t bytes);

/* Memory of this task, gone when it ends (after its unwaited verbs too); usable for verbs on every fabric. 16-byte
 * aligned, not zeroed; NULL when the process is out of memory. */
void *far_scratch(far_task *t, size_t bytes);
typedef struct far_scratch_mark {
    void *chunk;
    size_t used;
} far_scratch_mark;
far_scratch_mark far_scratch_here(far_task *t);
void far_scratch_back(far_task *t,
                      far_scratch_mark mark); /* gives back all that was taken since; not while unwaited verbs use it */

/* Time. A retry backs off: attempt 0, 1, 2 ... waits a random time around rtt * 2^attempt (bounded), or around as long as
 * the caller says; other tasks run meanwhile. */
uint64_t far_now(const far_task *t);
uint64_t far_rtt(const far_task *t);
void far_back_off(far_task *t, unsigned attempt);
void far_back_off_for(far_task *t, uint64_t ns);
void far_sleep(far_task *t, uint64_t ns);
void far_yield(far_task *t); /* lets the other ready tasks run */
uint64_t far_task_random(far_task *t);

/* Waiting for another task, of any session of this handle. Set the condition under a lock of your own, then wake. A
 * task that was woken looks at its condition again: wake-ups may come early. A wake before the block is not lost. */
void far_task_block(far_task *t);
void far_task_block_until(far_task *t, uint64_t time);
void far_task_wake(far_task *t); /* from any thread; t must not have ended */

/* Nobody drives a task that is left behind when its session is not used: the handle has no housekeeping thread. */
bool far_task_is_unattended(const far_task *t);

/* Background work of the running operation: a task of the same session that starts with a copy of `bytes` bytes at arg,
 * holds the same pin, and counts as background work of the same kind of operation. False: FAR_SPAWN_MAX are under way;
 * do without, or do it now. */
bool far_spawn(far_task *t, void (*run)(far_task *t, void *arg), const void *arg, size_t bytes);

/* A named point of index code, where a simulated test can stop, kill or reorder. Costs nothing elsewhere. The linker gathers
 * all of a binary (points.h): what tests never came to can be told without a list that somebody keeps. */
typedef struct far_point_site {
    const char *name, *function;
    _Atomic uint64_t met; /* how often it was reached, on the simulator */
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
void far_count_lock_retry(far_task *t); /* a retry because somebody holds a lock */
void far_count_stale(far_task *t);      /* what a cache gave turned out to be old */
void far_note_added(far_task *t,
                    bool added); /* a put in the way of adding a key, or of changing one: the last note counts */
void far_count_cache(far_task *t, bool hit);
void far_count_combined(far_task *t, bool write); /* an operation that RDWC served */

far_session *far_task_session(const far_task *t);
far_pool *far_task_pool(const far_task *t);
far_fabric *far_task_fabric(const far_task *t);
unsigned far_task_nodes(const far_task *t); /* memory nodes of the pool */
/* Whether these bytes lie in the pool: to be asked for an address that was read from far memory, before it is used. */
bool far_task_reaches(const far_task *t, far_addr addr, uint64_t bytes);
unsigned far_task_number(const far_task *t);                      /* 0..255 */
unsigned far_task_client(const far_task *t);                      /* the session's id, 1..16382 */
unsigned far_task_generation(const far_task *t);                  /* 16 bits */
const far_capabilities *far_task_capabilities(const far_task *t); /* the pool's: what all its clients go by */

#endif
