/* Types and functions that the files of the simulator share. Times are picoseconds here and nanoseconds in the
 * interfaces. Objects refer to each other by pointers, but no decision of a run depends on the value of a pointer:
 * lists keep the order of creation, and events at the same time run in the order of their sequence numbers. So a run is
 * the same on every machine. */
#ifndef FAR_FABRIC_SIM_SIM_INTERNAL_H
#define FAR_FABRIC_SIM_SIM_INTERNAL_H

#include "base/coroutine.h"
#include "base/random.h"
#include "fabric/node/node_table.h"
#include "fabric/sim/sim.h"

#define SIM_PS          ((uint64_t)1000) /* picoseconds in a nanosecond */
#define SIM_NEVER       UINT64_MAX
#define SIM_STACK_BYTES (256u << 10)
#define SIM_PARTS_MAX   16 /* number of instants at most over which the effect of a torn verb is spread */
#define SIM_ERRORS_KEPT 16
#define SIM_TRACE_KEPT  4096 /* number of trace records that are kept for printing; a power of two */

typedef struct sim_conn sim_conn;
typedef struct sim_node sim_node;
typedef struct sim_verb sim_verb;
typedef struct sim_rule sim_rule;

/* What the memory checker records about a cell of 16 bytes. A sim_chunk covers 64 KiB; it has an array of cells only if
 * their contents differ. */
typedef struct sim_cell {
    uint64_t retired; /* value of the checker's clock when the memory was last retired */
    /* Value of `retired` when the memory was last allocated. An operation with an older pin must no longer access the
     * memory, which has been reused. */
    uint64_t reused;
    uint32_t index_key;
    uint8_t state;
    bool stable;
} sim_cell;

typedef struct sim_chunk {
    sim_cell all;
    sim_cell *each; /* NULL: `all` describes every cell of the chunk */
} sim_chunk;

/* ---- Configuration (uri.c) ---- */

typedef struct sim_nic_config {
    uint64_t preset; /* index of the NIC preset in uri.c */
    uint64_t read_kops, write_kops, atomic_kops, word_kops;
    uint64_t milli_gbps;                            /* thousandths of GB/s; 12.5 GB/s = 12500 */
    uint64_t rtt_read, rtt_write, rtt_atomic, wire; /* round-trip times and time on the wire, in ns */
    uint64_t outstanding;
    uint64_t cpu_doorbell, cpu_verb, cpu_completion; /* CPU times of a doorbell, a verb and a completion, in ns */
} sim_nic_config;

/* The options of a world. All numbers are 64 bits wide, because handles that join a world compare the whole structure
 * with memcmp. */
typedef struct sim_config {
    uint64_t seed, memory_nodes, size, atomic_bytes, masked_cas, atomics_in_order, reads_in_order, questions, faults,
        watch, limit, unreachable;
    sim_nic_config nic;
    char name[64];
} sim_config;

/* Parses the options of a `sim:` URI into config. Options that the URI does not mention keep their value in config. */
int sim_parse_options(const char *rest, sim_config *config);
void sim_config_defaults(sim_config *config);

/* ---- Events (world.c) ---- */

typedef enum sim_event_kind { SIM_RESUME, SIM_ARRIVE, SIM_EFFECT, SIM_DONE, SIM_CALL } sim_event_kind;

typedef struct sim_event {
    uint64_t time, sequence;
    void *object; /* the client, verb or sim_call that the event is about */
    /* generation of the object when the event was scheduled; if the object has a newer one, the event is stale and is
     * dropped */
    uint32_t generation;
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
    uint64_t message[3]; /* engine time in ps of one message, by class */
    /* time in ps of the response by class, which is the difference between the round trip and its other parts */
    uint64_t response[3];
    uint64_t word; /* time in ps for which an atomic occupies its word */
    uint64_t wire;
    uint64_t byte_1024; /* transfer time in ps of 1024 bytes */
} sim_cost;

/* A word that was the target of an atomic recently. */
typedef struct sim_word {
    uint64_t addr_1; /* address + 1; 0: the entry is empty */
    uint64_t busy;   /* time until which atomics occupy the word */
    sim_verb *owner; /* the atomic that has read this word and not written it yet; NULL: none */
} sim_word;

