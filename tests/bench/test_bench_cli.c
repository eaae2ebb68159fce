/* farindex bench as users run it: the tests start the built program, and read its JSON, its messages and its exit
 * status. */
#include "bench_shell.h"
#include "test.h"


/* Fields that every result must have. */

static const char *const fields[] = {"index",
                                     "workload",
                                     "keys",
                                     "dist",
                                     "records",
                                     "ops",
                                     "threads",
                                     "depth",
                                     "compute_nodes",
                                     "pool",
                                     "value_size",
                                     "cache_bytes",
                                     "seconds",
                                     "mops",
                                     "p50_us",
                                     "p99_us",
                                     "p999_us",
                                     "rtt_per_op",
                                     "verbs_per_op",
                                     "read_bytes_per_op",
                                     "write_bytes_per_op",
                                     "retries_per_op",
                                     "cas_failed_per_op",
                                     "cache_bytes_used",
                                     "cache_hit_ratio",
                                     "delegated_ratio",
                                     "combined_ratio",
                                     "pool_bytes",
                                     "index_bytes_per_key",
                                     "load_factor",
                                     "keys_by_level",
                                     "local_bytes",
                                     "split_load",
                                     "speculation_hit_ratio",
                                     "speculation_wrong_ratio",
                                     "version",
                                     "seed",
                                     "theta",
                                     "options",
                                     "rdwc",
                                     "clients",
                                     "errors",
                                     "unwaited_per_op",
                                     "background_rtt_per_op",
                                     "atomic_bytes",
                                     "masked_cas",
                                     "atomics_in_order",
                                     "by_op"};
static const char *const op_fields[] = {
    "ops", "rtt_per_op", "verbs_per_op", "read_bytes_per_op", "write_bytes_per_op", "p50_us", "p99_us"};


static void assert_all_fields(const json_t *result) {
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        if (!json_object_get(result, fields[i]))
            print_error("no field %s\n", fields[i]);
        assert_non_null(json_object_get(result, fields[i]));
    }
    json_t *by_op = json_object_get(result, "by_op"), *op;
    const char *name;
    assert_int_equal(json_typeof(by_op), JSON_OBJECT);
    assert_true(json_object_size(by_op) > 0);
    json_object_foreach (by_op, name, op)
        for (size_t i = 0; i < sizeof(op_fields) / sizeof(op_fields[0]); i++)
            number(op, op_fields[i]);
}


/* The results of all workloads contain all fields, and no field of the simulator. */
TEST(all_workloads_on_an_embedded_pool_have_every_field) {
    static const char *const names[] = {"load", "a", "b", "c", "d", "e", "f"};
    outcome o = run_well("--index toy --records 300 --ops 400 --threads 2 --json -");
    assert_non_null(o.results);
    assert_int_equal(json_typeof(o.results), JSON_ARRAY);
    assert_int_equal(json_array_size(o.results), 7);
    for (size_t i = 0; i < 7; i++) {
        const json_t *result = json_array_get(o.results, i);
        assert_all_fields(result);
        assert_string_equal(text(result, "index"), "toy");
        assert_string_equal(text(result, "workload"), names[i]);
        assert_true(number(result, "ops") == (i == 0 ? 300 : 400));
        assert_true(number(result, "errors") == 0);
        assert_true(number(result, "seconds") > 0 && number(result, "mops") > 0);
        assert_true(number(result, "p50_us") <= number(result, "p99_us") &&
                    number(result, "p99_us") <= number(result, "p999_us"));
        assert_null(json_object_get(result, "virtual"));
        assert_null(json_object_get(result, "ideal_mops"));
    }
    done(&o);
}


