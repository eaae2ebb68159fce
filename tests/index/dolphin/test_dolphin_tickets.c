/* Dolphin, named interleavings of insert=ticket: the spear word of a leaf gives out slots and holds a sum of the keys
 * that drew them. Each test fails if the guard that its comment names is removed. The rules are at the top of
 * src/index/dolphin/write_ticket.c. */
#include "dolphin_rig.h"
#include "test.h"

#define TICKETS  WORDS ",insert=ticket"
#define LONG_KEY "nk-and-a-rest-that-does-not-fit-into-a-word"


static uint64_t round_trips_of_insert(stage_actor *by, const char *key) {
    far_stats before, after;
    far_session_stats(by->session, &before);
    assert_int_equal(stage_do(by, FAR_OP_INSERT, key, V2), 0);
    far_session_stats(by->session, &after);
    return far_stats_diff(&after, &before).round_trips;
}


/* Race A6. A draws a ticket for a key and stops. B inserts the same key with the next ticket. B must mark A's slot as
 * DEAD before it makes its own key LIVE, so that only B's insert succeeds. The cases differ in the kind of key and in
 * how A has drawn its ticket. Fails without wait_for_lower_slots (write_ticket.c), because A would insert the key too.
 */
TEST_WITH(ticket_below_is_killed, inserts_by_ticket, NULL) {
    static const struct {
        const char *options, *key;
        far_op_kind first;
    } cases[] = {{TICKETS, "nk", FAR_OP_INSERT},
                 {TICKETS, "nk", FAR_OP_PUT},
                 {"insert=ticket", "nk", FAR_OP_INSERT},
                 {"insert=ticket", LONG_KEY, FAR_OP_INSERT},
                 {"insert=ticket", LONG_KEY, FAR_OP_PUT}};
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *key = cases[i].key;
        open_stage(cases[i].options, NULL);
        put_all(a, "na nb nl-and-another-rest-in-a-block");
        run_to_point(a, "dolphin:ticket_drawn", cases[i].first, key, V2);
        assert_int_equal(stage_do(b, FAR_OP_INSERT, key, V3), 0);
        stage_finish(a);
        if (cases[i].first == FAR_OP_PUT)
            assert_true(a->result == 0 && stage_reads(c, key, V2));
        else
            assert_true(a->result == FAR_ERR_EXISTS && stage_reads(c, key, V3));
        stage_delete(b, key);
        assert_true(stage_reads(c, key, NULL));
        stage_close(&s);
    }
}


/* A draws a ticket for nx and stops. B inserts other keys. The sum of key hashes in the spear word shows that A's slot
 * is not for B's keys, so each of B's inserts needs only two round trips. Fails without pending_slot_may_be_same_key
 * (write_ticket.c). */
TEST_WITH(ticket_of_another_key_is_passed, inserts_by_ticket, NULL) {
    static const char *const options[] = {TICKETS, "insert=ticket"};
    for (unsigned i = 0; i < 2; i++) {
        open_stage(options[i], NULL);
        put_all(a, "na nb " LONG_KEY);
        assert_true(stage_reads(b, "na", V1));
        run_to_point(a, "dolphin:ticket_drawn", FAR_OP_INSERT, "nx", V1);
        assert_int_equal(round_trips_of_insert(b, "nk"), 2);
        assert_int_equal(round_trips_of_insert(b, "nl"), 2);
        stage_finish(a);
        assert_true(a->result == 0 && stage_reads(c, "nx", V1) &&
                    scans_both_ways(c, "n", "na nb nk " LONG_KEY " nl nx"));
        stage_close(&s);
    }
}


/* A and D draw tickets for nk and nx, and stop. B inserts nk. The sum of key hashes shows only the sum for both pending
 * slots, and not whether one of them is for nk. So B must wait for both, and then mark both as DEAD. Fails if the sum
 * is used although more than one slot is pending (dolphin_insert_by_ticket). */
