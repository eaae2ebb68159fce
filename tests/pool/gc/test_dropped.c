/* Tests of the memory of dropped indexes: it becomes free, whatever handle owns it, and is not reused too early. If no
 * client fails, a check without repair finds no leak. Proves dropped.c. */
#include "dropped_rig.h"
#include "test.h"


static bool share_a_block(const rig *r, const uint32_t uid[2]) {
    bool found = false;
    for (uint32_t i = 0; i < r->actors[0].pool->geometry.node[0].blocks; i++)
        found |= block_has_index(r, (far_block_id){0, i}, uid[0]) && block_has_index(r, (far_block_id){0, i}, uid[1]);
    return found;
}


static far_sim_match cas_of_request(void) {
    return (far_sim_match){.kind = FAR_SIM_CAS, .from = FAR_SUPER_REQUEST, .to = FAR_SUPER_REQUEST + 8};
}


/* ---- Where the memory is ---- */

/* Handle B creates an index and is active, quiescent or closed when handle C drops it. The index has slabs, or large
 * objects. Afterwards no page of the index is left. */
TEST(a_drop_frees_the_memory_in_all_handles) {
    static const char *const kinds[] = {"toy", "shard", "smart", "dart"};
    for (unsigned i = 0; i < 8; i++) {
        rig r;
        open_without_index(&r, 10 + i, 3, 0);
        uint32_t uid = create_index(&r.actors[1], "x", kinds[i / 2]);
        if (i % 2)
            reopen(&r, &r.actors[1]);
        assert_true(count_of(&r, &r.actors[0], uid) > 0);
        far_sim_sleep(r.world, i % 2 ? 0 : 50000000);
        assert_int_equal(far_index_drop(r.actors[2].session, "x"), 0);
        far_sim_sleep(r.world, 100000000);
        assert_int_equal(count_of(&r, &r.actors[0], uid), 0);
        assert_no_leak_and_close(&r);
    }
}


/* The page words of an orphan with slabs of the index are damaged. The memory in all other blocks becomes free
 * nevertheless. Fails if adopt_block_with_dropped (dropped.c) ends at the first damaged block. */
TEST(a_damaged_block_does_not_stop_the_freeing_of_others) {
    rig r;
    open_without_index(&r, 20, 2, 0);
    const far_geometry *g = &r.actors[0].pool->geometry;
    uint32_t uid = create_with_keys(r.actors[1].session, "x", "dart", 200), first = 0, had = 0, left = 0;
    reopen(&r, &r.actors[1]);
    for (uint32_t i = (uint32_t)g->node[0].blocks; i-- > 0;)
        if (block_has_index(&r, (far_block_id){0, i}, uid)) {
            first = i;
            had++;
        }
    assert_true(had > 1);
    for (unsigned p = 0; p < FAR_BLOCK_PAGES; p++)
        *(uint64_t *)bytes_at(&r, far_block_page(g, (far_block_id){0, first}, p)) ^= 1;
    assert_int_equal(far_index_drop(r.actors[0].session, "x"), 0);
    far_sim_sleep(r.world, 100000000);
    for (uint32_t i = 0; i < g->node[0].blocks; i++)
        left += block_has_index(&r, (far_block_id){0, i}, uid);
    assert_in_range(left, 0, 1); /* only pages in the damaged block may be left */
    close_rig(&r);
}


/* Handle A had the index open, with objects in use, free and retired, and is quiescent when handle B drops the index.
 * All this memory becomes free. */
TEST(a_quiescent_handle_frees_the_memory_of_a_dropped_index) {
    rig r;
    far_pool_usage before = {0}, full = {0}, after = {0};
    open_small_pool(&r, 210, 2, 2, 0, "4M");
    actor *sleeper = &r.actors[0], *dropper = &r.actors[1];
    far_sim_sleep(r.world, 50000000); /* In these 50 ms all handles publish how much memory they have. */
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
    assert_false(far_epoch_is_active(sleeper->pool));
    assert_int_equal(far_pool_stat(dropper->session, &full), 0);
    assert_true(full.used > before.used + 200000);
    assert_int_equal(far_index_drop(dropper->session, "x"), 0);
    far_sim_sleep(r.world, 100000000);
    assert_int_equal(far_pool_stat(dropper->session, &after), 0);
    assert_true(after.used <= before.used && after.retired <= 4096);
    assert_no_leak_and_close(&r);
}


