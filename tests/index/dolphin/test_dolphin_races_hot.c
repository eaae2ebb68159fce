/* Dolphin, named interleavings of hot_updates=on: updates of value blocks in one round trip, by clients that are not
 * counted as writers, against structure changes, deletes, other updates and failures. Each test fails if the guard that
 * its comment names is removed. The rules are at the top of src/index/dolphin/write_hot.c. */
#include "dolphin_rig.h"
#include "pool/epoch/epoch.h"
#include "test.h"

#include <stdlib.h>
#include <xxhash.h>

#define SLOTS4     "leaf_slots=4,hot_updates=on"
#define CANDIDATES 600000u
#define FEW_HINTS  (16u << 10) /* a cache of this size has 16 places for slot hints */
#define PLACE_BITS 4u


static far_stats stats_of(const stage_actor *by) {
    far_stats now;
    far_session_stats(by->session, &now);
    return now;
}


/* Returns the number of round trips of an operation of A, which must succeed. */
static uint64_t round_trips_of(far_op_kind does, const char *key, const char *value) {
    far_stats before = stats_of(a);
    assert_int_equal(stage_do(a, does, key, value), 0);
    far_stats after = stats_of(a);
    return far_stats_diff(&after, &before).round_trips;
}


static far_addr leaf_of_na(void) {
    return dolphin_entry_addr(leaf_entry("na", 0));
}


/* Puts four keys with this value into one leaf. Afterwards A's hint contains the slot and the value word of na. */
static void open_stage_with_value(const char *value) {
    open_stage(SLOTS4, NULL);
    for (const char *key = "abcd"; *key; key++)
        stage_write(b, (char[]){'n', *key, 0}, value);
    assert_true(stage_reads(a, "na", value));
}


/* A hot update takes one round trip as long as no other client writes the key. It uses the value word that a get has
 * seen, or that the last update has written. Fails if the hint is not updated (finish_replaced_value in write_hot.c).
 */
TEST_WITH(hot_update_is_one_round_trip, inserts_by_ticket, NULL) {
    static const char *const values[] = {"short", LONG1};
    for (unsigned i = 0; i < 2; i++) {
        open_stage_with_value(values[i]);
        /* the first update also allocates memory for the next ones */
        assert_int_equal(round_trips_of(FAR_OP_UPDATE, "na", LONG2), 1);
        far_stats before = stats_of(a);
        assert_int_equal(round_trips_of(FAR_OP_UPDATE, "na", LONG2), 1);
        assert_int_equal(round_trips_of(FAR_OP_PUT, "na", values[i]), 1);
        assert_int_equal(round_trips_of(FAR_OP_UPDATE, "na", LONG2), 1);
        far_stats after = stats_of(a), d = far_stats_diff(&after, &before);
        assert_true(d.cas == 6 && d.faa == 0 && d.reads == 0);
        assert_true(stage_reads(b, "na", LONG2) && stage_reads(a, "na", LONG2));
        stage_close(&s);
    }
}


/* B replaces the leaf. It has frozen the leaf but not its value words, so A's hot update still takes effect, and B's
 * copy must contain it. Fails if dolphin_freeze_values (write_hot.c) copies the words that were READ before instead of
 * those that its FAAs return. */
TEST_WITH(hot_update_before_the_words_freeze, inserts_by_ticket, NULL) {
    open_stage_with_value(LONG1);
    run_to_point(b, "dolphin:frozen", FAR_OP_INSERT, "ne", LONG1);
    assert_int_equal(round_trips_of(FAR_OP_UPDATE, "na", LONG2), 1);
    stage_finish(b);
    assert_true(b->result == 0 && stage_reads(c, "na", LONG2) && stage_reads(a, "na", LONG2));
    stage_close(&s);
}


/* B replaces the leaf and has frozen its value words. The CAS of A's hot update must fail, and A must wait for the
 * copy. Fails if the value words are not frozen, because the update would be lost. */
