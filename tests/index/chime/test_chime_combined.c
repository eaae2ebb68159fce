/* CHIME, combined inserts. If several tasks of one compute node insert into one leaf, they wait for the leaf's latch,
 * and the task that holds the leaf's lock also stores the pairs of the waiting tasks. Each insert gets its own result,
 * and is written only into the leaf to which it belongs.
 *
 * Clients A (a), B (b) and C (c) are three compute nodes. D (d) and E (e) are further sessions of A's compute node. */
#include "chime_sessions.h"
#include "task/session.h"
#include "test.h"

#define ROOMY "key_size=8,value_size=8,crowd=off"

static stage_actor e; /* client E, a further session of A's compute node */

void *__real_far_scratch(far_task *t, size_t bytes);
void *__wrap_far_scratch(far_task *t, size_t bytes);

static const far_session *session_without_memory; /* a session in which far_scratch fails, as if there were no memory */


void *__wrap_far_scratch(far_task *t, size_t bytes) {
    return t->session == session_without_memory ? NULL : __real_far_scratch(t, bytes);
}


static void open_with_e(const char *options, const char *sim) {
    open_with_d(options, sim);
    memset(&e, 0, sizeof(e));
    e.pool = a->pool;
    e.index = a->index;
    assert_int_equal(far_session_open(e.pool, &e.session), 0);
}


static void close_with_e(void) {
    far_session_close(e.session);
    close_with_d();
}


static uint64_t verbs_of(const stage_actor *by) {
    far_stats stats = stats_of(by);
    return stats.reads + stats.writes + stats.cas + stats.masked_cas + stats.faa;
}


static uint64_t count_combined_inserts(void) {
    return chime_state_of(a->index)->counts.combined_inserts;
}


/* Stops A while it holds the lock of the leaf, before A writes its insert. Then D and E start inserts and wait for the
 * latch of the leaf. */
static void stop_a_with_waiters(uint64_t key, uint64_t of_d, uint64_t of_e) {
    run_until_point(a, "chime:locked", FAR_OP_INSERT, key, 70);
    start_operation(&d, FAR_OP_INSERT, of_d, 71);
    start_operation(&e, FAR_OP_INSERT, of_e, 72);
    far_sim_run_for(s.world, 100000);
    assert_false(d.ended || e.ended);
}


static void finish_all(void) {
    stage_finish(a);
    stage_finish(&d);
    stage_finish(&e);
}


/* Proves that A stores the pairs of three inserts under one lock, so D and E send no verb. Steps: A holds the lock with
 * an insert; D and E wait; A finishes. Fails without chime_combine_inserts in commit_insert (write.c). Also fails if
 * task_needs_no_lock (write_lock.c) ignores `served`: A hands the lock over to D, but D's insert is done and D does not
 * use the lock, so B waits forever. */
TEST(waiting_inserts_are_combined) {
    for (unsigned i = 0; i < 2; i++) {
        open_with_e(ROOMY, fabrics[i]);
        insert_keys(a, 6);
        assert_true(key_has_value(&d, nth_key(3), 3) && key_has_value(&e, nth_key(3), 3));
        uint64_t before = verbs_of(&d) + verbs_of(&e);
        stop_a_with_waiters(nth_key(10), nth_key(11), nth_key(12));
        finish_all();
        assert_true(a->result == 0 && d.result == 0 && e.result == 0);
        assert_int_equal(verbs_of(&d) + verbs_of(&e), before);
        assert_int_equal(count_combined_inserts(), 2);
        assert_true(key_has_value(c, nth_key(10), 70) && key_has_value(c, nth_key(11), 71) &&
                    key_has_value(c, nth_key(12), 72));
        assert_keys_present(c, 0, 6);
        assert_int_equal(update(b, nth_key(3), 73), 0);
        /* If the occupancy map that A has written showed the slots of D's and E's keys as free, these inserts would
         * overwrite them. */
        for (unsigned n = 20; n < 50; n++)
            assert_int_equal(insert(b, nth_key(n), n), 0);
        assert_true(key_has_value(c, nth_key(10), 70) && key_has_value(c, nth_key(11), 71) &&
                    key_has_value(c, nth_key(12), 72));
        close_with_e();
    }
}


