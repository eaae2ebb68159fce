/* JSON output of the programs: builds values of the library jansson and prints them in one fixed form.
 *
 * The functions never return a failure. If memory runs out, the process prints a message and exits with CLI_FAILED. If
 * the stream cannot be written, its error flag stays set, and the caller detects that with ferror() after the last
 * output. Every function that takes a json_t as a value takes over the caller's reference, and no caller needs
 * json_decref(). */
#ifndef FAR_TOOLS_COMMON_JSON_OUTPUT_H
#define FAR_TOOLS_COMMON_JSON_OUTPUT_H

#include <jansson.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* ---- Values ---- */

json_t *cli_json_object(void); /* an empty object */
json_t *cli_json_array(void);  /* an empty array */

/* A string, or null if text is NULL. Text that is not valid UTF-8 becomes a string with one character for each byte:
 * byte 0xNN becomes the character U+00NN. */
json_t *cli_json_text(const char *text);

/* An exact integer. jansson has signed integers of 64 bits only, so a count above INT64_MAX becomes a string of its
 * decimal digits; only random seeds and damaged memory produce such counts. */
json_t *cli_json_count(uint64_t count);

json_t *cli_json_number(double number); /* null if the number is not finite */

/* ---- Objects and arrays ---- */

void cli_json_append(json_t *array, json_t *value);
void cli_json_set(json_t *object, const char *name, json_t *value);

/* Each sets one field to the value that the function above of the same name makes. */
void cli_json_set_text(json_t *object, const char *name, const char *text);
void cli_json_set_count(json_t *object, const char *name, uint64_t count);
void cli_json_set_number(json_t *object, const char *name, double number);
void cli_json_set_bool(json_t *object, const char *name, bool value);

/* ---- Printing ---- */

/* Prints the value on one line without blanks, followed by a newline. Characters beyond ASCII are printed as \uNNNN.
 * Real numbers have six significant digits. */
void cli_json_print(FILE *file, json_t *value);
/* like cli_json_print, but prints characters beyond ASCII as UTF-8 */
void cli_json_print_utf8(FILE *file, json_t *value);

/* An array that is printed item by item, so that it never needs to fit into memory. Each item is on a line of its own.
 * A list starts as {.file = file}. cli_json_list_begin prints the opening bracket; cli_json_list_add calls it if the
 * caller has not called it before. */
typedef struct cli_json_list {
    FILE *file;
    bool utf8;      /* items are printed as by cli_json_print_utf8 */
    bool is_open;   /* the opening bracket is printed */
    uint64_t count; /* items printed so far */
} cli_json_list;

void cli_json_list_begin(cli_json_list *list);
void cli_json_list_add(cli_json_list *list, json_t *item);
void cli_json_list_end(cli_json_list *list); /* prints the closing bracket and a newline */

#endif
