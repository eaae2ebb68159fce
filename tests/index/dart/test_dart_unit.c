/* Unit tests of DART's encodings and pure functions: words, size codes, the geometry of nodes, the hash of symbols, the
 * choice of node types, and the order of symbols. */
#include "base/random.h"
#include "index/dart/dart.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

static const unsigned bucket_sizes[] = {8, 16, 32, 64};


/* Proves that a tree slot's word returns the fields that were packed, for every node type and leaf. */
TEST(words_return_the_packed_fields) {
    far_addr addr = far_addr_make(255, (1ull << 40) - 16);
    for (unsigned symbol = 0; symbol <= 256; symbol++)
        for (unsigned len = 0; len <= 255; len += 51) {
            uint64_t leaf = dart_leaf_word(symbol, len, addr);
            assert_true(dart_is_leaf(leaf) && !dart_is_inner(leaf) && !dart_is_tomb(leaf) && !dart_is_empty(leaf) &&
                        !dart_is_frozen(leaf));
            assert_int_equal(dart_word_symbol(leaf), symbol);
            assert_int_equal(dart_word_len(leaf), len);
            assert_int_equal(dart_word_addr(leaf), addr);
            uint64_t frozen = leaf | DART_FROZEN;
            assert_true(dart_is_frozen(frozen) && dart_thawed(frozen) == leaf && dart_word_symbol(frozen) == symbol);
        }
    for (dart_node_type type = DART_N4; type <= DART_N256; type++) {
        for (unsigned skip = 0; skip <= DART_SKIP_MAX; skip++) {
            uint64_t word = dart_word(77, skip, type, addr);
            assert_true(dart_is_inner(word) && !dart_is_leaf(word) && dart_word_type(word) == type);
            assert_true(dart_word_symbol(word) == 77 && dart_word_len(word) == skip && dart_word_addr(word) == addr);
            assert_true(dart_word_type(word | DART_FROZEN) == type && dart_word_len(word | DART_FROZEN) == skip);
        }
    }
}


/* Proves that a TOMB has its symbol, and is neither EMPTY nor a child. */
TEST(tombs_keep_their_symbol_and_are_not_empty) {
    assert_true(dart_is_empty(0) && dart_is_empty(DART_FROZEN) && !dart_is_tomb(0) && !dart_is_tomb(DART_FROZEN));
    for (unsigned symbol = 0; symbol <= 256; symbol++) {
        uint64_t tomb = dart_tomb(symbol);
        assert_true(dart_is_tomb(tomb) && !dart_is_empty(tomb) && !dart_is_child(tomb) && !dart_is_leaf(tomb) &&
                    !dart_is_inner(tomb));
        assert_int_equal(dart_word_symbol(tomb), symbol);
    }
}


/* Proves that a word that is converted for another slot keeps the child, and gets the new symbol and skip. */
TEST(moved_words_keep_their_child) {
    far_addr addr = 4096;
    uint64_t leaf = dart_leaf_word('a', 9, addr), end = dart_word_moved(leaf, DART_SYMBOL_END, 5);
    assert_int_equal(dart_word_type(end), DART_END_LEAF);
    assert_int_equal(dart_word_len(end), 9);
    assert_true(dart_word_moved(end, 'a', 0) == leaf);
    uint64_t inner = dart_word('a', 9, DART_N32, addr), moved = dart_word_moved(inner, 'b', 3);
    assert_true(moved == dart_word('b', 3, DART_N32, addr));
}


/* Proves that the size code of every possible leaf is large enough, and wastes little above small sizes. */
TEST(size_codes_cover_every_leaf) {
    for (uint64_t bytes = 8; bytes <= 66 * 1024 + 4104; bytes++) {
        unsigned code = dart_size_code(bytes);
        assert_true(code >= 1 && code <= 255);
        if (code == DART_SIZE_CODE_LONG) {
            assert_true(bytes > 62 * 1024);
            continue;
        }
        uint64_t room = dart_code_bytes(code);
        assert_true(room >= bytes && room % 16 == 0);
        assert_true(code == 1 || dart_code_bytes(code - 1) < bytes);
        assert_true(bytes <= 512 ? room - bytes < 16 : (room - bytes) * 100 <= bytes * 4);
    }
    uint64_t header = dart_leaf_header(4095, 65536);
    assert_int_equal(dart_leaf_klen(header), 4095);
    assert_int_equal(dart_leaf_vlen(header), 65536);
    /* the upper bits, which contain the frequency counter, do not matter */
    assert_int_equal(dart_leaf_used(header | 0xffffull << 48), 8 + 4095 + 65536);
    assert_int_equal(dart_leaf_bytes(DART_SIZE_CODE_LONG, header), 69648);
    assert_int_equal(dart_leaf_bytes(dart_size_code(24), dart_leaf_header(8, 8)), 32);
}


