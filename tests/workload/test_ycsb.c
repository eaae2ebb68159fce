/* Tests of the YCSB workloads: the mix of operations, the distributions of keys, and that a read uses a record only
 * after the insert of this record has completed. */
#include <stdint.h>

#include "farindex.h"
#include "test.h"
#include "workload/ycsb.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define RECORDS 10000u
#define OPS     1000000u


static far_records *new_records(uint64_t present, uint64_t limit) {
    far_records *records = malloc(sizeof *records);
    assert_non_null(records);
    far_records_init(records, present, limit);
    return records;
}


static far_ycsb_config config_of(far_ycsb_workload workload) {
    return (far_ycsb_config){.workload = workload,
                             .records = RECORDS,
                             .ops = OPS,
                             .distribution = far_ycsb_distribution(workload),
                             .theta = FAR_ZIPF_THETA,
                             .seed = 1};
}


static void start(far_ycsb *ycsb, far_ycsb_stream *stream, const far_ycsb_config *config, far_records *records) {
    char error[100] = "";
    if (far_ycsb_init(ycsb, config, records, error, sizeof error) != FAR_OK)
        fail_msg("%s", error);
    far_ycsb_stream_init(stream, ycsb, 0);
}


/* The shares of operations agree with the workload. */
TEST(operations_come_in_the_mix_of_the_workload) {
    static const struct {
        far_ycsb_workload workload;
        uint32_t percent[5]; /* get, update, insert, scan, read-modify-write */
    } mixes[] = {{FAR_YCSB_A, {50, 50, 0, 0, 0}},     {FAR_YCSB_B, {95, 5, 0, 0, 0}}, {FAR_YCSB_C, {100, 0, 0, 0, 0}},
                 {FAR_YCSB_D, {95, 0, 5, 0, 0}},      {FAR_YCSB_E, {0, 0, 5, 95, 0}}, {FAR_YCSB_F, {50, 0, 0, 0, 50}},
                 {FAR_YCSB_WRITES, {0, 100, 0, 0, 0}}};
    for (int m = 0; m < 7; m++) {
        far_records *records = new_records(RECORDS, UINT64_MAX);
        far_ycsb_config config = config_of(mixes[m].workload);
        far_ycsb ycsb;
        far_ycsb_stream stream;
        far_ycsb_op op;
        uint32_t counts[5] = {0};
        uint64_t next_insert = RECORDS;
        start(&ycsb, &stream, &config, records);
        for (uint32_t i = 0; i < OPS; i++) {
            assert_int_equal(far_ycsb_next(&stream, &op), FAR_OK);
            counts[op.kind]++;
            assert_true(op.kind == FAR_YCSB_SCAN ? op.scan_len >= 1 && op.scan_len <= 100 : op.scan_len == 0);
            if (op.kind == FAR_YCSB_INSERT) {
                assert_true(op.record == next_insert++);
                far_records_acknowledge(records, op.record);
            } else {
                assert_true(op.record < next_insert);
            }
        }
        for (int k = 0; k < 5; k++) { /* the deviation is at most 500 */
            uint32_t want = mixes[m].percent[k] * (OPS / 100);
            assert_in_range(counts[k], want < 2500 ? 0 : want - 2500, want == 0 ? 0 : want + 2500);
        }
        free(records);
    }
}


/* A load draws each record once and then returns FAR_ERR_NOT_FOUND. */
TEST(a_load_inserts_every_record_once_and_ends) {
    far_records *records = new_records(0, UINT64_MAX);
    far_ycsb_config config = config_of(FAR_YCSB_LOAD);
    far_ycsb ycsb;
    far_ycsb_stream stream;
    far_ycsb_op op;
    start(&ycsb, &stream, &config, records);
    for (uint32_t i = 0; i < RECORDS; i++) {
        assert_int_equal(far_ycsb_next(&stream, &op), FAR_OK);
        assert_int_equal(op.kind, FAR_YCSB_INSERT);
        assert_int_equal(op.record, i);
        far_records_acknowledge(records, op.record);
    }
    assert_int_equal(far_ycsb_next(&stream, &op), FAR_ERR_NOT_FOUND);
    assert_int_equal(far_records_count(records), RECORDS);
    free(records);
}


