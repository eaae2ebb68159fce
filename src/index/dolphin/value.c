/* Value words and value blocks, and the allocation of key blocks. A value block is immutable after it was linked. To
 * change a value, a client writes a new value block and replaces the value word by CAS. */
#include "base/error.h"
#include "index/dolphin/dolphin.h"


/* Builds the value word for a value: with value_size=8 the value itself, otherwise up to 7 bytes inline, or the address
 * of a new value block. If there is a block, *block is its image and the caller must append its WRITE; otherwise *block
 * is NULL. */
int dolphin_build_value(dolphin_op *op, far_bytes value, unsigned node, uint64_t *vword, uint8_t **block) {
    *block = NULL;
    *vword = 0;
    if (op->st->raw_values) {
        memcpy(vword, value.data, 8);
        return 0;
    }
    if (value.length <= 7 && !op->st->indirect_values) {
        if (value.length)
            memcpy(vword, value.data, value.length);
        *vword |= (uint64_t)(value.length + 1) << 56;
        return 0;
    }
    unsigned code = dolphin_value_code(value.length);
    uint64_t bytes = dolphin_code_bytes(code);
    uint64_t head = dolphin_value_block_head(value.length, dolphin_key_hash(op->st, op->key));
    far_object object;
    int err = far_alloc(op->t, op->index, DOLPHIN_TYPE_VALUE, bytes, node, 0, &object);
    if (err < 0)
        return err;
    *vword = dolphin_block_value(object.addr, code);
    uint8_t *image = far_scratch(op->t, bytes);
    if (!image) {
        dolphin_free_value(op, *vword);
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a value");
    }
    memcpy(image, &head, 8);
    memcpy(image + 8, value.data, value.length);
    memset(image + 8 + value.length, 0, bytes - 8 - value.length);
    *block = image;
    return 0;
}


void dolphin_free_value(dolphin_op *op, uint64_t vword) {
    if (!op->session_lost && !op->st->raw_values && dolphin_value_is_block(vword))
        far_free(op->t, op->index, DOLPHIN_TYPE_VALUE, dolphin_value_block(vword), dolphin_value_block_bytes(vword));
}


void dolphin_retire_value(dolphin_op *op, uint64_t vword) {
    if (!op->st->raw_values && dolphin_value_is_block(vword))
        far_retire(op->t, op->index, DOLPHIN_TYPE_VALUE, dolphin_value_block(vword), dolphin_value_block_bytes(vword));
}


/* Returns the number of bytes of the value block that a value word names, 0 if it names none, or FAR_ERR_CORRUPT. */
static int64_t check_value_block(const dolphin_op *op, uint64_t vword) {
    if (!dolphin_value_is_block(vword))
        return 0;
    uint64_t bytes = dolphin_value_block_bytes(vword);
    if (!dolphin_value_is_sound(vword) || !far_task_reaches(op->t, dolphin_value_block(vword), bytes))
        return dolphin_fail_corrupt(op->index, dolphin_value_block(vword), "value");
    return (int64_t)bytes;
}


int dolphin_batch_read_value(dolphin_op *op, uint64_t vword, uint8_t **block) {
    *block = NULL;
    int64_t bytes = op->st->raw_values ? 0 : check_value_block(op, vword);
    if (bytes <= 0)
        return (int)bytes;
    if (!(*block = far_scratch(op->t, (size_t)bytes)))
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a value");
    far_read(op->t, dolphin_value_block(vword), *block, (size_t)bytes);
    return 0;
}


int dolphin_read_values(dolphin_op *op, const uint64_t vwords[], unsigned *count, uint64_t most, uint8_t *blocks[]) {
    uint64_t sum = 0;
    unsigned n = 0;
    for (; n < *count && sum < most; n++) {
        int64_t bytes = check_value_block(op, vwords[n]);
        if (bytes < 0)
            return (int)bytes;
        sum += (uint64_t)bytes;
    }
    *count = n;
    uint8_t *memory = sum ? far_scratch(op->t, sum) : NULL;
    if (sum && !memory)
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for values");
    for (unsigned i = 0; i < n; i++) {
        blocks[i] = NULL;
        if (!dolphin_value_is_block(vwords[i]))
            continue;
        blocks[i] = memory;
        memory += dolphin_value_block_bytes(vwords[i]);
        far_read(op->t, dolphin_value_block(vwords[i]), blocks[i], (size_t)(memory - blocks[i]));
    }
    return sum ? dolphin_wait(op) : 0;
}


int dolphin_decode_value(const dolphin_op *op, far_bytes key, uint64_t vword, const uint8_t *block, far_bytes *value) {
    if (!block) { /* For an inline value, the bytes are in the caller's copy of the value word. */
        if (!dolphin_value_is_sound(vword) || vword == 0)
            return dolphin_fail_corrupt(op->index, 0, "value");
        value->length = dolphin_value_inline_bytes(vword);
        return 0;
    }
    uint64_t head, length;
    memcpy(&head, block, 8);
    length = dolphin_value_head_length(head);
    if (length > FAR_VALUE_MAX || dolphin_value_code(length) != dolphin_value_block_code(vword) ||
        !dolphin_value_head_has_hash(head, dolphin_key_hash(op->st, key)))
        return dolphin_fail_corrupt(op->index, dolphin_value_block(vword), "value");
    *value = (far_bytes){block + 8, length};
    return 0;
}


int dolphin_build_key(dolphin_op *op, unsigned node, uint64_t *kword, uint8_t **block) {
    unsigned class = dolphin_key_block_class(op->key.length), bytes = dolphin_key_block_bytes(class);
    far_object object;
    int err = far_alloc(op->t, op->index, DOLPHIN_TYPE_KEY, bytes, node, 0, &object);
    if (err < 0)
        return err;
    *kword = dolphin_block_kword(object.addr, class, dolphin_fingerprint(op->st, op->key));
    uint8_t *image = far_scratch(op->t, bytes);
    if (!image) {
        dolphin_free_key(op, *kword);
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a key");
    }
    uint16_t length = (uint16_t)op->key.length;
    memcpy(image, &length, 2);
    memcpy(image + 2, op->key.data, length);
    memset(image + 2 + length, 0, bytes - 2 - length);
    *block = image;
    return 0;
}


void dolphin_free_key(dolphin_op *op, uint64_t kword) {
    if (!op->session_lost && dolphin_kword_is_block(kword))
        far_free(op->t, op->index, DOLPHIN_TYPE_KEY, dolphin_kword_block(kword), dolphin_kword_block_bytes(kword));
}


void dolphin_retire_key(dolphin_op *op, uint64_t kword) {
    if (dolphin_kword_is_block(kword))
        far_retire(op->t, op->index, DOLPHIN_TYPE_KEY, dolphin_kword_block(kword), dolphin_kword_block_bytes(kword));
}
