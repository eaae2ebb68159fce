/* The subcommands by their names. */
#include "cli/cli.h"

#include <string.h>

static const cli_command commands[] = {
    {"bench", "YCSB-style benchmark of one or more index kinds", cli_bench},
    {"check", "verifies the structure of an index or a pool, finds leaks", cli_check},
    {"copy", "copies an index into a new one, of the same kind or another", cli_copy},
    {"create", "makes an index", cli_create},
    {"del", "removes a key", cli_del},
    {"drop", "removes an index", cli_drop},
    {"dump", "writes all pairs of an index", cli_dump},
    {"evict", "ends a client of a pool for good", cli_evict},
    {"get", "prints the value of a key", cli_get},
    {"kinds", "lists the index kinds and their options", cli_kinds},
    {"list", "lists the indexes of a pool", cli_list},
    {"load", "puts many pairs into an index", cli_load},
    {"plot", "draws the curves of benchmark results as a page for browsers", cli_plot},
    {"put", "gives a key a value", cli_put},
    {"scan", "prints pairs in the order of their keys", cli_scan},
    {"selftest", "looks for what the fabric of a pool must not do", cli_selftest},
    {"serve", "serves memory to pools on the network (a memory node's daemon)", cli_serve},
    {"shell", "many commands on one pool", cli_shell},
    {"stat", "shows how much a pool and its indexes hold", cli_stat},
    {"top", "shows who is connected and what they do", cli_top},
    {"torture", "explores seeds on the simulator and checks every history", cli_torture},
};

#define COMMANDS (sizeof(commands) / sizeof(commands[0]))


static int print_help(void) {
    fputs("farindex: indexes on far memory\n\n"
          "usage: farindex COMMAND [OPTIONS]\n\n",
          stdout);
    for (size_t i = 0; i < COMMANDS; i++)
        printf("  %-10s %s\n", commands[i].name, commands[i].summary);
    fputs("\n'farindex COMMAND --help' tells more; 'farindex --version' the version.\n"
          "The option --pool URI may stand before the command as well.\n"
          "Exit status: 0 done, 1 not found (or a check found something), 2 wrong usage, 3 failed.\n",
          stdout);
    return CLI_DONE;
}


static bool asks_for_help(const char *word) {
    return strcmp(word, "help") == 0 || strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}


int cli_run(int argc, char **argv) {
    if (asks_for_help(argv[0]) && (argc == 1 || asks_for_help(argv[1])))
        return print_help();
    char *help[] = {argv[argc > 1], "--help", NULL}; /* help COMMAND: the same as COMMAND --help */
    if (asks_for_help(argv[0])) {
        argc = 2;
        argv = help;
    }
    for (size_t i = 0; i < COMMANDS; i++)
        if (strcmp(argv[0], commands[i].name) == 0)
            return commands[i].run(argc, argv);
    return cli_wrong_usage(NULL, "unknown command '%s'; 'farindex help' lists them", argv[0]);
}


const char *cli_command_name(size_t position) {
    return position < COMMANDS ? commands[position].name : NULL;
}
