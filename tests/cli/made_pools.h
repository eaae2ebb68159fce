/* What commands say when they make a pool, for tests that compare all that was said. */
#ifndef TESTS_CLI_MADE_POOLS_H
#define TESTS_CLI_MADE_POOLS_H

#include <string.h>

/* That a pool was made is told, by whichever command comes first: tests that ask for it look themselves. */
static inline void forget_made_pools(char *text) {
    static const char words[] = "farindex: made the pool ";
    for (char *line = text; (line = strstr(line, words));) {
        char *end = strchr(line, '\n') + 1;
        memmove(line, end, strlen(end) + 1);
    }
}

#endif
