/* farindex create, drop, list, stat, check, evict: indexes, the pool and its clients. */
#include "cli/data.h"
#include "client/end_client.h"
#include "client/op.h"
#include "index/index.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>


/* ---- create, drop, list ---- */

int cli_create(int argc, char **argv) {
    cli_pool p = {0};
    const char *index_options = NULL;
    const cli_option options[] = {
        CLI_POOL_OPTIONS(&p),
        {"options", CLI_TEXT, &index_options, "NAME=VALUE,..", "of the index; 'farindex kinds' lists them"},
        CLI_OPTIONS_END,
    };
    int count, status;
    if (cli_operands(argc, argv, "create NAME KIND [--options \"name=value,..\"]", options,
                     "A pool that is not there is made when its URI has a size: shm:/dev/shm/p?size=1G\n", 2, 2, &count,
                     &status))
        return status;
    if ((status = cli_pool_open("create", &p, NULL)) != 0)
        return status;
    int err = far_index_create(p.session, argv[0], argv[1], index_options, &p.index);
    if (err == FAR_ERR_INVALID)
        status = cli_wrong_usage("create", "%s", far_last_error());
    else if (err == FAR_ERR_EXISTS)
        status = cli_failed("there is an index '%s' already", argv[0]);
    else if (err < 0)
        status = cli_pool_failed();
    else if (p.json)
        puts("{\"done\":true}");
    return cli_pool_close(&p, status);
}


int cli_drop(int argc, char **argv) {
    cli_pool p = {0};
    const cli_option options[] = {CLI_POOL_OPTIONS(&p), CLI_OPTIONS_END};
    int count, status;
    if (cli_operands(argc, argv, "drop NAME", options, NULL, 1, 1, &count, &status))
        return status;
    if ((status = cli_pool_open("drop", &p, NULL)) != 0)
        return status;
    int err = far_index_drop(p.session, argv[0]);
    if (err == FAR_ERR_NOT_FOUND)
        status = cli_failed("there is no index '%s'", argv[0]);
    else if (err == FAR_ERR_BUSY)
        status = cli_failed("'%s' is open somewhere", argv[0]);
    else if (err < 0)
        status = cli_pool_failed();
    else if (p.json)
        puts("{\"done\":true}");
    return cli_pool_close(&p, status);
}


typedef struct listing {
    bool json;
    unsigned count;
} listing;


static int print_index(void *ctx, const char *name, const char *kind) {
    listing *l = ctx;
    if (!l->json) {
        printf("%s\t%s\n", name, kind);
        return 0;
    }
    fputs(l->count++ ? ",\n {\"name\":" : "\n {\"name\":", stdout);
    cli_json_string(stdout, name);
    fputs(",\"kind\":", stdout);
    cli_json_string(stdout, kind);
    putchar('}');
    return 0;
}


int cli_list(int argc, char **argv) {
    cli_pool p = {0};
    listing l = {0};
    const cli_option options[] = {CLI_POOL_OPTIONS(&p), CLI_OPTIONS_END};
    int count, status;
    if (cli_operands(argc, argv, "list", options, "Prints a line 'name TAB kind' for each index.\n", 0, 0, &count,
                     &status))
        return status;
    if ((status = cli_pool_open("list", &p, NULL)) != 0)
        return status;
    l.json = p.json;
    if (l.json)
        putchar('[');
    int err = far_index_list(p.session, print_index, &l);
    if (l.json)
        puts("\n]");
    return cli_pool_close(&p, err < 0 ? cli_pool_failed() : 0);
}


/* ---- stat ---- */

static int measure_index(cli_pool *p, const char *name, far_index **index, far_usage *usage, far_load *load) {
    int err = far_index_open(p->session, name, index);
    if (err >= 0)
        err = far_index_usage(p->session, *index, usage);
    *load = (far_load){0};
    if (err >= 0 && (err = far_index_load(p->session, *index, load)) == FAR_ERR_UNSUPPORTED)
        err = 0; /* a kind without slots */
    return err;
}