/* Counts the pages of the index in blocks of this handle. */
static unsigned pages_in_blocks_of(const rig *r, const actor *a, uint32_t uid) {
    const far_geometry *g = &a->pool->geometry;
    unsigned count = 0;
    for (unsigned n = 0; n < g->nodes; n++)
        for (uint32_t i = 0; i < g->node[n].blocks; i++) {
            far_block_id id = {n, i};
            far_block_state s = far_block_unpack(word_at(r, far_block_entry(g, id)));
            if (s.kind == FAR_BLOCK_OWNED && s.id == a->pool->team.own->id)
                count += block_has_index(r, id, uid);
        }
    return count;
}


/* Handle B creates an index and becomes quiescent at once, so its slabs are in orphans. Handle C drops the index. No
 * page of it is left. */
TEST(a_quiescent_handle_frees_an_index_it_never_saw_listed) {
    rig r;
    open_without_index(&r, 20, 3, 0);
    far_sim_sleep(r.world, 50000000);
    uint32_t uid = create_index(&r.actors[1], "x", "toy");
    while (far_epoch_is_active(r.actors[1].pool)) /* wait until the handle has just become quiescent */
        far_sim_sleep(r.world, 100000);
    assert_false(far_epoch_is_active(r.actors[1].pool));
    assert_int_equal(pages_in_blocks_of(&r, &r.actors[1], uid), 0);
    assert_int_equal(far_index_drop(r.actors[2].session, "x"), 0);
    far_sim_sleep(r.world, 100000000);
    assert_int_equal(count_of(&r, &r.actors[0], uid), 0);
    assert_no_leak_and_close(&r);
}


/* Handle B creates an index and reads the superblock next when handle C has dropped it. The slabs are in blocks of B,
 * which must notice although the catalog is as empty as when B read it last. Fails if catalog_version (dropped.c) does
 * not include the number of uids. */
TEST(an_owner_frees_an_index_that_it_never_saw_listed) {
    rig r;
    open_without_index(&r, 23, 3, WITHOUT_HOUSEKEEPING(1));
    actor *owner = &r.actors[1], *dropper = &r.actors[2];
    far_store *store = owner->pool->store;
    uint32_t uid = create_index(owner, "x", "toy");
    for (unsigned i = 0; i < 20; i++)
        poll_all(&r, 300000);
    assert_true(store->lists.block_count > 0);
    /* With these values the handle seems to have read the superblock and the catalog for the last time before it
     * created the index. */
    atomic_store(&store->handshake.superblock.catalog, 0);
    store->dropped.catalog_seen = 0;
    assert_int_equal(far_index_drop(dropper->session, "x"), 0);
    assert_true(count_of(&r, dropper, uid) > 0);
    for (unsigned i = 0; i < 300; i++)
        poll_all(&r, 300000);
    assert_int_equal(count_of(&r, dropper, uid), 0);
    assert_no_leak_and_close(&r);
}


/* Handle A owns slabs of the index. Handle B has free objects of these slabs in its lists and does not tick. Handle C
 * drops the index. The slabs of A stay until B has acknowledged the request, because otherwise B would hand out objects
 * although their memory is used again. Fails without far_request_wait in far_dropped_free (dropped.c). */
