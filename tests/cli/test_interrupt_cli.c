/* Commands that are interrupted in the middle, whose output nobody reads any more, or whose pool is taken away: they
 * end with a word, leave nothing half done behind, and the pool as it should be. */
#define _GNU_SOURCE
#include "cli/json.h"
#include "shell.h"

#include <dirent.h>
#include <fcntl.h>
#include <glob.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

typedef struct running {
    pid_t pid;
    int input; /* what it reads comes from here */
} running;


/* Starts the command with these arguments in the test's folder, its output in the files out and err. */
static running start(const char *arguments) {
    char line[1024];
    int ends[2];
    running r;
    snprintf(line, sizeof(line), "cd %s; exec %s %s >out 2>err", folder, FARINDEX_COMMAND, arguments);
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    fflush(NULL);
    r.pid = fork();
    assert_true(r.pid >= 0);
    if (r.pid == 0) {
        dup2(ends[0], STDIN_FILENO);
        execl("/bin/sh", "sh", "-c", line, (char *)NULL);
        _exit(127);
    }
    close(ends[0]);
    r.input = ends[1];
    return r;
}


static void feed(const running *r, const char *text) {
    assert_int_equal(write(r->input, text, strlen(text)), strlen(text));
}


static bool is_asleep(const running *r) {
    char name[64], state = 0;
    snprintf(name, sizeof(name), "/proc/%d/stat", (int)r->pid);
    FILE *file = fopen(name, "r");
    bool known = file && fscanf(file, "%*d %*s %c", &state) == 1;
    if (file)
        fclose(file);
    return known && state == 'S';
}


/* Until it has read all of its input and waits for more. */
static void wait_until_it_wants_more(const running *r) {
    for (int asleep = 0; asleep < 5; usleep(5000)) {
        int unread = 1;
        assert_int_equal(ioctl(r->input, FIONREAD, &unread), 0);
        asleep = unread == 0 && is_asleep(r) ? asleep + 1 : 0;
        assert_int_equal(waitpid(r->pid, NULL, WNOHANG), 0);
    }
}


/* How it ended: an exit status, or a signal as a negative number. */
static int end_of(running *r) {
    int status;
    assert_int_equal(waitpid(r->pid, &status, 0), r->pid);
    close(r->input);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}


static char *text_of(const char *name) {
    char full[128];
    snprintf(full, sizeof(full), "%s/%s", folder, name);
    return read_file(full, NULL);
}


static bool has(const char *name, const char *part) {
    char *text = text_of(name);
    bool found = strstr(text, part) != NULL;
    free(text);
    return found;
}


static void assert_has(const char *name, const char *part) {
    char *text = text_of(name);
    if (!strstr(text, part))
        fail_msg("%s has no '%s': %s", name, part, text);
    free(text);
}


static void assert_pool_is_left_clean(void) {
    works("farindex evict --list", "");
    works("farindex check", "check: 0 problems, 0 leaked bytes\n");
}


/* What a command that ended without its leave had in hand counts as used until somebody sweeps. */
static double used_bytes(void) {
    outcome o = run("farindex stat --json");
    json *all = json_read(o.out);
    assert_non_null(all);
    double used = json_field(json_field(all, "pool"), "used")->number;
    json_free(all);
    done(&o);
    return used;
}


/* ---- load ---- */

static void what_an_interrupted_load_has_read_is_loaded(void **state) {
    (void)state;
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    works("farindex create i dart", "");
    for (size_t i = 0; i < COUNT_OF(signals); i++) {
        running r = start("load i --threads 2");
        feed(&r, "a\t1\nb\t2\nc\t3\n");
        wait_until_it_wants_more(&r);
        assert_int_equal(kill(r.pid, signals[i]), 0);
        assert_int_equal(end_of(&r), -signals[i]);
        assert_has("out", "load: 3 pairs\n");
        assert_has("err", "farindex: interrupted after line 3");
        works("farindex scan i && for k in a b c; do farindex del i $k; done", "a\t1\nb\t2\nc\t3\n");
        assert_pool_is_left_clean();
    }
}


static void a_binary_load_is_interrupted_between_pairs(void **state) {
    (void)state;
    works("farindex create i dart", "");
    running r = start("load i --format binary");
    assert_int_equal(write(r.input, "\1\0\0\0\1\0\0\0kv\1\0\0\0", 14), 14); /* and the half of another */
    wait_until_it_wants_more(&r);
    assert_int_equal(kill(r.pid, SIGINT), 0);
    assert_int_equal(end_of(&r), -SIGINT);
    assert_has("out", "load: 1 pairs\n");
    assert_has("err", "farindex: interrupted after pair 1");
    works("farindex get i k", "v\n");
    assert_pool_is_left_clean();
}


