/* The interface between the pool and an index: the open index object (`far_index`), and the functions that an index
 * kind supplies (`far_index_kind`). The kinds are implemented in index/, above the pool; the pool receives their list
 * when it is opened and calls them only through this interface. */
#ifndef FAR_POOL_KIND_H
#define FAR_POOL_KIND_H

#include "base/bytes.h"
#include "farindex.h"
#include "pool/alloc/alloc.h"
#include "pool/gc/collect.h"
#include "task/task.h"

/* Destination of the value that a get returns. */
typedef struct far_out {
    void *buffer;
    size_t capacity;
    size_t length; /* length of the value; set by far_out_give even if `buffer` is too small */
} far_out;

/* One chunk of a scan. The range of a scan has a lower bound `from` and an upper bound `to`.
 *
 * A forward chunk delivers pairs in ascending key order. It starts at the first key >= `from` (> `from` if `after` is
 * set), and ends at the first key >= `to`, if `bounded` is set, or after the last key of the index.
 *
 * A backward chunk delivers pairs in descending key order. It starts at the last key < `to` (<= `to` if `to_included`
 * is set), or at the last key of the index if `bounded` is not set. It ends at the first key < `from`.
 *
 * The kind delivers pairs by far_scan_give until that function returns 1 (stop) or the range is exhausted. Then the kind
 * returns 0, and sets `end` if no further pair can follow. The runtime calls the kind again from the last delivered
 * key, under a new pin: a forward chunk then has this key as `from`, a backward chunk has it as `to`. */
typedef struct far_scan_chunk {
    far_bytes from; /* lower bound; a string of length 0 if the range has no lower bound */
    bool after;     /* true if `from` itself is excluded; never set in a backward chunk */
    bool bounded;   /* true if the range has an upper bound */
    bool backward;
    bool to_included; /* true if `to` itself belongs to the range; never set in a forward chunk */
    far_bytes to;     /* upper bound; valid if `bounded` */
    size_t wanted;    /* number of pairs that the caller still wants; the kind may use it to limit its read-ahead */
    bool end;         /* output of the kind: true if no key of the range follows the delivered ones */
    struct far_scan_buffer *buffer;
} far_scan_chunk;

typedef struct far_keys far_keys; /* receives the keys of an index without order (index/index.h) */

typedef enum { FAR_OPTION_BOOL, FAR_OPTION_NUMBER, FAR_OPTION_CHOICE } far_option_type;

typedef struct far_option_def {
    const char *name;
    far_option_type type;
    /* default value and limits of an option of type number or bool; in an option text, a number may have the suffix K,
     * M or G, and a bool is on, off, 0 or 1 */
    int64_t initial, min, max;
    /* names of the choices of an option, ended by NULL; the option's value is the position in this list */
    const char *const *choices;
    const char *help;
} far_option_def;

#define FAR_OPTIONS_MAX      32
#define FAR_OPTIONS_TEXT_MAX 511 /* maximum length of the text "name=value,name=value" */

/* Options of every kind; the kind's own options follow. key_size and value_size are 0 for variable sizes. The kind sees
 * value_size including the checksum. The checksum itself is added and verified by client/checksum.h, not by the kind.
 */
enum { FAR_OPTION_KEY_SIZE, FAR_OPTION_VALUE_SIZE, FAR_OPTION_MAX_KEY, FAR_OPTION_CHECKSUM, FAR_OPTIONS_COMMON };

#define FAR_SUM_BYTES 4u

