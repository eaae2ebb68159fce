/* Every word of the superblock, the headers of nodes, the registry, the catalog, the record of an index and the entries of
 * blocks, damaged one at a time: zeroes, ones, and a bit; in a pool that is closed, and in one that is in use.
 *
 * test_damaged_words [--all] [--kind KIND] [--verbose]      --all: every bit, in use and closed, and page words and
 * bitmaps too (make fuzz) */
#include "trial.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TO_ZERO, TO_ONES, FLIP, HOWS = FLIP + 64 };

typedef struct word_harm {
    far_addr addr;
    unsigned how;
} word_harm;

static bool all;
static const char *kind = "dart";


static uint64_t word_at(far_addr addr) {
    uint64_t word;
    memcpy(&word, rig_memory(far_addr_node(addr)) + far_addr_offset(addr), 8);
    return word;
}


static void harm(const scene *s, far_random *random, damage *d, const void *arg) {
    const word_harm *h = arg;
    uint64_t word = word_at(h->addr);
    (void)s, (void)random;
    damage_word(d, h->addr, h->how == TO_ZERO ? 0 : h->how == TO_ONES ? UINT64_MAX : word ^ 1ull << (h->how - FLIP));
}


/* Zeroes, ones, and of the bits all, or another one for each word. */
static bool is_chosen(unsigned how, uint64_t number, bool every_bit) {
    return every_bit || how < FLIP || how - FLIP == number * 11 % 64;
}


static unsigned harm_range(const scene *s, far_addr addr, uint64_t bytes, bool every_bit) {
    unsigned failures = 0;
    for (uint64_t at = 0; at < bytes; at += 8)
        for (unsigned how = 0; how < HOWS; how++) {
            uint64_t number = at / 8, seed = 2 * (HOWS * (addr + at) + how);
            if (!is_chosen(how, number, every_bit))
                continue;
            if (all || (number + how) % 2)
                failures += trial_run(s, seed, harm, &(word_harm){addr + at, how});
            if (all || (number + how) % 2 == 0)
                failures += trial_run(s, seed + 1, harm, &(word_harm){addr + at, how});
        }
    return failures;
}


static bool is_one_of(const char *name, const char *const *names) {
    while (*names && strcmp(*names, name) != 0)
        names++;
    return *names != NULL;
}


static unsigned harm_place(const scene *s, const place *p) {
    static const char *const always[] = {"superblock", "pool words",    "registry", "catalog",
                                         "record",     "block entries", NULL};
    static const char *const thorough[] = {"page words", "bitmaps", NULL}; /* these are many */
    unsigned failures = 0;
    bool wanted = is_one_of(p->name, always);
    for (size_t i = 0; i < p->count && (wanted || (all && is_one_of(p->name, thorough))); i++)
        failures += harm_range(s, p->objects[i].addr, p->objects[i].bytes, all && wanted);
    return failures;
}


static void every_word_of_the_pool_itself(void **state) {
    static scene s;
    (void)state;
    scene_make(&s, kind, "", false, 1);
    unsigned failures = harm_range(&s, far_addr_make(0, FAR_SUPER_NODE_TABLE), 8ull * RIG_NODES, all) +
                        harm_range(&s, far_addr_make(1, 0), 24, all);
    for (size_t i = 0; i < s.place_count; i++)
        failures += harm_place(&s, &s.places[i]);
    scene_free(&s);
    assert_int_equal(failures, 0);
}


int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(every_word_of_the_pool_itself)};
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 1; i < argc; i++) {
        all |= strcmp(argv[i], "--all") == 0;
        trial_is_verbose |= strcmp(argv[i], "--verbose") == 0;
        if (strcmp(argv[i], "--kind") == 0 && i + 1 < argc)
            kind = argv[++i];
    }
    rig_start();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rig_end();
    return failed;
}
