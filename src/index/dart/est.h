/* The express skip table (EST): what its files share. dart.h has the calls between it and the tree, layout.h the bits.
 *
 * A hash table in far memory from key prefixes to inner nodes, so that a descent starts near the leaf. Its content is a
 * hint, except for invariant E1: a committed entry of a live segment never names a node that was handed to far_retire.
 * So whatever a lookup gives may be read under the pin, but proves nothing: the tree checks depth, prefix and frozen
 * slots.
 *
 *   est.c         create, open, close, hooks
 *   est_lookup.c  ask, answer, repair
 *   est_upkeep.c  register, remove
 *   est_queue.c   nodes that wait to be registered; entries that change their node in place
 *   est_grow.c    segments: making, growing, and tables in their place
 *   est_walk.c    walk, check, counts
 *   express.c     what a handle keeps: directory words, entries; their tags
 *   slots.c       what it keeps of single keys: the slot cache
 *   choose.c      which prefix lengths are tried first
 *   adjust.c      the list of prefix lengths follows the keys */
#ifndef FAR_INDEX_DART_EST_H
#define FAR_INDEX_DART_EST_H

#include "base/budget.h"
#include "base/spin.h"
#include "index/dart/dart.h"

#define DART_EST_READ_SLOTS  16u
#define DART_EST_GROUP_SLOTS 24u
#define DART_EST_PREFIX_MAX  255u /* no longer prefix is in a list */
#define DART_EST_WIDTH_MAX   4u
#define DART_LOG_GROUPS_MAX  16u

_Static_assert(DART_EST_READ_SLOTS * 8 == DART_EST_READ_BYTES && DART_EST_GROUP_SLOTS * 8 == DART_EST_GROUP_BYTES,
               "a group");


/* ---- express.c ---- */

typedef struct dart_chunk {
    far_spin lock;
    uint64_t *words; /* NULL: none */
} dart_chunk;

typedef struct dart_cache { /* chunks of words, each under its lock; they come and go with the byte budget */
    far_budget_cache *budget;
    dart_chunk *chunks;
    unsigned count;
    size_t chunk_bytes;
    atomic_uint hand; /* next chunk to be given up */
    /* The express cache: so many of the chunks are in use, and how often a set of them was full since they are. Few
     * entries lie close together then, which costs fewer misses of the processor's own caches. */
    atomic_uint active, crowded;
    far_spin growing;
} dart_cache;

#define DART_CHUNK_WORDS   512u /* 4 KiB */
#define DART_EXPRESS_WORDS 544u /* of a chunk of the express cache */

/* Tags: the epoch in which something that is kept was last proved, modulo 4096. */
#define DART_TAG_BITS 12
#define DART_TAG_MASK ((1ull << DART_TAG_BITS) - 1)


/* Epochs since the tag; negative: it is of a newer one. */
static inline int dart_tag_age(uint64_t tag, uint64_t epoch) {
    unsigned age = (unsigned)((epoch - tag) & DART_TAG_MASK);
    return age > DART_TAG_MASK / 2 ? (int)age - (int)(DART_TAG_MASK + 1) : (int)age;
}


/* The epoch of a tag that is not far from this one. */
static inline uint64_t dart_tag_epoch(uint64_t tag, uint64_t epoch) {
    return epoch - (uint64_t)(int64_t)dart_tag_age(tag, epoch);
}


/* A node that was linked then may be read now. */
static inline bool dart_tag_is_fresh(uint64_t tag, uint64_t epoch) {
    return dart_tag_age(tag, epoch) <= 1 + DART_EXTRA_EPOCHS;
}


int dart_cache_open(dart_cache *cache, struct far_budget *budget, const char *name, unsigned chunks,
                    unsigned chunk_words);
