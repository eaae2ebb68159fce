/* Measures the time that a busy machine adds to every wait: the time that processes of a test wait for a processor, and
 * the time that the host takes from a virtual machine. Tests of time limits subtract it.
 *
 * A separate observer process samples every few milliseconds. The kernel provides the numbers (run_delay in
 * /proc/PID/task/TID/schedstat, steal in /proc/stat). If it does not, only the delays of the observer itself are known.
 *
 * A waiting process depends on one process at a time: itself, or the process that must act next. Therefore each sample
 * counts the longest delay of all watched processes, and not their sum. With the sum, work of unrelated processes would
 * excuse any wait. */
#ifndef TESTS_STALLS_H
#define TESTS_STALLS_H

#include <stdint.h>
#include <sys/types.h>

#define STALLS_WATCHED 8

typedef struct stalls_book stalls_book;

typedef struct stalls {
    stalls_book *book; /* list of samples in memory that is shared with the observer process */
    pid_t pid;
} stalls;

void stalls_begin(stalls *s);
/* observes this process at `place` from now on; pid 0: no process is observed there */
void stalls_watch(stalls *s, unsigned place, pid_t pid);
void stalls_end(stalls *s);
void stalls_free(stalls *s);

/* Returns the part of the time between `from` and `to` (CLOCK_MONOTONIC, ns) that is left after subtracting the delays.
 */
int64_t stalls_fair_time(const stalls *s, int64_t from, int64_t to);

#endif