TEST_WITH(hot_update_after_the_words_froze, inserts_by_ticket, NULL) {
    open_stage_with_value(LONG1);
    run_to_point(b, "dolphin:values_frozen", FAR_OP_INSERT, "ne", LONG1);
    start_and_assert_waiting(a, FAR_OP_UPDATE, "na", LONG2);
    assert_true(stage_reads(c, "na", LONG1) && stage_scans(c, "n", "na nb nc nd"));
    stage_finish(b);
    stage_finish(a);
    assert_true(a->result == 0 && stage_reads(c, "na", LONG2) && stage_reads(c, "nd", LONG1));
    stage_close(&s);
}


/* B finds na and stops before its delete. A's hot update changes the value word. So B's delete makes the slot DEAD, but
 * its CAS that clears the value word fails, and the DEAD slot keeps the value word. A's next update must return "not
 * found", and the block must be freed once. Fails without the check of the key word (dolphin_update_hot in
 * write_hot.c). */
TEST_WITH(hot_update_of_a_dead_slot, inserts_by_ticket, NULL) {
    open_stage_with_value(LONG1);
    run_to_point(b, "dolphin:remove", FAR_OP_DELETE, "na", NULL);
    assert_int_equal(round_trips_of(FAR_OP_UPDATE, "na", LONG2), 1);
    stage_finish(b);
    assert_int_equal(b->result, 0);
    assert_true(*memory_at(dolphin_vword_addr(leaf_of_na(), 4, 0)) != 0);
    assert_int_equal(stage_do(a, FAR_OP_UPDATE, "na", LONG1), FAR_ERR_NOT_FOUND);
    assert_true(stage_reads(c, "na", NULL));
    stage_write(a, "na", LONG2);
    assert_true(stage_reads(c, "na", LONG2));
    stage_close(&s);
}


/* B's delete takes effect between A's CAS of the key word and A's CAS of the value word. A's update returns success,
 * because it counts as executed just before the delete. Afterwards na must be absent. Fails if A repeats the update
 * after the delete. */
TEST_WITH(delete_between_the_key_check_and_the_update, inserts_by_ticket, NULL) {
    open_stage_with_value(LONG1);
    run_to_point(b, "dolphin:remove", FAR_OP_DELETE, "na", NULL);
    assert_int_equal(round_trips_of(FAR_OP_UPDATE, "na", LONG2), 1);
    far_addr value = dolphin_vword_addr(leaf_of_na(), 4, 0);
    stage_start(a, FAR_OP_UPDATE, "na", LONG1);
    far_sim_hold *hold = stage_hold(a, (far_sim_match){.kind = FAR_SIM_CAS, .from = value, .to = value + 8});
    stage_finish(b);
    far_sim_release(hold);
    stage_finish(a);
    assert_true(b->result == 0 && a->result == 0 && stage_reads(c, "na", NULL));
    stage_close(&s);
}


/* While A's CAS of the key word is held back, its CAS of the value word must not take effect. Fails if
 * cas_key_and_value (write_hot.c) posts the two in the other order: after the CAS of the value word, other clients
 * could read A's value, and a delete before the CAS of the key word would then make A's update return "not found". */
TEST_WITH(key_check_comes_before_the_update, inserts_by_ticket, NULL) {
    open_stage_with_value(LONG1);
    far_addr kword = dolphin_kword_addr(leaf_of_na(), 0), value = dolphin_vword_addr(leaf_of_na(), 4, 0);
    uint64_t old = *memory_at(value);
    stage_start(a, FAR_OP_UPDATE, "na", LONG2);
    far_sim_hold *look = stage_hold(a, (far_sim_match){.kind = FAR_SIM_CAS, .from = kword, .to = kword + 8});
    for (unsigned i = 0; i < 20; i++)
        far_sim_run_client(a->client);
    assert_true(!a->ended && *memory_at(value) == old);
    far_sim_release(look);
    stage_finish(a);
    assert_true(a->result == 0 && stage_reads(c, "na", LONG2));
    stage_close(&s);
}


/* C has updated the key since A's hint was set. A's first CAS fails, and A tries again with the word that it returned:
 * two round trips. A's value must be stored. Fails if the failed CAS is reported as success. */
TEST_WITH(hot_update_by_an_old_word, inserts_by_ticket, NULL) {
    open_stage_with_value(LONG1);
    assert_int_equal(stage_do(c, FAR_OP_UPDATE, "na", LONG2), 0);
    assert_int_equal(round_trips_of(FAR_OP_UPDATE, "na", V3), 2);
    assert_true(stage_reads(c, "na", V3) && stage_reads(a, "na", V3));
    stage_close(&s);
}


