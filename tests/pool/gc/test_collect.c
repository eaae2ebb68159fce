/* Tests of collections with live clients, after client failures, with quiescent handles, session-owned objects and
 * dropped indexes, and of the cost of a check. */
#include "pool_rig.h"
#include "test.h"


/* A handle leaks objects. A count reports their bytes and frees nothing; a repair frees exactly these bytes. Both need
 * two requests. The keys of the handle are intact. */
TEST(unlinked_objects_are_counted_then_freed) {
    rig r;
    open_rig(&r, 1, 3, 0);
    actor *a = &r.actors[0], *b = &r.actors[1];
    a->steps = 30;
    work(a);
    for (unsigned i = 0; i < 3; i++)
        world_await_status_record(r.world, r.actors[i].pool);
    uint64_t used = used_bytes(b);
    assert_int_equal(call(a, leak, a), 0);
    uint32_t number = request_now(&r).number;
    assert_int_equal(sweep(b, FAR_COLLECT_COUNT), 0);
    /* A collection makes exactly two requests, because each request makes all handles return objects and advances the
     * epoch. */
    assert_int_equal(request_now(&r).number - number, 2);
    uint64_t lost = b->swept.leaked_bytes;
    assert_true(lost >= 10 * 325 + 100 + 20000);
    assert_int_equal(b->swept.repaired_bytes, 0);
    far_pool_usage usage = {0};
    assert_int_equal(far_pool_stat(b->session, &usage), 0);
    assert_int_equal(usage.leaked, lost);
    assert_int_equal(sweep(b, FAR_COLLECT_REPAIR), 0);
    assert_int_equal(b->swept.leaked_bytes, lost);
    assert_int_equal(b->swept.repaired_bytes, lost);
    assert_nothing_lost(&r, b);
    assert_true(used_bytes(b) <= used + 1024);
    assert_keys(b, a);
    a->steps = 60;
    work(a); /* After the collection the handle still owns its blocks. */
    assert_int_equal(a->result, 0);
    assert_keys(b, a);
    close_rig(&r);
}


/* A handle fails with keys and leaked objects. A collection frees the leaked objects and the two ids, takes the
 * blocks, and keeps the keys. */
TEST(the_blocks_of_a_failed_handle_are_reused) {
    rig r;
    open_rig(&r, 2, 3, 0);
    actor *a = &r.actors[0], *b = &r.actors[1];
    a->steps = 200;
    work(a);
    assert_int_equal(call(a, leak, a), 0);
    far_sim_kill(a->pool->fabric);
    assert_int_equal(sweep(b, FAR_COLLECT_REPAIR), 0);
    assert_int_equal(b->swept.dead_clients, 2);
    assert_true(b->swept.repaired_bytes >= 3000);
    assert_keys(b, a);
    assert_nothing_lost(&r, b);
    assert_int_equal(sweep(b, FAR_COLLECT_REPAIR), 0);
    assert_int_equal(b->swept.dead_clients, 0);
    b->steps = 300; /* 300 steps allocate from the memory that the collection freed. */
    work(b);
    assert_int_equal(b->result, 0);
    assert_keys(b, a);
    assert_keys(a = &r.actors[2], b);
    close_rig(&r);
}


/* Damage changes the owner of a block to an earlier generation of a live client. The block is unowned then, and a
 * collection must take it. Fails if find_whether_owner_failed (collect.c) does not compare generations, because the
 * block would stay unusable while that client lives. */
TEST(a_block_of_an_earlier_generation_is_reused) {
    rig r;
    open_rig(&r, 8, 2, 0);
    actor *a = &r.actors[0], *b = &r.actors[1];
    const far_geometry *g = &a->pool->geometry;
    const far_session *own = b->pool->team.own;
    far_block_id id = {0, 0};
    while (!far_block_is_free(word_at(&r, far_block_entry(g, id))))
        id.index++;
    uint64_t *entry = bytes_at(&r, far_block_entry(g, id));
    far_block_state before = {
        .kind = FAR_BLOCK_OWNED, .used = true, .id = own->id, .generation = (own->generation - 1) & 0xffff};
    *entry = far_block_pack(&before);
    assert_int_equal(sweep(a, FAR_COLLECT_REPAIR), 0);
    assert_true(*entry != far_block_pack(&before));
    assert_nothing_lost(&r, a);
    close_rig(&r);
}


