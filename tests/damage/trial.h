/* A trial: one damaged pool, and every call of the library on it. A failure of the trial is printed to stdout, with the
 * seed. Failures are: a call that posts more verbs than its limit, an error without a message, a value that its key
 * never had, a damage that makes an operation fail while check does not report it, and a pool that check reports as
 * sound but that cannot be used. */
#ifndef TESTS_DAMAGE_TRIAL_H
#define TESTS_DAMAGE_TRIAL_H

#include "scene.h"

#define TRIAL_VERBS_OF_OP  20000
#define TRIAL_VERBS_OF_ALL 200000 /* largest number of verbs of a call that traverses the whole pool */

/* settings for all trials */
extern bool trial_is_verbose;
extern bool trial_has_sums; /* true if the indexes have checksum=on, so that no damage may lead to a wrong value */

/* Damages the present memory of the pool, and describes the damage in `d`. */
typedef void (*trial_harm)(const scene *s, far_random *random, damage *d, const void *arg);

/* Runs one trial. Trials with odd seeds damage a pool while a handle with caches and free memory is using it. Returns
 * the number of failures. */
unsigned trial_run(const scene *s, uint64_t seed, trial_harm harm, const void *arg);

uint64_t trial_most_verbs(bool of_all); /* returns the largest number of verbs that a call has posted so far */

#endif
