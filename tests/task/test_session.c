/* Tasks, batches and the scheduler (task/session.h), on the local fabric without a formatted pool. */
#include "session_rig.h"
#include "test.h"


static int post_every_verb(far_task *t, void *arg) {
    (void)arg;
    uint64_t image[3] = {1, 2, 3}, back[3] = {0}, old[4] = {0};
    far_write(t, A, image, sizeof(image));
    far_read(t, A, back, sizeof(back));
    far_cas(t, A, 1, 10, &old[0]);
    far_cas(t, A, 1, 11, &old[1]);
    far_faa(t, A + 8, 5, &old[2]);
    far_masked_cas(t, A + 16, 0x3, 0xff, 0x4400, 0xff00, &old[3]);
    assert_int_equal(far_wait(t), 0);
    assert_memory_equal(back, image, sizeof(image));
    assert_int_equal(old[0], 1);
    assert_int_equal(old[1], 10);
    assert_int_equal(old[2], 2);
    assert_int_equal(old[3], 3);
    far_read(t, A, back, sizeof(back));
    assert_int_equal(far_wait(t), 0);
    assert_int_equal(back[0], 10);
    assert_int_equal(back[1], 7);
    assert_int_equal(back[2], 0x4403);
    return 42;
}


/* Verbs of every kind in one batch take effect in their order, and all counters of the session are exact. */
TEST_WITH(verbs_take_effect_and_are_counted, set_up, tear_down) {
    ground *g = *state;
    assert_int_equal(far_session_call(g->session, FAR_OP_PUT, false, post_every_verb, NULL), 42);
    const far_stats *s = &g->session->stats[FAR_OP_PUT];
    assert_int_equal(s->round_trips, 2);
    assert_int_equal(s->reads, 2);
    assert_int_equal(s->writes, 1);
    assert_int_equal(s->cas, 2);
    assert_int_equal(s->cas_failed, 1);
    assert_int_equal(s->faa, 1);
    assert_int_equal(s->masked_cas, 1);
    assert_int_equal(s->bytes_read, 48);
    assert_int_equal(s->bytes_written, 24);
    assert_int_equal(s->background_verbs, 0);
}


/* Announces valid and invalid addresses. */
static int prefetch_any_address(far_task *t, void *arg) {
    (void)arg;
    far_prefetch(t, A);
    far_prefetch(t, far_addr_make(0, (1ull << 40) - 8));
    far_prefetch(t, far_addr_make(FAR_NODES_MAX - 1, 0));
    far_prefetch(t, ~(far_addr)0);
    return far_wait(t);
}


/* far_prefetch counts as no verb and no round trip, and does not use an invalid address. */
TEST_WITH(a_prefetch_is_no_verb_and_ignores_invalid_addresses, set_up, tear_down) {
    ground *g = *state;
    assert_int_equal(far_session_call(g->session, FAR_OP_GET, false, prefetch_any_address, NULL), 0);
    const far_stats *s = &g->session->stats[FAR_OP_GET];
    assert_true(s->reads == 0 && s->round_trips == 0 && s->bytes_read == 0);
}


static int post_overlapping_batches(far_task *t, void *arg) {
    (void)arg;
    uint64_t a = 0, b = 0, *c = far_scratch(t, 8);
    *c = 9;
    far_read(t, A, &a, 8);
    assert_int_equal(far_start(t), 0);
    far_read(t, B, &b, 8);
    assert_int_equal(far_wait(t), 0);
    assert_int_equal(far_wait(t), 0); /* no batch is in flight, so this is no round trip */
    far_read(t, A, &a, 8);
    far_read(t, B, &b, 8);
    far_mark(t, FAR_VERB_FENCE);
    assert_int_equal(far_wait(t), 0);
    far_write(t, B, c, 8);
    return far_post(t);
}


/* Two started batches that are waited for together are one round trip. A fence in a batch adds one. Verbs that are
 * posted without waiting add none. The same holds for background work. */
