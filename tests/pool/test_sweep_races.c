/* Sweeps and deaths that get into each other's way, in the registry and beside readers. */
#include "pool_rig.h"


static void open_two(rig *r, unsigned seed, unsigned count, unsigned by_hand) {
    open_rig_with(r, seed, count, by_hand, "size=4M", 0);
}


static uint64_t *word_of(const rig *r, far_addr addr) {
    return bytes_at(r, addr);
}


static int ask_handle(far_task *t, void *arg) {
    return far_client_handle_gone(t, ((const actor *)arg)->number_waited);
}


static void ask_main(void *arg) {
    actor *a = arg;
    a->result = call(a, ask_handle, a);
}


/* The asker has read all entries, of which none is a session of that handle that lives; then one opens, and finds its
 * handle alive; then the handle's own session is found dead. */
static void a_session_that_opens_while_its_handle_is_declared_dead_counts(void **state) {
    (void)state;
    rig r;
    open_two(&r, 1, 2, BY_HAND(0) | BY_HAND(1));
    actor *a = &r.actors[0], *b = &r.actors[1];
    far_session_close(b->session);
    far_sim_declare_dead(r.world, b->pool->team.own->id, b->pool->team.own->generation);
    unsigned id = a->number_waited = b->pool->team.own->id;
    start(a, "asker", ask_main);
    stop_at(a, (far_sim_match){.from = far_client_entry(id), .to = far_client_entry(id) + 8, .nth = 2});
    int opened = far_session_open(b->pool, &b->session);
    finish(a);
    assert_int_equal(opened, 0);
    assert_int_equal(a->result, 0); /* not gone: its pins count */
    close_rig(&r);
}


/* A sweeper stands before it clears the registry entry of a dead client; another one must not have freed it meanwhile,
 * or it would clear the words of whoever has that id by then. */
static void a_slow_sweeper_does_not_clear_the_entry_of_a_new_client(void **state) {
    (void)state;
    rig r;
    open_two(&r, 2, 3, BY_HAND(0) | BY_HAND(1) | BY_HAND(2));
    actor *a = &r.actors[0], *b = &r.actors[1], *dead = &r.actors[2], *fresh = &r.actors[3];
    assert_int_equal(far_index_create(a->session, "x", "toy", "slots=16", &a->index), 0);
    poll_until_all_asleep(&r);
    unsigned id = dead->pool->team.own->id;
    far_sim_kill(dead->pool->fabric);

    start_sweep(a);
    stop_at(a,
            (far_sim_match){.kind = FAR_SIM_WRITE, .from = far_client_entry(id) + 8, .to = far_client_entry(id + 1)});
    int second = sweep(b, FAR_SWEEP_REPAIR);
    join(&r, 3, true);
    r.count = 4;
    assert_int_equal(far_index_open(fresh->session, "x", &fresh->index), 0);
    far_addr table = *word_of(&r, far_open_table_word_of(fresh->pool->team.own->id));
    assert_true(table != 0);

    far_sim_resume(a->client);
    for (unsigned i = 0; i < 200 && !far_sim_ended(a->client); i++) {
        far_sim_run_for(r.world, 500000);
        far_pool_poll(b->pool);
        far_pool_poll(fresh->pool);
    }
    assert_true(far_sim_ended(a->client));
    assert_int_equal(*word_of(&r, far_open_table_word_of(fresh->pool->team.own->id)), table);
    assert_int_equal(a->result, 0);
    assert_int_equal(a->swept.dead_clients, 2);
    assert_int_equal(second, FAR_ERR_BUSY);
    poll_until_all_asleep(&r);
    assert_int_equal(sweep(b, FAR_SWEEP_REPAIR), 0);
    assert_int_equal(b->swept.dead_clients, 0);
    close_rig(&r);
}


/* Another one of that id lived and died after the sweeper looked for the dead: it has not been swept. */
static int free_old(far_task *t, void *arg) {
    return far_client_free(t, *(unsigned *)arg, 1);
}


static void only_the_generation_that_was_swept_is_freed(void **state) {
    (void)state;
    rig r;
    open_two(&r, 3, 2, BY_HAND(0) | BY_HAND(1));
    actor *a = &r.actors[0], *dead = &r.actors[1];
    unsigned id = dead->session->id;
    far_session_close(dead->session);
    assert_int_equal(far_session_open(dead->pool, &dead->session), 0);
    assert_int_equal(dead->session->id, id);
    assert_int_equal(dead->session->generation, 2);
    far_sim_kill(dead->pool->fabric);
    a->number_waited = dead->pool->team.own->id;
    assert_int_equal(call(a, ask_handle, a), 1);
    assert_int_equal(far_client_state_of(*word_of(&r, far_client_entry(id))), FAR_CLIENT_DEAD);
    assert_int_equal(call(a, free_old, &id), 1);
    assert_int_equal(far_client_state_of(*word_of(&r, far_client_entry(id))), FAR_CLIENT_DEAD);
    close_rig(&r);
}