/* Proves that a combined key is inserted at most once. There are three cases: D inserts the same key as A; D's key was
 * present before; D and E insert the same key. In each case only one insert of the key succeeds. Fails without
 * leaf_has_key (write_queue.c). */
TEST(a_combined_key_is_inserted_once) {
    for (unsigned i = 0; i < 3; i++) {
        uint64_t of_d = i == 0   ? nth_key(10)
                        : i == 1 ? nth_key(3)
                                 : nth_key(11),
                 of_e = i == 2 ? nth_key(11) : nth_key(12);
        open_with_e(ROOMY, ONE);
        insert_keys(a, 6);
        stop_a_with_waiters(nth_key(10), of_d, of_e);
        finish_all();
        assert_int_equal(a->result, 0);
        if (i < 2) {
            assert_true(d.result == FAR_ERR_EXISTS && e.result == 0);
            assert_true(key_has_value(c, nth_key(10), 70) && key_has_value(c, nth_key(3), 3) &&
                        key_has_value(c, nth_key(12), 72));
        } else {
            assert_true((d.result == 0 && e.result == FAR_ERR_EXISTS) || (e.result == 0 && d.result == FAR_ERR_EXISTS));
            assert_true(key_has_value(c, nth_key(11), d.result == 0 ? 71 : 72));
        }
        assert_int_equal(delete (b, of_d), 0);
        assert_true(key_is_absent(c, of_d)); /* The delete has removed the only copy of D's key. */
        close_with_e();
    }
}


/* Returns the first key from `from` on that finds a free slot in its neighbourhood in the leaf. */
static uint64_t key_with_room(chime_ptr leaf, uint64_t from) {
    const chime_state *st = chime_state_of(a->index);
    while (chime_find_free_near_home(st, memory_of(chime_ptr_addr(leaf)), home_slot_of(from)) < 0)
        from++;
    return from;
}


/* B splits the leaf, and the cache of A's compute node does not contain the new right half yet. Then A, D and E start
 * inserts, which all reach the left half. By default A's key belongs to the left half and D's key to the right half;
 * with `a_too` it is the other way round. E's key always belongs to the left half. Returns the number of verbs that D
 * and E had sent before these inserts. */
static uint64_t start_on_outdated_left_half(bool a_too, uint64_t keys[3]) {
    open_with_e("key_size=8,value_size=8,span=24,hop=4,crowd=off", ONE);
    insert_keys(a, 3);
    assert_true(key_has_value(&d, nth_key(2), 2) && key_has_value(&e, nth_key(2), 2));
    /* Keys that are inserted in descending order leave free slots in both halves of the split leaf. */
    for (unsigned n = 60; chime_state_of(b->index)->counts.splits == 0; n--)
        assert_int_equal(insert(b, nth_key(n), n), 0);
    run_background_work(b);
    chime_ptr left = find_leaf(nth_key(0), NULL);
    uint64_t low = key_with_room(left, nth_key(0) + 1), high = key_with_room(left, nth_key(70)),
             lower = key_with_room(left, low + 1);
    assert_true(find_leaf(lower, NULL) == left && find_leaf(high, NULL) != left);
    keys[0] = a_too ? high : low;
    keys[1] = a_too ? low : high;
    keys[2] = lower;
    uint64_t verbs = verbs_of(&d) + verbs_of(&e);
    stop_a_with_waiters(keys[0], keys[1], keys[2]);
    return verbs;
}


/* A's cache is outdated, so D waits at the left half of a split leaf although its key belongs to the right half. Proves
 * that D's pair is not stored in the left half together with A's pair. Fails without key_is_in_range (write_queue.c).
 */
