/* farindex bench as users meet it: the built command, its output and its exit status. */
#include "bench_shell.h"


/* What everybody relies on. */

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


static void assert_all_fields(const json *result) {
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        if (!json_field(result, fields[i]))
            print_error("no field %s\n", fields[i]);
        assert_non_null(json_field(result, fields[i]));
    }
    const json *by_op = json_field(result, "by_op");
    assert_int_equal(by_op->type, JSON_OBJECT);
    assert_true(by_op->count > 0);
    for (const json *op = by_op->first; op; op = op->next)
        for (size_t i = 0; i < sizeof(op_fields) / sizeof(op_fields[0]); i++)
            number(op, op_fields[i]);
}


static void all_workloads_on_an_embedded_pool_have_every_field(void **state) {
    static const char *const names[] = {"load", "a", "b", "c", "d", "e", "f"};
    (void)state;
    outcome o = run_well("--index toy --records 300 --ops 400 --threads 2 --json -");
    assert_non_null(o.results);
    assert_int_equal(o.results->type, JSON_ARRAY);
    assert_int_equal(o.results->count, 7);
    for (size_t i = 0; i < 7; i++) {
        const json *result = json_item(o.results, i);
        assert_all_fields(result);
        assert_string_equal(text(result, "index"), "toy");
        assert_string_equal(text(result, "workload"), names[i]);
        assert_true(number(result, "ops") == (i == 0 ? 300 : 400));
        assert_true(number(result, "errors") == 0);
        assert_true(number(result, "seconds") > 0 && number(result, "mops") > 0);
        assert_true(number(result, "p50_us") <= number(result, "p99_us") &&
                    number(result, "p99_us") <= number(result, "p999_us"));
        assert_null(json_field(result, "virtual"));
        assert_null(json_field(result, "ideal_mops"));
    }
    done(&o);
}


static void what_is_said_is_what_is_done(void **state) {
    (void)state;
    outcome o = run_well(
        "--index toy --workload b --records 200 --ops 333 --threads 2 --compute-nodes 2 --depth 3 --value-size 24 "
        "--keys email --cache 1M --rdwc off --seed 9 --dist uniform --pool local:256M --json -");
    assert_int_equal(o.results->count, 1);
    const json *result = json_item(o.results, 0);
    assert_string_equal(text(result, "keys"), "email");
    assert_string_equal(text(result, "dist"), "uniform");
    assert_string_equal(text(result, "options"), "slots=256"); /* no inline layout with keys of any size */
    assert_true(number(result, "records") == 200 && number(result, "ops") == 333 && number(result, "threads") == 2);
    assert_true(number(result, "compute_nodes") == 2 && number(result, "clients") == 4 && number(result, "depth") == 3);
    assert_true(number(result, "value_size") == 24 && number(result, "cache_bytes") == 1 << 20 &&
                number(result, "seed") == 9);
    assert_type(result, "rdwc", JSON_FALSE);
    assert_type(result, "theta", JSON_NULL);
    assert_type(result, "delegated_ratio", JSON_NULL);
    assert_type(result, "combined_ratio", JSON_NULL);
    const json *by_op = json_field(result, "by_op");
    assert_true(number(json_field(by_op, "get"), "ops") + number(json_field(by_op, "update"), "ops") == 333);
    done(&o);
}


static void counters_are_exact(void **state) {
    (void)state;
    outcome o = run_well("--index toy --workload c,f --records 500 --ops 1000 --threads 1 --rdwc off --json -");
    const json *gets = json_item(o.results, 0), *mixed = json_item(o.results, 1);
    assert_true(number(gets, "rtt_per_op") == 2 &&
                number(gets, "unwaited_per_op") == 0); /* the slot, then the bucket */
    assert_true(number(gets, "verbs_per_op") >= 2 &&
                number(gets, "verbs_per_op") < 2.05); /* and now and then one for the epoch */
    assert_true(number(gets, "read_bytes_per_op") > 40 && number(gets, "write_bytes_per_op") < 0.5);
    assert_null(json_field(json_field(gets, "by_op"), "update"));
    const json *by_op = json_field(mixed, "by_op");
    assert_true(number(json_field(by_op, "get"), "ops") ==
                1000); /* every operation of f reads, half of them write then */
    assert_true(fabs(number(json_field(by_op, "update"), "ops") - 500) < 100);
    assert_true(number(json_field(by_op, "get"), "rtt_per_op") == 2);
    done(&o);
}


