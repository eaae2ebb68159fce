/* Tests of races between collections and client failures in the registry, and of a collection that fails. */
#include "pool_rig.h"
#include "test.h"


static void open_without_index(rig *r, unsigned seed, unsigned count, unsigned by_hand) {
    open_rig_with(r, seed, count, by_hand, "size=4M", 0);
}


static uint64_t *word_pointer(const rig *r, far_addr addr) {
    return bytes_at(r, addr);
}


static int confirm_handle_failed(far_task *t, void *arg) {
    return far_handle_confirm_failed(t, ((const actor *)arg)->number_waited);
}


static void confirm_handle_failed_main(void *arg) {
    actor *a = arg;
    a->result = call(a, confirm_handle_failed, a);
}


/* Client A has read all registry entries to find out whether the handle of B has failed, and found no live session of
 * it. Then a session of B opens, while B's system session is declared dead. A must not conclude that the handle has
 * failed, because the new session may hold pins. Fails if far_handle_confirm_failed (clients.c) looks for live sessions
 * before it has confirmed that the system session failed. */
TEST(a_session_opened_while_its_handle_is_declared_dead_keeps_it_alive) {
    rig r;
    open_without_index(&r, 1, 2, WITHOUT_HOUSEKEEPING(0) | WITHOUT_HOUSEKEEPING(1));
    actor *a = &r.actors[0], *b = &r.actors[1];
    far_session_close(b->session);
    far_sim_declare_dead(r.world, b->pool->team.own->id, b->pool->team.own->generation);
    unsigned id = a->number_waited = b->pool->team.own->id;
    start(a, "asker", confirm_handle_failed_main);
    stop_at(a, (far_sim_match){.from = far_client_entry(id), .to = far_client_entry(id) + 8, .nth = 2});
    int opened = far_session_open(b->pool, &b->session);
    finish(a);
    assert_int_equal(opened, 0);
    assert_int_equal(a->result, 0); /* the handle has not failed, and its pins count */
    close_rig(&r);
}


/* Collector A stops before it clears the registry entry of a failed client. Collector B must not free the entry in the
 * meantime, because A would then clear the words of a new client with the same id. Fails if two collectors can run at
 * the same time. */
TEST(a_slow_collector_does_not_clear_the_entry_of_a_new_client) {
    rig r;
    open_without_index(&r, 2, 3, WITHOUT_HOUSEKEEPING(0) | WITHOUT_HOUSEKEEPING(1) | WITHOUT_HOUSEKEEPING(2));
    actor *a = &r.actors[0], *b = &r.actors[1], *failed = &r.actors[2], *fresh = &r.actors[3];
    assert_int_equal(far_index_create(a->session, "x", "toy", "slots=16", &a->index), 0);
    poll_until_all_quiescent(&r);
    unsigned id = failed->pool->team.own->id;
    far_sim_kill(failed->pool->fabric);

    start_sweep(a);
    stop_at(a,
            (far_sim_match){.kind = FAR_SIM_WRITE, .from = far_client_entry(id) + 8, .to = far_client_entry(id + 1)});
    int second = sweep(b, FAR_COLLECT_REPAIR);
    join(&r, 3, true);
    r.count = 4;
    assert_int_equal(far_index_open(fresh->session, "x", &fresh->index), 0);
    for (unsigned i = 0; i < 100 && client_now(&r, fresh).status == 0; i++)
        far_pool_poll(fresh->pool); /* publishes the status record */
    far_addr status = *word_pointer(&r, far_status_word_of(fresh->pool->team.own->id));
    assert_true(status != 0);

    far_sim_resume(a->client);
    for (unsigned i = 0; i < 200 && !far_sim_ended(a->client); i++) {
        far_sim_run_for(r.world, 500000);
        far_pool_poll(b->pool);
        far_pool_poll(fresh->pool);
    }
    assert_true(far_sim_ended(a->client));
    assert_int_equal(*word_pointer(&r, far_status_word_of(fresh->pool->team.own->id)), status);
    assert_int_equal(a->result, 0);
    assert_int_equal(a->swept.dead_clients, 2);
    assert_int_equal(second, FAR_ERR_BUSY);
    poll_until_all_quiescent(&r);
    assert_int_equal(sweep(b, FAR_COLLECT_REPAIR), 0);
    assert_int_equal(b->swept.dead_clients, 0);
    close_rig(&r);
}


/* Frees the registry entry of generation 1 of the id. That id has been issued again, and its generation 2 has failed
 * too. */
static int free_first_generation(far_task *t, void *arg) {
    return far_client_free(t, *(unsigned *)arg, 1);
}


