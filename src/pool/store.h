/* What a handle holds of far memory, in local memory: its blocks and slabs, the free objects in them, free objects in
 * the blocks of others, and, for each session, small lists to hand out from and the retired objects that wait for their
 * epoch. Private to the allocator; README.md in this folder tells how the parts work together.
 *
 * Words. Own: in a block that this handle owns. Foreign: in any other block; runs are foreign to everybody. In store:
 * an own free object that is in no session's list. Home: free, and its bit is set in far memory. Black: this handle had
 * the own object in hand since it heard of a sweep, so that sweep must not free it.
 *
 * Locks, in this order: far_store.list, far_memory.lock of a session, far_store.lock. None is held across a verb. Work
 * on blocks and slabs that takes verbs is done by one task of the handle at a time (far_store_enter), with a pin. */
#ifndef FAR_POOL_STORE_H
#define FAR_POOL_STORE_H

#include "base/mutex.h"
#include "pool/blocks.h"
#include "pool/handle.h"
#include "pool/kind.h"

#include <pthread.h>

/* Flags of an object in a list, above its address. */
#define FAR_ITEM_ZERO  (1ull << 63) /* all its bytes are zero */
#define FAR_ITEM_FRESH (1ull << 62) /* and its memory was never used before */


static inline far_addr far_item_addr(uint64_t item) {
    return item & 0xffffffffffffull;
}


typedef struct far_items {
    uint64_t *items;
    uint32_t count, capacity;
} far_items;

typedef struct far_class far_class;
typedef struct far_held far_held;
typedef struct far_slab far_slab;

struct far_slab {
    far_held *block;
    far_class *class;
    uint8_t page, pages;
    uint32_t objects;
    uint32_t carved;                  /* objects from here on were never handed out: in store, zero bytes */
    uint32_t stored;                  /* objects below that are in store */
    uint64_t looked;                  /* epoch in which its bits in far memory were last read */
    unsigned idle;                    /* ticks for which it has been wholly in store */
    far_slab *next, **link;           /* of all slabs of the shelf */
    far_slab *open_next, **open_link; /* of those with objects in store; link NULL: it has none */
    uint64_t *black;                  /* bit per object, behind those of `stored` */
    uint64_t in_store[];              /* bit per object */
};

typedef struct far_shelf { /* of a class on one node */
    far_slab *slabs, *open;
    uint32_t slab_count;
    far_items foreign;
} far_shelf;

struct far_class { /* objects of one index, type and size; lives as long as the handle */
    uint32_t uid;
    unsigned type;
    uint64_t size;
    uint64_t footprint; /* bytes of far memory per object: of runs whole blocks */
    unsigned quantum;   /* objects that a magazine takes from the store at once; twice as many fit */
    bool stable, is_run;
    _Atomic(const far_type *) info; /* NULL until the index is met */
    _Atomic(far_index *) index;     /* NULL: not open here; changed under the store's lock */
    far_class *next;
    far_shelf shelf[]; /* per node */
};

struct far_held { /* a block that this handle owns */
    far_block_id id;
    bool used;                       /* was somebody's before, or pages of it were wiped */
    uint32_t stamp;                  /* the last sweep for which nothing in it is to be settled */
    uint32_t kept;                   /* objects of it that sessions keep: it is not given up */
    bool spared;                     /* an object of it is held back for updates: it is not given up (exchange.c) */
    uint64_t free_pages;             /* bit per page */
    far_slab *slab[FAR_BLOCK_PAGES]; /* by every page of it */
    far_held *next, **link;
};

typedef struct far_leaving { /* a foreign object on its way home */
    far_addr addr;
    far_class *class;
} far_leaving;

typedef struct far_retired {
    far_addr addr;
    far_class *class;
    uint64_t pin;   /* epoch under which it was retired; 0: not known yet */
    uint64_t ready; /* epoch at which it is free */
} far_retired;

typedef struct far_queue { /* a ring; its capacity is a power of two */
    far_retired *items;
    size_t first, count, capacity;
} far_queue;

#define FAR_QUEUES_MAX 16 /* by the epochs that their types wait longer than others */

