/* The commands on data and indexes as users run them: the built program works on a shm pool, and the tests compare its
 * output and its exit status. */
#include "base/random.h"
#include "conform.h"
#include "crew.h"
#include "parse_json.h"
#include "shell.h"
#include "test.h"

#include <signal.h>
#include <unistd.h>


/* `create`, `list` and `drop` work on an index, and report an index that exists already, that does not exist, or that
 * has invalid options. */
TEST_WITH(indexes_are_made_listed_and_dropped, fresh, remove_pool) {
    fails("farindex list", 1, "no pool");
    works("farindex create b toy", "");
    works("farindex create a toy --options slots=64", "");
    works("farindex list | cut -f1,2,3", "a\ttoy\t0\nb\ttoy\t0\n");
    works("farindex list --json | sed 's/,.bytes.*}/}/'",
          "[\n {\"name\":\"a\",\"kind\":\"toy\",\"keys\":0},\n {\"name\":\"b\",\"kind\":\"toy\",\"keys\":0}\n]\n");
    fails("farindex create a toy", 4, "already");
    fails("farindex create c nosuchkind", 2, "nosuchkind");
    fails("farindex create c toy --options slots=3", 2, "slots");
    fails("farindex create c toy --options colour=red", 2, "colour");
    fails("farindex create a/b toy", 2, "name");
    works("farindex drop a", "");
    fails("farindex drop a", 1, "no index 'a'");
    works("farindex list | cut -f1,2", "b\ttoy\n");
}


/* `put`, `get`, `del` and `scan` handle any bytes in keys and values, as text, as hex digits, as JSON, and from
 * stdin. */
TEST_WITH(pairs_are_put_got_deleted_and_scanned, fresh, remove_pool) {
    works("farindex create i toy --options slots=64", "");
    works("farindex put i apple red", "");
    works("farindex get i apple", "red\n");
    works("farindex put i apple green --update && farindex get i apple", "green\n");
    works("farindex put i apple blue && farindex get i apple", "blue\n"); /* a put overwrites the value */
    fails("farindex put i apple red --insert", 4, "already");
    fails("farindex put i pear red --update", 1, "not there");
    fails("farindex get i pear", 1, "not there");
    fails("farindex del i pear", 1, "not there");
    works("farindex put i pear yellow --insert", "");
    works("farindex put i --hex 00ff09 0a00", "");
    works("farindex get i --hex 00FF09", "0a00\n");
    works("farindex put i -- -k -v && farindex get i -- -k", "-v\n");
    works("printf 'a\\nb' | farindex put i stdin - && farindex get i stdin", "a\nb\n");
    works("echo 0102 | farindex put i --hex aa - && farindex get i --hex aa", "0102\n");
    works("farindex put i empty '' && farindex get i empty", "\n");
    works("farindex scan i",
          "\\x00\\xff\\t\t\\n\\x00\n-k\t-v\napple\tblue\nempty\t\npear\tyellow\nstdin\ta\\nb\n\\xaa\t\\x01\\x02\n");
    works("farindex scan i --from apple --to pear", "apple\tblue\nempty\t\n");
    works("farindex scan i --from b --limit 1 --hex --from 62", "656d707479\t\n");
    works("farindex scan i --from apple --limit 1 --json", "[\n {\"key\":\"apple\",\"value\":\"blue\"}\n]\n");
    works("farindex scan i --from apple --to pear --reverse", "empty\t\napple\tblue\n");
    works("farindex scan i --reverse --limit 2", "\\xaa\t\\x01\\x02\nstdin\ta\\nb\n");
    works("farindex scan i --prefix p", "pear\tyellow\n");
    works("farindex scan i --prefix e --from f; farindex scan i --prefix p --to pa; farindex scan i --prefix x", "");
    works("farindex scan i --prefix a --from b; farindex scan i --prefix pe --from a --to q", "pear\tyellow\n");
    works("farindex scan i --prefix ff --hex; farindex scan i --prefix 61 --hex --reverse", "6170706c65\t626c7565\n");
    works("farindex get i --json apple", "{\"key\":\"apple\",\"value\":\"blue\"}\n");
    works("farindex scan i --from zz --json --to zzz", "[\n]\n");
    works("farindex del i apple", "");
    fails("farindex get i apple", 1, "not there");
}


