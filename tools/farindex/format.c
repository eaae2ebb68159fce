/* Keys and values in the formats of the command: hex digits, JSON, escaped lines, and binary pairs. `dump`, `load`,
 * `get`, `put` and `scan` use them. */
#include "base/text.h"
#include "tools/farindex/data.h"

#include <stdlib.h>
#include <string.h>


void cli_bytes_add(cli_bytes *to, const void *bytes, size_t count) {
    if (to->length + count > to->room) {
        size_t room = to->room ? to->room : 256;
        while (room < to->length + count)
            room *= 2;
        to->bytes = realloc(to->bytes, room);
        if (!to->bytes)
            exit(cli_failed("no memory for %zu bytes", room));
        to->room = room;
    }
    if (count)
        memcpy(to->bytes + to->length, bytes, count);
    to->length += count;
}


void cli_bytes_free(cli_bytes *bytes) {
    free(bytes->bytes);
    *bytes = (cli_bytes){0};
}


/* ---- Hex ---- */

static int hex_digit(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}


const char *cli_parse_hex(const char *text, size_t length, cli_bytes *to) {
    if (length % 2)
        return "hex has an even number of digits";
    for (size_t i = 0; i < length; i += 2) {
        int high = hex_digit(text[i]), low = hex_digit(text[i + 1]);
        if (high < 0 || low < 0)
            return "hex has the digits 0-9 and a-f only";
        uint8_t byte = (uint8_t)(high << 4 | low);
        cli_bytes_add(to, &byte, 1);
    }
    return NULL;
}


void cli_print_hex(FILE *file, const void *bytes, size_t count) {
    for (size_t i = 0; i < count; i++)
        fprintf(file, "%02x", ((const uint8_t *)bytes)[i]);
}


/* ---- JSON ---- */

/* Returns the bytes as base64 text, which the caller frees. */
static char *encode_base64(const uint8_t *bytes, size_t count) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char *text = malloc((count + 2) / 3 * 4 + 1), *to = text;
    if (!text)
        exit(cli_failed("no memory for %zu bytes as base64", count));
    for (size_t i = 0; i < count; i += 3) {
        size_t here = count - i < 3 ? count - i : 3;
        uint32_t group = (uint32_t)bytes[i] << 16;
        for (size_t k = 1; k < here; k++)
            group |= (uint32_t)bytes[i + k] << (16 - 8 * k);
        for (size_t k = 0; k < 4; k++)
            *to++ = k <= here ? digits[group >> (18 - 6 * k) & 63] : '=';
    }
    *to = 0;
    return text;
}


void cli_json_set_bytes(json_t *object, const char *name, const void *bytes, size_t count) {
    char encoding[64];
    /* json_stringn returns NULL for bytes that are not valid UTF-8 */
    json_t *text = json_stringn(count ? bytes : "", count);
    if (text) {
        cli_json_set(object, name, text);
        return;
    }
    char *base64 = encode_base64(bytes, count);
    cli_json_set_text(object, name, base64);
    free(base64);
    snprintf(encoding, sizeof(encoding), "%s_encoding", name);
    cli_json_set_text(object, encoding, "base64");
}


/* ---- Lines ---- */

/* Characters beyond ASCII are printed unchanged if they are valid UTF-8. */
void cli_print_escaped(FILE *file, const void *bytes, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const uint8_t *at = (const uint8_t *)bytes + i;
        uint8_t c = *at;
        size_t character = c < 0x80 ? 0 : far_printable_bytes(at, count - i);
        if (character) {
            fwrite(at, 1, character, file);
            i += character - 1;
            continue;
        }
        if (c == '\t')
            fputs("\\t", file);
        else if (c == '\n')
            fputs("\\n", file);
        else if (c == '\\')
            fputs("\\\\", file);
        else if (c < 0x20 || c >= 0x7f)
            fprintf(file, "\\x%02x", c);
        else
            putc_unlocked(c, file);
    }
}


void cli_print_line(FILE *file, const void *key, size_t key_len, const void *value, size_t value_len) {
    cli_print_escaped(file, key, key_len);
    fputc('\t', file);
    cli_print_escaped(file, value, value_len);
    fputc('\n', file);
}