TEST(a_drop_waits_for_remote_objects_in_lists) {
    rig r;
    open_rig(&r, 21, 3, WITHOUT_HOUSEKEEPING(1));
    actor *owner = &r.actors[0], *other = &r.actors[1], *dropper = &r.actors[2];
    for (unsigned i = 0; i < 60; i++) {
        char key[8];
        snprintf(key, sizeof(key), "a%u", i % 20);
        put_now(owner, key, 300);
        put_now(other, key, 300); /* The put retires the object that the owner allocated. */
    }
    hold_blocks(owner, true);
    for (unsigned i = 0; i < 16; i++) { /* These puts keep the handle active. */
        far_get(other->session, other->index, "a0", 2, NULL, 0, NULL);
        far_epoch_request(other->pool);
        poll_all(&r, 100000);
    }
    assert_true(other->pool->store->lists.remote_bytes > 0 || other->session->memory->magazine_bytes > 0);
    uint32_t uid = owner->index->uid;
    for (unsigned i = 0; i < 3; i++) {
        far_index_close(r.actors[i].index);
        r.actors[i].index = NULL;
    }
    assert_true(far_epoch_is_active(other->pool));
    assert_int_equal(far_index_drop(dropper->session, "x"), 0);
    far_sim_sleep(r.world, 50000000);
    /* The pages are still in use, because the owner waits for the acknowledgement of the other handle. */
    assert_true(pages_in_blocks_of(&r, owner, uid) > 0);
    hold_blocks(owner, false);
    poll_until_quiescent(other);
    far_sim_sleep(r.world, 50000000);
    poll_all(&r, 50000000);
    for (unsigned i = 0; i < 200; i++)
        poll_all(&r, 1000000);
    assert_int_equal(count_of(&r, owner, uid), 0);
    assert_no_leak_and_close(&r);
}


/* Handle B has retired objects of the index in blocks of handle A, and has no slabs of the index. A drops the index and
 * uses the memory for a new one. B must have returned its objects before A frees the slabs, because otherwise it would
 * return them when their memory is free or in use. Fails without far_request_wait in far_dropped_free (dropped.c),
 * or without far_has_retired in far_request_advance (request.c). */
TEST(retired_objects_of_a_dropped_index_are_not_freed_into_a_new_one) {
    static const char value[3000];
    rig r;
    open_without_index(&r, 22, 2, WITHOUT_HOUSEKEEPING(1));
    actor *owner = &r.actors[0], *slow = &r.actors[1];
    assert_int_equal(far_index_create(owner->session, "x", "dart", NULL, &owner->index), 0);
    assert_int_equal(far_index_open(slow->session, "x", &slow->index), 0);
    for (unsigned i = 0; i < 40; i++)
        assert_int_equal(far_put(owner->session, owner->index, &i, sizeof(i), value, i * 73), 0);
    for (unsigned i = 0; i < 40; i++)
        assert_int_equal(far_delete(slow->session, slow->index, &i, sizeof(i)), 0);
    uint32_t uid = owner->index->uid;
    far_index_close(owner->index);
    far_index_close(slow->index);
    owner->index = slow->index = NULL;
    assert_true(slow->session->memory->retired_bytes > 0);
    assert_int_equal(pages_in_blocks_of(&r, slow, uid), 0);
    assert_int_equal(far_index_drop(owner->session, "x"), 0);
    for (unsigned i = 0; i < 300; i++)
        poll_all(&r, 300000);
    assert_int_equal(count_of(&r, owner, uid), 0);
    assert_int_equal(far_pool_check(owner->session, 0, fail_at_problem, NULL), 0);
    assert_int_equal(far_index_create(owner->session, "new", "toy", "slots=64", &owner->index), 0);
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
    poll_until_quiescent(slow);
    assert_no_leak_and_close(&r);
}


/* Handle A has retired objects of the index in its own blocks. Handle B drops the index, and A frees its slabs before
 * the epoch of these objects comes, so the blocks are free then. The objects must not be returned to them. Fails
 * without retired_object_stays in free_own_slabs (dropped.c). */