static void a_kind_that_splits_and_speculates_tells_how_well(void **state) {
    (void)state;
    outcome o = run_well("--index toy,chime --workload load,c --records 20000 --ops 40000 --threads 1 --json -");
    assert_type(json_item(o.results, 0), "split_load", JSON_NULL);
    assert_type(json_item(o.results, 1), "speculation_hit_ratio", JSON_NULL);
    const json *load = json_item(o.results, 2), *reads = json_item(o.results, 3);
    assert_true(number(load, "split_load") > 0.8 && number(load, "split_load") < 0.95);
    assert_true(number(load, "load_factor") > 0.5 && number(load, "load_factor") < 0.75);
    assert_type(load, "speculation_hit_ratio", JSON_NULL);
    assert_type(reads, "split_load", JSON_NULL);
    assert_true(number(reads, "speculation_hit_ratio") > 0.3 && number(reads, "speculation_hit_ratio") <= 1);
    assert_true(number(reads, "speculation_wrong_ratio") < 0.01);
    done(&o);
}


static void a_kind_with_slots_tells_how_full_they_are(void **state) {
    (void)state;
    outcome o = run_well("--index toy,shard --workload load --records 20000 --ops 1 --threads 1 --json -");
    assert_type(json_item(o.results, 0), "load_factor", JSON_NULL);
    assert_type(json_item(o.results, 0), "keys_by_level", JSON_NULL);
    const json *result = json_item(o.results, 1), *levels = json_field(result, "keys_by_level");
    assert_true(number(result, "load_factor") > 0.2 && number(result, "load_factor") < 0.8);
    assert_int_equal(levels->count, 3);
    assert_true(json_item(levels, 0)->number + json_item(levels, 1)->number + json_item(levels, 2)->number == 20000);
    assert_true(number(result, "local_bytes") > 1000 && number(result, "local_bytes") < 65536);
    done(&o);
}


static void warming_up_is_not_measured(void **state) {
    (void)state;
    outcome o = run_well("--index toy --workload a --records 100 --ops 200 --warmup 5000 --threads 1 --json -");
    const json *by_op = json_field(json_item(o.results, 0), "by_op");
    assert_true(number(json_item(o.results, 0), "ops") == 200);
    assert_true(number(json_field(by_op, "get"), "ops") + number(json_field(by_op, "update"), "ops") == 200);
    assert_true(number(json_item(o.results, 0), "verbs_per_op") < 6);
    done(&o);
}


static void warming_up_happens(void **state) {
    (void)state;
    outcome cold = run_well("--pool sim: --index toy --workload d --records 100 --ops 10 --warmup 0 --json -");
    outcome warm = run_well("--pool sim: --index toy --workload d --records 100 --ops 10 --warmup 2000 --json -");
    assert_true(number(json_item(warm.results, 0), "pool_bytes") > number(json_item(cold.results, 0), "pool_bytes"));
    done(&cold);
    done(&warm);
}


static void inserts_of_a_key_file_end_with_it(void **state) {
    char path[] = "/tmp/farindex-keys-XXXXXX", arguments[256];
    (void)state;
    int file = mkstemp(path);
    for (int i = 0; i < 120; i++)
        dprintf(file, "key-%d\n", i * i);
    close(file);
    snprintf(arguments, sizeof(arguments),
             "--index toy --keys file:%s --records 110 --workload d,c --ops 1000 --json -", path);
    outcome o = run_well(arguments);
    const json *by_op = json_field(json_item(o.results, 0), "by_op");
    assert_true(number(json_item(o.results, 0), "ops") == 1000);
    assert_true(!json_field(by_op, "insert") || number(json_field(by_op, "insert"), "ops") <= 10);
    done(&o);
    snprintf(arguments, sizeof(arguments), "--index toy --keys file:%s --records 121", path);
    o = run(arguments);
    assert_int_equal(o.status, 2);
    done(&o);
    unlink(path);
}


static void values_of_all_sizes_work(void **state) {
    (void)state;
    outcome o = run_well("--index toy --workload load,a --records 50 --ops 100 --value-size 0 --json -");
    done(&o);
    o = run_well("--index toy --workload load,a,e --records 50 --ops 100 --value-size 5000 --options key_size=0 "
                 "--depth 4 --json -");
    assert_string_equal(text(json_item(o.results, 0), "options"), "key_size=0,slots=64");
    assert_true(number(json_item(o.results, 1), "read_bytes_per_op") > 5000);
    done(&o);
}


/* The simulator. */

