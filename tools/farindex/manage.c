/* The subcommands create, drop and list, which work on whole indexes, check, which also repairs pools, and evict. */
#include "base/parse.h"
#include "base/text.h"
#include "client/end_client.h"
#include "client/snapshot.h"
#include "index/index.h"
#include "tools/farindex/data.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>


/* ---- create, drop, list ---- */

/* Reports arguments that the library refused, with a similar kind or option if one of them is not known. */
static int report_wrong_index(const char *kind, const char *index_options) {
    char why[512], hint[CLI_HINT] = "", error[192];
    snprintf(why, sizeof(why), "%s", far_last_error());
    far_option_list list;
    if (!far_index_kind_named(kind))
        cli_suggest_kind(kind, hint);
    far_options_begin(&list, index_options, ',');
    while (!*hint && far_options_next(&list, error, sizeof(error)) > 0) {
        char unknown[96];
        snprintf(unknown, sizeof(unknown), "option %s: kind", list.name);
        if (strncmp(why, unknown, strlen(unknown)) == 0)
            cli_suggest_index_option(kind, list.name, hint);
    }
    return cli_wrong_usage("create", "%s%s", why, hint);
}


int cli_create(int argc, char **argv) {
    cli_pool p = {.creates = true};
    const char *index_options = NULL;
    const cli_option options[] = {
        CLI_POOL_OPTIONS(&p),
        {"options", CLI_TEXT, &index_options, "NAME=VALUE,..", "options of the index; 'farindex kinds' lists them"},
        CLI_OPTIONS_END,
    };
    int count, status;
    if (cli_operands(argc, argv, "create NAME KIND [--options \"name=value,..\"]", options,
                     "A pool that does not exist is created if its URI has a size, as in shm:/dev/shm/p?size=1G; a "
                     "message reports that.\n",
                     2, 2, &count, &status))
        return status;
    if ((status = cli_pool_open("create", &p, NULL)) != 0)
        return status;
    int err = far_index_create(p.session, argv[0], argv[1], index_options, &p.index);
    if (err == FAR_ERR_INVALID)
        status = report_wrong_index(argv[1], index_options);
    else if (err == FAR_ERR_EXISTS)
        status = cli_exists("an index '%s' exists already", argv[0]);
    else if (err < 0)
        status = cli_operation_failed(err);
    else if (p.json)
        cli_print_done();
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
        status = cli_not_found("there is no index '%s'", argv[0]);
    else if (err < 0)
        status = cli_operation_failed(err);
    else if (p.json)
        cli_print_done();
    return cli_pool_close(&p, status);
}


static void print_listed(const cli_pool *p, const far_snapshot_index_info *index, cli_json_list *list) {
    if (!p->json) {
        printf("%s\t%s\t%" PRIu64 "\t%" PRIu64 "\n", index->name, index->kind, index->keys, index->bytes);
        return;
    }
    json_t *object = cli_json_object();
    cli_json_set_text(object, "name", index->name);
    cli_json_set_text(object, "kind", index->kind);
    cli_json_set_count(object, "keys", index->keys);
    cli_json_set_count(object, "bytes", index->bytes);
    cli_json_list_add(list, object);
}


int cli_list(int argc, char **argv) {
    cli_pool p = {0};
    cli_json_list list = {.file = stdout};
    far_snapshot survey;
    const cli_option options[] = {CLI_POOL_OPTIONS(&p), CLI_OPTIONS_END};
    int count, status;
    if (cli_operands(argc, argv, "list", options,
                     "Prints a line 'name TAB kind TAB keys TAB bytes' for each index. The number of keys is the sum "
                     "that clients "
                     "have reported;\n'stat --exact' counts the keys.\n",
                     0, 0, &count, &status))
        return status;
    if ((status = cli_pool_open("list", &p, NULL)) != 0)
        return status;
    int err = far_snapshot_take(p.session, &survey);
    for (size_t i = 0; err >= 0 && i < survey.index_count; i++)
        print_listed(&p, &survey.indexes[i], &list);
    if (p.json && err >= 0)
        cli_json_list_end(&list);
    far_snapshot_free(&survey);
    return cli_pool_close(&p, err < 0 ? cli_operation_failed(err) : 0);
}


