/* shard: what its files share. README.md has the protocol. */
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
    SHARD_OPTION_WINDOW_READ,
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
    SHARD_TYPE_BODY,
    SHARD_TYPES
};

/* Which chunks of a sweep are done, as far as a handle knows: words of 56 chunks, each with the version it is about.
 * Hints, so no order of memory goes with them. */
enum { SHARD_DONE_WORDS = 10, SHARD_DONE_CHUNKS = 56 };

/* A segment of more than one extent, as a handle knows it. */
typedef struct shard_extents {
    _Atomic uint64_t word;     /* address of the array of extents */
    _Atomic uint64_t extent[]; /* 0: not known */
} shard_extents;

/* What a handle knows of a partition; everything here may be behind. Words that were read of a body have its number in
 * their top bits (table.c): of another one they say nothing. */
typedef struct shard_partition {
    far_addr pcb;
    uint64_t number;
    _Atomic uint64_t root;
    _Atomic uint64_t body;                    /* its address */
    _Atomic uint64_t table[4];                /* words L2 even, odd, L3 even, odd */
    _Atomic uint64_t segment[SHARD_VERSIONS]; /* words of the segment table; of large segments: a shard_extents */
    _Atomic uint64_t progress;                /* word of a progress table: its address, and for which version it is */
    _Atomic uint64_t done[SHARD_DONE_WORDS];
    _Atomic int64_t delta;          /* keys added and not yet told */
    _Atomic int64_t count;          /* as last read, with what was told */
    _Atomic uint64_t sample;        /* load_by=sample: version << 56 | buckets seen << 32 | keys in them */
    _Atomic uint32_t writes;        /* since the load was looked at last */
    _Atomic uint32_t inserts;       /* for the share of the sweep */
    _Atomic uint32_t idle_seen;     /* inserts, when housekeeping looked last */
    uint32_t idle_writes;           /* writes, when it looked for counts to be told */
    _Atomic uint32_t wanted;        /* the version that is due: an insert reached level 3, or samples say so */
    _Atomic uint32_t suspected;     /* the version that seems due by a sample; a look at more buckets decides */
    _Atomic uint32_t trusted_until; /* inserts, up to which a look has shown that nothing is due */
    _Atomic uint32_t eras;          /* P: one more than the version at which a bucket was seen opened again */
    _Atomic uint32_t owed;          /* steps of sweep and drain that inserts have yet to take */
    _Atomic uint32_t passed_on;     /* how often in a row an insert has left the doubling that is due to the next one */
    _Atomic uint32_t proved;        /* the version of which it was seen that it is due */
    atomic_flag growing;            /* a task of this handle begins a doubling */
    atomic_flag working;            /* a task of this handle sweeps or drains; the rest is its own */
    uint64_t work;                  /* what chunk belongs to: a root without its stamp */
    _Atomic uint32_t bodies;        /* that this handle has met */
    uint32_t work_body;             /* of these, that of the chunk */
    uint64_t next, end;             /* buckets of the chunk still to do */
    uint64_t chunk;
    bool has_chunk;
    bool chunk_failed;                   /* a bucket of it was left out: not done */
    bool cursor_through;                 /* all chunks were given out: those that are not done are left */
    unsigned rest, rests;                /* no memory: so many steps are left out; the next time more */
    unsigned grow_rest, grow_rests;      /* likewise no memory for a doubling, under `growing` */
    uint64_t claim;                      /* as last seen, under `growing` */
    far_addr ends;                       /* of a drain: the head of the chain that was last seen to have an end */
    uint64_t proved_empty;               /* the root under which, and ... */
    uint64_t empty_buckets, empty_lines; /* ... how much of levels 1 and 2 was seen to be empty; under `working` */
    bool quiet;                          /* this handle has not written to it since housekeeping looked last */
    int64_t shrink_count;                /* keys, by the count, when it was tried in vain */
    unsigned shrink_rest, shrink_rests;  /* looks whether it is empty that are left out; after the next vain one more */
    unsigned shrink_waits;               /* looks at a shrink that does not go on */
    int64_t doubted_count;               /* a count that says that it is not empty, and ... */
    unsigned doubt_rest, doubt_rests;    /* ... looks whether that is true that are left out; the next time more */
} shard_partition;

