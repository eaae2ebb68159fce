/* Which kinds and seeds a program with damages runs, and on which pools it runs them. */
#ifndef TESTS_DAMAGE_SEEDS_H
#define TESTS_DAMAGE_SEEDS_H

#include "scene.h"

typedef struct damage_seeds {
    uint64_t first, last;
    const char *kind; /* kind of index for which the seeds are run; NULL: all kinds */
} damage_seeds;

/* Parses "--kind KIND" or "--seeds FIRST..LAST" at the beginning of argv. Returns the number of words used, or 0 if
 * argv begins with neither. */
int damage_seeds_argument(damage_seeds *seeds, int argc, char **argv);

/* Runs each seed of each kind on one of six pools. The pools have one of two layouts (options of the index), and their
 * last client has either closed the pool or failed in the middle of an operation. Returns the sum of the results of
 * `run`. */
unsigned damage_seeds_run(const damage_seeds *seeds, const char *const layouts[2],
                          unsigned (*run)(const scene *s, uint64_t seed));

#endif
