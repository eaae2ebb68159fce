/* Checksums of values (checksum.h). */
#include "client/checksum.h"
#include "base/error.h"
#include "client/op.h"
#include "index/common/results.h"
#include "pool/epoch/epoch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>


/* The hash of the key is the seed of the hash of the value, and the secret of the index is the seed of the hash of the
 * key. Therefore the same pair has different hashes in different indexes. */
static uint32_t compute_checksum(const far_index *index, far_bytes key, far_bytes value) {
    uint64_t secret;
    memcpy(&secret, index->secret, sizeof(secret));
    return (uint32_t)XXH3_64bits_withSeed(value.data, value.length, XXH3_64bits_withSeed(key.data, key.length, secret));
}


int far_sum_add(far_task *t, const far_index *index, far_bytes key, far_bytes *value) {
    char *stored = far_scratch(t, value->length + FAR_SUM_BYTES);
    if (!stored)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a value");
    uint32_t sum = compute_checksum(index, key, *value);
    if (value->length)
        memcpy(stored, value->data, value->length);
    memcpy(stored + value->length, &sum, FAR_SUM_BYTES);
    *value = (far_bytes){stored, value->length + FAR_SUM_BYTES};
    return 0;
}


int far_sum_check(const far_index *index, far_bytes key, far_bytes *stored) {
    uint32_t sum;
    if (stored->length >= FAR_SUM_BYTES) {
        far_bytes value = {stored->data, stored->length - FAR_SUM_BYTES};
        memcpy(&sum, (const char *)stored->data + value.length, FAR_SUM_BYTES);
        if (sum == compute_checksum(index, key, value)) {
            *stored = value;
            return 0;
        }
    }
    char name[2 * 16 + 1] = "";
    for (size_t i = 0; i < key.length && i < 16; i++)
        snprintf(name + 2 * i, 3, "%02x", ((const uint8_t *)key.data)[i]);
    return far_fail(FAR_ERR_CORRUPT, "index '%s': the value of key %s%s is damaged: its checksum is wrong", index->name,
                    name, key.length > 16 ? ".. (hex)" : " (hex)");
}


int far_sum_check_or_report(const far_index *index, far_bytes key, far_bytes *stored, far_report *report) {
    int err = far_sum_check(index, key, stored);
    if (err >= 0 || !report)
        return err;
    far_report_problem(report, "%s", far_last_error());
    return 0;
}


int far_sum_prepare_buffer(far_task *t, const far_out *out, far_out *stored) {
    size_t most = out->capacity < FAR_VALUE_MAX ? out->capacity : FAR_VALUE_MAX;
    *stored = (far_out){far_scratch(t, most + FAR_SUM_BYTES), most + FAR_SUM_BYTES, 0};
    return stored->buffer ? 0 : far_fail(FAR_ERR_NO_MEMORY, "no memory for a value");
}


int far_sum_strip_value(const far_index *index, far_bytes key, const far_out *stored, int result, far_out *out) {
    far_bytes value = {stored->buffer, stored->length};
    if (result == FAR_ERR_TOO_SMALL)
        out->length = stored->length - FAR_SUM_BYTES;
    if (result < 0)
        return result;
    int err = far_sum_check(index, key, &value);
    return err < 0 ? err : far_out_give(out, value.data, value.length);
}


/* ---- Checking all values of an index ---- */

static int ignore_pair(void *ctx, const void *key, size_t key_len, const void *value, size_t value_len) {
    (void)ctx, (void)key, (void)key_len, (void)value, (void)value_len;
    return 0;
}


static int check_by_scan(far_task *t, far_index *index, far_report *report) {
    const far_op op = {.kind = FAR_OP_SCAN, .each = ignore_pair};
    far_scan_state scan;
    int err = far_scan_begin(NULL, index, &op, &scan);
    if (err < 0)
        return err;
    scan.range->counted = true; /* the scan is no operation of the user */
    scan.range->report = report;
    do {
        far_scratch_mark mark = far_scratch_here(t);
        err = far_scan_fill_chunk(t, &scan);
        far_pin_drop(t);
        far_scratch_back(t, mark);
    } while (err >= 0 && !far_scan_deliver(&scan));
    far_range_release(scan.range);
    return err;
}


typedef struct value_check {
    far_index *index;
    far_report *report;
    far_out stored;
} value_check;


static int check_value_of_key(far_task *t, void *ctx, far_bytes key) {
    value_check *l = ctx;
    far_scratch_mark mark = far_scratch_here(t);
    int err = far_pin_take(t);
    if (err >= 0)
        err = l->index->kind->get(t, l->index, key, &l->stored);
    far_pin_drop(t);
    far_scratch_back(t, mark);
    far_bytes value = {l->stored.buffer, l->stored.length};
    if (err < 0)
        return err == FAR_ERR_NOT_FOUND ? 0 : err;
    return far_sum_check_or_report(l->index, key, &value, l->report);
}


static int check_by_keys(far_task *t, far_index *index, far_report *report) {
    value_check l = {index, report, {malloc(FAR_VALUE_MAX), FAR_VALUE_MAX, 0}};
    far_keys keys = {.each = check_value_of_key, .ctx = &l};
    int err =
        l.stored.buffer ? index->kind->keys(t, index, &keys) : far_fail(FAR_ERR_NO_MEMORY, "no memory for a value");
    if (err >= 0)
        err = far_keys_pass_on(t, &keys);
    free(keys.data);
    free(l.stored.buffer);
    return err;
}


int far_sum_check_all(far_task *t, far_index *index, far_report *report) {
    if (far_sum_bytes(index) == 0)
        return 0;
    return index->kind->scan ? check_by_scan(t, index, report) : check_by_keys(t, index, report);
}