/* The results contain the options of the experiment, and as many operations as were requested. */
TEST(options_appear_in_the_results) {
    outcome o = run_well(
        "--index toy --workload b --records 200 --ops 333 --threads 2 --compute-nodes 2 --depth 3 --value-size 24 "
        "--keys email --cache 1M --rdwc off --seed 9 --dist uniform --pool 'local:256M?name=it' --json -");
    assert_int_equal(json_array_size(o.results), 1);
    const json_t *result = json_array_get(o.results, 0);
    assert_string_equal(text(result, "keys"), "email");
    assert_string_equal(text(result, "command"),
                        "farindex bench --index toy --workload b --records 200 --ops 333 --threads 2 --compute-nodes 2 "
                        "--depth 3 --value-size 24 --keys email --cache 1M --rdwc off --seed 9 --dist uniform --pool "
                        "'local:256M?name=it' --json -");
    assert_string_equal(text(result, "dist"), "uniform");
    /* keys of varying size need the layout that is not inline */
    assert_string_equal(text(result, "options"), "slots=256");
    assert_true(number(result, "records") == 200 && number(result, "ops") == 333 && number(result, "threads") == 2);
    assert_true(number(result, "compute_nodes") == 2 && number(result, "clients") == 4 && number(result, "depth") == 3);
    assert_true(number(result, "value_size") == 24 && number(result, "cache_bytes") == 1 << 20 &&
                number(result, "seed") == 9);
    assert_type(result, "rdwc", JSON_FALSE);
    assert_type(result, "theta", JSON_NULL);
    assert_type(result, "delegated_ratio", JSON_NULL);
    assert_type(result, "combined_ratio", JSON_NULL);
    const json_t *by_op = json_object_get(result, "by_op");
    assert_true(number(json_object_get(by_op, "get"), "ops") + number(json_object_get(by_op, "update"), "ops") == 333);
    done(&o);
}


/* Round trips and verbs of each operation of the toy map are exact numbers. */
TEST(counters_are_exact) {
    outcome o = run_well("--index toy --workload c,f --records 500 --ops 1000 --threads 1 --rdwc off --json -");
    const json_t *gets = json_array_get(o.results, 0), *mixed = json_array_get(o.results, 1);
    assert_true(number(gets, "rtt_per_op") == 2 &&
                number(gets, "unwaited_per_op") == 0); /* a get reads the slot, and then the bucket */
    assert_true(number(gets, "verbs_per_op") >= 2 &&
                number(gets, "verbs_per_op") < 2.05); /* the rest are occasional verbs of the epoch */
    assert_true(number(gets, "read_bytes_per_op") > 40 && number(gets, "write_bytes_per_op") < 0.5);
    assert_null(json_object_get(json_object_get(gets, "by_op"), "update"));
    const json_t *by_op = json_object_get(mixed, "by_op");
    assert_true(number(json_object_get(by_op, "get"), "ops") ==
                1000); /* every operation of workload f reads, and half of them write after that */
    assert_true(fabs(number(json_object_get(by_op, "update"), "ops") - 500) < 100);
    assert_true(number(json_object_get(by_op, "get"), "rtt_per_op") == 2);
    done(&o);
}


/* The results contain the load of split leaves and the hit ratio of speculative reads for CHIME, and null for kinds
 * without them. */
TEST(splits_and_speculation_are_reported) {
    outcome o = run_well("--index toy,chime --workload load,c --records 20000 --ops 40000 --threads 1 --json -");
    assert_type(json_array_get(o.results, 0), "split_load", JSON_NULL);
    assert_type(json_array_get(o.results, 1), "speculation_hit_ratio", JSON_NULL);
    const json_t *load = json_array_get(o.results, 2), *reads = json_array_get(o.results, 3);
    assert_true(number(load, "split_load") > 0.8 && number(load, "split_load") < 0.95);
    assert_true(number(load, "load_factor") > 0.5 && number(load, "load_factor") < 0.75);
    assert_type(load, "speculation_hit_ratio", JSON_NULL);
    assert_type(reads, "split_load", JSON_NULL);
    assert_true(number(reads, "speculation_hit_ratio") > 0.3 && number(reads, "speculation_hit_ratio") <= 1);
    assert_true(number(reads, "speculation_wrong_ratio") < 0.01);
    done(&o);
}


/* The results contain the load factor and the keys at each level for SHARD, and null for kinds without slots. */
TEST(load_factors_are_reported) {
    outcome o = run_well("--index toy,shard --workload load --records 20000 --ops 1 --threads 1 --json -");
    assert_type(json_array_get(o.results, 0), "load_factor", JSON_NULL);
    assert_type(json_array_get(o.results, 0), "keys_by_level", JSON_NULL);
    const json_t *result = json_array_get(o.results, 1), *levels = json_object_get(result, "keys_by_level");
    assert_true(number(result, "load_factor") > 0.2 && number(result, "load_factor") < 0.8);
    assert_int_equal(json_array_size(levels), 3);
    assert_true(json_number_value(json_array_get(levels, 0)) + json_number_value(json_array_get(levels, 1)) +
                    json_number_value(json_array_get(levels, 2)) ==
                20000);
    assert_true(number(result, "local_bytes") > 1000 && number(result, "local_bytes") < 65536);
    done(&o);
}