static const char *parse_escaped(const char *text, size_t length, cli_bytes *to) {
    for (size_t i = 0; i < length;) {
        const char *backslash = memchr(text + i, '\\', length - i);
        size_t plain = backslash ? (size_t)(backslash - text) - i : length - i;
        cli_bytes_add(to, text + i, plain);
        i += plain;
        if (!backslash)
            break;
        char kind = i + 1 < length ? text[i + 1] : 0;
        if (kind == 't' || kind == 'n' || kind == '\\') {
            cli_bytes_add(to, kind == 't' ? "\t" : kind == 'n' ? "\n" : "\\", 1);
            i += 2;
        } else if (kind == 'x' && i + 3 < length && hex_digit(text[i + 2]) >= 0 && hex_digit(text[i + 3]) >= 0) {
            cli_parse_hex(text + i + 2, 2, to);
            i += 4;
        } else {
            return "an escape is none of \\t, \\n, \\\\ and \\xHH";
        }
    }
    return NULL;
}


const char *cli_parse_line(const char *line, size_t length, cli_bytes *key, cli_bytes *value) {
    key->length = value->length = 0;
    const char *tab = memchr(line, '\t', length);
    if (!tab)
        return "there is no TAB between key and value";
    size_t key_length = (size_t)(tab - line), value_length = length - key_length - 1;
    if (memchr(tab + 1, '\t', value_length))
        return "there is a second TAB; inside a key or value it is written \\t";
    if (key_length == 0)
        return "the key is empty";
    const char *wrong = parse_escaped(line, key_length, key);
    return wrong ? wrong : parse_escaped(tab + 1, value_length, value);
}


/* ---- Binary ---- */

static uint32_t decode_length(const uint8_t *bytes) {
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}


static bool read_bytes(FILE *file, cli_bytes *to, size_t count) {
    to->length = 0;
    if (count > to->room) { /* fread writes directly into this memory */
        cli_bytes_free(to);
        to->bytes = malloc(count);
        if (!to->bytes)
            exit(cli_failed("no memory for %zu bytes", count));
        to->room = count;
    }
    to->length = count ? fread(to->bytes, 1, count, file) : 0;
    return to->length == count;
}


int cli_read_binary(FILE *file, cli_bytes *key, cli_bytes *value, const char **wrong) {
    uint8_t lengths[8];
    size_t got = fread(lengths, 1, sizeof(lengths), file);
    if (got == 0)
        return 0;
    uint32_t key_len = decode_length(lengths), value_len = decode_length(lengths + 4);
    *wrong = NULL;
    if (got < sizeof(lengths))
        *wrong = "the input ends inside the lengths";
    else if (key_len > CLI_PAIR_MAX || value_len > CLI_PAIR_MAX)
        *wrong = "a length is more than a MiB";
    else if (!read_bytes(file, key, key_len) || !read_bytes(file, value, value_len))
        *wrong = "the input ends inside a pair";
    else if (key_len == 0 && (value_len == 0 || value->bytes[0] != '%'))
        *wrong = "the key is empty";
    return *wrong ? -1 : key_len == 0 ? 2 : 1;
}


void cli_binary_lengths(size_t key_len, size_t value_len, uint8_t lengths[8]) {
    for (int i = 0; i < 4; i++) {
        lengths[i] = (uint8_t)(key_len >> (8 * i));
        lengths[4 + i] = (uint8_t)(value_len >> (8 * i));
    }
}


void cli_print_binary(FILE *file, const void *key, size_t key_len, const void *value, size_t value_len) {
    uint8_t lengths[8];
    cli_binary_lengths(key_len, value_len, lengths);
    fwrite(lengths, 1, sizeof(lengths), file);
    fwrite(key, 1, key_len, file);
    fwrite(value, 1, value_len, file);
}


int cli_parse_format(const char *command, const char *text, cli_format *format) {
    *format = CLI_LINES;
    if (!text || strcmp(text, "lines") == 0)
        return 0;
    *format = CLI_BINARY;
    return strcmp(text, "binary") == 0 ? 0
                                       : cli_wrong_usage(command, "--format: '%s' is neither lines nor binary", text);
}
