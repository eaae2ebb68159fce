/* Self-checking values: `far_value_fill` writes a value that depends on its key, and `far_value_check` verifies it. */
#include "workload/value.h"

#include "base/random.h"

#include <string.h>
#include <xxhash.h>


/* Applies far_splitmix to a given state; a bijection of 64 bits. */
static uint64_t mix_64_bits(uint64_t x) {
    return far_splitmix(&x);
}


/* Maps 32 bits to 32 bits; a bijection. */
static uint32_t mix_32_bits(uint32_t x) {
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}


static uint64_t hash_of_key(const void *key, size_t key_len, size_t size) {
    return XXH3_64bits_withSeed(key, key_len, size);
}


/* Writes the first 8 or 16 bytes, and returns the state from which the remaining bytes are generated. */
static uint64_t fill_head(uint8_t *buffer, size_t size, uint64_t hash, uint64_t version) {
    if (size >= 16) {
        uint64_t tag = hash ^ mix_64_bits(version);
        memcpy(buffer, &tag, 8);
        memcpy(buffer + 8, &version, 8);
        return tag;
    }
    uint32_t masked = (uint32_t)version ^ (uint32_t)hash, tag = (uint32_t)(hash >> 32) ^ mix_32_bits((uint32_t)version);
    memcpy(buffer, &masked, 4);
    memcpy(buffer + 4, &tag, 4);
    return hash ^ mix_64_bits((uint32_t)version);
}


void far_value_fill(void *buffer, size_t size, const void *key, size_t key_len, uint64_t version) {
    uint8_t *bytes = buffer;
    uint64_t state = hash_of_key(key, key_len, size), word;
    size_t at = 0;
    if (size >= 8) {
        state = fill_head(bytes, size, state, version);
        at = size >= 16 ? 16 : 8;
    }
    for (; at + 8 <= size; at += 8) {
        word = far_splitmix(&state);
        memcpy(bytes + at, &word, 8);
    }
    word = far_splitmix(&state);
    if (at < size)
        memcpy(bytes + at, &word, size - at);
}


static int body_is_right(const uint8_t *bytes, size_t at, size_t size, uint64_t state) {
    uint64_t difference = 0, word;
    for (; at + 8 <= size; at += 8) {
        memcpy(&word, bytes + at, 8);
        difference |= word ^ far_splitmix(&state);
    }
    if (difference != 0)
        return 0;
    word = far_splitmix(&state);
    return at == size || memcmp(bytes + at, &word, size - at) == 0;
}


int far_value_check(const void *buffer, size_t size, const void *key, size_t key_len, uint64_t *version) {
    const uint8_t *bytes = buffer;
    uint8_t head[16];
    uint64_t hash = hash_of_key(key, key_len, size), found = 0, state = hash;
    size_t head_size = size >= 16 ? 16 : size >= 8 ? 8 : 0;
    if (head_size == 16) {
        memcpy(&found, bytes + 8, 8);
    } else if (head_size == 8) {
        uint32_t masked;
        memcpy(&masked, bytes, 4);
        found = masked ^ (uint32_t)hash;
    }
    if (head_size > 0) {
        state = fill_head(head, size, hash, found);
        if (memcmp(head, bytes, head_size) != 0)
            return 0;
    }
    if (size > head_size && !body_is_right(bytes, head_size, size, state))
        return 0;
    if (version)
        *version = found;
    return 1;
}
