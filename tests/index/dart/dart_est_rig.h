/* Helpers for the races of DART's skip table: functions that inspect the table, functions that let the memory of
 * retired objects be reused, and actors that execute their own background work. */
#ifndef TESTS_INDEX_DART_EST_RIG_H
#define TESTS_INDEX_DART_EST_RIG_H

#include "dart_rig.h"
#include "test.h"

#include "index/dart/skiptable/skiptable.h"
#include "pool/alloc/alloc.h"
#include "pool/epoch/epoch.h"
#include "task/session.h"

/* A query of the tree or the skip table, which a task executes, and its result. */

typedef struct table_query {
    far_index *index;
    const char *key;
    unsigned depth, named, entries;
    unsigned length; /* count only entries of this prefix length; 0 means all entries */
    far_addr node;
    dart_node found;
} table_query;


static inline int find_node_task(far_task *t, void *arg) {
    table_query *g = arg;
    dart_find f = {0};
    int err = far_pin_take(t);
    if (err < 0)
        return err;
    dart_find_init(&f, (far_bytes){g->key, strlen(g->key)}, DART_SEEK_VALUE);
    f.from_root = true;
    err = dart_find_run(t, g->index, &f);
    for (unsigned i = 0; err >= 0 && i < f.path.count; i++)
        if (f.path.steps[i].node.depth == g->depth)
            g->found = f.path.steps[i].node;
    far_pin_drop(t);
    return err;
}


/* Returns the inner node of this depth on the path of the key; addr is 0 if there is none. */
static inline dart_node node_at(actor *a, const char *key, unsigned depth) {
    table_query g = {.index = a->index, .key = key, .depth = depth};
    assert_int_equal(far_session_call(a->session, FAR_STATS_OTHER, true, find_node_task, &g), 0);
    return g.found;
}


static inline int count_matching_entries(far_task *t, far_index *index, const dart_dir_slot *spot, uint64_t word,
                                         const uint64_t *slots, unsigned count, void *ctx) {
    (void)t, (void)index, (void)spot, (void)word;
    table_query *g = ctx;
    for (unsigned i = 0; i < count; i++) {
        if (!dart_est_is_committed(slots[i]))
            continue;
        g->entries++;
        g->named +=
            dart_word_addr(slots[i]) == g->node && (!g->length || dart_est_delta(slots[i]) == g->depth - g->length);
    }
    return 0;
}


static inline int count_matching_entries_task(far_task *t, void *arg) {
    table_query *g = arg;
    int err = far_pin_take(t);
    for (unsigned place = 0; err >= 0 && place < dart_est_places(dart_est_of(g->index));)
        err = dart_est_visit_segments(t, g->index, &place, count_matching_entries, g);
    far_pin_drop(t);
    return err;
}


/* Returns the number of committed entries that name the node. */
static inline unsigned count_entries_of(actor *a, far_addr node) {
    table_query g = {.index = a->index, .node = node};
    assert_int_equal(far_session_call(a->session, FAR_STATS_OTHER, true, count_matching_entries_task, &g), 0);
    return g.named;
}


static inline unsigned count_entries_of_length(actor *a, const dart_node *node, unsigned length) {
    table_query g = {.index = a->index, .node = node->addr, .depth = node->depth, .length = length};
    assert_int_equal(far_session_call(a->session, FAR_STATS_OTHER, true, count_matching_entries_task, &g), 0);
    return g.named;
}


static inline int wait_task(far_task *t, void *arg) {
    (void)arg;
    return far_wait_epochs_until(t, 6, FAR_TIME_NEVER);
}


/* Advances epochs until all retired objects are free. The memory checker then fills them with a pattern (poison) and
 * reports accesses to them. No client may hold a pin. Each actor makes a call, so that it frees the objects that it has
 * retired. */
static inline void let_memory_be_reused(stage *s, actor *a) {
    char byte;
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(far_session_call(a->session, FAR_STATS_OTHER, true, wait_task, NULL), 0);
        for (unsigned j = 0; j < STAGE_ACTORS; j++) /* each client frees only the objects that it has retired itself */
            far_get(stage_actor_at(s, j)->session, stage_actor_at(s, j)->index, "~", 1, &byte, 1, NULL);
        far_sim_sleep(s->world, 1000000);
    }
}


