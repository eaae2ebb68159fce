/* CHIME, races A1 to A30 of docs/races/chime.md. Each test produces one interleaving step by step; the comment above it
 * says without which guard it fails.
 *
 * Clients A (a), B (b) and C (c) are three compute nodes. */
#include "chime_rig.h"
#include "test.h"


/* Race A1. A key was deleted, so that a free slot precedes the slot of another key of the same neighbourhood. Proves
 * that an insert of this other key finds it and reports that it exists. Fails without the lower bound of
 * count_slots_needed (write.c): the insert READs only up to the first free slot, and writes a second copy. */
TEST(a_hole_before_the_key) {
    open_chime("key_size=8,value_size=8,hop=8", NULL);
    uint64_t keys[6];
    for (unsigned i = 0; i < 6; i++) {
        keys[i] = key_with_home_slot(20, i ? keys[i - 1] + 1 : 1);
        assert_int_equal(insert(a, keys[i], i), 0);
    }
    assert_int_equal(delete (a, keys[2]), 0);
    assert_int_equal(insert(a, keys[5], 99), FAR_ERR_EXISTS);
    assert_true(key_has_value(b, keys[5], 5));
    stage_close(&s);
}


/* Home slots of the keys in slots 1 to 8. After the key in slot 8 is deleted, an insert of a key with home slot 1 makes
 * two keys hop: the key in slot 5 to slot 8, and the key in slot 4 to slot 5. */
static const unsigned homes[] = {1, 1, 1, 4, 5, 6, 5, 5};


static uint64_t insert_in_slots(uint64_t keys[8]) {
    uint64_t from = 1;
    for (unsigned i = 0; i < 8; i++) {
        keys[i] = key_with_home_slot(homes[i], from);
        from = keys[i] + 1;
        assert_int_equal(insert(a, keys[i], i), 0);
    }
    return key_with_home_slot(1, from);
}


/* Race A12. Steps: B READs the second line of a neighbourhood; A deletes a key from that line; C inserts a key, for
 * which the wanted key hops from the first line into the freed slot; B READs the first line. The hop bitmap in the
 * first line agrees with the items that B has seen, although B has not seen the wanted key. Proves that B notices the
 * changes, READs again and finds the key. Without S, the structure nonce, in classify_miss (get.c), B reports the key
 * as absent and the test fails. With miss=time it fails without read_was_short (get.c). */
TEST(delete_and_hop_inside_one_read) {
    static const char *const fabrics[] = {"atomic_bytes=64", "atomic_bytes=8", "atomic_bytes=64",
                                          "rtt_read=20us,rtt_write=20us,rtt_atomic=20us"};
    static const char *const options[] = {"key_size=8,value_size=8,hop=4,miss=bracket,speculation=off",
                                          "key_size=8,value_size=8,hop=4,miss=bracket,speculation=off",
                                          "key_size=8,value_size=8,hop=4,miss=unsafe,speculation=off",
                                          "key_size=8,value_size=8,hop=4,miss=time,speculation=off"};
    /* the third run shows the error of the paper's rule, with miss=unsafe */
    for (unsigned unit = 0; unit < 4; unit++) {
        open_chime(options[unit], fabrics[unit]);
        uint64_t keys[8], newcomer = insert_in_slots(keys), wanted = keys[4], last = keys[7];
        assert_true(key_has_value(b, wanted, 4) && key_has_value(c, wanted, 4));
        far_addr leaf = chime_ptr_addr(find_leaf(wanted, NULL));
        /* A's delete is posted already, and C inserts as soon as it has taken effect. So the two changes take less than
         * four round trips. In the last run, round trips are long in comparison with the clients' own time. */
        start_operation(a, FAR_OP_DELETE, last, 0);
        far_sim_hold *removal = stage_hold(a, (far_sim_match){.kind = FAR_SIM_WRITE});
        start_operation(b, FAR_OP_GET, wanted, 0);
        far_sim_hold *hold = stage_hold(b, (far_sim_match){.kind = FAR_SIM_READ, .from = leaf + 64, .to = leaf + 192});
        uint32_t units = far_sim_hold_units(hold), late[16];
        assert_true(unit != 1 ? units == 2 : units > 8);
        /* number of the first unit after the first line, of which the READ covers bytes 16 to 63 */
        unsigned of_line_1 = unit != 1 ? 1 : 6;
        for (uint32_t i = of_line_1; i < units; i++)
            late[i - of_line_1] = i;
        assert_int_equal(far_sim_release_units(hold, late, units - of_line_1), 0);
        far_addr lock = chime_tail_addr(state_of_a(), find_leaf(wanted, NULL), CHIME_TAIL_L);
        far_sim_release(removal);
        start_operation(c, FAR_OP_INSERT, newcomer, 77);
        far_sim_hold *inserted =
            far_sim_hold_effect(c->client, (far_sim_match){.kind = FAR_SIM_WRITE, .from = lock, .to = lock + 8});
        far_sim_run_client(c->client);
        assert_true(far_sim_reached(inserted));
        uint64_t *w = memory_of(leaf);
        assert_true(chime_slot(state_of_a(), w, 8)[0] == wanted && chime_slot(state_of_a(), w, 5)[0] == keys[3] &&
                    chime_slot(state_of_a(), w, 4)[0] == newcomer);
        far_sim_release(hold);
        far_sim_release(inserted);
        stage_finish(b);
        stage_finish(a);
        stage_finish(c);
        assert_true(a->result == 0 && c->result == 0);
        assert_int_equal(b->result, unit == 2 ? FAR_ERR_NOT_FOUND : 0);
        uint64_t found;
        memcpy(&found, b->value, sizeof(found));
        assert_true(unit == 2 || found == 4);
        stage_close(&s);
    }
}


