/* Types and functions that the files of the shard index share. README.md explains the protocol, and layout.h the words
 * in far memory. The index has two layouts: in the pointer layout (names with shard_p) slots name pair blocks, and
 * in the inline layout (names with shard_i) slots contain the keys and values. */
#ifndef FAR_INDEX_SHARD_SHARD_H
#define FAR_INDEX_SHARD_SHARD_H

#include "index/shard/layout.h"
#include "task/latch.h"

#include <stdatomic.h>

enum {
    SHARD_OPTION_PARTITIONS = FAR_OPTIONS_COMMON,
    SHARD_OPTION_BITS,
    SHARD_OPTION_LOAD,
    SHARD_OPTION_SLOTS,
    SHARD_OPTION_L2_SLOTS,
    SHARD_OPTION_EXTENT,
    SHARD_OPTION_AFS,
    SHARD_OPTION_ALPHA,
    SHARD_OPTION_GRACE,
    SHARD_OPTION_LAZY,
    SHARD_OPTION_COMBINING,
    SHARD_OPTION_ABSORB,
    SHARD_OPTION_PAIR_READ,
    SHARD_OPTION_HALF_READ,
    SHARD_OPTION_ORDERED_CAS,
    SHARD_OPTION_TAG_BITS,
    SHARD_OPTION_FILTER_BITS,
    SHARD_OPTION_LAYOUT,
    SHARD_OPTION_NARROW,
    SHARD_OPTION_IDLE_SWEEP,
    SHARD_OPTION_MOVE_ON_READ,
    SHARD_OPTION_LOAD_BY,
    SHARD_OPTION_SHARE,
};

enum {
    SHARD_TYPE_ROOT,
    SHARD_TYPE_PCB,
    SHARD_TYPE_SEGMENT,
    SHARD_TYPE_OVERFLOW,
    SHARD_TYPE_PROGRESS,
    SHARD_TYPE_NODE,
    SHARD_TYPE_BLOCK,
    SHARD_TYPE_DIRECTORY,
    SHARD_TYPES
};

/* A handle caches which chunks of the running sweep are done: each word has the bits of 56 chunks, and in its top bits
 * the version of that sweep. The words are only hints, so accesses to them need no memory ordering. */
enum { SHARD_DONE_WORDS = 10, SHARD_DONE_CHUNKS = 56 };

/* A *table* of a partition is a segment (level 1) of a version, or a level-2 or level-3 table of a generation. A table
 * that is larger than an extent consists of several extents; the word of the directory then names an array of their
 * addresses. This structure caches these addresses. */
typedef struct shard_extents {
    struct shard_extents *next; /* links the tables of one level of a partition (levels 2 and 3) */
    unsigned version;
    _Atomic uint64_t word;     /* address of the array of extent addresses in far memory; 0 = not cached */
    _Atomic uint64_t extent[]; /* address of each extent; 0 = not cached */
} shard_extents;

/* The state that a handle keeps for one partition. Every cached word may be older than the word in far memory. A word
 * that was read through a directory has the number of this directory in its top bits (shard_cached_word), because it
 * says nothing about the objects of another directory. */
typedef struct shard_partition {
    /* Cached addresses and states. */
    far_addr pcb;    /* address of the partition control block; constant */
    uint64_t number; /* number of the partition; constant */
    _Atomic uint64_t root;
    _Atomic uint64_t directory;               /* address of the directory */
    _Atomic uint64_t table[4];                /* table words: level 2 even, odd generation; level 3 even, odd */
    _Atomic uint64_t segment[SHARD_VERSIONS]; /* address of the segment, or a local pointer to a shard_extents */
    _Atomic(shard_extents *) extents[2];      /* lists of the tables of several extents, of level 2 and of level 3 */
    _Atomic uint64_t progress;                /* address of a progress table and the version that it belongs to */
    _Atomic uint64_t done[SHARD_DONE_WORDS];  /* chunks of the sweep that are known to be done */

    /* The number of keys in the partition, and the decision when it doubles (load_factor.c). */
    _Atomic int64_t delta;            /* keys added minus keys removed by this handle, not yet published */
    _Atomic int64_t count;            /* the published count, as last read or updated by this handle */
    _Atomic uint64_t sample;          /* sample of buckets: version << 56 | buckets << 32 | twice their keys */
    _Atomic uint32_t writes;          /* writes of this handle since it last published its delta */
    _Atomic uint32_t inserts;         /* inserts of this handle */
    _Atomic uint32_t inserts_at_idle; /* value of `inserts` when housekeeping last visited the partition */
    uint32_t writes_at_idle;          /* value of `writes` when housekeeping last published counts */
    _Atomic uint32_t requested; /* a version to which the partition must double, even if the count is below the bound */
    _Atomic uint32_t suspected; /* a version that seems due; sampling more buckets decides */
    /* value of `inserts` up to which this handle ignores suspicions that the partition is full */
    _Atomic uint32_t no_suspicion_until;
    /* Pointer layout: 1 + the version at which this handle last saw a reopened bucket, or 0 if it never saw one. */
    _Atomic uint32_t reopened_at;
    _Atomic uint32_t steps_owed;      /* steps of sweep and drain that inserts of this handle have yet to take */
    _Atomic uint32_t times_passed_on; /* consecutive inserts that left a due doubling to the next insert */
    _Atomic uint32_t known_due;       /* a version that a sample of buckets has shown to be due */

    atomic_flag growing; /* set while a task of this handle begins a doubling */
    atomic_flag working; /* set while a task of this handle takes a step of a sweep, drain or shrink */

    /* The chunk of a sweep or drain that this handle has taken (restructure_chunks.c). Except for directories_seen,
     * only the task that has set `working` uses the fields from here on, unless their comments say otherwise. */
    uint64_t chunk_state; /* root word, without its stamp, of the version and phase to which the chunk belongs */
    _Atomic uint32_t directories_seen; /* how often this handle has observed a change of the directory */
    uint32_t chunk_directory;          /* value of `directories_seen` when this handle took the chunk */
    uint64_t next, end; /* next: first bucket of the chunk that is not processed yet; end: bucket after the chunk */
    uint64_t chunk;     /* number of the chunk */
    /* true while the handle has a chunk; false before its first chunk of a phase and after the last one */
    bool has_chunk;
    bool chunk_failed;
    bool cursor_through; /* The cursor has given out all chunks, so only unfinished chunks of other handles remain. */
    /* After a failure for lack of memory: number of work steps that are still skipped, and number of steps that the
     * next failure skips. */
    unsigned work_skip, work_backoff;
    /* After a failed attempt to begin a doubling: number of attempts that are still skipped, and number that the next
     * failure skips. Used by the task that has set `growing`. */
    unsigned grow_skip, grow_backoff;
    uint64_t claim_seen;   /* the claim word as last seen; used by the task that has set `growing` */
    far_addr finite_chain; /* head of the chain that a drain last verified to have an end */

    /* Shrinking (restructure_shrink.c). */
    uint64_t proof_root;                 /* root word for which empty_buckets and empty_lines are valid */
    uint64_t empty_buckets, empty_lines; /* level-1 and level-2 buckets that were seen to be empty under proof_root */
    bool quiet;                          /* this handle has not written between the last two calls of housekeeping */
    int64_t shrink_count;                /* number of keys, according to the count, when the last shrink failed */
    /* After a failed shrink: number of checks for emptiness that are still skipped, and number that the next failure
     * skips. */
    unsigned shrink_skip, shrink_backoff;
    unsigned shrink_waits; /* calls of housekeeping that have observed the shrink without continuing it */
    /* a positive count that may be wrong; from time to time buckets are sampled to verify this count */
    int64_t doubted_count;
    /* Number of calls of housekeeping that still trust doubted_count without a check, and number of such calls after
     * the next check. */
    unsigned doubt_skip, doubt_backoff;
} shard_partition;

