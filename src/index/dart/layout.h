/* The words and objects of DART in far memory, and functions that encode and decode them. README.md shows them in a
 * picture. All words are little-endian and 8-byte aligned. After an object was published, its words are changed only by
 * atomic verbs.
 *
 *     granule g     a far address / 16: 44 bits; 0 = none
 *     symbol        of key K at depth d: byte K[d], or END (256) if d = len(K). END sorts before every byte
 *     tree slot     sym 8 << 56 | len 8 << 48 | class 3 << 45 | F << 44 | g 44
 *                     inner child: class 1..6 and the top bit of len encode one of 12 node types; the other bits of
 *                                  len are the skip: depth of the child = depth of the node + 1 + skip
 *                     leaf child:  len = size code of the leaf; class 7, or 0 if the leaf's key ends at this node (END)
 *                     EMPTY: no bit is set except perhaps F. TOMB (a deleted child): a leaf word with g = 0, len = 1
 *                     F (frozen): the word never changes again
 *     inner node    header: u16 {depth 12 | type 4 << 12}, full prefix, zeros up to a multiple of 8; then the slots
 *     leaf          u64 {klen 16 | vlen 32 << 16 | freq 16 << 48}, key, value
 *     descriptor    dart_super, one per index
 *     skip table    see the end of this file
 *
 * The geometry of a node depends on the bucket size B (in slots, a power of two from 8 to 64), which is fixed when the
 * index is created, and on the size of its header, which depends on its depth. A type of capacity c <= B has one bucket
 * of c - 1 slots, or of c slots if the last granule of the object has room for one more. A larger type has c / B
 * buckets (rounded up) of B slots. N256 has 257 slots, which are addressed by position: byte b is in slot b, and END in
 * slot 256. */
#ifndef FAR_INDEX_DART_LAYOUT_H
#define FAR_INDEX_DART_LAYOUT_H

#include "index/index.h"

enum {
    DART_TYPE_SUPER,
    DART_TYPE_NODE,
    DART_TYPE_LEAF,
    DART_TYPE_LOCKS,
    DART_TYPE_EST_DIRECTORY,
    DART_TYPE_EST_SEGMENT,
    DART_TYPE_LIST,
    DART_TYPES
};

/* Number of additional epochs for which retired nodes stay unchanged before their memory is reused. It extends, by the
 * same number of epochs, the time in which a handle may use its cached addresses of nodes (tag rule in
 * skiptable/cache_express.c). */
#define DART_EXTRA_EPOCHS   12
/* additional epochs for retired leaves; fewer than for nodes, because every update retires a leaf (cache_slots.c) */
#define DART_LEAF_EPOCHS    3
/* additional epochs for retired segments of the skip table, which are few and change rarely */
#define DART_SEGMENT_EPOCHS 12

typedef enum {
    DART_END_LEAF,
    DART_N4,
    DART_N8,
    DART_N16,
    DART_N32,
    DART_N48,
    DART_N64,
    DART_N96,
    DART_N144,
    DART_N160,
    DART_N192,
    DART_N256,
    DART_LEAF
} dart_node_type;

_Static_assert(DART_N256 - DART_N4 < 12, "a slot can encode 12 inner types");

#define DART_SYMBOL_END     256u
#define DART_KEY_MAX        4095u
#define DART_SKIP_MAX       127u
#define DART_NODE_SLOTS_MAX 257u
/* bytes of the first READ of a leaf with size code 255; enough for the leaf's header and every possible key */
#define DART_CHUNK_READ     4104u
#define DART_SIZE_CODE_LONG 255u
#define DART_LEAF_HEADER    8u

#define DART_FROZEN       (1ull << 44)
#define DART_GRANULE_MASK ((1ull << 44) - 1)


/* ---- Tree slots ---- */

static inline uint64_t dart_granule(far_addr addr) {
    return addr / FAR_GRANULE;
}


