/* farindex kinds: which index kinds there are, what each is for, and its options. */
#include "cli/cli.h"
#include "index/index.h"
#include "pool/options.h"

#include <inttypes.h>
#include <string.h>

typedef struct kinds_output {
    bool json;
    unsigned count;
} kinds_output;


static void print_default(const far_option_def *option) {
    if (option->type == FAR_OPTION_NUMBER)
        printf("%" PRId64 ",\"min\":%" PRId64 ",\"max\":%" PRId64, option->initial, option->min, option->max);
    else if (option->type == FAR_OPTION_BOOL)
        fputs(option->initial ? "true" : "false", stdout);
    else
        cli_json_string(stdout, option->choices[option->initial]);
}


static void print_choices(const far_option_def *option) {
    if (option->type != FAR_OPTION_CHOICE)
        return;
    for (unsigned i = 0; option->choices[i]; i++) {
        fputs(i ? "," : ",\"choices\":[", stdout);
        cli_json_string(stdout, option->choices[i]);
    }
    putchar(']');
}


static void print_options(const far_index_kind *kind) {
    static const char *const types[] = {
        [FAR_OPTION_BOOL] = "bool", [FAR_OPTION_NUMBER] = "number", [FAR_OPTION_CHOICE] = "choice"};
    fputs(",\"options\":[", stdout);
    for (unsigned i = 0; i < far_index_option_count(kind); i++) {
        far_option_def option = far_index_option_at(kind, i);
        printf("%s\n  {\"name\":\"%s\",\"type\":\"%s\",\"default\":", i ? "," : "", option.name, types[option.type]);
        print_default(&option);
        print_choices(&option);
        fputs(",\"help\":", stdout);
        cli_json_string(stdout, option.help);
        putchar('}');
    }
    putchar(']');
}


static int print_kind(void *ctx, const char *kind, const char *what_for, const char *options) {
    kinds_output *out = ctx;
    if (out->json) {
        fputs(out->count ? ",\n {\"kind\":" : " {\"kind\":", stdout);
        cli_json_string(stdout, kind);
        fputs(",\"what_for\":", stdout);
        cli_json_string(stdout, what_for);
        print_options(far_index_kind_named(kind));
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
        {"json", CLI_FLAG, &out.json, NULL,
         "as a JSON array of {kind, what_for, options: [{name, type, default, help}]}"},
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
