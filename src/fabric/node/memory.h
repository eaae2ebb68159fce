/* The memory of a node in its daemon: a file that outlives the daemon, or private memory of the process. net_memory_run
 * executes verbs on it.
 *
 *     0        header: describes the file and the pool to which the node belongs
 *     4096     redo slots, one for each thread
 *     64 KiB   ledger of claims (node/node_table.h)
 *     2 MiB    the memory of the node
 *
 * READs and WRITEs are executed in granules of 64 bytes, each under the lock of its line, so they tear only between
 * granules. A kill of the daemon must not leave a partly written granule either. Therefore a thread first writes the
 * granule to its redo slot, and marks the redo slot valid only while it holds the lock of the line. So no other thread
 * has written the granule since the redo slot became valid. The next daemon that opens the file writes the contents of
 * all valid redo slots to their granules again. */
#ifndef FAR_FABRIC_NODE_MEMORY_H
#define FAR_FABRIC_NODE_MEMORY_H

#include "fabric/net/wire.h"
#include "fabric/node/node_table.h"

#define NET_FILE_MAGIC   0x74656e2d72616600ull /* the bytes "\0far-net" */
#define NET_FILE_VERSION 1u
#define NET_THREADS_MAX  64u
#define NET_REDO_AT      4096u
#define NET_LEDGER_AT    (64u << 10)
#define NET_MEMORY_AT    (2u << 20)
#define NET_LINE_LOCKS   4096u

typedef struct net_file_header {
    uint64_t magic;
    uint32_t version, unused;
    uint64_t bytes;    /* size of the node's memory in bytes */
    uint64_t instance; /* random number that identifies this memory */
    uint64_t check;    /* checksum of all fields above */
    uint64_t restarts;
    uint64_t pool; /* number of the pool to which the node belongs; 0: none. Written after `node` and `nodes`. */
    uint32_t node, nodes;
    uint32_t complete; /* 1: all nodes of the pool have joined */
    /* guarantees that a self-test found violated, as NET_RECORD has stored them; shown by the status */
    uint32_t refuted;
    /* The key that all nodes of the pool share (net/proof.h). Its first word is written last. A file that was written
     * before nodes had keys contains 0 here; when it is opened, `complete` becomes 0, and the next client that opens the
     * pool gives a key to all its nodes. */
    net_key key;
} net_file_header;

typedef struct net_redo {
    uint64_t valid, offset, words;
    uint64_t data[NET_GRANULE / 8];
    uint64_t unused[5];
} net_redo;

_Static_assert(sizeof(net_redo) == 128, "two lines");
_Static_assert(NET_REDO_AT + NET_THREADS_MAX * sizeof(net_redo) <= NET_LEDGER_AT, "the slots end before the ledger");
_Static_assert(NET_LEDGER_AT + sizeof(net_ledger) <= NET_MEMORY_AT, "the ledger ends before the memory");

typedef struct net_memory {
    int file;     /* descriptor of the memory file; -1: the memory is private to this process */
    bool created; /* the file did not exist before */
    char *base;
    size_t mapped;
    net_file_header *header;
    net_redo *redo;
    net_ledger *ledger;
    char *bytes; /* address of the node's memory in this process */
    uint64_t size;
    /* For tests and --chaos; may be NULL. between_words is called after each word, while the lock of the line is held;
     * between_granules is called after each granule, without a lock. */
    void (*between_words)(unsigned thread, unsigned word);
    void (*between_granules)(unsigned thread);
    _Alignas(64) atomic_uchar locks[NET_LINE_LOCKS];
} net_memory;

#define NET_MEMORY_SIZES "a memory node has 1M to 1T, in steps of 4K"

bool net_memory_size_is_valid(uint64_t size);

typedef struct net_memory_options {
    const char *path; /* the file; NULL: private memory of the process */
    uint64_t size;    /* 0: the size of the file, which must exist */
    bool shared;      /* use the file even if other users own, can write or can read it */
    bool overcommit;  /* do not check whether the host has the memory */
} net_memory_options;

/* Opens the memory of a node. An error is explained in far_last_error. */
int net_memory_open(const net_memory_options *options, net_memory **memory);
void net_memory_close(net_memory *memory);

/* Executes a verb that net_verb_get has checked. The result of a READ or an atomic is stored at `results`. */
void net_memory_run(net_memory *memory, unsigned thread, const net_verb *verb, char *results);

/* Makes the node a member of the pool that *join describes, unless the node belongs to a pool already. The first join
 * is permanent, and so is the first key. Afterwards *join describes the pool to which the node belongs, with its key
 * unless the pool is complete. */
void net_memory_join(net_memory *memory, net_join *join);

#endif
