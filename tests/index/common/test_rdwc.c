/* Tests of RDWC (read delegation and write combining, index/common/rdwc.h) step by step. The four races H17 and H18 of
 * docs/races/smart.md come first. Each of these tests fails if its rule is removed. There are two rules. A member is
 * served only if it joined before the batch that decides the result was posted ("join mark < m"). And no write can join
 * after the seal, which chooses the value to be written. */
#include "rdwc_rig.h"
#include "test.h"


/* The named races. */

/* A get has READ the old value and stops. Another compute node puts a new value. Then two more gets start. They must
 * not return the old value. Fails if the first get also serves members that joined when its READ was already posted
 * (is_served in rdwc.c). */
TEST_WITH(delegate_cross_machine, set_up, tear_down) {
    set_far("old");
    operation *leader = start_and_stop(0, FAR_OP_GET, NULL, AFTER_READ);
    set_far("new"); /* This put on another compute node ends before the next get begins. */
    operation *late = start_and_run(0, FAR_OP_GET, NULL), *other = start_and_run(1, FAR_OP_GET, NULL);
    resume_and_finish();
    assert_got(leader, "old");
    assert_got(late, "new");
    assert_got(other, "new");
    assert_int_equal(far.gets, 2); /* the two late gets share a round */
    assert_int_equal(delegated(0) + delegated(1), 1);
}


/* A put has written its value and stops. Another compute node reads it. Then another put and a get start. The second
 * put must be written too. Fails if a writer that joined after the seal is acknowledged. */
TEST_WITH(wc_late_join, set_up, tear_down) {
    operation *leader = start_and_stop(0, FAR_OP_PUT, "first", AFTER_WRITE);
    assert_far("first"); /* Another compute node reads this value before the next put begins. */
    operation *late = start_and_run(1, FAR_OP_PUT, "second"), *get = start_and_run(1, FAR_OP_GET, NULL);
    resume_and_finish();
    assert_int_equal(leader->result, 0);
    assert_int_equal(late->result, 0);
    assert_far("second");
    assert_got(get, "second");
    assert_int_equal(far.writes, 2);
}


/* A put in place has READ the leaf and stops. Another compute node deletes the key. Then another put starts. Its value
 * must be present afterwards. Fails if far_rdwc_seal_before (rdwc.c) also takes the values of puts that joined after
 * the READ, because the first put then writes such a value into the deleted leaf. */
TEST_WITH(wc_join_after_delete, set_up, tear_down) {
    far.in_place = true;
    set_far("old");
    operation *leader = start_and_stop(0, FAR_OP_PUT, "early", AFTER_READ);
    delete_far(); /* This delete on another compute node ends before the next put begins. */
    operation *late = start_and_run(1, FAR_OP_PUT, "late");
    resume_and_finish();
    assert_int_equal(leader->result, 0); /* The put of the leader counts as one just before the delete. */
    assert_int_equal(late->result, 0);
    assert_far("late");
}


/* An update in place has READ the leaf and stops. Another compute node deletes the key. The updates and gets that start
 * after the delete must return FAR_ERR_NOT_FOUND. */
TEST_WITH(wc_update_after_delete_finds_nothing, set_up, tear_down) {
    far.in_place = true;
    set_far("old");
    operation *leader = start_and_stop(0, FAR_OP_UPDATE, "early", AFTER_READ);
    delete_far();
    operation *late = start_and_run(1, FAR_OP_UPDATE, "late"), *get = start_and_run(1, FAR_OP_GET, NULL);
    resume_and_finish();
    assert_int_equal(leader->result, 0);
    assert_int_equal(late->result, FAR_ERR_NOT_FOUND);
    assert_int_equal(get->result, FAR_ERR_NOT_FOUND);
    assert_false(far.present);
}


/* Puts with values of different sizes are combined, and gets with buffers of different sizes join. The last value is
 * written with its own length, and buffers that are too small get FAR_ERR_TOO_SMALL and the length. */
