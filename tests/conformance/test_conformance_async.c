/* Behaviours of submitted operations: far_submit, far_reap, and concurrent operations of one session. */
#include "conform.h"
#include "workload/value.h"


static far_op make_op(const rig *r, far_op_kind kind, const void *key, size_t key_len, const void *value,
                      size_t value_len) {
    return (far_op){.kind = kind,
                    .index = r->index,
                    .key = key,
                    .key_len = key_len,
                    .value = (void *)value,
                    .value_len = value_len,
                    .result = 12345};
}


/* Submits one operation and waits for it. Returns its result. */
static int submit_and_wait(const rig *r, far_op *op) {
    far_op *done = NULL;
    int user;
    op->user = &user;
    assert_code(1, far_submit(r->session, &op, 1));
    assert_code(1, far_reap(r->session, &done, 1, 1));
    assert_ptr_equal(done, op);
    assert_ptr_equal(done->user, &user);
    return done->result;
}


/* Submits all operations, reaps some whenever the session is full, and waits until all have finished. */
static void submit_and_reap_all(const rig *r, far_op *ops, size_t count) {
    size_t submitted = 0, reaped = 0;
    far_op *done[64], **pointers = malloc(count * sizeof(*pointers));
    for (size_t i = 0; i < count; i++) {
        ops[i].user = NULL;
        pointers[i] = &ops[i];
    }
    while (reaped < count) {
        if (submitted < count) {
            int taken = far_submit(r->session, pointers + submitted, count - submitted);
            assert_true(taken >= 0);
            /* A session without operations in flight accepts at least one. */
            assert_true(taken > 0 || submitted > reaped);
            submitted += (size_t)taken;
        }
        int got = far_reap(r->session, done, COUNT_OF(done), 1);
        assert_true(got >= 1 && got <= (int)COUNT_OF(done));
        for (int i = 0; i < got; i++) {
            /* `user` is set when an operation is reaped, so this operation was not reaped before. */
            assert_null(done[i]->user);
            done[i]->user = done[i];
        }
        reaped += (size_t)got;
    }
    assert_int_equal(reaped, count);
    assert_code(0, far_reap(r->session, done, COUNT_OF(done), 1));
    free(pointers);
}


/* A submitted point operation has the result that the synchronous call would return. */
BEHAVIOUR(each_kind_of_operation_can_be_submitted) {
    rig r;
    rig_up(&r, c);
    char buffer[16];
    far_op op = make_op(&r, FAR_OP_INSERT, "k", 1, "one", 3);
    assert_ok(submit_and_wait(&r, &op));
    assert_code(FAR_ERR_EXISTS, submit_and_wait(&r, &op));
    op = make_op(&r, FAR_OP_UPDATE, "k", 1, "twice", 5);
    assert_ok(submit_and_wait(&r, &op));
    op = make_op(&r, FAR_OP_UPDATE, "absent", 6, "x", 1);
    assert_code(FAR_ERR_NOT_FOUND, submit_and_wait(&r, &op));
    op = make_op(&r, FAR_OP_GET, "k", 1, buffer, 0);
    op.capacity = sizeof(buffer);
    assert_ok(submit_and_wait(&r, &op));
    assert_int_equal(op.value_len, 5);
    assert_memory_equal(buffer, "twice", 5);
    op = make_op(&r, FAR_OP_PUT, "k", 1, "three", 5);
    assert_ok(submit_and_wait(&r, &op));
    op = make_op(&r, FAR_OP_PUT, "l", 1, "", 0);
    assert_ok(submit_and_wait(&r, &op));
    assert_text(&r, "k", "three");
    assert_text(&r, "l", "");
    op = make_op(&r, FAR_OP_DELETE, "k", 1, NULL, 0);
    assert_ok(submit_and_wait(&r, &op));
    assert_code(FAR_ERR_NOT_FOUND, submit_and_wait(&r, &op));
    assert_code(FAR_ERR_NOT_FOUND, get_code(&r, "k"));
    rig_down(&r);
}


/* A submitted get with a too small buffer returns the length of the value and leaves the buffer unchanged, also for an
 * absent key. */
