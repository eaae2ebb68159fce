/* CHIME, combined pivots. If several tasks of one compute node must insert pivots into one parent, they wait for the
 * parent's latch, and the task that holds the latch also inserts the pivots of the waiting tasks. In the tests the
 * children or the parent are changed meanwhile.
 *
 * Clients A (a), B (b) and C (c) are three compute nodes. D (d) is a further session of A's compute node. */
#include "chime_sessions.h"
#include "test.h"


/* Returns how many slots of the parent point to the child, and sets their bits in *slots. */
static unsigned count_pivots(chime_ptr parent, chime_ptr child, uint64_t *slots) {
    uint64_t *w = memory_of(chime_ptr_addr(parent));
    unsigned count = 0;
    for (unsigned slot = 0; slot < chime_state_of(a->index)->span; slot++)
        if (chime_slot_is_occupied(state_of_a(), w, slot) && chime_slot(state_of_a(), w, slot)[1] == child) {
            *slots |= 1ull << slot;
            count++;
        }
    return count;
}


static unsigned count_lines(uint64_t slots) {
    unsigned lines = 0;
    for (; slots; slots >>= CHIME_PER_LINE)
        lines += (slots & 7) != 0;
    return lines;
}


static int add_pivot_in_background_of_d(far_task *t, void *arg) {
    chime_op op;
    chime_begin_op(&op, t, d.index, (far_bytes){bytes_of(1), 8});
    return chime_add_pivot_in_background(&op, 1, *(chime_ptr *)arg) ? 0 : FAR_ERR_NO_MEMORY;
}


/* Inserts keys from `key` on until a leaf is split, without its pivot being inserted. Returns the new leaf. */
static chime_ptr split_from(stage_actor *by, uint64_t key) {
    _Atomic uint64_t *splits = &chime_state_of(by->index)->counts.splits;
    uint64_t *tail;
    find_leaf(key, &tail);
    for (uint64_t before = *splits; *splits == before; key++)
        assert_int_equal(insert(by, key, 1), 0);
    return chime_h1_sibling(tail[CHIME_TAIL_H1]);
}


static uint64_t low_fence(chime_ptr node) {
    return chime_tail(state_of_a(), memory_of(chime_ptr_addr(node)))[CHIME_TAIL_LOW];
}


/* Opens an index in which all leaves have one parent. Returns that parent. */
static chime_ptr open_with_parent(const char *sim) {
    open_with_d(SMALL ",crowd=off", sim);
    insert_keys(a, 24);
    return parent_of_nth(0);
}


/* A must insert the pivot of leaf `mine` and stops before the atomic that takes the parent's lock. D must insert the
 * pivot of leaf `made` and waits for the parent's latch, which A holds. */
static chime_ptr stop_with_two_waiting_pivots(uint64_t key_of_a, uint64_t key_of_d, chime_ptr *mine, chime_ptr *made) {
    chime_ptr parent = open_with_parent(ONE);
    far_addr lock = chime_tail_addr(state_of_a(), parent, CHIME_TAIL_L);
    *mine = split_from(a, key_of_a);
    assert_true(stop_background_at(a, (far_sim_match){.kind = FAR_SIM_MASKED_CAS, .from = lock, .to = lock + 8}));
    *made = split_from(&d, key_of_d);
    run_background_work(&d);
    return parent;
}


/* B reaches leaf `made` through the sibling pointer of its left neighbour, because the parent has no pivot for it. Some
 * time later B inserts the pivot. */
static void insert_pivot_by_b(chime_ptr parent, chime_ptr made) {
    uint64_t slots = 0;
    for (unsigned i = 0; i < 4; i++) {
        assert_true(key_is_absent(b, low_fence(made) + (1u << 20)));
        far_sim_run_for(s.world, 1000000);
    }
    run_background_work(b);
    assert_int_equal(count_pivots(parent, made, &slots), 1);
}


/* Proves that waiting pivots are inserted together, with one lock and one WRITE of each line. Steps: A locks the parent
 * for a pivot; three tasks of D wait for the latch, with two other pivots; A finishes. The test fails after each of
 * these changes in restructure_parent.c: list_waiting_pivots is removed (D takes the lock itself); pivot_is_listed is
 * removed (a pivot is inserted twice); insert_pivots writes a line once for each pivot (if A failed between two WRITEs
 * of one line, a slot would be occupied but not written); where lines tear, batch_pivot_slots does not update `before`
 * (a pivot is lost). */
