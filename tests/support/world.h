/* Basic functions for all tests with simulated handles: a new simulated world, handles in it, clients that are stopped
 * and resumed, access to far memory without verbs, and assertions for the end of a test. stage.h and the rigs use them.
 */
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

/* Makes a URI "sim:name=...,OPTIONS" with a name that was not used before. A failed test does not close its world, so
 * the name must not be used again. */
void world_uri(char uri[WORLD_URI], const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Opens another handle with one session. `options` may be NULL for the defaults. */
far_sim_world *world_join(const char *uri, const far_pool_options *options, far_pool **pool, far_session **session);

/* Waits until housekeeping has created the status record of a handle with an open index, so that the memory in use does
 * not change later for this reason. */
void world_await_status_record(far_sim_world *world, far_pool *pool);

far_sim_client *world_start(far_pool *pool, const char *name, void (*run)(void *arg), void *arg);
/* resumes the client and runs it until it reaches the point or verb */
void world_stop_at(far_sim_client *client, far_sim_match match);
void world_finish(far_sim_client *client); /* resumes the client and runs it to its end */

void *world_bytes(far_sim_world *world, far_addr addr);
uint64_t world_word(far_sim_world *world, far_addr addr);

/* asserts that no client has accessed memory that did not belong to it */
void world_assert_no_checker_error(far_sim_world *world);
/* asserts that a check without repair counts no leaked memory */
void world_assert_nothing_leaked(far_session *session);
/* runs a collection, then asserts that no memory is leaked */
void world_assert_nothing_leaked_after_collection(far_session *session);

#endif
