/* Tests of the headroom (src/pool/alloc/headroom.c): inserts leave the last blocks of each memory node free, so that
 * updates, deletes and structure changes that have begun find memory in a full pool. The tests call the allocator as
 * operations of an index do. The same is tested for every kind of index in tests/damage/test_full_pool.c. */
#include "alloc_rig.h"
#include "client/op.h"
#include "test.h"

#define SIZE 4000


/* An insert takes an object and keeps it. */
static int insert_one(far_task *t, bench *b) {
    return far_alloc(t, &b->index, PLAIN, SIZE, FAR_NODE_ANY, 0, b->arg);
}


/* An update also retires the object that it replaces. */
static int update_one_of_type(far_task *t, bench *b, unsigned type) {
    far_object *object = b->arg, old = *object;
    t->uses_headroom = true;
    int err = far_alloc(t, &b->index, type, SIZE, FAR_NODE_ANY, 0, object);
    t->uses_headroom = false;
    if (err == 0)
        far_retire(t, &b->index, type, old.addr, SIZE);
    return err;
}


static int update_one(far_task *t, bench *b) {
    return update_one_of_type(t, b, PLAIN);
}


static int update_one_wide(far_task *t, bench *b) {
    return update_one_of_type(t, b, WIDE);
}


static int delete_one(far_task *t, bench *b) {
    far_retire(t, &b->index, PLAIN, ((far_object *)b->arg)->addr, SIZE);
    return 0;
}


static int run_pinned(far_task *t, void *arg) {
    bench *b = arg;
    return b->run(t, b);
}


static int run_as_operation(far_task *t, void *arg) {
    int err = far_run_pinned(t, run_pinned, arg);
    far_pin_drop(t);
    return err;
}


/* Runs the function like an operation of an index: if the function finds no memory, it goes through the out-of-memory
 * path and requests blocks from all handles before it fails. Returns the result of the function. */
static int call_as_operation(bench *b, far_session *s, int (*run)(far_task *t, bench *b), void *arg) {
    b->run = run;
    b->arg = arg;
    return far_session_call(s, FAR_STATS_OTHER, false, run_as_operation, b);
}


/* Inserts objects until no memory is found. Returns how many objects it got. */
static unsigned insert_until_full(bench *b, filling *f) {
    unsigned before = f->count;
    assert_int_equal(call_as_operation(b, b->session, fill_pool, f), FAR_ERR_NO_MEMORY);
    return f->count - before;
}


static int count_if_free(far_task *t, void *ctx, far_block_id id, const uint64_t *entry) {
    (void)t;
    ((uint32_t *)ctx)[id.node] += far_block_is_free(entry[0]);
    return 0;
}


static int count_free_blocks(far_task *t, bench *b) {
    return far_blocks_each(t, count_if_free, b->arg);
}


/* Asserts that each node has as many free blocks as its headroom, minus the missing ones. */
static void assert_free_blocks(bench *b, unsigned missing) {
    uint32_t found[FAR_NODES_MAX] = {0}, less = 0;
    assert_int_equal(bench_call(b, b->maker, count_free_blocks, found), 0);
    for (unsigned n = 0; n < b->pool->geometry.nodes; n++) {
        uint32_t headroom = b->pool->store->headroom[n].blocks;
        assert_int_equal(headroom, b->pool->geometry.node[n].blocks / 64 + 1);
        assert_true(found[n] <= headroom);
        less += headroom - found[n];
    }
    assert_int_equal(less, missing);
}


/* Inserts of three sizes leave the headroom of each node free, also after they have requested all handles to release
 * blocks. The last pool is so large that a search reads its block table in several parts. Fails if
 * count_permitted_blocks (exchange.c) permits all free blocks. */
TEST(inserts_leave_the_headroom_free) {
    static const char *const uris[] = {"sim:seed=1,size=2M", "sim:seed=1,memory_nodes=3,size=2M",
                                       "sim:seed=1,size=200M"};
    static const uint64_t sizes[] = {60000, SIZE, 64};
    for (unsigned i = 0; i < 3; i++) {
        bench b;
        open_bench(&b, uris[i], &kind);
        for (unsigned k = 0; k < 3; k++) {
            filling f = new_filling(k == 1 ? WIDE : PLAIN, sizes[k]);
            insert_until_full(&b, &f);
            assert_free_blocks(&b, 0);
            free(f.objects);
        }
        close_bench(&b);
    }
}