/* Every wrong argument is reported in one line that names it, with exit status 2. An index, a pool or a file that
 * does not exist has its own exit status. */
TEST_WITH(wrong_usage_is_reported_in_one_line, fresh, remove_pool) {
    works("farindex create i toy", "");
    static const char *const wrong[][2] = {
        {"farindex put i k", "missing"},
        {"farindex put i k v w", "unexpected 'w'"},
        {"farindex get i", "missing"},
        {"farindex get i '' ", "empty"},
        {"farindex put i --hex 0 00", "even"},
        {"farindex put i --hex 0g 00", "digits"},
        {"farindex put i a b --insert --update", "exclude"},
        {"farindex scan", "missing"},
        {"farindex scan i --limit x", "limit"},
        {"farindex scan i --prefix ''", "KEY: is empty"},
        {"farindex dump i --format xml", "xml"},
        {"farindex load i --threads 0", "threads"},
        {"farindex load i --depth 1000", "depth"},
        {"farindex evict", "either"},
        {"farindex evict x", "'x'"},
        {"farindex list extra", "unexpected"},
        {"farindex list --colour", "--colour"},
        {"farindex list --pool local:64M", "would end"},
        {"farindex list --pool nowhere:64M", "nowhere"},
        {"farindex list --pool shm:relative", "absolute"},
        {"FARINDEX_POOL= farindex list", "FARINDEX_POOL"},
    };
    for (size_t i = 0; i < COUNT_OF(wrong); i++)
        fails(wrong[i][0], 2, wrong[i][1]);
    fails("farindex get nosuch k", 1, "no index 'nosuch'");
    fails("farindex list --pool shm:/dev/shm/farindex-no-such-pool", 1, "no pool");
    fails("farindex load i nosuchfile", 3, "nosuchfile");
    static const char *const commands[] = {"create", "drop", "list", "put",  "get",   "del",
                                           "scan",   "load", "dump", "stat", "check", "evict"};
    for (size_t i = 0; i < COUNT_OF(commands); i++) {
        outcome o = run("farindex %s --help", commands[i]);
        assert_int_equal(o.status, 0);
        assert_non_null(strstr(o.out, "--pool"));
        done(&o);
    }
}


/* Writes pairs of random bytes in the binary format, in key order. Returns the number of bytes. */
static size_t make_pairs(uint8_t *to, unsigned count, uint64_t seed) {
    far_random random;
    size_t used = 0;
    far_random_seed(&random, seed);
    for (unsigned i = 0; i < count; i++) {
        uint32_t lengths[2] = {4 + (uint32_t)far_random_below(&random, 30), (uint32_t)far_random_below(&random, 200)};
        memcpy(to + used, lengths, 8);
        used += 8;
        uint32_t unique = __builtin_bswap32(i);
        memcpy(to + used, &unique, 4);
        for (uint32_t k = 4; k < lengths[0] + lengths[1]; k++)
            to[used + k] =
                (uint8_t)(far_random_chance(&random, 1, 3) ? (uint8_t) "\t\n\\x\0\r"[far_random_below(&random, 6)]
                                                           : (uint8_t)far_random_next(&random));
        used += lengths[0] + lengths[1];
    }
    return used;
}


static void assert_same_files(const char *a, const char *b) {
    outcome o = run("cmp %s %s", a, b);
    if (o.status != 0)
        print_error("%s%s", o.out, o.err);
    assert_int_equal(o.status, 0);
    done(&o);
}


