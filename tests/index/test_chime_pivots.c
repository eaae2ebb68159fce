/* CHIME: pivots of tasks of one compute node that wait for one parent. The first of them puts in those of the others too,
 * whatever became of their nodes meanwhile. */
#include "chime_crew.h"


/* How often a child stands in a node; slots: where. */
static unsigned pivots_of(chime_ptr parent, chime_ptr child, uint64_t *slots) {
    uint64_t *w = memory_of(chime_ptr_addr(parent));
    unsigned count = 0;
    for (unsigned slot = 0; slot < chime_state_of(a->index)->span; slot++)
        if (chime_is_occupied(shape(), w, slot) && chime_slot(shape(), w, slot)[1] == child) {
            *slots |= 1ull << slot;
            count++;
        }
    return count;
}


static unsigned lines_of(uint64_t slots) {
    unsigned lines = 0;
    for (; slots; slots >>= CHIME_PER_LINE)
        lines += (slots & 7) != 0;
    return lines;
}


static int help_again(far_task *t, void *arg) {
    chime_op op;
    chime_begin(&op, t, d.index, (far_bytes){bytes_of(1), 8});
    return chime_add_pivot_later(&op, 1, *(chime_ptr *)arg) ? 0 : FAR_ERR_NO_MEMORY;
}


/* Splits a leaf by keys from `key` on, and tells the leaf that came of it: its pivot is still to be put in. */
static chime_ptr split_from(stage_actor *by, uint64_t key) {
    _Atomic uint64_t *splits = &chime_state_of(by->index)->counts.splits;
    uint64_t *tail;
    leaf_of(key, &tail);
    for (uint64_t before = *splits; *splits == before; key++)
        assert_int_equal(insert(by, key, 1), 0);
    return chime_h1_sibling(tail[CHIME_TAIL_H1]);
}


static uint64_t low_of(chime_ptr node) {
    return chime_tail(shape(), memory_of(chime_ptr_addr(node)))[CHIME_TAIL_LOW];
}


/* A tree of leaves with one parent. */
static chime_ptr up_with_parent(const char *sim) {
    up_with_d(SMALL ",crowd=off", sim);
    fill(a, 24);
    return parent_of(0);
}


/* a is about to ask for the lock of the parent, for the pivot of `mine`; d waits behind it with that of `made`. */
static chime_ptr two_pivots_wait(uint64_t key_of_a, uint64_t key_of_d, chime_ptr *mine, chime_ptr *made) {
    chime_ptr parent = up_with_parent(ONE);
    far_addr lock = chime_tail_addr(shape(), parent, CHIME_TAIL_L);
    *mine = split_from(a, key_of_a);
    assert_true(background_stands(a, (far_sim_match){.kind = FAR_SIM_MASKED_CAS, .from = lock, .to = lock + 8}));
    *made = split_from(&d, key_of_d);
    settle(&d);
    return parent;
}


/* b comes by way of the sibling of a node that its parent does not name, and puts it in. */
static void help_by_sibling(chime_ptr parent, chime_ptr made) {
    uint64_t slots = 0;
    for (unsigned i = 0; i < 4; i++) {
        assert_true(misses(b, low_of(made) + (1u << 20)));
        far_sim_run_for(s.world, 1000000);
    }
    settle(b);
    assert_int_equal(pivots_of(parent, made, &slots), 1);
}


/* a has locked the parent for a pivot, three tasks of d wait for its latch with two others: one lock and one WRITE of each
 * line for all. Fails without list_together (d asks for the lock itself), without is_chosen (a pivot stands there twice),
 * when lines are put out for each pivot (a death between two WRITEs of a line leaves a slot occupied that was not
 * written), and with units of 8 bytes when add_to_slots does not bring `before` up to date (a pivot is lost). */