/* A handle has failed, and no client has noticed it yet. A check first collects what failed clients left, so it does
 * not report that memory as leaked. */
TEST(a_check_right_after_a_failure_reports_no_leak) {
    rig r;
    open_rig(&r, 3, 2, 0);
    actor *a = &r.actors[0], *b = &r.actors[1];
    a->steps = 200;
    work(a);
    assert_int_equal(call(a, leak, a), 0);
    far_sim_kill(a->pool->fabric);
    assert_false(collection_is_requested(&r));
    assert_int_equal(far_pool_check(b->session, 0, fail_at_problem, NULL), 0);
    far_pool_usage usage = {0};
    assert_int_equal(far_pool_stat(b->session, &usage), 0);
    assert_int_equal(usage.leaked, 0);
    assert_keys(b, a);
    close_rig(&r);
}


static void collect_three_times(void *arg) {
    actor *a = arg;
    a->result = 0;
    for (unsigned i = 0; i < 3 && a->result == 0; i++) {
        a->result = sweep(a, FAR_COLLECT_REPAIR);
        if (a->result < 0)
            print_message("%s\n", far_last_error());
        if (a->result == 0 && a->swept.leaked_bytes != 0)
            a->result = 1000;
    }
}


/* Two handles put and delete at random while a third one runs collections. No collection finds a leak, and all keys
 * are intact. Runs with many seeds and all faults of the simulator. */
TEST(a_collection_frees_nothing_of_live_clients) {
    for (unsigned seed = 1; seed <= seeds(25); seed++) {
        rig r;
        open_rig(&r, seed, 3, 0);
        far_sim_set_faults(r.world, FAR_SIM_ALL_FAULTS);
        for (unsigned i = 0; i < 2; i++) {
            r.actors[i].steps = 250;
            start(&r.actors[i], i ? "b" : "a", work);
        }
        start(&r.actors[2], "sweeper", collect_three_times);
        run_all(&r);
        for (unsigned i = 0; i < 3; i++)
            if (r.actors[i].result != 0)
                fail_msg("seed %u: the call of actor %u returned %d", seed, i, r.actors[i].result);
        for (unsigned i = 0; i < 2; i++)
            assert_keys(&r.actors[2], &r.actors[i]);
        assert_nothing_lost(&r, &r.actors[2]);
        close_rig(&r);
    }
}


/* A quiescent handle is not waited for. Up to three collections free nothing in its blocks. */
TEST(collections_free_nothing_of_a_quiescent_handle) {
    for (unsigned sweeps = 1; sweeps <= 3; sweeps++) {
        rig r;
        open_rig(&r, 3 + sweeps, 3, WITHOUT_HOUSEKEEPING(0));
        actor *a = &r.actors[0], *b = &r.actors[1];
        work_now(a, 200);
        hold_blocks(a, true);
        poll_until_quiescent(a); /* At this time the handle has free memory in its own blocks. */
        uint64_t spare = a->pool->store->lists.store_bytes;
        assert_true(spare > 0 && a->pool->store->lists.block_count > 0);
        for (unsigned i = 0; i < sweeps; i++) {
            assert_int_equal(sweep(b, i == 1 ? FAR_COLLECT_COUNT : FAR_COLLECT_REPAIR), 0);
            assert_int_equal(b->swept.leaked_bytes, 0);
        }
        assert_int_equal(a->pool->store->lists.store_bytes, spare);
        hold_blocks(a, false);
        work_now(b, 300); /* The operations use all memory that is free for other handles. */
        work_now(a, 200);
        assert_keys(b, a);
        assert_keys(&r.actors[2], b);
        poll_until_quiescent(a);
        assert_nothing_lost(&r, b);
        close_rig(&r);
    }
}


