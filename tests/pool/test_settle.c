/* Settling: owners free in their own blocks what a sweep did not meet, and nothing else. Each test is one story of an
 * object that a careless owner would free although somebody has it, or would never free. */
#include "settle_rig.h"


/* ---- Objects that were handed out since ---- */

/* Handed out and linked when the walk has been everywhere: not marked, but black. From the session's hand and from the
 * store. */
static void black_object_linked_behind_the_walker(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 1, 2, 0);
    actor *owner = &r.actors[0], *sweeper = &r.actors[1];
    put_many(owner, "a");
    assert_int_equal(call(owner, lose_one, owner), 0);
    start_sweep(sweeper);
    stop_at_point(sweeper, "sweep:walked");
    put_many(owner, "b");
    finish_sweep(&r, sweeper);
    assert_int_equal(sweeper->swept.leaked_bytes, 512); /* the lost one alone */
    use_all_free_memory(&r, owner);
    assert_many(sweeper, "a");
    assert_many(sweeper, "b");
    assert_nothing_lost(&r, owner);
    close_holders(&r);
}


static int retire_it(far_task *t, void *arg) {
    actor *a = arg;
    int err = far_pin_take(t);
    if (err == 0)
        far_retire(t, a->index, TOY_TYPE_BUCKET, a->object, 512);
    far_pin_drop(t);
    return err;
}


static bool is_black(const actor *a, far_addr addr) {
    const far_slab *slab = far_slab_at(a->pool->store, addr);
    assert_non_null(slab);
    uint64_t n = (addr - far_slab_base(a->pool->store, slab)) / slab->class->size;
    return slab->black[n / 64] >> n % 64 & 1;
}


/* Unlinked before the walk came to it, and retired after its owner had heard of the sweep: it is not marked, and waits
 * for its epoch. Black, so that the sweep does not free it a second time. */
static void retired_when_the_sweep_was_heard_of(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 40, 2, 0);
    actor *owner = &r.actors[0], *sweeper = &r.actors[1];
    put_many(owner, "a");
    assert_int_equal(call(owner, lose_one, owner), 0);
    start_sweep(sweeper);
    stop_at_point(sweeper, "sweep:walked");
    assert_true(far_is_unsettled(owner->pool->store));
    assert_false(is_black(owner, owner->object));
    assert_int_equal(call(owner, retire_it, owner), 0);
    assert_true(is_black(owner, owner->object));
    finish_sweep(&r, sweeper);
    assert_int_equal(sweeper->swept.leaked_bytes, 0);
    use_all_free_memory(&r, owner);
    assert_many(sweeper, "a");
    assert_nothing_lost(&r, owner);
    close_holders(&r);
}


static int give_up_blocks(far_task *t, void *arg) {
    (void)arg;
    far_memory *m = far_memory_of(t);
    far_mutex_lock(&m->lock);
    far_kept_free(m, true); /* or the block of the reserve would stay */
    far_mutex_unlock(&m->lock);
    int err = far_pin_take(t);
    far_store_enter(t);
    if (err == 0)
        err = far_blocks_orphan(t, FAR_GIVE_UP_AT_END);
    far_store_leave(t);
    far_pin_drop(t);
    return err;
}


static int adopt_orphans(far_task *t, void *arg) {
    (void)arg;
    int err = far_pin_take(t);
    far_store_enter(t);
    if (err == 0)
        err = far_orphans_adopt(t);
    far_store_leave(t);
    far_pin_drop(t);
    return err;
}


/* Its block was another's when it was retired; who retired it adopts that block. No answer waits for it any more: it is own. So it is
 * black, or a sweep that is not settled would free it a second time. */
static void retired_while_its_block_was_anothers(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 41, 2, 0);
    actor *owner = &r.actors[0], *other = &r.actors[1];
    assert_int_equal(call(owner, lose_one, owner), 0);
    assert_int_equal(call(owner, give_up_blocks, owner), 0);
    other->object = owner->object;
    assert_int_equal(call(other, retire_it, other), 0);
    assert_false(far_is_own(other->pool->store, other->object));
    assert_int_equal(call(other, adopt_orphans, other), 0);
    assert_true(is_black(other, other->object));
    assert_nothing_lost(&r, owner);
    close_holders(&r);
}