TEST(retired_objects_in_freed_slabs_are_forgotten) {
    static const char value[3000];
    rig r;
    open_without_index(&r, 26, 2, 0);
    actor *owner = &r.actors[0], *dropper = &r.actors[1];
    assert_int_equal(far_index_create(owner->session, "x", "dart", NULL, &owner->index), 0);
    uint32_t uid = owner->index->uid;
    for (unsigned i = 0; i < 20; i++)
        assert_int_equal(far_put(owner->session, owner->index, &i, sizeof(i), value, i * 73), 0);
    for (unsigned i = 0; i < 20; i++)
        assert_int_equal(far_delete(owner->session, owner->index, &i, sizeof(i)), 0);
    far_index_close(owner->index);
    owner->index = NULL;
    assert_int_equal(far_index_drop(dropper->session, "x"), 0);
    for (unsigned i = 0; i < 2000 && count_of(&r, dropper, uid) > 0; i++)
        far_sim_sleep(r.world, 20000);
    far_sim_sleep(r.world, 50000000); /* longer than the objects would wait for their epoch */
    assert_int_equal(count_of(&r, dropper, uid), 0);
    assert_int_equal(far_pool_check(dropper->session, 0, fail_at_problem, NULL), 0);
    assert_no_leak_and_close(&r);
}


static int release_all_blocks(far_task *t, void *arg) {
    (void)arg;
    int err = far_pin_take(t);
    if (err < 0)
        return err;
    far_store_enter(t);
    err = far_blocks_release(t, FAR_RELEASE_ALL);
    far_store_leave(t);
    far_pin_drop(t);
    return err;
}


/* Handle A has slabs of the index. Handle B drops the index and has examined the orphans when A releases its blocks. A
 * keeps the blocks with these slabs and frees them itself; no client would look for them in orphans. Fails without the
 * check of `unlisted` in choose_blocks (exchange.c). */
TEST(blocks_with_slabs_of_a_dropped_index_are_not_released) {
    rig r;
    open_without_index(&r, 27, 2, WITHOUT_HOUSEKEEPING(0));
    actor *owner = &r.actors[0], *dropper = &r.actors[1];
    uint32_t uid = create_index(owner, "x", "dart");
    unsigned pages = pages_in_blocks_of(&r, owner, uid);
    assert_true(pages > 0);
    assert_int_equal(far_index_drop(dropper->session, "x"), 0);
    assert_int_equal(call(owner, release_all_blocks, NULL), 0);
    assert_int_equal(pages_in_blocks_of(&r, owner, uid), pages);
    for (unsigned i = 0; i < 300; i++)
        poll_all(&r, 300000);
    assert_int_equal(count_of(&r, dropper, uid), 0);
    assert_no_leak_and_close(&r);
}


/* ---- Drops and closes ---- */

/* A dropped index has many orphans. To free them takes a long time, in which the epoch must
 * advance, so that retired objects of other handles become free and the dropper is not taken for a stalled client.
 * Fails if adopt_block_with_dropped (dropped.c) keeps its pin. */
TEST(the_epoch_advances_while_a_large_index_is_freed) {
    rig r;
    open_without_index(&r, 25, 3, 0);
    uint32_t uid = create_with_values(r.actors[2].session, "x", "dart", 3000, 0);
    reopen(&r, &r.actors[2]);
    create_index(&r.actors[1], "y", "toy"); /* The index makes the handle of actor 1 active. */
    epoch_watch seen = begin_epoch_watch(&r, FAR_BLOCK_ORPHAN);
    assert_int_equal(far_index_drop(r.actors[0].session, "x"), 0);
    far_sim_on_verb(r.world, watch_block_cas, &seen);
    far_sim_sleep(r.world, 100000000);
    far_sim_on_verb(r.world, NULL, NULL);
    assert_int_equal(count_of(&r, &r.actors[0], uid), 0);
    assert_true(seen.taken > 40);
    assert_true(seen.last >= seen.first + 3);
    assert_no_leak_and_close(&r);
}


/* Housekeeping of handle B has begun to free the memory of index x and is about to publish its request, when B drops
 * index y. The memory of y becomes free too. Fails if gather_dropped_uids (dropped.c) forgets uids that are added
 * later. */
