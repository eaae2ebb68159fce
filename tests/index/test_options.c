/* Parsing and describing the options of indexes, the table of kinds, and the reports of checks. */
#include "base/error.h"
#include "index/index.h"
#include "pool/catalog/options.h"
#include "pool/catalog/private_options.h"
#include "pool/report.h"
#include "test.h"

#include <stdio.h>
#include <string.h>

static const char *const colours[] = {"red", "green", NULL};
static const far_option_def own_options[] = {
    {"size", FAR_OPTION_NUMBER, 16, 4, 1 << 20, NULL, "how large"},
    {"fast", FAR_OPTION_BOOL, 1, 0, 1, NULL, "how fast"},
    {"colour", FAR_OPTION_CHOICE, 1, 0, 0, colours, "which colour"},
    {0},
};
static const far_index_kind kind = {.name = "sample", .options = own_options, .max_key = 4096};
static const far_index_kind plain = {.name = "plain"};


static void assert_refused(const far_index_kind *k, const char *text, const char *word) {
    int64_t values[FAR_OPTIONS_MAX];
    far_fail_clear();
    assert_int_equal(far_index_options_parse(k, text, values), FAR_ERR_INVALID);
    if (!strstr(far_last_error(), word))
        fail_msg("'%s': the message '%s' does not name '%s'", text, far_last_error(), word);
}


