/* A pool handle (`far_pool`): one open pool in one process. Users call it a compute node. It owns the connection to the
 * memory nodes, the sessions, the list of open indexes, the memory budget of the caches and the housekeeping state.
 * handle.c manages its reference count; client/handle.c opens and closes it. This header also contains the fast path
 * that takes a pin, because every operation inlines it. */
#ifndef FAR_POOL_HANDLE_H
#define FAR_POOL_HANDLE_H

#include "pool/epoch/epoch.h"
#include "pool/format/clients.h"
#include "pool/format/superblock.h"
#include "pool/kind.h"
#include "task/session.h"

struct far_budget; /* memory budget shared by the caches (base/budget.h) */
struct far_rdwc;   /* read delegation and write combining (index/common/rdwc.h) */
struct far_store;  /* blocks and free objects of this handle (pool/alloc/store.h) */

/* Latches that serialize tasks of one handle, in first-come-first-served order (task/latch.h). A latch is named by a
 * far address. The latches below use addresses of superblock words, because no index has a lock at such an address. */
/* held by the operation that searches for memory (alloc/out_of_memory.c) */
#define FAR_LATCH_OUT_OF_MEMORY far_addr_make(0, FAR_SUPER_EPOCH)
/* held by the task that changes blocks and slabs (far_store_enter) */
#define FAR_LATCH_STORE far_addr_make(0, FAR_SUPER_REQUEST)
/* held by the task that opens or creates an index */
#define FAR_LATCH_OPEN far_addr_make(0, FAR_SUPER_CATALOG)

#define FAR_STATUS_MAGIC 0x737574617473ull
/* number of open indexes that a status record names; further ones are left out */
#define FAR_STATUS_OPEN_MAX 122

/* Status record: statistics that a handle publishes for observers such as `farindex top`. Housekeeping writes it from
 * time to time to an object that word 5 of the handle's registry entry names; no protocol reads it. The numbers are
 * sums over all sessions of the handle, including closed ones. */
typedef struct far_status_record {
    uint64_t magic;
    uint32_t client, generation; /* id and generation of the handle's system session */
    uint64_t process;            /* process id; 0 until the record is written for the first time */
    uint64_t told;               /* number of times that the status record was written */
    char host[FAR_HOST_MAX + 1], command[FAR_COMMAND_MAX + 1];
    uint64_t ops[FAR_OP_SCAN + 1], round_trips, verbs, retries, bytes_read, bytes_written, cache_hits, cache_misses,
        merged;
    uint64_t open_count;
    uint32_t open[FAR_STATUS_OPEN_MAX]; /* uids of the indexes that the handle has open */
    far_index_ops indexes[FAR_COUNTED_INDEXES];
} far_status_record;

_Static_assert(sizeof(far_status_record) % FAR_GRANULE == 0, "no padding");

struct far_pool {
    /* ---- Set when the pool is opened ---- */
    far_fabric *fabric;
    far_geometry geometry;
    far_pool_options options;
    /* guarantees of the fabric that this handle no longer uses (bits of pool/format/fabric_record.h) */
    atomic_uint refuted;

    far_session_list team;              /* session list of the handle */
    const far_index_kind *const *kinds; /* index kinds of this build; ends with NULL */

    /* ---- Open indexes and the life of the handle ---- */
    /* protects the list of indexes, their counts of openers, and `references`; never held across a task switch or a
     * wait */
    pthread_mutex_t lock;
    far_index *indexes;
    uint64_t indexes_linked;  /* number of indexes that were ever added to the list; protected by `lock` */
    atomic_uint dropped_open; /* number of indexes in the list that this handle knows to be dropped */
    atomic_bool has_catalog;  /* true after this handle has read that the pool has a catalog object */
    /* The words CATALOG and NEXT_UID for which far_catalog_observe last compared the open indexes with the catalog. No
     * pair of values occurs twice (catalog/README.md). Protected by the lock `epochs.waking`. */
    uint64_t observed_catalog, observed_uids;
    /* number of open sessions and indexes, plus one for the handle until it is closed; the last release frees it */
    unsigned references;
    /* fork count of the process when the pool was opened; a different count reveals the copy in a forked child */
    unsigned forks;
    atomic_bool closed; /* true after far_pool_close was called */
    /* true after the closing handle has released all its far memory and sessions; only local memory remains */
    atomic_bool finished;
    /* number of API calls in progress that take the pool; calls that take a session are counted in that session */
    atomic_uint calls;
    atomic_uint waiters; /* number of late close calls (of sessions or indexes) that wait until `finished` is true */