/* Advances epochs one by one. After each epoch actor `a` makes a call, so that it frees the objects that it has
 * retired. */
static inline void advance_epochs(stage *s, actor *a, unsigned epochs) {
    char byte;
    for (unsigned i = 0; i < epochs; i++) {
        far_epoch_request(a->pool);
        far_sim_sleep(s->world, 300000);
        far_get(a->session, a->index, "~", 1, &byte, 1, NULL);
    }
}


static inline bool is_poisoned(stage *s, far_addr addr) {
    return *(const uint8_t *)world_bytes(s->world, addr) == FAR_SIM_POISON;
}


typedef struct node_to_fill {
    far_index *index;
    unsigned node, type; /* number of the memory node, and type of the objects that will fill it */
    uint64_t bytes;
} node_to_fill;


static inline int fill_memory_node_task(far_task *t, void *arg) {
    const node_to_fill *full = arg;
    far_object object;
    int err = far_pin_take(t);
    while (err == 0) /* first fill quickly, with large objects of the pool's own type */
        err = far_alloc(t, NULL, 5, 32768, full->node, FAR_ALLOC_ON_NODE, &object);
    for (err = err == FAR_ERR_NO_MEMORY ? 0 : err; err == 0;)
        err = far_alloc(t, full->index, full->type, full->bytes, full->node, FAR_ALLOC_ON_NODE, &object);
    far_pin_drop(t);
    return err;
}


/* Fills a memory node, so that this session can allocate no more objects of this type and size there. */
static inline void fill_memory_node(far_session *session, node_to_fill full) {
    assert_int_equal(far_session_call(session, FAR_STATS_OTHER, true, fill_memory_node_task, &full), FAR_ERR_NO_MEMORY);
}


/* Lets simulated time pass until all background work has ended. */
static inline void finish_background(stage *s) {
    far_sim_sleep(s->world, 5000000);
}


/* Asserts that the memory at this address was freed. Freed memory is poisoned, so that the memory checker reports every
 * later access. */
static inline void expect_free(stage *s, far_addr addr) {
    assert_true(is_poisoned(s, addr));
}


/* Main function of an actor that runs its operation and then makes further calls, in which its background work runs. */

static inline void run_actor_and_background(void *arg) {
    actor *a = arg;
    char byte;
    a->result = stage_run(a);
    for (unsigned i = 0; i < 64; i++)
        far_get(a->session, a->index, "~", 1, &byte, 1, NULL);
    a->ended = true;
}


static inline void start_with_background_until(actor *a, const char *name, far_op_kind kind, const char *key,
                                               const char *value, const char *point, unsigned nth) {
    prepare(a, kind, key, value);
    stage_start_main(a, name, run_actor_and_background);
    resume_until(a, point, nth);
}


static inline void run_with_background(actor *a, const char *name, far_op_kind kind, const char *key,
                                       const char *value) {
    prepare(a, kind, key, value);
    stage_start_main(a, name, run_actor_and_background);
    stage_finish(a);
}


/* Makes an index with a node X of depth 5 on the path of "abcde1". No entry of the skip table names X yet, because the
 * entries for this path named the node above X, which was removed just now. The next get of a key below X registers X
 * in the table. Returns X. */
static inline dart_node set_up_node_without_entries(stage *s, const char *sim) {
    set_up(s, sim, "upkeep_batch=1,adjust=0,express_cache=0,directory_bits=0");
    INSERT_KEYS(&s->a, "az", "abcdf", "abcde1", "abcde2", "abcde3");
    finish_background(s);
    run_with_background(&s->a, "a", FAR_OP_DELETE, "abcdf", "");
    finish_background(s);
    dart_node x = node_at(&s->a, "abcde1", 5);
    assert_true(x.addr && x.type == DART_N4);
    assert_int_equal(count_entries_of(&s->a, x.addr), 0);
    return x;
}


/* Defines a race of the skip table. The race runs on each of the simulated fabrics. */
#define EST_RACE(name)                                                                                                 \
    static void name##_on(const char *sim);                                                                            \
    TEST(name) {                                                                                                       \
        for (unsigned i_ = 0; i_ < sizeof(fabrics) / sizeof(fabrics[0]); i_++)                                         \
            name##_on(fabrics[i_]);                                                                                    \
    }                                                                                                                  \
    static void name##_on(const char *sim)

#endif
