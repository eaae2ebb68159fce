/* The simulator: a fabric in deterministic virtual time, for proofs and for the papers' figures. One OS thread runs
 * everything; the same seed gives the same run, byte for byte, on every machine.
 *
 * A *world* is a set of memory nodes, an event queue in virtual time and any number of compute nodes. far_sim_open
 * (fabric.h) makes a world, or joins the one with the same name=; every open is one compute node: one far_fabric with
 * its own virtual far_host. The world ends with its last handle. Options are a list "name=value,name=value":
 *
 *   seed=1 memory_nodes=1 size=64M (each node) name=N
 *   atomic_bytes=64|16|8 masked_cas=on|off atomics_in_order=on|off reads_in_order=on|off
 *   questions=off|on     claims and questions about life take messages to the nodes and back, as over a network
 *   nic=cx6|cx5, and each parameter of it: read_mops write_mops atomic_mops word_mops bandwidth (GB/s)
 *       rtt_read rtt_write rtt_atomic wire (durations: 2350, 2350ns, 2.35us)
 *       outstanding cpu_doorbell cpu_verb cpu_completion
 *   faults=none|all|tear+reorder+stall (also: late, swallow; reorder contains both)
 *   watch=on|off
 *   limit=20s            virtual time that one call below may take before it gives up
 *   unreachable=100us    after which a batch to a node that is down fails
 *
 * A *client* is a simulated thread with a stack of its own. far_sim_start makes one; the virtual host's start makes
 * background ones (housekeeping). Code runs in no time, except that posting and completions cost a session's CPU: other
 * clients run meanwhile, so post and poll are points where clients interleave, like park.
 *
 * Who runs when. A client of far_sim_start runs only inside far_sim_run and far_sim_run_for (all of them) and
 * far_sim_run_client (that one alone). Background clients, the NICs and clients of a dead compute node run whenever
 * virtual time runs. A call from outside any client (the test's own stack) into the pool runs virtual time until it
 * returns, with the background clients only.
 *
 * A named interleaving, whole: b's update falls between the READ and the CAS of a's.
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
 * Labels and names of points are kept as pointers: they must be string literals, or outlive the world. */
#ifndef FAR_FABRIC_SIM_SIM_H
#define FAR_FABRIC_SIM_SIM_H

#include "fabric/fabric.h"

#include <stdio.h>

typedef struct far_sim_world far_sim_world;
typedef struct far_sim_client far_sim_client; /* valid until the world ends */
typedef struct far_sim_hold far_sim_hold;     /* valid until the world ends */

far_sim_world *far_sim_world_of(far_fabric *fabric);
uint64_t far_sim_now(const far_sim_world *world); /* ns of virtual time */
uint64_t far_sim_seed(const far_sim_world *world);
/* The bytes of a memory node, for tests that look behind the verbs. */
void *far_sim_memory(far_sim_world *world, unsigned node);

enum far_sim_faults {
    FAR_SIM_TEAR = 1,    /* READs sample unit by unit in any order, WRITEs land unit by unit */
    FAR_SIM_REORDER = 2, /* verbs without an order between them take effect in any order */
    FAR_SIM_LATE = 4,    /* effects and completions are late at random */
    FAR_SIM_SWALLOW = 8, /* atomics take a while: a successful one overwrites a WRITE that lands meanwhile */
    FAR_SIM_STALL = 16,  /* clients stall */
    FAR_SIM_ALL_FAULTS = 31,
};
/* Changes the faults of a running world (load without, then switch them on). */
void far_sim_set_faults(far_sim_world *world, unsigned faults);

/* ---- Clients and running them ---- */

/* A new client of the compute node: it runs run(arg) when the world is run next, and ends with it. NULL when memory is
 * short. */
far_sim_client *far_sim_start(far_fabric *fabric, const char *name, void (*run)(void *arg), void *arg);
/* The client that runs now, or the one that stands for the outside (never NULL). */
far_sim_client *far_sim_current(far_sim_world *world);
const char *far_sim_name(const far_sim_client *client);
bool far_sim_ended(const far_sim_client *client);
uint64_t far_sim_verbs(const far_sim_client *client); /* how many verbs it has posted */
/* Lets the calling client sleep (from outside: runs background clients for that long). */
void far_sim_sleep(far_sim_world *world, uint64_t ns);