/* Two handles start collections at the same time. At least one succeeds; the other one succeeds too or gets
 * FAR_ERR_BUSY. Proves set_collector (collect.c). */
TEST(of_two_collectors_one_is_refused) {
    unsigned busy = 0;
    for (unsigned seed = 1; seed <= seeds(20); seed++) {
        rig r;
        open_rig(&r, seed, 3, 0);
        far_sim_set_faults(r.world, FAR_SIM_ALL_FAULTS);
        r.actors[2].steps = 100;
        start(&r.actors[2], "worker", work);
        for (unsigned i = 0; i < 2; i++) {
            start(&r.actors[i], i ? "b" : "a", sweep_main);
        }
        run_all(&r);
        for (unsigned i = 0; i < 2; i++) {
            assert_true(r.actors[i].result == 0 || r.actors[i].result == FAR_ERR_BUSY);
            busy += r.actors[i].result == FAR_ERR_BUSY;
        }
        assert_true(r.actors[0].result == 0 || r.actors[1].result == 0);
        assert_int_equal(r.actors[2].result, 0);
        assert_keys(&r.actors[0], &r.actors[2]);
        assert_nothing_lost(&r, &r.actors[0]);
        close_rig(&r);
    }
    assert_true(busy > 0);
}


/* Damage makes the request word name a session that runs no collection as the collector, and sets the bit `walk`. If it
 * is the system session of a handle, that handle clears the name, also if it was quiescent; otherwise the next
 * collection takes over. Fails without far_collector_name_clear (collect.c). */
TEST(a_wrongly_named_collector_clears_its_name) {
    for (unsigned which = 0; which < 4; which++) {
        rig r;
        open_rig(&r, 1, 2, 0);
        actor *b = &r.actors[which / 2];
        poll_until_all_quiescent(&r);
        unsigned named = which % 2 ? b->session->id : b->pool->team.own->id;
        uint64_t *word = bytes_at(&r, far_addr_make(0, FAR_SUPER_REQUEST));
        *word |= (uint64_t)named << 50 | 1ull << 48;
        assert_int_equal(far_pool_check(r.actors[0].session, 0, fail_at_problem, NULL), 0);
        assert_int_equal(request_now(&r).collector, 0);
        assert_false(request_now(&r).walk);
        close_rig(&r);
    }
}


static int clear_name(far_task *t, void *arg) {
    (void)arg;
    return far_collector_name_clear(t);
}


/* The named handle runs a collection, and its ticks leave its name in the request word. So does a tick that found the
 * name wrong just before the collection began. Fails without `collecting` in far_is_wrongly_named_collector or in
 * far_collector_name_clear (collect.c). */
TEST(a_collecting_handle_keeps_its_name) {
    rig r;
    open_rig(&r, 1, 2, 0);
    actor *a = &r.actors[0];
    assert_int_equal(far_session_open(a->pool, &a->other), 0);
    work_now(a, 50);
    start(a, "sweeper", sweep_main);
    stop_at_point(a, "collect:mark_phase");
    unsigned id = a->pool->team.own->id;
    assert_int_equal(request_now(&r).collector, id);
    for (unsigned i = 0; i < 200; i++) {
        poll_all(&r, 2000000);
        assert_int_equal(request_now(&r).collector, id);
        assert_false(far_is_wrongly_named_collector(a->pool));
    }
    assert_int_equal(far_session_call(a->other, FAR_STATS_OTHER, false, clear_name, NULL), 0);
    assert_int_equal(request_now(&r).collector, id);
    assert_true(request_now(&r).walk);
    finish(a);
    assert_int_equal(a->result, 0);
    assert_int_equal(request_now(&r).collector, 0);
    close_rig(&r);
}


/* A session of handle A fails, and its id is issued again to handle C while A still has the session in its list. C runs
 * a collection, and A must not start one. Fails if find_whether_collector_is_gone (collect.c) takes every id of a session
 * of its own handle for gone. */
