/* Death at every verb, and after every unit of every WRITE, of writes to the shard index: inserts through all levels, a
 * doubling with its splits and its drain, updates, deletes and refills. Survivors go on, the content is right, nothing
 * is locked or lost. */
#include "farindex.h"
#include "verify/explore.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct story {
    unsigned before, inserts; /* keys of the survivor; then of the victim */
    bool replace;             /* the victim updates the first half of what was before, and deletes the second */
} story;


static void pair(unsigned n, unsigned version, uint8_t key[8], uint8_t value[8]) {
    uint64_t k = __builtin_bswap64(n + 1), v = n * 1000ull + version;
    memcpy(key, &k, 8);
    memcpy(value, &v, 8);
}


static int put(far_session *s, far_index *index, unsigned n, unsigned version) {
    uint8_t key[8], value[8];
    pair(n, version, key, value);
    return far_put(s, index, key, 8, value, 8);
}


/* The version that is there; -1: absent; -2: wrong. */
static int version_of(far_session *s, far_index *index, unsigned n) {
    uint8_t key[8], value[8];
    uint64_t found;
    size_t length = 0;
    pair(n, 0, key, value);
    int err = far_get(s, index, key, 8, &found, 8, &length);
    if (err == FAR_ERR_NOT_FOUND)
        return -1;
    return err == 0 && length == 8 && found / 1000 == n ? (int)(found % 1000) : -2;
}


static int prepare(far_session *s, far_index *index, void *ctx) {
    const story *story = ctx;
    for (unsigned n = 0; n < story->before; n++)
        if (put(s, index, n, 1) < 0)
            return -1;
    return 0;
}


static int victim(far_session *s, far_index *index, void *ctx) {
    const story *story = ctx;
    uint8_t key[8], value[8];
    for (unsigned n = 0; story->replace && n < story->before; n++) {
        pair(n, 2, key, value);
        if ((n < story->before / 2 ? far_update(s, index, key, 8, value, 8) : far_delete(s, index, key, 8)) < 0)
            return -1;
    }
    for (unsigned n = 0; n < story->inserts; n++) {
        pair(story->before + n, 1, key, value);
        if (far_insert(s, index, key, 8, value, 8) < 0)
            return -1;
    }
    return 0;
}


/* Everything is as before or as after its change; the changes are a beginning of the victim's. Then all can be written.
 */
static int survive(far_session *s, far_index *index, void *ctx) {
    const story *story = ctx;
    unsigned all = story->before + story->inserts;
    bool ended = false;
    for (unsigned i = 0; i < all; i++) {
        int now = version_of(s, index, i), old = i < story->before ? 1 : -1,
            new = i < story->before ? (i < story->before / 2 ? 2 : -1) : 1;
        if (i < story->before && !story->replace)
            new = old;
        if (now != old && now != new)
            return -1;
        if (now == new &&new != old && ended)
            return -1; /* a later change happened, an earlier one did not */
        ended |= now == old && new != old;
    }
    for (unsigned i = 0; i < all; i++)
        if (put(s, index, i, 5) < 0 || version_of(s, index, i) != 5)
            return -1;
    for (unsigned i = 0; i < all + 8; i++)
        if (put(s, index, i, 6) < 0)
            return -1;
    for (unsigned i = 0; i < all + 8; i++)
        if (version_of(s, index, i) != 6)
            return -1;
    return 0;
}


static void die_everywhere(const char *options, const char *sim, story story, bool every_unit) {
    far_explore explore = {.kind = "shard",
                           .options = options,
                           .sim = sim,
                           .prepare = prepare,
                           .victim = victim,
                           .survive = survive,
                           .every_unit = every_unit,
                           .sweep = true,
                           .ctx = &story,
                           .out = stderr};
    far_explore_result result;
    assert_int_equal(far_explore_run(&explore, &result), 0);
    print_message("    %llu deaths over %llu verbs\n", (unsigned long long)result.cuts,
                  (unsigned long long)result.verbs);
    assert_true(result.cuts > result.verbs);
    assert_int_equal(result.problems, 0);
}

/* Two that die one after the other: the second meets what the first one left. Three keys and two more; the first puts
 * version 2, the second version 3, each a beginning of its work. */

static int put_all(far_session *s, far_index *index, void *ctx, unsigned version) {
    const story *story = ctx;
    for (unsigned n = story->before + story->inserts; n-- > 0;) { /* the new ones first: they learn of the doubling */
        int err = put(s, index, n, version);
        if (err < 0)
            return err;
    }
    return 0;
}


static int first_of_two(far_session *s, far_index *index, void *ctx) {
    return put_all(s, index, ctx, 2);
}


static int second_of_two(far_session *s, far_index *index, void *ctx) {
    return put_all(s, index, ctx, 3);
}


static int survive_two(far_session *s, far_index *index, void *ctx) {
    const story *story = ctx;
    unsigned all = story->before + story->inserts;
    for (unsigned i = all, low = 3; i-- > 0;) { /* versions fall: 3.. 2.. and what was before */
        int now = version_of(s, index, i), least = i < story->before ? 1 : -1;
        if (now != least && now != 2 && now != 3)
            return -1;
        unsigned rank = now < 2 ? 1 : (unsigned)now;
        if (rank > low)
            return -1;
        low = rank;
    }
    if (put_all(s, index, ctx, 5) < 0)
        return -1;
    for (unsigned i = 0; i < all; i++) {
        uint8_t key[8], value[8];
        pair(i, 0, key, value);
        if (version_of(s, index, i) != 5 || far_delete(s, index, key, 8) != 0 || version_of(s, index, i) != -1)
            return -1;
    }
    return put_all(s, index, ctx, 6);
}