TEST_FUNCTION(overlap_is_one_trip_a_fence_is_one_more_and_unwaited_verbs_are_none) {
    ground *g = *state;
    for (unsigned background = 0; background < 2; background++) {
        far_op_kind kind = background ? FAR_OP_PUT : FAR_OP_GET;
        assert_int_equal(far_session_call(g->session, kind, background, post_overlapping_batches, NULL), 0);
        far_session_enter(g->session);
        far_session_drain(g->session);
        far_session_leave(g->session);
        const far_stats *s = &g->session->stats[kind];
        assert_int_equal(s->round_trips, background ? 0 : 3);
        assert_int_equal(s->background_round_trips, background ? 3 : 0);
        assert_int_equal(s->background_verbs, background ? 5 : 0);
        assert_int_equal(s->unwaited_verbs, 1);
    }
}


/* Waits for a single verb after two open verbs; the second one has a fence. */
static int post_after_fence(far_task *t, void *arg) {
    const unsigned *way = arg;
    uint64_t a = 0, b = 0, c = 5, old;
    far_read(t, A, &a, 8);
    far_read(t, B, &b, 8);
    far_mark(t, FAR_VERB_FENCE);
    switch (*way) {
    case 0:
        return far_read_now(t, A, &c, 8, 0);
    case 1:
        return far_write_now(t, A, &c, 8);
    case 2:
        return far_read_word(t, A, &c);
    case 3:
        return far_write_word(t, A, c);
    default:
        return far_cas_word(t, A, c, c, &old);
    }
}


/* A single verb after a fenced one costs a second round trip, also where verbs are executed directly. Fails if
 * wait_for_last_verb (batch.c) ignores fences. */
TEST_FUNCTION(a_single_verb_behind_a_fence_is_a_second_trip) {
    ground *g = *state;
    for (unsigned way = 0; way < 5; way++) {
        uint64_t before = g->session->stats[FAR_OP_GET].round_trips;
        assert_int_equal(far_session_call(g->session, FAR_OP_GET, false, post_after_fence, &way), 0);
        assert_int_equal(g->session->stats[FAR_OP_GET].round_trips - before, 2);
    }
}


static int drop_read_order(void **state, int err) {
    ground *g = *state;
    if (err == 0)
        g->pool.fabric->capabilities.reads_in_order = false;
    return err;
}


TEST_FIXTURE(set_up_unordered) {
    return drop_read_order(state, set_up(state));
}


TEST_FIXTURE(set_up_slow_and_unordered) {
    return drop_read_order(state, set_up_slow(state));
}


static int read_unordered(far_task *t, void *arg) {
    const far_addr other = far_addr_make(1, 4096);
    const uint64_t *trips = arg;
    uint64_t a = 0, b = 0, c = 0;
    uint64_t before = *trips;
    far_read(t, A, &a, 8);
    far_read(t, other, &b, 8); /* on another memory node, so it need not wait for the READ before */
    far_write(t, A, &a, 8);
    assert_int_equal(far_wait(t), 0);
    assert_int_equal(*trips - before, 1);
    far_read(t, A, &a, 8);
    far_read(t, B, &b, 8);
    far_read(t, A, &c, 8);
    assert_int_equal(far_wait(t), 0);
    assert_int_equal(*trips - before, 1 + 3);
    far_read(t, A, &a, 8);
    far_read(t, B, &b, 8);
    far_mark(t, FAR_VERB_ANY_ORDER);
    assert_int_equal(far_wait(t), 0);
    assert_int_equal(*trips - before, 1 + 3 + 1);
    far_read(t, A, &a, 8);
    assert_int_equal(far_start(t), 0);
    far_read(t, B, &b, 8); /* posted while an earlier READ is in flight */
    assert_int_equal(far_wait(t), 0);
    assert_int_equal(*trips - before, 1 + 3 + 1 + 2);
    return 0;
}


/* On a fabric that does not keep the order of READs, a READ that follows another READ of its memory node waits for it:
 * one round trip more. Index code may rely on the order. Fails without fence_reads (batch.c). */
