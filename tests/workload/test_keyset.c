/* Key sets: different records have different keys, and keys have the form that their set promises. */
#include <stdint.h>

#include "farindex.h"
#include "test.h"
#include "workload/keyset.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#define MILLION 1000000u

typedef struct key {
    uint8_t len, bytes[40];
} key;


static far_keyset *open_set(const char *spec, uint64_t seed) {
    far_keyset *set = NULL;
    char error[200] = "";
    int result = far_keyset_open(spec, seed, &set, error, sizeof error);
    if (result != FAR_OK)
        fail_msg("%s: %s", spec, error);
    return set;
}


static key key_of(const far_keyset *set, uint64_t record) {
    uint8_t buffer[FAR_KEY_MAX];
    key k = {0};
    size_t len = far_keyset_key(set, record, buffer);
    assert_in_range(len, 1, sizeof k.bytes);
    memcpy(k.bytes, buffer, len);
    k.len = (uint8_t)len;
    return k;
}


static int compare_keys(const void *a, const void *b) {
    return memcmp(a, b, sizeof(key));
}


/* The keys so far, by their hashes. Hashes of 64 bits do not collide by chance among a few million keys. */
typedef struct met {
    uint64_t places, *table;
} met;


static met met_none(uint64_t places) {
    met m = {places, calloc(places, sizeof(uint64_t))};
    assert_non_null(m.table);
    return m;
}


static void assert_new(met *m, const far_keyset *set, uint64_t record) {
    uint8_t buffer[FAR_KEY_MAX];
    uint64_t hash = XXH3_64bits(buffer, far_keyset_key(set, record, buffer)), place = hash % m->places;
    for (; m->table[place] != 0; place = (place + 1) % m->places)
        if (m->table[place] == hash)
            fail_msg("%s: the key of record %llu occurred before", far_keyset_name(set), (unsigned long long)record);
    m->table[place] = hash;
}


static void assert_first_are_unique(const char *spec, uint64_t seed, uint64_t count) {
    far_keyset *set = open_set(spec, seed);
    met m = met_none(count * 2);
    for (uint64_t i = 0; i < count; i++)
        assert_new(&m, set, i);
    free(m.table);
    far_keyset_close(set);
}


/* The keys of a million records differ. */
TEST(u64_keys_are_unique_over_a_million_records) {
    assert_first_are_unique("u64", 1, MILLION);
    assert_first_are_unique("u64", 0, MILLION);
}


/* The keys of a million records differ. */
TEST(email_keys_are_unique_over_a_million_records) {
    assert_first_are_unique("email", 1, MILLION);
    assert_first_are_unique("email", 77, MILLION);
}


/* The keys of a million records differ. */
TEST(prefix_keys_are_unique_over_a_million_records) {
    assert_first_are_unique("prefix", 1, MILLION);
    assert_first_are_unique("prefix", 2, MILLION);
}


/* Addresses differ also where the high bits of the record number change. */
TEST(email_keys_are_unique_over_a_whole_block_and_into_the_next) {
    assert_first_are_unique("email", 3, (1u << 24) + (1u << 16));
}


/* Keys of records with very different numbers differ. */
TEST(keys_of_records_far_apart_are_unique) {
    static const char *const specs[] = {"u64", "seq", "email", "prefix"};
    for (int s = 0; s < 4; s++) {
        far_keyset *set = open_set(specs[s], 5);
        uint64_t limit = far_keyset_count_limit(set), step = limit / 50000;
        met m = met_none(200000);
        for (uint32_t i = 0; i < 50000; i++) {
            assert_new(&m, set, i * step);
            assert_new(&m, set, limit - 1 - i);
        }
        free(m.table);
        far_keyset_close(set);
    }
}