static void pivots_go_in_together(void **state) {
    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        chime_ptr parent = up_with_parent(sims[i]), made[3];
        chime_state *st = chime_state_of(a->index);
        uint64_t slots = 0;
        made[0] = split_from(a, nth(2) + 1);
        uint64_t writes = stats_of(a).writes;
        assert_true(background_stands(a, (far_sim_match){.point = "chime:parent_locked"}));
        made[1] = split_from(&d, nth(10) + 1);
        made[2] = split_from(&d, nth(20) + 1);
        assert_int_equal(far_session_call(d.session, FAR_OP_GET, false, help_again, &made[2]), 0);
        settle(&d);
        uint64_t atomics = atomics_of(&d);
        for (unsigned k = 0; k < 3; k++)
            assert_int_equal(pivots_of(parent, made[k], &slots), 0);
        stage_finish(a);
        settle(a);
        settle(&d);
        assert_int_equal(st->counts.along, 2);
        assert_int_equal(atomics_of(&d), atomics);
        for (unsigned k = 0; k < 3; k++)
            assert_int_equal(pivots_of(parent, made[k], &slots), 1);
        if (!st->words)
            assert_int_equal(stats_of(a).writes - writes, lines_of(slots) + 1);
        assert_all(c, 0, 24);
        down_with_d();
    }
}


/* While d waits with a pivot, b puts it in. Fails without has_child in choose: the parent names the leaf twice. */
static void a_pivot_that_goes_along_is_there(void **state) {
    (void)state;
    chime_ptr mine, made, parent = two_pivots_wait(nth(2) + 1, nth(10) + 1, &mine, &made);
    uint64_t slots = 0;
    help_by_sibling(parent, made);
    stage_finish(a);
    settle(a);
    settle(&d);
    assert_int_equal(pivots_of(parent, mine, &slots), 1);
    assert_int_equal(pivots_of(parent, made, &slots), 1);
    assert_int_equal(chime_state_of(a->index)->counts.along, 0);
    assert_all(c, 0, 24);
    down_with_d();
}


static unsigned children_of(chime_ptr parent) {
    return chime_count_items(chime_state_of(a->index), memory_of(chime_ptr_addr(parent)));
}


/* The parent has room for one pivot more than a's, and two of d wait. Fails without `room` in choose: the third is written
 * to no slot at all. */
static void there_is_no_room_for_all(void **state) {
    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        chime_ptr parent = up_with_parent(sims[i]), made[3];
        chime_state *st = chime_state_of(a->index);
        uint64_t slots = 0, along = 0, key = nth(5);
        for (unsigned k = 0; children_of(parent) < st->span - 2; k++) {
            assert_true(k < 100);
            split_from(a, key + 1 + k * 1000);
            settle(a);
            along = st->counts.along;
        }
        assert_int_equal(children_of(parent), st->span - 2);
        made[0] = split_from(a, nth(2) + 1);
        assert_true(background_stands(a, (far_sim_match){.point = "chime:parent_locked"}));
        made[1] = split_from(&d, nth(10) + 1);
        made[2] = split_from(&d, nth(20) + 1);
        settle(&d);
        stage_finish(a);
        settle(a);
        settle(&d);
        assert_int_equal(st->counts.along - along, 1);
        for (unsigned k = 0; k < 3; k++)
            assert_int_equal(pivots_of(parent, made[k], &slots) + pivots_of(parent_of(23), made[k], &slots), 1);
        assert_all(c, 0, 24);
        down_with_d();
    }
}


typedef struct astray { /* the root as d's compute node knows it */
    chime_ptr instead;  /* of the nodes that it names */
    uint64_t from;      /* where they begin, at least */
} astray;


