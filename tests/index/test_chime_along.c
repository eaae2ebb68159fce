/* CHIME: inserts of one compute node that wait for one leaf go in together, with that of the task that has locked it. Each
 * gets its own answer, and goes only where it belongs. */
#include "chime_crew.h"
#include "task/session.h"

#define ROOMY "key_size=8,value_size=8,crowd=off"

static stage_actor e; /* one more of a's compute node */

void *__real_far_scratch(far_task *t, size_t bytes);
void *__wrap_far_scratch(far_task *t, size_t bytes);

static const far_session *poor; /* has no memory of its process */


void *__wrap_far_scratch(far_task *t, size_t bytes) {
    return t->session == poor ? NULL : __real_far_scratch(t, bytes);
}


static void up_with_e(const char *options, const char *sim) {
    up_with_d(options, sim);
    memset(&e, 0, sizeof(e));
    e.pool = a->pool;
    e.index = a->index;
    assert_int_equal(far_session_open(e.pool, &e.session), 0);
}


static void down_with_e(void) {
    far_session_close(e.session);
    down_with_d();
}


static uint64_t verbs_of(const stage_actor *by) {
    far_stats stats = stats_of(by);
    return stats.reads + stats.writes + stats.cas + stats.masked_cas + stats.faa;
}


static uint64_t taken_along(void) {
    return chime_state_of(a->index)->counts.inserts_along;
}


/* a stands under the lock with an insert; d and e wait behind it. */
static void stand_with_both(uint64_t key, uint64_t of_d, uint64_t of_e) {
    stand(a, "chime:locked", FAR_OP_INSERT, key, 70);
    begin(&d, FAR_OP_INSERT, of_d, 71);
    begin(&e, FAR_OP_INSERT, of_e, 72);
    far_sim_run_for(s.world, 100000);
    assert_false(d.ended || e.ended);
}


static void finish_all(void) {
    stage_finish(a);
    stage_finish(&d);
    stage_finish(&e);
}


/* One lock for three inserts: d and e have no verb. Fails without chime_take_along in commit_insert; when is_no_heir takes
 * no notice of who is served the lock is handed to d, which has no use for it, and b waits for ever. */
static void inserts_go_in_together(void **state) {
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        up_with_e(ROOMY, sims[i]);
        fill(a, 6);
        assert_true(reads(&d, nth(3), 3) && reads(&e, nth(3), 3));
        uint64_t before = verbs_of(&d) + verbs_of(&e);
        stand_with_both(nth(10), nth(11), nth(12));
        finish_all();
        assert_true(a->result == 0 && d.result == 0 && e.result == 0);
        assert_int_equal(verbs_of(&d) + verbs_of(&e), before);
        assert_int_equal(taken_along(), 2);
        assert_true(reads(c, nth(10), 70) && reads(c, nth(11), 71) && reads(c, nth(12), 72));
        assert_all(c, 0, 6);
        assert_int_equal(update(b, nth(3), 73), 0);
        for (unsigned n = 20; n < 50; n++) /* by the map that they left: no slot of theirs is free in it */
            assert_int_equal(insert(b, nth(n), n), 0);
        assert_true(reads(c, nth(10), 70) && reads(c, nth(11), 71) && reads(c, nth(12), 72));
        down_with_e();
    }
}


/* Of two with one key one is in, and so is a's before d's; what was there before stays. Fails without has_key. */
static void a_key_goes_in_once(void **state) {
    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        uint64_t of_d = i == 0 ? nth(10) : i == 1 ? nth(3) : nth(11), of_e = i == 2 ? nth(11) : nth(12);
        up_with_e(ROOMY, ONE);
        fill(a, 6);
        stand_with_both(nth(10), of_d, of_e);
        finish_all();
        assert_int_equal(a->result, 0);
        if (i < 2) {
            assert_true(d.result == FAR_ERR_EXISTS && e.result == 0);
            assert_true(reads(c, nth(10), 70) && reads(c, nth(3), 3) && reads(c, nth(12), 72));
        } else {
            assert_true((d.result == 0 && e.result == FAR_ERR_EXISTS) || (e.result == 0 && d.result == FAR_ERR_EXISTS));
            assert_true(reads(c, nth(11), d.result == 0 ? 71 : 72));
        }
        assert_int_equal(delete (b, of_d), 0);
        assert_true(misses(c, of_d)); /* there was one of it */
        down_with_e();
    }
}