/* Pairs of random bytes are the same after `load` and `dump`, in both formats and with several loading threads. */
TEST_WITH(any_bytes_survive_load_and_dump, fresh, remove_pool) {
    enum { PAIRS = 1000 };
    uint8_t *bytes = malloc(PAIRS * 256);
    size_t size = make_pairs(bytes, PAIRS, 1);
    write_file("pairs", bytes, size);
    free(bytes);
    works("farindex create a toy --options slots=256 && farindex create b toy --options slots=64,locks=on", "");
    works("farindex load a pairs --format binary", "load: 1000 pairs\n");
    works("farindex dump a again --format binary --plain", "dump: 1000 pairs\n");
    assert_same_files("pairs", "again"); /* the pairs were made in key order */
    works("farindex dump a lines --plain && test $(wc -l <lines) = 1000", "dump: 1000 pairs\n");
    works("farindex load b lines --threads 3 --depth 50 --json",
          "{\"pairs\":1000}\n"); /* the index has other options */
    works("farindex dump b --format binary --plain - >over && farindex dump a --plain >lines2", "");
    assert_same_files("pairs", "over");
    assert_same_files("lines", "lines2");
    works("farindex check", "check: 0 problems, 0 leaked bytes\n");
    works("farindex load b <lines && farindex dump b --format binary --plain over",
          "load: 1000 pairs\ndump: 1000 pairs\n"); /* loading the same pairs again changes nothing */
    assert_same_files("pairs", "over");
}


/* The pairs of an index survive `dump` and `load` from each kind to the next. The last index has key order, so its
 * dump equals the original file. */
TEST_WITH(an_index_changes_its_kind_by_dump_and_load, fresh, remove_pool) {
    const char *kinds[CONFORM_KINDS];
    size_t count = conform_kinds(kinds);
    uint8_t *bytes = malloc(300 * 256);
    size_t size = make_pairs(bytes, 300, 2);
    write_file("pairs", bytes, size);
    free(bytes);
    const char *last = NULL;
    for (size_t i = 0; i < count; i++) {
        outcome o =
            last ? run("farindex create %s %s && farindex dump %s | farindex load %s", kinds[i], kinds[i], last,
                       kinds[i])
                 : run("farindex create %s %s && farindex load %s pairs --format binary", kinds[i], kinds[i], kinds[i]);
        if (o.status != 0 || strcmp(o.out, "load: 300 pairs\n") != 0)
            fail_msg("%s: %d: %s%s", kinds[i], o.status, o.out, o.err);
        done(&o);
        last = kinds[i];
    }
    outcome o = run("farindex create end toy && farindex dump %s | farindex load end && farindex dump end --format "
                    "binary --plain over",
                    last);
    assert_string_equal(o.out, "load: 300 pairs\ndump: 300 pairs\n");
    done(&o);
    assert_same_files("pairs", "over");
}


/* Client A loads an index that grows to several times its size, while client B dumps it. Every dump must contain all
 * pairs that existed before the load, and no pair that was never put. */
static void dump_while_it_grows(const char *options) {
    enum { FIRST = 3000, ALL = 60000 };
    char *lines = malloc(ALL * 32);
    size_t used = 0;
    for (unsigned i = 0; i < ALL; i++)
        used += (size_t)sprintf(lines + used, "%08x\tvalue%03u\n", i * 2654435761u, i % 1000);
    write_file("all", lines, used);
    free(lines);
    outcome o = run("sort all >all.sorted; head -n %d all >first; sort first >first.sorted; "
                    "farindex create s shard --options %s && farindex load s first && { farindex load s all & "
                    "for i in 1 2 3 4; do farindex dump s --plain | sort -u >dump$i || exit 1; done; wait; }",
                    FIRST, options);
    if (o.status != 0 || strcmp(o.out, "load: 3000 pairs\nload: 60000 pairs\n") != 0)
        fail_msg("%s%s", o.out, o.err);
    done(&o);
    works("for i in 1 2 3 4; do comm -23 first.sorted dump$i; comm -13 all.sorted dump$i; done", "");
    works("farindex dump s --plain | sort -u | cmp - all.sorted", "");
}


/* The dump of a growing index of kind shard contains all pairs of fixed size that existed before. */
TEST_WITH(an_index_without_order_is_dumped_whole_while_it_grows, fresh, remove_pool) {
    dump_while_it_grows("key_size=8,value_size=8");
}


/* The dump of a growing index of kind shard contains all pairs of any size that existed before. The index stores such
 * pairs outside of its slots. */
TEST_WITH(an_index_with_values_of_any_size_is_dumped_whole, fresh, remove_pool) {
    dump_while_it_grows("max_key=256");
}


/* With several threads and many operations in flight, the last pair of each key in the input is the one that stays.
 * Fails if the loader submits an operation on a key that is still in flight (is_in_flight in load.c). */
