/* The express skip table (EST): the types and functions that its files share. dart.h declares the functions that the
 * tree calls, layout.h defines the words and objects in far memory, and README.md in this folder teaches the protocol.
 *
 * The skip table is a hash table in far memory that maps key prefixes to inner nodes, so that a descent can start near
 * the leaf. Its content is only a hint, with one exception, invariant E1: a committed entry of a live segment never
 * names a node that was handed to far_retire. Therefore a client may read any node that a lookup returns, as long as it
 * holds its pin, but the lookup proves nothing: the tree checks depth, prefix and frozen slots of the node. */
#ifndef FAR_INDEX_DART_SKIPTABLE_SKIPTABLE_H
#define FAR_INDEX_DART_SKIPTABLE_SKIPTABLE_H

#include "base/budget.h"
#include "base/spin.h"
#include "index/dart/dart.h"

#define DART_EST_READ_SLOTS  16u
#define DART_EST_GROUP_SLOTS 24u
#define DART_EST_PREFIX_MAX  255u /* largest prefix length that the list of prefix lengths may contain */
#define DART_EST_WIDTH_MAX   4u   /* maximal number of prefix lengths that the first round of a lookup tries */
#define DART_LOG_GROUPS_MAX  16u

_Static_assert(DART_EST_READ_SLOTS * 8 == DART_EST_READ_BYTES && DART_EST_GROUP_SLOTS * 8 == DART_EST_GROUP_BYTES,
               "a group");


/* ---- Local caches (cache_express.c) ----
 *
 * A cache consists of chunks, which are arrays of words, each protected by its own lock. Chunks are allocated when they
 * are first needed, and freed when another cache of the process needs their share of the byte budget. */

typedef struct dart_chunk {
    far_spin lock;
    uint64_t *words; /* words of the chunk; NULL if they are not allocated */
} dart_chunk;

typedef struct dart_cache {
    far_budget_cache *budget;
    dart_chunk *chunks;
    unsigned count; /* number of chunks; 0 if the cache is switched off */
    size_t chunk_bytes;
    atomic_uint evict_cursor; /* number of the chunk at which the next eviction begins */
    /* Caches that are sets of entries use only the first active_chunks chunks, so that a small number of entries fills
     * few lines of the processor's caches. full_sets counts insertions into a full set since the last growth. */
    atomic_uint active_chunks, full_sets;
    far_spin growing;
} dart_cache;

#define DART_CHUNK_WORDS   512u /* words of a chunk, 4 KiB */
#define DART_EXPRESS_WORDS 544u /* words of a chunk of the express cache, which has one additional word for each set */

/* A tag is the epoch in which the target of a cached word was last proved to be linked, modulo 4096. cache_express.c
 * states the rule for its use (tag rule), with its proof. */
#define DART_TAG_BITS 12
#define DART_TAG_MASK ((1ull << DART_TAG_BITS) - 1)


/* Returns the number of epochs since the tag's epoch; negative if the tag is newer than `epoch`. */
static inline int dart_tag_age(uint64_t tag, uint64_t epoch) {
    unsigned age = (unsigned)((epoch - tag) & DART_TAG_MASK);
    return age > DART_TAG_MASK / 2 ? (int)age - (int)(DART_TAG_MASK + 1) : (int)age;
}


/* Returns the epoch of a tag. This epoch must be less than half the tag's range away from `epoch`. */
static inline uint64_t dart_tag_epoch(uint64_t tag, uint64_t epoch) {
    return epoch - (uint64_t)(int64_t)dart_tag_age(tag, epoch);
}


/* True if a node that was linked in the tag's epoch may be read by an operation that is pinned at `epoch`. */
static inline bool dart_tag_is_fresh(uint64_t tag, uint64_t epoch) {
    return dart_tag_age(tag, epoch) <= 1 + DART_EXTRA_EPOCHS;
}