/* Event counters, for tests and for measuring coverage. */
typedef struct shard_counters {
    _Atomic uint64_t grows, splits_frozen, splits_graced, retags, drained, overflows, chained, takeovers, absorbed,
        under_lock, merged, unlinked, rebased, reopened, forgotten, shrunk, cancelled;
} shard_counters;

/* Sums of the counters of all indexes that were closed in this process. A test run opens and closes many indexes. */
extern shard_counters shard_totals;

/* The state of an open index. */
typedef struct shard_state {
    bool inlined;       /* true for the inline layout */
    bool wide;          /* this processor has wide vectors (probe.c) */
    bool whole_pairs;   /* the fabric reads both words of an aligned 16-byte pair atomically */
    unsigned hash_bits; /* number of bits of h */
    unsigned implied;   /* inline layout: hash bits that follow from the bucket and are not stored in the slot */
    unsigned p, b;      /* the index has 2^p partitions, and an empty partition has 2^b level-1 buckets */
    unsigned slots, l2_slots, load, tag_mask;
    unsigned versions; /* number of versions that a partition can have in this pool, at most SHARD_VERSIONS */
    unsigned single_extent_segments; /* segments with a smaller number than this consist of one extent */
    uint8_t tag_low[64];             /* lowest hash bit of the tags of each version */
    bool one_filter_bit;
    bool grace, combining, absorb, pair_read, half_read, ordered_cas;
    unsigned afs;   /* publish counts after this number of writes; 0 = adaptive */
    unsigned alpha; /* thousandths of the free slots that may be filled between two publications, when adaptive */
    unsigned share; /* one insert of this many takes a step of a sweep or drain */
    bool lazy, idle_sweep, move_on_read, sampling;
    uint64_t extent; /* bytes of an extent */
    uint64_t seed, level_seed[3];
    atomic_uint clients;        /* number of live sessions of the pool, as last counted */
    atomic_uint idle_next;      /* partition at which the next call of housekeeping begins */
    atomic_bool has_read_roots; /* shard_ensure_roots_read has read the roots since the index was opened */
    shard_counters counters;
    shard_partition part[];
} shard_state;

/* A local copy of a level-1 bucket, made by one READ. Its words may have been read at different moments. */
typedef struct shard_image {
    uint64_t bucket;
    far_addr addr;
    uint64_t w[SHARD_WORDS];
} shard_image;

/* One operation on one key, and the state of its current attempt. The *main bucket* of a key is the level-1 bucket that
 * the key belongs to. While a partition doubles this is the child, or the parent if the child is not yet written.
 * shard_begin_operation clears all fields from `root` on. */
typedef struct shard_op {
    far_task *t;
    far_index *index;
    shard_state *st;
    shard_partition *part;
    far_bytes key;
    uint64_t h;        /* hash of the key */
    shard_image *main; /* image of the main bucket */
    /* image of the other bucket of the pair of parent and child; unused memory if only one bucket is read */
    shard_image *other;

    /* The current attempt, set by shard_start_attempt and while the main bucket is read. */
    uint64_t root;     /* the root word that this attempt relies on */
    uint64_t bucket;   /* number of the key's bucket at version d */
    unsigned d, phase; /* version and phase in `root` */
    bool graced; /* true if, before the bucket was read, all pinned clients had read the root word of this version */
    bool paired; /* both the child and its parent are read */
    bool header_first;      /* pointer layout, writing: header_before is read before the image of the main bucket */
    bool child_unwritten;   /* in this attempt the child was seen UNINIT before the main bucket was read */
    uint64_t header_before; /* header of the main bucket, read before any other word of it */

    /* The whole operation. */
    unsigned attempt; /* number of retries so far */
    unsigned class;   /* pointer layout: size class of `block` */
    far_addr block;   /* pointer layout: the new pair block, private until an entry names it; 0 = none */
    bool written;     /* pointer layout: the pair block has been written */
    bool inserting;   /* pointer layout: the operation has the lock, and the key was absent before the lock was taken */
    bool did_extra_work;   /* the operation searched below level 1, split its bucket, or published a count */
    bool took_over;        /* lazy_resize=off: the operation has continued the doubling of a failed client */
    unsigned insert_level; /* 2 or 3 if an insert placed its key at that level, else 0 */
    unsigned nodes_passed; /* number of chain nodes that the insert has passed at level 3 */
    int trips;             /* drain: approximate number of round trips that the step may still take */
    far_addr latched;      /* bucket whose local latch this operation holds; 0 = none */
} shard_op;

/* Additional words that are read in the batch that locks a bucket, so that their values are read under the lock. */
typedef struct shard_extra_words {
    unsigned count;
    far_addr at[2];
    uint64_t word[2];
} shard_extra_words;