static inline far_addr dart_word_addr(uint64_t word) {
    return (word & DART_GRANULE_MASK) * FAR_GRANULE;
}


#define DART_CLASS_LEAF   7u
#define DART_INNER_GROUPS 6u /* the classes of inner children are 1..6 */


static inline uint64_t dart_word(unsigned symbol, unsigned len, dart_node_type type, far_addr addr) {
    unsigned inner = (unsigned)type - DART_N4, class = type == DART_END_LEAF ? 0 : DART_CLASS_LEAF;
    if (type != DART_END_LEAF && type != DART_LEAF) {
        class = 1 + inner % DART_INNER_GROUPS;
        len |= inner / DART_INNER_GROUPS << 7;
    }
    return (uint64_t)(symbol & 0xff) << 56 | (uint64_t)len << 48 | (uint64_t) class << 45 | dart_granule(addr);
}


static inline unsigned dart_word_class(uint64_t word) {
    return (unsigned)(word >> 45) & 7;
}


static inline bool dart_class_is_inner(unsigned class) {
    return class != 0 && class != DART_CLASS_LEAF;
}


/* Returns the field len of a slot word: the skip of an inner child, or the size code of a leaf. */
static inline unsigned dart_word_len(uint64_t word) {
    return (unsigned)(word >> 48) & (dart_class_is_inner(dart_word_class(word)) ? DART_SKIP_MAX : 0xff);
}


static inline unsigned dart_leaf_code(uint64_t word) { /* returns the size code of a leaf */
    return (unsigned)(word >> 48) & 0xff;
}


static inline dart_node_type dart_word_type(uint64_t word) {
    unsigned class = dart_word_class(word), upper = (unsigned)(word >> 55) & 1;
    if (!dart_class_is_inner(class))
        return class == 0 ? DART_END_LEAF : DART_LEAF;
    unsigned type = DART_N4 + class - 1 + upper * DART_INNER_GROUPS;
    /* The type is invalid. N256 is safe, because the header of the node will not match it. */
    return type < DART_N256 ? (dart_node_type)type : DART_N256;
}


static inline unsigned dart_word_symbol(uint64_t word) {
    return dart_word_class(word) == 0 ? DART_SYMBOL_END : (unsigned)(word >> 56);
}


static inline bool dart_is_frozen(uint64_t word) {
    return word & DART_FROZEN;
}


static inline uint64_t dart_thawed(uint64_t word) {
    return word & ~DART_FROZEN;
}


static inline bool dart_is_empty(uint64_t word) {
    return dart_thawed(word) == 0;
}


static inline bool dart_is_tomb(uint64_t word) {
    return !dart_is_empty(word) && (word & DART_GRANULE_MASK) == 0;
}


static inline bool dart_is_child(uint64_t word) {
    return (word & DART_GRANULE_MASK) != 0;
}


static inline bool dart_is_leaf(uint64_t word) {
    return dart_is_child(word) && !dart_class_is_inner(dart_word_class(word));
}


static inline bool dart_is_inner(uint64_t word) {
    return dart_is_child(word) && dart_class_is_inner(dart_word_class(word));
}


static inline uint64_t dart_leaf_word(unsigned symbol, unsigned code, far_addr addr) {
    return dart_word(symbol, code, symbol == DART_SYMBOL_END ? DART_END_LEAF : DART_LEAF, addr);
}


static inline uint64_t dart_tomb(unsigned symbol) {
    return dart_leaf_word(symbol, 1, 0);
}


/* Converts a child's word for a slot of another symbol, in a node of another depth. A leaf keeps its size code; an
 * inner child gets a new skip. */
static inline uint64_t dart_word_moved(uint64_t word, unsigned symbol, unsigned skip) {
    far_addr addr = dart_word_addr(word);
    return dart_is_leaf(word) ? dart_leaf_word(symbol, dart_word_len(word), addr)
                              : dart_word(symbol, skip, dart_word_type(word), addr);
}