/* The same in a handle that slept until the walk was over, and wakes before the sweep is done. */
static void black_kept_until_settled(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 2, 2, BY_HAND(0));
    actor *owner = &r.actors[0], *sweeper = &r.actors[1];
    put_many(owner, "a");
    poll_until_asleep(owner);
    start_sweep(sweeper);
    stop_at(sweeper, before_done());
    assert_false(request_now(&r).walk);
    put_many(owner, "b");
    finish_sweep(&r, sweeper);
    assert_int_equal(sweeper->swept.leaked_bytes, 0);
    use_all_free_memory(&r, owner);
    assert_many(sweeper, "a");
    assert_many(sweeper, "b");
    poll_until_asleep(owner);
    assert_nothing_lost(&r, sweeper);
    close_holders(&r);
}


/* A sweep that has been heard of is settled when it is done, not before: there are no marks yet, and what others
 * unlinked is not home. */
static void bits_read_after_done(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 3, 3, 0);
    actor *owner = &r.actors[0], *sweeper = &r.actors[1], *other = &r.actors[2];
    put_many(owner, "a");
    put_now(other, "first", 1);
    start_sweep(sweeper);
    stop_at_point(sweeper, "sweep:walked");
    put_many(other, "a"); /* unlinks them, in blocks of the owner: marked by the walk, or not */
    stop_at(sweeper, before_done());
    uint32_t sweep = request_now(&r).sweep;
    far_sim_sleep(r.world, 20000000);
    put_now(owner, "b", 300); /* it is awake */
    assert_int_equal(owner->pool->store->sweep, sweep);
    assert_int_not_equal(owner->pool->store->settled, sweep);
    finish_sweep(&r, sweeper);
    far_sim_sleep(r.world, 20000000);
    put_now(owner, "b", 300);
    far_sim_sleep(r.world, 5000000);
    assert_false(far_number_is_newer(sweep, owner->pool->store->settled));
    use_all_free_memory(&r, owner);
    assert_many(owner, "a");
    assert_nothing_lost(&r, owner);
    close_holders(&r);
}


/* ---- Blocks that change hands ---- */

/* The owner goes, and leaves objects that are linked, some that are free and a lost one. */
static void leave_orphans(rig *r, actor *a) {
    put_many(a, "o");
    assert_int_equal(call(a, lose_one, a), 0);
    far_addr object = a->object;
    hold_blocks(a, false);
    leave(a);
    a->object = object;
    assert_int_equal(block_state(r, &r->actors[1], object).kind, FAR_BLOCK_ORPHAN);
}


/* Takes the orphan: it needs objects of its class. */
static void adopt_by_use(rig *r, actor *heir, far_addr object) {
    for (char last = 'A'; last <= 'Z' && !far_is_own(heir->pool->store, object); last++)
        put_many(heir, (char[]){'h', last, 0});
    assert_true(far_is_own(heir->pool->store, object));
    assert_int_equal(block_state(r, heir, object).id, heir->pool->team.own->id);
}


/* Adopted during the walk: its black counts from the adoption on, and it is settled with the heir's own blocks. */
static void adopted_before_done(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 4, 3, 0);
    actor *gone = &r.actors[0], *sweeper = &r.actors[1], *heir = &r.actors[2];
    leave_orphans(&r, gone);
    start_sweep(sweeper);
    stop_at_point(sweeper, "sweep:walked");
    adopt_by_use(&r, heir, gone->object);
    finish_sweep(&r, sweeper);
    assert_true(sweeper->swept.leaked_bytes >= 512);
    far_sim_sleep(r.world, 20000000);
    use_all_free_memory(&r, heir);
    assert_many(sweeper, "o");
    assert_many(sweeper, "hA");
    assert_int_equal(leaked(sweeper), 0);
    close_holders(&r);
}


/* Adopted by one who has settled the sweep already, before the sweeper came to it: settled at once. */
static void adopted_after_settling(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 5, 3, 0);
    actor *gone = &r.actors[0], *sweeper = &r.actors[1], *heir = &r.actors[2];
    put_now(heir, "first", 1);
    leave_orphans(&r, gone);
    start_sweep(sweeper);
    stop_at(sweeper, (far_sim_match){.kind = FAR_SIM_WRITE, .from = FAR_SUPER_SWEPT, .to = FAR_SUPER_SWEPT + 8});
    uint32_t sweep = request_now(&r).sweep;
    for (unsigned i = 0; i < 20; i++) { /* it is awake, and hears that the sweep is done */
        put_now(heir, "first", 1);
        far_sim_sleep(r.world, 1000000);
    }
    assert_int_equal(heir->pool->store->settled, sweep);
    adopt_by_use(&r, heir, gone->object);
    finish_sweep(&r, sweeper);
    use_all_free_memory(&r, heir);
    assert_many(sweeper, "o");
    assert_many(sweeper, "hA");
    assert_int_equal(leaked(sweeper), 0);
    close_holders(&r);
}


