/* Experiments with farindex bench: sweeps, repeated runs, open loops, workload mixes, and the numbers in its results.
 * The experiments run on the simulator, so times are exact. */
#include "bench_shell.h"
#include "test.h"

#define SMALL "--pool sim: --index toy --records 300 --json - "


static const json_t *first(const outcome *o) {
    assert_non_null(o->results);
    assert_true(json_array_size(o->results) > 0);
    return json_array_get(o->results, 0);
}


static void assert_refused(const char *arguments, const char *word) {
    outcome o = run(arguments);
    if (o.status != 2 || !strstr(o.err, word))
        print_error("bench %s: status %d: %s", arguments, o.status, o.err);
    assert_int_equal(o.status, 2);
    assert_string_equal(o.out, ""); /* no experiment has started */
    assert_non_null(strstr(o.err, word));
    done(&o);
}


static bool has_note(const json_t *result, const char *words) {
    const json_t *notes = json_object_get(result, "notes"), *note;
    size_t i;
    assert_non_null(notes);
    json_array_foreach (notes, i, note)
        if (strstr(json_string_value(note), words))
            return true;
    return false;
}


/* ---- Sweeps ---- */

/* Two sweeps are combined: the benchmark measures each value of one with each value of the other. */
TEST(sweeps_multiply) {
    outcome o = run_well(SMALL "--workload load,c --ops 200 --sweep threads=1,2 --sweep slots=64,128,256");
    assert_int_equal(json_array_size(o.results), 2 * 3 * 2);
    const json_t *last = json_array_get(o.results, 11), *point = json_object_get(last, "point");
    assert_string_equal(text(point, "threads"), "2");
    assert_string_equal(text(point, "slots"), "256");
    assert_non_null(strstr(text(last, "options"), "slots=256")); /* an option of the kind */
    assert_true(number(last, "threads") == 2 && number(last, "clients") == 2);
    assert_true(number(json_array_get(o.results, 5), "threads") == 1);
    assert_non_null(strstr(text(json_array_get(o.results, 5), "options"), "slots=256"));
    done(&o);
}


/* Each option with one value can be swept, and the results contain its value. */
TEST(every_setting_can_be_swept) {
    static const struct {
        const char *sweep, *field;
        double last;
    } cases[] = {
        {"depth=1,3", "depth", 3},
        {"compute-nodes=1,2", "compute_nodes", 2},
        {"memory-nodes=1,3", "memory_nodes", 3},
        {"cache=1M,2M", "cache_bytes", 2 << 20},
        {"value-size=8,16", "value_size", 16},
        {"theta=0.5,0.9", "theta", 0.9},
        {"records=100,1K", "records", 1000},
        {"clients=1,16", "compute_nodes", 2},
        {"key-size=8,24", "key_size", 24},
        {"rate=10K,20K", "offered_mops", 0.02},
    };
    char arguments[256];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        snprintf(arguments, sizeof(arguments), SMALL "--workload c --ops 100 --sweep %s", cases[i].sweep);
        outcome o = run_well(arguments);
        assert_int_equal(json_array_size(o.results), 2);
        assert_true(number(json_array_get(o.results, 1), cases[i].field) == cases[i].last);
        assert_true(number(json_array_get(o.results, 0), cases[i].field) != cases[i].last);
        done(&o);
    }
}


/* An invalid point of a sweep is reported before the first point runs. Fails if cli_bench (bench.c) does not call
 * check_point for all points. */
TEST(a_bad_sweep_is_refused_before_anything_runs) {
    assert_refused(SMALL "--sweep threads=1,x", "threads");
    assert_refused(SMALL "--sweep threads=1,0", "threads"); /* only the second point is invalid */
    assert_refused(SMALL "--sweep nonsense=1", "--sweep: no option of bench, and no kind has the option 'nonsense'");
    assert_refused(SMALL "--sweep json=a,b", "json");
    assert_refused(SMALL "--sweep threads", "NAME=VALUE");
    assert_refused(SMALL "--sweep threads=1 --sweep threads=2", "twice");
    assert_refused(SMALL "--clients 9", "multiple");
    assert_refused("--pool sim:memory_nodes=2 --index toy --memory-nodes 2", "--memory-nodes");
}


