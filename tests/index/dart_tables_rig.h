/* Tables of DART's skip table, for tests of it: an index in which they come early, and nodes with one entry each. */
#ifndef FAR_TESTS_DART_TABLES_RIG_H
#define FAR_TESTS_DART_TABLES_RIG_H

#include "dart_est_rig.h"

/* One word is the whole directory at first, and a segment of one group becomes a table. */
#define TABLES "upkeep_batch=1,directory_bits=0,segment_log=0,"
#define CALM   TABLES "adjust=0"


/* ---- Many nodes of depth 2, each with one entry ---- */

enum { FIRST_BYTES = 90 };


static inline void name_of(unsigned i, char key[4]) {
    snprintf(key, 4, "%c%c1", (char)('!' + i % FIRST_BYTES), (char)('c' + i / FIRST_BYTES));
}


static inline void insert_pair(actor *a, unsigned i) {
    char key[4], byte;
    name_of(i, key);
    for (; key[2] < '3' && a->result >= 0; key[2]++)
        a->result = far_insert(a->session, a->index, key, 3, key, 3);
    for (unsigned j = 0; j < 8; j++) /* inside calls its background work runs */
        far_get(a->session, a->index, "~", 1, &byte, 1, NULL);
}


static inline void insert_pairs(actor *a, unsigned from, unsigned to) {
    a->result = 0;
    for (unsigned i = from; i < to; i++)
        insert_pair(a, i);
    assert_int_equal(a->result, 0);
}


enum { ENOUGH = 40 }; /* nodes, for one table */


static inline void run_fill(void *arg) {
    actor *a = arg;
    a->result = 0;
    for (unsigned i = 0; i < ENOUGH && a->result >= 0; i++)
        insert_pair(a, i);
    a->ended = true;
}


/* Nodes are registered until there is a table; point NULL: and all of them. */
static inline void fill_to(actor *a, const char *point) {
    stage_start_main(a, "fills", run_fill);
    if (point)
        resume_to(a, point, 1);
    else
        finish(a, 0);
}


static inline void holds_pairs(actor *a, unsigned from, unsigned to) {
    for (unsigned i = from; i < to; i++) {
        char key[4];
        name_of(i, key);
        reads(a, key, key);
    }
}


static inline uint64_t top_word(stage *s) {
    return world_word(s->world, dart_spot_at(dart_est_of(s->b.index), 0).addr);
}


static inline int count_tables_task(far_task *t, void *arg) {
    glance *g = arg;
    dart_est_counts counts;
    int err = dart_est_count(t, g->index, &counts);
    g->entries = (unsigned)counts.tables;
    return err;
}


static inline unsigned count_tables(far_session *s, far_index *index) {
    glance g = {.index = index};
    return far_session_call(s, FAR_STATS_OTHER, true, count_tables_task, &g) < 0 ? 0 : g.entries;
}

#endif
