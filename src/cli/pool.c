/* Opening the pool that a command works on. */
#include "base/error.h"
#include "cli/data.h"
#include "client/survey.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define PAIRS_STEP 64 /* looking at the clock for each pair would cost more than some pairs */

static cli_pool kept; /* the shell's: its commands share one pool handle and one session */


int cli_pool_failed(void) {
    return cli_failed("%s", far_last_error());
}


bool cli_pool_ends_with_process(const char *uri) {
    return strncmp(uri, "local:", 6) == 0 || strncmp(uri, "sim:", 4) == 0;
}


static int find_uri(const char *command, cli_pool *p) {
    if (!p->uri)
        p->uri = kept.uri ? kept.uri : getenv("FARINDEX_POOL");
    if (!p->uri || !*p->uri)
        return cli_wrong_usage(command, "which pool? give --pool URI, or set FARINDEX_POOL");
    if (cli_pool_ends_with_process(p->uri))
        return cli_wrong_usage(command, "'%s' would end with this command; a pool that stays is shm:/path?size=SIZE",
                               p->uri);
    return 0;
}


/* Only a command that makes pools does, and says so: with another a wrong URI would take the memory of a pool. */
int cli_pool_open_or_make(const char *uri, far_pool_options *options, bool makes, bool tells, far_pool **pool) {
    options->must_exist = !cli_pool_ends_with_process(uri);
    int err = far_pool_open(uri, options, pool);
    if (err != FAR_ERR_NOT_FOUND || !makes)
        return err;
    options->must_exist = 0;
    err = far_pool_open(uri, options, pool);
    if (err == 0 && tells)
        cli_note("made the pool %s", uri);
    return err;
}


/* The pool was refused, in words. */
static int restore_pool(cli_pool *p, far_pool_options *options) {
    char why[256];
    snprintf(why, sizeof(why), "%s", far_last_error());
    options->restore = 1;
    int err = far_pool_open(p->uri, options, &p->pool);
    if (err == 0)
        cli_note("%s: restored", why);
    return err == FAR_ERR_CORRUPT ? far_fail(err, "%s; it cannot be restored", why) : err;
}


static int open_pool(const char *command, cli_pool *p) {
    if (kept.pool && strcmp(p->uri, kept.uri) == 0) {
        p->pool = kept.pool;
        p->session = kept.session;
        return 0;
    }
    far_pool_options options = {.cache_bytes = p->cache, .ignore_refuted = p->ignore_refuted};
    int err = cli_pool_open_or_make(p->uri, &options, p->makes, true, &p->pool);
    if (p->restores && (err == FAR_ERR_CORRUPT || err == FAR_ERR_UNSUPPORTED))
        err = restore_pool(p, &options);
    if (err == FAR_ERR_INVALID)
        return cli_wrong_usage(command, "--pool: %s", far_last_error());
    if (err == FAR_ERR_NOT_FOUND)
        return cli_not_found("%s%s", far_last_error(),
                             p->makes ? ""
                             : strncmp(p->uri, "shm:", 4) == 0
                                 ? "; 'farindex create' and 'farindex load' make one, with size="
                                 : "; 'farindex create' and 'farindex load' make one");
    if (err >= 0)
        err = far_session_open(p->pool, &p->session);
    return err < 0 ? cli_pool_close(p, cli_pool_failed()) : 0;
}


int cli_pool_open(const char *command, cli_pool *p, const char *index) {
    int status = find_uri(command, p);
    if (status)
        return status;
    cli_catch_briefly();
    if ((status = open_pool(command, p)) != 0 || !index)
        return status;
    int err = far_index_open(p->session, index, &p->index);
    if (err == FAR_ERR_NOT_FOUND)
        return cli_pool_close(p, cli_not_found("there is no index '%s'", index));
    return err < 0 ? cli_pool_close(p, cli_pool_failed()) : 0;
}


int cli_pool_close(cli_pool *p, int status) {
    far_index_close(p->index);
    if (p->pool != kept.pool) {
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


int cli_pool_keep(const cli_pool *p) {
    kept = *p;
    return cli_pool_open("shell", &kept, NULL);
}


const cli_pool *cli_pool_kept(void) {
    if (kept.pool && far_pool_poll(kept.pool) == FAR_ERR_FENCED) { /* the handle was evicted */
        cli_pool_let_go();
        cli_pool_keep(&kept);
    }
    return &kept;
}


void cli_pool_let_go(void) {
    far_session_close(kept.session);
    far_pool_close(kept.pool);
    kept.session = NULL;
    kept.pool = NULL;
}


int cli_operands(int argc, char **argv, const char *usage, const cli_option *options, const char *notes, int min,
                 int max, int *count, int *status) {
    const char *command = argv[0];
    bool help;
    *status = cli_parse(argc, argv, usage, options, notes, count, &help);
    if (*status || help)
        return 1;
    if (*count < min)
        *status = cli_wrong_usage(command, "something is missing: farindex %s", usage);
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
    far_survey survey = {0};
    const far_surveyed_index *index = NULL;
    if (cli_progress_is_shown() && far_pool_survey(p->session, &survey) >= 0)
        index = far_survey_named(&survey, p->index->name);
    uint64_t keys = index ? index->keys : 0;
    far_survey_free(&survey);
    return keys;
}


void cli_pairs_progress(const char *what, uint64_t pairs, uint64_t keys) {
    if (pairs % PAIRS_STEP == 0)
        cli_progress(keys ? (double)pairs / (double)keys : -1, "%s: %" PRIu64 " pairs", what, pairs);
}