TEST(an_index_dropped_while_another_is_freed_is_freed_too) {
    rig r;
    open_without_index(&r, 30, 3, WITHOUT_HOUSEKEEPING(1));
    actor *a = &r.actors[1];
    uint32_t uid[2] = {create_index(&r.actors[2], "x", "toy"), create_index(&r.actors[2], "y", "toy")};
    reopen(&r, &r.actors[2]);
    assert_int_equal(far_index_drop(a->session, "x"), 0);
    start(a, "own", poll_main);
    stop_at(a, cas_of_request());
    assert_int_equal(far_index_drop(a->session, "y"), 0);
    far_sim_resume(a->client);
    far_sim_run_for(r.world, 50000000);
    a->stop = true;
    run_all(&r);
    assert_int_equal(count_of(&r, a, uid[0]) + count_of(&r, a, uid[1]), 0);
    assert_no_leak_and_close(&r);
}


/* Slabs of the indexes x and y share an orphan. Handle A drops y, adopts the orphan to free its slabs, and is closed,
 * which releases the orphan again. Handle B drops x at some moment of this and examines the orphans. Neither index may
 * leave a slab, whatever the order. Runs with 40 different pauses. */
TEST(other_slabs_in_a_block_adopted_for_a_drop_are_freed_too) {
    for (unsigned pause = 0; pause < 40; pause++) {
        rig r;
        open_without_index(&r, 31 + pause, 3, 0);
        actor *keeper = &r.actors[0], *a = &r.actors[1], *b = &r.actors[2];
        uint32_t uid[2] = {create_with_keys(keeper->session, "x", "toy", 3),
                           create_with_keys(keeper->session, "y", "toy", 3)};
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
        assert_no_leak_and_close(&r);
    }
}


/* The handle that owns slabs of the index is closed while another handle drops the index, with 60 different pauses. At
 * no moment may slabs be left. */
TEST(an_owner_that_closes_during_a_drop_leaves_nothing) {
    for (unsigned pause = 0; pause < 60; pause++) {
        rig r;
        open_without_index(&r, 80 + pause, 3, 0);
        actor *holder = &r.actors[1], *dropper = &r.actors[2];
        uint32_t uid = create_index(holder, "x", "toy");
        create_index(holder, "y", "toy"); /* index y is not dropped */
        start(holder, "closer", close_pool_main);
        far_sim_run_for(r.world, pause * 15000);
        assert_int_equal(far_index_drop(dropper->session, "x"), 0);
        run_all(&r);
        holder->pool = NULL;
        far_sim_sleep(r.world, 50000000);
        wait_for_sweeps(&r);
        if (count_of(&r, dropper, uid) > 0)
            fail_msg("the index was dropped %u us after the close began, and some of its pages are left", pause * 15);
        assert_no_leak_and_close(&r);
    }
}


static void drop_main(void *arg) {
    actor *a = arg;
    a->result = far_index_drop(a->session, "x");
}


/* When the catalog shows an index as not open, another handle may drop it, and its memory may be used again. Handle A
 * is being closed and waits for its retired objects of the index; it stops in the nth round of that wait. Handle B
 * drops the index. The retired objects must not be freed into memory that is in use again. Returns false if the wait
 * has fewer rounds. */
static bool drop_while_its_handle_waits(unsigned nth) {
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
    far_sim_stop_before(a->client, (far_sim_match){.point = "memory:wait_for_epoch", .nth = nth});
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
    assert_no_leak_and_close(&r);
    return there;
}


/* Stops the close in each round of its wait; see drop_while_its_handle_waits. Fails if far_memory_give_back_all
 * (upkeep.c) releases the blocks before this wait. */
TEST(retired_objects_are_not_freed_after_their_index_is_dropped) {
    unsigned nth = 1;
    while (drop_while_its_handle_waits(nth))
        nth++;
    assert_true(nth > 4);
}


static void close_index_main(void *arg) {
    actor *a = arg;
    far_index_close(a->index);
    a->index = NULL;
}


/* A handle is being closed while another thread closes an index of that handle. Hooks of the index may be running in
 * the close of the handle, so the index structure must stay until that close has ended. */
