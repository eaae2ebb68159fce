/* Dolphin, scans in both directions: all kinds of keys and bounds, and named interleavings of scans with writes and
 * structure changes. Each test fails if the guard that its comment names is removed. */
#include "base/random.h"
#include "dolphin_rig.h"
#include "test.h"

#include <stdlib.h>

#define SLOTS4 WORDS ",leaf_slots=4"


/* Scans against a sorted array of the same keys. */

#define KEYS_MAX 700u

typedef struct plain_key {
    size_t length;
    uint8_t bytes[FAR_KEY_MAX];
} plain_key;

typedef struct expected_keys { /* the keys that a scan must return, from `next` on, in steps of `step` */
    const plain_key *keys;
    int next, step;
    unsigned given;
    bool right;
} expected_keys;


static int compare_plain_keys(const void *x, const void *y) {
    const plain_key *k = x, *l = y;
    return far_bytes_compare((far_bytes){k->bytes, k->length}, (far_bytes){l->bytes, l->length});
}


/* Makes a key of bytes that are special for the index: the smallest and the greatest byte, and bytes between. Some keys
 * have a long common prefix, and some have the greatest length. */
static plain_key random_key(far_random *random) {
    static const uint8_t bytes[] = {0, 1, 'a', 'b', 0xff};
    static const char prefix[] = "a common prefix that does not fit into a word";
    plain_key key = {0};
    if (far_random_chance(random, 1, 4)) {
        key.length = far_random_below(random, 3) ? sizeof(prefix) - 1 : 9;
        memcpy(key.bytes, prefix, key.length);
    }
    size_t length = key.length + 1 + far_random_below(random, 10);
    if (far_random_chance(random, 1, 50))
        length = FAR_KEY_MAX - far_random_below(random, 2);
    uint8_t last = bytes[far_random_below(random, sizeof(bytes))];
    for (size_t first = key.length; key.length < length; key.length++)
        key.bytes[key.length] = key.length < first + 10 ? bytes[far_random_below(random, sizeof(bytes))] : last;
    return key;
}


static int compare_with_expected(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    expected_keys *e = ctx;
    const plain_key *k = &e->keys[e->next];
    e->right &=
        key_len == k->length && memcmp(key, k->bytes, key_len) == 0 && value_len == 8 && memcmp(value, V1, 8) == 0;
    e->next += e->step;
    e->given++;
    return !e->right;
}


/* Returns the number of keys that are smaller than the bound. */
static unsigned count_below(const plain_key *keys, unsigned count, const plain_key *bound) {
    unsigned below = 0;
    while (below < count && compare_plain_keys(&keys[below], bound) < 0)
        below++;
    return below;
}


static void scan_and_compare(const plain_key *keys, unsigned count, far_random *random) {
    bool bounded = far_random_chance(random, 2, 3), backward = far_random_chance(random, 1, 2);
    bool starts = far_random_chance(random, 2, 3);
    plain_key from = starts ? random_key(random) : (plain_key){0}, to = random_key(random);
    unsigned first = count_below(keys, count, &from), last = bounded ? count_below(keys, count, &to) : count;
    size_t limit = far_random_chance(random, 1, 2) ? 0 : 1 + far_random_below(random, 40);
    unsigned wanted = last > first ? last - first : 0;
    expected_keys e = {keys, backward ? (int)last - 1 : (int)first, backward ? -1 : 1, 0, true};
    int64_t got = (backward ? far_scan_reverse : far_scan)(a->session, a->index, from.bytes, from.length,
                                                           bounded ? to.bytes : NULL, bounded ? to.length : 0, limit,
                                                           compare_with_expected, &e);
    if (limit && limit < wanted)
        wanted = (unsigned)limit;
    if (!e.right || e.given != wanted || got != (int64_t)wanted)
        fail_msg("a %s scan gave %u pairs instead of %u", backward ? "backward" : "forward", e.given, wanted);
}


