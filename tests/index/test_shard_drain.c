/* Named stories of sweep and drain, which look at many buckets in one batch and go on later by what they saw, and of
 * what goes on in between. Both layouts. What was taken out of the code to see a story fail is told with it. */
#include "shard_rig.h"

#include "pool/sweep.h"

/* One bucket at version 0; levels 2 and 3 are where most keys go. Nobody works on a doubling but who is told to. */
#define BELOW "slots=2,l2_slots=1,load=95,afs=1000000,idle_sweep=off"

typedef struct worker {
    stage_actor *actor;
    unsigned steps;
    int trips; /* of each step */
    int result;
} worker;


static int run_steps(far_task *t, void *arg) {
    worker *w = arg;
    far_index *index = w->actor->index;
    shard_partition *part = &shard_state_of(index)->part[0];
    int err = far_pin_take(t);
    for (unsigned i = 0; err >= 0 && i < w->steps; i++) {
        int trips = w->trips;
        if ((err = shard_refresh(t, part)) >= 0)
            err = shard_work(t, index, part, &trips);
        if (err == FAR_ERR_NO_MEMORY)
            err = 0;
    }
    w->result = err;
    far_pin_drop(t);
    return err < 0 ? err : 0;
}


static void work(void *arg) {
    worker *w = arg;
    far_session_call(w->actor->session, FAR_STATS_OTHER, false, run_steps, w);
    w->actor->ended = true;
}


static void start_work(worker *w) {
    w->actor->ended = false;
    w->actor->client = far_sim_start(w->actor->pool->fabric, "worker", work, w);
}


static unsigned phase(stage *s) {
    return shard_root_phase(true_root(s));
}


static void work_until(stage *s, stage_actor *a, unsigned wanted) {
    worker w = {.actor = a, .steps = 1, .trips = 5};
    for (unsigned i = 0; i < 400 && phase(s) != wanted; i++)
        work(&w);
    assert_int_equal(phase(s), wanted);
}


static bool is_split(stage *s, uint64_t bucket, unsigned d) {
    const shard_state *st = shard_state_of(s->a.index);
    return shard_header_v(words_at(s, bucket_addr(&s->a, bucket))[shard_header_at(st)]) >= d;
}


static void assert_all_there(stage *s, uint64_t first, uint64_t last) {
    for (uint64_t n = first; n <= last; n++)
        assert_int_equal(get(&s->c, number(n)), n);
}


/* The sweep has looked at the headers; before it splits the bucket that it chose, a writer does. It finds that, and the
 * phase does not end before every bucket is split. (Skipping buckets at version d-1; no look at the version under the
 * lock.) */
static void sweep_by_old_header_told(const told *told) {
    stage s;
    worker w = {.actor = &s.c, .steps = 1, .trips = 10};
    open_stage(&s, told, 4, "slots=4,l2_slots=1,load=95,afs=1000000,idle_sweep=off");
    for (uint64_t n = 1; n <= 20; n++)
        put(&s.a, number(n), n);
    double_by(&s, &s.a);
    put(&s.b, key_in(&s.a, 0, 0, 0), 7); /* splits bucket 0 */
    put(&s.a, key_in(&s.a, 1, 0, 0), 7);
    uint64_t one = get(&s.b, key_in(&s.a, 0, 0, 0));
    assert_int_equal(one, 7);
    start_work(&w);
    stage_stop_at(&s.c, at("shard:sweep_looked")); /* at bucket 2 */
    put(&s.a, key_in(&s.a, 2, 1, 0), 8);
    put(&s.a, key_in(&s.a, 2, 0, 0), 9);
    assert_true(is_split(&s, 2, 1) && !is_split(&s, 3, 1));
    stage_finish(&s.c);
    assert_int_equal(w.result, 1);
    for (unsigned i = 0; i < 400 && phase(&s) == SHARD_GROW; i++) {
        work(&w);
        for (uint64_t bucket = 0; phase(&s) != SHARD_GROW && bucket < 16; bucket++)
            assert_true(is_split(&s, bucket, 1));
    }
    assert_int_equal(phase(&s), SHARD_DRAIN);
    work_until(&s, &s.b, SHARD_STABLE);
    assert_there_once(&s, key_in(&s.a, 2, 1, 0), 8);
    assert_there_once(&s, key_in(&s.a, 2, 0, 0), 9);
    stage_close(&s);
}
TOLD_OF_ALL(sweep_by_old_header);