TEST_WITH(two_pending_tickets_below_are_checked, inserts_by_ticket, NULL) {
    open_stage(TICKETS, NULL);
    put_all(a, "na nb");
    stage_actor d = open_another_session(a);
    run_to_point(a, "dolphin:ticket_drawn", FAR_OP_INSERT, "nk", V1);
    run_to_point(&d, "dolphin:ticket_drawn", FAR_OP_INSERT, "nx", V1);
    assert_int_equal(stage_do(b, FAR_OP_INSERT, "nk", V3), 0);
    stage_finish(a);
    stage_finish(&d);
    assert_true(a->result == FAR_ERR_EXISTS && d.result == 0);
    stage_delete(b, "nk");
    assert_true(stage_reads(c, "nk", NULL) && scans_both_ways(c, "n", "na nb nx"));
    far_session_close(d.session);
    stage_close(&s);
}


/* C draws a ticket and stops before it reserves its slot. B inserts the same key and marks C's slot as DEAD. C must
 * free the blocks that it has built, and then find the key. Fails if C ignores its failed CAS (dolphin_insert_by_ticket
 * in write_ticket.c). */
TEST_WITH(ticket_is_killed_before_it_is_reserved, inserts_by_ticket, NULL) {
    far_stats before, after;
    open_stage("insert=ticket,hints=off", NULL);
    stage_write(a, "na", LONG1);
    stage_actor d = open_another_session(a), e = open_another_session(a);
    run_to_point(&d, "dolphin:ticket_drawn", FAR_OP_INSERT, "nx", LONG1);
    run_to_point(&e, "dolphin:ticket_drawn", FAR_OP_INSERT, "ny", LONG1);
    assert_true(stage_reads(c, "na", LONG1));
    far_session_stats(c->session, &before);
    run_to_point(c, "dolphin:ticket_drawn", FAR_OP_INSERT, LONG_KEY, LONG1);
    assert_int_equal(stage_do(b, FAR_OP_INSERT, LONG_KEY, LONG2), 0);
    stage_finish(c);
    far_session_stats(c->session, &after);
    assert_int_equal(c->result, FAR_ERR_EXISTS);
    /* Two round trips of the failed attempt; then three, for the node, the leaf and the key block. */
    assert_int_equal(far_stats_diff(&after, &before).round_trips, 5);
    stage_finish(&d);
    stage_finish(&e);
    assert_true(d.result == 0 && e.result == 0 && stage_reads(a, LONG_KEY, LONG2));
    far_session_close(d.session);
    far_session_close(e.session);
    stage_close(&s);
}


/* A draws a ticket for nk and stops. B's insert of the existing key na draws a ticket too and does not use its slot,
 * which becomes a hole. B inserts nk. The hash of na was added to the sum of key hashes for the hole, but B cannot see
 * this. So B must not use the sum. Fails without the check for holes (pending_slot_may_be_same_key). */
TEST_WITH(sum_with_a_hole_is_not_used, inserts_by_ticket, NULL) {
    open_stage(TICKETS, NULL);
    put_all(a, "na nb");
    run_to_point(a, "dolphin:ticket_drawn", FAR_OP_INSERT, "nk", V2);
    assert_int_equal(stage_do(b, FAR_OP_INSERT, "na", V3), FAR_ERR_EXISTS);
    assert_int_equal(stage_do(b, FAR_OP_INSERT, "nk", V3), 0);
    stage_finish(a);
    assert_int_equal(a->result, FAR_ERR_EXISTS);
    stage_delete(b, "nk");
    assert_true(stage_reads(c, "nk", NULL));
    stage_close(&s);
}


/* The spear word of a copied leaf begins with the sum of the hashes of its keys, without the sum of the previous
 * incarnation of its memory. After one to three copies, two concurrent inserts must detect whether they have the same
 * key: then only one succeeds, otherwise both. Fails if dolphin_fill_leaf (leaf_build.c) or batch_activation
 * (restructure.c) sets the sum wrongly. */