TEST_WITH(reads_without_order_wait_for_each_other, set_up_slow_and_unordered, tear_down) {
    ground *g = *state;
    uint64_t *trips = &g->session->stats[FAR_OP_GET].round_trips;
    assert_int_equal(far_session_call(g->session, FAR_OP_GET, false, read_unordered, trips), 0);
}


static int read_two_words(far_task *t, void *arg) {
    uint64_t one, two;
    (void)arg;
    far_read(t, A, &one, 8);
    far_read(t, A + 8, &two, 8);
    return far_wait(t);
}


/* On a fabric that executes verbs directly and does not keep the order of READs, each READ of a memory node counts as
 * one round trip. */
TEST_WITH(reads_without_order_are_trips_at_once_too, set_up_unordered, tear_down) {
    ground *g = *state;
    assert_int_equal(far_session_call(g->session, FAR_OP_GET, false, read_two_words, NULL), 0);
    assert_int_equal(g->session->stats[FAR_OP_GET].round_trips, 2);
}


/* Adds verbs of every kind, and then one with an invalid address. */
static void add_verbs_and_invalid_one(far_task *t, far_addr bad, uint64_t *word) {
    far_write(t, A, word, 8);
    far_cas(t, A, 0, 7, NULL);
    far_faa(t, A, 7, NULL);
    far_masked_cas(t, A, 0, 0, 7, 7, NULL);
    far_read(t, A, word, 8);
    far_write(t, bad, word, 8);
}


static int post_invalid_batches(far_task *t, void *arg) {
    const far_stats *stats = arg;
    uint64_t word = 7;
    const far_addr bad[] = {far_addr_make(2, 0), far_addr_make(0, 1 << 20), far_addr_make(1, (1 << 20) - 4), 4097,
                            (1ull << 48) + 4096};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        far_stats before = *stats;
        add_verbs_and_invalid_one(t, bad[i], &word);
        assert_int_equal(far_wait(t), FAR_ERR_CORRUPT);
        assert_memory_equal(&before, stats, sizeof(before));
    }
    uint64_t back = 1;
    far_read(t, A, &back, 8);
    assert_int_equal(far_wait(t), 0);
    assert_int_equal(back, 0);
    return 0;
}


/* A batch with one invalid address fails with FAR_ERR_CORRUPT. None of its verbs takes effect or is counted. */
TEST_WITH(an_address_outside_refuses_the_whole_batch, set_up, tear_down) {
    ground *g = *state;
    assert_int_equal(
        far_session_call(g->session, FAR_STATS_OTHER, false, post_invalid_batches, &g->session->stats[FAR_STATS_OTHER]),
        0);
}


typedef struct pair {
    far_task *sleeper;
    int order[4];
    int count;
} pair;


static void block_until_woken(far_task *t, void *arg) {
    pair *p = arg;
    p->sleeper = t;
    far_task_block(t);
    p->order[p->count++] = 2;
}


static void wake_sleeper(far_task *t, void *arg) {
    pair *p = arg;
    far_sleep(t, 1000);
    p->order[p->count++] = 1;
    far_task_wake(p->sleeper);
}


static void wake_before_block(far_task *t, void *arg) {
    (void)arg;
    far_task_wake(t); /* this wake-up precedes the block and must not be lost */
    far_task_block(t);
}


/* A task wakes another one. A wake-up before the block is not lost. */
TEST_WITH(tasks_wake_each_other_and_no_wake_is_lost, set_up, tear_down) {
    ground *g = *state;
    pair p = {0};
    far_session_enter(g->session);
    assert_non_null(far_task_new(g->session, FAR_STATS_OTHER, block_until_woken, &p));
    assert_non_null(far_task_new(g->session, FAR_STATS_OTHER, wake_sleeper, &p));
    assert_non_null(far_task_new(g->session, FAR_STATS_OTHER, wake_before_block, NULL));
    far_session_drain(g->session);
    far_session_leave(g->session);
    assert_int_equal(p.count, 2);
    assert_int_equal(p.order[0], 1);
    assert_int_equal(p.order[1], 2);
}


