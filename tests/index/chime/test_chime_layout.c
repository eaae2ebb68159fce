/* CHIME, functions that need no pool: packing of words, the bytes that READs of a neighbourhood cover, hopscotch
 * hashing compared with a simple model, the choice of split points, separators, and the hotspot buffer's sets. */
#include "base/random.h"
#include "index/chime/chime.h"
#include "test.h"

#include <stdlib.h>


TEST(pointers_keep_their_parts) {
    static const far_addr addrs[] = {64, 1ull << 40, (1ull << 48) - 64, 0x123456789ac0};
    static const unsigned tags[] = {0, 1, 0x7fff, 0x5555};
    for (unsigned i = 0; i < 4; i++)
        for (unsigned k = 0; k < 4; k++)
            for (unsigned low = 0; low < 128; low += 21) {
                chime_ptr p = chime_ptr_make(addrs[i], tags[k], low);
                assert_true(chime_ptr_addr(p) == addrs[i] && chime_ptr_tag(p) == tags[k] && chime_ptr_low(p) == low);
                assert_true(chime_ptr_without_low(p) == chime_ptr_make(addrs[i], tags[k], 0));
                assert_true(chime_ptr_tag(chime_ptr_make(addrs[i], tags[k] + 0x8000, 0)) == tags[k]);
            }
}