/* The lengths of scans are uniform. */
TEST(scan_lengths_are_uniform_from_1_to_100) {
    far_records *records = new_records(RECORDS, UINT64_MAX);
    far_ycsb_config config = config_of(FAR_YCSB_E);
    far_ycsb ycsb;
    far_ycsb_stream stream;
    far_ycsb_op op;
    uint32_t counts[101] = {0};
    start(&ycsb, &stream, &config, records);
    for (uint32_t i = 0; i < OPS; i++) {
        assert_int_equal(far_ycsb_next(&stream, &op), FAR_OK);
        if (op.kind == FAR_YCSB_SCAN)
            counts[op.scan_len]++;
        else
            far_records_acknowledge(records, op.record);
    }
    for (int i = 1; i <= 100; i++)
        assert_in_range(counts[i], 9000, 10000);
    free(records);
}


/* Workload D reads the newest record with the frequency of the theory. */
TEST(d_reads_the_newest_records_most) {
    far_records *records = new_records(RECORDS, UINT64_MAX);
    far_ycsb_config config = config_of(FAR_YCSB_D);
    far_ycsb ycsb;
    far_ycsb_stream stream;
    far_ycsb_op op;
    uint32_t newest = 0, gets = 0;
    start(&ycsb, &stream, &config, records);
    for (uint32_t i = 0; i < OPS / 10; i++) {
        uint64_t count = far_records_count(records);
        assert_int_equal(far_ycsb_next(&stream, &op), FAR_OK);
        if (op.kind == FAR_YCSB_INSERT) {
            far_records_acknowledge(records, op.record);
            continue;
        }
        gets++;
        newest += op.record == count - 1;
    }
    assert_in_range(newest, gets * 9 / 100, gets * 11 / 100); /* 1 / zeta(10000..15000) = 0.099 .. 0.095 */
    free(records);
}


/* While one insert does not complete, later records are not read, although their inserts are complete. */
TEST(d_never_reads_a_record_with_an_unfinished_insert) {
    far_records *records = new_records(100, UINT64_MAX);
    far_ycsb_config config = config_of(FAR_YCSB_D);
    far_ycsb ycsb;
    far_ycsb_stream stream;
    far_ycsb_op op;
    uint64_t held = UINT64_MAX, newest_read = 0;
    start(&ycsb, &stream, &config, records);
    for (uint32_t i = 0; i < 100000; i++) {
        assert_int_equal(far_ycsb_next(&stream, &op), FAR_OK);
        if (op.kind != FAR_YCSB_INSERT) {
            assert_true(op.record < held);
            newest_read = op.record > newest_read ? op.record : newest_read;
        } else if (held == UINT64_MAX) {
            held = op.record; /* this insert does not complete, all later ones do */
        } else {
            far_records_acknowledge(records, op.record);
        }
    }
    assert_int_equal(far_records_count(records), 100);
    assert_int_equal(newest_read, 99);
    far_records_acknowledge(records, held);
    assert_true(far_records_count(records) > 4000);
    free(records);
}


/* The configured distribution replaces that of the workload. */
TEST(the_override_of_the_distribution_is_obeyed) {
    for (int kind = FAR_DISTRIBUTION_UNIFORM; kind <= FAR_DISTRIBUTION_LATEST; kind++) {
        far_records *records = new_records(RECORDS, UINT64_MAX);
        far_ycsb_config config = config_of(FAR_YCSB_C);
        far_ycsb ycsb;
        far_ycsb_stream stream;
        far_ycsb_op op;
        uint32_t newest = 0, hottest = 0;
        config.distribution = (far_distribution_kind)kind;
        start(&ycsb, &stream, &config, records);
        for (uint32_t i = 0; i < 100000; i++) {
            assert_int_equal(far_ycsb_next(&stream, &op), FAR_OK);
            newest += op.record == RECORDS - 1;
            hottest += op.record == far_scramble(0) % RECORDS;
        }
        assert_int_equal(newest > 5000, kind == FAR_DISTRIBUTION_LATEST);
        assert_int_equal(hottest > 5000, kind == FAR_DISTRIBUTION_ZIPFIAN);
        free(records);
    }
}


