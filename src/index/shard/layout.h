/* The words of a shard index in far memory: pictures, packing, and the pure arithmetic of versions, buckets and tags.
 *
 * An index is 2^p partitions, chosen by the low p bits of the hash h; all of a partition lies on one memory node. A
 * partition at version d has 2^(b+d) level-1 buckets of 512 bytes. Segment 0 holds buckets [0, 2^b), segment j buckets
 * [2^(b+j-1), 2^(b+j)): a doubling adds one segment, whose bucket c is the child of bucket c - 2^(b+j-1). Zero words
 * are UNINIT: what a split has not written yet. */
#ifndef FAR_INDEX_SHARD_LAYOUT_H
#define FAR_INDEX_SHARD_LAYOUT_H

#include "index/index.h"

#include <assert.h>

enum {
    SHARD_WORDS = 64, /* of a bucket */
    SHARD_BUCKET_BYTES = 512,
    SHARD_LINE = 8,     /* words of a cache line */
    SHARD_P_SLOTS = 63, /* entries of a P bucket; word 63 is the header */
    SHARD_P_HEADER = 63,
    SHARD_I_SLOTS = 31, /* pairs (value, kw) of an I bucket; then H and K */
    SHARD_I_H = 62,
    SHARD_I_K = 63,
    SHARD_L2_BYTES = 64,
    SHARD_L2_P_SLOTS = 8,
    SHARD_L2_I_SLOTS = 4,
    SHARD_PER_HEAD = 16, /* buckets of level 2 for every chain of level 3 */
    SHARD_P_NODE_SLOTS = 7,
    SHARD_I_NODE_SLOTS = 5,
    SHARD_VERSIONS = 48, /* a partition can double 47 times */
    SHARD_IMPLIED = 10,  /* I: hash bits that the place of a slot implies */
    SHARD_REM_BITS = 54,
    SHARD_FILTER_BITS = 16,
};


static inline uint64_t shard_bits(uint64_t word, unsigned low, unsigned count) {
    return word >> low & ((1ull << count) - 1);
}


/* ---- Hashes ---- */

/* A bijection of the low `bits` bits (2..64), keyed. Each round is undone by shard_unmix: a shift by at least half
 * undoes itself, an odd factor has an inverse. */
enum { SHARD_ROUNDS = 3 };
#define SHARD_FACTOR 0x9e3779b97f4a7c15ull


static inline uint64_t shard_mask(unsigned bits) {
    return bits >= 64 ? ~0ull : (1ull << bits) - 1;
}


static inline uint64_t shard_mix(uint64_t y, uint64_t key, unsigned bits) {
    unsigned shift = (bits + 1) / 2;
    for (unsigned i = 0; i < SHARD_ROUNDS; i++) {
        y = ((y ^ (key >> i)) * SHARD_FACTOR) & shard_mask(bits);
        y ^= y >> shift;
    }
    return y;
}


static inline uint64_t shard_inverse(uint64_t odd) { /* mod 2^64, by Newton: each step doubles the good bits */
    uint64_t x = odd;
    for (unsigned i = 0; i < 6; i++)
        x *= 2 - odd * x;
    return x;
}


static inline uint64_t shard_unmix(uint64_t y, uint64_t key, unsigned bits) {
    unsigned shift = (bits + 1) / 2;
    uint64_t factor = shard_inverse(SHARD_FACTOR);
    for (unsigned i = SHARD_ROUNDS; i-- > 0;) {
        y ^= y >> shift;
        y = ((y * factor) & shard_mask(bits)) ^ ((key >> i) & shard_mask(bits));
    }
    return y;
}


/* The hash of another level: the low p bits stay (the partition), the others are mixed. */
static inline uint64_t shard_rehash(uint64_t h, uint64_t key, unsigned p, unsigned bits) {
    return shard_mix(h >> p, key, bits - p) << p | (h & shard_mask(p));
}


static inline uint64_t shard_unrehash(uint64_t h, uint64_t key, unsigned p, unsigned bits) {
    return shard_unmix(h >> p, key, bits - p) << p | (h & shard_mask(p));
}


/* ---- Versions, buckets, segments ---- */

static inline uint64_t shard_bucket(uint64_t h, unsigned p, unsigned b, unsigned v) {
    return h >> p & shard_mask(b + v);
}


/* Whether a key of that hash leaves its bucket when the partition goes from version v-1 to v. (Of a version that is broken,
 * beyond the bits of a hash, either will do.) */
