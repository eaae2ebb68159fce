/* Opens and closes the pool that a command works on (cli_pool_open, cli_pool_close). In the shell all commands share
 * one pool handle and one session; otherwise each command opens its own. */
#include "base/error.h"
#include "client/private_copy.h"
#include "client/snapshot.h"
#include "pool/handle.h"
#include "tools/farindex/data.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* pairs between two calls of cli_progress, because reading the clock for each pair would take longer than some
 * operations */
#define PAIRS_STEP    64
#define SALVAGE_TRIES 16 /* attempts to open an index of a damaged pool */

static cli_pool shell_pool; /* the pool of the shell; `shell_pool.pool` is NULL outside of the shell */


int cli_pool_failed(void) {
    return cli_failed("%s", far_last_error());
}


int cli_operation_failed(int err) {
    return err == FAR_ERR_BUSY     ? cli_conflict("%s", far_last_error())
           : err == FAR_ERR_EXISTS ? cli_exists("%s", far_last_error())
                                   : cli_pool_failed();
}


void cli_print_done(void) {
    json_t *result = cli_json_object();
    cli_json_set_bool(result, "done", true);
    cli_json_print(stdout, result);
}


void cli_print_pairs(const cli_pool *p, const char *command, uint64_t pairs) {
    if (!p->json) {
        printf("%s: %" PRIu64 " pairs\n", command, pairs);
        return;
    }
    json_t *result = cli_json_object();
    cli_json_set_count(result, "pairs", pairs);
    cli_json_print(stdout, result);
}


void cli_print_salvaged(const cli_pool *p, const char *command, uint64_t pairs, uint64_t skipped) {
    if (!p->json) {
        printf("%s: %" PRIu64 " pairs, %" PRIu64 " keys skipped\n", command, pairs, skipped);
        return;
    }
    json_t *result = cli_json_object();
    cli_json_set_count(result, "pairs", pairs);
    cli_json_set_count(result, "skipped", skipped);
    cli_json_print(stdout, result);
}


void cli_json_set_pool_usage(json_t *pool, const far_pool_usage *usage) {
    cli_json_set_count(pool, "total", usage->total);
    cli_json_set_count(pool, "used", usage->used);
    cli_json_set_count(pool, "retired", usage->retired);
    cli_json_set_count(pool, "free", usage->free);
    cli_json_set_count(pool, "leaked", usage->leaked);
    cli_json_set_count(pool, "memory_nodes", usage->memory_nodes);
    cli_json_set_count(pool, "sessions", usage->sessions);
    cli_json_set_count(pool, "epoch", usage->epoch);
}


static int find_uri(const char *command, cli_pool *p) {
    if (!p->uri)
        p->uri = shell_pool.uri ? shell_pool.uri : getenv("FARINDEX_POOL");
    if (!p->uri || !*p->uri)
        return cli_wrong_usage(command, "no pool is given; use --pool URI, or set FARINDEX_POOL");
    if (cli_pool_ends_with_process(p->uri))
        return cli_wrong_usage(
            command, "a pool '%s' would end with this command; use a lasting pool, for example shm:/path?size=SIZE",
            p->uri);
    return 0;
}


/* Opens a pool whose superblock was refused again, with permission to repair it. Prints the reason of the refusal if
 * the repair succeeds. */
static int restore_pool(cli_pool *p, far_pool_options *options) {
    char why[256];
    snprintf(why, sizeof(why), "%s", far_last_error());
    options->restore = 1;
    int err = far_pool_open(p->uri, options, &p->pool);
    if (err == 0)
        cli_note("%s: restored", why);
    bool says_why = strstr(far_last_error(), "restored") != NULL;
    return err == FAR_ERR_CORRUPT && !says_why ? far_fail(err, "%s; it cannot be restored", why) : err;
}


/* Opens a private copy of the pool, and reports missing memory nodes. */
static int open_copy(cli_pool *p, far_pool_options *options) {
    options->salvage = 1;
    int err = far_pool_open(p->uri, options, &p->pool);
    if (err == 0 && *(p->missing = far_private_copy_missing(p->pool->fabric)))
        cli_note("memory of the pool is missing: %s", p->missing);
    return err;
}


