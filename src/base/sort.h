/* Sorting in place. Unlike qsort, far_sort allocates no memory, so a large sort leaves no hole in the heap. It is a heap
 * sort: the first `count` items form a heap, in which no item is smaller than its children 2 * at + 1 and 2 * at + 2. */
#ifndef FAR_BASE_SORT_H
#define FAR_BASE_SORT_H

#include <assert.h>
#include <stddef.h>
#include <string.h>

#define FAR_SORT_ITEM_MAX 64 /* largest size of an item in bytes */

typedef int (*far_sort_compare)(const void *a, const void *b);


static inline void far_sort_swap(char *a, char *b, size_t bytes) {
    char saved[FAR_SORT_ITEM_MAX];
    memcpy(saved, a, bytes);
    memcpy(a, b, bytes);
    memcpy(b, saved, bytes);
}


/* Moves the item at the position `at` down until no child is larger. */
static inline void far_sort_sift_down(char *items, size_t at, size_t count, size_t bytes, far_sort_compare compare) {
    for (size_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && compare(items + child * bytes, items + (child + 1) * bytes) < 0)
            child++;
        if (compare(items + at * bytes, items + child * bytes) >= 0)
            return;
        far_sort_swap(items + at * bytes, items + child * bytes, bytes);
    }
}


/* Sorts `count` items of `bytes` bytes in ascending order. Items that compare as equal may change their order. */
static inline void far_sort(void *items, size_t count, size_t bytes, far_sort_compare compare) {
    assert(bytes <= FAR_SORT_ITEM_MAX);
    for (size_t at = count / 2; at-- > 0;)
        far_sort_sift_down(items, at, count, bytes, compare);
    for (size_t left = count; left-- > 1;) {
        far_sort_swap(items, (char *)items + left * bytes, bytes);
        far_sort_sift_down(items, 0, left, bytes, compare);
    }
}

#endif
