/* Dolphin, named interleavings: lives and deaths. Memory that is recycled under stale pointers (T12 .. T14, T30 of its
 * design), and locks and places of dead clients (T23, T31, T32); test_dolphin_half_replaced.c
 * has the leaves they leave half replaced. What fails when the guarding line is taken out is said at each
 * test. */
#include "dolphin_rig.h"
#include "pool/epoch.h"
#include "pool/sweep.h"
#include "task/session.h"


/* The memory of the leaf of "na" is free again, in a life that c's cache still knows. */
static uint64_t recycle(const char *options) {
    up(options, NULL);
    put_all(a, "na nb");
    assert_true(stage_reads(c, "na", V1));
    uint64_t old = leaf_entry("na", 0);
    put_all(a, "nc"); /* the leaf is replaced */
    stage_age(&s);
    return old;
}


/* Until the memory of the leaf is in use again: keys that begin with p lie on the same memory node as those with n. */
static void reuse(uint64_t old, const char *first) {
    char key[3] = {first[0], first[1], 0};
    uint64_t *spear = memory_of(dolphin_entry_addr(old));
    for (unsigned i = 0; i < 26 && dolphin_tag(*spear) == dolphin_entry_tag(old); i++, key[1]++)
        stage_write(a, key, V3);
    assert_int_not_equal(dolphin_tag(*spear), dolphin_entry_tag(old));
}


/* T12, A18. Who comes through an old pointer adds one to the count and takes it off, in whatever life: were the spear
 * word overwritten at birth, the count would be one too low afterwards. */
static void stray_enter_and_exit_over_recycling(void **state) {
    (void)state;
    uint64_t old = recycle(SLOTS2);
    stand(c, "dolphin:entered", FAR_OP_UPDATE, "na", V2);
    reuse(old, "pd");
    stage_finish(c);
    assert_int_equal(dolphin_count(*memory_of(dolphin_entry_addr(old))), 0);
    assert_true(stage_reads(b, "na", V2) && stage_reads(b, "nc", V1));
    put_all(a, "pa pb pc pd pe pf pg");
    stage_close(&s);
}


/* T13, A19. A recycled leaf that is being built for other keys is not what the cache knew: the tag tells. */
static void stale_pointer_to_recycled_leaf(void **state) {
    (void)state;
    uint64_t old = recycle(SLOTS2);
    reuse(old, "pd");
    assert_true(stage_reads(c, "na", V1) && stage_reads(c, "nx", NULL));
    assert_int_equal(stage_do(c, FAR_OP_UPDATE, "na", V2), 0);
    assert_true(stage_reads(b, "na", V2));
    stage_close(&s);
}


/* The same by a hint, which knows the slot: there the recycled leaf has a key with the same rest, alive. */
static void stale_hint_to_recycled_leaf(void **state) {
    (void)state;
    for (unsigned update = 0; update < 2; update++) {
        uint64_t old = recycle("value_size=8,leaf_slots=2");
        far_addr leaf = dolphin_entry_addr(old);
        char key[3] = "pa"; /* every second letter: on the same memory node */
        for (; key[0] <= 'z' && dolphin_tag(*memory_of(leaf)) == dolphin_entry_tag(old); key[0] += 2)
            stage_write(a, key, V3);
        key[0] -= 2;
        assert_int_equal(*memory_of(dolphin_key_at(leaf, 0)),
                         dolphin_with_state(dolphin_inline_kword((far_bytes){"na", 2}, 1), DOLPHIN_HELD));
        if (update)
            assert_int_equal(stage_do(c, FAR_OP_UPDATE, "na", V2), 0);
        assert_true(stage_reads(c, "na", update ? V2 : V1) && stage_reads(b, key, V3));
        stage_close(&s);
    }
}


/* The same, when what is built there is for the very keys, and its builder dies before it links it. */
static void stale_pointer_to_unpublished_leaf(void **state) {
    (void)state;
    uint64_t old = recycle(SLOTS2);
    far_addr leaf = dolphin_entry_addr(old);
    char key[3] = "nd";
    bool held = false;
    for (; key[1] <= 'z' && !held; key[1]++) {
        stage_start(a, FAR_OP_PUT, key, V3);
        far_sim_stop_before(a->client, (far_sim_match){.kind = FAR_SIM_WRITE, .from = leaf, .to = leaf + 96});
        held = far_sim_run_client(a->client) == FAR_SIM_STOPPED;
    }
    assert_true(held);
    far_sim_kill_at(a->client, (far_sim_match){.kind = FAR_SIM_FAA, .from = leaf, .to = leaf + 8}, FAR_SIM_WHOLE);
    far_sim_resume(a->client);
    far_sim_run_client(a->client);
    assert_int_not_equal(dolphin_tag(*memory_of(leaf)), dolphin_entry_tag(old));
    stage_kill(&s, a);
    assert_int_equal(stage_do(c, FAR_OP_UPDATE, "na", V2), 0);
    assert_true(stage_reads(b, "na", V2) && stage_reads(c, "na", V2));
    stage_close(&s);
}


