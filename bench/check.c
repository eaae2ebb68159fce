/* Checks the answers of a store. Every value must prove that it belongs to its key, and every scan must return keys in
 * order. */
#include "bench/bench.h"
#include "workload/value.h"

#include <string.h>


const char *bench_check_value(far_bytes key, const void *value, size_t length, size_t expected_size) {
    if (length != expected_size)
        return "a value of another size";
    return far_value_check(value, length, key.data, key.length, NULL) ? NULL
                                                                      : "a value that does not belong to the key";
}


/* Checks the order of a scan's keys. If records are never deleted, the first key must be the key that the scan started
 * at. */
static const char *check_order(const bench_scan *scan, far_bytes key) {
    if (key.length == 0 || key.length > sizeof(scan->last))
        return "a key of an impossible size";
    if (scan->pairs == 0 && scan->first_may_be_gone)
        return far_bytes_compare(key, scan->from) >= 0 ? NULL : "a scan that begins too early";
    if (scan->pairs == 0)
        return far_bytes_compare(key, scan->from) == 0 ? NULL : "a scan that misses its first key";
    return far_bytes_compare((far_bytes){scan->last, scan->last_len}, key) < 0 ? NULL : "a scan out of order";
}


int bench_scan_pair(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    bench_scan *scan = ctx;
    far_bytes pair_key = {key, key_len};
    if (!scan->wrong)
        scan->wrong = check_order(scan, pair_key);
    if (!scan->wrong)
        scan->wrong = bench_check_value(pair_key, value, value_len, scan->value_size);
    if (scan->wrong)
        return 1;
    memcpy(scan->last, key, key_len);
    scan->last_len = key_len;
    scan->pairs++;
    return 0;
}
