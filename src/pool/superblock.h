/* The pool as bytes: what lies where on the memory nodes, fixed when the pool is formatted.
 *
 * node 0:  0     superblock: one line of constants, one line of words that change, the node table
 *          4096  client registry, 64 bytes per session slot
 *          ...   tables of its blocks, then its blocks
 * node n:  0     node header {magic, pool id, n}
 *          64    tables of its blocks, then its blocks
 *
 * Tables of a node with B blocks, each array beginning at a multiple of 64:
 *   block entries  16 B each: state word, sweep stamp      page words  64 x 8 B each: what slab a page belongs to
 *   free bitmaps   1 bit per 16 bytes of block: a free object that was given back to the pool sets the bit of its first
 * granule
 *
 * All-zero memory is an unformatted pool. Formatting agrees on id and capabilities by CAS, writes only constants that
 * every formatter derives alike, and publishes by one CAS of word 0: a crash is redone by the next opener, two at once
 * do no harm. */
#ifndef FAR_POOL_SUPERBLOCK_H
#define FAR_POOL_SUPERBLOCK_H

#include "fabric/fabric.h"
#include "runtime/task.h"

#define FAR_POOL_MAGIC      0x66617269ull /* "fari" */
#define FAR_POOL_FORMAT     3u
#define FAR_BLOCK_PAGES     64u
#define FAR_BLOCK_BYTES_MIN (64ull << 10)
#define FAR_BLOCK_BYTES_MAX (16ull << 20)
#define FAR_GRANULE         16u

enum {                              /* offsets of words on node 0 */
       FAR_SUPER_MAGIC = 0,         /* magic << 16 | format version, written last */
       FAR_SUPER_POOL_ID = 8,       /* random, not 0 */
       FAR_SUPER_CAPABILITIES = 16, /* atomic_bytes, masked_cas, atomics_in_order of all clients */
       FAR_SUPER_SHAPE = 24,        /* nodes, log2 of the block size, session slots */
       FAR_SUPER_CHECK = 32,        /* hash of the constants */
       FAR_SUPER_EPOCH = 64,        /* the global epoch minus FAR_EPOCH_FIRST */
       FAR_SUPER_SWEEP =
           72, /* the running sweep: owner, phase, sequence number (pool/sweep.h); read together with the epoch */
       FAR_SUPER_CATALOG = 80,     /* address of the current catalog object, 0 = no index yet */
       FAR_SUPER_NEXT_UID = 88,    /* index uids given out so far */
       FAR_SUPER_SLOTS_HIGH = 96,  /* session slots ever used: registry scans end here */
       FAR_SUPER_LEAKED = 104,     /* bytes found leaked by the last full check and not freed */
       FAR_SUPER_SHORT = 112,      /* who was last short of memory: far_short_pack; changed by CAS only */
       FAR_SUPER_DIED = 120,       /* dead sessions that were swept and made free so far ... */
       FAR_SUPER_SWEPT = 128,      /* ... before the last full sweep: what later ones had unlinked may be leaked */
       FAR_SUPER_NODE_TABLE = 256, /* 256 x 8 B: bytes of each node */
       FAR_SUPER_REGISTRY = 4096,
};

#define FAR_EPOCH_FIRST 8 /* so that "some epochs ago" never goes below zero */

typedef struct far_geometry { /* derived from the superblock, the same for every client */
    uint64_t pool_id;
    far_capabilities capabilities;
    unsigned nodes;
    uint64_t node_bytes[FAR_NODES_MAX];
    uint64_t block_bytes, page_bytes;
    unsigned session_slots; /* ids 1 .. session_slots */
    struct {
        uint64_t blocks;  /* how many */
        uint64_t entries; /* offsets on the node */
        uint64_t pages;
        uint64_t bitmaps;
        uint64_t first_block;
    } node[FAR_NODES_MAX];
} far_geometry;

#define FAR_POOL_MAGIC_WORD (FAR_POOL_MAGIC << 16 | FAR_POOL_FORMAT)


/* An announcement that memory is short (pool/hunger.c): its number 32 << 32 | epoch (its low bits) 18 << 14 | the
 * handle, 0: it was taken back. */
static inline uint64_t far_short_pack(uint32_t number, uint64_t epoch, unsigned handle) {
    return (uint64_t)number << 32 | (epoch & 0x3ffff) << 14 | handle;
}


static inline uint32_t far_short_number(uint64_t word) {
    return (uint32_t)(word >> 32);
}


static inline unsigned far_short_handle(uint64_t word) {
    return (unsigned)(word & 0x3fff);
}


/* The epoch is less than so many away from the one it was made in. */
static inline bool far_short_is_near(uint64_t word, uint64_t epoch, unsigned epochs) {
    return ((epoch - (word >> 14) + epochs - 1) & 0x3ffff) < 2 * epochs - 1;
}


/* atomic_bytes 16 | masked_cas << 16 | atomics_in_order << 17; never 0. min_rtt is each client's own. */
static inline uint64_t far_capabilities_pack(const far_capabilities *c) {
    return (uint64_t)c->atomic_bytes | (uint64_t)c->masked_cas << 16 | (uint64_t)c->atomics_in_order << 17;
}


static inline far_capabilities far_capabilities_unpack(uint64_t word) {
    return (far_capabilities){
        .atomic_bytes = (uint32_t)(word & 0xffff), .masked_cas = word >> 16 & 1, .atomics_in_order = word >> 17 & 1};
}


/* nodes 16 | log2 of the block size 8 << 16 | session slots 16 << 24 */
static inline uint64_t far_shape_pack(unsigned nodes, uint64_t block_bytes, unsigned session_slots) {
    return (uint64_t)nodes | (uint64_t)__builtin_ctzll(block_bytes) << 16 | (uint64_t)session_slots << 24;
}


/* Pure: lays out a pool. FAR_ERR_INVALID when the nodes are too small. */
int far_geometry_make(unsigned nodes, const uint64_t node_bytes[], const far_capabilities *capabilities,
                      uint64_t pool_id, far_geometry *g);

/* Formats all-zero memory, or checks what is there: FAR_ERR_CORRUPT (with words) for anything else than a pool of this
 * version, FAR_ERR_UNSUPPORTED when this fabric cannot offer the pool's capabilities. */
int far_superblock_open(far_task *t, far_geometry *g);

#endif
