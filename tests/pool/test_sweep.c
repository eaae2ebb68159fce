/* The leak sweep in the simulator: beside live clients, after deaths, with sleepers, kept objects and dropped indexes.
 */
#include "sweep_rig.h"


static void what_is_linked_nowhere_is_counted_then_freed(void **state) {
    (void)state;
    stage s;
    set_up(&s, 1, "none");
    actor *a = &s.actors[0], *b = &s.actors[1];
    a->steps = 30;
    work(a);
    uint64_t used = used_bytes(b);
    assert_int_equal(far_session_call(a->session, FAR_STATS_OTHER, true, leak, a), 0);
    assert_int_equal(sweep(b, true, false), 0);
    uint64_t leaked = b->swept.leaked_bytes;
    assert_true(leaked >= 10 * 325 + 100 + 100000);
    assert_int_equal(b->swept.repaired_bytes, 0);
    far_pool_usage usage = {0};
    assert_int_equal(far_pool_stat(b->session, &usage), 0);
    assert_int_equal(usage.leaked, leaked);
    assert_int_equal(sweep(b, true, true), 0);
    assert_int_equal(b->swept.leaked_bytes, leaked);
    assert_int_equal(b->swept.repaired_bytes, leaked);
    assert_nothing_lost(&s, b);
    assert_true(used_bytes(b) <= used + 1024);
    assert_keys(b, a);
    a->steps = 60;
    work(a); /* its blocks are its own again */
    assert_int_equal(a->result, 0);
    assert_keys(b, a);
    tear_down(&s);
}


static void the_blocks_of_the_dead_come_back(void **state) {
    (void)state;
    stage s;
    set_up(&s, 2, "none");
    actor *a = &s.actors[0], *b = &s.actors[1];
    a->steps = 200;
    work(a);
    assert_int_equal(far_session_call(a->session, FAR_STATS_OTHER, true, leak, a), 0);
    far_sim_kill(a->pool->fabric);
    assert_int_equal(sweep(b, false, true), 0);
    assert_int_equal(b->swept.dead_clients, 2);
    assert_true(b->swept.repaired_bytes >= 3000);
    assert_keys(b, a);
    assert_nothing_lost(&s, b);
    assert_int_equal(sweep(b, false, true), 0);
    assert_int_equal(b->swept.dead_clients, 0);
    b->steps = 300; /* fills what was left */
    work(b);
    assert_int_equal(b->result, 0);
    assert_keys(b, a);
    assert_keys(a = &s.actors[2], b);
    tear_down(&s);
}


static void sweep_again_and_again(void *arg) {
    actor *a = arg;
    a->result = 0;
    for (unsigned i = 0; i < 3 && a->result == 0; i++) {
        a->result = sweep(a, true, true);
        if (a->result < 0)
            print_message("%s\n", far_last_error());
        if (a->result == 0 && a->swept.leaked_bytes != 0)
            a->result = 1000;
    }
}


static void a_sweep_beside_live_clients_takes_nothing_from_them(void **state) {
    (void)state;
    for (unsigned seed = 1; seed <= seeds(25); seed++) {
        stage s;
        set_up(&s, seed, "all");
        for (unsigned i = 0; i < 2; i++) {
            s.actors[i].steps = 250;
            start(&s.actors[i], i ? "b" : "a", work);
        }
        start(&s.actors[2], "sweeper", sweep_again_and_again);
        run_all(&s);
        for (unsigned i = 0; i < NODES; i++)
            if (s.actors[i].result != 0)
                fail_msg("seed %u: actor %u got %d", seed, i, s.actors[i].result);
        for (unsigned i = 0; i < 2; i++)
            assert_keys(&s.actors[2], &s.actors[i]);
        assert_nothing_lost(&s, &s.actors[2]);
        tear_down(&s);
    }
}


