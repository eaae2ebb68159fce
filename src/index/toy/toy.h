/* The toy map: what its files share. */
#ifndef FAR_INDEX_TOY_TOY_H
#define FAR_INDEX_TOY_TOY_H

#include "index/toy/layout.h"

enum { TOY_OPTION_SLOTS = FAR_OPTIONS_COMMON, TOY_OPTION_LOCKS, TOY_OPTION_BROKEN };

/* Faults on purpose, one small deviation each: what the test kit must find. See write.c and find.c for the places. */
typedef enum toy_fault {
    TOY_SOUND,
    TOY_LOST_UPDATE,    /* WRITEs the slot instead of the CAS */
    TOY_TORN_READ,      /* overwrites a value of the same size where it lies */
    TOY_EARLY_FREE,     /* frees what others may still read */
    TOY_FORGOTTEN_LOCK, /* locks, and nobody takes over the lock of a dead client */
    TOY_DROPPED_WRITE,  /* says done when the CAS was lost */
    TOY_UNORDERED,      /* bucket and slot on different nodes, written in one batch */
    TOY_STALE_CACHE,    /* remembers slot words and never looks again */
} toy_fault;

typedef struct toy_state { /* of an open index */
    uint64_t slots;
    unsigned stripes, slot_bytes;
    bool locks;
    toy_fault fault;
    uint64_t seed;
    _Atomic uint64_t *cache; /* TOY_STALE_CACHE: slot words seen; 0 = none */
    far_addr stripe[FAR_NODES_MAX];
} toy_state;

/* A bucket in scratch memory. */
typedef struct toy_image {
    uint64_t word;      /* of the slot; 0: there is no bucket */
    toy_bucket *bucket; /* NULL then */
} toy_image;

/* Walks over the pairs of a sound bucket. */
typedef struct toy_cursor {
    const toy_bucket *bucket;
    uint32_t done;
    uint64_t at; /* offset of the next pair */
    far_bytes key, value;
} toy_cursor;

/* bucket.c: pure functions on images. */
bool toy_bucket_is_sound(const toy_bucket *bucket, uint64_t room);        /* room: of its object */
bool toy_next(toy_cursor *cursor);                                        /* false: no more pairs */
bool toy_find(const toy_bucket *bucket, far_bytes key, far_bytes *value); /* bucket may be NULL */
/* The bucket with the pair put in (value NULL: left out), in scratch memory. *made NULL: it would be empty. */
int toy_rebuild(far_task *t, const toy_bucket *old, far_bytes key, const far_bytes *value, toy_bucket **made);

/* find.c */
uint64_t toy_slot_of(const far_index *index, far_bytes key);
far_addr toy_slot_addr(const toy_state *state, uint64_t slot);
int toy_read_bucket(far_task *t, far_index *index, uint64_t word, toy_image *image); /* checked; waited for */
int toy_read_slot(far_task *t, far_index *index, uint64_t slot, toy_image *image);
int toy_get(far_task *t, far_index *index, far_bytes key, far_out *out);
int toy_get_many(far_task *t, far_index *index, size_t count, const far_bytes keys[], far_out *outs[], int results[]);

/* write.c */
int toy_put(far_task *t, far_index *index, far_op_kind how, far_bytes key, far_bytes value);
int toy_remove(far_task *t, far_index *index, far_bytes key);

/* lock.c */
int toy_lock_slot(far_task *t, far_index *index, uint64_t slot);
int toy_unlock_slot(far_task *t, far_index *index, uint64_t slot);
int toy_free_dead_lock(far_task *t, far_index *index, uint64_t slot, uint64_t lock);

/* scan.c */
int toy_scan(far_task *t, far_index *index, far_scan_chunk *scan);

/* check.c */
int toy_walk(far_task *t, far_index *index, far_walk *walk);
int toy_check(far_task *t, far_index *index, far_report *report);
int toy_usage(far_task *t, far_index *index, far_usage *usage);


static inline toy_state *toy_state_of(const far_index *index) {
    return index->state;
}

#endif
