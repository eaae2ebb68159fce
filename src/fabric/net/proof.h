/* Proofs by which the later nodes of a pool recognize what node 0 has decided. All nodes of a pool share a key, which
 * clients do not know after the pool is complete (node/memory.h). Node 0 attaches a proof to each claim that it issues
 * and to each claim number that it reports as ended. The client passes the proof on, and a later node accepts a claim, or
 * fences claims, only with the right proof. So no client can use or fence a claim number that node 0 has not issued.
 *
 * A proof is the SipHash-2-4 of the statement under the key of the pool. */
#ifndef FAR_FABRIC_NET_PROOF_H
#define FAR_FABRIC_NET_PROOF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NET_KEY_WORDS 2u

typedef struct net_key {
    uint64_t words[NET_KEY_WORDS]; /* The first word is 0 if there is no key. */
} net_key;

static inline bool net_key_exists(const net_key *key) {
    return key->words[0] != 0;
}


/* returns the proof of the statement that node 0 has issued this claim to the session (id, generation) */
uint64_t net_proof_of_claim(const net_key *key, unsigned id, unsigned generation, uint64_t claim);
/* returns the proof of the statement that all claims of this id up to `over` have ended */
uint64_t net_proof_of_end(const net_key *key, unsigned id, uint64_t over);

/* SipHash-2-4 of `count` words in little-endian order. */
uint64_t net_siphash(const net_key *key, const uint64_t *words, size_t count);

#endif