void dart_cache_close(dart_cache *cache);
size_t dart_cache_used(const dart_cache *cache);
/* Locks a chunk that has words; NULL: there are none (make: and no room for any). */
dart_chunk *dart_cache_lock(dart_cache *cache, unsigned at, bool make);
#define DART_CHUNK_SHIFT 13 /* 32 bits of a hash from this one on tell the chunk */
dart_chunk *dart_cache_lock_for(dart_cache *cache, uint64_t hash, bool make);
/* A set is full of entries that can be used: an entry that wants to come in must be one of the last four that did (`asked`, a
 * word of the set). So those that are asked for often push out those that are not, and many that come once push out
 * nobody: with little memory the entries of short prefixes stay, which many keys share. */
bool dart_cache_lets_in(uint64_t *asked, uint64_t hash);
typedef void dart_cache_move(dart_cache *cache, uint64_t *words, uint64_t epoch);
/* One more set was full: when that comes often there are twice as many chunks, and `move` puts the words of each old
 * one where they belong. */
void dart_cache_was_full(dart_cache *cache, uint64_t epoch, dart_cache_move *move);

#define DART_TABLES_KEPT 512u

/* Words of the directory that a handle has seen, by their numbers (dart_spot). A table stays one for ever; those of the
 * lowest numbers are kept by every handle, in 4 KiB, so that a million keys cost no more round trips without a cache
 * than a thousand do. */
typedef struct dart_directory {
    dart_cache words;
    _Atomic uint64_t tables[DART_TABLES_KEPT];
} dart_directory;

/* A directory word as it was seen, 0: not known. *fresh: it is a table, or its segment may be read in an operation
 * pinned at this epoch (tag rule). */
uint64_t dart_directory_get(dart_directory *directory, unsigned at, uint64_t epoch, bool *fresh);
/* The word was in the directory, or a slot of its segment was not frozen, at this epoch. word 0: forget it. */
void dart_directory_set(dart_directory *directory, unsigned at, uint64_t word, uint64_t epoch);

/* Entries by the hash of their prefix; only those whose node may be read at this epoch. *current: to put it again at
 * this epoch would change nothing. */
bool dart_express_get(dart_cache *cache, uint64_t hash, uint64_t epoch, uint64_t *word, bool *current);
void dart_express_put(dart_cache *cache, uint64_t hash, uint64_t word,
                      uint64_t epoch); /* a slot of the node was seen unfrozen at this epoch */
void dart_express_drop(dart_cache *cache, uint64_t hash);

/* Where in its bucket pair a kept entry stands in far memory: in place of the fingerprint, which the hash tells. 0: not
 * known, else slot + 1. */
#define DART_HINT_SHIFT 56


static inline uint64_t dart_hinted(uint64_t word, unsigned hint) {
    return (word & ~(0xffull << DART_HINT_SHIFT)) | (uint64_t)hint << DART_HINT_SHIFT;
}


static inline unsigned dart_hint(uint64_t word) {
    return (unsigned)(word >> DART_HINT_SHIFT);
}


/* The entry of this word, if it is kept, stands in that slot. */
void dart_express_hint(dart_cache *cache, uint64_t hash, uint64_t word, unsigned slot);

/* The node of depth 1 below each slot of the root, if it was seen linked lately: 2 KiB of every handle. By the byte
 * itself, not by a hash of it: what is found is on the key's path. Saves the READ of the root, which all clients would
 * send to one memory node. */
typedef struct dart_below_root {
    _Atomic uint64_t word[256];
} dart_below_root;
bool dart_below_root_get(const dart_below_root *below, unsigned byte, uint64_t epoch, dart_node *node, bool *current);
void dart_below_root_put(dart_below_root *below, unsigned byte, const dart_node *node, uint64_t epoch);
void dart_below_root_drop(dart_below_root *below, unsigned byte);
void dart_below_root_age(dart_below_root *below, uint64_t before, uint64_t epoch); /* as dart_cache_age */

/* Tags are epochs modulo 4096: before they could be mistaken, old ones are forgotten. Called for every new epoch. */
#define DART_TAG_PERIOD 1024u
void dart_cache_age(dart_cache *directory, dart_cache *express, uint64_t before, uint64_t epoch);