enum {
    SHARD_BATCH_BUCKETS = 32, /* number of buckets that a step of sweep or drain reads in one batch */
};

/* Result of a search for a key. Errors are negative. */
typedef enum { SHARD_ABSENT, SHARD_FOUND, SHARD_START_OVER } shard_found;

/* Result of an attempt to change a key. Errors are negative. */
enum {
    SHARD_AGAIN, /* the attempt has changed nothing and must be repeated */
    SHARD_DONE,
};

/* Result of draining a bucket, a node or an entry. Errors are negative. */
enum {
    SHARD_DRAIN_BLOCKED, /* some key could not be moved, because another client holds a lock */
    SHARD_DRAINED,       /* no key is left there */
    SHARD_DRAIN_MORE,    /* the step has used its round trips; the next step continues */
};

/* A place where a key was found, or may be. */
typedef struct shard_hit {
    /* pointer layout: address of the entry; inline layout: address of the value, which the key word (level 1 and 2) or
     * the key and state (level 3) follow */
    far_addr addr;
    int slot, level;     /* slot: number of the slot at level 1, or -1 below level 1 */
    unsigned generation; /* generation of the level-2 or level-3 table; at level 1 the version of the bucket */
    uint64_t word;       /* pointer layout: the entry; inline layout: key word or state of the slot */
    uint64_t value;      /* inline layout: the value */
    shard_block *block;  /* pointer layout: local copy of the pair block */
    bool only_copy;      /* below level 1: the search found no other copy of the key there */
} shard_hit;

enum { SHARD_COPIES_MAX = 4, SHARD_HITS_MAX = 64 };

typedef struct shard_hits {
    unsigned count;
    shard_hit hit[SHARD_HITS_MAX];
} shard_hits;

/* A node of a level-3 chain. */
typedef union shard_node {
    shard_p_node p;
    shard_i_node i;
} shard_node;

/* Detects cycles while a client follows a chain. Under one pin a client never reaches a node of an intact chain twice,
 * because nodes are appended at the end, only the link in the head changes, and an unlinked node keeps its link. A
 * client that reaches a node again has therefore found a corrupt chain, which has no end. */
typedef struct shard_chain {
    far_addr seen;  /* the node at the last step whose number is a power of two (Brent's cycle detection) */
    uint64_t steps; /* number of nodes reached */
} shard_chain;

/* The level-2 buckets and the chain head of one key, in one generation. */
typedef struct shard_overflow {
    far_addr at[2], head;
    uint64_t l2[2][8];
    shard_node node;
} shard_overflow;

/* The operation's own change. If the operation splits its bucket, the split makes this change as well, which saves
 * round trips. */
typedef struct shard_own_change {
    shard_op *op;
    int slot;       /* slot of the key in the parent; -1 if the key is new */
    bool remove;    /* the operation deletes the key */
    uint64_t value; /* inline layout: the new value */
    /* output: true if the split has made the change; false if it could not, and the change has had no effect */
    bool carried;
    /* output, pointer layout: expected word and returned word of the CAS that makes the change */
    uint64_t expected, found;
} shard_own_change;


static inline shard_state *shard_state_of(const far_index *index) {
    return index->state;
}


/* A cached word has the low bits of the number of the directory that it was read through in its top 7 bits. Seven bits
 * are enough, because two directories that are in use at the same time have consecutive numbers, and shard_learn_root
 * clears the cache when the directory changes. */
enum { SHARD_KNOWN_BITS = 57 };


/* Returns the cached word without its directory number, or 0 if the word was not read through this directory. */
static inline uint64_t shard_cached_word(const _Atomic uint64_t *at, unsigned directory) {
    uint64_t word = atomic_load_explicit(at, memory_order_acquire);
    return word >> SHARD_KNOWN_BITS == directory % (1u << (64 - SHARD_KNOWN_BITS)) ? word & shard_mask(SHARD_KNOWN_BITS)
                                                                                   : 0;
}


static inline void shard_cache_word(_Atomic uint64_t *at, unsigned directory, uint64_t word) {
    atomic_store_explicit(at, (word & shard_mask(SHARD_KNOWN_BITS)) | (uint64_t)directory << SHARD_KNOWN_BITS,
                          memory_order_release);
}


/* Returns the number of the newest directory that this handle has observed. */
static inline unsigned shard_directory_number(const shard_partition *part) {
    return shard_root_directory(atomic_load_explicit(&part->root, memory_order_acquire));
}


/* Returns the bit of a key in the filters fnew and fold. */
static inline unsigned shard_overflow_bit(const shard_state *st, uint64_t h) {
    return st->one_filter_bit ? 1 : shard_filter_bit(h, st->hash_bits);
}


static inline void shard_count_event(_Atomic uint64_t *counter) {
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}


/* Returns the hash that a key uses at level 2 (level 0: first choice, 1: second choice) or at level 3 (level 2). */
static inline uint64_t shard_level_hash(const shard_state *st, uint64_t h, unsigned level) {
    return shard_rehash(h, st->level_seed[level], st->p, st->hash_bits);
}


/* Returns the cache line at which the key's probe order of slots begins. */
static inline unsigned shard_start_line(const shard_op *op) {
    return (unsigned)(shard_level_hash(op->st, op->h, 2) >> 56) & 7;
}


/* Inline layout: returns the half of the bucket, 0 or 1, whose slots come first in the key's probe order. */
static inline unsigned shard_i_half(const shard_op *op) {
    return shard_start_line(op) / 4;
}


/* Returns the type of the object that the directory names for a table of this level. */
static inline unsigned shard_table_type(unsigned level, bool extents) {
    return extents ? SHARD_TYPE_PROGRESS : level == 1 ? SHARD_TYPE_SEGMENT : SHARD_TYPE_OVERFLOW;
}


/* Returns the address of a bucket if its segment is a single extent with a cached address. Otherwise it returns 0, and
 * shard_bucket_addr must be called. */
static inline far_addr shard_cached_bucket_addr(const shard_state *st, const shard_partition *part, uint64_t bucket) {
    const unsigned b = st->b, segment = shard_segment(bucket, b);
    const uint64_t inside = shard_in_segment(bucket, b);
    uint64_t at = segment < st->single_extent_segments
                      ? shard_cached_word(&part->segment[segment], shard_directory_number(part))
                      : 0;
    return at ? at + inside * SHARD_BUCKET_BYTES : 0;
}


