/* For the named interleavings of DART's skip table: looks into the table, and actors whose background work runs in
 * them. */
#ifndef TESTS_INDEX_DART_EST_RIG_H
#define TESTS_INDEX_DART_EST_RIG_H

#include "dart_rig.h"

#include "index/dart/est.h"
#include "pool/alloc.h"
#include "pool/epoch.h"
#include "task/session.h"

/* ---- Looks from outside ---- */

typedef struct glance {
    far_index *index;
    const char *key;
    unsigned depth, named, entries;
    unsigned length; /* only entries of this length; 0: all */
    far_addr node;
    dart_node found;
} glance;


static inline int find_node_task(far_task *t, void *arg) {
    glance *g = arg;
    dart_find f = {0};
    int err = far_pin_take(t);
    if (err < 0)
        return err;
    dart_find_init(&f, (far_bytes){g->key, strlen(g->key)}, DART_SEEK_VALUE);
    f.to_root = true;
    err = dart_find_run(t, g->index, &f);
    for (unsigned i = 0; err >= 0 && i < f.path.count; i++)
        if (f.path.steps[i].node.depth == g->depth)
            g->found = f.path.steps[i].node;
    far_pin_drop(t);
    return err;
}


/* The inner node of this depth on the way to the key; addr 0: there is none. */
static inline dart_node node_at(actor *a, const char *key, unsigned depth) {
    glance g = {.index = a->index, .key = key, .depth = depth};
    assert_int_equal(far_session_call(a->session, FAR_STATS_OTHER, true, find_node_task, &g), 0);
    return g.found;
}


static inline int count_names(far_task *t, far_index *index, const dart_spot *spot, uint64_t word,
                              const uint64_t *slots, unsigned count, void *ctx) {
    (void)t, (void)index, (void)spot, (void)word;
    glance *g = ctx;
    for (unsigned i = 0; i < count; i++) {
        if (!dart_est_is_committed(slots[i]))
            continue;
        g->entries++;
        g->named +=
            dart_word_addr(slots[i]) == g->node && (!g->length || dart_est_delta(slots[i]) == g->depth - g->length);
    }
    return 0;
}


static inline int count_names_task(far_task *t, void *arg) {
    glance *g = arg;
    int err = far_pin_take(t);
    for (unsigned place = 0; err >= 0 && place < dart_est_places(dart_est_of(g->index));)
        err = dart_est_each_segment(t, g->index, &place, count_names, g);
    far_pin_drop(t);
    return err;
}


/* How many committed entries name the node. */
static inline unsigned names_of(actor *a, far_addr node) {
    glance g = {.index = a->index, .node = node};
    assert_int_equal(far_session_call(a->session, FAR_STATS_OTHER, true, count_names_task, &g), 0);
    return g.named;
}


static inline unsigned names_of_length(actor *a, const dart_node *node, unsigned length) {
    glance g = {.index = a->index, .node = node->addr, .depth = node->depth, .length = length};
    assert_int_equal(far_session_call(a->session, FAR_STATS_OTHER, true, count_names_task, &g), 0);
    return g.named;
}


static inline int wait_task(far_task *t, void *arg) {
    (void)arg;
    return far_wait_epochs_until(t, 6, FAR_TIME_NEVER);
}


/* Whatever was retired becomes free (and poisoned); nobody may be pinned. */
static inline void let_memory_go(stage *s, actor *a) {
    char byte;
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(far_session_call(a->session, FAR_STATS_OTHER, true, wait_task, NULL), 0);
        for (unsigned j = 0; j < STAGE_ACTORS; j++) /* awake, they look at what they have retired */
            far_get(stage_actor_at(s, j)->session, stage_actor_at(s, j)->index, "~", 1, &byte, 1, NULL);
        far_sim_sleep(s->world, 1000000);
    }
}


/* One by one; a, awake, looks at what it has retired. */
static inline void pass_epochs(stage *s, actor *a, unsigned epochs) {
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


typedef struct full_node {
    far_index *index;
    unsigned node, type; /* of objects */
    uint64_t bytes;
} full_node;


static inline int fill_for_task(far_task *t, void *arg) {
    const full_node *full = arg;
    far_object object;
    int err = far_pin_take(t);
    while (err == 0) /* quickly, by large objects of the pool's own */
        err = far_alloc(t, NULL, 5, 32768, full->node, FAR_ALLOC_ON_NODE, &object);
    for (err = err == FAR_ERR_NO_MEMORY ? 0 : err; err == 0;)
        err = far_alloc(t, full->index, full->type, full->bytes, full->node, FAR_ALLOC_ON_NODE, &object);
    far_pin_drop(t);
    return err;
}


/* For this session the memory node has no room for such an object any more. */
static inline void fill_for(far_session *session, full_node full) {
    assert_int_equal(far_session_call(session, FAR_STATS_OTHER, true, fill_for_task, &full), FAR_ERR_NO_MEMORY);
}


/* Background work comes to its end. */
static inline void settle(stage *s) {
    far_sim_sleep(s->world, 5000000);
}


/* The memory was poisoned: whoever reads it now is noticed. */
static inline void is_free(stage *s, far_addr addr) {
    assert_true(is_poisoned(s, addr));
}


/* ---- Actors that stay inside calls, so that their background work runs in them ---- */

static inline void run_busy(void *arg) {
    actor *a = arg;
    char byte;
    a->result = stage_run(a);
    for (unsigned i = 0; i < 64; i++)
        far_get(a->session, a->index, "~", 1, &byte, 1, NULL);
    a->ended = true;
}


static inline void busy_to(actor *a, const char *name, far_op_kind kind, const char *key, const char *value,
                           const char *point, unsigned nth) {
    prepare(a, kind, key, value);
    stage_start_main(a, name, run_busy);
    resume_to(a, point, nth);
}


static inline void busy(actor *a, const char *name, far_op_kind kind, const char *key, const char *value) {
    prepare(a, kind, key, value);
    stage_start_main(a, name, run_busy);
    stage_finish(a);
}


/* A node X of "abcde" that could have entries in the table, and has none: the node above it went just now. */
static inline dart_node set_up_without_entries(stage *s, const char *sim) {
    set_up(s, sim, "upkeep_batch=1,adjust=0,express_cache=0,directory_bits=0");
    LOAD(&s->a, "az", "abcdf", "abcde1", "abcde2", "abcde3");
    settle(s);
    busy(&s->a, "a", FAR_OP_DELETE, "abcdf", "");
    settle(s);
    dart_node x = node_at(&s->a, "abcde1", 5);
    assert_true(x.addr && x.type == DART_N4);
    assert_int_equal(names_of(&s->a, x.addr), 0);
    return x;
}


/* Every test with and without masked CAS, with units of 64 and 8 bytes. */
#define EST_RACE(name)                                                                                                 \
    static void name##_on(const char *sim);                                                                            \
    static void name(void **state) {                                                                                   \
        (void)state;                                                                                                   \
        for (unsigned i_ = 0; i_ < sizeof(fabrics) / sizeof(fabrics[0]); i_++)                                         \
            name##_on(fabrics[i_]);                                                                                    \
    }                                                                                                                  \
    static void name##_on(const char *sim)

#endif
