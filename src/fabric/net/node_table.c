/* Who speaks for which session id at a memory node. */
#include "fabric/net/node_table.h"

#include <string.h>


/* Each word of the ledger is changed by one store: a kill may come between any two. */
static void set(uint64_t *word, uint64_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}


static void raise(uint64_t *word, uint64_t value) {
    if (*word < value)
        set(word, value);
}


/* A claim is taken only if it is above all before it: so with no holder, all earlier claims are over. */
void net_table_start(net_table *table, net_ledger *ledger) {
    memset(table, 0, sizeof(*table));
    table->ledger = ledger;
}


net_verdict net_table_draw(net_table *table, unsigned id, unsigned generation, net_holder holder, uint64_t *claim) {
    if (table->now[id].holder != 0 && table->now[id].holder != holder)
        return NET_BUSY;
    if (table->ledger->drawn == UINT64_MAX) /* no node counts so far: the file is damaged */
        return NET_OVER;
    net_seat *seat = &table->ledger->seats[id];
    set(&table->ledger->drawn, table->ledger->drawn + 1);
    set(&seat->claim, table->ledger->drawn);
    table->now[id].holder = holder;
    table->now[id].generation = generation;
    *claim = seat->claim;
    return NET_TAKEN;
}


net_verdict net_table_show(net_table *table, unsigned id, unsigned generation, uint64_t claim, net_holder holder,
                           net_holder *displaced) {
    net_seat *seat = &table->ledger->seats[id];
    *displaced = 0;
    if (claim <= seat->cut || claim <= seat->claim)
        return NET_OVER;
    if (table->now[id].holder != holder)
        *displaced = table->now[id].holder;
    set(&seat->claim, claim);
    table->now[id].holder = holder;
    table->now[id].generation = generation;
    return NET_TAKEN;
}


/* If another generation has the id, all claims before its own are over: a claim is drawn only while nobody has the id. */
bool net_table_ask(const net_table *table, unsigned id, unsigned generation, uint64_t *over) {
    const net_seat *seat = &table->ledger->seats[id];
    bool held = table->now[id].holder != 0;
    if (held && table->now[id].generation == generation)
        return true;
    *over = held ? seat->claim - 1 : seat->claim;
    return false;
}


void net_table_cut(net_table *table, unsigned id, uint64_t claim, net_holder *displaced) {
    net_seat *seat = &table->ledger->seats[id];
    *displaced = 0;
    raise(&seat->cut, claim);
    if (claim < seat->claim)
        return;
    *displaced = table->now[id].holder;
    table->now[id].holder = 0;
}


void net_table_evict(net_table *table, unsigned id, unsigned generation, uint64_t *over, net_holder *displaced) {
    *displaced = 0;
    if (net_table_ask(table, id, generation, over)) {
        *over = table->ledger->seats[id].claim;
        net_table_cut(table, id, *over, displaced);
    }
}


void net_table_leave(net_table *table, unsigned id, net_holder holder) {
    if (table->now[id].holder == holder)
        table->now[id].holder = 0;
}
