/* The table of claims of a memory node (fabric/node/node_table.c): single rules, and a random exploration of three
 * nodes with sessions and observers. */
#include "base/random.h"
#include "fabric/node/node_table.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

static net_ledger ledgers[3];
static net_table tables[3];


static void start_fresh(void) {
    memset(ledgers, 0, sizeof(ledgers));
    for (int i = 0; i < 3; i++)
        net_table_start(&tables[i], &ledgers[i]);
}


/* An id has one holder at a time. Another connection can neither claim the id nor release it. After the holder has
 * released it, the holder's session {id, generation} is not alive any more, and the next claim of the id gets a larger
 * claim number. */
TEST(an_id_has_one_holder) {
    uint64_t first = 0, second = 0, over;
    start_fresh();
    assert_int_equal(net_table_issue(&tables[0], 5, 3, 11, &first), NET_GRANTED);
    assert_int_equal(net_table_issue(&tables[0], 5, 3, 12, &second), NET_BUSY);
    assert_int_equal(net_table_issue(&tables[0], 5, 4, 12, &second), NET_BUSY);
    assert_true(net_table_is_live(&tables[0], 5, 3, &over));
    net_table_release(&tables[0], 5, 12); /* Connection 12 does not hold the id, so its release has no effect. */
    assert_true(net_table_is_live(&tables[0], 5, 3, &over));
    net_table_release(&tables[0], 5, 11);
    assert_false(net_table_is_live(&tables[0], 5, 3, &over));
    assert_int_equal(over, first);
    assert_int_equal(net_table_issue(&tables[0], 5, 3, 12, &second), NET_GRANTED);
    assert_true(second > first);
}


/* Claim numbers continue to rise after a restart of node 0, because its ledger, which contains the last number, is
 * stored in the memory file. */
TEST(claims_rise_over_restarts) {
    uint64_t first = 0, second = 0;
    start_fresh();
    assert_int_equal(net_table_issue(&tables[0], 5, 3, 11, &first), NET_GRANTED);
    net_table_start(&tables[0], &ledgers[0]);
    assert_int_equal(net_table_issue(&tables[0], 6, 1, 12, &second), NET_GRANTED);
    assert_true(second > first);
}


/* A claim that was fenced before it was presented is refused, also after a restart of the node. A larger claim is
 * accepted. Fails if net_table_present ignores the fenced claim. */
TEST(a_claim_presented_after_its_fencing_is_refused) {
    net_connection displaced;
    start_fresh();
    net_table_fence(&tables[1], 5, 7, &displaced);
    assert_int_equal(displaced, 0);
    assert_int_equal(net_table_present(&tables[1], 5, 3, 7, 11, &displaced), NET_STALE);
    assert_int_equal(net_table_present(&tables[1], 5, 3, 6, 11, &displaced), NET_STALE);
    net_table_start(&tables[1], &ledgers[1]); /* The refusal is the same after a restart of the node. */
    assert_int_equal(net_table_present(&tables[1], 5, 3, 7, 11, &displaced), NET_STALE);
    assert_int_equal(net_table_present(&tables[1], 5, 3, 8, 11, &displaced), NET_GRANTED);
}


/* After a restart, a node refuses a claim that was presented before the restart, because the restart ended all
 * sessions. */
TEST(a_restart_ends_presented_claims) {
    net_connection displaced;
    start_fresh();
    assert_int_equal(net_table_present(&tables[1], 5, 3, 7, 11, &displaced), NET_GRANTED);
    net_table_start(&tables[1], &ledgers[1]);
    assert_int_equal(net_table_present(&tables[1], 5, 3, 7, 12, &displaced), NET_STALE);
}


/* A larger claim displaces the connection with the smaller one, and the smaller one is refused afterwards. Fencing the
 * older claim does not affect the newer one. */
TEST(a_newer_claim_displaces_the_older) {
    net_connection displaced;
    start_fresh();
    assert_int_equal(net_table_present(&tables[1], 5, 3, 7, 11, &displaced), NET_GRANTED);
    assert_int_equal(net_table_present(&tables[1], 5, 4, 9, 12, &displaced), NET_GRANTED);
    assert_int_equal(displaced, 11);
    assert_int_equal(net_table_present(&tables[1], 5, 3, 8, 13, &displaced), NET_STALE);
    assert_int_equal(displaced, 0);
    net_table_fence(&tables[1], 5, 8, &displaced); /* The fence is for an older claim, so the newer claim stays. */
    assert_int_equal(displaced, 0);
    net_table_fence(&tables[1], 5, 9, &displaced);
    assert_int_equal(displaced, 12);
}


/* The id is held by a newer generation. The older generation is not alive, and fencing it does not affect the newer
 * one. */
