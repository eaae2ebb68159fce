/* The header that precedes the pairs of each index in a dump, so that `load` can create the index again. It consists of
 * lines that begin with '%' and contain no TAB; every pair contains one. In the binary format the header is a record
 * with an empty key, whose value consists of these lines. */
#include "tools/farindex/data.h"

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
    if (length == strlen(FIRST_LINE) && memcmp(line, FIRST_LINE, length) == 0)
        return NULL;
    if (line_begins_with(line, length, "%farindex-dump "))
        return "this dump is of another version";
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
    return length >= strlen(FIRST_LINE) && memcmp(text, FIRST_LINE, strlen(FIRST_LINE)) == 0;
}