TEST(numbers_are_the_first_eight_bytes) {
    static const uint8_t key[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    uint64_t number = 0;
    assert_int_equal(chime_key_number(NULL, 0), 0);
    for (unsigned length = 1; length <= 8; length++) {
        number |= (uint64_t)length << (64 - 8 * length);
        assert_int_equal(chime_key_number(key, length), number);
    }
    assert_int_equal(chime_key_number(key, 9), number);
}


TEST(headers_keep_their_parts) {
    chime_ptr sibling = chime_ptr_make((1ull << 48) - 64, 0x7fff, 0);
    for (unsigned nv = 0; nv < 16; nv++)
        for (unsigned occupied = 0; occupied < 8; occupied++) {
            uint64_t h1 = chime_h1_make(sibling, nv, occupied);
            assert_true(chime_h1_sibling(h1) == sibling && chime_h1_nv(h1) == nv && chime_h1_occupied(h1) == occupied);
            assert_true(chime_h1_sibling_nv(h1) == chime_h1_sibling_nv(chime_h1_with_occupied(h1, 7 - occupied)));
            assert_int_equal(chime_h1_occupied(chime_h1_with_occupied(h1, 7 - occupied)), 7 - occupied);
        }
    assert_true(chime_h1_sibling_nv(chime_h1_make(sibling, 3, 0)) != chime_h1_sibling_nv(chime_h1_make(sibling, 4, 0)));
    uint64_t h0 = chime_h0_make(0, 0x7fff, true);
    for (unsigned which = 0; which < 3; which++) {
        h0 = chime_h0_with_hop_bitmap(h0, which, 0xffff);
        assert_int_equal(chime_h0_hop_bitmap(h0, which), 0xffff);
        h0 = chime_h0_with_hop_bitmap(h0, which, 0x8001 + which);
    }
    assert_true(chime_h0_hop_bitmap(h0, 0) == 0x8001 && chime_h0_hop_bitmap(h0, 1) == 0x8002 &&
                chime_h0_hop_bitmap(h0, 2) == 0x8003);
    assert_true(chime_h0_tag(h0) == 0x7fff && chime_h0_valid(h0));
    assert_false(chime_h0_valid(chime_h0_make(~0ull, 0x7fff, false)));
    assert_int_equal(chime_h0_level(chime_h0_make(31, 5, true)), 31);
}


TEST(locks_and_nonces_keep_their_parts) {
    uint64_t owner = far_owner_pack(FAR_CLIENT_ID_MAX, 0xffff, 0xff), lock = chime_lock_make(owner, ~0ull, 32);
    assert_int_equal(chime_lock_handovers(lock), 32);
    assert_true(chime_lock_is_held(lock) && chime_lock_owner(lock) == owner && lock != CHIME_LOCK_DEAD);
    assert_true(chime_lock_is_held(CHIME_LOCK_DEAD));
    assert_false(chime_lock_is_held(chime_map_to_word((1ull << 63) - 1)));
    assert_true(chime_map_from_word(chime_map_to_word((1ull << 63) - 1)) == (1ull << 63) - 1);
    assert_true(chime_nonce_busy(chime_nonce_make(1, 1, 1, true)) &&
                !chime_nonce_busy(chime_nonce_make(1, 1, 1, false)));
    assert_true(chime_nonce_make(1, 1, 1, false) != chime_nonce_make(2, 1, 1, false));
    assert_true(chime_nonce_make(1, 1, 1, false) != chime_nonce_make(1, 2, 1, false));
    assert_true(chime_nonce_make(1, 1, 1, false) != chime_nonce_make(1, 1, 2, false));
}


TEST(blocks_and_references_keep_their_parts) {
    far_addr block = (1ull << 48) - 16;
    uint64_t word = chime_value_word(block, 48, 15, 1023);
    assert_true(chime_value_block(word) == block && chime_value_class(word) == 48);
    assert_true(chime_value_distance(word) == 15 && chime_value_fingerprint(word) == 1023);
    word = chime_value_with_distance(word, 3);
    assert_true(chime_value_block(word) == block && chime_value_distance(word) == 3 && chime_value_class(word) == 48);
    assert_true(chime_value_identity(word) == chime_value_identity(chime_value_with_distance(word, 9)));
    for (unsigned class = 1; class < CHIME_CLASSES; class ++) {
        assert_true(chime_class_bytes(class) > chime_class_bytes(class - 1) && chime_class_bytes(class) % 8 == 0);
        assert_int_equal(chime_class_for(chime_class_bytes(class)), class);
        assert_int_equal(chime_class_for(chime_class_bytes(class - 1) + 1), class);
    }
    assert_int_equal(chime_class_for(1), 0);
    assert_true(chime_class_bytes(chime_class_for(FAR_VALUE_MAX + CHIME_KEY_MAX + CHIME_BLOCK_HEAD)) <= 128u << 10);
    uint64_t ref = chime_ref_inline((const uint8_t *)"seven77", 7);
    assert_true(chime_ref_is_inline(ref) && chime_ref_length(ref) == 7 && ref >> 56 == 's');
    assert_true(chime_ref_inline(NULL, 0) == 0 && chime_ref_is_inline(0));
    ref = chime_ref_block(block, CHIME_KEY_MAX);
    assert_true(!chime_ref_is_inline(ref) && chime_ref_addr(ref) == block && chime_ref_length(ref) == CHIME_KEY_MAX);
}


/* Asserts that the READ of any range of slots covers these slots and the headers of their lines. Returns the bytes of
 * the READs of all neighbourhoods, for a comparison with the expected number. */
static unsigned bytes_of_neighbourhoods(unsigned per_line, unsigned span) {
    unsigned total = 0, wraps = 0;
    for (unsigned home = 0; home < span; home++) {
        unsigned last = home + 7;
        for (unsigned segment = 0; segment < 2; segment++) {
            unsigned first = segment ? 0 : home, end = segment ? last - span : last < span ? last : span - 1;
            if (segment && last < span)
                continue;
            unsigned from = chime_read_begin(per_line, first), to = chime_read_end(per_line, end);
            wraps += segment;
            total += to - from;
            assert_true(from % 8 == 0 && to % 8 == 0);
            for (unsigned slot = first; slot <= end; slot++) {
                unsigned line = chime_line_of(per_line, slot), at = chime_slot_offset(per_line, slot);
                assert_true(at >= from && at + chime_slot_bytes(per_line) <= to);
                assert_true(chime_h0_offset(per_line, line) >= from && chime_h1_offset(per_line, line) + 8 <= to);
            }
        }
    }
    assert_int_equal(wraps, 7);
    return total / span;
}


/* Asserts that slots and headers fill a line exactly, without overlaps. */
static void assert_line_is_full(unsigned per_line) {
    uint64_t used = 3ull << chime_h0_offset(per_line, 0) / 8;
    assert_true(chime_h1_offset(per_line, 0) == chime_h0_offset(per_line, 0) + 8);
    for (unsigned slot = 0; slot < per_line; slot++)
        for (unsigned word = 0; word < chime_slot_bytes(per_line) / 8; word++) {
            uint64_t bit = 1ull << (chime_slot_offset(per_line, slot) / 8 + word);
            assert_true(!(used & bit));
            used |= bit;
        }
    assert_true(used == 0xff);
    assert_int_equal(chime_slot_offset(per_line, per_line), CHIME_LINE);
}


TEST(reads_cover_their_slots) {
    for (unsigned per_line = 1; per_line <= 3; per_line++)
        assert_line_is_full(per_line);
    assert_int_equal(bytes_of_neighbourhoods(3, 63), 186);
    assert_int_equal(bytes_of_neighbourhoods(2, 62), 264);
    assert_int_equal(bytes_of_neighbourhoods(1, 63), 512);
    assert_int_equal(chime_read_end(3, 0) - chime_read_begin(3, 0), 32);
    assert_int_equal(chime_read_end(3, 1) - chime_read_begin(3, 1), 32);
    assert_int_equal(chime_read_end(3, 2) - chime_read_begin(3, 2), 48);
    assert_int_equal(chime_read_end(2, 1) - chime_read_begin(2, 1), 40);
    assert_int_equal(chime_read_end(1, 1) - chime_read_begin(1, 1), 64);
    assert_int_equal(chime_node_bytes(3, 63), 1408);
    assert_int_equal(chime_node_bytes(2, 62), 2048);
    assert_int_equal(chime_node_bytes(1, 63), 4096);
}


static chime_state geometry(unsigned per_line, unsigned span, unsigned hop, bool wrap) {
    return (chime_state){.per_line = per_line,
                         .value_words = chime_slot_bytes(per_line) / 8 - 1,
                         .span = span,
                         .hop = hop,
                         .wrap = wrap,
                         .home_slots = wrap ? span : span - hop + 1,
                         .lines = span / per_line,
                         .node_bytes = chime_node_bytes(per_line, span),
                         .group = (span + CHIME_MAP_BITS - 1) / CHIME_MAP_BITS,
                         .inline_items = true,
                         .masked_cas = true,
                         .seed = 7};
}


static unsigned home_of_key(const chime_state *st, uint64_t number) {
    uint8_t bytes[8];
    chime_key key;
    for (unsigned i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(number >> (56 - 8 * i));
    chime_key_make(st, (far_bytes){bytes, 8}, &key);
    assert_true(key.first == number);
    return chime_home_slot(st, key.hash);
}


/* Asserts that every key is in exactly one slot of its neighbourhood, and that hop bitmaps and occupancy map agree with
 * the slots. */
static void assert_sound(const chime_state *st, uint64_t *w, const uint64_t *keys, unsigned count) {
    assert_int_equal(chime_count_items(st, w), count);
    assert_true(chime_hop_bitmaps_agree(st, w));
    for (unsigned i = 0; i < count; i++) {
        unsigned home = home_of_key(st, keys[i]), seen = 0;
        for (unsigned k = 0; k < st->hop && (st->wrap || home + k < st->span); k++) {
            unsigned slot = chime_slot_after(st, home, k);
            seen += chime_slot_is_occupied(st, w, slot) && chime_slot(st, w, slot)[0] == keys[i] &&
                    chime_slot(st, w, slot)[st->value_words] == keys[i] + st->value_words;
        }
        assert_int_equal(seen, 1);
        assert_true(chime_hop_bitmap_agrees(st, w, home));
    }
}


static void assert_reach(const chime_state *st, uint64_t *w, uint64_t map, unsigned home) {
    unsigned reach = chime_slots_up_to_free(st, map, home);
    int first = chime_find_free_slot(st, w, home, st->span);
    if (reach) {
        assert_true(reach <= st->span && first >= 0 && chime_distance(st, home, (unsigned)first) < reach);
        assert_true(st->group > 1 || chime_distance(st, home, (unsigned)first) + 1 == reach);
        /* There is no free slot, or the only free slots are in the group of the home slot and before it, which the map
         * cannot show. */
    } else
        assert_true(first < 0 ||
                    (st->group > 1 && home % st->group && (unsigned)first / st->group == home / st->group));
}


/* Proves that with spans above 63, a bit of the occupancy map is set exactly if all slots of its group are occupied,
 * and that the slots which an insert READs because of the map contain a free one. */
TEST(the_occupancy_map_shows_free_slots) {
    static const unsigned spans[] = {12, 63, 66, 129, 255, 510};
    far_random random;
    far_random_seed(&random, 5);
    for (unsigned i = 0; i < 12; i++) {
        chime_state st = geometry(3, spans[i / 2], 8, i % 2);
        uint64_t w[CHIME_NODE_WORDS], map;
        chime_init_node(&st, w, 3, 0);
        assert_true((map = chime_occupancy_map(&st, w)) == 0);
        for (unsigned step = 0; step < 4 * st.span; step++) { /* the leaf is almost full in the end */
            unsigned slot = (unsigned)far_random_below(&random, st.span);
            chime_set_slot_occupied(&st, w, slot, far_random_below(&random, 40) != 0);
            map = chime_map_with_group_of(&st, map, w, slot);
            assert_true(map == chime_occupancy_map(&st, w) && map >> CHIME_MAP_BITS == 0);
            assert_reach(&st, w, map, (unsigned)far_random_below(&random, st.home_slots));
        }
        for (unsigned slot = 0; slot < st.span; slot++)
            chime_set_slot_occupied(&st, w, slot, true);
        map = chime_occupancy_map(&st, w);
        assert_true(chime_slots_up_to_free(&st, map, 5) == 0 && chime_find_free_slot(&st, w, 5, st.span) < 0);
        assert_int_equal(chime_count_items(&st, w), st.span);
    }
}


/* Asserts that a reader that sees any mixture of old and new lines of one insert either sees every key, or finds that
 * the hop bitmap of the key's home slot disagrees. */
static void assert_no_mixture_hides(const chime_state *st, uint64_t *before, uint64_t *after, const uint64_t *keys,
                                    unsigned count, far_random *random) {
    unsigned changed[32], n = 0;
    uint64_t mix[CHIME_NODE_WORDS];
    for (unsigned line = 0; line < st->lines; line++)
        if (memcmp(before + line * 8, after + line * 8, 64))
            changed[n++] = line;
    for (unsigned trial = 0; trial < (n < 6 ? 1u << n : 64); trial++) {
        unsigned chosen = n < 6 ? trial : (unsigned)far_random_next(random);
        memcpy(mix, before, st->node_bytes);
        for (unsigned i = 0; i < n; i++)
            if (chosen >> i & 1)
                memcpy(mix + changed[i] * 8, after + changed[i] * 8, 64);
        for (unsigned i = 0; i < count; i++) {
            unsigned home = home_of_key(st, keys[i]);
            bool seen = false;
            for (unsigned k = 0; k < st->hop && (st->wrap || home + k < st->span); k++) {
                unsigned slot = chime_slot_after(st, home, k);
                seen |= chime_slot_is_occupied(st, mix, slot) && chime_slot(st, mix, slot)[0] == keys[i];
            }
            assert_true(seen || !chime_hop_bitmap_agrees(st, mix, home));
        }
    }
}


static void assert_prefixes_keep_all(const chime_state *st, uint64_t *before, uint64_t *after, const uint64_t *keys,
                                     unsigned count, unsigned first) {
    uint64_t w[CHIME_NODE_WORDS];
    memcpy(w, before, st->node_bytes);
    for (unsigned i = st->lines; i-- > 0;) {
        unsigned line = (first + i) % st->lines;
        memcpy(w + line * 8, after + line * 8, 64);
        for (unsigned k = 0; k < count; k++) {
            bool there = false;
            for (unsigned slot = 0; slot < st->span && !there; slot++)
                there = chime_slot_is_occupied(st, w, slot) && chime_slot(st, w, slot)[0] == keys[k];
            assert_true(there);
        }
    }
}


static unsigned fill_one(const chime_state *st, far_random *random, unsigned *hops) {
    uint64_t w[CHIME_NODE_WORDS], before[CHIME_NODE_WORDS], keys[CHIME_SPAN_MAX], value[CHIME_VALUE_WORDS];
    unsigned count = 0, at;
    chime_move moves[CHIME_SPAN_MAX];
    chime_init_node(st, w, 3, 0);
    for (;;) {
        uint64_t key = far_random_next(random);
        unsigned home = home_of_key(st, key);
        int free = chime_find_free_slot(st, w, home, st->span), moved;
        memcpy(before, w, st->node_bytes);
        if (free < 0 || (moved = chime_move_free_slot(st, w, home, (unsigned)free, moves, &at)) < 0)
            return count;
        for (unsigned i = 0; i < CHIME_VALUE_WORDS; i++)
            value[i] = key + 1 + i;
        chime_place_item(st, w, at, home, key, value);
        *hops += moved > 0;
        assert_prefixes_keep_all(st, before, w, keys, count, chime_line(st, home));
        if (moved > 0)
            assert_no_mixture_hides(st, before, w, keys, count, random);
        keys[count++] = key;
        assert_sound(st, w, keys, count);
    }
}


TEST(hopping_keeps_every_item) {
    static const struct {
        unsigned per_line, span, hop;
        bool wrap;
        double least, most;
    } cases[] = {{3, 63, 8, true, 0.90, 0.97},  {3, 63, 2, true, 0.3, 0.6},   {3, 63, 16, true, 0.97, 1.01},
                 {3, 12, 4, true, 0.5, 1.01},   {3, 63, 8, false, 0.7, 0.95}, {3, 24, 6, false, 0.5, 0.98},
                 {3, 33, 12, true, 0.85, 1.01}, {2, 62, 8, true, 0.90, 0.97}, {1, 63, 8, true, 0.90, 0.97},
                 {1, 12, 4, true, 0.5, 1.01}};
    far_random random;
    far_random_seed(&random, 11);
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        chime_state st = geometry(cases[i].per_line, cases[i].span, cases[i].hop, cases[i].wrap);
        unsigned filled = 0, hops = 0, rounds = cases[i].per_line == 3 ? 100 : 25;
        for (unsigned k = 0; k < rounds; k++)
            filled += fill_one(&st, &random, &hops);
        double load = (double)filled / (rounds * cases[i].span);
        print_message("span %u, hop %u: one leaf alone is filled to %.3f, %u hops\n", cases[i].span, cases[i].hop, load,
                      hops);
        assert_true(load >= cases[i].least && load <= cases[i].most);
        assert_true(hops > 0);
    }
}


/* Proves that after the split, the half to which the new key belongs has a free slot in the key's neighbourhood. */
TEST(a_split_always_makes_room) {
    far_random random;
    far_random_seed(&random, 5);
    for (unsigned paper = 0; paper < 2; paper++)
        for (unsigned round = 0; round < 20000; round++) {
            chime_state st = geometry(3, 63, 8, true);
            uint16_t slots[CHIME_SPAN_MAX];
            st.paper_split = paper;
            for (unsigned i = 0; i < 63; i++)
                slots[i] = (uint16_t)i;
            for (unsigned i = 62; i > 0; i--) {
                unsigned k = (unsigned)far_random_below(&random, i + 1);
                uint16_t x = slots[i];
                slots[i] = slots[k];
                slots[k] = x;
            }
            unsigned home = (unsigned)far_random_below(&random, 63),
                     count = 40 + (unsigned)far_random_below(&random, 24);
            /* Exchanges the slots of some keys, so that the whole neighbourhood of the new key is occupied. */
            for (unsigned i = 0; i < 63; i++)
                if (i >= count && chime_distance(&st, home, slots[i]) < 8)
                    for (unsigned k = 0; k < count; k++)
                        if (chime_distance(&st, home, slots[k]) >= 8) {
                            uint16_t x = slots[i];
                            slots[i] = slots[k];
                            slots[k] = x;
                            break;
                        }
            unsigned mine = (unsigned)far_random_below(&random, count + 1);
            bool right = false, rightmost = far_random_chance(&random, 1, 2);
            int left = chime_choose_split(&st, count, slots, mine, home, rightmost, &right);
            assert_in_range(left, 0, count);
            assert_true(right ? (unsigned)left <= mine : (unsigned)left >= mine);
            unsigned freed = 0;
            for (unsigned i = 0; i < count; i++)
                freed += chime_distance(&st, home, slots[i]) < 8 && (right ? i < (unsigned)left : i >= (unsigned)left);
            assert_true(freed > 0);
            if (rightmost && mine == count)
                assert_true(right && (unsigned)left == count);
        }
}


/* Proves that a leaf that is split early, before it is full, is split into even halves, and no item of the new key's
 * neighbourhood has to move. Fails (no split is found) if chime_choose_split requires that such an item moves. */
TEST(an_early_split_is_even) {
    chime_state st = geometry(3, 63, 8, true);
    uint16_t slots[20];
    for (unsigned near = 0; near < 3; near++)
        for (unsigned mine = 0; mine <= 20; mine++) {
            for (unsigned i = 0; i < 20; i++)
                slots[i] = (uint16_t)(i < near ? i : 20 + i); /* the smallest keys are in the neighbourhood of slot 0 */
            bool right = false;
            int left = chime_choose_split(&st, 20, slots, mine, 0, false, &right);
            assert_in_range(left + !right, 10, 11);
            assert_true(right ? (unsigned)left <= mine : (unsigned)left >= mine);
        }
}


TEST(separators_are_short_and_separate) {
    uint8_t zeros[256] = {0}, ones[256], a[256], b[256];
    memset(ones, 0xff, sizeof(ones));
    memset(a, 'x', sizeof(a));
    memset(b, 'x', sizeof(b));
    b[255] = 'y';
    const struct {
        far_bytes left, right;
        size_t length;
    } cases[] = {
        {{"a", 1}, {"a\0", 2}, 2},
        {{"apple", 5}, {"banana", 6}, 1},
        {{"abc", 3}, {"abd", 3}, 3},
        {{a, 256}, {b, 256}, 256},
        {{zeros, 3}, {zeros, 4}, 4},
        {{ones, 255}, {ones, 256}, 256},
        {{"user1", 5}, {"user100000", 10}, 6},
        {{"", 0}, {"q", 1}, 1},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t length = chime_separator_length(cases[i].left, cases[i].right);
        far_bytes s = {cases[i].right.data, length};
        assert_int_equal(length, cases[i].length);
        assert_true(far_bytes_compare(cases[i].left, s) < 0 && far_bytes_compare(s, cases[i].right) <= 0);
    }
}


/* Proves that fences compare like keys: by their first words, and by all bytes if these are equal. */
TEST(fences_compare_like_keys) {
    static const far_bytes keys[] = {
        {"", 0},     {"\0", 1}, {"\0\0", 2},    {"a", 1}, {"a\0", 2},
        {"a\0b", 3}, {"ab", 2}, {"abcdefg", 7}, {"b", 1}, {"\xff\xff\xff\xff\xff\xff\xff", 7}};
    chime_state st = geometry(3, 63, 8, true);
    st.inline_items = false;
    for (unsigned i = 0; i < 10; i++)
        for (unsigned k = 0; k < 10; k++) {
            chime_fence f = {.word = chime_ref_inline(keys[i].data, keys[i].length)};
            chime_key key;
            assert_true(chime_decode_inline_fence(&st, &f));
            chime_key_make(&st, keys[k], &key);
            int order = chime_compare_fence_to_key(&st, &f, &key), wanted = far_bytes_compare(keys[i], keys[k]);
            assert_int_equal((order > 0) - (order < 0), (wanted > 0) - (wanted < 0));
        }
}


/* Proves that chime_absorb follows a fixed rule: if it runs again with the same images, the result is the same, byte by
 * byte. */
TEST(absorbing_a_neighbour_is_repeatable) {
    far_random random;
    far_random_seed(&random, 3);
    chime_state st = geometry(3, 63, 8, true);
    for (unsigned round = 0; round < 200; round++) {
        uint64_t a[CHIME_NODE_WORDS], b[CHIME_NODE_WORDS], once[CHIME_NODE_WORDS], again[CHIME_NODE_WORDS];
        chime_init_node(&st, a, 1, 0);
        chime_init_node(&st, b, 2, 0);
        for (unsigned i = 0; i < 24; i++) {
            uint64_t key = far_random_next(&random);
            int slot = chime_find_free_near_home(&st, i % 2 ? a : b, home_of_key(&st, key));
            if (slot >= 0)
                chime_place_item(&st, i % 2 ? a : b, (unsigned)slot, home_of_key(&st, key), key, &key);
        }
        memcpy(once, a, sizeof(a));
        memcpy(again, a, sizeof(a));
        assert_true(chime_absorb(&st, once, b) == chime_absorb(&st, again, b));
        assert_memory_equal(once, again, st.node_bytes);
    }
}
