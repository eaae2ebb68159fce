/* RDWC, step by step. Each of the named races fails when its rule (join mark < m; the seal) is taken away. */
#include "rdwc_rig.h"


/* The four named races. */

static void delegate_cross_machine(void **state) {
    (void)state;
    set_far("old");
    operation *leader = begin_and_stop(0, FAR_OP_GET, NULL, AFTER_READ);
    set_far("new"); /* another machine's put, which ends before the next get begins */
    operation *late = begin_and_settle(0, FAR_OP_GET, NULL), *other = begin_and_settle(1, FAR_OP_GET, NULL);
    go_on();
    assert_got(leader, "old");
    assert_got(late, "new");
    assert_got(other, "new");
    assert_int_equal(far.gets, 2); /* the two late ones share a round */
    assert_int_equal(delegated(0) + delegated(1), 1);
}


static void wc_late_join(void **state) {
    (void)state;
    operation *leader = begin_and_stop(0, FAR_OP_PUT, "first", AFTER_WRITE);
    assert_far("first"); /* seen by another machine before the next put begins */
    operation *late = begin_and_settle(1, FAR_OP_PUT, "second"), *get = begin_and_settle(1, FAR_OP_GET, NULL);
    go_on();
    assert_int_equal(leader->result, 0);
    assert_int_equal(late->result, 0);
    assert_far("second");
    assert_got(get, "second");
    assert_int_equal(far.writes, 2);
}


static void wc_join_after_delete(void **state) {
    (void)state;
    far.in_place = true;
    set_far("old");
    operation *leader = begin_and_stop(0, FAR_OP_PUT, "early", AFTER_READ);
    delete_far(); /* another machine's, which ends before the next put begins */
    operation *late = begin_and_settle(1, FAR_OP_PUT, "late");
    go_on();
    assert_int_equal(leader->result, 0); /* it came before the delete */
    assert_int_equal(late->result, 0);
    assert_far("late");
}


static void wc_update_after_delete_finds_nothing(void **state) {
    (void)state;
    far.in_place = true;
    set_far("old");
    operation *leader = begin_and_stop(0, FAR_OP_UPDATE, "early", AFTER_READ);
    delete_far();
    operation *late = begin_and_settle(1, FAR_OP_UPDATE, "late"), *get = begin_and_settle(1, FAR_OP_GET, NULL);
    go_on();
    assert_int_equal(leader->result, 0);
    assert_int_equal(late->result, FAR_ERR_NOT_FOUND);
    assert_int_equal(get->result, FAR_ERR_NOT_FOUND);
    assert_false(far.present);
}


