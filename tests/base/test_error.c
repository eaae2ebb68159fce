/* Error messages (base/error.h): one sentence per code, and one message per thread. */
#include "base/error.h"
#include "test.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>


/* far_strerror returns a different sentence for each error code. */
TEST(every_code_has_a_sentence_of_its_own) {
    for (int a = FAR_ERR_BUSY; a <= FAR_OK; a++) {
        assert_string_not_equal(far_strerror(a), "unknown error");
        assert_true(strlen(far_strerror(a)) > 0);
        for (int b = FAR_ERR_BUSY; b < a; b++)
            assert_string_not_equal(far_strerror(a), far_strerror(b));
    }
}


/* far_strerror returns "unknown error" for numbers that are no error codes. */
TEST(a_number_that_is_no_code_is_an_unknown_error) {
    const int strangers[] = {1, 2, FAR_ERR_BUSY - 1, -1000, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof strangers / sizeof strangers[0]; i++)
        assert_string_equal(far_strerror(strangers[i]), "unknown error");
}


/* Control characters and invalid UTF-8 do not get into a message, because names in it may come from far memory. */
TEST(messages_are_printable) {
    far_fail(FAR_ERR_INVALID, "'%s'", "a\n\033\xff\xc3\xa9");
    assert_string_equal(far_last_error(), "'a???\xc3\xa9'");
}


/* The numbers of the error codes are a part of the API and must not change. */
TEST(the_codes_have_the_agreed_numbers) {
    assert_int_equal(FAR_OK, 0);
    assert_int_equal(FAR_ERR_NOT_FOUND, -1);
    assert_int_equal(FAR_ERR_EXISTS, -2);
    assert_int_equal(FAR_ERR_INVALID, -3);
    assert_int_equal(FAR_ERR_TOO_SMALL, -4);
    assert_int_equal(FAR_ERR_NO_MEMORY, -5);
    assert_int_equal(FAR_ERR_UNREACHABLE, -6);
    assert_int_equal(FAR_ERR_FENCED, -7);
    assert_int_equal(FAR_ERR_UNSUPPORTED, -8);
    assert_int_equal(FAR_ERR_CORRUPT, -9);
    assert_int_equal(FAR_ERR_BUSY, -10);
}


/* far_version returns the version of the header. */
TEST(the_version_is_that_of_the_header) {
    char expected[64];
    snprintf(expected, sizeof expected, "%d.%d.%d", FAR_VERSION_MAJOR, FAR_VERSION_MINOR, FAR_VERSION_PATCH);
    assert_string_equal(far_version(), expected);
}


/* far_fail returns its code, and far_last_error returns the formatted message of the last failure. */
TEST(a_failure_returns_its_code_and_sets_its_message) {
    assert_int_equal(far_fail(FAR_ERR_INVALID, "key_len is %d, at most %d", 300, FAR_KEY_MAX), FAR_ERR_INVALID);
    assert_string_equal(far_last_error(), "key_len is 300, at most 256");
    assert_int_equal(far_fail(FAR_ERR_BUSY, "open"), FAR_ERR_BUSY);
    assert_string_equal(far_last_error(), "open");
}


/* After far_fail_clear the message is empty. */
TEST(a_cleared_message_is_empty) {
    far_fail(FAR_ERR_BUSY, "open");
    far_fail_clear();
    assert_string_equal(far_last_error(), "");
}


/* The arguments of far_fail may contain the current message. */
TEST(a_message_can_be_wrapped_in_another) {
    far_fail(FAR_ERR_INVALID, "rtt=2parsecs is no duration");
    far_fail(FAR_ERR_INVALID, "local:1G: %s (%s)", far_last_error(), "use us, ms or s");
    assert_string_equal(far_last_error(), "local:1G: rtt=2parsecs is no duration (use us, ms or s)");
}


/* A message that is too long is truncated to the buffer. */
TEST(a_long_message_is_cut_and_ends_with_nul) {
    char longest[2 * FAR_MESSAGE_BYTES];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    far_fail(FAR_ERR_INVALID, "%s", longest);
    assert_int_equal(strlen(far_last_error()), FAR_MESSAGE_BYTES - 1);
    assert_memory_equal(far_last_error(), longest, FAR_MESSAGE_BYTES - 1);
}


/* far_fail preserves errno. */
TEST(a_failure_keeps_errno) {
    errno = EXDEV;
    far_fail(FAR_ERR_INVALID, "%s", "anything");
    assert_int_equal(errno, EXDEV);
}


static void *fail_elsewhere(void *seen) {
    *(int *)seen = far_last_error()[0] == '\0';
    far_fail(FAR_ERR_CORRUPT, "of the other thread");
    *(int *)seen += strcmp(far_last_error(), "of the other thread") == 0;
    return NULL;
}


/* A failure in one thread does not change the message of another thread. */
TEST(every_thread_has_its_own_message) {
    pthread_t other;
    int seen = 0;
    far_fail(FAR_ERR_INVALID, "of this thread");
    assert_int_equal(pthread_create(&other, NULL, fail_elsewhere, &seen), 0);
    assert_int_equal(pthread_join(other, NULL), 0);
    assert_int_equal(seen, 2);
    assert_string_equal(far_last_error(), "of this thread");
}