/* The collector has recorded generation 1 of a failed client. The id is issued again, and its generation 2 fails too.
 * The collector may free the entry only for generation 1, because the blocks of generation 2 are not collected yet.
 * Fails if far_client_free (clients.c) does not compare the generation. */
TEST(only_the_collected_generation_is_freed) {
    rig r;
    open_without_index(&r, 3, 2, WITHOUT_HOUSEKEEPING(0) | WITHOUT_HOUSEKEEPING(1));
    actor *a = &r.actors[0], *failed = &r.actors[1];
    unsigned id = failed->session->id;
    far_session_close(failed->session);
    assert_int_equal(far_session_open(failed->pool, &failed->session), 0);
    assert_int_equal(failed->session->id, id);
    assert_int_equal(failed->session->generation, 2);
    far_sim_kill(failed->pool->fabric);
    a->number_waited = failed->pool->team.own->id;
    assert_int_equal(call(a, confirm_handle_failed, a), 1);
    assert_int_equal(far_client_state_of(*word_pointer(&r, far_client_entry(id))), FAR_CLIENT_FENCED);
    assert_int_equal(call(a, free_first_generation, &id), 1);
    assert_int_equal(far_client_state_of(*word_pointer(&r, far_client_entry(id))), FAR_CLIENT_FENCED);
    close_rig(&r);
}


/* ---- A collection that fails ---- */

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


/* Reader C has read the address of a bucket, which owner A replaces during the walk. Then the walk fails because the
 * catalog is damaged. The bucket must not be reused before C's operation has ended, and the next collection succeeds.
 * Fails if a failing collection does not clear `walk` (clear_collector in collect.c). */
TEST(an_object_unlinked_during_a_failing_walk_is_not_reused_early) {
    rig r;
    open_rig_with(&r, 4, 3, 0, "size=4M", 64);
    actor *owner = &r.actors[0], *collector = &r.actors[1], *reader = &r.actors[2];
    assert_int_equal(put_filled(owner, 0, 1), 0);
    far_addr record = owner->index->record;
    start_sweep(collector);
    /* The collector has stopped in its walk, at its READ of the catalog. */
    stop_at(collector, (far_sim_match){.kind = FAR_SIM_READ, .from = record, .to = record + 8});
    uint64_t magic = *word_pointer(&r, record);

    start(reader, "reader", get_first);
    stop_at_point(reader, "toy:slot_read");
    assert_int_equal(put_filled(owner, 0, 2), 0);
    *word_pointer(&r, record) = 0; /* The walk will find the catalog damaged. */
    far_sim_resume(collector->client);
    far_sim_run_for(r.world, 20000000);
    *word_pointer(&r, record) = magic;
    for (unsigned k = 1; k < 200; k++)
        assert_int_equal(put_filled(owner, k, 3), 0);
    finish(reader);
    world_assert_no_checker_error(r.world);
    assert_int_equal(reader->result, 0);
    finish(collector);
    assert_int_equal(collector->result, FAR_ERR_CORRUPT);
    assert_false(request_now(&r).walk);
    assert_int_equal(request_now(&r).collector, 0);
    assert_nothing_lost(&r, collector);
    close_rig(&r);
}


/* ---- Many blocks of a failed client ---- */

enum { MANY = 1500 };


static int leak_many(far_task *t, void *arg) {
    far_object object;
    (void)arg;
    int err = far_pin_take(t);
    for (unsigned i = 0; i < MANY && err == 0; i++)
        err = far_alloc(t, NULL, 5, 4000, FAR_NODE_ANY, 0, &object);
    if (err == 0) /* The last object is a whole block. */
        err = far_alloc(t, NULL, 5, far_object_bytes_max(far_task_pool(t)), FAR_NODE_ANY, 0, &object);
    far_pin_drop(t);
    return err;
}


/* A collection that only counts frees nothing that a failed client left. Counting again gives the same number of bytes,
 * and a repair frees exactly that number. */
TEST(a_count_finds_the_bytes_that_a_repair_frees) {
    rig r;
    open_rig_with(&r, 8, 2, WITHOUT_HOUSEKEEPING(0) | WITHOUT_HOUSEKEEPING(1), "size=16M", 0);
    actor *a = &r.actors[0], *failed = &r.actors[1];
    assert_int_equal(call(failed, leak_many, NULL), 0);
    far_sim_kill(failed->pool->fabric);
    uint64_t lost = leaked(a);
    assert_true(lost >= MANY * 4000ull + a->pool->geometry.block_bytes);
    assert_int_equal(leaked(a), lost);
    assert_int_equal(sweep(a, FAR_COLLECT_REPAIR), 0);
    assert_int_equal(a->swept.repaired_bytes, lost);
    assert_int_equal(leaked(a), 0);
    close_rig(&r);
}
