/* Races of sweep and drain in both layouts. A step of the sweep or drain reads many buckets in one batch and uses these
 * images later; the tests let other clients act in between. Each comment names the change of the code that makes its
 * test fail. */
#include "shard_rig.h"
#include "test.h"

#include "pool/gc/collect.h"

/* One bucket at version 0, so that most keys are at levels 2 and 3. Housekeeping does not work on doublings, so only
 * the actors that the test has chosen do so. */
#define BELOW "slots=2,l2_slots=1,load=95,afs=1000000,idle_sweep=off"

typedef struct worker {
    stage_actor *actor;
    unsigned steps;
    int trips; /* round trips that each step may take */
    int result;
} worker;


static int run_steps(far_task *t, void *arg) {
    worker *w = arg;
    far_index *index = w->actor->index;
    shard_partition *part = &shard_state_of(index)->part[0];
    int err = far_pin_take(t);
    for (unsigned i = 0; err >= 0 && i < w->steps; i++) {
        int trips = w->trips;
        if ((err = shard_refresh_root(t, part)) >= 0)
            err = shard_resize_step(t, index, part, &trips);
        if (err == FAR_ERR_NO_MEMORY)
            err = 0;
    }
    w->result = err;
    far_pin_drop(t);
    return err < 0 ? err : 0;
}


static void run_worker(void *arg) {
    worker *w = arg;
    far_session_call(w->actor->session, FAR_STATS_OTHER, false, run_steps, w);
    w->actor->ended = true;
}


static void start_work(worker *w) {
    w->actor->ended = false;
    w->actor->client = far_sim_start(w->actor->pool->fabric, "worker", run_worker, w);
}


static unsigned current_phase(stage *s) {
    return shard_root_phase(far_root(s));
}


static void work_until(stage *s, stage_actor *a, unsigned wanted) {
    worker w = {.actor = a, .steps = 1, .trips = 5};
    for (unsigned i = 0; i < 400 && current_phase(s) != wanted; i++)
        run_worker(&w);
    assert_int_equal(current_phase(s), wanted);
}


static bool is_split(stage *s, uint64_t bucket, unsigned d) {
    const shard_state *st = shard_state_of(s->a.index);
    return shard_header_v(words_at(s, bucket_addr(&s->a, bucket))[shard_header_at(st)]) >= d;
}


static void assert_all_there(stage *s, uint64_t first, uint64_t last) {
    for (uint64_t n = first; n <= last; n++)
        assert_int_equal(get(&s->c, number(n)), n);
}


/* Proves that a sweep tolerates outdated headers. C's sweep has read the headers of several buckets and stops before it
 * splits bucket 2. A's put splits bucket 2. C must detect that bucket 2 is split, and the phase must not end before all
 * buckets are split. Fails if the sweep skips buckets at version d-1, or if the sweep does not check the version again
 * under the lock. */
static void sweep_by_old_header_on(const variant *variant) {
    stage s;
    worker w = {.actor = &s.c, .steps = 1, .trips = 10};
    open_stage(&s, variant, 4, "slots=4,l2_slots=1,load=95,afs=1000000,idle_sweep=off");
    for (uint64_t n = 1; n <= 20; n++)
        put(&s.a, number(n), n);
    double_by(&s, &s.a);
    put(&s.b, key_in(&s.a, 0, 0, 0), 7); /* splits bucket 0 */
    put(&s.a, key_in(&s.a, 1, 0, 0), 7);
    uint64_t one = get(&s.b, key_in(&s.a, 0, 0, 0));
    assert_int_equal(one, 7);
    start_work(&w);
    stage_stop_at(&s.c, at("shard:migrate_bucket")); /* C has chosen bucket 2 */
    put(&s.a, key_in(&s.a, 2, 1, 0), 8);
    put(&s.a, key_in(&s.a, 2, 0, 0), 9);
    assert_true(is_split(&s, 2, 1) && !is_split(&s, 3, 1));
    stage_finish(&s.c);
    assert_int_equal(w.result, 1);
    for (unsigned i = 0; i < 400 && current_phase(&s) == SHARD_GROW; i++) {
        run_worker(&w);
        for (uint64_t bucket = 0; current_phase(&s) != SHARD_GROW && bucket < 16; bucket++)
            assert_true(is_split(&s, bucket, 1));
    }
    assert_int_equal(current_phase(&s), SHARD_DRAIN);
    work_until(&s, &s.b, SHARD_STABLE);
    assert_there_once(&s, key_in(&s.a, 2, 1, 0), 8);
    assert_there_once(&s, key_in(&s.a, 2, 0, 0), 9);
    stage_close(&s);
}
TEST_ALL_VARIANTS(sweep_by_old_header);


