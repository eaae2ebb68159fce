/* Collecting the pairs and keys that index code finds, for the client (results.h). Index code calls far_scan_give and
 * far_keys_give. */
#include "index/common/results.h"
#include "base/error.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_PAIRS 256
#define CHUNK_BYTES (64 * 1024)
#define FIRST_BYTES (4 * 1024)

/* Pairs of a scan. */

void far_scan_begin_chunk(far_scan_chunk *scan) {
    struct far_scan_buffer *buffer = scan->buffer;
    if (scan->wanted > CHUNK_PAIRS)
        scan->wanted = CHUNK_PAIRS;
    scan->end = false;
    buffer->used = buffer->last = buffer->pairs = 0;
    buffer->limit = buffer->size < CHUNK_BYTES ? buffer->size : CHUNK_BYTES;
    buffer->most = (unsigned)scan->wanted;
    buffer->full = buffer->past = false;
}


void far_scan_keep(struct far_scan_buffer *buffer, unsigned pairs) {
    size_t at = 0;
    assert(pairs > 0 && pairs <= buffer->pairs);
    for (unsigned i = 0; i < pairs; i++) {
        far_bytes key, value;
        buffer->last = at;
        far_scan_pair(buffer, &at, &key, &value);
    }
    buffer->pairs = pairs;
    buffer->used = at;
    buffer->full = true;
    buffer->past = false;
}


static bool grow_buffer(struct far_scan_buffer *buffer, size_t bytes) {
    if (buffer->used + bytes <= buffer->size)
        return true;
    size_t size = buffer->size ? buffer->size : FIRST_BYTES;
    while (size < buffer->used + bytes)
        size *= 2;
    char *data = realloc(buffer->data, size);
    if (!data)
        return false;
    buffer->data = data;
    buffer->size = size;
    return true;
}


far_bytes far_scan_last_key(const struct far_scan_buffer *buffer) {
    far_pair_head head;
    assert(buffer->pairs > 0 && buffer->last < buffer->used);
    memcpy(&head, buffer->data + buffer->last, sizeof(head));
    return (far_bytes){buffer->data + buffer->last + sizeof(head), head.key};
}


int far_scan_make_room(struct far_scan_buffer *buffer, size_t bytes) {
    if (buffer->pairs >= buffer->most || (buffer->pairs && buffer->used + bytes > CHUNK_BYTES)) {
        buffer->full = true;
        return 1;
    }
    if (!grow_buffer(buffer, bytes))
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for the pairs of a scan");
    buffer->limit = buffer->size < CHUNK_BYTES ? buffer->size : CHUNK_BYTES;
    return 0;
}


/* Returns whether a key of a chunk that has no pair yet is before the start of the range, in the direction of the scan.
 */
static bool key_precedes_range(const far_scan_chunk *scan, far_bytes key) {
    int order;
    if (!scan->backward) {
        order = far_bytes_compare(key, scan->from);
        return order < 0 || (order == 0 && scan->after);
    }
    if (!scan->bounded)
        return false;
    order = far_bytes_compare(key, scan->to);
    return order > 0 || (order == 0 && !scan->to_included);
}


static bool key_is_past_range(const far_scan_chunk *scan, far_bytes key) {
    if (scan->backward)
        return far_bytes_compare(key, scan->from) < 0;
    return scan->bounded && far_bytes_compare(key, scan->to) >= 0;
}


int far_scan_give(far_scan_chunk *scan, far_bytes key, far_bytes value) {
    struct far_scan_buffer *buffer = scan->buffer;
    if (key_is_past_range(scan, key)) {
        buffer->past = true;
        return 1;
    }
    if (buffer->pairs) {
        int order = far_bytes_compare(key, far_scan_last_key(buffer));
        if (scan->backward ? order >= 0 : order <= 0)
            return 0;
    } else if (key_precedes_range(scan, key))
        return 0;
    return far_scan_add(scan, key, value);
}


/* Keys of an index without order. */

int far_keys_give(far_keys *keys, far_bytes key) {
    uint32_t length = (uint32_t)key.length;
    if (keys->skips_damage && (length == 0 || length > keys->longest)) /* damaged objects may have such keys */
        return 0;
    if (keys->used + sizeof(length) + key.length > keys->size) {
        size_t size = 2 * keys->size + CHUNK_BYTES + sizeof(length) + key.length;
        char *data = realloc(keys->data, size);
        if (!data)
            return far_fail(FAR_ERR_NO_MEMORY, "no memory for the keys of an index");
        keys->data = data;
        keys->size = size;
    }
    memcpy(keys->data + keys->used, &length, sizeof(length));
    memcpy(keys->data + keys->used + sizeof(length), key.data, key.length);
    keys->used += sizeof(length) + key.length;
    return 0;
}


int far_keys_pass_on(far_task *t, far_keys *keys) {
    int err = 0;
    for (size_t at = 0; at < keys->used && err >= 0;) {
        uint32_t length;
        memcpy(&length, keys->data + at, sizeof(length));
        err = keys->each(t, keys->ctx, (far_bytes){keys->data + at + sizeof(length), length});
        at += sizeof(length) + length;
    }
    keys->used = 0;
    return err;
}


bool far_keys_skips_damage(const far_keys *keys) {
    return keys && keys->skips_damage;
}


int far_keys_skip_damage(far_task *t, const far_keys *keys, int result) {
    if (result != FAR_ERR_CORRUPT || !far_keys_skips_damage(keys))
        return result;
    far_discard_batch(t);
    return 0;
}


int far_keys_throttle(far_task *t, far_keys *keys) {
    if (keys->each)
        return far_keys_pass_on(t, keys);
    if (keys->used >= CHUNK_BYTES && !keys->skips_damage) {
        keys->resting = keys->due = true;
        while (keys->resting)
            far_task_block(t);
    }
    return keys->stopped ? FAR_ERR_BUSY : 0;
}
