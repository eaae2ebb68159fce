/* The table of the subcommands, and the help that lists them. cli_run() calls the subcommand that the arguments name.
 */
#include "tools/farindex/commands.h"

#include <string.h>

static const cli_command commands[] = {
    {"bench", "measures index kinds with YCSB-style workloads", cli_bench},
    {"check", "verifies an index or a pool, finds leaks", cli_check},
    {"copy", "copies an index into a new index, possibly of another kind", cli_copy},
    {"create", "creates an index", cli_create},
    {"del", "removes a key", cli_del},
    {"drop", "removes an index", cli_drop},
    {"dump", "writes all pairs of an index", cli_dump},
    {"evict", "evicts a client from a pool", cli_evict},
    {"get", "prints the value of a key", cli_get},
    {"kinds", "lists the index kinds and their options", cli_kinds},
    {"list", "lists the indexes of a pool", cli_list},
    {"load", "puts many pairs into an index", cli_load},
    {"plot", "draws benchmark results as an HTML page", cli_plot},
    {"put", "sets the value of a key", cli_put},
    {"scan", "prints pairs in key order", cli_scan},
    {"selftest", "tests whether the fabric of a pool keeps its guarantees", cli_selftest},
    {"serve", "runs the daemon of a memory node", cli_serve},
    {"shell", "runs many commands on one pool", cli_shell},
    {"stat", "shows the memory that a pool and its indexes use", cli_stat},
    {"top", "shows the clients of a pool and their activity", cli_top},
    {"torture", "runs random seeds on the simulator and checks each history", cli_torture},
};

#define COMMANDS (sizeof(commands) / sizeof(commands[0]))


static int print_help(void) {
    fputs("farindex: indexes on far memory\n\n"
          "usage: farindex COMMAND [OPTIONS]\n\n",
          stdout);
    for (size_t i = 0; i < COMMANDS; i++)
        printf("  %-10s %s\n", commands[i].name, commands[i].summary);
    fputs(
        "\n'farindex COMMAND --help' prints the options of a command, 'farindex --version' the version.\n"
        "The option --pool URI may precede the command.\n"
        "Exit status: 0 success, 1 not found (or a check found an error), 2 wrong usage, 3 failure, 4 exists already,\n"
        "5 conflict (another client uses the index, or is stopped in the middle of an operation), 6 a salvage that "
        "could not\n"
        "save all pairs.\n",
        stdout);
    return CLI_DONE;
}


static bool asks_for_help(const char *word) {
    return strcmp(word, "help") == 0 || strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}


static const char *command_name_at(const void *ctx, size_t i) {
    (void)ctx;
    return cli_command_name(i);
}


int cli_run(int argc, char **argv) {
    if (asks_for_help(argv[0]) && (argc == 1 || asks_for_help(argv[1])))
        return print_help();
    char *help[] = {argv[argc > 1], "--help", NULL}; /* 'help COMMAND' is run as 'COMMAND --help' */
    if (asks_for_help(argv[0])) {
        argc = 2;
        argv = help;
    }
    for (size_t i = 0; i < COMMANDS; i++)
        if (strcmp(argv[0], commands[i].name) == 0)
            return commands[i].run(argc, argv);
    char hint[CLI_HINT];
    return cli_wrong_usage(NULL, "unknown command '%s'%s 'farindex help' lists the commands", argv[0],
                           *cli_suggest(argv[0], command_name_at, NULL, hint) ? hint : ";");
}


const char *cli_command_name(size_t position) {
    return position < COMMANDS ? commands[position].name : NULL;
}
