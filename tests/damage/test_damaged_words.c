/* Tests of damages of single words. Every word of the superblock, the node headers, the registry, the catalog, the
 * record of an index and the block entries is damaged, one at a time, in a closed pool and in a pool in use. A damaged
 * word becomes zero or all ones, or has one bit flipped. In the same way, every sort of address in the objects of each
 * kind is damaged.
 *
 * test_damaged_words [--all] [--kind KIND] [--seed SEED] [--verbose]      --all: every bit, always both in use and
 * closed, and also page words, bitmaps and marks (make fuzz); --seed: only the damage that was reported with that seed
 */
#include "test.h"
#include "trial.h"

#include <stdlib.h>
#include <string.h>


enum { TO_ZERO, TO_ONES, FLIP, HOWS = FLIP + 64 };

typedef struct word_harm {
    far_addr addr;
    unsigned how;
    uint64_t word; /* new value of a damaged address */
} word_harm;

static bool all, only_kind;
static const char *kind = "dart";
static uint64_t only_seed;


static uint64_t word_at(far_addr addr) {
    uint64_t word;
    memcpy(&word, rig_memory(far_addr_node(addr)) + far_addr_offset(addr), 8);
    return word;
}


static void damage_one_word(const scene *s, far_random *random, damage *d, const void *arg) {
    const word_harm *h = arg;
    uint64_t word = word_at(h->addr);
    (void)s, (void)random;
    damage_word(d, h->addr, h->how == TO_ZERO ? 0 : h->how == TO_ONES ? UINT64_MAX : word ^ 1ull << (h->how - FLIP));
}


static unsigned run_if_selected(const scene *s, uint64_t seed, trial_harm damage, const word_harm *h) {
    return only_seed && seed != only_seed ? 0 : trial_run(s, seed, damage, h);
}


/* Returns whether to run this damage of the word: zero, all ones, and either every bit flipped in turn or one bit that
 * differs from word to word. */
static bool is_chosen(unsigned how, uint64_t number, bool every_bit) {
    return every_bit || how < FLIP || how - FLIP == number * 11 % 64;
}


static unsigned damage_range(const scene *s, far_addr addr, uint64_t bytes, bool every_bit) {
    unsigned failures = 0;
    for (uint64_t at = 0; at < bytes; at += 8)
        for (unsigned how = 0; how < HOWS; how++) {
            uint64_t number = at / 8, seed = 2 * (HOWS * (addr + at) + how);
            if (!is_chosen(how, number, every_bit))
                continue;
            if (all || (number + how) % 2)
                failures += run_if_selected(s, seed, damage_one_word, &(word_harm){.addr = addr + at, .how = how});
            if (all || (number + how) % 2 == 0)
                failures += run_if_selected(s, seed + 1, damage_one_word, &(word_harm){.addr = addr + at, .how = how});
        }
    return failures;
}


static bool is_one_of(const char *name, const char *const *names) {
    while (*names && strcmp(*names, name) != 0)
        names++;
    return *names != NULL;
}


static unsigned damage_place(const scene *s, const place *p) {
    static const char *const always[] = {"superblock", "pool words",    "registry", "catalog",
                                         "record",     "block entries", NULL};
    /* sorts of objects with many objects, which only --all damages */
    static const char *const thorough[] = {"page words", "bitmaps", NULL};
    unsigned failures = 0;
    bool wanted = is_one_of(p->name, always);
    for (size_t i = 0; i < p->count && (wanted || (all && is_one_of(p->name, thorough))); i++)
        failures += damage_range(s, p->objects[i].addr, p->objects[i].bytes, all && wanted);
    return failures;
}


TEST(every_word_of_the_pool_itself) {
    static scene s;
    scene_make(&s, kind, "", false, 1);
    unsigned failures = damage_range(&s, far_addr_make(0, FAR_SUPER_NODE_TABLE), 8ull * RIG_NODES, all) +
                        damage_range(&s, far_addr_make(1, 0), 24, all);
    for (size_t i = 0; i < s.place_count; i++)
        failures += damage_place(&s, &s.places[i]);
    for (unsigned n = 0; n < RIG_NODES && all; n++)
        failures += damage_range(&s, far_addr_make(n, s.geometry.node[n].marks), 1024, false);
    scene_free(&s);
    assert_int_equal(failures, 0);
}


/* ---- Addresses in the objects of indexes ---- */

/* Position of an address in a word. Kinds leave out low bits that are always zero, and store other fields next to the
 * address. */
typedef struct packing {
    unsigned left_out, shift;
} packing;

typedef struct address_word {
    far_addr at;
    packing how;
    /* `from`: sort of the object that contains the word; `to`: sort of the object to which the address refers */
    size_t from, to;
} address_word;

enum { ADDRESSES_MAX = 256, OTHER_ZERO, OTHER_ONES, OTHER_BIT, OTHER_OUTSIDE, OTHER_OWN, OTHER_TYPE, OTHERS_END };


static uint64_t field_mask(packing how) {
    return ((1ull << (48 - how.left_out)) - 1) << how.shift;
}


static uint64_t pack_address(far_addr addr, packing how) {
    return ((uint64_t)far_addr_node(addr) << (40 - how.left_out) | far_addr_offset(addr) >> how.left_out) << how.shift;
}


