/* Key sets compute the key of each record number, for numbers, e-mail addresses, keys with long common prefixes, and
 * files. */
#include "workload/keyset.h"

#include "base/parse.h"
#include "base/random.h"
#include "farindex.h"
#include "workload/email.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

typedef enum { KEYS_U64, KEYS_SEQ, KEYS_EMAIL, KEYS_PREFIX, KEYS_FILE } keyset_kind;

struct far_keyset {
    keyset_kind kind;
    uint64_t offset; /* u64: start of the sequence of the seed; prefix: assignment of bytes to digits */
    size_t size;     /* size of each key of u64 and seq */
    far_email *email;
    char *text;     /* file: its contents */
    size_t *starts; /* file: offset of each line, and at the end the offset after the last newline */
    uint64_t lines;
    char name[];
};


static void put_big_endian(uint8_t *to, uint64_t number) {
    number = __builtin_bswap64(number);
    memcpy(to, &number, 8);
}


/* Writes a key that consists of digits followed by NULs. The last digit is one of three bytes that are not NUL, so the
 * end of the digits can be recognized; the digits before it are a bijective numeral in base 4, in which NUL is a digit.
 * Eight records share their digits and differ in the number of NULs. Numbers below 2^61 have at most 31 digits, so a
 * key with nine NULs has at most 40 bytes. Keys with few digits get more NULs. */
static size_t prefix_key(uint64_t turn, uint64_t record, uint8_t *key) {
    static const uint8_t bytes[4] = {0x01, 'a', 0xff, 0x00};
    static const uint8_t few[8] = {0, 1, 2, 3, 4, 6, 8, 9}, many[8] = {0, 1, 2, 3, 7, 8, 16, 31};
    uint64_t row = record / 8;
    uint8_t reversed[32];
    size_t len = 0;
    reversed[len++] = bytes[(row % 3 + turn % 3) % 3];
    for (uint64_t rest = row / 3; rest > 0; rest = (rest - 1) / 4)
        reversed[len++] = bytes[(rest - 1 + (turn >> 32)) % 4];
    for (size_t i = 0; i < len; i++)
        key[i] = reversed[len - 1 - i];
    size_t nuls = len <= 9 ? many[record % 8] : few[record % 8];
    memset(key + len, 0, nuls);
    return len + nuls;
}


/* Writes a key that begins with the number, which makes keys different; the bytes that fill it up are derived from the
 * number. */
static size_t number_key(const far_keyset *set, uint64_t number, uint8_t *key) {
    uint64_t state = number;
    put_big_endian(key, number);
    for (size_t at = 8; at < set->size; at += 8) {
        uint64_t filler = far_splitmix(&state);
        memcpy(key + at, &filler, set->size - at < 8 ? set->size - at : 8);
    }
    return set->size;
}


size_t far_keyset_key(const far_keyset *set, uint64_t record, void *buffer) {
    uint64_t state;
    size_t len;
    switch (set->kind) {
    case KEYS_U64:
        state = set->offset + record * 0x9e3779b97f4a7c15ull;
        return number_key(set, far_splitmix(&state), buffer);
    case KEYS_SEQ:
        return number_key(set, record, buffer);
    case KEYS_EMAIL:
        return far_email_key(set->email, record, buffer);
    case KEYS_PREFIX:
        return prefix_key(set->offset, record, buffer);
    default:
        len = set->starts[record + 1] - set->starts[record] - 1;
        memcpy(buffer, set->text + set->starts[record], len);
        return len;
    }
}


/* Reads a whole file, which may be a pipe. Adds a newline if the last line has none. */
static int read_file(const char *path, char **text, size_t *size, char *error, size_t error_size) {
    FILE *file = fopen(path, "rb");
    size_t capacity = 1 << 16, used = 0, got = 1;
    char *bytes = malloc(capacity);
    int failed = 0;
    if (!file) {
        far_refuse(error, error_size, "cannot read %s: %s", path, strerror(errno));
        free(bytes);
        return FAR_ERR_NOT_FOUND;
    }
    while (bytes && got > 0) {
        got = fread(bytes + used, 1, capacity - used - 1, file);
        used += got;
        if (used < capacity - 1)
            continue;
        capacity *= 2;
        char *larger = realloc(bytes, capacity);
        if (!larger)
            free(bytes);
        bytes = larger;
    }
    failed = ferror(file) ? errno : 0;
    fclose(file);
    if (!bytes)
        return FAR_ERR_NO_MEMORY;
    if (failed != 0) {
        far_refuse(error, error_size, "cannot read %s: %s", path, strerror(failed));
        free(bytes);
        return FAR_ERR_NOT_FOUND;
    }
    if (used > 0 && bytes[used - 1] != '\n')
        bytes[used++] = '\n';
    *text = bytes;
    *size = used;
    return FAR_OK;
}


static int cut_lines(far_keyset *set, size_t size, const char *path, char *error, size_t error_size) {
    uint64_t lines = 0;
    for (const char *at = set->text; (at = memchr(at, '\n', size - (size_t)(at - set->text))); at++)
        lines++;
    if (lines == 0)
        return far_refuse(error, error_size, "%s is empty", path);
    set->starts = malloc((lines + 1) * sizeof *set->starts);
    if (!set->starts)
        return FAR_ERR_NO_MEMORY;
    set->starts[0] = 0;
    for (uint64_t i = 0; i < lines; i++) {
        const char *start = set->text + set->starts[i], *end = memchr(start, '\n', size - set->starts[i]);
        if (end == start)
            return far_refuse(error, error_size, "%s: line %llu is empty", path, (unsigned long long)i + 1);
        if (end - start > FAR_KEY_MAX)
            return far_refuse(error, error_size, "%s: line %llu has %zu bytes, a key at most %d", path,
                              (unsigned long long)i + 1, (size_t)(end - start), FAR_KEY_MAX);
        set->starts[i + 1] = set->starts[i] + (size_t)(end - start) + 1;
    }
    set->lines = lines;
    return FAR_OK;
}


