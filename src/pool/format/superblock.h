/* The layout of a pool defines where each table is stored on the memory nodes. The layout is fixed when the pool is
 * formatted, and every client derives it from the sizes of the nodes (far_geometry_make).
 *
 *     node 0:  0     superblock: a line of constants, a line of words that change, the node table
 *              4096  client registry, 64 bytes per session id
 *              ...   tables of its blocks, then its blocks
 *     node n:  0     node header {magic, pool id, n}
 *              64    tables of its blocks, then its blocks
 *
 *     Tables of a node with B blocks (pool/alloc/blocks.h), each array beginning at a multiple of 64:
 *       block entries  32 bytes each
 *       page words     64 x 8 bytes each: the slab that a page belongs to
 *       free bitmaps   1 bit per 16 bytes of block: the object that begins there was returned to the block's owner
 *       mark bitmaps   1 bit per 16 bytes of block: the last collection found the object that begins there linked
 *
 * All-zero memory is an unformatted pool. A client that formats it first agrees with concurrent clients on the pool id
 * and the capabilities by CAS. Everything else it writes is a constant that every client computes alike. A CAS of word
 * 0 from 0 to the magic word publishes the pool. If the client fails before that, the next client that opens the pool
 * repeats all steps, and clients that format concurrently write the same bytes. `far_superblock_open` does all this. */
#ifndef FAR_POOL_FORMAT_SUPERBLOCK_H
#define FAR_POOL_FORMAT_SUPERBLOCK_H

#include "fabric/fabric.h"
#include "pool/alloc/alloc.h"
#include "task/task.h"

#define FAR_POOL_MAGIC      0x66617269ull /* "fari" in ASCII */
#define FAR_POOL_FORMAT     8u
#define FAR_BLOCK_PAGES     64u
#define FAR_BLOCK_BYTES_MIN (64ull << 10)
/* Every object fits into one block. The largest objects of an index have 192 KiB, so blocks have at least this size,
 * except in pools that would then have fewer than 256 blocks; these pools refuse the largest pairs. */
#define FAR_BLOCK_BYTES_ENOUGH (256ull << 10)
#define FAR_BLOCK_BYTES_MAX    (4ull << 20)

/* Offsets of words on node 0. The first five words are constant after formatting. */
enum {
    FAR_SUPER_MAGIC = 0,   /* magic << 16 | format version; written last */
    FAR_SUPER_POOL_ID = 8, /* random, never 0 */
    /* atomic_bytes, masked_cas and atomics_in_order, which all clients must offer (far_capabilities_pack) */
    FAR_SUPER_CAPABILITIES = 16,
    FAR_SUPER_SHAPE = 24, /* number of nodes, log2 of the block size, number of session ids (far_shape_pack) */
    FAR_SUPER_CHECK = 32, /* hash of all the constants and the node table */

    /* Words that change. Housekeeping reads FAR_SUPER_EPOCH and then the words from FAR_SUPER_REQUEST to
     * FAR_SUPER_FABRIC_RECORD at every tick. The epoch is read first, because a client that observes an epoch that was
     * reached after a request was made must also observe that request. */
    FAR_SUPER_EPOCH = 64,   /* global epoch minus FAR_EPOCH_FIRST; changed by CAS */
    FAR_SUPER_REQUEST = 72, /* current request to return remote objects (pool/gc/request.h); changed by CAS only */
    FAR_SUPER_DONE = 80,    /* last collection with complete marks (pool/gc/request.h); written by the collector */
    /* loss counter, the number of events after which memory may be leaked; a client adds 1 by FAA */
    FAR_SUPER_LOSSES = 88,
    /* value of the loss counter when the last finished collection began; written by the collector */
    FAR_SUPER_LOSSES_COLLECTED = 96,
    /* current catalog object and its number of indexes (pool/catalog/layout.h); changed by CAS only */
    FAR_SUPER_CATALOG = 104,
    FAR_SUPER_NEXT_UID = 112,   /* number of index uids given out so far */
    FAR_SUPER_SLOTS_HIGH = 120, /* highest session id ever used; scans of the registry end there */