static void assert_updates_do_not_become_inserts(const char *uri, unsigned updates) {
    bench b;
    far_object none;
    open_bench(&b, uri, &kind);
    filling f = new_filling(PLAIN, SIZE), wide = new_filling(WIDE, SIZE);
    wide.room = 2;
    assert_int_equal(bench_call(&b, b.session, fill_pool, &wide), 0);
    insert_until_full(&b, &f);
    for (unsigned i = 0; i < updates; i++) {
        assert_int_equal(call_as_operation(&b, i % 3 ? b.session : b.maker, update_one, &f.objects[i % f.count]), 0);
        assert_int_equal(call_as_operation(&b, i % 3 ? b.session : b.maker, update_one_wide, &wide.objects[i % 2]), 0);
        assert_int_equal(call_as_operation(&b, b.session, insert_one, &none), FAR_ERR_NO_MEMORY);
        assert_int_equal(call_as_operation(&b, b.maker, insert_one, &none), FAR_ERR_NO_MEMORY);
        if (i % 4 == 0)
            bench_epochs(&b, 6); /* After 6 epochs no object is retired any more. */
        assert_int_equal(bench_call(&b, b.session, insert_one, &none), FAR_ERR_NO_MEMORY);
    }
    free(f.objects);
    free(wide.objects);
    close_bench(&b);
}


/* Updates of two classes by two sessions succeed again and again, although each of them is followed by inserts. The
 * inserts get neither the rest of a block that an update took nor the objects that updates retire. Fails if
 * far_headroom_spares_object (headroom.c) always permits the object. */
TEST(updates_in_a_full_pool_do_not_become_inserts) {
    assert_updates_do_not_become_inserts("sim:seed=1,size=2M", 300);
    assert_updates_do_not_become_inserts("sim:seed=1,memory_nodes=3,size=2M", 300);
}


/* In a full pool, updates have taken blocks of the headroom. Then objects are deleted, one in each block or so, which
 * makes no block free. Inserts get that memory, except as much as the missing blocks have. Fails if
 * far_headroom_spares_object counts only free blocks. */
TEST(inserts_get_the_memory_of_deleted_objects) {
    bench b;
    open_bench(&b, "sim:seed=1,size=4M", &kind);
    filling f = new_filling(PLAIN, SIZE), more = new_filling(PLAIN, SIZE);
    insert_until_full(&b, &f);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(call_as_operation(&b, b.session, update_one, &f.objects[i]), 0);
    assert_free_blocks(&b, 1);
    unsigned deleted = 0;
    for (unsigned i = 4; i < f.count; i += 8, deleted++)
        assert_int_equal(bench_call(&b, b.session, delete_one, &f.objects[i]), 0);
    assert_true(deleted > 60);
    bench_epochs(&b, 6);
    unsigned got = insert_until_full(&b, &more);
    assert_in_range(got, deleted - 3, deleted);
    assert_int_equal(insert_until_full(&b, &more), 0);
    assert_int_equal(call_as_operation(&b, b.session, update_one, &f.objects[0]), 0);
    free(f.objects);
    free(more.objects);
    close_bench(&b);
}


/* Like update_one and delete_one, for the first two objects of a filling. */
static int update_first(far_task *t, bench *b) {
    filling *f = b->arg;
    far_object old = f->objects[0];
    t->uses_headroom = true;
    int err = far_alloc(t, &b->index, PLAIN, f->size, FAR_NODE_ANY, 0, &f->objects[0]);
    t->uses_headroom = false;
    if (err == 0)
        far_retire(t, &b->index, PLAIN, old.addr, f->size);
    return err;
}


static int delete_second(far_task *t, bench *b) {
    filling *f = b->arg;
    far_retire(t, &b->index, PLAIN, f->objects[1].addr, f->size);
    f->objects[1] = f->objects[--f->count];
    return 0;
}


/* An update takes a block of the headroom. A few pages at the end of this block are too few for another slab. They must
 * not count as a missing part of the headroom, because no delete in this class can replace them. So one deleted object
 * makes room for one insert. Fails if count_objects_beyond_headroom (headroom.c) counts all 64 pages of the missing
 * block. */
