/* Dolphin, hot_updates=on: updates of blocks in one round trip, which nobody counts, against changes of the leaf, deletes,
 * other updates and deaths. What fails when the guarding line is taken out is said at each test. */
#include "dolphin_rig.h"
#include "pool/epoch.h"

#include <stdlib.h>
#include <xxhash.h>

#define SLOTS4     "leaf_slots=4,hot_updates=on"
#define CANDIDATES 600000u
#define FEW_HINTS  (16u << 10) /* a cache of so many bytes has 16 places for hints */
#define PLACE_BITS 4u


static far_stats stats_of(const stage_actor *by) {
    far_stats now;
    far_session_stats(by->session, &now);
    return now;
}


/* Round trips of an update, or of a put, by a. */
static uint64_t trips_of(far_op_kind does, const char *key, const char *value) {
    far_stats before = stats_of(a);
    assert_int_equal(stage_do(a, does, key, value), 0);
    far_stats after = stats_of(a);
    return far_stats_diff(&after, &before).round_trips;
}


static far_addr leaf_of_na(void) {
    return dolphin_entry_addr(leaf_entry("na", 0));
}


/* Four keys in one leaf; a knows the slot and the word of na. */
static void up_with(const char *value) {
    up(SLOTS4, NULL);
    for (const char *key = "abcd"; *key; key++)
        stage_write(b, (char[]){'n', *key, 0}, value);
    assert_true(stage_reads(a, "na", value));
}


/* One round trip for as long as nobody else writes: by what a get saw, and by what the last update wrote. */
static void hot_update_is_one_round_trip(void **state) {
    (void)state;
    static const char *const values[] = {"short", LONG1};
    for (unsigned i = 0; i < 2; i++) {
        up_with(values[i]);
        assert_int_equal(trips_of(FAR_OP_UPDATE, "na", LONG2), 1); /* it has memory for more now */
        far_stats before = stats_of(a);
        assert_int_equal(trips_of(FAR_OP_UPDATE, "na", LONG2), 1);
        assert_int_equal(trips_of(FAR_OP_PUT, "na", values[i]), 1);
        assert_int_equal(trips_of(FAR_OP_UPDATE, "na", LONG2), 1);
        far_stats after = stats_of(a), d = far_stats_diff(&after, &before);
        assert_true(d.cas == 6 && d.faa == 0 && d.reads == 0);
        assert_true(stage_reads(b, "na", LONG2) && stage_reads(a, "na", LONG2));
        stage_close(&s);
    }
}


/* The leaf is frozen, its words are not yet: the update takes effect, and is copied. Were what was READ of the leaf
 * copied, it would be lost. */
static void hot_update_before_the_words_freeze(void **state) {
    (void)state;
    up_with(LONG1);
    stand(b, "dolphin:frozen", FAR_OP_INSERT, "ne", LONG1);
    assert_int_equal(trips_of(FAR_OP_UPDATE, "na", LONG2), 1);
    stage_finish(b);
    assert_true(b->result == 0 && stage_reads(c, "na", LONG2) && stage_reads(a, "na", LONG2));
    stage_close(&s);
}


/* The words are frozen: it waits for the copy. Were they not frozen, it would be lost. */
static void hot_update_after_the_words_froze(void **state) {
    (void)state;
    up_with(LONG1);
    stand(b, "dolphin:values_frozen", FAR_OP_INSERT, "ne", LONG1);
    start_and_wait(a, FAR_OP_UPDATE, "na", LONG2);
    assert_true(stage_reads(c, "na", LONG1) && stage_scans(c, "n", "na nb nc nd"));
    stage_finish(b);
    stage_finish(a);
    assert_true(a->result == 0 && stage_reads(c, "na", LONG2) && stage_reads(c, "nd", LONG1));
    stage_close(&s);
}


/* A delete whose CAS of the value word an update has made fail leaves a word in the dead slot. Without the look at the
 * key an update of it seems to be done; with the block of the dead slot forgotten, or retired twice, check tells. */
static void hot_update_of_a_dead_slot(void **state) {
    (void)state;
    up_with(LONG1);
    stand(b, "dolphin:remove", FAR_OP_DELETE, "na", NULL);
    assert_int_equal(trips_of(FAR_OP_UPDATE, "na", LONG2), 1);
    stage_finish(b);
    assert_int_equal(b->result, 0);
    assert_true(*memory_of(dolphin_value_at(leaf_of_na(), 4, 0)) != 0);
    assert_int_equal(stage_do(a, FAR_OP_UPDATE, "na", LONG1), FAR_ERR_NOT_FOUND);
    assert_true(stage_reads(c, "na", NULL));
    stage_write(a, "na", LONG2);
    assert_true(stage_reads(c, "na", LONG2));
    stage_close(&s);
}


