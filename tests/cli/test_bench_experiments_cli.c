/* farindex bench as a laboratory: sweeps, runs, open loops, mixes, and what its results tell. On the simulator, so that
 * times are exact. */
#include "bench_shell.h"

#define SMALL "--pool sim: --index toy --records 300 --json - "


static const json *first(const outcome *o) {
    assert_non_null(o->results);
    assert_true(o->results->count > 0);
    return json_item(o->results, 0);
}


static void assert_refused(const char *arguments, const char *word) {
    outcome o = run(arguments);
    if (o.status != 2 || !strstr(o.err, word))
        print_error("bench %s: status %d: %s", arguments, o.status, o.err);
    assert_int_equal(o.status, 2);
    assert_string_equal(o.out, ""); /* nothing was run */
    assert_non_null(strstr(o.err, word));
    done(&o);
}


static bool has_note(const json *result, const char *words) {
    const json *notes = json_field(result, "notes");
    assert_non_null(notes);
    for (const json *note = notes->first; note; note = note->next)
        if (strstr(note->text, words))
            return true;
    return false;
}


/* ---- Sweeps ---- */

static void sweeps_multiply(void **state) {
    (void)state;
    outcome o = run_well(SMALL "--workload load,c --ops 200 --sweep threads=1,2 --sweep slots=64,128,256");
    assert_int_equal(o.results->count, 2 * 3 * 2);
    const json *last = json_item(o.results, 11), *point = json_field(last, "point");
    assert_string_equal(text(point, "threads"), "2");
    assert_string_equal(text(point, "slots"), "256");
    assert_non_null(strstr(text(last, "options"), "slots=256")); /* an option of the kind */
    assert_true(number(last, "threads") == 2 && number(last, "clients") == 2);
    assert_true(number(json_item(o.results, 5), "threads") == 1);
    assert_non_null(strstr(text(json_item(o.results, 5), "options"), "slots=256"));
    done(&o);
}


static void every_setting_can_be_swept(void **state) {
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
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        snprintf(arguments, sizeof(arguments), SMALL "--workload c --ops 100 --sweep %s", cases[i].sweep);
        outcome o = run_well(arguments);
        assert_int_equal(o.results->count, 2);
        assert_true(number(json_item(o.results, 1), cases[i].field) == cases[i].last);
        assert_true(number(json_item(o.results, 0), cases[i].field) != cases[i].last);
        done(&o);
    }
}


static void a_bad_sweep_is_refused_before_anything_runs(void **state) {
    (void)state;
    assert_refused(SMALL "--sweep threads=1,x", "threads");
    assert_refused(SMALL "--sweep threads=1,0", "threads"); /* the second point is the bad one */
    assert_refused(SMALL "--sweep nonsense=1", "--sweep: that is no flag, and none of the kinds knows 'nonsense'");
    assert_refused(SMALL "--sweep json=a,b", "json");
    assert_refused(SMALL "--sweep threads", "NAME=VALUE");
    assert_refused(SMALL "--sweep threads=1 --sweep threads=2", "twice");
    assert_refused(SMALL "--clients 9", "multiple");
    assert_refused("--pool sim:memory_nodes=2 --index toy --memory-nodes 2", "--memory-nodes");
}


/* ---- Runs ---- */

static void runs_have_a_spread(void **state) {
    (void)state;
    outcome o = run_well(SMALL "--workload a --ops 300 --threads 3 --runs 3");
    const json *result = first(&o), *runs = json_field(result, "mops_runs");
    assert_int_equal(o.results->count, 1);
    assert_true(number(result, "ops") == 900 && number(result, "runs") == 3);
    assert_int_equal(runs->count, 3);
    double a = json_item(runs, 0)->number, b = json_item(runs, 1)->number, c = json_item(runs, 2)->number;
    assert_true(a != b || b != c); /* each has a seed of its own */
    double mean = (a + b + c) / 3;
    double deviation = sqrt(((a - mean) * (a - mean) + (b - mean) * (b - mean) + (c - mean) * (c - mean)) / 2);
    assert_true(fabs(number(result, "mops_stddev") - deviation) <= deviation * 0.01 + 1e-6);
    assert_true(fabs(number(result, "mops") - mean) < mean * 0.05);
    done(&o);
}


/* ---- Time and load ---- */

