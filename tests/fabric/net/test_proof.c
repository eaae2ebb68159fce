/* Tests of the proofs that node 0 attaches to claims. */
#include "fabric/net/proof.h"
#include "test.h"


static const net_key key = {{0x0706050403020100ull, 0x0f0e0d0c0b0a0908ull}};


/* The keyed hash is SipHash-2-4, as OpenSSL computes it (openssl mac -macopt size:8 .. SipHash). */
TEST(the_keyed_hash_is_siphash) {
    static const uint64_t words[] = {0x0706050403020100ull, 0x0f0e0d0c0b0a0908ull, 0x1716151413121110ull};
    assert_true(net_siphash(&key, words, 0) == 0x726fdb47dd0e0e31ull);
    assert_true(net_siphash(&key, words, 1) == 0x93f5f5799a932462ull);
    assert_true(net_siphash(&key, words, 3) == 0xb8ad50c6f649af94ull);
}


/* A proof holds for one statement and one key only. */
TEST(a_proof_holds_for_one_statement) {
    net_key other = {{key.words[0], key.words[1] + 1}};
    uint64_t proof = net_proof_of_claim(&key, 5, 1, 17);
    assert_true(proof != net_proof_of_claim(&key, 6, 1, 17));
    assert_true(proof != net_proof_of_claim(&key, 5, 2, 17));
    assert_true(proof != net_proof_of_claim(&key, 5, 1, 18));
    assert_true(proof != net_proof_of_claim(&other, 5, 1, 17));
    proof = net_proof_of_end(&key, 5, 17);
    assert_true(proof != net_proof_of_end(&key, 5, 18));
    assert_true(proof != net_proof_of_end(&key, 6, 17));
    assert_true(proof != net_proof_of_claim(&key, 5, 0, 17));
}