typedef struct far_bin { /* a session's list of a class */
    far_class *class;
    struct far_bin *next;
    far_items magazine[]; /* per node */
} far_bin;

typedef struct far_kept {
    uint64_t item;
    far_class *class;
    bool reserve; /* held for the index's reserve; else handed out, and the session's own */
} far_kept;

/* Which list serves an index, a type and a size as they are asked for: remembered, and checked when it is used. */
typedef struct far_recent {
    const far_index *index;
    uint64_t size;
    unsigned type;
    far_bin *bin; /* NULL: none */
} far_recent;

#define FAR_BINS             64
#define FAR_RECENT           16
#define FAR_MAGAZINE_OBJECTS 32 /* taken from the store at once */

typedef struct far_memory { /* of a session */
    far_session *session;
    struct far_store *store;
    far_mutex lock;
    far_recent recent[FAR_RECENT];
    far_bin *bins[FAR_BINS];
    uint64_t magazine_bytes;
    far_queue queues[FAR_QUEUES_MAX];
    uint64_t retired_bytes;
    uint64_t asked;       /* the epoch in which the next one was last asked for */
    uint64_t asked_since; /* bytes retired since then */
    far_kept *kept;
    uint32_t kept_count, reserves; /* of these, so many are reserve */
    struct far_reserved {
        uint32_t uid;
        bool complete;
    } * reserved; /* the indexes with a reserve that were written to */
    uint32_t reserved_count;
    far_task *filler; /* the task that fills a reserve */
    unsigned pick;    /* node for the next object that may lie anywhere */
    struct far_memory *next;
} far_memory;

typedef struct far_told { /* what a handle tells others in its registry entry */
    uint64_t free_bytes, retired_bytes, settled, returned;
} far_told;

typedef struct far_line { /* words of the superblock as a tick last read them */
    _Atomic uint64_t done, wanted, swept, catalog, uids;
    atomic_uint sweeper;
} far_line;

typedef struct far_store {
    far_pool *pool;
    uint64_t pile; /* bytes that a session retires before it asks for the next epoch */

    /* The last sweep heard of, and the last one for which all own blocks are settled: black counts until then. Changed
     * under the lock, looked at without: far_is_unsettled. */
    _Atomic uint32_t sweep, settled;

    pthread_mutex_t list; /* the sessions */
    far_memory *memories;

    pthread_mutex_t lock;
    far_class *classes[FAR_BINS];
    _Atomic(far_held *) *held; /* by block number; changed under the lock, looked at without: far_is_own */
    far_held *blocks[2];       /* with free pages; without */
    uint32_t block_count;
    far_addr freed_wrongly; /* | 1: an address that came back and is no object in use, or still is; 0: none */
    uint64_t spare_bytes;   /* in store, and free pages of own blocks apart */
    uint64_t foreign_bytes; /* in the shelves */
    far_leaving *leaving;   /* to be brought home */
    size_t leaving_count;
    uint64_t leaving_bytes; /* of these, and of those that a task brings home just now; 0: nothing is leaving */

    far_task *inside;  /* the task that changes blocks and slabs; what follows is its own */
    unsigned turn;     /* node for the next slab that may lie anywhere */
    uint32_t *hint;    /* per node: where free blocks were last seen */
    uint64_t gathered; /* the epoch in which alloc.c last gathered all free memory it could find */
    uint64_t *full;    /* per node: the epoch in which no block was found there */

    /* The request (request.c); heard and below under the lock. */
    uint32_t heard;       /* number */
    uint64_t heard_epoch; /* pins up to this epoch may hold what they got before */
    bool walk;            /* a walk may be under way: nothing foreign is handed out */
    bool missed;          /* a sweep was not settled before the next was heard of */
    uint32_t gave_up;     /* the last number for which blocks with room were given up */
    uint32_t proved;      /* the last number for which the table of open indexes was compared */
    bool spare;           /* the request heard asks for blocks with room ... */
    bool all_spare;       /* ... and the one before did not help: now for blocks with any room */
    uint64_t spare_epoch; /* in which a request with `spare` was last heard */

    uint64_t stuck_epoch, stuck_since; /* the epoch that another client held up when no memory was found; since when */

    far_line line;
    atomic_bool ticking;     /* a tick of the memory is running */
    uint64_t ticked;         /* epoch of the last one */
    far_told told;           /* what the registry says */
    far_told noticed;        /* what it was at the last tick: told to others when two ticks find no change */
    uint64_t leaked;         /* bytes found, or to be freed, in own blocks by the last sweep */
    uint64_t catalog_seen;   /* the catalog word when own slabs were last compared with it */
    far_items dropped;       /* uids of indexes that this handle has dropped: they are freed in blocks of nobody too */
    atomic_bool trim;        /* slabs may have become wholly free */
    atomic_bool wants_sweep; /* something was lost: FAR_SUPER_WANTED is to be raised */
    atomic_bool recount;     /* a session was lost: blocks may be ours that are not held */
    far_items wiping;        /* runs that tasks of this handle are just wiping, by their addresses */

    atomic_bool sweeping; /* a task of this handle sweeps */
    uint64_t marks_max;   /* bytes of local memory for the marks of one; else it is made in parts */

    atomic_uint returned;  /* counts what became free */
    uint64_t exhausted;    /* what others had told when nothing more could be had (shortage.c); 0: it could */
    uint32_t spare_number; /* of the last request for spare memory that this handle made, or waited for */
} far_store;

