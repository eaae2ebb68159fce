/* farindex stat: how much a pool and its indexes hold, at once from tables and counters, or exactly by a walk. */
#include "cli/data.h"
#include "client/op.h"
#include "client/survey.h"
#include "index/index.h"
#include "pool/handle.h"
#include "pool/refuted.h"

#include <inttypes.h>
#include <string.h>

typedef struct figures { /* of one index */
    const far_surveyed_index *index;
    bool exact;
    far_usage usage; /* without a walk: keys and pool_bytes only */
    far_load load;   /* slots 0: not known */
} figures;


/* Others have written it: nothing in it ends a line or a column, or speaks to a terminal. */
static void make_plain(char *text) {
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            *text = '?';
}


static void find_names(const far_surveyed_handle *handle, char command[64], char host[64]) {
    char path[64];
    snprintf(command, 64, "%s", *handle->bulletin.command ? handle->bulletin.command : "?");
    snprintf(host, 64, "%s", *handle->bulletin.host ? handle->bulletin.host : "?");
    if (*handle->bulletin.command || !handle->process)
        return;
    snprintf(path, sizeof(path), "/proc/%" PRId64 "/comm", handle->process);
    FILE *file = fopen(path, "re"); /* one that has told nothing is seen where it runs on this host */
    if (file && fgets(command, 64, file))
        command[strcspn(command, "\n")] = 0;
    if (file)
        fclose(file);
}


void cli_handle_names(const far_surveyed_handle *handle, char command[64], char host[64]) {
    find_names(handle, command, host);
    make_plain(command);
    make_plain(host);
}


/* The walk. */
static int measure(cli_pool *p, figures *f) {
    far_index *index = NULL;
    int err = far_index_open(p->session, f->index->name, &index);
    if (err >= 0)
        err = far_index_usage(p->session, index, &f->usage);
    if (err >= 0 && (err = far_index_load(p->session, index, &f->load)) == FAR_ERR_UNSUPPORTED)
        err = 0; /* a kind without slots */
    far_index_close(index);
    return err;
}


static double load_factor(const far_load *load) {
    return (double)(load->keys[0] + load->keys[1] + load->keys[2]) / (double)load->slots;
}


static void print_known(const char *name, bool known, uint64_t value) {
    printf(known ? ",\"%s\":%" PRIu64 : ",\"%s\":null", name, value);
}


static void print_index_json(const figures *f) {
    fputs("{\"name\":", stdout);
    cli_json_string(stdout, f->index->name);
    fputs(",\"kind\":", stdout);
    cli_json_string(stdout, f->index->kind);
    fputs(",\"options\":", stdout);
    cli_json_string(stdout, f->index->options);
    printf(",\"exact\":%s", f->exact ? "true" : "false");
    print_known("keys", true, f->usage.keys);
    print_known("key_bytes", f->exact, f->usage.key_bytes);
    print_known("value_bytes", f->exact, f->usage.value_bytes);
    print_known("pool_bytes", true, f->usage.pool_bytes);
    print_known("pool_index_bytes", f->exact, f->usage.pool_index_bytes);
    if (f->load.slots)
        printf(",\"load_factor\":%.6g,\"keys_by_level\":[%" PRIu64 ",%" PRIu64 ",%" PRIu64 "]", load_factor(&f->load),
               f->load.keys[0], f->load.keys[1], f->load.keys[2]);
    putchar('}');
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


static int stat_index(cli_pool *p, const far_surveyed_index *index, bool exact, const char *separator) {
    figures f = {.index = index, .exact = exact, .usage = {.keys = index->keys, .pool_bytes = index->bytes}};
    int err = exact ? measure(p, &f) : 0;
    if (err < 0)
        return err;
    fputs(separator, stdout);
    if (p->json)
        print_index_json(&f);
    else
        print_index_text(&f);
    return 0;
}


static void print_pool(const cli_pool *p, const far_pool_usage *usage) {
    static const char json[] = "{\"pool\":{\"total\":%" PRIu64 ",\"used\":%" PRIu64 ",\"retired\":%" PRIu64
                               ",\"free\":%" PRIu64 ",\"leaked\":%" PRIu64 ",\"memory_nodes\":%" PRIu64
                               ",\"sessions\":%" PRIu64 ",\"epoch\":%" PRIu64 ",\"refuted\":\"%s\"},\n\"indexes\":[";
    static const char text[] =
        "pool\n  total            %" PRIu64 "\n  used             %" PRIu64 "\n  retired          %" PRIu64
        "\n  free             %" PRIu64 "\n  leaked           %" PRIu64 "\n  memory nodes     %" PRIu64
        "\n  sessions         %" PRIu64 "\n  epoch            %" PRIu64 "\n  refuted          %s\n";
    char refuted[FAR_REFUTED_TEXT];
    far_refuted_text(atomic_load_explicit(&p->pool->refuted, memory_order_relaxed), refuted);
    printf(p->json ? json : text, usage->total, usage->used, usage->retired, usage->free, usage->leaked,
           usage->memory_nodes, usage->sessions, usage->epoch, *refuted || p->json ? refuted : "nothing");
}


static int stat_pool(cli_pool *p, const far_survey *survey, bool exact) {
    bool any = false;
    int err = 0;
    print_pool(p, &survey->usage);
    for (size_t i = 0; err >= 0 && i < survey->index_count && !cli_interrupted(); i++) {
        err = stat_index(p, &survey->indexes[i], exact, !p->json ? "" : any ? ",\n " : "\n ");
        any |= err >= 0;
        if (err == FAR_ERR_NOT_FOUND) /* dropped meanwhile */
            err = 0;
    }
    if (p->json)
        fputs("]}", stdout);
    return err;
}


int cli_stat(int argc, char **argv) {
    cli_pool p = {0};
    bool exact = false;
    const cli_option options[] = {
        CLI_POOL_OPTIONS(&p),
        {"exact", CLI_FLAG, &exact, NULL, "walks the indexes: exact keys, their bytes, how full they are"},
        CLI_OPTIONS_END,
    };
    int count, status;
    if (cli_operands(argc, argv, "stat [NAME] [--exact]", options,
                     "Sizes are in bytes. Without --exact it answers at once: keys are as the clients have told (a "
                     "client that was killed\nmay have told less), pool bytes include what clients hold ready for the "
                     "index. Leaks are known after\n'farindex check'.\n",
                     0, 1, &count, &status))
        return status;
    if ((status = cli_pool_open("stat", &p, NULL)) != 0)
        return status;
    far_survey survey;
    if (exact)
        cli_pool_watch(&p, "stat", 1);
    int err = far_pool_survey(p.session, &survey);
    const far_surveyed_index *named = err >= 0 && count ? far_survey_named(&survey, argv[0]) : NULL;
    if (err >= 0 && count)
        err = named ? stat_index(&p, named, exact, "") : FAR_ERR_NOT_FOUND;
    else if (err >= 0)
        err = stat_pool(&p, &survey, exact);
    cli_progress_end();
    if (err == FAR_ERR_NOT_FOUND)
        status = cli_not_found("there is no index '%s'", argv[0]);
    else if (err < 0)
        status = cli_pool_failed();
    else if (p.json)
        putchar('\n');
    far_survey_free(&survey);
    return cli_pool_close(&p, status);
}
