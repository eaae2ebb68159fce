/* Dolphin: tests of the encoding of words, leaves and splits, and then of properties of the index on the local fabric.
 */
#include "../support/stage.h"
#include "base/random.h"
#include "base/sanitizer.h"
#include "index/dolphin/dolphin.h"
#include "pool/epoch/epoch.h"
#include "task/session.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>


enum {
    NODE_KEYS = FAR_TSAN ? 20000 : 100000,
    BACK_KEYS = FAR_TSAN ? 4000 : 20000,
    LAST_BYTE_KEYS = FAR_TSAN ? 4000 : 20000,
    DAMAGES = FAR_TSAN ? 20 : 120,
};


/* An entry word returns the address, tag, lower bound and kind that were stored in it, at the limits of each field. */
TEST(entries_keep_all_their_fields) {
    far_addr addr = far_addr_make(255, (1ull << 40) - 64);
    for (unsigned lb = 0; lb <= DOLPHIN_LAST_POSITION; lb++)
        for (unsigned tag = 0; tag < DOLPHIN_TAGS; tag += 73) {
            uint64_t leaf = dolphin_entry(addr, tag, lb, DOLPHIN_KIND_LEAF), node = dolphin_entry(addr, tag, lb, 13);
            assert_true(dolphin_entry_addr(leaf) == addr && dolphin_entry_lb(leaf) == lb);
            assert_true(dolphin_entry_tag(leaf) == tag && dolphin_entry_kind(leaf) == DOLPHIN_KIND_LEAF);
            assert_true(dolphin_entry_is_node(node) && dolphin_entry_class(node) == 5 && !dolphin_entry_is_node(leaf));
            assert_true(dolphin_entry_is_sound(leaf) && dolphin_entry_is_sound(node));
            assert_true(dolphin_entries_match(leaf, dolphin_entry_with_lb(leaf, 3)) &&
                        !dolphin_entries_match(leaf, node));
            assert_true(dolphin_entry_may_cover(leaf, DOLPHIN_LAST_POSITION) && dolphin_entry_may_cover(node, lb));
            assert_true(lb == 0 || (!dolphin_entry_may_cover(node, lb - 1) && !dolphin_entry_may_cover(leaf, lb - 1)));
        }
    uint64_t null = dolphin_null_entry(3, 9);
    assert_true(dolphin_entry_may_cover(null, 3) && dolphin_entry_may_cover(null, 9));
    assert_false(dolphin_entry_may_cover(null, 2) || dolphin_entry_may_cover(null, 10));
    assert_false(dolphin_entry_is_sound(dolphin_null_entry(9, 3)) ||
                 dolphin_entry_is_sound(dolphin_null_entry(3, 300)));
    assert_false(dolphin_entry_is_sound(dolphin_entry(addr, 1, 300, DOLPHIN_KIND_LEAF)));
    assert_false(dolphin_entry_is_sound(dolphin_entry(0, 1, 3, DOLPHIN_KIND_LEAF)));
    assert_false(dolphin_entry_is_sound(dolphin_entry(addr, 1, 3, DOLPHIN_KIND_NODE)));
    assert_false(dolphin_entry_is_sound(dolphin_entry(addr, 1, 3, 15)));
}


/* The order of the key words of one leaf is that of their keys: key words are compared by the bytes of the key, and
 * then by its length. The test includes zero bytes, and keys that are prefixes of others. */
TEST(key_words_compare_like_keys) {
    static const uint8_t letters[] = {0, 1, 0x7f, 0xfe, 0xff};
    uint8_t x[10] = {7, 7}, y[10] = {7, 7};
    far_random random;
    far_random_seed(&random, 1);
    for (unsigned i = 0; i < 200000; i++) {
        unsigned depth = (unsigned)far_random_below(&random, 3);
        far_bytes a = {x, depth + far_random_below(&random, 8)}, b = {y, depth + far_random_below(&random, 8)};
        for (unsigned k = depth; k < 10; k++) {
            x[k] = letters[far_random_below(&random, 5)];
            y[k] = far_random_chance(&random, 2, 3) ? x[k] : letters[far_random_below(&random, 5)];
        }
        memcpy(y, x, depth);
        uint64_t ka = dolphin_inline_kword(a, depth), kb = dolphin_inline_kword(b, depth);
        uint64_t pa = ka & DOLPHIN_PAYLOAD, pb = kb & DOLPHIN_PAYLOAD;
        int order = pa != pb ? (pa > pb) - (pa < pb) : (ka > kb) - (ka < kb), right = far_bytes_compare(a, b);
        assert_int_equal(order, (right > 0) - (right < 0));
        assert_int_equal(dolphin_inline_position(ka), dolphin_position(a, depth));
        assert_true(dolphin_kword_is_sound(dolphin_kword_with_state(ka, DOLPHIN_SLOT_LIVE)) &&
                    !dolphin_kword_is_block(ka));
        uint8_t back[DOLPHIN_INLINE_MAX];
        dolphin_inline_bytes(ka, back);
        assert_memory_equal(back, x + depth, a.length - depth);
    }
}


