/* Compares all words of a bucket at once and returns a bitmap with one bit per word. The code uses the vector
 * instructions that every processor has, or AVX2 on a processor that has AVX2 (shard_has_wide_vectors). */
#include "index/shard/shard.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

typedef uint64_t pair __attribute__((vector_size(16)));
typedef uint32_t halves __attribute__((vector_size(16)));
typedef int32_t signed_halves __attribute__((vector_size(16)));

enum { AT_ONCE = 4, IN_A_MAP = 32 }; /* AT_ONCE: words that a step compares; IN_A_MAP: words per 32-bit bitmap */
_Static_assert(SHARD_WORDS == 2 * IN_A_MAP, "two maps");

/* the bits of a key word (kw, inline layout) at level 1 that identify its key */
#define SAME_KEY (SHARD_V | ((1ull << SHARD_REM_BITS) - 1))


/* ---- Vectors that every processor has ---- */

/* Returns a vector with this value in each of its four lanes. */
static halves broadcast_half(uint32_t half) {
    return (halves){half, half, half, half};
}


/* Returns a bitmap of the 32 words, in their order, with a bit for each word that satisfies the condition. A step
 * compares the upper halves of four words: the halves of words 0 and 1 are in lanes 1 and 3, and the halves of words 2
 * and 3 are shifted into lanes 0 and 2. Each lane collects one bit per step. */
static uint32_t match_32_words(const shard_sieve *s, const uint64_t *words) {
    const pair upper_half = {~0ull << 32, ~0ull << 32};
    const halves mask = broadcast_half(s->mask), flip = broadcast_half(s->flip);
    const signed_halves above = (signed_halves)broadcast_half((uint32_t)s->above);
    halves found = {0};
#pragma GCC unroll 8
    for (int i = IN_A_MAP - AT_ONCE; i >= 0; i -= AT_ONCE) {
        pair two[2];
        memcpy(two, words + i, sizeof(two));
        halves four = (halves)((two[0] & upper_half) | two[1] >> 32);
        halves match = (halves)((signed_halves)((four & mask) ^ flip) > above);
        found = (found << AT_ONCE) - match; /* a match is -1, so subtracting it sets the lowest bit */
    }
    return found[1] | found[3] << 1 | found[0] << 2 | found[2] << 3;
}


static uint64_t p_match_map(const shard_sieve *s, const uint64_t *words) {
    return match_32_words(s, words) | (uint64_t)match_32_words(s, words + IN_A_MAP) << IN_A_MAP;
}


static uint64_t stamp_map(const uint64_t *words, unsigned v) {
    uint64_t map = 0;
    for (unsigned i = 0; i < SHARD_WORDS; i++)
        map |= (uint64_t)shard_stamp_is(words[i], v) << i;
    return map;
}


static bool has_zero_word(const uint64_t *words) {
    for (unsigned i = 0; i < SHARD_WORDS; i++)
        if (words[i] == 0)
            return true;
    return false;
}


static uint32_t i_match_map(uint64_t key, const uint64_t *words) {
    uint32_t map = 0;
    for (unsigned i = 0; i < SHARD_I_SLOTS; i++)
        map |= (uint32_t)((words[2 * i + 1] & SAME_KEY) == key) << i;
    return map;
}


/* ---- AVX2 ---- */

#if defined(__x86_64__)

bool shard_has_wide_vectors(void) {
    return __builtin_cpu_supports("avx2");
}


/* Packs 32 matches of 32 bits into 32 bits. The pack instructions work on 128-bit lanes, so in every 16 bytes of their
 * result the first eight come from lower lanes and the rest from upper lanes. `order` restores the order of the words.
 */
__attribute__((target("avx2"))) static inline uint32_t pack_matches_wide(const __m256i match[4], __m128i order) {
    __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(match[0], match[1]), _mm256_packs_epi32(match[2], match[3]));
    bytes = _mm256_permute4x64_epi64(bytes, 0xd8);
    return (uint32_t)_mm256_movemask_epi8(_mm256_shuffle_epi8(bytes, _mm256_broadcastsi128_si256(order)));
}


/* Compares eight words per step. The shuffle returns the upper halves of these words in the order 0 1 4 5 2 3 6 7. */
__attribute__((target("avx2"))) static uint64_t p_match_map_wide(const shard_sieve *s, const uint64_t *words) {
    const __m256i mask = _mm256_set1_epi32((int)s->mask), flip = _mm256_set1_epi32((int)s->flip);
    const __m256i above = _mm256_set1_epi32(s->above);
    __m256i match[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        __m256 low = _mm256_loadu_ps((const float *)(words + 8 * i)),
               high = _mm256_loadu_ps((const float *)(words + 8 * i + 4));
        __m256i eight = _mm256_castps_si256(_mm256_shuffle_ps(low, high, 0xdd));
        match[i] = _mm256_cmpgt_epi32(_mm256_xor_si256(_mm256_and_si256(eight, mask), flip), above);
    }
    const __m128i order = _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
    return pack_matches_wide(match, order) | (uint64_t)pack_matches_wide(match + 4, order) << 32;
}


