/* The memory of a node as its daemon has it: a file that outlives the daemon, or memory of the process.
 *
 *   0        header: what it is, of which pool
 *   4096     redo slots, one for each thread
 *   64 KiB   ledger of claims (net/node_table.h)
 *   2 MiB    the memory node
 *
 * READs and WRITEs are done by units of 64 bytes, each under the lock of its line, so that they tear nowhere else. A
 * kill must not leave half a unit either: what is to be written stands in the thread's redo slot first, which is valid
 * only while the lock is held, so nobody else has written the unit since. Whoever opens the file next writes it again.
 */
#ifndef FAR_FABRIC_NET_MEMORY_H
#define FAR_FABRIC_NET_MEMORY_H

#include "fabric/net/node_table.h"
#include "fabric/net/wire.h"

#define NET_FILE_MAGIC   0x74656e2d72616600ull /* "\0far-net" */
#define NET_FILE_VERSION 1u
#define NET_THREADS_MAX  64u
#define NET_REDO_AT      4096u
#define NET_LEDGER_AT    (64u << 10)
#define NET_MEMORY_AT    (2u << 20)
#define NET_LINES        4096u

typedef struct net_file_header {
    uint64_t magic;
    uint32_t version, unused;
    uint64_t bytes;    /* of the memory node */
    uint64_t instance; /* random: this memory and no other */
    uint64_t check;    /* of all above */
    uint64_t restarts;
    uint64_t pool; /* 0: none yet; written after node and nodes */
    uint32_t node, nodes;
    uint32_t complete; /* all nodes of the pool have joined */
    uint32_t refuted;  /* as net_record told; for the status only */
} net_file_header;

typedef struct net_redo {
    uint64_t valid, offset, words;
    uint64_t data[NET_UNIT / 8];
    uint64_t unused[5];
} net_redo;

_Static_assert(sizeof(net_redo) == 128, "two lines");
_Static_assert(NET_REDO_AT + NET_THREADS_MAX * sizeof(net_redo) <= NET_LEDGER_AT, "the slots end before the ledger");
_Static_assert(NET_LEDGER_AT + sizeof(net_ledger) <= NET_MEMORY_AT, "the ledger ends before the memory");

typedef struct net_memory {
    int file; /* -1: memory of this process */
    char *base;
    size_t mapped;
    net_file_header *header;
    net_redo *redo;
    net_ledger *ledger;
    char *bytes; /* of the node */
    uint64_t size;
    /* For tests and --chaos: called inside the lock of a line after each word, and between units; may be NULL. */
    void (*between_words)(unsigned thread, unsigned word);
    void (*between_units)(unsigned thread);
    _Alignas(64) atomic_uchar locks[NET_LINES];
} net_memory;

#define NET_MEMORY_SIZES "a memory node has 1M to 1T, in steps of 4K"

bool net_memory_may_have(uint64_t size);

/* path NULL: memory of this process. size 0: the size of the file, which must exist. far_last_error says why it failed. */
int net_memory_open(const char *path, uint64_t size, net_memory **memory);
void net_memory_close(net_memory *memory);

/* Runs a verb that was checked; results: where those of a READ or an atomic go. */
void net_memory_run(net_memory *memory, unsigned thread, const net_verb *verb, char *results);

/* The first pool that a node joins keeps it. Afterwards *join says which that is. */
void net_memory_join(net_memory *memory, net_join *join);

#endif
