/* What the operator of a shared pool relies on: reading makes nothing, exact bytes, JSON that is JSON, errors as objects,
 * statuses that tell not found from failed. */
#include "cli/json.h"
#include "pool/handle.h"
#include "pool/refuted.h"
#include "shell.h"


static void only_commands_that_make_pools_do_and_say_so(void **state) {
    (void)state;
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
    assert_non_null(strstr(o.err, "farindex: made the pool shm:"));
    done(&o);
    o = run("farindex create j dart");
    assert_string_equal(o.err, "");
    done(&o);
    unlink(path);
    o = run("farindex bench --pool \"$FARINDEX_POOL\" --index toy --records 100 --ops 100 --workload c --json -");
    assert_int_equal(o.status, 0);
    assert_non_null(strstr(o.err, "farindex: made the pool shm:"));
    done(&o);
    unlink(path);
    o = run("printf 'k\\tv\\n' | farindex load i");
    assert_int_equal(o.status, 1); /* there is no such index */
    assert_non_null(strstr(o.err, "farindex: made the pool shm:"));
    done(&o);
}


static int record(far_task *t, void *arg) {
    unsigned recorded;
    return far_refuted_record(t, *(unsigned *)arg, &recorded);
}


/* As a self-test that saw it broken. */
static void refute(unsigned refuted) {
    far_pool *pool;
    far_pool_options options = {.must_exist = 1, .ignore_refuted = 1};
    assert_int_equal(far_pool_open(getenv("FARINDEX_POOL"), &options, &pool), 0);
    assert_int_equal(far_session_call(pool->team.own, FAR_STATS_OTHER, false, record, &refuted), 0);
    far_pool_close(pool);
}


/* Also where nobody else can open the pool any more. */
static void what_was_refuted_is_told_until_it_is_forgotten(void **state) {
    (void)state;
    works("farindex create i dart && farindex stat | grep refuted", "  refuted          nothing\n");
    refute(FAR_REFUTED_READS_IN_ORDER);
    works("farindex stat | grep refuted", "  refuted          reads_in_order\n");
    works("farindex stat --json | grep -o '\"refuted\":[^}]*'", "\"refuted\":\"reads_in_order\"\n");
    works("farindex selftest --tries 1 | grep -c 'refuted, now or earlier: reads_in_order: clients of this pool do'",
          "1\n");
    refute(FAR_REFUTED_RULE);
    fails("farindex stat", 3, "a self-test has refuted a rule that every fabric must keep");
    fails("farindex dump --all", 3, "--ignore-refuted");
    works("farindex dump --all --ignore-refuted | grep ^%index", "%index i\n");
    works("farindex selftest --tries 1 --json | grep -c '\"recorded\": true'", "15\n");
    works("! farindex selftest --tries 1 --forget | grep refuted", "");
    works("farindex stat | grep refuted", "  refuted          nothing\n");
}


static void raw_bytes_are_exact(void **state) {
    (void)state;
    works("farindex create i dart && printf 'a\\0b\\n\\377' >value && farindex put i k - <value && "
          "farindex get i k --raw | cmp - value",
          "");
    works("farindex put i e '' && farindex get i e --raw | wc -c", "0\n");
    fails("farindex get i k --raw --json", 2, "--raw");
}