extern const far_type far_pool_type; /* of objects without an index */


static inline far_store *far_store_of(const far_task *t) {
    return t->session->pool->store;
}


static inline far_memory *far_memory_of(const far_task *t) {
    return t->session->memory;
}


static inline bool far_is_own(const far_store *s, far_addr addr) {
    far_block_id id;
    return far_block_of(&s->pool->geometry, addr, &id) &&
           atomic_load_explicit(&s->held[far_block_number(&s->pool->geometry, id)], memory_order_acquire);
}


/* Black counts: a sweep that was heard of is not settled. With the store's lock, or that of a session: who hears of a
 * sweep visits all sessions after that, under their locks, so one that did not see it yet is still to be visited. */
static inline bool far_is_unsettled(const far_store *s) {
    return atomic_load_explicit(&s->sweep, memory_order_relaxed) !=
           atomic_load_explicit(&s->settled, memory_order_relaxed);
}


/* store.c: with the store's lock unless said otherwise. */
far_class *far_class_get(far_store *s, uint32_t uid, unsigned type, uint64_t size, bool stable);
far_held *far_held_at(const far_store *s, far_addr addr);
far_held *far_held_add(far_store *s, far_block_id id, bool used, uint32_t stamp); /* NULL: no memory */
void far_held_pages(far_store *s, far_held *block, uint64_t free_pages);          /* these pages are free now */
far_held *far_held_next(const far_store *s, const far_held *block);               /* of all; NULL: the first */
void far_held_remove(far_store *s, far_held *block);                              /* and its slabs */
bool far_held_load(far_store *s, far_held *block, const uint64_t pages[FAR_BLOCK_PAGES]);
far_slab *far_slab_add(far_store *s, far_held *block, unsigned page, unsigned pages, far_class *class);
void far_slab_remove(far_store *s, far_slab *slab); /* its pages are not free yet */
far_slab *far_slab_at(const far_store *s, far_addr addr);
far_slab *far_slab_in(const far_held *block, const far_slab *previous); /* one after the other, from NULL on */
far_slab *far_slab_next(const far_store *s, const far_slab *previous);  /* the same, of all blocks */
far_addr far_slab_base(const far_store *s, const far_slab *slab);


static inline far_index *far_class_index(const far_class *class) {
    return atomic_load_explicit(&class->index, memory_order_acquire);
}


static inline const far_type *far_class_info(const far_class *class) {
    return atomic_load_explicit(&class->info, memory_order_acquire);
}


/* Updates swap its objects: a session holds back the last free one for them. */
static inline bool far_class_is_swapped(const far_class *class) {
    const far_type *info = far_class_info(class);
    return info && info->swapped;
}


static inline uint64_t far_page_mask(unsigned page, unsigned pages) {
    return (pages == 64 ? UINT64_MAX : ((1ull << pages) - 1)) << page;
}


static inline bool far_slab_is_free(const far_slab *slab) {
    return slab->stored + (slab->objects - slab->carved) == slab->objects;
}


