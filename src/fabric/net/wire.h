/* The messages between a client and a memory node, as bytes in little-endian order. docs/network.md describes the
 * protocol; wire.c checks lengths and bounds.
 *
 *     message   head {length 4, type 2, count 2, tag 8}, then the body
 *     length    of the whole message in bytes, 16 .. NET_MESSAGE_MAX
 *     tag       chosen by the sender of a request; the answer repeats it
 *     count     number of verbs of a batch, or of entries of a list; otherwise 0
 *
 * A node answers the requests of a connection in their order. It checks a complete message before it acts on it, and
 * ends the connection of a peer that sends an invalid message. */
#ifndef FAR_FABRIC_NET_WIRE_H
#define FAR_FABRIC_NET_WIRE_H

#include "fabric/fabric.h"
#include "fabric/net/proof.h"

#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "messages are written as they lie in memory");

#define NET_MAGIC       0x746e2d7261660a00ull /* magic number of NET_HELLO and NET_WELCOME: the bytes "\0\nfar-nt" */
#define NET_PROTOCOL    4u /* increases with every change of a message below; both sides must have the same number */
#define NET_MESSAGE_MAX (1u << 18)
#define NET_HEAD_BYTES  16u
#define NET_VERB_BYTES  16u         /* bytes of the head of each verb in a batch; the operands follow */
#define NET_PIECE_BYTES (64u << 10) /* largest piece in bytes; a longer READ or WRITE is split into several pieces */
#define NET_GRANULE     64u
#define NET_LISTED_MAX  1024u /* largest number of entries in a list */
#define NET_TEXT_MAX    400u
/* the part of a node that a peer without a claim may write: superblock and header of a pool */
#define NET_UNCLAIMED_WRITE_BYTES 4096u

typedef enum net_type {
    NET_HELLO = 1, /* first message of a client, with its purpose and version */
    NET_WELCOME,
    NET_REFUSED, /* sent by the node: a text with the reason why the node is closing the connection */
    NET_JOIN,    /* makes the node number n of a pool, if it belongs to none */
    NET_JOINED,
    /* Claims a session id. Node 0 receives claim number 0 and issues a new claim number. The client then presents this
     * number to the other nodes. */
    NET_CLAIM,
    NET_CLAIMED,
    NET_RELEASE,
    NET_RELEASED,
    NET_QUERY, /* sent to node 0 with a list of pairs {id, generation}: queries which of these sessions are alive */
    NET_LIVENESS,
    NET_FENCE, /* sent to all nodes except node 0 with a list of claims: the node fences these claims */
    NET_FENCED,
    NET_EVICT, /* sent to node 0 with a pair {id, generation}: the node fences the session that has this pair */
    NET_EVICTED,
    NET_BATCH,
    NET_RESULTS,
    NET_PING,
    NET_PONG,
    NET_SUBSCRIBE, /* sent to node 0: requests notifications of client failures from now on; the node does not answer */
    /* sent to node 0: makes it notify all subscribers that they should check all clients; the node does not answer */
    NET_NOTIFY_ALL,
    /* sent by node 0 to subscribers: a session was fenced; or, with id 0, the subscriber should check all clients */
    NET_NOTIFICATION,
    /* The session has left the pool, so the end of its connection does not count as a failure. The node does not
     * answer. */
    NET_BYE,
    NET_STATUS,
    NET_STATE,
    NET_QUEUE_PAIR, /* to a node of rdma://: offer a queue pair, which the client then connects */
    NET_QUEUE_PAIR_OFFER,
    NET_NUMA_QUERY, /* queries on which NUMA nodes the given bytes of the memory are located */
    NET_NUMA_NODES,
    NET_RECORD, /* stores which guarantees a self-test found violated; NET_STATUS returns them */
    NET_RECORDED,
    /* The name of the client's process. The node does not answer. It passes the name on to other clients on request,
     * but does not trust it. */
    NET_IDENTITY,
    NET_NAME, /* sent to node 0: queries the name of a session's process */
    NET_NAMED,
    NET_TYPES
} net_type;

typedef struct net_head {
    uint32_t length;
    uint16_t type, count;
    uint64_t tag;
} net_head;

/* NET_FOR_SESSION: the connection carries verbs of a session. NET_FOR_INSPECTION: the connection opens a pool or reads
 * the status, and sends no verbs. */
typedef enum { NET_FOR_SESSION, NET_FOR_INSPECTION } net_purpose;
typedef enum { NET_BY_TCP, NET_BY_RDMA } net_carrier; /* how verbs reach the node */

/* This message is the same in all versions of the protocol, so that a node can refuse other versions with a message. */
typedef struct net_hello {
    uint64_t magic;
    uint32_t protocol, purpose;
    char library[16];
} net_hello;

