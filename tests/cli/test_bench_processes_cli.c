/* farindex bench --processes as users meet it. */
#include "cli/json.h"
#include "conform.h"
#include "left_out.h"
#include "made_pools.h"

#include <sys/wait.h>
#include <unistd.h>

static char path[64];


static int run(const char *arguments, char *out, size_t size) {
    char command[1024];
    snprintf(command, sizeof(command), "%s bench %s 2>&1", FARINDEX_COMMAND, arguments);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    size_t used = fread(out, 1, size - 1, pipe);
    out[used] = 0;
    int status = pclose(pipe);
    assert_true(WIFEXITED(status));
    forget_made_pools(out);
    return WEXITSTATUS(status);
}


static int name_pool(void **state) {
    (void)state;
    snprintf(path, sizeof(path), "/dev/shm/farindex-bench-%d", (int)getpid());
    return 0;
}


static int remove_pool(void **state) {
    (void)state;
    unlink(path);
    return 0;
}


static void assert_row_of(const json *row, double processes, const char *index, const char *workload, double ops) {
    assert_non_null(row);
    assert_string_equal(json_field(row, "index")->text, index);
    assert_string_equal(json_field(row, "workload")->text, workload);
    assert_true(json_field(row, "ops")->number == ops);
    assert_true(json_field(row, "processes")->number == processes);
    assert_true(json_field(row, "errors")->number == 0);
    assert_true(json_field(row, "mops")->number > 0);
    assert_true(json_field(row, "p50_us")->number > 0 &&
                json_field(row, "p50_us")->number <= json_field(row, "p99_us")->number);
}


static void assert_row(const json *row, const char *index, const char *workload, double ops) {
    assert_row_of(row, 3, index, workload, ops);
}


static void every_process_does_its_share(void **state) {
    (void)state;
    static const char *const workloads[] = {"load", "c", "writes", "a"};
    char arguments[512], out[1 << 20];
    snprintf(arguments, sizeof(arguments),
             "--pool 'shm:%s?size=64M' --processes 3 --index toy --records 2000 --ops 4000 --value-size 64 --json -",
             path);
    assert_int_equal(run(arguments, out, sizeof(out)), 0);
    json *rows = json_read(out);
    assert_non_null(rows);
    assert_int_equal(rows->count, 4);
    for (size_t i = 0; i < 4; i++)
        assert_row(json_item(rows, i), "toy", workloads[i], i == 0 ? 2000 : 4000);
    json_free(rows);
    char command[512];
    snprintf(command, sizeof(command), "test -z \"$(%s list --pool shm:%s)\" && %s check --pool shm:%s >/dev/null",
             FARINDEX_COMMAND, path, FARINDEX_COMMAND, path);
    assert_int_equal(system(command), 0); /* the index is gone, and the pool is sound */
}


/* With several operations in flight; records that one process inserts are read by all. */
static void every_workload_is_run_by_processes(void **state) {
    (void)state;
    char arguments[512], out[1 << 20];
    static const char *const workloads[] = {"a", "b", "c", "d", "e", "f", "writes"};
    snprintf(
        arguments, sizeof(arguments),
        "--pool 'shm:%s?size=64M' --processes 3 --index dart --records 2000 --ops 3000 --depth 8 --json - --workload "
        "a,b,c,d,e,f,writes",
        path);
    assert_int_equal(run(arguments, out, sizeof(out)), 0);
    json *rows = json_read(out);
    assert_non_null(rows);
    assert_int_equal(rows->count, COUNT_OF(workloads)); /* the load was not asked for */
    for (size_t i = 0; i < COUNT_OF(workloads); i++) {
        assert_row(json_item(rows, i), "dart", workloads[i], 3000);
        assert_true(json_field(json_item(rows, i), "depth")->number == 8);
        assert_true(json_field(json_item(rows, i), "rtt_per_op")->number > 0);
    }
    const json *inserts = json_field(json_field(json_item(rows, 3), "by_op"), "insert");
    assert_true(json_field(inserts, "ops")->number > 0);
    json_free(rows);
}


