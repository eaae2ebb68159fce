/* Names of kinds and of their options in messages, for both programs (cli.h). */
#include "index/index.h"
#include "pool/catalog/options.h"
#include "pool/catalog/private_options.h"
#include "tools/common/cli.h"

#include <string.h>


static const char *kind_name_at(const void *ctx, size_t i) {
    (void)ctx;
    for (size_t k = 0; far_index_kinds[k]; k++)
        if (far_index_kind_shown(far_index_kinds[k]) && i-- == 0)
            return far_index_kinds[k]->name;
    return NULL;
}


const char *cli_suggest_kind(const char *word, char hint[CLI_HINT]) {
    return cli_suggest(word, kind_name_at, NULL, hint);
}


const char *cli_list_kinds(char list[CLI_KINDS]) {
    size_t used = 0;
    const char *name;
    *list = 0;
    for (size_t i = 0; (name = kind_name_at(NULL, i)) && used < CLI_KINDS; i++)
        used += (size_t)snprintf(list + used, CLI_KINDS - used, "%s%s", used ? ", " : "", name);
    return list;
}


/* Returns the name of the i-th option of a kind that users can set. */
static const char *index_option_name_at(const void *ctx, size_t i) {
    const far_index_kind *kind = ctx;
    for (unsigned k = 0; k < far_index_option_count(kind); k++) {
        far_option_def def = far_index_option_at(kind, k);
        if (!far_option_is_private(kind, def.name) && i-- == 0)
            return def.name;
    }
    return NULL;
}


const char *cli_suggest_index_option(const char *kind_name, const char *word, char hint[CLI_HINT]) {
    const far_index_kind *kind = far_index_kind_named(kind_name);
    *hint = 0;
    return kind ? cli_suggest(word, index_option_name_at, kind, hint) : hint;
}
