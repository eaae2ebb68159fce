/* Damaged pools: every call on them ends within bounded work, counted in verbs; none returns a value that its key never
 * had; and check names what operations stumble over.
 *
 * test_damage [--kind KIND] [--seeds FIRST..LAST] [--owners] [--tables] [--checksum] [--verbose]      `make fuzz` runs
 * more of them; with --owners every damage is a word that names a live client, as if it held a lock; with --tables it is
 * in the marks of a sweep, or in the table of open indexes of somebody; --checksum: only of indexes with checksum=on */
#include "damage_seeds.h"
#include "trial.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SEED_FIRST  301 /* a range that has all sorts of hangs that were found */
#define SEED_LAST   700 /* of each kind */
#define SUM_SEEDS   60  /* of them, with checksums */
#define TABLE_SEEDS 80  /* of them, in marks and tables of open indexes */

static const char *const layouts[][2] = {{"", "key_size=8,value_size=8"},
                                         {"checksum=on", "key_size=8,value_size=8,checksum=on"}};

static damage_seeds seeds = {SEED_FIRST, SEED_LAST, NULL};
static bool owners, tables;
static bool sums_only; /* all seeds, with checksums */

static void harm(const scene *s, far_random *random, damage *d, const void *arg) {
    (void)arg;
    (owners ? scene_name_somebody : tables ? scene_damage_tables : scene_damage)(s, random, d);
}


static unsigned try_seed(const scene *s, uint64_t seed) {
    return trial_run(s, seed, harm, NULL);
}


static void run_all(void) {
    unsigned failures = damage_seeds_run(&seeds, layouts[trial_has_sums], try_seed);
    printf("most verbs of one call: %llu, %llu\n", (unsigned long long)trial_most_verbs(false),
           (unsigned long long)trial_most_verbs(true));
    assert_int_equal(failures, 0);
}


static void damages_of_every_kind_end_in_bounded_work(void **state) {
    (void)state;
    run_all();
}


/* The same, and whatever was damaged, no wrong value. */
static void checksums_find_damaged_values(void **state) {
    (void)state;
    trial_has_sums = true;
    if (seeds.last - seeds.first > SUM_SEEDS && !sums_only)
        seeds.last = seeds.first + SUM_SEEDS;
    run_all();
}


static void marks_and_tables_of_open_indexes(void **state) {
    const damage_seeds all = seeds;
    (void)state;
    seeds.last = seeds.first + TABLE_SEEDS;
    tables = true;
    trial_has_sums = false;
    run_all();
    tables = false;
    seeds = all;
}


/* Damages that once destroyed what was sound, or held up everybody: each is told, and check ends. */
static void what_was_found_before(void **state) {
    static const struct {
        const char *kind;
        bool owners, sums;
        uint64_t seed;
    } found[] = {
        {"chime", false, false, 1205}, /* a fence: a sweep passed leaves by, and freed what is in them */
        {"chime", true, false, 1389},    {"chime", false, false, 2644},
        {"chime", false, false, 2123},   /* a registry entry that names a dead handle as its own */
        {"dolphin", true, false, 1525},  /* a sweep that is done before it has begun */
        {"dolphin", false, false, 1011}, /* no entries in the root; then: no locks, a node with another's prefix */
        {"dolphin", false, false, 1314}, {"dolphin", false, false, 1660},
        {"dolphin", false, false, 2113}, /* a value word that leads to the block of another key */
        {"dolphin", true, false, 146},   /* an entry of the root that says another byte */
        {"smart", false, false, 981},    /* a word of the root: caches know what was below, which is free now */
        {"shard", false, false, 1738},   /* a control block that is none */
        {"shard", false, false, 146},    /* the address of a partition: an insert wrote into the superblock */
        {"smart", false, false, 3457},   /* the lock of a leaf */
        {"chime", false, false, 393}, /* where the own table of open indexes is: it was freed, and became a catalog */
        {"dolphin", false, false, 3411}, /* how many entries of the registry are used: nobody saw the others' */
        {"chime", false, false, 3285},   /* the own entry of the registry says that it is nobody's: the same */
        {"shard", false, false, 3105},   /* a word of the catalog's head */
        {"shard", false, false, 2968},   /* a page that says another index: all that lies in it was freed */
        {"dart", false, true, 2959},     /* the entry of a block in use says that it is nobody's: it was held twice */
        {"shard", false, false, 9270},   /* how many partitions there are: those beyond were freed */
        {"chime", false, false, 37},     /* the root of an index that is open: the next one could not open it */
        {"dolphin", false, false, 93},   {"dolphin", false, true, 8350}, /* pages that are in use, and no slab */
    };
    unsigned failures = 0;
    (void)state;
    for (size_t i = 0; i < sizeof(found) / sizeof(found[0]); i++) {
        trial_has_sums = found[i].sums;
        owners = found[i].owners;
        damage_seeds one = {found[i].seed, found[i].seed, found[i].kind};
        failures += damage_seeds_run(&one, layouts[trial_has_sums], try_seed);
    }
    assert_int_equal(failures, 0);
}


static void read_arguments(int argc, char **argv) {
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
        } else if (strcmp(argv[i], "--tables") == 0) {
            tables = true;
        } else {
            fprintf(stderr, "usage: test_damage [--kind KIND] [--seeds FIRST..LAST] [--owners] [--tables] "
                            "[--checksum] [--verbose]\n");
            exit(2);
        }
    }
}


int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(damages_of_every_kind_end_in_bounded_work), cmocka_unit_test(checksums_find_damaged_values),
        cmocka_unit_test(marks_and_tables_of_open_indexes), cmocka_unit_test(what_was_found_before)};
    setvbuf(stdout, NULL, _IOLBF, 0);
    read_arguments(argc, argv);
    rig_start();
    /* All; with arguments, what they ask for. */
    size_t first = sums_only, count = argc == 1 ? 4 : 1;
    int failed = _cmocka_run_group_tests("damages", tests + first, count, NULL, NULL);
    rig_end();
    return failed;
}