static void a_duration_ends_a_workload(void **state) {
    (void)state;
    outcome o = run_well(SMALL "--workload c --duration 5ms --threads 2 --sweep threads=1,4");
    const json *one = json_item(o.results, 0), *four = json_item(o.results, 1);
    assert_true(number(one, "seconds") >= 0.005 && number(one, "seconds") < 0.0051);
    assert_true(number(four, "ops") > 3.5 * number(one, "ops") && number(one, "ops") > 900);
    done(&o);
}


static void an_open_loop_keeps_its_rate(void **state) {
    (void)state;
    outcome o = run_well(SMALL "--workload c --duration 50ms --threads 2 --rate 100K --sweep depth=1,4");
    for (size_t i = 0; i < 2; i++) {
        const json *result = json_item(o.results, i);
        assert_true(fabs(number(result, "mops") - 0.1) < 0.01);
        assert_true(number(result, "p50_us") < 8); /* two round trips; few have to wait */
        assert_false(has_note(result, "offered"));
    }
    done(&o);
}


/* A client that falls behind does not slow down what is asked of it: waiting counts. */
static void an_open_loop_hides_no_waiting(void **state) {
    (void)state;
    outcome closed = run_well(SMALL "--workload c --ops 2000 --threads 1");
    outcome open = run_well(SMALL "--workload c --ops 2000 --threads 1 --rate 1M");
    assert_true(number(first(&closed), "p99_us") < 10);
    assert_true(number(first(&open), "mops") < 0.25);
    assert_true(number(first(&open), "mean_us") > 1000); /* the last of 2000 is due at 2 ms, and done at 9 */
    assert_true(number(json_field(json_field(first(&open), "by_op"), "get"), "mean_us") > 1000);
    assert_true(has_note(first(&open), "offered"));
    assert_false(has_note(first(&closed), "offered"));
    done(&closed);
    done(&open);
}


static void warming_up_goes_on_until_it_is_warm(void **state) {
    (void)state;
    outcome o = run_well(
        "--pool sim: --index smart,toy --records 3K --ops 3K --clients 16 --load-clients 1 --workload c --json -");
    const json *cached = json_item(o.results, 0), *toy = json_item(o.results, 1);
    assert_type(toy, "warm", JSON_TRUE);
    assert_true(number(toy, "warmup_ops") >= 560 && number(toy, "warmup_ops") < 600); /* 3000 / 16 + 3000 / 8 */
    assert_true(number(cached, "warmup_ops") > number(toy, "warmup_ops"));
    done(&o);
    o = run_well("--pool sim: --index smart --records 3K --ops 3K --clients 8 --workload c --warmup 0 --json -");
    assert_type(first(&o), "warm", JSON_FALSE);
    assert_true(number(first(&o), "warmup_ops") == 0 && has_note(first(&o), "not warm"));
    done(&o);
}


static void few_clients_can_load_for_many(void **state) {
    (void)state;
    outcome o = run_well(SMALL "--workload load,c --ops 2K --threads 4 --compute-nodes 2 --load-clients 2");
    const json *load = json_item(o.results, 0), *reads = json_item(o.results, 1);
    assert_true(number(load, "clients") == 2 && number(load, "ops") == 300);
    assert_true(number(reads, "clients") == 8 && number(reads, "errors") == 0);
    assert_type(reads, "settled", JSON_TRUE);
    done(&o);
}