/* The number of complete records advances over all finished inserts when the oldest unfinished one ends. */
TEST(acknowledgements_out_of_order_move_the_mark_when_the_gap_closes) {
    far_records *records = new_records(10, 15);
    uint64_t record = 0;
    for (uint64_t i = 10; i < 15; i++) {
        assert_int_equal(far_records_claim(records, UINT64_MAX, &record), FAR_OK);
        assert_int_equal(record, i);
    }
    assert_int_equal(far_records_claim(records, UINT64_MAX, &record), FAR_ERR_NOT_FOUND);
    far_records_acknowledge(records, 12);
    far_records_acknowledge(records, 11);
    assert_int_equal(far_records_count(records), 10);
    far_records_acknowledge(records, 10);
    assert_int_equal(far_records_count(records), 13);
    far_records_acknowledge(records, 14);
    assert_int_equal(far_records_count(records), 13);
    far_records_acknowledge(records, 13);
    assert_int_equal(far_records_count(records), 15);
    free(records);
}


/* If too many inserts are unfinished, FAR_ERR_BUSY is returned, and the next call returns the operation. */
TEST(a_full_window_returns_busy_and_consumes_nothing) {
    far_records *records = new_records(1, UINT64_MAX);
    far_ycsb_config config = config_of(FAR_YCSB_D);
    far_ycsb ycsb;
    far_ycsb_stream stream;
    far_ycsb_op op;
    int result;
    start(&ycsb, &stream, &config, records);
    while ((result = far_ycsb_next(&stream, &op)) == FAR_OK)
        if (op.kind == FAR_YCSB_INSERT && op.record > 1)
            far_records_acknowledge(records, op.record);
    assert_int_equal(result, FAR_ERR_BUSY);
    far_random before = stream.random;
    assert_int_equal(far_ycsb_next(&stream, &op), FAR_ERR_BUSY);
    assert_memory_equal(&before, &stream.random, sizeof before);
    far_records_acknowledge(records, 1);
    assert_int_equal(far_records_count(records), FAR_RECORDS_WINDOW + 1);
    assert_int_equal(far_ycsb_next(&stream, &op), FAR_OK);
    assert_int_equal(op.kind, FAR_YCSB_INSERT);
    assert_int_equal(op.record, FAR_RECORDS_WINDOW + 1);
    free(records);
}


#define THREADS    4
#define THREAD_OPS 100000

typedef struct worker {
    far_ycsb *ycsb;
    _Atomic uint8_t *done; /* indexed by record: its insert is complete */
    unsigned number;
    int errors;
} worker;


/* Keeps up to eight inserts unfinished and completes them in random order. */
static void *work(void *argument) {
    worker *w = argument;
    far_ycsb_stream stream;
    far_ycsb_op op;
    far_random random;
    uint64_t open[8];
    unsigned opened = 0;
    far_random_seed(&random, w->number);
    far_ycsb_stream_init(&stream, w->ycsb, w->number);
    for (int i = 0; i < THREAD_OPS || opened > 0; i++) {
        if (opened == 8 || i >= THREAD_OPS) {
            unsigned which = (unsigned)far_random_below(&random, opened);
            w->errors += atomic_exchange_explicit(&w->done[open[which]], 1, memory_order_relaxed);
            far_records_acknowledge(w->ycsb->records, open[which]);
            open[which] = open[--opened];
        } else if (far_ycsb_next(&stream, &op) != FAR_OK) {
            w->errors++;
        } else if (op.kind == FAR_YCSB_INSERT) {
            open[opened++] = op.record;
        } else {
            w->errors += !atomic_load_explicit(&w->done[op.record], memory_order_relaxed);
        }
    }
    return NULL;
}