TEST_WITH(of_pairs_with_one_key_the_last_wins, fresh, remove_pool) {
    char *lines = malloc(3000 * 16);
    size_t used = 0;
    for (unsigned i = 0; i < 3000; i++)
        used += (size_t)sprintf(lines + used, "k%u\t%u\n", i % 7, i);
    write_file("lines", lines, used);
    free(lines);
    works("farindex create i toy --options slots=64", "");
    works("farindex load i lines --threads 4 --depth 100", "load: 3000 pairs\n");
    works("farindex scan i", "k0\t2996\nk1\t2997\nk2\t2998\nk3\t2999\nk4\t2993\nk5\t2994\nk6\t2995\n");
}


/* A bad line stops the load and is named with its number and the reason. All pairs before it are loaded, and no pair
 * after it. */
TEST_WITH(a_bad_line_stops_the_load_after_all_earlier_pairs, fresh, remove_pool) {
    static const char *const bad[][2] = {
        {"no tab", "no TAB"},  {"", "no TAB"},       {"a\tb\tc", "second TAB"}, {"\tvalue", "empty"},
        {"a\\q\tb", "escape"}, {"a\tb\\", "escape"}, {"a\tb\\x0", "escape"},    {"a\tb\\xg0", "escape"},
    };
    works("farindex create i toy --options slots=64", "");
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        char lines[256];
        int length = snprintf(lines, sizeof(lines), "one%zu\t1\ntwo%zu\t2\n%s\nthree%zu\t3\n", i, i, bad[i][0], i);
        write_file("lines", lines, (size_t)length);
        outcome o = run(
            "farindex load i lines --threads 2; status=$?; farindex get i one%zu; farindex get i two%zu; exit $status",
            i, i);
        assert_int_equal(o.status, 3);
        assert_string_equal(o.out, "load: 2 pairs\n1\n2\n");
        if (!strstr(o.err, "line 3: ") || !strstr(o.err, bad[i][1]))
            fail_msg("line '%s': %s", bad[i][0], o.err);
        done(&o);
        o = run("farindex get i three%zu", i);
        assert_int_equal(o.status, 1);
        done(&o);
    }
    write_file("binary", "\1\0\0\0\1\0\0\0kv\1\0\0\0\5\0\0\0kv", 20);
    fails("farindex load i binary --format binary", 3, "pair 2: ");
    works("farindex get i k", "v\n");
    write_file("binary", "\0\0\0\0\1\0\0\0v", 9);
    fails("farindex load i binary --format binary", 3, "pair 1: at byte 0: the key is empty");
    write_file("binary", "\1\0\0\0\377\377\377\377v", 9);
    fails("farindex load i binary --format binary", 3, "pair 1: at byte 0: a length");
    works("farindex create fixed toy --options key_size=4,value_size=1", "");
    write_file("lines", "aaaa\tx\nbb\ty\n", 12);
    fails("farindex load fixed lines", 3, "line 2: ");
    works("farindex get fixed aaaa", "x\n");
    write_file("lines", "last\tline", 9); /* the last line has no newline */
    works("farindex load i lines && farindex get i last", "load: 1 pairs\nline\n");
}


static double field(const json_t *object, const char *name) {
    const json_t *found = json_object_get(object, name);
    assert_non_null(found);
    assert_true(json_is_number(found));
    return json_number_value(found);
}


/* In the JSON of `stat --exact`, the used, retired, free and leaked bytes add up to the size of the pool, and the
 * figures of an index equal those of the pairs put into it. */
