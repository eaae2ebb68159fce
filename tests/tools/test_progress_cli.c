/* Long commands show their progress on a terminal, and nothing elsewhere. The tests use a pseudo-terminal, and
 * FARINDEX_PROGRESS=0, which makes the line appear at once. */
#define _GNU_SOURCE
#include "shell.h"
#include "test.h"

#include <pty.h>

static char shown[1 << 16]; /* all bytes that the terminal received */


/* Runs a command of farindex with its stderr on a terminal. Returns the exit status. */
static int run_on_terminal(const char *quiet_time, const char *arguments) {
    char line[1024], end[1024];
    size_t used = 0;
    int terminal;
    snprintf(line, sizeof(line), "cd %s; FARINDEX_PROGRESS=%s exec %s %s >out", folder, quiet_time, FARINDEX_COMMAND,
             arguments);
    pid_t pid = forkpty(&terminal, NULL, NULL, NULL);
    assert_true(pid >= 0);
    if (pid == 0) {
        execl("/bin/sh", "sh", "-c", line, (char *)NULL);
        _exit(127);
    }
    /* read fails when the command has closed the terminal */
    for (ssize_t got; (got = read(terminal, end, sizeof(end))) > 0;)
        for (ssize_t i = 0; i < got && used < sizeof(shown) - 1; i++)
            shown[used++] = end[i];
    shown[used] = 0;
    close(terminal);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}


static void assert_shows(const char *arguments, const char *what) {
    assert_int_equal(run_on_terminal("0", arguments), 0);
    if (!strstr(shown, what) || !strstr(shown, " left"))
        print_error("%s showed: %s\n", arguments, shown);
    assert_non_null(strstr(shown, what));
    assert_non_null(strstr(shown, " %, "));
    assert_non_null(strstr(shown, " left"));
    assert_string_equal(shown + strlen(shown) - 4, "\r\033[K"); /* the line is removed at the end */
}


/* On a terminal, `bench` and `torture` show their progress and the remaining time. */
TEST(bench_and_torture_show_the_remaining_time) {
    assert_shows("bench --pool sim: --index toy --records 300 --ops 500 --workload load,c --sweep threads=1,2",
                 "toy: workload load, threads=1");
    assert_shows("bench --processes 2 --index toy --records 300 --ops 500 --workload load,c", "toy: workload load");
    assert_shows("torture --index toy --seeds 1..5 --ops 20", "torture: ");
    assert_shows("torture --index toy --seeds 1..6 --ops 20 --jobs 2", " of 6 seeds, 0 violations");
}


/* On a terminal, commands that read or write whole indexes show their progress and the remaining time. */
TEST_WITH(commands_on_data_show_the_remaining_time, fresh, remove_pool) {
    works("i=0; while [ $i -lt 20000 ]; do echo \"key-$i\tvalue-$i-xxxxxxxxxxxxxxxxxxxxxxxxxxx\"; i=$((i+1)); done "
          ">data; "
          "farindex create fruit dart",
          "");
    assert_shows("load fruit data", "load: ");
    assert_shows("dump fruit dumped", "dump: 19968 pairs, 99 %");
    assert_shows("dump --all dumped", "dump: 19968 pairs, 99 %");
    assert_shows("copy fruit copied --kind smart", "copy: 19968 pairs, 99 %");
    works("farindex drop copied", "");
    assert_shows("stat --exact", "stat: ");
    assert_shows("check", "check: ");
    assert_shows("selftest --tries 100", "selftest: words of 8 bytes never tear, 5");
}


/* A command that ends before the progress line is due shows none, and a command without a terminal on stderr never
 * shows it. */
TEST(short_commands_show_no_progress) {
    assert_int_equal(run_on_terminal("1000s", "bench --pool sim: --index toy --records 300 --ops 500 --workload c"), 0);
    assert_string_equal(shown, "");
    works("FARINDEX_PROGRESS=0 farindex bench --pool sim: --index toy --records 300 --ops 500 --workload c --json - | "
          "wc -l",
          "3\n"); /* stderr is a file, so it stays empty */
}


TEST_GROUP(make_folder, remove_folder);
