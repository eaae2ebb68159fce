/* The words and the arithmetic of the shard index (layout.h). No pool is needed. */
#include "base/random.h"
#include "index/shard/shard.h"
#include "test.h"

#include <stdint.h>
#include <string.h>

enum { ROUNDS = 20000 };


TEST(entries_hold_what_is_put_in) {
    far_random r;
    far_random_seed(&r, 1);
    for (unsigned i = 0; i < ROUNDS; i++) {
        unsigned v = (unsigned)far_random_below(&r, 48), tag = (unsigned)far_random_below(&r, 1 << 14),
                 class = (unsigned)far_random_below(&r, 32);
        far_addr addr = far_addr_make((unsigned)far_random_below(&r, 256), far_random_below(&r, 1ull << 34) << 6);
        uint64_t word = shard_entry(v, tag, class, addr), frozen = word | SHARD_FROZEN;
        assert_true(shard_is_live(word) && !shard_is_frozen(word) && shard_is_frozen(frozen));
        assert_true(!shard_is_empty(word) && !shard_is_tomb(word));
        assert_int_equal(shard_entry_tag(frozen), tag);
        assert_int_equal(shard_entry_class(frozen), class);
        assert_int_equal(shard_entry_addr(frozen), addr);
        assert_true(shard_stamp_is(word, v) && !shard_stamp_is(word, v + 1) && shard_stamp_is(word, v + 2));
        assert_int_equal(shard_entry_block(word), shard_entry_block(shard_entry(v + 1, tag ^ 1, class, addr)));
    }
}


TEST(empty_tomb_and_unwritten_differ) {
    for (unsigned v = 0; v < 48; v++) {
        uint64_t words[] = {shard_empty(v), shard_tomb(v), shard_empty(v) | SHARD_FROZEN, shard_tomb(v) | SHARD_FROZEN};
        for (unsigned i = 0; i < 4; i++) {
            assert_int_not_equal(words[i], 0);
            assert_false(shard_is_live(words[i]));
            assert_int_equal(shard_is_empty(words[i]), i % 2 == 0);
            assert_int_equal(shard_is_tomb(words[i]), i % 2 == 1);
            assert_true(shard_stamp_is(words[i], v) && !shard_stamp_is(words[i], (v + 2) % 64));
        }
    }
    assert_false(shard_stamp_is(0, 0)); /* an unwritten word has no version, not even version 0 */
    assert_false(shard_kw_stamp_is(0, 0));
}


TEST(headers_keep_filters_and_owner_apart) {
    uint64_t header = shard_header(47, 0x8001, 0x1248), locked = shard_header_locked(header, 16382, SHARD_OP_SPLIT);
    assert_int_equal(shard_header_v(locked), 47);
    assert_int_equal(shard_header_fnew(locked), 0x8001);
    assert_int_equal(shard_header_fold(locked), 0x1248);
    assert_int_equal(shard_header_owner(locked), 16382);
    assert_int_equal(shard_header_op(locked), SHARD_OP_SPLIT);
    assert_int_equal(shard_header_unlocked(locked), header);
    assert_int_equal(shard_header_owner(header), 0);
    assert_int_equal(shard_header_fnew(shard_header_add_overflowed(header, 0x10)), 0x8011);
    uint64_t two = shard_header_add_overflowed(shard_header_add_overflowed(header, 1), 2), many = header;
    assert_int_equal(shard_header_remove_overflowed(two, 0), two);
    assert_int_equal(shard_header_fnew(shard_header_remove_overflowed(two, 1)), 0x8003);
    assert_int_equal(shard_header_remove_overflowed(two, 2), header & ~(0xffffull << 26));
    assert_int_equal(shard_header_remove_overflowed(two, 3), two); /* the count never becomes negative */
    for (unsigned i = 0; i < 40; i++)
        many = shard_header_add_overflowed(many, 1);
    assert_int_equal(shard_header_cycle(many), 0);
    assert_int_equal(shard_header_remove_overflowed(many, 1), many); /* a saturated count stays as it is */
    for (unsigned cycle = 0; cycle < 32; cycle++) {
        uint64_t at = shard_header_in_cycle(two, cycle);
        assert_int_equal(shard_header_cycle(at), cycle);
        assert_int_equal(shard_header_in_cycle(at, 0), two);
        assert_int_equal(shard_empty_cycle(shard_empty_in_cycle(47, cycle)), cycle);
        assert_true(shard_is_empty(shard_empty_in_cycle(47, cycle)));
        assert_true(shard_stamp_is(shard_empty_in_cycle(47, cycle), 47));
        assert_false(shard_is_frozen(shard_empty_in_cycle(47, cycle)));
    }
    assert_int_not_equal(shard_header(0, 0, 0), 0);
    assert_int_equal(shard_header_v(header | SHARD_MOVING), 47);
}


