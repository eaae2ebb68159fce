/* The private copy of a pool (private_copy.h). It is a fabric whose nodes are in the memory of this process. A salvage
 * uses it for three reasons:
 *
 *   - The pool stays as it is. A client that opens a damaged pool registers itself, allocates memory, and completes the
 *     work of failed clients, which may destroy more. In the copy all of that is harmless.
 *   - The pool can be read although nodes are missing. A missing node has the size that the superblock records, a
 *     correct header, and tables that show no block in use. Its blocks are filled with a pattern that no object of an
 *     index has, so that a pointer into them is found to be damaged.
 *   - Only READs are sent to the nodes, so the right to read suffices.
 *
 * Each piece of a node is read when the first verb needs it, and never again. Other clients should therefore not change
 * the pool meanwhile: pieces of different moments do not fit together, and the salvage skips what looks damaged. */
#include "client/private_copy.h"
#include "base/error.h"
#include "fabric/reader.h"
#include "fabric/words.h"
#include "farindex.h"
#include "pool/format/superblock.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PATTERN 0xdb

typedef struct copy_conn {
    far_conn conn; /* must be the first member, because pointers to it are cast to the whole struct */
    unsigned id, generation;
    struct copy_conn *next;
} copy_conn;

typedef struct copy_fabric {
    far_fabric fabric; /* must be the first member, because pointers to it are cast to the whole struct */
    far_reader *reader;
    /* The lock is held while a batch runs, so a batch is atomic, whatever the pool requires of its fabric. It protects
     * the fields below. */
    pthread_mutex_t lock;
    copy_conn *conns;
    char *memory[FAR_NODES_MAX];
    bool *present[FAR_NODES_MAX]; /* for each piece of a node: it was read */
    uint64_t first_block[FAR_NODES_MAX];
} copy_fabric;


/* ---- Memory ---- */

/* Reads a piece of a node. If the node is missing, or does not answer any more, the blocks in this piece get the
 * pattern. */
static void read_piece(copy_fabric *copy, unsigned node, uint64_t piece) {
    uint64_t offset = piece * FAR_READER_PIECE, end = copy->fabric.node_bytes[node];
    uint64_t bytes = end - offset < FAR_READER_PIECE ? end - offset : FAR_READER_PIECE;
    far_reader *reader = copy->reader;
    char *to = copy->memory[node] + offset;
    copy->present[node][piece] = true;
    if (reader->node_bytes[node] && reader->read(reader, node, offset, to, bytes) < 0) {
        snprintf(reader->missing, sizeof(reader->missing), "%.*s", FAR_REASON_MAX - 1, far_last_error());
        reader->node_bytes[node] = 0;
    }
    if (reader->node_bytes[node])
        return;
    uint64_t blocks = copy->first_block[node];
    for (uint64_t at = 0; at < bytes; at++)
        to[at] = (char)(offset + at < blocks ? 0 : PATTERN);
}


static void read_missing_pieces(copy_fabric *copy, const far_verb *verb) {
    unsigned node = far_addr_node(verb->addr);
    uint64_t offset = far_addr_offset(verb->addr), end = offset + verb->length;
    for (uint64_t piece = offset / FAR_READER_PIECE; piece * FAR_READER_PIECE < end; piece++)
        if (!copy->present[node][piece])
            read_piece(copy, node, piece);
}


static int map_node(copy_fabric *copy, unsigned node) {
    uint64_t bytes = copy->fabric.node_bytes[node];
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    copy->memory[node] = memory == MAP_FAILED ? NULL : memory;
    copy->present[node] = calloc((bytes + FAR_READER_PIECE - 1) / FAR_READER_PIECE, sizeof(bool));
    return copy->memory[node] && copy->present[node] ? 0
                                                     : far_fail(FAR_ERR_NO_MEMORY, "no memory for a copy of a pool");
}


/* ---- The fabric ---- */

static int copy_connect(far_fabric *fabric, far_parker *parker, far_conn **conn) {
    copy_fabric *copy = (copy_fabric *)fabric;
    copy_conn *made = calloc(1, sizeof(*made));
    if (!made)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a connection");
    far_conn_init_mapped(&made->conn, fabric, parker);
    pthread_mutex_lock(&copy->lock);
    made->next = copy->conns;
    copy->conns = made;
    pthread_mutex_unlock(&copy->lock);
    *conn = &made->conn;
    return 0;
}


static void copy_disconnect(far_conn *conn) {
    copy_fabric *copy = (copy_fabric *)conn->fabric;
    pthread_mutex_lock(&copy->lock);
    copy_conn **link = &copy->conns;
    while (*link != (copy_conn *)conn)
        link = &(*link)->next;
    *link = (*link)->next;
    pthread_mutex_unlock(&copy->lock);
    free(conn);
}


static void copy_post(far_conn *conn, far_batch *batch) {
    copy_fabric *copy = (copy_fabric *)conn->fabric;
    batch->pending = false;
    batch->status = 0;
    if (atomic_load_explicit(&conn->fenced, memory_order_acquire)) {
        batch->status = FAR_ERR_FENCED;
        return;
    }
    pthread_mutex_lock(&copy->lock);
    for (uint32_t i = 0; i < batch->count; i++)
        read_missing_pieces(copy, &batch->verbs[i]);
    far_words_run_batch(conn, batch);
    pthread_mutex_unlock(&copy->lock);
}


static int copy_poll(far_conn *conn) {
    (void)conn;
    return 0;
}