typedef struct shard_counters { /* what happened, for tests of coverage */
    _Atomic uint64_t grows, splits_frozen, splits_graced, retags, drained, overflows, chained, takeovers, absorbed,
        under_lock, merged, unlinked, rebased, reopened, forgotten, shrunk, called_off;
} shard_counters;

/* Of all indexes that were closed in this process: runs of a test open and close many. */
extern shard_counters shard_totals;

typedef struct shard_state {     /* of an open index */
    bool inlined;                /* layout I */
    bool wide;                   /* this processor has wide vectors (probe.c) */
    bool whole_pairs;            /* two words of an aligned 16 bytes are read at one moment */
    unsigned hash_bits, implied; /* bits of h; I: those that the place implies */
    unsigned p, b, slots, l2_slots, load, tag_mask;
    unsigned pieces;     /* segments below this one are one piece each */
    uint8_t tag_low[64]; /* where the tags of a version begin in h */
    bool one_filter_bit;
    bool grace, combining, absorb, pair_read, window_read, ordered_cas;
    unsigned afs;   /* 0: adaptive, else a fixed period */
    unsigned alpha; /* thousandths */
    unsigned share; /* every so many inserts take a step of sweep or drain */
    bool lazy, idle_sweep, move_on_read, sampling;
    uint64_t extent;
    uint64_t seed, level_seed[3];
    atomic_uint clients;   /* sessions that live, as last counted */
    atomic_uint idle_next; /* the partition at which housekeeping goes on */
    atomic_bool has_heard; /* the roots were read since it was opened */
    shard_counters counters;
    shard_partition part[];
} shard_state;

typedef struct shard_image { /* a level-1 bucket as it was read */
    uint64_t bucket;
    far_addr addr;
    uint64_t w[SHARD_WORDS];
} shard_image;

/* One operation on one key, and what its running attempt goes by. From `root` on all is zero at the beginning. */
typedef struct shard_try {
    far_task *t;
    far_index *index;
    shard_state *st;
    shard_partition *part;
    far_bytes key;
    uint64_t h;
    shard_image *home, *spare; /* the bucket that counts; the other one of a pair */
    uint64_t root;
    uint64_t bucket; /* of the key, at version d */
    unsigned d, phase;
    bool graced;          /* nobody is at work who does not know of this version: known before the READ of the image */
    bool paired;          /* child and parent are looked at */
    bool dated;           /* P, writing: `before` is read ahead of home */
    bool child_unwritten; /* the child was seen UNINIT in this attempt, before home was read */
    uint64_t before;      /* the header of home, as it was before any word of home was read */

    unsigned attempt;
    unsigned class;
    far_addr block; /* P: the new block, not shown yet; 0 = none */
    bool written, inserting;
    bool had_more_to_do; /* than most inserts: it looked below level 1, split its bucket, or told */
    bool took_over;      /* lazy_resize=off: it did the work of one who died */
    unsigned landed;     /* the level below the first to which an insert had to go; 0: none */
    unsigned walked;     /* nodes of the chain on the way there */
    int trips;           /* of a drain: round trips that its step may still take, about */
    far_addr latched;    /* 0: none */
} shard_try;

/* Words that are read together with a lock and its bucket: as they are under the lock. */
typedef struct shard_beside {
    unsigned count;
    far_addr at[2];
    uint64_t word[2];
} shard_beside;

enum {
    SHARD_LOOK = 32, /* buckets that sweep and drain look at in one batch */
};

/* What a search says; errors are negative. */
typedef enum { SHARD_ABSENT, SHARD_FOUND, SHARD_START_OVER } shard_found;

/* What a change of an operation says, or an attempt at it; errors are negative. */
enum {
    SHARD_AGAIN, /* nothing was changed: start over */
    SHARD_DONE,
};

