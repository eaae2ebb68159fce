/* The NUMA nodes on which pages of this process are located. */
#ifndef FAR_BASE_NUMA_H
#define FAR_BASE_NUMA_H

/* node number of a page that is not present, or for which the kernel does not report the NUMA node */
#define FAR_NUMA_UNKNOWN (-1)

void far_numa_of(void *const *pages, unsigned count, int *nodes);

#endif