/* Inserts the keys 1 to `count`. At version 1 most keys are at levels 2 and 3, because a stopped client prevents the
 * next doubling. Then the table doubles again, up to its drain. */
static void begin_drain_with(stage *s, const variant *variant, const char *options, uint64_t count) {
    open_stage(s, variant, 0, options);
    put(&s->c, number(1), 1);
    start(&s->c, FAR_OP_GET, number(1), 0);
    stage_stop_at(&s->c, at("shard:main_bucket_read"));
    for (uint64_t n = 2; n <= count; n++)
        put(&s->a, number(n), n);
    work_until(s, &s->a, SHARD_STABLE);
    assert_int_equal(shard_root_d(far_root(s)), 1);
    stage_finish(&s->c);
    double_by(s, &s->a);
    work_until(s, &s->a, SHARD_DRAIN);
}


static void begin_drain(stage *s, const variant *variant, uint64_t count) {
    begin_drain_with(s, variant, BELOW, count);
}


/* Proves that a drain tolerates outdated reads of the old generation. C's drain has read keys and stops before it moves
 * a key. A and B delete, change and insert keys, including keys of the same main buckets. No deleted key may return,
 * and no key may be lost. Fails if the drain moves the entry as it was first read, without reading the entry again
 * under the lock. */
static void change_after_look(const variant *variant, unsigned nth, bool inserts) {
    enum { KEYS = 12 };
    stage s;
    worker w = {.actor = &s.c, .steps = 30, .trips = 5};
    begin_drain(&s, variant, KEYS);
    start_work(&w);
    stage_stop_at(&s.c, (far_sim_match){.point = "shard:drain_bucket", .nth = nth});
    for (uint64_t n = 1; n <= KEYS; n++) {
        if (n % 3 == 2)
            put(&s.b, number(n), 100 + n);
        else
            assert_int_equal(delete_key(&s.a, number(n)), 0);
        if (n % 3 == 0 && inserts) /* these inserts take steps of the drain */
            assert_int_equal(insert(&s.b, number(n), 200 + n), 0);
    }
    stage_finish(&s.c);
    work_until(&s, &s.b, SHARD_STABLE);
    for (uint64_t n = 1; n <= KEYS; n++) {
        uint64_t value = n % 3 == 2 ? 100 + n : n % 3 == 0 && inserts ? 200 + n : 0;
        assert_int_equal(get(&s.a, number(n)), value);
        assert_int_equal(delete_key(&s.b, number(n)), value ? 0 : FAR_ERR_NOT_FOUND);
        assert_int_equal(get(&s.c, number(n)), 0);
    }
    stage_close(&s);
}


static void drain_by_old_words_on(const variant *variant) {
    for (unsigned nth = 1; nth <= 5; nth++)
        for (unsigned inserts = 0; inserts < 2; inserts++)
            change_after_look(variant, nth, inserts);
}
TEST_ALL_VARIANTS(drain_by_old_words);


