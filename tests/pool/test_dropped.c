/* What is left of indexes that are dropped: their memory comes back, whoever holds it, and nobody uses it before. Where nobody
 * dies a check without repair finds nothing. */
#include "dropped_rig.h"


static bool share_a_block(const rig *r, const uint32_t uid[2]) {
    bool found = false;
    for (uint32_t i = 0; i < r->actors[0].pool->geometry.node[0].blocks; i++)
        found |= block_has(r, (far_block_id){0, i}, uid[0]) && block_has(r, (far_block_id){0, i}, uid[1]);
    return found;
}


static far_sim_match requests(void) {
    return (far_sim_match){.kind = FAR_SIM_CAS, .from = FAR_SUPER_REQUEST, .to = FAR_SUPER_REQUEST + 8};
}


/* ---- Whose the memory is ---- */

/* Slabs of handles that are awake, that sleep, and that are gone; and runs. */
static void a_drop_frees_what_anybody_has(void **state) {
    (void)state;
    static const char *const kinds[] = {"toy", "shard", "smart", "dart"};
    for (unsigned i = 0; i < 8; i++) {
        rig r;
        open_without_index(&r, 10 + i, 3, 0);
        uint32_t uid = make(&r.actors[1], "x", kinds[i / 2]);
        if (i % 2)
            reopen(&r, &r.actors[1]);
        assert_true(count_of(&r, &r.actors[0], uid) > 0);
        far_sim_sleep(r.world, i % 2 ? 0 : 50000000);
        assert_int_equal(far_index_drop(r.actors[2].session, "x"), 0);
        far_sim_sleep(r.world, 100000000);
        assert_int_equal(count_of(&r, &r.actors[0], uid), 0);
        end_well(&r);
    }
}


/* The page words of a block that nobody owns are damaged: of all other blocks the memory comes back. */
static void a_broken_block_does_not_keep_the_others(void **state) {
    (void)state;
    rig r;
    open_without_index(&r, 20, 2, 0);
    const far_geometry *g = &r.actors[0].pool->geometry;
    uint32_t uid = make_some(r.actors[1].session, "x", "dart", 200), first = 0, had = 0, left = 0;
    reopen(&r, &r.actors[1]);
    for (uint32_t i = (uint32_t)g->node[0].blocks; i-- > 0;)
        if (block_has(&r, (far_block_id){0, i}, uid)) {
            first = i;
            had++;
        }
    assert_true(had > 1);
    for (unsigned p = 0; p < FAR_BLOCK_PAGES; p++)
        *(uint64_t *)bytes_at(&r, far_block_page(g, (far_block_id){0, first}, p)) ^= 1;
    assert_int_equal(far_index_drop(r.actors[0].session, "x"), 0);
    far_sim_sleep(r.world, 100000000);
    for (uint32_t i = 0; i < g->node[0].blocks; i++)
        left += block_has(&r, (far_block_id){0, i}, uid);
    assert_in_range(left, 0, 1); /* that one */
    close_rig(&r);
}


/* It had the index open, and sleeps when it is dropped: all that it held of it is free again. */
static void a_sleeping_handle_frees_what_it_held(void **state) {
    (void)state;
    rig r;
    far_pool_usage before = {0}, full = {0}, after = {0};
    open_small_pool(&r, 210, 2, 2, 0, "4M");
    actor *sleeper = &r.actors[0], *dropper = &r.actors[1];
    far_sim_sleep(r.world, 50000000); /* others have told what they hold */
    assert_int_equal(far_pool_stat(dropper->session, &before), 0);
    for (unsigned i = 0; i < 300; i++) {
        char key[8];
        snprintf(key, sizeof(key), "a%u", i);
        put_now(sleeper, key, SMALL);
        if (i % 3 == 0)
            remove_now(sleeper, key);
    }
    far_index_close(sleeper->index);
    far_index_close(dropper->index);
    sleeper->index = dropper->index = NULL;
    far_sim_sleep(r.world, 50000000);
    assert_false(far_epoch_is_awake(sleeper->pool));
    assert_int_equal(far_pool_stat(dropper->session, &full), 0);
    assert_true(full.used > before.used + 200000);
    assert_int_equal(far_index_drop(dropper->session, "x"), 0);
    far_sim_sleep(r.world, 100000000);
    assert_int_equal(far_pool_stat(dropper->session, &after), 0);
    assert_true(after.used <= before.used && after.retired <= 4096);
    end_well(&r);
}