/* Collects the problems that a check finds, one line of text each (pool/report.h). */
typedef struct far_report far_report;
void far_report_problem(far_report *report, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Occupancy of an index whose kind has a fixed number of slots. */
typedef struct far_load {
    uint64_t slots;       /* slots of all levels together */
    uint64_t keys[3];     /* number of keys on each level, starting with the first level */
    uint64_t local_bytes; /* local memory of the handle for this index, without caches */
} far_load;

/* Statistics that a kind counts in this handle since the index was opened. */
typedef struct far_figures {
    /* number of nodes that were split, number of keys in these nodes, and number of key slots that these nodes had */
    uint64_t splits, split_keys, split_slots;
    uint64_t gets, speculated,
        /* number of gets; number of gets that first read the slot where the key was last found; number of those that
         * found the key in that slot */
        speculations_correct;
} far_figures;

#define FAR_GET_ALONE 1

typedef struct far_index_kind {
    const char *name, *what_for;
    bool hidden;                   /* far_kinds does not list this kind, but it can be opened by name */
    const far_option_def *options; /* ends with an entry with name NULL; NULL if the kind has no options */
    /* Names of those options that only the tests of the library may set (pool/catalog/private_options.h), ended by
     * NULL; NULL if there are none. far_kinds does not list them. */
    const char *const *private_options;
    size_t max_key; /* largest value that the option max_key may have for this kind */
    const far_type *types;
    unsigned type_count; /* number of entries of `types`; at most 16 */
    /* true if a write of this kind may wait long for a lock while a get never does; RDWC then lets no get wait for a
     * write */
    bool gets_never_wait_for_writes;

    /* Builds the empty structure of a new index before the index is listed in the catalog, and sets index->descriptor.
     */
    int (*create)(far_task *t, far_index *index);
    int (*open)(far_task *t, far_index *index); /* Creates the local state in index->state. */
    /* Optional. Called before the last close in this handle, while the fabric is usable and no operation is in
     * progress. Releases everything that other clients might wait for. */
    void (*leave)(far_task *t, far_index *index);
    void (*close)(far_index *index);

    int (*get)(far_task *t, far_index *index, far_bytes key, far_out *out);
    int (*put)(far_task *t, far_index *index, far_op_kind how, far_bytes key,
               far_bytes value); /* `how` is FAR_OP_INSERT, FAR_OP_UPDATE or FAR_OP_PUT */
    int (*remove)(far_task *t, far_index *index, far_bytes key);
    /* Delivers one chunk of a scan; NULL if the kind cannot scan (FAR_ERR_UNSUPPORTED). */
    int (*scan)(far_task *t, far_index *index, far_scan_chunk *scan);
    /* Optional. Runs several gets together and stores one result per get. A result of FAR_GET_ALONE means that the
     * runtime must run this get again as a task of its own, concurrently with the others. */
    int (*get_many)(far_task *t, far_index *index, size_t count, const far_bytes keys[], far_out *outs[],
                    int results[]);

    /* Walks the whole index: reports every object that is linked throughout the call, completes or undoes steps that
     * failed clients left half done, and releases their locks. Called without a pin; it takes its own pins, one for
     * each slice of the walk. */
    int (*walk)(far_task *t, far_index *index, far_walk *walk);
    /* Checks the structure and reports problems; called without a pin. */
    int (*check)(far_task *t, far_index *index, far_report *report);
    /* Sets the fields `keys`, `key_bytes` and `value_bytes` of `usage`; called without a pin. */
    int (*usage)(far_task *t, far_index *index, far_usage *usage);
    /* Delivers all keys; for kinds without scan. Called without a pin. */
    int (*keys)(far_task *t, far_index *index, far_keys *keys);
    /* Gives all keys that an object of this type may contain. `object` is a copy of the first `bytes` bytes of the
     * object, which may be damaged, free, or an object of another type. Used to salvage a damaged index: the caller
     * looks up each key. Called without a pin. */
    int (*object_keys)(far_task *t, far_index *index, unsigned type, const void *object, uint64_t bytes,
                       far_keys *keys);
    /* Optional. Stores the occupancy of the index in *load. Called without a pin. */
    int (*load_factor)(far_task *t, far_index *index, far_load *load);
    size_t (*cache_bytes)(far_index *index); /* Optional: bytes of the index's cache in this handle. */
    /* Optional. Stores the statistics that the kind counts in this handle in *figures. */
    void (*figures)(far_index *index, far_figures *figures);

    /* Optional. Called before the first operation of this handle takes a pin at `epoch`; operations wait until the hook
     * returns. The calling task is pinned at the previous epoch, or, if the handle was quiescent, at `epoch`; the hook
     * must keep this pin. Any session of the handle may run the hook. */
    int (*epoch_hook)(far_task *t, far_index *index, uint64_t epoch);
    /* Optional. Executes deferred work. Called by housekeeping with a pin, which the function may replace by a new one.
     * Returns 1 if more work is left. */
    int (*idle_hook)(far_task *t, far_index *index);
} far_index_kind;

/* number of counters; there are enough that concurrent sessions rarely share a counter */
#define FAR_KEY_COUNT_DELTAS 8

/* Net number of keys that sessions have added and not yet published in the record of the index. The structure fills a
 * cache line to avoid false sharing. */
typedef struct far_key_count_delta {
    _Atomic int64_t keys;
    uint64_t unused[7];
} far_key_count_delta;

/* Internal error code of an operation on an index that this handle knows to be dropped. It differs from
 * FAR_ERR_NOT_FOUND, which the kinds use for an absent key; the user gets FAR_ERR_NOT_FOUND (far_describe_error). */
#define FAR_ERR_DROPPED (-100)

#define FAR_SECRET_BYTES 32

/* An index that this handle has open. The pool owns the object; the kind sets `state`, and the descriptor with
 * far_index_set_descriptor. */
struct far_index {
    const far_index_kind *kind;
    /* The kind whose get, put and remove an operation calls after it took its pin: `kind`, or, after this handle has
     * observed that the index was dropped, a kind whose functions return FAR_ERR_DROPPED. So an operation needs no
     * check of its own. */
    _Atomic(const far_index_kind *) operations;
    far_pool *pool;
    char name[FAR_NAME_MAX + 1];
    uint32_t uid;                     /* number of the index, 1 to 2^24-1; unique in the pool for ever */
    far_addr record;                  /* address of the index record, which the catalog lists (catalog/layout.h) */
    far_addr descriptor;              /* address of the kind's own root object */
    uint8_t secret[FAR_SECRET_BYTES]; /* source of hash seeds and poison words */
    /* values of the options by position; the common options come first, then the options of the kind */
    int64_t options[FAR_OPTIONS_MAX];
    char options_text[FAR_OPTIONS_TEXT_MAX + 1];
    void *state;         /* local state of the kind */
    unsigned opens;      /* number of opens by the user, by collections and by checks; protected by the pool's lock */
    unsigned slot;       /* a small number that no other open index of the handle has; selects its operation counts */
    uint64_t linked;     /* value of far_pool.indexes_linked when the index was added to the handle's list */
    atomic_bool dropped; /* true after this handle has observed that the index was dropped; never cleared */
    /* true in a private copy of a damaged pool: a get fails only if its own path is damaged, not because of damage
     * elsewhere in an object on its path */
    bool lenient;
    atomic_uint uses; /* number of operations and hooks in progress; close waits until it is 0 */
    /* change of the number of keys by this handle, not yet added to the record; one counter per group of sessions */
    far_key_count_delta key_count_deltas[FAR_KEY_COUNT_DELTAS];
    far_index *next; /* next index in the pool's list of open indexes */
    /* memory budget of an index that far_catalog_test_open opens for a test; NULL if the index uses the handle's budget
     */
    struct far_budget *budget;
};


/* Returns the number of checksum bytes that are stored after every value; 0 if the index has no checksums. */
static inline size_t far_sum_bytes(const far_index *index) {
    return index->options[FAR_OPTION_CHECKSUM] ? FAR_SUM_BYTES : 0;
}


static inline size_t far_value_size(const far_index *index) {
    size_t size = (size_t)index->options[FAR_OPTION_VALUE_SIZE];
    return size ? size - far_sum_bytes(index) : 0;
}


/* Returns the memory budget that limits the caches of this index (base/budget.h). */
struct far_budget *far_index_budget(const far_index *index);

static inline bool far_index_is_dropped(const far_index *index) {
    return atomic_load_explicit(&index->dropped, memory_order_relaxed);
}


void far_index_set_descriptor(far_index *index, far_addr descriptor); /* for the kind, when it creates the index */
void far_index_set_lenient(far_index *index, bool lenient);

/* Counts keys that an operation has added (negative: removed). */
static inline void far_index_count_keys(far_index *index, unsigned session, int64_t keys) {
    atomic_fetch_add_explicit(&index->key_count_deltas[session % FAR_KEY_COUNT_DELTAS].keys, keys,
                              memory_order_relaxed);
}


/* Returns the sum of the counts since the last call, and sets them to 0. */
int64_t far_index_take_key_count(far_index *index);

/* Counts one more user of the index. A close waits until far_index_unuse was called as often as far_index_use. */
void far_index_use(far_index *index);
void far_index_unuse(far_index *index);

/* Finds a kind by its name in a list that ends with NULL. Returns NULL if the list has no such kind. */
const far_index_kind *far_kind_in(const far_index_kind *const kinds[], const char *name);

#endif
