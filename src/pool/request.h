/* The one request of a pool: every handle brings home what it holds of others.
 *
 *   REQUEST  number 24 | sweep 24 << 24 | walk 1 << 48 | spare 1 << 49 | sweeper 14 << 50     (node 0, CAS only)
 *              number   of the request
 *              sweep    number of the sweep that runs, or ran last
 *              walk     its walk may be under way: nothing foreign is handed out
 *              spare    memory is short: blocks with room are given up
 *              sweeper  the handle that sweeps, 0 = nobody
 *   DONE     sweep 24 | count only 1 << 24: the marks of this sweep count                     (WRITE by the sweeper)
 *
 * A handle hears a request with the epoch, before its first pin at the next one, or on waking after its published pin
 * is visible and before its first pin. It answers with the number in its registry entry when all that it held free or
 * retired in blocks of others when it heard, or that an operation of it may have held then, is home. Who waits for
 * answers takes a handle that sleeps for one that has answered: it holds nothing of others, and hears before its next
 * pin. */
#ifndef FAR_POOL_REQUEST_H
#define FAR_POOL_REQUEST_H

#include "pool/superblock.h"

#include <assert.h>

typedef struct far_request {
    uint32_t number, sweep;
    bool walk, spare;
    unsigned sweeper;
} far_request;


static inline uint64_t far_request_pack(const far_request *r) {
    assert(r->number < 1u << 24 && r->sweep < 1u << 24 && r->sweeper < 1u << 14);
    return (uint64_t)r->number | (uint64_t)r->sweep << 24 | (uint64_t)r->walk << 48 | (uint64_t)r->spare << 49 |
           (uint64_t)r->sweeper << 50;
}


static inline far_request far_request_unpack(uint64_t word) {
    return (far_request){.number = (uint32_t)word & 0xffffff,
                         .sweep = (uint32_t)(word >> 24) & 0xffffff,
                         .walk = word >> 48 & 1,
                         .spare = word >> 49 & 1,
                         .sweeper = (unsigned)(word >> 50)};
}


static inline uint32_t far_number_next(uint32_t number) {
    return (number + 1) & 0xffffff;
}


/* Numbers of requests and sweeps go round. */
static inline bool far_number_is_newer(uint32_t a, uint32_t b) {
    return ((a - b) & 0xffffff) - 1 < 0x7fffff;
}


/* DONE has a hash in its upper bits: if damage made it name a sweep whose marks are not there, what is in use would be freed. */
static inline uint64_t far_done_pack(uint32_t sweep, bool count_only) {
    uint64_t low = (uint64_t)sweep | (uint64_t)count_only << 24;
    return low | (low + 1) * 0x9e3779b97f4a7c15ull >> 25 << 25;
}


static inline uint32_t far_done_sweep(uint64_t word) {
    return (uint32_t)word & 0xffffff;
}


static inline bool far_done_count_only(uint64_t word) {
    return word >> 24 & 1;
}


static inline bool far_done_is_sound(uint64_t word) {
    return word == far_done_pack(far_done_sweep(word), far_done_count_only(word));
}


/* By epoch.c, under its flag. heard_epoch: pins up to this epoch may have been held before. */
void far_request_hear(far_pool *pool, uint64_t word, uint64_t heard_epoch);
bool far_request_is_met(
    far_pool *pool); /* but for the pins: what it asks for is done. Asks for epochs, if it needs them */
uint32_t far_request_heard(far_pool *pool, uint64_t *epoch);

/* Changes the word as `change` says, which is shown what was read; again until nobody else was faster. Who asks others for
 * something gives it the next number. change: not 0 gives up, and is returned. */
int far_request_change(far_task *t, int (*change)(far_task *t, far_request *r, void *ctx), void *ctx,
                       far_request *made);
int far_request_only(far_task *t, far_request *r, void *ctx); /* a change: a number that asks for nothing but answers */

/* Makes a request that asks for nothing: a walk that rests hears by it that somebody waits, and rests no more. */
int far_request_attention(far_task *t);

/* A step of a task that waits, unpinned, for what housekeeping does: where nobody else may be there to tick and to drive
 * the sessions, it does. */
int far_attend(far_task *t);

/* Unpinned: until all have answered. 0: they have; 1: not yet, and the epoch has not moved for so long. */
int far_request_wait(far_task *t, uint32_t number, uint64_t patience);

/* What stands beside the request in the superblock, from FAR_SUPER_REQUEST to before FAR_SUPER_SLOTS_HIGH, was read. */
void far_line_learn(far_pool *pool, const uint64_t *words);
bool far_line_wants_sweep(far_pool *pool); /* as it was then */
int far_sweep_is_wanted(far_task *t);      /* by READs, now */

/* Something may have been lost: the next sweep finds it. */
int far_want_sweep(far_task *t);
void far_ring(far_task *t); /* where deaths are told: handles that sleep look at the pool */

#endif