/* A handle without a thread sleeps as long as nobody calls it. */
static void a_sleeper_forgets_what_was_swept_meanwhile(void **state) {
    (void)state;
    for (unsigned sweeps = 1; sweeps <= 3; sweeps++) {
        stage s;
        set_up_with(&s, 3 + sweeps, "none", 1);
        actor *a = &s.actors[0], *b = &s.actors[1];
        a->steps = 200;
        work(a);
        for (unsigned i = 0; i < 200; i++) { /* falls asleep, holding free and retired memory */
            far_pool_poll(a->pool);
            far_sim_sleep(s.world, 1000000);
        }
        assert_false(far_epoch_is_awake(a->pool));
        for (unsigned i = 0; i < sweeps; i++)
            assert_int_equal(sweep(b, true, i != 1), 0); /* the second only counts */
        b->steps = 300;                                  /* takes what the sleeper thinks it holds */
        work(b);
        assert_int_equal(b->result, 0);
        a->steps = 200;
        work(a);
        assert_int_equal(a->result, 0);
        assert_keys(b, a);
        assert_keys(&s.actors[2], b);
        assert_nothing_lost(&s, a);
        tear_down(&s);
    }
}


static void a_sleeper_keeps_what_was_only_counted(void **state) {
    (void)state;
    stage s;
    set_up_with(&s, 9, "none", 1);
    actor *a = &s.actors[0], *b = &s.actors[1];
    a->steps = 200;
    work(a);
    for (unsigned i = 0; i < 200; i++) {
        far_pool_poll(a->pool);
        far_sim_sleep(s.world, 1000000);
    }
    far_memory *m = a->session->memory;
    uint64_t held = m->free_bytes;
    assert_true(held > 0);
    assert_int_equal(sweep(b, true, false), 0);
    assert_true(b->swept.leaked_bytes > 0); /* it cannot be asked */
    a->steps = 1;
    work(a);
    assert_true(m->free_bytes + 4096 >= held);
    assert_nothing_lost(&s, a);
    tear_down(&s);
}


static void of_two_sweepers_one_waits(void **state) {
    (void)state;
    unsigned busy = 0;
    for (unsigned seed = 1; seed <= seeds(20); seed++) {
        stage s;
        set_up(&s, seed, "all");
        s.actors[2].steps = 100;
        start(&s.actors[2], "worker", work);
        for (unsigned i = 0; i < 2; i++) {
            s.actors[i].all = s.actors[i].repair = true;
            start(&s.actors[i], i ? "b" : "a", sweep_and_tell);
        }
        run_all(&s);
        for (unsigned i = 0; i < 2; i++) {
            assert_true(s.actors[i].result == 0 || s.actors[i].result == FAR_ERR_BUSY);
            busy += s.actors[i].result == FAR_ERR_BUSY;
        }
        assert_true(s.actors[0].result == 0 || s.actors[1].result == 0);
        assert_int_equal(s.actors[2].result, 0);
        assert_keys(&s.actors[0], &s.actors[2]);
        assert_nothing_lost(&s, &s.actors[0]);
        tear_down(&s);
    }
    assert_true(busy > 0);
}


