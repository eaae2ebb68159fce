/* Values of any size, and the blocks of long keys: immutable once they are linked. */
#include "base/error.h"
#include "index/dolphin/dolphin.h"


/* value_size=8: the value itself. Else up to 7 bytes in the word, or a block, whose image is to be written. */
int dolphin_make_value(dolphin_op *op, far_bytes value, unsigned node, uint64_t *vword, uint8_t **block) {
    *block = NULL;
    *vword = 0;
    if (op->st->words) {
        memcpy(vword, value.data, 8);
        return 0;
    }
    if (value.length <= 7 && !op->st->indirect) {
        if (value.length)
            memcpy(vword, value.data, value.length);
        *vword |= (uint64_t)(value.length + 1) << 56;
        return 0;
    }
    unsigned code = dolphin_value_code(value.length);
    uint64_t bytes = dolphin_code_bytes(code);
    uint64_t head = dolphin_value_head(value.length, dolphin_key_hash(op->st, op->key));
    far_object object;
    int err = far_alloc(op->t, op->index, DOLPHIN_TYPE_VALUE, bytes, node, 0, &object);
    if (err < 0)
        return err;
    *vword = dolphin_block_value(object.addr, code);
    uint8_t *image = far_scratch(op->t, bytes);
    if (!image) {
        dolphin_drop_value(op, *vword);
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a value");
    }
    memcpy(image, &head, 8);
    memcpy(image + 8, value.data, value.length);
    memset(image + 8 + value.length, 0, bytes - 8 - value.length);
    *block = image;
    return 0;
}


void dolphin_drop_value(dolphin_op *op, uint64_t vword) {
    if (!op->lost && !op->st->words && dolphin_value_is_block(vword))
        far_free(op->t, op->index, DOLPHIN_TYPE_VALUE, dolphin_value_block(vword), dolphin_value_block_bytes(vword));
}


void dolphin_retire_value(dolphin_op *op, uint64_t vword) {
    if (!op->st->words && dolphin_value_is_block(vword))
        far_retire(op->t, op->index, DOLPHIN_TYPE_VALUE, dolphin_value_block(vword), dolphin_value_block_bytes(vword));
}


int dolphin_put_read_value(dolphin_op *op, uint64_t vword, uint8_t **block) {
    *block = NULL;
    if (op->st->words || !dolphin_value_is_block(vword))
        return 0;
    uint64_t bytes = dolphin_value_block_bytes(vword);
    if (!dolphin_value_is_sound(vword) || !far_task_reaches(op->t, dolphin_value_block(vword), bytes))
        return dolphin_broken(op->index, dolphin_value_block(vword), "value");
    if (!(*block = far_scratch(op->t, bytes)))
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a value");
    far_read(op->t, dolphin_value_block(vword), *block, bytes);
    return 0;
}


int dolphin_take_value(const dolphin_op *op, far_bytes key, uint64_t vword, const uint8_t *block, far_bytes *value) {
    if (!block) { /* in the word: the caller keeps it */
        if (!dolphin_value_is_sound(vword) || vword == 0)
            return dolphin_broken(op->index, 0, "value");
        value->length = dolphin_value_inline_bytes(vword);
        return 0;
    }
    uint64_t head, length;
    memcpy(&head, block, 8);
    length = dolphin_head_length(head);
    if (length > FAR_VALUE_MAX || dolphin_code_bytes(dolphin_value_code(length)) != dolphin_value_block_bytes(vword) ||
        !dolphin_head_is_of(head, dolphin_key_hash(op->st, key)))
        return dolphin_broken(op->index, dolphin_value_block(vword), "value");
    *value = (far_bytes){block + 8, length};
    return 0;
}


int dolphin_make_key(dolphin_op *op, unsigned node, uint64_t *kword, uint8_t **block) {
    unsigned class = dolphin_key_class(op->key.length), bytes = dolphin_key_block_bytes(class);
    far_object object;
    int err = far_alloc(op->t, op->index, DOLPHIN_TYPE_KEY, bytes, node, 0, &object);
    if (err < 0)
        return err;
    *kword = dolphin_block_kword(object.addr, class, dolphin_fingerprint(op->st, op->key));
    uint8_t *image = far_scratch(op->t, bytes);
    if (!image) {
        dolphin_drop_key(op, *kword);
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a key");
    }
    uint16_t length = (uint16_t)op->key.length;
    memcpy(image, &length, 2);
    memcpy(image + 2, op->key.data, length);
    memset(image + 2 + length, 0, bytes - 2 - length);
    *block = image;
    return 0;
}


void dolphin_drop_key(dolphin_op *op, uint64_t kword) {
    if (!op->lost && dolphin_kword_is_block(kword))
        far_free(op->t, op->index, DOLPHIN_TYPE_KEY, dolphin_kword_block(kword), dolphin_kword_block_bytes(kword));
}


void dolphin_retire_key(dolphin_op *op, uint64_t kword) {
    if (dolphin_kword_is_block(kword))
        far_retire(op->t, op->index, DOLPHIN_TYPE_KEY, dolphin_kword_block(kword), dolphin_kword_block_bytes(kword));
}