static double load_factor(const far_load *load) {
    return (double)(load->keys[0] + load->keys[1] + load->keys[2]) / (double)load->slots;
}


static void print_index_json(const far_index *index, const far_usage *usage, const far_load *load) {
    fputs("{\"name\":", stdout);
    cli_json_string(stdout, index->name);
    fputs(",\"kind\":", stdout);
    cli_json_string(stdout, index->kind->name);
    fputs(",\"options\":", stdout);
    cli_json_string(stdout, index->options_text);
    printf(",\"keys\":%" PRIu64 ",\"key_bytes\":%" PRIu64 ",\"value_bytes\":%" PRIu64 ",\"pool_bytes\":%" PRIu64
           ",\"pool_index_bytes\":%" PRIu64,
           usage->keys, usage->key_bytes, usage->value_bytes, usage->pool_bytes, usage->pool_index_bytes);
    if (load->slots)
        printf(",\"load_factor\":%.6g,\"keys_by_level\":[%" PRIu64 ",%" PRIu64 ",%" PRIu64 "]", load_factor(load),
               load->keys[0], load->keys[1], load->keys[2]);
    putchar('}');
}


static void print_index_text(const far_index *index, const far_usage *usage, const far_load *load) {
    printf("%s: %s%s%s\n", index->name, index->kind->name, *index->options_text ? ", " : "", index->options_text);
    printf("  keys             %" PRIu64 "\n  key bytes        %" PRIu64 "\n  value bytes      %" PRIu64 "\n",
           usage->keys, usage->key_bytes, usage->value_bytes);
    printf("  pool bytes       %" PRIu64 "\n  of them, index   %" PRIu64 "\n", usage->pool_bytes,
           usage->pool_index_bytes);
    if (load->slots)
        printf("  load factor      %.3f\n  keys by level    %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", load_factor(load),
               load->keys[0], load->keys[1], load->keys[2]);
}


static int stat_index(cli_pool *p, const char *name, const char *separator) {
    far_index *index = NULL;
    far_usage usage;
    far_load load;
    int err = measure_index(p, name, &index, &usage, &load);
    if (err >= 0)
        fputs(separator, stdout);
    if (err >= 0 && p->json)
        print_index_json(index, &usage, &load);
    else if (err >= 0)
        print_index_text(index, &usage, &load);
    far_index_close(index);
    return err;
}


typedef struct name_list {
    char (*names)[FAR_NAME_MAX + 1];
    size_t count;
} name_list;


static int keep_name(void *ctx, const char *name, const char *kind) {
    name_list *list = ctx;
    (void)kind;
    void *names = realloc(list->names, (list->count + 1) * sizeof(*list->names));
    if (!names)
        return 1;
    list->names = names;
    snprintf(list->names[list->count++], sizeof(*list->names), "%s", name);
    return 0;
}


static int stat_pool(cli_pool *p) {
    far_pool_usage usage = {0};
    name_list list = {0};
    int err = far_pool_stat(p->session, &usage);
    if (err >= 0)
        err = far_index_list(p->session, keep_name, &list);
    if (err >= 0 && p->json)
        printf("{\"pool\":{\"total\":%" PRIu64 ",\"used\":%" PRIu64 ",\"retired\":%" PRIu64 ",\"free\":%" PRIu64
               ",\"leaked\":%" PRIu64 ",\"memory_nodes\":%" PRIu64 ",\"sessions\":%" PRIu64 ",\"epoch\":%" PRIu64
               "},\n\"indexes\":[",
               usage.total, usage.used, usage.retired, usage.free, usage.leaked, usage.memory_nodes, usage.sessions,
               usage.epoch);
    else if (err >= 0)
        printf("pool\n  total            %" PRIu64 "\n  used             %" PRIu64 "\n  retired          %" PRIu64
               "\n  free             %" PRIu64 "\n  leaked           %" PRIu64 "\n  memory nodes     %" PRIu64
               "\n  sessions         %" PRIu64 "\n  epoch            %" PRIu64 "\n",
               usage.total, usage.used, usage.retired, usage.free, usage.leaked, usage.memory_nodes, usage.sessions,
               usage.epoch);
    bool any = false, begun = err >= 0;
    for (size_t i = 0; err >= 0 && i < list.count; i++) {
        err = stat_index(p, list.names[i], !p->json ? "" : any ? ",\n " : "\n ");
        any |= err >= 0;
        if (err == FAR_ERR_NOT_FOUND) /* dropped meanwhile */
            err = 0;
    }
    if (p->json && begun)
        fputs("]}", stdout);
    free(list.names);
    return err;
}


