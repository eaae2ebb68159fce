/* Opening the pool that a command works on. */
#include "cli/data.h"

#include <stdlib.h>
#include <string.h>


int cli_pool_failed(void) {
    return cli_failed("%s", far_last_error());
}


static bool ends_with_process(const char *uri) {
    return strncmp(uri, "local:", 6) == 0 || strncmp(uri, "sim:", 4) == 0;
}


int cli_pool_open(const char *command, cli_pool *p, const char *index) {
    far_pool_options options = FAR_POOL_OPTIONS_INIT;
    options.cache_bytes = p->cache;
    if (!p->uri)
        p->uri = getenv("FARINDEX_POOL");
    if (!p->uri || !*p->uri)
        return cli_wrong_usage(command, "which pool? give --pool URI, or set FARINDEX_POOL");
    if (ends_with_process(p->uri))
        return cli_wrong_usage(command, "'%s' would end with this command; a pool that stays is shm:/path?size=SIZE",
                               p->uri);
    cli_catch_closed_output();
    int err = far_pool_open(p->uri, &options, &p->pool);
    if (err == FAR_ERR_INVALID)
        return cli_wrong_usage(command, "--pool: %s", far_last_error());
    if (err >= 0)
        err = far_session_open(p->pool, &p->session);
    if (err >= 0 && index) {
        err = far_index_open(p->session, index, &p->index);
        if (err == FAR_ERR_NOT_FOUND) {
            cli_failed("there is no index '%s'", index);
            return cli_pool_close(p, CLI_FAILED);
        }
    }
    return err < 0 ? cli_pool_close(p, cli_pool_failed()) : 0;
}


int cli_pool_close(cli_pool *p, int status) {
    far_index_close(p->index);
    far_session_close(p->session);
    far_pool_close(p->pool);
    p->index = NULL;
    p->session = NULL;
    p->pool = NULL;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    return status || cli_output_is_closed() ? CLI_FAILED : cli_failed("the output could not be written");
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
