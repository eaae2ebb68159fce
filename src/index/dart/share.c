/* A table of the READs in the batch under way, by address and length. */
#include "index/dart/share.h"

#include <string.h>

#define READS_OF_FIND 4u /* of one descent in one batch, about */
#define PROBES        8u


bool dart_share_init(far_task *t, dart_shared *shared, size_t finds) {
    *shared = (dart_shared){.size = 16};
    while (shared->size < finds * READS_OF_FIND)
        shared->size *= 2;
    shared->reads = far_scratch(t, shared->size * sizeof(*shared->reads));
    shared->copies = far_scratch(t, shared->size * sizeof(*shared->copies));
    if (!shared->reads || !shared->copies)
        return false;
    memset(shared->reads, 0, shared->size * sizeof(*shared->reads));
    return true;
}


/* The READ of these bytes that is in the batch, or a place for it (addr 0); NULL: there is no room. */
static dart_shared_read *find_read(dart_shared *shared, far_addr addr, size_t bytes) {
    uint64_t hash = (addr ^ bytes << 48) * 0x9e3779b97f4a7c15ull;
    for (unsigned i = 0; i < PROBES; i++) {
        dart_shared_read *read = &shared->reads[((hash >> 32) + i) & (shared->size - 1)];
        if (read->addr == 0 || (read->addr == addr && read->bytes == bytes))
            return read;
    }
    return NULL;
}


bool dart_share_joins(dart_shared *shared, far_addr addr, void *to, size_t bytes) {
    dart_shared_read *read = find_read(shared, addr, bytes);
    if (read && read->addr && shared->count < shared->size) {
        shared->copies[shared->count++] = (dart_copy){to, read->to, (uint32_t)bytes};
        return true;
    }
    if (read && !read->addr)
        *read = (dart_shared_read){addr, (uint32_t)bytes, to};
    return false;
}


void dart_share_end(dart_shared *shared) {
    for (unsigned i = 0; i < shared->count; i++)
        memcpy(shared->copies[i].to, shared->copies[i].from, shared->copies[i].bytes);
    memset(shared->reads, 0, shared->size * sizeof(*shared->reads));
    shared->count = 0;
}
