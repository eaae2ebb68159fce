/* Keys as leaves store them: prefix words, key words, and key blocks for keys with a suffix of more than 7 bytes. All
 * operations use these functions to compare a key with a slot. */
#include "base/error.h"
#include "base/hash.h"
#include "index/dolphin/dolphin.h"


int dolphin_fail_corrupt(const far_index *index, far_addr addr, const char *what) {
    return far_fail(FAR_ERR_CORRUPT, "index '%s': the %s at %#llx is damaged", index->name, what,
                    (unsigned long long)addr);
}


uint64_t dolphin_prefix_word(const dolphin_state *st, const void *bytes, unsigned depth) {
    uint64_t word = 0;
    if (depth > DOLPHIN_INLINE_PREFIX_MAX)
        return far_hash((far_bytes){bytes, depth}, st->hash_seed);
    if (depth)
        memcpy(&word, bytes, depth);
    return word;
}


uint64_t dolphin_key_hash(const dolphin_state *st, far_bytes key) {
    return far_hash(key, st->hash_seed ^ DOLPHIN_MAGIC);
}


unsigned dolphin_fingerprint(const dolphin_state *st, far_bytes key) {
    return (unsigned)(dolphin_key_hash(st, key) >> 52);
}


/* Returns true if the suffix of the key fits into the key word. `depth` must not exceed the length of the key. */
static bool suffix_fits_inline(far_bytes key, unsigned depth) {
    return key.length - depth <= DOLPHIN_INLINE_MAX;
}


/* Returns the key word for this key, with the state field 0. If the key needs a key block, the address in the word is
 * 0. */
uint64_t dolphin_expected_kword(const dolphin_state *st, far_bytes key, unsigned depth) {
    return suffix_fits_inline(key, depth)
               ? dolphin_inline_kword(key, depth)
               : dolphin_block_kword(0, dolphin_key_block_class(key.length), dolphin_fingerprint(st, key));
}


bool dolphin_kword_may_be(const dolphin_state *st, uint64_t kword, far_bytes key, unsigned depth) {
    if (suffix_fits_inline(key, depth))
        return (kword & DOLPHIN_KEY_MASK) == dolphin_inline_kword(key, depth);
    return dolphin_kword_is_block(kword) &&
           dolphin_kword_length(kword) - DOLPHIN_BLOCK == dolphin_key_block_class(key.length) &&
           dolphin_kword_fingerprint(kword) == dolphin_fingerprint(st, key);
}


unsigned dolphin_find_candidates(const dolphin_op *op, const dolphin_leaf *leaf, unsigned states, unsigned found[]) {
    const uint64_t *kwords = dolphin_kwords(leaf);
    unsigned depth = dolphin_ident_depth(dolphin_ident(leaf)), count = 0;
    bool plain = suffix_fits_inline(op->key, depth);
    uint64_t wanted = plain ? dolphin_inline_kword(op->key, depth) : 0;
    for (unsigned i = op->st->slots; i-- > 0;) {
        if (!(states & DOLPHIN_STATE_BIT(kwords[i] >> 60)))
            continue;
        if (plain ? (kwords[i] & DOLPHIN_KEY_MASK) == wanted : dolphin_kword_may_be(op->st, kwords[i], op->key, depth))
            found[count++] = i;
    }
    return count;
}


int dolphin_batch_read_key(dolphin_op *op, uint64_t kword, uint8_t **block) {
    unsigned bytes = dolphin_kword_block_bytes(kword);
    if (!far_task_reaches(op->t, dolphin_kword_block(kword), bytes))
        return dolphin_fail_corrupt(op->index, dolphin_kword_block(kword), "key");
    if (!(*block = far_scratch(op->t, bytes)))
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a key");
    far_read(op->t, dolphin_kword_block(kword), *block, bytes);
    return 0;
}


int dolphin_decode_key(const dolphin_op *op, uint64_t kword, const uint8_t *block, far_bytes *key) {
    uint16_t length;
    memcpy(&length, block, 2);
    if (length == 0 || length > FAR_KEY_MAX ||
        dolphin_key_block_class(length) != dolphin_kword_length(kword) - DOLPHIN_BLOCK)
        return dolphin_fail_corrupt(op->index, dolphin_kword_block(kword), "key");
    *key = (far_bytes){block + 2, length};
    /* If the fingerprints differ, a damaged key word has led to the key block of another key. */
    if (dolphin_fingerprint(op->st, *key) != dolphin_kword_fingerprint(kword))
        return dolphin_fail_corrupt(op->index, dolphin_kword_block(kword), "key");
    return 0;
}


bool dolphin_first_key_after_prefix(const uint8_t *prefix, unsigned depth, uint8_t *key, size_t *length) {
    while (depth && prefix[depth - 1] == 0xff)
        depth--;
    if (depth == 0)
        return false;
    if (key != prefix)
        memcpy(key, prefix, depth);
    key[depth - 1]++;
    *length = depth;
    return true;
}