void cli_names_add(cli_names *list, const char *name) {
    void *names = realloc(list->names, (list->count + 1) * sizeof(*list->names));
    if (!names)
        exit(cli_failed("no memory for the names of indexes"));
    list->names = names;
    snprintf(list->names[list->count++], sizeof(*list->names), "%s", name);
}


static int add_name(void *ctx, const char *name, const char *kind) {
    (void)kind;
    cli_names_add(ctx, name);
    return 0;
}


int cli_list_names(cli_pool *p, cli_names *list) {
    int err = far_index_list(p->session, add_name, list);
    return err < 0 ? cli_operation_failed(err) : 0;
}


/* ---- check ---- */

typedef struct check_output {
    json_t *list; /* the array of problems with --json; otherwise NULL */
    uint64_t problems;
} check_output;


static int print_problem(void *ctx, const char *what) {
    check_output *c = ctx;
    if (c->list)
        cli_json_append(c->list, cli_json_text(what));
    else
        printf("%s\n", what);
    c->problems++;
    return 0;
}


static int count_leaked(cli_pool *p, uint64_t *leaked) {
    far_pool_usage usage = {0};
    int err = far_pool_stat(p->session, &usage);
    *leaked = usage.leaked;
    return err;
}


typedef struct repair_output {
    uint64_t problems;
    char last[320]; /* the last problem */
} repair_output;


static int keep_last_problem(void *ctx, const char *what) {
    repair_output *o = ctx;
    o->problems++;
    snprintf(o->last, sizeof(o->last), "%s", what);
    return 0;
}


typedef struct check_result {
    uint64_t leaked;       /* leaked bytes before the repair */
    uint64_t leaked_after; /* leaked bytes after the repair, or the same number without one */
    int problems_left;     /* number of problems that remain, after the repair if there is one */
} check_result;


/* Repairs the pool, which checks the whole pool a second time. Its problems are printed only if the first check found
 * none, so that no problem is printed twice. If the repair reports one problem more than the check, this problem is the
 * reason why the repair was refused. */
static int repair_pool(cli_pool *p, check_output *c) {
    repair_output more = {0};
    if (c->problems == 0)
        return far_pool_check(p->session, 1, print_problem, c);
    const uint64_t before = c->problems;
    int err = far_pool_check(p->session, 1, keep_last_problem, &more);
    if (err >= 0 && more.problems > before)
        print_problem(c, more.last);
    return err;
}


/* Checks the index or the pool, and repairs the pool if `repair` is set. */
static int run_check(cli_pool *p, bool repair, check_output *c, check_result *r) {
    int err = p->index ? far_index_check(p->session, p->index, print_problem, c)
                       : far_pool_check(p->session, 0, print_problem, c);
    r->problems_left = err;
    if (err >= 0 && (!p->index || repair))
        err = count_leaked(p, &r->leaked);
    r->leaked_after = r->leaked;
    if (err >= 0 && repair)
        r->problems_left = err = repair_pool(p, c);
    if (err >= 0 && repair)
        err = count_leaked(p, &r->leaked_after);
    return err < 0 ? err : 0;
}


/* Returns the leaked bytes that the repair has freed. It never returns a negative number, although another client may
 * have failed, and leaked more, in the meantime. */
static uint64_t freed_by_repair(const check_result *r) {
    return r->leaked > r->leaked_after ? r->leaked - r->leaked_after : 0;
}


static void print_check(const check_output *c, bool repair, const check_result *r) {
    printf("check: %" PRIu64 " problems, %" PRIu64 " leaked bytes", c->problems, r->leaked);
    if (repair)
        printf(", %" PRIu64 " repaired", freed_by_repair(r));
    putchar('\n');
    if (!repair || c->problems == 0)
        return;
    puts(r->problems_left
             ? "check: the problems cannot be repaired. 'farindex dump --salvage' or 'copy --salvage' saves the "
               "readable pairs of a damaged index, and 'drop' removes the index."
             : "check: the problems are repaired.");
}


