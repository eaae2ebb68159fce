/* farindex: finds the subcommand. */
#include "cli/cli.h"

#include <string.h>

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
    if (argc < 2 || (words_of_pool(argc, argv) > 0 && argc == words_of_pool(argc, argv) + 1)) {
        fputs("farindex: which command? 'farindex --help' lists them\n", stderr);
        return CLI_USAGE;
    }
    if (strcmp(argv[1], "--pool") == 0) {
        fputs("farindex: --pool needs a value (URI)\n", stderr);
        return CLI_USAGE;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("farindex %s\n", far_version());
        return cli_end(CLI_DONE);
    }
    cli_watch_for_cuts();
    return cli_end(cli_run(argc - 1, argv + 1));
}