TEST(an_insert_is_combined_only_in_its_leaf) {
    uint64_t keys[3];
    start_on_outdated_left_half(false, keys);
    finish_all();
    assert_true(a->result == 0 && d.result == 0 && e.result == 0);
    assert_int_equal(count_combined_inserts(), 1);
    for (unsigned i = 0; i < 3; i++)
        assert_true(key_has_value(c, keys[i], 70 + i));
    close_with_e();
}


/* A has locked the left half of a split leaf, but its own key belongs to the right half. Proves that A stores the pairs
 * of D and E, which belong to the left half, before it moves right. Fails without insert_for_waiters (write.c). */
TEST(waiters_are_served_before_a_move_right) {
    uint64_t keys[3];
    uint64_t before = start_on_outdated_left_half(true, keys);
    finish_all();
    assert_true(a->result == 0 && d.result == 0 && e.result == 0);
    assert_int_equal(count_combined_inserts(), 2);
    assert_int_equal(verbs_of(&d) + verbs_of(&e), before);
    for (unsigned i = 0; i < 3; i++)
        assert_true(key_has_value(c, keys[i], 70 + i));
    assert_int_equal(insert(b, keys[0] + 1, 73), 0);
    assert_int_equal(update(b, keys[1], 74), 0);
    close_with_e();
}


/* Proves that A splits the leaf and inserts the waiting keys into both halves. Fails without chime_combine_inserts in
 * build_right or in batch_left_node (restructure_split.c). */
TEST(a_split_combines_waiting_inserts) {
    unsigned splits = 0;
    for (unsigned right = 0; right < 2; right++) {
        open_with_e("key_size=8,value_size=8,span=24,hop=4,crowd=off", ONE);
        uint64_t crowded = 0;
        /* These four keys, small and large ones, fill the neighbourhood of home slot 8. */
        for (unsigned n = 0; n < 4; n++)
            assert_int_equal(insert(a, crowded = key_with_home_slot(8, nth_key(n * 10)), n), 0);
        for (unsigned n = 0; n < 3; n++) /* These keys make every hop impossible. */
            assert_int_equal(insert(a, key_with_home_slot(12, nth_key(40 + n)), 9), 0);
        for (unsigned n = 0; n < 4; n++)
            assert_int_equal(insert(a, key_with_home_slot(15, nth_key(50 + n)), 9), 0);
        assert_true(key_has_value(&d, crowded, 3) && key_has_value(&e, crowded, 3));
        uint64_t before = verbs_of(&d) + verbs_of(&e);
        uint64_t of_d = key_with_home_slot(1, nth_key(1)), of_e = key_with_home_slot(2, nth_key(60));
        stop_a_with_waiters(key_with_home_slot(8, right ? nth_key(45) : nth_key(5)), of_d, of_e);
        finish_all();
        assert_true(a->result == 0 && d.result == 0 && e.result == 0);
        splits += (unsigned)chime_state_of(a->index)->counts.splits;
        assert_true(find_leaf(of_d, NULL) != find_leaf(of_e, NULL));
        assert_int_equal(verbs_of(&d) + verbs_of(&e), before);
        assert_true(key_has_value(c, of_d, 71) && key_has_value(c, of_e, 72));
        close_with_e();
    }
    assert_int_equal(splits, 2);
}


/* A's session is lost during the WRITE that contains D's insert. If `done` is set, that WRITE took effect. Proves that
 * D's insert then fails with FAR_ERR_UNREACHABLE, because D cannot know the outcome, and that D can continue. Fails
 * without chime_insert.outcome_unknown: D would report success. */
TEST(a_session_that_combines_is_lost) {
    for (unsigned done = 0; done < 2; done++) {
        open_with_e(ROOMY, ONE);
        insert_keys(a, 6);
        chime_ptr leaf = find_leaf(nth_key(2), NULL);
        far_addr at = chime_ptr_addr(leaf), end = chime_tail_addr(chime_state_of(a->index), leaf, CHIME_TAIL_L) + 8;
        far_sim_match change = {.kind = FAR_SIM_WRITE, .from = done ? end - 8 : at, .to = end};
        stop_a_with_waiters(nth_key(10), nth_key(11), nth_key(12));
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
        assert_true(done ? key_has_value(c, nth_key(11), 71) : key_is_absent(c, nth_key(11)));
        assert_true(done ? key_has_value(&d, nth_key(12), 72) : key_is_absent(&d, nth_key(12)));
        assert_int_equal(insert(&e, nth_key(13), 73), 0);
        assert_int_equal(update(b, nth_key(2), 74), 0);
        close_with_e();
    }
}


