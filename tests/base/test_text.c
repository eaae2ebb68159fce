/* Text from other processes (base/text.h): only characters that do not control a terminal are printed. */
#include "base/text.h"
#include "test.h"

#include <string.h>


static size_t printable(const char *text) {
    return far_printable_bytes(text, strlen(text));
}


/* Each character of valid UTF-8 is printable as a whole, except control characters. */
TEST(printable_characters_are_recognized) {
    assert_int_equal(printable("a"), 1);
    assert_int_equal(printable("\xc3\xa9"), 2);         /* U+00E9 */
    assert_int_equal(printable("\xc2\xa0"), 2);         /* U+00A0, the first character after C1 */
    assert_int_equal(printable("\xe2\x82\xac"), 3);     /* U+20AC */
    assert_int_equal(printable("\xf0\x9f\x98\x80"), 4); /* U+1F600 */
    assert_int_equal(printable(""), 0);
    assert_int_equal(printable("\n"), 0);
    assert_int_equal(printable("\033[31m"), 0);
    assert_int_equal(printable("\x7f"), 0);
    assert_int_equal(printable("\xc2\x80"), 0); /* C1 */
    assert_int_equal(printable("\xc2\x9b"), 0); /* C1: control sequence introducer */
    assert_int_equal(printable("\xc2\x9f"), 0);
}


/* Bytes that are no UTF-8 are not printed: a lone byte, a cut character, a longer form than needed, a surrogate, and a
 * number beyond the last character. */
TEST(invalid_characters_are_refused) {
    static const char *const invalid[] = {"\x80",
                                          "\x9b",
                                          "\xff",
                                          "\xc3",
                                          "\xc3(",
                                          "\xe2\x82",
                                          "\xc0\x8a",
                                          "\xe0\x80\x8a",
                                          "\xed\xa0\x80",
                                          "\xf4\x90\x80\x80",
                                          "\xf8\x88\x80\x80\x80"};
    for (size_t i = 0; i < sizeof(invalid) / sizeof(invalid[0]); i++)
        assert_int_equal(printable(invalid[i]), 0);
}


TEST(text_is_made_printable_and_shortened) {
    char name[] = "a\tb\xc2\x9b\xff\xc3\xa9";
    far_make_printable(name);
    assert_string_equal(name, "a?b???\xc3\xa9");
    far_shorten_text(name, 7); /* in the middle of the last character */
    assert_string_equal(name, "a?b???");
    far_shorten_text(name, 6);
    assert_string_equal(name, "a?b???");
    far_shorten_text(name, 0);
    assert_string_equal(name, "");
}
