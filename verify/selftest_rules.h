/* Private to the self-test: the rules and the code of their participants (selftest_rules.c), and the structures by
 * which selftest.c runs them. */
#ifndef FAR_VERIFY_SELFTEST_RULES_H
#define FAR_VERIFY_SELFTEST_RULES_H

#include "pool/handle.h"
#include "task/session.h"
#include "verify/selftest.h"

#include <stdatomic.h>

#define CONTENDERS   16 /* number of sessions that compete with atomics for one word */
#define PARTICIPANTS (CONTENDERS + 1)
#define LINE         64u
#define IMAGE        2048u /* bytes of the data that is written and read by one verb */
#define WORDS        (IMAGE / 8)
#define PAGE         4096u
/* bytes to allocate for an arena: two pages, and one line because the arena begins at the first aligned line */
#define ARENA        (LINE + 2 * PAGE)
/* largest and smallest number of arenas of a field; between them, arenas take 1/32 of the memory of a node */
#define ARENAS_MOST  4096u
#define ARENAS_LEAST 256u
#define VICTIMS      8  /* number of sessions that are fenced at each memory node to test client failures */
#define LAST_VERBS   64 /* number of verbs that each of these sessions has in flight when it is fenced */
#define TRIES_LEAST  64

typedef struct trial trial;

typedef struct participant { /* one session in its own thread */
    trial *trial;
    far_session *session;
    far_thread *thread;
    int (*act)(far_task *t, struct participant *participant);
    /* Readers count their tries. Participants that change memory continue while any reader is active. */
    bool is_reader;
    int result;
    uint64_t tries, broken, done;
} participant;

/* Distance between the two words of a pair. */
typedef enum distance { ONE_LINE, TWO_LINES, TWO_PAGES, FAR_APART, TWO_NUMA_NODES } distance;

/* Memory of one memory node that contains pairs of words, in many arenas. The rules that use it run one after another,
 * and each continues to count where the previous one ended, so the numbers of a pair never decrease. The first word of
 * an arena is the first word of a pair. Each rule uses a second word of its own, which always belongs to the same first
 * word. */
typedef struct field {
    unsigned count, numa_pairs;
    far_addr arena[ARENAS_MOST];
    /* arenas of a pair on two NUMA nodes, by number of the pair */
    far_addr near[ARENAS_MOST / 2], elsewhere[ARENAS_MOST / 2];
    const char *no_numa; /* reason why there is no pair on two NUMA nodes */
    uint64_t counted;
} field;

struct trial { /* one rule at one memory node */
    far_pool *pool;
    far_addr memory; /* memory of an arena that only this trial uses */
    field *field;
    distance apart;
    bool cold;
    atomic_uint_fast64_t number_written; /* number that the writer is storing in its pair now */
    uint64_t tries;                      /* number of tries of each reader */
    atomic_uint active_readers;          /* number of readers that have not finished */
    participant participants[PARTICIPANTS];
};

typedef struct rule {
    const char *what, *capability;
    unsigned refuted; /* bits of the fabric record that a violation sets */
    bool (*claimed)(const far_capabilities *can);
    /* code of the participant that changes memory; NULL: the rule has no such participant */
    int (*change)(far_task *t, participant *participant);
    int (*read)(far_task *t, participant *participant);
    unsigned readers;
    /* check that runs after all participants have ended; NULL: none */
    int (*check)(far_task *t, participant *participants);
    distance apart; /* rules about the order of READs: distance between the two words of a pair */
    bool cold;
} rule;

/* The last rule, about client failures, is not in this array, because it is run in a different way. */
extern const rule far_selftest_rules[FAR_SELFTESTS - 1];

int far_selftest_post_and_fail(far_task *t, participant *s);
int far_selftest_check_after_failure(far_task *t, participant *s, unsigned id, unsigned generation);

#endif
