/* Parses, checks and describes the options of an index (options.h). */
#include "pool/catalog/options.h"
#include "base/error.h"
#include "base/parse.h"
#include "pool/catalog/private_options.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static const far_option_def common_options[FAR_OPTIONS_COMMON] = {
    [FAR_OPTION_KEY_SIZE] = {"key_size", FAR_OPTION_NUMBER, 0, 0, FAR_KEY_MAX, NULL,
                             "all keys have this size (0: any size)"},
    [FAR_OPTION_VALUE_SIZE] = {"value_size", FAR_OPTION_NUMBER, 0, 0, FAR_VALUE_MAX, NULL,
                               "all values have this size (0: any size)"},
    [FAR_OPTION_MAX_KEY] = {"max_key", FAR_OPTION_NUMBER, FAR_KEY_MAX, FAR_KEY_MAX, FAR_KEY_MAX, NULL,
                            "bytes of the longest key"},
    [FAR_OPTION_CHECKSUM] = {"checksum", FAR_OPTION_BOOL, 0, 0, 1, NULL,
                             "store a 4-byte hash of key and value after each value, so that reads detect damage"},
};


far_option_def far_index_option_at(const far_index_kind *kind, unsigned position) {
    static const far_option_def none;
    if (position < FAR_OPTIONS_COMMON) {
        far_option_def def = common_options[position];
        if ((position == FAR_OPTION_KEY_SIZE || position == FAR_OPTION_MAX_KEY) && kind->max_key > FAR_KEY_MAX)
            def.max = (int64_t)kind->max_key;
        return def;
    }
    if (!kind->options)
        return none;
    unsigned own = position - FAR_OPTIONS_COMMON;
    for (unsigned i = 0; i < own; i++)
        if (!kind->options[i].name)
            return none;
    return kind->options[own];
}


unsigned far_index_option_count(const far_index_kind *kind) {
    unsigned count = FAR_OPTIONS_COMMON;
    while (count < FAR_OPTIONS_MAX && far_index_option_at(kind, count).name)
        count++;
    return count;
}


static int parse_choice(const far_option_def *def, const char *text, int64_t *value) {
    char known[256] = "";
    size_t used = 0;
    for (int64_t i = 0; def->choices[i]; i++) {
        if (strcmp(def->choices[i], text) == 0) {
            *value = i;
            return 0;
        }
        int more = snprintf(known + used, sizeof(known) - used, "%s%s", i ? ", " : "", def->choices[i]);
        used = used + (size_t)more < sizeof(known) ? used + (size_t)more : sizeof(known) - 1;
    }
    return far_fail(FAR_ERR_INVALID, "option %s: '%.40s' is not one of %s", def->name, text, known);
}


static int parse_number(const far_option_def *def, const char *text, int64_t *value) {
    char error[128];
    uint64_t number;
    if (far_parse_size(text, &number, error, sizeof(error)) < 0)
        return far_fail(FAR_ERR_INVALID, "option %s: %s", def->name, error);
    if (number > INT64_MAX || (int64_t)number < def->min || (int64_t)number > def->max)
        return far_fail(FAR_ERR_INVALID, "option %s: '%.40s' is not within %" PRId64 "..%" PRId64, def->name, text,
                        def->min, def->max);
    *value = (int64_t)number;
    return 0;
}


static int parse_value(const far_option_def *def, const char *text, int64_t *value) {
    char error[128];
    int on;
    switch (def->type) {
    case FAR_OPTION_CHOICE:
        return parse_choice(def, text, value);
    case FAR_OPTION_NUMBER:
        return parse_number(def, text, value);
    default:
        if (far_parse_switch(text, &on, error, sizeof(error)) < 0)
            return far_fail(FAR_ERR_INVALID, "option %s: %s", def->name, error);
        *value = on;
        return 0;
    }
}


static int parse_option(const far_index_kind *kind, const char *name, const char *text, int64_t values[]) {
    unsigned count = far_index_option_count(kind);
    for (unsigned i = 0; i < count; i++) {
        far_option_def def = far_index_option_at(kind, i);
        if (strcmp(def.name, name) == 0)
            return parse_value(&def, text, &values[i]);
    }
    return far_fail(FAR_ERR_INVALID, "option %s: kind %s has no such option", name, kind->name);
}


