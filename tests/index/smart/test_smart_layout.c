/* The bit layouts of SMART: slot words, control words, size classes, prefix hashes, tails of prefixes, and searching in
 * lists. */
#include "index/smart/smart.h"
#include "test.h"

#include <string.h>


/* Each field of a slot word can be set and read without changing the others, and words that are not sound are
 * recognized. */
TEST(slot_words_keep_all_their_fields) {
    far_addr addr = far_addr_make(255, (1ull << 40) - 32);
    for (unsigned part = 0; part <= SMART_PART_EOK; part++)
        for (unsigned hint = 0; hint < 128; hint += 9) {
            uint64_t word = smart_word(addr, part, SMART_LEAF, hint);
            assert_true(smart_word_is_sound(word) && word >> 63 == 0 && !(word & SMART_FROZEN_BIT) &&
                        (word & SMART_BOUND));
            assert_true(smart_word_addr(word) == addr && smart_word_part(word) == part &&
                        smart_word_hint(word) == hint);
            assert_int_equal(smart_word_kind_of(word | SMART_FROZEN_BIT), SMART_LEAF);
        }
    uint64_t node = smart_word_with_gap0(smart_word(addr, 7, SMART_NODE, 3), true);
    assert_int_equal(smart_word_read_type(node), 3);
    assert_int_equal(smart_word_read_type(smart_word_with_read_type(node, SMART_READ_DIR)), SMART_READ_DIR);
    assert_true(smart_word_with_read_type(node, 9) & SMART_GAP0);
    assert_false(smart_word_with_gap0(node, false) & SMART_GAP0);
    assert_int_equal(smart_word_part(smart_word_with_part(node, SMART_PART_EOK)), SMART_PART_EOK);
    assert_true(smart_word_is_sound(0) && smart_word_is_sound(SMART_FROZEN_BIT) &&
                smart_word_is_sound(smart_tombstone(3)));
    assert_false(smart_word_is_sound(1));
    assert_false(smart_word_is_sound(node & ~SMART_BOUND));
    assert_false(smart_word_is_sound(smart_tombstone(3) | 1ull << 63));
    assert_false(smart_word_is_sound(smart_tombstone(SMART_PART_EOK) | 1ull << 43));
    assert_false(smart_word_is_sound(smart_word(0, 3, SMART_LEAF, 0)));
}


/* The end of a key precedes all bytes in the order of partial keys. */
TEST(keys_that_end_come_first) {
    far_bytes key = {"ab", 2};
    assert_int_equal(smart_part(key, 1), 'b');
    assert_int_equal(smart_part(key, 2), SMART_PART_EOK);
    assert_true(smart_part_rank(SMART_PART_EOK) < smart_part_rank(0));
    assert_true(smart_part_rank(0) < smart_part_rank(255));
}


/* The fields of control words of nodes and leaves do not overlap, also those of REPLACED leaves. */
TEST(ctl_words_keep_all_their_fields) {
    uint64_t tag = (1ull << 39) - 5, ctl = smart_node_ctl(SMART_PENDING, true, SMART_PAPER, 0x1fff, tag);
    assert_true(smart_ctl_kind(ctl) == SMART_INTERNAL_NODE && smart_ctl_is_recycled(ctl) && smart_ctl_tag(ctl) == tag);
    assert_int_equal(smart_ctl_layout(ctl), SMART_PAPER);
    assert_int_equal(smart_ctl_state(smart_ctl_with_state(ctl, SMART_FROZEN)), SMART_FROZEN);
    assert_int_equal(smart_ctl_with_state(smart_ctl_with_state(ctl, SMART_LIVE), SMART_PENDING), ctl);

    far_addr to = far_addr_make(200, 1 << 20);
    uint64_t leaf = smart_leaf_ctl(SMART_VW, SMART_LIVE, true, (1ull << 56) - 3);
    assert_int_equal(smart_ctl_incarnation(leaf), (1ull << 56) - 3);
    uint64_t replaced = smart_ctl_replaced(leaf, to, 85);
    assert_int_equal(smart_ctl_state(replaced), SMART_REPLACED);
    assert_true(smart_ctl_kind(replaced) == SMART_VW && smart_ctl_forward(replaced) == to &&
                smart_ctl_forward_class(replaced) == 85);
}


/* Size classes of leaves are ascending multiples of 8, have room for the requested size, and waste at most an eighth.
 */
