/* Tests of update headroom: the last free object of a class that a session has is reserved for updates
 * (src/pool/alloc/README.md). No insert of the same handle takes this object, not even an insert of another class, so
 * that updates work in a full pool. */
#include "alloc_rig.h"
#include "client/op.h"
#include "test.h"

#define SIZE 4000


/* insert_one and the next function act like operations of an index. An insert takes an object and keeps it, so that the
 * session's last free object is its headroom. An update also retires the object that it replaces. */

static int insert_one(far_task *t, bench *b) {
    return far_alloc(t, &b->index, SWAPPED, SIZE, FAR_NODE_ANY, 0, b->arg);
}


static int update_one(far_task *t, bench *b) {
    far_object *object = b->arg, old = *object;
    t->swaps = true;
    int err = far_alloc(t, &b->index, SWAPPED, SIZE, FAR_NODE_ANY, 0, object);
    t->swaps = false;
    if (err == 0)
        far_retire(t, &b->index, SWAPPED, old.addr, SIZE);
    return err;
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
static int call_as_operation(bench *b, int (*run)(far_task *t, bench *b), void *arg) {
    b->run = run;
    b->arg = arg;
    return far_session_call(b->session, FAR_STATS_OTHER, false, run_as_operation, b);
}


/* Allocates all available memory for objects of another type. Returns how many objects it got. */
static unsigned take_all_free_memory(bench *b, filling *f, bool ask) {
    unsigned before = f->count;
    bench_epochs(b, 8); /* After 8 epochs no object is retired any more, so all free memory can be allocated. */
    int err = ask ? call_as_operation(b, fill_pool, f) : bench_call(b, b->session, fill_pool, f);
    assert_int_equal(err, FAR_ERR_NO_MEMORY);
    return f->count - before;
}


static void assert_no_insert_takes_the_headroom(const char *uri, bool ask) {
    bench b;
    far_object mine, other, none;
    filling f = new_filling(PLAIN, SIZE);
    open_bench(&b, uri, &kind);
    assert_int_equal(bench_call(&b, b.session, insert_one, &mine), 0);
    assert_int_equal(bench_call(&b, b.maker, insert_one, &other), 0);
    take_all_free_memory(&b, &f, ask);
    for (unsigned i = 0; i < 5; i++) {
        assert_int_equal(bench_call(&b, b.session, insert_one, &none), FAR_ERR_NO_MEMORY);
        assert_int_equal(bench_call(&b, b.session, update_one, &mine), 0);
        assert_int_equal(bench_call(&b, b.maker, update_one, &other), 0);
        take_all_free_memory(&b, &f, ask);
    }
    free(f.objects);
    close_bench(&b);
}


/* Two sessions have one free object each. Inserts of any class fail, while updates of both sessions succeed again and
 * again. Fails without is_headroom (alloc.c) or if gather_free_memory empties the magazines completely. */
TEST(inserts_of_another_class_do_not_take_the_headroom) {
    assert_no_insert_takes_the_headroom("sim:seed=1,size=4M", false);
    assert_no_insert_takes_the_headroom("sim:seed=1,memory_nodes=3,size=2M", false);
}


/* An insert that requests blocks from all handles does not get the headroom of its own handle. The handle observes its
 * own request and releases blocks with any free space, but not the blocks with headroom. Fails without
 * mark_headroom_blocks in exchange.c. */
TEST(an_insert_that_requests_blocks_does_not_get_the_headroom) {
    assert_no_insert_takes_the_headroom("sim:seed=1,size=4M", true);
    assert_no_insert_takes_the_headroom("sim:seed=1,memory_nodes=3,size=2M", true);
}


/* A session that was opened when the pool was full has no headroom. An update by this session gets the object that
 * another session of the handle has reserved, because that update retires an object in exchange. Fails if
 * gather_free_memory (alloc.c) leaves the headroom of the class in the magazines also for updates. */
TEST(an_update_of_another_session_gets_the_headroom) {
    bench b;
    far_object mine, none;
    filling f = new_filling(PLAIN, SIZE);
    open_bench(&b, "sim:seed=1,size=4M", &kind);
    assert_int_equal(bench_call(&b, b.session, insert_one, &mine), 0);
    take_all_free_memory(&b, &f, false);
    for (unsigned i = 0; i < 6; i++) {
        assert_int_equal(bench_call(&b, b.maker, insert_one, &none), FAR_ERR_NO_MEMORY);
        assert_int_equal(bench_call(&b, i % 2 ? b.session : b.maker, update_one, &mine), 0);
        bench_epochs(&b, 6);
    }
    free(f.objects);
    close_bench(&b);
}


/* When the session or the index of the headroom is closed, no update can need the object any more, so it is free for
 * all uses. Proves far_memory_close (store_life.c) and the check of far_class_index in visit_magazines (store.c). */
TEST(headroom_is_freed_when_its_session_or_index_is_closed) {
    for (unsigned i = 0; i < 2; i++) {
        bench b;
        far_object other;
        filling f = new_filling(PLAIN, SIZE);
        open_bench(&b, "sim:seed=1,size=4M", &kind);
        assert_int_equal(bench_call(&b, b.maker, insert_one, &other), 0);
        take_all_free_memory(&b, &f, false);
        if (i == 0) {
            far_session_close(b.maker);
            b.maker = NULL;
        } else {
            far_memory_index_closed(b.pool, &b.index);
        }
        assert_true(take_all_free_memory(&b, &f, false) > 0);
        free(f.objects);
        close_bench(&b);
    }
}


/* Two handles share the last free object of a full pool. A handle without headroom requests blocks, and the other one
 * releases its headroom with its block. The same happens in the opposite direction, so updates of both handles succeed
 * by turns, while inserts fail. */
TEST(updates_of_two_handles_share_the_last_object) {
    rig r;
    bench b[2] = {0};
    far_object object;
    filling f = new_filling(PLAIN, SIZE);
    open_rig_with(&r, 600, 3, 0, "size=2M", 16);
    for (unsigned i = 0; i < 2; i++) {
        /* These two handles did not create the index. The handle that created the index keeps blocks with objects of
         * the index, so it is not used here. */
        const actor *a = &r.actors[i + 1];
        b[i] = (bench){.pool = a->pool, .session = a->session};
        b[i].index = (far_index){.kind = &kind, .pool = a->pool, .uid = a->index->uid};
    }
    assert_int_equal(bench_call(&b[0], b[0].session, insert_one, &object), 0);
    take_all_free_memory(&b[0], &f, true);
    for (unsigned i = 0; i < 6; i++) {
        assert_int_equal(call_as_operation(&b[i % 2 == 0], insert_one, &(far_object){0}), FAR_ERR_NO_MEMORY);
        assert_int_equal(call_as_operation(&b[i % 2 == 0], update_one, &object), 0);
    }
    free(f.objects);
    close_rig(&r);
}
