/* A pool handle: one compute node. It owns the fabric, the sessions, the open indexes, the caches' budget, the RDWC and latch tables,
 * and the housekeeping. */
#ifndef FAR_POOL_HANDLE_H
#define FAR_POOL_HANDLE_H

#include "pool/clients.h"
#include "pool/epoch.h"
#include "pool/superblock.h"
#include "runtime/session.h"

struct far_budget;  /* runtime/budget.h */
struct far_latches; /* runtime/latch.h */
struct far_rdwc;    /* runtime/rdwc.h */
struct far_quarantine; /* pool/sweep.c: what this handle knows of sweeps */

struct far_pool {
    far_fabric *fabric;
    far_geometry geometry;
    far_pool_options options;

    pthread_mutex_t lock;      /* the lists and counts below; never held across a switch or a wait */
    far_session *sessions;     /* the user's */
    unsigned session_count;
    far_index *indexes;
    unsigned references;       /* open sessions, indexes and the handle itself: the last one frees */
    bool closed;               /* far_pool_close was called */
    unsigned calls;            /* in progress */

    far_session *own;          /* housekeeping's session; its id stands for the handle */
    far_thread *housekeeper;   /* NULL with the option no_thread */
    far_parker parker;         /* wakes housekeeping */
    atomic_bool stopping;
    atomic_int polling;        /* a slice of housekeeping is running */

    far_epochs epochs;
    struct far_quarantine *quarantine;
    struct far_budget *budget;
    struct far_latches *latches;
    struct far_rdwc *rdwc;
};

/* One slice of housekeeping; returns 1 when more is to be done at once, 0 when it can wait for a tick. */
int far_housekeeping(far_pool *pool);
void far_housekeeping_wake(far_pool *pool);

#endif
