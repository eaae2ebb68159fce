/* The words of a shard index in far memory: their pictures, how they are packed, and the pure arithmetic of versions,
 * buckets and tags. Nothing here sends a verb.
 *
 * An index has 2^p partitions, chosen by the low p bits of the key's hash h. All tables of a partition are stored on
 * one memory node. A partition at version d (it has doubled d times) has 2^(b+d) level-1 buckets of 512 bytes. Segment
 * 0 contains buckets [0, 2^b), and segment j contains buckets [2^(b+j-1), 2^(b+j)). A doubling therefore adds one
 * segment. Bucket c of the new segment is the child of bucket c - 2^(b+j-1), which is called its parent.
 *
 * A zero word is UNINIT. New segments are zeroed, and no word that a split writes is zero, so UNINIT means that the
 * split has not yet written this word.
 *
 * Comments that begin with "P:" apply only to the pointer layout, in which slots name pair blocks. Comments that
 * begin with "I:" apply only to the inline layout, in which slots contain pairs of 8 and 8 bytes. */
#ifndef FAR_INDEX_SHARD_LAYOUT_H
#define FAR_INDEX_SHARD_LAYOUT_H

#include "index/index.h"

#include <assert.h>

enum {
    SHARD_WORDS = 64, /* words in a level-1 bucket */
    SHARD_BUCKET_BYTES = 512,
    SHARD_LINE = 8,     /* words in a cache line */
    SHARD_P_SLOTS = 63, /* entries in a bucket of the pointer layout; word 63 is the header */
    SHARD_P_HEADER = 63,
    /* pairs (value, key word) in a bucket of the inline layout; words 62 and 63 are the header H and the lock K */
    SHARD_I_SLOTS = 31,
    SHARD_I_HALF = 16, /* slots of the first half of a bucket; the other slots are the second half */
    SHARD_I_H = 62,
    SHARD_I_K = 63,
    SHARD_L2_BYTES = 64,
    SHARD_L2_P_SLOTS = 8,
    SHARD_L2_I_SLOTS = 4,
    SHARD_PER_HEAD = 16, /* number of level-2 buckets that share one level-3 chain */
    SHARD_P_NODE_SLOTS = 7,
    SHARD_I_NODE_SLOTS = 5,
    SHARD_VERSIONS = 48, /* number of possible versions, so a partition can double 47 times */
    /* inline layout: number of hash bits that a slot need not store, because they follow from the slot's partition and
     * bucket */
    SHARD_IMPLIED = 10,
    SHARD_REM_BITS = 54,
    SHARD_FILTER_BITS = 16,
};


static inline uint64_t shard_bits(uint64_t word, unsigned low, unsigned count) {
    return word >> low & ((1ull << count) - 1);
}


/* A keyed bijection on the low `bits` bits (2 to 64). shard_unmix inverts each round: an xor with a right shift by at
 * least half of the width is its own inverse, and multiplication by an odd number has an inverse modulo 2^bits. */

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


