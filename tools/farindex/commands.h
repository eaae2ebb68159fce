/* The subcommands of the program `farindex`. main() calls cli_run(), which finds the subcommand in the table of
 * commands.c and calls its function. README.md of this folder lists the file of each. */
#ifndef FAR_TOOLS_FARINDEX_COMMANDS_H
#define FAR_TOOLS_FARINDEX_COMMANDS_H

#include "tools/common/cli.h"
#include "tools/common/json_output.h"

typedef struct cli_command {
    const char *name, *summary;
    int (*run)(int argc, char **argv); /* runs the subcommand and returns the exit status; argv[0] is its name */
} cli_command;

/* Runs the subcommand that argv[0] names, or prints the help. Returns the exit status. In commands.c. */
int cli_run(int argc, char **argv);
/* name of the subcommand at that position of the table; NULL beyond the end */
const char *cli_command_name(size_t position);

/* These two start the program farindex-bench. In programs.c. */
int cli_bench(int argc, char **argv);
int cli_plot(int argc, char **argv);

int cli_check(int argc, char **argv);
int cli_copy(int argc, char **argv);
int cli_create(int argc, char **argv);
int cli_del(int argc, char **argv);
int cli_drop(int argc, char **argv);
int cli_dump(int argc, char **argv);
int cli_evict(int argc, char **argv);
int cli_get(int argc, char **argv);
int cli_kinds(int argc, char **argv);
int cli_list(int argc, char **argv);
int cli_load(int argc, char **argv);
int cli_put(int argc, char **argv);
int cli_scan(int argc, char **argv);
int cli_selftest(int argc, char **argv);
int cli_serve(int argc, char **argv);
int cli_shell(int argc, char **argv);
int cli_stat(int argc, char **argv);
int cli_top(int argc, char **argv);
int cli_torture(int argc, char **argv);

#endif