/* Inserts keys of all lengths, deletes a part of them, and compares scans with random bounds and limits with a sorted
 * array. Fails if a scan leaves out or repeats keys at the borders of leaves, nodes, NULL intervals or chunks
 * (scan_range.c, skip_nulls and skip_divergent_node in scan.c), or if the pairs of a leaf are not sorted
 * (leaf_pairs.c). */
TEST(scans_equal_a_sorted_array) {
    static const char *const options[] = {"leaf_slots=4", WORDS, SLOTS2 ",cache=off", "leaf_slots=4,scan_batch=1",
                                          "value_size=8,leaf_slots=16,coverage=lastbyte"};
    static plain_key keys[KEYS_MAX];
    for (unsigned o = 0; o < sizeof(options) / sizeof(options[0]); o++) {
        far_random random;
        unsigned count = 0;
        far_random_seed(&random, o);
        inserts_by_ticket(NULL);
        open_stage(options[o], "size=16M");
        for (unsigned i = 0; i < KEYS_MAX; i++) {
            keys[count] = random_key(&random);
            int err = far_insert(a->session, a->index, keys[count].bytes, keys[count].length, V1, 8);
            assert_true(err == 0 || err == FAR_ERR_EXISTS);
            count += err == 0;
        }
        qsort(keys, count, sizeof(keys[0]), compare_plain_keys);
        for (unsigned round = 0; round < 3; round++) {
            for (unsigned i = 0; i < 300; i++)
                scan_and_compare(keys, count, &random);
            unsigned kept = 0;
            for (unsigned i = 0; i < count; i++)
                if (far_random_chance(&random, 1, 3))
                    keys[kept++] = keys[i];
                else
                    assert_int_equal(far_delete(a->session, a->index, keys[i].bytes, keys[i].length), 0);
            count = kept;
        }
        stage_close(&s);
    }
}


/* Interleavings. */

/* Race A29. B has cached the node. A splits the leaf with nb and nc to insert nd, and fails after it has linked the new
 * leaf for nc and nd. C recovers: it reduces the old leaf to nb. B's backward scan comes from nx and finds the same
 * incarnation of the old leaf in its cache. It must READ the node again to find nc and nd. Fails if a scan does not
 * check that the leaf covers its cursor (dolphin_classify_leaf in find.c). */
TEST_OF_BOTH_INSERTS(backward_scan_of_a_narrowed_leaf) {
    open_stage(SLOTS2, NULL);
    put_all(a, FIVE);
    assert_true(keys_have_value(b, FIVE, V1));
    dolphin_node node = node_at("na", 1);
    uint64_t entry = leaf_entry("nb", 1);
    int at = dolphin_find_entry(&node, dolphin_position((far_bytes){"nb", 2}, 1));
    far_addr place = dolphin_entry_word_addr(&node, (unsigned)at);
    stage_start(a, FAR_OP_INSERT, "nd", V1);
    far_sim_kill_at(a->client, (far_sim_match){.kind = FAR_SIM_CAS, .from = place, .to = place + 8}, 0);
    far_sim_run_client(a->client);
    stage_kill(&s, a);
    stage_start(c, FAR_OP_PUT, "nb", V2);
    for (unsigned i = 0; i < 1000 && !c->ended; i++) {
        far_sim_run_for(s.world, 10000);
        stage_poll(&s, 1);
    }
    assert_true(c->ended && c->result == 0 && leaf_entry("nb", 1) == entry);
    assert_true(memory_at(dolphin_entry_addr(entry))[1] & DOLPHIN_NARROWED);
    assert_true(scans_backward(b, "n", "na nb nc nd nx ny"));
    stage_close(&s);
}


static unsigned count_of_key(const stage_actor *by, const char *key) {
    unsigned times = 0;
    for (unsigned i = 0; i < by->pairs; i++)
        times += strcmp(by->keys[i], key) == 0;
    return times;
}


/* Race A29. B's scan has READ a leaf, the first one of a forward scan or the second one of a backward scan, and stops.
 * A empties the next leaf, and merges the leaf of B with the one behind. Then B's cursor is in the middle of the merged
 * leaf. B must return each key that is present all the time exactly once. Fails if a scan takes all keys of a leaf
 * instead of those in its range (select_keys in leaf_pairs.c). */
