/* Keys as leaves hold them: prefix words, key words, and the blocks of keys whose rest is longer than 7 bytes. */
#include "base/error.h"
#include "base/hash.h"
#include "index/dolphin/dolphin.h"


int dolphin_broken(const far_index *index, far_addr addr, const char *what) {
    return far_fail(FAR_ERR_CORRUPT, "index '%s': the %s at %#llx is broken", index->name, what,
                    (unsigned long long)addr);
}


uint64_t dolphin_prefix_word(const dolphin_state *st, const void *bytes, unsigned depth) {
    uint64_t word = 0;
    if (depth > DOLPHIN_EXACT)
        return far_hash((far_bytes){bytes, depth}, st->seed);
    if (depth)
        memcpy(&word, bytes, depth);
    return word;
}


uint64_t dolphin_key_hash(const dolphin_state *st, far_bytes key) {
    return far_hash(key, st->seed ^ DOLPHIN_MAGIC);
}


unsigned dolphin_fingerprint(const dolphin_state *st, far_bytes key) {
    return (unsigned)(dolphin_key_hash(st, key) >> 52);
}


/* Its rest stands in the key word. */
static bool is_inline(far_bytes key, unsigned depth) {
    return key.length - depth <= DOLPHIN_INLINE_MAX;
}


/* The key word of the key, without a state, and without the address of its block if it has one. */
uint64_t dolphin_kword_of(const dolphin_state *st, far_bytes key, unsigned depth) {
    return is_inline(key, depth) ? dolphin_inline_kword(key, depth)
                                 : dolphin_block_kword(0, dolphin_key_class(key.length), dolphin_fingerprint(st, key));
}


bool dolphin_kword_may_be(const dolphin_state *st, uint64_t kword, far_bytes key, unsigned depth) {
    if (is_inline(key, depth))
        return (kword & DOLPHIN_KEY_MASK) == dolphin_inline_kword(key, depth);
    return dolphin_kword_is_block(kword) &&
           dolphin_kword_length(kword) - DOLPHIN_BLOCK == dolphin_key_class(key.length) &&
           dolphin_kword_fingerprint(kword) == dolphin_fingerprint(st, key);
}


unsigned dolphin_candidates(const dolphin_op *op, const dolphin_leaf *leaf, unsigned states, unsigned found[]) {
    const uint64_t *kwords = dolphin_kwords(leaf);
    unsigned depth = dolphin_ident_depth(dolphin_ident(leaf)), count = 0;
    bool plain = is_inline(op->key, depth);
    uint64_t wanted = plain ? dolphin_inline_kword(op->key, depth) : 0;
    for (unsigned i = op->st->slots; i-- > 0;) {
        if (!(states & DOLPHIN_STATE_BIT(kwords[i] >> 60)))
            continue;
        if (plain ? (kwords[i] & DOLPHIN_KEY_MASK) == wanted : dolphin_kword_may_be(op->st, kwords[i], op->key, depth))
            found[count++] = i;
    }
    return count;
}


int dolphin_put_read_key(dolphin_op *op, uint64_t kword, uint8_t **block) {
    unsigned bytes = dolphin_kword_block_bytes(kword);
    if (!far_task_reaches(op->t, dolphin_kword_block(kword), bytes))
        return dolphin_broken(op->index, dolphin_kword_block(kword), "key");
    if (!(*block = far_scratch(op->t, bytes)))
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a key");
    far_read(op->t, dolphin_kword_block(kword), *block, bytes);
    return 0;
}


int dolphin_take_key(const dolphin_op *op, uint64_t kword, const uint8_t *block, far_bytes *key) {
    uint16_t length;
    memcpy(&length, block, 2);
    if (length == 0 || length > FAR_KEY_MAX || dolphin_key_class(length) != dolphin_kword_length(kword) - DOLPHIN_BLOCK)
        return dolphin_broken(op->index, dolphin_kword_block(kword), "key");
    *key = (far_bytes){block + 2, length};
    if (dolphin_fingerprint(op->st, *key) != dolphin_kword_fingerprint(kword)) /* a word that was damaged leads there */
        return dolphin_broken(op->index, dolphin_kword_block(kword), "key");
    return 0;
}


bool dolphin_after_prefix(const uint8_t *prefix, unsigned depth, uint8_t *key, size_t *length) {
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