/* The owner links objects behind the walker, and is closed: nobody knows any more which ones are black. This sweep does
 * not free anything there, the next one does. */
static void orphaned_in_walk_is_void(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 6, 3, 0);
    actor *owner = &r.actors[0], *sweeper = &r.actors[1], *other = &r.actors[2];
    put_many(owner, "a");
    assert_int_equal(call(owner, lose_one, owner), 0);
    start_sweep(sweeper);
    stop_at_point(sweeper, "sweep:walked");
    put_many(owner, "b");
    far_addr object = owner->object;
    hold_blocks(owner, false);
    leave(owner);
    assert_int_equal(block_state(&r, other, object).kind, FAR_BLOCK_ORPHAN);
    uint64_t wanted = word_at(&r, FAR_SUPER_WANTED);
    assert_true(wanted > 0);
    finish_sweep(&r, sweeper);
    assert_true(sweep_is_wanted(&r)); /* the void block */
    put_many(other, "c");
    use_all_free_memory(&r, other);
    assert_many(other, "a");
    assert_many(other, "b");
    wait_for_sweeps(&r);
    use_all_free_memory(&r, other);
    assert_many(other, "a");
    assert_many(other, "b");
    assert_int_equal(leaked(sweeper), 0);
    close_holders(&r);
}


/* A sweep, which both of the others have heard of and settled. */
static void sweep_and_settle(rig *r, actor *sweeper, actor *one, actor *other) {
    put_now(other, "first", 1);
    assert_int_equal(sweep(sweeper, FAR_SWEEP_REPAIR), 0);
    for (unsigned i = 0; i < 20; i++) {
        put_now(other, "first", 1);
        put_now(one, "first", 1);
        far_sim_sleep(r->world, 1000000);
    }
    assert_int_equal(other->pool->store->settled, request_now(r).sweep);
}


/* The owner dies after a sweep, with objects that it linked since. The next sweeper takes its blocks; before that one
 * makes its number, somebody who has settled the last sweep adopts one: the marks of that sweep do not count for it. */
static void disowned_block_is_not_settled_with_old_marks(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 7, 3, 0);
    actor *dead = &r.actors[0], *sweeper = &r.actors[1], *heir = &r.actors[2];
    sweep_and_settle(&r, sweeper, dead, heir);
    put_many(dead, "a");
    remove_now(dead, "a0"); /* room */
    assert_int_equal(call(dead, lose_one, dead), 0);
    far_addr object = bucket_of(&r, dead, "a5");
    far_sim_kill(dead->pool->fabric);
    start_sweep(sweeper);
    stop_at(sweeper,
            (far_sim_match){.kind = FAR_SIM_CAS, .nth = 2, .from = FAR_SUPER_REQUEST, .to = FAR_SUPER_REQUEST + 8});
    assert_int_equal(block_state(&r, heir, object).kind, FAR_BLOCK_ORPHAN);
    adopt_by_use(&r, heir, object);
    use_all_free_memory(&r, heir);
    for (unsigned i = 1; i < MANY; i++) {
        char key[8], value[300];
        snprintf(key, sizeof(key), "a%u", i);
        assert_int_equal(far_get(heir->session, heir->index, key, strlen(key), value, sizeof(value), NULL), 0);
        assert_int_equal((unsigned char)value[0], i + 'a');
    }
    finish_sweep(&r, sweeper);
    assert_many(heir, "hA");
    assert_nothing_lost_by_itself(&r, heir);
    close_holders(&r);
}


/* Damage has changed the stamp of an orphan: which sweep it tells, or where it came from. Whoever adopts the block does
 * not settle it by the marks of a sweep before its objects were linked; a later one finds what is lost there. */