/* ---- Runs ---- */

/* With --runs 3 the results contain the throughput of each run and their standard deviation, and the operations of
 * all runs are added up. */
TEST(runs_have_a_spread) {
    outcome o = run_well(SMALL "--workload a --ops 300 --threads 3 --runs 3");
    const json_t *result = first(&o), *runs = json_object_get(result, "mops_runs");
    assert_int_equal(json_array_size(o.results), 1);
    assert_true(number(result, "ops") == 900 && number(result, "runs") == 3);
    assert_int_equal(json_array_size(runs), 3);
    double a = json_number_value(json_array_get(runs, 0)), b = json_number_value(json_array_get(runs, 1)),
           c = json_number_value(json_array_get(runs, 2));
    assert_true(a != b || b != c); /* each run has its own seed */
    double mean = (a + b + c) / 3;
    double deviation = sqrt(((a - mean) * (a - mean) + (b - mean) * (b - mean) + (c - mean) * (c - mean)) / 2);
    assert_true(fabs(number(result, "mops_stddev") - deviation) <= deviation * 0.01 + 1e-6);
    assert_true(fabs(number(result, "mops") - mean) < mean * 0.05);
    done(&o);
}


/* ---- Time and load ---- */

/* --duration ends a workload after that virtual time, and more clients execute more operations in it. */
TEST(a_duration_ends_a_workload) {
    outcome o = run_well(SMALL "--workload c --duration 5ms --threads 2 --sweep threads=1,4");
    const json_t *one = json_array_get(o.results, 0), *four = json_array_get(o.results, 1);
    assert_true(number(one, "seconds") >= 0.005 && number(one, "seconds") < 0.0051);
    assert_true(number(four, "ops") > 3.5 * number(one, "ops") && number(one, "ops") > 900);
    done(&o);
}


/* With --rate, the throughput equals the rate if the clients can keep up. */
TEST(an_open_loop_keeps_its_rate) {
    outcome o = run_well(SMALL "--workload c --duration 50ms --threads 2 --rate 100K --sweep depth=1,4");
    for (size_t i = 0; i < 2; i++) {
        const json_t *result = json_array_get(o.results, i);
        assert_true(fabs(number(result, "mops") - 0.1) < 0.01);
        assert_true(number(result, "p50_us") < 8); /* two round trips; only few operations must wait */
        assert_false(has_note(result, "offered"));
    }
    done(&o);
}


/* The client cannot keep up with the rate. The latency of an operation then includes the time from its arrival, and a
 * warning reports it. Fails if work_one_by_one (client.c) counts the latency from the start of an operation. */
TEST(an_open_loop_hides_no_waiting) {
    outcome closed = run_well(SMALL "--workload c --ops 2000 --threads 1");
    outcome open = run_well(SMALL "--workload c --ops 2000 --threads 1 --rate 1M");
    assert_true(number(first(&closed), "p99_us") < 10);
    assert_true(number(first(&open), "mops") < 0.25);
    /* the last of the 2000 operations arrives after 2 ms and ends after 9 ms */
    assert_true(number(first(&open), "mean_us") > 1000);
    assert_true(number(json_object_get(json_object_get(first(&open), "by_op"), "get"), "mean_us") > 1000);
    assert_true(has_note(first(&open), "offered"));
    assert_false(has_note(first(&closed), "offered"));
    done(&closed);
    done(&open);
}


/* A kind without cache is warm after two parts of the warm-up, and a kind with a cache needs more. Without warm-up
 * the result is marked as not warm. */
TEST(warming_up_continues_until_costs_are_steady) {
    outcome o = run_well(
        "--pool sim: --index smart,toy --records 3K --ops 3K --clients 16 --load-clients 1 --workload c --json -");
    const json_t *cached = json_array_get(o.results, 0), *toy = json_array_get(o.results, 1);
    assert_type(toy, "warm", JSON_TRUE);
    /* 3000 / 16 operations in the first part, and 3000 / 8 in the second */
    assert_true(number(toy, "warmup_ops") >= 560 && number(toy, "warmup_ops") < 600);
    assert_true(number(cached, "warmup_ops") > number(toy, "warmup_ops"));
    done(&o);
    o = run_well("--pool sim: --index smart --records 3K --ops 3K --clients 8 --workload c --warmup 0 --json -");
    assert_type(first(&o), "warm", JSON_FALSE);
    assert_true(number(first(&o), "warmup_ops") == 0 && has_note(first(&o), "not warm"));
    done(&o);
}


