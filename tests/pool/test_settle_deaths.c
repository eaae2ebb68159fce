/* Settling after deaths, and after sessions that are lost while their handles live: what they had in hand, took, cut or
 * wiped is found, by this sweep or by the next, and nothing that others have is freed. */
#include "settle_rig.h"


/* It dies when the sweep has already asked who lives: what it leaves the next one finds, which nobody has to ask for.
 */
static void dead_during_walk_is_swept_again(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 40, 3, 0);
    actor *dead = &r.actors[0], *sweeper = &r.actors[1], *other = &r.actors[2];
    put_many(dead, "a");
    start_sweep(sweeper);
    stop_at_point(sweeper, "sweep:walk");
    assert_int_equal(call(dead, leak, dead), 0);
    put_many(dead, "b");
    far_sim_kill(dead->pool->fabric);
    finish_sweep(&r, sweeper);
    assert_many(other, "a");
    assert_nothing_lost_by_itself(&r, other);
    assert_many(other, "a");
    assert_many(other, "b");
    assert_int_equal(far_client_state_of(word_at(&r, far_client_entry(dead->pool->team.own->id))), FAR_CLIENT_FREE);
    close_holders(&r);
}


/* It brings objects of others home and dies: the bits that did not land never will, and the owner finds the objects. */
static void late_faa_of_the_fenced(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 41, 3, BY_HAND(1));
    actor *owner = &r.actors[0], *dead = &r.actors[1], *sweeper = &r.actors[2];
    put_many(owner, "a");
    far_addr object = bucket_of(&r, owner, "a0");
    put_many(dead, "a");
    start(dead, "poller", poll_main);
    far_addr word = bit_word(owner, object);
    far_sim_hold *hold =
        far_sim_hold_effect(dead->client, (far_sim_match){.kind = FAR_SIM_FAA, .from = word, .to = word + 8});
    start_sweep(sweeper);
    for (unsigned i = 0; i < 500 && !far_sim_reached(hold); i++)
        far_sim_run_for(r.world, 100000);
    assert_true(far_sim_reached(hold));
    assert_false(far_sim_ended(sweeper->client)); /* it waits for the answer */
    far_sim_kill(dead->pool->fabric);
    dead->stop = true;
    finish_sweep(&r, sweeper);
    far_sim_release(hold);
    far_sim_sleep(r.world, 1000000);
    use_all_free_memory(&r, owner);
    assert_many(sweeper, "a");
    assert_nothing_lost_by_itself(&r, sweeper);
    close_holders(&r);
}


static void put_one(void *arg) {
    actor *a = arg;
    a->result = far_put(a->other, a->index, "lost", 4, "12345678", 8);
}


/* One session of a handle is lost with an object that it had not linked yet: its handle goes on, keeps its blocks, and
 * a sweep finds the object. */
static void lost_session_of_a_live_handle(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 42, 2, 0);
    actor *a = &r.actors[0], *other = &r.actors[1];
    assert_int_equal(far_session_open(a->pool, &a->other), 0);
    put_many(a, "a");
    start(a, "lost", put_one);
    stop_at_point(a, "toy:publish");
    far_addr object = bucket_of(&r, a, "a1");
    assert_int_equal(far_sim_declare_dead(r.world, a->other->id, a->other->generation), 1);
    far_sim_resume(a->client);
    assert_int_equal(far_sim_run_client(a->client), FAR_SIM_ENDED);
    assert_true(a->result < 0);
    for (unsigned i = 0; i < 20; i++) {
        put_now(a, "b", 300);
        far_sim_sleep(r.world, 1000000);
    }
    assert_true(word_at(&r, FAR_SUPER_WANTED) > 0);
    assert_int_equal(block_state(&r, a, object).id, a->pool->team.own->id);
    assert_nothing_lost_by_itself(&r, other);
    put_many(a, "c");
    assert_many(other, "a");
    assert_many(other, "c");
    close_holders(&r);
}


static int take_and_write(far_task *t, void *arg) {
    actor *a = arg;
    far_object object = {0};
    int err = far_pin_take(t);
    far_point(t, "test:pinned");
    if (err == 0)
        err = far_alloc(t, a->index, TOY_TYPE_BUCKET, 512, FAR_NODE_ANY, 0, &object);
    a->object = object.addr;
    if (err == 0)
        err = far_write_word(t, a->object, 1);
    far_pin_drop(t);
    return err;
}


static void take_in_other(void *arg) {
    actor *a = arg;
    a->result = far_session_call(a->other, FAR_STATS_OTHER, true, take_and_write, a);
}


