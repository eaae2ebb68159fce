/* Parsers for numbers, sizes, durations, ranges and option lists in flags, URIs and index options.
 *
 * Every function returns FAR_OK or FAR_ERR_INVALID. In case of an error, `error` (if it is not NULL) receives one line
 * that names the wrong text and the reason, and the result is not changed. No number overflows silently, and nothing
 * depends on the locale. */
#ifndef FAR_BASE_PARSE_H
#define FAR_BASE_PARSE_H

#include <stddef.h>
#include <stdint.h>

#define FAR_OPTION_NAME_MAX  63
#define FAR_OPTION_VALUE_MAX 1023

/* Formats a message as snprintf does, truncated to the buffer, and returns FAR_ERR_INVALID. `error` may be NULL. */
int far_refuse(char *error, size_t error_size, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Parses a whole number, for example "1000". */
int far_parse_number(const char *text, uint64_t *value, char *error, size_t error_size);
/* Parses a number with an optional unit, for example "1000", "200K" or "10M": K, M and G are powers of 1000. */
int far_parse_count(const char *text, uint64_t *value, char *error, size_t error_size);
/* Parses a size in bytes with an optional unit, for example "512", "64K" or "4G": K, M, G and T are powers of 1024. */
int far_parse_size(const char *text, uint64_t *bytes, char *error, size_t error_size);
/* Parses a duration with its unit, for example "100ns", "2us", "5ms", "3s", or "0". *ns receives nanoseconds. */
int far_parse_duration(const char *text, uint64_t *ns, char *error, size_t error_size);
/* Parses a decimal number with at most 15 digits, for example "0.99". */
int far_parse_decimal(const char *text, double *value, char *error, size_t error_size);
/* parses "on" or "1" (*on = 1), "off" or "0" (*on = 0) */
int far_parse_switch(const char *text, int *on, char *error, size_t error_size);
/* Parses a range: "A..B" with A <= B, or "A" for a range of one number. */
int far_parse_range(const char *text, uint64_t *first, uint64_t *last, char *error, size_t error_size);

/* An iterator over "name=value,name=value". The text may be NULL or empty, for no options. It must stay valid during
 * the iteration. */
typedef struct far_option_list {
    const char *text, *rest; /* rest: the text after the last option that was returned; NULL at the end */
    char separator;
    /* The option that far_options_next returned last. */
    char name[FAR_OPTION_NAME_MAX + 1], value[FAR_OPTION_VALUE_MAX + 1];
} far_option_list;

void far_options_begin(far_option_list *list, const char *text, char separator);

/* Returns 1 if it has stored the next name and value, 0 at the end, or FAR_ERR_INVALID if the option is malformed or
 * its name was given before. */
int far_options_next(far_option_list *list, char *error, size_t error_size);

/* Formats a size as "512", "64K" or "1.5G", rounded to one decimal place if necessary. Returns `text`. */
#define FAR_SIZE_TEXT 8
const char *far_format_size(uint64_t bytes, char text[FAR_SIZE_TEXT]);

#endif