/* Operations of the warm-up are not part of the results. */
TEST(warming_up_is_not_measured) {
    outcome o = run_well("--index toy --workload a --records 100 --ops 200 --warmup 5000 --threads 1 --json -");
    const json_t *by_op = json_object_get(json_array_get(o.results, 0), "by_op");
    assert_true(number(json_array_get(o.results, 0), "ops") == 200);
    assert_true(number(json_object_get(by_op, "get"), "ops") + number(json_object_get(by_op, "update"), "ops") == 200);
    assert_true(number(json_array_get(o.results, 0), "verbs_per_op") < 6);
    done(&o);
}


/* The warm-up inserts of workload d are executed, so the pool uses more memory after a longer warm-up. */
TEST(warming_up_happens) {
    outcome cold = run_well("--pool sim: --index toy --workload d --records 100 --ops 10 --warmup 0 --json -");
    outcome warm = run_well("--pool sim: --index toy --workload d --records 100 --ops 10 --warmup 2000 --json -");
    assert_true(number(json_array_get(warm.results, 0), "pool_bytes") >
                number(json_array_get(cold.results, 0), "pool_bytes"));
    done(&cold);
    done(&warm);
}


/* A workload with inserts continues without them when all keys of the file are inserted. */
TEST(inserts_of_a_key_file_end_with_it) {
    char path[] = "/tmp/farindex-keys-XXXXXX", arguments[256];
    int file = mkstemp(path);
    for (int i = 0; i < 120; i++)
        dprintf(file, "key-%d\n", i * i);
    close(file);
    snprintf(arguments, sizeof(arguments),
             "--index toy --keys file:%s --records 110 --workload d,c --ops 1000 --json -", path);
    outcome o = run_well(arguments);
    const json_t *by_op = json_object_get(json_array_get(o.results, 0), "by_op");
    assert_true(number(json_array_get(o.results, 0), "ops") == 1000);
    assert_true(!json_object_get(by_op, "insert") || number(json_object_get(by_op, "insert"), "ops") <= 10);
    done(&o);
    snprintf(arguments, sizeof(arguments), "--index toy --keys file:%s --records 121", path);
    o = run(arguments);
    assert_int_equal(o.status, 2);
    done(&o);
    unlink(path);
}


/* The benchmark works with empty values and with values of 5000 bytes. */
TEST(values_of_all_sizes_work) {
    outcome o = run_well("--index toy --workload load,a --records 50 --ops 100 --value-size 0 --json -");
    done(&o);
    o = run_well("--index toy --workload load,a,e --records 50 --ops 100 --value-size 5000 --options key_size=0 "
                 "--depth 4 --json -");
    assert_string_equal(text(json_array_get(o.results, 0), "options"), "key_size=0,slots=64");
    assert_true(number(json_array_get(o.results, 1), "read_bytes_per_op") > 5000);
    done(&o);
}


/* ---- The simulator ---- */

/* On a sim pool, the results contain the model of the NIC, and the ideal throughput equals that of one READ at a
 * time. */
TEST(simulated_runs_are_virtual) {
    outcome o = run_well(
        "--pool sim:memory_nodes=2 --index toy --workload load,c --records 400 --ops 600 --threads 1 --ideal --json -");
    const json_t *result = json_array_get(o.results, 1);
    assert_all_fields(result);
    assert_type(result, "virtual", JSON_TRUE);
    const json_t *nic = json_object_get(result, "nic");
    assert_non_null(nic);
    assert_string_equal(text(nic, "preset"), "cx6");
    assert_true(number(nic, "read_mops") == 45 && number(nic, "rtt_read_us") == 2.35);
    assert_true(fabs(number(result, "ideal_mops") * 2.35 - 1) < 0.01); /* one client with one READ at a time */
    assert_true(number(result, "mops") < number(result, "ideal_mops"));
    assert_true(fabs(number(result, "p50_us") - 2 * 2.35) < 0.7);
    done(&o);
}