/* Each value of the first byte of a u64 key is about equally frequent. */
TEST(u64_keys_are_spread_evenly) {
    far_keyset *set = open_set("u64", 9);
    uint32_t first[256] = {0}, last[256] = {0};
    for (uint32_t i = 0; i < MILLION; i++) {
        key k = key_of(set, i);
        assert_int_equal(k.len, 8);
        first[k.bytes[0]]++;
        last[k.bytes[7]]++;
    }
    for (int i = 0; i < 256; i++) { /* 3906 expected, deviation 62 */
        assert_in_range(first[i], 3550, 4260);
        assert_in_range(last[i], 3550, 4260);
    }
    far_keyset_close(set);
}


/* A seq key is the record number, so keys are sorted by record. */
TEST(seq_keys_are_big_endian_record_numbers) {
    far_keyset *set = open_set("seq", 4);
    key k = key_of(set, 0x0102030405060708ull);
    assert_int_equal(k.len, 8);
    assert_memory_equal(k.bytes, "\1\2\3\4\5\6\7\10", 8);
    assert_int_equal(far_keyset_fixed_size(set), 8);
    far_keyset_close(set);
}


/* u64:SIZE and seq:SIZE give keys of this size. */
TEST(keys_of_numbers_have_the_size_that_is_asked_for) {
    static const char *const wrong[] = {"u64:7", "u64:257", "seq:", "u64:8x", "email:20", "prefix:9"};
    uint8_t plain[FAR_KEY_MAX], sized[FAR_KEY_MAX];
    char error[160];
    far_keyset *short_set, *set;
    assert_first_are_unique("u64:9", 1, 1000);
    assert_first_are_unique("seq:256", 1, 1000);
    assert_int_equal(far_keyset_open("u64", 5, &short_set, NULL, 0), FAR_OK);
    assert_int_equal(far_keyset_open("u64:27", 5, &set, NULL, 0), FAR_OK);
    assert_int_equal(far_keyset_fixed_size(set), 27);
    assert_int_equal(far_keyset_key(short_set, 77, plain), 8);
    assert_int_equal(far_keyset_key(set, 77, sized), 27);
    assert_memory_equal(plain, sized, 8);
    assert_memory_not_equal(sized, sized + 8, 8);
    far_keyset_close(short_set);
    far_keyset_close(set);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(far_keyset_open(wrong[i], 1, &set, error, sizeof error), FAR_ERR_INVALID);
}


/* Addresses have a domain, '@' and a user part, and the most frequent domain has its share. */
TEST(email_keys_look_like_addresses_with_the_domain_first) {
    far_keyset *set = open_set("email", 1);
    uint64_t total = 0, gmail = 0, com = 0;
    for (uint32_t i = 0; i < MILLION; i++) {
        key k = key_of(set, i);
        const uint8_t *at = memchr(k.bytes, '@', k.len), *dot = memchr(k.bytes, '.', k.len);
        assert_in_range(k.len, 2, 32);
        assert_non_null(at);
        assert_true(dot && dot < at);
        assert_true(at + 1 < k.bytes + k.len);
        assert_null(memchr(at + 1, '@', (size_t)(k.bytes + k.len - at - 1)));
        total += k.len;
        gmail += k.len > 10 && memcmp(k.bytes, "com.gmail@", 10) == 0;
        com += memcmp(k.bytes, "com.", 4) == 0;
    }
    assert_in_range(total, 17 * MILLION, 19 * MILLION);
    assert_in_range(gmail, MILLION / 100 * 11, MILLION / 100 * 13); /* 1 / H(2000) = 12.2 % */
    assert_in_range(com, MILLION / 100 * 40, MILLION / 100 * 70);
    far_keyset_close(set);
}


/* The addresses of the largest record numbers have at most 32 bytes. */
TEST(email_keys_of_the_last_records_stay_within_32_bytes) {
    far_keyset *set = open_set("email", 1);
    uint64_t limit = far_keyset_count_limit(set);
    size_t longest = 0;
    for (uint64_t i = 1; i <= MILLION; i++) {
        size_t len = key_of(set, limit - i).len;
        longest = len > longest ? len : longest;
    }
    assert_in_range(longest, 29, 32);
    far_keyset_close(set);
}