static void json_is_utf8_or_says_base64(void **state) {
    (void)state;
    works("farindex create i dart", "");
    works("farindex put i 'gr\303\274n' '\342\202\254 \"\\' && farindex get i --json 'gr\303\274n'",
          "{\"key\":\"gr\303\274n\",\"value\":\"\342\202\254 \\\"\\\\\"}\n");
    static const char *const pairs[][2] = {
        {"ff", "/w=="},           {"fffe", "//4="}, {"c0af", "wK8="}, /* written too long */
        {"eda080", "7aCA"},                                           /* half of a pair */
        {"f4908080", "9JCAgA=="},                                     /* beyond the last character */
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


/* One object on stderr, nothing on stdout, and the status in both places. */
static void assert_error_object(const char *arguments, int status, const char *word) {
    outcome o = run("farindex %s", arguments);
    json *read = json_read(o.err);
    const json *error = read ? json_field(read, "error") : NULL, *number = read ? json_field(read, "status") : NULL;
    if (o.status != status || *o.out || !error || !strstr(error->text, word) || !number || number->number != status)
        fail_msg("%s: %d\n%s\n%s", arguments, o.status, o.out, o.err);
    json_free(read);
    done(&o);
}


static void an_error_is_one_object_where_json_is_asked_for(void **state) {
    (void)state;
    assert_error_object("list --json", 1, "no pool");
    works("farindex create i dart && farindex create s shard && farindex put i k v", "");
    assert_error_object("get i nosuch --json", 1, "not there");
    assert_error_object("get nosuch k --json", 1, "no index");
    assert_error_object("put i k v --insert --json", 3, "already");
    assert_error_object("put i nosuch v --update --json", 1, "not there");
    assert_error_object("drop nosuch --json", 1, "no index");
    assert_error_object("scan s --json", 3, "no order");
    assert_error_object("create c nosuchkind --json", 2, "there are: chime, dart, dolphin, shard, smart)");
    assert_error_object("stat nosuch --json", 1, "nosuch");
    assert_error_object("evict 16000 --json", 1, "16000");
    assert_error_object("list --nosuch --json", 2, "nosuch"); /* also what stands before --json */
    assert_error_object("load i nosuchfile --json", 3, "nosuchfile");
}


static void kinds_lists_options_one_by_one(void **state) {
    (void)state;
    outcome o = run("farindex kinds --json");
    json *kinds = json_read(o.out);
    assert_non_null(kinds);
    assert_true(kinds->count >= 5);
    unsigned numbers = 0, flags = 0;
    for (size_t i = 0; i < kinds->count; i++) {
        const json *options = json_field(json_item(kinds, i), "options");
        assert_int_equal(options->type, JSON_ARRAY);
        for (size_t k = 0; k < options->count; k++) {
            const json *option = json_item(options, k), *type = json_field(option, "type");
            assert_non_null(json_field(option, "name"));
            assert_non_null(json_field(option, "help"));
            const json *initial = json_field(option, "default");
            assert_non_null(initial);
            numbers += strcmp(type->text, "number") == 0 && initial->type == JSON_NUMBER;
            flags += strcmp(type->text, "bool") == 0 && (initial->type == JSON_TRUE || initial->type == JSON_FALSE);
        }
    }
    assert_true(numbers > 10 && flags > 3);
    json_free(kinds);
    done(&o);
}


static double number_in(const json *object, const char *name) {
    const json *found = json_field(object, name);
    assert_non_null(found);
    assert_int_equal(found->type, JSON_NUMBER);
    return found->number;
}


/* Keys that were there before, that were put twice, changed and removed, of every kind. */
static void stat_knows_from_counters_what_a_walk_counts(void **state) {
    (void)state;
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
        json *counted = json_read(quick.out), *walked = json_read(exact.out);
        assert_non_null(counted);
        assert_non_null(walked);
        if (number_in(counted, "keys") != 398 || number_in(walked, "keys") != 398 ||
            number_in(counted, "pool_bytes") < number_in(walked, "pool_bytes"))
            fail_msg("%s: %s%s", kinds[i], quick.out, exact.out);
        assert_int_equal(json_field(counted, "key_bytes")->type, JSON_NULL);
        assert_true(number_in(walked, "key_bytes") > 1000);
        json_free(counted);
        json_free(walked);
        done(&quick);
        done(&exact);
        works("farindex list | cut -f1,3 && farindex drop k", "k\t398\n");
    }
}


/* A loader that waits for its input has the index open. */
static void who_has_an_index_open_is_named(void **state) {
    (void)state;
    works("farindex create i dart && farindex create j dart", "");
    outcome o =
        run("mkfifo in; farindex load i in & exec 3>in; printf 'a\\tb\\n' >&3; "
            "until farindex evict --list | grep -q \"$(uname -n).i$\"; do sleep 0.01; done; farindex evict --list; "
            "farindex evict --list --json >list; farindex drop i; echo $?; farindex drop j; exec 3>&-; wait");
    int client = 0, process = 0;
    char command[64] = "", host[64] = "", index[64] = "", expected[128];
    assert_int_equal(sscanf(o.out, "%d\t%d\t%63s\t%63s\t%63s", &client, &process, command, host, index), 5);
    assert_string_equal(index, "i");
    assert_string_equal(command, "farindex");
    gethostname(expected, sizeof(expected));
    assert_string_equal(host, expected);
    const char *last = strstr(o.out, "\n3\n");
    assert_non_null(last); /* the status of the refused drop */
    snprintf(expected, sizeof(expected), "'i' is open somewhere: process %d (farindex on %s", process, host);
    if (!strstr(o.err, expected))
        fail_msg("%s\n%s", o.out, o.err);
    done(&o);
    o = run("cat list");
    json *list = json_read(o.out);
    assert_non_null(list);
    assert_true(number_in(json_item(list, 0), "process") == process);
    assert_string_equal(json_item(json_field(json_item(list, 0), "indexes"), 0)->text, "i");
    json_free(list);
    done(&o);
    works("farindex list | cut -f1", "i\n"); /* j was open nowhere */
}


static void many_keys_are_got_and_deleted_at_once(void **state) {
    (void)state;
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


/* Into another pool and back, in both formats: byte for byte the same, the empty index too. */
static void a_whole_pool_is_dumped_and_loaded(void **state) {
    (void)state;
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
        works("farindex stat --json | grep -c 'max_key=512\\|partitions=4'", "2\n");
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
    fails("farindex load --all pairs", 3, "does not say which index");
}


static void a_dump_keeps_kind_and_options(void **state) {
    (void)state;
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
    write_file("file", "%farindex-dump 2\n", 17);
    fails("farindex load a file", 3, "another version");
    write_file("file", "%colour red\n", 12);
    fails("farindex load a file", 3, "line 1: ");
}


static void copy_changes_a_kind_in_one_step(void **state) {
    (void)state;
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
    fails("farindex copy a b", 3, "already");
    fails("farindex copy nosuch c", 1, "nosuch");
    fails("farindex copy a c --kind nosuch", 2, "nosuch");
    fails("farindex copy a c --options value_size=2", 3, "value"); /* and what was begun is gone */
    works("farindex list | cut -f1", "a\nb\n");
}


static void the_pool_may_be_named_before_the_command(void **state) {
    (void)state;
    works("farindex create i dart && farindex put i k v; export P=$FARINDEX_POOL; unset FARINDEX_POOL; "
          "farindex --pool \"$P\" get i k && farindex --pool=\"$P\" get i k",
          "v\nv\n");
    works("farindex --pool shm:/dev/shm/farindex-no-such get i k --pool \"$FARINDEX_POOL\"",
          "v\n"); /* the last counts */
    fails("farindex --pool", 2, "--pool");
}


/* ---- shell ---- */

static void a_shell_runs_many_commands_on_one_pool(void **state) {
    (void)state;
    works("farindex create i dart", "");
    works("printf '%s\\n' '# words' 'put i a \"b c\"' 'get i a' \"put i 'x y' s\\\\ t\" '' 'scan i' exit 'get i "
          "nosuch' | "
          "farindex shell",
          "b c\na\tb c\nx y\ts t\n");
    outcome o = run("printf 'get i a\\nget i nosuch\\nget i a\\n' | farindex shell"); /* a script ends there */
    assert_int_equal(o.status, 1);
    assert_string_equal(o.out, "b c\n");
    done(&o);
    fails("echo 'get i \"a' | farindex shell", 2, "quote");
    fails("echo shell | farindex shell", 2, "already");
    fails("echo nosuch | farindex shell", 2, "nosuch");
    /* One handle and one session for all: whoever looks sees two beside its own. */
    works("printf 'put i b 1\\nput i b 2\\nevict --list\\nstat\\n' | farindex shell | grep sessions",
          "  sessions         2\n");
    works("farindex check", "check: 0 problems, 0 leaked bytes\n");
}


/* ---- top ---- */

static json *look_at_top(const char *arguments) {
    outcome o = run("farindex top --json %s", arguments);
    json *read = json_read(o.out);
    if (o.status != 0 || !read)
        fail_msg("%d: %s%s", o.status, o.out, o.err);
    done(&o);
    return read;
}


/* A loader that waits for more: what it did is told without its doing anything for it. */
static void top_shows_who_does_what(void **state) {
    (void)state;
    works("farindex create i dart && farindex create j dart", "");
    char command[512], name[128], line[1000];
    snprintf(name, sizeof(name), "%s/in", folder);
    snprintf(command, sizeof(command), "cd %s && mkfifo in && { %s load i in >/dev/null & }", folder, FARINDEX_COMMAND);
    assert_int_equal(system(command), 0);
    FILE *in = fopen(name, "w");
    assert_non_null(in);
    memset(line, 'v', sizeof(line));
    for (unsigned i = 0; i < 1000; i++) /* more than it reads ahead of its loader */
        fprintf(in, "key%u\t%.*s\n", i, (int)sizeof(line), line);
    fflush(in);
    double puts = 0;
    json *top = NULL;
    while (puts == 0) {
        json_free(top);
        top = look_at_top("--interval 20");
        const json *client = json_item(json_field(top, "clients"), 0);
        puts = client ? number_in(json_field(client, "ops"), "put") : 0;
    }
    const json *client = json_item(json_field(top, "clients"), 0), *index = json_item(json_field(top, "indexes"), 0);
    assert_string_equal(json_field(client, "command")->text, "farindex");
    assert_true(number_in(client, "process") > 1 && number_in(client, "sessions") == 2);
    assert_true(number_in(client, "round_trips") >= puts && number_in(client, "verbs") > puts);
    assert_string_equal(json_field(index, "name")->text, "i");
    assert_true(number_in(json_field(index, "ops"), "put") == puts);
    assert_true(number_in(json_field(json_item(json_field(top, "indexes"), 1), "ops"), "put") == 0);
    assert_true(number_in(json_field(top, "pool"), "free") > 0 && number_in(json_field(top, "pool"), "epoch") > 0);
    json_free(top);
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


#define TEST(function) cmocka_unit_test_setup_teardown(function, fresh, remove_pool)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(only_commands_that_make_pools_do_and_say_so),
        TEST(what_was_refuted_is_told_until_it_is_forgotten),
        TEST(raw_bytes_are_exact),
        TEST(json_is_utf8_or_says_base64),
        TEST(an_error_is_one_object_where_json_is_asked_for),
        TEST(kinds_lists_options_one_by_one),
        TEST(stat_knows_from_counters_what_a_walk_counts),
        TEST(who_has_an_index_open_is_named),
        TEST(many_keys_are_got_and_deleted_at_once),
        TEST(a_whole_pool_is_dumped_and_loaded),
        TEST(a_dump_keeps_kind_and_options),
        TEST(copy_changes_a_kind_in_one_step),
        TEST(a_shell_runs_many_commands_on_one_pool),
        TEST(top_shows_who_does_what),
        TEST(the_pool_may_be_named_before_the_command),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