BEHAVIOUR(a_submitted_get_reports_absence_and_too_small_buffers) {
    rig r;
    rig_up(&r, c);
    char buffer[4] = "abc";
    assert_ok(put_text(&r, "k", "long value"));
    far_op op = make_op(&r, FAR_OP_GET, "k", 1, buffer, 0);
    op.capacity = sizeof(buffer);
    assert_code(FAR_ERR_TOO_SMALL, submit_and_wait(&r, &op));
    assert_int_equal(op.value_len, 10);
    assert_string_equal(buffer, "abc");
    op = make_op(&r, FAR_OP_GET, "k", 1, NULL, 0);
    assert_code(FAR_ERR_TOO_SMALL, submit_and_wait(&r, &op));
    assert_int_equal(op.value_len, 10);
    op = make_op(&r, FAR_OP_GET, "none", 4, buffer, 0);
    op.capacity = sizeof(buffer);
    assert_code(FAR_ERR_NOT_FOUND, submit_and_wait(&r, &op));
    assert_string_equal(buffer, "abc");
    rig_down(&r);
}


/* A submitted scan obeys bounds, limit and a callback that stops it. */
BEHAVIOUR_FOR(a_scan_can_be_submitted, FOR_ORDERED) {
    rig r;
    rig_up(&r, c);
    uint8_t key[8];
    for (uint64_t i = 0; i < 100; i++) {
        number_key(i, key);
        assert_ok(put_proof(r.session, r.index, key, 8, 30, i));
    }
    pairs found = {0};
    uint8_t to[8];
    number_key(10, key);
    number_key(60, to);
    far_op op = make_op(&r, FAR_OP_SCAN, key, 8, NULL, 0);
    op.to = to, op.to_len = 8, op.each = collect_pair, op.each_ctx = &found;
    assert_code(50, submit_and_wait(&r, &op));
    assert_int_equal(found.count, 50);
    for (uint64_t i = 0; i < 50; i++) {
        number_key(10 + i, key);
        assert_memory_equal(found.items[i].key, key, 8);
        assert_true(far_value_check(found.items[i].value, found.items[i].value_len, key, 8, NULL));
    }
    pairs_free(&found);
    number_key(10, key);
    op.limit = 7;
    assert_code(7, submit_and_wait(&r, &op));
    pairs_free(&found);
    found.stop_at = 3;
    assert_code(3, submit_and_wait(&r, &op));
    pairs_free(&found);
    far_op all = make_op(&r, FAR_OP_SCAN, NULL, 0, NULL, 0);
    all.each = collect_pair, all.each_ctx = &found;
    assert_code(100, submit_and_wait(&r, &all));
    pairs_free(&found);
    all.each = NULL;
    assert_code(FAR_ERR_INVALID, submit_and_wait(&r, &all));
    rig_down(&r);
}


/* Operations with invalid arguments finish with FAR_ERR_INVALID and change nothing. A valid operation that was
 * submitted with them takes effect. */
BEHAVIOUR(bad_operations_finish_with_their_error) {
    rig r, other;
    rig_up(&r, c);
    rig_join(&other, &r);
    static char large[FAR_VALUE_MAX + 1];
    far_op ops[] = {
        make_op(&r, FAR_OP_PUT, "", 0, "v", 1),
        make_op(&r, FAR_OP_PUT, large, FAR_KEY_MAX + 1, "v", 1),
        make_op(&r, FAR_OP_INSERT, "k", 1, large, FAR_VALUE_MAX + 1),
        make_op(&r, FAR_OP_UPDATE, NULL, 1, "v", 1),
        make_op(&r, FAR_OP_PUT, "k", 1, NULL, 1),
        make_op(&r, FAR_OP_DELETE, NULL, 1, NULL, 0),
        make_op(&r, FAR_OP_GET, NULL, 1, NULL, 0),
        make_op(&r, FAR_OP_GET, "k", 1, NULL, 0), /* This get has a capacity without a buffer. */
        make_op(&r, (far_op_kind)99, "k", 1, "v", 1),
        make_op(&r, FAR_OP_PUT, "k", 1, "v", 1),     /* The index of this operation is set to NULL below. */
        make_op(&other, FAR_OP_PUT, "k", 1, "v", 1), /* The index of this operation belongs to another handle. */
        make_op(&r, FAR_OP_PUT, "good", 4, "v", 1),
    };
    const size_t count = COUNT_OF(ops);
    ops[7].capacity = 10;
    ops[9].index = NULL;
    submit_and_reap_all(&r, ops, count);
    for (size_t i = 0; i + 1 < count; i++)
        assert_code(FAR_ERR_INVALID, ops[i].result);
    assert_ok(ops[count - 1].result);
    assert_text(&r, "good", "v");
    assert_code(FAR_ERR_NOT_FOUND, get_code(&r, "k"));
    rig_close(&other);
    rig_down(&r);
}


