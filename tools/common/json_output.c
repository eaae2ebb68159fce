/* JSON output of the programs, on top of jansson (json_output.h). The functions here fix the form of numbers and text,
 * and they end the process when memory runs out, so that the commands can build values without checking each call. */
#include "tools/common/json_output.h"
#include "tools/common/cli.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DUMP_FLAGS (JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(6))


/* Ends the process. The message cannot be JSON itself, because JSON needs memory. */
static _Noreturn void exit_without_memory(void) {
    fputs("farindex: no memory for the JSON output\n", stderr);
    exit(CLI_FAILED);
}


static json_t *require_value(json_t *value) {
    if (!value)
        exit_without_memory();
    return value;
}


/* ---- Values ---- */

json_t *cli_json_object(void) {
    return require_value(json_object());
}


json_t *cli_json_array(void) {
    return require_value(json_array());
}


/* Returns a string that has the character U+00NN for each byte 0xNN of the text, or NULL without memory. */
static json_t *map_bytes_to_characters(const char *text) {
    char *mapped = malloc(2 * strlen(text) + 1), *to = mapped;
    if (!mapped)
        return NULL;
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (*c >= 0x80)
            *to++ = (char)(0xc0 | *c >> 6);
        *to++ = (char)(*c < 0x80 ? *c : 0x80 | (*c & 0x3f));
    }
    json_t *value = json_stringn(mapped, (size_t)(to - mapped));
    free(mapped);
    return value;
}


json_t *cli_json_text(const char *text) {
    json_t *value = text ? json_string(text) : json_null();
    return require_value(value ? value : map_bytes_to_characters(text)); /* json_string refuses invalid UTF-8 */
}


json_t *cli_json_count(uint64_t count) {
    char digits[24];
    if (count <= INT64_MAX)
        return require_value(json_integer((json_int_t)count));
    snprintf(digits, sizeof(digits), "%" PRIu64, count);
    return require_value(json_string(digits));
}


json_t *cli_json_number(double number) {
    return require_value(isfinite(number) ? json_real(number) : json_null());
}


/* ---- Objects and arrays ---- */

void cli_json_append(json_t *array, json_t *value) {
    if (json_array_append_new(array, value) < 0)
        exit_without_memory();
}


void cli_json_set(json_t *object, const char *name, json_t *value) {
    if (json_object_set_new(object, name, value) < 0)
        exit_without_memory();
}


void cli_json_set_text(json_t *object, const char *name, const char *text) {
    cli_json_set(object, name, cli_json_text(text));
}


void cli_json_set_count(json_t *object, const char *name, uint64_t count) {
    cli_json_set(object, name, cli_json_count(count));
}


void cli_json_set_number(json_t *object, const char *name, double number) {
    cli_json_set(object, name, cli_json_number(number));
}


void cli_json_set_bool(json_t *object, const char *name, bool value) {
    cli_json_set(object, name, json_boolean(value));
}


/* ---- Printing ---- */

/* Prints the value without a newline and releases it. If writing fails, the caller finds the error with ferror. */
static void dump_value(FILE *file, json_t *value, size_t flags) {
    if (json_dumpf(require_value(value), file, DUMP_FLAGS | flags) < 0 && !ferror(file))
        exit_without_memory();
    json_decref(value);
}


void cli_json_print(FILE *file, json_t *value) {
    dump_value(file, value, JSON_ENSURE_ASCII);
    fputc('\n', file);
}


void cli_json_print_utf8(FILE *file, json_t *value) {
    dump_value(file, value, 0);
    fputc('\n', file);
}


void cli_json_list_begin(cli_json_list *list) {
    if (!list->is_open)
        fputc('[', list->file);
    list->is_open = true;
}


void cli_json_list_add(cli_json_list *list, json_t *item) {
    cli_json_list_begin(list);
    fputs(list->count++ ? ",\n " : "\n ", list->file);
    dump_value(list->file, item, list->utf8 ? 0 : JSON_ENSURE_ASCII);
}


void cli_json_list_end(cli_json_list *list) {
    cli_json_list_begin(list);
    fputs("\n]\n", list->file);
    list->is_open = false;
}
