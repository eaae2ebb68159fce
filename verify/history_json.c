/* The JSON lines of a history, in the format that the manual of `farindex torture` describes. far_history_write writes
 * them, and far_history_read reads them back. Both use the library jansson. */
#include "verify/history.h"
#include "verify/memory.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* ---- Writing ---- */

/* A history without one of its operations proves nothing, so the process ends when memory runs out. */
static json_t *require_json(json_t *value) {
    if (!value) {
        fputs("farindex: no memory for the JSON lines of a history\n", stderr);
        abort();
    }
    return value;
}


static void set_field(json_t *object, const char *name, json_t *value) {
    if (json_object_set_new(object, name, require_json(value)) < 0)
        require_json(NULL);
}


static void append_item(json_t *array, json_t *value) {
    if (json_array_append_new(array, require_json(value)) < 0)
        require_json(NULL);
}


static json_t *bytes_as_hex(far_bytes bytes) {
    static const char digits[] = "0123456789abcdef";
    char *text = far_verify_alloc(2 * bytes.length + 1);
    for (size_t i = 0; i < bytes.length; i++) {
        uint8_t byte = ((const uint8_t *)bytes.data)[i];
        text[2 * i] = digits[byte >> 4];
        text[2 * i + 1] = digits[byte & 15];
    }
    json_t *value = json_stringn(text, 2 * bytes.length);
    free(text);
    return value;
}


/* Integers of jansson are signed, so a number above INT64_MAX (only a seed or a limit can be that large) is a string of
 * its decimal digits. */
static json_t *number_as_json(uint64_t number) {
    char digits[24];
    if (number <= INT64_MAX)
        return json_integer((json_int_t)number);
    snprintf(digits, sizeof(digits), "%" PRIu64, number);
    return json_string(digits);
}


static json_t *pairs_as_json(const far_history_op *op) {
    json_t *pairs = require_json(json_array());
    for (size_t p = 0; p < op->pair_count; p++) {
        json_t *pair = require_json(json_array());
        append_item(pair, bytes_as_hex(op->pairs[p].key));
        append_item(pair, bytes_as_hex(op->pairs[p].value));
        append_item(pairs, pair);
    }
    return pairs;
}


static json_t *op_as_json(const far_history_op *op) {
    bool cut = op->end == FAR_HISTORY_NEVER;
    json_t *object = require_json(json_object());
    set_field(object, "seed", number_as_json(op->seed));
    set_field(object, "client", json_integer(op->client));
    set_field(object, "op", json_string(far_op_name(op->op)));
    set_field(object, "key", bytes_as_hex(op->key));
    set_field(object, "value", op->has_value ? bytes_as_hex(op->value) : json_null());
    set_field(object, "result", cut ? json_null() : json_integer(op->result));
    set_field(object, "start", json_integer(op->start));
    set_field(object, "end", cut ? json_null() : json_integer(op->end));
    if (op->op == FAR_OP_SCAN) {
        set_field(object, "to", op->has_to ? bytes_as_hex(op->to) : json_null());
        set_field(object, "limit", number_as_json(op->limit));
        set_field(object, "reverse", json_boolean(op->reverse));
        set_field(object, "pairs", pairs_as_json(op));
    }
    return object;
}


int far_history_write_op(const far_history_op *op, FILE *file) {
    json_t *object = op_as_json(op);
    if (json_dumpf(object, file, JSON_COMPACT) < 0 && !ferror(file))
        require_json(NULL);
    json_decref(object);
    putc('\n', file);
    return ferror(file) ? FAR_ERR_UNREACHABLE : FAR_OK;
}


int far_history_write(const far_history *history, FILE *file) {
    for (size_t i = 0; i < far_history_count(history); i++) {
        int err = far_history_write_op(far_history_at(history, i), file);
        if (err)
            return err;
    }
    return fflush(file) ? FAR_ERR_UNREACHABLE : FAR_OK;
}


/* ---- Reading ---- */

/* number of fields that an operation has; a scan may have the field `reverse` in addition */
enum { FIELDS = 8, FIELDS_OF_SCAN = 11 };

static int hex_digit(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}


/* The following functions read one field each. They return false if the field is absent or malformed. */

static bool read_hex(far_verify_arena *arena, const json_t *field, far_bytes *bytes) {
    size_t length = json_string_length(field);
    const char *digits = json_string_value(field);
    if (!digits || length % 2)
        return false;
    uint8_t *data = far_verify_arena_alloc(arena, length / 2 + 1);
    for (size_t i = 0; i < length / 2; i++) {
        int high = hex_digit(digits[2 * i]), low = hex_digit(digits[2 * i + 1]);
        if (high < 0 || low < 0)
            return false;
        data[i] = (uint8_t)(high << 4 | low);
    }
    *bytes = (far_bytes){data, length / 2};
    return true;
}