/* Race A12, with one change. Steps: B READs the second line of a neighbourhood; A inserts a key, for which the wanted key
 * hops from the first line into the second; B READs the first line and S, before A's last WRITE changes S. Proves that B
 * notices, by the hop bitmap of the first line, that it has missed the key. Fails without the hop bitmap in
 * classify_miss (get.c). */
TEST(a_hop_inside_one_read) {
    static const char *const options[] = {"key_size=8,value_size=8,hop=4,miss=bracket,speculation=off",
                                          "key_size=8,value_size=8,hop=4,miss=time,speculation=off"};
    for (unsigned i = 0; i < 2; i++) {
        open_chime(options[i], ONE);
        uint64_t keys[8], newcomer = insert_in_slots(keys), wanted = keys[4];
        assert_int_equal(delete (a, keys[7]), 0);
        assert_true(key_has_value(b, wanted, 4));
        chime_ptr leaf = find_leaf(wanted, NULL);
        run_until_point(a, "chime:hop", FAR_OP_INSERT, newcomer, 77);
        start_operation(b, FAR_OP_GET, wanted, 0);
        far_sim_hold *read = stage_hold(
            b,
            (far_sim_match){.kind = FAR_SIM_READ, .from = chime_ptr_addr(leaf) + 64, .to = chime_ptr_addr(leaf) + 192});
        assert_int_equal(far_sim_hold_units(read), 2);
        assert_int_equal(far_sim_release_units(read, &(uint32_t){1}, 1), 0);
        far_addr nonce = chime_tail_addr(state_of_a(), leaf, CHIME_TAIL_S);
        far_sim_hold *last =
            far_sim_hold_effect(a->client, (far_sim_match){.kind = FAR_SIM_WRITE, .from = nonce, .to = nonce + 8});
        far_sim_resume(a->client);
        far_sim_run_client(a->client);
        assert_true(far_sim_reached(last));
        assert_true(chime_slot(state_of_a(), memory_of(chime_ptr_addr(leaf)), 8)[0] == wanted);
        far_sim_release(read);
        stage_finish(b);
        uint64_t found;
        memcpy(&found, b->value, sizeof(found));
        assert_true(b->result == 0 && found == 4);
        far_sim_release(last);
        stage_finish(a);
        assert_int_equal(a->result, 0);
        stage_close(&s);
    }
}