/* On the simulator, eight operations in flight give more than three times the throughput of one. */
TEST(more_in_flight_is_faster) {
    outcome one =
        run_well("--pool sim: --index toy --workload c --records 400 --ops 2000 --threads 1 --ideal --json -");
    outcome many = run_well(
        "--pool sim: --index toy --workload c --records 400 --ops 2000 --threads 1 --depth 8 --ideal --json -");
    assert_true(number(json_array_get(many.results, 0), "mops") > 3 * number(json_array_get(one.results, 0), "mops"));
    assert_true(number(json_array_get(many.results, 0), "ideal_mops") >
                3 * number(json_array_get(one.results, 0), "ideal_mops"));
    done(&one);
    done(&many);
}


static void forget_dates(char *out) {
    static const char name[] = "\"date\":\"";
    for (char *at = out; (at = strstr(at, name));) {
        at += strlen(name);
        memset(at, '-', strcspn(at, "\""));
    }
}


/* Two simulated benchmarks with the same seed print the same results except for the date, and another seed gives
 * others. */
TEST(one_seed_repeats_a_run) {
    static const char arguments[] = "--pool sim: --index toy --workload load,a,d,f --records 300 --ops 500 --threads 3 "
                                    "--compute-nodes 2 --depth 2 --json - --seed";
    char with_seed[256];
    snprintf(with_seed, sizeof(with_seed), "%s 5", arguments);
    outcome first = run_well(with_seed), second = run_well(with_seed);
    forget_dates(first.out);
    forget_dates(second.out);
    assert_string_equal(first.out, second.out);
    assert_non_null(strstr(text(json_array_get(first.results, 0), "pool"), "seed=5"));
    snprintf(with_seed, sizeof(with_seed), "%s 6", arguments);
    outcome other = run_well(with_seed);
    assert_true(number(json_array_get(first.results, 1), "seconds") !=
                number(json_array_get(other.results, 1), "seconds"));
    done(&first);
    done(&second);
    done(&other);
}


/* ---- Errors ---- */

/* The option broken=dropped_write of the toy map loses inserts. The benchmark reports them as errors, and its exit
 * status is 1. */
TEST(lost_inserts_are_found) {
    outcome o =
        run("--pool sim: --index toy --options slots=2,broken=dropped_write --workload load,c --records 60 --ops 300 "
            "--threads 4 --json -");
    assert_int_equal(o.status, 1);
    assert_non_null(o.results); /* the results are complete in spite of the errors */
    double errors = 0;
    for (size_t i = 0; i < json_array_size(o.results); i++)
        errors += number(json_array_get(o.results, i), "errors");
    assert_true(errors > 0);
    assert_true(number(json_array_get(o.results, 1), "errors") > 0); /* the gets do not find the lost keys */
    assert_non_null(strstr(o.err, "toy, workload"));
    assert_non_null(strstr(o.err, "wrong results"));
    done(&o);
}


/* A pool that is too small for the load ends the benchmark with a message and exit status 1. */
TEST(a_full_pool_is_reported) {
    outcome o = run("--pool local:16M --index toy --workload load --records 20000 --value-size 4000 --json -");
    assert_int_equal(o.status, 1);
    assert_non_null(o.results);
    assert_true(strlen(o.err) > 0);
    done(&o);
}