int dart_cache_open(dart_cache *cache, struct far_budget *budget, const char *name, unsigned chunks,
                    unsigned chunk_words);
void dart_cache_close(dart_cache *cache);
size_t dart_cache_used(const dart_cache *cache); /* Returns the number of allocated bytes of a cache. */
/* Locks chunk number `at` and returns it. An unallocated chunk is allocated if `make` is set. Returns NULL, without a
 * lock, if the chunk is not allocated. */
dart_chunk *dart_cache_lock(dart_cache *cache, unsigned at, bool make);
#define DART_CHUNK_SHIFT 13 /* the 32 bits of a hash from this bit on choose the chunk */
dart_chunk *dart_cache_lock_for(dart_cache *cache, uint64_t hash, bool make);
/* Admission to a full set. The entry with this hash may evict another entry only if its hash is among the last four
 * hashes that requested admission. Returns true if it is; otherwise records its request in *requests, a word of the
 * set. So entries that are used often evict entries that are used rarely, and a stream of entries that are each used
 * once evicts none. With little memory, the entries of short prefixes stay, because many keys share a short prefix. */
bool dart_cache_admit(uint64_t *requests, uint64_t hash);
typedef void dart_cache_move_fn(dart_cache *cache, uint64_t *words, uint64_t epoch);
/* Counts one more insertion into a full set. After many such insertions, doubles the number of active chunks; `move`
 * inserts the entries of each old chunk into the chunks to which they now belong. */
void dart_cache_count_full_set(dart_cache *cache, uint64_t epoch, dart_cache_move_fn *move);

#define DART_TABLES_CACHED 512u

/* The directory words that this handle has seen, by the number of their slot (dart_dir_slot). A directory word that
 * names a table never changes again. Every handle therefore keeps the table words with the lowest numbers, in 4 KiB
 * outside of the byte budget, so that lookups without any cache take the same number of round trips in large indexes as
 * in small indexes. */
typedef struct dart_directory {
    dart_cache words;
    _Atomic uint64_t tables[DART_TABLES_CACHED];
} dart_directory;

/* Returns the last known directory word with this number; 0 if the word is unknown. Sets *fresh if the word names a
 * table, or if the tag rule permits an operation that is pinned at `epoch` to read the segment that the word names. */
uint64_t dart_directory_get(dart_directory *directory, unsigned at, uint64_t epoch, bool *fresh);
/* Records that in `epoch` the directory contained this word, or a slot of the word's segment was unfrozen. A word of 0
 * removes the number from the cache. */
void dart_directory_set(dart_directory *directory, unsigned at, uint64_t word, uint64_t epoch);

/* The express cache: skip table entries by the hash of their prefix.
 * dart_express_get returns true and the entry if an operation that is pinned at `epoch` may read its node. It sets
 * *recent if the entry's tag is so new that the operation need not renew it. */
bool dart_express_get(dart_cache *cache, uint64_t hash, uint64_t epoch, uint64_t *word, bool *recent);
/* Stores an entry in the express cache. The caller saw a slot of the entry's node unfrozen in `epoch`. */
void dart_express_put(dart_cache *cache, uint64_t hash, uint64_t word, uint64_t epoch);
void dart_express_drop(dart_cache *cache, uint64_t hash);

/* In a cached entry, the bits of the fingerprint hold the entry's position in far memory instead (the hash contains the
 * fingerprint anyway). The position is 1 + slot number in the bucket pair; 0: unknown. */
#define DART_POSITION_SHIFT 56


static inline uint64_t dart_word_with_position(uint64_t word, unsigned position) {
    return (word & ~(0xffull << DART_POSITION_SHIFT)) | (uint64_t)position << DART_POSITION_SHIFT;
}


static inline unsigned dart_word_position(uint64_t word) {
    return (unsigned)(word >> DART_POSITION_SHIFT);
}


/* Records the position of a cached entry: the entry with this word, if the cache has it, is in slot number `slot` of
 * its bucket pair. */
