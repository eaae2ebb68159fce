/* farindex kinds: which index kinds there are, what each is for, and its options. */
#include "cli/cli.h"

#include <string.h>

typedef struct kinds_output {
    bool json;
    unsigned count;
} kinds_output;


static int print_kind(void *ctx, const char *kind, const char *what_for, const char *options) {
    kinds_output *out = ctx;
    if (out->json) {
        fputs(out->count ? ",\n {\"kind\":" : " {\"kind\":", stdout);
        cli_json_string(stdout, kind);
        fputs(",\"what_for\":", stdout);
        cli_json_string(stdout, what_for);
        fputs(",\"options\":", stdout);
        cli_json_string(stdout, options);
        fputs("}", stdout);
    } else {
        printf("%s%s: %s\n%s", out->count ? "\n" : "", kind, what_for, options);
        if (*options && options[strlen(options) - 1] != '\n')
            putchar('\n');
    }
    out->count++;
    return 0;
}


int cli_kinds(int argc, char **argv) {
    kinds_output out = {false, 0};
    const cli_option options[] = {
        {"json", CLI_FLAG, &out.json, NULL, "as a JSON array of {kind, what_for, options}"},
        {NULL, CLI_FLAG, NULL, NULL, NULL},
    };
    bool help;
    int err = cli_parse(argc, argv, "kinds [--json]", options, NULL, NULL, &help);
    if (err || help)
        return err;
    if (out.json)
        puts("[");
    int found = far_kinds(print_kind, &out);
    if (out.json)
        puts("\n]");
    if (found < 0)
        return cli_failed("%s", far_last_error());
    return CLI_DONE;
}