/* Returns the index of the bucket word that contains the version and the filters: the header (P) or H (I). */
static inline unsigned shard_header_at(const shard_state *st) {
    return st->inlined ? SHARD_I_H : SHARD_P_HEADER;
}


/* Returns true if a split of the bucket has begun. The mark and the version are in the same word, so a torn read cannot
 * combine a new version with an old mark. */
static inline bool shard_is_splitting(const shard_state *st, uint64_t header) {
    return st->inlined ? (header & SHARD_MOVING) != 0 : shard_header_op(header) == SHARD_OP_SPLIT;
}


static inline uint64_t shard_main_header(const shard_op *op) {
    return op->main->w[shard_header_at(op->st)];
}


static inline unsigned shard_main_version(const shard_op *op) {
    return shard_header_v(shard_main_header(op));
}


/* Returns true if the bucket with this header can be the key's main bucket in this attempt. Two conditions are checked:
 * at the header's version the key belongs to this bucket, and this version can exist under the root word of the
 * attempt. Possible versions are d; d+1 if the partition has begun another doubling since; and d-1 while the partition
 * is in GROW. */
static inline bool shard_main_fits_root(const shard_op *op, uint64_t header) {
    unsigned v = shard_header_v(header);
    if (v == op->d)
        return header != 0 && op->main->bucket == op->bucket;
    if (header == 0 || op->main->bucket != shard_bucket(op->h, op->st->p, op->st->b, v))
        return false;
    return v == op->d + 1 || (v + 1 == op->d && op->phase == SHARD_GROW);
}


/* Returns true if the key leaves the main bucket with the next split of this bucket. If so, the image proves something
 * about the key only if the split had not begun when the image was read. This is proved if the child was seen unwritten
 * earlier in the attempt. */
static inline bool shard_key_may_leave(const shard_op *op, uint64_t header) {
    unsigned v = shard_header_v(header);
    return shard_key_moves(op->h, op->st->p, op->st->b, v + 1) && !(op->child_unwritten && v + 1 == op->d);
}


/* Rule R2 (find.c): returns true if a hit in the image of the main bucket proves that the key is present. */
static inline bool shard_hit_is_valid(const shard_op *op, uint64_t header, const shard_hit *hit) {
    if (!shard_key_may_leave(op, header))
        return true;
    return !shard_is_splitting(op->st, header) && (op->st->inlined || !shard_is_frozen(hit->word));
}


/* Returns true if every pinned client has read the root word of the doubling in `root`, and the option `grace` permits
 * the operation to rely on this. Implemented in restructure.c. */
bool shard_grace_is_over(const far_task *t, const shard_state *st, uint64_t root);


/* Begins an attempt: takes the cached root word, on which the whole attempt relies. */
static inline void shard_start_attempt(shard_op *op) {
    op->root = atomic_load_explicit(&op->part->root, memory_order_acquire);
    op->d = shard_root_d(op->root);
    op->phase = shard_root_phase(op->root);
    op->bucket = shard_bucket(op->h, op->st->p, op->st->b, op->d);
    op->graced = op->paired = op->header_first = op->child_unwritten = false;
    if (op->phase == SHARD_GROW) { /* only in this phase are buckets split */
        op->graced = shard_grace_is_over(op->t, op->st, op->root);
        if (op->d >= SHARD_VERSIONS) /* the root word is corrupt, because no child or parent with this version exists */
            op->phase = SHARD_STABLE;
    }
}


/* Returns true if a write must wait until all buckets of a doubling partition are split, which is required with
 * lazy_resize=off. */
static inline bool shard_must_wait_for_sweep(const shard_op *op) {
    return !op->st->lazy && op->phase == SHARD_GROW;
}


/* Returns true if the operation must first cancel a shrink of its partition. Inserts must do so before they change
 * anything (restructure_shrink.c). */
static inline bool shard_must_cancel_shrink(const shard_op *op, far_op_kind how) {
    return op->phase == SHARD_SHRINK && (how == FAR_OP_INSERT || how == FAR_OP_PUT);
}


/* Returns true if the error means that the session can send no further verbs. */
static inline bool shard_session_is_lost(int err) {
    return err == FAR_ERR_FENCED || err == FAR_ERR_UNREACHABLE;
}


/* Returns the error of an operation that requires the key to be present (or absent) when it is not; otherwise 0. */
static inline int shard_presence_error(far_op_kind how, bool present) {
    if (present && how == FAR_OP_INSERT)
        return FAR_ERR_EXISTS;
    return !present && (how == FAR_OP_UPDATE || how == FAR_OP_DELETE) ? FAR_ERR_NOT_FOUND : 0;
}


static inline uint64_t shard_node_bytes(const shard_state *st) {
    return st->inlined ? sizeof(shard_i_node) : sizeof(shard_p_node);
}


static inline const far_addr *shard_next_of(const shard_state *st, const shard_node *node) {
    return st->inlined ? &node->i.next : &node->p.next;
}


/* Inline layout: returns the part of the key's hash that its slot stores: at level 1 (choice -1), or at level 2 for
 * choice 0 or 1. */
static inline uint64_t shard_rem(const shard_op *op, int choice) {
    return (choice < 0 ? op->h : shard_level_hash(op->st, op->h, (unsigned)choice)) >> op->st->implied;
}


static inline void shard_release_latch(shard_op *op) {
    if (op->latched)
        far_unlatch(op->t, op->latched);
    op->latched = 0;
}


/* ---- kind.c: options, types, create, open, close ---- */

uint64_t shard_hash(const far_index *index, far_bytes key);
/* Inline layout: returns the 8 bytes of the key that has the hash h, as a word. */
uint64_t shard_i_key(const shard_state *st, uint64_t h);
/* With narrow=on: returns true if the key is too large a number for the index. */
bool shard_i_too_wide(const shard_state *st, far_bytes key);
/* Returns the bytes of local memory that the handle uses for this index. */
size_t shard_local_bytes(const far_index *index);
/* Reads the descriptor of the index into scratch memory. The caller is pinned. */
int shard_read_descriptor(far_task *t, const far_index *index, shard_descriptor **read);
void shard_level_hashes(const shard_state *st, uint64_t h, uint64_t level[3]);
/* A directory with segment 0, while no other client can reach them. */
typedef struct shard_new_directory {
    far_addr directory;
    far_addr segment;      /* the word of segment 0: address of its only extent, or of the array of its extents */
    uint64_t count, bytes; /* number of extents of segment 0, and bytes of each */
    uint64_t extents;      /* number of extents that were allocated */
    uint64_t *extent;      /* their addresses, in scratch memory of the task */
} shard_new_directory;