/* One more; of two threads at the same time one may be lost, which costs less than to wait for each other's line. The
 * count before. */
static inline uint64_t dart_count_roughly(_Atomic uint64_t *count) {
    uint64_t before = atomic_load_explicit(count, memory_order_relaxed);
    atomic_store_explicit(count, before + 1, memory_order_relaxed);
    return before;
}


/* ---- choose.c: the first choice of prefix lengths, by what it cost before ---- */

#define DART_CLASSES 40u
#define DART_ARMS                                                                                                      \
    (DART_LIST_MAX * DART_EST_WIDTH_MAX + 1) /* first position in the list and how many; the last: the root */

typedef struct dart_class { /* of key lengths */
    _Atomic uint64_t turns;
    atomic_uint cost[DART_ARMS]; /* of round trips, a moving average; 0: never tried */
} dart_class;

typedef struct dart_choice {
    unsigned arm, first, count; /* lengths [first, first + count) of the list; count 0: the root */
} dart_choice;

unsigned dart_class_of(size_t key_length);
/* usable: so many lengths of the list, from the shortest, are shorter than the key. */
dart_choice dart_choose(dart_class *class, unsigned usable, unsigned width);
void dart_chosen_cost(dart_class *class, unsigned arm, unsigned usable, unsigned width, unsigned trips,
                      unsigned probes);
void dart_class_reset(dart_class *class);


/* ---- adjust.c ---- */

#define DART_SAMPLES       256u
#define DART_SAMPLE_DEPTHS 48u

typedef struct dart_sample { /* a key's way through the tree: its length, the depths of the inner nodes from the root on
                              */
    unsigned key_length, count;
    uint16_t depths[DART_SAMPLE_DEPTHS];
} dart_sample;

/* Greedy: the length that saves most node READs, again and again, at most max of them, until the next saves less than 2
 * %. Rising. */
unsigned dart_choose_lengths(const dart_sample *samples, unsigned count, unsigned max, uint8_t lengths[DART_LIST_MAX]);
/* In place of the list that is there: they save much more, or a length of that saves nothing. Else samples that are a
 * little different every time would have the table filled and swept again and again. */
bool dart_lengths_are_worth(const dart_sample *samples, unsigned count, const dart_list *now, const uint8_t *lengths,
                            unsigned length_count);

typedef enum {
    DART_ADJUST_IDLE,
    DART_ADJUST_PUBLISHED,
    DART_ADJUST_FILL,
    DART_ADJUST_SHOWN,
    DART_ADJUST_SWEEP
} dart_adjust_phase;

typedef struct dart_adjust {
    far_spin lock; /* of the sample */
    unsigned sampled;
    _Atomic uint64_t seen; /* operations */
    atomic_bool read_from; /* a get was here */
    struct {
        uint8_t length; /* longer ones are not kept */
        uint8_t key[DART_EST_PREFIX_MAX];
    } keys[DART_SAMPLES];

    /* Of the adjuster: only housekeeping comes here. */
    dart_adjust_phase phase;
    uint64_t next;                             /* adjust when so many operations were seen */
    uint64_t lock_word;                        /* ours, while we hold the far lock */
    uint64_t epoch;                            /* of the last publication */
    dart_list target;                          /* lookup: what is to be */
    uint8_t *cursor;                           /* where the tour goes on; room for max_key + 1 bytes */
    uint64_t leaves;                           /* that the tour has met */
    uint64_t entries[DART_EST_PREFIX_MAX + 1]; /* that it has made, by length */
    size_t cursor_length;
    unsigned at; /* place in the directory, while sweeping */
    bool filled; /* est_update=off: the table was built */
} dart_adjust;


/* ---- The state ---- */

typedef struct dart_local_list { /* kept until close: whoever uses one need not say so */
    dart_list list;
    uint64_t word;
    struct dart_local_list *next;
} dart_local_list;

#define DART_OUTSTANDING 512u

typedef struct dart_outstanding { /* tentative words under way of this handle: at most one task per (client, node) */
    far_spin lock;
    struct {
        far_addr node;
        unsigned client;
    } entry[DART_OUTSTANDING];
} dart_outstanding;

