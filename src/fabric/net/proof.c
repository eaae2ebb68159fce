/* Proofs of claims and of ended claims (proof.h), by SipHash-2-4 (Aumasson and Bernstein, 2012). */
#include "fabric/net/proof.h"

typedef enum { STATES_CLAIM = 1, STATES_END = 2 } statement;

typedef struct sip_state {
    uint64_t v[4];
} sip_state;


static uint64_t rotate_left(uint64_t word, unsigned bits) {
    return word << bits | word >> (64 - bits);
}


static void run_rounds(sip_state *s, unsigned rounds) {
    uint64_t *v = s->v;
    for (; rounds > 0; rounds--) {
        v[0] += v[1];
        v[1] = rotate_left(v[1], 13) ^ v[0];
        v[0] = rotate_left(v[0], 32);
        v[2] += v[3];
        v[3] = rotate_left(v[3], 16) ^ v[2];
        v[0] += v[3];
        v[3] = rotate_left(v[3], 21) ^ v[0];
        v[2] += v[1];
        v[1] = rotate_left(v[1], 17) ^ v[2];
        v[2] = rotate_left(v[2], 32);
    }
}


static void absorb_word(sip_state *s, uint64_t word) {
    s->v[3] ^= word;
    run_rounds(s, 2);
    s->v[0] ^= word;
}


uint64_t net_siphash(const net_key *key, const uint64_t *words, size_t count) {
    const uint64_t *k = key->words;
    sip_state s = {{k[0] ^ 0x736f6d6570736575ull, k[1] ^ 0x646f72616e646f6dull, k[0] ^ 0x6c7967656e657261ull,
                    k[1] ^ 0x7465646279746573ull}};
    for (size_t i = 0; i < count; i++)
        absorb_word(&s, words[i]);
    absorb_word(&s, (uint64_t)(8 * count)
                        << 56); /* the last word contains the length of the input in its highest byte */
    s.v[2] ^= 0xff;
    run_rounds(&s, 4);
    return s.v[0] ^ s.v[1] ^ s.v[2] ^ s.v[3];
}


uint64_t net_proof_of_claim(const net_key *key, unsigned id, unsigned generation, uint64_t claim) {
    const uint64_t words[] = {STATES_CLAIM, id, generation, claim};
    return net_siphash(key, words, 4);
}


uint64_t net_proof_of_end(const net_key *key, unsigned id, uint64_t over) {
    const uint64_t words[] = {STATES_END, id, over};
    return net_siphash(key, words, 3);
}
