/* A reader reads the memory of a pool's nodes without taking part in the pool: it needs no session, changes nothing,
 * and works although some of the nodes are missing. Used to salvage a damaged pool (client/private_copy.h). */
#ifndef FAR_FABRIC_READER_H
#define FAR_FABRIC_READER_H

#include "fabric/fabric.h"

#define FAR_READER_PIECE (64u << 10)

typedef struct far_reader far_reader;
struct far_reader {
    unsigned nodes;                     /* number of nodes that the pool has, with the missing ones */
    uint64_t node_bytes[FAR_NODES_MAX]; /* size of each node; 0: the node is missing, so its size is not known */
    char missing[FAR_REASON_MAX];       /* why a node is missing; "": all nodes are there */
    /* Reads memory of a node that is there: a multiple of 8 bytes, at most FAR_READER_PIECE, inside one piece of that
     * size. Returns 0, or FAR_ERR_UNREACHABLE. */
    int (*read)(far_reader *reader, unsigned node, uint64_t offset, void *to, uint64_t bytes);
    void (*close)(far_reader *reader);
};

/* Opens a reader for the pool that the URI names, if at least one of its nodes is there. */
int far_reader_open(const char *uri, far_reader **reader);
int far_shm_reader_open(const char *rest, far_reader **reader); /* `rest` is the part of the URI after "shm:" */
int far_tcp_reader_open(const char *rest, far_reader **reader); /* `rest` is the part of the URI after "tcp://" */

#endif
