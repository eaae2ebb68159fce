/* What stands before the pairs of each index in a dump, so that a load can make the index anew: lines that begin with '%'
 * and have no TAB, as no pair is; in the binary format one record with an empty key, whose value is these lines. */
#include "cli/data.h"

#include <string.h>

#define FIRST_LINE "%farindex-dump 1"


void cli_header_print(FILE *file, cli_format format, const cli_header *header) {
    char text[sizeof(*header) + 64];
    int length =
        snprintf(text, sizeof(text), "%s\n%%index %s\n%%kind %s\n%s%s%s", FIRST_LINE, header->name, header->kind,
                 *header->options ? "%options " : "", header->options, *header->options ? "\n" : "");
    if (format == CLI_BINARY)
        cli_print_binary(file, "", 0, text, (size_t)length);
    else
        fwrite(text, 1, (size_t)length, file);
}


static const char *take(const char *line, const char *directive, size_t length, char *to, size_t room) {
    size_t skip = strlen(directive);
    if (length - skip >= room)
        return "a word of the header is too long";
    memcpy(to, line + skip, length - skip);
    to[length - skip] = 0;
    return NULL;
}


static bool begins(const char *line, size_t length, const char *directive) {
    return length > strlen(directive) && memcmp(line, directive, strlen(directive)) == 0;
}


static const char *parse_line(const char *line, size_t length, cli_header *header) {
    if (length == strlen(FIRST_LINE) && memcmp(line, FIRST_LINE, length) == 0)
        return NULL;
    if (begins(line, length, "%farindex-dump "))
        return "this dump is of another version";
    if (begins(line, length, "%index "))
        return take(line, "%index ", length, header->name, sizeof(header->name));
    if (begins(line, length, "%kind "))
        return take(line, "%kind ", length, header->kind, sizeof(header->kind));
    if (begins(line, length, "%options "))
        return take(line, "%options ", length, header->options, sizeof(header->options));
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
    return length >= strlen(FIRST_LINE) && memcmp(text, FIRST_LINE, strlen(FIRST_LINE)) == 0;
}