/* Makes a directory with an empty segment 0. */
int shard_make_directory(far_task *t, far_index *index, unsigned node, unsigned b, shard_new_directory *made);
/* Frees these objects, which no other client has been able to reach. */
void shard_free_directory(far_task *t, far_index *index, const shard_new_directory *made);


/* ---- partition.c: addresses of the objects of a partition ---- */

/* Caches `root` if it is newer than the cached root word, and clears the caches if it names another directory. */
void shard_learn_root(shard_partition *part, uint64_t root);
/* Caches the leading words of the control block: the root word and the directory's address. */
void shard_learn_partition(far_task *t, shard_partition *part, const uint64_t words[SHARD_PCB_READ_WORDS]);
/* READs the root word and caches it. */
int shard_refresh_root(far_task *t, shard_partition *part);
/* Sets *at to the address of a word of the directory, or to 0 if the directory was replaced and the root was stale. */
int shard_directory_word_addr(far_task *t, shard_partition *part, unsigned word, far_addr *at);
/* Sets *addr to the address of a level-1 bucket, or to 0 if its segment is not linked as far as this handle knows. */
int shard_bucket_addr(far_task *t, const shard_state *st, shard_partition *part, uint64_t bucket, far_addr *addr);
/* Compares an address that this handle has used (`known`; 0 = none) with the word that should contain it. An address
 * stays valid for the life of the directory, so another word, or 0, is corruption. Acting on it would free memory in
 * use. Returns 0 or FAR_ERR_CORRUPT. */
int shard_check_unchanged(const far_index *index, const shard_partition *part, const char *what, uint64_t known,
                          uint64_t word);
/* Sets *addr to the address of the byte `offset` of a table, or to 0 if its object is not linked as far as this handle
 * knows. `version` is the version of a segment (level 1) or the generation of a level-2 or level-3 table. If the table
 * has an array of extents without this extent, although the partition uses the table, the array is damaged: returns
 * FAR_ERR_CORRUPT. */
int shard_table_place(far_task *t, const shard_state *st, shard_partition *part, unsigned level, unsigned version,
                      uint64_t offset, far_addr *addr);
/* Allocates and links the level-2 and level-3 tables of a generation, unless they exist. */
int shard_make_overflow_tables(far_task *t, far_index *index, shard_partition *part, unsigned generation);
/* Unlinks and retires the tables of a generation that was drained. */
int shard_drop_overflow_tables(far_task *t, far_index *index, shard_partition *part, unsigned generation);
/* Allocates and links the objects that a version needs. Returns 1 if all exist, and 0 if the caller must call again. */
int shard_prepare_version(far_task *t, far_index *index, shard_partition *part, unsigned version);
int shard_progress_addr(far_task *t, shard_partition *part, unsigned version, far_addr *addr);
void shard_note_chunk_done(shard_partition *part, unsigned version, uint64_t chunk);
bool shard_chunk_is_known_done(const shard_partition *part, unsigned version, uint64_t chunk);
uint64_t shard_table_bytes(const shard_state *st, unsigned level, unsigned version);
/* Returns the number of extents of a table, or 0 if the table is a single object. */
uint64_t shard_extent_count(const shard_state *st, unsigned level, unsigned version);
/* Returns the bytes of the object that the directory names: the table, or the array of its extents. */
uint64_t shard_table_object_bytes(const shard_state *st, unsigned level, unsigned version);
/* Returns the number of bytes from `offset` to the end of its extent, or of the table if it is a single object. */
uint64_t shard_table_rest(const shard_state *st, unsigned level, unsigned version, uint64_t offset);
/* Frees the caches of extent addresses of a partition. */
void shard_free_extent_caches(const shard_state *st, shard_partition *part);
/* Returns the bytes of these caches. */
size_t shard_extent_cache_bytes(const shard_state *st, shard_partition *part);
uint64_t shard_progress_bytes(const shard_state *st, unsigned version);


/* ---- attempt.c: beginning, repeating and ending attempts ---- */

int shard_begin_operation(shard_op *op, far_task *t, far_index *index, far_bytes key);
/* Sets the address of the main bucket, or of child and parent. Returns 1 if the address is unknown because the cached
 * root is stale. */
int shard_locate_main(shard_op *op);
/* Adds the READs of the located buckets to the batch. */
void shard_add_main_reads(shard_op *op);
/* After the READs have completed: makes the parent the main bucket if the child is unwritten. */
int shard_select_main(shard_op *op);
/* Adds the READs, waits for the whole batch, and selects the main bucket. */
int shard_read_main(shard_op *op);
/* Inline layout: reads the half of the main bucket where the key most likely is. Returns 1 if the half was read; 0 if
 * the key must be searched in the whole bucket; or an error. */
int shard_i_read_half(shard_op *op);
/* Locks a bucket and reads it: changes the bucket's lock word from `expected` to `mine`, and reads the bucket and the
 * words in `extra` (which may be NULL) under the lock. Returns 1 if the lock was taken. If not, returns 0 with the
 * found lock word in *old, and releases the latch. The caller holds the local latch of the bucket. */
int shard_lock_and_read(shard_op *op, shard_image *image, unsigned word, uint64_t expected, uint64_t mine,
                        uint64_t *old, shard_extra_words *extra);
/* Frees the operation's pair block, which no entry names. */
void shard_drop_block(shard_op *op);
/* Prepares the next attempt: backs off, renews the pin every few attempts, and reads the root again if `refresh`. */
int shard_retry(shard_op *op, bool refresh);
/* Rule R1 (find.c): returns true if some word of the bucket is UNINIT, so that the bucket is not written yet. */
bool shard_is_unwritten(const shard_state *st, const uint64_t *w);


/* ---- find.c: gets of both layouts; the comment at the top of find.c defines the rules R1 to R7 ---- */