/* Proves the sizes of headers and nodes that layout.h describes. */
TEST(nodes_have_the_sizes_of_the_design) {
    static const unsigned bytes[] = {0, 32, 64, 128, 264, 392, 520, 776, 1160, 1288, 1544, 2064};
    for (dart_node_type type = DART_N4; type <= DART_N256; type++)
        for (unsigned depth = 0; depth <= 6; depth++)
            assert_int_equal(dart_node_bytes(type, depth, 16), bytes[type]);
    assert_int_equal(dart_header_bytes(7), 16);
    assert_int_equal(dart_header_bytes(256), 264);
    for (dart_node_type type = DART_N4; type <= DART_N256; type++) {
        dart_header header = {dart_header_word(4095, type)};
        assert_int_equal(dart_header_depth(&header), 4095);
        for (dart_node_type other = DART_N4; other <= DART_N256; other++)
            assert_true(dart_header_has_type(&header, other) == (other == type));
        assert_true(dart_header_is_sound(&header));
    }
    for (unsigned i = 0; i < 4; i++)
        for (dart_node_type type = DART_N4; type < DART_N256; type++) {
            unsigned size = bucket_sizes[i], capacity = dart_capacity(type);
            unsigned rounded = (capacity + size - 1) / size * size;
            assert_int_equal(dart_node_slots(type, 6, size), capacity <= size ? capacity - 1 : rounded);
            assert_int_equal(dart_node_slots(type, 7, size), capacity <= size ? capacity : rounded);
            /* the capacity fills the last granule completely */
            for (unsigned depth = 0; depth < 64 && capacity <= size; depth++)
                assert_int_equal(dart_node_bytes(type, depth, size) % FAR_GRANULE, 0);
        }
}


/* Proves that for digits, letters and even bytes, no bucket gets more than twice its share. */
TEST(common_alphabets_spread_over_buckets) {
    static const struct {
        unsigned from, to, step;
    } sets[] = {{'0', '9', 1}, {'a', 'z', 1}, {'A', 'Z', 1}, {0, 254, 2}, {0, 255, 1}, {0, 240, 16}};
    for (unsigned set = 0; set < 6; set++)
        for (unsigned i = 0; i < 4 * DART_N256; i++) {
            unsigned buckets = dart_buckets((dart_node_type)(DART_N4 + i % (DART_N256 - DART_N4)), bucket_sizes[i % 4]);
            unsigned filled[DART_NODE_SLOTS_MAX] = {0}, count = 0, most = 0;
            for (unsigned b = sets[set].from; b <= sets[set].to; b += sets[set].step, count++)
                if (++filled[dart_bucket_of(b, buckets)] > most)
                    most = filled[dart_bucket_of(b, buckets)];
            if (most * buckets > 2 * count + 2 * buckets)
                fail_msg("alphabet %u: %u of %u in one of %u buckets", set, most, count, buckets);
        }
}


static void random_children(far_random *random, unsigned count, dart_children *children) {
    uint8_t used[257] = {0};
    children->count = 0;
    while (children->count < count) {
        unsigned symbol = (unsigned)far_random_below(random, 257);
        if (used[symbol]++)
            continue;
        children->words[children->count++] = dart_leaf_word(symbol, 1, 16 * (symbol + 1));
    }
}


/* Proves that for random children, every bucket of the chosen type has room, no smaller type would have room, and the
 * image contains each child in its bucket without gaps. */
TEST(the_chosen_type_holds_all_children) {
    far_random random;
    far_random_seed(&random, 5);
    uint64_t image[(8 + 2056) / 8 + 2];
    for (unsigned round = 0; round < 4000; round++) {
        dart_index dart = {.bucket = bucket_sizes[round % 4]};
        dart_children children;
        random_children(&random, (unsigned)far_random_below(&random, 258), &children);
        unsigned depth = round / 4 % 2 ? 9 : 3;
        dart_node_type type = dart_choose_type(&dart, depth, &children, false),
                       purged = dart_choose_type(&dart, depth, &children, true);
        assert_true(dart_children_fit(&dart, type, depth, &children) && purged >= type &&
                    dart_children_fit(&dart, purged, depth, &children));
        assert_true(type == DART_N4 ||
                    !dart_children_fit(&dart, type == DART_N192 ? DART_N144 : type - 1, depth, &children));
        assert_true(purged == DART_N256 || 4 * children.count <= 3 * dart_node_slots(purged, depth, dart.bucket));
        dart_build_node(&dart, type, (far_bytes){"abcdefghi", depth}, &children, image);
        dart_view view = {
            {16, type, depth},    0,   dart_node_slots(type, depth, dart.bucket), image + dart_header_bytes(depth) / 8,
            (dart_header *)image, true};
        assert_true(dart_header_matches(view.header, &view.node) &&
                    memcmp(view.header->prefix, "abcdefghi", depth) == 0);
        for (unsigned i = 0; i < children.count; i++) {
            int at = dart_view_search(&dart, &view, dart_word_symbol(children.words[i]));
            assert_true(at >= 0 && view.slots[at] == children.words[i]);
        }
        unsigned found = 0;
        for (unsigned i = 0; i < view.count; i++)
            found += dart_is_child(view.slots[i]);
        assert_int_equal(found, children.count);
    }
}