/* ---- Symbols ---- */

static inline unsigned dart_symbol(far_bytes key, unsigned depth) {
    return depth < key.length ? ((const uint8_t *)key.data)[depth] : DART_SYMBOL_END;
}


/* Rank of a symbol in key order: END is first. */
static inline unsigned dart_symbol_rank(unsigned symbol) {
    return symbol == DART_SYMBOL_END ? 0 : symbol + 1;
}


/* ---- Inner nodes ---- */

typedef struct dart_header {
    uint16_t word;
    uint8_t prefix[];
} dart_header;


static inline unsigned dart_header_bytes(unsigned depth) {
    return (2 + depth + 7) / 8 * 8;
}


_Static_assert(DART_N256 < 16, "a header can encode every type");


static inline uint16_t dart_header_word(unsigned depth, dart_node_type type) {
    return (uint16_t)(depth | (unsigned)type << 12);
}


static inline unsigned dart_header_depth(const dart_header *header) {
    return header->word & 0xfff;
}


static inline bool dart_header_has_type(const dart_header *header, dart_node_type type) {
    return header->word >> 12 == (unsigned)type;
}


/* Returns true if a header is valid; for nodes other than the root. */
static inline bool dart_header_is_sound(const dart_header *header) {
    unsigned type = header->word >> 12;
    return dart_header_depth(header) > 0 && type >= DART_N4 && type <= DART_N256;
}


static inline unsigned dart_capacity(dart_node_type type) {
    static const uint16_t capacities[] = {
        [DART_N4] = 4,   [DART_N8] = 8,     [DART_N16] = 16,   [DART_N32] = 32,   [DART_N48] = 48,   [DART_N64] = 64,
        [DART_N96] = 96, [DART_N144] = 144, [DART_N160] = 160, [DART_N192] = 192, [DART_N256] = 256, [DART_LEAF] = 0};
    return capacities[type];
}


static inline unsigned dart_buckets(dart_node_type type, unsigned bucket) {
    return type == DART_N256 || dart_capacity(type) <= bucket ? 1 : (dart_capacity(type) + bucket - 1) / bucket;
}


/* Number of slots in a bucket; for N256, the number of all slots. */
static inline unsigned dart_bucket_slots(dart_node_type type, unsigned depth, unsigned bucket) {
    if (type == DART_N256)
        return DART_NODE_SLOTS_MAX;
    /* true if the last granule of the object has room for one more slot */
    bool room = dart_header_bytes(depth) % FAR_GRANULE == 0;
    return dart_capacity(type) <= bucket ? dart_capacity(type) - 1 + room : bucket;
}


static inline unsigned dart_node_slots(dart_node_type type, unsigned depth, unsigned bucket) {
    if (dart_capacity(type) <= bucket) /* one bucket */
        return dart_bucket_slots(type, depth, bucket);
    return dart_buckets(type, bucket) * dart_bucket_slots(type, depth, bucket);
}


static inline unsigned dart_node_bytes(dart_node_type type, unsigned depth, unsigned bucket) {
    return dart_header_bytes(depth) + 8 * dart_node_slots(type, depth, bucket);
}


static inline unsigned dart_bucket_of(unsigned symbol, unsigned buckets) {
    return symbol == DART_SYMBOL_END ? 0 : (symbol ^ symbol >> 4) % buckets;
}


/* ---- Leaves ---- */

static inline uint64_t dart_code_bytes(unsigned code) {
    return code < 32 ? 16ull * code : (32ull + (code - 32) % 32) * 16 << (code - 32) / 32;
}