/* The first CAS of A's hot update has failed because its hint was old. The second CAS fails too, for one of three
 * reasons. If C has updated or deleted the key meanwhile, A returns success, because its update counts as executed just
 * before C's change. If B has frozen the word to replace the leaf, the update must be made in the new leaf. Fails if
 * these cases are not distinguished at the end of dolphin_update_hot (write_hot.c). */
TEST_WITH(second_try_of_a_hot_update_fails, inserts_by_ticket, NULL) {
    for (unsigned i = 0; i < 3; i++) {
        open_stage_with_value(LONG1);
        assert_int_equal(stage_do(c, FAR_OP_UPDATE, "na", LONG2), 0);
        run_to_nth_point(a, "dolphin:update_hot", 2, FAR_OP_UPDATE, "na", V3);
        if (i == 0)
            assert_int_equal(stage_do(c, FAR_OP_UPDATE, "na", LONG1), 0);
        else if (i == 1)
            stage_delete(c, "na");
        else {
            run_to_point(b, "dolphin:values_frozen", FAR_OP_INSERT, "ne", LONG1);
            far_sim_resume(a->client);
            far_sim_run_for(s.world, 100000);
            assert_false(a->ended);
            stage_finish(b);
        }
        stage_finish(a);
        assert_int_equal(a->result, 0);
        assert_true(stage_reads(c, "na", i == 0 ? LONG1 : i == 1 ? NULL : V3));
        stage_close(&s);
    }
}


/* Advances the epoch by one, so that all handles have observed it. */
static void advance_epoch(void) {
    uint64_t *epoch = memory_at(FAR_SUPER_EPOCH), was = *epoch;
    while (*epoch == was) {
        far_epoch_request(a->pool);
        far_sim_sleep(s.world, 100000);
        stage_poll(&s, 1);
    }
    stage_poll(&s, 1);
    assert_int_equal(*epoch, was + 1);
}


/* A hint may be used for one epoch after its value word was seen. After two epochs the update must use the usual
 * protocol, with two round trips. Fails if dolphin_slot_hint_get_value (cache_hints.c) returns the value word for one
 * epoch more. */
TEST_WITH(old_value_words_are_not_used, inserts_by_ticket, NULL) {
    for (unsigned epochs = 1; epochs <= 2; epochs++) {
        open_stage_with_value(LONG1);
        /* this update also allocates memory for the next ones */
        assert_int_equal(round_trips_of(FAR_OP_UPDATE, "na", LONG1), 1);
        for (unsigned i = 0; i < epochs; i++)
            advance_epoch();
        assert_int_equal(round_trips_of(FAR_OP_UPDATE, "na", LONG1), epochs);
        assert_int_equal(round_trips_of(FAR_OP_UPDATE, "na", LONG2), 1);
        stage_close(&s);
    }
}


/* Race A16. B fails after it has frozen the value words, or just before it publishes the copy. C takes over the lock:
 * it must thaw all value words, and the leaf after them. Fails if dolphin_batch_thaw (write_hot.c) leaves a word frozen
 * or thaws the leaf first. */
TEST_WITH(frozen_words_of_a_failed_client, inserts_by_ticket, NULL) {
    static const char *const points[] = {"dolphin:values_frozen", "dolphin:publish"};
    for (unsigned i = 0; i < 2; i++) {
        open_stage_with_value(LONG1);
        far_addr leaf = leaf_of_na(), value = dolphin_vword_addr(leaf, 4, 0);
        run_to_point(b, points[i], FAR_OP_INSERT, "ne", LONG1);
        stage_kill(&s, b);
        assert_true(*memory_at(value) & DOLPHIN_VALUE_FROZEN);
        stage_start(c, FAR_OP_UPDATE, "na", LONG2);
        far_sim_hold *hold = stage_hold(c, (far_sim_match){.kind = FAR_SIM_CAS, .from = value, .to = value + 8});
        for (unsigned n = 0; n < 20; n++)
            far_sim_run_client(c->client);
        assert_true(*memory_at(leaf) & DOLPHIN_FROZEN);
        far_sim_release(hold);
        stage_finish(c);
        assert_true(c->result == 0 && stage_reads(a, "na", LONG2) && stage_reads(a, "nd", LONG1));
        for (unsigned slot = 0; slot < 4; slot++)
            assert_false(*memory_at(dolphin_vword_addr(leaf, 4, slot)) & DOLPHIN_VALUE_FROZEN);
        assert_int_equal(round_trips_of(FAR_OP_UPDATE, "na", LONG1), 1);
        stage_close(&s);
    }
}