/* The same when the delete comes between the two CASes: the update came before it. */
static void delete_between_the_look_and_the_update(void **state) {
    (void)state;
    up_with(LONG1);
    stand(b, "dolphin:remove", FAR_OP_DELETE, "na", NULL);
    assert_int_equal(trips_of(FAR_OP_UPDATE, "na", LONG2), 1);
    far_addr value = dolphin_value_at(leaf_of_na(), 4, 0);
    stage_start(a, FAR_OP_UPDATE, "na", LONG1);
    far_sim_hold *hold = stage_hold(a, (far_sim_match){.kind = FAR_SIM_CAS, .from = value, .to = value + 8});
    stage_finish(b);
    far_sim_release(hold);
    stage_finish(a);
    assert_true(b->result == 0 && a->result == 0 && stage_reads(c, "na", NULL));
    stage_close(&s);
}


/* The look at the key comes first: while it has no effect, the other CAS has none. In the other order an update that
 * others have seen could be told not to have found the key. */
static void look_comes_before_the_update(void **state) {
    (void)state;
    up_with(LONG1);
    far_addr kword = dolphin_key_at(leaf_of_na(), 0), value = dolphin_value_at(leaf_of_na(), 4, 0);
    uint64_t old = *memory_of(value);
    stage_start(a, FAR_OP_UPDATE, "na", LONG2);
    far_sim_hold *look = stage_hold(a, (far_sim_match){.kind = FAR_SIM_CAS, .from = kword, .to = kword + 8});
    for (unsigned i = 0; i < 20; i++)
        far_sim_run_client(a->client);
    assert_true(!a->ended && *memory_of(value) == old);
    far_sim_release(look);
    stage_finish(a);
    assert_true(a->result == 0 && stage_reads(c, "na", LONG2));
    stage_close(&s);
}


/* Others have updated the key since, before this update began: its CAS fails, and it goes on with what that found. Told
 * to be done, it would be lost. */
static void hot_update_by_an_old_word(void **state) {
    (void)state;
    up_with(LONG1);
    assert_int_equal(stage_do(c, FAR_OP_UPDATE, "na", LONG2), 0);
    assert_int_equal(trips_of(FAR_OP_UPDATE, "na", V3), 2);
    assert_true(stage_reads(c, "na", V3) && stage_reads(a, "na", V3));
    stage_close(&s);
}


/* The second CAS fails too: another update, or a delete, came meanwhile, and this one just before; but not when the word
 * only froze: then it is still to be done. */
