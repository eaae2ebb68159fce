/* What a busy machine adds to every wait: how long processes of a test stood in line for a processor, or the machine as
 * a whole stood still. A process of its own looks every few milliseconds, while the others work; the kernel counts
 * (run_delay in /proc/PID/task/TID/schedstat, steal in /proc/stat). Where it does not count, only what the looking
 * process itself missed is known. Who waits needs one of them at a time (itself, or the one whose turn it is), so of
 * all that stood in line since the last look the one that did longest counts, not their sum: else the others' work
 * would excuse any wait. */
#ifndef TESTS_STALLS_H
#define TESTS_STALLS_H

#include <stdint.h>
#include <sys/types.h>

#define STALLS_WATCHED 8

typedef struct stalls_book stalls_book;

typedef struct stalls {
    stalls_book *book; /* shared with it */
    pid_t pid;
} stalls;

void stalls_begin(stalls *s);
void stalls_watch(stalls *s, unsigned place, pid_t pid); /* from now on; 0: nobody */
void stalls_end(stalls *s);
void stalls_free(stalls *s);

/* What is left of the time (of CLOCK_MONOTONIC, ns) between these two without that. */
int64_t stalls_fair_time(const stalls *s, int64_t from, int64_t to);

#endif