static int find_dead(far_task *t, void *arg) {
    const actor *a = arg;
    return far_is_dead(t, a->other->id, a->other->generation);
}


/* A session is fenced, which others find out, and one of them sweeps for it. The session has not noticed yet: an
 * operation of it takes an object that its handle has at hand, and for this sweep that one is in use. */
static void what_a_fenced_session_takes_in_a_sweep_is_found_by_the_next(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 45, 2, 0);
    actor *a = &r.actors[0], *sweeper = &r.actors[1];
    assert_int_equal(far_session_open(a->pool, &a->other), 0);
    put_many(a, "a");
    assert_int_equal(far_session_call(a->other, FAR_STATS_OTHER, true, use_some, a), 0);
    start(a, "fenced", take_in_other);
    stop_at_point(a, "test:pinned");
    assert_int_equal(far_sim_declare_dead(r.world, a->other->id, a->other->generation), 1);
    assert_int_equal(call(sweeper, find_dead, a), 1);
    uint64_t wanted = word_at(&r, FAR_SUPER_WANTED);
    sweeper->mode = FAR_SWEEP_SLOWLY;
    start_sweep(sweeper);
    far_sim_run_for(r.world, 5000000);
    assert_int_equal(a->pool->store->sweep, request_now(&r).sweep);
    assert_int_equal(word_at(&r, FAR_SUPER_WANTED), wanted);
    far_sim_resume(a->client);
    far_sim_run_for(r.world, 100000);
    assert_true(a->object != 0 && a->result < 0);
    finish_sweep(&r, sweeper);
    assert_int_equal(word_at(&r, FAR_SUPER_SWEPT), wanted);
    assert_nothing_lost_by_itself(&r, sweeper);
    assert_many(sweeper, "a");
    close_holders(&r);
}


/* Nobody does anything, and one of those who sleep dies. */
static void idle_handles_notice(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 43, 4, 0);
    actor *dead = &r.actors[0];
    put_many(dead, "a");
    assert_int_equal(call(dead, leak, dead), 0);
    far_sim_sleep(r.world, 20000000);
    for (unsigned i = 0; i < r.count; i++)
        assert_false(far_epoch_is_awake(r.actors[i].pool));
    unsigned id = dead->pool->team.own->id;
    far_sim_kill(dead->pool->fabric);
    far_sim_sleep(r.world, 500000000);
    assert_int_equal(far_client_state_of(word_at(&r, far_client_entry(id))), FAR_CLIENT_FREE);
    assert_false(sweep_is_wanted(&r));
    assert_int_equal(leaked(&r.actors[1]), 0);
    assert_many(&r.actors[1], "a");
    far_sim_sleep(r.world, 50000000);
    for (unsigned i = 1; i < r.count; i++)
        assert_false(far_epoch_is_awake(r.actors[i].pool)); /* and they sleep again */
    close_holders(&r);
}


static int free_a_run(far_task *t, void *arg) {
    actor *a = arg;
    far_object object = {0};
    int err = far_pin_take(t);
    if (err == 0)
        err = far_alloc(t, a->index, TOY_TYPE_BUCKET, 200000, 0, FAR_ALLOC_ON_NODE, &object);
    a->object = object.addr;
    if (err == 0)
        far_free(t, a->index, TOY_TYPE_BUCKET, object.addr, 200000);
    far_pin_drop(t);
    return err;
}


static int take_a_run(far_task *t, void *arg) {
    actor *a = arg;
    far_object object = {0};
    int err = far_pin_take(t);
    if (err == 0)
        err = far_alloc(t, a->index, TOY_TYPE_BUCKET, 200000, 0, FAR_ALLOC_ON_NODE, &object);
    a->object = object.addr;
    far_pin_drop(t);
    return err;
}


static int do_nothing(far_task *t, void *arg) {
    uint64_t epoch;
    (void)arg;
    return far_epoch_read(t, &epoch);
}


/* One died while it wiped a run, and the sweeper goes on with that. Meanwhile the sweeper's handle loses another
 * session, and looks for blocks that this one left: the run is not one of them. */
