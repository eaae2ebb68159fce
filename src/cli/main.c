/* farindex: the subcommands. */
#include "cli/cli.h"

#include <string.h>

static const cli_command commands[] = {
    {"bench", "YCSB-style benchmark of one or more index kinds", cli_bench},
    {"check", "verifies the structure of an index or a pool, finds leaks", cli_check},
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
    {"stat", "shows how much a pool and its indexes hold", cli_stat},
    {"torture", "explores seeds on the simulator and checks every history", cli_torture},
};


static void print_help(FILE *file) {
    fputs("farindex: indexes on far memory\n\n"
          "usage: farindex COMMAND [OPTIONS]\n\n",
          file);
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        fprintf(file, "  %-10s %s\n", commands[i].name, commands[i].summary);
    fputs("\n'farindex COMMAND --help' tells more; 'farindex --version' the version.\n"
          "Exit status: 0 done, 1 failed or not found, 2 wrong usage, 3 'serve' failed.\n",
          file);
}


int main(int argc, char **argv) {
    if (argc < 2) {
        fputs("farindex: which command? 'farindex --help' lists them\n", stderr);
        return CLI_USAGE;
    }
    bool help = strcmp(argv[1], "help") == 0;
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || (help && argc == 2)) {
        print_help(stdout);
        return cli_end(CLI_DONE);
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("farindex %s\n", far_version());
        return cli_end(CLI_DONE);
    }
    if (help) { /* help COMMAND: the same as COMMAND --help */
        argv[1] = argv[2];
        argv[2] = "--help";
        argc = 3;
    }
    cli_watch_for_cuts();
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return cli_end(commands[i].run(argc - 1, argv + 1));
    fprintf(stderr, "farindex: unknown command '%s'; 'farindex --help' lists them\n", argv[1]);
    return CLI_USAGE;
}
