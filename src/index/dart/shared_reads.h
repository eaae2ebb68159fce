/* Sharing of READs between the descents of one multi-get: if several descents read the same bytes in one batch, only
 * one READ is sent, and its bytes are copied for the other descents. Descents call dart_add_shared_read instead of
 * far_read. */
#ifndef FAR_INDEX_DART_SHARED_READS_H
#define FAR_INDEX_DART_SHARED_READS_H

#include "task/task.h"

typedef struct dart_shared_entry { /* a READ of the pending batch */
    far_addr addr;                 /* address that is read; 0: unused entry */
    uint32_t bytes;
    void *to;
} dart_shared_entry;

typedef struct dart_copy { /* a copy to make when the batch has completed */
    void *to;
    const void *from;
    uint32_t bytes;
} dart_copy;

typedef struct dart_shared_reads {
    unsigned size;            /* capacity of both arrays, a power of two */
    unsigned count;           /* number of copies in `copies` */
    dart_shared_entry *reads; /* hash table by address and length */
    dart_copy *copies;
} dart_shared_reads;

/* Allocates the table in scratch memory, for this number of descents. Returns false if there is no memory. */
bool dart_shared_reads_init(far_task *t, dart_shared_reads *shared, size_t finds);
/* Returns true if the batch already contains a READ of these bytes; then these bytes will be copied to `to`. Otherwise
 * records this READ in the table, so that later calls find it, and returns false; the caller must then add the READ to
 * the batch. */
bool dart_shared_reads_join(dart_shared_reads *shared, far_addr addr, void *to, size_t bytes);
/* Called after the batch has completed: makes the copies, and empties the table for the next batch. */
void dart_shared_reads_copy(dart_shared_reads *shared);


/* Adds a READ to the batch, or shares a READ that the batch already contains. shared: the table of shared READs; NULL
 * if no READ is shared. */
static inline void dart_add_shared_read(far_task *t, dart_shared_reads *shared, far_addr addr, void *to, size_t bytes,
                                        unsigned flags) {
    if (!shared || !dart_shared_reads_join(shared, addr, to, bytes))
        far_read_marked(t, addr, to, bytes, flags);
}

#endif