static void simulated_runs_are_virtual(void **state) {
    (void)state;
    outcome o = run_well(
        "--pool sim:memory_nodes=2 --index toy --workload load,c --records 400 --ops 600 --threads 1 --ideal --json -");
    const json *result = json_item(o.results, 1);
    assert_all_fields(result);
    assert_type(result, "virtual", JSON_TRUE);
    const json *nic = json_field(result, "nic");
    assert_non_null(nic);
    assert_string_equal(text(nic, "preset"), "cx6");
    assert_true(number(nic, "read_mops") == 45 && number(nic, "rtt_read_us") == 2.35);
    assert_true(fabs(number(result, "ideal_mops") * 2.35 - 1) < 0.01); /* one client, one READ at a time */
    assert_true(number(result, "mops") < number(result, "ideal_mops"));
    assert_true(fabs(number(result, "p50_us") - 2 * 2.35) < 0.7);
    done(&o);
}


static void more_in_flight_is_faster(void **state) {
    (void)state;
    outcome one =
        run_well("--pool sim: --index toy --workload c --records 400 --ops 2000 --threads 1 --ideal --json -");
    outcome many = run_well(
        "--pool sim: --index toy --workload c --records 400 --ops 2000 --threads 1 --depth 8 --ideal --json -");
    assert_true(number(json_item(many.results, 0), "mops") > 3 * number(json_item(one.results, 0), "mops"));
    assert_true(number(json_item(many.results, 0), "ideal_mops") > 3 * number(json_item(one.results, 0), "ideal_mops"));
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


static void one_seed_is_one_run(void **state) {
    static const char arguments[] = "--pool sim: --index toy --workload load,a,d,f --records 300 --ops 500 --threads 3 "
                                    "--compute-nodes 2 --depth 2 --json - --seed";
    char with_seed[256];
    (void)state;
    snprintf(with_seed, sizeof(with_seed), "%s 5", arguments);
    outcome first = run_well(with_seed), second = run_well(with_seed);
    forget_dates(first.out);
    forget_dates(second.out);
    assert_string_equal(first.out, second.out);
    assert_non_null(strstr(text(json_item(first.results, 0), "pool"), "seed=5"));
    snprintf(with_seed, sizeof(with_seed), "%s 6", arguments);
    outcome other = run_well(with_seed);
    assert_true(number(json_item(first.results, 1), "seconds") != number(json_item(other.results, 1), "seconds"));
    done(&first);
    done(&second);
    done(&other);
}


/* What goes wrong. */

static void lost_inserts_are_found(void **state) {
    (void)state;
    outcome o =
        run("--pool sim: --index toy --options slots=2,broken=dropped_write --workload load,c --records 60 --ops 300 "
            "--threads 4 --json -");
    assert_int_equal(o.status, 1);
    assert_non_null(o.results); /* all the same */
    double errors = 0;
    for (size_t i = 0; i < o.results->count; i++)
        errors += number(json_item(o.results, i), "errors");
    assert_true(errors > 0);
    assert_true(number(json_item(o.results, 1), "errors") > 0); /* the gets miss them too */
    assert_non_null(strstr(o.err, "toy, workload"));
    assert_non_null(strstr(o.err, "wrong results"));
    done(&o);
}


static void a_full_pool_ends_the_run_with_words(void **state) {
    (void)state;
    outcome o = run("--pool local:16M --index toy --workload load --records 20000 --value-size 4000 --json -");
    assert_int_equal(o.status, 1);
    assert_non_null(o.results);
    assert_true(strlen(o.err) > 0);
    done(&o);
}


static void wrong_usage_is_told_apart(void **state) {
    static const struct {
        const char *arguments, *word;
    } cases[] = {
        {"--no-such-flag", "--no-such-flag"},
        {"operand", "operand"},
        {"--index nothing", "nothing"},
        {"--index toy,toy", "twice"},
        {"--index toy,", "unknown kind"},
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
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        outcome o = run(cases[i].arguments);
        if (o.status != 2 || !strstr(o.err, cases[i].word))
            print_error("bench %s: status %d: %s", cases[i].arguments, o.status, o.err);
        assert_int_equal(o.status, 2);
        assert_string_equal(o.out, "");
        assert_non_null(strstr(o.err, cases[i].word));
        assert_ptr_equal(strchr(o.err, '\n'), o.err + strlen(o.err) - 1); /* one line */
        done(&o);
    }
}


static void a_pool_that_cannot_be_opened_is_a_failure(void **state) {
    (void)state;
    outcome o = run("--index toy --pool nowhere:1");
    assert_int_equal(o.status, 3);
    assert_non_null(strstr(o.err, "nowhere"));
    done(&o);
    o = run("--index toy --pool local:64M?nonsense=1");
    assert_int_equal(o.status, 3);
    assert_non_null(strstr(o.err, "nonsense"));
    done(&o);
}


/* Output. */

static void the_table_has_a_row_for_each_workload(void **state) {
    char path[] = "/tmp/farindex-json-XXXXXX", arguments[256];
    (void)state;
    int file = mkstemp(path);
    snprintf(arguments, sizeof(arguments), "--index toy --workload load,a,c --records 100 --ops 100 --json %s", path);
    outcome o = run_well(arguments);
    unsigned lines = 0, rows = 0, notes = 0;
    for (const char *at = o.out; (at = strchr(at, '\n')); at++) {
        lines++;
        rows += strncmp(at + 1, "toy ", 4) == 0;
        notes += strncmp(at + 1, "note: ", 6) == 0;
    }
    assert_int_equal(lines - notes, 5); /* what was run, the head of the table, and the rows */
    assert_int_equal(rows, 3);
    FILE *stream = fdopen(file, "r");
    char *written = read_all(stream);
    json *results = json_read(written);
    assert_non_null(results);
    assert_int_equal(results->count, 3);
    json_free(results);
    free(written);
    fclose(stream);
    unlink(path);
    done(&o);
    o = run("--index toy --workload load --records 10 --json /no/such/folder/file");
    assert_int_equal(o.status, 3);
    done(&o);
}


static void help_lists_every_flag(void **state) {
    static const char *const flags[] = {"--pool",    "--index",      "--workload", "--records",       "--ops",
                                        "--keys",    "--value-size", "--dist",     "--theta",         "--threads",
                                        "--depth",   "--cache",      "--rdwc",     "--compute-nodes", "--seed",
                                        "--options", "--json",       "--warmup",   "--keep",          "--micro"};
    (void)state;
    outcome o = run_well("--help");
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++)
        assert_non_null(strstr(o.out, flags[i]));
    done(&o);
}


