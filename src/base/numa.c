/* Asks the kernel on which NUMA nodes pages of this process are located, without touching the pages. */
#define _GNU_SOURCE
#include "base/numa.h"

#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>


void far_numa_of(void *const *pages, unsigned count, int *nodes) {
    /* Without a list of target nodes, move_pages moves nothing and only returns the node of each page. */
    long failed = syscall(SYS_move_pages, 0, (unsigned long)count, pages, NULL, nodes, 0);
    for (unsigned i = 0; i < count; i++)
        if (failed || nodes[i] < 0) /* the kernel returned an error code for this page */
            nodes[i] = FAR_NUMA_UNKNOWN;
}