static void what_comes_before_the_second_try(void **state) {
    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        up_with(LONG1);
        assert_int_equal(stage_do(c, FAR_OP_UPDATE, "na", LONG2), 0);
        stand_at(a, "dolphin:hot", 2, FAR_OP_UPDATE, "na", V3);
        if (i == 0)
            assert_int_equal(stage_do(c, FAR_OP_UPDATE, "na", LONG1), 0);
        else if (i == 1)
            stage_delete(c, "na");
        else {
            stand(b, "dolphin:values_frozen", FAR_OP_INSERT, "ne", LONG1);
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


/* To the next epoch, and all know it. */
static void pass_epoch(void) {
    uint64_t *epoch = memory_of(FAR_SUPER_EPOCH), was = *epoch;
    while (*epoch == was) {
        far_epoch_request(a->pool);
        far_sim_sleep(s.world, 100000);
        stage_poll(&s, 1);
    }
    stage_poll(&s, 1);
    assert_int_equal(*epoch, was + 1);
}


/* What a hint knows is good for as long as nothing that it names can be used anew: for one epoch, not for two. */
static void old_words_are_not_used(void **state) {
    (void)state;
    for (unsigned epochs = 1; epochs <= 2; epochs++) {
        up_with(LONG1);
        assert_int_equal(trips_of(FAR_OP_UPDATE, "na", LONG1), 1); /* it has memory for more now */
        for (unsigned i = 0; i < epochs; i++)
            pass_epoch();
        assert_int_equal(trips_of(FAR_OP_UPDATE, "na", LONG1), epochs);
        assert_int_equal(trips_of(FAR_OP_UPDATE, "na", LONG2), 1);
        stage_close(&s);
    }
}


/* Who replaces the leaf dies when its words are frozen, and when the copy is about to be linked: they thaw with the
 * leaf, the leaf last. Left frozen, the key could not be written any more. */
static void frozen_words_of_the_dead(void **state) {
    (void)state;
    static const char *const points[] = {"dolphin:values_frozen", "dolphin:publish"};
    for (unsigned i = 0; i < 2; i++) {
        up_with(LONG1);
        far_addr leaf = leaf_of_na(), value = dolphin_value_at(leaf, 4, 0);
        stand(b, points[i], FAR_OP_INSERT, "ne", LONG1);
        stage_kill(&s, b);
        assert_true(*memory_of(value) & DOLPHIN_VALUE_FROZEN);
        stage_start(c, FAR_OP_UPDATE, "na", LONG2);
        far_sim_hold *hold = stage_hold(c, (far_sim_match){.kind = FAR_SIM_CAS, .from = value, .to = value + 8});
        for (unsigned n = 0; n < 20; n++)
            far_sim_run_client(c->client);
        assert_true(*memory_of(leaf) & DOLPHIN_FROZEN);
        far_sim_release(hold);
        stage_finish(c);
        assert_true(c->result == 0 && stage_reads(a, "na", LONG2) && stage_reads(a, "nd", LONG1));
        for (unsigned slot = 0; slot < 4; slot++)
            assert_false(*memory_of(dolphin_value_at(leaf, 4, slot)) & DOLPHIN_VALUE_FROZEN);
        assert_int_equal(trips_of(FAR_OP_UPDATE, "na", LONG1), 1);
        stage_close(&s);
    }
}


/* A leaf thaws between the READ of who enters it and his count: what he READ is frozen, and he is inside. He looks again:
 * else the leaf seems to be broken. */
static void words_thaw_between_read_and_count(void **state) {
    (void)state;
    up_with(LONG1);
    far_addr leaf = leaf_of_na();
    stand(b, "dolphin:values_frozen", FAR_OP_INSERT, "ne", LONG1);
    stage_kill(&s, b);
    stage_start(a, FAR_OP_UPDATE, "na", LONG2);
    far_sim_hold *hold = stage_hold(a, (far_sim_match){.kind = FAR_SIM_FAA, .from = leaf, .to = leaf + 8});
    for (unsigned i = 0; i < 20; i++) /* its READ takes effect */
        far_sim_run_client(a->client);
    assert_int_equal(stage_do(c, FAR_OP_UPDATE, "nb", LONG2), 0);
    assert_false(*memory_of(leaf) & DOLPHIN_FROZEN);
    far_sim_release(hold);
    stage_finish(a);
    assert_int_equal(a->result, 0);
    assert_true(stage_reads(c, "na", LONG2) && stage_reads(c, "nb", LONG2));
    stage_close(&s);
}


/* c's first CAS failed; before its second one a replaced half of the leaf and died, and b, which repairs that, has taken
 * the key, which is elsewhere now, out of this one. (A value word of 0 taken for a delete.) */
static void the_second_try_meets_a_narrowed_slot(void **state) {
    (void)state;
    up("leaf_slots=2,hot_updates=on", NULL);
    put_all(a, FIVE);
    assert_true(stage_reads(c, "nc", V1));
    assert_int_equal(stage_do(b, FAR_OP_UPDATE, "nc", V2), 0);
    dolphin_node node = node_at("na", 1);
    assert_int_equal(dolphin_entry_addr(leaf_entry("nc", 1)), dolphin_entry_addr(leaf_entry("nb", 1)));
    int at = dolphin_lookup(&node, dolphin_position((far_bytes){"nb", 2}, 1));
    far_addr place = dolphin_entry_place(&node, (unsigned)at);
    stand_at(c, "dolphin:hot", 2, FAR_OP_UPDATE, "nc", V3);
    stage_start(a, FAR_OP_INSERT, "nd", V1);
    far_sim_kill_at(a->client, (far_sim_match){.kind = FAR_SIM_CAS, .from = place, .to = place + 8}, 0);
    far_sim_run_client(a->client);
    stage_kill(&s, a);
    assert_int_not_equal(leaf_entry("nb", 1), leaf_entry("nc", 1));
    stand(b, "dolphin:narrowed", FAR_OP_UPDATE, "nb", V2);
    stage_finish(c);
    assert_int_equal(c->result, 0);
    stage_finish(b);
    assert_true(stage_reads(c, "nc", V3));
    stage_close(&s);
}


typedef struct hashed {
    uint64_t hash; /* all of it that a hint looks at */
    unsigned number;
} hashed;


static int by_hash(const void *x, const void *y) {
    uint64_t p = ((const hashed *)x)->hash, q = ((const hashed *)y)->hash;
    return (p > q) - (p < q);
}


static void numbered_key(unsigned number, char key[8]) {
    snprintf(key, 8, "n%06u", number);
}


/* Two keys of one leaf that are one and the same for the hints. */
static void find_two_alike(uint64_t seed, char one[8], char other[8]) {
    hashed *all = malloc(CANDIDATES * sizeof(*all));
    assert_non_null(all);
    for (unsigned i = 0; i < CANDIDATES; i++) {
        char key[8];
        numbered_key(i, key);
        uint64_t hash = XXH3_64bits_withSeed(key, 7, seed);
        all[i] = (hashed){hash >> 32 << PLACE_BITS | (hash & ((1u << PLACE_BITS) - 1)), i};
    }
    qsort(all, CANDIDATES, sizeof(*all), by_hash);
    unsigned at = 1;
    while (at < CANDIDATES && all[at].hash != all[at - 1].hash)
        at++;
    assert_true(at < CANDIDATES);
    numbered_key(all[at - 1].number, one);
    numbered_key(all[at].number, other);
    free(all);
}


/* The hint of a key leads to the slot of another one, whose hash is the same: the end of the key tells, and the slot
 * whose word is known. Else the update would change the other key. */
static void hints_of_keys_with_one_hash(void **state) {
    (void)state;
    char one[8], other[8];
    stage_actor d = {0};
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    up(SLOTS4, NULL);
    options.rdwc = -1;
    options.no_thread = true;
    options.cache_bytes = FEW_HINTS;
    world_join(s.uri, &options, &d.pool, &d.session);
    assert_int_equal(far_index_open(d.session, "map", &d.index), 0);
    find_two_alike(state_of(&d)->seed, one, other);
    stage_write(a, one, LONG1);
    stage_write(a, other, LONG1);
    for (unsigned i = 0; i < 2; i++)
        assert_true(stage_reads(&d, one, LONG1));
    assert_int_equal(stage_do(&d, FAR_OP_UPDATE, other, LONG2), 0);
    assert_true(stage_reads(b, one, LONG1) && stage_reads(b, other, LONG2));
    /* The slot is that of `one`, whose update came just before another one: its word is not known, that of `other` is. */
    stage_write(a, other, "short");
    assert_true(stage_reads(&d, other, "short"));
    stand(&d, "dolphin:update", FAR_OP_UPDATE, one, LONG2);
    assert_int_equal(stage_do(b, FAR_OP_UPDATE, one, "short"), 0);
    stage_finish(&d);
    assert_int_equal(stage_do(&d, FAR_OP_UPDATE, other, V3), 0);
    assert_true(stage_reads(b, one, "short") && stage_reads(b, other, V3));
    far_index_close(d.index);
    far_session_close(d.session);
    far_pool_close(d.pool);
    stage_close(&s);
}


int main(void) {
    const struct CMUnitTest waits[] = {cmocka_unit_test(the_second_try_meets_a_narrowed_slot)}; /* for epochs */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hot_update_is_one_round_trip),
        cmocka_unit_test(hot_update_before_the_words_freeze),
        cmocka_unit_test(hot_update_after_the_words_froze),
        cmocka_unit_test(hot_update_of_a_dead_slot),
        cmocka_unit_test(delete_between_the_look_and_the_update),
        cmocka_unit_test(look_comes_before_the_update),
        cmocka_unit_test(hot_update_by_an_old_word),
        cmocka_unit_test(what_comes_before_the_second_try),
        cmocka_unit_test(old_words_are_not_used),
        cmocka_unit_test(frozen_words_of_the_dead),
        cmocka_unit_test(words_thaw_between_read_and_count),
    };
    const struct CMUnitTest alike[] = {cmocka_unit_test(hints_of_keys_with_one_hash)};
    int failed = cmocka_run_group_tests(tests, inserts_by_ticket, NULL);
    failed += cmocka_run_group_tests(alike, inserts_by_ticket, NULL);
    failed += cmocka_run_group_tests(tests, beside_housekeeping, NULL);
    return failed + cmocka_run_group_tests(waits, beside_housekeeping, NULL);
}