static void a_run_is_wiped_by_one_alone(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 46, 3, BY_HAND(0));
    actor *dead = &r.actors[0], *sweeper = &r.actors[1], *heir = &r.actors[2];
    const uint64_t block = dead->pool->geometry.block_bytes;
    assert_int_equal(far_session_open(sweeper->pool, &sweeper->other), 0);
    put_now(heir, "first", 1);
    assert_int_equal(call(dead, free_a_run, dead), 0);
    far_addr run = dead->object;
    start(dead, "wiper", poll_main);
    far_sim_kill_at(dead->client, (far_sim_match){.kind = FAR_SIM_WRITE, .from = run, .to = run + 4 * block}, 0);
    for (unsigned i = 0; i < 100 && !far_sim_killed(dead->pool->fabric); i++)
        far_sim_run_for(r.world, 1000000);
    assert_true(far_sim_killed(dead->pool->fabric));
    dead->stop = true;
    assert_int_equal(block_state(&r, heir, run).kind, FAR_BLOCK_WIPING);
    start_sweep(sweeper);
    stop_at(sweeper, (far_sim_match){.kind = FAR_SIM_WRITE, .from = run + 3 * block, .to = run + 4 * block});
    assert_int_equal(block_state(&r, heir, run).id, sweeper->pool->team.own->id);
    assert_int_equal(far_sim_declare_dead(r.world, sweeper->other->id, sweeper->other->generation), 1);
    assert_true(far_session_call(sweeper->other, FAR_STATS_OTHER, true, do_nothing, NULL) < 0);
    for (unsigned i = 0; i < 50; i++) { /* it is awake */
        far_epoch_request(sweeper->pool);
        far_sim_sleep(r.world, 1000000);
    }
    assert_false(atomic_load(&sweeper->pool->store->recount));
    assert_int_equal(call(heir, take_a_run, heir), 0);
    memset(bytes_at(&r, heir->object), 0x77, 200000);
    stop_at(sweeper, (far_sim_match){.kind = FAR_SIM_CAS, .from = FAR_SUPER_REQUEST, .to = FAR_SUPER_REQUEST + 8});
    for (unsigned i = 0; i < 200000; i++)
        assert_int_equal(((uint8_t *)bytes_at(&r, heir->object))[i], 0x77);
    assert_int_equal(block_state(&r, heir, run).kind, FAR_BLOCK_FREE);
    finish_sweep(&r, sweeper); /* what the heir took it did not link */
    assert_nothing_lost_by_itself(&r, heir);
    close_holders(&r);
}


static int free_object(far_task *t, void *arg) {
    actor *a = arg;
    far_free(t, NULL, 5, a->object, a->size);
    return 0;
}


static void take_main(void *arg) {
    actor *a = arg;
    a->result = call(a, take_a_run, a);
}


/* One makes a run of four blocks, and has the first. Of the others somebody else takes the last but one: the one before it, and
 * the one behind it, which were got, are free again, and are not taken for parts of a run. */
static void a_run_that_was_not_got_leaves_all_its_blocks(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 47, 2, 0);
    actor *maker = &r.actors[0], *other = &r.actors[1];
    const far_geometry *g = &maker->pool->geometry;
    assert_int_equal(call(maker, free_a_run, maker), 0); /* all were used before */
    far_addr run = maker->object, last = run + 3 * g->block_bytes;
    for (unsigned i = 0; i < 100 && block_state(&r, other, run).kind != FAR_BLOCK_FREE; i++)
        far_sim_sleep(r.world, 1000000);
    start(maker, "maker", take_main);
    far_addr first_body = far_block_entry(g, block_of(maker, run + g->block_bytes));
    stop_at(maker, (far_sim_match){.kind = FAR_SIM_CAS, .from = first_body, .to = first_body + 8});
    other->size = g->block_bytes;
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(call(other, alloc_object, other), 0);
        assert_int_equal(other->object, last - i * g->block_bytes);
    }
    other->object = last;
    assert_int_equal(call(other, free_object, other), 0);
    for (unsigned i = 0; i < 100 && block_state(&r, other, last).kind != FAR_BLOCK_FREE; i++)
        far_sim_run_for(r.world, 1000000);
    assert_int_equal(block_state(&r, other, last).kind, FAR_BLOCK_FREE);
    finish(maker);
    assert_int_equal(maker->result, 0);
    assert_int_equal(maker->object, run - 2 * g->block_bytes);
    assert_int_equal(block_state(&r, other, last).kind, FAR_BLOCK_FREE);
    assert_tables_sound(other);
    close_rig(&r);
}


static void sweep_in_other(void *arg) {
    actor *a = arg;
    a->result = far_session_call(a->other, FAR_STATS_OTHER, true, run_sweep, a);
}


/* A session wipes a run that it swept, and is lost; before that task of it has noticed, its handle looks for what it
 * left. */
