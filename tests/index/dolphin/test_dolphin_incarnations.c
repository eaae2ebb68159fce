/* Dolphin, named interleavings of reused memory and failed clients: memory that is reused while clients hold old
 * pointers (tests T12 to T14, T30), and locks and counts that failed clients leave (tests T23, T31, T32).
 * test_dolphin_half_replaced.c contains the tests of half-replaced leaves. The numbers A1 to A35 refer to
 * docs/races/dolphin.md. Each test fails if the guard that its comment names is removed. */
#include "dolphin_rig.h"
#include "pool/epoch/epoch.h"
#include "pool/gc/collect.h"
#include "task/session.h"
#include "test.h"


/* Frees the memory of the leaf of "na". C's cache still names the old incarnation. Returns the old entry word. */
static uint64_t free_leaf_of_na(const char *options) {
    open_stage(options, NULL);
    put_all(a, "na nb");
    assert_true(stage_reads(c, "na", V1));
    uint64_t old = leaf_entry("na", 0);
    put_all(a, "nc"); /* the leaf is replaced */
    stage_free_retired(&s);
    return old;
}


/* Puts keys until the memory of the leaf is reused. The leaves of keys with 'p' are on the same memory node as the
 * leaves of keys with 'n'. */
static void reuse_memory_of_leaf(uint64_t old, const char *first) {
    char key[3] = {first[0], first[1], 0};
    uint64_t *spear = memory_at(dolphin_entry_addr(old));
    for (unsigned i = 0; i < 26 && dolphin_tag(*spear) == dolphin_entry_tag(old); i++, key[1]++)
        stage_write(a, key, V3);
    assert_int_not_equal(dolphin_tag(*spear), dolphin_entry_tag(old));
}


/* Test T12, race A18. C enters a leaf through an old pointer (adds 1 to the number of writers) and stops. The memory of
 * the leaf is reused for another leaf. C leaves (subtracts 1). The number of writers must be 0 again. Fails if
 * batch_activation (restructure.c) overwrites the spear word, because the number would be -1. */
TEST_OF_BOTH_INSERTS(stray_enter_and_exit_over_recycling) {
    uint64_t old = free_leaf_of_na(SLOTS2);
    run_to_point(c, "dolphin:entered", FAR_OP_UPDATE, "na", V2);
    reuse_memory_of_leaf(old, "pd");
    stage_finish(c);
    assert_int_equal(dolphin_writer_count(*memory_at(dolphin_entry_addr(old))), 0);
    assert_true(stage_reads(b, "na", V2) && stage_reads(b, "nc", V1));
    put_all(a, "pa pb pc pd pe pf pg");
    stage_close(&s);
}


/* Test T13, race A19. C has an old pointer to memory that is now a leaf for other keys. C's gets and updates must reach
 * the right leaf. Fails if the tag is ignored (dolphin_control_matches in layout.h). */
TEST_OF_BOTH_INSERTS(stale_pointer_to_recycled_leaf) {
    uint64_t old = free_leaf_of_na(SLOTS2);
    reuse_memory_of_leaf(old, "pd");
    assert_true(stage_reads(c, "na", V1) && stage_reads(c, "nx", NULL));
    assert_int_equal(stage_do(c, FAR_OP_UPDATE, "na", V2), 0);
    assert_true(stage_reads(b, "na", V2));
    stage_close(&s);
}


/* Race A19 for slot hints. The reused leaf has a LIVE key with the same suffix in the slot that C's hint names. C must
 * not use that slot. Fails if get_by_hint (find.c) or update_by_hint (write.c) ignores the tag. */
TEST_OF_BOTH_INSERTS(stale_hint_to_recycled_leaf) {
    for (unsigned update = 0; update < 2; update++) {
        uint64_t old = free_leaf_of_na("value_size=8,leaf_slots=2");
        far_addr leaf = dolphin_entry_addr(old);
        /* The leaves of keys with the first letters p, r, t and so on are on the memory node of `leaf`, so that one of
         * them reuses its memory. */
        char key[3] = "pa";
        for (; key[0] <= 'z' && dolphin_tag(*memory_at(leaf)) == dolphin_entry_tag(old); key[0] += 2)
            stage_write(a, key, V3);
        key[0] -= 2;
        assert_int_equal(*memory_at(dolphin_kword_addr(leaf, 0)),
                         dolphin_kword_with_state(dolphin_inline_kword((far_bytes){"na", 2}, 1), DOLPHIN_SLOT_LIVE));
        if (update)
            assert_int_equal(stage_do(c, FAR_OP_UPDATE, "na", V2), 0);
        assert_true(stage_reads(c, "na", update ? V2 : V1) && stage_reads(b, key, V3));
        stage_close(&s);
    }
}


