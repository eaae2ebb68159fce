/* The declarations that the files of the toy map share. layout.h defines the bytes in far memory. */
#ifndef FAR_INDEX_TOY_TOY_H
#define FAR_INDEX_TOY_TOY_H

#include "index/toy/layout.h"

enum { TOY_OPTION_SLOTS = FAR_OPTIONS_COMMON, TOY_OPTION_LOCKS, TOY_OPTION_BROKEN };

/* Deliberate faults, one small deviation from the protocol each, by the option broken=.. . Tests of the test kit prove
 * that it finds them. The places are in find.c, write.c and lock.c. */
typedef enum toy_fault {
    TOY_SOUND,
    TOY_LOST_UPDATE,    /* overwrites the slot by a WRITE instead of the CAS */
    TOY_TORN_READ,      /* overwrites a value of the same size in place, without protection from readers */
    TOY_EARLY_FREE,     /* frees buckets at once instead of retiring them */
    TOY_FORGOTTEN_LOCK, /* takes locks, but never takes over the lock of a failed client */
    TOY_DROPPED_WRITE,  /* reports success although the CAS failed */
    TOY_UNORDERED,      /* puts the WRITE of a bucket and the CAS of its slot on another memory node into one batch */
    TOY_STALE_CACHE,    /* caches slot words and never READs them again */
    TOY_BACKWARD_GAP,   /* leaves out the second pair of each backward chunk */
} toy_fault;

typedef struct toy_state { /* local state of an open index in one handle */
    uint64_t slots;
    unsigned stripes, slot_bytes;
    bool locks;
    toy_fault fault;
    uint64_t seed;
    _Atomic uint64_t *cache; /* TOY_STALE_CACHE: the slot words that were READ; 0: not yet */
    far_addr stripe[FAR_NODES_MAX];
} toy_state;

/* A bucket as it was READ, in scratch memory */
typedef struct toy_image {
    uint64_t word;      /* the word of the slot; 0: the slot has no bucket */
    toy_bucket *bucket; /* NULL if the slot has no bucket */
} toy_image;

/* Iterates over the pairs of a sound bucket; all fields but `bucket` begin with zero */
typedef struct toy_cursor {
    const toy_bucket *bucket;
    uint32_t done;
    uint64_t at; /* offset of the next pair */
    far_bytes key, value;
} toy_cursor;

/* bucket.c has pure functions on images in local memory. */
bool toy_bucket_is_sound(const toy_bucket *bucket, uint64_t room); /* room is the size of the bucket's object */
bool toy_next(toy_cursor *cursor); /* sets key and value to the next pair; false if there are no more pairs */
/* bucket may be NULL; false if it does not contain the key */
bool toy_find(const toy_bucket *bucket, far_bytes key, far_bytes *value);
/* Builds, in scratch memory, the bucket with this pair added or replaced; value NULL: without the key. *made is NULL if
 * that bucket would be empty. */
int toy_rebuild(far_task *t, const toy_bucket *old, far_bytes key, const far_bytes *value, toy_bucket **made);

/* find.c has gets, and READs of slots and buckets. */
uint64_t toy_slot_of(const far_index *index, far_bytes key);
far_addr toy_slot_addr(const toy_state *state, uint64_t slot);
/* READs the bucket that a slot word names, waits, and checks it */
int toy_read_bucket(far_task *t, far_index *index, uint64_t word, toy_image *image);
int toy_read_slot(far_task *t, far_index *index, uint64_t slot, toy_image *image);
int toy_get(far_task *t, far_index *index, far_bytes key, far_out *out);
int toy_get_many(far_task *t, far_index *index, size_t count, const far_bytes keys[], far_out *outs[], int results[]);

/* write.c has the entry functions of writes. */
int toy_put(far_task *t, far_index *index, far_op_kind how, far_bytes key, far_bytes value);
int toy_remove(far_task *t, far_index *index, far_bytes key);

/* lock.c has the locks of slots, for locks=on. */
int toy_lock_slot(far_task *t, far_index *index, uint64_t slot);
int toy_unlock_slot(far_task *t, far_index *index, uint64_t slot);
int toy_free_dead_lock(far_task *t, far_index *index, uint64_t slot, uint64_t lock);

/* scan.c has scans. */
int toy_scan(far_task *t, far_index *index, far_scan_chunk *scan);

/* check.c has walk, check and usage. */
int toy_walk(far_task *t, far_index *index, far_walk *walk);
int toy_check(far_task *t, far_index *index, far_report *report);
int toy_usage(far_task *t, far_index *index, far_usage *usage);
int toy_object_keys(far_task *t, far_index *index, unsigned type, const void *object, uint64_t bytes, far_keys *keys);


static inline toy_state *toy_state_of(const far_index *index) {
    return index->state;
}

#endif
