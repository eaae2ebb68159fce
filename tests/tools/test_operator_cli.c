/* Properties that the operator of a shared pool relies on: reading commands create no pool, values are exact to the
 * byte, all JSON is valid, errors are JSON objects if --json is given, and exit statuses distinguish "not found" from
 * failures. */
#include "parse_json.h"
#include "pool/format/fabric_record.h"
#include "pool/handle.h"
#include "shell.h"
#include "test.h"


/* The commands in `readers` fail if the pool does not exist, and create no file. `create`, `load` and `bench` create
 * the pool if it does not exist, and print a message only when they have created it. */
TEST_WITH(only_commands_that_create_pools_create_them, fresh, remove_pool) {
    static const char *const readers[] = {"list",          "get i k",  "put i k v",  "del i k",
                                          "scan i",        "dump i",   "stat",       "stat i",
                                          "check",         "drop i",   "evict 5",    "evict --list",
                                          "dump --all",    "copy i j", "top --json", "top --prometheus",
                                          "top --count 1", "shell",    "selftest"};
    for (size_t i = 0; i < COUNT_OF(readers); i++) {
        char words[128];
        snprintf(words, sizeof(words), "farindex %s", readers[i]);
        fails(words, 1, "there is no pool");
        assert_true(access(path, F_OK) != 0);
    }
    outcome o = run("farindex create i dart");
    assert_int_equal(o.status, 0);
    assert_non_null(strstr(o.err, "farindex: created the pool shm:"));
    done(&o);
    o = run("farindex create j dart");
    assert_string_equal(o.err, "");
    done(&o);
    unlink(path);
    o = run("farindex bench --pool \"$FARINDEX_POOL\" --index toy --records 100 --ops 100 --workload c --json -");
    assert_int_equal(o.status, 0);
    assert_non_null(strstr(o.err, "farindex: created the pool shm:"));
    done(&o);
    unlink(path);
    o = run("printf 'k\\tv\\n' | farindex load i");
    assert_int_equal(o.status, 1); /* the index does not exist */
    assert_non_null(strstr(o.err, "farindex: created the pool shm:"));
    done(&o);
}


static int record_failed_guarantees(far_task *t, void *arg) {
    unsigned recorded;
    return far_fabric_record_add(t, *(unsigned *)arg, &recorded);
}


/* Records guarantees as failed, as a self-test does that has observed the failure. */
static void record_as_failed(unsigned refuted) {
    far_pool *pool;
    far_pool_options options = {.must_exist = 1, .ignore_refuted = 1};
    assert_int_equal(far_pool_open(getenv("FARINDEX_POOL"), &options, &pool), 0);
    assert_int_equal(far_session_call(pool->team.own, FAR_STATS_OTHER, false, record_failed_guarantees, &refuted), 0);
    far_pool_close(pool);
}


/* `stat` and `selftest` report guarantees that a self-test has recorded as failed, until `selftest --forget` removes
 * the record. This also works for a pool that other commands refuse to open because of the record. */
TEST_WITH(failed_guarantees_are_reported_until_forgotten, fresh, remove_pool) {
    works("farindex create i dart && farindex stat | grep refuted", "  refuted          nothing\n");
    record_as_failed(FAR_VIOLATED_READS_IN_ORDER);
    works("farindex stat | grep refuted", "  refuted          reads_in_order\n");
    works("farindex stat --json | grep -o '\"refuted\":[^}]*'", "\"refuted\":\"reads_in_order\"\n");
    works("farindex selftest --tries 1 | grep -c 'refuted, now or earlier: reads_in_order: clients of this pool do'",
          "1\n");
    record_as_failed(FAR_VIOLATED_RULE);
    fails("farindex stat", 3, "violates a rule that every fabric must keep");
    fails("farindex dump --all", 3, "--ignore-refuted");
    works("farindex dump --all --ignore-refuted | grep ^%index", "%index i\n");
    works("farindex selftest --tries 1 --json | grep -c '\"recorded\":true'", "15\n");
    works("! farindex selftest --tries 1 --forget | grep refuted", "");
    works("farindex stat | grep refuted", "  refuted          nothing\n");
}