static inline bool shard_changes(uint64_t h, unsigned p, unsigned b, unsigned v) {
    return h >> (p + b + v - 1) % 64 & 1;
}


static inline unsigned shard_segment(uint64_t bucket, unsigned b) {
    return bucket >> b == 0 ? 0 : 64 - (unsigned)__builtin_clzll(bucket >> b);
}


static inline uint64_t shard_segment_buckets(unsigned segment, unsigned b) {
    return 1ull << (segment ? b + segment - 1 : b);
}


static inline uint64_t shard_in_segment(uint64_t bucket, unsigned b) {
    unsigned segment = shard_segment(bucket, b);
    return segment ? bucket - (1ull << (b + segment - 1)) : bucket;
}


static inline uint64_t shard_parent(uint64_t child, unsigned b, unsigned v) {
    return child - (1ull << (b + v - 1));
}


/* L3 has a sixteenth as many heads as there are buckets. */
static inline uint64_t shard_heads(unsigned b, unsigned generation) {
    return b + generation > 4 ? 1ull << (b + generation - 4) : 1;
}


/* ---- Root word of a partition: version, phase, which body, and since when (pool epoch) all can know ---- */
/* d 6 | phase 2 << 6 | stamp_set << 8 | body 15 << 9 | stamp 40 << 24
 * A body is all that a partition has: tables, segments, progress. A partition that became empty gets a new one. */

enum { SHARD_STABLE, SHARD_GROW, SHARD_DRAIN, SHARD_SHRINK };
enum { SHARD_BODIES = 1 << 15 }; /* numbers of bodies, in turn */


static inline uint64_t shard_root(unsigned d, unsigned phase, bool set, uint64_t stamp) {
    return d | (uint64_t)phase << 6 | (uint64_t)set << 8 | stamp << 24;
}


static inline unsigned shard_root_d(uint64_t root) {
    return (unsigned)shard_bits(root, 0, 6);
}


static inline unsigned shard_root_phase(uint64_t root) {
    return (unsigned)shard_bits(root, 6, 2);
}


static inline bool shard_root_doubles(uint64_t root) {
    return shard_root_phase(root) == SHARD_GROW || shard_root_phase(root) == SHARD_DRAIN;
}


static inline bool shard_root_stamped(uint64_t root) {
    return root >> 8 & 1;
}


static inline unsigned shard_root_body(uint64_t root) {
    return (unsigned)shard_bits(root, 9, 15);
}


static inline uint64_t shard_root_of_body(uint64_t root, unsigned body) {
    return (root & ~(shard_mask(15) << 9)) | (uint64_t)(body % SHARD_BODIES) << 9;
}


static inline uint64_t shard_root_stamp(uint64_t root) {
    return root >> 24;
}


/* Another state of the same body. */
static inline uint64_t shard_root_next(uint64_t root, unsigned d, unsigned phase, bool set, uint64_t stamp) {
    return shard_root_of_body(shard_root(d, phase, set, stamp), shard_root_body(root));
}


/* Grows with time: the states of a partition in order. The stamp never goes back, and whatever goes from a later state to
 * an earlier one (a shrink, or its end) has a later stamp: no root word comes twice. */
static inline uint64_t shard_root_order(uint64_t root) {
    static const unsigned steps[] = {[SHARD_GROW] = 1, [SHARD_DRAIN] = 2, [SHARD_STABLE] = 3, [SHARD_SHRINK] = 4};
    return shard_root_stamp(root) << 16 | shard_root_d(root) << 4 | steps[shard_root_phase(root)] << 1 |
           shard_root_stamped(root);
}


/* ---- Partition control block: words ---- */

enum {
    SHARD_PCB_ROOT = 0,
    SHARD_PCB_COUNT = 1, /* keys, FAA only, advisory */
    SHARD_PCB_BODY = 2,  /* of even, of odd number: the body, or the one that is prepared to be the next */
    SHARD_PCB_CLAIM = 4, /* which client prepares which doubling, advisory */
    SHARD_PCB_WORDS = 8,
};
enum { SHARD_PCB_KNOWN = SHARD_PCB_BODY + 2 }; /* words at its beginning that handles read together */