#define DART_ASKED_WORDS 1024u

#define DART_WISHES DART_WISHES_MAX

/* Entries of that prefix length are made and looked for. */
static inline bool dart_list_looks_up(const dart_list *list, unsigned length) {
    for (unsigned i = 0; i < list->lookup_count; i++)
        if (list->lookup[i] == length)
            return true;
    return false;
}


typedef struct dart_wish { /* a node that wishes for entries */
    dart_node node;
    uint64_t epoch; /* of the operation that saw it linked */
    far_addr entry; /* where its entry is to be; 0: its places are still to be found */
    unsigned slot;
    uint64_t tentative;       /* stands at entry already; 0: that slot was empty, and of the only length */
    uint64_t committed, hash; /* with tentative: of it */
    unsigned count;           /* without: prefix lengths */
    uint8_t lengths[DART_LIST_MAX];
    uint8_t prefix[DART_EST_PREFIX_MAX + 1];
} dart_wish;

typedef struct dart_wishes {
    far_spin lock;
    unsigned count, idle; /* idle: how many there were when housekeeping looked */
    bool called;          /* a task is coming for them */
    dart_wish wish[DART_WISHES];
} dart_wishes;

typedef struct dart_est {
    far_addr stripe[DART_STRIPES_MAX];
    unsigned stripes, bits, width;
    unsigned adjust_every, sample_every, upkeep_batch;
    unsigned segment_log; /* log2 of the groups that a segment has before a table takes its place */
    uint64_t seed;
    far_addr super;
    bool update, adjusting, one_fingerprint, tables; /* tables: there may be some */
    _Atomic(dart_local_list *) list;
    far_spin list_lock;
    _Atomic uint64_t epoch; /* of the last hook */
    dart_directory directory;
    dart_cache express, slots, ahead;
    dart_below_root below_root;
    dart_class classes[DART_CLASSES];
    dart_outstanding outstanding;
    dart_wishes wishes;
    _Atomic uint64_t asked[DART_ASKED_WORDS]; /* bits: prefixes that were looked up for gets from the root */
    _Atomic uint64_t asked_count;
    _Atomic uint64_t *emptied; /* a bit per number of a directory word */
    atomic_uint emptied_count;
    unsigned tidy_at;
    dart_adjust adjust;
} dart_est;


static inline dart_est *dart_est_of(const far_index *index) {
    return dart_of(index)->est;
}


static inline const dart_list *dart_est_list(dart_est *est) {
    return &atomic_load_explicit(&est->list, memory_order_acquire)->list;
}


/* upkeep_batch=1: every node is registered at once, whether it is worth it or not, and by whoever misses it. */
static inline bool dart_est_is_eager(const dart_est *est) {
    return est->upkeep_batch == 1;
}


uint64_t dart_est_hash(const dart_est *est, const void *prefix, unsigned length);


static inline unsigned dart_est_fingerprint_of(const dart_est *est, uint64_t hash) {
    return est->one_fingerprint ? 1 : dart_hash_fingerprint(hash);
}


/* ---- The directory: a segment that would have more than 16 groups becomes a table of 16 words ---- */

typedef struct dart_spot { /* a word of the directory, or of a table below it */
    unsigned at;           /* its number: a one, and the bits of the hash that lead to it */
    unsigned level;        /* tables above it */
    far_addr addr;
} dart_spot;

#define DART_NUMBERS (2u << DART_DIRECTORY_BITS_MAX)


static inline dart_spot dart_spot_at(const dart_est *est, unsigned i) { /* word i of the directory itself */
    return (dart_spot){1u << est->bits | i, 0, est->stripe[i % est->stripes] + i / est->stripes * 8ull};
}


static inline dart_spot dart_spot_below(const dart_spot *above, uint64_t table, unsigned i) { /* word i of its table */
    return (dart_spot){above->at << DART_TABLE_LOG | i, above->level + 1, dart_word_addr(table) + i * 8ull};
}


