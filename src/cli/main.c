/* farindex: finds the subcommand. */
#include "cli/cli.h"

#include <string.h>

static void print_help(FILE *file) {
    fputs("farindex: indexes on far memory\n\n"
          "usage: farindex COMMAND [OPTIONS]\n\n",
          file);
    cli_print_commands(file);
    fputs("\n'farindex COMMAND --help' tells more; 'farindex --version' the version.\n"
          "The option --pool URI may stand before the command as well.\n"
          "Exit status: 0 done, 1 not found (or a check found something), 2 wrong usage, 3 failed.\n",
          file);
}


/* "--pool URI" or "--pool=URI" before the command moves behind it. How many words it takes; 0: it is not there. */
static int words_of_pool(int argc, char **argv) {
    if (argc < 2 || strncmp(argv[1], "--pool", 6) != 0)
        return 0;
    return argv[1][6] == '=' ? 1 : argv[1][6] == 0 && argc > 2 ? 2 : 0;
}


static void move_pool_behind(int argc, char **argv) {
    int words = words_of_pool(argc, argv);
    if (words == 0 || argc < words + 2)
        return;
    char *option[2] = {argv[1], argv[words]}, *command = argv[words + 1];
    argv[1] = command;
    memcpy(&argv[2], option, (size_t)words * sizeof(*option));
}


int main(int argc, char **argv) {
    move_pool_behind(argc, argv);
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
    return cli_end(cli_run(argc - 1, argv + 1));
}