/* Returns true if all words of the bucket have version v. */
bool shard_is_uniform(const shard_state *st, const uint64_t *w, unsigned v);
/* Rule R4 of find.c: stores in `generation` the numbers of the generations of levels 2 and 3 that may have the key, the
 * older generation first. Returns how many generations it stored. */
unsigned shard_generations_to_search(const shard_op *op, uint64_t header, unsigned generation[2]);
/* Searches the image of the main bucket. Returns SHARD_FOUND or SHARD_ABSENT. whole: the hit needs the value, too. */
int shard_find_l1(shard_op *op, uint64_t header, bool whole, shard_hit *hit);
/* Searches levels 2 and 3 once, and sets `hits` to the copies of the key, the oldest generation first. */
int shard_find_overflow(shard_op *op, uint64_t header, bool whole, shard_hit hits[SHARD_COPIES_MAX], unsigned *count);
/* Searches all levels for the key, by the rules R1 to R7. The caller has read the main bucket. Returns SHARD_FOUND,
 * SHARD_ABSENT or SHARD_START_OVER, or an error. Sets *mark to the RDWC time mark of the READs on which the result
 * relies (index/common/rdwc.h). */
int shard_find_key(shard_op *op, bool whole, shard_hit *hit, uint32_t *mark);
int shard_get(far_task *t, far_index *index, far_bytes key, far_out *out);
int shard_get_many(far_task *t, far_index *index, size_t count, const far_bytes keys[], far_out *outs[], int results[]);


/* ---- probe.c: comparing all words of a bucket at once ---- */

/* Pointer layout: a condition on the upper half of a word, which vectors evaluate fast: ((half & mask) ^ flip) > above,
 * as signed numbers. */
typedef struct shard_sieve {
    uint32_t mask, flip;
    int32_t above;
} shard_sieve;


/* Returns a condition that holds for live words with this tag at version v, and for all live words of the other parity.
 * After `flip`, words that are not live are negative, live words of the other parity are greater than all of v's
 * parity, and among the latter only a word with this tag has all bits of the tag mask set. */
static inline shard_sieve shard_sieve_for(unsigned v, uint64_t tag, uint64_t tag_mask) {
    const uint64_t tags = shard_entry(0, tag_mask, 0, 0) ^ SHARD_V;
    return (shard_sieve){(SHARD_V | SHARD_PARITY | tags) >> 32, shard_entry(v, ~tag & tag_mask, 0, 0) >> 32,
                         (int32_t)(tags >> 32) - 1};
}


bool shard_has_wide_vectors(void);
/* Pointer layout: returns a map with one bit per slot, set if the condition holds for its word. */
uint64_t shard_p_match_map(bool wide, const shard_sieve *s, const uint64_t *words);
/* Pointer layout: returns true if all slots have version v. */
bool shard_p_all_stamped(bool wide, const uint64_t *words, unsigned v);
/* Pointer layout: returns true if a slot or the header is zero. */
bool shard_p_any_zero(bool wide, const uint64_t *words);
/* Both layouts: returns the number of keys in a bucket. */
unsigned shard_count_live(const shard_state *st, const uint64_t *words);
/* Inline layout: returns a map with one bit per slot, set if the slot has the remainder `rem`. */
uint32_t shard_i_match_map(bool wide, uint64_t rem, const uint64_t *words);


/* ---- pointer/find.c: the pointer layout selects candidates by tags and verifies them by their pair blocks ---- */

/* Searches the image of the main bucket and reads the pair blocks of candidates. Returns SHARD_FOUND or SHARD_ABSENT.
 */
int shard_p_find_l1(shard_op *op, unsigned v, bool whole, shard_hit *hit);
/* Adds the candidates in the image of the main bucket to `hits`. */
void shard_p_gather_l1(const shard_op *op, shard_hits *hits);
/* Adds the candidates in the level-2 buckets and in the chain. It reads the further nodes of the chain. */
int shard_p_gather_overflow(shard_op *op, const shard_overflow *o, unsigned generation, shard_hits *hits);
/* Adds READs of the candidates' pair blocks to the batch. */
int shard_p_add_block_reads(shard_op *op, shard_hits *hits);
/* Called after the READs of shard_p_add_block_reads. Removes the hits on pair blocks that do not have the key. */
int shard_p_keep_matching_blocks(shard_op *op, shard_hits *hits, bool whole);


/* ---- inline/find.c: the inline layout has slots that contain the key ---- */

/* Returns true if the value and the key word (or state) of a hit were returned by one atomic READ. This does not hold
 * on a fabric that tears READs between words, and not at level 3, because slots there cross cache lines. */
static inline bool shard_i_hit_is_atomic(const shard_state *st, const shard_hit *hit) {
    return st->whole_pairs && hit->level < 3;
}


bool shard_i_find_l1(const shard_op *op, shard_hit *hit);
/* Searches the half that shard_i_read_half has read. Returns true if the key is present (rule R8 in find.c); false if
 * the half proves nothing. */
bool shard_i_find_in_half(const shard_op *op, shard_hit *hit);
/* Adds the hits in the level-2 buckets and in the chain. It reads the further nodes of the chain. */
int shard_i_gather_overflow(shard_op *op, const shard_overflow *o, unsigned generation, shard_hits *hits);
/* Verifies the hits at level 3. Returns 1 if the search must be repeated. */
int shard_i_drop_false_hits(shard_op *op, shard_hits *hits);
/* Adds a READ of the value of a hit between two READs of its key word (at level 3, of its state) into marks[0] and
 * marks[1]. The value belongs to the key if both marks are equal. Returns false without adding a READ if one atomic
 * READ has already returned key and value together. */
bool shard_i_add_confirming_reads(shard_op *op, shard_hit *hit, uint64_t marks[2]);


/* ---- pointer/write.c: writes of the pointer layout by one CAS ---- */

int shard_p_put(far_task *t, far_index *index, far_op_kind how, far_bytes key, far_bytes value);
int shard_p_remove(far_task *t, far_index *index, far_bytes key);
/* The next three functions return the first slot in the key's probe order that has (1) an EMPTY word; (2) an open word,
 * which is an EMPTY word of the cycle that the bucket's header names (a cycle is a period between two reopenings of the
 * bucket); (3) a closed word, which is free but usable only under the lock. They return -1 if no slot has such a word.
 */
