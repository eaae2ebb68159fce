/* CHIME, races of merges, splits of inner nodes, and new roots, with the nodes on several memory nodes, and scans
 * during such changes. The comment above each test says without which guard it fails.
 *
 * Clients A (a), B (b) and C (c) are three compute nodes. */
#include "chime_rig.h"
#include "test.h"

#define TWO "memory_nodes=2"

/* two neighbouring leaves: `left` has the keys from..middle - 1, `right` the keys middle..end - 1 */
typedef struct pair {
    chime_ptr left, right;
    unsigned from, middle, end;
} pair;


/* Runs gets of A until it is stopped. The background work of A, such as a merge, runs at the same time. */
static void run_gets(void *arg) {
    for (unsigned i = 0; i < 60; i++)
        (void)key_is_absent(arg, 1);
    a->result = 0;
    a->ended = true;
}


static bool stop_background_before(const char *point) {
    a->ended = false;
    a->client = far_sim_start(a->pool->fabric, "actor", run_gets, a);
    far_sim_stop_before(a->client, (far_sim_match){.point = point});
    return far_sim_run_client(a->client) == FAR_SIM_STOPPED;
}


static unsigned memory_node_of(chime_ptr p) {
    return far_addr_node(chime_ptr_addr(p));
}


/* Finds two neighbouring leaves of one parent for which `apart` returns true; it compares the memory nodes of left
 * leaf, right leaf and parent. The first leaf of the index is not one of the two. */
static bool find_pair(unsigned count, bool (*apart)(chime_ptr l, chime_ptr r, chime_ptr p), pair *found) {
    for (unsigned n = first_key_after_leaf(0, count); n < count; n = first_key_after_leaf(n, count)) {
        unsigned middle = first_key_after_leaf(n, count),
                 end = middle < count ? first_key_after_leaf(middle, count) : count;
        if (end == count || parent_of_nth(n) != parent_of_nth(middle))
            continue;
        *found = (pair){leaf_of_nth(n), leaf_of_nth(middle), n, middle, end};
        if (apart(found->left, found->right, parent_of_nth(n)))
            return true;
    }
    return false;
}


static bool are_siblings_apart(chime_ptr l, chime_ptr r, chime_ptr p) {
    (void)p;
    return memory_node_of(l) != memory_node_of(r);
}


static bool is_parent_apart(chime_ptr l, chime_ptr r, chime_ptr p) {
    (void)r;
    return memory_node_of(l) != memory_node_of(p);
}


/* Returns whether the neighbourhood of the first key of the right leaf does not wrap around, and is not full in the left
 * leaf. */
static bool key_of_the_right_leaf_fits(chime_ptr l, chime_ptr r, chime_ptr p) {
    const uint64_t *tail = chime_tail(state_of_a(), memory_of(chime_ptr_addr(r)));
    unsigned n = 0;
    (void)l;
    (void)p;
    while (nth_key(n) < tail[CHIME_TAIL_LOW])
        n++;
    return home_slot_of(nth_key(n)) + state_of_a()->hop <= state_of_a()->span;
}


/* Deletes all but one key of each of the two leaves. Stops the merge that follows at the point. */
static void stop_merge_at(const pair *p, const char *point) {
    bool stands = false;
    for (unsigned n = p->from + 1; n < p->end && !stands; n++) {
        if (n == p->middle)
            continue;
        assert_int_equal(delete (a, nth_key(n)), 0);
        stands = stop_background_before(point);
        /* This merge is one of the left leaf with its own left neighbour, which do not fit into one leaf. The attempt
         * is allowed to run to its end. */
        if (stands && n < p->middle) {
            stage_finish(a);
            stands = false;
        }
    }
    assert_true(stands);
}


static void copy_node(chime_ptr p, uint64_t *copy) {
    memcpy(copy, memory_of(chime_ptr_addr(p)), chime_node_bytes(CHIME_PER_LINE, 12));
}


static bool is_unchanged(chime_ptr p, const uint64_t *copy) {
    return memcmp(memory_of(chime_ptr_addr(p)), copy, chime_node_bytes(CHIME_PER_LINE, 12)) == 0;
}


static far_sim_match match_write_to(chime_ptr p) {
    return (far_sim_match){.kind = FAR_SIM_WRITE,
                           .from = chime_ptr_addr(p),
                           .to = chime_ptr_addr(p) + chime_node_bytes(CHIME_PER_LINE, 12)};
}