static void run_ten_round_trips(far_task *t, void *arg) {
    unsigned *done = arg;
    uint64_t old;
    for (int i = 0; i < 10; i++) {
        far_faa(t, A, 1, &old);
        assert_int_equal(far_wait(t), 0);
        void *use_scratch = far_scratch(t, 1000 + 40000u * (i == 5));
        memset(use_scratch, i, 1000);
    }
    ++*done;
}


/* A session runs FAR_TASKS_MAX tasks at the same time, with verbs and scratch memory. */
TEST_WITH(hundreds_of_tasks_share_one_session, set_up_slow, tear_down) {
    ground *g = *state;
    unsigned done = 0, made = 0;
    far_session_enter(g->session);
    while (far_task_new(g->session, FAR_STATS_OTHER, run_ten_round_trips, &done))
        made++;
    assert_int_equal(made, FAR_TASKS_MAX);
    far_session_drain(g->session);
    far_session_leave(g->session);
    assert_int_equal(done, made);
    assert_int_equal(g->session->stats[FAR_STATS_OTHER].faa, 10 * made);
}


static void write_value(far_task *t, void *arg) {
    uint64_t *value = arg;
    assert_int_equal(far_write_word(t, A, *value), 0);
}


static int spawn_writer(far_task *t, void *arg) {
    (void)arg;
    uint64_t value = 77;
    assert_true(far_spawn(t, write_value, &value, sizeof(value)));
    value = 0; /* the spawned task has a copy of the value */
    return 0;
}


static int read_word_of_a(far_task *t, void *arg) {
    return far_read_word(t, A, arg);
}


static int spawn_until_refused(far_task *t, void *arg) {
    unsigned *spawned = arg;
    uint64_t value = 1;
    while (far_spawn(t, write_value, &value, sizeof(value)))
        ++*spawned;
    return 0;
}


typedef struct failing {
    const char *words;
    bool right;
} failing;


static void fail_and_wait(far_task *t, void *arg) {
    failing *f = arg;
    far_fail(FAR_ERR_BUSY, "%s", f->words);
    assert_int_equal(far_write_word(t, A, 1), 0); /* other tasks run meanwhile and set other messages */
    f->right = strcmp(far_last_error(), f->words) == 0;
}


static int fail_in_call(far_task *t, void *arg) {
    int err = far_fail(FAR_ERR_BUSY, "%s", (const char *)arg);
    far_write_word(t, A, 1);
    return err;
}


/* Three tasks fail with different messages, and other tasks run between the failure and its use. Each task keeps its
 * own message, and so does the thread. */
TEST_WITH(every_task_has_its_own_error_message, set_up_slow, tear_down) {
    ground *g = *state;
    failing all[3] = {{"one", false}, {"two", false}, {"three", false}};
    far_fail(FAR_ERR_BUSY, "before");
    far_session_enter(g->session);
    for (unsigned i = 0; i < 3; i++)
        assert_non_null(far_task_new(g->session, FAR_STATS_OTHER, fail_and_wait, &all[i]));
    far_session_drain(g->session);
    far_session_leave(g->session);
    for (unsigned i = 0; i < 3; i++)
        assert_true(all[i].right);
    assert_string_equal(far_last_error(), "before"); /* the message of the thread has not changed */
    assert_int_equal(far_session_call(g->session, FAR_STATS_OTHER, false, fail_in_call, "called"), FAR_ERR_BUSY);
    assert_string_equal(far_last_error(), "called");
}


