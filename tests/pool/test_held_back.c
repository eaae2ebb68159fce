/* What a session holds back for updates in a full pool: the last free object of a size whose objects updates swap. No
 * insert of its handle takes it, also not for another size; updates do, also those of others. */
#include "alloc_rig.h"
#include "client/op.h"

#define SIZE 4000


/* An insert, which leaves one object held back; or an update, which gives back the object that it replaces. */

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


static int run_and_ask(far_task *t, void *arg) {
    int err = far_run_pinned(t, run_pinned, arg);
    far_pin_drop(t);
    return err;
}


/* As an operation does: it asks all handles for memory before it says that there is none. */
static int call_and_ask(bench *b, int (*run)(far_task *t, bench *b), void *arg) {
    b->run = run;
    b->arg = arg;
    return far_session_call(b->session, FAR_STATS_OTHER, false, run_and_ask, b);
}


/* All that can be had is taken for another type. How many objects more than before. */
static unsigned fill_up(bench *b, filling *f, bool ask) {
    unsigned before = f->count;
    bench_epochs(b, 8); /* nothing is retired */
    int err = ask ? call_and_ask(b, fill_pool, f) : bench_call(b, b->session, fill_pool, f);
    assert_int_equal(err, FAR_ERR_NO_MEMORY);
    return f->count - before;
}


static void no_insert_takes_it(const char *uri, bool ask) {
    bench b;
    far_object mine, other, none;
    filling f = new_filling(PLAIN, SIZE);
    open_bench(&b, uri, &kind);
    assert_int_equal(bench_call(&b, b.session, insert_one, &mine), 0);
    assert_int_equal(bench_call(&b, b.maker, insert_one, &other), 0);
    fill_up(&b, &f, ask);
    for (unsigned i = 0; i < 5; i++) {
        assert_int_equal(bench_call(&b, b.session, insert_one, &none), FAR_ERR_NO_MEMORY);
        assert_int_equal(bench_call(&b, b.session, update_one, &mine), 0);
        assert_int_equal(bench_call(&b, b.maker, update_one, &other), 0);
        fill_up(&b, &f, ask);
    }
    free(f.objects);
    close_bench(&b);
}


static void inserts_of_another_size_do_not_take_it(void **state) {
    (void)state;
    no_insert_takes_it("sim:seed=1,size=4M", false);
    no_insert_takes_it("sim:seed=1,memory_nodes=3,size=2M", false);
}


/* The handle hears its own request, and gives up blocks with any room. */
static void an_insert_that_asks_all_handles_does_not_get_it(void **state) {
    (void)state;
    no_insert_takes_it("sim:seed=1,size=4M", true);
    no_insert_takes_it("sim:seed=1,memory_nodes=3,size=2M", true);
}


/* A session that came when the pool was full has none: an update of it is served by what another holds back. */
static void an_update_of_another_session_gets_it(void **state) {
    (void)state;
    bench b;
    far_object mine, none;
    filling f = new_filling(PLAIN, SIZE);
    open_bench(&b, "sim:seed=1,size=4M", &kind);
    assert_int_equal(bench_call(&b, b.session, insert_one, &mine), 0);
    fill_up(&b, &f, false);
    for (unsigned i = 0; i < 6; i++) {
        assert_int_equal(bench_call(&b, b.maker, insert_one, &none), FAR_ERR_NO_MEMORY);
        assert_int_equal(bench_call(&b, i % 2 ? b.session : b.maker, update_one, &mine), 0);
        bench_epochs(&b, 6);
    }
    free(f.objects);
    close_bench(&b);
}


/* Nobody is left who would update: the memory serves others. */
static void it_is_given_back_when_its_session_or_its_index_is_closed(void **state) {
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        bench b;
        far_object other;
        filling f = new_filling(PLAIN, SIZE);
        open_bench(&b, "sim:seed=1,size=4M", &kind);
        assert_int_equal(bench_call(&b, b.maker, insert_one, &other), 0);
        fill_up(&b, &f, false);
        if (i == 0) {
            far_session_close(b.maker);
            b.maker = NULL;
        } else {
            far_memory_index_closed(b.pool, &b.index);
        }
        assert_true(fill_up(&b, &f, false) > 0);
        free(f.objects);
        close_bench(&b);
    }
}


/* A handle that came when the pool was full asks for memory: others give up what they hold back, and ask for it in the same
 * way when they need it. */
static void handles_hand_on_what_is_left(void **state) {
    (void)state;
    rig r;
    bench b[2] = {0};
    far_object object;
    filling f = new_filling(PLAIN, SIZE);
    open_rig_with(&r, 600, 3, 0, "size=2M", 16);
    for (unsigned i = 0; i < 2; i++) {
        const actor *a = &r.actors[i + 1]; /* the maker of the index keeps objects of it, and their blocks */
        b[i] = (bench){.pool = a->pool, .session = a->session};
        b[i].index = (far_index){.kind = &kind, .pool = a->pool, .uid = a->index->uid};
    }
    assert_int_equal(bench_call(&b[0], b[0].session, insert_one, &object), 0);
    fill_up(&b[0], &f, true);
    for (unsigned i = 0; i < 6; i++) {
        assert_int_equal(call_and_ask(&b[i % 2 == 0], insert_one, &(far_object){0}), FAR_ERR_NO_MEMORY);
        assert_int_equal(call_and_ask(&b[i % 2 == 0], update_one, &object), 0);
    }
    free(f.objects);
    close_rig(&r);
}


int main(int argc, char **argv) {
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(inserts_of_another_size_do_not_take_it),
        cmocka_unit_test(an_insert_that_asks_all_handles_does_not_get_it),
        cmocka_unit_test(an_update_of_another_session_gets_it),
        cmocka_unit_test(it_is_given_back_when_its_session_or_its_index_is_closed),
        cmocka_unit_test(handles_hand_on_what_is_left),
    };
    return cmocka_run_group_tests_name("held_back", tests, NULL, NULL);
}
