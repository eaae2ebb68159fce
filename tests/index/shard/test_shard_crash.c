/* Client failures in writes to a shard index. A client (the victim) fails at every verb, and after every tearing
 * granule of every WRITE: inserts at all levels, a doubling with its splits and its drain, updates, deletes and
 * refills. Afterwards another client (the survivor) continues. The contents must be correct, no lock may be left, and
 * nothing may be leaked. */
#include "farindex.h"
#include "test.h"
#include "verify/explore.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct scenario {
    /* before: number of keys that the survivor inserts first; inserts: number of keys that the victim then inserts */
    unsigned before, inserts;
    bool replace;             /* the victim updates the first half of the survivor's keys and deletes the second half */
} scenario;


static void make_pair(unsigned n, unsigned version, uint8_t key[8], uint8_t value[8]) {
    uint64_t k = __builtin_bswap64(n + 1), v = n * 1000ull + version;
    memcpy(key, &k, 8);
    memcpy(value, &v, 8);
}


static int put_version(far_session *s, far_index *index, unsigned n, unsigned version) {
    uint8_t key[8], value[8];
    make_pair(n, version, key, value);
    return far_put(s, index, key, 8, value, 8);
}


/* Returns the version of the value of key n, or -1 if the key is absent, or -2 if the value is wrong. */
static int version_of(far_session *s, far_index *index, unsigned n) {
    uint8_t key[8], value[8];
    uint64_t found;
    size_t length = 0;
    make_pair(n, 0, key, value);
    int err = far_get(s, index, key, 8, &found, 8, &length);
    if (err == FAR_ERR_NOT_FOUND)
        return -1;
    return err == 0 && length == 8 && found / 1000 == n ? (int)(found % 1000) : -2;
}


static int insert_before(far_session *s, far_index *index, void *ctx) {
    const scenario *scenario = ctx;
    for (unsigned n = 0; n < scenario->before; n++)
        if (put_version(s, index, n, 1) < 0)
            return -1;
    return 0;
}


static int run_victim(far_session *s, far_index *index, void *ctx) {
    const scenario *scenario = ctx;
    uint8_t key[8], value[8];
    for (unsigned n = 0; scenario->replace && n < scenario->before; n++) {
        make_pair(n, 2, key, value);
        if ((n < scenario->before / 2 ? far_update(s, index, key, 8, value, 8) : far_delete(s, index, key, 8)) < 0)
            return -1;
    }
    for (unsigned n = 0; n < scenario->inserts; n++) {
        make_pair(scenario->before + n, 1, key, value);
        if (far_insert(s, index, key, 8, value, 8) < 0)
            return -1;
    }
    return 0;
}


/* Verifies that every key has its value from before or from after the victim's change, and that the completed changes
 * are a prefix of the victim's operations. Also verifies that all keys can then be written. */
static int verify_survivor(far_session *s, far_index *index, void *ctx) {
    const scenario *scenario = ctx;
    unsigned all = scenario->before + scenario->inserts;
    bool ended = false;
    for (unsigned i = 0; i < all; i++) {
        int now = version_of(s, index, i), old = i < scenario->before ? 1 : -1,
            new = i < scenario->before ? (i < scenario->before / 2 ? 2 : -1) : 1;
        if (i < scenario->before && !scenario->replace)
            new = old;
        if (now != old && now != new)
            return -1;
        if (now == new &&new != old && ended)
            return -1; /* a later change took effect although an earlier one did not */
        ended |= now == old && new != old;
    }
    for (unsigned i = 0; i < all; i++)
        if (put_version(s, index, i, 5) < 0 || version_of(s, index, i) != 5)
            return -1;
    for (unsigned i = 0; i < all + 8; i++)
        if (put_version(s, index, i, 6) < 0)
            return -1;
    for (unsigned i = 0; i < all + 8; i++)
        if (version_of(s, index, i) != 6)
            return -1;
    return 0;
}


static void fail_everywhere(const char *options, const char *sim, scenario test, bool every_unit) {
    far_explore explore = {.kind = "shard",
                           .options = options,
                           .sim = sim,
                           .prepare = insert_before,
                           .victim = run_victim,
                           .survive = verify_survivor,
                           .every_unit = every_unit,
                           .collect = true,
                           .ctx = &test,
                           .out = stderr};
    far_explore_result result;
    assert_int_equal(far_explore_run(&explore, &result), 0);
    print_message("    %llu deaths over %llu verbs\n", (unsigned long long)result.cuts,
                  (unsigned long long)result.verbs);
    assert_true(result.cuts > result.verbs);
    assert_int_equal(result.problems, 0);
}

/* Two clients fail one after the other, so the second client meets the state that the first client has left. The first
 * client puts version 2 of all keys, and the second client puts version 3, until it fails. */