/* A key from `from` on that finds a free slot near its home in the leaf. */
static uint64_t key_with_room(chime_ptr leaf, uint64_t from) {
    const chime_state *st = chime_state_of(a->index);
    while (chime_free_near(st, memory_of(chime_ptr_addr(leaf)), home_of(from)) < 0)
        from++;
    return from;
}


/* b has split the leaf, which a and its neighbours do not know: all three come to the left half. The verbs that d and e
 * had before. */
static uint64_t come_to_the_left_half(bool a_too, uint64_t keys[3]) {
    up_with_e("key_size=8,value_size=8,span=24,hop=4,crowd=off", ONE);
    fill(a, 3);
    assert_true(reads(&d, nth(2), 2) && reads(&e, nth(2), 2));
    for (unsigned n = 60; chime_state_of(b->index)->counts.splits == 0; n--) /* falling: both halves have room then */
        assert_int_equal(insert(b, nth(n), n), 0);
    settle(b);
    chime_ptr left = leaf_of(nth(0), NULL);
    uint64_t low = key_with_room(left, nth(0) + 1), high = key_with_room(left, nth(70)),
             lower = key_with_room(left, low + 1);
    assert_true(leaf_of(lower, NULL) == left && leaf_of(high, NULL) != left);
    keys[0] = a_too ? high : low;
    keys[1] = a_too ? low : high;
    keys[2] = lower;
    uint64_t verbs = verbs_of(&d) + verbs_of(&e);
    stand_with_both(keys[0], keys[1], keys[2]);
    return verbs;
}


/* d's key lies in the right half, and must not be put in beside a's. Fails without belongs. */
static void an_insert_goes_along_where_it_belongs(void **state) {
    (void)state;
    uint64_t keys[3];
    come_to_the_left_half(false, keys);
    finish_all();
    assert_true(a->result == 0 && d.result == 0 && e.result == 0);
    assert_int_equal(taken_along(), 1);
    for (unsigned i = 0; i < 3; i++)
        assert_true(reads(c, keys[i], 70 + i));
    down_with_e();
}


/* a's own key lies in the right half. It puts in those of d and e, which belong here, before it goes there. Fails without
 * serve_others. */
static void others_are_served_on_the_way(void **state) {
    (void)state;
    uint64_t keys[3];
    uint64_t before = come_to_the_left_half(true, keys);
    finish_all();
    assert_true(a->result == 0 && d.result == 0 && e.result == 0);
    assert_int_equal(taken_along(), 2);
    assert_int_equal(verbs_of(&d) + verbs_of(&e), before);
    for (unsigned i = 0; i < 3; i++)
        assert_true(reads(c, keys[i], 70 + i));
    assert_int_equal(insert(b, keys[0] + 1, 73), 0);
    assert_int_equal(update(b, keys[1], 74), 0);
    down_with_e();
}


/* a splits the leaf, and takes along what belongs to either half. Fails without chime_take_along in build_right, or in
 * publish. */
static void a_split_takes_along(void **state) {
    (void)state;
    unsigned splits = 0;
    for (unsigned right = 0; right < 2; right++) {
        up_with_e("key_size=8,value_size=8,span=24,hop=4,crowd=off", ONE);
        uint64_t crowded = 0;
        for (unsigned n = 0; n < 4; n++) /* a full neighbourhood, of low and high keys */
            assert_int_equal(insert(a, crowded = key_at(8, nth(n * 10)), n), 0);
        for (unsigned n = 0; n < 3; n++) /* nor can it hop */
            assert_int_equal(insert(a, key_at(12, nth(40 + n)), 9), 0);
        for (unsigned n = 0; n < 4; n++)
            assert_int_equal(insert(a, key_at(15, nth(50 + n)), 9), 0);
        assert_true(reads(&d, crowded, 3) && reads(&e, crowded, 3));
        uint64_t before = verbs_of(&d) + verbs_of(&e);
        uint64_t of_d = key_at(1, nth(1)), of_e = key_at(2, nth(60));
        stand_with_both(key_at(8, right ? nth(45) : nth(5)), of_d, of_e);
        finish_all();
        assert_true(a->result == 0 && d.result == 0 && e.result == 0);
        splits += (unsigned)chime_state_of(a->index)->counts.splits;
        assert_true(leaf_of(of_d, NULL) != leaf_of(of_e, NULL));
        assert_int_equal(verbs_of(&d) + verbs_of(&e), before);
        assert_true(reads(c, of_d, 71) && reads(c, of_e, 72));
        down_with_e();
    }
    assert_int_equal(splits, 2);
}


