/* What a session holds of far memory, in local memory: its blocks and slabs, the free objects it may hand out, the
 * retired ones that wait for their epoch, and what it keeps for itself. Private to the allocator.
 *
 * Whoever runs the session changes this; the handle's observer of sweeps takes things away from any session
 * (far_sweep_observe). So everything here is touched under `lock`, which is never held across a wait, and after a wait
 * nothing is where it was: blocks and slabs are looked up again. Changes that take verbs are made by one task of the
 * session at a time (far_memory_enter), under a pin: a sweep that waited for two epochs knows that none is under way
 * that has not heard of it.
 *
 * Objects are named by their class (index uid, type, size). A class whose index was closed here has index == NULL. */
#ifndef FAR_POOL_MEMORY_H
#define FAR_POOL_MEMORY_H

#include "index/index.h"
#include "pool/blocks.h"
#include "pool/handle.h"

#include <pthread.h>

#define FAR_ENTRY_RECOVER  (1ull << 63) /* the cookie is to be asked for (type->recover) */
#define FAR_RETIRE_EPOCHS  3            /* from the stamp to the reuse */
#define FAR_KEPT_PER_TABLE 63

typedef struct far_entry { /* a free object */
    uint64_t word;         /* its address, and FAR_ENTRY_ flags */
    uint64_t cookie;
} far_entry;


static inline far_addr far_entry_addr(far_entry e) {
    return e.word & 0xffffffffffffull;
}


typedef struct far_entries {
    far_entry *items;
    size_t count, capacity;
} far_entries;

typedef struct far_class far_class;
typedef struct far_held far_held;

typedef struct far_slab {
    far_held *block;
    far_class *class;
    uint8_t page, pages;
    uint32_t objects;
    uint32_t carved;       /* objects from here on were never handed out: zero bytes */
    uint32_t free;         /* objects below that lie in the class's lists */
    uint64_t looked;       /* epoch in which its bits were last read */
    unsigned idle;         /* ticks since when it is wholly free */
    struct far_slab *next; /* of the shelf */
} far_slab;

typedef struct far_shelf { /* of a class on one node */
    far_entries free;
    far_slab *slabs;
    far_slab *carving; /* the one with objects not yet handed out, if any */
} far_shelf;

struct far_class {
    uint32_t uid;
    unsigned type;
    uint64_t size;
    bool stable;
    const far_type *info; /* NULL until the index is met */
    far_index *index;     /* NULL: not open here */
    uint64_t unlisted;    /* epoch at which its index was found to be gone, 0 = it is not */
    far_class *next;
    far_shelf shelf[]; /* per node */
};

struct far_held { /* a block this session owns */
    far_block_id id;
    bool used;                       /* was somebody's before, or pages of it were wiped */
    bool away;                       /* under quarantine: slabs unknown until it comes back */
    uint64_t free_pages;             /* bit per page */
    far_slab *slab[FAR_BLOCK_PAGES]; /* by every page of it */
    far_held *next;                  /* all blocks */
    far_held *chain;                 /* of a hash bucket */
};

typedef struct far_retired {
    far_addr addr;
    far_class *class;
    uint64_t ready; /* epoch at which it is free; 0 = not known yet (retired without a pin); 1 = at once */
    bool clean;     /* the reclaim hook need not run: never shown to others */
} far_retired;

typedef struct far_queue {
    far_retired *items;
    size_t first, count, capacity; /* a ring */
} far_queue;

typedef struct far_kept { /* slot of the table of kept objects */
    far_addr addr;        /* 0: the slot is free */
    far_class *class;
    uint64_t cookie;
    bool used;
    bool reserve; /* held for the index's reserve */
    bool stale;   /* not ours any more; still listed in far memory */
} far_kept;

typedef struct far_give { /* an object on its way to the pool */
    far_addr addr;
    uint32_t uid;
    bool closed; /* its index is not open here: it may have been dropped */
} far_give;

typedef struct far_gives {
    far_give *items;
    size_t count, capacity;
} far_gives;

#define FAR_HELD_BUCKETS  256
#define FAR_CLASS_BUCKETS 64