void dart_express_set_position(dart_cache *cache, uint64_t hash, uint64_t word, unsigned slot);

/* For each slot of the root, the node of depth 1 below this slot, if the node was seen linked lately; 2 KiB in every
 * handle. This array saves the READ of the root, which otherwise every client would send to the same memory node. As
 * the key's byte itself is the array index, a node found here is certainly on the key's path. */
typedef struct dart_below_root {
    _Atomic uint64_t word[256];
} dart_below_root;
bool dart_below_root_get(const dart_below_root *below, unsigned byte, uint64_t epoch, dart_node *node, bool *recent);
void dart_below_root_put(dart_below_root *below, unsigned byte, const dart_node *node, uint64_t epoch);
void dart_below_root_drop(dart_below_root *below, unsigned byte);
/* Drops old words; called like dart_cache_age. */
void dart_below_root_age(dart_below_root *below, uint64_t before, uint64_t epoch);

/* Called for each new epoch. Tags are epochs modulo 4096, so an old tag could look new again. To prevent that, this
 * function drops old entries every DART_TAG_PERIOD epochs. */
#define DART_TAG_PERIOD 1024u
void dart_cache_age(dart_cache *directory, dart_cache *express, uint64_t before, uint64_t epoch);


/* Increments a counter and returns its old value. If two threads increment at the same time, one increment may be lost;
 * this costs less than an atomic addition, for which the threads would wait for the counter's cache line. */
static inline uint64_t dart_count_relaxed(_Atomic uint64_t *count) {
    uint64_t before = atomic_load_explicit(count, memory_order_relaxed);
    atomic_store_explicit(count, before + 1, memory_order_relaxed);
    return before;
}


/* ---- The choice of the prefix lengths that a lookup tries first (choose.c) ----
 *
 * The choice is a multi-armed bandit problem for each class of key lengths. An arm is a run of neighbouring lengths of
 * the list, or the root. */

#define DART_LENGTH_CLASSES 40u
#define DART_ARMS                                                                                                      \
    (DART_LIST_MAX * DART_EST_WIDTH_MAX + 1) /* one arm for each first position and count, and one for the root */

typedef struct dart_length_class {
    _Atomic uint64_t turns;      /* number of choices made */
    /* moving average of the round trips of descents with this arm; 0 if it was never tried */
    atomic_uint cost[DART_ARMS];
} dart_length_class;

typedef struct dart_choice {
    /* The arm uses the lengths [first, first + count) of the list. The arm of the root has count 0. */
    unsigned arm, first, count;
} dart_choice;

unsigned dart_length_class_of(size_t key_length);
/* Chooses the arm that the next lookup tries. usable: number of lengths of the list that are shorter than the key,
 * because only these can be looked up. width: the largest number of lengths that an arm may have. */
dart_choice dart_choose_arm(dart_length_class *class, unsigned usable, unsigned width);
/* Records the cost of a descent that used `arm`: its round trips, and the number of bucket READs beyond one per round
 * trip. */
void dart_record_arm_cost(dart_length_class *class, unsigned arm, unsigned usable, unsigned width, unsigned trips,
                          unsigned probes);
void dart_length_class_reset(dart_length_class *class);


/* ---- Adjustment of the list of prefix lengths (lengths.c: the choice; adjust.c: the protocol) ---- */

#define DART_SAMPLES       256u
#define DART_SAMPLE_DEPTHS 48u

typedef struct dart_sample {             /* the path of one sampled key */
    unsigned key_length, count;          /* key_length: length in bytes; count: number of depths */
    uint16_t depths[DART_SAMPLE_DEPTHS]; /* depths of the inner nodes on the path, from the root on */
} dart_sample;

/* Chooses prefix lengths greedily: repeatedly adds the length that saves the most node READs, up to `max` lengths,
 * until the next one would save less than 2 %. Returns the number of lengths, which are in ascending order. */