/* Proves the three results of dart_view_search: the symbol's slot, the lowest EMPTY slot, or -1 for a full bucket. */
TEST(a_search_gives_the_symbol_or_the_lowest_empty_slot) {
    dart_index dart = {.bucket = 16};
    uint64_t slots[7] = {
        dart_leaf_word('a', 1, 16), dart_tomb('b'), dart_leaf_word(DART_SYMBOL_END, 1, 32), 0, 0, 0, 0};
    dart_view view = {{16, DART_N8, 0}, 0, 7, slots, NULL, true};
    assert_int_equal(dart_view_search(&dart, &view, 'a'), 0);
    assert_int_equal(dart_view_search(&dart, &view, 'b'), 1);
    assert_int_equal(dart_view_search(&dart, &view, DART_SYMBOL_END), 2);
    assert_int_equal(dart_view_search(&dart, &view, 0), 3); /* the word of an END child has the symbol byte 0, too */
    /* Slot 3 is EMPTY and slot 4 is not. Slots are filled in order, but a torn READ may return such an image. */
    slots[4] = dart_leaf_word('x', 1, 48);
    assert_int_equal(dart_view_search(&dart, &view, 'x'), 4);
    assert_int_equal(dart_view_search(&dart, &view, 'y'), 3);
    for (unsigned i = 0; i < 7; i++)
        slots[i] = dart_leaf_word('a' + i, 1, 16);
    assert_int_equal(dart_view_search(&dart, &view, 'z'), -1);
    assert_true(dart_any_unfrozen(slots, 7));
    for (unsigned i = 0; i < 7; i++)
        slots[i] |= DART_FROZEN;
    assert_false(dart_any_unfrozen(slots, 7));
}


/* Proves that END has the lowest rank, so that a key precedes all keys of which it is a prefix. */
TEST(the_end_comes_before_every_byte) {
    far_bytes key = {"a\0", 2};
    assert_int_equal(dart_symbol(key, 0), 'a');
    assert_int_equal(dart_symbol(key, 1), 0);
    assert_int_equal(dart_symbol(key, 2), DART_SYMBOL_END);
    for (unsigned symbol = 0; symbol < 256; symbol++) {
        assert_true(dart_symbol_rank(DART_SYMBOL_END) < dart_symbol_rank(symbol));
        assert_true(symbol == 0 || dart_symbol_rank(symbol - 1) < dart_symbol_rank(symbol));
    }
}


/* Proves that the function compares eight bytes at a time, and yet returns the exact position of the first difference;
 * the end of the shorter key ends the prefix. */
TEST(common_prefix_ends_at_the_first_different_byte) {
    char a[40], b[40];
    memset(a, 'x', sizeof(a));
    for (unsigned length = 0; length <= sizeof(a); length++)
        for (unsigned at = 0; at <= length; at++) {
            memcpy(b, a, sizeof(b));
            if (at < length)
                b[at] = 'y';
            assert_int_equal(dart_common_prefix((far_bytes){a, sizeof(a)}, (far_bytes){b, length}), at);
            assert_int_equal(dart_common_prefix((far_bytes){b, length}, (far_bytes){a, sizeof(a)}), at);
        }
}


/* Proves that directory, fingerprint, main bucket and group use different bits of the hash. */
TEST(hash_bits_are_disjoint) {
    for (unsigned bit = 0; bit < 64; bit++) {
        uint64_t hash = 1ull << bit;
        unsigned parts = (dart_hash_directory(hash, 16) != 0) + (dart_hash_fingerprint(hash) != 0) +
                         (dart_hash_main(hash) != 0) + (dart_hash_group(hash, 0, 20) != 0);
        assert_int_equal(parts, bit >= 19 ? 1 : 0);
    }
    uint64_t word = dart_directory_word(7, 4096);
    assert_true(dart_directory_log_groups(word) == 7 && dart_word_addr(word) == 4096);
}