/* a's session is lost over the WRITE that has d's pair in it, done or not: d cannot know, says so, and works on. Fails
 * without chime_insert.lost: d would say that its pair is in. */
static void who_takes_along_is_lost(void **state) {
    (void)state;
    for (unsigned done = 0; done < 2; done++) {
        up_with_e(ROOMY, ONE);
        fill(a, 6);
        chime_ptr leaf = leaf_of(nth(2), NULL);
        far_addr at = chime_ptr_addr(leaf), end = chime_tail_addr(chime_state_of(a->index), leaf, CHIME_TAIL_L) + 8;
        far_sim_match change = {.kind = FAR_SIM_WRITE, .from = done ? end - 8 : at, .to = end};
        stand_with_both(nth(10), nth(11), nth(12));
        far_sim_hold *hold = done ? far_sim_hold_completion(a->client, change) : far_sim_hold_effect(a->client, change);
        far_sim_resume(a->client);
        far_sim_run_client(a->client);
        assert_true(far_sim_reached(hold));
        if (done)
            far_sim_lose(a->session->conn);
        else
            far_sim_declare_dead(s.world, a->session->id, a->session->generation);
        far_sim_release(hold);
        far_sim_run_for(s.world, 300000);
        assert_true(a->ended && a->result < 0);
        stage_finish(&d);
        stage_finish(&e);
        assert_true(d.result == FAR_ERR_UNREACHABLE && e.result == FAR_ERR_UNREACHABLE);
        far_session_close(a->session);
        assert_int_equal(far_session_open(a->pool, &a->session), 0);
        assert_true(done ? reads(c, nth(11), 71) : misses(c, nth(11)));
        assert_true(done ? reads(&d, nth(12), 72) : misses(&d, nth(12)));
        assert_int_equal(insert(&e, nth(13), 73), 0);
        assert_int_equal(update(b, nth(2), 74), 0);
        down_with_e();
    }
}


/* Neighbourhoods of the last slot of a line go on in the next one: of a change that takes inserts along, lines are WRITTEN from
 * a's home downwards, so that the line in which d's pair lies may come behind the one that says so. a's compute node dies at
 * every verb of the change, and after every unit of it. Each pair is in or not, nothing else is lost, others work on. */
static bool dies_along(uint64_t of_a, uint64_t of_d, uint64_t of_e, const uint64_t *filled, unsigned count,
                       unsigned nth, uint32_t units, const char *options) {
    up_with_e(options, ONE);
    for (unsigned i = 0; i < count; i++)
        assert_int_equal(insert(a, filled[i], i), 0);
    settle(a);
    assert_true(reads(&d, filled[0], 0) && reads(&e, filled[0], 0));
    stand_with_both(of_a, of_d, of_e);
    far_sim_kill_at(a->client, (far_sim_match){.kind = FAR_SIM_WRITE, .nth = nth}, units);
    far_sim_resume(a->client);
    far_sim_run_for(s.world, 3000000);
    bool died = far_sim_killed(a->pool->fabric);
    a->died = died;
    if (died) {
        const uint64_t keys[] = {of_a, of_d, of_e};
        for (unsigned i = 0; i < 3; i++) {
            bool in = reads(b, keys[i], 70 + i);
            assert_true(in || misses(b, keys[i]));
            assert_true(in ? reads(c, keys[i], 70 + i) : misses(c, keys[i]));
        }
        for (unsigned i = 0; i < count; i++)
            assert_true(reads(c, filled[i], i));
        for (unsigned i = 0; i < 3; i++) {
            int put = insert(b, keys[i], 90 + i);
            assert_true(put == 0 || put == FAR_ERR_EXISTS);
            assert_true(reads(c, keys[i], put == 0 ? 90 + i : 70 + i));
            assert_int_equal(delete (c, keys[i]), 0);
            assert_true(misses(b, keys[i]));
        }
        for (unsigned i = 0; i < count; i++)
            assert_int_equal(delete (b, filled[i]), 0);
    } else
        finish_all();
    down_with_e();
    return died;
}


