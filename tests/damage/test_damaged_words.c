/* Every word of the superblock, the headers of nodes, the registry, the catalog, the record of an index and the entries of
 * blocks, damaged one at a time: zeroes, ones, and a bit; and each sort of address in the objects of indexes; in a pool that
 * is closed, and in one that is in use; and there the first words of the table of open indexes.
 *
 * test_damaged_words [--all] [--kind KIND] [--seed SEED] [--verbose]      --all: every bit, in use and closed, and page
 * words, bitmaps and marks too (make fuzz); --seed: only what was told with that seed */
#include "trial.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define OPEN_WORDS 4u           /* of a table of open indexes */
#define OPEN_SEEDS (1ull << 40) /* where no other seeds are */

enum { TO_ZERO, TO_ONES, FLIP, HOWS = FLIP + 64 };

typedef struct word_harm {
    far_addr addr;
    unsigned how;
    uint64_t word; /* of an address: what stands there then */
} word_harm;

static bool all, only_kind;
static const char *kind = "dart";
static uint64_t only_seed;


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


static unsigned run(const scene *s, uint64_t seed, trial_harm damage, const word_harm *h) {
    return only_seed && seed != only_seed ? 0 : trial_run(s, seed, damage, h);
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
                failures += run(s, seed, harm, &(word_harm){.addr = addr + at, .how = how});
            if (all || (number + how) % 2 == 0)
                failures += run(s, seed + 1, harm, &(word_harm){.addr = addr + at, .how = how});
        }
    return failures;
}


/* addr: in the table of open indexes of the one who has the pool open. */
static void harm_open_table(const scene *s, far_random *random, damage *d, const void *arg) {
    word_harm h = *(const word_harm *)arg;
    h.addr += scene_open_table();
    harm(s, random, d, &h);
}


/* Some that are in use, and some that are not. */
static unsigned harm_open_tables(const scene *s) {
    unsigned failures = 0;
    for (uint64_t at = 0; at < OPEN_WORDS * 8; at += 8)
        for (unsigned how = 0; how < HOWS; how++)
            if (is_chosen(how, at / 8, all))
                failures += run(s, 2 * (HOWS * (OPEN_SEEDS + at) + how) + 1, harm_open_table,
                                &(word_harm){.addr = at, .how = how});
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
    failures += harm_open_tables(&s);
    for (unsigned n = 0; n < RIG_NODES && all; n++)
        failures += harm_range(&s, far_addr_make(n, s.geometry.node[n].marks), 1024, false);
    scene_free(&s);
    assert_int_equal(failures, 0);
}


/* ---- Addresses in the objects of indexes ---- */

/* Where in a word an address stands: kinds leave out bits that are always zero, and put others beside it. */
typedef struct packing {
    unsigned left_out, shift;
} packing;

typedef struct address_word {
    far_addr at;
    packing how;
    size_t from, to; /* the sorts of the object that it stands in, and of the one that it leads to */
} address_word;

enum { ADDRESSES_MAX = 256, OTHER_ZERO, OTHER_ONES, OTHER_BIT, OTHER_OUTSIDE, OTHER_OWN, OTHER_TYPE, OTHERS_END };


static uint64_t field_mask(packing how) {
    return ((1ull << (48 - how.left_out)) - 1) << how.shift;
}


static uint64_t pack(far_addr addr, packing how) {
    return ((uint64_t)far_addr_node(addr) << (40 - how.left_out) | far_addr_offset(addr) >> how.left_out) << how.shift;
}


/* The sort of objects of an index of which one begins there; the count of all sorts: none does. */
static size_t sort_at(const scene *s, far_addr addr) {
    size_t sort = 0;
    for (; sort < s->place_count; sort++)
        for (size_t i = 0; strstr(s->places[sort].name, " type ") && i < s->places[sort].count; i++)
            if (s->places[sort].objects[i].addr == addr)
                return sort;
    return sort;
}


static bool is_address(const scene *s, uint64_t word, address_word *found) {
    static const unsigned left_out[] = {0, 3, 4, 6};
    for (unsigned i = 0; i < 4; i++)
        for (unsigned shift = 0; shift <= 16 + left_out[i]; shift++) {
            packing how = {left_out[i], shift};
            uint64_t field = (word & field_mask(how)) >> shift, low = (1ull << (40 - how.left_out)) - 1;
            far_addr addr = far_addr_make((unsigned)(field >> (40 - how.left_out)), (field & low) << how.left_out);
            if (far_addr_offset(addr) < 4096 || far_addr_node(addr) >= RIG_NODES ||
                (found->to = sort_at(s, addr)) == s->place_count)
                continue;
            found->how = how;
            return true;
        }
    return false;
}


