/* What is left of indexes that are dropped, beside sweeps, deaths, and in a full pool: their memory comes back, and nobody
 * uses it before. Where nobody dies a check without repair finds nothing. */
#include "dropped_rig.h"


/* ---- Drops and sweeps ---- */

/* The sweep walks, and stands still: slabs of handles and of nobody, and runs, go back meanwhile. */
static void drop_in_walk(void **state) {
    (void)state;
    static const char *const kinds[] = {"toy", "shard"};
    for (unsigned i = 0; i < 4; i++) {
        rig r;
        open_without_index(&r, 50 + i, 3, 0);
        actor *sweeper = &r.actors[1], *dropper = &r.actors[2];
        uint32_t uid = make(dropper, "x", kinds[i % 2]);
        if (i / 2)
            reopen(&r, dropper);
        start_sweep(sweeper);
        stop_at_point(sweeper, "sweep:walk");
        far_request before = request_now(&r);
        assert_true(before.walk);
        assert_int_equal(far_index_drop(dropper->session, "x"), 0);
        far_sim_sleep(r.world, 50000000);
        assert_int_equal(count_of(&r, dropper, uid), 0);
        far_request after = request_now(&r);
        assert_true(after.number != before.number);
        assert_true(after.walk && after.sweep == before.sweep && after.sweeper == before.sweeper);
        finish(sweeper);
        assert_int_equal(sweeper->result, 0);
        assert_int_equal(sweeper->swept.leaked_bytes, 0);
        end_well(&r);
    }
}


/* The walk has read the catalog, and is about to walk the index, when that is dropped. */
static void dropped_before_the_walker_comes(void **state) {
    (void)state;
    rig r;
    open_without_index(&r, 54, 3, 0);
    actor *sweeper = &r.actors[1], *dropper = &r.actors[2];
    uint32_t uid = make(dropper, "x", "toy");
    uint32_t stays = make(dropper, "y", "toy");
    start_sweep(sweeper);
    stop_at_point(sweeper, "sweep:walk");
    far_addr catalog = far_catalog_word_addr(word_at(&r, FAR_SUPER_CATALOG));
    stop_at(sweeper, (far_sim_match){.kind = FAR_SIM_READ, .from = catalog, .to = catalog + 64});
    assert_int_equal(far_index_drop(dropper->session, "x"), 0);
    far_sim_sleep(r.world, 1000000);
    finish(sweeper);
    assert_int_equal(sweeper->result, 0);
    far_sim_sleep(r.world, 100000000);
    assert_int_equal(count_of(&r, dropper, uid), 0);
    assert_true(count_of(&r, dropper, stays) > 0);
    end_well(&r);
}


/* Who has slabs of it has not heard of the drop, and is closed while a sweep walks. */
static void the_holder_is_closed_during_a_sweep(void **state) {
    (void)state;
    rig r;
    open_without_index(&r, 56, 3, BY_HAND(1));
    actor *holder = &r.actors[1], *sweeper = &r.actors[2];
    uint32_t uid = make(holder, "x", "toy");
    poll_until_asleep(holder);
    assert_int_equal(far_index_drop(sweeper->session, "x"), 0);
    far_sim_sleep(r.world, 50000000);
    start_sweep(sweeper);
    stop_at_point(sweeper, "sweep:walk");
    start(holder, "closer", close_pool_main);
    far_sim_run_for(r.world, 100000000);
    assert_true(far_sim_ended(holder->client)); /* it does not wait for the sweep */
    holder->pool = NULL;
    finish(sweeper);
    assert_int_equal(sweeper->result, 0);
    wait_for_sweeps(&r);
    assert_int_equal(count_of(&r, sweeper, uid), 0);
    end_well(&r);
}


/* Runs, linked nowhere. */
static int lose_runs(far_task *t, void *arg) {
    actor *a = arg;
    far_object object;
    int err = far_pin_take(t);
    for (unsigned i = 0; i < 50 && err == 0; i++)
        err = far_alloc(t, a->index, 0, 100000, 0, FAR_ALLOC_ON_NODE, &object);
    far_pin_drop(t);
    return err;
}