/* The caches of many compute nodes fill slowly: the round trips per operation hardly change from one part of the warm-up
 * to the next, but the caches still grow, and the hit ratio is low. So the index is not warm. After a longer warm-up it
 * is. Fails if only round trips are compared (caches_are_steady in run.c). */
TEST(caches_that_still_fill_are_not_warm) {
    outcome o = run_well("--pool sim:seed=1,memory_nodes=1 --index smart --records 20K --ops 20K --compute-nodes 16 "
                         "--threads 2 --workload a,c --json -");
    const json_t *gets = json_array_get(o.results, 1);
    assert_true(number(gets, "cache_hit_ratio") < 0.9);
    assert_type(gets, "warm", JSON_FALSE);
    assert_true(has_note(gets, "not warm"));
    done(&o);
    o = run_well(
        "--pool sim:seed=1,memory_nodes=1 --index smart --records 2K --ops 20K --warmup 100K --compute-nodes 16 "
        "--threads 2 --workload a,c --json -");
    gets = json_array_get(o.results, 1);
    assert_true(number(gets, "cache_hit_ratio") > 0.99);
    assert_type(gets, "warm", JSON_TRUE);
    done(&o);
}


/* --load-clients limits the clients of the load; the other workloads run with all clients after the background work
 * has ended. */
TEST(few_clients_can_load_for_many) {
    outcome o = run_well(SMALL "--workload load,c --ops 2K --threads 4 --compute-nodes 2 --load-clients 2");
    const json_t *load = json_array_get(o.results, 0), *reads = json_array_get(o.results, 1);
    assert_true(number(load, "clients") == 2 && number(load, "ops") == 300);
    assert_true(number(reads, "clients") == 8 && number(reads, "errors") == 0);
    assert_type(reads, "settled", JSON_TRUE);
    done(&o);
}


/* A warning reports that clients had too few operations, in the JSON and below the table. */
TEST(too_few_operations_are_reported) {
    outcome few = run_well(SMALL "--workload c --ops 500 --clients 16");
    outcome enough = run_well(SMALL "--workload c --ops 1600 --clients 16");
    assert_true(has_note(first(&few), "too few"));
    assert_false(has_note(first(&enough), "too few"));
    done(&few);
    done(&enough);
    few = run_well("--pool sim: --index toy --records 2K --workload c --ops 500 --clients 16");
    assert_non_null(strstr(few.out, "note: toy, workload c: 31 operations"));
    done(&few);
}


/* ---- Workload mixes ---- */

/* The operations of --mix have the requested percentages, and invalid mixes are refused. */
TEST(a_mix_is_what_is_asked_for) {
    outcome o = run_well("--pool sim: --index toy,dart --records 1K --ops 2K --threads 4 --depth 2 --json - "
                         "--mix get=40,update=20,insert=10,delete=10,scan=10,rmw=10 --scan-length 3..5");
    for (size_t i = 0; i < 2; i++) {
        const json_t *result = json_array_get(o.results, i), *by_op = json_object_get(result, "by_op");
        assert_string_equal(text(result, "workload"), "mix");
        assert_string_equal(text(result, "mix"), "get=40,update=20,insert=10,scan=10,rmw=10,delete=10");
        assert_true(number(result, "errors") == 0);
        assert_true(fabs(number(json_object_get(by_op, "delete"), "ops") - 200) < 60);
        assert_true(fabs(number(json_object_get(by_op, "insert"), "ops") - 200) < 60);
        assert_true(fabs(number(json_object_get(by_op, "scan"), "ops") - 200) < 60);
        /* includes the updates of read-modify-writes */
        assert_true(fabs(number(json_object_get(by_op, "update"), "ops") - 600) < 100);
        assert_true(fabs(number(json_object_get(by_op, "get"), "ops") - 1000) < 120);
    }
    done(&o);
    assert_refused("--mix get=50", "50, not to 100");
    assert_refused("--mix get=50,fly=50", "fly");
    assert_refused("--workload mix", "--mix");
    assert_refused("--mix get=100 --scan-length 0..4", "--scan-length");
}