/* For every allowed length, the size class of a key block or value block is the smallest one with enough room. */
TEST(blocks_have_room_for_what_is_in_them) {
    for (size_t length = 1; length <= FAR_KEY_MAX; length++) {
        unsigned class = dolphin_key_block_class(length);
        assert_true(class < DOLPHIN_KEY_CLASSES && dolphin_key_block_bytes(class) >= length + 2);
        assert_true(class == 0 || dolphin_key_block_bytes(class - 1) < length + 2);
        uint64_t kword = dolphin_block_kword(far_addr_make(255, (1ull << 40) - 16), class, 0xabc);
        assert_true(dolphin_kword_is_block(kword) &&
                    dolphin_kword_block(kword) == far_addr_make(255, (1ull << 40) - 16));
        assert_true(dolphin_kword_fingerprint(kword) == 0xabc &&
                    dolphin_kword_block_bytes(kword) == dolphin_key_block_bytes(class));
    }
    for (size_t length = 0; length <= FAR_VALUE_MAX; length++) {
        unsigned code = dolphin_value_code(length);
        assert_true(code < 4096 && dolphin_code_bytes(code) >= length + 8);
        assert_true(dolphin_code_bytes(code - 1) < length + 8);
    }
    assert_true(dolphin_value_is_sound(0) && dolphin_value_is_sound(1ull << 56) &&
                dolphin_value_is_sound(0xffull | 2ull << 56));
    assert_false(dolphin_value_is_sound(1) || dolphin_value_is_sound(9ull << 56) ||
                 dolphin_value_is_sound(1ull << 56 | 1));
}


/* The spear word (the first word of a leaf) contains the number of writers and a sum of key hashes. Changing the number
 * of writers does not change the sum, whatever value the sum has; the sum wraps around. */
TEST(spear_words_add_up) {
    uint64_t spear = 511 | DOLPHIN_LIVE;
    for (unsigned i = 0; i < (1u << 18) - 1; i += 409) {
        uint64_t inside = spear + i * DOLPHIN_ENTER + i % 1000 * (DOLPHIN_TICKET + 777 * DOLPHIN_SUM);
        assert_true(dolphin_writer_count(inside) == i && dolphin_tag(inside) == 511 &&
                    dolphin_ticket(inside) == i % 1000);
    }
    assert_true(spear + DOLPHIN_ENTER + DOLPHIN_FROZEN + DOLPHIN_EXIT == (spear | DOLPHIN_FROZEN));
    /* `next` activates the next incarnation of the leaf's memory, here when its tag wraps around. */
    uint64_t old = (spear | DOLPHIN_FROZEN) + 70 * (DOLPHIN_TICKET + 999 * DOLPHIN_SUM),
             next = dolphin_tag_after(old) | DOLPHIN_LIVE;
    uint64_t born = old + 3 * DOLPHIN_ENTER + (next - (old & ~DOLPHIN_COUNT_MASK));
    assert_true(born == (next | 3 * DOLPHIN_ENTER) && dolphin_tag(born) == 0 && dolphin_writer_count(born) == 3);
}


/* dolphin_class_with_room returns the smallest class with room for a given number of entries, at every depth. */
TEST(node_classes_have_room) {
    for (unsigned depth = 0; depth <= FAR_KEY_MAX; depth++)
        for (unsigned entries = 1; entries <= DOLPHIN_POSITIONS + 2; entries++) {
            unsigned class = dolphin_class_with_room(entries, depth, 1);
            assert_true(dolphin_node_capacity(class, depth) >= entries);
            assert_true(class == 1 || dolphin_node_capacity(class - 1, depth) < entries);
        }
}


/* dolphin_choose_split never separates keys of one position. It splits near the middle, or at three quarters for
 * ascending keys. */
