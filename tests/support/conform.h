/* The conformance suite's frame: a behaviour is a function that proves one promise of farindex.h; conform_main runs
 * each of them for every index kind on every fabric. tests/conformance/README.md says how a kind or a fabric joins. */
#ifndef TESTS_CONFORM_H
#define TESTS_CONFORM_H

#include "farindex.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))
#define CONFORM_URI     256
#define CONFORM_KINDS   16

/* Where pools of a test live. */
typedef struct fabric {
    const char *name; /* as shown, and as --fabric takes it */
    bool threads;     /* a pool can be used by several OS threads */

    /* Gives the URI of a pool that nobody else uses: all handles opened with it share one pool of `size` per memory
     * node. */
    void (*make)(const struct fabric *fabric, const char *size, unsigned serial, char uri[CONFORM_URI]);
    void (*remove)(const char *uri); /* what is left of the pool when all is closed; may be NULL */
    const char *format, *mark;       /* for make: the URI with %s for the size, and what comes before the pool's name */
    enum {
        EVERY_TIME,
        IN_ROTATION,
        WHEN_ASKED
    } when; /* rotation: each behaviour for one kind; asked: --fabric, --all */
} fabric;

extern const fabric conform_fabrics[];
extern const size_t conform_fabric_count;

/* What a behaviour is run for. */
typedef struct conform {
    const fabric *fabric;
    const char *kind;
    const char *options; /* for every index that is created; may be NULL */
    bool ordered;        /* the kind has scans */
} conform;

enum {
    FOR_ALL = 0,
    FOR_ORDERED = 1,
    FOR_UNORDERED = 2,
    FOR_THREADS = 4,
    IN_TURN = 8, /* long: on one fabric for each kind, not the same for all kinds */
};

typedef struct behaviour {
    const char *name;
    void (*run)(const conform *c);
    unsigned only; /* FOR_..., IN_TURN */
} behaviour;

/* clang-format off */
#define BEHAVIOUR(function)           {#function, function, FOR_ALL}
#define BEHAVIOUR_FOR(function, only) {#function, function, only}
/* clang-format on */

/* Runs all behaviours for all kinds and fabrics, as tests named kind/fabric/behaviour, or for those that the arguments
 * ask for: --kind K, --fabric F, --options O, --filter PATTERN (of test names, with * and ?), --list. The thread
 * sanitizer is slow: under it each behaviour is run on one fabric in turn, unless --fabric or --all asks for more. */
int conform_main(int argc, char **argv, const char *group, const behaviour *behaviours, size_t count);

/* The kinds that far_kinds lists, and the toy map; returns how many. */
size_t conform_kinds(const char *kinds[CONFORM_KINDS]);
bool conform_kind_is_ordered(const char *kind);


/* A pool with a session and an empty index, and what most tests do with them. */
#define RIG_SIZE "64M"

typedef struct rig {
    const conform *c;
    char uri[CONFORM_URI];
    far_pool *pool;
    far_session *session;
    far_index *index; /* named "index" */
    bool owner;       /* with its close the pool is removed */
} rig;

void rig_up(rig *r, const conform *c);
void rig_up_with(rig *r, const conform *c, const char *size, const far_pool_options *pool_options,
                 const char *index_options);
void rig_up_bare(rig *r, const conform *c, const char *size, const far_pool_options *options); /* without the index */
void rig_down(rig *r);  /* verifies index and pool, then closes everything */
void rig_close(rig *r); /* only closes */

/* A second handle on the pool of `first`, with its own session and the index opened. */
void rig_join(rig *r, const rig *first);

void rig_create(const rig *r, const char *name, far_index **index); /* another index of the rig's kind */
void assert_pool_is_sound(far_session *session);                    /* no problem, nothing leaked */
void assert_index_is_sound(far_session *session, far_index *index);


/* The result of a call, told with the call, the words of the library and the place when it is another. */
#define assert_code(expected, call) check_code((int64_t)(call), (expected), #call, __FILE__, __LINE__)
#define assert_ok(call)             assert_code(FAR_OK, call)

/* FAR_ERR_INVALID, with a message that has `word` in it. */
#define assert_refused(word, call) check_refused((int64_t)(call), (word), #call, __FILE__, __LINE__)

void check_code(int64_t got, int64_t expected, const char *call, const char *file, int line);
void check_refused(int64_t got, const char *word, const char *call, const char *file, int line);


/* Keys and values as C strings. */
int put_text(const rig *r, const char *key, const char *value);
int insert_text(const rig *r, const char *key, const char *value);
int update_text(const rig *r, const char *key, const char *value);
int delete_text(const rig *r, const char *key);
int get_code(const rig *r, const char *key); /* what far_get returns for it */
#define assert_text(r, key, value)                                                                                     \
    check_value((r)->session, (r)->index, key, strlen(key), value, strlen(value), __FILE__, __LINE__)

/* The key has exactly that value. */
#define assert_value(session, index, key, key_len, value, value_len)                                                   \
    check_value(session, index, key, key_len, value, value_len, __FILE__, __LINE__)
void check_value(far_session *session, far_index *index, const void *key, size_t key_len, const void *value,
                 size_t value_len, const char *file, int line);

/* A key of number n: 8 bytes, big-endian, so that keys are ordered as numbers. */
void number_key(uint64_t n, uint8_t key[8]);

/* Puts, and verifies, the value of that length and version that belongs to the key (workload/value.h). */
int put_proof(far_session *session, far_index *index, const void *key, size_t key_len, size_t value_len,
              uint64_t version);
void assert_proof(far_session *session, far_index *index, const void *key, size_t key_len, size_t value_len,
                  uint64_t version);


/* What a scan gave. */
typedef struct pair {
    uint8_t *key, *value;
    size_t key_len, value_len;
} pair;

typedef struct pairs {
    pair *items;
    size_t count, room;
    size_t stop_at; /* collect_pair asks to stop when there are so many; 0 = never */
} pairs;

int collect_pair(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len); /* ctx: a pairs */
void pairs_free(pairs *p);
int compare_bytes(const void *a, size_t a_len, const void *b, size_t b_len); /* memcmp, then length */

int count_problem(void *ctx, const char *what); /* ctx: an int; prints the problem */

#endif
