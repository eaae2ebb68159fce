/* Client failures in the upkeep of DART's skip table. A client fails at every verb of registering nodes, removing
 * entries, replacing segments and adjusting the list. The tests prove that the other clients can use the index, the
 * table is sound, a collection leaves no leaked byte, and no entry names a node that the collection has freed. */
#include "index/dart/skiptable/skiptable.h"
#include "pool/epoch/epoch.h"
#include "pool/handle.h"
#include "task/session.h"
#include "test.h"
#include "verify/explore.h"

#include <stdio.h>
#include <string.h>

/* BEFORE: number of prefixes that are registered before the failing client begins; DURING: number that this client
 * registers. Together their entries fill the only segment. */
enum { BEFORE = 17, DURING = 2 };


static int insert_pair(far_session *s, far_index *index, unsigned prefix, char last) {
    char key[] = {(char)('A' + prefix), 'q', last};
    return far_put(s, index, key, 3, "value", 5);
}


static void stay_inside(far_session *s, far_index *index, unsigned turns) {
    char byte;
    for (unsigned i = 0; i < turns; i++)
        far_get(s, index, "~", 1, &byte, 1, NULL);
}


static int prepare(far_session *s, far_index *index, void *ctx) {
    (void)ctx;
    for (unsigned i = 0; i < BEFORE; i++)
        for (char last = '1'; last <= '3'; last++) {
            if (insert_pair(s, index, i, last) < 0)
                return -1;
            stay_inside(s, index, 12);
        }
    return 0;
}


static int make_nodes(far_session *s, far_index *index, void *ctx) {
    (void)ctx;
    for (unsigned i = BEFORE; i < BEFORE + DURING; i++)
        for (char last = '1'; last <= '2'; last++) {
            insert_pair(s, index, i, last);
            stay_inside(s, index, 12);
        }
    return 0;
}


static int replace_nodes(far_session *s, far_index *index, void *ctx) {
    (void)ctx;
    insert_pair(s, index, 0, '4'); /* this insert meets a full node, so the node is replaced */
    stay_inside(s, index, 16);
    return 0;
}


static bool is_there(far_session *s, far_index *index, unsigned prefix, char last) {
    char key[] = {(char)('A' + prefix), 'q', last}, value[8];
    return far_get(s, index, key, 3, value, sizeof(value), NULL) == 0 && memcmp(value, "value", 5) == 0;
}


static int survive(far_session *s, far_index *index, void *ctx) {
    (void)ctx;
    for (unsigned i = 0; i < BEFORE; i++)
        for (char last = '1'; last <= '3'; last++)
            if (!is_there(s, index, i, last))
                return -1;
    for (unsigned i = 0; i < BEFORE + DURING + 6; i++)
        for (char last = '1'; last <= '5'; last++)
            if (insert_pair(s, index, i, last) < 0 || !is_there(s, index, i, last))
                return -1;
    stay_inside(s, index, 20);
    return 0;
}


/* ---- Adjusting ---- */

typedef struct goal {
    far_index *index;
    uint8_t length;
} goal;


static int adjust_task(far_task *t, void *arg) {
    const goal *g = arg;
    int more = far_pin_take(t);
    if (more >= 0)
        more = dart_est_adjust_to(t, g->index, &g->length, 1);
    for (unsigned i = 0; i < 2000 && more > 0; i++) {
        more = dart_est_adjust(t, g->index);
        far_pin_drop(t);
        far_sleep(t, 20000);
        int err = far_pin_take(t);
        more = err < 0 ? err : more;
    }
    far_pin_drop(t);
    return more;
}


static int adjust_lengths(far_session *s, far_index *index, void *ctx) {
    (void)ctx;
    goal g = {index, 3};
    return far_session_call(s, FAR_STATS_OTHER, true, adjust_task, &g);
}


/* Takes over the adjuster lock of the failed client, whichever step of the adjustment that client had reached, and
 * adjusts the list to other lengths. */
static int adjust_again(far_session *s, far_index *index, void *ctx) {
    goal g = {index, 2};
    int result = far_session_call(s, FAR_STATS_OTHER, true, adjust_task, &g);
    const dart_list *list = dart_est_list(dart_est_of(index));
    if (result != 0 || list->lookup_count != 1 || list->active_count != 1 || list->lookup[0] != 2)
        return -1;
    return survive(s, index, ctx);
}


static void explore_failures(const char *sim, const char *options, far_explore_step victim, far_explore_step after,
                             uint64_t least) {
    far_explore e = {.kind = "dart",
                     .options = options,
                     .sim = sim,
                     .prepare = prepare,
                     .victim = victim,
                     .survive = after,
                     .collect = true,
                     .out = stderr};
    far_explore_result result;
    assert_int_equal(far_explore_run(&e, &result), 0);
    assert_int_equal(result.problems, 0);
    assert_true(result.cuts >= least);
}


/* The client fails while it registers nodes, so that the only segment is replaced. */
TEST(failure_while_registering_and_growing) {
    explore_failures("masked_cas=on", "upkeep_batch=1,adjust=0,directory_bits=0", make_nodes, survive, 60);
    explore_failures("masked_cas=off,atomic_bytes=8", "upkeep_batch=1,adjust=0,directory_bits=0", make_nodes, survive,
                     60);
}


/* The client fails while it replaces a node and removes the entries of the replaced node. */
TEST(failure_while_removing_entries) {
    explore_failures("masked_cas=on", "upkeep_batch=1,adjust=0,directory_bits=0", replace_nodes, survive, 20);
    explore_failures("masked_cas=off,atomic_bytes=8", "upkeep_batch=1,adjust=0,directory_bits=0", replace_nodes,
                     survive, 20);
}


/* The client fails at any of the four steps of adjusting the list. */
TEST(failure_while_adjusting) {
    explore_failures("masked_cas=on", "upkeep_batch=1,adjust=0,directory_bits=1", adjust_lengths, adjust_again, 20);
}