/* Proves that a cycle number does not return under one pin, whatever cycle a bucket has and in whatever order it is
 * reopened by clients with pins that can coexist with a pin of epoch e. Fails if the numbers are assigned without
 * regard to the epoch, because then they wrap around. */
TEST(no_cycle_returns_under_a_pin) {
    enum { STEPS = 7, ORDERS = 2187 };
    for (unsigned first = 0; first <= 30; first++)
        for (uint64_t e = 60; e < 66; e++)
            for (unsigned order = 0; order < ORDERS; order++) {
                uint64_t header = shard_header_in_cycle(shard_header(3, 0, 0), first);
                uint32_t ended = 0;
                for (unsigned step = 0, rest = order; step < STEPS; step++, rest /= 3) {
                    unsigned next = shard_next_cycle(header, e - 1 + rest % 3);
                    if (next == 0)
                        continue;
                    assert_false(ended >> next & 1);
                    ended |= 1u << shard_header_cycle(header);
                    assert_false(ended >> next & 1);
                    header = shard_header_in_cycle(header, next);
                }
            }
    /* a new bucket may be reopened five times in one epoch, and again in the next epoch */
    for (uint64_t e = 60; e < 66; e++) {
        uint64_t header = shard_header(3, 0, 0);
        for (unsigned i = 0; i < 5; i++)
            header = shard_header_in_cycle(header, shard_next_cycle(header, e));
        assert_int_equal(shard_next_cycle(header, e), 0);
        assert_int_not_equal(shard_next_cycle(header, e + 1), 0);
    }
}


TEST(roots_are_ordered_in_time) {
    uint64_t last = shard_root_order(shard_root(0, SHARD_STABLE, true, 0)), stamp = 0;
    for (unsigned n = 0; n < 3; n++) { /* for several directories */
        for (unsigned d = 1; d < 48; d++, stamp += 7) {
            uint64_t roots[] = {
                shard_root(d, SHARD_GROW, false, stamp),       shard_root(d, SHARD_GROW, true, stamp + 2),
                shard_root(d, SHARD_DRAIN, true, stamp + 2),   shard_root(d, SHARD_STABLE, true, stamp + 2),
                shard_root(d, SHARD_SHRINK, false, stamp + 2), shard_root(d, SHARD_SHRINK, true, stamp + 4),
                shard_root(d, SHARD_STABLE, true, stamp + 5),  shard_root(d, SHARD_SHRINK, false, stamp + 5),
                shard_root(d, SHARD_STABLE, true, stamp + 7),
            };
            for (unsigned i = 0; i < sizeof(roots) / sizeof(roots[0]); i++) {
                uint64_t root = shard_root_with_directory(roots[i], SHARD_DIRECTORIES - 1 + n);
                assert_true(shard_root_order(root) > last);
                last = shard_root_order(root);
                assert_int_equal(shard_root_d(root), d);
                assert_int_equal(shard_root_phase(root), shard_root_phase(roots[i]));
                assert_int_equal(shard_root_stamp(root), shard_root_stamp(roots[i]));
                assert_int_equal(shard_root_directory(root), (SHARD_DIRECTORIES - 1 + n) % SHARD_DIRECTORIES);
            }
        }
        stamp += 3;
        uint64_t fresh = shard_root(0, SHARD_STABLE, true, stamp);
        assert_true(shard_root_order(fresh) > last);
        last = shard_root_order(fresh);
    }
}