/* What a drain says of a bucket, a node or an entry; errors are negative. */
enum {
    SHARD_LEFT, /* what was to go is still there: somebody has a lock */
    SHARD_GONE,
    SHARD_MORE, /* the step has done its share: call again */
};

/* Where a key lies, or may lie. */
typedef struct shard_hit {
    far_addr addr;       /* P: of the word; I: of the value, behind which kw, or key and state, follow */
    int slot, level;     /* slot: in level 1, else -1 */
    unsigned generation; /* of level 2 and 3 */
    uint64_t word;       /* P: the entry; I: kw or state */
    uint64_t value;      /* I */
    shard_block *block;  /* P */
    bool only;           /* below level 1: no other copy was found there */
} shard_hit;

enum { SHARD_COPIES_MAX = 4, SHARD_HITS_MAX = 64 };

typedef struct shard_hits {
    unsigned count;
    shard_hit hit[SHARD_HITS_MAX];
} shard_hits;

typedef union shard_node { /* of a chain */
    shard_p_node p;
    shard_i_node i;
} shard_node;

/* A walk along a chain. Under one pin nobody comes to a node twice: nodes are added at the end, only the link in the
 * head changes, and what was taken out keeps its link. So a chain in which one is met again is broken, and has no end. */
typedef struct shard_chain {
    far_addr seen; /* the node of the last step whose number is a power of two: a circle comes to it again */
    uint64_t steps;
} shard_chain;

typedef struct shard_overflow { /* of one generation: both buckets of a key and the head of its chain */
    far_addr at[2], head;
    uint64_t l2[2][8];
    shard_node node;
} shard_overflow;

/* The change of an operation that finds its bucket still to be split: the split carries it. */
typedef struct shard_own {
    shard_try *y;
    int slot; /* of the key in the parent; -1: it is new */
    bool remove;
    uint64_t value;           /* I */
    bool carried;             /* out: false: there was no way, and nothing was changed */
    uint64_t expected, found; /* out, P: of its CAS */
} shard_own;


static inline shard_state *shard_state_of(const far_index *index) {
    return index->state;
}


/* A word that a handle has read of a body, with the number of that body, as far as there are bits. Two bodies that are
 * in use at once have numbers that follow each other, and what was known of others is forgotten (shard_learn_root). */
enum { SHARD_KNOWN_BITS = 57 };


static inline uint64_t shard_known(const _Atomic uint64_t *at, unsigned body) { /* 0: not known */
    uint64_t word = atomic_load_explicit(at, memory_order_acquire);
    return word >> SHARD_KNOWN_BITS == body % (1u << (64 - SHARD_KNOWN_BITS)) ? word & shard_mask(SHARD_KNOWN_BITS) : 0;
}


static inline void shard_know(_Atomic uint64_t *at, unsigned body, uint64_t word) {
    atomic_store_explicit(at, (word & shard_mask(SHARD_KNOWN_BITS)) | (uint64_t)body << SHARD_KNOWN_BITS,
                          memory_order_release);
}


static inline unsigned shard_body_of(const shard_partition *part) { /* the number of the newest that is known of */
    return shard_root_body(atomic_load_explicit(&part->root, memory_order_acquire));
}


static inline unsigned shard_bit(const shard_state *st, uint64_t h) { /* of the overflow filters */
    return st->one_filter_bit ? 1 : shard_filter_bit(h, st->hash_bits);
}


static inline void shard_count(_Atomic uint64_t *counter) {
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}


/* The hash of L2a, L2b or L3. */
static inline uint64_t shard_level(const shard_state *st, uint64_t h, unsigned level) {
    return shard_rehash(h, st->level_seed[level], st->p, st->hash_bits);
}


/* The line at which the key's order of slots begins. */
static inline unsigned shard_start_line(const shard_try *y) {
    return (unsigned)(shard_level(y->st, y->h, 2) >> 56) & 7;
}