int shard_p_first_empty(const shard_op *op, const uint64_t *w);
int shard_p_first_open(const shard_op *op, const uint64_t *w);
int shard_p_first_closed(const shard_op *op, const uint64_t *w);
bool shard_p_word_is_closed(uint64_t header, uint64_t word);
/* Retires the pair block that an entry has named until now. */
void shard_p_retire_block(shard_op *op, uint64_t word);


/* ---- pointer/write_locked.c: writes of the pointer layout under the lock of the main bucket ---- */

/* Locks the main bucket and reads it again. Returns 1 if locked, and 0 if another client has the lock. */
int shard_p_lock(shard_op *op, shard_extra_words *extra);
/* Frees the lock of the main bucket: writes the local copy of the header without its owner. wait: waits until the WRITE
 * is complete. */
int shard_p_unlock(shard_op *op, bool wait);
/* Places an entry for a pair block that no entry names. Returns SHARD_DONE, or SHARD_AGAIN if an unlocked insert took
 * the slot. */
int shard_p_place_entry(shard_op *op, unsigned class, far_addr block);
/* Locks the main bucket and does the whole operation. `seen` is the hit of the key before the lock was taken; NULL: the
 * key was absent. */
int shard_p_change_under_lock(shard_op *op, far_op_kind how, const shard_hit *seen);


/* ---- pointer/split.c: splits of the pointer layout ---- */

/* Splits `parent`, which is at version d-1. Returns 1 if the bucket is at version d, and 0 if another client has the
 * lock. */
int shard_p_split(far_task *t, far_index *index, shard_partition *part, unsigned d, bool graced,
                  const shard_image *parent, shard_own_change *own);
/* If the owner of the bucket's lock has failed, finishes its split or frees the lock. */
int shard_p_recover_lock(far_task *t, far_index *index, shard_partition *part, const shard_image *image);


/* ---- inline/write.c: writes of the inline layout, all under the lock word K ---- */

int shard_i_put(far_task *t, far_index *index, far_op_kind how, far_bytes key, far_bytes value);
int shard_i_remove(far_task *t, far_index *index, far_bytes key);
/* Locks a bucket and reads it. Returns 1 if locked. Otherwise it returns 0, and *seen is the lock word that was found.
 */
int shard_i_lock(shard_op *op, shard_image *image, uint64_t *seen, shard_extra_words *extra);
int shard_i_unlock(shard_op *op, const shard_image *image);
/* Finds and claims a slot at level 2 or 3. Sets *at, slot and *words to the address, the contents and the number of
 * words of the WRITE that the caller must send; *words is 0 if the pair is already written. */
int shard_i_place_in_overflow(shard_op *op, uint64_t value, far_addr *at, uint64_t slot[3], unsigned *words);
/* Returns the first EMPTY slot in the key's probe order, or -1. */
int shard_i_find_free_slot(const shard_op *op, const uint64_t *w);


/* ---- inline/split.c: splits of the inline layout ---- */

/* Sets *child to the address of the child, at version d, of bucket number `parent`. */
int shard_i_child_addr(far_task *t, shard_state *st, shard_partition *part, uint64_t parent, unsigned d,
                       far_addr *child);
/* Splits `parent` and frees its lock, which the caller holds. Returns 1 when the bucket is split. */
int shard_i_split(shard_op *op, const shard_image *parent, shard_own_change *own);
/* If the owner in the lock word k has failed, finishes the owner's split or frees the lock. */
int shard_i_recover_lock(far_task *t, far_index *index, shard_partition *part, const shard_image *image, uint64_t k);


/* ---- pointer/drain.c, inline/drain.c: move the keys of a level-2 bucket or a chain node up ---- */

/* The next three functions move all keys of a level-2 bucket or chain node up. They return SHARD_DRAINED,
 * SHARD_DRAIN_BLOCKED or SHARD_DRAIN_MORE, or an error. */
int shard_p_drain_words(shard_op *op, far_addr at, const uint64_t *words, unsigned count);
int shard_i_drain_l2(shard_op *op, far_addr at, const uint64_t *words, uint64_t bucket);
int shard_i_drain_node(shard_op *op, far_addr at, const shard_i_node *node);


/* ---- restructure_drain.c: the drain of both layouts ---- */

/* Sets the main bucket of the operation to the bucket to which a drained key with hash h moves. */
int shard_drain_target(shard_op *op, uint64_t h);
/* Drains the next bucket of the chunk. Returns 1 if it made progress, and 0 if another client held a required lock. */
int shard_drain_step(far_task *t, far_index *index, shard_partition *part, unsigned d, int *trips);
/* Returns true if a level-2 bucket or a chain node has no key. */
bool shard_line_is_empty(const shard_state *st, const uint64_t *line);
bool shard_node_is_empty(const shard_state *st, const shard_node *node);


/* ---- restructure.c: the states of a partition ---- */

/* Changes the root word by CAS, and caches the result. Returns 1 if the root word was `from`. */
int shard_cas_root(far_task *t, shard_partition *part, uint64_t from, uint64_t to);
/* Returns true if every pinned client has read `root` or a later root word. */
bool shard_all_clients_know(const far_task *t, uint64_t root);
/* Writes the current epoch into the root word as its stamp. */
int shard_set_stamp(far_task *t, shard_partition *part, uint64_t root);
/* Returns true if the next doubling may begin. If the doubling must wait for an epoch, requests this epoch. */
bool shard_may_grow(const far_task *t, const shard_state *st, uint64_t root);
/* Begins the next doubling if possible. Returns 1 if the partition doubles. */
int shard_try_grow(far_task *t, far_index *index, shard_partition *part);
/* Called when all chunks of the phase are done: changes the root word from GROW to DRAIN, or from DRAIN to STABLE. */
int shard_enter_next_phase(far_task *t, far_index *index, shard_partition *part, uint64_t root);


/* ---- restructure_shrink.c: an empty partition returns to its first size ---- */

