/* Histories: recording, JSON lines, merging, and recording by several threads. */
#include "test.h"
#include "verify/history.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>


/* Records one operation of each kind and each way to end. */
static far_history *record_some(uint64_t seed) {
    far_history *h = far_history_new(seed);
    size_t put = far_history_begin(h, 1, FAR_OP_PUT, "k\0\xff", 3, "value", 5, 10);
    size_t get = far_history_begin(h, 2, FAR_OP_GET, "k", 1, NULL, 0, 11);
    far_history_end(h, put, FAR_OK, NULL, 0, 20);
    far_history_end(h, get, FAR_OK, "\x01", 1, 21);
    size_t miss = far_history_begin(h, 2, FAR_OP_GET, "m", 1, NULL, 0, 22);
    far_history_end(h, miss, FAR_ERR_NOT_FOUND, NULL, 0, 23);
    size_t insert = far_history_begin(h, 3, FAR_OP_INSERT, "k", 1, "", 0, 24);
    far_history_end(h, insert, FAR_ERR_EXISTS, NULL, 0, 30);
    size_t update = far_history_begin(h, 3, FAR_OP_UPDATE, "k", 1, "u", 1, 31);
    far_history_cut(h, update);
    far_history_begin(h, 4, FAR_OP_DELETE, "k", 1, NULL, 0, 32);
    size_t scan = far_history_begin_scan(h, 5, "a", 1, "z", 1, 0, false, 40);
    for (int i = 0; i < 20; i++) {
        char key[2] = {'k', (char)i}, value[1] = {(char)(200 + i)};
        far_history_pair_given(h, scan, key, 2, value, (size_t)(i != 3));
    }
    far_history_stop(h, scan);
    far_history_end(h, scan, 20, NULL, 0, 50);
    size_t all = far_history_begin_scan(h, 5, NULL, 0, NULL, 0, 7, true, 51);
    far_history_end(h, all, FAR_ERR_UNSUPPORTED, NULL, 0, 60);
    return h;
}


/* A history returns each operation with the arguments, results and times that were recorded. */
TEST(recorded_operations_are_kept_as_given) {
    far_history *h = record_some(17);
    assert_int_equal(far_history_count(h), 8);
    const far_history_op *put = far_history_at(h, 0), *get = far_history_at(h, 1), *scan = far_history_at(h, 6);
    assert_int_equal(put->seed, 17);
    assert_int_equal(put->client, 1);
    assert_int_equal(put->key.length, 3);
    assert_memory_equal(put->key.data, "k\0\xff", 3);
    assert_memory_equal(put->value.data, "value", 5);
    assert_int_equal(put->end, 20);
    assert_true(get->has_value);
    assert_false(far_history_at(h, 2)->has_value);
    assert_true(far_history_at(h, 3)->has_value);
    assert_int_equal(far_history_at(h, 3)->value.length, 0);
    assert_int_equal(far_history_at(h, 4)->end, FAR_HISTORY_NEVER);
    assert_int_equal(far_history_at(h, 5)->end, FAR_HISTORY_NEVER);
    assert_int_equal(scan->pair_count, 20);
    assert_int_equal(scan->limit, 20);
    assert_int_equal(scan->pairs[3].value.length, 0);
    assert_int_equal(*(const uint8_t *)scan->pairs[19].value.data, 219);
    far_history_free(h);
}


static char *write_text(const far_history *h) {
    char *text = NULL;
    size_t size;
    FILE *file = open_memstream(&text, &size);
    assert_int_equal(far_history_write(h, file), FAR_OK);
    fclose(file);
    return text;
}


static int read_text(far_history *h, const char *text, size_t *bad_line) {
    FILE *file = fmemopen((void *)text, strlen(text), "r");
    int err = far_history_read(h, file, bad_line);
    fclose(file);
    return err;
}


