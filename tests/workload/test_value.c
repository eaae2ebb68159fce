/* Self-checking values: every flipped bit, torn version and value of another key is detected. */
#include <stdint.h>

#include "base/random.h"
#include "test.h"
#include "workload/value.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static const size_t large_sizes[] = {63, 64, 65, 100, 255, 256, 1000, 1024, 4099};


/* Calls `test` for every size from `from` to 48, and for some larger sizes. */
static void for_sizes(size_t from, void (*test)(uint8_t *buffer, size_t size)) {
    uint8_t *buffer = malloc(8192);
    assert_non_null(buffer);
    for (size_t size = from; size <= 48; size++)
        test(buffer, size);
    for (size_t i = 0; i < sizeof large_sizes / sizeof large_sizes[0]; i++)
        test(buffer, large_sizes[i]);
    free(buffer);
}


static uint64_t version_kept(size_t size, uint64_t version) {
    return size >= 16 ? version : size >= 8 ? (uint32_t)version : 0;
}


static void check_round_trip(uint8_t *buffer, size_t size) {
    static const uint64_t versions[] = {0, 1, 2, 0xffffffffull, 0x123456789abcdefull, UINT64_MAX};
    for (int i = 0; i < 6; i++) {
        uint64_t version = 99;
        memset(buffer, 0xee, size + 8);
        far_value_fill(buffer, size, "key", 3, versions[i]);
        for (int k = 0; k < 8; k++)
            assert_int_equal(buffer[size + (size_t)k], 0xee);
        assert_int_equal(far_value_check(buffer, size, "key", 3, &version), 1);
        assert_true(version == version_kept(size, versions[i]));
        assert_int_equal(far_value_check(buffer, size, "key", 3, NULL), 1);
    }
}


/* `far_value_check` accepts each value that `far_value_fill` made, and returns its version. */
TEST(values_are_recognised_with_their_version_at_every_size) {
    for_sizes(0, check_round_trip);
    assert_int_equal(far_value_check(NULL, 0, "k", 1, NULL), 1);
}


static void check_flips(uint8_t *buffer, size_t size) {
    for (uint64_t version = 0; version < 4; version++) {
        far_value_fill(buffer, size, "some key", 8, version * 0x100000001ull);
        for (size_t bit = 0; bit < size * 8; bit++) {
            buffer[bit / 8] ^= (uint8_t)(1 << bit % 8);
            if (far_value_check(buffer, size, "some key", 8, NULL))
                fail_msg("bit %zu of %zu bytes was flipped unnoticed", bit, size);
            buffer[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
        assert_int_equal(far_value_check(buffer, size, "some key", 8, NULL), 1);
    }
}


/* A value with one changed bit is refused. */
TEST(every_flipped_bit_is_found) {
    for_sizes(1, check_flips);
}


static void check_other_key(uint8_t *buffer, size_t size) {
    for (uint64_t i = 0; i < 200; i++) {
        uint64_t other = i + 1;
        far_value_fill(buffer, size, &i, sizeof i, i);
        assert_int_equal(far_value_check(buffer, size, &other, sizeof other, NULL), 0);
    }
    assert_int_equal(far_value_check(buffer, size, "x", 1, NULL), 0);
}


/* A value of another key is refused. */
TEST(the_value_of_another_key_is_refused) {
    for_sizes(8, check_other_key);
}


/* Values of a few bytes of another key are refused except by chance. */
TEST(small_values_of_another_key_are_refused_mostly) {
    uint8_t buffer[8];
    for (size_t size = 1; size < 8; size++) {
        int accepted = 0;
        for (uint64_t i = 0; i < 2000; i++) {
            uint64_t other = i + 1;
            far_value_fill(buffer, size, &i, sizeof i, 0);
            accepted += far_value_check(buffer, size, &other, sizeof other, NULL);
        }
        assert_in_range(accepted, 0, size == 1 ? 30 : 3);
    }
}


static void check_torn(uint8_t *buffer, size_t size) {
    uint8_t other[8192];
    for (uint64_t version = 1; version < 20; version++) {
        for (size_t cut = 8; cut < size; cut += 8) {
            far_value_fill(buffer, size, "k", 1, version);
            far_value_fill(other, size, "k", 1, version + 1);
            memcpy(buffer + cut, other + cut, size - cut);
            /* If the last word has only a few bytes, they may be equal in both versions; then nothing is torn. */
            far_value_fill(other, size, "k", 1, version);
            if (memcmp(buffer, other, size) != 0)
                assert_int_equal(far_value_check(buffer, size, "k", 1, NULL), 0);
            else
                assert_true(size - cut < 3);
        }
    }
}


/* A value that contains words of two versions is refused. */
TEST(a_value_torn_between_versions_is_found) {
    for_sizes(16, check_torn);
}


static void check_cut(uint8_t *buffer, size_t size) {
    far_value_fill(buffer, size + 8, "k", 1, 5);
    assert_int_equal(far_value_check(buffer, size, "k", 1, NULL), 0);
    far_value_fill(buffer, size, "k", 1, 5);
    assert_int_equal(far_value_check(buffer, size + 8, "k", 1, NULL), 0);
}


/* A value is refused if it is checked with another size than that with which it was made. */
TEST(a_value_of_another_size_is_refused) {
    for_sizes(8, check_cut);
}


static void check_versions_differ(uint8_t *buffer, size_t size) {
    uint8_t first[8192];
    far_value_fill(first, size, "k", 1, 1);
    far_value_fill(buffer, size, "k", 1, 2);
    for (size_t at = 0; at + 8 <= size; at += 8)
        assert_memory_not_equal(first + at, buffer + at, 8);
}


/* Each word of a value differs between two versions. */
TEST(every_word_changes_with_the_version) {
    for_sizes(8, check_versions_differ);
}


/* A hash of values equals a constant. */
TEST(values_are_the_same_on_every_machine) {
    uint8_t buffer[1000];
    uint64_t checksum = 0;
    for (size_t size = 0; size < 1000; size++) {
        far_value_fill(buffer, size, &size, sizeof size, size * 0x100000003ull);
        checksum = XXH64(buffer, size, checksum);
    }
    if (checksum != 0x271deccf409b7dd7ull)
        fail_msg("checksum 0x%llx", (unsigned long long)checksum);
}
