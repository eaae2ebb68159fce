/* The owner of a lock or of half-done work, as index kinds write it into far memory: which task of which incarnation of
 * which session.
 *
 *   bits 0..13   client: the session's id, 1..16382, so that an owner is never 0
 *   bits 14..29  generation of that id
 *   bits 30..37  task
 *
 * A kind embeds these 38 bits in a word of its own; the functions below ignore the bits above them. */
#ifndef FAR_POOL_OWNER_H
#define FAR_POOL_OWNER_H

#include "pool/clients.h"
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


static inline uint64_t far_owner_of_session(const far_task *t) { /* for what outlives the task */
    return far_owner_pack(far_task_client(t), far_task_generation(t), 0);
}


/* As far_is_dead: 1 only after the owner's session is fenced. */
static inline int far_owner_is_dead(far_task *t, uint64_t word) {
    return far_is_dead(t, far_owner_client(word), far_owner_generation(word));
}


/* As far_owner_is_dead, for a caller that waits for something the owner does with a pin. That the owner lives is then no
 * sign that it is at work: the epoch tells (task/patience.h). */
static inline int far_holder_is_dead(far_task *t, uint64_t word) {
    return far_is_dead_pinned(t, far_owner_client(word), far_owner_generation(word));
}


/* Plain locks: a word that is 0 when free and else far_owner_of_task of its holder. They protect what is published by
 * single verbs, so that nothing is half done when a holder dies: its lock is taken over as it is. */

/* 1: the task holds the lock. 0: somebody alive still held it at the last of `attempts` tries; the caller may drop its
 * pin, take a new one and try again. Asks whether the holder is dead at every ask_every-th failed try; 0: never. */
int far_lock_take(far_task *t, far_addr lock, unsigned attempts, unsigned ask_every);

/* For walks: of these lock words, as they were just read from `first` on, those of dead holders become free. */
int far_locks_free_dead(far_task *t, far_addr first, const uint64_t *words, unsigned count);

/* For checks, from a task without a pin. A word says that this client (id 0: nobody that can be) is at work there, which is
 * done with a pin. Waits for epochs, and has `look` look again, with a pin (1: all is as it was). Returns 1 when nothing has
 * changed: the client lives, and is not at work. */
int far_is_stuck(far_task *t, unsigned id, unsigned generation, int (*look)(far_task *t, void *arg), void *arg);

/* far_is_stuck for lock words that a check finds held: noted while the check has a pin, looked at when it has none. */
#define FAR_SUSPECTS_MAX 8 /* that one check looks at for long */

typedef struct far_suspects {
    unsigned count, found;
    struct {
        far_addr at;
        uint64_t word, owner; /* owner 0: it names nobody */
    } list[FAR_SUSPECTS_MAX];
} far_suspects;

struct far_report;
void far_suspect(far_suspects *all, far_addr at, uint64_t word, uint64_t owner);
int far_suspects_check(far_task *t, far_suspects *all,
                       struct far_report *report); /* forgets them; tells who is stuck */

#endif
