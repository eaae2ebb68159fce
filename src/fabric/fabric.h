/* The interface of a fabric: one-sided verbs (READ, WRITE, CAS, FAA, masked CAS) on the memory nodes of a pool.
 * docs/fabric.md teaches the contract that every implementation keeps: order of verbs, atomicity, tearing, errors and
 * fencing.
 *
 * A `far_fabric` is the access of one compute node (a pool handle) to the memory nodes. A `far_conn` is the connection
 * of one session; it reaches all memory nodes, with one queue pair or socket for each where the fabric uses a network.
 * Sessions post batches of verbs; the layer above (task/batch.c) checks addresses and counts verbs and round trips.
 *
 * The order of verbs from one connection to one node: a WRITE takes effect before every verb that is posted after it.
 * READs take effect in the order in which they were posted, and so do atomics. All other pairs of verbs have no order
 * until the first verb has completed. A verb with the flag `FAR_VERB_FENCE` starts after all earlier verbs have
 * completed. */
#ifndef FAR_FABRIC_FABRIC_H
#define FAR_FABRIC_FABRIC_H

#include "base/host.h"
#include "base/name.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* An address in far memory: node number << 40 | offset in the node. 0 is the null address. */
typedef uint64_t far_addr;

#define FAR_NODES_MAX      256
#define FAR_NODE_BYTES_MAX (1ull << 40)
#define FAR_VERB_BYTES_MAX (1u << 20)
#define FAR_URI_MAX        256
#define FAR_REASON_MAX     200


static inline far_addr far_addr_make(unsigned node, uint64_t offset) {
    return (uint64_t)node << 40 | offset;
}


static inline unsigned far_addr_node(far_addr addr) {
    return (unsigned)(addr >> 40) & 0xff;
}


static inline uint64_t far_addr_offset(far_addr addr) {
    return addr & (FAR_NODE_BYTES_MAX - 1);
}


typedef enum far_verb_kind { FAR_READ, FAR_WRITE, FAR_CAS, FAR_FAA, FAR_MASKED_CAS, FAR_VERB_KINDS } far_verb_kind;

enum {
    /* The verb starts after all earlier verbs of the connection have completed. This costs a round trip. */
    FAR_VERB_FENCE = 1,
    /* The memory may have been freed or reused, and the index validates the result of the verb. Allowed for READs, and
     * for atomics on objects of a stable type (far_type: the memory of such an object is reused only for objects of the
     * same type and size). */
    FAR_VERB_UNPROVEN = 2,
    /* The pool itself posts this verb, which may therefore access free memory, for example to wipe it. The memory
     * checker does not report such a verb. */
    FAR_VERB_SYSTEM = 4,
    FAR_VERB_ANY_ORDER = 8, /* Allowed for READs: the READ may take effect before READs that were posted earlier. */
};

typedef struct far_verb {
    uint8_t kind, flags;
    /* length in bytes: for a READ or WRITE a multiple of 8, at most FAR_VERB_BYTES_MAX; for an atomic 8 */
    uint32_t length;
    far_addr addr; /* far address of the memory; a multiple of 8 */
    /* local buffer: destination of a READ, source of a WRITE, or the uint64_t that receives the old word of an atomic
     */
    void *local;
    uint64_t compare, swap; /* operands of CAS and masked CAS; FAA adds `swap` */
    /* Operands of a masked CAS: if ((old ^ compare) & compare_mask) == 0, the new word is (old & ~swap_mask) | (swap &
     * swap_mask). */
    uint64_t compare_mask, swap_mask;
    uint64_t old; /* The poster of an atomic may let `local` point to this field, which then receives the old word. */
} far_verb;

/* Verbs that are posted together, with one doorbell. The batch and its verbs belong to the fabric from the post until
 * the batch has completed. */
typedef struct far_batch far_batch;
struct far_batch {
    far_verb *verbs;
    uint32_t count;
    /* result, valid after completion: 0, FAR_ERR_UNREACHABLE or FAR_ERR_FENCED; in the last two cases the outcome of
     * each verb is unknown */
    int status;
    bool pending; /* true from the post until completion */
    /* times of posting and completion in ns; only the fabric `sim`, and `local` with the option rtt=, set these fields
     */
    uint64_t posted_at, completed_at;
    /* called by poll when a batch completes that was still pending when its post returned; it must not switch to
     * another task */
    void (*done)(far_batch *batch);
    void *owner; /* free for use by the poster of the batch */
    /* clock of the memory checker when the operation took its pin; UINT64_MAX: do not check this batch */
    uint64_t pin_clock;
    uint32_t index_key; /* the index that posts the batch (0: the pool); used by the memory checker */
    const char *label;  /* name of the operation, for traces and for tests that select verbs by it; may be NULL */
    far_batch *next;    /* link in a queue of the fabric while the batch is pending */
    void *fabric_data;
};

