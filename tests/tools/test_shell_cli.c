/* farindex shell on a terminal: lines are completed and recalled. The tests use a pseudo-terminal. */
#define _GNU_SOURCE
#include "left_out.h"
#include "shell.h"
#include "test.h"

#include <pty.h>

#define PROMPT "farindex> "

static int terminal;
static char shown[1 << 16]; /* bytes received from the terminal that wait_for has not consumed yet */
static size_t used;


/* Reads from the terminal until it has shown the text, and discards everything up to the end of the text. */
static void wait_for(const char *what) {
    const char *found;
    while (!(found = strstr(shown, what))) {
        ssize_t got = used < sizeof(shown) - 1 ? read(terminal, shown + used, sizeof(shown) - 1 - used) : 0;
        if (got <= 0)
            fail_msg("it ended, and showed no '%s': %s", what, shown);
        used += (size_t)got;
        shown[used] = 0;
    }
    found += strlen(what);
    used -= (size_t)(found - shown);
    memmove(shown, found, used + 1);
}


/* Types a line (a TAB completes a word) and waits for the answer and for the next prompt. The terminal also echoes the
 * typed line, so an answer must follow a newline. */
static void type_line(const char *line, const char *answer) {
    char expected[256];
    assert_int_equal(write(terminal, line, strlen(line)), strlen(line));
    snprintf(expected, sizeof(expected), "\r\n%s", answer);
    wait_for(expected);
    if (strcmp(answer, PROMPT) != 0)
        wait_for(PROMPT);
}


static pid_t start_shell(void) {
    pid_t pid = forkpty(&terminal, NULL, NULL, NULL);
    assert_true(pid >= 0);
    if (pid == 0) {
        char line[512];
        setenv("TERM", "vt100", 1);
        setenv("FARINDEX_HISTORY", "history", 1);
        snprintf(line, sizeof(line), "cd %s; exec %s shell", folder, FARINDEX_COMMAND);
        execl("/bin/sh", "sh", "-c", line, (char *)NULL);
        _exit(127);
    }
    used = 0;
    shown[0] = 0;
    wait_for(PROMPT);
    return pid;
}


static void leave_shell(pid_t pid) {
    int status;
    assert_int_equal(write(terminal, "exit\n", 5), 5);
    while (read(terminal, shown, sizeof(shown)) > 0) /* read fails when the shell has closed the terminal */
        ;
    close(terminal);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}


/* A TAB completes commands, names of indexes, options and kinds. */
TEST_WITH(lines_are_completed, fresh, remove_pool) {
    works("farindex create fruit dart && farindex put fruit pear green", "");
    pid_t pid = start_shell();
    type_line("ge\tfr\tpear\n", "green");                     /* completes a command and an index */
    type_line("cop\tfr\tnew --ki\tdol\t\n", "copy: 1 pairs"); /* completes an option and a kind */
    type_line("stat new --ex\t\n", "new: dolphin");
    type_line("create other sha\t\n", PROMPT);
    type_line("get other nosuch\n", "farindex: the key is not there");
    type_line("help sc\t\n", "usage: farindex scan");
    type_line("help\n", "farindex: indexes on far memory");
    type_line("nosuch\n", "farindex: unknown command 'nosuch'; 'farindex help' lists the commands");
    leave_shell(pid);
}


/* Control-P recalls the previous line, also in a new shell, which reads the history file. */
TEST_WITH(lines_are_recalled, fresh, remove_pool) {
    works("farindex create fruit dart && farindex put fruit pear green", "");
    pid_t pid = start_shell();
    type_line("get fruit pear\n", "green");
    type_line("\020\n", "green"); /* control-P recalls the previous line */
    leave_shell(pid);
    pid = start_shell();
    type_line("\020\020\n", "green"); /* the line before "exit" of the previous shell, from the history file */
    leave_shell(pid);
}


/* --json applies to one command: the error of the next command is text again. */
TEST_WITH(an_option_ends_with_its_command, fresh, remove_pool) {
    works("farindex create fruit dart", "");
    pid_t pid = start_shell();
    type_line("get fruit nosuch --json\n", "{\"error\":\"the key is not there\",\"status\":1}");
    type_line("get fruit nosuch\n", "farindex: the key is not there");
    leave_shell(pid);
}


TEST_ARGUMENTS(argc, argv) {
#ifndef FARINDEX_EDIT
    left_out("lines of the shell that are completed and recalled", "built without libedit");
    return 0;
#endif
    if (argc > 1)
        test_set_pattern(argv[1]);
    return TEST_CONTINUE;
}


TEST_GROUP(make_folder, remove_folder);