TEST_WITH(wc_mixed_sizes, set_up, tear_down) {
    static char large[3001];
    memset(large, 'x', 3000);
    operation *leader = start_and_stop(0, FAR_OP_PUT, "a", AFTER_READ);
    operation *middle = start_operation(0, FAR_OP_PUT, large),
              *last = start_operation(1, FAR_OP_PUT, "longer than the first");
    operation *small = start_operation(1, FAR_OP_GET, NULL), *roomy = start_operation(0, FAR_OP_GET, NULL),
              *none = start_operation(0, FAR_OP_GET, NULL);
    small->out.capacity = 3;
    none->out = (far_out){NULL, 0, 0};
    run_until_blocked();
    resume_and_finish();
    assert_int_equal(leader->result, 0);
    assert_int_equal(middle->result, 0);
    assert_int_equal(last->result, 0);
    assert_far("longer than the first");
    assert_int_equal(far.writes, 1);
    assert_int_equal(far.gets, 0);
    assert_got(roomy, "longer than the first");
    assert_int_equal(small->result, FAR_ERR_TOO_SMALL);
    assert_int_equal(small->out.length, strlen("longer than the first"));
    assert_int_equal(small->buffer[0], 0);
    assert_int_equal(none->result, FAR_ERR_TOO_SMALL);
}


/* Merging. */

/* Ten gets that start while one runs share one READ. */
TEST_WITH(gets_that_wait_share_one_read_and_cost_no_round_trip, set_up, tear_down) {
    set_far("v");
    start_and_stop(0, FAR_OP_GET, NULL, AFTER_READ);
    for (unsigned i = 0; i < 10; i++)
        start_and_run(i % 3, FAR_OP_GET, NULL);
    resume_and_finish();
    assert_int_equal(far.gets, 2);
    assert_int_equal(delegated(0) + delegated(1) + delegated(2), 9);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(session_number(i)->stats[FAR_OP_GET].round_trips, 0);
}


/* On a fabric that executes verbs at once there is no round trip to share, and joining a round takes longer than the
 * READ. So gets run on their own, but writes are still combined. */
TEST_WITH(where_verbs_complete_at_once_gets_are_not_merged, set_up, tear_down) {
    node.pool.fabric->at_once = true;
    set_far("v");
    start_and_stop(0, FAR_OP_GET, NULL, AFTER_READ);
    for (unsigned i = 0; i < 10; i++)
        start_and_run(i % 3, FAR_OP_GET, NULL);
    resume_and_finish();
    assert_int_equal(far.gets, 11);
    start_and_stop(0, FAR_OP_PUT, "a", AFTER_READ);
    start_and_run(1, FAR_OP_PUT, "b"); /* writes of one key are still combined, so that they do not compete */
    resume_and_finish();
    assert_int_equal(far.writes, 1);
}


/* Ten puts join a round before its leader closes it for writers (far_rdwc_seal). They become one WRITE, of the value of
 * the last put. */
TEST_WITH(writes_that_join_before_the_seal_are_one_write, set_up, tear_down) {
    start_and_stop(0, FAR_OP_PUT, "a", AFTER_READ);
    for (unsigned i = 0; i < 10; i++)
        start_and_run(i % 3, FAR_OP_PUT, i == 9 ? "last" : "b");
    resume_and_finish();
    assert_int_equal(far.writes, 1);
    assert_far("last");
    assert_int_equal(combined(0, FAR_OP_PUT) + combined(1, FAR_OP_PUT) + combined(2, FAR_OP_PUT), 10);
}


/* If a kind calls no hooks, operations that wait for a round form the next round, because all of them have joined
 * before the next round starts. */
TEST_WITH(without_hooks_waiting_operations_form_the_next_round, set_up, tear_down) {
    far.hooks = false;
    start_and_stop(0, FAR_OP_PUT, "a", AFTER_READ);
    operation *b = start_and_run(1, FAR_OP_PUT, "b"), *get = start_and_run(0, FAR_OP_GET, NULL);
    operation *c = start_and_run(0, FAR_OP_PUT, "c");
    resume_and_finish();
    assert_int_equal(b->result, 0);
    assert_int_equal(c->result, 0);
    assert_far("c");
    assert_got(get, "c");
    assert_int_equal(far.writes, 2);
    assert_int_equal(far.gets, 0);
}


/* A get that joins a put before its WRITE returns the new value. */
TEST_WITH(a_get_joins_a_put_until_the_write_is_posted, set_up, tear_down) {
    set_far("old");
    start_and_stop(0, FAR_OP_PUT, "new", AFTER_READ);
    operation *get = start_and_run(1, FAR_OP_GET, NULL);
    assert_false(get->ended);
    resume_and_finish();
    assert_got(get, "new");
    assert_int_equal(far.gets, 0);
}