/* A's compute node fails at a WRITE of a change that contains inserts of D and E, after `units` units of that WRITE.
 * Proves that afterwards each of the three keys is either present or absent, no other key is lost, and B and C can work
 * on.
 *
 * The changed lines are written downwards from A's home slot, so the line that contains D's item may be written after
 * the line with the hop bitmap that names it. `filled` are the keys that are present before. Returns false if the
 * change has fewer WRITEs. */
static bool combined_change_survives_failure(uint64_t of_a, uint64_t of_d, uint64_t of_e, const uint64_t *filled,
                                             unsigned count, unsigned verb, uint32_t units, const char *options) {
    open_with_e(options, ONE);
    for (unsigned i = 0; i < count; i++)
        assert_int_equal(insert(a, filled[i], i), 0);
    run_background_work(a);
    assert_true(key_has_value(&d, filled[0], 0) && key_has_value(&e, filled[0], 0));
    stop_a_with_waiters(of_a, of_d, of_e);
    far_sim_kill_at(a->client, (far_sim_match){.kind = FAR_SIM_WRITE, .nth = verb}, units);
    far_sim_resume(a->client);
    far_sim_run_for(s.world, 3000000);
    bool died = far_sim_killed(a->pool->fabric);
    a->died = died;
    if (died) {
        const uint64_t keys[] = {of_a, of_d, of_e};
        for (unsigned i = 0; i < 3; i++) {
            bool in = key_has_value(b, keys[i], 70 + i);
            assert_true(in || key_is_absent(b, keys[i]));
            assert_true(in ? key_has_value(c, keys[i], 70 + i) : key_is_absent(c, keys[i]));
        }
        for (unsigned i = 0; i < count; i++)
            assert_true(key_has_value(c, filled[i], i));
        for (unsigned i = 0; i < 3; i++) {
            int put = insert(b, keys[i], 90 + i);
            assert_true(put == 0 || put == FAR_ERR_EXISTS);
            assert_true(key_has_value(c, keys[i], put == 0 ? 90 + i : 70 + i));
            assert_int_equal(delete (c, keys[i]), 0);
            assert_true(key_is_absent(b, keys[i]));
        }
        for (unsigned i = 0; i < count; i++)
            assert_int_equal(delete (b, filled[i]), 0);
    } else
        finish_all();
    close_with_e();
    return died;
}


TEST(a_failure_during_a_combined_change) {
    unsigned deaths = 0;
    open_chime(ROOMY, ONE);
    const uint64_t lines[] = {key_with_home_slot(8, nth_key(1)), key_with_home_slot(62, nth_key(2)),
                              key_with_home_slot(9, nth_key(3)), key_with_home_slot(62, nth_key(20))};
    const uint64_t of_a = key_with_home_slot(9, nth_key(10)), of_d = key_with_home_slot(8, nth_key(11)),
                   of_e = key_with_home_slot(62, nth_key(12));
    stage_close(&s);
    for (uint32_t units = 0; units < 3; units++)
        for (unsigned verb = 1; combined_change_survives_failure(of_a, of_d, of_e, lines, 4, verb,
                                                                 units == 2 ? FAR_SIM_WHOLE : units, ROOMY);
             verb++)
            deaths++;
    print_message("    %u deaths\n", deaths);
    assert_true(deaths >= 9);
}


