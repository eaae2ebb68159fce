/* Memory that is mapped for one purpose and returned to the operating system when it is freed, so that it does not
 * fragment the heap. Meant for chunks of 16 KiB and more that are allocated and freed again and again. */
#ifndef FAR_BASE_PAGES_H
#define FAR_BASE_PAGES_H

#include <stddef.h>

/* Returns memory that is zero and aligned to a page, or NULL if the process is out of memory. */
void *far_pages_alloc(size_t bytes);
/* Frees the memory, which may be NULL. `bytes` is its current size. */
void far_pages_free(void *pages, size_t bytes);
/* Changes the size of the memory to `more` bytes, without copying it. Returns the memory, which may have moved, or NULL
 * if the process is out of memory; then the memory is unchanged. */
void *far_pages_enlarge(void *pages, size_t bytes, size_t more);

#endif
