/* Arrays that grow by doubling, without a word for their capacity. */
#ifndef FAR_BASE_GROW_H
#define FAR_BASE_GROW_H

#include <stddef.h>
#include <stdlib.h>

/* Room for one more behind `count` items of so many bytes. The array, moved perhaps; NULL: no memory, it is as it was. */
static inline void *far_grow(void *items, size_t count, size_t bytes) {
    return count & (count - 1) ? items : realloc(items, (count ? 2 * count : 1) * bytes);
}

#endif