static int lead_astray(far_task *t, void *arg) {
    const astray *w = arg;
    chime_op op;
    chime_state *st = chime_state_of(d.index);
    chime_begin(&op, t, d.index, (far_bytes){bytes_of(1), 8});
    chime_inner *inner = far_scratch(t, sizeof(*inner));
    chime_node n = {0};
    assert_int_equal(chime_read_node(&op, chime_ptr_plain(st->root), &n), 0);
    assert_int_equal(chime_decode(&op, &n, inner), 0);
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


/* What d's compute node knows of the root is old: an inner node that it names is gone, and a leaf lies there now. A pivot
 * of d waits for the latch of that leaf, behind a, which has it locked: it is no heir. Hangs when choose_heir takes whoever
 * waits: the lock is handed to a task that does not know of it, and stays held for ever. */
static void a_pivot_that_went_astray_inherits_nothing(void **state) {
    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        up_with_d(SMALL ",crowd=off", sims[i]);
        fill(a, 150);
        assert_true(height() >= 2);
        uint64_t *tail;
        chime_ptr leaf = leaf_of(nth(2), &tail), child = leaf_at(149);
        astray way = {chime_ptr_make(chime_ptr_addr(leaf), chime_ptr_tag(leaf) + 1, 0), nth(70)};
        stand(a, "chime:locked", FAR_OP_UPDATE, nth(2), 70);
        assert_int_equal(far_session_call(d.session, FAR_OP_GET, false, lead_astray, &way), 0);
        assert_int_equal(far_session_call(d.session, FAR_OP_GET, false, help_again, &child), 0);
        for (unsigned k = 0; k < 12; k++)
            assert_true(reads(&d, nth(3), 3));
        stage_finish(a);
        assert_int_equal(a->result, 0);
        for (unsigned k = 0; k < 40; k++)
            assert_true(reads(&d, nth(3), 3));
        assert_false(chime_lock_is_held(tail[CHIME_TAIL_L]));
        assert_int_equal(update(b, nth(2), 72), 0);
        assert_true(reads(c, nth(2), 72));
        down_with_d();
    }
}


/* a dies with the lock of the parent. b, which has a pivot for it, asks whether the holder lives however few attempts
 * are made before the search begins anew. Fails when lock_node counts them from 0 each time: b never asks. */
static void who_tries_seldom_asks_too(void **state) {
    (void)state;
    static const char *const patience[] = {"2", "3", "4", "5"};
    for (unsigned i = 0; i < 4; i++) {
        char options[128];
        uint64_t slots = 0;
        snprintf(options, sizeof(options), SMALL ",crowd=off,patience=%s", patience[i]);
        up(options, ONE);
        fill(a, 24);
        chime_ptr parent = parent_of(0);
        split_from(a, nth(2) + 1);
        assert_true(background_stands(a, (far_sim_match){.point = "chime:parent_locked"}));
        stage_kill(&s, a);
        chime_ptr made = split_from(b, nth(10) + 1);
        begin(b, FAR_OP_GET, nth(20), 0);
        far_sim_run_for(s.world, 10000000);
        assert_true(b->ended);
        for (unsigned k = 0; k < 40 && pivots_of(parent, made, &slots) == 0; k++) {
            begin(b, FAR_OP_GET, nth(20), 0);
            far_sim_run_for(s.world, 1000000);
        }
        assert_int_equal(pivots_of(parent, made, &slots), 1);
        settle(b);
        assert_all(c, 0, 24);
        stage_close(&s);
    }
}


/* A10, for a pivot that another task takes along: while d waits, b puts it in, empties the leaf, and merges it away. Fails
 * without child_lives in choose: the parent names a leaf that is gone. */
static void a_pivot_that_goes_along_is_late(void **state) {
    (void)state;
    uint64_t slots = 0, first = nth(10) + 1;
    chime_ptr mine, made, parent = two_pivots_wait(nth(2) + 1, first, &mine, &made);
    uint64_t low = low_of(made);
    help_by_sibling(parent, made);
    for (uint64_t key = low; key < first + 64; key++)
        (void)delete (b, key);
    for (unsigned n = 0; n < 24; n++)
        if (nth(n) >= low && leaf_at(n) == made)
            assert_int_equal(delete (b, nth(n)), 0);
    settle(b);
    far_sim_run_for(s.world, 1000000);
    settle(b);
    assert_int_equal(pivots_of(parent, made, &slots), 0);
    stage_finish(a);
    settle(a);
    settle(&d);
    assert_int_equal(pivots_of(parent, made, &slots), 0);
    assert_int_equal(insert(c, low + 7, 7), 0);
    assert_true(reads(c, low + 7, 7));
    down_with_d();
}