static bool read_hex_or_null(far_verify_arena *arena, const json_t *field, far_bytes *bytes, bool *present) {
    *present = !json_is_null(field);
    return !*present || read_hex(arena, field, bytes);
}


static bool read_unsigned(const json_t *field, uint64_t *number) {
    const char *digits = json_string_value(field);
    char *end = NULL;
    if (digits && *digits >= '0' && *digits <= '9') { /* a string of digits is a number above INT64_MAX */
        *number = strtoull(digits, &end, 10);
        return *end == 0;
    }
    *number = (uint64_t)json_integer_value(field);
    return json_is_integer(field) && json_integer_value(field) >= 0;
}


static bool read_signed_or_null(const json_t *field, int64_t if_null, int64_t *number) {
    *number = json_is_null(field) ? if_null : json_integer_value(field);
    return json_is_null(field) || json_is_integer(field);
}


/* Histories of versions without reverse scans do not have the field. */
static bool read_boolean_if_present(const json_t *field, bool *value) {
    *value = json_is_true(field);
    return !field || json_is_boolean(field);
}


static bool read_op_kind(const json_t *field, far_op_kind *kind) {
    const char *name = json_string_value(field);
    for (far_op_kind op = FAR_OP_GET; name && op <= FAR_OP_SCAN; op++)
        if (strcmp(far_op_name(op), name) == 0) {
            *kind = op;
            return true;
        }
    return false;
}


static bool read_pairs(far_verify_arena *arena, const json_t *field, far_history_op *op) {
    size_t i;
    const json_t *item;
    op->pair_capacity = json_array_size(field);
    op->pairs = far_verify_arena_alloc(arena, op->pair_capacity * sizeof *op->pairs);
    json_array_foreach (field, i, item) {
        far_history_pair *pair = &op->pairs[op->pair_count++];
        if (json_array_size(item) != 2 || !read_hex(arena, json_array_get(item, 0), &pair->key) ||
            !read_hex(arena, json_array_get(item, 1), &pair->value))
            return false;
    }
    return json_is_array(field);
}


static bool read_op(far_verify_arena *arena, const json_t *object, far_history_op *op) {
    uint64_t client;
    if (!read_unsigned(json_object_get(object, "seed"), &op->seed) ||
        !read_unsigned(json_object_get(object, "client"), &client) || client > UINT32_MAX ||
        !read_op_kind(json_object_get(object, "op"), &op->op) ||
        !read_hex(arena, json_object_get(object, "key"), &op->key) ||
        !read_hex_or_null(arena, json_object_get(object, "value"), &op->value, &op->has_value) ||
        !read_signed_or_null(json_object_get(object, "result"), 0, &op->result) ||
        !json_is_integer(json_object_get(object, "start")) ||
        !read_signed_or_null(json_object_get(object, "end"), FAR_HISTORY_NEVER, &op->end))
        return false;
    op->client = (uint32_t)client;
    op->start = json_integer_value(json_object_get(object, "start"));
    if (op->op != FAR_OP_SCAN)
        return json_object_size(object) == FIELDS;
    const json_t *reverse = json_object_get(object, "reverse");
    return json_object_size(object) == FIELDS_OF_SCAN + (reverse != NULL) &&
           read_boolean_if_present(reverse, &op->reverse) &&
           read_hex_or_null(arena, json_object_get(object, "to"), &op->to, &op->has_to) &&
           read_unsigned(json_object_get(object, "limit"), &op->limit) &&
           read_pairs(arena, json_object_get(object, "pairs"), op);
}


/* Appends the operation of one line to the history. Returns false if the line is no operation. */
static bool read_line(const char *line, far_history *history) {
    far_verify_arena arena = {0};
    far_history *one = far_history_new(0);
    size_t index = far_history_begin(one, 0, FAR_OP_GET, NULL, 0, NULL, 0, 0);
    far_history_op *op = (far_history_op *)far_history_at(one, index);
    json_t *object = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
    bool good = object && read_op(&arena, object, op);
    if (good)
        far_history_merge(history, one);
    json_decref(object);
    far_history_free(one);
    far_verify_arena_free(&arena);
    return good;
}


int far_history_read(far_history *history, FILE *file, size_t *bad_line) {
    char *line = NULL;
    size_t capacity = 0, number = 0;
    int err = FAR_OK;
    while (err == FAR_OK && getline(&line, &capacity, file) >= 0) {
        number++;
        if (!read_line(line, history))
            err = FAR_ERR_INVALID;
    }
    if (err && bad_line)
        *bad_line = number;
    free(line);
    return err;
}