/* A's READ of the leaf takes effect while the leaf and its value words are frozen by the failed client B. C recovers
 * the leaf. Then A's FAA takes effect, so A is inside the leaf with frozen words in its copy. A must READ the value
 * word again. Fails without the check of FROZEN in read_current_value_word (write.c), because the leaf would seem to be
 * damaged. */
TEST_WITH(words_thaw_between_read_and_count, inserts_by_ticket, NULL) {
    open_stage_with_value(LONG1);
    far_addr leaf = leaf_of_na();
    run_to_point(b, "dolphin:values_frozen", FAR_OP_INSERT, "ne", LONG1);
    stage_kill(&s, b);
    stage_start(a, FAR_OP_UPDATE, "na", LONG2);
    far_sim_hold *hold = stage_hold(a, (far_sim_match){.kind = FAR_SIM_FAA, .from = leaf, .to = leaf + 8});
    for (unsigned i = 0; i < 20; i++) /* A's READ takes effect, while its FAA is held back. */
        far_sim_run_client(a->client);
    assert_int_equal(stage_do(c, FAR_OP_UPDATE, "nb", LONG2), 0);
    assert_false(*memory_at(leaf) & DOLPHIN_FROZEN);
    far_sim_release(hold);
    stage_finish(a);
    assert_int_equal(a->result, 0);
    assert_true(stage_reads(c, "na", LONG2) && stage_reads(c, "nb", LONG2));
    stage_close(&s);
}


/* The first CAS of C's hot update of nc fails. Before C's second CAS, A splits the leaf: it moves nc to a new leaf and
 * fails before it replaces the entry of the old leaf. B repairs the old leaf by narrowing it, which clears the slot of
 * nc. C must repeat the update in the new leaf. Fails if a value word of 0 counts as a delete without the comparison of
 * the key word (dolphin_update_hot in write_hot.c). */
TEST_WITH(the_second_try_meets_a_narrowed_slot, with_housekeeping, NULL) {
    open_stage("leaf_slots=2,hot_updates=on", NULL);
    put_all(a, FIVE);
    assert_true(stage_reads(c, "nc", V1));
    assert_int_equal(stage_do(b, FAR_OP_UPDATE, "nc", V2), 0);
    dolphin_node node = node_at("na", 1);
    assert_int_equal(dolphin_entry_addr(leaf_entry("nc", 1)), dolphin_entry_addr(leaf_entry("nb", 1)));
    int at = dolphin_find_entry(&node, dolphin_position((far_bytes){"nb", 2}, 1));
    far_addr place = dolphin_entry_word_addr(&node, (unsigned)at);
    run_to_nth_point(c, "dolphin:update_hot", 2, FAR_OP_UPDATE, "nc", V3);
    stage_start(a, FAR_OP_INSERT, "nd", V1);
    far_sim_kill_at(a->client, (far_sim_match){.kind = FAR_SIM_CAS, .from = place, .to = place + 8}, 0);
    far_sim_run_client(a->client);
    stage_kill(&s, a);
    assert_int_not_equal(leaf_entry("nb", 1), leaf_entry("nc", 1));
    run_to_point(b, "dolphin:wait_for_readers", FAR_OP_UPDATE, "nb", V2);
    stage_finish(c);
    assert_int_equal(c->result, 0);
    stage_finish(b);
    assert_true(stage_reads(c, "nc", V3));
    stage_close(&s);
}


typedef struct hashed {
    uint64_t hash; /* all bits of the hash that a hint uses */
    unsigned number;
} hashed;


static int compare_hashes(const void *x, const void *y) {
    uint64_t p = ((const hashed *)x)->hash, q = ((const hashed *)y)->hash;
    return (p > q) - (p < q);
}


