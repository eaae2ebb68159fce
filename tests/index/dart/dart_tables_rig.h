/* Helpers for tests of tables, which are inner levels of the skip table's directory (16 directory words each). They
 * open an index in which full segments become tables early, and insert keys that make nodes with one entry each. */
#ifndef FAR_TESTS_DART_TABLES_RIG_H
#define FAR_TESTS_DART_TABLES_RIG_H

#include "dart_est_rig.h"

/* The directory has one word at first, and a full segment of one group becomes a table. */
#define TABLES "upkeep_batch=1,directory_bits=0,segment_log=0,"
#define CALM   TABLES "adjust=0"


/* ---- Keys that make many nodes of depth 2, each with one entry ---- */

enum { FIRST_BYTES = 90 };


static inline void name_of(unsigned i, char key[4]) {
    snprintf(key, 4, "%c%c1", (char)('!' + i % FIRST_BYTES), (char)('c' + i / FIRST_BYTES));
}


static inline void insert_pair(actor *a, unsigned i) {
    char key[4], byte;
    name_of(i, key);
    for (; key[2] < '3' && a->result >= 0; key[2]++)
        a->result = far_insert(a->session, a->index, key, 3, key, 3);
    for (unsigned j = 0; j < 8; j++) /* the actor's background work runs in these calls */
        far_get(a->session, a->index, "~", 1, &byte, 1, NULL);
}


static inline void insert_pairs(actor *a, unsigned from, unsigned to) {
    a->result = 0;
    for (unsigned i = from; i < to; i++)
        insert_pair(a, i);
    assert_int_equal(a->result, 0);
}


enum { ENOUGH = 40 }; /* number of nodes; their entries do not fit into one segment */


static inline void fill_table(void *arg) {
    actor *a = arg;
    a->result = 0;
    for (unsigned i = 0; i < ENOUGH && a->result >= 0; i++)
        insert_pair(a, i);
    a->ended = true;
}


/* Lets the actor insert keys, so that it registers nodes, until it reaches the point. If `point` is NULL, it registers
 * so many nodes that the segment becomes a table. */
static inline void fill_until(actor *a, const char *point) {
    stage_start_main(a, "fills", fill_table);
    if (point)
        resume_until(a, point, 1);
    else
        expect_result(a, 0);
}


static inline void expect_pairs(actor *a, unsigned from, unsigned to) {
    for (unsigned i = from; i < to; i++) {
        char key[4];
        name_of(i, key);
        expect_get(a, key, key);
    }
}


static inline uint64_t top_word(stage *s) {
    return world_word(s->world, dart_dir_slot_at(dart_est_of(s->b.index), 0).addr);
}


static inline int count_tables_task(far_task *t, void *arg) {
    table_query *g = arg;
    dart_est_counts counts;
    int err = dart_est_count(t, g->index, &counts);
    g->entries = (unsigned)counts.tables;
    return err;
}


static inline unsigned count_tables(far_session *s, far_index *index) {
    table_query g = {.index = index};
    return far_session_call(s, FAR_STATS_OTHER, true, count_tables_task, &g) < 0 ? 0 : g.entries;
}

#endif