/* The JSON lines have the form that the manual describes. */
TEST(lines_have_the_documented_form) {
    far_history *h = record_some(3);
    char *text = write_text(h);
    static const char *const lines[] = {
        "{\"seed\":3,\"client\":1,\"op\":\"put\",\"key\":\"6b00ff\",\"value\":\"76616c7565\",\"result\":0,\"start\":10,"
        "\"end\":20}\n",
        "{\"seed\":3,\"client\":2,\"op\":\"get\",\"key\":\"6d\",\"value\":null,\"result\":-1,\"start\":22,\"end\":23}"
        "\n",
        "{\"seed\":3,\"client\":3,\"op\":\"insert\",\"key\":\"6b\",\"value\":\"\",\"result\":-2,\"start\":24,\"end\":"
        "30}\n",
        "{\"seed\":3,\"client\":3,\"op\":\"update\",\"key\":\"6b\",\"value\":\"75\",\"result\":null,\"start\":31,"
        "\"end\":null}\n",
        ("\"op\":\"scan\",\"key\":\"61\",\"value\":null,\"result\":20,\"start\":40,\"end\":50,\"to\":\"7a\",\"limit\":"
         "20,"
         "\"reverse\":false,"
         "\"pairs\":[[\"6b00\",\"c8\"],[\"6b01\",\"c9\"],"),
        "\"op\":\"scan\",\"key\":\"\",\"value\":null,\"result\":-8,\"start\":51,\"end\":60,\"to\":null,\"limit\":7,"
        "\"reverse\":true,\"pairs\":[]}\n",
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        if (!strstr(text, lines[i]))
            fail_msg("not in the text: %s\n%s", lines[i], text);
    }
    free(text);
    far_history_free(h);
}


/* Writing a history and reading it back gives equal operations. */
TEST(a_history_written_and_read_again_is_equal) {
    far_history *h = record_some(UINT64_MAX), *again = far_history_new(0);
    char *text = write_text(h);
    assert_int_equal(read_text(again, text, NULL), FAR_OK);
    assert_int_equal(far_history_count(again), far_history_count(h));
    for (size_t i = 0; i < far_history_count(h); i++) {
        assert_true(far_history_op_equal(far_history_at(h, i), far_history_at(again, i)));
        for (size_t j = 0; j < i; j++)
            assert_false(far_history_op_equal(far_history_at(h, i), far_history_at(again, j)));
    }
    char *text_again = write_text(again);
    assert_string_equal(text, text_again);
    free(text);
    free(text_again);
    far_history_free(h);
    far_history_free(again);
}


/* A scan without the field `reverse`, as older versions wrote it, is read as a scan in ascending order. */
TEST(scans_of_older_histories_are_read) {
    far_history *h = far_history_new(0);
    assert_int_equal(read_text(h,
                               "{\"seed\":1,\"client\":5,\"op\":\"scan\",\"key\":\"61\",\"value\":null,\"result\":1,"
                               "\"start\":40,\"end\":50,\"to\":\"7a\",\"limit\":20,\"pairs\":[[\"6b\",\"c8\"]]}\n",
                               NULL),
                     FAR_OK);
    assert_int_equal(far_history_count(h), 1);
    assert_int_equal(far_history_at(h, 0)->pair_count, 1);
    assert_false(far_history_at(h, 0)->reverse);
    far_history_free(h);
}