/* modulo 2^64, by Newton iteration: each step doubles the number of correct bits */
static inline uint64_t shard_inverse(uint64_t odd) {
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


/* Computes the hash that a key uses at another level. The low p bits stay the same, so the key stays in its partition;
 * the other bits are mixed with `key`. */
static inline uint64_t shard_rehash(uint64_t h, uint64_t key, unsigned p, unsigned bits) {
    return shard_mix(h >> p, key, bits - p) << p | (h & shard_mask(p));
}


static inline uint64_t shard_unrehash(uint64_t h, uint64_t key, unsigned p, unsigned bits) {
    return shard_unmix(h >> p, key, bits - p) << p | (h & shard_mask(p));
}


static inline uint64_t shard_bucket(uint64_t h, unsigned p, unsigned b, unsigned v) {
    return h >> p & shard_mask(b + v);
}


/* Returns true if a key with hash h leaves its bucket for the child bucket when the partition goes from version v-1 to
 * v. If v comes from a corrupt word and exceeds the bits of the hash, the result is arbitrary but defined. */
static inline bool shard_key_moves(uint64_t h, unsigned p, unsigned b, unsigned v) {
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


/* Level 3 of a generation (the level-2 and level-3 tables that belong to one version of the partition) has one chain
 * head for every 16 level-2 buckets, but at least one. */
static inline uint64_t shard_head_count(unsigned b, unsigned generation) {
    return b + generation > 4 ? 1ull << (b + generation - 4) : 1;
}


/* ---- Root word of a partition ----
 *
 * The root word contains the version d, the phase, the number of the directory in use, and a stamp: every client that
 * is pinned at a later epoch than the stamp knows of this state of the partition, or of a later state.
 *
 *     d: 6 bits | phase: 2 << 6 | stamp_set: 1 << 8 | directory number: 15 << 9 | stamp: 40 << 24
 *
 * The directory of a partition is an object that contains the addresses of its segments, overflow tables and progress
 * tables. When an empty partition shrinks, it gets a new directory with the next number. */

enum { SHARD_STABLE, SHARD_GROW, SHARD_DRAIN, SHARD_SHRINK };
enum { SHARD_DIRECTORIES = 1 << 15 }; /* directory numbers are stored modulo this number */


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


static inline unsigned shard_root_directory(uint64_t root) {
    return (unsigned)shard_bits(root, 9, 15);
}


static inline uint64_t shard_root_with_directory(uint64_t root, unsigned directory) {
    return (root & ~(shard_mask(15) << 9)) | (uint64_t)(directory % SHARD_DIRECTORIES) << 9;
}


static inline uint64_t shard_root_stamp(uint64_t root) {
    return root >> 24;
}


/* Returns the root word of another state of the partition, with the same directory. */
static inline uint64_t shard_root_next(uint64_t root, unsigned d, unsigned phase, bool set, uint64_t stamp) {
    return shard_root_with_directory(shard_root(d, phase, set, stamp), shard_root_directory(root));
}


/* Returns a number that orders the root words of a partition in time. This works because the stamp never decreases, and
 * because every step that lowers the version or the phase (the cancelling or the end of a shrink) raises the stamp. It
 * follows that no root word ever occurs twice. */
static inline uint64_t shard_root_order(uint64_t root) {
    static const unsigned steps[] = {[SHARD_GROW] = 1, [SHARD_DRAIN] = 2, [SHARD_STABLE] = 3, [SHARD_SHRINK] = 4};
    return shard_root_stamp(root) << 16 | shard_root_d(root) << 4 | steps[shard_root_phase(root)] << 1 |
           shard_root_stamped(root);
}


enum {
    SHARD_PCB_ROOT = 0,
    /* number of keys; changed by FAA, and corrected by CAS; only an approximation, because changes of failed clients
     * are missing */
    SHARD_PCB_COUNT = 1,
    /* two words, for even and odd directory numbers: one names the directory in use, the other a directory that is
     * prepared to be the next */
    SHARD_PCB_DIRECTORY = 2,
    /* claim word: the client that prepares a doubling, and the version of that doubling; only a hint, which
     * prevents no client from preparing one */
    SHARD_PCB_CLAIM = 4,
    SHARD_PCB_WORDS = 8,
};
/* number of leading words of the control block that a handle reads together */
enum { SHARD_PCB_READ_WORDS = SHARD_PCB_DIRECTORY + 2 };

/* Words of a directory. */
enum {
    /* table words of the even and the odd generation: address of the table, or of the array of its extents, and the
     * generation; 0 means no table */
    SHARD_DIR_L2 = 0,
    SHARD_DIR_L3 = 2,
    SHARD_DIR_SEGMENT = 4, /* for each segment: address of the segment, or of the array of its extents */
    /* for each version: address of the progress table, which has the cursors and done words of the sweep and the
     * drain */
    SHARD_DIR_PROGRESS = SHARD_DIR_SEGMENT + SHARD_VERSIONS,
    SHARD_DIR_WORDS = SHARD_DIR_PROGRESS + SHARD_VERSIONS + 4,
};
_Static_assert(SHARD_DIR_WORDS % 8 == 0, "whole lines");


/* Returns the word that names a directory. This word contains the number of the directory as well as its address, so
 * that a client cannot mistake another directory for the directory that its root word names. */
static inline uint64_t shard_directory_word(far_addr addr, unsigned number) {
    return addr | (uint64_t)(number % SHARD_DIRECTORIES) << 48;
}


/* Returns the address of the directory, or 0 if the word has another directory number. */
static inline far_addr shard_directory_addr(uint64_t word, unsigned number) {
    return word >> 48 == number % SHARD_DIRECTORIES ? word & shard_mask(48) : 0;
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

/* Layout of a progress table: the sweep cursor, the drain cursor, one done word for each chunk of the sweep, and one
 * done word for each chunk of the drain. */
enum { SHARD_PROGRESS_SWEEP, SHARD_PROGRESS_DRAIN, SHARD_PROGRESS_DONE };


/* Returns the word that names a level-2 or level-3 table. This word contains the generation of the table, so that a
 * client cannot mistake the table of another generation for the table that it needs. */
static inline uint64_t shard_table_word(far_addr addr, unsigned generation) {
    assert(addr >> 48 == 0);
    return addr | (uint64_t)generation << 48;
}


/* Returns the address of the table, or 0 if the word has another generation. */
static inline far_addr shard_table_addr(uint64_t word, unsigned generation) {
    return word >> 48 == generation ? word & shard_mask(48) : 0;
}


/* Returns the number of buckets in a chunk. A chunk is the unit in which clients share the work of sweeps and drains.
 * There are at most 65536 chunks, so that a progress table has little more than 1 MiB. */
static inline uint64_t shard_chunk_size(uint64_t buckets) {
    uint64_t chunk = buckets / 32, least = buckets / 65536;
    return chunk < 8 ? 8 : chunk <= 512 ? chunk : least < 512 ? 512 : least;
}


static inline uint64_t shard_chunk_count(uint64_t buckets) {
    return (buckets + shard_chunk_size(buckets) - 1) / shard_chunk_size(buckets);
}


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
 *
 * A live entry (V=1):
 *
 *     V[63] F[62] P[61] tag[60:47] class[46:42] node[41:34] offset/64[33:0]
 *
 * F is set while a split freezes the word. P is the parity of the word's version. The class is the size class of the
 * pair block.
 *
 * An entry that is not live (V=0) is one of:
 *
 *     UNINIT  0
 *     EMPTY   F[62] 01[61:60] cycle[10:6] version[5:0]
 *     TOMB    F[62] 10[61:60] version[5:0]
 *
 * Header:
 *
 *     owner[63:50] op[49:48] version[47:42] fnew[41:26] fold[25:10] init[9]=1 cycle[8:4] overflowed[3:0]
 *
 * fnew and fold are filters: they have the bit of each key of this bucket that may be at levels 2 and 3, of the
 * generation equal to the header's version (fnew) or one less (fold).
 *
 * cycle identifies the current use of the slots: it is 0 when the bucket gets its version, and another number each time
 * the bucket is reopened. Within a cycle a slot goes from EMPTY to live to TOMB and never back to EMPTY
 * (pointer/write.c).
 *
 * overflowed counts the keys of the bucket at levels 2 and 3 of its own version. The value SHARD_OVERFLOWED_MANY means
 * that many keys or more. */

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


enum { SHARD_CYCLE_BITS = 5, SHARD_OVERFLOWED_MANY = 15 };


static inline uint64_t shard_empty_in_cycle(unsigned v, unsigned cycle) {
    return shard_empty(v) | (uint64_t)cycle << 6;
}


static inline unsigned shard_empty_cycle(uint64_t word) {
    return (unsigned)shard_bits(word, 6, SHARD_CYCLE_BITS);
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


/* Returns the class and address of an entry, which identify its pair block. They do not depend on the version, the
 * level or the tag of the entry. */
static inline uint64_t shard_entry_block(uint64_t word) {
    return word & shard_mask(47);
}


static inline bool shard_stamp_is(uint64_t word, unsigned v) {
    if (shard_is_live(word))
        return !!(word & SHARD_PARITY) == (v & 1);
    return word != 0 && shard_bits(word, 0, 6) == v;
}


/* Returns the lowest hash bit of the 14-bit tag at version v. The tag is a window of hash bits, which moves up by 7
 * bits every 7 versions. Therefore at least 8 bits of the tag distinguish keys of one bucket, and the bit that decides
 * the next split is always in the tag. */
static inline unsigned shard_tag_low(unsigned p, unsigned b, unsigned v) {
    return p + b + v / SHARD_TAG_STEP * SHARD_TAG_STEP;
}


static inline unsigned shard_tag(uint64_t h, unsigned p, unsigned b, unsigned v) {
    return (unsigned)shard_bits(h, shard_tag_low(p, b, v), SHARD_TAG_BITS);
}


/* Returns true if an entry of version v-1 leaves its bucket for the child at version v. */
static inline bool shard_tag_moves(uint64_t word, unsigned v) {
    return shard_entry_tag(word) >> (v - 1) % SHARD_TAG_STEP & 1;
}


static inline unsigned shard_top_tag(uint64_t h) { /* Returns the tag of an entry at levels 2 and 3. */
    return (unsigned)(h >> (64 - SHARD_TAG_BITS));
}


enum { SHARD_OP_NONE, SHARD_OP_SPLIT, SHARD_OP_OTHER };


static inline uint64_t shard_header(unsigned v, unsigned fnew, unsigned fold) {
    assert(v < 1u << 6 && fnew < 1u << SHARD_FILTER_BITS && fold < 1u << SHARD_FILTER_BITS);
    return (uint64_t)v << 42 | (uint64_t)fnew << 26 | (uint64_t)fold << 10 | 1 << 9;
}


/* Returns the version in a header; also works on the header H of the inline layout. */
static inline unsigned shard_header_v(uint64_t header) {
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


static inline unsigned shard_header_cycle(uint64_t header) {
    return (unsigned)shard_bits(header, 4, SHARD_CYCLE_BITS);
}


static inline uint64_t shard_header_in_cycle(uint64_t header, unsigned cycle) {
    return (header & ~(shard_mask(SHARD_CYCLE_BITS) << 4)) | (uint64_t)cycle << 4;
}


/* Returns the cycle that begins when an operation pinned at `epoch` reopens the bucket, or 0 if no cycle may begin now.
 * The picture above defines cycle.
 *
 * Cycle 0 belongs to buckets that were never reopened at their version. The numbers 1 to 30 form six groups of five,
 * and an operation uses the group with number (epoch of its pin) % 6. An unlocked insert relies on a cycle number not
 * being used again while the insert is pinned. The reason is as follows. While a client is pinned, the other clients
 * are pinned at no more than three different epochs. An operation of an earlier epoch starts no cycle after an
 * operation of a later epoch. So the groups cannot wrap around under one pin. */
static inline unsigned shard_next_cycle(uint64_t header, uint64_t epoch) {
    enum { EPOCHS = 6, CYCLES = 5 };
    _Static_assert(EPOCHS * CYCLES < 1 << SHARD_CYCLE_BITS, "every cycle has a number");
    unsigned now = shard_header_cycle(header), turn = (unsigned)(epoch % EPOCHS);
    if (now == 0)
        return 1 + turn * CYCLES;
    /* number of epochs (modulo 6) by which the epoch of the current cycle is later than `epoch` */
    unsigned later = ((now - 1) / CYCLES + EPOCHS - turn) % EPOCHS;
    if (later == 0)
        return now % CYCLES ? now + 1 : 0;
    return later < 3 ? 0 : 1 + turn * CYCLES;
}


static inline unsigned shard_header_overflowed(uint64_t header) {
    return (unsigned)shard_bits(header, 0, 4);
}


/* Returns the header after one more key of the bucket was placed at level 2 or 3. `fnew` is the filter bit of the key.
 */
static inline uint64_t shard_header_add_overflowed(uint64_t header, unsigned fnew) {
    bool many = shard_header_overflowed(header) == SHARD_OVERFLOWED_MANY;
    return (header | (uint64_t)fnew << 26) + !many;
}


/* Returns the header after `keys` keys of the bucket left levels 2 and 3. When the count reaches zero, the filter fnew
 * is cleared. A saturated count stays as it is, because the true number is not known. */
static inline uint64_t shard_header_remove_overflowed(uint64_t header, unsigned keys) {
    unsigned there = shard_header_overflowed(header);
    if (keys == 0 || there == SHARD_OVERFLOWED_MANY || there < keys)
        return header;
    header -= keys;
    return there == keys ? header & ~(shard_mask(16) << 26) : header;
}


/* Returns the filter bit of a key with hash h, which has `bits` bits. The result depends only on the top bits of the
 * hash, which no split uses. */
static inline unsigned shard_filter_bit(uint64_t h, unsigned bits) {
    return 1u << (h >> (bits - 4));
}


/* ---- Inline layout (I): 31 slots of 16 bytes (value, kw), header H in word 62, lock K in word 63 ----
 *
 * kw, the key word of a slot, contains the key's remainder:
 *
 *     live:   V[63] P[62] c[61] gen[60:54] rem[53:0]      level 1: LEAVING[61] instead of c
 *     EMPTY:  P[62] gen[60:54] mark[53]=1 version[5:0]
 *     level 2, free:  gen[60:54] only
 *     level 2, BUSY:  gen[60:54] bit 52, owner[13:0]
 *
 * V is set in a live word, and P is the parity of the word's version. c is the number of the choice: each key has two
 * possible buckets at level 2, choice 0 and choice 1. rem = h >> 10; at level 2, h is the hash of choice c. gen
 * increases by one at every insert into the slot. BUSY means that an insert in progress has claimed the slot. LEAVING
 * means that a split of the bucket has begun, which moves the pair to the child.
 *
 *     H:  MOVING[63] version[47:42] fnew[41:26] fold[25:10] init[9]=1
 *     K:  0 UNINIT, 1 FREE, else owner[63:50] task[49:42]
 *
 * MOVING is set while a split of the bucket is in progress. */

#define SHARD_MOVING    (1ull << 63)
#define SHARD_I_PARITY  (1ull << 62)
#define SHARD_I_CHOICE  (1ull << 61)
#define SHARD_I_LEAVING (1ull << 61)
#define SHARD_I_MARK    (1ull << 53)
#define SHARD_I_BUSY    (1ull << 52)
#define SHARD_K_FREE    1ull


static inline uint64_t shard_kw(unsigned v, bool choice, unsigned gen, uint64_t rem) {
    assert(rem >> SHARD_REM_BITS == 0);
    return SHARD_V | (v & 1 ? SHARD_I_PARITY : 0) | (choice ? SHARD_I_CHOICE : 0) | (uint64_t)(gen & 127) << 54 | rem;
}


static inline uint64_t shard_kw_empty(unsigned v, unsigned gen) {
    return (v & 1 ? SHARD_I_PARITY : 0) | (uint64_t)(gen & 127) << 54 | SHARD_I_MARK | v;
}


/* At level 2, the key words of free and BUSY slots keep the gen of the slot. */
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


static inline bool shard_kw_matches(uint64_t kw, uint64_t rem, bool choice) {
    return (kw & SHARD_V) && shard_kw_rem(kw) == rem && shard_kw_choice(kw) == choice;
}


static inline bool shard_kw_stamp_is(uint64_t kw, unsigned v) {
    if (kw == 0 || !!(kw & SHARD_I_PARITY) != (v & 1))
        return false;
    return (kw & SHARD_V) || shard_bits(kw, 0, 6) == v;
}


/* Returns the hash of the key in a slot. `rem` is the remainder that the slot contains. The bucket and the partition
 * supply the other bits of the hash. */
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


typedef struct shard_p_node { /* node of a level-3 chain in the pointer layout */
    uint64_t entry[SHARD_P_NODE_SLOTS];
    far_addr next;
} shard_p_node;

typedef struct shard_i_slot { /* a pair with its whole key, at level 3 of the inline layout */
    uint64_t value, key, state;
} shard_i_slot;

/* Word `state` of a level-3 slot: live[0] busy[1] owner[15:2] gen[63:16]. gen increases by one at every insert into the
 * slot. */
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


typedef struct shard_block {
    uint64_t h;
    uint16_t key_length, flags;
    uint32_t value_length;
    uint8_t bytes[]; /* the key, followed by the value */
} shard_block;
_Static_assert(sizeof(shard_block) == 16, "the head of a pair block");


/* The descriptor of the index, written when the index is created and constant afterwards. The addresses of the
 * partitions' control blocks follow the descriptor, in the order of the partition numbers. */
typedef struct shard_descriptor {
    uint64_t magic;
    uint32_t p, b;
    /* Hash of p, b and the addresses, to detect damage: with a wrong p or b most keys would not be found, and a
     * collection would free their memory. */
    uint64_t check;
} shard_descriptor;
/* "FSHARD" and two digits of the format's number: 02 had no directories, and in 03 a split did not mark the pairs that
 * it moves (LEAVING) */
#define SHARD_MAGIC 0x3430445241485346ull
enum { SHARD_P_MAX = 16, SHARD_B_MAX = 16 };

#endif