unsigned dart_choose_lengths(const dart_sample *samples, unsigned count, unsigned max, uint8_t lengths[DART_LIST_MAX]);
/* True if these lengths are worth replacing the current list: because they save much more, or because a length of the
 * current list saves nothing. The threshold prevents that samples, which differ a little each time, cause the table to
 * be filled and swept again and again. */
bool dart_lengths_are_worth(const dart_sample *samples, unsigned count, const dart_list *now, const uint8_t *lengths,
                            unsigned length_count);

typedef enum {
    DART_ADJUST_IDLE,
    DART_ADJUST_ACTIVE_PUBLISHED, /* step 1 is published: the new lengths are active; wait two epochs */
    DART_ADJUST_FILL,             /* step 2: nodes are registered under the new lengths */
    DART_ADJUST_LOOKUP_PUBLISHED, /* step 3: the new lookup lengths are published; wait two epochs */
    DART_ADJUST_SWEEP             /* step 4: the entries of the dropped lengths are removed */
} dart_adjust_phase;

typedef struct dart_adjust {
    /* The sample of keys, written by operations. */
    far_spin lock;               /* protects sampled and keys */
    unsigned sampled;            /* number of keys sampled so far; the array of keys is a ring */
    _Atomic uint64_t operations; /* number of operations of this handle */
    atomic_bool had_get;         /* this handle has executed a get */
    struct {
        uint8_t length; /* length of this key in bytes; longer keys than the array are not sampled */
        uint8_t key[DART_EST_PREFIX_MAX];
    } keys[DART_SAMPLES];

    /* The state of the adjustment, written only by housekeeping (the idle hook). */
    dart_adjust_phase phase;
    uint64_t next_adjustment; /* the next adjustment begins when `operations` reaches this number */
    uint64_t lock_word;       /* owner word of this session while it holds the adjuster lock in far memory; else 0 */
    uint64_t epoch;           /* epoch of the last publication of a list */
    dart_list target;         /* the list to be published; its lookup lengths are the goal of this adjustment */
    uint8_t *cursor;          /* key at which filling continues; room for max_key + 1 bytes */
    uint64_t leaves;          /* number of leaves that filling has visited */
    uint64_t entries[DART_EST_PREFIX_MAX + 1]; /* number of entries that filling has made, by prefix length */
    size_t cursor_length;
    unsigned sweep_place; /* place in the directory at which sweeping continues */
    bool built;           /* with est_update=off: true after the table was built */
} dart_adjust;


/* ---- The local state of the skip table ---- */

/* A list of prefix lengths that this handle has read. It stays allocated until the index is closed, because any
 * operation may still be using it, and operations do not register as users of a list. */
typedef struct dart_local_list {
    dart_list list;
    uint64_t word; /* list word in the descriptor that named this list */
    struct dart_local_list *next;
} dart_local_list;

#define DART_NODE_CLAIMS 512u

/* The nodes for which this handle has pending tentative words. At most one task of a client may register a node at a
 * time, because two tasks would use the same tentative word. */
typedef struct dart_node_claims {
    far_spin lock;
    struct {
        far_addr node; /* address of the claimed node; 0 if this element is unused */
        unsigned client;
    } entry[DART_NODE_CLAIMS];
} dart_node_claims;

#define DART_ROOT_GET_WORDS 1024u

#define DART_REGISTRATIONS DART_REGISTRATIONS_MAX

/* True if the length is in the lookup list, so that entries of this length are registered and looked up. */
static inline bool dart_list_has_lookup(const dart_list *list, unsigned length) {
    for (unsigned i = 0; i < list->lookup_count; i++)
        if (list->lookup[i] == length)
            return true;
    return false;
}


/* A request to register a node. An operation queues the request; a background task executes it later, together with
 * others. */
