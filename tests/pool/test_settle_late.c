/* Settling that is cut short or comes late; objects that must wait longer than others; indexes and runs that are made while a
 * sweep is under way. */
#include "settle_rig.h"


/* ---- Settling that is cut short ---- */

/* It learns of the epoch and of requests, and does nothing with its memory. */
static int wait_one_epoch(far_task *t, void *arg) {
    (void)arg;
    return far_wait_epochs_until(t, 1, FAR_TIME_NEVER);
}


static void poll_in_other(void *arg) {
    actor *a = arg;
    a->result = far_session_call(a->other, FAR_STATS_OTHER, true, wait_one_epoch, NULL);
}


/* The owner has read the tables of its blocks after the first sweep, and stands still; meanwhile it hears of the next
 * one, whose black record it has begun: what it read counts no more. */
static void settle_dropped_by_next_sweep(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 8, 2, BY_HAND(0));
    actor *owner = &r.actors[0], *sweeper = &r.actors[1], beside;
    assert_int_equal(far_session_open(owner->pool, &owner->other), 0);
    put_many(owner, "a");
    poll_until_asleep(owner);
    sweeper->mode = FAR_SWEEP_SLOWLY; /* it does not wait for owners */
    start_sweep(sweeper);
    stop_at(sweeper, before_done());
    put_many(owner, "b"); /* black, not marked */
    finish(sweeper);
    start_sweep(sweeper); /* it asks for an epoch when it becomes the sweeper, and again with its number */
    stop_at(sweeper,
            (far_sim_match){.kind = FAR_SIM_CAS, .nth = 2, .from = FAR_SUPER_REQUEST, .to = FAR_SUPER_REQUEST + 8});
    assert_int_equal(far_session_call(owner->other, FAR_STATS_OTHER, true, wait_one_epoch, NULL), 0);
    far_sim_sleep(r.world, 5000000); /* the epoch stands where the owner is */
    start(owner, "settler", poll_main);
    stop_at_point(owner, "settle:read");
    assert_int_not_equal(owner->pool->store->settled, request_now(&r).sweep);
    far_sim_resume(sweeper->client);
    beside = *owner;
    start(&beside, "beside", poll_in_other);
    far_sim_run_for(r.world, 20000000);
    assert_int_equal(owner->pool->store->sweep, request_now(&r).sweep);
    assert_false(far_sim_ended(sweeper->client));
    far_sim_resume(owner->client);
    far_sim_run_for(r.world, 100000000);
    assert_true(far_sim_ended(sweeper->client));
    assert_int_equal(sweeper->result, 0);
    owner->stop = true;
    run_all(&r);
    use_all_free_memory(&r, owner);
    assert_many(sweeper, "a");
    assert_many(sweeper, "b");
    poll_until_asleep(owner);
    assert_nothing_lost(&r, sweeper);
    close_holders(&r);
}


/* It slept through a sweep, and wakes when the marks are those of the next one, half written: it settles the next one,
 * when that is done. */
static void sleeper_does_not_settle(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 9, 2, BY_HAND(0));
    actor *owner = &r.actors[0], *sweeper = &r.actors[1];
    put_many(owner, "a");
    assert_int_equal(call(owner, lose_one, owner), 0);
    poll_until_asleep(owner);
    assert_int_equal(sweep(sweeper, FAR_SWEEP_REPAIR), 0); /* it is not waited for for ever */
    assert_int_equal(sweeper->swept.leaked_bytes, 0);
    uint32_t first = request_now(&r).sweep;
    const far_geometry *g = &owner->pool->geometry;
    far_addr marks = far_block_marks(g, block_of(owner, owner->object));
    start_sweep(sweeper);
    stop_at(sweeper, (far_sim_match){.kind = FAR_SIM_WRITE, .from = marks, .to = marks + far_bitmap_bytes(g)});
    memset(bytes_at(&r, marks), 0, far_bitmap_bytes(g)); /* as a WRITE that is on its way may leave them */
    put_now(owner, "b", 300);
    for (unsigned i = 0; i < 10; i++) {
        assert_int_equal(far_pool_poll(owner->pool), 0);
        far_sim_sleep(r.world, 100000);
    }
    assert_int_not_equal(owner->pool->store->settled, first);
    assert_many(owner, "a");
    finish_sweep(&r, sweeper);
    assert_int_equal(sweeper->swept.leaked_bytes, 512);
    use_all_free_memory(&r, owner);
    assert_many(sweeper, "a");
    poll_until_asleep(owner);
    assert_nothing_lost(&r, sweeper);
    close_holders(&r);
}


