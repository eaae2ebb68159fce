/* The fabric: one-sided verbs on the memory nodes of a pool. The contract (order, atomicity, death) stands in
 * architecture terms in docs/fabric.md; this is its interface. A far_fabric is one compute node's access to a pool, a
 * far_conn one session's queue pairs to all its memory nodes. Sessions post batches; the layer above (task/batch.c)
 * checks addresses and counts.
 *
 * Order, one connection to one node: a WRITE takes effect before every verb posted after it; READ -> READ and ATOMIC ->
 * ATOMIC keep order; all else has none until waited for. FAR_VERB_FENCE: the verb starts after all earlier ones
 * completed. */
#ifndef FAR_FABRIC_FABRIC_H
#define FAR_FABRIC_FABRIC_H

#include "base/host.h"
#include "base/name.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* node << 40 | offset; 0 is null. */
typedef uint64_t far_addr;

#define FAR_NODES_MAX      256
#define FAR_NODE_BYTES_MAX (1ull << 40)
#define FAR_VERB_BYTES_MAX (1u << 20)
#define FAR_URI_MAX        256
#define FAR_GONE_MAX       200


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
    FAR_VERB_FENCE = 1, /* starts after all earlier verbs of the connection completed; costs a round trip */
    FAR_VERB_UNPROVEN =
        2, /* the memory may be free or reused, the index checks what it got: READs, or atomics in a stable type */
    FAR_VERB_SYSTEM = 4,    /* of the pool itself: may touch free memory (wiping) */
    FAR_VERB_ANY_ORDER = 8, /* of a READ: it may sample before READs that were posted before it */
};

typedef struct far_verb {
    uint8_t kind, flags;
    uint32_t length;                  /* READ and WRITE: a multiple of 8, at most FAR_VERB_BYTES_MAX; atomics: 8 */
    far_addr addr;                    /* a multiple of 8 */
    void *local;                      /* READ: where to; WRITE: what; atomic: uint64_t that gets the old word */
    uint64_t compare, swap;           /* CAS, masked CAS; FAA adds swap */
    uint64_t compare_mask, swap_mask; /* masked CAS: if ((old ^ compare) & compare_mask) == 0, word = (old & ~swap_mask)
                                         | (swap & swap_mask) */
    uint64_t old;                     /* room for the poster to point local at */
} far_verb;

/* Verbs that are posted with one doorbell. Belongs to the fabric from post until done. */
typedef struct far_batch far_batch;
struct far_batch {
    far_verb *verbs;
    uint32_t count;
    int status;   /* after completion: 0, FAR_ERR_UNREACHABLE or FAR_ERR_FENCED (then outcomes are unknown) */
    bool pending; /* posted and not completed */
    /* Where the fabric knows when that is: sim, and local with a round trip. */
    uint64_t posted_at, completed_at;
    void (*done)(far_batch *batch); /* called inside poll when a batch that was pending after its post has completed;
                                       must not switch */
    void *owner;                    /* of the poster */
    uint64_t pin_clock;             /* the watch's clock when the operation pinned, UINT64_MAX = not to be checked */
    uint32_t index_key;             /* the index that posts (0 = the pool), for the watch */
    const char *label;              /* kind of operation, for traces and steering; may be NULL */
    far_batch *next;                /* of the fabric while pending */
    void *fabric_data;
};

typedef struct far_capabilities {
    uint32_t atomic_bytes; /* 8, 16 or 64: READs and WRITEs tear at aligned units of this size */
    bool masked_cas;
    bool atomics_in_order; /* an atomic takes effect before every verb posted after it */
    bool reads_in_order;   /* a READ samples before every READ posted after it; each client's own: see task/batch.c */
    uint64_t min_rtt;      /* ns, a guaranteed lower bound; 0 = none */
} far_capabilities;

typedef struct far_fabric far_fabric;

typedef struct far_conn {
    far_fabric *fabric;
    far_parker *parker; /* unparked when poll has something to deliver */
    bool leaves;        /* its session has left the pool: its end is no death */
    const char *gone;   /* why no verb of it can take effect any more; NULL: nothing is known of it alone */
    atomic_bool fenced; /* where memory is mapped: no verb of it may take effect any more */
    /* The memory of the nodes, while whoever waits for verbs may run them there itself (fabric/words.h). NULL: they are
     * posted. */
    _Atomic(char *const *) in_place;
    atomic_uint fence_word;
} far_conn;

/* What is asked of the memory nodes about a session, where that takes round trips. Belongs to the fabric while pending.
 */
