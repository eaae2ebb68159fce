/* Text keys for tests of the shard index. The functions find keys that stay in their bucket, or leave it, at a
 * doubling. */
#ifndef TESTS_SHARD_TEXT_KEYS_H
#define TESTS_SHARD_TEXT_KEYS_H

#include "../support/stage.h"
#include "index/shard/shard.h"

#include <stdio.h>
#include <string.h>


/* Returns the n-th key that stays in its bucket (bit = false) or moves to the child (true) when the first doubling
 * splits the bucket. */
static inline const char *key_with(const stage_actor *a, bool bit, unsigned n) {
    static char keys[8][16];
    static unsigned next;
    char *key = keys[next++ % 8];
    for (unsigned i = 0;; i++) {
        snprintf(key, 16, "k%u", i);
        const shard_state *st = shard_state_of(a->index);
        if (shard_key_moves(shard_hash(a->index, (far_bytes){key, strlen(key)}), st->p, st->b, 1) == bit && n-- == 0)
            return key;
    }
}


static inline far_sim_match at(const char *point) {
    return (far_sim_match){.point = point};
}

#endif
