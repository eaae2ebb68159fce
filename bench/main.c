/* The main function of farindex-bench, which measures indexes (bench) and draws the results (plot). `farindex bench`
 * and `farindex plot` start this program. */
#include "bench/bench.h"

#include <string.h>


int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--version") == 0) {
        printf("farindex-bench %s\n", far_version());
        return cli_end(CLI_DONE);
    }
    cli_handle_file_signals();
    if (argc > 1 && strcmp(argv[1], "plot") == 0)
        return cli_end(cli_plot(argc - 1, argv + 1));
    if (argc > 1 && strcmp(argv[1], "bench") == 0)
        return cli_end(cli_bench(argc - 1, argv + 1));
    return cli_end(cli_bench(argc, argv));
}
