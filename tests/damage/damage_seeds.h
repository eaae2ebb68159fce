/* Which kinds and seeds a program of damages goes through, and on which pools. */
#ifndef TESTS_DAMAGE_SEEDS_H
#define TESTS_DAMAGE_SEEDS_H

#include "scene.h"

typedef struct damage_seeds {
    uint64_t first, last;
    const char *kind; /* NULL: all */
} damage_seeds;

/* "--kind KIND" and "--seeds FIRST..LAST". How many words of argv it took; 0: it is none of these. */
int damage_seeds_argument(damage_seeds *seeds, int argc, char **argv);

/* Runs each seed of each kind on one of six pools: of two layouts (options of the index), whose last client closed it, or
 * died in the middle of an operation. Returns the sum of what `run` returns. */
unsigned damage_seeds_run(const damage_seeds *seeds, const char *const layouts[2],
                          unsigned (*run)(const scene *s, uint64_t seed));

#endif
