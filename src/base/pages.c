/* Memory from the operating system, without the heap (pages.h). */
#define _GNU_SOURCE /* mremap */
#include "base/pages.h"

#include <sys/mman.h>

void *far_pages_alloc(size_t bytes) {
    void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return pages == MAP_FAILED ? NULL : pages;
}


void *far_pages_enlarge(void *pages, size_t bytes, size_t more) {
    void *moved = mremap(pages, bytes, more, MREMAP_MAYMOVE);
    return moved == MAP_FAILED ? NULL : moved;
}


void far_pages_free(void *pages, size_t bytes) {
    if (pages)
        munmap(pages, bytes);
}