/* Returns an error if two lines are equal. Inserts each line into an open hash table of line numbers (0: empty entry),
 * which is at most half full. */
static int refuse_duplicates(const far_keyset *set, const char *path, char *error, size_t error_size) {
    uint64_t places = 16;
    while (places < set->lines * 2)
        places *= 2;
    uint64_t *table = calloc(places, sizeof *table);
    int result = FAR_OK;
    if (!table)
        return FAR_ERR_NO_MEMORY;
    for (uint64_t line = 1; line <= set->lines && result == FAR_OK; line++) {
        const char *start = set->text + set->starts[line - 1];
        size_t len = set->starts[line] - set->starts[line - 1];
        uint64_t place = XXH3_64bits(start, len) & (places - 1);
        for (; table[place] != 0 && result == FAR_OK; place = (place + 1) & (places - 1)) {
            uint64_t other = table[place];
            if (set->starts[other] - set->starts[other - 1] == len &&
                memcmp(set->text + set->starts[other - 1], start, len) == 0)
                result = far_refuse(error, error_size, "%s: line %llu repeats line %llu", path,
                                    (unsigned long long)line, (unsigned long long)other);
        }
        if (result == FAR_OK)
            table[place] = line;
    }
    free(table);
    return result;
}


static int open_file(far_keyset *set, const char *path, char *error, size_t error_size) {
    size_t size = 0;
    int result = read_file(path, &set->text, &size, error, error_size);
    if (result == FAR_OK)
        result = cut_lines(set, size, path, error, error_size);
    if (result == FAR_OK)
        result = refuse_duplicates(set, path, error, error_size);
    return result;
}


static int kind_of(const char *spec, keyset_kind *kind) {
    static const char *const names[] = {"u64", "seq", "email", "prefix"};
    for (int i = 0; i < 4; i++) {
        size_t length = strlen(names[i]);
        bool sized = i <= KEYS_SEQ && spec[strcspn(spec, ":")] == ':';
        *kind = (keyset_kind)i;
        if (strncmp(spec, names[i], length) == 0 && (spec[length] == '\0' || (sized && spec[length] == ':')))
            return 1;
    }
    *kind = KEYS_FILE;
    return strncmp(spec, "file:", 5) == 0;
}


/* Parses the size of keys, which is the number after the colon, or 8 without one. */
static int parse_key_size(const char *spec, uint64_t *size, char *error, size_t error_size) {
    const char *colon = strchr(spec, ':');
    *size = 8;
    if (colon && far_parse_number(colon + 1, size, error, error_size) != FAR_OK)
        return FAR_ERR_INVALID;
    return *size >= 8 && *size <= FAR_KEY_MAX
               ? FAR_OK
               : far_refuse(error, error_size, "keys of numbers have 8..%d bytes, not %llu", FAR_KEY_MAX,
                            (unsigned long long)*size);
}


int far_keyset_open(const char *spec, uint64_t seed, far_keyset **set, char *error, size_t error_size) {
    keyset_kind kind;
    uint64_t size = 0;
    int result = FAR_OK;
    if (!spec || !kind_of(spec, &kind))
        return far_refuse(error, error_size, "unknown key set '%.40s' (u64, seq, email, prefix or file:PATH)",
                          spec ? spec : "");
    if (kind == KEYS_FILE && spec[5] == '\0')
        return far_refuse(error, error_size, "file: needs a path");
    if (kind <= KEYS_SEQ && (result = parse_key_size(spec, &size, error, error_size)) != FAR_OK)
        return result;
    far_keyset *made = calloc(1, sizeof *made + strlen(spec) + 1);
    if (made) {
        memcpy(made->name, spec, strlen(spec) + 1);
        made->kind = kind;
        made->size = (size_t)size;
        made->offset = far_splitmix(&seed);
    }
    if (!made || (kind == KEYS_EMAIL && !(made->email = far_email_new(seed))))
        result = FAR_ERR_NO_MEMORY;
    else if (kind == KEYS_FILE)
        result = open_file(made, spec + 5, error, error_size);
    if (result != FAR_OK) {
        if (result == FAR_ERR_NO_MEMORY)
            far_refuse(error, error_size, "out of memory for the key set '%.40s'", spec);
        far_keyset_close(made);
        return result;
    }
    *set = made;
    return FAR_OK;
}


void far_keyset_close(far_keyset *set) {
    if (!set)
        return;
    far_email_free(set->email);
    free(set->text);
    free(set->starts);
    free(set);
}


uint64_t far_keyset_count_limit(const far_keyset *set) {
    return set->kind == KEYS_FILE ? set->lines : set->kind == KEYS_EMAIL ? FAR_EMAIL_RECORDS : UINT64_MAX;
}


size_t far_keyset_fixed_size(const far_keyset *set) {
    return set->size;
}


const char *far_keyset_name(const far_keyset *set) {
    return set->name;
}
