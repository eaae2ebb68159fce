/* Framework of the conformance suite. A behaviour is a function that proves one promise of farindex.h. Each behaviour
 * runs for every index kind on every fabric. tests/conformance/README.md says how to add a kind or a fabric. */
#ifndef TESTS_CONFORM_H
#define TESTS_CONFORM_H

#include "farindex.h"
#include "test.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))
#define CONFORM_URI     256
#define CONFORM_KINDS   16

/* A fabric on which behaviours run. */
typedef struct fabric {
    const char *name; /* name of the fabric, in the names of tests and in the argument --fabric */
    bool threads;     /* true if several OS threads may use a pool of this fabric */

    /* Makes the URI of a new pool. All handles opened with it share one pool with `size` bytes per memory node. */
    void (*make)(const struct fabric *fabric, const char *size, unsigned serial, char uri[CONFORM_URI]);
    void (*remove)(const char *uri); /* removes the pool after all handles were closed; may be NULL */
    /* arguments of `make`. For most fabrics, `format` is the URI with %s for the size, and `mark` is the text before
     * the name of the pool. */
    const char *format, *mark;
    enum {
        EVERY_TIME,  /* used for all behaviours and kinds */
        IN_ROTATION, /* used by each behaviour for one kind only */
        WHEN_ASKED   /* used only with the arguments --fabric or --all */
    } when;
} fabric;

extern const fabric conform_fabrics[];
extern const size_t conform_fabric_count;

/* The kind and the fabric for which a behaviour runs. */
typedef struct conform {
    const fabric *fabric;
    const char *kind;
    const char *options; /* options of every index that the behaviour creates; may be NULL */
    bool ordered;        /* true if the kind supports scans */
} conform;

enum {
    FOR_ALL = 0,
    FOR_ORDERED = 1,
    FOR_UNORDERED = 2,
    FOR_THREADS = 4,
    /* for a long behaviour: it runs for each kind on one fabric only, and different kinds use different fabrics */
    IN_TURN = 8,
};

typedef struct behaviour {
    const char *name;
    void (*run)(const conform *c);
    unsigned only; /* set of FOR_... and IN_TURN that restricts where the behaviour runs */
    unsigned line; /* line of the behaviour in its source file; behaviours run in the order of their lines */
    struct behaviour *next;
} behaviour;

/* Defines a behaviour: BEHAVIOUR(name) { ... }, with the parameter `const conform *c`. The program runs each of its
 * behaviours for all kinds and fabrics, as tests named kind/fabric/behaviour, or for those that the arguments ask for:
 * --kind K, --fabric F, --options O, --filter PATTERN (of test names, with * and ?), --list. The thread sanitizer is
 * slow, so under it each behaviour runs on one fabric in turn, unless --fabric or --all asks for more. */
#define BEHAVIOUR(name) BEHAVIOUR_FOR(name, FOR_ALL)
#define BEHAVIOUR_FOR(name, only)                                                                                      \
    static void name(const conform *c);                                                                                \
    __attribute__((constructor)) static void name##_register(void) {                                                   \
        static behaviour entry = {#name, name, only, __LINE__, NULL};                                                  \
        conform_register(&entry);                                                                                      \
    }                                                                                                                  \
    static void name(const conform *c)

void conform_register(behaviour *entry); /* adds a behaviour to the program; called by the macros below */

/* Stores the names of the kinds that far_kinds lists, and of toy. Returns their number. */
size_t conform_kinds(const char *kinds[CONFORM_KINDS]);
bool conform_kind_is_ordered(const char *kind);


/* A pool with a session and an empty index. */
#define RIG_SIZE "64M"

typedef struct rig {
    const conform *c;
    char uri[CONFORM_URI];
    far_pool *pool;
    far_session *session;
    far_index *index; /* index of the rig, named "index" */
    bool owner;       /* true if closing this rig also removes the pool */
} rig;

void rig_up(rig *r, const conform *c);
void rig_up_with(rig *r, const conform *c, const char *size, const far_pool_options *pool_options,
                 const char *index_options);
/* opens the pool and a session, but no index */
void rig_up_bare(rig *r, const conform *c, const char *size, const far_pool_options *options);
void rig_down(rig *r);  /* checks index and pool, then closes everything */
void rig_close(rig *r); /* closes everything without a check */

/* Opens a second handle on the pool of `first`, with its own session and the same index. */
void rig_join(rig *r, const rig *first);

void rig_create(const rig *r, const char *name, far_index **index); /* creates another index of the rig's kind */
void assert_pool_is_sound(far_session *session); /* asserts that a check reports no problem and no leaked memory */
void assert_index_is_sound(far_session *session, far_index *index);


/* Asserts the result of a call. On failure, prints the call, its source line, its result and the error message of the
 * library. */
#define assert_code(expected, call) check_code((int64_t)(call), (expected), #call, __FILE__, __LINE__)
#define assert_ok(call)             assert_code(FAR_OK, call)

/* Asserts that the call returns FAR_ERR_INVALID with a message that contains `word`. */
#define assert_refused(word, call) check_refused((int64_t)(call), (word), #call, __FILE__, __LINE__)

void check_code(int64_t got, int64_t expected, const char *call, const char *file, int line);
void check_refused(int64_t got, const char *word, const char *call, const char *file, int line);


/* Operations on keys and values that are C strings. */
int put_text(const rig *r, const char *key, const char *value);
int insert_text(const rig *r, const char *key, const char *value);
int update_text(const rig *r, const char *key, const char *value);
int delete_text(const rig *r, const char *key);
int get_code(const rig *r, const char *key); /* returns the result of far_get for the key */
#define assert_text(r, key, value)                                                                                     \
    check_value((r)->session, (r)->index, key, strlen(key), value, strlen(value), __FILE__, __LINE__)

/* Asserts that the key has exactly this value. */
#define assert_value(session, index, key, key_len, value, value_len)                                                   \
    check_value(session, index, key, key_len, value, value_len, __FILE__, __LINE__)
void check_value(far_session *session, far_index *index, const void *key, size_t key_len, const void *value,
                 size_t value_len, const char *file, int line);

/* Makes the key of number n: 8 bytes, big-endian, so that the key order is the order of the numbers. */
void number_key(uint64_t n, uint8_t key[8]);

/* put_proof puts a value that is computed from the key, the length and the version; assert_proof checks such a value
 * (workload/value.h). */
int put_proof(far_session *session, far_index *index, const void *key, size_t key_len, size_t value_len,
              uint64_t version);
void assert_proof(far_session *session, far_index *index, const void *key, size_t key_len, size_t value_len,
                  uint64_t version);


/* A pair that a scan has delivered. */
typedef struct pair {
    uint8_t *key, *value;
    size_t key_len, value_len;
} pair;

typedef struct pairs {
    pair *items;
    size_t count, room;
    size_t stop_at; /* number of pairs after which collect_pair stops the scan; 0: never */
} pairs;

/* Callback of a scan that appends the pair to the list `ctx`, a `pairs`. Returns non-zero to stop the scan. */
int collect_pair(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len);
void pairs_free(pairs *p);
/* compares two keys in key order: by memcmp, then by length */
int compare_bytes(const void *a, size_t a_len, const void *b, size_t b_len);

/* callback of a check that prints the problem and increments the int `ctx` */
int count_problem(void *ctx, const char *what);

#endif