static int count_wanted(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    (void)key_len, (void)value, (void)value_len;
    b->pairs += chime_key_number(key, 8) == *(const uint64_t *)ctx;
    return 0;
}


static uint64_t wanted_in_scan;


static void scan_for_wanted(void *arg) {
    stage_actor *by = arg;
    by->pairs = 0;
    by->result = (int)far_scan(by->session, by->index, NULL, 0, NULL, 0, 0, count_wanted, &wanted_in_scan);
    by->ended = true;
}


/* Races A12 and S6. B's scan READs the leaf, and the second line before the first. In between, the wanted key hops from
 * the first line into the second. In the first run A inserts a key for this, and its last WRITE, which changes S, is
 * late; it fails if chime_classify_scanned_leaf (access.c) does not compare the hop bitmaps. In the second run another
 * key was deleted from the second line before the hop, so that the hop bitmap in the first line names a slot in which B
 * has seen an item of that home slot; it fails if classify_lines (access.c) does not compare the values of S. */
TEST(a_hop_inside_one_read_of_a_scan) {
    for (unsigned changes = 1; changes <= 2; changes++) {
        open_chime("key_size=8,value_size=8,hop=4,speculation=off", ONE);
        uint64_t keys[8], newcomer = insert_in_slots(keys);
        wanted_in_scan = keys[4];
        if (changes == 1)
            assert_int_equal(delete (a, keys[7]), 0);
        assert_true(key_has_value(b, wanted_in_scan, 4));
        far_addr leaf = chime_ptr_addr(find_leaf(wanted_in_scan, NULL)),
                 nonce = chime_tail_addr(state_of_a(), find_leaf(wanted_in_scan, NULL), CHIME_TAIL_S);
        b->ended = false;
        stage_start_main(b, "scan", scan_for_wanted);
        far_sim_hold *read = stage_hold(b, (far_sim_match){.kind = FAR_SIM_READ, .from = leaf, .to = leaf + 8});
        assert_int_equal(far_sim_release_units(read, &(uint32_t){2}, 1), 0);
        if (changes == 2)
            assert_int_equal(delete (a, keys[7]), 0);
        start_operation(a, FAR_OP_INSERT, newcomer, 77);
        far_sim_hold *last =
            far_sim_hold_effect(a->client, (far_sim_match){.kind = FAR_SIM_WRITE, .from = nonce, .to = nonce + 8});
        far_sim_run_client(a->client);
        assert_true(far_sim_reached(last));
        if (changes == 2)
            far_sim_release(last);
        assert_true(chime_slot(state_of_a(), memory_of(leaf), 8)[0] == wanted_in_scan);
        far_sim_release(read);
        stage_finish(b);
        assert_true(b->result >= 0 && b->pairs == 1);
        if (changes == 1)
            far_sim_release(last);
        stage_finish(a);
        assert_int_equal(a->result, 0);
        stage_close(&s);
    }
}


/* Race A14 for a scan, on a fabric that tears lines. A is in the middle of a hop, so the wanted key is in two slots.
 * Proves that B's scan waits until S, which A has set to busy, shows the end of the change, and returns the key once.
 * Fails without chime_read_is_stable in classify_lines (access.c), because B then uses the image in which the key is in
 * two slots. */
TEST(a_scan_waits_for_a_busy_leaf) {
    open_chime("key_size=8,value_size=8,hop=4,speculation=off", ONE ",atomic_bytes=8");
    uint64_t keys[8], newcomer = insert_in_slots(keys);
    wanted_in_scan = keys[4];
    assert_int_equal(delete (a, keys[7]), 0);
    assert_true(key_has_value(b, wanted_in_scan, 4));
    far_addr leaf = chime_ptr_addr(find_leaf(wanted_in_scan, NULL)), header = leaf + chime_h1_offset(CHIME_PER_LINE, 1);
    start_operation(a, FAR_OP_INSERT, newcomer, 77);
    far_sim_hold *hold = stage_hold(a, (far_sim_match){.kind = FAR_SIM_WRITE, .from = header, .to = header + 8});
    b->ended = false;
    stage_start_main(b, "scan", scan_for_wanted);
    far_sim_run_for(s.world, 1000000);
    assert_false(b->ended);
    far_sim_release(hold);
    stage_finish(a);
    stage_finish(b);
    assert_true(a->result == 0 && b->result >= 0 && b->pairs == 1);
    stage_close(&s);
}