TEST(waiting_pivots_are_combined) {
    for (unsigned i = 0; i < 3; i++) {
        chime_ptr parent = open_with_parent(fabrics[i]), made[3];
        chime_state *st = chime_state_of(a->index);
        uint64_t slots = 0;
        made[0] = split_from(a, nth_key(2) + 1);
        uint64_t writes = stats_of(a).writes;
        assert_true(stop_background_at(a, (far_sim_match){.point = "chime:parent_locked"}));
        made[1] = split_from(&d, nth_key(10) + 1);
        made[2] = split_from(&d, nth_key(20) + 1);
        assert_int_equal(far_session_call(d.session, FAR_OP_GET, false, add_pivot_in_background_of_d, &made[2]), 0);
        run_background_work(&d);
        uint64_t atomics = atomics_of(&d);
        for (unsigned k = 0; k < 3; k++)
            assert_int_equal(count_pivots(parent, made[k], &slots), 0);
        stage_finish(a);
        run_background_work(a);
        run_background_work(&d);
        assert_int_equal(st->counts.combined_pivots, 2);
        assert_int_equal(atomics_of(&d), atomics);
        for (unsigned k = 0; k < 3; k++)
            assert_int_equal(count_pivots(parent, made[k], &slots), 1);
        if (!st->lines_can_tear)
            assert_int_equal(stats_of(a).writes - writes, count_lines(slots) + 1);
        assert_keys_present(c, 0, 24);
        close_with_d();
    }
}


/* Proves that a waiting pivot is not inserted twice. Steps: D waits with a pivot; B inserts the same pivot; A inserts
 * its own pivot together with D's. Fails without has_child in choose_combined_pivots (restructure_parent.c): the parent
 * would have two pivots for the leaf. */
TEST(a_combined_pivot_is_already_present) {
    chime_ptr mine, made, parent = stop_with_two_waiting_pivots(nth_key(2) + 1, nth_key(10) + 1, &mine, &made);
    uint64_t slots = 0;
    insert_pivot_by_b(parent, made);
    stage_finish(a);
    run_background_work(a);
    run_background_work(&d);
    assert_int_equal(count_pivots(parent, mine, &slots), 1);
    assert_int_equal(count_pivots(parent, made, &slots), 1);
    assert_int_equal(chime_state_of(a->index)->counts.combined_pivots, 0);
    assert_keys_present(c, 0, 24);
    close_with_d();
}


static unsigned count_children(chime_ptr parent) {
    return chime_count_items(chime_state_of(a->index), memory_of(chime_ptr_addr(parent)));
}


/* Proves that a pivot waits if the parent has no room. The parent has room for A's pivot and one more, and D waits with
 * two. One of D's pivots must be inserted later, after the parent was split. Fails without `room` in
 * choose_combined_pivots (restructure_parent.c): the third pivot would be written outside of the slots. */
TEST(the_parent_has_no_room_for_all_pivots) {
    for (unsigned i = 0; i < 3; i++) {
        chime_ptr parent = open_with_parent(fabrics[i]), made[3];
        chime_state *st = chime_state_of(a->index);
        uint64_t slots = 0, along = 0, key = nth_key(5);
        for (unsigned k = 0; count_children(parent) < st->span - 2; k++) {
            assert_true(k < 100);
            split_from(a, key + 1 + k * 1000);
            run_background_work(a);
            along = st->counts.combined_pivots;
        }
        assert_int_equal(count_children(parent), st->span - 2);
        made[0] = split_from(a, nth_key(2) + 1);
        assert_true(stop_background_at(a, (far_sim_match){.point = "chime:parent_locked"}));
        made[1] = split_from(&d, nth_key(10) + 1);
        made[2] = split_from(&d, nth_key(20) + 1);
        run_background_work(&d);
        stage_finish(a);
        run_background_work(a);
        run_background_work(&d);
        assert_int_equal(st->counts.combined_pivots - along, 1);
        for (unsigned k = 0; k < 3; k++)
            assert_int_equal(count_pivots(parent, made[k], &slots) + count_pivots(parent_of_nth(23), made[k], &slots),
                             1);
        assert_keys_present(c, 0, 24);
        close_with_d();
    }
}


typedef struct astray { /* content of an outdated copy of the root, in the cache of D's compute node */
    chime_ptr instead;  /* pointer that the copy contains in place of its children */
    uint64_t from;      /* first pivot whose child pointer is replaced */
} astray;


