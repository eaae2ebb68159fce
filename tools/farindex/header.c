/* The header and the trailer of a dump. The header precedes the pairs of each index, so that `load` can create the
 * index again. The trailer ends the dump, so that `load` can verify that the dump is complete and undamaged:
 *
 *     %farindex-dump 2
 *     %index fruit
 *     %kind dart
 *     %options max_key=300
 *     apple   red
 *     %end 1 1 5d41402abc4b2a76        number of indexes, number of pairs, checksum of all bytes before this line
 *
 * These lines begin with '%' and contain no TAB; every pair contains one. In the binary format the header and the
 * trailer are records with an empty key; the value of the record consists of these lines. Version 1 had no trailer. */
#include "tools/farindex/data.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_WORD "%farindex-dump "


/* Prints lines of a header or trailer. */
static void print_lines(FILE *file, cli_format format, const char *text, int length) {
    if (format == CLI_BINARY)
        cli_print_binary(file, "", 0, text, (size_t)length);
    else
        fwrite(text, 1, (size_t)length, file);
}


void cli_header_print(FILE *file, cli_format format, const cli_header *header) {
    char text[sizeof(*header) + 64];
    int length =
        snprintf(text, sizeof(text), "%s%u\n%%index %s\n%%kind %s\n%s%s%s", FIRST_WORD, CLI_DUMP_VERSION, header->name,
                 header->kind, *header->options ? "%options " : "", header->options, *header->options ? "\n" : "");
    print_lines(file, format, text, length);
}


void cli_trailer_print(FILE *file, cli_format format, const cli_trailer *trailer) {
    char text[80];
    int length = snprintf(text, sizeof(text), "%%end %" PRIu64 " %" PRIu64 " %016" PRIx64 "\n", trailer->indexes,
                          trailer->pairs, trailer->checksum);
    print_lines(file, format, text, length);
}


bool cli_trailer_parse(const char *line, size_t length, cli_trailer *trailer) {
    char text[80], again[80];
    if (length >= sizeof(text))
        return false;
    memcpy(text, line, length);
    text[length] = 0;
    if (sscanf(text, "%%end %" SCNu64 " %" SCNu64 " %" SCNx64, &trailer->indexes, &trailer->pairs,
               &trailer->checksum) != 3)
        return false;
    snprintf(again, sizeof(again), "%%end %" PRIu64 " %" PRIu64 " %016" PRIx64, trailer->indexes, trailer->pairs,
             trailer->checksum);
    return strcmp(text, again) == 0;
}


/* Parses the number of the version in the first line of a header. Returns NULL, or a description of the error. */
static const char *parse_version(const char *line, size_t length, unsigned *version) {
    static _Thread_local char wrong[160];
    size_t at = strlen(FIRST_WORD);
    uint64_t number = 0;
    for (; at < length && isdigit((unsigned char)line[at]) && number < 1000000; at++)
        number = 10 * number + (unsigned)(line[at] - '0');
    if (at != length || number == 0)
        return "the version of this dump is no number";
    if (number > CLI_DUMP_VERSION) {
        snprintf(wrong, sizeof(wrong),
                 "this dump has version %" PRIu64 ", which is newer than this program: it reads dumps up to version %u",
                 number, CLI_DUMP_VERSION);
        return wrong;
    }
    *version = (unsigned)number;
    return NULL;
}


static const char *copy_field(const char *line, const char *directive, size_t length, char *to, size_t room) {
    size_t skip = strlen(directive);
    if (length - skip >= room)
        return "a word of the header is too long";
    memcpy(to, line + skip, length - skip);
    to[length - skip] = 0;
    return NULL;
}


static bool line_begins_with(const char *line, size_t length, const char *directive) {
    return length > strlen(directive) && memcmp(line, directive, strlen(directive)) == 0;
}


static const char *parse_line(const char *line, size_t length, cli_header *header) {
    if (line_begins_with(line, length, FIRST_WORD))
        return parse_version(line, length, &header->version);
    if (line_begins_with(line, length, "%index "))
        return copy_field(line, "%index ", length, header->name, sizeof(header->name));
    if (line_begins_with(line, length, "%kind "))
        return copy_field(line, "%kind ", length, header->kind, sizeof(header->kind));
    if (line_begins_with(line, length, "%options "))
        return copy_field(line, "%options ", length, header->options, sizeof(header->options));
    return "there is no TAB between key and value, and this is no line of a header";
}


const char *cli_header_parse(const char *text, size_t length, cli_header *header) {
    const char *wrong = NULL;
    for (size_t at = 0; at < length && !wrong;) {
        const char *end = memchr(text + at, '\n', length - at);
        size_t here = end ? (size_t)(end - text) - at : length - at;
        wrong = parse_line(text + at, here, header);
        at += here + 1;
    }
    return wrong;
}


bool cli_header_begins(const char *text, size_t length) {
    return length >= strlen(FIRST_WORD) && memcmp(text, FIRST_WORD, strlen(FIRST_WORD)) == 0;
}
