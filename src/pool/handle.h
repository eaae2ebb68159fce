/* A pool handle: one compute node. It owns the fabric, the sessions, the open indexes, the caches' budget, the RDWC and
 * latch tables, and the housekeeping. */
#ifndef FAR_POOL_HANDLE_H
#define FAR_POOL_HANDLE_H

#include "pool/clients.h"
#include "pool/epoch.h"
#include "pool/kind.h"
#include "pool/superblock.h"
#include "task/session.h"

struct far_budget; /* base/budget.h */
struct far_rdwc;   /* index/rdwc.h */
struct far_store;  /* pool/store.h: what it holds of far memory */

/* What tasks of the handle do one at a time, first come, first served (task/latch.h): named by words of the superblock,
 * at which no index has a lock. */
#define FAR_LATCH_SHORTAGE   far_addr_make(0, FAR_SUPER_EPOCH)   /* operations that found no memory (shortage.c) */
#define FAR_LATCH_STORE      far_addr_make(0, FAR_SUPER_REQUEST) /* work on blocks and slabs (far_store_enter) */
#define FAR_LATCH_OPEN_TABLE far_addr_make(0, FAR_SUPER_CATALOG) /* changes of what is open (open_table.c) */

#define FAR_OPEN_TABLE_MAX 368 /* indexes that a handle can have open; with its bulletin they fill 4 KiB */

typedef struct far_open_table {         /* pool/open_table.c: the handle's table of open indexes */
    far_addr table;                     /* 0: none yet */
    far_addr made;                      /* the last one that was made: its address may not be there */
    uint64_t words[FAR_OPEN_TABLE_MAX]; /* what they are to be */
    atomic_bool unsure;                 /* a WRITE failed: far memory may not say so yet */
} far_open_table;


/* What a handle tells of itself, for those who watch the pool: written now and then by its housekeeping, behind its
 * table of open indexes; nobody relies on it. Sums over all its sessions, also those that were closed. */
typedef struct far_bulletin {
    uint64_t process; /* 0: it has told nothing yet */
    uint64_t told;    /* how often it has */
    char host[FAR_HOST_MAX + 1], command[FAR_COMMAND_MAX + 1];
    uint64_t ops[FAR_OP_SCAN + 1], round_trips, verbs, retries, bytes_read, bytes_written, cache_hits, cache_misses,
        merged;
    uint64_t unused[4];
    far_index_ops indexes[FAR_COUNTED_INDEXES];
} far_bulletin;

_Static_assert(sizeof(far_bulletin) == (512 - FAR_OPEN_TABLE_MAX) * 8, "the table has the size of few pages");

struct far_pool {
    far_fabric *fabric;
    far_geometry geometry;
    far_pool_options options;
    atomic_uint refuted; /* bits of pool/refuted.h: what this handle has given up */

    far_team team;                      /* its sessions */
    const far_index_kind *const *kinds; /* that this build has; ends with NULL */

    pthread_mutex_t lock; /* the list and counts below; never held across a switch or a wait */
    far_index *indexes;
    far_open_table open_table;
    atomic_uint drop_marks; /* given out (catalog.c) */
    unsigned references;    /* open sessions, indexes and the handle itself: the last one frees */
    unsigned forks;         /* of this process when it was opened: at another count this is a forked child's copy */
    atomic_bool closed;     /* far_pool_close was called */
    atomic_bool finished;   /* ... and has given back everything but memory of this process */
    atomic_uint calls;      /* in progress: those that take the pool; calls of sessions are counted there */
    atomic_uint waiters;    /* closes of what was open through it, which wait until it is finished */

    far_thread *housekeeper; /* NULL with the option no_thread */
    far_parker parker;       /* wakes housekeeping */
    atomic_bool stopping;
    atomic_int polling;     /* a slice of housekeeping is running */
    atomic_bool collecting; /* a task of it frees what belongs to dropped indexes (unlisted.c) */
    bool sweeping;          /* housekeeping's own, as all of these: a sweep is running */
    unsigned sweep_failures;
    uint64_t sweep_at; /* when the next sweep is due, if one is wanted; 0: not yet known */
    uint64_t next_look, next_check;
    uint64_t calm_epoch;   /* as the last slice saw it */
    unsigned calm_slices;  /* that found nothing to do, in a row */
    atomic_bool resting;   /* housekeeping pauses for longer than a tick: whoever leaves it work wakes it */
    bool listens;          /* the fabric tells it of deaths */
    atomic_bool restless;  /* asleep, and something is still to be done */
    unsigned check_cursor; /* the registry entry whose life is checked next */

    far_bulletin bulletin; /* under the lock */
    bool bulletin_changed; /* under the lock: since it was last told */
    uint64_t next_bulletin;
    far_pool_usage full_usage; /* under the lock, both: as it was when an operation last found the pool full */
    uint64_t next_full_look;

    far_epochs epochs;
    struct far_store *store;
    struct far_budget *budget;
    struct far_rdwc *rdwc;
};

int far_pin_take_slowly(far_task *t); /* epoch.c: the task rests or is patient first, or the handle sleeps */


/* False: the epoch has moved on, and no pin was taken. */
static inline bool far_pin_at(far_task *t, uint64_t epoch) {
    far_session *s = t->session;
    far_pin_count(t, epoch);
    if (atomic_load_explicit(&s->pool->epochs.current, memory_order_seq_cst) != epoch) {
        far_pin_uncount(t);
        return false;
    }
    if (!atomic_load_explicit(&s->pins.used, memory_order_relaxed))
        atomic_store_explicit(&s->pins.used, true, memory_order_relaxed);
    return true;
}


/* far_pin_take (pool/epoch.h), for the way of every operation. */
static inline int far_pin_take_inline(far_task *t) {
    uint64_t epoch = atomic_load_explicit(&t->session->pool->epochs.current, memory_order_seq_cst);
    if (t->pin.epoch != 0)
        return 0;
    bool waits = t->session->lost || t->rest_since || t->patience || epoch == 0;
    return waits || !far_pin_at(t, epoch) ? far_pin_take_slowly(t) : 0;
}


const far_geometry *far_geometry_of(const far_task *t);

/* A session of the handle with a connection, not yet registered with the pool. */
int far_pool_session_new(far_pool *pool, far_session **session);

void far_pool_wake(far_pool *pool); /* its housekeeping, if that sleeps */

/* The open indexes one by one in the order of their uids (from NULL on): the one given counts as in use until the next is
 * asked for, so a close waits for that. NULL: no more. */
far_index *far_pool_use_index(far_pool *pool, far_index *previous);

void far_pool_reference(far_pool *pool); /* an open index holds the handle's memory until it is closed */
void far_pool_release(far_pool *pool);   /* the last one frees it */

#endif