TEST(buckets_segments_and_parents_fit) {
    far_random r;
    far_random_seed(&r, 2);
    for (unsigned i = 0; i < ROUNDS; i++) {
        unsigned p = (unsigned)far_random_below(&r, 10), b = (unsigned)far_random_below(&r, 6),
                 v = 1 + (unsigned)far_random_below(&r, 40);
        uint64_t h = far_random_next(&r), now = shard_bucket(h, p, b, v), before = shard_bucket(h, p, b, v - 1);
        assert_int_equal(shard_key_moves(h, p, b, v), now != before);
        if (now != before) {
            assert_int_equal(shard_parent(now, b, v), before);
            assert_int_equal(shard_segment(now, b), v);
        }
        unsigned segment = shard_segment(now, b);
        assert_true(segment <= v && shard_in_segment(now, b) < shard_segment_buckets(segment, b));
        assert_int_equal(shard_in_segment(now, b) + (segment ? shard_segment_buckets(segment, b) : 0), now);
    }
}


/* Proves that a corrupt version leads only to shifts within a word. The result does not matter. Without the remainder
 * in shard_key_moves the sanitizer for undefined behaviour reports it. */
TEST(corrupt_versions_shift_within_a_word) {
    for (unsigned v = 1; v < 64; v++)
        for (volatile unsigned p = 0, b = 6; p <= 16; p += 4)
            assert_in_range(shard_key_moves(~0ull, p, b, v), 1, 1);
}


TEST(mixing_is_undone) {
    far_random r;
    far_random_seed(&r, 3);
    for (unsigned i = 0; i < ROUNDS; i++) {
        unsigned bits = 2 + (unsigned)far_random_below(&r, 63), p = (unsigned)far_random_below(&r, 10);
        uint64_t key = far_random_next(&r), y = far_random_next(&r) & shard_mask(bits), h = far_random_next(&r);
        assert_int_equal(shard_unmix(shard_mix(y, key, bits), key, bits), y);
        assert_true(shard_mix(y, key, bits) <= shard_mask(bits));
        assert_int_equal(shard_unrehash(shard_rehash(h, key, p, 64), key, p, 64), h);
        assert_int_equal(shard_rehash(h, key, p, 64) & shard_mask(p), h & shard_mask(p));
    }
    bool seen[1 << 10] = {0};
    for (uint64_t y = 0; y < 1 << 10; y++)
        seen[shard_mix(y, 12345, 10)] = true;
    for (unsigned i = 0; i < 1 << 10; i++)
        assert_true(seen[i]);
}


TEST(place_and_remainder_give_the_hash_back) {
    far_random r;
    far_random_seed(&r, 4);
    for (unsigned i = 0; i < ROUNDS; i++) {
        unsigned p = 6, b = 4, v = (unsigned)far_random_below(&r, 30);
        uint64_t h = far_random_next(&r), rem = h >> SHARD_IMPLIED;
        assert_int_equal(shard_unquotient(rem, shard_bucket(h, p, b, v), h & shard_mask(p), p, SHARD_IMPLIED), h);
        uint64_t kw = shard_kw(v, true, 200, rem);
        assert_int_equal(shard_kw_rem(kw), rem);
        assert_int_equal(shard_kw_gen(kw), 200 % 128);
        assert_true(shard_kw_matches(kw, rem, true) && !shard_kw_matches(kw, rem, false) && !shard_kw_is_empty(kw) &&
                    !shard_kw_is_free(kw));
        assert_true(shard_kw_stamp_is(kw, v) && !shard_kw_stamp_is(kw, v + 1));
    }
    assert_true(shard_kw_is_empty(shard_kw_empty(7, 9)) && !shard_kw_is_busy(shard_kw_empty(7, 9)) &&
                !shard_kw_is_free(shard_kw_empty(7, 9)));
    assert_true(shard_kw_is_busy(shard_kw_busy(16382, 9)) && !shard_kw_is_free(shard_kw_busy(16382, 9)));
    assert_int_equal(shard_kw_owner(shard_kw_busy(16382, 9)), 16382);
    assert_int_equal(shard_kw_gen(shard_kw_busy(16382, 9)), 9);
    assert_true(shard_kw_is_free(0) && shard_kw_is_free(shard_kw_free(127)));
}


/* Proves that at every version a tag has at least 8 bits that the bucket does not imply, including the bit that decides
 * the next split. */
