/* The implementation of damage_seeds.h: creates the pools when they are needed, and runs the seeds on them. */
#include "damage_seeds.h"

#include <stdlib.h>
#include <string.h>

#define SCENES     6
#define NEW_SCENES 3000 /* After this number of seeds, new pools are created, in which clients failed at other verbs. */

static const char *const kinds[] = {"chime", "dart", "dolphin", "shard", "smart"};


int damage_seeds_argument(damage_seeds *seeds, int argc, char **argv) {
    char *end;
    if (argc < 2)
        return 0;
    if (strcmp(argv[0], "--kind") == 0) {
        seeds->kind = argv[1];
        return 2;
    }
    if (strcmp(argv[0], "--seeds") != 0)
        return 0;
    seeds->first = seeds->last = strtoull(argv[1], &end, 10);
    if (strncmp(end, "..", 2) == 0)
        seeds->last = strtoull(end + 2, NULL, 10);
    return 2;
}


static void free_scenes(scene *scenes) {
    for (unsigned i = 0; i < SCENES; i++)
        scene_free(&scenes[i]);
}


static unsigned run_seeds_of_kind(const damage_seeds *seeds, const char *kind, const char *const layouts[2],
                                  unsigned (*run)(const scene *s, uint64_t seed)) {
    static scene scenes[SCENES];
    unsigned failures = 0;
    for (uint64_t seed = seeds->first; seed <= seeds->last; seed++) {
        unsigned i = seed / 2 % SCENES;
        if (seed % NEW_SCENES == 0)
            free_scenes(scenes);
        if (!scenes[i].image)
            scene_make(&scenes[i], kind, layouts[i % 2], i >= 2, i + 1 + seed / NEW_SCENES * SCENES);
        failures += run(&scenes[i], seed);
    }
    free_scenes(scenes);
    return failures;
}


unsigned damage_seeds_run(const damage_seeds *seeds, const char *const layouts[2],
                          unsigned (*run)(const scene *s, uint64_t seed)) {
    unsigned failures = 0;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (!seeds->kind || strcmp(seeds->kind, kinds[i]) == 0)
            failures += run_seeds_of_kind(seeds, kinds[i], layouts, run);
    return failures;
}