int cli_stat(int argc, char **argv) {
    cli_pool p = {0};
    const cli_option options[] = {CLI_POOL_OPTIONS(&p), CLI_OPTIONS_END};
    int count, status;
    if (cli_operands(argc, argv, "stat [NAME]", options,
                     "Sizes are in bytes. Leaks are known after 'farindex check'.\n", 0, 1, &count, &status))
        return status;
    if ((status = cli_pool_open("stat", &p, NULL)) != 0)
        return status;
    cli_pool_watch(&p, "stat", 1);
    int err = count ? stat_index(&p, argv[0], "") : stat_pool(&p);
    cli_progress_end();
    if (err == FAR_ERR_NOT_FOUND && count)
        status = cli_failed("there is no index '%s'", argv[0]);
    else if (err < 0)
        status = cli_pool_failed();
    else if (p.json)
        putchar('\n');
    return cli_pool_close(&p, status);
}


/* ---- check ---- */

typedef struct checking {
    bool json;
    uint64_t problems;
} checking;


static int print_problem(void *ctx, const char *what) {
    checking *c = ctx;
    if (c->json) {
        fputs(c->problems ? ",\n " : "\n ", stdout);
        cli_json_string(stdout, what);
    } else {
        printf("%s\n", what);
    }
    c->problems++;
    return 0;
}


static int count_leaked(cli_pool *p, uint64_t *leaked) {
    far_pool_usage usage = {0};
    int err = far_pool_stat(p->session, &usage);
    *leaked = usage.leaked;
    return err;
}


static int skip_problem(void *ctx, const char *what) {
    (void)ctx, (void)what;
    return 0;
}


/* The repair goes over all of it again, and tells what it finds if there was nothing to tell before. */
static int check(cli_pool *p, bool repair, checking *c, uint64_t *leaked, uint64_t *left) {
    int err = p->index ? far_index_check(p->session, p->index, print_problem, c)
                       : far_pool_check(p->session, 0, print_problem, c);
    if (err >= 0 && (!p->index || repair))
        err = count_leaked(p, leaked);
    *left = *leaked;
    if (err >= 0 && repair)
        err = far_pool_check(p->session, 1, c->problems ? skip_problem : print_problem, c);
    if (err >= 0 && repair)
        err = count_leaked(p, left);
    return err < 0 ? err : 0;
}


/* Of what leaked before; somebody may have died since. */
static uint64_t repaired_of(uint64_t leaked, uint64_t left) {
    return leaked > left ? leaked - left : 0;
}


static void print_check(const checking *c, bool repair, uint64_t leaked, uint64_t left) {
    if (c->json)
        printf("],\"leaked\":%" PRIu64, leaked);
    else
        printf("check: %" PRIu64 " problems, %" PRIu64 " leaked bytes", c->problems, leaked);
    if (repair)
        printf(c->json ? ",\"repaired\":%" PRIu64 : ", %" PRIu64 " repaired", repaired_of(leaked, left));
    puts(c->json ? "}" : "");
}