/* Where a bucket is, of a segment that is one piece and known to this handle; else 0, and shard_bucket_addr finds it. */
static inline far_addr shard_known_addr(const shard_state *st, const shard_partition *part, uint64_t bucket) {
    const unsigned b = st->b, segment = shard_segment(bucket, b);
    const uint64_t inside = shard_in_segment(bucket, b);
    uint64_t at = segment < st->pieces ? shard_known(&part->segment[segment], shard_body_of(part)) : 0;
    return at ? at + inside * SHARD_BUCKET_BYTES : 0;
}


static inline unsigned shard_header_at(const shard_state *st) { /* which word of a bucket has its version and filters */
    return st->inlined ? SHARD_I_H : SHARD_P_HEADER;
}


static inline bool shard_is_splitting(const shard_state *st,
                                      uint64_t header) { /* its mark, in one word with the version */
    return st->inlined ? (header & SHARD_MOVING) != 0 : shard_header_op(header) == SHARD_OP_SPLIT;
}


static inline uint64_t shard_home_header(const shard_try *y) {
    return y->home->w[shard_header_at(y->st)];
}


static inline unsigned shard_home_v(const shard_try *y) {
    return shard_header_v(shard_home_header(y));
}


/* The header is home's. It belongs to the bucket in which the key lies at its version, and that is within sight. */
static inline bool shard_home_is_right(const shard_try *y, uint64_t header) {
    unsigned v = shard_header_v(header);
    if (v == y->d)
        return header != 0 && y->home->bucket == y->bucket;
    if (header == 0 || y->home->bucket != shard_bucket(y->h, y->st->p, y->st->b, v))
        return false;
    return v == y->d + 1 || (v + 1 == y->d && y->phase == SHARD_GROW);
}


/* Whether the key leaves the home bucket with its next split, so that the bucket proves something only before that. */
static inline bool shard_may_lose(const shard_try *y, uint64_t header) {
    unsigned v = shard_header_v(header);
    return shard_changes(y->h, y->st->p, y->st->b, v + 1) && !(y->child_unwritten && v + 1 == y->d);
}


static inline bool shard_hit_counts(const shard_try *y, uint64_t header, const shard_hit *hit) { /* R2 (find.c) */
    if (!shard_may_lose(y, header))
        return true;
    return !shard_is_splitting(y->st, header) && (y->st->inlined || !shard_is_frozen(hit->word));
}


/* grow.c: nobody is at work who does not know of the doubling. */
bool shard_is_graced(const far_task *t, const shard_state *st, uint64_t root);


/* Takes the root that counts for this attempt. */
static inline void shard_attempt(shard_try *y) {
    y->root = atomic_load_explicit(&y->part->root, memory_order_acquire);
    y->d = shard_root_d(y->root);
    y->phase = shard_root_phase(y->root);
    y->bucket = shard_bucket(y->h, y->st->p, y->st->b, y->d);
    y->graced = y->paired = y->dated = y->child_unwritten = false;
    if (y->phase == SHARD_GROW) { /* else nothing is split */
        y->graced = shard_is_graced(y->t, y->st, y->root);
        if (y->d >= SHARD_VERSIONS) /* the root is broken: there is no such child, nor a parent of it */
            y->phase = SHARD_STABLE;
    }
}


static inline bool shard_must_wait(const shard_try *y) { /* lazy_resize=off: a write, while its partition doubles */
    return !y->st->lazy && y->phase == SHARD_GROW;
}


/* An insert into a partition that may be about to go back to its first size. */
static inline bool shard_must_call_off(const shard_try *y, far_op_kind how) {
    return y->phase == SHARD_SHRINK && (how == FAR_OP_INSERT || how == FAR_OP_PUT);
}


static inline bool shard_is_lost(int err) { /* no verb of the session works any more */
    return err == FAR_ERR_FENCED || err == FAR_ERR_UNREACHABLE;
}