/* While d waits with a pivot of the upper end, b splits the parent: it belongs to the new one now. Fails without
 * chime_check_range in choose: the old one names a leaf beyond its end. */
static void a_pivot_that_goes_along_belongs_elsewhere(void **state) {
    (void)state;
    chime_ptr mine, made, parent = two_pivots_wait(nth(0) + 1, nth(22) + 1, &mine, &made);
    const uint64_t *above = chime_tail(shape(), memory_of(chime_ptr_addr(parent)));
    uint64_t slots = 0, before = above[CHIME_TAIL_H1];
    for (unsigned i = 0; chime_h1_shape(above[CHIME_TAIL_H1]) == chime_h1_shape(before); i++) {
        assert_true(i < 100);
        split_from(b, nth(8) + (i + 1) * 1000);
        settle(b);
    }
    assert_true(low_of(made) >= above[CHIME_TAIL_HIGH]);
    stage_finish(a);
    settle(a);
    settle(&d);
    assert_int_equal(pivots_of(parent, mine, &slots), 1);
    assert_int_equal(pivots_of(parent, made, &slots), 0);
    assert_int_equal(pivots_of(parent_of(23), made, &slots), 1);
    assert_all(c, 0, 24);
    down_with_d();
}


/* The root without its first child, so that keys lie before all of it. */
static int route_both_ways(far_task *t, void *arg) {
    (void)arg;
    chime_op op;
    chime_state *st = chime_state_of(a->index);
    chime_begin(&op, t, a->index, (far_bytes){bytes_of(1), 8});
    chime_inner *inner = far_scratch(t, sizeof(*inner));
    chime_node n = {0};
    assert_int_equal(chime_read_node(&op, chime_ptr_plain(st->root), &n), 0);
    assert_int_equal(chime_decode(&op, &n, inner), 0);
    assert_true(inner->count > 2);
    inner->count--;
    memmove(inner->pivot, inner->pivot + 1, inner->count * sizeof(*inner->pivot));
    memmove(inner->child, inner->child + 1, inner->count * sizeof(*inner->child));
    chime_cache_put(st->cache, st, inner, far_epoch(t));
    for (unsigned k = 0; k < 60; k++) {
        chime_key key;
        chime_route read, cached;
        chime_key_make(st, (far_bytes){bytes_of(nth(k)), 8}, &key);
        chime_route_in(st, inner, &key, &read);
        assert_true(chime_cache_route(st->cache, st, inner->ptr, &key, far_epoch(t), &cached));
        assert_true(read.right == cached.right && read.next == cached.next && read.level == cached.level);
        assert_true(k > 0 || cached.next == inner->child[0]);
    }
    return 0;
}


/* Who goes by an old cache comes to nodes that lie to the right of its key: also then the cache sends it where the node
 * would. */
static void the_cache_routes_as_the_node_does(void **state) {
    (void)state;
    up(SMALL ",crowd=off", ONE);
    fill(a, 60);
    assert_int_equal(far_session_call(a->session, FAR_OP_GET, false, route_both_ways, NULL), 0);
    stage_close(&s);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pivots_go_in_together),
        cmocka_unit_test(a_pivot_that_goes_along_is_late),
        cmocka_unit_test(a_pivot_that_goes_along_belongs_elsewhere),
        cmocka_unit_test(a_pivot_that_goes_along_is_there),
        cmocka_unit_test(there_is_no_room_for_all),
        cmocka_unit_test(who_tries_seldom_asks_too),
        cmocka_unit_test(a_pivot_that_went_astray_inherits_nothing),
        cmocka_unit_test(the_cache_routes_as_the_node_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