TEST_WITH(stat_adds_up, fresh, remove_pool) {
    works("farindex create i toy --options slots=64 && farindex put i key value && farindex put i k2 v2 && farindex "
          "create j toy",
          "");
    outcome o = run("farindex stat --json --exact");
    assert_int_equal(o.status, 0);
    json_t *all = parse_json(o.out);
    assert_non_null(all);
    const json_t *pool = json_object_get(all, "pool"), *first = json_array_get(json_object_get(all, "indexes"), 0);
    assert_true(field(pool, "total") == 64 << 20);
    assert_true(field(pool, "used") + field(pool, "retired") + field(pool, "free") + field(pool, "leaked") ==
                field(pool, "total"));
    assert_true(field(pool, "memory_nodes") == 1 && field(pool, "sessions") == 2 && field(pool, "epoch") > 0);
    assert_int_equal(json_array_size(json_object_get(all, "indexes")), 2);
    assert_string_equal(json_string_value(json_object_get(first, "name")), "i");
    assert_string_equal(json_string_value(json_object_get(first, "kind")), "toy");
    assert_string_equal(json_string_value(json_object_get(first, "options")), "slots=64");
    assert_true(field(first, "keys") == 2 && field(first, "key_bytes") == 5 && field(first, "value_bytes") == 7);
    assert_true(field(first, "pool_bytes") == field(first, "pool_index_bytes") + 12);
    json_decref(all);
    done(&o);
    o = run("farindex stat i --json --exact");
    all = parse_json(o.out);
    assert_non_null(all);
    assert_true(field(all, "keys") == 2);
    json_decref(all);
    done(&o);
    o = run("farindex stat");
    assert_non_null(strstr(o.out, "pool\n"));
    assert_non_null(strstr(o.out, "i: toy, slots=64\n"));
    done(&o);
    works("farindex create h shard --options partitions=4,bits=2 && farindex put h key value", "");
    o = run("farindex stat h --json --exact");
    all = parse_json(o.out);
    assert_non_null(all);
    assert_true(field(all, "load_factor") > 0 && field(all, "load_factor") < 0.01);
    assert_true(json_number_value(json_array_get(json_object_get(all, "keys_by_level"), 0)) == 1);
    json_decref(all);
    done(&o);
    fails("farindex stat nosuch", 1, "nosuch");
}


/* Clients are killed while they work. `check --repair` frees all memory that they leaked, and a second check finds no
 * problem. */
TEST_WITH(check_repairs_leaks_of_killed_clients, fresh, remove_pool) {
    crew c;
    char uri[96];
    snprintf(uri, sizeof(uri), "shm:%s?size=64M", path);
    crew_up(&c, uri, "toy", "slots=64,locks=on", 2, 1000000);
    for (unsigned round = 0; round < 10; round++) {
        for (unsigned i = 0; i < 2; i++)
            crew_start(&c, i);
        for (unsigned i = 0; i < 2; i++)
            crew_await(&c, i, 20);
        for (unsigned i = 0; i < 2; i++)
            crew_kill(&c, i);
    }
    outcome o = run("farindex check --repair");
    unsigned long long problems = 1, leaked = 0, repaired = 0;
    assert_int_equal(
        sscanf(o.out, "check: %llu problems, %llu leaked bytes, %llu repaired\n", &problems, &leaked, &repaired), 3);
    assert_int_equal(o.status, 0);
    assert_int_equal(problems, 0);
    assert_int_equal(leaked, repaired);
    done(&o);
    works("farindex check", "check: 0 problems, 0 leaked bytes\n");
    works("farindex check hot", "check: 0 problems, 0 leaked bytes\n");
    works("farindex check --json", "{\"problems\":[],\"leaked\":0}\n");
    works("farindex check --json --repair", "{\"problems\":[],\"leaked\":0,\"repaired\":0,\"left\":0}\n");
    crew_down(&c);
}


/* Client A is stopped with SIGSTOP. `evict --list` names it, and `evict` ends its process. */
TEST_WITH(a_stopped_client_is_evicted, fresh, remove_pool) {
    crew c;
    char uri[96], expected[64];
    unsigned client = 0;
    int pid = 0;
    snprintf(uri, sizeof(uri), "shm:%s?size=64M", path);
    crew_up(&c, uri, "toy", NULL, 2, 1000000);
    c.pace_ns = 500000;
    works("farindex evict --list", "");
    crew_start(&c, 0);
    crew_await(&c, 0, 5);
    assert_int_equal(kill(c.pids[0], SIGSTOP), 0);
    outcome o = run("farindex evict --list");
    assert_int_equal(sscanf(o.out, "%u\t%d\t", &client, &pid), 2);
    assert_int_equal(pid, c.pids[0]);
    assert_int_equal(o.status, 0);
    done(&o);
    o = run("farindex evict %u", client);
    snprintf(expected, sizeof(expected), "evict: client %u, process %d\n", client, pid);
    assert_string_equal(o.out, expected);
    done(&o);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    works("farindex evict --list", "");
    fails("farindex evict 16000", 1, "16000");
    works("farindex drop hot", ""); /* a failed client does not count as having the index open */
    crew_down(&c);
}


