/* Settling: owners free in their own blocks what a sweep did not meet, and nothing else. Each test is one story of an
 * object that a careless owner would free although somebody has it, or would never free. */
#include "pool_rig.h"


/* One memory node; every key has a bucket of its own, nearly. */
static void open_settlers(rig *r, unsigned seed, unsigned count, unsigned by_hand) {
    open_rig_with(r, seed, count, by_hand, "size=4M", 4096);
}


enum { MANY = 60 }; /* more than a session has at hand */


/* The value of a key says which one it is. */
static void put_many(actor *a, const char *prefix) {
    for (unsigned i = 0; i < MANY; i++) {
        char key[16], value[300];
        int length = snprintf(key, sizeof(key), "%s%u", prefix, i);
        memset(value, (int)(i + (unsigned char)prefix[0]), sizeof(value));
        assert_int_equal(far_put(a->session, a->index, key, (size_t)length, value, sizeof(value)), 0);
    }
    hold_blocks(a, true);
}


static void assert_many(actor *a, const char *prefix) {
    for (unsigned i = 0; i < MANY; i++) {
        char key[16], value[300];
        size_t got = 0;
        int length = snprintf(key, sizeof(key), "%s%u", prefix, i);
        assert_int_equal(far_get(a->session, a->index, key, (size_t)length, value, sizeof(value), &got), 0);
        assert_int_equal(got, sizeof(value));
        for (unsigned k = 0; k < sizeof(value); k++)
            assert_int_equal((unsigned char)value[k], (i + (unsigned char)prefix[0]) & 0xff);
    }
}


/* Whoever finds free memory uses it: what was freed wrongly is overwritten. */
static void use_all_free_memory(rig *r, actor *a) {
    for (unsigned round = 0; round < 3; round++) {
        char prefix[4];
        snprintf(prefix, sizeof(prefix), "z%u", round);
        put_many(a, prefix);
    }
    world_assert_watch_is_content(r->world);
}


/* Runs the sweeper to its end while those without housekeeping are polled. */
static void finish_sweep(rig *r, actor *sweeper) {
    far_sim_resume(sweeper->client);
    for (unsigned i = 0; i < 5000 && !far_sim_ended(sweeper->client); i++) {
        for (unsigned k = 0; k < r->count; k++) {
            actor *a = &r->actors[k];
            if (a != sweeper && a->pool && a->pool->options.no_thread && !far_sim_killed(a->pool->fabric))
                far_pool_poll(a->pool);
        }
        far_sim_run_for(r->world, 100000);
    }
    assert_true(far_sim_ended(sweeper->client));
    assert_int_equal(sweeper->result, 0);
}


static far_sim_match before_done(void) {
    return (far_sim_match){.kind = FAR_SIM_WRITE, .from = FAR_SUPER_DONE, .to = FAR_SUPER_DONE + 8};
}


/* One object that is lost: linked nowhere, held by nobody. */
static int lose_one(far_task *t, void *arg) {
    actor *a = arg;
    far_object object = {0};
    int err = far_pin_take(t);
    if (err == 0)
        err = far_alloc(t, a->index, TOY_TYPE_BUCKET, 512, 0, FAR_ALLOC_ON_NODE, &object);
    a->object = object.addr;
    far_pin_drop(t);
    return err;
}


static bool is_in_store(const actor *a, far_addr addr) {
    const far_slab *slab = far_slab_at(a->pool->store, addr);
    assert_non_null(slab);
    uint64_t n = (addr - far_slab_base(a->pool->store, slab)) / slab->class->size;
    return slab->in_store[n / 64] >> n % 64 & 1;
}


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


/* The owner dies after a sweep, with objects that it linked since. The next sweeper takes its blocks; before that one
 * makes its number, somebody who has settled the last sweep adopts one: the marks of that sweep do not count for it. */
static void disowned_block_is_not_settled_with_old_marks(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 7, 3, 0);
    actor *dead = &r.actors[0], *sweeper = &r.actors[1], *heir = &r.actors[2];
    put_now(heir, "first", 1);
    assert_int_equal(sweep(sweeper, FAR_SWEEP_REPAIR), 0);
    for (unsigned i = 0; i < 20; i++) {
        put_now(heir, "first", 1);
        put_now(dead, "first", 1);
        far_sim_sleep(r.world, 1000000);
    }
    assert_int_equal(heir->pool->store->settled, request_now(&r).sweep);
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


/* ---- What sessions keep ---- */

