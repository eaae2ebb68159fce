/* A pool handle: one compute node. It owns the fabric, the sessions, the open indexes, the caches' budget, the RDWC and
 * latch tables, and the housekeeping. */
#ifndef FAR_POOL_HANDLE_H
#define FAR_POOL_HANDLE_H

#include "pool/clients.h"
#include "pool/epoch.h"
#include "pool/superblock.h"
#include "runtime/session.h"

struct far_budget;  /* runtime/budget.h */
struct far_latches; /* runtime/latch.h */
struct far_rdwc;    /* runtime/rdwc.h */
struct far_store;   /* pool/store.h: what it holds of far memory */

#define FAR_OPENS_MAX 512 /* indexes that a handle can have open */

typedef struct far_opens_word {
    uint64_t wanted;             /* what the word is to be */
    bool due;                    /* far memory may not say so yet */
    unsigned writer, generation; /* a lost session whose WRITE of it may still take effect; 0 = none */
} far_opens_word;

typedef struct far_opens {  /* pool/opens.c: the handle's table of open indexes */
    bool busy;              /* under the pool's lock: a task changes what is open */
    far_addr table;         /* 0: none yet */
    far_opens_word address; /* the registry's word of it: only its writer */
    far_opens_word words[FAR_OPENS_MAX];
    atomic_uint due; /* how many of these are */
} far_opens;

struct far_pool {
    far_fabric *fabric;
    far_geometry geometry;
    far_pool_options options;

    pthread_mutex_t lock;      /* the lists and counts below; never held across a switch or a wait */
    far_session *sessions;     /* the user's */
    atomic_uint session_count; /* changed under the lock; RDWC looks */
    far_index *indexes;
    far_opens opens;
    unsigned references;  /* open sessions, indexes and the handle itself: the last one frees */
    atomic_bool closed;   /* far_pool_close was called */
    atomic_bool finished; /* ... and has given back everything but memory of this process */
    atomic_uint calls;    /* in progress: those that take the pool; calls of sessions are counted there */
    atomic_uint waiters;  /* closes of what was open through it, which wait until it is finished */

    far_session *own;        /* housekeeping's session; its id stands for the handle */
    far_thread *housekeeper; /* NULL with the option no_thread */
    far_parker parker;       /* wakes housekeeping */
    atomic_bool stopping;
    atomic_int polling; /* a slice of housekeeping is running */
    atomic_bool dead;   /* the own session is lost: nobody publishes pins any more, all sessions end */
    bool sweeping;      /* housekeeping's own, as all of these: a sweep is running */
    unsigned sweep_failures;
    uint64_t sweep_at; /* when the next sweep is due, if one is wanted; 0: not yet known */
    uint64_t next_look, next_check;
    unsigned check_cursor; /* the registry entry whose life is checked next */

    far_epochs epochs;
    struct far_store *store;
    struct far_budget *budget;
    struct far_latches *latches;
    struct far_rdwc *rdwc;
};

/* One slice of housekeeping; returns 1 when more is to be done at once, 0 when it can wait for a tick, an error of the
 * own session. */
int far_housekeeping(far_pool *pool);
void far_housekeeping_wake(far_pool *pool);
void far_housekeeper(void *pool);                     /* the thread: slices until pool->stopping */
uint64_t far_housekeeping_tick(const far_pool *pool); /* ns between slices while the handle is awake */

/* No housekeeping thread is there, or it has ended because the handle is being closed: who waits for what it does (the
 * epoch, sessions that nobody drives) does it himself. */
bool far_pool_is_unattended(const far_pool *pool);

/* Runs what is ready in sessions that nobody is inside of; never waits. True: something is still under way there. */
bool far_pool_drive(far_pool *pool);

/* The user's sessions one by one (from NULL on): the one given is not freed until the next is asked for. */
far_session *far_pool_visit(far_pool *pool, far_session *previous);

/* The open indexes one by one in the order of their uids (after = 0: the first): the one given counts as in use until
 * released, so a close waits for that (index->uses). NULL: no more. */
far_index *far_pool_use_index(far_pool *pool, uint32_t after);
void far_pool_unuse_index(far_index *index);

/* Every public call that takes a pool stands between these two; every one that takes a session between those two. Not
 * 0: FAR_ERR_INVALID in words, because the handle is NULL or its pool was closed; then there is no leave. */
int far_pool_enter(far_pool *pool);
void far_pool_leave(far_pool *pool);
int far_call_enter(far_session *s);
void far_call_leave(far_session *s);

/* The pool was closed: until far_pool_close, which may be at work in another thread, has given back all that is open.
 */
void far_pool_await_close(far_pool *pool);

void far_pool_reference(far_pool *pool); /* an open index holds the handle's memory until it is closed */
void far_pool_release(far_pool *pool);

#endif
