/* The messages between a client and a memory node, as bytes. Little-endian; docs/network.md tells the protocol.
 *
 *   message   head {length 4, type 2, count 2, tag 8}, body
 *   length    of the whole message, 16 .. NET_MESSAGE_MAX
 *   tag       of a request; its answer bears the same
 *   count     verbs of a batch, entries of a list; 0 elsewhere
 *
 * A node answers the requests of a connection in their order. What does not follow this is refused whole, before any of
 * it is done. */
#ifndef FAR_FABRIC_NET_WIRE_H
#define FAR_FABRIC_NET_WIRE_H

#include "fabric/fabric.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "messages are written as they lie in memory");

#define NET_MAGIC       0x746e2d7261660a00ull /* "\0\nfar-nt" */
#define NET_PROTOCOL    3u /* counts up with every change of a message below: both sides must know the same ones */
#define NET_MESSAGE_MAX (1u << 18)
#define NET_HEAD_BYTES  16u
#define NET_VERB_BYTES  16u         /* of each verb, before its operands */
#define NET_PIECE_BYTES (64u << 10) /* a longer READ or WRITE goes in pieces */
#define NET_UNIT        64u
#define NET_LISTED_MAX  1024u /* entries of a list */
#define NET_TEXT_MAX    400u
#define NET_FREE_BYTES  4096u /* all that a peer without a session may change: superblock, header of a pool */

typedef enum net_type {
    NET_HELLO = 1, /* first of all: who comes, and for what */
    NET_WELCOME,
    NET_REFUSED, /* a text: why the node closes the connection now */
    NET_JOIN,    /* the node becomes node n of a pool, if it belongs to none */
    NET_JOINED,
    NET_CLAIM, /* node 0: claim 0, draws one; others: shows it */
    NET_CLAIMED,
    NET_RELEASE,
    NET_RELEASED,
    NET_ASK, /* node 0: a list of pairs */
    NET_TOLD,
    NET_CUT, /* not node 0: a list of claims */
    NET_IS_CUT,
    NET_EVICT, /* node 0: one pair */
    NET_EVICTED,
    NET_BATCH,
    NET_RESULTS,
    NET_PING,
    NET_PONG,
    NET_LISTEN, /* node 0: notes are wanted from now on; not answered */
    NET_RING,   /* node 0: a note to all who listen; not answered */
    NET_NOTE,   /* not asked for: a session was cut, or somebody rang (id 0) */
    NET_BYE,    /* the session has left the pool: its end is no death; not answered */
    NET_STATUS,
    NET_STATE,
    NET_QUEUE, /* a node of rdma://: asks for a queue pair, which the client then connects */
    NET_QUEUED,
    NET_PLACES, /* asks on which NUMA nodes some bytes lie */
    NET_PLACED,
    NET_RECORD, /* what a self-test has refuted, for those who ask for the node's status */
    NET_RECORDED,
    NET_I_AM, /* what the process is called that comes for a session: told to others, trusted for nothing; not answered */
    NET_NAME, /* node 0: what a session's process is called */
    NET_NAMED,
    NET_TYPES
} net_type;

typedef struct net_head {
    uint32_t length;
    uint16_t type, count;
    uint64_t tag;
} net_head;

typedef enum { NET_FOR_SESSION, NET_FOR_LOOK } net_purpose; /* a look: opening a pool, status; no verbs */
typedef enum { NET_BY_TCP, NET_BY_RDMA } net_carrier;       /* how verbs come to the node */

/* The same in all versions of the protocol, so that others are refused in words. */
typedef struct net_hello {
    uint64_t magic;
    uint32_t protocol, purpose;
    char library[16];
} net_hello;

typedef struct net_welcome {
    uint64_t magic;
    uint32_t protocol, unit; /* READs and WRITEs tear at units of this size */
    char library[16];
    uint64_t bytes, instance, restarts;
    uint64_t pool;        /* 0: it belongs to none yet */
    uint32_t node, nodes; /* of that pool */
    uint32_t complete;
    uint32_t carrier; /* net_carrier */
} net_welcome;

