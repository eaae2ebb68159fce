/* Parses numbers, sizes, durations, ranges and option lists as users write them, with messages that name the wrong text
 * (parse.h). */
#include "base/parse.h"

#include "farindex.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef struct unit {
    const char *name;
    uint64_t factor;
} unit;

static const unit size_units[] = {{"", 1},           {"K", 1ull << 10}, {"M", 1ull << 20}, {"G", 1ull << 30},
                                  {"T", 1ull << 40}, {"k", 1ull << 10}, {"m", 1ull << 20}, {"g", 1ull << 30},
                                  {"t", 1ull << 40}, {NULL, 0}};
static const unit duration_units[] = {{"ns", 1}, {"us", 1000}, {"ms", 1000000}, {"s", 1000000000}, {NULL, 0}};


int far_refuse(char *error, size_t error_size, const char *format, ...) {
    if (error && error_size > 0) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(error, error_size, format, arguments);
        va_end(arguments);
    }
    return FAR_ERR_INVALID;
}


static int is_digit(char c) {
    return c >= '0' && c <= '9';
}


/* Reads digits at *text and advances *text beyond them. Returns 0, 1 if there is no digit, or 2 if the number exceeds
 * 64 bits. */
static int read_digits(const char **text, uint64_t *value) {
    const char *at = *text;
    uint64_t sum = 0;
    if (!is_digit(*at))
        return 1;
    for (; is_digit(*at); at++)
        if (__builtin_mul_overflow(sum, 10, &sum) || __builtin_add_overflow(sum, (uint64_t)(*at - '0'), &sum))
            return 2;
    *text = at;
    *value = sum;
    return 0;
}


static int parse_with_units(const char *text, const unit *units, const char *what, uint64_t *value, char *error,
                            size_t error_size) {
    const char *at = text;
    uint64_t number = 0;
    if (!text)
        return far_refuse(error, error_size, "missing %s", what);
    int taken = read_digits(&at, &number);
    if (taken == 1)
        return far_refuse(error, error_size, "'%.40s' is not a %s", text, what);
    if (taken == 2)
        return far_refuse(error, error_size, "'%.40s' is too large", text);
    for (; units->name; units++) {
        if (strcmp(at, units->name) != 0)
            continue;
        if (__builtin_mul_overflow(number, units->factor, &number))
            return far_refuse(error, error_size, "'%.40s' is too large", text);
        *value = number;
        return FAR_OK;
    }
    return far_refuse(error, error_size, "'%.40s' is not a %s", text, what);
}


int far_parse_number(const char *text, uint64_t *value, char *error, size_t error_size) {
    static const unit none[] = {{"", 1}, {NULL, 0}};
    return parse_with_units(text, none, "whole number", value, error, error_size);
}


int far_parse_count(const char *text, uint64_t *value, char *error, size_t error_size) {
    static const unit thousands[] = {{"", 1},     {"K", 1000},    {"M", 1000000},    {"G", 1000000000},
                                     {"k", 1000}, {"m", 1000000}, {"g", 1000000000}, {NULL, 0}};
    return parse_with_units(text, thousands, "whole number (with K, M or G: thousands)", value, error, error_size);
}


int far_parse_size(const char *text, uint64_t *bytes, char *error, size_t error_size) {
    return parse_with_units(text, size_units, "size (a whole number, then K, M, G or T)", bytes, error, error_size);
}


int far_parse_duration(const char *text, uint64_t *ns, char *error, size_t error_size) {
    if (text && strcmp(text, "0") == 0) {
        *ns = 0;
        return FAR_OK;
    }
    return parse_with_units(text, duration_units, "duration (a whole number, then ns, us, ms or s)", ns, error,
                            error_size);
}


/* Parses a decimal number. A number of up to 15 digits is exact as a double, and so is the power of ten by which it
 * must be divided. So this one division rounds correctly, and gives the same result on every machine. */
int far_parse_decimal(const char *text, double *value, char *error, size_t error_size) {
    double digits = 0, scale = 1;
    int count = 0, point = 0;
    const char *at = text;
    if (!text)
        return far_refuse(error, error_size, "missing number");
    for (; is_digit(*at) || (*at == '.' && !point); at++) {
        if (*at == '.') {
            point = 1;
            continue;
        }
        digits = digits * 10 + (*at - '0');
        scale = point ? scale * 10 : scale;
        count++;
    }
    if (*at != '\0' || count == 0)
        return far_refuse(error, error_size, "'%.40s' is not a decimal number", text);
    if (count > 15)
        return far_refuse(error, error_size, "'%.40s' has more than 15 digits", text);
    *value = digits / scale;
    return FAR_OK;
}


