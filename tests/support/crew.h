/* A crew: processes that work on the hot keys of one pool, and write down what they do in memory that outlives
 * them. An operation is in the book before it begins, so that those cut by a death are known. The parent has no handle
 * of the pool while they work. */
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
    _Atomic uint32_t state; /* 0: empty, 1: begun, 2: ended */
    uint16_t client;        /* its number is never used twice */
    uint8_t op, key, to, pairs;
    uint32_t limit;
    int32_t result;
    int64_t start, end;
    uint64_t version; /* written, or what a get found */
    uint64_t pair_versions[CREW_KEYS];
    uint8_t pair_keys[CREW_KEYS];
} crew_record;

typedef struct crew_book {
    _Atomic uint64_t used;    /* records */
    _Atomic uint64_t allowed; /* so many may be used by now: who finds more rests */
    atomic_bool stop;
    atomic_bool telling; /* somebody has begun to write words */
    atomic_uint clients; /* numbers given out */
    atomic_int broken;   /* the first unexpected result; what it was is in words */
    char words[400];
    _Atomic uint64_t done_by[CREW_MAX];    /* operations that ended, by place */
    _Atomic int64_t stuck_since[CREW_MAX]; /* when the operation under way began; 0: none (crews of depth 1) */
    crew_record records[];
} crew_book;

typedef struct crew {
    const char *uri, *kind, *options;
    uint64_t seed;
    unsigned places;
    bool own_keys; /* each place works on keys of its own */
    bool no_scans;
    bool reopens;   /* memory nodes may be killed: who is lost opens the pool again, as another client */
    uint64_t limit; /* records in the book */
    long pace_ns;   /* rest after each operation; 0: a short one now and then */
    crew_book *book;
    pid_t pids[CREW_MAX];
    uint64_t done[CREW_MAX]; /* operations of the place before its process was started */
} crew;

/* crew_begin: there is an index CREW_INDEX already, and this process opens no pool before crew_verify. */
void crew_begin(crew *c, const char *uri, const char *kind, const char *options, unsigned places, uint64_t limit);
void crew_up(crew *c, const char *uri, const char *kind, const char *options, unsigned places, uint64_t limit);
void crew_start(crew *c, unsigned place); /* a process for that place */
void crew_kill(crew *c, unsigned place);  /* SIGKILL, and waits until it is gone */
/* Until the process of that place has done so many operations, or something is broken. */
void crew_await(crew *c, unsigned place, uint64_t operations);
void crew_finish(crew *c); /* all that live stop and end well, or the test fails */
void crew_down(crew *c);

int64_t crew_now(void);
bool crew_broken(const crew *c, char *words, size_t size);

/* Everything in the book as a history; *longest: ns of the longest operation that ended. */
far_history *crew_history(const crew *c, int64_t *longest, uint64_t *cut);

/* Afterwards: reads all keys into the history, then verifies it, checks and repairs the pool, and finds nothing leaked.
 */
void crew_verify(crew *c, far_history *history);

size_t crew_key(unsigned key, char text[32]);

#endif
