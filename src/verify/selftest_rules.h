/* Private to the self-test: what its sides do (selftest_rules.c) and who runs them (selftest.c). */
#ifndef FAR_VERIFY_SELFTEST_RULES_H
#define FAR_VERIFY_SELFTEST_RULES_H

#include "pool/handle.h"
#include "task/session.h"
#include "verify/selftest.h"

#include <stdatomic.h>

#define CROWD        16 /* sessions whose atomics meet on one word */
#define SIDES        (CROWD + 1)
#define LINE         64u
#define IMAGE        2048u /* bytes of what is written and read as a whole */
#define WORDS        (IMAGE / 8)
#define PAGE         4096u
#define ARENA        (LINE + 2 * PAGE) /* wherever its first line begins */
#define ARENAS_MOST  4096u             /* of a memory node's field; a 32nd of its memory, but at least: */
#define ARENAS_LEAST 256u
#define VICTIMS      8  /* sessions that are cut, at each node */
#define LAST_VERBS   64 /* of each */
#define TRIES_LEAST  64

typedef struct bout bout;

typedef struct side { /* one session, in its thread */
    bout *bout;
    far_session *session;
    far_thread *thread;
    int (*act)(far_task *t, struct side *side);
    bool looks; /* counts its tries; those who change go on as long as somebody looks */
    int result;
    uint64_t tries, broken, done;
} side;

/* How far the two words of a pair lie apart. */
typedef enum distance { ONE_LINE, TWO_LINES, TWO_PAGES, FAR_APART, TWO_NUMA_NODES } distance;

/* Memory of one memory node in which pairs of words lie, one arena beside the other. Its rules run one after the other
 * and count on, so that a pair never goes back: the first word of an arena is the first of a pair, and each rule has
 * a second word of its own, which always belongs to the same first one. */
typedef struct field {
    unsigned count, numa_pairs;
    far_addr arena[ARENAS_MOST];
    far_addr near[ARENAS_MOST / 2], elsewhere[ARENAS_MOST / 2]; /* by NUMA pair */
    const char *no_numa;                                        /* why there is no such pair */
    uint64_t counted;
} field;

struct bout { /* one rule at one memory node */
    far_pool *pool;
    far_addr memory; /* an arena of its own */
    field *field;
    distance apart;
    bool cold;
    atomic_uint_fast64_t turn; /* the number that is being written to its pair */
    uint64_t tries;            /* to be done by each who looks */
    atomic_uint looking;       /* sides */
    side sides[SIDES];
};

typedef struct rule {
    const char *what, *capability;
    unsigned refuted; /* goes on record, should it be broken */
    bool (*claimed)(const far_capabilities *can);
    int (*change)(far_task *t, side *side); /* NULL: nobody beside */
    int (*look)(far_task *t, side *side);
    unsigned lookers;
    int (*judge)(far_task *t, side *sides); /* when all have ended; NULL: nothing */
    distance apart;                         /* READ -> READ: the two words of a pair */
    bool cold;
} rule;

extern const rule far_selftest_rules[FAR_SELFTESTS - 1]; /* the last one, death, is not run as the others are */

int far_selftest_work_and_die(far_task *t, side *s);
int far_selftest_look_after_death(far_task *t, side *s, unsigned id, unsigned generation);

#endif