typedef struct far_capabilities {
    /* The tearing granule: READs and WRITEs may tear at aligned boundaries of this many bytes (8, 16 or 64). */
    uint32_t atomic_bytes;
    bool masked_cas;
    bool atomics_in_order; /* An atomic takes effect before every verb that is posted after it. */
    /* A READ takes effect before every READ that is posted after it. Each client decides by itself whether it relies on
     * this (task/batch.c). */
    bool reads_in_order;
    uint64_t min_rtt; /* guaranteed lower bound of a round trip in ns; 0: no bound */
} far_capabilities;

typedef struct far_fabric far_fabric;

typedef struct far_conn {
    far_fabric *fabric;
    /* parker of the session's thread, which the fabric unparks when poll has something to deliver */
    far_parker *parker;
    /* The session has left the pool in an orderly way, so the end of its connection does not count as a client failure.
     */
    bool leaves;
    /* Reason why no verb of this connection can take effect any more. NULL: no reason is known that concerns only this
     * connection. */
    const char *gone;
    atomic_bool fenced; /* used where memory is mapped: true when no verb of this connection may take effect any more */
    /* Addresses at which the nodes are mapped. While this is set, the layer above may run verbs directly on the mapped
     * memory (fabric/words.h) instead of posting them. NULL: verbs must be posted. */
    _Atomic(char *const *) in_place;
    atomic_uint fence_word;
} far_conn;

/* Control messages: requests to the memory nodes about the liveness of a session. They are used on fabrics where such a
 * request needs a round trip. The structure belongs to the fabric while the message is pending. */
typedef enum far_control_kind {
    /* claims a session id, like the operation `claim` of far_fabric_ops; id 0 releases the id that the connection
     * holds */
    FAR_CONTROL_CLAIM,
    FAR_CONTROL_HAS_FAILED, /* queries whether a session has failed, like the operation `has_failed` */
    FAR_CONTROL_EVICT,      /* evicts a session, like the operation `evict` */
    FAR_CONTROL_NAME,       /* reads the name of the session's process; the answer is always 0 */
} far_control_kind;

typedef struct far_control far_control;
struct far_control {
    far_control_kind kind;
    unsigned id, generation;
    int answer;
    bool pending;
    /* called by poll when a pending control message completes; it must not switch to another task */
    void (*done)(far_control *question);
    void *owner;    /* free for use by the sender */
    far_name *name; /* FAR_CONTROL_NAME: destination of the name; left unchanged if the nodes do not know the process */
    int64_t process; /* FAR_CONTROL_EVICT, where sessions end with their process: the only process to end; 0: any */
    bool force;      /* FAR_CONTROL_EVICT: root also ends processes of other users */
    /* Links pending messages. This field and all following ones belong to the fabric while the message is pending. */
    far_control *next;
    /* `step` is free for use by the fabric; `waits` is the number of nodes that have not answered yet */
    unsigned step, waits;
    uint64_t claim, proof;
};

/* Callbacks by which the allocator reports the state of memory to a memory checker. Only the simulator has one: it
 * reports verbs on memory that is free or was reused. Its clock advances with every call, so it orders pins and
 * retirements. */
typedef struct far_memory_checker_ops {
    uint64_t (*clock)(far_fabric *fabric);
    void (*allocated)(far_fabric *fabric, far_addr addr, uint64_t size, uint32_t index_key, bool stable);
    void (*retired)(far_fabric *fabric, far_addr addr, uint64_t size);
    /* Reports that memory was freed. The checker poisons the memory unless its type is stable. */
    void (*freed)(far_fabric *fabric, far_addr addr, uint64_t size, bool stable);
    /* Reports that the allocator no longer manages this memory, because its block has returned to the pool. */
    void (*released)(far_fabric *fabric, far_addr addr, uint64_t size);
    /* The code of an index has reached a named point. The call may suspend the client here. */
    void (*point)(far_conn *conn, const char *name, const char *label);
} far_memory_checker_ops;

