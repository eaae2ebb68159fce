/* The pool as bytes: what lies where on the memory nodes, fixed when the pool is formatted.
 *
 *   node 0:  0     superblock: a line of constants, a line of words that change, the node table
 *            4096  client registry, 64 bytes per session slot
 *            ...   tables of its blocks, then its blocks
 *   node n:  0     node header {magic, pool id, n}
 *            64    tables of its blocks, then its blocks
 *
 *   Tables of a node with B blocks (pool/blocks.h), each array beginning at a multiple of 64:
 *     block entries  32 bytes each
 *     page words     64 x 8 bytes each: what slab a page belongs to
 *     free bitmaps   1 bit per 16 bytes of block: the object that begins there is free, and home
 *     mark bitmaps   1 bit per 16 bytes of block: the last sweep met the object that begins there
 *
 * All-zero memory is an unformatted pool. Formatting agrees on id and capabilities by CAS, writes only constants that
 * every formatter derives alike, and publishes by one CAS of word 0: a crash is redone by the next opener, two at once
 * do no harm. */
#ifndef FAR_POOL_SUPERBLOCK_H
#define FAR_POOL_SUPERBLOCK_H

#include "fabric/fabric.h"
#include "pool/alloc.h"
#include "task/task.h"

#define FAR_POOL_MAGIC      0x66617269ull /* "fari" */
#define FAR_POOL_FORMAT     7u
#define FAR_BLOCK_PAGES     64u
#define FAR_BLOCK_BYTES_MIN (64ull << 10)
#define FAR_BLOCK_BYTES_MAX (4ull << 20)

enum {                              /* offsets of words on node 0 */
       FAR_SUPER_MAGIC = 0,         /* magic << 16 | format version, written last */
       FAR_SUPER_POOL_ID = 8,       /* random, not 0 */
       FAR_SUPER_CAPABILITIES = 16, /* atomic_bytes, masked_cas, atomics_in_order of all clients */
       FAR_SUPER_SHAPE = 24,        /* nodes, log2 of the block size, session slots */
       FAR_SUPER_CHECK = 32,        /* hash of the constants */

       /* The line that housekeeping reads at every tick (and the next one as far as FAR_SUPER_REFUTED). The epoch stands first: pool/request.h says why. */
       FAR_SUPER_EPOCH = 64,       /* the global epoch minus FAR_EPOCH_FIRST */
       FAR_SUPER_REQUEST = 72,     /* the one request to bring memory home (pool/request.h); changed by CAS only */
       FAR_SUPER_DONE = 80,        /* the last finished sweep (pool/request.h); written by the sweeper */
       FAR_SUPER_WANTED = 88,      /* counts events after which memory may be lost: a sweep is wanted; by FAA */
       FAR_SUPER_SWEPT = 96,       /* FAR_SUPER_WANTED as it was when the last finished sweep began; by the sweeper */
       FAR_SUPER_CATALOG = 104,    /* the current list of indexes (pool/catalog_layout.h); changed by CAS only */
       FAR_SUPER_NEXT_UID = 112,   /* index uids given out so far */
       FAR_SUPER_SLOTS_HIGH = 120, /* session slots ever used: registry scans end here */

       FAR_SUPER_LEAKED = 128,     /* bytes found leaked by the last check and not freed */
       FAR_SUPER_REFUTED = 136,    /* what a self-test has refuted of the fabric (pool/refuted.h); by CAS */
       FAR_SUPER_NODE_TABLE = 256, /* 256 x 8 B: bytes of each node */
       FAR_SUPER_REGISTRY = 4096,
};

/* What housekeeping reads at every tick, behind the epoch: from the request on. */
#define FAR_SUPER_LINE_WORDS ((FAR_SUPER_REFUTED - FAR_SUPER_REQUEST) / 8 + 1)

#define FAR_EPOCH_FIRST 8 /* above zero: "some epochs ago" is a number too */

typedef struct far_geometry { /* derived from the superblock, the same for every client */
    uint64_t pool_id;
    uint64_t agreed;               /* the capabilities as they were packed when the pool was formatted */
    far_capabilities capabilities; /* these, without what a self-test has refuted since */
    unsigned nodes;
    uint64_t node_bytes[FAR_NODES_MAX];
    uint64_t block_bytes, page_bytes;
    unsigned session_slots; /* ids 1 .. session_slots */
    struct {
        uint64_t blocks;       /* how many */
        uint64_t first_number; /* of its first block among the blocks of all nodes */
        uint64_t entries;      /* offsets on the node */
        uint64_t pages;
        uint64_t bitmaps;
        uint64_t marks;
        uint64_t first_block;
    } node[FAR_NODES_MAX];
} far_geometry;

#define FAR_POOL_MAGIC_WORD (FAR_POOL_MAGIC << 16 | FAR_POOL_FORMAT)


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

/* Checks that what never changes is as this handle found it when it opened the pool: else no other handle could open it.
 * repair: it is written again. */
struct far_report;
int far_superblock_check(far_task *t, bool repair, struct far_report *report);

#endif