static void the_ground_is_measured_beside_its_floor(void **state) {
    static const char *const names[] = {"read",  "cas", "read_batch_4", "read_ahead", "cas_ahead", "read_batch_4_ahead",
                                        "switch"};
    (void)state;
    outcome o = run_well("--micro --json -");
    assert_non_null(o.results);
    enum { NAMES = sizeof(names) / sizeof(names[0]) };
    assert_int_equal(o.results->count, NAMES + 1);
    for (size_t i = 0; i < NAMES; i++) {
        const json *measured = json_item(o.results, i);
        assert_string_equal(text(measured, "name"), names[i]);
        assert_true(number(measured, "ns") > 0 && number(measured, "floor_ns") > 0);
        assert_true(fabs(number(measured, "ratio") * number(measured, "floor_ns") / number(measured, "ns") - 1) <
                    0.001);
    }
    assert_string_equal(text(json_item(o.results, NAMES), "name"), "sim_read");
    assert_true(number(json_item(o.results, NAMES), "verbs_per_second") > 0);
    done(&o);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_workloads_on_an_embedded_pool_have_every_field),
        cmocka_unit_test(what_is_said_is_what_is_done),
        cmocka_unit_test(counters_are_exact),
        cmocka_unit_test(a_kind_that_splits_and_speculates_tells_how_well),
        cmocka_unit_test(a_kind_with_slots_tells_how_full_they_are),
        cmocka_unit_test(warming_up_is_not_measured),
        cmocka_unit_test(warming_up_happens),
        cmocka_unit_test(inserts_of_a_key_file_end_with_it),
        cmocka_unit_test(values_of_all_sizes_work),
        cmocka_unit_test(simulated_runs_are_virtual),
        cmocka_unit_test(more_in_flight_is_faster),
        cmocka_unit_test(one_seed_is_one_run),
        cmocka_unit_test(lost_inserts_are_found),
        cmocka_unit_test(a_full_pool_ends_the_run_with_words),
        cmocka_unit_test(wrong_usage_is_told_apart),
        cmocka_unit_test(a_pool_that_cannot_be_opened_is_a_failure),
        cmocka_unit_test(the_table_has_a_row_for_each_workload),
        cmocka_unit_test(help_lists_every_flag),
        cmocka_unit_test(the_ground_is_measured_beside_its_floor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
