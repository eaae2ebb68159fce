/* CHIME, scans in both directions during splits, merges and renewals of the pin. The comment above each test says
 * without which guard it fails.
 *
 * Clients A (a), B (b) and C (c) are three compute nodes. B scans. */
#include "chime_rig.h"
#include "pool/epoch/epoch.h"
#include "test.h"

#define COUNT_MAX 512

/* The scan of B, and the keys that it has returned so far. */
static struct {
    bool backward;
    uint64_t from, to; /* to = 0: no bound */
    unsigned count;
    uint64_t key[COUNT_MAX];
} scan;


static int keep_number(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    (void)ctx, (void)key_len, (void)value, (void)value_len;
    scan.key[scan.count++] = chime_key_number(key, 8);
    return scan.count == COUNT_MAX;
}


static void run_scan(void *arg) {
    stage_actor *by = arg;
    const void *to = scan.to ? bytes_of(scan.to) : NULL;
    int64_t (*const run)(far_session *, far_index *, const void *, size_t, const void *, size_t, size_t, far_pair_fn,
                         void *) = scan.backward ? far_scan_reverse : far_scan;
    by->result = (int)run(by->session, by->index, bytes_of(scan.from), 8, to, scan.to ? 8 : 0, 0, keep_number, NULL);
    by->ended = true;
}


static void start_scan(bool backward, uint64_t from, uint64_t to) {
    scan.backward = backward;
    scan.from = from;
    scan.to = to;
    scan.count = 0;
    b->ended = false;
    stage_start_main(b, "scan", run_scan);
}


static void finish_scan(void) {
    stage_finish(b);
    assert_true(b->result >= 0 && (unsigned)b->result == scan.count);
    for (unsigned i = 1; i < scan.count; i++)
        assert_true(scan.backward ? scan.key[i - 1] > scan.key[i] : scan.key[i - 1] < scan.key[i]);
}


static bool scan_returned(uint64_t key) {
    unsigned found = 0;
    for (unsigned i = 0; i < scan.count; i++)
        found += scan.key[i] == key;
    assert_true(found <= 1);
    return found;
}


/* Inserts keys immediately after nth_key(n) until the leaf of this key has been split `splits` times. Returns the number
 * of inserted keys. */
static unsigned split_leaf_of(stage_actor *by, unsigned n, unsigned splits) {
    uint64_t before = chime_state_of(by->index)->counts.splits;
    unsigned more = 0;
    for (; chime_state_of(by->index)->counts.splits < before + splits; more++)
        assert_int_equal(insert(by, nth_key(n) + 1 + more, more), 0);
    run_background_work(by);
    return more;
}


/* Race S1. B has cached the parent of a leaf that A then splits. Proves that B's scan returns also the keys of the new
 * leaves. Backward, it fails if scan_from_leaf (scan.c) does not step right from the left part: the scan would continue
 * below the left part, and the keys of the right parts would be missing. */
TEST(a_scan_returns_the_right_parts_of_a_split) {
    static const char *const fabrics[] = {ONE, ONE ",atomic_bytes=8"};
    for (unsigned i = 0; i < 28; i++) {
        unsigned splits = i / 4 + 1;
        open_chime(SMALL, fabrics[i % 2]);
        insert_keys(a, 40);
        unsigned n = first_key_after_leaf(0, 40);
        assert_keys_present(b, 0, 40);
        unsigned more = split_leaf_of(a, n, splits);
        start_scan(i / 2 % 2, 0, 0);
        finish_scan();
        assert_int_equal(scan.count, 40 + more);
        stage_close(&s);
    }
}


/* Race S2. B has cached a parent that names a leaf which was merged into its left neighbour. Proves that B's scan
 * returns neither the former contents of that leaf nor fewer keys. Fails without node_is_gone in classify_lines
 * (access.c), because B then returns the former contents of the leaf. */
TEST(a_scan_meets_a_merged_leaf) {
    for (unsigned backward = 0; backward < 2; backward++) {
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
        start_scan(backward, nth_key(0), 0);
        finish_scan();
        assert_int_equal(scan.count, 40 - end + 2);
        assert_true(scan_returned(nth_key(from) + 5) && scan_returned(nth_key(0)));
        stage_close(&s);
    }
}