typedef enum far_question_kind {
    FAR_ASK_CLAIM, /* as `claim` below; id 0 lets go of the one it had */
    FAR_ASK_DEAD,  /* as `is_dead` */
    FAR_ASK_EVICT, /* as `evict` */
    FAR_ASK_NAME,  /* what the session's process is called; always answered with 0 */
} far_question_kind;

typedef struct far_question far_question;
struct far_question {
    far_question_kind kind;
    unsigned id, generation;
    int answer;
    bool pending;
    void (*done)(far_question *question); /* called inside poll, if it was pending; must not switch */
    void *owner;                          /* of the one who asks */
    far_name *name;                       /* FAR_ASK_NAME: where it goes; left alone if nothing is known */
    far_question *next;                   /* of the fabric while pending, as all below */
    unsigned step, waits;                 /* waits: for so many nodes */
    uint64_t claim;
};

/* Told by the allocator what memory is; only the simulator listens. A clock that ticks with every call orders pins and
 * retirements. */
typedef struct far_watch_ops {
    uint64_t (*clock)(far_fabric *fabric);
    void (*allocated)(far_fabric *fabric, far_addr addr, uint64_t size, uint32_t index_key, bool stable);
    void (*retired)(far_fabric *fabric, far_addr addr, uint64_t size);
    void (*freed)(far_fabric *fabric, far_addr addr, uint64_t size, bool stable); /* poisoned unless stable */
    void (*released)(far_fabric *fabric, far_addr addr,
                     uint64_t size); /* no longer managed: a block went back to the pool */
    void (*point)(far_conn *conn, const char *name,
                  const char *label); /* a named point of index code was reached; may park here */
} far_watch_ops;

typedef struct far_fabric_ops {
    int (*connect)(far_fabric *fabric, far_parker *parker, far_conn **conn);
    void (*disconnect)(far_conn *conn); /* everything posted has completed, or failed */
    /* The connection speaks for session (id, generation) from now on: called before that pair is written into the
     * registry. id 0: for nobody any more. FAR_ERR_BUSY: another has it. */
    int (*claim)(far_conn *conn, unsigned id, unsigned generation);
    /* Where claim, is_dead and evict take round trips: these are NULL then, and this begins to ask, and never blocks.
     * What is asked before the next poll leaves together. An answer is negative only if this connection is lost. NULL:
     * they answer at once. */
    void (*ask)(far_conn *conn, far_question *question);
    /* Never blocks. Local work may be done at once: then batch->pending is false on return and done is not called. */
    void (*post)(far_conn *conn, far_batch *batch);
    int (*poll)(far_conn *conn); /* delivers completions (calls done); returns how many batches */
    /* Waits until poll has something to deliver, the parker is unparked, or the time is reached. */
    void (*wait)(far_conn *conn, uint64_t until);
    /* 1: the session is dead and fenced: no verb of it takes effect any more, at any node. 0: it lives. Negative:
     * cannot tell (error). */
    int (*is_dead)(far_conn *asker, unsigned id, unsigned generation);
    /* This session is lost: all later verbs fail, is_dead says 1, here at once, elsewhere soon. Also called inside a
     * done: it never waits. */
    void (*fence_self)(far_conn *conn);
    int (*renew)(
        far_conn *conn); /* housekeeping: shows that the sessions of this handle live; NULL where none is needed */
    /* Ends the process of a live session for good; true death follows (is_dead says 1 when this returned 0). It may
     * block. NULL: nobody can do that here. process_of: which one it is (a pid of this host), 0 = not known. */
    int (*evict)(far_conn *asker, unsigned id, unsigned generation);
    int64_t (*process_of)(far_conn *asker, unsigned id, unsigned generation);
    /* Deaths are told: a handle that sleeps needs not look. NULL: they are not. listen: this connection wants to be
     * told from now on. told: 1, and the pair that has died (id 0: somebody rang, or too many have died: look at all),
     * 0: nothing new. ring: tells all who listen to look. doze: waits until something may be told, the parker is
     * unparked, or the time is reached; nobody needs to be inside the session for it. */
    void (*listen)(far_conn *conn);
    int (*told)(far_conn *conn, unsigned *id, unsigned *generation);
    void (*ring)(far_conn *conn);
    void (*doze)(far_conn *conn, far_parker *parker, uint64_t until);
    /* On which NUMA nodes of its host these bytes of a memory node lie (base/numa.h). It may block. NULL: only known where
     * the memory is mapped here. far_fabric_places is how to ask. */
    int (*places)(far_fabric *fabric, unsigned node, const uint64_t *offsets, unsigned count, int *numa);
    /* Tells the memory nodes what is on record about the fabric, as bits of pool/refuted.h, for those who look at a node.
     * It may block. NULL: nobody looks at them. */
    int (*record)(far_fabric *fabric, unsigned refuted);
    void (*close)(far_fabric *fabric);
} far_fabric_ops;

