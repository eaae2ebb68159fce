/* On which NUMA nodes pages of this process lie: the kernel is asked, no page is touched. */
#define _GNU_SOURCE
#include "base/numa.h"

#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>


void far_numa_of(void *const *pages, unsigned count, int *nodes) {
    /* Without a list of targets move_pages moves nothing: it only tells. */
    long failed = syscall(SYS_move_pages, 0, (unsigned long)count, pages, NULL, nodes, 0);
    for (unsigned i = 0; i < count; i++)
        if (failed || nodes[i] < 0) /* an error code of this page */
            nodes[i] = FAR_NUMA_UNKNOWN;
}