/* A worker dies somewhere, beside another worker and sweeps of both kinds; then another dies, perhaps the sweeper. */
static void random_deaths_beside_work_and_sweeps_lose_nothing(void **state) {
    (void)state;
    for (unsigned seed = 1; seed <= seeds(60); seed++) {
        stage s;
        set_up(&s, seed, "all");
        far_random r;
        far_random_seed(&r, seed);
        actor *a = &s.actors[0], *b = &s.actors[1], *c = &s.actors[2];
        a->steps = b->steps = 120;
        c->all = c->repair = true;
        work(b); /* something to sweep */
        start(a, "a", work);
        start(b, "b", work);
        start(c, "c", sweep_and_tell);
        actor *dying = far_random_chance(&r, 1, 3) ? c : a;
        far_sim_kill_at(dying->client,
                        (far_sim_match){.nth = 1 + (unsigned)far_random_below(&r, dying == c ? 600 : 900)}, 1);
        run_all(&s);
        actor *alive = far_sim_killed(c->pool->fabric) ? a : c;
        assert_int_equal(b->result, 0);
        assert_keys(b, b);
        work(b);
        assert_int_equal(b->result, 0);
        assert_nothing_lost(&s, alive);
        work(b);
        assert_int_equal(b->result, 0);
        assert_keys(alive, b);
        assert_nothing_lost(&s, b);
        tear_down(&s);
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
    stage s;
    set_up(&s, 4, "none");
    actor *a = &s.actors[0], *b = &s.actors[1];
    uint64_t used = used_bytes(b);
    assert_int_equal(far_session_call(a->session, FAR_STATS_OTHER, true, keep_some, a), 0);
    assert_int_equal(sweep(b, true, true), 0);
    assert_int_equal(b->swept.leaked_bytes, 0);
    assert_true(used_bytes(b) >= used + 100 * 500);
    far_memory *m = a->session->memory;
    for (size_t i = 0, k = 0; i < m->kept_count; i++)
        if (m->kept[i].addr != 0 && !m->kept[i].reserve) {
            uint64_t word;
            memcpy(&word,
                   (char *)far_sim_memory(s.world, far_addr_node(m->kept[i].addr)) + far_addr_offset(m->kept[i].addr),
                   8);
            assert_int_equal(word, 0x4b454550 + k++);
        }
    far_index_close(a->index);
    a->index = NULL;
    far_session_close(a->session);
    a->session = NULL;
    assert_nothing_lost(&s, b);
    assert_true(used_bytes(b) <= used + 4096);
    tear_down(&s);
}


static void a_drop_gives_back_what_all_sessions_held_of_it(void **state) {
    (void)state;
    stage s;
    set_up(&s, 5, "none");
    for (unsigned i = 0; i < NODES; i++) { /* each has its reserve for x */
        s.actors[i].steps = 5;
        work(&s.actors[i]);
        memset(s.actors[i].versions, 0, KEYS);
    }
    uint64_t used = used_bytes(&s.actors[0]);
    far_index *x[NODES];
    for (unsigned i = 0; i < NODES; i++) {
        actor *a = &s.actors[i];
        x[i] = a->index;
        if (i == 0)
            assert_int_equal(far_index_create(a->session, "y", "toy", "slots=16", &a->index), 0);
        else
            assert_int_equal(far_index_open(a->session, "y", &a->index), 0);
        a->steps = 150;
        work(a);
        assert_int_equal(a->result, 0);
    }
    for (unsigned i = 0; i < NODES; i++) {
        far_index_close(s.actors[i].index);
        s.actors[i].index = x[i];
        memset(s.actors[i].versions, 0, KEYS);
    }
    assert_true(used_bytes(&s.actors[0]) > used + 10000);
    assert_int_equal(far_index_drop(s.actors[1].session, "y"), 0);
    for (unsigned i = 0; i < NODES; i++) { /* all awake */
        s.actors[i].steps = 5;
        work(&s.actors[i]);
    }
    far_sim_sleep(s.world, 20000000);
    assert_true(used_bytes(&s.actors[0]) <= used + 3 * 16384);
    assert_nothing_lost(&s, &s.actors[2]);
    tear_down(&s);
}


int main(int argc, char **argv) {
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_linked_nowhere_is_counted_then_freed),
        cmocka_unit_test(the_blocks_of_the_dead_come_back),
        cmocka_unit_test(a_sweep_beside_live_clients_takes_nothing_from_them),
        cmocka_unit_test(a_sleeper_forgets_what_was_swept_meanwhile),
        cmocka_unit_test(a_sleeper_keeps_what_was_only_counted),
        cmocka_unit_test(of_two_sweepers_one_waits),
        cmocka_unit_test(what_a_session_keeps_survives_sweeps_and_ends_with_it),
        cmocka_unit_test(a_drop_gives_back_what_all_sessions_held_of_it),
        cmocka_unit_test(random_deaths_beside_work_and_sweeps_lose_nothing),
    };
    return cmocka_run_group_tests_name("sweep", tests, NULL, NULL);
}