/* Keys of the set `prefix` contain NULs and are prefixes of other keys. */
TEST(prefix_keys_hold_nuls_and_are_prefixes_of_each_other) {
    enum { COUNT = 1000 };
    far_keyset *set = open_set("prefix", 1);
    key *keys = malloc(COUNT * sizeof *keys);
    int with_prefix = 0, inner_nul = 0, lengths[41] = {0};
    assert_non_null(keys);
    for (int i = 0; i < COUNT; i++) {
        keys[i] = key_of(set, (uint64_t)i);
        assert_in_range(keys[i].len, 1, 40);
        lengths[keys[i].len]++;
        const uint8_t *nul = memchr(keys[i].bytes, 0, keys[i].len);
        inner_nul += nul && keys[i].bytes[keys[i].len - 1] != 0;
    }
    for (int i = 0; i < COUNT; i++) {
        int found = 0;
        for (int j = 0; j < COUNT && !found; j++)
            found = keys[j].len < keys[i].len && memcmp(keys[j].bytes, keys[i].bytes, keys[j].len) == 0;
        with_prefix += found;
    }
    assert_true(with_prefix > COUNT * 9 / 10);
    assert_true(inner_nul > 20);
    assert_true(lengths[1] > 0 && lengths[2] > 0 && lengths[3] > 0 && lengths[32] + lengths[33] + lengths[34] > 0);
    free(keys);
    far_keyset_close(set);
}


/* Keys depend on the seed and on nothing else. */
TEST(seeds_give_other_keys_and_the_same_seed_the_same) {
    static const char *const specs[] = {"u64", "email"};
    for (int s = 0; s < 2; s++) {
        far_keyset *one = open_set(specs[s], 1), *again = open_set(specs[s], 1), *two = open_set(specs[s], 2);
        int same = 0;
        for (uint32_t i = 0; i < 1000; i++) {
            key a = key_of(one, i), b = key_of(again, i), c = key_of(two, i);
            assert_int_equal(compare_keys(&a, &b), 0);
            same += compare_keys(&a, &c) == 0;
        }
        assert_in_range(same, 0, 5);
        far_keyset_close(one);
        far_keyset_close(again);
        far_keyset_close(two);
    }
}


/* A hash of the first thousand keys equals a constant. */
TEST(first_thousand_keys_are_the_same_on_every_machine) {
    static const struct {
        const char *spec;
        uint64_t checksum;
    } golden[] = {{"u64", 0x18b2e1ddc444d2e2ull},
                  {"seq", 0xeb7d1e6949474a5aull},
                  {"email", 0xb075a7b03a32f22dull},
                  {"prefix", 0xc2e8c11c283ef5c3ull}};
    for (int s = 0; s < 4; s++) {
        far_keyset *set = open_set(golden[s].spec, 42);
        uint64_t checksum = 0;
        for (uint32_t i = 0; i < 1000; i++) {
            key k = key_of(set, i);
            checksum = XXH64(k.bytes, k.len, checksum);
        }
        if (checksum != golden[s].checksum)
            fail_msg("%s: checksum 0x%llx", golden[s].spec, (unsigned long long)checksum);
        far_keyset_close(set);
    }
}


/* Opens a key file with the given content; the message of a refusal is written to `error`. */
static int open_content(const char *content, size_t len, far_keyset **set, char *error, size_t error_size) {
    char path[] = "/tmp/farindex-keys-XXXXXX", spec[64];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, content, len), (ssize_t)len);
    close(fd);
    snprintf(spec, sizeof spec, "file:%s", path);
    int result = far_keyset_open(spec, 1, set, error, error_size);
    unlink(path);
    return result;
}


