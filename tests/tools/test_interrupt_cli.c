/* Commands end in three ways here: a signal interrupts them, the reader of their output closes the pipe, or their pool
 * file is truncated. They must print a message, leave nothing incomplete, and leave the pool in order. */
#define _GNU_SOURCE
#include "parse_json.h"
#include "shell.h"
#include "test.h"

#include <dirent.h>
#include <fcntl.h>
#include <glob.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

typedef struct running {
    pid_t pid;
    int input; /* write end of the pipe that is the input of the command */
} running;


/* Starts the command with these arguments in the folder of the test. Its output is written to the files out and err. */
static running start_command(const char *arguments) {
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


static void write_input(const running *r, const char *text) {
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


/* Waits until the command has read its whole input and blocks for more. */
static void wait_until_input_is_read(const running *r) {
    for (int asleep = 0; asleep < 5; usleep(5000)) {
        int unread = 1;
        assert_int_equal(ioctl(r->input, FIONREAD, &unread), 0);
        asleep = unread == 0 && is_asleep(r) ? asleep + 1 : 0;
        assert_int_equal(waitpid(r->pid, NULL, WNOHANG), 0);
    }
}


/* Waits for the command to end. Returns its exit status, or the signal that ended it as a negative number. */
static int wait_for_end(running *r) {
    int status;
    assert_int_equal(waitpid(r->pid, &status, 0), r->pid);
    close(r->input);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}


static char *read_output(const char *name) {
    char full[128];
    snprintf(full, sizeof(full), "%s/%s", folder, name);
    return read_file(full, NULL);
}


static bool output_contains(const char *name, const char *part) {
    char *text = read_output(name);
    bool found = strstr(text, part) != NULL;
    free(text);
    return found;
}


static void assert_output_contains(const char *name, const char *part) {
    char *text = read_output(name);
    if (!strstr(text, part))
        fail_msg("%s has no '%s': %s", name, part, text);
    free(text);
}


static void assert_pool_is_left_clean(void) {
    works("farindex evict --list", "");
    works("farindex check", "check: 0 problems, 0 leaked bytes\n");
}


/* Returns the used memory of the pool. Memory that a failed client had reserved counts as used until a collection
 * reclaims it. */
static double used_bytes(void) {
    outcome o = run("farindex stat --json");
    json_t *all = parse_json(o.out);
    assert_non_null(all);
    double used = json_number_value(json_object_get(json_object_get(all, "pool"), "used"));
    json_decref(all);
    done(&o);
    return used;
}


/* ---- load ---- */

/* `load` has read three pairs and waits for more when a signal arrives. It loads the three pairs, prints their
 * number, closes the pool, and ends by the signal. */
TEST_WITH(an_interrupted_load_keeps_the_pairs_it_has_read, fresh, remove_pool) {
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    works("farindex create i dart", "");
    for (size_t i = 0; i < COUNT_OF(signals); i++) {
        running r = start_command("load i --threads 2");
        write_input(&r, "a\t1\nb\t2\nc\t3\n");
        wait_until_input_is_read(&r);
        assert_int_equal(kill(r.pid, signals[i]), 0);
        assert_int_equal(wait_for_end(&r), -signals[i]);
        assert_output_contains("out", "load: 3 pairs\n");
        assert_output_contains("err", "farindex: interrupted after line 3");
        works("farindex scan i && for k in a b c; do farindex del i $k; done", "a\t1\nb\t2\nc\t3\n");
        assert_pool_is_left_clean();
    }
}


/* `load` has read one pair and half of the next one when a signal arrives. It loads the complete pair only. */
TEST_WITH(a_binary_load_is_interrupted_between_pairs, fresh, remove_pool) {
    works("farindex create i dart", "");
    running r = start_command("load i --format binary");
    /* one pair, and the first half of another */
    assert_int_equal(write(r.input, "\1\0\0\0\1\0\0\0kv\1\0\0\0", 14), 14);
    wait_until_input_is_read(&r);
    assert_int_equal(kill(r.pid, SIGINT), 0);
    assert_int_equal(wait_for_end(&r), -SIGINT);
    assert_output_contains("out", "load: 1 pairs\n");
    assert_output_contains("err", "farindex: interrupted after pair 1");
    works("farindex get i k", "v\n");
    assert_pool_is_left_clean();
}


/* A command that was started with SIGHUP ignored, as by nohup, does not end at SIGHUP. Fails without the comparison
 * with SIG_IGN in catch_signal (interrupt.c). */
TEST_WITH(an_ignored_signal_stays_ignored, fresh, remove_pool) {
    works("farindex create i dart", "");
    struct sigaction ignore = {.sa_handler = SIG_IGN}, before;
    sigaction(SIGHUP, &ignore, &before); /* nohup ignores the signal in the same way */
    running r = start_command("load i");
    sigaction(SIGHUP, &before, NULL);
    write_input(&r, "a\t1\n");
    wait_until_input_is_read(&r);
    assert_int_equal(kill(r.pid, SIGHUP), 0);
    write_input(&r, "b\t2\n");
    wait_until_input_is_read(&r);
    close(r.input);
    r.input = -1;
    assert_int_equal(wait_for_end(&r), 0);
    assert_output_contains("out", "load: 2 pairs\n");
}


/* ---- dump ---- */

static bool has_file(const char *pattern) {
    glob_t found;
    bool any = glob(pattern, 0, NULL, &found) == 0;
    if (any)
        globfree(&found);
    return any;
}


/* `dump` is interrupted while its temporary file exists. The old file stays, and the temporary one is removed. The
 * test repeats if the dump ends before the signal. */
TEST_WITH(an_interrupted_dump_keeps_the_old_file, fresh, remove_pool) {
    char partial[128];
    snprintf(partial, sizeof(partial), "%s/dump.partial-*", folder);
    works("seq 1 20000 | sed 's/$/\\tvalue/' >all; farindex create i dart && farindex load i all --depth 64 && "
          "echo old >dump",
          "load: 20000 pairs\n");
    bool caught = false;
    for (unsigned tries = 0; !caught && tries < 50; tries++) {
        siginfo_t ended = {0};
        running r = start_command("dump i dump");
        while (!has_file(partial) && !ended.si_pid)
            waitid(P_PID, (id_t)r.pid, &ended, WEXITED | WNOHANG | WNOWAIT);
        kill(r.pid, SIGSTOP);
        kill(r.pid, SIGINT);
        kill(r.pid, SIGCONT);
        caught = wait_for_end(&r) == -SIGINT && output_contains("err", "farindex: interrupted after");
        if (!caught) /* The dump had finished before the signal, so the old file is written again for the next try. */
            works("echo old >dump", "");
    }
    assert_true(caught);
    works("cat dump; ls", "old\nall\ndump\nerr\nout\n");
    assert_pool_is_left_clean();
}


/* The reader of the output, `head`, closes the pipe early. The command ends without a message, and it closes its
 * pool, so that no memory stays reserved. */
TEST_WITH(a_closed_output_pipe_does_no_harm, fresh, remove_pool) {
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
    assert_int_equal(wait_for_end(r), expected);
}


/* A scan blocks because its output pipe is full when a signal arrives. It ends by that signal, and closes its pool
 * first. */
TEST_WITH(a_scan_ended_by_a_signal_closes_its_pool, fresh, remove_pool) {
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
        running r = start_command("scan i >pipe 2>err #");
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
    works("farindex create x toy && farindex drop x", ""); /* creates the pool */
    running r = start_command(line);
    wait_for_index(index);
    assert_int_equal(kill(r.pid, SIGINT), 0);
    assert_int_equal(wait_for_end(&r), -SIGINT);
    assert_output_contains("err", "farindex: interrupted\n");
    works("farindex list", ""); /* the index of the benchmark has been dropped */
    assert_pool_is_left_clean();
}


/* An interrupted benchmark drops its index and leaves the pool without problems, with one operation and with eight in
 * flight. */
TEST_WITH(an_interrupted_bench_drops_its_index, fresh, remove_pool) {
    interrupt_bench("--index dart --records 1000 --ops 1000000000000 --workload c", "bench-dart");
    interrupt_bench("--index dart --records 1000 --ops 1000000000000 --workload d --depth 8", "bench-dart");
}


/* An interrupted benchmark with three processes drops its index and leaves the pool without problems. The parent
 * process must end the other processes. */
TEST_WITH(an_interrupted_bench_with_processes_drops_its_index, fresh, remove_pool) {
    interrupt_bench("--processes 3 --index dart --records 1000 --ops 1000000000000 --workload c", "bench-dart");
}


/* A killed benchmark leaves its index. The next one removes this index and its own. An index that was kept is not
 * removed. */
TEST_WITH(the_next_bench_removes_the_index_of_a_killed_one, fresh, remove_pool) {
    char line[512];
    snprintf(line, sizeof(line), "bench --pool 'shm:%s?size=64M' --index toy --records 100 --workload c ", path);
    size_t used = strlen(line);
    works("farindex create x toy && farindex drop x", ""); /* creates the pool */
    snprintf(line + used, sizeof(line) - used, "--ops 1000000000000");
    running r = start_command(line);
    wait_for_index("bench-toy-temporary");
    assert_int_equal(kill(r.pid, SIGKILL), 0);
    assert_int_equal(wait_for_end(&r), -SIGKILL);
    works("farindex list | cut -f1", "bench-toy-temporary\n");
    snprintf(line + used, sizeof(line) - used, "--ops 100 --keep");
    r = start_command(line);
    assert_int_equal(wait_for_end(&r), 0);
    works("farindex list | cut -f1", "bench-toy\nbench-toy-temporary\n");
    snprintf(line + used, sizeof(line) - used, "--ops 100");
    r = start_command(line);
    assert_int_equal(wait_for_end(&r), 0);
    assert_output_contains("err", "removed the index 'bench-toy-temporary' of a benchmark that was killed");
    works("farindex list | cut -f1", "bench-toy\n");
    snprintf(line + used, sizeof(line) - used, "--ops 100 --keep");
    r = start_command(line);
    assert_int_equal(wait_for_end(&r), 3);
    assert_output_contains("err", "'farindex drop bench-toy' removes");
}


/* A killed benchmark with processes leaves its own pool. The next one removes this file. */
TEST_WITH(the_next_bench_removes_the_pool_of_a_killed_one, fresh, remove_pool) {
    static const char arguments[] = "bench --processes 2 --index toy --records 100 --workload c --ops ";
    char line[256], left[64];
    snprintf(line, sizeof(line), "%s1000000000000", arguments);
    running r = start_command(line);
    snprintf(left, sizeof(left), "/dev/shm/farindex-bench-%d", (int)r.pid);
    while (access(left, F_OK) < 0)
        usleep(1000);
    assert_int_equal(kill(r.pid, SIGKILL), 0);
    assert_int_equal(wait_for_end(&r), -SIGKILL);
    assert_int_equal(access(left, F_OK), 0);
    snprintf(line, sizeof(line), "%s100", arguments);
    r = start_command(line);
    assert_int_equal(wait_for_end(&r), 0);
    assert_int_equal(access(left, F_OK), -1);
    assert_output_contains("err", left);
}


static bool is_child(const running *r, const char *process) {
    char path[64], state;
    int parent = 0;
    snprintf(path, sizeof(path), "/proc/%.20s/stat", process);
    FILE *file = fopen(path, "r");
    if (!file) /* the process has ended */
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


/* A benchmark that created its own pool file removes that file when it is interrupted. */
TEST_WITH(an_interrupted_bench_removes_its_own_pool, fresh, remove_pool) {
    char own[64];
    running r = start_command("bench --processes 2 --index dart --records 1000 --ops 1000000000000 --workload c");
    snprintf(own, sizeof(own), "/dev/shm/farindex-bench-%d", (int)r.pid);
    while (access(own, F_OK) != 0 || !has_children(&r, 2)) /* wait until the processes of the benchmark are running */
        usleep(1000);
    assert_int_equal(kill(r.pid, SIGTERM), 0);
    assert_int_equal(wait_for_end(&r), -SIGTERM);
    assert_true(access(own, F_OK) != 0);
}


/* ---- Truncated pools ---- */

/* The pool file is truncated while `load` uses it. The command ends with a message and exit status 3. Fails without
 * cli_handle_file_signals (interrupt.c). */
TEST_WITH(a_pool_truncated_under_a_command_is_reported, fresh, remove_pool) {
    static const off_t sizes[] = {0, 3 << 20};
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        works("farindex create i dart", "");
        running r = start_command("load i");
        write_input(&r, "a\t1\n");
        wait_until_input_is_read(&r);
        assert_int_equal(truncate(path, sizes[i]), 0);
        write_input(&r, "b\t2\n");
        close(r.input);
        r.input = -1;
        assert_int_equal(wait_for_end(&r), 3);
        assert_output_contains("err", "truncated");
        fails("farindex list", 3, sizes[i] ? "truncated" : "not a farindex pool");
        assert_int_equal(unlink(path), 0);
    }
}


TEST_GROUP(make_folder, remove_folder);
