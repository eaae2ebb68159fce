/* RDWC, step by step: a made-up index of one key whose operations stop where the test wants, several sessions on one thread. Each of the
 * four named races fails when its rule (join mark < m; the seal) is taken away. */
#include "pool/handle.h"
#include "runtime/rdwc.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define VALUE_MAX 4096
#define OPS_MAX 2048
#define SESSIONS_MAX 8

typedef enum { NOWHERE, AFTER_READ, AFTER_SEAL, AFTER_WRITE } point;

/* The far memory of the made-up index, and how its operations behave. */
static struct {
    bool present;
    unsigned incarnation; /* of the leaf: goes up when the key is deleted */
    char value[VALUE_MAX];
    size_t length;

    bool hooks;    /* the operations call them */
    bool no_done;  /* writes say nothing of their linearization point but by the seal */
    bool in_place; /* writes go by what they read before, as to whether the key is there */
    point stop_at; /* the next operation that gets there stops, once */
    bool stopped, go_on;
    int failure; /* of the next write after its effect, or of any operation before it */
    bool failure_before;
    unsigned gets, writes;
    bool need_pin;
} far;

static struct {
    far_pool pool;
    far_session *sessions[SESSIONS_MAX];
    unsigned session_count;
    far_index index;
} node;

typedef struct operation {
    far_op_kind kind;
    far_index *index;
    const char *key;
    far_bytes value;
    far_out out;
    char buffer[VALUE_MAX];
    bool pinned;
    int result;
    bool ended;
} operation;

static operation *ops;
static unsigned op_count;


static void reach(far_task *t, point at) {
    if (far.stop_at != at)
        return;
    far.stop_at = NOWHERE;
    far.stopped = true;
    while (!far.go_on)
        far_yield(t);
    far.stopped = far.go_on = false;
}


static int take_failure(bool before) {
    int failure = far.failure_before == before ? far.failure : 0;
    if (failure)
        far.failure = 0;
    return failure;
}


static int fake_get(far_task *t, far_out *out) {
    char seen[VALUE_MAX];
    uint32_t m = far.hooks ? far_rdwc_mark(t) : 0;
    bool present = far.present; /* the READ takes effect when it is posted */
    size_t length = far.length;
    memcpy(seen, far.value, length);
    far.gets++;
    reach(t, AFTER_READ);
    if (far.hooks)
        far_rdwc_done(t, m);
    return present ? far_out_give(out, seen, length) : FAR_ERR_NOT_FOUND;
}


static int fake_write(far_task *t, far_op_kind kind, far_bytes value) {
    uint32_t read = far.hooks ? far_rdwc_mark(t) : 0, written = 0;
    bool present = far.present;
    unsigned incarnation = far.incarnation;
    reach(t, AFTER_READ);
    if (kind == FAR_OP_UPDATE && !present) {
        far_rdwc_done(t, read);
        return FAR_ERR_NOT_FOUND;
    }
    if (far.hooks && far.in_place)
        far_rdwc_seal_before(t, read, &value);
    else if (far.hooks)
        far_rdwc_seal(t, &value);
    if (far.stop_at == AFTER_SEAL) { /* overtaken: it tries again */
        reach(t, AFTER_SEAL);
        far_rdwc_seal(t, &value);
    }
    if (far.hooks)
        written = far_rdwc_mark(t);
    bool goes_nowhere = far.in_place && incarnation != far.incarnation; /* into a leaf that was deleted meanwhile */
    if (!goes_nowhere) {
        far.present = true;
        memcpy(far.value, value.data, value.length);
        far.length = value.length;
    }
    far.writes++;
    reach(t, AFTER_WRITE);
    if (far.hooks && !far.no_done)
        far_rdwc_done(t, far.in_place ? read : written);
    return take_failure(false);
}


static int fake_run(far_task *t, far_index *index, far_op_kind kind, far_bytes key, far_bytes value, far_out *out) {
    assert_true(!far.need_pin || t->pin.epoch != 0);
    if (index != &node.index || key.length != 1 || *(const char *)key.data != 'k')
        return FAR_ERR_NOT_FOUND;
    int failure = take_failure(true);
    if (failure) {
        reach(t, AFTER_READ);
        return failure;
    }
    return kind == FAR_OP_GET ? fake_get(t, out) : fake_write(t, kind, value);
}


/* The compute node. */

