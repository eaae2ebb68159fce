/* The name of a process: host, process id and command. Handles publish it in the pool, so that tools can show which
 * process a client belongs to. */
#ifndef FAR_BASE_NAME_H
#define FAR_BASE_NAME_H

#include <stdint.h>

#define FAR_HOST_MAX    63
#define FAR_COMMAND_MAX 31

typedef struct far_name {
    int64_t process; /* process id on the host; 0: unknown */
    char host[FAR_HOST_MAX + 1], command[FAR_COMMAND_MAX + 1];
} far_name;

void far_name_self(far_name *name);

#endif