static void death_of_who_takes_along(void **state) {
    (void)state;
    unsigned deaths = 0;
    up(ROOMY, ONE);
    const uint64_t lines[] = {key_at(8, nth(1)), key_at(62, nth(2)), key_at(9, nth(3)), key_at(62, nth(20))};
    const uint64_t of_a = key_at(9, nth(10)), of_d = key_at(8, nth(11)), of_e = key_at(62, nth(12));
    stage_close(&s);
    for (uint32_t units = 0; units < 3; units++)
        for (unsigned nth = 1; dies_along(of_a, of_d, of_e, lines, 4, nth, units == 2 ? FAR_SIM_WHOLE : units, ROOMY);
             nth++)
            deaths++;
    print_message("    %u deaths\n", deaths);
    assert_true(deaths >= 9);
}


/* The same of a change that splits the leaf. */
static void death_of_who_splits_and_takes_along(void **state) {
    (void)state;
    static const char options[] = "key_size=8,value_size=8,span=24,hop=4,crowd=off";
    unsigned deaths = 0;
    uint64_t filled[11];
    up(options, ONE);
    for (unsigned n = 0; n < 4; n++)
        filled[n] = key_at(8, nth(n * 10));
    for (unsigned n = 0; n < 3; n++)
        filled[4 + n] = key_at(12, nth(40 + n));
    for (unsigned n = 0; n < 4; n++)
        filled[7 + n] = key_at(15, nth(50 + n));
    const uint64_t of_d = key_at(1, nth(1)), of_e = key_at(2, nth(60));
    const uint64_t of_a[] = {key_at(8, nth(5)), key_at(8, nth(45))};
    stage_close(&s);
    for (unsigned right = 0; right < 2; right++)
        for (uint32_t units = 0; units < 8; units++)
            for (unsigned nth = 1;
                 dies_along(of_a[right], of_d, of_e, filled, 11, nth, units == 7 ? FAR_SIM_WHOLE : units, options);
                 nth++)
                deaths++;
    print_message("    %u deaths\n", deaths);
    assert_true(deaths >= 9);
}


/* A change that came to nothing, for want of memory say, has put in nobody's pair: those who wait for it go on by themselves. Fails
 * when chime_tell_along leaves them served: an insert would say that its pair is in. */
static void who_waits_for_a_change_that_failed(void **state) {
    (void)state;
    static const struct {
        int err;
        bool served, lost;
    } ends[] = {{0, true, false},
                {CHIME_RIGHT, true, false},
                {FAR_ERR_NO_MEMORY, false, false},
                {FAR_ERR_CORRUPT, false, false},
                {FAR_ERR_FENCED, true, true},
                {FAR_ERR_UNREACHABLE, true, true}};
    up(ROOMY, ONE);
    chime_op op = {.st = chime_state_of(a->index)};
    for (unsigned i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        chime_insert second = {.waiting = {.served = true}}, first = {.waiting = {.served = true}, .along = &second},
                     *along = &first;
        uint64_t before = taken_along();
        chime_tell_along(&op, &along, ends[i].err);
        assert_null(along);
        assert_true(first.waiting.served == ends[i].served && second.waiting.served == ends[i].served);
        assert_true(first.lost == ends[i].lost && second.lost == ends[i].lost);
        assert_int_equal(taken_along() - before, ends[i].err >= 0 ? 2 : 0);
    }
    stage_close(&s);
}


/* One who waits for a node that lay at the same address before, or was served by an earlier change of this turn, is none of
 * those that a change may take along. Fails when chime_list_queue compares addresses, or lists those that are served. */