    FAR_SUPER_LEAKED = 128, /* bytes that the last check found leaked and did not free */
    /* guarantees of the fabric that a self-test found violated (pool/format/fabric_record.h); changed by CAS */
    FAR_SUPER_FABRIC_RECORD = 136,
    FAR_SUPER_NODE_TABLE = 256, /* 256 words, the size of each node in bytes */
    FAR_SUPER_REGISTRY = 4096,
};

/* Number of words that housekeeping reads at every tick after the epoch, starting at FAR_SUPER_REQUEST. */
#define FAR_SUPER_LINE_WORDS ((FAR_SUPER_FABRIC_RECORD - FAR_SUPER_REQUEST) / 8 + 1)

/* epoch of a new pool; large enough that subtracting a few epochs never gives a negative number */
#define FAR_EPOCH_FIRST 8

typedef struct far_geometry { /* The layout of an open pool. All clients derive the same one from the superblock. */
    uint64_t pool_id;
    uint64_t agreed_capabilities; /* capabilities as packed into the superblock when the pool was formatted */
    /* the agreed capabilities, reduced by guarantees that a self-test found violated since */
    far_capabilities capabilities;
    unsigned nodes;
    uint64_t node_bytes[FAR_NODES_MAX];
    uint64_t block_bytes, page_bytes;
    unsigned session_slots; /* ids are 1 to session_slots */
    struct {
        uint64_t blocks;       /* number of blocks on this node */
        uint64_t first_number; /* number of the node's first block if the blocks of all nodes are counted through */
        /* offset of the block entries on the node; the fields after `entries` are the offsets of the other tables and
         * of the blocks */
        uint64_t entries;
        uint64_t pages;
        uint64_t bitmaps;
        uint64_t marks;
        uint64_t first_block;
    } node[FAR_NODES_MAX];
} far_geometry;

#define FAR_POOL_MAGIC_WORD (FAR_POOL_MAGIC << 16 | FAR_POOL_FORMAT)


/* Packs the capabilities into a word, atomic_bytes 16 bits | masked_cas << 16 | atomics_in_order << 17. The word is
 * never 0. min_rtt is not included, because each client has its own. */
static inline uint64_t far_capabilities_pack(const far_capabilities *c) {
    return (uint64_t)c->atomic_bytes | (uint64_t)c->masked_cas << 16 | (uint64_t)c->atomics_in_order << 17;
}


static inline far_capabilities far_capabilities_unpack(uint64_t word) {
    return (far_capabilities){
        .atomic_bytes = (uint32_t)(word & 0xffff), .masked_cas = word >> 16 & 1, .atomics_in_order = word >> 17 & 1};
}


/* Packs the shape into a word, number of nodes 16 bits | log2 of the block size 8 bits << 16 | session ids 16 bits <<
 * 24. */
static inline uint64_t far_shape_pack(unsigned nodes, uint64_t block_bytes, unsigned session_slots) {
    return (uint64_t)nodes | (uint64_t)__builtin_ctzll(block_bytes) << 16 | (uint64_t)session_slots << 24;
}


/* Computes the layout of a pool from the sizes of its nodes, without any verb. Returns FAR_ERR_INVALID if a node is too
 * small. */
int far_geometry_make(unsigned nodes, const uint64_t node_bytes[], const far_capabilities *capabilities,
                      uint64_t pool_id, far_geometry *g);

/* Opens the pool. Formats all-zero memory, or checks the superblock of a formatted pool, and sets `g`. Returns
 * FAR_ERR_CORRUPT with an explanation if the memory contains anything else than a pool of this format version, and
 * FAR_ERR_UNSUPPORTED if this fabric lacks a capability that the pool relies on. */
int far_superblock_open(far_task *t, far_geometry *g);

/* Checks that the constants in far memory still equal those read when this handle opened the pool, and reports the
 * difference. If they differed unnoticed, the pool would work until its last handle is closed, but could not be opened
 * again. With `repair` the constants are written again. */
struct far_report;
int far_superblock_check(far_task *t, bool repair, struct far_report *report);

#endif