/* `get --raw` prints exactly the bytes of the value. */
TEST_WITH(raw_bytes_are_exact, fresh, remove_pool) {
    works("farindex create i dart && printf 'a\\0b\\n\\377' >value && farindex put i k - <value && "
          "farindex get i k --raw | cmp - value",
          "");
    works("farindex put i e '' && farindex get i e --raw | wc -c", "0\n");
    fails("farindex get i k --raw --json", 2, "--raw");
}


/* In JSON, valid UTF-8 is a string, and any other bytes are base64 text with a second field that says so. The test
 * tries overlong encodings, surrogates, and truncated characters. */
TEST_WITH(json_is_utf8_or_says_base64, fresh, remove_pool) {
    works("farindex create i dart", "");
    works("farindex put i 'gr\303\274n' '\342\202\254 \"\\' && farindex get i --json 'gr\303\274n'",
          "{\"key\":\"gr\303\274n\",\"value\":\"\342\202\254 \\\"\\\\\"}\n");
    static const char *const pairs[][2] = {
        {"ff", "/w=="},           {"fffe", "//4="}, {"c0af", "wK8="}, /* an overlong encoding */
        {"eda080", "7aCA"},                                           /* half of a surrogate pair */
        {"f4908080", "9JCAgA=="},                                     /* beyond the last Unicode character */
        {"e282", "4oI="},         {"80", "gA=="},
    };
    for (size_t i = 0; i < COUNT_OF(pairs); i++) {
        char words[256], expected[256];
        snprintf(words, sizeof(words), "farindex put i --hex 6b %s && farindex get i --json k", pairs[i][0]);
        snprintf(expected, sizeof(expected), "{\"key\":\"k\",\"value\":\"%s\",\"value_encoding\":\"base64\"}\n",
                 pairs[i][1]);
        works(words, expected);
    }
    works("farindex put i --hex 00ff 61 && farindex scan i --limit 1 --json",
          "[\n {\"key\":\"AP8=\",\"key_encoding\":\"base64\",\"value\":\"a\"}\n]\n");
    works("farindex put i --hex 7a 00 && farindex get i z --json", "{\"key\":\"z\",\"value\":\"\\u0000\"}\n");
}


/* Checks that a command prints one JSON object on stderr and nothing on stdout, and that the object contains the exit
 * status. */
static void assert_error_object(const char *arguments, int status, const char *word) {
    outcome o = run("farindex %s", arguments);
    json_t *read = parse_json(o.err);
    const json_t *error = read ? json_object_get(read, "error") : NULL,
                 *number = read ? json_object_get(read, "status") : NULL;
    if (o.status != status || *o.out || !error || !strstr(json_string_value(error), word) || !number ||
        json_number_value(number) != status)
        fail_msg("%s: %d\n%s\n%s", arguments, o.status, o.out, o.err);
    json_decref(read);
    done(&o);
}


/* With --json every error is one JSON object on stderr with the exit status, whatever the error is. */
TEST_WITH(an_error_is_one_object_where_json_is_asked_for, fresh, remove_pool) {
    assert_error_object("list --json", 1, "no pool");
    works("farindex create i dart && farindex create s shard && farindex put i k v", "");
    assert_error_object("get i nosuch --json", 1, "not there");
    assert_error_object("get nosuch k --json", 1, "no index");
    assert_error_object("put i k v --insert --json", 4, "already");
    assert_error_object("put i nosuch v --update --json", 1, "not there");
    assert_error_object("drop nosuch --json", 1, "no index");
    assert_error_object("scan s --json", 3, "no order");
    assert_error_object("create c nosuchkind --json", 2, "there are: chime, dart, dolphin, shard, smart)");
    assert_error_object("stat nosuch --json", 1, "nosuch");
    assert_error_object("evict 16000 --json", 1, "16000");
    /* the error in an argument before --json is an object too */
    assert_error_object("list --nosuch --json", 2, "nosuch");
    assert_error_object("load i nosuchfile --json", 3, "nosuchfile");
}