/* Proves the same as a_failure_during_a_combined_change, for a change that splits the leaf. */
TEST(a_failure_during_a_split_that_combines) {
    static const char options[] = "key_size=8,value_size=8,span=24,hop=4,crowd=off";
    unsigned deaths = 0;
    uint64_t filled[11];
    open_chime(options, ONE);
    for (unsigned n = 0; n < 4; n++)
        filled[n] = key_with_home_slot(8, nth_key(n * 10));
    for (unsigned n = 0; n < 3; n++)
        filled[4 + n] = key_with_home_slot(12, nth_key(40 + n));
    for (unsigned n = 0; n < 4; n++)
        filled[7 + n] = key_with_home_slot(15, nth_key(50 + n));
    const uint64_t of_d = key_with_home_slot(1, nth_key(1)), of_e = key_with_home_slot(2, nth_key(60));
    const uint64_t of_a[] = {key_with_home_slot(8, nth_key(5)), key_with_home_slot(8, nth_key(45))};
    stage_close(&s);
    for (unsigned right = 0; right < 2; right++)
        for (uint32_t units = 0; units < 8; units++)
            for (unsigned verb = 1; combined_change_survives_failure(of_a[right], of_d, of_e, filled, 11, verb,
                                                                     units == 7 ? FAR_SIM_WHOLE : units, options);
                 verb++)
                deaths++;
    print_message("    %u deaths\n", deaths);
    assert_true(deaths >= 9);
}


/* Proves that if a change fails, for example for lack of memory, the inserts that it includes are not marked as served,
 * so their tasks try again. Only if the session was lost, they are marked as served with an unknown outcome. Fails if
 * chime_report_combined_inserts (write_queue.c) leaves them marked as served: an insert would report success for a pair
 * that is not stored. */
TEST(waiters_of_a_failed_change_retry) {
    static const struct {
        int err;
        bool served, outcome_unknown;
    } ends[] = {{0, true, false},
                {CHIME_RIGHT, true, false},
                {FAR_ERR_NO_MEMORY, false, false},
                {FAR_ERR_CORRUPT, false, false},
                {FAR_ERR_FENCED, true, true},
                {FAR_ERR_UNREACHABLE, true, true}};
    open_chime(ROOMY, ONE);
    chime_op op = {.st = chime_state_of(a->index)};
    for (unsigned i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        chime_insert second = {.waiter = {.served = true}},
                     first = {.waiter = {.served = true}, .next_combined = &second}, *along = &first;
        uint64_t before = count_combined_inserts();
        chime_report_combined_inserts(&op, &along, ends[i].err);
        assert_null(along);
        assert_true(first.waiter.served == ends[i].served && second.waiter.served == ends[i].served);
        assert_true(first.outcome_unknown == ends[i].outcome_unknown &&
                    second.outcome_unknown == ends[i].outcome_unknown);
        assert_int_equal(count_combined_inserts() - before, ends[i].err >= 0 ? 2 : 0);
    }
    stage_close(&s);
}


/* Proves that chime_list_waiters (write_queue.c) lists only tasks that wait for this incarnation of the node and are
 * not served yet. Fails if it compares only the addresses of nodes, without their incarnation tags, or if it lists
 * tasks that an earlier change has served. */
TEST(only_current_waiters_of_the_node_are_listed) {
    chime_ptr node = chime_ptr_make(4096, 5, 0), earlier = chime_ptr_make(4096, 4, 0);
    chime_waiter third = {.node = node}, second = {.node = node, .served = true, .next = &third},
                 first = {.node = earlier, .next = &second}, *all[3];
    chime_queue queue = {.first = &first};
    assert_int_equal(chime_ptr_addr(node), chime_ptr_addr(earlier));
    assert_int_equal(chime_list_waiters(&queue, node, 3, all), 1);
    assert_ptr_equal(all[0], &third);
    assert_int_equal(chime_list_waiters(&queue, earlier, 3, all), 1);
    assert_ptr_equal(all[0], &first);
}


/* A inserts key n and stops in a hop. D waits for the leaf's latch and is chosen as the next owner of the lock. Then A
 * continues, and its requests for local memory fail. Returns false if A needed no hop, or if the hop needed no more
 * memory, so that A's insert succeeded. */
