/* Messages and exit statuses of the command that help a user: hints for mistyped words, statuses that scripts can
 * distinguish, and output that is safe on a terminal. */
#define _GNU_SOURCE
#include "fabric/shm/shm.h"
#include "parse_json.h"
#include "pool/catalog/layout.h"
#include "shell.h"
#include "test.h"

#include <fcntl.h>
#include <pty.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <xxhash.h>


/* A mistyped command, option, kind or option of a kind is reported with the name that was probably meant. */
TEST_WITH(similar_names_are_suggested, fresh, remove_pool) {
    works("farindex create i dart", "");
    static const char *const wrong[][2] = {
        {"farindex gett i k", "unknown command 'gett'; did you mean 'get'?"},
        {"farindex sacn i", "unknown command 'sacn'; did you mean 'scan'?"},
        {"farindex xyzzy", "unknown command 'xyzzy'; 'farindex help' lists the commands"},
        {"farindex list --jsn", "unknown option '--jsn'; did you mean '--json'?"},
        {"farindex scan i --limt=3", "unknown option '--limt=3'; did you mean '--limit'?"},
        {"farindex list --colour", "unknown option '--colour'; see --help"},
        {"farindex create j darrt", "there are: chime, dart, dolphin, shard, smart); did you mean 'dart'?"},
        {"farindex create j xyzzy", "there are: chime, dart, dolphin, shard, smart)\n"},
        {"farindex create j chime --options vale_size=8", "has no such option; did you mean 'value_size'?"},
        {"farindex torture --index dratt", "there are: chime, dart, dolphin, shard, smart); did you mean 'dart'?"},
        {"farindex bench --index foo", "there are: chime, dart, dolphin, shard, smart)\n"},
        {"farindex bench --index solphin", "did you mean 'dolphin'?"},
        {"farindex bench --index chime --options vale_size=8", "'vale_size'; did you mean 'value_size'?"},
        {"farindex bench --record 5", "did you mean '--records'?"},
    };
    for (size_t i = 0; i < COUNT_OF(wrong); i++)
        fails(wrong[i][0], 2, wrong[i][1]);
}


/* An argument that begins with '-' is explained, and follows '--'. */
TEST_WITH(arguments_that_begin_with_a_dash_are_explained, fresh, remove_pool) {
    works("farindex create i toy", "");
    fails("farindex put i KEY -1", 2, "'-1'; see --help, or write '--' before arguments that begin with '-'");
    fails("farindex put i --zzzzzzzz v", 2, "write '--' before arguments that begin with '-'");
    works("farindex put i -- KEY -1", "");
    works("farindex get i KEY", "-1\n");
}


/* Scripts can distinguish that something exists already (4) from other failures. */
TEST_WITH(what_exists_has_its_own_exit_status, fresh, remove_pool) {
    works("farindex create i toy", "");
    works("farindex put i k v --insert", "");
    fails("farindex put i k v --insert", 4, "exists already");
    fails("farindex create i toy", 4, "exists already");
    fails("farindex put i k v --insert --json", 4, "\"status\":4");
}


/* Commands that cannot open the pool, because other clients hold every session, report a conflict (5). Here the test
 * holds the locks of all sessions. */
TEST_WITH(a_pool_without_a_free_session_is_a_conflict, fresh, remove_pool) {
    static const char *const commands[] = {"list", "scan i", "get i k", "stat", "check", "check i", "top --count 1"};
    works("farindex create i toy", "");
    int file = open(path, O_RDWR | O_CLOEXEC);
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = SHM_LOCKS_AT, .l_len = SHM_IDS};
    assert_true(file >= 0);
    assert_int_equal(fcntl(file, F_OFD_SETLK, &all), 0);
    for (size_t i = 0; i < COUNT_OF(commands); i++) {
        char line[64];
        snprintf(line, sizeof(line), "farindex %s", commands[i]);
        fails(line, 5, "farindex: ");
    }
    close(file);
    works("farindex list | cut -f1-3", "i\ttoy\t0\n");
}


/* A client has one line in `evict --list`, and the same number in `top`, although it has several sessions. */
TEST_WITH(a_client_has_one_number, fresh, remove_pool) {
    works("farindex create i toy", "");
    outcome o = run("mkfifo in; farindex load i in --threads 3 & exec 3>in; printf 'a\\tb\\n' >&3; "
                    "until farindex evict --list | grep -q \"$(uname -n).i$\"; do sleep 0.01; done; "
                    "farindex evict --list | cut -f1,2; farindex top --count 1 --interval 10 | "
                    "sed -n 's/^\\([0-9]*\\) *\\([0-9]*\\) *farindex .*/\\1\\t\\2/p'; exec 3>&-; wait");
    char line[2][64] = {"", ""}, more[64];
    assert_int_equal(sscanf(o.out, "%63[^\n]\n%63[^\n]\n%63s", line[0], line[1], more), 3);
    assert_string_equal(line[0], line[1]);
    assert_string_equal(more, "load:"); /* the result of the load, after the two lines */
    done(&o);
}