/* This process has had a fabric with a watch. Hidden: without that its address is looked up in a table. */
extern atomic_bool far_is_simulated __attribute__((visibility("hidden")));

struct far_fabric {
    const far_fabric_ops *ops;
    const far_watch_ops *watch; /* NULL but in the simulator */
    far_host *host;
    far_capabilities capabilities;
    uint64_t rtt; /* ns, a usual round trip: the unit of back-off and waiting */
    bool at_once; /* a batch has completed when its post returns: no verb is ever under way */
    /* A post that only runs the verbs on mapped memory: where ops->post is this one, they may run without it
     * (far_conn.in_place). NULL: there is none. */
    void (*runs_in_place)(far_conn *conn, far_batch *batch);
    unsigned nodes;
    uint64_t node_bytes[FAR_NODES_MAX]; /* 0 beyond the last node */
    char *const *memory;                /* where the nodes are mapped in this process; NULL: they are elsewhere */
    char uri[FAR_URI_MAX];              /* for messages */
    _Atomic(const char *) gone;         /* a literal: why no verb can take effect any more; NULL: nothing is known */
};


/* Of a connection that is just made to mapped memory. */
static inline void far_conn_begin(far_conn *conn, far_fabric *fabric, far_parker *parker) {
    conn->fabric = fabric;
    conn->parker = parker;
    bool in_place = fabric->ops->post == fabric->runs_in_place;
    atomic_init(&conn->in_place, in_place ? fabric->memory : NULL);
}


static inline void far_conn_fence(far_conn *conn) {
    atomic_store_explicit(&conn->fenced, true, memory_order_seq_cst);
    atomic_store_explicit(&conn->in_place, NULL, memory_order_seq_cst);
}


/* reads_in_order may be given up while sessions work. */
static inline bool far_fabric_reads_in_order(const far_fabric *fabric) {
    return __atomic_load_n(&fabric->capabilities.reads_in_order, __ATOMIC_RELAXED);
}


/* From now on READs that rest on their order wait for each other. */
static inline void far_fabric_give_up_order_of_reads(far_fabric *fabric) {
    __atomic_store_n(&fabric->capabilities.reads_in_order, false, __ATOMIC_RELAXED);
}


#define FAR_PREFETCH_BYTES 512u


/* A verb on this memory will be posted soon: its cache misses overlap with what is done until then, and with those of
 * the other verbs of its batch. */
static inline void far_fabric_prefetch(const far_fabric *fabric, far_addr addr, uint64_t length) {
    if (!fabric->memory)
        return;
    const char *at = fabric->memory[far_addr_node(addr)] + far_addr_offset(addr);
    const char *end = at + (length < FAR_PREFETCH_BYTES ? length : FAR_PREFETCH_BYTES);
    __builtin_prefetch(at);
    while (__builtin_expect((at += 64) < end, 0)) {
        __builtin_prefetch(at);
        __asm__ volatile(""); /* to gcc a prefetch is no effect: it would leave out the loop */
    }
}


/* Opens the fabric that the URI names: FAR_ERR_INVALID (with words in far_last_error) when it is malformed. */
int far_fabric_open(const char *uri, far_fabric **fabric);
int far_fabric_open_existing(const char *uri, far_fabric **fabric); /* makes no memory that outlives the process */
/* FAR_NUMA_UNKNOWN for what nobody can tell. An error is one of the node that was asked. */
int far_fabric_places(far_fabric *fabric, unsigned node, const uint64_t *offsets, unsigned count, int *numa);
int far_local_open(const char *rest, far_fabric **fabric); /* rest: what follows "local:" */
int far_shm_open(const char *rest, far_fabric **fabric);   /* rest: what follows "shm:" */
int far_shm_open_existing(const char *rest, far_fabric **fabric);
int far_sim_open(const char *rest, far_fabric **fabric);  /* rest: what follows "sim:" */
int far_tcp_open(const char *rest, far_fabric **fabric);  /* rest: what follows "tcp://" */
int far_rdma_open(const char *rest, far_fabric **fabric); /* rest: what follows "rdma://" */
int far_tcp_open_existing(const char *rest, far_fabric **fabric);
int far_rdma_open_existing(const char *rest, far_fabric **fabric);


/* True when [addr, addr + length) lies inside a memory node and is aligned. */
static inline bool far_fabric_in_range(const far_fabric *fabric, far_addr addr, uint64_t length) {
    uint64_t node = addr >> 40;
    return node < FAR_NODES_MAX && ((addr | length) & 7) == 0 && length <= FAR_NODE_BYTES_MAX &&
           far_addr_offset(addr) + length <= fabric->node_bytes[node];
}

#endif
