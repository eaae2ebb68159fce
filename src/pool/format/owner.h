/* Owner words record in far memory which task holds a lock or has left a step half done.
 *
 *     bits 0..13   client: the session's id, 1 to 16382, so a valid owner is never 0
 *     bits 14..29  generation of that id
 *     bits 30..37  number of the task in that session
 *
 * An index embeds these 38 bits in a word of its own; the functions below ignore the upper bits. This file also
 * declares plain spin locks in far memory, and the check for locks that no running operation holds. */
#ifndef FAR_POOL_FORMAT_OWNER_H
#define FAR_POOL_FORMAT_OWNER_H

#include "pool/format/clients.h"
#include "task/task.h"

#include <assert.h>

#define FAR_OWNER_BITS 38
#define FAR_OWNER_MASK ((1ull << FAR_OWNER_BITS) - 1)


static inline uint64_t far_owner_pack(unsigned client, unsigned generation, unsigned task) {
    assert(client < 1u << 14 && generation < 1u << 16 && task < 1u << 8);
    return (uint64_t)client | (uint64_t)generation << 14 | (uint64_t)task << 30;
}


static inline unsigned far_owner_client(uint64_t word) {
    return (unsigned)word & 0x3fff;
}


static inline unsigned far_owner_generation(uint64_t word) {
    return (unsigned)(word >> 14) & 0xffff;
}


static inline uint64_t far_owner_of_task(const far_task *t) {
    return far_owner_pack(far_task_client(t), far_task_generation(t), far_task_number(t));
}


/* Returns the owner word for a lock or mark that is not bound to one task of the session; its task number is 0. */
static inline uint64_t far_owner_of_session(const far_task *t) {
    return far_owner_pack(far_task_client(t), far_task_generation(t), 0);
}


/* Like far_client_confirm_failed, returns 1 only after the session of the owner is fenced. */
static inline int far_owner_confirm_failed(far_task *t, uint64_t word) {
    return far_client_confirm_failed(t, far_owner_client(word), far_owner_generation(word));
}


/* Like far_owner_confirm_failed, for a caller that waits for a step that the owner performs under a pin. A live session
 * of the owner does not prove that the owner still works on the step, because after memory corruption the word may name
 * a client that never took the lock. Therefore this call does not reset the caller's progress detector
 * (task/progress.h), which decides by the epoch. */
static inline int far_holder_confirm_failed(far_task *t, uint64_t word) {
    return far_client_confirm_failed_pinned(t, far_owner_client(word), far_owner_generation(word));
}


/* Plain locks. A lock word is 0 if the lock is free, otherwise it is far_owner_of_task of the holder. Such a lock
 * protects changes that a single verb publishes, so a holder that fails leaves nothing half done, and the next client
 * simply takes over the lock. */

/* Acquires a lock. Returns 1 if the task holds it now. Returns 0 if a live client still held it at the last of
 * `attempts` tries; the caller may drop its pin, take a new one and try again. After every `ask_every` failed tries the
 * call checks whether the holder has failed; if `ask_every` is 0, it never checks. */
int far_lock_take(far_task *t, far_addr lock, unsigned attempts, unsigned ask_every);

/* For index walks. Releases the locks with a failed holder among `count` locks. `words` is the content that was just
 * read from far memory, starting at address `first`. */
int far_locks_release_failed(far_task *t, far_addr first, const uint64_t *words, unsigned count);

/* Confirms that a lock or mark is abandoned, which means that no running operation works on it. `id` and `generation`
 * are the client that a word in far memory names as the one at work; id 0 means that the word names no possible client.
 * An operation works under a pin, so an operation that was running ends within two epochs. The call therefore waits for
 * epochs several times. After each wait it calls `look`, with a pin; `look` returns 1 if everything is unchanged.
 * Returns 1 if nothing changed; then the client lives, but none of its operations is at work. Returns 0 if something
 * changed or the client failed. The caller must be a task without a pin. */
int far_confirm_abandoned(far_task *t, unsigned id, unsigned generation, int (*look)(far_task *t, void *arg),
                          void *arg);

/* Locks that a check found held, and for which far_confirm_abandoned must decide whether they are abandoned. A check
 * adds such locks while it holds a pin, and examines them later without a pin. */
#define FAR_SUSPECTS_MAX 8 /* number of suspects that one check examines, because each costs several epochs */

typedef struct far_suspects {
    unsigned count, found;
    struct {
        far_addr at;
        /* `word` is the content of the lock when the check found it held. `owner` is the owner that this content names,
         * 0 if it names none. */
        uint64_t word, owner;
    } list[FAR_SUSPECTS_MAX];
} far_suspects;

struct far_report;
void far_suspects_add(far_suspects *all, far_addr at, uint64_t word, uint64_t owner);
/* Examines all suspects and removes them from the list. Reports each abandoned lock as a problem. */
int far_suspects_check(far_task *t, far_suspects *all, struct far_report *report);

#endif
