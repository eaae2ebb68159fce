/* The main function of the program `farindex`. It accepts --pool before the subcommand, and calls cli_run() of
 * commands.c. */
#include "tools/farindex/commands.h"

#include <string.h>

/* Returns the number of arguments that "--pool URI" or "--pool=URI" occupies before the subcommand, or 0 if the option
 * is not there. */
static int count_pool_arguments(int argc, char **argv) {
    if (argc < 2 || strncmp(argv[1], "--pool", 6) != 0)
        return 0;
    return argv[1][6] == '=' ? 1 : argv[1][6] == 0 && argc > 2 ? 2 : 0;
}


static void move_pool_after_command(int argc, char **argv) {
    int words = count_pool_arguments(argc, argv);
    if (words == 0 || argc < words + 2)
        return;
    char *option[2] = {argv[1], argv[words]}, *command = argv[words + 1];
    argv[1] = command;
    memcpy(&argv[2], option, (size_t)words * sizeof(*option));
}


int main(int argc, char **argv) {
    move_pool_after_command(argc, argv);
    if (argc < 2 || (count_pool_arguments(argc, argv) > 0 && argc == count_pool_arguments(argc, argv) + 1)) {
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
    cli_handle_file_signals();
    return cli_end(cli_run(argc - 1, argv + 1));
}
