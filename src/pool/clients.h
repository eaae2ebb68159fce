/* The client registry: one 64-byte entry per session id on node 0.
 *   word 0  state 2 (0 free, 1 live, 2 dead: fenced, not yet swept) | generation 16 << 2 | id of its handle's own session 14 << 18
 *   word 1  the pin that its handle publishes (only in the entry of the handle's own session): an epoch, or 0 = none
 *   word 2  address of its table of kept objects (pool/alloc.h), 0 = none
 *   word 3  bytes it holds free, word 4  bytes it holds retired (as last told; for far_pool_stat)
 *   word 5  address of the handle's table of open indexes (pool/catalog.h), 0 = none; only in the entry of the handle's own session
 * An id goes free -> live (generation + 1) -> free at close, or live -> dead -> free after the sweep of what it left. The fabric knows
 * the pair before it is written here, so that whoever reads it can ask. A pair is never given out twice: an id whose generations are
 * used up stays dead for ever. */
#ifndef FAR_POOL_CLIENTS_H
#define FAR_POOL_CLIENTS_H

#include "pool/superblock.h"

#define FAR_CLIENT_BYTES 64
#define FAR_CLIENT_ID_MAX 16382u

typedef enum { FAR_CLIENT_FREE, FAR_CLIENT_LIVE, FAR_CLIENT_DEAD } far_client_state;


static inline uint64_t far_client_pack(far_client_state state, unsigned generation, unsigned handle) {
    return (uint64_t)state | (uint64_t)generation << 2 | (uint64_t)handle << 18;
}


static inline far_client_state far_client_state_of(uint64_t word) {
    return (far_client_state)(word & 3);
}


static inline unsigned far_client_generation_of(uint64_t word) {
    return (unsigned)(word >> 2) & 0xffff;
}


static inline unsigned far_client_handle_of(uint64_t word) {
    return (unsigned)(word >> 18) & 0x3fff;
}


static inline far_addr far_client_entry(unsigned id) {
    return far_addr_make(0, FAR_SUPER_REGISTRY + (uint64_t)id * FAR_CLIENT_BYTES);
}


/* Gives the task's session an id and a generation. handle = 0: it is the handle's own session. FAR_ERR_BUSY: no id is free. */
int far_client_register(far_task *t, unsigned handle);
int far_client_unregister(far_task *t); /* clean close: its memory was given back before */

/* True (1) only after the session is fenced: none of its verbs takes effect any more. Marks it dead in the registry. 0: it lives.
 * generation may be FAR_ANY_GENERATION: exact too, because an id is reused only after a sweep. Also 1 for a pair that was closed or
 * was never given out. May cost round trips. */
#define FAR_ANY_GENERATION 0x10000u
int far_is_dead(far_task *t, unsigned id, unsigned generation);

int far_clients_live(far_task *t, unsigned *count); /* how many sessions live */

#endif