/* `kinds --json` has an object with name, type, default and help for each option of each kind. */
TEST_WITH(kinds_lists_options_one_by_one, fresh, remove_pool) {
    outcome o = run("farindex kinds --json");
    json_t *kinds = parse_json(o.out);
    assert_non_null(kinds);
    assert_true(json_array_size(kinds) >= 5);
    unsigned numbers = 0, flags = 0;
    for (size_t i = 0; i < json_array_size(kinds); i++) {
        const json_t *options = json_object_get(json_array_get(kinds, i), "options");
        assert_int_equal(json_typeof(options), JSON_ARRAY);
        for (size_t k = 0; k < json_array_size(options); k++) {
            const json_t *option = json_array_get(options, k), *type = json_object_get(option, "type");
            assert_non_null(json_object_get(option, "name"));
            assert_non_null(json_object_get(option, "help"));
            const json_t *initial = json_object_get(option, "default");
            assert_non_null(initial);
            numbers += strcmp(json_string_value(type), "number") == 0 && json_is_number(initial);
            flags += strcmp(json_string_value(type), "bool") == 0 && json_is_boolean(initial);
        }
    }
    assert_true(numbers > 10 && flags > 3);
    json_decref(kinds);
    done(&o);
}


static double number_in(const json_t *object, const char *name) {
    const json_t *found = json_object_get(object, name);
    assert_non_null(found);
    assert_true(json_is_number(found));
    return json_number_value(found);
}


/* For every kind, `stat` and `stat --exact` report the same number of keys after puts of existing keys, updates,
 * inserts and deletes by several threads. */
TEST_WITH(counters_and_traversal_give_the_same_numbers, fresh, remove_pool) {
    const char *kinds[CONFORM_KINDS];
    size_t count = conform_kinds(kinds);
    works("(seq 1 300; seq 200 400) | sed 's/$/\\tvalue/' >pairs", "");
    for (size_t i = 0; i < count; i++) {
        outcome o =
            run("farindex create k %s && farindex load k pairs --threads 2 --depth 8 && farindex del k 1 2 3 && "
                "farindex put k 4 x --update && farindex put k new x --insert",
                kinds[i]);
        assert_int_equal(o.status, 0);
        done(&o);
        outcome quick = run("farindex stat k --json"), exact = run("farindex stat k --exact --json");
        json_t *counted = parse_json(quick.out), *walked = parse_json(exact.out);
        assert_non_null(counted);
        assert_non_null(walked);
        if (number_in(counted, "keys") != 398 || number_in(walked, "keys") != 398 ||
            number_in(counted, "pool_bytes") < number_in(walked, "pool_bytes"))
            fail_msg("%s: %s%s", kinds[i], quick.out, exact.out);
        assert_int_equal(json_typeof(json_object_get(counted, "key_bytes")), JSON_NULL);
        assert_true(number_in(walked, "key_bytes") > 1000);
        json_decref(counted);
        json_decref(walked);
        done(&quick);
        done(&exact);
        works("farindex list | cut -f1,3 && farindex drop k", "k\t398\n");
    }
}


/* Process A has index i open, and `evict --list` shows this. `drop i` succeeds, and A finds no index from then on. */
TEST_WITH(an_index_is_dropped_while_a_process_has_it_open, fresh, remove_pool) {
    works("farindex create i dart", "");
    outcome o =
        run("mkfifo in; farindex load i in & exec 3>in; printf 'a\\tb\\n' >&3; "
            "until farindex evict --list | grep -q \"$(uname -n).i$\"; do sleep 0.01; done; farindex evict --list; "
            "farindex evict --list --json >list; farindex drop i; echo $?; "
            "for n in $(seq 1000); do printf \"a$n\\tb\\n\" >&3 2>/dev/null || break; sleep 0.01; done; exec 3>&-; wait");
    int client = 0, process = 0;
    char command[64] = "", host[64] = "", index[64] = "", expected[128];
    assert_int_equal(sscanf(o.out, "%d\t%d\t%63s\t%63s\t%63s", &client, &process, command, host, index), 5);
    assert_string_equal(index, "i");
    assert_string_equal(command, "farindex");
    gethostname(expected, sizeof(expected));
    assert_string_equal(host, expected);
    assert_non_null(strstr(o.out, "\n0\n")); /* the exit status of the drop */
    if (!strstr(o.err, "index 'i' was dropped"))
        fail_msg("%s\n%s", o.out, o.err);
    done(&o);
    o = run("cat list");
    json_t *list = parse_json(o.out);
    assert_non_null(list);
    assert_true(number_in(json_array_get(list, 0), "process") == process);
    assert_string_equal(json_string_value(json_array_get(json_object_get(json_array_get(list, 0), "indexes"), 0)), "i");
    json_decref(list);
    done(&o);
    works("farindex list", "");
}