static void copy_wait(far_conn *conn, uint64_t until) {
    conn->fabric->host->ops->park(conn->fabric->host, conn->parker, until);
}


static int copy_claim(far_conn *conn, unsigned id, unsigned generation) {
    copy_fabric *copy = (copy_fabric *)conn->fabric;
    pthread_mutex_lock(&copy->lock);
    ((copy_conn *)conn)->id = id;
    ((copy_conn *)conn)->generation = generation;
    pthread_mutex_unlock(&copy->lock);
    return 0;
}


/* All clients have failed except those of this process: no other client works on the copy. */
static int copy_has_failed(far_conn *asker, unsigned id, unsigned generation) {
    copy_fabric *copy = (copy_fabric *)asker->fabric;
    int failed = 1;
    pthread_mutex_lock(&copy->lock);
    for (copy_conn *conn = copy->conns; conn && failed; conn = conn->next)
        failed = conn->id != id || conn->generation != generation ||
                 atomic_load_explicit(&conn->conn.fenced, memory_order_acquire);
    pthread_mutex_unlock(&copy->lock);
    return failed;
}


static void copy_close(far_fabric *fabric) {
    copy_fabric *copy = (copy_fabric *)fabric;
    for (unsigned i = 0; i < fabric->nodes; i++) {
        if (copy->memory[i])
            munmap(copy->memory[i], fabric->node_bytes[i]);
        free(copy->present[i]);
    }
    copy->reader->close(copy->reader);
    pthread_mutex_destroy(&copy->lock);
    free(copy);
}


static const far_fabric_ops copy_ops = {.connect = copy_connect,
                                        .disconnect = copy_disconnect,
                                        .claim = copy_claim,
                                        .post = copy_post,
                                        .poll = copy_poll,
                                        .wait = copy_wait,
                                        .has_failed = copy_has_failed,
                                        .fence_self = far_conn_fence,
                                        .close = copy_close};


/* ---- Opening ---- */

/* Gives missing nodes the size that the superblock records, and the header that they must have. */
static int make_missing_nodes(copy_fabric *copy) {
    far_reader *reader = copy->reader;
    uint64_t *super = calloc(1, FAR_SUPER_REGISTRY);
    far_geometry *g = calloc(1, sizeof(*g));
    int err = super && g ? 0 : far_fail(FAR_ERR_NO_MEMORY, "no memory for a copy of a pool");
    if (err == 0 && reader->node_bytes[0] == 0)
        err = far_fail(FAR_ERR_UNREACHABLE,
                       "memory node 0, which has the superblock and the catalog, is missing: without it the pool "
                       "cannot be read: %s",
                       reader->missing);
    if (err == 0)
        err = reader->read(reader, 0, 0, super, FAR_SUPER_REGISTRY);
    for (unsigned i = 0; i < reader->nodes && err == 0; i++) {
        uint64_t recorded = super[FAR_SUPER_NODE_TABLE / 8 + i];
        copy->fabric.node_bytes[i] = reader->node_bytes[i] ? reader->node_bytes[i] : recorded;
        if (copy->fabric.node_bytes[i] == 0 || copy->fabric.node_bytes[i] > FAR_NODE_BYTES_MAX ||
            copy->fabric.node_bytes[i] % 8 != 0)
            err =
                far_fail(FAR_ERR_CORRUPT, "memory node %u is missing, and the superblock does not contain its size", i);
    }
    far_capabilities capabilities = far_capabilities_unpack(super ? super[FAR_SUPER_CAPABILITIES / 8] : 0);
    if (err == 0)
        err = far_geometry_make(reader->nodes, copy->fabric.node_bytes, &capabilities, super[FAR_SUPER_POOL_ID / 8], g);
    for (unsigned i = 0; i < reader->nodes && err == 0; i++) {
        copy->first_block[i] = g->node[i].first_block;
        if ((err = map_node(copy, i)) < 0 || reader->node_bytes[i])
            continue;
        uint64_t header[3] = {FAR_POOL_MAGIC_WORD, super[FAR_SUPER_POOL_ID / 8], i};
        read_piece(copy, i, 0);
        memcpy(copy->memory[i], header, sizeof(header));
    }
    free(super);
    free(g);
    return err;
}


int far_private_copy_open(const char *uri, far_fabric **fabric) {
    copy_fabric *copy = calloc(1, sizeof(*copy));
    if (!copy)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a handle");
    int err = far_reader_open(uri, &copy->reader);
    if (err < 0) {
        free(copy);
        return err;
    }
    pthread_mutex_init(&copy->lock, NULL);
    copy->fabric.ops = &copy_ops;
    copy->fabric.host = &far_host_threads;
    copy->fabric.capabilities =
        (far_capabilities){.atomic_bytes = 64, .masked_cas = true, .atomics_in_order = true, .reads_in_order = true};
    copy->fabric.rtt = 1000;
    copy->fabric.at_once = true;
    copy->fabric.nodes = copy->reader->nodes;
    copy->fabric.memory = copy->memory;
    snprintf(copy->fabric.uri, sizeof(copy->fabric.uri), "%s", uri);
    if ((err = make_missing_nodes(copy)) < 0)
        copy_close(&copy->fabric);
    else
        *fabric = &copy->fabric;
    return err;
}


const char *far_private_copy_missing(const far_fabric *fabric) {
    return ((const copy_fabric *)fabric)->reader->missing;
}