typedef struct far_memory {
    far_session *session;
    pthread_mutex_t lock;
    far_task *inside; /* the task that changes blocks and slabs: some may be on their way to the pool, in no list */
    struct far_memory_waiter *waiting;

    far_class *classes[FAR_CLASS_BUCKETS];
    far_held *blocks, *buckets[FAR_HELD_BUCKETS];
    far_queue retired, late; /* as they came, which is the order of their epochs; the others, sorted by them */
    far_gives pending;       /* to be given back before the pin of whoever put them here ends */

    far_kept *kept;
    size_t kept_count; /* slots, FAR_KEPT_PER_TABLE per table */
    far_addr *tables;
    size_t table_count;

    far_task *keeper; /* the task that changes what is kept */
    size_t keeps;     /* slots in use that are no reserve */
    struct far_reserves {
        uint32_t uid;
        bool complete;
    } * reserves; /* of the indexes that were written to */
    size_t reserve_count;
    struct far_drop {
        uint32_t uid;
        uint64_t epoch; /* when it was dropped */
        bool added;     /* once more, by a session that closed: for blocks that were passed by, perhaps */
    } * drops;
    size_t drop_count;

    unsigned turn, pick; /* nodes for the next slab, the next object that may lie anywhere */
    uint64_t *full;      /* per node: the epoch in which no block was found there */
    bool reclaiming;     /* a task has taken retired objects from the lists, and is freeing them */
    uint64_t scoured;    /* the epoch in which everything was last looked through */
    uint64_t asked;      /* the epoch in which one more was last asked for */
    uint64_t free_bytes, retired_bytes, foreign_bytes;
    uint64_t told[2];        /* what the registry says */
    uint64_t told_answer;    /* the same: what it has answered, and free pages in its blocks */
    uint64_t noticed[2];     /* what housekeeping saw last */
    unsigned trim;           /* ticks in which to look for slabs that can go back */
    unsigned shortage;       /* of the handle, when last heeded */
    unsigned shared;         /* the same, when what it asked for was done; under the lock */
    uint32_t answered;       /* the last announcement of another handle for which it gave up what it could; there too */
    unsigned looked;         /* far_quarantine.given, when all bits in its blocks were last looked at; there too */
    bool mute;               /* it was waited for, and did not do it; under the lock */
    bool helping;            /* a task is giving up what others are short of, or the session closes and gives up all */
    bool closing;            /* it does: that task gives back what is pending, too, and none may come after it */
    uint64_t uids_checked;   /* epoch in which the catalog was last compared */
    struct far_memory *next; /* of the handle */
} far_memory;

/* What a handle knows of sweeps, and all its sessions' memory. */
typedef struct far_quarantine {
    pthread_mutex_t lock;
    far_memory *memories;
    uint64_t word;                /* the sweep word last observed */
    uint32_t seen;                /* sweeps up to this one have been heeded */
    atomic_uint phase;            /* of that sweep: in quarantine, retired objects go to the pool at once */
    _Atomic uint64_t normal_from; /* in the phase after it they do so if the pin is older than this epoch */
    atomic_uint heeded;           /* counts changes of the marks */
    atomic_uint blocks;           /* how many are marked */
    _Atomic uint64_t *marked;     /* bit per block of the pool */
    atomic_uint shortage;         /* how often memory was found short */
    atomic_uint given;            /* how often objects may have been given back in blocks of others */
    _Atomic uint64_t served;      /* ticket of the operation whose turn it is to take memory; 0: nobody is short */
    _Atomic uint64_t moved;       /* counts what became free or went back to the pool */
    _Atomic uint64_t announced;   /* who was last short of memory in the whole pool, as last read */
    _Atomic uint64_t overheard;   /* an announcement that was heeded for long enough */
    atomic_bool heedless;         /* the one who is served has heeded others for long enough */
    uint64_t deaf[FAR_CLIENT_ID_MAX / 64 + 1]; /* bit per handle that was waited for and did not answer */
    uint64_t in_vain;                          /* what other handles had left when they were last asked */
    uint64_t stuck;                            /* the epoch that was waited for and did not move */
    uint64_t slow_sweep;                       /* the same of a sweep; 0: none */
    uint64_t swept_in_vain;                    /* so many had died when a full sweep failed; 0: none did */
    struct far_hunger *hungry;                 /* operations that found no memory, in line; hunger.c */
    uint64_t tickets;                          /* given out */
    uint64_t pool_bytes;
} far_quarantine;

extern const far_type far_pool_type; /* of objects without an index */

/* memory.c: local bookkeeping; the lock is held unless said otherwise. */
far_class *far_class_get(far_memory *m, uint32_t uid, unsigned type, uint64_t size, bool stable);
far_class *far_class_for(far_memory *m, far_index *index, unsigned type,
                         uint64_t size); /* NULL: no memory, or no such type */
far_held *far_held_find(far_memory *m, far_block_id id);
bool far_some_are_away(const far_memory *m); /* blocks, of which nobody knows what is in them */
far_held *far_held_add(far_memory *m, far_block_id id, bool used);
void far_held_remove(far_memory *m, far_held *block);
bool far_held_load(far_memory *m, far_held *block,
                   const uint64_t pages[FAR_BLOCK_PAGES]); /* slabs as the page words say */
void far_held_unload(far_memory *m, far_held *block);      /* forgets its slabs and what lies free there */
void far_held_collect(far_memory *m, far_held *block, far_gives *gives); /* all that is free there; then unloads it */
void far_foreign_collect(far_memory *m, bool marked_only, far_gives *gives); /* free objects in blocks of others */
far_slab *far_slab_add(far_memory *m, far_held *block, unsigned page, unsigned pages, far_class *class);
void far_slab_remove(far_memory *m, far_slab *slab); /* and its free objects */
far_slab *far_slab_of(far_memory *m, far_addr addr);


