/* What the pool knows of an index: the record of one that is open, and what its kind supplies. The kinds themselves
 * stand above the pool (index/); it gets to know them when it is opened. */
#ifndef FAR_POOL_KIND_H
#define FAR_POOL_KIND_H

#include "base/bytes.h"
#include "farindex.h"
#include "pool/alloc.h"
#include "pool/sweep.h"
#include "task/task.h"

/* Where the value of a get goes. */
typedef struct far_out {
    void *buffer;
    size_t capacity;
    size_t length; /* set by far_out_give, also when the buffer is too small */
} far_out;

/* One chunk of a scan: the kind gives pairs in rising order, beginning at the first key >= from (> from when after is
 * set), until far_scan_give says stop (1), `to` is reached, or there are no more keys: then it returns 0 and, if the
 * end was reached, sets end. The runtime asks again from the last key given, under a new pin. */
typedef struct far_scan_chunk {
    far_bytes from;
    bool after; /* from itself is excluded */
    bool bounded;
    far_bytes to;  /* excluded; if bounded */
    size_t wanted; /* pairs still wanted by the caller: a hint how far to look ahead */
    bool end;      /* out: no key beyond what was given */
    struct far_scan_buffer *buffer;
} far_scan_chunk;

typedef struct far_keys far_keys; /* index/index.h: where the keys of an index without order go */

typedef enum { FAR_OPTION_BOOL, FAR_OPTION_NUMBER, FAR_OPTION_CHOICE } far_option_type;

typedef struct far_option_def {
    const char *name;
    far_option_type type;
    int64_t initial, min, max;  /* number (K/M/G allowed); bool: 0 or 1 (on/off/0/1) */
    const char *const *choices; /* NULL-terminated names of a choice; the value is the position */
    const char *help;
} far_option_def;

#define FAR_OPTIONS_MAX      32
#define FAR_OPTIONS_TEXT_MAX 511 /* bytes of "name=value,name=value" */

/* Options every kind has, before its own: key_size, value_size (0 = any; as the kind sees it, with the checksum),
 * max_key, checksum (client/checksum.h; no business of the kind). */
enum { FAR_OPTION_KEY_SIZE, FAR_OPTION_VALUE_SIZE, FAR_OPTION_MAX_KEY, FAR_OPTION_CHECKSUM, FAR_OPTIONS_COMMON };

#define FAR_SUM_BYTES 4u

typedef struct far_reserve { /* what each session keeps, to finish a half-done change when the pool is full */
    unsigned type;
    uint64_t size; /* below FAR_BLOCK_BYTES_MIN: larger objects are runs of blocks, which belong to nobody */
    unsigned count;
} far_reserve;