/* Returns the number of live entries at all levels of a stable partition with 2^d buckets, including hidden copies. */
static uint64_t count_live_entries(stage *s) {
    const shard_state *st = shard_state_of(s->a.index);
    const shard_partition *part = &st->part[0];
    unsigned d = shard_root_d(far_root(s)), step = 1 + st->inlined;
    const uint64_t *directory = words_at(s, shard_cached_word(&part->directory, shard_directory_number(part)));
    far_addr l2 = shard_table_addr(directory[SHARD_DIR_L2 + (d & 1)], d),
             l3 = shard_table_addr(directory[SHARD_DIR_L3 + (d & 1)], d);
    uint64_t live = 0;
    for (uint64_t bucket = 0; bucket < 1u << d; bucket++) {
        for (unsigned i = st->inlined; i < SHARD_P_SLOTS; i += step)
            live += shard_is_live(words_at(s, bucket_addr(&s->a, bucket))[i]);
        for (unsigned i = st->inlined; i < 8; i += step)
            live += shard_is_live(words_at(s, l2 + SHARD_L2_BYTES * bucket)[i]);
    }
    for (far_addr at = l3; at;) {
        const shard_node *node = (const void *)words_at(s, at);
        for (unsigned i = 0; i < (st->inlined ? SHARD_I_NODE_SLOTS : SHARD_P_NODE_SLOTS); i++)
            live += st->inlined ? node->i.slot[i].state & SHARD_STATE_LIVE : shard_is_live(node->p.entry[i]);
        at = *shard_next_of(st, node);
    }
    return live;
}


/* Proves that a drain which fails between storing a key at its new place and clearing the old place leaves no
 * duplicate. C's drain fails at its n-th move of a key; the new place is at level 1, 2 or 3. B finishes the drain, and
 * every key must exist once. Fails if check_already_moved (inline layout) or check_already_linked (pointer layout) does
 * not look for the copy at level 1, or at levels 2 and 3. */
static void fail_at_move(const variant *variant, unsigned nth, unsigned written) {
    enum { KEYS = 14 };
    stage s;
    worker w = {.actor = &s.c, .steps = 60, .trips = 5};
    begin_drain(&s, variant, KEYS);
    start_work(&w);
    stage_stop_at(&s.c, (far_sim_match){.point = variant->inlined ? "shard:drain_move" : "shard:clear_drained_entry",
                                        .nth = nth});
    if (variant->inlined) {
        far_sim_kill_at(s.c.client, (far_sim_match){.kind = FAR_SIM_WRITE, .nth = 1 + written}, 0);
        far_sim_resume(s.c.client);
        far_sim_run(s.world);
    } else {
        stage_kill(&s, &s.c);
    }
    assert_true(far_sim_killed(s.c.pool->fabric));
    work_until(&s, &s.b, SHARD_STABLE);
    for (uint64_t n = 1; n <= KEYS; n++)
        assert_int_equal(get(&s.a, number(n)), n);
    assert_int_equal(count_live_entries(&s), KEYS);
    for (uint64_t n = 1; n <= KEYS; n++) {
        assert_int_equal(delete_key(&s.b, number(n)), 0);
        assert_int_equal(get(&s.a, number(n)), 0);
        assert_int_equal(delete_key(&s.b, number(n)), FAR_ERR_NOT_FOUND);
    }
    stage_close(&s);
}


static void drain_linked_at_d_on(const variant *variant) {
    for (unsigned nth = 1; nth <= 9; nth++) {
        fail_at_move(variant, nth, 1);
        if (variant->inlined) /* C fails before its first WRITE; a chain node with the key was linked already */
            fail_at_move(variant, nth, 0);
    }
}
TEST_ALL_VARIANTS(drain_linked_at_d);


/* Proves that a drain of a long chain continues over many short steps. C takes some steps and fails; B continues, while
 * A deletes and changes keys of the chain. The drain must not end before the chain is empty. Fails if SHARD_DRAIN_MORE
 * is treated as SHARD_DRAINED, or if a node with keys is unlinked. */
