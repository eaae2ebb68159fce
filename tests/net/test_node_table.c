/* The table of a memory node, alone and as three nodes that sessions and askers talk to in every order: whoever is
 * found dead does nothing any more, whatever is delayed, cut or restarted. */
#include "base/random.h"
#include "fabric/net/node_table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static net_ledger ledgers[3];
static net_table tables[3];


static void start_fresh(void) {
    memset(ledgers, 0, sizeof(ledgers));
    for (int i = 0; i < 3; i++)
        net_table_start(&tables[i], &ledgers[i]);
}


static void an_id_has_one_holder(void **state) {
    (void)state;
    uint64_t first = 0, second = 0, over;
    start_fresh();
    assert_int_equal(net_table_draw(&tables[0], 5, 3, 11, &first), NET_TAKEN);
    assert_int_equal(net_table_draw(&tables[0], 5, 3, 12, &second), NET_BUSY);
    assert_int_equal(net_table_draw(&tables[0], 5, 4, 12, &second), NET_BUSY);
    assert_true(net_table_ask(&tables[0], 5, 3, &over));
    net_table_leave(&tables[0], 5, 12); /* not its own */
    assert_true(net_table_ask(&tables[0], 5, 3, &over));
    net_table_leave(&tables[0], 5, 11);
    assert_false(net_table_ask(&tables[0], 5, 3, &over));
    assert_int_equal(over, first);
    assert_int_equal(net_table_draw(&tables[0], 5, 3, 12, &second), NET_TAKEN);
    assert_true(second > first);
}


static void claims_rise_over_restarts(void **state) {
    (void)state;
    uint64_t first = 0, second = 0;
    start_fresh();
    assert_int_equal(net_table_draw(&tables[0], 5, 3, 11, &first), NET_TAKEN);
    net_table_start(&tables[0], &ledgers[0]);
    assert_int_equal(net_table_draw(&tables[0], 6, 1, 12, &second), NET_TAKEN);
    assert_true(second > first);
}


static void a_hello_that_is_delayed_past_the_cut_is_refused(void **state) {
    (void)state;
    net_holder displaced;
    start_fresh();
    net_table_cut(&tables[1], 5, 7, &displaced);
    assert_int_equal(displaced, 0);
    assert_int_equal(net_table_show(&tables[1], 5, 3, 7, 11, &displaced), NET_OVER);
    assert_int_equal(net_table_show(&tables[1], 5, 3, 6, 11, &displaced), NET_OVER);
    net_table_start(&tables[1], &ledgers[1]); /* and past a restart */
    assert_int_equal(net_table_show(&tables[1], 5, 3, 7, 11, &displaced), NET_OVER);
    assert_int_equal(net_table_show(&tables[1], 5, 3, 8, 11, &displaced), NET_TAKEN);
}


static void a_restart_cuts_what_was_shown(void **state) {
    (void)state;
    net_holder displaced;
    start_fresh();
    assert_int_equal(net_table_show(&tables[1], 5, 3, 7, 11, &displaced), NET_TAKEN);
    net_table_start(&tables[1], &ledgers[1]);
    assert_int_equal(net_table_show(&tables[1], 5, 3, 7, 12, &displaced), NET_OVER);
}


static void a_newer_claim_displaces_the_older(void **state) {
    (void)state;
    net_holder displaced;
    start_fresh();
    assert_int_equal(net_table_show(&tables[1], 5, 3, 7, 11, &displaced), NET_TAKEN);
    assert_int_equal(net_table_show(&tables[1], 5, 4, 9, 12, &displaced), NET_TAKEN);
    assert_int_equal(displaced, 11);
    assert_int_equal(net_table_show(&tables[1], 5, 3, 8, 13, &displaced), NET_OVER);
    assert_int_equal(displaced, 0);
    net_table_cut(&tables[1], 5, 8, &displaced); /* of the older: the newer one stays */
    assert_int_equal(displaced, 0);
    net_table_cut(&tables[1], 5, 9, &displaced);
    assert_int_equal(displaced, 12);
}