static bool a_fails_in_a_hop(unsigned n) {
    start_operation(a, FAR_OP_INSERT, nth_key(n), n);
    far_sim_stop_before(a->client, (far_sim_match){.point = "chime:hop"});
    if (far_sim_run_client(a->client) != FAR_SIM_STOPPED)
        return false;
    start_operation(&d, FAR_OP_DELETE, nth_key(n - 1), 0);
    far_sim_run_for(s.world, 100000);
    assert_false(d.ended);
    far_sim_stop_before(d.client, (far_sim_match){.point = "chime:locked"});
    session_without_memory = a->session;
    far_sim_resume(a->client);
    assert_int_equal(far_sim_run_client(a->client), FAR_SIM_ENDED);
    session_without_memory = NULL;
    assert_int_equal(far_sim_run_client(d.client), FAR_SIM_STOPPED);
    if (a->result == FAR_ERR_NO_MEMORY)
        return true;
    assert_int_equal(a->result, 0);
    stage_finish(&d);
    assert_int_equal(insert(b, nth_key(n - 1), n - 1), 0);
    return false;
}


/* Proves that if A's change fails before its WRITEs are posted, the lock word does not name D, so D must take the lock
 * itself. Fails without `op->next_owner = 0` in change_leaf (write.c): D would change the leaf without the lock. */
TEST(the_next_owner_after_a_failed_change) {
    unsigned n = 1;
    uint64_t *tail;
    open_with_d("key_size=8,value_size=8,span=60,hop=4,crowd=off", ONE ",atomic_bytes=8");
    assert_int_equal(insert(a, nth_key(0), 0), 0);
    while (!a_fails_in_a_hop(n))
        n++;
    far_sim_run_for(s.world, 100000); /* lets the unlock that A has posted take effect */
    find_leaf(nth_key(n - 1), &tail);
    assert_true(chime_lock_is_held(tail[CHIME_TAIL_L]));
    stage_finish(&d);
    assert_int_equal(d.result, 0);
    assert_true(key_is_absent(b, nth_key(n - 1)) && key_is_absent(b, nth_key(n)));
    for (unsigned k = 0; k + 1 < n; k++)
        assert_true(key_has_value(b, nth_key(k), k));
    close_with_d();
}


/* Proves that A serves no waiting inserts if it has READ only part of the leaf. Steps: A holds the lock and has READ
 * the slots that it needs itself; D and E begin to wait; A finishes. If `right` is set, A's own key belongs to the
 * right neighbour of the leaf. Fails without `c->slots_read == st->span` in commit_insert or in insert_for_waiters
 * (write.c): A would take slots that it has not READ for free, and overwrite their items. */
TEST(a_part_of_the_leaf_is_not_enough) {
    for (unsigned right = 0; right < 2; right++) {
        open_with_e("key_size=8,value_size=8,span=48,hop=4,crowd=off", ONE);
        assert_true(key_is_absent(a, nth_key(0)) && key_is_absent(&d, nth_key(0)) && key_is_absent(&e, nth_key(0)));
        insert_keys(b, 12);
        for (unsigned n = 400; right && chime_state_of(b->index)->counts.splits == 0; n--)
            assert_int_equal(insert(b, nth_key(n), n), 0);
        run_background_work(b);
        chime_ptr leaf = find_leaf(nth_key(0), NULL);
        uint64_t key = right ? nth_key(500) : nth_key(0) + 1;
        while (right && find_leaf(key, NULL) == leaf)
            key += nth_key(1);
        uint64_t others[2], at = chime_ptr_addr(leaf), end = at + chime_state_of(a->index)->node_bytes;
        /* choose keys of D and E whose home slots are occupied and outside of the slots that A READs */
        for (unsigned n = 0, found = 0; found < 2; n++) {
            assert_true(n < 12);
            unsigned far = (home_slot_of(nth_key(n)) + 48 - home_slot_of(key)) % 48;
            if (far > 12 && far < 40)
                others[found++] = key_with_home_slot(home_slot_of(nth_key(n)), nth_key(n) + 1);
        }
        run_until_point(a, "chime:locked", FAR_OP_INSERT, key, 70);
        far_sim_hold *hold =
            far_sim_hold_completion(a->client, (far_sim_match){.kind = FAR_SIM_READ, .from = at, .to = end});
        far_sim_resume(a->client);
        far_sim_run_client(a->client);
        assert_true(far_sim_reached(hold));
        start_operation(&d, FAR_OP_INSERT, others[0], 71);
        start_operation(&e, FAR_OP_INSERT, others[1], 72);
        far_sim_run_for(s.world, 100000);
        assert_false(d.ended || e.ended);
        far_sim_release(hold);
        finish_all();
        assert_true(a->result == 0 && d.result == 0 && e.result == 0);
        assert_keys_present(c, 0, 12);
        assert_true(key_has_value(c, key, 70) && key_has_value(c, others[0], 71) && key_has_value(c, others[1], 72));
        close_with_e();
    }
}