/* ---- A sweep that fails ---- */

static int put_filled(actor *a, unsigned k, uint8_t fill) {
    uint8_t key[8] = {(uint8_t)k, (uint8_t)(k >> 8), 1}, value[400];
    memset(value, fill, sizeof(value));
    return far_put(a->session, a->index, key, sizeof(key), value, sizeof(value));
}


static void get_first(void *arg) {
    actor *a = arg;
    uint8_t key[8] = {0, 0, 1}, value[400];
    a->result = far_get(a->session, a->index, key, sizeof(key), value, sizeof(value), NULL);
    for (size_t i = 0; a->result == 0 && i < sizeof(value); i++)
        if (value[i] != 1)
            a->result = 1000;
}


/* A reader has the address of a bucket, which is replaced during the walk. Then the walk fails. Nobody hands the bucket
 * out before the reader is done, and the next sweep, which nobody asks for, comes to its end. */
static void what_is_unlinked_in_a_walk_that_fails_is_not_reused_early(void **state) {
    (void)state;
    rig r;
    open_rig_with(&r, 4, 3, 0, "size=4M", 64);
    actor *owner = &r.actors[0], *sweeper = &r.actors[1], *reader = &r.actors[2];
    assert_int_equal(put_filled(owner, 0, 1), 0);
    far_addr record = owner->index->record;
    start_sweep(sweeper);
    stop_at(sweeper, (far_sim_match){.kind = FAR_SIM_READ, .from = record, .to = record + 8}); /* in the walk */
    uint64_t magic = *word_of(&r, record);

    start(reader, "reader", get_first);
    stop_at_point(reader, "toy:slot_read");
    assert_int_equal(put_filled(owner, 0, 2), 0);
    *word_of(&r, record) = 0; /* the walk finds the catalog broken */
    far_sim_resume(sweeper->client);
    far_sim_run_for(r.world, 20000000);
    *word_of(&r, record) = magic;
    for (unsigned k = 1; k < 200; k++)
        assert_int_equal(put_filled(owner, k, 3), 0);
    finish(reader);
    world_assert_watch_is_content(r.world);
    assert_int_equal(reader->result, 0);
    finish(sweeper);
    assert_int_equal(sweeper->result, FAR_ERR_CORRUPT);
    assert_false(request_now(&r).walk);
    assert_int_equal(request_now(&r).sweeper, 0);
    assert_nothing_lost(&r, sweeper);
    close_rig(&r);
}


/* ---- Many blocks of the dead ---- */

enum { MANY = 1500 };


static int leak_many(far_task *t, void *arg) {
    far_object object;
    (void)arg;
    int err = far_pin_take(t);
    for (unsigned i = 0; i < MANY && err == 0; i++)
        err = far_alloc(t, NULL, 5, 4000, FAR_NODE_ANY, 0, &object);
    if (err == 0) /* a run of blocks */
        err = far_alloc(t, NULL, 5, 2 * far_task_pool(t)->geometry.block_bytes, FAR_NODE_ANY, 0, &object);
    far_pin_drop(t);
    return err;
}


/* What the dead left is only counted, and stays as it is; what is counted is what a repair then frees. */
static void a_sweep_that_only_counts_finds_what_a_repair_frees(void **state) {
    (void)state;
    rig r;
    open_rig_with(&r, 8, 2, BY_HAND(0) | BY_HAND(1), "size=16M", 0);
    actor *a = &r.actors[0], *dead = &r.actors[1];
    assert_int_equal(call(dead, leak_many, NULL), 0);
    far_sim_kill(dead->pool->fabric);
    uint64_t lost = leaked(a);
    assert_true(lost >= MANY * 4000ull + 2 * a->pool->geometry.block_bytes);
    assert_int_equal(leaked(a), lost);
    assert_int_equal(sweep(a, FAR_SWEEP_REPAIR), 0);
    assert_int_equal(a->swept.repaired_bytes, lost);
    assert_int_equal(leaked(a), 0);
    close_rig(&r);
}


int main(int argc, char **argv) {
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_session_that_opens_while_its_handle_is_declared_dead_counts),
        cmocka_unit_test(a_slow_sweeper_does_not_clear_the_entry_of_a_new_client),
        cmocka_unit_test(only_the_generation_that_was_swept_is_freed),
        cmocka_unit_test(what_is_unlinked_in_a_walk_that_fails_is_not_reused_early),
        cmocka_unit_test(a_sweep_that_only_counts_finds_what_a_repair_frees),
    };
    return cmocka_run_group_tests_name("sweep_races", tests, NULL, NULL);
}