int far_parse_switch(const char *text, int *on, char *error, size_t error_size) {
    if (!text)
        return far_refuse(error, error_size, "missing on or off");
    if (strcmp(text, "on") == 0 || strcmp(text, "1") == 0)
        *on = 1;
    else if (strcmp(text, "off") == 0 || strcmp(text, "0") == 0)
        *on = 0;
    else
        return far_refuse(error, error_size, "'%.40s' is neither on nor off", text);
    return FAR_OK;
}


int far_parse_range(const char *text, uint64_t *first, uint64_t *last, char *error, size_t error_size) {
    uint64_t low = 0, high = 0;
    const char *at = text;
    if (!text)
        return far_refuse(error, error_size, "missing range");
    int taken = read_digits(&at, &low);
    high = low;
    if (taken == 0 && strncmp(at, "..", 2) == 0) {
        at += 2;
        taken = read_digits(&at, &high);
    }
    if (taken == 2)
        return far_refuse(error, error_size, "'%.40s' is too large", text);
    if (taken == 1 || *at != '\0')
        return far_refuse(error, error_size, "'%.40s' is not a range (A..B, or one number)", text);
    if (low > high)
        return far_refuse(error, error_size, "'%.40s' ends before it begins", text);
    *first = low;
    *last = high;
    return FAR_OK;
}


void far_options_begin(far_option_list *list, const char *text, char separator) {
    list->text = list->rest = text && *text != '\0' ? text : NULL;
    list->separator = separator;
    list->name[0] = list->value[0] = '\0';
}


static const char *find_end_of_option(const far_option_list *list, const char *at) {
    const char *end = strchr(at, list->separator);
    return end ? end : at + strlen(at);
}


static int name_is_repeated(const far_option_list *list, const char *before, size_t name_len) {
    for (const char *at = list->text; at < before; at = find_end_of_option(list, at) + 1)
        if (strncmp(at, before, name_len) == 0 && at[name_len] == '=')
            return 1;
    return 0;
}


int far_options_next(far_option_list *list, char *error, size_t error_size) {
    const char *at = list->rest;
    if (!at)
        return 0;
    const char *end = find_end_of_option(list, at);
    const char *equals = memchr(at, '=', (size_t)(end - at));
    if (!equals)
        return far_refuse(error, error_size, "'%.*s' is not of the form name=value",
                          (int)(end - at > 40 ? 40 : end - at), at);
    size_t name_len = (size_t)(equals - at), value_len = (size_t)(end - equals - 1);
    if (name_len == 0)
        return far_refuse(error, error_size, "an option without a name at '%.40s'", at);
    if (name_len > FAR_OPTION_NAME_MAX)
        return far_refuse(error, error_size, "the option name '%.40s..' is too long", at);
    if (value_len == 0)
        return far_refuse(error, error_size, "option '%.*s' has no value", (int)name_len, at);
    if (value_len > FAR_OPTION_VALUE_MAX)
        return far_refuse(error, error_size, "the value of option '%.*s' is too long", (int)name_len, at);
    if (name_is_repeated(list, at, name_len))
        return far_refuse(error, error_size, "option '%.*s' is given twice", (int)name_len, at);
    memcpy(list->name, at, name_len);
    list->name[name_len] = '\0';
    memcpy(list->value, equals + 1, value_len);
    list->value[value_len] = '\0';
    list->rest = *end == '\0' ? NULL : end + 1;
    return 1;
}


const char *far_format_size(uint64_t bytes, char text[FAR_SIZE_TEXT]) {
    static const char letters[] = "KMGTPE";
    if (bytes < 1024) {
        snprintf(text, FAR_SIZE_TEXT, "%u", (unsigned)bytes);
        return text;
    }
    int step = 0;
    while (step < 5 && bytes >> (10 * (step + 2)) != 0)
        step++;
    uint64_t tenths = (uint64_t)(((unsigned __int128)bytes * 10 + (1ull << (10 * step + 9))) >> (10 * (step + 1)));
    if (tenths == 10240 && step < 5) { /* 1023.96K is shown as 1M, not as 1024K */
        tenths = 10;
        step++;
    }
    if (tenths % 10 == 0)
        snprintf(text, FAR_SIZE_TEXT, "%u%c", (unsigned)(tenths / 10) % 10000, letters[step]);
    else
        snprintf(text, FAR_SIZE_TEXT, "%u.%u%c", (unsigned)(tenths / 10) % 10000, (unsigned)(tenths % 10),
                 letters[step]);
    return text;
}
