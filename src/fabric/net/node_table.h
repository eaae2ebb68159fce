/* What a memory node knows of the sessions that work on it: who speaks for which id, and which claims are over. A pure
 * state machine: the daemon (net/server.c) feeds it, tests explore it.
 *
 * A session is known by its id and, beyond that, by a claim number, which node 0 draws and the session shows to all
 * other nodes. A claim that was cut is refused for ever, also after a restart of the node: the ledger outlives it. So a
 * session of which every node says that its claim is cut has no connection there and gets none: it is dead.
 *
 *   draw   node 0: a new claim, unless another connection has the id; NET_OVER: no number is left
 *   show   other nodes: the claim is taken if it is above all that were cut or shown; older connections of the id end
 *   ask    node 0: it lives, or every claim up to some number is over and can be cut elsewhere
 *   cut    other nodes: nothing up to this claim is accepted any more
 *   evict  node 0: cuts whoever has the pair now
 *   leave  a connection ended, or lets go of its id: its claim is over
 *
 * Whoever is displaced must have stopped for good before the caller answers anybody. */
#ifndef FAR_FABRIC_NET_NODE_TABLE_H
#define FAR_FABRIC_NET_NODE_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#define NET_IDS 16384u /* far_client ids have 14 bits; 0 is nobody */

typedef struct net_seat {
    uint64_t claim; /* the largest that was drawn or shown here: no claim up to this one is taken any more */
    uint64_t cut;   /* nor up to this one, which perhaps was never shown here */
} net_seat;

/* What the node keeps in its memory file. Each word is written by one store, and each order of stores is safe. */
typedef struct net_ledger {
    uint64_t drawn; /* the last claim, for all ids together */
    uint64_t unused[7];
    net_seat seats[NET_IDS];
} net_ledger;

typedef uint64_t net_holder; /* a connection, as the caller names it; 0: none */

typedef struct net_table {
    net_ledger *ledger;
    struct {
        net_holder holder;
        unsigned generation;
    } now[NET_IDS];
} net_table;

typedef enum { NET_TAKEN, NET_BUSY, NET_OVER } net_verdict;

/* The node starts: nobody has an id, and so every session of before is over. */
void net_table_start(net_table *table, net_ledger *ledger);

net_verdict net_table_draw(net_table *table, unsigned id, unsigned generation, net_holder holder, uint64_t *claim);
net_verdict net_table_show(net_table *table, unsigned id, unsigned generation, uint64_t claim, net_holder holder,
                           net_holder *displaced);

/* True: the pair lives. Else *over is the claim to be cut at the other nodes. */
bool net_table_ask(const net_table *table, unsigned id, unsigned generation, uint64_t *over);
void net_table_cut(net_table *table, unsigned id, uint64_t claim, net_holder *displaced);
void net_table_evict(net_table *table, unsigned id, unsigned generation, uint64_t *over, net_holder *displaced);
void net_table_leave(net_table *table, unsigned id, net_holder holder);


/* Who has the pair now; 0: nobody. */
static inline net_holder net_table_holder(const net_table *table, unsigned id, unsigned generation) {
    return table->now[id].generation == generation ? table->now[id].holder : 0;
}


static inline bool net_id_is_sound(unsigned id) {
    return id != 0 && id < NET_IDS;
}

#endif