/* Race A30. A merges two leaves that are on different memory nodes. The WRITE that makes the right leaf invalid is
 * late. Proves that the left leaf does not contain the items of the right leaf before that WRITE has taken effect.
 * Fails without the wait at the end of commit_merge (restructure_merge.c). */
TEST(the_right_leaf_is_invalidated_late) {
    uint64_t copy[CHIME_NODE_WORDS];
    pair p;
    open_chime(SMALL, TWO);
    insert_keys(a, 60);
    assert_true(find_pair(60, are_siblings_apart, &p));
    stop_merge_at(&p, "chime:merge_locked");
    copy_node(p.left, copy);
    far_sim_hold *hold = far_sim_hold_effect(a->client, match_write_to(p.right));
    far_sim_resume(a->client);
    far_sim_run_client(a->client);
    assert_true(far_sim_reached(hold));
    far_sim_run_for(s.world, 200000);
    assert_true(is_unchanged(p.left, copy));
    assert_true(key_has_value(b, nth_key(p.middle), p.middle)); /* B still finds the key in the right leaf. */
    far_sim_release(hold);
    stage_finish(a);
    run_background_work(a);
    assert_true(leaf_of_nth(p.middle) == p.left);
    assert_true(key_has_value(c, nth_key(p.middle), p.middle) && key_has_value(c, nth_key(p.from), p.from));
    stage_close(&s);
}


/* Race A30. A merges two leaves, and the WRITE of the left one is late. Proves that the parent keeps the pivot of the
 * right leaf until that WRITE has taken effect. Fails without the wait before the point chime:merge_extended
 * (complete_merge, restructure_merge.c): other clients find an outdated pointer in a tree that no client seems to
 * change any more, and report corruption. */
TEST(the_left_leaf_is_written_late) {
    uint64_t copy[CHIME_NODE_WORDS];
    pair p;
    open_chime(SMALL, TWO);
    insert_keys(a, 60);
    assert_true(find_pair(60, is_parent_apart, &p));
    chime_ptr parent = parent_of_nth(p.from);
    stop_merge_at(&p, "chime:merge_committed");
    copy_node(parent, copy);
    far_sim_hold *hold = far_sim_hold_effect(a->client, match_write_to(p.left));
    far_sim_resume(a->client);
    far_sim_run_client(a->client);
    assert_true(far_sim_reached(hold));
    start_operation(c, FAR_OP_GET, nth_key(p.middle), 0);
    far_sim_run_for(s.world, 20000000);
    assert_true(is_unchanged(parent, copy));
    assert_false(c->ended);
    far_sim_release(hold);
    stage_finish(a);
    stage_finish(c);
    assert_int_equal(c->result, 0);
    run_background_work(a);
    assert_true(key_has_value(b, nth_key(p.middle), p.middle));
    stage_close(&s);
}


/* Holds the next WRITE back, and asserts that the bytes at `watched` do not change until it takes effect. */
static void hold_next_write(uint64_t *watched, size_t bytes) {
    uint64_t copy[CHIME_NODE_WORDS];
    memcpy(copy, watched, bytes);
    far_sim_hold *hold = far_sim_hold_effect(a->client, (far_sim_match){.kind = FAR_SIM_WRITE});
    far_sim_resume(a->client);
    far_sim_run_client(a->client);
    assert_true(far_sim_reached(hold));
    far_sim_run_for(s.world, 200000);
    assert_memory_equal(watched, copy, bytes);
    far_sim_release(hold);
    stage_finish(a);
}


/* Race A21. A new root is on another memory node than the root word, and the WRITE of the new root is late. Proves that
 * the root word does not name the new root before that WRITE. Fails without the wait before the point chime:root
 * (grow_root, restructure_parent.c). */
TEST(the_new_root_is_late) {
    unsigned apart = 0;
    for (unsigned round = 0; round < 6; round++) {
        char sim[32];
        snprintf(sim, sizeof(sim), TWO ",seed=%u", round + 2);
        open_chime(SMALL, sim);
        unsigned n = 0;
        while (chime_state_of(a->index)->counts.splits == 0) {
            assert_int_equal(insert(a, nth_key(n), n), 0);
            n++;
        }
        assert_true(stop_background_before("chime:root_begin"));
        hold_next_write(memory_of(a->index->descriptor), sizeof(chime_root));
        run_background_work(a);
        assert_int_equal(height(), 1);
        uint64_t root = *memory_of(a->index->descriptor + CHIME_ROOT_WORD);
        apart += memory_node_of(root) != far_addr_node(a->index->descriptor);
        assert_keys_present(b, 0, n);
        stage_close(&s);
    }
    assert_true(apart >= 1);
}