TEST_WITH(sum_of_a_copied_leaf, inserts_by_ticket, NULL) {
    for (unsigned lives = 1; lives <= 3; lives++) {
        open_stage(TICKETS ",leaf_slots=16", NULL);
        put_all(a, "na nb");
        uint64_t leaf = leaf_entry("na", 0);
        for (unsigned life = 0; life < lives; life++) {
            for (unsigned i = 0; i < 15; i++) { /* more inserts than the leaf has slots, so the leaf is replaced */
                stage_write(a, "nc", V1);
                stage_delete(a, "nc");
            }
            assert_int_not_equal(leaf_entry("na", 0), leaf);
            leaf = leaf_entry("na", 0);
            stage_free_retired(&s);
        }
        run_to_point(a, "dolphin:ticket_drawn", FAR_OP_INSERT, "nak", V2);
        assert_int_equal(stage_do(b, FAR_OP_INSERT, "nak", V3), 0);
        stage_finish(a);
        assert_int_equal(a->result, FAR_ERR_EXISTS);
        stage_delete(b, "nak");
        assert_true(stage_reads(c, "nak", NULL));
        run_to_point(a, "dolphin:ticket_drawn", FAR_OP_INSERT, "nal", V2);
        assert_int_equal(stage_do(b, FAR_OP_INSERT, "nam", V3), 0);
        stage_finish(a);
        assert_true(a->result == 0 && keys_have_value(c, "na nb", V1));
        stage_close(&s);
    }
}


/* Returns true when the spear word has this value again. While a client is inside the leaf, the word is different. */
static bool word_returns_to(const uint64_t *spear, uint64_t word) {
    for (unsigned i = 0; i < 100 && *spear != word; i++)
        far_sim_run_for(s.world, 500);
    return *spear == word;
}


/* Inserts into a full leaf return their tickets by subtracting 1 from the ticket field, so that the field does not
 * overflow while the leaf cannot be replaced. Only the first ticket beyond the last slot is not returned, because it
 * shows that its client is replacing the leaf. Fails without the returning FAA in dolphin_batch_leave (write.c). */
TEST_WITH(tickets_beyond_the_slots_are_returned, inserts_by_ticket, NULL) {
    open_stage(TICKETS ",leaf_slots=2", NULL);
    put_all(a, "na nb");
    uint64_t *spear = memory_at(dolphin_entry_addr(leaf_entry("na", 0)));
    assert_true(stage_reads(b, "na", V1) && stage_reads(c, "na", V1));
    run_to_point(a, "dolphin:locked", FAR_OP_INSERT, "nc", V2);
    uint64_t with_one = *spear;
    assert_int_equal(dolphin_ticket(with_one), 3);
    start_and_assert_waiting(b, FAR_OP_INSERT, "nd", V2);
    assert_true(word_returns_to(spear, with_one));
    start_and_assert_waiting(c, FAR_OP_PUT, "ne", V2);
    assert_true(word_returns_to(spear, with_one));
    /* All clients run, because a waiting client may be counted as a writer for a moment, and A waits for such writers.
     */
    far_sim_resume(a->client);
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    assert_true(keys_have_value(b, "nc nd ne", V2) && keys_have_value(c, "na nb", V1));
    stage_close(&s);
}


/* A draws the last ticket of a leaf for nk. B finds the leaf full, and freezes it. A inserts nk and leaves. B's insert
 * must then find the key and thaw the leaf; B's put must replace the value and retire the old block. Guard:
 * add_new_item in restructure_leaf.c. */