/* With few records, client A often draws a record that client B deletes before A reads it. That is no error. Fails
 * without record_was_deleted (client.c). */
TEST(a_concurrent_delete_is_no_error) {
    outcome o = run_well("--pool sim: --index toy,dart --records 10 --ops 2K --threads 8 --warmup 0 --json - --mix "
                         "get=30,update=20,insert=20,delete=20,scan=10");
    assert_true(number(json_array_get(o.results, 0), "errors") == 0 &&
                number(json_array_get(o.results, 1), "errors") == 0);
    assert_true(number(json_object_get(json_object_get(first(&o), "by_op"), "delete"), "ops") > 300);
    done(&o);
}


/* A workload of deletes removes at most half of the records; after that its operations are gets. */
TEST(deletes_leave_half_of_the_records) {
    outcome o = run_well(SMALL "--mix delete=100 --ops 400 --warmup 0 --threads 3");
    const json_t *by_op = json_object_get(first(&o), "by_op");
    assert_true(number(json_object_get(by_op, "delete"), "ops") == 150);
    assert_true(number(json_object_get(by_op, "get"), "ops") == 250);
    done(&o);
}


/* --key-size sets the size of keys for every kind. */
TEST(keys_have_the_size_asked_for) {
    outcome o = run_well("--pool sim: --index all --records 500 --ops 500 --workload load,c --key-size 40 --json -");
    for (size_t i = 0; i < json_array_size(o.results); i++) {
        assert_string_equal(text(json_array_get(o.results, i), "keys"), "u64:40");
        assert_true(number(json_array_get(o.results, i), "key_size") == 40);
        assert_true(number(json_array_get(o.results, i), "errors") == 0);
    }
    done(&o);
    assert_refused("--key-size 7", "8..256");
    assert_refused("--keys email --key-size 16", "--key-size");
}


/* Numbers accept the suffixes K, M and G in either case, and no others. */
TEST(numbers_have_units) {
    outcome o = run_well("--pool sim: --index toy --records 2K --ops 1k --workload load,c --json -");
    assert_true(number(first(&o), "records") == 2000 && number(json_array_get(o.results, 1), "ops") == 1000);
    done(&o);
    assert_refused("--records 2Q", "2Q");
}


/* --ideal adds the throughput of an ideal index, which is higher than that of the toy map. It needs a sim pool. */
TEST(the_ideal_is_measured_on_request) {
    outcome o = run_well(SMALL "--workload c --ops 100"), with = run_well(SMALL "--workload c --ops 100 --ideal");
    assert_null(json_object_get(first(&o), "ideal_mops"));
    assert_true(number(first(&with), "ideal_mops") > number(first(&with), "mops"));
    done(&o);
    done(&with);
    assert_refused("--index toy --ideal", "--ideal");
}


/* ---- Numbers in results ---- */

static double sum_of(const json_t *array) {
    double sum = 0;
    const json_t *one;
    size_t i;
    assert_non_null(array);
    json_array_foreach (array, i, one)
        sum += json_typeof(one) == JSON_ARRAY ? json_number_value(json_array_get(one, 1)) : json_number_value(one);
    return sum;
}


/* The quantiles of the latency are in order, and the histogram contains all operations. */
TEST(results_contain_the_latency_distribution) {
    static const char *const names[] = {"p50_us", "p90_us", "p99_us", "p999_us", "p9999_us", "max_us"};
    outcome o = run_well(SMALL "--workload a --ops 2000 --threads 4");
    const json_t *result = first(&o);
    assert_true(number(result, "mean_us") > 0 && number(result, "mean_us") <= number(result, "max_us"));
    for (size_t i = 1; i < sizeof(names) / sizeof(names[0]); i++)
        assert_true(number(result, names[i - 1]) <= number(result, names[i]));
    assert_true(sum_of(json_object_get(result, "histogram_us")) == 2000);
    done(&o);
}