/* Race A22. The right half of an inner node is on another memory node, and its WRITE is late. Proves that the left half
 * does not name the right half before that WRITE. Fails without the wait before the point chime:inner_split
 * (split_inner, restructure_parent.c). */
TEST(the_new_inner_node_is_late) {
    unsigned splits = 0;
    open_chime(SMALL, TWO);
    for (unsigned n = 0; n < 500; n++) {
        unsigned key = n * 211 % 503;
        assert_int_equal(insert(a, nth_key(key), key), 0);
        if (height() < 1)
            continue;
        if (!stop_background_before("chime:inner_begin"))
            continue;
        hold_next_write(memory_of(chime_ptr_addr(parent_of_nth(key))), chime_node_bytes(CHIME_PER_LINE, 12));
        splits++;
    }
    assert_true(splits >= 4);
    for (unsigned n = 0; n < 500; n++)
        assert_true(key_has_value(c, nth_key(n * 211 % 503), n * 211 % 503));
    stage_close(&s);
}


/* A loses its session during the last WRITE of the split of an inner node, and that WRITE takes effect. Proves that the
 * new node is part of the tree, and its memory is not allocated again. Fails if split_inner (restructure_parent.c)
 * frees the node: the memory checker of the simulator reports accesses to it. */
TEST(a_session_that_splits_an_inner_node_is_lost) {
    unsigned key = 0;
    open_chime(SMALL, ONE);
    for (unsigned n = 0; n < 500; n++) {
        key = n * 211 % 503;
        assert_int_equal(insert(a, nth_key(key), key), 0);
        if (height() >= 1 && stop_background_before("chime:inner_split"))
            break;
    }
    far_addr lock = chime_tail_addr(chime_state_of(a->index), parent_of_nth(key), CHIME_TAIL_L);
    far_sim_hold *last =
        far_sim_hold_completion(a->client, (far_sim_match){.kind = FAR_SIM_WRITE, .from = lock, .to = lock + 8});
    far_sim_resume(a->client);
    far_sim_run_client(a->client);
    assert_true(far_sim_reached(last));
    far_sim_lose(a->session->conn);
    far_sim_release(last);
    far_sim_run_for(s.world, 300000);
    assert_true(a->ended);
    far_session_close(a->session);
    assert_int_equal(far_session_open(a->pool, &a->session), 0);
    for (unsigned n = 600; n < 700; n++)
        assert_int_equal(insert(a, nth_key(n), n), 0);
    for (unsigned n = 600; n < 700; n++)
        assert_true(key_has_value(c, nth_key(n), n));
    stage_close(&s);
}


static pair fail_in_a_merge(const char *options) {
    open_chime(options, ONE);
    insert_keys(a, 60);
    pair p = {.from = first_key_after_leaf(0, 60)};
    p.middle = first_key_after_leaf(p.from, 60);
    p.end = first_key_after_leaf(p.middle, 60);
    p.left = leaf_of_nth(p.from);
    p.right = leaf_of_nth(p.middle);
    assert_true(p.end < 60 && parent_of_nth(p.from) == parent_of_nth(p.middle));
    stop_merge_at(&p, "chime:merge_committed");
    stage_kill(&s, a);
    return p;
}


/* Race A14. A fails after it has committed a merge, before the left leaf has the items. The fabric tears lines into units
 * of 8 bytes. B looks up an item of the right leaf in the left one: its READ of the left leaf copies the value word of
 * the free slot; C repairs the left leaf and writes the item into this slot, and its last WRITE is late; B's READ copies
 * the other words. Proves that B does not return the old value word. Fails if repair_locked_node (recover.c) stores no
 * new S (the structure nonce) before its first change. */