static void drain_step_resumes_on(const variant *variant) {
    enum { KEYS = 40 };
    for (unsigned killed_after = 1; killed_after < 8; killed_after += 3) {
        stage s;
        begin_drain(&s, variant, KEYS);
        worker w = {.actor = &s.c, .steps = killed_after, .trips = 3};
        assert_true(COUNTED(&s, chained) >= 3);
        run_worker(&w);
        assert_int_equal(w.result, 1);
        assert_int_equal(current_phase(&s), SHARD_DRAIN);
        far_sim_kill(s.c.pool->fabric);
        w = (worker){.actor = &s.b, .steps = 1, .trips = 3};
        for (uint64_t n = 1; n <= KEYS || current_phase(&s) != SHARD_STABLE; n++) {
            assert_true(n < 2000);
            run_worker(&w);
            if (n <= KEYS && n % 4 == 0)
                assert_int_equal(delete_key(&s.a, number(n)), 0);
            else if (n <= KEYS && n % 4 == 1)
                put(&s.a, number(n), 100 + n);
        }
        for (uint64_t n = 1; n <= KEYS; n++) {
            assert_int_equal(get(&s.b, number(n)), n % 4 == 0 ? 0 : n % 4 == 1 ? 100 + n : n);
            assert_int_equal(delete_key(&s.a, number(n)), n % 4 ? 0 : FAR_ERR_NOT_FOUND);
        }
        stage_close(&s);
    }
}
TEST_ALL_VARIANTS(drain_step_resumes);


/* Proves that a locked bucket delays only its own keys. A holds the lock of a bucket; C's drain must move all other
 * keys, also those that follow in the same chain, and must not mark the chunk done. Fails if SHARD_DRAIN_BLOCKED is
 * treated as SHARD_DRAINED, or if drain_chain (restructure_drain.c) stops at the first key that it cannot move. */
static void drain_with_a_locked_bucket(const variant *variant, uint64_t locked) {
    enum { KEYS = 24 };
    stage s;
    worker w = {.actor = &s.c, .steps = 60, .trips = 40};
    begin_drain(&s, variant, KEYS);
    key locks = number(locked); /* the update takes the lock in both layouts, because this key is at level 2 or 3 */
    start(&s.a, FAR_OP_UPDATE, locks, 77);
    stage_stop_at(&s.a, at("shard:locked"));
    uint64_t before = COUNTED(&s, drained);
    start_work(&w);
    assert_int_equal(far_sim_run_client(s.c.client), FAR_SIM_ENDED);
    assert_int_equal(current_phase(&s), SHARD_DRAIN);
    uint64_t elsewhere = 0, at_level_1 = 4;
    for (uint64_t n = 1; n <= KEYS; n++)
        elsewhere += shard_bucket(hash_of(&s.a, number(n)), 0, 0, 2) != shard_bucket(hash_of(&s.a, locks), 0, 0, 2);
    assert_true(elsewhere > 8);
    assert_true(COUNTED(&s, drained) - before + at_level_1 >= elsewhere);
    stage_finish(&s.a);
    assert_int_equal(s.a.result, 0);
    work_until(&s, &s.b, SHARD_STABLE);
    for (uint64_t n = 1; n <= KEYS; n++)
        if (n != locked)
            assert_int_equal(get(&s.c, number(n)), n);
    assert_there_once(&s, locks, 77);
    stage_close(&s);
}


static void drain_leaves_what_is_locked_on(const variant *variant) {
    for (uint64_t locked = 8; locked <= 24; locked += 4)
        drain_with_a_locked_bucket(variant, locked);
}
TEST_ALL_VARIANTS(drain_leaves_what_is_locked);


static int look_for_leaks(far_task *t, void *arg) {
    return far_collect(t, FAR_COLLECT_COUNT, arg);
}


/* returns the address of the second node of the only chain */
static far_addr second_node(stage *s, unsigned generation) {
    const shard_state *st = shard_state_of(s->a.index);
    far_addr head = shard_table_addr(st->part[0].table[2 + (generation & 1)], generation);
    assert_int_not_equal(head, 0);
    return *shard_next_of(st, (const void *)words_at(s, head));
}


/* Proves that a reader at an unlinked node continues safely. C's get stops before it reads a chain node; B drains the
 * chain and unlinks the node. C must find its key. The node must not be reused while C is pinned (the memory checker
 * verifies this), and it must not leak. Fails if unlink_node (restructure_drain.c) frees the node at once, or if it
 * does not retire it. */
