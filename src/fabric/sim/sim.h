/* The simulator: a fabric (fabric/fabric.h) in deterministic virtual time. It serves two purposes: testing protocols
 * under everything that the fabric contract allows (docs/fabric.md), and reproducing figures of papers that need a
 * cluster. One OS thread runs everything, and the same seed gives the same run, byte for byte, on every machine.
 * src/fabric/sim/README.md teaches the simulator; this header is its interface for tests.
 *
 * A *world* is a set of memory nodes, a queue of events ordered by virtual time, and any number of compute nodes.
 * far_sim_open (fabric.h) creates a world, or joins the world of the same name=. Each open adds one compute node: a
 * far_fabric with a virtual far_host of its own. The world is freed when its last handle is closed. The options of the
 * URI are a list "name=value,name=value":
 *
 *     seed=1 memory_nodes=1 size=64M (of each node) name=N
 *     atomic_bytes=64|16|8 masked_cas=on|off atomics_in_order=on|off reads_in_order=on|off
 *     questions=off|on     control messages (claims, checks of liveness) take round trips to the nodes, as on a network
 *     nic=cx6|cx5, and each parameter of the preset: read_mops write_mops atomic_mops word_mops bandwidth (GB/s)
 *         rtt_read rtt_write rtt_atomic wire (durations: 2350, 2350ns, 2.35us)
 *         outstanding cpu_doorbell cpu_verb cpu_completion
 *     faults=none|all|tear+reorder+stall (also: late, swallow; reorder includes both)
 *     watch=on|off         the memory checker
 *     limit=20s            virtual time after which one call of a run function below gives up
 *     unreachable=100us    time after which a batch to a node that is down fails
 *
 * A *client* is a simulated thread with a stack of its own. Tests start clients with far_sim_start; the library starts
 * background clients (housekeeping) through the virtual host. Code takes no virtual time. Only posting and completions
 * cost a session CPU time, during which other clients run. So clients interleave when they post, poll or park.
 *
 * Which clients run: a client of far_sim_start runs only inside far_sim_run and far_sim_run_for (which run all clients)
 * and far_sim_run_client (which runs one). Background clients, NICs, and the clients of a killed compute node run
 * whenever virtual time advances. When code outside of all clients, for example the body of a test, calls into the
 * pool, virtual time advances until the call returns, and of the clients only the background clients run.
 *
 * Example of a named interleaving, in which the update of client B takes effect between the READ and the CAS of client
 * A:
 *
 *     far_sim_client *a = far_sim_start(fabric_a, "a", update_x, &ctx_a);
 *     far_sim_client *b = far_sim_start(fabric_b, "b", update_x, &ctx_b);
 *     far_sim_stop_before(a, (far_sim_match){.kind = FAR_SIM_CAS});
 *     assert_int_equal(far_sim_run_client(a), FAR_SIM_STOPPED);
 *     assert_int_equal(far_sim_run_client(b), FAR_SIM_ENDED);
 *     far_sim_resume(a);
 *     assert_int_equal(far_sim_run_client(a), FAR_SIM_ENDED);
 *     assert_int_equal(far_sim_watch_errors(far_sim_world_of(fabric_a)), 0);
 *
 * Labels and names of points are stored as pointers. They must be string literals, or live longer than the world. */
#ifndef FAR_FABRIC_SIM_SIM_H
#define FAR_FABRIC_SIM_SIM_H

#include "fabric/fabric.h"

#include <stdio.h>

typedef struct far_sim_world far_sim_world;
typedef struct far_sim_client far_sim_client; /* valid until the world ends */
typedef struct far_sim_hold far_sim_hold;     /* valid until the world ends */

far_sim_world *far_sim_world_of(far_fabric *fabric);
uint64_t far_sim_now(const far_sim_world *world); /* returns the virtual time in ns */
uint64_t far_sim_seed(const far_sim_world *world);
/* Returns the bytes of a memory node, for tests that read or damage memory without verbs. */
void *far_sim_memory(far_sim_world *world, unsigned node);

enum far_sim_faults {
    /* READs and WRITEs take effect granule by granule: READs in any order, WRITEs in the order of addresses */
    FAR_SIM_TEAR = 1,
    FAR_SIM_REORDER = 2, /* verbs without an order between them take effect in any order */
    FAR_SIM_LATE = 4,    /* effects and completions are delayed by random times */
    /* atomics read and write their word at two instants, so that a successful one overwrites a WRITE in between */
    FAR_SIM_SWALLOW = 8,
    FAR_SIM_STALL = 16, /* clients pause for random times */
    FAR_SIM_ALL_FAULTS = 31,
};
/* Changes the faults of a running world, for example after a test has loaded its data without faults. */
void far_sim_set_faults(far_sim_world *world, unsigned faults);

/* ---- Clients and running them ---- */

/* Creates a client on the compute node. It calls run(arg) when the world is next run, and ends when run returns.
 * Returns NULL if there is no memory. */