TEST(a_reader_notices_a_repair) {
    open_chime(SMALL ",speculation=off", ONE ",atomic_bytes=8");
    const chime_state *st = chime_state_of(b->index);
    pair p;
    insert_keys(a, 60);
    assert_true(find_pair(60, key_of_the_right_leaf_fits, &p));
    stop_merge_at(&p, "chime:merge_committed");
    stage_kill(&s, a);

    uint64_t key = nth_key(p.middle);
    far_addr left = chime_ptr_addr(p.left);
    unsigned slot = home_slot_of(key);
    while (chime_slot_is_occupied(st, memory_of(left), slot))
        slot++;
    far_addr value = left + chime_slot_offset(CHIME_PER_LINE, slot) + 8;
    uint32_t unit = (uint32_t)(value - left - chime_read_begin(CHIME_PER_LINE, home_slot_of(key))) / 8;
    assert_true(*memory_of(value) != p.middle);

    start_operation(b, FAR_OP_GET, key, 0);
    far_sim_hold *read = stage_hold(b, (far_sim_match){.kind = FAR_SIM_READ, .from = value, .to = value + 8});
    assert_int_equal(far_sim_release_units(read, &unit, 1), 0);
    start_operation(c, FAR_OP_UPDATE, nth_key(p.from), 70);
    far_addr lock = chime_tail_addr(st, p.left, CHIME_TAIL_L);
    far_sim_hold *unlock = stage_hold(c, (far_sim_match){.kind = FAR_SIM_WRITE, .from = lock, .to = lock + 8});
    assert_true(*memory_of(value) == p.middle && *memory_of(value - 8) == key);
    far_sim_release(read);
    far_sim_run_for(s.world, 300000);
    far_sim_release(unlock);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    uint64_t found;
    memcpy(&found, b->value, sizeof(found));
    assert_true(b->result == 0 && found == p.middle && c->result == 0);
    stage_close(&s);
}


/* Race A25. A fails after it has committed a merge. B repairs the parent first. Proves that the parent keeps the pivot
 * of the right leaf until the left leaf contains the items of the right one. Fails without wait_for_absorber
 * (recover.c): the memory of the right leaf is used again, and the items are lost. */
TEST(the_parent_is_repaired_first) {
    pair p = fail_in_a_merge(SMALL);
    chime_ptr parent = parent_of_nth(p.from);
    uint64_t *lock = memory_of(chime_tail_addr(chime_state_of(b->index), parent, CHIME_TAIL_L));
    assert_true(chime_lock_is_held(*lock));
    /* B inserts pivots of other leaves, for which it needs the parent's lock. */
    for (unsigned n = p.end; n < 60 && chime_lock_is_held(*lock); n++)
        for (unsigned k = 1; k < 14 && chime_lock_is_held(*lock); k++) {
            assert_int_equal(insert(b, nth_key(n) + k, k), 0);
            far_sim_run_for(s.world, 100000);
            (void)key_is_absent(b, nth_key(n) + 999);
        }
    assert_false(chime_lock_is_held(*lock));
    for (unsigned i = 0; i < 40; i++) { /* The retired memory becomes free. */
        far_epoch_request(b->pool);
        far_sim_sleep(s.world, 100000);
        far_pool_poll(b->pool);
        far_pool_poll(c->pool);
    }
    for (unsigned n = 100; n < 260; n++) /* The free memory is allocated again. */
        assert_int_equal(insert(b, nth_key(n), n), 0);
    assert_true(key_has_value(c, nth_key(p.middle), p.middle) && key_has_value(c, nth_key(p.from), p.from));
    stage_close(&s);
}


static int print_problem(void *ctx, const char *text) {
    (void)ctx;
    print_message("%s\n", text);
    return 0;
}


static void check_index(void *arg) {
    stage_actor *by = arg;
    by->result = far_index_check(by->session, by->index, print_problem, NULL);
}


/* A fails after it has committed a merge. The first client that reaches the two leaves is a check, which visits few
 * nodes under one pin. It finds the right leaf invalid and begins its slice again. Proves that after some repetitions
 * the check completes the merge itself. Does not end if visit_slice (check.c) begins to count its repetitions
 * (v->restarts) from 0 with each slice. */
TEST(a_check_in_small_slices_finishes_a_merge) {
    for (unsigned slice = 1; slice <= 2; slice++) {
        char options[96];
        snprintf(options, sizeof(options), SMALL ",walk_slice=%u", slice);
        pair p = fail_in_a_merge(options);
        stage_start_main(b, "checker", check_index);
        far_sim_run_for(s.world, 100000000);
        assert_true(far_sim_ended(b->client));
        assert_int_equal(b->result, 0);
        assert_true(key_has_value(c, nth_key(p.middle), p.middle) && key_has_value(c, nth_key(p.from), p.from));
        stage_close(&s);
    }
}