/* Race A2. A fails between the line WRITEs of an insert with hops. Proves that every key is still in some slot if the
 * lines are written from the highest to the lowest. In ascending order, as in the paper, one key is lost. */
TEST(a_hop_is_cut) {
    static const char *const options[] = {"key_size=8,value_size=8,hop=4",
                                          "key_size=8,value_size=8,hop=4,hop_writes=rising"};
    for (unsigned rising = 0; rising < 2; rising++) {
        unsigned lost = 0;
        for (unsigned verb = 1; verb <= 3; verb++) {
            uint64_t keys[8];
            open_chime(options[rising], ONE);
            uint64_t newcomer = insert_in_slots(keys);
            assert_int_equal(delete (a, keys[7]), 0);
            run_until_point(a, "chime:hop", FAR_OP_INSERT, newcomer, 9);
            far_sim_kill_at(a->client, (far_sim_match){.kind = FAR_SIM_WRITE, .nth = verb}, FAR_SIM_WHOLE);
            far_sim_resume(a->client);
            far_sim_run_client(a->client);
            for (unsigned i = 0; i < 7; i++)
                lost += !key_has_value(b, keys[i], i);
            stage_close(&s);
        }
        assert_int_equal(lost > 0, rising);
    }
}


/* Fills the index so that B's cache leads to the second leaf; A merges that leaf away later. Sets the numbers of its
 * first key and of the key after its last one. */
static void fill_and_find_second_leaf(unsigned *first, unsigned *end) {
    insert_keys(a, 24);
    assert_true(height() >= 1);
    for (unsigned n = 0; n < 24; n++)
        assert_true(key_has_value(b, nth_key(n), n));
    /* the keys of the second leaf */
    uint64_t *tail;
    find_leaf(nth_key(0), &tail);
    uint64_t low = tail[CHIME_TAIL_HIGH];
    find_leaf(low, &tail);
    uint64_t high = tail[CHIME_TAIL_HIGH];
    for (*first = 0; nth_key(*first) < low;)
        ++*first;
    for (*end = *first; *end < 24 && nth_key(*end) < high;)
        ++*end;
    assert_true(*end > *first + 2);
}


/* Merges the second leaf away. Returns its pointer, and sets *first to the number of its first key. */
static chime_ptr merge_a_leaf_away(unsigned *first) {
    unsigned end;
    open_chime(SMALL, ONE);
    fill_and_find_second_leaf(first, &end);
    chime_ptr gone = find_leaf(nth_key(*first), NULL);
    for (unsigned n = *first; n < end; n++)
        assert_int_equal(delete (a, nth_key(n)), 0);
    run_background_work(a);
    assert_true(find_leaf(nth_key(*first), NULL) != gone);
    return gone;
}


/* Race A5. Proves that B, which has an outdated pointer to a merged leaf, cannot lock that leaf. Fails if a merge does
 * not set the lock word of the merged leaf to *dead*: B would wait forever for a lock that no client holds. */
TEST(a_merged_node_cannot_be_locked) {
    unsigned first;
    chime_ptr gone = merge_a_leaf_away(&first);
    assert_true(memory_of(chime_ptr_addr(gone))[chime_node_bytes(CHIME_PER_LINE, 12) / 8 - 1] == CHIME_LOCK_DEAD);
    assert_int_equal(insert(b, nth_key(first), 5), 0);
    assert_true(key_has_value(c, nth_key(first), 5));
    stage_close(&s);
}


/* Race A5. A has taken a lock and finds that it has nothing to change. Meanwhile the memory has become another node,
 * whose lock B holds; the test writes B's lock word. Proves that A frees the lock only if the memory still contains A's
 * own lock word. Fails if chime_unlock_unchanged (access.c) frees the lock by a WRITE. */