TEST(an_older_generation_is_not_alive) {
    uint64_t first = 0, second = 0, over = 0;
    net_connection displaced;
    start_fresh();
    net_table_issue(&tables[0], 5, 3, 11, &first);
    net_table_release(&tables[0], 5, 11);
    net_table_issue(&tables[0], 5, 4, 12, &second);
    assert_false(net_table_is_live(&tables[0], 5, 3, &over));
    assert_in_range(over, first, second - 1); /* The fence is for the first claim and not for the second one. */
    net_table_evict(&tables[0], 5, 3, &over, &displaced);
    assert_int_equal(displaced, 0);
    net_table_evict(&tables[0], 5, 4, &over, &displaced);
    assert_int_equal(displaced, 12);
    assert_int_equal(over, second);
}


/* ---- Random exploration: three nodes, sessions that start and fail, observers, delayed messages ---- */

#define NODES     3
#define IDS       3
#define SESSIONS  6
#define OBSERVERS 2

/* A session and its messages. The messages of a session to one node keep their order, so one message to each node at a
 * time is enough for the exploration. */
typedef struct session {
    unsigned id, generation, step; /* step 0: idle, 1: waits for its claim number, 2: presents it, 3: sends verbs */
    uint64_t claim, serial;        /* `serial` counts the connections of this session */
    net_connection at[NODES];          /* its connection at each node; 0: none */
    bool accepted[NODES], under_way[NODES]; /* the claim was accepted; a message (claim or verb) is under way */
    bool verb[NODES];                       /* the message under way is a verb */
    bool closed[NODES];                     /* the node has not noticed yet that the connection has ended */
    bool told[NODES];                       /* the session has got the answer of the node that its claim was accepted */
} session;

typedef struct observer {
    unsigned id, generation, step; /* step 0: idle, 1: queries node 0, 2: fences at the other nodes */
    uint64_t over;
    bool answered[NODES];
} observer;

typedef struct world {
    far_random random;
    session sessions[SESSIONS];
    observer observers[OBSERVERS];
    uint64_t next_holder;
    uint64_t failed_up_to[IDS]; /* for each id, the largest claim number that an observer found to have failed */
    uint64_t verbs, failures, refusals;
} world;


static unsigned draw_below(world *w, unsigned below) {
    return (unsigned)far_random_below(&w->random, below);
}


static session *holder_of(world *w, unsigned node, net_connection holder) {
    for (unsigned i = 0; i < SESSIONS; i++)
        if (holder && w->sessions[i].at[node] == holder)
            return &w->sessions[i];
    return NULL;
}


static void stop_displaced(world *w, unsigned node, net_connection holder) {
    session *s = holder_of(w, node, holder);
    if (s) {
        s->at[node] = 0; /* The node has stopped the connection and discarded its verbs that had not run. */
        s->under_way[node] = s->verb[node] = s->accepted[node] = false;
    }
}


static void node_sees_end(session *s, unsigned node) {
    if (s->at[node])
        net_table_release(&tables[node], s->id, s->at[node]);
    s->at[node] = 0;
    s->under_way[node] = s->verb[node] = s->accepted[node] = false;
    s->closed[node] = false;
}


static bool has_no_connection(const session *s) {
    for (unsigned n = 0; n < NODES; n++)
        if (s->at[n])
            return false;
    return true;
}


static void begin_session(world *w, session *s) {
    for (unsigned n = 0; n < NODES; n++) {
        s->at[n] = ++w->next_holder;
        s->accepted[n] = s->under_way[n] = s->verb[n] = s->closed[n] = s->told[n] = false;
    }
    s->id = 1 + draw_below(w, IDS);
    s->generation = draw_below(w, 2);
    s->claim = 0;
    s->step = 1;
    s->under_way[0] = true;
}


/* Kills the process of the session. The nodes notice the end of its connections one after the other, and verbs under
 * way may still run. */
static void kill_session(session *s) {
    for (unsigned n = 0; n < NODES; n++)
        s->closed[n] = s->at[n] != 0;
    s->step = 0;
}


/* Runs a verb that has reached a node. Fails if the node accepts it although an observer has found its session failed.
 */
static void run_verb(world *w, session *s, unsigned node) {
    s->under_way[node] = s->verb[node] = false;
    if (!s->accepted[node])
        fail_msg("a verb runs before its claim was accepted");
    if (s->claim <= w->failed_up_to[s->id - 1])
        fail_msg("a verb of claim %llu takes effect at node %u after its session was found failed",
                 (unsigned long long)s->claim, node);
    w->verbs++;
}


static bool has_lost_a_connection(const session *s) {
    return !s->at[0] || !s->at[1] || !s->at[2];
}


