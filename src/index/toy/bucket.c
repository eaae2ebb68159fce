/* Checking, searching and rebuilding buckets as images in local memory. Nothing here accesses far memory. find.c,
 * write.c, scan.c and check.c call these functions. */
#include "base/error.h"
#include "index/toy/toy.h"

#include <string.h>


bool toy_bucket_is_sound(const toy_bucket *bucket, uint64_t room) {
    uint64_t at = sizeof(*bucket), bytes;
    if (room < sizeof(*bucket) || bucket->bytes > room || bucket->count == 0)
        return false;
    bytes = bucket->bytes;
    for (uint32_t i = 0; i < bucket->count; i++) {
        toy_pair pair;
        if (bytes < at + sizeof(pair))
            return false;
        memcpy(&pair, (const char *)bucket + at, sizeof(pair));
        if (pair.key_length == 0 || pair.value_length > FAR_VALUE_MAX ||
            toy_pair_bytes(pair.key_length, pair.value_length) > bytes - at)
            return false;
        at += toy_pair_bytes(pair.key_length, pair.value_length);
    }
    return toy_round(at, FAR_GRANULE) == bytes;
}


bool toy_next(toy_cursor *cursor) {
    if (!cursor->bucket || cursor->done == cursor->bucket->count)
        return false;
    if (cursor->done++ == 0)
        cursor->at = sizeof(toy_bucket);
    const char *at = (const char *)cursor->bucket + cursor->at;
    toy_pair pair;
    memcpy(&pair, at, sizeof(pair));
    cursor->key = (far_bytes){at + sizeof(pair), pair.key_length};
    cursor->value = (far_bytes){at + sizeof(pair) + toy_round(pair.key_length, 8), pair.value_length};
    cursor->at += toy_pair_bytes(pair.key_length, pair.value_length);
    return true;
}


bool toy_find(const toy_bucket *bucket, far_bytes key, far_bytes *value) {
    toy_cursor cursor = {.bucket = bucket};
    while (toy_next(&cursor))
        if (far_bytes_compare(cursor.key, key) == 0) {
            *value = cursor.value;
            return true;
        }
    return false;
}


static void append_pair(toy_bucket *bucket, far_bytes key, far_bytes value) {
    char *at = (char *)bucket + bucket->bytes;
    uint64_t bytes = toy_pair_bytes(key.length, value.length);
    toy_pair pair = {(uint32_t)key.length, (uint32_t)value.length};
    memset(at, 0, bytes);
    memcpy(at, &pair, sizeof(pair));
    memcpy(at + sizeof(pair), key.data, key.length);
    if (value.length)
        memcpy(at + sizeof(pair) + toy_round(key.length, 8), value.data, value.length);
    bucket->bytes += (uint32_t)bytes;
    bucket->count++;
}


int toy_rebuild(far_task *t, const toy_bucket *old, far_bytes key, const far_bytes *value, toy_bucket **made) {
    uint64_t most =
        (old ? old->bytes : sizeof(*old)) + (value ? toy_pair_bytes(key.length, value->length) : 0) + FAR_GRANULE;
    if (most > TOY_BUCKET_MAX || most > far_object_bytes_max(far_task_pool(t)))
        return far_fail(FAR_ERR_NO_MEMORY, "a bucket is full: the index needs more slots");
    toy_bucket *bucket = far_scratch(t, most);
    if (!bucket)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a bucket");
    *bucket = (toy_bucket){0, sizeof(*bucket)};

    toy_cursor cursor = {.bucket = old};
    bool placed = !value;
    while (toy_next(&cursor)) {
        int order = far_bytes_compare(cursor.key, key);
        if (order >= 0 && !placed) {
            append_pair(bucket, key, *value);
            placed = true;
        }
        if (order != 0)
            append_pair(bucket, cursor.key, cursor.value);
    }
    if (!placed)
        append_pair(bucket, key, *value);
    uint32_t bytes = (uint32_t)toy_round(bucket->bytes, FAR_GRANULE);
    memset((char *)bucket + bucket->bytes, 0, bytes - bucket->bytes);
    bucket->bytes = bytes;
    *made = bucket->count ? bucket : NULL;
    return 0;
}
