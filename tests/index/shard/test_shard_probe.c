/* Compares the bitmaps of probe.c with a word-by-word evaluation, and the wide vectors with the vectors that every
 * processor has. */
#include "base/random.h"
#include "index/shard/shard.h"
#include "test.h"

#include <stdint.h>

enum { BUCKETS = 2000 };


/* Returns a map of live words that have the tag and v's parity, or the other parity. */
static uint64_t map_word_by_word(unsigned v, uint64_t tag, uint64_t tag_mask, const uint64_t *w) {
    uint64_t map = 0;
    for (unsigned i = 0; i < SHARD_P_SLOTS; i++) {
        bool same = ((shard_entry_tag(w[i]) ^ tag) & tag_mask) == 0;
        map |= (uint64_t)(shard_is_live(w[i]) && (same || !shard_stamp_is(w[i], v))) << i;
    }
    return map;
}


/* Returns one of few possible words, so that many words are equal, and some words are equal only in the half that is
 * not compared. */
static uint64_t some_word(far_random *r) {
    return far_random_below(r, 8) << 61 | far_random_below(r, 4) << 47 | far_random_below(r, 3);
}


TEST(words_that_pass_have_their_bit) {
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
        assert_int_equal(shard_p_match_map(false, &s, w), map);
        assert_int_equal(shard_p_match_map(shard_has_wide_vectors(), &s, w), map);
    }
}


/* Proves that no position is mistaken for another: one word alone matches, then all words except one. */
TEST(every_place_has_a_bit_of_its_own) {
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
        assert_int_equal(shard_p_match_map(false, &s, w), bit);
        assert_int_equal(shard_p_match_map(shard_has_wide_vectors(), &s, w), bit);
    }
}


static uint32_t slots_word_by_word(uint64_t rem, const uint64_t *w) {
    uint32_t map = 0;
    for (unsigned i = 0; i < SHARD_I_SLOTS; i++)
        map |= (uint32_t)((w[2 * i + 1] & SHARD_V) && shard_kw_rem(w[2 * i + 1]) == rem) << i;
    return map;
}


TEST(slots_with_the_key_have_their_bit) {
    far_random r;
    far_random_seed(&r, 2);
    for (unsigned n = 0; n < BUCKETS; n++) {
        uint64_t w[SHARD_WORDS], rem = far_random_below(&r, 2) << (SHARD_REM_BITS - 1) | far_random_below(&r, 2);
        /* these words have different versions, marks and counters, and the bit V (live) differs, too */
        for (unsigned i = 0; i < SHARD_WORDS; i++)
            w[i] = far_random_below(&r, 1024) << SHARD_REM_BITS | far_random_below(&r, 2) << (SHARD_REM_BITS - 1) |
                   far_random_below(&r, 2);
        assert_int_equal(shard_i_match_map(false, rem, w), slots_word_by_word(rem, w));
        assert_int_equal(shard_i_match_map(shard_has_wide_vectors(), rem, w), slots_word_by_word(rem, w));
    }
}


TEST(every_slot_has_a_bit_of_its_own) {
    for (unsigned i = 0; i < SHARD_WORDS; i++) {
        uint64_t w[SHARD_WORDS] = {0};
        uint32_t bit = i % 2 && i / 2 < SHARD_I_SLOTS ? 1u << i / 2 : 0;
        w[i] = shard_kw(1, false, 5, 77);
        assert_int_equal(shard_i_match_map(false, 77, w), bit);
        assert_int_equal(shard_i_match_map(shard_has_wide_vectors(), 77, w), bit);
    }
}


/* Proves that the test for one version is exact: all words, of all kinds, have version v, or exactly one word does not.
 */
TEST(a_bucket_is_of_one_version_or_not) {
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


/* Proves that values, headers and locks are not counted as keys, whatever they contain. */
TEST(live_slots_are_counted) {
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