/* Returns the sort of the index object that begins at this address, or place_count if none does. */
static size_t sort_of_object_at(const scene *s, far_addr addr) {
    size_t sort = 0;
    for (; sort < s->place_count; sort++)
        for (size_t i = 0; strstr(s->places[sort].name, " type ") && i < s->places[sort].count; i++)
            if (s->places[sort].objects[i].addr == addr)
                return sort;
    return sort;
}


static bool decode_address(const scene *s, uint64_t word, address_word *found) {
    static const unsigned left_out[] = {0, 3, 4, 6};
    for (unsigned i = 0; i < 4; i++)
        for (unsigned shift = 0; shift <= 16 + left_out[i]; shift++) {
            packing how = {left_out[i], shift};
            uint64_t field = (word & field_mask(how)) >> shift, low = (1ull << (40 - how.left_out)) - 1;
            far_addr addr = far_addr_make((unsigned)(field >> (40 - how.left_out)), (field & low) << how.left_out);
            if (far_addr_offset(addr) < 4096 || far_addr_node(addr) >= RIG_NODES ||
                (found->to = sort_of_object_at(s, addr)) == s->place_count)
                continue;
            found->how = how;
            return true;
        }
    return false;
}


/* Finds, for each two sorts of objects, some words in objects of the first sort that contain addresses of objects of
 * the second sort. Returns the number of words. */
static unsigned find_addresses(const scene *s, unsigned each, address_word *words) {
    unsigned count = 0;
    for (size_t sort = 0; sort < s->place_count; sort++)
        for (size_t i = 0; strstr(s->places[sort].name, " type ") && i < s->places[sort].count; i++)
            for (uint64_t at = 0; at < s->places[sort].objects[i].bytes && count < ADDRESSES_MAX; at += 8) {
                address_word w = {.at = s->places[sort].objects[i].addr + at, .from = sort};
                unsigned alike = 0;
                if (!decode_address(s, word_at(w.at), &w))
                    continue;
                for (unsigned k = 0; k < count; k++)
                    alike += words[k].from == sort && words[k].to == w.to;
                if (alike < each)
                    words[count++] = w;
            }
    return count;
}


static uint64_t make_wrong_address(const scene *s, const address_word *w, unsigned how, uint64_t number) {
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
        return rest | pack_address(far_addr_make(0, 2 * RIG_BYTES), w->how);
    case OTHER_OWN: /* Registry entries that no client has had contain zeroes. */
        return rest | pack_address(far_addr_make(0, FAR_SUPER_REGISTRY + 2048), w->how);
    default:
        while (other == w->to || !strstr(s->places[other].name, " type "))
            other = (other + 1) % s->place_count;
        return rest | pack_address(s->places[other].objects[number % s->places[other].count].addr, w->how);
    }
}


static void damage_address(const scene *s, far_random *random, damage *d, const void *arg) {
    const word_harm *h = arg;
    (void)s, (void)random;
    damage_word(d, h->addr, h->word);
}


static unsigned damage_addresses(const char *name, const char *options, unsigned each, bool both) {
    static scene s;
    address_word words[ADDRESSES_MAX];
    unsigned failures = 0;
    scene_make(&s, name, options, false, 1);
    unsigned count = find_addresses(&s, each, words);
    for (unsigned i = 0; i < count; i++)
        for (unsigned how = OTHER_ZERO; how < OTHERS_END; how++) {
            rig_restore_pool(s.image);
            word_harm h = {.addr = words[i].at, .word = make_wrong_address(&s, &words[i], how, i)};
            for (unsigned in_use = 0; in_use < 2; in_use++)
                if (both || (i + how) % 2 == in_use)
                    failures += run_if_selected(&s, 2 * (OTHERS_END * words[i].at + how) + in_use, damage_address, &h);
        }
    if (trial_is_verbose)
        printf("%s %s: %u addresses\n", name, options, count);
    assert_true(count >= 2);
    scene_free(&s);
    return failures;
}


/* Damages each sort of address of each kind, one at a time: zero, all ones, one flipped bit, an address outside of the
 * pool, an address in the pool's own tables, or the address of an object of another sort. The small buckets of shard
 * make all its levels exist. Proves the same as every_word_of_the_pool_itself. */
TEST(every_sort_of_address) {
    static const struct {
        const char *kind, *options;
        unsigned each; /* number of addresses that are damaged for each two sorts of objects */
        /* true: runs each damage both in a closed pool and in a pool in use; false: alternates between them */
        bool both;
    } pools[] = {{"shard", "partitions=1,bits=0,slots=6,l2_slots=1,load=95,extent=1024", 5, true},
                 {"shard", "partitions=1,bits=10,slots=1,l2_slots=1,load=95,key_size=8,value_size=8", 2, true},
                 {"chime", "", 3, false},
                 {"chime", "key_size=8,value_size=8", 3, false},
                 {"dart", "", 1, false},
                 {"dolphin", "", 1, false},
                 {"dolphin", "key_size=8,value_size=8", 1, false},
                 {"smart", "", 1, false}};
    unsigned failures = 0;
    for (size_t i = 0; i < sizeof(pools) / sizeof(pools[0]); i++)
        if (!only_kind || strcmp(kind, pools[i].kind) == 0)
            failures +=
                damage_addresses(pools[i].kind, pools[i].options, all ? 12 : pools[i].each, all || pools[i].both);
    assert_int_equal(failures, 0);
}


TEST_ARGUMENTS(argc, argv) {
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
    return TEST_CONTINUE;
}


TEST_GROUP(rig_start, rig_end);
