/* farindex bench --processes and --against as users run them. */
#include "conform.h"
#include "left_out.h"
#include "made_pools.h"
#include "parse_json.h"
#include "test.h"

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
    remove_pool_creation_messages(out);
    return WEXITSTATUS(status);
}


TEST_FIXTURE(name_pool) {
    snprintf(path, sizeof(path), "/dev/shm/farindex-bench-%d", (int)getpid());
    return 0;
}


TEST_FIXTURE(remove_pool) {
    unlink(path);
    return 0;
}


static void assert_row_of(const json_t *row, double processes, const char *index, const char *workload, double ops) {
    assert_non_null(row);
    assert_string_equal(json_string_value(json_object_get(row, "index")), index);
    assert_string_equal(json_string_value(json_object_get(row, "workload")), workload);
    assert_true(json_number_value(json_object_get(row, "ops")) == ops);
    assert_true(json_number_value(json_object_get(row, "processes")) == processes);
    assert_true(json_number_value(json_object_get(row, "errors")) == 0);
    assert_true(json_number_value(json_object_get(row, "mops")) > 0);
    assert_true(json_number_value(json_object_get(row, "p50_us")) > 0 &&
                json_number_value(json_object_get(row, "p50_us")) <= json_number_value(json_object_get(row, "p99_us")));
}


static void assert_row(const json_t *row, const char *index, const char *workload, double ops) {
    assert_row_of(row, 3, index, workload, ops);
}


/* Three processes execute all operations of each workload together. After that the index is dropped, and the pool has
 * no problems. */
TEST_WITH(every_process_does_its_share, name_pool, remove_pool) {
    static const char *const workloads[] = {"load", "c", "writes", "a"};
    char arguments[512], out[1 << 20];
    snprintf(arguments, sizeof(arguments),
             "--pool 'shm:%s?size=64M' --processes 3 --index toy --records 2000 --ops 4000 --value-size 64 --json -",
             path);
    assert_int_equal(run(arguments, out, sizeof(out)), 0);
    json_t *rows = parse_json(out);
    assert_non_null(rows);
    assert_int_equal(json_array_size(rows), 4);
    for (size_t i = 0; i < 4; i++)
        assert_row(json_array_get(rows, i), "toy", workloads[i], i == 0 ? 2000 : 4000);
    json_decref(rows);
    char command[512];
    snprintf(command, sizeof(command), "test -z \"$(%s list --pool shm:%s)\" && %s check --pool shm:%s >/dev/null",
             FARINDEX_COMMAND, path, FARINDEX_COMMAND, path);
    assert_int_equal(system(command), 0); /* the index was dropped, and the pool has no problems */
}


/* Several processes run every workload with eight operations in flight, and read records that other processes have
 * inserted. */
TEST_WITH(every_workload_is_run_by_processes, name_pool, remove_pool) {
    char arguments[512], out[1 << 20];
    static const char *const workloads[] = {"a", "b", "c", "d", "e", "f", "writes"};
    snprintf(
        arguments, sizeof(arguments),
        "--pool 'shm:%s?size=64M' --processes 3 --index dart --records 2000 --ops 3000 --depth 8 --json - --workload "
        "a,b,c,d,e,f,writes",
        path);
    assert_int_equal(run(arguments, out, sizeof(out)), 0);
    json_t *rows = parse_json(out);
    assert_non_null(rows);
    assert_int_equal(json_array_size(rows), COUNT_OF(workloads)); /* the load was not requested, so it has no result */
    for (size_t i = 0; i < COUNT_OF(workloads); i++) {
        assert_row(json_array_get(rows, i), "dart", workloads[i], 3000);
        assert_true(json_number_value(json_object_get(json_array_get(rows, i), "depth")) == 8);
        assert_true(json_number_value(json_object_get(json_array_get(rows, i), "rtt_per_op")) > 0);
    }
    const json_t *inserts = json_object_get(json_object_get(json_array_get(rows, 3), "by_op"), "insert");
    assert_true(json_number_value(json_object_get(inserts, "ops")) > 0);
    json_decref(rows);
}


/* With --processes, a kind without scans skips workload e with a message. */
TEST_WITH(kinds_without_scans_skip_scan_workloads, name_pool, remove_pool) {
    char arguments[512], out[1 << 20];
    snprintf(arguments, sizeof(arguments),
             "--pool 'shm:%s?size=64M' --processes 2 --index shard --records 500 --ops 500 --workload e", path);
    assert_int_equal(run(arguments, out, sizeof(out)), 0);
    assert_non_null(strstr(out, "shard has no scans"));
    assert_null(strstr(out, "shard    e"));
}


/* The parent has the index open as long as the benchmark runs, also while no other process has it open, so that no other
 * benchmark takes it for that of a killed one. `evict --list` shows two processes and the parent. Fails if the parent
 * closes the index that it has created. */
