/* On which NUMA nodes pages of this process lie. */
#ifndef FAR_BASE_NUMA_H
#define FAR_BASE_NUMA_H

#define FAR_NUMA_UNKNOWN (-1) /* the page is not there, or the kernel does not tell */

void far_numa_of(void *const *pages, unsigned count, int *nodes);

#endif
