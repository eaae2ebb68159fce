/* A rig for damaged pools: a `local` pool in one thread, in virtual time, whose verbs are counted and can be cut off.
 *
 * The pool's memory is kept as an image, so that each damage begins with the same pool. A call that posts more verbs
 * than it may counts as a hang: its session is then fenced, so that it ends and the run goes on.
 *
 * Linked with --wrap=far_local_open: the rig stands between the pool and the fabric. */
#ifndef TESTS_DAMAGE_RIG_H
#define TESTS_DAMAGE_RIG_H

#include "base/host.h"
#include "fabric/fabric.h"
#include "farindex.h"

#include <stdbool.h>
#include <stdint.h>

#define RIG_NODES 2
#define RIG_BYTES (2u << 20) /* of a memory node */
#define RIG_URI   "local:2x2M?name=damaged"

extern const far_pool_options rig_options; /* without a thread of its own */

void rig_start(void); /* once: the rig's own time and secrets, and the memory, which stays */
void rig_end(void);

char *rig_memory(unsigned node);
void rig_seed(uint64_t seed); /* of secrets, and of all that is random in the pool */

/* Copies of the whole pool. */
char *rig_image(void);
void rig_restore(const char *image);

/* Verbs that may be posted from now on; then all sessions are fenced. */
void rig_allow(uint64_t verbs);
bool rig_is_cut(void);     /* more were posted than was allowed */
void rig_cut_here(void);   /* called then: for a debugger */
uint64_t rig_posted(void); /* since rig_allow */

void rig_refuse_evictions(bool refuse);                /* whoever is to be evicted cannot be */
void rig_meanwhile(void (*run)(void *arg), void *arg); /* whenever somebody waits; NULL: nothing more */
void rig_at_verbs(void (*run)(void *arg), void *arg);  /* whenever some are posted; it posts none. NULL: nothing more */
void rig_pass_time(uint64_t ns);                       /* virtual */

/* An image is taken when so many verbs were posted from now on (0: never): what a client leaves that dies there. */
void rig_image_at(uint64_t verbs);
char *rig_taken(void); /* NULL: it did not come to that */

#endif