TEST(splits_are_where_positions_change) {
    uint8_t bytes[65][2];
    dolphin_item items[65];
    far_random random;
    far_random_seed(&random, 1);
    for (unsigned round = 0; round < 20000; round++) {
        unsigned count = 2 + (unsigned)far_random_below(&random, 64),
                 kinds = 2 + (unsigned)far_random_below(&random, 254);
        for (unsigned i = 0; i < count; i++) {
            bytes[i][0] = (uint8_t)far_random_below(&random, kinds);
            bytes[i][1] = (uint8_t)i;
            items[i] = (dolphin_item){.key = {bytes[i], 2}};
        }
        bytes[0][0] = 0, bytes[1][0] = (uint8_t)(kinds - 1);
        dolphin_sort_items(items, count);
        unsigned cut = dolphin_choose_split(items, count, 0, -1);
        assert_in_range(cut, 1, count - 1);
        assert_true(dolphin_position(items[cut - 1].key, 0) < dolphin_position(items[cut].key, 0));
    }
    for (unsigned i = 0; i < 64; i++) {
        bytes[i][0] = (uint8_t)i;
        items[i] = (dolphin_item){.key = {bytes[i], 1}};
    }
    assert_int_equal(dolphin_choose_split(items, 64, 0, 10), 32);
    /* keys that arrive in ascending order are split at three quarters */
    assert_int_equal(dolphin_choose_split(items, 64, 0, 63), 48);
}


/* dolphin_first_key_beyond and dolphin_first_key_after_prefix return the next possible key, or false after the last
 * one. */
TEST(keys_beyond) {
    uint8_t key[8];
    size_t length;
    assert_true(dolphin_first_key_beyond((const uint8_t *)"ab", 2, 0, key, &length) && length == 3 &&
                memcmp(key, "ab\0", 3) == 0);
    assert_true(dolphin_first_key_beyond((const uint8_t *)"ab", 2, 256, key, &length) && length == 2 &&
                memcmp(key, "ac", 2) == 0);
    assert_true(dolphin_first_key_beyond((const uint8_t *)"a\xff", 2, 256, key, &length) && length == 1 &&
                key[0] == 'b');
    assert_false(dolphin_first_key_beyond((const uint8_t *)"\xff\xff", 2, 256, key, &length));
}


/* Properties of an index on the local fabric. */

static far_pool *pool;
static far_session *session;
static far_index *map;


static void open_map(const char *uri, const char *options) {
    far_pool_options pool_options = FAR_POOL_OPTIONS_INIT;
    pool_options.rdwc = -1;
    assert_int_equal(far_pool_open(uri, &pool_options, &pool), 0);
    assert_int_equal(far_session_open(pool, &session), 0);
    assert_int_equal(far_index_create(session, "map", "dolphin", options, &map), 0);
}


static void close_map(void) {
    far_pool_usage usage;
    assert_int_equal(far_index_check(session, map, fail_at_problem, NULL), 0);
    assert_int_equal(far_pool_check(session, 1, fail_at_problem, NULL), 0);
    assert_int_equal(far_pool_stat(session, &usage), 0);
    assert_int_equal(usage.leaked, 0);
    far_index_close(map);
    far_session_close(session);
    far_pool_close(pool);
}


static int count_pair(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    (void)key, (void)key_len, (void)value, (void)value_len;
    ++*(unsigned *)ctx;
    return 0;
}


static int64_t scan(const void *from, size_t from_len, const void *to, size_t to_len, size_t limit, unsigned *pairs) {
    *pairs = 0;
    return far_scan(session, map, from, from_len, to, to_len, limit, count_pair, pairs);
}


static int64_t scan_backward(const void *from, size_t from_len, const void *to, size_t to_len, size_t limit,
                             unsigned *pairs) {
    *pairs = 0;
    return far_scan_reverse(session, map, from, from_len, to, to_len, limit, count_pair, pairs);
}


/* Test T1, race A1. A key that ends in the byte FF belongs to exactly one leaf, also if a split is at that byte. A key
 * that ends at the depth of a node (position END) belongs to the first interval of the node. Fails if a bound of a leaf
 * is exclusive (dolphin_leaf_covers in find.c). */