static void format_numbered_key(unsigned number, char key[8]) {
    snprintf(key, 8, "n%06u", number);
}


/* Finds two keys of one leaf that have the same place and the same hash in the table of hints. */
static void find_keys_with_one_hash(uint64_t seed, char one[8], char other[8]) {
    hashed *all = malloc(CANDIDATES * sizeof(*all));
    assert_non_null(all);
    for (unsigned i = 0; i < CANDIDATES; i++) {
        char key[8];
        format_numbered_key(i, key);
        uint64_t hash = XXH3_64bits_withSeed(key, 7, seed);
        all[i] = (hashed){hash >> 32 << PLACE_BITS | (hash & ((1u << PLACE_BITS) - 1)), i};
    }
    qsort(all, CANDIDATES, sizeof(*all), compare_hashes);
    unsigned at = 1;
    while (at < CANDIDATES && all[at].hash != all[at - 1].hash)
        at++;
    assert_true(at < CANDIDATES);
    format_numbered_key(all[at - 1].number, one);
    format_numbered_key(all[at].number, other);
    free(all);
}


/* Two keys have the same hash, so they share one hint of D, and the hint names the slot of the other key. The updates
 * of both keys must change only their own values. Fails if dolphin_slot_hint_get_value (cache_hints.c) does not compare
 * the last bytes of the key with those in the hint, or the slot with the one that contained the value word, because D
 * then uses the value word of the other key. */
TEST_WITH(hints_of_keys_with_one_hash, inserts_by_ticket, NULL) {
    char one[8], other[8];
    stage_actor d = {0};
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    open_stage(SLOTS4, NULL);
    options.rdwc = -1;
    options.no_thread = true;
    options.cache_bytes = FEW_HINTS;
    world_join(s.uri, &options, &d.pool, &d.session);
    assert_int_equal(far_index_open(d.session, "map", &d.index), 0);
    find_keys_with_one_hash(state_of(&d)->hash_seed, one, other);
    stage_write(a, one, LONG1);
    stage_write(a, other, LONG1);
    for (unsigned i = 0; i < 2; i++)
        assert_true(stage_reads(&d, one, LONG1));
    assert_int_equal(stage_do(&d, FAR_OP_UPDATE, other, LONG2), 0);
    assert_true(stage_reads(b, one, LONG1) && stage_reads(b, other, LONG2));
    /* The slot in D's hint belongs to `one`. D's update of `one` counts as executed just before an update of B, so D
     * does not know the current value word of `one`. The hint still contains the value word of `other`. */
    stage_write(a, other, "short");
    assert_true(stage_reads(&d, other, "short"));
    run_to_point(&d, "dolphin:update", FAR_OP_UPDATE, one, LONG2);
    assert_int_equal(stage_do(b, FAR_OP_UPDATE, one, "short"), 0);
    stage_finish(&d);
    assert_int_equal(stage_do(&d, FAR_OP_UPDATE, other, V3), 0);
    assert_true(stage_reads(b, one, "short") && stage_reads(b, other, V3));
    far_index_close(d.index);
    far_session_close(d.session);
    far_pool_close(d.pool);
    stage_close(&s);
}


TEST_CASE_WITH_HOUSEKEEPING(hot_update_is_one_round_trip);
TEST_CASE_WITH_HOUSEKEEPING(hot_update_before_the_words_freeze);
TEST_CASE_WITH_HOUSEKEEPING(hot_update_after_the_words_froze);
TEST_CASE_WITH_HOUSEKEEPING(hot_update_of_a_dead_slot);
TEST_CASE_WITH_HOUSEKEEPING(delete_between_the_key_check_and_the_update);
TEST_CASE_WITH_HOUSEKEEPING(key_check_comes_before_the_update);
TEST_CASE_WITH_HOUSEKEEPING(hot_update_by_an_old_word);
TEST_CASE_WITH_HOUSEKEEPING(second_try_of_a_hot_update_fails);
TEST_CASE_WITH_HOUSEKEEPING(old_value_words_are_not_used);
TEST_CASE_WITH_HOUSEKEEPING(frozen_words_of_a_failed_client);
TEST_CASE_WITH_HOUSEKEEPING(words_thaw_between_read_and_count);