static void damaged_stamp(unsigned seed, uint64_t (*harm)(const far_geometry *g, far_block_id id, uint64_t stamp)) {
    rig r;
    open_settlers(&r, seed, 3, 0);
    actor *gone = &r.actors[0], *sweeper = &r.actors[1], *heir = &r.actors[2];
    const far_geometry *g = &sweeper->pool->geometry;
    sweep_and_settle(&r, sweeper, gone, heir);
    leave_orphans(&r, gone);
    far_block_id id = block_of(heir, gone->object);
    uint64_t *stamp = bytes_at(&r, far_block_stamp(g, id));
    assert_true(far_stamp_is_sound(g, id, *stamp));
    *stamp = harm(g, id, *stamp);
    assert_false(far_stamp_is_sound(g, id, *stamp));
    adopt_by_use(&r, heir, gone->object);
    const far_held *held = far_held_at(heir->pool->store, far_block_base(g, id));
    assert_true(
        far_number_is_newer(held->stamp, heir->pool->store->sweep)); /* of which its last owner may have heard */
    use_all_free_memory(&r, heir);
    assert_many(sweeper, "o");
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(sweep(sweeper, FAR_SWEEP_REPAIR), 0);
    use_all_free_memory(&r, heir);
    assert_many(sweeper, "o");
    assert_int_equal(leaked(sweeper), 0);
    close_holders(&r);
}


static uint64_t all_ones(const far_geometry *g, far_block_id id, uint64_t stamp) {
    (void)g, (void)id, (void)stamp;
    return UINT64_MAX;
}


static uint64_t nothing(const far_geometry *g, far_block_id id, uint64_t stamp) {
    (void)g, (void)id, (void)stamp;
    return 0;
}


static uint64_t an_older_sweep(const far_geometry *g, far_block_id id, uint64_t stamp) {
    for (unsigned bit = 0; bit < 64; bit++)
        assert_false(far_stamp_is_sound(g, id, stamp ^ 1ull << bit));
    return stamp - 1;
}


static uint64_t that_of_another(const far_geometry *g, far_block_id id, uint64_t stamp) {
    id.index++;
    return far_stamp_pack(g, id, far_stamp_sweep(stamp) - 1);
}


static void a_damaged_stamp_frees_nothing_in_use(void **state) {
    (void)state;
    damaged_stamp(42, all_ones);
    damaged_stamp(43, nothing);
    damaged_stamp(44, an_older_sweep);
    damaged_stamp(45, that_of_another);
}


/* ---- Settling that is cut short ---- */

/* It learns of the epoch and of requests, and does nothing with its memory. */
static int wait_one_epoch(far_task *t, void *arg) {
    (void)arg;
    return far_wait_epochs(t, 1);
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


/* An index is dropped during the walk, which makes a number of its own: the walk goes on, and others know it. */
static void number_of_a_drop_in_a_sweep(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 15, 4, 0);
    actor *owner = &r.actors[0], *sweeper = &r.actors[1], *other = &r.actors[2], *dropper = &r.actors[3];
    far_index *y;
    assert_int_equal(far_index_create(dropper->session, "y", "toy", "slots=64", &y), 0);
    far_index_close(y);
    put_many(owner, "a");
    put_now(other, "first", 1);
    start_sweep(sweeper);
    stop_at_point(sweeper, "sweep:walk");
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
    stop_at_point(sweeper, "sweep:walked");
    put_many(other, "b");
    put_many(other, "c");
    finish_sweep(&r, sweeper);
    use_all_free_memory(&r, owner);
    assert_many(sweeper, "a");
    assert_many(sweeper, "b");
    assert_many(sweeper, "c");
    assert_nothing_lost(&r, owner);
    close_holders(&r);
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


int main(int argc, char **argv) {
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(black_object_linked_behind_the_walker),
        cmocka_unit_test(retired_when_the_sweep_was_heard_of),
        cmocka_unit_test(retired_while_its_block_was_anothers),
        cmocka_unit_test(black_kept_until_settled),
        cmocka_unit_test(bits_read_after_done),
        cmocka_unit_test(adopted_before_done),
        cmocka_unit_test(adopted_after_settling),
        cmocka_unit_test(orphaned_in_walk_is_void),
        cmocka_unit_test(disowned_block_is_not_settled_with_old_marks),
        cmocka_unit_test(a_damaged_stamp_frees_nothing_in_use),
        cmocka_unit_test(settle_dropped_by_next_sweep),
        cmocka_unit_test(sleeper_does_not_settle),
        cmocka_unit_test(a_sweep_that_fails_is_made_up_for),
        cmocka_unit_test(number_of_a_drop_in_a_sweep),
        cmocka_unit_test(what_a_sweep_finds_waits_as_long_as_its_type_asks),
        cmocka_unit_test(index_published_in_walk),
        cmocka_unit_test(run_made_in_walk),
    };
    return cmocka_run_group_tests_name("settle", tests, NULL, NULL);
}