static void only_who_still_waits_for_the_node_is_listed(void **state) {
    (void)state;
    chime_ptr node = chime_ptr_make(4096, 5, 0), earlier = chime_ptr_make(4096, 4, 0);
    chime_waiting third = {.node = node}, second = {.node = node, .served = true, .next = &third},
                  first = {.node = earlier, .next = &second}, *all[3];
    chime_queue queue = {.first = &first};
    assert_int_equal(chime_ptr_addr(node), chime_ptr_addr(earlier));
    assert_int_equal(chime_list_queue(&queue, node, 3, all), 1);
    assert_ptr_equal(all[0], &third);
    assert_int_equal(chime_list_queue(&queue, earlier, 3, all), 1);
    assert_ptr_equal(all[0], &first);
}


/* a finds no memory in its process for the words of a long hop. d, who waits behind it, was to have the lock next. False: it had
 * enough. */
static bool fails_over_a_hop(unsigned n) {
    begin(a, FAR_OP_INSERT, nth(n), n);
    far_sim_stop_before(a->client, (far_sim_match){.point = "chime:hop"});
    if (far_sim_run_client(a->client) != FAR_SIM_STOPPED)
        return false;
    begin(&d, FAR_OP_DELETE, nth(n - 1), 0);
    far_sim_run_for(s.world, 100000);
    assert_false(d.ended);
    far_sim_stop_before(d.client, (far_sim_match){.point = "chime:locked"});
    poor = a->session;
    far_sim_resume(a->client);
    assert_int_equal(far_sim_run_client(a->client), FAR_SIM_ENDED);
    poor = NULL;
    assert_int_equal(far_sim_run_client(d.client), FAR_SIM_STOPPED);
    if (a->result == FAR_ERR_NO_MEMORY)
        return true;
    assert_int_equal(a->result, 0);
    stage_finish(&d);
    assert_int_equal(insert(b, nth(n - 1), n - 1), 0);
    return false;
}


/* The change was not made, and its WRITE of the lock neither: whoever was to have it takes it itself. Fails without op->heir = 0 in
 * try_leaf: d works without the lock. */
static void the_heir_of_a_change_that_failed(void **state) {
    (void)state;
    unsigned n = 1;
    uint64_t *tail;
    up_with_d("key_size=8,value_size=8,span=60,hop=4,crowd=off", ONE ",atomic_bytes=8");
    assert_int_equal(insert(a, nth(0), 0), 0);
    while (!fails_over_a_hop(n))
        n++;
    far_sim_run_for(s.world, 100000); /* a's unlocking is on its way */
    leaf_of(nth(n - 1), &tail);
    assert_true(chime_lock_is_held(tail[CHIME_TAIL_L]));
    stage_finish(&d);
    assert_int_equal(d.result, 0);
    assert_true(misses(b, nth(n - 1)) && misses(b, nth(n)));
    for (unsigned k = 0; k + 1 < n; k++)
        assert_true(reads(b, nth(k), k));
    down_with_d();
}


/* d and e come when a, under the lock, has READ no more than it needs itself: then it does not know the rest of the leaf, and takes
 * nobody along. right: a's own key lies further right. Fails without c->known == st->span in commit_insert, or in serve_others:
 * pairs of others are overwritten. */
static void a_part_of_the_leaf_is_not_enough(void **state) {
    (void)state;
    for (unsigned right = 0; right < 2; right++) {
        up_with_e("key_size=8,value_size=8,span=48,hop=4,crowd=off", ONE);
        assert_true(misses(a, nth(0)) && misses(&d, nth(0)) && misses(&e, nth(0)));
        fill(b, 12);
        for (unsigned n = 400; right && chime_state_of(b->index)->counts.splits == 0; n--)
            assert_int_equal(insert(b, nth(n), n), 0);
        settle(b);
        chime_ptr leaf = leaf_of(nth(0), NULL);
        uint64_t key = right ? nth(500) : nth(0) + 1;
        while (right && leaf_of(key, NULL) == leaf)
            key += nth(1);
        uint64_t others[2], at = chime_ptr_addr(leaf), end = at + chime_state_of(a->index)->node_bytes;
        for (unsigned n = 0, found = 0; found < 2; n++) { /* where a slot that a does not READ is occupied */
            assert_true(n < 12);
            unsigned far = (home_of(nth(n)) + 48 - home_of(key)) % 48;
            if (far > 12 && far < 40)
                others[found++] = key_at(home_of(nth(n)), nth(n) + 1);
        }
        stand(a, "chime:locked", FAR_OP_INSERT, key, 70);
        far_sim_hold *hold =
            far_sim_hold_completion(a->client, (far_sim_match){.kind = FAR_SIM_READ, .from = at, .to = end});
        far_sim_resume(a->client);
        far_sim_run_client(a->client);
        assert_true(far_sim_reached(hold));
        begin(&d, FAR_OP_INSERT, others[0], 71);
        begin(&e, FAR_OP_INSERT, others[1], 72);
        far_sim_run_for(s.world, 100000);
        assert_false(d.ended || e.ended);
        far_sim_release(hold);
        finish_all();
        assert_true(a->result == 0 && d.result == 0 && e.result == 0);
        assert_all(c, 0, 12);
        assert_true(reads(c, key, 70) && reads(c, others[0], 71) && reads(c, others[1], 72));
        down_with_e();
    }
}