static void a_run_that_a_lost_session_wiped_is_finished(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 47, 2, BY_HAND(0));
    actor *a = &r.actors[0], *other = &r.actors[1];
    const uint64_t block = a->pool->geometry.block_bytes;
    assert_int_equal(far_session_open(a->pool, &a->other), 0);
    put_many(a, "a");
    assert_int_equal(call(a, take_a_run, a), 0);
    start(a, "wiper", sweep_in_other);
    stop_at(a, (far_sim_match){.kind = FAR_SIM_WRITE, .from = a->object, .to = a->object + 4 * block});
    assert_int_equal(block_state(&r, other, a->object).kind, FAR_BLOCK_WIPING);
    assert_int_equal(far_sim_declare_dead(r.world, a->other->id, a->other->generation), 1);
    far_session_lose(a->other, FAR_ERR_FENCED); /* another task of it has noticed */
    for (unsigned i = 0; i < 20; i++) {
        put_now(a, "b", 300);
        poll_all(&r, 1000000);
    }
    assert_false(far_pins_are_stuck(a->pool));
    assert_false(atomic_load(&a->pool->store->recount));
    assert_int_equal(block_state(&r, other, a->object).kind, FAR_BLOCK_WIPING);
    far_sim_resume(a->client);
    assert_int_equal(far_sim_run_client(a->client), FAR_SIM_ENDED);
    assert_true(a->result < 0);
    assert_int_equal(far_pool_poll(a->pool), 0);
    assert_int_equal(block_state(&r, other, a->object).kind, FAR_BLOCK_FREE);
    assert_many(other, "a");
    close_holders(&r);
}


/* Marks of a large pool take too much memory: it is swept in parts. What is lost meanwhile is not covered by it. */
static void a_sweep_in_parts_covers_what_was_lost_before(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 48, 2, 0);
    actor *owner = &r.actors[0], *sweeper = &r.actors[1];
    far_store *s = sweeper->pool->store;
    s->marks_max = 8 * far_bitmap_bytes(&sweeper->pool->geometry);
    for (unsigned i = 0; i < 6; i++) { /* over several parts, also a run at the other end */
        put_many(owner, (char[]){'a', (char)('0' + i), 0});
        assert_int_equal(call(owner, lose_one, owner), 0);
    }
    assert_int_equal(call(owner, leak, owner), 0);
    assert_int_equal(sweep(sweeper, FAR_SWEEP_COUNT), 0);
    uint64_t lost = sweeper->swept.leaked_bytes;
    assert_true(lost > 6 * 512 + 100000);
    assert_int_equal(sweep(sweeper, FAR_SWEEP_COUNT), 0);
    assert_int_equal(sweeper->swept.leaked_bytes, lost);
    memcpy(bytes_at(&r, FAR_SUPER_WANTED), &(uint64_t){word_at(&r, FAR_SUPER_WANTED) + 1}, 8);
    sweeper->mode = FAR_SWEEP_REPAIR;
    start_sweep(sweeper);
    stop_at_point(sweeper, "sweep:walk");
    uint32_t first = request_now(&r).sweep;
    stop_at_point(sweeper, "sweep:walk");
    assert_int_equal(request_now(&r).sweep, far_number_next(first));
    assert_true(sweep_is_wanted(&r));
    memcpy(bytes_at(&r, FAR_SUPER_WANTED), &(uint64_t){word_at(&r, FAR_SUPER_WANTED) + 1}, 8);
    finish_sweep(&r, sweeper);
    assert_int_equal(sweeper->swept.repaired_bytes, lost);
    assert_int_equal(word_at(&r, FAR_SUPER_SWEPT) + 1, word_at(&r, FAR_SUPER_WANTED));
    assert_int_equal(leaked(sweeper), 0);
    for (unsigned i = 0; i < 6; i++)
        assert_many(sweeper, (char[]){'a', (char)('0' + i), 0});
    close_holders(&r);
}


static void count_walks(void *ctx, const far_sim_posted *posted) {
    struct {
        far_addr slots;
        unsigned reads;
    } *seen = ctx;
    seen->reads += posted->verb->kind == FAR_READ && posted->verb->addr == seen->slots;
}


/* Every index is walked once. */
static void walks_per_sweep_are_one(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 44, 2, 0);
    actor *owner = &r.actors[0], *sweeper = &r.actors[1];
    put_many(owner, "a");
    assert_int_equal(call(owner, leak, owner), 0);
    struct {
        far_addr slots;
        unsigned reads;
    } seen = {toy_slot_addr(toy_state_of(owner->index), 0), 0};
    far_sim_on_verb(r.world, count_walks, &seen);
    assert_int_equal(sweep(sweeper, FAR_SWEEP_REPAIR), 0);
    far_sim_on_verb(r.world, NULL, NULL);
    assert_int_equal(seen.reads, 1);
    assert_true(sweeper->swept.repaired_bytes >= 3000);
    close_holders(&r);
}