TEST(sizes_waste_an_eighth_at_most) {
    assert_int_equal(smart_class_bytes(0), 32);
    assert_int_equal(smart_class_bytes(SMART_CLASSES - 1), 72 << 10);
    for (unsigned class = 1; class < SMART_CLASSES; class ++) {
        assert_true(smart_class_bytes(class) > smart_class_bytes(class - 1) && smart_class_bytes(class) % 8 == 0);
        assert_int_equal(smart_class_for(smart_class_bytes(class)), class);
        assert_int_equal(smart_class_for(smart_class_bytes(class - 1) + 1), class);
    }
    for (uint64_t bytes = 64; bytes <= 72 << 10; bytes++)
        assert_true(smart_class_bytes(smart_class_for(bytes)) >= bytes &&
                    smart_class_bytes(smart_class_for(bytes)) < bytes + bytes / 8 + 8);
    uint64_t meta = smart_meta(4095, 85, 65536, 0x1fffff);
    assert_true(smart_meta_key(meta) == 4095 && smart_meta_class(meta) == 85 && smart_meta_value(meta) == 65536);
    assert_int_equal(smart_meta_version(meta), 0x1fffff);
    assert_true(smart_leaf_bytes(SMART_VI, SMART_KEY_MAX, FAR_VALUE_MAX) <= smart_class_bytes(SMART_CLASSES - 1));
}


/* The header of a node contains its depth and the last six bytes of its prefix. */
TEST(a_prefix_shows_its_tail) {
    const uint8_t prefix[] = "abcdefghij";
    for (unsigned depth = 1; depth <= 10; depth++) {
        uint64_t info = smart_info(prefix, depth);
        unsigned tail = smart_info_tail(info);
        assert_true(smart_info_depth(info) == depth && tail == (depth < 6 ? depth : 6));
        for (unsigned i = depth - tail; i < depth; i++)
            assert_int_equal(smart_info_byte(info, i), prefix[i]);
    }
}


/* The hashes of all prefixes in one pass are the values of the polynomial, and prefixes that differ only in zeros at
 * the end have different hashes. */
TEST(prefix_hashes_are_polynomials) {
    const uint64_t base = 0x123456789abcdefull;
    const uint8_t key[] = {0, 0, 255, 1, 0};
    uint64_t hash = 0, seen[5];
    for (unsigned i = 0; i < 5; i++) {
        seen[i] = hash = smart_hash_step(hash, key[i], base);
        unsigned __int128 direct = 0;
        for (unsigned j = 0; j <= i; j++)
            direct = (direct * base + key[j] + 1) % SMART_HASH_PRIME;
        assert_int_equal(hash, (uint64_t)direct);
        for (unsigned j = 0; j < i; j++)
            assert_true(seen[j] != hash);
    }
}


/* A client READs as many slots of a list as the size hint gives. These slots contain all children and the first unbound
 * slot, for all layouts of lists. */
TEST(reads_of_a_list_show_its_end) {
    static const unsigned lists[] = {SMART_L128, SMART_L256, SMART_L512, SMART_PAPER};
    for (unsigned l = 0; l < 4; l++)
        for (unsigned types = 1; types <= SMART_READ_TYPES; types++)
            for (unsigned words = 1; words <= smart_layout_slots(lists[l]); words++) {
                unsigned type = smart_read_type_for(words, lists[l], types), bytes = smart_read_bytes(type);
                assert_true(bytes <= smart_layout_bytes(lists[l]) && bytes >= SMART_HEADER + 8 * words);
            }
    assert_int_equal(smart_read_type_for(3, SMART_DIR, 10), SMART_READ_DIR);
    assert_int_equal(smart_read_bytes(smart_read_type_for(1, SMART_PAPER, 1)), 2088);
    assert_int_equal(smart_read_bytes(smart_read_type_for(3, SMART_PAPER, 10)), 64);
}


/* smart_find_slot finds every bound slot of a list, and otherwise the first unbound one. */
TEST(lists_are_looked_up_to_the_first_unbound_slot) {
    uint64_t image[3 + 258] = {0};
    static const unsigned counts[] = {0, 1, 4, 5, 12, 28, 60, 257};
    for (unsigned n = 0; n < 8; n++) {
        smart_node node = {.layout = SMART_PAPER, .words = 258, .image = image};
        unsigned at;
        memset(image, 0, sizeof(image));
        for (unsigned i = 0; i < counts[n]; i++)
            smart_slots(&node)[i] = smart_word(32 * (i + 1), (i * 7) % 257, SMART_LEAF, 0);
        for (unsigned i = 0; i < counts[n]; i++) {
            assert_true(smart_find_slot(&node, (i * 7) % 257, &at));
            assert_int_equal(at, i);
        }
        if (counts[n] < 257) {
            assert_false(smart_find_slot(&node, (counts[n] * 7) % 257, &at));
            assert_int_equal(at, counts[n]);
        }
        node.words = counts[n];
        assert_false(smart_find_slot(&node, 300, &at));
        assert_int_equal(at, node.words);
    }
}