TEST_OF_BOTH_INSERTS(scan_continues_in_a_merged_leaf) {
    for (unsigned backward = 0; backward < 2; backward++) {
        static const char *const stay[] = {"na", "ne", "ng", "nh", "ni", "nj"};
        open_stage(SLOTS4 ",scan_batch=1", NULL);
        put_all(a, "na nb nc nd ne nf ng nh ni nj"); /* The leaves contain na nb; nc nd; ne nf; ng nh ni nj. */
        if (backward)
            start_backward_scan(b, "n");
        else
            stage_start(b, FAR_OP_SCAN, "n", NULL);
        stage_stop_at(b, (far_sim_match){.point = "dolphin:scan_read", .nth = 1 + backward});
        stage_delete(a, backward ? "nf" : "nb");
        stage_delete(a, "nc");
        stage_delete(a, "nd");
        assert_int_equal(leaf_entry("na", 1), leaf_entry("ne", 1));
        stage_finish(b);
        for (unsigned i = 0; i < sizeof(stay) / sizeof(stay[0]); i++)
            assert_int_equal(count_of_key(b, stay[i]), 1);
        stage_close(&s);
    }
}


/* Race A29 for a backward scan. B's scan has READ some leaves and stops. A replaces leaves that B has not READ, and
 * adds keys. Each key that is present all the time must appear exactly once, and the scan must contain the keys that A
 * has added before the leaves that B has READ. Fails if a scan accepts a frozen leaf that its node does not name any
 * more (read_and_emit_leaves in scan.c). */
TEST_OF_BOTH_INSERTS(backward_scan_vs_splits) {
    open_stage(SLOTS4 ",scan_batch=1", NULL);
    put_all(a, "na nb nc nd ne nf ng nh ni nj");
    assert_true(scans_backward(b, "n", "na nb nc nd ne nf ng nh ni nj"));
    start_backward_scan(b, "n");
    stage_stop_at(b, (far_sim_match){.point = "dolphin:scan_read"});
    put_all(a, "naa nab nac nea neb nec");
    stage_finish(b);
    assert_true(scanned_backward(b, "na naa nab nac nb nc nd ne nea neb nec nf ng nh ni nj"));
    stage_close(&s);
}


/* Race A5 for a scan. B's READ of the leaf copies the value words. A inserts nc. Then B's READ copies the key words.
 * B's scan must return A's value. Fails without reread_missing_values in emit_raw_values (scan.c): the scan returns
 * POISON. */
TEST_OF_BOTH_INSERTS(scan_copies_values_before_keys) {
    for (unsigned backward = 0; backward < 2; backward++) {
        open_stage(SLOTS4, "atomic_bytes=8");
        put_all(a, "na nb");
        far_addr leaf = dolphin_entry_addr(leaf_entry("na", 0));
        if (backward)
            start_backward_scan(b, "nc");
        else
            stage_start(b, FAR_OP_SCAN, "nc", NULL);
        far_sim_hold *hold = stage_hold(b, (far_sim_match){.kind = FAR_SIM_READ, .from = leaf, .to = leaf + 128});
        static const uint32_t values[] = {12, 13, 14, 15};
        assert_int_equal(far_sim_release_units(hold, values, 4), 0);
        assert_int_equal(stage_do(a, FAR_OP_INSERT, "nc", V2), 0);
        far_sim_release(hold);
        stage_finish(b);
        assert_int_equal(b->result, 1);
        assert_memory_equal(b->value, V2, 8);
        stage_close(&s);
    }
}


/* A scan of one pair. B's READ of the leaf copies the key words. A deletes the key that is nearest to B's cursor. Then
 * B's READ copies the value words. B must pass the deleted key and return the next key of the same leaf. Fails if
 * emit_leaf (scan.c) leaves the whole interval of the leaf, although dolphin_read_pairs has returned only one pair. */
