/* A process without memory of its own cannot note what it has in hand in the pool: it is lost, and a sweep is asked
 * for. */
#include "settle_rig.h"

static bool fails; /* what is wrapped below */

void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);
far_held *__real_far_held_add(far_store *s, far_block_id id, bool used, uint32_t stamp);
far_held *__wrap_far_held_add(far_store *s, far_block_id id, bool used, uint32_t stamp);


void *__wrap_malloc(size_t bytes) {
    return fails ? NULL : __real_malloc(bytes);
}


far_held *__wrap_far_held_add(far_store *s, far_block_id id, bool used, uint32_t stamp) {
    return fails ? NULL : __real_far_held_add(s, id, used, stamp);
}


static uint64_t wanted_so_far(const rig *r) {
    return word_at(r, far_addr_make(0, FAR_SUPER_WANTED));
}


/* With the first object that this session retires its queue becomes larger. */
static int retire_one(far_task *t, void *arg) {
    actor *a = arg;
    far_object object = {0};
    int err = far_pin_take(t);
    if (err == 0)
        err = far_alloc(t, a->index, TOY_TYPE_BUCKET, 512, 0, FAR_ALLOC_ON_NODE, &object);
    fails = true;
    if (err == 0)
        far_retire(t, a->index, TOY_TYPE_BUCKET, object.addr, 512);
    fails = false;
    far_pin_drop(t);
    return err;
}


static void what_cannot_be_noted_as_retired_is_swept(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 1, 2, 0);
    actor *a = &r.actors[0];
    put_many(a, "a");
    uint64_t wanted = wanted_so_far(&r);
    assert_int_equal(far_session_open(a->pool, &a->other), 0);
    assert_int_equal(far_session_call(a->other, FAR_STATS_OTHER, true, retire_one, a), 0);
    far_sim_sleep(r.world, 20000000);
    assert_true(wanted_so_far(&r) > wanted);
    assert_nothing_lost(&r, &r.actors[1]);
    assert_many(a, "a");
    close_holders(&r);
}


static int adopt_without_memory(far_task *t, void *arg) {
    fails = true;
    int err = adopt_orphans(t, arg);
    fails = false;
    return err;
}


/* What is lost in it is not settled with its adoption. */
static void an_orphan_that_cannot_be_noted_is_swept(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 2, 3, 0);
    actor *owner = &r.actors[0], *heir = &r.actors[1];
    put_many(owner, "a");
    assert_int_equal(call(owner, lose_one, owner), 0);
    hold_blocks(owner, false);
    assert_int_equal(call(owner, give_up_blocks, NULL), 0);
    uint64_t wanted = wanted_so_far(&r);
    assert_int_equal(call(heir, adopt_without_memory, NULL), FAR_ERR_NO_MEMORY);
    far_sim_sleep(r.world, 20000000);
    assert_true(wanted_so_far(&r) > wanted);
    assert_many(heir, "a");
    assert_nothing_lost(&r, &r.actors[2]);
    close_holders(&r);
}


int main(int argc, char **argv) {
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_cannot_be_noted_as_retired_is_swept),
        cmocka_unit_test(an_orphan_that_cannot_be_noted_is_swept),
    };
    return cmocka_run_group_tests_name("no memory", tests, NULL, NULL);
}
