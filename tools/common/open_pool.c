/* Opens a pool by its URI, for both programs, and creates it where the command may do that. */
#include "tools/common/cli.h"

#include <string.h>


bool cli_pool_ends_with_process(const char *uri) {
    return strncmp(uri, "local:", 6) == 0 || strncmp(uri, "sim:", 4) == 0;
}


int cli_pool_open_or_create(const char *uri, far_pool_options *options, bool creates, bool reports, far_pool **pool) {
    options->must_exist = !cli_pool_ends_with_process(uri);
    int err = far_pool_open(uri, options, pool);
    if (err != FAR_ERR_NOT_FOUND || !creates)
        return err;
    options->must_exist = 0;
    err = far_pool_open(uri, options, pool);
    if (err == 0 && reports)
        cli_note("created the pool %s", uri);
    return err;
}