typedef struct net_join {
    uint64_t pool;
    uint32_t node, nodes, complete, unused;
} net_join;

typedef struct net_claim {
    uint32_t id, generation;
    uint64_t claim;
} net_claim;

typedef struct net_claimed {
    uint64_t claim;
    uint32_t verdict, unused; /* net_verdict */
} net_claimed;

typedef struct net_told { /* answers an entry of NET_ASK */
    uint64_t over;
    uint32_t lives, unused;
} net_told;

#define NET_TOKEN_BYTES 16

typedef struct net_queued { /* where the node's memory is for the queue pair that shows this token when it connects */
    uint8_t token[NET_TOKEN_BYTES];
    uint64_t base;
    uint32_t key, unused;
} net_queued;

typedef struct net_record {
    uint64_t refuted; /* bits that mean nothing here */
} net_record;

#define NET_PLACES_MAX 256u

typedef struct net_places {
    uint64_t count, offsets[NET_PLACES_MAX];
} net_places;

typedef struct net_placed {
    int32_t numa[NET_PLACES_MAX]; /* FAR_NUMA_UNKNOWN beyond the count too */
} net_placed;

typedef struct net_state {
    char library[16];
    uint64_t bytes, pool, instance, restarts, started; /* started: seconds since 1970 */
    uint32_t node, nodes, complete, threads;
    uint64_t refuted; /* as net_record told */
    uint64_t sessions, connections, comes, cuts, batches, verbs, bytes_in, bytes_out, refused;
} net_state;

_Static_assert(sizeof(net_head) == NET_HEAD_BYTES && sizeof(net_hello) == 32 && sizeof(far_name) == 104 &&
                   sizeof(net_welcome) == 80 && sizeof(net_join) == 24 && sizeof(net_claim) == 16 &&
                   sizeof(net_claimed) == 16 && sizeof(net_told) == 16 && sizeof(net_state) == 152 &&
                   sizeof(net_queued) == 32,
               "no holes");

/* The length of the message that begins with these bytes. 0: its head is not whole yet; negative: no message begins like
 * this. */
int64_t net_message_length(const char *bytes, size_t count);

/* Whether a message that a client sends (or, to_client, gets) has the right length for its type. */
bool net_message_is_sound(const net_head *head, bool to_client);

/* ---- Batches ---- */

typedef struct net_verb {
    far_verb_kind kind;
    uint32_t length;
    uint64_t offset;
    const char *operands; /* WRITE: what; atomics: compare, swap, compare_mask, swap_mask as far as they need them */
} net_verb;


static inline uint32_t net_operand_bytes(far_verb_kind kind, uint32_t length) {
    static const uint8_t atomics[] = {[FAR_CAS] = 16, [FAR_FAA] = 8, [FAR_MASKED_CAS] = 32};
    return kind == FAR_READ ? 0 : kind == FAR_WRITE ? length : atomics[kind];
}


static inline uint32_t net_result_bytes(far_verb_kind kind, uint32_t length) {
    return kind == FAR_READ ? length : kind == FAR_WRITE ? 0 : 8;
}


static inline uint64_t net_word(const char *from) {
    uint64_t word;
    memcpy(&word, from, 8);
    return word;
}


/* Appends a piece of a verb: [from, from + length) of it. Returns the end. */
char *net_verb_put(char *to, const far_verb *verb, uint32_t from, uint32_t length);

/* Reads the next verb of a batch. 1: it is there; 0: the end; -1: malformed. Kinds, lengths, alignment and bounds (of a
 * node with so many bytes) are checked. */
int net_verb_get(const char **at, const char *end, uint64_t node_bytes, net_verb *verb);

/* Checks all of a batch: how many bytes its results have; negative: malformed. changes_beyond: whether it changes
 * anything from NET_FREE_BYTES on. */
int64_t net_batch_check(const char *body, size_t length, unsigned count, uint64_t node_bytes, bool *changes_beyond);

#endif
