/* A collection frees leaked memory while clients work. Memory is leaked if no index links it, it is not free, and no
 * live client holds it, for example because a client failed. One handle at a time is the collector; it runs
 * far_collect. README.md in this folder explains the protocol and proves it.
 *
 * - Step 1: the handle becomes the collector (request.h), finds the clients that have failed, and takes their blocks
 *   away.
 * - Step 2: it publishes a request with `walk` set. When all handles have acknowledged it, no operation holds a remote
 *   object that it got before.
 * - Step 3, the mark phase: it walks every index and writes a mark for each linked object into far memory. On the way
 *   it finds objects in use that have their free bit set (false_free.h).
 * - Step 4: it publishes a second request, with `walk` clear. When all handles have acknowledged it, the remote objects
 *   that they unlinked during the mark phase are returned.
 * - Step 5, the sweep phase: it writes DONE. Each owner then frees the leaked objects in its own blocks (sweep.c). The
 *   collector adopts orphans that contain leaked objects, and frees the ids of the failed clients. */
#ifndef FAR_POOL_GC_COLLECT_H
#define FAR_POOL_GC_COLLECT_H

#include "pool/format/superblock.h"

/* The receiver of a walk. The walk of an index reports every object that is linked during the whole walk. A caller that
 * starts a walk embeds this as the first field of a structure of its own. */
typedef struct far_walk far_walk;
struct far_walk {
    /* called for each object; returns 0 or an error, which ends the walk */
    int (*object)(far_walk *walk, far_index *index, unsigned type, far_addr addr, uint64_t size);
    /* set for statistics, where the walk should report no object twice; such a walk may miss an object that is being
     * moved at that moment */
    bool once;
};


static inline int far_walk_object(far_walk *walk, far_index *index, unsigned type, far_addr addr, uint64_t size) {
    return walk->object(walk, index, type, addr, size);
}


typedef enum {
    FAR_COLLECT_IN_BACKGROUND, /* runs in the background and leaves nine tenths of the processor's time to other work */
    FAR_COLLECT_REPAIR,        /* runs at full speed and waits until all owners have swept their blocks */
    FAR_COLLECT_COUNT,         /* finds and counts leaked objects, but frees no object */
    /* repairs like FAR_COLLECT_REPAIR, and also clears the free bits of objects in use; for a check with repair of a pool
     * that no other client has open */
    FAR_COLLECT_MEND,
    /* repairs like FAR_COLLECT_REPAIR, for an operation that found no memory; ends if the epoch does not advance */
    FAR_COLLECT_OUT_OF_MEMORY,
} far_collect_mode;

#define FAR_FALSE_FREE_TEXT 192 /* bytes of the description of an object in use with its free bit set */

typedef struct far_collect_result {
    uint64_t leaked_bytes;   /* bytes of leaked objects */
    uint64_t repaired_bytes; /* bytes of leaked objects that were freed */
    unsigned dead_clients;   /* number of ids of failed clients that became free */
    /* number of objects in use that had their free bit set; only the mode FAR_COLLECT_MEND clears the bits */
    unsigned false_free_bits;
    char false_free_text[FAR_FALSE_FREE_TEXT]; /* describes the first such object in words */
} far_collect_result;

/* Runs a collection; the caller has no pin. Returns FAR_ERR_BUSY if a live client is running one. Returns 1 if it ended
 * early, because a handle did not acknowledge a request while the epoch stood still; a collection in the background
 * waits instead, because no operation waits for it. */
int far_collect(far_task *t, far_collect_mode mode, far_collect_result *result);

/* The request word may name this handle as the collector although no task of the handle runs a collection: because of
 * damage, or because the session that ran the collection was lost before it could clear the name. All other handles would
 * then wait for this handle. far_is_wrongly_named_collector returns whether this was so in the request word as a tick
 * last read it. far_collector_name_clear, which may be called in any case, clears the name by CAS; that is safe while
 * other handles work, because only a collection of this handle may act under the name. */
bool far_is_wrongly_named_collector(far_pool *pool);
int far_collector_name_clear(far_task *t);

#endif