typedef struct far_fabric_ops {
    int (*connect)(far_fabric *fabric, far_parker *parker, far_conn **conn);
    /* Ends a connection. Called after every posted batch has completed or failed. */
    void (*disconnect)(far_conn *conn);
    /* Registers the connection as the session (id, generation). Callers do this before they write that pair into the
     * registry of the pool. id 0 releases the current pair. Returns FAR_ERR_BUSY while another connection holds the id.
     */
    int (*claim)(far_conn *conn, unsigned id, unsigned generation);
    /* Starts a control message, on fabrics where `claim`, `has_failed` and `evict` need round trips. Those three
     * operations are NULL on such a fabric. `ask` never blocks. All messages that are submitted before the next poll
     * are sent together. The answer is negative only if this connection is lost. `ask` is NULL on a fabric without
     * control messages, where `claim`, `has_failed` and `evict` answer at once. */
    void (*ask)(far_conn *conn, far_control *question);
    /* Posts a batch. It never blocks. A fabric may run the verbs before it returns; then `batch->pending` is false on
     * return and `done` is not called. */
    void (*post)(far_conn *conn, far_batch *batch);
    /* delivers completions by calling `done`; returns the number of batches that completed */
    int (*poll)(far_conn *conn);
    /* Waits until poll has something to deliver, the parker is unparked, or the time `until` is reached. */
    void (*wait)(far_conn *conn, uint64_t until);
    /* Checks whether a session has failed. Returns 1 if it has failed and is fenced, so that none of its verbs takes
     * effect any more at any node; 0 if it is alive; a negative error if this cannot be determined. */
    int (*has_failed)(far_conn *asker, unsigned id, unsigned generation);
    /* Gives up this session: all later verbs of the connection fail at once, and `has_failed` returns 1 for the session,
     * in this process at once and in other processes soon. Since it may be called inside a `done`, it never waits. */
    void (*fence_self)(far_conn *conn);
    /* Called by housekeeping. Proves to the fabric that the sessions of this handle are alive. NULL on fabrics that
     * need no such proof. */
    int (*renew)(far_conn *conn);
    /* `evict` ends the process of the live session that a control message FAR_CONTROL_EVICT names. When `evict` has
     * returned 0, `has_failed` returns 1 for the session. `evict` may block, and is NULL if the fabric cannot end
     * sessions of other processes. `process_of` returns the process id that the session has published on this host, or
     * 0 if the id is not known. */
    int (*evict)(far_conn *asker, const far_control *request);
    int64_t (*process_of)(far_conn *asker, unsigned id, unsigned generation);
    /* Notifications about client failures, so that an idle handle need not poll for failures. These four operations are
     * NULL on a fabric without notifications.
     *
     * - `listen` subscribes this connection to notifications.
     * - `told` fetches the next notification. It returns 1 and the pair (id, generation) of the session that has
     *   failed, or 0 if there is no notification. Id 0 means that the caller should check all clients, because another
     *   client requested that with `ring`, or notifications were dropped.
     * - `ring` requests that all subscribers check all clients.
     * - `wait_for_notification` waits until a notification may have arrived, the parker is unparked, or the time
     *   `until` is reached. The calling thread need not have entered the session. */
    void (*listen)(far_conn *conn);
    int (*told)(far_conn *conn, unsigned *id, unsigned *generation);
    void (*ring)(far_conn *conn);
    void (*wait_for_notification)(far_conn *conn, far_parker *parker, uint64_t until);
    /* Finds the NUMA nodes of the host on which the given bytes of a memory node are located (base/numa.h). It may
     * block. NULL: this fabric can determine NUMA nodes only of memory that is mapped in this process. Callers use
     * far_fabric_places, which handles both cases. */
    int (*places)(far_fabric *fabric, unsigned node, const uint64_t *offsets, unsigned count, int *numa);
    /* Stores at the memory nodes which guarantees of the fabric a self-test found violated, as bits of
     * pool/format/fabric_record.h, so that the status of a node can show them. It may block. NULL: nodes of this fabric
     * have no status. */
    int (*record)(far_fabric *fabric, unsigned refuted);
    void (*close)(far_fabric *fabric);
} far_fabric_ops;

/* True once this process has opened a fabric with a memory checker. The symbol is hidden because a visible one would be
 * accessed through a table of addresses. */
extern atomic_bool far_is_simulated __attribute__((visibility("hidden")));

