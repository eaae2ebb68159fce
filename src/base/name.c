/* Determines the host, process id and command of this process (name.h). */
#define _GNU_SOURCE
#include "base/name.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>


void far_name_self(far_name *name) {
    *name = (far_name){.process = getpid()};
    if (gethostname(name->host, FAR_HOST_MAX) < 0)
        strcpy(name->host, "?");
    strncpy(name->command, program_invocation_short_name, FAR_COMMAND_MAX);
}