/* It slept through a sweep, and wakes in one that only counts: what the first would have freed is asked for again. */
static void sleeper_is_not_content_with_a_count(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 10, 2, BY_HAND(0));
    actor *owner = &r.actors[0], *sweeper = &r.actors[1];
    put_many(owner, "a");
    assert_int_equal(call(owner, lose_one, owner), 0);
    poll_until_asleep(owner);
    assert_int_equal(sweep(sweeper, FAR_SWEEP_REPAIR), 0);
    sweeper->mode = FAR_SWEEP_COUNT;
    start_sweep(sweeper);
    stop_at_point(sweeper, "sweep:walk");
    put_now(owner, "b", 300);
    finish_sweep(&r, sweeper);
    assert_int_equal(sweeper->swept.leaked_bytes, 512);
    assert_true(sweep_is_wanted(&r));
    wait_for_sweeps(&r);
    assert_int_equal(leaked(sweeper), 0);
    close_holders(&r);
}


/* A sweep is done, and an owner hears of the next before it has settled it. That one comes to no end: what the first
 * would have found is not forgotten. */
static void a_sweep_that_fails_is_made_up_for(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 14, 2, BY_HAND(0));
    actor *owner = &r.actors[0], *sweeper = &r.actors[1], beside;
    assert_int_equal(far_session_open(owner->pool, &owner->other), 0);
    put_many(owner, "a");
    assert_int_equal(call(owner, lose_one, owner), 0);
    far_addr lost = owner->object;
    poll_until_asleep(owner);
    sweeper->mode = FAR_SWEEP_SLOWLY;
    start_sweep(sweeper);
    stop_at(sweeper, before_done());
    put_now(owner, "b", 300); /* it is awake, and nobody lets it settle */
    finish(sweeper);
    assert_int_equal(sweeper->result, 0);
    assert_false(sweep_is_wanted(&r));
    uint64_t *descriptor = bytes_at(&r, owner->index->descriptor), saved[8];
    memcpy(saved, descriptor, sizeof(saved));
    far_index_close(sweeper->index); /* it opens it for the walk */
    sweeper->index = NULL;
    memset(descriptor, 0x55, sizeof(saved));
    start_sweep(sweeper);
    far_sim_run_for(r.world, 100000);
    beside = *owner;
    start(&beside, "beside", poll_in_other);
    far_sim_run_for(r.world, 20000000);
    assert_int_equal(owner->pool->store->sweep, request_now(&r).sweep);
    for (unsigned i = 0; i < 100 && !far_sim_ended(sweeper->client); i++) {
        assert_int_equal(far_session_call(owner->other, FAR_STATS_OTHER, true, wait_one_epoch, NULL), 0);
        far_sim_run_for(r.world, 1000000);
    }
    assert_int_equal(sweeper->result, FAR_ERR_CORRUPT);
    memcpy(descriptor, saved, sizeof(saved));
    assert_false(is_in_store(owner, lost));
    for (unsigned i = 0; i < 500; i++)
        poll_all(&r, 2000000);
    assert_true(is_in_store(owner, lost));
    assert_int_equal(far_index_open(sweeper->session, "x", &sweeper->index), 0);
    assert_many(sweeper, "a");
    close_holders(&r);
}


/* An index is dropped during the walk, or behind it, which makes a number between the two of the sweep: the sweep does not
 * take it for its own, nor loses its answers; the walk goes on, and others know it. */
