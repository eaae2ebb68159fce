/* What every test on simulated compute nodes needs, whatever it does with them: a world of its own, handles on it,
 * clients that are stopped and run on, looks at far memory behind the verbs, and what must hold at the end. stage.h and
 * the rigs stand on it. */
#ifndef TESTS_SUPPORT_WORLD_H
#define TESTS_SUPPORT_WORLD_H

#include "fabric/sim/sim.h"
#include "farindex.h"
#include "pool/handle.h"
#include "problem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define WORLD_URI 256

/* "sim:name=..,OPTIONS" with a name that was not used before: a test that failed leaves its world behind. */
void world_uri(char uri[WORLD_URI], const char *format, ...) __attribute__((format(printf, 2, 3)));
/* One more compute node with one session; options NULL: the usual ones. */
far_sim_world *world_join(const char *uri, const far_pool_options *options, far_pool **pool, far_session **session);

far_sim_client *world_start(far_pool *pool, const char *name, void (*run)(void *arg), void *arg);
void world_stop_at(far_sim_client *client, far_sim_match match); /* resumes it, and runs it up to there */
void world_finish(far_sim_client *client);                       /* resumes it, and runs it to its end */

void *world_bytes(far_sim_world *world, far_addr addr);
uint64_t world_word(far_sim_world *world, far_addr addr);

void world_assert_watch_is_content(far_sim_world *world); /* nobody touched memory that was not its own */
void world_assert_nothing_leaked(far_session *session);   /* as a check without repair finds */
void world_assert_nothing_lost(far_session *session);     /* the same after a sweep */

#endif
