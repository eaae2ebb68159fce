/* Option lists of indexes, and the table of kinds. */
#include "base/error.h"
#include "index/index.h"
#include "pool/options.h"
#include "pool/report.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static const char *const colours[] = {"red", "green", NULL};
static const far_option_def own_options[] = {
    {"size", FAR_OPTION_NUMBER, 16, 4, 1 << 20, NULL, "how large"},
    {"fast", FAR_OPTION_BOOL, 1, 0, 1, NULL, "how fast"},
    {"colour", FAR_OPTION_CHOICE, 1, 0, 0, colours, "which colour"},
    {0},
};
static const far_index_kind kind = {.name = "sample", .options = own_options, .max_key = 4096};
static const far_index_kind plain = {.name = "plain"};


static void refuses(const far_index_kind *k, const char *text, const char *word) {
    int64_t values[FAR_OPTIONS_MAX];
    far_fail_clear();
    assert_int_equal(far_index_options_parse(k, text, values), FAR_ERR_INVALID);
    if (!strstr(far_last_error(), word))
        fail_msg("'%s': the message '%s' does not name '%s'", text, far_last_error(), word);
}


static void defaults_hold_when_nothing_is_said(void **state) {
    (void)state;
    int64_t values[FAR_OPTIONS_MAX];
    const char *nothing[] = {NULL, ""};
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(far_index_options_parse(&kind, nothing[i], values), 0);
        assert_int_equal(values[FAR_OPTION_KEY_SIZE], 0);
        assert_int_equal(values[FAR_OPTION_VALUE_SIZE], 0);
        assert_int_equal(values[FAR_OPTION_MAX_KEY], FAR_KEY_MAX);
        assert_int_equal(values[FAR_OPTIONS_COMMON], 16);
        assert_int_equal(values[FAR_OPTIONS_COMMON + 1], 1);
        assert_int_equal(values[FAR_OPTIONS_COMMON + 2], 1);
    }
}


static void every_type_of_option_is_read(void **state) {
    (void)state;
    int64_t values[FAR_OPTIONS_MAX];
    assert_int_equal(
        far_index_options_parse(&kind, "size=64K,fast=off,colour=red,key_size=8,value_size=65536,max_key=4096", values),
        0);
    assert_int_equal(values[FAR_OPTION_KEY_SIZE], 8);
    assert_int_equal(values[FAR_OPTION_VALUE_SIZE], 65536);
    assert_int_equal(values[FAR_OPTION_MAX_KEY], 4096);
    assert_int_equal(values[FAR_OPTIONS_COMMON], 65536);
    assert_int_equal(values[FAR_OPTIONS_COMMON + 1], 0);
    assert_int_equal(values[FAR_OPTIONS_COMMON + 2], 0);
}


static void a_bad_option_is_refused_by_its_name(void **state) {
    (void)state;
    refuses(&kind, "size=3", "size");
    refuses(&kind, "size=2M", "size");
    refuses(&kind, "size=-1", "size");
    refuses(&kind, "size=", "size");
    refuses(&kind, "fast=maybe", "fast");
    refuses(&kind, "colour=blue", "colour");
    refuses(&kind, "colour=blue", "red, green");
    refuses(&kind, "shape=round", "shape");
    refuses(&kind, "shape=round", "sample");
    refuses(&kind, "size=16,size=32", "size");
    refuses(&kind, "size", "size");
    refuses(&kind, "value_size=65537", "value_size");
    refuses(&kind, "max_key=8192", "max_key");
    refuses(&kind, "max_key=255", "max_key");
    refuses(&kind, "key_size=300", "key_size");
    refuses(&plain, "max_key=257", "max_key");
    refuses(&plain, "size=16", "size");
}


static void a_text_that_is_too_long_to_store_is_refused(void **state) {
    (void)state;
    char text[FAR_OPTIONS_TEXT_MAX + 2];
    memset(text, '0', sizeof(text) - 1);
    memcpy(text, "size=", 5);
    memcpy(text + sizeof(text) - 3, "16", 3);
    refuses(&kind, text, "options");
    int64_t values[FAR_OPTIONS_MAX];
    assert_int_equal(far_index_options_parse(&kind, "size=0000000000000016", values), 0);
    assert_int_equal(values[FAR_OPTIONS_COMMON], 16);
}


static void the_description_can_be_given_back_as_options(void **state) {
    (void)state;
    char text[FAR_OPTIONS_DESCRIPTION];
    int64_t given[FAR_OPTIONS_MAX], initial[FAR_OPTIONS_MAX];
    assert_int_equal(far_index_options_parse(&kind, NULL, initial), 0);
    far_index_options_describe(&kind, text, sizeof(text));
    unsigned lines = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        line[strcspn(line, " ")] = '\0';
        assert_int_equal(far_index_options_parse(&kind, line, given), 0);
        assert_memory_equal(given, initial, sizeof(given));
        lines++;
    }
    assert_int_equal(lines, FAR_OPTIONS_COMMON + 3);
}


static void a_description_is_cut_to_its_room(void **state) {
    (void)state;
    char text[64];
    memset(text, 'x', sizeof(text));
    far_index_options_describe(&kind, text, 40);
    assert_int_equal(strlen(text), 39);
    assert_int_equal(text[40], 'x');
}


static void kinds_are_found_by_name(void **state) {
    (void)state;
    for (unsigned i = 0; far_index_kinds[i]; i++)
        assert_ptr_equal(far_index_kind_named(far_index_kinds[i]->name), far_index_kinds[i]);
    assert_non_null(far_index_kind_named("toy"));
    assert_null(far_index_kind_named("to"));
    assert_null(far_index_kind_named("toys"));
    assert_null(far_index_kind_named(""));
}


static void the_toy_is_shown_only_while_there_is_nothing_better(void **state) {
    (void)state;
    unsigned better = 0;
    for (unsigned i = 0; far_index_kinds[i]; i++)
        better += !far_index_kinds[i]->hidden;
    assert_int_equal(far_index_kind_shown(far_index_kind_named("toy")), better == 0);
    far_index_kind shown = {.name = "shown"};
    assert_true(far_index_kind_shown(&shown));
}


static int stop_at_second(void *ctx, const char *what) {
    (void)what;
    return ++*(unsigned *)ctx == 2;
}


static void a_report_counts_all_and_tells_until_stopped(void **state) {
    (void)state;
    far_report report = {.about = "fruit"};
    for (unsigned i = 0; i < FAR_REPORT_KEPT + 5; i++)
        far_report_problem(&report, "leaf %u is bad", i);
    assert_int_equal(report.kept, FAR_REPORT_KEPT);
    assert_string_equal(report.lines[3], "fruit: leaf 3 is bad");
    unsigned told = 0;
    assert_int_equal(far_report_tell(&report, stop_at_second, &told), FAR_REPORT_KEPT + 5);
    assert_int_equal(told, 2);
    assert_int_equal(far_report_tell(&report, NULL, NULL), FAR_REPORT_KEPT + 5);
    far_report_free(&report);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_hold_when_nothing_is_said),
        cmocka_unit_test(every_type_of_option_is_read),
        cmocka_unit_test(a_bad_option_is_refused_by_its_name),
        cmocka_unit_test(a_text_that_is_too_long_to_store_is_refused),
        cmocka_unit_test(the_description_can_be_given_back_as_options),
        cmocka_unit_test(a_description_is_cut_to_its_room),
        cmocka_unit_test(kinds_are_found_by_name),
        cmocka_unit_test(the_toy_is_shown_only_while_there_is_nothing_better),
        cmocka_unit_test(a_report_counts_all_and_tells_until_stopped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