far_sim_client *far_sim_start(far_fabric *fabric, const char *name, void (*run)(void *arg), void *arg);
/* Returns the client that runs now, or the object that represents code outside of all clients; never NULL. */
far_sim_client *far_sim_current(far_sim_world *world);
const char *far_sim_name(const far_sim_client *client);
bool far_sim_ended(const far_sim_client *client);
uint64_t far_sim_verbs(const far_sim_client *client); /* number of verbs that the client has posted */
/* Suspends the calling client for that time. Called from outside of all clients, it runs background clients for that
 * time. */
void far_sim_sleep(far_sim_world *world, uint64_t ns);

typedef enum far_sim_result {
    FAR_SIM_ENDED,   /* the client has ended; of far_sim_run: every client has ended */
    FAR_SIM_STOPPED, /* the client stopped before a verb or at a point, as a test had requested */
    /* a verb of the client was just held back, or the client can do nothing until a held verb is released */
    FAR_SIM_HELD,
    /* the client waits for clients that do not run now: stopped, held, or left out of this run */
    FAR_SIM_WAITING,
    FAR_SIM_DEADLOCK, /* the client waits and no event is left; the state of all clients was printed to stderr */
    /* virtual time passed its limit, or did not advance because a client runs an endless loop; the state was printed to
     * stderr */
    FAR_SIM_LIMIT,
} far_sim_result;
const char *far_sim_result_name(far_sim_result result);

/* Runs this client and the background clients until one of the above results. FAR_SIM_HELD is returned once when a hold
 * is reached; call the function again to let the client continue with work that does not need the held verb. */
far_sim_result far_sim_run_client(far_sim_client *client);
/* Runs all clients until each of them has ended, is stopped, or waits for a held verb. The result is ENDED only if all
 * have ended; otherwise HELD if any client waits for a held verb; otherwise STOPPED. */
far_sim_result far_sim_run(far_sim_world *world);
/* Runs all clients until `ns` nanoseconds of virtual time have passed. */
void far_sim_run_for(far_sim_world *world, uint64_t ns);
void far_sim_resume(far_sim_client *client); /* lets a stopped client continue in the next run that includes it */
/* Sets the virtual time that one call of a run function, or one wait from outside of all clients, may take; 0: no
 * limit. */
void far_sim_limit(far_sim_world *world, uint64_t ns);
/* Returns true after a wait from outside of all clients could never end. All connections were then fenced, so that
 * calls in progress fail with an error message. */
bool far_sim_deadlocked(const far_sim_world *world);
void far_sim_print_state(const far_sim_world *world, FILE *file);

/* Calls fn(arg) at a virtual time (ns), or at once if that time has passed. fn runs outside of all clients and must not
 * wait. */
void far_sim_at(far_sim_world *world, uint64_t time, void (*fn)(void *arg), void *arg);

typedef struct far_sim_posted {
    far_sim_client *client;
    far_conn *conn;
    const far_batch *batch;
    const far_verb *verb;
    uint64_t index; /* 1 = the first verb that this client posted */
    uint32_t units; /* number of tearing granules of the verb; 1 for atomics */
    const char *label;
} far_sim_posted;
/* Sets an observer that is called for each verb when it is posted, in order, before any verb of its batch takes effect.
 * The observer may kill the client; then the whole batch counts as posted, and far_sim_kill_exact selects the verbs
 * that take effect. It must not wait. NULL removes the observer. */
void far_sim_on_verb(far_sim_world *world, void (*fn)(void *ctx, const far_sim_posted *posted), void *ctx);

/* Sets an observer of named points in index code. It is called when a client reaches a point, before the client stalls,
 * is stopped or is killed there. */
void far_sim_on_point(far_sim_world *world, void (*fn)(void *ctx, const far_sim_client *client, const char *name),
                      void *ctx);

/* ---- Steering: actions at a certain verb or point of a client. Each request applies once. ---- */

typedef enum far_sim_kind {
    FAR_SIM_ANY = 0,
    FAR_SIM_READ,
    FAR_SIM_WRITE,
    FAR_SIM_CAS,
    FAR_SIM_FAA,
    FAR_SIM_MASKED_CAS,
    FAR_SIM_ATOMIC, /* any of CAS, FAA and masked CAS */
} far_sim_kind;

/* Selects a verb, or a named point in index code. A field that is 0 does not restrict the selection. */
typedef struct far_sim_match {
    far_sim_kind kind;
    unsigned nth;      /* 0 or 1: the first match from now on; 2: the second; and so on */
    far_addr from, to; /* the verb touches [from, to); to == 0: any address */
    const char *label; /* label of the batch, which is the name of the operation; NULL: any */
    /* selects the point of this name instead of a verb (far_point); only nth and label are used then */
    const char *point;
} far_sim_match;

