/* Keys and values as text, lines and binary pairs. */
#include "cli/data.h"

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

static int digit(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}


const char *cli_parse_hex(const char *text, size_t length, cli_bytes *to) {
    if (length % 2)
        return "hex has an even number of digits";
    for (size_t i = 0; i < length; i += 2) {
        int high = digit(text[i]), low = digit(text[i + 1]);
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

/* Bytes of the character that begins here; 0: it is none. Those that are written too long, halves of pairs and what is
 * beyond the last are none. */
static size_t character_at(const uint8_t *text, size_t left) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t length = text[0] < 0x80             ? 1
                    : (text[0] & 0xe0) == 0xc0 ? 2
                    : (text[0] & 0xf0) == 0xe0 ? 3
                    : (text[0] & 0xf8) == 0xf0 ? 4
                                               : 0;
    if (length <= 1 || length > left)
        return length <= 1 ? length : 0;
    uint32_t code = text[0] & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (text[i] & 0x3f);
    }
    return code < least[length] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000) ? 0 : length;
}


static bool is_utf8(const uint8_t *text, size_t count) {
    for (size_t at = 0; at < count;) {
        size_t length = character_at(text + at, count - at);
        if (length == 0)
            return false;
        at += length;
    }
    return true;
}


static void print_json_text(FILE *file, const uint8_t *text, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (text[i] == '"' || text[i] == '\\')
            fprintf(file, "\\%c", text[i]);
        else if (text[i] < 0x20 || text[i] == 0x7f)
            fprintf(file, "\\u%04x", text[i]);
        else
            fputc(text[i], file);
    }
}


static void print_base64(FILE *file, const uint8_t *bytes, size_t count) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < count; i += 3) {
        size_t here = count - i < 3 ? count - i : 3;
        uint32_t group = (uint32_t)bytes[i] << 16;
        for (size_t k = 1; k < here; k++)
            group |= (uint32_t)bytes[i + k] << (16 - 8 * k);
        for (size_t k = 0; k < 4; k++)
            fputc(k <= here ? digits[group >> (18 - 6 * k) & 63] : '=', file);
    }
}


void cli_json_bytes(FILE *file, const char *name, const void *bytes, size_t count) {
    bool text = is_utf8(bytes, count);
    fprintf(file, "\"%s\":\"", name);
    if (text)
        print_json_text(file, bytes, count);
    else
        print_base64(file, bytes, count);
    fputc('"', file);
    if (!text)
        fprintf(file, ",\"%s_encoding\":\"base64\"", name);
}


/* ---- Lines ---- */

/* Bytes above ASCII stay as they are: as a rule they are text. */
void cli_print_escaped(FILE *file, const void *bytes, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint8_t c = ((const uint8_t *)bytes)[i];
        if (c == '\t')
            fputs("\\t", file);
        else if (c == '\n')
            fputs("\\n", file);
        else if (c == '\\')
            fputs("\\\\", file);
        else if (c < 0x20 || c == 0x7f)
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
        } else if (kind == 'x' && i + 3 < length && digit(text[i + 2]) >= 0 && digit(text[i + 3]) >= 0) {
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

static uint32_t length_of(const uint8_t *bytes) {
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}


static bool read_bytes(FILE *file, cli_bytes *to, size_t count) {
    to->length = 0;
    if (count > to->room) { /* room first: it is read into directly */
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
    uint32_t key_len = length_of(lengths), value_len = length_of(lengths + 4);
    *wrong = NULL;
    if (got < sizeof(lengths))
        *wrong = "the input ends inside the lengths";
    else if (key_len > CLI_PAIR_MAX || value_len > CLI_PAIR_MAX)
        *wrong = "a length is more than a MiB";
    else if (!read_bytes(file, key, key_len) || !read_bytes(file, value, value_len))
        *wrong = "the input ends inside a pair";
    else if (key_len == 0 && !cli_header_begins((const char *)value->bytes, value_len))
        *wrong = "the key is empty";
    return *wrong ? -1 : key_len == 0 ? 2 : 1;
}


void cli_print_binary(FILE *file, const void *key, size_t key_len, const void *value, size_t value_len) {
    uint8_t lengths[8];
    for (int i = 0; i < 4; i++) {
        lengths[i] = (uint8_t)(key_len >> (8 * i));
        lengths[4 + i] = (uint8_t)(value_len >> (8 * i));
    }
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
