/* The message with which a command reports that it has created a pool, for tests that compare the whole output. */
#ifndef TESTS_CLI_MADE_POOLS_H
#define TESTS_CLI_MADE_POOLS_H

#include <string.h>

/* Removes the message "farindex: created the pool ..." from the output `text`. The first command that uses a pool
 * prints this message, and several commands of a test may be the first one. Tests of the message itself do not call
 * this function. */
static inline void remove_pool_creation_messages(char *text) {
    static const char words[] = "farindex: created the pool ";
    for (char *line = text; (line = strstr(line, words));) {
        char *end = strchr(line, '\n') + 1;
        memmove(line, end, strlen(end) + 1);
    }
}

#endif