/* Several threads never get the same record for an insert, and never read one with an unfinished insert. */
TEST(threads_insert_each_record_once_and_read_only_complete_ones) {
    far_records *records = new_records(100, UINT64_MAX);
    far_ycsb_config config = config_of(FAR_YCSB_D);
    far_ycsb ycsb;
    pthread_t threads[THREADS];
    worker workers[THREADS];
    _Atomic uint8_t *done = calloc(100 + THREADS * THREAD_OPS, 1);
    assert_non_null(done);
    for (int i = 0; i < 100; i++)
        atomic_store_explicit(&done[i], 1, memory_order_relaxed);
    assert_int_equal(far_ycsb_init(&ycsb, &config, records, NULL, 0), FAR_OK);
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (worker){&ycsb, done, i, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(workers[i].errors, 0);
    }
    uint64_t count = far_records_count(records);
    assert_true(count == atomic_load_explicit(&records->claimed, memory_order_relaxed));
    assert_in_range(count, 18000, 22000);
    free(done);
    free(records);
}


/* Streams of different threads differ. */
TEST(threads_have_different_streams) {
    far_records *records = new_records(RECORDS, UINT64_MAX);
    far_ycsb_config config = config_of(FAR_YCSB_C);
    far_ycsb ycsb;
    far_ycsb_stream one, two;
    far_ycsb_op first, second;
    int same = 0;
    config.distribution = FAR_DISTRIBUTION_UNIFORM;
    start(&ycsb, &one, &config, records);
    far_ycsb_stream_init(&two, &ycsb, 1);
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(far_ycsb_next(&one, &first), FAR_OK);
        assert_int_equal(far_ycsb_next(&two, &second), FAR_OK);
        same += first.record == second.record;
    }
    assert_in_range(same, 0, 5);
    free(records);
}


/* Workloads are found by name, and configurations that are not valid are refused with a message. */
TEST(names_and_bad_configurations) {
    far_records *none = new_records(0, UINT64_MAX), *some = new_records(1, UINT64_MAX);
    far_ycsb_config config = config_of(FAR_YCSB_A);
    far_ycsb_workload workload;
    far_ycsb ycsb;
    char error[100] = "";
    for (int i = FAR_YCSB_LOAD; i < FAR_YCSB_WORKLOADS; i++) {
        assert_int_equal(far_ycsb_parse(far_ycsb_name((far_ycsb_workload)i), &workload), FAR_OK);
        assert_int_equal(workload, i);
    }
    assert_int_equal(far_ycsb_parse("E", &workload), FAR_OK);
    assert_int_equal(workload, FAR_YCSB_E);
    assert_int_equal(far_ycsb_parse("g", &workload), FAR_ERR_INVALID);
    assert_int_equal(far_ycsb_parse("", &workload), FAR_ERR_INVALID);
    assert_int_equal(far_ycsb_parse(NULL, &workload), FAR_ERR_INVALID);
    assert_int_equal(far_ycsb_init(&ycsb, &config, none, error, sizeof error), FAR_ERR_INVALID);
    assert_string_equal(error, "workload a needs at least one record");
    config.theta = 1.2;
    assert_int_equal(far_ycsb_init(&ycsb, &config, some, error, sizeof error), FAR_ERR_INVALID);
    assert_string_equal(error, "theta must be between 0 and 0.999");
    free(none);
    free(some);
}