/* Returns the smallest code whose size is at least `bytes`, or DART_SIZE_CODE_LONG if none is. */
static inline unsigned dart_size_code(uint64_t bytes) {
    unsigned low = 1, high = DART_SIZE_CODE_LONG;
    while (low < high) {
        unsigned middle = (low + high) / 2;
        if (dart_code_bytes(middle) >= bytes)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}


static inline uint64_t dart_leaf_header(uint64_t klen, uint64_t vlen) {
    return klen | vlen << 16;
}


static inline unsigned dart_leaf_klen(uint64_t header) {
    return header & 0xffff;
}


static inline uint32_t dart_leaf_vlen(uint64_t header) {
    return (uint32_t)(header >> 16);
}


static inline uint64_t dart_leaf_used(uint64_t header) {
    return DART_LEAF_HEADER + (uint64_t)dart_leaf_klen(header) + dart_leaf_vlen(header);
}


/* Bytes of a leaf's object: determined by its size code, or, if the code is DART_SIZE_CODE_LONG, by its header. */
static inline uint64_t dart_leaf_bytes(unsigned code, uint64_t header) {
    return code < DART_SIZE_CODE_LONG ? dart_code_bytes(code) : (dart_leaf_used(header) + 15) / 16 * 16;
}


/* ---- The descriptor of an index ---- */

#define DART_MAGIC 0x34747261647261ull
/* Magic of indexes that were created when the directory of the skip table could not have tables yet. Such an index gets
 * no tables now either, because a program of that version may have it open. */
#define DART_MAGIC_OLD   0x33747261647261ull
#define DART_STRIPES_MAX 16u   /* maximal number of memory nodes over which the directory is striped */
#define DART_LOCKS       4096u /* number of lock words, with the option lock_free=0 */

typedef struct dart_super {
    uint64_t magic;
    uint32_t bucket, directory_bits; /* bucket: slots per bucket, B; the directory has 2^directory_bits words */
    uint64_t hash_seed;
    uint64_t root;  /* address of the root, an N256 of depth 0 that is never replaced */
    uint64_t locks; /* address of the lock words, with the option lock_free=0; else 0 */
    /* addresses of the directory's stripes: directory word i is in stripe i % (number of stripes); 0: no skip table */
    uint64_t directory[DART_STRIPES_MAX];
    uint64_t list;     /* list word, which names the current dart_list; changed by CAS */
    uint64_t adjuster; /* adjuster word: owner of the lock for adjusting the list */
    uint64_t unused[9];
} dart_super;

_Static_assert(sizeof(dart_super) == 256, "the descriptor has 256 bytes");


/* ---- The express skip table (EST) ----
 *
 *     directory word  log2(groups) 8 << 56 | g of the segment; 0 = no segment yet
 *                     or 1 << 63 | g of a table. A table consists of 16 directory words and takes the place of a
 *                     segment that became full. A word that names a table never changes again
 *     segment         2^q groups of 192 bytes: main 0, overflow, main 1; each bucket has 8 slots
 *     hash            bits 63..48 directory, 47..40 fingerprint, 39 which main bucket, from 38 down: 4 bits for each
 *                     table on the way, then the group
 *     slot            committed: fingerprint 8 << 56 | delta 6 << 50 | type 4 << 46 | F << 44 | g
 *                     tentative: client 14 << 50 | generation 4 << 46 | T << 45 | F << 44 | g
 *                     0 (or only F): empty
 *     list            64 bytes, immutable: generation, lookup lengths, active lengths (a superset of them)
 *     list word       low 20 bits of the list's generation << 44 | g of the list
 *     adjuster word   owner word (pool/format/owner.h) of a session; 0 = free */

#define DART_EST_BUCKET      8u
#define DART_EST_GROUP_BYTES 192u
#define DART_EST_READ_BYTES  128u
#define DART_EST_DELTA_MAX   63u
#define DART_EST_TENTATIVE   (1ull << 45)
#define DART_LIST_MAX        16u

typedef struct dart_list {
    uint64_t generation;
    uint8_t lookup_count, active_count, unused[6];
    uint8_t lookup[DART_LIST_MAX]; /* lookup lengths in ascending order, like those of `active` */
    uint8_t active[DART_LIST_MAX];
    uint64_t spare[2];
} dart_list;

_Static_assert(sizeof(dart_list) == 64, "a list has 64 bytes");


static inline uint64_t dart_directory_word(unsigned log_groups, far_addr segment) {
    return (uint64_t)log_groups << 56 | dart_granule(segment);
}


static inline unsigned dart_directory_log_groups(uint64_t word) {
    return (unsigned)(word >> 56);
}


static inline uint64_t dart_segment_bytes(unsigned log_groups) {
    return (uint64_t)DART_EST_GROUP_BYTES << log_groups;
}


#define DART_TABLE_LOG          4u
#define DART_TABLE_WORDS        (1u << DART_TABLE_LOG)
#define DART_TABLE_BYTES        (DART_TABLE_WORDS * 8u)
/* maximal number of bits of a hash that select a word in the directory and the tables below it, so there are at most
 * 2^16 such words */
#define DART_DIRECTORY_BITS_MAX 16u


static inline uint64_t dart_table_word(far_addr table) {
    return 1ull << 63 | dart_granule(table);
}


static inline bool dart_is_table(uint64_t word) {
    return word >> 63;
}


static inline unsigned dart_hash_directory(uint64_t hash, unsigned bits) {
    return bits ? (unsigned)(hash >> 48) & ((1u << bits) - 1) : 0;
}


static inline unsigned dart_hash_fingerprint(uint64_t hash) {
    return (unsigned)(hash >> 40) & 0xff;
}


/* Returns which bucket pair a hash selects: 0 for main 0 and overflow, 1 for overflow and main 1. */
static inline unsigned dart_hash_main(uint64_t hash) {
    return (unsigned)(hash >> 39) & 1;
}


/* Number of the group for a hash in a segment of 2^log_groups groups that has `level` tables above it. */
static inline uint64_t dart_hash_group(uint64_t hash, unsigned level, unsigned log_groups) {
    unsigned left = 39 - level * DART_TABLE_LOG;
    return (hash & ((1ull << left) - 1)) >> (left - log_groups);
}


/* Returns the position of a hash in a table whose words have this level, which is at least 1. The position equals the
 * number of the group that a segment of 16 groups in place of the table would use for this hash. */
static inline unsigned dart_hash_table(uint64_t hash, unsigned level) {
    return (unsigned)dart_hash_group(hash, level - 1, DART_TABLE_LOG);
}


static inline uint64_t dart_est_word(unsigned fingerprint, unsigned delta, dart_node_type type, far_addr addr) {
    return (uint64_t)fingerprint << 56 | (uint64_t)delta << 50 | (uint64_t)type << 46 | dart_granule(addr);
}


static inline uint64_t dart_est_tentative(unsigned client, unsigned generation, far_addr addr) {
    return (uint64_t)client << 50 | (uint64_t)(generation & 15) << 46 | DART_EST_TENTATIVE | dart_granule(addr);
}


static inline unsigned dart_est_fingerprint(uint64_t word) {
    return (unsigned)(word >> 56);
}


static inline unsigned dart_est_delta(uint64_t word) {
    return (unsigned)(word >> 50) & DART_EST_DELTA_MAX;
}


static inline dart_node_type dart_est_type(uint64_t word) {
    return (dart_node_type)(word >> 46 & 15);
}


/* Returns true if a slot contains a committed entry, frozen or not. */
static inline bool dart_est_is_committed(uint64_t word) {
    return dart_is_child(word) && !(word & DART_EST_TENTATIVE);
}


static inline bool dart_est_is_tentative(uint64_t word) {
    return word & DART_EST_TENTATIVE;
}


static inline unsigned dart_est_client(uint64_t word) { /* Returns the id of the client that wrote a tentative word. */
    return (unsigned)(word >> 50);
}


static inline uint64_t dart_list_word(uint64_t generation, far_addr list) {
    return generation << 44 | dart_granule(list);
}

#endif