TEST(a_lock_is_freed_by_its_own_word) {
    uint64_t *tail;
    open_chime(SMALL, ONE);
    insert_keys(a, 3);
    find_leaf(nth_key(1), &tail);
    uint64_t map = tail[CHIME_TAIL_L];
    run_until_point(a, "chime:locked", FAR_OP_INSERT, nth_key(1), 9);
    assert_true(chime_lock_is_held(tail[CHIME_TAIL_L]));
    uint64_t other = chime_lock_make(chime_lock_owner(tail[CHIME_TAIL_L]) + 1, 7, 0);
    tail[CHIME_TAIL_L] = other;
    stage_finish(a);
    assert_true(a->result == FAR_ERR_EXISTS && tail[CHIME_TAIL_L] == other);
    tail[CHIME_TAIL_L] = map;
    stage_close(&s);
}


/* Race A6. The memory of a merged leaf is used for another leaf, with other fences, while B's cache leads to this
 * memory. Proves that B notices the reuse, by the incarnation tag or by the fences; the test fails if neither is
 * checked. */
TEST(an_address_is_used_again) {
    unsigned first;
    chime_ptr gone = merge_a_leaf_away(&first);
    stage_free_retired(&s);
    /* Appends keys at the right end until a new node uses that memory. */
    unsigned n = 24;
    uint64_t *w = memory_of(chime_ptr_addr(gone));
    for (; n < 400 && chime_h0_tag(chime_tail(chime_state_of(a->index), w)[CHIME_TAIL_H0]) == chime_ptr_tag(gone); n++)
        assert_int_equal(insert(a, nth_key(n), n), 0);
    assert_true(n < 400);
    assert_true(key_is_absent(b, nth_key(first)));
    assert_int_equal(insert(b, nth_key(first), 5), 0);
    assert_true(key_has_value(c, nth_key(first), 5));
    stage_close(&s);
}


/* Race A17. The hotspot buffer leads to a slot of a merged leaf; the key has moved and has a new value. Proves that a
 * get returns the new value, and that a wrong entry is dropped. Fails without the check of the valid bit
 * (chime_line_is_current), or without chime_hot_drop, in search_hotspot (get.c). */
TEST(a_hot_key_has_moved) {
    unsigned first, end;
    open_chime(SMALL ",hotspot=64K", ONE);
    fill_and_find_second_leaf(&first, &end);
    unsigned hot = end - 1;
    assert_true(key_has_value(b, nth_key(hot), hot));
    chime_ptr gone = find_leaf(nth_key(hot), NULL);
    for (unsigned n = 0; n < hot; n++)
        assert_int_equal(delete (a, nth_key(n)), 0);
    run_background_work(a);
    assert_true(find_leaf(nth_key(hot), NULL) != gone);
    assert_int_equal(update(a, nth_key(hot), 1234), 0);
    assert_true(key_has_value(b, nth_key(hot), 1234));
    /* A wrong entry is dropped, so the second get of the deleted key reads no slot in advance. */
    const chime_state *st = chime_state_of(b->index);
    assert_int_equal(delete (a, nth_key(hot)), 0);
    uint64_t before = st->counts.speculated;
    assert_true(key_is_absent(b, nth_key(hot)) && st->counts.speculated == before + 1);
    assert_true(key_is_absent(b, nth_key(hot)) && st->counts.speculated == before + 1);
    stage_close(&s);
}


/* Races A30 and A11. A fails when it has written some lines of the leaf that it splits. Proves that the keys of both
 * halves are found, that no client moves right before the tail is written, and that the next client completes the
 * split. Fails without redo_split (recover.c). */