/* The keys of a file are its lines in their order. */
TEST(a_file_gives_its_lines_in_order) {
    static const char content[] = "one\ntwo\0two\n three \nfour";
    far_keyset *set = NULL;
    assert_int_equal(open_content(content, sizeof content - 1, &set, NULL, 0), FAR_OK);
    assert_int_equal(far_keyset_count_limit(set), 4);
    assert_int_equal(far_keyset_fixed_size(set), 0);
    key k = key_of(set, 0);
    assert_true(k.len == 3 && memcmp(k.bytes, "one", 3) == 0);
    k = key_of(set, 1);
    assert_true(k.len == 7 && memcmp(k.bytes, "two\0two", 7) == 0);
    k = key_of(set, 2);
    assert_true(k.len == 7 && memcmp(k.bytes, " three ", 7) == 0);
    k = key_of(set, 3);
    assert_true(k.len == 4 && memcmp(k.bytes, "four", 4) == 0);
    far_keyset_close(set);
}


/* Each line of a large file is a key. */
TEST(a_large_file_is_read_whole) {
    enum { LINES = 200000 };
    char *content = malloc(LINES * 8);
    far_keyset *set = NULL;
    uint8_t buffer[FAR_KEY_MAX];
    size_t len = 0;
    assert_non_null(content);
    for (int i = 0; i < LINES; i++)
        len += (size_t)sprintf(content + len, "%d\n", i);
    assert_int_equal(open_content(content, len, &set, NULL, 0), FAR_OK);
    assert_int_equal(far_keyset_count_limit(set), LINES);
    assert_int_equal(far_keyset_key(set, 199999, buffer), 6);
    assert_memory_equal(buffer, "199999", 6);
    far_keyset_close(set);
    free(content);
}


static void assert_content_refused(const char *content, size_t len, const char *words) {
    far_keyset *set = NULL;
    char error[200] = "";
    assert_int_equal(open_content(content, len, &set, error, sizeof error), FAR_ERR_INVALID);
    assert_null(set);
    if (!strstr(error, words))
        fail_msg("'%s' does not say '%s'", error, words);
}


/* An empty, repeated or too long line is refused, and the message contains its number. */
TEST(a_bad_line_is_refused_with_its_number) {
    char wide[2 * FAR_KEY_MAX];
    far_keyset *set = NULL;
    assert_content_refused("", 0, "is empty");
    assert_content_refused("\n", 1, "line 1 is empty");
    assert_content_refused("a\nb\n\nc\n", 7, "line 3 is empty");
    assert_content_refused("a\nb\nab\nb\n", 9, "line 4 repeats line 2");
    assert_content_refused("a\nb\na", 5, "line 3 repeats line 1");
    memset(wide, 'x', sizeof wide);
    memcpy(wide, "a\n", 2);
    assert_content_refused(wide, 2 + FAR_KEY_MAX + 1, "line 2 has 257 bytes");
    assert_int_equal(open_content(wide, 2 + FAR_KEY_MAX, &set, NULL, 0), FAR_OK);
    far_keyset_close(set);
}


/* Unknown key sets and missing files return an error and a message. */
TEST(unknown_sets_and_files_are_refused) {
    far_keyset *set = NULL;
    char error[200] = "";
    assert_int_equal(far_keyset_open("u32", 1, &set, error, sizeof error), FAR_ERR_INVALID);
    assert_non_null(strstr(error, "'u32'"));
    assert_int_equal(far_keyset_open(NULL, 1, &set, NULL, 0), FAR_ERR_INVALID);
    assert_int_equal(far_keyset_open("file:", 1, &set, error, sizeof error), FAR_ERR_INVALID);
    assert_int_equal(far_keyset_open("file:/nonexistent/keys", 1, &set, error, sizeof error), FAR_ERR_NOT_FOUND);
    assert_non_null(strstr(error, "/nonexistent/keys"));
    assert_int_equal(far_keyset_open("file:/tmp", 1, &set, error, sizeof error), FAR_ERR_NOT_FOUND);
    assert_null(set);
    far_keyset_close(NULL);
}