typedef struct sim_words {
    sim_word *slots;
    size_t capacity, count;
} sim_words;

/* ---- Verbs ---- */

enum sim_class { SIM_CLASS_READ, SIM_CLASS_WRITE, SIM_CLASS_ATOMIC };

typedef enum sim_verb_state {
    SIM_QUEUED,    /* waits for a fence flag or the limit of outstanding verbs */
    SIM_SENT,      /* on its way to the memory node */
    SIM_SCHEDULED, /* has arrived at the node; the time of its effect is chosen */
    SIM_HELD,      /* a test holds back the effect of the verb */
    SIM_BLOCKED,   /* must wait for the effect of an earlier verb, or for a node that is down */
    SIM_BEGUN,     /* some granules have taken effect, or a split atomic has read its word */
    SIM_EFFECTIVE, /* has taken effect; the response is on its way */
    SIM_DONE_HELD, /* a test holds back the completion of the verb */
} sim_verb_state;

typedef struct sim_post { /* a batch in flight */
    far_batch *batch;
    sim_conn *conn;
    uint32_t remaining; /* number of verbs that have not completed */
    /* number of the memory nodes that the batch uses; the client pays the CPU time of one completion for each */
    uint32_t completions;
    int status;
    struct sim_post *prev, *next; /* links in the list of the connection; `next` also links the free list */
} sim_post;

struct sim_verb {
    far_verb verb;
    sim_conn *conn;
    sim_post *post; /* NULL: the client has failed, and the verb takes effect without a poster */
    far_sim_client *client;
    uint64_t index; /* number among the verbs of its client; the first one has 1 */
    uint32_t generation;
    uint8_t state, class;
    uint8_t node;
    bool owns_payload;      /* verb.local is a copy that the simulator frees */
    bool failed;            /* the verb completes with FAR_ERR_UNREACHABLE */
    bool is_split;          /* an atomic that reads and writes its word at two instants (fault `swallow`) */
    uint32_t granules;      /* number of granules into which the verb can be torn; 1 for an atomic */
    uint32_t granules_done; /* number of granules that have taken effect; of a WRITE these are the first ones */
    uint32_t granule_limit; /* a WRITE of a failed client ends after this many granules; otherwise = granules */
    uint32_t parts, part;   /* torn verb: number of instants over which the effect is spread, and the next of them */
    /* torn verb or split atomic: time from the first to the last instant of its effect in ps, and the time of the last
     * one */
    uint64_t duration, end_time;
    uint64_t seed;     /* random number from which the granules of each part of a torn verb are derived */
    uint64_t checksum; /* checksum of a WRITE's payload at the post; used only while faults are on */
    uint64_t old;      /* the word that an atomic has read */
    uint64_t pin_clock;
    uint32_t index_key;
    const char *label;
    sim_verb *after; /* the verb after which this verb must take effect, because of far_sim_order; NULL: none */
    uint32_t after_generation;
    /* holds by which a test delays the effect or the completion of this verb; NULL: none */
    far_sim_hold *hold_effect, *hold_done;
    sim_verb *prev, *next; /* links in the list of the connection, in posting order; `next` also links the free list */
    sim_verb *queue_next;  /* link in the send queue of its queue pair */
};

struct far_sim_hold {
    far_sim_world *world;
    sim_verb *verb;
    uint32_t generation, granules;
    bool reached, released, completion;
    uint8_t *released_granules; /* a flag for each granule that the test has released; NULL: none was released */
    uint32_t released_count;
    far_sim_hold *next;
};

/* The queue pair of one connection to one memory node. */
typedef struct sim_qp {
    uint64_t last[3];  /* for each class of verbs, the time at which the latest scheduled effect of this class ends */
    uint64_t last_any; /* the latest of the three times in `last` */
    uint32_t outstanding;         /* number of READs and atomics in flight */
    bool failed;                  /* the node rejects all further verbs of the connection */
    uint64_t last_message_at;     /* questions=on: time in ns when the last message to the node arrives */
    unsigned claimed_id;          /* questions=on: the id that the connection has claimed at the node; 0: none */
    uint64_t timed_outage;        /* number of the outage for which the connection's timer was started; 0: none */
    sim_verb *queue, *queue_last; /* verbs that wait to be sent */
} sim_qp;

