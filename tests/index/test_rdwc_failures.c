/* RDWC when something goes wrong: the leader, its session, the pin; and what the hooks promise then. */
#include "rdwc_rig.h"


static void when_the_leader_fails_before_any_effect_members_run_alone(void **state) {
    (void)state;
    far.failure = FAR_ERR_NO_MEMORY;
    far.failure_before = true;
    operation *leader = begin_and_stop(0, FAR_OP_PUT, "a", AFTER_READ);
    operation *b = begin_and_settle(1, FAR_OP_PUT, "b"), *get = begin_and_settle(1, FAR_OP_GET, NULL);
    go_on();
    assert_int_equal(leader->result, FAR_ERR_NO_MEMORY);
    assert_int_equal(b->result, 0);
    assert_far("b");
    assert_got(get, "b");
    assert_int_equal(combined(1, FAR_OP_PUT), 0);
    assert_int_equal(delegated(1), 0);
}


static void a_leader_does_not_fail_for_the_value_of_another(void **state) {
    (void)state;
    operation *leader = begin_and_stop(0, FAR_OP_PUT, "mine", AFTER_READ);
    far.failure = FAR_ERR_NO_MEMORY; /* of the write that carries the value of the other */
    operation *other = begin_and_settle(1, FAR_OP_PUT, "theirs");
    go_on();
    assert_int_equal(leader->result, 0);
    assert_int_equal(other->result, 0);
    assert_int_equal(far.writes, 3);
}


static void an_unknown_outcome_is_told_to_the_one_whose_value_was_sent(void **state) {
    (void)state;
    operation *leader = begin_and_stop(0, FAR_OP_PUT, "a", AFTER_READ);
    operation *b = begin_and_settle(1, FAR_OP_PUT, "b"), *c = begin_and_settle(1, FAR_OP_PUT, "c");
    operation *get = begin_and_settle(1, FAR_OP_GET, NULL);
    far.failure = FAR_ERR_FENCED; /* of the write that carries c */
    far.stop_at = AFTER_WRITE;
    far.go_on = true;
    settle();
    assert_far("c");
    go_on();
    assert_int_equal(leader->result, FAR_ERR_FENCED);
    assert_int_equal(c->result, FAR_ERR_UNREACHABLE); /* its own session is well: it is not told that it is fenced */
    assert_int_equal(b->result, 0);                   /* was never sent: runs for itself */
    assert_int_equal(get->result, 0);
    assert_int_equal(far.writes, 2); /* c was written once, then b */
    assert_far("b");
}


static void a_member_whose_session_is_lost_hands_the_lead_on(void **state) {
    (void)state;
    set_far("v");
    begin_and_stop(0, FAR_OP_GET, NULL, AFTER_READ);
    operation *lost = begin_and_settle(1, FAR_OP_GET, NULL), *well = begin_and_settle(2, FAR_OP_GET, NULL);
    session(1)->lost = FAR_ERR_FENCED;
    go_on();
    assert_int_equal(lost->result, 0); /* this index knows of no sessions */
    assert_got(well, "v");
    assert_int_equal(far.gets, 3);
}


static void nobody_holds_a_pin_while_it_waits(void **state) {
    (void)state;
    far.hooks = false;
    far.need_pin = true;
    for (unsigned i = 0; i < 6; i++) {
        far.stop_at = i ? NOWHERE : AFTER_READ;
        operation *op = begin(i % 2, i < 2 || i == 4 ? FAR_OP_UPDATE : FAR_OP_PUT, "v");
        op->pinned = true;
        settle();
    }
    far_session_pins *one = &session(0)->pins, *two = &session(1)->pins;
    unsigned held = one->held[0] + one->held[1] + two->held[0] + two->held[1];
    assert_int_equal(held, 1); /* the leader's */
    go_on();                   /* each that runs the index code has a pin again */
    held = one->held[0] + one->held[1] + two->held[0] + two->held[1];
    assert_int_equal(held, 0);
    assert_far("v");
}


static void the_sealed_value_stays_when_the_leader_tries_again(void **state) {
    (void)state;
    operation *leader = begin_and_stop(0, FAR_OP_PUT, "a", AFTER_SEAL);
    operation *late = begin_and_settle(1, FAR_OP_PUT, "b");
    go_on();
    assert_int_equal(leader->result, 0);
    assert_int_equal(late->result, 0);
    assert_int_equal(far.writes, 2);
    assert_far("b");
}


static void hooks_do_nothing_in_a_task_that_leads_no_round(void **state) {
    (void)state;
    far_task alone = {0};
    far_bytes mine = {"x", 1}, value = mine;
    assert_int_equal(far_rdwc_mark(&alone), 0);
    assert_int_equal(far_rdwc_seal(&alone, &value), 0);
    assert_ptr_equal(value.data, mine.data);
    far_rdwc_done(&alone, 0);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(when_the_leader_fails_before_any_effect_members_run_alone),
        TEST(a_leader_does_not_fail_for_the_value_of_another),
        TEST(an_unknown_outcome_is_told_to_the_one_whose_value_was_sent),
        TEST(a_member_whose_session_is_lost_hands_the_lead_on),
        TEST(nobody_holds_a_pin_while_it_waits),
        TEST(the_sealed_value_stays_when_the_leader_tries_again),
        TEST(hooks_do_nothing_in_a_task_that_leads_no_round),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
