/* farindex copy: all pairs of an index into a new one, of the same kind or of another. */
#include "cli/data.h"
#include "client/op.h"
#include "index/index.h"
#include "pool/options.h"

#include <inttypes.h>
#include <string.h>

typedef struct copying {
    cli_pool *pool;
    far_index *to;
    uint64_t pairs, keys; /* copied; that there are, about */
    bool failed;
} copying;


static int copy_pair(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    copying *c = ctx;
    c->failed = far_put(c->pool->session, c->to, key, key_len, value, value_len) < 0;
    c->pairs += !c->failed;
    cli_pairs_progress("copy", c->pairs, c->keys);
    return c->failed || cli_interrupted();
}


/* The options that every kind has stay with the pairs; the others are of the kind. */
static void keep_common(const far_index *from, char *text, size_t size) {
    size_t used = 0;
    *text = 0;
    for (unsigned i = 0; i < FAR_OPTIONS_COMMON; i++) {
        far_option_def def = far_index_option_at(from->kind, i);
        int64_t value = i == FAR_OPTION_VALUE_SIZE ? (int64_t)far_value_size(from) : from->options[i];
        if (value != def.initial)
            used += (size_t)snprintf(text + used, size - used, "%s%s=%" PRId64, used ? "," : "", def.name, value);
    }
}


static int make_index(cli_pool *p, const char *name, const char *kind, const char *options, far_index **to) {
    char kept[FAR_OPTIONS_TEXT_MAX + 1];
    bool same = !kind || strcmp(kind, p->index->kind->name) == 0;
    snprintf(kept, sizeof(kept), "%s", p->index->options_text);
    if (!same)
        keep_common(p->index, kept, sizeof(kept));
    int err = far_index_create(p->session, name, kind ? kind : p->index->kind->name, options ? options : kept, to);
    if (err == FAR_ERR_INVALID)
        return cli_wrong_usage("copy", "%s", far_last_error());
    if (err == FAR_ERR_EXISTS)
        return cli_failed("there is an index '%s' already", name);
    return err < 0 ? cli_pool_failed() : 0;
}


/* What is not whole is taken away again. */
static int copy(cli_pool *p, const char *name, const char *kind, const char *options) {
    copying c = {.pool = p};
    int status = make_index(p, name, kind, options, &c.to);
    if (status)
        return status;
    c.keys = cli_pool_keys(p);
    int64_t pairs = far_index_pairs(p->session, p->index, copy_pair, &c);
    cli_progress_end();
    if (pairs < 0 || c.failed)
        status = cli_pool_failed();
    else if (cli_interrupted())
        status = cli_failed("interrupted after %" PRIu64 " pairs", c.pairs);
    far_index_close(c.to);
    if (status)
        far_index_drop(p->session, name);
    else
        printf(p->json ? "{\"pairs\":%" PRIu64 "}\n" : "copy: %" PRIu64 " pairs\n", c.pairs);
    return status;
}


int cli_copy(int argc, char **argv) {
    cli_pool p = {0};
    const char *kind = NULL, *index_options = NULL;
    const cli_option options[] = {
        CLI_POOL_OPTIONS(&p),
        {"kind", CLI_TEXT, &kind, "KIND", "of the new index (default: the same)"},
        {"options", CLI_TEXT, &index_options, "NAME=VALUE,..",
         "of the new index (default: the same; of another kind key_size, value_size, max_key and checksum)"},
        CLI_OPTIONS_END,
    };
    int count, status;
    if (cli_operands(argc, argv, "copy INDEX NEW [--kind KIND] [--options \"name=value,..\"]", options,
                     "Beside live clients it is no snapshot, as a dump is none. If it fails NEW is removed again.\n", 2,
                     2, &count, &status))
        return status;
    if ((status = cli_pool_open("copy", &p, argv[0])) != 0)
        return status;
    cli_catch_interrupts();
    return cli_pool_close(&p, copy(&p, argv[1], kind, index_options));
}