static void kinds_without_scans_leave_out_the_scans(void **state) {
    (void)state;
    char arguments[512], out[1 << 20];
    snprintf(arguments, sizeof(arguments),
             "--pool 'shm:%s?size=64M' --processes 2 --index shard --records 500 --ops 500 --workload e", path);
    assert_int_equal(run(arguments, out, sizeof(out)), 0);
    assert_non_null(strstr(out, "shard has no scans"));
    assert_null(strstr(out, "shard    e"));
}


/* Each kind has an index of its own; one that is there is not touched. */
static void indexes_are_kept_if_told_and_never_overwritten(void **state) {
    (void)state;
    char arguments[512], out[1 << 20], command[512];
    snprintf(arguments, sizeof(arguments),
             "--pool 'shm:%s?size=64M' --processes 2 --index toy,dart --records 50 --ops 50 --workload c --keep", path);
    assert_int_equal(run(arguments, out, sizeof(out)), 0);
    snprintf(command, sizeof(command),
             "%s list --pool shm:%s | cut -f1,2 | tr '\n' ' ' | grep -q 'bench-dart.dart bench-toy.toy'",
             FARINDEX_COMMAND, path);
    assert_int_equal(system(command), 0);
    for (int processes = 0; processes <= 2; processes += 2) {
        snprintf(arguments, sizeof(arguments),
                 "--pool shm:%s --processes %d --index dart --records 60 --ops 50 --workload c", path, processes);
        assert_int_equal(run(arguments, out, sizeof(out)), 3);
        assert_non_null(strstr(out, "farindex drop bench-dart"));
    }
    snprintf(command, sizeof(command), "%s stat bench-dart --pool shm:%s | grep -q 'keys  *50$'", FARINDEX_COMMAND,
             path);
    assert_int_equal(system(command), 0);
}


static void a_pool_of_its_own_is_removed(void **state) {
    (void)state;
    char out[1 << 20], own[128];
    assert_int_equal(run("--processes 2 --index toy --records 500 --ops 500 --json -", out, sizeof(out)), 0);
    json *rows = json_read(out);
    assert_non_null(rows);
    const char *uri = json_field(json_item(rows, 0), "pool")->text;
    assert_int_equal(sscanf(uri, "shm:%127[^?]", own), 1);
    assert_true(access(own, F_OK) != 0);
    json_free(rows);
}


/* The first half of the rows is the other's, the second half ours. */
static void assert_ratios(const json *rows, const char *field) {
    size_t half = rows->count / 2;
    for (size_t i = 0; i < half; i++) {
        double mine = json_field(json_item(rows, i + half), "mops")->number,
               its = json_field(json_item(rows, i), "mops")->number;
        double ratio = json_field(json_item(rows, i + half), field)->number;
        assert_true(ratio > 0.99 * mine / its && ratio < 1.01 * mine / its);
    }
}


/* Where the build has LMDB, it does the same operations first, and ratios are told; else that is said. */
static void lmdb_is_the_measure_where_it_is_there(void **state) {
    (void)state;
    char arguments[512], out[1 << 20];
    snprintf(arguments, sizeof(arguments),
             "--pool 'shm:%s?size=64M' --processes 3 --against lmdb --index toy --records 2000 --ops 4000 --value-size "
             "64 --json -",
             path);
    int status = run(arguments, out, sizeof(out));
    if (status != 0) {
        assert_non_null(strstr(out, "no LMDB"));
        left_out("bench --against lmdb", "built without liblmdb");
        return;
    }
    json *rows = json_read(out);
    assert_non_null(rows);
    assert_int_equal(rows->count, 8);
    assert_row(json_item(rows, 1), "lmdb", "c", 4000);
    assert_ratios(rows, "lmdb_ratio");
    json_free(rows);
}


/* Likewise with Redis; our side has a memory node of its own then. One by one, and many in flight. */
static void redis_is_the_measure_where_it_is_there(void **state) {
    (void)state;
    for (unsigned depth = 1; depth <= 16; depth *= 16) {
        char arguments[512], out[1 << 20];
        snprintf(arguments, sizeof(arguments),
                 "--processes 3 --against redis --index toy --records 500 --ops 1000 --value-size 64 --workload c,a "
                 "--depth %u --json -",
                 depth);
        int status = run(arguments, out, sizeof(out));
        if (status != 0) {
            assert_true(strstr(out, "no Redis") || strstr(out, "no redis-server"));
            left_out("bench --against redis", "no redis-server here, or built without libhiredis");
            return;
        }
        json *rows = json_read(out);
        assert_non_null(rows);
        assert_int_equal(rows->count, 4);
        assert_row(json_item(rows, 0), "redis", "c", 1000);
        assert_row(json_item(rows, 1), "redis", "a", 1000);
        assert_row(json_item(rows, 2), "toy", "c", 1000);
        assert_memory_equal(json_field(json_item(rows, 2), "pool")->text, "tcp://", 6);
        assert_ratios(rows, "redis_ratio");
        json_free(rows);
    }
}