struct sim_conn {
    far_conn conn;
    sim_node *node;
    far_sim_world *world;
    far_sim_client *client; /* the client that posted last */
    uint64_t number;        /* number of the connection, unique in the world */
    unsigned id, generation;
    uint64_t claim; /* number of the claim of the connection, with questions=on */
    bool claimed, fenced, closed;
    bool declared_failed; /* a client got the answer that this session has failed */
    bool end_announced;   /* the messages that report the end of the connection were sent to all nodes (control.c) */
    /* number of messages and timers under way that refer to this connection, which is not freed before they end */
    uint64_t messages;
    struct control_request *requests; /* control messages that have no answer yet */
    far_control *answers;             /* control messages that the next poll completes */
    sim_verb *first, *last;           /* verbs that have not completed, in posting order */
    sim_post *posts, *posts_last;
    far_batch *completed, *completed_last; /* batches for the next poll to deliver */
    uint32_t blocked;                      /* number of verbs in the states SIM_HELD and SIM_BLOCKED */
    /* True if a verb was held or blocked since the connection was last idle. Then the times of effects alone no longer
     * guarantee the order of verbs, so the order is checked before each effect. */
    bool disturbed;
    uint32_t queued;       /* number of verbs in the state SIM_QUEUED */
    sim_conn *prev, *next; /* links in the world's list of connections */
    sim_qp qps[];
};

/* A compute node is one handle of a pool, with its virtual host and its NIC. */
struct sim_node {
    far_fabric fabric;
    far_host host;
    far_sim_world *world;
    unsigned number;
    bool failed, closed;
    sim_nic nic;
    sim_node *next;
};

typedef enum sim_client_state { SIM_PARKED, SIM_SLEEPING, SIM_STOPPED, SIM_RUNNING, SIM_ENDED } sim_client_state;

struct far_sim_client {
    far_sim_world *world;
    /* compute node on which the client runs; NULL: this is the object that represents code outside of all clients */
    sim_node *node;
    unsigned number;
    char name[24];
    bool background, woken;
    bool skipped; /* an event resumed the client, but the present run leaves it out; it runs when a run includes it */
    uint8_t state;
    /* events that resume the client carry this number; it is incremented when the client resumes */
    uint32_t wake_generation;
    uint32_t empty_polls, refusals; /* number of unsuccessful polls, and of refused batches, in a row */
    uint64_t until;                 /* deadline of the present park in ps */
    far_context *context, *resume_at;
    void (*run)(void *arg);
    void *arg;
    far_parker ended_parker; /* a thread that joins this client parks here */
    uint64_t verbs;
    uint32_t held;
    const char *where; /* name of the point, or label of the batch, at which the client was stopped */
    /* rules of tests for this client; `fired` lists the rules that have matched and are being applied */
    sim_rule *rules, *fired;
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
    uint64_t time, index, addr, a, b, c; /* meaning of a, b and c: see trace.c */
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
    /* questions=on: messages to the node are deferred, while the node is down and possibly a little longer */
    bool defers_messages;
    uint64_t outages; /* number of times that the node was down */
    struct sim_message *deferred, *deferred_last;
    net_table *table; /* the node's table of claims with questions=on, otherwise NULL */
    net_ledger *ledger;
    /* state of the memory for the memory checker; NULL: the allocator has not mentioned this node yet */
    sim_chunk *chunks;
} sim_memory;

struct far_sim_world {
    sim_config config;
    sim_cost cost;
    uint64_t faults, limit; /* current faults and current time limit; initially those of `config` */
    unsigned fabrics, nodes_made;
    uint64_t now, sequence;
    uint64_t events_at_now; /* number of events since virtual time last advanced */
    sim_heap heap;
    sim_memory *memory;
    sim_words words;
    far_random random, secrets;