/* An object becomes free in this handle: to the store if it is own, to the foreign shelf or, if a request or its pin
 * asks for that, on its way home. Forgotten if its slab belongs to another class by now (its index was dropped). */
void far_store_put(far_store *s, far_class *class, far_addr addr, uint64_t pin);
void far_store_send_home(far_store *s, far_class *class, far_addr addr);
void far_store_withdraw(far_store *s, far_slab *slab, uint32_t number); /* in store, and in use: it is not handed out */

/* As far_store_put, but to the session's magazine if that has room: what was used last is the next to be handed out.
 * With the session's lock too. */
void far_magazine_put(far_memory *m, far_class *class, far_addr addr, uint64_t pin);
void far_store_blacken(far_store *s, far_addr addr); /* if it is own */

/* Up to `wanted` objects on the node, foreign ones first (own_only: none of them); how many. */
unsigned far_store_take(far_store *s, far_class *class, unsigned node, unsigned wanted, bool own_only,
                        uint64_t items[]);

bool far_items_enlarge(far_items *list); /* false: no memory */


static inline bool far_items_add(far_items *list, uint64_t item) { /* false: no memory */
    if (list->count == list->capacity && !far_items_enlarge(list))
        return false;
    list->items[list->count++] = item;
    return true;
}


/* What a session holds, with its lock. */
far_bin *far_bin_of(far_memory *m, far_class *class);
far_bin *far_bin_remember(far_memory *m, far_index *index, unsigned type, uint64_t size);


static inline far_recent *far_recent_of(far_memory *m, unsigned type, uint64_t size) {
    return &m->recent[(type + size / FAR_GRANULE) % FAR_RECENT];
}


/* NULL: it is not remembered. An index that was closed may have left its address to another: its classes do not name it
 * any more. */
static inline far_bin *far_bin_known(far_memory *m, const far_index *index, unsigned type, uint64_t size) {
    const far_recent *r = far_recent_of(m, type, size);
    bool known = r->bin && r->index == index && r->size == size && r->type == type;
    return known && far_class_index(r->bin->class) == index ? r->bin : NULL;
}


/* NULL: no memory, no such type. */
static inline far_bin *far_bin_get(far_memory *m, far_index *index, unsigned type, uint64_t size) {
    far_bin *bin = far_bin_known(m, index, type, size);
    return bin ? bin : far_bin_remember(m, index, type, size);
}


/* Goes through all objects that sessions hold: in magazines, retired, kept. The functions say whether the object
 * stays in its list; they run with the locks of the session and of the store. begin runs before, with the locks of the
 * list of sessions, which stays locked, and of the store; false: there is nothing to be done. held_back is called
 * instead of in_magazine for the one object of each class that the session holds back for updates of an index that is
 * open here; NULL: that object is one in a magazine as all others. */
typedef struct far_visit {
    bool (*begin)(far_store *s, void *ctx);
    bool (*in_magazine)(far_store *s, far_class *class, uint64_t item, void *ctx);
    bool (*held_back)(far_store *s, far_class *class, uint64_t item, void *ctx);
    bool (*retired)(far_store *s, const far_retired *item, void *ctx);
    void (*kept)(far_store *s, const far_kept *kept, void *ctx);
    void *ctx;
} far_visit;
void far_store_visit(far_store *s, const far_visit *visit);
void far_memory_visit(far_store *s, far_memory *m, const far_visit *visit);   /* of one session, with both locks */
bool far_item_to_store(far_store *s, far_class *c, uint64_t item, void *ctx); /* in_magazine: it does not stay */
void far_magazines_empty(far_store *s);                                       /* to the store, of all sessions */
void far_magazines_trim(far_store *s, far_class *all); /* but for what is held back, unless of class `all` */
void far_shelves_leave(far_store *s);                  /* with the store's lock: the foreign objects there go home */

/* One task of the handle at a time. */
void far_store_enter(far_task *t);
void far_store_leave(far_task *t);

typedef struct far_aside { /* verbs of the allocator's own, apart from those the operation has put and not posted */
    struct far_batch_box *open;
    int refused;
    bool background;
} far_aside;
far_aside far_aside_begin(far_task *t);
void far_aside_end(far_task *t, far_aside aside);

