/* The JSON lines of a history: written as the manual of `farindex torture` describes them, read by a parser of just
 * that. */
#include "verify/history.h"
#include "verify/memory.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static void write_hex(far_bytes bytes, FILE *file) {
    putc('"', file);
    for (size_t i = 0; i < bytes.length; i++)
        fprintf(file, "%02x", ((const uint8_t *)bytes.data)[i]);
    putc('"', file);
}


int far_history_write_op(const far_history_op *op, FILE *file) {
    bool cut = op->end == FAR_HISTORY_NEVER;
    fprintf(file, "{\"seed\":%" PRIu64 ",\"client\":%" PRIu32 ",\"op\":\"%s\",\"key\":", op->seed, op->client,
            far_op_name(op->op));
    write_hex(op->key, file);
    fputs(",\"value\":", file);
    if (op->has_value)
        write_hex(op->value, file);
    else
        fputs("null", file);
    if (cut)
        fprintf(file, ",\"result\":null,\"start\":%" PRId64 ",\"end\":null", op->start);
    else
        fprintf(file, ",\"result\":%" PRId64 ",\"start\":%" PRId64 ",\"end\":%" PRId64, op->result, op->start, op->end);
    if (op->op == FAR_OP_SCAN) {
        fputs(",\"to\":", file);
        if (op->has_to)
            write_hex(op->to, file);
        else
            fputs("null", file);
        fprintf(file, ",\"limit\":%" PRIu64 ",\"pairs\":[", op->limit);
        for (size_t p = 0; p < op->pair_count; p++) {
            fputs(p ? ",[" : "[", file);
            write_hex(op->pairs[p].key, file);
            putc(',', file);
            write_hex(op->pairs[p].value, file);
            putc(']', file);
        }
        putc(']', file);
    }
    fputs("}\n", file);
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


/* A cursor on one line; `bad` sticks, so that the callers need to look only once at the end. */
typedef struct reader {
    const char *at;
    bool bad;
    far_verify_arena arena;
} reader;

enum {
    HAS_SEED = 1,
    HAS_CLIENT = 2,
    HAS_OP = 4,
    HAS_KEY = 8,
    HAS_VALUE = 16,
    HAS_RESULT = 32,
    HAS_START = 64,
    HAS_END = 128,
    HAS_TO = 256,
    HAS_LIMIT = 512,
    HAS_PAIRS = 1024,
    HAS_ALL = 255,
    HAS_ALL_SCAN = 2047
};


static char peek(reader *r) {
    while (*r->at == ' ' || *r->at == '\t' || *r->at == '\r' || *r->at == '\n')
        r->at++;
    return *r->at;
}


static bool take(reader *r, char c) {
    if (peek(r) != c)
        return false;
    r->at++;
    return true;
}


static void expect(reader *r, char c) {
    if (!take(r, c))
        r->bad = true;
}


static bool take_null(reader *r) {
    if (peek(r) != 'n' || strncmp(r->at, "null", 4) != 0)
        return false;
    r->at += 4;
    return true;
}


static far_bytes read_string(reader *r) {
    expect(r, '"');
    const char *start = r->at;
    while (*r->at && *r->at != '"')
        r->at++;
    far_bytes string = {start, (size_t)(r->at - start)};
    expect(r, '"');
    return string;
}


static int hex_digit(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}


static far_bytes read_hex(reader *r) {
    far_bytes text = read_string(r), bytes = {NULL, text.length / 2};
    if (text.length % 2)
        r->bad = true;
    const char *digits = text.data;
    uint8_t *data = far_verify_arena_alloc(&r->arena, bytes.length + 1);
    for (size_t i = 0; i < bytes.length; i++) {
        int high = hex_digit(digits[2 * i]), low = hex_digit(digits[2 * i + 1]);
        if (high < 0 || low < 0)
            r->bad = true;
        data[i] = (uint8_t)((high & 15) << 4 | (low & 15));
    }
    bytes.data = data;
    return bytes;
}


static int64_t read_signed(reader *r) {
    char *end;
    peek(r);
    int64_t number = strtoll(r->at, &end, 10);
    if (end == r->at)
        r->bad = true;
    r->at = end;
    return number;
}


static uint64_t read_unsigned(reader *r) {
    if (!isdigit((unsigned char)peek(r))) {
        r->bad = true;
        return 0;
    }
    char *end;
    uint64_t number = strtoull(r->at, &end, 10);
    r->at = end;
    return number;
}


static void read_pairs(reader *r, far_history_op *op) {
    expect(r, '[');
    if (take(r, ']'))
        return;
    do {
        if (op->pair_count == op->pair_capacity) {
            op->pair_capacity = op->pair_capacity ? op->pair_capacity * 2 : 8;
            op->pairs = far_verify_grow(op->pairs, op->pair_capacity * sizeof *op->pairs);
        }
        far_history_pair *pair = &op->pairs[op->pair_count++];
        expect(r, '[');
        pair->key = read_hex(r);
        expect(r, ',');
        pair->value = read_hex(r);
        expect(r, ']');
    } while (!r->bad && take(r, ','));
    expect(r, ']');
}


static far_op_kind read_op(reader *r) {
    far_bytes name = read_string(r);
    for (far_op_kind op = FAR_OP_GET; op <= FAR_OP_SCAN; op++) {
        if (strlen(far_op_name(op)) == name.length && memcmp(far_op_name(op), name.data, name.length) == 0)
            return op;
    }
    r->bad = true;
    return FAR_OP_GET;
}


static bool name_is(far_bytes name, const char *other) {
    return strlen(other) == name.length && memcmp(name.data, other, name.length) == 0;
}


/* Reads one member; returns its HAS_ bit. */
static unsigned read_member(reader *r, far_history_op *op) {
    far_bytes name = read_string(r);
    expect(r, ':');
    if (r->bad)
        return 0;
    if (name_is(name, "seed"))
        return op->seed = read_unsigned(r), HAS_SEED;
    if (name_is(name, "client"))
        return op->client = (uint32_t)read_unsigned(r), HAS_CLIENT;
    if (name_is(name, "op"))
        return op->op = read_op(r), HAS_OP;
    if (name_is(name, "key"))
        return op->key = read_hex(r), HAS_KEY;
    if (name_is(name, "value")) {
        if ((op->has_value = !take_null(r)))
            op->value = read_hex(r);
        return HAS_VALUE;
    }
    if (name_is(name, "result"))
        return op->result = take_null(r) ? 0 : read_signed(r), HAS_RESULT;
    if (name_is(name, "start"))
        return op->start = read_signed(r), HAS_START;
    if (name_is(name, "end"))
        return op->end = take_null(r) ? FAR_HISTORY_NEVER : read_signed(r), HAS_END;
    if (name_is(name, "to")) {
        if ((op->has_to = !take_null(r)))
            op->to = read_hex(r);
        return HAS_TO;
    }
    if (name_is(name, "limit"))
        return op->limit = read_unsigned(r), HAS_LIMIT;
    if (name_is(name, "pairs"))
        return read_pairs(r, op), HAS_PAIRS;
    r->bad = true;
    return 0;
}


static bool read_line(const char *line, far_history *history) {
    reader r = {.at = line};
    far_history *one = far_history_new(0);
    size_t index = far_history_begin(one, 0, FAR_OP_GET, NULL, 0, NULL, 0, 0);
    far_history_op *op = (far_history_op *)far_history_at(one, index);
    unsigned members = 0;
    expect(&r, '{');
    do
        members |= read_member(&r, op);
    while (!r.bad && take(&r, ','));
    expect(&r, '}');
    unsigned needed = op->op == FAR_OP_SCAN ? HAS_ALL_SCAN : HAS_ALL;
    bool good = !r.bad && peek(&r) == '\0' && members == needed;
    if (good)
        far_history_merge(history, one);
    free(op->pairs);
    far_history_free(one);
    far_verify_arena_free(&r.arena);
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