/* Race A6. Steps: B caches a pointer to a leaf L. L is merged away. A splits another leaf, uses the memory of L for the
 * right half, and fails before the left half names it. That right half is complete and valid, but no client can find
 * it. It contains a key that still belongs to the left half and is updated there later. B follows its cached pointer to
 * L for a get or an update. Proves that B does not take this node for L. Without the comparison of the tag in
 * chime_line_is_current (image.c) B returns an old value, and without that in validate_leaf (write.c) its update fails.
 */
static void meet_an_orphan_node(bool writes) {
    open_chime(SMALL, ONE);
    insert_keys(a, 40);
    for (unsigned n = 0; n < 40; n++)
        assert_true(key_has_value(b, nth_key(n), n));
    unsigned from = first_key_after_leaf(0, 40), end = first_key_after_leaf(from, 40);
    chime_ptr gone = leaf_of_nth(from);
    for (unsigned n = from; n < end; n++)
        assert_int_equal(delete (a, nth_key(n)), 0);
    run_background_work(a);
    assert_true(leaf_of_nth(from) != gone && leaf_of_nth(from) == leaf_of_nth(0));
    uint64_t wanted = nth_key(end - 1);
    assert_int_equal(insert(a, wanted, 1), 0);
    stage_free_retired(&s);
    bool reused = false;
    for (unsigned k = 1; k < 200 && !reused; k++) {
        start_operation(a, FAR_OP_INSERT, nth_key(from) + k, k);
        far_sim_stop_before(a->client, (far_sim_match){.point = "chime:split_made"});
        if (far_sim_run_client(a->client) != FAR_SIM_STOPPED)
            continue;
        uint64_t *w = memory_of(chime_ptr_addr(gone));
        unsigned tag = chime_h0_tag(chime_tail(chime_state_of(a->index), w)[CHIME_TAIL_H0]);
        for (unsigned slot = 0; slot < 12; slot++)
            reused |= tag != chime_ptr_tag(gone) && chime_slot_is_occupied(state_of_a(), w, slot) &&
                      chime_slot(state_of_a(), w, slot)[0] == wanted;
        if (!reused)
            stage_finish(a);
    }
    assert_true(reused);
    stage_kill(&s, a);
    if (writes) {
        assert_int_equal(update(b, wanted, 2), 0);
        assert_true(key_has_value(c, wanted, 2));
    } else {
        assert_int_equal(update(c, wanted, 2), 0);
        assert_true(key_has_value(b, wanted, 2));
    }
    stage_close(&s);
}


TEST(an_orphan_node_at_a_cached_address) {
    meet_an_orphan_node(false);
    meet_an_orphan_node(true);
}


/* Race A30. Steps: A has locked the parent for a merge; B splits the left leaf before A locks the leaves. Proves that A
 * notices that the right leaf is no longer the sibling of the left one. Fails without the comparison of the sibling in
 * lock_children (restructure_merge.c). */
TEST(a_split_comes_before_a_merge) {
    open_chime(SMALL, ONE);
    insert_keys(a, 40);
    unsigned from = first_key_after_leaf(0, 40), end = first_key_after_leaf(from, 40);
    bool stands = false;
    for (unsigned n = from; n < end; n++) {
        assert_int_equal(delete (a, nth_key(n)), 0);
        stands = stands || stop_background_at(a, (far_sim_match){.point = "chime:merge_parent"});
        /* The leaf still has keys, so this attempt to merge will leave it as it is. The attempt may finish; the test
         * needs the attempt after the last delete. */
        if (stands && n + 1 < end) {
            stage_finish(a);
            stands = false;
        }
    }
    assert_true(stands);
    chime_ptr left = leaf_of_nth(0);
    unsigned k = 1;
    for (; find_leaf(nth_key(from - 1) + 100, NULL) == left; k++) {
        start_operation(b, FAR_OP_INSERT, nth_key(from - 1) + k, k);
        far_sim_run_for(s.world, 1000000);
        assert_true(b->ended && b->result == 0);
    }
    stage_finish(a);
    run_background_work(a);
    far_sim_run_for(s.world, 1000000);
    run_background_work(b);
    for (unsigned i = 1; i < k; i++)
        assert_true(key_has_value(c, nth_key(from - 1) + i, i));
    assert_keys_present(c, 0, from);
    assert_keys_present(c, end, 40);
    far_usage usage; /* counts the keys along the sibling pointers, without using parents */
    assert_int_equal(far_index_usage(c->session, c->index, &usage), 0);
    assert_int_equal(usage.keys, 40 - (end - from) + (k - 1));
    stage_close(&s);
}