    /* ---- Housekeeping (client/housekeeping.c). Only housekeeping accesses the fields without an atomic type. ---- */
    far_thread *housekeeper;      /* housekeeping thread; NULL if the option no_thread is set */
    far_parker parker;            /* parks and wakes the housekeeping thread */
    atomic_bool stopping;         /* true when the handle is being closed and housekeeping must end */
    atomic_int polling;           /* 1 while a slice of housekeeping runs */
    atomic_bool freeing_dropped;  /* true while a task frees memory of dropped indexes (gc/dropped.c) */
    bool collection_runs;         /* true while this handle runs a collection */
    unsigned collection_failures; /* number of collections of this handle in a row that ended with an error */
    uint64_t collect_at;          /* time at which the next collection may start; 0 until one is needed */
    /* time at which a quiescent handle next reads the words of the superblock that housekeeping polls */
    uint64_t next_look;
    uint64_t next_check;  /* time at which housekeeping next checks the liveness of some registry entries */
    uint64_t idle_epoch;  /* epoch that the previous slice of housekeeping observed */
    unsigned idle_slices; /* number of consecutive slices that found no work; makes the pause between slices longer */
    /* true while housekeeping pauses for more than one tick; a thread that submits work then wakes it */
    atomic_bool resting;
    bool listens; /* true after the handle subscribed to the fabric's failure notifications */
    /* true while a quiescent handle has work pending, so housekeeping must not sleep without a time limit */
    atomic_bool has_work_when_quiescent;
    unsigned check_cursor; /* id of the registry entry that was last checked for liveness */

    /* ---- Statistics for observers (client/status.c, client/full.c) ---- */
    far_addr status;            /* the status record in far memory; 0 before it exists. Only housekeeping uses it. */
    far_status_record bulletin; /* the next status record to publish; protected by `lock` */
    bool status_changed; /* true if `bulletin` changed since it was last written to far memory; protected by `lock` */
    uint64_t next_status_write; /* time of the next write of the status record */
    /* Memory usage of the pool when an operation last found the pool full. This field and `next_full_look` are
     * protected by `lock`. */
    far_pool_usage full_usage;
    uint64_t next_full_look; /* time before which `full_usage` is not measured again */

    /* ---- Parts of the handle, each owned by the file that defines its type ---- */
    far_epochs epochs;
    struct far_store *store;
    struct far_budget *budget;
    struct far_rdwc *rdwc;
};

/* Slow path of far_pin_take (epoch/epoch.c), for a task that is throttled or has retried often, and for a quiescent
 * handle. Returns 0 or an error. */
int far_pin_take_slow(far_task *t);


/* Takes a pin at `epoch`. Returns false, without a pin, if the handle has entered another epoch in the meantime. The
 * pin is counted before `current` is read again, and both accesses are sequentially consistent. Therefore either the
 * task that changes the handle's epoch observes the count, or this function observes the new epoch and undoes the
 * count. */
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


/* Does the same as far_pin_take (pool/epoch/epoch.h), inlined into the path of every operation. */
static inline int far_pin_take_inline(far_task *t) {
    uint64_t epoch = atomic_load_explicit(&t->session->pool->epochs.current, memory_order_seq_cst);
    if (t->pin.epoch != 0)
        return 0;
    bool waits = t->session->lost || t->rest_since || t->waits_since || epoch == 0;
    return waits || !far_pin_at(t, epoch) ? far_pin_take_slow(t) : 0;
}


const far_geometry *far_geometry_of(const far_task *t);

/* Connects a new session of the handle. The caller still has to register it with the pool (far_client_register). */
int far_pool_session_new(far_pool *pool, far_session **session);

/* Records that the status record must be written again. far_status_take_change returns whether that was recorded, and
 * forgets it. The caller holds `lock`. */
void far_status_note_change(far_pool *pool);
bool far_status_take_change(far_pool *pool);

void far_pool_wake(far_pool *pool); /* wakes the housekeeping thread if it sleeps */

/* Iterates over the open indexes in the order of their uids, without those that this handle knows to be dropped. The
 * first call has NULL as `previous`, each later call the previous result. Returns NULL after the last index. The returned index counts as in use until the next call, so a
 * concurrent close of the index waits for that call. */
far_index *far_pool_use_index(far_pool *pool, far_index *previous);

/* keeps the handle's local memory allocated; every open session and index holds one reference */
void far_pool_reference(far_pool *pool);
void far_pool_release(far_pool *pool); /* drops a reference to the handle; the last call frees the handle */

#endif