struct far_fabric {
    const far_fabric_ops *ops;
    const far_memory_checker_ops *watch; /* the memory checker; NULL except in the simulator */
    far_host *host;
    far_capabilities capabilities;
    uint64_t rtt; /* usual round trip in ns; back-off and waiting times are multiples of it */
    /* True if the memory nodes permit this client only READs. No session can be claimed then. */
    bool reads_only;
    /* True if verbs never remain under way between two calls, because each batch has completed when its post returns.
     */
    bool at_once;
    /* The post function of this fabric that does nothing but run the verbs on mapped memory; NULL: there is none. While
     * ops->post is this function, the layer above may run verbs without posting them (far_conn.in_place). */
    void (*post_in_place)(far_conn *conn, far_batch *batch);
    unsigned nodes;
    uint64_t node_bytes[FAR_NODES_MAX]; /* size of each memory node; 0 after the last node */
    char *const *memory;   /* addresses at which the nodes are mapped in this process; NULL: they are not mapped */
    char uri[FAR_URI_MAX]; /* the URI that the user gave, for messages */
    /* reason why no verb of any connection can take effect any more, a string literal; NULL: no reason is known */
    _Atomic(const char *) gone;
};


/* Initializes a new connection of a fabric that maps the memory of its nodes into the process. */
static inline void far_conn_init_mapped(far_conn *conn, far_fabric *fabric, far_parker *parker) {
    conn->fabric = fabric;
    conn->parker = parker;
    bool in_place = fabric->ops->post == fabric->post_in_place;
    atomic_init(&conn->in_place, in_place ? fabric->memory : NULL);
}


static inline void far_conn_fence(far_conn *conn) {
    atomic_store_explicit(&conn->fenced, true, memory_order_seq_cst);
    atomic_store_explicit(&conn->in_place, NULL, memory_order_seq_cst);
}


/* Reads `reads_in_order` atomically, because it may be cleared while sessions are working. */
static inline bool far_fabric_reads_in_order(const far_fabric *fabric) {
    return __atomic_load_n(&fabric->capabilities.reads_in_order, __ATOMIC_RELAXED);
}


/* Stops relying on the order of READs: from now on, READs that need an order wait for the earlier READs to complete. */
static inline void far_fabric_give_up_order_of_reads(far_fabric *fabric) {
    __atomic_store_n(&fabric->capabilities.reads_in_order, false, __ATOMIC_RELAXED);
}


#define FAR_PREFETCH_BYTES 512u


/* Prefetches memory on which a verb will be posted soon, so that its cache misses overlap with other work and with the
 * cache misses of the other verbs of the batch. */
static inline void far_fabric_prefetch(const far_fabric *fabric, far_addr addr, uint64_t length) {
    if (!fabric->memory)
        return;
    const char *at = fabric->memory[far_addr_node(addr)] + far_addr_offset(addr);
    const char *end = at + (length < FAR_PREFETCH_BYTES ? length : FAR_PREFETCH_BYTES);
    __builtin_prefetch(at);
    while (__builtin_expect((at += 64) < end, 0)) {
        __builtin_prefetch(at);
        __asm__ volatile(""); /* prevents gcc from removing the loop, since it does not count a prefetch as an effect */
    }
}


/* Opens the fabric that the URI names. Returns FAR_ERR_INVALID, with an explanation in far_last_error, if the URI is
 * malformed. */
int far_fabric_open(const char *uri, far_fabric **fabric);
/* Like far_fabric_open, but creates no memory that would outlive the process. */
int far_fabric_open_existing(const char *uri, far_fabric **fabric);
/* Stores in numa[] the NUMA node of each of the `count` offsets, or FAR_NUMA_UNKNOWN where it cannot be determined.
 * Returns 0, or an error of the connection to the memory node. */
int far_fabric_places(far_fabric *fabric, unsigned node, const uint64_t *offsets, unsigned count, int *numa);
int far_local_open(const char *rest, far_fabric **fabric); /* `rest` is the part of the URI after "local:" */
int far_shm_open(const char *rest, far_fabric **fabric);   /* `rest` is the part of the URI after "shm:" */
int far_shm_open_existing(const char *rest, far_fabric **fabric);
int far_sim_open(const char *rest, far_fabric **fabric);  /* `rest` is the part of the URI after "sim:" */
int far_tcp_open(const char *rest, far_fabric **fabric);  /* `rest` is the part of the URI after "tcp://" */
int far_rdma_open(const char *rest, far_fabric **fabric); /* `rest` is the part of the URI after "rdma://" */
int far_tcp_open_existing(const char *rest, far_fabric **fabric);
int far_rdma_open_existing(const char *rest, far_fabric **fabric);


/* Returns true when [addr, addr + length) is inside a memory node and aligned to words of 8 bytes. */
static inline bool far_fabric_in_range(const far_fabric *fabric, far_addr addr, uint64_t length) {
    uint64_t node = addr >> 40;
    return node < FAR_NODES_MAX && ((addr | length) & 7) == 0 && length <= FAR_NODE_BYTES_MAX &&
           far_addr_offset(addr) + length <= fabric->node_bytes[node];
}

#endif
