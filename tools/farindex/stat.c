/* `farindex stat` prints how much memory a pool and its indexes use. The figures come at once from tables and counters,
 * or exactly from a traversal of the indexes (--exact). */
#include "base/text.h"
#include "client/op.h"
#include "client/snapshot.h"
#include "index/index.h"
#include "pool/format/fabric_record.h"
#include "pool/handle.h"
#include "tools/farindex/data.h"

#include <inttypes.h>
#include <string.h>

typedef struct figures { /* the figures of one index */
    const far_snapshot_index_info *index;
    bool exact;
    far_usage usage; /* without --exact only `keys` and `pool_bytes` are set */
    far_load load;   /* zero `slots` if the load factor is not known */
} figures;


static void find_names(const far_snapshot_handle_info *handle, char command[64], char host[64]) {
    char path[64];
    snprintf(command, 64, "%s", *handle->bulletin.command ? handle->bulletin.command : "?");
    snprintf(host, 64, "%s", *handle->bulletin.host ? handle->bulletin.host : "?");
    if (*handle->bulletin.command || !handle->process)
        return;
    snprintf(path, sizeof(path), "/proc/%" PRId64 "/comm", handle->process);
    /* a process that has published no name is found by its number if it runs on this host */
    FILE *file = fopen(path, "re");
    if (file && fgets(command, 64, file))
        command[strcspn(command, "\n")] = 0;
    if (file)
        fclose(file);
}


void cli_handle_names(const far_snapshot_handle_info *handle, char command[64], char host[64]) {
    find_names(handle, command, host);
    /* Another process has written the names: they must not end a line or a column, or control the terminal. */
    far_make_printable(command);
    far_make_printable(host);
}


/* Counts the figures of one index exactly. */
static int measure_exactly(cli_pool *p, figures *f) {
    far_index *index = NULL;
    int err = far_index_open(p->session, f->index->name, &index);
    if (err >= 0)
        err = far_index_usage(p->session, index, &f->usage);
    if (err >= 0 && (err = far_index_load(p->session, index, &f->load)) == FAR_ERR_UNSUPPORTED)
        err = 0; /* kinds without slots have no load factor */
    far_index_close(index);
    return err;
}


static double load_factor(const far_load *load) {
    return (double)(load->keys[0] + load->keys[1] + load->keys[2]) / (double)load->slots;
}


/* Sets a figure that is known with --exact only, and is null otherwise. */
static void set_exact_count(json_t *object, const char *name, const figures *f, uint64_t count) {
    cli_json_set(object, name, f->exact ? cli_json_count(count) : json_null());
}


static json_t *index_as_json(const figures *f) {
    json_t *object = cli_json_object();
    cli_json_set_text(object, "name", f->index->name);
    cli_json_set_text(object, "kind", f->index->kind);
    cli_json_set_text(object, "options", f->index->options);
    cli_json_set_bool(object, "exact", f->exact);
    cli_json_set_count(object, "keys", f->usage.keys);
    set_exact_count(object, "key_bytes", f, f->usage.key_bytes);
    set_exact_count(object, "value_bytes", f, f->usage.value_bytes);
    cli_json_set_count(object, "pool_bytes", f->usage.pool_bytes);
    set_exact_count(object, "pool_index_bytes", f, f->usage.pool_index_bytes);
    if (f->load.slots) {
        json_t *levels = cli_json_array();
        for (unsigned level = 0; level < 3; level++)
            cli_json_append(levels, cli_json_count(f->load.keys[level]));
        cli_json_set_number(object, "load_factor", load_factor(&f->load));
        cli_json_set(object, "keys_by_level", levels);
    }
    return object;
}


static void print_index_text(const figures *f) {
    printf("%s: %s%s%s\n", f->index->name, f->index->kind, *f->index->options ? ", " : "", f->index->options);
    printf("  keys             %" PRIu64 "\n", f->usage.keys);
    if (f->exact)
        printf("  key bytes        %" PRIu64 "\n  value bytes      %" PRIu64 "\n", f->usage.key_bytes,
               f->usage.value_bytes);
    printf("  pool bytes       %" PRIu64 "\n", f->usage.pool_bytes);
    if (f->exact)
        printf("  of them, index   %" PRIu64 "\n", f->usage.pool_index_bytes);
    if (f->load.slots)
        printf("  load factor      %.3f\n  keys by level    %" PRIu64 " %" PRIu64 " %" PRIu64 "\n",
               load_factor(&f->load), f->load.keys[0], f->load.keys[1], f->load.keys[2]);
}