/* `get` and `del` with several keys handle each of them, and report how many do not exist. */
TEST_WITH(many_keys_are_got_and_deleted_at_once, fresh, remove_pool) {
    works("farindex create i dart && farindex put i a 1 && farindex put i b '2\t' && farindex put i c 3", "");
    works("farindex get i a b c", "a\t1\nb\t2\\t\nc\t3\n");
    works("farindex get i a c --raw", "13");
    works("farindex get i a c --json", "[\n {\"key\":\"a\",\"value\":\"1\"},\n {\"key\":\"c\",\"value\":\"3\"}\n]\n");
    outcome o = run("farindex get i a nosuch c");
    assert_int_equal(o.status, 1);
    assert_string_equal(o.out, "a\t1\nc\t3\n");
    assert_string_equal(o.err, "farindex: 1 of 3 keys are not there\n");
    done(&o);
    o = run("farindex get i nosuch a --json");
    assert_int_equal(o.status, 1);
    assert_string_equal(o.out, "[\n {\"key\":\"nosuch\",\"value\":null},\n {\"key\":\"a\",\"value\":\"1\"}\n]\n");
    done(&o);
    o = run("farindex del i a nosuch b --json");
    assert_int_equal(o.status, 1);
    assert_string_equal(o.out, "{\"done\":false,\"deleted\":2}\n");
    done(&o);
    works("farindex scan i", "c\t3\n");
    works("farindex put i n -- -1 && farindex get i n", "-1\n");
}


static void use_pool(const char *suffix) {
    char uri[128];
    snprintf(uri, sizeof(uri), "shm:%s%s?size=64M", path, suffix);
    setenv("FARINDEX_POOL", uri, 1);
}


/* `dump --all` and `load --all` copy all indexes of a pool into another pool, in both formats. A second dump equals
 * the first one byte for byte. */
TEST_WITH(a_whole_pool_is_dumped_and_loaded, fresh, remove_pool) {
    static const char *const formats[] = {"lines", "binary"};
    works("farindex create a dart --options max_key=512 && farindex create 'b c' chime && "
          "farindex create z shard --options partitions=4 && seq 1 500 | sed 's/$/\\tv/' >pairs && "
          "farindex load a pairs && printf '%%kind\\t%%\\n' | farindex load z",
          "load: 500 pairs\nload: 1 pairs\n");
    for (size_t i = 0; i < COUNT_OF(formats); i++) {
        char words[256], other[128];
        use_pool("");
        snprintf(words, sizeof(words), "farindex dump --all first --format %s", formats[i]);
        works(words, "dump: 501 pairs\n");
        use_pool("-2");
        snprintf(words, sizeof(words), "farindex load --all first --format %s --threads 2", formats[i]);
        works(words, "load: 501 pairs\n");
        works("farindex list | cut -f1,2,3", "a\tdart\t500\nb c\tchime\t0\nz\tshard\t1\n");
        works("farindex stat --json | grep -o 'max_key=512\\|partitions=4' | wc -l", "2\n");
        snprintf(words, sizeof(words), "farindex dump --all second --format %s && cmp first second", formats[i]);
        works(words, "dump: 501 pairs\n");
        snprintf(other, sizeof(other), "%s-2", path);
        assert_int_equal(unlink(other), 0);
    }
    use_pool("");
    works("farindex dump --all first", "dump: 501 pairs\n");
    fails("farindex load a first", 3, "another index begins");
    fails("farindex dump --all --plain", 2, "--plain");
    fails("farindex dump a --all f g", 2, "");
    fails("farindex load --all pairs", 3, "does not name an index");
}


