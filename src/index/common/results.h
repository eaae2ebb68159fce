/* The buffers in which index code puts its results, and the functions by which the client takes them out: the pairs of
 * one chunk of a scan, and the keys of an index without order. */
#ifndef FAR_INDEX_COMMON_RESULTS_H
#define FAR_INDEX_COMMON_RESULTS_H

#include "index/index.h"

#include <assert.h>
#include <string.h>

struct far_scan_buffer {
    char *data;              /* memory of the buffer, allocated by malloc */
    size_t size, used, last; /* size of the memory, bytes in use, and offset of the last pair */
    size_t limit;            /* number of bytes that may be in use without a call of far_scan_make_room */
    unsigned pairs, most;    /* number of pairs in the buffer, and largest number for this chunk */
    bool full;               /* true if there are more pairs than those in the buffer */
    bool past; /* true if a pair at or beyond the end of the range was given, so there are no more pairs */
};

typedef struct far_pair_head {
    /* Lengths of key and value in bytes. The key and the value follow, and the next pair begins at a multiple of 8. */
    uint32_t key, value;
} far_pair_head;


static inline size_t far_pair_bytes(size_t key, size_t value) {
    return (sizeof(far_pair_head) + key + value + 7) & ~(size_t)7;
}


/* Begins a chunk without pairs. Lowers scan->wanted to the largest number of pairs of a chunk, so that the kind READs no
 * more ahead than the chunk can hold. */
void far_scan_begin_chunk(far_scan_chunk *scan);
/* Makes room for a pair of so many bytes. Returns 0 if there is room, 1 if the chunk is complete, or an error. */
int far_scan_make_room(struct far_scan_buffer *buffer, size_t bytes);


/* Adds a pair to the chunk, without any comparison. The caller guarantees that the key is in the range of the chunk, and
 * follows the last key given in the direction of the scan. Returns as far_scan_give does. */
static inline int far_scan_add(far_scan_chunk *scan, far_bytes key, far_bytes value) {
    struct far_scan_buffer *buffer = scan->buffer;
    size_t bytes = far_pair_bytes(key.length, value.length), used = buffer->used;
    if (__builtin_expect(used + bytes > buffer->limit || buffer->pairs >= buffer->most, 0)) {
        int err = far_scan_make_room(buffer, bytes);
        if (err != 0)
            return err;
    }
    far_pair_head head = {(uint32_t)key.length, (uint32_t)value.length};
    char *at = buffer->data + used;
    memcpy(at, &head, sizeof(head));
    far_bytes_copy(at + sizeof(head), key);
    far_bytes_copy(at + sizeof(head) + key.length, value);
    buffer->last = used;
    buffer->used = used + bytes;
    /* The buffer reports that it is full together with the last pair, so that the kind need not search for one more
     * pair. */
    return buffer->full = ++buffer->pairs >= buffer->most;
}


/* Removes the last pairs from the buffer, so that the first `pairs` pairs remain, which must be at least one. The
 * buffer counts as full then. */
void far_scan_keep(struct far_scan_buffer *buffer, unsigned pairs);
/* Returns the key of the last pair. The buffer must contain a pair. */
far_bytes far_scan_last_key(const struct far_scan_buffer *buffer);


/* Returns the pair at offset *at, which is 0 for the first one, and moves *at to the next one. */
static inline void far_scan_pair(const struct far_scan_buffer *buffer, size_t *at, far_bytes *key, far_bytes *value) {
    far_pair_head head;
    const char *pair = buffer->data + *at;
    memcpy(&head, pair, sizeof(head));
    *key = (far_bytes){pair + sizeof(head), head.key};
    *value = (far_bytes){pair + sizeof(head) + head.key, head.value};
    *at += far_pair_bytes(head.key, head.value);
    assert(*at <= buffer->used);
}


struct far_keys {
    char *data; /* memory allocated by malloc, which contains for each key its length (32 bits) and its bytes */
    size_t size, used;
    /* set when the task has filled its chunk or has ended, so that the caller (the client that consumes the keys) must
     * act */
    bool due;
    bool resting; /* true while the task waits for the caller */
    bool stopped; /* true if the caller wants no more keys */
    /* set by a salvage: the traversal leaves out broken objects instead of failing, and keys of impossible lengths,
     * which are those of 0 bytes or of more than `longest` bytes, are ignored */
    bool skips_damage;
    size_t longest;
    /* If set, the task does not wait for a caller but calls this function for each key, without a pin. */
    int (*each)(far_task *t, void *ctx, far_bytes key);
    void *ctx;
};

int far_keys_pass_on(far_task *t, far_keys *keys); /* passes the keys that were given since the last call to `each` */

#endif
