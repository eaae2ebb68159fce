/* A replaced node must be retired although the process runs out of local memory after the replacement, so that the
 * node's far memory does not wait for a collection. For every n, the n-th request for scratch memory after the start of
 * an operation fails: once, several times in a row, or until the end. */
#include "dart_est_rig.h"
#include "test.h"

#include "pool/format/superblock.h"

#define ROUNDS_MAX 4000

void *__real_far_scratch(far_task *t, size_t bytes);
void *__wrap_far_scratch(far_task *t, size_t bytes);

static struct {
    unsigned after, times; /* number of requests that succeed; number of requests that fail after them */
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


/* Runs an operation and its background work with these failures. */
static int run_without_memory(stage *s, unsigned after, unsigned times, far_op_kind kind, const char *key) {
    heap.after = after;
    heap.times = times;
    heap.failed = false;
    run_with_background(&s->a, "a", kind, key, "v");
    heap.after = heap.times = 0;
    return s->a.result;
}


static uint64_t leaked_bytes(stage *s) {
    far_pool_usage usage;
    assert_int_equal(far_pool_stat(s->b.session, &usage), 0);
    return usage.leaked;
}


/* Makes a full node "abcd" with two entries in the table, under 2 and under 4 bytes. The entry through which an insert
 * reaches the node is redirected when the node is replaced; the other entry must be removed. */
static void set_up_full(stage *s, const char *sim) {
    set_up(s, sim, "upkeep_batch=1,adjust=0,directory_bits=0");
    INSERT_KEYS(&s->a, SEVEN_KEYS("abcd"), SEVEN_KEYS("cd"), "abcdh");
    for (char k = 'i'; k <= 'o'; k++)
        assert_int_equal(run_op(&s->a, FAR_OP_INSERT, (char[]){'a', 'b', 'c', 'd', k, 0}, "v"), 0);
    finish_background(s);
    for (unsigned i = 0; i < 4; i++)
        expect_get(&s->a, "abcda", "abcda");
    finish_background(s);
    assert_int_equal(count_entries_of(&s->a, node_at(&s->a, "abcda", 4).addr), 2);
}


static uint64_t collections_wanted(stage *s) {
    return world_word(s->world, far_addr_make(0, FAR_SUPER_LOSSES));
}


/* An operation during which `after` requests for scratch memory succeed and the next `times` requests fail. Returns
 * whether the change of the operation was made although a request failed. */
typedef unsigned scenario(stage *s, unsigned after, unsigned times);


/* Runs a scenario for each n, until it needs no more than n requests. Returns how often its change was made although a
 * request failed. */
static unsigned at_every_request(const char *sim, scenario *scenario, unsigned times, bool collects) {
    unsigned done = 0;
    for (unsigned n = 0; n < ROUNDS_MAX; n++) {
        stage s;
        set_up_full(&s, sim);
        uint64_t wanted = collections_wanted(&s);
        done += scenario(&s, n, times);
        finish_background(&s);
        for (unsigned i = 0; collects && leaked_bytes(&s) > 0 && i < 100; i++)
            finish_background(&s);
        assert_true(collects || collections_wanted(&s) == wanted);
        expect_sound(&s, &s.b);
        tear_down(&s);
        if (!heap.failed)
            return done;
    }
    fail();
    return 0;
}


/* Inserts one more key into a full node, so that the node is replaced. */
static unsigned insert_into_full_node(stage *s, unsigned after, unsigned times) {
    dart_node old = node_at(&s->a, "abcda", 4);
    int result = run_without_memory(s, after, times, FAR_OP_INSERT, "abcdz");
    bool failed = heap.failed;
    assert_true(result == 0 || (failed && result == FAR_ERR_NO_MEMORY));
    bool done = failed && result == 0 && node_at(&s->a, "abcda", 4).addr != old.addr;
    if (result != 0)
        assert_int_equal(run_op(&s->a, FAR_OP_INSERT, "abcdz", "v"), 0);
    return done;
}


static uint64_t directory_word(stage *s) {
    return world_word(s->world, dart_dir_slot_at(dart_est_of(s->a.index), 0).addr);
}


static void insert_pairs(void *arg) {
    actor *a = arg;
    char byte;
    for (char k = 'a'; k <= 'z'; k++)
        for (char last = 'a'; last <= 'b'; last++)
            run_op(a, FAR_OP_INSERT, (char[]){'x', k, last, 0}, "v");
    for (unsigned i = 0; i < 64; i++)
        far_get(a->session, a->index, "~", 1, &byte, 1, NULL);
    a->ended = true;
}


/* Registers nodes until their segment is replaced. */
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


/* Proves that the replaced node is retired, and no collection is requested, if some requests fail. The guard is the
 * repetition in restructure.c, remove_entries. */
TEST(a_replaced_node_is_retired_without_a_collection) {
    assert_true(at_every_request("masked_cas=on", insert_into_full_node, 1, false) > 3);
    assert_true(at_every_request("masked_cas=off", insert_into_full_node, 3, false) > 3);
}


/* Proves that if a request fails while a segment is replaced, the new segments are freed. The guard is
 * skiptable/grow.c, clean_up_after_error. */
TEST(a_segment_that_was_not_published_is_freed) {
    assert_true(at_every_request("masked_cas=on", grow_segment, 1, false) > 3);
}


/* Requests fail for a long time. Proves that the client requests a collection, which frees the node. The guard is
 * restructure.c, retire_old_node (far_memory_note_failed_session). */
TEST(a_collection_is_requested_when_memory_stays_short) {
    assert_true(at_every_request("masked_cas=on", insert_into_full_node, 100000, true) > 3);
}