/* Stops the client before it posts the batch that contains the verb, or at the point. */
void far_sim_stop_before(far_sim_client *client, far_sim_match match);
/* Suspends the client for `ns` when it reaches the matching verb or point, while other clients run. */
void far_sim_stall_at(far_sim_client *client, far_sim_match match, uint64_t ns);
#define FAR_SIM_WHOLE UINT32_MAX
/* Kills the compute node of the client when the client reaches the matching verb or point. At a verb, its batch is
 * posted, and then the following takes effect: all verbs that this client posted earlier, and `units` granules of the
 * matching verb (0: none; FAR_SIM_WHOLE, or 1 for an atomic: all). Later verbs have no effect. At a point, the call
 * acts like far_sim_kill. */
void far_sim_kill_at(far_sim_client *client, far_sim_match match, uint32_t units);
/* Makes the verbs of the batch that contains the matching verb take effect in this order. order[0] is the index in the
 * batch of the verb that takes effect first; count must be the size of the batch. An order that the contract forbids is
 * reported as an error of the run. */
void far_sim_order(far_sim_client *client, far_sim_match match, const uint32_t *order, size_t count);

/* Holds back the effect of the matching verb, and therefore its completion and the effects of verbs that are ordered
 * after it. */
far_sim_hold *far_sim_hold_effect(far_sim_client *client, far_sim_match match);
/* Holds back only the completion of the matching verb, which takes effect normally. */
far_sim_hold *far_sim_hold_completion(far_sim_client *client, far_sim_match match);
/* Returns true once the held verb would have taken effect (far_sim_hold_effect) or completed (far_sim_hold_completion)
 * without the hold. */
bool far_sim_reached(const far_sim_hold *hold);
/* Returns the number of tearing granules of the held verb, or 0 while the verb has not been posted. */
uint32_t far_sim_hold_units(const far_sim_hold *hold);
/* Makes these granules take effect now, in the given order. After the last granule of the verb, its effect is complete.
 * Returns FAR_ERR_INVALID if the hold is not reached, if a granule does not exist or was released before, or if
 * granules of a WRITE are not given in rising order. */
int far_sim_release_units(far_sim_hold *hold, const uint32_t *units, size_t count);
/* Ends the hold: the held effect or completion takes place now. If the hold is not reached yet, it is cancelled. */
void far_sim_release(far_sim_hold *hold);

/* ---- Failures ---- */

/* Kills the compute node now. A random set of its posted verbs still takes effect, partly later, but not after any
 * client got the answer that the session has failed. The set is closed under the rules of order, that is, a verb takes
 * effect only if all verbs that are ordered before it do. Its last WRITE may end between two granules. The clients of
 * the node continue to run, get FAR_ERR_FENCED for every further verb, and should unwind. */
void far_sim_kill(far_fabric *fabric);
/* Like far_sim_kill, but the test selects which verbs take effect: the first `verbs` verbs of the client completely,
 * `units` granules of the next verb, and no later verb. */
void far_sim_kill_exact(far_sim_client *client, uint64_t verbs, uint32_t units);
bool far_sim_killed(const far_fabric *fabric);
/* Breaks a connection. Verbs in flight fail with FAR_ERR_UNREACHABLE, and a random set of them takes effect as after
 * far_sim_kill. Later verbs fail with FAR_ERR_FENCED. */
void far_sim_lose(far_conn *conn);
/* breaks every connection on which this client was the last to post */
void far_sim_lose_client(far_sim_client *client);
/* Fences a session although it is alive, as an eviction does. None of its posted verbs takes effect any more, and it
 * gets FAR_ERR_FENCED. Returns the number of connections that were fenced. */
int far_sim_declare_dead(far_sim_world *world, unsigned id, unsigned generation);
/* Begins (down) or ends an outage of a memory node. Its memory keeps its contents. Batches to the node fail with
 * FAR_ERR_UNREACHABLE. With questions=on the node instead keeps the verbs and messages that reach it and runs them when
 * it is up again; a client that waits longer than unreachable= loses its connection meanwhile. */
void far_sim_node_down(far_sim_world *world, unsigned node, bool down);
/* questions=on: ends the daemon of the node and starts it again with the same memory. All connections to it are fenced.
 */
void far_sim_node_restart(far_sim_world *world, unsigned node);

/* ---- Memory checker and trace ---- */

#define FAR_SIM_POISON 0xFD /* each byte of freed memory has this value, unless the type of the object is stable */
/* Returns the number of errors: verbs on free or reused memory, payloads that were changed while in flight, verbs that
 * took effect after their session was declared failed, and requests for impossible orders. */
uint64_t far_sim_watch_errors(const far_sim_world *world);
/* Returns the text of the error with index `nth`, where 0 is the first error. Returns NULL if the text was not stored.
 */
const char *far_sim_watch_error(const far_sim_world *world, unsigned nth);

void far_sim_trace_dump(const far_sim_world *world, FILE *file); /* prints the last 4096 events */
void far_sim_trace_to(far_sim_world *world, FILE *file); /* prints each event from now on to the file; NULL ends it */
uint64_t far_sim_trace_hash(const far_sim_world *world); /* hash of all events so far; equal runs have equal hashes */

#endif