static int keep_one(far_task *t, void *arg) {
    actor *a = arg;
    far_object object = {0};
    int err = far_pin_take(t);
    if (err == 0)
        err = far_alloc(t, a->index, TOY_TYPE_BUCKET, 512, FAR_NODE_ANY, FAR_ALLOC_KEEP, &object);
    a->object = object.addr;
    if (err == 0)
        err = far_write_word(t, a->object, 0x6b657074);
    far_pin_drop(t);
    return err;
}


/* The objects of its reserve and one that it keeps are linked nowhere. */
static void reserve_survives_sweep(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 10, 2, 0);
    actor *owner = &r.actors[0], *sweeper = &r.actors[1];
    put_many(owner, "a");
    assert_int_equal(call(owner, keep_one, owner), 0);
    uint32_t kept = owner->session->memory->kept_count;
    assert_true(kept > 1 && owner->session->memory->reserves == kept - 1);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(sweep(sweeper, FAR_SWEEP_REPAIR), 0);
        assert_int_equal(sweeper->swept.leaked_bytes, 0);
        put_now(owner, "b", 300);
    }
    assert_int_equal(owner->session->memory->kept_count, kept);
    use_all_free_memory(&r, owner);
    assert_int_equal(word_at(&r, owner->object), 0x6b657074);
    assert_nothing_lost(&r, sweeper);
    close_holders(&r);
}


static int use_some(far_task *t, void *arg) {
    actor *a = arg;
    far_object objects[40];
    int err = far_pin_take(t);
    for (unsigned i = 0; i < 40 && err == 0; i++)
        err = far_alloc(t, a->index, TOY_TYPE_BUCKET, 512, FAR_NODE_ANY, 0, &objects[i]);
    for (unsigned i = 0; i < 40 && err == 0; i++)
        far_free(t, a->index, TOY_TYPE_BUCKET, objects[i].addr, 512);
    far_pin_drop(t);
    return err;
}


static int keep_wiped(far_task *t, void *arg) {
    actor *a = arg;
    far_object object = {0};
    int err = far_pin_take(t);
    far_point(t, "test:pinned");
    if (err == 0)
        err = far_alloc(t, a->index, TOY_TYPE_BUCKET, 512, FAR_NODE_ANY, FAR_ALLOC_KEEP | FAR_ALLOC_ZERO, &object);
    a->object = object.addr;
    far_pin_drop(t);
    return err;
}


static void keep_wiped_main(void *arg) {
    actor *a = arg;
    a->result = call(a, keep_wiped, a);
}


/* It has the object, and wipes it before it keeps it; meanwhile its handle hears of a sweep. */
static void what_is_about_to_be_kept_survives_sweep(void **state) {
    (void)state;
    rig r;
    open_settlers(&r, 13, 2, 0);
    actor *owner = &r.actors[0], *sweeper = &r.actors[1];
    put_many(owner, "a");
    assert_int_equal(call(owner, use_some, owner), 0); /* so that there are used ones */
    start(owner, "keeper", keep_wiped_main);
    stop_at_point(owner, "test:pinned");
    stop_at(owner, (far_sim_match){.kind = FAR_SIM_WRITE});
    start_sweep(sweeper);
    far_sim_run_for(r.world, 20000000);
    assert_int_equal(owner->pool->store->sweep, request_now(&r).sweep);
    assert_true(far_is_unsettled(owner->pool->store));
    finish(owner);
    assert_int_equal(owner->result, 0);
    finish_sweep(&r, sweeper);
    assert_int_equal(sweeper->swept.leaked_bytes, 0);
    memset(bytes_at(&r, owner->object), 0x6b, 512);
    use_all_free_memory(&r, owner);
    for (unsigned i = 0; i < 512; i++)
        assert_int_equal(((uint8_t *)bytes_at(&r, owner->object))[i], 0x6b);
    assert_nothing_lost(&r, sweeper);
    close_holders(&r);
}


/* A session is lost, and closed: what it kept others may need, to finish what it left half done. That is not handed out
 * before a sweep. Nor when its index is closed. */
