/* Scanning. A hash table has no order, so every chunk of a scan READs the whole table and sorts the pairs in its range.
 * That is good enough for an example. */
#include "base/error.h"
#include "index/toy/toy.h"

#include <stdlib.h>

#define SLOTS_AT_ONCE 512

typedef struct found_pair {
    far_bytes key, value;
} found_pair;

typedef struct pair_list {
    found_pair *pairs;
    size_t count, size;
} pair_list;


static int compare_pairs(const void *a, const void *b) {
    return far_bytes_compare(((const found_pair *)a)->key, ((const found_pair *)b)->key);
}


static int compare_pairs_descending(const void *a, const void *b) {
    return compare_pairs(b, a);
}


static bool is_in_range(const far_scan_chunk *scan, far_bytes key) {
    int order = far_bytes_compare(key, scan->from);
    if (order < 0 || (order == 0 && scan->after))
        return false;
    order = scan->bounded ? far_bytes_compare(key, scan->to) : -1;
    return order < 0 || (order == 0 && scan->to_included);
}


static int collect_pairs(const far_scan_chunk *scan, const toy_bucket *bucket, pair_list *f) {
    toy_cursor cursor = {.bucket = bucket};
    while (toy_next(&cursor)) {
        if (!is_in_range(scan, cursor.key))
            continue;
        if (f->count == f->size) {
            size_t size = f->size ? 2 * f->size : 256;
            found_pair *pairs = realloc(f->pairs, size * sizeof(*pairs));
            if (!pairs)
                return far_fail(FAR_ERR_NO_MEMORY, "no memory for a scan");
            f->pairs = pairs;
            f->size = size;
        }
        f->pairs[f->count++] = (found_pair){cursor.key, cursor.value};
    }
    return 0;
}


static int collect_slots(far_task *t, far_index *index, const far_scan_chunk *scan, uint64_t first, unsigned count,
                         pair_list *f) {
    uint64_t words[SLOTS_AT_ONCE];
    for (unsigned i = 0; i < count; i++)
        far_read(t, toy_slot_addr(toy_state_of(index), first + i), &words[i], 8);
    int err = far_wait(t);
    for (unsigned i = 0; err >= 0 && i < count; i++) {
        toy_image image;
        if (words[i] == 0)
            continue;
        if ((err = toy_read_bucket(t, index, words[i], &image)) >= 0)
            err = collect_pairs(scan, image.bucket, f);
    }
    return err;
}


int toy_scan(far_task *t, far_index *index, far_scan_chunk *scan) {
    uint64_t slots = toy_state_of(index)->slots;
    pair_list f = {0};
    int err = 0;
    for (uint64_t first = 0; err >= 0 && first < slots; first += SLOTS_AT_ONCE)
        err = collect_slots(t, index, scan, first,
                            slots - first < SLOTS_AT_ONCE ? (unsigned)(slots - first) : SLOTS_AT_ONCE, &f);
    if (err >= 0 && f.count)
        qsort(f.pairs, f.count, sizeof(f.pairs[0]), scan->backward ? compare_pairs_descending : compare_pairs);
    bool has_gap = scan->backward && toy_state_of(index)->fault == TOY_BACKWARD_GAP;
    for (size_t i = 0; err == 0 && i < f.count; i++)
        if (i != 1 || !has_gap)
            err = far_scan_give(scan, f.pairs[i].key, f.pairs[i].value);
    scan->end = err == 0;
    free(f.pairs);
    return err < 0 ? err : 0;
}