/* Race A19. Steps: a scan has READ some of its leaves; one of them is split; a leaf that the scan has not reached is
 * merged into one that it has already processed. Proves that the scan returns every key that is present throughout,
 * once and in order. */
TEST(a_scan_meets_a_split_and_a_merge) {
    static const char *const fabrics[] = {ONE, ONE ",atomic_bytes=8"};
    for (unsigned i = 0; i < 2; i++) {
        open_chime(SMALL, fabrics[i]);
        insert_keys(a, 40);
        unsigned from = first_key_after_leaf(0, 40), end = first_key_after_leaf(from, 40);
        chime_ptr gone = leaf_of_nth(from), split = leaf_of_nth(end);
        assert_keys_present(b, 0, 40);
        start_operation(b, FAR_OP_SCAN, nth_key(0), 0);
        far_sim_hold *hold = stage_hold(
            b, (far_sim_match){.kind = FAR_SIM_READ, .from = chime_ptr_addr(gone), .to = chime_ptr_addr(gone) + 8});
        for (unsigned n = 1; n < end - 1; n++) /* the first leaf keeps one key, and the second one its last key */
            assert_int_equal(delete (a, nth_key(n)), 0);
        run_background_work(a);
        assert_true(leaf_of_nth(end - 1) == leaf_of_nth(0));
        for (unsigned k = 1; find_leaf(nth_key(end) + 99, NULL) == split; k++)
            assert_int_equal(insert(a, nth_key(end) + k, k), 0);
        run_background_work(a);
        far_sim_release(hold);
        stage_finish(b);
        assert_true(b->result >= 0);
        unsigned next = 0;
        for (unsigned k = 0; k < b->pairs; k++) {
            assert_true(k == 0 || memcmp(b->keys[k - 1], b->keys[k], 8) < 0);
            uint64_t key = chime_key_number(b->keys[k], 8);
            while (next < 40 && nth_key(next) < key && next && next < end - 1)
                next++;
            if (key == nth_key(next))
                next++;
            else
                assert_true(key > nth_key(end) && key < nth_key(end + 1));
        }
        assert_int_equal(next, 40);
        stage_close(&s);
    }
}


/* Race A19. B has cached the parent of a leaf that A then splits. Proves that B's scan, which READs this leaf together
 * with others, also returns the keys of the new leaf. Fails in scan.c if scan_new_siblings does not walk along the
 * siblings up to the next leaf of its batch, and scan_leaf does not compare the fences with the position, because B
 * then continues with the next leaf of its batch and misses the keys of the new leaf. Each of the two guards alone is
 * enough. */
TEST(a_scan_finds_a_leaf_that_its_parent_lacks) {
    static const char *const fabrics[] = {ONE, ONE ",atomic_bytes=8"};
    for (unsigned i = 0; i < 2; i++) {
        open_chime(SMALL, fabrics[i]);
        insert_keys(a, 40);
        unsigned from = first_key_after_leaf(0, 40), more = 0;
        assert_keys_present(b, 0, 40);
        for (chime_ptr split = leaf_of_nth(from); find_leaf(nth_key(from + 1) - 1, NULL) == split; more++)
            assert_int_equal(insert(a, nth_key(from) + 1 + more, more), 0);
        run_background_work(a);
        start_operation(b, FAR_OP_SCAN, nth_key(0), 0);
        stage_finish(b);
        assert_int_equal(b->pairs, 40 + more);
        for (unsigned k = 1; k < b->pairs; k++)
            assert_true(memcmp(b->keys[k - 1], b->keys[k], 8) < 0);
        stage_close(&s);
    }
}


/* Race A19. B has cached the parent of the last leaf, which A then splits. Proves that B's scan from a key of the new
 * leaf ends. Fails if scan_leaf (scan.c) does not compare the fences with the position, because each batch then moves
 * the position back to the high fence of the old leaf, and the scan never ends. */