TEST(tags_discriminate_at_every_version) {
    far_random r;
    far_random_seed(&r, 5);
    for (unsigned v = 0; v < 40; v++) {
        unsigned p = 6, b = 4, low = shard_tag_low(p, b, v);
        assert_true(low <= p + b + v && low + SHARD_TAG_BITS >= p + b + v + 8);
        for (unsigned i = 0; i < 100; i++) {
            uint64_t h = far_random_next(&r), word = shard_entry(v, shard_tag(h, p, b, v), 0, 64);
            assert_int_equal(shard_tag_moves(word, v + 1), shard_key_moves(h, p, b, v + 1));
        }
    }
    assert_int_equal(shard_tag_low(0, 0, 6), 0);
    assert_int_equal(shard_tag_low(0, 0, 7), 7);
    assert_int_equal(shard_tag_low(0, 0, 8), 7);
    assert_int_equal(shard_tag_low(0, 0, 13), 7);
    assert_int_equal(shard_tag_low(0, 0, 14), 14);
}


TEST(classes_waste_little) {
    static const uint64_t first[] = {64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048};
    for (unsigned i = 0; i < 10; i++)
        assert_int_equal(shard_class_bytes(i), first[i]);
    assert_true(shard_class_bytes(31) >= 2 << 20);
    for (uint64_t bytes = 17; bytes < 200000; bytes += 13) {
        unsigned class = shard_class_of(bytes);
        assert_true(shard_class_bytes(class) >= bytes && (class == 0 || shard_class_bytes(class - 1) < bytes));
        assert_true(bytes <= 256 || shard_class_bytes(class) <= bytes * 3 / 2);
    }
}


TEST(images_tell_unwritten_and_uniform) {
    shard_state st = {.inlined = false};
    shard_image image;
    for (unsigned i = 0; i < SHARD_P_SLOTS; i++)
        image.w[i] = i % 3 == 0 ? shard_empty(5) : i % 3 == 1 ? shard_tomb(5) : shard_entry(5, i, 1, 64);
    image.w[SHARD_P_HEADER] = shard_header(5, 0, 0);
    assert_true(shard_is_uniform(&st, image.w, 5) && !shard_is_uniform(&st, image.w, 4) &&
                !shard_is_unwritten(&st, image.w));
    for (unsigned i = 0; i < SHARD_WORDS; i++) {
        uint64_t kept = image.w[i];
        image.w[i] = 0;
        assert_true(shard_is_unwritten(&st, image.w) && !shard_is_uniform(&st, image.w, 5));
        image.w[i] = i == SHARD_P_HEADER ? shard_header(6, 0, 0)
                     : i % 3 == 2        ? shard_entry(6, i, 1, 64)
                                         : shard_empty(6);
        assert_true(!shard_is_uniform(&st, image.w, 5) && !shard_is_unwritten(&st, image.w));
        image.w[i] = kept;
    }
    st.inlined = true;
    for (unsigned i = 0; i < SHARD_I_SLOTS; i++) {
        image.w[2 * i] = 0; /* values may be anything */
        image.w[2 * i + 1] = i % 2 ? shard_kw_empty(5, i) : shard_kw(5, false, i, i);
    }
    image.w[SHARD_I_H] = shard_header(5, 0, 0);
    assert_true(shard_is_uniform(&st, image.w, 5) && !shard_is_unwritten(&st, image.w));
    image.w[7] = 0;
    assert_true(!shard_is_uniform(&st, image.w, 5) && shard_is_unwritten(&st, image.w));
}


TEST(slots_are_tried_once_each_from_a_line_of_the_key) {
    shard_state st = {.slots = SHARD_P_SLOTS, .hash_bits = 64};
    for (unsigned line = 0; line < 8; line++) {
        shard_op y = {.st = &st, .h = shard_unrehash((uint64_t)line << 56, st.level_seed[2], st.p, st.hash_bits)};
        shard_image image;
        for (unsigned i = 0; i < SHARD_P_SLOTS; i++)
            image.w[i] = shard_empty(0);
        for (unsigned n = 0; n < SHARD_P_SLOTS; n++) {
            int slot = shard_p_first_empty(&y, image.w);
            assert_true(slot >= 0 && shard_is_empty(image.w[slot]));
            if (n == 0)
                assert_int_equal(slot, line * SHARD_LINE);
            image.w[slot] = shard_tomb(0);
        }
        assert_int_equal(shard_p_first_empty(&y, image.w), -1);
    }
}