/* Prints the result of a check. If the check failed with an error, the result contains the problems found before. */
static void print_check_as_json(const check_output *c, bool failed, bool repair, const check_result *r) {
    json_t *result = cli_json_object();
    cli_json_set(result, "problems", json_incref(c->list));
    if (failed) {
        cli_json_set_bool(result, "error", true);
    } else {
        cli_json_set_count(result, "leaked", r->leaked);
        if (repair) {
            cli_json_set_count(result, "repaired", freed_by_repair(r));
            cli_json_set(result, "left", json_integer(r->problems_left));
        }
    }
    cli_json_print(stdout, result);
}


int cli_check(int argc, char **argv) {
    cli_pool p = {0};
    check_output c = {0};
    bool repair = false;
    check_result result = {0};
    const cli_option options[] = {
        CLI_POOL_OPTIONS(&p),
        {"repair", CLI_FLAG, &repair, NULL,
         "finishes the work of failed clients, frees leaks, repairs damage if no other client has the pool open"},
        CLI_OPTIONS_END,
    };
    int count, status;
    if (cli_operands(argc, argv, "check [NAME] [--repair]", options,
                     "Verifies one index, or the whole pool, where it also searches for leaks. Other clients may work "
                     "meanwhile.\n"
                     "Exit status 0 only if no problem remains.\n",
                     0, 1, &count, &status))
        return status;
    p.repairs = repair;
    if ((status = cli_pool_open("check", &p, count ? argv[0] : NULL)) != 0)
        return status;
    c.list = p.json ? cli_json_array() : NULL;
    cli_pool_watch(&p, "check", repair ? 2 : 1);
    int err = run_check(&p, repair, &c, &result);
    cli_progress_end();
    if (p.json)
        print_check_as_json(&c, err < 0, repair, &result);
    else if (err >= 0)
        print_check(&c, repair, &result);
    json_decref(c.list);
    if (err < 0)
        status = cli_operation_failed(err);
    else if (result.problems_left || result.leaked_after)
        status = CLI_NOT_FOUND;
    return cli_pool_close(&p, status);
}


/* ---- evict ---- */

typedef struct client_output { /* the state of 'evict --list' */
    bool json;
    cli_json_list list; /* the array of clients with --json */
    far_snapshot survey;
} client_output;


/* Prints the names of the indexes that the handle has open, separated by commas. */
static void print_open_indexes(const client_output *l, const far_snapshot_handle_info *handle) {
    bool any = false;
    for (size_t i = 0; i < handle->bulletin.open_count; i++) {
        const far_snapshot_index_info *index = far_snapshot_index_by_uid(&l->survey, handle->bulletin.open[i]);
        if (!index)
            continue;
        printf("%s%s", any ? "," : "", index->name);
        any = true;
    }
}


static json_t *open_indexes_as_json(const client_output *l, const far_snapshot_handle_info *handle) {
    json_t *names = cli_json_array();
    for (size_t i = 0; i < handle->bulletin.open_count; i++) {
        const far_snapshot_index_info *index = far_snapshot_index_by_uid(&l->survey, handle->bulletin.open[i]);
        if (index)
            cli_json_append(names, cli_json_text(index->name));
    }
    return names;
}


static void print_client_json(client_output *l, const far_client_info *client, const far_snapshot_handle_info *handle,
                              const char *command, const char *host) {
    json_t *object = cli_json_object();
    cli_json_set_count(object, "client", client->id);
    cli_json_set_count(object, "handle", client->handle);
    cli_json_set(object, "process", json_integer(handle->process));
    cli_json_set_text(object, "command", command);
    cli_json_set_text(object, "host", host);
    cli_json_set(object, "indexes", open_indexes_as_json(l, handle));
    cli_json_list_add(&l->list, object);
}


/* Prints one line for each handle, under the number of its system session, as `top` does. Prints nothing for a client
 * that is another session of its handle, or that belongs to this process (`own`). */
