/* farindex shell on a terminal, by hand: lines are completed and recalled. The terminal is a pseudo-terminal. */
#define _GNU_SOURCE
#include "left_out.h"
#include "shell.h"

#include <pty.h>

#define PROMPT "farindex> "

static int terminal;
static char shown[1 << 16]; /* and not yet waited for */
static size_t used;


/* Reads until it shows that, and forgets it. */
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


/* Types a line (a TAB completes), and waits for what is printed, and for the next prompt. The terminal also shows what was
 * typed and what became of it: only what comes behind a newline is an answer. */
static void type(const char *line, const char *answer) {
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
    while (read(terminal, shown, sizeof(shown)) > 0) /* it fails when the other side is closed */
        ;
    close(terminal);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}


static void lines_are_completed(void **state) {
    (void)state;
    works("farindex create fruit dart && farindex put fruit pear green", "");
    pid_t pid = start_shell();
    type("ge\tfr\tpear\n", "green");                     /* commands, indexes */
    type("cop\tfr\tnew --ki\tdol\t\n", "copy: 1 pairs"); /* options, kinds */
    type("stat new --ex\t\n", "new: dolphin");
    type("create other sha\t\n", PROMPT);
    type("get other nosuch\n", "farindex: the key is not there");
    type("help sc\t\n", "usage: farindex scan");
    type("help\n", "farindex: indexes on far memory");
    type("nosuch\n", "farindex: unknown command 'nosuch'; 'farindex help' lists them");
    leave_shell(pid);
}


static void lines_are_recalled(void **state) {
    (void)state;
    works("farindex create fruit dart && farindex put fruit pear green", "");
    pid_t pid = start_shell();
    type("get fruit pear\n", "green");
    type("\020\n", "green"); /* control-P: the one before */
    leave_shell(pid);
    pid = start_shell();
    type("\020\020\n", "green"); /* before the exit, in another life */
    leave_shell(pid);
}


/* An error as JSON is for the command that asked for it. */
static void an_option_ends_with_its_command(void **state) {
    (void)state;
    works("farindex create fruit dart", "");
    pid_t pid = start_shell();
    type("get fruit nosuch --json\n", "{\"error\":\"the key is not there\",\"status\":1}");
    type("get fruit nosuch\n", "farindex: the key is not there");
    leave_shell(pid);
}


int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(lines_are_completed, fresh, remove_pool),
        cmocka_unit_test_setup_teardown(lines_are_recalled, fresh, remove_pool),
        cmocka_unit_test_setup_teardown(an_option_ends_with_its_command, fresh, remove_pool),
    };
#ifndef FARINDEX_EDIT
    left_out("lines of the shell that are completed and recalled", "built without libedit");
    return 0;
#endif
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