/* Words of a body. */
enum {
    SHARD_BODY_L2 = 0, /* of even, of odd generation: table word, 0 = none */
    SHARD_BODY_L3 = 2,
    SHARD_BODY_SEGMENT = 4, /* per segment: the segment, or an array of its extents */
    SHARD_BODY_PROGRESS =
        SHARD_BODY_SEGMENT + SHARD_VERSIONS, /* per version: cursors and done words of its sweep and drain */
    SHARD_BODY_WORDS = SHARD_BODY_PROGRESS + SHARD_VERSIONS + 4,
};
_Static_assert(SHARD_BODY_WORDS % 8 == 0, "whole lines");


/* The word of a body in the control block names its number, so that nobody takes another one for it. */
static inline uint64_t shard_body(far_addr addr, unsigned number) {
    return addr | (uint64_t)(number % SHARD_BODIES) << 48;
}


static inline far_addr shard_body_addr(uint64_t word, unsigned number) { /* 0: not of that number */
    return word >> 48 == number % SHARD_BODIES ? word & shard_mask(48) : 0;
}


static inline uint64_t shard_claim(unsigned version, unsigned client) {
    return (uint64_t)version << 32 | client;
}


static inline unsigned shard_claim_version(uint64_t claim) {
    return (unsigned)(claim >> 32);
}


static inline unsigned shard_claim_client(uint64_t claim) {
    return (unsigned)(claim & UINT32_MAX);
}


_Static_assert(SHARD_PCB_ROOT == 0 && SHARD_PCB_COUNT == 1, "read together");

/* A progress table: sweep cursor, drain cursor, then a done word per chunk of the sweep and one per chunk of the drain.
 */
enum { SHARD_PROGRESS_SWEEP, SHARD_PROGRESS_DRAIN, SHARD_PROGRESS_DONE };


/* The word of an L2 or L3 table names the generation, so that nobody takes the table of another one for his. */
static inline uint64_t shard_table(far_addr addr, unsigned generation) {
    assert(addr >> 48 == 0);
    return addr | (uint64_t)generation << 48;
}


static inline far_addr shard_table_addr(uint64_t word, unsigned generation) { /* 0: not of that generation */
    return word >> 48 == generation ? word & shard_mask(48) : 0;
}


/* Buckets of a chunk: the unit in which sweeps and drains are shared out. */
static inline uint64_t shard_chunk(uint64_t buckets) {
    uint64_t chunk = buckets / 32;
    return chunk > 512 ? 512 : chunk < 8 ? 8 : chunk;
}


static inline uint64_t shard_chunks(uint64_t buckets) {
    return (buckets + shard_chunk(buckets) - 1) / shard_chunk(buckets);
}


/* ---- Size classes of blocks: 64 128 192 256 384 512 768 1024 1536 ... ---- */

static inline uint64_t shard_class_bytes(unsigned class) {
    if (class < 4)
        return 64ull * (class + 1);
    return class % 2 ? 512ull << (class - 5) / 2 : 384ull << (class - 4) / 2;
}


static inline unsigned shard_class_of(uint64_t bytes) {
    unsigned class = 0;
    while (shard_class_bytes(class) < bytes)
        class ++;
    return class;
}


/* ---- P: entries and header of a level-1 bucket ----
 * V=1:  V[63] F[62] P[61] tag[60:47] class[46:42] node[41:34] offset/64[33:0]       F frozen by a split; P = parity of
 * the version
 * V=0:  0 UNINIT | EMPTY: F[62] 01[61:60] era[10:6] version[5:0] | TOMB: F[62] 10[61:60] version[5:0]
 * header: owner[63:50] op[49:48] version[47:42] fnew[41:26] fold[25:10] init[9]=1 era[8:4] overflowed[3:0]
 * era: which opening of the bucket at this version it is (shard_next_era).
 * overflowed: keys of the bucket at levels 2 and 3 of its own version; SHARD_OVERFLOWED_MANY: so many, or more. */

#define SHARD_V      (1ull << 63)
#define SHARD_FROZEN (1ull << 62)
#define SHARD_PARITY (1ull << 61)
enum { SHARD_TAG_BITS = 14, SHARD_TAG_STEP = 7 };


static inline bool shard_is_live(uint64_t word) {
    return word & SHARD_V;
}


static inline bool shard_is_frozen(uint64_t word) {
    return word & SHARD_FROZEN;
}


static inline uint64_t shard_empty(unsigned v) {
    return 1ull << 60 | v;
}


enum { SHARD_ERA_BITS = 5, SHARD_OVERFLOWED_MANY = 15 };