/* Prints the figures of one index, or appends them to `list` with --json. */
static int stat_index(cli_pool *p, const far_snapshot_index_info *index, bool exact, json_t *list) {
    figures f = {.index = index, .exact = exact, .usage = {.keys = index->keys, .pool_bytes = index->bytes}};
    int err = exact ? measure_exactly(p, &f) : 0;
    if (err < 0)
        return err;
    if (p->json)
        cli_json_append(list, index_as_json(&f));
    else
        print_index_text(&f);
    return 0;
}


static const char *refuted_text(const cli_pool *p, char refuted[FAR_VIOLATIONS_TEXT]) {
    return far_violations_text(atomic_load_explicit(&p->pool->refuted, memory_order_relaxed), refuted);
}


static json_t *pool_as_json(const cli_pool *p, const far_pool_usage *usage) {
    char refuted[FAR_VIOLATIONS_TEXT];
    json_t *pool = cli_json_object();
    cli_json_set_pool_usage(pool, usage);
    cli_json_set_text(pool, "refuted", refuted_text(p, refuted));
    return pool;
}


static void print_pool_text(const cli_pool *p, const far_pool_usage *usage) {
    char refuted[FAR_VIOLATIONS_TEXT];
    refuted_text(p, refuted);
    printf("pool\n  total            %" PRIu64 "\n  used             %" PRIu64 "\n  retired          %" PRIu64
           "\n  free             %" PRIu64 "\n  leaked           %" PRIu64 "\n  memory nodes     %" PRIu64
           "\n  sessions         %" PRIu64 "\n  epoch            %" PRIu64 "\n  refuted          %s\n",
           usage->total, usage->used, usage->retired, usage->free, usage->leaked, usage->memory_nodes, usage->sessions,
           usage->epoch, *refuted ? refuted : "nothing");
}


/* Prints the figures of the pool and of its indexes, or appends those of the indexes to `list` with --json. */
static int stat_pool(cli_pool *p, const far_snapshot *survey, bool exact, json_t *list) {
    int err = 0;
    if (!p->json)
        print_pool_text(p, &survey->usage);
    for (size_t i = 0; err >= 0 && i < survey->index_count && !cli_interrupted(); i++) {
        err = stat_index(p, &survey->indexes[i], exact, list);
        if (err == FAR_ERR_NOT_FOUND) /* the index was dropped after the survey */
            err = 0;
    }
    return err;
}


/* One index is printed as its object; a pool is an object with all of them. */
static void print_json(const cli_pool *p, const far_snapshot *survey, bool whole_pool, json_t *list) {
    if (!whole_pool) {
        cli_json_print(stdout, json_incref(json_array_get(list, 0)));
        json_decref(list);
        return;
    }
    json_t *all = cli_json_object();
    cli_json_set(all, "pool", pool_as_json(p, &survey->usage));
    cli_json_set(all, "indexes", list);
    cli_json_print(stdout, all);
}


int cli_stat(int argc, char **argv) {
    cli_pool p = {0};
    bool exact = false;
    const cli_option options[] = {
        CLI_POOL_OPTIONS(&p),
        {"exact", CLI_FLAG, &exact, NULL, "traverses the indexes for exact keys, bytes and load factors"},
        CLI_OPTIONS_END,
    };
    int count, status;
    if (cli_operands(
            argc, argv, "stat [NAME] [--exact]", options,
            "Sizes are in bytes. Without --exact the figures come from counters: keys are the sum that clients have "
            "reported (a "
            "killed client\nmay have reported too few), and pool bytes include free memory that clients hold for the "
            "index. The number of leaked\nbytes is that of the last 'farindex check'.\n",
            0, 1, &count, &status))
        return status;
    if ((status = cli_pool_open("stat", &p, NULL)) != 0)
        return status;
    far_snapshot survey;
    json_t *list = cli_json_array();
    if (exact)
        cli_pool_watch(&p, "stat", 1);
    int err = far_snapshot_take(p.session, &survey);
    const far_snapshot_index_info *named = err >= 0 && count ? far_snapshot_index_by_name(&survey, argv[0]) : NULL;
    if (err >= 0 && count)
        err = named ? stat_index(&p, named, exact, list) : FAR_ERR_NOT_FOUND;
    else if (err >= 0)
        err = stat_pool(&p, &survey, exact, list);
    cli_progress_end();
    if (err == FAR_ERR_NOT_FOUND)
        status = cli_not_found("there is no index '%s'", argv[0]);
    else if (err < 0)
        status = cli_operation_failed(err);
    else if (p.json)
        print_json(&p, &survey, count == 0, json_incref(list));
    json_decref(list);
    far_snapshot_free(&survey);
    return cli_pool_close(&p, status);
}