static inline bool dart_spot_may_be_table(const dart_est *est, const dart_spot *spot) {
    return est->tables && est->bits + (spot->level + 1) * DART_TABLE_LOG <= DART_DIRECTORY_BITS_MAX;
}


/* Number of the word of this level for a hash. */
static inline unsigned dart_number(const dart_est *est, uint64_t hash, unsigned level) {
    unsigned top = 1u << est->bits | dart_hash_directory(hash, est->bits);
    return top << level * DART_TABLE_LOG | (unsigned)dart_hash_group(hash, 0, level * DART_TABLE_LOG);
}


/* Down from a spot on the way of this hash, as far as tables are known to this handle; the word there as
 * dart_directory_get tells it. */
uint64_t dart_est_know(dart_est *est, uint64_t hash, uint64_t epoch, dart_spot *spot, bool *fresh);
/* 0, or FAR_ERR_CORRUPT: no such word can stand there. */
int dart_est_check_word(const dart_est *est, const dart_spot *spot, uint64_t word);
/* The word of this number, by the tables above it. */
int dart_est_find_spot(far_task *t, far_index *index, unsigned at, dart_spot *spot);


static inline far_addr dart_est_bucket_addr(uint64_t word, unsigned level, uint64_t hash) {
    return dart_word_addr(word) + dart_hash_group(hash, level, dart_directory_log_groups(word)) * DART_EST_GROUP_BYTES +
           dart_hash_main(hash) * (DART_EST_BUCKET * 8);
}


/* ---- est_lookup.c ---- */

/* One bucket pair of the table, with the way to it: READ by rounds until it is sure. */
typedef struct dart_est_read {
    uint64_t hash;
    unsigned length;              /* of the prefix */
    dart_spot spot;               /* of the word, as far down as is known */
    uint64_t word;                /* of the directory; 0: there is no segment */
    uint64_t seen_word;           /* a READ of it */
    bool asked_word, asked_slots; /* in the batch under way */
    bool known, fresh;            /* the cache was asked; its word may be used */
    bool sure_word;               /* the word was read in this operation */
    bool done;
    dart_shared *shared; /* as that of the probe */
    uint64_t slots[DART_EST_READ_SLOTS];
} dart_est_read;

void dart_est_read_init(const dart_est *est, dart_est_read *r, const void *prefix, unsigned length);
bool dart_est_read_put(far_task *t, dart_est *est, dart_est_read *r); /* true: READs were put */
int dart_est_read_take(far_task *t, dart_est *est, dart_est_read *r);
/* The node is linked: it goes into the express cache under all lookup lengths in (parent_depth, depth]. */
void dart_est_keep_linked(far_task *t, far_index *index, const dart_node *node, unsigned parent_depth,
                          far_bytes prefix);
/* Several to their end. */
int dart_est_read_all(far_task *t, dart_est *est, dart_est_read *reads, unsigned count);


static inline far_addr dart_est_slot_addr(const dart_est_read *r, unsigned slot) {
    return dart_est_bucket_addr(r->word, r->spot.level, r->hash) + slot * 8ull;
}


static inline bool dart_est_any_frozen(const uint64_t *slots, unsigned count) {
    for (unsigned i = 0; i < count; i++)
        if (dart_is_frozen(slots[i]))
            return true;
    return false;
}


/* ---- est_upkeep.c ---- */

/* Registers the node under those of `count` lengths that are allowed, at once. 0, or an error of the fabric. */
int dart_est_register_now(far_task *t, far_index *index, const dart_node *node, const void *prefix,
                          const uint8_t *lengths, unsigned count);
/* Grants wishes: four batches for all of them. What fails is given up. */
void dart_est_grant(far_task *t, far_index *index, const dart_wish *wishes, unsigned count);
/* The buckets were read: the wish may have a slot that was empty. */
void dart_est_names_empty(const far_index *index, const dart_names *names, dart_wish *wish);
/* A client's work on a node, from its tentative word until that is committed or given up. False: it is at it already.
 */