static int misroute_pivot(far_task *t, void *arg) {
    const astray *w = arg;
    chime_op op;
    chime_state *st = chime_state_of(d.index);
    chime_begin_op(&op, t, d.index, (far_bytes){bytes_of(1), 8});
    chime_inner *inner = far_scratch(t, sizeof(*inner));
    chime_node n = {0};
    assert_int_equal(chime_read_node(&op, chime_ptr_without_low(st->root), &n), 0);
    assert_int_equal(chime_decode_inner(&op, &n, inner), 0);
    unsigned changed = 0;
    for (unsigned i = 0; i < inner->count; i++)
        if (inner->pivot[i].first >= w->from) {
            inner->child[i] = w->instead;
            changed++;
        }
    assert_true(changed > 0);
    chime_cache_put(st->cache, st, inner, far_epoch(t));
    return 0;
}


/* Proves that a task that waits in order to insert a pivot never gets the lock of a leaf by a handover. Steps: the
 * cache of D's compute node is outdated, so D tries to insert a pivot into a node at whose address a leaf is stored
 * now. A holds the lock of that leaf, and D waits for its latch. A finishes. Hangs if chime_choose_next_owner
 * (write_lock.c) accepts every waiting task: D would not recognise the handover, and the lock would stay held forever.
 */
TEST(a_misrouted_pivot_gets_no_lock) {
    for (unsigned i = 0; i < 3; i++) {
        open_with_d(SMALL ",crowd=off", fabrics[i]);
        insert_keys(a, 150);
        assert_true(height() >= 2);
        uint64_t *tail;
        chime_ptr leaf = find_leaf(nth_key(2), &tail), child = leaf_of_nth(149);
        astray way = {chime_ptr_make(chime_ptr_addr(leaf), chime_ptr_tag(leaf) + 1, 0), nth_key(70)};
        run_until_point(a, "chime:locked", FAR_OP_UPDATE, nth_key(2), 70);
        assert_int_equal(far_session_call(d.session, FAR_OP_GET, false, misroute_pivot, &way), 0);
        assert_int_equal(far_session_call(d.session, FAR_OP_GET, false, add_pivot_in_background_of_d, &child), 0);
        for (unsigned k = 0; k < 12; k++)
            assert_true(key_has_value(&d, nth_key(3), 3));
        stage_finish(a);
        assert_int_equal(a->result, 0);
        for (unsigned k = 0; k < 40; k++)
            assert_true(key_has_value(&d, nth_key(3), 3));
        assert_false(chime_lock_is_held(tail[CHIME_TAIL_L]));
        assert_int_equal(update(b, nth_key(2), 72), 0);
        assert_true(key_has_value(c, nth_key(2), 72));
        close_with_d();
    }
}


/* Proves that B checks whether the holder of a lock has failed, even if it makes only a few attempts to take the lock
 * before it descends from the root again (option `patience`). Steps: A fails while it holds the parent's lock; B waits
 * for that lock with a pivot. Fails if lock_inner_node (restructure_parent.c) counts the attempts from 0 after each
 * descent: B never checks. */
TEST(the_holder_is_checked_with_few_attempts) {
    static const char *const patience[] = {"2", "3", "4", "5"};
    for (unsigned i = 0; i < 4; i++) {
        char options[128];
        uint64_t slots = 0;
        snprintf(options, sizeof(options), SMALL ",crowd=off,patience=%s", patience[i]);
        open_chime(options, ONE);
        insert_keys(a, 24);
        chime_ptr parent = parent_of_nth(0);
        split_from(a, nth_key(2) + 1);
        assert_true(stop_background_at(a, (far_sim_match){.point = "chime:parent_locked"}));
        stage_kill(&s, a);
        chime_ptr made = split_from(b, nth_key(10) + 1);
        start_operation(b, FAR_OP_GET, nth_key(20), 0);
        far_sim_run_for(s.world, 10000000);
        assert_true(b->ended);
        for (unsigned k = 0; k < 40 && count_pivots(parent, made, &slots) == 0; k++) {
            start_operation(b, FAR_OP_GET, nth_key(20), 0);
            far_sim_run_for(s.world, 1000000);
        }
        assert_int_equal(count_pivots(parent, made, &slots), 1);
        run_background_work(b);
        assert_keys_present(c, 0, 24);
        stage_close(&s);
    }
}


/* Race A10 for a combined pivot. Steps: D waits with a pivot; B inserts the pivot, empties the leaf and merges it away;
 * A inserts its own pivot, together with waiting ones. Fails without child_is_current in choose_combined_pivots
 * (restructure_parent.c): the parent would point to a leaf that no longer exists. */