static void what_a_lost_session_kept_is_left_to_a_sweep(void **state) {
    (void)state;
    for (unsigned closed = 0; closed < 2; closed++) {
        rig r;
        open_settlers(&r, 18 + closed, 2, BY_HAND(0));
        actor *a = &r.actors[0], *sweeper = &r.actors[1];
        assert_int_equal(far_session_open(a->pool, &a->other), 0);
        put_many(a, "a");
        assert_int_equal(far_session_call(a->other, FAR_STATS_OTHER, true, keep_one, a), 0);
        assert_int_equal(far_sim_declare_dead(r.world, a->other->id, a->other->generation), 1);
        far_session_lose(a->other, FAR_ERR_FENCED);
        if (closed) {
            far_index_close(a->index);
            pass_epochs(a, 2);
            assert_int_equal(far_index_open(a->session, "x", &a->index), 0);
        } else {
            far_session_close(a->other);
            a->other = NULL;
        }
        use_all_free_memory(&r, a);
        assert_int_equal(word_at(&r, a->object), 0x6b657074);
        assert_false(is_in_store(a, a->object));
        for (unsigned i = 0; i < 400 && !is_in_store(a, a->object); i++) {
            put_now(a, "b", 300);
            poll_all(&r, 2000000);
        }
        assert_true(is_in_store(a, a->object));
        assert_many(sweeper, "a");
        close_holders(&r);
    }
}


/* Its process was stopped while it slept, with objects that it keeps: nobody waits for it, nobody takes them; what is
 * lost in its blocks is found when it goes on, or dies. */
static void stopped_asleep_with_kept(void **state) {
    (void)state;
    for (unsigned dies = 0; dies < 2; dies++) {
        rig r;
        open_settlers(&r, 11 + dies, 2, BY_HAND(0));
        actor *stopped = &r.actors[0], *sweeper = &r.actors[1];
        put_many(stopped, "a");
        assert_int_equal(call(stopped, lose_one, stopped), 0);
        far_addr lost = stopped->object;
        assert_int_equal(call(stopped, keep_one, stopped), 0);
        poll_until_asleep(stopped);
        for (unsigned i = 0; i < 3; i++) {
            assert_int_equal(sweep(sweeper, FAR_SWEEP_REPAIR), 0);
            assert_int_equal(sweeper->swept.leaked_bytes, 0);
            use_all_free_memory(&r, sweeper);
        }
        assert_int_equal(word_at(&r, stopped->object), 0x6b657074);
        assert_int_equal(block_state(&r, sweeper, lost).id, stopped->pool->team.own->id);
        if (dies) {
            far_sim_kill(stopped->pool->fabric);
            assert_nothing_lost_by_itself(&r, sweeper);
        } else {
            for (unsigned i = 0; i < 400; i++)
                poll_all(&r, 1000000);
            assert_int_equal(word_at(&r, stopped->object), 0x6b657074);
            put_now(stopped, "b", 300);
            poll_until_asleep(stopped);
            assert_int_equal(leaked(sweeper), 0);
        }
        assert_many(sweeper, "a");
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


/* ---- Deaths ---- */

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
        cmocka_unit_test(black_object_linked_behind_the_walker),
        cmocka_unit_test(black_kept_until_settled),
        cmocka_unit_test(bits_read_after_done),
        cmocka_unit_test(adopted_before_done),
        cmocka_unit_test(adopted_after_settling),
        cmocka_unit_test(orphaned_in_walk_is_void),
        cmocka_unit_test(disowned_block_is_not_settled_with_old_marks),
        cmocka_unit_test(settle_dropped_by_next_sweep),
        cmocka_unit_test(sleeper_does_not_settle),
        cmocka_unit_test(a_sweep_that_fails_is_made_up_for),
        cmocka_unit_test(number_of_a_drop_in_a_sweep),
        cmocka_unit_test(what_a_sweep_finds_waits_as_long_as_its_type_asks),
        cmocka_unit_test(reserve_survives_sweep),
        cmocka_unit_test(what_is_about_to_be_kept_survives_sweep),
        cmocka_unit_test(what_a_lost_session_kept_is_left_to_a_sweep),
        cmocka_unit_test(stopped_asleep_with_kept),
        cmocka_unit_test(index_published_in_walk),
        cmocka_unit_test(run_made_in_walk),
        cmocka_unit_test(dead_during_walk_is_swept_again),
        cmocka_unit_test(late_faa_of_the_fenced),
        cmocka_unit_test(lost_session_of_a_live_handle),
        cmocka_unit_test(what_a_fenced_session_takes_in_a_sweep_is_found_by_the_next),
        cmocka_unit_test(a_run_is_wiped_by_one_alone),
        cmocka_unit_test(a_run_that_a_lost_session_wiped_is_finished),
        cmocka_unit_test(a_sweep_in_parts_covers_what_was_lost_before),
        cmocka_unit_test(idle_handles_notice),
        cmocka_unit_test(walks_per_sweep_are_one),
        cmocka_unit_test(a_slab_that_a_lost_session_cut_is_found_when_its_block_is_given_up),
    };
    return cmocka_run_group_tests_name("settle", tests, NULL, NULL);
}