TEST(a_scan_begins_in_a_leaf_that_its_parent_lacks) {
    open_chime(SMALL, ONE);
    insert_keys(a, 40);
    assert_keys_present(b, 0, 40);
    unsigned last = insert_until_split(a, 40);
    run_background_work(a);
    assert_true(leaf_of_nth(last) != leaf_of_nth(last - 1));
    start_operation(b, FAR_OP_SCAN, nth_key(last), 0);
    far_sim_run_for(s.world, 10000000);
    assert_true(b->ended && b->pairs == 1);
    stage_close(&s);
}


/* Race A8. The cached parent of a scan leads to a leaf that was merged long ago. Proves that the scan does not return
 * its old contents. Fails without node_is_gone in classify_lines (access.c), because the invalid leaf then counts as a
 * leaf of the tree. */
TEST(a_scan_uses_an_outdated_parent) {
    open_chime(SMALL, ONE);
    insert_keys(a, 40);
    assert_keys_present(b, 0, 40);
    unsigned from = first_key_after_leaf(0, 40), end = first_key_after_leaf(from, 40);
    for (unsigned n = 1; n < end - 1; n++)
        assert_int_equal(delete (a, nth_key(n)), 0);
    run_background_work(a);
    assert_true(leaf_of_nth(end - 1) == leaf_of_nth(0));
    assert_int_equal(insert(a, nth_key(from) + 5, 5), 0);
    assert_int_equal(delete (a, nth_key(end - 1)), 0);
    start_operation(b, FAR_OP_SCAN, nth_key(from), 0);
    stage_finish(b);
    assert_int_equal(b->pairs, 40 - end + 1);
    assert_true(chime_key_number(b->keys[0], 8) == nth_key(from) + 5);
    stage_close(&s);
}


/* With more than 63 slots, the occupancy map does not show the number of items. Proves that a leaf that may be empty is
 * READ and merged. Fails if leaf_is_sparse (write.c) returns false for it. */
TEST(wide_leaves_are_merged) {
    static const char *const fabrics[] = {ONE, ONE ",atomic_bytes=8"};
    enum { COUNT = 160, KEPT = 8 };
    for (unsigned i = 0; i < 2; i++) {
        open_chime("key_size=8,value_size=8,span=66,hop=2,merge=empty", fabrics[i]);
        insert_keys(a, COUNT);
        assert_true(first_key_after_leaf(0, COUNT) < COUNT);
        for (unsigned n = 0; n + KEPT < COUNT; n++)
            assert_int_equal(delete (a, nth_key(n)), 0);
        run_background_work(a);
        assert_true(chime_state_of(a->index)->counts.merges > 0);
        assert_keys_present(b, COUNT - KEPT, COUNT);
        stage_close(&s);
    }
}


/* Tests of verbs that were posted under an earlier pin and have not completed. */

/* Inserts keys until a leaf is split into two leaves on different memory nodes, while A's cache still leads to the old
 * leaf. Returns the number of a key in the right leaf. */
static unsigned split_apart(chime_ptr *left) {
    for (unsigned n = 0; n < 400; n++) {
        uint64_t splits = chime_state_of(c->index)->counts.splits;
        *left = find_leaf(nth_key(n), NULL);
        assert_int_equal(insert(c, nth_key(n), n), 0);
        if (chime_state_of(c->index)->counts.splits > splits && memory_node_of(*left) != memory_node_of(leaf_of_nth(n)))
            return n;
        run_background_work(c);
        assert_true(key_has_value(a, nth_key(n), n));
    }
    fail_msg("no leaf was split into two on different memory nodes");
    return 0;
}


/* Steps: A has moved right from a leaf, and the CAS that unlocks this leaf is slow; B holds the lock of the right leaf,
 * so A waits and renews its pin. Proves that A waits for that CAS first, because the leaf could be freed and its memory
 * used again under the new pin. Fails without far_wait_for_posted in chime_renew_pin (access.c). */
