/* Dolphin, insert=ticket: slots are given out by a counter, with a sum of the keys that they are given to. Named
 * interleavings of inserts of one key, of two, of holes and of the dead; what fails when the guarding line is taken out
 * is said at each test. */
#include "dolphin_rig.h"

#define TICKETS  WORDS ",insert=ticket"
#define LONG_KEY "nk-and-a-rest-that-does-not-fit-into-a-word"


static uint64_t trips_of_insert(stage_actor *by, const char *key) {
    far_stats before, after;
    far_session_stats(by->session, &before);
    assert_int_equal(stage_do(by, FAR_OP_INSERT, key, V2), 0);
    far_session_stats(by->session, &after);
    return far_stats_diff(&after, &before).round_trips;
}


/* A slot that was given out to a client that is not through is taken from it, when another insert of its key has one
 * above: without that both insert the key, the lower one later. Whatever the key, and however the first one came to its
 * ticket. */
static void ticket_below_is_killed(void **state) {
    (void)state;
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
        up(cases[i].options, NULL);
        put_all(a, "na nb nl-and-another-rest-in-a-block");
        stand(a, "dolphin:ticket", cases[i].first, key, V2);
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


/* The sum of the keys says that the one slot below which is not taken is another key's: it is passed at no cost. */
static void ticket_of_another_key_is_passed(void **state) {
    (void)state;
    static const char *const options[] = {TICKETS, "insert=ticket"};
    for (unsigned i = 0; i < 2; i++) {
        up(options[i], NULL);
        put_all(a, "na nb " LONG_KEY);
        assert_true(stage_reads(b, "na", V1));
        stand(a, "dolphin:ticket", FAR_OP_INSERT, "nx", V1);
        assert_int_equal(trips_of_insert(b, "nk"), 2);
        assert_int_equal(trips_of_insert(b, "nl"), 2);
        stage_finish(a);
        assert_true(a->result == 0 && stage_reads(c, "nx", V1) && stage_scans(c, "n", "na nb nk " LONG_KEY " nl nx"));
        stage_close(&s);
    }
}


/* With two of them the sum says nothing: they are waited for. */
static void two_tickets_below_are_looked_at(void **state) {
    (void)state;
    up(TICKETS, NULL);
    put_all(a, "na nb");
    stage_actor d = another_of(a);
    stand(a, "dolphin:ticket", FAR_OP_INSERT, "nk", V1);
    stand(&d, "dolphin:ticket", FAR_OP_INSERT, "nx", V1);
    assert_int_equal(stage_do(b, FAR_OP_INSERT, "nk", V3), 0);
    stage_finish(a);
    stage_finish(&d);
    assert_true(a->result == FAR_ERR_EXISTS && d.result == 0);
    stage_delete(b, "nk");
    assert_true(stage_reads(c, "nk", NULL) && stage_scans(c, "n", "na nb nx"));
    far_session_close(d.session);
    stage_close(&s);
}


/* A slot is taken from its holder before it is reserved: the blocks that were made for it are free again, and nothing
 * was lost but the ticket. */
static void ticket_is_killed_before_it_is_reserved(void **state) {
    (void)state;
    far_stats before, after;
    up("insert=ticket,hints=off", NULL);
    stage_write(a, "na", LONG1);
    stage_actor d = another_of(a), e = another_of(a);
    stand(&d, "dolphin:ticket", FAR_OP_INSERT, "nx", LONG1);
    stand(&e, "dolphin:ticket", FAR_OP_INSERT, "ny", LONG1);
    assert_true(stage_reads(c, "na", LONG1));
    far_session_stats(c->session, &before);
    stand(c, "dolphin:ticket", FAR_OP_INSERT, LONG_KEY, LONG1);
    assert_int_equal(stage_do(b, FAR_OP_INSERT, LONG_KEY, LONG2), 0);
    stage_finish(c);
    far_session_stats(c->session, &after);
    assert_int_equal(c->result, FAR_ERR_EXISTS);
    assert_int_equal(far_stats_diff(&after, &before).round_trips, 5); /* two in vain; node, leaf, key block */
    stage_finish(&d);
    stage_finish(&e);
    assert_true(d.result == 0 && e.result == 0 && stage_reads(a, LONG_KEY, LONG2));
    far_session_close(d.session);
    far_session_close(e.session);
    stage_close(&s);
}


/* Nor does it where a slot is a hole, whose key is in the sum and cannot be seen. */
static void sum_with_a_hole_says_nothing(void **state) {
    (void)state;
    up(TICKETS, NULL);
    put_all(a, "na nb");
    stand(a, "dolphin:ticket", FAR_OP_INSERT, "nk", V2);
    assert_int_equal(stage_do(b, FAR_OP_INSERT, "na", V3), FAR_ERR_EXISTS);
    assert_int_equal(stage_do(b, FAR_OP_INSERT, "nk", V3), 0);
    stage_finish(a);
    assert_int_equal(a->result, FAR_ERR_EXISTS);
    stage_delete(b, "nk");
    assert_true(stage_reads(c, "nk", NULL));
    stage_close(&s);
}


/* A new leaf begins with the sum of the keys that are copied into it, and with none of what the last life of its memory
 * had. */
static void sum_of_a_copied_leaf(void **state) {
    (void)state;
    for (unsigned lives = 1; lives <= 3; lives++) {
        up(TICKETS ",leaf_slots=16", NULL);
        put_all(a, "na nb");
        uint64_t leaf = leaf_entry("na", 0);
        for (unsigned life = 0; life < lives; life++) {
            for (unsigned i = 0; i < 15; i++) { /* until its slots are used up, and a few more */
                stage_write(a, "nc", V1);
                stage_delete(a, "nc");
            }
            assert_int_not_equal(leaf_entry("na", 0), leaf);
            leaf = leaf_entry("na", 0);
            stage_age(&s);
        }
        stand(a, "dolphin:ticket", FAR_OP_INSERT, "nak", V2);
        assert_int_equal(stage_do(b, FAR_OP_INSERT, "nak", V3), 0);
        stage_finish(a);
        assert_int_equal(a->result, FAR_ERR_EXISTS);
        stage_delete(b, "nak");
        assert_true(stage_reads(c, "nak", NULL));
        stand(a, "dolphin:ticket", FAR_OP_INSERT, "nal", V2);
        assert_int_equal(stage_do(b, FAR_OP_INSERT, "nam", V3), 0);
        stage_finish(a);
        assert_true(a->result == 0 && all_read(c, "na nb", V1));
        stage_close(&s);
    }
}


/* A client on its way in and out again counts in the word for a moment: the word is looked at until it is as it was. */
static bool comes_back_to(const uint64_t *spear, uint64_t word) {
    for (unsigned i = 0; i < 100 && *spear != word; i++)
        far_sim_run_for(s.world, 500);
    return *spear == word;
}


/* Who finds a leaf full gives its ticket back, so that they do not run out however long nobody can replace the leaf: all
 * but the first, whose ticket tells the others to let him do it. */
static void tickets_beyond_the_slots_come_back(void **state) {
    (void)state;
    up(TICKETS ",leaf_slots=2", NULL);
    put_all(a, "na nb");
    uint64_t *spear = memory_of(dolphin_entry_addr(leaf_entry("na", 0)));
    assert_true(stage_reads(b, "na", V1) && stage_reads(c, "na", V1));
    stand(a, "dolphin:locked", FAR_OP_INSERT, "nc", V2);
    uint64_t with_one = *spear;
    assert_int_equal(dolphin_ticket(with_one), 3);
    start_and_wait(b, FAR_OP_INSERT, "nd", V2);
    assert_true(comes_back_to(spear, with_one));
    start_and_wait(c, FAR_OP_PUT, "ne", V2);
    assert_true(comes_back_to(spear, with_one));
    far_sim_resume(
        a->client); /* all run: the others may stand where a count of theirs is in the leaf, which a drains */
    assert_int_equal(far_sim_run(s.world), FAR_SIM_ENDED);
    assert_true(all_read(b, "nc nd ne", V2) && all_read(c, "na nb", V1));
    stage_close(&s);
}


/* The leaf is full, and the last of its slots is given to another insert of the key, who is through when the leaf is
 * frozen. An insert has found the key then, and lets the leaf thaw; a put replaces the value, whose block goes. */
static void full_leaf_gets_the_key_meanwhile(void **state) {
    (void)state;
    static const char *const options[] = {TICKETS ",leaf_slots=2", "insert=ticket,leaf_slots=2,hints=off"};
    for (unsigned i = 0; i < 4; i++) {
        bool words = i / 2 == 0, put = i % 2;
        const char *first = words ? V2 : LONG1, *second = words ? V3 : LONG2;
        up(options[i / 2], NULL);
        stage_write(a, "na", V1);
        assert_true(stage_reads(b, "na", V1));
        uint64_t leaf = leaf_entry("na", 0);
        stand(a, "dolphin:ticket", FAR_OP_INSERT, "nk", first);
        stand(b, "dolphin:frozen", put ? FAR_OP_PUT : FAR_OP_INSERT, "nk", second);
        stage_finish(a);
        stage_finish(b);
        assert_int_equal(a->result, 0);
        assert_int_equal(b->result, put ? 0 : FAR_ERR_EXISTS);
        assert_true(stage_reads(c, "nk", put ? second : first));
        assert_true(put || !(*memory_of(dolphin_entry_addr(leaf)) & DOLPHIN_FROZEN));
        assert_int_equal(stage_do(c, FAR_OP_UPDATE, "na", V2), 0);
        stage_close(&s);
    }
}


/* A slot below that is reserved for the key is waited for; for another key it is passed. */
static void ticket_meets_reserved(void **state) {
    (void)state;
    up(TICKETS, NULL);
    put_all(a, "na nb");
    stage_actor d = another_of(a);
    stand(a, "dolphin:ticket", FAR_OP_INSERT, "nx", V1); /* their slots stay empty */
    stand(&d, "dolphin:ticket", FAR_OP_INSERT, "ny", V1);
    stand(b, "dolphin:reserved", FAR_OP_INSERT, "nk", V2);
    stage_start(c, FAR_OP_INSERT, "nk", V3);
    stage_stop_at(c, (far_sim_match){.point = "dolphin:kill"});
    stage_finish(b);
    stage_finish(c);
    assert_true(b->result == 0 && c->result == FAR_ERR_EXISTS);
    stage_finish(a);
    stage_finish(&d);
    assert_true(a->result == 0 && d.result == 0 && stage_reads(b, "nk", V2) && stage_reads(c, "nx", V1));
    stage_delete(b, "nk");
    assert_true(stage_reads(c, "nk", NULL) && stage_scans(c, "n", "na nb nx ny"));
    far_session_close(d.session);
    stage_close(&s);
}


/* The same, when nothing else is in the way: without the look at it both insert the key. */
static void ticket_meets_reserved_alone(void **state) {
    (void)state;
    up(TICKETS, NULL);
    put_all(a, "na nb");
    stage_actor d = another_of(a);
    stand(a, "dolphin:ticket", FAR_OP_INSERT, "nx", V1);
    stand(&d, "dolphin:ticket", FAR_OP_INSERT, "ny", V1);
    stand(b, "dolphin:reserved", FAR_OP_INSERT, "nk", V2);
    stage_finish(a);
    stage_finish(&d);
    assert_int_equal(stage_do(c, FAR_OP_INSERT, "nk", V3), 0); /* the slot is taken from b */
    stage_finish(b);
    assert_true(b->result == FAR_ERR_EXISTS && stage_reads(a, "nk", V3));
    stage_delete(c, "nk");
    assert_true(stage_reads(a, "nk", NULL));
    far_session_close(d.session);
    stage_close(&s);
}


/* Holes: of inserts that found their keys, and of one that died. Nobody waits for them twice. */
static void holes_are_passed(void **state) {
    (void)state;
    up(TICKETS, NULL);
    put_all(a, "na nb");
    for (unsigned i = 0; i < 2; i++) /* of two that are not marked the sum would say nothing */
        assert_int_equal(stage_do(b, FAR_OP_INSERT, "na", V2), FAR_ERR_EXISTS);
    assert_true(stage_reads(b, "nb", V1));
    assert_int_equal(trips_of_insert(b, "nc"), 2);
    stand(a, "dolphin:ticket", FAR_OP_INSERT, "nd", V2);
    stage_kill(&s, a);
    assert_int_equal(stage_do(b, FAR_OP_INSERT, "ne", V2), 0);
    assert_int_equal(trips_of_insert(b, "nf"), 2);
    assert_true(stage_scans(c, "n", "na nb nc ne nf"));
    stage_close(&s);
}


/* The value is written before the key. A client dies in between, and its memory is swept: the leaf has the
 * block from then on. Were it not told in the walk, another value would lie in it when the slot is taken from the dead
 * and the leaf is copied, which frees what the slot names. */
static void value_of_a_dead_ticket(void **state) {
    (void)state;
    stage_open(&s, "dolphin", "insert=ticket,leaf_slots=4,hints=off", NULL);
    stage_write(b, "na", LONG1);
    assert_true(stage_reads(b, "na", LONG1));
    far_addr leaf = dolphin_entry_addr(leaf_entry("na", 0)), kword = dolphin_key_at(leaf, 1);
    far_addr value = dolphin_value_at(leaf, 4, 1);
    stage_actor d = another_of(b); /* of the same handle: its memory comes back to it */
    stage_start(&d, FAR_OP_INSERT, "nk", LONG2);
    far_sim_hold *hold = stage_hold(&d, (far_sim_match){.kind = FAR_SIM_CAS, .from = kword, .to = kword + 8});
    assert_int_equal(far_sim_declare_dead(s.world, d.session->id, d.session->generation), 1);
    far_sim_release(hold);
    stage_finish(&d);
    assert_true(d.result < 0 && dolphin_value_is_block(*memory_of(value)) && *memory_of(kword) == 0);
    far_session_close(d.session);
    assert_int_equal(far_pool_check(b->session, 1, fail_at_problem, NULL), 0);
    char key[8];
    for (unsigned i = 0; i < 400; i++) { /* memory that came back is used again, on the memory node of the leaf */
        snprintf(key, sizeof(key), "p%03u", i);
        stage_write(b, key, LONG2);
    }
    for (const char *more = "bcde"; *more; more++) /* the slot is taken from it, the leaf is copied */
        stage_write(b, (char[]){'n', *more, 0}, LONG1);
    stage_age(&s);
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


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ticket_below_is_killed),
        cmocka_unit_test(ticket_of_another_key_is_passed),
        cmocka_unit_test(two_tickets_below_are_looked_at),
        cmocka_unit_test(ticket_is_killed_before_it_is_reserved),
        cmocka_unit_test(sum_with_a_hole_says_nothing),
        cmocka_unit_test(sum_of_a_copied_leaf),
        cmocka_unit_test(tickets_beyond_the_slots_come_back),
        cmocka_unit_test(full_leaf_gets_the_key_meanwhile),
        cmocka_unit_test(ticket_meets_reserved),
        cmocka_unit_test(ticket_meets_reserved_alone),
        cmocka_unit_test(holes_are_passed),
        cmocka_unit_test(value_of_a_dead_ticket),
    };
    const struct CMUnitTest of_blocks[] = {
        cmocka_unit_test(ticket_below_is_killed),
        cmocka_unit_test(ticket_is_killed_before_it_is_reserved),
        cmocka_unit_test(full_leaf_gets_the_key_meanwhile),
    };
    int failed = cmocka_run_group_tests(tests, inserts_by_ticket, NULL);
    return failed + cmocka_run_group_tests(of_blocks, beside_housekeeping, NULL);
}
