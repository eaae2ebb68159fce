/* Sorting in place (base/sort.h). */
#include "base/random.h"
#include "base/sort.h"
#include "test.h"

#include <malloc.h>
#include <stdlib.h>

typedef struct item {
    uint64_t key, check; /* `check` is a function of the key, so that a torn item is found */
} item;


static int compare_items(const void *a, const void *b) {
    uint64_t x = ((const item *)a)->key, y = ((const item *)b)->key;
    return (x > y) - (x < y);
}


static void fill_items(item *items, size_t count, uint64_t keys, far_random *random) {
    for (size_t i = 0; i < count; i++) {
        uint64_t key = far_random_next(random) % keys;
        items[i] = (item){key, ~key};
    }
}


/* Arrays of every small size, and a large one, with many and with few equal keys, have the same content in the same
 * order as after qsort. */
TEST(items_are_sorted) {
    enum { LARGE = 20000 };
    far_random random;
    far_random_seed(&random, 1);
    item *items = malloc(2 * LARGE * sizeof(*items)), *right = items + LARGE;
    assert_non_null(items);
    for (size_t count = 0; count <= 100; count++)
        for (unsigned equal = 0; equal < 3; equal++) {
            const size_t n = count == 100 ? LARGE : count;
            fill_items(items, n, equal == 0 ? UINT64_MAX : equal == 1 ? 7 : 1, &random);
            memcpy(right, items, n * sizeof(*items));
            qsort(right, n, sizeof(*right), compare_items);
            far_sort(items, n, sizeof(*items), compare_items);
            assert_memory_equal(items, right, n * sizeof(*items));
        }
    free(items);
}