TEST(defaults_apply_without_options) {
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


TEST(every_type_of_option_is_read) {
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


TEST(a_bad_option_is_refused_by_its_name) {
    assert_refused(&kind, "size=3", "size");
    assert_refused(&kind, "size=2M", "size");
    assert_refused(&kind, "size=-1", "size");
    assert_refused(&kind, "size=", "size");
    assert_refused(&kind, "fast=maybe", "fast");
    assert_refused(&kind, "colour=blue", "colour");
    assert_refused(&kind, "colour=blue", "red, green");
    assert_refused(&kind, "shape=round", "shape");
    assert_refused(&kind, "shape=round", "sample");
    assert_refused(&kind, "size=16,size=32", "size");
    assert_refused(&kind, "size", "size");
    assert_refused(&kind, "value_size=65537", "value_size");
    assert_refused(&kind, "max_key=8192", "max_key");
    assert_refused(&kind, "max_key=255", "max_key");
    assert_refused(&kind, "key_size=300", "key_size");
    assert_refused(&plain, "max_key=257", "max_key");
    assert_refused(&plain, "size=16", "size");
}


TEST(a_text_that_is_too_long_to_store_is_refused) {
    char text[FAR_OPTIONS_TEXT_MAX + 2];
    memset(text, '0', sizeof(text) - 1);
    memcpy(text, "size=", 5);
    memcpy(text + sizeof(text) - 3, "16", 3);
    assert_refused(&kind, text, "options");
    int64_t values[FAR_OPTIONS_MAX];
    assert_int_equal(far_index_options_parse(&kind, "size=0000000000000016", values), 0);
    assert_int_equal(values[FAR_OPTIONS_COMMON], 16);
}


TEST(the_description_can_be_given_back_as_options) {
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


TEST(a_description_is_cut_to_its_buffer) {
    char text[64];
    memset(text, 'x', sizeof(text));
    far_index_options_describe(&kind, text, 40);
    assert_int_equal(strlen(text), 39);
    assert_int_equal(text[40], 'x');
}


TEST(kinds_are_found_by_name) {
    for (unsigned i = 0; far_index_kinds[i]; i++)
        assert_ptr_equal(far_index_kind_named(far_index_kinds[i]->name), far_index_kinds[i]);
    assert_non_null(far_index_kind_named("toy"));
    assert_null(far_index_kind_named("to"));
    assert_null(far_index_kind_named("toys"));
    assert_null(far_index_kind_named(""));
}


TEST(the_toy_is_shown_only_without_other_kinds) {
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


TEST(a_report_counts_all_and_prints_until_stopped) {
    far_report report = {.about = "fruit"};
    for (unsigned i = 0; i < FAR_REPORT_LINES_MAX + 5; i++)
        far_report_problem(&report, "leaf %u is bad", i);
    assert_int_equal(report.line_count, FAR_REPORT_LINES_MAX);
    assert_string_equal(report.lines[3], "fruit: leaf 3 is bad");
    unsigned told = 0;
    assert_int_equal(far_report_deliver(&report, stop_at_second, &told), FAR_REPORT_LINES_MAX + 5);
    assert_int_equal(told, 2);
    assert_int_equal(far_report_deliver(&report, NULL, NULL), FAR_REPORT_LINES_MAX + 5);
    far_report_free(&report);
}


/* ---- Options of the real kinds, public and private ---- */

static const char *const kinds[] = {"chime", "dart", "dolphin", "shard", "smart"};
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

typedef struct rig {
    far_pool *pool;
    far_session *session;
} rig;


static void open_rig(rig *r) {
    assert_int_equal(far_pool_open("sim:seed=1,memory_nodes=2,size=256M", NULL, &r->pool), 0);
    assert_int_equal(far_session_open(r->pool, &r->session), 0);
}


static void close_rig(rig *r) {
    far_session_close(r->session);
    far_pool_close(r->pool);
}


static int fail_at_problem(void *ctx, const char *problem) {
    fail_msg("%s: %s", (const char *)ctx, problem);
    return 0;
}


/* Writes, overwrites, deletes and reads some hundred keys in an index with these options in a new pool, and checks the
 * index. */
static void use_index_with(const char *kind, const char *options) {
    enum { KEYS = 300 };
    rig opened, *r = &opened;
    open_rig(r);
    far_index *index;
    if (far_index_create(r->session, "map", kind, options, &index) < 0)
        fail_msg("%s %s: %s", kind, options, far_last_error());
    for (uint64_t i = 0; i < KEYS; i++) {
        uint64_t key = __builtin_bswap64(i * 0x0101010101), value = i;
        assert_int_equal(far_insert(r->session, index, &key, 8, &value, 8), 0);
    }
    for (uint64_t i = 0; i < KEYS; i++) {
        uint64_t key = __builtin_bswap64(i * 0x0101010101), value = i + 1;
        assert_int_equal(i % 3 ? far_update(r->session, index, &key, 8, &value, 8)
                               : far_delete(r->session, index, &key, 8),
                         0);
    }
    for (uint64_t i = 0; i < KEYS; i++) {
        uint64_t key = __builtin_bswap64(i * 0x0101010101), value = 0;
        size_t length = 0;
        assert_int_equal(far_get(r->session, index, &key, 8, &value, 8, &length), i % 3 ? 0 : FAR_ERR_NOT_FOUND);
        assert_true(i % 3 == 0 || (length == 8 && value == i + 1));
    }
    assert_int_equal(far_index_check(r->session, index, fail_at_problem, (void *)options), 0);
    far_index_close(index);
    close_rig(r);
}


#define LARGE 1024 /* larger numbers (of partitions, of bytes of a cache) would need a pool of gigabytes */

/* Writes the option with the value of that number: each choice, both states of a switch, a small and a large number.
 * Returns false after the last value. */
static bool option_with_value(const far_option_def *def, unsigned number, char text[128]) {
    if (def->type == FAR_OPTION_CHOICE && !def->choices[number])
        return false;
    if (def->type != FAR_OPTION_CHOICE && number > 1)
        return false;
    if (def->type == FAR_OPTION_CHOICE)
        snprintf(text, 128, "%s=%s", def->name, def->choices[number]);
    else if (def->type == FAR_OPTION_BOOL)
        snprintf(text, 128, "%s=%s", def->name, number ? "on" : "off");
    else
        /* 2^16 buckets of 512 bytes are much for a pool of this test, so there is one partition of them. */
        snprintf(text, 128, "%s%s=%lld", strcmp(def->name, "bits") == 0 ? "partitions=1," : "", def->name, (long long)(!number ? def->min : def->max < LARGE ? def->max : LARGE));
    return true;
}


/* Every value of every switch and choice, and a small and a large value of every number, give an index that keeps its
 * pairs. Options that limit the sizes of keys or values keep their defaults, because with other limits the pairs of
 * this test would be refused. */
TEST(every_value_of_every_public_option_works) {
    far_private_options_allow(false);
    unsigned tried = 0;
    for (unsigned k = 0; k < KINDS; k++) {
        const far_index_kind *of = far_index_kind_named(kinds[k]);
        for (unsigned i = FAR_OPTIONS_COMMON; i < far_index_option_count(of); i++) {
            far_option_def def = far_index_option_at(of, i);
            char text[128];
            if (far_option_is_private(of, def.name))
                continue;
            for (unsigned number = 0; option_with_value(&def, number, text); number++, tried++) {
                /* A negative minimum is not a value for users: it means that the index chooses the value itself. So 0
                 * is tested instead. */
                if (def.type == FAR_OPTION_NUMBER && def.min < 0 && number == 0)
                    snprintf(text, sizeof(text), "%s=0", def.name);
                use_index_with(kinds[k], text);
            }
        }
        use_index_with(kinds[k], "checksum=on");
        use_index_with(kinds[k], "key_size=8,value_size=8");
    }
    assert_true(tried > 100);
    far_private_options_allow(true);
}


/* A user cannot create an index with a private option, and far_kinds lists none. A process that allows private options
 * (far_private_options_allow) can create such an index, and then every process can open it. Fails without
 * far_index_options_check_public in far_index_create. */
TEST(only_tests_can_set_private_options) {
    rig r;
    open_rig(&r);
    unsigned private_count = 0, public_count = 0;
    for (unsigned k = 0; k < KINDS; k++) {
        const far_index_kind *of = far_index_kind_named(kinds[k]);
        char described[FAR_OPTIONS_DESCRIPTION], line[64], text[128];
        far_index_options_describe(of, described, sizeof(described));
        for (unsigned i = 0; i < far_index_option_count(of); i++) {
            far_option_def def = far_index_option_at(of, i);
            far_index *index;
            snprintf(line, sizeof(line), "%s%s=", i ? "\n" : "", def.name);
            if (!far_option_is_private(of, def.name)) {
                assert_non_null(strstr(described, line));
                public_count++;
                continue;
            }
            private_count++;
            assert_null(strstr(described, line));
            option_with_value(&def, 0, text);
            far_private_options_allow(false);
            assert_int_equal(far_index_create(r.session, "map", kinds[k], text, &index), FAR_ERR_INVALID);
            assert_non_null(strstr(far_last_error(), def.name));
            far_private_options_allow(true);
        }
        /* Every name in the list of private options is the name of an option. */
        for (unsigned i = 0; of->private_options && of->private_options[i]; i++)
            private_count--;
    }
    assert_int_equal(private_count, 0);
    assert_true(public_count <= 75);
    far_index *index;
    assert_int_equal(far_index_create(r.session, "map", "smart", "patience=20", &index), 0);
    far_index_close(index);
    far_private_options_allow(false);
    assert_int_equal(far_index_open(r.session, "map", &index), 0);
    far_index_close(index);
    far_private_options_allow(true);
    close_rig(&r);
}