TEST_WITH(full_leaf_gets_the_key_meanwhile, inserts_by_ticket, NULL) {
    static const char *const options[] = {TICKETS ",leaf_slots=2", "insert=ticket,leaf_slots=2,hints=off"};
    for (unsigned i = 0; i < 4; i++) {
        bool words = i / 2 == 0, put = i % 2;
        const char *first = words ? V2 : LONG1, *second = words ? V3 : LONG2;
        open_stage(options[i / 2], NULL);
        stage_write(a, "na", V1);
        assert_true(stage_reads(b, "na", V1));
        uint64_t leaf = leaf_entry("na", 0);
        run_to_point(a, "dolphin:ticket_drawn", FAR_OP_INSERT, "nk", first);
        run_to_point(b, "dolphin:frozen", put ? FAR_OP_PUT : FAR_OP_INSERT, "nk", second);
        stage_finish(a);
        stage_finish(b);
        assert_int_equal(a->result, 0);
        assert_int_equal(b->result, put ? 0 : FAR_ERR_EXISTS);
        assert_true(stage_reads(c, "nk", put ? second : first));
        assert_true(put || !(*memory_at(dolphin_entry_addr(leaf)) & DOLPHIN_FROZEN));
        assert_int_equal(stage_do(c, FAR_OP_UPDATE, "na", V2), 0);
        stage_close(&s);
    }
}


/* B has reserved its slot for nk. C inserts nk with a higher ticket and must wait for B's slot. Two lower slots are
 * pending for other keys of A and D. Fails if find_pending_below (write_ticket.c) does not compare the keys of RESERVED
 * slots. */
TEST_WITH(ticket_meets_reserved, inserts_by_ticket, NULL) {
    open_stage(TICKETS, NULL);
    put_all(a, "na nb");
    stage_actor d = open_another_session(a);
    /* A and D draw tickets but do not write, so their slots stay EMPTY. */
    run_to_point(a, "dolphin:ticket_drawn", FAR_OP_INSERT, "nx", V1);
    run_to_point(&d, "dolphin:ticket_drawn", FAR_OP_INSERT, "ny", V1);
    run_to_point(b, "dolphin:reserved", FAR_OP_INSERT, "nk", V2);
    stage_start(c, FAR_OP_INSERT, "nk", V3);
    stage_stop_at(c, (far_sim_match){.point = "dolphin:set_slot_dead"});
    stage_finish(b);
    stage_finish(c);
    assert_true(b->result == 0 && c->result == FAR_ERR_EXISTS);
    stage_finish(a);
    stage_finish(&d);
    assert_true(a->result == 0 && d.result == 0 && stage_reads(b, "nk", V2) && stage_reads(c, "nx", V1));
    stage_delete(b, "nk");
    assert_true(stage_reads(c, "nk", NULL) && scans_both_ways(c, "n", "na nb nx ny"));
    far_session_close(d.session);
    stage_close(&s);
}


/* B has reserved its slot for nk. C inserts nk with a higher ticket, and no other slot is pending. C must still find
 * B's RESERVED slot, and mark it as DEAD. Fails if the sum is used although the lower slot is RESERVED. */
TEST_WITH(ticket_meets_reserved_alone, inserts_by_ticket, NULL) {
    open_stage(TICKETS, NULL);
    put_all(a, "na nb");
    stage_actor d = open_another_session(a);
    run_to_point(a, "dolphin:ticket_drawn", FAR_OP_INSERT, "nx", V1);
    run_to_point(&d, "dolphin:ticket_drawn", FAR_OP_INSERT, "ny", V1);
    run_to_point(b, "dolphin:reserved", FAR_OP_INSERT, "nk", V2);
    stage_finish(a);
    stage_finish(&d);
    assert_int_equal(stage_do(c, FAR_OP_INSERT, "nk", V3), 0); /* C marks B's slot as DEAD */
    stage_finish(b);
    assert_true(b->result == FAR_ERR_EXISTS && stage_reads(a, "nk", V3));
    stage_delete(c, "nk");
    assert_true(stage_reads(a, "nk", NULL));
    far_session_close(d.session);
    stage_close(&s);
}