bool dart_est_begin_work(dart_outstanding *o, unsigned client, far_addr node);
void dart_est_end_work(dart_outstanding *o, unsigned client, far_addr node);
/* Header (depth bytes of prefix) and first slot of nodes that entries name: est_grow.c. */
typedef struct dart_target {
    far_addr addr;                       /* in; 0: none */
    unsigned depth;                      /* out */
    bool sound, frozen;                  /* out: the header makes sense; its first slot is frozen */
    uint8_t prefix[DART_EST_PREFIX_MAX]; /* as far as depth goes */
} dart_target;
int dart_est_read_targets(far_task *t, far_index *index, dart_target *targets, unsigned count);


/* ---- est_queue.c ---- */

/* False: it is not kept (no room, or the node waits already). The node was linked in this operation. */
bool dart_est_wish(far_task *t, far_index *index, const dart_wish *wish);
/* The node wishes for an entry of this length. */
bool dart_est_wish_length(far_task *t, far_index *index, const dart_node *node, const void *prefix, unsigned length);
void dart_est_spawn_clear(far_task *t, far_index *index, far_addr entry, uint64_t word); /* a stale entry */
void dart_est_wishes_idle(far_task *t, far_index *index);


/* ---- est_grow.c ---- */

/* Makes segments where directory words are 0. How many of them, from the first on, are not any more: one at least; or an error.
 * words: those of segments that were made here, and empty then; 0: another was faster. */
int dart_est_make_segments(far_task *t, far_index *index, const dart_spot *spots, unsigned count, uint64_t *words);
/* Full: replaced by one of twice the size, or by a table of segments that can grow. help: somebody has begun that; then
 * it is finished whatever happens, even without memory. 0: its word is another now. */
int dart_est_grow(far_task *t, far_index *index, const dart_spot *spot, uint64_t word, bool help);
/* Entries of this directory word's segment have gone: housekeeping looks whether it can be smaller. */
void dart_est_note_empty(dart_est *est, unsigned at);
int dart_est_tidy(far_task *t, far_index *index); /* 1: there is more */


/* ---- est_walk.c ---- */
typedef struct dart_est_counts {
    uint64_t entries, tentative, slots, segments, tables, bytes; /* bytes: of directory, tables and segments */
} dart_est_counts;
int dart_est_count(far_task *t, far_index *index, dart_est_counts *counts); /* unpinned */

/* A segment; or a table (slots NULL), before what is below it. */
typedef int dart_segment_fn(far_task *t, far_index *index, const dart_spot *spot, uint64_t word, const uint64_t *slots,
                            unsigned count, void *ctx);
/* Some segments from *place on, with a pin; the whole table lies in [0, dart_est_places). Moves *place behind them. 1
 * from each: that segment again, as it is then. */
#define DART_SEGMENTS_AT_ONCE 512u /* at most */
int dart_est_each_segment(far_task *t, far_index *index, unsigned *place, dart_segment_fn *each, void *ctx);


static inline unsigned dart_est_place_bits(const dart_est *est) {
    return DART_DIRECTORY_BITS_MAX - (DART_DIRECTORY_BITS_MAX - est->bits) % DART_TABLE_LOG;
}


static inline unsigned dart_est_places(const dart_est *est) {
    return 1u << dart_est_place_bits(est);
}


/* ---- est.c ---- */
int dart_est_read_list(far_task *t, far_index *index); /* the newest list becomes ours */

/* ---- adjust.c ---- */
void dart_est_sample(dart_est *est, far_bytes key);
int dart_est_build_once(far_task *t, far_index *index); /* est_update=off; 1: there is more */
int dart_est_adjust(far_task *t, far_index *index);     /* a step, by one task at a time; 1: there is more */
/* Sets out for these lookup lengths, whatever the keys are; steps follow. 0: somebody else is at it. */
int dart_est_adjust_to(far_task *t, far_index *index, const uint8_t *lengths, unsigned count);

#endif