static inline uint64_t shard_empty_again(unsigned v, unsigned era) {
    return shard_empty(v) | (uint64_t)era << 6;
}


static inline unsigned shard_empty_era(uint64_t word) {
    return (unsigned)shard_bits(word, 6, SHARD_ERA_BITS);
}


static inline uint64_t shard_tomb(unsigned v) {
    return 1ull << 61 | v;
}


static inline bool shard_is_empty(uint64_t word) {
    return !shard_is_live(word) && shard_bits(word, 60, 2) == 1;
}


static inline bool shard_is_tomb(uint64_t word) {
    return !shard_is_live(word) && shard_bits(word, 60, 2) == 2;
}


static inline uint64_t shard_entry(unsigned v, uint64_t tag, unsigned class, far_addr addr) {
    assert(class < 1u << 5 && addr % 64 == 0);
    return SHARD_V | (v & 1 ? SHARD_PARITY : 0) | tag << 47 | (uint64_t) class << 42 |
           (uint64_t)far_addr_node(addr) << 34 | far_addr_offset(addr) >> 6;
}


static inline unsigned shard_entry_tag(uint64_t word) {
    return (unsigned)shard_bits(word, 47, SHARD_TAG_BITS);
}


static inline unsigned shard_entry_class(uint64_t word) {
    return (unsigned)shard_bits(word, 42, 5);
}


static inline far_addr shard_entry_addr(uint64_t word) {
    return far_addr_make((unsigned)shard_bits(word, 34, 8), shard_bits(word, 0, 34) << 6);
}


/* Class and address: what an entry points to, at whatever version, level and window of its tag. */
static inline uint64_t shard_entry_block(uint64_t word) {
    return word & shard_mask(47);
}


static inline bool shard_stamp_is(uint64_t word, unsigned v) {
    if (shard_is_live(word))
        return !!(word & SHARD_PARITY) == (v & 1);
    return word != 0 && shard_bits(word, 0, 6) == v;
}


/* The window slides by 7 bits every 7 versions: at least 8 bits of it discriminate, and the next split bit lies in it.
 */
static inline unsigned shard_tag_low(unsigned p, unsigned b, unsigned v) {
    return p + b + v / SHARD_TAG_STEP * SHARD_TAG_STEP;
}


static inline unsigned shard_tag(uint64_t h, unsigned p, unsigned b, unsigned v) {
    return (unsigned)shard_bits(h, shard_tag_low(p, b, v), SHARD_TAG_BITS);
}


/* Of an entry at version v-1: whether it leaves the bucket at version v. */
static inline bool shard_tag_changes(uint64_t word, unsigned v) {
    return shard_entry_tag(word) >> (v - 1) % SHARD_TAG_STEP & 1;
}


static inline unsigned shard_top_tag(uint64_t h) { /* of level 2 and 3 */
    return (unsigned)(h >> (64 - SHARD_TAG_BITS));
}


enum { SHARD_OP_NONE, SHARD_OP_SPLIT, SHARD_OP_OTHER };


static inline uint64_t shard_header(unsigned v, unsigned fnew, unsigned fold) {
    assert(v < 1u << 6 && fnew < 1u << SHARD_FILTER_BITS && fold < 1u << SHARD_FILTER_BITS);
    return (uint64_t)v << 42 | (uint64_t)fnew << 26 | (uint64_t)fold << 10 | 1 << 9;
}


static inline unsigned shard_header_v(uint64_t header) { /* also of H */
    return (unsigned)shard_bits(header, 42, 6);
}


static inline unsigned shard_header_fnew(uint64_t header) {
    return (unsigned)shard_bits(header, 26, 16);
}


static inline unsigned shard_header_fold(uint64_t header) {
    return (unsigned)shard_bits(header, 10, 16);
}


static inline unsigned shard_header_owner(uint64_t header) {
    return (unsigned)(header >> 50);
}


static inline unsigned shard_header_op(uint64_t header) {
    return (unsigned)shard_bits(header, 48, 2);
}


static inline uint64_t shard_header_unlocked(uint64_t header) {
    return header & shard_mask(48);
}


static inline uint64_t shard_header_locked(uint64_t header, unsigned owner, unsigned op) {
    return shard_header_unlocked(header) | (uint64_t)op << 48 | (uint64_t)owner << 50;
}


static inline unsigned shard_header_era(uint64_t header) {
    return (unsigned)shard_bits(header, 4, SHARD_ERA_BITS);
}


