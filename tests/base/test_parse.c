/* Parsers of base/parse.h: accepted texts with their values, and refused texts with their messages. */
#include <stdint.h>

#include "base/parse.h"
#include "farindex.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

typedef int (*number_parser)(const char *text, uint64_t *value, char *error, size_t error_size);


/* Asserts that the text is parsed as this number. */
static void assert_parses(number_parser parse, const char *text, uint64_t want) {
    uint64_t got = ~want;
    char error[100] = "";
    if (parse(text, &got, error, sizeof error) != FAR_OK)
        fail_msg("'%s': %s", text, error);
    assert_true(got == want);
}


/* Asserts that the text is refused with a message that contains these words, and that the result is not changed. */
static void assert_refused(number_parser parse, const char *text, const char *words) {
    uint64_t got = 12345;
    char error[100] = "";
    assert_int_equal(parse(text, &got, error, sizeof error), FAR_ERR_INVALID);
    assert_int_equal(got, 12345);
    if (!strstr(error, words))
        fail_msg("'%s' does not say '%s'", error, words);
}


/* Whole numbers are parsed up to 2^64 - 1. Signs, spaces, units and other bases are refused. */
TEST(numbers_are_read_up_to_64_bits) {
    assert_parses(far_parse_number, "0", 0);
    assert_parses(far_parse_number, "007", 7);
    assert_parses(far_parse_number, "18446744073709551615", UINT64_MAX);
    assert_refused(far_parse_number, "18446744073709551616", "too large");
    assert_refused(far_parse_number, "99999999999999999999", "too large");
    assert_refused(far_parse_number, "", "'' is not a whole number");
    assert_refused(far_parse_number, "-1", "'-1' is not");
    assert_refused(far_parse_number, "+1", "is not");
    assert_refused(far_parse_number, " 1", "is not");
    assert_refused(far_parse_number, "1 ", "is not");
    assert_refused(far_parse_number, "1K", "is not");
    assert_refused(far_parse_number, "0x10", "is not");
    assert_refused(far_parse_number, NULL, "missing");
}


/* In counts, K, M and G are powers of 1000. */
TEST(counts_take_powers_of_1000) {
    assert_parses(far_parse_count, "0", 0);
    assert_parses(far_parse_count, "1000", 1000);
    assert_parses(far_parse_count, "200K", 200000);
    assert_parses(far_parse_count, "10m", 10000000);
    assert_parses(far_parse_count, "3G", 3000000000u);
    assert_refused(far_parse_count, "1T", "1T");
    assert_refused(far_parse_count, "K", "K");
    assert_refused(far_parse_count, "1.5K", "1.5K");
    assert_refused(far_parse_count, "99999999999999G", "too large");
}


/* In sizes, K, M, G and T are powers of 1024. */
TEST(sizes_take_powers_of_1024) {
    assert_parses(far_parse_size, "512", 512);
    assert_parses(far_parse_size, "64K", 65536);
    assert_parses(far_parse_size, "64k", 65536);
    assert_parses(far_parse_size, "3M", 3 << 20);
    assert_parses(far_parse_size, "4G", 4ull << 30);
    assert_parses(far_parse_size, "2T", 2ull << 40);
    assert_parses(far_parse_size, "16777215T", 16777215ull << 40);
    assert_refused(far_parse_size, "16777216T", "too large");
    assert_refused(far_parse_size, "18446744073709551615K", "too large");
    assert_refused(far_parse_size, "1.5G", "'1.5G' is not a size");
    assert_refused(far_parse_size, "G", "is not a size");
    assert_refused(far_parse_size, "4GB", "is not a size");
    assert_refused(far_parse_size, "-4G", "is not a size");
    assert_refused(far_parse_size, NULL, "missing size");
}


/* Durations with ns, us, ms or s are converted to nanoseconds. A duration without a unit is refused, except 0. */
TEST(durations_are_nanoseconds) {
    assert_parses(far_parse_duration, "100ns", 100);
    assert_parses(far_parse_duration, "2us", 2000);
    assert_parses(far_parse_duration, "5ms", 5000000);
    assert_parses(far_parse_duration, "3s", 3000000000ull);
    assert_parses(far_parse_duration, "0", 0);
    assert_parses(far_parse_duration, "18446744073s", 18446744073000000000ull);
    assert_refused(far_parse_duration, "18446744074s", "too large");
    assert_refused(far_parse_duration, "5", "'5' is not a duration");
    assert_refused(far_parse_duration, "5m", "is not a duration");
    assert_refused(far_parse_duration, "ms", "is not a duration");
    assert_refused(far_parse_duration, NULL, "missing");
}