/* A sweep that finds many has a pin for each of them: to wipe them takes time. */
static void the_epoch_goes_on_while_a_sweep_frees_runs(void **state) {
    (void)state;
    rig r;
    open_rig_with(&r, 58, 3, 0, "size=16M", 16);
    actor *sweeper = &r.actors[0];
    assert_int_equal(call(&r.actors[2], lose_runs, &r.actors[2]), 0);
    work_now(&r.actors[1], 10); /* awake */
    tour seen = begin_tour(&r, FAR_BLOCK_RUN);
    far_sim_on_verb(r.world, watch_tour, &seen);
    assert_int_equal(sweep(sweeper, FAR_SWEEP_REPAIR), 0);
    far_sim_on_verb(r.world, NULL, NULL);
    assert_int_equal(seen.taken, 50);
    assert_int_equal(blocks_of_kind(&r, sweeper, FAR_BLOCK_RUN), 0);
    assert_true(seen.last >= seen.first + 3);
    end_well(&r);
}


/* A check comes before whoever dropped the index has freed what is nobody's: slabs, or runs. */
static void what_is_about_to_be_collected_is_no_leak(void **state) {
    (void)state;
    for (unsigned runs = 0; runs < 2; runs++) {
        rig r;
        open_without_index(&r, 80 + runs, 3, 0);
        actor *owner = &r.actors[1], *dropper = &r.actors[2];
        uint32_t uid = make_of(owner->session, "x", "dart", 40, runs ? FAR_VALUE_MAX : 0);
        reopen(&r, owner);
        atomic_store(&dropper->pool->collecting, true); /* it seems to be at it */
        assert_int_equal(far_index_drop(dropper->session, "x"), 0);
        assert_int_equal(leaked(&r.actors[0]), 0);
        assert_true(count_of(&r, dropper, uid) > 0);
        atomic_store(&dropper->pool->collecting, false);
        far_sim_sleep(r.world, 100000000);
        assert_int_equal(count_of(&r, dropper, uid), 0);
        end_well(&r);
    }
}


/* The sweep needs answers of all who are awake: the one who waits for its turn is, and has no thread. */
static void who_waits_for_a_sweep_without_a_thread_is_not_in_its_way(void **state) {
    (void)state;
    rig r;
    open_without_index(&r, 57, 3, BY_HAND(1));
    actor *a = &r.actors[1], *b = &r.actors[2];
    make(b, "y", "toy");
    start(b, "sweeper", check_main);
    stop_at_point(b, "sweep:walk");
    make(a, "x", "toy");
    assert_true(far_epoch_is_awake(a->pool));
    start(a, "next", check_main);
    far_sim_run_for(r.world, 1000000);
    far_sim_resume(b->client);
    far_sim_limit(r.world, 1000000000);
    run_all(&r);
    assert_int_equal(a->result, 0);
    assert_int_equal(b->result, 0);
    close_rig(&r);
}


/* ---- The dead ---- */

/* The sweeper is about to take the block from its dead owner. */
static void dropped_while_blocks_of_the_dead_are_taken(void **state) {
    (void)state;
    rig r;
    open_without_index(&r, 60, 3, 0);
    actor *sweeper = &r.actors[0], *dead = &r.actors[1], *dropper = &r.actors[2];
    uint32_t uid = make(dead, "x", "smart");
    far_block_id id = {0, 0};
    while (!block_has(&r, id, uid))
        id.index++;
    far_addr entry = far_block_entry(&sweeper->pool->geometry, id);
    far_sim_kill(dead->pool->fabric);
    start_sweep(sweeper);
    stop_at(sweeper, (far_sim_match){.kind = FAR_SIM_CAS, .from = entry, .to = entry + 8});
    assert_int_equal(far_index_drop(dropper->session, "x"), 0);
    far_sim_sleep(r.world, 50000000);
    finish(sweeper);
    assert_int_equal(sweeper->result, 0);
    far_sim_sleep(r.world, 100000000);
    wait_for_sweeps(&r);
    assert_int_equal(count_of(&r, dropper, uid), 0);
    end_well(&r);
}


