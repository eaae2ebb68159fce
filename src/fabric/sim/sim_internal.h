/* Inside the simulator. Times are picoseconds here, nanoseconds in every interface. Objects refer to each other by
 * pointers, but nothing that decides a run looks at a pointer's value: lists keep the order of creation, ties in time
 * go by sequence number. */
#ifndef FAR_FABRIC_SIM_SIM_INTERNAL_H
#define FAR_FABRIC_SIM_SIM_INTERNAL_H

#include "base/coroutine.h"
#include "base/random.h"
#include "fabric/net/node_table.h"
#include "fabric/sim/sim.h"

#define SIM_PS          ((uint64_t)1000) /* picoseconds in a nanosecond */
#define SIM_NEVER       UINT64_MAX
#define SIM_STACK_BYTES (256u << 10)
#define SIM_PARTS_MAX   16 /* instants over which one torn verb is spread */
#define SIM_ERRORS_KEPT 16
#define SIM_TRACE_KEPT  4096 /* a power of two */

typedef struct sim_conn sim_conn;
typedef struct sim_node sim_node;
typedef struct sim_verb sim_verb;
typedef struct sim_rule sim_rule;

/* What the watch knows of 16 bytes, or of 64 KiB of which it knows the same. */
typedef struct sim_granule {
    uint64_t retired; /* the clock when its last life ended, by being retired */
    uint64_t reused;  /* `retired` when the present life began: older pins must not touch it */
    uint32_t index_key;
    uint8_t state;
    bool stable;
} sim_granule;

typedef struct sim_chunk {
    sim_granule all;
    sim_granule *each; /* NULL: `all` holds for each */
} sim_chunk;

/* ---- Configuration (uri.c) ---- */

typedef struct sim_nic_config {
    uint64_t preset; /* index into the presets */
    uint64_t read_kops, write_kops, atomic_kops, word_kops;
    uint64_t milli_gbps;                            /* 12.5 GB/s = 12500 */
    uint64_t rtt_read, rtt_write, rtt_atomic, wire; /* ns */
    uint64_t outstanding;
    uint64_t cpu_doorbell, cpu_verb, cpu_completion; /* ns */
} sim_nic_config;

/* 64-bit fields only: compared with memcmp when somebody joins. */
typedef struct sim_config {
    uint64_t seed, memory_nodes, size, atomic_bytes, masked_cas, atomics_in_order, reads_in_order, questions, faults,
        watch, limit, unreachable;
    sim_nic_config nic;
    char name[64];
} sim_config;

/* Fills config from the list, starting from what it holds. */
int sim_parse(const char *rest, sim_config *config);
void sim_config_defaults(sim_config *config);

/* ---- Events (world.c) ---- */

typedef enum sim_event_kind { SIM_RESUME, SIM_ARRIVE, SIM_EFFECT, SIM_DONE, SIM_CALL } sim_event_kind;

typedef struct sim_event {
    uint64_t time, sequence;
    void *object;        /* client, verb or call */
    uint32_t generation; /* of the object: if it moved on, the event is stale */
    uint32_t kind;
} sim_event;

typedef struct sim_heap {
    sim_event *events;
    size_t count, capacity;
} sim_heap;

/* ---- NICs (nic.c) ---- */

typedef struct sim_nic {
    uint64_t engine_free, in_free, out_free;
} sim_nic;

typedef struct sim_cost {
    uint64_t message[3];  /* ps by class: READ, WRITE, atomic */
    uint64_t response[3]; /* ps of the way back: what is missing to the round trip */
    uint64_t word;        /* an atomic occupies its word */
    uint64_t wire;
    uint64_t byte_1024; /* ps for 1024 bytes */
} sim_cost;

/* When each word that saw an atomic lately is free again. */
typedef struct sim_word {
    uint64_t addr_1; /* address + 1; 0 = empty */
    uint64_t busy;
    sim_verb *owner; /* an atomic between its read and its write */
} sim_word;

typedef struct sim_words {
    sim_word *slots;
    size_t capacity, count;
} sim_words;

/* ---- Verbs ---- */

enum sim_class { SIM_CLASS_READ, SIM_CLASS_WRITE, SIM_CLASS_ATOMIC };

typedef enum sim_verb_state {
    SIM_QUEUED,    /* behind a fence or the limit of outstanding ones */
    SIM_SENT,      /* on the wire */
    SIM_SCHEDULED, /* at the responder: its effect has a time */
    SIM_HELD,      /* by hand, before its effect */
    SIM_BLOCKED,   /* what is ordered before it is held */
    SIM_BEGUN,     /* a part of it took effect */
    SIM_EFFECTIVE, /* the answer is on its way */
    SIM_DONE_HELD, /* by hand, before its completion */
} sim_verb_state;

