/* CHIME: pair blocks, and the search for a key in its neighbourhood. A pair block is an immutable object with a full
 * key and its value. Where keys and values do not fit into slots, each item is stored in a pair block; the slot then
 * holds the first 8 bytes of the key and the address of the pair block. */
#include "base/error.h"
#include "index/chime/chime.h"


/* Allocates local memory for the READ of a pair block: `most` bytes, or the whole pair block if it is smaller. Checks
 * first that the value word names memory of the pool, and fails with FAR_ERR_CORRUPT if it does not. */
static int alloc_block_image(chime_op *op, uint64_t word, uint64_t most, chime_block *b, uint64_t *bytes) {
    unsigned class = chime_value_class(word);
    uint64_t all = class < CHIME_CLASSES ? chime_class_bytes(class) : 0;
    *bytes = all < most ? all : most;
    if (!*bytes || !far_task_reaches(op->t, chime_value_block(word), *bytes)) {
        far_discard_batch(op->t);
        return far_fail(FAR_ERR_CORRUPT, "index '%s': a slot refers to an invalid pair block at %#llx", op->index->name,
                        (unsigned long long)chime_value_block(word));
    }
    if (!(b->image = far_scratch(op->t, *bytes))) {
        far_discard_batch(op->t);
        return far_fail(FAR_ERR_NO_MEMORY, "no memory for a pair block");
    }
    return 0;
}


static int batch_read_bytes(chime_op *op, uint64_t word, uint64_t most, chime_block *b) {
    uint64_t bytes;
    int err = alloc_block_image(op, word, most, b, &bytes);
    if (err >= 0)
        far_read(op->t, chime_value_block(word), b->image, bytes);
    return err;
}


int chime_batch_read_block(chime_op *op, uint64_t word, chime_block *b) {
    return batch_read_bytes(op, word, UINT64_MAX, b);
}


static uint64_t block_head_bytes(const chime_op *op) {
    return CHIME_BLOCK_HEAD + ((uint64_t)op->index->options[FAR_OPTION_MAX_KEY] + 7) / 8 * 8;
}


int chime_batch_read_block_head(chime_op *op, uint64_t word, chime_block *b) {
    return batch_read_bytes(op, word, block_head_bytes(op), b);
}


static int parse_block(chime_op *op, uint64_t word, chime_block *b) {
    uint64_t head;
    memcpy(&head, b->image, 8);
    size_t key = chime_block_key_length(head), value = chime_block_value_length(head);
    if (!key || key > (size_t)op->index->options[FAR_OPTION_MAX_KEY] ||
        CHIME_BLOCK_HEAD + key + value > chime_class_bytes(chime_value_class(word)))
        return far_fail(FAR_ERR_CORRUPT, "index '%s': the lengths in the pair block at %#llx are invalid",
                        op->index->name, (unsigned long long)chime_value_block(word));
    b->key = (far_bytes){b->image + CHIME_BLOCK_HEAD, key};
    b->value = (far_bytes){b->image + CHIME_BLOCK_HEAD + key, value};
    return 0;
}


int chime_parse_block(chime_op *op, uint64_t word, chime_block *b) {
    return parse_block(op, word, b);
}


int chime_read_block(chime_op *op, uint64_t word, chime_block *b) {
    uint64_t bytes;
    int err = alloc_block_image(op, word, UINT64_MAX, b, &bytes);
    if (err < 0 || (err = far_read_now(op->t, chime_value_block(word), b->image, bytes, 0)) < 0)
        return err;
    return parse_block(op, word, b);
}


int chime_parse_block_head(chime_op *op, uint64_t word, chime_block *b) {
    return parse_block(op, word, b);
}


/* READs the pair blocks of all candidate slots in one batch and compares their full keys with the operation's key. Sets
 * *slot and *b to the match; leaves them unchanged if no candidate matches. */
static int choose_by_full_key(chime_op *op, chime_node *n, const unsigned *slots, unsigned count, int *slot,
                              chime_block *b) {
    chime_block blocks[CHIME_HOP_MAX];
    int err;
    for (unsigned i = 0; i < count; i++)
        if ((err = chime_batch_read_block(op, chime_slot(op->st, n->w, slots[i])[1], &blocks[i])) < 0)
            return err;
    /* This batch is posted by far_wait instead of chime_wait, so it gets no RDWC mark: pair blocks are immutable, so
     * the earlier READ of the slots is the linearization point. */
    if ((err = far_wait(op->t)) < 0)
        return err;
    for (unsigned i = 0; i < count; i++) {
        if ((err = chime_parse_block(op, chime_slot(op->st, n->w, slots[i])[1], &blocks[i])) < 0)
            return err;
        if (far_bytes_compare(blocks[i].key, op->key.bytes) == 0) {
            *slot = (int)slots[i];
            *b = blocks[i];
            return 0;
        }
    }
    return 0;
}


int chime_find_item(chime_op *op, chime_node *n, int *slot, chime_block *b) {
    const chime_state *st = op->st;
    unsigned found[CHIME_HOP_MAX], count = 0, tag = chime_ptr_tag(n->ptr);
    *slot = -1;
    for (unsigned i = 0; i < st->hop && (st->wrap || op->home_slot + i < st->span); i++) {
        unsigned at = chime_slot_after(st, op->home_slot, i);
        const uint64_t *words = chime_slot(st, n->w, at);
        if (!chime_slot_is_occupied(st, n->w, at) || words[0] != op->key.first ||
            !chime_line_is_current(st, n->w, chime_line(st, at), tag))
            continue;
        if (!st->inline_items &&
            (chime_value_fingerprint(words[1]) != (op->key.hash & 1023) || chime_value_distance(words[1]) != i))
            continue;
        found[count++] = at;
        if (st->key_fits_word)
            break;
    }
    if (count && (st->inline_items || (st->key_fits_word && !b))) {
        *slot = (int)found[0];
        return 0;
    }
    return count ? choose_by_full_key(op, n, found, count, slot, b) : 0;
}
