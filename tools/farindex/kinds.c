/* `farindex kinds` prints all index kinds, the purpose of each, and its options. */
#include "index/index.h"
#include "pool/catalog/options.h"
#include "pool/catalog/private_options.h"
#include "tools/farindex/commands.h"

#include <string.h>

typedef struct kinds_output {
    bool json;
    unsigned count;     /* number of kinds printed so far */
    cli_json_list list; /* the array of kinds with --json */
} kinds_output;


static void set_default(json_t *object, const far_option_def *option) {
    if (option->type == FAR_OPTION_NUMBER) {
        cli_json_set(object, "default", json_integer(option->initial));
        cli_json_set(object, "min", json_integer(option->min));
        cli_json_set(object, "max", json_integer(option->max));
    } else if (option->type == FAR_OPTION_BOOL) {
        cli_json_set_bool(object, "default", option->initial);
    } else {
        cli_json_set_text(object, "default", option->choices[option->initial]);
    }
}


static void set_choices(json_t *object, const far_option_def *option) {
    if (option->type != FAR_OPTION_CHOICE)
        return;
    json_t *choices = cli_json_array();
    for (unsigned i = 0; option->choices[i]; i++)
        cli_json_append(choices, cli_json_text(option->choices[i]));
    cli_json_set(object, "choices", choices);
}


static json_t *options_as_json(const far_index_kind *kind) {
    static const char *const types[] = {
        [FAR_OPTION_BOOL] = "bool", [FAR_OPTION_NUMBER] = "number", [FAR_OPTION_CHOICE] = "choice"};
    json_t *options = cli_json_array();
    for (unsigned i = 0; i < far_index_option_count(kind); i++) {
        far_option_def option = far_index_option_at(kind, i);
        if (far_option_is_private(kind, option.name))
            continue;
        json_t *object = cli_json_object();
        cli_json_set_text(object, "name", option.name);
        cli_json_set_text(object, "type", types[option.type]);
        set_default(object, &option);
        set_choices(object, &option);
        cli_json_set_text(object, "help", option.help);
        cli_json_append(options, object);
    }
    return options;
}


static int print_kind(void *ctx, const char *kind, const char *what_for, const char *options) {
    kinds_output *out = ctx;
    if (out->json) {
        json_t *object = cli_json_object();
        cli_json_set_text(object, "kind", kind);
        cli_json_set_text(object, "what_for", what_for);
        cli_json_set(object, "options", options_as_json(far_index_kind_named(kind)));
        cli_json_list_add(&out->list, object);
    } else {
        printf("%s%s: %s\n%s", out->count ? "\n" : "", kind, what_for, options);
        if (*options && options[strlen(options) - 1] != '\n')
            putchar('\n');
    }
    out->count++;
    return 0;
}


int cli_kinds(int argc, char **argv) {
    kinds_output out = {.list = {.file = stdout}};
    const cli_option options[] = {
        {"json", CLI_FLAG, &out.json, NULL,
         "as a JSON array of {kind, what_for, options: [{name, type, default, help}]}"},
        {NULL, CLI_FLAG, NULL, NULL, NULL},
    };
    bool help;
    int err = cli_parse(argc, argv, "kinds [--json]", options, NULL, NULL, &help);
    if (err || help)
        return err;
    int found = far_kinds(print_kind, &out);
    if (out.json)
        cli_json_list_end(&out.list);
    if (found < 0)
        return cli_failed("%s", far_last_error());
    return CLI_DONE;
}
