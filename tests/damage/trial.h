/* A trial: one damaged pool, and every call on it. What is wrong is told on stdout, with the seed: a call that posts more
 * verbs than it may, an error without words, a value that its key never had, damage that an operation stumbles over and
 * check does not name, and a pool that check calls sound and cannot be used. */
#ifndef TESTS_DAMAGE_TRIAL_H
#define TESTS_DAMAGE_TRIAL_H

#include "scene.h"

#define TRIAL_VERBS_OF_OP  20000
#define TRIAL_VERBS_OF_ALL 200000 /* of a call that looks at the whole pool */

/* Of all trials. */
extern bool trial_is_verbose;
extern bool trial_has_sums; /* the indexes have checksum=on: no damage at all gives a wrong value */

/* Damages the memory as it stands, and says how. */
typedef void (*trial_harm)(const scene *s, far_random *random, damage *d, const void *arg);

/* Odd seeds damage a pool that is in use, whose handle has caches and free memory. Returns how much was wrong. */
unsigned trial_run(const scene *s, uint64_t seed, trial_harm harm, const void *arg);

uint64_t trial_most_verbs(bool of_all); /* that a call has posted so far */

#endif