/* T30, A20. One READ of two lives: the body before the new one is written, the spear word after its birth. */
static void read_spanning_two_lives(void **state) {
    (void)state;
    up(SLOTS2, "atomic_bytes=8");
    put_all(a, "na nb");
    assert_true(stage_reads(c, "na", V1));
    uint64_t old = leaf_entry("na", 0);
    far_addr leaf = dolphin_entry_addr(old);
    put_all(a, "nc");
    assert_int_equal(stage_do(a, FAR_OP_UPDATE, "na", V2), 0);
    stage_age(&s);
    stage_start(c, FAR_OP_GET, "na", NULL);
    far_sim_hold *hold = stage_hold(c, (far_sim_match){.kind = FAR_SIM_READ, .from = leaf, .to = leaf + 96});
    static const uint32_t body[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    assert_int_equal(far_sim_release_units(hold, body, 11), 0);
    reuse(old, "pd");
    far_sim_release(hold);
    stage_finish(c);
    assert_int_equal(c->result, 0);
    assert_memory_equal(c->value, V2, 8);
    stage_close(&s);
}


/* T14. Pointers that are older than the tags are good for are not used, however well they look. */
static void old_pointers_are_not_used(void **state) {
    (void)state;
    _Static_assert(DOLPHIN_POINTER_LIFE / (4 + DOLPHIN_EXTRA_EPOCHS) < DOLPHIN_TAGS, "no tag comes twice");
    up(SLOTS2, NULL);
    put_all(a, "na nb nc");
    assert_true(stage_reads(a, "na", V1));
    dolphin_hint hint;
    far_bytes key = {"na", 2};
    uint64_t now = 0;
    while ((!dolphin_cache_probe(state_of(a)->cache, key, now, &hint) || hint.depth == 0) && now < 1000)
        now++;
    assert_true(now < 1000);
    uint64_t last = now;
    while (dolphin_cache_probe(state_of(a)->cache, key, last + 1, &hint) && hint.depth > 0)
        last++;
    assert_in_range(last - now, DOLPHIN_POINTER_LIFE - 100, DOLPHIN_POINTER_LIFE + 1);
    stage_close(&s);
}


/* T23, A16, A22. A client dies inside a leaf; its place is waited for until all pins are newer, by the one who replaces
 * the leaf without a pin, while others wait for him and renew theirs. */
static void dead_writer_inside(void **state) {
    (void)state;
    stage_open(&s, "dolphin", insert_by[0] == 'c' ? SLOTS2 ",insert=cas" : SLOTS2, NULL);
    put_all(a, "na nb");
    assert_true(stage_reads(b, "na", V1) && stage_reads(c, "na", V1));
    stand(c, "dolphin:entered", FAR_OP_UPDATE, "na", V2);
    stage_kill(&s, c);
    stage_start(a, FAR_OP_INSERT, "nc", V2);
    stage_start(b, FAR_OP_UPDATE, "nb", V2);
    assert_string_equal(far_sim_result_name(far_sim_run(s.world)), far_sim_result_name(FAR_SIM_ENDED));
    assert_true(a->result == 0 && b->result == 0);
    assert_true(stage_reads(a, "nb", V2) && stage_reads(b, "nc", V2) && stage_reads(b, "na", V1));
    stage_close(&s);
}


/* ... and others of his handle wait for him at a gate, without a pin: else the pins would never all be newer. */
static void who_waits_at_a_gate_has_no_pin(void **state) {
    (void)state;
    stage_open(&s, "dolphin", SLOTS2, NULL);
    put_all(a, "na nb");
    assert_true(stage_reads(c, "na", V1));
    stand(c, "dolphin:entered", FAR_OP_UPDATE, "na", V2);
    stage_kill(&s, c);
    stage_actor d = another_of(a);
    stand(a, "dolphin:drain", FAR_OP_INSERT, "nc", V2);
    start_and_wait(&d, FAR_OP_UPDATE, "nb", V2);
    far_sim_resume(a->client);
    far_sim_run_for(s.world, 50000000);
    assert_true(a->ended && d.ended && a->result == 0 && d.result == 0);
    assert_true(stage_reads(a, "nb", V2) && stage_reads(b, "nc", V2) && stage_reads(b, "na", V1));
    far_session_close(d.session);
    stage_close(&s);
}


/* sync=exclusive: two come to take over the lock of a leaf from a dead client. Who is late waits: one at a time is inside. */
static void late_takeover_of_a_leaf(void **state) {
    (void)state;
    up(SLOTS2 ",sync=exclusive", NULL);
    put_all(a, "na nb");
    assert_true(stage_reads(b, "na", V1) && stage_reads(c, "na", V1));
    far_addr leaf = dolphin_entry_addr(leaf_entry("na", 0)), lock = leaf + DOLPHIN_LEAF_LOCK;
    stand(a, "dolphin:entered", FAR_OP_UPDATE, "na", V2);
    uint64_t dead = *memory_of(lock);
    stage_kill(&s, a);
    stage_start(b, FAR_OP_UPDATE, "nb", V2);
    stage_stop_at(b, (far_sim_match){.kind = FAR_SIM_CAS, .from = lock, .to = lock + 8, .nth = 5});
    stand(c, "dolphin:entered", FAR_OP_UPDATE, "na", V3);
    assert_int_not_equal(*memory_of(lock), dead);
    far_sim_resume(b->client);
    far_sim_run_for(s.world, 10000);
    assert_true(!b->ended && dolphin_count(*memory_of(leaf)) == 2); /* the dead one, and c */
    stage_finish(c);
    stage_finish(b);
    assert_true(b->result == 0 && c->result == 0 && stage_reads(c, "na", V3) && stage_reads(c, "nb", V2));
    stage_close(&s);
}


/* T31. The lock of a dead client is taken over, and what it left is put right, by a session that may have its number.
 */
static void lock_of_the_dead(void **state) {
    (void)state;
    static const char *const points[] = {"dolphin:locked", "dolphin:frozen", "dolphin:publish", "dolphin:replaced"};
    for (unsigned i = 0; i < 4; i++) {
        up(SLOTS2, NULL);
        put_all(a, FIVE);
        stand(a, points[i], FAR_OP_INSERT, "nd", V2);
        stage_kill(&s, a);
        assert_int_equal(stage_do(b, FAR_OP_PUT, "nca", V3), 0);
        assert_true(all_read(c, FIVE, V1) && stage_reads(c, "nca", V3));
        assert_int_equal(stage_do(c, FAR_OP_PUT, "nd", V3), 0);
        stage_close(&s);
    }
}


/* A get, or a scan, has READ a frozen leaf, and does not come to look at its node for so long that it takes a new pin.
 * What it READ counts no more: the leaf thawed, the key was updated, and its old block is used anew. */
static void frozen_leaf_of_an_older_pin_in(far_op_kind does, const char *point) {
    static const char other[] = "another one that is as long as the first of them";
    _Static_assert(sizeof(other) == sizeof(LONG1), "their blocks have one size");
    up("leaf_slots=4,hints=off,patience=2", NULL);
    for (const char *key = "abcd"; *key; key++)
        stage_write(c, (char[]){'n', *key, 0}, LONG1);
    assert_true(stage_reads(a, "na", LONG1) && stage_reads(b, "na", LONG1));
    stand(b, "dolphin:frozen", FAR_OP_INSERT, "ne", LONG1);
    a->limit = 1;
    stand(a, point, does, "na", NULL);
    stage_kill(&s, b);
    assert_int_equal(stage_do(c, FAR_OP_UPDATE, "na", LONG2), 0);
    dolphin_node root = node_at("na", 0);
    uint64_t *entry = &root.entries['n' + 1], saved = *entry;
    *entry = 0; /* as in READs that fall into changes, again and again */
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


static void frozen_leaf_of_an_older_pin(void **state) {
    (void)state;
    frozen_leaf_of_an_older_pin_in(FAR_OP_GET, "dolphin:leaf_read");
    frozen_leaf_of_an_older_pin_in(FAR_OP_SCAN, "dolphin:scan_read");
}


/* A leaf is frozen, and its words are damaged: whoever looks at it again and again comes to an end. Without the bound of
 * a scan it hangs; without the look at what the kept leaf is for it gives what is no key of it. */
static void frozen_leaf_that_is_broken(void **state) {
    (void)state;
    up(SLOTS2, NULL);
    put_all(a, FIVE);
    uint64_t *leaf = memory_of(dolphin_entry_addr(leaf_entry("nb", 1))), spear = leaf[0], ident = leaf[1];
    leaf[0] |= DOLPHIN_FROZEN;
    leaf[1] = dolphin_leaf_ident(2, 0, DOLPHIN_LAST, 3);
    assert_int_equal(stage_do(b, FAR_OP_SCAN, "na", NULL), FAR_ERR_CORRUPT);
    assert_int_equal(stage_do(b, FAR_OP_GET, "nb", NULL), FAR_ERR_CORRUPT);
    leaf[0] = spear;
    leaf[1] = ident;
    assert_true(stage_scans(c, "n", "na nb nc nx ny") && stage_scans(b, "n", "na nb nc nx ny"));
    stage_close(&s);
}


/* Two gets at once. */
static void get_both(stage_actor *by, const char *keys[2], int results[2]) {
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


/* A value word is damaged, and leads to the block of another key: a block says whose it is, to whoever reads it, by a hint
 * or in the leaf, alone or with others, in scans and checks. */
static void value_of_another_key(void **state) {
    (void)state;
    const char *both[2] = {"nb", "na"};
    int results[2];
    up("leaf_slots=4", NULL);
    for (unsigned i = 0; i < 2; i++)
        stage_write(a, both[i], LONG1);
    assert_true(stage_reads(b, "na", LONG1) && stage_reads(c, "nb", LONG1));
    far_addr leaf = dolphin_entry_addr(leaf_entry("na", 0));
    uint64_t *values = memory_of(dolphin_value_at(leaf, 4, 0)), was = values[1];
    values[1] = values[0];
    assert_int_equal(stage_do(b, FAR_OP_GET, "na", NULL), FAR_ERR_CORRUPT); /* by a hint */
    assert_int_equal(stage_do(c, FAR_OP_GET, "na", NULL), FAR_ERR_CORRUPT);
    assert_int_equal(stage_do(c, FAR_OP_SCAN, "n", NULL), FAR_ERR_CORRUPT);
    get_both(c, both, results);
    assert_true(results[0] == 0 && results[1] == FAR_ERR_CORRUPT);
    assert_int_equal(far_index_check(c->session, c->index, expect_problem, NULL), 1);
    values[1] = was;
    assert_true(stage_scans(c, "n", "na nb"));
    stage_close(&s);
}


/* A client dies when the old node is frozen, and the entry above it not yet changed: whoever takes over the lock above
 * lets it thaw. */
static void frozen_node_of_the_dead(void **state) {
    (void)state;
    up(SLOTS1, NULL);
    put_all(a, MANY);
    stand(a, "dolphin:switch", FAR_OP_INSERT, "nc", V2);
    uint64_t *lock = node_at("nb", 1).image;
    stage_kill(&s, a);
    *lock |= DOLPHIN_FROZEN; /* where the CAS was not waited for it may not have taken effect */
    assert_int_equal(stage_do(b, FAR_OP_INSERT, "nc", V3), 0);
    assert_true(stage_reads(c, "nc", V3) && all_read(c, MANY, V1));
    stage_close(&s);
}


/* Two come to take over the lock of a dead client. Who is late leaves it alone: were what the other one has frozen
 * since thawed, writers would come into a leaf that is being copied. */
static void late_takeover_changes_nothing(void **state) {
    (void)state;
    up(SLOTS2, NULL);
    put_all(a, FIVE);
    assert_true(all_read(b, FIVE, V1));
    uint64_t *leaf = memory_of(dolphin_entry_addr(leaf_entry("nb", 1)));
    far_addr lock = node_addr("na");
    stand(a, "dolphin:frozen", FAR_OP_INSERT, "nd", V2);
    stage_kill(&s, a);
    stage_start(b, FAR_OP_UPDATE, "nb", V2);
    stage_stop_at(b, (far_sim_match){.kind = FAR_SIM_CAS, .from = lock, .to = lock + 8});
    stand(c, "dolphin:frozen", FAR_OP_INSERT, "nd", V3);
    far_sim_resume(b->client);
    far_sim_run_for(s.world, 100000);
    assert_true(!b->ended && (*leaf & DOLPHIN_FROZEN));
    stage_finish(c);
    stage_finish(b);
    assert_true(b->result == 0 && c->result == 0 && stage_reads(c, "nb", V2) && stage_reads(b, "nd", V3));
    stage_close(&s);
}


/* T31. The number of a dead client is used again, by one that lives: a lock with the old generation is a dead one's.
 * Without the generation in the lock word it would be waited for for ever. */
static void lock_of_the_dead_whose_number_lives(void **state) {
    (void)state;
    stage_open(&s, "dolphin", SLOTS2, NULL);
    put_all(a, FIVE);
    stand(a, "dolphin:locked", FAR_OP_INSERT, "nd", V2);
    unsigned id = a->session->id, generation = a->session->generation;
    uint64_t *lock = memory_of(node_addr("na")), held = *lock;
    assert_int_equal(far_owner_client(dolphin_lock_owner(held)), id);
    stage_kill(&s, a);
    far_session *sessions[64];
    unsigned count = 0;
    bool again = false;
    for (unsigned tries = 0; tries < 8 && !again; tries++) { /* the sweep takes the lock over, and frees the number */
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
    assert_true(stage_reads(c, "nd", V3) && all_read(c, FIVE, V1));
    while (count)
        far_session_close(sessions[--count]);
    stage_close(&s);
}


/* T32. A client that is declared dead, and goes on, changes nothing any more. */
static void zombie_after_takeover(void **state) {
    (void)state;
    static const char *const points[] = {"dolphin:locked", "dolphin:publish"};
    for (unsigned i = 0; i < 2; i++) {
        up(SLOTS2, NULL);
        put_all(a, FIVE);
        stand(a, points[i], FAR_OP_INSERT, "nd", V2);
        assert_int_equal(far_sim_declare_dead(s.world, a->session->id, a->session->generation), 1);
        assert_int_equal(stage_do(b, FAR_OP_PUT, "nd", V3), 0);
        stage_finish(a);
        assert_true(a->result < 0 && stage_reads(c, "nd", V3) && all_read(c, FIVE, V1));
        stage_kill(&s, a);
        stage_close(&s);
    }
}


static void check_main(void *arg) {
    stage_actor *by = arg;
    by->result = (int)far_index_check(by->session, by->index, expect_problem, NULL);
    by->ended = true;
}


/* A torn READ shows a key whose value is not there: it came just then, or the key is deleted. Check looks again. */
static void a_value_on_its_way_is_not_missing(void **state) {
    (void)state;
    for (unsigned deleted = 0; deleted < 2; deleted++) {
        up("leaf_slots=4", NULL);
        put_all(a, "na nb nc");
        uint64_t *word = memory_of(dolphin_value_at(dolphin_entry_addr(leaf_entry("na", 0)), 4, 0)), was = *word;
        *word = 0;
        stage_start_main(b, "check", check_main);
        stage_stop_at(b, (far_sim_match){.point = "dolphin:missing"});
        *word = was;
        if (deleted)
            assert_int_equal(stage_do(a, FAR_OP_DELETE, "na", NULL), 0);
        assert_int_equal(*word == 0, deleted);
        stage_finish(b);
        assert_int_equal(b->result, 0);
        stage_close(&s);
    }
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stray_enter_and_exit_over_recycling),
        cmocka_unit_test(stale_pointer_to_recycled_leaf),
        cmocka_unit_test(stale_hint_to_recycled_leaf),
        cmocka_unit_test(stale_pointer_to_unpublished_leaf),
        cmocka_unit_test(read_spanning_two_lives),
        cmocka_unit_test(old_pointers_are_not_used),
        cmocka_unit_test(dead_writer_inside),
        cmocka_unit_test(who_waits_at_a_gate_has_no_pin),
        cmocka_unit_test(late_takeover_of_a_leaf),
        cmocka_unit_test(lock_of_the_dead),
        cmocka_unit_test(frozen_leaf_of_an_older_pin),
        cmocka_unit_test(frozen_leaf_that_is_broken),
        cmocka_unit_test(value_of_another_key),
        cmocka_unit_test(frozen_node_of_the_dead),
        cmocka_unit_test(late_takeover_changes_nothing),
        cmocka_unit_test(lock_of_the_dead_whose_number_lives),
        cmocka_unit_test(zombie_after_takeover),
        cmocka_unit_test(a_value_on_its_way_is_not_missing),
    };
    int failed = cmocka_run_group_tests(tests, inserts_by_ticket, NULL);
    return failed + cmocka_run_group_tests(tests, inserts_by_cas, NULL);
}