/* An update finds the key absent. Updates and gets that joined before the READ return FAR_ERR_NOT_FOUND too. */
TEST_WITH(members_that_joined_in_time_learn_that_the_key_is_absent, set_up, tear_down) {
    far.hooks = false; /* Without hooks, all waiting operations join before the second round starts. */
    start_and_stop(0, FAR_OP_UPDATE, "a", AFTER_READ);
    operation *b = start_and_run(0, FAR_OP_UPDATE, "b"), *c = start_and_run(1, FAR_OP_UPDATE, "c");
    operation *get = start_and_run(1, FAR_OP_GET, NULL);
    resume_and_finish();
    assert_int_equal(b->result, FAR_ERR_NOT_FOUND);
    assert_int_equal(c->result, FAR_ERR_NOT_FOUND);
    assert_int_equal(get->result, FAR_ERR_NOT_FOUND);
    assert_int_equal(far.gets, 0);
    assert_int_equal(combined(1, FAR_OP_UPDATE), 1);
}


/* A put does not join an update, because it would have to create the key, and an update does not join a put. */
TEST_WITH(puts_and_updates_are_not_merged_with_each_other, set_up, tear_down) {
    start_and_stop(0, FAR_OP_UPDATE, "u", AFTER_READ);
    operation *put = start_and_run(0, FAR_OP_PUT, "p");
    operation *update = start_and_run(1, FAR_OP_UPDATE, "v");
    resume_and_finish();
    assert_int_equal(ops[0].result, FAR_ERR_NOT_FOUND);
    assert_int_equal(put->result, 0);
    /* This update joined too late for the first update, which had READ already, so it follows the put. */
    assert_int_equal(update->result, 0);
    assert_far("v");
    assert_int_equal(far.writes, 2);
}


/* A put that waits while gets or updates run on an absent key does not get their result "not found". It runs on its own
 * and creates the key. */
TEST_WITH(a_put_never_returns_not_found, set_up, tear_down) {
    far.hooks = false;
    start_and_stop(0, FAR_OP_GET, NULL, AFTER_READ);
    operation *update = start_and_run(0, FAR_OP_UPDATE, "u"), *put = start_and_run(1, FAR_OP_PUT, "p");
    operation *second = start_and_run(1, FAR_OP_UPDATE, "v");
    resume_and_finish();
    assert_int_equal(update->result, FAR_ERR_NOT_FOUND);
    assert_int_equal(second->result, FAR_ERR_NOT_FOUND);
    assert_int_equal(put->result, 0);
    assert_far("p");
}


/* If the index code does not call far_rdwc_done, a get that joined a put before the seal may still be served with the
 * new value, because the write takes effect after the seal. */
TEST_WITH(the_seal_alone_proves_that_the_write_is_later, set_up, tear_down) {
    far.no_done = true;
    start_and_stop(0, FAR_OP_PUT, "a", AFTER_READ);
    operation *get = start_and_run(1, FAR_OP_GET, NULL);
    start_and_run(1, FAR_OP_PUT, "b");
    resume_and_finish();
    assert_got(get, "b");
    assert_int_equal(far.gets, 0);
    assert_int_equal(far.writes, 1);
}


/* An insert runs at once, although a put on the same key is under way. */
TEST_WITH(inserts_and_deletes_are_not_merged, set_up, tear_down) {
    start_and_stop(0, FAR_OP_PUT, "a", AFTER_READ);
    operation *insert = start_and_run(0, FAR_OP_INSERT, "i");
    assert_true(insert->ended);
    assert_far("i");
    resume_and_finish();
    assert_far("a");
}


/* The leader's buffer is too small for the value. So a member with a larger buffer must run on its own. A member with a
 * smaller buffer gets the length and FAR_ERR_TOO_SMALL. */
TEST_WITH(members_with_larger_buffers_than_the_leader_get_the_value, set_up, tear_down) {
    far.hooks = false;
    set_far("twelve bytes");
    start_and_stop(0, FAR_OP_GET, NULL, AFTER_READ);
    operation *small = start_operation(0, FAR_OP_GET, NULL), *tiny = start_operation(0, FAR_OP_GET, NULL),
              *roomy = start_operation(1, FAR_OP_GET, NULL);
    small->out.capacity = 5;
    tiny->out.capacity = 1;
    run_until_blocked();
    resume_and_finish();
    assert_int_equal(small->result, FAR_ERR_TOO_SMALL);
    assert_int_equal(tiny->result, FAR_ERR_TOO_SMALL);
    assert_int_equal(tiny->out.length, 12);
    assert_got(roomy, "twelve bytes");
    assert_int_equal(far.gets, 3); /* the get with the smallest buffer took the length from another member */
}