TEST(one_deleted_object_makes_room_for_one_insert) {
    static const uint64_t sizes[] = {1088, SIZE, 20000};
    for (unsigned i = 0; i < 3; i++) {
        bench b;
        open_bench(&b, "sim:seed=1,size=2M", &kind);
        filling f = new_filling(PLAIN, sizes[i]);
        insert_until_full(&b, &f);
        assert_int_equal(call_as_operation(&b, b.session, update_first, &f), 0);
        assert_free_blocks(&b, 1);
        bench_epochs(&b, 6);
        insert_until_full(&b, &f);
        assert_int_equal(bench_call(&b, b.session, delete_second, &f), 0);
        bench_epochs(&b, 6);
        assert_int_equal(insert_until_full(&b, &f), 1);
        free(f.objects);
        close_bench(&b);
    }
}


/* When memory becomes free, the blocks that updates took from the headroom become free again, and inserts leave as many
 * blocks free as at first. */
TEST(blocks_flow_back_to_the_headroom) {
    bench b;
    open_bench(&b, "sim:seed=1,size=2M", &kind);
    filling f = new_filling(PLAIN, SIZE);
    insert_until_full(&b, &f);
    unsigned count = f.count;
    for (unsigned i = 0; i < count; i++)
        assert_int_equal(call_as_operation(&b, b.session, update_one, &f.objects[i]), 0);
    assert_true(atomic_load(&b.pool->store->is_scarce));
    assert_int_equal(bench_call(&b, b.session, empty_pool, &f), 0);
    bench_epochs(&b, 12);
    assert_in_range(insert_until_full(&b, &f), count - 2, count + 2);
    assert_free_blocks(&b, 0);
    free(f.objects);
    close_bench(&b);
}


static int alloc_with_flag(far_task *t, bench *b) {
    far_object object;
    return far_alloc(t, &b->index, PLAIN, SIZE, FAR_NODE_ANY, FAR_ALLOC_HEADROOM, &object);
}


/* An allocation for a structure change that has begun may use the headroom, although its operation is an insert. The
 * permission ends with the allocation. */
TEST(a_structure_change_that_has_begun_uses_the_headroom) {
    bench b;
    far_object none;
    open_bench(&b, "sim:seed=1,size=2M", &kind);
    filling f = new_filling(PLAIN, SIZE);
    insert_until_full(&b, &f);
    assert_int_equal(bench_call(&b, b.session, alloc_with_flag, NULL), 0);
    assert_free_blocks(&b, 1);
    assert_int_equal(bench_call(&b, b.session, insert_one, &none), FAR_ERR_NO_MEMORY);
    free(f.objects);
    close_bench(&b);
}


/* ---- Several handles ---- */

typedef struct several {
    rig r;
    bench b[ACTORS_MAX];
} several;


static void open_several(several *s, unsigned seed, unsigned count, const char *sim) {
    open_rig_with(&s->r, seed, count, 0, sim, 16);
    for (unsigned i = 0; i < count; i++) {
        const actor *a = &s->r.actors[i];
        s->b[i] = (bench){.pool = a->pool, .session = a->session, .maker = a->session};
        s->b[i].index = (far_index){.kind = &kind, .pool = a->pool, .uid = a->index->uid};
    }
}


static void update_in_many_handles(unsigned seed) {
    several s;
    open_several(&s, seed, ACTORS_MAX, "size=2M");
    filling f = new_filling(PLAIN, SIZE);
    assert_int_equal(s.b[0].pool->store->headroom[0].blocks, 1);
    insert_until_full(&s.b[0], &f);
    for (unsigned i = 0; i < 60; i++) {
        bench *b = &s.b[i * 7 / 3 % ACTORS_MAX];
        far_object none;
        assert_int_equal(call_as_operation(b, b->session, insert_one, &none), FAR_ERR_NO_MEMORY);
        int err = call_as_operation(b, b->session, update_one, &f.objects[i % f.count]);
        if (err < 0)
            fail_msg("seed %u, update %u: %s", seed, i, far_last_error());
    }
    free(f.objects);
    close_rig(&s.r);
}


/* Six handles update objects of a full pool with a headroom of a single block, so the block has to change its owner.
 * All updates succeed, while all inserts fail. In some seeds the system sessions of the handles try to allocate status
 * records meanwhile, which are inserts too. Fails if far_blocks_release releases only blocks without slabs. */