static void another_generation_is_asked_for(void **state) {
    (void)state;
    uint64_t first = 0, second = 0, over = 0;
    net_holder displaced;
    start_fresh();
    net_table_draw(&tables[0], 5, 3, 11, &first);
    net_table_leave(&tables[0], 5, 11);
    net_table_draw(&tables[0], 5, 4, 12, &second);
    assert_false(net_table_ask(&tables[0], 5, 3, &over));
    assert_in_range(over, first, second - 1); /* cuts the first, and not the second */
    net_table_evict(&tables[0], 5, 3, &over, &displaced);
    assert_int_equal(displaced, 0);
    net_table_evict(&tables[0], 5, 4, &over, &displaced);
    assert_int_equal(displaced, 12);
    assert_int_equal(over, second);
}


/* ---- Three nodes, sessions that come and go, askers, messages that take their time ---- */

#define NODES    3
#define IDS      3
#define SESSIONS 6
#define ASKERS   2

/* A session's stream to a node keeps its order, so at most one message of a kind is under way there. */
typedef struct session {
    unsigned id, generation, step;       /* step: 0 idle, 1 draws, 2 shows, 3 works */
    uint64_t claim, serial;              /* serial: which life of this session */
    net_holder at[NODES];                /* its connection there; 0: none */
    bool shown[NODES], under_way[NODES]; /* accepted; a message (draw, show, verb) is under way */
    bool verb[NODES];                    /* ... and it is a verb */
    bool closed[NODES];                  /* the node has not yet seen that the connection ended */
} session;

typedef struct asker {
    unsigned id, generation, step; /* 0 idle, 1 asks, 2 cuts */
    uint64_t over;
    bool answered[NODES];
} asker;

typedef struct world {
    far_random random;
    session sessions[SESSIONS];
    asker askers[ASKERS];
    uint64_t next_holder;
    uint64_t dead_below[IDS]; /* claims of the id up to this were found dead */
    uint64_t verbs, deaths, refusals;
} world;


static unsigned draw(world *w, unsigned below) {
    return (unsigned)far_random_below(&w->random, below);
}


static session *holder_of(world *w, unsigned node, net_holder holder) {
    for (unsigned i = 0; i < SESSIONS; i++)
        if (holder && w->sessions[i].at[node] == holder)
            return &w->sessions[i];
    return NULL;
}


static void displaced_at(world *w, unsigned node, net_holder holder) {
    session *s = holder_of(w, node, holder);
    if (s) {
        s->at[node] = 0; /* the node has stopped it, and thrown away what it had not run */
        s->under_way[node] = s->verb[node] = s->shown[node] = false;
    }
}


static void node_sees_end(session *s, unsigned node) {
    if (s->at[node])
        net_table_leave(&tables[node], s->id, s->at[node]);
    s->at[node] = 0;
    s->under_way[node] = s->verb[node] = s->shown[node] = false;
    s->closed[node] = false;
}


static bool is_over(const session *s) {
    for (unsigned n = 0; n < NODES; n++)
        if (s->at[n])
            return false;
    return true;
}


static void begin_session(world *w, session *s) {
    for (unsigned n = 0; n < NODES; n++) {
        s->at[n] = ++w->next_holder;
        s->shown[n] = s->under_way[n] = s->verb[n] = s->closed[n] = false;
    }
    s->id = 1 + draw(w, IDS);
    s->generation = draw(w, 2);
    s->claim = 0;
    s->step = 1;
    s->under_way[0] = true;
}


static void die(session *s) { /* its process is gone; the nodes see it one by one, verbs under way may still run */
    for (unsigned n = 0; n < NODES; n++)
        s->closed[n] = s->at[n] != 0;
    s->step = 0;
}


static void run_verb(world *w, session *s, unsigned node) {
    s->under_way[node] = s->verb[node] = false;
    if (!s->shown[node])
        fail_msg("a verb before its claim");
    if (s->claim <= w->dead_below[s->id - 1])
        fail_msg("a verb of claim %llu takes effect at node %u after its death", (unsigned long long)s->claim, node);
    w->verbs++;
}