static inline int shard_refusal(far_op_kind how, bool present) { /* 0: the operation can be done */
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


/* I: what the slot of a key holds of its hash: at level 1, and for both choices of level 2. */
static inline uint64_t shard_rem(const shard_try *y, int choice) {
    return (choice < 0 ? y->h : shard_level(y->st, y->h, (unsigned)choice)) >> y->st->implied;
}


static inline void shard_unlatch(shard_try *y) {
    if (y->latched)
        far_unlatch(y->t, y->latched);
    y->latched = 0;
}


/* shard.c */
uint64_t shard_hash(const far_index *index, far_bytes key);
uint64_t shard_i_key(const shard_state *st, uint64_t h);     /* the key of that hash, as it lies in memory */
bool shard_i_too_wide(const shard_state *st, far_bytes key); /* narrow=on: no such key can be there */
size_t shard_local_bytes(const far_index *index);
int shard_read_descriptor(far_task *t, const far_index *index,
                          shard_descriptor **read); /* pinned, into scratch memory */
void shard_levels(const shard_state *st, uint64_t h, uint64_t level[3]);
int shard_make_body(far_task *t, far_index *index, unsigned node, unsigned b, far_addr *body,
                    far_addr *segment); /* of a partition without keys, with its segment 0; not linked */

/* table.c: where things are. */
void shard_learn_root(shard_partition *part, uint64_t root);
void shard_learn_partition(far_task *t, shard_partition *part,
                           const uint64_t words[SHARD_PCB_KNOWN]); /* what its control block begins with */
int shard_refresh(far_task *t, shard_partition *part);             /* READs the root */
int shard_body_word(far_task *t, shard_partition *part, unsigned word, far_addr *at); /* 0: the root is behind */
int shard_bucket_addr(far_task *t, const shard_state *st, shard_partition *part, uint64_t bucket,
                      far_addr *addr); /* 0: not yet there */
/* What this handle has used is there as long as the body: another address there, or none, and who goes by it would
 * free what all use. 0, or FAR_ERR_CORRUPT */
int shard_is_as_known(const far_index *index, const shard_partition *part, const char *what, uint64_t known,
                      uint64_t word);
int shard_overflow_addrs(far_task *t, shard_partition *part, unsigned generation, far_addr *l2,
                         far_addr *l3); /* 0: there is none */
int shard_make_overflow(far_task *t, far_index *index, shard_partition *part, unsigned generation);
int shard_drop_overflow(far_task *t, far_index *index, shard_partition *part, unsigned generation);
int shard_make_segment(far_task *t, far_index *index, shard_partition *part,
                       unsigned version); /* 1: all is there; 0: call again */
int shard_progress_addr(far_task *t, shard_partition *part, unsigned version, far_addr *addr);
void shard_learn_done(shard_partition *part, unsigned version, uint64_t chunk);
bool shard_knows_done(const shard_partition *part, unsigned version, uint64_t chunk);
uint64_t shard_extent_count(const shard_state *st, unsigned segment); /* 0: the segment is one piece */
size_t shard_extents_bytes(const shard_state *st, unsigned segment);  /* of what a handle knows of them */
uint64_t shard_l2_bytes(const shard_state *st, unsigned generation);
uint64_t shard_l3_bytes(const shard_state *st, unsigned generation);
uint64_t shard_progress_bytes(const shard_state *st, unsigned version);

/* attempt.c: beginning, repeating and ending attempts. */
int shard_begin(shard_try *y, far_task *t, far_index *index, far_bytes key);
int shard_place_home(shard_try *y); /* 0: it is known where the home bucket is */
void shard_put_home(shard_try *y);  /* then: puts its READ(s) into the batch */
int shard_see_home(shard_try *y);   /* after the wait: home is the one that counts */
int shard_read_home(shard_try *y);  /* both, and the wait, with whatever else is in the batch */
int shard_put_window(shard_try *y); /* 1: the READs of a part of the home bucket */
int shard_lock_and_read(shard_try *y, shard_image *image, unsigned word, uint64_t expected, uint64_t mine,
                        uint64_t *old,
                        shard_beside *beside); /* 1: locked; 0: the word was *old, and the latch is given back */
void shard_drop_block(shard_try *y);
int shard_retry(shard_try *y, bool refresh); /* backs off, renews the pin now and then */
bool shard_unwritten(const shard_state *st, const uint64_t *w);

/* find.c: both layouts. The rules R1-R6 */
bool shard_uniform(const shard_state *st, const uint64_t *w, unsigned v);
unsigned shard_generations(const shard_try *y, uint64_t header, unsigned generation[2]);
int shard_find_l1(shard_try *y, uint64_t header, bool whole, shard_hit *hit); /* SHARD_FOUND or SHARD_ABSENT */
int shard_find_overflow(shard_try *y, uint64_t header, bool whole, shard_hit hits[SHARD_COPIES_MAX], unsigned *count);
int shard_find(shard_try *y, bool whole, shard_hit *hit, uint32_t *mark); /* a shard_found */
int shard_get(far_task *t, far_index *index, far_bytes key, far_out *out);
int shard_get_many(far_task *t, far_index *index, size_t count, const far_bytes keys[], far_out *outs[], int results[]);

/* probe.c. P: passed by words whose upper halves, under the mask and flipped, are above a bound, with their sign. */
typedef struct shard_sieve {
    uint32_t mask, flip;
    int32_t above;
} shard_sieve;


/* Passed by words with the tag at version v, and by live ones of the other parity. Flipped, words that are not live are
 * negative, those of the other parity above all of v's, and of these the one with the tag has all bits of the mask. */
static inline shard_sieve shard_sieve_for(unsigned v, uint64_t tag, uint64_t tag_mask) {
    const uint64_t tags = shard_entry(0, tag_mask, 0, 0) ^ SHARD_V;
    return (shard_sieve){(SHARD_V | SHARD_PARITY | tags) >> 32, shard_entry(v, ~tag & tag_mask, 0, 0) >> 32,
                         (int32_t)(tags >> 32) - 1};
}


bool shard_has_wide_vectors(void);
uint64_t shard_p_map(bool wide, const shard_sieve *s, const uint64_t *words); /* a bit for each word that passes */
bool shard_p_all_stamped(bool wide, const uint64_t *words, unsigned v);       /* all slots are of that version */
bool shard_p_any_zero(bool wide, const uint64_t *words);                      /* a slot, or the header */
unsigned shard_count_live(const shard_state *st, const uint64_t *words);      /* keys in a bucket, of either layout */
uint32_t shard_i_map(bool wide, uint64_t rem, const uint64_t *words); /* I: a bit for each slot with the key of rem */

/* pfind.c: P. Candidates by their tags, then what their blocks say */
int shard_p_find_l1(shard_try *y, unsigned v, bool whole, shard_hit *hit); /* SHARD_FOUND or SHARD_ABSENT */
void shard_p_gather_l1(const shard_try *y, shard_hits *hits);
int shard_p_gather_overflow(shard_try *y, const shard_overflow *o, unsigned generation, shard_hits *hits);
int shard_p_put_blocks(shard_try *y, shard_hits *hits);
int shard_p_see_blocks(shard_try *y, shard_hits *hits, bool whole); /* keeps those that hold the key */

/* ifind.c: I. Value and mark were read at one moment: not where the unit is a word, and not at level 3, whose slots
 * cross lines. */
static inline bool shard_i_is_whole(const shard_state *st, const shard_hit *hit) {
    return st->whole_pairs && hit->level < 3;
}


bool shard_i_find_l1(const shard_try *y, shard_hit *hit);
int shard_i_gather_overflow(shard_try *y, const shard_overflow *o, unsigned generation, shard_hits *hits);
int shard_i_drop_false_hits(shard_try *y, shard_hits *hits);               /* 1: all must be looked at again */
bool shard_i_put_confirm(shard_try *y, shard_hit *hit, uint64_t marks[2]); /* false: value and mark are of one moment */

/* write.c: P */
int shard_p_put(far_task *t, far_index *index, far_op_kind how, far_bytes key, far_bytes value);
int shard_p_remove(far_task *t, far_index *index, far_bytes key);
int shard_p_first_empty(const shard_try *y, const uint64_t *w);
int shard_p_first_open(const shard_try *y, const uint64_t *w);   /* EMPTY, of the era of the header */
int shard_p_first_closed(const shard_try *y, const uint64_t *w); /* free, and to be used under the lock only */
bool shard_p_is_closed(uint64_t header, uint64_t word);
void shard_p_retire(shard_try *y, uint64_t word);

/* home_lock.c: P, under the home lock */
int shard_p_lock(shard_try *y, shard_beside *beside); /* 1: locked, home read again; 0: somebody else has it */
int shard_p_unlock(shard_try *y, bool wait);
int shard_p_place(shard_try *y, unsigned class, far_addr block); /* SHARD_AGAIN: somebody was faster */
int shard_p_change_under_lock(shard_try *y, far_op_kind how,
                              const shard_hit *seen); /* the whole operation; NULL: the key was not there */

/* split.c: P */
int shard_p_split(far_task *t, far_index *index, shard_partition *part, unsigned d, bool graced,
                  const shard_image *parent, shard_own *own);
int shard_p_help(far_task *t, far_index *index, shard_partition *part,
                 const shard_image *image); /* the owner of the lock may be dead */

/* iwrite.c: I, all under the lock K */
int shard_i_put(far_task *t, far_index *index, far_op_kind how, far_bytes key, far_bytes value);
int shard_i_remove(far_task *t, far_index *index, far_bytes key);
int shard_i_lock(shard_try *y, shard_image *image, uint64_t *seen,
                 shard_beside *beside); /* 1: locked, image read; 0: K was *seen */
int shard_i_unlock(shard_try *y, const shard_image *image);
int shard_i_place(shard_try *y, uint64_t value, far_addr *at, uint64_t slot[3],
                  unsigned *words); /* level 2 or 3: where and what to WRITE */
int shard_i_free_slot(const shard_try *y, const uint64_t *w);

/* isplit.c: I */
int shard_i_child(far_task *t, shard_state *st, shard_partition *part, uint64_t parent, unsigned d,
                  far_addr *child);                                         /* of that bucket, at version d */
int shard_i_split(shard_try *y, const shard_image *parent, shard_own *own); /* the lock is held; it is freed. 1: done */
int shard_i_help(far_task *t, far_index *index, shard_partition *part, const shard_image *image,
                 uint64_t k); /* its owner may be dead */

/* pdrain.c, idrain.c: SHARD_GONE: nothing is left there */
int shard_p_drain_words(shard_try *y, far_addr at, const uint64_t *words, unsigned count);
int shard_i_drain_l2(shard_try *y, far_addr at, const uint64_t *words, uint64_t bucket);
int shard_i_drain_node(shard_try *y, far_addr at, const shard_i_node *node);

/* drain.c */
int shard_drain_home(shard_try *y, uint64_t h);
int shard_drain_step(far_task *t, far_index *index, shard_partition *part, unsigned d, int *trips);
bool shard_line_is_empty(const shard_state *st, const uint64_t *line);
bool shard_node_is_empty(const shard_state *st, const shard_node *node);

/* grow.c: the states of a partition */
int shard_move_root(far_task *t, shard_partition *part, uint64_t from, uint64_t to); /* 1: it was `from` */
bool shard_all_know(const far_task *t,
                    uint64_t root); /* nobody is at work who took another root than this, or a later one */
int shard_set_stamp(far_task *t, shard_partition *part, uint64_t root);
bool shard_may_grow(const far_task *t, const shard_state *st, uint64_t root);
int shard_try_grow(far_task *t, far_index *index, shard_partition *part); /* 1: it doubles */
int shard_next_phase(far_task *t, far_index *index, shard_partition *part, uint64_t root);

/* shrink.c */
int shard_shrink(far_task *t, far_index *index, shard_partition *part, int *trips); /* of housekeeping; 1: more to do */
int shard_call_off(shard_try *y);     /* before an insert: SHARD_AGAIN, with a new root */
int shard_look_at_body(shard_try *y); /* R7: FAR_ERR_NOT_FOUND, or SHARD_AGAIN, with a new root */

/* sweep.c */
int shard_work(far_task *t, far_index *index, shard_partition *part,
               int *trips);               /* a step of sweep or drain; 1: something was to do */
void shard_move_after_read(shard_try *y); /* move_on_read: of a get, whose home is still to be split */

/* load.c: how full a partition is */
void shard_want(shard_partition *part, unsigned version);
bool shard_is_due(const shard_state *st, const shard_partition *part, unsigned version);
int shard_grow_if_full(far_task *t, far_index *index, shard_partition *part); /* when a doubling is due */
void shard_after_change(shard_try *y, int delta);  /* of a write that added or removed a key */
int shard_tell_all(far_task *t, far_index *index); /* of partitions into which nobody writes now */
int64_t shard_keys_known(const shard_partition *part);
bool shard_has_few(const shard_state *st, const shard_partition *part, unsigned d); /* keys, as far as it is known */
int shard_estimate(far_task *t, far_index *index, shard_partition *part, unsigned d, uint64_t *keys,
                   uint64_t *told); /* keys at levels 1 and 2, by some buckets; told: what the count says */
int shard_put_count_right(far_task *t, far_index *index, shard_partition *part, uint64_t told, uint64_t keys);

/* blocking.c: lazy_resize=off */
int shard_wait_for_sweep(shard_try *y);
int shard_finish_doubling(far_task *t, far_index *index, shard_partition *part);

/* idle.c: housekeeping */
int shard_epoch_hook(far_task *t, far_index *index, uint64_t epoch);
int shard_idle_hook(far_task *t, far_index *index);

int shard_hear_now(far_task *t, far_index *index);

static inline int shard_hear(far_task *t, far_index *index) { /* before anybody goes by a root, pinned */
    const shard_state *st = shard_state_of(index);
    return __builtin_expect(atomic_load_explicit(&st->has_heard, memory_order_acquire), 1) ? 0
                                                                                           : shard_hear_now(t, index);
}

/* overflow.c: levels 2 and 3 of both layouts */
int shard_put_overflow(shard_try *y, unsigned generation,
                       shard_overflow *o);                                 /* READs into the batch; 1: there is none */
int shard_follow(const far_index *index, shard_chain *chain, far_addr at); /* before a node is read */
int shard_append_node(shard_try *y, far_addr at, const void *node);
void shard_recover(shard_try *y, uint64_t *header, const shard_hit *hits, unsigned count);

/* count_once.c: of one partition, for those who count its keys */
typedef struct shard_counted {
    uint8_t *seen; /* per bucket: the version at which it was counted, and 1; 0: not yet */
    uint64_t buckets;
    uint64_t *overflow; /* a hash table of what was met at levels 2 and 3 */
    uint64_t room, count;
} shard_counted;

void shard_counted_begin(shard_counted *c); /* of the next partition */
void shard_counted_end(shard_counted *c);
int shard_counted_bucket(shard_counted *c, const shard_state *st, uint64_t bucket, unsigned v); /* 1: to be counted */
int shard_counted_in_overflow(shard_counted *c, uint64_t what);                                 /* 1: it is new */
int shard_has_left(far_task *t, shard_state *st, shard_partition *part, const shard_image *image);
void shard_forget_what_left(const shard_state *st, uint64_t *w, unsigned v); /* of a bucket whose child is complete */
bool shard_counted_knows(const shard_counted *c, uint64_t what);

/* check_bucket.c: what check says of a level-1 bucket as a whole */
int shard_check_bucket(far_task *t, far_index *index, shard_partition *part, uint64_t root, const shard_image *image,
                       far_report *report);
bool shard_is_unlocked(const shard_state *st, const shard_image *image);

/* contents.c */
int shard_walk(far_task *t, far_index *index, far_walk *walk);
int shard_usage(far_task *t, far_index *index, far_usage *usage);
int shard_keys(far_task *t, far_index *index, far_keys *keys);
int shard_load_factor(far_task *t, far_index *index, far_load *load);

/* check.c */
int shard_check(far_task *t, far_index *index, far_report *report);

/* What an attempt says, if it says that the key is not there: R7 (find.c). */
static inline int shard_believe_miss(shard_try *y, int err) {
    return err == FAR_ERR_NOT_FOUND && y->phase == SHARD_SHRINK ? shard_look_at_body(y) : err;
}

#endif