/* Runs a command with its output on a terminal, and returns what the terminal received. */
static char *run_on_terminal(const char *arguments) {
    static char shown[4096];
    char line[1024];
    size_t used = 0;
    int terminal, status;
    snprintf(line, sizeof(line), "cd %s; exec %s %s", folder, FARINDEX_COMMAND, arguments);
    pid_t pid = forkpty(&terminal, NULL, NULL, NULL);
    assert_true(pid >= 0);
    if (pid == 0) {
        execl("/bin/sh", "sh", "-c", line, (char *)NULL);
        _exit(127);
    }
    for (ssize_t got; (got = read(terminal, shown + used, sizeof(shown) - 1 - used)) > 0;)
        used += (size_t)got;
    shown[used] = 0;
    close(terminal);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return shown;
}


/* Keys and values cannot control the terminal: bytes that are no UTF-8, and C0 and C1 control characters, are escaped in
 * lines, and in a single value on a terminal. A pipe receives the bytes of a single value. */
TEST_WITH(keys_and_values_do_not_control_the_terminal, fresh, remove_pool) {
    works("farindex create i dart", "");
    works("farindex put i --hex 6bc29b ff1b5bc29d7ec3a9", "");
    works("farindex scan i", "k\\xc2\\x9b\t\\xff\\x1b[\\xc2\\x9d~\xc3\xa9\n");
    works("farindex get i \"$(printf 'k\\302\\233')\" | od -An -tx1", " ff 1b 5b c2 9d 7e c3 a9 0a\n");
    works("farindex dump i dumped >/dev/null && farindex create j dart && farindex load j dumped >/dev/null && "
          "farindex get j --hex "
          "6bc29b",
          "ff1b5bc29d7ec3a9\n");
    assert_string_equal(run_on_terminal("get i --hex 6bc29b"), "ff1b5bc29d7ec3a9\r\n");
    assert_string_equal(run_on_terminal("get i \"$(printf 'k\\302\\233')\""), "\\xff\\x1b[\\xc2\\x9d~\xc3\xa9\r\n");
}


/* Stores the kind in the record of the index `i`, with the right hash. */
static void store_kind(const char kind[16]) {
    struct stat status;
    int file = open(path, O_RDWR | O_CLOEXEC);
    assert_true(file >= 0);
    assert_int_equal(fstat(file, &status), 0);
    uint64_t *words = mmap(NULL, (size_t)status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    assert_true(words != MAP_FAILED);
    unsigned stored = 0;
    for (size_t i = 0; i < ((size_t)status.st_size - sizeof(far_index_record)) / 8; i++) {
        far_index_record *record = (far_index_record *)&words[i];
        if (record->magic != FAR_RECORD_MAGIC || strcmp(record->name, "i") != 0)
            continue;
        memcpy(record->kind, kind, sizeof(record->kind));
        record->check = XXH3_64bits(&record->uid, offsetof(far_index_record, check) - offsetof(far_index_record, uid));
        stored++;
    }
    assert_int_equal(stored, 1);
    munmap(words, (size_t)status.st_size);
    close(file);
}


/* A kind that a writer of the pool has stored cannot control the terminal, or break a line or the encoding of an output.
 */
TEST_WITH(kinds_do_not_control_the_terminal, fresh, remove_pool) {
    works("farindex create i toy", "");
    store_kind("a\n\033\xff\0\0\0\0\0\0\0\0\0\0\0");
    works("farindex list | cut -f1-3", "i\ta???\t0\n");
    works("farindex stat | grep -cF 'a??"
          "?'",
          "1\n");
    works("farindex top --prometheus | iconv -f UTF-8 -t UTF-8 | grep -c 'kind=\"a???\"'", "2\n");
    fails("farindex get i k", 3,
          "'a??"
          "?'");
    fails("farindex dump i", 3,
          "'a??"
          "?'");
}


/* A limit of the file size is a message and an exit status, and no death by SIGXFSZ. */
TEST_WITH(a_limit_of_the_file_size_is_reported, fresh, remove_pool) {
    works("farindex create i toy", "");
    fails("ulimit -f 1; farindex create i toy --pool 'shm:/dev/shm/farindex-absent?size=8M'", 3, "ulimit -f");
    works("head -c 4000 /dev/zero | tr '\\0' v | farindex put i k -", "");
    fails("(ulimit -f 1; farindex get i k >out2)", 3, "could not be written");
}


TEST_GROUP(make_folder, remove_folder);