/* Likewise with the hash tables of one process. */
static void hash_tables_are_the_measure_where_they_are_there(void **state) {
    (void)state;
    static const char *const names[][3] = {{"tkrzw", "tkrzw_ratio", "no tkrzw"},
                                           {"kyotocabinet", "kyotocabinet_ratio", "no Kyoto Cabinet"}};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        char arguments[512], out[1 << 20];
        snprintf(arguments, sizeof(arguments),
                 "--pool 'shm:%s?size=64M' --against %s --index shard --records 500 --ops 1000 --value-size 64 "
                 "--workload load,c,a,d --depth 4 --json -",
                 path, names[i][0]);
        int status = run(arguments, out, sizeof(out));
        if (status != 0) {
            assert_non_null(strstr(out, names[i][2]));
            left_out("bench --against", names[i][2]);
            continue;
        }
        json *rows = json_read(out);
        assert_non_null(rows);
        assert_int_equal(rows->count, 8);
        assert_row_of(json_item(rows, 0), 1, names[i][0], "load", 500);
        assert_row_of(json_item(rows, 3), 1, names[i][0], "d", 1000);
        assert_row_of(json_item(rows, 5), 1, "shard", "c", 1000);
        assert_ratios(rows, names[i][1]);
        json_free(rows);
    }
}


static void what_makes_no_sense_is_refused(void **state) {
    (void)state;
    static const char *const wrong[][2] = {
        {"--processes 2 --pool local:64M", "shm:"},
        {"--processes 2 --pool shm:/dev/shm/x?size=64M --threads 2", "--threads"},
        {"--processes 2 --pool shm:/dev/shm/x?size=64M --compute-nodes 2", "--compute-nodes"},
        {"--against sqlite --pool shm:/dev/shm/x?size=64M", "sqlite"},
        {"--against tkrzw --processes 2", "one process"},
        {"--processes 1000 --pool shm:/dev/shm/x?size=64M", "1000"},
        {"--processes 2 --workload x --pool shm:/dev/shm/x?size=64M", "--workload"},
    };
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        char out[1 << 20];
        assert_int_equal(run(wrong[i][0], out, sizeof(out)), 2);
        assert_non_null(strstr(out, wrong[i][1]));
    }
    char out[1 << 20], arguments[256];
    snprintf(arguments, sizeof(arguments),
             "--processes 2 --index toy --records 200000 --value-size 1000 --pool 'shm:%s?size=8M'", path);
    assert_int_equal(run(arguments, out, sizeof(out)), 3); /* the pool is too small: an error, and no process hangs */
    assert_true(access("/dev/shm/x", F_OK) != 0);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_process_does_its_share, name_pool, remove_pool),
        cmocka_unit_test_setup_teardown(every_workload_is_run_by_processes, name_pool, remove_pool),
        cmocka_unit_test_setup_teardown(kinds_without_scans_leave_out_the_scans, name_pool, remove_pool),
        cmocka_unit_test_setup_teardown(indexes_are_kept_if_told_and_never_overwritten, name_pool, remove_pool),
        cmocka_unit_test_setup_teardown(a_pool_of_its_own_is_removed, name_pool, remove_pool),
        cmocka_unit_test_setup_teardown(lmdb_is_the_measure_where_it_is_there, name_pool, remove_pool),
        cmocka_unit_test_setup_teardown(redis_is_the_measure_where_it_is_there, name_pool, remove_pool),
        cmocka_unit_test_setup_teardown(hash_tables_are_the_measure_where_they_are_there, name_pool, remove_pool),
        cmocka_unit_test_setup_teardown(what_makes_no_sense_is_refused, name_pool, remove_pool),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