/* Takes a step of a shrink; called by housekeeping. Returns 1 if there is more to do. */
int shard_shrink_step(far_task *t, far_index *index, shard_partition *part, int *trips);
/* Cancels a shrink for an insert. Returns SHARD_AGAIN, with a new root word cached. */
int shard_cancel_shrink(shard_op *op);
/* Rule R7: reads the root word after a miss. Returns FAR_ERR_NOT_FOUND if the miss is valid, else SHARD_AGAIN. */
int shard_recheck_miss(shard_op *op);


/* ---- restructure_chunks.c: the work of a doubling ---- */

/* Takes a step of the sweep or of the drain. Returns 1 if there was something to do. */
int shard_resize_step(far_task *t, far_index *index, shard_partition *part, int *trips);
/* With the option move_on_read: called after a get that found its bucket unsplit. Splits the bucket in a background
 * task. */
void shard_split_after_read(shard_op *op);


/* ---- load_factor.c: how full a partition is ---- */

void shard_request_doubling(shard_partition *part, unsigned version);
bool shard_doubling_is_due(const shard_state *st, const shard_partition *part, unsigned version);
/* Called when a doubling is due. Verifies that the partition is full, and begins the doubling. Returns 1 if the
 * partition doubles. */
int shard_grow_if_full(far_task *t, far_index *index, shard_partition *part);
/* Called after a write that added (delta 1) or removed (-1) a key, or replaced a value (0). It cannot fail. */
void shard_after_change(shard_op *op, int delta);
/* Publishes the counts of all partitions that this handle does not write to at present. */
int shard_publish_counts(far_task *t, far_index *index);
/* Returns the published count plus this handle's unpublished changes. */
int64_t shard_known_keys(const shard_partition *part);
/* Returns true if the count is so low that the partition may be empty. */
bool shard_has_few_keys(const shard_state *st, const shard_partition *part, unsigned d);
/* Estimates the number of keys at levels 1 and 2 from a sample of buckets. *published is the published count. */
int shard_estimate_keys(far_task *t, far_index *index, shard_partition *part, unsigned d, uint64_t *keys,
                        uint64_t *published);
/* Changes the published count from `published` to `keys`. */
int shard_correct_count(far_task *t, far_index *index, shard_partition *part, uint64_t published, uint64_t keys);


/* ---- baseline.c: lazy_resize=off ---- */

int shard_wait_for_sweep(shard_op *op);
int shard_finish_doubling(far_task *t, far_index *index, shard_partition *part);


/* ---- housekeeping.c ---- */

int shard_epoch_hook(far_task *t, far_index *index, uint64_t epoch);
int shard_idle_hook(far_task *t, far_index *index);
int shard_read_roots_again(far_task *t, far_index *index);


/* Reads all roots once after the index was opened. Every operation calls it, pinned, before it relies on a root word.
 */
static inline int shard_ensure_roots_read(far_task *t, far_index *index) {
    const shard_state *st = shard_state_of(index);
    return __builtin_expect(atomic_load_explicit(&st->has_read_roots, memory_order_acquire), 1)
               ? 0
               : shard_read_roots_again(t, index);
}


/* ---- overflow.c: levels 2 and 3 of both layouts ---- */

/* Adds READs of a key's level-2 buckets and chain head to the batch. Returns 1 if there are no such tables. */
int shard_add_overflow_reads(shard_op *op, unsigned generation, shard_overflow *o);
/* Called before a chain node is read. Returns FAR_ERR_CORRUPT if the chain has reached the same node before, otherwise
 * 0. */
int shard_chain_step(const far_index *index, shard_chain *chain, far_addr at);
/* Appends a node after the last node of a chain, which is at `at`. Returns 1 if appended, and 0 if the chain has grown
 * meanwhile. */
int shard_append_node(shard_op *op, far_addr at, const void *node);
/* Updates the count of overflowed keys in *header after the hits were removed from levels 2 and 3. */
void shard_uncount_overflow(shard_op *op, uint64_t *header, const shard_hit *hits, unsigned count);


/* ---- count_once.c: counting each key of a growing partition once ---- */

typedef struct shard_counted {
    uint8_t *seen; /* per bucket: 1 + the version at which its keys were counted; 0 = not counted */
    uint64_t buckets;
    uint64_t *overflow; /* hash table of the keys that were counted at levels 2 and 3 */
    uint64_t room, count;
} shard_counted;

/* Begins the next partition. */
void shard_counted_begin(shard_counted *c);
void shard_counted_end(shard_counted *c);
/* Records the visit of a bucket with keys of version v. Returns 1 if its keys must be counted, and 0 if they
 * were counted in its parent. */
int shard_count_bucket_once(shard_counted *c, const shard_state *st, uint64_t bucket, unsigned v);
/* Records a key of level 2 or 3 as counted. Returns 1 if the key was not counted before. */
int shard_count_overflow_once(shard_counted *c, uint64_t what);
/* Returns 1 if the bucket is being split and its child is complete, 0 if not, or an error. */
int shard_child_is_complete(far_task *t, shard_state *st, shard_partition *part, const shard_image *image);
/* Removes the words that belong to the complete child from the image of its parent. */
void shard_clear_moved_words(const shard_state *st, uint64_t *w, unsigned v);
/* Returns true if the key was counted at level 2 or 3. */
bool shard_counted_contains(const shard_counted *c, uint64_t what);


/* ---- check_bucket.c, check.c, contents.c: operations on the whole index ---- */

/* Reports problems of a level-1 bucket as a whole. `root` was read before the image. */
int shard_check_bucket(far_task *t, far_index *index, shard_partition *part, uint64_t root, const shard_image *image,
                       far_report *report);
bool shard_is_unlocked(const shard_state *st, const shard_image *image);
int shard_check(far_task *t, far_index *index, far_report *report);
int shard_walk(far_task *t, far_index *index, far_walk *walk);
int shard_usage(far_task *t, far_index *index, far_usage *usage);
int shard_keys(far_task *t, far_index *index, far_keys *keys);
int shard_object_keys(far_task *t, far_index *index, unsigned type, const void *object, uint64_t bytes, far_keys *keys);
int shard_load_factor(far_task *t, far_index *index, far_load *load);


/* Returns the result `err` of an attempt, except that a miss during a shrink is verified by rule R7 (find.c). */
static inline int shard_confirm_miss(shard_op *op, int err) {
    return err == FAR_ERR_NOT_FOUND && op->phase == SHARD_SHRINK ? shard_recheck_miss(op) : err;
}

#endif
