/* The sweep: beside live clients, after deaths, with sleepers, kept objects and dropped indexes. */
#include "pool_rig.h"


static void what_is_linked_nowhere_is_counted_then_freed(void **state) {
    (void)state;
    rig r;
    open_rig(&r, 1, 3, 0);
    actor *a = &r.actors[0], *b = &r.actors[1];
    a->steps = 30;
    work(a);
    uint64_t used = used_bytes(b);
    assert_int_equal(call(a, leak, a), 0);
    uint32_t number = request_now(&r).number;
    assert_int_equal(sweep(b, FAR_SWEEP_COUNT), 0);
    assert_int_equal(request_now(&r).number - number, 2); /* each makes all handles bring home, and moves the epoch */
    uint64_t lost = b->swept.leaked_bytes;
    assert_true(lost >= 10 * 325 + 100 + 100000);
    assert_int_equal(b->swept.repaired_bytes, 0);
    far_pool_usage usage = {0};
    assert_int_equal(far_pool_stat(b->session, &usage), 0);
    assert_int_equal(usage.leaked, lost);
    assert_int_equal(sweep(b, FAR_SWEEP_REPAIR), 0);
    assert_int_equal(b->swept.leaked_bytes, lost);
    assert_int_equal(b->swept.repaired_bytes, lost);
    assert_nothing_lost(&r, b);
    assert_true(used_bytes(b) <= used + 1024);
    assert_keys(b, a);
    a->steps = 60;
    work(a); /* its blocks are its own again */
    assert_int_equal(a->result, 0);
    assert_keys(b, a);
    close_rig(&r);
}


static void the_blocks_of_the_dead_come_back(void **state) {
    (void)state;
    rig r;
    open_rig(&r, 2, 3, 0);
    actor *a = &r.actors[0], *b = &r.actors[1];
    a->steps = 200;
    work(a);
    assert_int_equal(call(a, leak, a), 0);
    far_sim_kill(a->pool->fabric);
    assert_int_equal(sweep(b, FAR_SWEEP_REPAIR), 0);
    assert_int_equal(b->swept.dead_clients, 2);
    assert_true(b->swept.repaired_bytes >= 3000);
    assert_keys(b, a);
    assert_nothing_lost(&r, b);
    assert_int_equal(sweep(b, FAR_SWEEP_REPAIR), 0);
    assert_int_equal(b->swept.dead_clients, 0);
    b->steps = 300; /* fills what was left */
    work(b);
    assert_int_equal(b->result, 0);
    assert_keys(b, a);
    assert_keys(a = &r.actors[2], b);
    close_rig(&r);
}


/* Damage says of a block that it is of an earlier life of a client that lives: it is nobody's. (Generations not compared: it
 * stays so as long as that client lives.) */
static void a_block_of_an_earlier_life_comes_back(void **state) {
    (void)state;
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
    assert_int_equal(sweep(a, FAR_SWEEP_REPAIR), 0);
    assert_true(*entry != far_block_pack(&before));
    assert_nothing_lost(&r, a);
    close_rig(&r);
}


/* Nobody has noticed yet that it died: what it left is not told as a leak. */
static void a_check_right_after_a_death_finds_nothing(void **state) {
    (void)state;
    rig r;
    open_rig(&r, 3, 2, 0);
    actor *a = &r.actors[0], *b = &r.actors[1];
    a->steps = 200;
    work(a);
    assert_int_equal(call(a, leak, a), 0);
    far_sim_kill(a->pool->fabric);
    assert_false(sweep_is_wanted(&r));
    assert_int_equal(far_pool_check(b->session, 0, fail_at_problem, NULL), 0);
    far_pool_usage usage = {0};
    assert_int_equal(far_pool_stat(b->session, &usage), 0);
    assert_int_equal(usage.leaked, 0);
    assert_keys(b, a);
    close_rig(&r);
}


static void sweep_again_and_again(void *arg) {
    actor *a = arg;
    a->result = 0;
    for (unsigned i = 0; i < 3 && a->result == 0; i++) {
        a->result = sweep(a, FAR_SWEEP_REPAIR);
        if (a->result < 0)
            print_message("%s\n", far_last_error());
        if (a->result == 0 && a->swept.leaked_bytes != 0)
            a->result = 1000;
    }
}