TEST_OF_BOTH_INSERTS(scan_of_one_pair_passes_a_deleted_key) {
    for (unsigned backward = 0; backward < 2; backward++) {
        open_stage("leaf_slots=4,hints=off", "atomic_bytes=8");
        put_all(a, "na nb nc");
        far_addr leaf = dolphin_entry_addr(leaf_entry("na", 0));
        b->limit = 1;
        b->to = "o";
        if (backward)
            start_backward_scan(b, "n");
        else
            stage_start(b, FAR_OP_SCAN, "n", NULL);
        far_sim_hold *hold = stage_hold(b, (far_sim_match){.kind = FAR_SIM_READ, .from = leaf, .to = leaf + 128});
        static const uint32_t header_and_keys[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
        assert_int_equal(far_sim_release_units(hold, header_and_keys, 12), 0);
        stage_delete(a, backward ? "nc" : "na");
        far_sim_release(hold);
        stage_finish(b);
        assert_int_equal(b->result, 1);
        assert_string_equal(b->keys[0], "nb");
        stage_close(&s);
    }
}


static far_op gets[2];
static char got[2][32];


/* The main function of a client that submits gets of nb and nc together. */
static void run_two_gets(void *actor) {
    static const char *const keys[] = {"nb", "nc"};
    stage_actor *by = actor;
    far_op *many[2] = {&gets[0], &gets[1]}, *done[2];
    for (unsigned i = 0; i < 2; i++) {
        gets[i] = (far_op){.kind = FAR_OP_GET, .index = by->index, .key = keys[i], .key_len = 2};
        gets[i].value = got[i];
        gets[i].capacity = sizeof(got[i]);
    }
    by->result = far_submit(by->session, many, 2);
    for (int ended = 0; ended < 2;)
        ended += far_reap(by->session, done, 2, 1);
    by->ended = true;
}


/* Race A5 for gets that are submitted together. B's READ of the leaf copies the value words. A inserts nc. Then B's
 * READ copies the key words. The get of nc must return A's value. Fails if find_in_known_leaf (find.c) returns a value
 * word without a value. */
TEST_OF_BOTH_INSERTS(gets_together_copy_values_before_keys) {
    static const char *const options[] = {SLOTS4, "hints=off,leaf_slots=4"};
    for (unsigned o = 0; o < 2; o++) {
        open_stage(options[o], "atomic_bytes=8");
        put_all(a, "na nb");
        assert_true(stage_reads(b, "na", V1));
        far_addr leaf = dolphin_entry_addr(leaf_entry("na", 0));
        b->ended = false;
        stage_start_main(b, "gets", run_two_gets);
        far_sim_hold *hold = stage_hold(b, (far_sim_match){.kind = FAR_SIM_READ, .from = leaf, .to = leaf + 128});
        static const uint32_t values[] = {12, 13, 14, 15};
        assert_int_equal(far_sim_release_units(hold, values, 4), 0);
        assert_int_equal(stage_do(a, FAR_OP_INSERT, "nc", V2), 0);
        far_sim_release(hold);
        stage_finish(b);
        assert_true(b->result == 2 && gets[0].result == 0 && gets[1].result == 0);
        assert_memory_equal(got[0], V1, 8);
        assert_memory_equal(got[1], V2, 8);
        stage_close(&s);
    }
}


/* Race A36. B's READ of the leaf copies the slot of na. A deletes na and inserts it again into another slot. Then B's
 * READ copies that slot, so B's image shows na LIVE in two slots. B's scan must return na once, with its new value.
 * Fails without drop_older_duplicates (leaf_pairs.c), or if it keeps the pair in the lower slot. */
TEST_OF_BOTH_INSERTS(scan_sees_two_lives_of_a_key) {
    static const char *const keys[] = {"na", "na-with-a-long-suffix"}, *const options[] = {SLOTS4, "leaf_slots=4"};
    for (unsigned i = 0; i < 8; i++) {
        const char *key = keys[i & 1];
        open_stage(options[i >> 1 & 1], "atomic_bytes=8");
        stage_write(a, key, V1);
        stage_write(a, "nb", V1);
        far_addr leaf = dolphin_entry_addr(leaf_entry("na", 0));
        b->to = "nb";
        if (i & 4)
            start_backward_scan(b, "n");
        else
            stage_start(b, FAR_OP_SCAN, "n", NULL);
        far_sim_hold *hold = stage_hold(b, (far_sim_match){.kind = FAR_SIM_READ, .from = leaf, .to = leaf + 128});
        static const uint32_t first_life[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 12};
        assert_int_equal(far_sim_release_units(hold, first_life, 10), 0);
        stage_delete(a, key);
        stage_write(a, key, V2);
        far_sim_release(hold);
        stage_finish(b);
        assert_int_equal(b->result, 1);
        assert_string_equal(b->keys[0], key);
        assert_memory_equal(b->value, V2, 8);
        stage_close(&s);
    }
}


/* Race A28 for a backward scan. B's READ of the node is torn: it shows a NULL interval that has become shorter, but not
 * the new entries above it. B's scan skips the NULL interval of nx and ny, and finds this NULL entry next to it. The
 * entry does not cover the positions between them, so B must READ the node again. Fails without dolphin_entry_may_cover
 * in find_null (scan.c). */
TEST_OF_BOTH_INSERTS(backward_scan_passes_a_torn_null) {
    open_stage(SLOTS2, "atomic_bytes=8");
    put_all(a, "na nm nx ny nna"); /* The leaves then contain na; nm nna; nx ny. */
    stage_delete(a, "nx");
    stage_delete(a, "ny");
    stage_delete(a, "nm");
    dolphin_node node = node_at("na", 1);
    int top = dolphin_find_entry(&node, DOLPHIN_LAST_POSITION);
    assert_int_equal(dolphin_entry_kind(node.entries[top]), DOLPHIN_KIND_NULL);
    uint32_t first_free = 0, units = dolphin_class_bytes(node.class) / 8, late[512], early[512], n = 0, m = 0;
    while (node.entries[first_free])
        first_free++;
    far_addr at = node_addr("na");
    b->to = "o";
    start_backward_scan(b, "nm");
    far_sim_hold *hold = stage_hold(b, (far_sim_match){.kind = FAR_SIM_READ, .from = at, .to = at + 8});
    for (uint32_t i = 0; i < units; i++)
        if (i >= (uint32_t)(node.entries - node.image) + first_free)
            early[n++] = i;
        else
            late[m++] = i;
    assert_int_equal(far_sim_release_units(hold, early, n), 0);
    put_all(a, "nnb");
    assert_int_equal(far_sim_release_units(hold, late, m), 0);
    stage_finish(b);
    assert_int_equal(b->result, 2);
    assert_true(scanned_backward(b, "nna nnb"));
    stage_close(&s);
}


/* Damage has changed a key word, so a leaf contains a key that belongs to a leaf which the scan visits later. The scan
 * must fail instead of returning keys out of order. Fails without pairs_are_in_interval (leaf_pairs.c). */
TEST_OF_BOTH_INSERTS(scan_of_a_leaf_with_a_foreign_key) {
    static const char *const foreign_keys[] = {"nz", "n"};
    for (unsigned backward = 0; backward < 2; backward++) {
        far_bytes foreign_key = {foreign_keys[backward], strlen(foreign_keys[backward])};
        open_stage(SLOTS2, NULL);
        put_all(a, FIVE);
        far_addr leaf = dolphin_entry_addr(leaf_entry("nb", 1));
        *memory_at(dolphin_kword_addr(leaf, 0)) =
            dolphin_kword_with_state(dolphin_inline_kword(foreign_key, 1), DOLPHIN_SLOT_LIVE);
        if (backward) {
            stage_set(b, FAR_OP_SCAN, "n", NULL);
            run_backward_scan(b);
        } else
            stage_do(b, FAR_OP_SCAN, "n", NULL);
        assert_int_equal(b->result, FAR_ERR_CORRUPT);
        *memory_at(dolphin_kword_addr(leaf, 0)) =
            dolphin_kword_with_state(dolphin_inline_kword((far_bytes){"nb", 2}, 1), DOLPHIN_SLOT_LIVE);
        stage_close(&s);
    }
}
