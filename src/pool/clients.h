/* The client registry: one 64-byte entry per session id on node 0.
 *
 *   word 0     state 2 (0 free, 1 live, 2 dead: fenced, not yet swept) | generation 16 << 2 | its handle << 18: the id
 *              of the handle's own session
 *   word 1  *  the pin that its handle publishes: an epoch, or 0 = none
 *   word 2  *  number of the last request that the handle has answered (pool/request.h)
 *   word 3  *  bytes that the handle holds free, as last told
 *   word 4  *  bytes that it holds retired, as last told
 *   word 5  *  address of the handle's table of open indexes, or the only one (pool/catalog_layout.h), 0 = none
 *   word 6  *  the last sweep that the handle has settled 24 | bytes / 16 that it found lost 40 << 24
 *   word 7  *  counts what became free in the handle, as last told
 *
 *   (* only in the entry of the handle's own session.)
 *
 * An id goes free -> live (generation + 1) -> free at close, or live -> dead -> free after the sweep of what it left.
 * The fabric knows the pair before it is written here, so that whoever reads it can ask. A pair is never given out
 * twice: an id whose generations are used up stays free for ever.
 *
 * Words 1..7 of a free entry are zero: whoever frees it (its session at a clean close, or the one sweeper) zeroes them
 * first. Word 1 counts as long as any session of the handle lives, so the entry of the handle's own session is freed
 * after all the others. */
#ifndef FAR_POOL_CLIENTS_H
#define FAR_POOL_CLIENTS_H

#include "pool/superblock.h"

#include <assert.h>

#define FAR_CLIENT_BYTES  64
#define FAR_CLIENT_ID_MAX 16382u

typedef enum { FAR_CLIENT_FREE, FAR_CLIENT_LIVE, FAR_CLIENT_DEAD } far_client_state;


static inline uint64_t far_client_pack(far_client_state state, unsigned generation, unsigned handle) {
    assert(generation < 1u << 16 && handle < 1u << 14);
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


static inline uint64_t far_settled_pack(uint32_t sweep, uint64_t bytes) {
    return (uint64_t)sweep | bytes / 16 << 24;
}


static inline uint32_t far_settled_sweep(uint64_t word) {
    return (uint32_t)word & 0xffffff;
}


static inline uint64_t far_settled_bytes(uint64_t word) {
    return (word >> 24) * 16;
}


typedef struct far_client { /* an entry as it lies in far memory */
    uint64_t word;
    uint64_t pin, answered;
    uint64_t free_bytes, retired_bytes;
    far_addr opened;
    uint64_t settled, returned;
} far_client;

_Static_assert(sizeof(far_client) == FAR_CLIENT_BYTES, "an entry is one line");


/* Gives the task's session an id and a generation. handle = 0: it is the handle's own session. FAR_ERR_BUSY: no id is
 * free. */
int far_client_register(far_task *t, unsigned handle);
int far_client_unregister(far_task *t); /* clean close: its memory was given back before */

/* True (1) only after the session is fenced: none of its verbs takes effect any more. Marks it dead in the registry. 0:
 * it lives. generation may be FAR_ANY_GENERATION: exact too, because an id is reused only after a sweep. Also 1 for a
 * pair that was closed or was never given out. May cost round trips. */
#define FAR_ANY_GENERATION 0x10000u
int far_is_dead(far_task *t, unsigned id, unsigned generation);
/* As far_is_dead, for a caller that waits for something which the client would do with a pin: see far_holder_is_dead. */
int far_is_dead_pinned(far_task *t, unsigned id, unsigned generation);

int far_clients_ask(
    far_task *t); /* whether all that seem to live do; who does not is marked dead, and a sweep wanted */
int far_clients_live(far_task *t, unsigned *count); /* how many sessions live */

/* Shows every entry that was ever used, in order, as READs saw it (after this call began). A non-zero return of each
 * ends it and is returned. each may use the task. */
int far_clients_each(far_task *t, int (*each)(far_task *t, void *ctx, unsigned id, const far_client *client),
                     void *ctx);

/* 1: no session of this handle (the id of its own session) lives. Those that seem to are asked for. */
int far_client_handle_gone(far_task *t, unsigned handle);

int64_t far_client_process(far_task *t, unsigned id,
                           unsigned generation); /* of this host; 0: the fabric does not know */
#define FAR_CLIENT_WORDS 64
void far_client_words(far_task *t, unsigned id, unsigned generation, char words[FAR_CLIENT_WORDS]);

/* For the sweep, which must be the only one running (it holds the sweep word): a dead session of which nothing is left
 * becomes free. 1: done (or this generation is not dead); 0: not yet, it is the own session of a handle of which others
 * live. */
int far_client_free(far_task *t, unsigned id, unsigned generation);

#endif