/* When it looked last there was no index, and when it looks again there is none. */
static void a_handle_that_sleeps_lets_go_of_what_came_and_went_between_its_looks(void **state) {
    (void)state;
    rig r;
    open_without_index(&r, 20, 3, 0);
    far_sim_sleep(r.world, 50000000);
    uint32_t uid = make(&r.actors[1], "x", "toy");
    while (far_epoch_is_awake(r.actors[1].pool)) /* until it has just fallen asleep */
        far_sim_sleep(r.world, 100000);
    assert_false(far_epoch_is_awake(r.actors[1].pool));
    assert_int_equal(far_index_drop(r.actors[2].session, "x"), 0);
    far_sim_sleep(r.world, 100000000);
    assert_int_equal(count_of(&r, &r.actors[0], uid), 0);
    end_well(&r);
}


/* Pages of the index in blocks of this handle. */
static unsigned pages_in_blocks_of(const rig *r, const actor *a, uint32_t uid) {
    const far_geometry *g = &a->pool->geometry;
    unsigned count = 0;
    for (unsigned n = 0; n < g->nodes; n++)
        for (uint32_t i = 0; i < g->node[n].blocks; i++) {
            far_block_id id = {n, i};
            far_block_state s = far_block_unpack(word_at(r, far_block_entry(g, id)));
            if (s.kind == FAR_BLOCK_OWNED && s.id == a->pool->team.own->id)
                count += block_has(r, id, uid);
        }
    return count;
}


/* A handle has free objects of another's slabs in its lists when their index is dropped, and does not stir: the slabs
 * stay until it has let go of them, or it would hand out what is used anew. */
static void drop_with_foreign_lists(void **state) {
    (void)state;
    rig r;
    open_rig(&r, 21, 3, BY_HAND(1));
    actor *owner = &r.actors[0], *other = &r.actors[1], *dropper = &r.actors[2];
    for (unsigned i = 0; i < 60; i++) {
        char key[8];
        snprintf(key, sizeof(key), "a%u", i % 20);
        put_now(owner, key, 300);
        put_now(other, key, 300); /* retires what the owner allocated */
    }
    hold_blocks(owner, true);
    for (unsigned i = 0; i < 16; i++) { /* it stays awake */
        far_get(other->session, other->index, "a0", 2, NULL, 0, NULL);
        far_epoch_request(other->pool);
        poll_all(&r, 100000);
    }
    assert_true(other->pool->store->foreign_bytes > 0 || other->session->memory->magazine_bytes > 0);
    uint32_t uid = owner->index->uid;
    for (unsigned i = 0; i < 3; i++) {
        far_index_close(r.actors[i].index);
        r.actors[i].index = NULL;
    }
    assert_true(far_epoch_is_awake(other->pool));
    assert_int_equal(far_index_drop(dropper->session, "x"), 0);
    far_sim_sleep(r.world, 50000000);
    assert_true(pages_in_blocks_of(&r, owner, uid) > 0); /* it is waited for */
    hold_blocks(owner, false);
    poll_until_asleep(other);
    far_sim_sleep(r.world, 50000000);
    poll_all(&r, 50000000);
    for (unsigned i = 0; i < 200; i++)
        poll_all(&r, 1000000);
    assert_int_equal(count_of(&r, owner, uid), 0);
    end_well(&r);
}


/* A handle has retired objects of an index, in another's block. The index is dropped, and its memory used anew: they
 * are nothing any more. */
static void what_was_retired_of_a_dropped_index_is_not_freed_when_its_place_is_used_anew(void **state) {
    (void)state;
    rig r;
    open_rig_with(&r, 22, 2, BY_HAND(1), "size=4M", 64);
    actor *owner = &r.actors[0], *slow = &r.actors[1];
    work_now(owner, 100);
    for (unsigned i = 0; i < 40; i++) {
        char key[8];
        snprintf(key, sizeof(key), "b%u", i);
        put_now(slow, key, 400);
        put_now(owner, key, 300);
        put_now(slow, key, 400);
    }
    assert_true(slow->session->memory->retired_bytes > 0);
    far_index_close(owner->index);
    far_index_close(slow->index);
    owner->index = slow->index = NULL;
    assert_int_equal(far_index_drop(owner->session, "x"), 0);
    for (unsigned i = 0; i < 300; i++)
        poll_all(&r, 300000);
    assert_int_equal(far_index_create(owner->session, "new", "toy", "slots=64", &owner->index), 0);
    memset(owner->versions, 0, sizeof(owner->versions));
    work_now(owner, 200);
    assert_int_equal(far_index_open(slow->session, "new", &slow->index), 0);
    for (unsigned i = 0; i < 40; i++) {
        char key[8];
        snprintf(key, sizeof(key), "b%u", i);
        put_now(slow, key, 400);
        far_epoch_request(slow->pool);
        poll_all(&r, 300000);
    }
    assert_keys(slow, owner);
    poll_until_asleep(slow);
    end_well(&r);
}


