/* Tasks, batches and the scheduler, on the local fabric without a pool around them. */
#include "session_rig.h"


static int every_verb(far_task *t, void *arg) {
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


static void verbs_do_what_they_say_and_are_counted(void **state) {
    ground *g = *state;
    assert_int_equal(far_session_call(g->session, FAR_OP_PUT, false, every_verb, NULL), 42);
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


/* Verbs that are waited for at once, then some behind others that are still open. */
static int prefetches(far_task *t, void *arg) {
    (void)arg;
    far_prefetch(t, A);
    far_prefetch(t, far_addr_make(0, (1ull << 40) - 8));
    far_prefetch(t, far_addr_make(FAR_NODES_MAX - 1, 0));
    far_prefetch(t, ~(far_addr)0);
    return far_wait(t);
}


static void a_prefetch_is_no_verb_and_follows_no_wild_address(void **state) {
    ground *g = *state;
    assert_int_equal(far_session_call(g->session, FAR_OP_GET, false, prefetches, NULL), 0);
    const far_stats *s = &g->session->stats[FAR_OP_GET];
    assert_true(s->reads == 0 && s->round_trips == 0 && s->bytes_read == 0);
}


static int overlapped(far_task *t, void *arg) {
    (void)arg;
    uint64_t a = 0, b = 0, *c = far_scratch(t, 8);
    *c = 9;
    far_read(t, A, &a, 8);
    assert_int_equal(far_start(t), 0);
    far_read(t, B, &b, 8);
    assert_int_equal(far_wait(t), 0);
    assert_int_equal(far_wait(t), 0); /* for nothing: no trip */
    far_read(t, A, &a, 8);
    far_read(t, B, &b, 8);
    far_mark(t, FAR_VERB_FENCE);
    assert_int_equal(far_wait(t), 0);
    far_write(t, B, c, 8);
    return far_post(t);
}


static void overlap_is_one_trip_a_fence_is_one_more_and_unwaited_verbs_are_none(void **state) {
    ground *g = *state;
    for (unsigned background = 0; background < 2; background++) {
        far_op_kind kind = background ? FAR_OP_PUT : FAR_OP_GET;
        assert_int_equal(far_session_call(g->session, kind, background, overlapped, NULL), 0);
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


/* One verb that is waited for behind open ones, of which one waits for those before it. */
static int behind_a_fence(far_task *t, void *arg) {
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


/* Where verbs run at once too. (Fences not looked at in wait_for_last: one trip.) */
static void a_single_verb_behind_a_fence_is_a_second_trip(void **state) {
    ground *g = *state;
    for (unsigned way = 0; way < 5; way++) {
        uint64_t before = g->session->stats[FAR_OP_GET].round_trips;
        assert_int_equal(far_session_call(g->session, FAR_OP_GET, false, behind_a_fence, &way), 0);
        assert_int_equal(g->session->stats[FAR_OP_GET].round_trips - before, 2);
    }
}


static int without_order(void **state, int err) {
    ground *g = *state;
    if (err == 0)
        g->pool.fabric->capabilities.reads_in_order = false;
    return err;
}


static int set_up_unordered(void **state) {
    return without_order(state, set_up(state));
}


static int set_up_slow_and_unordered(void **state) {
    return without_order(state, set_up_slow(state));
}


static int many_reads(far_task *t, void *arg) {
    const far_addr other = far_addr_make(1, 4096);
    const uint64_t *trips = arg;
    uint64_t a = 0, b = 0, c = 0;
    uint64_t before = *trips;
    far_read(t, A, &a, 8);
    far_read(t, other, &b, 8); /* another node */
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
    far_read(t, B, &b, 8); /* behind one that is under way */
    assert_int_equal(far_wait(t), 0);
    assert_int_equal(*trips - before, 1 + 3 + 1 + 2);
    return 0;
}


/* Who rests on the order of READs is not told that there is none: it costs round trips. */
static void reads_without_order_wait_for_each_other(void **state) {
    ground *g = *state;
    uint64_t *trips = &g->session->stats[FAR_OP_GET].round_trips;
    assert_int_equal(far_session_call(g->session, FAR_OP_GET, false, many_reads, trips), 0);
}


static int two_reads(far_task *t, void *arg) {
    uint64_t one, two;
    (void)arg;
    far_read(t, A, &one, 8);
    far_read(t, A + 8, &two, 8);
    return far_wait(t);
}


static void reads_without_order_are_trips_at_once_too(void **state) {
    ground *g = *state;
    assert_int_equal(far_session_call(g->session, FAR_OP_GET, false, two_reads, NULL), 0);
    assert_int_equal(g->session->stats[FAR_OP_GET].round_trips, 2);
}


/* Verbs of every kind, and then one outside: none is counted. */
static void put_all_and(far_task *t, far_addr bad, uint64_t *word) {
    far_write(t, A, word, 8);
    far_cas(t, A, 0, 7, NULL);
    far_faa(t, A, 7, NULL);
    far_masked_cas(t, A, 0, 0, 7, 7, NULL);
    far_read(t, A, word, 8);
    far_write(t, bad, word, 8);
}


static int outside(far_task *t, void *arg) {
    const far_stats *stats = arg;
    uint64_t word = 7;
    const far_addr bad[] = {far_addr_make(2, 0), far_addr_make(0, 1 << 20), far_addr_make(1, (1 << 20) - 4), 4097,
                            (1ull << 48) + 4096};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        far_stats before = *stats;
        put_all_and(t, bad[i], &word);
        assert_int_equal(far_wait(t), FAR_ERR_CORRUPT);
        assert_memory_equal(&before, stats, sizeof(before));
    }
    uint64_t back = 1;
    far_read(t, A, &back, 8);
    assert_int_equal(far_wait(t), 0);
    assert_int_equal(back, 0);
    return 0;
}


static void an_address_outside_refuses_the_whole_batch(void **state) {
    ground *g = *state;
    assert_int_equal(far_session_call(g->session, FAR_STATS_OTHER, false, outside, &g->session->stats[FAR_STATS_OTHER]),
                     0);
}


typedef struct pair {
    far_task *sleeper;
    int order[4];
    int count;
} pair;


static void sleeper(far_task *t, void *arg) {
    pair *p = arg;
    p->sleeper = t;
    far_task_block(t);
    p->order[p->count++] = 2;
}


static void waker(far_task *t, void *arg) {
    pair *p = arg;
    far_sleep(t, 1000);
    p->order[p->count++] = 1;
    far_task_wake(p->sleeper);
}


static void early_waker(far_task *t, void *arg) {
    (void)arg;
    far_task_wake(t); /* before the block: must not be lost */
    far_task_block(t);
}


static void tasks_wake_each_other_and_no_wake_is_lost(void **state) {
    ground *g = *state;
    pair p = {0};
    far_session_enter(g->session);
    assert_non_null(far_task_new(g->session, FAR_STATS_OTHER, sleeper, &p));
    assert_non_null(far_task_new(g->session, FAR_STATS_OTHER, waker, &p));
    assert_non_null(far_task_new(g->session, FAR_STATS_OTHER, early_waker, NULL));
    far_session_drain(g->session);
    far_session_leave(g->session);
    assert_int_equal(p.count, 2);
    assert_int_equal(p.order[0], 1);
    assert_int_equal(p.order[1], 2);
}


static void many_body(far_task *t, void *arg) {
    unsigned *done = arg;
    uint64_t old;
    for (int i = 0; i < 10; i++) {
        far_faa(t, A, 1, &old);
        assert_int_equal(far_wait(t), 0);
        void *scratch = far_scratch(t, 1000 + 40000u * (i == 5));
        memset(scratch, i, 1000);
    }
    ++*done;
}


static void hundreds_of_tasks_share_one_session(void **state) {
    ground *g = *state;
    unsigned done = 0, made = 0;
    far_session_enter(g->session);
    while (far_task_new(g->session, FAR_STATS_OTHER, many_body, &done))
        made++;
    assert_int_equal(made, FAR_TASKS_MAX);
    far_session_drain(g->session);
    far_session_leave(g->session);
    assert_int_equal(done, made);
    assert_int_equal(g->session->stats[FAR_STATS_OTHER].faa, 10 * made);
}


static void child(far_task *t, void *arg) {
    uint64_t *value = arg;
    assert_int_equal(far_write_word(t, A, *value), 0);
}


static int parent(far_task *t, void *arg) {
    (void)arg;
    uint64_t value = 77;
    assert_true(far_spawn(t, child, &value, sizeof(value)));
    value = 0; /* the child has a copy */
    return 0;
}


static int look(far_task *t, void *arg) {
    return far_read_word(t, A, arg);
}


static int spawn_all(far_task *t, void *arg) {
    unsigned *spawned = arg;
    uint64_t value = 1;
    while (far_spawn(t, child, &value, sizeof(value)))
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
    assert_int_equal(far_write_word(t, A, 1), 0); /* others run, and fail with other words */
    f->right = strcmp(far_last_error(), f->words) == 0;
}


static int fail_in_call(far_task *t, void *arg) {
    int err = far_fail(FAR_ERR_BUSY, "%s", (const char *)arg);
    far_write_word(t, A, 1);
    return err;
}


static void every_task_has_words_of_its_own(void **state) {
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
    assert_string_equal(far_last_error(), "before"); /* the thread's own are untouched */
    assert_int_equal(far_session_call(g->session, FAR_STATS_OTHER, false, fail_in_call, "called"), FAR_ERR_BUSY);
    assert_string_equal(far_last_error(), "called");
}


/* Work that operations leave behind must not keep the next operations out, however much of it there is. */
static void spawned_work_leaves_tasks_to_operations(void **state) {
    ground *g = *state;
    for (unsigned round = 0; round < 3; round++) { /* what has ended makes room again */
        unsigned spawned = 0, done = 0, made = 0;
        assert_int_equal(far_session_call(g->session, FAR_OP_PUT, false, spawn_all, &spawned), 0);
        assert_int_equal(spawned, FAR_SPAWN_MAX);
        far_session_enter(g->session);
        while (made < FAR_OPS_MAX && far_task_new(g->session, FAR_STATS_OTHER, many_body, &done))
            made++;
        assert_int_equal(made, FAR_OPS_MAX);
        far_session_drain(g->session);
        far_session_leave(g->session);
        assert_int_equal(done, made);
    }
}


static void spawned_work_is_background_of_the_same_kind(void **state) {
    ground *g = *state;
    uint64_t seen = 0;
    assert_int_equal(far_session_call(g->session, FAR_OP_DELETE, false, parent, NULL), 0);
    far_session_enter(g->session);
    far_session_drain(g->session);
    far_session_leave(g->session);
    assert_int_equal(far_session_call(g->session, FAR_STATS_OTHER, false, look, &seen), 0);
    assert_int_equal(seen, 77);
    assert_int_equal(g->session->stats[FAR_OP_DELETE].background_round_trips, 1);
    assert_int_equal(g->session->stats[FAR_OP_DELETE].round_trips, 0);
}


static int lose(far_task *t, void *arg) {
    (void)arg;
    uint64_t word;
    far_session_lose(far_task_session(t), FAR_ERR_UNREACHABLE);
    return far_read_word(t, A, &word);
}


static void a_lost_session_says_so_for_ever(void **state) {
    ground *g = *state;
    uint64_t word;
    assert_int_equal(far_session_call(g->session, FAR_STATS_OTHER, false, lose, NULL), FAR_ERR_UNREACHABLE);
    assert_int_equal(far_session_call(g->session, FAR_STATS_OTHER, false, look, &word), FAR_ERR_FENCED);
}


static int scratch(far_task *t, void *arg) {
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


static void scratch_memory_goes_back_to_the_mark(void **state) {
    ground *g = *state;
    assert_int_equal(far_session_call(g->session, FAR_STATS_OTHER, false, scratch, NULL), 0);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(verbs_do_what_they_say_and_are_counted, set_up, tear_down),
        cmocka_unit_test_setup_teardown(overlap_is_one_trip_a_fence_is_one_more_and_unwaited_verbs_are_none,
                                        set_up_slow, tear_down),
        cmocka_unit_test_setup_teardown(a_single_verb_behind_a_fence_is_a_second_trip, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_single_verb_behind_a_fence_is_a_second_trip, set_up_slow, tear_down),
        cmocka_unit_test_setup_teardown(reads_without_order_wait_for_each_other, set_up_slow_and_unordered, tear_down),
        cmocka_unit_test_setup_teardown(reads_without_order_are_trips_at_once_too, set_up_unordered, tear_down),
        cmocka_unit_test_setup_teardown(overlap_is_one_trip_a_fence_is_one_more_and_unwaited_verbs_are_none, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(an_address_outside_refuses_the_whole_batch, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_prefetch_is_no_verb_and_follows_no_wild_address, set_up, tear_down),
        cmocka_unit_test_setup_teardown(tasks_wake_each_other_and_no_wake_is_lost, set_up, tear_down),
        cmocka_unit_test_setup_teardown(hundreds_of_tasks_share_one_session, set_up_slow, tear_down),
        cmocka_unit_test_setup_teardown(spawned_work_is_background_of_the_same_kind, set_up_slow, tear_down),
        cmocka_unit_test_setup_teardown(spawned_work_leaves_tasks_to_operations, set_up_slow, tear_down),
        cmocka_unit_test_setup_teardown(every_task_has_words_of_its_own, set_up_slow, tear_down),
        cmocka_unit_test_setup_teardown(a_lost_session_says_so_for_ever, set_up, tear_down),
        cmocka_unit_test_setup_teardown(scratch_memory_goes_back_to_the_mark, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
