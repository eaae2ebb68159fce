/* Finds the name that a mistyped word was probably meant to be (cli_closest, cli_suggest). */
#include "tools/common/cli.h"

#include <stdio.h>
#include <string.h>

#define WORD_MAX 32 /* longer words are not compared */


static size_t least_of(size_t a, size_t b, size_t c) {
    size_t least = a < b ? a : b;
    return least < c ? least : c;
}


/* Returns the number of characters to insert, remove, replace or swap with their neighbour that turns one word into the
 * other (optimal string alignment). Both words have at most WORD_MAX characters. */
static size_t count_edits(const char *a, const char *b) {
    size_t rows[3][WORD_MAX + 1], length = strlen(b);
    for (size_t j = 0; j <= length; j++)
        rows[0][j] = j;
    for (size_t i = 1; a[i - 1]; i++) {
        size_t *row = rows[i % 3], *above = rows[(i + 2) % 3], *two_above = rows[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= length; j++) {
            row[j] = least_of(above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && two_above[j - 2] + 1 < row[j])
                row[j] = two_above[j - 2] + 1;
        }
    }
    return rows[strlen(a) % 3][length];
}


const char *cli_closest(const char *word, cli_name_at *name_at, const void *ctx) {
    const char *closest = NULL, *name;
    size_t length = strlen(word), least = length <= 3 ? 2 : 3; /* the number of edits must be smaller */
    for (size_t i = 0; length > 0 && length <= WORD_MAX && (name = name_at(ctx, i)); i++) {
        size_t edits = strlen(name) <= WORD_MAX ? count_edits(word, name) : least;
        if (edits < least && edits < length) {
            least = edits;
            closest = name;
        }
    }
    return closest;
}


const char *cli_suggest(const char *word, cli_name_at *name_at, const void *ctx, char hint[CLI_HINT]) {
    const char *closest = cli_closest(word, name_at, ctx);
    *hint = 0;
    if (closest)
        snprintf(hint, CLI_HINT, "; did you mean '%s'?", closest);
    return hint;
}