static void deliver_claim(world *w, session *s, unsigned node) {
    net_holder displaced = 0;
    uint64_t claim = s->claim;
    net_verdict verdict = node == 0
                              ? net_table_draw(&tables[0], s->id, s->generation, s->at[0], &claim)
                              : net_table_show(&tables[node], s->id, s->generation, claim, s->at[node], &displaced);
    s->under_way[node] = false;
    displaced_at(w, node, displaced);
    if (verdict != NET_TAKEN) {
        w->refusals++;
        if (s->step)
            die(s);
        return;
    }
    s->shown[node] = true;
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
    unsigned node = draw(w, NODES);
    if (s->step == 0 && is_over(s)) {
        begin_session(w, s);
        return;
    }
    if (s->at[node] && s->under_way[node] && draw(w, 2)) {
        if (s->verb[node])
            run_verb(w, s, node);
        else
            deliver_claim(w, s, node);
        return;
    }
    if (s->closed[node] && draw(w, 2)) {
        node_sees_end(s, node);
        return;
    }
    if (s->step == 2 && s->shown[0] && s->shown[1] && s->shown[2])
        s->step = 3;
    if (s->step == 3 && s->at[node] && !s->under_way[node])
        s->under_way[node] = s->verb[node] = true;
    if (s->step && (draw(w, 40) == 0 || !s->at[0] || !s->at[1] || !s->at[2]))
        die(s);
}


static void found_dead(world *w, const asker *a) {
    if (w->dead_below[a->id - 1] < a->over)
        w->dead_below[a->id - 1] = a->over;
    w->deaths++;
}


static void step_asker(world *w, asker *a) {
    if (a->step == 0) {
        *a = (asker){.id = 1 + draw(w, IDS), .generation = draw(w, 2), .step = 1};
    } else if (a->step == 1) {
        a->step = net_table_ask(&tables[0], a->id, a->generation, &a->over) ? 0 : 2;
        a->answered[0] = true;
    } else {
        unsigned node = 1 + draw(w, NODES - 1);
        net_holder displaced;
        net_table_cut(&tables[node], a->id, a->over, &displaced);
        displaced_at(w, node, displaced);
        a->answered[node] = true;
        if (a->answered[1] && a->answered[2]) {
            found_dead(w, a);
            a->step = 0;
        }
    }
}


static void restart_node(world *w, unsigned node) {
    for (unsigned i = 0; i < SESSIONS; i++) {
        session *s = &w->sessions[i];
        s->at[node] = 0;
        s->shown[node] = s->under_way[node] = s->verb[node] = s->closed[node] = false;
        if (s->step)
            die(s);
    }
    for (unsigned i = 0; i < ASKERS; i++)
        w->askers[i].step = 0; /* they are lost with it */
    net_table_start(&tables[node], &ledgers[node]);
}


static void nobody_acts_after_death(void **state) {
    (void)state;
    uint64_t verbs = 0, deaths = 0, refusals = 0;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        world w = {0};
        start_fresh();
        far_random_seed(&w.random, seed);
        for (unsigned i = 0; i < 4000; i++) {
            unsigned what = draw(&w, 1000);
            if (what == 0)
                restart_node(&w, draw(&w, NODES));
            else if (what < 150)
                step_asker(&w, &w.askers[draw(&w, ASKERS)]);
            else
                step_session(&w, &w.sessions[draw(&w, SESSIONS)]);
        }
        verbs += w.verbs;
        deaths += w.deaths;
        refusals += w.refusals;
    }
    assert_true(verbs > 10000 && deaths > 1000 && refusals > 1000); /* else nothing was seen */
}


/* 0 is no claim: it must never be drawn. */
static void the_last_number_is_not_passed(void **state) {
    (void)state;
    uint64_t claim = 0, over;
    start_fresh();
    ledgers[0].drawn = UINT64_MAX - 1;
    assert_int_equal(net_table_draw(&tables[0], 5, 3, 11, &claim), NET_TAKEN);
    assert_true(claim == UINT64_MAX);
    assert_int_equal(net_table_draw(&tables[0], 6, 3, 12, &claim), NET_OVER);
    assert_false(net_table_ask(&tables[0], 6, 3, &over));
    assert_true(ledgers[0].drawn == UINT64_MAX);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_number_is_not_passed),
        cmocka_unit_test(an_id_has_one_holder),
        cmocka_unit_test(claims_rise_over_restarts),
        cmocka_unit_test(a_hello_that_is_delayed_past_the_cut_is_refused),
        cmocka_unit_test(a_restart_cuts_what_was_shown),
        cmocka_unit_test(a_newer_claim_displaces_the_older),
        cmocka_unit_test(another_generation_is_asked_for),
        cmocka_unit_test(nobody_acts_after_death),
    };
    return cmocka_run_group_tests_name("fabric/net/node_table", tests, NULL, NULL);
}