/* ---- Drops and closes ---- */

/* There may be many blocks or runs, and it takes time: what others retire becomes free meanwhile, and nobody takes the dropper
 * for one that is stopped. */
static void the_epoch_goes_on_while_a_large_index_is_collected(void **state) {
    (void)state;
    for (unsigned runs = 0; runs < 2; runs++) {
        rig r;
        open_without_index(&r, 25 + runs, 3, 0);
        uint32_t uid = make_of(r.actors[2].session, "x", "dart", runs ? 50 : 3000, runs ? FAR_VALUE_MAX : 0);
        reopen(&r, &r.actors[2]);
        make(&r.actors[1], "y", "toy"); /* awake */
        tour seen = begin_tour(&r, runs ? FAR_BLOCK_RUN : FAR_BLOCK_ORPHAN);
        assert_int_equal(far_index_drop(r.actors[0].session, "x"), 0);
        far_sim_on_verb(r.world, watch_tour, &seen);
        far_sim_sleep(r.world, 100000000);
        far_sim_on_verb(r.world, NULL, NULL);
        assert_int_equal(count_of(&r, &r.actors[0], uid), 0);
        assert_true(seen.taken > 40);
        assert_true(seen.last >= seen.first + 3);
        end_well(&r);
    }
}


/* Housekeeping has begun to collect what the first one left, and asks others, when the second one is dropped. */
static void an_index_that_is_dropped_while_another_is_collected_is_collected_too(void **state) {
    (void)state;
    rig r;
    open_without_index(&r, 30, 3, BY_HAND(1));
    actor *a = &r.actors[1];
    uint32_t uid[2] = {make(&r.actors[2], "x", "toy"), make(&r.actors[2], "y", "toy")};
    reopen(&r, &r.actors[2]);
    assert_int_equal(far_index_drop(a->session, "x"), 0);
    start(a, "own", poll_main);
    stop_at(a, requests());
    assert_int_equal(far_index_drop(a->session, "y"), 0);
    far_sim_resume(a->client);
    far_sim_run_for(r.world, 50000000);
    a->stop = true;
    run_all(&r);
    assert_int_equal(count_of(&r, a, uid[0]) + count_of(&r, a, uid[1]), 0);
    end_well(&r);
}


/* One takes a block of nobody for its own drop, and leaves it when it closes. The other dropper passes by just then. */
static void what_comes_with_a_block_that_is_taken_for_a_drop_is_not_left(void **state) {
    (void)state;
    for (unsigned pause = 0; pause < 40; pause++) {
        rig r;
        open_without_index(&r, 31 + pause, 3, 0);
        actor *keeper = &r.actors[0], *a = &r.actors[1], *b = &r.actors[2];
        uint32_t uid[2] = {make_some(keeper->session, "x", "toy", 3), make_some(keeper->session, "y", "toy", 3)};
        assert_true(share_a_block(&r, uid));
        reopen(&r, keeper);
        assert_int_equal(far_index_drop(a->session, "y"), 0);
        far_sim_sleep(r.world, pause * 20000);
        assert_int_equal(far_index_drop(b->session, "x"), 0);
        start(a, "closer", close_pool_main);
        far_sim_run_for(r.world, 50000000);
        assert_true(far_sim_ended(a->client));
        a->pool = NULL;
        wait_for_sweeps(&r);
        assert_int_equal(count_of(&r, b, uid[0]), 0);
        assert_int_equal(count_of(&r, b, uid[1]), 0);
        end_well(&r);
    }
}