typedef struct sim_post { /* a batch in flight */
    far_batch *batch;
    sim_conn *conn;
    uint32_t remaining, completions;
    int status;
    struct sim_post *prev, *next; /* of the connection; free list through next */
} sim_post;

struct sim_verb {
    far_verb verb;
    sim_conn *conn;
    sim_post *post; /* NULL: detached, its poster is dead */
    far_sim_client *client;
    uint64_t index; /* of the client */
    uint32_t generation;
    uint8_t state, class;
    uint8_t node;
    bool owns_payload, failed, rmw;
    uint32_t units, landed, cut; /* landed: of a WRITE, from the front; cut: it ends after so many */
    uint32_t parts, part;        /* torn: how many instants, the next one */
    uint64_t span, end;          /* torn, or an atomic that takes a while: how long, until when */
    uint64_t seed, checksum;
    uint64_t old; /* an atomic between its read and its write */
    uint64_t pin_clock;
    uint32_t index_key;
    const char *label;
    sim_verb *after; /* ordered by hand */
    uint32_t after_generation;
    far_sim_hold *hold_effect, *hold_done;
    sim_verb *prev, *next; /* of the connection, in posting order; free list through next */
    sim_verb *queue_next;
};

struct far_sim_hold {
    far_sim_world *world;
    sim_verb *verb;
    uint32_t generation, units;
    bool reached, released, completion;
    uint8_t *given; /* a flag per unit */
    uint32_t given_count;
    far_sim_hold *next;
};

/* One connection to one memory node. */
typedef struct sim_qp {
    uint64_t last[3]; /* end of the latest effect, by class */
    uint64_t last_any;
    uint32_t outstanding;
    bool failed;
    uint64_t stream;  /* questions=on: ns, when the last message to the node arrives ... */
    unsigned held;    /* ... and the id for which it speaks there; 0: none */
    uint64_t silence; /* of the node, in which its patience runs; 0: none yet */
    sim_verb *queue, *queue_last;
} sim_qp;

struct sim_conn {
    far_conn conn;
    sim_node *node;
    far_sim_world *world;
    far_sim_client *client; /* posted last */
    uint64_t number;
    unsigned id, generation;
    uint64_t claim; /* questions=on: its number */
    bool claimed, fenced, closed;
    bool declared; /* somebody was told that it is dead */
    bool ended;    /* the nodes will see that (ask.c) */
    uint64_t messages;
    struct inquiry *inquiries;
    far_question *answers;  /* to be given by the next poll */
    sim_verb *first, *last; /* not completed, in posting order */
    sim_post *posts, *posts_last;
    far_batch *completed, *completed_last;
    uint32_t blocked; /* verbs held or blocked */
    bool disturbed;   /* some were since it was idle last: order is not in the times alone */
    uint32_t queued;
    sim_conn *prev, *next; /* of the world */
    sim_qp qps[];
};

/* ---- Compute nodes and clients ---- */

struct sim_node {
    far_fabric fabric;
    far_host host;
    far_sim_world *world;
    unsigned number;
    bool dead, closed;
    sim_nic nic;
    sim_node *next;
};

typedef enum sim_client_state { SIM_PARKED, SIM_SLEEPING, SIM_STOPPED, SIM_RUNNING, SIM_ENDED } sim_client_state;

struct far_sim_client {
    far_sim_world *world;
    sim_node *node; /* NULL: outside */
    unsigned number;
    char name[24];
    bool background, woken;
    bool ready; /* would run, but is left out for now */
    uint8_t state;
    uint32_t wakes;                 /* generation of its resume events */
    uint32_t empty_polls, refusals; /* in a row */
    uint64_t until;                 /* of its park */
    far_context *context, *resume_at;
    void (*run)(void *arg);
    void *arg;
    far_parker ended_parker; /* a joiner waits here */
    uint64_t verbs;
    uint32_t held;
    const char *where;       /* stopped: at which point, or before which label */
    sim_rule *rules, *fired; /* fired: being acted upon */
    far_sim_client *next;
};

struct far_thread {
    far_sim_client *client;
};

/* ---- Trace ---- */

typedef enum sim_trace_kind {
    SIM_TRACE_POST,
    SIM_TRACE_EFFECT,
    SIM_TRACE_DONE,
    SIM_TRACE_DROP,
    SIM_TRACE_FAIL,
    SIM_TRACE_HOLD,
    SIM_TRACE_SWALLOW,
    SIM_TRACE_START,
    SIM_TRACE_END,
    SIM_TRACE_STALL,
    SIM_TRACE_STOP,
    SIM_TRACE_POINT,
    SIM_TRACE_KILL,
    SIM_TRACE_FENCE,
    SIM_TRACE_LOSE,
    SIM_TRACE_NODE_DOWN,
    SIM_TRACE_NODE_UP,
    SIM_TRACE_ERROR,
    SIM_TRACE_KINDS,
} sim_trace_kind;