static void wc_mixed_sizes(void **state) {
    (void)state;
    static char large[3001];
    memset(large, 'x', 3000);
    operation *leader = begin_and_stop(0, FAR_OP_PUT, "a", AFTER_READ);
    operation *middle = begin(0, FAR_OP_PUT, large), *last = begin(1, FAR_OP_PUT, "longer than the first");
    operation *small = begin(1, FAR_OP_GET, NULL), *roomy = begin(0, FAR_OP_GET, NULL),
              *none = begin(0, FAR_OP_GET, NULL);
    small->out.capacity = 3;
    none->out = (far_out){NULL, 0, 0};
    settle();
    go_on();
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

static void gets_that_wait_share_one_read_and_cost_no_round_trip(void **state) {
    (void)state;
    set_far("v");
    begin_and_stop(0, FAR_OP_GET, NULL, AFTER_READ);
    for (unsigned i = 0; i < 10; i++)
        begin_and_settle(i % 3, FAR_OP_GET, NULL);
    go_on();
    assert_int_equal(far.gets, 2);
    assert_int_equal(delegated(0) + delegated(1) + delegated(2), 9);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(session(i)->stats[FAR_OP_GET].round_trips, 0);
}


/* There is no round trip to be shared, and to find each other takes longer than the READ. */
static void where_verbs_run_at_once_gets_read_for_themselves(void **state) {
    (void)state;
    node.pool.fabric->at_once = true;
    set_far("v");
    begin_and_stop(0, FAR_OP_GET, NULL, AFTER_READ);
    for (unsigned i = 0; i < 10; i++)
        begin_and_settle(i % 3, FAR_OP_GET, NULL);
    go_on();
    assert_int_equal(far.gets, 11);
    begin_and_stop(0, FAR_OP_PUT, "a", AFTER_READ);
    begin_and_settle(1, FAR_OP_PUT, "b"); /* writes do not stand in each other's way */
    go_on();
    assert_int_equal(far.writes, 1);
}


static void writes_that_join_before_the_seal_are_one_write(void **state) {
    (void)state;
    begin_and_stop(0, FAR_OP_PUT, "a", AFTER_READ);
    for (unsigned i = 0; i < 10; i++)
        begin_and_settle(i % 3, FAR_OP_PUT, i == 9 ? "last" : "b");
    go_on();
    assert_int_equal(far.writes, 1);
    assert_far("last");
    assert_int_equal(combined(0, FAR_OP_PUT) + combined(1, FAR_OP_PUT) + combined(2, FAR_OP_PUT), 10);
}


static void without_hooks_those_who_wait_are_the_next_round(void **state) {
    (void)state;
    far.hooks = false;
    begin_and_stop(0, FAR_OP_PUT, "a", AFTER_READ);
    operation *b = begin_and_settle(1, FAR_OP_PUT, "b"), *get = begin_and_settle(0, FAR_OP_GET, NULL);
    operation *c = begin_and_settle(0, FAR_OP_PUT, "c");
    go_on();
    assert_int_equal(b->result, 0);
    assert_int_equal(c->result, 0);
    assert_far("c");
    assert_got(get, "c");
    assert_int_equal(far.writes, 2);
    assert_int_equal(far.gets, 0);
}


static void a_get_joins_a_put_until_the_write_is_posted(void **state) {
    (void)state;
    set_far("old");
    begin_and_stop(0, FAR_OP_PUT, "new", AFTER_READ);
    operation *get = begin_and_settle(1, FAR_OP_GET, NULL);
    assert_false(get->ended);
    go_on();
    assert_got(get, "new");
    assert_int_equal(far.gets, 0);
}


static void an_absent_key_is_told_to_all_updates_and_gets_that_came_in_time(void **state) {
    (void)state;
    far.hooks = false; /* all that wait have joined before the start of the second round */
    begin_and_stop(0, FAR_OP_UPDATE, "a", AFTER_READ);
    operation *b = begin_and_settle(0, FAR_OP_UPDATE, "b"), *c = begin_and_settle(1, FAR_OP_UPDATE, "c");
    operation *get = begin_and_settle(1, FAR_OP_GET, NULL);
    go_on();
    assert_int_equal(b->result, FAR_ERR_NOT_FOUND);
    assert_int_equal(c->result, FAR_ERR_NOT_FOUND);
    assert_int_equal(get->result, FAR_ERR_NOT_FOUND);
    assert_int_equal(far.gets, 0);
    assert_int_equal(combined(1, FAR_OP_UPDATE), 1);
}


static void puts_and_updates_are_not_merged_with_each_other(void **state) {
    (void)state;
    begin_and_stop(0, FAR_OP_UPDATE, "u", AFTER_READ);
    operation *put = begin_and_settle(0, FAR_OP_PUT, "p");
    operation *update = begin_and_settle(1, FAR_OP_UPDATE, "v");
    go_on();
    assert_int_equal(ops[0].result, FAR_ERR_NOT_FOUND);
    assert_int_equal(put->result, 0);
    assert_int_equal(update->result, 0); /* joined too late for the first, which read before; comes after the put */
    assert_far("v");
    assert_int_equal(far.writes, 2);
}


static void a_put_is_never_told_that_the_key_is_absent(void **state) {
    (void)state;
    far.hooks = false;
    begin_and_stop(0, FAR_OP_GET, NULL, AFTER_READ);
    operation *update = begin_and_settle(0, FAR_OP_UPDATE, "u"), *put = begin_and_settle(1, FAR_OP_PUT, "p");
    operation *second = begin_and_settle(1, FAR_OP_UPDATE, "v");
    go_on();
    assert_int_equal(update->result, FAR_ERR_NOT_FOUND);
    assert_int_equal(second->result, FAR_ERR_NOT_FOUND);
    assert_int_equal(put->result, 0);
    assert_far("p");
}


static void the_seal_alone_tells_that_the_write_comes_later(void **state) {
    (void)state;
    far.no_done = true;
    begin_and_stop(0, FAR_OP_PUT, "a", AFTER_READ);
    operation *get = begin_and_settle(1, FAR_OP_GET, NULL);
    begin_and_settle(1, FAR_OP_PUT, "b");
    go_on();
    assert_got(get, "b");
    assert_int_equal(far.gets, 0);
    assert_int_equal(far.writes, 1);
}


static void insert_and_delete_pass_by(void **state) {
    (void)state;
    begin_and_stop(0, FAR_OP_PUT, "a", AFTER_READ);
    operation *insert = begin_and_settle(0, FAR_OP_INSERT, "i");
    assert_true(insert->ended);
    assert_far("i");
    go_on();
    assert_far("a");
}


static void a_leader_with_a_small_buffer_does_not_keep_the_value_from_others(void **state) {
    (void)state;
    far.hooks = false;
    set_far("twelve bytes");
    begin_and_stop(0, FAR_OP_GET, NULL, AFTER_READ);
    operation *small = begin(0, FAR_OP_GET, NULL), *tiny = begin(0, FAR_OP_GET, NULL),
              *roomy = begin(1, FAR_OP_GET, NULL);
    small->out.capacity = 5;
    tiny->out.capacity = 1;
    settle();
    go_on();
    assert_int_equal(small->result, FAR_ERR_TOO_SMALL);
    assert_int_equal(tiny->result, FAR_ERR_TOO_SMALL);
    assert_int_equal(tiny->out.length, 12);
    assert_got(roomy, "twelve bytes");
    assert_int_equal(far.gets, 3); /* tiny learnt the length from small */
}


/* Of 20000 others about five fall on the entry of the key that is busy; none of all must wait. */
static void pass_by(far_index *index, const char *key) {
    operation *op = &ops[OPS_MAX - 1];
    *op = (operation){.kind = FAR_OP_GET, .index = index, .key = key};
    assert_non_null(far_task_new(session(0), FAR_OP_GET, run_operation, op));
    step();
    step();
    assert_true(op->ended);
}


static void another_key_in_the_entry_passes_by(void **state) {
    (void)state;
    set_far("v");
    begin_and_stop(0, FAR_OP_GET, NULL, AFTER_READ);
    for (unsigned i = 0; i < 20000; i++) {
        char key[8];
        snprintf(key, sizeof(key), "%u", i);
        pass_by(&node.index, key);
    }
    go_on();
    assert_got(&ops[0], "v");
}


static void the_same_key_of_another_index_is_another_key(void **state) {
    (void)state;
    set_far("v");
    begin_and_stop(0, FAR_OP_GET, NULL, AFTER_READ);
    for (unsigned i = 0; i < 20000; i++) {
        far_index other = {.uid = 100 + i, .kind = &no_kind};
        pass_by(&other, "k");
    }
    go_on();
    assert_got(&ops[0], "v");
}


static void more_than_a_thousand_wait_for_one(void **state) {
    (void)state;
    set_far("v");
    begin_and_stop(0, FAR_OP_GET, NULL, AFTER_READ);
    for (unsigned i = 0; i < 1250; i++)
        begin(i % 6, i % 5 == 0 ? FAR_OP_PUT : FAR_OP_GET, i % 5 == 0 ? "w" : NULL);
    settle();
    go_on();
    assert_int_equal(far.gets, 1);
    assert_int_equal(far.writes, 1); /* the first to wait was a put; it serves everybody */
    for (unsigned i = 1; i <= 1250; i++)
        if (ops[i].kind == FAR_OP_GET)
            assert_got(&ops[i], "w");
        else
            assert_int_equal(ops[i].result, 0);
}


static void in_a_quiet_handle_gets_read_for_themselves(void **state) {
    (void)state;
    far_rdwc_free(node.pool.rdwc);
    node.pool.rdwc = far_rdwc_new(4);
    set_far("v");
    begin_and_stop(0, FAR_OP_GET, NULL, AFTER_READ);
    assert_true(begin_and_settle(0, FAR_OP_GET, NULL)->ended);
    assert_true(begin_and_settle(1, FAR_OP_PUT, "w")->ended); /* nothing to combine with */
    for (unsigned i = 0; i < 2; i++) {
        far.stop_at = AFTER_READ; /* two more that are under way, by themselves */
        begin(0, FAR_OP_GET, NULL);
        step();
        step();
    }
    operation *waits = begin_and_settle(1, FAR_OP_GET, NULL);
    assert_false(waits->ended);
    assert_int_equal(far.gets, 4);
    for (unsigned i = 0; i < 3; i++) {
        far.go_on = true;
        settle();
    }
    go_on();
    assert_got(waits, "w");
}


static void switched_off_every_operation_runs_for_itself(void **state) {
    (void)state;
    far_rdwc_free(node.pool.rdwc);
    node.pool.rdwc = NULL;
    set_far("v");
    begin_and_stop(0, FAR_OP_GET, NULL, AFTER_READ);
    assert_true(begin_and_settle(0, FAR_OP_GET, NULL)->ended);
    assert_true(begin_and_settle(1, FAR_OP_PUT, "w")->ended);
    go_on();
    assert_int_equal(delegated(0), 0);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(delegate_cross_machine),
        TEST(wc_late_join),
        TEST(wc_join_after_delete),
        TEST(wc_update_after_delete_finds_nothing),
        TEST(wc_mixed_sizes),
        TEST(gets_that_wait_share_one_read_and_cost_no_round_trip),
        TEST(where_verbs_run_at_once_gets_read_for_themselves),
        TEST(writes_that_join_before_the_seal_are_one_write),
        TEST(without_hooks_those_who_wait_are_the_next_round),
        TEST(a_get_joins_a_put_until_the_write_is_posted),
        TEST(an_absent_key_is_told_to_all_updates_and_gets_that_came_in_time),
        TEST(puts_and_updates_are_not_merged_with_each_other),
        TEST(a_put_is_never_told_that_the_key_is_absent),
        TEST(the_seal_alone_tells_that_the_write_comes_later),
        TEST(insert_and_delete_pass_by),
        TEST(a_leader_with_a_small_buffer_does_not_keep_the_value_from_others),
        TEST(another_key_in_the_entry_passes_by),
        TEST(the_same_key_of_another_index_is_another_key),
        TEST(more_than_a_thousand_wait_for_one),
        TEST(in_a_quiet_handle_gets_read_for_themselves),
        TEST(switched_off_every_operation_runs_for_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