/* While a client changes other keys, a dump contains no key twice, and contains all keys that exist throughout. */
TEST_WITH(a_dump_concurrent_with_writers_follows_the_scan_rule, fresh, remove_pool) {
    crew c;
    char uri[96];
    snprintf(uri, sizeof(uri), "shm:%s?size=64M", path);
    crew_up(&c, uri, "toy", "slots=64", 1, 1000000);
    /* keys that the crew never changes */
    works("printf 'zz1\\ta\\nzz2\\tb\\nzz3\\tc\\n' | farindex load hot", "load: 3 pairs\n");
    c.pace_ns = 100000;
    c.no_scans = true; /* the scans of the crew would report the keys zz1 to zz3 */
    crew_start(&c, 0);
    for (unsigned i = 0; i < 20; i++) {
        works("farindex dump hot --plain >lines; cut -f1 lines >keys; sort -u keys | cmp - keys; grep ^zz lines",
              "zz1\ta\nzz2\tb\nzz3\tc\n");
    }
    crew_finish(&c);
    crew_down(&c);
}


/* A dump that cannot be written fails with a message, and an older file of that name stays complete. Fails if
 * dump_to_file (dump.c) writes to the final file directly. */
TEST_WITH(a_dump_that_cannot_be_written_fails_and_keeps_the_old_one, fresh, remove_pool) {
    works("farindex create i toy && farindex put i k v && farindex dump i old --plain", "dump: 1 pairs\n");
    fails("farindex dump i /nosuchfolder/file", 3, "nosuchfolder");
    fails("farindex dump i >/dev/full", 3, "written");
    fails("farindex dump nosuch old", 1, "nosuch");
    works("cat old; ls", "k\tv\nerr\nold\nout\n");
}


/* A dump replaces an older file and keeps its access rights. Files with similar names stay unchanged. */
TEST_WITH(a_dump_takes_the_place_and_the_rights_of_the_old_one, fresh, remove_pool) {
    works("farindex create i toy && farindex put i k v; echo mine >old.partial; echo old >old; chmod 640 old", "");
    works("farindex dump i old --plain && stat -c %a old && cat old old.partial; ls",
          "dump: 1 pairs\n640\nk\tv\nmine\nerr\nold\nold.partial\nout\n");
    works("umask 027; farindex dump i new && stat -c %a new", "dump: 1 pairs\n600\n"); /* a dump may contain secrets */
}


/* The index refuses a key that is too long. With one operation in flight, no pair after it is loaded. */
TEST_WITH(pairs_after_a_refused_one_are_not_loaded, fresh, remove_pool) {
    char lines[512];
    memset(lines, 'x', sizeof(lines));
    memcpy(lines, "one\t1\n", 6);
    int length = 306 + sprintf(lines + 306, "\tlong\nthree\t3\n");
    write_file("lines", lines, (size_t)length);
    works("farindex create i dart", "");
    fails("farindex load i lines --depth 1", 3, "line 2: ");
    works("farindex scan i", "one\t1\n");
}


/* When the pool is full, `load` stops and names the line. All pairs before it are loaded, their number is right, and
 * the pool has no problems. */
TEST_WITH(a_full_pool_ends_a_load_after_all_earlier_pairs, fresh, remove_pool) {
    char *lines = malloc(12000 * 1016);
    unsigned long long bad = 0, loaded = 0, keys = 0;
    size_t used = 0;
    for (unsigned i = 0; i < 12000; i++)
        used += (size_t)sprintf(lines + used, "key%05u\t%01000u\n", i, i);
    write_file("lines", lines, used);
    free(lines);
    outcome o = run("export FARINDEX_POOL='shm:%s?size=8M'; farindex create i dart && farindex load i lines; "
                    "status=$?; farindex stat i | grep keys; farindex check && exit $status",
                    path);
    assert_int_equal(o.status, 3);
    remove_pool_creation_messages(o.err);
    assert_int_equal(sscanf(o.err, "farindex: line %llu: out of memory", &bad), 1);
    assert_int_equal(sscanf(o.out, "load: %llu pairs\n keys %llu\ncheck: 0", &loaded, &keys), 2);
    /* operations that are in flight with the failed one may succeed */
    assert_true(loaded >= bad - 1 && loaded < 12000 && keys == loaded);
    assert_non_null(strstr(o.out, "check: 0 problems, 0 leaked bytes\n"));
    done(&o);
}