    sim_node *nodes;
    struct sim_message *messages; /* list of the messages that are under way (control.c) */
    bool ending;
    sim_conn *conns, *conns_last;
    uint64_t conns_made;
    far_sim_client outside, *clients, *clients_last;
    unsigned clients_made;
    far_sim_client *running; /* the client that runs now; &outside while no client runs */
    far_context *loop;
    unsigned depth; /* number of nested event loops */
    sim_scope scope;
    far_sim_client *scope_client;
    uint64_t bound; /* virtual time that the current event loop must not pass */
    bool deadlocked;
    uint64_t waits_after_deadlock;
    uint64_t split_atomics;      /* number of split atomics that have read their word and not written it yet */
    uint64_t unfinished_clients; /* number of clients of far_sim_start that have not ended */
    /* True if a client may have ended, stopped, or begun to wait for a hold since far_sim_run last computed its result,
     * so the result must be computed again. */
    bool states_changed;
    far_sim_client *hold_client; /* client of the hold that was reached last */
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

    uint64_t clock; /* clock of the memory checker, which advances with every call of the allocator */
    uint64_t errors;
    char *error_texts[SIM_ERRORS_KEPT];
    sim_trace_entry *trace;
    uint64_t traced, trace_hash;
    FILE *trace_file;
    far_sim_world *next;
};

/* Functions of world.c: */
void sim_push_event(far_sim_world *world, uint64_t time, sim_event_kind kind, void *object, uint32_t generation);
void sim_drop_stale_events(far_sim_world *world); /* drops stale events from the head of the queue */
/* Runs the next event if its time is not after `bound`. Returns false if there is none. */
bool sim_run_next_event(far_sim_world *world, uint64_t bound);
/* Called by code outside of all clients. Runs events until *token is not 0 (NULL: no token) or virtual time reaches
 * `until`. */
void sim_wait_outside(far_sim_world *world, atomic_uint *token, uint64_t until);
void sim_close_fabric(far_fabric *fabric);
static inline far_sim_world *sim_world(far_fabric *fabric) {
    return ((sim_node *)fabric)->world;
}
void *sim_allocate(size_t bytes); /* returns zeroed memory; aborts the process with a message if there is none */

/* Functions of client.c: */
extern const far_host_ops sim_host_ops;
void sim_clients_free(far_sim_world *world);
far_sim_client *sim_client_new(sim_node *node, const char *name, void (*run)(void *arg), void *arg, bool background);
void sim_client_resume(far_sim_client *client); /* runs the client until it waits again; called by the event loop */
bool sim_client_may_run(const far_sim_client *client);
void sim_client_wake(far_sim_client *client, uint64_t time);
/* Schedules the clients that an event resumed while the simulator ran only other clients (sim_client_may_run), if they
 * may run now. */
void sim_wake_skipped_clients(far_sim_world *world);
void sim_sleep_until(far_sim_world *world, uint64_t time);
void sim_stop_client(far_sim_client *client, const char *where);
void sim_unpark(far_sim_world *world, far_parker *parker);
void sim_park(far_sim_world *world, far_parker *parker, uint64_t until_ns);
static inline bool sim_is_outside(const far_sim_client *client) {
    return !client->context;
}
static inline bool sim_client_has_failed(const far_sim_client *client) {
    return client->node && client->node->failed;
}

/* Functions of connection.c: */
extern const far_fabric_ops sim_fabric_ops, sim_fabric_ops_with_control;
void sim_conns_free(far_sim_world *world);
void sim_verb_arrive(far_sim_world *world, sim_verb *verb);
void sim_verb_done(far_sim_world *world, sim_verb *verb);
void sim_verb_free(far_sim_world *world, sim_verb *verb); /* removes the verb from its lists and frees it */
void sim_post_complete(sim_post *post, int status);
/* frees the connection if it is closed and none of its verbs or messages is under way */
void sim_conn_free_if_unused(sim_conn *conn);

/* Functions of nic.c: */
int sim_compute_costs(const sim_config *config, sim_cost *cost);
uint64_t sim_nic_send(far_sim_world *world, sim_verb *verb);    /* returns the time of arrival at the memory node */
uint64_t sim_nic_arrive(far_sim_world *world, sim_verb *verb);  /* returns the time of the effect */
uint64_t sim_nic_respond(far_sim_world *world, sim_verb *verb); /* returns the time of completion */
sim_word *sim_word_of(far_sim_world *world, far_addr addr);
static inline uint64_t sim_transfer_time(const sim_cost *cost, uint64_t bytes) {
    return (bytes * cost->byte_1024) >> 10;
}

