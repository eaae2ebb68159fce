/* Encoding and decoding of messages (fabric/net/wire.c): decoding returns the encoded data, and malformed messages are
 * refused without reading outside of their bytes. */
#include "base/random.h"
#include "fabric/net/wire.h"
#include "test.h"

#include <stdlib.h>

#define NODE_BYTES (1u << 20)


/* Verbs of all kinds that are encoded by net_verb_put are decoded unchanged, and net_batch_check computes the size of
 * their results. */
TEST(verbs_come_back_as_they_were_put) {
    char bytes[1024], data[128];
    memset(data, 7, sizeof(data));
    far_verb verbs[] = {
        {.kind = FAR_READ, .length = 128, .addr = far_addr_make(3, 64)},
        {.kind = FAR_WRITE, .length = 128, .addr = far_addr_make(3, 4096), .local = data},
        {.kind = FAR_CAS, .length = 8, .addr = far_addr_make(3, 8), .compare = 1, .swap = 2},
        {.kind = FAR_FAA, .length = 8, .addr = far_addr_make(3, 16), .swap = 3},
        {.kind = FAR_MASKED_CAS,
         .length = 8,
         .addr = far_addr_make(3, 24),
         .compare = 4,
         .swap = 5,
         .compare_mask = 6,
         .swap_mask = 7},
    };
    char *to = bytes;
    for (int i = 0; i < 5; i++)
        to = net_verb_put(to, &verbs[i], 0, verbs[i].length);
    net_changes changes;
    assert_int_equal(net_batch_check(bytes, (size_t)(to - bytes), 5, NODE_BYTES, &changes), 128 + 3 * 8);
    assert_int_equal(changes, NET_CHANGES_MEMORY);
    const char *at = bytes;
    net_verb got;
    for (int i = 0; i < 5; i++) {
        assert_int_equal(net_verb_get(&at, to, NODE_BYTES, &got), 1);
        assert_int_equal(got.kind, verbs[i].kind);
        assert_int_equal(got.length, verbs[i].length);
        assert_int_equal(got.offset, far_addr_offset(verbs[i].addr));
    }
    assert_int_equal(net_word(got.operands + 24), 7);
    assert_int_equal(net_verb_get(&at, to, NODE_BYTES, &got), 0);
}


/* A piece of a WRITE has the offset and the data of its part of the verb. */
TEST(pieces_carry_their_part) {
    char bytes[256], data[256];
    for (int i = 0; i < 256; i++)
        data[i] = (char)i;
    far_verb verb = {.kind = FAR_WRITE, .length = 256, .addr = 4096, .local = data};
    const char *at = bytes, *end = net_verb_put(bytes, &verb, 64, 128);
    net_verb got;
    assert_int_equal(net_verb_get(&at, end, NODE_BYTES, &got), 1);
    assert_int_equal(got.offset, 4096 + 64);
    assert_memory_equal(got.operands, data + 64, 128);
}


/* Checks a batch of one verb. Returns -1 if it is malformed, 1 if it needs a claim, 0 otherwise. */
static int check_one(uint32_t kind, uint32_t length, uint64_t offset, size_t operands) {
    char *bytes = calloc(1, NET_VERB_BYTES + operands);
    uint32_t words[2] = {kind, length};
    net_changes changes;
    memcpy(bytes, words, 8);
    memcpy(bytes + 8, &offset, 8);
    int64_t results = net_batch_check(bytes, NET_VERB_BYTES + operands, 1, NODE_BYTES, &changes);
    free(bytes);
    return results < 0 ? -1 : (int)changes;
}


/* net_batch_check refuses verbs outside of the node, unaligned ones, and those with a wrong length or too few or too
 * many operands. It reports what the batch changes. */
TEST(bounds_alignment_and_lengths_are_checked) {
    assert_int_equal(check_one(FAR_READ, 64, NODE_BYTES - 64, 0), NET_CHANGES_NOTHING);
    assert_int_equal(check_one(FAR_READ, 64, NODE_BYTES - 56, 0), -1);
    assert_int_equal(check_one(FAR_READ, 64, UINT64_MAX - 63, 0), -1);
    assert_int_equal(check_one(FAR_READ, 64, NODE_BYTES, 0), -1);
    assert_int_equal(check_one(FAR_READ, 64, 4, 0), -1);
    assert_int_equal(check_one(FAR_READ, 12, 0, 0), -1);
    assert_int_equal(check_one(FAR_READ, 0, 0, 0), -1);
    assert_int_equal(check_one(FAR_READ, NET_PIECE_BYTES + 8, 0, 0), -1);
    assert_int_equal(check_one(FAR_READ, 64, 0, 8), -1); /* Bytes follow the verb, so the batch is malformed. */
    assert_int_equal(check_one(FAR_WRITE, 64, 0, 64), NET_CHANGES_START);
    assert_int_equal(check_one(FAR_WRITE, 64, NET_UNCLAIMED_WRITE_BYTES - 64, 64), NET_CHANGES_START);
    assert_int_equal(check_one(FAR_WRITE, 64, NET_UNCLAIMED_WRITE_BYTES - 56, 64), NET_CHANGES_MEMORY);
    assert_int_equal(check_one(FAR_WRITE, 64, 0, 56), -1);
    assert_int_equal(check_one(FAR_CAS, 8, 8192, 16), NET_CHANGES_MEMORY);
    assert_int_equal(check_one(FAR_CAS, 16, 8192, 16), -1);
    assert_int_equal(check_one(FAR_CAS, 8, 8192, 8), -1);
    assert_int_equal(check_one(FAR_MASKED_CAS, 8, 8, 32), NET_CHANGES_START);
    assert_int_equal(check_one(FAR_VERB_KINDS, 8, 8, 32), -1);
}