TEST(one_block_of_headroom_serves_many_handles) {
    for (unsigned seed = 600; seed < 600 + seeds(40); seed++)
        update_in_many_handles(seed);
}


static several *staged; /* the handles of the running test */


static void update_main(void *arg) {
    actor *a = arg;
    bench *b = &staged->b[a->number];
    a->result = call_as_operation(b, a->session, update_one, b->arg);
}


/* Handle A has the only block of the headroom. Handle B requests blocks for an update, and A releases its blocks. Before
 * B retries the update, handle C attempts an insert, which must neither succeed nor take the released blocks away from
 * B. Fails if must_leave_orphans (exchange.c) always returns false. */
TEST(inserts_leave_released_blocks_to_the_update_that_requested_them) {
    several s;
    far_object none;
    open_several(&s, 610, 3, "size=2M");
    staged = &s;
    for (unsigned i = 0; i < 3; i++)
        world_await_status_record(s.r.world, s.b[i].pool);
    filling f = new_filling(PLAIN, SIZE);
    insert_until_full(&s.b[0], &f);
    assert_int_equal(call_as_operation(&s.b[0], s.b[0].session, update_one, &f.objects[0]), 0);
    bench_epochs(&s.b[0], 6); /* so that B does not join the last request of A */
    actor *b = &s.r.actors[1];
    s.b[1].arg = &f.objects[1];
    start(b, "update", update_main);
    stop_at_point(b, "out_of_memory:retry");
    unsigned orphans = blocks_of_kind(&s.r, b, FAR_BLOCK_ORPHAN);
    assert_true(orphans > 0);
    assert_int_equal(bench_call(&s.b[2], s.b[2].session, insert_one, &none), FAR_ERR_NO_MEMORY);
    assert_int_equal(blocks_of_kind(&s.r, b, FAR_BLOCK_ORPHAN), orphans);
    finish(b);
    assert_int_equal(b->result, 0);
    free(f.objects);
    close_rig(&s.r);
}


static filling *shared; /* the objects that the handles of the running test update */


static void update_and_insert_main(void *arg) {
    actor *a = arg;
    bench *b = &staged->b[a->number];
    far_object none;
    a->result = 0;
    for (unsigned i = 0; i < 10 && a->result == 0; i++) {
        assert_true(i % 2 == 0 || call_as_operation(b, a->session, insert_one, &none) == FAR_ERR_NO_MEMORY);
        a->result = call_as_operation(b, a->session, update_one, &shared->objects[a->number * 10 + i]);
    }
}


/* Like one_block_of_headroom_serves_many_handles, but the handles update and insert at the same time. So an operation of
 * one handle may adopt the blocks that were released for the update of another one, which then begins another round.
 * Fails if is_inconclusive (out_of_memory.c) returns whether the result is SHARED. */
TEST(updates_of_many_handles_at_the_same_time_succeed) {
    for (unsigned seed = 700; seed < 700 + seeds(40); seed++) {
        several s;
        open_several(&s, seed, ACTORS_MAX, "size=2M");
        staged = &s;
        filling f = new_filling(PLAIN, SIZE);
        shared = &f;
        insert_until_full(&s.b[0], &f);
        for (unsigned i = 0; i < ACTORS_MAX; i++)
            start(&s.r.actors[i], "update", update_and_insert_main);
        run_all(&s.r);
        for (unsigned i = 0; i < ACTORS_MAX; i++)
            if (s.r.actors[i].result != 0)
                fail_msg("seed %u, handle %u: an update failed: %d", seed, i, s.r.actors[i].result);
        free(f.objects);
        close_rig(&s.r);
    }
}


static void insert_large_main(void *arg) {
    actor *a = arg;
    filling one = {.type = PLAIN, .size = 60000, .room = 1, .objects = &(far_object){0}};
    a->result = bench_call(&staged->b[a->number], a->session, fill_pool, &one);
}


static uint32_t count_free_on_node_0(bench *b) {
    uint32_t found[FAR_NODES_MAX] = {0};
    assert_int_equal(bench_call(b, b->session, count_free_blocks, found), 0);
    return found[0];
}


