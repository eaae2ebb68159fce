/* A crew is a set of processes that run operations on a few keys of one pool. They record each operation in a book,
 * which is memory that they share with the parent and that outlives them. A record is written before its operation
 * begins, so operations that were cut off by a kill are known, too. Afterwards the test checks that the records form a
 * linearizable history. The parent has no handle on the pool while the processes run.
 *
 * Each process has a place, which is a number below CREW_MAX. Processes at even places run one operation at a time;
 * processes at odd places keep several operations in flight. */
#ifndef TESTS_CREW_H
#define TESTS_CREW_H

#include "farindex.h"
#include "verify/history.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#define CREW_MAX       8
#define CREW_KEYS      16
#define CREW_VALUE_MAX 1200
#define CREW_INDEX     "hot"

typedef struct crew_record {
    _Atomic uint32_t state; /* 0: the record is empty; 1: the operation has begun; 2: it has ended */
    uint16_t client;        /* number of the client that ran the operation; no two clients have the same number */
    uint8_t op, key, to, pairs;
    uint32_t limit;
    int32_t result;
    int64_t start, end;
    uint64_t version; /* version of the value that was written, or that a get found */
    uint64_t pair_versions[CREW_KEYS];
    uint8_t pair_keys[CREW_KEYS];
} crew_record;

typedef struct crew_book {
    _Atomic uint64_t used;    /* number of records of the book used so far */
    _Atomic uint64_t allowed; /* limit for `used`; a process that would exceed it pauses until the limit rises */
    atomic_bool stop;
    atomic_bool telling; /* set by the process that writes `words`, so that only the first process writes them */
    atomic_uint clients; /* number of client numbers issued so far */
    atomic_int broken;   /* result code of the first unexpected result, which `words` describes; 0: there was none */
    char words[400];
    _Atomic uint64_t done_by[CREW_MAX]; /* for each place, the number of operations that ended */
    /* start time of the operation in progress; 0: none (only for places that run one operation at a time) */
    _Atomic int64_t operation_since[CREW_MAX];
    crew_record records[];
} crew_book;

typedef struct crew {
    const char *uri, *kind, *options;
    uint64_t seed;
    unsigned places;
    bool own_keys; /* true if each place uses its own keys */
    bool no_scans;
    /* Set when memory nodes may be killed. Then a process that has lost its session opens the pool again as a new
     * client. */
    bool reopens;
    uint64_t limit; /* number of records in the book */
    long pace_ns;   /* pause in ns after each operation; 0: processes make a short pause after some operations only */
    crew_book *book;
    pid_t pids[CREW_MAX];
    /* for each place, the number of operations that ended before the current process of the place was started */
    uint64_t done[CREW_MAX];
} crew;

/* Both functions prepare a crew. For crew_begin, the index CREW_INDEX must exist, and this process must not open the
 * pool before crew_verify. */
void crew_begin(crew *c, const char *uri, const char *kind, const char *options, unsigned places, uint64_t limit);
void crew_up(crew *c, const char *uri, const char *kind, const char *options, unsigned places, uint64_t limit);
void crew_start(crew *c, unsigned place); /* starts a process for the place */
void crew_kill(crew *c, unsigned place);  /* kills the process by SIGKILL and waits for its end */
/* Waits until the process of the place has finished this many operations, or a process has recorded an unexpected
 * result. */
void crew_await(crew *c, unsigned place, uint64_t operations);
void crew_finish(crew *c); /* stops all processes and waits for them; the test fails if one does not exit normally */
void crew_down(crew *c);

int64_t crew_now(void);
bool crew_broken(const crew *c, char *words, size_t size);

/* Returns all records of the book as a history. *longest is the duration in ns of the longest operation that ended, and
 * *cut is the number of operations that did not end. */
far_history *crew_history(const crew *c, int64_t *longest, uint64_t *cut);

/* Reads all keys and adds the results to the history. Then checks that the history is linearizable, repairs the pool,
 * and checks that no memory is leaked. */
void crew_verify(crew *c, far_history *history);

size_t crew_key(unsigned key, char text[32]);

#endif