TEST(last_bytes_are_bytes_like_others) {
    static const char *const options[] = {"value_size=8,leaf_slots=2", "leaf_slots=3",
                                          "coverage=lastbyte,leaf_slots=4"};
    for (unsigned o = 0; o < 3; o++) {
        unsigned pairs, count = 0;
        open_map("local:16M", options[o]);
        for (unsigned round = 0; round < 2; round++)
            for (unsigned x = 0; x < 256; x += 5)
                for (unsigned y = 0; y <= 256; y += 32) {
                    uint8_t key[3] = {'k', (uint8_t)(255 - x), (uint8_t)(y ? y - 1 : 0)}, back[8];
                    size_t size = y ? 3 : 2, length;
                    if (round == 0)
                        assert_int_equal(far_insert(session, map, key, size, "8 bytes.", 8), 0);
                    else
                        assert_int_equal(far_get(session, map, key, size, back, 8, &length), 0);
                    count += round;
                }
        assert_int_equal(scan("k", 1, NULL, 0, 0, &pairs), count);
        assert_int_equal(scan_backward("k", 1, NULL, 0, 0, &pairs), count);
        close_map();
    }
}


/* Scans of a few keys return exactly the keys in their range, and READ no leaf beyond it. */
TEST(scans_stop_at_their_bounds) {
    far_stats before, after;
    unsigned pairs;
    open_map("local:64M", "value_size=8");
    for (unsigned i = 0; i < 5000; i++) {
        uint8_t key[8] = {0, 0, 0, 0, 0, 0, (uint8_t)(i >> 8), (uint8_t)i};
        assert_int_equal(far_insert(session, map, key, 8, key, 8), 0);
    }
    for (unsigned i = 0; i < 5000; i += 7) {
        uint8_t from[8] = {0, 0, 0, 0, 0, 0, (uint8_t)(i >> 8), (uint8_t)i}, to[8];
        unsigned end = i + 3;
        memcpy(to, from, 8);
        to[6] = (uint8_t)(end >> 8), to[7] = (uint8_t)end;
        scan(from, 8, to, 8, 0, &pairs);
        far_session_stats(session, &before);
        assert_int_equal(scan(from, 8, to, 8, 0, &pairs), end <= 5000 ? 3 : 5000 - i);
        far_session_stats(session, &after);
        far_stats d = far_stats_diff(&after, &before);
        /* Near the end of a node, the scan needs leaves of two nodes. */
        assert_true(d.round_trips <= 3 && d.reads <= 3);
        far_session_stats(session, &before);
        assert_int_equal(scan(from, 8, NULL, 0, 1, &pairs), 1);
        far_session_stats(session, &after);
        d = far_stats_diff(&after, &before);
        if (d.round_trips != 1 || d.reads > 2)
            fail_msg("a scan of one key at %u: %u round trips, %u READs", i, (unsigned)d.round_trips,
                     (unsigned)d.reads);
        far_session_stats(session, &before);
        assert_int_equal(scan_backward(from, 8, to, 8, 0, &pairs), end <= 5000 ? 3 : 5000 - i);
        far_session_stats(session, &after);
        d = far_stats_diff(&after, &before);
        assert_true(d.round_trips <= 3 && d.reads <= 3);
        far_session_stats(session, &before);
        assert_int_equal(scan_backward(NULL, 0, from, 8, 1, &pairs), i > 0);
        far_session_stats(session, &after);
        d = far_stats_diff(&after, &before);
        /* A bound that ends in a byte 0 belongs to the first leaf of a node, and the key before it to another node. */
        if (i && (d.round_trips > (i % 256 ? 1 : 2) || d.reads > 2))
            fail_msg("a backward scan of one key at %u: %u round trips, %u READs", i, (unsigned)d.round_trips,
                     (unsigned)d.reads);
    }
    close_map();
}


/* After all keys were deleted, the memory of their leaves, nodes and blocks is free. Fails without merge_after_delete
 * (remove.c). */
TEST(deleted_memory_is_freed) {
    static const char *const options[] = {"value_size=8", "leaf_slots=8,value_size=8", "leaf_slots=4"};
    for (unsigned o = 0; o < 3; o++) {
        far_usage full, empty;
        open_map("local:64M", options[o]);
        for (unsigned del = 0; del < 2; del++) {
            for (uint64_t i = 0; i < BACK_KEYS; i++) {
                uint64_t seed = i, x = far_splitmix(&seed);
                uint8_t key[8] = {'k', (uint8_t)(x >> 8), (uint8_t)x, (uint8_t)(x >> 16), (uint8_t)(x >> 24), 0, 0, 0};
                int result = del ? far_delete(session, map, key, 5) : far_put(session, map, key, 5, "8 bytes.", 8);
                assert_true(result == 0 || result == FAR_ERR_NOT_FOUND);
            }
            assert_int_equal(far_index_usage(session, map, del ? &empty : &full), 0);
        }
        print_message("%s: %llu bytes with %d keys, %llu with none\n", options[o], (unsigned long long)full.pool_bytes,
                      BACK_KEYS, (unsigned long long)empty.pool_bytes);
        assert_int_equal(empty.keys, 0);
        assert_true(empty.pool_bytes <= full.pool_bytes / 20);
        close_map();
    }
}