/* The handle that holds slabs of the index ends, while another one drops it: at no moment are they left behind. */
static void a_holder_closes_beside_the_drop(void **state) {
    (void)state;
    for (unsigned pause = 0; pause < 60; pause++) {
        rig r;
        open_without_index(&r, 80 + pause, 3, 0);
        actor *holder = &r.actors[1], *dropper = &r.actors[2];
        uint32_t uid = make(holder, "x", "toy");
        make(holder, "y", "toy"); /* something that stays */
        start(holder, "closer", close_pool_main);
        far_sim_run_for(r.world, pause * 15000);
        assert_int_equal(far_index_drop(dropper->session, "x"), 0);
        run_all(&r);
        holder->pool = NULL;
        far_sim_sleep(r.world, 50000000);
        wait_for_sweeps(&r);
        if (count_of(&r, dropper, uid) > 0)
            fail_msg("dropped %u us after the close began: something is left", pause * 15);
        end_well(&r);
    }
}


static void drop_main(void *arg) {
    actor *a = arg;
    while ((a->result = far_index_drop(a->session, "x")) == FAR_ERR_BUSY)
        far_sim_sleep(a->world, 5000);
}


/* From the moment on when the catalog shows it as closed others may drop it, and use its memory anew: what the handle
 * still holds of it is nothing any more. It waits for its retired objects, and stands still for a while in the n-th
 * round of that. False: it needs fewer. */
static bool dropped_while_its_handle_waits(unsigned nth) {
    static const char value[3000];
    rig r;
    open_without_index(&r, 150 + nth, 3, 0);
    actor *a = &r.actors[1], *b = &r.actors[2];
    assert_int_equal(far_index_create(a->session, "x", "toy", NULL, &a->index), 0);
    uint32_t uid = a->index->uid;
    for (unsigned i = 0; i < 20; i++)
        assert_int_equal(far_put(a->session, a->index, &i, sizeof(i), value, i * 73), 0);
    for (unsigned i = 0; i < 20; i++)
        assert_int_equal(far_delete(a->session, a->index, &i, sizeof(i)), 0);
    start(a, "closer", close_pool_main);
    start(b, "dropper", drop_main);
    far_sim_stop_before(a->client, (far_sim_match){.point = "memory:wait", .nth = nth});
    far_sim_run_for(r.world, 3000000);
    bool there = !far_sim_ended(a->client);
    far_sim_resume(a->client);
    run_all(&r);
    a->pool = NULL;
    far_index_close(a->index);
    a->index = NULL;
    assert_int_equal(b->result, 0);
    far_sim_sleep(r.world, 50000000);
    wait_for_sweeps(&r);
    assert_int_equal(count_of(&r, b, uid), 0);
    end_well(&r);
    return there;
}


static void what_a_handle_had_retired_of_an_open_index_is_not_freed_after_its_drop(void **state) {
    (void)state;
    unsigned nth = 1;
    while (dropped_while_its_handle_waits(nth))
        nth++;
    assert_true(nth > 4);
}


static void close_index_main(void *arg) {
    actor *a = arg;
    far_index_close(a->index);
    a->index = NULL;
}


/* Hooks of the index may be running in it. */
static void an_index_is_not_freed_while_its_handle_is_being_closed(void **state) {
    (void)state;
    rig r;
    open_without_index(&r, 40, 3, 0);
    actor *a = &r.actors[1], other = {0};
    assert_int_equal(far_index_create(a->session, "x", "toy", NULL, &other.index), 0);
    other.pool = r.actors[0].pool;
    start(a, "closer", close_pool_main);
    stop_at_point(a, "memory:leave");
    start(&other, "other", close_index_main);
    far_sim_run_for(r.world, 1000000);
    assert_false(far_sim_ended(other.client));
    far_sim_resume(a->client);
    run_all(&r);
    a->pool = NULL;
    end_well(&r);
}


/* ---- What only looks as if it was gone ---- */

static void create_main(void *arg) {
    actor *a = arg;
    a->result = far_index_create(a->session, "x", "dart", NULL, &a->index);
}


/* It has its uid and slabs, and is not listed yet, when another one collects what is not listed. */
static void an_index_that_is_just_being_created_is_not_collected(void **state) {
    (void)state;
    rig r;
    open_without_index(&r, 41, 3, 0);
    actor *creator = &r.actors[1], *dropper = &r.actors[2];
    uint32_t uid = make(dropper, "y", "toy");
    start(creator, "creator", create_main);
    stop_at_point(creator, "catalog:publish");
    assert_int_equal(far_index_drop(dropper->session, "y"), 0);
    far_sim_sleep(r.world, 100000000);
    assert_true(count_of(&r, dropper, uid) > 0); /* the creator's pin is waited for */
    finish(creator);
    assert_int_equal(creator->result, 0);
    far_sim_sleep(r.world, 100000000);
    assert_int_equal(count_of(&r, dropper, uid), 0);
    assert_int_equal(far_index_check(creator->session, creator->index, fail_at_problem, NULL), 0);
    assert_true(count_of(&r, dropper, creator->index->uid) > 0);
    end_well(&r);
}