/* Who owns slabs of it, or who has dropped it, dies before it has freed them. */
static void drop_then_owner_dies(void **state) {
    (void)state;
    for (unsigned i = 0; i < 40; i++) {
        rig r;
        open_without_index(&r, 61 + i, 3, 0);
        actor *owner = &r.actors[1], *dropper = &r.actors[2];
        uint32_t uid = make(owner, "x", i % 2 ? "toy" : "shard");
        assert_int_equal(far_index_drop(dropper->session, "x"), 0);
        far_sim_sleep(r.world, i * 20000);
        far_sim_kill((i / 2 % 2 ? dropper : owner)->pool->fabric);
        far_sim_sleep(r.world, 500000000);
        wait_for_sweeps(&r);
        if (count_of(&r, &r.actors[0], uid) > 0)
            fail_msg("case %u: something of the dropped index is left", i);
        end_well(&r);
    }
}


/* ---- A full pool ---- */

static int count_name(void *ctx, const char *name, const char *kind) {
    (void)name, (void)kind;
    ++*(unsigned *)ctx;
    return 0;
}


/* Takes all memory that would do for a catalog. */
static int take_the_rest(far_task *t, void *arg) {
    far_object object;
    (void)arg;
    int err = far_pin_take(t);
    while (err == 0)
        err = far_alloc(t, NULL, FAR_POOL_TYPE_CATALOG, 128, FAR_NODE_ANY, 0, &object);
    far_pin_drop(t);
    return err;
}


static void cut_off_a_drop(void *arg) {
    actor *a = arg;
    a->result = far_index_drop(a->session, "y");
}


/* To take it off the list needs no memory. Also when another drop died over it: then that was the drop. */
static void an_index_is_dropped_in_a_full_pool(void **state) {
    (void)state;
    for (unsigned dies = 0; dies < 2; dies++) {
        rig r;
        far_index *y, *z;
        unsigned names = 0;
        open_small_pool(&r, 40 + dies, 2, 2, 0, "1500K");
        actor *a = &r.actors[0], *b = &r.actors[1];
        assert_int_equal(far_index_create(b->session, "z", "toy", "slots=64", &z), 0);
        assert_int_equal(far_index_create(b->session, "y", "toy", "slots=64", &y), 0);
        uint32_t uid = y->uid;
        far_index_close(y);
        far_index_close(z);
        put_now(b, "first", 1);
        static const size_t sizes[] = {LARGE, HALF, SMALL, 900, 400, 150, 50, 1};
        for (unsigned i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
            fill(a, (char[]){(char)('a' + i), 0}, sizes[i]);
        assert_int_equal(call(b, take_the_rest, NULL), FAR_ERR_NO_MEMORY);
        assert_int_equal(call(a, take_the_rest, NULL), FAR_ERR_NO_MEMORY);
        if (dies) {
            start(b, "dropper", cut_off_a_drop);
            stop_at_point(b, "catalog:gone");
            far_sim_kill(b->pool->fabric);
            far_sim_resume(b->client);
            far_sim_run_client(b->client);
        }
        assert_int_equal(far_index_drop(a->session, "y"), dies ? FAR_ERR_NOT_FOUND : 0);
        assert_int_equal(far_index_list(a->session, count_name, &names), 2);
        far_sim_sleep(r.world, 50000000);
        wait_for_sweeps(&r);
        assert_int_equal(count_of(&r, a, uid), 0);
        assert_int_equal(far_index_drop(a->session, "z"), 0);
        assert_int_equal(far_index_list(a->session, count_name, &names), 1);
        assert_nothing_lost(&r, a);
        close_rig(&r);
    }
}


int main(int argc, char **argv) {
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drop_in_walk),
        cmocka_unit_test(dropped_before_the_walker_comes),
        cmocka_unit_test(the_holder_is_closed_during_a_sweep),
        cmocka_unit_test(the_epoch_goes_on_while_a_sweep_frees_runs),
        cmocka_unit_test(what_is_about_to_be_collected_is_no_leak),
        cmocka_unit_test(who_waits_for_a_sweep_without_a_thread_is_not_in_its_way),
        cmocka_unit_test(dropped_while_blocks_of_the_dead_are_taken),
        cmocka_unit_test(drop_then_owner_dies),
        cmocka_unit_test(an_index_is_dropped_in_a_full_pool),
    };
    return cmocka_run_group_tests_name("dropped_sweeps", tests, NULL, NULL);
}