static void an_interrupt_that_is_ignored_stays_so(void **state) {
    (void)state;
    works("farindex create i dart", "");
    struct sigaction ignore = {.sa_handler = SIG_IGN}, before;
    sigaction(SIGHUP, &ignore, &before); /* as nohup does */
    running r = start("load i");
    sigaction(SIGHUP, &before, NULL);
    feed(&r, "a\t1\n");
    wait_until_it_wants_more(&r);
    assert_int_equal(kill(r.pid, SIGHUP), 0);
    feed(&r, "b\t2\n");
    wait_until_it_wants_more(&r);
    close(r.input);
    r.input = -1;
    assert_int_equal(end_of(&r), 0);
    assert_has("out", "load: 2 pairs\n");
}


/* ---- dump ---- */

static bool has_file(const char *pattern) {
    glob_t found;
    bool any = glob(pattern, 0, NULL, &found) == 0;
    if (any)
        globfree(&found);
    return any;
}


/* It is stopped as soon as the file of its own is there; it may have been faster: then again. */
static void an_interrupted_dump_leaves_the_old_one_and_no_half(void **state) {
    (void)state;
    char partial[128];
    snprintf(partial, sizeof(partial), "%s/dump.partial-*", folder);
    works("seq 1 20000 | sed 's/$/\\tvalue/' >all; farindex create i dart && farindex load i all --depth 64 && "
          "echo old >dump",
          "load: 20000 pairs\n");
    bool caught = false;
    for (unsigned tries = 0; !caught && tries < 50; tries++) {
        siginfo_t ended = {0};
        running r = start("dump i dump");
        while (!has_file(partial) && !ended.si_pid)
            waitid(P_PID, (id_t)r.pid, &ended, WEXITED | WNOHANG | WNOWAIT);
        kill(r.pid, SIGSTOP);
        kill(r.pid, SIGINT);
        kill(r.pid, SIGCONT);
        caught = end_of(&r) == -SIGINT && has("err", "farindex: interrupted after");
        if (!caught) /* it was there already */
            works("echo old >dump", "");
    }
    assert_true(caught);
    works("cat dump; ls", "old\nall\ndump\nerr\nout\n");
    assert_pool_is_left_clean();
}


static void a_reader_that_goes_away_does_no_harm(void **state) {
    (void)state;
    works("seq 1 20000 | sed 's/$/\\tvalue/' >all; farindex create i dart && farindex load i all --depth 64",
          "load: 20000 pairs\n");
    double used = used_bytes();
    works("farindex dump i --plain | head -n 1", "1\tvalue\n");
    works("farindex scan i --from 5 | head -n 1", "5\tvalue\n");
    works("farindex scan i --json | head -n 2", "[\n {\"key\":\"1\",\"value\":\"value\"},\n");
    works("farindex get i 1 2 3 | true", "");
    assert_true(used_bytes() <= used);
    assert_pool_is_left_clean();
}


static void drain_until_it_ends(running *r, int pipe, int expected) {
    char buffer[4096];
    siginfo_t ended = {0};
    while (!ended.si_pid) {
        while (read(pipe, buffer, sizeof(buffer)) > 0)
            ;
        assert_int_equal(waitid(P_PID, (id_t)r->pid, &ended, WEXITED | WNOHANG | WNOWAIT), 0);
    }
    assert_int_equal(end_of(r), expected);
}


/* It is in the middle of a scan: it writes into a pipe that nobody empties. */
static void a_scan_that_is_ended_takes_leave_of_its_pool(void **state) {
    (void)state;
    static const int signals[] = {SIGPIPE, SIGTERM, SIGHUP, SIGINT};
    char name[128];
    works("seq 1 20000 | sed 's/$/\\tvalue/' >all; farindex create i dart && farindex load i all --depth 64",
          "load: 20000 pairs\n");
    double used = used_bytes();
    snprintf(name, sizeof(name), "%s/pipe", folder);
    assert_int_equal(mkfifo(name, 0600), 0);
    for (size_t i = 0; i < COUNT_OF(signals); i++) {
        int pipe = open(name, O_RDWR | O_NONBLOCK | O_CLOEXEC), filled = 0;
        assert_true(pipe >= 0);
        running r = start("scan i >pipe 2>err #");
        for (int asleep = 0; asleep < 5; usleep(5000)) {
            assert_int_equal(ioctl(pipe, FIONREAD, &filled), 0);
            asleep = filled > 0 && is_asleep(&r) ? asleep + 1 : 0;
        }
        assert_int_equal(kill(r.pid, signals[i]), 0);
        drain_until_it_ends(&r, pipe, -signals[i]);
        close(pipe);
        works("cat err", "");
        assert_true(used_bytes() <= used);
    }
    assert_pool_is_left_clean();
}