typedef struct net_welcome {
    uint64_t magic;
    uint32_t protocol, granule; /* tearing granule of READs and WRITEs in bytes */
    char library[16];
    uint64_t bytes, instance, restarts;
    uint64_t pool;        /* number of the pool to which the node belongs; 0: it belongs to no pool yet */
    uint32_t node, nodes; /* number of the node in its pool, and number of nodes of the pool */
    uint32_t complete;
    uint32_t carrier;            /* how verbs reach the node, a net_carrier */
    uint32_t reads_only, unused; /* reads_only is 1 if the peer has authenticated itself as one that may only read */
} net_welcome;

/* The key of the pool (proof.h) is in a request if the client knows it, and in the answer until the pool is complete. */
typedef struct net_join {
    uint64_t pool;
    uint32_t node, nodes, complete, unused;
    net_key key;
} net_join;

typedef struct net_claim {
    uint32_t id, generation;
    uint64_t claim;
    uint64_t proof; /* NET_CLAIM to a later node: net_proof_of_claim. NET_FENCE: net_proof_of_end. Otherwise 0 */
} net_claim;

typedef struct net_claimed {
    uint64_t claim, proof;
    uint32_t verdict, unused; /* verdict: the decision of the node, a net_verdict */
} net_claimed;

/* Answer to one entry of NET_QUERY. If the session is not alive, `over` is the highest claim number of its id that has
 * ended, and `proof` is net_proof_of_end. */
typedef struct net_liveness {
    uint64_t over, proof;
    uint32_t lives, unused;
} net_liveness;

#define NET_TOKEN_BYTES 16

/* The queue pair that presents this token when it connects may access the node's memory: its address is `base`, its
 * remote key is `key`. */
typedef struct net_queue_pair_offer {
    uint8_t token[NET_TOKEN_BYTES];
    uint64_t base;
    uint32_t key, unused;
} net_queue_pair_offer;

typedef struct net_record {
    uint64_t refuted; /* bits of the pool's fabric record (pool/format/fabric_record.h); the node only stores them */
} net_record;

#define NET_NUMA_QUERY_MAX 256u

typedef struct net_numa_query {
    uint64_t count, offsets[NET_NUMA_QUERY_MAX];
} net_numa_query;

typedef struct net_numa_nodes {
    /* numa[i]: NUMA node of entry i of the query; the elements after the last entry are FAR_NUMA_UNKNOWN */
    int32_t numa[NET_NUMA_QUERY_MAX];
} net_numa_nodes;

typedef struct net_state {
    char library[16];
    uint64_t bytes, pool, instance, restarts, started; /* `started` is in seconds since 1970 */
    uint32_t node, nodes, complete, threads;
    uint64_t refuted; /* the bits of the pool's fabric record, as the last NET_RECORD message has stored them */
    uint64_t sessions, connections, comes, cuts, batches, verbs, bytes_in, bytes_out, refused;
} net_state;

_Static_assert(sizeof(net_head) == NET_HEAD_BYTES && sizeof(net_hello) == 32 && sizeof(far_name) == 104 &&
                   sizeof(net_welcome) == 88 && sizeof(net_join) == 40 && sizeof(net_claim) == 24 &&
                   sizeof(net_claimed) == 24 && sizeof(net_liveness) == 24 && sizeof(net_state) == 152 &&
                   sizeof(net_queue_pair_offer) == 32,
               "no holes");

/* Returns the length of the message that begins with these bytes; 0 if its head is not complete; a negative value if no
 * valid message begins like this. */
int64_t net_message_length(const char *bytes, size_t count);

/* Returns true if the type of the message is valid in this direction and its length fits the type. */
bool net_message_is_valid(const net_head *head, bool to_client);

/* ---- Batches ---- */

typedef struct net_verb {
    far_verb_kind kind;
    uint32_t length;
    uint64_t offset;
    /* WRITE: the data. Atomics: compare, swap, compare_mask and swap_mask, as many as the kind needs */
    const char *operands;
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


/* Writes the bytes [from, from + length) of a verb as one piece at `to`. Returns the end of the piece. */
char *net_verb_put(char *to, const far_verb *verb, uint32_t from, uint32_t length);

/* Reads the next verb of a batch. Returns 1 if there is one, 0 at the end, -1 if it is malformed. Checks kind, length,
 * alignment, and bounds of a node with `node_bytes` bytes. */
int net_verb_get(const char **at, const char *end, uint64_t node_bytes, net_verb *verb);

/* What a batch changes: nothing; only bytes before NET_UNCLAIMED_WRITE_BYTES; or other bytes, for which it needs a claim.
 */
typedef enum { NET_CHANGES_NOTHING, NET_CHANGES_START, NET_CHANGES_MEMORY } net_changes;

/* Checks a whole batch. Returns the number of bytes of its results, or a negative value if it is malformed. */
int64_t net_batch_check(const char *body, size_t length, unsigned count, uint64_t node_bytes, net_changes *changes);

#endif