static int collect(far_task *t, void *arg) {
    (void)arg;
    return far_unlisted_collect(t, FAR_TIME_NEVER);
}


static void collect_main(void *arg) {
    actor *a = arg;
    a->result = far_session_call(a->other, FAR_STATS_OTHER, true, collect, NULL);
}


/* The verb has taken effect, and has not completed. */
static far_sim_hold *run_until_held(actor *a, far_sim_match match) {
    far_sim_hold *hold = far_sim_hold_completion(a->client, match);
    far_sim_resume(a->client);
    for (unsigned i = 0; i < 1000 && !far_sim_reached(hold); i++)
        far_sim_run_client(a->client);
    assert_true(far_sim_reached(hold));
    return hold;
}


/* The catalog was looked at before the index is listed; then its creator loses its session, and the handle does not know
 * it any more. Without a second look at the catalog, when that session is fenced, it is taken for gone, and freed. */
static void an_index_that_is_listed_after_the_look_is_not_collected(void **state) {
    (void)state;
    rig r;
    open_without_index(&r, 51, 3, BY_HAND(1));
    actor *creator = &r.actors[1], beside;
    far_index *index;
    const uint64_t list = FAR_SUPER_CATALOG;
    make(&r.actors[0], "y", "toy");
    assert_int_equal(far_session_open(creator->pool, &creator->other), 0);
    start(creator, "creator", create_main);
    stop_at(creator, (far_sim_match){.kind = FAR_SIM_CAS, .from = list, .to = list + 8});
    beside = *creator;
    start(&beside, "collector", collect_main);
    far_sim_hold *hold = run_until_held(&beside, (far_sim_match){.kind = FAR_SIM_READ, .from = list, .to = list + 8});
    far_sim_hold *listed = run_until_held(creator, (far_sim_match){.kind = FAR_SIM_CAS, .from = list, .to = list + 8});
    far_sim_lose(creator->session->conn);
    far_sim_release(listed);
    finish(creator);
    assert_int_equal(creator->result, FAR_ERR_UNREACHABLE);
    far_sim_release(hold);
    for (unsigned i = 0; i < 1000 && !far_sim_ended(beside.client); i++) {
        far_sim_run_for(r.world, 1000000);
        far_pool_poll(creator->pool);
    }
    assert_true(far_sim_ended(beside.client) && beside.result == 0);
    assert_int_equal(far_index_open(r.actors[0].session, "x", &index), 0);
    assert_int_equal(far_index_check(r.actors[0].session, index, fail_at_problem, NULL), 0);
    far_index_close(index);
    close_holders(&r);
}


int main(int argc, char **argv) {
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_drop_frees_what_anybody_has),
        cmocka_unit_test(a_broken_block_does_not_keep_the_others),
        cmocka_unit_test(a_sleeping_handle_frees_what_it_held),
        cmocka_unit_test(a_handle_that_sleeps_lets_go_of_what_came_and_went_between_its_looks),
        cmocka_unit_test(drop_with_foreign_lists),
        cmocka_unit_test(what_was_retired_of_a_dropped_index_is_not_freed_when_its_place_is_used_anew),
        cmocka_unit_test(the_epoch_goes_on_while_a_large_index_is_collected),
        cmocka_unit_test(an_index_that_is_dropped_while_another_is_collected_is_collected_too),
        cmocka_unit_test(what_comes_with_a_block_that_is_taken_for_a_drop_is_not_left),
        cmocka_unit_test(a_holder_closes_beside_the_drop),
        cmocka_unit_test(what_a_handle_had_retired_of_an_open_index_is_not_freed_after_its_drop),
        cmocka_unit_test(an_index_is_not_freed_while_its_handle_is_being_closed),
        cmocka_unit_test(an_index_that_is_just_being_created_is_not_collected),
        cmocka_unit_test(an_index_that_is_listed_after_the_look_is_not_collected),
    };
    return cmocka_run_group_tests_name("dropped", tests, NULL, NULL);
}