/* Functions of effect.c: */
void sim_run_effect(far_sim_world *world, sim_verb *verb);
/* arguments: classes of verbs to one node */
bool sim_classes_are_ordered(const far_sim_world *world, unsigned first, unsigned second);
void sim_apply_granule(far_sim_world *world, sim_verb *verb, uint32_t granule);
/* makes all granules of the verb that have not taken effect yet take effect now */
void sim_apply_remainder(far_sim_world *world, sim_verb *verb);
void sim_finish_effect(far_sim_world *world, sim_verb *verb);
void sim_unblock_verbs(sim_conn *conn);
void sim_unblock_all(far_sim_world *world);
void sim_finish_split_atomic(far_sim_world *world, sim_verb *verb);
void sim_fail_verb(far_sim_world *world, sim_verb *verb);
void sim_abort_verb(far_sim_world *world, sim_verb *verb); /* makes the verb fail at once, also if it has begun */
uint32_t sim_count_granules(const far_sim_world *world, const far_verb *verb);

/* Functions of fault.c: */
void sim_fault_schedule(far_sim_world *world, sim_verb *verb, sim_qp *qp, uint64_t base);
uint64_t sim_fault_next_part_time(far_sim_world *world, sim_verb *verb);
bool sim_fault_granule_is_in_part(const sim_verb *verb, uint32_t granule);
uint32_t sim_fault_part_end(const sim_verb *verb);
void sim_fault_mark_buffers(far_sim_world *world, sim_verb *verb);
bool sim_fault_payload_changed(const sim_verb *verb);
uint64_t sim_fault_completion_delay(far_sim_world *world);
uint64_t sim_fault_message_delay(far_sim_world *world); /* returns a delay in ns */
void sim_fault_maybe_stall(far_sim_client *client);
bool sim_fault_let_overtake(far_sim_world *world, const sim_verb *verb, const sim_qp *qp);

/* Functions of control.c: */
void sim_submit_control(far_conn *conn, far_control *question);
int sim_deliver_answers(sim_conn *conn);
void sim_announce_end(sim_conn *conn);
void sim_end_at_all_nodes(sim_conn *conn);
void sim_start_outage_timer(sim_conn *conn, unsigned node);
void sim_resume_memory_node(far_sim_world *world, unsigned node);
int sim_create_node_tables(far_sim_world *world);
void sim_free_node_tables(far_sim_world *world);

/* Functions of failure.c: */
void sim_fence_conn(sim_conn *conn, int status);
void sim_give_up_session(sim_conn *conn); /* called when the session of the connection gives itself up */
int sim_session_has_failed(far_conn *asker, unsigned id, unsigned generation);

/* Functions of steer.c: */
void sim_steer_before_post(far_sim_client *client, const far_batch *batch);
void sim_steer_posted(far_sim_client *client, sim_verb *first, uint32_t count);
void sim_steer_point(far_sim_client *client, const char *name, const char *label);
void sim_mark_hold_reached(sim_verb *verb, far_sim_hold *hold);
void sim_rules_free(far_sim_client *client);
void sim_holds_free(far_sim_world *world);
/* returns true if the client can do nothing until a test releases a hold */
bool sim_client_waits_for_holds(const far_sim_client *client);

/* Functions of checker.c: */
extern const far_memory_checker_ops sim_checker_ops;
void sim_check_access(far_sim_world *world, const sim_verb *verb, far_addr addr, uint64_t length);
void sim_checker_free(far_sim_world *world);
void sim_report_error(far_sim_world *world, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Functions of trace.c: */
void sim_trace(far_sim_world *world, sim_trace_kind kind, const far_sim_client *client, const char *label, uint64_t a);
void sim_trace_verb(far_sim_world *world, sim_trace_kind kind, const sim_verb *verb, uint64_t a, uint64_t b,
                    uint64_t c);
void sim_trace_post(far_sim_world *world, const sim_verb *verb);
const char *sim_verb_name(unsigned kind);
void sim_trace_print(const far_sim_world *world, FILE *file, uint64_t lines);

#endif
