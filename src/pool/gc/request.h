/* The request is one word of the superblock, by which a client demands that every handle returns the remote objects
 * that it holds (objects in blocks of other handles), and waits until all handles have done so. Below, the fields of a
 * word are given by their name, their width in bits and, after <<, their position.
 *
 *     REQUEST  number 24 | collection 24 << 24 | walk 1 << 48 | release_blocks 1 << 49 | collector 14 << 50
 *              on node 0, changed by CAS only
 *                number          of the request
 *                collection      number of the collection that runs, or ran last
 *                walk            its mark phase may be in progress: no handle hands out remote objects
 *                release_blocks  memory is short: handles release blocks with free space
 *                collector       id of the handle that runs the collection, 0 if none
 *     DONE     collection 24 | count only 1 << 24 | hash 39 << 25
 *              on node 0, written by the collector: the marks of this collection are valid
 *
 * A handle observes a request together with a new epoch, before it takes its first pin at that epoch. A handle that
 * becomes active observes the request after its published pin is visible and before it takes its first pin. A request
 * concerns all remote objects that the handle held free or retired when it observed the request, or that one of its
 * operations may have held then. The handle acknowledges the number of the request in its registry entry when all these
 * objects are returned. A client that waits for acknowledgements counts a quiescent handle as one that has
 * acknowledged, because such a handle holds no remote objects and observes the request before its next pin. */
#ifndef FAR_POOL_GC_REQUEST_H
#define FAR_POOL_GC_REQUEST_H

#include "pool/format/superblock.h"

#include <assert.h>

typedef struct far_request {
    uint32_t number, collection;
    bool walk, release_blocks;
    unsigned collector;
} far_request;


static inline uint64_t far_request_pack(const far_request *r) {
    assert(r->number < 1u << 24 && r->collection < 1u << 24 && r->collector < 1u << 14);
    return (uint64_t)r->number | (uint64_t)r->collection << 24 | (uint64_t)r->walk << 48 |
           (uint64_t)r->release_blocks << 49 | (uint64_t)r->collector << 50;
}


static inline far_request far_request_unpack(uint64_t word) {
    return (far_request){.number = (uint32_t)word & 0xffffff,
                         .collection = (uint32_t)(word >> 24) & 0xffffff,
                         .walk = word >> 48 & 1,
                         .release_blocks = word >> 49 & 1,
                         .collector = (unsigned)(word >> 50)};
}


static inline uint32_t far_number_next(uint32_t number) {
    return (number + 1) & 0xffffff;
}


/* Returns whether a is newer than b. Numbers of requests and of collections wrap around. */
static inline bool far_number_is_newer(uint32_t a, uint32_t b) {
    return ((a - b) & 0xffffff) - 1 < 0x7fffff;
}


/* Packs DONE. The upper bits of DONE are a hash of its other bits. Without the hash a damaged word could name a
 * collection without valid marks, and owners would free objects in use. */
static inline uint64_t far_done_pack(uint32_t collection, bool count_only) {
    uint64_t low = (uint64_t)collection | (uint64_t)count_only << 24;
    return low | (low + 1) * 0x9e3779b97f4a7c15ull >> 25 << 25;
}


static inline uint32_t far_done_collection(uint64_t word) {
    return (uint32_t)word & 0xffffff;
}


static inline bool far_done_count_only(uint64_t word) {
    return word >> 24 & 1;
}


static inline bool far_done_is_sound(uint64_t word) {
    return word == far_done_pack(far_done_collection(word), far_done_count_only(word));
}


/* Observes a request word that was read together with an epoch. Pins up to `epoch` may hold remote objects that they
 * got before the request was observed. Called by pool/epoch/epoch.c while its flag `waking` is set. */
void far_request_observe(far_pool *pool, uint64_t word, uint64_t epoch);

/* Returns true if this handle has met all demands of the observed request, except that old pins may still be held. If
 * retired objects must wait for further epochs before they can be returned, requests one advance of the epoch. */
bool far_request_advance(far_pool *pool);

/* Returns the number of the request that this handle observed last, and sets *epoch to the epoch in which the handle
 * observed it. */
uint32_t far_request_observed(far_pool *pool, uint64_t *epoch);

/* Changes the request word. `change` gets the current fields and modifies them; it is called again whenever another
 * client changes the word first. A change that demands something from other handles must take the next number. If
 * `change` returns a value other than 0, the word stays as it is and the value is returned. */
int far_request_change(far_task *t, int (*change)(far_task *t, far_request *r, void *ctx), void *ctx,
                       far_request *made);
/* A function for `change` that takes the next number and demands only acknowledgements. */
int far_request_next_number(far_task *t, far_request *r, void *ctx);

/* Publishes a request that demands only acknowledgements. A throttled walk that observes a new request stops pausing,
 * because a client may be waiting for it. */
int far_request_publish_empty(far_task *t);

/* Executes one step of a wait by a task without a pin. If no other thread may be executing the housekeeping of this
 * handle, the step includes a tick. */
int far_housekeeping_step(far_task *t);

/* Waits until all handles have acknowledged the request. The caller has no pin. Returns 0 if all handles have
 * acknowledged; 1 if the epoch has not advanced for the time `timeout` and some handle has not acknowledged. */
int far_request_wait(far_task *t, uint32_t number, uint64_t timeout);

/* Stores copies of the words of the superblock from FAR_SUPER_REQUEST to before FAR_SUPER_SLOTS_HIGH, which were just
 * read. */
void far_superblock_copy_store(far_pool *pool, const uint64_t *words);
/* Returns whether a collection is requested, according to the copies that far_superblock_copy_store made. */
bool far_collection_was_requested(far_pool *pool);
/* Reads whether a collection is requested. Returns 1, 0 or an error. */
int far_collection_is_requested(far_task *t);

/* Requests a collection, because memory may have leaked. */
int far_collection_request(far_task *t);
/* Wakes the housekeeping of quiescent handles, so that they read the superblock at once. */
void far_wake_quiescent_handles(far_task *t);

#endif