/* Reading stops at a malformed line and returns its number. */
TEST(bad_lines_are_refused_with_their_number) {
    static const char good[] =
        "{ \"client\" : 1, "
        "\"seed\":1,\"op\":\"get\",\"key\":\"6B\",\"value\":null,\"result\":-1,\"start\":-2,\"end\":3 }\n";
    static const char *const bad[] = {
        "\n",
        "{}\n",
        "{\"seed\":1,\"client\":1,\"op\":\"get\",\"key\":\"6b\",\"value\":null,\"result\":-1,\"start\":2}\n",
        "{\"seed\":1,\"client\":1,\"op\":\"got\",\"key\":\"6b\",\"value\":null,\"result\":-1,\"start\":2,\"end\":3}\n",
        "{\"seed\":1,\"client\":1,\"op\":\"get\",\"key\":\"6\",\"value\":null,\"result\":-1,\"start\":2,\"end\":3}\n",
        "{\"seed\":1,\"client\":1,\"op\":\"get\",\"key\":\"6g\",\"value\":null,\"result\":-1,\"start\":2,\"end\":3}\n",
        "{\"seed\":1,\"client\":1,\"op\":\"get\",\"key\":\"6b\",\"value\":null,\"result\":x,\"start\":2,\"end\":3}\n",
        "{\"seed\":1,\"client\":1,\"op\":\"get\",\"key\":\"6b\",\"value\":null,\"result\":-1,\"start\":2,\"end\":3} "
        "x\n",
        "{\"seed\":1,\"client\":1,\"op\":\"scan\",\"key\":\"6b\",\"value\":null,\"result\":-1,\"start\":2,\"end\":3}\n",
        ("{\"seed\":1,\"client\":1,\"op\":\"scan\",\"key\":\"6b\",\"value\":null,\"result\":-1,\"start\":2,\"end\":3,"
         "\"to\":null,"
         "\"limit\":0,\"pairs\":[[\"61\"]]}\n"),
        ("{\"seed\":1,\"client\":1,\"op\":\"scan\",\"key\":\"6b\",\"value\":null,\"result\":0,\"start\":2,\"end\":3,"
         "\"to\":null,\"limit\":0,\"reverse\":1,\"pairs\":[]}\n"),
        "{\"seed\":1,\"client\":1,\"op\":\"get\",\"key\":\"6b",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        far_history *h = far_history_new(0);
        char text[1024];
        snprintf(text, sizeof text, "%s%s%s", good, bad[i], good);
        size_t line = 0;
        if (read_text(h, text, &line) != FAR_ERR_INVALID)
            fail_msg("taken: %s", bad[i]);
        assert_int_equal(line, 2);
        assert_int_equal(far_history_count(h), 1);
        assert_int_equal(far_history_at(h, 0)->start, -2);
        far_history_free(h);
    }
}


/* Merging appends all operations, each with its own seed. */
TEST(merged_histories_keep_their_operations_and_seeds) {
    far_history *a = record_some(1), *b = record_some(2), *both = far_history_new(9);
    far_history_merge(both, a);
    far_history_merge(both, b);
    assert_int_equal(far_history_count(both), 16);
    for (size_t i = 0; i < 8; i++) {
        assert_true(far_history_op_equal(far_history_at(both, i), far_history_at(a, i)));
        assert_true(far_history_op_equal(far_history_at(both, 8 + i), far_history_at(b, i)));
    }
    far_history_free(a); /* the copy does not depend on the original */
    far_history_free(b);
    assert_memory_equal(far_history_at(both, 0)->value.data, "value", 5);
    assert_int_equal(*(const uint8_t *)far_history_at(both, 14)->pairs[19].value.data, 219);
    far_history_free(both);
}


#define THREADS 4
#define EACH    20000

typedef struct recorder {
    far_history *history;
    uint32_t client;
} recorder;


static void *record_many(void *arg) {
    recorder *r = arg;
    for (uint32_t i = 0; i < EACH; i++) {
        size_t index =
            far_history_begin(r->history, r->client, FAR_OP_PUT, &r->client, sizeof r->client, &i, sizeof i, i);
        far_history_end(r->history, index, FAR_OK, NULL, 0, i + 1);
    }
    return NULL;
}


/* Several threads record into one history without losing operations. */
TEST(threads_record_at_the_same_time) {
    far_history *h = far_history_new(1);
    pthread_t threads[THREADS];
    recorder recorders[THREADS];
    for (uint32_t t = 0; t < THREADS; t++) {
        recorders[t] = (recorder){h, t};
        assert_int_equal(pthread_create(&threads[t], NULL, record_many, &recorders[t]), 0);
    }
    for (uint32_t t = 0; t < THREADS; t++)
        pthread_join(threads[t], NULL);
    assert_int_equal(far_history_count(h), THREADS * EACH);
    uint32_t next[THREADS] = {0};
    for (size_t i = 0; i < THREADS * EACH; i++) {
        const far_history_op *op = far_history_at(h, i);
        uint32_t value;
        memcpy(&value, op->value.data, sizeof value);
        assert_int_equal(value, next[op->client]++);
        assert_int_equal(op->end, value + 1);
        assert_memory_equal(op->key.data, &op->client, sizeof op->client);
    }
    far_history_free(h);
}
