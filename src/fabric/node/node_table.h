/* Which session holds which id at a memory node, and which claims have ended. This is a pure state machine: the daemon
 * (requests.c) and the simulator drive it, and tests explore its states.
 *
 * A session is identified by its id and by a claim number. Node 0 issues the number, larger than all before, and the
 * client presents it to all other nodes (a fencing token). Each node keeps a ledger of the largest claim of each id and
 * of the largest fenced claim, in its memory file. A fenced claim is refused for ever, also after a restart of the
 * node. So once every node has fenced the claim of a session, the session has no connection to any node and can get
 * none: it has failed permanently.
 *
 * - `net_table_issue` (node 0): issues a new claim, unless another connection holds the id. `NET_STALE`: no number is
 *   left.
 * - `net_table_present` (other nodes): accepts a claim that is larger than all fenced and presented ones, and displaces
 *   the previous connection of the id. `NET_STALE`: the claim is too old.
 * - `net_table_is_live` (node 0): returns whether a session is alive, and if not, the claims to fence at the other nodes.
 * - `net_table_fence` (other nodes): fences all claims of an id up to a number.
 * - `net_table_evict` (node 0): fences the session that holds the pair.
 * - `net_table_release`: a connection has ended or has released its id, so its claim has ended.
 *
 * Some calls return a displaced connection. The caller must stop it, so that none of its verbs can take effect any
 * more, before it sends the answer. */
#ifndef FAR_FABRIC_NODE_NODE_TABLE_H
#define FAR_FABRIC_NODE_NODE_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#define NET_IDS 16384u /* number of ids; an id has 14 bits, and 0 is no session */

typedef struct net_id_claims {
    /* the largest claim that was issued or presented here; no claim up to this one is accepted any more */
    uint64_t claim;
    /* the largest fenced claim, which may never have been presented here; no claim up to this one is accepted either */
    uint64_t fenced;
} net_id_claims;

/* The part of the table that the node keeps in its memory file. Each word changes by a single store, and a kill between
 * two stores leaves a valid ledger. */
typedef struct net_ledger {
    uint64_t drawn; /* the last claim that was issued, for any id */
    uint64_t unused[7];
    net_id_claims seats[NET_IDS];
} net_ledger;

typedef uint64_t net_connection; /* a connection, as the caller identifies it; 0: none */

typedef struct net_table {
    net_ledger *ledger;
    struct {
        net_connection holder;
        unsigned generation;
    } current[NET_IDS];
} net_table;

typedef enum { NET_GRANTED, NET_BUSY, NET_STALE } net_verdict;

/* Initializes the table when the node starts. No connection holds an id yet, so all earlier sessions have ended. */
void net_table_start(net_table *table, net_ledger *ledger);

net_verdict net_table_issue(net_table *table, unsigned id, unsigned generation, net_connection holder, uint64_t *claim);
net_verdict net_table_present(net_table *table, unsigned id, unsigned generation, uint64_t claim, net_connection holder,
                           net_connection *displaced);

/* Returns true if the session (id, generation) is alive. Otherwise sets *over to the largest claim of this session that
 * must be fenced at the other nodes. */
bool net_table_is_live(const net_table *table, unsigned id, unsigned generation, uint64_t *over);
void net_table_fence(net_table *table, unsigned id, uint64_t claim, net_connection *displaced);
void net_table_evict(net_table *table, unsigned id, unsigned generation, uint64_t *over, net_connection *displaced);
void net_table_release(net_table *table, unsigned id, net_connection holder);


/* Returns the connection that holds the session (id, generation), or 0 if there is none. */
static inline net_connection net_table_holder(const net_table *table, unsigned id, unsigned generation) {
    return table->current[id].generation == generation ? table->current[id].holder : 0;
}


static inline bool net_id_is_valid(unsigned id) {
    return id != 0 && id < NET_IDS;
}

#endif