static void number_of_a_drop_in_a_sweep(void **state) {
    (void)state;
    for (unsigned behind = 0; behind < 2; behind++) {
        rig r;
        open_settlers(&r, 15 + 100 * behind, 4, 0);
        actor *owner = &r.actors[0], *sweeper = &r.actors[1], *other = &r.actors[2], *dropper = &r.actors[3];
        far_index *y;
        assert_int_equal(far_index_create(dropper->session, "y", "toy", "slots=64", &y), 0);
        uint32_t uid = y->uid;
        far_index_close(y);
        put_many(owner, "a");
        put_now(other, "first", 1);
        assert_int_equal(call(owner, leak, owner), 0);
        start_sweep(sweeper);
        stop_at_point(sweeper, behind ? "sweep:walked" : "sweep:walk");
        far_request before = request_now(&r);
        assert_int_equal(far_index_drop(dropper->session, "y"), 0);
        far_sim_sleep(r.world, 20000000);
        far_request after = request_now(&r);
        assert_true(far_number_is_newer(after.number, before.number));
        assert_true(after.walk && after.sweep == before.sweep && after.sweeper == before.sweeper);
        put_many(other, "a"); /* unlinks what is the owner's */
        for (unsigned i = 0; i < 20; i++) {
            put_now(other, "first", 1);
            far_epoch_request(other->pool);
            far_sim_sleep(r.world, 1000000);
        }
        assert_int_equal(other->pool->store->heard, after.number);
        if (!behind)
            stop_at_point(sweeper, "sweep:walked");
        put_many(other, "b");
        put_many(other, "c");
        finish_sweep(&r, sweeper);
        assert_true(sweeper->swept.leaked_bytes >= 3000);
        assert_int_equal(count_of(&r, dropper, uid), 0);
        use_all_free_memory(&r, owner);
        assert_many(sweeper, "a");
        assert_many(sweeper, "b");
        assert_many(sweeper, "c");
        assert_nothing_lost(&r, owner);
        close_holders(&r);
    }
}


/* ---- Objects that must wait longer ---- */

/* One object, lost, of a type that asks for more epochs. */
static int lose_patient(far_task *t, void *arg) {
    actor *a = arg;
    const far_index_kind *kind = a->index->kind;
    unsigned type = 0;
    while (type + 1 < kind->type_count && kind->types[type].extra_epochs == 0)
        type++;
    assert_true(kind->types[type].extra_epochs > 0);
    far_object object = {0};
    int err = far_pin_take(t);
    if (err == 0)
        err = far_alloc(t, a->index, type, 512, 0, FAR_ALLOC_ON_NODE, &object);
    a->object = object.addr;
    far_pin_drop(t);
    return err;
}


static bool is_retired(const actor *a, far_addr addr) {
    for (unsigned i = 0; i < FAR_QUEUES_MAX; i++) {
        const far_queue *q = &a->pool->team.own->memory->queues[i];
        for (size_t at = 0; at < q->count; at++)
            if (q->items[(q->first + at) % q->capacity].addr == addr)
                return true;
    }
    return false;
}


static uint64_t epochs_retired(actor *a, far_addr addr) {
    uint64_t from = atomic_load(&a->pool->epochs.known);
    assert_true(is_retired(a, addr));
    while (is_retired(a, addr))
        pass_epochs(a, 1);
    return atomic_load(&a->pool->epochs.known) - from;
}


/* Whoever unlinked it may have done so just before it died. Also in the hands of one who has never opened the index: it
 * does not know what its types ask for. */
static void what_a_sweep_finds_waits_as_long_as_its_type_asks(void **state) {
    (void)state;
    for (unsigned known = 0; known < 2; known++) {
        rig r;
        open_settlers(&r, 16 + known, 2, 0);
        actor *owner = &r.actors[0], *sweeper = &r.actors[1];
        far_index_close(owner->index);
        assert_int_equal(far_index_create(owner->session, "d", "dart", NULL, &owner->index), 0);
        assert_int_equal(call(owner, lose_patient, owner), 0);
        far_addr lost = owner->object;
        if (known) {
            hold_blocks(owner, true);
        } else {
            leave(owner);
            assert_int_equal(block_state(&r, sweeper, lost).kind, FAR_BLOCK_ORPHAN);
        }
        assert_int_equal(sweep(sweeper, FAR_SWEEP_REPAIR), 0);
        assert_int_equal(sweeper->swept.leaked_bytes, 512);
        assert_true(epochs_retired(known ? owner : sweeper, lost) >= (known ? 4 : 14)); /* dart's; dolphin's */
        close_holders(&r);
    }
}


