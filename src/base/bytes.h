/* A byte string that belongs to somebody else. */
#ifndef FAR_BASE_BYTES_H
#define FAR_BASE_BYTES_H

#include <stddef.h>
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

#endif