/* Race A19. A builds a new leaf for the same keys in the reused memory, makes it LIVE, and fails before it links it. C
 * has an old pointer to this memory and updates na. The update must take effect in the leaf that is linked. Fails if
 * the tag is ignored. */
TEST_OF_BOTH_INSERTS(stale_pointer_to_unpublished_leaf) {
    uint64_t old = free_leaf_of_na(SLOTS2);
    far_addr leaf = dolphin_entry_addr(old);
    char key[4] = "na0";
    bool held = false;
    for (; key[2] <= 'z' && !held; key[2]++) {
        stage_start(a, FAR_OP_PUT, key, V3);
        far_sim_stop_before(a->client, (far_sim_match){.kind = FAR_SIM_WRITE, .from = leaf, .to = leaf + 96});
        held = far_sim_run_client(a->client) == FAR_SIM_STOPPED;
    }
    assert_true(held);
    far_sim_kill_at(a->client, (far_sim_match){.kind = FAR_SIM_FAA, .from = leaf, .to = leaf + 8}, FAR_SIM_WHOLE);
    far_sim_resume(a->client);
    far_sim_run_client(a->client);
    assert_int_not_equal(dolphin_tag(*memory_at(leaf)), dolphin_entry_tag(old));
    stage_kill(&s, a);
    assert_int_equal(stage_do(c, FAR_OP_UPDATE, "na", V2), 0);
    assert_true(stage_reads(b, "na", V2) && stage_reads(c, "na", V2));
    stage_close(&s);
}


/* Test T30, race A20. One READ of C returns the body of the old incarnation and the spear word of the next one. C must
 * not use the old body. Fails if the tag is ignored (dolphin_classify_leaf in find.c). */
