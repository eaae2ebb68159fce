/* A small seeded random generator: xoshiro256**, seeded by splitmix64. Everything random in farindex comes from such a
 * generator, so a run can be repeated from its seed. Not for secrets, which come from `secret` of the host
 * (base/host.h). */
#ifndef FAR_BASE_RANDOM_H
#define FAR_BASE_RANDOM_H

#include <stdint.h>

typedef struct far_random {
    uint64_t s[4];
} far_random;


static inline uint64_t far_splitmix(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}


static inline void far_random_seed(far_random *r, uint64_t seed) {
    for (int i = 0; i < 4; i++)
        r->s[i] = far_splitmix(&seed);
}


static inline uint64_t far_random_next(far_random *r) {
    uint64_t *s = r->s, x = s[1] * 5, result = ((x << 7) | (x >> 57)) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = (s[3] << 45) | (s[3] >> 19);
    return result;
}


/* Returns a uniform number in [0, bound); bound must not be 0. The bias is below bound / 2^64. */
static inline uint64_t far_random_below(far_random *r, uint64_t bound) {
    return (uint64_t)(((unsigned __int128)far_random_next(r) * bound) >> 64);
}


/* Returns true with the probability numerator / denominator. */
static inline int far_random_chance(far_random *r, uint64_t numerator, uint64_t denominator) {
    return far_random_below(r, denominator) < numerator;
}

#endif