/* Problems that check finds are told one by one, in words. */
typedef struct far_report far_report;
void far_report_problem(far_report *report, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* How full a kind with fixed slots is. */
typedef struct far_load {
    uint64_t slots;       /* of all levels together */
    uint64_t keys[3];     /* by level, the first one first */
    uint64_t local_bytes; /* what the handle keeps of it, not counting caches */
} far_load;

/* What a kind counts for itself, in this handle, since it was opened. */
typedef struct far_figures {
    uint64_t splits, split_keys, split_slots; /* nodes that were split, what was in them, what they had room for */
    uint64_t gets, speculated,
        speculated_well; /* gets; of them those that went where the key was last found, and was */
} far_figures;

#define FAR_GET_ALONE 1

typedef struct far_index_kind {
    const char *name, *what_for;
    bool hidden;                   /* known by name, not listed by far_kinds */
    const far_option_def *options; /* ends with a NULL name; may be NULL */
    size_t max_key;                /* the most that the option max_key may ask for */
    const far_type *types;
    unsigned type_count; /* at most 16 */
    const far_reserve *reserve;
    unsigned reserve_count;
    bool gets_apart; /* a write may wait long for a lock, which no get does: RDWC lets no get wait for a write */

    int (*create)(far_task *t, far_index *index); /* builds the empty structure, unseen; sets index->descriptor */
    int (*open)(far_task *t, far_index *index);   /* local state into index->state */
    /* Optional: before the last close in a handle that can still send verbs; no operation of it is under way. Gives
     * back what others would wait for. */
    void (*leave)(far_task *t, far_index *index);
    void (*close)(far_index *index);

    int (*get)(far_task *t, far_index *index, far_bytes key, far_out *out);
    int (*put)(far_task *t, far_index *index, far_op_kind how, far_bytes key,
               far_bytes value); /* FAR_OP_INSERT, _UPDATE or _PUT */
    int (*remove)(far_task *t, far_index *index, far_bytes key);
    int (*scan)(far_task *t, far_index *index, far_scan_chunk *scan); /* NULL: FAR_ERR_UNSUPPORTED */
    /* Optional: several gets at once; results[i] per get. FAR_GET_ALONE there: that one is run by itself after all, as
     * a task of its own beside the others. */
    int (*get_many)(far_task *t, far_index *index, size_t count, const far_bytes keys[], far_out *outs[],
                    int results[]);

    /* Reports every object linked throughout the walk, finishes or undoes what dead clients left and frees their locks.
     * Not pinned when called: takes its own pins, in slices. */
    int (*walk)(far_task *t, far_index *index, far_walk *walk);
    int (*check)(far_task *t, far_index *index, far_report *report); /* structure; not pinned when called */
    int (*usage)(far_task *t, far_index *index,
                 far_usage *usage); /* keys, key_bytes, value_bytes; not pinned when called */
    int (*keys)(far_task *t, far_index *index, far_keys *keys);        /* instead of scan; not pinned when called */
    int (*load_factor)(far_task *t, far_index *index, far_load *load); /* optional; not pinned when called */
    size_t (*cache_bytes)(far_index *index);                           /* optional */
    void (*figures)(far_index *index, far_figures *figures);           /* optional */

    /* Optional: ends before the first operation is pinned at that epoch. The task is pinned: at the epoch before, or on
     * waking at that epoch; it must not drop the pin. It may run in a task of any session of the handle. */
    int (*epoch_hook)(far_task *t, far_index *index, uint64_t epoch);
    /* Optional: delayed work, run by housekeeping, pinned (it may drop the pin and take another); 1 = there is more. */
    int (*idle_hook)(far_task *t, far_index *index);
} far_index_kind;

#define FAR_TALLIES 8 /* sessions rarely meet in one of them */

typedef struct far_tally { /* a line of its own */
    _Atomic int64_t keys;
    uint64_t unused[7];
} far_tally;

struct far_index { /* one open index of one handle */
    const far_index_kind *kind;
    far_pool *pool;
    char name[FAR_NAME_MAX + 1];
    uint32_t uid;                     /* never given out twice in a pool; 1 .. 2^24-1 */
    far_addr record;                  /* in the catalog */
    far_addr descriptor;              /* of the kind: whatever it needs to find its structure */
    uint8_t secret[32];               /* hash seeds, poison words */
    int64_t options[FAR_OPTIONS_MAX]; /* common ones first, then the kind's, by position */
    char options_text[FAR_OPTIONS_TEXT_MAX + 1];
    void *state;                    /* of the kind */
    unsigned opens, walks;          /* by the user; by sweeps and checks. Under the pool's lock */
    unsigned slot;                  /* in the handle's table of open indexes */
    atomic_uint uses;               /* operations and hooks under way: it is not closed before they end */
    far_tally tallies[FAR_TALLIES]; /* keys added and removed through this handle and not yet told; by session */
    far_index *next;                /* in the pool's list */
    struct far_budget *budget;      /* of one that is opened for a look; NULL: the handle's */
};


/* Bytes behind every value, and the size that all values have for the user; 0: none, any. */
static inline size_t far_sum_bytes(const far_index *index) {
    return index->options[FAR_OPTION_CHECKSUM] ? FAR_SUM_BYTES : 0;
}


static inline size_t far_value_size(const far_index *index) {
    size_t size = (size_t)index->options[FAR_OPTION_VALUE_SIZE];
    return size ? size - far_sum_bytes(index) : 0;
}


/* What all caches of the handle may take together (base/budget.h). */
struct far_budget *far_index_budget(const far_index *index);

/* Keeps the index open until as many calls of far_index_unuse. */
void far_index_use(far_index *index);
void far_index_unuse(far_index *index);

/* A list of kinds ends with NULL. NULL: no kind of that name. */
const far_index_kind *far_kind_in(const far_index_kind *const kinds[], const char *name);

#endif