TEST(a_split_is_cut) {
    static const char *const fabrics[] = {ONE ",atomic_bytes=64", ONE ",atomic_bytes=64,masked_cas=off"};
    for (unsigned i = 0; i < 2; i++)
        for (unsigned lines = 1; lines < 5; lines++) {
            open_chime(SMALL, fabrics[i]);
            unsigned n = 0;
            /* The order of the inserts makes items move. The first loop finds out which insert splits the leaf. */
            for (; n < 13; n++) {
                start_operation(a, FAR_OP_INSERT, nth_key(n * 5 % 13), n * 5 % 13);
                far_sim_stop_before(a->client, (far_sim_match){.point = "chime:split"});
                if (far_sim_run_client(a->client) == FAR_SIM_STOPPED)
                    break;
            }
            assert_true(n < 13 && !a->ended);
            far_sim_kill_at(a->client, (far_sim_match){.kind = FAR_SIM_WRITE}, lines);
            far_sim_resume(a->client);
            far_sim_run_client(a->client);
            for (unsigned k = 0; k < n; k++)
                assert_true(key_has_value(b, nth_key(k * 5 % 13), k * 5 % 13));
            assert_true(key_is_absent(b, nth_key(n * 5 % 13)) || key_has_value(b, nth_key(n * 5 % 13), n * 5 % 13));
            for (unsigned k = 0; k < n; k++) {
                assert_int_equal(update(k % 2 ? b : c, nth_key(k * 5 % 13), 100 + k), 0);
                assert_true(key_has_value(c, nth_key(k * 5 % 13), 100 + k) &&
                            key_has_value(b, nth_key(k * 5 % 13), 100 + k));
            }
            stage_close(&s);
        }
}


/* Race A10. Steps: A splits a leaf, and its pivot is delayed; B inserts the pivot, empties the new leaf and merges it
 * away; A inserts its pivot. Proves that A notices that the leaf no longer exists. Fails without the check of the
 * child's tail under the parent's lock (insert_under_lock, restructure_parent.c). */
TEST(the_splitter_is_late) {
    open_chime(SMALL, ONE);
    insert_keys(b, 24);
    unsigned n = insert_until_split(a, 24);
    chime_ptr made = find_leaf(nth_key(n), NULL);
    /* the atomic that takes the parent's lock */
    assert_true(stop_background_at(a, (far_sim_match){.kind = FAR_SIM_MASKED_CAS}));
    /* B follows the sibling pointer to the new leaf now, and again much later. */
    assert_true(key_has_value(b, nth_key(n), n));
    far_sim_run_for(s.world, 1000000);
    /* a get of a key that the hotspot buffer does not contain, so it descends from the root */
    assert_true(key_is_absent(b, nth_key(n) + 1));
    run_background_work(b);
    assert_int_equal(chime_state_of(b->index)->counts.helps, 1);
    assert_int_equal(delete (b, nth_key(n)), 0);
    run_background_work(b);
    assert_true(find_leaf(nth_key(n), NULL) != made);
    stage_finish(a);
    run_background_work(a);
    assert_keys_present(c, 0, n);
    assert_int_equal(insert(c, nth_key(n), 7), 0);
    assert_true(key_has_value(c, nth_key(n), 7));
    stage_close(&s);
}


/* Race A21. A is stopped before it publishes a new root, and B publishes one. Proves that A's root is not published
 * when A continues, and that no key is lost. Fails without the comparison in the CAS on the root word (grow_root,
 * restructure_parent.c). */
TEST(two_roots) {
    open_chime(SMALL, ONE);
    unsigned n = 0;
    while (chime_state_of(a->index)->counts.splits == 0) {
        assert_int_equal(insert(a, nth_key(n), n), 0);
        n++;
    }
    assert_true(stop_background_at(a, (far_sim_match){.point = "chime:root"}));
    for (unsigned k = n; k < n + 40; k++) /* B splits more leaves and publishes a root. */
        assert_int_equal(insert(b, nth_key(k), k), 0);
    far_sim_run_for(s.world, 1000000);
    assert_keys_present(b, 0, n + 40);
    uint64_t root = *memory_of(a->index->descriptor + CHIME_ROOT_WORD);
    assert_int_equal(chime_ptr_low(root), 1);
    stage_finish(a);
    run_background_work(a);
    assert_true(*memory_of(a->index->descriptor + CHIME_ROOT_WORD) == root);
    assert_keys_present(c, 0, n + 40);
    stage_close(&s);
}


