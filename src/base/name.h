/* What a process is called, for those who watch a pool. */
#ifndef FAR_BASE_NAME_H
#define FAR_BASE_NAME_H

#include <stdint.h>

#define FAR_HOST_MAX    63
#define FAR_COMMAND_MAX 31

typedef struct far_name {
    int64_t process; /* 0: not known */
    char host[FAR_HOST_MAX + 1], command[FAR_COMMAND_MAX + 1];
} far_name;

void far_name_self(far_name *name);

#endif