static int open_pool(const char *command, cli_pool *p) {
    if (!p->salvages && shell_pool.pool && strcmp(p->uri, shell_pool.uri) == 0) {
        p->pool = shell_pool.pool;
        p->session = shell_pool.session;
        return 0;
    }
    far_pool_options options = {.cache_bytes = p->cache, .ignore_refuted = p->ignore_refuted};
    int err =
        p->salvages ? open_copy(p, &options) : cli_pool_open_or_create(p->uri, &options, p->creates, true, &p->pool);
    if (p->repairs && (err == FAR_ERR_CORRUPT || err == FAR_ERR_UNSUPPORTED))
        err = restore_pool(p, &options);
    if (err == FAR_ERR_INVALID)
        return cli_wrong_usage(command, "--pool: %s", far_last_error());
    if (err == FAR_ERR_NOT_FOUND)
        return cli_not_found("%s%s", far_last_error(),
                             p->creates ? ""
                             : strncmp(p->uri, "shm:", 4) == 0
                                 ? "; 'farindex create' and 'farindex load' create it if the URI has a size="
                                 : "; 'farindex create' and 'farindex load' create it");
    if (err >= 0)
        err = far_session_open(p->pool, &p->session);
    return err < 0 ? cli_pool_close(p, cli_operation_failed(err)) : 0;
}


/* Opens the index. In a damaged pool an attempt may fail because the handle adopts a block with damaged tables; a
 * salvage tries again, and then adopts another block. */
int cli_index_open(cli_pool *p, const char *name) {
    int err = far_index_open(p->session, name, &p->index);
    for (unsigned tries = 1; p->salvages && err == FAR_ERR_CORRUPT && tries < SALVAGE_TRIES; tries++)
        err = far_index_open(p->session, name, &p->index);
    return err;
}


int cli_pool_open(const char *command, cli_pool *p, const char *index) {
    int status = find_uri(command, p);
    if (status)
        return status;
    cli_catch_briefly();
    if ((status = open_pool(command, p)) != 0 || !index)
        return status;
    int err = cli_index_open(p, index);
    if (err == FAR_ERR_NOT_FOUND)
        return cli_pool_close(p, cli_not_found("there is no index '%s'", index));
    if (err == FAR_ERR_CORRUPT && p->salvages) /* the index leads to its pairs only from its descriptor */
        return cli_pool_close(p, cli_failed("%s; without its catalog entry and its descriptor an index cannot be "
                                            "salvaged; 'farindex check' shows what else is damaged",
                                            far_last_error()));
    return err < 0 ? cli_pool_close(p, cli_operation_failed(err)) : 0;
}


int cli_pool_close(cli_pool *p, int status) {
    far_index_close(p->index);
    if (p->pool != shell_pool.pool || p->salvages) {
        far_session_close(p->session);
        far_pool_close(p->pool);
    }
    p->index = NULL;
    p->session = NULL;
    p->pool = NULL;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    return status || cli_interrupted() ? CLI_FAILED : cli_failed("the output could not be written");
}


int cli_shell_pool_open(const cli_pool *p) {
    shell_pool = *p;
    return cli_pool_open("shell", &shell_pool, NULL);
}


const cli_pool *cli_shell_pool(void) {
    if (shell_pool.pool &&
        far_pool_poll(shell_pool.pool) == FAR_ERR_FENCED) { /* another client has evicted this handle */
        cli_shell_pool_close();
        cli_shell_pool_open(&shell_pool);
    }
    return &shell_pool;
}


bool cli_shell_is_running(void) {
    return shell_pool.pool != NULL;
}


void cli_shell_pool_close(void) {
    far_session_close(shell_pool.session);
    far_pool_close(shell_pool.pool);
    shell_pool.session = NULL;
    shell_pool.pool = NULL;
}


int cli_operands(int argc, char **argv, const char *usage, const cli_option *options, const char *notes, int min,
                 int max, int *count, int *status) {
    const char *command = argv[0];
    bool help;
    *status = cli_parse(argc, argv, usage, options, notes, count, &help);
    if (*status || help)
        return 1;
    if (*count < min)
        *status = cli_wrong_usage(command, "an argument is missing: farindex %s", usage);
    else if (*count > max)
        *status = cli_wrong_usage(command, "unexpected '%s'; see --help", argv[max]);
    return *status != 0;
}


void cli_pool_watch(cli_pool *p, const char *what, unsigned times) {
    far_pool_usage usage = {0};
    if (cli_progress_is_shown() && far_pool_stat(p->session, &usage) >= 0)
        cli_progress_watch(what, p->session, usage.used * times);
}


uint64_t cli_pool_keys(cli_pool *p) {
    far_snapshot survey = {0};
    const far_snapshot_index_info *index = NULL;
    if (cli_progress_is_shown() && far_snapshot_take(p->session, &survey) >= 0)
        index = far_snapshot_index_by_name(&survey, p->index->name);
    uint64_t keys = index ? index->keys : 0;
    far_snapshot_free(&survey);
    return keys;
}


void cli_pairs_progress(const char *what, uint64_t pairs, uint64_t keys) {
    if (pairs % PAIRS_STEP == 0)
        cli_progress(keys ? (double)pairs / (double)keys : -1, "%s: %" PRIu64 " pairs", what, pairs);
}