/* `load` creates an index with the kind and the options in the header of the dump. */
TEST_WITH(a_dump_keeps_kind_and_options, fresh, remove_pool) {
    works("farindex create a smart --options max_key=300 && farindex put a k v && farindex dump a file",
          "dump: 1 pairs\n");
    works("farindex load new file && farindex stat new | head -n 1 && farindex get new k",
          "load: 1 pairs\nnew: smart, max_key=300\nv\n");
    works("farindex dump a --format binary file && farindex load new2 file --format binary && "
          "farindex stat new2 | head -n 1",
          "dump: 1 pairs\nload: 1 pairs\nnew2: smart, max_key=300\n");
    works("farindex create d dart && farindex dump a | farindex load d && farindex get d k", "load: 1 pairs\nv\n");
    works("farindex dump a --plain >file", "");
    fails("farindex load nosuch file", 1, "no index 'nosuch'");
    write_file("file", "%farindex-dump 3\n", 17);
    fails("farindex load a file", 3, "newer than this program");
    write_file("file", "%colour red\n", 12);
    fails("farindex load a file", 3, "line 1: ");
}


/* `copy` copies all pairs into an index of another kind. A copy that fails leaves no index behind. */
TEST_WITH(copy_changes_a_kind_in_one_step, fresh, remove_pool) {
    works("farindex create a dart --options key_size=4,value_size=1,hashed_nodes=off 2>/dev/null || "
          "farindex create a dart --options key_size=4,value_size=1; "
          "seq 1000 1999 | sed 's/$/\\tv/' | farindex load a",
          "load: 1000 pairs\n");
    const char *kinds[CONFORM_KINDS];
    size_t count = conform_kinds(kinds);
    for (size_t i = 0; i < count; i++) {
        char words[256];
        snprintf(words, sizeof(words),
                 "farindex copy a b --kind %s && farindex stat b | grep -c '%s, .*key_size=4,value_size=1' && "
                 "farindex dump a --plain >x && farindex dump b --plain | sort | cmp - x && farindex drop b",
                 kinds[i], kinds[i]);
        works(words, "copy: 1000 pairs\n1\n");
    }
    works("farindex copy a b --json", "{\"pairs\":1000}\n");
    fails("farindex copy a b", 4, "already");
    fails("farindex copy nosuch c", 1, "nosuch");
    fails("farindex copy a c --kind nosuch", 2, "nosuch");
    fails("farindex copy a c --options value_size=2", 3, "value"); /* the incomplete index was dropped */
    works("farindex list | cut -f1", "a\nb\n");
}


/* `farindex --pool URI COMMAND` is the same as `farindex COMMAND --pool URI`. */
TEST_WITH(the_pool_may_be_named_before_the_command, fresh, remove_pool) {
    works("farindex create i dart && farindex put i k v; export P=$FARINDEX_POOL; unset FARINDEX_POOL; "
          "farindex --pool \"$P\" get i k && farindex --pool=\"$P\" get i k",
          "v\nv\n");
    works("farindex --pool shm:/dev/shm/farindex-no-such get i k --pool \"$FARINDEX_POOL\"",
          "v\n"); /* the last --pool counts */
    fails("farindex --pool", 2, "--pool");
}


/* ---- shell ---- */

/* The shell splits lines into words, runs one command for each line on one pool handle, and ends a script with the
 * first failed command. */