static inline uint64_t shard_header_of_era(uint64_t header, unsigned era) {
    return (header & ~(shard_mask(SHARD_ERA_BITS) << 4)) | (uint64_t)era << 4;
}


/* The era that begins when a bucket is opened again by an operation pinned at that epoch; 0: none may begin. Era 0 is that
 * of buckets which were never opened again; the others are five for each of six epochs, in turn. Who is pinned meets only
 * pins of three epochs, and no era begins after one of a later epoch: so that none comes back to a bucket under one pin.
 */
static inline unsigned shard_next_era(uint64_t header, uint64_t epoch) {
    enum { EPOCHS = 6, ERAS = 5 };
    _Static_assert(EPOCHS * ERAS < 1 << SHARD_ERA_BITS, "eras have numbers");
    unsigned now = shard_header_era(header), turn = (unsigned)(epoch % EPOCHS);
    if (now == 0)
        return 1 + turn * ERAS;
    unsigned later =
        ((now - 1) / ERAS + EPOCHS - turn) % EPOCHS; /* by so many epochs that era may be later than ours */
    if (later == 0)
        return now % ERAS ? now + 1 : 0;
    return later < 3 ? 0 : 1 + turn * ERAS;
}


static inline unsigned shard_header_overflowed(uint64_t header) {
    return (unsigned)shard_bits(header, 0, 4);
}


/* One more key of the bucket goes to level 2 or 3; fnew: its bit of the filter. */
static inline uint64_t shard_header_overflows(uint64_t header, unsigned fnew) {
    bool many = shard_header_overflowed(header) == SHARD_OVERFLOWED_MANY;
    return (header | (uint64_t)fnew << 26) + !many;
}


/* So many keys of the bucket left levels 2 and 3. With the last of them the filter forgets what it has gathered. */
static inline uint64_t shard_header_recovers(uint64_t header, unsigned keys) {
    unsigned there = shard_header_overflowed(header);
    if (keys == 0 || there == SHARD_OVERFLOWED_MANY || there < keys)
        return header;
    header -= keys;
    return there == keys ? header & ~(shard_mask(16) << 26) : header;
}


static inline unsigned shard_filter_bit(uint64_t h,
                                        unsigned bits) { /* by the top bits of the hash: no split uses them */
    return 1u << (h >> (bits - 4));
}


/* ---- I: slots of 16 bytes (value, kw), H = word 62, K = word 63 ----
 * kw, V=1:  V[63] P[62] c[61] gen[60:54] rem[53:0]       rem = h >> 10; level 2: of the hash of choice c
 * kw EMPTY: P[62] gen[60:54] mark[53]=1 version[5:0]     gen: one more at every insert into the slot
 * kw of level 2: free: only gen; BUSY: gen[60:54], bit 52, owner[13:0]: claimed by an insert that is under way
 * H: MOVING[63] version[47:42] fnew[41:26] fold[25:10] init[9]=1
 * K: 0 UNINIT, 1 FREE, else owner[63:50] task[49:42] */

#define SHARD_MOVING   (1ull << 63)
#define SHARD_I_PARITY (1ull << 62)
#define SHARD_I_CHOICE (1ull << 61)
#define SHARD_I_MARK   (1ull << 53)
#define SHARD_I_BUSY   (1ull << 52)
#define SHARD_K_FREE   1ull


static inline uint64_t shard_kw(unsigned v, bool choice, unsigned gen, uint64_t rem) {
    assert(rem >> SHARD_REM_BITS == 0);
    return SHARD_V | (v & 1 ? SHARD_I_PARITY : 0) | (choice ? SHARD_I_CHOICE : 0) | (uint64_t)(gen & 127) << 54 | rem;
}


static inline uint64_t shard_kw_empty(unsigned v, unsigned gen) {
    return (v & 1 ? SHARD_I_PARITY : 0) | (uint64_t)(gen & 127) << 54 | SHARD_I_MARK | v;
}


/* Level 2: a free word keeps the gen of the slot, and so does a BUSY one. */
static inline uint64_t shard_kw_free(unsigned gen) {
    return (uint64_t)(gen & 127) << 54;
}


static inline bool shard_kw_is_free(uint64_t kw) {
    return (kw & ~(127ull << 54)) == 0;
}


static inline uint64_t shard_kw_busy(unsigned owner, unsigned gen) {
    return SHARD_I_BUSY | shard_kw_free(gen) | owner;
}