/* One of sixteen keys stays. Proves that leaves with few keys are merged long before they are empty. Fails without
 * dolphin_merge_leaves (restructure_merge.c). */
TEST(small_leaves_are_merged) {
    far_usage full, sparse;
    open_map("local:64M", "value_size=8");
    for (unsigned del = 0; del < 2; del++) {
        for (uint64_t i = 0; i < BACK_KEYS; i++) {
            uint64_t seed = i, x = far_splitmix(&seed);
            uint8_t key[8] = {'k', (uint8_t)(x >> 8), (uint8_t)x, (uint8_t)(x >> 16), (uint8_t)(x >> 24)};
            int result = !del     ? far_put(session, map, key, 5, "8 bytes.", 8)
                         : i % 16 ? far_delete(session, map, key, 5)
                                  : 0;
            assert_true(result == 0);
        }
        assert_int_equal(far_index_usage(session, map, del ? &sparse : &full), 0);
    }
    print_message("%llu bytes with %d keys, %llu with a sixteenth of them\n", (unsigned long long)full.pool_bytes,
                  BACK_KEYS, (unsigned long long)sparse.pool_bytes);
    assert_int_equal(sparse.keys, (BACK_KEYS + 15) / 16);
    assert_true(sparse.pool_bytes <= full.pool_bytes / 3);
    close_map();
}


/* Gets that are submitted together READ their leaves in one batch and their value blocks in another one
 * (dolphin_get_many in find.c). */
TEST(gets_together_share_round_trips) {
    static const char *const options[] = {"value_size=8,hints=off", "hints=off",
                                          "values=indirect,value_size=8,hints=off"};
    for (unsigned o = 0; o < 3; o++) {
        enum { GETS = 16 };
        far_op ops[GETS], *many[GETS];
        char keys[GETS][8], values[GETS][64];
        far_stats before, after;
        open_map("local:16M", options[o]);
        for (unsigned i = 0; i < 2000; i++) {
            char key[8], value[64] = {0};
            snprintf(key, sizeof(key), "k%05u", i * 7919 % 2000);
            snprintf(value, sizeof(value), o == 1 && i % 3 ? "value %s which has more than a word" : "%s-v", key);
            assert_int_equal(far_put(session, map, key, 6, value, o == 1 ? strlen(value) : 8), 0);
        }
        for (unsigned round = 0; round < 2; round++) {
            memset(ops, 0, sizeof(ops));
            for (unsigned i = 0; i < GETS; i++) {
                snprintf(keys[i], sizeof(keys[i]), i == 7 ? "k%04u~" : "k%05u", i == 7 ? 70 : i * 101);
                ops[i] = (far_op){.kind = FAR_OP_GET,
                                  .index = map,
                                  .key = keys[i],
                                  .key_len = 6,
                                  .value = values[i],
                                  .capacity = sizeof(values[i])};
                many[i] = &ops[i];
            }
            far_session_stats(session, &before);
            assert_int_equal(far_submit(session, many, GETS), GETS);
            for (int done = 0; done < GETS;) {
                far_op *ended[GETS];
                done += far_reap(session, ended, GETS, 1);
            }
            far_session_stats(session, &after);
        }
        for (unsigned i = 0; i < GETS; i++)
            assert_int_equal(ops[i].result, i == 7 ? FAR_ERR_NOT_FOUND : 0);
        assert_int_equal(far_stats_diff(&after, &before).round_trips, o == 0 ? 1 : 2);
        close_map();
    }
}


/* Leaves and nodes are distributed over the memory nodes: the largest share is at most 1.3 times the mean
 * (dolphin_choose_memory_node in node.c). */