/* A batch is refused if its results would exceed NET_MESSAGE_MAX. */
TEST(results_fit_a_message) {
    char bytes[16 * NET_VERB_BYTES], *to = bytes;
    far_verb verb = {.kind = FAR_READ, .length = NET_PIECE_BYTES, .addr = 0};
    net_changes changes;
    for (int i = 0; i < 16; i++)
        to = net_verb_put(to, &verb, 0, verb.length);
    assert_int_equal(net_batch_check(bytes, 16 * NET_VERB_BYTES, 16, NODE_BYTES, &changes), -1);
    assert_int_equal(net_batch_check(bytes, 3 * NET_VERB_BYTES, 3, NODE_BYTES, &changes), 3 * NET_PIECE_BYTES);
    assert_int_equal(net_batch_check(bytes, 3 * NET_VERB_BYTES, 2, NODE_BYTES, &changes), -1);
    assert_int_equal(net_batch_check(bytes, 0, 0, NODE_BYTES, &changes), -1);
}


TEST(heads_are_checked) {
    char bytes[NET_HEAD_BYTES] = {0};
    uint32_t lengths[] = {0, 15, NET_MESSAGE_MAX + 1, UINT32_MAX};
    for (int i = 0; i < 4; i++) {
        memcpy(bytes, &lengths[i], 4);
        assert_int_equal(net_message_length(bytes, sizeof(bytes)), -1);
        assert_int_equal(net_message_length(bytes, 4), -1);
        assert_int_equal(net_message_length(bytes, 3), 0);
    }
    uint32_t good = 32;
    memcpy(bytes, &good, 4);
    assert_int_equal(net_message_length(bytes, 15), 0);
    assert_int_equal(net_message_length(bytes, 16), 32);
    const uint32_t claim = NET_HEAD_BYTES + sizeof(net_claim);
    assert_true(net_message_is_valid(&(net_head){.length = claim, .type = NET_CLAIM}, false));
    assert_false(net_message_is_valid(&(net_head){.length = claim, .type = NET_CLAIM}, true));
    assert_false(net_message_is_valid(&(net_head){.length = claim + 8, .type = NET_CLAIM}, false));
    assert_false(net_message_is_valid(&(net_head){.length = claim, .type = NET_CLAIM, .count = 1}, false));
    assert_true(
        net_message_is_valid(&(net_head){.length = claim + sizeof(net_claim), .type = NET_QUERY, .count = 2}, false));
    assert_false(net_message_is_valid(&(net_head){.length = claim, .type = NET_QUERY, .count = 2}, false));
    assert_false(net_message_is_valid(&(net_head){.length = 16, .type = NET_TYPES}, false));
    assert_false(net_message_is_valid(&(net_head){.length = 16, .type = 0}, false));
}


static size_t make_batch(far_random *random, char made[1024]) {
    static uint64_t data[8];
    char *to = made;
    for (uint64_t i = 1 + far_random_below(random, 8); i > 0; i--) {
        far_verb verb = {.kind = (uint8_t)far_random_below(random, FAR_VERB_KINDS), .local = data};
        verb.length = verb.kind <= FAR_WRITE ? 8 + 8 * (uint32_t)far_random_below(random, 8) : 8;
        verb.addr = 8 * far_random_below(random, NODE_BYTES / 8 - 8);
        to = net_verb_put(to, &verb, 0, verb.length);
    }
    return (size_t)(to - made);
}


/* However the bytes of a batch are mutated, a verb that passes the check is inside the node. Fails if net_verb_get
 * misses a bound. */
TEST(mutated_batches_stay_inside_the_node) {
    far_random random;
    unsigned sound = 0;
    far_random_seed(&random, 5);
    for (unsigned round = 0; round < 200000; round++) {
        char made[1024];
        size_t length = make_batch(&random, made);
        length -= far_random_below(&random, 8) ? 0 : far_random_below(&random, length);
        /* The buffer has exactly `length` bytes, so that the address sanitizer detects a read after its end. */
        char *bytes = malloc(length);
        memcpy(bytes, made, length);
        for (uint64_t flips = far_random_below(&random, 4); flips > 0 && length > 0; flips--)
            bytes[far_random_below(&random, length)] ^= (char)(1 << far_random_below(&random, 8));
        const char *at = bytes, *end = bytes + length;
        net_verb verb;
        int got;
        unsigned count = 0;
        while ((got = net_verb_get(&at, end, NODE_BYTES, &verb)) > 0) {
            count++;
            assert_true(verb.length <= NODE_BYTES && verb.offset <= NODE_BYTES - verb.length);
            assert_true(((verb.offset | verb.length) & 7) == 0 && at <= end);
        }
        net_changes changes;
        sound += got == 0 && count > 0 && net_batch_check(bytes, length, count, NODE_BYTES, &changes) >= 0;
        free(bytes);
    }
    assert_true(sound > 1000);
}