static void reader_on_an_unlinked_node_on(const variant *variant) {
    enum { KEYS = 24 };
    for (uint64_t n = 2; n <= KEYS; n += 5) {
        stage s;
        begin_drain(&s, variant, KEYS);
        far_addr node = second_node(&s, 1);
        assert_int_not_equal(node, 0);
        start(&s.c, FAR_OP_GET, number(n), 0);
        far_sim_stop_before(s.c.client, (far_sim_match){.kind = FAR_SIM_READ, .from = node, .to = node + 64});
        /* The result is not checked, because for some keys C finds its key before it reaches the chain, and does not
         * stop. */
        far_sim_run_client(s.c.client);
        work_until(&s, &s.b, SHARD_STABLE);
        assert_true(COUNTED(&s, unlinked) > 0);
        for (unsigned i = 0; i < 20; i++)
            put(&s.a, number(100 + i), 1);
        stage_finish(&s.c);
        assert_int_equal(result_value(&s.c), n);
        assert_all_there(&s, 1, KEYS);
        far_collect_result leaks;
        assert_int_equal(far_session_call(s.a.session, FAR_STATS_OTHER, true, look_for_leaks, &leaks), 0);
        assert_int_equal(leaks.leaked_bytes, 0);
        stage_close(&s);
    }
}
TEST_ALL_VARIANTS(reader_on_an_unlinked_node);


/* Proves that a get finds a key that a drain moves from a chain of the older generation to the newer generation. C's
 * get has read the level-2 buckets of both generations and, in the same batch, level 1 a second time. C then follows
 * the chain of the older generation, and B moves the key to the newer generation. Fails if search_overflow_once
 * (find.c) does not read the level-2 buckets of the newer generation once more after that chain. */
static void a_chain_that_goes_to_the_newer_generation_on(const variant *variant) {
    enum { KEYS = 28, MOVED = 12 };
    for (uint64_t n = MOVED + 1; n <= KEYS; n += 5) {
        stage s;
        worker w = {.actor = &s.b, .steps = 1, .trips = 5};
        begin_drain_with(&s, variant, BELOW ",filter_bits=1", KEYS);
        for (unsigned i = 0; i < 100 && COUNTED(&s, drained) < MOVED; i++)
            run_worker(&w);
        far_addr node = second_node(&s, 1);
        assert_int_not_equal(node, 0);
        start(&s.c, FAR_OP_GET, number(n), 0);
        far_sim_stop_before(s.c.client, (far_sim_match){.kind = FAR_SIM_READ, .from = node, .to = node + 64});
        far_sim_run_client(s.c.client);
        work_until(&s, &s.b, SHARD_STABLE);
        stage_finish(&s.c);
        assert_int_equal(result_value(&s.c), n);
        stage_close(&s);
    }
}
TEST_ALL_VARIANTS(a_chain_that_goes_to_the_newer_generation);


/* Proves that a get finds a key that the next doubling moves from a chain of the newer generation to level 1. C's get
 * has read the level-2 buckets of both generations and, in the same batch, level 1 a second time. C then follows the
 * chain of the newer generation, and the key is moved to level 1. Fails if level 1 is not read once more after that
 * chain. */
static void a_chain_of_the_newer_generation_on(const variant *variant) {
    enum { KEYS = 14 };
    stage s;
    open_stage(&s, variant, 0, BELOW ",filter_bits=1");
    key below = key_with(&s.a, 0, 1), last = key_with(&s.a, 1, KEYS - 1);
    put(&s.a, key_with(&s.a, 0, 0), 1);
    put(&s.a, key_with(&s.a, 1, 0), 1);
    put(&s.a, below, 1);
    assert_int_equal(COUNTED(&s, overflows), 1);
    double_by(&s, &s.a);
    work_until(&s, &s.a, SHARD_DRAIN);
    for (unsigned i = 0; i < 4; i++) {
        far_epoch_request(s.a.pool);
        far_sim_sleep(s.world, 300000);
    }
    start(&s.b, FAR_OP_UPDATE, below, 2);
    stage_stop_at(&s.b, at("shard:locked")); /* B's lock keeps the drain from ending */
    for (unsigned i = 1; i < KEYS; i++)
        put(&s.a, key_with(&s.a, 1, i), 100 + i);
    assert_int_equal(current_phase(&s), SHARD_DRAIN);
    far_addr node = second_node(&s, 1);
    assert_int_not_equal(node, 0);
    start(&s.c, FAR_OP_GET, last, 0);
    stage_stop_at(&s.c, (far_sim_match){.kind = FAR_SIM_READ, .from = node, .to = node + 64});
    stage_finish(&s.b);
    work_until(&s, &s.a, SHARD_STABLE);
    double_by(&s, &s.a);
    work_until(&s, &s.a, SHARD_STABLE);
    stage_finish(&s.c);
    assert_int_equal(result_value(&s.c), 100 + KEYS - 1);
    stage_close(&s);
}
TEST_ALL_VARIANTS(a_chain_of_the_newer_generation);