typedef struct dart_registration {
    dart_node node;
    uint64_t epoch; /* epoch of the operation that saw the node linked */
    /* The slot for the entry, if it is already known: its address and its number in the bucket pair. entry is 0 if the
     * slot is unknown. */
    far_addr entry;
    unsigned slot;
    /* Set if a redirect (dart.h) already stored the tentative word in the slot `entry`: that tentative word, the
     * committed word that will replace it, and the hash of the prefix. If there was no redirect, tentative is 0. In
     * that case, if `entry` names a slot, the slot was read as empty and `lengths` has exactly one length. */
    uint64_t tentative;
    uint64_t committed, hash;
    /* The prefix lengths under which the node will be registered; not used if a redirect stored a tentative word. */
    unsigned count;
    uint8_t lengths[DART_LIST_MAX];
    uint8_t prefix[DART_EST_PREFIX_MAX + 1];
} dart_registration;

typedef struct dart_registration_queue {
    far_spin lock;
    unsigned count;
    /* Value of `count` at the last call of housekeeping. Housekeeping empties the queue only if `count` has not changed
     * since then, because a queue that still grows soon has enough nodes for a full batch. */
    unsigned count_at_idle;
    bool task_spawned;      /* a task that will execute the queued registrations was spawned */
    dart_registration entries[DART_REGISTRATIONS];
} dart_registration_queue;

typedef struct dart_est {
    /* Constant after open. */
    far_addr stripe[DART_STRIPES_MAX]; /* addresses of the directory's stripes */
    unsigned stripes, bits, width;     /* bits: log2 of the directory's size; width: option probe_width */
    unsigned adjust_every, sample_every, upkeep_batch;
    /* log2 of the maximal number of groups in a segment; a full segment of this size is replaced by a table */
    unsigned segment_log;
    uint64_t seed;
    far_addr super;
    bool update, adjusting, one_fingerprint;
    bool tables; /* the index may have tables; an index made by an old version has none */
    /* The newest list of prefix lengths that this handle has read. */
    _Atomic(dart_local_list *) list;
    far_spin list_lock;
    _Atomic uint64_t epoch; /* epoch of the last call of the epoch hook */
    /* Caches. */
    dart_directory directory;
    dart_cache express, slots, scans;
    dart_below_root below_root;
    /* Registration and the choice of lengths. */
    dart_length_class classes[DART_LENGTH_CLASSES];
    dart_node_claims claims;
    dart_registration_queue queue;
    /* Bitmap with a bit for each hash of a prefix. The bit is set if a get that started at the root has queued the
     * prefix. */
    _Atomic uint64_t root_gets[DART_ROOT_GET_WORDS];
    _Atomic uint64_t root_get_count;
    /* Segments to shrink. */
    /* Bitmap with a bit for each directory word, by its number. The bit is set if entries were removed from the word's
     * segment. */
    _Atomic uint64_t *emptied;
    atomic_uint emptied_count;
    unsigned shrink_cursor; /* index of the word of `emptied` at which the next search begins */
    dart_adjust adjust;
} dart_est;


static inline dart_est *dart_est_of(const far_index *index) {
    return dart_of(index)->est;
}


static inline const dart_list *dart_est_list(dart_est *est) {
    return &atomic_load_explicit(&est->list, memory_order_acquire)->list;
}


/* True with upkeep_batch=1. Then every node is registered immediately, even if its entry saves only one round trip.
 * Every operation that misses an entry registers the node, too. */
static inline bool dart_est_is_eager(const dart_est *est) {
    return est->upkeep_batch == 1;
}


uint64_t dart_est_hash(const dart_est *est, const void *prefix, unsigned length);


static inline unsigned dart_est_fingerprint_of(const dart_est *est, uint64_t hash) {
    return est->one_fingerprint ? 1 : dart_hash_fingerprint(hash);
}


/* ---- The directory: a full segment of 2^segment_log groups is replaced by a table of 16 directory words ---- */