/* Race A30. A is stopped at one of three steps of a merge, and then either continues or fails. Proves that B, which
 * needs a lock of the merge, waits while A is stopped, unless the left node already has the items; that after A's
 * failure the next client completes the merge; and that no key is lost. Hangs if gets or inserts ignore the absorber
 * field (which names the left node), or without the takeover (recover.c). */
TEST(a_client_stops_in_a_merge) {
    static const char *const points[] = {"chime:merge_locked", "chime:merge_committed", "chime:merge_extended"};
    for (unsigned i = 0; i < 3; i++)
        for (unsigned dies = 0; dies < 2; dies++) {
            unsigned first, end;
            open_chime(SMALL, ONE);
            fill_and_find_second_leaf(&first, &end);
            unsigned last = end - 1;
            bool stands = false;
            for (unsigned n = 0; n < last && !stands; n++) {
                assert_int_equal(delete (a, nth_key(n)), 0);
                stands = stop_background_at(a, (far_sim_match){.point = points[i]});
            }
            assert_true(stands);
            if (dies) {
                stage_kill(&s, a);
                assert_int_equal(update(b, nth_key(last), 70), 0);
                assert_int_equal(insert(c, nth_key(last) + 1, 71), 0);
            } else if (i == 2) { /* the left node has the items already, so no operation waits */
                assert_true(key_has_value(b, nth_key(last), last));
                assert_int_equal(update(b, nth_key(last), 70), 0);
                assert_int_equal(insert(b, nth_key(last) + 1, 71), 0);
                unsigned before = 0;
                start_operation(c, FAR_OP_SCAN, nth_key(0), 0);
                stage_finish(c);
                before = c->pairs;
                assert_true(c->result >= 0 && before >= 24 - last);
                stage_finish(a);
            } else {
                start_operation(b, FAR_OP_UPDATE, nth_key(last), 70);
                far_sim_run_for(s.world, 100000);
                assert_false(b->ended);
                far_sim_resume(a->client);
                far_sim_run_client(a->client);
                run_background_work(a);
                stage_finish(b);
                assert_int_equal(b->result, 0);
                assert_int_equal(insert(b, nth_key(last) + 1, 71), 0);
            }
            assert_true(key_has_value(c, nth_key(last), 70) && key_has_value(c, nth_key(last) + 1, 71));
            assert_keys_present(c, end, 24);
            stage_close(&s);
        }
}


/* Race A22. Proves that an insert, an update and a delete return after their last WRITE, which frees the lock, has taken
 * effect. Fails if commit_insert, update_item or remove_item (write.c) does not wait for this WRITE. */
TEST(a_write_returns_after_its_last_verb) {
    static const far_op_kind kinds[] = {FAR_OP_INSERT, FAR_OP_UPDATE, FAR_OP_DELETE};
    open_chime(SMALL, ONE);
    insert_keys(a, 3);
    far_addr lock = chime_tail_addr(state_of_a(), find_leaf(nth_key(1), NULL), CHIME_TAIL_L);
    for (unsigned i = 0; i < 3; i++) {
        start_operation(a, kinds[i], nth_key(i ? 1 : 3), 7);
        far_sim_hold *last = stage_hold(a, (far_sim_match){.kind = FAR_SIM_WRITE, .from = lock, .to = lock + 8});
        far_sim_run_for(s.world, 100000);
        assert_false(a->ended);
        far_sim_release(last);
        stage_finish(a);
        assert_int_equal(a->result, 0);
    }
    stage_close(&s);
}


/* Race A22. The new leaf of a split is on another memory node, and its WRITE is late. Proves that no line of the old
 * leaf names the new leaf before that WRITE has taken effect. Fails without the wait before batch_left_node
 * (chime_split_leaf, restructure_split.c). */