/* A holds the lock of the leaf for an update of the key `held`, and B waits for that lock with an insert. Then A
 * finishes. */
static void make_b_wait_for_a(uint64_t held, uint64_t key) {
    run_until_point(a, "chime:locked", FAR_OP_UPDATE, held, 70);
    start_operation(b, FAR_OP_INSERT, key, 71);
    far_sim_run_for(s.world, 100000);
    assert_false(b->ended);
    stage_finish(a);
}


/* B waits for the lock of a leaf that it will have to split. Proves that B allocates the new node while it waits, so
 * that under the lock only READs precede the WRITE of the new node. Fails without chime_prealloc_node
 * (restructure_split.c). */
TEST(memory_is_allocated_while_waiting) {
    uint64_t crowded = 0;
    open_chime("key_size=8,value_size=8,span=24,hop=4", ONE);
    for (unsigned n = 0; n < 4; n++) /* These keys fill the neighbourhood of home slot 8. */
        assert_int_equal(insert(a, crowded = key_with_home_slot(8, crowded + 1), n), 0);
    for (unsigned n = 0; n < 3; n++) /* These keys make every hop impossible. */
        assert_int_equal(insert(a, key_with_home_slot(12, crowded + 1000 * n), 9), 0);
    for (unsigned n = 0; n < 4; n++)
        assert_int_equal(insert(a, key_with_home_slot(15, crowded + 1000 * n), 9), 0);
    assert_true(key_has_value(b, crowded, 3));
    make_b_wait_for_a(crowded, key_with_home_slot(8, crowded + 1));
    stage_stop_at(b, (far_sim_match){.point = "chime:locked"});
    uint64_t start = far_sim_now(s.world);
    stage_stop_at(b, (far_sim_match){.point = "chime:split_begin"});
    assert_true(far_sim_now(s.world) - start < 6000); /* the time of two READs under the lock; three would take 7 us */
    stage_finish(b);
    assert_int_equal(b->result, 0);
    assert_true(key_has_value(c, crowded, 70) && key_has_value(c, key_with_home_slot(8, crowded + 1), 71));
    stage_close(&s);
}


/* Proves that B frees the node that it has allocated if it does not split. Fails without chime_free_new_node in
 * write_key (write.c): 40 nodes would be leaked. */
TEST(unused_memory_is_freed) {
    far_pool_usage before, after;
    open_chime("key_size=8,value_size=8,span=24,hop=4", ONE);
    insert_keys(a, 3);
    for (unsigned i = 0; i <= 40; i++) {
        make_b_wait_for_a(nth_key(1), nth_key(2));
        stage_finish(b);
        assert_int_equal(b->result, FAR_ERR_EXISTS);
        if (i == 0)
            assert_int_equal(far_pool_stat(c->session, &before), 0);
    }
    assert_int_equal(far_pool_stat(c->session, &after), 0);
    assert_int_equal(after.used, before.used);
    stage_close(&s);
}