/* A hash of the first thousand operations equals a constant. */
TEST(first_thousand_operations_are_the_same_on_every_machine) {
    static const uint64_t golden[] = {0x826dd4d6416d5275ull, 0x9b870da6ee051c6dull, 0x23acf4e29f9c4c3bull,
                                      0x989b449bad1abc2ull,  0x21dd5ea8597d4fd5ull, 0x485167d6960755eaull,
                                      0xb87b7a005142b4faull, 0x2bacdf4c9c0693acull};
    for (int w = FAR_YCSB_LOAD; w <= FAR_YCSB_WRITES; w++) {
        far_records *records = new_records(w == FAR_YCSB_LOAD ? 0 : RECORDS, UINT64_MAX);
        far_ycsb_config config = config_of((far_ycsb_workload)w);
        far_ycsb ycsb;
        far_ycsb_stream stream;
        far_ycsb_op op;
        uint64_t checksum = 0;
        start(&ycsb, &stream, &config, records);
        for (int i = 0; i < 1000; i++) {
            assert_int_equal(far_ycsb_next(&stream, &op), FAR_OK);
            if (op.kind == FAR_YCSB_INSERT)
                far_records_acknowledge(records, op.record);
            uint64_t words[3] = {op.kind, op.record, op.scan_len};
            checksum = XXH64(words, sizeof words, checksum);
        }
        if (checksum != golden[w])
            fail_msg("%s: checksum 0x%llx", far_ycsb_name((far_ycsb_workload)w), (unsigned long long)checksum);
        free(records);
    }
}


/* The text of a mix is parsed, and printed in the same form. */
TEST(a_mix_is_read_and_written) {
    far_mix mix;
    char text[FAR_MIX_TEXT], error[160];
    assert_int_equal(far_mix_parse("delete=1,get=90,update=5,insert=3,scan=1", &mix, error, sizeof error), FAR_OK);
    assert_string_equal(far_mix_text(&mix, text), "get=90,update=5,insert=3,scan=1,delete=1");
    assert_int_equal(far_mix_parse("rmw=100", &mix, error, sizeof error), FAR_OK);
    assert_string_equal(far_mix_text(&mix, text), "rmw=100");
    static const char *const wrong[] = {"get=99", "get=101", "get=60,update=60", "", "get", "put=100", "get=50,get=50"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(far_mix_parse(wrong[i], &mix, error, sizeof error), FAR_ERR_INVALID);
    assert_string_equal(far_mix_text(&mix, text), "rmw=100"); /* unchanged */
}


/* Deletes take each of the oldest records once, until half of the records are left; gets use the others. */
TEST(a_mix_deletes_the_oldest_once_and_reads_what_is_left) {
    far_records *records = new_records(1000, UINT64_MAX);
    far_ycsb_config config = config_of(FAR_YCSB_MIX);
    far_ycsb ycsb;
    far_ycsb_stream stream;
    far_ycsb_op op;
    uint64_t deleted = 0;
    assert_int_equal(far_mix_parse("get=50,delete=40,scan=10", &config.mix, NULL, 0), FAR_OK);
    config.scan_length[0] = 7;
    config.scan_length[1] = 9;
    start(&ycsb, &stream, &config, records);
    for (int i = 0; i < 10000; i++) {
        assert_int_equal(far_ycsb_next(&stream, &op), FAR_OK);
        if (op.kind == FAR_YCSB_DELETE)
            assert_int_equal(op.record, deleted++);
        else
            assert_in_range(op.record, deleted, 999);
        if (op.kind == FAR_YCSB_SCAN)
            assert_in_range(op.scan_len, 7, 9);
    }
    assert_int_equal(deleted, 500); /* the other half is not deleted */
    assert_int_equal(far_records_gone(records), 500);
    for (uint64_t record = 1000; record < 1007; record++) { /* after inserts, as many records may be deleted */
        uint64_t claimed;
        assert_int_equal(far_records_claim(records, UINT64_MAX, &claimed), FAR_OK);
        far_records_acknowledge(records, claimed);
        assert_int_equal(far_records_claim_oldest(records, &claimed), FAR_OK);
        assert_int_equal(claimed, deleted++);
        assert_int_equal(far_records_claim_oldest(records, &claimed), FAR_ERR_NOT_FOUND);
    }
    free(records);
}