static void deliver_claim(world *w, session *s, unsigned node) {
    net_connection displaced = 0;
    uint64_t claim = s->claim;
    net_verdict verdict = node == 0
                              ? net_table_issue(&tables[0], s->id, s->generation, s->at[0], &claim)
                              : net_table_present(&tables[node], s->id, s->generation, claim, s->at[node], &displaced);
    s->under_way[node] = false;
    stop_displaced(w, node, displaced);
    if (verdict != NET_GRANTED) {
        w->refusals++;
        if (s->step)
            kill_session(s);
        return;
    }
    s->accepted[node] = s->told[node] = true;
    if (node == 0 && s->step == 1) {
        s->claim = claim;
        s->step = 2;
        for (unsigned n = 1; n < NODES; n++)
            s->under_way[n] = s->at[n] != 0;
    } else if (node == 0) {
        s->claim = claim;
    }
}


static void step_session(world *w, session *s) {
    unsigned node = draw_below(w, NODES);
    if (s->step == 0 && has_no_connection(s)) {
        begin_session(w, s);
        return;
    }
    if (s->at[node] && s->under_way[node] && draw_below(w, 2)) {
        if (s->verb[node])
            run_verb(w, s, node);
        else
            deliver_claim(w, s, node);
        return;
    }
    if (s->closed[node] && draw_below(w, 2)) {
        node_sees_end(s, node);
        return;
    }
    if (s->step == 2 && s->told[0] && s->told[1] && s->told[2])
        s->step = 3;
    if (s->step == 3 && s->at[node] && !s->under_way[node])
        s->under_way[node] = s->verb[node] = true;
    if (s->step && draw_below(w, 60) == 0)
        s->closed[node] = s->at[node] != 0; /* this connection ends, and the session does not know it yet */
    if (s->step && (draw_below(w, 40) == 0 || (has_lost_a_connection(s) && draw_below(w, 8) == 0)))
        kill_session(s);
}


static void record_failure(world *w, const observer *a) {
    if (w->failed_up_to[a->id - 1] < a->over)
        w->failed_up_to[a->id - 1] = a->over;
    w->failures++;
}


static void step_observer(world *w, observer *a) {
    if (a->step == 0) {
        *a = (observer){.id = 1 + draw_below(w, IDS), .generation = draw_below(w, 2), .step = 1};
    } else if (a->step == 1) {
        a->step = net_table_is_live(&tables[0], a->id, a->generation, &a->over) ? 0 : 2;
        a->answered[0] = true;
    } else {
        unsigned node = 1 + draw_below(w, NODES - 1);
        net_connection displaced;
        net_table_fence(&tables[node], a->id, a->over, &displaced);
        stop_displaced(w, node, displaced);
        a->answered[node] = true;
        if (a->answered[1] && a->answered[2]) {
            record_failure(w, a);
            a->step = 0;
        }
    }
}


static void restart_node(world *w, unsigned node) {
    for (unsigned i = 0; i < SESSIONS; i++) {
        session *s = &w->sessions[i];
        s->at[node] = 0;
        s->accepted[node] = s->under_way[node] = s->verb[node] = s->closed[node] = false;
        if (s->step)
            kill_session(s);
    }
    for (unsigned i = 0; i < OBSERVERS; i++)
        w->observers[i].step = 0; /* The observers lose their connections to the node, too, so they begin again. */
    net_table_start(&tables[node], &ledgers[node]);
}


/* Sessions claim ids, send verbs, lose single connections and are killed at random moments. Observers query node 0 and
 * fence failed sessions at the other nodes. Nodes restart. Once an observer has got the answers of all nodes, no verb
 * of the failed session takes effect at any node. Fails if a node accepts a claim that is not larger than the fenced
 * one. */
TEST(no_verb_takes_effect_after_failure) {
    uint64_t verbs = 0, failures = 0, refusals = 0;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        world w = {0};
        start_fresh();
        far_random_seed(&w.random, seed);
        for (unsigned i = 0; i < 4000; i++) {
            unsigned what = draw_below(&w, 1000);
            if (what == 0)
                restart_node(&w, draw_below(&w, NODES));
            else if (what < 150)
                step_observer(&w, &w.observers[draw_below(&w, OBSERVERS)]);
            else
                step_session(&w, &w.sessions[draw_below(&w, SESSIONS)]);
        }
        verbs += w.verbs;
        failures += w.failures;
        refusals += w.refusals;
    }
    /* Fewer refusals would mean that the exploration has not tested fenced sessions often enough. */
    assert_true(verbs > 10000 && failures > 1000 && refusals > 1000);
}


/* The last claim number is issued, and then no further one. It must not wrap around to 0, because 0 means no claim.
 * Fails without the check of UINT64_MAX in net_table_issue. */
TEST(claim_numbers_do_not_wrap_around) {
    uint64_t claim = 0, over;
    start_fresh();
    ledgers[0].drawn = UINT64_MAX - 1;
    assert_int_equal(net_table_issue(&tables[0], 5, 3, 11, &claim), NET_GRANTED);
    assert_true(claim == UINT64_MAX);
    assert_int_equal(net_table_issue(&tables[0], 6, 3, 12, &claim), NET_STALE);
    assert_false(net_table_is_live(&tables[0], 6, 3, &over));
    assert_true(ledgers[0].drawn == UINT64_MAX);
}