TEST(memory_nodes_share) {
    open_map("local:8x32M", "value_size=8");
    uint64_t bytes[8] = {0}, sum = 0, most = 0;
    for (uint64_t i = 0; i < NODE_KEYS; i++) {
        uint64_t seed = i, x = far_splitmix(&seed);
        assert_int_equal(far_insert(session, map, &x, 8, &x, 8), 0);
    }
    dolphin_state *st = dolphin_state_of(map);
    char *const *memory = pool->fabric->memory;
    assert_int_equal(pool->fabric->nodes, 8);
    uint64_t stack[4096], count = 0;
    stack[count++] = st->root;
    while (count) {
        uint64_t word = stack[--count];
        far_addr addr = dolphin_entry_addr(word);
        uint64_t *image = (uint64_t *)(memory[far_addr_node(addr)] + far_addr_offset(addr));
        unsigned depth = dolphin_ident_depth(image[1]), class = dolphin_ident_class(image[1]);
        for (unsigned i = 0; i < dolphin_node_capacity(class, depth); i++) {
            uint64_t entry = image[(DOLPHIN_NODE_HEADER + dolphin_stored_prefix_bytes(depth)) / 8 + i];
            if (dolphin_entry_is_node(entry))
                stack[count++] = entry;
            if (dolphin_entry_kind(entry) >= DOLPHIN_KIND_LEAF)
                bytes[far_addr_node(dolphin_entry_addr(entry))] +=
                    dolphin_entry_is_node(entry) ? dolphin_class_bytes(dolphin_entry_class(entry)) : st->leaf_bytes;
        }
    }
    for (unsigned i = 0; i < 8; i++) {
        sum += bytes[i];
        most = bytes[i] > most ? bytes[i] : most;
    }
    print_message("the largest share is %.2f times the mean\n", (double)most * 8 / (double)sum);
    assert_true((double)most * 8 / (double)sum <= 1.3);
    close_map();
}


/* Damage is reported: operations return FAR_ERR_CORRUPT, check reports problems, and no operation hangs. */
static char problem_noted[256]; /* the problem that was reported last */


static int note_problem(void *ctx, const char *what) {
    snprintf(problem_noted, sizeof(problem_noted), "%s", what);
    ++*(unsigned *)ctx;
    return 0;
}


/* Random words of nodes and leaves are overwritten. More than half of the cases must be reported by check, and no get
 * or scan may hang or return another error than FAR_ERR_CORRUPT. */
TEST(damage_is_found) {
    far_random random;
    char back[64];
    size_t length;
    unsigned found = 0, told = 0;
    far_random_seed(&random, 5);
    for (unsigned round = 0; round < DAMAGES; round++) {
        open_map("local:8M", round % 2 ? "leaf_slots=4" : "leaf_slots=4,value_size=8");
        for (unsigned i = 0; i < 200; i++) {
            char key[32];
            int size = snprintf(key, sizeof(key), "key-%u%s", i * 37 % 200, round % 4 == 1 ? "-and-a-long-rest" : "");
            assert_int_equal(far_put(session, map, key, (size_t)size, "8 bytes.", 8), 0);
        }
        /* Overwrite a random word of a node or leaf on the path to a random key. */
        uint64_t word = dolphin_state_of(map)->root;
        char *const *memory = pool->fabric->memory;
        unsigned steps = (unsigned)far_random_below(&random, 4);
        uint64_t *image;
        for (;;) {
            far_addr addr = dolphin_entry_addr(word);
            image = (uint64_t *)(memory[far_addr_node(addr)] + far_addr_offset(addr));
            if (!dolphin_entry_is_node(word) || steps-- == 0)
                break;
            unsigned depth = dolphin_ident_depth(image[1]),
                     capacity = dolphin_node_capacity(dolphin_ident_class(image[1]), depth);
            uint64_t *entries = image + (DOLPHIN_NODE_HEADER + dolphin_stored_prefix_bytes(depth)) / 8, at;
            do
                at = far_random_below(&random, capacity);
            while (dolphin_entry_kind(entries[at]) < DOLPHIN_KIND_LEAF);
            word = entries[at];
        }
        unsigned words = 16, place = 1 + (unsigned)far_random_below(&random, words - 1);
        uint64_t was = image[place];
        image[place] =
            far_random_chance(&random, 1, 2) ? far_random_next(&random) : was ^ 1ull << far_random_below(&random, 64);
        unsigned problems = 0;
        assert_true(far_index_check(session, map, note_problem, &problems) >= 0);
        found += problems > 0;
        for (unsigned i = 0; i < 200; i++) {
            char key[32];
            int size = snprintf(key, sizeof(key), "key-%u%s", i, round % 4 == 1 ? "-and-a-long-rest" : "");
            int result = far_get(session, map, key, (size_t)size, back, sizeof(back), &length);
            assert_true(result == 0 || result == FAR_ERR_NOT_FOUND || result == FAR_ERR_CORRUPT ||
                        result == FAR_ERR_TOO_SMALL);
            told += result == FAR_ERR_CORRUPT;
        }
        unsigned pairs;
        int64_t scanned = scan("key", 3, NULL, 0, 0, &pairs);
        assert_true(scanned >= 0 || scanned == FAR_ERR_CORRUPT);
        image[place] = was;
        close_map();
    }
    print_message("check found %u of %d, gets told of it %u times\n", found, DAMAGES, told);
    assert_true(found > DAMAGES / 2 && told > DAMAGES / 30);
}


