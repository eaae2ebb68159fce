/* farindex create, drop, list, check, evict: indexes, the pool and its clients. */
#include "cli/data.h"
#include "client/end_client.h"
#include "client/survey.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>


/* ---- create, drop, list ---- */

int cli_create(int argc, char **argv) {
    cli_pool p = {.makes = true};
    const char *index_options = NULL;
    const cli_option options[] = {
        CLI_POOL_OPTIONS(&p),
        {"options", CLI_TEXT, &index_options, "NAME=VALUE,..", "of the index; 'farindex kinds' lists them"},
        CLI_OPTIONS_END,
    };
    int count, status;
    if (cli_operands(
            argc, argv, "create NAME KIND [--options \"name=value,..\"]", options,
            "A pool that is not there is made when its URI has a size, and that is told: shm:/dev/shm/p?size=1G\n", 2,
            2, &count, &status))
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


/* Who has the index open, in words; "" if nobody has any more. */
static void name_users(cli_pool *p, const char *name, char *words, size_t size) {
    far_survey survey;
    size_t used = 0;
    *words = 0;
    const far_surveyed_index *index = far_pool_survey(p->session, &survey) < 0 ? NULL : far_survey_named(&survey, name);
    for (size_t i = 0; index && i < survey.handle_count && used < size; i++) {
        const far_surveyed_handle *handle = &survey.handles[i];
        if (handle->own || !far_survey_has_open(handle, index->uid))
            continue;
        char command[64], host[FAR_HOST_MAX + 1];
        cli_handle_names(handle, command, host);
        used += (size_t)snprintf(words + used, size - used, "%s process %" PRId64 " (%s on %s, client %u)",
                                 used ? "," : ":", handle->process, command, host, handle->id);
    }
    far_survey_free(&survey);
}


static int refuse_open(cli_pool *p, const char *name) {
    char users[512], why[512];
    snprintf(why, sizeof(why), "%s", far_last_error());
    name_users(p, name, users, sizeof(users));
    return *users ? cli_failed("'%s' is open somewhere%s", name, users) : cli_failed("'%s': %s", name, why);
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
    else if (err == FAR_ERR_BUSY)
        status = refuse_open(&p, argv[0]);
    else if (err < 0)
        status = cli_pool_failed();
    else if (p.json)
        puts("{\"done\":true}");
    return cli_pool_close(&p, status);
}


static void print_listed(const cli_pool *p, const far_surveyed_index *index, bool first) {
    if (!p->json) {
        printf("%s\t%s\t%" PRIu64 "\t%" PRIu64 "\n", index->name, index->kind, index->keys, index->bytes);
        return;
    }
    fputs(first ? "\n {\"name\":" : ",\n {\"name\":", stdout);
    cli_json_string(stdout, index->name);
    fputs(",\"kind\":", stdout);
    cli_json_string(stdout, index->kind);
    printf(",\"keys\":%" PRIu64 ",\"bytes\":%" PRIu64 "}", index->keys, index->bytes);
}


int cli_list(int argc, char **argv) {
    cli_pool p = {0};
    far_survey survey;
    const cli_option options[] = {CLI_POOL_OPTIONS(&p), CLI_OPTIONS_END};
    int count, status;
    if (cli_operands(argc, argv, "list", options,
                     "Prints a line 'name TAB kind TAB keys TAB bytes' for each index. Keys are as the clients have "
                     "told; 'stat --exact'\ncounts them.\n",
                     0, 0, &count, &status))
        return status;
    if ((status = cli_pool_open("list", &p, NULL)) != 0)
        return status;
    int err = far_pool_survey(p.session, &survey);
    if (p.json && err >= 0)
        putchar('[');
    for (size_t i = 0; err >= 0 && i < survey.index_count; i++)
        print_listed(&p, &survey.indexes[i], i == 0);
    if (p.json && err >= 0)
        puts("\n]");
    far_survey_free(&survey);
    return cli_pool_close(&p, err < 0 ? cli_pool_failed() : 0);
}


static int keep_name(void *ctx, const char *name, const char *kind) {
    cli_names *list = ctx;
    (void)kind;
    void *names = realloc(list->names, (list->count + 1) * sizeof(*list->names));
    if (!names)
        exit(cli_failed("no memory for the names of indexes"));
    list->names = names;
    snprintf(list->names[list->count++], sizeof(*list->names), "%s", name);
    return 0;
}


int cli_list_names(cli_pool *p, cli_names *list) {
    return far_index_list(p->session, keep_name, list) < 0 ? cli_pool_failed() : 0;
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


typedef struct check_result {
    uint64_t leaked;    /* before a repair */
    uint64_t still;     /* ... and after it */
    int problems_stand; /* what is wrong, after the repair if there is one */
} check_result;


/* The repair goes over all of it again, and tells what it finds if there was nothing to tell before. */
static int check(cli_pool *p, bool repair, checking *c, check_result *r) {
    int err = p->index ? far_index_check(p->session, p->index, print_problem, c)
                       : far_pool_check(p->session, 0, print_problem, c);
    r->problems_stand = err;
    if (err >= 0 && (!p->index || repair))
        err = count_leaked(p, &r->leaked);
    r->still = r->leaked;
    if (err >= 0 && repair)
        r->problems_stand = err = far_pool_check(p->session, 1, c->problems ? skip_problem : print_problem, c);
    if (err >= 0 && repair)
        err = count_leaked(p, &r->still);
    return err < 0 ? err : 0;
}


/* Of what leaked before; somebody may have died since. */
static uint64_t repaired_of(const check_result *r) {
    return r->leaked > r->still ? r->leaked - r->still : 0;
}


static void print_check(const checking *c, bool repair, const check_result *r) {
    if (c->json)
        printf("],\"leaked\":%" PRIu64, r->leaked);
    else
        printf("check: %" PRIu64 " problems, %" PRIu64 " leaked bytes", c->problems, r->leaked);
    if (repair)
        printf(c->json ? ",\"repaired\":%" PRIu64 : ", %" PRIu64 " repaired", repaired_of(r));
    if (repair && c->json)
        printf(",\"left\":%d", r->problems_stand);
    puts(c->json ? "}" : "");
    if (!repair || c->json || c->problems == 0)
        return;
    puts(r->problems_stand
             ? "check: the problems cannot be repaired. 'farindex dump' or 'copy' saves what can still be read "
               "of a damaged index, 'drop' removes it."
             : "check: the problems are repaired.");
}


int cli_check(int argc, char **argv) {
    cli_pool p = {0};
    checking c = {0};
    bool repair = false;
    check_result result = {0};
    const cli_option options[] = {
        CLI_POOL_OPTIONS(&p),
        {"repair", CLI_FLAG, &repair, NULL,
         "finishes the work of dead clients, frees leaks, restores the superblock where it can"},
        CLI_OPTIONS_END,
    };
    int count, status;
    if (cli_operands(argc, argv, "check [NAME] [--repair]", options,
                     "Verifies one index, or all of the pool with a search for leaks, beside live clients.\n"
                     "Exit status 0 only if nothing is left wrong.\n",
                     0, 1, &count, &status))
        return status;
    p.restores = repair;
    if ((status = cli_pool_open("check", &p, count ? argv[0] : NULL)) != 0)
        return status;
    c.json = p.json;
    if (c.json)
        fputs("{\"problems\":[", stdout);
    cli_pool_watch(&p, "check", repair ? 2 : 1);
    int err = check(&p, repair, &c, &result);
    cli_progress_end();
    if (err >= 0)
        print_check(&c, repair, &result);
    else if (c.json)
        puts("],\"error\":true}");
    if (err < 0)
        status = cli_pool_failed();
    else if (result.problems_stand || result.still)
        status = CLI_NOT_FOUND;
    return cli_pool_close(&p, status);
}


/* ---- evict ---- */

typedef struct listing { /* of clients */
    bool json;
    unsigned count;
    far_survey survey;
} listing;


static void print_open_indexes(const listing *l, const far_surveyed_handle *handle) {
    bool any = false;
    for (size_t i = 0; i < handle->uid_count; i++) {
        const far_surveyed_index *index = far_survey_index(&l->survey, handle->uids[i]);
        if (!index)
            continue;
        fputs(any ? "," : "", stdout);
        any = true;
        if (l->json)
            cli_json_string(stdout, index->name);
        else
            fputs(index->name, stdout);
    }
}


static void print_client_json(listing *l, const far_client_info *client, const far_surveyed_handle *handle,
                              const char *command, const char *host) {
    printf("%s{\"client\":%u,\"handle\":%u,\"process\":%" PRId64 ",\"command\":", l->count++ ? ",\n " : "\n ",
           client->id, client->handle, handle->process);
    cli_json_string(stdout, command);
    fputs(",\"host\":", stdout);
    cli_json_string(stdout, host);
    fputs(",\"indexes\":[", stdout);
    print_open_indexes(l, handle);
    fputs("]}", stdout);
}


static int print_client(void *ctx, const far_client_info *client) {
    listing *l = ctx;
    far_surveyed_handle nobody = {.process = client->process}; /* the client came after the survey */
    const far_surveyed_handle *handle = &nobody;
    for (size_t i = 0; i < l->survey.handle_count; i++)
        if (l->survey.handles[i].id == client->handle)
            handle = &l->survey.handles[i];
    if (client->own)
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
    listing l = {.json = p->json};
    int err = far_pool_survey(p->session, &l.survey);
    if (err >= 0 && l.json)
        putchar('[');
    if (err >= 0)
        err = far_pool_clients(p->session, print_client, &l);
    if (err >= 0 && l.json)
        puts("\n]");
    far_survey_free(&l.survey);
    return err;
}


static int parse_client(const char *text, unsigned *id) {
    char *end;
    errno = 0;
    unsigned long number = strtoul(text, &end, 10);
    if (errno || end == text || *end || *text == '-' || *text == '+' || number == 0 || number > FAR_CLIENT_ID_MAX)
        return cli_wrong_usage("evict", "CLIENT: '%s' is not a number of a client; --list shows them", text);
    *id = (unsigned)number;
    return 0;
}


int cli_evict(int argc, char **argv) {
    cli_pool p = {0};
    bool list = false;
    unsigned id = 0;
    uint64_t process = 0;
    const cli_option options[] = {
        CLI_POOL_OPTIONS(&p),
        {"list", CLI_FLAG, &list, NULL, "lists the clients: number, process, command, host, open indexes"},
        {"process", CLI_NUMBER, &process, "PID", "only if the client is of this process"},
        CLI_OPTIONS_END,
    };
    int count, status;
    if (cli_operands(argc, argv, "evict CLIENT [--process PID] | evict --list", options,
                     "Ends a client for good; the others repair what it left, and go on. On a shm pool its process is "
                     "ended with\n"
                     "SIGKILL; over a network its sessions are cut: the process lives, and nothing that it still sends "
                     "takes effect.\n",
                     0, 1, &count, &status))
        return status;
    if (list == (count == 1))
        return cli_wrong_usage("evict", "either CLIENT or --list");
    if (!list && (status = parse_client(argv[0], &id)) != 0)
        return status;
    if ((status = cli_pool_open("evict", &p, NULL)) != 0)
        return status;
    far_client_info killed = {0};
    int err = list ? list_clients(&p) : far_pool_evict(p.session, id, (int64_t)process, &killed);
    if (err == FAR_ERR_NOT_FOUND)
        status = cli_not_found("%s", far_last_error());
    else if (err < 0)
        status = cli_pool_failed();
    else if (!list && p.json)
        printf("{\"client\":%u,\"process\":%" PRId64 "}\n", killed.id, killed.process);
    else if (!list)
        printf("evict: client %u, process %" PRId64 "\n", killed.id, killed.process);
    return cli_pool_close(&p, status);
}