/* Holes are slots that their inserts do not use, because these found their keys or their clients failed. An insert must
 * not wait for a hole that is already marked as DEAD. Fails if dolphin_batch_leave (write.c) does not mark unused
 * tickets. */
TEST_WITH(holes_are_passed, inserts_by_ticket, NULL) {
    open_stage(TICKETS, NULL);
    put_all(a, "na nb");
    for (unsigned i = 0; i < 2; i++) /* two unmarked holes would make the sum unusable */
        assert_int_equal(stage_do(b, FAR_OP_INSERT, "na", V2), FAR_ERR_EXISTS);
    assert_true(stage_reads(b, "nb", V1));
    assert_int_equal(round_trips_of_insert(b, "nc"), 2);
    run_to_point(a, "dolphin:ticket_drawn", FAR_OP_INSERT, "nd", V2);
    stage_kill(&s, a);
    assert_int_equal(stage_do(b, FAR_OP_INSERT, "ne", V2), 0);
    assert_int_equal(round_trips_of_insert(b, "nf"), 2);
    assert_true(scans_both_ways(c, "n", "na nb nc ne nf"));
    stage_close(&s);
}


/* D draws a ticket, writes the value word of its slot, and fails before the CAS of the key word, so the slot stays
 * EMPTY. The collection must report the value block as an object of the leaf. Later the slot is marked as DEAD, and
 * copying the leaf frees the block. Fails if the mark phase ignores EMPTY slots (report_leaf in check.c), because the
 * block would be reused and then freed while in use. */
TEST_WITH(value_of_a_failed_clients_ticket, inserts_by_ticket, NULL) {
    stage_open(&s, "dolphin", "insert=ticket,leaf_slots=4,hints=off", NULL);
    stage_write(b, "na", LONG1);
    assert_true(stage_reads(b, "na", LONG1));
    far_addr leaf = dolphin_entry_addr(leaf_entry("na", 0)), kword = dolphin_kword_addr(leaf, 1);
    far_addr value = dolphin_vword_addr(leaf, 4, 1);
    /* a session of the same handle, so the memory of D returns to this handle */
    stage_actor d = open_another_session(b);
    stage_start(&d, FAR_OP_INSERT, "nk", LONG2);
    far_sim_hold *hold = stage_hold(&d, (far_sim_match){.kind = FAR_SIM_CAS, .from = kword, .to = kword + 8});
    assert_int_equal(far_sim_declare_dead(s.world, d.session->id, d.session->generation), 1);
    far_sim_release(hold);
    stage_finish(&d);
    assert_true(d.result < 0 && dolphin_value_is_block(*memory_at(value)) && *memory_at(kword) == 0);
    far_session_close(d.session);
    assert_int_equal(far_pool_check(b->session, 1, fail_at_problem, NULL), 0);
    char key[8];
    /* allocate values on the memory node of the leaf, so that freed memory is reused */
    for (unsigned i = 0; i < 400; i++) {
        snprintf(key, sizeof(key), "p%03u", i);
        stage_write(b, key, LONG2);
    }
    for (const char *more = "bcde"; *more; more++) /* other inserts mark the slot as DEAD, and the leaf is copied */
        stage_write(b, (char[]){'n', *more, 0}, LONG1);
    stage_free_retired(&s);
    for (unsigned i = 0; i < 400; i++) {
        snprintf(key, sizeof(key), "r%03u", i);
        stage_write(b, key, LONG1);
    }
    for (unsigned i = 0; i < 400; i++) {
        snprintf(key, sizeof(key), "p%03u", i);
        assert_true(stage_reads(c, key, LONG2));
    }
    assert_true(stage_reads(c, "nk", NULL));
    stage_close(&s);
}


TEST_CASE_WITH_HOUSEKEEPING(ticket_below_is_killed);
TEST_CASE_WITH_HOUSEKEEPING(ticket_is_killed_before_it_is_reserved);
TEST_CASE_WITH_HOUSEKEEPING(full_leaf_gets_the_key_meanwhile);