static inline bool shard_kw_is_empty(uint64_t kw) {
    return !(kw & SHARD_V) && (kw & SHARD_I_MARK);
}


static inline bool shard_kw_is_busy(uint64_t kw) {
    return !(kw & (SHARD_V | SHARD_I_MARK)) && (kw & SHARD_I_BUSY);
}


static inline unsigned shard_kw_owner(uint64_t kw) {
    return (unsigned)shard_bits(kw, 0, 14);
}


static inline unsigned shard_kw_gen(uint64_t kw) {
    return (unsigned)shard_bits(kw, 54, 7);
}


static inline uint64_t shard_kw_rem(uint64_t kw) {
    return kw & shard_mask(54);
}


static inline bool shard_kw_choice(uint64_t kw) {
    return kw & SHARD_I_CHOICE;
}


static inline bool shard_kw_holds(uint64_t kw, uint64_t rem, bool choice) {
    return (kw & SHARD_V) && shard_kw_rem(kw) == rem && shard_kw_choice(kw) == choice;
}


static inline bool shard_kw_stamp_is(uint64_t kw, unsigned v) {
    if (kw == 0 || !!(kw & SHARD_I_PARITY) != (v & 1))
        return false;
    return (kw & SHARD_V) || shard_bits(kw, 0, 6) == v;
}


/* The hash from the remainder in a slot: the implied bits come from the place. */
static inline uint64_t shard_unquotient(uint64_t rem, uint64_t bucket, uint64_t partition, unsigned p,
                                        unsigned implied) {
    return rem << implied | ((bucket << p | partition) & shard_mask(implied));
}


static inline uint64_t shard_k(unsigned owner, unsigned task) {
    return (uint64_t)owner << 50 | (uint64_t)task << 42;
}


static inline unsigned shard_k_owner(uint64_t k) {
    return (unsigned)(k >> 50);
}


/* ---- L3 nodes ---- */

typedef struct shard_p_node { /* level 3 of P */
    uint64_t entry[SHARD_P_NODE_SLOTS];
    far_addr next;
} shard_p_node;

typedef struct shard_i_slot { /* a whole pair, at level 3 of I */
    uint64_t value, key, state;
} shard_i_slot;

/* state: live[0] busy[1] owner[15:2] gen[63:16]: one more at every insert. */
#define SHARD_STATE_LIVE 1ull
#define SHARD_STATE_BUSY 2ull


static inline uint64_t shard_state_word(uint64_t flag, unsigned owner, uint64_t gen) {
    return flag | (uint64_t)owner << 2 | gen << 16;
}


static inline bool shard_state_is_free(uint64_t state) {
    return !(state & (SHARD_STATE_LIVE | SHARD_STATE_BUSY));
}


static inline uint64_t shard_state_gen(uint64_t state) {
    return state >> 16;
}


static inline unsigned shard_state_owner(uint64_t state) {
    return (unsigned)shard_bits(state, 2, 14);
}


typedef struct shard_i_node {
    shard_i_slot slot[SHARD_I_NODE_SLOTS];
    far_addr next;
} shard_i_node;

_Static_assert(sizeof(shard_p_node) == 64, "one line");
_Static_assert(sizeof(shard_i_node) == 128, "two lines");
_Static_assert(offsetof(shard_p_node, next) == sizeof(shard_p_node) - 8, "the last word");
_Static_assert(offsetof(shard_i_node, next) == sizeof(shard_i_node) - 8, "the last word");


/* ---- KV block of P: immutable once its entry is published ---- */

typedef struct shard_block {
    uint64_t h;
    uint16_t key_length, flags;
    uint32_t value_length;
    uint8_t bytes[]; /* key, then value */
} shard_block;
_Static_assert(sizeof(shard_block) == 16, "the head of a block");


/* What create leaves for everybody: then the addresses of the control blocks, in order. Nothing of it ever changes. */
typedef struct shard_descriptor {
    uint64_t magic;
    uint32_t p, b;
    uint64_t check; /* hash of p, b and the addresses: with another p or b most keys would not be found, and swept */
} shard_descriptor;
#define SHARD_MAGIC     0x3330445241485346ull
#define SHARD_MAGIC_OLD 0x3230445241485346ull /* partitions without bodies */
enum { SHARD_P_MAX = 16, SHARD_B_MAX = 16 };

#endif