TEST(a_collector_with_the_id_of_a_failed_session_is_not_disturbed) {
    rig r;
    open_rig(&r, 1, 2, 0);
    actor *a = &r.actors[0], *b = &r.actors[1], *c = &r.actors[2];
    assert_int_equal(far_session_open(a->pool, &a->other), 0);
    unsigned id = a->other->id;
    far_sim_lose(a->other->conn);
    assert_int_equal(far_get(a->other, a->index, "k", 1, NULL, 0, NULL), FAR_ERR_FENCED);
    for (unsigned i = 0; i < 100; i++)
        poll_all(&r, 2000000);
    assert_int_equal(sweep(b, FAR_COLLECT_REPAIR), 0);
    assert_int_equal(a->other->id, id);
    join(&r, 2, false);
    r.count = 3;
    assert_int_equal(far_index_open(c->session, "x", &c->index), 0);
    assert_int_equal(c->pool->team.own->id, id);
    start(c, "sweeper", sweep_main);
    stop_at_point(c, "collect:mark_phase");
    assert_int_equal(request_now(&r).collector, id);
    work_now(a, 100);
    for (unsigned i = 0; i < 200; i++)
        poll_all(&r, 2000000);
    assert_int_equal(request_now(&r).collector, id);
    assert_true(request_now(&r).walk);
    finish(c);
    assert_int_equal(c->result, 0);
    close_rig(&r);
}


/* A worker fails at a random verb while another one works and a third handle runs a collection; sometimes the collector
 * itself fails. Afterwards a repair leaves no leak, and no value is lost. */
TEST(random_failures_during_work_and_collections_leak_nothing) {
    for (unsigned seed = 1; seed <= seeds(60); seed++) {
        rig r;
        open_rig(&r, seed, 3, 0);
        far_sim_set_faults(r.world, FAR_SIM_ALL_FAULTS);
        far_random random;
        far_random_seed(&random, seed);
        actor *a = &r.actors[0], *b = &r.actors[1], *c = &r.actors[2];
        a->steps = b->steps = 120;
        work(b); /* The operations leave objects to collect. */
        start(a, "a", work);
        start(b, "b", work);
        start(c, "c", sweep_main);
        actor *dying = far_random_chance(&random, 1, 3) ? c : a;
        far_sim_kill_at(dying->client,
                        (far_sim_match){.nth = 1 + (unsigned)far_random_below(&random, dying == c ? 600 : 900)}, 1);
        run_all(&r);
        actor *alive = far_sim_killed(c->pool->fabric) ? a : c;
        assert_int_equal(b->result, 0);
        assert_keys(b, b);
        work(b);
        assert_int_equal(b->result, 0);
        assert_nothing_lost(&r, alive);
        work(b);
        assert_int_equal(b->result, 0);
        assert_keys(alive, b);
        assert_nothing_lost(&r, b);
        close_rig(&r);
    }
}


static int alloc_session_owned(far_task *t, void *arg) {
    actor *a = arg;
    far_object object;
    int err = far_pin_take(t);
    for (unsigned i = 0; i < 100 && err == 0; i++) {
        err = far_alloc(t, a->index, 0, 500, FAR_NODE_ANY, FAR_ALLOC_SESSION_OWNED, &object);
        if (err == 0)
            err = far_write_word(t, object.addr, 0x4b454550 + i);
    }
    far_pin_drop(t);
    return err;
}


/* A session keeps 100 objects. A collection does not free these objects. When the session is closed, their memory is
 * free. */
TEST(session_owned_objects_survive_collections_and_end_with_the_session) {
    rig r;
    open_rig(&r, 4, 3, 0);
    actor *a = &r.actors[0], *b = &r.actors[1];
    uint64_t used = used_bytes(b);
    assert_int_equal(call(a, alloc_session_owned, a), 0);
    assert_int_equal(sweep(b, FAR_COLLECT_REPAIR), 0);
    assert_int_equal(b->swept.leaked_bytes, 0);
    assert_true(used_bytes(b) >= used + 100 * 500);
    far_memory *m = a->session->memory;
    bool seen[100] = {false};
    assert_int_equal(m->session_owned_count, 100);
    for (size_t i = 0; i < 100; i++) {
        uint64_t number = word_at(&r, far_item_addr(m->session_owned[i].item)) - 0x4b454550;
        assert_true(number < 100 && !seen[number]);
        seen[number] = true;
    }
    far_index_close(a->index);
    a->index = NULL;
    far_session_close(a->session);
    a->session = NULL;
    assert_nothing_lost(&r, b);
    assert_true(used_bytes(b) <= used + 4096);
    close_rig(&r);
}