/* b waits for a lock that a holds. */
static void wait_behind_a(uint64_t held, uint64_t key) {
    stand(a, "chime:locked", FAR_OP_UPDATE, held, 70);
    begin(b, FAR_OP_INSERT, key, 71);
    far_sim_run_for(s.world, 100000);
    assert_false(b->ended);
    stage_finish(a);
}


/* b waits for the lock of a leaf that it will split, and takes memory meanwhile: under the lock it only READs before it
 * writes the new node. Fails without chime_take_spare. */
static void memory_is_taken_while_waiting(void **state) {
    (void)state;
    uint64_t crowded = 0;
    up("key_size=8,value_size=8,span=24,hop=4", ONE);
    for (unsigned n = 0; n < 4; n++) /* a full neighbourhood */
        assert_int_equal(insert(a, crowded = key_at(8, crowded + 1), n), 0);
    for (unsigned n = 0; n < 3; n++) /* nor can it hop */
        assert_int_equal(insert(a, key_at(12, crowded + 1000 * n), 9), 0);
    for (unsigned n = 0; n < 4; n++)
        assert_int_equal(insert(a, key_at(15, crowded + 1000 * n), 9), 0);
    assert_true(reads(b, crowded, 3));
    wait_behind_a(crowded, key_at(8, crowded + 1));
    stage_stop_at(b, (far_sim_match){.point = "chime:locked"});
    uint64_t start = far_sim_now(s.world);
    stage_stop_at(b, (far_sim_match){.point = "chime:split_begin"});
    assert_true(far_sim_now(s.world) - start < 6000); /* two READs: three would take 7 us */
    stage_finish(b);
    assert_int_equal(b->result, 0);
    assert_true(reads(c, crowded, 70) && reads(c, key_at(8, crowded + 1), 71));
    stage_close(&s);
}


/* b has no use for what it took, forty times. Fails without chime_drop_spare in write_key: 40 nodes are gone, some KB. */
static void memory_of_no_use_is_given_back(void **state) {
    (void)state;
    far_pool_usage before, after;
    up("key_size=8,value_size=8,span=24,hop=4", ONE);
    fill(a, 3);
    for (unsigned i = 0; i <= 40; i++) {
        wait_behind_a(nth(1), nth(2));
        stage_finish(b);
        assert_int_equal(b->result, FAR_ERR_EXISTS);
        if (i == 0)
            assert_int_equal(far_pool_stat(c->session, &before), 0);
    }
    assert_int_equal(far_pool_stat(c->session, &after), 0);
    assert_int_equal(after.used, before.used);
    stage_close(&s);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(inserts_go_in_together),
        cmocka_unit_test(a_key_goes_in_once),
        cmocka_unit_test(an_insert_goes_along_where_it_belongs),
        cmocka_unit_test(others_are_served_on_the_way),
        cmocka_unit_test(a_split_takes_along),
        cmocka_unit_test(who_takes_along_is_lost),
        cmocka_unit_test(death_of_who_takes_along),
        cmocka_unit_test(death_of_who_splits_and_takes_along),
        cmocka_unit_test(who_waits_for_a_change_that_failed),
        cmocka_unit_test(only_who_still_waits_for_the_node_is_listed),
        cmocka_unit_test(the_heir_of_a_change_that_failed),
        cmocka_unit_test(a_part_of_the_leaf_is_not_enough),
        cmocka_unit_test(memory_is_taken_while_waiting),
        cmocka_unit_test(memory_of_no_use_is_given_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