/* `COMMAND --help`, `help COMMAND` and `COMMAND -h` print the same text, and a missing command is reported. */
TEST_WITH(every_form_of_help_prints_the_same, fresh, remove_pool) {
    works("farindex put --help >a; farindex help put >b; farindex put -h >c; farindex put i k -h >d; cmp a b && cmp a "
          "c && "
          "cmp a d && grep -c usage: a",
          "1\n");
    works("farindex --help >a; farindex help >b; farindex -h >c; cmp a b && cmp a c && grep -c usage: a", "1\n");
    fails("farindex help nosuch", 2, "nosuch");
    fails("farindex nosuch", 2, "nosuch");
    fails("farindex", 2, "which command");
    fails("farindex --pool=shm:/nowhere", 2, "which command");
    fails("farindex --pool shm:/nowhere", 2, "which command");
    fails("farindex --pool", 2, "--pool needs a value");
}


/* A command that cannot write its output, because the device is full, fails with a message and exit status 3. Fails
 * without the check of stdout in cli_end (interrupt.c) and cli_pool_close (pool.c). */
TEST_WITH(output_that_cannot_be_written_is_a_failure, fresh, remove_pool) {
    static const char *const commands[] = {
        "--help",
        "--version",
        "kinds",
        "kinds --json",
        "list",
        "stat",
        "scan i",
        "get i k",
        "check",
        "dump i",
        "put -h",
        "bench --index toy --records 10 --ops 10 --workload c",
        "bench --index toy --records 10 --ops 10 --workload c --json -",
        "torture --index toy --seeds 1",
    };
    works("farindex create i toy --options slots=64 && farindex put i k v", "");
    for (size_t i = 0; i < COUNT_OF(commands); i++) {
        char words[256];
        snprintf(words, sizeof(words), "farindex %s >/dev/full", commands[i]);
        fails(words, 3, "could not be written");
    }
    outcome o = run("farindex torture --index toy --seeds 1 --history /dev/full");
    assert_int_equal(o.status, 3);
    assert_non_null(strstr(o.err, "No space"));
    done(&o);
}


/* The JSON of every command can be parsed, even if a key and a value contain all 256 bytes. */
TEST_WITH(every_json_output_is_valid, fresh, remove_pool) {
    uint8_t pair[8 + 512] = {0, 1, 0, 0, 0, 1, 0, 0};
    for (unsigned i = 0; i < 512; i++)
        pair[8 + i] = (uint8_t)i;
    write_file("pairs", pair, sizeof(pair));
    static const char *const commands[] = {"create i dart",  "load i pairs --format binary",
                                           "list",           "stat",
                                           "stat i",         "scan i",
                                           "scan i --hex",   "scan i --from z",
                                           "dump i lines",   "check",
                                           "check i",        "check --repair",
                                           "put i k v",      "get i k",
                                           "get i 6b --hex", "del i k",
                                           "evict --list",   "kinds",
                                           "drop i"};
    for (size_t i = 0; i < COUNT_OF(commands); i++) {
        outcome o = run("farindex %s --json", commands[i]);
        json_t *read = parse_json(o.out);
        if (o.status != 0 || !read)
            fail_msg("%s: %d: %s%s", commands[i], o.status, o.out, o.err);
        json_decref(read);
        done(&o);
    }
    fails("farindex create s shard && farindex scan s --json", 3, "no order");
    works("farindex scan s --json 2>/dev/null || true", "");
    fails("farindex scan s --limit 0", 2, "limit");
}


TEST_GROUP(make_folder, remove_folder);