static int print_client(void *ctx, const far_client_info *client) {
    client_output *l = ctx;
    far_snapshot_handle_info unknown = {.process = client->process}; /* used if the client connected after the survey */
    const far_snapshot_handle_info *handle = &unknown;
    for (size_t i = 0; i < l->survey.handle_count; i++)
        if (l->survey.handles[i].id == client->handle)
            handle = &l->survey.handles[i];
    if (client->own || client->id != client->handle)
        return 0;
    char command[64], host[FAR_HOST_MAX + 1];
    cli_handle_names(handle, command, host);
    if (l->json) {
        print_client_json(l, client, handle, command, host);
    } else {
        printf("%u\t%" PRId64 "\t%s\t%s\t", client->id, handle->process, command, host);
        print_open_indexes(l, handle);
        putchar('\n');
    }
    return 0;
}


static int list_clients(cli_pool *p) {
    client_output l = {.json = p->json, .list = {.file = stdout}};
    int err = far_snapshot_take(p->session, &l.survey);
    if (err >= 0)
        err = far_pool_clients(p->session, print_client, &l);
    if (l.json && (err >= 0 || l.list.is_open))
        cli_json_list_end(&l.list);
    far_snapshot_free(&l.survey);
    return err;
}


static void print_evicted(const cli_pool *p, const far_client_info *client) {
    if (!p->json) {
        printf("evict: client %u, process %" PRId64 "\n", client->id, client->process);
        return;
    }
    json_t *result = cli_json_object();
    cli_json_set_count(result, "client", client->id);
    cli_json_set(result, "process", json_integer(client->process));
    cli_json_print(stdout, result);
}


static int parse_client(const char *text, unsigned *id) {
    char *end;
    errno = 0;
    unsigned long number = strtoul(text, &end, 10);
    if (errno || end == text || *end || *text == '-' || *text == '+' || number == 0 || number > FAR_CLIENT_ID_MAX)
        return cli_wrong_usage("evict", "CLIENT: '%s' is not a client number; 'evict --list' lists the clients", text);
    *id = (unsigned)number;
    return 0;
}


int cli_evict(int argc, char **argv) {
    cli_pool p = {0};
    bool list = false, force = false;
    unsigned id = 0;
    uint64_t process = 0;
    const cli_option options[] = {
        CLI_POOL_OPTIONS(&p),
        {"list", CLI_FLAG, &list, NULL, "prints number, process, command, host and open indexes of each client"},
        {"process", CLI_NUMBER, &process, "PID", "fails if the client belongs to another process"},
        {"force", CLI_FLAG, &force, NULL, "lets root end a process of another user (shm pools)"},
        CLI_OPTIONS_END,
    };
    int count, status;
    if (cli_operands(
            argc, argv, "evict CLIENT [--process PID] [--force] | evict --list", options,
            "Evicts a client; other clients repair the state that it leaves behind. On a shm pool its process "
            "is ended with "
            "SIGKILL, if it\nholds the client by the word of the kernel and belongs to the calling user. Over a "
            "network its sessions are cut; the process\nsurvives, but none of its verbs takes effect any "
            "more.\n",
            0, 1, &count, &status))
        return status;
    if (list == (count == 1))
        return cli_wrong_usage("evict", "give either CLIENT or --list");
    if (force && geteuid() != 0)
        return cli_wrong_usage("evict", "--force: only root may end processes of other users");
    if (!list && (status = parse_client(argv[0], &id)) != 0)
        return status;
    if ((status = cli_pool_open("evict", &p, NULL)) != 0)
        return status;
    far_client_info killed = {0};
    int err = list ? list_clients(&p) : far_pool_evict(p.session, id, (int64_t)process, force, &killed);
    if (err == FAR_ERR_NOT_FOUND)
        status = cli_not_found("%s", far_last_error());
    else if (err < 0)
        status = cli_operation_failed(err);
    else if (!list)
        print_evicted(&p, &killed);
    return cli_pool_close(&p, status);
}