TEST(the_new_leaf_is_late) {
    open_chime(SMALL, "memory_nodes=2");
    unsigned splits = 0;
    for (unsigned n = 0; n < 100; n++) { /* an order of inserts that makes items move */
        unsigned key = n * 37 % 101;
        start_operation(a, FAR_OP_INSERT, nth_key(key), key);
        far_sim_stop_before(a->client, (far_sim_match){.point = "chime:split_begin"});
        if (far_sim_run_client(a->client) != FAR_SIM_STOPPED)
            continue;
        far_sim_hold *hold = far_sim_hold_effect(a->client, (far_sim_match){.kind = FAR_SIM_WRITE});
        far_sim_resume(a->client);
        far_sim_run_client(a->client);
        assert_true(far_sim_reached(hold));
        far_sim_run_for(s.world, 100000); /* No later verb of A takes effect before that WRITE does. */
        assert_false(a->ended);
        for (unsigned k = 0; k < n; k++) {
            start_operation(b, FAR_OP_GET, nth_key(k * 37 % 101), 0);
            far_sim_run_for(s.world, 100000);
            assert_true(b->ended && b->result == 0);
        }
        far_sim_release(hold);
        stage_finish(a);
        splits++;
    }
    assert_true(splits > 6);
    for (unsigned n = 0; n < 100; n++)
        assert_true(key_has_value(c, nth_key(n * 37 % 101), n * 37 % 101));
    stage_close(&s);
}


/* A and B insert the same key while one of them holds the lock. Proves that one insert succeeds, the other fails with
 * FAR_ERR_EXISTS. */
TEST(the_same_key_twice) {
    open_chime(SMALL, NULL);
    insert_keys(a, 6);
    run_until_point(a, "chime:insert", FAR_OP_INSERT, nth_key(9), 1);
    start_operation(b, FAR_OP_INSERT, nth_key(9), 2);
    far_sim_run_for(s.world, 100000);
    assert_false(b->ended);
    far_sim_resume(a->client);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    assert_true(a->result == 0 && b->result == FAR_ERR_EXISTS);
    assert_true(key_has_value(c, nth_key(9), 1));
    stage_close(&s);
}


/* Race A4. A fails while it holds the lock of a leaf, before its change. Proves that B takes the lock over. Fails
 * without chime_repair_if_holder_failed in wait_for_lock (write_lock.c): B waits forever. */
TEST(the_lock_holder_has_failed) {
    static const char *const fabrics[] = {NULL, "masked_cas=off", "atomic_bytes=8"};
    for (unsigned i = 0; i < 3; i++) {
        open_chime(SMALL, fabrics[i]);
        insert_keys(a, 5);
        run_until_point(a, "chime:locked", FAR_OP_UPDATE, nth_key(2), 1);
        stage_kill(&s, a);
        assert_int_equal(update(b, nth_key(2), 70), 0);
        assert_true(key_has_value(c, nth_key(2), 70));
        stage_close(&s);
    }
}


/* Race A26. Steps: A fails while it holds the lock of a leaf; C is about to take the lock over; B takes it over,
 * repairs the leaf, and locks it for an insert of its own; C continues. Proves that C notices that the lock word has
 * changed, and waits for B. Fails without the comparison of the word that the CAS has found (take_over_and_repair,
 * recover.c): C repairs the leaf once more and frees the lock that B holds. */
TEST(a_leaf_is_taken_over_once) {
    static const char *const fabrics[] = {NULL, "masked_cas=off", "atomic_bytes=8"};
    for (unsigned i = 0; i < 3; i++) {
        open_chime(SMALL, fabrics[i]);
        insert_keys(a, 5);
        run_until_point(a, "chime:locked", FAR_OP_UPDATE, nth_key(2), 1);
        stage_kill(&s, a);
        run_until_point(c, "chime:takeover", FAR_OP_INSERT, nth_key(6), 6);
        assert_int_equal(update(b, nth_key(2), 70), 0);
        run_until_point(b, "chime:insert", FAR_OP_INSERT, nth_key(7), 7);
        far_sim_resume(c->client);
        far_sim_run_for(s.world, 1000000);
        assert_false(c->ended);
        far_sim_resume(b->client);
        assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
        assert_true(b->result == 0 && c->result == 0);
        assert_true(key_has_value(b, nth_key(2), 70) && key_has_value(b, nth_key(6), 6) &&
                    key_has_value(c, nth_key(7), 7));
        stage_close(&s);
    }
}