static void too_few_operations_are_told(void **state) {
    (void)state;
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


/* ---- What is done ---- */

static void a_mix_is_what_is_asked_for(void **state) {
    (void)state;
    outcome o = run_well("--pool sim: --index toy,dart --records 1K --ops 2K --threads 4 --depth 2 --json - "
                         "--mix get=40,update=20,insert=10,delete=10,scan=10,rmw=10 --scan-length 3..5");
    for (size_t i = 0; i < 2; i++) {
        const json *result = json_item(o.results, i), *by_op = json_field(result, "by_op");
        assert_string_equal(text(result, "workload"), "mix");
        assert_string_equal(text(result, "mix"), "get=40,update=20,insert=10,scan=10,rmw=10,delete=10");
        assert_true(number(result, "errors") == 0);
        assert_true(fabs(number(json_field(by_op, "delete"), "ops") - 200) < 60);
        assert_true(fabs(number(json_field(by_op, "insert"), "ops") - 200) < 60);
        assert_true(fabs(number(json_field(by_op, "scan"), "ops") - 200) < 60);
        assert_true(fabs(number(json_field(by_op, "update"), "ops") - 600) < 100); /* those of rmw too */
        assert_true(fabs(number(json_field(by_op, "get"), "ops") - 1000) < 120);
    }
    done(&o);
    assert_refused("--mix get=50", "50, not to 100");
    assert_refused("--mix get=50,fly=50", "fly");
    assert_refused("--workload mix", "--mix");
    assert_refused("--mix get=100 --scan-length 0..4", "--scan-length");
}


/* Few records, so that what was drawn is often deleted before it is looked for: that is no error. */
static void a_delete_that_comes_first_is_no_error(void **state) {
    (void)state;
    outcome o = run_well("--pool sim: --index toy,dart --records 10 --ops 2K --threads 8 --warmup 0 --json - --mix "
                         "get=30,update=20,insert=20,delete=20,scan=10");
    assert_true(number(json_item(o.results, 0), "errors") == 0 && number(json_item(o.results, 1), "errors") == 0);
    assert_true(number(json_field(json_field(first(&o), "by_op"), "delete"), "ops") > 300);
    done(&o);
}


/* Only deletes, until half is gone; then they are gets. */
static void deletes_leave_half_of_the_records(void **state) {
    (void)state;
    outcome o = run_well(SMALL "--mix delete=100 --ops 400 --warmup 0 --threads 3");
    const json *by_op = json_field(first(&o), "by_op");
    assert_true(number(json_field(by_op, "delete"), "ops") == 150);
    assert_true(number(json_field(by_op, "get"), "ops") == 250);
    done(&o);
}


static void keys_have_the_size_asked_for(void **state) {
    (void)state;
    outcome o = run_well("--pool sim: --index all --records 500 --ops 500 --workload load,c --key-size 40 --json -");
    for (size_t i = 0; i < o.results->count; i++) {
        assert_string_equal(text(json_item(o.results, i), "keys"), "u64:40");
        assert_true(number(json_item(o.results, i), "key_size") == 40);
        assert_true(number(json_item(o.results, i), "errors") == 0);
    }
    done(&o);
    assert_refused("--key-size 7", "8..256");
    assert_refused("--keys email --key-size 16", "--key-size");
}


static void numbers_have_units(void **state) {
    (void)state;
    outcome o = run_well("--pool sim: --index toy --records 2K --ops 1k --workload load,c --json -");
    assert_true(number(first(&o), "records") == 2000 && number(json_item(o.results, 1), "ops") == 1000);
    done(&o);
    assert_refused("--records 2Q", "2Q");
}


static void the_floor_is_shown_on_request(void **state) {
    (void)state;
    outcome o = run_well(SMALL "--workload c --ops 100"), with = run_well(SMALL "--workload c --ops 100 --ideal");
    assert_null(json_field(first(&o), "ideal_mops"));
    assert_true(number(first(&with), "ideal_mops") > number(first(&with), "mops"));
    done(&o);
    done(&with);
    assert_refused("--index toy --ideal", "--ideal");
}


/* ---- What results tell ---- */

static double sum_of(const json *array) {
    double sum = 0;
    assert_non_null(array);
    for (const json *one = array->first; one; one = one->next)
        sum += one->type == JSON_ARRAY ? json_item(one, 1)->number : one->number;
    return sum;
}


static void results_tell_all_of_the_latency(void **state) {
    static const char *const names[] = {"p50_us", "p90_us", "p99_us", "p999_us", "p9999_us", "max_us"};
    (void)state;
    outcome o = run_well(SMALL "--workload a --ops 2000 --threads 4");
    const json *result = first(&o);
    assert_true(number(result, "mean_us") > 0 && number(result, "mean_us") <= number(result, "max_us"));
    for (size_t i = 1; i < sizeof(names) / sizeof(names[0]); i++)
        assert_true(number(result, names[i - 1]) <= number(result, names[i]));
    assert_true(sum_of(json_field(result, "histogram_us")) == 2000);
    done(&o);
}


static void results_tell_where_the_load_went(void **state) {
    (void)state;
    outcome o = run_well(SMALL "--workload a --ops 1000 --memory-nodes 2");
    const json *result = first(&o), *verbs = json_field(result, "verbs_by_kind");
    double sum = number(verbs, "read") + number(verbs, "write") + number(verbs, "cas") + number(verbs, "faa") +
                 number(verbs, "masked_cas");
    assert_true(fabs(sum - number(result, "verbs_per_op")) < 0.001);
    assert_true(number(verbs, "cas") > 0.4 && number(verbs, "read") > 2);
    assert_int_equal(json_field(result, "node_verbs")->count, 2);
    assert_true(sum_of(json_field(result, "node_verbs")) >= sum * 1000);
    assert_true(number(result, "node_imbalance") >= 1 && number(result, "node_imbalance") < 1.5);
    done(&o);
}


static void results_tell_where_and_when(void **state) {
    (void)state;
    outcome o = run_well(SMALL "--workload c --ops 100");
    const json *host = json_field(first(&o), "host");
    assert_true(number(host, "cores") >= 1 && strlen(text(host, "name")) > 0);
    assert_true(strlen(text(first(&o), "compiler")) > 4 && strlen(text(first(&o), "commit")) > 0);
    assert_int_equal(strlen(text(first(&o), "date")), strlen("2026-01-01T00:00:00Z"));
    assert_non_null(strstr(text(first(&o), "date"), "T"));
    done(&o);
}


static void check_series(const char *arguments) {
    outcome o = run_well(arguments);
    const json *result = first(&o), *series = json_field(result, "series");
    double ops = 0;
    assert_true(series->count >= 6 && series->count <= 9); /* two clients, 4.7 us each */
    for (const json *one = series->first; one; one = one->next)
        ops += number(one, "mops") * 1000; /* of a millisecond */
    assert_true(fabs(ops - 3000) < 1);
    assert_true(number(json_item(series, 2), "ms") == 2 && number(json_item(series, 2), "mean_us") > 4);
    done(&o);
}


static void a_time_series_adds_up(void **state) {
    (void)state;
    check_series(SMALL "--workload c --ops 3000 --threads 2 --interval 1ms");
    check_series(SMALL "--workload c --ops 3000 --threads 2 --interval 1ms --runs 3"); /* the mean of them */
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


static void csv_has_a_line_for_each_result(void **state) {
    (void)state;
    outcome o =
        run_well("--pool sim: --index toy --records 300 --ops 200 --workload load,c --sweep threads=1,2 --sweep "
                 "depth=1,2 --csv -");
    unsigned lines = 0, fields = count_fields(o.out);
    for (const char *line = o.out; *line; line = strchr(line, '\n') + 1, lines++)
        assert_int_equal(count_fields(line), fields);
    assert_int_equal(lines, 1 + 8);
    assert_true(strncmp(o.out, "index,workload,point,", 21) == 0 && fields > 30);
    assert_non_null(strstr(o.out, "\"toy\",\"c\",\"threads=2,depth=2\","));
    done(&o);
}


/* The counters of caches and locks, where many clients load and change few records. */
static void stale_caches_and_held_locks_are_counted(void **state) {
    (void)state;
    outcome o =
        run_well("--pool sim: --index chime,dart,dolphin,smart --records 1500 --ops 1600 --clients 16 --workload "
                 "load --json -");
    for (size_t i = 0; i < 4; i++)
        assert_true(number(json_item(o.results, i), "stale_hits_per_op") > 0);
    const json *chime = json_item(o.results, 0), *dart = json_item(o.results, 1);
    assert_true(number(chime, "lock_retries_per_op") > 0);
    assert_true(number(chime, "lock_retries_per_op") <= number(chime, "retries_per_op"));
    assert_true(number(dart, "lock_retries_per_op") == 0); /* it has no locks */
    done(&o);
    o = run_well(
        "--pool sim: --index chime,dart,dolphin,smart --records 500 --ops 500 --warmup 5000 --threads 1 --workload c "
        "--json -");
    for (size_t i = 0; i < 4; i++) /* what the load left stale was met while warming up, and nobody changes anything */
        assert_true(number(json_item(o.results, i), "stale_hits_per_op") == 0);
    done(&o);
}


/* Where the host counts them; elsewhere it says what else to do. */
static void instructions_are_counted_or_another_way_is_told(void **state) {
    (void)state;
    outcome o = run("--index toy --records 300 --ops 300 --threads 1 --workload c --instructions --json -");
    if (o.status == 0) {
        assert_true(number(first(&o), "instructions_per_op") > 100);
        assert_true(number(json_field(json_field(first(&o), "by_op"), "get"), "instructions_per_op") > 100);
    } else {
        assert_int_equal(o.status, 3);
        assert_non_null(strstr(o.err, "valgrind --tool=callgrind"));
    }
    done(&o);
    assert_refused("--pool sim: --index toy --instructions", "--instructions");
}


static void help_explains(void **state) {
    static const char *const words[] = {"--sweep",       "--runs",  "--duration", "--rate",     "--load-clients",
                                        "--mix",         "--csv",   "prefix",     "--key-size", "--scan-length",
                                        "--interval",    "--ideal", "--clients",  "K, M, G",    "--instructions",
                                        "may exceed it", "omission"};
    (void)state;
    outcome o = run_well("--help");
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (!strstr(o.out, words[i]))
            print_error("--help has no %s\n", words[i]);
        assert_non_null(strstr(o.out, words[i]));
    }
    done(&o);
}


/* ---- What a paper claims ---- */

static double mops_with_little_cache(const char *nic, const char *kind_and_options) {
    char arguments[512];
    snprintf(arguments, sizeof(arguments),
             "--pool sim:seed=1,memory_nodes=1,size=512M,nic=%s --records 234375 --ops 100000 --warmup 200000 --depth 1 "
             "--compute-nodes 8 --threads 32 --load-clients 8 --workload c --cache 398K --json - --index %s",
             nic, kind_and_options);
    outcome o = run_well(arguments);
    double mops = number(first(&o), "mops");
    print_message("%s, %s: %.1f Mops\n", nic, kind_and_options, mops);
    done(&o);
    return mops;
}


/* CHIME, section 5.2: gets of 256 clients with 1.7 bytes of cache for each key, 60 million keys scaled by 256. Whole leaves
 * are bound by bandwidth on every card. SMART needs 2.1 READs and 0.6 KB a get: it can be four times slower only where
 * CHIME, with one READ, is not held up by how many READs the card does. */
static void little_cache_is_enough_for_chime(void **state) {
    (void)state;
    double slow_card = mops_with_little_cache("cx6", "chime --options hotspot=120K"),
           fast_card = mops_with_little_cache("cx5", "chime --options hotspot=120K");
    assert_true(slow_card >= 4 * mops_with_little_cache("cx6", "chime --options hopscotch=off,hotspot=0"));
    assert_true(fast_card >= 4 * mops_with_little_cache("cx5", "smart --options layout=paper,eviction=fifo"));
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sweeps_multiply),
        cmocka_unit_test(every_setting_can_be_swept),
        cmocka_unit_test(a_bad_sweep_is_refused_before_anything_runs),
        cmocka_unit_test(runs_have_a_spread),
        cmocka_unit_test(a_duration_ends_a_workload),
        cmocka_unit_test(an_open_loop_keeps_its_rate),
        cmocka_unit_test(an_open_loop_hides_no_waiting),
        cmocka_unit_test(warming_up_goes_on_until_it_is_warm),
        cmocka_unit_test(few_clients_can_load_for_many),
        cmocka_unit_test(too_few_operations_are_told),
        cmocka_unit_test(a_mix_is_what_is_asked_for),
        cmocka_unit_test(a_delete_that_comes_first_is_no_error),
        cmocka_unit_test(deletes_leave_half_of_the_records),
        cmocka_unit_test(keys_have_the_size_asked_for),
        cmocka_unit_test(numbers_have_units),
        cmocka_unit_test(the_floor_is_shown_on_request),
        cmocka_unit_test(results_tell_all_of_the_latency),
        cmocka_unit_test(results_tell_where_the_load_went),
        cmocka_unit_test(results_tell_where_and_when),
        cmocka_unit_test(a_time_series_adds_up),
        cmocka_unit_test(csv_has_a_line_for_each_result),
        cmocka_unit_test(stale_caches_and_held_locks_are_counted),
        cmocka_unit_test(instructions_are_counted_or_another_way_is_told),
        cmocka_unit_test(help_explains),
        cmocka_unit_test(little_cache_is_enough_for_chime),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