/* Race S3. Steps: B's backward scan has READ the leaves right of the second leaf; A merges the third leaf into the
 * second one, whose range then extends over keys that B returns from its image of the third leaf, and splits the first
 * leaf; B READs the second and the first leaf. Proves that B returns every key that is present throughout, once and in
 * order. Fails if deliver_and_advance (scan.c) also returns the keys of the second leaf above the position, because B
 * has returned these keys already. */
TEST(a_backward_scan_meets_a_merge_and_a_split) {
    static const char *const fabrics[] = {ONE, ONE ",atomic_bytes=8"};
    for (unsigned i = 0; i < 2; i++) {
        open_chime(SMALL, fabrics[i]);
        insert_keys(a, 40);
        unsigned second = first_key_after_leaf(0, 40), third = first_key_after_leaf(second, 40),
                 end = first_key_after_leaf(third, 40), more = 0;
        chime_ptr absorber = leaf_of_nth(second), first = leaf_of_nth(0);
        assert_keys_present(b, 0, 40);
        start_scan(true, 0, 0);
        far_sim_hold *hold =
            stage_hold(b, (far_sim_match){.kind = FAR_SIM_READ,
                                          .from = chime_tail_addr(state_of_a(), absorber, CHIME_TAIL_S),
                                          .to = chime_tail_addr(state_of_a(), absorber, CHIME_TAIL_L)});
        for (unsigned n = second + 1; n < end - 1; n++) /* the two leaves keep their first and their last key */
            assert_int_equal(delete (a, nth_key(n)), 0);
        run_background_work(a);
        assert_true(leaf_of_nth(end - 1) == absorber && leaf_of_nth(second) == absorber);
        for (; find_leaf(nth_key(1) - 1, NULL) == first && find_leaf(nth_key(second) - 1, NULL) == first; more++)
            assert_int_equal(insert(a, nth_key(0) + 1 + more, more), 0);
        run_background_work(a);
        far_sim_release(hold);
        finish_scan();
        for (unsigned n = 0; n < 40; n++)
            assert_true(scan_returned(nth_key(n)) || (n > second && n < end - 1));
        for (unsigned n = 0; n < more; n++)
            assert_true(scan_returned(nth_key(0) + 1 + n));
        stage_close(&s);
    }
}


/* Proves that a backward scan ends at its lower bound, and begins at its upper one, wherever the bounds are in a leaf.
 */
TEST(a_backward_scan_keeps_its_bounds) {
    open_chime(SMALL, ONE);
    insert_keys(a, 30);
    for (unsigned from = 0; from < 30; from++)
        for (unsigned to = from + 1; to <= 30; to++)
            for (unsigned beside = 0; beside < 2; beside++) {
                start_scan(true, nth_key(from) - beside, nth_key(to) - beside);
                finish_scan();
                assert_int_equal(scan.count, to - from);
                assert_true(scan.key[0] == nth_key(to - 1) && scan.key[scan.count - 1] == nth_key(from));
            }
    stage_close(&s);
}


static bool is_absorbed(chime_ptr p) {
    return chime_tail(state_of_a(), memory_of(chime_ptr_addr(p)))[CHIME_TAIL_ABSORBER] != 0;
}


/* Race S4. B has cached the root, which names an inner node of level 1; A merges this inner node into its left
 * neighbour. Proves that B's scan continues in the leaves. Fails if chime_scan (scan.c) takes the node that absorbed
 * the parent for a leaf, because B then returns pivots and child pointers as pairs. */
TEST(a_scan_finds_its_parent_absorbed) {
    const unsigned count = 400;
    for (unsigned backward = 0; backward < 2; backward++) {
        open_chime(SMALL, ONE);
        insert_keys(a, count);
        assert_int_equal(height(), 2);
        chime_ptr last = parent_of_nth(count - 1), first = parent_of_nth(0);
        unsigned n = count - 1;
        while (parent_of_nth(n - 1) == last)
            n--;
        assert_true(first != last && key_has_value(b, nth_key(0), 0));
        for (unsigned k = 1; k + 1 < count && !is_absorbed(last); k++) {
            assert_int_equal(delete (a, nth_key(count - 1 - k)), 0);
            run_background_work(a);
        }
        assert_true(is_absorbed(last));
        start_scan(backward, nth_key(n), 0);
        finish_scan();
        assert_int_equal(scan.count, 1);
        assert_true(scan_returned(nth_key(count - 1)));
        stage_close(&s);
    }
}


