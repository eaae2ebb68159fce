/* A node that was replaced is retired, whatever memory this process lacks afterwards: no far memory is left to a sweep that
 * nobody asked for. For every n the n-th request for scratch memory fails from the start of an operation on, once, or
 * some times in a row, or until the end. */
#include "dart_est_rig.h"

#include "pool/superblock.h"

#define ROUNDS_MAX 4000

void *__real_far_scratch(far_task *t, size_t bytes);
void *__wrap_far_scratch(far_task *t, size_t bytes);

static struct {
    unsigned after, times; /* so many requests are granted, then so many fail */
    bool failed;
} heap;


void *__wrap_far_scratch(far_task *t, size_t bytes) {
    if (heap.after > 0) {
        heap.after--;
    } else if (heap.times > 0) {
        heap.times--;
        heap.failed = true;
        return NULL;
    }
    return __real_far_scratch(t, bytes);
}


/* The operation and the background work that it left behind, with that heap. */
static int does_without(stage *s, unsigned after, unsigned times, far_op_kind kind, const char *key) {
    heap.after = after;
    heap.times = times;
    heap.failed = false;
    busy(&s->a, "a", kind, key, "v");
    heap.after = heap.times = 0;
    return s->a.result;
}


static uint64_t leaked(stage *s) {
    far_pool_usage usage;
    assert_int_equal(far_pool_stat(s->b.session, &usage), 0);
    return usage.leaked;
}


/* A full node "abcd" with two entries in the table, under 2 and under 4 bytes: the one that an insert begins with changes its
 * node as the node is replaced, the other one is left to be removed. */
static void set_up_full(stage *s, const char *sim) {
    set_up(s, sim, "upkeep_batch=1,adjust=0,directory_bits=0");
    LOAD(&s->a, SEVEN("abcd"), SEVEN("cd"), "abcdh");
    for (char k = 'i'; k <= 'o'; k++)
        assert_int_equal(does(&s->a, FAR_OP_INSERT, (char[]){'a', 'b', 'c', 'd', k, 0}, "v"), 0);
    settle(s);
    for (unsigned i = 0; i < 4; i++)
        reads(&s->a, "abcda", "abcda");
    settle(s);
    assert_int_equal(names_of(&s->a, node_at(&s->a, "abcda", 4).addr), 2);
}


static uint64_t sweeps_wanted(stage *s) {
    return world_word(s->world, far_addr_make(0, FAR_SUPER_WANTED));
}


typedef unsigned story(stage *s, unsigned after,
                       unsigned times); /* how often what it is about was done without memory */


/* For each n until the story needs no more than n. */
static unsigned at_every_request(const char *sim, story *story, unsigned times, bool sweeps) {
    unsigned done = 0;
    for (unsigned n = 0; n < ROUNDS_MAX; n++) {
        stage s;
        set_up_full(&s, sim);
        uint64_t wanted = sweeps_wanted(&s);
        done += story(&s, n, times);
        settle(&s);
        for (unsigned i = 0; sweeps && leaked(&s) > 0 && i < 100; i++)
            settle(&s);
        assert_true(sweeps || sweeps_wanted(&s) == wanted);
        is_sound(&s, &s.b);
        tear_down(&s);
        if (!heap.failed)
            return done;
    }
    fail();
    return 0;
}


/* One more key for a full node. */
static unsigned replace(stage *s, unsigned after, unsigned times) {
    dart_node old = node_at(&s->a, "abcda", 4);
    int result = does_without(s, after, times, FAR_OP_INSERT, "abcdz");
    bool failed = heap.failed;
    assert_true(result == 0 || (failed && result == FAR_ERR_NO_MEMORY));
    bool done = failed && result == 0 && node_at(&s->a, "abcda", 4).addr != old.addr;
    if (result != 0)
        assert_int_equal(does(&s->a, FAR_OP_INSERT, "abcdz", "v"), 0);
    return done;
}


static uint64_t directory_word(stage *s) {
    return world_word(s->world, dart_spot_at(dart_est_of(s->a.index), 0).addr);
}


static void insert_pairs(void *arg) {
    actor *a = arg;
    char byte;
    for (char k = 'a'; k <= 'z'; k++)
        for (char last = 'a'; last <= 'b'; last++)
            does(a, FAR_OP_INSERT, (char[]){'x', k, last, 0}, "v");
    for (unsigned i = 0; i < 64; i++)
        far_get(a->session, a->index, "~", 1, &byte, 1, NULL);
    a->ended = true;
}


/* Nodes are registered until their segment has grown. */
static unsigned grow_segment(stage *s, unsigned after, unsigned times) {
    uint64_t before = directory_word(s);
    stage_start_main(&s->a, "a", insert_pairs);
    heap.after = after;
    heap.times = times;
    heap.failed = false;
    stage_finish(&s->a);
    heap.after = heap.times = 0;
    return heap.failed && directory_word(s) != before;
}


static void what_was_replaced_is_retired_without_a_sweep(void **state) {
    (void)state;
    assert_true(at_every_request("masked_cas=on", replace, 1, false) > 3);
    assert_true(at_every_request("masked_cas=off", replace, 3, false) > 3);
}


static void a_segment_that_was_not_shown_is_given_back(void **state) {
    (void)state;
    assert_true(at_every_request("masked_cas=on", grow_segment, 1, false) > 3);
}


/* There is no memory for a long time: a sweep is asked for, and finds the node. */
static void a_sweep_is_asked_for_when_nothing_helps(void **state) {
    (void)state;
    assert_true(at_every_request("masked_cas=on", replace, 100000, true) > 3);
}


int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_was_replaced_is_retired_without_a_sweep),
                                       cmocka_unit_test(a_segment_that_was_not_shown_is_given_back),
                                       cmocka_unit_test(a_sweep_is_asked_for_when_nothing_helps)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