static void a_sweep_beside_live_clients_takes_nothing_from_them(void **state) {
    (void)state;
    for (unsigned seed = 1; seed <= seeds(25); seed++) {
        rig r;
        open_rig(&r, seed, 3, 0);
        far_sim_set_faults(r.world, FAR_SIM_ALL_FAULTS);
        for (unsigned i = 0; i < 2; i++) {
            r.actors[i].steps = 250;
            start(&r.actors[i], i ? "b" : "a", work);
        }
        start(&r.actors[2], "sweeper", sweep_again_and_again);
        run_all(&r);
        for (unsigned i = 0; i < 3; i++)
            if (r.actors[i].result != 0)
                fail_msg("seed %u: actor %u got %d", seed, i, r.actors[i].result);
        for (unsigned i = 0; i < 2; i++)
            assert_keys(&r.actors[2], &r.actors[i]);
        assert_nothing_lost(&r, &r.actors[2]);
        close_rig(&r);
    }
}


/* A handle that sleeps is not waited for, and what it holds in its own blocks is its own, whatever is swept meanwhile.
 */
static void sweeps_take_nothing_from_a_sleeper(void **state) {
    (void)state;
    for (unsigned sweeps = 1; sweeps <= 3; sweeps++) {
        rig r;
        open_rig(&r, 3 + sweeps, 3, BY_HAND(0));
        actor *a = &r.actors[0], *b = &r.actors[1];
        work_now(a, 200);
        hold_blocks(a, true);
        poll_until_asleep(a); /* with free memory in blocks of its own */
        uint64_t spare = a->pool->store->spare_bytes;
        assert_true(spare > 0 && a->pool->store->block_count > 0);
        for (unsigned i = 0; i < sweeps; i++) {
            assert_int_equal(sweep(b, i == 1 ? FAR_SWEEP_COUNT : FAR_SWEEP_REPAIR), 0);
            assert_int_equal(b->swept.leaked_bytes, 0);
        }
        assert_int_equal(a->pool->store->spare_bytes, spare);
        hold_blocks(a, false);
        work_now(b, 300); /* whatever is free for others */
        work_now(a, 200);
        assert_keys(b, a);
        assert_keys(&r.actors[2], b);
        poll_until_asleep(a);
        assert_nothing_lost(&r, b);
        close_rig(&r);
    }
}