/* The sweeper takes the blocks of a dead handle, one after the other: there may be many, and memory becomes free meanwhile. */
static void the_epoch_goes_on_while_orphans_are_adopted(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 9, 2, 0);
    actor *dead = &r.actors[0], *sweeper = &r.actors[1];
    const far_geometry *g = &sweeper->pool->geometry;
    put_now(sweeper, "first", 1);
    dead->size = 20000;
    for (unsigned i = 0; i < 12; i++)
        assert_int_equal(call(dead, alloc_object, dead), 0);
    far_sim_kill(dead->pool->fabric);
    sweeper->mode = FAR_SWEEP_REPAIR;
    start_sweep(sweeper);
    stop_at_point(sweeper, "sweep:walked");
    uint64_t epoch = 0;
    for (unsigned i = 0; i < 4; i++) {
        stop_at(sweeper, (far_sim_match){.kind = FAR_SIM_CAS,
                                         .from = far_addr_make(0, g->node[0].entries),
                                         .to = far_addr_make(0, g->node[0].pages)});
        epoch = i == 0 ? word_at(&r, FAR_SUPER_EPOCH) : epoch;
        far_epoch_request(sweeper->pool); /* it moves beside one, and the handle follows beside the next */
        far_sim_run_for(r.world, 10 * far_tick(sweeper->pool->fabric));
    }
    assert_true(word_at(&r, FAR_SUPER_EPOCH) >= epoch + 2);
    finish_sweep(&r, sweeper);
    assert_true(sweeper->swept.leaked_bytes >= 12 * 20000);
    close_rig(&r);
}


static void alloc_main(void *arg) {
    actor *a = arg;
    a->result = call(a, alloc_object, a);
}


/* A session is lost while it cuts a slab: the word of its page is there, but its handle does not know of the slab. The
 * sweep that the loss asks for finds nobody to settle it; whoever gives up the block asks for another. */
static void a_slab_that_a_lost_session_cut_is_found_when_its_block_is_given_up(void **state) {
    (void)state;
    rig r;
    open_rig(&r, 1, 2, 0);
    actor *owner = &r.actors[0], *heir = &r.actors[1];
    const far_geometry *g = &owner->pool->geometry;
    put_many(owner, "a");
    hold_blocks(owner, true);
    join_handle(&r, 2, owner);
    actor *lost = &r.actors[2];
    lost->size = 1472;
    start(lost, "cutter", alloc_main);
    far_sim_hold *hold = far_sim_hold_completion(
        lost->client, (far_sim_match){.kind = FAR_SIM_WRITE,
                                      .from = far_block_page(g, (far_block_id){0, 0}, 0),
                                      .to = far_block_page(g, (far_block_id){0, (uint32_t)g->node[0].blocks}, 0)});
    assert_int_equal(far_sim_run_client(lost->client), FAR_SIM_HELD);
    assert_true(far_sim_reached(hold));
    far_sim_lose(lost->session->conn);
    assert_int_equal(far_sim_run_client(lost->client), FAR_SIM_ENDED);
    assert_int_equal(lost->result, FAR_ERR_UNREACHABLE);
    far_sim_release(hold);
    wait_for_sweeps(&r);

    hold_blocks(owner, false);
    far_session_close(lost->session);
    leave(owner);
    r.count = 2;
    wait_for_sweeps(&r);
    assert_int_equal(leaked(heir), 0);
    leave(heir);
}


int main(int argc, char **argv) {
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dead_during_walk_is_swept_again),
        cmocka_unit_test(late_faa_of_the_fenced),
        cmocka_unit_test(lost_session_of_a_live_handle),
        cmocka_unit_test(what_a_fenced_session_takes_in_a_sweep_is_found_by_the_next),
        cmocka_unit_test(idle_handles_notice),
        cmocka_unit_test(a_run_is_wiped_by_one_alone),
        cmocka_unit_test(a_run_that_was_not_got_leaves_all_its_blocks),
        cmocka_unit_test(a_run_that_a_lost_session_wiped_is_finished),
        cmocka_unit_test(a_sweep_in_parts_covers_what_was_lost_before),
        cmocka_unit_test(walks_per_sweep_are_one),
        cmocka_unit_test(the_epoch_goes_on_while_orphans_are_adopted),
        cmocka_unit_test(a_slab_that_a_lost_session_cut_is_found_when_its_block_is_given_up),
    };
    return cmocka_run_group_tests_name("settle_deaths", tests, NULL, NULL);
}
