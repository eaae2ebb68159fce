/* A byte string that the struct does not own: a pointer and a length. Keys and values are passed in this form. */
#ifndef FAR_BASE_BYTES_H
#define FAR_BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct far_bytes {
    const void *data;
    size_t length;
} far_bytes;


/* Compares two strings in the order of keys: memcmp over the common length, then the shorter string first. */
static inline int far_bytes_compare(far_bytes a, far_bytes b) {
    size_t common = a.length < b.length ? a.length : b.length;
    int order = common ? memcmp(a.data, b.data, common) : 0;
    return order ? order : (a.length > b.length) - (a.length < b.length);
}


/* Returns true if the strings are equal. Strings of 8 bytes, the most frequent length of keys, are compared without a
 * function call. */
static inline bool far_bytes_equal(far_bytes a, far_bytes b) {
    uint64_t x, y;
    if (a.length != b.length)
        return false;
    if (a.length != sizeof(x))
        return a.length == 0 || memcmp(a.data, b.data, a.length) == 0;
    memcpy(&x, a.data, sizeof(x));
    memcpy(&y, b.data, sizeof(y));
    return x == y;
}

/* Copies the bytes of `from` to `to`. Strings of 8 bytes, the most frequent length of keys and values, are copied
 * without a function call. */
static inline void far_bytes_copy(void *to, far_bytes from) {
    if (from.length == sizeof(uint64_t))
        memcpy(to, from.data, sizeof(uint64_t));
    else if (from.length)
        memcpy(to, from.data, from.length);
}

#endif