TEST_WITH(a_shell_runs_many_commands_on_one_pool, fresh, remove_pool) {
    works("farindex create i dart", "");
    works("printf '%s\\n' '# words' 'put i a \"b c\"' 'get i a' \"put i 'x y' s\\\\ t\" '' 'scan i' exit 'get i "
          "nosuch' | "
          "farindex shell",
          "b c\na\tb c\nx y\ts t\n");
    /* the script ends after the failed command */
    outcome o = run("printf 'get i a\\nget i nosuch\\nget i a\\n' | farindex shell");
    assert_int_equal(o.status, 1);
    assert_string_equal(o.out, "b c\n");
    done(&o);
    fails("echo 'get i \"a' | farindex shell", 2, "quote");
    fails("echo shell | farindex shell", 2, "cannot start another shell");
    fails("echo nosuch | farindex shell", 2, "nosuch");
    /* All commands share one handle and one session. The survey counts that session and the system session of the
     * handle. */
    works("printf 'put i b 1\\nput i b 2\\nevict --list\\nstat\\n' | farindex shell | grep sessions",
          "  sessions         2\n");
    works("farindex check", "check: 0 problems, 0 leaked bytes\n");
}


/* ---- top ---- */

static json_t *read_top(const char *arguments) {
    outcome o = run("farindex top --json %s", arguments);
    json_t *read = parse_json(o.out);
    if (o.status != 0 || !read)
        fail_msg("%d: %s%s", o.status, o.out, o.err);
    done(&o);
    return read;
}


/* A client loads pairs and then waits for input. `top` shows its operations, although the client takes no further
 * action. */
TEST_WITH(top_shows_the_activity_of_clients, fresh, remove_pool) {
    works("farindex create i dart && farindex create j dart", "");
    char command[512], name[128], line[1000];
    snprintf(name, sizeof(name), "%s/in", folder);
    snprintf(command, sizeof(command), "cd %s && mkfifo in && { %s load i in >/dev/null & }", folder, FARINDEX_COMMAND);
    assert_int_equal(system(command), 0);
    FILE *in = fopen(name, "w");
    assert_non_null(in);
    memset(line, 'v', sizeof(line));
    for (unsigned i = 0; i < 1000; i++) /* more than the reader keeps in its unfinished chunk */
        fprintf(in, "key%u\t%.*s\n", i, (int)sizeof(line), line);
    fflush(in);
    double puts = 0;
    json_t *top = NULL;
    while (puts == 0) {
        json_decref(top);
        top = read_top("--interval 20");
        const json_t *client = json_array_get(json_object_get(top, "clients"), 0);
        puts = client ? number_in(json_object_get(client, "ops"), "put") : 0;
    }
    const json_t *client = json_array_get(json_object_get(top, "clients"), 0),
                 *index = json_array_get(json_object_get(top, "indexes"), 0);
    assert_string_equal(json_string_value(json_object_get(client, "command")), "farindex");
    assert_true(number_in(client, "process") > 1 && number_in(client, "sessions") == 2);
    assert_true(number_in(client, "round_trips") >= puts && number_in(client, "verbs") > puts);
    assert_string_equal(json_string_value(json_object_get(index, "name")), "i");
    assert_true(number_in(json_object_get(index, "ops"), "put") == puts);
    assert_true(number_in(json_object_get(json_array_get(json_object_get(top, "indexes"), 1), "ops"), "put") == 0);
    assert_true(number_in(json_object_get(top, "pool"), "free") > 0 &&
                number_in(json_object_get(top, "pool"), "epoch") > 0);
    json_decref(top);
    works(
        "farindex top --prometheus >metrics; grep -c '^farindex_index_operations_total{index=\"i\",operation=\"put\"} "
        "[1-9]' metrics; grep -v '^#' metrics | grep -vc '^farindex_[a-z_]*\\({[^}]*}\\)\\? [0-9]*$'; true",
        "1\n0\n");
    works("farindex top --count 1 --interval 10 | grep -c ' farindex \\|^i  *dart'", "2\n");
    fails("farindex top --interval 1", 2, "--interval");
    fails("farindex top --json --prometheus", 2, "exclude");
    assert_int_equal(fclose(in), 0);
    works("until farindex drop i 2>/dev/null; do sleep 0.01; done", "");
}


TEST_GROUP(make_folder, remove_folder);
