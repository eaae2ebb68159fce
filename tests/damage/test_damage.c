/* Tests of damaged pools. They prove that every call on a damaged pool ends within bounded work, counted in verbs; that
 * no call returns a value that its key never had; and that check reports every damage that makes an operation fail.
 *
 * test_damage [--kind KIND] [--seeds FIRST..LAST] [--owners] [--marks] [--checksum] [--verbose]      `make fuzz` runs
 * more seeds. With --owners every damage is a word that names a live client, as if it held a lock; with --marks the
 * damage is in mark bitmaps; with --checksum all indexes have checksum=on */
#include "damage_seeds.h"
#include "test.h"
#include "trial.h"

#include <stdlib.h>
#include <string.h>

#define SEED_FIRST  301 /* first seed; the seeds from here on include every kind of hang that was ever found */
#define SEED_LAST   700 /* last seed for each kind of index */
#define SUM_SEEDS   60  /* number of seeds that are also run with checksums */
#define MARK_SEEDS  80  /* number of seeds that damage mark bitmaps */

static const char *const layouts[][2] = {{"", "key_size=8,value_size=8"},
                                         {"checksum=on", "key_size=8,value_size=8,checksum=on"}};

static damage_seeds seeds = {SEED_FIRST, SEED_LAST, NULL};
static bool owners, marks;
static bool sums_only; /* true: runs all seeds with checksums, and no seed without */

static void damage_pool(const scene *s, far_random *random, damage *d, const void *arg) {
    (void)arg;
    (owners ? scene_damage_owner : marks ? scene_damage_marks : scene_damage)(s, random, d);
}


static unsigned run_trial(const scene *s, uint64_t seed) {
    return trial_run(s, seed, damage_pool, NULL);
}


static void run_all_seeds(void) {
    unsigned failures = damage_seeds_run(&seeds, layouts[trial_has_sums], run_trial);
    printf("most verbs of one call: %llu, %llu\n", (unsigned long long)trial_most_verbs(false),
           (unsigned long long)trial_most_verbs(true));
    assert_int_equal(failures, 0);
}


TEST(damages_of_every_kind_end_in_bounded_work) {
    run_all_seeds();
}


/* Proves that in indexes with checksums no damage leads to a wrong value. */
TEST(checksums_find_damaged_values) {
    trial_has_sums = true;
    if (seeds.last - seeds.first > SUM_SEEDS && !sums_only)
        seeds.last = seeds.first + SUM_SEEDS;
    run_all_seeds();
}


TEST(mark_bitmaps) {
    const damage_seeds all = seeds;
    seeds.last = seeds.first + MARK_SEEDS;
    marks = true;
    trial_has_sums = false;
    run_all_seeds();
    marks = false;
    seeds = all;
}


/* Each seed in the table damages a pool in a way that an earlier version did not survive: a call destroyed sound parts
 * of the pool, or blocked all clients. Proves that all calls on these pools end now, and that check reports the damage.
 * The comment of an entry names the damaged words and, after a semicolon, the error of the earlier version if it was
 * recorded. */
TEST(earlier_findings_stay_fixed) {
    static const struct {
        const char *kind;
        bool owners, sums;
        uint64_t seed;
    } found[] = {
        /* key block of a fence; the walk of a collection skipped leaves, and their value blocks were freed */
        {"chime", false, false, 1205},
        {"chime", true, false, 1389},    /* key block of a fence */
        {"chime", false, false, 2644},   /* key block of a fence */
        {"chime", false, false, 2123},   /* registry entry of a session, which then names a failed handle as its own */
        {"dolphin", true, false, 1525},  /* DONE, which then marks a collection as complete before it has begun */
        {"dolphin", false, false, 1011}, /* entries of the root, all zero */
        {"dolphin", false, false, 1314}, /* lock words of the root, all zero */
        {"dolphin", false, false, 1660}, /* prefix word and first entries of a node, all zero */
        {"dolphin", false, false, 2113}, /* value word, which then refers to the block of another key */
        {"dolphin", true, false, 146},   /* entry of the root, which then has another key byte */
        /* slot of the root; caches still contained the nodes below it, which had been freed */
        {"smart", false, false, 981},
        {"shard", false, false, 1738}, /* address of a partition, which then leads to no control block */
        {"shard", false, false, 146},  /* address of a partition; an insert wrote into the superblock */
        {"smart", false, false, 3457}, /* lock word of a leaf */
        /* registry word with the address of a handle's own object; the handle freed the object at this
         * address, and its memory became a catalog */
        {"chime", false, false, 393},
        /* number of registry entries in use; clients with larger ids were invisible to other clients */
        {"dolphin", false, false, 3411},
        /* registry entry of a live client, which is then marked unused; other clients then did not see this client */
        {"chime", false, false, 3285},
        {"shard", false, false, 3105}, /* word of the catalog's header */
        /* page word, which then names another index; all objects in the page were freed */
        {"shard", false, false, 2968},
        {"dart", false, true, 2959},    /* entry of a block in use, then marked unused; two handles owned the block */
        {"shard", false, false, 9270},  /* number of partitions; the partitions with larger numbers were freed */
        {"chime", false, false, 37},    /* descriptor of an open index; the next client could not open the index */
        {"dolphin", false, false, 93},  /* descriptor of an index */
        {"dolphin", false, true, 8350}, /* page words of pages in use, which then belong to no slab */
    };
    unsigned failures = 0;
    for (size_t i = 0; i < sizeof(found) / sizeof(found[0]); i++) {
        trial_has_sums = found[i].sums;
        owners = found[i].owners;
        damage_seeds one = {found[i].seed, found[i].seed, found[i].kind};
        failures += damage_seeds_run(&one, layouts[trial_has_sums], run_trial);
    }
    assert_int_equal(failures, 0);
}


/* Without arguments all tests run. With arguments one test runs, which uses the given seeds and switches. */
TEST_ARGUMENTS(argc, argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 1; i < argc; i++) {
        int taken = damage_seeds_argument(&seeds, argc - i, argv + i);
        if (taken > 0) {
            i += taken - 1;
        } else if (strcmp(argv[i], "--verbose") == 0) {
            trial_is_verbose = true;
        } else if (strcmp(argv[i], "--checksum") == 0) {
            sums_only = true;
        } else if (strcmp(argv[i], "--owners") == 0) {
            owners = true;
        } else if (strcmp(argv[i], "--marks") == 0) {
            marks = true;
        } else {
            fprintf(stderr, "usage: test_damage [--kind KIND] [--seeds FIRST..LAST] [--owners] [--marks] "
                            "[--checksum] [--verbose]\n");
            return 2;
        }
    }
    if (argc > 1)
        test_set_pattern(sums_only ? "checksums_find_damaged_values" : "damages_of_every_kind_end_in_bounded_work");
    return TEST_CONTINUE;
}


TEST_GROUP(rig_start, rig_end);