/* Damaged control words must not block writers for ever: each write ends with success or an error. */
TEST(damaged_control_words_block_no_writer) {
    static const struct {
        uint64_t flip;
        bool node;   /* true: the control word of a node is damaged; false: that of a leaf */
        bool broken; /* no operation can succeed with this word */
    } cases[] = {
        {DOLPHIN_FROZEN, false, true},
        {DOLPHIN_LIVE, false, true},
        {1, false, true},
        {3 * DOLPHIN_ENTER, false, false},
        {40 * DOLPHIN_TICKET, false, false},
        {77 * DOLPHIN_SUM, false, false},
        {DOLPHIN_FROZEN, true, true},
        {DOLPHIN_LIVE, true, true},
        {1, true, true},
        {999ull << DOLPHIN_OWNER_SHIFT, true, false},
    };
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (unsigned below = 0; below < 2; below++) { /* The damaged leaf is below the root, or below a node. */
            if (cases[i].node && !below)
                continue;
            open_map("local:8M", "leaf_slots=4,value_size=8");
            for (char c = 'a'; c <= (below ? 'z' : 'c'); c++)
                assert_int_equal(far_put(session, map, (char[]){'k', c}, 2, "8 bytes.", 8), 0);
            uint64_t word = dolphin_state_of(map)->root, *image = NULL;
            far_bytes key = {"ka", 2};
            char *const *memory = pool->fabric->memory;
            for (unsigned level = 0; level <= below + (cases[i].node ? 0 : 1u); level++) {
                if (level) {
                    dolphin_node node = {.word = word, .image = image, .depth = dolphin_ident_depth(image[1])};
                    node.capacity = dolphin_node_capacity(dolphin_ident_class(image[1]), node.depth);
                    node.entries = image + (DOLPHIN_NODE_HEADER + dolphin_stored_prefix_bytes(node.depth)) / 8;
                    word = node.entries[dolphin_find_entry(&node, dolphin_position(key, node.depth))];
                }
                far_addr addr = dolphin_entry_addr(word);
                image = (uint64_t *)(memory[far_addr_node(addr)] + far_addr_offset(addr));
            }
            assert_int_equal(dolphin_entry_is_node(word), cases[i].node);
            *image ^= cases[i].flip;
            int result = 0;
            for (char c = 'A'; c <= 'Z' && result == 0; c++) /* fills the leaf, so that its node must be changed */
                result = far_put(session, map, (char[]){'k', 'a', c}, 3, "8 bytes.", 8);
            if (result == 0)
                result = far_delete(session, map, "ka", 2);
            assert_int_equal(result, cases[i].broken ? FAR_ERR_CORRUPT : 0);
            if (cases[i].broken)
                *image ^= cases[i].flip;
            close_map();
        }
}


/* A LIVE key has the value word 0, and no delete is in progress. Check must report the key, and a put of it must not
 * wait for ever. If the leaf is frozen, recovery may be clearing the slot, so check must report only the frozen leaf
 * (check_missing_values in check.c). */
TEST(a_key_without_its_value_is_reported) {
    char value[40] = "a value that does not fit into a word";
    open_map("local:8M", "leaf_slots=4");
    for (char c = 'a'; c <= 'c'; c++)
        assert_int_equal(far_put(session, map, (char[]){'k', c}, 2, value, sizeof(value)), 0);
    const dolphin_state *st = dolphin_state_of(map);
    char *const *memory = pool->fabric->memory;
    far_addr root = dolphin_entry_addr(st->root) + DOLPHIN_NODE_HEADER + 8 * ('k' + 1);
    uint64_t entry;
    memcpy(&entry, memory[far_addr_node(root)] + far_addr_offset(root), 8);
    far_addr leaf = dolphin_entry_addr(entry), at = dolphin_vword_addr(leaf, st->slots, 1);
    uint64_t *word = (uint64_t *)(memory[far_addr_node(at)] + far_addr_offset(at)), was = *word;
    uint64_t *spear = (uint64_t *)(memory[far_addr_node(leaf)] + far_addr_offset(leaf));
    unsigned problems = 0;
    assert_true(dolphin_value_is_block(was));
    *word = 0;
    assert_int_equal(far_index_check(session, map, note_problem, &problems), 1);
    assert_non_null(strstr(problem_noted, "slot 1 has no value"));
    assert_int_equal(far_put(session, map, "kb", 2, value, sizeof(value)), FAR_ERR_CORRUPT);
    *spear |= DOLPHIN_FROZEN;
    assert_int_equal(far_index_check(session, map, note_problem, &problems), 1);
    assert_non_null(strstr(problem_noted, "frozen for replacement"));
    *spear &= ~DOLPHIN_FROZEN;
    *word = was;
    assert_int_equal(far_index_check(session, map, note_problem, &problems), 0);
    close_map();
}