typedef struct dart_dir_slot { /* a slot of the directory or of a table: it contains a directory word */
    unsigned number;           /* identifies the slot: a one bit, followed by the bits of the hash that lead to it */
    unsigned level;            /* number of tables above the slot; 0 for a slot of the directory itself */
    far_addr addr;
} dart_dir_slot;

#define DART_DIR_NUMBERS (2u << DART_DIRECTORY_BITS_MAX)


/* Returns slot i of the directory itself. */
static inline dart_dir_slot dart_dir_slot_at(const dart_est *est, unsigned i) {
    return (dart_dir_slot){1u << est->bits | i, 0, est->stripe[i % est->stripes] + i / est->stripes * 8ull};
}


/* Returns slot i of the table that `table`, the directory word of slot `above`, names. */
static inline dart_dir_slot dart_dir_slot_below(const dart_dir_slot *above, uint64_t table, unsigned i) {
    return (dart_dir_slot){above->number << DART_TABLE_LOG | i, above->level + 1, dart_word_addr(table) + i * 8ull};
}


static inline bool dart_dir_slot_may_be_table(const dart_est *est, const dart_dir_slot *dir) {
    return est->tables && est->bits + (dir->level + 1) * DART_TABLE_LOG <= DART_DIRECTORY_BITS_MAX;
}


/* Returns the number of the directory slot at this level (number of tables above the slot) to which a hash leads. */
static inline unsigned dart_dir_number(const dart_est *est, uint64_t hash, unsigned level) {
    unsigned top = 1u << est->bits | dart_hash_directory(hash, est->bits);
    return top << level * DART_TABLE_LOG | (unsigned)dart_hash_group(hash, 0, level * DART_TABLE_LOG);
}


/* Follows the cached tables from *dir down towards the slot of this hash, until a table is not in the cache, and sets
 * *dir to the last slot. Returns the word of that slot, and *fresh, like dart_directory_get. */
uint64_t dart_est_follow_cached_tables(dart_est *est, uint64_t hash, uint64_t epoch, dart_dir_slot *dir, bool *fresh);
/* Returns 0 if this word is valid in this slot, otherwise FAR_ERR_CORRUPT. */
int dart_est_check_dir_word(const dart_est *est, const dart_dir_slot *dir, uint64_t word);
/* Finds the slot with this number, through the tables above the slot. Returns 0 or an error. */
int dart_est_find_dir_slot(far_task *t, far_index *index, unsigned at, dart_dir_slot *dir);


static inline far_addr dart_est_bucket_addr(uint64_t word, unsigned level, uint64_t hash) {
    return dart_word_addr(word) + dart_hash_group(hash, level, dart_directory_log_groups(word)) * DART_EST_GROUP_BYTES +
           dart_hash_main(hash) * (DART_EST_BUCKET * 8);
}


/* ---- Reading a bucket pair (lookup.c) ---- */

/* The READ of the bucket pair of one prefix: a main bucket and the overflow bucket next to it. The READ may take
 * several rounds, because the path through the directory may be unknown, or the cached directory words may be old. */
typedef struct dart_bucket_read {
    uint64_t hash;
    unsigned length;              /* length of the prefix in bytes */
    dart_dir_slot dir;            /* the slot of the directory, or of the lowest known table, to which the hash leads */
    uint64_t word;                /* directory word in the slot `dir`; 0 if there is no segment */
    uint64_t seen_word;           /* directory word that the last READ of the slot `dir` returned */
    /* reads_word: the pending batch reads the directory word; reads_slots: it reads the bucket pair */
    bool reads_word, reads_slots;
    bool cache_consulted;         /* `word` was taken from the directory cache */
    bool word_is_usable;          /* the tag rule permits to read the segment that `word` names */
    bool word_is_current;         /* `word` was read in this operation */
    bool done;                    /* true when `slots` contains the bucket pair, or there is no segment */
    dart_shared_reads *shared;    /* table of shared READs in a multi-get, as in dart_lookup; else NULL */
    uint64_t slots[DART_EST_READ_SLOTS];
} dart_bucket_read;