static int alloc_session_owned_without_index(far_task *t, void *arg) {
    far_object *object = arg;
    int err = far_pin_take(t);
    if (err == 0)
        err = far_alloc(t, NULL, FAR_POOL_TYPE_RECORD, 500, FAR_NODE_ANY, FAR_ALLOC_SESSION_OWNED, object);
    far_pin_drop(t);
    return err;
}


/* Housekeeping frees the session-owned objects of closed indexes at every epoch. Objects that belong to no index (uid
 * 0) must stay. Fails without the check of uid 0 in class_is_closed (session_owned.c). */
TEST(session_owned_objects_without_an_index_are_not_freed) {
    rig r;
    open_rig(&r, 4, 1, 0);
    far_object object;
    far_session *session = r.actors[0].session;
    assert_int_equal(call(&r.actors[0], alloc_session_owned_without_index, &object), 0);
    uint32_t kept = session->memory->session_owned_count;
    far_session_owned_free_closed(session->memory->store);
    assert_int_equal(session->memory->session_owned_count, kept);
    assert_nothing_lost(&r, &r.actors[0]);
    close_rig(&r);
}


/* Three handles use index y and close it. After one handle drops y, no handle holds memory of it in magazines, retire
 * queues or reserves. */
TEST(a_drop_frees_the_objects_of_all_sessions) {
    rig r;
    open_rig(&r, 5, 3, 0);
    for (unsigned i = 0; i < 3; i++) { /* Each session gets its reserve for index x before index y exists. */
        r.actors[i].steps = 5;
        work(&r.actors[i]);
        memset(r.actors[i].versions, 0, KEYS);
    }
    uint64_t used = used_bytes(&r.actors[0]);
    far_index *x[3];
    for (unsigned i = 0; i < 3; i++) {
        actor *a = &r.actors[i];
        x[i] = a->index;
        if (i == 0)
            assert_int_equal(far_index_create(a->session, "y", "toy", "slots=16", &a->index), 0);
        else
            assert_int_equal(far_index_open(a->session, "y", &a->index), 0);
        a->steps = 150;
        work(a);
        assert_int_equal(a->result, 0);
    }
    for (unsigned i = 0; i < 3; i++) {
        far_index_close(r.actors[i].index);
        r.actors[i].index = x[i];
        memset(r.actors[i].versions, 0, KEYS);
    }
    assert_true(used_bytes(&r.actors[0]) > used + 10000);
    assert_int_equal(far_index_drop(r.actors[1].session, "y"), 0);
    for (unsigned i = 0; i < 3; i++) { /* All handles are active before the drop. */
        r.actors[i].steps = 5;
        work(&r.actors[i]);
    }
    far_sim_sleep(r.world, 20000000);
    assert_true(used_bytes(&r.actors[0]) <= used + 3 * 16384);
    assert_nothing_lost(&r, &r.actors[2]);
    close_rig(&r);
}


typedef struct cost { /* cost of a check, including the collection that it runs */
    uint64_t verbs, bytes, round_trips;
} cost;


static cost measure_check(far_session *session, int repair) {
    far_stats before, after;
    far_session_stats(session, &before);
    assert_int_equal(far_pool_check(session, repair, print_problem, NULL), 0);
    far_session_stats(session, &after);
    far_stats d = far_stats_diff(&after, &before);
    return (cost){d.reads + d.writes + d.cas + d.faa + d.masked_cas, d.bytes_read + d.bytes_written,
                  d.round_trips + d.background_round_trips};
}