TEST_OF_BOTH_INSERTS(read_spanning_two_incarnations) {
    open_stage(SLOTS2, "atomic_bytes=8");
    put_all(a, "na nb");
    assert_true(stage_reads(c, "na", V1));
    uint64_t old = leaf_entry("na", 0);
    far_addr leaf = dolphin_entry_addr(old);
    put_all(a, "nc");
    assert_int_equal(stage_do(a, FAR_OP_UPDATE, "na", V2), 0);
    stage_free_retired(&s);
    stage_start(c, FAR_OP_GET, "na", NULL);
    far_sim_hold *hold = stage_hold(c, (far_sim_match){.kind = FAR_SIM_READ, .from = leaf, .to = leaf + 96});
    static const uint32_t body[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    assert_int_equal(far_sim_release_units(hold, body, 11), 0);
    reuse_memory_of_leaf(old, "pd");
    far_sim_release(hold);
    stage_finish(c);
    assert_int_equal(c->result, 0);
    assert_memory_equal(c->value, V2, 8);
    stage_close(&s);
}


/* Test T14, race A19. A cached node is used for DOLPHIN_POINTER_MAX_AGE epochs and not longer. Fails without
 * epoch_is_recent (cache.c). */
TEST_OF_BOTH_INSERTS(old_pointers_are_not_used) {
    _Static_assert(DOLPHIN_POINTER_MAX_AGE / (4 + DOLPHIN_EXTRA_EPOCHS) < DOLPHIN_TAGS, "no tag comes twice");
    open_stage(SLOTS2, NULL);
    put_all(a, "na nb nc");
    assert_true(stage_reads(a, "na", V1));
    dolphin_cache_hit hint;
    far_bytes key = {"na", 2};
    uint64_t now = 0;
    while ((!dolphin_cache_probe(state_of(a)->cache, key, now, &hint) || hint.depth == 0) && now < 1000)
        now++;
    assert_true(now < 1000);
    uint64_t last = now;
    while (dolphin_cache_probe(state_of(a)->cache, key, last + 1, &hint) && hint.depth > 0)
        last++;
    assert_in_range(last - now, DOLPHIN_POINTER_MAX_AGE - 100, DOLPHIN_POINTER_MAX_AGE + 1);
    stage_close(&s);
}


/* Test T23, races A16 and A22. C fails inside a leaf. A replaces the leaf. Because C never leaves it, A waits until all
 * pins are newer than the freeze, and holds no pin meanwhile. B waits for A and renews its pin. Both must finish. Fails
 * if A or B keeps its pin (drain_by_epochs in restructure_leaf.c, dolphin_back_off in find.c). */
TEST_OF_BOTH_INSERTS(failed_writer_inside) {
    stage_open(&s, "dolphin", insert_by[0] == 'c' ? SLOTS2 ",insert=cas" : SLOTS2, NULL);
    put_all(a, "na nb");
    assert_true(stage_reads(b, "na", V1) && stage_reads(c, "na", V1));
    run_to_point(c, "dolphin:entered", FAR_OP_UPDATE, "na", V2);
    stage_kill(&s, c);
    stage_start(a, FAR_OP_INSERT, "nc", V2);
    stage_start(b, FAR_OP_UPDATE, "nb", V2);
    assert_string_equal(far_sim_result_name(far_sim_run(s.world)), far_sim_result_name(FAR_SIM_ENDED));
    assert_true(a->result == 0 && b->result == 0);
    assert_true(stage_reads(a, "nb", V2) && stage_reads(b, "nc", V2) && stage_reads(b, "na", V1));
    stage_close(&s);
}


/* Race A22. C fails inside a leaf, and A replaces it. D, of the same handle as A, waits for the replacement (at the
 * gate of the leaf). D must hold no pin meanwhile. Fails if dolphin_gate_wait (lock.c) keeps the pin, because A would
 * wait for it for ever. */
TEST_OF_BOTH_INSERTS(waiter_at_a_gate_has_no_pin) {
    stage_open(&s, "dolphin", SLOTS2, NULL);
    put_all(a, "na nb");
    assert_true(stage_reads(c, "na", V1));
    run_to_point(c, "dolphin:entered", FAR_OP_UPDATE, "na", V2);
    stage_kill(&s, c);
    stage_actor d = open_another_session(a);
    run_to_point(a, "dolphin:drain", FAR_OP_INSERT, "nc", V2);
    start_and_assert_waiting(&d, FAR_OP_UPDATE, "nb", V2);
    far_sim_resume(a->client);
    far_sim_run_for(s.world, 50000000);
    assert_true(a->ended && d.ended && a->result == 0 && d.result == 0);
    assert_true(stage_reads(a, "nb", V2) && stage_reads(b, "nc", V2) && stage_reads(b, "na", V1));
    far_session_close(d.session);
    stage_close(&s);
}


/* With sync=exclusive, A fails while it holds the lock of a leaf. B and C both want to take the lock over. B is late;
 * it must wait until C has unlocked the leaf. Fails if dolphin_lock_leaf (baseline.c) ignores its failed CAS. */
TEST_OF_BOTH_INSERTS(late_takeover_of_a_leaf) {
    open_stage(SLOTS2 ",sync=exclusive", NULL);
    put_all(a, "na nb");
    assert_true(stage_reads(b, "na", V1) && stage_reads(c, "na", V1));
    far_addr leaf = dolphin_entry_addr(leaf_entry("na", 0)), lock = leaf + DOLPHIN_LEAF_LOCK;
    run_to_point(a, "dolphin:entered", FAR_OP_UPDATE, "na", V2);
    uint64_t dead = *memory_at(lock);
    stage_kill(&s, a);
    stage_start(b, FAR_OP_UPDATE, "nb", V2);
    stage_stop_at(b, (far_sim_match){.kind = FAR_SIM_CAS, .from = lock, .to = lock + 8, .nth = 5});
    run_to_point(c, "dolphin:entered", FAR_OP_UPDATE, "na", V3);
    assert_int_not_equal(*memory_at(lock), dead);
    far_sim_resume(b->client);
    far_sim_run_for(s.world, 10000);
    /* The count of writers includes the failed client A, and C. */
    assert_true(!b->ended && dolphin_writer_count(*memory_at(leaf)) == 2);
    stage_finish(c);
    stage_finish(b);
    assert_true(b->result == 0 && c->result == 0 && stage_reads(c, "na", V3) && stage_reads(c, "nb", V2));
    stage_close(&s);
}


/* Test T31, race A16. A fails at four moments of a split. B and C must be able to write; they take over the lock and
 * repair what A has left. The guard is recover_node in recover.c. */
TEST_OF_BOTH_INSERTS(lock_of_a_failed_client) {
    static const char *const points[] = {"dolphin:locked", "dolphin:frozen", "dolphin:publish", "dolphin:replaced"};
    for (unsigned i = 0; i < 4; i++) {
        open_stage(SLOTS2, NULL);
        put_all(a, FIVE);
        run_to_point(a, points[i], FAR_OP_INSERT, "nd", V2);
        stage_kill(&s, a);
        assert_int_equal(stage_do(b, FAR_OP_PUT, "nca", V3), 0);
        assert_true(keys_have_value(c, FIVE, V1) && stage_reads(c, "nca", V3));
        assert_int_equal(stage_do(c, FAR_OP_PUT, "nd", V3), 0);
        stage_close(&s);
    }
}


/* A has READ a frozen leaf and is then delayed for so long that its pin is renewed. Meanwhile the leaf is thawed, the
 * key updated, and its old value block reused. A must not use the image of the leaf that it has READ under the old pin,
 * because this image names the reused block. Fails if dolphin_get (find.c) or dolphin_scan (scan.c) keeps the image
 * after the pin was renewed. */
static void check_frozen_leaf_of_older_pin(far_op_kind does, const char *point) {
    static const char other[] = "another one that is as long as the first of them";
    _Static_assert(sizeof(other) == sizeof(LONG1), "their blocks have one size");
    open_stage("leaf_slots=4,hints=off,patience=2", NULL);
    for (const char *key = "abcd"; *key; key++)
        stage_write(c, (char[]){'n', *key, 0}, LONG1);
    assert_true(stage_reads(a, "na", LONG1) && stage_reads(b, "na", LONG1));
    run_to_point(b, "dolphin:frozen", FAR_OP_INSERT, "ne", LONG1);
    a->limit = 1;
    run_to_point(a, point, does, "na", NULL);
    stage_kill(&s, b);
    assert_int_equal(stage_do(c, FAR_OP_UPDATE, "na", LONG2), 0);
    dolphin_node root = node_at("na", 0);
    uint64_t *entry = &root.entries['n' + 1], saved = *entry;
    *entry = 0; /* A's READs of the root find an unused entry, as during a change, so A retries */
    far_sim_resume(a->client);
    for (unsigned i = 0; i < 30; i++) {
        far_epoch_request(a->pool);
        far_sim_run_for(s.world, 20000);
        stage_poll(&s, 1);
    }
    for (unsigned i = 0; i < 40; i++) {
        char key[8];
        snprintf(key, sizeof(key), "p%03u", i);
        stage_write(c, key, other);
    }
    assert_false(a->ended);
    *entry = saved;
    stage_finish(a);
    assert_true(a->result == (does == FAR_OP_SCAN) && a->value_len == strlen(LONG2));
    assert_memory_equal(a->value, LONG2, strlen(LONG2));
    stage_close(&s);
}


TEST_OF_BOTH_INSERTS(frozen_leaf_of_an_older_pin) {
    check_frozen_leaf_of_older_pin(FAR_OP_GET, "dolphin:leaf_read");
    check_frozen_leaf_of_older_pin(FAR_OP_SCAN, "dolphin:scan_read");
}


/* A leaf is frozen and its ident word is damaged. A get and a scan must end with FAR_ERR_CORRUPT. Fails without the
 * limits on retries (dolphin_retry_inconsistent in find.c), or if the image of a frozen leaf is used without a check
 * that the leaf covers the key (dolphin_leaf_covers). */
TEST_OF_BOTH_INSERTS(damaged_frozen_leaf) {
    open_stage(SLOTS2, NULL);
    put_all(a, FIVE);
    uint64_t *leaf = memory_at(dolphin_entry_addr(leaf_entry("nb", 1))), spear = leaf[0], ident = leaf[1];
    leaf[0] |= DOLPHIN_FROZEN;
    leaf[1] = dolphin_leaf_ident(2, 0, DOLPHIN_LAST_POSITION, 3);
    assert_int_equal(stage_do(b, FAR_OP_SCAN, "na", NULL), FAR_ERR_CORRUPT);
    assert_int_equal(stage_do(b, FAR_OP_GET, "nb", NULL), FAR_ERR_CORRUPT);
    leaf[0] = spear;
    leaf[1] = ident;
    assert_true(stage_scans(c, "n", "na nb nc nx ny") && stage_scans(b, "n", "na nb nc nx ny"));
    stage_close(&s);
}


/* Submits two gets together and waits for both. */
static void get_two_keys(stage_actor *by, const char *keys[2], int results[2]) {
    static char values[2][STAGE_VALUE_MAX];
    far_op ops[2], *list[2] = {&ops[0], &ops[1]}, *done[2];
    for (unsigned i = 0; i < 2; i++)
        ops[i] = (far_op){.kind = FAR_OP_GET,
                          .index = by->index,
                          .key = keys[i],
                          .key_len = strlen(keys[i]),
                          .value = values[i],
                          .capacity = sizeof(values[i])};
    assert_int_equal(far_submit(by->session, list, 2), 2);
    assert_int_equal(far_reap(by->session, done, 2, 2), 2);
    for (unsigned i = 0; i < 2; i++)
        results[i] = ops[i].result;
}


/* Race A35. A damaged value word names the value block of another key. Gets by hint, usual gets, scans, gets that are
 * submitted together, and check must all report it. Fails without the hash in value blocks (dolphin_decode_value in
 * value.c). */
TEST_OF_BOTH_INSERTS(value_of_another_key) {
    const char *both[2] = {"nb", "na"};
    int results[2];
    open_stage("leaf_slots=4", NULL);
    for (unsigned i = 0; i < 2; i++)
        stage_write(a, both[i], LONG1);
    assert_true(stage_reads(b, "na", LONG1) && stage_reads(c, "nb", LONG1));
    far_addr leaf = dolphin_entry_addr(leaf_entry("na", 0));
    uint64_t *values = memory_at(dolphin_vword_addr(leaf, 4, 0)), was = values[1];
    values[1] = values[0];
    assert_int_equal(stage_do(b, FAR_OP_GET, "na", NULL), FAR_ERR_CORRUPT); /* this get uses a slot hint */
    assert_int_equal(stage_do(c, FAR_OP_GET, "na", NULL), FAR_ERR_CORRUPT);
    assert_int_equal(stage_do(c, FAR_OP_SCAN, "n", NULL), FAR_ERR_CORRUPT);
    get_two_keys(c, both, results);
    assert_true(results[0] == 0 && results[1] == FAR_ERR_CORRUPT);
    assert_int_equal(far_index_check(c->session, c->index, accept_problem, NULL), 1);
    values[1] = was;
    assert_true(stage_scans(c, "n", "na nb"));
    stage_close(&s);
}


/* Race A16. A fails after it has frozen the old node, before it has changed the entry above. B takes over the lock of
 * the parent and must thaw the node. Fails without recover_frozen_child (recover.c). */
TEST_OF_BOTH_INSERTS(frozen_node_of_a_failed_client) {
    open_stage(SLOTS1, NULL);
    put_all(a, MANY);
    run_to_point(a, "dolphin:link_copy", FAR_OP_INSERT, "nc", V2);
    uint64_t *lock = node_at("nb", 1).image;
    stage_kill(&s, a);
    *lock |= DOLPHIN_FROZEN; /* set the bit here, because A's CAS may not have taken effect if A did not wait for it */
    assert_int_equal(stage_do(b, FAR_OP_INSERT, "nc", V3), 0);
    assert_true(stage_reads(c, "nc", V3) && keys_have_value(c, MANY, V1));
    stage_close(&s);
}


/* Race A16. B and C both want to take over the lock of the failed client A. C is first, and freezes the leaf for a
 * change of its own. B is late; it must not thaw that leaf. Fails if dolphin_take_over_lock (recover.c) ignores its
 * failed CAS. */
TEST_OF_BOTH_INSERTS(late_takeover_changes_nothing) {
    open_stage(SLOTS2, NULL);
    put_all(a, FIVE);
    assert_true(keys_have_value(b, FIVE, V1));
    uint64_t *leaf = memory_at(dolphin_entry_addr(leaf_entry("nb", 1)));
    far_addr lock = node_addr("na");
    run_to_point(a, "dolphin:frozen", FAR_OP_INSERT, "nd", V2);
    stage_kill(&s, a);
    stage_start(b, FAR_OP_UPDATE, "nb", V2);
    stage_stop_at(b, (far_sim_match){.kind = FAR_SIM_CAS, .from = lock, .to = lock + 8});
    run_to_point(c, "dolphin:frozen", FAR_OP_INSERT, "nd", V3);
    far_sim_resume(b->client);
    far_sim_run_for(s.world, 100000);
    assert_true(!b->ended && (*leaf & DOLPHIN_FROZEN));
    stage_finish(c);
    stage_finish(b);
    assert_true(b->result == 0 && c->result == 0 && stage_reads(c, "nb", V2) && stage_reads(b, "nd", V3));
    stage_close(&s);
}


/* Test T31, race A32. A fails while it holds a lock, and its id is issued again to a new client with another
 * generation. B finds the lock, which contains A's generation, and must take it over. Fails if the generation is
 * ignored (far_holder_confirm_failed), because B would wait for ever. */
TEST_OF_BOTH_INSERTS(lock_of_a_failed_client_with_reused_id) {
    stage_open(&s, "dolphin", SLOTS2, NULL);
    put_all(a, FIVE);
    run_to_point(a, "dolphin:locked", FAR_OP_INSERT, "nd", V2);
    unsigned id = a->session->id, generation = a->session->generation;
    uint64_t *lock = memory_at(node_addr("na")), held = *lock;
    assert_int_equal(far_owner_client(dolphin_lock_owner(held)), id);
    stage_kill(&s, a);
    far_session *sessions[64];
    unsigned count = 0;
    bool again = false;
    for (unsigned tries = 0; tries < 8 && !again; tries++) { /* each collection takes the lock over and frees A's id */
        assert_int_equal(far_pool_check(b->session, 1, fail_at_problem, NULL), 0);
        assert_int_equal(dolphin_lock_owner(*lock), 0);
        for (unsigned i = 0; i < 8 && !again; i++) {
            assert_int_equal(far_session_open(c->pool, &sessions[count]), 0);
            again = sessions[count]->id == id && sessions[count]->generation != generation;
            count++;
        }
    }
    assert_true(again);
    *lock = held;
    assert_int_equal(stage_do(b, FAR_OP_PUT, "nd", V3), 0);
    assert_true(stage_reads(c, "nd", V3) && keys_have_value(c, FIVE, V1));
    while (count)
        far_session_close(sessions[--count]);
    stage_close(&s);
}


/* Test T32, race A32. A is declared failed while it holds a lock, but continues. B takes the lock over. No verb of A
 * may take effect after that. Guard: a client is fenced before it counts as failed (pool/format/clients.h). */
TEST_OF_BOTH_INSERTS(zombie_after_takeover) {
    static const char *const points[] = {"dolphin:locked", "dolphin:publish"};
    for (unsigned i = 0; i < 2; i++) {
        open_stage(SLOTS2, NULL);
        put_all(a, FIVE);
        run_to_point(a, points[i], FAR_OP_INSERT, "nd", V2);
        assert_int_equal(far_sim_declare_dead(s.world, a->session->id, a->session->generation), 1);
        assert_int_equal(stage_do(b, FAR_OP_PUT, "nd", V3), 0);
        stage_finish(a);
        assert_true(a->result < 0 && stage_reads(c, "nd", V3) && keys_have_value(c, FIVE, V1));
        stage_kill(&s, a);
        stage_close(&s);
    }
}


static void run_check(void *arg) {
    stage_actor *by = arg;
    by->result = (int)far_index_check(by->session, by->index, accept_problem, NULL);
    by->ended = true;
}


/* A check READs a key without its value word, because an insert or a delete was in progress. When it READs the words
 * again, the value is there or the key is gone, so it must report nothing. Fails without the second READ in
 * check_missing_values (check.c). */
TEST_OF_BOTH_INSERTS(a_value_in_transit_is_not_missing) {
    for (unsigned deleted = 0; deleted < 2; deleted++) {
        open_stage("leaf_slots=4", NULL);
        put_all(a, "na nb nc");
        uint64_t *word = memory_at(dolphin_vword_addr(dolphin_entry_addr(leaf_entry("na", 0)), 4, 0)), was = *word;
        *word = 0;
        stage_start_main(b, "check", run_check);
        stage_stop_at(b, (far_sim_match){.point = "dolphin:reread_missing_value"});
        *word = was;
        if (deleted)
            assert_int_equal(stage_do(a, FAR_OP_DELETE, "na", NULL), 0);
        assert_int_equal(*word == 0, deleted);
        stage_finish(b);
        assert_int_equal(b->result, 0);
        stage_close(&s);
    }
}