/* slabs.c: inside, with a pin. 1: there is something now; 0: no. */
int far_slab_cut(far_task *t, far_class *class, unsigned node);   /* in a block that is held */
int far_slabs_look(far_task *t, far_class *class, unsigned node); /* for what others brought home */
int far_slabs_look_at_all(far_task *t);                           /* as far_slabs_look, of all classes; 0 */
int far_slab_release(far_task *t, far_addr base, bool dropped);   /* wipes it; dropped: whatever is in it */
int far_slabs_trim(far_task *t, bool all); /* gives back slabs that are wholly free, and blocks */

/* exchange.c: blocks that change hands; inside, with a pin. 1: there is something now; 0: no. */
int far_block_get(far_task *t, far_class *class, unsigned node); /* a free one, or an orphan with room for the class */
int far_block_adopt(far_task *t, far_block_id id, const uint64_t *entry);  /* of an orphan */
int far_orphan_adopt(far_task *t, far_block_id id, const uint64_t *entry); /* the same, by a task that is not inside */
int far_orphans_adopt(far_task *t);                                        /* all of them */
typedef enum { FAR_GIVE_UP_ROOMY, FAR_GIVE_UP_ALL, FAR_GIVE_UP_AT_END } far_give_up;
int far_blocks_orphan(far_task *t, far_give_up which); /* roomy: those with room; all but those with kept objects or of
                                                          dropped indexes; at the end, these too */
int far_blocks_recount(far_task *t); /* a session was lost: takes in blocks that are ours and not held */
int far_bits_add(far_task *t, far_leaving *objects, size_t count);     /* brings objects of slabs home; by any task */
int far_store_free_run(far_task *t, far_block_id head, uint64_t word); /* by any task; 0: somebody else freed it */

/* retire.c */
void far_queue_put(far_memory *m, far_retired item); /* with the session's lock */
int far_reclaim(far_task *t, far_memory *m); /* frees some of the session's that are past their time: how many */
void far_reclaim_all(far_task *t);           /* of all sessions; runs are leaving then */
int far_send_home(far_task *t);              /* what is leaving */
bool far_has_retired(far_store *s, uint64_t up_to, bool foreign_only); /* under a pin up to that epoch */

/* settle.c: inside, with a pin. */
int far_settle_step(far_task *t);
bool far_settle_is_due(far_store *s);               /* by any task */
int far_settle_block(far_task *t, far_held *block); /* that was just adopted: before anything of it is handed out */

/* request.c */
void far_foreign_leave(far_store *s); /* of shelves and magazines: on its way home */
bool far_retired_blacken(far_store *s, const far_retired *item,
                         void *ctx); /* for visits: what is own, black; it stays */

/* upkeep.c: of all handles; this one is asked directly, the others have told. returned changes when something becomes free
 * in another handle, or one comes or goes. */
int far_told_sum(far_task *t, far_told *sum);

/* shortage.c */
void far_memory_returned(far_store *s); /* something became free, or went back to the pool */

/* kept.c: what a session keeps for itself. */
bool far_reserve_is_full(far_memory *m, const far_index *index); /* with the lock; or the index has none */
int far_reserve_fill(far_task *t, far_index *index);
bool far_reserve_take(far_memory *m, far_class *class, unsigned node, bool must, uint64_t *item); /* with the lock */
int far_keep(far_memory *m, far_class *class, uint64_t item,
             bool reserve); /* with the lock. 0: it is not own any more */
void far_kept_remove(far_memory *m, far_addr addr);
void far_kept_free(far_memory *m, bool all); /* with the lock: what is of indexes not open here; or all that it keeps */
void far_kept_free_closed(far_store *s);     /* without locks: far_kept_free(m, false) of all sessions */


/* With the lock: an object is freed, or retired, that it may have kept. */
static inline void far_kept_forget(far_memory *m, far_addr addr) {
    if (m->kept_count > m->reserves)
        far_kept_remove(m, addr);
}


/* alloc.c: an object of a class, own if it must be, without reserve and zeroing. */
int far_alloc_item(far_task *t, far_class *class, unsigned node, bool must, bool own_only, uint64_t *item);

#endif