/* Tests of a renewal of the pin in the middle of a batch. The index has blocks, so its fences are references. */

#define BLOCKS "key_size=8,value_size=16,inline=8,span=12,hop=4,merge=sparse,patience=2"
static const char values[3][17] = {"0123456789abcdef", "the second value", "the third value."};


static void put_block(stage_actor *by, unsigned n, unsigned value) {
    assert_int_equal(far_put(by->session, by->index, bytes_of(nth_key(n)), 8, values[value], 16), 0);
}


/* Returns the leftmost leaf of an index with blocks, read from far memory without verbs: the child of the leftmost pivot,
 * which is the empty key. */
static chime_ptr find_leftmost_leaf(void) {
    chime_ptr p = *memory_of(a->index->descriptor + CHIME_ROOT_WORD);
    for (unsigned level = chime_ptr_low(p); level > 0; level--) {
        uint64_t *w = memory_of(chime_ptr_addr(p));
        unsigned slot = 0;
        while (!chime_slot_is_occupied(state_of_a(), w, slot) || chime_slot(state_of_a(), w, slot)[0] != 0)
            slot++;
        p = chime_slot(state_of_a(), w, slot)[1];
    }
    return chime_ptr_without_low(p);
}


static chime_ptr right_sibling(chime_ptr p) {
    return chime_h1_sibling(chime_tail(state_of_a(), memory_of(chime_ptr_addr(p)))[CHIME_TAIL_H1]);
}


/* Lets B READ the busy leaf a few times, which renews its pin. */
static void let_b_retry(void) {
    uint64_t verbs = far_sim_verbs(b->client) + 12;
    while (far_sim_verbs(b->client) < verbs)
        far_sim_run_for(s.world, 10000);
    assert_false(b->ended);
}


/* Runs B's scan while the leaf `busy` looks as if it was being changed, so that B waits and renews its pin. Meanwhile C
 * replaces the blocks of the pairs from..end - 1, and the former blocks are freed and used again. */
static void scan_while_blocks_are_replaced(bool backward, chime_ptr busy, unsigned from, unsigned end) {
    uint64_t *nonce = memory_of(chime_tail_addr(state_of_a(), busy, CHIME_TAIL_S));
    assert_false(chime_nonce_busy(*nonce));
    *nonce |= 1;
    start_scan(backward, 0, 0);
    for (unsigned round = 0; round < 12; round++) {
        let_b_retry();
        for (unsigned n = from; n < end; n++)
            put_block(c, n, round % 2 + 1);
        far_epoch_request(s.c.pool);
        far_sim_sleep(s.world, 100000);
        stage_poll(&s, 1);
    }
    *nonce &= ~1ull;
    finish_scan();
}


/* Race S5. Steps: B READs several leaves in one batch; the first one is being changed, so B waits and renews its pin; C
 * replaces blocks that the other images name, and the blocks are used again. Proves that B READs the other leaves again.
 * Forward, it fails if scan_batch (scan.c) continues with the batch although the pin was renewed. Backward, B waits for
 * the right part of a split leaf, and it fails if scan_batch then returns to the image of the left part. */
TEST(leaves_read_under_an_old_pin_are_not_used) {
    enum { KEYS = 30 };
    for (unsigned backward = 0; backward < 2; backward++) {
        open_chime(BLOCKS, ONE);
        for (unsigned n = 0; n < KEYS; n++)
            put_block(a, n, 0);
        run_background_work(a);
        for (unsigned n = 0; n < KEYS; n++) {
            char found[16];
            size_t length;
            assert_int_equal(far_get(b->session, b->index, bytes_of(nth_key(n)), 8, found, 16, &length), 0);
        }
        unsigned all = KEYS;
        uint64_t splits = chime_state_of(a->index)->counts.splits;
        while (backward && chime_state_of(a->index)->counts.splits == splits)
            put_block(a, all++, 0);
        run_background_work(a);
        chime_ptr busy = find_leftmost_leaf();
        while (backward && right_sibling(busy))
            busy = right_sibling(busy);
        scan_while_blocks_are_replaced(backward, busy, backward ? 0 : 12, backward ? all - 1 : all);
        assert_int_equal(scan.count, all);
        for (unsigned n = 0; n < all; n++)
            assert_true(scan_returned(nth_key(n)));
        stage_close(&s);
    }
}
