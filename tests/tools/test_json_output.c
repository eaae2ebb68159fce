/* The form of the JSON that the programs print (tools/common/json_output.h): which text, counts and numbers are exact,
 * and how values are printed that JSON or jansson cannot represent. */
#include "test.h"
#include "tools/common/json_output.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>


/* Prints the value with cli_json_print and compares the whole line. */
static void assert_printed(json_t *value, const char *expected) {
    char *text = NULL;
    size_t size;
    FILE *file = open_memstream(&text, &size);
    assert_non_null(file);
    cli_json_print(file, value);
    fclose(file);
    assert_string_equal(text, expected);
    free(text);
}


/* Text that is not valid UTF-8 becomes one character for each byte, so that no name can make the output fail. Fails
 * without map_bytes_to_characters. */
TEST(text_that_is_not_utf8_keeps_its_bytes) {
    assert_printed(cli_json_text("plain \"text\" \\"), "\"plain \\\"text\\\" \\\\\"\n");
    assert_printed(cli_json_text("gr\303\274n"), "\"gr\\u00FCn\"\n");
    assert_printed(cli_json_text("a\377\200b"), "\"a\\u00FF\\u0080b\"\n");
    assert_printed(cli_json_text("\300\257"), "\"\\u00C0\\u00AF\"\n"); /* '/' in two bytes, which UTF-8 forbids */
    assert_printed(cli_json_text(NULL), "null\n");
}


/* A count is never rounded: every value up to INT64_MAX is an integer, and every larger one a string with all digits.
 */
TEST(counts_are_exact) {
    assert_printed(cli_json_count(0), "0\n");
    assert_printed(cli_json_count((1ull << 53) + 1), "9007199254740993\n");
    assert_printed(cli_json_count(INT64_MAX), "9223372036854775807\n");
    assert_printed(cli_json_count(UINT64_MAX), "\"18446744073709551615\"\n");
}


/* JSON has no infinity and no NaN, so both are null. */
TEST(numbers_that_are_not_finite_are_null) {
    assert_printed(cli_json_number(NAN), "null\n");
    assert_printed(cli_json_number(-INFINITY), "null\n");
    assert_printed(cli_json_number(0.125), "0.125\n");
    assert_printed(cli_json_number(1.0 / 3), "0.333333\n");
}


/* A list is complete JSON with no item, with one and with several. */
TEST(a_list_is_one_array) {
    for (uint64_t items = 0; items < 4; items++) {
        char *text = NULL;
        size_t size;
        FILE *file = open_memstream(&text, &size);
        assert_non_null(file);
        cli_json_list list = {.file = file};
        for (uint64_t i = 0; i < items; i++)
            cli_json_list_add(&list, cli_json_count(i));
        cli_json_list_end(&list);
        fclose(file);
        json_t *read = json_loads(text, 0, NULL);
        assert_int_equal(json_array_size(read), items);
        json_decref(read);
        free(text);
    }
}