static void of_two_sweepers_one_waits(void **state) {
    (void)state;
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


/* The request names one who does not sweep, by damage: its handle takes the name away, so that a check, and the next sweep, need
 * not wait for it. A session that is nobody's own never sweeps. */
static void who_is_said_to_sweep_and_does_not_denies_it(void **state) {
    (void)state;
    for (unsigned which = 0; which < 4; which++) {
        rig r;
        open_rig(&r, 1, 2, 0);
        actor *b = &r.actors[which / 2];
        poll_until_all_asleep(&r);
        unsigned named = which % 2 ? b->session->id : b->pool->team.own->id;
        uint64_t *word = bytes_at(&r, far_addr_make(0, FAR_SUPER_REQUEST));
        *word |= (uint64_t)named << 50 | 1ull << 48;
        assert_int_equal(far_pool_check(r.actors[0].session, 0, fail_at_problem, NULL), 0);
        assert_int_equal(request_now(&r).sweeper, 0);
        assert_false(request_now(&r).walk);
        close_rig(&r);
    }
}


/* The id of a session that died is given out again while its handle still has it: who has the id now sweeps undisturbed. */
static void the_sweep_of_one_with_the_id_of_a_lost_session_is_not_denied(void **state) {
    (void)state;
    rig r;
    open_rig(&r, 1, 2, 0);
    actor *a = &r.actors[0], *b = &r.actors[1], *c = &r.actors[2];
    assert_int_equal(far_session_open(a->pool, &a->other), 0);
    unsigned id = a->other->id;
    far_sim_lose(a->other->conn);
    assert_int_equal(far_get(a->other, a->index, "k", 1, NULL, 0, NULL), FAR_ERR_FENCED);
    for (unsigned i = 0; i < 100; i++)
        poll_all(&r, 2000000);
    assert_int_equal(sweep(b, FAR_SWEEP_REPAIR), 0);
    assert_int_equal(a->other->id, id);
    join(&r, 2, false);
    r.count = 3;
    assert_int_equal(far_index_open(c->session, "x", &c->index), 0);
    assert_int_equal(c->pool->team.own->id, id);
    start(c, "sweeper", sweep_main);
    stop_at_point(c, "sweep:walk");
    assert_int_equal(request_now(&r).sweeper, id);
    work_now(a, 100);
    for (unsigned i = 0; i < 200; i++)
        poll_all(&r, 2000000);
    assert_int_equal(request_now(&r).sweeper, id);
    assert_true(request_now(&r).walk);
    finish(c);
    assert_int_equal(c->result, 0);
    close_rig(&r);
}


/* A worker dies somewhere, beside another worker and sweeps of both kinds; then another dies, perhaps the sweeper. */
static void random_deaths_beside_work_and_sweeps_lose_nothing(void **state) {
    (void)state;
    for (unsigned seed = 1; seed <= seeds(60); seed++) {
        rig r;
        open_rig(&r, seed, 3, 0);
        far_sim_set_faults(r.world, FAR_SIM_ALL_FAULTS);
        far_random random;
        far_random_seed(&random, seed);
        actor *a = &r.actors[0], *b = &r.actors[1], *c = &r.actors[2];
        a->steps = b->steps = 120;
        work(b); /* something to sweep */
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


static int keep_some(far_task *t, void *arg) {
    actor *a = arg;
    far_object object;
    int err = far_pin_take(t);
    for (unsigned i = 0; i < 100 && err == 0; i++) {
        err = far_alloc(t, a->index, 0, 500, FAR_NODE_ANY, FAR_ALLOC_KEEP, &object);
        if (err == 0)
            err = far_write_word(t, object.addr, 0x4b454550 + i);
    }
    far_pin_drop(t);
    return err;
}


static void what_a_session_keeps_survives_sweeps_and_ends_with_it(void **state) {
    (void)state;
    rig r;
    open_rig(&r, 4, 3, 0);
    actor *a = &r.actors[0], *b = &r.actors[1];
    uint64_t used = used_bytes(b);
    assert_int_equal(call(a, keep_some, a), 0);
    assert_int_equal(sweep(b, FAR_SWEEP_REPAIR), 0);
    assert_int_equal(b->swept.leaked_bytes, 0);
    assert_true(used_bytes(b) >= used + 100 * 500);
    far_memory *m = a->session->memory;
    size_t kept = 0;
    bool seen[100] = {false};
    for (size_t i = 0; i < m->kept_count; i++)
        if (!m->kept[i].reserve) {
            uint64_t number = word_at(&r, far_item_addr(m->kept[i].item)) - 0x4b454550;
            assert_true(number < 100 && !seen[number]);
            seen[number] = true;
            kept++;
        }
    assert_int_equal(kept, 100);
    far_index_close(a->index);
    a->index = NULL;
    far_session_close(a->session);
    a->session = NULL;
    assert_nothing_lost(&r, b);
    assert_true(used_bytes(b) <= used + 4096);
    close_rig(&r);
}


static int keep_of_no_index(far_task *t, void *arg) {
    far_object *object = arg;
    int err = far_pin_take(t);
    if (err == 0)
        err = far_alloc(t, NULL, FAR_POOL_TYPE_RECORD, 500, FAR_NODE_ANY, FAR_ALLOC_KEEP, object);
    far_pin_drop(t);
    return err;
}


/* Housekeeping gives back what a session keeps for indexes that it has closed, at every epoch. */
static void what_a_session_keeps_for_no_index_is_not_given_back(void **state) {
    (void)state;
    rig r;
    open_rig(&r, 4, 1, 0);
    far_object object;
    far_session *session = r.actors[0].session;
    assert_int_equal(call(&r.actors[0], keep_of_no_index, &object), 0);
    uint32_t kept = session->memory->kept_count;
    far_kept_free_closed(session->memory->store);
    assert_int_equal(session->memory->kept_count, kept);
    assert_nothing_lost(&r, &r.actors[0]);
    close_rig(&r);
}


static void a_drop_gives_back_what_all_sessions_held_of_it(void **state) {
    (void)state;
    rig r;
    open_rig(&r, 5, 3, 0);
    for (unsigned i = 0; i < 3; i++) { /* each has its reserve for x */
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
    for (unsigned i = 0; i < 3; i++) { /* all awake */
        r.actors[i].steps = 5;
        work(&r.actors[i]);
    }
    far_sim_sleep(r.world, 20000000);
    assert_true(used_bytes(&r.actors[0]) <= used + 3 * 16384);
    assert_nothing_lost(&r, &r.actors[2]);
    close_rig(&r);
}


typedef struct cost { /* of a check, with its sweep */
    uint64_t verbs, bytes, round_trips;
} cost;


static cost cost_of_check(far_session *session, int repair) {
    far_stats before, after;
    far_session_stats(session, &before);
    assert_int_equal(far_pool_check(session, repair, print_problem, NULL), 0);
    far_session_stats(session, &after);
    far_stats d = far_stats_diff(&after, &before);
    return (cost){d.reads + d.writes + d.cas + d.faa + d.masked_cas, d.bytes_read + d.bytes_written,
                  d.round_trips + d.background_round_trips};
}


/* What the check of this many keys costs more than that of an empty index. */
static cost cost_of_keys(const char *kind, uint64_t keys) {
    far_pool *pool;
    far_session *session;
    far_index *index;
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    options.no_thread = 1;
    assert_int_equal(far_pool_open("local:32M", &options, &pool), 0);
    assert_int_equal(far_session_open(pool, &session), 0);
    assert_int_equal(far_index_create(session, "x", kind, NULL, &index), 0);
    cost empty = cost_of_check(session, 0);
    for (uint64_t i = 0; i < keys; i++) {
        uint64_t key = i * 0x9e3779b97f4a7c15ull;
        assert_int_equal(far_put(session, index, &key, 8, &i, 8), 0);
    }
    cost full = cost_of_check(session, 0);
    far_index_close(index);
    far_session_close(session);
    far_pool_close(pool);
    return (cost){full.verbs - empty.verbs, full.bytes - empty.bytes, full.round_trips - empty.round_trips};
}


/* The walk meets each object once, and its marks and tables grow with the memory in use, not with its square. */
static void a_check_costs_no_more_for_each_key_when_there_are_more(void **state) {
    (void)state;
    static const char *const kinds[] = {"dart", "smart", "chime", "dolphin", "shard"};
    for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        cost few = cost_of_keys(kinds[i], 4000), many = cost_of_keys(kinds[i], 40000);
        print_message("%s: %.2f verbs, %.0f bytes for each of 4000 keys; %.2f, %.0f for each of 40000\n", kinds[i],
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


/* Blocks with few objects: the tables are what a check reads. Its own blocks, or nobody's. */
static void round_trips_for_blocks(unsigned value_bytes, bool own) {
    const unsigned keys = 24u * 1000 * 1000 / value_bytes, blocks = 24u * 1000 * 1000 / 65536;
    const char *uri = "local:64M?name=blocks";
    far_pool *pool, *other_pool;
    far_session *session, *other;
    far_index *index;
    char *value = calloc(1, value_bytes);
    open_local(uri, &pool, &session);
    assert_int_equal(far_index_create(session, "x", "dart", NULL, &index), 0);
    cost empty[2] = {cost_of_check(session, 0), cost_of_check(session, 1)};
    for (uint64_t key = 0; key < keys; key++)
        assert_int_equal(far_put(session, index, &key, 8, value, value_bytes), 0);
    if (!own) {
        open_local(uri, &other_pool, &other); /* the pool stays */
        far_index_close(index);
        far_session_close(session);
        far_pool_close(pool);
        pool = other_pool;
        session = other;
    }
    for (int repair = 0; repair < 2; repair++) {
        uint64_t more = cost_of_check(session, repair).round_trips - empty[repair].round_trips;
        print_message("values of %u bytes, %s blocks%s: %.3f round trips for each\n", value_bytes,
                      own ? "own" : "nobody's", repair ? ", repair" : "", (double)more / blocks);
        assert_true(more <= blocks / 4);
    }
    if (own)
        far_index_close(index);
    far_session_close(session);
    far_pool_close(pool);
    free(value);
}


static void the_tables_of_many_blocks_are_read_in_one_round_trip(void **state) {
    (void)state;
    for (unsigned own = 0; own < 2; own++) {
        round_trips_for_blocks(30000, own);
        round_trips_for_blocks(65536, own); /* runs of two blocks */
    }
}


int main(int argc, char **argv) {
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_linked_nowhere_is_counted_then_freed),
        cmocka_unit_test(the_blocks_of_the_dead_come_back),
        cmocka_unit_test(a_block_of_an_earlier_life_comes_back),
        cmocka_unit_test(a_check_right_after_a_death_finds_nothing),
        cmocka_unit_test(a_sweep_beside_live_clients_takes_nothing_from_them),
        cmocka_unit_test(sweeps_take_nothing_from_a_sleeper),
        cmocka_unit_test(a_check_costs_no_more_for_each_key_when_there_are_more),
        cmocka_unit_test(the_tables_of_many_blocks_are_read_in_one_round_trip),
        cmocka_unit_test(of_two_sweepers_one_waits),
        cmocka_unit_test(who_is_said_to_sweep_and_does_not_denies_it),
        cmocka_unit_test(the_sweep_of_one_with_the_id_of_a_lost_session_is_not_denied),
        cmocka_unit_test(what_a_session_keeps_survives_sweeps_and_ends_with_it),
        cmocka_unit_test(what_a_session_keeps_for_no_index_is_not_given_back),
        cmocka_unit_test(a_drop_gives_back_what_all_sessions_held_of_it),
        cmocka_unit_test(random_deaths_beside_work_and_sweeps_lose_nothing),
    };
    return cmocka_run_group_tests_name("sweep", tests, NULL, NULL);
}
