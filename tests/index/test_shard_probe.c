/* The maps of probe.c against what they mean, word by word; wide vectors say the same as the others. */
#include "base/random.h"
#include "index/shard/shard.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { BUCKETS = 2000 };


/* Live words with the tag and of v's parity, or of the other. */
static uint64_t map_word_by_word(unsigned v, uint64_t tag, uint64_t tag_mask, const uint64_t *w) {
    uint64_t map = 0;
    for (unsigned i = 0; i < SHARD_P_SLOTS; i++) {
        bool same = ((shard_entry_tag(w[i]) ^ tag) & tag_mask) == 0;
        map |= (uint64_t)(shard_is_live(w[i]) && (same || !shard_stamp_is(w[i], v))) << i;
    }
    return map;
}


/* Few values, so that many words match, and some only in the half that does not count. */
static uint64_t some_word(far_random *r) {
    return far_random_below(r, 8) << 61 | far_random_below(r, 4) << 47 | far_random_below(r, 3);
}


static void words_that_pass_have_their_bit(void **state) {
    (void)state;
    far_random r;
    far_random_seed(&r, 1);
    for (unsigned n = 0; n < BUCKETS; n++) {
        uint64_t w[SHARD_WORDS];
        for (unsigned i = 0; i < SHARD_WORDS; i++)
            w[i] = some_word(&r);
        unsigned v = n % 64;
        uint64_t tag = far_random_below(&r, 4), tag_mask = (1ull << far_random_below(&r, SHARD_TAG_BITS + 1)) - 1;
        uint64_t map = map_word_by_word(v, tag, tag_mask, w);
        shard_sieve s = shard_sieve_for(v, tag, tag_mask);
        assert_int_equal(shard_p_map(false, &s, w), map);
        assert_int_equal(shard_p_map(shard_has_wide_vectors(), &s, w), map);
    }
}


/* Each word alone, and every other but it: no place is mistaken for another. */
static void every_place_has_a_bit_of_its_own(void **state) {
    (void)state;
    const shard_sieve s = {UINT32_MAX, 0, 6};
    for (unsigned i = 0; i < SHARD_WORDS; i++) {
        uint64_t w[SHARD_WORDS] = {0};
        uint64_t bit = i == SHARD_P_HEADER ? 0 : 1ull << i, full[SHARD_WORDS];
        for (unsigned k = 0; k < SHARD_WORDS; k++)
            full[k] = 1ull << k;
        assert_false(shard_p_any_zero(false, full) || shard_p_any_zero(shard_has_wide_vectors(), full));
        full[i] = 0;
        assert_true(shard_p_any_zero(false, full) && shard_p_any_zero(shard_has_wide_vectors(), full));
        w[i] = (i % 2 ? 7ull : 9ull) << 32 | 5;
        assert_int_equal(shard_p_map(false, &s, w), bit);
        assert_int_equal(shard_p_map(shard_has_wide_vectors(), &s, w), bit);
    }
}


static uint32_t slots_word_by_word(uint64_t rem, const uint64_t *w) {
    uint32_t map = 0;
    for (unsigned i = 0; i < SHARD_I_SLOTS; i++)
        map |= (uint32_t)shard_kw_holds(w[2 * i + 1], rem, false) << i;
    return map;
}


static void slots_with_the_key_have_their_bit(void **state) {
    (void)state;
    far_random r;
    far_random_seed(&r, 2);
    for (unsigned n = 0; n < BUCKETS; n++) {
        uint64_t w[SHARD_WORDS], rem = far_random_below(&r, 2) << (SHARD_REM_BITS - 1) | far_random_below(&r, 2);
        for (unsigned i = 0; i < SHARD_WORDS; i++) /* version, choice and gen differ, and V */
            w[i] = far_random_below(&r, 1024) << SHARD_REM_BITS | far_random_below(&r, 2) << (SHARD_REM_BITS - 1) |
                   far_random_below(&r, 2);
        assert_int_equal(shard_i_map(false, rem, w), slots_word_by_word(rem, w));
        assert_int_equal(shard_i_map(shard_has_wide_vectors(), rem, w), slots_word_by_word(rem, w));
    }
}


static void every_slot_has_a_bit_of_its_own(void **state) {
    (void)state;
    for (unsigned i = 0; i < SHARD_WORDS; i++) {
        uint64_t w[SHARD_WORDS] = {0};
        uint32_t bit = i % 2 && i / 2 < SHARD_I_SLOTS ? 1u << i / 2 : 0;
        w[i] = shard_kw(1, false, 5, 77);
        assert_int_equal(shard_i_map(false, 77, w), bit);
        assert_int_equal(shard_i_map(shard_has_wide_vectors(), 77, w), bit);
    }
}


/* Of words of all sorts and of some versions: all are of v, or exactly one is not. */
static void a_bucket_is_of_one_version_or_not(void **state) {
    (void)state;
    far_random r;
    far_random_seed(&r, 3);
    for (unsigned n = 0; n < BUCKETS; n++) {
        unsigned v = (unsigned)far_random_below(&r, 4);
        const uint64_t good[] = {shard_empty(v), shard_tomb(v), shard_entry(v, 9, 1, 4096),
                                 shard_empty(v) | SHARD_FROZEN, shard_entry(v + 2, 0, 0, 64) | SHARD_FROZEN};
        const uint64_t bad[] = {0, shard_empty(v + 1), shard_tomb(v + 2), shard_entry(v + 1, 9, 1, 4096)};
        uint64_t w[SHARD_WORDS];
        for (unsigned i = 0; i < SHARD_WORDS; i++)
            w[i] = good[far_random_below(&r, 5)];
        w[SHARD_P_HEADER] = n % 2;
        assert_true(shard_p_all_stamped(false, w, v));
        assert_true(shard_p_all_stamped(shard_has_wide_vectors(), w, v));
        w[far_random_below(&r, SHARD_P_SLOTS)] = bad[n % 4];
        assert_false(shard_p_all_stamped(false, w, v));
        assert_false(shard_p_all_stamped(shard_has_wide_vectors(), w, v));
    }
}


/* Values, headers and locks are no keys, whatever they are. */
static void live_slots_are_counted(void **state) {
    (void)state;
    far_random r;
    far_random_seed(&r, 4);
    for (unsigned n = 0; n < BUCKETS; n++) {
        shard_state st = {.inlined = n % 2, .wide = n % 3 && shard_has_wide_vectors()};
        unsigned live = 0;
        uint64_t w[SHARD_WORDS];
        for (unsigned i = 0; i < SHARD_WORDS; i++)
            w[i] = far_random_below(&r, 2) ? SHARD_V | i : i;
        for (unsigned i = st.inlined; i < SHARD_P_SLOTS; i += 1 + st.inlined)
            live += shard_is_live(w[i]);
        assert_int_equal(shard_count_live(&st, w), live);
    }
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_that_pass_have_their_bit),    cmocka_unit_test(every_place_has_a_bit_of_its_own),
        cmocka_unit_test(slots_with_the_key_have_their_bit), cmocka_unit_test(every_slot_has_a_bit_of_its_own),
        cmocka_unit_test(a_bucket_is_of_one_version_or_not), cmocka_unit_test(live_slots_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