void dart_bucket_read_init(const dart_est *est, dart_bucket_read *r, const void *prefix, unsigned length);
/* Adds the READs of the next round to the batch. Returns true if it added READs. */
bool dart_bucket_read_add_verbs(far_task *t, dart_est *est, dart_bucket_read *r);
/* Evaluates the completed READs. Returns 1 if another round is needed, 0 if not, or an error. */
int dart_bucket_read_process(far_task *t, dart_est *est, dart_bucket_read *r);
/* Runs several bucket reads to their end. */
int dart_bucket_reads_run(far_task *t, dart_est *est, dart_bucket_read *reads, unsigned count);
/* Stores a node, which was seen linked, in the express cache under all lookup lengths in (parent_depth, depth]. */
void dart_est_cache_linked(far_task *t, far_index *index, const dart_node *node, unsigned parent_depth,
                           far_bytes prefix);


static inline far_addr dart_est_slot_addr(const dart_bucket_read *r, unsigned slot) {
    return dart_est_bucket_addr(r->word, r->dir.level, r->hash) + slot * 8ull;
}


static inline bool dart_est_any_frozen(const uint64_t *slots, unsigned count) {
    for (unsigned i = 0; i < count; i++)
        if (dart_is_frozen(slots[i]))
            return true;
    return false;
}


/* ---- Registration and removal of entries (upkeep.c) ---- */

/* Registers a node immediately, under those of the given prefix lengths that an entry can express. Returns 0, or an
 * error of the fabric. */
int dart_est_register_now(far_task *t, far_index *index, const dart_node *node, const void *prefix,
                          const uint8_t *lengths, unsigned count);
/* Executes queued registrations, with four batches for all of them. A registration that fails is dropped, because an
 * operation that misses the entry will queue it again. */
void dart_est_register_batch(far_task *t, far_index *index, const dart_registration *registrations, unsigned count);
/* Chooses the slot for the entry of a registration, if the node is registered under exactly one prefix length and these
 * bucket images show an empty slot. Otherwise changes nothing. */
void dart_est_choose_empty_slot(const far_index *index, const dart_entry_buckets *buckets,
                                dart_registration *registration);
/* Claims a node for a client, from the moment before its tentative word is written until that word is committed or
 * abandoned. Returns false if the client has already claimed the node, or if there is no room. */
bool dart_est_claim_node(dart_node_claims *o, unsigned client, far_addr node);
void dart_est_release_node(dart_node_claims *o, unsigned client, far_addr node);
/* Header and first slot of a node that an entry names (grow.c). */
typedef struct dart_target {
    far_addr addr;                       /* input: address of the node; 0 if there is nothing to read */
    unsigned depth;                      /* output: depth of the node */
    bool sound, frozen; /* outputs: sound is true if the header is valid, frozen if the node's first slot is frozen */
    uint8_t prefix[DART_EST_PREFIX_MAX]; /* output: the first bytes of the prefix, at most depth many */
} dart_target;
int dart_est_read_targets(far_task *t, far_index *index, dart_target *targets, unsigned count);


/* ---- The queue of registrations (queue.c) ---- */

/* Queues a registration. The caller saw the node linked in this operation. Returns false if the queue is full or
 * already has the node. */
bool dart_est_queue_registration(far_task *t, far_index *index, const dart_registration *registration);
/* Queues the registration of a node under one prefix length. */
bool dart_est_queue_length(far_task *t, far_index *index, const dart_node *node, const void *prefix, unsigned length);
/* Starts a background task that clears a stale entry, if the slot still contains this word. */
void dart_est_clear_entry_later(far_task *t, far_index *index, far_addr entry, uint64_t word);
/* Called by housekeeping: executes the queued registrations if none was added since the last call. */
void dart_est_flush_idle_queue(far_task *t, far_index *index);