/* Proves that the level-2 and level-3 tables of a new generation are allocated before the doubling begins. Otherwise a
 * drain in a full pool would have to wait for their memory. Fails if shard_prepare_version (partition.c) does not make
 * them. */
static void a_doubling_has_its_tables_on(const variant *variant) {
    stage s;
    open_stage(&s, variant, 0, BELOW);
    put(&s.a, number(1), 1);
    for (unsigned d = 1; d < 4; d++) {
        double_by(&s, &s.a);
        const uint64_t *directory = words_at(&s, directory_addr(&s.a));
        assert_int_not_equal(shard_table_addr(directory[SHARD_DIR_L2 + (d & 1)], d), 0);
        assert_int_not_equal(shard_table_addr(directory[SHARD_DIR_L3 + (d & 1)], d), 0);
        work_until(&s, &s.b, SHARD_STABLE);
    }
    stage_close(&s);
}
TEST_ALL_VARIANTS(a_doubling_has_its_tables);


/* Fills the whole memory of the pool with keys of another index. Returns the number of keys. */
static uint64_t fill_pool(stage *s, far_index **hog) {
    static const char value[60000];
    uint64_t hogs = 0;
    assert_int_equal(far_index_create(s->a.session, "hog", "shard", "layout=pointer,partitions=1", hog), 0);
    for (size_t bytes = sizeof(value); bytes > 40; bytes = bytes / 3 * 2) {
        int err = 0;
        while (err == 0) {
            key k = number(++hogs);
            err = far_insert(s->a.session, *hog, k.bytes, 8, value, bytes);
        }
        assert_int_equal(err, FAR_ERR_NO_MEMORY);
    }
    return hogs;
}


/* Proves that a drain without memory pauses for longer and longer, that all keys stay readable, and that the drain ends
 * when there is memory again. Fails if back_off_work (restructure_chunks.c) does nothing. */
static void drain_waits_for_memory_on(const variant *variant) {
    enum { KEYS = 60, STEPS = 600 };
    stage s;
    far_index *hog;
    begin_drain(&s, variant, KEYS);
    uint64_t hogs = fill_pool(&s, &hog);
    worker w = {.actor = &s.b, .steps = STEPS, .trips = 5};
    start_work(&w);
    assert_int_equal(far_sim_run_client(s.b.client), FAR_SIM_ENDED);
    assert_int_equal(current_phase(&s), SHARD_DRAIN);
    uint64_t verbs = far_sim_verbs(s.b.client) - STEPS; /* every step reads the root once, which is not counted here */
    print_message("    %llu verbs in %u steps\n", (unsigned long long)verbs, (unsigned)STEPS);
    assert_true(verbs < 3 * STEPS);
    assert_all_there(&s, 1, KEYS);
    for (uint64_t n = 1; n <= hogs; n++)
        far_delete(s.a.session, hog, number(n).bytes, 8);
    far_index_close(hog);
    for (unsigned i = 0; i < 400 && current_phase(&s) != SHARD_STABLE; i++) {
        w.steps = 50;
        run_worker(&w);
        far_sim_sleep(s.world, 500000);
    }
    assert_int_equal(current_phase(&s), SHARD_STABLE);
    assert_all_there(&s, 1, KEYS);
    stage_close(&s);
}