typedef enum far_sim_result {
    FAR_SIM_ENDED,    /* the client (far_sim_run: every client) has ended */
    FAR_SIM_STOPPED,  /* the client stands before a verb or at a point where it was to stop */
    FAR_SIM_HELD,     /* a verb of it was held back just now, or it can only wait for one that is */
    FAR_SIM_WAITING,  /* the client waits for some that do not run now: stopped, held, or left out of this run */
    FAR_SIM_DEADLOCK, /* the client waits, and nothing will ever happen (the state of all goes to stderr) */
    FAR_SIM_LIMIT,    /* virtual time passed its limit, or stands still: somebody spins (the state goes to stderr) */
} far_sim_result;
const char *far_sim_result_name(far_sim_result result);

/* Runs this client alone (with background clients) until one of the above. FAR_SIM_HELD is said once when a hold is
 * reached; call again to let the client go on with what it can do meanwhile. */
far_sim_result far_sim_run_client(far_sim_client *client);
/* Runs all clients until each has ended, is stopped, or waits for a held verb: ENDED, HELD or STOPPED in this order of
 * preference. */
far_sim_result far_sim_run(far_sim_world *world);
/* Runs all clients for so much virtual time. */
void far_sim_run_for(far_sim_world *world, uint64_t ns);
void far_sim_resume(far_sim_client *client); /* a stopped client may go on when it is run next */
/* Virtual time that one call of the above, or one wait from outside, may take: 0 = no limit. */
void far_sim_limit(far_sim_world *world, uint64_t ns);
/* True after a wait from outside could never end. All connections were fenced then, so that the calls under way fail
 * with words. */
bool far_sim_deadlocked(const far_sim_world *world);
void far_sim_print_state(const far_sim_world *world, FILE *file);

/* Calls fn(arg) at a virtual time (ns; at once if it is past). fn runs outside of all clients; it must not wait. */
void far_sim_at(far_sim_world *world, uint64_t time, void (*fn)(void *arg), void *arg);

typedef struct far_sim_posted {
    far_sim_client *client;
    far_conn *conn;
    const far_batch *batch;
    const far_verb *verb;
    uint64_t index; /* 1 = the first verb that this client posted */
    uint32_t units; /* into which a WRITE can be cut; 1 for atomics */
    const char *label;
} far_sim_posted;
/* fn is told of every verb when it is posted, in order, before any verb of its batch takes effect. It may kill (the
 * whole batch counts as posted then; far_sim_kill_exact says how much of it happens), not wait. NULL ends it. */
void far_sim_on_verb(far_sim_world *world, void (*fn)(void *ctx, const far_sim_posted *posted), void *ctx);

/* The same for points in index code: fn is told when a client comes to one, before it stalls, stops or dies there. */
void far_sim_on_point(far_sim_world *world, void (*fn)(void *ctx, const far_sim_client *client, const char *name),
                      void *ctx);

/* ---- Steering: what happens at a certain verb of a client. Every request works once. ---- */

typedef enum far_sim_kind {
    FAR_SIM_ANY = 0,
    FAR_SIM_READ,
    FAR_SIM_WRITE,
    FAR_SIM_CAS,
    FAR_SIM_FAA,
    FAR_SIM_MASKED_CAS,
    FAR_SIM_ATOMIC, /* any of the three */
} far_sim_kind;

/* Names a verb, or a point in index code. A field that is 0 does not restrict. */
typedef struct far_sim_match {
    far_sim_kind kind;
    unsigned nth;      /* 0, 1: the first that fits from now on; 2: the second.. */
    far_addr from, to; /* touches [from, to); to == 0: anywhere */
    const char *label; /* the batch's (the kind of operation) */
    const char *point; /* not a verb but the point of this name (far_watch_ops.point); only nth and label count then */
} far_sim_match;