/* Retires an object when it has no pin any more: nobody knows since when it is unlinked. */
static int retire_without_pin(far_task *t, void *arg) {
    actor *a = arg;
    int err = lose_one(t, a);
    if (err == 0)
        far_retire(t, a->index, TOY_TYPE_BUCKET, a->object, 512);
    return err;
}


/* Its time begins when it is looked at, and as the epoch that its handle knows may be one behind, with the one after that. */
static void what_is_retired_without_a_pin_waits_one_epoch_longer(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 18, 1, BY_HAND(0));
    actor *a = &r.actors[0];
    put_many(a, "a");
    assert_int_equal(far_session_call(a->pool->team.own, FAR_STATS_OTHER, true, retire_without_pin, a), 0);
    assert_true(epochs_retired(a, a->object) > 6); /* two at each look: without that epoch 6 */
    close_holders(&r);
}


/* ---- Indexes and runs of the same time ---- */

static void create_main(void *arg) {
    actor *a = arg;
    a->result = far_index_create(a->session, "y", a->key, NULL, &a->index);
}


/* It is created, or shown, when the walk has read the catalog: nothing of it was met. */
static void published_in_walk(unsigned seed, const char *kind, bool begun_before) {
    rig r;
    open_settlers(&r, seed, 3, 0);
    actor *creator = &r.actors[0], *sweeper = &r.actors[1];
    far_index *x = creator->index;
    snprintf(creator->key, sizeof(creator->key), "%s", kind);
    start_sweep(sweeper);
    if (begun_before) {
        stop_at_point(sweeper, "sweep:walk");
        start(creator, "creator", create_main);
        stop_at_point(creator, "catalog:publish");
        far_sim_stop_before(sweeper->client, (far_sim_match){.point = "sweep:walked"});
        far_sim_resume(sweeper->client);
        assert_int_equal(far_sim_run_client(sweeper->client), FAR_SIM_STOPPED);
        finish(creator);
    } else {
        stop_at_point(sweeper, "sweep:walked");
        start(creator, "creator", create_main);
        finish(creator);
    }
    assert_int_equal(creator->result, 0);
    finish_sweep(&r, sweeper);
    assert_int_equal(sweeper->swept.leaked_bytes, 0);
    far_sim_sleep(r.world, 50000000);
    assert_true(count_of(&r, sweeper, creator->index->uid) > 0);
    for (unsigned i = 0; i < 100; i++)
        assert_int_equal(far_put(creator->session, creator->index, &i, sizeof(i), &i, sizeof(i)), 0);
    assert_int_equal(far_index_check(creator->session, creator->index, fail_at_problem, NULL), 0);
    world_assert_watch_is_content(r.world);
    far_index_close(x);
    assert_nothing_lost(&r, sweeper);
    close_holders(&r);
}


static void index_published_in_walk(void **state) {
    (void)state;
    static const char *const kinds[] = {"toy", "smart", "dart", "shard"};
    for (unsigned i = 0; i < 8; i++)
        published_in_walk(20 + i, kinds[i / 2], i % 2);
}


/* A value that is a run of blocks, put behind the walker. One that is lost goes, one that is put since stays. */
static void run_made_in_walk(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 30, 2, 0);
    actor *owner = &r.actors[0], *sweeper = &r.actors[1];
    assert_int_equal(call(owner, leak, owner), 0); /* a run among them */
    assert_int_equal(blocks_of_kind(&r, owner, FAR_BLOCK_RUN), 1);
    start_sweep(sweeper);
    stop_at_point(sweeper, "sweep:walked");
    put_now(owner, "a", FAR_VALUE_MAX);
    assert_int_equal(blocks_of_kind(&r, owner, FAR_BLOCK_RUN), 2);
    finish_sweep(&r, sweeper);
    assert_true(sweeper->swept.leaked_bytes > 100000 && sweeper->swept.leaked_bytes < 200000);
    assert_int_equal(blocks_of_kind(&r, owner, FAR_BLOCK_RUN), 1);
    assert_int_equal(far_index_check(owner->session, owner->index, fail_at_problem, NULL), 0);
    assert_nothing_lost(&r, sweeper);
    close_holders(&r);
}