/* The verbs by kind add up to the verbs of an operation, and each memory node has its share. */
TEST(results_contain_the_load_of_memory_nodes) {
    outcome o = run_well(SMALL "--workload a --ops 1000 --memory-nodes 2");
    const json_t *result = first(&o), *verbs = json_object_get(result, "verbs_by_kind");
    double sum = number(verbs, "read") + number(verbs, "write") + number(verbs, "cas") + number(verbs, "faa") +
                 number(verbs, "masked_cas");
    assert_true(fabs(sum - number(result, "verbs_per_op")) < 0.001);
    assert_true(number(verbs, "cas") > 0.4 && number(verbs, "read") > 2);
    assert_int_equal(json_array_size(json_object_get(result, "node_verbs")), 2);
    assert_true(sum_of(json_object_get(result, "node_verbs")) >= sum * 1000);
    assert_true(number(result, "node_imbalance") >= 1 && number(result, "node_imbalance") < 1.5);
    done(&o);
}


/* The results contain host, compiler, commit and date. */
TEST(results_contain_host_and_date) {
    outcome o = run_well(SMALL "--workload c --ops 100");
    const json_t *host = json_object_get(first(&o), "host");
    assert_true(number(host, "cores") >= 1 && strlen(text(host, "name")) > 0);
    assert_true(strlen(text(first(&o), "compiler")) > 4 && strlen(text(first(&o), "commit")) > 0);
    assert_int_equal(strlen(text(first(&o), "date")), strlen("2026-01-01T00:00:00Z"));
    assert_non_null(strstr(text(first(&o), "date"), "T"));
    done(&o);
}


static void check_series(const char *arguments) {
    outcome o = run_well(arguments);
    const json_t *result = first(&o), *series = json_object_get(result, "series"), *one;
    double ops = 0;
    size_t i;
    /* two clients, 4.7 us for each operation */
    assert_true(json_array_size(series) >= 6 && json_array_size(series) <= 9);
    json_array_foreach (series, i, one)
        ops += number(one, "mops") * 1000; /* operations of one millisecond */
    assert_true(fabs(ops - 3000) < 1);
    assert_true(number(json_array_get(series, 2), "ms") == 2 && number(json_array_get(series, 2), "mean_us") > 4);
    done(&o);
}


/* The intervals of the time series contain all operations, also as the mean of several runs. */
TEST(a_time_series_adds_up) {
    check_series(SMALL "--workload c --ops 3000 --threads 2 --interval 1ms");
    /* the series is the mean of the runs */
    check_series(SMALL "--workload c --ops 3000 --threads 2 --interval 1ms --runs 3");
}


static unsigned count_fields(const char *line) {
    unsigned fields = 1;
    bool quoted = false;
    for (; *line && *line != '\n'; line++) {
        quoted ^= *line == '"';
        fields += *line == ',' && !quoted;
    }
    return fields;
}


/* The CSV file has a header and a line with the same number of fields for each result, and a column for each swept
 * option. */
TEST(csv_has_a_line_for_each_result) {
    outcome o =
        run_well("--pool sim: --index toy --records 300 --ops 200 --workload load,c --sweep threads=1,2 --sweep "
                 "depth=1,2 --sweep slots=512,1024 --csv -");
    unsigned lines = 0, fields = count_fields(o.out);
    for (const char *line = o.out; *line; line = strchr(line, '\n') + 1, lines++)
        assert_int_equal(count_fields(line), fields);
    assert_int_equal(lines, 1 + 16);
    static const char before[] =
        "index,workload,keys,pool,clients,threads,compute_nodes,depth,records,value_size,slots,";
    assert_true(strncmp(o.out, before, strlen(before)) == 0 && fields > 30);
    assert_non_null(strstr(o.out, "\",2,2,1,2,300,8,\"1024\",")); /* threads=2, depth=2, slots=1024 */
    done(&o);
}


/* A swept option with the name of a result has a column with another name, and an option of a kind with the name of an
 * option of the benchmark has its own column. */
TEST(csv_columns_have_unique_names) {
    outcome o = run_well("--pool sim: --index toy --records 300 --workload c --sweep ops=100,200 --sweep "
                         "options.slots=512,1024 --csv -");
    static const char before[] = "index,workload,keys,pool,clients,threads,compute_nodes,depth,records,value_size,"
                                 "setting_ops,options.slots,cache_bytes,ops,";
    assert_true(strncmp(o.out, before, strlen(before)) == 0);
    assert_non_null(strstr(o.out, "\"200\",\"1024\","));
    done(&o);
}