int far_index_options_parse(const far_index_kind *kind, const char *text, int64_t values[FAR_OPTIONS_MAX]) {
    char error[160];
    if (text && strlen(text) > FAR_OPTIONS_TEXT_MAX)
        return far_fail(FAR_ERR_INVALID, "options: the text is longer than %d bytes", FAR_OPTIONS_TEXT_MAX);
    memset(values, 0, FAR_OPTIONS_MAX * sizeof(values[0]));
    for (unsigned i = 0; i < far_index_option_count(kind); i++)
        values[i] = far_index_option_at(kind, i).initial;

    far_option_list list;
    far_options_begin(&list, text, ',');
    int found;
    while ((found = far_options_next(&list, error, sizeof(error))) > 0) {
        int err = parse_option(kind, list.name, list.value, values);
        if (err < 0)
            return err;
    }
    if (found < 0)
        return far_fail(FAR_ERR_INVALID, "options: %s", error);
    if (values[FAR_OPTION_CHECKSUM] && values[FAR_OPTION_VALUE_SIZE])
        values[FAR_OPTION_VALUE_SIZE] += FAR_SUM_BYTES;
    if (values[FAR_OPTION_VALUE_SIZE] > FAR_VALUE_MAX)
        return far_fail(FAR_ERR_INVALID, "option value_size: must be at most %d if checksum is on",
                        FAR_VALUE_MAX - (int)FAR_SUM_BYTES);
    if (values[FAR_OPTION_KEY_SIZE] > values[FAR_OPTION_MAX_KEY])
        return far_fail(FAR_ERR_INVALID, "option key_size: %" PRId64 " is more than max_key, %" PRId64,
                        values[FAR_OPTION_KEY_SIZE], values[FAR_OPTION_MAX_KEY]);
    return 0;
}


static atomic_bool private_options_are_allowed;


void far_private_options_allow(bool allow) {
    atomic_store_explicit(&private_options_are_allowed, allow, memory_order_relaxed);
}


bool far_option_is_private(const far_index_kind *kind, const char *name) {
    for (unsigned i = 0; kind->private_options && kind->private_options[i]; i++)
        if (strcmp(kind->private_options[i], name) == 0)
            return true;
    return false;
}


int far_index_options_check_public(const far_index_kind *kind, const char *text) {
    char error[160];
    far_option_list list;
    if (atomic_load_explicit(&private_options_are_allowed, memory_order_relaxed))
        return 0;
    far_options_begin(&list, text, ',');
    while (far_options_next(&list, error, sizeof(error)) > 0)
        if (far_option_is_private(kind, list.name))
            return far_fail(FAR_ERR_INVALID, "option %s: only the tests of the library can set it", list.name);
    return 0;
}


static int describe_value(const far_option_def *def, char *text, size_t size) {
    if (def->type == FAR_OPTION_CHOICE)
        return snprintf(text, size, "%s=%s", def->name, def->choices[def->initial]);
    if (def->type == FAR_OPTION_BOOL)
        return snprintf(text, size, "%s=%s", def->name, def->initial ? "on" : "off");
    return snprintf(text, size, "%s=%" PRId64, def->name, def->initial);
}


static int describe_range(const far_option_def *def, char *text, size_t size) {
    if (def->type == FAR_OPTION_NUMBER)
        return snprintf(text, size, "%" PRId64 "..%" PRId64, def->min, def->max);
    if (def->type == FAR_OPTION_BOOL)
        return snprintf(text, size, "on, off");
    size_t used = 0;
    for (unsigned i = 0; def->choices[i] && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%s", i ? ", " : "", def->choices[i]);
    return (int)used;
}


const char *far_index_options_describe(const far_index_kind *kind, char *text, size_t size) {
    size_t used = 0;
    text[0] = '\0';
    for (unsigned i = 0; i < far_index_option_count(kind) && used < size; i++) {
        far_option_def def = far_index_option_at(kind, i);
        char value[96], range[256];
        if (far_option_is_private(kind, def.name))
            continue;
        describe_value(&def, value, sizeof(value));
        describe_range(&def, range, sizeof(range));
        used += (size_t)snprintf(text + used, size - used, "%-24s %s (%s)\n", value, def.help, range);
    }
    return text;
}


int far_index_options_check_sizes(const far_pool *pool, const int64_t values[FAR_OPTIONS_MAX]) {
    /* a sixteenth of a block is left for what a kind stores with a pair */
    const uint64_t pair = (uint64_t)values[FAR_OPTION_KEY_SIZE] + (uint64_t)values[FAR_OPTION_VALUE_SIZE],
                   most = far_object_bytes_max(pool) / 16 * 15;
    if (pair <= most)
        return 0;
    return far_fail(FAR_ERR_INVALID,
                    "key_size and value_size: this pool stores pairs of at most %llu bytes, because its blocks have "
                    "%llu bytes; the sizes of the pool and of its smallest memory node determine the size of a block",
                    (unsigned long long)most, (unsigned long long)far_object_bytes_max(pool));
}