static bool may_be_the_key(const shard_op *y, uint64_t word, unsigned v) {
    const shard_state *st = y->st;
    for (unsigned at = v > 0 ? v - 1 : 0; at <= v + 1; at++)
        if (shard_is_live(word) && shard_stamp_is(word, v) == (at == v) &&
            ((shard_entry_tag(word) ^ shard_tag(y->h, st->p, st->b, at)) & st->tag_mask) == 0)
            return true;
    return false;
}


static uint64_t random_word(far_random *r, const shard_op *y, unsigned v) {
    unsigned at = v + (unsigned)far_random_below(r, 3), tag = shard_tag(y->h, y->st->p, y->st->b, at ? at - 1 : 0);
    uint64_t what = far_random_below(r, 8);
    if (what < 2)
        return what ? shard_empty(v) : shard_tomb(v) | SHARD_FROZEN;
    if (what < 6) /* belongs to another key */
        tag ^= 1u << far_random_below(r, SHARD_TAG_BITS);
    return shard_entry(v + (unsigned)far_random_below(r, 2), tag, 3, far_random_below(r, 1ull << 40) & ~63ull) |
           (far_random_below(r, 4) ? 0 : SHARD_FROZEN);
}


/* Proves that comparing many words at once finds the same entries as comparing them one by one. */
TEST(entries_are_gathered_as_if_looked_at_one_by_one) {
    far_random r;
    far_random_seed(&r, 11);
    unsigned met = 0;
    for (unsigned round = 0; round < ROUNDS / 4; round++) {
        shard_state st = {.slots = SHARD_P_SLOTS, .hash_bits = 64, .p = 6, .b = 5};
        st.tag_mask = round % 3 ? shard_mask(SHARD_TAG_BITS) : shard_mask(1 + round % 5);
        for (unsigned d = 0; d < sizeof(st.tag_low); d++)
            st.tag_low[d] = (uint8_t)shard_tag_low(st.p, st.b, d);
        shard_image image = {.addr = 4096};
        shard_op y = {.st = &st, .main = &image, .h = far_random_next(&r)};
        unsigned v = (unsigned)far_random_below(&r, 40), count = 0;
        for (unsigned i = 0; i < SHARD_P_SLOTS; i++)
            image.w[i] = random_word(&r, &y, v);
        image.w[SHARD_P_HEADER] = shard_header(v, (unsigned)far_random_below(&r, 1 << 16), 0) |
                                  far_random_below(&r, 2) << 63; /* the header must never be taken for an entry */
        shard_hits hits = {0};
        shard_p_gather_l1(&y, &hits);
        for (unsigned i = 0; i < SHARD_P_SLOTS; i++) {
            if (!may_be_the_key(&y, image.w[i], v))
                continue;
            assert_true(count < hits.count);
            const shard_hit *hit = &hits.hit[count++];
            assert_true(hit->slot == (int)i && hit->word == image.w[i] && hit->addr == image.addr + 8 * i);
            assert_true(hit->level == 1 && hit->generation == v);
        }
        assert_int_equal(hits.count, count);
        met += count;
    }
    assert_true(met > ROUNDS);
}


TEST(chunks_cover_all_buckets) {
    for (uint64_t buckets = 1; buckets < 1ull << 30; buckets *= 2) {
        assert_true(shard_chunk_size(buckets) <= 512 || shard_chunk_count(buckets) == 65536);
        assert_true(shard_chunk_count(buckets) <= 65536);
        assert_true(shard_chunk_count(buckets) * shard_chunk_size(buckets) >= buckets);
        assert_true((shard_chunk_count(buckets) - 1) * shard_chunk_size(buckets) < buckets);
    }
    assert_int_equal(shard_table_addr(shard_table_word(0x1234500, 7), 7), 0x1234500);
    assert_int_equal(shard_table_addr(shard_table_word(0x1234500, 7), 9), 0);
}
