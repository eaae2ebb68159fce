/* `farindex copy` copies all pairs of an index into a new index, of the same kind or of another. */
#include "client/op.h"
#include "index/index.h"
#include "pool/catalog/options.h"
#include "tools/farindex/data.h"

#include <inttypes.h>
#include <string.h>

typedef struct copying {
    cli_pool *pool; /* the pool of the new index */
    far_index *to;
    uint64_t pairs, keys; /* number of pairs copied so far; estimated number of all pairs, or 0 */
    uint64_t skipped;     /* number of keys that a salvage has skipped */
    bool failed;
} copying;


static int copy_pair(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    copying *c = ctx;
    c->failed = far_put(c->pool->session, c->to, key, key_len, value, value_len) < 0;
    c->pairs += !c->failed;
    cli_pairs_progress("copy", c->pairs, c->keys);
    return c->failed || cli_interrupted();
}


/* Writes the options that a copy of another kind takes over: those that describe the pairs and that every kind has. The
 * other options belong to the old kind. */
static void write_common_options(const far_index *from, char *text, size_t size) {
    size_t used = 0;
    *text = 0;
    for (unsigned i = 0; i < FAR_OPTIONS_COMMON; i++) {
        far_option_def def = far_index_option_at(from->kind, i);
        int64_t value = i == FAR_OPTION_VALUE_SIZE ? (int64_t)far_value_size(from) : from->options[i];
        if (value != def.initial)
            used += (size_t)snprintf(text + used, size - used, "%s%s=%" PRId64, used ? "," : "", def.name, value);
    }
}


static int create_copy(cli_pool *p, const char *name, const char *kind, const char *options, far_index **to) {
    char common[FAR_OPTIONS_TEXT_MAX + 1];
    bool same = !kind || strcmp(kind, p->index->kind->name) == 0;
    snprintf(common, sizeof(common), "%s", p->index->options_text);
    if (!same)
        write_common_options(p->index, common, sizeof(common));
    int err = far_index_create(p->session, name, kind ? kind : p->index->kind->name, options ? options : common, to);
    if (err == FAR_ERR_INVALID)
        return cli_wrong_usage("copy", "%s", far_last_error());
    if (err == FAR_ERR_EXISTS)
        return cli_exists("an index '%s' exists already", name);
    return err < 0 ? cli_operation_failed(err) : 0;
}


/* Copies the pairs that can be read, from a private copy of the pool. Returns whether these are all pairs. */
static bool salvage_pairs(copying *c) {
    cli_pool source = {.uri = c->pool->uri, .cache = c->pool->cache, .salvages = true};
    cli_salvage s = {.each = copy_pair, .ctx = c};
    if (cli_pool_open("copy", &source, c->pool->index->name) != 0)
        return false;
    bool whole = cli_salvage_pairs(&source, &s);
    c->skipped = s.skipped;
    cli_pool_close(&source, 0);
    return whole;
}


/* Copies the index. If that fails or is interrupted, the incomplete new index is dropped; a salvage that could not read
 * all pairs has not failed. */
static int copy_index(cli_pool *p, const char *name, const char *kind, const char *options, bool salvages) {
    copying c = {.pool = p};
    bool whole = true;
    int64_t pairs = 0;
    int status = create_copy(p, name, kind, options, &c.to);
    if (status)
        return status;
    c.keys = cli_pool_keys(p);
    if (salvages)
        whole = salvage_pairs(&c);
    else
        pairs = far_index_pairs(p->session, p->index, copy_pair, &c);
    cli_progress_end();
    if (c.failed)
        status = cli_pool_failed();
    else if (pairs < 0)
        status = cli_pairs_failed(pairs, "copy");
    else if (cli_interrupted())
        status = cli_failed("interrupted after %" PRIu64 " pairs", c.pairs);
    far_index_close(c.to);
    if (status) {
        far_index_drop(p->session, name);
        return status;
    }
    if (!salvages)
        cli_print_pairs(p, "copy", c.pairs);
    else
        cli_print_salvaged(p, "copy", c.pairs, c.skipped);
    return whole ? 0 : CLI_SALVAGED;
}


int cli_copy(int argc, char **argv) {
    cli_pool p = {0};
    const char *kind = NULL, *index_options = NULL;
    bool salvages = false;
    const cli_option options[] = {
        CLI_POOL_OPTIONS(&p),
        {"kind", CLI_TEXT, &kind, "KIND", "kind of the new index (default: that of INDEX)"},
        {"options", CLI_TEXT, &index_options, "NAME=VALUE,..",
         "options of the new index (default: those of INDEX; for another kind only key_size, value_size, max_key, "
         "checksum)"},
        {"salvage", CLI_FLAG, &salvages, NULL, "skips what is broken in a damaged index, and reports it"},
        CLI_OPTIONS_END,
    };
    int count, status;
    if (cli_operands(
            argc, argv, "copy INDEX NEW [--kind KIND] [--options \"name=value,..\"] [--salvage]", options,
            "The copy is no snapshot while other clients change INDEX. If the copy fails, NEW is removed again.\n"
            "With --salvage, pairs of a damaged INDEX that cannot be read are skipped and reported, and the exit "
            "status "
            "is 6.\nIf memory nodes of the pool are missing, use 'farindex dump --salvage', because NEW could not be "
            "stored.\n",
            2, 2, &count, &status))
        return status;
    if ((status = cli_pool_open("copy", &p, argv[0])) != 0)
        return status;
    cli_catch_interrupts();
    return cli_pool_close(&p, copy_index(&p, argv[1], kind, index_options, salvages));
}