/* Every wrong option is reported in one line that names it, with exit status 2. */
TEST(wrong_usage_names_the_option) {
    static const struct {
        const char *arguments, *word;
    } cases[] = {
        {"--no-such-flag", "--no-such-flag"},
        {"operand", "operand"},
        {"--index nothing", "nothing"},
        {"--index toy,toy", "twice"},
        {"--index toy,", "there is no kind ''"},
        {"--index toy --pool sim:nic=cx9", "'nic=cx9' is not valid (there are: cx6, cx5)"},
        {"--index toy --pool sim:faults=foo", "(there are: none, all, tear, reorder, late, swallow, stall)"},
        {"--index toy --pool local:64M?nonsense=1", "nonsense"},
        {"--against lmdb --pool sim:", "--against: needs a pool that processes share"},
        {"--processes 2 --pool sim:", "--processes: needs a pool that processes share"},
        {"--workload x", "'x'"},
        {"--workload a,,b", "--workload"},
        {"--records 0", "--records"},
        {"--records many", "--records"},
        {"--ops 0", "--ops"},
        {"--cache 0", "--cache"},
        {"--threads 0", "--threads"},
        {"--threads 8000 --compute-nodes 8000", "clients"},
        {"--depth 201", "--depth"},
        {"--depth 0", "--depth"},
        {"--compute-nodes 0", "--compute-nodes"},
        {"--value-size 65537", "--value-size"},
        {"--dist gauss", "gauss"},
        {"--theta 1", "--theta"},
        {"--theta x", "--theta"},
        {"--keys names", "names"},
        {"--keys file:/no/such/file", "/no/such/file"},
        {"--rdwc maybe", "--rdwc"},
        {"--cache lots", "--cache"},
        {"--seed -1", "--seed"},
        {"--index toy --options nonsense=1", "nonsense"},
        {"--index toy --options slots=x", "slots"},
        {"--index toy --options slots", "slots"},
        {"--index toy --options slots=4,slots=8", "slots"},
        {"--keep=yes", "--keep"},
        {"--json", "--json"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        outcome o = run(cases[i].arguments);
        if (o.status != 2 || !strstr(o.err, cases[i].word))
            print_error("bench %s: status %d: %s", cases[i].arguments, o.status, o.err);
        assert_int_equal(o.status, 2);
        assert_string_equal(o.out, "");
        assert_non_null(strstr(o.err, cases[i].word));
        assert_ptr_equal(strchr(o.err, '\n'), o.err + strlen(o.err) - 1); /* the message is one line */
        done(&o);
    }
}


/* A pool that cannot be opened is reported with exit status 3. */
TEST(a_pool_that_cannot_be_opened_is_a_failure) {
    outcome o = run("--index toy --pool nowhere:1");
    assert_int_equal(o.status, 3);
    assert_non_null(strstr(o.err, "nowhere"));
    done(&o);
}


/* ---- Output ---- */

/* The table has one row for each workload, and the JSON file has one object for each. */
TEST(the_table_has_a_row_for_each_workload) {
    char path[] = "/tmp/farindex-json-XXXXXX", arguments[256];
    int file = mkstemp(path);
    snprintf(arguments, sizeof(arguments), "--index toy --workload load,a,c --records 100 --ops 100 --json %s", path);
    outcome o = run_well(arguments);
    unsigned lines = 0, rows = 0, notes = 0;
    for (const char *at = o.out; (at = strchr(at, '\n')); at++) {
        lines++;
        rows += strncmp(at + 1, "toy ", 4) == 0;
        notes += strncmp(at + 1, "note: ", 6) == 0;
    }
    assert_int_equal(lines - notes, 5); /* the description of the experiment, the header, and the rows */
    assert_int_equal(rows, 3);
    FILE *stream = fdopen(file, "r");
    char *written = read_all(stream);
    json_t *results = parse_json(written);
    assert_non_null(results);
    assert_int_equal(json_array_size(results), 3);
    json_decref(results);
    free(written);
    fclose(stream);
    unlink(path);
    done(&o);
    o = run("--index toy --workload load --records 10 --json /no/such/folder/file");
    assert_int_equal(o.status, 3);
    done(&o);
}


/* --help lists the options of the benchmark. */
TEST(help_lists_every_flag) {
    static const char *const flags[] = {"--pool",    "--index",      "--workload", "--records",       "--ops",
                                        "--keys",    "--value-size", "--dist",     "--theta",         "--threads",
                                        "--depth",   "--cache",      "--rdwc",     "--compute-nodes", "--seed",
                                        "--options", "--json",       "--warmup",   "--keep",          "--micro"};
    outcome o = run_well("--help");
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++)
        assert_non_null(strstr(o.out, flags[i]));
    done(&o);
}


/* --micro reports the time of each verb, the time of its floor, and their ratio. */
TEST(verbs_are_measured_beside_their_floor) {
    static const char *const names[] = {"read",  "cas", "read_batch_4", "read_ahead", "cas_ahead", "read_batch_4_ahead",
                                        "switch"};
    outcome o = run_well("--micro --json -");
    assert_non_null(o.results);
    enum { NAMES = sizeof(names) / sizeof(names[0]) };
    assert_int_equal(json_array_size(o.results), NAMES + 1);
    for (size_t i = 0; i < NAMES; i++) {
        const json_t *measured = json_array_get(o.results, i);
        assert_string_equal(text(measured, "name"), names[i]);
        assert_true(number(measured, "ns") > 0 && number(measured, "floor_ns") > 0);
        assert_true(fabs(number(measured, "ratio") * number(measured, "floor_ns") / number(measured, "ns") - 1) <
                    0.001);
    }
    assert_string_equal(text(json_array_get(o.results, NAMES), "name"), "sim_read");
    assert_true(number(json_array_get(o.results, NAMES), "verbs_per_second") > 0);
    done(&o);
}
