/* The search behind linear.h: private to it.
 *
 * One key's operations become steps: writes that had an effect, and reads that saw absence, presence or a value. The
 * search sweeps over the starts and ends of the steps in time and keeps the set of all situations (configs) the key can
 * be in: its state, which of the open steps have taken effect already, and how much of the optional was used. A step is
 * made to take effect as late as possible: when its end is reached and it has not yet. The history is linearizable if a
 * situation is left at the end.
 *
 * The frontier is cut to a width; when it dies after having been cut, the sweep is repeated with a greater width, until
 * the budget is spent. So "yes" and "no" are always exact; the third answer is "gave up".
 *
 * search_unique.c: every value that was read has one writer (as it is when all written values differ). Polynomial in
 * practice. search_any.c: no such condition; tries all orders of concurrent writes. */
#ifndef FAR_VERIFY_SEARCH_H
#define FAR_VERIFY_SEARCH_H

#include "verify/linear.h"

typedef enum {
    FAR_STEP_INSERT, /* absent -> value */
    FAR_STEP_DELETE, /* present -> absent */
    FAR_STEP_PUT,    /* any -> value */
    FAR_STEP_UPDATE, /* present -> value */
    FAR_STEP_ABSENT, /* reads, from here on */
    FAR_STEP_PRESENT,
    FAR_STEP_VALUE,
} far_step_kind;

enum {
    FAR_STATE_ABSENT = 0,
    FAR_STATE_UNREAD = 1,
    FAR_STATE_FIRST_VALUE = 2
}; /* values: UNREAD = some value that nobody reads */

#define FAR_TIME_BEFORE INT64_MIN

typedef struct far_step {
    far_step_kind kind;
    uint32_t value;
    int64_t start;
    int64_t end; /* FAR_HISTORY_NEVER: optional (never an end event) */
    int64_t
        ripe; /* search_unique, writes: from then on all reads of its value have started, so it may be overwritten */
} far_step;

typedef struct far_search {
    far_step *steps;
    size_t count;
    int64_t *ups, *downs; /* starts, rising, of cut writes nobody read: each may once make an absent key present, a
                             present one absent */
    size_t up_count, down_count;
    uint32_t initial;     /* a state */
    int64_t initial_ripe; /* search_unique: when the initial value may be overwritten */
    uint64_t budget, states;
} far_search;

/* A situation. Of two with equal state, lock and bits, one that is at least as good in every `better` makes the other
 * needless. */
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
    uint64_t bits[]; /* by slot: the open steps that took effect */
} far_config;

/* A set of configs without needless ones. Entries with state FAR_CONFIG_DEAD were found needless. */
#define FAR_CONFIG_DEAD UINT64_MAX
typedef struct far_frontier {
    size_t words, stride, count, capacity;
    char *configs;
    uint32_t *next, *hashes, *table; /* chains of index + 1 */
    size_t table_size;
} far_frontier;
void far_frontier_init(far_frontier *frontier, size_t words);
void far_frontier_free(far_frontier *frontier);
void far_frontier_clear(far_frontier *frontier);
bool far_frontier_add(far_frontier *frontier, const far_config *config); /* false: there is one as good */
void far_frontier_cut(far_frontier *frontier, size_t width);             /* keeps the most promising */


static inline far_config *far_frontier_at(const far_frontier *frontier, size_t index) {
    return (far_config *)(frontier->configs + index * frontier->stride);
}

/* What a sweep knows at an event. */
typedef struct far_list {
    size_t *steps;
    size_t count;
} far_list;
typedef struct far_needs { /* rising moments that open reads (or writes that act as such) ask for */
    int64_t *times;
    size_t count;
} far_needs;
typedef struct far_sweep {
    far_search *search;
    int64_t now;
    size_t width, words;
    bool was_cut, exhausted;
    far_frontier current, next, closure;
    uint32_t *slot, *free_slots;
    size_t free_count;
    far_list open[FAR_STEP_VALUE + 1]; /* by kind, earliest end first; search_any: all in open[0] */
    far_needs needs[4];                /* by FAR_BETTER_ABSENT .. FAR_BETTER_UPDATE */
    int64_t ups, downs;                /* started so far */
    far_config *scratch[4];
} far_sweep;

typedef struct far_engine {
    bool (*has_slot)(const far_step *step);
    void (*init)(far_sweep *sweep, far_config *config);
    void (*start)(far_sweep *sweep, size_t step);
    void (*finish)(far_sweep *sweep, size_t step); /* from current to next, then swap */
} far_engine;
extern const far_engine far_engine_unique, far_engine_any;
far_linear_verdict far_search_run(far_search *search, const far_engine *engine);

/* For the engines. */
bool far_sweep_keep(far_sweep *sweep, far_frontier *frontier,
                    const far_config *config); /* counts it; false: needless */
void far_list_insert(far_sweep *sweep, far_list *list, size_t step);
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