/* Evaluates shard_stamp_is for four words per step: a live word must have the parity of v, and any other word must be
 * non-zero and have v in its low 6 bits. */
__attribute__((target("avx2"))) static uint64_t stamp_map_wide(const uint64_t *words, unsigned v) {
    const __m256i live_mask = _mm256_set1_epi64x((long long)(SHARD_V | SHARD_PARITY)),
                  live = _mm256_set1_epi64x((long long)(SHARD_V | (v & 1 ? SHARD_PARITY : 0)));
    const __m256i other_mask = _mm256_set1_epi64x((long long)(SHARD_V | 63)), other = _mm256_set1_epi64x(v);
    const __m256i zero = _mm256_setzero_si256();
    uint64_t map = 0;
#pragma GCC unroll 16
    for (int i = 0; i < SHARD_WORDS; i += 4) {
        __m256i four = _mm256_loadu_si256((const __m256i *)(words + i));
        __m256i is_live = _mm256_cmpeq_epi64(_mm256_and_si256(four, live_mask), live);
        __m256i is_other = _mm256_andnot_si256(_mm256_cmpeq_epi64(four, zero),
                                               _mm256_cmpeq_epi64(_mm256_and_si256(four, other_mask), other));
        map |= (uint64_t)(uint32_t)_mm256_movemask_pd(_mm256_castsi256_pd(_mm256_or_si256(is_live, is_other))) << i;
    }
    return map;
}


__attribute__((target("avx2"))) static bool has_zero_word_wide(const uint64_t *words) {
    const __m256i zero = _mm256_setzero_si256();
    __m256i found = zero;
#pragma GCC unroll 16
    for (int i = 0; i < SHARD_WORDS; i += 4)
        found = _mm256_or_si256(found, _mm256_cmpeq_epi64(_mm256_loadu_si256((const __m256i *)(words + i)), zero));
    return !_mm256_testz_si256(found, found);
}


__attribute__((target("avx2"))) static inline __m256 match_four_slots_wide(__m256i wanted, const uint64_t *words) {
    const __m256i mask = _mm256_set1_epi64x((long long)SAME_KEY);
    __m256i low = _mm256_loadu_si256((const __m256i *)words), high = _mm256_loadu_si256((const __m256i *)(words + 4));
    __m256i four = _mm256_and_si256(_mm256_unpackhi_epi64(low, high), mask);
    return _mm256_castsi256_ps(_mm256_cmpeq_epi64(four, wanted));
}


/* Compares eight slots per step. The results appear in the order 0 2 4 6 1 3 5 7. */
__attribute__((target("avx2"))) static uint32_t i_match_map_wide(uint64_t key, const uint64_t *words) {
    const __m256i wanted = _mm256_set1_epi64x((long long)key);
    __m256i match[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        match[i] = _mm256_castps_si256(_mm256_shuffle_ps(match_four_slots_wide(wanted, words + 16 * i),
                                                         match_four_slots_wide(wanted, words + 16 * i + 8), 0x88));
    return pack_matches_wide(match, _mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15));
}

#else

bool shard_has_wide_vectors(void) {
    return false;
}


static uint64_t p_match_map_wide(const shard_sieve *s, const uint64_t *words) {
    return p_match_map(s, words);
}


static uint64_t stamp_map_wide(const uint64_t *words, unsigned v) {
    return stamp_map(words, v);
}


static bool has_zero_word_wide(const uint64_t *words) {
    return has_zero_word(words);
}


static uint32_t i_match_map_wide(uint64_t key, const uint64_t *words) {
    return i_match_map(key, words);
}

#endif


/* ---- Choice between the two implementations ---- */

uint64_t shard_p_match_map(bool wide, const shard_sieve *s, const uint64_t *words) {
    return (wide ? p_match_map_wide(s, words) : p_match_map(s, words)) & ~(1ull << SHARD_P_HEADER);
}


bool shard_p_all_stamped(bool wide, const uint64_t *words, unsigned v) {
    return ((wide ? stamp_map_wide : stamp_map)(words, v) | 1ull << SHARD_P_HEADER) == UINT64_MAX;
}


bool shard_p_any_zero(bool wide, const uint64_t *words) {
    return (wide ? has_zero_word_wide : has_zero_word)(words);
}


unsigned shard_count_live(const shard_state *st, const uint64_t *words) {
    const uint32_t live = SHARD_V >> 32;
    /* in the inline layout even words are values, so only odd words (the key words) count */
    const uint64_t slots = st->inlined ? 0xaaaaaaaaaaaaaaaa : UINT64_MAX;
    return (unsigned)__builtin_popcountll(shard_p_match_map(st->wide, &(shard_sieve){live, live, -1}, words) & slots);
}


uint32_t shard_i_match_map(bool wide, uint64_t rem, const uint64_t *words) {
    return (wide ? i_match_map_wide(SHARD_V | rem, words) : i_match_map(SHARD_V | rem, words)) &
           ((1u << SHARD_I_SLOTS) - 1);
}