TEST(a_combined_pivot_is_late) {
    uint64_t slots = 0, first = nth_key(10) + 1;
    chime_ptr mine, made, parent = stop_with_two_waiting_pivots(nth_key(2) + 1, first, &mine, &made);
    uint64_t low = low_fence(made);
    insert_pivot_by_b(parent, made);
    for (uint64_t key = low; key < first + 64; key++)
        (void)delete (b, key);
    for (unsigned n = 0; n < 24; n++)
        if (nth_key(n) >= low && leaf_of_nth(n) == made)
            assert_int_equal(delete (b, nth_key(n)), 0);
    run_background_work(b);
    far_sim_run_for(s.world, 1000000);
    run_background_work(b);
    assert_int_equal(count_pivots(parent, made, &slots), 0);
    stage_finish(a);
    run_background_work(a);
    run_background_work(&d);
    assert_int_equal(count_pivots(parent, made, &slots), 0);
    assert_int_equal(insert(c, low + 7, 7), 0);
    assert_true(key_has_value(c, low + 7, 7));
    close_with_d();
}


/* Proves that a combined pivot is inserted only into the node to which it belongs. Steps: D waits with a pivot of the
 * upper half of the parent; B splits the parent; A combines. Fails without chime_check_range in choose_combined_pivots
 * (restructure_parent.c): the old parent has a child beyond its high fence. */
TEST(a_combined_pivot_belongs_to_another_parent) {
    chime_ptr mine, made, parent = stop_with_two_waiting_pivots(nth_key(0) + 1, nth_key(22) + 1, &mine, &made);
    const uint64_t *above = chime_tail(state_of_a(), memory_of(chime_ptr_addr(parent)));
    uint64_t slots = 0, before = above[CHIME_TAIL_H1];
    for (unsigned i = 0; chime_h1_sibling_nv(above[CHIME_TAIL_H1]) == chime_h1_sibling_nv(before); i++) {
        assert_true(i < 100);
        split_from(b, nth_key(8) + (i + 1) * 1000);
        run_background_work(b);
    }
    assert_true(low_fence(made) >= above[CHIME_TAIL_HIGH]);
    stage_finish(a);
    run_background_work(a);
    run_background_work(&d);
    assert_int_equal(count_pivots(parent, mine, &slots), 1);
    assert_int_equal(count_pivots(parent, made, &slots), 0);
    assert_int_equal(count_pivots(parent_of_nth(23), made, &slots), 1);
    assert_keys_present(c, 0, 24);
    close_with_d();
}


/* Removes the first child from an image of the root, so that some keys precede all of its pivots. Then asserts for many
 * keys that the cached copy of this image selects the same child as the image itself. */
static int route_both_ways(far_task *t, void *arg) {
    (void)arg;
    chime_op op;
    chime_state *st = chime_state_of(a->index);
    chime_begin_op(&op, t, a->index, (far_bytes){bytes_of(1), 8});
    chime_inner *inner = far_scratch(t, sizeof(*inner));
    chime_node n = {0};
    assert_int_equal(chime_read_node(&op, chime_ptr_without_low(st->root), &n), 0);
    assert_int_equal(chime_decode_inner(&op, &n, inner), 0);
    assert_true(inner->count > 2);
    inner->count--;
    memmove(inner->pivot, inner->pivot + 1, inner->count * sizeof(*inner->pivot));
    memmove(inner->child, inner->child + 1, inner->count * sizeof(*inner->child));
    chime_cache_put(st->cache, st, inner, far_epoch(t));
    for (unsigned k = 0; k < 60; k++) {
        chime_key key;
        chime_route read, cached;
        chime_key_make(st, (far_bytes){bytes_of(nth_key(k)), 8}, &key);
        chime_route_in_node(st, inner, &key, &read);
        assert_true(chime_cache_route(st->cache, st, inner->ptr, &key, far_epoch(t), &cached));
        assert_true(read.right == cached.right && read.next == cached.next && read.level == cached.level);
        assert_true(k > 0 || cached.next == inner->child[0]);
    }
    return 0;
}


/* Proves that for every key the cached copy of a node selects the same child as the node itself, also for a key that
 * precedes all pivots of the node. An operation with an outdated cache can reach a node to which its key does not
 * belong. */
TEST(the_cache_routes_as_the_node_does) {
    open_chime(SMALL ",crowd=off", ONE);
    insert_keys(a, 60);
    assert_int_equal(far_session_call(a->session, FAR_OP_GET, false, route_both_ways, NULL), 0);
    stage_close(&s);
}