TEST(a_pin_outlasts_verbs_posted_under_it) {
    chime_ptr left;
    open_chime(SMALL ",patience=2,handover=off", TWO);
    unsigned n = split_apart(&left);
    run_background_work(c);
    assert_true(key_has_value(b, nth_key(n), n)); /* B's cache contains the right leaf, and A's does not. */
    run_until_point(b, "chime:locked", FAR_OP_UPDATE, nth_key(n), 1);
    start_operation(a, FAR_OP_UPDATE, nth_key(n), 2);
    far_addr lock = chime_tail_addr(state_of_a(), left, CHIME_TAIL_L);
    far_sim_hold *hold =
        far_sim_hold_effect(a->client, (far_sim_match){.kind = FAR_SIM_CAS, .from = lock, .to = lock + 8});
    far_sim_run_for(s.world, 1000000);
    assert_true(far_sim_reached(hold));
    uint64_t verbs = far_sim_verbs(a->client);
    far_sim_run_for(s.world, 1000000);
    assert_int_equal(far_sim_verbs(a->client), verbs);
    far_sim_release(hold);
    far_sim_run_for(s.world, 1000000);
    assert_true(far_sim_verbs(a->client) > verbs);
    stage_finish(b);
    stage_finish(a);
    assert_int_equal(a->result, 0);
    assert_true(key_has_value(c, nth_key(n), 2));
    stage_close(&s);
}


/* Operations during a merge by a client that is stopped. */

#define BOUND_NS 4000000000ull /* virtual time in ns, longer than an operation waits for a stopped client */


/* Asserts that an operation of B ends within BOUND_NS. Returns the result of the operation. */
static int operation_ends_in_time(far_op_kind does, unsigned n) {
    uint64_t began = far_sim_now(s.world);
    start_operation(b, does, nth_key(n), 0);
    while (!b->ended && far_sim_now(s.world) - began < BOUND_NS)
        far_sim_run_for(s.world, 1000000);
    assert_true(b->ended);
    return b->result;
}


/* A is stopped in a merge when the right leaf is invalid and the left one does not contain its items yet. Proves that
 * operations of B on these items, also scans, end with an error. Fails without chime_renew_pin in chime_scan (scan.c).
 */
TEST(a_stopped_merge_of_leaves_blocks_no_client_forever) {
    pair p;
    open_chime(SMALL, ONE);
    insert_keys(a, 60);
    p = (pair){.from = first_key_after_leaf(0, 60)};
    p.middle = first_key_after_leaf(p.from, 60);
    p.end = first_key_after_leaf(p.middle, 60);
    stop_merge_at(&p, "chime:merge_committed");
    assert_int_equal(operation_ends_in_time(FAR_OP_SCAN, p.middle), FAR_ERR_BUSY);
    assert_int_equal(operation_ends_in_time(FAR_OP_GET, p.middle), FAR_ERR_BUSY);
    stage_finish(a);
    run_background_work(a);
    assert_true(key_has_value(b, nth_key(p.middle), p.middle));
    stage_close(&s);
}


static bool is_root_locked(void) {
    uint64_t root = *memory_of(a->index->descriptor + CHIME_ROOT_WORD);
    return chime_lock_is_held(*memory_of(chime_tail_addr(state_of_a(), chime_ptr_without_low(root), CHIME_TAIL_L)));
}


/* A is stopped in a merge of two inner nodes when the right node is invalid and the left one does not contain its
 * children yet. Proves that operations of B on keys below the right node end with an error. Fails without
 * chime_renew_pin in chime_descend (find.c). */
TEST(a_stopped_merge_of_inner_nodes_blocks_no_client_forever) {
    const unsigned count = 400;
    unsigned n = 0, refused = 0;
    bool stands = false;
    open_chime(SMALL, ONE);
    insert_keys(a, count);
    assert_int_equal(height(), 2);
    while (!stands && n < count) {
        assert_int_equal(delete (a, nth_key(n++)), 0);
        stands = stop_background_before("chime:merge_committed");
        while (stands && !is_root_locked()) { /* This attempt merges leaves; a later one merges inner nodes. */
            far_sim_stop_before(a->client, (far_sim_match){.point = "chime:merge_committed"});
            far_sim_resume(a->client);
            stands = far_sim_run_client(a->client) == FAR_SIM_STOPPED;
        }
    }
    assert_true(stands);
    for (unsigned k = n; k < count && refused == 0; k++)
        refused += operation_ends_in_time(FAR_OP_GET, k) == FAR_ERR_BUSY;
    assert_true(refused > 0);
    stage_finish(a);
    run_background_work(a);
    assert_keys_present(b, n, count);
    stage_close(&s);
}
