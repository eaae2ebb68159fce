/* Opens a pool by its URI, for both programs, and creates it where the command may do that. */
#include "fabric/memory_file.h"
#include "tools/common/cli.h"

#include <string.h>
#include <unistd.h>


bool cli_pool_ends_with_process(const char *uri) {
    return strncmp(uri, "local:", 6) == 0 || strncmp(uri, "sim:", 4) == 0;
}


/* Prints a note if logind removes the file of a new shm pool when the user logs out. */
static void warn_of_logout(const char *uri) {
    char path[4096];
    if (strncmp(uri, "shm:", 4) != 0)
        return;
    snprintf(path, sizeof(path), "%.*s", (int)strcspn(uri + 4, "?"), uri + 4);
    if (far_memory_file_ends_at_logout(path, geteuid(), ""))
        cli_note("%s: " FAR_ENDS_AT_LOGOUT, path);
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
    if (err == 0)
        warn_of_logout(uri);
    return err;
}