/* Decimal numbers of up to 15 digits have exactly the value that the compiler gives them. */
TEST(decimals_are_read_exactly_as_the_compiler_reads_them) {
    static const struct {
        const char *text;
        double value;
    } good[] = {{"0.99", 0.99},
                {"0", 0},
                {"1", 1},
                {".5", .5},
                {"2.", 2.},
                {"0.1", 0.1},
                {"123456.789012345", 123456.789012345}};
    static const char *const bad[] = {"", ".", "1.2.3", "-1", "1e3", "nan", "0,99", "0.9999999999999999", NULL};
    double got = 7;
    char error[100];
    for (int i = 0; i < 7; i++) {
        assert_int_equal(far_parse_decimal(good[i].text, &got, NULL, 0), FAR_OK);
        assert_true(got == good[i].value);
    }
    got = 7;
    for (int i = 0; i < 9; i++)
        assert_int_equal(far_parse_decimal(bad[i], &got, error, sizeof error), FAR_ERR_INVALID);
    assert_true(got == 7);
}


/* A switch is "on", "off", "1" or "0". */
TEST(switches_are_on_or_off) {
    int on = 7;
    char error[100] = "";
    assert_int_equal(far_parse_switch("on", &on, NULL, 0), FAR_OK);
    assert_int_equal(on, 1);
    assert_int_equal(far_parse_switch("0", &on, NULL, 0), FAR_OK);
    assert_int_equal(on, 0);
    assert_int_equal(far_parse_switch("1", &on, NULL, 0), FAR_OK);
    assert_int_equal(on, 1);
    assert_int_equal(far_parse_switch("off", &on, NULL, 0), FAR_OK);
    assert_int_equal(on, 0);
    assert_int_equal(far_parse_switch("yes", &on, error, sizeof error), FAR_ERR_INVALID);
    assert_string_equal(error, "'yes' is neither on nor off");
    assert_int_equal(far_parse_switch(NULL, &on, error, sizeof error), FAR_ERR_INVALID);
}


/* A range is "A..B" with A <= B, or one number. */
TEST(ranges_have_two_ends_or_one) {
    static const char *const bad[] = {
        "", "..", "1..", "..2", "1.2", "1...2", "1..2..3", "a..b", "1-2", "5..4", "1..99999999999999999999", NULL};
    uint64_t first = 0, last = 0;
    char error[100] = "";
    assert_int_equal(far_parse_range("1..100", &first, &last, NULL, 0), FAR_OK);
    assert_true(first == 1 && last == 100);
    assert_int_equal(far_parse_range("17", &first, &last, NULL, 0), FAR_OK);
    assert_true(first == 17 && last == 17);
    assert_int_equal(far_parse_range("0..18446744073709551615", &first, &last, NULL, 0), FAR_OK);
    assert_true(first == 0 && last == UINT64_MAX);
    for (int i = 0; i < 12; i++)
        assert_int_equal(far_parse_range(bad[i], &first, &last, error, sizeof error), FAR_ERR_INVALID);
    assert_true(first == 0 && last == UINT64_MAX);
    far_parse_range("5..4", &first, &last, error, sizeof error);
    assert_string_equal(error, "'5..4' ends before it begins");
}


/* An option list returns its names and values in their order. */
TEST(option_lists_give_names_and_values_in_order) {
    far_option_list list;
    far_options_begin(&list, "key_size=8,value_size=16,mode=a=b", ',');
    assert_int_equal(far_options_next(&list, NULL, 0), 1);
    assert_string_equal(list.name, "key_size");
    assert_string_equal(list.value, "8");
    assert_int_equal(far_options_next(&list, NULL, 0), 1);
    assert_string_equal(list.name, "value_size");
    assert_string_equal(list.value, "16");
    assert_int_equal(far_options_next(&list, NULL, 0), 1);
    assert_string_equal(list.name, "mode");
    assert_string_equal(list.value, "a=b");
    assert_int_equal(far_options_next(&list, NULL, 0), 0);
    assert_int_equal(far_options_next(&list, NULL, 0), 0);
    far_options_begin(&list, "size=4G&nodes=1", '&');
    assert_int_equal(far_options_next(&list, NULL, 0), 1);
    assert_string_equal(list.value, "4G");
    assert_int_equal(far_options_next(&list, NULL, 0), 1);
    assert_int_equal(far_options_next(&list, NULL, 0), 0);
    far_options_begin(&list, "ab=1,a=2", ','); /* the name "a" must not count as a repetition of "ab" */
    assert_int_equal(far_options_next(&list, NULL, 0), 1);
    assert_int_equal(far_options_next(&list, NULL, 0), 1);
    assert_string_equal(list.name, "a");
    far_options_begin(&list, NULL, ',');
    assert_int_equal(far_options_next(&list, NULL, 0), 0);
    far_options_begin(&list, "", ',');
    assert_int_equal(far_options_next(&list, NULL, 0), 0);
}