/* More operations than a session has room for all finish with the right results, and the index contains exactly their
 * effects. */
BEHAVIOUR(hundreds_in_flight_all_finish) {
    enum { OPS = 600 };
    rig r;
    rig_up(&r, c);
    far_op *ops = calloc(OPS, sizeof(*ops));
    uint8_t(*keys)[8] = malloc(OPS * 8), (*values)[32] = malloc(OPS * 32);
    for (size_t i = 0; i < OPS; i++) {
        number_key(i, keys[i]);
        far_value_fill(values[i], 32, keys[i], 8, i);
        ops[i] = make_op(&r, FAR_OP_INSERT, keys[i], 8, values[i], 32);
    }
    submit_and_reap_all(&r, ops, OPS);
    for (size_t i = 0; i < OPS; i++) {
        assert_ok(ops[i].result);
        memset(values[i], 0, 32);
        ops[i] = make_op(&r, FAR_OP_GET, keys[i], 8, values[i], 0);
        ops[i].capacity = 32;
    }
    submit_and_reap_all(&r, ops, OPS);
    for (size_t i = 0; i < OPS; i++) {
        uint64_t version = 0;
        assert_ok(ops[i].result);
        assert_int_equal(ops[i].value_len, 32);
        assert_true(far_value_check(values[i], 32, keys[i], 8, &version));
        assert_int_equal(version, i);
        ops[i] = make_op(&r, i % 2 ? FAR_OP_DELETE : FAR_OP_UPDATE, keys[i], 8, values[i], i % 2 ? 0 : 16);
    }
    submit_and_reap_all(&r, ops, OPS);
    far_usage usage = {0};
    assert_ok(far_index_usage(r.session, r.index, &usage));
    assert_int_equal(usage.keys, OPS / 2);
    assert_int_equal(usage.value_bytes, OPS / 2 * 16);
    free(values);
    free(keys);
    free(ops);
    rig_down(&r);
}


/* far_submit accepts operations from the beginning of the array until the session is full, and leaves the rest
 * unchanged. */
BEHAVIOUR(submit_to_a_full_session_accepts_fewer_operations) {
    enum { OPS = 1000 };
    rig r;
    rig_up(&r, c);
    far_op *ops = calloc(OPS, sizeof(*ops)), *pointers[OPS], *done[OPS];
    uint8_t(*keys)[8] = malloc(OPS * 8);
    for (size_t i = 0; i < OPS; i++) {
        number_key(i, keys[i]);
        ops[i] = make_op(&r, FAR_OP_PUT, keys[i], 8, keys[i], 8);
        pointers[i] = &ops[i];
    }
    int taken = far_submit(r.session, pointers, OPS);
    assert_in_range(taken, 100, OPS - 1);
    assert_code(taken, far_reap(r.session, done, OPS, OPS)); /* far_reap returns as many operations as are in flight. */
    for (int i = 0; i < OPS; i++)
        /* The first `taken` operations were accepted; the other operations are unchanged. */
        assert_code(i < taken ? FAR_OK : 12345, ops[i].result);
    assert_code(0, far_reap(r.session, done, OPS, 1));
    far_usage usage = {0};
    assert_ok(far_index_usage(r.session, r.index, &usage));
    assert_int_equal(usage.keys, taken);
    free(keys);
    free(ops);
    rig_down(&r);
}


