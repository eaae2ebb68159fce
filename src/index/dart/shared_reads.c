/* A hash table of the READs in the pending batch, by address and length. The descents of a multi-get use the table to
 * share READs. shared_reads.h describes the sharing. */
#include "index/dart/shared_reads.h"

#include <string.h>

#define READS_OF_FIND 4u /* estimated number of READs that one descent adds to a batch */
#define PROBES        8u /* positions of the hash table that are searched for a READ */


bool dart_shared_reads_init(far_task *t, dart_shared_reads *shared, size_t finds) {
    *shared = (dart_shared_reads){.size = 16};
    while (shared->size < finds * READS_OF_FIND)
        shared->size *= 2;
    shared->reads = far_scratch(t, shared->size * sizeof(*shared->reads));
    shared->copies = far_scratch(t, shared->size * sizeof(*shared->copies));
    if (!shared->reads || !shared->copies)
        return false;
    memset(shared->reads, 0, shared->size * sizeof(*shared->reads));
    return true;
}


/* Returns the entry of the READ of these bytes. If the table has no such READ, returns an unused entry (addr 0) that
 * may hold it; NULL if all positions that its hash permits are taken by other READs. */
static dart_shared_entry *find_read(dart_shared_reads *shared, far_addr addr, size_t bytes) {
    uint64_t hash = (addr ^ bytes << 48) * 0x9e3779b97f4a7c15ull;
    for (unsigned i = 0; i < PROBES; i++) {
        dart_shared_entry *read = &shared->reads[((hash >> 32) + i) & (shared->size - 1)];
        if (read->addr == 0 || (read->addr == addr && read->bytes == bytes))
            return read;
    }
    return NULL;
}


bool dart_shared_reads_join(dart_shared_reads *shared, far_addr addr, void *to, size_t bytes) {
    dart_shared_entry *read = find_read(shared, addr, bytes);
    if (read && read->addr && shared->count < shared->size) {
        shared->copies[shared->count++] = (dart_copy){to, read->to, (uint32_t)bytes};
        return true;
    }
    if (read && !read->addr)
        *read = (dart_shared_entry){addr, (uint32_t)bytes, to};
    return false;
}


void dart_shared_reads_copy(dart_shared_reads *shared) {
    for (unsigned i = 0; i < shared->count; i++)
        memcpy(shared->copies[i].to, shared->copies[i].from, shared->copies[i].bytes);
    memset(shared->reads, 0, shared->size * sizeof(*shared->reads));
    shared->count = 0;
}
