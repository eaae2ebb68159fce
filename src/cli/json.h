/* A strict JSON reader for tests of what the command prints: the whole text must be one value, after RFC 8259. */
#ifndef FAR_CLI_JSON_H
#define FAR_CLI_JSON_H

#include <stddef.h>

typedef enum { JSON_NULL, JSON_FALSE, JSON_TRUE, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT } json_type;

typedef struct json json;
struct json {
    json_type type;
    double number;
    char *text; /* of a string, escapes resolved (those above ASCII as '?') */
    char *name; /* inside an object */
    size_t count;
    json *first, *last, *next; /* children; the next one of the parent's */
};

json *json_read(const char *text); /* NULL: malformed, or a name twice in one object */
void json_free(json *value);
const json *json_field(const json *object, const char *name); /* NULL: absent */
const json *json_item(const json *array, size_t position);    /* NULL: beyond the last */

#endif