/* The block of a run that was not there before; NULL: of any. */
static far_block_id run_besides(const rig *r, const far_block_id *known) {
    const far_geometry *g = &r->actors[0].pool->geometry;
    far_block_id id = {0, 0};
    for (; id.index < g->node[0].blocks; id.index++)
        if (far_block_unpack(word_at(r, far_block_entry(g, id))).kind == FAR_BLOCK_RUN &&
            (!known || known->index != id.index))
            return id;
    fail_msg("there is no such run");
    return id;
}


static uint64_t harmed(const far_geometry *g, far_block_id id, uint64_t stamp, unsigned how) {
    uint64_t others[] = {0, UINT64_MAX, stamp - 1, far_stamp_sweep(stamp) - 1};
    assert_true(far_stamp_is_sound(g, id, stamp));
    assert_false(far_stamp_is_sound(g, id, others[how]));
    return others[how];
}


/* Two runs that the walk has not met, one that is lost and one that was put behind it, and damage has changed which sweep
 * their makers had heard of. (Without the check of the stamp: the one that is in use is freed.) */
static void a_damaged_stamp_of_a_run_frees_nothing_in_use(void **state) {
    (void)state;
    for (unsigned how = 0; how < 4; how++) {
        rig r;
        static char value[FAR_VALUE_MAX], got[FAR_VALUE_MAX];
        size_t length = 0;
        open_settlers(&r, 31 + how, 2, 0);
        actor *owner = &r.actors[0], *sweeper = &r.actors[1];
        const far_geometry *g = &owner->pool->geometry;
        memset(value, 'a' + (int)how, sizeof(value));
        for (unsigned i = 0; i < 2; i++)
            assert_int_equal(sweep(sweeper, FAR_SWEEP_REPAIR), 0);
        assert_int_equal(call(owner, leak, owner), 0);
        far_block_id lost = run_besides(&r, NULL);
        start_sweep(sweeper);
        stop_at_point(sweeper, "sweep:walked");
        assert_int_equal(far_put(owner->session, owner->index, "a", 1, value, sizeof(value)), 0);
        far_block_id used = run_besides(&r, &lost);
        for (unsigned i = 0; i < 2; i++) {
            uint64_t *stamp = bytes_at(&r, far_block_hint(g, i ? used : lost));
            *stamp = harmed(g, i ? used : lost, *stamp, how);
        }
        finish_sweep(&r, sweeper);
        assert_int_equal(blocks_of_kind(&r, owner, FAR_BLOCK_RUN), 2);
        assert_int_equal(sweep(sweeper, FAR_SWEEP_REPAIR), 0);
        assert_int_equal(blocks_of_kind(&r, owner, FAR_BLOCK_RUN), 1);
        assert_int_equal(far_get(owner->session, owner->index, "a", 1, got, sizeof(got), &length), 0);
        assert_int_equal(length, sizeof(value));
        assert_memory_equal(got, value, sizeof(value));
        assert_nothing_lost(&r, sweeper);
        close_holders(&r);
    }
}


int main(int argc, char **argv) {
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(settle_dropped_by_next_sweep),
        cmocka_unit_test(sleeper_does_not_settle),
        cmocka_unit_test(sleeper_is_not_content_with_a_count),
        cmocka_unit_test(a_sweep_that_fails_is_made_up_for),
        cmocka_unit_test(number_of_a_drop_in_a_sweep),
        cmocka_unit_test(what_a_sweep_finds_waits_as_long_as_its_type_asks),
        cmocka_unit_test(what_is_retired_without_a_pin_waits_one_epoch_longer),
        cmocka_unit_test(index_published_in_walk),
        cmocka_unit_test(run_made_in_walk),
        cmocka_unit_test(a_damaged_stamp_of_a_run_frees_nothing_in_use),
    };
    return cmocka_run_group_tests_name("settle_late", tests, NULL, NULL);
}