/* Some of each sort that leads to each other sort. */
static unsigned find_addresses(const scene *s, unsigned each, address_word *words) {
    unsigned count = 0;
    for (size_t sort = 0; sort < s->place_count; sort++)
        for (size_t i = 0; strstr(s->places[sort].name, " type ") && i < s->places[sort].count; i++)
            for (uint64_t at = 0; at < s->places[sort].objects[i].bytes && count < ADDRESSES_MAX; at += 8) {
                address_word w = {.at = s->places[sort].objects[i].addr + at, .from = sort};
                unsigned alike = 0;
                if (!is_address(s, word_at(w.at), &w))
                    continue;
                for (unsigned k = 0; k < count; k++)
                    alike += words[k].from == sort && words[k].to == w.to;
                if (alike < each)
                    words[count++] = w;
            }
    return count;
}


static uint64_t other_address(const scene *s, const address_word *w, unsigned how, uint64_t number) {
    uint64_t word = word_at(w->at), rest = word & ~field_mask(w->how);
    size_t other = w->to;
    switch (how) {
    case OTHER_ZERO:
        return 0;
    case OTHER_ONES:
        return UINT64_MAX;
    case OTHER_BIT:
        return word ^ 1ull << (w->how.shift + number * 11 % (48 - w->how.left_out));
    case OTHER_OUTSIDE:
        return rest | pack(far_addr_make(0, 2 * RIG_BYTES), w->how);
    case OTHER_OWN: /* entries of the registry that nobody had: zeroes */
        return rest | pack(far_addr_make(0, FAR_SUPER_REGISTRY + 2048), w->how);
    default:
        while (other == w->to || !strstr(s->places[other].name, " type "))
            other = (other + 1) % s->place_count;
        return rest | pack(s->places[other].objects[number % s->places[other].count].addr, w->how);
    }
}


static void harm_address(const scene *s, far_random *random, damage *d, const void *arg) {
    const word_harm *h = arg;
    (void)s, (void)random;
    damage_word(d, h->addr, h->word);
}


static unsigned harm_addresses(const char *name, const char *options, unsigned each, bool both) {
    static scene s;
    address_word words[ADDRESSES_MAX];
    unsigned failures = 0;
    scene_make(&s, name, options, false, 1);
    unsigned count = find_addresses(&s, each, words);
    for (unsigned i = 0; i < count; i++)
        for (unsigned how = OTHER_ZERO; how < OTHERS_END; how++) {
            rig_restore(s.image);
            word_harm h = {.addr = words[i].at, .word = other_address(&s, &words[i], how, i)};
            for (unsigned in_use = 0; in_use < 2; in_use++)
                if (both || (i + how) % 2 == in_use)
                    failures += run(&s, 2 * (OTHERS_END * words[i].at + how) + in_use, harm_address, &h);
        }
    if (trial_is_verbose)
        printf("%s %s: %u addresses\n", name, options, count);
    assert_true(count >= 2);
    scene_free(&s);
    return failures;
}


/* Each sort of address of each kind, one at a time: nothing, all ones, a bit, outside of the pool, words of the pool
 * itself, an object of another sort. Small buckets of shard have all levels. */
static void every_sort_of_address(void **state) {
    static const struct {
        const char *kind, *options;
        unsigned each; /* of one sort of object that lead to one other */
        bool both;     /* each damage in a closed pool and in one that is in use; else in turn */
    } pools[] = {{"shard", "partitions=1,bits=0,slots=6,l2_slots=1,load=95,extent=1024", 5, true},
                 {"shard", "partitions=1,bits=10,slots=1,l2_slots=1,load=95,key_size=8,value_size=8", 2, true},
                 {"chime", "", 3, false},
                 {"chime", "key_size=8,value_size=8", 3, false},
                 {"dart", "", 1, false},
                 {"dolphin", "", 1, false},
                 {"dolphin", "key_size=8,value_size=8", 1, false},
                 {"smart", "", 1, false}};
    unsigned failures = 0;
    (void)state;
    for (size_t i = 0; i < sizeof(pools) / sizeof(pools[0]); i++)
        if (!only_kind || strcmp(kind, pools[i].kind) == 0)
            failures += harm_addresses(pools[i].kind, pools[i].options, all ? 12 : pools[i].each, all || pools[i].both);
    assert_int_equal(failures, 0);
}


int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {cmocka_unit_test(every_sort_of_address),
                                              cmocka_unit_test(every_word_of_the_pool_itself)};
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int i = 1; i < argc; i++) {
        all |= strcmp(argv[i], "--all") == 0;
        trial_is_verbose |= strcmp(argv[i], "--verbose") == 0;
        if (strcmp(argv[i], "--kind") == 0 && i + 1 < argc) {
            kind = argv[++i];
            only_kind = true;
        }
        if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
            only_seed = strtoull(argv[++i], NULL, 10);
    }
    rig_start();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rig_end();
    return failed;
}