typedef struct sim_trace_entry {
    uint64_t time, index, addr, a, b, c; /* a, b, c: by kind, see trace.c */
    const char *label;
    uint32_t length, client;
    uint8_t kind, verb;
} sim_trace_entry;

/* ---- The world ---- */

typedef enum sim_scope { SIM_SCOPE_NONE, SIM_SCOPE_ONE, SIM_SCOPE_ALL } sim_scope;

typedef struct sim_memory {
    uint8_t *bytes;
    sim_nic nic;
    bool down;
    bool deaf;         /* questions=on: messages wait, while it is down and perhaps a little longer */
    uint64_t silences; /* how often it was down */
    struct sim_message *waiting, *waiting_last;
    net_table *table; /* questions=on, else NULL */
    net_ledger *ledger;
    sim_chunk *chunks; /* of the watch */
} sim_memory;

struct far_sim_world {
    sim_config config;
    sim_cost cost;
    uint64_t faults, limit; /* begin as in config */
    unsigned fabrics, nodes_made;
    uint64_t now, sequence;
    uint64_t still; /* events since the time moved */
    sim_heap heap;
    sim_memory *memory;
    sim_words words;
    far_random random, secrets;

    sim_node *nodes;
    struct sim_message *messages; /* under way (ask.c) */
    bool ending;
    sim_conn *conns, *conns_last;
    uint64_t conns_made;
    far_sim_client outside, *clients, *clients_last;
    unsigned clients_made;
    far_sim_client *running; /* &outside when none */
    far_context *loop;
    unsigned depth; /* of event loops */
    sim_scope scope;
    far_sim_client *scope_client;
    uint64_t bound; /* the loop under way must not pass it */
    bool deadlocked;
    uint64_t waits_after_deadlock;
    uint64_t rmw;                /* atomics between their read and their write */
    uint64_t live;               /* clients of far_sim_start that have not ended */
    bool summary_due;            /* a client may have ended, stopped or got stuck */
    far_sim_client *hold_client; /* whose hold was reached last */
    far_sim_hold *holds;

    far_context **idle_contexts;
    size_t idle_count, idle_capacity;
    sim_verb *free_verbs;
    sim_post *free_posts;
    void **slabs;
    size_t slab_count, slab_capacity;

    void (*on_verb)(void *ctx, const far_sim_posted *posted);
    void *on_verb_ctx;
    void (*on_point)(void *ctx, const far_sim_client *client, const char *name);
    void *on_point_ctx;

    uint64_t clock; /* of the watch */
    uint64_t errors;
    char *error_texts[SIM_ERRORS_KEPT];
    sim_trace_entry *trace;
    uint64_t traced, trace_hash;
    FILE *trace_file;
    far_sim_world *next;
};

/* world.c */
void sim_push(far_sim_world *world, uint64_t time, sim_event_kind kind, void *object, uint32_t generation);
void sim_drop_stale(far_sim_world *world); /* afterwards the first event, if any, is a real one */
/* Handles the next event if it is due by `bound`; false: there is none. */
bool sim_step(far_sim_world *world, uint64_t bound);
/* Runs events from the outside until *token (NULL: none) is not 0 or the time is reached. */
void sim_run_outside(far_sim_world *world, atomic_uint *token, uint64_t until);
void sim_close(far_fabric *fabric);
static inline far_sim_world *sim_world(far_fabric *fabric) {
    return ((sim_node *)fabric)->world;
}
void *sim_allocate(size_t bytes); /* zeroed; ends the process with words when memory is short */

/* client.c */
extern const far_host_ops sim_host_ops;
void sim_clients_free(far_sim_world *world);
far_sim_client *sim_client_new(sim_node *node, const char *name, void (*run)(void *arg), void *arg, bool background);
void sim_client_resume(far_sim_client *client); /* on the loop's context */
bool sim_client_may_run(const far_sim_client *client);
void sim_client_wake(far_sim_client *client, uint64_t time);
void sim_release_ready(far_sim_world *world); /* those left out before and allowed now */
void sim_sleep_until(far_sim_world *world, uint64_t time);
void sim_stop(far_sim_client *client, const char *where);
void sim_unpark(far_sim_world *world, far_parker *parker);
void sim_park(far_sim_world *world, far_parker *parker, uint64_t until_ns);
static inline bool sim_is_outside(const far_sim_client *client) {
    return !client->context;
}
static inline bool sim_client_dead(const far_sim_client *client) {
    return client->node && client->node->dead;
}