TEST_WITH(the_parent_keeps_the_index_open, name_pool, remove_pool) {
    char command[1024];
    snprintf(command, sizeof(command),
             "%s bench --pool 'shm:%s?size=64M' --processes 2 --index toy --records 100 --workload c --duration 600s "
             ">/dev/null 2>&1 & bench=$!; users=0; while [ $users -lt 3 ] && kill -0 $bench; do "
             "users=$(%s evict --list --pool shm:%s 2>/dev/null | grep -c bench-toy-temporary); "
             "[ $users -lt 2 ] || [ $users = 3 ] || seen=$((seen + 1)); [ ${seen:-0} -lt 100 ] || break; done; "
             "kill $bench; wait $bench; [ $users = 3 ]",
             FARINDEX_COMMAND, path, FARINDEX_COMMAND, path);
    assert_int_equal(system(command), 0);
}


/* --keep keeps the index of each kind, and a later benchmark refuses to change such an index. */
TEST_WITH(indexes_are_kept_on_request_and_never_overwritten, name_pool, remove_pool) {
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
        assert_int_equal(run(arguments, out, sizeof(out)), 0); /* uses an index with another name */
        strcat(arguments, " --keep");
        assert_int_equal(run(arguments, out, sizeof(out)), 3);
        assert_non_null(strstr(out, "farindex drop bench-dart"));
    }
    snprintf(command, sizeof(command), "%s stat bench-dart --pool shm:%s | grep -q 'keys  *50$'", FARINDEX_COMMAND,
             path);
    assert_int_equal(system(command), 0);
}


/* Without --pool the benchmark creates a pool file, and removes it at the end. */
TEST_WITH(a_pool_of_its_own_is_removed, name_pool, remove_pool) {
    char out[1 << 20], own[128];
    assert_int_equal(run("--processes 2 --index toy --records 500 --ops 500 --json -", out, sizeof(out)), 0);
    json_t *rows = parse_json(out);
    assert_non_null(rows);
    const char *uri = json_string_value(json_object_get(json_array_get(rows, 0), "pool"));
    assert_int_equal(sscanf(uri, "shm:%127[^?]", own), 1);
    assert_true(access(own, F_OK) != 0);
    json_decref(rows);
}


/* Checks the ratios in the results. The first half of the rows are results of the rival, the second half those of the
 * index. */
static void assert_ratios(const json_t *rows, const char *field) {
    size_t half = json_array_size(rows) / 2;
    for (size_t i = 0; i < half; i++) {
        double mine = json_number_value(json_object_get(json_array_get(rows, i + half), "mops")),
               its = json_number_value(json_object_get(json_array_get(rows, i), "mops"));
        double ratio = json_number_value(json_object_get(json_array_get(rows, i + half), field));
        assert_true(ratio > 0.99 * mine / its && ratio < 1.01 * mine / its);
    }
}


/* In a build with LMDB, it runs the same operations first, and the ratios are those of the results. In other builds a
 * message says that LMDB is missing. */
TEST_WITH(lmdb_is_compared_if_the_build_has_it, name_pool, remove_pool) {
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
    json_t *rows = parse_json(out);
    assert_non_null(rows);
    assert_int_equal(json_array_size(rows), 8);
    assert_row(json_array_get(rows, 1), "lmdb", "c", 4000);
    assert_ratios(rows, "lmdb_ratio");
    json_decref(rows);
}


/* --against redis adds rows for Redis and ratios of the index to Redis, with one operation in flight and with many. The
 * index is on a memory node's daemon. */
TEST_WITH(redis_is_compared_if_the_build_has_it, name_pool, remove_pool) {
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
        json_t *rows = parse_json(out);
        assert_non_null(rows);
        assert_int_equal(json_array_size(rows), 4);
        assert_row(json_array_get(rows, 0), "redis", "c", 1000);
        assert_row(json_array_get(rows, 1), "redis", "a", 1000);
        assert_row(json_array_get(rows, 2), "toy", "c", 1000);
        assert_memory_equal(json_string_value(json_object_get(json_array_get(rows, 2), "pool")), "tcp://", 6);
        assert_ratios(rows, "redis_ratio");
        json_decref(rows);
    }
}


/* --against tkrzw and --against kyotocabinet add rows for the hash tables of these libraries, which work in one
 * process. */
TEST_WITH(hash_tables_are_compared_if_the_build_has_them, name_pool, remove_pool) {
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
        json_t *rows = parse_json(out);
        assert_non_null(rows);
        assert_int_equal(json_array_size(rows), 8);
        assert_row_of(json_array_get(rows, 0), 1, names[i][0], "load", 500);
        assert_row_of(json_array_get(rows, 3), 1, names[i][0], "d", 1000);
        assert_row_of(json_array_get(rows, 5), 1, "shard", "c", 1000);
        assert_ratios(rows, names[i][1]);
        json_decref(rows);
    }
}


/* Options that exclude each other are refused. A pool that is too small is an error, after which no process waits
 * forever. */
TEST_WITH(invalid_combinations_are_refused, name_pool, remove_pool) {
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
    /* the pool is too small, which is an error, and no process hangs */
    assert_int_equal(run(arguments, out, sizeof(out)), 3);
    assert_true(access("/dev/shm/x", F_OK) != 0);
}
