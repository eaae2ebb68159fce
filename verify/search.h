/* Private to linear.h: the search for an order of the operations on one key.
 *
 * The operations become steps: writes that had an effect, and reads that observed absence, presence or a value. The
 * search visits the starts and ends of the steps in the order of time, and maintains the set of all configurations that
 * the key can be in (the frontier). A configuration consists of the state of the key, the open steps that have taken
 * effect, and the number of optional steps used. A step takes effect as late as possible, that is, when its end is
 * reached and it has not taken effect yet. The history is linearizable if a configuration is left at the end.
 *
 * The frontier is limited to a width. If it becomes empty after it was reduced to this width, the search is repeated
 * with a greater width, until the budget is spent. So the answers "yes" and "no" are exact, and the third answer is
 * "gave up".
 *
 * search_unique.c is used if each value that was read has one writer, as it is when all written values differ; it is
 * polynomial in practice. search_any.c has no such condition and tries all orders of concurrent writes. */
#ifndef FAR_VERIFY_SEARCH_H
#define FAR_VERIFY_SEARCH_H

#include "verify/linear.h"

typedef enum {
    FAR_STEP_INSERT, /* the key changes from absent to the value */
    FAR_STEP_DELETE, /* the key changes from present to absent */
    FAR_STEP_PUT,    /* the key gets the value, whether it was absent or present */
    FAR_STEP_UPDATE, /* the key was present and gets the value */
    FAR_STEP_ABSENT, /* the key was absent; this step and all following ones are reads */
    FAR_STEP_PRESENT,
    FAR_STEP_VALUE,
} far_step_kind;

/* The states of a key. UNREAD stands for every value that no operation has read. States from FIRST_VALUE on are ids of
 * values. */
enum { FAR_STATE_ABSENT = 0, FAR_STATE_UNREAD = 1, FAR_STATE_FIRST_VALUE = 2 };

#define FAR_TIME_BEFORE INT64_MIN

typedef struct far_step {
    far_step_kind kind;
    uint32_t value;
    int64_t start;
    int64_t end; /* time of the step's end; FAR_HISTORY_NEVER: the step is optional and has no end event */
    /* Used by search_unique.c, for writes: the time at which all reads of the written value have started. From then on,
     * another write may overwrite the value. */
    int64_t ripe;
} far_step;

typedef struct far_search {
    far_step *steps;
    size_t count;
    /* Start times, rising, of optional writes of values that no operation read. Each element of `ups` may make an
     * absent key present once. Each element of `downs` may make a present key absent once. */
    int64_t *ups, *downs;
    size_t up_count, down_count;
    uint32_t initial;     /* state before the first step */
    int64_t initial_ripe; /* used by search_unique.c: the time from which the initial value may be overwritten */
    uint64_t budget, states;
} far_search;

/* A configuration (see the head of this file). Of two configurations with equal state, lock and bits, one is redundant
 * if the other one is at least as good in every element of `better`. */
enum {
    FAR_BETTER_ABSENT,
    FAR_BETTER_PRESENT,
    FAR_BETTER_PUT,
    FAR_BETTER_UPDATE,
    FAR_BETTER_UPS,
    FAR_BETTER_DOWNS,
    FAR_BETTER_COUNT
};
typedef struct far_config {
    uint64_t state;
    int64_t lock;
    int64_t better[FAR_BETTER_COUNT];
    uint64_t bits[]; /* one bit for each slot; 1: the open step that has this slot has taken effect */
} far_config;

/* A set of configurations without redundant ones. Entries with state FAR_CONFIG_REDUNDANT were found redundant after
 * they had been added. */
#define FAR_CONFIG_REDUNDANT UINT64_MAX
typedef struct far_frontier {
    size_t words, stride, count, capacity;
    char *configs;
    /* hash table of the configurations: `table` and `next` contain index + 1 of a configuration, 0 ends a chain */
    uint32_t *next, *hashes, *table;
    size_t table_size;
} far_frontier;
void far_frontier_init(far_frontier *frontier, size_t words);
void far_frontier_free(far_frontier *frontier);
void far_frontier_clear(far_frontier *frontier);
/* returns false if an equal or better configuration exists */
bool far_frontier_add(far_frontier *frontier, const far_config *config);
/* keeps the configurations that have used the fewest optional steps */
void far_frontier_cut(far_frontier *frontier, size_t width);


static inline far_config *far_frontier_at(const far_frontier *frontier, size_t index) {
    return (far_config *)(frontier->configs + index * frontier->stride);
}

/* A list of steps. (far_collect below is the state of a search while it visits the events.) */
typedef struct far_list {
    size_t *steps;
    size_t count;
} far_list;
/* Rising times. Each is the earliest moment that an open step accepts as the moment at which it takes effect. The steps
 * are reads, and writes that behave like reads. */
typedef struct far_needs {
    int64_t *times;
    size_t count;
} far_needs;
typedef struct far_collect {
    far_search *search;
    int64_t now;
    size_t width, words;
    bool was_cut, exhausted;
    far_frontier current, next, closure;
    uint32_t *slot, *free_slots;
    size_t free_count;
    /* open steps by kind, the step with the earliest end first; search_any.c keeps all open steps in open[0] */
    far_list open[FAR_STEP_VALUE + 1];
    far_needs needs[4]; /* one for each of FAR_BETTER_ABSENT .. FAR_BETTER_UPDATE */
    int64_t ups, downs; /* numbers of elements of `ups` and `downs` with a start time that the search has passed */
    far_config *scratch[4];
} far_collect;

typedef struct far_engine {
    bool (*has_slot)(const far_step *step);
    void (*init)(far_collect *sweep, far_config *config);
    void (*start)(far_collect *sweep, size_t step);
    /* Handles the end of a step. Derives the configurations of `next` from those of `current`, and then swaps the two
     * sets. */
    void (*finish)(far_collect *sweep, size_t step);
} far_engine;
extern const far_engine far_engine_unique, far_engine_any;
far_linear_verdict far_search_run(far_search *search, const far_engine *engine);

/* Functions that both engines call. */
/* Adds the configuration to the frontier and counts a state. Returns false if the configuration is redundant. */
bool far_sweep_keep(far_collect *sweep, far_frontier *frontier, const far_config *config);
void far_list_insert(far_collect *sweep, far_list *list, size_t step);
void far_list_remove(far_list *list, size_t step);


static inline bool far_config_has(const far_config *config, uint32_t slot) {
    return config->bits[slot / 64] >> (slot % 64) & 1;
}


static inline void far_config_set(far_config *config, uint32_t slot) {
    config->bits[slot / 64] |= (uint64_t)1 << (slot % 64);
}


static inline void far_config_clear(far_config *config, uint32_t slot) {
    config->bits[slot / 64] &= ~((uint64_t)1 << (slot % 64));
}

#endif
