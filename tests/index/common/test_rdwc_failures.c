/* RDWC (read delegation and write combining) and failures of the leader, of its session, and of the write with another
 * operation's value. Further tests cover pins of waiting members, and the hooks in these cases. */
#include "rdwc_rig.h"
#include "test.h"


/* The leader fails and nothing was changed. Its members run on their own and succeed. */
TEST_WITH(when_the_leader_fails_before_any_effect_members_run_alone, set_up, tear_down) {
    far.failure = FAR_ERR_NO_MEMORY;
    far.failure_before = true;
    operation *leader = start_and_stop(0, FAR_OP_PUT, "a", AFTER_READ);
    operation *b = start_and_run(1, FAR_OP_PUT, "b"), *get = start_and_run(1, FAR_OP_GET, NULL);
    resume_and_finish();
    assert_int_equal(leader->result, FAR_ERR_NO_MEMORY);
    assert_int_equal(b->result, 0);
    assert_far("b");
    assert_got(get, "b");
    assert_int_equal(combined(1, FAR_OP_PUT), 0);
    assert_int_equal(delegated(1), 0);
}


/* The leader's write of a member's value fails and has not taken effect. Then the leader writes its own value, and the
 * member runs on its own. */
TEST_WITH(a_leader_does_not_fail_because_of_a_members_value, set_up, tear_down) {
    operation *leader = start_and_stop(0, FAR_OP_PUT, "mine", AFTER_READ);
    far.failure = FAR_ERR_NO_MEMORY; /* error of the write with the other operation's value */
    operation *other = start_and_run(1, FAR_OP_PUT, "theirs");
    resume_and_finish();
    assert_int_equal(leader->result, 0);
    assert_int_equal(other->result, 0);
    assert_int_equal(far.writes, 3);
}


/* The write with a member's value is refused because a stalled client holds up the operation, which has no pin then.
 * The leader takes a new pin before it writes its own value. Fails without far_pin_take in lead_round (rdwc.c). */
TEST_WITH(a_refused_leader_takes_a_pin_before_it_runs_alone, set_up, tear_down) {
    far.need_pin = far.failure_drops_pin = true;
    far.stop_at = AFTER_READ;
    operation *leader = start_operation(0, FAR_OP_PUT, "mine");
    leader->pinned = true;
    run_until_blocked();
    far.failure = FAR_ERR_BUSY;
    operation *other = start_operation(1, FAR_OP_PUT, "theirs");
    other->pinned = true;
    run_until_blocked();
    resume_and_finish();
    assert_int_equal(leader->result, 0);
    assert_int_equal(other->result, 0);
    assert_int_equal(far.writes, 3);
}


/* The leader's session is fenced after it has sent the value of c. The put of c returns FAR_ERR_UNREACHABLE and is not
 * repeated. The put of b, whose value was never sent, runs on its own. */
TEST_WITH(an_unknown_outcome_is_returned_to_the_writer_of_the_sent_value, set_up, tear_down) {
    operation *leader = start_and_stop(0, FAR_OP_PUT, "a", AFTER_READ);
    operation *b = start_and_run(1, FAR_OP_PUT, "b"), *c = start_and_run(1, FAR_OP_PUT, "c");
    operation *get = start_and_run(1, FAR_OP_GET, NULL);
    far.failure = FAR_ERR_FENCED; /* error of the write with the value of c */
    far.stop_at = AFTER_WRITE;
    far.go_on = true;
    run_until_blocked();
    assert_far("c");
    resume_and_finish();
    assert_int_equal(leader->result, FAR_ERR_FENCED);
    /* The session of c is not fenced, so c gets another error than the leader. */
    assert_int_equal(c->result, FAR_ERR_UNREACHABLE);
    assert_int_equal(b->result, 0); /* The value of b was never sent, so b runs on its own. */
    assert_int_equal(get->result, 0);
    assert_int_equal(far.writes, 2); /* the value of c was written once, then that of b */
    assert_far("b");
}


/* The session of the member that would lead the next round is lost. Another member must become the leader. */
TEST_WITH(a_member_with_a_lost_session_hands_over_the_lead, set_up, tear_down) {
    set_far("v");
    start_and_stop(0, FAR_OP_GET, NULL, AFTER_READ);
    operation *lost = start_and_run(1, FAR_OP_GET, NULL), *well = start_and_run(2, FAR_OP_GET, NULL);
    session_number(1)->lost = FAR_ERR_FENCED;
    resume_and_finish();
    assert_int_equal(lost->result, 0); /* the fake index does not check the session */
    assert_got(well, "v");
    assert_int_equal(far.gets, 3);
}


/* Members drop their pins while they wait, and take new ones before they run the index code. Fails if wait_as_member
 * (rdwc.c) keeps the pin. */
TEST_WITH(members_hold_no_pin_while_they_wait, set_up, tear_down) {
    far.hooks = false;
    far.need_pin = true;
    for (unsigned i = 0; i < 6; i++) {
        far.stop_at = i ? NOWHERE : AFTER_READ;
        operation *op = start_operation(i % 2, i < 2 || i == 4 ? FAR_OP_UPDATE : FAR_OP_PUT, "v");
        op->pinned = true;
        run_until_blocked();
    }
    far_session_pins *one = &session_number(0)->pins, *two = &session_number(1)->pins;
    unsigned held = one->held[0] + one->held[1] + two->held[0] + two->held[1];
    assert_int_equal(held, 1); /* Only the leader holds a pin. */
    resume_and_finish();       /* each operation that runs the index code takes a pin again */
    held = one->held[0] + one->held[1] + two->held[0] + two->held[1];
    assert_int_equal(held, 0);
    assert_far("v");
}


/* The leader retries after the seal. It must write the value that it has chosen at the seal, and an operation that
 * joined later must run after it. */
TEST_WITH(the_sealed_value_stays_when_the_leader_tries_again, set_up, tear_down) {
    operation *leader = start_and_stop(0, FAR_OP_PUT, "a", AFTER_SEAL);
    operation *late = start_and_run(1, FAR_OP_PUT, "b");
    resume_and_finish();
    assert_int_equal(leader->result, 0);
    assert_int_equal(late->result, 0);
    assert_int_equal(far.writes, 2);
    assert_far("b");
}


/* The hooks return 0 and change nothing in a task that leads no round. */
TEST_WITH(hooks_do_nothing_in_a_task_that_leads_no_round, set_up, tear_down) {
    far_task alone = {0};
    far_bytes mine = {"x", 1}, value = mine;
    assert_int_equal(far_rdwc_mark(&alone), 0);
    assert_int_equal(far_rdwc_seal(&alone, &value), 0);
    assert_ptr_equal(value.data, mine.data);
    far_rdwc_done(&alone, 0);
}
