/* The client registry has one 64-byte entry per session id, on node 0. It records which sessions live, and publishes
 * the state of each handle. A handle publishes its state in the entry of its system session (the session of its
 * housekeeping); the entries of its other sessions only name the handle.
 *
 *     word 0     state 2 bits | generation 16 bits << 2 | handle 14 bits << 18
 *                state: 0 free, 1 live, 2 fenced (the session failed; a collection has not yet covered its memory)
 *                handle: id of the system session of the session's handle
 *     word 1  *  published pin of the handle: an epoch, or 0 if the handle is quiescent
 *     word 2  *  number of the last request that the handle acknowledged (pool/gc/request.h)
 *     word 3  *  bytes that the handle holds free, as last published
 *     word 4  *  bytes that the handle holds retired, as last published
 *     word 5  *  address of the handle's status record (pool/handle.h); 0 if it has none
 *     word 6  *  number of the last collection whose sweep phase the handle finished, 24 bits
 *                | bytes / 16 that it found leaked, 40 bits << 24
 *     word 7     0
 *
 *     (* used only in the entry of a system session)
 *
 * The states of an id are: free -> live (with the next generation) -> free when the session closes, or live -> fenced
 * -> free after a collection has recovered the memory of the failed session. The session registers the pair {id,
 * generation} with the fabric before it writes the pair here, so any client that reads the entry can check the
 * session's liveness. A pair is never issued twice, because an id stays free for ever once its 16-bit generations are
 * used up.
 *
 * Words 1 to 7 of a free entry are zero, because the client that frees the entry zeroes them first: the session itself
 * when it closes, or the collector (there is only one at a time). Word 1 counts while any session of the handle is
 * live, because each session may hold a pin. Therefore the entry of the system session is freed last. */
#ifndef FAR_POOL_FORMAT_CLIENTS_H
#define FAR_POOL_FORMAT_CLIENTS_H

#include "pool/format/superblock.h"

#include <assert.h>

#define FAR_CLIENT_BYTES  64
#define FAR_CLIENT_ID_MAX 16382u

typedef enum { FAR_CLIENT_FREE, FAR_CLIENT_LIVE, FAR_CLIENT_FENCED } far_client_state;


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


static inline uint64_t far_swept_pack(uint32_t sweep, uint64_t bytes) {
    return (uint64_t)sweep | bytes / 16 << 24;
}


static inline uint32_t far_swept_collection(uint64_t word) {
    return (uint32_t)word & 0xffffff;
}


static inline uint64_t far_swept_leaked_bytes(uint64_t word) {
    return (word >> 24) * 16;
}


typedef struct far_client { /* An entry in the layout of far memory; the comment above describes the words. */
    uint64_t word;
    uint64_t pin, answered;
    uint64_t free_bytes, retired_bytes;
    far_addr status;
    uint64_t settled, unused;
} far_client;

_Static_assert(sizeof(far_client) == FAR_CLIENT_BYTES, "an entry is one line");


/* Registers the task's session. It claims a free id and sets the session's id and generation. `handle` is the id of the
 * handle's system session, or 0 if this session becomes the system session. Returns FAR_ERR_BUSY if no id is free. */
int far_client_register(far_task *t, unsigned handle);
/* Frees the entry of a session that closes cleanly and has given back its memory. Returns 0 or an error. */
int far_client_unregister(far_task *t);

/* Confirms that a session has failed. Returns 1 only after the session is fenced, so none of its verbs takes effect any
 * more. Before it returns 1, the call also marks the registry entry as fenced and adds 1 to the loss counter. Returns 0
 * if the session lives. Also returns 1 for a pair {id, generation} that was closed or never issued. With
 * FAR_ANY_GENERATION the result is exact too, because an id is issued again only after a collection has removed every
 * reference to the failed session. The call may cost round trips. */
#define FAR_ANY_GENERATION 0x10000u
int far_client_confirm_failed(far_task *t, unsigned id, unsigned generation);
/* Like far_client_confirm_failed, for a caller that waits for a step that the other client performs under a pin. The
 * caller's progress detector keeps running; far_holder_confirm_failed explains why. */
int far_client_confirm_failed_pinned(far_task *t, unsigned id, unsigned generation);

/* Checks the liveness of all sessions that are registered as live. Fences those that have failed, and marks them as
 * failed. */
int far_clients_check_liveness(far_task *t);
int far_clients_live(far_task *t, unsigned *count); /* counts the sessions that are registered as live */

/* Calls `each` for every entry that was ever used, in ascending order of ids, with the content that a READ returned
 * after this call began. If `each` returns non-zero, the iteration ends with that value. `each` may run verbs in the
 * task. Returns FAR_ERR_CORRUPT if the number of used entries is damaged, so that it excludes a session of this handle.
 */
int far_clients_each(far_task *t, int (*each)(far_task *t, void *ctx, unsigned id, const far_client *client),
                     void *ctx);

/* The clients of other handles that live. */
typedef struct far_other_clients {
    unsigned count;  /* number of their sessions */
    char names[160]; /* describes them in words, as many as fit */
} far_other_clients;
int far_clients_find_others(far_task *t, far_other_clients *others);

/* Reports a damaged number of used entries, or corrects it with `repair`. */
struct far_report;
int far_clients_check_used(far_task *t, bool repair, struct far_report *report);

/* Returns 1 if no session of this handle lives; `handle` is the id of its system session. Checks the liveness of every
 * session that is registered as live, and fences those that failed. */
int far_handle_confirm_failed(far_task *t, unsigned handle);

int64_t far_client_process(far_task *t, unsigned id,
                           unsigned generation); /* process id of the client; 0 if the fabric does not know it */
#define FAR_CLIENT_DESCRIPTION 64
void far_client_describe(far_task *t, unsigned id, unsigned generation, char words[FAR_CLIENT_DESCRIPTION]);

/* Frees the id of a failed session after a collection has recovered all its memory. Only the collector calls this
 * function, and the request word names the only collector, so no other client changes the entry. Returns 1 if the id is
 * free now or this generation was freed before; 0 if the id is that of a system session while other sessions of its
 * handle still live. */
int far_client_free(far_task *t, unsigned id, unsigned generation);

#endif
