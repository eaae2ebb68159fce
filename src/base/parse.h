/* Numbers, sizes, durations, ranges and option lists as users write them, in flags, URIs and index options.
 *
 * Every function returns FAR_OK or FAR_ERR_INVALID; then `error` (if it is not NULL) holds one line that says what is
 * wrong with which text, and the result is left alone. Nothing overflows silently, nothing depends on the locale. */
#ifndef FAR_BASE_PARSE_H
#define FAR_BASE_PARSE_H

#include <stddef.h>
#include <stdint.h>

#define FAR_OPTION_NAME_MAX  63
#define FAR_OPTION_VALUE_MAX 1023

/* Writes a message like snprintf (cut to fit; error may be NULL) and returns FAR_ERR_INVALID. */
int far_refuse(char *error, size_t error_size, const char *format, ...) __attribute__((format(printf, 3, 4)));

int far_parse_number(const char *text, uint64_t *value, char *error, size_t error_size); /* "1000" */
int far_parse_count(const char *text, uint64_t *value, char *error,
                    size_t error_size); /* "1000", "200K", "10M"; powers of 1000 */
int far_parse_size(const char *text, uint64_t *bytes, char *error,
                   size_t error_size); /* "512", "64K", "4G"; powers of 1024 */
int far_parse_duration(const char *text, uint64_t *ns, char *error,
                       size_t error_size); /* "100ns", "2us", "5ms", "3s", "0" */
int far_parse_decimal(const char *text, double *value, char *error, size_t error_size); /* "0.99"; at most 15 digits */
int far_parse_switch(const char *text, int *on, char *error, size_t error_size);        /* "on", "off", "1", "0" */
int far_parse_range(const char *text, uint64_t *first, uint64_t *last, char *error,
                    size_t error_size); /* "A..B" (A <= B) or "A" */

/* Walks over "name=value,name=value". Text may be NULL or empty: no options. The text must outlive the walk. */
typedef struct far_option_list {
    const char *text, *rest; /* rest: NULL before the first option and after the last */
    char separator;
    char name[FAR_OPTION_NAME_MAX + 1], value[FAR_OPTION_VALUE_MAX + 1]; /* of the option that far_options_next found */
} far_option_list;

void far_options_begin(far_option_list *list, const char *text, char separator);

/* 1: name and value are filled in; 0: no more; FAR_ERR_INVALID: malformed, or a name that was given before. */
int far_options_next(far_option_list *list, char *error, size_t error_size);

/* "512", "64K", "1.5G": rounded to one decimal where it is not exact. Needs 8 bytes; returns text. */
#define FAR_SIZE_TEXT 8
const char *far_format_size(uint64_t bytes, char text[FAR_SIZE_TEXT]);

#endif
