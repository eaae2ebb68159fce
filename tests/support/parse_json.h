/* Parsing the JSON that the programs print. Tests read the values with the functions of jansson. */
#ifndef TESTS_SUPPORT_PARSE_JSON_H
#define TESTS_SUPPORT_PARSE_JSON_H

#include <jansson.h>

/* Parses `text` and returns its JSON value. Returns NULL if the whole text is not exactly one JSON value, or if an
 * object has a name twice. */
static inline json_t *parse_json(const char *text) {
    return json_loads(text, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
}

#endif