/* Many clients load few records, so they meet stale cache entries and held locks, which the results count. Without
 * concurrent changes both counters are 0. */
TEST(stale_caches_and_held_locks_are_counted) {
    outcome o =
        run_well("--pool sim: --index chime,dart,dolphin,smart --records 1500 --ops 1600 --clients 16 --workload "
                 "load --json -");
    for (size_t i = 0; i < 4; i++)
        assert_true(number(json_array_get(o.results, i), "stale_hits_per_op") > 0);
    const json_t *chime = json_array_get(o.results, 0), *dart = json_array_get(o.results, 1);
    assert_true(number(chime, "lock_retries_per_op") > 0);
    assert_true(number(chime, "lock_retries_per_op") <= number(chime, "retries_per_op"));
    assert_true(number(dart, "lock_retries_per_op") == 0); /* DART has no locks */
    done(&o);
    o = run_well(
        "--pool sim: --index chime,dart,dolphin,smart --records 500 --ops 500 --warmup 5000 --threads 1 --workload c "
        "--json -");
    /* the warm-up has refreshed all cache entries that were stale after the load, and no client changes the index */
    for (size_t i = 0; i < 4; i++)
        assert_true(number(json_array_get(o.results, i), "stale_hits_per_op") == 0);
    done(&o);
}


/* On a host with a counter, --instructions reports plausible numbers. On other hosts its message names valgrind. */
TEST(instructions_are_counted_or_another_way_is_named) {
    outcome o = run("--index toy --records 300 --ops 300 --threads 1 --workload c --instructions --json -");
    if (o.status == 0) {
        assert_true(number(first(&o), "instructions_per_op") > 100);
        assert_true(number(json_object_get(json_object_get(first(&o), "by_op"), "get"), "instructions_per_op") > 100);
    } else {
        assert_int_equal(o.status, 3);
        assert_non_null(strstr(o.err, "valgrind --tool=callgrind"));
    }
    done(&o);
    assert_refused("--pool sim: --index toy --instructions", "--instructions");
}


/* --help explains the terms that its options use. */
TEST(help_explains) {
    static const char *const words[] = {"--sweep",       "--runs",  "--duration", "--rate",     "--load-clients",
                                        "--mix",         "--csv",   "prefix",     "--key-size", "--scan-length",
                                        "--interval",    "--ideal", "--clients",  "K, M, G",    "--instructions",
                                        "may exceed it", "omission"};
    outcome o = run_well("--help");
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (!strstr(o.out, words[i]))
            print_error("--help has no %s\n", words[i]);
        assert_non_null(strstr(o.out, words[i]));
    }
    done(&o);
}


/* ---- Claims of papers ---- */

static double mops_with_little_cache(const char *nic, const char *kind_and_options) {
    char arguments[512];
    snprintf(
        arguments, sizeof(arguments),
        "--pool sim:seed=1,memory_nodes=1,size=512M,nic=%s --records 234375 --ops 100000 --warmup 200000 --depth 1 "
        "--compute-nodes 8 --threads 32 --load-clients 8 --workload c --cache 398K --json - --index %s",
        nic, kind_and_options);
    outcome o = run_well(arguments);
    double mops = number(first(&o), "mops");
    print_message("%s, %s: %.1f Mops\n", nic, kind_and_options, mops);
    done(&o);
    return mops;
}


/* CHIME, section 5.2: 256 clients run gets with 1.7 bytes of cache for each key (60 million keys, scaled by 256).
 * Reading whole leaves is bound by bandwidth on every card. SMART needs 2.1 READs and 0.6 KB for each get, so it can
 * be four times slower only if the number of READs that the card executes does not limit CHIME, which needs one READ.
 */
TEST(little_cache_is_enough_for_chime) {
    double slow_card = mops_with_little_cache("cx6", "chime --options hotspot=120K"),
           fast_card = mops_with_little_cache("cx5", "chime --options hotspot=120K");
    assert_true(slow_card >= 4 * mops_with_little_cache("cx6", "chime --options hopscotch=off,hotspot=0"));
    assert_true(fast_card >= 4 * mops_with_little_cache("cx5", "smart --options layout=paper,eviction=fifo"));
}