/* Returns whether both A and B took a block. */
static bool race_for_the_last_block(unsigned seed) {
    several s;
    open_several(&s, seed, 3, "size=4M");
    staged = &s;
    filling f = new_filling(PLAIN, 60000);
    bench *filler = &s.b[2];
    uint32_t headroom = filler->pool->store->headroom[0].blocks;
    insert_until_full(filler, &f);
    assert_int_equal(count_free_on_node_0(filler), headroom);
    while (count_free_on_node_0(filler) == headroom) { /* until one more block is free */
        filling one = {.type = PLAIN, .size = 60000, .objects = &f.objects[--f.count], .count = 1};
        assert_int_equal(bench_call(filler, filler->session, empty_pool, &one), 0);
        far_magazines_empty(filler->pool->store);
        bench_epochs(filler, 6);
    }
    const far_geometry *g = &filler->pool->geometry;
    for (unsigned i = 0; i < 2; i++) {
        actor *a = &s.r.actors[i];
        start(a, "insert", insert_large_main);
        stop_at(a, (far_sim_match){.kind = FAR_SIM_CAS,
                                   .from = g->node[0].entries,
                                   .to = g->node[0].entries + g->node[0].blocks * FAR_BLOCK_ENTRY_BYTES});
    }
    far_sim_resume(s.r.actors[0].client);
    assert_int_equal(far_sim_run_client(s.r.actors[0].client), FAR_SIM_ENDED);
    stop_at(&s.r.actors[1], (far_sim_match){.kind = FAR_SIM_READ});
    bool both = count_free_on_node_0(filler) < headroom;
    finish(&s.r.actors[1]);
    assert_int_equal(s.r.actors[0].result, 0);
    assert_int_equal(s.r.actors[1].result, FAR_ERR_NO_MEMORY);
    free(f.objects);
    close_rig(&s.r);
    return both;
}


/* Handles A and B both find one free block more than the headroom, and both take a block. B, which counts the free
 * blocks again, then leaves the memory of its block alone. Fails if take_free_blocks (exchange.c) does not count again.
 */
TEST(inserts_that_race_for_the_last_block_leave_the_headroom) {
    unsigned both = 0;
    for (unsigned seed = 601; seed < 609; seed++)
        both += race_for_the_last_block(seed);
    assert_true(both > 0); /* with the other seeds A and B chose the same block */
}


/* A delete of the kind toy writes the remaining pairs of its slot to a new object. Deletes succeed in a full pool.
 * Fails if deletes may not use the headroom (call_index_kind in client/op.c). */
TEST(deletes_that_need_memory_use_the_headroom) {
    rig r;
    enum { DELETES = 40 };
    open_rig_with(&r, 603, 1, 0, "size=2M", 512);
    actor *a = &r.actors[0];
    unsigned count = fill(a, "a", 200);
    fill_completely(a, "b", 200);
    assert_true(count > DELETES);
    for (unsigned i = 0; i < DELETES; i++)
        remove_numbered(a, "a", i * (count / DELETES));
    close_rig(&r);
}


/* ---- Refused inserts ---- */

/* After an insert was refused, further inserts are refused without a request, although updates go on.
 * Fails without check_refused (out_of_memory.c). */
TEST(refused_inserts_make_no_request) {
    several s;
    open_several(&s, 602, 2, "size=4M");
    filling f = new_filling(PLAIN, SIZE);
    far_object none;
    insert_until_full(&s.b[0], &f);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(call_as_operation(&s.b[0], s.b[0].session, update_one, &f.objects[i]), 0);
        assert_int_equal(call_as_operation(&s.b[0], s.b[0].session, insert_one, &none), FAR_ERR_NO_MEMORY);
    }
    uint32_t number = request_now(&s.r).number;
    for (unsigned i = 0; i < 20; i++) {
        assert_int_equal(call_as_operation(&s.b[0], s.b[0].session, update_one, &f.objects[i]), 0);
        assert_int_equal(call_as_operation(&s.b[0], s.b[0].session, insert_one, &none), FAR_ERR_NO_MEMORY);
        bench_epochs(&s.b[0], 1); /* Retired objects become free in time, so no update makes a request. */
    }
    assert_int_equal(request_now(&s.r).number, number);
    free(f.objects);
    close_rig(&s.r);
}
