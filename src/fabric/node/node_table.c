/* Which session holds which id at a memory node (node_table.h). */
#include "fabric/node/node_table.h"

#include <string.h>


/* Changes a word of the ledger by one store, because the daemon may be killed between any two stores. */
static void store_word(uint64_t *word, uint64_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}


static void raise_word(uint64_t *word, uint64_t value) {
    if (*word < value)
        store_word(word, value);
}


/* Initializes the table when the daemon starts. The table accepts a claim only if it is larger than all earlier claims.
 * So while no connection holds an id, all earlier claims of the id have ended. */
void net_table_start(net_table *table, net_ledger *ledger) {
    memset(table, 0, sizeof(*table));
    table->ledger = ledger;
}


net_verdict net_table_issue(net_table *table, unsigned id, unsigned generation, net_connection holder, uint64_t *claim) {
    if (table->current[id].holder != 0 && table->current[id].holder != holder)
        return NET_BUSY;
    if (table->ledger->drawn == UINT64_MAX) /* no node ever issues that many claims, so the file is damaged */
        return NET_STALE;
    net_id_claims *seat = &table->ledger->seats[id];
    store_word(&table->ledger->drawn, table->ledger->drawn + 1);
    store_word(&seat->claim, table->ledger->drawn);
    table->current[id].holder = holder;
    table->current[id].generation = generation;
    *claim = seat->claim;
    return NET_GRANTED;
}


net_verdict net_table_present(net_table *table, unsigned id, unsigned generation, uint64_t claim, net_connection holder,
                           net_connection *displaced) {
    net_id_claims *seat = &table->ledger->seats[id];
    *displaced = 0;
    if (claim <= seat->fenced || claim <= seat->claim)
        return NET_STALE;
    if (table->current[id].holder != holder)
        *displaced = table->current[id].holder;
    store_word(&seat->claim, claim);
    table->current[id].holder = holder;
    table->current[id].generation = generation;
    return NET_GRANTED;
}


/* If another generation holds the id, all smaller claims of this id have ended, because a claim is issued only while no
 * connection holds the id. */
bool net_table_is_live(const net_table *table, unsigned id, unsigned generation, uint64_t *over) {
    const net_id_claims *seat = &table->ledger->seats[id];
    bool held = table->current[id].holder != 0;
    if (held && table->current[id].generation == generation)
        return true;
    *over = held ? seat->claim - 1 : seat->claim;
    return false;
}


void net_table_fence(net_table *table, unsigned id, uint64_t claim, net_connection *displaced) {
    net_id_claims *seat = &table->ledger->seats[id];
    *displaced = 0;
    raise_word(&seat->fenced, claim);
    if (claim < seat->claim)
        return;
    *displaced = table->current[id].holder;
    table->current[id].holder = 0;
}


void net_table_evict(net_table *table, unsigned id, unsigned generation, uint64_t *over, net_connection *displaced) {
    *displaced = 0;
    if (net_table_is_live(table, id, generation, over)) {
        *over = table->ledger->seats[id].claim;
        net_table_fence(table, id, *over, displaced);
    }
}


void net_table_release(net_table *table, unsigned id, net_connection holder) {
    if (table->current[id].holder == holder)
        table->current[id].holder = 0;
}