int cli_check(int argc, char **argv) {
    cli_pool p = {0};
    checking c = {0};
    bool repair = false;
    uint64_t leaked = 0, left = 0;
    const cli_option options[] = {
        CLI_POOL_OPTIONS(&p),
        {"repair", CLI_FLAG, &repair, NULL, "finishes the work of dead clients and frees leaks"},
        CLI_OPTIONS_END,
    };
    int count, status;
    if (cli_operands(argc, argv, "check [NAME] [--repair]", options,
                     "Verifies one index, or all of the pool with a search for leaks, beside live clients.\n"
                     "Exit status 0 only if nothing is left wrong.\n",
                     0, 1, &count, &status))
        return status;
    if ((status = cli_pool_open("check", &p, count ? argv[0] : NULL)) != 0)
        return status;
    c.json = p.json;
    if (c.json)
        fputs("{\"problems\":[", stdout);
    cli_pool_watch(&p, "check", repair ? 2 : 1);
    int err = check(&p, repair, &c, &leaked, &left);
    cli_progress_end();
    if (err >= 0)
        print_check(&c, repair, leaked, left);
    else if (c.json)
        puts("],\"error\":true}");
    if (err < 0)
        status = cli_pool_failed();
    else if (c.problems || left)
        status = CLI_FAILED;
    return cli_pool_close(&p, status);
}


/* ---- evict ---- */

static void print_command_of(int64_t process) {
    char path[64], text[64] = "?";
    snprintf(path, sizeof(path), "/proc/%" PRId64 "/comm", process);
    FILE *file = fopen(path, "re");
    if (file && !fgets(text, sizeof(text), file))
        strcpy(text, "?");
    if (file)
        fclose(file);
    text[strcspn(text, "\n")] = 0;
    printf("\t%s\n", text);
}


static int print_client(void *ctx, const far_client_info *client) {
    listing *l = ctx;
    if (client->own)
        return 0;
    if (l->json) {
        printf("%s{\"client\":%u,\"handle\":%u,\"process\":%" PRId64 "}", l->count++ ? ",\n " : "\n ", client->id,
               client->handle, client->process);
    } else {
        printf("%u\t%" PRId64, client->id, client->process);
        print_command_of(client->process);
    }
    return 0;
}


static int parse_client(const char *text, unsigned *id) {
    char *end;
    errno = 0;
    unsigned long number = strtoul(text, &end, 10);
    if (errno || end == text || *end || *text == '-' || *text == '+' || number == 0 || number > 16382)
        return cli_wrong_usage("evict", "CLIENT: '%s' is not a number of a client; --list shows them", text);
    *id = (unsigned)number;
    return 0;
}


int cli_evict(int argc, char **argv) {
    cli_pool p = {0};
    listing l = {0};
    bool list = false;
    unsigned id = 0;
    uint64_t process = 0;
    const cli_option options[] = {
        CLI_POOL_OPTIONS(&p),
        {"list", CLI_FLAG, &list, NULL, "lists the clients: number, process, command"},
        {"process", CLI_NUMBER, &process, "PID", "only if the client is of this process"},
        CLI_OPTIONS_END,
    };
    int count, status;
    if (cli_operands(
            argc, argv, "evict CLIENT [--process PID] | evict --list", options,
            "Ends the process of a client with SIGKILL, for good; the others repair what it left, and go on.\n", 0, 1,
            &count, &status))
        return status;
    if (list == (count == 1))
        return cli_wrong_usage("evict", "either CLIENT or --list");
    if (!list && (status = parse_client(argv[0], &id)) != 0)
        return status;
    if ((status = cli_pool_open("evict", &p, NULL)) != 0)
        return status;
    far_client_info killed = {0};
    l.json = p.json;
    if (list && l.json)
        putchar('[');
    int err =
        list ? far_pool_clients(p.session, print_client, &l) : far_pool_evict(p.session, id, (int64_t)process, &killed);
    if (list && l.json)
        puts("\n]");
    if (err < 0)
        status = cli_pool_failed();
    else if (!list && p.json)
        printf("{\"client\":%u,\"process\":%" PRId64 "}\n", killed.id, killed.process);
    else if (!list)
        printf("evict: client %u, process %" PRId64 "\n", killed.id, killed.process);
    return cli_pool_close(&p, status);
}
