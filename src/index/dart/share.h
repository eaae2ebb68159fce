/* READs that several descents of one multi-get share: of equal ones in a batch one is sent, and its bytes are copied to
 * the others. */
#ifndef FAR_INDEX_DART_SHARE_H
#define FAR_INDEX_DART_SHARE_H

#include "task/task.h"

typedef struct dart_shared_read {
    far_addr addr; /* 0: none here */
    uint32_t bytes;
    void *to;
} dart_shared_read;

typedef struct dart_copy {
    void *to;
    const void *from;
    uint32_t bytes;
} dart_copy;

typedef struct dart_shared {
    unsigned size, count; /* size: a power of two; room for as many READs, and copies, of one batch */
    dart_shared_read *reads;
    dart_copy *copies;
} dart_shared;

/* In scratch memory; false: there is none. */
bool dart_share_init(far_task *t, dart_shared *shared, size_t finds);
/* True: the batch has a READ of these bytes, and they are copied from there; else it is the one that others copy from. */
bool dart_share_joins(dart_shared *shared, far_addr addr, void *to, size_t bytes);
/* The batch was waited for. */
void dart_share_end(dart_shared *shared);


/* As far_read and far_mark; shared NULL: just that. */
static inline void dart_share_read(far_task *t, dart_shared *shared, far_addr addr, void *to, size_t bytes,
                                   unsigned flags) {
    if (!shared || !dart_share_joins(shared, addr, to, bytes))
        far_read_marked(t, addr, to, bytes, flags);
}

#endif