static int set_up(void **state) {
    (void)state;
    memset(&far, 0, sizeof(far));
    memset(&node, 0, sizeof(node));
    far.hooks = true;
    ops = calloc(OPS_MAX, sizeof(*ops));
    op_count = 0;
    if (far_fabric_open("local:1M", &node.pool.fabric) < 0 || !ops)
        return -1;
    node.pool.geometry.capabilities = node.pool.fabric->capabilities;
    node.pool.latches = far_latches_new();
    node.pool.rdwc = far_rdwc_new(0);
    node.index.pool = &node.pool;
    node.index.uid = 7;
    atomic_store_explicit(&node.pool.epochs.current, 5, memory_order_relaxed);
    return 0;
}


static int tear_down(void **state) {
    (void)state;
    for (unsigned i = 0; i < node.session_count; i++) {
        far_session_leave(node.sessions[i]);
        far_session_free(node.sessions[i]);
    }
    far_rdwc_free(node.pool.rdwc);
    far_latches_free(node.pool.latches);
    node.pool.fabric->ops->close(node.pool.fabric);
    free(ops);
    return 0;
}


static far_session *session(unsigned number) {
    while (node.session_count <= number) {
        far_session **made = &node.sessions[node.session_count++];
        assert_int_equal(far_session_new(&node.pool, made), 0);
        far_session_enter(*made);
    }
    return node.sessions[number];
}


static bool step(void) {
    bool any = false;
    for (unsigned i = 0; i < node.session_count; i++)
        any |= far_session_step(node.sessions[i]);
    return any;
}


/* Until nothing moves any more but the one that is stopped. */
static void settle(void) {
    for (int i = 0; i < 50; i++)
        step();
}


static void run_operation(far_task *t, void *arg) {
    operation *op = arg;
    if (op->pinned)
        assert_int_equal(far_pin_take(t), 0);
    far_bytes key = {op->key, strlen(op->key)};
    far_out *out = op->kind == FAR_OP_GET ? &op->out : NULL;
    op->result = far_rdwc_run(t, op->index, op->kind, key, op->value, out, fake_run);
    op->ended = true;
}


static operation *begin(unsigned on, far_op_kind kind, const char *value) {
    operation *op = &ops[op_count++];
    op->kind = kind;
    op->index = &node.index;
    op->key = "k";
    if (value)
        op->value = (far_bytes){value, strlen(value)};
    op->out = (far_out){op->buffer, sizeof(op->buffer), 0};
    assert_non_null(far_task_new(session(on), kind, run_operation, op));
    return op;
}


static operation *begin_and_settle(unsigned on, far_op_kind kind, const char *value) {
    operation *op = begin(on, kind, value);
    settle();
    return op;
}


static operation *begin_and_stop(unsigned on, far_op_kind kind, const char *value, point at) {
    far.stop_at = at;
    operation *op = begin_and_settle(on, kind, value);
    assert_true(far.stopped);
    assert_false(op->ended);
    return op;
}


static void go_on(void) {
    far.go_on = true;
    settle();
    for (unsigned i = 0; i < op_count; i++)
        assert_true(ops[i].ended);
}


/* What other machines do, in one blow. */
static void set_far(const char *value) {
    far.present = true;
    far.length = strlen(value);
    memcpy(far.value, value, far.length);
}


static void delete_far(void) {
    far.present = false;
    far.incarnation++;
}


static void assert_far(const char *value) {
    assert_true(far.present);
    assert_int_equal(far.length, strlen(value));
    assert_memory_equal(far.value, value, far.length);
}


static void assert_got(const operation *op, const char *value) {
    assert_int_equal(op->result, 0);
    assert_int_equal(op->out.length, strlen(value));
    assert_memory_equal(op->buffer, value, op->out.length);
}


static uint64_t delegated(unsigned on) {
    return session(on)->stats[FAR_OP_GET].delegated_reads;
}


static uint64_t combined(unsigned on, far_op_kind kind) {
    return session(on)->stats[kind].combined_writes;
}


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
    operation *small = begin(1, FAR_OP_GET, NULL), *roomy = begin(0, FAR_OP_GET, NULL), *none = begin(0, FAR_OP_GET, NULL);
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
    operation *small = begin(0, FAR_OP_GET, NULL), *tiny = begin(0, FAR_OP_GET, NULL), *roomy = begin(1, FAR_OP_GET, NULL);
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
        far_index other = {.uid = 100 + i};
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


/* Failures. */

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
    go_on(); /* each that runs the index code has a pin again */
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


#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(delegate_cross_machine),
        TEST(wc_late_join),
        TEST(wc_join_after_delete),
        TEST(wc_update_after_delete_finds_nothing),
        TEST(wc_mixed_sizes),
        TEST(gets_that_wait_share_one_read_and_cost_no_round_trip),
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