/* Starts a get of another key, which must end at once. The table has 4096 entries, so of 20,000 other keys about five
 * use the same entry as the busy key. */
static void assert_key_runs_on_its_own(far_index *index, const char *key) {
    operation *op = &ops[OPS_MAX - 1];
    *op = (operation){.kind = FAR_OP_GET, .index = index, .key = key};
    assert_non_null(far_task_new(session_number(0), FAR_OP_GET, run_operation, op));
    step_all_sessions();
    step_all_sessions();
    assert_true(op->ended);
}


/* Operations on other keys with the same entry of the table do not wait. */
TEST_WITH(another_key_in_the_entry_runs_on_its_own, set_up, tear_down) {
    set_far("v");
    start_and_stop(0, FAR_OP_GET, NULL, AFTER_READ);
    for (unsigned i = 0; i < 20000; i++) {
        char key[8];
        snprintf(key, sizeof(key), "%u", i);
        assert_key_runs_on_its_own(&node.index, key);
    }
    resume_and_finish();
    assert_got(&ops[0], "v");
}


/* Operations on the same key of other indexes do not wait for each other. */
TEST_WITH(the_same_key_of_another_index_is_another_key, set_up, tear_down) {
    set_far("v");
    start_and_stop(0, FAR_OP_GET, NULL, AFTER_READ);
    for (unsigned i = 0; i < 20000; i++) {
        far_index other = {.uid = 100 + i, .kind = &no_kind};
        assert_key_runs_on_its_own(&other, "k");
    }
    resume_and_finish();
    assert_got(&ops[0], "v");
}


/* 1,250 operations wait for one get and are served by one put. Fails with 8-bit counters of waiting operations. */
TEST_WITH(more_than_a_thousand_wait_for_one, set_up, tear_down) {
    set_far("v");
    start_and_stop(0, FAR_OP_GET, NULL, AFTER_READ);
    for (unsigned i = 0; i < 1250; i++)
        start_operation(i % 6, i % 5 == 0 ? FAR_OP_PUT : FAR_OP_GET, i % 5 == 0 ? "w" : NULL);
    run_until_blocked();
    resume_and_finish();
    assert_int_equal(far.gets, 1);
    assert_int_equal(far.writes, 1); /* the first waiting operation was a put, which serves all others */
    for (unsigned i = 1; i <= 1250; i++)
        if (ops[i].kind == FAR_OP_GET)
            assert_got(&ops[i], "w");
        else
            assert_int_equal(ops[i].result, 0);
}


/* If fewer operations than a limit are in progress in the handle, a get does not join others but runs on its own. If
 * more are in progress, it waits in order to be merged. */
TEST_WITH(in_a_quiet_handle_gets_are_not_merged, set_up, tear_down) {
    far_rdwc_free(node.pool.rdwc);
    node.pool.rdwc = far_rdwc_new(4);
    set_far("v");
    start_and_stop(0, FAR_OP_GET, NULL, AFTER_READ);
    assert_true(start_and_run(0, FAR_OP_GET, NULL)->ended);
    assert_true(start_and_run(1, FAR_OP_PUT, "w")->ended); /* there is no other write to combine with */
    for (unsigned i = 0; i < 2; i++) {
        far.stop_at = AFTER_READ; /* two more operations are under way, each on its own */
        start_operation(0, FAR_OP_GET, NULL);
        step_all_sessions();
        step_all_sessions();
    }
    operation *waits = start_and_run(1, FAR_OP_GET, NULL);
    assert_false(waits->ended);
    assert_int_equal(far.gets, 4);
    for (unsigned i = 0; i < 3; i++) {
        far.go_on = true;
        run_until_blocked();
    }
    resume_and_finish();
    assert_got(waits, "w");
}


/* Without a table nothing is merged. */
TEST_WITH(with_rdwc_off_every_operation_runs_on_its_own, set_up, tear_down) {
    far_rdwc_free(node.pool.rdwc);
    node.pool.rdwc = NULL;
    set_far("v");
    start_and_stop(0, FAR_OP_GET, NULL, AFTER_READ);
    assert_true(start_and_run(0, FAR_OP_GET, NULL)->ended);
    assert_true(start_and_run(1, FAR_OP_PUT, "w")->ended);
    resume_and_finish();
    assert_int_equal(delegated(0), 0);
}