/* ---- bench ---- */

static void wait_for_index(const char *name) {
    char command[256];
    snprintf(command, sizeof(command), "until %s list | grep -q ^%s; do sleep 0.01; done", FARINDEX_COMMAND, name);
    assert_int_equal(system(command), 0);
}


static void interrupt_bench(const char *arguments, const char *index) {
    char line[512], uri[128];
    snprintf(uri, sizeof(uri), "shm:%s?size=64M", path);
    snprintf(line, sizeof(line), "bench --pool '%s' %s", uri, arguments);
    works("farindex create x toy && farindex drop x", ""); /* makes the pool */
    running r = start(line);
    wait_for_index(index);
    assert_int_equal(kill(r.pid, SIGINT), 0);
    assert_int_equal(end_of(&r), -SIGINT);
    assert_has("err", "farindex: interrupted\n");
    works("farindex list", ""); /* its index is gone */
    assert_pool_is_left_clean();
}


static void an_interrupted_bench_takes_its_index_with_it(void **state) {
    (void)state;
    interrupt_bench("--index dart --records 1000 --ops 1000000000000 --workload c", "bench-dart");
    interrupt_bench("--index dart --records 1000 --ops 1000000000000 --workload d --depth 8", "bench-dart");
}


static void so_does_one_with_processes(void **state) {
    (void)state;
    interrupt_bench("--processes 3 --index dart --records 1000 --ops 1000000000000 --workload c", "bench-dart");
}


static bool is_child(const running *r, const char *process) {
    char path[64], state;
    int parent = 0;
    snprintf(path, sizeof(path), "/proc/%.20s/stat", process);
    FILE *file = fopen(path, "r");
    if (!file) /* it has ended */
        return false;
    int fields = fscanf(file, "%*d (%*[^)]) %c %d", &state, &parent);
    fclose(file);
    return fields == 2 && parent == r->pid;
}


static bool has_children(const running *r, unsigned wanted) {
    unsigned children = 0;
    DIR *processes = opendir("/proc");
    assert_non_null(processes);
    for (const struct dirent *entry; (entry = readdir(processes));)
        children += entry->d_name[0] >= '1' && entry->d_name[0] <= '9' && is_child(r, entry->d_name);
    closedir(processes);
    return children >= wanted;
}


static void an_interrupted_bench_takes_its_own_pool_with_it(void **state) {
    (void)state;
    char own[64];
    running r = start("bench --processes 2 --index dart --records 1000 --ops 1000000000000 --workload c");
    snprintf(own, sizeof(own), "/dev/shm/farindex-bench-%d", (int)r.pid);
    while (access(own, F_OK) != 0 || !has_children(&r, 2)) /* its processes are at work, or about to be */
        usleep(1000);
    assert_int_equal(kill(r.pid, SIGTERM), 0);
    assert_int_equal(end_of(&r), -SIGTERM);
    assert_true(access(own, F_OK) != 0);
}


/* ---- The pool is taken away ---- */

static void a_pool_that_is_cut_under_a_command_is_told(void **state) {
    (void)state;
    static const off_t sizes[] = {0, 3 << 20};
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        works("farindex create i dart", "");
        running r = start("load i");
        feed(&r, "a\t1\n");
        wait_until_it_wants_more(&r);
        assert_int_equal(truncate(path, sizes[i]), 0);
        feed(&r, "b\t2\n");
        close(r.input);
        r.input = -1;
        assert_int_equal(end_of(&r), 3);
        assert_has("err", "cut");
        fails("farindex list", 3, sizes[i] ? "cut" : "not a farindex pool");
        assert_int_equal(unlink(path), 0);
    }
}


#define TEST(function) cmocka_unit_test_setup_teardown(function, fresh, remove_pool)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(what_an_interrupted_load_has_read_is_loaded),
        TEST(a_binary_load_is_interrupted_between_pairs),
        TEST(an_interrupt_that_is_ignored_stays_so),
        TEST(an_interrupted_dump_leaves_the_old_one_and_no_half),
        TEST(a_reader_that_goes_away_does_no_harm),
        TEST(a_scan_that_is_ended_takes_leave_of_its_pool),
        TEST(an_interrupted_bench_takes_its_index_with_it),
        TEST(so_does_one_with_processes),
        TEST(an_interrupted_bench_takes_its_own_pool_with_it),
        TEST(a_pool_that_is_cut_under_a_command_is_told),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