TEST(an_index_is_not_freed_while_its_handle_is_being_closed) {
    rig r;
    open_without_index(&r, 40, 3, 0);
    actor *a = &r.actors[1], other = {0};
    assert_int_equal(far_index_create(a->session, "x", "toy", NULL, &other.index), 0);
    other.pool = r.actors[0].pool;
    start(a, "closer", close_pool_main);
    stop_at_point(a, "memory:release_blocks");
    start(&other, "other", close_index_main);
    far_sim_run_for(r.world, 1000000);
    assert_false(far_sim_ended(other.client));
    far_sim_resume(a->client);
    run_all(&r);
    a->pool = NULL;
    assert_no_leak_and_close(&r);
}


/* ---- Indexes that only seem to be dropped ---- */

static void create_main(void *arg) {
    actor *a = arg;
    a->result = far_index_create(a->session, "x", "dart", NULL, &a->index);
}


/* Handle B is creating index x, which has a uid and slabs but is not listed yet. Handle C drops index y, so both
 * handles free the memory of unlisted indexes. The memory of x must stay. Fails without far_request_wait in
 * far_dropped_free (dropped.c), or without both of two guards: find_dropped_uids checks that the index is unknown
 * in the handle, and remove_listed_uids reads the catalog again. */
TEST(an_index_that_is_being_created_is_not_freed) {
    rig r;
    open_without_index(&r, 41, 3, 0);
    actor *creator = &r.actors[1], *dropper = &r.actors[2];
    uint32_t uid = create_index(dropper, "y", "toy");
    start(creator, "creator", create_main);
    stop_at_point(creator, "catalog:publish");
    assert_int_equal(far_index_drop(dropper->session, "y"), 0);
    far_sim_sleep(r.world, 100000000);
    /* The pages are still in use, because the request waits for the pin of the creator. */
    assert_true(count_of(&r, dropper, uid) > 0);
    finish(creator);
    assert_int_equal(creator->result, 0);
    far_sim_sleep(r.world, 100000000);
    assert_int_equal(count_of(&r, dropper, uid), 0);
    assert_int_equal(far_index_check(creator->session, creator->index, fail_at_problem, NULL), 0);
    assert_true(count_of(&r, dropper, creator->index->uid) > 0);
    assert_no_leak_and_close(&r);
}


static int free_dropped(far_task *t, void *arg) {
    (void)arg;
    return far_dropped_free(t, FAR_TIME_NEVER);
}


static void free_dropped_main(void *arg) {
    actor *a = arg;
    a->result = far_session_call(a->other, FAR_STATS_OTHER, true, free_dropped, NULL);
}


/* Runs the actor until a matching verb has taken effect but has not completed. Returns the hold on that verb. */
static far_sim_hold *run_until_held(actor *a, far_sim_match match) {
    far_sim_hold *hold = far_sim_hold_completion(a->client, match);
    far_sim_resume(a->client);
    for (unsigned i = 0; i < 1000 && !far_sim_reached(hold); i++)
        far_sim_run_client(a->client);
    assert_true(far_sim_reached(hold));
    return hold;
}


/* Handle B compares its slabs with the catalog before its index x is listed there. Then x is listed, and the session
 * that creates it is lost, so the handle does not know x any more. When that session is fenced, the catalog must be
 * read again; otherwise x would be taken for dropped and freed. Fails without remove_listed_uids (dropped.c). */
TEST(an_index_listed_after_the_comparison_is_not_freed) {
    rig r;
    open_without_index(&r, 51, 3, WITHOUT_HOUSEKEEPING(1));
    actor *creator = &r.actors[1], beside;
    far_index *index;
    const uint64_t list = FAR_SUPER_CATALOG;
    create_index(&r.actors[0], "y", "toy");
    assert_int_equal(far_session_open(creator->pool, &creator->other), 0);
    start(creator, "creator", create_main);
    stop_at(creator, (far_sim_match){.kind = FAR_SIM_CAS, .from = list, .to = list + 8});
    beside = *creator;
    start(&beside, "collector", free_dropped_main);
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
    close_rig_with_held_blocks(&r);
}