/* Returns how much more a check with this many keys costs than one of an empty index. */
static cost measure_check_of_keys(const char *kind, uint64_t keys) {
    far_pool *pool;
    far_session *session;
    far_index *index;
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    options.no_thread = 1;
    assert_int_equal(far_pool_open("local:32M", &options, &pool), 0);
    assert_int_equal(far_session_open(pool, &session), 0);
    assert_int_equal(far_index_create(session, "x", kind, NULL, &index), 0);
    cost empty = measure_check(session, 0);
    for (uint64_t i = 0; i < keys; i++) {
        uint64_t key = i * 0x9e3779b97f4a7c15ull;
        assert_int_equal(far_put(session, index, &key, 8, &i, 8), 0);
    }
    cost full = measure_check(session, 0);
    far_index_close(index);
    far_session_close(session);
    far_pool_close(pool);
    return (cost){full.verbs - empty.verbs, full.bytes - empty.bytes, full.round_trips - empty.round_trips};
}


/* The walk reaches each object once, and the tables and marks grow with the memory in use, so ten times as many keys
 * cost at most 13 times as much. */
TEST(the_cost_of_a_check_per_key_does_not_grow) {
    static const char *const kinds[] = {"dart", "smart", "chime", "dolphin", "shard"};
    for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        cost few = measure_check_of_keys(kinds[i], 4000), many = measure_check_of_keys(kinds[i], 40000);
        print_message("%s: %.2f verbs and %.0f bytes per key with 4000 keys; %.2f and %.0f with 40000 keys\n", kinds[i],
                      (double)few.verbs / 4000, (double)few.bytes / 4000, (double)many.verbs / 40000,
                      (double)many.bytes / 40000);
        assert_true(many.verbs <= few.verbs * 13);
        assert_true(many.bytes <= few.bytes * 13);
    }
}


static void open_local(const char *uri, far_pool **pool, far_session **session) {
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    options.no_thread = 1;
    assert_int_equal(far_pool_open(uri, &options, pool), 0);
    assert_int_equal(far_session_open(*pool, session), 0);
}


/* Measures a check of a pool in which blocks contain few objects, so that the cost of the check is reading the tables.
 * `own`: the blocks belong to the checking handle; otherwise they are orphans. */
static void assert_few_round_trips_per_block(unsigned value_bytes, bool own) {
    const unsigned keys = 24u * 1000 * 1000 / value_bytes, blocks = 24u * 1000 * 1000 / 65536;
    /* With a round trip of 1 ns, the walk of the index READs in batches as on a network. */
    const char *uri = "local:64M?name=blocks&rtt=1ns";
    far_pool *pool, *other_pool;
    far_session *session, *other;
    far_index *index;
    char *value = calloc(1, value_bytes);
    open_local(uri, &pool, &session);
    assert_int_equal(far_index_create(session, "x", "dart", NULL, &index), 0);
    cost empty[2] = {measure_check(session, 0), measure_check(session, 1)};
    for (uint64_t key = 0; key < keys; key++)
        assert_int_equal(far_put(session, index, &key, 8, value, value_bytes), 0);
    if (!own) {
        open_local(uri, &other_pool, &other); /* The second handle keeps the pool in existence. */
        far_index_close(index);
        far_session_close(session);
        far_pool_close(pool);
        pool = other_pool;
        session = other;
    }
    for (int repair = 0; repair < 2; repair++) {
        uint64_t more = measure_check(session, repair).round_trips - empty[repair].round_trips;
        print_message("values of %u bytes, %s blocks%s: %.3f round trips per block\n", value_bytes,
                      own ? "own" : "unowned", repair ? ", repair" : "", (double)more / blocks);
        assert_true(more <= blocks / 4);
    }
    if (own)
        far_index_close(index);
    far_session_close(session);
    far_pool_close(pool);
    free(value);
}


/* A check and a repair need at most one round trip for four blocks, for own blocks and for orphans, with small and
 * with large objects. Fails if tables are read block by block instead of by far_tables_each (blocks.c). */
TEST(the_tables_of_many_blocks_are_read_in_one_round_trip) {
    for (unsigned own = 0; own < 2; own++) {
        assert_few_round_trips_per_block(30000, own);
        assert_few_round_trips_per_block(65536, own); /* A block has room for few such values. */
    }
}