static int put_all(far_session *s, far_index *index, void *ctx, unsigned version) {
    const scenario *scenario = ctx;
    /* the new keys first, because these inserts learn of the doubling */
    for (unsigned n = scenario->before + scenario->inserts; n-- > 0;) {
        int err = put_version(s, index, n, version);
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
    const scenario *scenario = ctx;
    unsigned all = scenario->before + scenario->inserts;
    for (unsigned i = all, low = 3; i-- > 0;) { /* versions must not increase in the order in which the keys were put */
        int now = version_of(s, index, i), least = i < scenario->before ? 1 : -1;
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
        make_pair(i, 0, key, value);
        if (version_of(s, index, i) != 5 || far_delete(s, index, key, 8) != 0 || version_of(s, index, i) != -1)
            return -1;
    }
    return put_all(s, index, ctx, 6);
}


/* Examines every `stride`-th pair of failure points. SHARD_EVERY_PAIR in the environment requests all pairs. */
static void two_clients_fail(const char *options, const char *sim, scenario test, unsigned stride) {
    far_explore explore = {.kind = "shard",
                           .options = options,
                           .sim = sim,
                           .prepare = insert_before,
                           .victim = first_of_two,
                           .second = second_of_two,
                           .survive = survive_two,
                           .stride = getenv("SHARD_EVERY_PAIR") ? 1 : stride,
                           .collect = true,
                           .ctx = &test,
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


TEST(inserts_of_failing_clients) {
    fail_everywhere(TINY, NULL, (scenario){3, 3, false}, true);
    fail_everywhere(TINY, "atomic_bytes=8,masked_cas=off", (scenario){3, 2, false}, true);
}


TEST(growth_with_failing_clients) {
    fail_everywhere(TINY ",load=30", NULL, (scenario){1, 7, false}, true);
    fail_everywhere(TINY ",load=30", "masked_cas=off,atomics_in_order=on", (scenario){1, 6, false}, true);
}


TEST(changes_of_failing_clients) {
    fail_everywhere(TINY, NULL, (scenario){6, 1, true}, true);
}


/* Proves that a client may fail at any verb while it reopens a bucket. The survivor's keys fill the four slots, and the
 * victim deletes two of them. The first insert of the victim finds no EMPTY slot and reopens the bucket: it takes one
 * TOMB, and the other becomes an EMPTY slot. The second insert takes this slot, and the third one is stored at level 2.
 * In the runs with two slots, two of the survivor's keys are at level 2; the victim deletes these, so the filter is
 * cleared. */
TEST(reopenings_by_failing_clients) {
    fail_everywhere("partitions=1,bits=0,slots=4,l2_slots=4,afs=1000000", NULL, (scenario){4, 3, true}, true);
    fail_everywhere("partitions=1,bits=0,slots=4,l2_slots=4,afs=1000000", "atomic_bytes=8", (scenario){4, 2, true},
                    true);
    fail_everywhere("partitions=1,bits=0,slots=2,l2_slots=4,afs=1000000", NULL, (scenario){4, 1, true}, true);
    fail_everywhere("key_size=8,value_size=8,narrow=on,partitions=1,bits=0,slots=2,l2_slots=4,afs=1000000", NULL,
                    (scenario){4, 1, true}, true);
}


TEST(inline_inserts_of_failing_clients) {
    fail_everywhere(INLINE, NULL, (scenario){3, 3, false}, true);
    fail_everywhere(INLINE, "atomic_bytes=8", (scenario){3, 2, false}, true);
}


TEST(inline_growth_with_failing_clients) {
    fail_everywhere(INLINE ",load=30", NULL, (scenario){1, 7, false}, true);
}


TEST(inline_changes_of_failing_clients) {
    fail_everywhere(INLINE, NULL, (scenario){6, 1, true}, true);
}


/* Proves that a client may fail after every word that a split or a drain writes. A doubling has begun and no bucket is
 * split, so the victim's first insert splits its bucket. */
TEST(a_split_that_fails_at_every_word) {
    fail_everywhere(TINY ",load=60,afs=1,idle_sweep=off", "atomic_bytes=8", (scenario){2, 1, false}, true);
    fail_everywhere(INLINE ",load=60,afs=1,idle_sweep=off", "atomic_bytes=8", (scenario){2, 1, false}, true);
    fail_everywhere(INLINE ",share=1,idle_sweep=off", "atomic_bytes=8", (scenario){3, 2, false}, true);
}


/* Proves that a split survives two failures: the first client splits, and the second one takes the split over. */
TEST(two_clients_fail_in_a_split) {
    two_clients_fail(TINY ",load=60,afs=1,idle_sweep=off", NULL, (scenario){2, 1, false}, 61);
    two_clients_fail(INLINE ",load=60,afs=1,idle_sweep=off", NULL, (scenario){2, 1, false}, 17);
    two_clients_fail(TINY ",load=60,afs=1,idle_sweep=off,grace=off",
                     "masked_cas=off,atomic_bytes=8,atomics_in_order=on", (scenario){2, 1, false}, 97);
    two_clients_fail(INLINE ",load=60,afs=1,idle_sweep=off", "atomic_bytes=8", (scenario){2, 1, false}, 17);
}


/* Proves that keys which overflow, a doubling, its split and its drain survive the failures of two clients. */
TEST(two_clients_fail_in_overflows_and_drains) {
    two_clients_fail(TINY ",share=1,idle_sweep=off", NULL, (scenario){3, 1, false}, 61);
    two_clients_fail(INLINE ",share=1,idle_sweep=off", NULL, (scenario){3, 1, false}, 17);
}
