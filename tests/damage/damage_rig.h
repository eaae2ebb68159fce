/* A rig for tests with damaged pools. It provides a `local` pool that runs in one thread and in virtual time; the verbs
 * of the pool are counted and can be cut off.
 *
 * A copy of the pool's memory is kept, so that each damage begins with the same pool. A call that posts more verbs than
 * its limit counts as a hang: the rig fences its session, so the call ends and the test continues.
 *
 * Programs are linked with --wrap=far_local_open, by which the rig gets between the pool and the fabric. */
#ifndef TESTS_DAMAGE_RIG_H
#define TESTS_DAMAGE_RIG_H

#include "base/host.h"
#include "fabric/fabric.h"
#include "farindex.h"

#include <stdbool.h>
#include <stdint.h>

#define RIG_NODES 2
#define RIG_BYTES (2u << 20) /* bytes of a memory node */
#define RIG_URI   "local:2x2M?name=damaged"

extern const far_pool_options rig_options; /* pool options without a housekeeping thread */

/* Test group fixtures. rig_start installs the virtual time and seeded secrets, and creates the pool's memory, which
 * remains until rig_end. */
int rig_start(void **state);
int rig_end(void **state);

char *rig_memory(unsigned node);
void rig_seed(uint64_t seed); /* seeds the secrets, and with them all random decisions of the pool */

/* The next functions copy the memory of the whole pool, and restore it from a copy. */
char *rig_copy_pool(void);
void rig_restore_pool(const char *image);

/* Sets the number of verbs that may be posted from now on. If more are posted, all sessions are fenced. */
void rig_limit_verbs(uint64_t verbs);
bool rig_limit_is_exceeded(void); /* returns whether more verbs were posted than the limit allows */
void rig_break_here(void);        /* place for a breakpoint; called by every post after the limit was exceeded */
uint64_t rig_posted_verbs(void);  /* returns the number of verbs posted since rig_limit_verbs */

void rig_refuse_evictions(bool refuse);                        /* makes every eviction fail */
/* calls `run` whenever a task waits; NULL ends these calls */
void rig_run_while_waiting(void (*run)(void *arg), void *arg);
/* Calls `run` whenever verbs are posted. `run` must not post verbs itself. NULL ends these calls. */
void rig_run_at_verbs(void (*run)(void *arg), void *arg);
void rig_advance_time(uint64_t ns); /* advances the virtual time */

/* Copies the pool after this number of further verbs (0: never). The copy is the pool that a client leaves which fails
 * at that verb. */
void rig_copy_pool_after(uint64_t verbs);
/* returns the copy made by rig_copy_pool_after, or NULL if the number of verbs was not reached */
char *rig_copied_pool(void);

#endif