/* The option coverage=lastbyte, as in the paper, needs one leaf per random key. The test shows the number for
 * comparison with coverage=adaptive. */
TEST(last_byte_coverage_has_a_leaf_per_random_key) {
    double per_key[2];
    static const char *const options[] = {"value_size=8", "value_size=8,coverage=lastbyte"};
    for (unsigned o = 0; o < 2; o++) {
        far_usage usage;
        open_map("local:256M", options[o]);
        for (uint64_t i = 0; i < LAST_BYTE_KEYS; i++) {
            uint64_t seed = i, x = far_splitmix(&seed);
            assert_int_equal(far_insert(session, map, &x, 8, &x, 8), 0);
        }
        assert_int_equal(far_index_usage(session, map, &usage), 0);
        per_key[o] = (double)usage.pool_bytes / LAST_BYTE_KEYS;
        print_message("%s: %.1f bytes per random key\n", options[o], per_key[o]);
        close_map();
    }
    assert_true(per_key[0] < 40 && per_key[1] > 1000);
}


/* Switches the leaf of "a" to uncounted mode, in which updates do not register as writers. A client that replaces such
 * a leaf waits for epochs. */
static int switch_to_uncounted(far_task *t, void *arg) {
    (void)arg;
    uint64_t entry;
    int err = far_pin_take(t);
    far_read(t, dolphin_entry_addr(dolphin_state_of(map)->root) + DOLPHIN_NODE_HEADER + 8 * ('a' + 1), &entry, 8);
    if (err < 0 || (err = far_wait(t)) < 0)
        return err;
    far_faa(t, dolphin_entry_addr(entry), DOLPHIN_UNCOUNTED, NULL);
    return far_wait(t);
}


/* One thread has two sessions, and the handle has no housekeeping thread. An insert that was submitted in the first
 * session replaces a leaf and waits for epochs. A call in the second session needs the same leaf and waits until the
 * leaf is replaced (at the gate of the leaf). Meanwhile this call must run the tasks of the first session. Returns
 * whether the call had to wait. Hangs if the call only sleeps (must_drive_sessions in task/session.c). */
static bool get_waits_at_a_gate(void) {
    far_pool_options pool_options = {.rdwc = -1, .no_thread = 1};
    far_session *second;
    char key[] = "a0";
    assert_int_equal(far_pool_open("local:64M", &pool_options, &pool), 0);
    assert_int_equal(far_session_open(pool, &session), 0);
    assert_int_equal(far_session_open(pool, &second), 0);
    assert_int_equal(far_index_create(session, "map", "dolphin", "value_size=8,leaf_slots=4,calm_after=1", &map), 0);
    for (; key[1] < '4'; key[1]++)
        assert_int_equal(far_insert(session, map, key, 2, "8 bytes.", 8), 0);
    assert_int_equal(far_session_call(session, FAR_STATS_OTHER, false, switch_to_uncounted, NULL), 0);
    far_op op = {.kind = FAR_OP_INSERT, .index = map, .key = "a8", .key_len = 2, .value = "8 bytes.", .value_len = 8};
    far_op *ops[1] = {&op}, *done[1];
    assert_int_equal(far_submit(session, ops, 1), 1);
    bool waits = far_reap(session, done, 1, 0) == 0; /* false if the epochs have already advanced */
    assert_int_equal(far_insert(second, map, "a9", 2, "8 bytes.", 8), 0);
    assert_int_equal(waits ? far_reap(session, done, 1, 1) : 1, 1);
    assert_int_equal(op.result, 0);
    far_session_close(second);
    close_map();
    return waits;
}


/* A call that waits because another operation is replacing the leaf runs the tasks of the thread's other session
 * meanwhile. Otherwise that session could not finish the replacement, because there is no housekeeping thread. */
TEST(waiter_at_a_gate_drives_other_sessions) {
    bool waited = false;
    for (unsigned attempt = 0; attempt < 100 && !waited; attempt++)
        waited = get_waits_at_a_gate();
    assert_true(waited);
}
