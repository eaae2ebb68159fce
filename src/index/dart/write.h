/* What the writing operations share. */
#ifndef FAR_INDEX_DART_WRITE_H
#define FAR_INDEX_DART_WRITE_H

#include "index/dart/dart.h"

#include <string.h>

enum {
    DART_WRITE_DONE,
    DART_WRITE_ABSORBED, /* superseded at once by another write: nothing of it is linked */
    DART_WRITE_RESUME,   /* the descent goes on from a newer word */
    DART_WRITE_AGAIN,    /* the write starts over */
};

typedef struct dart_write {
    far_op_kind how;
    far_bytes key, value;
    far_addr leaf; /* the new one, private until it is linked */
    unsigned code;
    uint64_t leaf_bytes;
    far_addr old; /* the leaf whose place it took; 0: none */
    uint64_t old_bytes;
    unsigned lost; /* slots that others took first */
    dart_find find;
} dart_write;

/* All but the search, which dart_find_init begins. */
static inline void dart_write_init(dart_write *w, far_op_kind how, far_bytes key, far_bytes value) {
    memset(w, 0, offsetof(dart_write, find));
    w->find.path = (dart_path){0};
    w->how = how;
    w->key = key;
    w->value = value;
}


/* Locates and applies until it is done: DART_WRITE_DONE, _ABSORBED, or an error. */
int dart_write_run(far_task *t, far_index *index, dart_write *w,
                   int (*apply_one)(far_task *t, far_index *index, dart_write *w));
/* Calls apply_one, with lock_free=0 under the lock of the node concerned. */
int dart_write_locked(far_task *t, far_index *index, dart_write *w,
                      int (*apply_one)(far_task *t, far_index *index, dart_write *w));

/* One CAS of a slot, one round trip (with what was put before). */
int dart_write_cas(far_task *t, dart_write *w, far_addr slot, uint64_t expected, uint64_t desired, uint64_t *seen);
/* The node of a step is full, or frozen (begun): replaces it; the rider's change goes with it if it can. */
int dart_write_frozen(far_task *t, far_index *index, dart_write *w, unsigned at, bool begun, dart_rider rider);
int dart_write_resume(far_task *t, far_index *index, dart_write *w, unsigned at, uint64_t word);

#endif