/* ---- Segments: creation, growth, shrinking (grow.c) ---- */

/* Creates segments for directory slots that contain 0. Returns how many of these slots, counted from the first, contain
 * another word now (at least 1), or an error. Sets words[i] to the directory word of the empty segment that this call
 * created for slot i, or to 0 if another client created the segment first. */
int dart_est_make_segments(far_task *t, far_index *index, const dart_dir_slot *dirs, unsigned count, uint64_t *words);
/* Replaces a full segment by a segment of twice the size, or by a table of segments. The caller sets `help` if another
 * client has begun to replace the segment. Then the replacement is completed even without memory for a new segment, if
 * necessary by writing 0 to the directory slot, which drops the entries. Returns 0 or an error. After 0 the directory
 * slot contains another word. */
int dart_est_grow(far_task *t, far_index *index, const dart_dir_slot *dir, uint64_t word, bool help);
/* Records that entries of the segment of directory word number `at` were removed, so that housekeeping checks whether
 * the segment can be made smaller. */
void dart_est_mark_emptied(dart_est *est, unsigned at);
/* Called by housekeeping: checks some of the segments that dart_est_mark_emptied recorded. Returns 1 if more of them
 * remain, 0 if not, or an error. */
int dart_est_shrink_segments(far_task *t, far_index *index);


/* ---- Visiting all segments (traverse.c) ---- */
typedef struct dart_est_counts {
    uint64_t entries, tentative, slots, segments, tables;
    uint64_t bytes; /* size in bytes of the directory, tables and segments together */
} dart_est_counts;
/* Counts the entries of the whole table. The caller holds no pin. */
int dart_est_count(far_task *t, far_index *index, dart_est_counts *counts);

/* Called for each segment, and for each table (slots NULL) before the segments below it. */
typedef int dart_segment_fn(far_task *t, far_index *index, const dart_dir_slot *dir, uint64_t word,
                            const uint64_t *slots, unsigned count, void *ctx);
/* Visits some segments from *place on, and moves *place after them. A place is a position in the hash order of all
 * directory words, including those in tables; places have the numbers from 0 to dart_est_places. If `each` returns 1
 * because a segment has changed, `each` is called again with the new contents of this segment. The caller holds a
 * pin. */
#define DART_SEGMENTS_AT_ONCE 512u /* maximal number of segments that one call visits */
int dart_est_visit_segments(far_task *t, far_index *index, unsigned *place, dart_segment_fn *each, void *ctx);


static inline unsigned dart_est_place_bits(const dart_est *est) {
    return DART_DIRECTORY_BITS_MAX - (DART_DIRECTORY_BITS_MAX - est->bits) % DART_TABLE_LOG;
}


static inline unsigned dart_est_places(const dart_est *est) {
    return 1u << dart_est_place_bits(est);
}


/* ---- skiptable.c ---- */

/* Reads the current list of prefix lengths, and makes it the list of this handle if it is newer. */
int dart_est_read_list(far_task *t, far_index *index);

/* ---- adjust.c ---- */

/* Stores a key in the sample. */
void dart_est_sample_key(dart_est *est, far_bytes key);
/* With est_update=off, writes do not update the skip table. Housekeeping then builds the table once, after the first
 * get (which is taken as the end of the initial load). This function executes one step of that. Returns 1 if more steps
 * remain, 0 if not, or an error. */
int dart_est_build_once(far_task *t, far_index *index);
/* Called by housekeeping: executes a step of the adjustment. Returns 1 if more steps remain, 0 if not, or an error.
 * Only one task at a time may call this function. */
int dart_est_adjust(far_task *t, far_index *index);
/* Begins an adjustment that makes these lengths the lookup lengths, without regard to the sampled keys. Calls of
 * dart_est_adjust complete it. Returns 0 if another handle is adjusting the list. */
int dart_est_adjust_to(far_task *t, far_index *index, const uint8_t *lengths, unsigned count);

#endif