/* Asserts that the list is refused after `good` options, with a message that contains these words. */
static void assert_list_refused(const char *text, int good, const char *words) {
    far_option_list list;
    char error[200] = "";
    far_options_begin(&list, text, ',');
    for (int i = 0; i < good; i++)
        assert_int_equal(far_options_next(&list, error, sizeof error), 1);
    assert_int_equal(far_options_next(&list, error, sizeof error), FAR_ERR_INVALID);
    assert_int_equal(far_options_next(&list, error, sizeof error), FAR_ERR_INVALID); /* the error is permanent */
    if (!strstr(error, words))
        fail_msg("'%s' does not say '%s'", error, words);
}


/* Options without a name, without a value, without "=", or with a repeated name are refused. */
TEST(malformed_option_lists_are_refused) {
    char wide[FAR_OPTION_VALUE_MAX + 100];
    assert_list_refused("a", 0, "'a' is not of the form");
    assert_list_refused("a=1,b,c=2", 1, "'b' is not of the form");
    assert_list_refused(",", 0, "'' is not");
    assert_list_refused("a=1,", 1, "'' is not");
    assert_list_refused("a=1,,b=2", 1, "'' is not");
    assert_list_refused("=1", 0, "without a name");
    assert_list_refused("a=", 0, "'a' has no value");
    assert_list_refused("a=1,ab=2,a=3", 2, "'a' is given twice");
    memset(wide, 'x', sizeof wide);
    wide[sizeof wide - 1] = '\0';
    memcpy(wide, "a=", 2);
    assert_list_refused(wide, 0, "value of option 'a' is too long");
    memset(wide, 'x', 2);
    wide[FAR_OPTION_NAME_MAX + 1] = '=';
    assert_list_refused(wide, 0, "name");
}


/* The longest allowed name and value are accepted. */
TEST(the_longest_option_fits) {
    char wide[FAR_OPTION_NAME_MAX + 1 + FAR_OPTION_VALUE_MAX + 1];
    far_option_list list;
    memset(wide, 'x', sizeof wide);
    wide[FAR_OPTION_NAME_MAX] = '=';
    wide[sizeof wide - 1] = '\0';
    far_options_begin(&list, wide, ',');
    assert_int_equal(far_options_next(&list, NULL, 0), 1);
    assert_int_equal(strlen(list.name), FAR_OPTION_NAME_MAX);
    assert_int_equal(strlen(list.value), FAR_OPTION_VALUE_MAX);
}


/* Sizes are formatted with a unit and at most one decimal place. */
TEST(sizes_are_formatted_for_users) {
    static const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {{0, "0"},
                 {1023, "1023"},
                 {1024, "1K"},
                 {1536, "1.5K"},
                 {65536, "64K"},
                 {(1 << 20) - 1, "1M"},
                 {1047552, "1023K"},
                 {1048525, "1M"},
                 {1048000, "1023.4K"},
                 {3ull << 29, "1.5G"},
                 {4ull << 30, "4G"},
                 {5ull << 40, "5T"},
                 {UINT64_MAX, "16E"},
                 {1ull << 60, "1E"},
                 {(1ull << 60) - 1, "1E"}};
    char text[FAR_SIZE_TEXT];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_string_equal(far_format_size(cases[i].bytes, text), cases[i].text);
}


/* A message that is longer than the buffer is truncated. */
TEST(long_messages_are_cut_to_the_buffer) {
    char error[10];
    memset(error, 'x', sizeof error);
    assert_int_equal(far_refuse(error, 5, "%s", "abcdefgh"), FAR_ERR_INVALID);
    assert_string_equal(error, "abcd");
    assert_int_equal(error[5], 'x');
    assert_int_equal(far_refuse(NULL, 0, "x"), FAR_ERR_INVALID);
    assert_int_equal(far_refuse(error, 0, "y"), FAR_ERR_INVALID);
    assert_string_equal(error, "abcd");
}
