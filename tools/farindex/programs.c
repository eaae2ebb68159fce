/* farindex bench and farindex plot. They start the program farindex-bench, which is installed separately because it
 * links the other stores that it compares with. */
#define _GNU_SOURCE
#include "tools/farindex/data.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define BENCH_PROGRAM "farindex-bench"


/* Replaces this process by farindex-bench. The program in the folder of this executable is preferred to one in PATH.
 * Returns only if it cannot be started. */
static int become_bench(char **argv) {
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - sizeof(BENCH_PROGRAM));
    char *slash = length > 0 ? memrchr(path, '/', (size_t)length) : NULL;
    if (slash) {
        memcpy(slash + 1, BENCH_PROGRAM, sizeof(BENCH_PROGRAM));
        execv(path, argv);
    }
    if (!slash || errno == ENOENT)
        execvp(BENCH_PROGRAM, argv);
    return cli_failed(BENCH_PROGRAM " cannot be started: %s%s", strerror(errno),
                      errno == ENOENT ? " (the Debian package " BENCH_PROGRAM " contains it)" : "");
}


/* Runs farindex-bench in a child process, so that the shell continues afterwards. */
static int run_bench(char **argv) {
    int status;
    fflush(NULL);
    pid_t child = fork();
    if (child < 0)
        return cli_failed("%s: %s", BENCH_PROGRAM, strerror(errno));
    if (child == 0) {
        signal(SIGINT, SIG_DFL);
        _exit(become_bench(argv));
    }
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return CLI_FAILED;
    return WIFEXITED(status) ? WEXITSTATUS(status) : CLI_FAILED;
}


/* Starts farindex-bench with argv[0], "bench" or "plot", as its first argument. */
static int start_bench(int argc, char **argv) {
    char **arguments = calloc((size_t)argc + 2, sizeof(*arguments));
    if (!arguments)
        return cli_failed("no memory for %d arguments", argc);
    arguments[0] = BENCH_PROGRAM;
    memcpy(arguments + 1, argv, (size_t)argc * sizeof(*argv));
    int status = cli_shell_is_running() ? run_bench(arguments) : become_bench(arguments);
    free(arguments);
    return status;
}


int cli_bench(int argc, char **argv) {
    return start_bench(argc, argv);
}


int cli_plot(int argc, char **argv) {
    return start_bench(argc, argv);
}