/* Spawned background work is limited to FAR_SPAWN_MAX tasks, so that FAR_OPS_MAX operations always find a task. */
TEST_WITH(spawned_work_leaves_tasks_to_operations, set_up_slow, tear_down) {
    ground *g = *state;
    for (unsigned round = 0; round < 3; round++) { /* tasks that have ended can be used again */
        unsigned spawned = 0, done = 0, made = 0;
        assert_int_equal(far_session_call(g->session, FAR_OP_PUT, false, spawn_until_refused, &spawned), 0);
        assert_int_equal(spawned, FAR_SPAWN_MAX);
        far_session_enter(g->session);
        while (made < FAR_OPS_MAX && far_task_new(g->session, FAR_STATS_OTHER, run_ten_round_trips, &done))
            made++;
        assert_int_equal(made, FAR_OPS_MAX);
        far_session_drain(g->session);
        far_session_leave(g->session);
        assert_int_equal(done, made);
    }
}


/* A spawned task receives a copy of its argument, and its round trips count as background work of the operation that
 * spawned it. */
TEST_WITH(spawned_work_is_background_of_the_same_kind, set_up_slow, tear_down) {
    ground *g = *state;
    uint64_t seen = 0;
    assert_int_equal(far_session_call(g->session, FAR_OP_DELETE, false, spawn_writer, NULL), 0);
    far_session_enter(g->session);
    far_session_drain(g->session);
    far_session_leave(g->session);
    assert_int_equal(far_session_call(g->session, FAR_STATS_OTHER, false, read_word_of_a, &seen), 0);
    assert_int_equal(seen, 77);
    assert_int_equal(g->session->stats[FAR_OP_DELETE].background_round_trips, 1);
    assert_int_equal(g->session->stats[FAR_OP_DELETE].round_trips, 0);
}


static int lose_session(far_task *t, void *arg) {
    (void)arg;
    uint64_t word;
    far_session_lose(far_task_session(t), FAR_ERR_UNREACHABLE);
    return far_read_word(t, A, &word);
}


/* After a verb of a session has failed, the running task and every later task fail. */
TEST_WITH(a_lost_session_fails_for_ever, set_up, tear_down) {
    ground *g = *state;
    uint64_t word;
    assert_int_equal(far_session_call(g->session, FAR_STATS_OTHER, false, lose_session, NULL), FAR_ERR_UNREACHABLE);
    assert_int_equal(far_session_call(g->session, FAR_STATS_OTHER, false, read_word_of_a, &word), FAR_ERR_FENCED);
}


static int use_scratch(far_task *t, void *arg) {
    (void)arg;
    char *first = far_scratch(t, 10);
    memset(first, 1, 10);
    far_scratch_mark mark = far_scratch_here(t);
    for (int i = 0; i < 100; i++)
        memset(far_scratch(t, 5000), 2, 5000);
    far_scratch_back(t, mark);
    char *again = far_scratch(t, 16);
    assert_ptr_equal(again, first + 16);
    assert_int_equal((uintptr_t)far_scratch(t, 3) % 16, 0);
    for (int i = 0; i < 10; i++)
        assert_int_equal(first[i], 1);
    return 0;
}


/* Scratch memory that was allocated after a mark is freed by far_scratch_back, over several chunks, and the memory
 * before the mark stays unchanged. */
TEST_WITH(scratch_memory_goes_back_to_the_mark, set_up, tear_down) {
    ground *g = *state;
    assert_int_equal(far_session_call(g->session, FAR_STATS_OTHER, false, use_scratch, NULL), 0);
}


TEST_CASE_WITH(overlap_is_one_trip_a_fence_is_one_more_and_unwaited_verbs_are_none,
               "overlap_is_one_trip_a_fence_is_one_more_and_unwaited_verbs_are_none", NULL, set_up_slow, tear_down);
TEST_CASE_WITH(overlap_is_one_trip_a_fence_is_one_more_and_unwaited_verbs_are_none,
               "overlap_is_one_trip_a_fence_is_one_more_and_unwaited_verbs_are_none", NULL, set_up, tear_down);
TEST_CASE_WITH(a_single_verb_behind_a_fence_is_a_second_trip, "a_single_verb_behind_a_fence_is_a_second_trip", NULL,
               set_up, tear_down);
TEST_CASE_WITH(a_single_verb_behind_a_fence_is_a_second_trip, "a_single_verb_behind_a_fence_is_a_second_trip", NULL,
               set_up_slow, tear_down);