/* Keys 1..count, most of them below level 1 at version 1, which a client that stands still keeps from doubling again;
 * then the next doubling, up to its drain. */
static void begin_drain_with(stage *s, const told *told, const char *options, uint64_t count) {
    open_stage(s, told, 0, options);
    put(&s->c, number(1), 1);
    start(&s->c, FAR_OP_GET, number(1), 0);
    stage_stop_at(&s->c, at("shard:home_read"));
    for (uint64_t n = 2; n <= count; n++)
        put(&s->a, number(n), n);
    work_until(s, &s->a, SHARD_STABLE);
    assert_int_equal(shard_root_d(true_root(s)), 1);
    stage_finish(&s->c);
    double_by(s, &s->a);
    work_until(s, &s->a, SHARD_DRAIN);
}


static void begin_drain(stage *s, const told *told, uint64_t count) {
    begin_drain_with(s, told, BELOW, count);
}


/* The drain has seen keys of the old generation; before it moves one, they are deleted, changed and put back, and other
 * keys come to the same homes. Nothing comes back, nothing is lost. (move_up going by the entry as it was seen.) */
static void change_after_look(const told *told, unsigned nth, bool inserts) {
    enum { KEYS = 12 };
    stage s;
    worker w = {.actor = &s.c, .steps = 30, .trips = 5};
    begin_drain(&s, told, KEYS);
    start_work(&w);
    stage_stop_at(&s.c, (far_sim_match){.point = "shard:drain_looked", .nth = nth});
    for (uint64_t n = 1; n <= KEYS; n++) {
        if (n % 3 == 2)
            put(&s.b, number(n), 100 + n);
        else
            assert_int_equal(delete_key(&s.a, number(n)), 0);
        if (n % 3 == 0 && inserts) /* these help the drain */
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


static void drain_by_old_words_told(const told *told) {
    for (unsigned nth = 1; nth <= 5; nth++)
        for (unsigned inserts = 0; inserts < 2; inserts++)
            change_after_look(told, nth, inserts);
}
TOLD_OF_ALL(drain_by_old_words);


/* Live entries of a stable partition with 2^d buckets, of all levels, also those that hide behind others. */
static uint64_t copies(stage *s) {
    const shard_state *st = shard_state_of(s->a.index);
    const shard_partition *part = &st->part[0];
    unsigned d = shard_root_d(true_root(s)), step = 1 + st->inlined;
    const uint64_t *body = words_at(s, shard_known(&part->body, shard_body_of(part)));
    far_addr l2 = shard_table_addr(body[SHARD_BODY_L2 + (d & 1)], d),
             l3 = shard_table_addr(body[SHARD_BODY_L3 + (d & 1)], d);
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


/* A drain died after it had put a key where it goes, and before it took it away where it was. Where it goes is level 1,
 * or level 2 or 3 of the new generation: the n-th move of many. The next drain finds that, and the key is there once.
 * (is_moved, is_linked: without the look at level 1; without the look below.) */
static void die_at_move(const told *told, unsigned nth, unsigned written) {
    enum { KEYS = 14 };
    stage s;
    worker w = {.actor = &s.c, .steps = 60, .trips = 5};
    begin_drain(&s, told, KEYS);
    start_work(&w);
    stage_stop_at(&s.c, (far_sim_match){.point = told->inlined ? "shard:drain_move" : "shard:drained_up", .nth = nth});
    if (told->inlined) {
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
    assert_int_equal(copies(&s), KEYS);
    for (uint64_t n = 1; n <= KEYS; n++) {
        assert_int_equal(delete_key(&s.b, number(n)), 0);
        assert_int_equal(get(&s.a, number(n)), 0);
        assert_int_equal(delete_key(&s.b, number(n)), FAR_ERR_NOT_FOUND);
    }
    stage_close(&s);
}


static void drain_linked_at_d_told(const told *told) {
    for (unsigned nth = 1; nth <= 9; nth++) {
        die_at_move(told, nth, 1);
        if (told->inlined) /* a node that was linked with the key in it */
            die_at_move(told, nth, 0);
    }
}
TOLD_OF_ALL(drain_linked_at_d);


/* A chain takes many steps, each of a few keys, by one who is killed after the k-th of them and then by another; keys
 * of the chain are changed and deleted in between. The drain does not end before all are gone from it. (SHARD_MORE
 * taken for SHARD_GONE; unlinking a node that still has keys.) */
static void drain_step_resumes_told(const told *told) {
    enum { KEYS = 40 };
    for (unsigned killed_after = 1; killed_after < 8; killed_after += 3) {
        stage s;
        begin_drain(&s, told, KEYS);
        worker w = {.actor = &s.c, .steps = killed_after, .trips = 3};
        assert_true(COUNTED(&s, chained) >= 3);
        work(&w);
        assert_int_equal(w.result, 1);
        assert_int_equal(phase(&s), SHARD_DRAIN);
        far_sim_kill(s.c.pool->fabric);
        w = (worker){.actor = &s.b, .steps = 1, .trips = 3};
        for (uint64_t n = 1; n <= KEYS || phase(&s) != SHARD_STABLE; n++) {
            assert_true(n < 2000);
            work(&w);
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
TOLD_OF_ALL(drain_step_resumes);


/* A step that must leave a key, because somebody holds the lock of its home, does not end the chunk; what lies behind
 * that key is moved all the same. (SHARD_LEFT taken for SHARD_GONE; drain_chain ending at the first key that is left.)
 */
static void drain_beside_a_lock(const told *told, uint64_t locked) {
    enum { KEYS = 24 };
    stage s;
    worker w = {.actor = &s.c, .steps = 60, .trips = 40};
    begin_drain(&s, told, KEYS);
    key locks = number(locked); /* it lies below, so that P takes the lock too */
    start(&s.a, FAR_OP_UPDATE, locks, 77);
    stage_stop_at(&s.a, at("shard:locked"));
    uint64_t before = COUNTED(&s, drained);
    start_work(&w);
    assert_int_equal(far_sim_run_client(s.c.client), FAR_SIM_ENDED);
    assert_int_equal(phase(&s), SHARD_DRAIN);
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


static void drain_leaves_what_is_locked_told(const told *told) {
    for (uint64_t locked = 8; locked <= 24; locked += 4)
        drain_beside_a_lock(told, locked);
}
TOLD_OF_ALL(drain_leaves_what_is_locked);


static int look_for_leaks(far_task *t, void *arg) {
    return far_sweep(t, FAR_SWEEP_COUNT, arg);
}


static far_addr second_node(stage *s, unsigned generation) { /* of the only chain */
    const shard_state *st = shard_state_of(s->a.index);
    far_addr head = shard_table_addr(st->part[0].table[2 + (generation & 1)], generation);
    assert_int_not_equal(head, 0);
    return *shard_next_of(st, (const void *)words_at(s, head));
}


/* A reader stands on a node of a chain while the drain empties and unlinks all of it: it finds the key, or finds where
 * it went. The nodes are not used again under its pin (the watch looks), and none is lost. (unlink_node freeing at
 * once; unlink_node not retiring.) */
static void reader_on_an_unlinked_node_told(const told *told) {
    enum { KEYS = 24 };
    for (uint64_t n = 2; n <= KEYS; n += 5) {
        stage s;
        begin_drain(&s, told, KEYS);
        far_addr node = second_node(&s, 1);
        assert_int_not_equal(node, 0);
        start(&s.c, FAR_OP_GET, number(n), 0);
        far_sim_stop_before(s.c.client, (far_sim_match){.kind = FAR_SIM_READ, .from = node, .to = node + 64});
        far_sim_run_client(s.c.client); /* it may find the key before it comes to the chain */
        work_until(&s, &s.b, SHARD_STABLE);
        assert_true(COUNTED(&s, unlinked) > 0);
        for (unsigned i = 0; i < 20; i++)
            put(&s.a, number(100 + i), 1);
        stage_finish(&s.c);
        assert_int_equal(given(&s.c), n);
        assert_all_there(&s, 1, KEYS);
        far_sweep_result leaks;
        assert_int_equal(far_session_call(s.a.session, FAR_STATS_OTHER, true, look_for_leaks, &leaks), 0);
        assert_int_equal(leaks.leaked_bytes, 0);
        stage_close(&s);
    }
}
TOLD_OF_ALL(reader_on_an_unlinked_node);


/* A get has looked at both generations, and at level 1 again, and goes along the chain of the older one, when its key
 * goes from there to the newer one, where others have gone before: it is found. (The newer one not read again.) */
static void a_chain_that_goes_to_the_newer_generation_told(const told *told) {
    enum { KEYS = 28, MOVED = 12 };
    for (uint64_t n = MOVED + 1; n <= KEYS; n += 5) {
        stage s;
        worker w = {.actor = &s.b, .steps = 1, .trips = 5};
        begin_drain_with(&s, told, BELOW ",filter_bits=1", KEYS);
        for (unsigned i = 0; i < 100 && COUNTED(&s, drained) < MOVED; i++)
            work(&w);
        far_addr node = second_node(&s, 1);
        assert_int_not_equal(node, 0);
        start(&s.c, FAR_OP_GET, number(n), 0);
        far_sim_stop_before(s.c.client, (far_sim_match){.kind = FAR_SIM_READ, .from = node, .to = node + 64});
        far_sim_run_client(s.c.client);
        work_until(&s, &s.b, SHARD_STABLE);
        stage_finish(&s.c);
        assert_int_equal(given(&s.c), n);
        stage_close(&s);
    }
}
TOLD_OF_ALL(a_chain_that_goes_to_the_newer_generation);


/* A get has looked at both generations, and at level 1 again, and goes along the chain of the newer one, when the next
 * doubling brings its key from there to level 1: it is found. (Level 1 not read again after that chain.) */
static void a_chain_of_the_newer_generation_told(const told *told) {
    enum { KEYS = 14 };
    stage s;
    open_stage(&s, told, 0, BELOW ",filter_bits=1");
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
    stage_stop_at(&s.b, at("shard:locked")); /* it keeps the drain from its end */
    for (unsigned i = 1; i < KEYS; i++)
        put(&s.a, key_with(&s.a, 1, i), 100 + i);
    assert_int_equal(phase(&s), SHARD_DRAIN);
    far_addr node = second_node(&s, 1);
    assert_int_not_equal(node, 0);
    start(&s.c, FAR_OP_GET, last, 0);
    stage_stop_at(&s.c, (far_sim_match){.kind = FAR_SIM_READ, .from = node, .to = node + 64});
    stage_finish(&s.b);
    work_until(&s, &s.a, SHARD_STABLE);
    double_by(&s, &s.a);
    work_until(&s, &s.a, SHARD_STABLE);
    stage_finish(&s.c);
    assert_int_equal(given(&s.c), 100 + KEYS - 1);
    stage_close(&s);
}
TOLD_OF_ALL(a_chain_of_the_newer_generation);


/* What a drain may need is taken before the doubling begins: in a full pool, where deletes are the way out, it does not
 * wait for a table. (shard_make_segment without the tables.) */
static void a_doubling_has_its_tables_told(const told *told) {
    stage s;
    open_stage(&s, told, 0, BELOW);
    put(&s.a, number(1), 1);
    for (unsigned d = 1; d < 4; d++) {
        double_by(&s, &s.a);
        const uint64_t *body = words_at(&s, body_addr(&s.a));
        assert_int_not_equal(shard_table_addr(body[SHARD_BODY_L2 + (d & 1)], d), 0);
        assert_int_not_equal(shard_table_addr(body[SHARD_BODY_L3 + (d & 1)], d), 0);
        work_until(&s, &s.b, SHARD_STABLE);
    }
    stage_close(&s);
}
TOLD_OF_ALL(a_doubling_has_its_tables);


/* Keys of another index take all memory that there is. Returns how many. */
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


/* Nothing is free in the pool, and the drain needs nodes of chains: it asks less and less often, all keys are there,
 * and when there is memory again it ends. (rest doing nothing.) */
static void drain_waits_for_memory_told(const told *told) {
    enum { KEYS = 60, STEPS = 600 };
    stage s;
    far_index *hog;
    begin_drain(&s, told, KEYS);
    uint64_t hogs = fill_pool(&s, &hog);
    worker w = {.actor = &s.b, .steps = STEPS, .trips = 5};
    start_work(&w);
    assert_int_equal(far_sim_run_client(s.b.client), FAR_SIM_ENDED);
    assert_int_equal(phase(&s), SHARD_DRAIN);
    uint64_t verbs = far_sim_verbs(s.b.client) - STEPS; /* each looks at the root */
    print_message("    %llu verbs in %u steps\n", (unsigned long long)verbs, (unsigned)STEPS);
    assert_true(verbs < 3 * STEPS);
    assert_all_there(&s, 1, KEYS);
    for (uint64_t n = 1; n <= hogs; n++)
        far_delete(s.a.session, hog, number(n).bytes, 8);
    far_index_close(hog);
    for (unsigned i = 0; i < 400 && phase(&s) != SHARD_STABLE; i++) {
        w.steps = 50;
        work(&w);
        far_sim_sleep(s.world, 500000);
    }
    assert_int_equal(phase(&s), SHARD_STABLE);
    assert_all_there(&s, 1, KEYS);
    stage_close(&s);
}


static void drain_waits_for_memory(void **state) {
    (void)state;
    drain_waits_for_memory_told(&all_told[0]);
    drain_waits_for_memory_told(&all_told[4]);
}


/* Layout I: inserts that find no memory for a node of their chain have counted nothing: with the last key that goes the
 * filter forgets. (The count not taken back.) */
static void a_key_without_memory_is_not_counted(void **state) {
    (void)state;
    stage s;
    far_index *hog;
    open_stage(&s, &all_told[4], 0, BELOW);
    for (uint64_t n = 1; n <= 3; n++)
        put(&s.a, number(n), n);
    fill_pool(&s, &hog);
    uint64_t last = 3;
    while (insert(&s.a, number(last + 1), last + 1) == 0)
        last++;
    for (unsigned i = 0; i < 20; i++)
        assert_int_equal(insert(&s.a, number(last + 1), 1), FAR_ERR_NO_MEMORY);
    assert_int_equal(shard_root_d(true_root(&s)), 0);
    assert_all_there(&s, 1, last);
    for (uint64_t n = 1; n <= last; n++)
        assert_int_equal(delete_key(&s.b, number(n)), 0);
    assert_int_equal(shard_header_fnew(words_at(&s, bucket_addr(&s.a, 0))[SHARD_I_H]), 0);
    far_index_close(hog);
    stage_close(&s);
}


/* A drain died between the WRITE above and the WRITE below; the key was changed since, above; and who deletes it dies
 * after his first WRITE. What is left is the key with its last value, or nothing, never the copy. (replace taking away
 * the copy above before those below.) */
static unsigned delete_and_die(const told *told, uint64_t n, unsigned nth) {
    enum { KEYS = 14 };
    stage s;
    worker w = {.actor = &s.c, .steps = 60, .trips = 5};
    begin_drain(&s, told, KEYS);
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
    assert_true(far_sim_killed(s.b.pool->fabric));
    uint64_t value = get(&s.a, number(n));
    assert_true(value == 0 || value == 100 + n);
    work_until(&s, &s.a, SHARD_STABLE);
    assert_int_equal(get(&s.a, number(n)), value);
    stage_close(&s);
    return value != 0;
}


static void delete_dies_beside_a_copy_told(const told *told) {
    unsigned there = 0;
    for (unsigned nth = 1; nth <= 9; nth++)
        for (uint64_t n = 1; n <= 14; n++)
            there += delete_and_die(told, n, nth);
    assert_true(there >= 2); /* those that had a copy */
}
TOLD_OF(delete_dies_beside_a_copy, INLINE);


/* Level 2 has room for all: inserts that come to level 3 would drain at once. */
#define WIDE "slots=2,l2_slots=8,load=95,afs=1000000,idle_sweep=off"


/* Keys whose home at version 2 is that bucket, most of them below it: more than its header counts. Returns the last. */
static key crowd_home(stage *s, uint64_t home) {
    const shard_state *st = shard_state_of(s->a.index);
    key last = {0};
    for (uint64_t n = 1000, count = 0; count < 4 + SHARD_OVERFLOWED_MANY; n++)
        if (shard_bucket(hash_of(&s->a, number(n)), st->p, st->b, 2) == home) {
            put(&s->a, last = number(n), n);
            count++;
        }
    return last;
}


/* False: it was not this key that the drain moved when it died. */
static bool drain_dies_between(const told *told, uint64_t n, unsigned nth) {
    enum { KEYS = 14 };
    stage s;
    worker w = {.actor = &s.c, .steps = 60, .trips = 5};
    begin_drain_with(&s, told, WIDE ",filter_bits=1", KEYS);
    const shard_state *st = shard_state_of(s.a.index);
    uint64_t home = shard_bucket(hash_of(&s.a, number(n)), st->p, st->b, 2);
    key other = crowd_home(&s, home);
    assert_int_equal(phase(&s), SHARD_DRAIN);
    far_sim_sleep(s.world, 100000); /* the last of them has unlocked */
    far_addr header = bucket_addr(&s.a, home) + 8ull * SHARD_P_HEADER;
    uint64_t before = world_word(s.world, header);
    assert_int_equal(shard_header_overflowed(before), SHARD_OVERFLOWED_MANY);
    start(&s.a, FAR_OP_PUT, number(n), 77);
    far_sim_stop_before(s.a.client, (far_sim_match){.kind = FAR_SIM_ATOMIC, .from = header, .to = header + 8});
    bool waits = far_sim_run_client(s.a.client) == FAR_SIM_STOPPED; /* else it is at level 1 */
    start_work(&w);
    far_sim_stop_before(s.c.client, (far_sim_match){.point = "shard:drained_up", .nth = nth});
    bool stands = far_sim_run_client(s.c.client) == FAR_SIM_STOPPED;
    bool dies = waits && stands && shard_header_owner(world_word(s.world, header));
    if (dies) {
        stage_kill(&s, &s.c);
        put(&s.b, other, 78); /* frees the lock */
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


/* A put finds its key in the older generation only. Before it has the lock, a drain puts the key into the newer one, where
 * so many are already that the header says nothing of it, and dies: the put changes both. (is_still_there content with two
 * generations.) */
static void copied_between_look_and_lock_told(const told *told) {
    unsigned deaths = 0;
    for (uint64_t n = 1; n <= 14; n++)
        for (unsigned nth = 1; nth <= 9; nth++)
            deaths += drain_dies_between(told, n, nth);
    print_message("    %u deaths\n", deaths);
    assert_true(deaths > 0);
}
TOLD_OF(copied_between_look_and_lock, POINTERS);


int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(delete_dies_beside_a_copy),
        cmocka_unit_test(sweep_by_old_header),
        cmocka_unit_test(drain_by_old_words),
        cmocka_unit_test(drain_linked_at_d),
        cmocka_unit_test(copied_between_look_and_lock),
        cmocka_unit_test(drain_step_resumes),
        cmocka_unit_test(drain_leaves_what_is_locked),
        cmocka_unit_test(reader_on_an_unlinked_node),
        cmocka_unit_test(a_doubling_has_its_tables),
        cmocka_unit_test(a_chain_that_goes_to_the_newer_generation),
        cmocka_unit_test(a_chain_of_the_newer_generation),
        cmocka_unit_test(drain_waits_for_memory),
        cmocka_unit_test(a_key_without_memory_is_not_counted),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
