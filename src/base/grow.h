/* Arrays that grow by doubling. The capacity is not stored: it is the number of items, rounded up to a power of two. */
#ifndef FAR_BASE_GROW_H
#define FAR_BASE_GROW_H

#include <stddef.h>
#include <stdlib.h>

/* Ensures room for one more item after `count` items of `bytes` bytes. Returns the array, which may have moved, or NULL
 * if memory is short; then the array is unchanged. */
static inline void *far_grow(void *items, size_t count, size_t bytes) {
    return count & (count - 1) ? items : realloc(items, (count ? 2 * count : 1) * bytes);
}

#endif
