/* A byte string that belongs to somebody else. */
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


/* The order of keys: memcmp, then length. */
static inline int far_bytes_compare(far_bytes a, far_bytes b) {
    size_t common = a.length < b.length ? a.length : b.length;
    int order = common ? memcmp(a.data, b.data, common) : 0;
    return order ? order : (a.length > b.length) - (a.length < b.length);
}


/* Keys of 8 bytes are compared without a call. */
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

/* Strings of 8 bytes, as many keys and values are, are copied without a call. */
static inline void far_bytes_copy(void *to, far_bytes from) {
    if (from.length == sizeof(uint64_t))
        memcpy(to, from.data, sizeof(uint64_t));
    else if (from.length)
        memcpy(to, from.data, from.length);
}

#endif