static inline bool far_slab_is_free(const far_slab *slab) {
    return slab->free + (slab->objects - slab->carved) == slab->objects;
}


void far_put_free(far_memory *m, far_class *class, far_entry entry); /* to its list; quarantined: to the pool */
bool far_take_free(far_memory *m, far_class *class, unsigned node, far_entry *entry);
bool far_queue_put(far_queue *q, far_retired item);
bool far_queue_put_sorted(far_queue *q, far_retired item); /* by its epoch, behind those of the same one */
bool far_queue_take(far_queue *q, far_retired *item);
bool far_gives_add(far_gives *gives, const far_class *class, far_addr addr);
bool far_is_marked(far_memory *m, far_addr addr); /* its block is under quarantine; no lock needed */

/* Without the lock, by tasks: */
void far_memory_free(far_session *session);           /* local memory only */
void far_memory_forget(far_task *t, far_block_id id); /* what it knew of a block that it just took anew */
far_memory *far_memory_of(const far_task *t);
void far_memory_enter(far_task *t); /* one task of the session at a time */
void far_memory_leave(far_task *t);
int far_give_back(far_task *t, far_gives *gives); /* adds bits; empties the list */
int far_give_pending(far_task *t);
int far_give_foreign(far_task *t, bool all); /* what it holds free in blocks of others: all, or when it is much */
int far_pending_soon(far_task *t);           /* from code that must not wait: a task of the same pin does it */

typedef struct far_aside { /* verbs of the allocator's own, apart from those the operation has put and not posted */
    struct far_batch_box *open;
    int refused;
    bool background;
} far_aside;
far_aside far_aside_begin(far_task *t);
void far_aside_end(far_task *t, far_aside aside);

/* hunger.c: somebody of this handle who is short of memory goes first. */
bool far_may_take(far_task *t);                   /* new slabs and blocks; false is remembered in the task */
void far_memory_moved(far_task *t);               /* something became free, or went back to the pool */
uint64_t far_memory_moved_by_others(far_task *t); /* counts that */
bool far_memory_is_asked(far_memory *m);          /* memory was found short since it last gave up what it could */
bool far_memory_is_wanted(far_memory *m);         /* by an operation of another session; no lock held */
void far_memory_look_again(far_memory *m);        /* also where it looked in this epoch */

/* slab.c: inside. 1: there is something now; 0: no. */
int far_slab_carve(far_task *t, far_class *class, unsigned node);
int far_slab_look(far_task *t, far_class *class, unsigned node);
int far_slabs_look(far_task *t); /* at all of them; 0 */
int far_block_get(far_task *t, far_class *class, unsigned node);
int far_slabs_trim(far_task *t, bool all);
int far_scour(far_task *t); /* memory is short: takes all orphans and all that others gave back, frees what is wholly
                               free; once per epoch */
int far_slab_release(far_task *t, far_addr base, bool dropped);   /* dropped: whatever is in it */
int far_memory_leave_blocks(far_task *t, bool all);               /* to the pool: all blocks, or those that have room */
int far_block_adopt(far_task *t, far_block_id id, uint64_t word); /* word: an orphan. 1: it is ours and loaded */
int far_pages_read(far_task *t, far_block_id id,
                   uint64_t pages[FAR_BLOCK_PAGES]); /* FAR_ERR_CORRUPT when they are not sound */

/* retire.c */
int far_memory_tell(far_task *t);                      /* others, what it holds beside live data */
int far_reclaim(far_task *t);                          /* frees what is past its time */
bool far_put_retired(far_memory *m, far_retired item); /* with the lock; false: to be given back at once */
uint64_t far_class_footprint(const far_memory *m, const far_class *class); /* bytes of far memory per object */
void far_class_purge(far_memory *m, far_class *class); /* with the lock: forgets all objects of it */

/* drop.c */
int far_drops_tick(far_task *t);                            /* inside */
bool far_drops_wait(far_memory *m);                         /* with the lock: a tick has something to look at */
bool far_drops_are_due(far_memory *m);                      /* with the lock: something that is gone is to be freed */
void far_drops_leave(far_memory *m, const far_held *block); /* with the lock: the block becomes nobody's */
int far_drops_leave_away(far_task *t, far_block_id id);     /* the same of one that is away */
void far_drops_hand_over(far_memory *m, far_memory *heir);  /* the session has ended, its blocks are nobody's */

/* keep.c */
int far_keep(far_task *t, far_class *class, const far_object *object, bool reserve);
bool far_kept_forget(far_memory *m, far_addr addr);              /* with the lock */
bool far_reserve_is_full(far_memory *m, const far_index *index); /* or it has none */
int far_reserve_fill(far_task *t, far_index *index);
bool far_reserve_take(far_task *t, far_class *class, unsigned node, bool must, far_object *object);
int far_keep_tick(far_task *t);
int far_keep_close(far_task *t);

/* alloc.c: an object of a class, without reserve, keeping and zeroing. */
int far_alloc_object(far_task *t, far_class *class, unsigned node, bool must, far_object *object, bool *zero);

#endif