/* Stops the client before the batch with that verb is posted, or at the point. */
void far_sim_stop_before(far_sim_client *client, far_sim_match match);
/* Lets it stall there for so long (it sleeps; others run). */
void far_sim_stall_at(far_sim_client *client, far_sim_match match, uint64_t ns);
#define FAR_SIM_WHOLE UINT32_MAX
/* Kills its compute node there. At a verb: its batch is posted; all verbs that this client posted before have taken
 * effect, of that verb so many units (0: none; FAR_SIM_WHOLE or an atomic with 1: all), of later ones nothing. At a
 * point: as far_sim_kill. */
void far_sim_kill_at(far_sim_client *client, far_sim_match match, uint32_t units);
/* The verbs of the batch that contains the match take effect in this order (order[0] = index of the first; count must
 * be the batch's). An order that the contract rules out is an error of the watch. */
void far_sim_order(far_sim_client *client, far_sim_match match, const uint32_t *order, size_t count);

/* Holds back the effect (and so the completion) of that verb, and of what is ordered after it. */
far_sim_hold *far_sim_hold_effect(far_sim_client *client, far_sim_match match);
/* Holds back its completion only. */
far_sim_hold *far_sim_hold_completion(far_sim_client *client, far_sim_match match);
bool far_sim_reached(const far_sim_hold *hold);        /* the verb is there: it would have taken effect, or completed */
uint32_t far_sim_hold_units(const far_sim_hold *hold); /* how many units the verb has; 0 until it is posted */
/* These units take effect now, in the order given; after the last of all the verb is through. FAR_ERR_INVALID when the
 * hold is not reached, a unit is out of range or was given before, or units of a WRITE do not come in rising order. */
int far_sim_release_units(far_sim_hold *hold, const uint32_t *units, size_t count);
void far_sim_release(far_sim_hold *hold); /* all the rest; before it is reached: never holds */

/* ---- Death ---- */

/* The compute node dies now. Of its posted verbs a random set, closed under the order rules, still takes effect (its
 * last WRITE perhaps cut between units), partly later, never after somebody's is_dead said so. Its clients run on, get
 * FAR_ERR_FENCED for whatever they post, and should unwind. */
void far_sim_kill(far_fabric *fabric);
/* As far_sim_kill, but the client's first `verbs` posted verbs have taken effect wholly, of the next one `units` units, of
 * later ones none. */
void far_sim_kill_exact(far_sim_client *client, uint64_t verbs, uint32_t units);
bool far_sim_killed(const far_fabric *fabric);
/* A connection is lost: verbs in flight fail with FAR_ERR_UNREACHABLE (outcome as after far_sim_kill), later ones
 * FAR_ERR_FENCED. */
void far_sim_lose(far_conn *conn);
void far_sim_lose_client(far_sim_client *client); /* every connection on which it posted last */
/* The session is declared dead while it lives (a zombie): nothing it posted takes effect any more, it gets
 * FAR_ERR_FENCED. Returns how many connections were fenced. */
int far_sim_declare_dead(far_sim_world *world, unsigned id, unsigned generation);
/* A memory node that is down answers nobody: batches to it fail with FAR_ERR_UNREACHABLE. Its bytes stay. With
 * questions=on it keeps what comes to it, and a client that waits for longer than unreachable= loses its connection: when the node
 * is up again, what was kept is done. */
void far_sim_node_down(far_sim_world *world, unsigned node, bool down);
/* questions=on: the daemon of the node ends and comes back with its memory. All its connections are cut. */
void far_sim_node_restart(far_sim_world *world, unsigned node);

/* ---- Watch and trace ---- */

#define FAR_SIM_POISON 0xFD /* every byte of freed memory whose type is not stable */
/* Errors of memory use (free or reused memory touched), of payloads changed in flight and of impossible steering. */
uint64_t far_sim_watch_errors(const far_sim_world *world);
const char *far_sim_watch_error(const far_sim_world *world,
                                unsigned nth); /* the first ones in words; NULL beyond them */

void far_sim_trace_dump(const far_sim_world *world, FILE *file); /* the last some thousand events */
void far_sim_trace_to(far_sim_world *world, FILE *file);         /* each event from now on; NULL ends it */
uint64_t far_sim_trace_hash(const far_sim_world *world);         /* of all events so far: equal for equal runs */

#endif