TEST(drain_waits_for_memory) {
    drain_waits_for_memory_on(&all_variants[0]);
    drain_waits_for_memory_on(&all_variants[4]);
}


/* Inline layout. The header of a bucket counts its keys at levels 2 and 3, and its filter is cleared when the count
 * becomes 0. Proves that an insert which finds no memory for a chain node is not counted, so the filter is cleared when
 * the last key is deleted. Fails if shard_i_place_in_overflow (inline/write.c) does not restore the header. */
TEST(a_key_without_memory_is_not_counted) {
    stage s;
    far_index *hog;
    open_stage(&s, &all_variants[4], 0, BELOW);
    for (uint64_t n = 1; n <= 3; n++)
        put(&s.a, number(n), n);
    fill_pool(&s, &hog);
    uint64_t last = 3;
    while (insert(&s.a, number(last + 1), last + 1) == 0)
        last++;
    for (unsigned i = 0; i < 20; i++)
        assert_int_equal(insert(&s.a, number(last + 1), 1), FAR_ERR_NO_MEMORY);
    assert_int_equal(shard_root_d(far_root(&s)), 0);
    assert_all_there(&s, 1, last);
    for (uint64_t n = 1; n <= last; n++)
        assert_int_equal(delete_key(&s.b, number(n)), 0);
    assert_int_equal(shard_header_fnew(words_at(&s, bucket_addr(&s.a, 0))[SHARD_I_H]), 0);
    far_index_close(hog);
    stage_close(&s);
}


/* Proves that a delete which fails half-way leaves the key with its last value or deletes it, but does not bring an
 * older value back. C's drain has stored a key at level 1 and fails before it clears the copy at level 2 or 3. A
 * changes all keys, at level 1 if they have a copy there. B deletes key n and fails after its first WRITE of two. Fails if
 * delete_pair (inline/write.c) clears the copy at level 1 first. Returns 1 if the key still exists. */
static unsigned delete_and_fail(const variant *variant, uint64_t n, unsigned nth) {
    enum { KEYS = 14 };
    stage s;
    worker w = {.actor = &s.c, .steps = 60, .trips = 5};
    begin_drain(&s, variant, KEYS);
    start_work(&w);
    stage_stop_at(&s.c, (far_sim_match){.point = "shard:drain_move", .nth = nth});
    far_sim_kill_at(s.c.client, (far_sim_match){.kind = FAR_SIM_WRITE, .nth = 2}, 0);
    far_sim_resume(s.c.client);
    far_sim_run(s.world);
    for (uint64_t i = 1; i <= KEYS; i++)
        put(&s.a, number(i), 100 + i);
    start(&s.b, FAR_OP_DELETE, number(n), 0);
    stage_stop_at(&s.b, at("shard:replace"));
    far_sim_kill_at(s.b.client, (far_sim_match){.kind = FAR_SIM_WRITE, .nth = 2}, 0);
    far_sim_resume(s.b.client);
    far_sim_run(s.world);
    uint64_t value = get(&s.a, number(n));
    assert_true(value == 0 || value == 100 + n);
    if (!far_sim_killed(s.b.pool->fabric)) /* a key without a copy is deleted by a single WRITE */
        assert_true(s.b.result == 0 && value == 0);
    work_until(&s, &s.a, SHARD_STABLE);
    assert_int_equal(get(&s.a, number(n)), value);
    stage_close(&s);
    return value != 0;
}


static void delete_fails_while_a_copy_exists_on(const variant *variant) {
    unsigned there = 0;
    for (unsigned nth = 1; nth <= 9; nth++)
        for (uint64_t n = 1; n <= 14; n++)
            there += delete_and_fail(variant, n, nth);
    assert_true(there >= 2); /* the keys that had two copies, and perhaps more */
}
TEST_VARIANTS_OF(delete_fails_while_a_copy_exists, INLINE);


/* Level 2 has room for all keys. Inserts that reach level 3 would drain at once. */
#define WIDE "slots=2,l2_slots=8,load=95,afs=1000000,idle_sweep=off"