/* far_reap returns at most `max` operations and waits for at most `wait_for` operations. */
BEHAVIOUR(reap_waits_for_as_many_as_asked) {
    enum { OPS = 40 };
    rig r;
    rig_up(&r, c);
    far_op ops[OPS], *pointers[OPS], *done[OPS];
    uint8_t keys[OPS][8];
    for (size_t i = 0; i < OPS; i++) {
        number_key(i, keys[i]);
        ops[i] = make_op(&r, FAR_OP_PUT, keys[i], 8, "v", 1);
        pointers[i] = &ops[i];
    }
    assert_code(OPS, far_submit(r.session, pointers, OPS));
    int got = far_reap(r.session, done, 3, 3); /* far_reap returns at most `max` operations. */
    assert_int_equal(got, 3);
    got += far_reap(r.session, done, 5, 100); /* The second call has a wait_for that is larger than `max`. */
    assert_int_equal(got, 8);
    int looked = far_reap(r.session, done, OPS, 0); /* With wait_for 0, far_reap does not wait. */
    assert_in_range(looked, 0, OPS - got);
    got += looked;
    int wanted = OPS - got < 10 ? OPS - got : 10, more = far_reap(r.session, done, OPS, 10);
    assert_in_range(more, wanted, OPS - got);
    got += more;
    more = far_reap(r.session, done, OPS, OPS); /* wait_for is larger than the number of operations in flight. */
    assert_int_equal(more, OPS - got);
    assert_code(0, far_reap(r.session, done, OPS, OPS));
    for (size_t i = 0; i < OPS; i++)
        assert_ok(ops[i].result);
    rig_down(&r);
}


/* Repeated calls of far_reap with wait_for 0 finish all operations. */
BEHAVIOUR(polling_without_waiting_finishes_everything) {
    rig r;
    rig_up(&r, c);
    far_op op = make_op(&r, FAR_OP_PUT, "k", 1, "v", 1), *pointer = &op, *done = NULL;
    assert_code(1, far_submit(r.session, &pointer, 1));
    int got = 0;
    for (unsigned looks = 0; got == 0; looks++) {
        got = far_reap(r.session, &done, 1, 0);
        assert_in_range(got, 0, 1);
        assert_true(looks < 100000000);
    }
    assert_ptr_equal(done, &op);
    assert_text(&r, "k", "v");
    rig_down(&r);
}


/* Synchronous calls return right results while operations of the same session are in flight. The submitted operations
 * finish, too. */
BEHAVIOUR(synchronous_calls_mix_with_those_in_flight) {
    enum { OPS = 60 };
    rig r;
    rig_up(&r, c);
    far_op ops[OPS], *pointers[OPS], *done[OPS];
    uint8_t keys[OPS][8], other[8];
    for (size_t i = 0; i < OPS; i++) {
        number_key(i, keys[i]);
        ops[i] = make_op(&r, FAR_OP_PUT, keys[i], 8, keys[i], 8);
        pointers[i] = &ops[i];
    }
    for (size_t i = 0; i < OPS; i += 20) {
        assert_code(20, far_submit(r.session, pointers + i, 20));
        for (uint64_t j = 0; j < 20; j++) {
            number_key(1000 + i + j, other);
            assert_ok(put_proof(r.session, r.index, other, 8, 40, j));
            assert_proof(r.session, r.index, other, 8, 40, j);
        }
    }
    far_index *second = NULL;
    rig_create(&r, "second", &second);
    far_index_close(second);
    assert_ok(far_index_drop(r.session, "second"));
    assert_code(OPS, far_reap(r.session, done, OPS, OPS));
    for (size_t i = 0; i < OPS; i++) {
        assert_ok(ops[i].result);
        assert_value(r.session, r.index, keys[i], 8, keys[i], 8);
    }
    rig_down(&r);
}


/* Inserts and deletes of one key are submitted together. They must take effect in some order. In any order, inserts and
 * deletes alternate in succeeding, so the numbers of successes determine whether the key is present at the end. */
BEHAVIOUR(concurrent_operations_on_one_key_take_turns) {
    enum { OPS = 120 };
    rig r;
    rig_up(&r, c);
    for (int round = 0; round < 5; round++) {
        far_op ops[OPS];
        char values[OPS][32];
        int present = round > 0 ? get_code(&r, "k") == FAR_OK : 0;
        for (int i = 0; i < OPS; i++) {
            far_op_kind kind = i % 3 == 0 ? FAR_OP_INSERT : i % 3 == 1 ? FAR_OP_DELETE : FAR_OP_GET;
            snprintf(values[i], sizeof(values[i]), "value %d", i);
            ops[i] = make_op(&r, kind, "k", 1, values[i], kind == FAR_OP_INSERT ? strlen(values[i]) : 0);
            ops[i].capacity = kind == FAR_OP_GET ? sizeof(values[i]) : 0;
        }
        submit_and_reap_all(&r, ops, OPS);
        for (int i = 0; i < OPS; i++) {
            if (ops[i].kind == FAR_OP_INSERT)
                assert_true(ops[i].result == FAR_OK || ops[i].result == FAR_ERR_EXISTS);
            else
                assert_true(ops[i].result == FAR_OK || ops[i].result == FAR_ERR_NOT_FOUND);
            if (ops[i].kind == FAR_OP_GET && ops[i].result == FAR_OK)
                assert_memory_equal(values[i], "value ", 6);
            present += ops[i].result == FAR_OK ? (ops[i].kind == FAR_OP_INSERT) - (ops[i].kind == FAR_OP_DELETE) : 0;
        }
        assert_in_range(present, 0, 1);
        assert_code(present ? FAR_OK : FAR_ERR_NOT_FOUND, get_code(&r, "k"));
    }
    rig_down(&r);
}