/* stride: there are many pairs; SHARD_EVERY_PAIR in the environment asks for all. */
static void two_die(const char *options, const char *sim, story story, unsigned stride) {
    far_explore explore = {.kind = "shard",
                           .options = options,
                           .sim = sim,
                           .prepare = prepare,
                           .victim = first_of_two,
                           .second = second_of_two,
                           .survive = survive_two,
                           .stride = getenv("SHARD_EVERY_PAIR") ? 1 : stride,
                           .sweep = true,
                           .ctx = &story,
                           .out = stderr};
    far_explore_result result;
    assert_int_equal(far_explore_run(&explore, &result), 0);
    print_message("    %llu pairs of deaths over %llu verbs of the first\n", (unsigned long long)result.cuts,
                  (unsigned long long)result.verbs);
    assert_true(result.cuts > 2 * result.verbs);
    assert_int_equal(result.problems, 0);
}

#define TINY   "partitions=1,bits=0,slots=2,l2_slots=1"
#define INLINE "key_size=8,value_size=8,narrow=on," TINY


static void inserts_that_die(void **state) {
    (void)state;
    die_everywhere(TINY, NULL, (story){3, 3, false}, true);
    die_everywhere(TINY, "atomic_bytes=8,masked_cas=off", (story){3, 2, false}, true);
}


static void growth_that_dies(void **state) {
    (void)state;
    die_everywhere(TINY ",load=30", NULL, (story){1, 7, false}, true);
    die_everywhere(TINY ",load=30", "masked_cas=off,atomics_in_order=on", (story){1, 6, false}, true);
}


static void changes_that_die(void **state) {
    (void)state;
    die_everywhere(TINY, NULL, (story){6, 1, true}, true);
}


/* Two of four words are free again: the first insert opens the bucket, the second one goes by its new era, the third one
 * overflows. Then keys of level 2 and 3 go, and the filter forgets. */
static void openings_that_die(void **state) {
    (void)state;
    die_everywhere("partitions=1,bits=0,slots=4,l2_slots=4,afs=1000000", NULL, (story){4, 3, true}, true);
    die_everywhere("partitions=1,bits=0,slots=4,l2_slots=4,afs=1000000", "atomic_bytes=8", (story){4, 2, true}, true);
    die_everywhere("partitions=1,bits=0,slots=2,l2_slots=4,afs=1000000", NULL, (story){4, 1, true}, true);
    die_everywhere("key_size=8,value_size=8,narrow=on,partitions=1,bits=0,slots=2,l2_slots=4,afs=1000000", NULL,
                   (story){4, 1, true}, true);
}


static void inline_inserts_that_die(void **state) {
    (void)state;
    die_everywhere(INLINE, NULL, (story){3, 3, false}, true);
    die_everywhere(INLINE, "atomic_bytes=8", (story){3, 2, false}, true);
}


static void inline_growth_that_dies(void **state) {
    (void)state;
    die_everywhere(INLINE ",load=30", NULL, (story){1, 7, false}, true);
}


static void inline_changes_that_die(void **state) {
    (void)state;
    die_everywhere(INLINE, NULL, (story){6, 1, true}, true);
}


/* A doubling has begun, nothing is split: the first insert splits. Every word of both halves; then of a drain. */
static void a_split_that_dies_at_every_word(void **state) {
    (void)state;
    die_everywhere(TINY ",load=60,afs=1,idle_sweep=off", "atomic_bytes=8", (story){2, 1, false}, true);
    die_everywhere(INLINE ",load=60,afs=1,idle_sweep=off", "atomic_bytes=8", (story){2, 1, false}, true);
    die_everywhere(INLINE ",share=1,idle_sweep=off", "atomic_bytes=8", (story){3, 2, false}, true);
}


/* A doubling has begun, nothing is split: the first one splits, the second one takes over. */
static void two_die_in_a_split(void **state) {
    (void)state;
    two_die(TINY ",load=60,afs=1,idle_sweep=off", NULL, (story){2, 1, false}, 61);
    two_die(INLINE ",load=60,afs=1,idle_sweep=off", NULL, (story){2, 1, false}, 17);
    two_die(TINY ",load=60,afs=1,idle_sweep=off,grace=off", "masked_cas=off,atomic_bytes=8,atomics_in_order=on",
            (story){2, 1, false}, 97);
    two_die(INLINE ",load=60,afs=1,idle_sweep=off", "atomic_bytes=8", (story){2, 1, false}, 17);
}


/* Keys that overflow, the doubling, its split and its drain. */
static void two_die_in_overflows_and_drains(void **state) {
    (void)state;
    two_die(TINY ",share=1,idle_sweep=off", NULL, (story){3, 1, false}, 61);
    two_die(INLINE ",share=1,idle_sweep=off", NULL, (story){3, 1, false}, 17);
}


int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(inserts_that_die),
        cmocka_unit_test(growth_that_dies),
        cmocka_unit_test(changes_that_die),
        cmocka_unit_test(openings_that_die),
        cmocka_unit_test(inline_inserts_that_die),
        cmocka_unit_test(inline_growth_that_dies),
        cmocka_unit_test(inline_changes_that_die),
        cmocka_unit_test(a_split_that_dies_at_every_word),
        cmocka_unit_test(two_die_in_a_split),
        cmocka_unit_test(two_die_in_overflows_and_drains),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