/* conn.c */
extern const far_fabric_ops sim_fabric_ops, sim_fabric_ops_asking;
void sim_conns_free(far_sim_world *world);
void sim_verb_arrive(far_sim_world *world, sim_verb *verb);
void sim_verb_done(far_sim_world *world, sim_verb *verb);
void sim_verb_free(far_sim_world *world, sim_verb *verb); /* unlinks it too */
void sim_post_complete(sim_post *post, int status);
void sim_conn_release(sim_conn *conn); /* if closed and nothing of it is under way */

/* nic.c */
int sim_cost_make(const sim_config *config, sim_cost *cost);
uint64_t sim_nic_send(far_sim_world *world, sim_verb *verb);   /* when it arrives */
uint64_t sim_nic_arrive(far_sim_world *world, sim_verb *verb); /* when it takes effect */
uint64_t sim_nic_answer(far_sim_world *world, sim_verb *verb); /* when it completes */
sim_word *sim_word_of(far_sim_world *world, far_addr addr);
static inline uint64_t sim_transfer(const sim_cost *cost, uint64_t bytes) {
    return (bytes * cost->byte_1024) >> 10;
}

/* effect.c */
void sim_effect(far_sim_world *world, sim_verb *verb);
bool sim_ordered(const far_sim_world *world, unsigned first, unsigned second); /* classes, one node */
void sim_apply_unit(far_sim_world *world, sim_verb *verb, uint32_t unit);
void sim_apply_rest(far_sim_world *world, sim_verb *verb); /* what has not taken effect yet, now */
void sim_effective(far_sim_world *world, sim_verb *verb);
void sim_unblock(sim_conn *conn);
void sim_unblock_all(far_sim_world *world);
void sim_settle_word(far_sim_world *world, sim_verb *verb);
void sim_fail_verb(far_sim_world *world, sim_verb *verb);
void sim_stop_verb(far_sim_world *world, sim_verb *verb); /* fails at once, also if it has begun */
uint32_t sim_units(const far_sim_world *world, const far_verb *verb);

/* fault.c */
void sim_fault_schedule(far_sim_world *world, sim_verb *verb, sim_qp *qp, uint64_t base);
uint64_t sim_fault_next_part(far_sim_world *world, sim_verb *verb);
bool sim_fault_unit_in_part(const sim_verb *verb, uint32_t unit);
uint32_t sim_fault_write_end(const sim_verb *verb);
void sim_fault_mark(far_sim_world *world, sim_verb *verb);
bool sim_fault_payload_changed(const sim_verb *verb);
uint64_t sim_fault_completion_delay(far_sim_world *world);
uint64_t sim_fault_message_delay(far_sim_world *world); /* ns */
void sim_fault_stall(far_sim_client *client);
bool sim_fault_overtakes(far_sim_world *world, const sim_verb *verb, const sim_qp *qp);

/* ask.c */
void sim_ask(far_conn *conn, far_question *question);
int sim_give_answers(sim_conn *conn);
void sim_ask_ends(sim_conn *conn);
void sim_ask_cuts(sim_conn *conn);
void sim_ask_waits(sim_conn *conn, unsigned node);
void sim_ask_wakes(far_sim_world *world, unsigned node);
int sim_tables_make(far_sim_world *world);
void sim_tables_free(far_sim_world *world);

/* death.c */
void sim_fence(sim_conn *conn, int status);
void sim_leave(sim_conn *conn); /* the connection gives up by itself */
int sim_is_dead(far_conn *asker, unsigned id, unsigned generation);

/* steer.c */
void sim_steer_before_post(far_sim_client *client, const far_batch *batch);
void sim_steer_posted(far_sim_client *client, sim_verb *first, uint32_t count);
void sim_steer_point(far_sim_client *client, const char *name, const char *label);
void sim_hold_reach(sim_verb *verb, far_sim_hold *hold);
void sim_rules_free(far_sim_client *client);
void sim_holds_free(far_sim_world *world);
bool sim_client_stuck(const far_sim_client *client); /* can only wait for held verbs */

/* watch.c */
extern const far_watch_ops sim_watch_ops;
void sim_watch_check(far_sim_world *world, const sim_verb *verb, far_addr addr, uint64_t length);
void sim_watch_free(far_sim_world *world);
void sim_error(far_sim_world *world, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* trace.c */
void sim_trace(far_sim_world *world, sim_trace_kind kind, const far_sim_client *client, const char *label, uint64_t a);
void sim_trace_verb(far_sim_world *world, sim_trace_kind kind, const sim_verb *verb, uint64_t a, uint64_t b,
                    uint64_t c);
void sim_trace_post(far_sim_world *world, const sim_verb *verb);
const char *sim_verb_name(unsigned kind);
void sim_trace_print(const far_sim_world *world, FILE *file, uint64_t lines);

#endif