/* Concurrent puts, updates and gets of one key all succeed. Every get returns one complete value, and the final value
 * is one of the written values. */
BEHAVIOUR(concurrent_puts_of_one_key_leave_one_of_their_values) {
    enum { OPS = 100 };
    rig r;
    rig_up(&r, c);
    far_op ops[OPS];
    uint8_t values[OPS][64], buffer[64];
    size_t length = 0;
    uint64_t version = UINT64_MAX;
    assert_ok(put_proof(r.session, r.index, "k", 1, 64, 1000));
    for (uint64_t i = 0; i < OPS; i++) {
        far_value_fill(values[i], 64, "k", 1, i);
        ops[i] = make_op(&r, i % 2 ? FAR_OP_PUT : FAR_OP_UPDATE, "k", 1, values[i], 64);
        if (i % 5 == 4) {
            ops[i] = make_op(&r, FAR_OP_GET, "k", 1, values[i], 0);
            ops[i].capacity = 64;
        }
    }
    submit_and_reap_all(&r, ops, OPS);
    for (int i = 0; i < OPS; i++) {
        assert_ok(ops[i].result);
        /* A get returns a complete value that one of the puts has written. */
        assert_true(far_value_check(values[i], 64, "k", 1, NULL));
    }
    assert_ok(far_get(r.session, r.index, "k", 1, buffer, sizeof(buffer), &length));
    assert_true(far_value_check(buffer, length, "k", 1, &version));
    assert_true(version < OPS && version % 5 != 4);
    rig_down(&r);
}


/* far_session_close finishes all operations in flight, and their effects are visible to other sessions. */
BEHAVIOUR(closing_a_session_finishes_operations_in_flight) {
    enum { OPS = 100 };
    rig r;
    rig_up(&r, c);
    far_session *second = NULL;
    far_op ops[OPS], *pointers[OPS];
    uint8_t keys[OPS][8];
    assert_ok(far_session_open(r.pool, &second));
    for (uint64_t i = 0; i < OPS; i++) {
        number_key(i, keys[i]);
        ops[i] = make_op(&r, FAR_OP_PUT, keys[i], 8, keys[i], 8);
        pointers[i] = &ops[i];
    }
    assert_code(OPS, far_submit(second, pointers, OPS));
    far_session_close(second);
    for (uint64_t i = 0; i < OPS; i++) {
        assert_ok(ops[i].result);
        assert_value(r.session, r.index, keys[i], 8, keys[i], 8);
    }
    rig_down(&r);
}


/* Concurrent operations on the same key in several indexes do not affect each other. */
BEHAVIOUR(operations_on_several_indexes_run_concurrently) {
    enum { OPS = 90 };
    rig r;
    rig_up(&r, c);
    far_index *indexes[3] = {r.index, NULL, NULL};
    rig_create(&r, "second", &indexes[1]);
    rig_create(&r, "third", &indexes[2]);
    far_op ops[OPS];
    for (uint64_t i = 0; i < OPS; i++) {
        ops[i] = make_op(&r, FAR_OP_PUT, "the same key", 12, i % 3 == 0 ? "one" : i % 3 == 1 ? "two" : "six", 3);
        ops[i].index = indexes[i % 3];
    }
    submit_and_reap_all(&r, ops, OPS);
    assert_value(r.session, indexes[0], "the same key", 12, "one", 3);
    assert_value(r.session, indexes[1], "the same key", 12, "two", 3);
    assert_value(r.session, indexes[2], "the same key", 12, "six", 3);
    far_index_close(indexes[1]);
    far_index_close(indexes[2]);
    rig_down(&r);
}