/* Inserts so many keys of this main bucket (at version 2) that most are at levels 2 and 3, and that the count of these
 * keys in the header of the bucket reaches its maximum. Returns the last key. */
static key overfill_bucket(stage *s, uint64_t main_bucket) {
    const shard_state *st = shard_state_of(s->a.index);
    key last = {0};
    for (uint64_t n = 1000, count = 0; count < 4 + SHARD_OVERFLOWED_MANY; n++)
        if (shard_bucket(hash_of(&s->a, number(n)), st->p, st->b, 2) == main_bucket) {
            put(&s->a, last = number(n), n);
            count++;
        }
    return last;
}


/* A's put of key n stops before it locks the main bucket, and C's drain fails at its n-th move of a key. Returns false
 * if that move was of a key of another bucket, or if A's put did not stop because key n is at level 1. */
static bool drain_fails_between(const variant *variant, uint64_t n, unsigned nth) {
    enum { KEYS = 14 };
    stage s;
    worker w = {.actor = &s.c, .steps = 60, .trips = 5};
    begin_drain_with(&s, variant, WIDE ",filter_bits=1", KEYS);
    const shard_state *st = shard_state_of(s.a.index);
    uint64_t main_bucket = shard_bucket(hash_of(&s.a, number(n)), st->p, st->b, 2);
    key other = overfill_bucket(&s, main_bucket);
    assert_int_equal(current_phase(&s), SHARD_DRAIN);
    far_sim_sleep(s.world, 100000); /* wait until the last insert has unlocked its bucket */
    far_addr header = bucket_addr(&s.a, main_bucket) + 8ull * SHARD_P_HEADER;
    uint64_t before = world_word(s.world, header);
    assert_int_equal(shard_header_overflowed(before), SHARD_OVERFLOWED_MANY);
    start(&s.a, FAR_OP_PUT, number(n), 77);
    far_sim_stop_before(s.a.client, (far_sim_match){.kind = FAR_SIM_ATOMIC, .from = header, .to = header + 8});
    bool waits = far_sim_run_client(s.a.client) == FAR_SIM_STOPPED; /* false if the key is at level 1 */
    start_work(&w);
    far_sim_stop_before(s.c.client, (far_sim_match){.point = "shard:clear_drained_entry", .nth = nth});
    bool stands = far_sim_run_client(s.c.client) == FAR_SIM_STOPPED;
    bool dies = waits && stands && shard_header_owner(world_word(s.world, header));
    if (dies) {
        stage_kill(&s, &s.c);
        put(&s.b, other, 78); /* frees the lock of the failed client */
        far_sim_sleep(s.world, 100000);
        assert_true(world_word(s.world, header) == before);
    } else if (stands)
        stage_finish(&s.c);
    if (waits)
        stage_finish(&s.a);
    assert_int_equal(s.a.result, 0);
    assert_int_equal(get(&s.b, number(n)), 77);
    work_until(&s, &s.b, SHARD_STABLE);
    assert_int_equal(get(&s.b, number(n)), 77);
    assert_int_equal(delete_key(&s.b, number(n)), 0);
    assert_int_equal(get(&s.b, number(n)), 0);
    stage_close(&s);
    return dies;
}


/* Race H38 (docs/races/shard.md). Proves that a put changes a copy that was made between its search and its lock. A
 * finds k in the older generation only. C's drain stores k in the newer generation, where so many keys overflow that
 * the header does not change, and fails. A locks the bucket; it must change both copies. Fails if
 * seen_word_is_unchanged (pointer/write_locked.c) ignores the number of generations. */
static void copied_between_look_and_lock_on(const variant *variant) {
    unsigned deaths = 0;
    for (uint64_t n = 1; n <= 14; n++)
        for (unsigned nth = 1; nth <= 9; nth++)
            deaths += drain_fails_between(variant, n, nth);
    print_message("    %u deaths\n", deaths);
    assert_true(deaths > 0);
}
TEST_VARIANTS_OF(copied_between_look_and_lock, POINTERS);
